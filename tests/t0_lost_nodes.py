"""Nodes that stop, die, restart or lose contact: no request waits forever, and every missed sample is counted."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import (
    CHUNK_SIZE,
    ByLaps,
    DrawnPool,
    Letter,
    Network,
    Worker,
    answered,
    pool_node,
)
from seeds import A_THOUSAND
from watched import Watched

from redoxfs.protocol import (
    Answer,
    Handled,
    Load,
    LocalFirst,
    Message,
    Pending,
    Served,
    SharedPolicy,
    SlotNode,
    SlotPolicy,
    Take,
    homes_by_vc,
)
from redoxfs.protocol.events import Delivered

pytestmark = pytest.mark.slow

STEPS_PER_TURN = 500
"""Far more than any run takes: a run that takes more is stuck."""

EVENT = 0.05
"""How likely at any step a node or a link fails or recovers, or a node hears of another, correctly or not."""

N = TypeVar("N", LocalFirst, SlotNode)


@dataclass(frozen=True, slots=True)
class Faults:
    """What may happen: nodes ``stop`` and continue, ``die`` and are replaced; links are ``cut`` and restored."""

    stop: bool = False
    die: bool = False
    cut: bool = False


@dataclass(slots=True)
class Process(Generic[N]):
    """A node, the number of times it was started, and what it heard of others.

    ``knows``  which process of each other node it knows; ``lost``: the nodes that it holds to be lost
    """

    node: N
    number: int
    knows: dict[int, int]
    lost: set[int] = field(default_factory=set)


class FailingNodes(Generic[N]):
    """Nodes that fail, and workers that ask them over a network.

    As the transport does, it repeats messages until they are answered. It reports another node's restart before it
    hands in anything from the new process; from then on it refuses messages of the old one, and a message that was sent
    to one process reaches no other. ``late_answers``: answers of the old process may still come; otherwise only until
    the message has been sent to the new one. ``all_stay``: no node fails, or is held to have failed. ``put_backs``: how
    likely a worker undoes what a stat has reserved.
    """

    late_answers = False
    all_stay = False
    put_backs = 0.3

    def __init__(
        self, seed: int, *, nodes: int, samples: int, faults: Faults, stats: float = 0, cancels: float = 0
    ) -> None:
        self.random = random.Random(seed)
        self.seed, self.samples, self.faults, self.stats, self.cancels = seed, samples, faults, stats, cancels
        self.sent_to: dict[Message, int] = {}
        self.stopped: set[int] = set()
        self.dead: set[int] = set()
        self.cut: set[frozenset[int]] = set()
        self.deaths = self.degraded_before = 0
        self.start(nodes)

    def start(self, nodes: int) -> None:
        """Start so many nodes, which nobody has asked yet."""
        self.network = Network(self.random)
        self.workers: list[Worker] = []
        self.processes: list[Process[N]] = [
            Process(self.new_node(node, 0), 0, dict.fromkeys(set(range(nodes)) - {node}, 0)) for node in range(nodes)
        ]

    def new_node(self, number: int, start: int) -> N:
        raise NotImplementedError

    def check(self, number: int) -> None:
        """Called after each call of a node."""

    # Steps

    def ask_for(self, requests: int, *, workers: int) -> None:
        """Every node that is up asks for so many samples."""
        for number in range(len(self.processes)):
            if number not in self.dead:
                for _ in range(workers):
                    todo = [self.random.randrange(self.samples) for _ in range(requests)]
                    self.workers.append(Worker(node=number, todo=todo))

    def run(self, *, steps: int = 0, cancels: float = 0) -> None:
        """With ``steps``, run so many with faults; otherwise run without faults until all requests that can be served
        are, and at each step let one be given up that waits, with the probability ``cancels``.
        """
        most = steps or STEPS_PER_TURN * (10 + sum(len(worker.todo) for worker in self.workers))
        for _ in range(most):
            if steps and self.random.random() < EVENT:
                self.befall()
            elif self.step(self.cancels if steps else cancels) and not steps and self.are_hopeless():
                return
            elif not steps and self.random.random() < EVENT:
                self.give_up_hope()
        if not steps:
            pytest.fail(f"stuck: {[worker for worker in self.workers if not worker.is_through]}")

    def step(self, cancels: float) -> bool:
        """One step. True where there was nothing to do."""
        here = self.workers
        if self.stopped or self.dead:
            here = [worker for worker in here if self.runs(worker.node)]
        ready = [w for w in here if w.ticket is None and not w.is_through]
        waiting = [w for w in here if w.ticket is not None]
        awake = [w for w in ready if not w.sleeps or w.reserved is None]
        if awake or waiting:
            ready = awake
        if waiting and self.random.random() < cancels:
            self.cancel(self.random.choice(waiting))
            return False
        letters = self.network.under_way
        if self.stopped or self.dead or self.cut:
            letters = [letter for letter in letters if self.moves(letter)]
        at = self.random.randrange(len(ready) + len(letters) + 1)
        if at < len(ready):
            self.work(ready[at])
            return False
        if at < len(ready) + len(letters):
            self.arrive(letters[at - len(ready)])
            return False
        repeated = [m for m in self.network.unanswered.values() if self.runs(m.requester)]
        if any(self.reaches(m.requester, m.home) for m in repeated):
            self.send(self.random.choice(repeated))
            return False
        return not ready and not letters

    def are_hopeless(self) -> bool:
        """Cancel the requests that wait though nothing more will happen, as their deadline would. True where none
        waits.
        """
        waiting = [w for w in self.workers if w.ticket is not None and self.runs(w.node)]
        for worker in waiting:
            assert self.is_hopeless(worker), f"waits forever: {worker}"
            self.cancel(worker)
        return not waiting

    def give_up_hope(self) -> None:
        """The deadline of a hopeless request that keeps asking passes."""
        hopeless = [w for w in self.workers if w.ticket is not None and self.runs(w.node) and self.is_hopeless(w)]
        if hopeless:
            self.cancel(self.random.choice(hopeless))

    def is_hopeless(self, worker: Worker) -> bool:
        """Whether a worker may have to wait until its deadline, as things are."""
        raise NotImplementedError

    def runs(self, number: int) -> bool:
        return number not in self.stopped and number not in self.dead

    def reaches(self, number: int, other: int) -> bool:
        return self.runs(number) and self.runs(other) and frozenset((number, other)) not in self.cut

    def moves(self, letter: Letter) -> bool:
        ends = letter.message.requester, letter.message.home
        return self.runs(ends[letter.answer is None]) and frozenset(ends) not in self.cut

    # Faults

    def befall(self) -> None:
        """A node or a link fails or recovers, or a node hears of another."""
        number, other = self.random.sample(range(len(self.processes)), 2)
        happens: list[str] = [name for name in ("stop", "die", "cut") if getattr(self.faults, name)]
        match self.random.choice([*happens, "tell", "tell", "tell"]):
            case "stop":
                (self.stopped.discard if number in self.stopped else self.stopped.add)(number)
            case "die":
                self.start_again(number) if number in self.dead else self.kill(number)
            case "cut":
                self.cut ^= {frozenset((number, other))}
            case _ if self.runs(number):
                # Now and then the report is wrong.
                is_lost = self.reaches(number, other) == (self.random.random() < 0.2)
                self.tell(number, other, is_lost=is_lost)

    def tell(self, number: int, other: int, *, is_lost: bool) -> None:
        process = self.processes[number]
        (process.lost.add if is_lost else process.lost.discard)(other)
        self.deliver(number, process.node.lost(other) if is_lost else process.node.found(other))

    def tell_truth(self) -> None:
        """Every running node hears the state of all others."""
        for number in range(len(self.processes)):
            for other in range(len(self.processes)):
                if number != other and self.runs(number):
                    if self.reaches(number, other):
                        self.meet(number, other)
                    self.tell(number, other, is_lost=not self.reaches(number, other))

    def recover(self) -> None:
        """Every node and link recovers, and every node hears of it."""
        self.stopped.clear()
        self.cut.clear()
        for number in sorted(self.dead):
            self.start_again(number)
        self.tell_truth()

    @property
    def degraded(self) -> int:
        living = [process.node for number, process in enumerate(self.processes) if number not in self.dead]
        return self.degraded_before + sum([node.degraded for node in living])

    def kill(self, number: int) -> None:
        self.deaths += 1
        self.degraded_before += self.processes[number].node.degraded
        self.dead.add(number)
        self.stopped.discard(number)
        self.workers = [worker for worker in self.workers if worker.node != number]
        for message in [m for m in self.network.unanswered.values() if m.requester == number]:
            self.network.note_answered(message)

    def start_again(self, number: int) -> None:
        self.dead.remove(number)
        start = self.processes[number].number + 1
        knows = {other: self.processes[other].number for other in range(len(self.processes)) if other != number}
        self.processes[number] = Process(self.new_node(number, start), start, knows)
        for other in knows:
            if self.reaches(number, other):
                self.meet(other, number)
        self.rejoin(number)

    def rejoin(self, number: int) -> None:
        """The first calls of a new process."""

    def meet(self, number: int, other: int) -> None:
        """Report to a node which process another is, if it does not know."""
        process, start = self.processes[number], self.processes[other].number
        if process.knows[other] < start:
            process.knows[other] = start
            process.lost.discard(other)
            self.deliver(number, process.node.restarted(other))

    # What nodes do

    def work(self, worker: Worker) -> None:
        """One step of a worker that waits for nothing."""
        node = self.processes[worker.node].node
        if worker.reserved is not None:
            reserved, worker.reserved = worker.reserved, None
            if self.random.random() < self.put_backs:
                self.put_back(worker, reserved)
            else:
                is_taken = node.is_taken(reserved)
                served = node.take(reserved)
                assert (served.sample, served.preempted, served.remote) == (reserved, False, is_taken)
                self.drain(worker.node)
                self.turn(worker, served)
        elif worker.asked < 0:
            worker.asked = worker.todo.pop(0)
            if self.random.random() < self.stats:
                chosen = node.reserve(worker.asked)
                self.drain(worker.node)
                if isinstance(chosen, Pending):
                    worker.ticket, worker.reserves = chosen.ticket, True
                elif chosen is not None:
                    self.note_reserved(worker, chosen, preempted=False, remote=node.is_taken(chosen))
        else:
            turn = node.request(worker.asked)
            self.drain(worker.node)
            if isinstance(turn, Pending):
                worker.ticket, worker.reserves = turn.ticket, False
            else:
                self.serve(worker, turn)
        self.check(worker.node)

    def cancel(self, worker: Worker) -> None:
        assert worker.ticket is not None
        self.processes[worker.node].node.cancel(worker.ticket)
        worker.ticket = None
        if not worker.reserves:
            worker.asked = -1

    def arrive(self, letter: Letter) -> None:
        if self.network.take(self.network.under_way.index(letter)) is None:
            return
        message = letter.message
        if letter.answer is not None:
            self.answer(letter)
            return
        home = self.processes[message.home]
        if letter.sender < home.knows[message.requester] or letter.home != home.number:
            return
        if letter.sender > home.knows[message.requester]:
            self.meet(message.home, message.requester)
        handled = home.node.handle(message)
        self.drain(message.home)
        self.handled(message, handled)
        assert not handled.repeated or not (handled.loads or handled.preempted)
        if handled.answer is None:
            is_late = letter.sender < self.processes[message.requester].number
            assert is_late or not self.network.is_unanswered(message)
        else:
            self.network.post(Letter(message, handled.answer, letter.sender, home.number))
        self.check(message.home)

    def answer(self, letter: Letter) -> None:
        message = letter.message
        process = self.processes[message.requester]
        if letter.sender != process.number:
            return
        if letter.home > process.knows[message.home]:
            self.meet(message.requester, message.home)
        if letter.home < max(process.knows[message.home], self.sent_to[message]) and not self.late_answers:
            return
        assert letter.answer is not None
        was_unanswered = self.network.note_answered(message)
        delivered = process.node.receive(letter.answer)
        assert was_unanswered or delivered is None
        assert delivered is not None or not was_unanswered or not self.all_stay
        self.drain(message.requester)
        if delivered is not None:
            self.came(message.requester, letter.answer)
            self.deliver(message.requester, delivered)
        self.check(message.requester)

    def deliver(self, number: int, delivered: Sequence[Delivered]) -> None:
        self.drain(number)
        for ticket, served in delivered:
            (worker,) = (w for w in self.workers if w.node == number and w.ticket == ticket)
            worker.ticket = None
            if served is None:
                assert worker.reserves
                assert self.may_get_none(worker)
            elif worker.reserves:
                assert not served.loads
                self.note_reserved(worker, served.sample, preempted=served.preempted, remote=served.remote)
            else:
                self.serve(worker, served)
        self.check(number)

    def drain(self, number: int) -> None:
        node: SharedPolicy = self.processes[number].node
        for message in self.network.collect(number, node):
            assert not isinstance(node, LocalFirst) or message.home not in self.processes[number].lost
            self.send(message)
        for sample in node.revoked:
            self.revoke(number, sample)
        node.revoked.clear()
        for sample in node.unloaded:
            self.unload(number, sample)
        node.unloaded.clear()

    def send(self, message: Message) -> None:
        requester, home = self.processes[message.requester].number, self.processes[message.home].number
        self.sent_to[message] = home
        self.network.post(Letter(message, sender=requester, home=home))

    def revoke(self, number: int, sample: int) -> None:
        (revoked,) = (w for w in self.workers if w.node == number and w.reserved == sample)
        revoked.reserved = None

    def note_reserved(self, worker: Worker, sample: int, *, preempted: bool, remote: bool) -> None:
        if preempted:
            self.revoke(worker.node, sample)
        assert not any(w.reserved == sample for w in self.workers if w.node == worker.node)
        self.came_out(worker.node, sample, preempted=preempted, remote=remote)
        worker.reserved = sample

    def serve(self, worker: Worker, served: Served) -> None:
        if served.preempted:
            self.revoke(worker.node, served.sample)
        self.turn(worker, served)

    # What the policies differ in

    def may_get_none(self, worker: Worker) -> bool:
        """Whether a stat that waits may get no sample."""
        return self.processes[worker.node].lost == {n for n in range(len(self.processes)) if n != worker.node}

    def put_back(self, worker: Worker, sample: int) -> None:
        raise NotImplementedError

    def turn(self, worker: Worker, served: Served) -> None:
        raise NotImplementedError

    def handled(self, message: Message, handled: Handled) -> None:
        """Called after a node handled a message."""

    def came(self, number: int, answer: Answer) -> None:
        """Called when an answer was received, before its deliveries."""

    def came_out(self, number: int, sample: int, *, preempted: bool, remote: bool) -> None:
        """Called when a sample was reserved."""

    def unload(self, number: int, sample: int) -> None:
        pytest.fail(f"the slot policy drops nothing, but node {number} dropped {sample}")


class WatchedPool(ByLaps):
    """Records the lap of each turn."""

    def __init__(self, *args: object, **keywords: object) -> None:
        super().__init__(*args, **keywords)  # type: ignore[arg-type]
        self.had: list[tuple[int, int]] = []

    def _serve(self, cls: int) -> Served | None:
        served = super()._serve(cls)
        if served is not None:
            self.had.append((served.sample, self._lap[cls]))
        return served

    def take(self, reserved: int, path: int = -1) -> Served:
        served = super().take(reserved, path)
        self.had.append((reserved, self._lap[self._class_of[reserved]]))
        return served


@dataclass(slots=True)
class Bytes:
    """The samples in a node's memory: in its own slots, and those that came from others and were not taken yet."""

    slots: set[int] = field(default_factory=set)
    came: set[int] = field(default_factory=set)


