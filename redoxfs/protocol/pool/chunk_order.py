"""Which chunks have samples to load, for this lap or the next: counts, and an order to draw from.

Chunks for this lap come first, then those for the next lap alone, then those with nothing to load. So a chunk is drawn
from one stretch of an array, and a chunk whose counts change moves by one swap across each border.

Chunks are drawn into a *window* and stay there until they are loaded, or until the owner passes them over. Drawn anew
for each choice, the best of a few would always be the chunks with the most uneven mix of classes, and the others would
come late in every lap.
"""

import numpy as np
import numpy.typing as npt

from redoxfs.arrays import Bytes, Flags, Int32, Int64, Ints, distinct

Counts = npt.NDArray[np.uint16]

SORTED_FOR_ONE = 64
"""How many chunks can be sorted in the time that it takes to file one."""

COUNTED_FOR_ONE = 64
"""How many counts `bincount` makes in the time that ``ufunc.at`` changes one."""


class ChunkOrder:
    """All chunks, ordered by the lap that they have samples for.

    ``this_lap`` and ``next_lap`` count, for each chunk, the samples that may be loaded for either lap, or marked for
    the next. The owner changes the counts, and calls `file` for each chunk that had a zero count or has one now.

    Args:
        chunk_of: int32[S], the chunk of each sample.
        chunks: how many there are.
        drawn: how many to draw at a time.
    """

    def __init__(self, chunk_of: Int32, chunks: int, *, drawn: int) -> None:
        self._chunk_of = chunk_of
        self.this_lap_array, self.next_lap_array = np.zeros((2, chunks), np.uint16)
        self.this_lap: Ints = self.this_lap_array.data
        self.next_lap: Ints = self.next_lap_array.data
        self.order_array, self._place_array = np.zeros((2, chunks), np.int32)
        self._order: Ints = self.order_array.data
        self._place: Ints = self._place_array.data
        self.this_lap_end = self.next_lap_end = 0
        self._window = np.zeros(drawn, np.int32)
        self._is_passed_over = np.ones(drawn, np.bool_)
        # Whether the window is of the next lap; None: the last draw found no chunk.
        self._is_for_next: bool | None = False

    def reset(self, this_lap: Flags, next_lap: Flags | None) -> None:
        """Count anew: samples bool[S] for this lap, and those for the next, None where there are none."""
        self.this_lap_array[:] = self._count(this_lap)
        self.next_lap_array[:] = 0 if next_lap is None else self._count(next_lap)
        self._sort()

    def draw(self, random: np.random.Generator) -> Int32:
        """Chunks for this lap, with repeats. If there are few, all of them and some for the next lap."""
        if not self.next_lap_end:
            self._is_for_next = None
            return self.order_array[:0]
        window = self._window
        first, end = 0, self.this_lap_end
        is_for_next = end <= len(window)
        if is_for_next:
            first, end = end, self.next_lap_end
        if is_for_next != self._is_for_next or first == end:
            # What is in the window was loaded last in this lap. It must not come first in the next.
            self._is_for_next = is_for_next
            self._is_passed_over[:] = True
        if first == end:
            return self.order_array[:first].copy()  # loading one moves the others
        places = self._place_array[window]
        again = np.flatnonzero(self._is_passed_over | (places < first) | (places >= end))
        window[again] = self.order_array[first + (random.random(len(again)) * (end - first)).astype(np.intp)]
        return np.concatenate([self.order_array[:first], window[first:]])

    def pass_over(self, drawn: Flags) -> None:
        """Draw others next time in place of these, flagged in the order of the last draw."""
        self._is_passed_over[len(self._window) - len(drawn) :] = drawn

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
            for chunk in distinct(misplaced).tolist():
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


def _rank(this_lap: Counts, next_lap: Counts) -> Bytes:
    """uint8[n], a chunk's stretch of the order: 0 for this lap, 1 for the next alone, 2 for neither."""
    return np.where(this_lap > 0, 0, np.where(next_lap > 0, 1, 2)).astype(np.uint8)
