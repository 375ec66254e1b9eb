"""Which chunks the pool loads, ahead of demand and on demand."""

import numpy as np
import numpy.typing as npt

from redoxfs.arrays import Flags, Int32
from redoxfs.protocol.events import Load
from redoxfs.protocol.pool.queues import RESERVED
from redoxfs.protocol.pool.state import PoolState

Floats = npt.NDArray[np.float32]

SCARCE_SHARE = 1 / 2
"""A load on demand that does not fit keeps the samples whose class has less than this share of the mean stock. The
others stay together for one later load: fewer loads, and a quarter fewer waits with 21,000 classes of 61 at 10 % of
memory."""

PASSED_OVER_SHARE = 1 / 2
"""A chunk with at most this share of the best one's need makes room for another draw. So few chunks are passed over
where all classes are well stocked, and the choice is as wide as ever where some are not."""


TIE_SHARE = 1e-3
"""Among chunks whose needs differ by less than this share, any may come first. Where all classes are equally stocked,
or there is one, the order in which they were drawn would else decide: with one class and 140 streamed chunks the rank
correlation of laps was 0.1."""


class Loads(PoolState):
    """A `PoolState` that chooses chunks and loads them."""

    def _load_ahead(self) -> tuple[Load, ...]:
        """Load the best of a few chunks while whole chunks fit: half a chunk now would be another load later.

        Small chunks are loaded several at a time, once there is room for them, so that a look costs no more per sample.

        A chunk without samples for this lap is for the next. It waits until all of it can be loaded or marked, as
        otherwise the rest would cost it a second load. It needs room for all of its samples, so that chunks with some
        in memory are not loaded first.
        """
        loads: list[Load] = []
        chosen = 0
        while chosen < self._loads_per_request and self._room_for_next_bytes <= self._free_bytes:
            drawn = self._chunks.draw(self._random)
            if not len(drawn):
                break
            rows, wanted, marked, need = self._look_at(drawn)
            looked_at = set()
            self._chunks.pass_over(need <= need.max() * PASSED_OVER_SHARE)
            of_equals = need * (1 + TIE_SHARE * self._random.random(len(need)))
            for best in of_equals.argsort()[: -1 - self._chunks_at_a_time : -1].tolist():
                chunk = int(drawn[best])
                if chunk in looked_at:
                    continue
                looked_at.add(chunk)
                if need[best] <= 0:
                    self._room_for_next_bytes = min(self._free_bytes + self._retry_bytes, self._most_room_bytes)
                    return tuple(loads)
                samples, marks = rows[best][wanted[best]].tolist(), rows[best][marked[best]].tolist()
                size_bytes = self._size_bytes(samples) + self._size_bytes(marks)
                self._room_for_next_bytes = min(self._chunks_at_a_time * size_bytes, self._most_room_bytes)
                if size_bytes > self._free_bytes:
                    return tuple(loads)
                chosen += 1
                self._load(chunk, samples, marks)
                if samples:
                    loads.append(Load(chunk, tuple(samples)))
                    self._note_scheduled(loads[-1])
        return tuple(loads)

    def _look_at(self, chunks: Int32) -> tuple[Int32, Flags, Flags, Floats]:
        """Samples int32[n, K] of ``chunks``, which of them to load, which to mark as staying, and float32[n]: how much
        each chunk is needed.

        The need is the mean over the samples of (pace of the class / (1 + its residents))², the pace being how often
        the class is asked. The square keeps the poorest classes better stocked than the plain inverse (0.37 instead of
        0.45 % of opens wait at 1 % of memory); the cube does no better. A chunk that waits for its last samples has no
        need. Where a pass has ended a lap, chunks have samples in memory that had no turn in it. The mean is then over
        those that come: such a chunk would else be late in this lap as it was in that.
        Where all samples of all chunks are fresh, as is usual, their places are not looked up.
        """
        rows = self._cells[chunks]
        classes = self._class_array.take(rows)
        exists: Flags = rows >= 0
        wanted, marked, waits = exists, np.zeros_like(exists), np.zeros(len(rows), np.bool_)
        if np.count_nonzero(exists) != self._chunks.this_lap_array.take(chunks).sum():
            queues = self._queues
            places = queues.at_array.take(rows)
            wanted = exists & (places >= queues.loaded_array.take(classes))
            if self._running_over:
                this_lap: Flags = np.any(wanted, axis=1)
                settled = (places < queues.next_array.take(classes)) | queues.stays_array.take(rows)
                next_lap = self._runs_over_array.take(classes) & exists & ~settled
                if self._reserved:
                    next_lap &= queues.had_array.take(rows) != RESERVED
                # With a chunk that is for a lap, only samples for that lap come: others are drawn when all of it is.
                laps = self._lap.take(classes)
                latest = np.where(wanted, laps, 0).max(axis=1)
                next_lap &= ~this_lap[:, None] | (laps < latest[:, None])
                passed = places < queues.served_array.take(classes)
                marked = next_lap & ~passed
                wanted |= next_lap & passed
                waits = ~this_lap & ~np.all(next_lap | settled | ~exists, axis=1)
        stock = self._queues.stock_array.take(classes)
        has_room = stock <= self._pace.ample.take(classes)
        wanted, marked = wanted & has_room, marked & has_room
        need = self._pace.of_class.take(classes) / (stock + np.float32(1))
        need *= need
        comes = wanted | marked
        need *= comes
        weight = self._weight_array.take(chunks)
        if self._cut:
            weight = 1 / np.maximum(1, np.count_nonzero(comes, axis=1)).astype(np.float32)
        of_chunk: Floats = need.sum(axis=1) * weight
        of_chunk[waits] = 0
        return rows, wanted, marked, of_chunk

    def _choose_for(self, cls: int) -> int:
        """The fresh sample of a class whose chunk is best loaded now, preferring chunks that fit whole.

        Where next to nothing fits, as when classes are asked one after the other, any of them will do.
        """
        fresh = self._queues.fresh(cls)
        first = self._draw(len(fresh))
        if self._free_bytes < self._little_bytes:
            return int(fresh[first])
        asked = fresh.take(np.arange(first, first + min(self._chunks_drawn, len(fresh))), mode="wrap")
        rows, wanted, _, need = self._look_at(self._chunk_array[asked])
        size_bytes = (self._bytes_array.take(rows) * wanted).sum(axis=1) - self._bytes_array[asked]
        fits = size_bytes <= self._free_bytes
        return int(asked[np.where(fits, need, need - need.max() - 1).argmax()])

    def _load_on_demand(self, answer: int) -> Load:
        """Read ``answer``, which leaves at once, and those of its chunk's other samples that are wanted and fit."""
        chunk = self._chunk_of[answer]
        rows, wanted, marked, _ = self._look_at(np.array([chunk], np.int32))
        others, marks = rows[wanted].tolist(), rows[marked].tolist()
        if self._size_bytes(others) > self._free_bytes:
            others, marks = self._scarcest(others), []
        self._load(chunk, others, marks)
        load = Load(chunk, (answer, *others))
        self._note_scheduled(load)
        return load

    def _scarcest(self, samples: list[int]) -> list[int]:
        """The samples that fit, of the classes with the fewest residents."""
        enough = SCARCE_SHARE * float(self._queues.stock_array.mean())
        room_bytes = self._free_bytes
        kept = []
        for stock, sample in sorted((self._queues.stock[self._class_of[sample]], sample) for sample in samples):
            if stock > enough:
                break
            if self._bytes[sample] <= room_bytes:
                room_bytes -= self._bytes[sample]
                kept.append(sample)
        return kept

    def _load(self, chunk: int, samples: list[int], marks: list[int]) -> None:
        """Make samples of a chunk residents: of this lap if they are fresh, else of the next. ``marks`` stay for it."""
        this_lap, all_loaded = self._queues.load(samples)
        for sample in marks:
            self._queues.stays[sample] = 1
        self._free_bytes -= self._size_bytes(samples)
        self._this_lap[chunk] -= this_lap
        self._next_lap[chunk] -= len(samples) - this_lap + len(marks)
        self._chunks.file(chunk)
        for cls in all_loaded:
            self._run_over(cls)

    def _note_scheduled(self, load: Load) -> None:
        """Estimate when a load will have arrived: after those before it, at the assumed rate."""
        self._last_arrival = max(self._last_arrival, self._now) + len(load.samples)
        self._arrival[load.chunk] = self._last_arrival
