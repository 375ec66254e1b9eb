"""The state of a binding as arrays, from which another binding continues; and how the arrays of any state are read.

The order of the rows is that of the tables: it decides which hold, reservation or caller ends first at a limit.
"""

from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from redoxfs.arrays import Flags, Int32, Int64, Numbers
from redoxfs.protocol.events import SharedState
from redoxfs.protocol.turns import Turns


class BindingTables(NamedTuple):
    """The tables of `Binding`, int64[rows, columns].

    ``answers``       path, answer, and a bit for each file that was opened under it
    ``handles``       path, how many handles are open
    ``holds``         thread, path
    ``reservations``  path, sample, owner, number
    ``seen_by``       path, thread, how many sizes the thread had asked for
    ``reservers``     int64[n]: the threads that own reservations
    ``callers``       thread, whether it ever opened a file, how many sizes it asked for, and since it opened one
    ``unseen``        path that unseen callers hold, and how many opens it had since its turn
    ``unseen_trees``, ``unseen_turns``  their passes (`protocol.unseen`); empty without such callers
    """

    answers: Int64
    handles: Int64
    holds: Int64
    reservations: Int64
    seen_by: Int64
    reservers: Int64
    callers: Int64
    reservations_made: int
    unseen: Int64
    unseen_trees: Int64
    unseen_turns: Int32


def rows(items: Iterable[tuple[int, ...]], columns: int) -> Int64:
    """int64[n, columns] of tuples."""
    return np.fromiter(chain.from_iterable(items), np.int64).reshape(-1, columns)


def column(items: Iterable[int]) -> Int64:
    """int64[n] of numbers."""
    return np.fromiter(items, np.int64)


MOST = 1 << 62
"""The limit of a number that may have any value."""


class StateReader:
    """A `SharedState`, each part of which is checked as it is read. All methods raise ValueError."""

    def __init__(self, state: SharedState, **same: int | str) -> None:
        """``same``: values that have to be in the state."""
        self._state = state
        for name, value in same.items():
            if state.values.get(name) != value:
                raise ValueError(f"the state has {name} {state.values.get(name)}, not {value}")

    def number(self, name: str) -> int:
        """A number of 62 bits, with its sign."""
        value = self._state.values.get(name)
        if not isinstance(value, int) or not -MOST < value < MOST:
            raise ValueError(f"the state has {value} for {name}")
        return value

    def value(self, name: str) -> int:
        """A number that is not negative."""
        value = self.number(name)
        if value < 0:
            raise ValueError(f"the state has {value} for {name}")
        return value

    def array(self, name: str, dtype: npt.DTypeLike, *shape: int) -> Numbers:
        """An array of this type and shape; -1 stands for any length."""
        array = self._state.arrays.get(name)
        if (
            array is None
            or array.dtype != dtype
            or array.ndim != len(shape)
            or any(has != wants for has, wants in zip(array.shape, shape, strict=True) if wants >= 0)
        ):
            raise ValueError(f"the state has another array for {name}")
        return array

    def table(self, name: str, *limits: int) -> list[list[int]]:
        """The rows of int64[n, columns]. The numbers of a column are from 0 to its limit - 1."""
        array = self.array(name, np.int64, -1, len(limits))
        if array.size and ((array < 0) | (array >= np.array(limits))).any():
            raise ValueError(f"the state has numbers out of range in {name}")
        return array.tolist()

    def flags(self, name: str, count: int) -> Flags:
        """So many bits, as `numpy.packbits` wrote them."""
        bits = self.array(name, np.uint8, -(-count // 8))
        return np.unpackbits(bits.view(np.uint8), count=count).astype(np.bool_)

    def order(self, name: str, samples: int) -> Int32:
        """int32[n]: samples, of so many."""
        order = self.array(name, np.int32, -1).astype(np.int32)
        if order.size and not 0 <= order.min() <= order.max() < samples:
            raise ValueError(f"the state has samples out of range in {name}")
        return order

    def turns(self, name: str, given: int, units: int, samples: int) -> Turns:
        """Turns as `arrays_of` made them, of so many columns or classes and samples."""
        laps = self.array(f"{name}.laps", np.int32, units).astype(np.int32)
        turns = Turns(laps, self.array(f"{name}.had", np.uint8, -1).astype(np.uint8), given)
        turns.flags(units, samples)
        return turns


def arrays_of(name: str, turns: Turns) -> dict[str, Numbers]:
    """The arrays of turns in a `SharedState`; the inverse is `StateReader.turns`."""
    return {f"{name}.laps": turns.laps, f"{name}.had": turns.had}
