"""How far a mount's laps are, in a file that outlives the daemon.

A daemon that is killed takes nothing along but its memory: what had its turn in which lap is written every second and
at the end, and the next mount goes on from there (`--resume`). So each sample still comes once in its lap, but for
those that had their turn after the last write, which may come once more: those of about a second. `Turns.given`, which
is in the file and in the statistics, counts them. The same file, saved and loaded by hand, goes with a checkpoint of
the training; after a load what had its turn since the save comes again, which is what going back means.

    head         magic, version, the lengths of all that follows, the least lap, turns given, time of writing
    about        JSON: a text for each thing that the laps depend on, such as the dataset
    laps         of each class or column, above the least, in 1, 2 or 4 bytes each
    had          a bit for each sample
    checksum     XXH3-128 of all before it

A file is replaced as a whole: written beside, synced, renamed. A daemon that was detached from its mountpoint lives on
for those who are in its mount; one that is mounted in its place has it hand the file over (`StateWriter.hand_over`).

Of nodes that share a dataset each keeps what it handed to its own readers (`redoxfs.protocol.turns`). They go on from
what all of them kept, and a file that is saved by hand has all of it: so it is of as many nodes as one likes.
"""

from __future__ import annotations

import json
import logging
import os
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import trio
import xxhash

from redoxfs.dataset.array_files import open_plain
from redoxfs.protocol.turns import LAST_LAP, Turns

MAGIC = b"RedoxLap"
VERSION = 1

WRITE_EVERY_S = 1.0

LONGEST_END_S = 5.0
"""For the last write: an end must not wait for a disk that does not answer."""

LONGEST_ABOUT_BYTES = 64 << 10

LONGEST_FILE_BYTES = 1 << 30
"""Far more than two billion samples take."""

# Magic, version, length of about, samples' bytes, laps, their least, bytes of each, turns given, time of writing in ns.
_HEAD = struct.Struct("<8sIIQQIIQQ")
_SUM_BYTES = 16
_WIDTHS: dict[int, np.dtype[Any]] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}

log = logging.getLogger(__name__)


class StateError(Exception):
    """A state cannot be taken: one line."""


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """What a file says.

    ``about``       a text for each thing that the laps depend on
    ``written_ns``  when it was, since the epoch of Unix
    """

    about: Mapping[str, str]
    turns: Turns
    written_ns: int

    @property
    def lap_lineage(self) -> str:
        return self.about.get(LAP_LINEAGE, "")

    def check(self, about: Mapping[str, str]) -> None:
        """Raises StateError, with what differs, where it is about something else."""
        names = sorted({*self.about, *about} - {LAP_LINEAGE})
        # What explains the others first.
        for name in sorted(names, key=lambda name: (name != DATASET, name not in self.about, name not in about)):
            then, now = self.about.get(name, "nothing"), about.get(name, "nothing")
            if then != now:
                raise StateError(
                    "it is of another dataset, or of this one before it changed"
                    if name == DATASET
                    else f"{name} was {then} when it was written, and is {now} now"
                )


DATASET = "dataset"
"""What the fingerprint is called among the things that laps depend on."""

NODES = "number of nodes"

LAP_LINEAGE = "origin"
"""Of a node of several: what tells its laps from those that began at another time, the later the greater."""


def of_one_node(about: Mapping[str, str], nodes: int) -> Mapping[str, str]:
    """What the file of one node of so many is about, where that of all of them together is ``about``."""
    return about if nodes == 1 else {**about, NODES: str(nodes)}


def encode(about: Mapping[str, str], turns: Turns, written_ns: int) -> bytes:
    """The bytes of a file."""
    text = json.dumps(dict(about), sort_keys=True).encode()
    least, most = int(turns.laps.min(initial=LAST_LAP)), int(turns.laps.max(initial=1))
    width = next(width for width in _WIDTHS if most - least < 1 << 8 * width)
    head = _HEAD.pack(MAGIC, VERSION, len(text), len(turns.had), len(turns.laps), least, width, turns.given, written_ns)
    laps = (turns.laps - least).astype(_WIDTHS[width])
    told = b"".join((head, text, laps.tobytes(), turns.had.tobytes()))
    return told + xxhash.xxh3_128_digest(told)


