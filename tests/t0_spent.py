"""The rule of what a test may cost: it finds what costs too much, on a quiet machine and on a busy one."""

import os
import re
import sys
from pathlib import Path

import pytest
import spent
from patience import completed

TESTS = Path(__file__).parent

LIMIT_IS_ONE_WORK = """
import math
import pytest
import spent

spent.MOST_S, spent.MOST_OF_OTHERS = spent.WORK_S, math.inf
# What other tests of the rule are about, and differs from one moment to the next.
spent.judge.__defaults__ = (lambda: 1.0,)

def work():
    for _ in range(3):
        spent.work()

@pytest.fixture(scope="module")
def made():
    work()
"""


def run_tests(folder: Path, tests: str, patience: str = "1") -> str:
    """What pytest says of ``tests`` under the settings of these tests, but with a lower limit."""
    (too_long,) = re.findall(r"^too_long='(.*)'$", (TESTS.parent / "scripts/lanes").read_text(), re.MULTILINE)
    (folder / "t0_of_a_cost.py").write_text(LIMIT_IS_ONE_WORK + tests)
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    words = (
        "-p",
        "conftest",
        "-p",
        "no:cacheprovider",
        "-n",
        "0",
        "--reruns",
        "1",
        "--rerun-except",
        too_long,
        "-c",
        TESTS.parent / "pyproject.toml",
    )
    done = completed(
        [sys.executable, "-m", "pytest", *map(str, words), str(folder)],
        # Wide enough for the folder's name before what is said of a test.
        env=os.environ | {"PYTHONPATH": path, "COLUMNS": "1000", "REDOXFS_TEST_PATIENCE": patience},
        cwd=folder,
    )
    return done.stdout + done.stderr


@pytest.mark.slow
def test_what_costs_too_much_fails_twice_also_if_the_first_try_made_its_fixture(tmp_path: Path) -> None:
    said = run_tests(
        tmp_path,
        """
def test_of_nothing():
    pass

def test_of_work():
    work()

def test_of_a_fixture(made):
    pass

def test_after_it(made):
    pass
""",
    )
    assert re.findall(r"^ERROR .*::(\w+) - spent.CostError", said, re.MULTILINE) == [
        "test_of_work",
        "test_of_a_fixture",
    ]
    assert "2 errors, 2 rerun" in said


@pytest.mark.slow
def test_what_never_ends_is_ended_and_named_at_once(tmp_path: Path) -> None:
    """It is not tried again. What follows it is."""
    said = run_tests(
        tmp_path,
        """
import time

def test_of_nothing_that_comes():
    time.sleep(1000)

tries = []

def test_of_what_is_wrong():
    tries.append(1)
    assert len(tries) == 2, "first"
    assert not tries, "then"
""",
        patience="0.003",
    )
    told = re.findall(r"^call (failed|rerun) after \d+ s: \S+::(\w+)\n    (?:\w+: )?(\w+)", said, re.MULTILINE)
    assert told == [
        ("failed", "test_of_nothing_that_comes", "Timeout"),
        ("rerun", "test_of_what_is_wrong", "first"),
        ("failed", "test_of_what_is_wrong", "then"),
    ]
    _, _, before = said.partition("before they failed again")
    assert "AssertionError: first" in before


@pytest.mark.parametrize(("cost_s", "slowness"), [(5.1, 1.0), (7.6, 1.5), (100.0, 10.0)])
def test_too_much_is_too_much_at_any_speed_of_the_machine(cost_s: float, slowness: float) -> None:
    with pytest.raises(spent.CostError, match=f"took {cost_s} s .* which is 5 on"):
        spent.judge(cost_s, lambda: 0.0, lambda: slowness)


@pytest.mark.parametrize(("cost_s", "slowness"), [(4.9, 1.0), (7.4, 1.5), (49.0, 10.0)])
def test_a_slow_machine_is_not_the_tests_fault(cost_s: float, slowness: float) -> None:
    spent.judge(cost_s, lambda: 0.0, lambda: slowness)


def test_what_costs_little_needs_no_look_at_others() -> None:
    spent.judge(4.9, lambda: pytest.fail("a look takes as long as a quick test"))


def test_nothing_is_judged_beside_much_work_of_others() -> None:
    spent.judge(100.0, lambda: spent.MOST_OF_OTHERS, lambda: 1.0)


def test_the_machine_is_measured_where_a_test_is_judged() -> None:
    assert spent.judge.__defaults__ == (spent.slowness,)


def test_a_quick_machine_lowers_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spent, "WORK_S", 1000.0)
    assert spent.slowness() == 1.0


def test_the_work_of_other_virtual_machines_is_that_of_others() -> None:
    second = os.sysconf("SC_CLK_TCK")
    line = "cpu  {user} 0 0 {idle} {iowait} 0 0 {steal} 0 0\ncpu0 1 2 3\n"
    assert spent.busy_of(line.format(user=second, idle=900, iowait=70, steal=2 * second)) == 3.0
