"""The home of the distributed slot protocol: it answers the requests of other nodes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from redoxfs.arrays import Numbers
from redoxfs.protocol.events import Handled, Load, Served, SharedState
from redoxfs.protocol.slot import SlotPolicy
from redoxfs.protocol.slot_nodes.messages import RemoteAnswer, RemoteRead
from redoxfs.protocol.slot_nodes.repeated import Slots
from redoxfs.protocol.tables import MOST, StateReader, rows
from redoxfs.protocol.trace import HomeTrace

TRACES_KEPT = 3
"""For each requester: this epoch's, the next one's, and the last one's for late messages."""


class _Given(NamedTuple):
    """A sample that is given to a requester in ``lap``."""

    sample: int
    lap: int


class _Peer:
    """What a home knows of one requester.

    ``epoch``  the last one that a message named, -1 before
    """

    __slots__ = ("acked_below", "ahead", "answers", "epoch", "is_ahead", "traces")

    def __init__(self, columns: int) -> None:
        self.is_ahead = np.zeros(columns, np.bool_)
        self.ahead: memoryview[int] = self.is_ahead.view(np.uint8).data
        self.answers: dict[int, RemoteAnswer] = {}
        self.acked_below = 0
        self.traces: dict[int, HomeTrace] = {}
        self.epoch = -1


