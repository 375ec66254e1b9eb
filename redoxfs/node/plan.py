"""How a node serves a dataset with a given amount of memory: the policy, and the division of memory.

Memory has two shares. The share of the policy holds samples that were loaded and not yet served. The share of paths
holds the bytes of open files, of closed files that may get a second look, and of reserved samples (`node.memory`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from redoxfs.chunks import Cells, MemoryTooSmallError, fit, memory_for_share
from redoxfs.chunks.layout import RESIDENT_SHARE, Layout, deal, room_for_open
from redoxfs.dataset import Catalog
from redoxfs.protocol import (
    LocalFirst,
    PoolPolicy,
    ServingPolicy,
    SharedServingPolicy,
    SlotNode,
    SlotPolicy,
    exchange_for,
    homes_by_vc,
    retained_bytes_for,
)

OPEN_SAMPLES = 64
"""Beside retained samples, open files have a share for so many samples of mean size, which no reader has to wait for:
32 workers with an open file and a closed one each. More of them have the room of retained samples, up to what open
files have where nothing is retained."""

LEAST_SAMPLES = 16
"""The least room for open files, and the least for samples of other nodes, where a node's part of the dataset fits into
memory beside them. Open files can have the room of retained samples as well. More room than this would cost a read in
each lap for each sample that it takes."""

REMOTE_PER_CLASS = 4
"""Samples of other nodes wait for their turn in a room for so many of each class, and for `OPEN_SAMPLES` at least: a
class takes up to 16 at a time, and at the end of a lap most classes take some. An eighth of memory, the most that they
have by default, would cost reads, and is never filled. Where less is left beside a node's part, they have half of it: a
message of one sample costs nearly as much as one of eight."""

DRAWN_SAMPLES = 8192
"""How many samples loaders draw ahead of their opens: eight ranks with eight workers, two batches each of 64. There is
room for them in up to half of the memory."""

_LEAST_BYTES = 1
"""--memory takes no less, also where all files are empty."""


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """This node among those that share a dataset.

    ``node``, ``nodes``  its number, and the number of nodes
    ``memory_bytes``     the part of memory for samples from other nodes that are not served yet
    ``needs_less``       it may be less if a few samples of each class fit
    ``shared_storage``   every node can read every chunk; otherwise only its own
    ``part_of``          int8[S], the node at which each sample lies; None to let the layout deal the chunks
    ``timeout_s``        how long an open waits for another node to decide
    ``exchange``         the share of its samples that the pool takes from other nodes, to mix data across nodes; None:
                         by how much of its part it retains
    ``window``           P, the prefetch window of the slot policy, in requests
    """

    node: int
    nodes: int
    memory_bytes: int
    shared_storage: bool
    part_of: npt.NDArray[np.int8] | None
    timeout_s: float
    exchange: float | None
    window: int
    needs_less: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Sharing:
    """The part of a plan that is about other nodes.

    ``policy``       the plan's policy
    ``decides_alone``  if no node answers in time, this node reads the requested sample itself
    ``lies_at``      int8[S], the only node that can read each sample; None where storage is shared
    ``reads``        bool[S], the samples that this node alone reads; None if it may read any
    """

    share: Share
    policy: SharedServingPolicy
    decides_alone: bool
    lies_at: npt.NDArray[np.int8] | None = None
    reads: npt.NDArray[np.bool_] | None = None

    @property
    def timeout_s(self) -> float:
        return self.share.timeout_s


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """How a node serves a dataset.

    ``policy``          decides
    ``memory_bytes``    for all samples in memory
    ``resident_bytes``  the policy's share of it
    ``lapping``         int[...]: one sample of each unit, which is a class or column that has its own laps
    ``units``           int[...]: the numbers of these units
    ``held_share``      the share of the samples that is in memory at a time, 1 for all
    ``about``           its fields in `stats.json`
    ``retained``        the policy, if it retains samples from lap to lap
    ``lendable_bytes``  how much of what is retained open files may have
    ``passing``         the policy of one node, if it keeps passes
    """

    policy: ServingPolicy | SharedServingPolicy
    memory_bytes: int
    resident_bytes: int
    lapping: npt.NDArray[np.integer]
    units: npt.NDArray[np.integer]
    held_share: float
    about: dict[str, Any]
    sharing: Sharing | None = None
    retained: PoolPolicy | None = None
    lendable_bytes: int = 0
    passing: PoolPolicy | None = None

    @property
    def nodes(self) -> int:
        """The number of nodes that serve the dataset."""
        return 1 if self.sharing is None else self.sharing.share.nodes

    @property
    def claims_bytes(self) -> int:
        """The share of paths in memory."""
        remote = 0 if self.sharing is None else self.sharing.share.memory_bytes
        return self.memory_bytes - self.resident_bytes - remote

    @property
    def reads_any(self) -> bool:
        """Whether this node can read every sample."""
        return self.sharing is None or self.sharing.share.shared_storage

    def owner(self, sample: int) -> int | None:
        """The other node that alone can read ``sample``; None if this node can."""
        sharing = self.sharing
        if sharing is None or sharing.lies_at is None:
            return None
        node = int(sharing.lies_at[sample])
        return None if node == sharing.share.node else node


def plan_slot(catalog: Catalog, cells: Cells, *, memory_bytes: int, seed: int, share: Share | None = None) -> Plan:
    """A plan with the paper's policy. Raises MemoryTooSmallError."""
    nodes = 1 if share is None else share.nodes
    layout = _fitting(catalog, cells, memory_bytes, share)
    own = SlotPolicy(layout.cells, layout.vc_start, samples=len(catalog.class_of), seed=seed)
    # The first chunk of a VC has a sample in each of its columns.
    first = layout.cells[layout.vc_start[:-1]]
    units = np.arange(first.size).reshape(first.shape)
    policy: ServingPolicy | SharedServingPolicy = own
    sharing = None
    if share is not None:
        homes = homes_by_vc(own.columns, layout.chunk_size, nodes)
        policy = node = SlotNode(
            share.node,
            own,
            homes,
            catalog.sample_bytes,
            remote_memory_bytes=share.memory_bytes,
            window=share.window,
        )
        sharing = Sharing(share, node, decides_alone=share.shared_storage)
        first, units = first[share.node :: nodes], units[share.node :: nodes]
    policy.count_laps(*_trees(catalog))
    return Plan(
        policy=policy,
        memory_bytes=memory_bytes,
        resident_bytes=layout.resident_bytes,
        lapping=first[first >= 0],
        units=units[first >= 0],
        held_share=layout.vc_count / max(1, layout.chunk_count),
        sharing=sharing,
        about={
            "policy": "slot",
            "chunks": layout.chunk_count,
            "chunk_size": layout.chunk_size,
            "virtual_chunks": layout.vc_count,
            "chunks_per_virtual_chunk": layout.chunks_per_vc,
        },
    )


