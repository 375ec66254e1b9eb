"""The pool on several nodes over an unreliable network: laps stay exact."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import Letter, Network, Worker, parts_of_chunks, pool_node, random_cells

from redoxfs.protocol import Given, LocalFirst, Pending, Served, SharedPolicy, Take
from redoxfs.protocol.events import Answer, Handled, Message
from redoxfs.protocol.local_first import BATCH

STEPS_PER_TURN = 300
"""Far more than any run takes: a run that takes more is stuck."""
Int32 = npt.NDArray[np.int32]


def nodes_of(
    class_of: Int32,
    part_of: npt.NDArray[np.int8],
    cells: Int32,
    *,
    nodes: int,
    sizes: Sequence[int] | None = None,
    resident: int = 9,
    retained: float = 0,
    remote_memory_bytes: int = 1 << 30,
    exchange: float = 0,
    seed: int = 0,
) -> list[LocalFirst]:
    """Nodes with a pool each. Without ``sizes`` each sample takes one byte."""
    sample_bytes = np.ones(len(class_of), np.int64) if sizes is None else np.array(sizes, np.int64)
    return [
        pool_node(
            node,
            nodes,
            cells=cells,
            class_of=class_of,
            part_of=part_of,
            sample_bytes=sample_bytes,
            resident=resident,
            retained=retained,
            remote_memory_bytes=remote_memory_bytes,
            exchange=exchange,
            seed=seed + node,
        )
        for node in range(nodes)
    ]


@dataclass(slots=True, eq=False, kw_only=True)
class Stater(Worker):
    """A worker that stats some files before it opens them.

    ``stats``   the share of its opens before which it stats the file
    ``sleeps``  it neither opens a file that it has stat'ed, nor undoes that, before all others are through
    """

    stats: float = 0
    sleeps: bool = False


@dataclass(slots=True)
class Here:
    """The model of a node: its reserved samples, and those that came there, with the bytes that count."""

    reserved: dict[int, tuple[Stater, bool]] = field(default_factory=dict)
    came: dict[int, int] = field(default_factory=dict)
    forgiven_bytes: int = 0


class Pools:
    """Nodes, workers that ask them over a network, and the model of what each node holds."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int,
        samples: int,
        classes: int,
        resident: int = 9,
        retained: float = 0,
        remote_memory_bytes: int = 1 << 30,
        exchange: float = 0,
    ) -> None:
        self.random = random.Random(seed)
        self.class_of = np.array([self.random.randrange(classes) for _ in range(samples)], np.int32)
        self.of_class = [np.flatnonzero(self.class_of == cls).tolist() for cls in range(classes)]
        cells = random_cells(self.random, samples)
        self.part_of = parts_of_chunks(cells, [self.random.randrange(nodes) for _ in cells])
        self.sizes = [self.random.randint(1, 3) for _ in range(samples)]
        self.limit_bytes = remote_memory_bytes
        self.nodes = nodes_of(
            self.class_of,
            self.part_of,
            cells,
            nodes=nodes,
            sizes=self.sizes,
            resident=resident,
            retained=retained,
            remote_memory_bytes=remote_memory_bytes,
            exchange=exchange,
            seed=seed,
        )
        self.here = [Here() for _ in self.nodes]
        self.network = Network(self.random)
        self.waiting: dict[tuple[int, int], Stater] = {}
        self.turns: Counter[int] = Counter()
        self.loads: Counter[int] = Counter()

    def run(self, requests: Sequence[Sequence[int]], *, workers: int, stats: float = 0, cancels: float = 0) -> None:
        """Node i's workers make requests[i] in turns. The share ``cancels`` of the pending ones give up."""
        crew = [
            Stater(node=node, todo=list(own[first::workers]), stats=stats, sleeps=stats > 0 and first == 0)
            for node, own in enumerate(requests)
            for first in range(workers)
        ]
        most = STEPS_PER_TURN * (10 + sum(map(len, requests)))
        for _ in range(most):
            asleep = [worker for worker in crew if worker.sleeps and worker.reserved is not None]
            ready = [w for w in crew if w.ticket is None and not w.is_through and w not in asleep]
            if not ready and not self.waiting:
                ready = asleep
            if cancels and self.waiting and self.random.random() < cancels:
                self.cancel()
            letters = len(self.network.under_way)
            at = self.random.randrange(len(ready) + letters + len(self.network.unanswered) + 1)
            if at < len(ready):
                self.work(ready[at])
            elif at < len(ready) + letters:
                self.arrive(at - len(ready))
            elif self.network.unanswered:
                self.network.send_again()
            elif all(worker.is_through for worker in crew):
                return
        pytest.fail(f"stuck after {most} steps: {[worker for worker in crew if not worker.is_through]}")

    def work(self, worker: Stater) -> None:
        """One step of a worker that waits for nothing."""
        node = self.nodes[worker.node]
        if worker.reserved is not None:
            reserved, worker.reserved = worker.reserved, None
            _, came = self.here[worker.node].reserved.pop(reserved)
            if self.random.random() < 0.3:
                kept = node.put_back(reserved)
                if came:
                    self.here[worker.node].came[reserved] = self.sizes[reserved] if kept else 0
                self.check(worker.node)
                return
            served = node.take(reserved)
            assert (served.sample, served.preempted, served.remote) == (reserved, False, came)
            self.turn(worker, served)
        elif worker.asked < 0:
            worker.asked = worker.todo.pop(0)
            if self.random.random() < worker.stats:
                chosen = node.reserve(worker.asked)
                if isinstance(chosen, Pending):
                    self.wait(worker, chosen, reserves=True)
                elif chosen is not None:
                    self.note_reserved(worker, chosen, came=node.is_taken(chosen))
        else:
            turn = node.request(worker.asked)
            if isinstance(turn, Pending):
                self.wait(worker, turn, reserves=False)
            else:
                self.serve(worker, turn)
        self.network.send(worker.node, self.nodes[worker.node])
        self.check(worker.node)

    def wait(self, worker: Stater, pending: Pending, *, reserves: bool) -> None:
        worker.ticket, worker.reserves = pending.ticket, reserves
        self.waiting[worker.node, pending.ticket] = worker

    def cancel(self) -> None:
        (node, ticket), worker = self.random.choice(list(self.waiting.items()))
        del self.waiting[node, ticket]
        self.nodes[node].cancel(ticket)
        worker.ticket, worker.asked = None, -1
        # A sample that comes for it is kept, even if there is no room for it.
        self.here[node].forgiven_bytes += max(self.sizes)

    def arrive(self, at: int) -> None:
        letter = self.network.take(at)
        if letter is None:
            return
        assert isinstance(letter.message, Take)
        if letter.answer is None:
            self.ask(letter.message)
        else:
            self.answer(letter.message, letter.answer)

    def ask(self, take: Take) -> None:
        handled = self.nodes[take.home].handle(take)
        self.network.send(take.home, self.nodes[take.home])
        if handled.answer is None:
            assert not self.network.is_unanswered(take)
            return
        here = self.here[take.home]
        if handled.repeated:
            assert not handled.loads
            assert not handled.preempted
        else:
            self.count_loads(take.home, handled.loads)
            for sample in handled.kept:
                assert self.nodes[take.home]._policy.is_resident(sample)
            assert set(handled.kept) <= set(handled.answer.samples)
            for sample in handled.answer.samples:
                assert (sample in handled.preempted) == (sample in here.reserved)
                self.revoke(take.home, sample)
                here.came.pop(sample, None)
            extra = handled.answer.samples[1:]
            assert sum(self.sizes[sample] for sample in extra) <= take.room_bytes
        self.network.post(Letter(take, handled.answer))
        self.check(take.home)

    def answer(self, take: Take, answer: Answer) -> None:
        delivered = self.nodes[take.requester].receive(answer)
        assert (delivered is not None) == self.network.note_answered(take)
        self.network.send(take.requester, self.nodes[take.requester])
        if delivered is None:
            return
        came = self.here[take.requester].came
        for sample in answer.samples:
            assert sample not in came
            came[sample] = self.sizes[sample]
        for ticket, served in delivered:
            worker = self.waiting.pop((take.requester, ticket))
            worker.ticket = None
            assert served is not None
            if not worker.reserves:
                self.serve(worker, served)
                continue
            assert served.loads == ()
            self.note_reserved(worker, served.sample, came=served.remote, preempted=served.preempted)
        self.check(take.requester)

    def note_reserved(self, worker: Stater, sample: int, *, came: bool, preempted: bool = False) -> None:
        here = self.here[worker.node]
        assert self.class_of[sample] == self.class_of[worker.asked]
        if preempted:
            assert here.reserved[sample][1] == came
            self.revoke(worker.node, sample)
        else:
            assert (here.came.pop(sample, None) is not None) == came
        assert not any(sample in other.reserved for other in self.here), "reserved once"
        here.reserved[sample] = (worker, came)
        worker.reserved = sample

    def revoke(self, node: int, sample: int) -> None:
        revoked, _ = self.here[node].reserved.pop(sample, (None, False))
        if revoked is not None:
            revoked.reserved = None

    def serve(self, worker: Stater, served: Served) -> None:
        here = self.here[worker.node]
        assert served.preempted == (served.sample in here.reserved)
        came = here.reserved[served.sample][1] if served.preempted else here.came.pop(served.sample, None) is not None
        assert served.remote == came
        self.revoke(worker.node, served.sample)
        self.turn(worker, served)

    def turn(self, worker: Stater, served: Served) -> None:
        cls = self.class_of[worker.asked]
        assert self.class_of[served.sample] == cls
        self.turns[served.sample] += 1
        of_class = [self.turns[sample] for sample in self.of_class[cls]]
        assert max(of_class) - min(of_class) <= 1, "no sample has its next turn before all others had theirs"
        self.count_loads(worker.node, served.loads)
        worker.asked = -1

    def count_loads(self, node: int, loads: Sequence[tuple[int, tuple[int, ...]]]) -> None:
        for chunk, samples in loads:
            assert all(self.nodes[0].chunk_of(sample) == chunk for sample in samples)
            assert all(self.part_of[sample] == node for sample in samples)
            self.loads.update(samples)

    def check(self, number: int) -> None:
        node, here = self.nodes[number], self.here[number]
        came_bytes = sum(here.came.values())
        assert came_bytes <= node.used_bytes() <= self.limit_bytes + here.forgiven_bytes
        assert node.held() == len(here.came)
        assert all(node.keeps(sample) == (size > 0) for sample, size in here.came.items())
        if not self.network.unanswered:
            assert node.used_bytes() == came_bytes

    def epochs(self, count: int, *, workers: int, stats: float) -> None:
        """Nodes that meet between epochs, each of which serves every sample once."""
        samples, nodes = len(self.class_of), len(self.nodes)
        for epoch in range(1, count + 1):
            order = self.random.sample(range(samples), samples)
            self.run([order[node::nodes] for node in range(nodes)], workers=workers, stats=stats)
            assert [self.turns[sample] for sample in range(samples)] == [epoch] * samples

    def unevenly(self, requests: int, *, workers: int, stats: float, cancels: float) -> None:
        """One node may ask for much more than the others, and only for some classes."""
        asked: list[list[int]] = [[] for _ in self.nodes]
        for _ in range(requests):
            node = min(self.random.randrange(4), len(asked) - 1)
            asked[node].append(self.random.randrange(len(self.class_of)))
        self.run(asked, workers=workers, stats=stats, cancels=cancels)
        assert cancels or self.turns.total() == requests


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
def test_a_thousand_seeds_of_small_networks() -> None:
    for seed in range(1_000):
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


