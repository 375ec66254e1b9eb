"""A reading job on a mount whose daemon dies again and again, and what the job noticed of it.

`serve` mounts; `Storm` runs the job of `reading_job.py` and kills the daemon when the readers have made some progress.
How far they get before the next death is drawn from a seed. All that is waited for is the progress of others.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Self

from machine import PATIENCE_S, Machine, has_ended
from reading_job import Board, Job, Told

MOST_FAILURES = 200
"""A storm ends when the readers have seen so many: they would see nothing else from then on."""

LONGEST_RUN = 1000
"""The most opens between two deaths; half of an epoch, if that is less. Their logarithms are uniform, so short runs are
as likely as long ones."""

ANSWERED_BEFORE_S = 0.03
"""An open that ends so soon after a death was answered before it: no daemon starts as fast. Its reader had to wait for
a processor."""

START_TICKS = round(0.5 * os.sysconf("SC_CLK_TCK"))
"""About the processor time that a daemon takes to start, in the kernel's ticks."""

RESTART = "restart"
BLAMELESS_RUN = 64
"""After so many opens, all requests that waited for a daemon have been answered."""

STARTING_EVERY = 5
"""One in so many deaths is that of a daemon that starts."""

CHECK_S = 0.002

MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")
"""The hierarchy of version 1 that limits memory."""

HAS_MEMORY_GROUPS = os.geteuid() == 0 and MEMORY_GROUPS.is_dir()

OPTIONS: dict[str, Sequence[str]] = {
    "default": (),
    "direct_io": ("-o", "direct_io"),
    "page_cache": ("-o", "page_cache"),
}


@dataclass(frozen=True, slots=True)
class Case:
    """How files are served."""

    policy: str = "pool"
    store: str = "directory"
    mode: str = "default"
    groups: bool = False
    memory: str = "25%"
    """For which share of the samples, as in the report of `redoxfs inspect`."""
    threads: int = 0
    """Helpers that answer the kernel's requests."""

    def __str__(self) -> str:
        others = {"groups": self.groups, f"memory {self.memory}": self.memory != "25%", "threads": self.threads > 0}
        return ", ".join([self.policy, self.store, self.mode, *(name for name, is_so in others.items() if is_so)])


def mounting(machine: Machine, source: Path, case: Case, *, chunk_size: int = 4) -> list[str | Path]:
    """The arguments that mount ``source``, or a packed copy of it, with the memory of ``case``."""
    of_dataset = ["--classes", "dir", *(["--groups", "stem"] if case.groups else [])]
    of_mount = ["--policy", case.policy]
    if case.store == "packed":
        packed = machine.folder / "packed"
        machine.ok("pack", source, packed, *of_dataset, "--chunk-size", str(chunk_size))
        source = packed
    else:
        of_mount += [*of_dataset, "--chunk-size", str(chunk_size)]
    memory = machine.inspect(source, *of_mount)["memory_for"][case.memory]
    of_mount += ["--memory", str(memory), "--fuse-threads", str(case.threads), *OPTIONS[case.mode]]
    return ["mount", source, machine.mnt, *of_mount]


def serve(machine: Machine, source: Path, case: Case, *, has_keeper: bool = True) -> None:
    """Mount ``source``, with a keeper that never gives up or without one."""
    machine.environment["REDOXFS_KEEPER_DEATHS"] = "0"
    machine.ok(*mounting(machine, source, case), "--keeper" if has_keeper else "--no-keeper")


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def children_of(pid: int) -> list[int]:
    """The processes that it started, and that have not ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == pid and state not in "ZX":
            found.append(int(folder.name))
    return found


def ticks_of(pid: int) -> int:
    """Processor time of a process, in ticks of the kernel; -1 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return -1
    return int(fields[11]) + int(fields[12])


@dataclass(frozen=True, slots=True)
class Death:
    """One end of a daemon. ``at_ns`` is of CLOCK_MONOTONIC."""

    at_ns: int
    how: str


@dataclass(frozen=True, slots=True)
class Pause:
    """The time from a death until an open was answered again. ``deaths`` of daemons in a row belong to it."""

    seconds: float
    deaths: int


