"""What a mount serves in `.redoxfs`, which may be another user's mount, of a daemon that lies.

Such a daemon may serve symlinks, and would have root read the file that one leads to and show it. So nothing here
follows a symlink or leaves the mount. Root reads as the user who mounted, who sees no more that way than before;
without allow_other the kernel would not let root in at all. The files are read in a child, with a deadline, and
bounded: call this while the process has a single thread.
"""

import errno
import json
import os
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from redoxfs.launch.deadline import MOST_BYTES, run_in_child
from redoxfs.launch.errors import DaemonError
from redoxfs.launch.path_status import CONTROL_FOLDER
from redoxfs.launch.say import plain
from redoxfs.linux.beneath import open_beneath
from redoxfs.linux.descriptors import opened
from redoxfs.linux.mount_table import Mount, mount_id_of, read_mounts, topmost_at
from redoxfs.linux.parent import signal_at_the_parents_end
from redoxfs.linux.pids import pid_namespace

WRONG = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What follows from statistics that have another form than ours."""


def read_control(mount: Mount, name: str, timeout_s: float, most_bytes: int = MOST_BYTES) -> bytes:
    """The bytes of a file of a mount's `.redoxfs`.

    Raises OSError: the file's own, TimeoutError, EFBIG for more than ``most_bytes``, ELOOP if it is a symlink, ESTALE
    if the mount is not at its mountpoint any more.
    """

    def read() -> bytes:
        with open(_opened(mount, name), "rb", buffering=0) as file:
            data = bytearray()
            while part := file.read(1 << 20):
                data += part
                if len(data) > most_bytes:
                    raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return bytes(data)

    return run_in_child(read, timeout_s)


def read_control_at(mountpoint: Path, name: str, timeout_s: float) -> bytes:
    """As `read_control`, of the redoxfs mount at a path without symlinks; ENOENT if there is none."""
    mount = topmost_at(mountpoint, read_mounts())
    if mount is None or not mount.ours:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    return read_control(mount, name, timeout_s)


def open_control(mount: Mount, name: str, timeout_s: float) -> int:
    """A non-blocking descriptor of a file of a mount's `.redoxfs`. Raises OSError, as `read_control`."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)

    def send() -> bytes:
        fd = _opened(mount, name)
        socket.send_fds(theirs, [b"+"], [fd])
        return b""

    with ours, theirs:
        run_in_child(send, timeout_s)
        _, received, _, _ = socket.recv_fds(ours, 1, 1)
    (fd,) = received
    os.set_inheritable(fd, False)
    return fd


def parsed_stats(text: bytes) -> dict[str, Any]:
    """The content of a stats.json, with texts that may be shown. Raises one of `WRONG`."""
    return plain_stats(json.loads(text, parse_constant=_no_number))


def plain_stats(stats: dict[str, Any]) -> dict[str, Any]:
    """Statistics without control characters in texts and names. Raises one of `WRONG`."""
    return {plain(name): with_texts(value, plain) for name, value in stats.items()}


def with_texts(value: Any, shown: Callable[[str], str]) -> Any:
    """A value from JSON, with each text and each name in it as ``shown`` writes it."""
    match value:
        case str():
            return shown(value)
        case dict():
            return {shown(name): with_texts(each, shown) for name, each in value.items()}
        case list():
            return [with_texts(each, shown) for each in value]
    return value


def pid_here(stats: dict[str, Any]) -> int | None:
    """The number that the process of these statistics has here; None if it counts in another pid namespace.

    Of an older redoxfs, which does not say where it counts, it is the one that it says. Raises one of `WRONG`.
    """
    here = pid_namespace()
    return int(stats["pid"]) if stats.get("pid_namespace", here) == here else None


@contextmanager
def understood(path: Path | str) -> Iterator[None]:
    """The block uses the statistics of the mount at ``path``. Raises DaemonError if they have another form."""
    try:
        yield
    except WRONG as error:
        raise DaemonError(
            f"{path}: its statistics are not those of a redoxfs mount: {type(error).__name__}: {error}"
        ) from None


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _opened(mount: Mount, name: str) -> int:
    """In a child, which becomes the user who mounted."""
    # The root of a FUSE mount is opened without a request, and so without asking who does.
    with opened(os.open(mount.mountpoint, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)) as root:
        if mount_id_of(root) != mount.mount_id:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        if mount.owner is not None:
            become(*mount.owner)
        fd = open_beneath(root, f"{CONTROL_FOLDER}/{name}".encode())
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return fd


def become(user: int, group: int) -> None:
    """In a child of root's process (`run_in_child`): have no more rights than ``user``. Others are that user."""
    if os.geteuid() != 0 or user == 0:
        return
    # In a container, root may not be able to.
    with suppress(PermissionError):
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
    # The kernel has forgotten it.
    signal_at_the_parents_end(signal.SIGKILL)
