"""How far a mount's laps are, in a file that outlives the daemon.

The file has the samples that had their turn, and the laps. It is written every second and at the end, and the next
mount continues from it (`--resume`). So each sample is still served once in its lap, except those that had their turn
after the last write, within about a second: they may be served again. `Turns.given`, in the file and in the statistics,
counts them. The same file can be saved and loaded by hand, together with a checkpoint of the training. After a load the
samples that had their turn since the save are served again.

    head         magic, version, the lengths of all fields that follow, the least lap, turns given, time of writing
    about        JSON: a text for each thing that the laps depend on, such as the dataset
    laps         of each class or column, above the least, in 1, 2 or 4 bytes each
    had          a bit for each sample
    passes       version 2: a bit for each path, whether it was opened in its pass, and one for each sample, whether it
                 was served in it. Version 3: the numbers of these opens, and after which the lap of each class began,
                 in 4 bytes each. Version 1: nothing
    checksum     XXH3-128 of everything before it

A file is replaced as a whole: written to a temporary file, synced, renamed. A daemon that was detached from its
mountpoint lives on for the programs in its mount. A daemon that is mounted in its place makes it hand the file over
(`StateWriter.hand_over`).

Where several nodes share a dataset, each keeps the turns of its own readers (`redoxfs.protocol.turns`). They continue
from the files of all. A file that is saved by hand has the turns of all nodes, so any number of nodes can load it.
"""

from __future__ import annotations

import json
import logging
import os
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakValueDictionary

import numpy as np
import trio
import xxhash

from redoxfs.dataset.array_files import open_plain
from redoxfs.linux import durable
from redoxfs.node.control import clients_file
from redoxfs.node.threads import begin_in_thread, in_thread
from redoxfs.protocol.pool.passes import PassState
from redoxfs.protocol.turns import LAST_LAP, Turns

MAGIC = b"RedoxLap"
VERSION = 3
WITHOUT_PASSES, WITH_BITS, WITH_ORDER = 1, 2, VERSION
"""The versions of files by what they have of passes. Older releases wrote the first, and so do several nodes and the
slot policy. The second is small enough for every second, the third is written at the end and by `save`."""

WRITE_EVERY_S = 1.0

ORDERED_SAMPLES = 1 << 16
"""Of up to so many samples, the order of opens is written every second too."""

LONGEST_END_S = 5.0
"""The deadline of the last write: the end must not wait for a disk that does not answer."""

LONGEST_ABOUT_BYTES = 64 << 10

LONGEST_FILE_BYTES = 1 << 30
"""Far more than two billion samples need."""

# Magic, version, length of about, samples' bytes, laps, their least, bytes of each, turns given, time of writing in ns.
_HEAD = struct.Struct("<8sIIQQIIQQ")
_SUM_BYTES = 16
_WIDTHS: dict[int, np.dtype[Any]] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}

log = logging.getLogger(__name__)


class StateError(Exception):
    """A state cannot be used: one line."""


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """The content of a file.

    ``about``       a text for each thing that the laps depend on
    ``written_ns``  when it was written, since the Unix epoch
    """

    about: Mapping[str, str]
    turns: Turns
    written_ns: int

    @property
    def lap_lineage(self) -> str:
        return self.about.get(LAP_LINEAGE, "")

    def check(self, about: Mapping[str, str]) -> None:
        """Raises StateError, which names the difference, if the state is about something else."""
        names = sorted({*self.about, *about} - {LAP_LINEAGE})
        # A difference that explains others comes first.
        for name in sorted(names, key=lambda name: (name != DATASET, name not in self.about, name not in about)):
            then, now = self.about.get(name, "nothing"), about.get(name, "nothing")
            if then != now:
                raise StateError(
                    "it is of another dataset, or of this one before it changed"
                    if name == DATASET
                    else f"{name} was {then} when it was written, and is {now} now"
                )


DATASET = "dataset"
"""The name of the fingerprint among the things that laps depend on."""

NODES = "number of nodes"

LAP_LINEAGE = "origin"
"""In the file of one node of several: identifies laps that began together; greater for later ones."""


def of_one_node(about: Mapping[str, str], nodes: int) -> Mapping[str, str]:
    """The ``about`` of one node's file, where that of a file of all nodes is ``about``."""
    return about if nodes == 1 else {**about, NODES: str(nodes)}


