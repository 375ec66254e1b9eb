"""The requester of the distributed slot protocol: it asks other homes for samples, and holds those that came ahead."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from redoxfs.arrays import Int64, Numbers
from redoxfs.protocol.events import Delivered, Pending, Served, SharedState
from redoxfs.protocol.slot_nodes.messages import Hit, RemoteAnswer, RemoteRead
from redoxfs.protocol.tables import MOST, StateReader, rows
from redoxfs.protocol.trace import OFF_TRACE, OwnTrace
from redoxfs.protocol.turns import LAST_LAP

ROOM_PARTS = 8
"""One answer may fill this fraction of the remote memory, 1/8. All of it would leave nothing for the requests of other
workers while one is under way. With the paper's settings an answer brings about 20 samples of the 1,750 that fit."""

MOST_PASSED = 1 << 16
"""Positions passed in one message; the next ones have the rest. So many pass while a home is lost for long, and a home
refuses a message of unlimited length each time that it comes."""

NOBODY = -1
"""The ticket of a claim that was cancelled."""


@dataclass(slots=True, eq=False)
class _Claim:
    """A claim that no sample has come for. ``number`` is its message's; ``spent``: it spent a position."""

    ticket: int
    number: int
    spent: bool
    reserves: bool


class _Held(NamedTuple):
    """A sample that the home gave in ``lap``; ``spent``: its claim spent a position."""

    sample: int
    lap: int
    spent: bool


@dataclass(slots=True, eq=False)
class _Stashed:
    """A sample in the stash; ``kept``: its bytes are in the remote memory."""

    held: _Held
    kept: bool


class _Sent(NamedTuple):
    """An unanswered message, and the remote memory granted to its answer."""

    message: RemoteRead
    room: int


