"""The processor time of each test, with that of all processes that it starts.

A process that runs tests has a cgroup of its own, so daemons count too. Where it may not make one, only children that
ended count. What a fixture of a module costs counts for the first test that needs it.
"""

import atexit
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

MOST_S = 5.0
"""Of a test that COSTLY does not list, on a quiet machine. It is some ten times what a test with a mount needs."""

LOOP_S = 0.05
"""The processor time of `slowness`'s loop on the machine that MOST_S was chosen on. Others that share a core, or that
the host runs beside this machine, slow processors down, and what they do takes more processor time."""

COSTLY = Path(__file__).with_name("costly.txt")

MOUNTED_AT = Path("/sys/fs/cgroup")


def costly() -> dict[str, str]:
    """Tests that may take longer, with the reason: "FILE::TEST  REASON", without parameters."""
    lines = COSTLY.read_text().splitlines()
    return {name: reason for name, _, reason in (line.partition("  ") for line in lines if line[:1] not in ("", "#"))}


def hierarchies() -> Iterator[tuple[Path, str]]:
    """This process's cgroups that count processor time, each with the name of its file that tells it: of v1, of v2."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpuacct" in controllers.split(","):
            yield MOUNTED_AT / controllers / path.lstrip("/"), "cpuacct.usage"
        elif not controllers:
            yield MOUNTED_AT / path.lstrip("/"), "cpu.stat"


def meter() -> Callable[[], float]:
    """A function that tells the processor time spent so far, in seconds."""
    for parent, file in hierarchies():
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
        atexit.register(leave, own, os.getpid())
        if file == "cpu.stat":
            return lambda: int((own / file).read_text().split()[1]) / 1e6
        return lambda: int((own / file).read_text()) / 1e9
    return of_ended_processes_s


def slowness() -> float:
    """How many times slower a processor is now than a quiet one that MOST_S was chosen on; 1 if it is quicker."""
    began_s, found = time.thread_time(), 0
    for number in range(1_000_000):
        found += number & 7
    return max(1.0, (time.thread_time() - began_s) / LOOP_S)


def leave(own: Path, process: int) -> None:
    # Forks run the exit handlers too.
    if os.getpid() == process:
        with suppress(OSError):
            (own.parent / "cgroup.procs").write_text(str(process))
            own.rmdir()


def of_ended_processes_s() -> float:
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in spent)
