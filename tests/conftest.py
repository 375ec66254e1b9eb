"""Settings that every tier shares, the markers that follow from a tier, and what each test costs."""

import gc
import inspect
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Generator, Iterator
from functools import partial
from heapq import nlargest
from operator import itemgetter
from pathlib import Path

import dealing
import forks
import ports
import pytest
import seclusion
import spent
import trio
from hypothesis import HealthCheck, settings
from machine import Machine
from patience import PATIENCE_S
from trio.testing import MockClock

# Before the import, so that a failed assertion of StoreTests shows its values.
pytest.register_assert_rewrite("redoxfs.testing")

# For a night, or after a change of the protocol: REDOXFS_TEST_PROFILE=thorough scripts/test
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=10_000)
settings.register_profile("quick", parent=settings.get_profile("default"), max_examples=20)
settings.load_profile(os.environ.get("REDOXFS_TEST_PROFILE", "default"))

# A shell that starts the tests with & has SIGINT ignored, and the programs that they interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What the tests of a tier need. A file whose tests need something else sets `pytestmark`, and gets none of these.
NEEDS = {
    **dict.fromkeys(dealing.QUICK, ("fast",)),
    "t4": ("mount",),
    "t5": ("mount", "nodes"),
    "t6": ("mount", "programs"),
    "t7": ("mount", "engines"),
}


NOT_FAST = {"slow", "timed", "long"}

OF_A_LANE = {"timed", "long"}
"""Marks of a few tests, which have a lane of their own: "-m 'timed and not long'", "-m long"."""

PROCESSOR_S = "processor_s"
"""The property of a test's last report, and of the JUnit file, that has what it cost, in seconds."""

MOST_LISTED = 10
MOST_OF_A_LINE = 200

MOST_S = 3 * PATIENCE_S
"""No test takes longer, fixtures included. Otherwise a run waits for what never comes, and does not say so."""

BILL = pytest.StashKey[tuple[Callable[[], float], Callable[[], float]]]()
COST_S = pytest.StashKey[float]()
SETUP_S = pytest.StashKey[float]()
UNPAID_S = pytest.StashKey[float]()

meter: spent.Meter
costs_s: dict[str, float] = {}


def pytest_configure(config: pytest.Config) -> None:
    global meter
    if config.getoption("numprocesses", None):
        return  # This process only hands tests out.
    # What is imported and collected stays. To look for garbage in it meanwhile takes each worker half a second.
    gc.disable()
    meter = spent.Meter()
    seclusion.seclude(forgotten_files(config))
    forks.take_over()


def forgotten_files(config: pytest.Config) -> Path | None:
    """The folder of this process's files, if nobody will look at them: a run with --basetemp, or in a single process,
    keeps them, and the benchmarks of the long tests limit what a disk reads."""
    asked = getattr(config, "workerinput", {"mainargv": ["--basetemp"]})["mainargv"]
    if any(word.startswith("--basetemp") for word in asked) or config.option.markexpr == "long":
        return None
    return Path(config.option.basetemp).parent


def pytest_sessionstart(session: pytest.Session) -> None:
    plugins = session.config.pluginmanager
    terminal = plugins.get_plugin("terminalreporter")
    if terminal is not None:
        plugins.register(Failures(terminal))


def pytest_report_header() -> str | None:
    return seclusion.why_not()


