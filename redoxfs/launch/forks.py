"""A forked child, and no Ctrl-C that is lost at the fork.

Python runs what was registered for a fork (logging has something) around it, and can only print what is raised there:
a KeyboardInterrupt that falls there ends nothing, and one that falls just after it would forget the child's pid. So an
interrupt is only noted until the child is known. To block the signal would not do: the threads of numpy's BLAS get it
too, and for them Python raises it here all the same.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from redoxfs.launch.errors import UNEXPECTED


@contextmanager
def forked(work: Callable[[], int], end: signal.Signals) -> Iterator[int]:
    """Fork a child that does `work`, which gives its exit code, and vanishes.

    What the parent has registered for its own exit is not run in it. Gives the child's pid; the child is sent `end`
    when what is done meanwhile raises. It is the caller's to reap. Only in the main thread.
    """
    interrupted = False

    def note(_number: int, _frame: object) -> None:
        nonlocal interrupted
        interrupted = True

    before = signal.signal(signal.SIGINT, note)
    try:
        child = os.fork()
    except OSError:
        signal.signal(signal.SIGINT, before)
        raise
    if child == 0:
        code = UNEXPECTED
        try:
            signal.signal(signal.SIGINT, before)
            code = work()
        finally:
            os._exit(code)
    try:
        signal.signal(signal.SIGINT, before)
        if interrupted:
            signal.raise_signal(signal.SIGINT)
        yield child
    except BaseException:
        os.kill(child, end)
        raise
