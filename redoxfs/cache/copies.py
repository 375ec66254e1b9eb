"""A store of the samples in the segments of a dataset's cache.

An entry gets its position once and keeps it while the process lives: threads in C may be reading there. After a copy
turns out to be damaged, the store never uses it again (`forget`). Its sample may be written again, for later mounts.

Any thread may call anything here; `load` and `add` are called by one thread at a time.
"""

import os
import stat
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from redoxfs.arrays import distinct, is_in, ranges
from redoxfs.cache.folder import Folder
from redoxfs.cache.segments import KEPT, TAKEN_BACK, Batch, blocks_of, read_batches
from redoxfs.chunks import Cells, NativeRead, Read, StorageSpeed
from redoxfs.dataset import Catalog
from redoxfs.packed.index import Index, block_offsets
from redoxfs.packed.positions import Positions
from redoxfs.packed.sharded import ShardedStore, Sweep

MOST_SEGMENTS = 1024
"""Further ones are not read."""

_FEW = 6
"""Below this power of two as a share of all files, sorting takes less time than an array of all files."""

LOCAL_DISK = StorageSpeed(seek_s=0.0005, bytes_per_s=400e6)
"""Between rotating and solid-state disks: gaps of up to 200 kB are read, not skipped."""


@dataclass(slots=True)
class _Opened:
    """A segment that is open for reads. ``read_to``: the end of the known batches of its index."""

    name: str
    data_fd: int
    index_fd: int
    read_to: int = 0


