"""The paper's distributed slot protocol (§3.5, §3.6, Alg. 1, 4, 5, 6) on top of `SlotPolicy`, sans-IO.

Every virtual chunk has a home, the node that all its physical chunks live at; the home's SlotPolicy alone decides
about them. A node that wants a sample of another home's VC sends a `RemoteRead` and gets a `RemoteAnswer`: one sample
for the request, and *prefetched* ones for requests that its trace will make within the window, as far as they are in
the home's memory and fit in the requester's. Those wait in the requester's remote VC, one slot for each (VC, O), and
go to whichever of its requests reaches that (VC, O) first. Without prefetch (Alg. 4) is a window of one request.

    request(sample) ─ own VC ─────────────────────────────────→ Served, by this node's SlotPolicy
                    ├ in the stash ──────────────────────────→ Served; the home gave it before, and is told nothing
                    ├ valid in the remote VC ────────────────→ Served, a claim: reported with the next message
                    ├ claimed by a request that was cancelled → Pending; what is under way for that one is for this one
                    └ else: RemoteRead, a claim ─→ handle() at the home ─→ RemoteAnswer ─→ receive() → who gets what

A reservation goes the same way, and the sample is reserved instead of served. Put back, it goes to the *stash* of its
(VC, O), as does what comes for a request that was cancelled: it was claimed, and so nobody but this node can serve it.

Theory of operation. A *claim* is one sample of a (VC, O) that a requester wants from the home, for a request or for a
reservation. The requester tells the home of every claim exactly once: by a RemoteRead or, where a prefetched sample
answered it, in ``hits`` of its next message. Taking, putting back, cancelling, and what the stash answers are no
claims: the home has given that sample, to it the sample is served, and its laps go on. A home keeps for each
(requester, VC, O) whether it has sent a sample ahead, that is one more sample than it knows claims. That set is the
conflict rule of Alg. 5: anything in it is not prefetched again. A claim in the set ends the membership, whichever way
it came:

- a hit: the sample that was sent ahead is consumed;
- a RemoteRead: the sample sent ahead and this message crossed. The answer has no sample of its own (None): the one
  under way is for this claim;
- a hit that is not in the set: a RemoteRead that was made later overtook its report and took the membership. The home
  owes a sample, and sends it now.

Samples sent and claims made therefore always balance, in whatever order messages and answers arrive: a sample that
arrives goes to a claim that somebody waits for, else to one that was cancelled (the stash), else into the slot. A
requester has at most one sample more than claims in any (VC, O), which is why its slot is free when one arrives. The
slot is empty while claims are open, so whoever waits was told of no sample that another might take.

A position of the trace is spent by one claim, and the home learns with the claim that it is past; it sends nothing
ahead for a position that was spent, or that sample would wait until the next epoch and make this one inexact. So
claims and positions have to balance as well. A path that is reserved and put back has spent its position. If another
path then takes that sample from the stash, its own position is left over, and is spent by the claim that the first
path makes when it comes back: to the home a position is no more than that one claim of this (VC, O) will come. Only
where no such claim will come, as the sample in the stash was claimed off the trace, is the position reported as
``passed``. What is left over when an epoch ends is void.

Lost nodes: a request of a home that is lost is answered by what was given before, else by the very sample asked for,
which whoever opens it reads alone (`degraded`). It is no claim, and its position is reported as ``passed``. Whoever
waited for that home is answered likewise; what still comes for its claim goes to the stash. A reservation that waits
goes on waiting, as its sample could be reserved twice; whoever made it has a deadline.

A home that was started again knows of no claim and has sent nothing ahead. Its whole knowledge will be the messages
that it answers, and those are the ones that are not answered yet, and those to come. So the claims that nothing has
come for are made to be exactly those of the unanswered messages, their hits included: where such a message has no claim
that anybody waits for, one for nobody is made, and where somebody waits for a claim that no message will tell, it is
told again. What is here of that home was given by a process that is no more, and so is stash.

Laps are the home's; with each sample it tells the lap that it is given in, which goes wherever the sample goes. So
whoever hands it to a reader can note what had its turn in which lap (`Ledger`), and nobody else does: what lies in a
remote VC or the stash when all nodes end had no turn.

Memory: the remote VCs, the stash and the rooms granted to answers under way never exceed the limit. Samples reserved
and those that somebody waits for do not count. A sample that does not fit stays here without its bytes (`keeps`).

Three rules for whoever edits this file:

1. Whatever gives a sample to a requester, or learns of a claim, goes through the set, or the balance is lost.
2. Both sides take every message and every answer any number of times and in any order. A home keeps an answer until
   the requester has said that it has it: an answer that is decided twice would be a sample lost.
3. No sample is reserved twice at once at one node. The home may give the last sample of a lap and then, in the next
   lap, the same again; where that could be, `reserve` says that none is left.

Why a set and not the paper's array of the window, shifted with the serial number: requests of several workers arrive
out of trace order, and a shifted array forgets what was prefetched for a request that another one overtook.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from redoxfs.protocol.events import Answer, ChooseVictim, Delivered, Handled, Load, Message, Pending, Served
from redoxfs.protocol.slot import SlotPolicy
from redoxfs.protocol.trace import OFF_TRACE, HomeTrace, OwnTrace
from redoxfs.protocol.turns import Ledger, Turns, merged

Ints = npt.NDArray[np.integer]

TRACES_KEPT = 3
"""Of each requester: this epoch's, the next one's, and the last one's for messages that are late."""