class PoolNodes(DrawnPool, FailingNodes[LocalFirst]):
    """Nodes that each have a pool of their part of the samples. ``count``: of nodes."""

    late_answers = True
    made: type[LocalFirst] = LocalFirst
    resident, retained, remote_memory_bytes, largest = 3, 0.0, 4, 1

    def __init__(
        self,
        seed: int,
        *,
        nodes: int,
        samples: int,
        classes: int,
        exchange: float = 0,
        reads_alone: bool = False,
        **others: Any,
    ) -> None:
        self.draw(seed, nodes=nodes, samples=samples, classes=classes, largest=self.largest)
        self.count, self.exchange, self.reads_alone = nodes, exchange, reads_alone
        super().__init__(seed, nodes=nodes, samples=samples, **others)

    def new_node(self, number: int, start: int) -> LocalFirst:
        return self.pool_of(number, self.count, resident=self.resident, seed=self.seed + number + 10 * start)

    def rejoin(self, number: int) -> None:
        begun = [
            p.node.begun() for other, p in enumerate(self.processes) if self.reaches(number, other) and other != number
        ]
        if begun:
            self.processes[number].node.rejoin(np.max(begun, axis=0))
        self.deliver(number, ())

    def may_get_none(self, worker: Worker) -> bool:
        lies_at = self.part_of[self.class_of == self.class_of[worker.asked]]
        is_alone = self.reads_alone and np.isin(lies_at, [*self.processes[worker.node].lost]).all()
        return bool(is_alone) or super().may_get_none(worker)

    def is_hopeless(self, worker: Worker) -> bool:
        """Where no reachable node has samples of the class in any lap, and none can read them."""
        if self.reads_alone:
            return False
        nodes = [worker.node, *(n for n in range(self.count) if n != worker.node and self.reaches(worker.node, n))]
        return not np.isin(self.part_of[self.class_of == self.class_of[worker.asked]], nodes).any()