class Requester:
    """One node's remote VCs and stash: Alg. 1, lines 5 to 15, and Alg. 6.

    Args:
        node: the number of this node.
        columns: int64[S], the column of each sample.
        home_of: int[S], the node at which each sample lives.
        sample_bytes: int[S], what each takes of the remote memory.
        remote_memory_bytes: the limit of the remote VCs, the stash, and room granted to answers.
        reads_alone: whether a sample of a lost home can be read here.
        send: called with each message.
        note: called with each sample that has its turn, and its lap.
    """

    def __init__(
        self,
        node: int,
        columns: Int64,
        home_of: Numbers,
        sample_bytes: Numbers,
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
        # By column: the reserved samples.
        self._reserved: dict[int, dict[int, _Held]] = {}
        self._limit_bytes = remote_memory_bytes
        self._free_bytes = remote_memory_bytes
        self.epoch = 0
        self._trace: OwnTrace | None = None
        self._hits: list[list[Hit]] = [[] for _ in range(homes)]
        self._passed: list[list[int]] = [[] for _ in range(homes)]
        # By column: the positions left over.
        self._left_over: dict[int, list[int]] = {}
        self._numbers = [0] * homes
        # For each home, by number, oldest first.
        self._unanswered: list[dict[int, _Sent]] = [{} for _ in range(homes)]
        # By column, oldest first; and by ticket that a request waits for, the sample asked for.
        self._claims: dict[int, list[_Claim]] = {}
        self._waited: dict[int, int] = {}
        self._tickets = 0

    def follow(self, epoch: int, order: Numbers) -> None:
        """From now on this node asks for samples in ``order``, int[n]."""
        self.epoch = epoch
        self._trace = OwnTrace(order.astype(np.int32), self._homes)
        for home, hits in enumerate(self._hits):
            self._hits[home] = [Hit(hit.sample, OFF_TRACE) for hit in hits]
        # Positions that paths left over in the epoch before are void.
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
        """Reserve such a sample. None where the next one may be reserved already, or where there is none."""
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
        """A reserved sample goes to the stash. False where its bytes do not fit."""
        return self._put_in_stash(self._unreserve(reserved))

    def reserved(self, sample: int) -> Iterable[int]:
        """The reserved samples of ``sample``'s column, oldest first."""
        return self._reserved.get(self._column_of[sample], ())

    def cancel(self, ticket: int) -> None:
        """A sample that comes for ``ticket`` goes to another claim, else to the stash. No effect once it has come."""
        sample = self._waited.pop(ticket, None)
        if sample is None:
            return
        (claim,) = (claim for claim in self._claims[self._column_of[sample]] if claim.ticket == ticket)
        claim.ticket, claim.reserves = NOBODY, False

    def receive(self, answer: RemoteAnswer) -> tuple[Delivered, ...] | None:
        """Alg. 6: put the samples of an answer into the remote VC. Returns the tickets that they answer; None if
        repeated.
        """
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
        """``home`` does not answer: requests that can do without it are answered, and its answers have no room any
        more.
        """
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
            # The path will not come back for the sample that its position was spent on.
            claim.ticket, claim.spent = NOBODY, False
            delivered.append(Delivered(ticket, self._read_alone(self._waited.pop(ticket))))
        return tuple(delivered)

    def found(self, home: int) -> None:
        """``home`` answers again."""
        self._lost.discard(home)

    def restarted(self, home: int) -> None:
        """``home`` knows nothing except the contents of unanswered and later messages."""
        self._lost.discard(home)
        self._hits[home], self._passed[home] = [], []
        # Its laps begin anew. Samples of its laps before have a turn in none of them.
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
        reported: dict[int, list[int]] = {}
        for number, sent in self._unanswered[home].items():
            for sample in (sent.message.sample, *(hit.sample for hit in sent.message.hits)):
                reported.setdefault(self._column_of[sample], []).append(number)
        for column in {*reported, *(column for column in self._claims if self._is_of(home, column))}:
            self._match_claims(column, reported.get(column, []))

    def used_bytes(self) -> int:
        """Remote memory that holds samples or is granted to answers."""
        return self._limit_bytes - self._free_bytes

    def held(self) -> int:
        """How many samples are in the remote VCs and the stash, with and without their bytes."""
        return int(np.count_nonzero(self._slots >= 0)) + sum(map(len, self._stash.values()))

    def keeps(self, sample: int) -> bool:
        """Whether the bytes of ``sample`` count in the remote memory."""
        column = self._column_of[sample]
        if self._slot[column] == sample and column not in self._evicted:
            return True
        return any(stashed.held.sample == sample and stashed.kept for stashed in self._stash.get(column, ()))

    def state(self) -> SharedState:
        """All that decides what later events mean. A copy."""
        slots = np.flatnonzero(self._slots >= 0).tolist()
        sent = [each for of_home in self._unanswered for each in of_home.values()]
        values = {
            "prefetched": self.prefetched,
            "degraded": self.degraded,
            "free_bytes": self._free_bytes,
            "epoch": self.epoch,
            "tickets": self._tickets,
            "follows": int(self._trace is not None),
        }
        arrays: dict[str, Numbers] = {
            "lost": rows(((home,) for home in sorted(self._lost)), 1),
            "slots": rows(((self._slot[at], self._slot_lap[at], at in self._evicted) for at in slots), 3),
            "stash": rows(((*each.held, each.kept) for stash in self._stash.values() for each in stash), 4),
            "reserved": rows((held for column in self._reserved.values() for held in column.values()), 3),
            # One more than each position: `OFF_TRACE` is below zero.
            "hits": rows(((home, h.sample, h.position + 1) for home, hits in enumerate(self._hits) for h in hits), 3),
            "passed": rows(((home, position) for home, passed in enumerate(self._passed) for position in passed), 2),
            "left_over": rows(((at, position) for at, left in self._left_over.items() for position in left), 2),
            "numbers": rows(((number,) for number in self._numbers), 1),
            "unanswered": rows(
                ((room, *m[1:6], m.position + 1, m.room_bytes, len(m.hits), len(m.passed)) for m, room in sent), 10
            ),
            "claimed": rows(((hit.sample, hit.position + 1) for each in sent for hit in each.message.hits), 2),
            "past": rows(((position,) for each in sent for position in each.message.passed), 1),
            "claims": rows(
                (
                    (column, claim.ticket + 1, claim.number, claim.spent, claim.reserves)
                    for column, claims in self._claims.items()
                    for claim in claims
                ),
                5,
            ),
            "waited": rows(self._waited.items(), 2),
            "order": np.zeros(0, np.int32) if self._trace is None else self._trace.order,
            "spent": np.zeros(0, np.uint8) if self._trace is None else self._trace.spent(),
        }
        return SharedState(values, arrays)

    def resume(self, reader: StateReader) -> None:
        """Continue where another process was. Raises ValueError."""
        samples, homes, columns = len(self._homes), len(self._hits), len(self._slots)
        self.prefetched, self.degraded = reader.value("prefetched"), reader.value("degraded")
        self._free_bytes, self._tickets = reader.number("free_bytes"), reader.value("tickets")
        self.epoch = reader.value("epoch")
        order = reader.order("order", samples)
        spent = reader.flags("spent", len(order))
        self._trace = OwnTrace(order, self._homes, spent) if reader.value("follows") else None
        self._lost = {home for (home,) in reader.table("lost", homes)}
        for sample, lap, is_evicted in reader.table("slots", samples, LAST_LAP + 1, 2):
            column = self._column_of[sample]
            self._slot[column], self._slot_lap[column] = sample, lap
            if is_evicted:
                self._evicted.add(column)
        for sample, lap, is_spent, kept in reader.table("stash", samples, LAST_LAP + 1, 2, 2):
            held = _Held(sample, lap, spent=bool(is_spent))
            self._stash.setdefault(self._column_of[sample], deque()).append(_Stashed(held, bool(kept)))
        for sample, lap, is_spent in reader.table("reserved", samples, LAST_LAP + 1, 2):
            self._reserved.setdefault(self._column_of[sample], {})[sample] = _Held(sample, lap, bool(is_spent))
        for home, sample, after in reader.table("hits", homes, samples, MOST):
            self._hits[home].append(Hit(sample, after - 1))
        for home, position in reader.table("passed", homes, MOST):
            self._passed[home].append(position)
        for column, position in reader.table("left_over", columns, MOST):
            self._left_over.setdefault(column, []).append(position)
        self._numbers = [number for (number,) in reader.table("numbers", MOST)]
        if len(self._numbers) != homes:
            raise ValueError(f"the state has {len(self._numbers)} homes, not {homes}")
        claimed = [Hit(sample, after - 1) for sample, after in reader.table("claimed", samples, MOST)]
        past = [position for (position,) in reader.table("past", MOST)]
        for room, home, number, acked_below, sample, epoch, after, room_bytes, hit_count, passed_count in reader.table(
            "unanswered", MOST, homes, MOST, MOST, samples, MOST, MOST, MOST, len(claimed) + 1, len(past) + 1
        ):
            hits, claimed = tuple(claimed[:hit_count]), claimed[hit_count:]
            passed, past = tuple(past[:passed_count]), past[passed_count:]
            message = RemoteRead(
                self._node, home, number, acked_below, sample, epoch, after - 1, room_bytes, hits, passed
            )
            self._unanswered[home][number] = _Sent(message, room)
        for column, tickets, number, is_spent, reserves in reader.table("claims", columns, MOST, MOST, 2, 2):
            claim = _Claim(tickets - 1, number, spent=bool(is_spent), reserves=bool(reserves))
            self._claims.setdefault(column, []).append(claim)
        self._waited = {row[0]: row[1] for row in reader.table("waited", MOST, samples)}

    def unanswered(self) -> tuple[RemoteRead, ...]:
        """The messages without an answer, those to each home oldest first."""
        return tuple([sent.message for of_home in self._unanswered for sent in of_home.values()])

    def _is_of(self, home: int, column: int) -> bool:
        return self._home_of_column[column] == home

    def _serve(self, held: _Held) -> Served:
        self._note(held.sample, held.lap)
        return Served(held.sample, remote=True)

    def _read_alone(self, sample: int) -> Served:
        """The home does not know of this turn, and no lap counts it."""
        self.degraded += 1
        return Served(sample, remote=True)

    def _match_claims(self, column: int, numbers: list[int]) -> None:
        """Make the column's claims those that the messages of ``numbers`` report, and report waiting ones without a
        message again.
        """
        reported, others = [], []
        unreported = numbers.copy()
        for claim in self._claims.pop(column, []):
            if claim.number in unreported:
                unreported.remove(claim.number)
                reported.append(claim)
            else:
                others.append(claim)
        for claim in sorted(others, key=lambda claim: claim.ticket == NOBODY):
            if unreported:
                claim.number = unreported.pop(0)
            elif claim.ticket != NOBODY:
                claim.number = self._read(self._waited[claim.ticket], OFF_TRACE)
            else:
                continue
            reported.append(claim)
        reported += [_Claim(NOBODY, number, spent=False, reserves=False) for number in unreported]
        if reported:
            self._claims[column] = reported

    def _wait(self, sample: int, column: int, *, reserves: bool) -> Pending:
        """Wait for a sample that is under way for a cancelled claim, else for the answer to a new message."""
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
        """Send a RemoteRead; returns its number."""
        home = self._home_of[sample]
        number = self._numbers[home]
        unanswered = self._unanswered[home]
        room = max(0, min(self._free_bytes, -(-self._limit_bytes // ROOM_PARTS)))
        self._numbers[home] = number + 1
        self._free_bytes -= room
        hits, self._hits[home] = tuple(self._hits[home]), []
        passed = tuple(self._passed[home][:MOST_PASSED])
        del self._passed[home][:MOST_PASSED]
        acked_below = next(iter(unanswered), number)
        message = RemoteRead(self._node, home, number, acked_below, sample, self.epoch, position, room, hits, passed)
        unanswered[number] = _Sent(message, room)
        self._send(message)
        return number

    def _hit(self, sample: int, column: int) -> _Held:
        """Claim the sample in the slot."""
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
        """Add a sample to the stash. True where its bytes are kept."""
        kept = self._keep(held.sample)
        self._stash.setdefault(self._column_of[held.sample], deque()).append(_Stashed(held, kept))
        return kept

    def _keep(self, sample: int) -> bool:
        """Count the sample's bytes in the remote memory, if they fit."""
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
        """An earlier claim, which ``spent`` a position or not, answers for ``sample``.

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
        """A sample arrived, for message ``asked`` or ahead. It goes to a claim that a request waits for, else to a
        cancelled one; of several to the one that it was sent for, else to the oldest. If there is none, it goes into
        the slot.
        """
        column = self._column_of[sample]
        claims = self._claims.get(column)
        if claims is None:
            if self._slot[column] >= 0:
                # From the old process of a restarted home: a home sends at most one ahead.
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
