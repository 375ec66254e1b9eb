"""Samples of several files in archives: whether there are any, and how their files lie."""

import stat

import numpy as np
from numpy.typing import NDArray

from redoxfs.dataset import Catalog, Tree
from redoxfs.dataset.bases import bases_of


def shares_stems(tree: Tree) -> bool:
    """Whether two files of a directory belong to one sample by their stems."""
    first_of, _ = bases_of(tree, np.flatnonzero(tree.kind_mask(stat.S_IFREG)), "stem")
    return bool((first_of != np.arange(len(first_of))).any())


def other_key(tree: Tree) -> bytes | None:
    """The name of a file that WebDataset gives another key than its stem; None if there is none."""
    files = np.flatnonzero(tree.kind_mask(stat.S_IFREG))
    (_, stems), (_, keys) = (bases_of(tree, files, groups) for groups in ("stem", "wds"))
    others = np.flatnonzero(stems != keys)
    return tree.name(int(files[others[0]])) if len(others) else None


def apart(catalog: Catalog, shard: NDArray[np.int32]) -> int:
    """A file of a sample whose files lie in two archives; -1 if there is none."""
    of = shard[catalog.members]
    first = np.repeat(of[catalog.member_at[:-1]], np.diff(catalog.member_at))
    wrong = np.flatnonzero(of != first)
    return int(catalog.members[wrong[0]]) if len(wrong) else -1


def scattered(catalog: Catalog, member: NDArray[np.int64]) -> int:
    """How many samples have a file of another one between theirs."""
    if not len(catalog.class_of):
        return 0
    of = member[catalog.members]
    starts = catalog.member_at[:-1]
    spans = np.maximum.reduceat(of, starts) - np.minimum.reduceat(of, starts) + 1
    return int(np.count_nonzero(spans > np.diff(catalog.member_at)))
