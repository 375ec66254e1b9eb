"""Systems that train on other samples than those asked for: Quiver (substitution) and SHADE (importance)."""

import heapq
from collections.abc import Iterator
from itertools import count

import numpy as np
import numpy.typing as npt

from related.caches import coordl
from related.epoch import Epoch, Int32, Orders, Setting, are_remote, in_step, side_by_side

QUIVER_LOOKUP = 10
"""Batches of indices that Quiver looks up to fill one with hits."""

SHADE_RANK_OFFSET = 10
"""The weight of the sample with rank j in its batch is log(j + 10)."""

Bool = npt.NDArray[np.bool_]
Float = npt.NDArray[np.float64]


def quiver(setting: Setting, orders: Orders) -> Iterator[Epoch]:
    """Quiver (Kumar and Sivathanu, FAST 2020): substitutable cache hits.

    A batch takes hits among the next `QUIVER_LOOKUP` batches of indices, and fills up with misses. Skipped indices
    remain in the queue, so each sample still comes once an epoch. The nodes share the cache. It keeps its samples,
    since there is one job. Quiver's other parts pay with several jobs.
    """
    holders = np.full(setting.files, -1, np.int8)
    for epoch, requested in enumerate(coordl(setting, orders)):
        by_node = [
            hits_first(order, holders >= 0, setting.batch, QUIVER_LOOKUP * setting.batch) for order in orders(epoch)
        ]
        served, node = in_step(by_node)
        remote = are_remote(holders[served], node)
        yield Epoch(
            served,
            node,
            requested.stored,
            file_reads=requested.file_reads,
            messages=remote,
            remote_samples=remote,
            peak=requested.peak,
        )
        if not epoch:
            for at, order in enumerate(orders(0)):
                holders[order[: setting.node_capacity]] = at


def hits_first(order: Int32, is_cached: Bool, batch: int, lookup: int) -> Int32:
    """``order`` in batches that prefer cached samples among the next ``lookup``."""
    served: list[Int32] = []
    pending, at = order[:lookup], lookup
    while len(pending):
        hit = is_cached[pending]
        hits, misses = np.flatnonzero(hit)[:batch], np.flatnonzero(~hit)
        chosen = np.concatenate([hits, misses[: batch - len(hits)]])
        served.append(pending[chosen])
        pending = np.concatenate([np.delete(pending, chosen), order[at : at + len(chosen)]])
        at += len(chosen)
    return np.concatenate(served)


def shade(setting: Setting, _: Orders) -> Iterator[Epoch]:
    """SHADE (Khan et al., FAST 2023): samples and caches by importance (shadesampler.py, shadedataset.py of its code).

    A batch ranks its samples by loss; the rank is the weight of the sample. Samples of an epoch are drawn by weight,
    with replacement. After the first epoch each node draws as many as there are, keeps its part of those that it drew
    most often, and serves those in the cache first. A sample that is read replaces the least important of the cache if
    it is more important. The cache is shared by the nodes.

    No model is trained, so losses are drawn at random: each sample has a fixed difficulty, exponentially distributed,
    and each loss is the difficulty times a log-normal factor.
    """
    stored = side_by_side(setting)
    difficulty = setting.random(0, 1).exponential(size=setting.files)
    weights = np.ones(setting.files)
    cache = MostImportant(setting.node_capacity * setting.nodes, setting.files)
    part = setting.files // setting.nodes
    ranks = np.log(np.arange(setting.batch) + SHADE_RANK_OFFSET)
    for epoch in count():
        random = setting.random(epoch)
        by_node = [
            drawn_by_weight(weights, part, cache.has, random, most_frequent=epoch > 0) for _ in range(setting.nodes)
        ]
        served, node = in_step(by_node)
        reads, remote = 0, 0
        for first in range(0, setting.files, setting.batch * setting.nodes):
            batch = served[first : first + setting.batch * setting.nodes]
            hit = cache.has[batch]
            # Keys are spread over the nodes by their hash.
            remote += int(np.count_nonzero(hit & (batch % setting.nodes != node[first : first + len(batch)])))
            reads += cache.read(batch, weights)
            loss = difficulty[batch] * random.lognormal(sigma=0.5, size=len(batch))
            for at in range(setting.nodes):
                own = batch[at :: setting.nodes]
                weights[own[np.argsort(loss[at :: setting.nodes])]] = ranks[: len(own)]
            cache.reweigh(batch, weights)
        yield Epoch(served, node, stored, file_reads=reads, messages=remote, remote_samples=remote, peak=len(cache))


def drawn_by_weight(
    weights: Float, part: int, is_cached: Bool, random: np.random.Generator, *, most_frequent: bool
) -> Int32:
    """The samples that a node draws for an epoch."""
    total = np.cumsum(weights)
    drawn = np.searchsorted(total, random.random(len(weights)) * total[-1], side="right").astype(np.int32)
    if most_frequent:
        times = np.bincount(drawn, minlength=len(weights))
        drawn = drawn[np.lexsort((drawn, -times[drawn]))]
    drawn = random.permutation(drawn[:part])
    hit = is_cached[drawn]
    return np.concatenate([drawn[hit], drawn[~hit]])


class MostImportant:
    """The ``capacity`` samples of the greatest weight that were read."""

    def __init__(self, capacity: int, samples: int) -> None:
        self.has: Bool = np.zeros(samples, np.bool_)
        self._capacity = capacity
        self._held = 0
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return self._held

    def read(self, batch: Int32, weights: Float) -> int:
        """Serve a batch; returns how many samples were read from storage."""
        missed = np.unique(batch[~self.has[batch]])
        for sample in missed.tolist():
            weight = float(weights[sample])
            if self._held < self._capacity:
                self._held += 1
            else:
                self._drop_stale(weights)
                if not self._heap or self._heap[0][0] >= weight:
                    continue
                self.has[heapq.heappop(self._heap)[1]] = False
            self.has[sample] = True
            heapq.heappush(self._heap, (weight, sample))
        return len(missed)

    def reweigh(self, batch: Int32, weights: Float) -> None:
        """Give samples the weights that follow from training on them."""
        held = np.unique(batch[self.has[batch]])
        for entry in zip(weights[held].tolist(), held.tolist(), strict=True):
            heapq.heappush(self._heap, entry)

    def _drop_stale(self, weights: Float) -> None:
        while self._heap and not (self.has[self._heap[0][1]] and self._heap[0][0] == weights[self._heap[0][1]]):
            heapq.heappop(self._heap)
