"""Transparent huge pages, which cost a daemon memory that it does not use.

A machine whose setting is "always", as Debian's is, may back any 2 MiB of addresses with a huge page where pages have
4 kB, and counts it whole. Where pages have 16 kB a huge page has 32 MiB, and with 64 kB 512 MiB: one of them is more
than a mount may take beside its --memory. Machines with pages of 4 kB keep them: there they cost little, and numpy asks
for them for large arrays, such as those of a catalog, so that access to these misses the TLB less often.
"""

import ctypes
import mmap

from redoxfs.linux.libc import libc

# <sys/prctl.h>
_PR_SET_THP_DISABLE = 41
_SMALL_PAGE_BYTES = 4096


def refuse_large_huge_pages() -> None:
    """Have the kernel give this process, and those that it forks from now on, no huge pages of more than 2 MiB.

    A kernel that refuses leaves the memory as it was.
    """
    if mmap.PAGESIZE > _SMALL_PAGE_BYTES:
        libc.prctl(_PR_SET_THP_DISABLE, ctypes.c_ulong(1), *[ctypes.c_ulong(0)] * 3)
