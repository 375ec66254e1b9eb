"""What the pool knows of samples, chunks and laps; how a class's lap begins, and how another process continues."""

import numpy as np

from redoxfs.arrays import Flags, Int32, Int64, Ints, Numbers, is_in
from redoxfs.protocol.events import ChooseVictim, oldest
from redoxfs.protocol.lap_progress import LapProgress
from redoxfs.protocol.pool.chunk_order import ChunkOrder, add
from redoxfs.protocol.pool.pace import AMPLE_SAMPLES, Pace
from redoxfs.protocol.pool.passes import Pass, Passes, bytes_of
from redoxfs.protocol.pool.queues import HAD_TURN, NOT_YET, RESERVED, Queues
from redoxfs.protocol.pool.retained import draw_chunks, retained_bytes_for
from redoxfs.protocol.turns import Turns

CHUNKS_DRAWN = 32
"""How many chunks the next one is chosen from. Choosing from one loads 1.27 times as much at 2 % of memory; 128 are no
better than 32, and cost four times as much."""

DRAWN_SHARE = 1 / 8
"""At most this share of the streamed chunks is drawn. With 25 of them, where the best of all was loaded next, chunks
with an uneven mix of classes were early in each lap: a rank correlation of 0.3 between laps, now within chance."""

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

FEW_COME, MEMBERS_FOR_ONE = 8, 64
"""A class is sorted anew where more samples of it come into its lap at a time: it takes the time of these."""

LOOKS_SHARE = 1 / 8
"""The part of the stream's memory for samples that are kept because a job may only have looked at them."""

DRAWS = 4_096
"""How many random numbers are drawn at a time: one by one, each costs a microsecond."""


