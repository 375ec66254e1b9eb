"""The proof that file names say nothing, for `--classes auto` (see evidence).

What a script can read out of a name, a substitute gets wrong. So in each class a name must be text that all files of
the class have, and one *identity*: an integer, a hash, a UUID, a random string, or Flickr's number and secret, which is
different in every file. Any other name is information: a second number, a value that repeats, a word, a decimal.

An identity alone may still say something, and then it is not random. An integer may count frames, join a patient and a
slice, or be a time or a price; equal identities in two classes may be the two halves of a pair. So identities must also
look as if they were drawn at random (see randomness). WordNet ids as classes are reason enough without that:
ImageNet's images are numbered so, and no pair and no clip lies in directories with such names.

All classes are judged at once, as a matrix of bytes with a row for each name. Millions of Python strings take minutes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from redoxfs.arrays import is_in
from redoxfs.dataset.errors import show
from redoxfs.dataset.mirrors import SCATTER
from redoxfs.dataset.randomness import Identities, Told, counted, shared
from redoxfs.dataset.scene import STEM, Against
from redoxfs.dataset.stems import PIECE_BYTES
from redoxfs.dataset.tree import Tree

# Integers of more digits than int64 holds are judged as text.
DIGITS_MAX = 18
HEX_MIN_BYTES = 8
RANDOM_MIN_BYTES = 6
EXAMPLES_MAX = 100_000

_DIGITS, _HEXES, _LOWER, _UPPER, _LINKS = (
    is_in(np.arange(256, dtype=np.uint8), np.frombuffer(text, np.uint8))
    for text in (
        b"0123456789",
        b"0123456789abcdefABCDEF",
        b"abcdefghijklmnopqrstuvwxyz",
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        b"-_",
    )
)


def told(tree: Tree, entries: NDArray[np.int64], *, known: bool) -> Told | None:
    """What the names of `entries`, the samples of whole directories, may say; None if they are opaque.

    The directories are classes of one split. `known`: they are named with WordNet ids.
    """
    entries = entries[np.argsort(tree.parent[entries], kind="stable")]
    pieces: list[Identities] = []
    for piece in _whole_directories(tree, entries):
        found = _read(tree, piece)
        if isinstance(found, Told):
            return found
        pieces.append(found)
    if known or not pieces:
        return None
    ids = _joined(pieces)
    return shared(ids) or counted(ids)


def _whole_directories(tree: Tree, entries: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """The samples in directories with two or more, in pieces that divide no directory."""
    parent = tree.parent[entries]
    starts = np.flatnonzero(np.append(True, parent[1:] != parent[:-1])[: len(parent)])
    sizes = np.diff(np.append(starts, len(parent)))
    taken = np.repeat(sizes > 1, sizes)
    entries, sizes = entries[taken], sizes[sizes > 1]
    length = (
        np.add.reduceat(tree.name_at[entries + 1] - tree.name_at[entries], np.cumsum(sizes) - sizes)
        if len(entries)
        else sizes
    )
    number = np.cumsum(length) // PIECE_BYTES
    ends = np.cumsum(sizes)
    for part in np.split(entries, ends[np.flatnonzero(np.diff(number))]):
        if len(part):
            yield part


def _joined(pieces: list[Identities]) -> Identities:
    groups, first = [], 0
    for piece in pieces:
        groups.append(piece.group + first)
        first += int(piece.group[-1]) + 1
    entry, key, value = (
        np.concatenate([getattr(piece, name) for piece in pieces]) for name in ("entry", "key", "value")
    )
    return Identities(entry, np.concatenate(groups), key, value)


def _unlike(tree: Tree, entries: NDArray[np.int64], rows: NDArray[np.int64]) -> tuple[int, int]:
    """Two of `rows` as an example of what varies: of the rarest and the commonest form, or the first and the last.

    Of a large directory, the first names are looked at.
    """
    forms: dict[bytes, list[int]] = {}
    for row in rows[:EXAMPLES_MAX].tolist():
        form = re.sub(rb"[0-9a-fA-F]{4,}|\d+", b"#", tree.name(int(entries[row])))
        forms.setdefault(form, []).append(row)
    rarest, commonest = min(forms.values(), key=len), max(forms.values(), key=len)
    if len(rarest) < len(commonest):
        return rarest[0], commonest[0]
    return int(rows[0]), int(rows[-1])


def _varying(one: bytes, other: bytes) -> bytes:
    """The words and numbers of a name in which another name differs: `034201 and 14` of `034201_age14`."""
    words, others = (re.findall(rb"\d+|[^\W\d_]+", text) for text in (one, other))
    differ = [a for a, b in zip(words, others, strict=False) if a != b]
    return b" and ".join(differ) if len(words) == len(others) and differ else one


def _read(tree: Tree, entries: NDArray[np.int64]) -> Identities | Told:
    """The identities of samples in whole directories, or the first name that has no single one."""
    parent = tree.parent[entries]
    at = np.flatnonzero(np.append(True, parent[1:] != parent[:-1]))
    group = np.repeat(np.arange(len(at)), np.diff(np.append(at, len(entries))))
    start, end, text = _stems(tree, entries)
    end = _without_roboflow(text, start, end, at, group)
    width = int((end - start).max())
    # Rows are stems, from their beginning and from their end; 0 elsewhere.
    columns = np.arange(width)
    left = text[np.minimum(start[:, None] + columns, len(text) - 1)]
    left[columns >= (end - start)[:, None]] = 0
    right = text[np.maximum(end[:, None] - 1 - columns, 0)]
    right[columns >= (end - start)[:, None]] = 0
    shortest = np.minimum.reduceat(end - start, at)
    head = np.minimum(_alike(left, at, group), shortest)
    tail = np.minimum(_alike(right, at, group), shortest)
    # A number does not begin or end within its digits.
    for _ in range(width):
        head -= (head > 0) & _DIGITS[left[at, np.maximum(head - 1, 0)]]
        tail -= (tail > 0) & _DIGITS[right[at, np.maximum(tail - 1, 0)]]
    tail = np.minimum(tail, shortest - head)
    size = end - start - (head + tail)[group]
    first = head[group]
    inside = (columns >= first[:, None]) & (columns < (first + size)[:, None])
    del right
    kind = _kinds(left, inside, size, first, at)
    none = np.flatnonzero(kind == 0)
    if len(none):
        rows = _unlike(tree, entries, np.flatnonzero(group == none[0]))
        one, other = (text[start[row] + first[row] :][: size[row]].tobytes() for row in rows)
        varying = show(_varying(one, other))
        what = f"has more in its name than an identity ({varying})"
        return Told((int(entries[rows[0]]),), what, f"use {varying} in", Against.ANY)
    integer = (kind == 1)[group]
    value = np.where(integer, 0, -1)
    key = np.zeros(len(entries), np.uint64)
    for column in range(width):
        here, byte = inside[:, column], left[:, column]
        key = np.where(here, (key + byte.astype(np.uint64) + np.uint64(1)) * SCATTER, key)
        value = np.where(here & integer, value * 10 + byte - 48, value)
    key = np.where(integer, value.astype(np.uint64), key ^ (key >> np.uint64(29)))
    order = np.lexsort((key, group))
    again = np.flatnonzero((key[order][1:] == key[order][:-1]) & (group[order][1:] == group[order][:-1]))
    if len(again):
        first_two = tuple(sorted(int(entries[row]) for row in order[again[0] : again[0] + 2]))
        return Told(first_two, "may be parts of one sample", "pair", Against.DIR | Against.ANY, STEM)
    texts = (kind == 2)[group]
    if texts.any():
        uneven = _uneven_text(left[texts], inside[texts], group[texts])
        if uneven is not None:
            entry = int(entries[np.flatnonzero(texts)[uneven]])
            return Told((entry,), "has a name that is not random", "use a part of", Against.ANY)
    return Identities(entries, group, key, value)


def _stems(tree: Tree, entries: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """Where the stems lie in a text: the names up to the last dot, unless it is the first byte."""
    first = tree.name_at[entries]
    length = tree.name_at[entries + 1] - first
    stop = np.cumsum(length)
    start = stop - length
    text = tree.names[np.repeat(first - start, length) + np.arange(int(stop[-1]))]
    dots = np.flatnonzero(text == ord("."))
    last = np.append(dots, -1)[np.searchsorted(dots, stop) - 1]
    return start, np.where(last > start, last, stop), text


def _without_roboflow(
    text: NDArray[np.uint8],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    at: NDArray[np.int64],
    group: NDArray[np.int64],
) -> NDArray[np.int64]:
    """The ends of stems without the `.rf.` and 32 hexadecimal digits that Roboflow adds to each name of a class."""
    long = end - start > 36
    place = np.maximum(end - 36, 0)
    marked = long.copy()
    for offset, byte in enumerate(b".rf."):
        marked &= text[place + offset] == byte
    for offset in range(4, 36):
        marked &= _HEXES[text[np.minimum(place + offset, len(text) - 1)]]
    shorter: NDArray[np.int64] = np.where(np.logical_and.reduceat(marked, at)[group], end - 36, end)
    return shorter


def _alike(rows: NDArray[np.uint8], at: NDArray[np.int64], group: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of first columns that are equal in all rows of each group."""
    equal = np.logical_and.reduceat(rows == rows[at][group], at, axis=0)
    count: NDArray[np.int64] = np.where(equal.all(axis=1), rows.shape[1], np.argmin(equal, axis=1))
    return count


