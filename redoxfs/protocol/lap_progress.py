"""How far the lap of each tree is: a count that is kept turn by turn, so that to look at it costs next to nothing.

Laps belong to classes or columns, *units* here. A tree, such as train, has many, and shows one lap: the first that is
not over, which is that of its slowest unit. Units may be ahead of it; their turns count when the tree comes to their
lap. A lap that is over is shown until the next one has a turn.

Where nodes share their laps, each counts the turns of its own readers. It is asked for about its part of a lap, and
does not know when the others have finished theirs. So the tree moves on once the turns in this lap and in later ones
make up the node's part. Turns that come late for a lap count in the present one.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from redoxfs.arrays import Ints, Numbers
from redoxfs.protocol.turns import Turns

MOST_AHEAD = 1024
"""How many laps ahead are counted turn by turn. If a class of one sample is all that a program opens, each open is a
lap. Turns beyond are counted from the policy's turns when the tree moves on."""


class TreeLap(NamedTuple):
    """The lap of a tree.

    ``number``   from 1
    ``turns``    how many samples had their turn in it; of several nodes, by this node's readers
    ``samples``  of the tree, which a lap has
    """

    number: int
    turns: int
    samples: int


class LapProgress:
    """Counts the turns of a lap, for each tree.

    Args:
        unit_of: int[S], the class or column of each sample.
        tree_of: int[S], the tree of each sample: the same for all samples of a unit.
        trees: how many there are.
        turns: returns all turns, to count from.
        nodes: how many nodes share the laps.
    """

    def __init__(
        self, unit_of: Numbers, tree_of: Numbers, trees: int, turns: Callable[[], Turns], *, nodes: int = 1
    ) -> None:
        self._turns = turns
        self._nodes = nodes
        self._unit_array = unit_of
        self._size_of_unit = np.bincount(unit_of)
        tree_of_unit = np.zeros(len(self._size_of_unit), np.int32)
        tree_of_unit[unit_of] = tree_of
        self._tree_array = tree_of_unit
        self._tree_of: Ints = tree_of_unit.data
        self._samples = [int(count) for count in np.bincount(tree_of, minlength=trees)]
        self._part = [-(-samples // nodes) for samples in self._samples]
        self._lap = [1] * trees
        self._in_lap = [0] * trees
        # By tree and lap: the turns in later laps.
        self._ahead: list[dict[int, int]] = [{} for _ in range(trees)]
        # Trees with turns too far ahead to be counted.
        self._beyond: set[int] = set()
        self._is_stale = False

    def note(self, unit: int, lap: int) -> None:
        """A sample of ``unit`` had its turn in ``lap``."""
        tree = self._tree_of[unit]
        ahead = self._ahead[tree]
        if lap <= self._lap[tree]:
            self._in_lap[tree] += 1
        elif lap <= self._lap[tree] + MOST_AHEAD:
            ahead[lap] = ahead.get(lap, 0) + 1
        else:
            self._beyond.add(tree)
        if ahead:
            self._move_on(tree)

    def begin_lap(self, tree: int, lap: int) -> None:
        """The laps of a tree before ``lap`` are over, whatever had no turn in them."""
        if lap > self._lap[tree]:
            ahead = self._ahead[tree]
            self._lap[tree] = lap
            self._in_lap[tree] = ahead.get(lap, 0)
            self._ahead[tree] = {later: turns for later, turns in ahead.items() if later > lap}

    def count_again(self) -> None:
        """The turns are others now than those that were noted: they are counted before the next look."""
        self._is_stale = True

    def of_trees(self) -> list[TreeLap]:
        """The lap of each tree."""
        if self._is_stale:
            self._count()
        return [TreeLap(*each) for each in zip(self._lap, self._in_lap, self._samples, strict=True)]

    def _move_on(self, tree: int) -> None:
        ahead = self._ahead[tree]
        while ahead and self._is_over(tree):
            self._lap[tree] += 1
            self._in_lap[tree] = ahead.pop(self._lap[tree], 0)
            # The laps that were beyond may be within reach now.
            self._is_stale |= tree in self._beyond

    def _is_over(self, tree: int) -> bool:
        in_lap = self._in_lap[tree]
        if self._nodes == 1:
            return in_lap >= self._samples[tree]
        # A node that begins among others begins with their lap.
        return not in_lap or in_lap + sum(self._ahead[tree].values()) >= self._part[tree]

    def _count(self) -> None:
        """Count from all turns: what counting them one by one had come to."""
        self._beyond.clear()
        turns = self._turns()
        had = turns.flags(len(turns.laps), len(self._unit_array))
        units = len(self._size_of_unit)
        had_of_unit = np.bincount(self._unit_array[had], minlength=units)
        laps = turns.laps[:units]
        by_tree = np.argsort(self._tree_array, kind="stable")
        ends = np.cumsum(np.bincount(self._tree_array, minlength=len(self._lap)))[:-1]
        for tree, members in enumerate(np.split(by_tree, ends)):
            members = members[self._size_of_unit[members] > 0]
            if not len(members):
                continue
            in_order = members[np.argsort(laps[members], kind="stable")]
            self._count_tree(tree, laps[in_order], had_of_unit[in_order], self._size_of_unit[in_order])
        self._is_stale = False

    def _count_tree(self, tree: int, laps: Numbers, had: Numbers, sizes: Numbers) -> None:
        """Count the turns of a tree's units, which are in order of their laps."""
        # A unit that has finished its lap is as one that is in the next. The tree is in the lap of the slowest, or in
        # the one before, as long as nothing had its turn in that.
        slowest, last = int((laps + (had == sizes)).min()), int(laps[-1])
        first, reach = max(1, slowest - 1), slowest + MOST_AHEAD
        if last > reach:
            self._beyond.add(tree)
        # A unit that is in a later lap has finished this one: each node had its part of it.
        sizes_from = np.append(np.cumsum(sizes[::-1])[::-1], 0)
        had_before = np.append(0, np.cumsum(had))
        counts: dict[int, int] = {}
        for lap in range(first, min(last, reach) + 1):
            begin, end = np.searchsorted(laps, (lap, lap + 1))
            count = int(had_before[end] - had_before[begin]) + int(sizes_from[end]) // self._nodes
            if count:
                counts[lap] = count
        self._lap[tree] = first
        self._in_lap[tree] = counts.pop(first, 0)
        self._ahead[tree] = counts
        self._move_on(tree)
