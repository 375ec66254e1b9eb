"""What the storage does: how long a read takes that goes elsewhere, and how fast bytes come.

Two numbers say it well enough for what is decided by them: ``seek_s`` for a read of its own, ``n / bytes_per_s`` for n
bytes. On a disk the first is the movement of its arm, and the two add up. Where reads are counted (a cloud volume, a
NAS) it is one over as many as there may be in a second, and the longer of the two is what a read takes, once there
are several in flight.
"""

import math
from dataclasses import dataclass

STREAMING_SHARE = 0.9
"""What a read of one chunk is to get of the rate of a sweep: more would take chunks of many times the size."""


@dataclass(frozen=True, slots=True)
class StorageSpeed:
    """``adds``: a read takes the sum of both times rather than the longer of them."""

    seek_s: float
    bytes_per_s: float
    adds: bool = True

    @property
    def longest_gap_bytes(self) -> int:
        """A gap up to this long is read and thrown away sooner than skipped."""
        return int(self.seek_s * self.bytes_per_s)

    @property
    def streaming_bytes(self) -> int:
        """Reads of this length get STREAMING_SHARE of the rate of a sweep."""
        ratio = STREAMING_SHARE / (1 - STREAMING_SHARE) if self.adds else STREAMING_SHARE
        return math.ceil(self.seek_s * self.bytes_per_s * ratio)


UNKNOWN = StorageSpeed(seek_s=0.002, bytes_per_s=200e6)
"""A middling network store: where nothing was measured."""
