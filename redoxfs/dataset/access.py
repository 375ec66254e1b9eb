"""The readers of a file, by owners and modes. They are part of a file's class.

On a mount for several users the kernel checks the modes of the path that is opened. A stand-in with other modes
could give a user a file that the user may not read. So files stand in for each other only if the same users may read
them: equal owner, group and read bits, and the same for all directories above.
"""

from __future__ import annotations

import stat

import numpy as np
from numpy.typing import NDArray

from redoxfs.dataset.tree import Tree

READ = 0o444
ENTER = 0o111


def readers_of(tree: Tree, entries: NDArray[np.int32]) -> NDArray[np.int64]:
    """A number for each file. Equal numbers mean that, by owners and modes, the same users can read the files."""
    own = _conditions(tree, entries.astype(np.int64), READ)
    return _dense(_way_to(tree)[tree.parent[entries]] << 32 | own)


def _conditions(tree: Tree, entries: NDArray[np.int64], bits: int) -> NDArray[np.int64]:
    """A number for (owner, group, mode) of each entry. The owner and group count only where their rights differ."""
    mode = tree.mode[entries].astype(np.int64) & bits
    other = bits & 0o7
    user_may, group_may, other_may = (mode & other << shift != 0 for shift in (6, 3, 0))
    gid = np.where(group_may == other_may, 0, tree.gid[entries]).astype(np.int64)
    uid = np.where((user_may == group_may) & (group_may == other_may), 0, tree.uid[entries]).astype(np.int64)
    return _dense(_dense(uid << 32 | gid) << 9 | mode)


def _dense(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    if len(codes) and (codes == codes[0]).all():
        return np.zeros(len(codes), np.int64)
    return np.unique(codes, return_inverse=True)[1].astype(np.int64)


def _way_to(tree: Tree) -> NDArray[np.int64]:
    """A number for each directory (int64[N]), equal where the path to it has the same conditions."""
    directories = np.flatnonzero(tree.kind_mask(stat.S_IFDIR))
    own = np.zeros(len(tree), np.int64)
    own[directories] = _conditions(tree, directories, ENTER)
    way = np.zeros(len(tree), np.int64)
    # A user who meets a condition once meets it again, so the set of conditions counts and not the depth.
    ids: dict[frozenset[int], int] = {frozenset((int(own[0]),)): 0}
    sets = list(ids)
    level = directories[:1]
    rest = directories[1:]
    while len(rest):
        # Breadth first: the directories of one level are contiguous, and so are their parents.
        stop = int(np.searchsorted(tree.parent[rest], level[-1], side="right"))
        level, rest = rest[:stop], rest[stop:]
        pairs, inverse = np.unique(way[tree.parent[level]] << 32 | own[level], return_inverse=True)
        numbers = []
        for pair in pairs.tolist():
            longer = sets[pair >> 32] | {pair & 0xFFFFFFFF}
            numbers.append(ids.setdefault(longer, len(ids)))
            if len(ids) > len(sets):
                sets.append(longer)
        way[level] = np.array(numbers, np.int64)[inverse]
    return way
