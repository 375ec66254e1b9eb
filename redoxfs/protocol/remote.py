"""The paper's distributed slot protocol (§3.5, §3.6, Alg. 1, 4, 5, 6) on top of `SlotPolicy`, sans-IO.

Every virtual chunk has a home, the node that all its physical chunks live at; the home's SlotPolicy alone decides
about them. A node that wants a sample of another home's VC sends a `RemoteRead` and gets a `RemoteAnswer`: one sample
for the request, and *prefetched* ones for requests that its trace will make within the window, as far as they are in
the home's memory and fit in the requester's. Those wait in the requester's remote VC, one slot for each (VC, O), and
go to whichever of its requests reaches that (VC, O) first. Without prefetch (Alg. 4) is a window of one request.

    request(sample) ─ own VC ─────────────────────────────────→ Served, by this node's SlotPolicy
                    ├ valid in the remote VC ────────────────→ Served, reported to the home with the next message
                    └ else: RemoteRead ──→ handle() at the home ──→ RemoteAnswer ──→ receive() → who gets what

Theory of operation. A home keeps for each (requester, VC, O) whether it has sent a sample ahead, that is one more
sample than it knows requests. That set is the conflict rule of Alg. 5: anything in it is not prefetched again. The
requester tells it of *every* request exactly once, by asking for it or, where a prefetched sample answered it, in
``hits`` of its next message. So a request in the set ends its membership, whichever way it came:

- a hit: the sample that was sent ahead is consumed;
- a RemoteRead: the sample sent ahead and this message crossed. The answer has no sample of its own (None): the one
  under way is for this request;
- a hit that is not in the set: a RemoteRead that was made later overtook its report and took the membership. The home
  owes a sample, and sends it now.

Samples sent and requests made therefore always balance, in whatever order messages and answers arrive. A requester
has at most one sample more than requests in any (VC, O), which is why its slot is free when one arrives. And no sample
is sent ahead for a request that was made already, or it would wait until the next epoch and make this one inexact.

Two rules for whoever edits this file:

1. Whatever gives a sample to a requester, or learns of a request, goes through the set, or the balance is lost.
2. Both sides take every message and every answer any number of times and in any order. A home keeps an answer until
   the requester has said that it has it: an answer that is decided twice would be a sample lost.

Why a set and not the paper's array of the window, shifted with the serial number: requests of several workers arrive
out of trace order, and a shifted array forgets what was prefetched for a request that another one overtook.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from redoxfs.protocol.events import Load, Served
from redoxfs.protocol.slot import SlotPolicy
from redoxfs.protocol.trace import OFF_TRACE, HomeTrace, OwnTrace

Ints = npt.NDArray[np.integer]

ROOM_PARTS = 8
"""What part of the remote memory one answer may fill. All of it would leave nothing for the requests of other workers
while one is under way. With the paper's settings an answer brings about 20 samples of the 1,750 that fit."""


class Hit(NamedTuple):
    """A request that the remote VC answered: the sample handed out, and the request's position in the trace."""

    sample: int
    position: int


class RemoteRead(NamedTuple):
    """A requester's message to a home.

    ``number``    counts the messages from this requester to this home, from 0.
    ``settled``   the answers to all lower numbers have arrived.
    ``sample``    what is asked for.
    ``epoch``, ``position``    its place in the requester's trace among what lives at the home, or OFF_TRACE.
    ``room_bytes``    how much remote memory the answer's prefetched samples may take.
    ``hits``      requests since the last message that needed none.
    """

    requester: int
    home: int
    number: int
    settled: int
    sample: int
    epoch: int
    position: int
    room_bytes: int
    hits: tuple[Hit, ...]


class RemoteAnswer(NamedTuple):
    """A home's answer to RemoteRead ``number``.

    ``sample`` is for the request, None where one that was prefetched is under way for it; ``prefetched`` go into the
    remote VC, in the order in which the trace needs them.
    """

    home: int
    number: int
    sample: int | None
    prefetched: tuple[int, ...]


