"""What an open of a path means: the state machine of one path, free → (reserved) → bound → held → free.

A path's *answer* is the sample whose bytes its handles serve. The policy decides an answer only when a path takes a
*turn*. Every other open is answered here and consumes nothing. "Path" means the sample A that the opened file belongs
to: with groups all files of A are bound as one.

Theory of operation. `_outcome` names what an open by a thread would be. `open` and `stat` share it, so a stat reports
what the open will do:

    JOIN       a handle on A is open, or (groups) this file was not yet opened under the answer
    LOOK       a second look: the thread holds A, so it gets the same answer again. Callers that cannot be seen hold
               A by path (`protocol.unseen`)
    RESERVED   a stat reserved a sample for A
    TURN       the policy decides

A lap may have only reserved samples left. Then an open preempts one of them, and a stat takes one over if its present
owner is less likely to open it (`_weight`). So a program that lists the tree and opens nothing does not change what
a reader sees.

On several nodes the policy may answer a turn later (`Pending`). The path is bound at once, and its answer is UNDECIDED
until `decide`; opens join it meanwhile. A stat whose reservation is Pending is repeated after `promise`.

Two rules for whoever edits this file:

1. A thread's hold on A is true only of A's present answer. Whatever gives A another answer drops all holds.
2. Priorities are those of the contract: class, whole bytes, fairness, group, size. A path with an open handle never
   changes its answer, whatever a reservation promised; a group is never torn to honor a size.

There are no clocks and no counts of opens: either would make an epoch of a small dataset inexact. Holds belong to
threads, not to processes: a reader with several threads opens several samples at once, and a process-wide hold would
take one reader's turn for another's second look.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, KeysView
from enum import Enum, auto
from itertools import islice

import numpy as np
import numpy.typing as npt

from redoxfs.arrays import Int64, Numbers, distinct
from redoxfs.protocol.events import (
    Closed,
    Delivered,
    Opened,
    Pending,
    Policy,
    Served,
    SharedPolicy,
    StatResult,
    ThreadEnded,
)
from redoxfs.protocol.tables import BindingTables, column, rows
from redoxfs.protocol.unseen import TURNS, TreeOf, UnseenHolds

UNDECIDED = -2
"""In place of an answer that another node has to provide. No answer at all is -1."""

UNKNOWN_THREAD = 0
"""Any caller that the daemon cannot see (another pid namespace). They hold by path, and reserve nothing."""

RESERVATIONS_PER_THREAD = 64
"""A batch whose files are all stat'ed first fits in. A walker, which stats without end, is recognized after this
many."""

VICTIMS_LOOKED_AT = 256
"""How many reservations of a column are compared to choose the one to end. A walker's are old, so they are among the
first. Comparing more would slow opens down where a column has thousands."""

RESERVATIONS = 16_384
"""In all: 256 threads with a full batch each. Past it the oldest ends."""

HOLDS = 65_536
"""The threads of a node in one epoch, with room to spare. A hold that is dropped early costs one size or second
look."""

CALLERS = 65_536
"""How many threads are known as readers or walkers: likewise. A forgotten one counts as new."""

MAX_FILES_PER_SAMPLE = 64
"""One bit each in a 64-bit word marks the files of a group that were opened under its answer."""


class _Outcome(Enum):
    JOIN = auto()
    LOOK = auto()
    RESERVED = auto()
    TURN = auto()


# Looking a member up in its Enum costs more than all that an open decides with it.
JOIN, LOOK, RESERVED, TURN = _Outcome

# Made once, as most closes are one of these.
NOT_LAST = Closed(last=False, released=())
LAST = Closed(last=True, released=())

NONE: frozenset[int] = frozenset()


class _Caller:
    """What is known of a thread.

    ``opened``  whether it ever opened a file
    ``asked``   how many sizes it asked for; asking again for the same answer does not count
    ``since``   how many of these since it last opened a file
    """

    __slots__ = ("asked", "opened", "since")

    def __init__(self) -> None:
        self.opened = False
        self.asked = 0
        self.since = 0


class _Reservation:
    """A sample reserved for a path: the ``number``-th reservation, owned by thread ``owner``.

    ``seen_by`` has the threads that saw its size, the owner among them: how many sizes each had ``asked`` for by then.
    """

    __slots__ = ("number", "owner", "sample", "seen_by")

    def __init__(self, sample: int, owner: int, number: int) -> None:
        self.sample = sample
        self.owner = owner
        self.number = number
        self.seen_by: dict[int, int] = {}


class Binding:
    """Binds the paths of a dataset to samples, under the turns that ``policy`` gives.

    Args:
        policy: decides the turns.
        files: int[S], how many files each sample has (1 where there are no groups, at most 64).
        tree_of: makes int[S], the number of each sample's class tree; None: there is one.
        reservations, reservations_per_thread, holds, callers: bounds of the tables.
        unseen: how many paths callers that cannot be seen hold.
    """

    was_read: bool = True
    """Whether the bytes of the last open had been read ahead of it. If they are read now, that is again."""

    def __init__(
        self,
        policy: Policy | SharedPolicy,
        files: Numbers,
        *,
        tree_of: TreeOf | None = None,
        reservations: int = RESERVATIONS,
        reservations_per_thread: int = RESERVATIONS_PER_THREAD,
        holds: int = HOLDS,
        callers: int = CALLERS,
        unseen: int = TURNS,
    ) -> None:
        if files.size and files.max() > MAX_FILES_PER_SAMPLE:
            raise ValueError(f"a sample may have at most {MAX_FILES_PER_SAMPLE} files")
        self._policy = policy
        policy.choose_victim = self._choose_victim
        self._answer: memoryview[int] = np.full(len(files), -1, np.int32).data
        # Which files were opened under the answer. With one file each, an answer is opened as it is made.
        grouped = bool(files.size) and int(files.max()) > 1
        self._opened: memoryview[int] | None = np.zeros(len(files), np.uint64).data if grouped else None
        self._all_opened: memoryview[int] | None = _all_bits(files).data if grouped else None
        self._handles: dict[int, int] = {}
        self._holds: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._unseen = UnseenHolds(tree_of or (lambda: np.zeros(len(files), np.int32)), unseen)
        self._held_unseen = self._unseen.held
        self._paths_of: dict[int, set[int]] = {}
        self._threads_of: dict[int, set[int]] = {}
        self._reservations: OrderedDict[int, _Reservation] = OrderedDict()
        self._reserved_for: dict[int, int] = {}
        self._reserved_by: dict[int, set[int]] = {}
        # The threads that have reservations, and those that hold paths.
        self.reservers: KeysView[int] = self._reserved_by.keys()
        self.holders: KeysView[int] = self._paths_of.keys()
        self._seen_by: dict[int, set[int]] = {}
        self._reservations_made = 0
        self._callers: OrderedDict[int, _Caller] = OrderedDict()
        self._max_reservations = reservations
        self._max_reservations_per_thread = reservations_per_thread
        self._max_holds = holds
        self._max_callers = callers

    def open(self, path: int, file: int, thread: int) -> Opened:
        """An open of file number ``file`` of sample ``path`` by ``thread``."""
        outcome = self._outcome(path, file, thread)
        turn: Served | Pending | None = None
        if outcome is RESERVED:
            reservation = self._drop_reservation(path)
            turn = self._policy.take(reservation.sample, path)
            self._answer_anew(path, turn.sample)
            for seer in reservation.seen_by:
                self._hold(seer, path)
        elif outcome is TURN:
            turn = self._policy.request(path)
            if isinstance(turn, Served):
                if turn.preempted:
                    self.revoke(turn.sample)
                self._answer_anew(path, turn.sample)
            else:
                self._answer_anew(path, UNDECIDED)
        handles = self._handles.get(path, 0)
        fresh = self._mark_opened(path, file) if self._opened is not None else handles == 0
        self._handles[path] = handles + 1
        if thread != UNKNOWN_THREAD:
            caller = self._callers.get(thread) or self._meet(thread)
            caller.opened = True
            caller.since = 0
            released = self._move_hold(thread, path)
        else:
            released = self._hold_unseen(path, has_turn=turn is not None)
        return Opened(self._answer[path], turn, fresh, released)

    def renew(self, policy: Policy | SharedPolicy) -> None:
        """Another policy decides from now on. Reservations of the one before are void."""
        for path in tuple(self._reservations):
            self._drop_reservation(path)
        self.follow(policy)

    def follow(self, policy: Policy | SharedPolicy) -> None:
        """Another policy decides from now on. It has the same reservations."""
        self._policy = policy
        policy.choose_victim = self._choose_victim

    def tables(self) -> BindingTables:
        """A copy of all that decides what later events mean. Another binding can continue from it (`resume`).

        A path that is neither open nor held, nor part of a group at rest, is left out: its next open takes a turn.
        """
        bound = np.fromiter({*self._handles, *self._threads_of, *self._held_unseen}, np.int64)
        kept = distinct(np.concatenate([bound, self._at_rest()]))
        bits = np.zeros(len(kept), np.uint64) if self._opened is None else np.asarray(self._opened)[kept]
        reservations = self._reservations.items()
        unseen_trees, unseen_turns = self._unseen.pass_arrays()
        return BindingTables(
            answers=np.stack([kept, np.asarray(self._answer)[kept].astype(np.int64), bits.view(np.int64)], axis=1),
            handles=rows(self._handles.items(), 2),
            holds=rows(self._holds, 2),
            reservations=rows(((path, each.sample, each.owner, each.number) for path, each in reservations), 4),
            seen_by=rows(((path, *seen) for path, each in reservations for seen in each.seen_by.items()), 3),
            reservers=column(self._reserved_by),
            callers=rows(((thread, c.opened, c.asked, c.since) for thread, c in self._callers.items()), 4),
            reservations_made=self._reservations_made,
            unseen=rows(self._held_unseen.items(), 2),
            unseen_trees=unseen_trees,
            unseen_turns=unseen_turns,
        )

    def resume(self, tables: BindingTables) -> None:
        """Continue where another binding of the same samples was. Before any event.

        Raises:
            ValueError: the tables are of other samples; the binding is of no use then.
        """
        samples = len(self._answer)
        numbers = np.concatenate([tables.answers[:, 0], tables.reservations[:, 0], tables.reservations[:, 1]])
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < samples:
            raise ValueError(f"the paths are not those of {samples} samples")
        paths = tables.answers[:, 0]
        np.asarray(self._answer)[paths] = tables.answers[:, 1]
        if self._opened is not None:
            np.asarray(self._opened)[paths] = np.ascontiguousarray(tables.answers[:, 2]).view(np.uint64)
        self._unseen.resume(tables.unseen.tolist(), tables.unseen_trees, tables.unseen_turns)
        self._handles.update(tables.handles.tolist())
        for thread, path in tables.holds.tolist():
            self._hold(thread, path)
        self._reserved_by.update((thread, set()) for thread in tables.reservers.tolist())
        for path, sample, owner, number in tables.reservations.tolist():
            self._reservations[path] = _Reservation(sample, owner, number)
            self._reserved_for[sample] = path
            self._reserved_by[owner].add(path)
        for path, thread, asked in tables.seen_by.tolist():
            self._reservations[path].seen_by[thread] = asked
            self._seen_by.setdefault(thread, set()).add(path)
        for thread, has_opened, asked, since in tables.callers.tolist():
            caller = self._callers[thread] = _Caller()
            caller.opened, caller.asked, caller.since = bool(has_opened), asked, since
        self._reservations_made = tables.reservations_made

    def reserved_samples(self) -> tuple[int, ...]:
        """The samples that are reserved for paths, in the order of the reservations."""
        return tuple(each.sample for each in self._reservations.values())

    def let_go(self) -> tuple[int, ...]:
        """End all holds and groups at rest, so that the next open of a closed path takes a turn; returns the paths
        whose last answer may go.
        """
        rest = [path for path in self._at_rest().tolist() if path not in self._handles]
        if rest:
            np.asarray(self._opened)[rest] = np.asarray(self._all_opened)[rest]
        held = [path for thread in tuple(self._paths_of) for path in self._end_holds(thread, None)]
        unseen = [path for path in self._unseen.drop_all() if not self._wanted(path)]
        return tuple({*rest, *held, *unseen})

    def ask_again(self, path: int) -> Served | Pending:
        """Another turn, for an undecided path whose first turn was lost with the policy before."""
        assert self._answer[path] == UNDECIDED
        turn = self._policy.request(path)
        if isinstance(turn, Served) and turn.preempted:
            self.revoke(turn.sample)
        return turn

    def revoke_preempted(self, delivered: Iterable[Delivered]) -> None:
        """End the reservations that ``delivered`` preempts. Before `decide` or `promise` is called for any of them.

        They are over at the policy. Of too many reservations `promise` puts one back there, which must not be one of
        these.
        """
        for each in delivered:
            if each.served is not None and each.served.preempted:
                self.revoke(each.served.sample)

    def decide(self, path: int, served: Served) -> None:
        """Set the answer that ``path`` waited for. Only while it is open and undecided."""
        assert path in self._handles
        assert self._answer[path] == UNDECIDED
        self._answer[path] = served.sample

    def stat(self, path: int, file: int, thread: int) -> StatResult:
        """A stat of a file: what its open by the same thread would serve. Reserves that; loads nothing.

        Not for a path that is undecided: its stats wait for the answer.
        """
        outcome = self._outcome(path, file, thread)
        if outcome is JOIN or outcome is LOOK:
            bound = path in self._handles
            # A stat of a group at rest makes no hold: it would turn the next epoch's open of a file that was
            # opened already into a second look.
            if bound:
                self._hold(thread, path)
            return StatResult(self._answer[path], bound)
        if outcome is RESERVED:
            reservation = self._reservations[path]
            self._show(path, thread)
            return StatResult(reservation.sample, bound=False)
        if thread == UNKNOWN_THREAD:
            return StatResult(None, bound=False)
        caller = self._callers.get(thread) or self._meet(thread)
        caller.asked += 1
        caller.since += 1
        if caller.since > self._max_reservations_per_thread:
            return StatResult(None, bound=False)
        reserved = self._policy.reserve(path)
        if isinstance(reserved, Pending):
            return StatResult(None, bound=False, pending=reserved)
        is_new = reserved is not None
        if reserved is None:
            reserved = self._take_over(path, thread)
            if reserved is None:
                return StatResult(None, bound=False)
        unloaded = self._reserve(path, thread, reserved)
        return StatResult(reserved, bound=False, reserved=is_new, unloaded=unloaded)

    def promise(self, path: int, thread: int, sample: int) -> StatResult:
        """The policy has reserved ``sample`` for a stat of ``path`` by ``thread``, which may be repeated now.

        If the path got an answer or a reservation meanwhile, the sample is put back.
        """
        if path not in self._handles and path not in self._reservations:
            return StatResult(sample, bound=False, reserved=True, unloaded=self._reserve(path, thread, sample))
        return StatResult(None, bound=False, unloaded=() if self._policy.put_back(sample) else (sample,))

    def revoke(self, sample: int) -> None:
        """The policy has given ``sample``, which was reserved for a path, another turn."""
        self._drop_reservation(self._reserved_for[sample])

    def close(self, path: int) -> Closed:
        """A handle on a file of ``path`` was closed."""
        handles = self._handles[path] - 1
        if handles:
            self._handles[path] = handles
            return NOT_LAST
        del self._handles[path]
        return LAST if self._wanted(path) else Closed(last=True, released=(path,))

    def fail(self, path: int, thread: int) -> Closed:
        """The open failed: its turn is over, and no second look repeats it."""
        self._unhold(thread, path)
        if thread == UNKNOWN_THREAD:
            self._unseen.drop(path)
        if self._handles[path] == 1:
            self._unhold_all(path)
        return self.close(path)

    def thread(self, thread: int) -> ThreadEnded:
        """``thread`` is dead. Its holds end, and so do the reservations whose size no other thread saw."""
        self._callers.pop(thread, None)
        unloaded: list[int] = []
        # Another thread may get its number.
        for path in self._seen_by.pop(thread, ()):
            del self._reservations[path].seen_by[thread]
        for path in sorted(self._reserved_by.get(thread, ())):
            reservation = self._reservations[path]
            if reservation.seen_by:
                self._pass_on(path, next(iter(reservation.seen_by)))
            else:
                unloaded += self._undo_reservation(path)
        return ThreadEnded(self._end_holds(thread, None), tuple(unloaded))

    def end_holds(self, thread: int, among: Callable[[int], bool]) -> tuple[int, ...]:
        """End the holds of ``thread`` on the paths that ``among`` takes. Returns those that are not wanted any more."""
        paths = [path for path in self._paths_of.get(thread, NONE) if among(path)]
        for path in paths:
            self._unhold(thread, path)
        return tuple(path for path in paths if not self._wanted(path))

    def holds(self, thread: int, path: int) -> bool:
        """Whether ``thread`` opened ``path``, or saw its size, under the present answer."""
        return path in self._paths_of.get(thread, NONE)

    def depends_on(self, thread: int, path: int, *, opens: bool) -> bool:
        """Whether a request of ``thread`` for ``path`` depends on state that an earlier request of the thread left.

        If so, the caller must check that the thread is still the same one. An open ends the thread's other holds. A
        stat leaves them, so a new thread with the same number would inherit them.
        """
        if not opens and thread in self._paths_of:
            return True
        if path in self._handles:
            return False
        if path in self._paths_of.get(thread, NONE):
            return True
        reservation = self._reservations.get(path)
        if (reservation is not None and thread in reservation.seen_by) or thread in self._reserved_by:
            return True
        caller = self._callers.get(thread)
        return caller is not None and caller.since >= self._max_reservations_per_thread

    def is_bound(self, path: int) -> bool:
        """Whether a handle on a file of ``path`` is open."""
        return path in self._handles

    def opens(self, path: int) -> int:
        """How many handles on files of ``path`` are open."""
        return self._handles.get(path, 0)

    def answer(self, path: int) -> int | None:
        """The sample that ``path`` last served. None before its first open, and while it is undecided."""
        answer: int = self._answer[path]
        return None if answer < 0 else answer

    def present_answer(self, path: int) -> int:
        """As `answer`, of a path that has one."""
        answer = self.answer(path)
        assert answer is not None
        return answer

    def counts(self) -> dict[str, int]:
        """Sizes of the tables, for statistics and leak tests."""
        return {
            "bound": len(self._handles),
            "holds": len(self._holds),
            "reservations": len(self._reservations),
        }

    def _outcome(self, path: int, file: int, thread: int) -> _Outcome:
        if path in self._handles:
            return JOIN
        if path in self._paths_of.get(thread, NONE):
            return LOOK
        if thread == UNKNOWN_THREAD and self._unseen.looks(path):
            return LOOK
        at_rest = self._opened is not None and self._answer[path] >= 0
        if at_rest and not self._was_opened(path, file):
            # Also for a thread that was told the size of the next sample, of a file that was opened already.
            return JOIN
        return RESERVED if path in self._reservations else TURN

    def _answer_anew(self, path: int, sample: int) -> None:
        self._answer[path] = sample
        if self._opened is not None:
            self._opened[path] = 0
        if path in self._threads_of or self._held_unseen:
            self._unhold_all(path)

    def _was_opened(self, path: int, file: int) -> bool:
        assert self._opened is not None
        return bool(self._opened[path] >> file & 1)

    def _mark_opened(self, path: int, file: int) -> bool:
        """Mark a file as opened under the answer. True where it was not marked before."""
        assert self._opened is not None
        before = self._opened[path]
        self._opened[path] = before | 1 << file
        return not before >> file & 1

    def _at_rest(self) -> Int64:
        """The paths of groups of which some files were opened under the answer, and others are to come."""
        if self._opened is None:
            return np.zeros(0, np.int64)
        return np.flatnonzero(
            (np.asarray(self._answer) >= 0) & (np.asarray(self._opened) != np.asarray(self._all_opened))
        )

    def _wanted(self, path: int) -> bool:
        """Whether an open may still get the path's present answer."""
        if path in self._handles or path in self._threads_of or path in self._held_unseen:
            return True
        if self._opened is None or self._all_opened is None:
            return False
        return bool(self._answer[path] >= 0 and self._opened[path] != self._all_opened[path])

    def _hold(self, thread: int, path: int) -> None:
        if thread == UNKNOWN_THREAD:
            return
        self._holds[thread, path] = None
        self._paths_of.setdefault(thread, set()).add(path)
        self._threads_of.setdefault(path, set()).add(thread)
        if len(self._holds) > self._max_holds:
            self._unhold(*next(iter(self._holds)))

    def _hold_unseen(self, path: int, *, has_turn: bool) -> tuple[int, ...]:
        """Unseen callers hold what they opened. Returns the path that is not wanted any more for it."""
        if not has_turn:
            self._unseen.opened(path)
            return ()
        gone = self._unseen.turn(path)
        return () if gone is None or self._wanted(gone) else (gone,)

    def _unhold_all(self, path: int) -> None:
        if self._held_unseen:
            self._unseen.drop(path)
        for thread in tuple(self._threads_of.get(path, ())):
            self._unhold(thread, path)

    def _unhold(self, thread: int, path: int) -> None:
        if (thread, path) not in self._holds:
            return
        del self._holds[thread, path]
        _discard(self._paths_of, thread, path)
        _discard(self._threads_of, path, thread)

    def _move_hold(self, thread: int, path: int) -> tuple[int, ...]:
        """A thread holds one path: opening ``path`` ends its other holds."""
        paths = self._paths_of.get(thread)
        if paths is None:
            self._hold(thread, path)
            return ()
        if len(paths) > 1:
            released = self._end_holds(thread, path)
            self._hold(thread, path)
            return released
        if path in paths:
            return ()
        # Nearly every open: `_end_holds` and `_hold`, written out.
        other = paths.pop()
        paths.add(path)
        del self._holds[thread, other]
        self._holds[thread, path] = None
        threads = self._threads_of[other]
        threads.discard(thread)
        if not threads:
            del self._threads_of[other]
        self._threads_of.setdefault(path, set()).add(thread)
        return () if self._wanted(other) else (other,)

    def _end_holds(self, thread: int, except_path: int | None) -> tuple[int, ...]:
        # All of the thread's holds at once, as every open does: cheaper than one after the other.
        paths = self._paths_of.pop(thread, NONE)
        if except_path is not None and except_path in paths:
            self._paths_of[thread] = {except_path}
        released = []
        for path in paths:
            if path != except_path:
                del self._holds[thread, path]
                _discard(self._threads_of, path, thread)
                if not self._wanted(path):
                    released.append(path)
        return tuple(released)

    def _meet(self, thread: int) -> _Caller:
        """Register a thread of which nothing is known."""
        caller = self._callers[thread] = _Caller()
        if len(self._callers) > self._max_callers:
            self._callers.popitem(last=False)
        return caller

    def _show(self, path: int, thread: int) -> None:
        """``thread`` sees the size of what is reserved for ``path``."""
        if thread != UNKNOWN_THREAD:
            self._reservations[path].seen_by[thread] = (self._callers.get(thread) or self._meet(thread)).asked
            self._seen_by.setdefault(thread, set()).add(path)

    def _unlikely(self, thread: int, asked: int) -> int:
        """How unlikely ``thread`` is to open a sample whose size it saw when it had ``asked`` for so many.

        A reader opens what it asked for last. A thread that never opened a file is less likely to open this one, and a
        walker is the least likely.
        """
        limit = self._max_reservations_per_thread
        caller = self._callers.get(thread)
        if caller is None:
            return 3 * limit
        behind = 0 if caller.opened else limit
        if caller.since > limit:
            behind = 2 * limit
        return behind + caller.asked - asked

    def _weight(self, sample: int) -> tuple[int, int]:
        """Orders reserved samples: the reservation with the greatest weight ends first."""
        path = self._reserved_for.get(sample)
        if path is None:
            # A policy of several nodes may reserve several at once, before the binding records them.
            return -1, 0
        reservation = self._reservations[path]
        return min([self._unlikely(*seen) for seen in reservation.seen_by.items()]), -reservation.number

    def _choose_victim(self, reserved: Iterable[int]) -> int:
        """The `ChooseVictim` of the policy."""
        return max(islice(reserved, VICTIMS_LOOKED_AT), key=self._weight)

    def _take_over(self, path: int, thread: int) -> int | None:
        """A reserved sample that its path is less likely to open than ``path`` is now; its reservation ends."""
        victim = max(islice(self._policy.reserved(path), VICTIMS_LOOKED_AT), key=self._weight, default=None)
        if victim is None or self._weight(victim)[0] <= self._unlikely(thread, self._callers[thread].asked):
            return None
        self.revoke(victim)
        return victim

    def _reserve(self, path: int, thread: int, sample: int) -> tuple[int, ...]:
        """Record a reservation. Returns the samples of reservations that ended for it and are in no slot any more."""
        self._reservations_made += 1
        self._reservations[path] = _Reservation(sample, thread, self._reservations_made)
        self._show(path, thread)
        self._reserved_for[sample] = path
        mine = self._reserved_by.setdefault(thread, set())
        mine.add(path)
        unloaded: tuple[int, ...] = ()
        if len(mine) > self._max_reservations_per_thread:
            unloaded = self._undo_reservation(min(mine, key=lambda each: self._reservations[each].number))
        if len(self._reservations) > self._max_reservations:
            unloaded += self._undo_reservation(next(iter(self._reservations)))
        return unloaded

    def _pass_on(self, path: int, thread: int) -> None:
        """Another thread that saw the size owns the reservation of ``path`` from now on."""
        reservation = self._reservations[path]
        _discard(self._reserved_by, reservation.owner, path)
        reservation.owner = thread
        self._reserved_by.setdefault(thread, set()).add(path)

    def _drop_reservation(self, path: int) -> _Reservation:
        reservation = self._reservations.pop(path)
        del self._reserved_for[reservation.sample]
        _discard(self._reserved_by, reservation.owner, path)
        for seer in reservation.seen_by:
            _discard(self._seen_by, seer, path)
        return reservation

    def _undo_reservation(self, path: int) -> tuple[int, ...]:
        sample = self._drop_reservation(path).sample
        return () if self._policy.put_back(sample) else (sample,)


