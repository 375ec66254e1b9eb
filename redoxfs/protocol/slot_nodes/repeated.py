"""The slot policy beneath, while events of another process are repeated: it gives what that process's policy gave."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from redoxfs.protocol.events import Served
from redoxfs.protocol.replay import Laps, ReplayError
from redoxfs.protocol.slot import SlotPolicy
from redoxfs.protocol.turns import Turns


class RepeatedSlots:
    """Gives what it was told to `expect`, and counts its turns. Nothing is in memory.

    Args:
        policy: of the same samples.
        turns: as the policy's.
        reserved: the reserved samples, those of a column oldest first.
    """

    def __init__(self, policy: SlotPolicy, turns: Turns, reserved: Iterable[int]) -> None:
        self.choose_victim = policy.choose_victim
        self._column_of: memoryview[int] = policy.columns.data
        self._laps = Laps(turns, policy)
        self._reserved: dict[int, dict[int, None]] = {}
        self._expected: list[int] = []
        for sample in reserved:
            self._reserved.setdefault(self._column_of[sample], {})[sample] = None

    def expect(self, chosen: Sequence[int]) -> None:
        self._expected = list(reversed(chosen))

    def request(self, sample: int) -> Served:
        if not self._expected:
            raise ReplayError(f"a sample that stands in for {sample} is needed, and none in the journal")
        chosen = self._choose(sample)
        preempted = chosen in self._reserved.get(self._column_of[sample], ())
        if preempted:
            self.put_back(chosen)
        self._laps.turn(chosen)
        return Served(chosen, preempted=preempted)

    def reserve(self, sample: int) -> int | None:
        if not self._expected:
            return None
        chosen = self._choose(sample)
        self._laps.reserve(chosen)
        self._reserved.setdefault(self._column_of[sample], {})[chosen] = None
        return chosen

    def take(self, reserved: int) -> Served:
        self.put_back(reserved)
        self._laps.turn(reserved)
        return Served(reserved)

    def put_back(self, reserved: int) -> bool:
        column = self._column_of[reserved]
        of_column = self._reserved[column]
        del of_column[reserved]
        if not of_column:
            del self._reserved[column]
        return False

    def reserved(self, sample: int) -> Iterable[int]:
        return self._reserved.get(self._column_of[sample], ())

    def reserved_samples(self) -> Iterable[int]:
        for of_column in self._reserved.values():
            yield from of_column

    def lap_of(self, sample: int) -> int:
        return self._laps.lap_of(sample)

    def turns(self) -> Turns:
        return self._laps.turns()

    def _choose(self, sample: int) -> int:
        chosen = self._expected.pop()
        if not 0 <= chosen < len(self._column_of) or self._column_of[chosen] != self._column_of[sample]:
            raise ReplayError(f"sample {chosen} in the journal does not stand in for {sample}")
        return chosen


Slots: TypeAlias = SlotPolicy | RepeatedSlots
"""What decides about a node's own samples."""
