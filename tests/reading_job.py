"""A training job that checks every byte: processes that share the files of each epoch, and do not know redoxfs.

    reading_job.py FOLDER

FOLDER/job.json holds a `Job`. Each reader opens every file of its share of an epoch once, in one of the ways of `WAYS`.
The readers meet between epochs. Between two epochs, and in the middle of one that is not ``whole``, they end once the
board has the word to stop. FOLDER/board is a `Board`, which anybody may watch meanwhile. At the end,
FOLDER/reader-R.json holds a `Told` of each reader that ended by itself, and stdout has a line for each that did not.

The content of a file is a function of its name, and its name is the first line. So the bytes tell which sample was
served, and whether they are whole and of one sample.
"""

import faulthandler
import json
import mmap
import multiprocessing
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from multiprocessing.connection import wait
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any, TypeVar

PIECE_BYTES = 4096
MOST_KEPT = 8
"""A reader keeps so many files open until the end of an epoch."""

MESSAGES = 20
"""A reader keeps so many messages of each kind, and counts the rest."""

BESIDE_EXACT = "beside exact"

CLOSED_S = 10.0
"""The nodes hear of a close in a moment. A test may hold files open itself, so nobody waits for ever."""


T = TypeVar("T")

fork = multiprocessing.get_context("fork")


@dataclass(frozen=True, slots=True)
class Job:
    """What to read, and how. ``files``, ``classes`` and ``largest_bytes`` are those of `make_files`.

    With several nodes, ``root`` has the mount of each: "0", "1", … Reader R reads at node R modulo ``nodes``.
    """

    root: str
    files: int
    classes: int
    largest_bytes: int
    readers: int
    seed: int
    groups: bool = False
    """Each image has a caption of the same sample."""
    whole: bool = True
    """Every epoch is read to its end."""
    nodes: int = 1
    shuffles: bool = True
    """The readers of a node ask in another order in each epoch; otherwise in that of DistributedSampler."""
    exact: bool = True
    """Every file itself can be read at every node as well."""

    def mount_of(self, node: int) -> str:
        return self.root if self.nodes == 1 else f"{self.root}/{node}"


@dataclass(slots=True)
class Told:
    """What a reader found."""

    epochs: list[list[str]] = field(default_factory=list)
    """The samples that it was served, by epoch."""
    node: int = 0
    opens: list[tuple[int, int]] = field(default_factory=list)
    """When each open began and ended, in ns of CLOCK_MONOTONIC."""
    waits: list[tuple[int, int]] = field(default_factory=list)
    """When each wait for the other readers, between two epochs, began and ended."""
    longest_ns: int = 0
    longest: str = ""
    """Its longest operation: how long it took, and what it was."""
    errors: int = 0
    wrong: int = 0
    messages: list[str] = field(default_factory=list)


def name_of(number: int, classes: int) -> str:
    return f"kind{number % classes:04}/{number:07}.jpg"


def caption_of(name: str) -> str:
    return name.removesuffix(".jpg") + ".txt"


@lru_cache(maxsize=64)
def payload(name: str, largest_bytes: int) -> bytes:
    """The content of a file: its name, and random bytes of random length, all drawn from the name."""
    own = random.Random(name)
    head = name.encode() + b"\n"
    return head + own.randbytes(own.randrange(largest_bytes - len(head)))


def make_files(source: Path, files: int, classes: int, largest_bytes: int, *, groups: bool = False) -> None:
    for number in range(files):
        name = name_of(number, classes)
        if number < classes:
            (source / name).parent.mkdir(parents=True)
        for member in (name, caption_of(name)) if groups else (name,):
            with open(source / member, "wb", buffering=0) as file:
                file.write(payload(member, largest_bytes))


