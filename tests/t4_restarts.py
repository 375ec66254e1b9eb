"""A daemon dies in every way under readers that check every byte, and its keeper starts another: no reader notices.

`reading_job.py` says what the readers do. `scripts/bench/restarts.py` kills 200 times in each setting.
"""

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deaths import HAS_MEMORY_GROUPS, Case, Found, Storm, mounting, serve
from machine import Machine
from reading_job import Job, make_files

FILES = 160
CLASSES = 4
LARGEST_BYTES = 20_000
READERS = 8
KILLS = 3
FIRST_SEED = 95
"""With it and the next three, three of the daemons die while they start."""
RESTARTS = 2
CASES = [
    Case("pool", "directory", "default"),
    Case("pool", "packed", "direct_io", threads=2),
    Case("slot", "directory", "page_cache", groups=True),
    Case("slot", "packed", "default", memory="least"),
]


@pytest.fixture(scope="module", autouse=True)
def no_core_files() -> Iterator[None]:
    """A daemon that is killed by SIGSEGV would leave one."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, before)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files") / "data"
    make_files(root, FILES, CLASSES, LARGEST_BYTES)
    return root


@pytest.fixture(scope="module")
def captioned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files") / "captioned"
    make_files(root, FILES, CLASSES, LARGEST_BYTES, groups=True)
    return root


def job(machine: Machine, case: Case = CASES[0], seed: int = 0) -> Job:
    return Job(str(machine.mnt), FILES, CLASSES, LARGEST_BYTES, READERS, seed, groups=case.groups)


def nobody_noticed(machine: Machine, found: Found, deaths: int, *, has_traceback: bool = False) -> None:
    """All readers read whole epochs of right bytes, and the mount ends as any other."""
    assert found.problems == [], machine.log()
    assert (found.errors, found.wrong, found.not_once) == (0, 0, 0)
    assert len(found.told) == READERS
    assert len(found.deaths) == deaths
    assert found.complete_epochs > 0
    stats = machine.stats()
    assert stats["lap"] == {".": found.complete_epochs}
    # `errors` may count a read that nobody waits for: it was answered just before a death, and is repeated.
    assert stats["open_files"] == 0
    machine.umount()
    assert ("Traceback" in machine.log()) == has_traceback


@pytest.mark.parametrize(("seed", "case"), list(enumerate(CASES, FIRST_SEED)), ids=str)
def test_readers_do_not_notice_that_the_daemon_is_killed(
    machine: Machine, source: Path, captioned: Path, seed: int, case: Case
) -> None:
    shown = captioned if case.groups else source
    serve(machine, shown, case, packs=shown.parent)
    with Storm(machine, job(machine, case, seed)) as storm:
        storm.kill(KILLS)
        found = storm.finish()
    nobody_noticed(machine, found, KILLS)


def test_readers_do_not_notice_that_the_daemon_crashes(machine: Machine, source: Path) -> None:
    serve(machine, source, CASES[0])
    with Storm(machine, job(machine)) as storm:
        storm.crash(3)
        found = storm.finish()
    nobody_noticed(machine, found, 3)


BREAKABLE = """
import os, sys
from redoxfs.cli import main
from redoxfs.fs.requests import Requests

expire = Requests._expire

def break_or_expire(requests):
    if os.path.exists(sys.argv[1]):
        os.unlink(sys.argv[1])
        raise ZeroDivisionError("a bug in the loop")
    expire(requests)

Requests._expire = break_or_expire
sys.exit(main(sys.argv[2:]))
"""
"""The program, with a bug in the request loop as soon as a file exists."""


def test_readers_do_not_notice_an_exception_in_the_loop(machine: Machine, source: Path) -> None:
    broken = machine.folder / "broken"
    arguments = [*mounting(machine, source, CASES[0]), "--keeper"]
    command = [sys.executable, "-c", BREAKABLE, broken, *arguments]
    subprocess.run(command, env=machine.environment, check=True, capture_output=True)
    with Storm(machine, job(machine)) as storm:
        storm.run_by_chance()
        storm.end_daemons("exception", broken.touch, 0)
        found = storm.finish()
    assert "ZeroDivisionError: a bug in the loop" in machine.log()
    nobody_noticed(machine, found, 1, has_traceback=True)


@pytest.mark.skipif(not HAS_MEMORY_GROUPS, reason="needs root, and control groups of version 1")
def test_readers_do_not_notice_that_the_daemon_runs_out_of_memory(machine: Machine, source: Path) -> None:
    serve(machine, source, CASES[0])
    with Storm(machine, job(machine)) as storm:
        storm.exhaust_memory(1)
        found = storm.finish()
    nobody_noticed(machine, found, 1)


def test_readers_do_not_notice_restarts_on_purpose(machine: Machine, source: Path) -> None:
    serve(machine, source, CASES[0])
    with Storm(machine, job(machine)) as storm:
        storm.restart(RESTARTS)
        found = storm.finish()
    nobody_noticed(machine, found, RESTARTS)


def test_readers_fail_if_the_daemon_has_no_keeper(machine: Machine, source: Path) -> None:
    """The readers of this file do notice what there is to notice."""
    serve(machine, source, CASES[0], has_keeper=False)
    with Storm(machine, job(machine), has_keeper=False) as storm:
        storm.kill(1)
        found = storm.finish()
    assert found.errors > 0
    assert found.not_once > 0
    assert any("not connected" in problem for problem in found.problems)
