"""The pool on several nodes: each serves a class from its own chunks first, and takes from peers what it lacks.

A class is spread evenly over the nodes, and each node asks for about its part of it. So only the difference crosses
the network: about one sample in fifty where the paper's protocol moves two of three. Nothing needs a trace.

    request(sample) ─ own chunks have the class ──→ Served, by this node's policy
                    ├ some were taken before ─────→ Served
                    └ else: Take ──→ handle() at the peer with the most left ──→ Given ──→ receive() → who gets what

Theory of operation. A class's lap is one for all nodes: it is over when as many of its samples are *done*, handed to
readers, as there are. A node knows what it did itself, and learns with every Given what the peer has left and has
done. Both only change one way within a lap, so old news never ends a lap early. Where nobody is known to have any left
and the lap is not over, the rest is on its way to some node, which will have done it or have some left when it is
asked again; peers are then asked in turn.

Laps are told along: whoever is behind begins the lap that the other is in. That is safe, since nobody begins a lap
before all of the last one is done, a node's own samples and those that it took included.

Two rules for whoever edits this file:

1. A sample counts as left at exactly one node, where it lies or where it was taken to, or is under way to one.
2. Messages and answers may come any number of times and in any order; an answer is kept until the other side has it.

Which samples were taken is never undone: they are given to the next readers that ask, here or elsewhere.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from redoxfs.protocol.events import Load, Policy, Served

Int32 = npt.NDArray[np.int32]
Ints = npt.NDArray[np.integer]

BATCH = 16
"""Samples of a class that are asked for at once. A node is short of tens of a class of thousand by the end of its lap;
asking for all of them would take what the peer is short of soon."""


class Take(NamedTuple):
    """A node asks ``home`` for ``most`` samples, or fewer, of a class, in ``lap``.

    ``number`` counts the messages between the two, ``settled``: the answers to all lower numbers have arrived.
    """

    requester: int
    home: int
    number: int
    settled: int
    cls: int
    lap: int
    most: int


class Given(NamedTuple):
    """The answer: ``samples``, and the home's news of the class in ``lap``: what it has ``left`` and has ``done``."""

    home: int
    number: int
    cls: int
    lap: int
    samples: tuple[int, ...]
    left: int
    done: int


class Answered(NamedTuple):
    """What a home does about a Take: the answer, None where the requester has it; what to read; as in `Handled`."""

    given: Given | None
    loads: tuple[Load, ...] = ()
    settled: tuple[int, ...] = ()


class Received(NamedTuple):
    """What a Given means: requests, by ticket, that are answered now, and what to ask for those that still wait."""

    served: tuple[tuple[int, Served], ...] = ()
    take: Take | None = None


class _Peer:
    """What a node knows of another."""

    __slots__ = ("answers", "done", "left", "number", "settled", "unanswered")

    def __init__(self, of_class: Int32) -> None:
        self.left = of_class.copy()
        self.done = np.zeros_like(of_class)
        self.number = 0
        self.unanswered: dict[int, None] = {}
        self.answers: dict[int, Given] = {}
        self.settled = 0


