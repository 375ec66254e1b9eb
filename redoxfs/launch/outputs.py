"""Files that a command writes where the user says."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redoxfs.launch.errors import DestinationError, UsageError
from redoxfs.launch.path_status import path_status
from redoxfs.linux.descriptors import opened


def outside(name: str, timeout_s: float, option: str = "") -> Path:
    """The absolute path of a file, in a folder outside every redoxfs mount: its daemon would wait for itself."""
    path = os.path.abspath(name)
    folder = path_status(os.path.dirname(path), timeout_s)
    if not os.path.basename(path) or name.endswith("/"):
        raise UsageError(f"{option}{name}: is not a file name")
    if folder.ours is not None:
        raise UsageError(f"{option}{name}: lies in the redoxfs mount at {folder.ours.mountpoint}; choose another place")
    if folder.trouble is not None:
        raise UsageError(f"{option}{name}: {folder.path}: {folder.trouble}")
    return folder.path / os.path.basename(path)


@contextmanager
def opened_folder(path: Path) -> Iterator[int]:
    """A descriptor of a folder, by which a daemon writes there, whatever it sees at ``path``.

    Raises DestinationError.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as failure:
        raise DestinationError(f"{path}: {failure.strerror}") from None
    with opened(fd):
        yield fd


def check_replaceable(path: Path, asked: str, begin: bytes, what: str) -> None:
    """Refuse to replace a file, unless it is empty or begins with ``begin``, as all files of its kind do.

    Raises DestinationError. Its text calls the kind ``what``.
    """
    try:
        # Neither the open of a FIFO nor that of a device may wait.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as failure:
        raise DestinationError(f"{asked}: {failure.strerror}") from None
    try:
        is_file = stat.S_ISREG(os.fstat(fd).st_mode)
        found = os.read(fd, len(begin)) if is_file else b""
    except OSError as failure:
        raise DestinationError(f"{asked}: {failure.strerror}") from None
    finally:
        os.close(fd)
    if not is_file:
        raise DestinationError(f"{asked}: is not a regular file")
    if found not in (b"", begin):
        raise DestinationError(f"{asked}: is there, and is no {what}; remove it, or choose another name")