def check_slot(
    catalog: Catalog,
    cells: Cells,
    *,
    memory_bytes: int,
    seed: int,  # noqa: ARG001 - as `plan_slot`
    share: Share | None = None,
) -> None:
    """Raises the MemoryTooSmallError that `plan_slot` would raise."""
    _fitting(catalog, cells, memory_bytes, share)


def _fitting(catalog: Catalog, cells: Cells, memory_bytes: int, share: Share | None) -> Layout:
    nodes, remote_bytes = (1, 0) if share is None else (share.nodes, share.memory_bytes)
    try:
        return fit(cells, catalog.sample_bytes, memory_bytes - remote_bytes, nodes=nodes)
    except MemoryTooSmallError as error:
        raise MemoryTooSmallError(error.needed_bytes + remote_bytes, memory_bytes) from None


def _trees(catalog: Catalog) -> tuple[npt.NDArray[np.integer], int]:
    """int[S]: the tree of each sample; and the number of trees."""
    return catalog.tree_of_class[catalog.class_of], len(catalog.class_trees)


def slot_memory_for(catalog: Catalog, cells: Cells, share: float) -> int:
    """Bytes of --memory with which the slot policy holds ``share`` of the samples at a time, 0 for the least."""
    return max(_LEAST_BYTES, memory_for_share(cells, catalog.sample_bytes, share))


def pool_memory_for(catalog: Catalog, cells: Cells, share: float) -> int:
    """Bytes of --memory with which the pool of one node holds ``share`` of the samples at a time, 0 for the least."""
    sizes = catalog.sample_bytes
    held = share * int(sizes.sum())
    beside = max(held / RESIDENT_SHARE, held + room_for_open(sizes))
    if catalog.is_for_sampler:
        beside = max(beside, held + min(held, _drawn_bytes(sizes)))
    least = max(_LEAST_BYTES, _least_for_pool(sizes, cells))
    memory = max(least, math.ceil(beside))
    # With retained samples open files have less, so less may suffice.
    less = max(least, math.ceil(held) + _room_beside_retained(sizes))
    return less if less < memory and _divided(catalog, cells, less)[0] >= held else memory


def pool_reads(catalog: Catalog, cells: Cells, memory_bytes: int) -> float:
    """The share of the samples' bytes that the pool of one node reads in each epoch after the first: about as much."""
    total = int(catalog.sample_bytes.sum())
    return 1 - _divided(catalog, cells, memory_bytes)[1] / total if total else 0.0


