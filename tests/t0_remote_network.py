"""Several nodes over an unreliable network: no sample is lost, and none is served twice."""

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import CHUNK_SIZE, SENT_AGAIN, Letter, Network, Worker
from watched import Watched

from redoxfs.protocol import Answer, Message, Pending, Served, SlotNode, homes_by_vc

pytestmark = pytest.mark.slow

STEPS_PER_REQUEST = 1000
"""A request that takes more waits forever: it takes ten at most, a message that is lost ten times takes a hundred."""


@dataclass(frozen=True, slots=True)
class Habits:
    """How likely workers are to ``reserve`` before they ask, then to ``put_back``, and to ``cancel`` while they wait.

    A path that was put back is asked for again, and so is half of those that were cancelled.
    """

    reserve: float = 0.0
    put_back: float = 0.0
    cancel: float = 0.0


class Slots:
    """Nodes, and workers that ask them over a network and wait for the answers."""

    def __init__(self, seed: int, *, nodes: int, chunks: int, per_vc: int, window: int, room: int, rest: int) -> None:
        self.random = random.Random(seed)
        cells = np.arange(chunks * CHUNK_SIZE, dtype=np.int32)
        cells[cells >= len(cells) - rest] = -1
        self.samples = int((cells >= 0).sum())
        starts = np.append(np.arange(0, chunks, per_vc), chunks).astype(np.int32)
        table = cells.reshape(chunks, CHUNK_SIZE)
        self.policies = [Watched(table, starts, samples=self.samples, seed=seed + i) for i in range(nodes)]
        self.columns = self.policies[0].columns
        self.homes = homes_by_vc(self.columns, CHUNK_SIZE, nodes)
        sizes = np.ones(self.samples, np.int32)
        self.limit = room
        self.nodes = [
            SlotNode(i, policy, self.homes, sizes, remote_memory_bytes=room, window=window)
            for i, policy in enumerate(self.policies)
        ]
        self.network = Network(self.random)
        self.workers: list[Worker] = []
        self.served: list[int] = []
        self.given_up = 0

    def epoch(
        self,
        epoch: int,
        orders: list[npt.NDArray[np.int32]],
        *,
        workers: int,
        strays: int = 0,
        habits: Habits = Habits(),
    ) -> None:
        """Every node's workers ask for its order, in turns; ``strays`` requests beyond it are for any sample."""
        for node in self.nodes:
            for requester, order in enumerate(orders):
                node.follow(requester, epoch, order)
        self.workers = []
        for i, order in enumerate(orders):
            for worker in range(workers):
                own = order[worker::workers].tolist()
                for _ in range(strays):
                    own.insert(self.random.randint(0, len(own)), self.random.randrange(self.samples))
                self.workers.append(Worker(node=i, todo=own))
        steps = STEPS_PER_REQUEST * (1 + sum(len(worker.todo) for worker in self.workers))
        while (
            self.network.unanswered or self.network.under_way or not all(worker.is_through for worker in self.workers)
        ):
            self.step(habits)
            steps -= 1
            assert steps, "somebody waits forever"

    def step(self, habits: Habits) -> None:
        ready = [
            w for w in self.workers if not w.is_through and (w.ticket is None or self.random.random() < habits.cancel)
        ]
        choices = len(ready) + len(self.network.under_way)
        if self.network.unanswered and (choices == 0 or self.random.random() < SENT_AGAIN):
            self.network.send_again()
            return
        if choices == 0:
            return
        at = self.random.randrange(choices)
        if at < len(ready):
            self.act(ready[at], habits)
        else:
            self.arrive(at - len(ready))

    def act(self, worker: Worker, habits: Habits) -> None:
        """A worker's next step."""
        node = self.nodes[worker.node]
        if worker.ticket is not None:
            node.cancel(worker.ticket)
            path, worker.ticket, worker.asked = worker.asked, None, -1
            self.ask_again(worker, path)
        elif worker.reserved is not None:
            path, sample = worker.asked, worker.reserved
            worker.reserved, worker.asked = None, -1
            if self.random.random() < habits.put_back:
                kept = node.put_back(sample)
                if self.homes[sample] != worker.node:
                    assert kept <= node.keeps(sample)
                worker.todo.insert(self.random.randint(0, len(worker.todo)), path)
            else:
                self.serve(path, node.take(sample))
        else:
            path = worker.todo.pop(0)
            reserved = node.reserve(path) if self.random.random() < habits.reserve else None
            if reserved is None:
                self.request(worker, path)
            elif isinstance(reserved, Pending):
                worker.ticket, worker.asked, worker.reserves = reserved.ticket, path, True
            else:
                self.note_reserved(worker, path, reserved)
        self.send(worker.node)

    def ask_again(self, worker: Worker, path: int) -> None:
        if self.random.random() < 0.5:
            worker.todo.insert(self.random.randint(0, len(worker.todo)), path)
        else:
            self.given_up += 1

    def request(self, worker: Worker, path: int) -> None:
        outcome = self.nodes[worker.node].request(path)
        if isinstance(outcome, Pending):
            worker.ticket, worker.asked, worker.reserves = outcome.ticket, path, False
            return
        if outcome.preempted:
            self.preempt(worker.node, [outcome.sample])
        self.serve(path, outcome)

    def serve(self, path: int, served: Served) -> None:
        assert self.columns[served.sample] == self.columns[path]
        self.served.append(served.sample)

    def note_reserved(self, worker: Worker, path: int, sample: int) -> None:
        assert self.columns[sample] == self.columns[path]
        others = [w.reserved for w in self.workers if w.node == worker.node and w.reserved is not None]
        assert sample not in others, "a sample is reserved for one path"
        worker.asked, worker.reserved = path, sample

    def preempt(self, node: int, samples: Iterable[int]) -> None:
        """Workers whose reservation of one of ``samples`` was preempted ask again."""
        for sample in samples:
            (revoked,) = (w for w in self.workers if w.node == node and w.reserved == sample)
            revoked.todo.insert(0, revoked.asked)
            revoked.reserved, revoked.asked = None, -1

    def send(self, number: int) -> None:
        node = self.nodes[number]
        self.network.send(number, node)
        assert 0 <= node.used_bytes() <= self.limit

    def arrive(self, at: int) -> None:
        letter = self.network.take(at)
        if letter is None:
            return
        if letter.answer is not None:
            self.receive(letter.message, letter.answer)
            return
        message = letter.message
        handled = self.nodes[message.home].handle(message)
        self.preempt(message.home, handled.preempted)
        if handled.repeated:
            assert (handled.loads, handled.preempted) == ((), ())
        if handled.answer is None:
            assert not self.network.is_unanswered(message)
        else:
            self.network.post(Letter(message, handled.answer))

    def receive(self, message: Message, answer: Answer) -> None:
        at = message.requester
        delivered = self.nodes[at].receive(answer)
        assert (delivered is not None) == self.network.note_answered(message)
        for ticket, served in delivered or ():
            assert served is not None
            assert served.remote
            assert served.sample in answer.samples
            (worker,) = (w for w in self.workers if w.node == at and w.ticket == ticket)
            path, worker.ticket, worker.asked = worker.asked, None, -1
            if worker.reserves:
                self.note_reserved(worker, path, served.sample)
            else:
                self.serve(path, served)
        self.send(at)

    def check_laps(self) -> None:
        """A home gives every sample of a column once before it gives any a second time."""
        given: Counter[tuple[int, int]] = Counter()
        for policy in self.policies:
            given += policy.gave
        assert not given or max(given.values()) == 1
        turns = Counter(sample for sample, _ in given)
        for column in np.unique(self.columns):
            counts = [turns[int(sample)] for sample in np.flatnonzero(self.columns == column)]
            assert max(counts) - min(counts) <= 1

    def check_balance(self, made: int) -> None:
        """Of ``made`` requests all but those given up were served; samples that answered none of them lie at a node."""
        assert len(self.served) == made - self.given_up
        given = sum(sum(policy.gave.values()) for policy in self.policies)
        assert given - len(self.served) == sum(node.held() for node in self.nodes)
        for node in self.nodes:
            assert node.used_bytes() <= node.held()


