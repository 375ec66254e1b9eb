"""The control socket: requests of users that a read-only mount cannot take through a file.

A Unix socket of mode 0600. Each side sends one JSON object on a line. `{"do": "stop"}` ends the node as SIGTERM does. A
verb that takes data has their length: `{"do": "trace", "bytes": N}`, and N bytes follow the line. The answer is
`{"ok": true}` with the results of the verb, or `{"error": "…"}`. A line longer than the limit, a line that is no such
object, and a client that pauses for `TIMEOUT_S` get an error, and the connection is closed. The client is
`redoxfs.launch.control`.
"""

import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio

LINE_LIMIT_BYTES = 64 * 1024
"""Far more than any request. A whole line is held in memory."""

DATA_LIMIT_BYTES = 1 << 30
"""The paths of an epoch of 13 million files, with room."""

TIMEOUT_S = 10.0
"""For the request, and for each next piece of it: an idle connection must not stay open forever."""

PIECE_BYTES = 1 << 16

Verb = Callable[[bytes], Awaitable[Mapping[str, Any]]]
"""Takes the data of the request and returns the results. Raises ValueError with one line for the user."""

_OF_SEVERAL_NODES = frozenset({"nodes", "trace"})
"""Verbs of a mount with --nodes only."""

log = logging.getLogger(__name__)


async def serve_control(
    path: Path, verbs: Mapping[str, Verb], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Listen at ``path`` until cancelled, then remove it. An existing file there is replaced.

    A detached mount lives on for the programs in it, and another may be mounted in its place. The older daemon does not
    remove the socket of the newer one when it ends.
    """
    path.unlink(missing_ok=True)
    listening = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        await listening.bind(os.fspath(path))
    finally:
        os.umask(mask)
    # While this descriptor is open, no other file can have its inode.
    own = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    listening.listen()

    async def answer(stream: trio.SocketStream) -> None:
        try:
            reply = await _answer(_Incoming(stream), verbs)
            with trio.fail_after(TIMEOUT_S):
                await stream.send_all(json.dumps(reply).encode() + b"\n")
        except (trio.TooSlowError, trio.BrokenResourceError) as error:
            log.warning("a control connection ended: %r", error)

    try:
        task_status.started()
        await trio.serve_listeners(answer, [trio.SocketListener(listening)])
    finally:
        with suppress(FileNotFoundError):
            if os.path.samestat(os.lstat(path), os.fstat(own)):
                path.unlink()
        os.close(own)


class _Incoming:
    """The bytes that a client sends: a line, then data of a given length."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._ahead = b""

    async def line(self) -> bytes:
        """The line. Raises ValueError if none comes in time."""
        line = bytearray()
        with trio.move_on_after(TIMEOUT_S) as in_time:
            while b"\n" not in line and len(line) <= LINE_LIMIT_BYTES:
                part = await self._stream.receive_some(4096)
                if not part:
                    break
                line += part
        if in_time.cancelled_caught:
            raise ValueError(f"no line came within {TIMEOUT_S:g} s")
        first, _, self._ahead = bytes(line).partition(b"\n")
        return first

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


async def _answer(incoming: _Incoming, verbs: Mapping[str, Verb]) -> Mapping[str, Any]:
    try:
        verb, size = _parsed(await incoming.line(), verbs)
        return await _call(verb, await incoming.data(size))
    except ValueError as refusal:
        return {"error": str(refusal)}


def _parsed(line: bytes, verbs: Mapping[str, Verb]) -> tuple[Verb, int]:
    """The verb of a line, and the number of bytes that follow it. Raises ValueError."""
    try:
        asked = json.loads(line)
        name, size = asked["do"], int(asked.get("bytes", 0))
        if not 0 <= size <= DATA_LIMIT_BYTES or name not in verbs.keys() | _OF_SEVERAL_NODES:
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        raise ValueError(f"expected one of: {', '.join(verbs)}") from None
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