class Pools(PoolNodes):
    """The pool on several nodes. The model of a node's memory follows loads, answers, and the samples that the policy
    drops.
    """

    made = WatchedPool
    largest = 3

    def __init__(
        self,
        seed: int,
        *,
        classes: int,
        resident: int = 5,
        retained: float = 0,
        remote_memory_bytes: int = 1 << 30,
        **others: Any,
    ) -> None:
        self.resident, self.retained, self.remote_memory_bytes = resident, retained, remote_memory_bytes
        self.bytes: dict[int, Bytes] = {}
        self.turns_before: Counter[tuple[int, int]] = Counter()
        self.missed_before = 0
        super().__init__(seed, classes=classes, **others)
        # By class: the last lap of which a process that died may have had samples.
        self.died_in = np.zeros(int(self.class_of.max()) + 1, np.int32)

    def new_node(self, number: int, start: int) -> LocalFirst:
        self.bytes[number] = Bytes()
        return super().new_node(number, start)

    def kill(self, number: int) -> None:
        node = self.processes[number].node
        assert isinstance(node, WatchedPool)
        self.turns_before.update(node.had)
        self.missed_before += node.missed
        self.died_in = np.maximum(self.died_in, self.laps_of(node))
        super().kill(number)

    def laps_of(self, node: LocalFirst) -> npt.NDArray[np.int32]:
        return np.asarray(node._lap).copy()

    def laps(self) -> list[npt.NDArray[np.int32]]:
        return [self.laps_of(process.node) for process in self.processes]

    @property
    def turns(self) -> Counter[tuple[int, int]]:
        """How often each sample was served in each lap."""
        turns = self.turns_before.copy()
        for number, process in enumerate(self.processes):
            assert isinstance(process.node, WatchedPool)
            if number not in self.dead:
                turns.update(process.node.had)
        return turns

    @property
    def missed(self) -> int:
        living = [process.node for number, process in enumerate(self.processes) if number not in self.dead]
        return self.missed_before + sum([node.missed for node in living])

    def check(self, number: int) -> None:
        node, memory = self.processes[number].node, self.bytes[number]
        assert memory.came == {sample for sample in self.taken_by(number) if node.keeps(sample)}
        assert memory.slots == {sample for sample in range(self.samples) if node._policy.is_resident(sample)}
        came_bytes = sum(int(self.sizes[sample]) for sample in memory.came)
        assert came_bytes <= node.used_bytes()
        if not any(requester == number for requester, _, _ in self.network.unanswered):
            assert came_bytes == node.used_bytes()

    def put_back(self, worker: Worker, sample: int) -> None:
        node, memory = self.processes[worker.node].node, self.bytes[worker.node]
        is_taken = node.is_taken(sample)
        if node.put_back(sample):
            (memory.came if is_taken else memory.slots).add(sample)

    def turn(self, worker: Worker, served: Served) -> None:
        memory = self.bytes[worker.node]
        assert self.class_of[served.sample] == self.class_of[worker.asked]
        self.check_loads(worker.node, served.loads)
        memory.slots.update(*(load.samples for load in served.loads))
        (memory.came if served.remote else memory.slots).discard(served.sample)
        if served.kept:
            memory.slots.add(served.sample)
        worker.asked = -1

    def handled(self, message: Message, handled: Handled) -> None:
        memory = self.bytes[message.home]
        if handled.repeated or handled.answer is None:
            return
        assert isinstance(message, Take)
        samples = handled.answer.samples
        assert sum(self.sizes[sample] for sample in samples[1:]) <= message.room_bytes
        self.check_loads(message.home, handled.loads)
        # As `Supply.give`: what leaves goes out before the loads bring anything, or else of what they bring.
        memory.slots.update(*(load.samples for load in handled.loads))
        for sample in samples:
            if sample in handled.preempted:
                self.revoke(message.home, sample)
            if sample in handled.remote:
                memory.came.discard(sample)
            else:
                (memory.slots.add if sample in handled.kept else memory.slots.discard)(sample)

    def check_loads(self, number: int, loads: Sequence[Load]) -> None:
        """A node loads its own samples, from the chunk in which they lie."""
        for chunk, samples in loads:
            assert {self.processes[number].node.chunk_of(sample) for sample in samples} == {chunk}
            assert (self.part_of[[*samples]] == number).all()

    def taken_by(self, number: int) -> set[int]:
        node = self.processes[number].node
        return {sample for cls in range(len(node._lap)) for sample in node._taken.of_class(cls)}

    def came(self, number: int, answer: Answer) -> None:
        node = self.processes[number].node
        self.bytes[number].came.update(sample for sample in answer.samples if node.keeps(sample))

    def came_out(self, number: int, sample: int, *, preempted: bool, remote: bool) -> None:
        if not preempted:
            (self.bytes[number].came if remote else self.bytes[number].slots).discard(sample)

    def unload(self, number: int, sample: int) -> None:
        memory = self.bytes[number]
        (memory.came if sample in memory.came else memory.slots).discard(sample)

    def check_turns(self) -> None:
        """No sample has two turns in a lap, unless a process that died had it; samples without a turn are counted."""
        turns = self.turns
        twice = 0
        for (sample, lap), count in turns.items():
            if lap > self.died_in[self.class_of[sample]]:
                assert count == 1, (sample, lap)
            assert count <= 1 + self.deaths
            twice += count - 1
        ended = np.min(self.laps(), axis=0)
        none = sum(
            (sample, lap) not in turns
            for sample in range(self.samples)
            for lap in range(1, ended[self.class_of[sample]])
        )
        assert none <= self.missed + twice

    def check_exact(self, fresh_after: npt.NDArray[np.int32]) -> None:
        """In later laps every sample has one turn."""
        turns = self.turns
        ended = np.min(self.laps(), axis=0)
        for sample in range(self.samples):
            cls = self.class_of[sample]
            for lap in range(fresh_after[cls] + 1, ended[cls]):
                assert turns[sample, lap] == 1, (sample, lap)


