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
