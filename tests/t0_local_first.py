"""The pool on several nodes, over a network that delays, reorders and repeats: laps are exact, no sample is lost."""

import random
from collections import Counter

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from redoxfs.protocol import Given, LocalFirst, PoolPolicy, Served, Take
from redoxfs.protocol.local_first import BATCH

CHUNK_SIZE = 4
REPEATED = 0.2
Int32 = npt.NDArray[np.int32]


def nodes_of(class_of: Int32, home_of: Int32, *, nodes: int, seed: int = 0) -> list[LocalFirst]:
    """Nodes with a pool each; a node's samples lie in its chunks in the order of their numbers."""
    made = []
    for node in range(nodes):
        own = np.flatnonzero(home_of == node).astype(np.int32)
        cells = np.full(-(-max(1, len(own)) // CHUNK_SIZE) * CHUNK_SIZE, -1, np.int32)
        cells[: len(own)] = np.arange(len(own))
        policy = PoolPolicy(
            cells.reshape(-1, CHUNK_SIZE),
            class_of[own],
            np.ones(len(own), np.int64),
            capacity_bytes=max(1, len(own) // 3),
            seed=seed + node,
        )
        chunks = np.arange(len(cells) // CHUNK_SIZE, dtype=np.int32) * nodes + node
        made.append(LocalFirst(node, policy, own, chunks, class_of, home_of, nodes=nodes))
    return made


class Network:
    """Nodes, workers that make one request at a time, and messages that arrive in any order, some twice."""

    def __init__(self, seed: int, *, nodes: int, samples: int, classes: int) -> None:
        self.random = random.Random(seed)
        self.class_of = np.array([self.random.randrange(classes) for _ in range(samples)], np.int32)
        home_of = np.array([self.random.randrange(nodes) for _ in range(samples)], np.int32)
        home_of[:nodes] = range(nodes)
        self.nodes = nodes_of(self.class_of, home_of, nodes=nodes, seed=seed)
        self.under_way: list[Take | tuple[int, Given]] = []
        self.asked: dict[tuple[int, int], int] = {}
        self.turns: Counter[int] = Counter()

    def run(self, requests: list[list[int]], *, workers: int) -> None:
        """Node i's workers make requests[i] in turns."""
        queues = [(i, own[w::workers]) for i, own in enumerate(requests) for w in range(workers)]
        busy: dict[int, tuple[int, int]] = {}
        while self.asked or any(own for _, own in queues):
            ready = [n for n, (_, own) in enumerate(queues) if own and busy.get(n) not in self.asked]
            at = self.random.randrange(len(ready) + len(self.under_way))
            if at < len(ready):
                node, own = queues[ready[at]]
                sample = own.pop(0)
                outcome = self.nodes[node].request(sample)
                if isinstance(outcome, Served):
                    self.serve(sample, outcome)
                else:
                    ticket, take = outcome
                    busy[ready[at]] = (node, ticket)
                    self.asked[node, ticket] = sample
                    self.send(take)
            else:
                self.arrive(at - len(ready))

    def send(self, take: Take | None) -> None:
        if take is not None:
            self.under_way.append(take)

    def arrive(self, at: int) -> None:
        what = self.under_way[at]
        if self.random.random() > REPEATED:
            self.under_way.pop(at)
        if isinstance(what, Take):
            answer = self.nodes[what.home].handle(what).given
            if answer is not None:
                self.under_way.append((what.requester, answer))
            return
        node, answer = what
        received = self.nodes[node].receive(answer)
        for ticket, served in received.served:
            self.serve(self.asked.pop((node, ticket)), served)
        self.send(received.take)

    def serve(self, asked: int, served: Served) -> None:
        assert self.class_of[served.sample] == self.class_of[asked]
        self.turns[served.sample] += 1
        of_class = [self.turns[int(sample)] for sample in np.flatnonzero(self.class_of == self.class_of[asked])]
        assert max(of_class) - min(of_class) <= 1, "no sample has its next turn before all others had theirs"


networks = st.builds(
    Network,
    st.integers(0, 1 << 32),
    nodes=st.integers(2, 4),
    samples=st.integers(4, 60),
    classes=st.integers(1, 6),
)


@given(networks, st.integers(1, 3))
def test_nodes_that_meet_between_epochs_serve_every_sample_once_in_each(network: Network, workers: int) -> None:
    samples, nodes = len(network.class_of), len(network.nodes)
    for epoch in range(1, 4):
        order = network.random.sample(range(samples), samples)
        network.run([order[node::nodes] for node in range(nodes)], workers=workers)
        assert [network.turns[sample] for sample in range(samples)] == [epoch] * samples


@given(networks, st.integers(1, 3), st.integers(0, 150))
def test_whatever_nodes_ask_for_laps_are_exact(network: Network, workers: int, requests: int) -> None:
    # `serve` checks fairness at every turn; one node may ask for much more than the others.
    asked: list[list[int]] = [[] for _ in network.nodes]
    for _ in range(requests):
        asked[min(network.random.randrange(4), len(asked) - 1)].append(network.random.randrange(len(network.class_of)))
    network.run(asked, workers=workers)
    assert network.turns.total() == requests


def two_nodes_of_one_class(each: int) -> list[LocalFirst]:
    class_of = np.zeros(2 * each, np.int32)
    return nodes_of(class_of, np.arange(2 * each, dtype=np.int32) % 2, nodes=2)


def test_a_node_asks_nobody_while_its_own_chunks_have_the_class() -> None:
    node, _ = two_nodes_of_one_class(10)
    served = [node.request(1) for _ in range(10)]
    assert {turn.sample for turn in served if isinstance(turn, Served)} == set(range(0, 20, 2))
    loaded = [sample for turn in served if isinstance(turn, Served) for load in turn.loads for sample in load.samples]
    assert set(loaded) <= set(range(0, 20, 2)), "loads are told in the numbers of the whole layout"


def test_what_a_node_lacks_it_takes_a_batch_at_a_time() -> None:
    node, peer = two_nodes_of_one_class(2 * BATCH)
    for _ in range(2 * BATCH):
        node.request(0)
    ticket, take = node.request(0)  # type: ignore[misc]
    assert isinstance(take, Take)
    given = peer.handle(take).given
    assert given is not None
    assert (len(given.samples), given.left, given.done) == (BATCH, BATCH, 0)
    received = node.receive(given)
    assert [served[0] for served in received.served] == [ticket]
    assert all(isinstance(node.request(0), Served) for _ in range(BATCH - 1))
    assert not isinstance(node.request(0), Served)


def test_a_peer_gives_no_more_than_its_part_of_what_is_left() -> None:
    node, peer = two_nodes_of_one_class(4)
    for _ in range(4):
        node.request(0)
    _, take = node.request(0)  # type: ignore[misc]
    assert isinstance(take, Take)
    given = peer.handle(take).given
    assert given is not None
    assert len(given.samples) == 2
    assert peer.handle(take).given == given, "a repeated message takes nothing more"
