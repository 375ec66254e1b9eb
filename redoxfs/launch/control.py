"""Requests to the daemon of a mount over its control socket: for `trace`, `nodes`, `state` and `status`.

`redoxfs.node.control` describes the protocol. The node's own modules are not imported here: loading numpy and trio
would take four times as long as the request.
"""

import errno
import json
import os
import shlex
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from redoxfs.launch.defaults import DEFAULT_TIMEOUT_S
from redoxfs.launch.errors import DaemonError, MountpointError, UsageError
from redoxfs.launch.path_status import PathStatus, checked_mount, path_status
from redoxfs.launch.runtime_paths import control_path_of_daemon
from redoxfs.launch.turn import keeper_of

ANSWER_LIMIT_BYTES = 64 << 20
"""More than any answer: the longest are statistics, with some 200 bytes for each class tree and 1,000 for each peer."""

# For another daemon to begin, which takes a second, and longer for millions of samples or on a busy machine.
_START_TIMEOUT_S = 60.0
_LOOK_EVERY_S = 0.05

# For a daemon to make its socket anew, which it looks at every second.
_ANEW_S = 5.0

_REPEATED = frozenset({"epoch-tree", "samples", "state-save", "state-save-less", "stats", "turns-since"})
"""Verbs that another daemon may be asked again, as they change nothing, or write the same file. It is asked once: one
at which each daemon ends would end the mount, whose keeper gives up after three."""


def live_mount(asked: str, timeout_s: float) -> PathStatus:
    """The mount at ``asked``. Raises MountpointError unless a daemon serves it."""
    return checked_live(path_status(asked, min(timeout_s, DEFAULT_TIMEOUT_S)))


def checked_live(found: PathStatus) -> PathStatus:
    """The same if it is a mount that a daemon serves. Raises MountpointError."""
    mount = checked_mount(found)
    if mount.is_stale:
        raise MountpointError(
            f"{mount.path}: its daemon was killed; to clear the mount: redoxfs umount {shlex.quote(str(mount.path))}"
        )
    return mount


def ask_daemon(
    mount: PathStatus, verb: str, data: bytes, timeout_s: float, *, folder: int | None = None
) -> dict[str, Any]:
    """The answer of the mount's daemon, within ``timeout_s``. While a keeper starts another one, that one is awaited.

    ``folder``: a descriptor of the folder of a file that ``data`` names, which the daemon may see at another path.

    Raises:
        MountpointError: the daemon is another user's.
        DaemonError: it does not answer.
        UsageError: it refuses.
    """
    began_s = time.monotonic()
    ended = 0
    while True:
        try:
            path = control_path_of_daemon(mount.path)
            return send_control(path, verb, data, timeout_s=timeout_s, device=device_of(mount), folder=folder)
        except (FileNotFoundError, ConnectionError) as nobody:
            # Nobody listens, or the daemon ended before it had read the request: nothing was asked yet. A keeper starts
            # another daemon; a daemon makes its socket anew.
            is_removed = isinstance(nobody, FileNotFoundError)
            again_s = _START_TIMEOUT_S if _is_started_again(mount) else _ANEW_S if is_removed and _is_own(mount) else 0
            ended += isinstance(nobody, ConnectionAbortedError)
            if ended > (verb in _REPEATED):
                raise DaemonError(f"{mount.path}: the daemon does not answer: {nobody.strerror}") from None
            if time.monotonic() < began_s + again_s:
                time.sleep(_LOOK_EVERY_S)
                continue
            if not is_removed:
                raise DaemonError(f"{mount.path}: no daemon listens; its log may say why") from None
            if not _is_own(mount):
                raise MountpointError(f"{mount.path}: has no control socket of yours; run this as its owner") from None
            raise DaemonError(
                f"{mount.path}: its control socket {control_path_of_daemon(mount.path)} is missing; its log may "
                "say why, and its daemon may have been started with another XDG_RUNTIME_DIR"
            ) from None
        except TimeoutError:
            raise DaemonError(f"{mount.path}: the daemon did not answer within {timeout_s:g} s") from None
        except OSError as failure:
            raise DaemonError(f"{mount.path}: the daemon does not answer: {failure.strerror or failure}") from None
        except ValueError as refusal:
            raise UsageError(f"{mount.path}: {refusal}") from None


