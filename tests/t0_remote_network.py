"""Several nodes over an unreliable network: no sample is lost, and none is served twice."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import CHUNK_SIZE, Worker, answered
from seeds import A_THOUSAND
from t0_lost_nodes import Faults
from t0_lost_nodes import Slots as FailingSlots

from redoxfs.protocol import Delivered, Pending

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True)
class Habits:
    """How likely workers are to ``reserve`` before they ask, then to ``put_back``, and to ``cancel`` while they wait.

    A path that was put back is asked for again, and so is half of those that were cancelled.
    """

    reserve: float = 0.0
    put_back: float = 0.0
    cancel: float = 0.0


class Slots(FailingSlots):
    """Nodes that do not fail. ``given_up``: how many requests were cancelled and not made again."""

    all_stay = True

    def __init__(self, seed: int, **shape: Any) -> None:
        super().__init__(seed, reads_alone=True, faults=Faults(), **shape)
        self.nodes = [process.node for process in self.processes]
        self.given_up = 0

    def follow(self, epoch: int, orders: Sequence[npt.NDArray[np.int32]]) -> None:
        for node in self.nodes:
            for requester, order in enumerate(orders):
                node.follow(requester, epoch, order)

    def read(
        self,
        epoch: int,
        orders: Sequence[npt.NDArray[np.int32]],
        *,
        workers: int,
        strays: int = 0,
        habits: Habits = Habits(),
    ) -> None:
        """Every node's workers ask for its order, in turns; ``strays`` requests beyond it are for any sample."""
        self.follow(epoch, orders)
        self.stats, self.put_backs = habits.reserve, habits.put_back
        self.workers = []
        for node, order in enumerate(orders):
            for first in range(workers):
                worker = Worker(node=node, todo=order[first::workers].tolist())
                for _ in range(strays):
                    self.ask_later(worker, self.random.randrange(self.samples))
                self.workers.append(worker)
        self.run(cancels=habits.cancel)
        assert all(worker.is_through for worker in self.workers)

    def ask_later(self, worker: Worker, path: int) -> None:
        worker.todo.insert(self.random.randint(0, len(worker.todo)), path)

    def put_back(self, worker: Worker, sample: int) -> None:
        node = self.nodes[worker.node]
        kept = node.put_back(sample)
        if self.homes[sample] != worker.node:
            assert kept <= node.keeps(sample)
        self.ask_later(worker, worker.asked)
        worker.asked = -1

    def cancel(self, worker: Worker) -> None:
        path = worker.asked
        super().cancel(worker)
        worker.asked = -1
        if self.random.random() < 0.5:
            self.ask_later(worker, path)
        else:
            self.given_up += 1

    def deliver(self, number: int, delivered: Sequence[Delivered]) -> None:
        assert all(served is not None and served.remote for _, served in delivered)
        super().deliver(number, delivered)

    def check_all(self, made: int) -> None:
        """Of ``made`` requests all but those given up were served, and a home gives every sample of a column once
        before it gives any a second time. Samples that answered no request lie at a node.
        """
        self.check_turns()
        self.check_balance()
        assert self.turns.total() == made - self.given_up
        given = Counter(sample for policy in self.policies for sample, _ in policy.gave)
        for column in np.unique(self.columns):
            counts = [given[int(sample)] for sample in np.flatnonzero(self.columns == column)]
            assert max(counts) - min(counts) <= 1
        assert all(node.used_bytes() <= node.held() for node in self.nodes)


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

cancelling = st.builds(Habits, reserve=shares, put_back=shares, cancel=st.sampled_from([0.02, 0.2, 0.5]))


def orders_of(network: Slots) -> list[npt.NDArray[np.int32]]:
    order = np.array(network.random.sample(range(network.samples), network.samples), np.int32)
    return [order[i :: len(network.nodes)] for i in range(len(network.nodes))]


def check_exact(network: Slots, epochs: int, *, workers: int, habits: Habits) -> None:
    for epoch in range(epochs):
        network.read(epoch, orders_of(network), workers=workers, habits=habits)
        assert network.turns == dict.fromkeys(range(network.samples), epoch + 1)
    network.check_all(epochs * network.samples)
    assert all(node.used_bytes() == node.held() == 0 for node in network.nodes)


def check_off_the_trace(network: Slots, epochs: range, *, workers: int, strays: int, habits: Habits) -> None:
    made = network.turns.total()
    for epoch in epochs:
        network.read(epoch, orders_of(network), workers=workers, strays=strays, habits=habits)
        made += network.samples + strays * workers * len(network.nodes)
    network.check_all(made)


@given(networks, st.integers(1, 4), stating)
def test_each_epoch_serves_every_sample_once(network: Slots, workers: int, habits: Habits) -> None:
    check_exact(network, 3, workers=workers, habits=habits)


@given(networks, st.integers(1, 4), st.integers(0, 5), stating)
def test_requests_off_the_trace_lose_no_sample(network: Slots, workers: int, strays: int, habits: Habits) -> None:
    check_off_the_trace(network, range(3), workers=workers, strays=strays, habits=habits)


@given(networks, st.integers(1, 4), st.integers(0, 2), cancelling)
def test_samples_of_cancelled_requests_go_to_later_ones(
    network: Slots, workers: int, strays: int, habits: Habits
) -> None:
    check_off_the_trace(network, range(3), workers=workers, strays=strays, habits=habits)


@A_THOUSAND
def test_a_thousand_networks(seeds: range) -> None:
    for seed in seeds:
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
    anything = Habits(habits.reserve, habits.put_back, draw.choice([0.0, 0.02, 0.2]))
    last = range(epochs, epochs + 1)
    check_off_the_trace(network, last, workers=workers, strays=draw.randint(0, 2), habits=anything)


def test_prefetching_saves_messages() -> None:
    messages = {}
    for window in (1, 50):
        network = Slots(3, nodes=3, chunks=240, per_vc=8, window=window, room=10_000, rest=0)
        orders = orders_of(network)
        network.follow(0, orders)
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
            assert len(answered(network.nodes, node)) == 1
            sent += 1
    return sent