class Board:
    """What the readers have done so far, in memory that is shared through the file ``path``. Made with ``readers``."""

    def __init__(self, path: Path, readers: int) -> None:
        self._readers = readers
        with open(path, "a+b") as file:
            file.truncate(8 * (3 + 2 * readers))
            self._values = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")

    def stop(self) -> None:
        self._values[0] = 1

    def may_stop(self) -> bool:
        return self._values[0] == 1

    def decide(self) -> None:
        """Called by one of the readers when they have met, so that all stop or none does."""
        self._values[1] = self._values[0]
        self._values[2] += 1

    def has_stopped(self) -> bool:
        return self._values[1] == 1

    def opened(self, reader: int) -> None:
        self._values[3 + reader] += 1

    def failed(self, reader: int) -> None:
        self._values[3 + self._readers + reader] += 1

    @property
    def epochs(self) -> int:
        """Epochs that have ended."""
        return self._values[2]

    @property
    def opens(self) -> int:
        """Opens that were answered with a file."""
        return sum(self._values[3 : 3 + self._readers])

    @property
    def failures(self) -> int:
        """Errors and wrong bytes."""
        return sum(self._values[3 + self._readers :])


class Reader:
    """One of the processes."""

    def __init__(self, job: Job, number: int, board: Board) -> None:
        self.told = Told(node=number % job.nodes)
        self._job = job
        self._root = job.mount_of(self.told.node)
        self._number = number
        self._board = board
        self._own = random.Random(f"{job.seed} {number}")
        self._kept: list[tuple[str, bytes, int | mmap.mmap]] = []
        self._last = -1
        self._asked = ""
        self._may_stat = False

    def epoch(self, epoch: int) -> None:
        """Read its share of an epoch."""
        self.told.epochs.append([])
        share = self._share(epoch)
        ways = [way for way in WAYS if self._job.exact or way != BESIDE_EXACT]
        for place, number in enumerate(share):
            if not self._job.whole and self._board.may_stop():
                break
            # Near the end of a lap, all samples that are left may be reserved for others. Then a stat promises nothing.
            self._may_stat = place < len(share) // 2
            name = self._asked = name_of(number, self._job.classes)
            way = WAYS[self._own.choice(ways)]
            try:
                if self._job.groups and self._own.randrange(2):
                    caption = self._read_caption(name)
                    served = self._check(way(self, name))
                else:
                    served = self._check(way(self, name))
                    caption = self._read_caption(name) if self._job.groups else None
            except (OSError, ValueError) as error:  # an empty file cannot be mapped
                self._error(f"{name}: {way.__name__.strip('_')}: {error}")
                continue
            if served is not None:
                self.told.epochs[-1].append(served)
                if caption is not None and caption != caption_of(served):
                    self._wrong(f"{name}: the image is of {served}, the caption is {caption}")
        self._end_kept()

    def meet(self, meeting: Any) -> None:
        """Wait until all readers have ended the epoch. Raises BrokenBarrierError if one has died."""
        began = time.monotonic_ns()
        meeting.wait()
        self.told.waits.append((began, time.monotonic_ns()))

    def _share(self, epoch: int) -> list[int]:
        """Its part of an order that all readers have in common, as DistributedSampler's.

        A thread that opens the same file last in an epoch and first in the next would get the same sample again.
        """
        order = list(range(self._job.files))
        if self._job.shuffles:
            random.Random(f"{self._job.seed} epoch {epoch}").shuffle(order)
        else:
            order.sort(key=lambda number: name_of(number, self._job.classes))
        share = order[self._number :: self._job.readers]
        if share[0] == self._last:
            share.append(share.pop(0))
        self._last = share[-1]
        return share

    def _check(self, data: bytes, asked: str | None = None) -> str | None:
        """The name of the file whose bytes these are; None if they are not one whole file of the right class."""
        asked = asked or self._asked
        name = data.partition(b"\n")[0].decode(errors="replace")
        said = f"{asked}: {len(data)} bytes that begin as {name[:40]!r}"
        if not self._is_name(name, asked):
            self._wrong(f"{said} are no file of this class")
        elif data != (whole := payload(name, self._job.largest_bytes)):
            same = next((i for i, (a, b) in enumerate(zip(data, whole, strict=False)) if a != b), len(data))
            self._wrong(f"{said} differ from the {len(whole)} bytes of this file after {same}")
        else:
            return name
        return None

    def _is_name(self, name: str, asked: str) -> bool:
        number = os.path.splitext(os.path.basename(name))[0]
        if not (number.isascii() and number.isdigit() and int(number) < self._job.files):
            return False
        image = name_of(int(number), self._job.classes)
        expected = image if asked.endswith(".jpg") else caption_of(image)
        return name == expected and name.partition("/")[0] == asked.partition("/")[0]

    def _wrong(self, message: str) -> None:
        self.told.wrong += 1
        self._board.failed(self._number)
        if self.told.wrong <= MESSAGES:
            self.told.messages.append(message)

    def _error(self, message: str) -> None:
        self.told.errors += 1
        self._board.failed(self._number)
        if self.told.errors <= MESSAGES:
            self.told.messages.append(message)

    def _timed(self, call: Callable[..., T], *arguments: Any) -> T:
        began = time.monotonic_ns()
        try:
            return call(*arguments)
        finally:
            took = time.monotonic_ns() - began
            if took > self.told.longest_ns:
                self.told.longest_ns = took
                self.told.longest = f"{getattr(call, '__name__', 'read')} of {self._asked}"

    def _open(self, name: str) -> int:
        began = time.monotonic_ns()
        fd = self._timed(os.open, os.path.join(self._root, name), os.O_RDONLY | os.O_CLOEXEC)
        self.told.opens.append((began, time.monotonic_ns()))
        self._board.opened(self._number)
        return fd

    def _close(self, fd: int) -> None:
        self._timed(os.close, fd)

    def _pieces(self, fd: int, piece_bytes: int) -> Iterator[bytes]:
        while piece := self._timed(os.read, fd, piece_bytes):
            yield piece

    def _read_caption(self, name: str) -> str | None:
        fd = self._open(caption_of(name))
        try:
            return self._check(b"".join(self._pieces(fd, self._job.largest_bytes + 1)), caption_of(name))
        finally:
            self._close(fd)

    def _whole(self, name: str) -> bytes:
        fd = self._open(name)
        try:
            return b"".join(self._pieces(fd, self._job.largest_bytes + 1))
        finally:
            self._close(fd)

    def _by_stat(self, name: str) -> bytes:
        """Ask for the size, open, and read exactly that many bytes."""
        if not self._may_stat:
            return self._whole(name)
        size = self._timed(os.stat, os.path.join(self._root, name)).st_size
        fd = self._open(name)
        try:
            data = self._timed(os.read, fd, size)
            if len(data) != size or self._timed(os.read, fd, 1):
                self._wrong(f"{name}: stat returned {size} bytes, and the file has others")
            return data
        finally:
            self._close(fd)

    def _by_fstat(self, name: str) -> bytes:
        """Ask the open file for its size, and read it in pieces, the last one first."""
        fd = self._open(name)
        try:
            size = self._timed(os.fstat, fd).st_size
            places = reversed(range(0, size, PIECE_BYTES))
            pieces = [self._timed(os.pread, fd, PIECE_BYTES, place) for place in places]
            return b"".join(reversed(pieces))
        finally:
            self._close(fd)

    def _mapped(self, name: str, flags: int) -> mmap.mmap:
        fd = self._open(name)
        try:
            return mmap.mmap(fd, self._timed(os.fstat, fd).st_size, flags=flags, prot=mmap.PROT_READ)
        finally:
            self._close(fd)

    def _by_private_mmap(self, name: str) -> bytes:
        with self._mapped(name, mmap.MAP_PRIVATE) as mapped:
            return self._timed(mapped.read)

    def _by_shared_mmap(self, name: str) -> bytes:
        with self._mapped(name, mmap.MAP_SHARED) as mapped:
            return self._timed(mapped.read)

    def _twice(self, name: str) -> bytes:
        """Open, read a part, close, and open again: a second look gets the same sample."""
        fd = self._open(name)
        try:
            head = self._timed(os.read, fd, 100)
        finally:
            self._close(fd)
        whole = self._whole(name)
        if whole[: len(head)] != head:
            self._wrong(f"{name}: the second look got {whole[:40]!r}, the first {head[:40]!r}")
        return whole

    def _kept_open(self, name: str) -> bytes:
        """Leave the file open until the end of the epoch."""
        if len(self._kept) >= MOST_KEPT:
            return self._whole(name)
        fd = self._open(name)
        data = b"".join(self._pieces(fd, PIECE_BYTES))
        self._kept.append((name, data, fd))
        return data

    def _kept_mapped(self, name: str) -> bytes:
        """Leave the file mapped until the end of the epoch."""
        if len(self._kept) >= MOST_KEPT:
            return self._by_shared_mmap(name)
        mapped = self._mapped(name, self._own.choice([mmap.MAP_SHARED, mmap.MAP_PRIVATE]))
        data = self._timed(mapped.read)
        self._kept.append((name, data, mapped))
        return data

    def _beside_exact(self, name: str) -> bytes:
        """Read the exact file while the path is open."""
        fd = self._open(name)
        try:
            exact = self._whole(os.path.join(".redoxfs/exact", name))
            if exact != payload(name, self._job.largest_bytes):
                self._wrong(f"{name}: the exact file is another: {len(exact)} bytes, {exact[:40]!r}")
            return b"".join(self._pieces(fd, self._job.largest_bytes + 1))
        finally:
            self._close(fd)

    def _end_kept(self) -> None:
        """Read what was kept open once more, and close it."""
        for name, before, kept in self._kept:
            self._asked = name
            try:
                if isinstance(kept, int):
                    again = self._timed(os.pread, kept, len(before) + 1, 0)
                    self._close(kept)
                else:
                    kept.seek(0)
                    again = self._timed(kept.read)
                    kept.close()
            except OSError as error:
                self._error(f"{name}, kept open: {error}")
                continue
            if again != before:
                self._wrong(f"{name}: {len(again)} bytes, {again[:40]!r}, where {before[:40]!r} was before")
        self._kept.clear()


