"""The packed store: reads a chunk in one sweep over its part of a shard, straight into a buffer for each file.

C carries out a sweep (native/shards.c). Between the files are gaps: headers, and files that are not wanted. If only a
few of a chunk's samples are wanted, the sweep is cut at every gap that takes longer to read than to skip on this
storage (`chunks.storage_speed`).

The store does not fill the page cache: bytes go to one reader, and are not read again before the next epoch. If the
kernel has uncached reads (Linux 6.14, RWF_DONTCACHE), pages go as soon as they are copied; otherwise they are dropped
after the read. The kernel's readahead, which would fetch bytes after a chunk, is off.

A file's checksums are compared before its bytes are served. After a mismatch, the file is read once more, from the
storage rather than from a cache. If the mismatch stays, the read fails with EIO; the error names the file, the shard
and the offset, for the log.

Any thread may call anything here except `close`.
"""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

import redoxfs.native._native as faults
from redoxfs.chunks import FileBytes, NativeRead, Read, SourceFile, Stamp, StorageSpeed
from redoxfs.dataset import show
from redoxfs.dataset.columns import native_tree
from redoxfs.native import Shards
from redoxfs.packed.index import SUM_BLOCK_BYTES, Index

RWF_DONTCACHE = 0x80
"""A flag of preadv2(2), from linux/fs.h. Python has no name for it yet."""

NOT_HERE = -1
"""Takes the place of the descriptor of a shard that is on another node. `load_index` decides which may be absent."""


class _Sweep(NamedTuple):
    """Samples that are read in one sweep, all their files, and the number of files of each sample."""

    samples: list[int]
    entries: list[int]
    counts: list[int]


