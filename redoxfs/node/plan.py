"""How a node serves a dataset with so much memory: the policy, and how memory is shared.

Memory has two shares. The policy's holds samples that were loaded and not yet served; that of paths holds the bytes of
open files, of closed ones that may be looked at again, and what stats have put aside (`node.memory`).
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from redoxfs.chunks import Cells, MemoryTooSmallError, fit, memory_for_share
from redoxfs.chunks.layout import OPEN_SAMPLES, RESIDENT_SHARE
from redoxfs.dataset import Catalog
from redoxfs.protocol import Policy, PoolPolicy, SlotPolicy


class ServingPolicy(Policy, Protocol):
    """A policy, as a node needs it."""

    def laps(self, samples: npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
        """The lap, counted from 1, that what each of ``samples`` belongs to is in."""

    def chunk_of(self, sample: int) -> int:
        """The physical chunk that ``sample`` lies in."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """How a dataset is served.

    ``policy``          decides
    ``memory_bytes``    for all samples in memory
    ``resident_bytes``  of these, what the policy's samples may take
    ``lapping``         int[...]: one sample of everything that has laps of its own
    ``held_share``      the share of the samples that is in memory at a time, 1 for all
    ``about``           what `stats.json` says of it
    """

    policy: ServingPolicy
    memory_bytes: int
    resident_bytes: int
    lapping: npt.NDArray[np.integer]
    held_share: float
    about: dict[str, Any]


def plan_slot(catalog: Catalog, cells: Cells, *, memory_bytes: int, seed: int) -> Plan:
    """The paper's policy. Raises MemoryTooSmallError."""
    layout = fit(cells, catalog.sample_bytes, memory_bytes)
    # The first chunk of a VC has a sample in each of its columns.
    first = layout.cells[layout.vc_start[:-1]]
    return Plan(
        policy=SlotPolicy(layout.cells, layout.vc_start, samples=len(catalog.class_of), seed=seed),
        memory_bytes=memory_bytes,
        resident_bytes=layout.resident_bytes,
        lapping=first[first >= 0],
        held_share=layout.vc_count / max(1, layout.chunk_count),
        about={
            "policy": "slot",
            "chunks": layout.chunk_count,
            "chunk_size": layout.chunk_size,
            "virtual_chunks": layout.vc_count,
            "chunks_per_virtual_chunk": layout.chunks_per_vc,
        },
    )


def slot_memory_for(catalog: Catalog, cells: Cells, share: float) -> int:
    """Bytes of --memory with which the slot policy holds ``share`` of the samples at a time, 0 for the least."""
    return memory_for_share(cells, catalog.sample_bytes, share)


def pool_memory_for(catalog: Catalog, cells: Cells, share: float) -> int:
    """Bytes of --memory with which the pool holds ``share`` of the samples at a time, 0 for the least."""
    sizes = catalog.sample_bytes
    held, largest = share * int(sizes.sum()), int(sizes.max(initial=0))
    return max(_least_for_pool(sizes, cells), math.ceil(max(held / RESIDENT_SHARE, held + OPEN_SAMPLES * largest)))


def _least_for_pool(sizes: npt.NDArray[np.int64], cells: Cells) -> int:
    """Some open files, and one chunk."""
    largest_chunk = int(np.append(sizes, 0)[cells.cells].sum(axis=1).max(initial=0))
    return OPEN_SAMPLES * int(sizes.max(initial=0)) + largest_chunk


def plan_pool(catalog: Catalog, cells: Cells, *, memory_bytes: int, seed: int) -> Plan:
    """The pool, for which any memory will do that holds a few samples. Raises MemoryTooSmallError."""
    sizes = catalog.sample_bytes
    total, largest = int(sizes.sum()), int(sizes.max(initial=0))
    open_bytes = max(OPEN_SAMPLES * largest, int(memory_bytes * (1 - RESIDENT_SHARE)))
    needed = _least_for_pool(sizes, cells)
    if memory_bytes < needed:
        raise MemoryTooSmallError(needed, memory_bytes)
    capacity = memory_bytes - open_bytes
    class_of = np.ascontiguousarray(catalog.class_of)
    return Plan(
        policy=PoolPolicy(cells.cells, class_of, sizes, capacity_bytes=capacity, seed=seed),
        memory_bytes=memory_bytes,
        resident_bytes=capacity,
        lapping=np.unique(class_of, return_index=True)[1],
        held_share=min(1.0, capacity / max(1, total)),
        about={"policy": "pool", "chunks": len(cells.cells), "chunk_size": cells.chunk_size},
    )