def device_of(mount: PathStatus) -> str | None:
    """The number of the mount's device, which a request names so that no other mount's daemon carries it out."""
    return None if mount.mount is None else mount.mount.device


def why_not(failure: OSError) -> str:
    """Why a file of a mount cannot be read, and what to do."""
    return f"{failure.strerror}{'; run this as its owner' if failure.errno in (errno.EACCES, errno.EPERM) else ''}"


@contextmanager
def reading(mount: PathStatus, what: str, timeout_s: float) -> Iterator[None]:
    """The block reads a file of the mount. Raises DaemonError, MountpointError with a line about ``what`` it is."""
    try:
        yield
    except TimeoutError:
        raise DaemonError(f"{mount.path}: the daemon did not answer within {timeout_s:g} s") from None
    except OSError as failure:
        raise MountpointError(f"{mount.path}: its {what} cannot be read: {why_not(failure)}") from None


@contextmanager
def asking_socket(path: Path, timeout_s: float) -> Iterator[None]:
    """The block asks for the mount that `redoxfs serve` received from a socket. Raises DaemonError."""
    try:
        yield
    except TimeoutError:
        raise DaemonError(f"{path}: the daemon did not answer within {timeout_s:g} s") from None
    except (OSError, ValueError, KeyError) as failure:
        reason = getattr(failure, "strerror", None) or failure
        raise DaemonError(f"{path}: no redoxfs serves the mount from this socket ({reason})") from None


def _is_own(mount: PathStatus) -> bool:
    return mount.mount is not None and mount.mount.owner is not None and mount.mount.owner[0] == os.geteuid()


def _is_started_again(mount: PathStatus) -> bool:
    """Whether the mount has a keeper, which then starts another daemon."""
    return mount.mount is not None and keeper_of(mount.mount) is not None


def send_control(
    path: Path,
    verb: str,
    data: bytes = b"",
    *,
    timeout_s: float,
    device: str | None = None,
    folder: int | None = None,
) -> dict[str, Any]:
    """The answer of the node that listens at ``path``, within ``timeout_s`` of sending the data, which has as long.

    ``device``: the mount that is meant; None: whichever the node serves. ``folder``: as for `ask_daemon`.

    Raises:
        OSError: no node listens, or no answer comes.
        ValueError: the node refused.
    """
    with begin_control(path, verb, data, timeout_s, device=device, folder=folder) as client:
        return answer_of(client, timeout_s)


def begin_control(
    path: Path,
    verb: str,
    data: bytes,
    timeout_s: float,
    *,
    device: str | None = None,
    folder: int | None = None,
) -> socket.socket:
    """Send a request within ``timeout_s``; `answer_of` reads the answer. Raises OSError."""
    request: dict[str, Any] = {"do": verb, "bytes": len(data)} if data else {"do": verb}
    if device is not None:
        request["mount"] = device
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        client.settimeout(timeout_s)
        client.connect(os.fspath(path))
        with suppress(BrokenPipeError, ConnectionResetError):
            # It may refuse before it has read everything; its answer has the reason.
            line = json.dumps(request).encode() + b"\n"
            sent = 0 if folder is None else socket.send_fds(client, [line], [folder])
            client.sendall(line[sent:] + data)
    except BaseException:
        client.close()
        raise
    return client


def answer_of(client: socket.socket, timeout_s: float) -> dict[str, Any]:
    """The answer to the request that was sent on ``client``. Raises as `send_control`."""
    client.settimeout(timeout_s)
    with client.makefile("rb") as reader:
        line = reader.readline(ANSWER_LIMIT_BYTES)
    if not line:
        # The kernel raises ConnectionResetError where the daemon had not read all of the request.
        raise ConnectionAbortedError(errno.ECONNABORTED, "it ended without an answer")
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise ValueError("its answer is not one of redoxfs")  # noqa: TRY004 - as a refusal
    if "error" in answer:
        raise ValueError(str(answer["error"]) or "it refused, and did not say why")
    return answer
