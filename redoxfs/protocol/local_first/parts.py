"""Which part of each class is which node's own, lap by lap."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Int8 = npt.NDArray[np.int8]
Int32 = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]


def parts_by_lap(node: int, nodes: int, rotates: bool) -> tuple[int, ...]:
    """The parts of ``node`` in laps 1, 2, …, after which they repeat: the argument of its `PoolPolicy`."""
    return tuple((node + lap) % nodes for lap in range(nodes if rotates else 1))


class NodeParts:
    """The parts of all nodes.

    Args:
        class_of: int32[S], the class of each sample.
        part_of: int8[S], the part of each sample, 0 to ``nodes`` - 1.
        nodes: how many there are.
        rotates: whether parts rotate with the laps, or part i is always node i's.
    """

    def __init__(self, class_of: Int32, part_of: Int8, *, nodes: int, rotates: bool) -> None:
        self._class_array = class_of
        self._part_array = part_of
        self._classes = int(class_of.max(initial=-1)) + 1
        of_part = np.array(
            [np.bincount(class_of[part_of == part], minlength=self._classes) for part in range(nodes)], np.int32
        )
        self._of_part_array = of_part
        self._of_part: list[memoryview[int]] = [counts.data for counts in of_part]
        self._parts = [parts_by_lap(node, nodes, rotates) for node in range(nodes)]
        self.period = len(self._parts[0])

    def own_first(self, node: int) -> Int32:
        """int32[C]: how many samples of each class are a node's own in lap 1. A copy."""
        own: Int32 = self._of_part_array[self._parts[node][0]].copy()
        return own

    def own_in(self, node: int, cls: int, lap: int) -> int:
        """How many samples of a class are a node's own in ``lap``."""
        parts = self._parts[node]
        return self._of_part[parts[(lap - 1) % len(parts)]][cls]

    def own_between(self, node: int, cls: int, first: int, end: int) -> int:
        """How many samples of a class are a node's own in the laps from ``first`` to ``end`` - 1 together."""
        cycles, rest = divmod(end - first, self.period)
        own = sum([self.own_in(node, cls, first + ahead) for ahead in range(rest)])
        if cycles:
            own += cycles * sum([self.own_in(node, cls, 1 + ahead) for ahead in range(self.period)])
        return own

    def next_of_any(self, nodes: Iterable[int], cls: int, lap: int) -> int | None:
        """The first lap after ``lap`` in which any of ``nodes`` has samples of a class of its own."""
        numbers = tuple(nodes)
        for ahead in range(lap + 1, lap + 1 + self.period):
            if any(self.own_in(node, cls, ahead) for node in numbers):
                return ahead
        return None

    def own_at(self, node: int, laps: Int32) -> Flags:
        """bool[S]: the samples that are a node's own if each class is in its lap of ``laps``, int32[C]."""
        parts = np.array(self._parts[node], np.int8)[(laps - 1) % self.period]
        own: Flags = self._part_array == parts[self._class_array]
        return own

    def first_with_own(self, node: int, laps: Int32) -> Int32:
        """int32[C]: the first lap of each class, from its lap of ``laps`` on, in which the node has own samples."""
        found_in = laps.copy()
        is_ahead = ~self._has_own(node, laps)
        for ahead in range(1, self.period):
            found = is_ahead & self._has_own(node, laps + ahead)
            found_in[found] += ahead
            is_ahead &= ~found
        return found_in

    def _has_own(self, node: int, laps: Int32) -> Flags:
        """bool[C]: of which classes a node has any of its own, if each class is in its lap of ``laps``."""
        parts = np.array(self._parts[node])[(laps - 1) % self.period]
        has_own: Flags = self._of_part_array[parts, np.arange(self._classes)] > 0
        return has_own