def pytest_collection_finish() -> None:
    """Tests that look for what is left collect garbage, and need not look through all modules and tests each time."""
    gc.freeze()
    # A look after every 700 objects, of which Hypothesis is told, takes a twentieth of the time of these tests.
    gc.set_threshold(20_000)
    gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[BILL] = meter.bill()
    before_s = meter.cost_s()
    try:
        return (yield)
    finally:
        # A second try finds a module's fixtures made. It pays for them all the same.
        setup_s = meter.cost_s() - before_s
        item.stash[SETUP_S] = max(setup_s, item.stash.get(SETUP_S, 0.0))
        item.stash[UNPAID_S] = item.stash[SETUP_S] - setup_s


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """A test that is a coroutine gets an event loop of its own, with the fixture `clock` if it asks for that."""
    test = pyfuncitem.obj
    if inspect.iscoroutinefunction(test):
        pyfuncitem.obj = lambda **fixtures: trio.run(partial(test, **fixtures), clock=fixtures.get("clock"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """A test that costs too much has failed."""
    try:
        result = yield
    finally:
        spent_s, of_others = item.stash[BILL]
        item.stash[COST_S] = spent_s() + item.stash[UNPAID_S]
    name = f"{item.path.name}::{getattr(item, 'originalname', item.name)}"
    is_free = name in spent.costly() or any(map(item.get_closest_marker, ("long", "engines")))
    if not is_free:
        spent.judge(item.stash[COST_S], of_others)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "teardown":
        report.user_properties.append((PROCESSOR_S, f"{item.stash[COST_S]:.3f}"))
    return report


class Failures:
    """Names a failed test, and what failed, when it fails: a run that is ended from outside has no summary."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome not in ("passed", "skipped"):
            self._terminal.write_line(
                f"\n{report.when} {report.outcome} after {report.duration:.0f} s: {report.nodeid}"
            )
            if (crash := getattr(report.longrepr, "reprcrash", None)) is not None:
                why, _, _ = crash.message.partition("\n")
                self._terminal.write_line(f"    {why[:MOST_OF_A_LINE]}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, value in report.user_properties:
        if name == PROCESSOR_S:
            costs_s[report.nodeid] = float(str(value))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("processor time")
    for nodeid, cost_s in nlargest(MOST_LISTED, costs_s.items(), key=itemgetter(1)):
        terminalreporter.write_line(f"{cost_s:6.1f} s  {nodeid}")
    failed = {report.nodeid for report in terminalreporter.getreports("failed")}
    reruns = terminalreporter.getreports("rerun")
    for is_flaky, title in (
        (True, "flaky: failed, and then passed; each is a bug"),
        (False, "before they failed again"),
    ):
        if found := [report for report in reruns if (report.nodeid not in failed) == is_flaky]:
            terminalreporter.section(title, sep="!", red=True, bold=True)
            for report in sorted(found, key=lambda report: report.nodeid):
                terminalreporter.write_line(report.nodeid)
                terminalreporter.write_line(report.longreprtext)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A lane of a few tests imports only their files. To import all takes a tenth of a minute of processor time."""
    mark = config.option.markexpr.partition(" ")[0]
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS or mark not in OF_A_LANE:
        return None
    return (collection_path.is_file() and f"mark.{mark}" not in collection_path.read_text()) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers > 1:
        items[:] = dealing.dealt(items, lambda item: item.path.name, workers)
    needs = {name for names in NEEDS.values() for name in names}
    for item in items:
        if item.get_closest_marker("long") is None:
            item.add_marker(pytest.mark.timeout(MOST_S))
        own = {mark.name for mark in item.iter_markers()}
        if not own & needs:
            for name in NEEDS[item.path.name[:2]]:
                if name != "fast" or not own & NOT_FAST:
                    item.add_marker(name)


@pytest.fixture(autouse=True)
def own_ports() -> Iterator[None]:
    """Ports that a test reserves are released at its end."""
    yield
    ports.release()


@pytest.fixture
def short_path(tmp_path: Path) -> Path:
    """An empty folder for sockets: the path of one has 107 bytes at most, and ``tmp_path`` may take most of them."""
    return Path(tempfile.mkdtemp(prefix="s", dir=tmp_path.parent))


@pytest.fixture(scope="session")
def compiler() -> None:
    """Skips a test that compiles C where a tool for it is missing."""
    for name in ("gcc", "pkg-config"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed; scripts/setup installs it")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """The real command. After the test, even a failed one, none of its processes and mounts is left."""
    machine = Machine(tmp_path)
    try:
        yield machine
    finally:
        machine.clear()


@pytest.fixture
def clock() -> MockClock:
    """The clock of the test's event loop. It stands still until the test moves it, or gives it a rate."""
    return MockClock()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small dataset that `auto` redirects: two classes of twenty, and a file of no class."""
    root = tmp_path / "data"
    for label, wnid, first in (("cat", "n02121808", 0), ("dog", "n02084071", 20)):
        folder = root / "train" / wnid
        folder.mkdir(parents=True)
        for number in range(first, first + 20):
            (folder / f"{label}{number}.jpg").write_bytes(f"{label} {number}".encode() * 100)
    (root / "README").write_text("a dataset\n")
    return root
