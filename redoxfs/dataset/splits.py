"""The split of a path, by name. Train and validation must never mix.

One split too many costs a little mixing; one too few trains on validation data. So every piece of a path that looks
like the name of a split counts: a whole component (`val`, `train2017`, `train-clean-100`, `images_val`, `trainset`),
and a word of a file's own name (`train_0001.jpg`, `0001_test.png`, `COCO_val2014_000000000042.jpg`).

Where a split is evidence for `--classes auto`, the rules are stricter: `is_split` requires the word at one end of the
name, and `is_split_word` allows nothing else in the name.
"""

from __future__ import annotations

import re
import stat

import numpy as np
from numpy.typing import NDArray

from redoxfs.dataset.errors import show
from redoxfs.dataset.stems import hash_text, stems_of
from redoxfs.dataset.tree import Tree

SPLIT_WORDS = (
    b"train",
    b"training",
    b"trainval",
    b"val",
    b"valid",
    b"validation",
    b"test",
    b"testing",
    b"dev",
    b"eval",
    b"holdout",
    b"extra",
)
# The part of the data that a word means, if that is not the word itself.
_PARTS = {
    b"training": (b"train",),
    b"trainval": (b"train", b"val"),
    b"valid": (b"val",),
    b"validation": (b"val",),
    b"testing": (b"test",),
}

# For names of files: titles of pictures have "extra" for other reasons. It is last, so the others keep their bits.
_WORDS_OF_FILES = tuple(word for word in SPLIT_WORDS if word != b"extra")

_WORDS = b"(?:%s)(?:_?(?:set|data|images|imgs|files))?" % b"|".join(SPLIT_WORDS)
# A split by its name: the word at either end, with a separator between it and the rest; digits may follow the word.
_IS_SPLIT = re.compile(rb"(?:%s)(?:\d+|\d*[-_. ].*)?|.*[-_. ()](?:%s)\d*" % (_WORDS, _WORDS), re.IGNORECASE | re.DOTALL)
# The word anywhere in the name, between separators; digits may follow it.
_HAS_SPLIT = re.compile(rb"(?:.*[-_. ()])?(?:%s)\d*(?:[-_. ()].*)?" % _WORDS, re.IGNORECASE | re.DOTALL)
_EACH_SPLIT = re.compile(
    rb"(?<![^-_. ()])(%s)(?:_?(?:set|data|images|imgs|files))?\d*(?![^-_. ()])" % b"|".join(SPLIT_WORDS), re.IGNORECASE
)

_ANY_SPLIT = re.compile(b"|".join(sorted(SPLIT_WORDS, reverse=True)))


def is_split(component: bytes) -> bool:
    """Whether a directory of this name is a split: train, val2017, train-clean-100, test_A, seg_test."""
    return _IS_SPLIT.fullmatch(component) is not None


def is_split_word(component: bytes) -> bool:
    """Whether the whole name is the word: train, Validation."""
    return component.lower() in SPLIT_WORDS


def parts_named(component: bytes) -> frozenset[bytes]:
    """The parts of the data that a name mentions: {train} for training_set, {train, val} for trainval2012."""
    words = (word.lower() for word in _EACH_SPLIT.findall(component))
    return frozenset(part for word in words for part in _PARTS.get(word, (word,)))


def names_split(component: bytes) -> bool:
    """Whether the name has a split word among other words: images_train, bounding_box_test."""
    return _HAS_SPLIT.fullmatch(component) is not None


def without_split(component: bytes) -> tuple[bytes, bytes] | None:
    """The split word anywhere in this name, also without separators, and the name without it, in lower case.

    "mytest" and "mytrain" are two splits, because without their words they are one name. "contest" alone is not.
    """
    found = _ANY_SPLIT.search(component.lower())
    if found is None:
        return None
    return found.group(), found.string[: found.start()] + b"*" + found.string[found.end() :]


def split_of_directory(tree: Tree) -> tuple[NDArray[np.int32], list[tuple[bytes, ...]]]:
    """The split key of each directory: int32[N] (0 for other entries) into a list of keys; key 0 is ().

    A key has the components of the path that look like splits, in lower case, from the top.
    """
    keys: dict[tuple[bytes, ...], int] = {(): 0}
    key_list: list[tuple[bytes, ...]] = [()]
    of = np.zeros(len(tree), np.int32)
    for directory in np.flatnonzero(tree.kind_mask(stat.S_IFDIR)).tolist()[1:]:
        name = tree.name(directory)
        key = int(of[tree.parent[directory]])
        if _HAS_SPLIT.fullmatch(name):
            longer = (*key_list[key], name.lower())
            key = keys.setdefault(longer, len(keys))
            if key == len(key_list):
                key_list.append(longer)
        of[directory] = key
    return of, key_list


def split_of_name(tree: Tree, entries: NDArray[np.int64]) -> NDArray[np.int32]:
    """The split words in the files' own names: a bit set over SPLIT_WORDS, int32[len(entries)]. `entries` ascend."""
    known = np.array([hash_text(word) for word in _WORDS_OF_FILES], np.uint64)
    order = np.argsort(known)
    known = known[order]
    bit = (1 << order).astype(np.int32)
    found = []
    for stems in stems_of(tree.names, tree.name_at, entries):
        owner, start, end = stems.words()
        short = end - start <= max(map(len, SPLIT_WORDS))
        owner, hashes = owner[short], stems.hash_of(start[short], end[short])
        at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
        hit = known[at] == hashes
        bits = np.zeros(len(stems.entry), np.int32)
        np.bitwise_or.at(bits, owner[hit], bit[at[hit]])
        found.append(bits)
    return np.concatenate(found) if found else np.zeros(0, np.int32)


def splits_of(tree: Tree, entries: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[str], list[str]]:
    """The split of each file: int64[len(entries)], and for each number the text of the split and of the name's part.

    For val/0001_test.png, the split is "val/test" and the name's part "test". `entries` ascend.
    """
    of_directory, keys = split_of_directory(tree)
    said = np.array([_words_in(key) for key in keys], np.int32)[of_directory[tree.parent[entries]]]
    bits = split_of_name(tree, entries)
    # val/ILSVRC2012_val_00000293.JPEG has val twice. (Below "train_val", the word in a name adds information.)
    one_word = (said & (said - 1)) == 0
    bits[one_word] &= ~said[one_word]
    pairs, code = np.unique(of_directory[tree.parent[entries]].astype(np.int64) << 32 | bits, return_inverse=True)
    texts, added = [], []
    for pair in pairs.tolist():
        own = "+".join(word.decode() for at, word in enumerate(SPLIT_WORDS) if (pair & 0xFFFFFFFF) >> at & 1)
        above = show(b"/".join(keys[pair >> 32])) if pair >> 32 else ""
        texts.append("/".join(filter(None, (above, own))))
        added.append(own)
    return code.astype(np.int64), texts, added


def _words_in(key: tuple[bytes, ...]) -> int:
    bits = 0
    for piece in re.findall(rb"[a-z]+", b" ".join(key)):
        if piece in SPLIT_WORDS:
            bits |= 1 << SPLIT_WORDS.index(piece)
    return bits
