"""The pool on several nodes over an unreliable network: laps stay exact."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from networks import ByLaps, Worker, answered, parts_of_chunks, pool_node
from seeds import A_THOUSAND
from t0_lost_nodes import Faults
from t0_lost_nodes import Pools as FailingPools

from redoxfs.protocol import Given, LocalFirst, Pending, Served, SharedPolicy, Take
from redoxfs.protocol.events import Answer, Handled, Message
from redoxfs.protocol.local_first import BATCH

Int32 = npt.NDArray[np.int32]


def nodes_of(
    class_of: Int32,
    part_of: npt.NDArray[np.int8],
    cells: Int32,
    *,
    nodes: int,
    remote_memory_bytes: int = 1 << 30,
    exchange: float = 0,
    made: type[LocalFirst] = ByLaps,
) -> list[LocalFirst]:
    """Nodes with a pool each. Each sample takes one byte."""
    return [
        pool_node(
            node,
            nodes,
            cells=cells,
            class_of=class_of,
            part_of=part_of,
            sample_bytes=np.ones(len(class_of), np.int64),
            resident=9,
            remote_memory_bytes=remote_memory_bytes,
            exchange=exchange,
            seed=node,
            made=made,
        )
        for node in range(nodes)
    ]


class Pools(FailingPools):
    """Nodes that do not fail: their laps are those of all, and each sample is reserved once.

    ``count_of``  how many turns each sample had;  ``here``: the samples of others that lie at each node, and
                  ``evicted``: those of them that came back from a reservation when there was no room
    """

    all_stay = True

    def __init__(self, seed: int, **shape: Any) -> None:
        super().__init__(seed, faults=Faults(), **shape)
        self.of_class = [np.flatnonzero(self.class_of == cls).tolist() for cls in range(int(self.class_of.max()) + 1)]
        self.count_of: Counter[int] = Counter()
        self.here: list[set[int]] = [set() for _ in range(self.count)]
        self.evicted: list[set[int]] = [set() for _ in range(self.count)]
        # A sample that comes for a cancelled request is kept, even if there is no room for it.
        self.forgiven_bytes = [0] * self.count

    def read(self, requests: Sequence[Sequence[int]], *, workers: int, stats: float, cancels: float = 0) -> None:
        """Node i's workers make requests[i] in turns. The share ``cancels`` of the pending ones give up."""
        self.stats = stats
        self.workers = [
            Worker(node=node, todo=list(own[first::workers]), sleeps=stats > 0 and first == 0)
            for node, own in enumerate(requests)
            for first in range(workers)
        ]
        self.run(cancels=cancels)
        assert all(worker.is_through for worker in self.workers)

    def cancel(self, worker: Worker) -> None:
        super().cancel(worker)
        self.forgiven_bytes[worker.node] += int(self.sizes.max())
        worker.asked = -1

    def check(self, number: int) -> None:
        super().check(number)
        node = self.processes[number].node
        assert self.here[number] == self.taken_by(number)
        assert node.held() == len(self.here[number])
        assert all(map(node.keeps, self.here[number] - self.evicted[number])), "what came has its bytes"
        assert node.used_bytes() <= self.remote_memory_bytes + self.forgiven_bytes[number]

    def put_back(self, worker: Worker, sample: int) -> None:
        node = self.processes[worker.node].node
        if node.is_taken(sample):
            self.here[worker.node].add(sample)
        super().put_back(worker, sample)
        if not node.keeps(sample):
            self.evicted[worker.node].add(sample)

    def came(self, number: int, answer: Answer) -> None:
        super().came(number, answer)
        assert not self.here[number] & {*answer.samples}
        self.here[number].update(answer.samples)
        self.evicted[number].difference_update(answer.samples)

    def came_out(self, number: int, sample: int, *, preempted: bool, remote: bool) -> None:
        super().came_out(number, sample, preempted=preempted, remote=remote)
        assert preempted or remote == (sample in self.here[number])
        self.here[number].discard(sample)
        assert sample not in {worker.reserved for worker in self.workers}, "reserved once"

    def handled(self, message: Message, handled: Handled) -> None:
        if handled.answer is not None and not handled.repeated:
            reserved = {worker.reserved for worker in self.workers if worker.node == message.home}
            assert reserved.intersection(handled.answer.samples) == {*handled.preempted}
            self.here[message.home].difference_update(handled.answer.samples)
        super().handled(message, handled)

    def turn(self, worker: Worker, served: Served) -> None:
        cls = self.class_of[worker.asked]
        self.here[worker.node].discard(served.sample)
        super().turn(worker, served)
        self.count_of[served.sample] += 1
        of_class = [self.count_of[sample] for sample in self.of_class[cls]]
        assert max(of_class) - min(of_class) <= 1, "no sample has its next turn before all others had theirs"

    def epochs(self, count: int, *, workers: int, stats: float) -> None:
        """Nodes that meet between epochs, each of which serves every sample once."""
        for epoch in range(1, count + 1):
            order = self.random.sample(range(self.samples), self.samples)
            self.read([order[node :: self.count] for node in range(self.count)], workers=workers, stats=stats)
            assert self.count_of == dict.fromkeys(range(self.samples), epoch)

    def unevenly(self, requests: int, *, workers: int, stats: float, cancels: float) -> None:
        """One node may ask for much more than the others, and only for some classes."""
        asked: list[list[int]] = [[] for _ in range(self.count)]
        for _ in range(requests):
            node = min(self.random.randrange(4), len(asked) - 1)
            asked[node].append(self.random.randrange(self.samples))
        self.read(asked, workers=workers, stats=stats, cancels=cancels)
        assert cancels or self.count_of.total() == requests


