"""The decisions of the pool policy: which sample answers a request, and which chunks to load for later ones."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from redoxfs.protocol.events import ChooseVictim, Load, Served, oldest
from redoxfs.protocol.lap_progress import LapProgress, TreeLap
from redoxfs.protocol.pool.chunk_order import ChunkOrder, add
from redoxfs.protocol.pool.pace import AMPLE_SAMPLES, Pace
from redoxfs.protocol.pool.parts import Parts
from redoxfs.protocol.pool.queues import HAD_TURN, NOT_YET, RESERVED, Queues
from redoxfs.protocol.turns import Turns

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Int8 = npt.NDArray[np.int8]
Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
Ints: TypeAlias = "memoryview[int]"

CHUNKS_DRAWN = 32
"""How many chunks the next one is chosen from. Choosing from one loads 1.27 times as much at 2 % of memory; 128 are no
better than 32, and cost four times as much."""

LOADS_PER_REQUEST = 4
"""How many chunks one request hands out ahead. The pool then fills over the first requests instead of in the very
first, which would take seconds to decide at 13 M samples. With K = 64 storage is still asked for 256 samples for
each one that is served."""

DELIVERED_PER_REQUEST = 2
"""How many samples storage is assumed to deliver between two requests. Storage that delivers less than one delays its
readers, and so their requests. A higher figure would count samples as arrived that are queued behind the first fill of
the pool."""

IN_FLIGHT_SAMPLES = 2_048
"""How many samples are assumed to be under way when a load is scheduled: 32 reads of 64 samples each."""

IN_FLIGHT_SHARE = 1 / 8
"""The largest share of the pool that is assumed to be under way: the draw needs the rest to choose from."""

SCARCE_SHARE = 1 / 2
"""A load on demand that does not fit keeps the samples whose class has less than this share of the mean stock. The
others stay together for one later load: fewer loads, and a quarter fewer waits with 21,000 classes of 61 at 10 % of
memory."""

RETRY_SHARE = 1 / 4
"""When no chunk is worth loading, look again after this share of the chunks chosen at a time has become free. With
memory for all samples no chunk is worth loading for most of a lap. A quarter of one chunk of 8 would then mean a
look every other request, which makes decisions cost three times as much and loads no more."""

SAMPLES_AT_A_TIME = 64
"""Chunks of fewer samples are chosen several at a time. Chosen one by one, chunks of 8 cost twice as much per
request."""

LITTLE_SAMPLES = 2
"""With less room than this no chunk is looked for. That halves the cost of a decision where classes are asked one after
the other in chunks of 8, and changes nothing where they are asked at random."""

DRAWS = 4_096
"""How many random numbers are drawn at a time: one by one, each costs a microsecond."""


class PoolPolicy:
    """Which sample answers a request, and which chunks to load ahead.

    The arrays are shared, not copied, and must not change.

    Args:
        cells: int32[chunks, K], the samples of each physical chunk, -1 for a hole.
        class_of: int32[S], the class of each sample, 0 and up: samples of one class may stand in for each other.
        sample_bytes: int64[S], what each sample takes in memory.
        capacity_bytes: what all residents may take together. Less than a chunk means loads on demand alone.
        seed: of the generator that chooses.
        part_of: int8[S], the part of each sample; None where all are of part 0. The samples of a chunk should be of one
            part: each further part costs the chunk another load.
        parts_by_lap: lap L, from 1, of every class covers its samples of part parts_by_lap[(L - 1) % their number].
        chunks_drawn, loads_per_request, ample_samples: see the constants.

    Raises:
        ValueError: a sample is not in exactly one cell, a chunk is too large, or ``parts_by_lap`` is empty.
    """

    def __init__(
        self,
        cells: Int32,
        class_of: Int32,
        sample_bytes: Int64,
        *,
        capacity_bytes: int,
        seed: int,
        part_of: Int8 | None = None,
        parts_by_lap: Sequence[int] = (0,),
        chunks_drawn: int = CHUNKS_DRAWN,
        loads_per_request: int = LOADS_PER_REQUEST,
        ample_samples: int = AMPLE_SAMPLES,
    ) -> None:
        samples, (chunks, width) = len(class_of), cells.shape
        if width > np.iinfo(np.uint16).max:
            raise ValueError("a chunk may have at most 65,535 samples")
        # Operations on memory-mapped arrays cost more than on plain ones.
        self._cells = np.asarray(cells)
        self._class_array = np.asarray(class_of)
        self._bytes_array = np.asarray(sample_bytes)
        # Views of the buffers give plain ints at a third of numpy's cost.
        self._class_of: Ints = class_of.data
        self._bytes: Ints = sample_bytes.data
        self._chunk_array = _chunk_of(cells, samples)
        self._chunk_of: Ints = self._chunk_array.data

        self._parts = Parts(self._class_array, part_of, parts_by_lap)
        self._part_array = self._parts.of_sample
        self._queues = Queues(self._class_array)
        classes = len(self._queues.stock_array)
        runs_over = np.zeros(classes, np.uint8)
        self._runs_over_array = runs_over.view(np.bool_)
        self._runs_over: Ints = runs_over.data
        self._running_over = 0
        self._given_before = 0
        self._lap = np.ones(classes, np.int32)
        self._lap_of_class: Ints = self._lap.data
        self._progress: LapProgress | None = None
        # By class, oldest first: each reserved sample, and whether it was in memory then.
        self._reserved: dict[int, dict[int, bool]] = {}

        self.choose_victim: ChooseVictim = oldest

        self._random = np.random.default_rng(seed)
        self._draws = iter(self._random.random(DRAWS).tolist())
        self._chunks = ChunkOrder(self._chunk_array, chunks)
        self._this_lap = self._chunks.this_lap
        self._next_lap = self._chunks.next_lap
        self._lap += self._parts.first_laps()
        self._begin_laps()
        self._chunks_drawn = chunks_drawn
        self._loads_per_request = loads_per_request

        self._capacity_bytes = capacity_bytes
        self._free_bytes = capacity_bytes
        self._keeps = part_of is None and capacity_bytes >= int(sample_bytes.sum())
        self._room_for_next_bytes = 0
        mean_bytes = max(1.0, float(sample_bytes.mean())) if samples else 1.0
        in_capacity = capacity_bytes / (width * mean_bytes)
        self._chunks_at_a_time = int(max(1, min(SAMPLES_AT_A_TIME // width, in_capacity * IN_FLIGHT_SHARE)))
        self._retry_bytes = int(self._chunks_at_a_time * width * mean_bytes * RETRY_SHARE)
        self._little_bytes = int(LITTLE_SAMPLES * mean_bytes)
        capacity_samples = capacity_bytes / mean_bytes
        self._pace = Pace(self._parts.of_lap, capacity_samples=capacity_samples, ample_samples=ample_samples)
        self._asked = self._pace.asked
        self._requests_to_note = self._pace.note()
        # The unit of time is a sample that storage may have delivered.
        self._now = 0
        self._last_arrival = 0
        self._in_flight = int(min(IN_FLIGHT_SAMPLES, capacity_samples * IN_FLIGHT_SHARE))
        self._arrival: Ints = np.zeros(chunks, np.int64).data

    def request(self, sample: int) -> Served:
        """A turn for a sample of ``sample``'s class."""
        cls = self._class_of[sample]
        self._now += DELIVERED_PER_REQUEST
        self._asked[cls] += 1
        self._requests_to_note -= 1
        if self._requests_to_note < 0:
            self._requests_to_note = self._pace.note()
        place = self._resident_place(cls)
        if place < 0 and self._queues.is_all_loaded(cls):
            reserved = self._reserved.get(cls)
            if reserved:
                return self._turn_of_reserved(self.choose_victim(reserved), preempted=True)
            self._begin_lap(cls)
            place = self._resident_place(cls)
        if place < 0:
            return self._turn_of_reserved(self._reserve_fresh(cls), preempted=False)
        # Before the answer has its turn: the answer itself must not be loaded for the next lap.
        loads = self._load_ahead() if self._free_bytes >= self._room_for_next_bytes else ()
        answer = self._take_out(cls, place)
        self._had_a_turn(cls, answer)
        return Served(answer, loads, False, False, self._keeps)

    def reserve(self, sample: int) -> int | None:
        """Reserve a sample of ``sample``'s class: a resident, else one that a load on demand would read."""
        cls = self._class_of[sample]
        place = self._resident_place(cls)
        if place < 0 and self._queues.is_all_loaded(cls):
            if self._reserved.get(cls):
                return None
            self._begin_lap(cls)
            place = self._resident_place(cls)
        if place < 0:
            return self._reserve_fresh(cls)
        chosen = self._take_out(cls, place)
        self._queues.had[chosen] = RESERVED
        self._reserved.setdefault(cls, {})[chosen] = True
        return chosen

    def take(self, reserved: int) -> Served:
        """The turn of a sample that `reserve` reserved."""
        self._now += DELIVERED_PER_REQUEST
        return self._turn_of_reserved(reserved, preempted=False)

    def put_back(self, reserved: int) -> bool:
        """Undo a reservation: the sample is resident again if it was loaded and still fits, else fresh again."""
        cls = self._class_of[reserved]
        if self._forget_reservation(reserved) and self._bytes[reserved] <= self._free_bytes:
            self._queues.make_resident_again(cls, reserved)
            self._free_bytes -= self._bytes[reserved]
            return True
        self._queues.make_fresh_again(cls, reserved)
        chunk = self._chunk_of[reserved]
        self._this_lap[chunk] += 1
        self._chunks.file(chunk)
        return False

    def reserved(self, sample: int) -> Iterable[int]:
        """The reserved samples of ``sample``'s class, oldest first."""
        return self._reserved.get(self._class_of[sample], ())

    @property
    def given(self) -> int:
        """How many turns were given since the first lap began, those before a `restore` included."""
        return self._given_before + self._now // DELIVERED_PER_REQUEST

    def turns(self) -> Turns:
        """How far the laps are. A copy."""
        return Turns(self._lap.copy(), np.packbits(self._queues.had_array == HAD_TURN), self.given)

    def restore(self, turns: Turns) -> None:
        """Resume where another policy of the same samples was. Nothing is in memory or reserved any more.

        Raises:
            ValueError: the turns are of other samples or parts; nothing was changed.
        """
        had = turns.flags(len(self._lap), len(self._chunk_of))
        self._parts.of_classes_in(turns.laps)
        self._queues.had_array[:] = had
        self._lap[:] = turns.laps
        self._given_before = turns.given
        self._reserved.clear()
        self._free_bytes = self._capacity_bytes
        self._room_for_next_bytes = 0
        self._now = self._last_arrival = 0
        np.asarray(self._arrival)[:] = 0
        self._begin_laps()
        self._requests_to_note = self._pace.note()
        if self._progress is not None:
            self._progress.count_again()

    def count_laps(self, tree_of: npt.NDArray[np.integer], trees: int) -> None:
        """From now on `tree_laps` counts the turns of each tree; ``tree_of`` is int[S], and there are ``trees``."""
        self._progress = LapProgress(self._class_array, tree_of, trees, self.turns)
        self._progress.count_again()

    def tree_laps(self) -> list[TreeLap]:
        """The lap of each tree, once they are counted."""
        return [] if self._progress is None else self._progress.of_trees()

    def reserve_again(self, sample: int) -> None:
        """After `restore`: a sample that had no turn in its lap is reserved, and not in memory."""
        cls = self._class_of[sample]
        self._reserved.setdefault(cls, {})[sample] = False
        self._queues.reserve_fresh(cls, sample)
        chunk = self._chunk_of[sample]
        self._this_lap[chunk] -= 1
        if not self._this_lap[chunk]:
            self._chunks.file(chunk)
        if self._queues.is_all_loaded(cls):
            self._run_over(cls)

    @property
    def units(self) -> Int32:
        """int[S]: the class of each sample. Each has laps of its own."""
        return self._class_array

    def skip(self, cls: int, lap: int) -> list[int]:
        """End a class's laps before ``lap`` as if all their samples had their turn, reserved ones included.

        The class is then in ``lap``, or in the first lap after it that has any of its samples. Nothing happens if it is
        there already, or if no lap has any.

        Returns:
            The samples that were in memory for the laps that are over: residents no more.
        """
        if self._lap[cls] >= lap or not self._parts.has_any(cls):
            return []
        touched = self._chunk_array[self._queues.fresh(cls)]
        add(self._chunks.this_lap_array, touched, -1)
        reserved = self._reserved.pop(cls, {})
        if self._runs_over[cls]:
            passed = self._queues.passed(cls).tolist()
            next_lap = [s for s in passed if s not in reserved and self._parts.is_of_next_lap(cls, s)]
            chunks = self._chunk_array[np.array(next_lap, np.int32)]
            add(self._chunks.next_lap_array, chunks, -1)
            touched = np.concatenate([touched, chunks])
            self._runs_over[cls] = 0
            self._running_over -= 1
        is_next_skipped = self._parts.lap_after(cls, int(self._lap[cls])) < lap
        let_go = self._queues.skip(cls, next_lap=is_next_skipped)
        if is_next_skipped:
            self._lap[cls] = lap - 1
            self._parts.enter(cls, lap - 1)
        self._free_bytes += self._size_bytes(let_go)
        self._chunks.file_all(touched)
        self._run_over(cls)
        self._begin_lap(cls)
        return let_go

    def members(self, cls: int) -> Int32:
        """The samples of a class, in some order. A view, valid until the next request."""
        return self._queues.members(cls)

    def laps(self, samples: npt.NDArray[np.integer]) -> Int32:
        """The lap, counted from 1, that the class of each of ``samples`` is in."""
        laps: Int32 = self._lap[self._class_array[samples]]
        return laps

    def lap_of(self, sample: int) -> int:
        """The lap, counted from 1, that the class of ``sample`` is in."""
        return self._lap_of_class[self._class_of[sample]]

    def laps_of_units(self) -> Int32:
        """int32[classes]: the lap of each class. A view, valid until the next request."""
        return self._lap

    def chunk_of(self, sample: int) -> int:
        """The physical chunk that ``sample`` lies in."""
        return self._chunk_of[sample]

    def is_resident(self, sample: int) -> bool:
        """Whether ``sample`` is in the pool, for this lap or the next: loaded, and neither served nor reserved."""
        return self._queues.is_resident(self._class_of[sample], sample)

    def residents(self) -> int:
        """How many samples are in the pool."""
        return int(self._queues.stock_array.sum())

    @property
    def resident_bytes(self) -> int:
        """The bytes that they take."""
        return self._capacity_bytes - self._free_bytes

    # Turns

    def _turn_of_reserved(self, sample: int, *, preempted: bool) -> Served:
        """Give a reserved sample its turn. It stays in `_reserved`, out of all loads, until the loads of its turn are
        decided.
        """
        cls = self._class_of[sample]
        loads: tuple[Load, ...] = () if self._reserved[cls][sample] else (self._load_on_demand(sample),)
        if self._free_bytes >= self._room_for_next_bytes:
            loads += self._load_ahead()
        self._forget_reservation(sample)
        self._queues.had[sample] = HAD_TURN
        self._had_a_turn(cls, sample)
        return Served(sample, loads, preempted, kept=self._keeps)

    def _reserve_fresh(self, cls: int) -> int:
        """Reserve the fresh sample of a class without residents that is best read now."""
        chosen = self._choose_for(cls)
        self.reserve_again(chosen)
        return chosen

    def _resident_place(self, cls: int) -> int:
        """The queue place of a class's next answer; -1 where nothing is resident for this lap."""
        queues = self._queues
        served, arrived, loaded = queues.served[cls], queues.arrived[cls], queues.loaded[cls]
        if arrived < loaded:
            before = arrived
            arrived_by = self._now - self._in_flight
            while arrived < loaded and self._arrival[self._chunk_of[queues.queue[arrived]]] <= arrived_by:
                arrived += 1
            if arrived != before:
                queues.arrived[cls] = arrived
        if served < arrived:
            return served + self._draw(arrived - served)
        return served if served < loaded else -1

    def _take_out(self, cls: int, place: int) -> int:
        """Take the resident at ``place`` out of memory."""
        sample = self._queues.take_out(cls, place)
        self._free_bytes += self._bytes[sample]
        return sample

    def _forget_reservation(self, sample: int) -> bool:
        """True where the sample was in memory when it was reserved."""
        cls = self._class_of[sample]
        of_class = self._reserved[cls]
        was_loaded = of_class.pop(sample)
        if not of_class:
            del self._reserved[cls]
        return was_loaded

    # Laps

    def _begin_laps(self) -> None:
        """Enter the laps of `_lap` with nothing in memory. The samples marked in `Queues.had` have had their turn."""
        had = self._queues.had_array
        fresh: Flags = had == NOT_YET
        parts = self._parts.enter_all(self._lap)
        if self._part_array is not None:
            fresh &= self._part_array == parts[self._class_array]
            # Samples that a lap leaves out had no turn in it.
            had[self._part_array != parts[self._class_array]] = NOT_YET
        self._queues.reset(fresh)
        # Classes without samples do not count: where no class runs over, `_look_at` has less to do.
        runs_over = self._queues.all_loaded()
        self._runs_over_array[:] = runs_over
        self._running_over = int(np.count_nonzero(runs_over))
        next_lap: Flags | None = None
        if self._running_over:
            next_lap = ~fresh & runs_over[self._class_array]
            if self._part_array is not None:
                next_lap &= self._part_array == self._parts.following[self._class_array]
        self._chunks.reset(fresh, next_lap)

    def _begin_lap(self, cls: int) -> None:
        """Begin a class's next lap.

        Raises:
            ValueError: no lap has a sample of the class.
        """
        if not self._parts.has_any(cls):
            raise ValueError(f"no lap has a sample of class {cls}")
        self._queues.begin_lap(cls, self._part_array, self._parts.following[cls])
        self._runs_over[cls] = 0
        self._running_over -= 1
        fresh = self._queues.fresh(cls)
        if len(fresh):
            chunks = self._chunk_array[fresh]
            add(self._chunks.this_lap_array, chunks, 1)
            add(self._chunks.next_lap_array, chunks, -1)
            self._chunks.file_all(chunks)
        lap = self._parts.lap_after(cls, int(self._lap[cls]))
        self._lap[cls] = lap
        self._parts.enter(cls, lap)
        if not len(fresh):
            self._run_over(cls)

    def _run_over(self, cls: int) -> None:
        """A class has no fresh samples left: samples of the next lap that are not in memory may be loaded for it."""
        if self._runs_over[cls]:
            return
        self._runs_over[cls] = 1
        self._running_over += 1
        samples = self._queues.passed(cls)
        if self._part_array is not None:
            samples = samples[self._part_array[samples] == self._parts.following[cls]]
        chunks = self._chunk_array[samples]
        add(self._chunks.next_lap_array, chunks, 1)
        for sample in self._reserved.get(cls, ()):
            if self._parts.is_of_next_lap(cls, sample):
                self._next_lap[self._chunk_of[sample]] -= 1
        self._chunks.file_all(chunks)

    def _had_a_turn(self, cls: int, sample: int) -> None:
        """Count the turn. Keep the sample for the next lap, or allow it to be loaded for that."""
        if self._keeps:
            self._queues.keep(cls, sample)
            self._free_bytes -= self._bytes[sample]
        elif self._runs_over[cls]:
            self._open_to_next_lap(cls, sample)
        if self._progress is not None:
            self._progress.note(cls, self._lap_of_class[cls])

    def _open_to_next_lap(self, cls: int, sample: int) -> None:
        """A sample of a class that runs over had its turn: it may be loaded for the next lap."""
        if not self._parts.is_of_next_lap(cls, sample):
            return
        chunk = self._chunk_of[sample]
        self._next_lap[chunk] += 1
        if self._next_lap[chunk] == 1:
            self._chunks.file(chunk)

    # Loads

    def _load_ahead(self) -> tuple[Load, ...]:
        """Load the best of a few chunks while whole chunks fit: half a chunk now would be another load later.

        Small chunks are loaded several at a time, once there is room for them, so that a look costs no more per sample.

        A chunk without samples for this lap is for the next. It waits until all of it can be loaded. Otherwise its
        samples that still wait for their turn would cost it a second load.
        """
        loads: list[Load] = []
        while len(loads) < self._loads_per_request and self._room_for_next_bytes <= self._free_bytes:
            drawn = self._chunks.draw(self._random, self._chunks_drawn)
            if not len(drawn):
                break
            rows, wanted, need = self._look_at(drawn)
            looked_at = set()
            for best in need.argsort()[: -1 - self._chunks_at_a_time : -1].tolist():
                chunk = int(drawn[best])
                if chunk in looked_at:
                    continue
                looked_at.add(chunk)
                if need[best] <= 0:
                    self._room_for_next_bytes = min(self._free_bytes + self._retry_bytes, self._capacity_bytes)
                    return tuple(loads)
                samples = rows[best][wanted[best]].tolist()
                size_bytes = self._size_bytes(samples)
                self._room_for_next_bytes = min(self._chunks_at_a_time * size_bytes, self._capacity_bytes)
                if size_bytes > self._free_bytes:
                    return tuple(loads)
                loads.append(Load(chunk, tuple(samples)))
                self._load(chunk, samples)
                self._note_scheduled(loads[-1])
        return tuple(loads)

    def _look_at(self, chunks: Int32) -> tuple[Int32, Flags, Floats]:
        """Samples int32[n, K] of ``chunks``, which of them to load, and float32[n]: how much each chunk is needed.

        The need is the sum over the samples of (pace of the class / (1 + its residents))², the pace being how often the
        class is asked. The square keeps the poorest classes better stocked than the plain inverse (0.37 instead of 0.45
        % of opens wait at 1 % of memory); the cube does no better. A chunk that waits for its last samples has no need.
        Where all samples of all chunks are fresh, as is usual, their places are not looked up.
        """
        rows = self._cells[chunks]
        classes = self._class_array.take(rows)
        exists: Flags = rows >= 0
        wanted, waits = exists, np.zeros(len(rows), np.bool_)
        if np.count_nonzero(exists) != self._chunks.this_lap_array.take(chunks).sum():
            queues = self._queues
            places = queues.at_array.take(rows)
            wanted = exists & (places >= queues.loaded_array.take(classes))
            if self._running_over:
                this_lap: Flags = np.any(wanted, axis=1)
                next_lap = self._runs_over_array.take(classes) & (places < queues.served_array.take(classes)) & exists
                if self._reserved:
                    next_lap &= queues.had_array.take(rows) != RESERVED
                if self._part_array is not None:
                    next_lap &= self._part_array.take(rows) == self._parts.following.take(classes)
                for_next = places < queues.next_array.take(classes)
                wanted |= next_lap & ~for_next
                waits = ~this_lap & ~np.all(wanted | for_next | ~exists, axis=1)
        stock = self._queues.stock_array.take(classes)
        wanted = wanted & (stock <= self._pace.ample.take(classes))
        need = self._pace.of_class.take(classes) / (stock + np.float32(1))
        need *= need
        need *= wanted
        of_chunk: Floats = need.sum(axis=1)
        of_chunk[waits] = 0
        return rows, wanted, of_chunk

    def _choose_for(self, cls: int) -> int:
        """The fresh sample of a class whose chunk is best loaded now, preferring chunks that fit whole.

        Where next to nothing fits, as when classes are asked one after the other, any of them will do.
        """
        fresh = self._queues.fresh(cls)
        first = 0
        if len(fresh) > self._chunks_drawn:
            first = self._draw(len(fresh) - self._chunks_drawn + 1)
        if self._free_bytes < self._little_bytes:
            return int(fresh[first])
        asked = fresh[first : first + self._chunks_drawn]
        rows, wanted, need = self._look_at(self._chunk_array[asked])
        size_bytes = (self._bytes_array.take(rows) * wanted).sum(axis=1) - self._bytes_array[asked]
        fits = size_bytes <= self._free_bytes
        return int(asked[np.where(fits, need, need - need.max() - 1).argmax()])

    def _load_on_demand(self, answer: int) -> Load:
        """Read ``answer``, which leaves at once, and those of its chunk's other samples that are wanted and fit."""
        chunk = self._chunk_of[answer]
        rows, wanted, _ = self._look_at(np.array([chunk], np.int32))
        others = rows[wanted].tolist()
        if self._size_bytes(others) > self._free_bytes:
            others = self._scarcest(others)
        self._load(chunk, others)
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

    def _load(self, chunk: int, samples: list[int]) -> None:
        """Make samples of a chunk residents: of this lap if they are fresh, else of the next."""
        this_lap, all_loaded = self._queues.load(samples)
        self._free_bytes -= self._size_bytes(samples)
        self._this_lap[chunk] -= this_lap
        self._next_lap[chunk] -= len(samples) - this_lap
        self._chunks.file(chunk)
        for cls in all_loaded:
            self._run_over(cls)

    def _note_scheduled(self, load: Load) -> None:
        """Estimate when a load will have arrived: after those before it, at the assumed rate."""
        self._last_arrival = max(self._last_arrival, self._now) + len(load.samples)
        self._arrival[load.chunk] = self._last_arrival

    def _size_bytes(self, samples: list[int]) -> int:
        return sum([self._bytes[sample] for sample in samples])

    def _draw(self, count: int) -> int:
        """A number from 0 to ``count`` - 1."""
        for draw in self._draws:
            return int(draw * count)
        self._draws = iter(self._random.random(DRAWS).tolist())
        return int(next(self._draws) * count)


def _chunk_of(cells: Int32, samples: int) -> Int32:
    """int32[S]: the chunk of each sample."""
    flat = np.flatnonzero(cells >= 0)
    held = cells.ravel()[flat]
    chunk_of = np.full(samples, -1, np.int32)
    if held.size == samples and held.max(initial=-1) < samples:
        chunk_of[held] = flat // cells.shape[1]
    if (chunk_of < 0).any():
        raise ValueError("every sample must lie in exactly one cell")
    return chunk_of