def _room_beside_retained(sizes: npt.NDArray[np.int64]) -> int:
    """The share of open files that nothing else has."""
    return max(room_for_open(sizes), math.ceil(OPEN_SAMPLES * float(sizes.mean()))) if len(sizes) else 0


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """What `_divided` needs to know of a node among several.

    ``is_own``        bool[S], the samples of its part
    ``remote_bytes``  for samples from other nodes
    """

    is_own: npt.NDArray[np.bool_]
    remote_bytes: int


def _divided(catalog: Catalog, cells: Cells, memory_bytes: int, part: _Part | None = None) -> tuple[int, int, int]:
    """How a node divides --memory: the pool's share, how much of it is retained, and how much of that open files may
    have.

    Open files have a quarter, or what samplers have drawn, where that is more. Samples that are retained need not be in
    memory, so the part of the quarter that no file needs is theirs. There are two exceptions: where samplers draw, and
    where samples have several files, closed files wait for a reader by design.
    """
    sizes, class_of = catalog.sample_bytes, catalog.class_of
    remote_bytes = 0
    own_sizes, own_class_of = sizes, class_of
    if part is not None:
        remote_bytes = part.remote_bytes
        own_sizes, own_class_of = sizes[part.is_own], class_of[part.is_own]
    open_bytes = _open_bytes(catalog, cells, memory_bytes, remote_bytes)
    waits = _waits_by_design(catalog)
    own_bytes = open_bytes if waits else min(open_bytes, _room_beside_retained(sizes))
    memory_bytes -= remote_bytes
    if part is not None and not waits:
        beside_part = memory_bytes - int(own_sizes.sum())
        if beside_part >= min(own_bytes, _least_room(sizes)):
            return int(own_sizes.sum()), int(own_sizes.sum()), max(0, open_bytes - beside_part)

    def retained_beside(open_bytes: int) -> int:
        return retained_bytes_for(own_class_of, own_sizes, cells.chunk_size, memory_bytes - open_bytes)

    retained = retained_beside(own_bytes)
    if retained < open_bytes - own_bytes:
        # Too little to give open files what they may need.
        own_bytes = open_bytes
        retained = retained_beside(own_bytes)
    return memory_bytes - own_bytes, retained, open_bytes - own_bytes


def _waits_by_design(catalog: Catalog) -> bool:
    """Whether closed files wait for a reader: their bytes are no less needed than those of open ones."""
    return catalog.is_for_sampler or len(catalog.members) > len(catalog.sample_bytes)


def _least_room(sizes: npt.NDArray[np.int64]) -> int:
    return math.ceil(LEAST_SAMPLES * float(sizes.mean())) if len(sizes) else 0


