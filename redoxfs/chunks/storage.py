"""What the storage does: how long a read takes that goes elsewhere, and how fast bytes come.

Two numbers say it well enough for what is decided by them: a read of n bytes costs ``seek_s + n / bytes_per_s``.
On a disk the first is the movement of its arm, on a network the round trip, and where reads are counted (a cloud
volume, a NAS) it is one over as many as there may be in a second.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Storage:
    """``seek_s`` seconds for a read of its own, ``bytes_per_s`` in a sweep."""

    seek_s: float
    bytes_per_s: float

    @property
    def worth_reading_through_bytes(self) -> int:
        """A gap up to this long is read and thrown away sooner than skipped."""
        return int(self.seek_s * self.bytes_per_s)


UNKNOWN = Storage(seek_s=0.002, bytes_per_s=200e6)
"""A middling network store: where nothing was measured."""
