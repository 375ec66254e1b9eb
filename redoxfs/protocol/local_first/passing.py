"""What a node keeps of passes: an epoch is an epoch on several nodes, too.

As long as a job opens whole epochs and nothing else, laps are epochs, and decide alone. What left is noted (`passes`),
and used once laps are out of step with the job's passes. A node knows it by a lap that goes on after a path of its
readers came again, or because somebody tells that an epoch begins; peers learn it from its messages. From then on a
home *holds back* what it gave a node in that node's run. That is the rule for exactness. Laps come second: of what
passes allow, what had no turn in the lap goes first. So a lap is not exact any more, and ends where nobody has anything
left that passes allow:

    every peer was asked twice and had nothing left, and
      something that had its turn is allowed, here or at a peer  → the next lap begins, without what is held back
      nobody has an allowed sample of the class                  → the sample that left longest ago is given, once more

What the lap began without comes into it when a run is found to have begun later. A later lap of another node is begun
as soon as it is known; nothing that is left or taken is dropped for it. A node that finds that an epoch has begun
begins the next laps: else laps and passes drift apart, and each epoch has the samples of the last one in much the same
order.

*Told epochs.* Where every node is told that an epoch begins, it is a pass by construction, and each message has the
number of its sender's epoch. Ranks need not be in step. A node that is asked from the next epoch gives what left it in
the present one, and holds that back when it is told itself. A node that is asked from an epoch before gives what did
not leave it then, and what it had taken from others and not used. Both give a copy: the lap here does not notice.
Nodes that were not told equally often, as by a job that died between two of them, stay apart by as many epochs. So who
tells may say which number the epoch has at all nodes, and a node goes on to that one.

Never stuck, and never a wrong label: a node that is asked to give ``anyway`` gives whatever it has of the class.

A new process in place of another (`rejoin`) holds all of its own samples back until its first repeated path, or until
an epoch is told. It has the number of the epoch from its peers; where none of them was told of any, from who tells, or
from the first message.
"""

import numpy as np

from redoxfs.arrays import Flags, Int32, Numbers
from redoxfs.protocol.events import Served
from redoxfs.protocol.local_first.laps import EMPTY_ROUNDS, Laps
from redoxfs.protocol.local_first.messages import Given, Take
from redoxfs.protocol.local_first.passes import UNKNOWN, HomePass
from redoxfs.protocol.turns import Turns

MOST_BEHIND = 8
"""How many epochs a peer may be behind, to be given what did not leave in its epoch: one bit each. Looks at a few files
are told as epochs, too."""


def goes_by_laps(tree: HomePass, message: Take | Given) -> bool:
    """Whether laps alone decide about a message: nothing is held back, or one of the two does not know the epoch."""
    by_laps = tree.epoch == message.epoch - 1 <= 0 and not tree.holds
    return by_laps or (not message.epoch) != (tree.epoch == UNKNOWN)


def differ(epoch: int, other: int) -> bool:
    """Whether two epochs, as in messages, are known and not the same."""
    return 0 < epoch != other > 0


def _first(members: Numbers, *allowed: Flags) -> int | None:
    """The first of ``members`` that is ``allowed``, bool[n]; where none is, by the next of these."""
    return next((int(members[each.argmax()]) for each in allowed if each.any()), None)