@dataclass(slots=True)
class Found:
    """What the job and the killer saw."""

    deaths: list[Death] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    complete_epochs: int = 0
    not_once: int = 0
    """Samples that came again in an epoch, or did not come."""
    problems: list[str] = field(default_factory=list)
    """Lines on what is wrong; of each reader the first ones."""
    seconds: float = 0.0

    @property
    def opens(self) -> int:
        return sum(len(told.opens) for told in self.told)

    @property
    def errors(self) -> int:
        return sum(told.errors for told in self.told)

    @property
    def wrong(self) -> int:
        return sum(told.wrong for told in self.told)

    @property
    def longest_s(self) -> float:
        """The longest operation of a reader."""
        return max((told.longest_ns for told in self.told), default=0) / 1e9

    def pauses(self) -> list[Pause]:
        """Pauses that ended. None for `redoxfs restart`: the daemon serves while the command starts."""
        ends = sorted(end for told in self.told for _, end in told.opens)
        found: dict[int, list[Death]] = {}
        for death in self.deaths:
            if death.how == RESTART:
                continue
            place = bisect_right(ends, death.at_ns + ANSWERED_BEFORE_S * 1e9)
            if place < len(ends):
                found.setdefault(ends[place], []).append(death)
        return [Pause((end - deaths[0].at_ns) / 1e9, len(deaths)) for end, deaths in found.items()]


class StalledError(AssertionError):
    """Something that must happen did not happen in time."""


