"""What an open waited for, and how it ended."""

from enum import IntEnum


class Outcome(IntEnum):
    """What an open waited for.

    RESIDENT   nothing: the bytes of its answer were in memory
    IN_FLIGHT  a read that was in progress already
    DEMAND     a read that it started
    REMOTE     another node
    DIRECT     the file itself was opened in storage: it is not redirected, the path is below ``.redoxfs/exact``, or the
               program copies
    FAILED     whatever it was, the open failed
    """

    RESIDENT = 0
    IN_FLIGHT = 1
    DEMAND = 2
    REMOTE = 3
    DIRECT = 4
    FAILED = 5

    @property
    def label(self) -> str:
        """Its name in stats.json and in Prometheus."""
        return self.name.lower()
