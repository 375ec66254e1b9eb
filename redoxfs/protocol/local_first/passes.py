"""The passes of a node among several: runs of its own opens, and what left it in them.

A node sees a share of the paths of each epoch, and homes a share of the samples. So it finds the passes of its own
opens, over each tree: the longest run without a path twice, as `redoxfs.protocol.pool.passes` does, by the repeated
path alone. What left the node since its pass began, to whatever reader of whatever node, is *held back*. Nodes that go
through an epoch in step know where it began by the same number of opens.

Time is a count of the node's own opens of a tree. What leaves for a peer leaves with an open of that peer, which may be
one ahead, and the first of an epoch (`Clocks`).
"""

from collections.abc import Container
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from redoxfs.arrays import distinct
from redoxfs.protocol.pool.passes import EARLY, Pass

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Ints: TypeAlias = "memoryview[int]"

MOST_OPENS = 1 << 30
"""After so many the opens of a tree are numbered anew."""

FEW = 64
"""A job that reads in order moves its pass with each open. It looks at no more of the log than that."""

ROOM_SHARE, ROOM = 1 / 8, 64
"""The log of a tree has room for its own samples, and so many more leaves of samples that left twice."""


UNKNOWN = -1
"""In place of an epoch's number."""


class HomePass(Pass):
    """The run of one tree by the opens of this node, and a log of what left the node in it.

    Of the evidence of `Pass`, a node has that of opens in order: its paths may be others in each epoch, and then it has
    never opened all of them.

    ``epoch``  how many epochs somebody told of; UNKNOWN in a process that replaces another
    ``told_until``  before this open the run began where it was told: paths that come twice are what the job repeats
    ``left``   int32[room, 2], a ring: each sample that left, and with which open
    ``head``, ``tail``  the first entry, and the one after the last, counted from the first ever
    """

    __slots__ = ("epoch", "flat", "head", "left", "tail", "told_until")

    def __init__(self, number: int, paths: int, classes: Int32, room: int) -> None:
        super().__init__(number, paths, classes, np.zeros(0, np.int32))
        self.head = self.tail = self.epoch = self.told_until = 0
        self.left = np.zeros((room, 2), np.int32)
        # Each entry's sample and open, one after the other.
        self.flat: Ints = self.left.ravel().data


class Clocks:
    """Whether peers are an open ahead of this node, if they are in step.

    A peer that opens before this node in each step has one open more whenever it asks, and others have not. Where the
    two have had other numbers of opens before, the difference is larger or smaller by that; so one of two neighbouring
    differences is expected, and others take their place once they are seen.

    ``lowest``  by peer and tree, the lower of the two
    """

    def __init__(self) -> None:
        self.lowest: dict[tuple[int, int], int] = {}

    def ahead(self, peer: int, tree: HomePass, turn: int) -> int:
        """1 if ``peer``, which had ``turn`` opens, is one ahead, else 0."""
        key, difference = (peer, tree.number), turn - tree.turn
        lowest = self.lowest.get(key, 0)
        if not lowest <= difference <= lowest + 1:
            lowest = self.lowest[key] = difference if difference < lowest else difference - 1
        return difference - lowest


