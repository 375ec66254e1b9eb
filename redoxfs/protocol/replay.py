"""Repeats what a binding decided, from a record of its events and of the samples that the policy gave.

A policy's decisions depend on what was in memory, and a new process has nothing in memory. So the policy is not
repeated: a stand-in (`_Recorded`) hands out the recorded samples, and `Laps` counts their turns. The binding's tables
are then those of the binding that made the record, and the policy continues from the turns (`Replay.finish`).

A turn or a new reservation of a sample that had its turn shows that its class or column is in the next lap, and so are
those that the policy begins with it (`Replayable.over_beside`). A policy may begin a lap yet earlier, which changes
nothing: a lap of which all samples had their turn is as good as the next one before its first turn.

Rejected: repeating the policy itself, with its generator. Its state is larger than all else, what it had loaded is lost
anyway, and another version of the package would have to decide the same.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from redoxfs.arrays import Flags, Int32, Numbers
from redoxfs.protocol.binding import Binding, DrawnBinding
from redoxfs.protocol.events import ChooseVictim, Closed, Opened, Pending, Policy, Served, oldest
from redoxfs.protocol.turns import Turns

NO_SAMPLE = -1
"""In place of a sample, in a record: none."""


class ReplayError(ValueError):
    """A record does not belong to the state that it is replayed on: one line."""


class Replayable(Policy, Protocol):
    """A policy that can continue from a record of its turns and reservations."""

    @property
    def units(self) -> Numbers:
        """int[S]: the number of each sample's class or column, which has laps of its own."""

    def members(self, unit: int, /) -> Int32:
        """The samples of a class or column."""

    def over_beside(self, unit: int, had: Flags, /) -> Sequence[int]:
        """The other classes or columns that begin a lap when ``unit`` does, as all their samples are in ``had``,
        bool[S]."""
        return ()

    def recover(self, turns: Turns) -> None:
        """Continue from ``turns``, with nothing in memory and nothing reserved."""

    def reserve_again(self, sample: int) -> None:
        """After `recover`: ``sample``, which had no turn in its lap, is reserved, and not in memory."""


class Repetition:
    """Repeats events on ``binding``, as they were recorded. A subclass says what decides.

    ``undecided``  by path that waits for another node, the ticket
    ``promises``   by ticket of a stat that waits for another node, its path and thread
    """

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        self.undecided: dict[int, int] = {}
        self.promises: dict[int, tuple[int, int]] = {}

    def open(self, path: int, file: int, thread: int, sample: int, *, preempted: bool) -> Opened:
        """An open that took a turn of ``sample``; of none: NO_SAMPLE, or UNDECIDED where another node has to give it.

        Raises ReplayError.
        """
        self._expect(sample, is_chosen=sample >= 0, preempted=preempted)
        opened = self._binding.open(path, file, thread)
        turn = opened.turn
        found = NO_SAMPLE if turn is None else opened.sample
        if found != sample or (isinstance(turn, Served) and turn.preempted != preempted):
            raise ReplayError(f"an open of path {path} got sample {found}, and {sample} in the journal")
        if isinstance(turn, Pending):
            self.undecided[path] = turn.ticket
        self._void()
        return opened

    def draw(self, sample: int) -> None:
        """A draw gave ``sample`` to a sampler. Raises ReplayError."""
        if not isinstance(self._binding, DrawnBinding):
            raise ReplayError(f"the journal has a draw of sample {sample}, and this mount takes none")
        self._expect(sample, is_chosen=True)
        self._binding.draw(sample)

    def stat(self, path: int, file: int, thread: int, sample: int, *, is_new: bool) -> None:
        """A stat that reported ``sample``, or none. ``is_new``: it was reserved for that. Raises ReplayError."""
        self._expect(sample, is_chosen=is_new)
        result = self._binding.stat(path, file, thread)
        if (NO_SAMPLE if result.sample is None else result.sample) != sample or result.reserved != is_new:
            raise ReplayError(f"a stat of path {path} got sample {result.sample}, and {sample} in the journal")
        if result.pending is not None:
            self.promises[result.pending.ticket] = path, thread
        self._void()

    def close(self, path: int) -> Closed:
        """A handle was closed. Raises ReplayError."""
        self._must_be_bound(path)
        closed = self._binding.close(path)
        self._give_up(path)
        return closed

    def fail(self, path: int, thread: int) -> Closed:
        """An open failed. Nothing may wait for its path's answer any more. Raises ReplayError."""
        self._must_be_bound(path)
        closed = self._binding.fail(path, thread)
        self._give_up(path)
        return closed

    def end(self, thread: int) -> None:
        """A thread had ended."""
        self._binding.thread(thread)

    def finish(self) -> None:
        """The policy decides from here on. Raises ValueError."""
        raise NotImplementedError

    def _expect(self, sample: int, *, is_chosen: bool, preempted: bool = False) -> None:
        """What the next event is to decide. ``is_chosen``: the policy chose ``sample`` in it."""
        raise NotImplementedError

    def _void(self) -> None:
        """After an event that the policy may have decided."""

    def _give_up(self, path: int) -> None:
        """A handle of ``path`` is closed."""

    def _must_be_bound(self, path: int) -> None:
        if not self._binding.is_bound(path):
            raise ReplayError(f"the journal closes path {path}, which is not open")


