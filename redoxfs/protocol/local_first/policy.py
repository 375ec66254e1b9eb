"""One node of the local-first protocol: its own pool, the samples it takes from peers, and those it gives them."""

from collections.abc import Iterable, Sequence

import numpy as np

from redoxfs.protocol.events import Answer, Delivered, Handled, Load, Message, Pending, Served
from redoxfs.protocol.local_first.laps import EMPTY_ROUNDS
from redoxfs.protocol.local_first.messages import Given, Take
from redoxfs.protocol.local_first.passing import MOST_BEHIND, Passing, differ, goes_by_laps
from redoxfs.protocol.local_first.peer import Peer, Sent
from redoxfs.protocol.local_first.waiting import Ticket
from redoxfs.protocol.replay import ReplayError
from redoxfs.protocol.serving import SharedServingPolicy

BATCH = 16
"""How many samples of a class one Take asks for. A node lacks tens of a class of thousands by the end of its lap;
asking for all of them would take samples that the peer needs soon."""


class LocalFirst(Passing, SharedServingPolicy):
    """One node's part. For its arguments see `NodeState`."""

    message_kind = Take
    missed = 0
    degraded = 0

    def request(self, sample: int) -> Served | Pending:
        cls = self._class_of[sample]
        self._open(sample)
        self.chosen.clear()
        served = self._serve(cls)
        if served is None and self._is_alone(cls):
            # No turn of the lap, which stands still. So epochs leave it behind.
            self._look_at_lap(cls, goes_on=True)
            return self._read_alone(sample)
        turn = self._wait(sample, reserves=False) if served is None else served
        if self._exchange.share:
            self._count_exchange(cls)
        return turn

    def reserve(self, sample: int) -> int | Pending | None:
        """Reserve a sample of ``sample``'s class. None where all that the lap has left is reserved here."""
        self.chosen.clear()
        cls = self._class_of[sample]
        self._enter_due(cls)
        if cls in self._dry:
            self._dry.discard(cls)
            return None
        reserved = self._reserve_one(cls)
        if reserved is not None:
            return reserved.sample
        if self._is_rest_reserved(cls) or not self._do_stats_wait(cls):
            return None
        return self._wait(sample, reserves=True)

    def take(self, reserved: int, path: int = -1) -> Served:
        cls = self._class_of[reserved]
        self._open(reserved if path < 0 else path)
        self._look_at_lap(cls, goes_on=True)
        served = self._take(cls, reserved)
        self._note_done(cls, served)
        if self._exchange.share:
            self._count_exchange(cls)
        return served

    def put_back(self, reserved: int) -> bool:
        """Undo a reservation. A sample from a peer loses its bytes where they do not fit."""
        cls = self._class_of[reserved]
        if self._reservations.remove_own(cls, reserved):
            return self._pool.put_back(reserved)
        was_reserved = self._reservations.remove_taken(cls, reserved)
        assert was_reserved
        # It may be given again by its home once this node's pass is found to have begun later.
        self._taken_at[reserved] = self._tree_of_class[cls].since + 1
        return self._taken.put_back(cls, reserved)

    def reserved(self, sample: int) -> Iterable[int]:
        """The reserved samples of ``sample``'s class here: this node's own, then those taken, each oldest first."""
        return self._reservations.of_class(self._class_of[sample])

    def handle(self, message: Message) -> Handled:
        """Give a peer samples of a class: at most its share of what is left here, else a reserved one."""
        assert isinstance(message, Take)
        self.chosen.clear()
        peer = self._peers[message.requester]
        if message.number < peer.acked_below:
            return Handled(None, repeated=True)
        kept = peer.answers.get(message.number)
        if kept is not None:
            return Handled(kept, repeated=True)
        peer.acknowledge(message.acked_below)
        turns = self._answer(message, peer)
        given = self._news(message, tuple([turn.sample for turn in turns]))
        peer.answers[message.number] = given
        loads: list[Load] = []
        for turn in turns:
            loads += turn.loads
        preempted = tuple([turn.sample for turn in turns if turn.preempted])
        remote = tuple([turn.sample for turn in turns if turn.remote])
        # The turn after it may have loaded one for its next lap.
        stay = tuple([turn.sample for turn in turns if not turn.remote and self._pool.is_resident(turn.sample)])
        return Handled(given, tuple(loads), preempted, kept=stay, remote=remote)

    def handle_again(self, message: Message, answer: Answer | None, chosen: Sequence[int]) -> Handled:
        self.expect(chosen)
        handled = self.handle(message)
        if handled.answer != answer or self.chosen != list(chosen):
            raise ReplayError(f"message {message.number} of node {message.requester} got another answer in the journal")
        return handled

    def receive(self, answer: Answer) -> tuple[Delivered, ...] | None:
        """Take in a peer's answer, and answer the requests that wait for it, in turn."""
        assert isinstance(answer, Given)
        self.chosen.clear()
        peer = self._peers[answer.home]
        sent = peer.unanswered.pop(answer.number, None)
        if sent is None:
            return None
        cls = answer.cls
        is_asked = self._asked.get(cls) == (answer.home, answer.number)
        self._taken.free_bytes += sent.room_bytes
        if is_asked:
            del self._asked[cls]
        if not self._take_news(answer, sent.message, peer):
            # No waiting request can be answered from here, or this answers the Take that they waited for.
            self._ask_if_wanted(cls)
            return None
        if answer.samples:
            self._accept(cls, answer.samples, has_room=is_asked)
            self._empty_answers.pop(cls, None)
            self._sought.discard(cls)
        elif self._is_of_now(answer, sent.message):
            empty_answers = self._empty_answers.setdefault(cls, {})
            empty_answers[answer.home] = empty_answers.get(answer.home, 0) + 1
        delivered = self._look_again(cls)
        if cls not in self._waiting and cls not in self._sought:
            self._empty_answers.pop(cls, None)
        return tuple(delivered)

    def cancel(self, ticket: int) -> None:
        self._waiting.cancel(ticket)

    def lost(self, peer: int) -> tuple[Delivered, ...]:
        """``peer`` does not answer: others are asked instead, and its answers have no room any more."""
        if peer not in self._there:
            return ()
        self._passes.forget(peer)
        self.chosen.clear()
        self._there.remove(peer)
        np.maximum(self._incomplete_array, self._lap_array, out=self._incomplete_array)
        self._taken.free_bytes += self._peers[peer].end_rooms()
        for cls in [cls for cls, (home, _) in self._asked.items() if home == peer]:
            del self._asked[cls]
        return self._look_at_all()

    def found(self, peer: int) -> tuple[Delivered, ...]:
        """``peer`` answers again. Call this before its next message is handed in."""
        self.chosen.clear()
        if peer not in self._there:
            self._there = [number for number in self._peers if number == peer or number in self._there]
        return self._look_at_all()

    def restarted(self, peer: int) -> tuple[Delivered, ...]:
        """Another process is ``peer`` now. Call this before anything from it is handed in. From then on, hand in
        nothing of the process before it, except answers to messages sent before.
        """
        self._passes.forget(peer)
        self._peers[peer].restarted(self._laps_begun() == self._lap_array)
        np.maximum(self._incomplete_array, self._lap_array, out=self._incomplete_array)
        for empty_answers in self._empty_answers.values():
            empty_answers.pop(peer, None)
        return self.found(peer)

    # Turns

    def _serve(self, cls: int) -> Served | None:
        """A turn from the samples that are here; begins the class's next lap where this one is over."""
        served = self._next(cls)
        if served is None and cls in self._reservations and not self._is_any_free(cls) and not self._is_alone(cls):
            served = self._preempt(cls)
        if served is None and self._holds(cls) and self._is_dry(cls) and self._longest_ago(cls) is None:
            served = self._give_anyway(cls)
        if served is not None:
            self._note_done(cls, served)
        return served

    def _note_done(self, cls: int, served: Served) -> None:
        self._done[cls] += 1
        if self._passes.entered[cls] == self._tree_of_class[cls].turn:
            # The open that a lap begins with is in it.
            self._passes.entered[cls] -= 1
        self._ledger.note(served.sample, self._lap[cls])

    def _next(self, cls: int) -> Served | None:
        """Remove an unreserved sample that is here, those taken from others first; the next lap may begin."""
        if not self._free(cls) and cls not in self._reservations:
            self._begin_next_lap(cls)
        self._look_at_lap(cls)
        if cls in self._taken:
            return self._next_taken(cls)
        return self._next_own(cls) if self._free(cls) else None

    def _next_taken(self, cls: int) -> Served:
        sample = self._taken.pop(cls)
        self._tree_of_class[cls].use(self._taken_at.pop(sample))
        return Served(sample, remote=True)

    def _next_own(self, cls: int) -> Served:
        self._left[cls] -= 1
        served = self._pool.request(self._any_of[cls])
        assert self._class_of[served.sample] == cls
        self.chosen.append(served.sample)
        self._leaves(served.sample)
        return served

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
        sample = self._pool.reserve(self._any_of[cls])
        assert sample is not None
        self.chosen.append(sample)
        self._reservations.add(cls, sample, is_taken=False)
        return Served(sample)

    def _take(self, cls: int, reserved: int, *, preempted: bool = False) -> Served:
        """Remove a reserved sample."""
        if self._reservations.remove_own(cls, reserved):
            self._left[cls] -= 1
            own = self._pool.take(reserved)
            self._leaves(reserved)
            return Served(reserved, own.loads, preempted, kept=own.kept)
        was_reserved = self._reservations.remove_taken(cls, reserved)
        assert was_reserved
        return Served(reserved, (), preempted, remote=True)

    def _preempt(self, cls: int) -> Served:
        """Remove the reserved sample that `choose_victim` picks."""
        return self._take(cls, self.choose_victim(self._reservations.of_class(cls)), preempted=True)

    def _give(self, cls: int, max_samples: int, room_bytes: int) -> list[Served]:
        """Samples for a peer, this node's own first: the others have crossed the network once already."""
        self._look_at_lap(cls)
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

    def _answer(self, message: Take, peer: Peer) -> list[Served]:
        """What ``peer`` gets. It brings news of the lap, too."""
        self._for = message.requester, message.turn
        turns = self._turns_for(message, peer)
        self._for = None
        return turns

    def _turns_for(self, message: Take, peer: Peer) -> list[Served]:
        cls = message.cls
        tree = self._tree_of_class[cls]
        self._hear(tree, message, message.requester)
        by_laps = goes_by_laps(tree, message)
        if not by_laps:
            is_of = message.epoch - 1
            if is_of > tree.epoch or tree.epoch - MOST_BEHIND <= is_of < tree.epoch:
                turns = self._give_ahead(cls, is_of) if is_of > tree.epoch else self._give_late(cls, is_of)
                return turns or (self._given_anyway(cls, in_epoch=False) if message.anyway else [])
            self._enter_due(cls)
        if message.lap > self._lap[cls]:
            self._begin_lap(cls, message.lap)
        if message.lap == self._lap[cls]:
            peer.done[cls] = max(message.done, peer.done[cls])
        elif by_laps:
            return []
        turns = self._give(cls, message.max_samples, message.room_bytes)
        if not turns and by_laps and message.attempt:
            self._seek(cls)
        if not turns and not by_laps and message.anyway:
            turns = self._given_anyway(cls)
        return turns

    def _news(self, message: Take, samples: tuple[int, ...]) -> Given:
        """The answer to a message."""
        cls, number = message.cls, message.number
        tree, left = self._tree_of_class[cls], self._free(cls)
        again = oldest = 0
        if tree.holds:
            again = 0 if self._due[cls] else self._own_again(cls)
            if not samples:
                is_of_other = differ(message.epoch, tree.epoch + 1)
                left = (0 if is_of_other else left) + self._is_any_under_way(cls, message.epoch)
                oldest = self._oldest(cls)[1]
                if is_of_other and not oldest:
                    # Nothing left in the present epoch: all of the class may be given again in another one.
                    oldest = int(self._own_of[cls] > 0)
        lap, done, epoch = self._lap[cls], self._done[cls], tree.epoch + 1
        return Given(self._node, number, cls, lap, samples, left, done, epoch, again, oldest, tree.told, tree.holds)

    def _take_news(self, answer: Given, message: Take, peer: Peer) -> bool:
        """Take in what a peer says of its lap and passes. False where its samples are of no use."""
        cls = answer.cls
        tree = self._tree_of_class[cls]
        if message.epoch and message.epoch != tree.epoch + 1:
            # It was asked for in an epoch that is over.
            if answer.samples:
                self._late.setdefault((cls, message.epoch - 1), []).extend(answer.samples)
            return False
        self._came_at = message.turn
        is_of_process = answer.number >= peer.first
        if is_of_process:
            self._hear(tree, answer, answer.home)
        by_laps = goes_by_laps(tree, answer)
        if not by_laps:
            self._enter_due(cls)
            if not is_of_process:
                return True
            peer.oldest[cls] = answer.oldest
            if answer.epoch != tree.epoch + 1:
                # In another epoch: all that it may have for this one is what is under way to it.
                peer.again[cls] = 0
                if not answer.samples:
                    peer.left[cls] = answer.left if answer.holds else 0
                return True
        if answer.lap > self._lap[cls]:
            self._begin_lap(cls, answer.lap)
        if by_laps and answer.samples and answer.lap < self._lap[cls]:
            return False
        if answer.lap == self._lap[cls] and is_of_process:
            peer.left[cls] = answer.left
            peer.done[cls] = max(answer.done, peer.done[cls])
            if not by_laps:
                peer.again[cls] = answer.again
        return True

    def _is_of_now(self, answer: Given, message: Take) -> bool:
        """Whether an empty answer says that the peer has nothing in the present lap."""
        # In other epochs laps have other numbers.
        is_of_other = self._holds(answer.cls) and answer.epoch != message.epoch
        return message.lap == self._lap[answer.cls] and (is_of_other or answer.lap == message.lap)

    # Classes whose nodes are all lost

    def classes_alone(self) -> int:
        lost = self._peers.keys() - self._there
        return self._parts.count_only_of(lost) if self._reads_alone and lost else 0

    def _is_alone(self, cls: int) -> bool:
        """Whether this node reads what it is asked for: it can, and all nodes with samples of the class are lost."""
        return self._reads_alone and not self._has_any_own(cls)

    def _read_alone(self, sample: int) -> Served:
        """The very sample that was asked for. Its home does not know of this turn, and no lap counts it."""
        self.degraded += 1
        return Served(sample, remote=True)

    def _do_stats_wait(self, cls: int) -> bool:
        """Whether a peer may give a stat something to reserve."""
        return bool(self._there) and not self._is_alone(cls)

    # Peers

    def _wait(self, sample: int, *, reserves: bool) -> Pending:
        cls = self._class_of[sample]
        ticket = self._waiting.add(cls, sample, reserves=reserves)
        if cls not in self._asked:
            self._ask(cls)
        return Pending(ticket)

    def _deliver(self, cls: int) -> list[Delivered]:
        """Answer waiting requests in turn, then stats, as far as there are samples for them.

        None of these preempts what another reserved here: the caller knows nothing of that reservation yet.

        Where no peer can answer, no stat waits on. Its caller repeats it, and gets what a stat gets that comes now.
        """
        delivered: dict[Ticket, Served | None] = {}
        promised: set[int] = set()
        waiting = self._waiting.pop(cls)
        for ticket in sorted(waiting, key=lambda ticket: ticket.reserves):
            served = self._promise(cls, promised) if ticket.reserves else self._serve(cls)
            if served is None and not ticket.reserves and self._is_alone(cls):
                served = self._read_alone(ticket.sample)
            if served is not None or (ticket.reserves and not self._do_stats_wait(cls)):
                delivered[ticket] = served
            if served is not None and ticket.reserves:
                promised.add(served.sample)
        left = [ticket for ticket in waiting if ticket not in delivered]
        if cls in self._dry and left:
            # No stat waits for what an open would be given anyway.
            delivered.update(dict.fromkeys([ticket for ticket in left if ticket.reserves]))
            left = [ticket for ticket in left if not ticket.reserves]
        self._waiting.put_back(cls, left)
        return [Delivered(ticket.number, served) for ticket, served in delivered.items()]

    def _promise(self, cls: int, promised: set[int]) -> Served | None:
        """Reserve a sample for a waiting stat. After an empty round of peers it preempts another reservation, but none
        of ``promised``.
        """
        served = self._reserve_one(cls)
        if served is not None:
            return served
        victims: list[int] = []
        if self._do_stats_wait(cls) and (self._empty_rounds(cls) or self._is_rest_reserved(cls)):
            victims = [sample for sample in self._reservations.of_class(cls) if sample not in promised]
        if not victims:
            if self._holds(cls) and self._is_dry(cls):
                self._dry.add(cls)
            # Else a peer is asked again, if there is one.
            return None
        sample = self.choose_victim(victims)
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
        if not self._is_incomplete(cls) or not self._has_any_own(cls):
            return
        if not self._there:
            self._begin_next_lap(cls)
            return
        self._sought.add(cls)
        self._ask_if_wanted(cls)

    def _ask_if_wanted(self, cls: int) -> None:
        if (cls in self._waiting or cls in self._sought) and cls not in self._asked:
            self._ask(cls)

    def _accept(self, cls: int, samples: tuple[int, ...], *, has_room: bool) -> None:
        """Samples of the class's lap came. The first is for a waiting request: it has no room of its own.

        If the room for them was given up, those that do not fit stay here without their bytes.
        """
        is_own = self._passes.is_own.data
        own = [sample for sample in samples if is_own[sample]]
        if own:
            # One of this node's own may come back after its next lap began here.
            is_left = dict(zip(own, self._pool.are_left(cls, np.array(own)).tolist(), strict=True))
            reserved = self._reservations.own_of(cls)
            samples = tuple([each for each in samples if not is_left.get(each) and each not in reserved])
        if not samples:
            return
        self._came[cls] = self._lap[cls]
        here = self._taken.of_class(cls)
        # A restarted process may give samples that the process before it gave already.
        new = [sample for sample in samples if sample not in here]
        self.revoked += [sample for sample in new if self._reservations.remove_taken(cls, sample)]
        self._taken.put_first(cls, new, has_room=has_room)
        self._exchange.count_taken(cls, len(new))
        self._taken_at.update(dict.fromkeys(samples, self._came_at))

    def _ask(self, cls: int) -> None:
        """Ask the peer with the most left on behalf of waiting requests; one that had nothing to give only once all the
        others had nothing, either.
        """
        if not self._there:
            return
        waiting = self._waiting.count(cls)
        if waiting and self._holds(cls) and self._is_dry(cls):
            longest_ago = self._longest_ago(cls)
            if longest_ago is not None:
                self._send(longest_ago, cls, 1, 0, 0, 0, anyway=True)
                return
        max_samples = max(self._batch(cls), waiting) if waiting else 1
        empty_answers = self._empty_answers.get(cls, {})
        home = min(self._there, key=lambda number: (empty_answers.get(number, 0), -self._peers[number].left[cls]))
        room_bytes = self._taken.room_for(cls, max_samples - 1)
        self._send(home, cls, max_samples, room_bytes, room_bytes, self._empty_rounds(cls))

    def _count_exchange(self, cls: int) -> None:
        """Count a turn, and take what the account allows, for later turns. Their first sample needs room as well."""
        wanted = self._exchange.count_turn(cls, self._lap[cls])
        if wanted < 1 or cls in self._asked or not self._there:
            return
        largest = self._taken.largest(cls)
        if self._taken.free_bytes < largest:
            return
        home = self._drawn(cls)
        if home is None:
            return
        max_samples = min(BATCH, wanted)
        room_bytes = min(self._taken.room_for(cls, max_samples - 1), self._taken.free_bytes - largest)
        self._send(home, cls, max_samples, room_bytes, room_bytes + largest, 0)

    def _drawn(self, cls: int) -> int | None:
        """A peer to exchange with: the more samples it has left, the likelier. Were it always the richest, samples of
        the largest part would be early in every lap.
        """
        left = [self._peers[number].left[cls] for number in self._there]
        drawn = int(self._exchange.draw(cls, self._lap[cls], self._done[cls]) * sum(left))
        for number, samples in zip(self._there, left, strict=True):
            drawn -= samples
            if drawn < 0:
                return number
        return None

    def _batch(self, cls: int) -> int:
        """How many samples to ask for where one is needed."""
        # A home knows with which open a sample was asked for, not when a reader got it: maybe in a later epoch.
        tree = self._tree_of_class[cls]
        return 1 if tree.holds and not tree.epoch else BATCH

    def _send(
        self,
        home: int,
        cls: int,
        max_samples: int,
        room_bytes: int,
        granted_bytes: int,
        attempt: int,
        *,
        anyway: bool = False,
    ) -> None:
        peer = self._peers[home]
        number = peer.number
        peer.number += 1
        self._taken.free_bytes -= granted_bytes
        self._asked[cls] = home, number
        acked_below = next(iter(peer.unanswered), number)
        tree = self._tree_of_class[cls]
        message = Take(
            self._node,
            home,
            number,
            acked_below,
            cls,
            self._lap[cls],
            max_samples,
            room_bytes,
            attempt,
            self._done[cls],
            epoch=tree.epoch + 1,
            turn=tree.turn,
            since=tree.told,
            anyway=anyway,
            holds=tree.holds,
        )
        peer.unanswered[number] = Sent(granted_bytes, message)
        self.outbox.append(message)
