"""A process that ends with the one that forked it, however that one ends."""

import ctypes

from redoxfs.linux.libc import last_error, libc

# <sys/prctl.h>
_PR_SET_PDEATHSIG = 1


def signal_at_the_parents_end(number: int) -> None:
    """Have the kernel send this process the signal ``number`` when the thread that forked it ends; 0: none.

    The parent may have ended before: compare os.getppid() afterwards. Raises OSError.
    """
    if libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(number)) != 0:
        raise last_error()
