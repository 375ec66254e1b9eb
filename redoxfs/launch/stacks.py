"""The Python stacks of a daemon's threads, for somebody outside, also while its event loop hangs.

A daemon registers a signal with `faulthandler`, which writes the stacks from the signal's own handler, in C. So it
works while no Python code can run: when the loop waits in a call, spins, or holds the interpreter's lock. It needs only
that the kernel can deliver a signal, which it cannot to a process that is stopped, or whose every thread waits for
storage without being interruptible. For that case there are the kernel's own stacks (`redoxfs.doctor.process`).

Rejected: a verb of the control socket, which the event loop itself answers; a watchdog thread, which needs the lock.

The stacks go to a memfd and not to the log, which may be JSON, a pipe, or on a full disk. Whoever asks finds it among
the descriptors of the process, and empties it first.
"""

import faulthandler
import fcntl
import os
import signal
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from redoxfs.linux.pids import field_of, status_of

SIGNAL = signal.SIGUSR2

MEMFD = "redoxfs-stacks"

ANSWER_S = 2.0
"""For the stacks to come. A handler runs in milliseconds, unless there is no processor for it."""

_LOOK_EVERY_S = 0.02

_STILL_S = 0.2
"""The stacks are complete once they have not grown for so long: the handler may wait for a processor meanwhile."""

LONGEST_BYTES = 1 << 20
"""That is read. The handler stops at 100 threads, which have less."""


class NoStacksError(Exception):
    """The stacks cannot be had: one line."""


def answer_with_stacks() -> None:
    """From now on, this process writes its stacks when it gets `SIGNAL`. Called once in a daemon."""
    fd = os.memfd_create(MEMFD, os.MFD_CLOEXEC)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    faulthandler.register(SIGNAL, file=fd, all_threads=True)


def stacks_of(pid: int) -> str:
    """The Python stacks of a daemon's threads. Raises NoStacksError."""
    try:
        with ExitStack() as opened:
            # While it is open, no other process can be meant.
            process = os.pidfd_open(pid)
            opened.callback(os.close, process)
            # By default, the signal would end a process that does not expect it.
            if not _catches(pid):
                raise NoStacksError(f"process {pid} does not answer {SIGNAL.name}; is it an older redoxfs?")
            fd = _opened_memfd(pid)
            opened.callback(os.close, fd)
            os.ftruncate(fd, 0)
            signal.pidfd_send_signal(process, SIGNAL)
            return _awaited(fd, pid)
    except OSError as failure:
        raise NoStacksError(f"process {pid}: {failure.strerror}") from None


def _awaited(fd: int, pid: int) -> str:
    """What the handler writes, once it grows no more. Raises NoStacksError."""
    deadline_s = time.monotonic() + ANSWER_S
    size, since_s = 0, time.monotonic()
    while (now_s := time.monotonic()) < deadline_s and not (size and now_s - since_s >= _STILL_S):
        time.sleep(_LOOK_EVERY_S)
        grown = os.fstat(fd).st_size
        if grown != size:
            size, since_s = grown, time.monotonic()
    if size:
        return os.pread(fd, LONGEST_BYTES, 0).decode("utf-8", "replace")
    raise NoStacksError(f"process {pid} has not run for {ANSWER_S:g} s: it is stopped, or the kernel holds it")


def _catches(pid: int) -> bool:
    try:
        return bool(int(field_of(status_of(pid), b"SigCgt"), 16) >> (SIGNAL - 1) & 1)
    except (OSError, ValueError):
        return False


def has_memory_for_stacks(pid: int) -> bool:
    """Whether a process may be a daemon, as far as its descriptors show."""
    try:
        return _memfd_of(pid) is not None
    except NoStacksError:
        return False


def _memfd_of(pid: int) -> Path | None:
    """The path of a daemon's memfd; None if it has none. Raises NoStacksError."""
    try:
        return next((path for path in Path(f"/proc/{pid}/fd").iterdir() if _is_memfd(path)), None)
    except OSError as failure:
        raise NoStacksError(f"the descriptors of process {pid}: {failure.strerror}") from None


def _opened_memfd(pid: int) -> int:
    """A descriptor of a daemon's memfd, to be emptied and read. Raises NoStacksError, OSError."""
    path = _memfd_of(pid)
    if path is None:
        raise NoStacksError(f"process {pid} has no memory for stacks; is it an older redoxfs?")
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    # Root may ask for the stacks of a user's process, which can have put another file there since.
    if not _is_memfd(Path(f"/proc/self/fd/{fd}")):
        os.close(fd)
        raise NoStacksError(f"process {pid} has replaced its memory for stacks")
    return fd


def _is_memfd(path: Path) -> bool:
    with suppress(OSError):
        return os.readlink(path).startswith(f"/memfd:{MEMFD}")
    return False