class Home:
    """The VCs of one node, as other nodes ask for them: Alg. 4, and Alg. 5 where ``window`` is above one.

    Args:
        node: the number of this node.
        policy: decides about this node's VCs.
        home_of: int[S], the node at which each sample lives.
        sample_bytes: int[S], what each takes of a requester's remote memory.
        window: P, how many requests a prefetch looks at, including the one on demand.
        chosen: collects the samples that are given.
    """

    def __init__(
        self,
        node: int,
        policy: SlotPolicy,
        home_of: Numbers,
        sample_bytes: Numbers,
        *,
        window: int,
        chosen: list[int],
    ) -> None:
        self._node = node
        self._policy = policy
        # What decides: the policy, or one that is repeated.
        self.slots: Slots = policy
        self._chosen = chosen
        self._home_of = home_of
        self._sample_bytes = sample_bytes
        self._columns = policy.columns
        self._column_of: memoryview[int] = self._columns.data
        self._window = window
        self._peers: dict[int, _Peer] = {}
        self.conflicts = 0
        self.missed = 0

    def follow(self, requester: int, epoch: int, order: Numbers) -> None:
        """``requester`` asks for samples, anywhere, in ``order``, int[n]. May be called before its epoch begins.

        No effect where the order is known, since some of its requests may have been made, or where the epoch is over.
        """
        peer = self._peer(requester)
        traces = peer.traces
        if epoch in traces or epoch < peer.epoch:
            return
        here = order[self._home_of[order] == self._node].astype(np.int32)
        traces[epoch] = HomeTrace(here, self._columns[here])
        while len(traces) > TRACES_KEPT:
            del traces[min(traces)]

    def restarted(self, requester: int) -> None:
        """``requester`` knows nothing any more: samples that were sent ahead to it have no turn in the present laps."""
        peer = self._peers.pop(requester, None)
        if peer is not None:
            self.missed += int(np.count_nonzero(peer.is_ahead))

    def handle(self, message: RemoteRead, before: RemoteAnswer | None = None) -> Handled:
        """Alg. 4 and 5: give the requester a sample, and those that it will want soon.

        ``before``: the answer, where this is repeated. It has those that it will want.
        """
        peer = self._peer(message.requester)
        if message.number < peer.acked_below:
            return Handled(None, repeated=True)
        kept = peer.answers.get(message.number)
        if kept is not None:
            return Handled(kept, repeated=True)
        self._forget_answers(peer, message.acked_below)
        peer.epoch = max(peer.epoch, message.epoch)
        trace = self._trace(peer, message.epoch)
        if trace is not None:
            for passed in message.passed:
                trace.pass_by(passed)
        turns: list[Served] = []
        sent: list[_Given] = []
        for hit in message.hits:
            if trace is not None:
                trace.pass_by(hit.position)
            if not self._end_ahead(peer, hit.sample):
                sent.append(self._give(hit.sample, turns))
        asked = [] if self._end_ahead(peer, message.sample) else [self._give(message.sample, turns)]
        has_place = trace is not None and trace.pass_by(message.position)
        if before is not None:
            sent += self._send_ahead(peer, before.prefetched[len(sent) :])
        elif trace is not None and has_place and message.room_bytes > 0 and self._window > 1:
            sent += self._prefetch(peer, trace, message.position, message.room_bytes)
        kept = RemoteAnswer(
            self._node,
            message.number,
            asked[0].sample if asked else None,
            tuple([given.sample for given in sent]),
            tuple([given.lap for given in asked + sent]),
        )
        peer.answers[message.number] = kept
        loads: tuple[Load, ...] = ()
        for turn in turns:
            loads += turn.loads
        return Handled(kept, loads, tuple(turn.sample for turn in turns if turn.preempted))

    def state(self) -> SharedState:
        """All that decides what later events mean. A copy."""
        peers = sorted(self._peers.items())
        answers = [(number, answer) for number, peer in peers for answer in peer.answers.values()]
        traces = [(number, epoch, trace) for number, peer in peers for epoch, trace in peer.traces.items()]
        ahead = ((number, column) for number, peer in peers for column in np.flatnonzero(peer.is_ahead).tolist())
        given = (each for _, answer in answers for each in zip(answer.samples, answer.laps, strict=True))
        arrays: dict[str, Numbers] = {
            "peers": rows(((number, peer.acked_below, peer.epoch + 1) for number, peer in peers), 3),
            "ahead": rows(ahead, 2),
            "answers": rows(
                ((number, each.number, each.sample is not None, len(each.laps)) for number, each in answers), 4
            ),
            "answered": rows(given, 2),
            "home_traces": rows(((number, epoch, len(trace.samples)) for number, epoch, trace in traces), 3),
            "home_orders": np.concatenate([np.zeros(0, np.int32), *(trace.samples for _, _, trace in traces)]),
            "home_spent": np.concatenate([np.zeros(0, np.uint8), *(trace.spent() for _, _, trace in traces)]),
        }
        return SharedState({"sent_in_vain": self.missed, "conflicts": self.conflicts}, arrays)

    def resume(self, reader: StateReader) -> None:
        """Continue where another process was. Raises ValueError."""
        self.missed, self.conflicts = reader.value("sent_in_vain"), reader.value("conflicts")
        for number, acked_below, epoch in reader.table("peers", MOST, MOST, MOST):
            peer = self._peer(number)
            peer.acked_below, peer.epoch = acked_below, epoch - 1
        for number, column in reader.table("ahead", MOST, self._policy.column_count):
            self._peer(number).ahead[column] = 1
        given = reader.table("answered", len(self._columns), MOST)
        for number, message, is_asked, count in reader.table("answers", MOST, MOST, 2, len(given) + 1):
            parts, given = given[:count], given[count:]
            if len(parts) < max(count, is_asked):
                raise ValueError("the state lacks samples of its answers")
            samples, laps = [sample for sample, _ in parts], tuple([lap for _, lap in parts])
            asked = samples.pop(0) if is_asked else None
            self._peer(number).answers[message] = RemoteAnswer(self._node, message, asked, tuple(samples), laps)

        self._resume_traces(reader)

    def _resume_traces(self, reader: StateReader) -> None:
        traces = reader.table("home_traces", MOST, MOST, MOST)
        orders = reader.order("home_orders", len(self._columns))
        bits = reader.array("home_spent", np.uint8, -1)
        for number, epoch, count in traces:
            size = -(-count // 8)
            order, orders = orders[:count], orders[count:]
            spent, bits = np.unpackbits(bits[:size].view(np.uint8)), bits[size:]
            if len(order) < count or len(spent) < count or (self._home_of[order] != self._node).any():
                raise ValueError("the state has other orders of access")
            self._peer(number).traces[epoch] = HomeTrace(order, self._columns[order], spent[:count].astype(np.bool_))

    def _peer(self, requester: int) -> _Peer:
        peer = self._peers.get(requester)
        if peer is None:
            peer = self._peers[requester] = _Peer(self._policy.column_count)
        return peer

    def _forget_answers(self, peer: _Peer, acked_below: int) -> None:
        """Forget the answers below ``acked_below``."""
        if acked_below > peer.acked_below:
            peer.acked_below = acked_below
            for number in [n for n in peer.answers if n < acked_below]:
                del peer.answers[number]

    def _trace(self, peer: _Peer, epoch: int) -> HomeTrace | None:
        """The requester's trace of ``epoch``. Earlier traces are dropped, unless this message is a late one."""
        trace = peer.traces.get(epoch)
        if trace is not None and len(peer.traces) > 1:
            for old in [e for e in peer.traces if e < epoch]:
                del peer.traces[old]
        return trace

    def _end_ahead(self, peer: _Peer, sample: int) -> bool:
        """A claim of ``sample``'s column became known. Whether a sample was sent ahead for it."""
        column = self._column_of[sample]
        if not peer.ahead[column]:
            return False
        peer.ahead[column] = 0
        return True

    def _give(self, sample: int, turns: list[Served]) -> _Given:
        turn = self.slots.request(sample)
        self._chosen.append(turn.sample)
        turns.append(turn)
        return _Given(turn.sample, self.slots.lap_of(turn.sample))

    def _prefetch(self, peer: _Peer, trace: HomeTrace, position: int, room_bytes: int) -> list[_Given]:
        """Alg. 5, lines 21 to 41: samples in memory for the window's requests, without conflicts, while they fit."""
        first, columns, ahead = trace.window(position, self._window)
        held = self._policy.residents_at(columns)
        possible = np.flatnonzero((held >= 0) & ahead)
        wanted = possible[~peer.is_ahead[columns[possible]]]
        if wanted.size:
            # Of several requests for one (VC, O), the first; the others conflict with it.
            wanted = wanted[np.sort(np.unique(columns[wanted], return_index=True)[1])]
        self.conflicts += len(possible) - len(wanted)
        wanted = wanted[np.cumsum(self._sample_bytes[held[wanted]]) <= room_bytes]
        return self._send_ahead(peer, trace.samples[first + wanted].tolist())

    def _send_ahead(self, peer: _Peer, samples: Sequence[int]) -> list[_Given]:
        """A sample for each column of ``samples``."""
        for sample in samples:
            peer.ahead[self._column_of[sample]] = 1
        # They are in memory, so these turns load nothing.
        return [self._give(sample, []) for sample in samples]
