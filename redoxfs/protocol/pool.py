"""The pool policy: one virtual chunk with a slot per class, slots that are queues, and loads ahead of demand.

Theory of operation. All memory is one pool of so many bytes. A request for sample A is answered with any resident of
A's class. Chunks are read before anybody waits for them: whenever a request leaves room for one, the best of a few
chunks drawn at random is loaded. Each sample that is loaded stays until it is served, so nothing is read twice in a
lap. Only where a class has nothing in memory is a chunk loaded on demand.

Laps belong to classes: a class's lap ends when each of its samples has had its turn. Loading is ahead of serving, so
it comes to the end of the class's samples first, and then *runs over*: samples of the next lap may be loaded, and are
kept apart until that begins. A class never waits for another, however unevenly they are asked.

Where memory has room for all samples, a sample that has its turn is *kept*: loaded for the next lap without being read.
So all of them are read once, and drawn at random in each lap. With less memory it would be the samples of the end of a
lap that are kept, and they would come first in the next.

Where nodes share a dataset, each lap of a class is of one *part* of its samples alone: the part that is this node's in
that lap (`parts_by_lap`). Otherwise all samples are one part, and every lap is of it.

The samples of each class are one stretch of `_queue`, cut in five by `_begun`, `_next` to `_loaded` and the next
class's begin; `_at` says where each sample is:

    begun      next        served      arrived    loaded      the next class's
      | for the  | had its   | resident, | resident, | fresh: not |
      | next lap | turn, or  | arrived   | younger   | loaded     |
                 | has none

Every step of a sample is one swap across one border, so all is O(1) and the youngest stay in order of age:
fresh → younger (loaded), younger → arrived (enough requests went by), arrived → had its turn (served), had its turn, or
has none in this lap → for the next lap (loaded, or kept). When the three sections on the right are empty the lap is
over: what was loaded for the next lap becomes its younger section, the next part's other samples its fresh one. Where
there is one part nothing has to be moved for that; otherwise the stretch is sorted anew, once a lap. A lap whose part
has no sample of the class is passed over, though it counts.

Rules for whoever edits this file:

1. A sample is in exactly one section. One reserved by a stat lies in "had its turn" and is in `_reserved`; it cannot
   be loaded, and holds its class's lap open. A request that finds nothing else takes it: fairness outranks a
   reservation.
2. The sum of the bytes of all residents never exceeds the capacity. An asked sample goes right out, and one reserved
   leaves the pool: both are in somebody else's budget.
3. A resident leaves by being served or reserved. Nothing is evicted: memory that is full of classes that nobody asks
   for any more serves the others by loads on demand, a sample at a time where not even one more fits.
4. `_this_lap[chunk]` counts the chunk's fresh samples, `_next_lap[chunk]` those that may be loaded for the next lap:
   of a class that runs over, in "had its turn, or has none", of the next lap's part, and not reserved. `_chunks` has
   the chunks with samples for this lap first, then those with samples for the next lap alone, then the others.
5. `_had` says which samples of the lap's part are no longer resident or fresh in it, left of `_served`: those that had
   their turn, and those that are RESERVED. It is kept beside `_at` because `turns` is asked for every second, and would
   otherwise look at every sample for it; and because a look at chunks must tell the two apart at once.

Which resident goes out is drawn at random among those that have arrived: in order of age, samples that are neighbours
on storage would come out together, fifty pairs in a batch where a permutation has two. What has arrived is guessed from
counts, since a decision that depends on what has really arrived could not be repeated. Where all are younger, the
oldest goes out: it is the first to arrive.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt

from redoxfs.protocol.events import ChooseVictim, Load, Served, oldest
from redoxfs.protocol.turns import Turns

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Int8 = npt.NDArray[np.int8]
Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
Ints: TypeAlias = "memoryview[int]"

CHUNKS_DRAWN = 32
"""Chunks among which the next is chosen. One at random loads 1.27 times as much at 2 % of memory; 128 are no better
than 32, and cost four times as much."""

LOADS_PER_REQUEST = 4
"""Chunks handed out ahead at once. The pool fills over the first requests rather than in the very first, which at 13 M
samples would think for seconds. With K = 64 that still asks storage for 256 samples for each one that is served."""

DELIVERED_PER_REQUEST = 2
"""Samples that storage is taken to deliver between two requests. Slower storage than one holds its readers up, and so
slows requests down; a higher figure would count bytes as arrived that are queued behind the first fill of the pool."""

IN_FLIGHT_SAMPLES = 2_048
"""What is taken to be under way when a load is scheduled: 32 reads of 64 samples each."""

IN_FLIGHT_SHARE = 1 / 8
"""At most so much of the pool is taken to be under way: the draw is to have the rest to choose from."""

SCARCE_SHARE = 1 / 2
"""A load on demand that does not fit keeps those whose class has less than this share of the mean. The rest stays
together for one load later: fewer loads and a quarter fewer waits with 21,000 classes of 61 at 10 % of memory."""

AMPLE_TIMES = 3
AMPLE_SAMPLES = 16
"""A class with more residents than its part of memory, by how often it is asked, so many times over and so many more,
gets no others. Otherwise classes that are hardly ever asked fill memory, which nothing is evicted from: with a sampler
whose weights are exponentially distributed 16 % of opens would wait, where 2 % do once the pace is known. Less would
bind where all are asked alike, at the end of an epoch: with twice, or with only 4 more where classes are as unequal as
Zipf's, each chunk costs a tenth of a load more."""

