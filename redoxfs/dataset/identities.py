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

from redoxfs.arrays import distinct
from redoxfs.dataset.errors import show
from redoxfs.dataset.mirrors import SCATTER
from redoxfs.dataset.randomness import Identities, Told, apart, counted, shared
from redoxfs.dataset.scene import STEM, Against
from redoxfs.dataset.stems import DIGIT, LOWER, PIECE_BYTES, UPPER, bytes_in, texts_of
from redoxfs.dataset.tree import Tree

# Integers of more digits than int64 holds are judged as text.
DIGITS_MAX = 18
HEX_MIN_BYTES = 8
RANDOM_MIN_BYTES = 6
EXAMPLES_MAX = 100_000
ROBOFLOW_BYTES = 36
# At most these shares of the characters of a random text are digits, small letters, capitals: base 32 has a third of
# digits, base 62 less than half of small letters. Hexadecimal text has ten digits and six letters.
KIND_SHARES = (0.34, 0.55, 0.55)
HEX_SHARES = (0.63, 0.38, 0.38)
# What has a chance of less than 1 in 10**6 is no accident; among thousands of classes, of less than 1 in 10**9.
CHANCE, MANY_CLASSES = 6.0, 3.0

_HEX, _LINK, _POINT = bytes_in(b"0123456789abcdefABCDEF"), bytes_in(b"-_"), bytes_in(b".,p")
# What Roboflow adds to each name of a class, and names of Flickr: a number, a secret and perhaps a size.
_ROBOFLOW = re.compile(rb".+\.rf\.[0-9a-fA-F]{32}", re.DOTALL)
_FLICKR = re.compile(rb"(\d{6,11})_([0-9a-fA-F]{10})(?:_(?:[bcfhklmnoqstwz]|[3-6]k?))?")
_DATE = re.compile(rb"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])")
# Words before a number, perhaps with another one between, and behind it: score_0_, mK.
_BEFORE, _BEHIND = re.compile(rb"([A-Za-z]+)[-_. =\d]*$"), re.compile(rb"[-_ ]?([A-Za-z]+)")
_LAST_WORD = re.compile(rb"[A-Z][a-z]+$")
# Words beside numbers that are values or have an order. One letter counts only directly behind a number.
_UNITS = frozenset(b"a c g h k m n s v w".split())
_VALUES = frozenset(
    (
        b"frame frames frm slice slices page pages tile tiles step steps iter time timestamp sec secs msec usec min"
        b" hour day days month months year years age angle deg degree degrees azimuth elevation yaw pitch roll rot"
        b" rotation temp temperature kelvin celsius price cost cents usd eur score rating prob confidence dist"
        b" distance depth height width length alt altitude lat latitude lon lng longitude speed velocity kmh mph"
        b" steer steering throttle weight load force pressure count offset phase noise sigma snr kg mg km mm cm nm um"
        b" ms us ns mv ma hz khz db bpm mk pct percent area"
    ).split()
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
    entry, key, value = (
        np.concatenate([getattr(piece, name) for piece in pieces]) for name in ("entry", "key", "value")
    )
    ids = Identities(entry, _by_directory(tree, entry)[1], key, value)
    return shared(ids) or counted(ids) or apart(ids)


def _by_directory(tree: Tree, entries: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first row of each directory, and the number of each row's directory."""
    is_first = np.diff(tree.parent[entries], prepend=-1) != 0
    return np.flatnonzero(is_first), np.cumsum(is_first) - 1


def _whole_directories(tree: Tree, entries: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """The samples in directories with two or more, in pieces that divide no directory."""
    _, group = _by_directory(tree, entries)
    entries = entries[np.bincount(group)[group] > 1]
    if len(entries):
        ends = np.append(_by_directory(tree, entries)[0][1:], len(entries))
        number = np.cumsum(tree.name_at[entries + 1] - tree.name_at[entries])[ends - 1] // PIECE_BYTES
        yield from np.split(entries, ends[np.flatnonzero(np.diff(number))])


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
    at, group = _by_directory(tree, entries)
    text, start, end = texts_of(tree.names, tree.name_at, entries)

    rows_of = np.split(np.arange(len(entries)), at[1:])

    def of(row: int) -> bytes:
        return text[start[row] : end[row]].tobytes()

    for rows in rows_of:
        if all(_ROBOFLOW.fullmatch(of(row)) for row in rows.tolist()):
            end[rows] -= ROBOFLOW_BYTES
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
        head -= (head > 0) & DIGIT[left[at, np.maximum(head - 1, 0)]]
        tail -= (tail > 0) & DIGIT[right[at, np.maximum(tail - 1, 0)]]
    tail = np.minimum(tail, shortest - head)
    size = end - start - (head + tail)[group]
    first = head[group]
    inside = (columns >= first[:, None]) & (columns < (first + size)[:, None])
    del right
    kind = _kinds(left, inside, size, first, at)
    start, end = start + first, start + first + size
    for number in np.flatnonzero(kind == 0).tolist():
        # Few classes come here that are not Flickr's, and those end it.
        if not _are_of_flickr([of(row) for row in rows_of[number].tolist()]):
            unlike = _unlike(tree, entries, rows_of[number])
            varying = show(_varying(*map(of, unlike)))
            what = f"has more in its name than an identity ({varying})"
            return Told((int(entries[unlike[0]]),), what, f"use {varying} in", Against.ANY)
    for number in np.flatnonzero(kind == 1).tolist():
        row = int(at[number])
        stem, begin = left[row].tobytes().rstrip(b"\0"), int(head[number])
        word = _value_word(stem[:begin], stem[begin + int(size[row]) :])
        if word:
            what = f"has a number that may be a value or an order ({show(word)})"
            return Told((int(entries[row]),), what, "use the number of", Against.ANY)
    integer = (kind == 1)[group]
    hexadecimal = (kind == 2)[group]
    value = np.where(integer, 0, -1)
    key = np.zeros(len(entries), np.uint64)
    for column in range(width):
        here, byte = inside[:, column], left[:, column]
        # Hexadecimal text is the same in capitals, and a UUID without its dashes.
        here = here & ~(hexadecimal & (byte == ord("-")))
        byte = np.where(hexadecimal & UPPER[byte], byte + np.uint8(32), byte)
        key = np.where(here, (key + byte.astype(np.uint64) + np.uint64(1)) * SCATTER, key)
        value = np.where(here & integer, value * 10 + byte - 48, value)
    key = np.where(integer, value.astype(np.uint64), key ^ (key >> np.uint64(29)))
    order = np.lexsort((key, group))
    again = np.flatnonzero((key[order][1:] == key[order][:-1]) & (group[order][1:] == group[order][:-1]))
    if len(again):
        first_two = tuple(sorted(int(entries[row]) for row in order[again[0] : again[0] + 2]))
        return Told(first_two, "may be parts of one sample", "pair", Against.DIR | Against.ANY, STEM)
    texts = (kind >= 2)[group]
    if texts.any():
        uneven = _uneven_text(left[texts], inside[texts], group[texts])
        if uneven is not None:
            entry = int(entries[np.flatnonzero(texts)[uneven]])
            return Told((entry,), "has a name that is not random", "use a part of", Against.ANY)
        halved = _shared_halves(left[texts], inside[texts], group[texts])
        if halved is not None:
            two = np.flatnonzero(texts)[[*halved]]
            what = "share half of their names, as files of one speaker or one video do"
            return Told((int(entries[two[0]]), int(entries[two[1]])), what, "use a part of", Against.ANY)
        for of_kind, shares in ((2, HEX_SHARES), (3, KIND_SHARES)):
            rows = np.flatnonzero((kind == of_kind)[group])
            divided = _divided_text(left[rows], inside[rows], group[rows], shares)
            if divided is not None:
                what = "has letters and digits at fixed places of its name, as a size, a time or a plate has"
                return Told((int(entries[rows[divided]]),), what, "use a part of", Against.ANY)
    return Identities(entries, group, key, value)


def _are_of_flickr(names: list[bytes]) -> bool:
    """Whether names are numbers of photos with their secrets, and not two fields that look so."""
    found = [_FLICKR.fullmatch(name) for name in names]
    # A secret has a letter, but for one in a hundred.
    by_chance = HEX_SHARES[0] ** 10 * len(names)
    return (
        all(found)
        and len({match[1] for match in found if match}) == len(names)
        and sum(match[2].isdigit() for match in found if match) <= by_chance + 5 * by_chance**0.5 + 1
        and not (len(names) > CHANCE and all(_DATE.match(name) for name in names))
    )


def _value_word(before: bytes, behind: bytes) -> bytes:
    """The word beside a number that says that it is a value or has an order; b"" if there is none."""
    if behind[:1].lower() in _UNITS and not behind[1:2].isalpha():
        return behind[:1]
    words = [match[1] for match in (_BEFORE.search(before), _BEHIND.match(behind)) if match]
    # Of catFrame12, too.
    words += [match[0] for match in map(_LAST_WORD.search, words) if match]
    return next((word for word in words if word.lower() in _VALUES), b"")


def _alike(rows: NDArray[np.uint8], at: NDArray[np.int64], group: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of first columns that are equal in all rows of each group."""
    equal = np.logical_and.reduceat(rows == rows[at][group], at, axis=0)
    return np.where(equal.all(axis=1), rows.shape[1], np.argmin(equal, axis=1))


def _kinds(
    rows: NDArray[np.uint8],
    inside: NDArray[np.bool_],
    size: NDArray[np.int64],
    first: NDArray[np.int64],
    at: NDArray[np.int64],
) -> NDArray[np.int64]:
    """The kind of each group's identity: 1 integer, 2 hash or UUID, 3 random text of one length; 0 none of them."""

    def all_of(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return np.logical_and.reduceat(mask, at)

    def count(table: NDArray[np.bool_]) -> NDArray[np.int64]:
        return (table[rows] & inside).sum(axis=1)

    digits, hexes, lower, upper, links = map(count, (DIGIT, _HEX, LOWER, UPPER, _LINK))
    dashes = ((rows == ord("-")) & inside).sum(axis=1)
    fixed = np.maximum.reduceat(size, at) == np.minimum.reduceat(size, at)
    # 0.53 is a measurement, and so are 0,53 and 0p53.
    row, padded = np.arange(len(rows)), np.pad(rows, ((0, 0), (2, 2)))
    before2, before = padded[row, first], padded[row, first + 1]
    after, after2 = padded[row, first + size + 2], padded[row, first + size + 3]
    decimal = (_POINT[before] & DIGIT[before2]) | (_POINT[after] & DIGIT[after2])
    integer = all_of((size > 0) & (digits == size) & (size <= DIGITS_MAX) & ~decimal)
    hexadecimal = all_of((hexes == size) & (size >= HEX_MIN_BYTES))
    uuid = all_of((hexes + dashes == size) & (size >= 30) & (dashes == 4))
    mixed = ((digits > 0).astype(int) + (lower > 0) + (upper > 0)) >= 2
    share = np.add.reduceat(mixed, at) / np.add.reduceat(np.ones(len(rows)), at)
    # A separator in one place of all names divides fields.
    divided = (np.logical_and.reduceat(_LINK[rows] & inside, at, axis=0)).any(axis=1)
    random = all_of((digits + lower + upper + links == size) & (size >= RANDOM_MIN_BYTES))
    # Six hexadecimal digits are a color.
    random &= ~divided & (share > 0.7) & ~all_of((hexes == size) & (size < HEX_MIN_BYTES))
    return np.select([integer, fixed & (hexadecimal | uuid), fixed & random], [1, 2, 3], 0)


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


def _divided_text(
    rows: NDArray[np.uint8], inside: NDArray[np.bool_], group: NDArray[np.int64], shares: tuple[float, float, float]
) -> int | None:
    """A row of random texts in which digits, small letters or capitals have places of their own, or None.

    So do fields: 640x480, S012T345, AB12CDE. In random text each kind of character may stand in each place. A place
    that is alike in all names says nothing. Classes with texts of one length are judged together, and one by one.

    Args:
        shares: of the kinds of characters, at most.
    """
    size = inside.sum(axis=1)
    for length in distinct(size).tolist():
        of = np.flatnonzero(size == length)
        text = rows[of][inside[of]].reshape(len(of), length)
        kinds = np.stack([table[text] for table in (DIGIT, LOWER, UPPER)])
        both_cases = bool(kinds[1].any() and kinds[2].any())
        if not kinds[1:].any():
            # A number that is longer than those that are judged as numbers.
            continue
        # The chance that a place has one kind in n names is shares ** n.
        weight = -np.log10(np.where([True, both_cases, both_cases], shares, 1.0))
        # Any of the kinds, or several, may be what a place has.
        bound = CHANCE + length * np.log10(4)
        at = np.flatnonzero(np.diff(group[of], prepend=-1))
        names = np.diff(np.append(at, len(of)))
        for first, count in ((np.array([0]), np.array([len(of)])), (at, names)):
            varies = ~np.logical_and.reduceat(text == text[np.repeat(first, count)], first, axis=0)
            pure = (np.logical_and.reduceat(kinds, first, axis=1) & varies).sum(axis=2)
            bad = np.flatnonzero(count * (weight @ pure) > bound)
            if len(bad):
                return int(of[first[bad[0]]])
            # Of thousands of classes, none may look odd by accident.
            bound += MANY_CLASSES
    return None


def _shared_halves(
    rows: NDArray[np.uint8], inside: NDArray[np.bool_], group: NDArray[np.int64]
) -> tuple[int, int] | None:
    """Two rows of one group whose texts begin or end alike, if more do so than chance explains; or None."""
    # Places count from 1.
    size, place = inside.sum(axis=1), np.cumsum(inside, axis=1, dtype=np.uint16)
    for part in (place <= size[:, None] // 2, place > (size[:, None] + 1) // 2):
        key = group.astype(np.uint64) * SCATTER
        for column in range(rows.shape[1]):
            here = inside[:, column] & part[:, column]
            if here.any():
                key = np.where(here, (key + rows[:, column].astype(np.uint64) + np.uint64(1)) * SCATTER, key)
        # The key has the group in it.
        order = np.argsort(key, kind="stable")
        again = np.flatnonzero((key[order][1:] == key[order][:-1]) & (group[order][1:] == group[order][:-1]))
        # Ten values to a place at least, as `_uneven_text` says.
        names, length = np.bincount(group), np.zeros(int(group.max()) + 1)
        length[group] = size // 2
        chance = names * (names - 1.0) / 2 / 10**length
        found = np.bincount(group[order[again]], minlength=len(names))
        bad = np.flatnonzero(found > chance + 5 * np.sqrt(chance) + 2)
        if len(bad):
            at = again[group[order[again]] == bad[0]][0]
            return int(order[at]), int(order[at + 1])
    return None