def _remote_bytes(catalog: Catalog, memory_bytes: int, share: Share, own_bytes: int) -> int:
    """The room for samples of other nodes: what they need, or less if this node's part of ``own_bytes`` then fits."""
    sizes = catalog.sample_bytes
    if not share.needs_less or not len(sizes):
        return share.memory_bytes
    needed_samples = max(OPEN_SAMPLES, REMOTE_PER_CLASS * len(catalog.class_names))
    needed = min(share.memory_bytes, math.ceil(needed_samples * float(sizes.mean())))
    least = min(needed, max(_least_room(sizes), int(sizes.max())))
    beside_part = memory_bytes - own_bytes
    if _waits_by_design(catalog) or beside_part < least + _least_room(sizes):
        return needed
    return max(least, min(needed, max(beside_part // 2, beside_part - _room_beside_retained(sizes))))


def _open_bytes(catalog: Catalog, cells: Cells, memory_bytes: int, remote_bytes: int = 0) -> int:
    """The share of open files, where nothing is retained."""
    sizes = catalog.sample_bytes
    open_bytes = max(room_for_open(sizes), int((memory_bytes - remote_bytes) * (1 - RESIDENT_SHARE)))
    if catalog.is_for_sampler:
        a_chunk = _least_for_pool(sizes, cells) - room_for_open(sizes) + remote_bytes
        open_bytes = max(open_bytes, min(memory_bytes // 2, memory_bytes - a_chunk, _drawn_bytes(sizes)))
    return open_bytes


def _drawn_bytes(sizes: npt.NDArray[np.int64]) -> int:
    """The room for what samplers have drawn and workers have not opened yet."""
    return int(DRAWN_SAMPLES * float(sizes.mean())) if len(sizes) else 0


def _least_for_pool(sizes: npt.NDArray[np.int64], cells: Cells) -> int:
    """The least --memory: some open files, and one chunk."""
    largest_chunk = int(np.append(sizes, 0)[cells.cells].sum(axis=1).max(initial=0))
    return room_for_open(sizes) + largest_chunk


def pool_of_node(catalog: Catalog, cells: Cells, memory_bytes: int, share: Share) -> tuple[int, int, int]:
    """What the pool of a node among several holds with so much --memory, how much of that it retains, and the bytes of
    the node's part."""
    assert share.part_of is not None
    is_own = share.part_of == share.node
    own_bytes = int(catalog.sample_bytes[is_own].sum())
    part = _Part(is_own, _remote_bytes(catalog, memory_bytes, share, own_bytes))
    held, retained, _ = _divided(catalog, cells, memory_bytes, part)
    return held, retained, own_bytes


def plan_pool(catalog: Catalog, cells: Cells, *, memory_bytes: int, seed: int, share: Share | None = None) -> Plan:
    """A plan with the pool, which needs memory for a few samples only. Raises MemoryTooSmallError."""
    sizes = catalog.sample_bytes
    total = int(sizes.sum())
    part = None
    if share is not None:
        part_of = _parts(cells, seed, share)
        is_own = part_of == share.node
        own_bytes = int(sizes[is_own].sum())
        share = replace(share, memory_bytes=_remote_bytes(catalog, memory_bytes, share, own_bytes))
        part = _Part(is_own, share.memory_bytes)
    _check_pool(catalog, cells, memory_bytes, 0 if share is None else share.memory_bytes)
    capacity, retained, lendable = _divided(catalog, cells, memory_bytes, part)
    class_of = np.ascontiguousarray(catalog.class_of)
    policy: ServingPolicy | SharedServingPolicy
    keeps_passes = not catalog.is_for_sampler and total > 0
    if share is None:
        policy = pool = PoolPolicy(
            cells.cells, class_of, sizes, capacity_bytes=capacity, retained_bytes=retained, seed=seed
        )
        sharing = None
        if keeps_passes:
            pool.keep_passes(*_trees(catalog))
    else:
        if share.exchange is None:
            share = replace(share, exchange=exchange_for(retained / max(1, own_bytes)))
        pool = PoolPolicy(
            cells.cells,
            class_of,
            sizes,
            capacity_bytes=capacity,
            retained_bytes=retained,
            seed=seed + share.node,
            covered=part_of == share.node,
        )
        tree_of, trees = _trees(catalog) if len(class_of) else (None, 1)
        policy = node = LocalFirst(
            share.node,
            pool,
            class_of,
            part_of,
            sizes,
            nodes=share.nodes,
            remote_memory_bytes=share.memory_bytes,
            exchange=share.exchange or 0.0,
            seed=seed + share.node,
            tree_of=tree_of,
            trees=trees,
            reads_alone=share.shared_storage,
        )
        lies_at = None if share.shared_storage else part_of
        sharing = Sharing(share, node, decides_alone=False, lies_at=lies_at, reads=is_own)
    policy.count_laps(*_trees(catalog))
    units, lapping = np.unique(class_of, return_index=True)
    return Plan(
        policy=policy,
        memory_bytes=memory_bytes,
        resident_bytes=capacity,
        lapping=lapping,
        units=units,
        held_share=min(1.0, capacity / max(1, total)),
        sharing=sharing,
        about={"policy": "pool", "chunks": len(cells.cells), "chunk_size": cells.chunk_size},
        retained=pool,
        passing=pool if keeps_passes and share is None else None,
        lendable_bytes=lendable,
    )


def check_pool(catalog: Catalog, cells: Cells, *, memory_bytes: int, seed: int, share: Share | None = None) -> None:
    """Raises the MemoryTooSmallError that `plan_pool` would raise."""
    remote_bytes = 0
    if share is not None:
        own_bytes = int(catalog.sample_bytes[_parts(cells, seed, share) == share.node].sum())
        remote_bytes = _remote_bytes(catalog, memory_bytes, share, own_bytes)
    _check_pool(catalog, cells, memory_bytes, remote_bytes)


def _check_pool(catalog: Catalog, cells: Cells, memory_bytes: int, remote_bytes: int) -> None:
    needed = _least_for_pool(catalog.sample_bytes, cells) + remote_bytes
    if memory_bytes < needed:
        raise MemoryTooSmallError(needed, memory_bytes)


def _parts(cells: Cells, seed: int, share: Share) -> npt.NDArray[np.int8]:
    return deal(cells, share.nodes, seed=seed) if share.part_of is None else share.part_of


class Planner(NamedTuple):
    """How a policy is planned.

    ``plan``        takes what `plan_pool` takes
    ``memory_for``  bytes of --memory with which the policy holds a share of the samples at a time, 0 for the least
    ``check``       takes what ``plan`` takes, and refuses what that refuses, without a plan; for several nodes
    """

    plan: Callable[..., Plan]
    memory_for: Callable[[Catalog, Cells, float], int]
    check: Callable[..., None] | None = None


PLANNERS = {
    "pool": Planner(plan_pool, pool_memory_for, check_pool),
    "slot": Planner(plan_slot, slot_memory_for, check_slot),
}
"""By the names of policies in --policy; see `redoxfs.launch.defaults.POLICIES`."""