class PoolState:
    """All that `PoolPolicy` knows.

    The arrays are shared, not copied, and must not change.

    Args:
        cells: int32[chunks, K], the samples of each physical chunk, -1 for a hole.
        class_of: int32[S], the class of each sample, 0 and up: samples of one class may stand in for each other.
        sample_bytes: int64[S], what each sample takes in memory.
        capacity_bytes: what all residents may take together. Less than a chunk means loads on demand alone.
        retained_bytes: what samples that stay from lap to lap may take of it; None: what `retained_bytes_for` says.
        seed: of the generator that chooses.
        covered: bool[S], the samples that laps cover; None: all. Those of a chunk should be either all covered or not.
        chunks_drawn, loads_per_request, ample_samples: see the constants.

    Raises:
        ValueError: a sample is not in exactly one cell, or a chunk is too large.
    """

    def __init__(
        self,
        cells: Int32,
        class_of: Int32,
        sample_bytes: Int64,
        *,
        capacity_bytes: int,
        retained_bytes: int | None = None,
        seed: int,
        covered: Flags | None = None,
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
        self._class_of: Ints = class_of.data
        self._bytes: Ints = sample_bytes.data
        self._chunk_array = _chunk_of(cells, samples)
        self._chunk_of: Ints = self._chunk_array.data
        held = np.bincount(self._chunk_array, minlength=chunks)
        # What each sample counts in the mean over its chunk.
        self._weight_array = (1 / np.maximum(1, held)).astype(np.float32)

        self._queues = Queues(self._class_array, covered)
        classes = len(self._queues.stock_array)
        runs_over = np.zeros(classes, np.uint8)
        self._runs_over_array = runs_over.view(np.bool_)
        self._runs_over: Ints = runs_over.data
        self._running_over = 0
        self._given_before = 0
        self._lap = np.ones(classes, np.int32)
        self._lap_of_class: Ints = self._lap.data
        self._progress: LapProgress | None = None
        self._lent_bytes = 0
        # By class, oldest first: each reserved sample, and whether it was in memory then, or even retained.
        self._reserved: dict[int, dict[int, int]] = {}
        self._passes: Passes | None = None
        # By class.
        self._pass_of: list[Pass] | None = None
        # Trees whose lap began when the one before had samples left.
        self._cut: set[int] = set()
        # Reserved samples that had their turn in this lap: their paths begin another pass.
        self._ahead: set[int] = set()

        self.choose_victim: ChooseVictim = oldest

        self._random = np.random.default_rng(seed)
        self._draws = iter(self._random.random(DRAWS).tolist())
        streamed = self._choose_retained(capacity_bytes, retained_bytes, covered, seed)
        drawn = max(1, min(chunks_drawn, int(streamed * DRAWN_SHARE)))
        self._chunks = ChunkOrder(self._chunk_array, chunks, drawn=drawn)
        self._this_lap = self._chunks.this_lap
        self._next_lap = self._chunks.next_lap
        self._begin_laps()
        self._chunks_drawn = chunks_drawn
        self._loads_per_request = loads_per_request

        self._capacity_bytes = capacity_bytes
        self._free_bytes = capacity_bytes
        self._room_for_next_bytes = 0
        mean_bytes = max(1.0, float(sample_bytes.mean())) if samples else 1.0
        # Memory for all samples streams while it fills.
        stream_bytes = capacity_bytes if self._retains_all else capacity_bytes - self._retained_limit_bytes
        in_capacity = stream_bytes / (width * mean_bytes)
        self._chunks_at_a_time = int(max(1, min(SAMPLES_AT_A_TIME // width, in_capacity * IN_FLIGHT_SHARE)))
        self._retry_bytes = int(self._chunks_at_a_time * width * mean_bytes * RETRY_SHARE)
        self._little_bytes = int(LITTLE_SAMPLES * mean_bytes)
        self._mean_bytes = mean_bytes
        self._most_room_bytes = stream_bytes
        self._looks_room_bytes = int(stream_bytes * LOOKS_SHARE)
        self._pace = Pace(self._queues.sizes(), ample_samples=ample_samples)
        self._asked = self._pace.asked
        self._requests_to_note = self._pace.note(self._room_samples())
        # The unit of time is a sample that storage may have delivered.
        self._now = self._noted_at = 0
        self._last_arrival = 0
        self._in_flight = int(min(IN_FLIGHT_SAMPLES, stream_bytes / mean_bytes * IN_FLIGHT_SHARE))
        self._arrival: Ints = np.zeros(chunks, np.int64).data

    @property
    def given(self) -> int:
        return self._given_before + self._now // DELIVERED_PER_REQUEST

    def turns(self) -> Turns:
        return Turns(self._lap.copy(), np.packbits(self._queues.had_array == HAD_TURN), self.given)

    def kept_turns(self, *, whole: bool) -> Turns:
        """`turns`, with the passes if they are kept. Not ``whole``: without the order of opens; a tenth of the size."""
        turns = self.turns()
        if self._passes is None:
            return turns
        passes = self._passes.state(whole=whole)
        had = turns.flags(len(turns.laps), len(self._class_array)).copy()
        had[[*self._ahead]] = True
        if not whole:
            return turns._replace(had=np.packbits(had), passes=passes)
        # Classes whose lap a pass has ended, and that were not asked since: as if they were in the next one.
        laps = turns.laps.copy()
        for tree in self._passes.trees:
            late = tree.classes[laps[tree.classes] < tree.lap]
            laps[late] = tree.lap
            passes.began[late] = passes.served.max(initial=0)
        is_late: Flags = (laps > turns.laps)[self._class_array]
        had[is_late] = self._passes.in_pass_array[is_late]
        return Turns(laps, np.packbits(had), turns.given, passes)

    def turns_to_repeat(self) -> Turns:
        """`turns`, for a record of the turns after them, and `recover`. What is held back counts as without a turn: if
        it has one before another lap begins, that is no sign of another lap."""
        turns = self.turns()
        if self._passes is None:
            return turns
        held = self._passes.held()
        if not len(held):
            return turns
        had = turns.flags(len(turns.laps), len(self._class_array)).copy()
        had[held] = False
        return turns._replace(had=np.packbits(had))

    def restore(self, turns: Turns) -> None:
        turns.flags(len(self._lap), len(self._chunk_of))
        if self._passes is not None:
            if turns.passes is not None:
                self._passes.check(turns.passes)
            self._passes.restore(turns.passes)
        self._resume(turns)

    def recover(self, turns: Turns) -> None:
        """As `restore`, in a process after another one: the passes go on in the memory that outlived it. Of an open
        that is there and not in ``turns``, nobody saw the answer.

        Raises:
            ValueError: the turns are of other samples.
        """
        if self._passes is None or not self._passes.is_continued:
            self.restore(turns)
            return
        turns.flags(len(self._lap), len(self._chunk_of))
        path = self._passes.noted(turns.given + 1)
        if path is not None:
            self._passes.undo(path, self._passes.of_class[self._class_of[path]])
        # The record shows some laps later or earlier than they began. All that the pass was given came before these.
        for tree in self._passes.trees:
            others = tree.classes[turns.laps[tree.classes] != self._passes.laps_array[tree.classes]]
            self._passes.began_array[others] = tree.turn
        self._resume(turns)

    def _resume(self, turns: Turns) -> None:
        had = turns.flags(len(self._lap), len(self._chunk_of))
        if self._passes is not None:
            # What the pass was given is not in the lap, whether it had its turn in it or before.
            had = had | self._passes.in_pass_array
            self._passes.note_given(turns.given)
            self._passes.laps_array[:] = turns.laps
        self._queues.had_array[:] = had
        self._lap[:] = turns.laps
        self._given_before = turns.given
        self._ahead.clear()
        self._cut.clear()
        self._reserved.clear()
        self._lend(-self._lent_bytes)
        self._free_bytes = self._capacity_bytes
        self._room_for_next_bytes = 0
        self._retained_bytes = self._put_aside_bytes = 0
        self._now = self._noted_at = self._last_arrival = 0
        np.asarray(self._arrival)[:] = 0
        self._begin_laps()
        self._requests_to_note = self._pace.note(self._room_samples())
        if self._passes is not None:
            for tree in self._passes.trees:
                self._looks_room_bytes += self._size_bytes([*tree.looked_at])
                tree.looked_at.clear()
            self._passes.look_again()
        if self._progress is not None:
            self._progress.count_again()

    def keep_passes(self, tree_of: Numbers, trees: int) -> None:
        """From now on no pass of a tree gets a sample twice (`passes`); ``tree_of`` is int[S], and there are ``trees``.

        For a policy that decides about all samples, before anything else. Not where samplers draw.
        """
        passes = Passes(self._class_array, tree_of, trees)
        passes.laps_array[:] = self._lap
        self._keep_passes(passes)

    def passes_bytes(self) -> int:
        """How much memory `keep_passes_in` needs; 0: there are no passes."""
        return 0 if self._passes is None else bytes_of([tree.paths for tree in self._passes.trees], len(self._lap))

    def keep_passes_in(self, memory: memoryview) -> None:
        """Have the passes in memory that outlives this process: empty, or with those of a former process (`recover`).
        Before any request."""
        assert self._passes is not None
        state = self._passes.state(whole=True)
        tree_of = self._passes.tree_of_class[self._class_array]
        passes = Passes(self._class_array, tree_of, len(self._passes.trees), memory)
        if not passes.is_continued:
            passes.restore(state)
            for tree, before in zip(passes.trees, self._passes.trees, strict=True):
                tree.lap = before.lap
            passes.note_given(self._given_before)
            passes.laps_array[:] = self._lap
        self._keep_passes(passes)

    def _keep_passes(self, passes: Passes) -> None:
        self._passes, self._pass_of = passes, passes.of_class
        self._asked_at, self._in_pass = passes.asked, passes.in_pass
        self._pass_head = passes.head

    @property
    def units(self) -> Int32:
        return self._class_array

    def members(self, cls: int) -> Int32:
        """The samples of a class that laps cover, in some order. A view, valid until the next request."""
        return self._queues.members(cls)

    def lap_of(self, sample: int) -> int:
        return self._lap_of_class[self._class_of[sample]]

    def laps_of_units(self) -> Int32:
        return self._lap

    def chunk_of(self, sample: int) -> int:
        return self._chunk_of[sample]

    def is_resident(self, sample: int) -> bool:
        """Whether ``sample`` is in the pool, for this lap or the next: loaded, and neither served nor reserved."""
        return self._queues.is_resident(self._class_of[sample], sample)

    def residents(self) -> int:
        """How many samples are in the pool."""
        return int(self._queues.stock_array.sum()) + self._queues.retained()

    @property
    def resident_bytes(self) -> int:
        """The bytes that they take."""
        return self._capacity_bytes - self._free_bytes - self._put_aside_bytes

    @property
    def retained_bytes(self) -> int:
        """The bytes of the retained samples that are in the pool, and of those that are reserved."""
        return self._retained_bytes

    @property
    def retained_samples(self) -> int:
        """How many retained samples are in the pool."""
        return self._queues.retained()

    def is_retained(self, sample: int) -> bool:
        """Whether ``sample`` stays in memory after its turns, once it has had one."""
        return self._is_retained[sample] > 0

    # What is retained

    def _choose_retained(
        self, capacity_bytes: int, retained_bytes: int | None, covered: Flags | None, seed: int
    ) -> int:
        """Draw the chunks whose samples stay.

        Returns:
            How many chunks are streamed in a lap.
        """
        sizes, (chunks, width) = self._bytes_array, self._cells.shape
        if covered is None:
            covered = np.ones(len(sizes), np.bool_)
        chunk_bytes = np.bincount(self._chunk_array, sizes * covered, chunks).astype(np.int64)
        own = np.flatnonzero(np.bincount(self._chunk_array, covered, chunks))
        is_retained = np.zeros(len(sizes), np.uint8)
        self._retained_array: Flags = is_retained.view(np.bool_)
        self._is_retained: Ints = is_retained.data
        self._retained_chunks: list[int] = []
        self._retains_all = False
        # ``_retained_bytes``: of the retained samples in memory, and the room of those that are reserved, which is
        # ``_put_aside_bytes``. ``_retained_limit_bytes``: of all that are to be retained, less what was given back.
        self._retained_bytes = self._put_aside_bytes = self._retained_limit_bytes = 0
        self.reads_saved = self.reads_alone = self._reads_alone_before = self.given_back = 0
        # Of its own, so that what else is drawn does not depend on how much is retained.
        self._random_retained = np.random.default_rng([seed, 1])
        if retained_bytes == 0 or not len(own):
            return len(own)
        if retained_bytes is None:
            retained_bytes = retained_bytes_for(self._class_array[covered], sizes[covered], width, capacity_bytes)
        drawn = own[draw_chunks(chunk_bytes[own], min(retained_bytes, capacity_bytes), self._random_retained)]
        self._retained_chunks = drawn.tolist()
        self._retained_array[:] = is_in(self._chunk_array, drawn) & covered
        self._retained_limit_bytes = int(chunk_bytes[drawn].sum())
        self._retains_all = self._retained_limit_bytes == int(chunk_bytes.sum())
        return len(own) - len(drawn)

    def _lend(self, size_bytes: int) -> None:
        """So many bytes are another's; negative: are not any more."""
        self._lent_bytes += size_bytes
        self._retained_limit_bytes -= size_bytes
        self._capacity_bytes -= size_bytes

    def _room_samples(self) -> float:
        """How many samples fit in memory beside those that are retained and there."""
        return (self._capacity_bytes - self._retained_bytes) / self._mean_bytes

    # Laps

    def _begin_laps(self) -> None:
        """Enter the laps of `_lap` with nothing in memory. The samples marked in `Queues.had` have had their turn."""
        had = self._queues.had_array
        # Nor has a sample a turn that no lap covers.
        is_member = self._queues.is_member()
        fresh: Flags = (had == NOT_YET) & is_member
        had[~is_member] = NOT_YET
        self._queues.reset(fresh)
        self._queues.stays_array[:] = fresh & self._retained_array
        # Classes without samples do not count: where no class runs over, `_look_at` has less to do.
        runs_over = self._queues.all_loaded()
        self._runs_over_array[:] = runs_over
        self._running_over = int(np.count_nonzero(runs_over))
        next_lap: Flags | None = None
        if self._running_over:
            next_lap = ~fresh & runs_over[self._class_array] & is_member
        self._chunks.reset(fresh, next_lap)

    def _begin_lap(self, cls: int) -> None:
        """Begin a class's next lap.

        Raises:
            ValueError: no lap has a sample of the class.
        """
        members = self._queues.members(cls)
        if not len(members):
            raise ValueError(f"no lap has a sample of class {cls}")
        self._queues.begin_lap(cls)
        if self._retained_limit_bytes:
            self._queues.stays_array[members] = self._retained_array[members]
        self._runs_over[cls] = 0
        self._running_over -= 1
        fresh = self._queues.fresh(cls)
        if len(fresh):
            chunks = self._chunk_array[fresh]
            add(self._chunks.this_lap_array, chunks, 1)
            add(self._chunks.next_lap_array, chunks, -1)
            self._chunks.file_all(chunks)
        self._lap_of_class[cls] += 1
        if not len(fresh):
            self._run_over(cls)

    # Laps that a pass ends

    def _end_laps(self, tree: Pass) -> None:
        """The laps of a tree are over, whatever had no turn. Each class begins the next one at its next request."""
        assert self._passes is not None
        tree.lap = int(self._lap[tree.classes].max(initial=0)) + 1
        self._cut.discard(tree.number)
        self._passes.keep(tree)

    def _begin_lap_of_pass(self, cls: int, tree: Pass) -> None:
        """Begin a class's next lap, without the samples that the pass was given."""
        passes, queues = self._passes, self._queues
        assert passes is not None
        held = passes.in_pass_array[queues.members(cls)]
        if not queues.is_over(cls):
            self._cut.add(tree.number)
        if queues.is_over(cls) and cls not in self._reserved and not held.any():
            self._begin_lap(cls)
        else:
            touched = self._leave_counts(cls)
            queues.rearrange(cls, held)
            self._stay_if_retained(cls)
            passes.held_back += int(np.count_nonzero(held))
            self._count_again(cls, touched)
            self._lap_of_class[cls] += 1
        self._lap_of_class[cls] = max(self._lap_of_class[cls], tree.lap)
        passes.began[cls] = tree.turn
        passes.laps_array[cls] = self._lap_of_class[cls]
        if self._ahead:
            self._ahead.difference_update([s for s in self._reserved.get(cls, ()) if not passes.in_pass[s]])
        if self._progress is not None:
            self._progress.begin_lap(tree.number, tree.lap)

    def _stay_if_retained(self, cls: int) -> None:
        """The retained samples of a class that are in its lap stay after their turn."""
        members = self._queues.members(cls)
        stays = self._queues.had_array[members] != HAD_TURN
        self._queues.stays_array[members] = (
            stays & self._retained_array[members] if self._retained_limit_bytes else False
        )

    def _leave_counts(self, cls: int) -> Int32:
        """A class's samples are in no count of samples to load. Returns the chunks to file, with repeats."""
        touched = self._chunk_array[self._queues.fresh(cls)]
        add(self._chunks.this_lap_array, touched, -1)
        if self._runs_over[cls]:
            chunks = self._chunk_array[self._open_to_next_lap(cls)]
            add(self._chunks.next_lap_array, chunks, -1)
            touched = np.concatenate([touched, chunks])
            self._runs_over[cls] = 0
            self._running_over -= 1
        return touched

    def _count_again(self, cls: int, touched: Int32) -> None:
        """Undo `_leave_counts`, whose result is ``touched``."""
        fresh = self._chunk_array[self._queues.fresh(cls)]
        add(self._chunks.this_lap_array, fresh, 1)
        self._chunks.file_all(np.concatenate([touched, fresh]))
        if not len(fresh):
            self._run_over(cls)

    def come_into_lap(self, samples: Int32) -> None:
        """Samples that were held back come into their lap: the pass began after they were served."""
        classes = self._class_array[samples]
        order = np.argsort(classes, kind="stable")
        samples, classes = samples[order], classes[order]
        first = np.flatnonzero(np.diff(classes, prepend=-1))
        flags: Flags | None = None
        for of_class in np.split(samples, first[1:]):
            cls = self._class_of[of_class[0]]
            members = self._queues.members(cls)
            if len(of_class) < FEW_COME + len(members) // MEMBERS_FOR_ONE:
                for sample in of_class.tolist():
                    self._comes_into_lap(cls, sample)
                continue
            if flags is None:
                flags = np.ones(len(self._class_array), np.bool_)
                flags[samples] = False
            touched = self._leave_counts(cls)
            self._queues.rearrange(cls, flags[members])
            if self._retained_limit_bytes:
                self._queues.stays_array[of_class] = self._retained_array[of_class]
            self._count_again(cls, touched)

    def _comes_into_lap(self, cls: int, sample: int) -> None:
        if not self._queues.is_resident(cls, sample):
            self._count_for_next_lap(cls, sample, -1)
        is_resident = self._queues.come_into_lap(cls, sample)
        if self._retained_limit_bytes:
            self._queues.stays[sample] = self._is_retained[sample]
        self._count_for_next_lap(cls, sample, 1)
        if not is_resident:
            chunk = self._chunk_of[sample]
            self._this_lap[chunk] += 1
            self._chunks.file(chunk)

    def _run_over(self, cls: int) -> None:
        """A class has no fresh samples left: those of its next lap may be loaded or marked for it."""
        if self._runs_over[cls]:
            return
        self._runs_over[cls] = 1
        self._running_over += 1
        chunks = self._chunk_array[self._open_to_next_lap(cls)]
        add(self._chunks.next_lap_array, chunks, 1)
        self._chunks.file_all(chunks)

    def _open_to_next_lap(self, cls: int) -> Int32:
        """The samples of a class that runs over that may be loaded or marked for its next lap."""
        queues = self._queues
        samples = queues.not_for_next(cls)
        is_open: Flags = ~queues.stays_array[samples]
        if cls in self._reserved:
            is_open &= queues.had_array[samples] != RESERVED
        return samples if is_open.all() else samples[is_open]

    def _count_for_next_lap(self, cls: int, sample: int, change: int) -> None:
        """A sample of a class that runs over may be loaded or marked for the next lap: 1, or is reserved: -1."""
        if not self._runs_over[cls] or self._queues.stays[sample]:
            return
        chunk = self._chunk_of[sample]
        self._next_lap[chunk] += change
        if self._next_lap[chunk] == max(0, change):
            self._chunks.file(chunk)

    def _had_a_turn(self, cls: int, sample: int) -> bool:
        """Count the turn. True where the sample stays for the next lap."""
        if self._progress is not None:
            self._progress.note(cls, self._lap_of_class[cls])
        return self._stays(cls, sample)

    def _stays(self, cls: int, sample: int) -> bool:
        """Keep a sample that leaves the lap for the next one, if it is to be kept. Returns whether it is."""
        queues = self._queues
        if not queues.stays[sample]:
            return False
        retained, size_bytes = bool(self._is_retained[sample]), self._bytes[sample]
        if retained and self._retained_bytes + size_bytes > self._retained_limit_bytes:
            # Its room was given back meanwhile.
            queues.stays[sample] = 0
            self._count_for_next_lap(cls, sample, 1)
            return False
        queues.keep(sample, retained)
        self._free_bytes -= size_bytes
        if retained:
            self._retained_bytes += size_bytes
        return True

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
