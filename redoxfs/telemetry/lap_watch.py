"""Where laps end, and how well shuffled they are, from the order in which a node served its samples.

The node appends the number of each served sample to a list, and this looks at the list now and then, a few thousand
samples at a time. Memory has a bound, so of a large dataset only some samples are followed from lap to lap.

A lap of a tree, such as ``train``, is as many turns as the tree has samples; with several nodes, as many as this
node's equal share. The measures are those of `redoxfs.telemetry.quality`, by these estimates:

- *displacement* and *rank correlation*: of those among some `FOLLOWED` samples of the dataset that both laps served
- *mate pairs* and *entropies*: of one batch in `BATCHES_APART`
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from redoxfs.telemetry.expected_quality import entropy_of_permutation
from redoxfs.telemetry.history_form import LapQuality
from redoxfs.telemetry.quality import BATCH, LAST, pairs_and_entropies

Int32 = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

FOLLOWED = 4096
"""Samples of the dataset. The standard error of a correlation is then 0.016, and that of a displacement 0.004."""

BATCHES_APART = 4
"""Chunks are asked of the policy one by one, so every batch would cost four times as much."""

LEAST_TURNS, MOST_TURNS = 256, 4096
"""Between two looks, unless a clock asks for one. So the end of a lap of fewer turns may be noticed late."""

FEW_FOLLOWED = 16
"""With fewer samples in both laps, displacement and correlation say nothing."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Lap number ``lap``, from 1, of tree number ``tree`` is over. ``whole``: all of it was seen."""

    tree: int
    lap: int
    whole: bool
    quality: LapQuality


@dataclass(slots=True)
class _Tree:
    """One tree. ``turns`` of its lap ``lap`` are over, of ``size``.

    ``after, before``  the place in this lap, and in the lap before, of each followed sample; -1 for none. The place is
                       a share of the lap
    ``bits``           sums of the entropies of chunks and of classes; of the batches of a random order in
                       ``bits_if_random``, once a lap has ended
    """

    samples: int
    stride: int
    size: int
    after: Floats
    before: Floats
    lap: int = 1
    turns: int = 0
    whole: bool = True
    batches: int = 0
    pairs: list[float] = field(default_factory=lambda: [0.0, 0.0])
    looked_at: list[int] = field(default_factory=lambda: [0, 0])
    bits: list[float] = field(default_factory=lambda: [0.0, 0.0])
    bits_if_random: tuple[float, float] | None = None
    rest: Int32 = field(default_factory=lambda: np.zeros(0, np.int32))

    def begin(self, lap: int, *, whole: bool) -> None:
        self.lap, self.turns, self.whole, self.batches = lap, 0, whole, 0
        self.pairs, self.looked_at, self.bits = [0.0, 0.0], [0, 0], [0.0, 0.0]
        self.rest = np.zeros(0, np.int32)
        self.before, self.after = self.after, self.before
        self.after[:] = -1