ROOM_PARTS = 8
"""What part of the remote memory one answer may fill. All of it would leave nothing for the requests of other workers
while one is under way. With the paper's settings an answer brings about 20 samples of the 1,750 that fit."""

NOBODY = -1
"""In place of a ticket, that of a claim that was cancelled."""


class Hit(NamedTuple):
    """A claim that the remote VC answered: the sample handed out, and the claim's position in the trace."""

    sample: int
    position: int


class RemoteRead(NamedTuple):
    """A requester's message to a home.

    ``number``    counts the messages from this requester to this home, from 0.
    ``acked_below``   the answers to all lower numbers have arrived.
    ``sample``    what is asked for.
    ``epoch``, ``position``    its place in the requester's trace among what lives at the home, or OFF_TRACE.
    ``room_bytes``    how much remote memory the answer's prefetched samples may take.
    ``hits``      claims since the last message that needed none.
    ``passed``    positions of ``epoch`` for which no claim will come: what had been given before answered them.
    """

    requester: int
    home: int
    number: int
    acked_below: int
    sample: int
    epoch: int
    position: int
    room_bytes: int
    hits: tuple[Hit, ...]
    passed: tuple[int, ...] = ()


class RemoteAnswer(NamedTuple):
    """A home's answer to RemoteRead ``number``.

    ``sample`` is for the claim, None where one that was prefetched is under way for it; ``prefetched`` go into the
    remote VC, in the order in which the trace needs them. ``laps``: of each of `samples`, the lap it is given in.
    """

    home: int
    number: int
    sample: int | None
    prefetched: tuple[int, ...]
    laps: tuple[int, ...]

    @property
    def samples(self) -> tuple[int, ...]:
        """All of them, the one waited for first."""
        return self.prefetched if self.sample is None else (self.sample, *self.prefetched)


@dataclass(slots=True, eq=False)
class _Claim:
    """A claim that no sample has come for. ``number`` is its message's; ``spent``: a position was spent on it."""

    ticket: int
    number: int
    spent: bool
    reserves: bool


class _Held(NamedTuple):
    """A sample that the home gave in ``lap``; ``spent``: a position was spent on it."""

    sample: int
    lap: int
    spent: bool


@dataclass(slots=True, eq=False)
class _Stashed:
    """A sample in the stash; ``kept``: its bytes are in the remote memory."""

    held: _Held
    kept: bool


class _Sent(NamedTuple):
    """A message that is not answered, and the remote memory that is granted to its answer."""

    message: RemoteRead
    room: int


