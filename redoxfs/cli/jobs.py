"""The number of processes of `pack` and `verify`."""

import os

from redoxfs.launch.say import say


def processes(asked: int | None) -> int:
    """--jobs, by default one for each core; 1, with a line, where processes cannot share the work."""
    from redoxfs.packed.workers import shared_lock

    jobs = asked or len(os.sched_getaffinity(0))
    if jobs > 1 and shared_lock() is None:
        say("one process does all the work, since the system gives no semaphores (is /dev/shm there, and writable?)")
        return 1
    return jobs