def encode(about: Mapping[str, str], turns: Turns, written_ns: int) -> bytes:
    """The bytes of a file."""
    text = json.dumps(dict(about), sort_keys=True).encode()
    least, most = int(turns.laps.min(initial=LAST_LAP)), int(turns.laps.max(initial=1))
    width = next(width for width in _WIDTHS if most - least < 1 << 8 * width)
    version = WITHOUT_PASSES if turns.passes is None else WITH_ORDER if turns.passes.whole else WITH_BITS
    head = _HEAD.pack(MAGIC, version, len(text), len(turns.had), len(turns.laps), least, width, turns.given, written_ns)
    laps = (turns.laps - least).astype(_WIDTHS[width])
    data = b"".join((head, text, laps.tobytes(), turns.had.tobytes(), *_encoded_passes(turns.passes)))
    return data + xxhash.xxh3_128_digest(data)


def decode(data: bytes) -> State:
    """The state in a file's bytes. Raises StateError."""
    _, version, text_bytes, had_bytes, count, least, width, given, written_ns = _head(data, len(data))
    if xxhash.xxh3_128_digest(memoryview(data)[:-_SUM_BYTES]) != data[-_SUM_BYTES:]:
        raise StateError("it is damaged: its checksum is wrong")
    laps_at = _HEAD.size + text_bytes
    above = np.frombuffer(data, _WIDTHS[width], count, laps_at)
    had = np.frombuffer(data, np.uint8, had_bytes, laps_at + count * width)
    if least + int(above.max(initial=0)) > LAST_LAP:
        raise StateError("it is damaged: no mount comes to such laps")
    try:
        about = json.loads(data[_HEAD.size : laps_at])
    except (ValueError, RecursionError):
        about = None
    if not isinstance(about, dict) or not all(isinstance(value, str) for value in about.values()):
        raise StateError("it is damaged: its description cannot be read")
    passes = _decoded_passes(data[laps_at + count * width + had_bytes : -_SUM_BYTES], version, count)
    laps = (above.astype(np.int64) + least).astype(np.int32)
    return State(about, Turns(laps, had.copy(), given, passes), written_ns)


def _encoded_passes(passes: PassState | None) -> tuple[bytes, ...]:
    if passes is None:
        return ()
    if passes.whole:
        fill = (0, -len(passes.asked) % 8)
        of_samples = (np.pad(each, fill).astype("<i4").tobytes() for each in (passes.asked, passes.served))
        return *of_samples, passes.began.astype("<i4").tobytes()
    return tuple(np.packbits(each > 0).tobytes() for each in (passes.asked, passes.served))


def _decoded_passes(data: bytes, version: int, laps: int) -> PassState | None:
    if version == WITHOUT_PASSES:
        return None
    if version == WITH_ORDER:
        numbers = np.frombuffer(data, "<i4").astype(np.int32)
        of_samples = (len(numbers) - laps) // 2
        asked, served, began = np.split(numbers, [of_samples, 2 * of_samples])
        return PassState(asked, served, began, whole=True)
    asked, served = np.unpackbits(np.frombuffer(data, np.uint8)).astype(np.int32).reshape(2, -1)
    return PassState(asked, served, np.zeros(laps, np.int32), whole=False)


def _passes_bytes(version: int, had_bytes: int, laps: int) -> int:
    """How many bytes of a file are about passes."""
    return {WITHOUT_PASSES: 0, WITH_ORDER: 4 * (2 * 8 * had_bytes + laps)}.get(version, 2 * had_bytes)


def _head(data: bytes, size: int) -> tuple[Any, ...]:
    """The head of a file of ``size`` bytes, which is the size that it implies."""
    if data[: len(MAGIC)] != MAGIC:
        raise StateError("it is not a redoxfs state file")
    if len(data) < _HEAD.size:
        raise StateError(f"it is truncated: it has {size} bytes")
    head = _HEAD.unpack_from(data)
    _, version, text_bytes, had_bytes, count, _, width, _, _ = head
    if not WITHOUT_PASSES <= version <= VERSION:
        raise StateError(f"it has format version {version}, and this redoxfs reads versions 1 to {VERSION}")
    of_passes = _passes_bytes(version, had_bytes, count)
    expected = _HEAD.size + text_bytes + count * width + had_bytes + of_passes + _SUM_BYTES
    if width not in _WIDTHS or size != expected or size > LONGEST_FILE_BYTES:
        raise StateError(f"it is truncated or damaged: it has {size} bytes, and its head describes {expected}")
    return head


