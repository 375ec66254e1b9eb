"""The Python stacks of a daemon's threads, for somebody outside, also while its event loop hangs.

A thread of the daemon waits at a pipe and writes the stacks with the interpreter's lock, so that no frame changes
meanwhile. It answers also when the event loop waits in a call or spins.

If it does not answer, some code keeps the lock. Then a signal is sent, which `faulthandler` answers from the signal's
own handler, in C and without the lock: no frame changes now either. (In a daemon that is at work, the handler reads
frames while other threads change them, and once in some thousands of signals that ends the process.) No signal is
sent that the kernel cannot deliver at once, as to a process that is stopped, or whose main thread waits for storage
without being interruptible: the handler would run once the daemon is at work again. For that case there are the
kernel's own stacks (`redoxfs.doctor.process`).

Rejected: a verb of the control socket, which the event loop itself answers.

The stacks go to a memfd and not to the log, which may be JSON, a pipe, or on a full disk. Whoever asks finds it among
the descriptors of the process, and empties it first. Its name ends in the number of the pipe's descriptor.
"""

import faulthandler
import fcntl
import os
import re
import signal
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from redoxfs.linux.descriptors import opened
from redoxfs.linux.pids import field_of, status_of

SIGNAL = signal.SIGRTMAX
"""One that nobody else sends: Slurm and schedulers of jobs send SIGUSR1 and SIGUSR2 to all processes of a step."""

MEMFD = "redoxfs-stacks"

THREAD_S = 5.0
"""For the stacks to come from the thread. It answers in milliseconds, unless there is no processor for it."""

ANSWER_S = 2.0
"""Likewise from the handler."""

_LOOK_EVERY_S = 0.02

_STILL_S = 0.2
"""The stacks are complete once they have not grown for so long: who writes them may wait for a processor meanwhile."""

LONGEST_BYTES = 1 << 20
"""That is read. `faulthandler` stops at 100 threads, which have less."""


class NoStacksError(Exception):
    """The stacks cannot be had: one line."""


def answer_with_stacks() -> None:
    """From now on, this process writes its stacks when it is asked, or gets `SIGNAL`. Called once in a daemon."""
    asked, ask = os.pipe2(os.O_CLOEXEC)
    fd = os.memfd_create(f"{MEMFD}-{ask}", os.MFD_CLOEXEC)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    faulthandler.register(SIGNAL, file=fd, all_threads=True)
    # Where no thread can be started, nobody reads the pipe, and the signal is left.
    with suppress(RuntimeError):
        threading.Thread(target=_answer, args=(asked, fd), daemon=True, name="redoxfs-stacks").start()


def _answer(asked: int, fd: int) -> None:
    # Once for all who have asked since.
    while os.read(asked, 1 << 16):
        faulthandler.dump_traceback(file=fd, all_threads=True)


def stacks_of(pid: int) -> str:
    """The Python stacks of a daemon's threads. Raises NoStacksError.

    What the process shows as its descriptors may be anything, also what never answers. So root calls this in a child
    that has become the process's user.
    """
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
            if _ask_thread(pid, fd) and (told := _awaited(fd, THREAD_S)):
                return told
            if _catches(pid) and field_of(status_of(pid), b"State")[:1] in (b"R", b"S"):
                signal.pidfd_send_signal(process, SIGNAL)
                if told := _awaited(fd, ANSWER_S):
                    return told
    except OSError as failure:
        raise NoStacksError(f"process {pid}: {failure.strerror}") from None
    raise NoStacksError(f"process {pid} does not answer: it is stopped, or the kernel holds it")


def _ask_thread(pid: int, fd: int) -> bool:
    """Ask the thread that writes with the lock. False if the process has none, as an older one."""
    number = re.fullmatch(rf"/memfd:{MEMFD}-([0-9]+) \(deleted\)", os.readlink(f"/proc/self/fd/{fd}"))
    if number is None:
        return False
    path = f"/proc/{pid}/fd/{number[1]}"
    if _is_pipe(path):
        with opened(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)) as pipe:
            # It can have put another file there since.
            if _is_pipe(f"/proc/self/fd/{pipe}"):
                with suppress(BlockingIOError):
                    os.write(pipe, b"?")
                return True
    raise NoStacksError(f"process {pid} has replaced its pipe for stacks")


def _is_pipe(path: str) -> bool:
    """Whether a descriptor is of a pipe without a name. Those of files begin with a slash."""
    return os.readlink(path).startswith("pipe:[")


def _awaited(fd: int, seconds: float) -> str:
    """The stacks that are written, once they grow no more; empty if none come."""
    deadline_s = time.monotonic() + seconds
    size, since_s = 0, time.monotonic()
    while (now_s := time.monotonic()) < deadline_s and not (size and now_s - since_s >= _STILL_S):
        time.sleep(_LOOK_EVERY_S)
        grown = os.fstat(fd).st_size
        if grown != size:
            size, since_s = grown, time.monotonic()
    return os.pread(fd, LONGEST_BYTES, 0).decode("utf-8", "replace")


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
    # It can have put another file there since, or in a mount namespace of its own another at that path.
    found, user = os.fstat(fd), int(field_of(status_of(pid), b"Uid").split()[1])
    if (found.st_nlink, found.st_uid) != (0, user) or not _is_memfd(Path(f"/proc/self/fd/{fd}")):
        os.close(fd)
        raise NoStacksError(f"process {pid} has replaced its memory for stacks")
    return fd


def _is_memfd(path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.readlink(path).startswith(f"/memfd:{MEMFD}")
    return False
