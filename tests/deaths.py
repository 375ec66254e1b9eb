"""A reading job on mounts whose daemons die again and again, and what the job noticed of it.

`serve` mounts, on one node or several; `Storm` runs the job of `reading_job.py` and kills daemons when the readers have
made some progress. How far they get before the next death is drawn from a seed. All that is waited for is the progress
of others.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Self

import netspaces
from machine import Machine, has_ended
from patience import PATIENCE_S
from ports import reserve_addresses
from reading_job import Board, Job, Told

MOST_FAILURES = 200
"""A storm ends when the readers have seen so many: they would see nothing else from then on."""

LONGEST_RUN = 1000
"""The most opens between two deaths; half of an epoch, if that is less. Their logarithms are uniform, so short runs are
as likely as long ones."""

TICKS_PER_S = os.sysconf("SC_CLK_TCK")

START_TICKS = round(0.5 * TICKS_PER_S)
"""About the processor time that a daemon takes to start, in the kernel's ticks."""

RESTART = "restart"
BLAMELESS_RUN = 64
"""After so many opens, all requests that waited for a daemon have been answered."""

STARTING_EVERY = 5
"""One in so many deaths is that of a daemon that starts."""

TOGETHER_EVERY = 4
"""Of several nodes: one in so many times, two die at once."""

CHECK_S = 0.002
"""Between two looks at the board, which disturb nobody: runs of a few opens are to end in a death, too."""

ASK_S = 0.02
"""Between two looks at the statistics of a daemon, which has other things to do."""

IDLE_S = 2.0
"""After which readers are taken to wait for each other. Where they are only slow, that costs another epoch."""

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
    sharing: Sequence[str] = ()
    """Options of several nodes."""

    @property
    def is_local(self) -> bool:
        """Whether each node has only its part of a packed dataset."""
        return "local" in self.sharing

    def __str__(self) -> str:
        others = {"groups": self.groups, f"memory {self.memory}": self.memory != "25%", "threads": self.threads > 0}
        told = [*(name for name, is_so in others.items() if is_so), *([" ".join(self.sharing)] if self.sharing else [])]
        return ", ".join([self.policy, self.store, self.mode, *told])


def mounting(
    machine: Machine, source: Path, case: Case, *, chunk_size: int = 4, packs: Path | None = None
) -> list[str | Path]:
    """The arguments that mount ``source``, or a packed copy of it, with the memory of ``case``.

    Copies in the folder ``packs`` are used again.
    """
    of_dataset = ["--classes", "dir", *(["--groups", "stem"] if case.groups else [])]
    of_mount = ["--policy", case.policy]
    if case.store == "packed":
        shards = ("--shard-size", "64KiB") if case.is_local else ()
        words = [*of_dataset, "--chunk-size", str(chunk_size), *shards]
        packed = (packs or machine.folder) / "-".join(["packed", *(word.strip("-") for word in words)])
        if not packed.exists():
            machine.ok("pack", source, packed, *words)
        source = packed
    else:
        of_mount += [*of_dataset, "--chunk-size", str(chunk_size)]
    memory = machine.inspect(source, *of_mount)["memory_for"][case.memory]
    of_mount += ["--memory", str(memory), "--fuse-threads", str(case.threads), *OPTIONS[case.mode], *case.sharing]
    return ["mount", source, machine.mnt, *of_mount]


def serve(
    machine: Machine,
    source: Path,
    case: Case,
    *,
    has_keeper: bool = True,
    nodes: int = 1,
    network: netspaces.Network | None = None,
    packs: Path | None = None,
) -> None:
    """Mount ``source``, with a keeper that never gives up or without one. ``packs`` as `mounting` has it.

    Several nodes are processes of this network namespace, or of those of ``network``.
    """
    machine.environment["REDOXFS_KEEPER_DEATHS"] = "0"
    verb, shown, at, *options = map(str, mounting(machine, source, case, packs=packs))
    options.append("--keeper" if has_keeper else "--no-keeper")
    sources = parts_of(Path(shown), nodes) if case.is_local else Path(shown)
    if network is not None:
        network.mount(machine, sources, options)
    elif nodes > 1:
        machine.mount_nodes(sources, reserve_addresses(nodes), *options)
    else:
        machine.ok(verb, shown, at, *options)


def parts_of(packed: Path, nodes: int) -> list[Path]:
    """A packed dataset for each node with local storage: only its own shards of samples are there."""
    parts = []
    for node in range(nodes):
        part = packed.with_name(f"{packed.name}-{node}")
        parts.append(part)
        if part.exists():
            continue
        shutil.copytree(packed, part, ignore=shutil.ignore_patterns("samples-*.tar"))
        for shard in sorted(packed.glob("samples-*.tar"))[node::nodes]:
            shutil.copy2(shard, part)
    return parts


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


