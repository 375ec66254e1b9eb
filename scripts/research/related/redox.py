"""The slot policy, as the paper's Redox, and the pool: the code that serves a mount, not models of it."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count

import numpy as np

from redoxfs.simulate.cluster import Counts, OneNode, SlotCluster
from redoxfs.simulate.policies import Dataset, one_node, pool_cluster, slot_cluster
from redoxfs.simulate.pool_cluster import PoolCluster
from related.epoch import Epoch, Int8, Int32, Orders, Setting

Read = Callable[[Counts], tuple[int, int]]


def slot(setting: Setting, orders: Orders) -> Iterator[Epoch]:
    """The slot policy, which reads whole chunks as in the paper.

    On several nodes with prefetch, and remote memory of the paper's size beside the slots.
    """
    if setting.nodes == 1:
        return _alone("slot", setting, orders, _whole_chunks)
    cluster, layout = slot_cluster(_dataset(setting), setting.nodes)
    return _together(cluster, layout.cells, layout.resident_bytes, setting, orders, _whole_chunks)


def pool(setting: Setting, orders: Orders) -> Iterator[Epoch]:
    """The pool policy, which reads of a chunk what it keeps, and short gaps between, from a packed dataset.

    On several nodes each takes its own part of the chunks first.
    """
    if setting.nodes == 1:
        return _alone("pool", setting, orders, _kept_samples)
    cluster, cells, capacity = pool_cluster(_dataset(setting), setting.nodes)
    return _together(cluster, cells, capacity, setting, orders, _kept_samples)


def _whole_chunks(counts: Counts) -> tuple[int, int]:
    """Reads, and the samples that they bring."""
    return counts.loads, counts.samples_read


def _kept_samples(counts: Counts) -> tuple[int, int]:
    return counts.sweeps, counts.samples_swept


def _dataset(setting: Setting) -> Dataset:
    return Dataset(
        files=setting.files,
        classes=setting.classes,
        chunk_size=setting.chunk_size,
        resident=setting.resident,
        seed=setting.seed,
    )


def _alone(name: str, setting: Setting, orders: Orders, read: Read) -> Iterator[Epoch]:
    policy, cells, share = one_node(name, _dataset(setting))
    node = OneNode(policy, cells)
    return _epochs(lambda dealt: (*node.epoch(dealt[0]), 0), cells, round(share * setting.files), setting, orders, read)


def _together(
    cluster: SlotCluster | PoolCluster, cells: Int32, resident: int, setting: Setting, orders: Orders, read: Read
) -> Iterator[Epoch]:
    def epoch(dealt: Sequence[Int32]) -> tuple[Counts, Int32, int]:
        most = 0

        def watch(_: int) -> None:
            nonlocal most
            most = max(most, sum(node.used_bytes() for node in cluster.nodes))

        counts, served = cluster.epoch(dealt, watch)
        return counts, served, most

    return _epochs(epoch, cells, resident, setting, orders, read)


def _epochs(
    run: Callable[[Sequence[Int32]], tuple[Counts, Int32, int]],
    cells: Int32,
    resident: int,
    setting: Setting,
    orders: Orders,
    read: Read,
) -> Iterator[Epoch]:
    """``run`` returns the counts, the samples served, and the samples in remote memory at most."""
    chunks, slots = np.nonzero(cells >= 0)
    stored = np.empty(setting.files, np.int32)
    stored[cells[chunks, slots]] = chunks
    node: Int8 = (np.arange(setting.files) % setting.nodes).astype(np.int8)
    for epoch in count():
        counts, served, remote_memory = run(orders(epoch))
        reads, samples_read = read(counts)
        yield Epoch(
            served,
            node,
            stored,
            chunk_reads=reads,
            chunk_samples=samples_read,
            messages=counts.remote_requests,
            remote_samples=counts.remote_samples,
            peak=resident + remote_memory,
        )
