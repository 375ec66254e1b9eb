"""Samples that peers gave and no reader here has got yet, and the memory for them."""

from collections import deque
from collections.abc import Sequence
from typing import cast

import numpy as np

from redoxfs.arrays import Int32, Int64
from redoxfs.protocol.tables import rows

ROOM_PARTS = 4
"""One answer may fill this fraction of the remote memory, 1/4, so that some is left for other classes."""


class Taken:
    """Samples taken from peers, a queue for each class that has any, and the remote memory that they count in.

    A sample that does not fit is *evicted*: it stays here without its bytes.

    The owner also changes ``free_bytes``, as it grants room to answers under way.

    Args:
        class_of: int32[S], the class of each sample.
        sample_bytes: int64[S], what each takes.
        limit_bytes: what all samples and granted rooms may take.
    """

    def __init__(self, class_of: Int32, sample_bytes: Int64, limit_bytes: int) -> None:
        self._bytes_of: memoryview[int] = sample_bytes.data
        counts = np.bincount(class_of)
        largest = np.zeros(len(counts), np.int64)
        np.maximum.at(largest, class_of, sample_bytes)
        self._largest_of: memoryview[int] = largest.data
        means = np.bincount(class_of, sample_bytes) / np.maximum(1, counts)
        self._mean_of = cast("memoryview[float]", means.data)
        self._limit_bytes = limit_bytes
        self.free_bytes = limit_bytes
        self._queues: dict[int, deque[int]] = {}
        self._evicted: set[int] = set()

    @property
    def used_bytes(self) -> int:
        """The bytes of samples and granted rooms."""
        return self._limit_bytes - self.free_bytes

    def __contains__(self, cls: int) -> bool:
        """Whether there is any sample of a class."""
        return cls in self._queues

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def of_class(self, cls: int) -> tuple[int, ...]:
        """The samples of a class, in the order in which `pop` returns them."""
        return tuple(self._queues.get(cls, ()))

    def count(self, cls: int) -> int:
        """How many samples of a class there are."""
        return len(self._queues.get(cls, ()))

    def keeps(self, cls: int, sample: int) -> bool:
        """Whether a sample is here with its bytes."""
        return sample in self._queues.get(cls, ()) and sample not in self._evicted

    def largest(self, cls: int) -> int:
        """Bytes of the largest sample of a class."""
        return self._largest_of[cls]

    def room_for(self, cls: int, samples: int) -> int:
        """Bytes to grant for so many samples: the peer gives another only where the class's largest would fit."""
        largest = self._largest_of[cls]
        wanted_bytes = min(samples * largest, largest + int(samples * self._mean_of[cls]))
        return max(0, min(wanted_bytes, self.free_bytes, -(-self._limit_bytes // ROOM_PARTS)))

    def pop(self, cls: int) -> int:
        """Remove the next sample of a class."""
        queue = self._queues[cls]
        sample = queue.popleft()
        if not queue:
            del self._queues[cls]
        self._leaves(sample)
        return sample

    def put_back(self, cls: int, sample: int) -> bool:
        """Add a sample at the end. False where its bytes do not fit."""
        self._queues.setdefault(cls, deque()).append(sample)
        return self._keep(sample)

    def put_first(self, cls: int, samples: list[int], *, has_room: bool) -> None:
        """Add samples at the front. Those that ``has_room`` granted count even past the limit; others are evicted if
        they do not fit.
        """
        for sample in samples:
            if has_room:
                self.free_bytes -= self._bytes_of[sample]
            else:
                self._keep(sample)
        self._queues.setdefault(cls, deque()).extendleft(reversed(samples))

    def let_go(self, cls: int) -> tuple[list[int], list[int]]:
        """Remove all samples of a class. Returns those with their bytes, and those without."""
        kept: list[int] = []
        evicted: list[int] = []
        for sample in self._queues.pop(cls, ()):
            (kept if self._leaves(sample) else evicted).append(sample)
        return kept, evicted

    def remove(self, cls: int, sample: int) -> bool:
        """Remove a sample that is there. Returns whether its bytes were."""
        queue = self._queues[cls]
        queue.remove(sample)
        if not queue:
            del self._queues[cls]
        return self._leaves(sample)

    def table(self) -> Int64:
        """int64[n, 3]: the class of each sample, the sample, and whether it is evicted; in the order of the queues."""
        return rows(
            ((cls, sample, sample in self._evicted) for cls, queue in self._queues.items() for sample in queue), 3
        )

    def resume(self, table: Sequence[Sequence[int]], free_bytes: int) -> None:
        """Continue where a `table` was taken."""
        self.free_bytes = free_bytes
        for cls, sample, is_evicted in table:
            self._queues.setdefault(cls, deque()).append(sample)
            if is_evicted:
                self._evicted.add(sample)

    def _leaves(self, sample: int) -> bool:
        """A sample is here no more. Returns whether its bytes were."""
        if sample in self._evicted:
            self._evicted.remove(sample)
            return False
        self.free_bytes += self._bytes_of[sample]
        return True

    def _keep(self, sample: int) -> bool:
        if self._bytes_of[sample] > self.free_bytes:
            self._evicted.add(sample)
            return False
        self.free_bytes -= self._bytes_of[sample]
        return True