class Requester:
    """One node's remote VCs and stash: Alg. 1, lines 5 to 15, and Alg. 6.

    Args:
        node: the number of this node.
        columns: int64[S], the column of each sample.
        home_of: int[S], the node at which each sample lives.
        sample_bytes: int[S], what each takes of the remote memory.
        remote_memory_bytes: the limit of what the remote VCs and the stash hold and are granted.
        reads_alone: whether a sample of a home that is lost can be read here.
        send: takes each message.
        note: told each sample that has its turn, and its lap.
    """

    def __init__(
        self,
        node: int,
        columns: npt.NDArray[np.int64],
        home_of: Ints,
        sample_bytes: Ints,
        *,
        remote_memory_bytes: int,
        reads_alone: bool,
        send: Callable[[RemoteRead], None],
        note: Callable[[int, int], None],
    ) -> None:
        homes = int(home_of.max(initial=node)) + 1
        self.prefetched = 0
        self.degraded = 0
        self._reads_alone = reads_alone
        self._lost: set[int] = set()
        self._node = node
        self._send = send
        self._note = note
        self._homes = home_of
        self._home_of: memoryview[int] = home_of.data
        self._column_of: memoryview[int] = columns.data
        self._bytes_of: memoryview[int] = sample_bytes.data
        self._slots = np.full(int(columns.max(initial=-1)) + 1, -1, np.int32)
        self._slot: memoryview[int] = self._slots.data
        self._slot_lap: memoryview[int] = np.zeros_like(self._slots).data
        home_of_column = np.zeros(len(self._slots), np.int16)
        home_of_column[columns] = home_of
        self._home_of_column: memoryview[int] = home_of_column.data
        # Columns whose slot holds a sample without its bytes.
        self._evicted: set[int] = set()
        self._stash: dict[int, deque[_Stashed]] = {}
        # For each column that has any: the samples reserved.
        self._reserved: dict[int, dict[int, _Held]] = {}
        self._limit_bytes = remote_memory_bytes
        self._free_bytes = remote_memory_bytes
        self._epoch = 0
        self._trace: OwnTrace | None = None
        self._hits: list[list[Hit]] = [[] for _ in range(homes)]
        self._passed: list[list[int]] = [[] for _ in range(homes)]
        # Positions left over, for each column that has any.
        self._left_over: dict[int, list[int]] = {}
        self._numbers = [0] * homes
        # For each home, by number, oldest first.
        self._unanswered: list[dict[int, _Sent]] = [{} for _ in range(homes)]
        # For each column that has any, oldest first; and what each ticket that is waited for asked for.
        self._claims: dict[int, list[_Claim]] = {}
        self._waited: dict[int, int] = {}
        self._tickets = 0

    def follow(self, epoch: int, order: Ints) -> None:
        """From now on this node asks for samples in ``order``, int[n]."""
        self._epoch = epoch
        self._trace = OwnTrace(order, self._homes)
        for home, hits in enumerate(self._hits):
            self._hits[home] = [Hit(hit.sample, OFF_TRACE) for hit in hits]
        # No path comes back in this epoch for what it left in the one before.
        self._passed = [[] for _ in self._passed]
        self._left_over.clear()
        for stash in self._stash.values():
            for stashed in stash:
                stashed.held = stashed.held._replace(spent=False)
        for reserved in self._reserved.values():
            reserved.update({sample: held._replace(spent=False) for sample, held in reserved.items()})
        for claims in self._claims.values():
            for claim in claims:
                claim.spent = False

    def request(self, sample: int) -> Served | Pending:
        """A turn for a sample that another home gave or has to give."""
        column = self._column_of[sample]
        if column in self._stash:
            return self._serve(self._unstash(sample, column, 0))
        if self._slot[column] >= 0:
            return self._serve(self._hit(sample, column))
        if self._reads_alone and self._home_of[sample] in self._lost:
            position = self._spend_position(sample, column)
            if position != OFF_TRACE:
                self._passed[self._home_of[sample]].append(position)
            return self._read_alone(sample)
        return self._wait(sample, column, reserves=False)

    def reserve(self, sample: int) -> int | Pending | None:
        """Reserve such a sample; None where what comes next may be one that is reserved already, or is nothing."""
        column = self._column_of[sample]
        if self._home_of[sample] in self._lost or any(claim.reserves for claim in self._claims.get(column, ())):
            return None
        reserved = self._reserved.get(column, {})
        for at, stashed in enumerate(self._stash.get(column, ())):
            if stashed.held.sample not in reserved:
                return self._reserve_held(column, self._unstash(sample, column, at))
        held = self._slot[column]
        if held >= 0 and held not in reserved:
            return self._reserve_held(column, self._hit(sample, column))
        return None if reserved or held >= 0 else self._wait(sample, column, reserves=True)

    def take(self, reserved: int) -> Served:
        """The turn of a sample that was reserved."""
        return self._serve(self._unreserve(reserved))

    def put_back(self, reserved: int) -> bool:
        """A sample that was reserved goes to the stash. False where its bytes do not fit."""
        return self._put_in_stash(self._unreserve(reserved))

    def reserved(self, sample: int) -> Iterable[int]:
        """What is reserved of ``sample``'s column, oldest first."""
        return self._reserved.get(self._column_of[sample], ())

    def cancel(self, ticket: int) -> None:
        """What comes for ``ticket`` goes to another claim, else to the stash; nothing where it has come."""
        sample = self._waited.pop(ticket, None)
        if sample is None:
            return
        (claim,) = (claim for claim in self._claims[self._column_of[sample]] if claim.ticket == ticket)
        claim.ticket, claim.reserves = NOBODY, False

    def receive(self, answer: RemoteAnswer) -> tuple[Delivered, ...] | None:
        """Alg. 6: put what came into the remote VC. Which tickets are answered by it; None for a repeated answer."""
        sent = self._unanswered[answer.home].pop(answer.number, None)
        if sent is None:
            return None
        self._free_bytes += sent.room
        delivered = []
        asked = None if answer.sample is None else answer.number
        for sample, lap in zip(answer.samples, answer.laps, strict=True):
            delivered += self._arrive(answer.home, sample, lap, asked)
            asked = None
        return tuple(delivered)

    def lost(self, home: int) -> tuple[Delivered, ...]:
        """Nobody waits for ``home`` who can do without; what it was asked for has no room any more."""
        if home in self._lost:
            return ()
        self._lost.add(home)
        unanswered = self._unanswered[home]
        for number, sent in unanswered.items():
            self._free_bytes += sent.room
            unanswered[number] = sent._replace(room=0)
        if not self._reads_alone:
            return ()
        waiting = {
            claim.ticket: claim
            for column, claims in self._claims.items()
            if self._is_of(home, column)
            for claim in claims
            if claim.ticket != NOBODY and not claim.reserves
        }
        delivered = []
        for ticket, claim in sorted(waiting.items()):
            # The path will not come back for what its position was spent on.
            claim.ticket, claim.spent = NOBODY, False
            delivered.append(Delivered(ticket, self._read_alone(self._waited.pop(ticket))))
        return tuple(delivered)

    def found(self, home: int) -> None:
        """``home`` answers again."""
        self._lost.discard(home)

    def restarted(self, home: int) -> None:
        """``home`` knows nothing but what the messages that are not answered will tell it, and those to come."""
        self._lost.discard(home)
        self._hits[home], self._passed[home] = [], []
        # Its laps begin anew. What is of the laps before has its turn in none of them.
        for stash in self._stash.values():
            for stashed in stash:
                if self._home_of[stashed.held.sample] == home:
                    stashed.held = stashed.held._replace(lap=0)
        for reserved in self._reserved.values():
            reserved.update({s: held._replace(lap=0) for s, held in reserved.items() if self._home_of[s] == home})
        for column in [column for column in np.flatnonzero(self._slots >= 0).tolist() if self._is_of(home, column)]:
            kept = column not in self._evicted
            self._evicted.discard(column)
            held = _Held(self._slot[column], 0, spent=False)
            self._stash.setdefault(column, deque()).append(_Stashed(held, kept=kept))
            self._slot[column] = -1
        told: dict[int, list[int]] = {}
        for number, sent in self._unanswered[home].items():
            for sample in (sent.message.sample, *(hit.sample for hit in sent.message.hits)):
                told.setdefault(self._column_of[sample], []).append(number)
        for column in {*told, *(column for column in self._claims if self._is_of(home, column))}:
            self._claim_what_is_told(column, told.get(column, []))

    def used_bytes(self) -> int:
        """Remote memory that holds samples or is granted to answers."""
        return self._limit_bytes - self._free_bytes

    def held(self) -> int:
        """Samples in the remote VCs and the stash, with and without their bytes."""
        return int(np.count_nonzero(self._slots >= 0)) + sum(map(len, self._stash.values()))

    def keeps(self, sample: int) -> bool:
        """Whether the bytes of ``sample`` count in the remote memory."""
        column = self._column_of[sample]
        if self._slot[column] == sample and column not in self._evicted:
            return True
        return any(stashed.held.sample == sample and stashed.kept for stashed in self._stash.get(column, ()))

    def _is_of(self, home: int, column: int) -> bool:
        return self._home_of_column[column] == home

    def _serve(self, held: _Held) -> Served:
        self._note(held.sample, held.lap)
        return Served(held.sample, remote=True)

    def _read_alone(self, sample: int) -> Served:
        self.degraded += 1
        return Served(sample, remote=True)

    def _claim_what_is_told(self, column: int, numbers: list[int]) -> None:
        """Make the column's claims those that the messages of ``numbers`` tell, and tell the others that are waited
        for once more."""
        told, others = [], []
        untold = numbers.copy()
        for claim in self._claims.pop(column, []):
            if claim.number in untold:
                untold.remove(claim.number)
                told.append(claim)
            else:
                others.append(claim)
        for claim in sorted(others, key=lambda claim: claim.ticket == NOBODY):
            if untold:
                claim.number = untold.pop(0)
            elif claim.ticket != NOBODY:
                claim.number = self._read(self._waited[claim.ticket], OFF_TRACE)
            else:
                continue
            told.append(claim)
        told += [_Claim(NOBODY, number, spent=False, reserves=False) for number in untold]
        if told:
            self._claims[column] = told

    def _wait(self, sample: int, column: int, *, reserves: bool) -> Pending:
        """Wait for what is under way for nobody, else for what a new message brings."""
        ticket = self._tickets
        self._tickets = ticket + 1
        self._waited[ticket] = sample
        claims = self._claims.setdefault(column, [])
        for claim in claims:
            if claim.ticket == NOBODY:
                claim.ticket, claim.reserves = ticket, reserves
                claim.spent = self._leave_position(sample, column, spent=claim.spent)
                return Pending(ticket)
        position = self._spend_position(sample, column)
        claims.append(_Claim(ticket, self._read(sample, position), position != OFF_TRACE, reserves))
        return Pending(ticket)

    def _read(self, sample: int, position: int) -> int:
        """Send a RemoteRead; its number."""
        home = self._home_of[sample]
        number = self._numbers[home]
        unanswered = self._unanswered[home]
        room = max(0, min(self._free_bytes, -(-self._limit_bytes // ROOM_PARTS)))
        self._numbers[home] = number + 1
        self._free_bytes -= room
        hits, self._hits[home] = tuple(self._hits[home]), []
        passed, self._passed[home] = tuple(self._passed[home]), []
        acked_below = next(iter(unanswered), number)
        message = RemoteRead(self._node, home, number, acked_below, sample, self._epoch, position, room, hits, passed)
        unanswered[number] = _Sent(message, room)
        self._send(message)
        return number

    def _hit(self, sample: int, column: int) -> _Held:
        """Claim what the slot holds."""
        held = self._slot[column]
        self._slot[column] = -1
        if column in self._evicted:
            self._evicted.remove(column)
        else:
            self._free_bytes += self._bytes_of[held]
        position = self._spend_position(sample, column)
        self._hits[self._home_of[held]].append(Hit(held, position))
        return _Held(held, self._slot_lap[column], position != OFF_TRACE)

    def _unstash(self, sample: int, column: int, at: int) -> _Held:
        """Take number ``at`` of the column's stash."""
        stash = self._stash[column]
        stashed = stash[at]
        del stash[at]
        if not stash:
            del self._stash[column]
        held = stashed.held
        if stashed.kept:
            self._free_bytes += self._bytes_of[held.sample]
        return held._replace(spent=self._leave_position(sample, column, spent=held.spent))

    def _put_in_stash(self, held: _Held) -> bool:
        """True where the bytes are kept."""
        kept = self._keep(held.sample)
        self._stash.setdefault(self._column_of[held.sample], deque()).append(_Stashed(held, kept))
        return kept

    def _keep(self, sample: int) -> bool:
        """Make the sample's bytes count in the remote memory, if they fit."""
        size = self._bytes_of[sample]
        if size > self._free_bytes:
            return False
        self._free_bytes -= size
        return True

    def _reserve_held(self, column: int, held: _Held) -> int:
        reserved = self._reserved.setdefault(column, {})
        assert held.sample not in reserved
        reserved[held.sample] = held
        return held.sample

    def _unreserve(self, sample: int) -> _Held:
        column = self._column_of[sample]
        reserved = self._reserved[column]
        held = reserved.pop(sample)
        if not reserved:
            del self._reserved[column]
        return held

    def _pass_by(self, sample: int) -> int:
        return OFF_TRACE if self._trace is None else self._trace.pass_by(sample)

    def _spend_position(self, sample: int, column: int) -> int:
        """The position that a claim for ``sample`` spends: its own, else one that is left over."""
        position = self._pass_by(sample)
        left_over = self._left_over.get(column)
        if position != OFF_TRACE or left_over is None:
            return position
        position = left_over.pop()
        if not left_over:
            del self._left_over[column]
        return position

    def _leave_position(self, sample: int, column: int, *, spent: bool) -> bool:
        """What was claimed before, and had a position ``spent`` on it or not, answers for ``sample``.

        Returns:
            Whether a position has been spent on it by now.
        """
        position = self._pass_by(sample)
        if position == OFF_TRACE:
            return spent
        if spent:
            self._left_over.setdefault(column, []).append(position)
        else:
            self._passed[self._home_of[sample]].append(position)
        return True

    def _arrive(self, home: int, sample: int, lap: int, asked: int | None) -> list[Delivered]:
        """A sample arrived, for message ``asked`` or ahead: to a claim that is waited for, else to a cancelled one,
        of these to the one that it was sent for, else to the oldest; where there is none, into the slot."""
        column = self._column_of[sample]
        claims = self._claims.get(column)
        if claims is None:
            if self._slot[column] >= 0:
                # Of a home that was started again, from before: else it sends no more than one ahead.
                self._put_in_stash(_Held(sample, lap, spent=False))
                return []
            self._slot[column], self._slot_lap[column] = sample, lap
            self.prefetched += 1
            if not self._keep(sample):
                self._evicted.add(column)
            return []
        claim = min(claims, key=lambda claim: (claim.ticket == NOBODY, claim.number != asked))
        claims.remove(claim)
        if not claims:
            del self._claims[column]
        unanswered = self._unanswered[home]
        if claim.number in unanswered:
            # The claim's own answer may still bring a sample, which will then lie where this one would have.
            room = max(0, min(self._bytes_of[sample], self._free_bytes))
            sent = unanswered[claim.number]
            unanswered[claim.number] = sent._replace(room=sent.room + room)
            self._free_bytes -= room
        held = _Held(sample, lap, claim.spent)
        if claim.ticket == NOBODY:
            self._put_in_stash(held)
            return []
        del self._waited[claim.ticket]
        if not claim.reserves:
            return [Delivered(claim.ticket, self._serve(held))]
        self._reserve_held(column, held)
        return [Delivered(claim.ticket, Served(sample, remote=True))]


class _Given(NamedTuple):
    """A sample that is given away in ``lap``."""

    sample: int
    lap: int


class _Peer:
    """What a home knows of one requester."""

    __slots__ = ("acked_below", "ahead", "answers", "is_ahead", "traces")

    def __init__(self, columns: int) -> None:
        self.is_ahead = np.zeros(columns, np.bool_)
        self.ahead: memoryview[int] = self.is_ahead.view(np.uint8).data
        self.answers: dict[int, RemoteAnswer] = {}
        self.acked_below = 0
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
        self.conflicts = 0
        self.missed = 0

    def follow(self, requester: int, epoch: int, order: Ints) -> None:
        """``requester`` asks for samples, anywhere, in ``order``, int[n]. May be told before its epoch begins."""
        here = order[self._home_of[order] == self._node]
        traces = self._peer(requester).traces
        traces[epoch] = HomeTrace(here, self._columns[here])
        while len(traces) > TRACES_KEPT:
            del traces[min(traces)]

    def restarted(self, requester: int) -> None:
        """``requester`` knows nothing any more: what was sent ahead to it has its turn in no lap of now."""
        peer = self._peers.pop(requester, None)
        if peer is not None:
            self.missed += int(np.count_nonzero(peer.is_ahead))

    def handle(self, message: RemoteRead) -> Handled:
        """Alg. 4 and 5: give the requester a sample, and those that it will want soon."""
        peer = self._peer(message.requester)
        if message.number < peer.acked_below:
            return Handled(None, repeated=True)
        kept = peer.answers.get(message.number)
        if kept is not None:
            return Handled(kept, repeated=True)
        self._forget_answers(peer, message.acked_below)
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
        if trace is not None and trace.pass_by(message.position) and message.room_bytes > 0 and self._window > 1:
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
        """The requester's trace of ``epoch``; those of epochs before are over, unless this message is a late one."""
        trace = peer.traces.get(epoch)
        if trace is not None and len(peer.traces) > 1:
            for old in [e for e in peer.traces if e < epoch]:
                del peer.traces[old]
        return trace

    def _end_ahead(self, peer: _Peer, sample: int) -> bool:
        """A claim of ``sample``'s column became known: whether a sample was sent ahead for it."""
        column = self._column_of[sample]
        if not peer.ahead[column]:
            return False
        peer.ahead[column] = 0
        return True

    def _give(self, sample: int, turns: list[Served]) -> _Given:
        turn = self._policy.request(sample)
        turns.append(turn)
        return _Given(turn.sample, self._policy.lap_of(turn.sample))

    def _prefetch(self, peer: _Peer, trace: HomeTrace, position: int, room_bytes: int) -> list[_Given]:
        """Alg. 5, lines 21 to 41: what is in memory for the window's requests and in no conflict, as far as it fits."""
        first, columns, ahead = trace.window(position, self._window)
        held = self._policy.residents_at(columns)
        possible = np.flatnonzero((held >= 0) & ahead)
        wanted = possible[~peer.is_ahead[columns[possible]]]
        if wanted.size:
            # Of several requests for one (VC, O) the first; the others are in conflict with it.
            wanted = wanted[np.sort(np.unique(columns[wanted], return_index=True)[1])]
        self.conflicts += len(possible) - len(wanted)
        wanted = wanted[np.cumsum(self._sample_bytes[held[wanted]]) <= room_bytes]
        peer.is_ahead[columns[wanted]] = True
        # They are in memory, so nothing is loaded for them.
        return [self._give(sample, []) for sample in trace.samples[first + wanted].tolist()]


class SlotNode:
    """One node of the distributed protocol: Alg. 1 for its own requests, a home for those of others.

    A `SharedPolicy`. Where the next sample of a (VC, O) at another home may be one that is reserved here already,
    `reserve` says None.

    Args:
        node: the number of this node.
        policy: decides about the VCs that live here; it knows the whole layout, and is asked for its own part alone.
        home_of: int[S], the node at which each sample lives: the same for all samples of a VC.
        sample_bytes: int[S], what each takes of the remote memory.
        remote_memory_bytes: the limit of this node's remote VCs and stash.
        window: P, the prefetch window in requests; one means no prefetch.
        reads_alone: whether what another home does not give can be read here, as on shared storage.
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
        reads_alone: bool = True,
    ) -> None:
        self.outbox: list[Message] = []
        # Nothing is ever taken out of a slot, or from who had it reserved, because of another node.
        self.unloaded: list[int] = []
        self.revoked: list[int] = []
        self._node = node
        self._policy = policy
        self._home_of: memoryview[int] = home_of.data
        self.home_of = home_of
        self._homes = int(home_of.max(initial=-1)) + 1
        self._home = Home(node, policy, home_of, sample_bytes, window=window)
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

    def follow(self, requester: int, epoch: int, order: Ints) -> None:
        """The trace of ``requester``, this node or another, for ``epoch``."""
        if requester == self._node:
            self._requester.follow(epoch, order)
        else:
            self._home.follow(requester, epoch, order)

    def request(self, sample: int) -> Served | Pending:
        """Alg. 1, ReadFile: a turn for a sample that may stand in for ``sample``."""
        if self._home_of[sample] == self._node:
            return self._note(self._policy.request(sample))
        return self._requester.request(sample)

    def reserve(self, sample: int) -> int | Pending | None:
        """Reserve a sample that may stand in for ``sample``; one of another home is claimed there at once."""
        if self._home_of[sample] == self._node:
            return self._policy.reserve(sample)
        return self._requester.reserve(sample)

    def take(self, reserved: int) -> Served:
        """The turn of a sample that was reserved."""
        if self._home_of[reserved] == self._node:
            return self._note(self._policy.take(reserved))
        return self._requester.take(reserved)

    def put_back(self, reserved: int) -> bool:
        """Undo a reservation. One of another home stays here, for whoever asks next, with its bytes if they fit."""
        if self._home_of[reserved] == self._node:
            return self._policy.put_back(reserved)
        return self._requester.put_back(reserved)

    def reserved(self, sample: int) -> Iterable[int]:
        """What is reserved and may stand in for ``sample``, oldest first."""
        if self._home_of[sample] == self._node:
            return self._policy.reserved(sample)
        return self._requester.reserved(sample)

    @property
    def choose_victim(self) -> ChooseVictim:
        """Which of the samples that are reserved here a turn takes. What another home gave is taken from nobody."""
        return self._policy.choose_victim

    @choose_victim.setter
    def choose_victim(self, choose: ChooseVictim) -> None:
        self._policy.choose_victim = choose

    def handle(self, message: Message) -> Handled:
        """Another node asks this one: see `Home.handle`."""
        assert isinstance(message, RemoteRead)
        return self._home.handle(message)

    def receive(self, answer: Answer) -> tuple[Delivered, ...] | None:
        """An answer came; None where it came before. What `keeps` then denies came for nobody, and did not fit."""
        assert isinstance(answer, RemoteAnswer)
        return self._requester.receive(answer)

    def lost(self, peer: int) -> tuple[Delivered, ...]:
        """``peer`` does not answer: where samples can be read here, who asked it is given what was asked for."""
        return self._requester.lost(peer) if peer < self._homes else ()

    def found(self, peer: int) -> tuple[Delivered, ...]:
        """``peer`` answers again. What it was asked for comes now, as answers to the messages it was sent."""
        self._requester.found(peer)
        return ()

    def restarted(self, peer: int) -> tuple[Delivered, ...]:
        """Another process is ``peer`` now. Whoever waits for it waits for the answers of that."""
        self._home.restarted(peer)
        if peer < self._homes:
            self._requester.restarted(peer)
            self._ledger.begin_anew(self.home_of == peer)
        return ()

    @property
    def given(self) -> int:
        """How many turns this node gave its readers since the first lap began; none that was `degraded`."""
        return self._ledger.given

    def turns(self) -> Turns:
        """What this node handed to its readers. A copy."""
        return self._ledger.turns()

    def merged(self, of_nodes: Sequence[Turns]) -> Turns:
        """What nodes handed to theirs together. Raises ValueError where one is of something else."""
        return merged(of_nodes, self._policy.columns)

    def restore(self, turns: Turns, own: Turns | None = None) -> None:
        """Go on where all nodes together were: before anything else, and at all of them alike. Raises ValueError."""
        self._policy.restore(turns)
        if own is None:
            self._ledger.restore_part(turns, self.home_of == self._node)
        else:
            self._ledger.restore(own)

    @property
    def missed(self) -> int:
        """Samples that were sent ahead to nodes which were started again before they had used them."""
        return self._home.missed

    @property
    def degraded(self) -> int:
        """How many requests were answered by the very sample asked for, as its home was lost."""
        return self._requester.degraded

    def cancel(self, ticket: int) -> None:
        """Nobody waits for ``ticket`` any more. Nothing happens where it was answered."""
        self._requester.cancel(ticket)

    def laps(self, samples: Ints) -> npt.NDArray[np.int32]:
        """The lap, counted from 1, that the column of each of ``samples`` is in; 1 for those of another home."""
        return self._policy.laps(samples)

    def chunk_of(self, sample: int) -> int:
        """The physical chunk that ``sample`` lies in."""
        return self._policy.chunk_of(sample)

    def is_taken(self, reserved: int) -> bool:
        """Whether ``reserved`` is of another home."""
        return self._home_of[reserved] != self._node

    def keeps(self, sample: int) -> bool:
        """Whether the bytes of ``sample``, of another home, count in the remote memory; where not, they may go."""
        return self._requester.keeps(sample)

    def held(self) -> int:
        """Samples of other homes that lie here for whoever asks next, with and without their bytes."""
        return self._requester.held()

    def used_bytes(self) -> int:
        """Remote memory that holds samples or is granted to answers."""
        return self._requester.used_bytes()

    def _note(self, turn: Served) -> Served:
        self._ledger.note(turn.sample, self._policy.lap_of(turn.sample))
        return turn

    @property
    def prefetched(self) -> int:
        """How many samples came into the remote VCs ahead of their request."""
        return self._requester.prefetched

    @property
    def conflicts(self) -> int:
        """How often this home left out a request of a prefetch window, though it had a sample for it in memory, as one
        was sent for its (VC, O) already. A request counts in every window that it is left out of."""
        return self._home.conflicts


def homes_by_vc(columns: npt.NDArray[np.int64], chunk_size: int, nodes: int) -> npt.NDArray[np.int8]:
    """int8[S]: the home of each sample where VCs are dealt to the nodes in turn."""
    homes: npt.NDArray[np.int8] = (columns // chunk_size % nodes).astype(np.int8)
    return homes
