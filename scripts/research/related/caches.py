"""Systems that serve the requested order exactly, and cache samples: page cache, CoorDL, locality-aware, NoPFS.

CoorDL and locality-aware loading cache a sample on one node at most, and never evict it. Each node keeps the first
samples that it reads, until its memory is full.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np
import numpy.typing as npt

from related.epoch import Epoch, Int8, Int32, Orders, Setting, are_remote, in_step, side_by_side

NOPFS_EPOCHS = 90
"""How many epochs NoPFS plans for: those of the paper's convergence run (§5.6)."""


def page_cache(setting: Setting, orders: Orders) -> Iterator[Epoch]:
    """PyTorch's DataLoader on files: each node has its own page cache, and the least recently used file is evicted.

    Linux approximates this order with two lists. Files are cached whole.
    """
    stored = side_by_side(setting)
    caches: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(setting.nodes)]
    for epoch in count():
        dealt = orders(epoch)
        missed = sum(_missed(cache, order, setting.node_capacity) for cache, order in zip(caches, dealt, strict=True))
        served, node = in_step(dealt)
        yield Epoch(served, node, stored, file_reads=missed, peak=sum(map(len, caches)))


def _missed(cache: OrderedDict[int, None], order: Int32, capacity: int) -> int:
    missed = 0
    for sample in order.tolist():
        if sample in cache:
            cache.move_to_end(sample)
            continue
        missed += 1
        cache[sample] = None
        if len(cache) > capacity:
            cache.popitem(last=False)
    return missed


def coordl(setting: Setting, orders: Orders) -> Iterator[Epoch]:
    """CoorDL (Mohan et al., VLDB 2021): the MinIO cache, and partitioned caching over nodes.

    A sample that enters the cache stays, so each cached sample is hit once an epoch. With several nodes, each caches
    its own part. A node fetches a sample from the node that has it rather than from storage.
    """
    stored = side_by_side(setting)
    holders = np.full(setting.files, -1, np.int8)
    for epoch in count():
        dealt = orders(epoch)
        served, node = in_step(dealt)
        at = holders[served]
        remote = are_remote(at, node)
        if not epoch:
            holders = _first_come(setting, dealt)
        yield Epoch(
            served,
            node,
            stored,
            file_reads=int(np.count_nonzero(at < 0)),
            messages=remote,
            remote_samples=remote,
            peak=int(np.count_nonzero(holders >= 0)),
        )


def _first_come(setting: Setting, dealt: Sequence[Int32]) -> Int8:
    """int8[files]: the node that caches each sample, -1 if none does."""
    holders = np.full(setting.files, -1, np.int8)
    for node, order in enumerate(dealt):
        holders[order[: setting.node_capacity]] = node
    return holders


def locality_aware(setting: Setting, orders: Orders) -> Iterator[Epoch]:
    """Locality-aware loading (Yang and Cong, HiPC 2019, "Locality-aware data loading").

    All nodes know the global batch. Each trains on those of its samples that its own cache has. Samples that no cache
    has come from storage, and go to the nodes that have the fewest. A node with more than its part sends the rest.
    """
    stored = side_by_side(setting)
    holders = np.full(setting.files, -1, np.int8)
    for epoch in count():
        dealt = orders(epoch)
        whole, _ = in_step(dealt)
        read = int(np.count_nonzero(holders[whole] < 0))
        sent = 0
        parts: list[list[Int32]] = [[] for _ in range(setting.nodes)]
        global_batch = setting.batch * setting.nodes
        for first in range(0, setting.files, global_batch):
            batch = whole[first : first + global_batch]
            sent += _share_out(batch, holders[batch], parts)
        if not epoch:
            holders = _first_come(setting, dealt)
        served, node = in_step([np.concatenate(part) for part in parts])
        peak = int(np.count_nonzero(holders >= 0))
        yield Epoch(served, node, stored, file_reads=read, messages=sent, remote_samples=sent, peak=peak)


def _share_out(batch: Int32, holders: Int8, parts: list[list[Int32]]) -> int:
    """Append a part of a global batch to each of ``parts``, equally many; returns how many samples were sent."""
    equal = len(batch) // len(parts)
    own = [batch[holders == node] for node in range(len(parts))]
    surplus = [samples[equal:] for samples in own]
    rest = np.concatenate([*surplus, batch[holders < 0]])
    at = 0
    for part, samples in zip(parts, own, strict=True):
        kept = samples[:equal]
        lacking = equal - len(kept)
        part.append(np.concatenate([kept, rest[at : at + lacking]]))
        at += lacking
    return sum(map(len, surplus))


def nopfs(setting: Setting, orders: Orders, *, epochs: int = NOPFS_EPOCHS) -> Iterator[Epoch]:
    """NoPFS (Dryden et al., SC 2021): clairvoyant; caches by frequency (`get_prefetch_string` in its Sampler.cpp).

    The seed gives the orders of all epochs in advance. Each node caches the samples that it will ask for most often,
    until its memory is full, so two nodes may cache the same sample. A sample that another node caches comes from
    there. The staging buffer, some batches, is not counted.
    """
    stored = side_by_side(setting)
    asked = np.zeros((setting.nodes, setting.files), np.uint16)
    for epoch in range(epochs):
        for node, order in enumerate(orders(epoch)):
            asked[node, order] += 1
    cached = np.zeros(asked.shape, np.bool_)
    for node, times in enumerate(asked):
        # Equally frequent samples are in no particular order.
        turn = setting.random(0, node).permutation(setting.files)
        chosen = turn[np.argsort(times[turn], kind="stable")[::-1][: setting.node_capacity]]
        cached[node, chosen] = times[chosen] > 0
    anywhere: npt.NDArray[np.bool_] = np.logical_or.reduce(cached)
    peak = int(np.count_nonzero(cached))
    for epoch in count():
        served, at = in_step(orders(epoch))
        # In the first epoch, the caches fill.
        is_there = anywhere[served] & (epoch > 0)
        remote = int(np.count_nonzero(is_there & ~cached[at, served]))
        read = int(np.count_nonzero(~is_there))
        yield Epoch(served, at, stored, file_reads=read, messages=remote, remote_samples=remote, peak=peak)