class PackedStore:
    """Reads the shards of ``index`` in ``folder``. Reads of an absent shard fail with ENOENT.

    Raises:
        OSError: a shard cannot be opened.
    """

    depth = 8
    """Sweeps in flight. One saturates a disk, a few saturate network storage. Each holds the memory of a chunk."""

    def __init__(self, index: Index, folder: Path, speed: StorageSpeed) -> None:
        self._index = index
        self._catalog = index.catalog
        self._speed = speed
        self._shard_of: memoryview[int] = index.positions.shard.data
        self._data_at: memoryview[int] = index.positions.data_at.data
        self._members: memoryview[int] = index.catalog.members.data
        self._member_at: memoryview[int] = index.catalog.member_at.data
        self._size: memoryview[int] = index.catalog.tree.size.data
        self._mtime_ns: memoryview[int] = index.catalog.tree.mtime_ns.data
        self._inode: memoryview[int] = index.catalog.tree.inode.data
        self._sums: memoryview[int] = index.sums.data
        self._block_at: memoryview[int] = index.block_at.data
        self._fds: list[int] = []
        self._native_fds = np.empty(0, np.int32)
        self._uncached = RWF_DONTCACHE
        try:
            for name in index.positions.shard_names:
                self._fds.append(_open_if_there(folder / name))
            self._native_fds = np.array(self._fds, np.int32)
            self.native = Shards(
                native_tree(index.catalog),
                shards=self._native_fds,
                shard_of=index.positions.shard,
                data_at=index.positions.data_at,
                sums=index.sums,
                block_at=index.block_at[:-1],
                stamp=Stamp,
                file=FileBytes,
            )
        except (OSError, ValueError):
            self.close()
            raise

    def close(self) -> None:
        """Close the shards. No read may be under way or follow."""
        for fd in self._fds:
            if fd != NOT_HERE:
                os.close(fd)
        self._fds.clear()
        self._native_fds.fill(NOT_HERE)

    def reads(self, chunk: int, samples: Sequence[int]) -> Sequence[Read]:  # noqa: ARG002 - positions go by sample
        """The sweeps that take the least time on this storage. The sweep with the first sample comes first."""
        placed = []
        for sample in samples:
            files = self._members[self._member_at[sample] : self._member_at[sample + 1]].tolist()
            placed.append((self._shard_of[files[0]], self._data_at[files[0]], sample, files))
        placed.sort()
        gap = self._speed.longest_gap_bytes
        sweeps: list[_Sweep] = []
        in_shard, end = -1, 0
        for shard, begin, sample, files in placed:
            if shard != in_shard or begin - end > gap:
                sweeps.append(_Sweep([], [], []))
                in_shard = shard
            sweep = sweeps[-1]
            sweep.samples.append(sample)
            sweep.entries.extend(files)
            sweep.counts.append(len(files))
            end = self._data_at[files[-1]] + self._size[files[-1]]
        sweeps.sort(key=lambda sweep: samples[0] not in sweep.samples)
        return [NativeRead(tuple(s.samples), s.entries, s.counts, self) for s in sweeps]

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
        return PackedFile(self, entry)

    def _fd_of(self, entry: int) -> int:
        fd = self._fds[self._shard_of[entry]]
        if fd == NOT_HERE:
            raise self._is_elsewhere(entry)
        return fd

    def _is_elsewhere(self, entry: int) -> OSError:
        return OSError(errno.ENOENT, f"{self._shard_name(entry)} is on another node")

    def _is_wrong(self, entry: int, at: int) -> OSError:
        name = show(self._catalog.tree.path(entry))
        return OSError(errno.EIO, f"{name}: wrong checksum in {self._shard_name(entry)} at {at}")

    def _shard_name(self, entry: int) -> str:
        return self._index.positions.shard_names[self._shard_of[entry]]

    def stamp(self, entry: int) -> Stamp:
        return Stamp(self._size[entry], self._mtime_ns[entry], self._inode[entry])

    # Parts of files

    def _preadv(self, fd: int, parts: list[memoryview], at: int) -> int:
        try:
            done = os.preadv(fd, parts, at, self._uncached)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL) or not self._uncached:
                raise
            self._uncached = 0
            done = os.preadv(fd, parts, at)
        if not self._uncached:
            os.posix_fadvise(fd, at, done, os.POSIX_FADV_DONTNEED)
        return done

    def _is_right(self, entry: int, data: memoryview, block: int = 0) -> bool:
        """Whether ``data``, from block number ``block`` of the file, has the checksums from the pack."""
        first = self._block_at[entry] + block
        for number, at in enumerate(range(0, len(data), SUM_BLOCK_BYTES), first):
            if xxhash.xxh3_64_intdigest(data[at : at + SUM_BLOCK_BYTES]) != self._sums[number]:
                return False
        return True

    def _read_again(self, entry: int, block: int, size: int) -> bytes:
        """Read ``size`` bytes from block number ``block`` on, from the storage, checked.

        Raises:
            OSError: EIO if their checksums are wrong.
        """
        fd, at = self._fd_of(entry), self._data_at[entry] + block * SUM_BLOCK_BYTES
        os.posix_fadvise(fd, at, size, os.POSIX_FADV_DONTNEED)
        data = self._pread(fd, at, size)
        if len(data) < size or not self._is_right(entry, memoryview(data), block):
            raise self._is_wrong(entry, at)
        return data

    def _pread(self, fd: int, at: int, size: int) -> bytes:
        try:
            data = bytearray(size)
        except MemoryError:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) from None
        buffer = memoryview(data)
        have = 0
        while have < size:
            done = self._preadv(fd, [buffer[have:]], at + have)
            if not done:
                break
            have += done
        return bytes(buffer[:have])

    def _read_part(self, entry: int, offset: int, size: int) -> bytes:
        """Read any bytes of a file. Reads and checks the whole blocks around them."""
        first, last = offset // SUM_BLOCK_BYTES, -(-(offset + size) // SUM_BLOCK_BYTES)
        blocks = b"".join(self.block(entry, number) for number in range(first, last))
        begin = offset - first * SUM_BLOCK_BYTES
        return blocks[begin : begin + size]

    def block(self, entry: int, number: int) -> bytes:
        """Read a block of a file, checked. Raises OSError."""
        begin = number * SUM_BLOCK_BYTES
        size = max(0, min(SUM_BLOCK_BYTES, self._size[entry] - begin))
        data = self._pread(self._fd_of(entry), self._data_at[entry] + begin, size)
        if len(data) == size and self._is_right(entry, memoryview(data), number):
            return data
        return self._read_again(entry, number, size)


def _open_if_there(path: Path) -> int:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return NOT_HERE
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    return fd


class PackedFile:
    """An open file that is not redirected. Keeps the last block, because readers ask for pieces of it in turn."""

    def __init__(self, store: PackedStore, entry: int) -> None:
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
