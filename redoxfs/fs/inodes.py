"""Inode numbers, which encode their entry, and the names under ``.redoxfs``.

The tree never changes, so an inode number is the number of an entry, with its *branch* of the mount in the high bits.
Nothing has to be stored about the inodes that the kernel knows, and `forget` does nothing.

    branch    path                content of a file
    DATA      the mount itself    any sample of the class that was asked for
    EXACT     .redoxfs/exact/…    the file itself
    SERVED    .redoxfs/served/…   the path of the file whose bytes the entry last served
    CONTROL   .redoxfs            and its files: stats.json, history.json, accesslog, served-by-inode, batches/
"""

from enum import IntEnum

import pyfuse3

BRANCH_SHIFT = 40
"""2^40 entries are far more than in any catalog."""

FIRST_OUTSIDE_DATA = 1 << BRANCH_SHIFT


class Branch(IntEnum):
    DATA = 0
    EXACT = 1
    SERVED = 2
    CONTROL = 3


# A look-up of a member in its Enum takes longer than a comparison of numbers.
DATA, EXACT, SERVED, CONTROL = Branch

CONTROL_NAME = b".redoxfs"
CONTROL_INODE = pyfuse3.InodeT(CONTROL << BRANCH_SHIFT)
STATS_NAME = b"stats.json"
STATS_INODE = pyfuse3.InodeT(CONTROL_INODE + 1)
HISTORY_NAME = b"history.json"
HISTORY_INODE = pyfuse3.InodeT(CONTROL_INODE + 2)
ACCESS_LOG_NAME = b"accesslog"
# As in native/requests.h.
ACCESS_LOG_INODE = pyfuse3.InodeT(CONTROL_INODE + 3)
SERVED_BY_INODE = pyfuse3.InodeT(CONTROL_INODE + 4)
SERVED_BY_INODE_NAME = b"served-by-inode"
BATCHES_INODE = pyfuse3.InodeT(CONTROL_INODE + 5)
BATCHES_NAME = b"batches"
MARK_INODE = pyfuse3.InodeT(CONTROL_INODE + 6)
BRANCH_NAMES = {b"exact": EXACT, b"served": SERVED}


def inode_of(branch: Branch, entry: int) -> pyfuse3.InodeT:
    """The inode number of a tree entry in a branch. The root of DATA is FUSE's root, 1."""
    return pyfuse3.InodeT((branch << BRANCH_SHIFT) + entry + 1)


def branch_and_entry(inode: int) -> tuple[Branch, int]:
    """The inverse of `inode_of`. For CONTROL the entry has no meaning."""
    if inode < FIRST_OUTSIDE_DATA:
        return DATA, inode - 1
    return Branch(inode >> BRANCH_SHIFT), (inode & (FIRST_OUTSIDE_DATA - 1)) - 1
