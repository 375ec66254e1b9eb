"""Samples of several files in archives: whether there are any, and how their files lie."""

import stat
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from redoxfs.dataset import Catalog, Tree
from redoxfs.dataset.groups import stem_bases, webdataset_bases


def shares_stems(tree: Tree) -> bool:
    """Whether two files of a directory belong to one sample by their stems."""
    return any(len(set(stem_bases(names))) < len(names) for names in _names(tree))


def other_key(tree: Tree) -> bytes | None:
    """The name of a file that WebDataset gives another key than its stem; None if there is none."""
    for names in _names(tree):
        for name, stem, key in zip(names, stem_bases(names), webdataset_bases(names), strict=True):
            if stem != key:
                return name
    return None


def _names(tree: Tree) -> Iterator[list[bytes]]:
    """The names of the files of each directory."""
    is_file = tree.kind_mask(stat.S_IFREG)
    for directory in np.flatnonzero(tree.kind_mask(stat.S_IFDIR)).tolist():
        children = tree.children_of(directory)
        taken = is_file[children.start : children.stop].tolist()
        yield [name for name, one in zip(tree.names_of(children), taken, strict=True) if one]


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
