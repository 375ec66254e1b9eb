"""The control socket: what a user asks of a running node that a read-only mount cannot be asked by a file.

A Unix socket of mode 0600, one JSON object a line each way. `{"do": "stop"}` ends the node as SIGTERM does. The
answer is `{"ok": true}` or `{"error": "…"}`. A line longer than the limit, or one that is not such an object, is
answered with an error and the connection is closed.
"""

import json
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path

import trio

LINE_LIMIT_BYTES = 64 * 1024
"""Far more than any request; a line is held in memory whole."""

TIMEOUT_S = 10.0
"""For a client to say what it wants: an idle connection must not be held for ever."""

log = logging.getLogger(__name__)


async def serve_control(
    path: Path, verbs: dict[str, Callable[[], None]], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Listen at ``path`` until cancelled, then remove it. Whatever lay there before is replaced."""
    path.unlink(missing_ok=True)
    listening = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        await listening.bind(os.fspath(path))
    finally:
        os.umask(mask)
    listening.listen()

    async def answer(stream: trio.SocketStream) -> None:
        try:
            with trio.fail_after(TIMEOUT_S):
                await stream.send_all(_answer(await _line(stream), verbs))
        except (trio.TooSlowError, trio.BrokenResourceError) as error:
            log.warning("a control connection ended: %r", error)

    try:
        task_status.started()
        await trio.serve_listeners(answer, [trio.SocketListener(listening)])
    finally:
        path.unlink(missing_ok=True)


def send_control(path: Path, verb: str) -> None:
    """Ask the node that listens at ``path``.

    Raises:
        OSError: nobody listens, or the answer does not come.
        ValueError: the node refused.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(TIMEOUT_S)
        client.connect(os.fspath(path))
        client.sendall(json.dumps({"do": verb}).encode() + b"\n")
        answer = json.loads(client.makefile("rb").readline(LINE_LIMIT_BYTES) or b'{"error": "no answer"}')
    if "error" in answer:
        raise ValueError(answer["error"])


async def _line(stream: trio.SocketStream) -> bytes:
    line = bytearray()
    while not line.endswith(b"\n") and len(line) <= LINE_LIMIT_BYTES:
        part = await stream.receive_some(4096)
        if not part:
            break
        line += part
    return bytes(line)


def _answer(line: bytes, verbs: dict[str, Callable[[], None]]) -> bytes:
    try:
        verbs[json.loads(line)["do"]]()
    except (ValueError, KeyError, TypeError, RecursionError):
        return b'{"error": "expected one of: %s"}\n' % ", ".join(verbs).encode()
    return b'{"ok": true}\n'
