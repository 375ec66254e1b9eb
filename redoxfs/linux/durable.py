"""Files that are complete or absent after a crash or a power failure.

The order is always the same: write the new file, sync it, rename it into place, sync the directory. A rename is atomic,
so a reader sees the old content or the new; without the sync of the file before it, a power failure may leave the new
name with no content, and without that of the directory after it, the rename may be lost.
On filesystems that sync no directory (OrangeFS, shared folders of VirtualBox), a rename is as durable as they make it.
"""

import errno
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

from redoxfs.linux.descriptors import opened


def write_file(path: Path, data: bytes) -> None:
    """Write a new file, readable by its owner alone, through to the disk. Raises OSError if it exists."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Make renames in a directory, or into it, survive a power failure."""
    with opened(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        _sync_names(fd)


def _sync_names(folder_fd: int) -> None:
    try:
        os.fsync(folder_fd)
    except OSError as error:
        # The kernel's answer where a filesystem has no such call.
        if error.errno != errno.EINVAL:
            raise


def rename(source: Path, target: Path) -> None:
    """Rename a synced file, and make the rename survive a power failure."""
    source.rename(target)
    sync_directory(target.parent)


def replace(folder_fd: int, name: str, data: bytes) -> None:
    """Replace a file in an open folder, readable by its owner alone, through to the disk.

    Raises OSError; the file is then as it was.
    """
    # Random, since another host may write a file of this name in the same home.
    beside = f"{_beginning(name)}{secrets.token_hex(8)}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(beside, flags, 0o600, dir_fd=folder_fd), "wb", buffering=0) as file:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        os.replace(beside, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside, dir_fd=folder_fd)
        raise
    _sync_names(folder_fd)


def is_leftover(found: str, name: str) -> bool:
    """Whether ``found`` is the name of a new file that a killed process left when it replaced ``name``."""
    return re.fullmatch(re.escape(_beginning(name)) + r"[0-9a-f]{16}\.new", found) is not None


def _beginning(name: str) -> str:
    """Of the name of the new file, which is cut because its prefix and suffix could make it too long. It is cut in
    front, since a number that tells files apart is at the end."""
    return f".{name[-200:]}."
