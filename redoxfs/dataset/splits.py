"""The split of a path, by name. Train and validation must never mix.

One split too many costs a little mixing; one too few trains on validation data. So every word of a path that is the
name of a split counts, in directories (`val`, `train2017`, `train-clean-100`, `images_val`, `trainset`, `TrainVideo`)
and in a file's own name (`train_0001.jpg`, `0001test.png`, `COCO_val2014_000000000042.jpg`). A word ends where its
letters end, or where a capital begins another word. A word inside another (`contest`, `trainer`) counts only in
directories, and only if a directory beside differs in nothing else (`mytrain` and `mytest`).

Where a split is evidence for `--classes auto`, the rules are stricter: `is_split` requires the word at one end of the
name, and `is_split_word` allows nothing else in the name.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from redoxfs.dataset.errors import show
from redoxfs.dataset.stems import Pieces, Stems, hash_text, stems_of
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

_ENDINGS = (b"", b"set", b"data", b"images", b"imgs", b"files")
# What a word of a name says: an index into SPLIT_WORDS. The ending may follow the word directly: trainset, valdata.
_SAYS = {word + ending: at for at, word in enumerate(SPLIT_WORDS) for ending in _ENDINGS}
_SHORTEST, _LONGEST = min(map(len, _SAYS)), max(map(len, _SAYS))
_HASHED = sorted((hash_text(word), at) for word, at in _SAYS.items())
_HASHES, _SAYS_BY_HASH = np.array([word for word, _ in _HASHED], np.uint64), np.array([at for _, at in _HASHED])
# Titles of pictures have "extra" for other reasons. In a file's name it counts only if there are no other letters.
_EXTRA = SPLIT_WORDS.index(b"extra")

_WORDS = b"(?:%s)(?:_?(?:%s))?" % (b"|".join(SPLIT_WORDS), b"|".join(_ENDINGS[1:]))
# A split by its name: the word at either end, with a separator or a digit between it and the rest.
_IS_SPLIT = re.compile(
    rb"(?:%s)(?:\d+|\d*[-_. ].*)?|.*[-_. ()\d](?:%s)\d*" % (_WORDS, _WORDS), re.IGNORECASE | re.DOTALL
)
# The word anywhere in the name, between separators or digits.
_HAS_SPLIT = re.compile(rb"(?:.*[-_. ()\d])?(?:%s)\d*(?:[-_. ()].*)?" % _WORDS, re.IGNORECASE | re.DOTALL)

# As `Stems.runs` and `Stems.words`.
_RUN = re.compile(rb"[A-Za-z]+")
_WORD = re.compile(rb"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

# Words may overlap: medieval has "eval" and "val".
_ANY_SPLIT = re.compile(b"(?=(%s))" % b"|".join(sorted(SPLIT_WORDS, reverse=True)))


def is_split(component: bytes) -> bool:
    """Whether a directory of this name is a split: train, val2017, train-clean-100, test_A, seg_test."""
    return _IS_SPLIT.fullmatch(component) is not None


def is_split_word(component: bytes) -> bool:
    """Whether the whole name is the word: train, Validation."""
    return component.lower() in SPLIT_WORDS


def parts_named(component: bytes) -> frozenset[bytes]:
    """The parts of the data that a name mentions: {train} for training_set, {train, val} for trainval2012."""
    words = (SPLIT_WORDS[at] for at in _said_by(component))
    return frozenset(part for word in words for part in _PARTS.get(word, (word,)))


def names_split(component: bytes) -> bool:
    """Whether the name has a split word among other words, between separators: images_train, bounding_box_test."""
    return _HAS_SPLIT.fullmatch(component) is not None


def _said_by(component: bytes) -> Iterator[int]:
    """What the words of a name say, as indices into SPLIT_WORDS."""
    for run in _RUN.findall(component):
        # TrainVal is one word of this kind.
        words = (run,) if run.lower() in _SAYS else _WORD.findall(run)
        yield from (_SAYS[word.lower()] for word in words if word.lower() in _SAYS)


def glued_splits(tree: Tree) -> dict[int, bytes]:
    """Directories, as entries, whose names differ from that of one beside in a split word alone, and the word.

    "mytest" and "mytrain" are two splits, because without their words they are one name. "contest" alone is not.
    """
    siblings: dict[int, dict[bytes, int]] = {}
    for directory in np.flatnonzero(tree.kind_mask(stat.S_IFDIR)).tolist()[1:]:
        siblings.setdefault(int(tree.parent[directory]), {})[tree.name(directory)] = directory
    return {entries[name]: word for entries in siblings.values() for name, word in glued_among(entries).items()}


def glued_among(names: Iterable[bytes]) -> dict[bytes, bytes]:
    """Of the names in one directory, those that differ from another in a split word alone, and the word."""
    alike: dict[bytes, dict[bytes, bytes]] = {}
    for name in names:
        lower = name.lower()
        for found in _ANY_SPLIT.finditer(lower):
            word = found.group(1)
            rest = lower[: found.start()] + b"*" + lower[found.start() + len(word) :]
            alike.setdefault(rest, {})[name] = word
    return {name: word for words in alike.values() if len(set(words.values())) > 1 for name, word in words.items()}


def split_of_directory(tree: Tree) -> tuple[NDArray[np.int32], list[tuple[bytes, ...]], list[int]]:
    """The split key of each directory: int32[N] (0 for other entries) into a list of keys; key 0 is ().

    A key has the components of the path that are splits, in lower case, from the top. The second list has the words of
    each key, a bit set over SPLIT_WORDS.
    """
    keys: dict[tuple[bytes, ...], int] = {(): 0}
    key_list: list[tuple[bytes, ...]] = [()]
    words = [0]
    of = np.zeros(len(tree), np.int32)
    glued = glued_splits(tree)
    for directory in np.flatnonzero(tree.kind_mask(stat.S_IFDIR)).tolist()[1:]:
        name = tree.name(directory)
        key = above = int(of[tree.parent[directory]])
        said = sum(1 << at for at in set(_said_by(name)))
        if not said and directory in glued:
            said = 1 << SPLIT_WORDS.index(glued[directory])
        if said:
            longer = (*key_list[above], name.lower())
            key = keys.setdefault(longer, len(keys))
            if key == len(key_list):
                key_list.append(longer)
                words.append(words[above] | said)
        of[directory] = key
    return of, key_list, words


def split_of_name(tree: Tree, entries: NDArray[np.int64]) -> NDArray[np.int32]:
    """The split words in the files' own names: a bit set over SPLIT_WORDS, int32[len(entries)]. `entries` ascend."""
    found = [_split_words(stems) for stems in stems_of(tree.names, tree.name_at, entries)]
    return np.concatenate(found) if found else np.zeros(0, np.int32)