class Passing(Laps):
    """`Laps` with passes: runs of opens and told epochs, and what nodes in other epochs get."""

    # Epochs that are told

    @property
    def has_passes(self) -> bool:
        return len(self._class_array) > 0

    def begin_pass(self, tree: int | None, number: int = 0) -> bool:
        """An epoch of a tree begins, or of all; at least that of this number. Afterwards take out `unloaded` and
        `revoked`."""
        self.chosen.clear()
        for each in self._passes.trees:
            if tree in (None, each.number):
                self._tell_up_to(each, number)
        return self.has_passes

    def pass_number(self, tree: int) -> int:
        return max(self._passes.trees[tree].epoch, 0, *(epoch for number, epoch in self._ahead if number == tree))

    def _tell_up_to(self, tree: HomePass, number: int) -> None:
        if number and tree.epoch == UNKNOWN:
            self._know_epoch(tree, number - 1, holds=True)
        elif tree.epoch != UNKNOWN:
            # Nobody is given anything of epochs that are longer ago.
            tree.epoch = max(tree.epoch, number - MOST_BEHIND - 1)
        self._tell(tree)
        # Peers may be in the epochs that this node was not told of.
        while UNKNOWN < tree.epoch < number:
            self._tell(tree)
        self._due_array[tree.classes] += 1

    def _tell(self, tree: HomePass) -> None:
        own, number = self._passes.samples(tree), tree.number
        ahead = self._ahead.pop((number, tree.epoch + 1), {})
        self._ahead = {key: given for key, given in self._ahead.items() if key[0] != number or key[1] > tree.epoch}
        for sample in ahead:
            # Another node's readers have had it in this epoch.
            if self._reservations.remove_own(self._class_of[sample], sample):
                self.revoked.append(sample)
                if not self._pool.put_back(sample):
                    self.unloaded.append(sample)
        rest = self._passes.begin_now(tree, [*ahead])
        self._rest_array[own] = self._rest_array[own] << 1 | rest[own]
        self._late = {
            key: late
            for key, late in self._late.items()
            if self._tree_of_class[key[0]] is not tree or key[1] >= tree.epoch - MOST_BEHIND
        }
        for cls in tree.classes.tolist():
            if cls in self._taken or cls in self._reservations:
                self._put_by(cls)

    def _put_by(self, cls: int) -> None:
        """What was taken for the epoch that is over is for nodes that are still in it."""
        late = self._drop_taken(cls)
        reserved = [sample for sample in self._reservations.of_class(cls) if self.is_taken(sample)]
        for sample in reserved:
            self._reservations.remove_taken(cls, sample)
        self.revoked += reserved
        late += reserved
        epoch = self._tree_of_class[cls].epoch
        if late and epoch != UNKNOWN:
            self._late.setdefault((cls, epoch - 1), []).extend(late)
        for sample in late:
            self._taken_at.pop(sample, None)

    def turns(self) -> Turns:
        """The turns that this node gave its readers. A lap that begins at the next request of its class has begun.
        Otherwise what the epoch before left out would have its turn in this one, and the whole class after it."""
        turns, is_due = self._ledger.turns(), self._due_array > 0
        if not is_due.any():
            return turns
        had = turns.flags(len(is_due), len(self._class_array))
        had[is_due[self._class_array]] = False
        laps = np.where(is_due, self._lap_array + self._due_array, turns.laps).astype(np.int32)
        return turns._replace(laps=laps, had=np.packbits(had))

    # Runs of opens

    def _look_at_lap(self, cls: int, *, goes_on: bool = False) -> None:
        """Before a turn of a class: if its lap has two opens of one path, and goes on, laps are no passes. It goes on
        where a sample of it is here."""
        tree = self._tree_of_class[cls]
        if tree.holds or tree.repeated <= self._passes.entered[cls]:
            return
        if goes_on or self._free(cls):
            self._hold(tree)
            self._enter_due(cls)

    def _hold(self, tree: HomePass) -> None:
        """From now on, what a run was given is held back."""
        if tree.holds:
            return
        self._passes.hold(tree)
        self._unheld_array[tree.classes] = 1
        self._drop_stale(tree)

    def _open(self, path: int) -> None:
        """Note an open."""
        cls, passes = self._class_of[path], self._passes
        tree = self._tree_of_class[cls]
        since = passes.open(tree, path)
        if since > tree.since:
            self._come(tree, passes.move(tree, self._node, since))
            if tree.holds:
                self._drop_stale(tree)
                if not tree.epoch and tree.has_begun(self._nodes):
                    self._due_array[tree.classes] += 1
                    self._passes.gone_array[self._passes.samples(tree)] = False
        if tree.holds:
            self._enter_due(cls)

    def _come(self, tree: HomePass, samples: Int32) -> None:
        """What a run does not have any more comes into the laps that began without it."""
        if not tree.holds:
            return
        if len(samples):
            self._pool.come_into_lap(samples)
            np.add.at(np.asarray(self._left), self._class_array[samples], 1)
        self._dry.clear()

    def _drop_stale(self, tree: HomePass) -> None:
        """What was taken before the run began may be given again by its home."""
        stale = [sample for sample, at in self._taken_at.items() if at <= tree.since]
        for sample in stale:
            cls = self._class_of[sample]
            if self._tree_of_class[cls] is not tree:
                continue
            del self._taken_at[sample]
            if sample not in self._taken.of_class(cls):
                continue
            if self._taken.remove(cls, sample) or not self._pool.is_resident(sample):
                self.unloaded.append(sample)

    def _leaves(self, sample: int) -> None:
        tree = self._tree_of_class[self._class_of[sample]]
        node, turn = self._for or (self._node, tree.turn)
        self._passes.leave(tree, sample, node, turn)

    # What nobody has an allowed sample of

    def _is_dry(self, cls: int) -> bool:
        """Whether nobody has an allowed sample of a class, as far as this node knows."""
        is_empty = self._empty_rounds(cls) >= EMPTY_ROUNDS and not self._is_any_free(cls)
        return is_empty and not self._is_again_any(cls)

    def _is_any_under_way(self, cls: int, epoch: int) -> bool:
        """Whether samples for an epoch may be under way here from a peer: nobody has them until they come.

        A peer that had nothing in the present epoch is not expected to send any. Otherwise two nodes could wait for
        each other for ever. For an epoch that is over, this node asks nobody again, so there is no such wait.

        Args:
            epoch: as in messages.
        """
        if cls not in self._asked:
            return False
        home, number = self._asked[cls]
        sent = self._peers[home].unanswered.get(number)
        if sent is None:
            return False
        if differ(epoch, self._tree_of_class[cls].epoch + 1):
            return sent.message.epoch == epoch
        return not differ(epoch, sent.message.epoch) and not self._empty_answers.get(cls, {}).get(home, 0)

    def _longest_ago(self, cls: int) -> int | None:
        """The peer from which an own sample left longest ago; None where that is this node."""
        _, own = self._oldest(cls)
        ages = [self._peers[number].oldest[cls] for number in self._there]
        oldest = max(ages, default=0)
        if oldest <= own or not oldest:
            return None
        return self._there[ages.index(oldest)]

    def _oldest(self, cls: int) -> tuple[int, int]:
        members = self._own_members(cls)
        return self._passes.oldest(self._tree_of_class[cls], members, self._reserved_here(cls))

    def _give_anyway(self, cls: int) -> Served | None:
        """Give the own sample that left longest ago."""
        sample, _ = self._oldest(cls)
        if sample < 0:
            return None
        self.passes_given_twice += 1
        self._leaves(sample)
        return self._pool.give_copy(sample)

    # What peers get

    def _hear(self, tree: HomePass, message: Take | Given, node: int) -> None:
        """What a message says of passes."""
        if tree.epoch == UNKNOWN and message.epoch:
            self._know_epoch(tree, message.epoch - 1, holds=message.holds)
        if message.holds and (tree.epoch != UNKNOWN or not message.epoch):
            self._hold(tree)
        if message.epoch == tree.epoch + 1:
            # Else its run is of another epoch than what is held back here.
            self._come(tree, self._passes.heard(tree, node, message.since))

    def _given_anyway(self, cls: int, *, in_epoch: bool = True) -> list[Served]:
        served = self._give_anyway(cls)
        if served is None and not in_epoch:
            served = self._give_of_now(cls)
        return [] if served is None else [served]

    def _give_of_now(self, cls: int) -> Served | None:
        """Give a copy of an own sample in another epoch, where none left in the present one."""
        members = self._free_members(cls)
        if not len(members):
            members = self._own_members(cls)
        if not len(members):
            return None
        self.passes_given_twice += 1
        return self._pool.give_copy(int(members[self.passes_given_twice % len(members)]))

    def _give_ahead(self, cls: int, epoch: int) -> list[Served]:
        """Give a sample in an epoch that this node was not told of yet; one that left in the present epoch, if any."""
        tree = self._tree_of_class[cls]
        if (tree.number, epoch) not in self._ahead:
            # Of a node that is never told, others may be any number of epochs ahead.
            self._ahead = {
                key: samples
                for key, samples in self._ahead.items()
                if key[0] != tree.number or key[1] > epoch - MOST_BEHIND
            }
        given = self._ahead.setdefault((tree.number, epoch), {})
        members = self._own_members(cls)
        ahead = np.fromiter(given, np.int64, len(given))
        is_free = self._passes.are_none_of(members, ahead[self._class_array[ahead] == cls])
        is_free &= self._passes.are_none_of(members, self._reserved_here(cls))
        gone = self._passes.gone_array[members]
        sample = _first(members, is_free & gone, is_free)
        is_reserved = sample is None
        if sample is None:
            reserved = [own for own in self._reservations.own_of(cls) if own not in given]
            if not reserved:
                return []
            sample = self.choose_victim(reserved)
        served = self._pool.give_copy(sample)
        if is_reserved:
            # It may be opened in that epoch as well.
            served.preempted = self._reservations.remove_own(cls, sample)
            self._pool.put_back(sample)
        given[sample] = None
        return [served]

    def _give_late(self, cls: int, epoch: int) -> list[Served]:
        """Give a sample in an epoch before the present one."""
        late = self._late.get((cls, epoch))
        if late:
            taken = late.pop()
            if not late:
                del self._late[cls, epoch]
            return [Served(taken, remote=True)]
        bit = 1 << self._tree_of_class[cls].epoch - 1 - epoch
        members = self._own_members(cls)
        is_left = self._rest_array[members] & bit > 0
        # One that is reserved for a reader here, in the present epoch, comes in that one as well.
        is_free = self._passes.are_none_of(members, self._reserved_here(cls))
        sample = _first(members, is_left & is_free, is_left)
        if sample is None:
            return []
        self._rest[sample] &= ~bit
        return [self._pool.give_copy(sample)]

    def _know_epoch(self, tree: HomePass, epoch: int, *, holds: bool) -> None:
        tree.epoch = epoch
        # One that was told of an epoch meanwhile knows what left in it.
        if (holds or epoch > 0) and not tree.told_until:
            self._hold_unknown(tree)

    def _hold_unknown(self, tree: HomePass) -> None:
        """What the process before this one gave is not known: all that is not left here."""
        self._passes.hold(tree)
        own = self._passes.samples(tree)
        self._passes.hold_all(tree, own[np.asarray(self._left)[self._class_array[own]] == 0])

    # A process in place of another

    def begun(self) -> Int32:
        """int32[C + trees]: how many laps of each class have begun, as far as this node knows, and the number of each
        tree's epoch, 0 if it is not known."""
        epochs = [max(0, tree.epoch) for tree in self._passes.trees]
        return np.concatenate([self._laps_begun(), np.array(epochs, np.int32)])

    def _laps_begun(self) -> Int32:
        """int32[C]. In a lap that has begun a sample was given."""
        is_begun = (np.asarray(self._left) != self._parts.own(self._node)) | (np.asarray(self._came) == self._lap_array)
        for done in (self._done, *(news for peer in self._peers.values() for news in (peer.done, peer.before))):
            is_begun |= np.asarray(done) > 0
        return np.where(is_begun, self._lap_array, self._lap_array - 1)

    def rejoin(self, begun: Int32) -> None:
        """Replace a process of which others may have had samples. Call it before anything else.

        Args:
            begun: the maximum of the peers' `begun`.
        """
        begun, epochs = np.split(begun, [len(self._lap_array)])
        unknown = self._passes.is_own & (begun > 0)[self._class_array]
        self._policy.restore(Turns(np.maximum(begun, 1), np.packbits(unknown), 0))
        for cls in np.flatnonzero(begun > 0).tolist():
            lap = int(begun[cls])
            self._enter_lap(cls, lap)
            self._left[cls] = 0
            self._incomplete[cls] = self._came[cls] = lap
        for tree, epoch in zip(self._passes.trees, epochs.tolist(), strict=True):
            # Else a message tells it, from a peer that may not be told of the next one yet.
            tree.epoch = epoch or UNKNOWN
            if epoch:
                self._hold_unknown(tree)