def read_bytes(path: Path) -> bytes:
    """The bytes of a file whose head is sound. Raises StateError, FileNotFoundError and other OSErrors."""
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(_HEAD.size)
        _head(head, size)
        data = bytearray(head)
        while len(data) < size and (part := file.read(size - len(data))):
            data += part
    return bytes(data)


def longest_bytes(turns: Turns) -> int:
    """The largest size of a file about the same samples; its description may be long, if it is of something else."""
    of_passes = _passes_bytes(VERSION, len(turns.had), len(turns.laps))
    return _HEAD.size + LONGEST_ABOUT_BYTES + turns.laps.nbytes + turns.had.nbytes + of_passes + _SUM_BYTES


def name_of(data: bytes) -> str:
    """The name of a state, which no other has."""
    return f"the state {data[-_SUM_BYTES:].hex()[:8]}"


def summary(turns: Turns, samples: int) -> dict[str, int]:
    """The figures that a user wants to see."""
    return {
        "first_lap": int(turns.laps.min(initial=LAST_LAP)) if len(turns.laps) else 1,
        "last_lap": int(turns.laps.max(initial=1)),
        "had": int(np.count_nonzero(np.unpackbits(turns.had, count=samples))),
        "samples": samples,
        "given": turns.given,
    }


def line_of(summary: Mapping[str, Any]) -> str:
    """A summary as a line for users."""
    first, last = summary["first_lap"], summary["last_lap"]
    laps = f"lap {first}" if first == last else f"laps {first} to {last}"
    return f"{laps}, {summary['had']:,} of {summary['samples']:,} samples had their turn"


