"""The directory store: files stay in place, and a chunk is read as many file reads in flight at once.

Nothing is prepared, and only wanted files are read. The gain over random reads one by one is depth: the storage sees
as many requests as there are worker threads. The awaited sample is read first, the others in inode order, which on
most filesystems is close to the order on disk.

Whole samples are read in C (native/files.c). Any thread may call anything here. The only state is the descriptor.
"""

import errno
import os
import stat
from collections.abc import Sequence

import redoxfs.native._native as faults
from redoxfs.chunks.store import (
    Access,
    ChunkStore,
    FileBytes,
    NarrowedError,
    NativeRead,
    Read,
    SourceFile,
    Stamp,
    attempted,
)
from redoxfs.dataset import Catalog
from redoxfs.dataset.columns import native_tree
from redoxfs.linux.beneath import open_beneath
from redoxfs.linux.times import mtime_ns
from redoxfs.native import Files

_REASONS = {
    faults.NOT_REGULAR: "no longer a regular file",
    faults.CHANGED: "the file changed while it was read",
}


class DirectoryStore(ChunkStore):
    """Reads the samples of ``catalog`` from the tree under ``root_fd``. The caller closes ``root_fd``.

    ``guards``: no bytes of a file that fewer users may read than at the scan. For a mount of several users, where the
    kernel checks the modes of the scan.
    """

    depth = 32
    """Network storage and cloud volumes reach their full rate at 16 to 64 small reads in flight. A thread that waits
    for storage costs little."""

    most_depth: int | None = 128
    """What storage with a latency of tens of milliseconds gains from. Each read holds the memory of one file."""

    def __init__(self, catalog: Catalog, root_fd: int, *, guards: bool = False) -> None:
        self._tree = catalog.tree
        self._inode: memoryview[int] = catalog.tree.inode.data
        self._members: memoryview[int] = catalog.members.data
        self._member_at: memoryview[int] = catalog.member_at.data
        self._has_groups = len(catalog.members) != len(catalog.class_of)
        self._root_fd = root_fd
        self._guards = guards
        self.native = Files(native_tree(catalog), root_fd, stamp=Stamp, file=FileBytes, guards=guards)

    def reads(self, chunk: int, samples: Sequence[int]) -> Sequence[Read]:  # files have no chunk
        """One read for each sample: the first sample, then the others in inode order."""
        members, member_at, inode = self._members, self._member_at, self._inode
        placed = []
        for sample in samples:
            entry = members[member_at[sample]]
            placed.append((inode[entry], entry, sample))
        first = placed.pop(0)
        placed.sort()
        placed.insert(0, first)
        if self._has_groups:
            return [self._read_group(sample) for _, _, sample in placed]
        return [NativeRead((sample,), (entry,), None, self) for _, entry, sample in placed]

    def _read_group(self, sample: int) -> NativeRead:
        entries = self._members[self._member_at[sample] : self._member_at[sample + 1]].tolist()
        return NativeRead((sample,), entries, (len(entries),), self)

    def failure(self, entry: int, error: int, fault: int, *access: int) -> OSError:
        """See `NativeSource.failure`."""
        path = os.fsdecode(self._tree.path(entry))
        if access:
            return NarrowedError(path, Access(*access))
        return OSError(error, _REASONS.get(fault) or os.strerror(error), path)

    def read_range(self, sample: int, file: int, stamp: Stamp, offset: int, size: int) -> bytes:
        """Read bytes of one file again; an error if the file has changed."""
        path = self._tree.path(int(self._members[self._member_at[sample] + file]))
        return attempted(lambda: _read_part(self._root_fd, path, stamp, offset, size))

    def open_file(self, entry: int) -> SourceFile:
        """Open the file that has the entry's path now."""
        return attempted(lambda: self._opened(entry))

    def _opened(self, entry: int) -> SourceFile:
        fd = open_beneath(self._root_fd, self._tree.path(entry))
        try:
            return DirectoryFile(fd, _stamp(fd), _access(fd) if self._guards else None)
        except OSError:
            os.close(fd)
            raise


class DirectoryFile:
    """An open file of the source. It owns its descriptor. ``access``: who may read it, if that has to be checked."""

    def __init__(self, fd: int, stamp: Stamp, access: Access | None = None) -> None:
        self.stamp = stamp
        self.access = access
        self._fd = fd

    def read(self, offset: int, size: int) -> bytes:
        return attempted(lambda: self._read(offset, size))

    def _read(self, offset: int, size: int) -> bytes:
        data = _read(self._fd, offset, size)
        # The file may have become shorter; what has grown since the open may end anywhere.
        end = min(offset + size, self.stamp.size)
        if offset + len(data) < end and offset + len(data) < os.fstat(self._fd).st_size:
            raise OSError(errno.EIO, "the storage returned fewer bytes than the file has")
        return data

    def close(self) -> None:
        os.close(self._fd)


def _read_part(root_fd: int, path: bytes, stamp: Stamp, offset: int, size: int) -> bytes:
    fd = open_beneath(root_fd, path)
    try:
        data = _read(fd, offset, size)
        # Checked after the read: bytes written before the read must not pass for the content of the handle.
        if not stamp.is_of(_stamp(fd)) or len(data) != max(0, min(size, stamp.size - offset)):
            raise OSError(errno.ESTALE, "the file changed while it was open", os.fsdecode(path))
        return data
    finally:
        os.close(fd)


def _stamp(fd: int) -> Stamp:
    now = os.fstat(fd)
    if not stat.S_ISREG(now.st_mode):
        raise OSError(errno.EIO, "no longer a regular file")
    return Stamp(now.st_size, mtime_ns(now), now.st_ino)


def _access(fd: int) -> Access:
    now = os.fstat(fd)
    return Access(stat.S_IMODE(now.st_mode), now.st_uid, now.st_gid)


def _read(fd: int, offset: int, size: int) -> bytes:
    """Read ``size`` bytes from ``offset``, fewer where the file ends. No copy in the usual case of one read."""
    data = os.pread(fd, size, offset)
    if len(data) == size or not data:
        return data
    parts = [data]
    have = len(data)
    while have < size and (part := os.pread(fd, size - have, offset + have)):
        parts.append(part)
        have += len(part)
    return b"".join(parts)
