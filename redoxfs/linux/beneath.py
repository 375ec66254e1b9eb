"""Open a file or a directory under a directory descriptor, and never outside it.

Others may write to the source while it is served, so a scanned directory may have become a symlink to /etc when a
file in it is opened. openat2(2) resolves a whole path with the rule "beneath, and through no symlink" in one call;
Python has no binding for it. If the kernel or a seccomp filter refuses openat2, the path is walked component by
component, with the same result in more calls.
"""

import ctypes
import errno
import os
from collections.abc import Iterable
from functools import cache

from redoxfs.linux.descriptors import opened
from redoxfs.linux.libc import last_error, libc

OPENAT2 = 437
"""System call number, the same on every architecture that Linux 5.6 and later run on."""

RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08

FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
DIRECTORY_FLAGS = FLAGS | os.O_DIRECTORY
# A FIFO that replaced a file must not block the open.
FILE_FLAGS = FLAGS | os.O_NONBLOCK | os.O_NOCTTY


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_HOW = _OpenHow(FILE_FLAGS, 0, RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH)


def open_beneath(root_fd: int, path: bytes) -> int:
    """Open ``path`` (relative, with no symlink anywhere in it) under ``root_fd`` for reading; return the descriptor.

    Raises:
        OSError: as open(2); ELOOP where a component is a symlink.
    """
    if not has_openat2():
        return _walk(root_fd, path)
    while True:
        fd = libc.syscall(OPENAT2, root_fd, path, ctypes.byref(_HOW), ctypes.sizeof(_HOW))
        if fd >= 0:
            return int(fd)
        failure = last_error(os.fsdecode(path))
        # EAGAIN: something was renamed while the kernel checked "beneath".
        if failure.errno not in (errno.EINTR, errno.EAGAIN):
            raise failure


@cache
def has_openat2() -> bool:
    """Whether the kernel has openat2, and lets this process call it."""
    fd = libc.syscall(OPENAT2, -1, b".", ctypes.byref(_HOW), ctypes.sizeof(_HOW))
    return bool(fd < 0 and last_error().errno == errno.EBADF)


def open_directory(root_fd: int, names: Iterable[str | bytes]) -> int:
    """Open the directory that some names lead to from ``root_fd``, through no symlink; return the descriptor.

    Raises:
        OSError: as open(2); ELOOP or ENOTDIR where a name is that of a symlink.
    """
    at = os.open(".", DIRECTORY_FLAGS, dir_fd=root_fd)
    for name in names:
        try:
            inner = os.open(name, DIRECTORY_FLAGS, dir_fd=at)
        finally:
            os.close(at)
        at = inner
    return at


def _walk(root_fd: int, path: bytes) -> int:
    *directories, name = path.split(b"/")
    if b".." in directories or name in (b"", b".", b".."):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), os.fsdecode(path))
    with opened(open_directory(root_fd, directories)) as above:
        return os.open(name, FILE_FLAGS, dir_fd=above)