class Replay(Repetition):
    """Repeats events on a binding that has the tables of the time when ``turns`` were taken.

    Raises:
        ValueError: ``turns`` are of other samples.
    """

    def __init__(self, binding: Binding, turns: Turns, policy: Replayable) -> None:
        super().__init__(binding)
        self._policy = policy
        self._recorded = _Recorded(Laps(turns, policy))
        binding.follow(self._recorded)

    def finish(self) -> None:
        """The policy continues from here, with the binding's reservations. Raises ValueError."""
        self._policy.recover(self._recorded.laps.turns())
        for sample in self._binding.reserved_samples():
            self._policy.reserve_again(sample)
        self._binding.follow(self._policy)

    def _expect(self, sample: int, *, is_chosen: bool, preempted: bool = False) -> None:
        self._recorded.expect(sample, is_new=is_chosen, preempted=preempted)


class Laps:
    """Counts turns, as a policy does, from those that were recorded."""

    def __init__(self, turns: Turns, policy: Replayable) -> None:
        units = policy.units
        self._unit_of = np.ascontiguousarray(units).data
        self._members = policy.members
        self._over_beside = policy.over_beside
        self._had_array = turns.flags(len(turns.laps), len(units)).astype(np.uint8)
        self._had = self._had_array.data
        self._laps = turns.laps.copy()
        if len(units) and int(units.max()) >= len(self._laps):
            raise ValueError(f"{len(self._laps)} laps, not those of {int(units.max()) + 1} classes or columns")
        self._given = turns.given

    def note_reserved(self, sample: int) -> None:
        if self._had[sample]:
            unit = self._unit_of[sample]
            self._begin_lap(unit, self._laps[unit] + 1)

    def note_turn(self, sample: int) -> None:
        self.note_reserved(sample)
        self._had[sample] = 1
        self._given += 1

    def _begin_lap(self, unit: int, lap: int) -> None:
        self._had_array[self._members(unit)] = 0
        self._laps[unit] = lap
        for other in self._over_beside(unit, self._had_array.view(np.bool_)):
            self._had_array[self._members(other)] = 0
            self._laps[other] += 1

    def lap_of(self, sample: int) -> int:
        return int(self._laps[self._unit_of[sample]])

    def turns(self) -> Turns:
        return Turns(self._laps.copy(), np.packbits(self._had_array), self._given)


class ChosenBefore(Laps):
    """What decides about the samples of one node among several, while its events are repeated: what was chosen before.
    Nothing is in memory.
    """

    def __init__(self, turns: Turns, policy: Replayable) -> None:
        super().__init__(turns, policy)
        self._expected: list[int] = []

    def expect(self, chosen: Sequence[int]) -> None:
        """What is chosen in the next event, in order."""
        self._expected = list(reversed(chosen))

    def _choose(self, sample: int) -> int:
        if not self._expected:
            raise ReplayError(f"a sample that stands in for {sample} is needed, and none in the journal")
        chosen = self._expected.pop()
        if not 0 <= chosen < len(self._unit_of) or self._unit_of[chosen] != self._unit_of[sample]:
            raise ReplayError(f"sample {chosen} in the journal does not stand in for {sample}")
        return chosen


class _Recorded:
    """The `Policy` that decides what was decided. `expect` says what, before each event."""

    def __init__(self, laps: Laps) -> None:
        self.choose_victim: ChooseVictim = oldest
        self.laps = laps
        self._sample = NO_SAMPLE
        self._preempted = False
        self._is_new = False

    def expect(self, sample: int, *, preempted: bool = False, is_new: bool = False) -> None:
        self._sample = sample
        self._preempted = preempted
        self._is_new = is_new

    def request(self, sample: int) -> Served:
        if self._sample == NO_SAMPLE:
            raise ReplayError(f"an open of path {sample} takes a turn, and none in the journal")
        self.laps.note_turn(self._sample)
        return Served(self._sample, preempted=self._preempted)

    def reserve(self, sample: int) -> int | None:
        if not self._is_new:
            return None
        self.laps.note_reserved(self._sample)
        return self._sample

    def take(self, reserved: int, path: int = -1) -> Served:
        self.laps.note_turn(reserved)
        return Served(reserved)

    def put_back(self, reserved: int) -> bool:
        return True

    def reserved(self, sample: int) -> Iterable[int]:
        """The reserved sample that a stat took over, if it did."""
        return () if self._sample == NO_SAMPLE else (self._sample,)
