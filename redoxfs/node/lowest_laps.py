"""The lowest lap of each tree, which stats.json shows. A history asks for it each second, on the loop.

A plan may have a million columns. Their trees do not change, so they are put in the order of their trees once, and a
look is one pass over the laps.
"""

import numpy as np

from redoxfs.dataset import Catalog
from redoxfs.node.plan import Plan


class LowestLaps:
    """The lowest lap of the classes or columns of each tree, under one plan."""

    def __init__(self, catalog: Catalog, plan: Plan) -> None:
        self._policy = plan.policy
        trees = catalog.tree_of_class[catalog.class_of[plan.lapping]]
        order = np.argsort(trees, kind="stable")
        self._units = plan.units[order].astype(np.int32)
        # Trees with units on this node, and where theirs begin.
        self._present, self._starts = np.unique(trees[order], return_index=True)

    def now(self) -> list[int]:
        """By tree. A tree without a class or column on this node has the number of its lap."""
        found = [lap.number for lap in self._policy.tree_laps()]
        if len(self._units):
            lowest = np.minimum.reduceat(self._policy.laps_of_units()[self._units], self._starts)
            for tree, lap in zip(self._present.tolist(), lowest.tolist(), strict=True):
                found[tree] = lap
        return found
