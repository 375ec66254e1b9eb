"""What every store of packed shards has in common: positions, sweeps, checksums, and files by blocks.

A store that derives from this knows how to read bytes of a shard: from files (`packed.store`), or from objects
(`redoxfs.objects.store`).

Any thread may call anything here.
"""

import errno
import os
from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

import redoxfs.native._native as faults
from redoxfs.chunks import ChunkStore, FileBytes, NativeRead, Read, SourceFile, Stamp, StorageSpeed
from redoxfs.chunks.store import Access
from redoxfs.dataset import show
from redoxfs.dataset.columns import native_tree
from redoxfs.native import Shards
from redoxfs.packed.index import SUM_BLOCK_BYTES, Index


class Sweep(NamedTuple):
    """Samples that are read in one sweep, all their files, and the number of files of each sample."""

    samples: list[int]
    entries: list[int]
    counts: list[int]


class ShardedStore(ChunkStore):
    """The samples of ``index`` in shards.

    Args:
        descriptors: int32[n]: of each shard, for `Shards`.
        most_bytes: where a sweep ends, at the next file; None: nowhere.
        guards: for archives, as in `DirectoryStore`.
    """

    def __init__(
        self,
        index: Index,
        speed: StorageSpeed,
        descriptors: npt.NDArray[np.int32],
        most_bytes: int | None = None,
        *,
        guards: bool = False,
    ) -> None:
        self._index = index
        self._speed = speed
        self._most_bytes = most_bytes
        self._shard_of: memoryview[int] = index.positions.shard.data
        self._data_at: memoryview[int] = index.positions.data_at.data
        self._members: memoryview[int] = index.catalog.members.data
        self._member_at: memoryview[int] = index.catalog.member_at.data
        self._size: memoryview[int] = index.catalog.tree.size.data
        self._mtime_ns: memoryview[int] = index.catalog.tree.mtime_ns.data
        self._inode: memoryview[int] = index.catalog.tree.inode.data
        self._sums: memoryview[int] = index.sums.data
        self._block_at: memoryview[int] = index.block_at.data
        self.native = Shards(
            native_tree(index.catalog),
            shards=descriptors,
            shard_of=index.positions.shard,
            data_at=index.positions.data_at,
            sums=index.sums,
            block_at=index.block_at[:-1],
            stamp=Stamp,
            file=FileBytes,
            versions=index.versions,
            guards=guards,
        )

    def reads(self, chunk: int, samples: Sequence[int]) -> Sequence[Read]:  # positions go by sample
        """The sweeps that take the least time on this storage. The sweep with the first sample comes first."""
        placed = []
        for sample in samples:
            files = self._as_they_lie(sample)
            placed.append((self._shard_of[files[0]], self._data_at[files[0]], sample, files))
        placed.sort()
        gap, most = self._speed.longest_gap_bytes, self._most_bytes
        sweeps: list[Sweep] = []
        in_shard, first, end = -1, 0, 0
        for shard, begin, sample, files in placed:
            files_end = self._data_at[files[-1]] + self._size[files[-1]]
            # Files of archives may lie among those of another sample, or be links to one file.
            if shard != in_shard or not 0 <= begin - end <= gap or (most is not None and files_end - first > most):
                sweeps.append(Sweep([], [], []))
                in_shard, first = shard, begin
            sweep = sweeps[-1]
            sweep.samples.append(sample)
            sweep.entries.extend(files)
            sweep.counts.append(len(files))
            end = files_end
        sweeps.sort(key=lambda sweep: samples[0] not in sweep.samples)
        return [self._read(sweep) for sweep in sweeps]

    def _described(self, sweep: Sweep) -> NativeRead:
        """A sweep as data."""
        return NativeRead(tuple(sweep.samples), sweep.entries, sweep.counts, self)

    def _as_they_lie(self, sample: int) -> list[int]:
        """The files of a sample, as they lie."""
        return self._members[self._member_at[sample] : self._member_at[sample + 1]].tolist()

    def failure(self, entry: int, error: int, fault: int) -> OSError:
        """See `NativeSource.failure`."""
        if fault == faults.ELSEWHERE:
            return self._is_elsewhere(entry)
        if fault == faults.WRONG_SUM:
            return self._is_wrong(entry, self._data_at[entry])
        return OSError(error, os.strerror(error))

    def read_range(self, sample: int, file: int, stamp: Stamp, offset: int, size: int) -> bytes:
        """Read bytes of one file of a sample again, checked."""
        entry = self._members[self._member_at[sample] + file]
        return self._read_part(entry, offset, min(size, max(0, stamp.size - offset)))

    def open_file(self, entry: int) -> SourceFile:
        """Any file of the tree. Opens nothing."""
        return PackedFile(self, entry, self._access(entry))

    def stamp(self, entry: int) -> Stamp:
        return Stamp(self._size[entry], self._mtime_ns[entry], self._inode[entry])

    def block(self, entry: int, number: int) -> bytes:
        """Read a block of a file, checked. A wrong one is read once more. Raises OSError."""
        begin = number * SUM_BLOCK_BYTES
        size = max(0, min(SUM_BLOCK_BYTES, self._size[entry] - begin))
        for again in (False, True):
            data = self._bytes_of(entry, begin, size, again=again)
            if len(data) == size and self._is_right(entry, memoryview(data), number):
                return data
        raise self._is_wrong(entry, self._data_at[entry] + begin)

    def _access(self, entry: int) -> Access | None:  # a pack has the modes of its files
        """Who may read a file now, if that has to be checked. Raises OSError."""
        return None

    @abstractmethod
    def _read(self, sweep: Sweep) -> Read:
        """The read of a sweep."""

    @abstractmethod
    def _bytes_of(self, entry: int, offset: int, size: int, *, again: bool) -> bytes:
        """Bytes of a file, unchecked, fewer where the shard ends. ``again``: from the storage, not from a cache."""

    def _read_part(self, entry: int, offset: int, size: int) -> bytes:
        """Read any bytes of a file. Reads and checks the whole blocks around them."""
        first, last = offset // SUM_BLOCK_BYTES, -(-(offset + size) // SUM_BLOCK_BYTES)
        blocks = b"".join(self.block(entry, number) for number in range(first, last))
        begin = offset - first * SUM_BLOCK_BYTES
        return blocks[begin : begin + size]

    def _is_right(self, entry: int, data: memoryview, block: int = 0) -> bool:
        """Whether ``data``, from block number ``block`` of the file, has the checksums from the pack."""
        first = self._block_at[entry] + block
        for number, at in enumerate(range(0, len(data), SUM_BLOCK_BYTES), first):
            if xxhash.xxh3_64_intdigest(data[at : at + SUM_BLOCK_BYTES]) != self._sums[number]:
                return False
        return True

    def _is_elsewhere(self, entry: int) -> OSError:
        return OSError(errno.ENOENT, f"{self._shard_name(entry)} is on another node")

    def _is_wrong(self, entry: int, at: int) -> OSError:
        name = show(self._index.catalog.tree.path(entry))
        return OSError(errno.EIO, f"{name}: wrong checksum in {self._shard_name(entry)} at {at}")

    def _shard_name(self, entry: int) -> str:
        return self._index.positions.shard_names[self._shard_of[entry]]


class PackedFile:
    """An open file that is not redirected. Keeps the last block, because readers ask for pieces of it in turn.

    ``access``: who may read it, if that has to be checked.
    """

    def __init__(self, store: ShardedStore, entry: int, access: Access | None = None) -> None:
        self.access = access
        self._store = store
        self._entry = entry
        self.stamp = store.stamp(entry)
        self._last: tuple[int, bytes] = (-1, b"")

    def read(self, offset: int, size: int) -> bytes:
        size = max(0, min(size, self.stamp.size - offset))
        parts = []
        while size > 0:
            number, begin = divmod(offset, SUM_BLOCK_BYTES)
            known, data = self._last
            if known != number:
                data = self._store.block(self._entry, number)
                self._last = (number, data)
            part = data[begin : begin + size]
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        self._last = (-1, b"")
