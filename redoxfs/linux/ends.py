"""When a process ends that may be anybody's child."""

import errno
import os
import select
import threading

from redoxfs.linux.pids import ENDED, STARTTIME, STATE, stat_of

_LOOK_MS = 20


def end_of(pid: int) -> int:
    """A descriptor that poll and select report once the process has ended; the caller closes it.

    It is a pidfd (Linux 5.3). Where the kernel or a seccomp filter refuses that, a thread looks into /proc and then
    closes the other end of a pipe. Raises ProcessLookupError if the process has ended, and OSError.
    """
    try:
        return os.pidfd_open(pid)
    except OSError as failure:
        if failure.errno not in (errno.ENOSYS, errno.EPERM):
            raise
    began = _began(pid)
    if began is None:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    seen, kept = os.pipe()

    def watch() -> None:
        caller = select.poll()
        caller.register(kept, 0)
        # An error: the caller has closed its end.
        while _began(pid) == began and not caller.poll(_LOOK_MS):
            pass
        os.close(kept)

    threading.Thread(target=watch, name="redoxfs-end-of", daemon=True).start()
    return seen


def _began(pid: int) -> bytes | None:
    """When a process began, in ticks; None if it has ended, which a zombie has."""
    try:
        fields = stat_of(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[STATE] in ENDED else fields[STARTTIME]
