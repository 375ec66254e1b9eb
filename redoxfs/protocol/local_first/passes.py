"""The passes of a node among several: runs of its own opens, and what left it for each node.

A node sees a share of the paths of each epoch, and homes a share of the samples. So it finds the passes of its own
opens, over each tree: the longest run without a path twice, as `redoxfs.protocol.pool.passes` does, by the repeated
path alone. It tells its peers where the run began, by the count of its own opens. What left a home for a reader of a
node is *held back* as long as that node's run has the open that it left for. So nodes need neither be in step nor have
equal shares. It is exact if they meet between epochs, as the ranks of a data-parallel job do: then all runs are of one
epoch, but for what each has not noticed yet.
"""

from collections import deque
from collections.abc import Callable, Collection

import numpy as np

from redoxfs.arrays import Flags, Int32, Int64, Ints, Numbers
from redoxfs.protocol.pool.passes import EARLY, EVIDENCE, Pass, classes_of_trees
from redoxfs.protocol.tables import MOST, StateReader, rows

MOST_OPENS = 1 << 30
"""After so many the opens of a tree are numbered anew."""

FEW = 64
"""A job that reads in order moves its pass with each open. It looks at no more of the log than that."""

ROOM = 64
"""How many entries a log begins with."""

EPOCH_SHARE = 2 / 5
"""A run of so much of a node's share, followed by another, was an epoch. Its end is known only about."""

IN_STEPS, KNOWN_SHARE = 4, 1 / 4
"""An epoch is found to have begun while the new run has at most that many opens for each node, as one of so many
repeats a path here, or such a share of an epoch's. What the laps begin without then comes into them later."""

GRAINS = 1_024
"""In how many steps of a node's share the uses of what peers gave are told apart."""

NOTHING = np.zeros(0, np.int32)

UNKNOWN = -1
"""In place of an epoch's number."""


class Log:
    """What left for one node, in a run of its opens.

    ``since``   the run has the opens after this one
    ``left``    int32[room, 3], a ring: each sample, with which open of that node it left, and the tree's clock
    ``head``, ``tail``  the first entry, and the one after the last, counted from the first ever
    """

    __slots__ = ("flat", "head", "left", "since", "tail")

    def __init__(self) -> None:
        self.since = self.head = self.tail = 0
        self._renew(np.zeros((0, 3), np.int32), ROOM)

    def _renew(self, entries: Int32, room: int) -> None:
        self.left = np.zeros((room, 3), np.int32)
        self.left[: len(entries)] = entries
        # The numbers of all entries, one after the other.
        self.flat: Ints = self.left.ravel().data
        self.head, self.tail = 0, len(entries)

    def add(self, sample: int, turn: int, clock: int, is_valid: Callable[[Int32], Flags]) -> None:
        room = len(self.left)
        if self.tail - self.head == room:
            entries = self.entries()
            kept = entries[is_valid(entries)]
            self._renew(kept, 2 * room if 2 * len(kept) > room else room)
            room = len(self.left)
        flat = self.flat
        if self.tail > self.head:
            # A message that was overtaken has an earlier open.
            turn = max(turn, flat[3 * ((self.tail - 1) % room) + 1])
        at = 3 * (self.tail % room)
        flat[at], flat[at + 1], flat[at + 2] = sample, turn, clock
        self.tail += 1

    def entries(self, most: int = MOST_OPENS) -> Int32:
        """int32[n, 3]: the first entries, in order."""
        numbers = np.arange(self.head, min(self.tail, self.head + most))
        return self.left.take(numbers, axis=0, mode="wrap")

    def begin(self, since: int) -> Int32:
        """The run begins after open ``since``. Returns the entries that are not of it any more."""
        self.since = since
        entries = self.entries(FEW)
        if len(entries) == FEW and entries[-1, 1] <= since:
            entries = self.entries()
        entries = entries[: int(np.searchsorted(entries[:, 1], since, side="right"))]
        self.head += len(entries)
        return entries

    def set(self, entries: Int32) -> None:
        self._renew(entries, max(ROOM, 1 << len(entries).bit_length()))


