"""The slot policy: the paper's local access protocol (§3.4, Alg. 1-3) with laps.

Theory of operation. Samples lie in physical chunks (PC) of K slots. Each PC is mapped to one virtual chunk (VC), a row
of K slots in memory that each hold one sample or none. A request for sample A, which lies in slot o of a PC of VC v, is
answered with whatever sample is in slot o of v. If the slot is empty, one of v's PCs is loaded: of those that still
have a sample for slot o, the one that fills most empty slots (FindReplacePC). Only samples whose slot is empty are
kept; the others stay unconsumed and are read again.

The samples of slot o over all PCs of v are a *column*, and fairness is per column: a lap ends when every sample of a
column has had its turn. "Consumed" in Alg. 2 is `_loaded` here: loaded into the VC in this lap, served or not.

Two rules for whoever edits this file:

1. A sample of a column is in exactly one of four states in a lap: fresh (not loaded), resident (in its slot),
   reserved, or served. `_loaded` is false for fresh ones alone. Each method moves samples along these states and
   nothing else does.
2. A lap ends only when all are served. A reserved sample therefore holds the lap open, and a request that finds
   nothing else preempts it: fairness outranks a reservation.

Decisions depend on what was scheduled, not on what has arrived, so the order of requests alone decides. FindReplacePC
breaks ties with a seeded generator: taking the first would let the same chunks come early in every epoch.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from redoxfs.arrays import Flags, Int32, Int64, Ints
from redoxfs.protocol.events import ChooseVictim, Load, Served, oldest
from redoxfs.protocol.serving import ServingPolicy
from redoxfs.protocol.turns import Turns


class SlotPolicy(ServingPolicy):
    """Which sample answers a request, and which chunk is read for it.

    Args:
        cells: int32[chunks, K], the sample in each slot of each physical chunk, -1 for a hole. Within one VC, all
            samples of a slot may stand in for each other.
        vc_start: int32[M + 1]; VC v owns the chunks vc_start[v] to vc_start[v + 1].
        samples: how many there are; each lies in exactly one cell.
        seed: of the generator that breaks ties.
    """

    def __init__(self, cells: Int32, vc_start: Int32, *, samples: int, seed: int) -> None:
        chunks, slots = cells.shape
        self._cells = cells
        self._exists = cells >= 0
        self._vc_start = vc_start
        flat = np.flatnonzero(self._exists)
        held = cells.ravel()[flat]
        if not np.array_equal(np.sort(held), np.arange(samples)):
            raise ValueError("every sample must lie in exactly one cell")
        self._chunk_of = np.empty(samples, np.int32)
        self._chunk_of[held] = flat // slots
        vc_of_chunk = np.repeat(np.arange(len(vc_start) - 1), np.diff(vc_start))
        if vc_of_chunk.size != chunks:
            raise ValueError("vc_start must cover every chunk")
        # A column has the number vc * K + slot.
        column_of = np.empty(samples, np.int64)
        column_of[held] = vc_of_chunk[flat // slots] * slots + flat % slots
        self._column_of: Ints = column_of.data
        self._slots = slots
        self._resident = np.full((len(vc_start) - 1, slots), -1, np.int32)
        self._resident_of: Ints = self._resident.reshape(-1).data
        self._loaded = np.zeros(samples, np.bool_)
        self._lap = np.ones((len(vc_start) - 1, slots), np.int32)
        self._lap_of_column: Ints = self._lap.reshape(-1).data
        # Per column that has any, oldest first: the reserved sample, and whether it was in memory already.
        self._reserved: dict[int, dict[int, bool]] = {}
        self._given = 0
        self.choose_victim: ChooseVictim = oldest
        self._random = np.random.default_rng(seed)

    def request(self, sample: int) -> Served:
        """Alg. 2, ReadLocalFile: a turn for a sample of ``sample``'s column."""
        served = self._request(sample)
        self._had_a_turn(sample)
        return served

    def _request(self, sample: int) -> Served:
        column = self._column_of[sample]
        resident = self._resident_of[column]
        if resident >= 0:
            self._resident_of[column] = -1
            return Served(resident)
        vc, slot = divmod(column, self._slots)
        fresh = self._fresh(vc, slot)
        if not fresh.any():
            reserved = self._reserved.get(column)
            if reserved:
                return self._turn_of_reserved(self.choose_victim(reserved), preempted=True)
            fresh = self._begin_lap(vc, slot)
        chunk = self._find_replace_pc(vc, fresh)
        answer = int(self._cells[chunk, slot])
        load = self._refill(vc, chunk, answer)
        self._resident[vc, slot] = -1
        return Served(answer, (load,))

    def reserve(self, sample: int) -> int | None:
        """Reserve a sample of ``sample``'s column: the resident one, else the one that FindReplacePC would load."""
        column = self._column_of[sample]
        resident = self._resident_of[column]
        if resident >= 0:
            self._resident_of[column] = -1
            self._reserved.setdefault(column, {})[resident] = True
            return resident
        vc, slot = divmod(column, self._slots)
        fresh = self._fresh(vc, slot)
        if not fresh.any():
            if column in self._reserved:
                return None
            fresh = self._begin_lap(vc, slot)
        chosen = int(self._cells[self._find_replace_pc(vc, fresh), slot])
        self._loaded[chosen] = True
        self._reserved.setdefault(column, {})[chosen] = False
        return chosen

    def take(self, reserved: int, path: int = -1) -> Served:
        served = self._turn_of_reserved(reserved, preempted=False)
        self._had_a_turn(reserved)
        return served

    def put_back(self, reserved: int) -> bool:
        """Undo a reservation: back into its slot if it was loaded and the slot is empty, else fresh again."""
        column = self._column_of[reserved]
        if self._forget_reservation(reserved) and self._resident_of[column] < 0:
            self._resident_of[column] = reserved
            return True
        self._loaded[reserved] = False
        return False

    def reserved(self, sample: int) -> Iterable[int]:
        return self._reserved.get(self._column_of[sample], ())

    @property
    def given(self) -> int:
        return self._given

    def turns(self) -> Turns:
        had = self._loaded.copy()
        had[self._resident[self._resident >= 0]] = False
        had[[*self.reserved_samples()]] = False
        return Turns(self._lap.reshape(-1).copy(), np.packbits(had), self._given)

    def restore(self, turns: Turns) -> None:
        self._loaded[:] = turns.flags(self._lap.size, len(self._loaded))
        self._lap.reshape(-1)[:] = turns.laps
        self._resident[:] = -1
        self._reserved.clear()
        self._given = turns.given
        if self._progress is not None:
            self._progress.count_again()

    def reserve_again(self, sample: int) -> None:
        self._loaded[sample] = True
        self._reserved.setdefault(self._column_of[sample], {})[sample] = False

    def reserved_samples(self) -> Iterable[int]:
        """All reserved samples, those of a column oldest first."""
        for of_column in self._reserved.values():
            yield from of_column

    @property
    def units(self) -> Int64:
        return self.columns

    @property
    def columns(self) -> Int64:
        """int64[S]: the column, (VC, O) in the paper, that each sample lies in: vc * K + slot."""
        return np.asarray(self._column_of)

    @property
    def column_count(self) -> int:
        """M * K."""
        return self._resident.size

    def residents_at(self, columns: Int64) -> Int32:
        """The sample in the slot of each of ``columns``, -1 where there is none."""
        return self._resident.reshape(-1)[columns]

    def lap_of(self, sample: int) -> int:
        return self._lap_of_column[self._column_of[sample]]

    def over_beside(self, column: int, had: Flags) -> list[int]:
        vc = column // self._slots
        return [vc * self._slots + slot for slot in np.flatnonzero(self._over(vc, had)).tolist()]

    def members(self, column: int) -> Int32:
        vc, slot = divmod(column, self._slots)
        cells = self._cells[self._vc_start[vc] : self._vc_start[vc + 1], slot]
        return cells[cells >= 0]

    def laps_of_units(self) -> Int32:
        return self._lap.reshape(-1)

    def chunk_of(self, sample: int) -> int:
        return int(self._chunk_of[sample])

    def is_resident(self, sample: int) -> bool:
        """Whether ``sample`` is in its slot: loaded, and neither served nor reserved."""
        return bool(self._resident_of[self._column_of[sample]] == sample)

    def residents(self) -> int:
        """How many slots hold a sample."""
        return int(np.count_nonzero(self._resident >= 0))

    def _had_a_turn(self, sample: int) -> None:
        """Count a turn of the column of ``sample``."""
        self._given += 1
        if self._progress is not None:
            column = self._column_of[sample]
            self._progress.note(column, self._lap_of_column[column])

    def _fresh(self, vc: int, slot: int) -> Flags:
        """bool[PCS size]: which chunks of the VC have a sample in ``slot`` that this lap has not loaded."""
        chunks = slice(self._vc_start[vc], self._vc_start[vc + 1])
        return self._exists[chunks, slot] & ~self._loaded[self._cells[chunks, slot]]

    def _begin_lap(self, vc: int, slot: int) -> Flags:
        """Begin a new lap of the asked column, and of all columns of the VC that have finished theirs.

        The samples of the others may then be loaded along with the asked one; they are not served before their column
        is asked. If each column waited for its own first request, an epoch would begin with loads of one sample each.
        """
        chunks = slice(self._vc_start[vc], self._vc_start[vc + 1])
        cells, exists = self._cells[chunks], self._exists[chunks]
        through = self._over(vc, self._loaded) & (self._resident[vc] < 0)
        through[[column % self._slots for column in self._reserved if column // self._slots == vc]] = False
        self._loaded[cells[exists & through]] = False
        self._lap[vc, through] += 1
        return self._fresh(vc, slot)

    def _over(self, vc: int, had: Flags) -> Flags:
        """bool[K]: which columns of the VC have samples, all of which are in ``had``, bool[S]."""
        chunks = slice(self._vc_start[vc], self._vc_start[vc + 1])
        cells, exists = self._cells[chunks], self._exists[chunks]
        return np.logical_and(exists.any(axis=0), (~exists | had[cells]).all(axis=0))

    def _find_replace_pc(self, vc: int, fresh: Flags) -> int:
        """Alg. 3: the chunk with the most useful refills among those that are ``fresh`` in the asked slot."""
        first, last = int(self._vc_start[vc]), int(self._vc_start[vc + 1])
        useful = self._useful(vc, slice(first, last)).sum(axis=1)
        useful[~fresh] = -1
        return first + self._one_of(np.flatnonzero(useful == useful.max()))

    def _useful(self, vc: int, chunks: slice) -> Flags:
        """bool[chunks, K]: the cells whose sample a refill would keep."""
        return (self._resident[vc] < 0) & self._exists[chunks] & ~self._loaded[self._cells[chunks]]

    def _refill(self, vc: int, chunk: int, wanted: int) -> Load:
        """Alg. 2, lines 8 to 16: fill the VC's empty slots from ``chunk``; ``wanted`` is read first."""
        keep = self._useful(vc, slice(chunk, chunk + 1))[0]
        kept = self._cells[chunk][keep]
        self._loaded[kept] = True
        self._resident[vc, keep] = kept
        return Load(chunk, (wanted, *(s for s in kept.tolist() if s != wanted)))

    def _turn_of_reserved(self, sample: int, *, preempted: bool) -> Served:
        vc = self._column_of[sample] // self._slots
        if self._forget_reservation(sample):
            return Served(sample, (), preempted)
        return Served(sample, (self._refill(vc, int(self._chunk_of[sample]), sample),), preempted)

    def _forget_reservation(self, sample: int) -> bool:
        """True where the sample was in memory when it was reserved."""
        column = self._column_of[sample]
        was_loaded = self._reserved[column].pop(sample)
        if not self._reserved[column]:
            del self._reserved[column]
        return was_loaded

    def _one_of(self, candidates: npt.NDArray[np.intp]) -> int:
        if len(candidates) == 1:
            return int(candidates[0])
        return int(candidates[self._random.integers(len(candidates))])
