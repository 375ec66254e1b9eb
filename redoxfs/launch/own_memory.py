"""How much memory a mount takes in all: what a limit of a job, a pod or a container must have room for.

This is the one rule. `redoxfs inspect` applies it, and documents link to it (docs/options.md, "Memory"). SEMANTICS.md
promises its parts, and says which tests measure them.
"""

import math

import numpy as np
import numpy.typing as npt

from redoxfs.chunks import Cells
from redoxfs.chunks.layout import RESIDENT_SHARE, deal, room_for_open
from redoxfs.dataset import Catalog
from redoxfs.launch.members import remote_memory_of
from redoxfs.launch.options import SharingOptions
from redoxfs.node import Share, pool_memory_for, pool_of_node

PROGRAM_BYTES = 130_000_000
"""The program, its libraries and its threads, at most."""

FILE_BYTES = 130
"""The catalog, for each file."""

ROUNDED_SHARE = 0.1
"""Of --memory: buffers are rounded up, and some freed ones are kept for reuse."""

CACHE_FILE_BYTES, CACHE_WRITE_BYTES = 30, 16 << 20
"""With --cache: the positions of copies, and the write in progress."""

WAITING_SHARE, WAITING_LEAST_BYTES, WAITING_MOST_BYTES = 8, 32 << 20, 256 << 20
"""With --cache: the part of --memory, and beside it, for samples that wait to be written; its least and its most."""

REMOTE_SHARE = 1 / 8
"""Of --memory, by default and at most, for samples from other nodes (docs/options.md)."""

PRECISION = 100
"""The memory of a node is found to a part of so many."""


def limit_for(memory_bytes: int, files: int, *, caches: bool = False) -> int:
    """Bytes that a mount with so much --memory takes in all, at most. The script and its workers come on top."""
    own = PROGRAM_BYTES + FILE_BYTES * files + ROUNDED_SHARE * memory_bytes
    if caches:
        own += CACHE_FILE_BYTES * files + CACHE_WRITE_BYTES + waiting_bytes(memory_bytes)
    return memory_bytes + math.ceil(own)


def waiting_bytes(memory_bytes: int) -> int:
    """Memory for samples that wait to be written to a cache."""
    return min(max(memory_bytes // WAITING_SHARE, WAITING_LEAST_BYTES), WAITING_MOST_BYTES)


def pool_memory_of_node(catalog: Catalog, cells: Cells, nodes: int, share: float) -> int:
    """Bytes of --memory with which each of ``nodes`` holds ``share`` of its part at a time, within 1 %."""
    sizes, dealt = catalog.sample_bytes, deal(cells, nodes, seed=0)
    largest = int(np.bincount(dealt, sizes, nodes).argmax())
    held = share * int(sizes[dealt == largest].sum())
    least = pool_memory_for(catalog, cells, 0.0)
    # Enough for each way in which a node divides its memory.
    most = math.ceil(max(held / RESIDENT_SHARE, held + room_for_open(sizes), least) / (1 - REMOTE_SHARE)) + 1
    low, high = math.ceil(max(held, least)), most
    while high - low > high // PRECISION:
        middle = (low + high) // 2
        if _of_node(catalog, cells, middle, nodes, largest, dealt)[0] >= held:
            high = middle
        else:
            low = middle
    return high


def pool_reads_of_node(catalog: Catalog, cells: Cells, memory_bytes: int, nodes: int) -> float:
    """The share of its part that each of ``nodes`` reads in each epoch after the first: about as much."""
    _, retained, own_bytes = _of_node(catalog, cells, memory_bytes, nodes, 0, deal(cells, nodes, seed=0))
    return 1 - retained / own_bytes if own_bytes else 0.0


def _of_node(
    catalog: Catalog, cells: Cells, memory_bytes: int, nodes: int, node: int, dealt: npt.NDArray[np.int8]
) -> tuple[int, int, int]:
    remote_bytes = remote_memory_of(SharingOptions(), memory_bytes)
    asked = Share(node, nodes, remote_bytes, True, dealt, timeout_s=1.0, exchange=None, window=1, needs_less=True)
    return pool_of_node(catalog, cells, memory_bytes, asked)
