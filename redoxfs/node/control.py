"""The control socket: requests of users that a read-only mount cannot take through a file.

A Unix socket of mode 0600. Each side sends one JSON object on a line. `{"do": "stop"}` ends the node as SIGTERM does. A
verb that takes data has their length: `{"do": "trace", "bytes": N}`, and N bytes follow the line. `"mount"` may have
the device number of the mount that is meant, such as "0:52"; the daemon of another mount refuses. The answer is
`{"ok": true}` with the results of the verb, or `{"error": "…"}`. A line longer than the limit, a line that is no such
object, and a client that pauses for `TIMEOUT_S` get an error, and the connection is closed. With the line may come a
descriptor of the folder of a file that the verb is to write: a client in a container, or in a job with a `/tmp` of its
own, has another folder at that path. The client is `redoxfs.launch.control`.
"""

import errno
import json
import logging
import os
import socket
from array import array
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import trio

from redoxfs.linux.pids import pid_of_peer

LINE_LIMIT_BYTES = 64 * 1024
"""Far more than any request. A whole line is held in memory."""

DATA_LIMIT_BYTES = 1 << 30
"""The paths of an epoch of 13 million files, with room."""

TIMEOUT_S = 10.0
"""For the request, and for each next piece of it: an idle connection must not stay open forever."""

PIECE_BYTES = 1 << 16

LOOK_S = 1.0
"""Between two looks whether the socket is there, and between two tries to make it."""

Verb = Callable[[bytes], Awaitable[Mapping[str, Any]]]
"""Takes the data of the request and returns the results. Raises ValueError with one line for the user."""

CLIENT: ContextVar[int] = ContextVar("CLIENT", default=0)
"""In a verb: the process that asks; 0 if its pid namespace cannot be seen from here."""

_FOLDER: ContextVar[int | None] = ContextVar("_FOLDER", default=None)
"""In a verb: the descriptor of a folder that came with the request."""

_OF_SEVERAL_NODES = frozenset({"nodes", "trace"})
"""Verbs of a mount with --nodes only."""

log = logging.getLogger(__name__)


def clients_file(path: Path) -> Path:
    """In a verb: a path to the file that the client calls ``path``, for as long as the verb runs.

    Messages to the client name ``path`` itself.
    """
    folder = _FOLDER.get()
    return path if folder is None else Path(f"/proc/self/fd/{folder}/{path.name}")