CALLS_A_CHECK = 16
"""What takes as long as several calls is checked after one in so many."""


class Passing(PoolNodes):
    """The pool on several nodes, with passes. In times of faults some nodes are told that an epoch begins."""

    def __init__(self, seed: int, *, told: bool, **shape: Any) -> None:
        self.told, self.calls = told, 0
        super().__init__(seed, **shape)

    def befall(self) -> None:
        if self.told and self.random.random() < 0.3:
            self.begin_pass(self.random.randrange(self.count))
        else:
            super().befall()

    def begin_pass(self, number: int) -> None:
        if self.runs(number):
            self.processes[number].node.begin_pass(None)
            self.drain(number)

    def check(self, number: int) -> None:
        """Where samples are held back, a node counts as left what its pool has. Else that gives another class."""
        node = self.processes[number].node
        self.calls += 1
        if self.calls % CALLS_A_CHECK or not node._passes.trees[0].holds:
            return
        for cls, left in enumerate(node._left):
            if not node._unheld[cls] and not node._due[cls]:
                in_pool = int(node._pool.are_left(cls, node._own_members(cls)).sum())
                assert left == in_pool + node._reservations.count_own(cls)

    def may_get_none(self, worker: Worker) -> bool:
        """Where nobody has a sample that passes allow, too."""
        return True

    def put_back(self, worker: Worker, sample: int) -> None:
        self.processes[worker.node].node.put_back(sample)

    def turn(self, worker: Worker, served: Served) -> None:
        assert self.class_of[served.sample] == self.class_of[worker.asked]
        worker.asked = -1

    def handled(self, message: Message, handled: Handled) -> None:
        for sample in handled.preempted:
            self.revoke(message.home, sample)

    def unload(self, number: int, sample: int) -> None:
        pass