def decode(data: bytes) -> State:
    """What `encode` made bytes of. Raises StateError."""
    _, _, text_bytes, had_bytes, count, least, width, given, written_ns = _head(data, len(data))
    if xxhash.xxh3_128_digest(memoryview(data)[:-_SUM_BYTES]) != data[-_SUM_BYTES:]:
        raise StateError("it is damaged: its checksum is wrong")
    laps_at = _HEAD.size + text_bytes
    above = np.frombuffer(data, _WIDTHS[width], count, laps_at)
    had = np.frombuffer(data, np.uint8, had_bytes, laps_at + count * width)
    if least + int(above.max(initial=0)) > LAST_LAP:
        raise StateError("it is damaged: nobody comes to such laps")
    try:
        about = json.loads(data[_HEAD.size : laps_at])
    except (ValueError, RecursionError):
        about = None
    if not isinstance(about, dict) or not all(isinstance(value, str) for value in about.values()):
        raise StateError("it is damaged: it does not say what it is about")
    return State(about, Turns((above.astype(np.int64) + least).astype(np.int32), had.copy(), given), written_ns)


def _head(data: bytes, size: int) -> tuple[Any, ...]:
    """The head, of a file of so many bytes, which are those that it says there are."""
    if data[: len(MAGIC)] != MAGIC:
        raise StateError("it is no state of a redoxfs mount")
    if len(data) < _HEAD.size:
        raise StateError(f"it is cut: it has {size} bytes")
    head = _HEAD.unpack_from(data)
    _, version, text_bytes, had_bytes, count, _, width, _, _ = head
    if version != VERSION:
        raise StateError(f"it is of format version {version}, and this redoxfs reads version {VERSION}")
    expected = _HEAD.size + text_bytes + count * width + had_bytes + _SUM_BYTES
    if width not in _WIDTHS or size != expected or size > LONGEST_FILE_BYTES:
        raise StateError(f"it is cut or damaged: it has {size} bytes and says {expected}")
    return head


def read_bytes(path: Path) -> bytes:
    """A file whose head is sound. Raises StateError; FileNotFoundError where there is none, and other OSErrors."""
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(_HEAD.size)
        _head(head, size)
        data = bytearray(head)
        while len(data) < size and (part := file.read(size - len(data))):
            data += part
    return bytes(data)


def longest_bytes(turns: Turns) -> int:
    """The most that the file of anybody with the same samples can take: what it is about may be long, if it is of
    something else."""
    return _HEAD.size + LONGEST_ABOUT_BYTES + turns.laps.nbytes + turns.had.nbytes + _SUM_BYTES


def name_of(data: bytes) -> str:
    """What tells a state from all others."""
    return f"the state {data[-_SUM_BYTES:].hex()[:8]}"


def summary(turns: Turns, samples: int) -> dict[str, int]:
    """What a person wants to know of it."""
    return {
        "first_lap": int(turns.laps.min(initial=LAST_LAP)) if len(turns.laps) else 1,
        "last_lap": int(turns.laps.max(initial=1)),
        "had": int(np.count_nonzero(np.unpackbits(turns.had, count=samples))),
        "samples": samples,
        "given": turns.given,
    }


def told_of(summary: Mapping[str, Any]) -> str:
    """A summary, for a person."""
    first, last = summary["first_lap"], summary["last_lap"]
    laps = f"lap {first}" if first == last else f"laps {first} to {last}"
    return f"{laps}, {summary['had']:,} of {summary['samples']:,} samples had their turn"