class Storm:
    """A job on a mount of ``machine``, and the deaths of its daemon.

    As a context manager it ends the job, also when the mount does not answer. Without ``has_keeper`` nobody starts
    another daemon.
    """

    def __init__(self, machine: Machine, job: Job, *, has_keeper: bool = True) -> None:
        self._machine = machine
        self._job = job
        self._own = random.Random(job.seed)
        self._folder = machine.folder / "job"
        self._folder.mkdir()
        (self._folder / "job.json").write_text(json.dumps(asdict(job)))
        self._board = Board(self._folder / "board", job.readers)
        self._found = Found()
        self.daemon = machine.pid()
        self.keeper = parent_of(self.daemon) if has_keeper else None
        self._began_s = time.monotonic()
        command = [sys.executable, str(Path(__file__).with_name("reading_job.py")), str(self._folder)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            # A reader that waits for a reply of the mount ends only with the mount.
            self._end_mount()
        self._process.communicate()

    @property
    def is_broken(self) -> bool:
        return self._board.failures >= MOST_FAILURES or self._process.poll() is not None

    def run(self, opens: int) -> None:
        """Wait until the readers have made so many opens more, or cannot."""
        goal = self._board.opens + opens
        self._wait(lambda: self._board.opens >= goal or self.is_broken, f"{opens} opens")

    def run_by_chance(self) -> None:
        self.run(int(min(LONGEST_RUN, self._job.files // 2) ** self._own.random()))

    def start_by_chance(self) -> None:
        """Wait until the daemon has used a random part of the processor time that a start takes."""
        ticks, answered = self._own.randrange(START_TICKS), self._board.opens
        self._wait(
            lambda: ticks_of(self.daemon) not in range(ticks) or self._board.opens > answered,
            f"{ticks} ticks of a daemon that starts",
        )

    def kill(self, times: int) -> None:
        """SIGKILL at random moments, one in `STARTING_EVERY` of them while the daemon starts."""
        for number in range(times):
            if number and not self._own.randrange(STARTING_EVERY):
                self.start_by_chance()
            else:
                self.run_by_chance()
            if self.is_broken:
                break
            self.die()

    def crash(self, times: int) -> None:
        """The signals of a program with a bug in C.

        A request that waits through two of them fails, as it may be the cause. So none has to.
        """
        for number in range(times):
            self.run(BLAMELESS_RUN)
            self.run_by_chance()
            if self.is_broken:
                break
            self.die((signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT)[number % 3])

    def exhaust_memory(self, times: int) -> None:
        """The kernel kills the daemon when it needs more memory than it has, and no other process."""
        for number in range(times):
            self.run_by_chance()
            if self.is_broken:
                break
            with memory_group(f"redoxfs-{os.getpid()}-{number}") as group:
                self.end_daemon("out of memory", partial(limit_memory, group, self.daemon))
                assert oom_kills(group) > 0

    def restart(self, times: int) -> None:
        """`redoxfs restart`, which returns when the successor serves."""
        for _ in range(times):
            self.run_by_chance()
            if self.is_broken:
                break
            self.end_daemon(RESTART, lambda: self._machine.ok("restart", self._machine.mnt))

    def die(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Kill the daemon, and wait until its successor exists."""
        self.end_daemon(how.name, lambda: os.kill(self.daemon, how))

    def end_daemon(self, how: str, end: Callable[[], object]) -> None:
        """Let ``end`` end the daemon, and wait until its successor exists, or the readers cannot go on."""
        before = os.pidfd_open(self.daemon)
        self._found.deaths.append(Death(time.monotonic_ns(), how))
        end()
        assert has_ended(before), f"{how} did not end the daemon"
        self._wait(lambda: bool(self._successors()) or self.is_broken, "another daemon")
        self.daemon = max(self._successors(), default=self.daemon)

    def finish(self) -> Found:
        """Let the readers end their epoch, and return what they found."""
        self._board.stop()
        before = -1
        while self._process.poll() is None:
            if before == (before := self._board.opens + self._board.failures):
                raise StalledError(f"the readers do not go on after {self._board.opens} opens")
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(PATIENCE_S)
        assert self._process.stdout is not None
        found = self._found
        found.seconds = time.monotonic() - self._began_s
        found.problems += self._process.stdout.read().splitlines()
        for number in range(self._job.readers):
            path = self._folder / f"reader-{number}.json"
            if path.exists():
                found.told.append(Told(**json.loads(path.read_text())))
                found.problems += found.told[-1].messages
        self._count_epochs()
        return found

    def _count_epochs(self) -> None:
        """Compare the samples of each epoch with those of the dataset."""
        found = self._found
        for epoch in range(max((len(told.epochs) for told in found.told), default=0)):
            served = Counter(name for told in found.told for name in chain(*told.epochs[epoch : epoch + 1]))
            twice = sum(served.values()) - len(served)
            missing = self._job.files - len(served) if self._job.whole else 0
            found.complete_epochs += len(served) == self._job.files
            found.not_once += twice + missing
            if twice or missing:
                found.problems.append(f"epoch {epoch}: {twice} samples came again, {missing} did not come")

    def _successors(self) -> list[int]:
        return [] if self.keeper is None else [pid for pid in children_of(self.keeper) if pid != self.daemon]

    def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        deadline_s, opens = 0.0, -1
        while not is_so():
            if opens < (opens := self._board.opens):
                deadline_s = time.monotonic() + PATIENCE_S
            if time.monotonic() > deadline_s:
                raise StalledError(f"no {what}, and {PATIENCE_S} s without an open after {opens}")
            time.sleep(CHECK_S)

    def _end_mount(self) -> None:
        """Kill the keeper before its daemon, which it would start again, and remove the mount."""
        if self.keeper is not None:
            with suppress(ProcessLookupError):
                os.kill(self.keeper, signal.SIGSTOP)
                daemons = children_of(self.keeper)
                for pid in (self.keeper, *daemons):
                    os.kill(pid, signal.SIGKILL)
        self._machine.clear()


@contextmanager
def memory_group(name: str) -> Iterator[Path]:
    """An empty control group that limits memory, of version 1. What is still in it at the end is moved out."""
    folder = MEMORY_GROUPS / name
    folder.mkdir()
    try:
        yield folder
    finally:
        for pid in (folder / "cgroup.procs").read_text().split():
            (MEMORY_GROUPS / "cgroup.procs").write_text(pid)
        folder.rmdir()


def limit_memory(group: Path, pid: int) -> None:
    """Leave a process no memory beyond what it has."""
    (group / "memory.limit_in_bytes").write_text("0")
    (group / "cgroup.procs").write_text(str(pid))


def oom_kills(folder: Path) -> int:
    counted = dict(line.split() for line in (folder / "memory.oom_control").read_text().splitlines())
    return int(counted["oom_kill"])
