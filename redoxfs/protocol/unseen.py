"""What callers that cannot be seen hold: by path, since nobody can tell them apart.

A caller in a pid namespace that the daemon does not see has no thread number (`binding.UNKNOWN_THREAD`). If it opens A
twice, to probe it and to decode it, the second open must return the same sample. But two opens of A by nobody may also
belong to two epochs. What tells these apart are passes: a *pass* is a run of turns of one class tree without a path
twice, and it is complete when it has each path of the tree.

The rule. An open of A, whose last turn was an unseen caller's, is a second look if

- since A's last open, unseen callers took at most `TURNS` turns of other paths; and
- A's turn is not part of a complete pass, or A had fewer opens since than paths had in that pass, on average.

So with one open a file the second epoch begins with turns, and with two opens the second of A is a look, also at the
end of an epoch. A pass that is broken off (`drop_last`) is not complete. Then paths of its last `TURNS` that come among
the first of the next epoch are taken for second looks: their turn comes an epoch later. A wrong second look, which
would mix two samples, would be worse.

There are no clocks: the order of opens decides.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np

from redoxfs.arrays import Int32, Int64, Numbers

TURNS = 64
"""Other workers open about as many files between the two opens of one as there are workers, and sometimes a few times
as many."""


TreeOf: TypeAlias = Callable[[], Numbers]


class UnseenHolds:
    """The paths that unseen callers hold, and the passes of their turns. Takes no memory before the first.

    Args:
        tree_of: makes int[S], the number of each path's class tree.

    ``held``  by path: how many opens it had since its turn. The path that was opened last is the last
    """

    def __init__(self, tree_of: TreeOf, turns: int = TURNS) -> None:
        self._tree_of = tree_of
        self._most = turns
        self.held: OrderedDict[int, int] = OrderedDict()
        self._passes: _Passes | None = None

    def looks(self, path: int) -> bool:
        """Whether an open of ``path``, which is not open, is a second look."""
        opens = self.held.get(path)
        if opens is None:
            return False
        assert self._passes is not None
        usual = self._passes.usual_opens(path)
        return usual is None or opens < usual

    def opened(self, path: int) -> None:
        """``path`` was opened without a turn."""
        opens = self.held.pop(path, None)
        if opens is not None:
            self.held[path] = opens + 1
            assert self._passes is not None
            self._passes.look(path)

    def turn(self, path: int) -> int | None:
        """``path`` had a turn. Returns the path whose hold ends for it, if one does."""
        if self._passes is None:
            self._passes = _Passes(self._tree_of())
        self._passes.turn(path)
        self.held.pop(path, None)
        self.held[path] = 1
        return self.held.popitem(last=False)[0] if len(self.held) > self._most else None

    def drop(self, path: int) -> None:
        """``path`` is not held: it has another answer, or none."""
        self.held.pop(path, None)

    def drop_all(self) -> tuple[int, ...]:
        """No path is held. Returns those that were."""
        paths = tuple(self.held)
        self.held.clear()
        return paths

    # As numbers

    def pass_arrays(self) -> tuple[Int64, Int32]:
        """The trees' numbers, and the last turn of each path; both empty before the first turn."""
        if self._passes is None:
            return np.zeros((0, _Passes.COLUMNS), np.int64), np.zeros(0, np.int32)
        return self._passes.trees.copy(), self._passes.last_turn.copy()

    def resume(self, rows: Iterable[tuple[int, int]], trees: Int64, last_turn: Int32) -> None:
        """Continue from the numbers of another. Raises ValueError if they are not of these paths."""
        if len(last_turn):
            passes = self._passes = _Passes(self._tree_of())
            if trees.shape != passes.trees.shape or last_turn.shape != passes.last_turn.shape:
                raise ValueError("the turns of unseen callers are of other paths")
            passes.trees[:], passes.last_turn[:] = trees, last_turn
        self.held.update(rows)
        if self.held and (self._passes is None or not 0 <= min(self.held) <= max(self.held) < len(last_turn)):
            raise ValueError("paths are held that are none")


class _Passes:
    """The passes of each class tree, by turns of unseen callers.

    ``trees``      int64[trees, 5]: the turns so far; the one after which the pass began; the one that completed the
                   last complete pass; looks since then; and how many opens a path had in that pass
    ``last_turn``  int32[S], by path: its last turn, counted in its tree from 1; 0: none
    """

    COLUMNS = 5
    TURNS, BEGAN, COMPLETED, LOOKS, USUAL = range(COLUMNS)

    def __init__(self, tree_of: Numbers) -> None:
        self._tree_of = np.ascontiguousarray(tree_of, np.int32).data
        self._paths = np.bincount(tree_of) if len(tree_of) else np.zeros(1, np.int64)
        self.trees: Int64 = np.zeros((len(self._paths), self.COLUMNS), np.int64)
        self.last_turn: Int32 = np.zeros(len(tree_of), np.int32)

    def turn(self, path: int) -> None:
        number = self._tree_of[path]
        tree = self.trees[number]
        # A path twice: the run without one begins after its earlier turn.
        tree[self.BEGAN] = max(tree[self.BEGAN], self.last_turn[path])
        tree[self.TURNS] += 1
        self.last_turn[path] = tree[self.TURNS]
        if tree[self.TURNS] - tree[self.BEGAN] == self._paths[number]:
            tree[self.USUAL] = 1 + round(tree[self.LOOKS] / self._paths[number])
            tree[self.LOOKS] = 0
            tree[self.COMPLETED] = tree[self.BEGAN] = tree[self.TURNS]

    def look(self, path: int) -> None:
        self.trees[self._tree_of[path], self.LOOKS] += 1

    def usual_opens(self, path: int) -> int | None:
        """How many opens a path had in the pass that ``path`` had its last turn in; None if that is not complete."""
        tree = self.trees[self._tree_of[path]]
        return int(tree[self.USUAL]) if self.last_turn[path] <= tree[self.COMPLETED] else None
