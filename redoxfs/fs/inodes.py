"""Inode numbers, which say what they stand for, and the names under ``.redoxfs``.

The tree never changes, so an inode number is an entry's number with a *branch* in its high bits; nothing has to be
remembered of what the kernel knows, and `forget` has nothing to do.

    branch      what a file of it serves
    DATA      a sample that may stand in for the one asked for
    EXACT     .redoxfs/exact/…    the very file
    SERVED    .redoxfs/served/…   the path of the file whose bytes it last gave
    CONTROL   .redoxfs itself, and stats.json
"""

from enum import IntEnum

import pyfuse3

BRANCH_SHIFT = 40
"""2^40 entries are far beyond any catalog."""

FIRST_OUTSIDE_DATA = 1 << BRANCH_SHIFT


class Branch(IntEnum):
    DATA = 0
    EXACT = 1
    SERVED = 2
    CONTROL = 3


# Looking a member up in its Enum takes longer than to tell from a number which it is.
DATA, EXACT, SERVED, CONTROL = Branch

CONTROL_NAME = b".redoxfs"
CONTROL_INODE = pyfuse3.InodeT(CONTROL << BRANCH_SHIFT)
STATS_NAME = b"stats.json"
STATS_INODE = pyfuse3.InodeT(CONTROL_INODE + 1)
BRANCH_NAMES = {b"exact": EXACT, b"served": SERVED}


def inode_of(branch: Branch, entry: int) -> pyfuse3.InodeT:
    """The inode number of a tree entry in a branch; the root of DATA is FUSE's root, 1."""
    return pyfuse3.InodeT((branch << BRANCH_SHIFT) + entry + 1)


def branch_and_entry(inode: int) -> tuple[Branch, int]:
    """Inverse of `inode_of`. For CONTROL the entry means nothing."""
    if inode < FIRST_OUTSIDE_DATA:
        return DATA, inode - 1
    return Branch(inode >> BRANCH_SHIFT), (inode & (FIRST_OUTSIDE_DATA - 1)) - 1
