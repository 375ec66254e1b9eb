"""The processor time of each test, with that of all processes that it starts, and the rule of what it may cost.

A process that runs tests has a cgroup of its own, so daemons count too. Where it may not make one, only children that
ended count, and no test is judged. What a fixture of a module costs counts for the first test that needs it.

The same test costs more on a slower machine, and while others use its caches, the other half of a core, or the machine
below a virtual one. So what is above the limit is compared with what a fixed piece of work costs at that moment.
"""

import atexit
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

MOST_S = 5.0
"""Of a test that COSTLY does not list. It is some ten times what a test with a mount needs."""

MOST_OF_OTHERS = 0.2
"""No test is judged while others take a larger part of the machine: what shares a core with it makes it cost more."""

LOOK_EVERY_S = 1.0
"""A look at what others do takes as long as a quick test. So those that begin within this time share one."""

WORK_S = 0.13
"""What `work` costs on a quiet machine: the least of some hundred, with CPython 3.11 on an AMD EPYC. The limit
grows with it, and is never less than `MOST_S`: a test has no less room on a quicker machine."""

COSTLY = Path(__file__).with_name("costly.txt")

MOUNTED_AT = Path("/sys/fs/cgroup")


class CostError(AssertionError):
    """A test cost too much."""


@cache
def costly() -> dict[str, str]:
    """Tests that may take longer, with the reason: "FILE::TEST  REASON", without parameters."""
    lines = COSTLY.read_text().splitlines()
    return {name: reason for name, _, reason in (line.partition("  ") for line in lines if line[:1] not in ("", "#"))}


def work() -> None:
    """What tests do: the interpreter in a few megabytes of objects, and some calls of the kernel."""
    with tempfile.TemporaryFile() as file:
        file.write(bytes(4096))
        file.flush()
        for _ in range(5):
            seen = {}
            for number in range(40_000):
                seen[str(number)] = number % 7
                if number % 4 == 0:
                    os.pread(file.fileno(), 4096, 0)
                    os.fstat(file.fileno())
            sum(len(name) * value for name, value in seen.items())


def slowness() -> float:
    """How many times as much as on a quiet machine a thing costs now, and 1 at least."""
    began_s = time.thread_time()
    work()
    return max(1.0, (time.thread_time() - began_s) / WORK_S)


def judge(cost_s: float, of_others: Callable[[], float], slow: Callable[[], float] = slowness) -> None:
    """Raises CostError if a test cost too much. The part ``of_others`` of the machine did not work for tests."""
    if cost_s <= MOST_S or of_others() >= MOST_OF_OTHERS:
        return
    most_s = MOST_S * slow()
    if cost_s > most_s:
        raise CostError(
            f"it took {cost_s:.1f} s of processor time, more than {most_s:.1f}, which is {MOST_S:g} on a quiet "
            f"machine: make it cheaper, or give the reason in {COSTLY.name}"
        )


class Meter:
    """What this process, and all that it starts, spends from now on. It moves this process into a cgroup."""

    def __init__(self) -> None:
        self._usage: Path | None = None
        self._looked_s = self._others_s = float("-inf")
        for parent, file in _hierarchies():
            own = parent / f"redoxfs-tests-{os.getpid()}"
            try:
                # Runs that were killed leave theirs, and an empty one can be removed.
                for left in parent.glob("redoxfs-tests-*"):
                    with suppress(OSError):
                        left.rmdir()
                own.mkdir()
                (own / "cgroup.procs").write_text(str(os.getpid()))
            except OSError:
                continue
            atexit.register(_leave, own, os.getpid())
            self._usage = own / file
            break

    def bill(self) -> tuple[Callable[[], float], Callable[[], float]]:
        """Two functions: one tells what was spent since now, in seconds of processor time; one the part of others."""
        paid_s, now_s = self.cost_s(), time.monotonic()
        if now_s >= self._looked_s + LOOK_EVERY_S:
            self._looked_s, self._others_s = now_s, self._of_others_s()
        looked_s, others_s = self._looked_s, self._others_s

        def spent_s() -> float:
            return self.cost_s() - paid_s

        def of_others() -> float:
            if self._usage is None:
                return 1.0
            elapsed_s = time.monotonic() - looked_s
            return (self._of_others_s() - others_s) / (elapsed_s * (os.cpu_count() or 1))

        return spent_s, of_others

    def cost_s(self) -> float:
        """What was spent since some moment before."""
        if self._usage is not None:
            return _usage_s(self._usage)
        spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(each.ru_utime + each.ru_stime for each in spent)

    def _of_others_s(self) -> float:
        """What the machine's processors have done that no test asked for."""
        if self._usage is None:
            return 0.0
        busy_s = busy_of(Path("/proc/stat").read_text())
        of_tests_s = 0.0
        for usage in self._usage.parent.parent.glob(f"redoxfs-tests-*/{self._usage.name}"):
            with suppress(OSError):
                of_tests_s += _usage_s(usage)
        return busy_s - of_tests_s


def busy_of(stat: str) -> float:
    """How long the processors of a /proc/stat were not to be had, in seconds."""
    # proc_stat(5): user, nice, system, idle, iowait, irq, softirq, and steal, which other virtual machines took.
    fields = list(map(int, stat.split(maxsplit=9)[1:9]))
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def _hierarchies() -> Iterator[tuple[Path, str]]:
    """This process's cgroups that count processor time, each with the name of its file that tells it: of v1, of v2."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpuacct" in controllers.split(","):
            yield MOUNTED_AT / controllers / path.lstrip("/"), "cpuacct.usage"
        elif not controllers:
            yield MOUNTED_AT / path.lstrip("/"), "cpu.stat"


def _usage_s(usage: Path) -> float:
    words = usage.read_text().split()
    return int(words[0]) / 1e9 if usage.name == "cpuacct.usage" else int(words[1]) / 1e6


def _leave(own: Path, process: int) -> None:
    # Forks run the exit handlers too.
    if os.getpid() == process:
        with suppress(OSError):
            (own.parent / "cgroup.procs").write_text(str(process))
            own.rmdir()
