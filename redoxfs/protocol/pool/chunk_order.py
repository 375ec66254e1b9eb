"""Which chunks have samples to load, for this lap or the next: counts, and an order to draw from.

Chunks for this lap come first, then those for the next lap alone, then those with nothing to load. So a chunk is drawn
from one stretch of an array, and a chunk whose counts change moves by one swap across each border.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.uint16]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Ints: TypeAlias = "memoryview[int]"

SORTED_FOR_ONE = 64
"""How many chunks can be sorted in the time that it takes to file one."""

COUNTED_FOR_ONE = 64
"""How many counts `bincount` makes in the time that ``ufunc.at`` changes one."""


class ChunkOrder:
    """All chunks, ordered by the lap that they have samples for.

    ``this_lap`` and ``next_lap`` count, for each chunk, the samples that may be loaded for either lap. The owner
    changes the counts, and calls `file` for each chunk that had a zero count or has one now.

    Args:
        chunk_of: int32[S], the chunk of each sample.
        chunks: how many there are.
    """

    def __init__(self, chunk_of: Int32, chunks: int) -> None:
        self._chunk_of = chunk_of
        self.this_lap_array, self.next_lap_array = np.zeros((2, chunks), np.uint16)
        self.this_lap: Ints = self.this_lap_array.data
        self.next_lap: Ints = self.next_lap_array.data
        self.order_array, self._place_array = np.zeros((2, chunks), np.int32)
        self._order: Ints = self.order_array.data
        self._place: Ints = self._place_array.data
        self.this_lap_end = self.next_lap_end = 0

    def reset(self, this_lap: Flags, next_lap: Flags | None) -> None:
        """Count anew: samples bool[S] for this lap, and those for the next, None where there are none."""
        self.this_lap_array[:] = self._count(this_lap)
        self.next_lap_array[:] = 0 if next_lap is None else self._count(next_lap)
        self._sort()

    def draw(self, random: np.random.Generator, count: int) -> Int32:
        """``count`` chunks for this lap, with repeats. If there are fewer, all of them and some for the next lap."""
        this_lap, next_lap = self.this_lap_end, self.next_lap_end - self.this_lap_end
        if this_lap > count:
            return self.order_array[(random.random(count) * this_lap).astype(np.intp)]
        if not next_lap:
            return self.order_array[:this_lap].copy()  # loading one moves the others
        picks = this_lap + (random.random(count - this_lap) * next_lap).astype(np.intp)
        return np.concatenate([self.order_array[:this_lap], self.order_array[picks]])

    def file(self, chunk: int) -> None:
        """Move a chunk to the stretch that its counts call for."""
        place = self._place[chunk]
        if place < self.this_lap_end:
            if self.this_lap[chunk]:
                return
            self.this_lap_end -= 1
            place = self._swap(place, self.this_lap_end)
        if place < self.next_lap_end:
            if not self.this_lap[chunk] and not self.next_lap[chunk]:
                self.next_lap_end -= 1
                self._swap(place, self.next_lap_end)
        elif self.this_lap[chunk] or self.next_lap[chunk]:
            place = self._swap(place, self.next_lap_end)
            self.next_lap_end += 1
        if self.this_lap[chunk]:
            self._swap(place, self.this_lap_end)
            self.this_lap_end += 1

    def file_all(self, chunks: Int32) -> None:
        """`file` each of ``chunks``, which may have repeats. Many are filed by sorting all."""
        if len(chunks) > len(self.this_lap):
            self._sort()
            return
        places = self._place_array[chunks]
        is_with = (places >= self.this_lap_end).view(np.uint8) + (places >= self.next_lap_end)
        misplaced = chunks[is_with != _rank(self.this_lap_array[chunks], self.next_lap_array[chunks])]
        if len(misplaced) > len(self.this_lap) // SORTED_FOR_ONE:
            self._sort()
        else:
            for chunk in np.unique(misplaced).tolist():
                self.file(chunk)

    def _count(self, samples: Flags) -> Int64:
        """int64[chunks]: how many of ``samples`` each chunk has."""
        return np.bincount(self._chunk_of if samples.all() else self._chunk_of[samples], minlength=len(self.this_lap))

    def _sort(self) -> None:
        rank = _rank(self.this_lap_array, self.next_lap_array)
        self.order_array[:] = np.argsort(rank, kind="stable")
        self._place_array[self.order_array] = np.arange(len(rank), dtype=np.int32)
        self.this_lap_end = int(np.count_nonzero(rank == 0))
        self.next_lap_end = int(np.count_nonzero(rank <= 1))

    def _swap(self, place: int, other: int) -> int:
        """Swap two chunks; returns the new place of the one at ``place``."""
        order = self._order
        order[place], order[other] = order[other], order[place]
        self._place[order[place]] = place
        self._place[order[other]] = other
        return other


def add(counts: Counts, chunks: Int32, change: int) -> None:
    """Change the counts of ``chunks`` by 1 or -1, as often as each is in it."""
    do = np.add if change > 0 else np.subtract
    if len(chunks) > len(counts) // COUNTED_FOR_ONE:
        do(counts, np.bincount(chunks, minlength=len(counts)).astype(counts.dtype), out=counts)
    else:
        do.at(counts, chunks, counts.dtype.type(1))


def _rank(this_lap: Counts, next_lap: Counts) -> npt.NDArray[np.uint8]:
    """uint8[n], a chunk's stretch of the order: 0 for this lap, 1 for the next alone, 2 for neither."""
    return np.where(this_lap > 0, 0, np.where(next_lap > 0, 1, 2)).astype(np.uint8)