class Handled(NamedTuple):
    """What a home does about a message.

    ``answer``    to be sent; None for a message whose answer the requester has.
    ``loads``     what to read, each beginning with a sample of the answer. None where an answer is repeated.
    ``settled``   samples that the requester has by now; their bytes may go.
    """

    answer: RemoteAnswer | None
    loads: tuple[Load, ...] = ()
    settled: tuple[int, ...] = ()


class Delivered(NamedTuple):
    """The request that was sent to ``home`` as message ``number`` is answered with ``sample``."""

    home: int
    number: int
    sample: int


class Requester:
    """One node's remote VCs: Alg. 1, lines 5 to 15, and Alg. 6.

    Args:
        node: the number of this node.
        columns: int64[S], the column of each sample.
        home_of: int[S], the node at which each sample lives.
        sample_bytes: int[S], what each takes of the remote memory.
        remote_memory_bytes: the limit of what the remote VCs hold and are granted.
    """

    def __init__(
        self, node: int, columns: npt.NDArray[np.int64], home_of: Ints, sample_bytes: Ints, *, remote_memory_bytes: int
    ) -> None:
        homes = int(home_of.max(initial=node)) + 1
        self._node = node
        self._homes = home_of
        self._home_of: memoryview[int] = home_of.data
        self._column_of: memoryview[int] = columns.data
        self._bytes_of: memoryview[int] = sample_bytes.data
        self._slot: memoryview[int] = np.full(int(columns.max(initial=-1)) + 1, -1, np.int32).data
        self._limit_bytes = remote_memory_bytes
        self._free_bytes = remote_memory_bytes
        self._epoch = 0
        self._trace: OwnTrace | None = None
        self._hits: list[list[Hit]] = [[] for _ in range(homes)]
        self._numbers = [0] * homes
        # For each home and message not answered yet, oldest first: the bytes that are set aside for its answer.
        self._unanswered: list[dict[int, int]] = [{} for _ in range(homes)]
        self._waiting: dict[int, list[int]] = {}

    def follow(self, epoch: int, order: Ints) -> None:
        """From now on this node asks for samples in ``order``, int[n]."""
        self._epoch = epoch
        self._trace = OwnTrace(order, self._homes)
        for home, hits in enumerate(self._hits):
            self._hits[home] = [Hit(hit.sample, OFF_TRACE) for hit in hits]

    def request(self, sample: int) -> Served | RemoteRead:
        """A request for a sample of another home: answered from here, or the message to send."""
        column = self._column_of[sample]
        home = self._home_of[sample]
        position = OFF_TRACE if self._trace is None else self._trace.pass_by(sample)
        held = self._slot[column]
        if held >= 0:
            self._slot[column] = -1
            self._free_bytes += self._bytes_of[held]
            self._hits[home].append(Hit(held, position))
            return Served(held)
        number = self._numbers[home]
        unanswered = self._unanswered[home]
        room = max(0, min(self._free_bytes, -(-self._limit_bytes // ROOM_PARTS)))
        self._numbers[home] = number + 1
        self._free_bytes -= room
        unanswered[number] = room
        self._waiting.setdefault(column, []).append(number)
        hits, self._hits[home] = tuple(self._hits[home]), []
        return RemoteRead(self._node, home, number, next(iter(unanswered)), sample, self._epoch, position, room, hits)

    def receive(self, answer: RemoteAnswer) -> tuple[Delivered, ...]:
        """Alg. 6: put what came into the remote VC. Which requests are answered by it; none by a repeated answer."""
        unanswered = self._unanswered[answer.home]
        room = unanswered.pop(answer.number, None)
        if room is None:
            return ()
        self._free_bytes += room
        delivered = []
        if answer.sample is not None:
            delivered += self._fill_in(answer.home, answer.sample, answer.number)
        for sample in answer.prefetched:
            delivered += self._fill_in(answer.home, sample, None)
        return tuple(delivered)

    def used_bytes(self) -> int:
        """Remote memory that holds samples or is set aside for answers."""
        return self._limit_bytes - self._free_bytes

    def _fill_in(self, home: int, sample: int, asked: int | None) -> list[Delivered]:
        """A sample arrived: to the request ``asked`` that it was sent for, else to that which waits longest, else
        into the slot."""
        column, size = self._column_of[sample], self._bytes_of[sample]
        waiting = self._waiting.get(column)
        if waiting is None:
            assert self._slot[column] < 0
            self._slot[column] = sample
            self._free_bytes -= size
            return []
        number = waiting.pop(waiting.index(asked) if asked in waiting else 0)
        if not waiting:
            del self._waiting[column]
        if number != asked and number in self._unanswered[home]:
            # The request's own answer may still bring a sample, which will then lie where this one would have.
            self._unanswered[home][number] += size
            self._free_bytes -= size
        return [Delivered(home, number, sample)]


class _Peer:
    """What a home knows of one requester."""

    __slots__ = ("ahead", "answers", "is_ahead", "settled", "traces")

    def __init__(self, columns: int) -> None:
        self.is_ahead = np.zeros(columns, np.bool_)
        self.ahead: memoryview[int] = self.is_ahead.view(np.uint8).data
        self.answers: dict[int, RemoteAnswer] = {}
        self.settled = 0
        self.traces: dict[int, HomeTrace] = {}


class Home:
    """The VCs of one node, as other nodes ask for them: Alg. 4, and Alg. 5 where ``window`` is above one.

    Args:
        node: the number of this node.
        policy: decides about this node's VCs.
        home_of: int[S], the node at which each sample lives.
        sample_bytes: int[S], what each takes of a requester's remote memory.
        window: P, how many requests a prefetch looks at, the one on demand among them.
    """

    def __init__(self, node: int, policy: SlotPolicy, home_of: Ints, sample_bytes: Ints, *, window: int) -> None:
        self._node = node
        self._policy = policy
        self._home_of = home_of
        self._sample_bytes = sample_bytes
        self._columns = policy.columns
        self._column_of: memoryview[int] = self._columns.data
        self._window = window
        self._peers: dict[int, _Peer] = {}

    def follow(self, requester: int, epoch: int, order: Ints) -> None:
        """``requester`` asks for samples, anywhere, in ``order``, int[n]. May be told before its epoch begins."""
        here = order[self._home_of[order] == self._node]
        self._peer(requester).traces[epoch] = HomeTrace(here, self._columns[here])

    def handle(self, message: RemoteRead) -> Handled:
        """Alg. 4 and 5: give the requester a sample, and those that it will want soon."""
        peer = self._peer(message.requester)
        if message.number < peer.settled:
            return Handled(None)
        kept = peer.answers.get(message.number)
        if kept is not None:
            return Handled(kept)
        settled = self._settle(peer, message.settled)
        trace = self._trace(peer, message.epoch)
        loads: list[Load] = []
        owed = []
        for hit in message.hits:
            if trace is not None:
                trace.pass_by(hit.position)
            if not self._end_ahead(peer, hit.sample):
                owed.append(self._give(hit.sample, loads))
        answer = None if self._end_ahead(peer, message.sample) else self._give(message.sample, loads)
        sent = owed
        if trace is not None and trace.pass_by(message.position) and message.room_bytes > 0 and self._window > 1:
            sent = owed + self._prefetch(peer, trace, message.position, message.room_bytes)
        kept = RemoteAnswer(self._node, message.number, answer, tuple(sent))
        peer.answers[message.number] = kept
        return Handled(kept, tuple(loads), settled)

    def _peer(self, requester: int) -> _Peer:
        peer = self._peers.get(requester)
        if peer is None:
            peer = self._peers[requester] = _Peer(self._policy.column_count)
        return peer

    def _settle(self, peer: _Peer, settled: int) -> tuple[int, ...]:
        """Forget the answers below ``settled``; the samples that they brought."""
        if settled <= peer.settled:
            return ()
        peer.settled = settled
        samples: list[int] = []
        for number in [n for n in peer.answers if n < settled]:
            answer = peer.answers.pop(number)
            if answer.sample is not None:
                samples.append(answer.sample)
            samples += answer.prefetched
        return tuple(samples)

    def _trace(self, peer: _Peer, epoch: int) -> HomeTrace | None:
        """The requester's trace of ``epoch``; those of epochs before are over, unless this message is a late one."""
        trace = peer.traces.get(epoch)
        if trace is not None and len(peer.traces) > 1:
            for old in [e for e in peer.traces if e < epoch]:
                del peer.traces[old]
        return trace

    def _end_ahead(self, peer: _Peer, sample: int) -> bool:
        """A request for ``sample``'s column became known: whether a sample was sent ahead for it."""
        column = self._column_of[sample]
        if not peer.ahead[column]:
            return False
        peer.ahead[column] = 0
        return True

    def _give(self, sample: int, loads: list[Load]) -> int:
        served = self._policy.request(sample)
        loads += served.loads
        return served.sample

    def _prefetch(self, peer: _Peer, trace: HomeTrace, position: int, room_bytes: int) -> list[int]:
        """Alg. 5, lines 21 to 41: what is in memory for the window's requests and in no conflict, as far as it fits."""
        first, columns, ahead = trace.window(position, self._window)
        held = self._policy.residents_at(columns)
        wanted = np.flatnonzero(held >= 0)
        wanted = wanted[ahead[wanted] & ~peer.is_ahead[columns[wanted]]]
        if not wanted.size:
            return []
        # Of several requests for one (VC, O) the first; the others are in conflict with it.
        wanted = wanted[np.sort(np.unique(columns[wanted], return_index=True)[1])]
        fits = np.cumsum(self._sample_bytes[held[wanted]]) <= room_bytes
        wanted = wanted[fits]
        peer.is_ahead[columns[wanted]] = True
        return [self._policy.request(sample).sample for sample in trace.samples[first + wanted].tolist()]


class SlotNode:
    """One node of the distributed protocol: Alg. 1 for its own requests, a home for those of others.

    Args:
        node: the number of this node.
        policy: decides about the VCs that live here; it knows the whole layout, and is asked for its own part alone.
        home_of: int[S], the node at which each sample lives: the same for all samples of a VC.
        sample_bytes: int[S], what each takes of the remote memory.
        remote_memory_bytes: the limit of this node's remote VCs.
        window: P, the prefetch window in requests; one means no prefetch.
    """

    def __init__(
        self,
        node: int,
        policy: SlotPolicy,
        home_of: Ints,
        sample_bytes: Ints,
        *,
        remote_memory_bytes: int,
        window: int,
    ) -> None:
        self._node = node
        self._policy = policy
        self._home_of: memoryview[int] = home_of.data
        self._home = Home(node, policy, home_of, sample_bytes, window=window)
        self._requester = Requester(
            node, policy.columns, home_of, sample_bytes, remote_memory_bytes=remote_memory_bytes
        )
        self.handle = self._home.handle
        self.receive = self._requester.receive
        self.used_bytes = self._requester.used_bytes

    def follow(self, requester: int, epoch: int, order: Ints) -> None:
        """The trace of ``requester``, this node or another, for ``epoch``."""
        if requester == self._node:
            self._requester.follow(epoch, order)
        else:
            self._home.follow(requester, epoch, order)

    def request(self, sample: int) -> Served | RemoteRead:
        """Alg. 1, ReadFile: a turn for a sample that may stand in for ``sample``, or the message that asks for one."""
        if self._home_of[sample] == self._node:
            return self._policy.request(sample)
        return self._requester.request(sample)


def homes_by_vc(columns: npt.NDArray[np.int64], chunk_size: int, nodes: int) -> npt.NDArray[np.int8]:
    """int8[S]: the home of each sample where VCs are dealt to the nodes in turn."""
    homes: npt.NDArray[np.int8] = (columns // chunk_size % nodes).astype(np.int8)
    return homes