networks = st.builds(
    Pools,
    st.integers(0, 1 << 32),
    nodes=st.integers(2, 4),
    samples=st.integers(1, 60),
    classes=st.integers(1, 6),
    resident=st.sampled_from([1, 2, 9]),
    retained=st.sampled_from([0, 0.5, 1]),
    remote_memory_bytes=st.sampled_from([0, 1, 5, 40, 1 << 30]),
    exchange=st.sampled_from([0, 0.3, 1]),
)
shares = st.sampled_from([0, 0.3, 1])


@given(networks, st.integers(1, 3), shares)
# A sample that came back from a peer goes out again with an answer whose load brings it for the next lap.
@example(Pools(1, nodes=2, samples=59, classes=1, resident=9, remote_memory_bytes=40, exchange=1), 1, 1)
@pytest.mark.slow
def test_each_epoch_serves_every_sample_once(network: Pools, workers: int, stats: float) -> None:
    network.epochs(3, workers=workers, stats=stats)


@given(networks, st.integers(1, 3), shares, st.sampled_from([0, 0.1]), st.integers(0, 150))
@pytest.mark.slow
def test_laps_are_exact_for_any_requests(
    network: Pools, workers: int, stats: float, cancels: float, requests: int
) -> None:
    # `turn` checks fairness every time.
    network.unevenly(requests, workers=workers, stats=stats, cancels=cancels)


@pytest.mark.slow
@A_THOUSAND
def test_a_thousand_seeds_of_small_networks(seeds: range) -> None:
    for seed in seeds:
        draw = random.Random(seed)
        network = Pools(
            seed,
            nodes=draw.randint(2, 4),
            samples=draw.randint(1, 12),
            classes=draw.randint(1, 3),
            resident=draw.choice([1, 2, 9]),
            retained=draw.choice([0, 0.5, 1]),
            remote_memory_bytes=draw.choice([0, 2, 6, 1 << 30]),
            exchange=draw.choice([0, 0.3, 1]),
        )
        workers, stats = draw.randint(1, 3), draw.choice([0, 0.3, 1])
        try:
            if draw.random() < 0.5:
                network.epochs(2, workers=workers, stats=stats)
            else:
                network.unevenly(20, workers=workers, stats=stats, cancels=draw.choice([0, 0.1]))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def two_nodes_of_one_class(each: int, **settings: float) -> list[LocalFirst]:
    """Node 0 has the even samples."""
    samples = np.arange(2 * each, dtype=np.int32)
    cells = np.concatenate([samples[::2], samples[1::2]]).reshape(-1, 2)
    return nodes_of(np.zeros(2 * each, np.int32), (samples % 2).astype(np.int8), cells, nodes=2, **settings)  # type: ignore[arg-type]


def taken(node: LocalFirst) -> Take:
    """The one message that the node sends."""
    (message,) = node.outbox
    node.outbox.clear()
    assert isinstance(message, Take)
    return message


def given_by(handled: Handled) -> Given:
    assert isinstance(handled.answer, Given)
    return handled.answer


def turn_of(outcome: Served | Pending) -> Served:
    assert isinstance(outcome, Served)
    return outcome


def test_a_node_serves_from_its_own_chunks_first() -> None:
    shared: SharedPolicy
    node, _ = two_nodes_of_one_class(10)
    shared = node
    served = [turn_of(shared.request(1)) for _ in range(10)]
    assert {turn.sample for turn in served} == set(range(0, 20, 2))
    loaded = {sample for turn in served for load in turn.loads for sample in load.samples}
    assert loaded >= set(range(0, 20, 2))
    assert not any(turn.remote for turn in served)
    assert not node.outbox


