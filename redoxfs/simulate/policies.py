"""What a policy costs: loads, waits and messages of an epoch, for any dataset, memory, and number of nodes.

Policies get the aligned layout, as in a mount, and samples of one size. Bytes are counted in samples.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from redoxfs.arrays import Int32
from redoxfs.chunks.layout import Cells, Layout, build_cells, deal, fit, memory_for_share
from redoxfs.protocol import Policy, PoolPolicy, SlotPolicy
from redoxfs.simulate.classes import class_table
from redoxfs.simulate.cluster import PAPER, Counts, OneNode, SlotCluster
from redoxfs.simulate.orders import orders
from redoxfs.simulate.pool_cluster import PoolCluster

Driven = tuple[Callable[[Sequence[Int32]], tuple[Counts, Int32]], Int32, float, Sequence[PoolPolicy]]
"""A function that runs an epoch of the nodes' orders, the cells, the share of the samples that memory holds, and the
pool of each node, if they have one."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """Generated samples, in chunks.

    ``class_of``  int32[S]
    ``resident``  the share of the samples that memory should hold
    """

    files: int = 1_280_000
    classes: int = 1_000
    skew: float = 0.0
    chunk_size: int = 64
    resident: float = 0.1
    seed: int = 0

    @property
    def class_of(self) -> Int32:
        return class_table(self.files, self.classes, self.skew)

    @property
    def cells(self) -> Cells:
        sizes = np.ones(self.files, np.int64)
        return build_cells(self.class_of, sizes, chunk_size=self.chunk_size, seed=self.seed)


@dataclass(frozen=True, slots=True)
class Row:
    """An epoch in the steady state.

    ``resident_share``        share of the samples that memory holds; whole slots, or a chunk, may be more than asked
    ``retained_share``        share of the samples that stay in memory from epoch to epoch, at all nodes
    ``loads_per_chunk``       1 where every chunk is read once
    ``read_amplification``    samples read for each one served if every load reads its whole chunk;
    ``read_amplification_packed``, ``…_kept``   as the packed store reads, and if only kept samples are read
    ``demand_load_share``     share of the requests that waited for a load of their own
    ``read_alone_share``      share of the requests whose sample was read although retained ones of its class were there
    ``remote_share``          share of the served samples that came from another node
    ``messages_per_request``  messages to other nodes, of which a request may take several
    """

    policy: str
    nodes: int
    files: int
    classes: int
    skew: float
    chunk_size: int
    chunks: int
    resident_share: float
    retained_share: float
    loads_per_chunk: float
    read_amplification: float
    read_amplification_packed: float
    read_amplification_kept: float
    demand_load_share: float
    read_alone_share: float
    remote_share: float
    messages_per_request: float


def memory_for(files: int, nodes: int) -> int:
    """About the bytes of this process that `measure` takes, without the program itself."""
    return files * (SAMPLE_BYTES + NODE_BYTES * nodes)


def slot_layout(dataset: Dataset) -> Layout:
    """The layout with the least memory that holds the share."""
    cells, sizes = dataset.cells, np.ones(dataset.files, np.int64)
    return fit(cells, sizes, memory_for_share(cells, sizes, dataset.resident))


def one_node(name: str, dataset: Dataset) -> tuple[Policy, Int32, float]:
    """The policy ``name`` by itself, the cells, and the share of the samples that memory holds."""
    return POLICIES[name](dataset)


def measure(name: str, dataset: Dataset, *, nodes: int = 1) -> Row:
    """The first epoch in the steady state."""
    epoch_of, cells, share, pools = _single(name, dataset) if nodes == 1 else CLUSTERS[name](dataset, nodes)
    for epoch in range(WARM_EPOCHS[name] + 1):
        before = sum(pool.reads_alone for pool in pools)
        counts, _ = epoch_of(orders(dataset.files, nodes, seed=dataset.seed, epoch=epoch))
    return Row(
        policy=name,
        nodes=nodes,
        files=dataset.files,
        classes=dataset.classes,
        skew=dataset.skew,
        chunk_size=dataset.chunk_size,
        chunks=len(cells),
        resident_share=share,
        retained_share=sum(pool.retained_samples for pool in pools) / dataset.files,
        loads_per_chunk=counts.loads / len(cells),
        read_amplification=counts.samples_read / counts.requests,
        read_amplification_packed=counts.samples_swept / counts.requests,
        read_amplification_kept=counts.samples_kept / counts.requests,
        demand_load_share=counts.demand_loads / counts.requests,
        read_alone_share=(sum(pool.reads_alone for pool in pools) - before) / counts.requests,
        remote_share=counts.remote_samples / counts.requests,
        messages_per_request=counts.remote_requests / counts.requests,
    )


def _single(name: str, dataset: Dataset) -> Driven:
    policy, cells, share = one_node(name, dataset)
    node = OneNode(policy, cells)
    pools = [policy] if isinstance(policy, PoolPolicy) else []
    return lambda dealt: node.epoch(dealt[0]), cells, share, pools


def _slot_cluster(dataset: Dataset, nodes: int) -> Driven:
    cluster, layout = slot_cluster(dataset, nodes)
    return cluster.epoch, layout.cells, layout.resident_bytes / dataset.files, []


def slot_cluster(dataset: Dataset, nodes: int, *, prefetches: bool = True) -> tuple[SlotCluster, Layout]:
    """Nodes under the slot policy, with the paper's window and remote memory in proportion to the files."""
    layout = slot_layout(dataset)
    policies = [
        SlotPolicy(layout.cells, layout.vc_start, samples=dataset.files, seed=dataset.seed + node)
        for node in range(nodes)
    ]
    shrink = dataset.files / PAPER.files
    cluster = SlotCluster(
        layout.cells,
        policies,
        remote_memory_samples=round(PAPER.remote_memory_samples * shrink),
        window=max(1, round(PAPER.window * shrink)) if prefetches else 1,
    )
    return cluster, layout


