"""Several nodes over a network that delays, reorders and repeats: no sample is lost, none is served twice."""

import random
from collections import Counter

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from redoxfs.protocol import RemoteAnswer, RemoteRead, Served, SlotNode, SlotPolicy, homes_by_vc

CHUNK_SIZE = 4
REPEATED = 0.2
"""Share of messages and answers that arrive once more, at any later time."""


class Watched(SlotPolicy):
    """Notes the lap in which each sample is given out, wherever it goes."""

    def __init__(self, *args: object, **keywords: object) -> None:
        super().__init__(*args, **keywords)  # type: ignore[arg-type]
        self.given: Counter[tuple[int, int]] = Counter()

    def request(self, sample: int) -> Served:
        served = super().request(sample)
        self.given[served.sample, int(self.laps(np.array([served.sample]))[0])] += 1
        return served


class Network:
    """Nodes, the messages between them, and workers that wait for the answers.

    A worker makes one request at a time. What happens next, a worker's next request or the arrival of any message, is
    drawn at random; so messages overtake each other as they may between threads.
    """

    def __init__(self, seed: int, *, nodes: int, chunks: int, per_vc: int, window: int, room: int, rest: int) -> None:
        self.random = random.Random(seed)
        cells = np.arange(chunks * CHUNK_SIZE, dtype=np.int32)
        cells[cells >= len(cells) - rest] = -1
        self.samples = int((cells >= 0).sum())
        starts = np.append(np.arange(0, chunks, per_vc), chunks).astype(np.int32)
        table = cells.reshape(chunks, CHUNK_SIZE)
        self.policies = [Watched(table, starts, samples=self.samples, seed=seed + i) for i in range(nodes)]
        self.columns = self.policies[0].columns
        homes = homes_by_vc(self.columns, CHUNK_SIZE, nodes)
        sizes = np.ones(self.samples, np.int32)
        self.limit = room
        self.nodes = [
            SlotNode(i, policy, homes, sizes, remote_memory_bytes=room, window=window)
            for i, policy in enumerate(self.policies)
        ]
        self.under_way: list[RemoteRead | tuple[int, RemoteAnswer]] = []
        self.asked: dict[tuple[int, int, int], int] = {}
        self.served: list[int] = []

    def epoch(self, epoch: int, orders: list[npt.NDArray[np.int32]], *, workers: int, strays: int = 0) -> None:
        """Every node's workers ask for its order, in turns; ``strays`` requests beyond it are for any sample."""
        for node in self.nodes:
            for requester, order in enumerate(orders):
                node.follow(requester, epoch, order)
        queues = []
        for i, order in enumerate(orders):
            for worker in range(workers):
                own = order[worker::workers].tolist()
                for _ in range(strays):
                    own.insert(self.random.randint(0, len(own)), self.random.randrange(self.samples))
                queues.append((i, own))
        busy: dict[int, tuple[int, int, int]] = {}
        while any(own for _, own in queues) or self.under_way:
            ready = [n for n, (_, own) in enumerate(queues) if own and busy.get(n) not in self.asked]
            at = self.random.randrange(len(ready) + len(self.under_way))
            if at < len(ready):
                asking, own = queues[ready[at]]
                key = self.request(asking, own.pop(0))
                if key is not None:
                    busy[ready[at]] = key
            else:
                self.arrive(at - len(ready))

    def request(self, node: int, sample: int) -> tuple[int, int, int] | None:
        outcome = self.nodes[node].request(sample)
        if isinstance(outcome, RemoteRead):
            key = (node, outcome.home, outcome.number)
            self.asked[key] = sample
            self.under_way.append(outcome)
            self.check_memory(node)
            return key
        assert self.columns[outcome.sample] == self.columns[sample]
        self.served.append(outcome.sample)
        return None

    def arrive(self, at: int) -> None:
        what = self.under_way[at]
        if self.random.random() > REPEATED:
            self.under_way.pop(at)
        if isinstance(what, RemoteRead):
            answer = self.nodes[what.home].handle(what).answer
            if answer is not None:
                self.under_way.append((what.requester, answer))
            return
        node, answer = what
        for home, number, sample in self.nodes[node].receive(answer):
            asked = self.asked.pop((node, home, number))
            assert self.columns[sample] == self.columns[asked]
            self.served.append(sample)
        self.check_memory(node)

    def check_memory(self, node: int) -> None:
        assert 0 <= self.nodes[node].used_bytes() <= self.limit

    def check_laps(self) -> None:
        """A home gives out every sample of a column once before it gives any a second time."""
        given: Counter[tuple[int, int]] = Counter()
        for policy in self.policies:
            given += policy.given
        assert not given or max(given.values()) == 1
        turns = Counter(sample for sample, _ in given)
        for column in np.unique(self.columns):
            counts = [turns[int(sample)] for sample in np.flatnonzero(self.columns == column)]
            assert max(counts) - min(counts) <= 1


networks = st.builds(
    Network,
    st.integers(0, 1 << 32),
    nodes=st.integers(2, 4),
    chunks=st.integers(4, 24),
    per_vc=st.integers(1, 6),
    window=st.sampled_from([1, 2, 5, 1000]),
    room=st.sampled_from([0, 8, 24, 10_000]),
    rest=st.integers(0, CHUNK_SIZE - 1),
)


def orders_of(network: Network) -> list[npt.NDArray[np.int32]]:
    order = np.array(network.random.sample(range(network.samples), network.samples), np.int32)
    return [order[i :: len(network.nodes)] for i in range(len(network.nodes))]


@given(networks, st.integers(1, 4))
def test_nodes_that_meet_between_epochs_serve_every_sample_once_in_each(network: Network, workers: int) -> None:
    for epoch in range(3):
        network.served.clear()
        network.epoch(epoch, orders_of(network), workers=workers)
        assert not network.asked
        assert sorted(network.served) == list(range(network.samples))
    network.check_laps()
    assert all(node.used_bytes() == 0 for node in network.nodes)


@given(networks, st.integers(1, 4), st.integers(0, 5))
def test_requests_that_leave_the_trace_shift_laps_and_lose_nothing(network: Network, workers: int, strays: int) -> None:
    made = 0
    for epoch in range(3):
        network.epoch(epoch, orders_of(network), workers=workers, strays=strays)
        made += network.samples + strays * workers * len(network.nodes)
        assert not network.asked
    assert len(network.served) == made
    network.check_laps()
    # What was sent ahead and not asked for yet was given out, not lost: it lies in a remote VC.
    given = sum(sum(policy.given.values()) for policy in network.policies)
    assert given - made == sum(node.used_bytes() for node in network.nodes)


def test_prefetching_saves_messages() -> None:
    messages = {}
    for window in (1, 50):
        network = Network(3, nodes=3, chunks=240, per_vc=8, window=window, room=10_000, rest=0)
        orders = orders_of(network)
        for node in network.nodes:
            for i, order in enumerate(orders):
                node.follow(i, 0, order)
        messages[window] = sum(in_step(network, requests) for requests in zip(*map(list, orders), strict=True))
    assert messages[1] == sum(
        int((homes_by_vc(network.columns, CHUNK_SIZE, 3)[order] != i).sum()) for i, order in enumerate(orders)
    )
    assert messages[50] < 0.7 * messages[1]


def in_step(network: Network, requests: tuple[int, ...]) -> int:
    """One request of each node, answered at once: how many messages it took."""
    sent = 0
    for node, sample in enumerate(requests):
        key = network.request(node, int(sample))
        if key is not None:
            sent += 1
            while key in network.asked:
                network.arrive(len(network.under_way) - 1)
    return sent
