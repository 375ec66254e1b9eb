"""Find files of one directory that look like parts of one sample: 0001.jpg + 0001.png, 0001.png + 0001_mask.png.

Thousands of files of a directory can share a prefix (a wnid, ILSVRC2012_val). Only a prefix that few files of the
directory have counts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from redoxfs.arrays import distinct, is_in
from redoxfs.dataset.splits import SPLIT_WORDS
from redoxfs.dataset.stems import Stems, hash_text, stems_of
from redoxfs.dataset.tree import Tree

# One twin in a thousand files is chance. Parts of samples fill whole directories, apart from lost files.
MIRRORED_SHARE = 0.10
# More files than this with one name are not parts of one sample.
PARTS_MAX = 8

SCATTER = np.uint64(0x9FB21C651E98DF25)
_BEHIND = np.uint64(0xD6E8FEB86659FD93)  # keeps hashes of endings apart from hashes of beginnings

_SPLITS = np.array([hash_text(word) for word in SPLIT_WORDS], np.uint64)

Pair = tuple[int, int]


def within(tree: Tree, entries: NDArray[np.int64]) -> Pair | None:
    """Two of `entries` (ascending samples) of one directory that look like parts of one sample, or None.

    It must hold for at least a tenth of the directory's samples.
    """
    pieces = [_rows_within(stems) for stems in stems_of(tree.names, tree.name_at, entries)]
    keys, of = (np.concatenate(column) for column in zip(*pieces, strict=True))
    parent = tree.parent[of]
    keys ^= parent.astype(np.uint64) * SCATTER
    order = np.argsort(keys, kind="stable")
    keys, of, parent = keys[order], of[order], parent[order]
    new = np.ones(len(keys), bool)
    new[1:] = keys[1:] != keys[:-1]
    run = np.cumsum(new) - 1
    files = np.bincount(run)[run]
    part = (files > 1) & (files <= PARTS_MAX)
    size = np.bincount(tree.parent[entries])
    count = np.bincount(tree.parent[distinct(of[part])], minlength=len(size))
    paired = np.flatnonzero((count > 1) & (count >= MIRRORED_SHARE * size))
    if not len(paired):
        return None
    parts = np.flatnonzero(part & (parent == paired[0]))
    row = parts[np.argmin(of[parts])]
    return int(of[row]), int(of[(keys == keys[row]) & (of != of[row])].min())


def _rows_within(stems: Stems) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    owner, place = stems.cuts()
    change = np.flatnonzero(owner[1:] != owner[:-1])
    first = np.append(0, change + 1)[: len(owner)]
    last = np.append(change, len(owner) - 1)[: len(owner)]
    # A tail or head without digits is a role. One with digits counts something (g01_c02, frame7).
    tail = place[last] + 1
    ends = stems.end[owner[last]]
    # train_01 and val_01 are of two splits, not parts of one sample.
    role = last[(ends > tail) & ~stems.any_digit(tail, ends) & ~is_in(stems.hash_of(tail, ends), _SPLITS)]
    heads = stems.start[owner[first]]
    lead = first[~stems.any_digit(heads, place[first]) & ~is_in(stems.hash_of(heads, place[first]), _SPLITS)]
    keys = np.concatenate(
        (
            stems.whole(),
            stems.hash_of(stems.start[owner[role]], place[role]),
            stems.hash_of(place[lead] + 1, stems.end[owner[lead]]) ^ _BEHIND,
        )
    )
    return keys, np.concatenate((stems.entry, stems.entry[owner[role]], stems.entry[owner[lead]]))
