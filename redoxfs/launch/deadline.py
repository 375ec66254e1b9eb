"""Calls to a filesystem that may never answer, each with a deadline.

A stat of a mount whose daemon hangs blocks in the kernel, and not even SIGKILL ends it once the daemon has received
the request. So a forked child makes each call. A child that misses the deadline is killed, and left to the kernel if
that does not end it. A thread would not do: it would keep the whole program from ending. Call this only while the
process has a single thread.

A fork copies the tables of this process's pages, and costs more than most looks. A command with several looks has one
`Child` for them.
"""

import errno
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

from redoxfs.launch.forks import forked
from redoxfs.linux.parent import signal_at_the_parents_end

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


class Child:
    """A child that makes calls one after the other. It is forked for the first, and anew after one that hung.

    A call is pickled, so it is a `partial` of a function of a module. It must leave the child as it was.
    """

    def __init__(self) -> None:
        self._pid = 0
        self._ours: socket.socket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def call(self, call: "partial[Result]", timeout_s: float, *errors: type[Exception]) -> Result:
        """As `call_in_child`."""
        import pickle

        ours = self._begin() if self._ours is None else self._ours
        try:
            ours.settimeout(timeout_s)
            ours.sendall(pickle.dumps((call, errors)))
            with ours.makefile("rb") as answer:
                result, error = pickle.load(answer)
        except (OSError, EOFError, pickle.UnpicklingError) as failure:
            self.end()
            # Without a timeout, the child was killed.
            number = errno.ETIMEDOUT if isinstance(failure, TimeoutError) else errno.EIO
            raise OSError(number, os.strerror(number)) from None
        if error is not None:
            raise error
        return result

    def _begin(self) -> socket.socket:
        ours, theirs = socket.socketpair()

        def work() -> int:
            # So that it ends with this process.
            ours.close()
            return _make_calls(theirs)

        try:
            with theirs, forked(work, signal.SIGKILL) as self._pid:
                self._ours = ours
        except BaseException:
            ours.close()
            raise
        return ours

    def end(self) -> None:
        """End the process, as before a long wait. The next call has another."""
        ours, self._ours = self._ours, None
        if ours is not None:
            ours.close()
            os.kill(self._pid, signal.SIGKILL)
            _await_end(self._pid)


def _make_calls(theirs: socket.socket) -> int:
    """Until nobody is left who asks."""
    import pickle

    signal_at_the_parents_end(signal.SIGKILL)
    with theirs.makefile("rwb") as asked:
        while True:
            try:
                call, errors = pickle.load(asked)
            except EOFError:
                return 0
            answer: tuple[object, Exception | None]
            try:
                answer = call(), None
            except (OSError, *errors) as error:
                answer = None, error
            pickle.dump(answer, asked)
            asked.flush()


def look(path: str | os.PathLike[str], timeout_s: float, child: Child | None = None) -> Look:
    """Resolve `path` and stat it. Never raises for what it finds there."""
    try:
        if child is None:
            seen = json.loads(run_in_child(lambda: json.dumps(_seen(path)).encode("ascii"), timeout_s))
        else:
            seen = child.call(partial(_seen, path), timeout_s)
    except OSError as failure:
        return Look(Path(os.path.abspath(path)), failure.errno or errno.EIO, 0, False)
    resolved, error, mode, writable = seen
    return Look(Path(resolved), error, mode, writable)


def _seen(path: str | os.PathLike[str]) -> tuple[str, int, int, bool]:
    resolved = os.path.realpath(path)
    try:
        mode, error = os.stat(resolved).st_mode, 0
        # The kernel may have cached the stat of a mount whose daemon is dead; it never caches this.
        os.statvfs(resolved)
    except OSError as failure:
        mode, error = 0, failure.errno or errno.EIO
    return os.fspath(resolved), error, mode, error == 0 and os.access(resolved, os.W_OK)


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
    return result


def _answer(call: Callable[[], bytes], write_end: int) -> int:
    # A call that hangs would outlive a command that is killed.
    signal_at_the_parents_end(signal.SIGKILL)
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
