"""Passing a mount from the process that made it to the process that serves it.

Mounting takes privileges, serving does not. So `redoxfs csi` mounts, and `redoxfs serve` in a container without any
privilege receives the descriptor of /dev/fuse over a Unix socket. Each connection carries one request:

    settings   the arguments of `redoxfs mount` that the volume has
    mount      the descriptor (SCM_RIGHTS). The receiver answers ``ready`` when it serves, because only a privileged
               process may then widen the kernel's readahead

Settings and descriptor are two requests because a mount is prepared in between, which may take minutes and may fail.
Until then the descriptor stays with the process that mounted, and programs that use the mount wait.

A message is one JSON object with the version of this protocol, and one packet (SOCK_SEQPACKET). Either side may be
hostile: every wait has a deadline, and every message a maximal length.
"""

import errno
import json
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from redoxfs.launch.errors import FuseUnavailableError
from redoxfs.linux.descriptors import opened

VERSION = 1

SETTINGS, MOUNT = "settings", "mount"

ANSWER_S = 10.0
"""For the other side to send a message. It may have to look at the old mount for a few seconds, and to mount."""

MESSAGE_BYTES = 64 << 10
"""The longest message. Linux lets every user send packets of this length."""

RETRY_S = 0.2
"""Between two attempts to connect, while the other side starts."""

_READY = b"ready"


class ReceivedMount:
    """A mount that another process made, and ends. ``fd``: the descriptor of its requests."""

    number = None
    is_dead = False

    def __init__(self, fd: int, connection: socket.socket) -> None:
        self.fd = fd
        self._connection = connection

    def widen_readahead(self) -> None:
        """Tell the process that mounted that this one serves, so that it widens the readahead."""
        with suppress(OSError):
            self._connection.send(_READY)
        self._connection.close()

    def end(self) -> None:
        """Close the descriptor. Programs that still use the mount get errors."""
        self.close()

    def close(self) -> None:
        """Close the descriptor."""
        self._connection.close()
        os.close(self.fd)


# The side that serves


def receive_settings(path: Path, timeout_s: float) -> tuple[str, ...]:
    """What the volume whose socket is at ``path`` says about its mount, as arguments of `redoxfs mount`.

    Waits up to ``timeout_s`` until somebody listens there. Raises FuseUnavailableError.
    """
    with _asked(path, SETTINGS, timeout_s) as connection:
        answer, _ = _answer(path, connection)
    arguments = answer.get("arguments")
    if not isinstance(arguments, list) or not all(isinstance(each, str) for each in arguments):
        raise FuseUnavailableError(f"--fd-socket {path}: sent settings without arguments")
    return tuple(arguments)


def receive_mount(path: Path, timeout_s: float) -> ReceivedMount:
    """The mount of the volume whose socket is at ``path``; as `receive_settings`."""
    connection = _asked(path, MOUNT, timeout_s)
    try:
        _, descriptors = _answer(path, connection)
        if not descriptors:
            raise FuseUnavailableError(f"--fd-socket {path}: sent no descriptor")
    except BaseException:
        connection.close()
        raise
    (fd,) = descriptors
    os.set_inheritable(fd, False)
    return ReceivedMount(fd, connection)


def _asked(path: Path, what: str, timeout_s: float) -> socket.socket:
    deadline_s = time.monotonic() + timeout_s
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(ANSWER_S)
        try:
            _connect(connection, path)
            connection.send(_encoded(ask=what))
            return connection
        except OSError as failure:
            connection.close()
            if failure.errno not in (errno.ENOENT, errno.ECONNREFUSED, errno.EPIPE, errno.ECONNRESET):
                raise FuseUnavailableError(f"--fd-socket {path}: {failure.strerror or failure}") from None
            if time.monotonic() >= deadline_s:
                raise FuseUnavailableError(
                    f"--fd-socket {path}: nobody has listened there for {timeout_s:g} s ({failure.strerror}); "
                    "is the volume published on this node, and does the plugin run?"
                ) from None
        time.sleep(RETRY_S)


def _connect(connection: socket.socket, path: Path) -> None:
    """Connect by a short path, since that of a socket has 107 bytes at most."""
    with opened(os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as folder:
        connection.connect(f"/proc/self/fd/{folder}/{path.name}")


def _answer(path: Path, connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    try:
        data, descriptors, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, 1)
        if not data:
            raise FuseUnavailableError(f"--fd-socket {path}: closed the connection; see the log of the plugin")
        answer = _decoded(data)
    except OSError as failure:
        raise FuseUnavailableError(f"--fd-socket {path}: {failure.strerror or failure}") from None
    except ValueError as refusal:
        raise FuseUnavailableError(f"--fd-socket {path}: {refusal}") from None
    if "error" in answer:
        raise FuseUnavailableError(f"--fd-socket {path}: {answer['error']}")
    return answer, descriptors


# The side that mounted


def read_request(connection: socket.socket) -> str:
    """What a client asks for: SETTINGS or MOUNT. Raises OSError if no message comes, ValueError for a bad one."""
    data = connection.recv(MESSAGE_BYTES)
    if not data:
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
    what = _decoded(data).get("ask")
    if what not in (SETTINGS, MOUNT):
        raise ValueError(f"asks for neither {SETTINGS} nor {MOUNT}")
    return str(what)


def send_settings(connection: socket.socket, arguments: Sequence[str]) -> None:
    connection.send(_encoded(arguments=list(arguments)))


def send_mount(connection: socket.socket, fd: int) -> None:
    """Send the descriptor, which stays open here."""
    socket.send_fds(connection, [_encoded()], [fd])


def is_ready(connection: socket.socket) -> bool:
    """Wait until the client serves the mount; whether it does."""
    return connection.recv(len(_READY)) == _READY


def refuse(connection: socket.socket, why: str) -> None:
    """Answer with an error, for the log of the client."""
    with suppress(OSError):
        connection.send(_encoded(error=why))


def _encoded(**fields: Any) -> bytes:
    return json.dumps({"redoxfs": VERSION, **fields}).encode()


def _decoded(data: bytes) -> dict[str, Any]:
    """A message. Raises ValueError."""
    try:
        message = json.loads(data)
        version = message["redoxfs"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError("a message is not one of redoxfs") from None
    if version != VERSION:
        raise ValueError(
            f"the other side speaks version {version!r} of the handover, and this one {VERSION}; "
            "run the same redoxfs in the plugin and in the sidecar"
        )
    assert isinstance(message, dict)
    return message