class LapWatch:
    """Follows the laps of some trees.

    ``due``  after how many turns the next look should be, to notice the end of a lap in time

    Args:
        samples: of each tree that is followed.
        everything: how many samples there are in all.
        tree_of: returns int32[n], the tree of each of some samples, below ``len(samples)``; -1 for other trees.
        chunk_of: returns the chunk of a sample.
        chunk_samples: in a chunk, on average.
        class_of: returns int32[n], the class of each of some samples.
        class_sizes: returns int[classes], how many samples of a tree each class has.
    """

    def __init__(
        self,
        samples: Sequence[int],
        *,
        everything: int,
        tree_of: Callable[[Int32], Int32],
        chunk_of: Callable[[int], int],
        chunk_samples: float,
        class_of: Callable[[Int32], Int32],
        class_sizes: Callable[[int], npt.NDArray[np.integer]],
    ) -> None:
        self._tree_of = tree_of
        self._chunk_of = chunk_of
        self._chunk_samples = chunk_samples
        self._class_of = class_of
        self._class_sizes = class_sizes
        # One sample in so many is followed. Its place is kept at its number divided by that.
        stride = max(1, -(-everything // FOLLOWED))
        self._trees = []
        for count in samples:
            after, before = (np.full(everything // stride + 1, -1, np.float32) for _ in range(2))
            self._trees.append(_Tree(count, stride, max(1, count), after, before))
        self.due = self._due(range(len(samples)))

    @property
    def memory_bytes(self) -> int:
        """That the places take."""
        return sum(tree.after.nbytes + tree.before.nbytes for tree in self._trees)

    def resume(self, tree: int, *, turns: int, nodes: int, whole: bool) -> None:
        """``turns`` of a tree were given before, in all laps; ``whole``: the lap that is in progress was all seen."""
        of = self._trees[tree]
        of.size = max(1, round(of.samples / nodes))
        of.begin(turns // of.size + 1, whole=whole)
        of.before[:] = -1
        of.turns = turns % of.size
        self.due = self._due(range(len(self._trees)))

    def progress(self, tree: int) -> tuple[int, int]:
        """The lap that a tree is in, and the turns of it."""
        return self._trees[tree].lap, self._trees[tree].turns

    def look(self, served: Sequence[int]) -> list[Finished]:
        """Take in the samples that were served since the last look, in order. Returns the laps that ended."""
        samples = np.array(served, np.int32)
        trees_of = self._tree_of(samples)
        finished: list[Finished] = []
        # From -1. Much faster than np.unique, which sorts.
        present = (np.flatnonzero(np.bincount(trees_of + 1)[1:])).tolist()
        for number in present:
            tree = self._trees[number]
            own = samples if len(present) == 1 and trees_of.min() >= 0 else samples[trees_of == number]
            while len(own):
                left = tree.size - tree.turns
                part, own = own[:left], own[left:]
                self._note(tree, part)
                if tree.turns == tree.size:
                    finished.append(Finished(number, tree.lap, tree.whole, self._quality(number)))
                    tree.begin(tree.lap + 1, whole=True)
        # Any tree may be next where a lap has just ended. Otherwise the same ones will be read.
        trees = range(len(self._trees)) if finished or not present else present
        # A look that a clock asked for does not put off the one that was due.
        early = self.due - len(samples)
        self.due = self._due(trees, min(early, LEAST_TURNS) if early > 0 else LEAST_TURNS)
        return finished

    def _due(self, trees: Iterable[int], least: int = LEAST_TURNS) -> int:
        """As ``due``, if these trees are read, and ``least`` turns at least."""
        left = [tree.size - tree.turns for tree in map(self._trees.__getitem__, trees) if tree.samples]
        return min(MOST_TURNS, max(least, min(left, default=MOST_TURNS)))

    def _note(self, tree: _Tree, samples: Int32) -> None:
        at = np.flatnonzero(samples % tree.stride == 0)
        tree.after[samples[at] // tree.stride] = (tree.turns + at) / tree.size
        tree.turns += len(samples)
        waiting = np.concatenate([tree.rest, samples])
        whole = len(waiting) // BATCH * BATCH
        tree.rest = waiting[whole:]
        for first in range(0, whole, BATCH):
            tree.batches += 1
            if tree.batches % BATCHES_APART == 1:
                batch = waiting[first : first + BATCH].tolist()
                chunks = np.fromiter(map(self._chunk_of, batch), np.int32, BATCH)
                labels = np.concatenate([chunks, self._class_of(waiting[first : first + BATCH])])
                (pairs, _), bits = (each.tolist() for each in pairs_and_entropies(labels, BATCH))
                tree.bits = [tree.bits[0] + bits[0], tree.bits[1] + bits[1]]
                # By where the batch ends.
                is_last = tree.batches * BATCH > (1 - LAST) * tree.size
                tree.pairs[is_last] += pairs
                tree.looked_at[is_last] += 1

    def _bits_if_random(self, number: int) -> tuple[float, float]:
        tree, size = self._trees[number], max(1, round(self._chunk_samples))
        if tree.bits_if_random is None:
            chunks = np.append(np.full(tree.samples // size, size), tree.samples % size)
            of_chunks, of_classes = map(entropy_of_permutation, (chunks, self._class_sizes(number)))
            tree.bits_if_random = of_chunks, of_classes
        return tree.bits_if_random

    def _quality(self, number: int) -> LapQuality:
        tree = self._trees[number]
        both = (tree.before >= 0) & (tree.after >= 0)
        followed = int(np.count_nonzero(both))
        displacement = correlation = None
        if followed >= FEW_FOLLOWED:
            before, after = tree.before[both].astype(np.float64), tree.after[both].astype(np.float64)
            displacement = float(np.abs(after - before).mean())
            # Of ranks, as places are. They are equal only to those of the same lap.
            correlation = float(np.corrcoef(before, after)[0, 1])
        looked_at = sum(tree.looked_at)
        mates = sum(tree.pairs) / looked_at if looked_at else None
        at_end = tree.pairs[1] / tree.looked_at[1] if tree.looked_at[1] else None
        chance = None
        if looked_at and tree.samples > 1:
            chance = BATCH * (BATCH - 1) / 2 * max(0.0, self._chunk_samples - 1) / (tree.samples - 1)
        measured = displacement, correlation, followed, mates, at_end, chance, looked_at
        if not looked_at:
            return LapQuality(*measured)
        of_chunks, of_classes = (bits / looked_at for bits in tree.bits)
        chunks_if_random, classes_if_random = self._bits_if_random(number)
        return LapQuality(*measured, of_chunks, chunks_if_random, of_classes, classes_if_random)
