"""How much memory a mount takes in all: what a limit of a job, a pod or a container must have room for.

This is the one rule. `redoxfs inspect` applies it, and documents link to it (docs/options.md, "Memory"). SEMANTICS.md
promises its parts, and says which tests measure them.
"""

import math

import numpy as np
import numpy.typing as npt

from redoxfs.chunks.layout import RESIDENT_SHARE, room_for_open

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
"""Of --memory, by default, for samples from other nodes (docs/options.md)."""


def limit_for(memory_bytes: int, files: int, *, caches: bool = False) -> int:
    """Bytes that a mount with so much --memory takes in all, at most. The script and its workers come on top."""
    own = PROGRAM_BYTES + FILE_BYTES * files + ROUNDED_SHARE * memory_bytes
    if caches:
        own += CACHE_FILE_BYTES * files + CACHE_WRITE_BYTES + waiting_bytes(memory_bytes)
    return memory_bytes + math.ceil(own)


def waiting_bytes(memory_bytes: int) -> int:
    """Memory for samples that wait to be written to a cache."""
    return min(max(memory_bytes // WAITING_SHARE, WAITING_LEAST_BYTES), WAITING_MOST_BYTES)


def pool_memory_of_node(sample_bytes: npt.NDArray[np.int64], least_bytes: int, nodes: int, share: float) -> int:
    """Bytes of --memory with which each of ``nodes`` holds its part of ``share`` of the samples at a time.

    ``least_bytes``: what the pool of one node needs at least. Of several nodes, samples from others have their part of
    --memory first, and open files a quarter of the rest; nothing is kept from lap to lap.
    """
    held = share * int(sample_bytes.sum()) / nodes
    own = max(held / RESIDENT_SHARE, held + room_for_open(sample_bytes), least_bytes)
    return math.ceil(own / (1 - REMOTE_SHARE)) + 1
