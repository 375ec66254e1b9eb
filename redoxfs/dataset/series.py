"""Whether the names in one directory come in several kinds, and so say more than the directory does.

cat/cat_01 … cat/cat_99 says "cat" as the directory does, and numbers its files. fold1/dog_1 and fold1/cat_2
says what the directory does not. Two questions are asked of each directory:

- heads: what is before the number that a name ends with? (jump_v01_f003 and jump_v02_f001: two videos)
- skeletons: what is left when all numbers are alike? (person1_bacteria_2 and person7_virus_1: two germs)

One head or skeleton for all is a numbering. Those of single files are chance: random names and hashes have one
each. Two that have several files each are a doubt.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from redoxfs.dataset.mirrors import SCATTER, Pair
from redoxfs.dataset.stems import stems_of
from redoxfs.dataset.tree import Tree

# Of a directory's files, those under repeated heads other than the most frequent one. Chance gives random names of 5 to
# 36 characters 0.2 % at most, in directories of 20 to 2,000 files (only hexadecimal ones of less than 8 digits give
# more). A label in the names of fewer files than this goes unseen.
SERIES_SHARE = 0.01

_Rows = tuple[NDArray[np.uint64], NDArray[np.int64]]


def several(tree: Tree, entries: NDArray[np.int64]) -> Pair | None:
    """Two of `entries` (ascending samples) of one directory with names of two kinds, or None."""
    if not len(entries):
        return None
    heads: list[_Rows] = []
    skeletons: list[_Rows] = []
    for stems in stems_of(tree.names, tree.name_at, entries):
        owner, head = stems.heads()
        heads.append((head, stems.entry[owner]))
        skeletons.append((stems.skeletons(), stems.entry))
    for rows in (skeletons, heads):
        keys, of = (np.concatenate(column) for column in zip(*rows, strict=True))
        pair = _two_kinds(tree, entries, keys, of)
        if pair is not None:
            return pair
    return None


def _two_kinds(tree: Tree, entries: NDArray[np.int64], keys: NDArray[np.uint64], of: NDArray[np.int64]) -> Pair | None:
    parent = tree.parent[of].astype(np.int64)
    order = np.argsort(keys ^ parent.astype(np.uint64) * SCATTER, kind="stable")
    keys, of, parent = keys[order], of[order], parent[order]
    new = np.ones(len(keys), bool)
    new[1:] = (keys[1:] != keys[:-1]) | (parent[1:] != parent[:-1])
    at = np.flatnonzero(new)
    files = np.diff(np.append(at, len(keys)))
    at, files = at[files >= 2], files[files >= 2]
    directory = parent[at]
    size = np.bincount(tree.parent[entries])
    repeated = np.bincount(directory, weights=files, minlength=len(size))
    most = np.zeros(len(size), np.int64)
    np.maximum.at(most, directory, files)
    others = repeated - most
    mixed = np.flatnonzero((others > 0) & (others >= SERIES_SHARE * size))
    if not len(mixed):
        return None
    # The first by name of the two most frequent kinds are the example.
    there = np.flatnonzero(directory == mixed[0])
    two = there[np.lexsort((of[at[there]], -files[there]))[:2]]
    one, other = sorted(int(of[at[run]]) for run in two)
    return one, other