PACE_NOTES = 16
"""How often, in as many requests as a lap has samples, it is looked at how often each class is asked."""

RETRY_SHARE = 1 / 4
"""Of as many chunks as are chosen at a time: the room that has to come free before chunks that were not worth loading
are looked at again. With memory for all samples nothing is worth loading for most of a lap: a quarter of one chunk of 8
would then mean a look every other request, which makes decisions three times as dear and loads no more."""

SAMPLES_AT_A_TIME = 64
"""Chunks of fewer samples are chosen several at a time: one by one, chunks of 8 cost twice as much for each request."""

LITTLE_SAMPLES = 2
"""With less room than this it is not worth looking for a chunk: halves what a decision costs where classes are asked
one after the other in chunks of 8, and changes nothing where they are asked at random."""

SORTED_FOR_ONE = 64
"""Chunks that can be sorted anew in the time that it takes to put one where it belongs."""

COUNTED_FOR_ONE = 64
"""Chunks whose counts can be changed as one in the time that one alone takes."""

DRAWS = 4_096
"""Random numbers made at a time: one by one each costs a microsecond."""

NOT_YET, HAD_TURN, RESERVED = 0, 1, 2
"""The values of `_had`."""


class PoolPolicy:
    """Which sample answers a request, and which chunks are read ahead of those to come.

    The arrays are shared, not copied, and must not change.

    Args:
        cells: int32[chunks, K], the samples of each physical chunk, -1 for a hole.
        class_of: int32[S], the class of each sample, 0 and up: samples of one class may stand in for each other.
        sample_bytes: int64[S], what each sample takes in memory.
        capacity_bytes: what all residents may take together. Less than a chunk means loads on demand alone.
        seed: of the generator that chooses.
        part_of: int8[S], the part of each sample; None where all are of part 0. A chunk's samples are best of one part:
            what is of another costs the chunk another load.
        parts_by_lap: lap L, from 1, of every class is of its samples of part parts_by_lap[(L - 1) % their number].
        chunks_drawn, loads_per_request, ample_samples: see the constants.

    Raises:
        ValueError: a sample is not in exactly one cell, a chunk is too large, or there is no part.
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
        if not parts_by_lap:
            raise ValueError("there is no part")
        # Plain arrays also of memory-mapped ones, each of whose operations costs more.
        self._cells = np.asarray(cells)
        self._class_array = np.asarray(class_of)
        self._bytes_array = np.asarray(sample_bytes)
        # Views of the buffers give plain ints at a third of numpy's price.
        self._class_of: Ints = class_of.data
        self._bytes: Ints = sample_bytes.data
        self._chunk_array = _chunk_of(cells, samples)
        self._chunk_of: Ints = self._chunk_array.data

        of_class = np.bincount(class_of, minlength=1)
        self._parts_by_lap = tuple(parts_by_lap)
        self._part_array = None if part_of is None else np.asarray(part_of)
        self._part_of: Ints | None = None if part_of is None else part_of.data
        # Per place in `parts_by_lap`, and class: how many samples that lap has.
        self._of_lap = np.array([of_class]) if part_of is None else _of_laps(class_of, part_of, parts_by_lap)
        begun = np.concatenate([[0], np.cumsum(of_class)]).astype(np.int32)
        self._begun: Ints = begun.data
        self._next_array, self._served_array, self._loaded_array = (begun[:-1].copy() for _ in range(3))
        self._next: Ints = self._next_array.data
        self._served: Ints = self._served_array.data
        self._arrived_array = begun[:-1].copy()
        self._arrived: Ints = self._arrived_array.data
        self._loaded: Ints = self._loaded_array.data
        self._queue_array = np.argsort(class_of, kind="stable").astype(np.int32)
        self._queue: Ints = self._queue_array.data
        self._at_array = np.empty(samples, np.int32)
        self._at_array[self._queue_array] = np.arange(samples, dtype=np.int32)
        self._at: Ints = self._at_array.data
        self._stock_array = np.zeros(len(of_class), np.int32)
        self._stock: Ints = self._stock_array.data
        runs_over = np.zeros(len(of_class), np.uint8)
        self._runs_over_array = runs_over.view(np.bool_)
        self._runs_over: Ints = runs_over.data
        self._running_over = 0
        self._had = np.zeros(samples, np.uint8)
        self._had_turn: Ints = self._had.data
        self._given_before = 0
        self._lap = np.ones(len(of_class), np.int32)
        # The part that a class's next lap is of; -1 where the class has no sample in any lap.
        self._next_part_array = np.zeros(len(of_class), np.int8)
        self._next_part: Ints = self._next_part_array.data
        # How often each class was asked lately, in a window of a lap's samples: at first what a lap would bring.
        self._asked_array = self._of_lap.mean(axis=0).astype(np.float32)
        self._window = round(float(self._of_lap.sum()) / len(self._of_lap))
        self._asked = cast("memoryview[float]", self._asked_array.data)
        self._pace_array = np.empty(len(of_class), np.float32)
        self._ample_array = np.empty(len(of_class), np.int32)
        self._requests_to_note = 0
        # Per class that has any, oldest first: the reserved sample, and whether it was in memory already.
        self._reserved: dict[int, dict[int, bool]] = {}

        self.choose_victim: ChooseVictim = oldest

        self._random = np.random.default_rng(seed)
        self._draws = iter(self._random.random(DRAWS).tolist())
        self._this_lap_array, self._next_lap_array = np.zeros((2, chunks), np.uint16)
        self._this_lap: Ints = self._this_lap_array.data
        self._next_lap: Ints = self._next_lap_array.data
        self._chunks_array, self._chunk_at_array = np.zeros((2, chunks), np.int32)
        self._chunks: Ints = self._chunks_array.data
        self._chunk_at: Ints = self._chunk_at_array.data
        self._begin_first_laps()
        self._chunks_drawn = chunks_drawn
        self._loads_per_request = loads_per_request
        self._ample_samples = ample_samples

        self._capacity_bytes = capacity_bytes
        self._free_bytes = capacity_bytes
        self._keeps = part_of is None and capacity_bytes >= int(sample_bytes.sum())
        self._room_for_next_bytes = 0
        mean_bytes = max(1.0, float(sample_bytes.mean())) if samples else 1.0
        in_capacity = capacity_bytes / (width * mean_bytes)
        self._chunks_at_a_time = int(max(1, min(SAMPLES_AT_A_TIME // width, in_capacity * IN_FLIGHT_SHARE)))
        self._retry_bytes = int(self._chunks_at_a_time * width * mean_bytes * RETRY_SHARE)
        self._little_bytes = int(LITTLE_SAMPLES * mean_bytes)
        self._capacity_samples = capacity_bytes / mean_bytes
        # Time is counted in samples that storage may have delivered.
        self._now = 0
        self._last_arrival = 0
        self._in_flight = int(min(IN_FLIGHT_SAMPLES, self._capacity_samples * IN_FLIGHT_SHARE))
        self._arrival: Ints = np.zeros(chunks, np.int64).data
        self._note_pace()

    def request(self, sample: int) -> Served:
        """A turn for a sample of ``sample``'s class."""
        cls = self._class_of[sample]
        self._now += DELIVERED_PER_REQUEST
        self._asked[cls] += 1
        self._requests_to_note -= 1
        if self._requests_to_note < 0:
            self._note_pace()
        place = self._resident_place(cls)
        if place < 0 and self._is_all_loaded(cls):
            reserved = self._reserved.get(cls)
            if reserved:
                return self._turn_of_reserved(self.choose_victim(reserved), preempted=True)
            self._begin_lap(cls)
            place = self._resident_place(cls)
        if place < 0:
            return self._turn_of_reserved(self._reserve_fresh(cls), preempted=False)
        # Before the answer has had its turn: what may be loaded for the next lap must not be the answer itself.
        loads = self._load_ahead() if self._free_bytes >= self._room_for_next_bytes else ()
        answer = self._take_out(cls, place)
        self._had_a_turn(cls, answer)
        return Served(answer, loads, False, False, self._keeps)

    def reserve(self, sample: int) -> int | None:
        """Reserve a sample of ``sample``'s class: a resident, else one that a load on demand would read."""
        cls = self._class_of[sample]
        place = self._resident_place(cls)
        if place < 0 and self._is_all_loaded(cls):
            if self._reserved.get(cls):
                return None
            self._begin_lap(cls)
            place = self._resident_place(cls)
        if place < 0:
            return self._reserve_fresh(cls)
        chosen = self._take_out(cls, place)
        self._had_turn[chosen] = RESERVED
        self._reserved.setdefault(cls, {})[chosen] = True
        return chosen

    def take(self, reserved: int) -> Served:
        """The turn of a sample that `reserve` reserved."""
        self._now += DELIVERED_PER_REQUEST
        return self._turn_of_reserved(reserved, preempted=False)

    def put_back(self, reserved: int) -> bool:
        """Undo a reservation: resident again if it was loaded and there still is room, else fresh again."""
        cls = self._class_of[reserved]
        place = self._served[cls] - 1
        self._swap(self._at[reserved], place)
        self._had_turn[reserved] = NOT_YET
        if self._forget_reservation(reserved) and self._bytes[reserved] <= self._free_bytes:
            self._served[cls] = place
            self._stock[cls] += 1
            self._free_bytes -= self._bytes[reserved]
            return True
        self._make_fresh_again(cls, reserved, place)
        return False

    def reserved(self, sample: int) -> Iterable[int]:
        """What is reserved of ``sample``'s class, oldest first."""
        return self._reserved.get(self._class_of[sample], ())

    @property
    def given(self) -> int:
        """How many turns were given since the first lap began, those before a `restore` included."""
        return self._given_before + self._now // DELIVERED_PER_REQUEST

    def turns(self) -> Turns:
        """How far the laps are. A copy."""
        return Turns(self._lap.copy(), np.packbits(self._had == HAD_TURN), self.given)

    def restore(self, turns: Turns) -> None:
        """Go on where another policy of the same samples was; what is in memory or reserved is so no more.

        Raises:
            ValueError: the turns are of other samples or parts; nothing was changed.
        """
        had = turns.flags(len(self._lap), len(self._had))
        self._parts_in(turns.laps)
        self._had[:] = had
        self._lap[:] = turns.laps
        self._given_before = turns.given
        self._reserved.clear()
        self._free_bytes = self._capacity_bytes
        self._room_for_next_bytes = 0
        self._now = self._last_arrival = 0
        np.asarray(self._arrival)[:] = 0
        self._stock_array[:] = 0
        self._begin_laps()
        self._note_pace()

    def skip(self, cls: int, lap: int) -> list[int]:
        """End a class's laps before ``lap`` as if all their samples had had their turn, those reserved among them.

        It is then in ``lap``, or in the first after it that has any of its samples. Nothing happens where it is there
        already, or where none has any.

        Returns:
            What was in memory for the laps that are over: residents no more.
        """
        if self._lap[cls] >= lap or self._next_part[cls] < 0:
            return []
        queue, begun, end = self._queue_array, self._begun[cls], self._begun[cls + 1]
        following, served, loaded = self._next[cls], self._served[cls], self._loaded[cls]
        let_go: list[int] = queue[served:loaded].tolist()
        touched = self._chunk_array[queue[loaded:end]]
        _add(self._this_lap_array, touched, -1)
        reserved = self._reserved.pop(cls, {})
        if self._runs_over[cls]:
            next_lap = [
                s for s in queue[following:served].tolist() if s not in reserved and self._is_of_next_lap(cls, s)
            ]
            chunks = self._chunk_array[np.array(next_lap, np.int32)]
            _add(self._next_lap_array, chunks, -1)
            touched = np.concatenate([touched, chunks])
            self._runs_over[cls] = 0
            self._running_over -= 1
        if self._lap_after(cls) < lap:
            let_go += queue[begun:following].tolist()
            self._next[cls] = begun
            self._lap[cls] = lap - 1
            if self._part_array is not None:
                self._next_part[cls] = self._parts_by_lap[(self._lap_after(cls) - 1) % len(self._parts_by_lap)]
        self._stock[cls] -= len(let_go)
        self._free_bytes += self._size_bytes(let_go)
        self._served[cls] = self._arrived[cls] = self._loaded[cls] = end
        self._file_all(touched)
        self._run_over(cls)
        self._begin_lap(cls)
        return let_go

    def members(self, cls: int) -> Int32:
        """The samples of a class, in some order; a view, good until the next request."""
        return self._queue_array[self._begun[cls] : self._begun[cls + 1]]

    def laps(self, samples: npt.NDArray[np.integer]) -> Int32:
        """The lap, counted from 1, that the class of each of ``samples`` is in."""
        laps: Int32 = self._lap[self._class_array[samples]]
        return laps

    def chunk_of(self, sample: int) -> int:
        """The physical chunk that ``sample`` lies in."""
        return self._chunk_of[sample]

    def is_resident(self, sample: int) -> bool:
        """Whether ``sample`` is in the pool, for this lap or the next: loaded, and neither served nor reserved."""
        cls, place = self._class_of[sample], self._at[sample]
        return place < self._next[cls] or self._served[cls] <= place < self._loaded[cls]

    def residents(self) -> int:
        """How many samples are in the pool."""
        return int(self._stock_array.sum())

    @property
    def resident_bytes(self) -> int:
        """What they take."""
        return self._capacity_bytes - self._free_bytes

    # Turns

    def _turn_of_reserved(self, sample: int, *, preempted: bool) -> Served:
        """A sample is kept out of all loads while it is in `_reserved`, so until those of its turn are decided."""
        cls = self._class_of[sample]
        loads: tuple[Load, ...] = () if self._reserved[cls][sample] else (self._load_on_demand(sample),)
        if self._free_bytes >= self._room_for_next_bytes:
            loads += self._load_ahead()
        self._forget_reservation(sample)
        self._had_turn[sample] = HAD_TURN
        self._had_a_turn(cls, sample)
        return Served(sample, loads, preempted, kept=self._keeps)

    def _reserve_fresh(self, cls: int) -> int:
        """The sample that is best read now of a class that has no residents."""
        chosen = self._choose_for(cls)
        self._reserved.setdefault(cls, {})[chosen] = False
        place = self._loaded[cls]
        self._swap(self._at[chosen], place)
        self._had_turn[chosen] = RESERVED
        self._served[cls] = self._arrived[cls] = self._loaded[cls] = place + 1
        chunk = self._chunk_of[chosen]
        self._this_lap[chunk] -= 1
        if not self._this_lap[chunk]:
            self._file(chunk)
        if self._is_all_loaded(cls):
            self._run_over(cls)
        return chosen

    def _is_all_loaded(self, cls: int) -> bool:
        """Whether a class has no fresh samples left."""
        return self._loaded[cls] == self._begun[cls + 1]

    def _resident_place(self, cls: int) -> int:
        """Where in the queue the next answer of a class stands; -1 where nothing is resident for this lap."""
        served, arrived, loaded = self._served[cls], self._arrived[cls], self._loaded[cls]
        if arrived < loaded:
            before = arrived
            arrived_by = self._now - self._in_flight
            while arrived < loaded and self._arrival[self._chunk_of[self._queue[arrived]]] <= arrived_by:
                arrived += 1
            if arrived != before:
                self._arrived[cls] = arrived
        if served < arrived:
            return served + self._draw(arrived - served)
        return served if served < loaded else -1

    def _take_out(self, cls: int, place: int) -> int:
        """Move the resident at ``place`` over to those that had their turn."""
        served = self._served[cls]
        sample = self._queue[place]
        self._swap(place, served)
        self._had_turn[sample] = HAD_TURN
        self._served[cls] = served + 1
        if self._arrived[cls] == served:
            self._arrived[cls] = served + 1
        self._stock[cls] -= 1
        self._free_bytes += self._bytes[sample]
        return sample

    def _make_fresh_again(self, cls: int, sample: int, place: int) -> None:
        """Move a sample, at ``place``, the last of those that had their turn, over all residents."""
        arrived, last = self._arrived[cls] - 1, self._loaded[cls] - 1
        if arrived > place:
            self._swap(place, arrived)
        if last > arrived:
            between = slice(arrived, last)
            self._queue_array[between] = self._queue_array[arrived + 1 : last + 1].copy()
            self._at_array[self._queue_array[between]] = np.arange(arrived, last, dtype=np.int32)
            self._queue[last] = sample
            self._at[sample] = last
        self._served[cls], self._arrived[cls], self._loaded[cls] = place, arrived, last
        chunk = self._chunk_of[sample]
        self._this_lap[chunk] += 1
        self._file(chunk)

    def _forget_reservation(self, sample: int) -> bool:
        """True where the sample was in memory when it was reserved."""
        cls = self._class_of[sample]
        of_class = self._reserved[cls]
        was_loaded = of_class.pop(sample)
        if not of_class:
            del self._reserved[cls]
        return was_loaded

    # Laps

    def _begin_first_laps(self) -> None:
        """Begin each class's first lap that has any of its samples."""
        self._lap += (self._of_lap > 0).argmax(axis=0).astype(np.int32)
        self._begin_laps()

    def _begin_laps(self) -> None:
        """Be in the laps that `_lap` says, those in `_had` being through with theirs, and nothing in memory."""
        begun = np.asarray(self._begun)
        fresh: Flags = self._had == NOT_YET
        parts = self._parts_in(self._lap)
        if self._part_array is not None:
            fresh &= self._part_array == parts[self._class_array]
            # Of a lap's part alone: what a lap leaves out had no turn in it.
            self._had[self._part_array != parts[self._class_array]] = NOT_YET
        self._next_array[:] = begun[:-1]
        self._served_array[:] = begun[:-1]
        if not fresh.all():
            self._served_array += np.bincount(self._class_array[~fresh], minlength=len(parts)).astype(np.int32)
            self._put_last(fresh)
        self._arrived_array[:] = self._loaded_array[:] = self._served_array
        if self._part_array is not None:
            for cls in np.flatnonzero(parts >= 0).tolist():
                self._next_part[cls] = self._parts_by_lap[(self._lap_after(cls) - 1) % len(self._parts_by_lap)]
            self._next_part_array[parts < 0] = -1
        # Not a number that no sample has: where no class runs over `_look_at` has less to do.
        runs_over = (self._loaded_array == begun[1:]) & (begun[:-1] < begun[1:])
        self._runs_over_array[:] = runs_over
        self._running_over = int(np.count_nonzero(runs_over))
        self._this_lap_array[:] = self._in_chunks(fresh)
        self._next_lap_array[:] = 0
        if self._running_over:
            next_lap: Flags = ~fresh & runs_over[self._class_array]
            if self._part_array is not None:
                next_lap &= self._part_array == self._next_part_array[self._class_array]
            self._next_lap_array[:] = self._in_chunks(next_lap)
        self._sort_chunks()

    def _parts_in(self, laps: Int32) -> Int8:
        """int8[C]: the part that each class's lap is of; -1 for one that has no samples in any.

        Raises:
            ValueError: a class has samples, but not in the lap that it is said to be in.
        """
        place = (laps - 1) % len(self._parts_by_lap)
        parts = np.array(self._parts_by_lap, np.int8)[place]
        has_any = self._of_lap.any(axis=0)
        if not self._of_lap[place, np.arange(len(laps))][has_any].all():
            raise ValueError("a class is in a lap that has none of its samples")
        parts[~has_any] = -1
        return parts

    def _put_last(self, fresh: Flags) -> None:
        """Sort each class's stretch: the others, then the ``fresh``, each in the order in which they are."""
        is_fresh = fresh[self._queue_array]
        of_queue = self._class_array[self._queue_array]
        fresh_before: Int64 = np.cumsum(is_fresh) - is_fresh
        others_before = np.arange(len(is_fresh)) - fresh_before
        first = np.asarray(self._begun)[of_queue]
        # How many of both kinds there are before the class's own stretch is what there are before its first place.
        place = np.where(
            is_fresh,
            self._served_array[of_queue] + fresh_before - fresh_before[first],
            first + others_before - others_before[first],
        )
        self._at_array[self._queue_array] = place
        self._queue_array[self._at_array] = np.arange(len(place), dtype=np.int32)

    def _in_chunks(self, samples: Flags) -> Int64:
        """int64[chunks]: how many of ``samples`` each chunk has."""
        return np.bincount(
            self._chunk_array if samples.all() else self._chunk_array[samples], minlength=len(self._this_lap)
        )

    def _sort_chunks(self) -> None:
        rank = _rank(self._this_lap_array, self._next_lap_array)
        self._chunks_array[:] = np.argsort(rank, kind="stable")
        self._chunk_at_array[self._chunks_array] = np.arange(len(rank), dtype=np.int32)
        self._this_lap_end = int(np.count_nonzero(rank == 0))
        self._next_lap_end = int(np.count_nonzero(rank <= 1))

    def _lap_after(self, cls: int) -> int:
        """The lap that comes after a class's: the first that has any of its samples."""
        lap = int(self._lap[cls]) + 1
        if self._part_of is not None:
            count = len(self._parts_by_lap)
            while not self._of_lap[(lap - 1) % count, cls] and lap <= self._lap[cls] + count:
                lap += 1
        return lap

    def _begin_lap(self, cls: int) -> None:
        """All of a class had their turn: those loaded for the next lap may be served, the part's others are fresh."""
        begun, loaded, end = self._begun[cls], self._next[cls], self._begun[cls + 1]
        served = begun
        if self._part_array is not None:
            served, loaded = self._sort_for_next_lap(cls)
        self._had[self._queue_array[begun:end]] = NOT_YET
        self._next[cls] = begun
        self._served[cls] = self._arrived[cls] = served
        self._loaded[cls] = loaded
        self._runs_over[cls] = 0
        self._running_over -= 1
        if loaded < end:
            chunks = self._chunk_array[self._queue_array[loaded:end]]
            _add(self._this_lap_array, chunks, 1)
            _add(self._next_lap_array, chunks, -1)
            self._file_all(chunks)
        self._lap[cls] = self._lap_after(cls)
        if self._part_array is not None:
            self._next_part[cls] = self._parts_by_lap[(self._lap_after(cls) - 1) % len(self._parts_by_lap)]
        if loaded == end:
            self._run_over(cls)

    def _sort_for_next_lap(self, cls: int) -> tuple[int, int]:
        """Put a class's stretch in order: of another part, loaded, fresh. Where the second and the third begin.

        Raises:
            ValueError: no lap has a sample of the class.
        """
        assert self._part_array is not None
        if self._next_part[cls] < 0:
            raise ValueError(f"no lap has a sample of class {cls}")
        begun, end, count = self._begun[cls], self._begun[cls + 1], self._next[cls] - self._begun[cls]
        stretch = self._queue_array[begun:end]
        loaded, others = stretch[:count], stretch[count:]
        fresh = self._part_array[others] == self._next_part[cls]
        stretch[:] = np.concatenate([others[~fresh], loaded, others[fresh]])
        self._at_array[stretch] = np.arange(begun, end, dtype=np.int32)
        first_fresh = end - int(np.count_nonzero(fresh))
        return first_fresh - count, first_fresh

    def _run_over(self, cls: int) -> None:
        """All of a class are loaded: those of the next lap that are in memory for no turn may be loaded for it."""
        if self._runs_over[cls]:
            return
        self._runs_over[cls] = 1
        self._running_over += 1
        samples = self._queue_array[self._next[cls] : self._served[cls]]
        if self._part_array is not None:
            samples = samples[self._part_array[samples] == self._next_part[cls]]
        chunks = self._chunk_array[samples]
        _add(self._next_lap_array, chunks, 1)
        for sample in self._reserved.get(cls, ()):
            if self._is_of_next_lap(cls, sample):
                self._next_lap[self._chunk_of[sample]] -= 1
        self._file_all(chunks)

    def _had_a_turn(self, cls: int, sample: int) -> None:
        """It is kept for the next lap, or may be loaded for it."""
        if self._keeps:
            border = self._next[cls]
            self._swap(self._at[sample], border)
            self._next[cls] = border + 1
            self._stock[cls] += 1
            self._free_bytes -= self._bytes[sample]
        elif self._runs_over[cls]:
            self._open_to_next_lap(cls, sample)

    def _open_to_next_lap(self, cls: int, sample: int) -> None:
        """A sample of a class that runs over has had its turn."""
        if not self._is_of_next_lap(cls, sample):
            return
        chunk = self._chunk_of[sample]
        self._next_lap[chunk] += 1
        if self._next_lap[chunk] == 1:
            self._file(chunk)

    def _is_of_next_lap(self, cls: int, sample: int) -> bool:
        return self._part_of is None or self._part_of[sample] == self._next_part[cls]

    def _file(self, chunk: int) -> None:
        """Put a chunk where it belongs in `_chunks`: with those for this lap, for the next, or with nothing to load."""
        place = self._chunk_at[chunk]
        if place < self._this_lap_end:
            if self._this_lap[chunk]:
                return
            self._this_lap_end -= 1
            place = self._swap_chunks(place, self._this_lap_end)
        if place < self._next_lap_end:
            if not self._this_lap[chunk] and not self._next_lap[chunk]:
                self._next_lap_end -= 1
                self._swap_chunks(place, self._next_lap_end)
        elif self._this_lap[chunk] or self._next_lap[chunk]:
            place = self._swap_chunks(place, self._next_lap_end)
            self._next_lap_end += 1
        if self._this_lap[chunk]:
            self._swap_chunks(place, self._this_lap_end)
            self._this_lap_end += 1

    def _file_all(self, chunks: Int32) -> None:
        """`_file` each of ``chunks``, of which one may be there more than once; if they are many, by sorting all."""
        if len(chunks) > len(self._this_lap):
            self._sort_chunks()
            return
        places = self._chunk_at_array[chunks]
        is_with = (places >= self._this_lap_end).view(np.uint8) + (places >= self._next_lap_end)
        misplaced = chunks[is_with != _rank(self._this_lap_array[chunks], self._next_lap_array[chunks])]
        if len(misplaced) > len(self._this_lap) // SORTED_FOR_ONE:
            self._sort_chunks()
        else:
            for chunk in np.unique(misplaced).tolist():
                self._file(chunk)

    # Loads

    def _load_ahead(self) -> tuple[Load, ...]:
        """Load the best of a few chunks while they fit as a whole: half a chunk now is another load later.

        Of small chunks several at a time, once there is room for them, so that a look is not dearer for a sample.

        A chunk without samples for this lap is for the next. It waits until all of it can be loaded, or the samples
        that still wait for their turn would cost it a second load.
        """
        loads: list[Load] = []
        while len(loads) < self._loads_per_request and self._room_for_next_bytes <= self._free_bytes:
            drawn = self._draw_chunks()
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

    def _draw_chunks(self) -> Int32:
        """Some of the chunks for this lap; where they are few all of them, and some of those for the next."""
        count, this_lap, next_lap = self._chunks_drawn, self._this_lap_end, self._next_lap_end - self._this_lap_end
        if this_lap > count:
            return self._chunks_array[(self._random.random(count) * this_lap).astype(np.intp)]
        if not next_lap:
            return self._chunks_array[:this_lap].copy()  # loading one moves the others
        picks = this_lap + (self._random.random(count - this_lap) * next_lap).astype(np.intp)
        return np.concatenate([self._chunks_array[:this_lap], self._chunks_array[picks]])

    def _look_at(self, chunks: Int32) -> tuple[Int32, Flags, Floats]:
        """Samples int32[n, K] of ``chunks``, which of them to load, and float32[n]: how much each chunk is needed.

        That is the sum over the samples of (pace of the class / (1 + its residents))², its pace being how often it is
        asked. The square keeps the poorest classes better stocked than the plain inverse (0.37 instead of 0.45 % of
        opens wait at 1 % of memory); the cube no better. A chunk that is to wait for its last samples is not needed.
        Where all samples of all chunks are fresh, as they mostly are, it need not be looked up what each is.
        """
        rows = self._cells[chunks]
        classes = self._class_array.take(rows)
        exists: Flags = rows >= 0
        wanted, waits = exists, np.zeros(len(rows), np.bool_)
        if np.count_nonzero(exists) != self._this_lap_array.take(chunks).sum():
            places = self._at_array.take(rows)
            wanted = exists & (places >= self._loaded_array.take(classes))
            if self._running_over:
                this_lap: Flags = np.any(wanted, axis=1)
                next_lap = self._runs_over_array.take(classes) & (places < self._served_array.take(classes)) & exists
                if self._reserved:
                    next_lap &= self._had.take(rows) != RESERVED
                if self._part_array is not None:
                    next_lap &= self._part_array.take(rows) == self._next_part_array.take(classes)
                for_next = places < self._next_array.take(classes)
                wanted |= next_lap & ~for_next
                waits = ~this_lap & ~np.all(wanted | for_next | ~exists, axis=1)
        stock = self._stock_array.take(classes)
        wanted = wanted & (stock <= self._ample_array.take(classes))
        need = self._pace_array.take(classes) / (stock + np.float32(1))
        need *= need
        need *= wanted
        of_chunk: Floats = need.sum(axis=1)
        of_chunk[waits] = 0
        return rows, wanted, of_chunk

    def _note_pace(self) -> None:
        """Look at how often classes are asked; what was noted long ago counts for less and less."""
        self._requests_to_note = self._window // PACE_NOTES
        share = self._asked_array / max(1.0, float(self._asked_array.sum()))
        self._asked_array[:] = share * self._window
        self._pace_array[:] = share * len(share)
        self._ample_array[:] = AMPLE_TIMES * self._capacity_samples * share + self._ample_samples

    def _choose_for(self, cls: int) -> int:
        """The fresh sample of a class whose chunk is best loaded now: first those of which all fits.

        Where next to nothing fits, as when classes are asked one after the other, they are all alike.
        """
        first, count = self._loaded[cls], self._begun[cls + 1] - self._loaded[cls]
        if count > self._chunks_drawn:
            first += self._draw(count - self._chunks_drawn + 1)
            count = self._chunks_drawn
        if self._free_bytes < self._little_bytes:
            return self._queue[first]
        asked = self._queue_array[first : first + count]
        rows, wanted, need = self._look_at(self._chunk_array[asked])
        size_bytes = (self._bytes_array.take(rows) * wanted).sum(axis=1) - self._bytes_array[asked]
        fits = size_bytes <= self._free_bytes
        return int(asked[np.where(fits, need, need - need.max() - 1).argmax()])

    def _load_on_demand(self, answer: int) -> Load:
        """Read ``answer``, which goes right out, and with it what its chunk has for other turns, as far as it fits."""
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
        """Those that fit of the classes with the fewest residents."""
        enough = SCARCE_SHARE * float(self._stock_array.mean())
        room_bytes = self._free_bytes
        kept = []
        for stock, sample in sorted((self._stock[self._class_of[sample]], sample) for sample in samples):
            if stock > enough:
                break
            if self._bytes[sample] <= room_bytes:
                room_bytes -= self._bytes[sample]
                kept.append(sample)
        return kept

    def _load(self, chunk: int, samples: list[int]) -> None:
        """Make residents of samples of a chunk: of this lap if they are fresh, else of the next."""
        queue, at, loaded = self._queue, self._at, self._loaded
        this_lap = 0
        all_loaded = []
        for sample in samples:
            cls, place = self._class_of[sample], at[sample]
            border = loaded[cls]
            if place >= border:
                this_lap += 1
                loaded[cls] = border + 1
                if self._is_all_loaded(cls):
                    all_loaded.append(cls)
            else:
                border = self._next[cls]
                self._next[cls] = border + 1
            # `_swap`, written out: this is where a decision spends most of its time.
            other = queue[border]
            queue[border], queue[place] = sample, other
            at[sample], at[other] = border, place
            self._stock[cls] += 1
            self._free_bytes -= self._bytes[sample]
        self._this_lap[chunk] -= this_lap
        self._next_lap[chunk] -= len(samples) - this_lap
        self._file(chunk)
        for cls in all_loaded:
            self._run_over(cls)

    def _note_scheduled(self, load: Load) -> None:
        """Guess when a load will have arrived: behind those before it, at the rate that is taken for granted."""
        self._last_arrival = max(self._last_arrival, self._now) + len(load.samples)
        self._arrival[load.chunk] = self._last_arrival

    def _size_bytes(self, samples: list[int]) -> int:
        return sum([self._bytes[sample] for sample in samples])

    # Arrays

    def _swap(self, place: int, other: int) -> None:
        queue, at = self._queue, self._at
        queue[place], queue[other] = queue[other], queue[place]
        at[queue[place]] = place
        at[queue[other]] = other

    def _swap_chunks(self, place: int, other: int) -> int:
        """Swap two chunks in `_chunks`; the new place of the one at ``place``."""
        chunks = self._chunks
        chunks[place], chunks[other] = chunks[other], chunks[place]
        self._chunk_at[chunks[place]] = place
        self._chunk_at[chunks[other]] = other
        return other

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


def _rank(this_lap: npt.NDArray[np.uint16], next_lap: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint8]:
    """Chunks' order in `_chunks`: 0 with samples for this lap, 1 for the next alone, 2 with neither."""
    return np.where(this_lap > 0, 0, np.where(next_lap > 0, 1, 2)).astype(np.uint8)


def _add(counts: npt.NDArray[np.uint16], chunks: Int32, change: int) -> None:
    """Change the counts of ``chunks`` by 1 or -1, as often as each is in it."""
    do = np.add if change > 0 else np.subtract
    if len(chunks) > len(counts) // COUNTED_FOR_ONE:
        do(counts, np.bincount(chunks, minlength=len(counts)).astype(counts.dtype), out=counts)
    else:
        do.at(counts, chunks, counts.dtype.type(1))


def _of_laps(class_of: Int32, part_of: Int8, parts_by_lap: Sequence[int]) -> Int32:
    """int32[laps, classes]: how many samples of each class have the part of each of ``parts_by_lap``."""
    classes = int(class_of.max(initial=0)) + 1
    of_part = {part: np.bincount(class_of[part_of == part], minlength=classes) for part in set(parts_by_lap)}
    return np.stack([of_part[part] for part in parts_by_lap]).astype(np.int32)
