"""Find files that look like samples but may be parts of one sample: image and mask, left and right, two frames.

By names alone, rgb/0001.png beside depth/0001.png is the same tree as airplane/0001.png beside automobile/0001.png.
Silent wrong labels are the worst outcome, so both are doubts; a user who knows better writes `--classes dir`. Two
questions are answered for all files at once, each by a sort of hashes (see stems):

- `across`: does a directory hold the stems of a sibling: whole (0001), as a prefix that only one file has
  (aachen_000019_leftImg8bit, aachen_000019_gtFine), after a word of its own (img_0001, M0001), without a scale
  (0001x4), or without the directory's own name (ROIs_s1_p0 in s1, ROIs_s2_p0 in s2)?
- `within`: does one directory hold pairs (0001.jpg + 0001.png, 0001.png + 0001_mask.png, image_1.png +
  mask_1.png)?

Thousands of files of a directory can share a prefix (a wnid, ILSVRC2012_val). Only a prefix that one file of the
directory has counts.
"""

from __future__ import annotations

from collections.abc import Iterator

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
_UNNAMED = np.uint64(0xC2B2AE3D27D4EB4F)
_BEHIND = np.uint64(0xD6E8FEB86659FD93)  # keeps hashes of endings apart from hashes of beginnings

_SPLITS = np.array([hash_text(word) for word in SPLIT_WORDS], np.uint64)

_Rows = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.bool_]]
Pair = tuple[int, int]


def across(tree: Tree, entries: NDArray[np.int64], group: NDArray[np.int32] | None = None) -> Pair | None:
    """Two of `entries` (ascending samples) in directories of one group that look like parts of one sample, or None.

    At least a tenth of a directory's samples must have such a twin in another directory of its group. `group` is the
    number of each directory's group (int32[N]); by default a directory's siblings are its group.
    """
    if not len(entries):
        return None
    if group is None:
        group = tree.parent
    pieces = [
        rows
        for stems, lone in _each(tree, entries)
        for rows in (_rows_across(stems, lone), _rows_scaled(stems), _rows_unnamed(stems, tree))
    ]
    keys, of, whole = (np.concatenate(column) for column in zip(*pieces, strict=True))
    parent = tree.parent[of].astype(np.int64)
    keys ^= group[parent].astype(np.uint64) * SCATTER
    order = np.lexsort((parent, keys))
    keys, of, whole, parent = keys[order], of[order], whole[order], parent[order]
    del order
    new_key = np.ones(len(keys), bool)
    new_key[1:] = keys[1:] != keys[:-1]
    new_run = new_key.copy()
    new_run[1:] |= parent[1:] != parent[:-1]
    # A run: the files of one directory under one key.
    run = np.cumsum(new_run) - 1
    files = np.bincount(run)
    run_at = np.flatnonzero(new_run)
    key_of_run = (np.cumsum(new_key) - 1)[run_at]
    few = np.bincount(key_of_run, weights=files <= PARTS_MAX)[key_of_run]
    twin = (files == 1) & (few > 1)
    # For a file alone in its directory, any prefix points at that file.
    size = np.bincount(tree.parent[entries])
    at = run_at[twin]
    at = at[whole[at] | (size[parent[at]] > 1)]
    twins = distinct(of[at])
    count = np.bincount(tree.parent[twins], minlength=len(size))
    mirrored = np.flatnonzero((count > 0) & (count >= MIRRORED_SHARE * size))
    if not len(mirrored):
        return None
    # The first by name is the example, so that the same tree always gives the same line.
    at = at[parent[at] == mirrored[0]]
    row = at[np.argmin(of[at])]
    return int(of[row]), int(of[(keys == keys[row]) & (parent != parent[row])].min())


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


