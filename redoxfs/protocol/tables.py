"""The state of a binding as arrays, from which another binding continues.

The order of the rows is that of the tables: it decides which hold, reservation or caller ends first at a limit.
"""

from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


class BindingTables(NamedTuple):
    """The tables of `Binding`, int64[rows, columns].

    ``answers``       path, answer, and a bit for each file that was opened under it
    ``handles``       path, how many handles are open
    ``holds``         thread, path
    ``reservations``  path, sample, owner, number
    ``seen_by``       path, thread, how many sizes the thread had asked for
    ``reservers``     int64[n]: the threads that own reservations
    ``callers``       thread, whether it ever opened a file, how many sizes it asked for, and since it opened one
    """

    answers: Int64
    handles: Int64
    holds: Int64
    reservations: Int64
    seen_by: Int64
    reservers: Int64
    callers: Int64
    reservations_made: int


def rows(items: Iterable[tuple[int, ...]], columns: int) -> Int64:
    """int64[n, columns] of tuples."""
    return np.fromiter(chain.from_iterable(items), np.int64).reshape(-1, columns)


def column(items: Iterable[int]) -> Int64:
    """int64[n] of numbers."""
    return np.fromiter(items, np.int64)


def signed(bits: npt.NDArray[np.uint64]) -> Int64:
    """The same bits as numbers with a sign."""
    return bits.view(np.int64)


def bits_of(numbers: Int64) -> npt.NDArray[np.uint64]:
    """The inverse of `signed`."""
    return np.ascontiguousarray(numbers).view(np.uint64)