def _kinds(
    rows: NDArray[np.uint8],
    inside: NDArray[np.bool_],
    size: NDArray[np.int64],
    first: NDArray[np.int64],
    at: NDArray[np.int64],
) -> NDArray[np.int64]:
    """The kind of each group's identity: 1 integer, 2 text of one length, 3 Flickr's; 0 none."""

    def all_of(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = np.logical_and.reduceat(mask, at)
        return found

    def count(table: NDArray[np.bool_]) -> NDArray[np.int64]:
        found: NDArray[np.int64] = (table[rows] & inside).sum(axis=1)
        return found

    some = size > 0
    digits, hexes, lower, upper = count(_DIGITS), count(_HEXES), count(_LOWER), count(_UPPER)
    links = count(_LINKS)
    dashes = (rows == ord("-")) & inside
    fixed = np.maximum.reduceat(size, at) == np.minimum.reduceat(size, at)
    # 0.53 and -17 are measurements.
    row = np.arange(len(rows))
    before = np.where(first > 0, rows[row, np.maximum(first - 1, 0)], 0)
    before2 = np.where(first > 1, rows[row, np.maximum(first - 2, 0)], 0)
    follow = first + size
    width = rows.shape[1]
    after = np.where(follow < width, rows[row, np.minimum(follow, width - 1)], 0)
    after2 = np.where(follow + 1 < width, rows[row, np.minimum(follow + 1, width - 1)], 0)
    decimal = ((before == ord(".")) & _DIGITS[before2]) | ((after == ord(".")) & _DIGITS[after2])
    integer = all_of(some & (digits == size) & (size <= DIGITS_MAX) & ~decimal)
    hexadecimal = all_of((hexes == size) & (size >= HEX_MIN_BYTES)) & fixed
    uuid = all_of((hexes + dashes.sum(axis=1) == size) & (size >= 30) & (dashes.sum(axis=1) == 4)) & fixed
    mixed = ((digits > 0).astype(int) + (lower > 0) + (upper > 0)) >= 2
    share = np.add.reduceat(mixed, at) / np.add.reduceat(np.ones(len(rows)), at)
    # A separator in one place of all names divides fields.
    divided = (np.logical_and.reduceat(_LINKS[rows] & inside, at, axis=0)).any(axis=1)
    random = all_of((digits + lower + upper + links == size) & (size >= RANDOM_MIN_BYTES))
    # Six hexadecimal digits are a color.
    random &= fixed & ~divided & (share > 0.7) & ~all_of((hexes == size) & (size < HEX_MIN_BYTES))
    flickr = all_of(_flickr(rows, size, first))
    return np.select([integer, hexadecimal | uuid | random, flickr], [1, 2, 3], 0)


def _flickr(rows: NDArray[np.uint8], size: NDArray[np.int64], first: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Rows with a number, `_`, ten hexadecimal digits and perhaps a size: 10140303_b88d3d6cec_n."""
    if rows.shape[1] <= 12:
        return np.zeros(len(rows), bool)
    at = np.arange(len(rows))
    last = np.minimum(first + size, rows.shape[1]) - 1
    sized = (size > 2) & (_LOWER[rows[at, last]]) & (rows[at, np.maximum(last - 1, 0)] == ord("_"))
    last = last - 2 * sized
    found: NDArray[np.bool_] = last - first >= 6 + 1 + 9
    place = np.maximum(last, 12)
    for back in range(10):
        found &= _HEXES[rows[at, place - back]]
    found &= rows[at, place - 10] == ord("_")
    columns = np.arange(rows.shape[1])
    number = (columns >= first[:, None]) & (columns < (place - 10)[:, None])
    found &= (_DIGITS[rows] | ~number).all(axis=1)
    return found


def _uneven_text(rows: NDArray[np.uint8], inside: NDArray[np.bool_], group: NDArray[np.int64]) -> int | None:
    """A row of a group in whose texts a place has few values, such as a speaker or a split before a hash; or None.

    A place with one value in the whole group says nothing. A UUID has four possible values in one place.
    """
    groups = int(group.max()) + 1
    bare = inside.sum(axis=1) == 32
    previous = np.zeros(len(rows), np.uint8)
    for column in range(rows.shape[1]):
        byte = rows[:, column]
        variant = (previous == ord("-")) | (bare & (column - np.argmax(inside, axis=1) == 16))
        here = inside[:, column] & ~variant
        previous = byte
        if not here.any():
            continue
        seen = np.bincount(group[here] * 256 + byte[here], minlength=groups * 256).reshape(groups, 256)
        n = seen.sum(axis=1)
        # The chance that two files have the same value: at most 1/10 for digits, and less for others.
        same = (seen * (seen - 1.0)).sum(axis=1) / np.maximum(n * (n - 1.0), 1)
        bound = 0.1 + 0.05 + 3 / np.maximum(n, 1)
        bad = np.flatnonzero((n > 2) & (same > bound) & ((seen > 0).sum(axis=1) > 1))
        if len(bad):
            return int(np.flatnonzero(group == bad[0])[0])
    return None