def _each(tree: Tree, entries: NDArray[np.int64]) -> Iterator[tuple[Stems, NDArray[np.bool_]]]:
    """Stems in pieces, and whether all files of the directory begin with one word other than the directory's name."""
    lone_of_directory: dict[int, bool] = {}
    for stems in stems_of(tree.names, tree.name_at, entries):
        parent = tree.parent[stems.entry]
        directories, first, inverse = np.unique(parent, return_index=True, return_inverse=True)
        owner, place, _ = stems.leads()
        heads = np.zeros(len(stems.entry), np.uint64)
        heads[owner] = stems.hash_of(stems.start[owner], place)
        differs = heads != heads[first][inverse]
        mixed = np.bincount(inverse, weights=differs, minlength=len(directories)) > 0
        for at, directory in enumerate(directories.tolist()):
            name = tree.name(int(stems.entry[first[at]]))
            lone = not mixed[at] and bool(heads[first[at]]) and not _akin(name, tree.name(directory))
            lone_of_directory[directory] = lone_of_directory.get(directory, True) and lone
        yield stems, np.array([lone_of_directory[d] for d in directories.tolist()], bool)[inverse]


def _akin(file: bytes, directory: bytes) -> bool:
    """Whether a file's name begins like its directory's name: cat.1.jpg in cats, Annual_Crop_7.jpg in AnnualCrop."""
    one, other = (bytes(byte for byte in name.lower() if chr(byte).isalnum()) for name in (file, directory))
    head = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        head += 1
    return head > 0 and (head >= len(other) - 1 or head >= 3)


def _rows_across(stems: Stems, lone: NDArray[np.bool_]) -> _Rows:
    owner, place = stems.cuts()
    led, _, behind = stems.leads()
    led, behind = led[lone[led]], behind[lone[led]]
    of = np.concatenate((stems.entry, stems.entry[owner], stems.entry[led]))
    keys = np.concatenate(
        (stems.whole(), stems.hash_of(stems.start[owner], place), stems.hash_of(behind, stems.end[led]))
    )
    whole = np.ones(len(of), bool)
    whole[len(stems.entry) : len(stems.entry) + len(owner)] = False
    return keys, of, whole


def _rows_scaled(stems: Stems) -> _Rows:
    """0001x4 as 0001."""
    owner, end = stems.scales()
    return stems.hash_of(stems.start[owner], end), stems.entry[owner], np.ones(len(owner), bool)


def _rows_unnamed(stems: Stems, tree: Tree) -> _Rows:
    """Stems without the directory's name, if more is left than a number or a split (cat_1, train_cat_1)."""
    parent = tree.parent[stems.entry]
    directories, inverse = np.unique(parent, return_inverse=True)
    names = [tree.name(directory) for directory in directories.tolist()]
    name = np.array([hash_text(name) for name in names], np.uint64)[inverse]
    length = np.array([len(name) for name in names], np.int64)[inverse]
    whole = stems.end - stems.start
    owner = np.repeat(np.arange(len(whole)), whole)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(whole) - whole, whole) + stems.start[owner]
    fits = place + length[owner] <= stems.end[owner]
    owner, place = owner[fits], place[fits]
    hit = stems.hash_of(place, place + length[owner]) == name[owner]
    owner, place = owner[hit], place[hit]
    # A number counts as a whole: the 8 in IMG_1280 is not the name of the directory 8.
    within_number = stems.splits_number(owner, place) | stems.splits_number(owner, place + length[owner])
    owner, place = owner[~within_number], place[~within_number]
    first = np.ones(len(owner), bool)
    first[1:] = owner[1:] != owner[:-1]
    owner, place = owner[first], place[first]
    start, after, end = stems.start[owner], place + length[owner], stems.end[owner]
    told = stems.any_letter(start, place, SPLIT_WORDS) | stems.any_letter(after, end, SPLIT_WORDS)
    owner, start, place, after, end = owner[told], start[told], place[told], after[told], end[told]
    keys = stems.hash_of(start, place) * SCATTER + stems.hash_of(after, end) ^ _UNNAMED
    return keys, stems.entry[owner], np.ones(len(owner), bool)


def _rows_within(stems: Stems) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    owner, place = stems.cuts()
    change = np.flatnonzero(owner[1:] != owner[:-1])
    first = np.append(0, change + 1)[: len(owner)]
    last = np.append(change, len(owner) - 1)[: len(owner)]
    # A tail or head without digits is a role. One with digits counts something (g01_c02, frame7).
    tail = place[last] + 1
    ends = stems.end[owner[last]]
    # train_01 and val_01 are of two splits (see places.nested_splits), not parts of one sample.
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