class LocalFirst:
    """One node's part.

    Args:
        node: the number of this node.
        policy: decides about this node's samples, which it numbers from 0 in the order of ``own``.
        own: int32[n], the samples that live here.
        own_chunks: int32[m], the number that each of the policy's chunks has in the whole layout.
        class_of: int[S], the class of each sample.
        home_of: int[S], the node at which each sample lives.
    """

    def __init__(
        self, node: int, policy: Policy, own: Int32, own_chunks: Int32, class_of: Ints, home_of: Ints, *, nodes: int
    ) -> None:
        classes = int(class_of.max(initial=-1)) + 1
        self._node = node
        self._policy = policy
        self._own: memoryview[int] = own.data
        self._chunks: memoryview[int] = own_chunks.data
        self._class_of: memoryview[int] = class_of.data
        self._of_class = np.bincount(class_of, minlength=classes).astype(np.int32)
        self._of_node = [
            np.bincount(class_of[home_of == peer], minlength=classes).astype(np.int32) for peer in range(nodes)
        ]
        # Any own sample of a class, by the policy's number, stands for the class.
        self._any_of = np.full(classes, -1, np.int32)
        self._any_of[class_of[own]] = np.arange(len(own))
        self._left: memoryview[int] = self._of_node[node].copy().data
        self._done: memoryview[int] = np.zeros(classes, np.int32).data
        self._lap: memoryview[int] = np.ones(classes, np.int32).data
        self._taken: dict[int, deque[int]] = {}
        self._peers = {peer: _Peer(self._of_node[peer]) for peer in range(nodes) if peer != node}
        self._waiting: dict[int, deque[int]] = {}
        self._asked_last = node
        self._tickets = 0

    def request(self, sample: int) -> Served | tuple[int, Take | None]:
        """A turn for a sample of ``sample``'s class, or a ticket, and the message to send if none is under way."""
        cls = self._class_of[sample]
        waiting = self._waiting.get(cls)
        if waiting is None:
            served = self._serve(cls)
            if served is not None:
                return served
        self._tickets += 1
        if waiting is not None:
            waiting.append(self._tickets)
            return self._tickets, None
        self._waiting[cls] = deque([self._tickets])
        return self._tickets, self._ask(cls)

    def handle(self, take: Take) -> Answered:
        """Give a peer samples of a class: no more than its part of what is left here."""
        peer = self._peers[take.requester]
        if take.number < peer.settled:
            return Answered(None)
        kept = peer.answers.get(take.number)
        if kept is not None:
            return Answered(kept)
        settled: list[int] = []
        if take.settled > peer.settled:
            peer.settled = take.settled
            for number in [n for n in peer.answers if n < take.settled]:
                settled += peer.answers.pop(number).samples
        cls = take.cls
        if take.lap > self._lap[cls]:
            self._begin_lap(cls, take.lap)
        samples: list[int] = []
        loads: list[Load] = []
        if take.lap == self._lap[cls]:
            left = self._left_of(cls)
            for _ in range(min(take.most, -(-left // (len(self._peers) + 1)))):
                served = self._give(cls)
                assert served is not None
                samples.append(served.sample)
                loads += served.loads
        given = Given(self._node, take.number, cls, self._lap[cls], tuple(samples), self._left_of(cls), self._done[cls])
        peer.answers[take.number] = given
        return Answered(given, tuple(loads), tuple(settled))

    def receive(self, given: Given) -> Received:
        """Take in what a peer gave; requests that waited for it are answered in turn."""
        peer = self._peers[given.home]
        if given.number not in peer.unanswered:
            return Received()
        del peer.unanswered[given.number]
        cls = given.cls
        if given.lap > self._lap[cls]:
            self._begin_lap(cls, given.lap)
        if given.lap == self._lap[cls]:
            peer.left[cls] = given.left
            peer.done[cls] = max(given.done, int(peer.done[cls]))
            if given.samples:
                self._taken.setdefault(cls, deque()).extend(given.samples)
        waiting = self._waiting[cls]
        answered: list[tuple[int, Served]] = []
        while waiting:
            served = self._serve(cls)
            if served is None:
                return Received(tuple(answered), self._ask(cls))
            answered.append((waiting.popleft(), served))
        del self._waiting[cls]
        return Received(tuple(answered))

    def _serve(self, cls: int) -> Served | None:
        """A turn from what is here; begins the class's next lap where this one is over."""
        served = self._give(cls)
        if served is None and self._is_over(cls):
            self._begin_lap(cls, self._lap[cls] + 1)
            served = self._give(cls)
        if served is not None:
            self._done[cls] += 1
        return served

    def _give(self, cls: int) -> Served | None:
        """One of the samples of this lap that are left here, those taken from others first."""
        taken = self._taken.get(cls)
        if taken:
            sample = taken.popleft()
            if not taken:
                del self._taken[cls]
            return Served(sample)
        if not self._left[cls]:
            return None
        self._left[cls] -= 1
        turn = self._policy.request(int(self._any_of[cls]))
        own = self._own
        loads = tuple([Load(self._chunks[load.chunk], tuple([own[s] for s in load.samples])) for load in turn.loads])
        return Served(own[turn.sample], loads, turn.stolen)

    def _left_of(self, cls: int) -> int:
        return self._left[cls] + len(self._taken.get(cls, ()))

    def _is_over(self, cls: int) -> bool:
        done = self._done[cls] + sum(int(peer.done[cls]) for peer in self._peers.values())
        return done == int(self._of_class[cls])

    def _begin_lap(self, cls: int, lap: int) -> None:
        assert not self._left_of(cls)
        self._lap[cls] = lap
        self._left[cls] = int(self._of_node[self._node][cls])
        self._done[cls] = 0
        for number, peer in self._peers.items():
            peer.left[cls] = self._of_node[number][cls]
            peer.done[cls] = 0

    def _ask(self, cls: int) -> Take:
        """Whom to ask: the peer with the most left; where none is known to have any, the next in turn."""
        home = max(self._peers, key=lambda number: int(self._peers[number].left[cls]))
        if not self._peers[home].left[cls]:
            in_turn: Sequence[int] = sorted(self._peers, key=lambda n: (n <= self._asked_last, n))
            home = in_turn[0]
        self._asked_last = home
        peer = self._peers[home]
        number = peer.number
        peer.number += 1
        peer.unanswered[number] = None
        most = max(BATCH, len(self._waiting[cls]))
        return Take(self._node, home, number, next(iter(peer.unanswered)), cls, self._lap[cls], most)