WAYS: dict[str, Callable[[Reader, str], bytes]] = {
    "whole": Reader._whole,
    "by stat": Reader._by_stat,
    "by fstat": Reader._by_fstat,
    "private mmap": Reader._by_private_mmap,
    "shared mmap": Reader._by_shared_mmap,
    "twice": Reader._twice,
    "kept open": Reader._kept_open,
    "kept mapped": Reader._kept_mapped,
    BESIDE_EXACT: Reader._beside_exact,
}


def read(job: Job, number: int, board: Board, meeting: Any, folder: Path) -> None:
    """A reader's life. BrokenBarrierError: another one has died."""
    # If a read of a mapped file fails, the kernel kills the reader. Then this says which.
    faulthandler.enable()
    reader = Reader(job, number, board)
    epoch = 0
    try:
        with suppress(BrokenBarrierError):
            while not board.has_stopped():
                reader.epoch(epoch)
                epoch += 1
                reader.meet(meeting)
    except Exception:
        meeting.abort()
        reader.told.errors += 1
        reader.told.messages.append(traceback.format_exc())
    (folder / f"reader-{number}.json").write_text(json.dumps(asdict(reader.told)))


def await_closed(job: Job) -> None:
    """Wait until all nodes have heard that the readers have closed their files, or for `CLOSED_S`.

    Until then the kernel answers stats of them with the sizes that the readers saw.
    """
    deadline_s = time.monotonic() + CLOSED_S
    for node in range(job.nodes):
        # The mount may be dead.
        with suppress(OSError, ValueError):
            stats = Path(job.mount_of(node), ".redoxfs/stats.json")
            while json.loads(stats.read_bytes())["open_files"] and time.monotonic() < deadline_s:
                time.sleep(0.01)


def main() -> int:
    """Run all readers. When one dies, the others end with the epoch."""
    folder = Path(sys.argv[1])
    job = Job(**json.loads((folder / "job.json").read_text()))
    board = Board(folder / "board", job.readers)

    def met() -> None:
        await_closed(job)
        board.decide()

    meeting = fork.Barrier(job.readers, met)
    running = {}
    for number in range(job.readers):
        process = fork.Process(target=read, args=(job, number, board, meeting, folder))
        process.start()
        running[process.sentinel] = (number, process)
    while running:
        for ended in wait(list(running)):
            assert isinstance(ended, int)
            number, process = running.pop(ended)
            process.join()
            if process.exitcode:
                print(f"reader {number} ended with {process.exitcode}", flush=True)
                board.failed(number)
                board.stop()
                meeting.abort()
    return 0


if __name__ == "__main__":
    sys.exit(main())
