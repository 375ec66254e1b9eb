"""The directory store: files stay in place, and a chunk is read as many file reads in flight at once.

Nothing is prepared, and only wanted files are read. The gain over random reads one by one is depth: the storage sees
as many requests as there are worker threads. The awaited sample is read first, the others in inode order, which on
most filesystems is close to the order on disk.

Any thread may call anything here. The only state is the descriptor.
"""

import errno
import os
import stat
from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from redoxfs.chunks.beneath import open_beneath
from redoxfs.chunks.store import FileBytes, Payload, Read, SourceFile, Stamp
from redoxfs.dataset import Catalog

ATTEMPTS = 2
"""A failed read is retried once: after a network error the second attempt mostly succeeds."""

LONGEST_READ_BYTES = 0x7FFF_F000
"""Linux reads no more at once (read(2))."""


class DirectoryStore:
    """Reads the samples of ``catalog`` from the tree under ``root_fd``. The caller closes ``root_fd``."""

    depth = 32
    """Network storage and cloud volumes reach their full rate at 16 to 64 small reads in flight. A thread that waits
    for storage costs little."""

    def __init__(self, catalog: Catalog, root_fd: int) -> None:
        self._tree = catalog.tree
        self._members: npt.NDArray[np.int32] = catalog.members
        self._member_at: npt.NDArray[np.int64] = catalog.member_at
        self._root_fd = root_fd

    def reads(self, chunk: int, samples: Sequence[int]) -> Sequence[Read]:  # noqa: ARG002 - files have no chunk
        """One read for each sample: the first sample, then the others in inode order."""
        first, *rest = samples
        rest.sort(key=lambda s: int(self._tree.inode[self._members[self._member_at[s]]]))
        return [Read((s,), partial(self._read_sample, s)) for s in (first, *rest)]

    def read_range(self, sample: int, file: int, stamp: Stamp, offset: int, size: int) -> bytes:
        """Read bytes of one file again; an error if the file has changed."""
        path = self._tree.path(int(self._members[self._member_at[sample] + file]))
        for _ in range(ATTEMPTS):
            try:
                return _read_part(self._root_fd, path, stamp, offset, size)
            except OSError as error:
                failure = error
        raise failure

    def open_file(self, entry: int) -> SourceFile:
        """Open the file that has the entry's path now."""
        fd = open_beneath(self._root_fd, self._tree.path(entry))
        try:
            return DirectoryFile(fd, _stamp(fd))
        except OSError:
            os.close(fd)
            raise

    def _read_sample(self, sample: int) -> Sequence[Payload]:
        entries = self._members[self._member_at[sample] : self._member_at[sample + 1]].tolist()
        return [tuple(self._read_file(entry) for entry in entries)]

    def _read_file(self, entry: int) -> FileBytes | OSError:
        path = self._tree.path(entry)
        for _ in range(ATTEMPTS):
            try:
                data, stamp = _read_whole(self._root_fd, path)
            except OSError as error:
                # Drop the traceback: its frames hold the bytes read so far.
                failure = error.with_traceback(None)
            except MemoryError:
                failure = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), os.fsdecode(path))
            else:
                seen = (int(self._tree.size[entry]), int(self._tree.mtime_ns[entry]))
                return FileBytes(data, stamp, changed=(stamp.size, stamp.mtime_ns) != seen)
        return failure


class DirectoryFile:
    """An open file of the source. It owns its descriptor."""

    def __init__(self, fd: int, stamp: Stamp) -> None:
        self.stamp = stamp
        self._fd = fd

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._fd, size, offset)

    def close(self) -> None:
        os.close(self._fd)


def _read_part(root_fd: int, path: bytes, stamp: Stamp, offset: int, size: int) -> bytes:
    fd = open_beneath(root_fd, path)
    try:
        data = bytes(_read(fd, offset, size))
        # Checked after the read: bytes written before the read must not pass for the content of the handle.
        if not stamp.is_of(_stamp(fd)) or len(data) != max(0, min(size, stamp.size - offset)):
            raise OSError(errno.ESTALE, "the file changed while it was open", os.fsdecode(path))
        return data
    finally:
        os.close(fd)


def _read_whole(root_fd: int, path: bytes) -> tuple[bytes | memoryview, Stamp]:
    fd = open_beneath(root_fd, path)
    try:
        before = _stamp(fd)
        data = _read(fd, 0, before.size)
        # A file that is being written must not be returned half old, half new.
        if len(data) != before.size or _stamp(fd) != before:
            raise OSError(errno.EIO, "the file changed while it was read", os.fsdecode(path))
        return data, before
    finally:
        os.close(fd)


def _stamp(fd: int) -> Stamp:
    now = os.fstat(fd)
    if not stat.S_ISREG(now.st_mode):
        raise OSError(errno.EIO, "no longer a regular file")
    return Stamp(now.st_size, now.st_mtime_ns, now.st_ino)


def _read(fd: int, offset: int, size: int) -> bytes | memoryview:
    """Read ``size`` bytes from ``offset``, fewer where the file ends. One copy in the usual case of one read."""
    if size > LONGEST_READ_BYTES:
        return _read_long(fd, offset, size)
    data = os.pread(fd, size, offset)
    return data if len(data) == size or not data else _read_long(fd, offset, size)


def _read_long(fd: int, offset: int, size: int) -> memoryview:
    """As `_read`, in several reads into one buffer: joining parts would take the memory twice."""
    buffer = np.empty(size, np.uint8).data
    got = 0
    while got < size and (part := os.preadv(fd, [buffer[got : got + LONGEST_READ_BYTES]], offset + got)):
        got += part
    return buffer[:got].toreadonly()
