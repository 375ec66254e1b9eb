"""One node of the distributed slot protocol: a requester of other homes' samples, and the home of its own."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from redoxfs.arrays import Int8, Int32, Int64, Numbers
from redoxfs.protocol.events import Answer, ChooseVictim, Delivered, Handled, Message, Pending, Served, SharedState
from redoxfs.protocol.replay import ReplayError
from redoxfs.protocol.serving import SharedServingPolicy
from redoxfs.protocol.slot import SlotPolicy
from redoxfs.protocol.slot_nodes.home import Home
from redoxfs.protocol.slot_nodes.messages import RemoteAnswer, RemoteRead
from redoxfs.protocol.slot_nodes.repeated import RepeatedSlots, Slots
from redoxfs.protocol.slot_nodes.requester import Requester
from redoxfs.protocol.tables import StateReader, arrays_of, rows
from redoxfs.protocol.turns import Ledger, Turns


class SlotNode(SharedServingPolicy):
    """One node of the distributed protocol: Alg. 1 for its own requests, a home for those of others.

    Where the next sample of a (VC, O) at another home may be one that is reserved here already,
    `reserve` returns None.

    Args:
        node: the number of this node.
        policy: decides about the VCs that live here; it knows the whole layout, and is asked for its own part alone.
        home_of: int[S], the node at which each sample lives: the same for all samples of a VC.
        sample_bytes: int[S], what each takes of the remote memory.
        remote_memory_bytes: the limit of this node's remote VCs and stash.
        window: P, the prefetch window in requests; one means no prefetch.
        reads_alone: whether samples that another home does not give can be read here, as on shared storage.
    """

    message_kind = RemoteRead
    home_of: Numbers
    needs_order = True
    # The home counts a sample's turn.
    counts_own_turns = False

    def __init__(
        self,
        node: int,
        policy: SlotPolicy,
        home_of: Numbers,
        sample_bytes: Numbers,
        *,
        remote_memory_bytes: int,
        window: int,
        reads_alone: bool = True,
    ) -> None:
        self.outbox: list[Message] = []
        # Always empty: no other node takes a sample out of a slot or revokes a reservation.
        self.unloaded: list[int] = []
        self.revoked: list[int] = []
        self.chosen: list[int] = []
        self._node = node
        self._policy = policy
        # What decides about own samples: the policy, or one that is repeated.
        self._slots: Slots = policy
        self._home_of: memoryview[int] = home_of.data
        self.home_of = home_of
        self._nodes = int(home_of.max(initial=-1)) + 1
        self._home = Home(node, policy, home_of, sample_bytes, window=window, chosen=self.chosen)
        self._ledger = Ledger(policy.columns, policy.column_count, policy.members)
        self._requester = Requester(
            node,
            policy.columns,
            home_of,
            sample_bytes,
            remote_memory_bytes=remote_memory_bytes,
            reads_alone=reads_alone,
            send=lambda message: self.outbox.append(message),
            note=self._ledger.note,
        )

    def follow(self, requester: int, epoch: int, order: Numbers) -> None:
        """The trace of ``requester``, this node or another, for ``epoch``."""
        if requester == self._node:
            self._requester.follow(epoch, order)
        else:
            self._home.follow(requester, epoch, order)

    def request(self, sample: int) -> Served | Pending:
        """Alg. 1, ReadFile: a turn for a sample that may stand in for ``sample``."""
        self.chosen.clear()
        if self._home_of[sample] == self._node:
            turn = self._slots.request(sample)
            self.chosen.append(turn.sample)
            return self._note(turn)
        return self._requester.request(sample)

    def reserve(self, sample: int) -> int | Pending | None:
        """Reserve a sample that may stand in for ``sample``. A sample of another home is claimed there at once."""
        self.chosen.clear()
        if self._home_of[sample] == self._node:
            reserved = self._slots.reserve(sample)
            if reserved is not None:
                self.chosen.append(reserved)
            return reserved
        return self._requester.reserve(sample)

    def take(self, reserved: int, path: int = -1) -> Served:
        if self._home_of[reserved] == self._node:
            return self._note(self._slots.take(reserved))
        return self._requester.take(reserved)

    def put_back(self, reserved: int) -> bool:
        """Undo a reservation. A sample of another home stays here for the next request, with its bytes if they fit."""
        if self._home_of[reserved] == self._node:
            return self._slots.put_back(reserved)
        return self._requester.put_back(reserved)

    def reserved(self, sample: int) -> Iterable[int]:
        if self._home_of[sample] == self._node:
            return self._slots.reserved(sample)
        return self._requester.reserved(sample)

    @property
    def choose_victim(self) -> ChooseVictim:
        """Picks the own reserved sample that a turn preempts. Samples of other homes are not preempted."""
        return self._slots.choose_victim

    @choose_victim.setter
    def choose_victim(self, choose: ChooseVictim) -> None:
        self._slots.choose_victim = choose

    def handle(self, message: Message) -> Handled:
        """Another node asks this one: see `Home.handle`."""
        assert isinstance(message, RemoteRead)
        self.chosen.clear()
        return self._home.handle(message)

    def receive(self, answer: Answer) -> tuple[Delivered, ...] | None:
        """An answer came; None where it came before. Samples that `keeps` then denies answered no request and did not
        fit.
        """
        assert isinstance(answer, RemoteAnswer)
        self.chosen.clear()
        return self._requester.receive(answer)

    def lost(self, peer: int) -> tuple[Delivered, ...]:
        """``peer`` does not answer. Where samples can be read here, its waiting requests get the very samples they
        asked for.
        """
        return self._requester.lost(peer) if peer < self._nodes else ()

    def found(self, peer: int) -> tuple[Delivered, ...]:
        """``peer`` answers again. Samples that it was asked for come now, as answers to the earlier messages."""
        self._requester.found(peer)
        return ()

    def restarted(self, peer: int) -> tuple[Delivered, ...]:
        """Another process is ``peer`` now. Requests that wait for the peer wait for the answers of that process."""
        self._home.restarted(peer)
        if peer < self._nodes:
            self._requester.restarted(peer)
            self._ledger.begin_anew(self.home_of == peer)
        return ()

    def restore(self, turns: Turns, own: Turns | None = None) -> None:
        self._policy.restore(turns)
        if own is None:
            self._ledger.restore_part(turns, self.home_of == self._node)
        else:
            self._ledger.restore(own)

    @property
    def missed(self) -> int:
        """How many samples were sent ahead to nodes that were restarted before they used them."""
        return self._home.missed

    @property
    def degraded(self) -> int:
        return self._requester.degraded

    def cancel(self, ticket: int) -> None:
        self._requester.cancel(ticket)

    @property
    def units(self) -> Numbers:
        return self._policy.columns

    @property
    def identity(self) -> Numbers:
        """The homes: each column has one."""
        return self.home_of

    def lap_of(self, sample: int) -> int:
        return self._policy.lap_of(sample)

    def laps_of_units(self) -> Int32:
        """1 for those of another home."""
        return self._policy.laps_of_units()

    def chunk_of(self, sample: int) -> int:
        return self._policy.chunk_of(sample)

    def is_taken(self, reserved: int) -> bool:
        return self._home_of[reserved] != self._node

    def keeps(self, sample: int) -> bool:
        return self._requester.keeps(sample)

    def held(self) -> int:
        """How many samples of other homes lie here for later requests, with and without their bytes."""
        return self._requester.held()

    def used_bytes(self) -> int:
        """Remote memory that holds samples or is granted to answers."""
        return self._requester.used_bytes()

    def state(self) -> SharedState:
        values: dict[str, Any] = {"node": self._node, "homes": self._nodes, "given": self._ledger.given}
        reserved: dict[str, Numbers] = {
            "own_reserved": rows(((sample,) for sample in self._slots.reserved_samples()), 1)
        }
        arrays = reserved | arrays_of("own", self._slots.turns()) | arrays_of("here", self._ledger.turns())
        for part in (self._home.state(), self._requester.state()):
            values |= part.values
            arrays |= part.arrays
        return SharedState(values, arrays)

    def resume(self, state: SharedState) -> None:
        """`follow` is no event that is repeated: a state is saved after each."""
        reader = StateReader(state, node=self._node, homes=self._nodes)
        columns, samples = self._policy.column_count, len(self._home_of)
        self._home.resume(reader)
        self._requester.resume(reader)
        self._ledger.restore(reader.turns("here", reader.value("given"), columns, samples))
        reserved = [sample for (sample,) in reader.table("own_reserved", samples)]
        own = reader.turns("own", 0, columns, samples)
        self._slots = self._home.slots = RepeatedSlots(self._policy, own, reserved)

    def expect(self, chosen: Sequence[int]) -> None:
        assert isinstance(self._slots, RepeatedSlots)
        self._slots.expect(chosen)

    def handle_again(self, message: Message, answer: Answer | None, chosen: Sequence[int]) -> Handled:
        self.expect(chosen)
        self.chosen.clear()
        assert isinstance(message, RemoteRead)
        assert isinstance(answer, RemoteAnswer | None)
        again = RemoteAnswer(self._node, message.number, None, (), ()) if answer is None else answer
        handled = self._home.handle(message, again)
        if handled.answer != answer or self.chosen != list(chosen):
            raise ReplayError(f"message {message.number} of node {message.requester} got another answer in the journal")
        return handled

    def settle(self) -> None:
        """All events were repeated: the policy beneath decides from now on, with nothing in memory. Raises
        ValueError.
        """
        own = self._slots.turns()
        reserved = list(self._slots.reserved_samples())
        if own.flags(len(own.laps), len(self._home_of))[reserved].any():
            raise ValueError("a sample is reserved that had its turn")
        self._policy.restore(own)
        for sample in reserved:
            self._policy.reserve_again(sample)
        self._policy.choose_victim = self._slots.choose_victim
        self._slots = self._home.slots = self._policy

    def unanswered(self) -> tuple[Message, ...]:
        """The messages without an answer, those to each home oldest first."""
        return self._requester.unanswered()

    def _note(self, turn: Served) -> Served:
        self._ledger.note(turn.sample, self._slots.lap_of(turn.sample))
        return turn

    @property
    def prefetched(self) -> int:
        """How many samples came into the remote VCs ahead of their request."""
        return self._requester.prefetched

    @property
    def conflicts(self) -> int:
        """How often this home skipped a request of a prefetch window though it had a sample for it in memory, because
        one was sent for its (VC, O) already. A request counts in every window that skips it.
        """
        return self._home.conflicts

    def figures(self) -> dict[str, Any]:
        """Its part of stats.json."""
        return {"prefetched": self.prefetched, "conflicts": self.conflicts, "exchange": 0.0}


def homes_by_vc(columns: Int64, chunk_size: int, nodes: int) -> Int8:
    """int8[S]: the home of each sample where VCs are dealt to the nodes in turn."""
    return (columns // chunk_size % nodes).astype(np.int8)
