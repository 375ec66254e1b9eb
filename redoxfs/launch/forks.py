"""A forked child, without losing a Ctrl-C, or what ends a command likewise, at the fork.

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
    noted: list[int] = []
    # Some commands end by SIGTERM and SIGHUP as by Ctrl-C.
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    before = {number: handler for number, handler in handlers.items() if callable(handler)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)
        for each in noted:
            signal.raise_signal(each)

    for number in before:
        signal.signal(number, lambda number, _frame: noted.append(number))
    try:
        child = os.fork()
    except OSError as failure:
        restore()
        if failure.errno == errno.EAGAIN:
            raise NoProcessError from None
        raise
    if child == 0:
        code = UNEXPECTED
        try:
            restore()
            code = work()
        finally:
            os._exit(code)
    try:
        restore()
        yield child
    except BaseException:
        os.kill(child, end)
        raise