networks = st.builds(
    Slots,
    st.integers(0, 1 << 32),
    nodes=st.integers(2, 4),
    chunks=st.integers(4, 24),
    per_vc=st.integers(1, 6),
    window=st.sampled_from([1, 2, 5, 1000]),
    room=st.sampled_from([0, 8, 24, 10_000]),
    rest=st.integers(0, CHUNK_SIZE - 1),
)

shares = st.sampled_from([0.0, 0.2, 0.8])

stating = st.builds(Habits, reserve=shares, put_back=shares)

cancelling = st.builds(Habits, reserve=shares, put_back=shares, cancel=st.sampled_from([0.02, 0.2, 1.0]))


def orders_of(network: Slots) -> list[npt.NDArray[np.int32]]:
    order = np.array(network.random.sample(range(network.samples), network.samples), np.int32)
    return [order[i :: len(network.nodes)] for i in range(len(network.nodes))]


def check_exact(network: Slots, epochs: int, *, workers: int, habits: Habits) -> None:
    for epoch in range(epochs):
        network.served.clear()
        network.epoch(epoch, orders_of(network), workers=workers, habits=habits)
        assert sorted(network.served) == list(range(network.samples))
    network.check_laps()
    assert all(node.used_bytes() == node.held() == 0 for node in network.nodes)