def _with_line(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """A summary and its line, for a client that cannot import this module."""
    return {**summary, "told": line_of(summary)}


class StateFile:
    """A file that is replaced as a whole. Its folder is held open, since a mount may hide its path.

    ``base``  its path if it is the file of a single node

    Raises:
        OSError: the folder cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.base = self.path = path
        self._folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def number(self, node: int, nodes: int) -> None:
        """Become the file of one node of ``nodes``, which may all be given the same path."""
        self.path = self.base if nodes == 1 else self.base.with_name(f"{self.base.name}.{node}")

    def close(self) -> None:
        os.close(self._folder)

    def replace(self, data: bytes) -> None:
        """Write ``data`` to disk, readable by the owner alone. Raises OSError; the file is unchanged then."""
        durable.replace(self._folder, self.path.name, data)


def replace_file(path: Path, data: bytes) -> None:
    """Write ``data`` to disk at ``path``, as a `StateFile`. Raises OSError."""
    with closing(StateFile(path)) as file:
        file.replace(data)


class Passing(Protocol):
    """Can continue in the middle of a lap, and may keep passes: the node."""

    @property
    def given(self) -> int:
        """The number of turns given since the first lap began."""

    def turns(self) -> Turns:
        """How far the laps are, by the turns of this node. A copy."""

    def restore(self, turns: Turns) -> None:
        """Continue from ``turns``. Raises ValueError, and changes nothing, if that is impossible."""

    def kept_turns(self, *, whole: bool) -> Turns:
        """`turns`, with its passes. Not ``whole``: without the order of opens."""


class Cluster(Protocol):
    """All nodes that share a dataset. For a node that has it to itself: `SingleNode`.

    ``node``, ``nodes``  this node's number, and the number of nodes
    ``lap_lineage``      of their laps
    """

    @property
    def node(self) -> int: ...
    @property
    def nodes(self) -> int: ...
    @property
    def lap_lineage(self) -> str: ...

    async def turns_of_all(self) -> Turns:
        """The turns of all nodes. Raises ValueError: one line."""

    async def go_on(self, turns: Turns, data: bytes) -> None:
        """Continue from ``turns``, whose file is ``data``, at this node. The others get the same call of their own.
        Raises ValueError: one line."""


class SingleNode:
    """A node that shares its dataset with no other."""

    node, nodes, lap_lineage = 0, 1, ""

    def __init__(self, node: Passing) -> None:
        self._node = node

    async def turns_of_all(self) -> Turns:
        return self._node.kept_turns(whole=True)

    async def go_on(self, turns: Turns, data: bytes) -> None:
        self._node.restore(turns)


class StateWriter:
    """Keeps the state of a node in a file, and saves and loads the state of all nodes on request.

    Args:
        file: None to keep no state.
        about: returns what the laps depend on, as it is now.
        samples: the number of samples.
    """

    def __init__(
        self,
        file: StateFile | None,
        about: Callable[[], Mapping[str, str]],
        samples: int,
        node: Passing,
    ) -> None:
        self._file = file
        self.about = about
        self._samples = samples
        self._node = node
        self._all: Cluster = SingleNode(node)
        # An existing file stays until the first turn: a mount by mistake loses no state.
        self._kept = node.given
        self._written_ns = 0
        self._has_order = True
        self._failed = False
        self._writing = threading.Lock()
        # The number of the latest write: an abandoned thread must not write an older state after it.
        self._newest = 0
        # By path: one save at a time, so that an older one that its disk held up does not replace a newer one.
        self._saving: WeakValueDictionary[Path, trio.CapacityLimiter] = WeakValueDictionary()

    def share(self, all_nodes: Cluster) -> None:
        """There are other nodes; before anything is saved or loaded."""
        self._all = all_nodes

    async def begin_anew(self) -> None:
        """Other laps have begun. Replace the file of the old ones at once: files of laps that began differently must
        not be merged."""
        self._kept = -1
        self.renumber()
        if self._file is not None:
            await in_thread(self._write, *self._following(), abandon_on_cancel=True)

    def renumber(self) -> None:
        """This node has another number, or is another of several."""
        if self._file is not None:
            self._file.number(self._all.node, self._all.nodes)

    def lineage_before(self) -> str:
        """The lineage of the laps that the file is of; empty where there is none. In any thread."""
        try:
            return "" if self._file is None else decode(read_bytes(self._file.path)).lap_lineage
        except (OSError, StateError):
            return ""

    def encoded(self) -> bytes:
        """This node's turns, as in its file."""
        return encode(self._own_about(), self._node.kept_turns(whole=True), time.time_ns())

    def decoded(self, data: bytes) -> State:
        """The state of one of these nodes, from its file. In any thread. Raises StateError."""
        state = decode(data)
        state.check(self._own_about())
        return state

    def decoded_whole(self, data: bytes) -> Turns:
        """The turns of all nodes, from a file that was saved. In any thread. Raises StateError."""
        state = decode(data)
        state.check(self.about())
        return state.turns

    def _own_about(self) -> Mapping[str, str]:
        about = of_one_node(self.about(), self._all.nodes)
        return {**about, LAP_LINEAGE: self._all.lap_lineage} if self._all.nodes > 1 else about

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write changes every second, until cancelled."""
        task_status.started()
        while self._file is not None:
            await trio.sleep(WRITE_EVERY_S)
            following = self._next()
            if following is not None:
                await in_thread(self._write, *following, abandon_on_cancel=True)

    def final(self) -> None:
        """Write the last changes; no sample has a turn any more."""
        following = None if self._file is None else self._last()
        if self._file is None or following is None:
            return
        # In a thread, in case the disk does not answer.
        if not begin_in_thread(self._write, *following).wait(LONGEST_END_S):
            log.warning("%s: no answer from its disk: the last turns are not saved", self._file.path)

    async def save(self, data: bytes) -> Mapping[str, Any]:
        """Write the state to the file at path ``data``. Raises ValueError."""
        return await self.save_turns(data, None)

    async def save_turns(self, data: bytes, turns: Turns | None) -> Mapping[str, Any]:
        """As `save`, with ``turns`` in place of those of all nodes."""
        path = Path(os.fsdecode(data))
        if not path.is_absolute() or "\0" in os.fspath(path):
            raise ValueError("expected the absolute path of a file")
        about = self.about()
        if turns is None:
            turns = await self._all.turns_of_all()
        # A disk that does not answer must hold up neither the file of this node nor saves to other disks.
        alone = self._saving.setdefault(path, trio.CapacityLimiter(1))
        try:
            await in_thread(_save, clients_file(path), about, turns, abandon_on_cancel=True, limiter=alone)
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror or error}") from error
        return _with_line(summary(turns, self._samples))

    @property
    def has_file(self) -> bool:
        """Whether a file is kept, and was not handed over."""
        return self._file is not None

    def refuse_to_hand_over(self, data: bytes, owner: str) -> None:
        """As `hand_over`, for a mount that is in use: raises ValueError if it keeps this file."""
        path = Path(os.fsdecode(data.partition(b" ")[2]))
        if self._file is not None and self._file.base == path:
            raise ValueError(f"{path}: {owner} keeps its state there")

    async def hand_over(self, data: bytes) -> Mapping[str, Any]:
        """Write changes, and nothing after that: the file belongs to another mount now. Raises ValueError.

        ``data`` has a deadline, in ns of CLOCK_MONOTONIC, and the path of the file. After the deadline nothing is
        written: the other mount has stopped waiting and may have written itself.
        """
        by_ns, _, path = data.partition(b" ")
        is_late = time.monotonic_ns() > int(by_ns)
        if self._file is not None and self._file.base == Path(os.fsdecode(path)):
            following = None if is_late else self._last()
            await in_thread(self._write_last, following)
        return {}

    async def load(self, data: bytes) -> Mapping[str, Any]:
        """Continue from the state in ``data``, the bytes of a file. Raises ValueError.

        It takes effect at once: laps and turns are those of the save, and samples that had their turn since are served
        again. Samples in memory without a turn are read again when they are needed. Open files stay as they are.
        """
        try:
            turns = await in_thread(self.decoded_whole, data)
        except StateError as error:
            raise ValueError(f"cannot load the state: {error}") from error
        try:
            await self._all.go_on(turns, data)
        finally:
            await self.begin_anew()
        figures = summary(turns, self._samples)
        log.info("the laps continue from a loaded state: %s", line_of(figures))
        return _with_line(figures)

    def stats(self) -> dict[str, Any]:
        """``turns``: given since the first lap began. ``turns_kept``: those in the last state that was written."""
        return {
            "turns": self._node.given,
            "turns_kept": self._kept if self._written_ns else None,
            "state_written": self._written_ns / 1e9 if self._written_ns else None,
        }

    def _next(self) -> tuple[int, Mapping[str, str], Turns] | None:
        """The next state to write; None if nothing has changed."""
        return None if self._node.given == self._kept else self._following()

    def _last(self) -> tuple[int, Mapping[str, str], Turns] | None:
        """The last state to write, with the order of opens; None if nothing has changed."""
        if self._node.given == self._kept and self._has_order:
            return None
        return self._following(whole=True)

    def _following(self, *, whole: bool = False) -> tuple[int, Mapping[str, str], Turns]:
        self._newest += 1
        whole = self._has_order = whole or self._samples <= ORDERED_SAMPLES
        return self._newest, self._own_about(), self._node.kept_turns(whole=whole)

    def _write_last(self, following: tuple[int, Mapping[str, str], Turns] | None) -> None:
        with self._writing:
            file, self._file = self._file, None
            if file is None:
                return
            if following is not None and self._replace(file, *following[1:]):
                self._kept = following[2].given
        log.info("%s now belongs to another mount: turns here are not saved any more", file.path)

    def _write(self, number: int, about: Mapping[str, str], turns: Turns) -> None:
        with self._writing:
            if self._file is None or number != self._newest or not self._replace(self._file, about, turns):
                return
        if number == self._newest:
            self._kept = turns.given

    def _replace(self, file: StateFile, about: Mapping[str, str], turns: Turns) -> bool:
        """Whether the file could be written. Failures are logged once, until a write succeeds."""
        now_ns = time.time_ns()
        try:
            file.replace(encode(about, turns, now_ns))
        except OSError as error:
            if not self._failed:
                log.warning("cannot write %s, retrying every second: %s", file.path, error.strerror)
            self._failed = True
            return False
        if self._failed:
            log.info("%s can be written again", file.path)
        self._failed, self._written_ns = False, now_ns
        return True


def _save(path: Path, about: Mapping[str, str], turns: Turns) -> None:
    replace_file(path, encode(about, turns, time.time_ns()))
