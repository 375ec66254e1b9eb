"""A node of the local-first protocol that keeps passes: an epoch is an epoch on several nodes, too.

As long as a job opens whole epochs and nothing else, laps are epochs, and decide alone, as in `LocalFirst`. What left
is noted (`passes`), and used once laps are out of step with the job's passes. A node knows it by a path that its
readers open twice in one lap, or because somebody tells that an epoch begins; peers learn it from its messages. From
then on a home *holds back* what it gave a node in that node's run. That is the rule for exactness. Laps come second: of
what passes allow, what had no turn in the lap goes first. So a lap is not exact any more, and ends where nobody has
anything left that passes allow:

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

from redoxfs.arrays import Int32, Numbers
from redoxfs.protocol.events import Delivered, Pending, Served, SharedState
from redoxfs.protocol.local_first.messages import Given, Take
from redoxfs.protocol.local_first.passes import UNKNOWN, HomePass, HomePasses
from redoxfs.protocol.local_first.peer import Peer
from redoxfs.protocol.local_first.policy import EMPTY_ROUNDS, LocalFirst
from redoxfs.protocol.tables import MOST, StateReader, rows
from redoxfs.protocol.turns import Turns

MOST_BEHIND = 8
"""How many epochs a peer may be behind, to be given what did not leave in its epoch: one bit each. Looks at a few files
are told as epochs, too."""


def _goes_by_laps(tree: HomePass, message: Take | Given) -> bool:
    """Whether laps alone decide about a message: nothing is held back, or one of the two does not know the epoch."""
    by_laps = tree.epoch == message.epoch - 1 <= 0 and not tree.holds
    return by_laps or (not message.epoch) != (tree.epoch == UNKNOWN)


def _differ(epoch: int, other: int) -> bool:
    """Whether two epochs, as in messages, are known and not the same."""
    return 0 < epoch != other > 0


class PassingNode(LocalFirst):
    """A `LocalFirst` that keeps passes, from `keep_passes` on: call it before anything else."""

    _passes: HomePasses

    def keep_passes(self, tree_of: Numbers, trees: int) -> None:
        """``tree_of``: int[S], the tree of each sample, the same for all samples of a class."""
        is_own = self._parts.is_own(self._node)
        self._passes = HomePasses(self._class_array, is_own, tree_of, trees, node=self._node, nodes=self._nodes)
        self._tree_of_class = self._passes.of_class
        classes = len(self._lap_array)
        self._own_of: memoryview[int] = self._parts.own(self._node).data
        # How many laps of each class were ended by what was told since its last request.
        self._due_array = np.zeros(classes, np.int32)
        self._due: memoryview[int] = self._due_array.data
        # uint8[S]: a bit for each epoch before the present one, the last one's the lowest: an own sample did not leave.
        self._rest_array = np.zeros(len(self._class_array), np.uint8)
        self._rest: memoryview[int] = self._rest_array.data
        # By tree and epoch: what was given in an epoch that this node was not told of yet.
        self._ahead: dict[tuple[int, int], dict[int, None]] = {}
        # By class and epoch: what was taken in an epoch that is over, and not used.
        self._late: dict[tuple[int, int], list[int]] = {}
        # With which open each taken sample came.
        self._taken_at: dict[int, int] = {}
        self._own_members_of: dict[int, Numbers] = {}
        # Classes of which a stat has got no sample: nobody has one that is allowed.
        self._dry: set[int] = set()
        # How many samples laps began without, as a pass had been given them; how many were given though they are held
        # back, as nobody had another.
        self.samples_held_back = self.passes_given_twice = 0
        # For whom samples leave: the node, and its open; None: this one.
        self._for: tuple[int, int] | None = None
        # With which open of this node the samples came that are taken in next.
        self._came_at = 0
        # uint8[C]: what is held back is to leave the lap at the next request.
        self._unheld: memoryview[int] = np.zeros(classes, np.uint8).data
        # By class: an open waits for a sample, whose path had this open before.
        self._repeated: dict[int, int] = {}

    # Epochs that are told

    @property
    def has_passes(self) -> bool:
        return True

    def begin_pass(self, tree: int | None, number: int = 0) -> bool:
        """An epoch of a tree begins, or of all; at least that of this number. Afterwards take out `unloaded` and
        `revoked`."""
        self.chosen.clear()
        for each in self._passes.trees:
            if tree in (None, each.number):
                self._tell_up_to(each, number)
        return True

    def pass_number(self, tree: int) -> int:
        return max(self._passes.trees[tree].epoch, 0, *(epoch for number, epoch in self._ahead if number == tree))

    def _tell_up_to(self, tree: HomePass, number: int) -> None:
        if number and tree.epoch == UNKNOWN:
            self._know_epoch(tree, number - 1, holds=True)
        elif tree.epoch != UNKNOWN:
            # Nobody is given anything of epochs that are longer ago.
            tree.epoch = max(tree.epoch, number - MOST_BEHIND - 1)
        self._tell(tree.number, tree)
        # Peers may be in the epochs that this node was not told of.
        while UNKNOWN < tree.epoch < number:
            self._tell(tree.number, tree)
        self._due_array[tree.classes] += 1

    def _tell(self, number: int, tree: HomePass) -> None:
        own = self._passes.samples(tree)
        ahead = self._ahead.pop((number, tree.epoch + 1), {})
        self._ahead = {key: given for key, given in self._ahead.items() if key[0] != number or key[1] > tree.epoch}
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
        if epoch != UNKNOWN:
            self._late.setdefault((cls, epoch - 1), []).extend(late)
        for sample in late:
            self._taken_at.pop(sample, None)

    def turns(self) -> Turns:
        """As `LocalFirst.turns`. A lap that begins at the next request of its class has begun. Otherwise what the epoch
        before left out would have its turn in this one, and the whole class after it."""
        turns, is_due = super().turns(), self._due_array > 0
        if not is_due.any():
            return turns
        had = turns.flags(len(is_due), len(self._class_array))
        had[is_due[self._class_array]] = False
        laps = np.where(is_due, self._lap_array + self._due_array, turns.laps).astype(np.int32)
        return turns._replace(laps=laps, had=np.packbits(had))

    # Turns

    def request(self, sample: int) -> Served | Pending:
        cls, before = self._class_of[sample], self._open(sample)
        turn = super().request(sample)
        if isinstance(turn, Pending) and before > self._passes.entered[cls]:
            self._repeated[cls] = max(before, self._repeated.get(cls, 0))
        else:
            self._compare(cls, before)
        return turn

    def _holds(self, cls: int) -> bool:
        return self._tree_of_class[cls].holds

    def _compare(self, cls: int, before: int) -> None:
        """A path got a sample, and had its open ``before`` as well. If both are of one lap, laps are no passes."""
        if before > self._passes.entered[cls]:
            self._hold(self._tree_of_class[cls])

    def _hold(self, tree: HomePass) -> None:
        """From now on, what a run was given is held back."""
        if tree.holds:
            return
        self._passes.hold(tree)
        np.asarray(self._unheld)[tree.classes] = 1
        self._drop_stale(tree)

    def reserve(self, sample: int) -> int | Pending | None:
        cls = self._class_of[sample]
        self._enter_due(cls)
        if cls in self._dry:
            self._dry.discard(cls)
            self.chosen.clear()
            return None
        return super().reserve(sample)

    def take(self, reserved: int, path: int = -1) -> Served:
        cls, before = self._class_of[reserved], self._open(reserved if path < 0 else path)
        served = super().take(reserved, path)
        self._compare(cls, before)
        return served

    def put_back(self, reserved: int) -> bool:
        cls = self._class_of[reserved]
        if self._reservations.is_taken(cls, reserved):
            # It may be given again by its home once this node's pass is found to have begun later.
            self._taken_at[reserved] = self._tree_of_class[cls].since + 1
        return super().put_back(reserved)

    def _open(self, path: int) -> int:
        """Note an open. Returns the one that the path had before, as long as nothing is held back."""
        cls, passes = self._class_of[path], self._passes
        tree, before = self._tree_of_class[cls], passes.asked[path]
        since = passes.open(tree, path)
        if since > tree.since:
            self._come(tree, passes.move(tree, self._node, since))
            if tree.holds:
                self._drop_stale(tree)
                if not tree.epoch and tree.has_begun(self._nodes):
                    self._due_array[tree.classes] += 1
                    self._passes.gone_array[self._passes.samples(tree)] = False
        if not tree.holds:
            return before
        self._enter_due(cls)
        return 0

    def _is_left(self, sample: int) -> bool:
        """Whether a sample is this node's own, and is left in its lap and not reserved."""
        return bool(self._passes.is_own[sample]) and self._pool.is_left(sample)

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

    def _serve(self, cls: int) -> Served | None:
        served = super()._serve(cls)
        if served is None and self._holds(cls) and self._is_dry(cls) and self._longest_ago(cls) is None:
            served = self._give_anyway(cls)
            if served is not None:
                self._note_done(cls, served)
        return served

    def _next_own(self, cls: int) -> Served:
        served = super()._next_own(cls)
        self._leaves(served.sample)
        return served

    def _next_taken(self, cls: int) -> Served:
        served = super()._next_taken(cls)
        self._taken_at.pop(served.sample, None)
        return served

    def _take(self, cls: int, reserved: int, *, preempted: bool = False) -> Served:
        served = super()._take(cls, reserved, preempted=preempted)
        if not served.remote:
            self._leaves(reserved)
        return served

    def _leaves(self, sample: int) -> None:
        tree = self._tree_of_class[self._class_of[sample]]
        node, turn = self._for or (self._node, tree.turn)
        self._passes.leave(tree, sample, node, turn)

    def _accept(self, cls: int, samples: tuple[int, ...], *, has_room: bool) -> None:
        # One of this node's own may come back after its next lap began here.
        reserved = self._reservations.own_of(cls)
        samples = tuple([each for each in samples if each not in reserved and not self._is_left(each)])
        if not samples:
            return
        super()._accept(cls, samples, has_room=has_room)
        self._taken_at.update(dict.fromkeys(samples, self._came_at))

    def lost(self, peer: int) -> tuple[Delivered, ...]:
        if peer in self._there:
            self._passes.forget(peer)
        return super().lost(peer)

    def restarted(self, peer: int) -> tuple[Delivered, ...]:
        self._passes.forget(peer)
        return super().restarted(peer)

    # What nobody has an allowed sample of

    def _own_again(self, cls: int) -> int:
        """How many own samples had their turn in the lap and are allowed."""
        return max(0, self._own_of[cls] - self._left[cls] - self._passes.held_of[cls])

    def _is_again_any(self, cls: int) -> bool:
        return self._own_again(cls) > 0 or any(self._peers[number].again[cls] for number in self._there)

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
        if _differ(epoch, self._tree_of_class[cls].epoch + 1):
            return sent.message.epoch == epoch
        return not _differ(epoch, sent.message.epoch) and not self._empty_answers.get(cls, {}).get(home, 0)

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

    def _reserved_here(self, cls: int) -> frozenset[int]:
        return frozenset(self._reservations.of_class(cls)) if cls in self._reservations else frozenset()

    def _give_anyway(self, cls: int) -> Served | None:
        """Give the own sample that left longest ago."""
        sample, _ = self._oldest(cls)
        if sample < 0:
            return None
        self.passes_given_twice += 1
        self._leaves(sample)
        return self._pool.give_copy(sample)

    def _promise(self, cls: int, promised: set[int]) -> Served | None:
        served = super()._promise(cls, promised)
        if served is None and self._holds(cls) and self._is_dry(cls):
            self._dry.add(cls)
        return served

    def _deliver(self, cls: int) -> list[Delivered]:
        delivered = super()._deliver(cls)
        before = self._repeated.get(cls, 0)
        if before and (delivered or before <= self._passes.entered[cls]):
            del self._repeated[cls]
            self._compare(cls, before)
        if cls in self._dry and cls in self._waiting:
            # No stat waits for what an open would be given anyway.
            waiting = self._waiting.pop(cls)
            delivered += [Delivered(ticket.number, None) for ticket in waiting if ticket.reserves]
            self._waiting.put_back(cls, [ticket for ticket in waiting if not ticket.reserves])
        return delivered

    def _ask(self, cls: int) -> None:
        is_dry = self._holds(cls) and self._waiting.count(cls) and self._is_dry(cls)
        home = self._longest_ago(cls) if is_dry else None
        if home is None:
            super()._ask(cls)
            return
        self._send(home, cls, 1, 0, 0, 0, anyway=True)

    def _batch(self, cls: int) -> int:
        # A home knows with which open a sample was asked for, not when a reader got it: maybe in a later epoch.
        tree = self._tree_of_class[cls]
        return 1 if tree.holds and not tree.epoch else super()._batch(cls)

    def _addressed(self, message: Take) -> Take:
        tree = self._tree_of_class[message.cls]
        return message._replace(epoch=tree.epoch + 1, turn=tree.turn, since=tree.since, holds=tree.holds)

    # What peers get

    def _answer(self, message: Take, peer: Peer) -> list[Served]:
        self._for = message.requester, message.turn
        turns = self._turns_for(message, peer)
        self._for = None
        return turns

    def _hear(self, tree: HomePass, message: Take | Given, node: int) -> None:
        """What a message says of passes."""
        if tree.epoch == UNKNOWN and message.epoch:
            self._know_epoch(tree, message.epoch - 1, holds=message.holds)
        if message.holds and (tree.epoch != UNKNOWN or not message.epoch):
            self._hold(tree)
        if message.epoch == tree.epoch + 1:
            # Else its run is of another epoch than what is held back here.
            self._come(tree, self._passes.heard(tree, node, message.since))

    def _turns_for(self, message: Take, peer: Peer) -> list[Served]:
        cls = message.cls
        tree = self._tree_of_class[cls]
        self._hear(tree, message, message.requester)
        is_of = message.epoch - 1
        if _goes_by_laps(tree, message):
            return super()._answer(message, peer)
        if is_of > tree.epoch or tree.epoch - MOST_BEHIND <= is_of < tree.epoch:
            turns = self._give_ahead(cls, is_of) if is_of > tree.epoch else self._give_late(cls, is_of)
            return turns or (self._given_anyway(cls, in_epoch=False) if message.anyway else [])
        self._enter_due(cls)
        if message.lap > self._lap[cls]:
            self._begin_lap(cls, message.lap)
        if message.lap == self._lap[cls]:
            peer.done[cls] = max(message.done, peer.done[cls])
        turns = self._give(cls, message.max_samples, message.room_bytes)
        if not turns and message.anyway:
            turns = self._given_anyway(cls)
        return turns

    def _given_anyway(self, cls: int, *, in_epoch: bool = True) -> list[Served]:
        served = self._give_anyway(cls)
        if served is None and not in_epoch:
            served = self._give_of_now(cls)
        return [] if served is None else [served]

    def _free_members(self, cls: int) -> Numbers:
        """The own samples of a class that are not reserved."""
        members = self._own_members(cls)
        return members[self._passes.are_none_of(members, self._reservations.own_of(cls))]

    def _give_of_now(self, cls: int) -> Served | None:
        """Give a copy of an own sample in another epoch, where none left in the present one."""
        members = self._free_members(cls)
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
        for allowed in (is_free & gone, is_free):
            at = int(allowed.argmax()) if len(allowed) else 0
            if len(allowed) and allowed[at]:
                sample = int(members[at])
                given[sample] = None
                return [self._pool.give_copy(sample)]
        return []

    def _give_late(self, cls: int, epoch: int) -> list[Served]:
        """Give a sample in an epoch before the present one."""
        late = self._late.get((cls, epoch))
        if late:
            sample = late.pop()
            if not late:
                del self._late[cls, epoch]
            return [Served(sample, remote=True)]
        bit = 1 << self._tree_of_class[cls].epoch - 1 - epoch
        members = self._own_members(cls)
        reserved = self._reserved_here(cls)
        for at in np.flatnonzero(self._rest_array[members] & bit):
            sample = int(members[at])
            if sample not in reserved:
                self._rest[sample] &= ~bit
                return [self._pool.give_copy(sample)]
        return []

    def _own_members(self, cls: int) -> Numbers:
        """The own samples of a class, in order of their numbers."""
        own = self._own_members_of.get(cls)
        if own is None:
            own = self._own_members_of[cls] = np.sort(self._policy.members(cls))
        return own

    def _news(self, message: Take, samples: tuple[int, ...]) -> Given:
        cls = message.cls
        tree = self._tree_of_class[cls]
        news = super()._news(message, samples)._replace(epoch=tree.epoch + 1, since=tree.since, holds=tree.holds)
        if not tree.holds:
            return news
        again = 0 if self._due[cls] else self._own_again(cls)
        if not samples:
            left = 0 if _differ(message.epoch, tree.epoch + 1) else news.left
            news = news._replace(left=left + self._is_any_under_way(cls, message.epoch))
        oldest = 0 if samples else self._oldest(cls)[1]
        if not samples and _differ(message.epoch, tree.epoch + 1) and not oldest:
            # Nothing left in the present epoch: all of the class may be given again in another one.
            oldest = int(len(self._free_members(cls)) > 0)
        return news._replace(again=again, oldest=oldest)

    def _take_news(self, answer: Given, message: Take, peer: Peer) -> bool:
        cls = answer.cls
        tree = self._tree_of_class[cls]
        if message.epoch and message.epoch != tree.epoch + 1:
            # It was asked for in an epoch that is over.
            if answer.samples:
                self._late.setdefault((cls, message.epoch - 1), []).extend(answer.samples)
            return False
        self._came_at = message.turn
        if answer.number >= peer.first:
            self._hear(tree, answer, answer.home)
        if _goes_by_laps(tree, answer):
            return super()._take_news(answer, message, peer)
        self._enter_due(cls)
        if answer.number < peer.first:
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
        if answer.lap == self._lap[cls]:
            peer.left[cls] = answer.left
            peer.done[cls] = max(answer.done, peer.done[cls])
            peer.again[cls] = answer.again
        return True

    def _is_of_now(self, answer: Given, message: Take) -> bool:
        if not self._holds(answer.cls):
            return super()._is_of_now(answer, message)
        # In other epochs laps have other numbers.
        return message.lap == self._lap[answer.cls] and (
            answer.epoch != message.epoch or answer.lap == self._lap[answer.cls]
        )

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

    # Laps

    def _enter_due(self, cls: int) -> None:
        """What begins since the class was last asked for: to hold back, or the lap that an epoch began."""
        if self._unheld[cls]:
            self.samples_held_back += self._leave_held_out(cls)
        due = self._due[cls]
        if not due:
            return
        self._due[cls] = 0
        lap = self._lap[cls] + due
        # Given ahead, without a turn in the lap that is over.
        self._leave_held_out(cls)
        self._begin_lap(cls, lap)
        if self._ledger.progress is not None:
            self._ledger.progress.begin_lap(self._tree_of_class[cls].number, lap)

    def _leave_held_out(self, cls: int) -> int:
        """The lap goes on without what is held back and is left in it. Returns how many samples that are."""
        self._unheld[cls] = out = 0
        members = self._own_members(cls)
        reserved = self._reserved_here(cls)
        for sample in members[self._passes.held_array[members]].tolist():
            if sample in reserved or not self._pool.is_left(sample):
                continue
            out += 1
            self._passes.out_array[sample] = True
            if self._pool.leave_out(sample):
                self.unloaded.append(sample)
        self._left[cls] -= out
        return out

    def _begin_next_lap(self, cls: int) -> None:
        if not self._holds(cls):
            super()._begin_next_lap(cls)
        # Not by what is done: where a job opens more than an epoch has, samples are done that are not of the lap.
        elif self._empty_rounds(cls) >= EMPTY_ROUNDS and self._is_again_any(cls):
            # Also for peers: its messages tell them. So none of them has to seek a sample for another, as in laps.
            self._begin_lap(cls, self._lap[cls] + 1)

    def _begin_lap(self, cls: int, lap: int) -> None:
        """Begin ``lap`` without what is held back. What is left, taken or reserved stays, also if it is held back."""
        if not self._holds(cls):
            super()._begin_lap(cls, lap)
            return
        self._pool.begin_lap_without(cls, lap, self._passes.held_array)
        members = self._free_members(cls)
        out = self._passes.leave_out(members, self._pool.are_left(cls, members))
        self.samples_held_back += out
        self._enter_lap(cls, lap)
        self._left[cls] -= out
        for peer in self._peers.values():
            peer.again[cls] = 0

    def _enter_lap(self, cls: int, lap: int) -> None:
        super()._enter_lap(cls, lap)
        self._passes.entered[cls] = self._tree_of_class[cls].turn

    def begun(self) -> Int32:
        """int32[C + trees]: as that of a node without passes, and the number of each tree's epoch, 0 if it is not
        known."""
        epochs = [max(0, tree.epoch) for tree in self._passes.trees]
        return np.concatenate([super().begun(), np.array(epochs, np.int32)])

    def rejoin(self, begun: Int32) -> None:
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

    # For another process that continues

    def state(self) -> SharedState:
        values, arrays = super().state()
        ahead = ((*key, sample) for key, samples in self._ahead.items() for sample in samples)
        return SharedState(
            values | {"held_back": self.samples_held_back, "given_twice": self.passes_given_twice},
            arrays
            | self._passes.table()
            | {
                "pass.due": self._due_array.copy(),
                "pass.rest": self._rest_array.copy(),
                "pass.ahead": rows(ahead, 3),
                "pass.late": rows(((*key, sample) for key, late in self._late.items() for sample in late), 3),
                "pass.taken": rows(self._taken_at.items(), 2),
                "pass.unheld": np.asarray(self._unheld).copy(),
                "pass.repeated": rows(self._repeated.items(), 2),
                "pass.dry": rows(((cls,) for cls in sorted(self._dry)), 1),
            },
        )

    def resume(self, state: SharedState) -> None:
        super().resume(state)
        reader = StateReader(state, node=self._node, nodes=self._nodes)
        samples, classes, trees = len(self._class_array), len(self._lap_array), len(self._passes.trees)
        self.samples_held_back, self.passes_given_twice = reader.value("held_back"), reader.value("given_twice")
        self._passes.resume(reader, self._nodes)
        self._due_array[:] = reader.array("pass.due", np.int32, classes)
        self._rest_array[:] = reader.array("pass.rest", np.uint8, samples)
        for tree, epoch, sample in reader.table("pass.ahead", trees, MOST, samples):
            self._ahead.setdefault((tree, epoch), {})[sample] = None
        for cls, epoch, sample in reader.table("pass.late", classes, MOST, samples):
            self._late.setdefault((cls, epoch), []).append(sample)
        self._taken_at = {sample: at for sample, at in reader.table("pass.taken", samples, MOST)}  # noqa: C416
        np.asarray(self._unheld)[:] = reader.array("pass.unheld", np.uint8, classes)
        self._repeated = {cls: before for cls, before in reader.table("pass.repeated", classes, MOST)}  # noqa: C416
        self._dry = {cls for (cls,) in reader.table("pass.dry", classes)}