class DrawnBinding(Binding):
    """A path's answer is always its own sample. Turns belong to no open: a sampler draws them (`draw`), and the paths
    that it draws are opened later.
    """

    def __init__(
        self,
        policy: Policy | SharedPolicy,
        files: Numbers,
        *,
        tree_of: TreeOf | None = None,
    ) -> None:
        super().__init__(policy, files, tree_of=tree_of)
        # Paths that were drawn and not opened since.
        self._due: set[int] = set()
        self._answer = np.arange(len(files), dtype=np.int32).data
        if self._all_opened is not None:
            # None waits for its other files before it is drawn.
            self._opened = np.asarray(self._all_opened).copy().data

    def draw(self, path: int) -> Served:
        """A turn for a sample of ``path``'s class. Its answer is kept until all its files were opened."""
        turn = self._policy.request(path)
        assert isinstance(turn, Served)
        self._answer_anew(turn.sample, turn.sample)
        self._due.add(turn.sample)
        return turn

    def open(self, path: int, file: int, thread: int) -> Opened:
        self.was_read = path in self._due
        self._due.discard(path)
        return super().open(path, file, thread)

    def _wanted(self, path: int) -> bool:
        return path in self._due or super()._wanted(path)

    def _outcome(self, path: int, file: int, thread: int) -> _Outcome:
        return JOIN


def _all_bits(files: Numbers) -> npt.NDArray[np.uint64]:
    """uint64[S]: the lowest ``files`` bits set."""
    masks = np.array([(1 << n) - 1 for n in range(MAX_FILES_PER_SAMPLE + 1)], np.uint64)
    return np.take(masks, files)


def _discard(sets: dict[int, set[int]], key: int, member: int) -> None:
    members = sets[key]
    members.discard(member)
    if not members:
        del sets[key]
