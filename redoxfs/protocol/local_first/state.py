"""All that a node of the local-first protocol knows: as it begins, as it is saved, and as another process continues."""

from collections.abc import Sequence

import numpy as np

from redoxfs.arrays import Flags, Int8, Int32, Int64, Numbers
from redoxfs.protocol.events import ChooseVictim, Message, SharedState, oldest
from redoxfs.protocol.local_first.exchange import Exchange
from redoxfs.protocol.local_first.messages import Given, Take
from redoxfs.protocol.local_first.parts import NodeParts
from redoxfs.protocol.local_first.passes import HomePasses
from redoxfs.protocol.local_first.peer import Peer, Sent
from redoxfs.protocol.local_first.repeated import Pool, RepeatedPool
from redoxfs.protocol.local_first.reservations import Reservations
from redoxfs.protocol.local_first.taken import Taken
from redoxfs.protocol.local_first.waiting import Waiting
from redoxfs.protocol.pool import PoolPolicy
from redoxfs.protocol.tables import MOST, StateReader, arrays_of, rows
from redoxfs.protocol.turns import Ledger, Turns


class NodeState:
    """All that a node knows.

    The arrays are shared, not copied, and must not change.

    Args:
        node: the number of this node, from 0 to ``nodes`` - 1.
        policy: decides about this node's own samples; each lap of it covers the node's part alone.
        class_of: int32[S], the class of each sample.
        part_of: int8[S], the node whose own each sample is, 0 to ``nodes`` - 1: `chunks.deal`.
        sample_bytes: int64[S], what each takes of the remote memory.
        remote_memory_bytes: the limit of taken samples and room granted to answers.
        exchange: the share of samples to take from peers, on purpose where need alone takes less.
        seed: of what spreads over each lap when a class is exchanged.
        tree_of: int[S], the tree of each sample, the same for all samples of a class; None: there is one tree.
        trees: how many there are.
        reads_alone: whether the samples of all nodes can be read here.
    """

    def __init__(
        self,
        node: int,
        policy: PoolPolicy,
        class_of: Int32,
        part_of: Int8,
        sample_bytes: Int64,
        *,
        nodes: int,
        remote_memory_bytes: int,
        exchange: float = 0.0,
        seed: int = 0,
        tree_of: Numbers | None = None,
        trees: int = 1,
        reads_alone: bool = False,
    ) -> None:
        # As the pool has it: one class without samples, if there are none.
        classes = int(class_of.max(initial=0)) + 1
        self.outbox: list[Message] = []
        self.unloaded: list[int] = []
        self.revoked: list[int] = []
        self.chosen: list[int] = []
        self.missed = self.degraded = 0
        self.choose_victim: ChooseVictim = oldest
        self._node = node
        self._nodes = nodes
        self._reads_alone = reads_alone
        self._policy = policy
        # What decides about own samples: the policy, or one that is repeated.
        self._pool: Pool = policy
        self._class_array = class_of
        self._class_of: memoryview[int] = class_of.data
        self._bytes_of: memoryview[int] = sample_bytes.data
        self._of_class: memoryview[int] = np.bincount(class_of, minlength=classes).astype(np.int32).data
        self._parts = NodeParts(class_of, part_of, nodes=nodes)
        # One sample of each class, to ask the pool for the class.
        any_of = np.full(classes, -1, np.int32)
        any_of[class_of] = np.arange(len(class_of), dtype=np.int32)
        self._any_of: memoryview[int] = any_of.data
        # Own samples of the lap that are neither served nor given away; reserved ones are included.
        self._left: memoryview[int] = self._parts.own(node).data
        self._done: memoryview[int] = np.zeros(classes, np.int32).data
        self._lap_array = np.ones(classes, np.int32)
        self._lap: memoryview[int] = self._lap_array.data
        # From the next number on: of peers with equally many left, every node asks another one first.
        in_turn = [(node + ahead) % nodes for ahead in range(1, nodes)]
        self._peers = {peer: Peer(self._parts.own(peer)) for peer in in_turn}
        # The peers that are not lost, in the same order.
        self._there = in_turn
        # The last lap of each class that is incomplete.
        self._incomplete_array = np.zeros(classes, np.int32)
        self._incomplete: memoryview[int] = self._incomplete_array.data
        # The last lap of each class in which something came from a peer.
        self._came: memoryview[int] = np.zeros(classes, np.int32).data
        self._taken = Taken(class_of, sample_bytes, remote_memory_bytes)
        self._reservations = Reservations()
        self._waiting = Waiting()
        # By class: the peer and number of its unanswered Take; how many answers of each peer in a row were empty.
        self._asked: dict[int, tuple[int, int]] = {}
        self._empty_answers: dict[int, dict[int, int]] = {}
        # Classes that this node asks for on behalf of peers.
        self._sought: set[int] = set()
        self._exchange = Exchange(
            np.asarray(self._of_class),
            nodes=nodes,
            share=exchange,
            room_samples=remote_memory_bytes * len(class_of) / max(1, int(sample_bytes.sum())),
            seed=seed,
        )
        self._ledger = Ledger(class_of, classes, self._parts.members)
        if tree_of is None:
            tree_of = np.zeros(len(class_of), np.int8)
        self._passes = HomePasses(class_of, self._parts.is_own(node), tree_of, trees, node=node, nodes=nodes)
        self._tree_of_class = self._passes.of_class
        self._own_of: memoryview[int] = self._parts.own(node).data
        # How many laps of each class were ended by what was told since its last request.
        self._due_array = np.zeros(classes, np.int32)
        self._due: memoryview[int] = self._due_array.data
        # uint8[S]: a bit for each epoch before the present one, the last one's the lowest: an own sample did not leave.
        self._rest_array = np.zeros(len(class_of), np.uint8)
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
        self._unheld_array = np.zeros(classes, np.uint8)
        self._unheld: memoryview[int] = self._unheld_array.data

    def restore(self, turns: Turns, own: Turns | None = None) -> None:
        """Resume where all nodes together were. Call it before anything else, and at all of them alike. Raises
        ValueError.

        A sample counts as done by the node that owns it in the lap, whichever node did it.
        """
        had = turns.flags(len(self._lap_array), len(self._class_array))
        here = self._parts.is_own(self._node)
        self._policy.restore(Turns(turns.laps, np.packbits(had & here), 0))
        self._lap_array[:] = turns.laps
        self._count_own(self._left, self._done, here, had)
        for node, peer in self._peers.items():
            self._count_own(peer.left, peer.done, self._parts.is_own(node), had)
        if self._incomplete_array.any():
            # A peer was lost or restarted before this.
            self._incomplete_array[:] = turns.laps
        if own is None:
            self._ledger.restore_part(turns, here)
        else:
            self._ledger.restore(own)

    def _count_own(self, left: "memoryview[int]", done: "memoryview[int]", own: Flags, had: Flags) -> None:
        np.asarray(left)[:] = np.bincount(self._class_array[own & ~had], minlength=len(left))
        np.asarray(done)[:] = np.bincount(self._class_array[own & had], minlength=len(done))

    @property
    def units(self) -> Numbers:
        return self._class_array

    def lap_of(self, sample: int) -> int:
        return self._lap[self._class_of[sample]]

    def laps_of_units(self) -> Int32:
        return self._lap_array

    def chunk_of(self, sample: int) -> int:
        return self._policy.chunk_of(sample)

    def used_bytes(self) -> int:
        """Remote memory that holds samples or is granted to answers."""
        return self._taken.used_bytes

    def held(self) -> int:
        """How many samples were taken and are neither served nor reserved, with and without their bytes."""
        return len(self._taken)

    def keeps(self, sample: int) -> bool:
        return self._taken.keeps(self._class_of[sample], sample)

    def is_taken(self, reserved: int) -> bool:
        return self._reservations.is_taken(self._class_of[reserved], reserved)

    # For another process that continues

    def state(self) -> SharedState:
        peers = self._peers
        answers = [(number, given) for number, peer in peers.items() for given in peer.answers.values()]
        empty = self._empty_answers.items()
        values = {
            "node": self._node,
            "nodes": self._nodes,
            "missed": self.missed,
            "degraded": self.degraded,
            "given": self._ledger.given,
            "last_ticket": self._waiting.last_ticket,
            "free_bytes": self._taken.free_bytes,
            "exchange_seed": self._exchange.seed,
            "held_back": self.samples_held_back,
            "given_twice": self.passes_given_twice,
        }
        ahead = ((*key, sample) for key, samples in self._ahead.items() for sample in samples)
        arrays: dict[str, Numbers] = {
            "of_class": np.array(self._of_classes(), np.int32),
            "of_peers": np.array([peer.of_classes() for peer in peers.values()], np.int32),
            "peers": rows(((peer.number, peer.first, peer.acked_below) for peer in peers.values()), 3),
            "there": rows(((peer,) for peer in self._there), 1),
            "unanswered": rows(
                ((sent.room_bytes, *sent.message) for peer in peers.values() for sent in peer.unanswered.values()), 16
            ),
            "answers": rows(((peer, g.number, g.cls, g.lap, len(g.samples), *g[5:]) for peer, g in answers), 12),
            "answered": rows(((sample,) for _, given in answers for sample in given.samples), 1),
            "taken": self._taken.table(),
            "reserved": self._reservations.table(),
            "waiting": self._waiting.table(),
            "asked": rows(((cls, *asked) for cls, asked in self._asked.items()), 3),
            "empty_answers": rows(sorted((cls, *each) for cls, of_peers in empty for each in of_peers.items()), 3),
            "sought": rows(((cls,) for cls in sorted(self._sought)), 1),
            "accounts": self._exchange.table(),
            "pass.due": self._due_array.copy(),
            "pass.rest": self._rest_array.copy(),
            "pass.ahead": rows(ahead, 3),
            "pass.late": rows(((*key, sample) for key, late in self._late.items() for sample in late), 3),
            "pass.taken": rows(self._taken_at.items(), 2),
            "pass.unheld": self._unheld_array.copy(),
            "pass.dry": rows(((cls,) for cls in sorted(self._dry)), 1),
        }
        own, here = arrays_of("own", self._own_turns()), arrays_of("here", self._ledger.turns())
        return SharedState(values, arrays | own | here | self._passes.table())

    def resume(self, state: SharedState) -> None:
        reader = StateReader(state, node=self._node, nodes=self._nodes)
        samples, classes, nodes = len(self._class_array), len(self._lap_array), self._nodes
        self.missed, self.degraded = reader.value("missed"), reader.value("degraded")
        of_class = self._of_classes()
        for array, saved in zip(of_class, reader.array("of_class", np.int32, len(of_class), classes), strict=True):
            array[:] = saved
        if classes and (self._lap_array.min() < 1 or np.asarray(self._left).min() < 0):
            raise ValueError("the state has laps or counts out of range")
        of_peers = reader.array("of_peers", np.int32, len(self._peers), 5, classes)
        numbers = reader.table("peers", MOST, MOST, MOST)
        for peer, saved, (number, first, acked_below) in zip(self._peers.values(), of_peers, numbers, strict=True):
            for array, of_peer in zip(peer.of_classes(), saved, strict=True):
                array[:] = of_peer
            peer.number, peer.first, peer.acked_below = number, first, acked_below
        there = {peer for (peer,) in reader.table("there", nodes)}
        self._there = [number for number in self._peers if number in there]
        limits = (nodes, nodes, MOST, MOST, classes, *[MOST] * 8, 2, 2)
        for room_bytes, *fields in reader.table("unanswered", MOST, *limits):
            message = Take.of(fields)
            self._peer(message.home).unanswered[message.number] = Sent(room_bytes, message)
        answered = [sample for (sample,) in reader.table("answered", samples)]
        for peer_number, number, cls, lap, count, *news in reader.table(
            "answers", nodes, MOST, classes, MOST, len(answered) + 1, *[MOST] * 6, 2
        ):
            given, answered = answered[:count], answered[count:]
            if len(given) < count:
                raise ValueError("the state lacks samples of its answers")
            self._peer(peer_number).answers[number] = Given.of(self._node, number, cls, lap, [*news, *given])
        self._taken.resume(reader.table("taken", classes, samples, 2), reader.number("free_bytes"))
        self._reservations.resume(reader.table("reserved", classes, samples, 2))
        self._waiting.resume(reader.table("waiting", classes, MOST, 2, samples), reader.value("last_ticket"))
        self._asked = {cls: (peer, number) for cls, peer, number in reader.table("asked", classes, nodes, MOST)}
        for cls, peer_number, count in reader.table("empty_answers", classes, nodes, MOST):
            self._empty_answers.setdefault(cls, {})[peer_number] = count
        self._sought = {cls for (cls,) in reader.table("sought", classes)}
        self._exchange.resume(reader.array("accounts", np.int64, classes, 2), reader.value("exchange_seed"))
        self._ledger.restore(reader.turns("here", reader.value("given"), classes, samples))
        own = reader.turns("own", 0, classes, samples)
        self._pool = RepeatedPool(self._policy, own, self._lap)
        trees = len(self._passes.trees)
        self.samples_held_back, self.passes_given_twice = reader.value("held_back"), reader.value("given_twice")
        self._passes.resume(reader, nodes)
        self._due_array[:] = reader.array("pass.due", np.int32, classes)
        self._rest_array[:] = reader.array("pass.rest", np.uint8, samples)
        for tree, epoch, sample in reader.table("pass.ahead", trees, MOST, samples):
            self._ahead.setdefault((tree, epoch), {})[sample] = None
        for cls, epoch, sample in reader.table("pass.late", classes, MOST, samples):
            self._late.setdefault((cls, epoch), []).append(sample)
        self._taken_at = {sample: at for sample, at in reader.table("pass.taken", samples, MOST)}  # noqa: C416
        self._unheld_array[:] = reader.array("pass.unheld", np.uint8, classes)
        self._dry = {cls for (cls,) in reader.table("pass.dry", classes)}

    def expect(self, chosen: Sequence[int]) -> None:
        assert isinstance(self._pool, RepeatedPool)
        self._pool.expect(chosen)

    def settle(self) -> None:
        """All events were repeated: the pool decides from now on, with nothing in memory. Raises ValueError."""
        own = self._own_turns()
        had = own.flags(len(self._lap_array), len(self._class_array))
        fresh = ~had & self._parts.is_own(self._node)
        reserved = list(self._reservations.own())
        if not fresh[reserved].all():
            raise ValueError("a sample is reserved that is not in its lap, or had its turn")
        self._policy.restore(own)
        for sample in reserved:
            self._policy.reserve_again(sample)
        self._pool = self._policy

    def unanswered(self) -> tuple[Message, ...]:
        """The messages without an answer, those to each peer oldest first. They are sent again as they were."""
        return tuple([sent.message for peer in self._peers.values() for sent in peer.unanswered.values()])

    def _of_classes(self) -> list[Int32]:
        """What is known of each class, int32[C] each; not copies."""
        views = (self._left, self._done, self._came)
        return [self._lap_array, self._incomplete_array, *(np.asarray(view) for view in views)]

    def _own_turns(self) -> Turns:
        """The turns of own samples, in the present laps.

        The pool begins a lap when it is first asked in it. Until then it is in one before, of which nothing is left.
        """
        turns, laps = self._pool.turns(), self._lap_array
        is_behind = turns.laps < laps
        if not is_behind.any():
            return turns._replace(given=0)
        had = turns.flags(len(laps), len(self._class_array)) & ~is_behind[self._class_array]
        return Turns(np.maximum(turns.laps, laps), np.packbits(had), 0)

    def _peer(self, number: int) -> Peer:
        """Raises ValueError where there is no such peer."""
        if number not in self._peers:
            raise ValueError(f"the state has node {number} for a peer")
        return self._peers[number]
