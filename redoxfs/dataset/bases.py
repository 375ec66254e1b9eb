"""The names that samples of several files are known by: which files of a directory have a base in common.

Names are sorted within a directory, so those that begin with one key and a dot lie side by side. Comparing neighbours
finds nearly all bases of millions of names, eight bytes of all at a time. Python looks at the rest: directories that
have a name without a suffix, which may lie apart, and keys of which no file has one suffix alone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from redoxfs.arrays import distinct, is_in
from redoxfs.dataset.tree import Tree

WORD_BYTES = 8
"""Of names, compared at once."""


def stem_bases(names: list[bytes]) -> list[bytes]:
    """The stem of the group of each file of one directory.

    A stem is a name without its last suffix. A stem that extends another stem of the directory at a dot joins the
    shortest such stem.
    """
    stems = [name[:dot] if (dot := name.rfind(b".")) > 0 else name for name in names]
    known = set(stems)
    bases = []
    for stem in stems:
        dot = stem.find(b".", 1)
        while dot >= 0 and stem[:dot] not in known:
            dot = stem.find(b".", dot + 1)
        bases.append(stem if dot < 0 else stem[:dot])
    return bases


def webdataset_bases(names: list[bytes]) -> list[bytes]:
    """The key that WebDataset gives each file: its name up to the first dot."""
    return [name[:dot] if (dot := name.find(b".", 1)) > 0 else name for name in names]


BASES = {"stem": stem_bases, "wds": webdataset_bases}
"""By the value of --groups."""


def bases_of(tree: Tree, entries: NDArray[np.int64], groups: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which of ``entries`` (ascending) have a base in common: int64[n], the place of the first one that has it.

    And the length of each one's base, in bytes: int64[n].
    """
    start, end = tree.name_at[entries], tree.name_at[entries + 1]
    # A dot that begins a name begins no suffix.
    dots = np.append(np.flatnonzero(tree.names == ord(".")), len(tree.names))
    at = np.searchsorted(dots, start + 1)
    first, last = dots[at], dots[np.searchsorted(dots, end) - 1]
    has_suffix = first < end
    length = np.where(has_suffix, first, end) - start
    is_first = np.ones(len(entries), bool)
    is_first[1:] = ~_alike(tree, entries, start, length)
    first_of = np.maximum.accumulate(np.where(is_first, np.arange(len(entries)), 0))
    parent = tree.parent[entries]
    by_directory = is_in(parent, distinct(parent[~has_suffix]))
    _by_names(tree, entries, by_directory, parent, BASES[groups], first_of, length)
    if groups == "stem":
        has_stem = np.zeros(len(entries), bool)
        has_stem[first_of[has_suffix & (first == last)]] = True
        rest = ~has_stem[first_of] & ~by_directory
        _by_names(tree, entries, rest, first_of.copy(), stem_bases, first_of, length)
    return first_of, length


def words_of(tree: Tree) -> NDArray[np.uint8]:
    """The bytes from each byte of the names on, uint8[n, WORD_BYTES], with zeros behind the last. A view of a copy."""
    padded = np.append(tree.names, np.zeros(WORD_BYTES, np.uint8))
    return np.lib.stride_tricks.sliding_window_view(padded, WORD_BYTES)


def _alike(
    tree: Tree, entries: NDArray[np.int64], start: NDArray[np.int64], length: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Whether each name but the first lies in the directory of the one before, and begins with as long a key."""
    parent = tree.parent[entries]
    alike: NDArray[np.bool_] = (parent[1:] == parent[:-1]) & (length[1:] == length[:-1])
    windows = words_of(tree)
    left = np.flatnonzero(alike) + 1
    done = 0
    while len(left):
        # A shorter key has its bytes alone; the last word of a longer one overlaps the word before.
        unused = np.maximum(WORD_BYTES - length[left], 0).astype(np.uint64)
        step = np.minimum(done, np.maximum(length[left] - WORD_BYTES, 0))
        word, before = (windows[start[at] + step].view("<u8").ravel() for at in (left, left - 1))
        is_same = (word ^ before) << (unused * np.uint64(WORD_BYTES)) == 0
        alike[left[~is_same] - 1] = False
        done += WORD_BYTES
        left = left[is_same & (length[left] > done)]
    return alike


def _by_names(
    tree: Tree,
    entries: NDArray[np.int64],
    some: NDArray[np.bool_],
    together: NDArray[np.integer],
    bases_of_names: Callable[[list[bytes]], list[bytes]],
    first_of: NDArray[np.int64],
    length: NDArray[np.int64],
) -> None:
    """Set the result for ``some`` entries, by the names of those that are side by side and alike in ``together``."""
    places, text = np.flatnonzero(some), tree.names.data
    for part in np.split(places, np.flatnonzero(np.diff(together[places])) + 1) if len(places) else ():
        spans = zip(tree.name_at[entries[part]].tolist(), tree.name_at[entries[part] + 1].tolist(), strict=True)
        names = [bytes(text[begin:end]) for begin, end in spans]
        known: dict[bytes, int] = {}
        for place, base in zip(part.tolist(), bases_of_names(names), strict=True):
            first_of[place] = known.setdefault(base, place)
            length[place] = len(base)
