"""Writes samples to a segment of the cache after readers have got them.

A thread writes the offered samples, some megabytes at a time: the bytes, then the batch of the index that names them
(`segments`). Readers never wait for it. If it falls behind, or the cache is full, it drops samples, and a later epoch
offers them again. If a write fails, it gives up with one line in the log.

`offer` may be called by any thread, `close` once.
"""

import errno
import fcntl
import logging
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from redoxfs.cache.copies import MOST_SEGMENTS, Copies
from redoxfs.cache.folder import Folder
from redoxfs.cache.segments import KEPT, TAKEN_BACK, encoded, encoded_bytes, read_batches, sums_of
from redoxfs.chunks import FileBytes
from redoxfs.packed.index import SUM_BLOCK_BYTES

BATCH_BYTES = 16 << 20
"""Size of one write. A crash loses at most that, and the samples that wait."""

LINGER_S = 0.5
"""How long a small batch waits for more."""

LOOK_S = 2.0
"""How often the writer looks for copies by other mounts, while it writes."""

FILE_BYTES = 1024
"""Memory of a file that waits, beside its bytes. It also limits the number of small files in one write."""

_IOV_MAX = 1024

_NOTHING = memoryview(b"\0")
"""Written for a sample of empty files, so that no two samples begin at one position, and their order is known."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Offered:
    """A sample that was read: its files with their entries, and the bytes of all files."""

    sample: int
    entries: Sequence[int]
    files: Sequence[FileBytes]
    size: int

    @property
    def held_bytes(self) -> int:
        """The memory that it takes."""
        return self.size + FILE_BYTES * len(self.files)


class Disk:
    """The system calls that change the cache. Tests replace it. All raise OSError."""

    def write(self, fd: int, parts: Sequence[memoryview], at: int) -> int:
        """Write some of ``parts``, and return how many bytes."""
        return os.pwritev(fd, parts, at)

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def resize(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)


class Writer:
    """Writes to a segment of ``folder``, which it takes or makes when it has the first batch.

    Args:
        most_bytes: of all segments in DIR together.
        most_waiting_bytes: the memory of samples that wait for the thread.
    """

    def __init__(
        self, folder: Folder, copies: Copies, *, most_bytes: int, most_waiting_bytes: int, disk: Disk | None = None
    ) -> None:
        self._folder = folder
        self._copies = copies
        self._most_bytes = most_bytes
        self._most_waiting_bytes = most_waiting_bytes
        self._disk = disk or Disk()
        # Its lock is reentrant: `_give_up` may be called with it.
        self._changed = threading.Condition()
        self._waiting: deque[Offered] = deque()
        self._waiting_bytes = 0
        self._taken_back: list[tuple[int, int, int]] = []
        self._again: set[int] = set()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._busy = False
        self._flushing = 0
        self._segment: Segment | None = None
        self._looked_at = 0.0
        self.written_bytes = 0
        self.left_out = 0
        self.is_full = False
        self.failure: OSError | None = None

    @property
    def name(self) -> str:
        """DIR, for messages."""
        return self._folder.root.name

    @property
    def is_over(self) -> bool:
        """Whether the writer has stopped."""
        return self.is_full or self.failure is not None or self._closing

    def offer(self, samples: Sequence[Offered], *, waits: bool = False) -> bool:
        """Samples of one load. ``waits``: until there is room for them. False if not all of them will be written.

        A load is taken as a whole or not at all, so that its samples lie side by side, unless it is larger than what
        may wait.
        """
        size = sum(sample.held_bytes for sample in samples)
        with self._changed:
            if waits:
                self._changed.wait_for(lambda: self.is_over or self._has_room(size))
            taken: Sequence[Offered] = () if self.is_over or not self._has_room(size) else samples
            if size > self._most_waiting_bytes:
                ends = accumulate(sample.held_bytes for sample in taken)
                # At least one, or a sample that is larger than that would never be kept.
                taken = taken[: max(1, sum(end <= self._most_waiting_bytes for end in ends))]
                size = sum(sample.held_bytes for sample in taken)
            self.left_out += len(samples) - len(taken)
            if taken:
                self._waiting.extend(taken)
                self._waiting_bytes += size
                self._start()
                self._changed.notify_all()
        return len(taken) == len(samples)

    def leave_out(self, samples: int) -> None:
        """So many samples were read and are not offered."""
        with self._changed:
            self.left_out += samples

    def take_back(self, what: tuple[int, int, int]) -> None:
        """A copy is damaged: later mounts must not use it."""
        with self._changed:
            self._taken_back.append(what)
            self._start()
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all offered samples are written, or given up."""
        with self._changed:
            self._flushing += 1
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self.failure is not None or not (self._waiting or self._taken_back or self._busy)
            )
            self._flushing -= 1

    def close(self, wait_s: float) -> None:
        """Write the samples that wait, for up to ``wait_s``, and end."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(wait_s)

    def _has_room(self, size: int) -> bool:
        return not self._waiting or self._waiting_bytes + size <= self._most_waiting_bytes

    def _start(self) -> None:
        """The thread starts with the first work: it would not outlive the fork of a daemon."""
        if self._thread is None and self.failure is None:
            thread = threading.Thread(target=self._run, name="redoxfs-cache", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # The caller has bytes for readers.
                self._give_up(OSError(errno.EAGAIN, "no thread can be started"))
            else:
                self._thread = thread

    def _run(self) -> None:
        try:
            while (work := self._next()) is not None:
                self._write(*work)
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()
        except OSError as failure:
            self._give_up(failure)
        except Exception:
            log.exception("a bug in redoxfs: please report it")
            self._give_up(OSError(errno.EIO, "the writer of the cache failed"))
        finally:
            if self._segment is not None:
                self._segment.close()

    def _next(self) -> tuple[list[Offered], list[tuple[int, int, int]]] | None:
        """What to write now; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._taken_back or self._closing)
            if not self._closing and self._waiting_bytes < BATCH_BYTES:
                self._changed.wait_for(
                    lambda: self._closing or self._flushing or self._waiting_bytes >= BATCH_BYTES, LINGER_S
                )
            if not self._waiting and not self._taken_back:
                return None
            batch: list[Offered] = []
            size = 0
            while self._waiting and (not batch or size + self._waiting[0].held_bytes <= BATCH_BYTES):
                batch.append(self._waiting.popleft())
                size += batch[-1].held_bytes
            self._waiting_bytes -= size
            taken_back, self._taken_back = self._taken_back, []
            self._busy = True
            self._changed.notify_all()
        return batch, taken_back

    def _give_up(self, failure: OSError) -> None:
        full = failure.errno in (errno.ENOSPC, errno.EDQUOT)
        with self._changed:
            self.failure = failure
            self._busy = False
            self._waiting.clear()
            self._waiting_bytes = 0
            self._changed.notify_all()
        segment = self._segment
        if segment is not None:
            with suppress(OSError):
                self._disk.resize(segment.data_fd, segment.data_end)
                self._disk.resize(segment.index_fd, segment.index_end)
        trouble = "its disk is full" if full else failure.strerror
        log.warning("%s: %s: nothing more is kept in this cache", self.name, trouble)

    def _write(self, batch: Sequence[Offered], taken_back: Sequence[tuple[int, int, int]]) -> None:
        if self.is_full:
            batch = ()
        now = time.monotonic()
        if now > self._looked_at + LOOK_S:
            self._looked_at = now
            self._copies.load()
        here = self._copies.here
        # A load may read a sample again, and another mount may have written it.
        wanted = {each.sample: each for each in batch if not here[each.sample] and each.sample not in self._again}
        # This process will not read their new copies, so readers would offer them for ever.
        self._again.update(sample for sample in wanted if not self._copies.can_be_added(sample))
        segment = self._segment
        if segment is None:
            segment = self._segment = Segment(self._folder, self._disk)
            # Its former writer may have added batches since.
            self._copies.load()
        if taken_back:
            segment.append(TAKEN_BACK, taken_back, [])
        if not wanted:
            return
        kept = self._reserved(segment, [*wanted.values()])
        if not kept:
            return
        at = segment.data_end
        files: list[tuple[int, int, int]] = []
        sums: list[int] = []
        parts: list[memoryview] = []
        for sample in kept:
            for entry, file in zip(sample.entries, sample.files, strict=True):
                data = memoryview(file.data)
                files.append((entry, at, len(data)))
                sums += sums_of(data)
                at += len(data)
                if len(data):
                    parts.append(data)
            if not sample.size:
                parts.append(_NOTHING)
                at += len(_NOTHING)
        _write_all(self._disk, segment.data_fd, parts, segment.data_end)
        self._disk.sync(segment.data_fd)
        os.posix_fadvise(segment.data_fd, segment.data_end, at - segment.data_end, os.POSIX_FADV_DONTNEED)
        segment.data_end = at
        segment.append(KEPT, files, sums)
        self._copies.add(segment.name, files, sums, segment.index_end)
        self.written_bytes += sum(sample.size for sample in kept)

    def _reserved(self, segment: "Segment", samples: list[Offered]) -> list[Offered]:
        """The first of ``samples``, for which there is room. Extends the segment for them."""
        with self._folder.root.reserving():
            room = self._most_bytes - self._folder.root.used_bytes() - encoded_bytes(0, 0)
            kept: list[Offered] = []
            size = 0
            for sample in samples:
                blocks = sum(-(-len(file.data) // SUM_BLOCK_BYTES) for file in sample.files)
                length = sample.size or len(_NOTHING)
                needs = length + encoded_bytes(len(sample.files), blocks) - encoded_bytes(0, 0)
                if needs > room:
                    break
                room -= needs
                size += length
                kept.append(sample)
            if size:
                self._disk.resize(segment.data_fd, segment.data_end + size)
        if len(kept) < len(samples):
            with self._changed:
                self.is_full = True
                self.left_out += len(samples) - len(kept)
                self._changed.notify_all()
            log.warning("%s: the cache is full; other samples are read from SOURCE", self.name)
        return kept


def _write_all(disk: Disk, fd: int, parts: Sequence[memoryview], at: int) -> None:
    rest = deque(parts)
    while rest:
        some = [rest[i] for i in range(min(len(rest), _IOV_MAX))]
        written = disk.write(fd, some, at)
        at += written
        while rest and written >= len(rest[0]):
            written -= len(rest.popleft())
        if written:
            rest[0] = rest[0][written:]


class Segment:
    """A segment that this process writes. Raises OSError."""

    def __init__(self, folder: Folder, disk: Disk) -> None:
        self._disk = disk
        self._seed = folder.seed
        self.name, self.data_fd = self._taken(folder)
        self.index_fd = -1
        try:
            self._go_on(folder)
        except OSError:
            self.close()
            raise

    def _go_on(self, folder: Folder) -> None:
        """Find where the batches end."""
        self.index_fd = folder.open(f"{self.name}.index", os.O_RDWR | os.O_CREAT)
        known = read_batches(self.index_fd, 0, folder.seed)
        self.index_end = known.end
        self.data_end = 0
        for batch in known.batches:
            if batch.magic == KEPT and len(batch.files):
                # With what stands in the place of empty files.
                ends = batch.files[:, 1] + np.maximum(batch.files[:, 2], len(_NOTHING))
                self.data_end = max(self.data_end, int(ends.max()))
        # Cut off the unfinished write of a former writer.
        self._disk.resize(self.index_fd, self.index_end)
        self._disk.resize(self.data_fd, self.data_end)

    def _taken(self, folder: Folder) -> tuple[str, int]:
        """Lock a segment that no process writes, or a new one. Returns its ID and descriptor."""
        names = folder.segments()
        for name in names:
            with suppress(OSError):
                fd = folder.open(f"{name}.data", os.O_RDWR)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    os.close(fd)
                    continue
                return name, fd
        if len(names) >= MOST_SEGMENTS:
            raise OSError(errno.EMFILE, "too many mounts write to it at once")
        name = secrets.token_hex(8)
        fd = folder.open(f"{name}.data", os.O_RDWR | os.O_CREAT | os.O_EXCL)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return name, fd

    def append(self, magic: int, files: Sequence[tuple[int, int, int]], sums: Sequence[int]) -> None:
        """Append a batch to the index."""
        batch = memoryview(encoded(magic, files, sums, self._seed))
        _write_all(self._disk, self.index_fd, [batch], self.index_end)
        self._disk.sync(self.index_fd)
        self.index_end += len(batch)

    def close(self) -> None:
        """Let other processes write it."""
        if self.index_fd >= 0:
            os.close(self.index_fd)
        os.close(self.data_fd)
