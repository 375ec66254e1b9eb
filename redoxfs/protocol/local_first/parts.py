"""Which part of each class is which node's own. It is the same part in each lap."""

from collections.abc import Iterable

import numpy as np

from redoxfs.arrays import Flags, Int8, Int32


class NodeParts:
    """The parts of all nodes.

    Args:
        class_of: int32[S], the class of each sample.
        part_of: int8[S], the node whose own each sample is, 0 to ``nodes`` - 1.
        nodes: how many there are.
    """

    def __init__(self, class_of: Int32, part_of: Int8, *, nodes: int) -> None:
        self._part_array = part_of
        classes = int(class_of.max(initial=0)) + 1
        self._in_order = np.argsort(class_of, kind="stable").astype(np.int32)
        self._begun = np.concatenate([[0], np.cumsum(np.bincount(class_of, minlength=classes))])
        self._of_node_array = np.array(
            [np.bincount(class_of[part_of == node], minlength=classes) for node in range(nodes)], np.int32
        )
        self._of_node: list[memoryview[int]] = [counts.data for counts in self._of_node_array]

    def members(self, cls: int) -> Int32:
        """The samples of a class, of all nodes. A view."""
        return self._in_order[self._begun[cls] : self._begun[cls + 1]]

    def own(self, node: int) -> Int32:
        """int32[C]: how many samples of each class are a node's own. A copy."""
        return self._of_node_array[node].copy()

    def own_in(self, node: int, cls: int) -> int:
        """How many samples of a class are a node's own."""
        return self._of_node[node][cls]

    def has_any(self, nodes: Iterable[int], cls: int) -> bool:
        """Whether any of ``nodes`` has samples of a class of its own."""
        return any(self._of_node[node][cls] for node in nodes)

    def count_only_of(self, nodes: Iterable[int]) -> int:
        """How many classes have samples of their own at ``nodes`` and at no other."""
        here = self._of_node_array[[*nodes]].sum(axis=0)
        return int(np.count_nonzero((here > 0) & (here == self._of_node_array.sum(axis=0))))

    def is_own(self, node: int) -> Flags:
        """bool[S]: the samples that are a node's own."""
        return self._part_array == node