@pytest.mark.parametrize(("room", "a_message"), [(4 * 5, 4.5), (8 * 5, 6)])
def test_a_message_brings_several_samples_where_room_is_small(room: int, a_message: float) -> None:
    samples = 4_500
    class_of = np.arange(samples, dtype=np.int32) % 5
    cells = np.random.default_rng(0).permutation(samples).astype(np.int32).reshape(-1, 9)
    part_of = np.empty(samples, np.int8)
    part_of[cells] = (np.arange(len(cells)) % 3)[:, None]
    nodes = nodes_of(class_of, part_of, cells, nodes=3, exchange=0.2, remote_memory_bytes=room)
    came = epoch_in_step(nodes, np.random.default_rng(0).permutation(samples).tolist(), stats=False)
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


def answered(nodes: list[LocalFirst], node: LocalFirst) -> dict[int, Served]:
    """Answer every message of ``node`` at once."""
    delivered: dict[int, Served] = {}
    while node.outbox:
        message: Message = node.outbox.pop()
        answer = nodes[message.home].handle(message).answer
        assert answer is not None
        for ticket, turn in node.receive(answer) or ():
            assert turn is not None
            delivered[ticket] = turn
    return delivered


@pytest.mark.parametrize(("exchange", "least", "most"), [(0.0, 0.005, 0.05), (0.2, 0.19, 0.22), (0.6, 0.57, 0.62)])
@pytest.mark.parametrize("stats", [False, True])
@pytest.mark.slow
def test_exchange_moves_the_requested_share(exchange: float, least: float, most: float, stats: bool) -> None:
    samples, epochs = 4_500, 4
    class_of = np.arange(samples, dtype=np.int32) % 5
    cells = np.random.default_rng(0).permutation(samples).astype(np.int32).reshape(-1, 9)
    part_of = np.empty(samples, np.int8)
    part_of[cells] = (np.arange(len(cells)) % 3)[:, None]
    nodes = nodes_of(class_of, part_of, cells, nodes=3, exchange=exchange)
    orders = [np.random.default_rng(epoch).permutation(samples).tolist() for epoch in range(epochs)]
    remote = sum(epoch_in_step(nodes, order, stats=stats) for order in orders)
    # Within 0.03 of it; without exchange, the difference of random orders: about a fiftieth.
    assert least <= remote / (samples * epochs) <= most
