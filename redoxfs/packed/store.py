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
from pathlib import Path

import numpy as np

from redoxfs.chunks import Read, SourceFile, StorageSpeed
from redoxfs.chunks.store import attempted
from redoxfs.packed.index import Index
from redoxfs.packed.sharded import ShardedStore, Sweep

RWF_DONTCACHE = 0x80
"""A flag of preadv2(2), from linux/fs.h. Python has no name for it yet."""

NOT_HERE = -1
"""Takes the place of the descriptor of a shard that is on another node. `load_index` decides which may be absent."""


class PackedStore(ShardedStore):
    """Reads the shards of ``index`` in ``folder``. Reads of an absent shard fail with ENOENT.

    Raises:
        OSError: a shard cannot be opened.
    """

    depth = 8
    """Sweeps in flight. One saturates a disk, a few saturate network storage. Each holds the memory of a chunk."""

    most_depth = 32
    """Storage with a latency of milliseconds gains from more sweeps."""

    def __init__(self, index: Index, folder: Path, speed: StorageSpeed, *, guards: bool = False) -> None:
        self._fds: list[int] = []
        self._native_fds = np.empty(0, np.int32)
        self._uncached = RWF_DONTCACHE
        try:
            for name in index.positions.shard_names:
                self._fds.append(_open_if_there(folder / name))
            self._native_fds = np.array(self._fds, np.int32)
            super().__init__(index, speed, self._native_fds, guards=guards)
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

    def open_file(self, entry: int) -> SourceFile:
        if self._size[entry] and self._fds[self._shard_of[entry]] == NOT_HERE:
            raise self._is_elsewhere(entry)
        return super().open_file(entry)

    def _read(self, sweep: Sweep) -> Read:
        return self._described(sweep)

    def _bytes_of(self, entry: int, offset: int, size: int, *, again: bool) -> bytes:
        fd = self._fds[self._shard_of[entry]]
        if fd == NOT_HERE:
            raise self._is_elsewhere(entry)
        at = self._data_at[entry] + offset

        def read() -> bytes:
            if again:
                os.posix_fadvise(fd, at, size, os.POSIX_FADV_DONTNEED)
            return self._pread(fd, at, size)

        return attempted(read)

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


def _open_if_there(path: Path) -> int:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return NOT_HERE
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    return fd
