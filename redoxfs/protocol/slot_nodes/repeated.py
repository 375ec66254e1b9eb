"""The slot policy beneath, while events of another process are repeated: it gives what that process's policy gave."""

from collections.abc import Iterable
from typing import TypeAlias

from redoxfs.protocol.events import Served
from redoxfs.protocol.replay import ChosenBefore
from redoxfs.protocol.slot import SlotPolicy
from redoxfs.protocol.turns import Turns


class RepeatedSlots(ChosenBefore):
    """Gives what it was told to `expect`, and counts its turns.

    Args:
        policy: of the same samples.
        turns: as the policy's.
        reserved: the reserved samples, those of a column oldest first.
    """

    def __init__(self, policy: SlotPolicy, turns: Turns, reserved: Iterable[int]) -> None:
        super().__init__(turns, policy)
        self.choose_victim = policy.choose_victim
        self._reserved: dict[int, dict[int, None]] = {}
        for sample in reserved:
            self._reserved.setdefault(self._unit_of[sample], {})[sample] = None

    def request(self, sample: int) -> Served:
        chosen = self._choose(sample)
        preempted = chosen in self._reserved.get(self._unit_of[sample], ())
        if preempted:
            self.put_back(chosen)
        self.note_turn(chosen)
        return Served(chosen, preempted=preempted)

    def reserve(self, sample: int) -> int | None:
        if not self._expected:
            return None
        chosen = self._choose(sample)
        self.note_reserved(chosen)
        self._reserved.setdefault(self._unit_of[sample], {})[chosen] = None
        return chosen

    def take(self, reserved: int) -> Served:
        self.put_back(reserved)
        self.note_turn(reserved)
        return Served(reserved)

    def put_back(self, reserved: int) -> bool:
        column = self._unit_of[reserved]
        of_column = self._reserved[column]
        del of_column[reserved]
        if not of_column:
            del self._reserved[column]
        return False

    def reserved(self, sample: int) -> Iterable[int]:
        return self._reserved.get(self._unit_of[sample], ())

    def reserved_samples(self) -> Iterable[int]:
        for of_column in self._reserved.values():
            yield from of_column


Slots: TypeAlias = SlotPolicy | RepeatedSlots
"""What decides about a node's own samples."""
