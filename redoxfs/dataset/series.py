"""Find directories with several kinds of file names, which have more information than the directory.

cat/cat_01 … cat/cat_99 repeat the directory's name and number the files. fold1/dog_1 and fold1/cat_2 add something
that the directory does not have. Two questions are asked of each directory:

- heads: what comes before the number at the end of a name? (jump_v01_f003 and jump_v02_f001: two videos)
- skeletons: what is left if all numbers are equal? (person1_bacteria_2 and person7_virus_1: two germs)

One head or skeleton for all files is a numbering. A head or skeleton of a single file is chance: random names and
hashes have one each. Two that have several files each are a doubt.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from redoxfs.dataset.mirrors import SCATTER, Pair
from redoxfs.dataset.stems import stems_of
from redoxfs.dataset.tree import Tree

# The share of a directory's files under repeated heads other than the most frequent one. By chance, random names of 5
# to 36 characters reach at most 0.2 % in directories of 20 to 2,000 files (only hexadecimal names of less than 8 digits
# reach more). A label in the names of fewer files than this is not noticed.
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
    # The example: the first by name of each of the two most frequent kinds.
    there = np.flatnonzero(directory == mixed[0])
    two = there[np.lexsort((of[at[there]], -files[there]))[:2]]
    one, other = sorted(int(of[at[run]]) for run in two)
    return one, other