def _with_line(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """A summary, with a line for who has to do without this module."""
    return {**summary, "told": told_of(summary)}


class StateFile:
    """A file that is replaced as a whole, in a folder that is held open: a mount may hide its path.

    ``base``  its path where it is that of one node alone

    Raises:
        OSError: there is no such folder.
    """

    def __init__(self, path: Path) -> None:
        self.base = self.path = path
        self._folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def number(self, node: int, nodes: int) -> None:
        """Be the file of one node of so many: they may all have the same folder and the same path."""
        self.path = self.base if nodes == 1 else self.base.with_name(f"{self.base.name}.{node}")

    def close(self) -> None:
        os.close(self._folder)

    def replace(self, data: bytes) -> None:
        """On the disk when it returns, readable by its owner alone. Raises OSError; the file is then as it was."""
        # Cut short by a letter for each that is put to it, since a name has an end; not where its number is.
        beside = f".{self.path.name[-200:]}.new"
        with suppress(FileNotFoundError):
            os.unlink(beside, dir_fd=self._folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(beside, flags, 0o600, dir_fd=self._folder), "wb", buffering=0) as file:
                rest = memoryview(data)
                while rest:
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            os.replace(beside, self.path.name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError:
            with suppress(OSError):
                os.unlink(beside, dir_fd=self._folder)
            raise
        os.fsync(self._folder)


class Resumable(Protocol):
    """Who can go on in the middle of a lap: a policy, and the node."""

    @property
    def given(self) -> int:
        """How many turns were given since the first lap began."""

    def turns(self) -> Turns:
        """How far the laps are; of several nodes, what this one had. A copy."""

    def restore(self, turns: Turns) -> None:
        """Go on from there. Raises ValueError; nothing was changed."""


class Cluster(Protocol):
    """All nodes together that share a dataset. Of one alone: `SingleNode`.

    ``node``, ``nodes``  which of them this is, and how many there are
    ``lap_lineage``      of their laps
    """

    @property
    def node(self) -> int: ...
    @property
    def nodes(self) -> int: ...
    @property
    def lap_lineage(self) -> str: ...

    async def turns_of_all(self) -> Turns:
        """What all of them had. Raises ValueError: one line."""

    async def go_on(self, turns: Turns, data: bytes) -> None:
        """This node goes on from there, of which ``data`` is the file; so do the others, once they are told the same.
        Raises ValueError: one line."""


class SingleNode:
    """One node, which shares its dataset with nobody."""

    node, nodes, lap_lineage = 0, 1, ""

    def __init__(self, node: Resumable) -> None:
        self._node = node

    async def turns_of_all(self) -> Turns:
        return self._node.turns()

    async def go_on(self, turns: Turns, data: bytes) -> None:
        del data
        self._node.restore(turns)


class StateWriter:
    """Keeps the state of a node in a file, and saves and loads that of all for whoever asks.

    Args:
        file: where to; None where it is not kept.
        about: what the laps depend on, as it is now.
        samples: how many there are.
    """

    def __init__(
        self,
        file: StateFile | None,
        about: Callable[[], Mapping[str, str]],
        samples: int,
        node: Resumable,
    ) -> None:
        self._file = file
        self._about = about
        self._samples = samples
        self._node = node
        self._all: Cluster = SingleNode(node)
        # As long as nobody asks, what there is stays: a mount by mistake costs no state.
        self._kept = node.given
        self._written_ns = 0
        self._failed = False
        self._writing = threading.Lock()
        # Of what is to be written: a thread that was left behind must not write what is old by then.
        self._newest = 0

    def share(self, all_nodes: Cluster) -> None:
        """There are others; before anything is saved or loaded."""
        self._all = all_nodes

    async def begin_anew(self) -> None:
        """The laps are others from now on. What was kept of those before is replaced at once, since what nodes kept of
        laps that began differently must not be put together."""
        self._kept = -1
        if self._file is not None:
            self._file.number(self._all.node, self._all.nodes)
            await trio.to_thread.run_sync(self._write, *self._following(), abandon_on_cancel=True)

    def encoded(self) -> bytes:
        """What this node had, as its file has it."""
        return encode(self._own_about(), self._node.turns(), time.time_ns())

    def decoded(self, data: bytes) -> State:
        """What a node of these had, from its file. In any thread. Raises StateError."""
        state = decode(data)
        state.check(self._own_about())
        return state

    def decoded_whole(self, data: bytes) -> Turns:
        """What all had, from a file that was saved. In any thread. Raises StateError."""
        state = decode(data)
        state.check(self._about())
        return state.turns

    def _own_about(self) -> Mapping[str, str]:
        about = of_one_node(self._about(), self._all.nodes)
        return {**about, LAP_LINEAGE: self._all.lap_lineage} if self._all.nodes > 1 else about

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write what has changed, every second, until cancelled."""
        task_status.started()
        while self._file is not None:
            await trio.sleep(WRITE_EVERY_S)
            following = self._next()
            if following is not None:
                await trio.to_thread.run_sync(self._write, *following, abandon_on_cancel=True)

    def final(self) -> None:
        """Write what has changed; nothing has a turn any more."""
        following = self._next()
        if self._file is None or following is None:
            return
        # In a thread that ends with the process, should the disk not answer.
        writing = threading.Thread(target=self._write, args=following, daemon=True)
        writing.start()
        writing.join(LONGEST_END_S)
        if writing.is_alive():
            log.warning("%s does not answer: the last turns are not in it", self._file.path)

    async def save(self, data: bytes) -> Mapping[str, Any]:
        """Write the state to the file whose path ``data`` is. Raises ValueError."""
        path = Path(os.fsdecode(data))
        if not path.is_absolute() or "\0" in os.fspath(path):
            raise ValueError("expected the whole path of a file")
        about, turns = self._about(), await self._all.turns_of_all()
        try:
            await trio.to_thread.run_sync(self._save, path, about, turns, abandon_on_cancel=True)
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror or error}") from error
        return _with_line(summary(turns, self._samples))

    async def hand_over(self, data: bytes) -> Mapping[str, Any]:
        """Write what has changed, and nothing after that: another mount has the file. Raises ValueError.

        ``data`` is a deadline, in ns of CLOCK_MONOTONIC, and the path of the file. Past it nothing is written any more,
        since the other mount does not wait any more and may have written.
        """
        by_ns, _, path = data.partition(b" ")
        is_late = time.monotonic_ns() > int(by_ns)
        if self._file is not None and self._file.base == Path(os.fsdecode(path)):
            following = None if is_late else self._next()
            await trio.to_thread.run_sync(self._write_last, following)
        return {}

    async def load(self, data: bytes) -> Mapping[str, Any]:
        """Go on from the state that ``data`` is, the bytes of a file. Raises ValueError.

        It counts at once: laps and turns are as they were at the save, and what had its turn since then comes again.
        What is in memory and had no turn is read again when it is needed. Open files stay as they are.
        """
        try:
            turns = await trio.to_thread.run_sync(self.decoded_whole, data)
        except StateError as error:
            raise ValueError(f"the state is not taken: {error}") from error
        try:
            await self._all.go_on(turns, data)
        finally:
            await self.begin_anew()
        told = summary(turns, self._samples)
        log.info("the laps go on from a state that was loaded: %s", told_of(told))
        return _with_line(told)

    def stats(self) -> dict[str, Any]:
        """``turns``: given since the first lap began; ``turns_kept``: of these, before the state was last written."""
        return {
            "turns": self._node.given,
            "turns_kept": self._kept if self._written_ns else None,
            "state_written": self._written_ns / 1e9 if self._written_ns else None,
        }

    def _next(self) -> tuple[int, Mapping[str, str], Turns] | None:
        """What is to be written, if anything has changed and can be kept."""
        return None if self._node.given == self._kept else self._following()

    def _following(self) -> tuple[int, Mapping[str, str], Turns]:
        self._newest += 1
        return self._newest, self._own_about(), self._node.turns()

    def _write_last(self, following: tuple[int, Mapping[str, str], Turns] | None) -> None:
        with self._writing:
            file, self._file = self._file, None
            if file is None:
                return
            if following is not None and self._replace(file, *following[1:]):
                self._kept = following[2].given
        log.info("%s is another mount's now: what is served here from now on is not kept", file.path)

    def _write(self, number: int, about: Mapping[str, str], turns: Turns) -> None:
        with self._writing:
            if self._file is None or number != self._newest or not self._replace(self._file, about, turns):
                return
        if number == self._newest:
            self._kept = turns.given

    def _replace(self, file: StateFile, about: Mapping[str, str], turns: Turns) -> bool:
        """Whether the file could be written; that it cannot is one line, until it can again."""
        now_ns = time.time_ns()
        try:
            file.replace(encode(about, turns, now_ns))
        except OSError as error:
            if not self._failed:
                log.warning("%s cannot be written, and is tried again every second: %s", file.path, error.strerror)
            self._failed = True
            return False
        if self._failed:
            log.info("%s is written again", file.path)
        self._failed, self._written_ns = False, now_ns
        return True

    def _save(self, path: Path, about: Mapping[str, str], turns: Turns) -> None:
        file = StateFile(path)
        try:
            with self._writing:
                file.replace(encode(about, turns, time.time_ns()))
        finally:
            file.close()