def _pool_cluster(dataset: Dataset, nodes: int) -> Driven:
    cluster, cells, capacity = pool_cluster(dataset, nodes)
    return cluster.epoch, cells, min(1.0, capacity / dataset.files), cluster.pools


def pool_cluster(dataset: Dataset, nodes: int) -> tuple[PoolCluster, Int32, int]:
    """Nodes under the pool policy, the cells, and the capacity of all pools together in samples."""
    cells = dataset.cells
    capacity = _capacity(cells.cells, dataset.resident * dataset.files / nodes)
    if dataset.resident >= 1:
        # Parts differ by a chunk or two, and nodes that hold everything hold the largest, too.
        capacity = int(np.bincount(deal(cells, nodes, seed=dataset.seed)).max())
    cluster = PoolCluster(cells, dataset.class_of, nodes=nodes, capacity=capacity, seed=dataset.seed)
    return cluster, cells.cells, capacity * nodes


def _capacity(cells: Int32, asked: float) -> int:
    """The capacity of a pool in samples, which has room for one chunk at least, as in a mount."""
    return max(round(asked), int((cells >= 0).sum(axis=1).max()))


def _slot(dataset: Dataset) -> tuple[Policy, Int32, float]:
    layout = slot_layout(dataset)
    policy = SlotPolicy(layout.cells, layout.vc_start, samples=dataset.files, seed=dataset.seed)
    return policy, layout.cells, layout.resident_bytes / dataset.files


def _pool(dataset: Dataset) -> tuple[Policy, Int32, float]:
    cells, sizes = dataset.cells.cells, np.ones(dataset.files, np.int64)
    capacity = _capacity(cells, dataset.resident * dataset.files)
    policy = PoolPolicy(cells, dataset.class_of, sizes, capacity_bytes=capacity, seed=dataset.seed)
    return policy, cells, capacity / dataset.files


POLICIES: dict[str, Callable[[Dataset], tuple[Policy, Int32, float]]] = {"pool": _pool, "slot": _slot}
"""By name, one node's policy, the cells, and the share of the samples that memory holds."""

WARM_EPOCHS = {"pool": 2, "slot": 0}
"""Epochs before the steady state. The slot policy ends each with empty slots. The pool retains what the first epoch
reads, and ends each with samples for the next."""

SAMPLE_BYTES, NODE_BYTES = 110, 22
"""What a sample takes of this process, and what it takes besides for each node."""

CLUSTERS: dict[str, Callable[[Dataset, int], Driven]] = {"pool": _pool_cluster, "slot": _slot_cluster}
"""The same for several nodes."""
