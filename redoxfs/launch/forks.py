"""A forked child, without losing a Ctrl-C at the fork.

Around a fork, Python runs registered hooks (logging has some) and can only print exceptions raised there. A
KeyboardInterrupt raised in a hook ends nothing, and one raised just after the fork would lose the child's pid. So an
interrupt is only noted until the pid is known. Blocking the signal would not help: the threads of numpy's BLAS receive
it too, and Python raises it here all the same.
"""

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from redoxfs.launch.errors import UNEXPECTED, NoProcessError


@contextmanager
def forked(work: Callable[[], int], end: signal.Signals) -> Iterator[int]:
    """Fork a child that runs `work`, which returns its exit code. Yields the child's pid.

    The child skips the parent's exit handlers. If the body of the `with` raises, the child is sent `end`. The caller
    reaps the child. Only in the main thread. Raises OSError, such as NoProcessError.
    """
    interrupted = False

    def note(_number: int, _frame: object) -> None:
        nonlocal interrupted
        interrupted = True

    before = signal.signal(signal.SIGINT, note)
    try:
        child = os.fork()
    except OSError as failure:
        signal.signal(signal.SIGINT, before)
        if failure.errno == errno.EAGAIN:
            raise NoProcessError from None
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
