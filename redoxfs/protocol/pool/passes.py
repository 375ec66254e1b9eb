"""Passes: runs of opens without a path twice, so that an epoch is exact whatever was opened before it.

Laps count turns. A job that opens anything beyond whole epochs is out of step with them for ever: some samples come
twice in its epochs, and as many are missing. That is the rule in practice: a loader that drops its last batch, a look
at a few files first, an epoch that is broken off.

A *pass* is the longest run of opens of a tree, up to now, without a path twice. It needs no signal: when a path is
opened that the run has, the run begins after that path's earlier open. Any epoch that opens each path at most once lies
within such a run, whatever came before it. Rules:

1. A pass gets no sample twice. A request may be given what was not served since the pass began. One such sample always
   exists: since then the class had fewer opens than it has paths.
2. Fairness comes second: of what rule 1 allows, samples that had no turn in the lap come first.
3. A run of at least `ENDS_LAP_SHARE` of the paths that is followed by another ends the laps of the tree, once it is
   known to `KNOWN_SHARE` of it where the new one began. What had no turn is left out, as the job left out its paths.
   This changes costs and never exactness: without it laps and passes drift apart, and a chunk is read twice a lap.
4. A pass *closes*, which means that its samples are allowed again although the repeated paths do not show it yet, on
   evidence alone. Rule 1 by itself would give a job that reads in order the same samples in each epoch: each open then
   allows one sample, that of the same path. The evidence: either all paths were opened, and then one is opened that
   lies beyond the beginning of the pass (`EARLY_SHARE`). Or `ENDS_LAP_SHARE` of the paths were opened, and the first
   opens after them repeat those of its beginning: `IN_ORDER` in a row in the same order, or `IN_PARALLEL` nearly all.
5. A failed open is an open like any other. A job that tries again opens a path twice, and so begins another run.

The pool keeps rule 1 through its laps: a lap that begins in the middle of a pass leaves out what the pass was given.
These samples are *held back*, and are in the section of those that had their turn. When the pass is found to have begun
later, those that it was not given come into the lap. So all that is left in a lap is allowed, and a request draws from
it as if there were no passes.

`Passes` has the arrays, which may lie in memory that outlives the process; `Pass` one tree's run, and the evidence.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from redoxfs.arrays import Flags, Int32, Int64, Ints, Numbers, distinct

ENDS_LAP_SHARE = 1 / 2
"""A run of so many of the paths, followed by another, was an epoch. Nine tenths would miss batches of 64 of 500."""

KNOWN_SHARE = 1 / 20
"""Where a run began is known to so much of the one before it after some twenty repeated paths, and better with each
further one."""

REPEATS_SHARE = 9 / 10
"""Of the opens since the first repeated path, as many must repeat paths as those of an epoch do, by this share."""

EARLY_SHARE, EARLY = 1 / 16, 8
"""A path of the first sixteenth of a complete pass, or of its first eight opens, does not tell a new pass from one that
began with a look at a few files: those come again as the last ones of the epoch."""

LOOK_SHARE = 1 / 100
"""The first opens of a run, up to such a share of the paths, may be a look at some files before an epoch."""

LOOK_SEEN_SHARE, LOOK_KNOWN_SHARE = 1 / 10, 1 / 2
"""A run that has the smaller share of the paths, and repeated none of its first ones, did not begin with a look. If it
did, the length of the look is known at the greater share: the epoch has repeated most of it by then. With a tenth for
both, a look at a hundredth of the files costs 1.03 times the chunks; with a half for the latter 1.004."""

IN_ORDER, IN_ORDER_SHARE = 4, 1 / 200
"""So many opens in a row, each of a path that the run had at most such a share after that of the one before."""

IN_PARALLEL, DENSE_SHARE = 8, 3 / 4
"""So many opens that repeat nearly all paths of the beginning of the pass: several processes read in order."""

MOST_TURNS = 1 << 30
"""After so many the turns of a tree are numbered anew."""

ROOM_SHARE, ROOM = 1 / 8, 64
"""The log of a tree has room for its paths, and so many more opens whose answers nobody saw."""

MOST_NOTED = 1 << 31
"""Turns are counted up to this, for a look at whether the last one is known elsewhere."""

NOBODY = -1
"""In a log: nobody saw the answer of this open."""

LAYOUT = 2
_HEAD = 8
_OF_TREE = 6


class PassState(NamedTuple):
    """The passes of all trees, for another process.

    ``asked``   int32[S], or a few zeros more: the number of each path's open in its tree's pass; 0: not opened in it
    ``served``  int32[S], likewise: the number of the open that each sample answered in its tree's pass; 0: none. No two
                opens have the same number
    ``began``   int32[C], the last of these numbers before each class's lap began
    ``whole``   whether the numbers are in order of the opens; else only whether they are 0 is known
    """

    asked: Int32
    served: Int32
    began: Int32
    whole: bool

    def without(self, samples: Numbers, classes: Numbers, in_lap: Flags) -> "PassState":
        """As if turns of ``samples``, int[n], had not been, nor their opens: ``in_lap`` has those in the lap that their
        class is in now, and the others were before it. What the pass got in another turn stays in it.
        """
        asked, served = self.asked.copy(), self.served.copy()
        if self.whole:
            samples = samples[(served[samples] > self.began[classes]) == in_lap]
        numbers = served[samples]
        gone = np.zeros(int(max(asked.max(initial=0), served.max(initial=0))) + 1, np.bool_)
        gone[numbers] = True
        gone[0] = False
        served[samples] = 0
        asked[gone[asked]] = 0
        return self._replace(asked=asked, served=served)


class PassFigures(NamedTuple):
    """The passes of a tree, for statistics.

    ``opens``     how many paths the present one has
    ``complete``  how many had all paths
    ``early``     how many had at least half of them, and not all, when another began
    """

    opens: int
    complete: int
    early: int


EVIDENCE = (
    *("repeats_from", "before", "run", "again", "row", "row_at", "row_run"),
    *("moved_at", "moved_run", "complete_at", "complete_from", "watches"),
)
"""What `Pass.look` goes by, beside the run itself."""


class Pass:
    """The run of one tree, and the evidence of where it began.

    ``turn``     how many opens the tree had
    ``since``    the run has the opens after this one
    ``full_at``  with this one all paths were opened in the run
    ``look_until``  up to this one the run may be a look at some files, before an epoch
    ``looked_at``   the samples that stay in memory for that, oldest first; ``look_from``: the open of the first one
    ``has_looked``  whether the run was found to begin after that one
    ``watches``  whether opens of paths that the run does not have are evidence too
    ``lap``      classes of the tree in a lap before this one begin it at their next request
    ``ends_laps``  set by `look`: the laps of the tree end
    ``closed``   how many times a run was closed on evidence
    ``complete``, ``early``  how many passes had all paths, and how many ended with at least half of them
    """

    __slots__ = (
        "again",
        "before",
        "classes",
        "closed",
        "complete",
        "complete_at",
        "complete_from",
        "early",
        "ends_laps",
        "full_at",
        "has_looked",
        "is_over",
        "lap",
        "lap_from",
        "log",
        "log_array",
        "look_from",
        "look_until",
        "looked_at",
        "moved_at",
        "moved_run",
        "number",
        "paths",
        "repeats_from",
        "room",
        "row",
        "row_at",
        "row_run",
        "run",
        "since",
        "turn",
        "voids",
        "was_full_at",
        "watches",
    )

    def __init__(self, number: int, paths: int, classes: Int32, log: Int32) -> None:
        self.number, self.paths, self.classes = number, paths, classes
        self.log_array = log
        self.log: Ints = log.data
        self.room = len(log)
        self.turn = self.since = self.look_from = 0
        self.has_looked = False
        self.lap = 0
        self.complete = self.early = self.closed = 0
        self.voids: list[int] = []
        self.looked_at: deque[int] = deque()
        self.forget_evidence()

    def forget_evidence(self) -> None:
        """Only the run itself is known."""
        # The open that first repeated a path of the run; that run's begin and length; how many repeated it since.
        self.repeats_from = self.before = self.run = self.again = 0
        # How many opens in a row repeated the run from its first path on, the last of them, and how long the run was.
        self.row = self.row_at = self.row_run = 0
        # When the run was cut short after it had not been for a while, and how long it was then.
        self.moved_at = self.moved_run = 0
        # Of a run that has all paths, and is not closed: its last open, and the one before its first.
        self.complete_at = self.complete_from = 0
        # The last open of the last run that had all paths.
        self.was_full_at = 0
        # Where the laps of the tree last ended.
        self.lap_from = -1
        self.watches = self.ends_laps = self.is_over = False
        self._count()

    def evidence(self) -> list[int]:
        """What `look` goes by, for another process that is to find the same."""
        return [int(getattr(self, name)) for name in EVIDENCE]

    def resume_evidence(self, values: Sequence[int]) -> None:
        for name, value in zip(EVIDENCE, values, strict=True):
            setattr(self, name, value)

    def _count(self) -> None:
        self.voids = [void for void in self.voids if void > self.since]
        self.full_at = self.since + self.paths + len(self.voids)
        self.look_until = self.since + int(LOOK_SHARE * self.paths)

    @property
    def opens(self) -> int:
        """How many paths the run has."""
        return self.turn - self.since - len(self.voids)

    def figures(self) -> PassFigures:
        return PassFigures(self.opens, self.complete, self.early)

    @property
    def is_look_known(self) -> bool:
        """Whether it is known with how long a look the run began, if with any."""
        return self.turn - self.since > (LOOK_KNOWN_SHARE if self.has_looked else LOOK_SEEN_SHARE) * self.paths

    @property
    def is_long(self) -> bool:
        """Whether the run may be an epoch."""
        return self.opens >= ENDS_LAP_SHARE * self.paths

    def look(self, last: int) -> int:
        """Before an open of a path whose last one was ``last``, if the run has that or `watches` is set.

        Returns:
            After which open the run begins now.
        """
        now, since = self.turn + 1, self.since
        self.ends_laps = self.end_laps()
        if last > since:
            if self._is_in_order(last, now):
                self.run = self.row_run
                # Its first opens may have come in another order.
                first = self.repeats_from if self.repeats_from > since else now - self.row + 1
                return self._close(min(now - self.row, first - 1, self.complete_at or now), last)
            if now - self.moved_at > KNOWN_SHARE * self.paths:
                self.moved_at, self.moved_run = now, self.opens
            if last >= self.repeats_from:
                # Other repeats, of a run before this one, may have cut it short just now.
                self.repeats_from, self.before, self.again = now, since, 0
                self.run = max(self.opens, self.moved_run)
                self.watches = self.run >= ENDS_LAP_SHARE * self.paths
            since = last
        if not self.before < last < self.repeats_from:
            return since
        run = self.run
        self.again += 1
        if self.complete_at and last > self.complete_from + max(EARLY, EARLY_SHARE * self.paths):
            return self._close(self.complete_at, since)
        if run < ENDS_LAP_SHARE * self.paths:
            return since
        span = max(since - self.before, now - self.repeats_from + 1)
        if self.again >= IN_PARALLEL and self.again >= DENSE_SHARE * span and span <= run / 4:
            return self._close(self.repeats_from - 1, since)
        if (
            self.watches
            and since > self.lap_from
            and self.repeats_from - since <= max(1, KNOWN_SHARE * run)
            and self.again >= REPEATS_SHARE * run / self.paths * (now - self.repeats_from + 1)
        ):
            self.lap_from = since
            self.ends_laps, self.watches = True, False
            self.early += run < self.paths
        return since

    def _is_in_order(self, last: int, now: int) -> bool:
        """Whether this open and those just before it repeat a long run from its first path on, in its order."""
        is_next = last - self.since <= max(2, IN_ORDER_SHARE * self.paths)
        if not is_next or now != self.row_at + 1:
            self.row = 0
            self.row_run = self.opens
        if is_next:
            self.row += 1
            self.row_at = now
        return self.row >= IN_ORDER and self.row_run >= ENDS_LAP_SHARE * self.paths

    def would_begin(self, last: int) -> int:
        """After which open the run begins once a path is opened whose last open was ``last``."""
        if last <= self.since:
            return self.since
        if self.complete_at and last > self.complete_from + max(EARLY, EARLY_SHARE * self.paths):
            # Other evidence may close it where a path was repeated first.
            first = self.repeats_from if self.repeats_from > self.since else self.turn + 1
            return max(last, min(self.complete_at, first - 1))
        return last

    def _close(self, end: int, since: int) -> int:
        """The run begins after open ``end``, or after ``since`` if that is later."""
        end = max(end, since)
        if self.lap_from < end:
            self.ends_laps, self.lap_from = True, end
            self.early += self.run < self.paths
        self.closed += 1
        self.complete_at = self.repeats_from = self.row = 0
        self.watches = False
        return end

    def begin_now(self) -> bool:
        """The run begins with the next open, as somebody says who knows. Returns whether laps end."""
        had_all = self.opens == self.paths
        ends = self.end_laps() or (self.turn > self.lap_from and self.turn > self.since)
        self.early += ends and not had_all and self.is_long
        self.forget_evidence()
        self.lap_from = self.turn
        return ends

    def is_full(self) -> None:
        """The run has all paths. Not twice in a run."""
        if self.was_full_at > self.since:
            return
        self.complete += 1
        self.was_full_at = self.complete_at = self.turn
        self.complete_from = self.since
        self.watches = True
        self.is_over = self.lap_from < self.turn

    def look_again(self) -> None:
        """After another process: whether the run has all paths, or had before its laps ended and is not closed."""
        if self.lap_from > self.since:
            self.was_full_at = self.complete_at = self.lap_from
            self.watches = True
        elif self.paths and self.opens >= self.paths:
            self.complete -= 1
            self.is_full()

    def end_laps(self) -> bool:
        """Whether the laps of the tree end, since the run has all paths. Not at once: its last open may be undone."""
        is_over, self.is_over = self.is_over, False
        if is_over:
            self.lap_from = self.complete_at
        return is_over

    def move(self, since: int) -> None:
        """The run begins after open ``since``."""
        self.since = since
        if self.looked_at and since >= self.look_from:
            self.has_looked = True
        if self.voids:
            self._count()
        else:
            self.full_at = since + self.paths
            self.look_until = since + int(LOOK_SHARE * self.paths)

    def entries(self, after: int, until: int) -> tuple[Int32, Int64]:
        """The samples of the opens after ``after``, up to ``until``, and the numbers of these opens."""
        numbers = np.arange(after + 1, until + 1)
        samples = self.log_array[numbers % self.room]
        if self.voids:
            is_there = samples >= 0
            samples, numbers = samples[is_there], numbers[is_there]
        return samples, numbers


def room_of(paths: int) -> int:
    """How many turns the log of a tree of so many paths has."""
    return paths + int(paths * ROOM_SHARE) + ROOM


def bytes_of(of_trees: Sequence[int], classes: int) -> int:
    """How much memory the arrays of trees of so many paths, with so many classes, take."""
    samples = sum(of_trees)
    words = samples + sum(map(room_of, of_trees))
    return 8 * (_HEAD + _OF_TREE * len(of_trees) + 2 * classes) + 4 * words + samples


def classes_of_trees(class_of: Int32, tree_of: Numbers, trees: int) -> tuple[Int32, list[Int32]]:
    """int32[C], the tree of each class; and int32[n], the classes that each of so many trees has samples of."""
    tree_of_class = np.zeros(int(class_of.max(initial=0)) + 1, np.int32)
    tree_of_class[class_of] = tree_of
    present = distinct(class_of)
    return tree_of_class, [present[tree_of_class[present] == tree].astype(np.int32) for tree in range(trees)]


class Passes:
    """The runs of all trees.

    ``head``     int64: layout, samples, the last open (its path, and above 32 bits how many turns this process had
                 given with it), turns given before; by tree: since, lap, complete, early, lap_from,
                 complete_from
    ``asked``    int32[S]: the last open of each path, in its tree's count; 0: none
    ``in_pass``  uint8[S]: whether each sample was served in its tree's run
    ``began``    int64[C]: the last open before each class's lap began
    ``laps``     int64[C]: the number of that lap

    Args:
        class_of: int32[S].
        tree_of: int[S], the tree of each sample, the same for all samples of a class.
        trees: how many there are.
        memory: at least `bytes_of` the trees, empty or with the arrays of a former process; None: new memory.
    """

    def __init__(self, class_of: Int32, tree_of: Numbers, trees: int, memory: "memoryview | None" = None) -> None:
        samples, classes = len(class_of), int(class_of.max(initial=0)) + 1
        of_trees = np.bincount(tree_of, minlength=trees).tolist()
        size = bytes_of(of_trees, classes)
        raw = np.zeros(size, np.uint8) if memory is None else np.frombuffer(memory, np.uint8, size)
        words = (_HEAD + _OF_TREE * trees) * 8
        self.head_array = raw[:words].view(np.int64)
        self.head: Ints = self.head_array.data
        self._of_trees = self.head_array[_HEAD:].reshape(trees, _OF_TREE)
        self.began_array = raw[words : words + 8 * classes].view(np.int64)
        self.began: Ints = self.began_array.data
        words += 8 * classes
        self.laps_array = raw[words : words + 8 * classes].view(np.int64)
        words += 8 * classes
        rooms = [room_of(count) for count in of_trees]
        ends = np.cumsum([0, *rooms]) + samples
        numbers = raw[words : words + 4 * int(ends[-1])].view(np.int32)
        self.asked_array = numbers[:samples]
        self.asked: Ints = self.asked_array.data
        in_pass = raw[words + 4 * int(ends[-1]) :]
        self.in_pass_array: Flags = in_pass.view(np.bool_)
        self.in_pass: Ints = in_pass.data
        self.tree_of_class, classes_of = classes_of_trees(class_of, tree_of, trees)
        self._class_array = class_of
        self.trees = [
            Pass(tree, of_trees[tree], classes_of[tree], numbers[ends[tree] : ends[tree + 1]]) for tree in range(trees)
        ]
        self.of_class: list[Pass] = [self.trees[tree] for tree in self.tree_of_class.tolist()]
        self.given_twice = self.held_back = 0
        self.is_continued = bool(self.head[0] == LAYOUT and self.head[1] == samples)
        if self.is_continued:
            self._continue()
        else:
            raw[:] = 0
            self.head[0], self.head[1] = LAYOUT, samples

    def samples(self, tree: Pass) -> Int32:
        """The samples of a tree."""
        if len(self.trees) == 1:
            return np.arange(len(self._class_array), dtype=np.int32)
        return np.flatnonzero(self.tree_of_class[self._class_array] == tree.number).astype(np.int32)

    # For another process

    def note_given(self, given: int) -> None:
        """How many turns were given before this process counts."""
        self.head[3] = given
        self.head[2] = 0

    def noted(self, given: int) -> int | None:
        """The path of the last open, if so many turns were given with it."""
        last, before = self.head[2], self.head[3]
        return last & 0xFFFFFFFF if last and ((last >> 32) + before - given) % MOST_NOTED == 0 else None

    def keep(self, tree: Pass) -> None:
        """Write down what has changed of a run, other than its opens."""
        numbers = tree.since, tree.lap, tree.complete, tree.early, tree.lap_from, tree.complete_from
        self._of_trees[tree.number] = numbers

    def _continue(self) -> None:
        self.in_pass_array[:] = False
        for tree in self.trees:
            tree.since, tree.lap, tree.complete, tree.early, *kept = self._of_trees[tree.number].tolist()
            tree.turn = max(tree.since, int(self.asked_array[self.samples(tree)].max(initial=0)))
            tree.forget_evidence()
            tree.lap_from, tree.complete_from = kept
            self._find_voids(tree)
            self.in_pass_array[tree.entries(tree.since, tree.turn)[0]] = True

    def held(self) -> Int32:
        """The samples that were served in a run before the lap of their class began."""
        found = []
        for tree in self.trees:
            samples, numbers = tree.entries(
                tree.since, min(tree.turn, int(self.began_array[tree.classes].max(initial=0)))
            )
            found.append(samples[numbers <= self.began_array[self._class_array[samples]]])
        return np.concatenate(found) if found else np.zeros(0, np.int32)

    def undo(self, path: int, tree: Pass) -> None:
        """An open of ``path`` was noted, and nobody saw its answer."""
        number = self.asked[path]
        if number <= tree.since:
            return
        sample = tree.log[number % tree.room]
        self.asked[path] = 0
        if sample >= 0:
            self.in_pass[sample] = 0
        tree.log[number % tree.room] = NOBODY
        self._void(tree, number)

    def _find_voids(self, tree: Pass) -> None:
        """After another process."""
        numbers = np.arange(tree.since + 1, tree.turn + 1)
        tree.voids = numbers[tree.log_array[numbers % tree.room] < 0].tolist()
        tree.move(tree.since)

    def _void(self, tree: Pass, number: int) -> None:
        tree.voids.append(number)
        if tree.complete_at >= number:
            # It had not all paths after all.
            tree.complete_at = tree.was_full_at = 0
            tree.is_over = False
            tree.complete -= 1
            self.keep(tree)
        tree.full_at += 1
        if len(tree.voids) + tree.paths >= tree.room - 1:
            self.make_room(tree)

    def open_to_all(self, cls: int, tree: Pass) -> None:
        """A class's part of a run begins now. So the log of a run has a sample once, and it leaves with that open."""
        samples, numbers = tree.entries(tree.since, tree.turn)
        of_class = self._class_array[samples] == cls
        self.in_pass_array[samples[of_class]] = False
        tree.log_array[numbers[of_class] % tree.room] = NOBODY
        self._find_voids(tree)
        self.make_room(tree)

    def make_room(self, tree: Pass) -> None:
        """Number the run anew, without opens whose answers nobody saw: its log is full, or the numbers are large."""
        of_tree = self.samples(tree)
        samples, _, self.asked_array[of_tree], self.began_array[tree.classes] = self._numbered(tree, of_tree, 0)
        self.in_pass_array[samples] = True
        self._set(tree, samples)

    def _numbered(self, tree: Pass, of_tree: Int32, before: int) -> tuple[Int32, Int32, Int32, Int64]:
        """Number the opens of a run whose answers somebody saw from ``before`` + 1 on.

        Returns:
            The samples of these opens; their numbers; the number of each path's open in ``of_tree``, the samples of the
            tree; and the last of the numbers before each class's lap began.
        """
        samples, numbers = tree.entries(tree.since, tree.turn)
        new = np.zeros(tree.turn - tree.since + 1, np.int32)
        new[numbers - tree.since] = np.arange(before + 1, before + len(numbers) + 1)
        asked = new[np.maximum(self.asked_array[of_tree] - tree.since, 0)]
        laps = self.began_array[tree.classes] - tree.since
        ends = before + np.cumsum(new > 0)
        began = np.where(laps > 0, ends[np.clip(laps, 0, len(ends) - 1)], 0)
        return samples, new[numbers - tree.since], asked, began

    def _set(self, tree: Pass, samples: Int32) -> None:
        """``samples`` answered the opens of the run, numbered from 1."""
        tree.log_array[:] = NOBODY
        tree.log_array[1 : len(samples) + 1] = samples
        tree.turn, tree.since = len(samples), 0
        tree.forget_evidence()
        self._find_voids(tree)
        self.keep(tree)

    def state(self, *, whole: bool) -> PassState:
        """A copy; not ``whole``: only which paths were opened and which samples served.

        The laps that a pass has ended count as begun now, where it is ``whole``.
        """
        asked, served = np.zeros((2, len(self.asked_array)), np.int32)
        began = np.zeros(len(self.began_array), np.int32)
        if not whole:
            since = np.array([tree.since for tree in self.trees], np.int32)
            asked[:] = self.asked_array > since[self.tree_of_class[self._class_array]]
            served[:] = self.in_pass_array
            return PassState(asked, served, began, whole=False)
        first = 0
        for tree in self.trees:
            of_tree = self.samples(tree)
            samples, numbers, asked[of_tree], began[tree.classes] = self._numbered(tree, of_tree, first)
            served[samples] = np.where(self.in_pass_array[samples], numbers, 0)
            first += len(numbers)
        return PassState(asked, served, began, whole=True)

    def check(self, state: PassState) -> None:
        """Raises ValueError where a state is of other samples or classes, or damaged."""
        samples = len(self.asked_array)
        for numbers in (state.asked, state.served):
            if len(numbers) - samples not in range(8) or len(state.began) != len(self.began_array):
                raise ValueError("the passes are of other samples or classes")
            if numbers.min(initial=0) < 0 or numbers.max(initial=0) > samples or numbers[samples:].any():
                raise ValueError("the opens of passes are numbered from 1")

    def restore(self, state: PassState | None) -> None:
        """Resume; None: with new runs."""
        self.in_pass_array[:] = False
        self.began_array[:] = 0
        for tree in self.trees:
            of_tree = self.samples(tree)
            if state is None:
                self.asked_array[of_tree] = 0
                self._set(tree, np.zeros(0, np.int32))
                continue
            asked, served = state.asked[of_tree], state.served[of_tree]
            order = np.argsort(served, kind="stable")
            in_order = order[served[order] > 0]
            samples = of_tree[in_order]
            if state.whole:
                numbers = served[in_order]
                of_path = np.searchsorted(numbers, asked) + 1
                asked = np.where((asked > 0) & (of_path <= len(numbers)), of_path, 0)
                self.began_array[tree.classes] = np.searchsorted(numbers, state.began[tree.classes], side="right")
            else:
                # In which order is not known, so any path that comes again is the last one.
                asked = np.where(asked > 0, len(samples), 0)
            self.asked_array[of_tree] = asked
            self.in_pass_array[samples] = True
            tree.lap = 0
            self._set(tree, samples)

    def look_again(self) -> None:
        """After `restore`, or in a new process: what is known of runs that have all paths."""
        for tree in self.trees:
            tree.look_again()
