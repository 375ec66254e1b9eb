"""The processes of `pack` and `verify`: how many there are; and how commands end that write for a while."""

import os
import signal

from redoxfs.launch.say import say


def processes(asked: int | None) -> int:
    """--jobs, by default one for each core; 1, with a line, where processes cannot share the work."""
    from redoxfs.packed.workers import shared_lock

    jobs = asked or len(os.sched_getaffinity(0))
    if jobs > 1 and shared_lock() is None:
        say("one process does all the work, since the system gives no semaphores (is /dev/shm there, and writable?)")
        return 1
    return jobs


def end_as_by_ctrl_c() -> None:
    """Let SIGTERM end the command as Ctrl-C does, with what it cleans up and says. So does SIGHUP, unless ignored."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.default_int_handler)