async def serve_control(
    path: Path,
    verbs: Mapping[str, Verb],
    *,
    device: str | None = None,
    look: Callable[[], None] = lambda: None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Listen at ``path`` until cancelled, then remove it.

    A socket at which another daemon listens stays. If this one's socket vanishes, or cannot be made, the mount serves
    on, and another try follows every `LOOK_S`.

    Args:
        device: the number of the mount's device; requests for another mount are refused.
        look: called before each look at the socket; makes what the socket needs, such as its folder.
    """

    async def answer(stream: trio.SocketStream) -> None:
        CLIENT.set(pid_of_peer(stream.socket))
        try:
            reply = await _answer(_Incoming(stream), verbs, device)
            with trio.fail_after(TIMEOUT_S):
                await stream.send_all(json.dumps(reply).encode() + b"\n")
        except (trio.TooSlowError, trio.BrokenResourceError) as error:
            log.warning("a control connection ended: %r", error)

    told = ""
    has_started = False

    def begin() -> None:
        nonlocal has_started
        if not has_started:
            task_status.started()
        has_started = True

    async with trio.open_nursery() as answering:
        while True:
            try:
                look()
                with _Listening(path) as listening:
                    if told or has_started:
                        log.info("listening at %s again", path)
                    told = ""
                    begin()
                    async with trio.open_nursery() as nursery:
                        listener = trio.SocketListener(listening.socket)
                        nursery.start_soon(partial(trio.serve_listeners, handler_nursery=answering), answer, [listener])
                        while listening.is_there():
                            await trio.sleep(LOOK_S)
                            with suppress(OSError, CannotListenError):
                                look()
                        nursery.cancel_scope.cancel()
            except (OSError, CannotListenError) as error:
                why = str(error)
                if why != told:
                    log.warning("no control socket, trying again every %g s: %s", LOOK_S, why)
                told = why
                begin()
                await trio.sleep(LOOK_S)


class CannotListenError(Exception):
    """What the socket needs is not there; the text says why."""


class _Listening:
    """A listening socket at ``path``, of mode 0600. Leaving it removes the file, unless another took its place.

    Raises OSError, CannotListenError.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        mask = os.umask(0o177)
        try:
            _remove_dead(path)
            listening.bind(os.fspath(path))
            # While this descriptor is open, no other file can have its inode.
            self._own = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except BaseException:
            listening.close()
            raise
        finally:
            os.umask(mask)
        listening.listen()
        listening.setblocking(False)
        self.socket = trio.socket.from_stdlib_socket(listening)

    def is_there(self) -> bool:
        try:
            return os.path.samestat(os.lstat(self._path), os.fstat(self._own))
        except OSError:
            return False

    def __enter__(self) -> "_Listening":
        return self

    def __exit__(self, *_error: object) -> None:
        if self.is_there():
            with suppress(OSError):
                self._path.unlink()
        self.socket.close()
        os.close(self._own)


def _remove_dead(path: Path) -> None:
    """Remove what a daemon left that was killed. Raises CannotListenError if one listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as call:
        # A daemon that is busy must not block this one.
        call.setblocking(False)
        number = call.connect_ex(os.fspath(path))
    if number in (0, errno.EAGAIN):
        raise CannotListenError(f"another daemon listens at {path}")
    path.unlink(missing_ok=True)


class _Incoming:
    """The bytes that a client sends: a line, then data of a given length. A folder may come with the line."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._ahead = b""
        self.folder: int | None = None

    async def line(self) -> bytes:
        """The line. Raises ValueError if none comes in time."""
        line = bytearray()
        with trio.move_on_after(TIMEOUT_S) as in_time:
            while b"\n" not in line and len(line) <= LINE_LIMIT_BYTES:
                part = await self._received(4096)
                if not part:
                    break
                line += part
        if in_time.cancelled_caught:
            raise ValueError(f"no line came within {TIMEOUT_S:g} s")
        first, _, self._ahead = bytes(line).partition(b"\n")
        return first

    async def _received(self, most: int) -> bytes:
        """Some bytes, and the folder that came with them. Raises trio.BrokenResourceError."""
        # For one. CMSG_SPACE would be room for two, as it is rounded up. The kernel closes what has no room.
        room = socket.CMSG_LEN(array("i", [0]).itemsize)
        try:
            part, sent, _, _ = await self._stream.socket.recvmsg(most, room, socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            raise trio.BrokenResourceError from error
        for level, kind, data in sent:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self.close()
                (self.folder,) = array("i", data)
        return part

    def close(self) -> None:
        """Close the folder."""
        if self.folder is not None:
            os.close(self.folder)
            self.folder = None

    async def data(self, size: int) -> bytes:
        """The data. Raises ValueError if fewer bytes come, or not in time."""
        data = bytearray(self._ahead)
        while len(data) < size:
            with trio.move_on_after(TIMEOUT_S) as in_time:
                part = await self._stream.receive_some(PIECE_BYTES)
            late = f" within {TIMEOUT_S:g} s" if in_time.cancelled_caught else ""
            if late or not part:
                raise ValueError(f"{size} bytes were announced, and {len(data)} came{late}")
            data += part
        return bytes(data[:size])


async def _answer(incoming: _Incoming, verbs: Mapping[str, Verb], device: str | None) -> Mapping[str, Any]:
    try:
        verb, size = _parsed(await incoming.line(), verbs, device)
        data = await incoming.data(size)
        _FOLDER.set(incoming.folder)
        answer = await _call(verb, data)
    except ValueError as refusal:
        answer = {"error": str(refusal)}
    # Where it is cancelled, the daemon ends, and a thread may still be about to write there.
    incoming.close()
    return answer


def _parsed(line: bytes, verbs: Mapping[str, Verb], device: str | None) -> tuple[Verb, int]:
    """The verb of a line, and the number of bytes that follow it. Raises ValueError."""
    try:
        asked = json.loads(line)
        name, size, mount = asked["do"], int(asked.get("bytes", 0)), asked.get("mount")
        if not 0 <= size <= DATA_LIMIT_BYTES or name not in verbs.keys() | _OF_SEVERAL_NODES:
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        raise ValueError(f"expected one of: {', '.join(verbs)}") from None
    if None not in (mount, device) and mount != device:
        raise ValueError(f"this daemon serves the mount with device {device}, and was asked about that with {mount}")
    if name not in verbs:
        raise ValueError("serves one node alone; `nodes` and `trace` need a mount with --nodes")
    return verbs[name], size


async def _call(verb: Verb, data: bytes) -> Mapping[str, Any]:
    """The results of ``verb``. Raises ValueError if it refuses, and nothing else: that would end the mount."""
    try:
        return {"ok": True, **await verb(data)}
    except ValueError:
        raise
    except Exception:
        log.exception("a bug in redoxfs: please report it")
        return {"error": "a bug in redoxfs: its log has more"}