class HomePasses:
    """The runs of all trees.

    ``asked``    int32[S]: the last open of each path, in its tree's count; 0: none
    ``left_at``  int32[S]: with which open each own sample last left
    ``held``     bool[S]: whether it is held back; and int32[C], ``held_of``: how many of a class are
    ``out``      bool[S]: the lap of its class began without it, and it did not leave since
    ``gone``     bool[S]: it left in the present epoch, by what was told

    Args:
        class_of: int32[S].
        is_own: bool[S], the samples whose home this node is.
        tree_of: int[S], the tree of each sample, the same for all samples of a class.
        trees: how many there are.
        nodes: that share the paths of an epoch.
    """

    def __init__(
        self, class_of: Int32, is_own: Flags, tree_of: npt.NDArray[np.integer], trees: int, *, nodes: int
    ) -> None:
        samples, classes = len(class_of), int(class_of.max(initial=-1)) + 1
        self._class_array = class_of
        self._class_of: Ints = class_of.data
        self.is_own = is_own
        self.asked_array, self.left_array = np.zeros((2, samples), np.int32)
        self.asked: Ints = self.asked_array.data
        self._left_at: Ints = self.left_array.data
        held, out, gone = np.zeros((3, samples), np.uint8)
        self.held_array: Flags = held.view(np.bool_)
        self.out_array: Flags = out.view(np.bool_)
        self.gone_array: Flags = gone.view(np.bool_)
        self.held: Ints = held.data
        self._out: Ints = out.data
        self.gone: Ints = gone.data
        self.held_of_array = np.zeros(classes, np.int32)
        self.held_of: Ints = self.held_of_array.data
        tree_of_class = np.zeros(classes, np.int32)
        tree_of_class[class_of] = tree_of
        present = distinct(class_of)
        own = np.bincount(tree_of[is_own], minlength=trees).tolist()
        paths = np.bincount(tree_of, minlength=trees).tolist()
        self.trees = [
            HomePass(
                tree,
                -(-paths[tree] // nodes),
                present[tree_of_class[present] == tree].astype(np.int32),
                own[tree] + int(own[tree] * ROOM_SHARE) + ROOM,
            )
            for tree in range(trees)
        ]
        self.of_class = [self.trees[tree] for tree in tree_of_class.tolist()]
        self._tree_array = tree_of

    def samples(self, tree: HomePass) -> Int64:
        """The own samples of a tree."""
        return np.flatnonzero(self.is_own & (self._tree_array == tree.number))

    def open(self, tree: HomePass, path: int) -> int:
        """An open of ``path``. Returns after which open the run begins now."""
        if tree.turn >= MOST_OPENS:
            self._number_anew(tree)
        last, since = self.asked[path], tree.since
        if (last > since or tree.watches) and tree.turn >= tree.told_until:
            since = tree.look(last)
        tree.turn += 1
        self.asked[path] = tree.turn
        return since

    def leave(self, tree: HomePass, sample: int, *, ahead: int = 0) -> None:
        """An own sample leaves: for a reader here, or for a peer, whose open may be one ``ahead``."""
        room = len(tree.left)
        if tree.tail - tree.head == room:
            self._compact(tree)
        turn = max(tree.turn + ahead, tree.since + 1)
        self._left_at[sample] = turn
        at, flat = tree.tail, tree.flat
        to = 2 * (at % room)
        while at > tree.head:
            before = 2 * ((at - 1) % room)
            if flat[before + 1] <= turn:
                break
            flat[to], flat[to + 1] = flat[before], flat[before + 1]
            at, to = at - 1, before
        flat[to], flat[to + 1] = sample, turn
        tree.tail += 1
        self.gone[sample] = 1
        self._out[sample] = 0
        if not self.held[sample]:
            self.held[sample] = 1
            self.held_of[self._class_of[sample]] += 1

    def move(self, tree: HomePass, since: int) -> Int32:
        """The run begins after open ``since``. What left before is not held back any more.

        Returns:
            Those that come into their lap, which began without them.
        """
        tree.move(since)
        samples, numbers = self._entries(tree, FEW)
        if len(numbers) == FEW and numbers[-1] <= since:
            samples, numbers = self._entries(tree)
        count = int(np.searchsorted(numbers, since, side="right"))
        tree.head += count
        samples, numbers = samples[:count], numbers[:count]
        samples = samples[(self.left_array[samples] == numbers) & self.held_array[samples]]
        # A sample that left twice with one open is there twice.
        samples = distinct(samples)
        self.held_array[samples] = False
        np.subtract.at(self.held_of_array, self._class_array[samples], 1)
        comes: Int32 = samples[self.out_array[samples]].astype(np.int32)
        self.out_array[comes] = False
        return comes

    def begin_now(self, tree: HomePass, ahead: list[int]) -> Flags:
        """Somebody told that an epoch begins: nothing is held back any more, but what was given in it ``ahead``.

        Returns:
            bool[S]: the own samples of the tree that did not leave in the epoch before.
        """
        own = self.samples(tree)
        rest = np.zeros(len(self._class_array), np.bool_)
        rest[own] = ~self.gone_array[own]
        for flags in (self.held_array, self.out_array, self.gone_array):
            flags[own] = False
        self.held_of_array[tree.classes] = 0
        tree.begin_now()
        tree.move(tree.turn)
        tree.told_until = tree.turn + tree.paths + EARLY
        tree.head = tree.tail
        if tree.epoch != UNKNOWN:
            tree.epoch += 1
        for sample in ahead:
            self.leave(tree, sample)
        return rest

    def leave_out(self, members: npt.NDArray[np.integer]) -> int:
        """The lap of a class with these own ``members`` begins without what is held back. Returns how many that are."""
        out = members[self.held_array[members]]
        self.out_array[members] = False
        self.out_array[out] = True
        return len(out)

    def hold_all(self, tree: HomePass, samples: npt.NDArray[np.integer]) -> None:
        """A process that replaces another does not know what left: these ``samples``, as far as it knows."""
        tree.turn += 1
        for sample in samples.tolist():
            self.leave(tree, sample)
        self.out_array[samples] = True

    def oldest(self, tree: HomePass, cls: int, others: Container[int], ahead: int = 0) -> tuple[int, int]:
        """The sample of a class that is held back and left longest ago, and is none of ``others``; and how many opens
        ago, for one who may be one ``ahead``. -1 and 0 where there is none."""
        samples, numbers = self._entries(tree)
        of_class = (self._class_array[samples] == cls) & (self.left_array[samples] == numbers)
        for at in np.flatnonzero(of_class).tolist():
            sample = int(samples[at])
            if sample not in others:
                return sample, max(1, tree.turn + ahead - int(numbers[at]) + 1)
        return -1, 0

    def table(self) -> dict[str, npt.NDArray[np.integer]]:
        """All of it, for another process. A copy."""
        trees = [(tree.turn, tree.since, tree.told_until, tree.epoch + 1) for tree in self.trees]
        asked, log = [], []
        for number, tree in enumerate(self.trees):
            paths = np.flatnonzero((self.asked_array > tree.since) & (self._tree_array == number))
            asked.append(np.stack([paths, self.asked_array[paths]], axis=1))
            samples, numbers = self._entries(tree)
            log.append(np.stack([np.full(len(samples), number), samples, numbers], axis=1))
        return {
            "pass.trees": np.array(trees, np.int64).reshape(-1, 4),
            "pass.asked": np.concatenate([np.zeros((0, 2), np.int64), *asked]).astype(np.int64),
            "pass.log": np.concatenate([np.zeros((0, 3), np.int64), *log]).astype(np.int64),
            "pass.held": np.packbits(self.held_array),
            "pass.out": np.packbits(self.out_array),
            "pass.gone": np.packbits(self.gone_array),
        }

    def resume(
        self, trees: list[list[int]], asked: list[list[int]], log: list[list[int]], held: Flags, out: Flags, gone: Flags
    ) -> None:
        """Continue where a `table` was taken. Raises ValueError."""
        if len(trees) != len(self.trees):
            raise ValueError("the state has passes of other trees")
        for tree, (turn, since, told_until, epoch) in zip(self.trees, trees, strict=True):
            tree.turn, tree.told_until = turn, told_until
            tree.move(since)
            tree.epoch = epoch - 1
        for path, number in asked:
            self.asked[path] = number
        self.held_array[:], self.out_array[:], self.gone_array[:] = held, out, gone
        self.held_of_array[:] = np.bincount(self._class_array[held], minlength=len(self.held_of))
        for number, sample, turn in log:
            tree = self.trees[number]
            if tree.tail == len(tree.left):
                raise ValueError("the state has a log that is too long")
            tree.left[tree.tail] = sample, turn
            tree.tail += 1
            self._left_at[sample] = turn

    def _entries(self, tree: HomePass, most: int = MOST_OPENS) -> tuple[Int32, Int32]:
        """The samples of the log in order, and with which open each left."""
        log = tree.left.take(np.arange(tree.head, min(tree.tail, tree.head + most)), axis=0, mode="wrap")
        return log[:, 0], log[:, 1]

    def _compact(self, tree: HomePass) -> None:
        """Drop what left again since."""
        samples, numbers = self._entries(tree)
        last = [*dict(zip(samples.tolist(), range(len(samples)), strict=True)).values()]
        kept = np.sort(np.array(last, np.intp))
        kept = kept[self.held_array[samples[kept]]]
        count = len(kept)
        tree.left[:count] = np.stack([samples[kept], numbers[kept]], axis=1)
        tree.head, tree.tail = 0, count

    def _number_anew(self, tree: HomePass) -> None:
        of_tree = np.flatnonzero(self._tree_array == tree.number)
        for numbers in (self.asked_array, self.left_array):
            numbers[of_tree] = np.maximum(numbers[of_tree] - tree.since, 0)
        tree.left[:, 1] -= tree.since
        tree.turn -= tree.since
        tree.told_until = max(0, tree.told_until - tree.since)
        tree.since = 0
        tree.forget_evidence()
