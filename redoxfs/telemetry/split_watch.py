"""Whether a job keeps a set of paths apart from the rest of a tree, from the order in which it asks for paths.

A script may split a tree by itself (`random_split`, `validation_split`, `train_test_split`, folds, a few-shot subset).
A mount cannot know the split, so the samples of a class cross it. But the order of asks shows it: paths that were at
one end of an epoch are all at that end of the next epoch, in another order than before.

*An epoch* here ends where paths are asked again: where the paths that were asked before in it exceed the new ones by
`AGAIN`. Paths that an epoch asked twice (a look at some batches, padding) are left out of the comparison.

*The rule.* Two epochs in a row are compared by the place of each path. For a cut after ``k`` asks, ``N`` of the first
``k`` paths are not among the first ``k`` of the next epoch. If each class came in random order, ``E`` of them would not
be, class by class. A cut is a split if

- ``E >= 16`` and ``N <= E / 4``. A job that reads class after class has no such cut, since no sample
  crosses from one class to another;
- its larger side is shuffled: in the middle half of it, a tenth of the side crosses each cut, and at least ``4 N``; and
  from one path to the next, the place in the other epoch moves by a quarter of the side, on average. A job that reads
  in one order, or nearly, or blocks of files that stay together, has no such side;
- the same holds for the next pair of epochs too, if the side has fewer than 512 paths. Workers that read a few batches
  in turn may shuffle that many.

If epochs in a row have nothing in common, an epoch is compared with those before, up to `EPOCHS_KEPT`. So folds that
change after every epoch are seen when they come again. Before that no sample crosses them: each epoch gets a sample
once.

Paths that an epoch did not ask for count as its last ones, so a script that reads the same part of a tree in each epoch
has its cut at the end. With several nodes this would be each node's share. There only paths that both epochs asked for
are compared.

*How often it is wrong.* Where each epoch is in random order, the chance that some cut of two epochs passes the first
point is below 1e-8. Loaders are not random in other ways, so tests try the orders of many. It is right, but no leak,
where a job reads fixed parts of a tree one after another, such as files by size, or is started again and again with one
seed and ends within the first batches.

*What it does not see.* Sets that are each read in the same order in all epochs, since a script without a split that
reads in one order asks for the same; a split of an order that a small buffer mixes; a set of fewer than some 20 paths,
or a larger one of fewer than 32; validation several times in a small epoch; what a daemon before this one had seen.

An ask costs some 0.3 us, and a comparison of shuffled epochs 1 ms, of others 3 to 7 ms. Of a tree, some `FOLLOWED`
paths are followed, or all if there are no more.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

FOLLOWED = 1 << 14
"""Paths of a tree."""

OF_A_CLASS = 16
"""Paths of a class that are followed, on average, if it has as many. With more classes, only some are followed."""

AGAIN = 8
"""A loader may begin an epoch before the last one ends, or pad it. Each time that is a few paths."""

FEWEST = 32
"""Paths of an epoch. Fewer show nothing."""

LEAST_EXPECTED = 16
MOST_CROSSING = 1 / 4
SHUFFLED = 1 / 10
"""Of a side. With a shuffled side it is 3/16 or more in the middle half."""

STEPS = 1 / 4
"""Of a side, from one path to the next in the other epoch. It is a third where the side is shuffled, and far less where
blocks of files stay together, or the order is nearly the same."""

FEW = 512

EPOCHS_KEPT = 10
"""Of folds there are 5 or 10."""

_HASH = 2654435761
"""A multiple of it, modulo 2 ** 32, is as good as random. A script may take each fifth path, so this must not."""

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Apart:
    """About ``paths`` of the ``of`` paths of tree number ``tree`` come apart from the others in each epoch."""

    tree: int
    paths: int
    of: int


@dataclass(slots=True)
class _Epoch:
    """The paths of an epoch in the order of asks, each once; ``again``: those that were asked twice."""

    order: list[int] = field(default_factory=list)
    again: set[int] = field(default_factory=set)

    def arrays(self) -> tuple[Int64, Int64]:
        return np.array(self.order, np.int64), np.array([*self.again], np.int64)


@dataclass(slots=True)
class _Tree:
    """``seen`` has the number of the last epoch that asked for a path, of all followed paths of all trees.

    ``before``            the paths of the epochs before, and those that were asked twice, the last first
    ``once``              how many epochs ago was the one with the same cut, which is to come again; 0: none
    ``doubtful, excess``  the asks since one may have begun the next epoch; how many more of them were for paths of
                          this epoch than for others
    """

    samples: int
    followed: Int64
    class_of: Int32
    seen: "memoryview[int]"
    now: _Epoch = field(default_factory=_Epoch)
    before: deque[tuple[Int32, Int32]] = field(default_factory=lambda: deque(maxlen=EPOCHS_KEPT))
    epoch: int = 1
    doubtful: list[int] = field(default_factory=list)
    excess: int = 0
    once: int = 0
    compared: bool = False
    apart: bool = False

    def ask(self, asked: Sequence[int], *, alone: bool) -> int:
        """Take in asks; returns how many paths come apart, 0 if none do or it was told before."""
        found = 0
        seen, order = self.seen, self.now.order
        for path in asked:
            is_again = seen[path] == self.epoch
            if self.doubtful:
                self.doubtful.append(path)
                self.excess += 1 if is_again else -1
                if not self.excess:
                    self._settle()
                elif self.excess == AGAIN:
                    found = found or self._compare(alone=alone)
                    self._begin()
                    order = self.now.order
            elif is_again:
                self.doubtful.append(path)
                self.excess = 1
            else:
                seen[path] = self.epoch
                order.append(path)
        if not self.compared and len(order) >= (len(self.before[0][0]) if self.before else 0):
            # The job may end here.
            found = found or self._compare(alone=alone)
        return found

    def _settle(self) -> None:
        """No epoch began."""
        for path in self.doubtful:
            if self.seen[path] == self.epoch:
                self.now.again.add(path)
            else:
                self.seen[path] = self.epoch
                self.now.order.append(path)
        self.doubtful.clear()
        self.excess = 0

    def _begin(self) -> None:
        order, again = self.now.arrays()
        self.before.appendleft((order.astype(np.int32), again.astype(np.int32)))
        self.now = _Epoch()
        self.epoch += 1
        self.compared = False
        self._settle()

    def _compare(self, *, alone: bool) -> int:
        if self.apart or self.compared:
            return 0
        self.compared = True
        after, again = self.now.arrays()
        once, self.once = self.once, 0
        for ago, (before, again_before) in enumerate(self.before, 1):
            if min(len(before), len(after)) < FEWEST:
                continue
            both = np.concatenate([again_before, again])
            found = cut(before.astype(np.int64), after, both, self.followed, self.class_of, alone=alone)
            if found is not None:
                paths, is_sure = found
                self.apart = paths > 0 and (is_sure or ago == once)
                self.once = ago if paths else 0
                return paths if self.apart else 0
        return 0


class SplitWatch:
    """Follows the asks for the paths of some trees.

    Args:
        class_of: int32[n], the class of each path.
        tree_of_class: the tree of each class.
        trees: how many trees are followed; others have higher numbers.
    """

    def __init__(self, class_of: Int32, tree_of_class: Int32, trees: int) -> None:
        followed = _followed(class_of, tree_of_class, trees)
        self._paths = followed
        classes = class_of[followed]
        tree_of = tree_of_class[classes]
        seen = np.zeros(len(followed), np.int32).data
        samples = np.bincount(
            tree_of_class, weights=np.bincount(class_of, minlength=len(tree_of_class)), minlength=trees
        )
        self._tree_of = tree_of
        self._trees = [
            _Tree(int(samples[tree]), np.flatnonzero(tree_of == tree), classes, seen) for tree in range(trees)
        ]

    def look(self, asked: Sequence[int], *, alone: bool = True) -> list[Apart]:
        """Take in the paths that were asked for since the last look, in order. Returns what came apart, once a tree.

        ``alone``: no other node serves paths of these trees.
        """
        if not len(self._paths) or not asked:
            return []
        paths = np.array(asked, np.int32)
        at = np.searchsorted(self._paths, paths)
        at = at[self._paths.take(at, mode="clip") == paths]
        trees_of = self._tree_of[at]
        found = []
        for number in np.flatnonzero(np.bincount(trees_of)).tolist():
            tree = self._trees[number]
            if tree.apart:
                continue
            paths_apart = tree.ask(at[trees_of == number].tolist(), alone=alone)
            if paths_apart:
                share = paths_apart / len(tree.followed)
                found.append(Apart(number, round(share * tree.samples), tree.samples))
        return found


def _followed(class_of: Int32, tree_of_class: Int32, trees: int) -> Int32:
    """The paths to follow, ascending: of each tree some `FOLLOWED`, of some of its classes if there are many."""
    is_of = tree_of_class < trees
    of_class = np.bincount(class_of, minlength=len(tree_of_class)).astype(np.float64)
    inner = tree_of_class[is_of]
    samples = np.maximum(1, np.bincount(inner, weights=of_class[is_of], minlength=trees))
    classes = np.bincount(inner, minlength=trees)
    share = np.minimum(1, FOLLOWED / samples)
    share_of_class = np.minimum(1, np.maximum(share, OF_A_CLASS * classes / samples))
    at = np.where(is_of, tree_of_class, 0)
    numbers = np.arange(len(tree_of_class), dtype=np.int64)
    chosen = is_of & (_hashed(numbers) < (share / share_of_class)[at])
    limit = share_of_class[at]
    parts = []
    for first in range(0, len(class_of), _BLOCK):
        classes_of = class_of[first : first + _BLOCK]
        keep = chosen[classes_of] & (
            _hashed(np.arange(first, first + len(classes_of), dtype=np.int64)) < limit[classes_of]
        )
        parts.append((np.flatnonzero(keep) + first).astype(np.int32))
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)


def _hashed(numbers: Int64) -> Floats:
    return (numbers * _HASH % (1 << 32)) / (1 << 32)


def cut(
    before: Int64, after: Int64, again: Int64, followed: Int64, class_of: Int32, *, alone: bool
) -> tuple[int, bool] | None:
    """How many paths come apart in two epochs, and whether these two are enough to say so; None: the orders have
    nothing in common.

    Args:
        before, after: the paths of each in the order of asks, each once.
        again: paths that one of them asked twice.
        followed: all paths of the tree that are followed.
        class_of: the class of each path.
    """
    is_once = np.ones(len(class_of), np.bool_)
    is_once[again] = False
    one, two = (epoch[is_once[epoch]] for epoch in (before, after))
    # What only one of the epochs asked for comes last, as what neither did; or nothing of it counts.
    asked = np.zeros((2, len(class_of)), np.bool_)
    asked[0, one] = asked[1, two] = True
    both = asked[0] & asked[1]
    universes = [both]
    if alone:
        everything = np.zeros(len(class_of), np.bool_)
        everything[followed] = True
        everything &= is_once
        if np.count_nonzero(everything) > np.count_nonzero(both):
            universes.append(everything)
    near = None
    for universe in universes:
        x, y = (_ranks(epoch[universe[epoch]], universe) for epoch in (one, two))
        found = _cut(x, y, class_of[universe])
        if found is not None and found[0]:
            return found
        near = near or found
    return near


def _ranks(epoch: Int64, universe: npt.NDArray[np.bool_]) -> Int64:
    """By path of the universe: its place in an epoch; of those without one, how many paths there are."""
    count = int(np.count_nonzero(universe))
    ranks = np.full(len(universe), count, np.int64)
    ranks[epoch] = np.arange(len(epoch))
    return ranks[universe]


def _cut(x: Int64, y: Int64, class_of: Int32) -> tuple[int, bool] | None:
    """As `cut`, by the rank of each path in either epoch."""
    count = len(x)
    cuts = min(int((x < count).sum()), int((y < count).sum()))
    if cuts < FEWEST:
        return None
    k = np.arange(cuts + 1)
    crossing = k - np.concatenate([[0], np.cumsum(np.bincount(np.maximum(x, y), minlength=count + 1)[:cuts])])
    # No more can be expected. This leaves out epochs that are shuffled as a whole, before anything is sorted.
    most = np.minimum(k, count - k)
    if not ((most >= LEAST_EXPECTED) & (crossing <= MOST_CROSSING * most)).any():
        return None
    of = np.unique(class_of, return_inverse=True)[1].astype(np.int64)
    size = np.bincount(of)
    expected = k - _together(x, y, of, size)[: cuts + 1]
    possible = expected >= LEAST_EXPECTED
    if not possible.any():
        return 0, False
    ratio = np.where(possible, crossing / np.maximum(expected, 1), np.inf)
    least = np.flatnonzero(ratio <= max(ratio.min() + 1 / 64, MOST_CROSSING / 4))
    found = 0, False
    for at in (int(least[0]), int(least[-1])):
        # Of neighbours, the one where fewest cross.
        near = slice(max(0, at - cuts // 64), at + cuts // 64 + 1)
        at = near.start + int(np.argmin(ratio[near]))
        there = int(crossing[at])
        if there > MOST_CROSSING * expected[at]:
            continue
        first, end = (0, at) if 2 * at >= cuts else (at, cuts)
        # If one of the sets is read in order, all cuts in it are like its end.
        is_better = min(at, count - at) > found[0]
        if is_better and _is_shuffled(x, y, crossing, first, end, there):
            found = min(at, count - at), end - first >= FEW
    return found


def _is_shuffled(x: Int64, y: Int64, crossing: Int64, first: int, end: int, there: int) -> bool:
    """Whether the side of a cut from ``first`` to ``end`` is shuffled; ``there``: how many cross at the cut."""
    length = end - first
    inside = (x >= first) & (x < end) & (y >= first) & (y < end)
    if np.count_nonzero(inside) < FEWEST:
        return False
    inner = crossing[first + length // 4 : first + 3 * length // 4 + 1]
    steps = np.abs(np.diff(y[inside][np.argsort(x[inside])])).mean()
    return bool(inner.min() >= max(SHUFFLED * length, there / MOST_CROSSING) and steps >= STEPS * length)


def _together(x: Int64, y: Int64, of: Int64, size: Int64) -> Floats:
    """float64[n + 1]: how many of the first k of ``x`` would be among the first k of ``y``, if classes were random."""
    count = len(x)
    width = 2 * count + 2
    keys = np.concatenate([of * width + 2 * x, of * width + 2 * y + 1])
    order = np.argsort(keys, kind="stable")
    is_y = order >= count
    seen_y = np.cumsum(is_y)
    seen_x = np.arange(1, 2 * count + 1) - seen_y
    earlier = (np.cumsum(size) - size)[np.concatenate([of, of])[order]]
    others = np.where(is_y, seen_x, seen_y) - earlier
    gained = np.zeros(2 * count)
    gained[order] = others
    gained /= size[np.concatenate([of, of])]
    at = np.concatenate([x, y])
    return np.concatenate([[0.0], np.cumsum(np.bincount(at, weights=gained, minlength=count + 1)[:count])])
