"""A forked child, and no Ctrl-C that is lost at the fork.

Python runs what was registered for a fork (logging has something) around it, and can only print what is raised there:
a KeyboardInterrupt that falls there ends nothing, and one that falls just after it would forget the child's pid. So the
signal is put off until the child is known.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from redoxfs.cli.exits import UNEXPECTED


@contextmanager
def forked(work: Callable[[], None], end: signal.Signals) -> Iterator[int]:
    """Fork a child that does `work` and vanishes, without what the parent has registered for its own exit.

    Gives the child's pid; the child is sent `end` when what is done meanwhile raises. It is the caller's to reap.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        child = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    if child == 0:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            work()
        finally:
            os._exit(UNEXPECTED)
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield child
    except BaseException:
        os.kill(child, end)
        raise
