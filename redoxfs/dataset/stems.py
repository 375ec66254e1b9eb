"""The names of files as numbers: the hashes of stems and of their pieces, for all files at once.

A stem is a name without its last suffix. Questions such as "does any other directory hold this stem" concern every
file of the tree. With Python strings they take minutes and gigabytes; with 64-bit hashes they take a sort.

The hash of a piece of the name blob is `sum(code[byte_j] * P**(j - start))` modulo 2**64, taken from a running sum, so
any piece costs a subtraction and a multiplication. ASCII letters hash alike in both cases. Equal hashes count as equal
pieces. A chance collision (1 in 10**7 even for 10**6 names) can only make redoxfs more careful, because equality always
leads to a doubt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from string import ascii_lowercase, ascii_uppercase

import numpy as np
from numpy.typing import NDArray

from redoxfs.arrays import is_in, ranges

# Hashing takes about 60 bytes of memory per byte of names, so names are hashed in pieces.
PIECE_BYTES = 2 << 20

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15 | 1)
_INVERSE = np.uint64(pow(0x9E3779B97F4A7C15 | 1, -1, 2**64))
_CODES = np.random.default_rng(64).integers(1, 2**64, 256, np.uint64)
_CODES[ord("A") : ord("Z") + 1] = _CODES[ord("a") : ord("z") + 1]


def bytes_in(known: bytes) -> NDArray[np.bool_]:
    """For each byte whether it is one of ``known``: bool[256]."""
    return is_in(np.arange(256, dtype=np.uint8), np.frombuffer(known, np.uint8))


DIGIT, LOWER, UPPER = map(bytes_in, (b"0123456789", ascii_lowercase.encode(), ascii_uppercase.encode()))
# Of ASCII alone: a byte beyond it may be a part of a letter, a dash or a bracket, and ends a word.
_LETTER, _SEPARATOR = LOWER | UPPER, bytes_in(b"_-. ()")

Pieces = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""Parts of stems: (index of the stem, start, end), ascending."""


@dataclass(frozen=True, slots=True, eq=False)
class Stems:
    """The stems of n entries, over b bytes of names laid end to end.

    `start` and `end` are indices into `text`. `hash_of` returns the hash of any pieces of it.
    """

    entry: NDArray[np.int64]  # [n]
    text: NDArray[np.uint8]  # [b]
    start: NDArray[np.int64]  # [n]
    end: NDArray[np.int64]  # [n]
    _sums: NDArray[np.uint64]  # [b + 1]
    _unshift: NDArray[np.uint64]  # [b + 1]

    def hash_of(self, start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.uint64]:
        """uint64 hashes of text[start:end], elementwise; 0 for empty pieces."""
        return (self._sums[end] - self._sums[start]) * self._unshift[start]

    def whole(self) -> NDArray[np.uint64]:
        """The hash of each stem: uint64[n]."""
        return self.hash_of(self.start, self.end)

    def cuts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Every separator strictly inside a stem: (index of the stem, index in the text), both int64."""
        place = np.flatnonzero(_SEPARATOR[self.text])
        owner = np.searchsorted(self.start, place, side="right") - 1
        inside = (place > self.start[owner]) & (place < self.end[owner])
        return owner[inside], place[inside]

    def runs(self) -> Pieces:
        """Every run of letters."""
        return self._pieces(np.zeros(len(self.text), bool))

    def words(self) -> Pieces:
        """The runs of letters, divided where capitals begin a word: Train and Video of TrainVideo, COCO of COCOVal."""
        upper, small = UPPER[self.text], LOWER[self.text]
        begins = np.zeros(len(upper), bool)
        begins[1:] = upper[1:] & small[:-1]
        # A name without suffix is followed by the next name.
        small[self.start] = False
        begins[1:-1] |= upper[1:-1] & upper[:-2] & small[2:]
        return self._pieces(begins)

    def _pieces(self, begins: NDArray[np.bool_]) -> Pieces:
        letter = _LETTER[self.text]
        begins[1:] |= letter[1:] & ~letter[:-1]
        # A stem's end ends a run: its suffix begins with a dot, and a name without suffix is followed by the next name.
        begins[self.start] = letter[self.start]
        start = np.flatnonzero(begins)
        stop = np.flatnonzero(begins | ~letter)
        at = np.searchsorted(stop, start, side="right")
        owner = np.searchsorted(self.start, start, side="right") - 1
        end = np.minimum(np.append(stop, len(letter))[at], self.end[owner])
        taken = start < self.end[owner]
        return owner[taken], start[taken], end[taken]

    def letters(self) -> NDArray[np.int64]:
        """How many letters each stem has: int64[n]."""
        seen = np.append(0, np.cumsum(_LETTER[self.text]))
        return seen[self.end] - seen[self.start]

    def any_digit(self, start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether text[start:end] holds a digit, elementwise."""
        seen = np.append(0, np.cumsum(DIGIT[self.text]))
        return seen[end] > seen[start]


def hash_text(text: bytes) -> int:
    """The hash that `Stems.hash_of` returns for a piece equal to `text`."""
    total, power = 0, 1
    for byte in text:
        total = (total + int(_CODES[byte]) * power) % 2**64
        power = power * int(_MULTIPLIER) % 2**64
    return total


def stems_of(names: NDArray[np.uint8], name_at: NDArray[np.int64], entries: NDArray[np.int64]) -> Iterator[Stems]:
    """The stems of `entries` (ascending) of a tree's names, in pieces of about PIECE_BYTES.

    A stem ends at the last dot, unless that is the name's first byte; as with os.path.splitext.
    """
    lengths = name_at[entries + 1] - name_at[entries]
    piece = np.cumsum(lengths) // PIECE_BYTES
    for some in np.split(np.arange(len(entries)), np.flatnonzero(np.diff(piece)) + 1):
        if len(some):
            yield _hashed(entries[some], *texts_of(names, name_at, entries[some]))


def texts_of(
    names: NDArray[np.uint8], name_at: NDArray[np.int64], entries: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """The names of `entries` laid end to end, and where in it each stem starts and ends."""
    lengths = name_at[entries + 1] - name_at[entries]
    stop = np.cumsum(lengths)
    start = stop - lengths
    text = names[ranges(name_at[entries], lengths)]
    dots = np.flatnonzero(text == ord("."))
    last = np.append(dots, -1)[np.searchsorted(dots, stop) - 1]
    return text, start, np.where(last > start, last, stop)


def _hashed(
    entries: NDArray[np.int64], text: NDArray[np.uint8], start: NDArray[np.int64], end: NDArray[np.int64]
) -> Stems:
    power = np.full(len(text) + 1, _MULTIPLIER)
    power[0] = 1
    unshift = np.full(len(text) + 1, _INVERSE)
    unshift[0] = 1
    sums = np.zeros(len(text) + 1, np.uint64)
    np.cumsum(_CODES[text] * np.multiply.accumulate(power)[:-1], out=sums[1:])
    return Stems(entries, text, start, end, sums, np.multiply.accumulate(unshift))
