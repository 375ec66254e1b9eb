"""How laps begin and end: by what was done in them, or by what passes allow, where anything is held back."""

import numpy as np

from redoxfs.arrays import Numbers
from redoxfs.protocol.local_first.state import NodeState

EMPTY_ROUNDS = 2
"""How many times every peer has to have nothing before an incomplete lap ends without the rest."""


class Laps(NodeState):
    """A `NodeState` whose laps begin and end."""

    # What a class has

    def _free(self, cls: int) -> int:
        """How many samples of the lap are here and not reserved."""
        return self._left[cls] - self._reservations.count_own(cls) + self._taken.count(cls)

    def _is_any_free(self, cls: int) -> bool:
        """Whether a peer is known to have samples that are not reserved."""
        return any(self._peers[number].left[cls] for number in self._there)

    def _has_any_own(self, cls: int) -> bool:
        """Whether this node, or a peer that is not lost, has samples of the class in each lap."""
        return self._parts.has_any([self._node, *self._there], cls)

    def _own_members(self, cls: int) -> Numbers:
        """The own samples of a class, in order of their numbers."""
        own = self._own_members_of.get(cls)
        if own is None:
            own = self._own_members_of[cls] = np.sort(self._policy.members(cls))
        return own

    def _free_members(self, cls: int) -> Numbers:
        """The own samples of a class that are not reserved."""
        members = self._own_members(cls)
        return members[self._passes.are_none_of(members, self._reservations.own_of(cls))]

    def _reserved_here(self, cls: int) -> frozenset[int]:
        return frozenset(self._reservations.of_class(cls)) if cls in self._reservations else frozenset()

    def _holds(self, cls: int) -> bool:
        return self._tree_of_class[cls].holds

    def _own_again(self, cls: int) -> int:
        """How many own samples had their turn in the lap and are allowed."""
        return max(0, self._own_of[cls] - self._left[cls] - self._passes.held_of[cls])

    def _is_again_any(self, cls: int) -> bool:
        return self._own_again(cls) > 0 or any(self._peers[number].again[cls] for number in self._there)

    def _empty_rounds(self, cls: int) -> int:
        """How many times every peer that is not lost was asked and had nothing."""
        empty_answers = self._empty_answers.get(cls, {})
        return min([empty_answers.get(peer, 0) for peer in self._there], default=EMPTY_ROUNDS)

    # Where the lap is

    def _known_done(self, cls: int) -> int:
        return self._done[cls] + sum([peer.done[cls] + peer.before[cls] for peer in self._peers.values()])

    def _is_over(self, cls: int) -> bool:
        """Whether all of the lap is done. After a restart samples may be done twice, and so more than there are."""
        return self._known_done(cls) >= self._of_class[cls]

    def _is_rest_reserved(self, cls: int) -> bool:
        """Whether all of the lap's samples that are not done are reserved here."""
        return self._known_done(cls) + self._reservations.count(cls) >= self._of_class[cls]

    def _is_incomplete(self, cls: int) -> bool:
        return self._lap[cls] <= self._incomplete[cls]

    # The next one

    def _begin_next_lap(self, cls: int) -> None:
        """With nothing of the class's lap here, begin the next if this one is over, or if no peer has anything left."""
        if self._holds(cls):
            # Not by what is done: where a job opens more than an epoch has, samples are done that are not of the lap.
            # Also for peers: messages tell them. So none of them has to seek a sample for another, as in laps.
            if self._empty_rounds(cls) >= EMPTY_ROUNDS and self._is_again_any(cls):
                self._begin_lap(cls, self._lap[cls] + 1)
            return
        if self._is_over(cls):
            self._begin_lap(cls, self._lap[cls] + 1)
            if self._left[cls]:
                return
        if not self._is_incomplete(cls) or self._empty_rounds(cls) < EMPTY_ROUNDS:
            return
        if self._has_any_own(cls):
            self.missed += max(0, self._of_class[cls] - self._known_done(cls))
            self._begin_lap(cls, self._lap[cls] + 1)

    def _begin_lap(self, cls: int, lap: int) -> None:
        """Begin ``lap``. Samples left of laps before are missed: this node did not know that those laps were over.

        Where anything is held back, the lap begins without that. What is left, taken or reserved stays, also if it is
        held back.
        """
        if not self._holds(cls):
            if self._left[cls] or cls in self._taken or cls in self._reservations or lap > self._lap[cls] + 1:
                self._let_go(cls, lap)
            self._enter_lap(cls, lap)
            return
        self._pool.begin_lap_without(cls, lap, self._passes.held_array)
        members = self._free_members(cls)
        out = self._passes.leave_out(members, self._pool.are_left(cls, members))
        self.samples_held_back += out
        self._enter_lap(cls, lap)
        self._left[cls] -= out
        for peer in self._peers.values():
            peer.again[cls] = 0

    def _enter_lap(self, cls: int, lap: int) -> None:
        self._lap[cls] = lap
        self._empty_answers.pop(cls, None)
        self._sought.discard(cls)
        self._left[cls] = self._parts.own_in(self._node, cls)
        self._done[cls] = 0
        for number, peer in self._peers.items():
            peer.left[cls] = self._parts.own_in(number, cls)
            peer.done[cls] = peer.before[cls] = 0
        if len(self._there) < len(self._peers):
            self._incomplete[cls] = lap
        self._passes.entered[cls] = self._tree_of_class[cls].turn

    def _enter_due(self, cls: int) -> None:
        """What begins since the class was last asked for: to hold back, or the lap that an epoch began."""
        if self._unheld[cls]:
            self.samples_held_back += self._leave_held_out(cls)
        due = self._due[cls]
        if not due:
            return
        self._due[cls] = 0
        lap = self._lap[cls] + due
        # Given ahead, without a turn in the lap that is over.
        self._leave_held_out(cls)
        self._begin_lap(cls, lap)
        if self._ledger.progress is not None:
            self._ledger.progress.begin_lap(self._tree_of_class[cls].number, lap)

    # What it begins without

    def _leave_held_out(self, cls: int) -> int:
        """The lap goes on without what is held back and is left in it. Returns how many samples that are."""
        self._unheld[cls] = 0
        members = self._own_members(cls)
        is_out = self._passes.held_array[members] & self._pool.are_left(cls, members)
        out = members[is_out & self._passes.are_none_of(members, self._reserved_here(cls))]
        self._passes.out_array[out] = True
        self.unloaded += [sample for sample in out.tolist() if self._pool.leave_out(sample)]
        self._left[cls] -= len(out)
        return len(out)

    def _let_go(self, cls: int, lap: int) -> None:
        """Samples that are here for laps before ``lap`` have no turn any more."""
        reserved, taken_reserved = self._reservations.let_go(cls)
        self.revoked += reserved
        self.missed += self._left[cls] + len(self._drop_taken(cls)) + taken_reserved
        self.missed += (lap - self._lap[cls] - 1) * self._parts.own_in(self._node, cls)
        self.unloaded += self._pool.skip(cls, lap)

    def _drop_taken(self, cls: int) -> list[int]:
        """Let the samples of a class that came from peers go. Returns them."""
        kept, evicted = self._taken.let_go(cls)
        self.unloaded += kept
        # The bytes of a resident went when there was no room for them, as it can be read here.
        self.unloaded += [sample for sample in evicted if not self._pool.is_resident(sample)]
        return kept + evicted
