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

import numpy as np
from numpy.typing import NDArray

# Hashing takes about 60 bytes of memory per byte of names, so names are hashed in pieces.
PIECE_BYTES = 2 << 20

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15 | 1)
_INVERSE = np.uint64(pow(0x9E3779B97F4A7C15 | 1, -1, 2**64))
_CODES = np.random.default_rng(64).integers(1, 2**64, 256, np.uint64)
_CODES[ord("A") : ord("Z") + 1] = _CODES[ord("a") : ord("z") + 1]

_LETTER = np.zeros(256, bool)
_LETTER[[*range(ord("a"), ord("z") + 1), *range(ord("A"), ord("Z") + 1)]] = True
_DIGIT = np.zeros(256, bool)
_DIGIT[ord("0") : ord("9") + 1] = True
_SEPARATOR = np.zeros(256, bool)
_SEPARATOR[list(b"_-. ()")] = True


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

    def words(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Runs of letters that begin a stem or follow a separator: (index of the stem, start, end)."""
        letter = _LETTER[self.text]
        # A stem's end ends a run: its suffix begins with a dot, and a name without suffix is followed by the next name.
        before = np.zeros(len(letter), bool)
        before[1:] = letter[:-1]
        before[self.start] = False
        start = np.flatnonzero(letter & ~before)
        stop = np.flatnonzero(~letter)
        at = np.searchsorted(stop, start)
        owner = np.searchsorted(self.start, start, side="right") - 1
        end = np.minimum(np.append(stop, len(letter))[at], self.end[owner])
        opens = start == self.start[owner]
        opens[~opens] = _SEPARATOR[self.text[start[~opens] - 1]]
        taken = opens & (start < self.end[owner])
        return owner[taken], start[taken], end[taken]

    def any_digit(self, start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether text[start:end] holds a digit, elementwise."""
        return _any(_DIGIT[self.text], start, end)


def _any(mask: NDArray[np.bool_], start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.bool_]:
    seen = np.zeros(len(mask) + 1, np.int64)
    np.cumsum(mask, out=seen[1:])
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
            yield _stems(names, name_at, entries[some])


def _stems(names: NDArray[np.uint8], name_at: NDArray[np.int64], entries: NDArray[np.int64]) -> Stems:
    lengths = name_at[entries + 1] - name_at[entries]
    stop = np.cumsum(lengths)
    start = stop - lengths
    text = names[np.repeat(name_at[entries] - start, lengths) + np.arange(int(stop[-1]))]
    dots = np.flatnonzero(text == ord("."))
    last = np.append(dots, -1)[np.searchsorted(dots, stop) - 1]
    return hashed(entries, text, start, np.where(last > start, last, stop))


def hashed(
    entries: NDArray[np.int64], text: NDArray[np.uint8], start: NDArray[np.int64], end: NDArray[np.int64]
) -> Stems:
    """Stems that lie at text[start:end], elementwise."""
    power = np.full(len(text) + 1, _MULTIPLIER)
    power[0] = 1
    unshift = np.full(len(text) + 1, _INVERSE)
    unshift[0] = 1
    sums = np.zeros(len(text) + 1, np.uint64)
    np.cumsum(_CODES[text] * np.multiply.accumulate(power)[:-1], out=sums[1:])
    return Stems(entries, text, start, end, sums, np.multiply.accumulate(unshift))


def _is_one(letters: NDArray[np.uint8], of: bytes) -> NDArray[np.bool_]:
    """For each byte whether it is one ``of`` these."""
    known = np.zeros(256, np.bool_)
    known[list(of)] = True
    return known[letters]
