"""One node of the local-first protocol: its own pool, the samples it takes from peers, and those it gives them."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from redoxfs.protocol.events import Answer, ChooseVictim, Delivered, Handled, Load, Message, Pending, Served, oldest
from redoxfs.protocol.local_first.exchange import Exchange
from redoxfs.protocol.local_first.messages import Given, Take
from redoxfs.protocol.local_first.parts import NodeParts
from redoxfs.protocol.local_first.peer import Peer, Sent
from redoxfs.protocol.local_first.reservations import Reservations
from redoxfs.protocol.local_first.taken import Taken
from redoxfs.protocol.local_first.waiting import Ticket, Waiting
from redoxfs.protocol.pool import PoolPolicy
from redoxfs.protocol.turns import Ledger, Turns, merged

Int8 = npt.NDArray[np.int8]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

BATCH = 16
"""How many samples of a class one Take asks for. A node lacks tens of a class of thousands by the end of its lap;
asking for all of them would take samples that the peer needs soon."""

EMPTY_ROUNDS = 2
"""How many times every peer has to have nothing before an incomplete lap ends without the rest."""


class LocalFirst:
    """One node's part. A `SharedPolicy`.

    The arrays are shared, not copied, and must not change.

    Args:
        node: the number of this node, from 0 to ``nodes`` - 1.
        policy: decides about this node's own samples; made with `parts_by_lap`.
        class_of: int32[S], the class of each sample.
        part_of: int8[S], the part of each sample, 0 to ``nodes`` - 1: `chunks.deal`.
        sample_bytes: int64[S], what each takes of the remote memory.
        rotates: whether parts rotate with the laps, or part i is always node i's.
        remote_memory_bytes: the limit of taken samples and room granted to answers.
        exchange: the share of samples to take from peers, on purpose where need alone takes less.
        seed: of the generator that spreads over time when each class is exchanged first.
    """

    def __init__(
        self,
        node: int,
        policy: PoolPolicy,
        class_of: Int32,
        part_of: Int8,
        sample_bytes: Int64,
        *,
        nodes: int,
        rotates: bool,
        remote_memory_bytes: int,
        exchange: float = 0.0,
        seed: int = 0,
    ) -> None:
        classes = int(class_of.max(initial=-1)) + 1
        self.outbox: list[Message] = []
        self.unloaded: list[int] = []
        self.revoked: list[int] = []
        self.missed = 0
        self.choose_victim: ChooseVictim = oldest
        self._node = node
        self._nodes = nodes
        self._policy = policy
        self._class_array = class_of
        self._class_of: memoryview[int] = class_of.data
        self._bytes_of: memoryview[int] = sample_bytes.data
        self._of_class: memoryview[int] = np.bincount(class_of, minlength=classes).astype(np.int32).data
        self._parts = NodeParts(class_of, part_of, nodes=nodes, rotates=rotates)
        # One sample of each class, to ask the pool for the class.
        any_of = np.full(classes, -1, np.int32)
        any_of[class_of] = np.arange(len(class_of), dtype=np.int32)
        self._any_of: memoryview[int] = any_of.data
        # Own samples of the lap that are neither served nor given away; reserved ones are included.
        self._left: memoryview[int] = self._parts.own_first(node).data
        self._done: memoryview[int] = np.zeros(classes, np.int32).data
        self._lap_array = np.ones(classes, np.int32)
        self._lap: memoryview[int] = self._lap_array.data
        # From the next number on: of peers with equally many left, every node asks another one first.
        in_turn = [(node + ahead) % nodes for ahead in range(1, nodes)]
        self._peers = {peer: Peer(self._parts.own_first(peer)) for peer in in_turn}
        # The peers that are not lost, in the same order.
        self._there = in_turn
        # The last lap of each class that is incomplete.
        self._incomplete_array = np.zeros(classes, np.int32)
        self._incomplete: memoryview[int] = self._incomplete_array.data
        # The last lap of each class in which something came from a peer.
        self._came: memoryview[int] = np.zeros(classes, np.int32).data
        self._taken = Taken(class_of, sample_bytes, remote_memory_bytes)
        self._reservations = Reservations()
        self._waiting = Waiting()
        # By class: the peer and number of its unanswered Take; how many answers of each peer in a row were empty.
        self._asked: dict[int, tuple[int, int]] = {}
        self._empty_answers: dict[int, dict[int, int]] = {}
        # Classes that this node asks for on behalf of peers.
        self._sought: set[int] = set()
        self._exchange = Exchange(classes, share=exchange, seed=seed)
        self._ledger = Ledger(class_of, classes, policy.members)

    def request(self, sample: int) -> Served | Pending:
        """A turn for a sample of ``sample``'s class."""
        cls = self._class_of[sample]
        served = self._serve(cls)
        turn = self._wait(cls, reserves=False) if served is None else served
        if self._exchange.share:
            self._count_exchange(cls)
        return turn

    def reserve(self, sample: int) -> int | Pending | None:
        """Reserve a sample of ``sample``'s class. None where all that the lap has left is reserved here."""
        cls = self._class_of[sample]
        reserved = self._reserve_one(cls)
        if reserved is not None:
            return reserved.sample
        if self._is_rest_reserved(cls) or not self._there:
            return None
        return self._wait(cls, reserves=True)

    def take(self, reserved: int) -> Served:
        """The turn of a sample that was reserved."""
        cls = self._class_of[reserved]
        served = self._take(cls, reserved)
        self._note_done(cls, served)
        if self._exchange.share:
            self._count_exchange(cls)
        return served

    def put_back(self, reserved: int) -> bool:
        """Undo a reservation. A sample from a peer loses its bytes where they do not fit."""
        cls = self._class_of[reserved]
        if self._reservations.remove_own(cls, reserved):
            return self._policy.put_back(reserved)
        was_reserved = self._reservations.remove_taken(cls, reserved)
        assert was_reserved
        return self._taken.put_back(cls, reserved)

    def reserved(self, sample: int) -> Iterable[int]:
        """The reserved samples of ``sample``'s class here: this node's own, then those taken, each oldest first."""
        return self._reservations.of_class(self._class_of[sample])

    def handle(self, message: Message) -> Handled:
        """Give a peer samples of a class: at most its share of what is left here, else a reserved one."""
        assert isinstance(message, Take)
        peer = self._peers[message.requester]
        if message.number < peer.acked_below:
            return Handled(None, repeated=True)
        kept = peer.answers.get(message.number)
        if kept is not None:
            return Handled(kept, repeated=True)
        peer.acknowledge(message.acked_below)
        cls = message.cls
        if message.lap > self._lap[cls]:
            self._begin_lap(cls, message.lap)
        turns: list[Served] = []
        if message.lap == self._lap[cls]:
            peer.done[cls] = max(message.done, peer.done[cls])
            turns = self._give(cls, message.max_samples, message.room_bytes)
            if not turns and message.attempt:
                self._seek(cls)
        samples = tuple([turn.sample for turn in turns])
        given = Given(self._node, message.number, cls, self._lap[cls], samples, self._free(cls), self._done[cls])
        peer.answers[message.number] = given
        loads: list[Load] = []
        for turn in turns:
            loads += turn.loads
        return Handled(given, tuple(loads), tuple([turn.sample for turn in turns if turn.preempted]))

    def receive(self, answer: Answer) -> tuple[Delivered, ...] | None:
        """Take in a peer's answer, and answer the requests that wait for it, in turn."""
        assert isinstance(answer, Given)
        peer = self._peers[answer.home]
        sent = peer.unanswered.pop(answer.number, None)
        if sent is None:
            return None
        cls = answer.cls
        is_asked = self._asked.get(cls) == (answer.home, answer.number)
        self._taken.free_bytes += sent.room_bytes
        if is_asked:
            del self._asked[cls]
        if answer.lap > self._lap[cls]:
            self._begin_lap(cls, answer.lap)
        if answer.samples and answer.lap < self._lap[cls]:
            # No waiting request can be answered from here, or this answers the Take that they waited for.
            self._ask_if_wanted(cls)
            return None
        if answer.lap == self._lap[cls] and answer.number >= peer.first:
            peer.left[cls] = answer.left
            peer.done[cls] = max(answer.done, peer.done[cls])
        if answer.samples:
            self._accept(cls, answer.samples, has_room=is_asked)
            self._empty_answers.pop(cls, None)
            self._sought.discard(cls)
        elif answer.lap == sent.lap == self._lap[cls]:
            empty_answers = self._empty_answers.setdefault(cls, {})
            empty_answers[answer.home] = empty_answers.get(answer.home, 0) + 1
        delivered = self._look_again(cls)
        if cls not in self._waiting and cls not in self._sought:
            self._empty_answers.pop(cls, None)
        return tuple(delivered)

    def cancel(self, ticket: int) -> None:
        """Nobody waits for ``ticket`` any more; a sample that comes for it is kept for the next."""
        self._waiting.cancel(ticket)

    def lost(self, peer: int) -> tuple[Delivered, ...]:
        """``peer`` does not answer: others are asked instead, and its answers have no room any more."""
        if peer not in self._there:
            return ()
        self._there.remove(peer)
        np.maximum(self._incomplete_array, self._lap_array, out=self._incomplete_array)
        self._taken.free_bytes += self._peers[peer].end_rooms()
        for cls in [cls for cls, (home, _) in self._asked.items() if home == peer]:
            del self._asked[cls]
        return self._look_at_all()

    def found(self, peer: int) -> tuple[Delivered, ...]:
        """``peer`` answers again. Call this before its next message is handed in."""
        if peer not in self._there:
            self._there = [number for number in self._peers if number == peer or number in self._there]
        return self._look_at_all()

    def restarted(self, peer: int) -> tuple[Delivered, ...]:
        """Another process is ``peer`` now. Call this before anything from it is handed in. From then on, hand in
        nothing of the process before it, except answers to messages sent before.
        """
        self._peers[peer].restarted(self.begun() == self._lap_array)
        np.maximum(self._incomplete_array, self._lap_array, out=self._incomplete_array)
        for empty_answers in self._empty_answers.values():
            empty_answers.pop(peer, None)
        return self.found(peer)

    def begun(self) -> Int32:
        """int32[C]: how many laps of each class have begun, as far as this node knows: a sample was given in them."""
        own = np.array([self._parts.own_in(self._node, cls, lap) for cls, lap in enumerate(self._lap)], np.int32)
        is_begun = (np.asarray(self._left) != own) | (np.asarray(self._came) == self._lap_array)
        for done in (self._done, *(news for peer in self._peers.values() for news in (peer.done, peer.before))):
            is_begun |= np.asarray(done) > 0
        begun: Int32 = np.where(is_begun, self._lap_array, self._lap_array - 1)
        return begun

    def rejoin(self, begun: Int32) -> None:
        """Replace a process of which others may have had samples. Call it before anything else.

        Args:
            begun: the maximum of the peers' `begun`.
        """
        for cls in np.flatnonzero(begun > 0).tolist():
            lap = int(begun[cls])
            self._policy.skip(cls, lap + 1)
            self._enter_lap(cls, lap)
            self._left[cls] = 0
            self._incomplete[cls] = self._came[cls] = lap

    @property
    def given(self) -> int:
        """How many turns this node gave its readers since the first lap began."""
        return self._ledger.given

    def turns(self) -> Turns:
        """The turns that this node gave its readers. A copy."""
        return self._ledger.turns()

    def merged(self, of_nodes: Sequence[Turns]) -> Turns:
        """The turns of several nodes together. Raises ValueError where one has other samples."""
        return merged(of_nodes, self._class_array)

    def restore(self, turns: Turns, own: Turns | None = None) -> None:
        """Resume where all nodes together were. Call it before anything else, and at all of them alike. Raises
        ValueError.

        A sample counts as done by the node that owns it in the lap, whichever node did it.
        """
        had = turns.flags(len(self._lap_array), len(self._class_array))
        here = self._parts.own_at(self._node, turns.laps)
        # The pool beneath is in the first lap from there on that has any of its samples.
        laps = self._parts.first_with_own(self._node, turns.laps)
        self._policy.restore(Turns(laps, np.packbits(had & here), 0))
        self._lap_array[:] = turns.laps
        self._count_own(self._left, self._done, here, had)
        for node, peer in self._peers.items():
            self._count_own(peer.left, peer.done, self._parts.own_at(node, turns.laps), had)
        if self._incomplete_array.any():
            # A peer was lost or restarted before this.
            self._incomplete_array[:] = turns.laps
        if own is None:
            self._ledger.restore_part(turns, here)
        else:
            self._ledger.restore(own)

    def _count_own(self, left: "memoryview[int]", done: "memoryview[int]", own: Flags, had: Flags) -> None:
        np.asarray(left)[:] = np.bincount(self._class_array[own & ~had], minlength=len(left))
        np.asarray(done)[:] = np.bincount(self._class_array[own & had], minlength=len(done))

    def laps(self, samples: npt.NDArray[np.integer]) -> Int32:
        """The lap, counted from 1, that the class of each of ``samples`` is in."""
        laps: Int32 = self._lap_array[self._class_array[samples]]
        return laps

    def chunk_of(self, sample: int) -> int:
        """The physical chunk that ``sample`` lies in."""
        return self._policy.chunk_of(sample)

    def used_bytes(self) -> int:
        """Remote memory that holds samples or is granted to answers."""
        return self._taken.used_bytes

    def held(self) -> int:
        """How many samples were taken and are neither served nor reserved, with and without their bytes."""
        return len(self._taken)

    def keeps(self, sample: int) -> bool:
        """Whether the bytes of ``sample`` count in the remote memory."""
        return self._taken.keeps(self._class_of[sample], sample)

    def is_taken(self, reserved: int) -> bool:
        """Whether ``reserved`` came from another node."""
        return self._reservations.is_taken(self._class_of[reserved], reserved)

    # Turns

    def _serve(self, cls: int) -> Served | None:
        """A turn from the samples that are here; begins the class's next lap where this one is over."""
        served = self._next(cls)
        if served is None and cls in self._reservations and not self._is_any_free(cls):
            served = self._preempt(cls)
        if served is not None:
            self._note_done(cls, served)
        return served

    def _note_done(self, cls: int, served: Served) -> None:
        self._done[cls] += 1
        self._ledger.note(served.sample, self._lap[cls])

    def _next(self, cls: int) -> Served | None:
        """Remove an unreserved sample that is here, those taken from others first; the next lap may begin."""
        if not self._free(cls) and cls not in self._reservations:
            self._begin_next_lap(cls)
        if cls in self._taken:
            return self._next_taken(cls)
        return self._next_own(cls) if self._free(cls) else None

    def _next_taken(self, cls: int) -> Served:
        sample = self._taken.pop(cls)
        return Served(sample, remote=True)

    def _next_own(self, cls: int) -> Served:
        self._left[cls] -= 1
        return self._policy.request(self._any_of[cls])

    def _reserve_one(self, cls: int) -> Served | None:
        """Reserve an unreserved sample that is here; the next lap may begin."""
        if not self._free(cls) and cls not in self._reservations:
            self._begin_next_lap(cls)
        if cls in self._taken:
            served = self._next_taken(cls)
            self._reservations.add(cls, served.sample, is_taken=True)
            return served
        if not self._free(cls):
            return None
        sample = self._policy.reserve(self._any_of[cls])
        assert sample is not None
        self._reservations.add(cls, sample, is_taken=False)
        return Served(sample)

    def _take(self, cls: int, reserved: int, *, preempted: bool = False) -> Served:
        """Remove a reserved sample."""
        if self._reservations.remove_own(cls, reserved):
            self._left[cls] -= 1
            own = self._policy.take(reserved)
            return Served(reserved, own.loads, preempted)
        was_reserved = self._reservations.remove_taken(cls, reserved)
        assert was_reserved
        return Served(reserved, (), preempted, remote=True)

    def _preempt(self, cls: int) -> Served:
        """Remove the reserved sample that `choose_victim` picks."""
        return self._take(cls, self.choose_victim(self._reservations.of_class(cls)), preempted=True)

    def _free(self, cls: int) -> int:
        """How many samples of the lap are here and not reserved."""
        return self._left[cls] - self._reservations.count_own(cls) + self._taken.count(cls)

    def _is_any_free(self, cls: int) -> bool:
        """Whether a peer is known to have samples that are not reserved."""
        return any(self._peers[number].left[cls] for number in self._there)

    def _give(self, cls: int, max_samples: int, room_bytes: int) -> list[Served]:
        """Samples for a peer, this node's own first: the others have crossed the network once already."""
        free = self._free(cls)
        if not free:
            return [self._preempt(cls)] if cls in self._reservations else []
        turns: list[Served] = []
        # The next sample is not known beforehand: it has to fit even if it is the largest.
        largest = self._taken.largest(cls)
        while len(turns) < min(max_samples, -(-free // self._nodes)) and (not turns or largest <= room_bytes):
            is_own = self._left[cls] > self._reservations.count_own(cls)
            turns.append(self._next_own(cls) if is_own else self._next_taken(cls))
            if len(turns) > 1:
                room_bytes -= self._bytes_of[turns[-1].sample]
        return turns

    # Laps

    def _known_done(self, cls: int) -> int:
        return self._done[cls] + sum([peer.done[cls] + peer.before[cls] for peer in self._peers.values()])

    def _is_over(self, cls: int) -> bool:
        """Whether all of the lap is done. After a restart samples may be done twice, and so more than there are."""
        return self._known_done(cls) >= self._of_class[cls]

    def _is_rest_reserved(self, cls: int) -> bool:
        """Whether all of the lap's samples that are not done are reserved here."""
        return self._known_done(cls) + self._reservations.count(cls) >= self._of_class[cls]

    def _begin_next_lap(self, cls: int) -> None:
        """With nothing of the class's lap here, begin the next if this one is over, or if no peer has anything left."""
        if self._is_over(cls):
            self._begin_lap(cls, self._lap[cls] + 1)
            if self._left[cls]:
                return
        if not self._is_incomplete(cls) or self._empty_rounds(cls) < EMPTY_ROUNDS:
            return
        lap = self._next_lap_with_samples(cls)
        if lap is not None:
            passed_over = lap - self._lap[cls] - 1
            self.missed += max(0, self._of_class[cls] - self._known_done(cls)) + passed_over * self._of_class[cls]
            self._begin_lap(cls, lap)

    def _is_incomplete(self, cls: int) -> bool:
        return self._lap[cls] <= self._incomplete[cls]

    def _next_lap_with_samples(self, cls: int) -> int | None:
        """The next lap in which this node, or a peer that is not lost, has samples of the class."""
        return self._parts.next_of_any([self._node, *self._there], cls, self._lap[cls])

    def _begin_lap(self, cls: int, lap: int) -> None:
        """Begin ``lap``. Samples left of laps before are missed: this node did not know that those laps were over."""
        if self._left[cls] or cls in self._taken or cls in self._reservations or lap > self._lap[cls] + 1:
            self._let_go(cls, lap)
        self._enter_lap(cls, lap)

    def _enter_lap(self, cls: int, lap: int) -> None:
        self._lap[cls] = lap
        self._empty_answers.pop(cls, None)
        self._sought.discard(cls)
        self._left[cls] = self._parts.own_in(self._node, cls, lap)
        self._done[cls] = 0
        for number, peer in self._peers.items():
            peer.left[cls] = self._parts.own_in(number, cls, lap)
            peer.done[cls] = peer.before[cls] = 0
        if len(self._there) < len(self._peers):
            self._incomplete[cls] = lap

    def _let_go(self, cls: int, lap: int) -> None:
        """Samples that are here for laps before ``lap`` have no turn any more."""
        reserved, taken_reserved = self._reservations.let_go(cls)
        kept, evicted = self._taken.let_go(cls)
        self.revoked += reserved
        self.missed += self._left[cls] + len(kept) + len(evicted) + taken_reserved
        self.missed += self._parts.own_between(self._node, cls, self._lap[cls] + 1, lap)
        self.unloaded += kept
        # The bytes of a resident went when there was no room for them, as it can be read here.
        self.unloaded += [sample for sample in evicted if not self._policy.is_resident(sample)]
        self.unloaded += self._policy.skip(cls, lap)

    # Peers

    def _wait(self, cls: int, *, reserves: bool) -> Pending:
        ticket = self._waiting.add(cls, reserves=reserves)
        if cls not in self._asked:
            self._ask(cls)
        return Pending(ticket)

    def _deliver(self, cls: int) -> list[Delivered]:
        """Answer waiting requests in turn, as far as there are samples for them."""
        delivered: list[Delivered] = []
        unanswered: list[Ticket] = []
        for ticket in self._waiting.pop(cls):
            served = self._promise(cls) if ticket.reserves else self._serve(cls)
            if served is None:
                unanswered.append(ticket)
            else:
                delivered.append(Delivered(ticket.number, served))
        self._waiting.put_back(cls, unanswered)
        return delivered

    def _promise(self, cls: int) -> Served | None:
        """Reserve a sample for a waiting stat. After an empty round of peers it preempts another reservation."""
        served = self._reserve_one(cls)
        if served is not None or cls not in self._reservations:
            return served
        if not self._empty_rounds(cls) and not self._is_rest_reserved(cls):
            return None
        sample = self.choose_victim(self._reservations.of_class(cls))
        is_taken = self._reservations.remove_taken(cls, sample) or not self._reservations.remove_own(cls, sample)
        self._reservations.add(cls, sample, is_taken=is_taken)
        return Served(sample, (), preempted=True, remote=is_taken)

    def _look_at_all(self) -> tuple[Delivered, ...]:
        """Look again after a peer was lost or found: a waiting request may be answered now, or needs another peer."""
        delivered: list[Delivered] = []
        for cls in [*self._waiting, *self._sought.difference(self._waiting)]:
            delivered += self._look_again(cls)
        return tuple(delivered)

    def _look_again(self, cls: int) -> list[Delivered]:
        """Answer waiting requests as far as possible, and ask peers for the others."""
        if cls in self._sought:
            if not self._free(cls) and cls not in self._reservations:
                self._begin_next_lap(cls)
            if self._empty_rounds(cls) >= EMPTY_ROUNDS:
                # The peers that had samples of a next lap may be lost by now.
                self._sought.discard(cls)
        delivered = self._deliver(cls)
        self._ask_if_wanted(cls)
        return delivered

    def _seek(self, cls: int) -> None:
        """A peer needs a sample, and none is here. Unless another peer has one, this node may have to end the lap."""
        if not self._is_incomplete(cls) or self._next_lap_with_samples(cls) is None:
            return
        if not self._there:
            self._begin_next_lap(cls)
            return
        self._sought.add(cls)
        self._ask_if_wanted(cls)

    def _ask_if_wanted(self, cls: int) -> None:
        if (cls in self._waiting or cls in self._sought) and cls not in self._asked:
            self._ask(cls)

    def _empty_rounds(self, cls: int) -> int:
        """How many times every peer that is not lost was asked and had nothing."""
        empty_answers = self._empty_answers.get(cls, {})
        return min([empty_answers.get(peer, 0) for peer in self._there], default=EMPTY_ROUNDS)

    def _accept(self, cls: int, samples: tuple[int, ...], *, has_room: bool) -> None:
        """Samples of the class's lap came. The first is for a waiting request: it has no room of its own.

        If the room for them was given up, those that do not fit stay here without their bytes.
        """
        self._came[cls] = self._lap[cls]
        here = self._taken.of_class(cls)
        # A restarted process may give samples that the process before it gave already.
        new = [sample for sample in samples if sample not in here]
        self.revoked += [sample for sample in new if self._reservations.remove_taken(cls, sample)]
        self._taken.put_first(cls, new, has_room=has_room)
        self._exchange.count_taken(cls, len(new))

    def _ask(self, cls: int) -> None:
        """Ask the peer with the most left on behalf of waiting requests. Where none is known to have any, ask peers in
        turn.
        """
        if not self._there:
            return
        waiting = self._waiting.count(cls)
        max_samples = max(BATCH, waiting) if waiting else 1
        home = self._richest(cls)
        if not self._peers[home].left[cls]:
            empty_answers = self._empty_answers.get(cls, {})
            home = min(self._there, key=lambda number: empty_answers.get(number, 0))
        room_bytes = self._taken.room_for(cls, max_samples - 1)
        self._send(home, cls, max_samples, room_bytes, room_bytes, self._empty_rounds(cls))

    def _count_exchange(self, cls: int) -> None:
        """Count a turn, and take what the account allows, for later turns. Their first sample needs room as well."""
        wanted = self._exchange.count_turn(cls)
        largest = self._taken.largest(cls)
        if wanted < 1 or cls in self._asked or self._taken.free_bytes < largest or not self._there:
            return
        home = self._richest(cls)
        if not self._peers[home].left[cls]:
            return
        max_samples = min(BATCH, wanted)
        room_bytes = min(self._taken.room_for(cls, max_samples - 1), self._taken.free_bytes - largest)
        self._send(home, cls, max_samples, room_bytes, room_bytes + largest, 0)

    def _richest(self, cls: int) -> int:
        return max(self._there, key=lambda number: self._peers[number].left[cls])

    def _send(self, home: int, cls: int, max_samples: int, room_bytes: int, granted_bytes: int, attempt: int) -> None:
        peer = self._peers[home]
        number = peer.number
        peer.number += 1
        peer.unanswered[number] = Sent(granted_bytes, self._lap[cls])
        self._taken.free_bytes -= granted_bytes
        self._asked[cls] = home, number
        acked_below = next(iter(peer.unanswered))
        lap, done = self._lap[cls], self._done[cls]
        self.outbox.append(
            Take(self._node, home, number, acked_below, cls, lap, max_samples, room_bytes, attempt, done)
        )
