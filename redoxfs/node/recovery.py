"""From a checkpoint and a journal back to the tables of a node (`Node.recover`).

`NodeState` is what a checkpoint has. `Former` repeats the entries after it, on the binding and the exact files of the
new node, and collects what the former process had open and what it left unanswered. Bytes are not kept: they are read
again.
"""

import errno
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from redoxfs.chunks.store import NO_INODE, Stamp
from redoxfs.dataset import Catalog
from redoxfs.node.checkpoint import CheckpointError, decode, encode
from redoxfs.node.drawing import Blocks
from redoxfs.node.exact import ExactFile, ExactFiles
from redoxfs.node.journal import (
    ALONE,
    CHANGED,
    CLOSED,
    DRAWN,
    FAILED,
    FORGET,
    HANDLED,
    MASK,
    NEW,
    NUMBERS,
    OPEN,
    OPENED,
    PREEMPTED,
    RECEIVED,
    SHARES_PAGES,
    STAMP,
    STAT,
    WITHDRAWN,
    Entry,
    Journal,
    stamp_of,
)
from redoxfs.protocol import (
    Binding,
    BindingTables,
    Kept,
    Repetition,
    ReplayError,
    ServingPolicy,
    SharedReplay,
    SharedServingPolicy,
    SharedState,
    answer_of,
    message_of,
)
from redoxfs.protocol.tables import rows
from redoxfs.protocol.turns import Turns

Int64 = npt.NDArray[np.int64]

NO_TIME_NS = -1
"""The time of a stamp that no file has."""


Ranks: TypeAlias = dict[int | None, tuple[list[Any], dict[int, tuple[int, float]]]]
"""By class tree, or None for all: what the ranks of a job say of the present epoch, and those that said so, with their
processes and when, in s since boot."""


class RecoveryError(Exception):
    """A node cannot continue where another process was: one line."""


class OpenBefore(NamedTuple):
    """A handle of the former process, for `Kernel.reopened`.

    ``branch``  DATA or EXACT
    ``size``    in bytes, -1 if the file is not redirected
    ``stamp``   the state of the file that the handle serves
    """

    handle: int
    entry: int
    branch: int
    thread: int
    size: int
    shares_pages: bool
    stamp: Stamp


class Unanswered(NamedTuple):
    """An open that was decided and not answered."""

    path: int
    file: int
    thread: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """What the request loop needs to go on.

    ``handles``   open files
    ``answered``  by the number of a request, which may still be there: the handle that it was answered with
    ``failed``    likewise: the errno
    ``turned``    the samples whose opens took a turn since the checkpoint
    ``last_turn`` of a single node, since the checkpoint: the sample, and the thread that opened (0: a sampler)

    ``release_pins`` is called when no request of the former process waits any more.
    """

    handles: tuple[OpenBefore, ...]
    answered: Mapping[int, int]
    failed: Mapping[int, int]
    turned: Sequence[int]
    last_turn: tuple[int, int] | None
    release_pins: Callable[[], None]