@given(networks, st.integers(1, 4), stating)
def test_each_epoch_serves_every_sample_once(network: Slots, workers: int, habits: Habits) -> None:
    check_exact(network, 3, workers=workers, habits=habits)


@given(networks, st.integers(1, 4), st.integers(0, 5), stating)
def test_requests_off_the_trace_lose_no_sample(network: Slots, workers: int, strays: int, habits: Habits) -> None:
    made = 0
    for epoch in range(3):
        network.epoch(epoch, orders_of(network), workers=workers, strays=strays, habits=habits)
        made += network.samples + strays * workers * len(network.nodes)
    network.check_laps()
    network.check_balance(made)


@given(networks, st.integers(1, 4), st.integers(0, 2), cancelling)
def test_samples_of_cancelled_requests_go_to_later_ones(
    network: Slots, workers: int, strays: int, habits: Habits
) -> None:
    made = 0
    for epoch in range(3):
        network.epoch(epoch, orders_of(network), workers=workers, strays=strays, habits=habits)
        made += network.samples + strays * workers * len(network.nodes)
    network.check_laps()
    network.check_balance(made)


def test_a_thousand_networks() -> None:
    for seed in range(1000):
        try:
            check_network(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def check_network(seed: int) -> None:
    """An exact epoch or two, then one in which anything happens."""
    draw = random.Random(seed)
    network = Slots(
        seed,
        nodes=draw.randint(2, 3),
        chunks=draw.randint(4, 10),
        per_vc=draw.choice([1, 3, 6]),
        window=draw.choice([1, 5, 1000]),
        room=draw.choice([0, 8, 24, 10_000]),
        rest=draw.randint(0, CHUNK_SIZE - 1),
    )
    workers = draw.randint(1, 4)
    habits = Habits(draw.choice([0.0, 0.6]), draw.choice([0.2, 0.6]))
    epochs = draw.randint(1, 2)
    check_exact(network, epochs, workers=workers, habits=habits)
    network.served.clear()
    for policy in network.policies:
        policy.gave.clear()
    anything = Habits(habits.reserve, habits.put_back, draw.choice([0.0, 0.02, 0.2]))
    strays = draw.randint(0, 2)
    network.epoch(epochs, orders_of(network), workers=workers, strays=strays, habits=anything)
    network.check_laps()
    network.check_balance(network.samples + strays * workers * len(network.nodes))


def test_prefetching_saves_messages() -> None:
    messages = {}
    for window in (1, 50):
        network = Slots(3, nodes=3, chunks=240, per_vc=8, window=window, room=10_000, rest=0)
        orders = orders_of(network)
        for node in network.nodes:
            for i, order in enumerate(orders):
                node.follow(i, 0, order)
        messages[window] = sum(in_step(network, requests) for requests in zip(*map(list, orders), strict=True))
        hits = sum(map(len, orders)) - messages[window] - at_home(network, orders)
        assert sum(node.prefetched for node in network.nodes) == hits
        assert (window == 50) == any(node.conflicts for node in network.nodes)
    assert messages[1] == sum(map(len, orders)) - at_home(network, orders)
    assert messages[50] < 0.7 * messages[1]


def at_home(network: Slots, orders: list[npt.NDArray[np.int32]]) -> int:
    """How many requests are for the node's own samples."""
    return sum(int((network.homes[order] == i).sum()) for i, order in enumerate(orders))


def in_step(network: Slots, requests: tuple[int, ...]) -> int:
    """One request of each node, answered at once: how many messages it took."""
    sent = 0
    for node, sample in zip(network.nodes, requests, strict=True):
        if isinstance(node.request(int(sample)), Pending):
            message = node.outbox.pop()
            answer = network.nodes[message.home].handle(message).answer
            assert answer is not None
            delivered = node.receive(answer)
            assert delivered is not None
            assert len(delivered) == 1
            sent += 1
    return sent