def _split_words(stems: Stems) -> NDArray[np.int32]:
    runs, (owner, start, end) = stems.runs(), stems.words()
    said = _says_of(stems, runs)
    # TrainVal is one word of this kind.
    apart = said[np.searchsorted(runs[1], start, side="right") - 1] < 0
    words = (owner[apart], start[apart], end[apart])
    letters = stems.letters()
    bits = np.zeros(len(stems.entry), np.int32)
    for (owner, start, end), says in ((runs, said), (words, _says_of(stems, words))):
        counts = (says >= 0) & ((says != _EXTRA) | (end - start == letters[owner]))
        np.bitwise_or.at(bits, owner[counts], (1 << says[counts]).astype(np.int32))
    return bits


def _says_of(stems: Stems, pieces: Pieces) -> NDArray[np.int64]:
    """What each piece of a name says, an index into SPLIT_WORDS; -1: nothing."""
    _, start, end = pieces
    fits = np.flatnonzero((end - start >= _SHORTEST) & (end - start <= _LONGEST))
    hashes = stems.hash_of(start[fits], end[fits])
    at = np.minimum(np.searchsorted(_HASHES, hashes), len(_HASHES) - 1)
    says = np.full(len(start), -1, np.int64)
    says[fits] = np.where(_HASHES[at] == hashes, _SAYS_BY_HASH[at], -1)
    return says


def splits_of(tree: Tree, entries: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[str], list[str]]:
    """The split of each file: int64[len(entries)], and for each number the text of the split and of the name's part.

    For val/0001_test.png, the split is "val/test" and the name's part "test". `entries` ascend.
    """
    of_directory, keys, words = split_of_directory(tree)
    said = np.array(words, np.int32)[of_directory[tree.parent[entries]]]
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
