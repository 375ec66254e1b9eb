"""The speed of a storage: the time of a read at a new position, and the rate of bytes.

A read of n bytes costs ``seek_s`` and ``n / bytes_per_s``. On a disk ``seek_s`` is the movement of the arm, and the
two add up. Where reads are limited (a cloud volume, a NAS), ``seek_s`` is one over the allowed reads per second, and a
read takes the longer of the two, once several reads are in flight. These two numbers are enough for the decisions made
from them: the size of a chunk, and whether to read or to skip a gap.
"""

import math
from dataclasses import dataclass

STREAMING_SHARE = 0.9
"""The share of a sweep's rate that a read of one chunk should reach. More would take chunks many times as large."""

ADDS_ABOVE = 1.4
"""Between 1, if the longer part of a read hides the shorter one, and 2, if they add up."""


@dataclass(frozen=True, slots=True)
class StorageSpeed:
    """What a read costs. ``adds``: a read takes the sum of both times rather than the longer one."""

    seek_s: float
    bytes_per_s: float
    adds: bool = True

    @property
    def longest_gap_bytes(self) -> int:
        """Up to this length, reading a gap and discarding it takes less time than skipping it."""
        return int(self.seek_s * self.bytes_per_s)

    @property
    def streaming_bytes(self) -> int:
        """The length at which a read reaches STREAMING_SHARE of a sweep's rate."""
        ratio = STREAMING_SHARE / (1 - STREAMING_SHARE) if self.adds else STREAMING_SHARE
        return math.ceil(self.seek_s * self.bytes_per_s * ratio)


UNKNOWN_SPEED = StorageSpeed(seek_s=0.002, bytes_per_s=200e6)
"""Average network storage. Used where nothing was measured."""


def even_bytes(seek_s: float, large_bytes: int, large_s: float) -> int:
    """The length at which both parts of a read take equally long. A read of it shows whether they add up.

    ``seek_s`` is the time of a read of a few bytes, and ``large_s`` that of ``large_bytes``, the longest result.
    """
    return int(large_bytes * min(1.0, seek_s / large_s))


def speed_of_reads(seek_s: float, large_bytes: int, large_s: float, even: int, even_s: float) -> StorageSpeed:
    """The speed of a storage from the times of three reads: of a few bytes, of ``large_bytes`` and of ``even``."""
    adds = even_s > ADDS_ABOVE * max(seek_s, large_s * even / large_bytes)
    return StorageSpeed(seek_s, large_bytes / max(large_s - (seek_s if adds else 0), large_s / 4), adds)