def test_each_node_serves_its_own_part_in_every_lap() -> None:
    nodes = two_nodes_of_one_class(10)
    for lap in range(1, 4):
        for number, node in enumerate(nodes):
            served = [turn_of(node.request(0)) if lap == 1 or at else first(nodes, number) for at in range(10)]
            assert {turn.sample % 2 for turn in served} == {number}
            assert node.laps(np.array([0, 19])).tolist() == [lap, lap]


def first(nodes: list[LocalFirst], number: int) -> Served:
    """A node's first turn of a lap, about which it may have to ask the other."""
    node = nodes[number]
    turn = node.request(0)
    if isinstance(turn, Served):
        return turn
    ((_, served),) = node.receive(given_by(nodes[1 - number].handle(taken(node)))) or ()
    assert served is not None
    return served


def test_a_node_takes_missing_samples_in_batches() -> None:
    node, peer = two_nodes_of_one_class(2 * BATCH)
    for _ in range(2 * BATCH):
        node.request(0)
    pending = node.request(0)
    assert isinstance(pending, Pending)
    given = given_by(peer.handle(taken(node)))
    assert (len(given.samples), given.left, given.done) == (BATCH, BATCH, 0)
    assert node.receive(given) == ((pending.ticket, Served(given.samples[0], remote=True)),)
    assert node.receive(given) is None
    assert [turn_of(node.request(0)).sample for _ in range(BATCH - 1)] == list(given.samples[1:])
    assert isinstance(node.request(0), Pending)


def test_a_peer_gives_at_most_its_share_of_what_is_left() -> None:
    node, peer = two_nodes_of_one_class(4)
    for _ in range(5):
        node.request(0)
    take = taken(node)
    given = given_by(peer.handle(take))
    assert len(given.samples) == 2
    again = peer.handle(take)
    assert (again.answer, again.loads, again.repeated) == (given, (), True), "a repeated message takes nothing more"
    assert peer.handle(take._replace(number=1, acked_below=1)).answer is not None
    assert peer.handle(take) == Handled(None, repeated=True), "the answer was acknowledged and forgotten"


@pytest.mark.parametrize(("memory_bytes", "samples"), [(0, 1), (4 * 3, 4), (4 * 5, 6)])
def test_a_batch_fits_in_the_granted_room(memory_bytes: int, samples: int) -> None:
    node, peer = two_nodes_of_one_class(20, remote_memory_bytes=memory_bytes)
    for _ in range(21):
        node.request(0)
    take = taken(node)
    assert take.room_bytes == node.used_bytes() == samples - 1
    given = given_by(peer.handle(take))
    assert len(given.samples) == samples
    node.receive(given)
    assert node.used_bytes() == samples - 1


def test_a_cancelled_request_s_samples_serve_the_next() -> None:
    node, peer = two_nodes_of_one_class(4)
    for _ in range(4):
        node.request(0)
    pending = node.request(0)
    assert isinstance(pending, Pending)
    node.cancel(pending.ticket)
    given = given_by(peer.handle(taken(node)))
    assert node.receive(given) == ()
    assert not node.outbox
    assert turn_of(node.request(0)) == Served(given.samples[0], remote=True)


def test_a_taken_sample_can_be_reserved_and_put_back() -> None:
    node, peer = two_nodes_of_one_class(20, remote_memory_bytes=4)
    for _ in range(21):
        node.request(0)
    first_of_batch, second = given_by(peer.handle(take := taken(node))).samples
    node.receive(given_by(peer.handle(take)))
    assert node.reserve(0) == second != first_of_batch
    assert (node.is_taken(second), node.held(), node.used_bytes()) == (True, 0, 0)
    assert node.put_back(second)
    assert (node.keeps(second), node.held(), node.used_bytes()) == (True, 1, 1)
    assert node.reserve(0) == second
    assert node.take(second) == Served(second, remote=True)


def test_a_put_back_sample_without_room_is_evicted() -> None:
    node, peer = two_nodes_of_one_class(20, remote_memory_bytes=1)
    for _ in range(21):
        node.request(0)
    take = taken(node)
    node.receive(given_by(peer.handle(take)))
    (kept,) = given_by(peer.handle(take)).samples[1:]
    assert node.reserve(0) == kept
    assert isinstance(node.request(0), Pending)
    assert taken(node).room_bytes == 1
    assert not node.put_back(kept)
    assert (node.keeps(kept), node.held(), node.used_bytes()) == (False, 1, 1)
    assert turn_of(node.request(0)) == Served(kept, remote=True)
    assert node.used_bytes() == 1


