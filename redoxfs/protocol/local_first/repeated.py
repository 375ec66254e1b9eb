"""The pool beneath, while the events of another process are repeated: it gives what that process's pool gave."""

from typing import TypeAlias

from redoxfs.arrays import Flags, Int32, Numbers
from redoxfs.protocol.events import Served
from redoxfs.protocol.pool import PoolPolicy
from redoxfs.protocol.replay import ChosenBefore, ReplayError
from redoxfs.protocol.turns import Turns


class RepeatedPool(ChosenBefore):
    """Gives what it was told to `expect`, and counts turns in the laps that the node is in.

    Args:
        policy: of the same samples.
        turns: as the pool's.
        node_laps: the laps of the node, which change as it repeats events.
    """

    def __init__(self, policy: PoolPolicy, turns: Turns, node_laps: "memoryview[int]") -> None:
        super().__init__(turns, policy)
        self._node_laps = node_laps

    def request(self, sample: int) -> Served:
        chosen = self._choose(sample)
        self._had[chosen] = 1
        return Served(chosen)

    def reserve(self, sample: int) -> int | None:
        return self._choose(sample)

    def take(self, reserved: int) -> Served:
        self._had[reserved] = 1
        return Served(reserved)

    def put_back(self, reserved: int) -> bool:
        return False

    def skip(self, cls: int, lap: int) -> list[int]:
        # The lap begins with the next choice.
        return []

    def is_resident(self, sample: int) -> bool:
        return False

    def begin_lap_without(self, cls: int, lap: int, held: Flags) -> None:
        members = self._members(cls)
        self._had_array[members] &= held[members]
        self._laps[cls] = lap

    def are_left(self, cls: int, members: Numbers) -> Flags:
        return self._had_array[members] == 0

    def leave_out(self, sample: int) -> bool:
        self._had[sample] = 1
        return False

    def come_into_lap(self, samples: Int32) -> None:
        self._had_array[samples] = 0

    def give_copy(self, sample: int) -> Served:
        return Served(sample)

    def _choose(self, sample: int) -> int:
        chosen = super()._choose(sample)
        unit = self._unit_of[sample]
        if self._laps[unit] != self._node_laps[unit]:
            self._begin_lap(unit, self._node_laps[unit])
        if self._had[chosen]:
            raise ReplayError(f"sample {chosen} in the journal had its turn before")
        return chosen


Pool: TypeAlias = PoolPolicy | RepeatedPool
"""What decides about a node's own samples."""