class NodeState(NamedTuple):
    """The state of a node, int64[rows, columns].

    ``last_handle`` the highest number that a handle ever had
    ``identity``    of what the numbers in it refer to (`identity_of`)
    ``handles``     number, entry, branch, thread, shares pages (also: at the source), redirected; size, time, inode
    ``stamps``      path, file, size, time, inode, of the files of open answers that are not as at the scan
    ``unanswered``  request, path, file, thread
    ``changed``     entry, size
    ``known``       entry, size, time, inode, of exact files that are not as at the scan
    ``stale``       int64[n]: entries of exact files whose pages are void at the next open
    ``heard``       thread, when, in ns since boot
    ``undecided``   path, ticket; with other nodes
    ``promises``    ticket, path, thread; likewise
    ``policy``      the state of a policy of several nodes, which has the turns; None for that of one node
    ``place``       this node among those of its job (`node.cluster`); None without a job of several nodes
    ``blocks``      token, number, sample, of the last block of each sampler
    ``ranks``       that told of an epoch
    """

    identity: str
    last_handle: int
    turns: Turns
    tables: BindingTables
    handles: Int64
    stamps: Int64
    unanswered: Int64
    changed: Int64
    known: Int64
    stale: Int64
    heard: Int64
    undecided: Int64
    promises: Int64
    policy: SharedState | None
    place: Mapping[str, Any] | None
    blocks: Int64
    ranks: Ranks

    def encode(self) -> bytes:
        tables = self.tables._asdict()
        values: dict[str, Any] = {
            "identity": self.identity,
            "last_handle": self.last_handle,
            "given": self.turns.given,
            "reservations_made": tables.pop("reservations_made"),
            "policy": None if self.policy is None else self.policy.values,
            "place": self.place,
            "ranks": [(tree, epoch, [*came.items()]) for tree, (epoch, came) in self.ranks.items()],
        }
        arrays: dict[str, npt.NDArray[Any]] = {f"binding.{name}": array for name, array in tables.items()}
        arrays |= {name: getattr(self, name) for name in _COLUMNS}
        if self.policy is not None:
            arrays |= {f"{_OF_POLICY}{name}": array for name, array in self.policy.arrays.items()}
        return encode(values, {**arrays, "laps": self.turns.laps, "had": self.turns.had})

    @staticmethod
    def decode(data: bytes) -> "NodeState":
        """Raises CheckpointError."""
        numbers, arrays = decode(data)
        try:
            turns = Turns(arrays["laps"], arrays["had"], numbers["given"])
            of_binding: dict[str, Any] = {
                name: arrays[f"binding.{name}"] for name in BindingTables._fields if name != "reservations_made"
            }
            tables = BindingTables(**of_binding, reservations_made=numbers["reservations_made"])
            policy = None
            if numbers["policy"] is not None:
                of_policy = {
                    name.removeprefix(_OF_POLICY): array
                    for name, array in arrays.items()
                    if name.startswith(_OF_POLICY)
                }
                policy = SharedState(numbers["policy"], of_policy)
            return NodeState(
                numbers["identity"],
                numbers["last_handle"],
                turns,
                tables,
                **{name: arrays[name] for name in _COLUMNS},
                policy=policy,
                place=numbers["place"],
                ranks={
                    tree: (epoch, {rank: (process, told_s) for rank, (process, told_s) in came})
                    for tree, epoch, came in numbers["ranks"]
                },
            )
        except (KeyError, TypeError, ValueError):
            raise CheckpointError("it is damaged: its arrays are not those of a checkpoint") from None


_COLUMNS = ("handles", "stamps", "unanswered", "changed", "known", "stale", "heard", "undecided", "promises", "blocks")
_OF_POLICY = "policy."


class Past(NamedTuple):
    """What the former process left: its last checkpoint, and the entries after it."""

    state: NodeState
    entries: Sequence[Entry]

    @staticmethod
    def of(journal: Journal) -> "Past":
        """Raises RecoveryError."""
        try:
            data, entries = journal.past()
            return Past(NodeState.decode(data), entries)
        except ValueError as error:
            raise RecoveryError(f"{_CANNOT}: {error}") from error


_CANNOT = "cannot continue where the former process was"


def identity_of(catalog: Catalog, policy: ServingPolicy | SharedServingPolicy) -> str:
    """A hash of every column of the tree and the catalog, times and inodes too, and of the policy's identity.

    The kernel knows files by the number of their entry, and the stamps that are not in the journal are those of the
    scan. So a process continues only with the very same scan.
    """
    digest = xxhash.xxh3_128()
    for table in (catalog.tree, catalog):
        for name in table.__dataclass_fields__:
            array = getattr(table, name)
            if isinstance(array, np.ndarray):
                digest.update(f"{name} {array.dtype.str}{array.shape} ".encode())
                digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    of_policy = policy.identity
    if of_policy is not None:
        digest.update(np.ascontiguousarray(of_policy).view(np.uint8).data)
    return digest.hexdigest()


def packed(parts: Sequence[Sequence[int]], rest: Sequence[int]) -> list[int]:
    """Several sequences of numbers as one: each of ``parts`` with its length before it, then the ``rest``."""
    numbers: list[int] = []
    for part in parts:
        numbers += (len(part), *part)
    return [*numbers, *rest]


def unpacked(numbers: Sequence[int], parts: int) -> list[Sequence[int]]:
    """The inverse of `packed`: so many parts, and the rest. Raises ReplayError."""
    found = []
    for _ in range(parts):
        if not numbers or not 0 <= numbers[0] < len(numbers):
            raise ReplayError("the journal has an event without its numbers")
        end = 1 + numbers[0]
        found.append(numbers[1:end])
        numbers = numbers[end:]
    return [*found, numbers]


