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

SIGNAL = signal.SIGUSR2

MEMFD = "redoxfs-stacks"

ANSWER_S = 2.0
"""For the stacks to come. A handler runs in milliseconds, unless there is no processor for it."""

_LOOK_EVERY_S = 0.02

LONGEST_BYTES = 1 << 20
"""That is read. Hundreds of threads have less."""


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
            fd = os.open(_memfd_of(pid), os.O_RDWR | os.O_CLOEXEC)
            opened.callback(os.close, fd)
            os.ftruncate(fd, 0)
            signal.pidfd_send_signal(process, SIGNAL)
            return _awaited(fd, pid)
    except OSError as failure:
        raise NoStacksError(f"process {pid}: {failure.strerror}") from None


def _awaited(fd: int, pid: int) -> str:
    """What the handler writes, once it grows no more. Raises NoStacksError."""
    deadline_s = time.monotonic() + ANSWER_S
    before = 0
    while time.monotonic() < deadline_s:
        time.sleep(_LOOK_EVERY_S)
        size = os.fstat(fd).st_size
        if size and size == before:
            return os.pread(fd, LONGEST_BYTES, 0).decode("utf-8", "replace")
        before = size
    raise NoStacksError(f"process {pid} has not run for {ANSWER_S:g} s: it is stopped, or the kernel holds it")


def _catches(pid: int) -> bool:
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(caught >> (SIGNAL - 1) & 1)


def _memfd_of(pid: int) -> Path:
    """The path of a daemon's memfd. Raises NoStacksError."""
    try:
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if os.readlink(path).startswith(f"/memfd:{MEMFD}"):
                    return path
    except OSError as failure:
        raise NoStacksError(f"the descriptors of process {pid}: {failure.strerror}") from None
    raise NoStacksError(f"process {pid} has no memory for stacks; is it an older redoxfs?")