def test_a_peer_preempts_a_lap_s_last_reserved_samples() -> None:
    node, peer = two_nodes_of_one_class(1)
    assert node.reserve(0) == 0
    peer.request(0)
    assert isinstance(node.reserve(0), Pending), "the other may have some left"
    ((_, promised),) = node.receive(given_by(peer.handle(taken(node)))) or ()
    assert promised == Served(0, preempted=True), "none is left, so the stat preempts the reservation"
    assert node.reserve(0) is None, "now this is known"
    pending = peer.request(0)
    assert isinstance(pending, Pending)
    handled = node.handle(taken(peer))
    assert (given_by(handled).samples, handled.preempted) == ((0,), (0,))
    assert [load.samples[0] for load in handled.loads] == [0]
    assert peer.receive(given_by(handled)) == ((pending.ticket, Served(0, remote=True)),)


def test_an_open_preempts_a_local_reservation() -> None:
    node, peer = two_nodes_of_one_class(1)
    assert node.reserve(0) == 0
    peer.request(0)
    pending = node.request(0)
    assert isinstance(pending, Pending)
    ((ticket, served),) = node.receive(given_by(peer.handle(taken(node)))) or ()
    assert served is not None
    assert (ticket, served.sample, served.preempted, served.is_demanded) == (pending.ticket, 0, True, True)


def test_a_take_counts_the_rounds_without_an_answer() -> None:
    samples = np.arange(3, dtype=np.int32)
    nodes = nodes_of(np.zeros(3, np.int32), samples.astype(np.int8), samples.reshape(3, 1), nodes=3)
    for node in nodes[:2]:
        node.request(0)
    pending = nodes[1].request(0)
    take = taken(nodes[1])
    assert take.home == 2
    last = given_by(nodes[2].handle(take))
    assert isinstance(nodes[0].request(0), Pending)
    asked = []
    for _ in range(2):
        take = taken(nodes[0])
        asked.append((take.home, take.attempt))
        assert nodes[0].receive(given_by(nodes[take.home].handle(take))) == ()
    take = taken(nodes[0])
    assert [*asked, (take.home, take.attempt)] == [(1, 0), (2, 0), (1, 1)], "the last is still under way"
    assert isinstance(pending, Pending)
    assert nodes[1].receive(last) == ((pending.ticket, Served(2, remote=True)),)
    ((_, served),) = nodes[0].receive(given_by(nodes[1].handle(take))) or ()
    assert served is not None
    assert (served.sample, served.remote) == (0, False)
    assert nodes[0].laps(samples).tolist() == [2, 2, 2], "all are done, and the next lap begins"


SAMPLES = 4_500


def three_nodes(**settings: Any) -> list[LocalFirst]:
    """Of five classes, in chunks that are dealt to the nodes in turn."""
    cells = np.random.default_rng(0).permutation(SAMPLES).astype(np.int32).reshape(-1, 9)
    part_of = parts_of_chunks(cells, [chunk % 3 for chunk in range(len(cells))])
    return nodes_of(np.arange(SAMPLES, dtype=np.int32) % 5, part_of, cells, nodes=3, **settings)


@pytest.mark.parametrize(("room", "a_message"), [(4 * 5, 4.5), (8 * 5, 6)])
def test_a_message_brings_several_samples_where_room_is_small(room: int, a_message: float) -> None:
    nodes = three_nodes(exchange=0.2, remote_memory_bytes=room)
    came = epoch_in_step(nodes, np.random.default_rng(0).permutation(SAMPLES).tolist(), stats=False)
    asked = sum(peer.number for node in nodes for peer in node._peers.values())
    assert came / asked > a_message


def epoch_in_step(nodes: list[LocalFirst], order: list[int], *, stats: bool) -> int:
    """Nodes ask in turn, and every message is answered at once; how many turns are of samples that were taken."""
    remote = 0
    for at, sample in enumerate(order):
        node = nodes[at % len(nodes)]
        if stats:
            reserved = node.reserve(sample)
            assert reserved is not None
            turn = node.take(
                answered(nodes, node)[reserved.ticket].sample if isinstance(reserved, Pending) else reserved
            )
        else:
            asked = node.request(sample)
            turn = answered(nodes, node)[asked.ticket] if isinstance(asked, Pending) else asked
        answered(nodes, node)
        remote += turn.remote
    return remote


@pytest.mark.parametrize(("exchange", "least", "most"), [(0.0, 0.005, 0.05), (0.2, 0.19, 0.22), (0.6, 0.57, 0.62)])
@pytest.mark.parametrize("stats", [False, True])
@pytest.mark.slow
def test_exchange_moves_the_requested_share(exchange: float, least: float, most: float, stats: bool) -> None:
    nodes, epochs = three_nodes(exchange=exchange), 4
    orders = [np.random.default_rng(epoch).permutation(SAMPLES).tolist() for epoch in range(epochs)]
    remote = sum(epoch_in_step(nodes, order, stats=stats) for order in orders)
    # Within 0.03 of it; without exchange, the difference of random orders: about a fiftieth.
    assert least <= remote / (SAMPLES * epochs) <= most