def handle_rows(handles: Iterable[tuple[OpenBefore, bool]]) -> Int64:
    """`NodeState.handles`, of pairs: a handle, and whether it shares pages at the source."""
    return rows(
        (
            (h.handle, h.entry, h.branch, h.thread, h.shares_pages + 2 * alone, h.size >= 0, *stamp_row(h.stamp))
            for h, alone in handles
        ),
        9,
    )


def stamp_row(stamp: Stamp) -> tuple[int, int, int]:
    """Its numbers, with a sign."""
    return stamp.size, stamp.mtime_ns, signed(stamp.inode)


def signed(number: int) -> int:
    """The same 64 bits as a number with a sign."""
    return number if number < 1 << 63 else number - (1 << 64)


def _stamp(size: int, mtime_ns: int, inode: int) -> Stamp:
    return Stamp(size, mtime_ns, inode & MASK)


@dataclass(slots=True)
class Former:
    """The tables of the former process, as far as they are not in the binding and the exact files.

    ``stamps``   by path: of each file of its answer that is not as at the scan
    ``changed``  by entry: the size
    ``heard``    by thread: when, in ns since boot, the latest last
    ``turned``   the samples whose opens took a turn since the checkpoint
    ``last_turn`` the last sample that had a turn since then, and the thread that opened it
    ``blocks``   of samplers
    """

    catalog: Catalog
    exact: ExactFiles
    replay: Repetition
    binding: Binding
    last_handle: int = 0
    handles: dict[int, OpenBefore] = field(default_factory=dict)
    exact_files: dict[int, ExactFile] = field(default_factory=dict)
    unanswered: dict[int, Unanswered] = field(default_factory=dict)
    answered: dict[int, int] = field(default_factory=dict)
    failed: dict[int, int] = field(default_factory=dict)
    stamps: dict[int, dict[int, Stamp]] = field(default_factory=dict)
    changed: dict[int, int] = field(default_factory=dict)
    heard: dict[int, int] = field(default_factory=dict)
    turned: list[int] = field(default_factory=list)
    last_turn: tuple[int, int] | None = None
    blocks: Blocks = field(default_factory=Blocks)
    _numbers: list[int] = field(default_factory=list)
    _stamps_noted: list[tuple[int, Stamp]] = field(default_factory=list)

    @staticmethod
    def from_past(
        past: Past,
        *,
        identity: str,
        catalog: Catalog,
        policy: ServingPolicy | SharedServingPolicy,
        binding: Binding,
        exact: ExactFiles,
    ) -> "Former":
        """Continue from ``past``.

        ``policy``, ``binding`` and ``exact`` are new, and continue too; they are of no use after an error.

        Raises:
            RecoveryError: they are damaged, or of another dataset.
        """
        try:
            state, entries = past
            if state.identity != identity:
                raise CheckpointError("it served another scan of the dataset, or other classes or columns")
            binding.resume(state.tables)
            promises = {ticket: (path, thread) for ticket, path, thread in state.promises.tolist()}
            kept = Kept(state.turns, state.policy, dict(state.undecided.tolist()), promises)
            former = Former(catalog, exact, policy.repeat(binding, kept), binding)
            former._load(state)
            for entry in entries:
                former._repeat(entry)
            former.replay.finish()
        except (ValueError, LookupError, AssertionError, OverflowError) as error:
            reason = str(error) if isinstance(error, ValueError) else "it is damaged, or of another dataset"
            raise RecoveryError(f"{_CANNOT}: {reason}") from error
        return former

    def _load(self, state: NodeState) -> None:
        self.last_handle = state.last_handle
        self.exact.resume({entry: _stamp(*stamp) for entry, *stamp in state.known.tolist()}, state.stale.tolist())
        for number, entry, branch, thread, shares, redirected, *numbers in state.handles.tolist():
            stamp = _stamp(*numbers)
            size = stamp.size if redirected else -1
            self.handles[number] = OpenBefore(number, entry, branch, thread, size, bool(shares & 1), stamp)
            if not redirected:
                self.exact_files[number] = self.exact.reopen(entry, stamp, branch, shares_pages=bool(shares & 2))
        for path, file, *numbers in state.stamps.tolist():
            self.stamps.setdefault(path, {})[file] = _stamp(*numbers)
        for request, path, file, thread in state.unanswered.tolist():
            self.unanswered[request & MASK] = Unanswered(path, file, thread)
        for block in state.blocks.tolist():
            self.blocks.add(*block)
        self.changed.update(state.changed.tolist())
        self.heard.update(state.heard.tolist())

    def _repeat(self, entry: Entry) -> None:
        kind, file, flags, thread, path, sample, request, value = entry
        if kind == STAMP:
            self._stamps_noted.append((path, stamp_of(entry)))
            return
        if kind == NUMBERS:
            # A process may have died among the numbers of an event.
            self._numbers[path:] = (signed(request), value)
            return
        if kind == OPEN:
            self._hear(thread, value)
            opened = self.replay.open(path, file, thread, sample, preempted=bool(flags & PREEMPTED))
            if opened.turn is not None:
                self.turned.append(path)
                self.last_turn = sample, thread
            before = self.unanswered.pop(request, None)
            self.unanswered[request] = Unanswered(path, file, thread)
            if before is not None:
                self.replay.close(before.path)
        elif kind == OPENED:
            self._opened(entry)
        elif kind == CLOSED:
            self._closed(sample)
        elif kind == STAT:
            self._hear(thread, value)
            self.replay.stat(path, file, thread, sample, is_new=bool(flags & NEW))
        elif kind == DRAWN:
            self.replay.draw(sample)
            self.last_turn = sample, 0
            self.blocks.add(request, value, sample)
        elif kind == FORGET:
            self.replay.end(thread)
        elif kind == CHANGED:
            if value < 0:
                self.changed.pop(path, None)
            else:
                self.changed[path] = value
        elif kind == FAILED:
            self.failed[request] = value or errno.EIO
            before = self.unanswered.pop(request, None)
            if before is not None:
                self.replay.fail(before.path, before.thread)
                self._forget_stamps(before.path)
        elif isinstance(self.replay, SharedReplay):
            self._repeat_shared(self.replay, kind, path, value)
        else:
            raise ReplayError(f"the journal has an entry of kind {kind}")
        self._stamps_noted.clear()

    def _repeat_shared(self, replay: SharedReplay, kind: int, path: int, value: int) -> None:
        """An entry of what passed between this node's policy and those of others."""
        if kind == HANDLED:
            message, answer, chosen = unpacked(self._numbers[:path], 2)
            replay.handled(message_of(message), answer_of(answer), chosen)
        elif kind == RECEIVED:
            answer, chosen = unpacked(self._numbers[:path], 1)
            replay.received(answer_of(answer), chosen)
        elif kind == WITHDRAWN:
            replay.cancelled(value)
        elif kind == ALONE:
            replay.alone(path)
        else:
            raise ReplayError(f"the journal has an entry of kind {kind}")

    def _opened(self, noted: Entry) -> None:
        _, branch, flags, thread, entry, number, request, size = noted
        stamps = dict(self._stamps_noted)
        if size < 0:
            stamp = stamps.get(entry) or self.exact.scanned(entry)
            self.exact_files[number] = self.exact.reopen(entry, stamp, branch)
        else:
            unanswered = self.unanswered.pop(request, None)
            if unanswered is None:
                raise ReplayError(f"the journal answers request {request}, which is no open")
            path = unanswered.path
            for source, of_source in stamps.items():
                self.stamps.setdefault(path, {})[int(self.catalog.member_of[source])] = of_source
            source = self.source(path, unanswered.file)
            stamp = stamps.get(source) or self.exact.scanned(source)
            if stamp.size != size:
                # Of no file: reads fail.
                stamp = Stamp(size, NO_TIME_NS, NO_INODE)
        self.handles[number] = OpenBefore(number, entry, branch, thread, size, bool(flags & SHARES_PAGES), stamp)
        self.last_handle = max(self.last_handle, number)
        self.answered[request] = number

    def _closed(self, number: int) -> None:
        # A process that dies while it closes a handle may leave the request, so that the next closes it once more.
        handle = self.handles.pop(number, None)
        if handle is None:
            return
        exact = self.exact_files.pop(number, None)
        if exact is not None:
            self.exact.close(exact)
            return
        path = int(self.catalog.sample_of[handle.entry])
        self.replay.close(path)
        self._forget_stamps(path)

    def source(self, path: int, file: int) -> int:
        """The entry whose bytes file number ``file`` of an open path serves."""
        answer = self.binding.present_answer(path)
        return int(self.catalog.members[self.catalog.member_at[answer] + file])

    def _forget_stamps(self, path: int) -> None:
        if path in self.stamps and not self.binding.is_bound(path):
            del self.stamps[path]

    def _hear(self, thread: int, heard_ns: int) -> None:
        if thread:
            self.heard.pop(thread, None)
            self.heard[thread] = heard_ns
