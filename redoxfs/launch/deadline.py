"""Calls to a filesystem that may never answer, each with a deadline.

A stat of a mount whose daemon hangs blocks in the kernel, and not even SIGKILL ends it once the daemon has received
the request. So a forked child makes each call. A child that misses the deadline is killed, and left to the kernel if
that does not end it. A thread would not do: it would keep the whole program from ending. Call this only while the
process has a single thread.
"""

import errno
import json
import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from redoxfs.launch.forks import forked

MOST_BYTES = 32 << 20
"""Of a file that a daemon serves, which may be somebody else's: statistics of a thousand nodes have a tenth of it."""

Result = TypeVar("Result")

_ANSWER, _FAILURE = b"+", b"-"

# Far more than the end of a process takes unless the kernel holds it.
_END_WAIT_S, _LOOK_S = 1.0, 0.001


@dataclass(frozen=True, slots=True)
class Look:
    """What stat and statvfs return for a path. `error` is an errno: 0 for success, ETIMEDOUT at the deadline."""

    path: Path  # without symlinks, as far as it could be resolved
    error: int
    mode: int
    writable: bool


def look(path: str | os.PathLike[str], timeout_s: float) -> Look:
    """Resolve `path` and stat it. Never raises for what it finds there."""

    def answer() -> bytes:
        resolved = os.path.realpath(path)
        try:
            mode, error = os.stat(resolved).st_mode, 0
            # The kernel may have cached the stat of a mount whose daemon is dead; it never caches this.
            os.statvfs(resolved)
        except OSError as failure:
            mode, error = 0, failure.errno or errno.EIO
        writable = error == 0 and os.access(resolved, os.W_OK)
        return json.dumps([resolved, error, mode, writable]).encode("ascii")

    try:
        resolved, error, mode, writable = json.loads(run_in_child(answer, timeout_s))
    except OSError as failure:
        return Look(Path(os.path.abspath(path)), failure.errno or errno.EIO, 0, False)
    return Look(Path(resolved), error, mode, writable)


def read_file(path: Path, timeout_s: float, most_bytes: int = MOST_BYTES) -> bytes:
    """The bytes of a file. Raises OSError: the file's own, TimeoutError, or EFBIG for more than ``most_bytes``."""

    def read() -> bytes:
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
        if len(data) > most_bytes:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return data

    return run_in_child(read, timeout_s)


def run_in_child(call: Callable[[], bytes], timeout_s: float) -> bytes:
    """The result of `call`, made in a child. Raises the OSError that it raised, or TimeoutError."""
    read_end, write_end = os.pipe()
    try:
        with forked(lambda: _answer(call, write_end), signal.SIGKILL) as child:
            os.close(write_end)
            reply = _read_to_end(read_end, timeout_s)
    except TimeoutError:
        _await_end(child)
        raise
    finally:
        os.close(read_end)
    _await_end(child)
    if not reply.startswith(_ANSWER):
        number = int(reply[1:] or errno.EIO)
        raise OSError(number, os.strerror(number))
    return reply[1:]


def call_in_child(call: Callable[[], Result], timeout_s: float, *errors: type[Exception]) -> Result:
    """As `run_in_child`, for a result of any type. Raises ``errors`` too."""
    # Here, because short commands do not need it.
    import pickle

    def answer() -> bytes:
        try:
            return pickle.dumps((call(), None))
        except errors as error:
            return pickle.dumps((None, error))

    try:
        result, error = pickle.loads(run_in_child(answer, timeout_s))
    except (EOFError, pickle.UnpicklingError):
        # It was killed in the middle of its answer.
        raise OSError(errno.EIO, os.strerror(errno.EIO)) from None
    if error is not None:
        raise error
    found: Result = result
    return found


def _answer(call: Callable[[], bytes], write_end: int) -> int:
    try:
        reply = _ANSWER + call()
    except OSError as failure:
        reply = _FAILURE + str(failure.errno or errno.EIO).encode()
    while reply:
        reply = reply[os.write(write_end, reply) :]
    # The kernel may hold a thread of this process, and with it the process and its descriptors.
    os.close(write_end)
    return 0


def _await_end(child: int) -> None:
    """Wait until a child is gone that ends, so that it keeps no mount busy; give up if the kernel holds it."""
    # A pidfd would need Linux 5.3, and its substitute a thread, which must not be here when the caller forks again.
    give_up_s = time.monotonic() + _END_WAIT_S
    while os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < give_up_s:
        time.sleep(_LOOK_S)


def _read_to_end(fd: int, timeout_s: float) -> bytes:
    parts: list[bytes] = []
    deadline = time.monotonic() + timeout_s
    ready = select.poll()
    ready.register(fd, select.POLLIN)
    while True:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not ready.poll(left_s * 1000):
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        part = os.read(fd, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)
