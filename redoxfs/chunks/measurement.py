"""Measure the speed of a storage, in under two seconds.

Reads are made as the packed store makes them: several at once, past the page cache. A limit on reads or bytes per
second is commonly enforced in slices of 0.1 s, within which a burst passes. So each measurement lasts several slices,
and the result is a rate, not the time of a single read.
"""

import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from redoxfs.chunks.storage_speed import UNKNOWN_SPEED, StorageSpeed, even_bytes, speed_of_reads

READS_AT_ONCE = 8
"""The packed store has as many sweeps in flight."""

LASTS_S = 0.4
SMALL_BYTES = 4096
LARGE_BYTES = 4 << 20

LEAST_BYTES = 64 << 20
"""Below this total size, random reads would mostly hit positions that were read before."""


MOST_FILES = 256
"""Of more, the largest are read. All of them could be more than a process may have open."""


def measure_storage(files: Sequence[Path]) -> StorageSpeed:
    """Measure the storage that holds ``files``. `UNKNOWN_SPEED` if the files are too small for that. Raises OSError."""
    found = sorted(((path.stat().st_size, path) for path in files), reverse=True)[:MOST_FILES]
    sizes = [size for size, _ in found]
    if sum(sizes) < LEAST_BYTES:
        return UNKNOWN_SPEED
    fds = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for _, path in found]
    try:
        for fd in fds:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        at_random = random.Random(0)

        def anywhere(size: int) -> Callable[[], int]:
            number = at_random.choices(range(len(fds)), sizes)[0]
            at = at_random.randrange(max(1, sizes[number] - size)) & ~(SMALL_BYTES - 1)
            return lambda: _read(fds[number], at, size)

        seek_s, _ = _each(lambda: anywhere(SMALL_BYTES))
        # A read ends with its file, so it is as long as what came.
        large_s, large = _each(lambda: anywhere(LARGE_BYTES))
        asked = max(SMALL_BYTES, even_bytes(seek_s, large, large_s))
        even_s, even = _each(lambda: anywhere(asked))
    finally:
        for fd in fds:
            os.close(fd)
    return speed_of_reads(seek_s, large, large_s, even, even_s)


def _read(fd: int, at: int, size: int) -> int:
    os.posix_fadvise(fd, at, size, os.POSIX_FADV_DONTNEED)
    return len(os.pread(fd, size, at))


def _each(next_read: Callable[[], Callable[[], int]]) -> tuple[float, int]:
    """Seconds and bytes of a read, over many reads at once."""
    from concurrent.futures import ThreadPoolExecutor

    begin = time.monotonic()

    def work(first: Callable[[], int]) -> tuple[int, int]:
        reads, size = 1, first()
        while time.monotonic() - begin < LASTS_S:
            size += next_read()()
            reads += 1
        return reads, size

    with ThreadPoolExecutor(READS_AT_ONCE) as pool:
        reads, sizes = zip(*pool.map(work, [next_read() for _ in range(READS_AT_ONCE)]), strict=True)
    return (time.monotonic() - begin) / sum(reads), sum(sizes) // sum(reads)