class Copies(ShardedStore):
    """Reads the copies in ``folder``.

    ``here``    by sample: 1 if it is here
    ``number``  how many samples are here
    """

    def __init__(self, catalog: Catalog, cells: Cells, folder: Folder) -> None:
        self._folder = folder
        entries = len(catalog.tree)
        self._regular = catalog.tree.kind_mask(stat.S_IFREG)
        self._tree_size = catalog.tree.size
        self._sample_of = catalog.sample_of
        self._shard = np.full(entries, -1, np.int32)
        self._at = np.zeros(entries, np.int64)
        self._first_block = block_offsets(catalog.tree)
        self._all_sums = np.zeros(int(self._first_block[-1]), np.uint64)
        self._fds = np.full(MOST_SEGMENTS, -1, np.int32)
        self._segments: list[_Opened] = []
        self._by_name: dict[str, int] = {}
        # Revoked copies: by the number of a segment, their positions.
        self._taken_back: dict[int, set[int]] = {}
        self._lock = threading.Lock()
        self._catalog = catalog
        self._files = np.diff(catalog.member_at)
        self._are_single = bool((self._files == 1).all())
        self.here = bytearray(len(catalog.class_of))
        self.number = 0
        self.size = 0
        self.damaged_bytes = 0
        positions = Positions(self._shard, self._at, (), ())
        index = Index(catalog, cells, positions, self._all_sums, self._first_block, 0, {}, "")
        super().__init__(index, LOCAL_DISK, self._fds)

    def load(self) -> None:
        """Read the batches that were written since the last call. Raises OSError."""
        known = set(self._by_name)
        for name in self._folder.segments():
            if name not in known and len(self._segments) < MOST_SEGMENTS:
                self._open(name)
        found: list[tuple[int, list[Batch]]] = []
        for number, segment in enumerate(self._segments):
            if os.fstat(segment.index_fd).st_size > segment.read_to:
                read = read_batches(segment.index_fd, segment.read_to, self._folder.seed)
                segment.read_to = read.end
                self.damaged_bytes += read.damaged_bytes
                found.append((number, read.batches))
        # First, since a batch may take back what another segment has.
        for _, batches in found:
            for batch in batches:
                if batch.magic == TAKEN_BACK:
                    for name, at, _ in batch.files.tolist():
                        self._taken_back.setdefault(name, set()).add(at)
        for number, batches in found:
            self._add(number, batches)

    def add(self, name: str, files: Sequence[tuple[int, int, int]], sums: Sequence[int], index_end: int) -> None:
        """This process has written a batch to a segment. Raises OSError."""
        if name not in self._by_name:
            self._open(name)
        number = self._by_name[name]
        self._segments[number].read_to = index_end
        self._add(number, [Batch(KEPT, np.array(files, np.int64).reshape(-1, 3), np.array(sums, np.uint64))])

    def forget(self, sample: int) -> tuple[int, int, int] | None:
        """The copy of a sample is damaged. Returns the row that takes it back (`TAKEN_BACK`), once."""
        with self._lock:
            if not self.here[sample]:
                return None
            self.here[sample] = 0
            self.number -= 1
            files = self._members[self._member_at[sample] : self._member_at[sample + 1]].tolist()
            self.size -= sum(self._size[file] for file in files)
            entry = files[0]
            return signed(self._segments[self._shard_of[entry]].name), self._data_at[entry], 0

    def can_be_added(self, sample: int) -> bool:
        """Whether no copy of it was ever found."""
        return self._shard_of[self._members[self._member_at[sample]]] < 0

    def close(self) -> None:
        """Close the segments. No read may be under way or follow."""
        for segment in self._segments:
            os.close(segment.data_fd)
            os.close(segment.index_fd)
        self._segments.clear()
        self._fds.fill(-1)

    def _open(self, name: str) -> None:
        data_fd = self._folder.open(f"{name}.data", os.O_RDONLY)
        try:
            index_fd = self._folder.open(f"{name}.index", os.O_RDONLY)
        except OSError:
            os.close(data_fd)
            raise
        os.posix_fadvise(data_fd, 0, 0, os.POSIX_FADV_RANDOM)
        self._fds[len(self._segments)] = data_fd
        self._by_name[name] = len(self._segments)
        self._segments.append(_Opened(name, data_fd, index_fd))

    def _add(self, number: int, batches: Sequence[Batch]) -> None:
        """Add batches of a segment, as far as they fit the tree and the segment. There may be 10,000 of them."""
        batches = [batch for batch in batches if batch.is_sound]
        if not batches:
            return
        entries, at, sizes = np.concatenate([batch.files for batch in batches]).T
        sums = np.concatenate([batch.sums for batch in batches])
        batch_of = np.repeat(np.arange(len(batches)), [len(batch.files) for batch in batches])
        blocks = blocks_of(sizes)
        first = np.cumsum(blocks) - blocks
        segment = self._segments[number]
        length = os.fstat(segment.data_fd).st_size
        fits = (entries >= 0) & (entries < len(self._shard)) & (at >= 0) & (at <= length - sizes)
        known = np.where(fits, entries, 0)
        fits &= self._regular[known] & (self._tree_size[known] == sizes)
        fits &= (self._shard[known] < 0) & (self._sample_of[known] >= 0)
        if taken_back := self._taken_back.get(signed(segment.name)):
            # An empty file at the end of a sample lies where the next sample begins, and is never damaged.
            fits &= (sizes == 0) | ~is_in(at, np.fromiter(taken_back, np.int64))
        rows = self._whole(np.flatnonzero(fits), entries, batch_of)
        entries, at, blocks, first = entries[rows], at[rows], blocks[rows], first[rows]
        self._all_sums[ranges(self._first_block[entries], blocks)] = sums[ranges(first, blocks)]
        self._at[entries] = at
        self._shard[entries] = number
        samples = self._sample_of[entries]
        self._note(samples if self._are_single else distinct(samples))

    def _whole(
        self, rows: npt.NDArray[np.intp], entries: npt.NDArray[np.int64], batch_of: npt.NDArray[np.intp]
    ) -> npt.NDArray[np.intp]:
        """The ``rows`` from the first batch that has all files of their sample, each once."""
        if self._are_single and len(rows) < len(self._shard) >> _FEW:
            _, once = np.unique(entries[rows], return_index=True)
            return rows[once]
        if self._are_single:
            # Without sorting: of several rows the one that is assigned last stays.
            row_of = np.full(len(self._shard), -1, np.intp)
            row_of[entries[rows][::-1]] = rows[::-1]
            return row_of[row_of >= 0]
        # A file may be in a batch once.
        _, once = np.unique(batch_of[rows] * len(self._shard) + entries[rows], return_index=True)
        rows = rows[once]
        samples = self._sample_of[entries[rows]].astype(np.int64)
        in_batch, group_of, files = np.unique(
            batch_of[rows] * len(self._files) + samples, return_inverse=True, return_counts=True
        )
        sample_of_group = in_batch % len(self._files)
        # A batch has all files of a sample. Without one of them, the others do not count either.
        whole = np.flatnonzero(files == self._files[sample_of_group])
        _, earliest = np.unique(sample_of_group[whole], return_index=True)
        is_chosen = np.zeros(len(in_batch), bool)
        is_chosen[whole[earliest]] = True
        return rows[is_chosen[group_of]]

    def _note(self, samples: npt.NDArray[np.integer]) -> None:
        """Files of these samples were added."""
        is_single = self._files[samples] == 1
        with self._lock:
            # Nearly all, without a loop.
            here = np.frombuffer(self.here, np.uint8)
            single = samples[is_single]
            single = single[here[single] == 0]
            here[single] = 1
            self.number += len(single)
            self.size += int(self._tree_size[self._catalog.members[self._catalog.member_at[single]]].sum())
            for sample in samples[~is_single].tolist():
                files = self._members[self._member_at[sample] : self._member_at[sample + 1]].tolist()
                if self._is_whole(files) and not self.here[sample]:
                    self.size += sum(self._size[file] for file in files)
                    self.here[sample] = 1
                    self.number += 1

    def _is_whole(self, files: list[int]) -> bool:
        """Whether the files of a sample are here, side by side."""
        shard, at = self._shard_of[files[0]], self._data_at[files[0]]
        if shard < 0:
            return False
        for file in files:
            if self._shard_of[file] != shard or self._data_at[file] != at:
                return False
            at += self._size[file]
        return True

    def _read(self, sweep: Sweep) -> Read:
        return NativeRead(tuple(sweep.samples), sweep.entries, sweep.counts, self)

    def _bytes_of(self, entry: int, offset: int, size: int, *, again: bool) -> bytes:
        fd = int(self._fds[self._shard_of[entry]])
        at = self._data_at[entry] + offset
        if again:
            os.posix_fadvise(fd, at, size, os.POSIX_FADV_DONTNEED)
        data = b""
        while len(data) < size and (part := os.pread(fd, size - len(data), at + len(data))):
            data += part
        return data

    def _shard_name(self, entry: int) -> str:
        return f"{self._segments[self._shard_of[entry]].name}.data"


def signed(name: str) -> int:
    """The ID of a segment as a number that fits int64."""
    number = int(name, 16)
    return number - (1 << 64) if number >> 63 else number