def check_passing(network: Passing, *, requests: int, workers: int) -> None:
    """No request waits for ever: among faults, and for three epochs that only some nodes are told of."""
    fail_and_recover(network, requests=requests, workers=workers)
    for _ in range(3):
        for number in range(network.count):
            if network.told and network.random.random() < 0.8:
                network.begin_pass(number)
        network.ask_for(2 * requests, workers=workers)
        network.run()
        assert all(worker.is_through for worker in network.workers)


def fail_and_recover(network: FailingNodes[N], *, requests: int, workers: int) -> None:
    """A time of faults; a time in which lost nodes are known to be lost; then everything recovers."""
    network.ask_for(requests, workers=workers)
    network.run(steps=30 * requests * workers)
    network.tell_truth()
    network.run()
    network.recover()
    network.run()


def check_pools(network: Pools, *, requests: int, workers: int) -> None:
    fail_and_recover(network, requests=requests, workers=workers)
    network.check_turns()
    fresh_after = np.maximum(np.max(network.laps(), axis=0), network.died_in)
    degraded = network.degraded
    network.ask_for(3 * requests, workers=workers)
    network.run()
    network.check_turns()
    assert network.degraded == degraded
    network.check_exact(fresh_after)
    assert all(worker.is_through for worker in network.workers)


