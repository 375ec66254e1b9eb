"""The types of arrays, and what several rooms ask of them, answered without numpy.ma.

`np.unique` and `np.isin` ask numpy.ma whether an array is masked. Its import takes longer than the scan of a small
dataset, and must not happen in a daemon that serves.
"""

from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Int8 = NDArray[np.int8]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]
Numbers = NDArray[np.integer]

Ints: TypeAlias = "memoryview[int]"
"""A view of an array's buffer. It gives plain ints at a third of numpy's price."""

Scalar = TypeVar("Scalar", bound=np.generic)


def distinct(values: NDArray[Scalar]) -> NDArray[Scalar]:
    """The distinct values, ascending: `np.unique`."""
    neighbours: tuple[NDArray[Any], NDArray[Any]] = values[:-1], values[1:]
    if np.greater(*neighbours).any():
        values = np.sort(values)
    is_first = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=is_first[1:])
    return values[is_first]


def is_in(values: NDArray[Any], known: NDArray[Any]) -> NDArray[np.bool_]:
    """For each value whether it is one of ``known``: `np.isin`."""
    if not len(known):
        return np.zeros(len(values), np.bool_)
    known = np.sort(known)
    at = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return known[at] == values


def offsets_of(lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    """int64[n + 1]: where each of n runs of these lengths begins, one after the other, and where the last ends."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def ranges(first: NDArray[np.integer], lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    """The numbers of n ranges, one after the other: ``lengths`` of them from ``first`` on."""
    offsets = offsets_of(lengths)
    return np.repeat(first - offsets[:-1], lengths) + np.arange(offsets[-1])
