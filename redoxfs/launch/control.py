"""Asking the daemon of a mount: what `trace`, `nodes` and `state` do alike, and how `status` begins.

What is said over the control socket is told in `redoxfs.node.control`. The node's own modules are not imported here:
numpy and trio would take four times as long as the question.
"""

import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from redoxfs.launch.errors import DaemonError, MountpointError, UsageError
from redoxfs.launch.path_status import Place, our_mount_at
from redoxfs.launch.runtime_paths import control_path

ANSWER_LIMIT_BYTES = 64 * 1024
"""Far more than any answer."""

TIMEOUT_S = 10.0
"""For the daemon to take the next piece of what is sent, and to answer."""

LONG_TIMEOUT_S = 600.0
"""For a node to look up all paths of an epoch."""


def live_mount(asked: str, timeout_s: float) -> Place:
    """The mount at ``asked``. Raises MountpointError unless a daemon serves it."""
    place = our_mount_at(asked, timeout_s)
    if place.is_stale:
        raise MountpointError(f"{place.path}: its daemon was killed; to clear it: redoxfs umount {place.path}")
    return place


def ask_daemon(place: Place, verb: str, data: bytes = b"") -> dict[str, Any]:
    """What the daemon of the mount answers.

    Raises:
        MountpointError: it is somebody else's.
        DaemonError: it does not answer.
        UsageError: it refuses.
    """
    try:
        return send_control(control_path(place.path), verb, data)
    except FileNotFoundError:
        raise MountpointError(f"{place.path}: has no control socket of yours; ask as who mounted it") from None
    except OSError as failure:
        raise DaemonError(f"{place.path}: the daemon does not answer: {failure.strerror or failure}") from None
    except ValueError as refusal:
        raise UsageError(f"{place.path}: {refusal}") from None


def send_control(path: Path, verb: str, data: bytes = b"", timeout_s: float = LONG_TIMEOUT_S) -> dict[str, Any]:
    """Ask the node that listens at ``path``; what it tells, after ``timeout_s`` at most once it has the data.

    Raises:
        OSError: nobody listens, or the answer does not come.
        ValueError: the node refused.
    """
    request = {"do": verb, "bytes": len(data)} if data else {"do": verb}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(TIMEOUT_S)
        client.connect(os.fspath(path))
        with suppress(BrokenPipeError):
            # It may refuse before it has heard all, and say why.
            client.sendall(json.dumps(request).encode() + b"\n" + data)
        client.settimeout(timeout_s if data else TIMEOUT_S)
        answer = json.loads(client.makefile("rb").readline(ANSWER_LIMIT_BYTES) or b'{"error": "no answer"}')
    if "error" in answer:
        raise ValueError(answer["error"])
    assert isinstance(answer, dict)
    return answer