class Slots(FailingNodes[SlotNode]):
    """The paper's protocol on several nodes. The last ``rest`` places of the last chunk are holes."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int,
        chunks: int,
        per_vc: int,
        window: int,
        room: int,
        reads_alone: bool,
        rest: int = 0,
        **others: Any,
    ) -> None:
        samples = chunks * CHUNK_SIZE - rest
        cells = np.arange(chunks * CHUNK_SIZE, dtype=np.int32).reshape(chunks, CHUNK_SIZE)
        self.cells = np.where(cells < samples, cells, -1).astype(np.int32)
        self.starts = np.append(np.arange(0, chunks, per_vc), chunks).astype(np.int32)
        self.window, self.room, self.reads_alone, self.count = window, room, reads_alone, nodes
        self.columns = SlotPolicy(self.cells, self.starts, samples=samples, seed=0).columns
        self.homes = homes_by_vc(self.columns, CHUNK_SIZE, nodes)
        self.policies: list[Watched] = []
        self.turns: Counter[int] = Counter()
        self.epoch = 0
        self.orders: dict[int, npt.NDArray[np.int32]] = {}
        super().__init__(seed, nodes=nodes, samples=samples, **others)

    def new_node(self, number: int, start: int) -> SlotNode:
        seed = self.seed + number + 10 * start
        policy = Watched(self.cells, self.starts, samples=self.samples, seed=seed)
        self.policies.append(policy)
        return SlotNode(
            number,
            policy,
            self.homes,
            np.ones(self.samples, np.int32),
            remote_memory_bytes=self.room,
            window=self.window,
            reads_alone=self.reads_alone,
        )

    def ask_for(self, requests: int, *, workers: int) -> None:
        """Nodes know what the others will ask for."""
        before = len(self.workers)
        super().ask_for(requests, workers=workers)
        self.epoch += 1
        for number in range(self.count):
            of_node = [worker.todo for worker in self.workers[before:] if worker.node == number]
            order = np.array([sample for todo in zip(*of_node, strict=True) for sample in todo], np.int32)
            self.orders[number] = order
            for process in self.processes:
                process.node.follow(number, self.epoch, order)

    def rejoin(self, number: int) -> None:
        """The new process may hear what others will ask for, and they what it will."""
        for other in range(self.count):
            if self.random.random() < 0.5:
                self.processes[number].node.follow(other, self.epoch, self.orders[other])
            if self.random.random() < 0.5:
                self.processes[other].node.follow(number, self.epoch, self.orders[number])

    def is_hopeless(self, worker: Worker) -> bool:
        """A stat has a deadline, and so has an open of a sample that cannot be read here."""
        is_lost = not self.reaches(worker.node, int(self.homes[worker.asked]))
        return is_lost and (worker.reserves or not self.reads_alone)

    def check(self, number: int) -> None:
        assert 0 <= self.processes[number].node.used_bytes() <= self.room

    def put_back(self, worker: Worker, sample: int) -> None:
        self.processes[worker.node].node.put_back(sample)

    def turn(self, worker: Worker, served: Served) -> None:
        assert self.columns[served.sample] == self.columns[worker.asked]
        self.turns[served.sample] += 1
        worker.asked = -1

    def handled(self, message: Message, handled: Handled) -> None:
        for sample in handled.preempted:
            self.revoke(message.home, sample)

    def check_turns(self) -> None:
        """A home gives each sample once in a lap. Every other turn is counted."""
        given: Counter[int] = Counter()
        for policy in self.policies:
            assert max(policy.gave.values(), default=1) == 1
            given.update(sample for sample, _ in policy.gave)
        assert (self.turns - given).total() <= self.degraded
        if not self.deaths:
            held = sum(process.node.held() for process in self.processes)
            assert given.total() - (self.turns.total() - self.degraded) == held

    def check_balance(self) -> None:
        """With nothing under way, a home has sent a requester as many samples as it knows claims, or one more."""
        for number, process in enumerate(self.processes):
            requester = process.node._requester
            assert not requester._claims
            for home in set(self.homes.tolist()) - {number}:
                peer = self.processes[home].node._home._peers.get(number)
                hits = Counter(int(self.columns[hit.sample]) for hit in requester._hits[home])
                for column in np.unique(self.columns[self.homes == home]).tolist():
                    ahead = 0 if peer is None else int(peer.is_ahead[column])
                    assert ahead == (requester._slot[column] >= 0) + hits[column]


def check_slots(network: Slots, *, requests: int, workers: int) -> None:
    fail_and_recover(network, requests=requests, workers=workers)
    network.check_turns()
    network.check_balance()
    degraded = network.degraded
    network.ask_for(3 * requests, workers=workers)
    network.run()
    network.check_turns()
    network.check_balance()
    assert all(worker.is_through for worker in network.workers)
    assert network.degraded == degraded


faults = st.builds(Faults, stop=st.booleans(), die=st.booleans(), cut=st.booleans())
stats = st.sampled_from([0, 0.3, 1])
cancels = st.sampled_from([0, 0.05])

pools = st.builds(
    Pools,
    st.integers(0, 1 << 32),
    nodes=st.integers(2, 4),
    samples=st.integers(1, 20),
    classes=st.integers(1, 4),
    faults=faults,
    resident=st.sampled_from([1, 2, 5]),
    retained=st.sampled_from([0, 0.5, 1]),
    remote_memory_bytes=st.sampled_from([0, 2, 6, 1 << 30]),
    exchange=st.sampled_from([0, 0.3, 1]),
    reads_alone=st.booleans(),
    stats=stats,
    cancels=cancels,
)

passing = st.builds(
    Passing,
    st.integers(0, 1 << 32),
    nodes=st.integers(2, 4),
    samples=st.integers(1, 20),
    classes=st.integers(1, 4),
    faults=faults,
    told=st.booleans(),
    exchange=st.sampled_from([0, 0.3, 1]),
    reads_alone=st.booleans(),
    stats=stats,
    cancels=cancels,
)

slots = st.builds(
    Slots,
    st.integers(0, 1 << 32),
    nodes=st.integers(2, 4),
    chunks=st.integers(3, 10),
    per_vc=st.integers(1, 4),
    window=st.sampled_from([1, 5, 1000]),
    room=st.sampled_from([0, 8, 24, 10_000]),
    reads_alone=st.booleans(),
    faults=faults,
    stats=stats,
    cancels=cancels,
)


@given(pools, st.integers(1, 8), st.integers(1, 3))
def test_pools_survive_lost_nodes_and_are_exact_again(network: Pools, requests: int, workers: int) -> None:
    check_pools(network, requests=requests, workers=workers)


@settings(max_examples=20)
@given(passing, st.integers(1, 8), st.integers(1, 3))
def test_pools_that_keep_passes_are_never_stuck_whatever_nodes_are_lost(
    network: Passing, requests: int, workers: int
) -> None:
    check_passing(network, requests=requests, workers=workers)


def three_nodes(made: type[LocalFirst], exchange: float = 0) -> list[LocalFirst]:
    """The first class lies at node 2, the other one at node 0 as well. Node 1 cannot read the samples of others."""
    return [
        pool_node(
            number,
            3,
            cells=np.arange(12, dtype=np.int32).reshape(3, 4),
            class_of=np.array([0] * 4 + [1] * 8, np.int32),
            part_of=np.array([2] * 4 + [0] * 4 + [2] * 4, np.int8),
            sample_bytes=np.ones(12, np.int64),
            resident=1,
            remote_memory_bytes=100,
            exchange=exchange,
            reads_alone=number != 1,
            made=made,
        )
        for number in range(3)
    ]


@pytest.mark.parametrize("made", [ByLaps, LocalFirst])
def test_of_a_class_that_lies_at_lost_nodes_alone_the_very_sample_is_read(made: type[LocalFirst]) -> None:
    nodes = three_nodes(made)
    node, patient, _ = nodes
    waits, reserves = node.request(3), node.reserve(1)
    assert isinstance(waits, Pending)
    assert isinstance(reserves, Pending)
    assert (node.lost(1), node.classes_alone()) == ((), 0)
    node.found(1)
    node.outbox.clear()
    assert node.lost(2) == (Delivered(waits.ticket, Served(3, remote=True)), Delivered(reserves.ticket, None))
    # No other node is asked, and a stat has nothing to wait for.
    assert [node.request(sample) for sample in (2, 2, 0)] == [Served(sample, remote=True) for sample in (2, 2, 0)]
    assert (node.reserve(1), node.outbox, node.degraded, node.classes_alone()) == (None, [], 4, 1)
    assert node.turns().given == 0
    # The class whose samples lie here as well goes on with those.
    own = node.request(8)
    assert isinstance(own, Served)
    assert own.sample in {4, 5, 6, 7}
    # The lap of the node that comes back goes on with all of its samples.
    node.found(2)
    node.outbox.clear()
    assert all(isinstance(node.request(sample), Pending) for sample in range(4))
    assert sorted(served.sample for served in answered(nodes, node).values()) == [0, 1, 2, 3]
    assert (node.degraded, node.missed) == (4, 0)
    # On storage of its own, a node waits for the others.
    assert (patient.lost(2), patient.classes_alone()) == ((), 0)
    assert isinstance(patient.request(3), Pending)
    assert isinstance(patient.reserve(3), Pending)


def test_a_sample_that_is_read_alone_preempts_none_that_a_stat_reserved() -> None:
    nodes = three_nodes(LocalFirst)
    node = nodes[0]
    waits = node.reserve(1)
    assert isinstance(waits, Pending)
    reserved = answered(nodes, node)[waits.ticket].sample
    # Others came with it, and have their turns before.
    came = node.held()
    node.lost(2)
    turns = [node.request(sample) for sample in range(came)]
    assert all(isinstance(turn, Served) and turn.sample != reserved for turn in turns)
    assert node.request(3) == Served(3, remote=True)
    assert node.request(reserved) == Served(reserved, remote=True)
    assert [*node.reserved(1)] == [reserved]
    assert node.take(reserved, 1) == Served(reserved, remote=True)


def test_samples_that_are_read_alone_count_in_no_lap() -> None:
    """Not for the exchange either, which would take as many at once later. Paths that come twice meanwhile show that
    laps are no epochs, which the node that comes back hears first."""
    node = three_nodes(LocalFirst, exchange=1.0)[0]
    node.lost(2)
    before = node.state().arrays["accounts"]
    for _ in range(2):
        assert [node.request(sample) for sample in range(4)] == [Served(sample, remote=True) for sample in range(4)]
    assert np.array_equal(node.state().arrays["accounts"], before)
    node.found(2)
    assert isinstance(node.request(0), Pending)
    (message,) = node.outbox
    assert isinstance(message, Take)
    assert message.holds


HISTORIES = {
    "every process was replaced, and none knows the epoch": partial(
        Passing, 128, nodes=2, samples=16, classes=1, faults=Faults(die=True), exchange=0.3, cancels=0.05
    ),
    "a sample comes back to its home, which has reserved it": partial(
        Passing, 236, nodes=2, samples=13, classes=2, faults=Faults(die=True), exchange=0.3
    ),
    "a lap begins while what it leaves out is reserved": partial(
        Passing, 100534, nodes=2, samples=3, classes=1, faults=Faults(die=True, cut=True), cancels=0.05
    ),
}


@pytest.mark.parametrize(("history", "workers"), list(zip(HISTORIES, (1, 2, 3), strict=True)))
def test_such_a_history_is_never_stuck(history: str, workers: int) -> None:
    check_passing(HISTORIES[history](told=False, stats=1), requests=5, workers=workers)


@given(slots, st.integers(1, 8), st.integers(1, 3))
def test_slots_survive_lost_nodes_and_balance_again(network: Slots, requests: int, workers: int) -> None:
    check_slots(network, requests=requests, workers=workers)


@A_THOUSAND
def test_a_thousand_seeds(seeds: range) -> None:
    for seed in seeds:
        draw = random.Random(seed)
        faults = draw.choice(
            [Faults(stop=True), Faults(cut=True), Faults(die=True), Faults(stop=True, die=True, cut=True)]
        )
        workers, stats, cancels = draw.randint(1, 2), draw.choice([0, 0.5]), draw.choice([0, 0.05])
        try:
            if seed % 2:
                check_slots(
                    Slots(
                        seed,
                        nodes=draw.randint(2, 3),
                        chunks=draw.randint(3, 6),
                        per_vc=draw.choice([1, 2, 3]),
                        window=draw.choice([1, 5, 1000]),
                        room=draw.choice([0, 8, 10_000]),
                        reads_alone=draw.random() < 0.7,
                        faults=faults,
                        stats=stats,
                        cancels=cancels,
                    ),
                    requests=2,
                    workers=workers,
                )
            else:
                check_pools(
                    Pools(
                        seed,
                        nodes=draw.randint(2, 3),
                        samples=draw.randint(1, 6),
                        classes=draw.randint(1, 2),
                        faults=faults,
                        resident=draw.choice([1, 2, 5]),
                        retained=draw.choice([0, 0.5, 1]),
                        remote_memory_bytes=draw.choice([0, 2, 6, 1 << 30]),
                        exchange=draw.choice([0, 0.3, 1]),
                        reads_alone=draw.random() < 0.5,
                        stats=stats,
                        cancels=cancels,
                    ),
                    requests=2,
                    workers=workers,
                )
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