class HomePass(Pass):
    """The run of one tree by the opens of this node, and what left the node in those of all nodes.

    Of the evidence of `Pass`, a node has that of opens in order: its paths may be others in each epoch, and then it has
    never opened all of them.

    ``epoch``  how many epochs somebody told of; UNKNOWN in a process that replaces another
    ``holds``  whether what a run was given is held back; laps alone decide until then
    ``told_until``  before this open the run began where it was told: paths that come twice are what the job repeats
    ``lap_from``  the open with which an epoch was last found to have begun
    ``repeated``  the latest open of a path that was opened again later
    ``clock``  counts what leaves
    ``logs``   of each node
    ``uses``   of samples that peers gave: with about which open a reader got one, and with which it was asked for.
               Only those that `told` needs
    """

    __slots__ = ("clock", "epoch", "holds", "lap_from", "logs", "repeated", "told_until", "uses")

    def __init__(self, number: int, paths: int, classes: Int32) -> None:
        super().__init__(number, paths, classes, np.zeros(0, np.int32))
        self.epoch = self.told_until = self.lap_from = self.repeated = self.clock = 0
        self.holds = False
        self.logs: dict[int, Log] = {}
        self.uses: deque[tuple[int, int]] = deque()

    def log_of(self, node: int) -> Log:
        log = self.logs.get(node)
        if log is None:
            log = self.logs[node] = Log()
        return log

    def use(self, asked_at: int) -> None:
        """A reader gets a sample now that a peer gave, for which this node asked with its open ``asked_at``."""
        grain = 1 + self.paths // GRAINS
        used_at = -(-self.turn // grain) * grain
        uses = self.uses
        # Of uses that are of one run, the one that was asked for first counts.
        while uses and uses[-1][1] >= asked_at:
            uses.pop()
        if not uses or uses[-1][0] < used_at:
            uses.append((used_at, asked_at))

    @property
    def told(self) -> int:
        """After which open the run begins, for peers.

        A home knows with which open a sample was asked for, and not when a reader got it. If it was asked for before
        the run and is of it, the run begins earlier for peers: otherwise they might give the sample again.
        """
        uses = self.uses
        while uses and uses[0][0] <= self.since:
            uses.popleft()
        return max(0, min(self.since, uses[0][1] - 1)) if uses else self.since

    def has_begun(self, nodes: int) -> bool:
        """Whether an epoch was found to have begun, of which this was not said before."""
        is_epoch = self.since - self.lap_from >= EPOCH_SHARE * self.paths
        if not is_epoch or self.turn - self.since > max(IN_STEPS * nodes, KNOWN_SHARE * self.paths):
            return False
        self.lap_from = self.turn
        return True


class HomePasses:
    """The runs of all trees.

    ``asked``    int32[S]: the last open of each path, in its tree's count; 0: none
    ``left_at``  int32[S]: when each own sample last left, by its tree's clock; and int32[S], ``left_with``: after which
                 open of this node
    ``left_by``, ``left_turn``  int16[S] and int32[S]: the node that it left for, and with which of its opens, as long
                 as nothing is held back; the logs have it afterwards
    ``held``     bool[S]: whether it is held back; and int32[C], ``held_of``: how many of a class are
    ``out``      bool[S]: the lap of its class began without it, and it did not leave since
    ``gone``     bool[S]: it left in the present epoch, by what was told
    ``entered``  int32[C]: the last open before this node was in the lap of each class

    Args:
        class_of: int32[S].
        is_own: bool[S], the samples whose home this node is.
        tree_of: int[S], the tree of each sample, the same for all samples of a class.
        trees: how many there are.
        node: the number of this one.
        nodes: that share the paths of an epoch.
    """

    def __init__(self, class_of: Int32, is_own: Flags, tree_of: Numbers, trees: int, *, node: int, nodes: int) -> None:
        samples, classes = len(class_of), int(class_of.max(initial=0)) + 1
        self._node = node
        self._class_array = class_of
        self._class_of: Ints = class_of.data
        self.is_own = is_own
        self.asked_array, self.left_array, self.left_with_array = np.zeros((3, samples), np.int32)
        self.asked: Ints = self.asked_array.data
        self._left_at: Ints = self.left_array.data
        self._left_with: Ints = self.left_with_array.data
        self.left_by_array, self.left_turn_array = np.zeros(samples, np.int16), np.zeros(samples, np.int32)
        self._left_by: Ints = self.left_by_array.data
        self._left_turn: Ints = self.left_turn_array.data
        held, out, gone = np.zeros((3, samples), np.uint8)
        self.held_array: Flags = held.view(np.bool_)
        self.out_array: Flags = out.view(np.bool_)
        self.gone_array: Flags = gone.view(np.bool_)
        self.held: Ints = held.data
        self._out: Ints = out.data
        self.gone: Ints = gone.data
        self.held_of_array, self.entered_array = np.zeros((2, classes), np.int32)
        self.held_of: Ints = self.held_of_array.data
        self.entered: Ints = self.entered_array.data
        tree_of_class, classes_of = classes_of_trees(class_of, tree_of, trees)
        paths = np.bincount(tree_of, minlength=trees).tolist()
        self.trees = [HomePass(tree, -(-paths[tree] // nodes), classes_of[tree]) for tree in range(trees)]
        self.of_class: list[HomePass] = [self.trees[tree] for tree in tree_of_class.tolist()]
        self._tree_array = tree_of

    def samples(self, tree: HomePass) -> Int64:
        """The own samples of a tree."""
        return np.flatnonzero(self.is_own & (self._tree_array == tree.number))

    def open(self, tree: HomePass, path: int) -> int:
        """An open of ``path``. Returns after which open the run begins now."""
        if tree.turn >= MOST_OPENS:
            self._number_anew(tree)
        last, since = self.asked[path], tree.since
        tree.repeated = max(tree.repeated, last)
        if (last > since or tree.watches) and tree.turn >= tree.told_until:
            since = tree.look(last)
        tree.turn += 1
        self.asked[path] = tree.turn
        return since

    def leave(self, tree: HomePass, sample: int, node: int, turn: int) -> None:
        """An own sample leaves for a reader of ``node``, with its open ``turn``."""
        if tree.clock >= MOST_OPENS:
            self._reset_clock(tree)
        tree.clock += 1
        self._left_at[sample] = tree.clock
        self._left_with[sample] = tree.turn
        log = tree.log_of(node)
        turn = max(turn, log.since + 1)
        if not tree.holds:
            self._left_by[sample], self._left_turn[sample] = node, turn
            return
        log.add(sample, turn, tree.clock, self._is_valid)
        self.gone[sample] = 1
        self._out[sample] = 0
        if not self.held[sample]:
            self.held[sample] = 1
            self.held_of[self._class_of[sample]] += 1

    def _is_valid(self, entries: Int32) -> Flags:
        """Which entries are the last ones of samples that are held back."""
        samples = entries[:, 0]
        return (self.left_array[samples] == entries[:, 2]) & self.held_array[samples]

    def move(self, tree: HomePass, node: int, since: int) -> Int32:
        """The run of a node begins after its open ``since``. What left before is not held back any more.

        Returns:
            Those that come into their lap, which began without them.
        """
        if node == self._node:
            tree.move(since)
        if not tree.holds:
            tree.log_of(node).since = since
            return NOTHING
        entries = tree.log_of(node).begin(since)
        samples = entries[self._is_valid(entries), 0]
        self.held_array[samples] = False
        np.subtract.at(self.held_of_array, self._class_array[samples], 1)
        comes: Int32 = samples[self.out_array[samples]].astype(np.int32)
        self.out_array[comes] = False
        return comes

    def heard(self, tree: HomePass, node: int, since: int) -> Int32:
        """What a peer says of its run: as `move`."""
        log = tree.log_of(node)
        if since < log.since - MOST_OPENS // 2:
            # It numbers its opens anew.
            self._shift(tree, node, log.since)
        return self.move(tree, node, since) if since > log.since else NOTHING

    def _shift(self, tree: HomePass, node: int, before: int) -> None:
        """Opens of a node are numbered from ``before`` on."""
        log = tree.log_of(node)
        log.since = 0
        entries = log.entries()
        entries[:, 1] = np.maximum(entries[:, 1] - before, 1)
        log.set(entries)
        own = self.samples(tree)
        of_node = own[self.left_by_array[own] == node]
        self.left_turn_array[of_node] = np.maximum(self.left_turn_array[of_node] - before, 0)

    def hold(self, tree: HomePass) -> None:
        """From now on what left is held back, as long as it is of the run that it left for."""
        tree.holds = True
        entries, whose = self._noted(tree)
        for node in np.flatnonzero(np.bincount(whose)).tolist():
            of_node = entries[whose == node]
            of_node[:, 1] = np.maximum.accumulate(of_node[:, 1])
            tree.log_of(node).set(of_node)
        samples = entries[:, 0]
        self.held_array[samples] = True
        self.held_of_array += np.bincount(self._class_array[samples], minlength=len(self.held_of)).astype(np.int32)

    def _noted(self, tree: HomePass) -> tuple[Int32, Int32]:
        """Entries of what left while nothing is held back, in order, and for whom: what each run still has."""
        own = self.samples(tree)
        own = own[self.left_array[own] > 0]
        own = own[np.argsort(self.left_array[own])]
        whose, turns = self.left_by_array[own].astype(np.int32), self.left_turn_array[own]
        is_of_run = np.zeros(len(own), np.bool_)
        for node in np.flatnonzero(np.bincount(whose)).tolist():
            of_node = whose == node
            # A message that was overtaken has an earlier open. The log keeps that: what overtook it may leave again.
            is_of_run[of_node] = np.maximum.accumulate(turns[of_node]) > tree.log_of(node).since
        entries = np.stack([own, turns, self.left_array[own]], axis=1).astype(np.int32)
        return entries[is_of_run], whose[is_of_run]

    def forget(self, node: int) -> None:
        """A peer is lost, or counts from 0 on: what left for it was for this node."""
        for tree in self.trees:
            if tree.holds:
                entries = tree.log_of(node).entries()
                samples = entries[self._is_valid(entries), 0]
            else:
                entries, whose = self._noted(tree)
                samples = entries[whose == node, 0]
                own = self.samples(tree)
                self.left_turn_array[own[self.left_by_array[own] == node]] = 0
            tree.logs.pop(node, None)
            for sample in samples.tolist():
                self.leave(tree, sample, self._node, tree.turn)

    def begin_now(self, tree: HomePass, ahead: list[int]) -> Flags:
        """Somebody told that an epoch begins: nothing is held back any more, but what was given in it ``ahead``.

        Returns:
            bool[S]: the own samples of the tree that did not leave in the epoch before.
        """
        own = self.samples(tree)
        rest = np.zeros(len(self._class_array), np.bool_)
        rest[own] = ~self.gone_array[own]
        for flags in (self.held_array, self.out_array, self.gone_array):
            flags[own] = False
        self.held_of_array[tree.classes] = 0
        tree.begin_now()
        tree.move(tree.turn)
        tree.uses.clear()
        tree.told_until = tree.turn + tree.paths + EARLY
        tree.lap_from = tree.turn
        tree.holds = True
        for log in tree.logs.values():
            log.head = log.tail
        tree.log_of(self._node).since = tree.turn
        if tree.epoch != UNKNOWN:
            tree.epoch += 1
        for sample in ahead:
            self.leave(tree, sample, self._node, tree.turn)
        return rest

    def leave_out(self, members: Numbers, are_left: Flags) -> int:
        """The lap of a class with these own ``members`` begins without what is held back and not left from the lap
        before. Returns how many that are."""
        out = members[self.held_array[members] & ~are_left]
        self.out_array[members] = False
        self.out_array[out] = True
        return len(out)

    def hold_all(self, tree: HomePass, samples: Numbers) -> None:
        """A process that replaces another does not know what left: these ``samples``, as far as it knows."""
        tree.turn += 1
        for sample in samples.tolist():
            self.leave(tree, sample, self._node, tree.turn)
        self.out_array[samples] = True

    def oldest(self, tree: HomePass, members: Numbers, others: Collection[int]) -> tuple[int, int]:
        """The sample of a class with these own ``members``, in order of their numbers, that is held back and left
        longest ago, and is none of ``others`` of the class; and how many opens ago, at least 1. -1 and 0 where there is
        none."""
        held = members[self.held_array[members] & self.are_none_of(members, others)]
        if not len(held):
            return -1, 0
        # A class may have hundreds of thousands, so they are not sorted. No two left at the same time.
        sample = int(held[self.left_array[held].argmin()])
        return sample, tree.turn - self._left_with[sample] + 1

    def are_none_of(self, members: Numbers, others: Collection[int] | Numbers) -> Flags:
        """bool[n]: which of all own ``members`` of a class, in order of their numbers, are none of ``others`` of it."""
        are_none = np.ones(len(members), np.bool_)
        taken = np.fromiter(others, np.int64, len(others))
        are_none[np.searchsorted(members, taken[self.is_own[taken]])] = False
        return are_none

    def table(self) -> dict[str, Numbers]:
        """All of it, for another process, which is to find the same passes in the same opens. A copy."""
        trees = [
            (
                each.turn,
                each.since,
                each.told_until,
                each.lap_from,
                each.repeated,
                each.clock,
                each.epoch + 1,
                each.holds,
            )
            for each in self.trees
        ]
        nodes, log = [], []
        for number, tree in enumerate(self.trees):
            # A look makes an empty log, so neither that nor its place among the others is told.
            logs = sorted(tree.logs.items())
            nodes += [(number, node, each.since) for node, each in logs if each.since]
            if tree.holds:
                of_nodes = {node: each.entries() for node, each in logs}
            else:
                entries, whose = self._noted(tree)
                of_nodes = {node: entries[whose == node] for node in np.flatnonzero(np.bincount(whose)).tolist()}
            for node, entries in of_nodes.items():
                of_whom = np.broadcast_to(np.array([number, node]), (len(entries), 2))
                log.append(np.concatenate([of_whom, entries, self.left_with_array[entries[:, :1]]], axis=1))
        return {
            "pass.trees": np.array(trees, np.int64).reshape(-1, 8),
            "pass.evidence": np.array([each.evidence() for each in self.trees], np.int64).reshape(-1, len(EVIDENCE)),
            "pass.asked": self.asked_array.copy(),
            "pass.nodes": np.array(nodes, np.int64).reshape(-1, 3),
            "pass.log": np.concatenate([np.zeros((0, 6), np.int64), *log]).astype(np.int64),
            "pass.held": np.packbits(self.held_array),
            "pass.out": np.packbits(self.out_array),
            "pass.gone": np.packbits(self.gone_array),
            "pass.entered": self.entered_array.copy(),
            "pass.uses": rows(((tree.number, *use) for tree in self.trees for use in tree.uses), 3),
        }

    def resume(self, reader: StateReader, nodes: int) -> None:
        """Continue where a `table` was taken. Raises ValueError."""
        samples, count = len(self._class_array), len(self.trees)
        trees = reader.table("pass.trees", *[MOST] * 7, 2)
        if len(trees) != count:
            raise ValueError("the state has passes of other trees")
        for tree, (turn, since, *counts, epoch, holds) in zip(self.trees, trees, strict=True):
            tree.turn = turn
            tree.told_until, tree.lap_from, tree.repeated, tree.clock = counts
            tree.move(since)
            tree.epoch, tree.holds = epoch - 1, holds == 1
        for tree, found in zip(self.trees, reader.table("pass.evidence", *[MOST] * len(EVIDENCE)), strict=True):
            tree.resume_evidence(found)
        self.asked_array[:] = reader.array("pass.asked", np.int32, samples)
        held, out, gone = (reader.flags(f"pass.{name}", samples) for name in ("held", "out", "gone"))
        self.held_array[:], self.out_array[:], self.gone_array[:] = held, out, gone
        self.held_of_array[:] = np.bincount(self._class_array[held], minlength=len(self.held_of))
        self.entered_array[:] = reader.array("pass.entered", np.int32, len(self.entered_array))
        for number, used_at, asked_at in reader.table("pass.uses", count, MOST, MOST):
            self.trees[number].uses.append((used_at, asked_at))
        for number, node, since in reader.table("pass.nodes", count, nodes, MOST):
            self.trees[number].log_of(node).since = since
        logs: dict[tuple[int, int], list[list[int]]] = {}
        limits = (count, nodes, samples, *[MOST_OPENS + 1] * 3)
        for number, node, sample, turn, clock, left_with in reader.table("pass.log", *limits):
            logs.setdefault((number, node), []).append([sample, turn, clock])
            if clock >= self._left_at[sample]:
                self._left_at[sample], self._left_with[sample] = clock, left_with
        for (number, node), entries in logs.items():
            if self.trees[number].holds:
                self.trees[number].log_of(node).set(np.array(entries, np.int32))
                continue
            for sample, turn, _ in entries:
                self._left_by[sample], self._left_turn[sample] = node, turn

    def _number_anew(self, tree: HomePass) -> None:
        of_tree = np.flatnonzero(self._tree_array == tree.number)
        before = tree.since
        for numbers, which in (
            (self.asked_array, of_tree),
            (self.left_with_array, of_tree),
            (self.entered_array, tree.classes),
        ):
            numbers[which] = np.maximum(numbers[which] - before, 0)
        self._shift(tree, self._node, before)
        tree.uses = deque((used_at - before, max(0, asked_at - before)) for used_at, asked_at in tree.uses)
        tree.repeated = max(0, tree.repeated - before)
        tree.turn -= before
        tree.since = 0
        lap_from = tree.lap_from
        tree.forget_evidence()
        tree.told_until, tree.lap_from = max(0, tree.told_until - before), max(0, lap_from - before)

    def _reset_clock(self, tree: HomePass) -> None:
        """Count what leaves from 0 on again, but for what is held back."""
        kept = {}
        for node, log in tree.logs.items():
            entries = log.entries()
            kept[node] = entries[self._is_valid(entries)]
        if not tree.holds:
            kept = {self._node: self._noted(tree)[0]}
        clocks = np.sort(np.concatenate([entries[:, 2] for entries in kept.values()]))
        self.left_array[self.samples(tree)] = 0
        for node, entries in kept.items():
            entries[:, 2] = np.searchsorted(clocks, entries[:, 2]) + 1
            self.left_array[entries[:, 0]] = entries[:, 2]
            if tree.holds:
                tree.logs[node].set(entries)
        tree.clock = len(clocks)
