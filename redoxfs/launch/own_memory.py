"""How much memory a mount takes in all: what a limit of a job, a pod or a container must have room for.

This is the one rule. `redoxfs inspect` applies it, and documents link to it (docs/options.md, "Memory"). SEMANTICS.md
promises its parts, and says which tests measure them.
"""

import math

import numpy as np

from redoxfs.chunks import Cells, MemoryTooSmallError
from redoxfs.chunks.layout import RESIDENT_SHARE, deal, room_for_open
from redoxfs.dataset import Catalog
from redoxfs.launch.members import REMOTE_PART, remote_memory_of
from redoxfs.launch.options import SharingOptions
from redoxfs.node import Share, check_pool, pool_memory_for, pool_of_node

PROGRAM_BYTES = 130_000_000
"""The program, its libraries and its threads, at most."""

FILE_BYTES = 130
"""The catalog, for each file."""

HELD_FILE_BYTES = 800
"""For each file of a sample in memory, beside its bytes: what the daemon knows of it, in Python objects."""

ROUNDED_SHARE = 0.1
"""Of --memory: buffers are rounded up, and some freed ones are kept for reuse."""

CACHE_FILE_BYTES, CACHE_WRITE_BYTES = 30, 16 << 20
"""With --cache: the positions of copies, and the write in progress."""

WAITING_SHARE, WAITING_LEAST_BYTES, WAITING_MOST_BYTES = 8, 32 << 20, 256 << 20
"""With --cache: the part of --memory, and beside it, for samples that wait to be written; its least and its most."""

PRECISION = 100
"""The memory of a node is found to a part of so many."""


def limit_for(memory_bytes: int, files: int, file_bytes: float, *, caches: bool = False) -> int:
    """Bytes that a mount with so much --memory takes in all, at most. The script and its workers come on top.

    ``file_bytes``: the mean size of the files of samples; 0: there are none, or they are empty.
    """
    own = PROGRAM_BYTES + FILE_BYTES * files + ROUNDED_SHARE * memory_bytes
    held_bytes = memory_bytes
    if caches:
        waiting = waiting_bytes(memory_bytes)
        own += CACHE_FILE_BYTES * files + CACHE_WRITE_BYTES + waiting
        held_bytes += waiting
    held = min(files, held_bytes / file_bytes) if file_bytes else files
    return memory_bytes + math.ceil(own + HELD_FILE_BYTES * held)


def waiting_bytes(memory_bytes: int) -> int:
    """Memory for samples that wait to be written to a cache."""
    return min(max(memory_bytes // WAITING_SHARE, WAITING_LEAST_BYTES), WAITING_MOST_BYTES)


class PoolOfNode:
    """What each of ``nodes`` needs, and reads, with the pool."""

    def __init__(self, catalog: Catalog, cells: Cells, nodes: int) -> None:
        self._catalog, self._cells, self._nodes = catalog, cells, nodes
        self._dealt = deal(cells, nodes, seed=0)

    def memory_for(self, share: float) -> int:
        """Bytes of --memory that a mount takes, and with which each node holds ``share`` of its part at a time, within
        1 %."""
        sizes = self._catalog.sample_bytes
        largest = int(np.bincount(self._dealt, sizes, self._nodes).argmax())
        held = share * int(sizes[self._dealt == largest].sum())
        least = pool_memory_for(self._catalog, self._cells, 0.0)
        # Enough for each way in which a node divides its memory.
        most = math.ceil(max(held / RESIDENT_SHARE, held + room_for_open(sizes), least) / (1 - 1 / REMOTE_PART)) + 1
        low, high = math.ceil(max(held, least)), most
        while high - low > max(1, high // PRECISION):
            middle = (low + high) // 2
            if self._is_taken(largest, middle) and self._of(largest, middle)[0] >= held:
                high = middle
            else:
                low = middle
        return high

    def reads(self, memory_bytes: int) -> float:
        """The share of its part that each node reads in each epoch after the first: about as much."""
        _, retained, own_bytes = self._of(0, memory_bytes)
        return 1 - retained / own_bytes if own_bytes else 0.0

    def _is_taken(self, node: int, memory_bytes: int) -> bool:
        """Whether a mount takes so much --memory."""
        try:
            check_pool(
                self._catalog, self._cells, memory_bytes=memory_bytes, seed=0, share=self._asked(node, memory_bytes)
            )
        except MemoryTooSmallError:
            return False
        return True

    def _of(self, node: int, memory_bytes: int) -> tuple[int, int, int]:
        """As `pool_of_node`."""
        return pool_of_node(self._catalog, self._cells, memory_bytes, self._asked(node, memory_bytes))

    def _asked(self, node: int, memory_bytes: int) -> Share:
        remote = remote_memory_of(SharingOptions(), memory_bytes)
        return Share(
            node, self._nodes, remote, True, self._dealt, timeout_s=1.0, exchange=None, window=1, needs_less=True
        )
