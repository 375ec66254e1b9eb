"""Nodes with bindings and policies, and the threads of a job that read through them, over an unreliable network.

Each node is saved now and then and records every event since, as `redoxfs.node` does for the process after it. So it
can be rebuilt, and replaced, at any moment.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from networks import Letter, Network, key

from redoxfs.protocol import (
    NO_SAMPLE,
    UNDECIDED,
    Answer,
    Binding,
    BindingTables,
    LocalFirst,
    Message,
    Pending,
    Served,
    SharedReplay,
    SharedState,
    SlotNode,
    answer_of,
    message_of,
    numbers_of,
)
from redoxfs.protocol.events import Delivered

Policy = LocalFirst | SlotNode
Event = Callable[[SharedReplay], object]

STEPS_PER_TURN = 1_000
"""Far more than any run takes: a run that takes more is stuck."""


def saved(state: SharedState) -> SharedState:
    """As a checkpoint keeps it."""
    for name, array in state.arrays.items():
        assert array.dtype in (np.int64, np.int32, np.uint8), name
    return SharedState(json.loads(json.dumps(state.values)), {name: a.copy() for name, a in state.arrays.items()})


def assert_same_state(state: SharedState, expected: SharedState) -> None:
    # Conflicts are found while samples are chosen to be sent ahead, which is not repeated.
    without = {"conflicts"}
    assert {n: v for n, v in state.values.items() if n not in without} == {
        n: v for n, v in expected.values.items() if n not in without
    }
    assert state.arrays.keys() == expected.arrays.keys()
    for name, array in state.arrays.items():
        assert array.tolist() == expected.arrays[name].tolist(), name


def assert_same_tables(tables: BindingTables, expected: BindingTables) -> None:
    for name, table, other in zip(tables._fields, tables, expected, strict=True):
        assert np.array_equal(np.asarray(table), np.asarray(other)), name


@dataclass(frozen=True, slots=True)
class Checkpoint:
    state: SharedState
    tables: BindingTables
    undecided: dict[int, int]
    promises: dict[int, tuple[int, int]]


class Station:
    """What `redoxfs.node` does with a binding and a policy, without bytes, and with a record of it.

    ``decided``   paths that got the sample they waited for, since the caller looked
    ``promised``  tickets of stats that were answered, likewise
    ``turns``     samples that had their turn, likewise
    """

    def __init__(self, binding: Binding, policy: Policy) -> None:
        self.binding = binding
        self.policy = policy
        self.undecided: dict[int, int] = {}
        self.promises: dict[int, tuple[int, int]] = {}
        self.decided: list[int] = []
        self.promised: list[int] = []
        self.turns: list[int] = []
        self.events: list[Event] = []
        self.checkpoint = self.now()

    def now(self) -> Checkpoint:
        return Checkpoint(saved(self.policy.state()), self.binding.tables(), dict(self.undecided), dict(self.promises))

    def save(self) -> None:
        self.checkpoint = self.now()
        self.events.clear()

    def open(self, path: int, file: int, thread: int) -> int:
        """The answer, or UNDECIDED."""
        opened = self.binding.open(path, file, thread)
        sample, preempted = NO_SAMPLE, False
        if isinstance(opened.turn, Pending):
            sample = UNDECIDED
            self.undecided[path] = opened.turn.ticket
        elif opened.turn is not None:
            sample, preempted = opened.turn.sample, opened.turn.preempted
            self.turns.append(sample)
        self.events.append(lambda replay: replay.open(path, file, thread, sample, preempted=preempted))
        self.void()
        return opened.sample

    def stat(self, path: int, file: int, thread: int) -> int | None:
        """The ticket that the stat waits for, if it waits."""
        result = self.binding.stat(path, file, thread)
        sample, is_new = NO_SAMPLE if result.sample is None else result.sample, result.reserved
        self.events.append(lambda replay: replay.stat(path, file, thread, sample, is_new=is_new))
        self.void()
        if result.pending is None:
            return None
        self.promises[result.pending.ticket] = path, thread
        return result.pending.ticket

    def close(self, path: int) -> None:
        self.binding.close(path)
        self.events.append(lambda replay: replay.close(path))

    def fail(self, path: int, thread: int) -> None:
        self.binding.fail(path, thread)
        if path in self.undecided and not self.binding.is_bound(path):
            self.policy.cancel(self.undecided.pop(path))
        self.events.append(lambda replay: replay.fail(path, thread))

    def end(self, thread: int) -> None:
        self.binding.thread(thread)
        self.events.append(lambda replay: replay.end(thread))

    def handle(self, message: Message) -> Answer | None:
        handled = self.policy.handle(message)
        chosen, numbers = self.policy.chosen.copy(), numbers_of(message)
        of_answer = None if handled.answer is None else numbers_of(handled.answer)

        def again(replay: SharedReplay) -> None:
            replay.handled(message_of(numbers), None if of_answer is None else answer_of(of_answer), chosen)

        self.events.append(again)
        self.void()
        for sample in handled.preempted:
            self.binding.revoke(sample)
        return handled.answer

    def receive(self, answer: Answer) -> bool:
        """Whether the answer was wanted."""
        delivered = self.policy.receive(answer)
        chosen, numbers = self.policy.chosen.copy(), numbers_of(answer)
        self.events.append(lambda replay: replay.received(answer_of(numbers), chosen))
        self.void()
        self.deliver(delivered or ())
        return delivered is not None

    def withdraw(self, ticket: int) -> None:
        del self.promises[ticket]
        self.policy.cancel(ticket)
        self.events.append(lambda replay: replay.cancelled(ticket))

    def decide_alone(self, path: int) -> None:
        self.policy.cancel(self.undecided.pop(path))
        self.binding.decide(path, Served(path, remote=True))
        self.decided.append(path)
        self.events.append(lambda replay: replay.alone(path))

    def hear(self, delivered: Sequence[Delivered]) -> None:
        """After `lost`, `found` or `restarted`."""
        self.void()
        self.deliver(delivered)
        self.save()

    def deliver(self, delivered: Sequence[Delivered]) -> None:
        paths = {ticket: path for path, ticket in self.undecided.items()}
        self.binding.revoke_preempted(delivered)
        for ticket, served in delivered:
            if ticket in self.promises:
                path, thread = self.promises.pop(ticket)
                if served is not None:
                    self.binding.promise(path, thread, served.sample)
                self.promised.append(ticket)
                continue
            assert served is not None
            path = paths[ticket]
            del self.undecided[path]
            self.binding.decide(path, served)
            self.decided.append(path)
            self.turns.append(served.sample)

    def void(self) -> None:
        for sample in self.policy.revoked:
            self.binding.revoke(sample)
        self.policy.revoked.clear()
        self.policy.unloaded.clear()


@dataclass(slots=True, eq=False)
class Thread:
    """A thread of a job: it opens paths one after the other, and may stat each before. A walker stats alone.

    ``doing``  idle, stat (waits for a promise), open (waits for an answer), reads
    """

    node: int
    number: int
    todo: list[int]
    file: int = 0
    walks: bool = False
    visits: bool = False
    path: int = NO_SAMPLE
    doing: str = "idle"
    ticket: int = 0

    @property
    def is_through(self) -> bool:
        return not self.todo and self.doing == "idle" and self.path < 0


@dataclass(frozen=True, slots=True)
class Habits:
    """How likely threads are to ``stat`` before they open, to ``fail`` to open or to give up waiting, and how many
    ``walkers`` stat without opening.
    """

    stat: float = 0.0
    fail: float = 0.0
    walkers: int = 0


READS = Habits()


class Job:
    """Nodes, and threads that read through them. ``is_exact``: no node was lost or restarted, as far as any knows."""

    samples: int
    nodes: int
    walks_anywhere = True

    def __init__(self, seed: int, *, nodes: int, samples: int, habits: Habits) -> None:
        self.random = random.Random(seed)
        self.seed, self.nodes, self.samples, self.habits = seed, nodes, samples, habits
        self.files = np.array([self.random.randint(1, 2) for _ in range(samples)])
        self.network = Network(self.random)
        self.threads: list[Thread] = []
        self.last_thread = 0
        self.turns: Counter[int] = Counter()
        self.is_exact = True
        self.processes = nodes
        self.lost: set[tuple[int, int]] = set()
        self.stations = [self.new_station(number) for number in range(nodes)]

    def policy(self, number: int, seed: int) -> Policy:
        raise NotImplementedError

    def turn(self, path: int, sample: int) -> None:
        """A reader of ``path`` got a turn of ``sample``."""
        self.turns[sample] += 1

    def begin_epoch(self, orders: Sequence[npt.NDArray[np.int32]]) -> None:
        """Before anything is asked in an epoch."""

    # Processes

    def parts(self, number: int) -> tuple[Binding, Policy]:
        self.processes += 1
        policy = self.policy(number, self.seed + self.processes)
        return Binding(policy, self.files, reservations=12, reservations_per_thread=4), policy

    def new_station(self, number: int) -> Station:
        return Station(*self.parts(number))

    def continued(self, number: int) -> Station:
        """Another process that continues where a node is."""
        living = self.stations[number]
        before, now = living.checkpoint, living.now()
        binding, policy = self.parts(number)
        Binding.resume(binding, before.tables)
        state = saved(before.state)
        replay = SharedReplay(binding, policy, state, undecided=before.undecided, promises=before.promises)
        for event in living.events:
            event(replay)
        assert_same_state(policy.state(), now.state)
        replay.finish()
        assert_same_state(policy.state(), now.state)
        assert policy.laps_of_units().tolist() == living.policy.laps_of_units().tolist()
        assert_same_tables(binding.tables(), now.tables)
        assert (replay.undecided, replay.promises) == (now.undecided, now.promises)
        assert not policy.outbox
        assert not policy.revoked
        station = Station(binding, policy)
        station.undecided, station.promises = replay.undecided, replay.promises
        station.save()
        return station

    def replace(self, number: int) -> None:
        """The process dies, and another continues."""
        self.stations[number] = station = self.continued(number)
        unanswered = {key(message): message for message in station.policy.unanswered()}
        assert unanswered.keys() == {each for each in self.network.unanswered if each[0] == number}
        for each, message in unanswered.items():
            assert message == self.network.unanswered[each]
        self.network.unanswered.update(unanswered)
        for ticket in list(station.promises):
            if self.random.random() < 0.5:
                # Its stat is not delivered again.
                station.withdraw(ticket)
                for thread in self.threads:
                    if thread.node == number and thread.doing == "stat" and thread.ticket == ticket:
                        thread.doing = "idle"
        self.after(number)

    def restart(self, number: int) -> None:
        """The process dies, and another begins anew."""
        self.is_exact = False
        self.threads = [thread for thread in self.threads if thread.node != number]
        for each in [each for each in self.network.unanswered if each[0] == number]:
            del self.network.unanswered[each]
        ends = [letter for letter in self.network.under_way if number in key(letter.message)[:2]]
        self.network.under_way = [letter for letter in self.network.under_way if letter not in ends]
        self.lost = {pair for pair in self.lost if number not in pair}
        self.stations[number] = self.new_station(number)
        for other, station in enumerate(self.stations):
            if other != number:
                station.hear(station.policy.restarted(number))
                self.after(other)
        self.began(number)
        self.stations[number].save()

    def began(self, number: int) -> None:
        """A process began anew."""

    def lose(self, number: int, peer: int) -> None:
        self.is_exact = False
        self.lost.add((number, peer))
        station = self.stations[number]
        station.hear(station.policy.lost(peer))
        self.after(number)

    def find(self, number: int, peer: int) -> None:
        self.lost.discard((number, peer))
        station = self.stations[number]
        station.hear(station.policy.found(peer))
        self.after(number)

    # Threads

    def epoch(self) -> None:
        """Threads begin to open every path once, anywhere."""
        order = np.array(self.order(), np.int32)
        orders = [order[node :: self.nodes] for node in range(self.nodes)]
        self.begin_epoch(orders)
        for node, own in enumerate(orders):
            for first in range(2):
                self.threads.append(self.new_thread(node, own[first::2].tolist()))
        for _ in range(self.habits.walkers):
            node = self.random.randrange(self.nodes)
            if self.walks_anywhere:
                todo = [self.random.randrange(self.samples) for _ in range(6)]
                self.threads.append(self.new_thread(node, todo, walks=True))

    def order(self) -> Sequence[int]:
        """The paths in the order of an epoch."""
        return self.random.sample(range(self.samples), self.samples)

    def new_thread(self, node: int, todo: list[int], *, walks: bool = False, visits: bool = False) -> Thread:
        self.last_thread += 1
        return Thread(node, self.last_thread, todo, walks=walks, visits=visits)

    def go_on(self, steps: int) -> None:
        """So many steps, of a new epoch where the last one is over."""
        if not self.threads:
            self.epoch()
        self.run(steps)

    def run(self, steps: int = 0) -> None:
        """With ``steps``, so many; else until all threads are through."""
        most = steps or STEPS_PER_TURN * (10 + sum(len(thread.todo) for thread in self.threads))
        for _ in range(most):
            if not self.step() and not steps:
                return
        assert steps, f"stuck: {self.threads}"

    def step(self) -> bool:
        """False where there is nothing to do."""
        ready = [thread for thread in self.threads if thread.doing not in ("stat", "open")]
        waiting = [thread for thread in self.threads if thread.doing in ("stat", "open")]
        if waiting and self.random.random() < self.habits.fail / 4:
            self.give_up(self.random.choice(waiting))
            return True
        if self.random.random() < 0.03:
            self.visit()
        letters = len(self.network.under_way)
        at = self.random.randrange(len(ready) + letters + 1)
        if at < len(ready):
            self.work(ready[at])
        elif at < len(ready) + letters:
            self.arrive(at - len(ready))
        elif self.network.unanswered:
            self.network.send_again()
        else:
            return bool(self.threads or letters)
        return True

    def visit(self) -> None:
        """A thread opens what is open, or saw an answer before."""
        open_now = [thread for thread in self.threads if thread.doing in ("open", "reads") and not thread.visits]
        if open_now:
            host = self.random.choice(open_now)
            self.threads.append(self.new_thread(host.node, [host.path], visits=True))

    def work(self, thread: Thread) -> None:
        station = self.stations[thread.node]
        if thread.doing == "reads":
            station.close(thread.path)
            thread.doing = "idle"
            if self.random.random() < 0.2 and station.binding.holds(thread.number, thread.path):
                # A second look, or another file of the same sample.
                thread.file = self.random.randrange(int(self.files[thread.path]))
                self.open(thread)
            else:
                thread.path, thread.file = NO_SAMPLE, 0
        elif thread.path >= 0:
            self.open(thread)
        elif thread.todo:
            self.begin(thread)
        else:
            station.end(thread.number)
            self.threads.remove(thread)
        self.after(thread.node)

    def begin(self, thread: Thread) -> None:
        """The thread begins with its next path."""
        station, path = self.stations[thread.node], thread.todo.pop(0)
        if thread.visits:
            if station.binding.is_bound(path):
                thread.path, thread.file = path, self.random.randrange(int(self.files[path]))
                self.open(thread)
            return
        if thread.walks or self.random.random() < self.habits.stat:
            if path in station.undecided:
                # Its stats wait as opens do.
                thread.todo.append(path)
                return
            ticket = station.stat(path, 0, thread.number)
            if ticket is not None:
                thread.doing, thread.ticket = "stat", ticket
            if not thread.walks:
                thread.path = path
                if ticket is None and self.random.random() < 0.2:
                    # Another thread goes on in its place.
                    station.end(thread.number)
                    self.last_thread += 1
                    thread.number = self.last_thread
            return
        thread.path = path
        self.open(thread)

    def open(self, thread: Thread) -> None:
        station, path = self.stations[thread.node], thread.path
        answer = station.open(path, thread.file, thread.number)
        self.note_turns(thread.node, path)
        thread.doing = "open" if answer == UNDECIDED else "reads"
        if answer != UNDECIDED and self.random.random() < self.habits.fail / 2:
            station.fail(path, thread.number)
            thread.path, thread.file, thread.doing = NO_SAMPLE, 0, "idle"

    def give_up(self, thread: Thread) -> None:
        """What a thread waits for has taken too long."""
        station = self.stations[thread.node]
        if thread.doing == "stat":
            station.withdraw(thread.ticket)
        elif not self.is_exact and self.random.random() < 0.5 and self.alone(thread):
            return
        else:
            station.fail(thread.path, thread.number)
            if not station.binding.is_bound(thread.path):
                # No other open waits for the turn that was not had.
                self.threads.append(self.new_thread(thread.node, [thread.path]))
            thread.path = NO_SAMPLE
        thread.doing = "idle"
        self.after(thread.node)

    def alone(self, thread: Thread) -> bool:
        """The thread's undecided path is decided without its peer, where that is possible."""
        return False

    def note_turns(self, node: int, path: int) -> None:
        turns = self.stations[node].turns
        for sample in turns:
            self.turn(path, sample)
        turns.clear()

    def after(self, node: int) -> None:
        """After a node decided anything: its messages leave, and threads that it answered go on."""
        station = self.stations[node]
        self.network.send(node, station.policy)
        decided, promised = station.decided.copy(), station.promised.copy()
        station.decided.clear()
        station.promised.clear()
        for path in decided:
            if station.turns:
                self.turn(path, station.turns.pop(0))
            for thread in self.threads:
                if thread.node == node and thread.doing == "open" and thread.path == path:
                    thread.doing = "reads"
        for thread in self.threads:
            if thread.node == node and thread.doing == "stat" and thread.ticket in promised:
                thread.doing = "idle"
                if thread.path >= 0 and thread.path not in station.undecided:
                    # As the stat does that waited.
                    ticket = station.stat(thread.path, 0, thread.number)
                    if ticket is not None:
                        thread.doing, thread.ticket = "stat", ticket
                    self.network.send(node, station.policy)

    # Letters

    def arrive(self, at: int) -> None:
        letter = self.network.take(at)
        if letter is None:
            return
        message = letter.message
        if letter.answer is None:
            answer = self.stations[message.home].handle(message)
            self.after(message.home)
            if answer is None:
                assert not self.network.is_unanswered(message)
            else:
                self.network.post(Letter(message, answer))
            return
        wanted = self.stations[message.requester].receive(letter.answer)
        was_unanswered = self.network.note_answered(message)
        assert was_unanswered or not wanted
        self.after(message.requester)