def born_ns(pid: int) -> int:
    """When a process began, by CLOCK_MONOTONIC; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    asleep_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    return int(fields[19]) * 1_000_000_000 // TICKS_PER_S - asleep_ns


@dataclass(slots=True)
class Death:
    """One end of a node's daemon. Times are of CLOCK_MONOTONIC.

    ``succeeded_ns`` is when its successor began, if one did. An open that ends between the two was answered before the
    death: its reader had to wait for a processor.
    """

    at_ns: int
    how: str
    node: int = 0
    succeeded_ns: int = 0


@dataclass(frozen=True, slots=True)
class Pause:
    """The time from a death until an open at the node was answered again. ``deaths`` in a row belong to it."""

    seconds: float
    deaths: int
    node: int = 0


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
        """Pauses that ended. None for `redoxfs restart`: the daemon serves while the command starts.

        A reader's waits for other readers do not count.
        """
        ends: dict[int, list[tuple[int, Told]]] = defaultdict(list)
        for told in self.told:
            ends[told.node] += [(end, told) for _, end in told.opens]
        found: dict[tuple[int, int], list[Death]] = {}
        reader: dict[tuple[int, int], Told] = {}
        for node in ends:
            ends[node].sort(key=itemgetter(0))
        for death in self.deaths:
            if death.how == RESTART:
                continue
            of_node = ends[death.node]
            place = bisect_right(of_node, max(death.at_ns, death.succeeded_ns), key=itemgetter(0))
            if place < len(of_node):
                end, told = of_node[place]
                found.setdefault((death.node, end), []).append(death)
                reader[death.node, end] = told
        return [
            Pause(
                (end - deaths[0].at_ns - _waited_ns(reader[node, end], deaths[0].at_ns, end)) / 1e9, len(deaths), node
            )
            for (node, end), deaths in found.items()
        ]


def _waited_ns(told: Told, begin: int, end: int) -> int:
    """How long a reader waited for others between two moments."""
    return sum(max(0, min(end, until) - max(begin, since)) for since, until in told.waits)


class StalledError(AssertionError):
    """Something that must happen did not happen in time."""


@dataclass(slots=True)
class Node:
    """A mount, the pids of its daemon and of its keeper; None: nobody starts another daemon."""

    mountpoint: Path
    daemon: int
    keeper: int | None

    def successors(self) -> list[int]:
        return [] if self.keeper is None else [pid for pid in children_of(self.keeper) if pid != self.daemon]


class Storm:
    """A job on the mounts of ``machine``, and the deaths of their daemons.

    As a context manager it ends the job, also when a mount does not answer. Without ``has_keeper`` nobody starts
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
        self.nodes = []
        for number in range(job.nodes):
            mountpoint = Path(job.mount_of(number))
            daemon = machine.pid(mountpoint)
            self.nodes.append(Node(mountpoint, daemon, parent_of(daemon) if has_keeper else None))
        self._last = 0
        self._began_s = time.monotonic()
        command = [sys.executable, str(Path(__file__).with_name("reading_job.py")), str(self._folder)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            # A reader that waits for a reply of a mount ends only with the mount.
            self._end_mounts()
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
        """Wait until the last daemon has used a random part of the processor time that a start takes."""
        ticks, answered = self._own.randrange(START_TICKS), self._board.opens
        daemon = self.nodes[self._last].daemon
        most = answered if len(self.nodes) == 1 else answered + LONGEST_RUN
        self._wait(
            lambda: ticks_of(daemon) not in range(ticks) or self._board.opens > most or self.is_broken,
            f"{ticks} ticks of a daemon that starts",
        )

    def begin_epoch(self) -> None:
        """Wait until the readers have begun another epoch, or cannot."""
        ended = self._board.epochs
        self._wait(lambda: self._board.epochs > ended or self.is_broken, "end of an epoch")

    def comes(self, is_so: Callable[[], bool]) -> bool:
        """Wait for something that the readers bring about and a daemon tells, or until they cannot. False: no reader
        opens a file any more, it seems. Then it may come in another epoch."""
        moved_s, opens = time.monotonic(), -1
        while not (self.is_broken or is_so()):
            if opens < (opens := self._board.opens):
                moved_s = time.monotonic()
            if time.monotonic() > moved_s + IDLE_S:
                return False
            time.sleep(ASK_S)
        return True

    def kill(self, times: int) -> None:
        """SIGKILL at random moments, one in `STARTING_EVERY` of them while a daemon starts."""
        while len(self._found.deaths) < times:
            if self._found.deaths and not self._own.randrange(STARTING_EVERY):
                self.start_by_chance()
                nodes = [self._last]
            else:
                self.run_by_chance()
                nodes = self._nodes_by_chance(times - len(self._found.deaths))
            if self.is_broken:
                break
            self.die(*nodes)

    def _nodes_by_chance(self, most: int) -> list[int]:
        if len(self.nodes) == 1:
            return [0]
        count = 2 if most > 1 and not self._own.randrange(TOGETHER_EVERY) else 1
        return self._own.sample(range(len(self.nodes)), count)

    def crash(self, times: int) -> None:
        """The signals of a program with a bug in C.

        A request that waits through two of them fails, as it may be the cause. So none has to.
        """
        for number in range(times):
            self.run(BLAMELESS_RUN)
            self.run_by_chance()
            if self.is_broken:
                break
            self.die(*self._nodes_by_chance(1), how=(signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT)[number % 3])

    def exhaust_memory(self, times: int) -> None:
        """The kernel kills the daemon when it needs more memory than it has, and no other process."""
        for number in range(times):
            self.run_by_chance()
            if self.is_broken:
                break
            with memory_group(f"redoxfs-{os.getpid()}-{number}") as group:
                (node,) = self._nodes_by_chance(1)
                self.end_daemons("out of memory", partial(limit_memory, group, self.nodes[node].daemon), node)
                assert oom_kills(group) > 0

    def restart(self, times: int) -> None:
        """`redoxfs restart`, which returns when the successor serves."""
        for _ in range(times):
            self.run_by_chance()
            if self.is_broken:
                break
            (node,) = self._nodes_by_chance(1)
            self.end_daemons(RESTART, partial(self._machine.ok, "restart", self.nodes[node].mountpoint), node)

    def die(self, *nodes: int, how: signal.Signals = signal.SIGKILL) -> None:
        """Kill the daemons of ``nodes`` at once, and wait until their successors exist."""

        def end() -> None:
            for node in nodes:
                os.kill(self.nodes[node].daemon, how)

        self.end_daemons(how.name, end, *nodes)

    def end_daemons(self, how: str, end: Callable[[], object], *nodes: int) -> None:
        """Let ``end`` end the daemons of ``nodes``; wait for their successors, or until the readers cannot go on."""
        before = [os.pidfd_open(self.nodes[node].daemon) for node in nodes]
        deaths = [Death(time.monotonic_ns(), how, node) for node in nodes]
        self._found.deaths += deaths
        end()
        assert all(has_ended(each) for each in before), f"{how} did not end a daemon"
        for death in deaths:
            node = self.nodes[death.node]
            self._wait(lambda node=node: bool(node.successors()) or self.is_broken, "another daemon")  # type: ignore[misc]
            successors = node.successors()
            if successors:
                node.daemon = max(successors)
                death.succeeded_ns = born_ns(node.daemon)
        self._last = nodes[-1]

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
        found.problems += self._told_by_nodes()
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

    def _told_by_nodes(self) -> Iterator[str]:
        """What nodes have counted that costs a sample its turn, and how they see each other."""
        if len(self.nodes) == 1:
            return
        for number, node in enumerate(self.nodes):
            deadline_s = time.monotonic() + PATIENCE_S
            try:
                while True:
                    stats = self._machine.stats(node.mountpoint)
                    peers = [peer["state"] for peer in stats["peers"]]
                    # A daemon that has just taken over greets the others first.
                    if "joining" not in peers or time.monotonic() > deadline_s:
                        break
                    time.sleep(ASK_S)
            except OSError as error:
                yield f"node {number}: {error}"
                continue
            wrong = {name: stats[name] for name in ("missed", "degraded") if stats[name]}
            if wrong or peers != ["ready"] * (len(self.nodes) - 1) or stats["view"] != 1:
                yield f"node {number}: {wrong}, view {stats['view']}, peers {peers}"

    def _wait(self, is_so: Callable[[], bool], what: str, pause_s: float = CHECK_S) -> None:
        deadline_s, opens = 0.0, -1
        while not is_so():
            if opens < (opens := self._board.opens):
                deadline_s = time.monotonic() + PATIENCE_S
            if time.monotonic() > deadline_s:
                raise StalledError(f"no {what}, and {PATIENCE_S:g} s without an open after {opens}")
            time.sleep(pause_s)

    def _end_mounts(self) -> None:
        """Kill each keeper before its daemon, which it would start again, and remove the mounts."""
        for keeper in [node.keeper for node in self.nodes if node.keeper is not None]:
            with suppress(ProcessLookupError):
                os.kill(keeper, signal.SIGSTOP)
                daemons = children_of(keeper)
                for pid in (keeper, *daemons):
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
