"""`redoxfs.served`: tells a script the file whose bytes an open returned, so that it can look up labels by name.

A mount answers an open of A with any file of A's class. While A is open, its answer does not change. So the result for
a descriptor is exact: with the page cache and without, after a fork, and whatever other threads open. The result for a
path is the answer to its last open by any process.

One read of `.redoxfs/served-by-inode` returns the answer. Users other than the one who mounted read `.redoxfs/served`
instead, where the modes of directories apply. `served` needs no ioctl, and no stat, which could reserve another sample:
``/proc/self/fdinfo`` has the number of the inode and the mount. Rejected: an extended attribute. The kernel would then
ask the daemon for every attribute that `ls -l` looks for.

This module stands above the rooms, as any program that uses redoxfs does, and imports nothing but the mount table.
"""

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import NamedTuple, Protocol, TypeAlias

from redoxfs.linux.mount_table import Mount, read_mounts

CONTROL_FILE = ".redoxfs/served-by-inode"

# As in redoxfs.fs.operations.
_INODE_BYTES = 4096

_NOT_OURS, _FORBIDDEN = -1, -2
"""In place of a descriptor of a control file."""


class SupportsFileno(Protocol):
    """An open file."""

    def fileno(self) -> int: ...


File: TypeAlias = int | SupportsFileno | str | os.PathLike[str]
"""A descriptor, an open file, or a path."""


class _Place(NamedTuple):
    """Where an open file lies: the number of its mount, and its inode."""

    mount_id: int
    inode: int


# By the number of a mount. Numbers are used again, so each look compares them with that of the control file.
_mounts: dict[int, Mount] = {}


def served(file: File, start: str | os.PathLike[str] | None = None) -> str:
    """The path of the file whose bytes an open of ``file`` returned.

    For an open file, or its descriptor, the result is exact while it is open. For a path, it is the answer to the last
    open of the path by any thread: exact if no other thread has opened it since.

    For a file that no redoxfs mount serves, the result is that file, so a script works with a mount and without.

    Args:
        file: a descriptor, an open file, or a path.
        start: a folder; the result is relative to it. None: the result is an absolute path without symlinks.

    Raises:
        OSError: the file cannot be opened or is closed, it is a directory, or the mount does not answer.
        LookupError: the path was not opened yet, or not since the mount's daemon was started again.
        ValueError: the file is one of `.redoxfs`, or the root of its mount is not visible to this process.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile(dir="/tmp", suffix=".jpg") as image:  # no mount is here
    ...     served(image) == image.name
    True
    """
    return served_many([file], start)[0]


def served_many(files: Iterable[File], start: str | os.PathLike[str] | None = None) -> list[str]:
    """As `served`, for several files. It opens the mount's control file once, and needs one read for each file.

    >>> served_many(["/proc/self/status", "/proc/self/stat"], "/proc/self")
    ['status', 'stat']
    """
    root = None if start is None else os.path.realpath(start)
    controls: dict[int, tuple[Mount, int]] = {}
    try:
        found = [_served(file, controls) for file in files]
    finally:
        for _, control in controls.values():
            if control >= 0:
                os.close(control)
    return found if root is None else [os.path.relpath(path, root) for path in found]


def _served(file: File, controls: dict[int, tuple[Mount, int]]) -> str:
    with _descriptor(file) as fd:
        place = _place(fd)
        if place.mount_id not in controls:
            controls[place.mount_id] = _control_of(place.mount_id)
        mount, control = controls[place.mount_id]
        if control == _NOT_OURS:
            return os.readlink(f"/proc/self/fd/{fd}")
        try:
            if control == _FORBIDDEN:
                answer = _served_at(os.readlink(f"/proc/self/fd/{fd}"), mount)
            else:
                answer = os.fsdecode(os.pread(control, _INODE_BYTES, place.inode * _INODE_BYTES))
        except OSError as error:
            if error.errno == errno.EINVAL:
                raise ValueError(f"{file}: is not a file of the dataset") from None
            raise OSError(error.errno, error.strerror, os.readlink(f"/proc/self/fd/{fd}")) from None
    if not answer:
        raise LookupError(f"{file}: the mount has not served it yet, or not since its daemon was started again")
    path = PurePosixPath("/", answer)
    if not path.is_relative_to(mount.root):
        raise ValueError(f"{file}: the file that was served, {answer}, lies outside of what is mounted here")
    return os.path.join(mount.mountpoint, path.relative_to(mount.root))


@contextmanager
def _descriptor(file: File) -> Iterator[int]:
    """A descriptor of ``file``. For a path it sends the mount neither an open nor a stat."""
    if isinstance(file, int):
        yield file
    elif isinstance(file, (str, os.PathLike)):
        fd = os.open(file, os.O_PATH | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)
    else:
        yield file.fileno()


def _place(fd: int) -> _Place:
    with open(f"/proc/self/fdinfo/{fd}", "rb", buffering=0) as info:
        fields = dict(line.split(b":", 1) for line in info.read(4096).splitlines() if b":" in line)
    # Linux before 5.14 does not list the inode here.
    inode = int(fields[b"ino"]) if b"ino" in fields else os.fstat(fd).st_ino
    return _Place(int(fields[b"mnt_id"]), inode)


def _control_of(mount_id: int) -> tuple[Mount, int]:
    """A mount, and a descriptor of its control file, `_NOT_OURS`, or `_FORBIDDEN` if another user mounted it."""
    known = _mounts.get(mount_id)
    if known is not None and known.ours:
        fd = _control_in(known)
        if fd != _NOT_OURS:
            return known, fd
    mounts = read_mounts()
    mount = next((each for each in mounts if each.mount_id == mount_id), None)
    if mount is None:
        raise ValueError("the file lies on a mount that this process does not see")
    _mounts[mount_id] = mount
    if not mount.ours:
        return mount, _NOT_OURS
    for other in sorted(mounts, key=lambda each: each.mount_id != mount_id):
        if other.device == mount.device and other.ours and other.root == "/":
            fd = _control_in(other)
            if fd != _NOT_OURS:
                return mount, fd
    raise ValueError(
        f"{mount.mountpoint}: the root of its redoxfs mount is not visible to this process, or it is older"
    )


def _control_in(mount: Mount) -> int:
    """As `_control_of`; `_NOT_OURS` if its path leads elsewhere now, or if it mounts a subfolder."""
    if mount.root != "/":
        return _NOT_OURS
    try:
        fd = os.open(os.path.join(mount.mountpoint, CONTROL_FILE), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return _NOT_OURS
    except PermissionError:
        return _FORBIDDEN
    if _place(fd).mount_id == mount.mount_id:
        return fd
    os.close(fd)
    return _NOT_OURS


def _served_at(path: str, mount: Mount) -> str:
    """The answer of a file of the dataset, for any user who may read it. Raises OSError, ValueError."""
    if mount.root != "/":
        raise ValueError(f"{path}: only the user who mounted can ask in a mount of a subfolder")
    relative = PurePosixPath(path).relative_to(mount.mountpoint)
    if relative.parts[:2] == (".redoxfs", "exact"):
        return os.path.join(*relative.parts[2:])
    if relative.parts[:1] == (".redoxfs",):
        raise OSError(errno.EINVAL, "is not a file of the dataset")
    with open(os.path.join(mount.mountpoint, ".redoxfs/served", relative), "rb", buffering=0) as told:
        if _place(told.fileno()).mount_id != mount.mount_id:
            raise ValueError(f"{path}: another mount covers its own")
        return os.fsdecode(told.read()[:-1])
