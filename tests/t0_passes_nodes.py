"""Passes on several nodes: an epoch gets no sample twice, whatever was opened before it."""

import itertools
import random
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from job_store import JobStore, LostStore
from networks import Letter, Network, parts_of_chunks

from redoxfs.epochs import JobCounts, ToldTree
from redoxfs.node.cluster.resume import part_of
from redoxfs.protocol import (
    Delivered,
    LocalFirst,
    Message,
    Pending,
    PoolPolicy,
    Served,
    Take,
    answer_of,
    message_of,
    numbers_of,
)
from redoxfs.protocol.local_first.passes import MOST_OPENS, ROOM, HomePass, HomePasses
from redoxfs.protocol.local_first.passing import MOST_BEHIND
from redoxfs.protocol.turns import taken_back

CHUNK_SIZE = 8


class Job:
    """Nodes that read one dataset. Messages arrive at once, unless a test has a network.

    ``messages``  how many the nodes have sent
    """

    def __init__(
        self,
        nodes: int,
        class_of: Sequence[int],
        *,
        exchange: float = 0.0,
        resident: float = 0.3,
        trees: int = 1,
        seed: int = 0,
        chunk_size: int = CHUNK_SIZE,
    ) -> None:
        draw = random.Random(seed)
        self.class_of = np.array(class_of, np.int32)
        samples = len(self.class_of)
        in_order = draw.sample(range(samples), samples) + [-1] * (-samples % chunk_size)
        cells = np.array(in_order, np.int32).reshape(-1, chunk_size)
        self.cells = cells
        dealt = draw.sample(range(len(cells)), len(cells))
        self.part_of = parts_of_chunks(cells, [chunk % nodes for chunk in dealt])
        self.exchange, self.resident, self.trees, self.seed = exchange, resident, trees, seed
        self.nodes = [self.node(number, nodes) for number in range(nodes)]
        self.messages = 0
        self.most_messages = 1 << 30
        self.ranks: list[JobCounts] = []

    def node(self, number: int, nodes: int) -> LocalFirst:
        sizes = np.ones(len(self.class_of), np.int64)
        capacity = max(1, int(len(sizes) * self.resident / nodes))
        pool = PoolPolicy(
            self.cells,
            self.class_of,
            sizes,
            capacity_bytes=capacity,
            retained_bytes=capacity // 2,
            seed=self.seed + number,
            covered=self.part_of == number,
        )
        return LocalFirst(
            number,
            pool,
            self.class_of,
            self.part_of,
            sizes,
            nodes=nodes,
            remote_memory_bytes=max(8, len(sizes) // 20),
            exchange=self.exchange,
            seed=self.seed + number,
            tree_of=self.class_of % self.trees,
            trees=self.trees,
        )

    def open(self, number: int, path: int) -> int:
        """The sample that answers an open at a node."""
        node = self.nodes[number]
        turn = node.request(path)
        delivered = self.exchanged(node)
        served = delivered[turn.ticket] if isinstance(turn, Pending) else turn
        assert self.class_of[served.sample] == self.class_of[path]
        return int(served.sample)

    def exchanged(self, node: LocalFirst) -> dict[int, Served]:
        delivered: dict[int, Served] = {}
        while node.outbox:
            message = node.outbox.pop(0)
            assert isinstance(message, Take)
            self.messages += 1
            assert self.messages < self.most_messages
            home = self.nodes[message.home]
            handled = home.handle(message)
            assert handled.answer is not None
            # What the home asks for on behalf of this node.
            assert not self.exchanged(home)
            for ticket, served in node.receive(handled.answer) or ():
                assert served is not None
                delivered[ticket] = served
        node.unloaded.clear()
        return delivered

    def tell(self, number: int, tree: int | None = None, *, least: int = 0) -> None:
        node = self.nodes[number]
        assert node.begin_pass(tree, least)
        node.unloaded.clear()
        node.revoked.clear()

    def start(self, store: JobStore, *, says: bool = True) -> None:
        """A job starts, with a rank on each node, all of which may have said how often theirs was told."""
        self.ranks = [JobCounts(store, ToldTree("train", 0, "ab"), set()) for _ in self.nodes]
        for rank, node in zip(self.ranks, self.nodes, strict=True):
            if says:
                rank.say(node.pass_number(0))

    def tell_of(self, number: int, epoch: int | None) -> None:
        """The rank of a node tells of an epoch, which may have a number."""
        rank = self.ranks[number]
        self.tell(number, 0, least=rank.number_of(epoch))
        rank.say(self.nodes[number].pass_number(0))

    def restart(self, number: int) -> None:
        """Another process, which knows nothing, takes a node's place."""
        others = [node for other, node in enumerate(self.nodes) if other != number]
        begun = np.max([node.begun() for node in others], axis=0)
        new = self.nodes[number] = self.node(number, len(self.nodes))
        new.rejoin(begun)
        new.unloaded.clear()
        new.revoked.clear()
        for node in others:
            node.restarted(number)
            self.exchanged(node)

    def read(self, streams: Sequence[Sequence[tuple[int, int]]], *, apart: int = 0, told: bool = False) -> list[int]:
        """Each node opens its stream of epochs and paths, up to so many opens ``apart``; of negative epochs is only
        told. Returns how many samples came twice in each epoch from 1 on, beyond the paths that did."""
        draw = random.Random(self.seed)
        behind = [draw.randrange(apart + 1) for _ in streams]
        at, step, in_epoch = [0] * len(streams), 0, [-1 << 30] * len(streams)
        got: dict[int, list[int]] = {}
        asked: dict[int, list[int]] = {}
        while any(done < len(stream) for done, stream in zip(at, streams, strict=True)):
            for number, stream in enumerate(streams):
                while at[number] < len(stream) and at[number] <= step - behind[number]:
                    epoch, path = stream[at[number]]
                    at[number] += 1
                    if told and epoch != in_epoch[number]:
                        self.tell(number)
                    in_epoch[number] = epoch
                    got.setdefault(epoch, []).append(self.open(number, path))
                    asked.setdefault(epoch, []).append(path)
            step += 1
        return [twice(got[epoch]) - twice(asked[epoch]) for epoch in sorted(got) if epoch > 0]


def twice(numbers: Sequence[int]) -> int:
    return len(numbers) - len(set(numbers))


BATCH = 16

KINDS = (
    "whole",
    "peek",
    "a fifth first",
    "drop_last",
    "drop_last and a peek",
    "3 left out",
    "a tenth left out",
    "padded by 5",
    "broken off",
    "the same 7 before each",
    "in order",
)


def streams(kind: str, samples: int, nodes: int, epochs: int, seed: int) -> list[list[tuple[int, int]]]:
    """What each node opens: the number of the epoch, negative where it is none, and the path."""
    draw = random.Random(seed)
    each = samples // nodes
    of_nodes: list[list[tuple[int, int]]] = [[] for _ in range(nodes)]

    def add(epoch: int, order: Sequence[int], most: int = samples) -> None:
        for number, stream in enumerate(of_nodes):
            stream += [(epoch, path) for path in order[number::nodes][:most]]

    first = {"peek": 2 * BATCH, "drop_last and a peek": 2 * BATCH, "a fifth first": each // 5}
    if kind in first:
        add(-1, range(samples), first[kind])
    if kind == "broken off":
        add(1, draw.sample(range(samples), samples))
        add(-2, draw.sample(range(samples), samples), each // 2)
    for epoch in range(2, epochs + 2):
        if kind == "the same 7 before each":
            add(-epoch, range(samples), 7)
        order = list(range(samples)) if kind == "in order" else draw.sample(range(samples), samples)
        if kind == "padded by 5":
            order += order[:5]
        whole = each // BATCH * BATCH
        limits = {"drop_last": whole, "drop_last and a peek": whole, "3 left out": each - 1}
        limits["a tenth left out"] = each * 9 // 10
        add(epoch, order, limits.get(kind, samples))
    return of_nodes


def job_of(kind: str, nodes: int, seed: int, exchange: float = 0.0) -> Job:
    """With as many samples as nodes can share evenly, after the padding."""
    samples = 100 * nodes - (5 if kind == "padded by 5" else 0)
    return Job(nodes, [sample % 8 for sample in range(samples)], exchange=exchange, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "apart"), [(3, 0), (3, 8), (8, 8)])
@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_that_every_node_is_told_of_gets_no_sample_twice(kind: str, nodes: int, apart: int) -> None:
    """Also an epoch that was broken off, and whatever samples are exchanged."""
    job = job_of(kind, nodes, seed=nodes, exchange=0.2)
    assert not any(job.read(streams(kind, len(job.class_of), nodes, 3, seed=1), apart=apart, told=True))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_nodes_in_step_give_few_samples_twice_in_an_epoch_that_nobody_tells_of(kind: str) -> None:
    """Laps alone give up to a quarter of the samples twice, and it stays so."""
    job = job_of(kind, 3, seed=1)
    twice_in = job.read(streams(kind, len(job.class_of), 3, 6, seed=1))
    assert max(twice_in[:2]) <= 2
    assert max(twice_in[2:]) <= 1


def test_a_padded_epoch_is_one_lap_and_a_little_which_is_found_within_the_next() -> None:
    """Laps go on after paths came again, whichever paths these are."""
    for seed in range(1, 5):
        job = job_of("padded by 5", 3, seed=seed)
        assert not any(job.read(streams("padded by 5", len(job.class_of), 3, 4, seed=seed)))


def test_what_a_node_took_before_an_epoch_and_a_reader_got_in_it_comes_once() -> None:
    """Its home knows with which open it was asked for, and not with which it was used."""
    kind = "a tenth left out"
    for seed in range(10):
        job = job_of(kind, 3, seed=seed, exchange=0.1)
        assert not any(job.read(streams(kind, len(job.class_of), 3, 4, seed=seed)))


@pytest.mark.parametrize("seed", range(3))
def test_a_state_that_is_saved_early_in_a_told_epoch_has_no_sample_of_the_one_before(seed: int) -> None:
    """That one was broken off, and most classes were not asked for since."""
    nodes, classes, paths, opened, ahead = 2, 100, 1_000, 20, 8
    draw, class_of = random.Random(seed), [path % classes for path in range(paths)]
    job = Job(nodes, class_of, exchange=0.05, seed=seed)

    def read(job: Job, opens: int, streams: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
        got = [(node, job.open(node, own[turn])) for turn in range(opens) for node, own in enumerate(streams)]
        return [(sample, job.nodes[node].lap_of(sample)) for node, sample in got]

    for opens in (paths // nodes * 4 // 10, opened):
        order = draw.sample(range(paths), paths)
        streams = [order[node::nodes] for node in range(nodes)]
        for number in range(nodes):
            job.tell(number)
        got = read(job, opens, streams)
    # What workers have read ahead is taken back.
    ahead_of = np.array(read(job, ahead, [own[opened:] for own in streams]), np.int64)
    merged = job.nodes[0].merged([node.turns() for node in job.nodes])
    turns, again = taken_back(merged, job.nodes[0].units, ahead_of[:, 0], ahead_of[:, 1])
    assert not again
    other = Job(nodes, class_of, exchange=0.05, seed=seed + 1)
    for number, node in enumerate(other.nodes):
        node.restore(part_of(turns, number, nodes))
    got += read(other, paths // nodes - opened, [own[opened:] for own in streams])
    assert len({sample for sample, _ in got}) == len(got) == paths


@pytest.mark.parametrize("ahead", [0, 1, 5, 20])
def test_told_epochs_are_exact_after_a_node_was_replaced_by_one_that_knows_nothing(ahead: int) -> None:
    """It is told of the next epoch so many opens before the others, or with them."""
    nodes, paths = 3, 240
    job, draw = Job(nodes, [path % 4 for path in range(paths)], seed=1, exchange=0.2), random.Random(5)
    for epoch in range(6):
        order = draw.sample(range(paths), paths)
        own = [order[node::nodes] for node in range(nodes)]
        first = ahead if epoch == 3 else 0
        job.tell(0)
        got = [job.open(0, path) for path in own[0][:first]]
        for node in range(1, nodes):
            job.tell(node)
        for turn, paths_now in enumerate(zip(*own, strict=True)):
            for node, path in enumerate(paths_now):
                # The node that is replaced dies in the middle of an epoch.
                if node or (turn >= first and (epoch != 2 or turn < 40)):
                    got.append(job.open(node, path))
        assert len(got) == len(set(got)) == paths - 40 * (epoch == 2)
        if epoch == 2:
            job.restart(0)


def epochs_of_job(
    job: Job, draw: random.Random, store: JobStore, numbers: Sequence[int | None], *, says: bool = True, apart: int = 0
) -> list[int]:
    """A rank for each node, and an epoch for each number that its sampler says. Ranks come to it in any order, up to so
    many opens apart. Returns how many samples came twice in each epoch."""
    nodes = len(job.nodes)
    todo: list[list[tuple[int, int]]] = [[] for _ in range(nodes)]
    for epoch in range(len(numbers)):
        order = draw.sample(range(len(job.class_of)), len(job.class_of))
        for node, stream in enumerate(todo):
            stream += [(epoch, path) for path in (TELL, *order[node::nodes])]
    job.start(store, says=says)
    behind = [draw.randrange(apart + 1) for _ in todo]
    got: list[list[int]] = [[] for _ in numbers]
    for step in range(max(map(len, todo)) + apart):
        for node in draw.sample(range(nodes), nodes):
            if not 0 <= step - behind[node] < len(todo[node]):
                continue
            epoch, path = todo[node][step - behind[node]]
            if path == TELL:
                job.tell_of(node, numbers[epoch])
            else:
                got[epoch].append(job.open(node, path))
    assert {*map(len, got)} <= {len(job.class_of)}
    return [twice(samples) for samples in got]


@pytest.mark.parametrize("opened", [0, 6])
@pytest.mark.parametrize("often", [1, 3, 20])
@pytest.mark.parametrize(("numbers", "apart"), [((7, 8, 9), 0), ((7, 8, 9), 5), ((None,) * 3, 5)], ids=str)
def test_the_next_job_has_exact_epochs_after_one_that_died_between_two_nodes(
    numbers: Sequence[int | None], apart: int, often: int, opened: int
) -> None:
    """One node was told more often, with and without opens in the epoch that the others were not told of."""
    ahead, draw = often % 3, random.Random(often)
    job = Job(3, [path % 4 for path in range(240)], seed=often, exchange=0.2)
    assert not any(epochs_of_job(job, draw, JobStore(), [0, 1]))
    for _ in range(often):
        job.tell(ahead)
        for path in draw.sample(range(240), opened):
            job.open(ahead, path)
    for _ in range(2):
        assert not any(epochs_of_job(job, draw, JobStore(), numbers, apart=apart))


def test_a_node_that_knows_nothing_is_in_the_epoch_that_its_rank_says() -> None:
    """The first message that it hears is of a peer that is not told yet."""
    job, draw = Job(2, [path % 4 for path in range(120)], exchange=0.2), random.Random(3)
    for path in draw.sample(range(120), 60):
        job.open(path % 2, path)
    job.restart(0)
    job.start(JobStore())
    for _ in range(3):
        order = draw.sample(range(120), 120)
        job.tell_of(0, None)
        got = [job.open(0, path) for path in order[:20]]
        job.tell_of(1, None)
        got += [job.open(turn % 2, path) for turn, path in enumerate(order[20:])]
        assert not twice(got)


def test_nodes_whose_ranks_said_nothing_are_in_step_from_the_second_epoch_on() -> None:
    """The first rank tells before the others have said how often theirs was told. Without a store they never are."""
    draw = random.Random(1)
    job = Job(3, [path % 4 for path in range(240)], exchange=0.2)
    for _ in range(3):
        job.tell(1)
        assert not any(epochs_of_job(job, draw, JobStore(), range(4), says=False)[1:])
        job.tell(2)
        assert all(epochs_of_job(job, draw, LostStore(), range(4)))


def test_an_epoch_that_one_node_is_told_of_twice_leaves_no_trace() -> None:
    job, draw = Job(3, [path % 4 for path in range(240)], exchange=0.2), random.Random(2)
    job.start(JobStore())
    for epoch in range(4):
        order = draw.sample(range(240), 240)
        for node in draw.sample(range(3), 3):
            # As of a look at a batch, by the rank of that node alone.
            for _ in range(2 if node == epoch == 1 else 1):
                job.tell_of(node, epoch)
        got = [
            job.open(node, path)
            for paths in zip(*(order[node::3] for node in range(3)), strict=True)
            for node, path in enumerate(paths)
        ]
        assert (twice(got) > 0) == (epoch == 1)


@pytest.mark.parametrize("kind", ["whole", "in order"])
@pytest.mark.parametrize("shares", [(1, 1, 1), (1, 2, 5)])
def test_whole_epochs_are_laps_whatever_turns_nodes_take(kind: str, shares: tuple[int, ...]) -> None:
    """Nodes meet between epochs. Nothing is held back, so that an epoch's order has nothing of the last one's."""
    job, draw = Job(3, [path % 5 for path in range(160)], exchange=0.1), random.Random(3)
    for _ in range(4):
        order = list(range(160)) if kind == "in order" else draw.sample(range(160), 160)
        ends = [0, *(20 * sum(shares[: number + 1]) * 8 // sum(shares) for number in range(3))]
        turns = draw.sample([number for number in range(3) for _ in range(ends[number], ends[number + 1])], 160)
        of_nodes = [iter(order[begin:end]) for begin, end in itertools.pairwise(ends)]
        assert not twice([job.open(number, next(of_nodes[number])) for number in turns])
    assert not any(tree.holds for node in job.nodes for tree in node._passes.trees)


def test_uneven_nodes_in_any_turn_give_few_samples_twice() -> None:
    """A quarter is left out of each epoch, and nobody tells of it."""
    job, draw = Job(3, [path % 5 for path in range(240)]), random.Random(1)
    twice_in = []
    for _ in range(6):
        ends = [0, 20, 80, 180]
        order = draw.sample(range(240), 180)
        turns = draw.sample([number for number in range(3) for _ in range(ends[number], ends[number + 1])], 180)
        of_nodes = [iter(order[begin:end]) for begin, end in itertools.pairwise(ends)]
        twice_in.append(twice([job.open(number, next(of_nodes[number])) for number in turns]))
    assert max(twice_in) <= 3


def passes_of(*, holds: bool = True) -> tuple[HomePasses, HomePass]:
    """Of node 0 of three, with the first ten of twenty samples, all of one class."""
    own = np.arange(20) < 10
    passes = HomePasses(np.zeros(20, np.int32), own, np.zeros(20, np.int64), 1, node=0, nodes=3)
    if holds:
        passes.hold(passes.trees[0])
    return passes, passes.trees[0]


def held(passes: HomePasses) -> list[int]:
    return [*map(int, np.flatnonzero(passes.held_array))]


def test_what_left_for_a_node_is_held_back_until_its_run_began_later() -> None:
    passes, tree = passes_of()
    for sample, node, turn in ((1, 1, 5), (2, 2, 5), (3, 1, 7), (4, 0, 1)):
        passes.leave(tree, sample, node, turn)
    passes.heard(tree, 1, 5)
    assert held(passes) == [2, 3, 4]
    # It leaves again, for another.
    passes.leave(tree, 3, 2, 9)
    passes.heard(tree, 1, 100)
    assert held(passes) == [2, 3, 4]
    assert passes.oldest(tree, np.arange(10), (2,)) == (4, 1)
    passes.heard(tree, 2, 9)
    assert held(passes) == [4]
    assert passes.held_of[0] == 1


def test_finding_what_left_longest_ago_makes_no_object_per_sample() -> None:
    """Nor does it sort them: a class may have hundreds of thousands."""
    samples = 20_000
    every = np.arange(samples)
    passes = HomePasses(np.zeros(samples, np.int32), every >= 0, np.zeros(samples, np.int64), 1, node=0, nodes=2)
    tree = passes.trees[0]
    passes.hold(tree)
    order = random.Random(1).sample(range(samples), samples)
    for turn, sample in enumerate(order):
        passes.leave(tree, sample, 1, turn)
    tracemalloc.start()
    try:
        found = passes.oldest(tree, every, frozenset(order[:3]))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == (order[3], 1)
    # Two columns of numbers, and some room.
    assert peak_bytes < 20 * samples


@given(seed=st.integers(0, 1 << 32), events=st.integers(0, 60))
def test_what_left_before_anything_was_held_back_is_known(seed: int, events: int) -> None:
    draw = random.Random(seed)
    both = [passes_of(holds=holds) for holds in (True, False)]
    turns, begins = [0, draw.randrange(3), draw.randrange(90)], [0, 0, 0]
    for _ in range(events):
        node, event, sample, path = draw.randrange(3), draw.randrange(5), draw.randrange(10), draw.randrange(20)
        turns[node] += node > 0
        begins[node] = draw.randint(begins[node], turns[node])
        for passes, tree in both:
            if event < 3:
                since = passes.open(tree, path) if node == 0 else 0
                if since > tree.since:
                    passes.move(tree, 0, since)
                passes.leave(tree, sample, node, tree.turn if node == 0 else turns[node])
            elif node:
                passes.heard(tree, node, begins[node])
                if event == 4:
                    passes.forget(node)
        if event == 4 and node:
            turns[node] = begins[node] = 0
    (first, tree), (second, late) = both
    second.hold(late)
    assert held(second) == held(first)
    assert second.held_of[0] == first.held_of[0]
    order: list[int] = []
    while (found := first.oldest(tree, np.arange(10), order)) != (-1, 0):
        assert second.oldest(late, np.arange(10), order) == found
        order.append(found[0])
    for node in range(3):
        begins[node] = max(turns[node], begins[node])
        for passes, each in both:
            if node and begins[node] > each.log_of(node).since:
                passes.heard(each, node, begins[node])
        assert held(second) == held(first)


def test_a_peer_that_numbers_its_opens_anew_is_understood() -> None:
    passes, tree = passes_of()
    passes.leave(tree, 1, 1, MOST_OPENS - 8)
    passes.heard(tree, 1, MOST_OPENS - 10)
    passes.leave(tree, 2, 1, MOST_OPENS - 2)
    # Its open before the next has the number 10 now, and 2 was given with its eighth.
    passes.heard(tree, 1, 4)
    assert held(passes) == [2]
    passes.heard(tree, 1, 8)
    assert held(passes) == []


def test_a_node_that_numbers_its_opens_anew_goes_on() -> None:
    passes, tree = passes_of()
    tree.turn = MOST_OPENS - 3
    for sample in range(3):
        passes.leave(tree, sample, 0, tree.turn)
        passes.leave(tree, 5 + sample, 1, 7 + sample)
        since = passes.open(tree, sample)
        passes.move(tree, 0, max(since, MOST_OPENS - 2))
    before = held(passes)
    passes.open(tree, 0)
    assert tree.turn < 10
    assert held(passes) == before
    members = np.arange(10)
    assert passes.oldest(tree, members, ())[0] == 5
    passes.heard(tree, 1, 8)
    assert held(passes) == sorted(sample for sample in before if sample not in (5, 6))


def test_a_run_begins_for_peers_before_what_they_gave_and_a_reader_got_in_it() -> None:
    _, tree = passes_of()
    for turn, asked_at in ((12, 9), (14, 10), (15, 8), (21, 20)):
        tree.turn = turn
        tree.use(asked_at)
    # As run by run begins: before all, between the uses, and after them.
    for since, told in ((7, 7), (11, 7), (14, 7), (15, 15), (20, 19), (21, 21)):
        tree.move(since)
        assert tree.told == told
    assert not tree.uses


def test_what_left_keeps_its_order_when_the_clock_begins_again() -> None:
    passes, tree = passes_of()
    tree.clock = MOST_OPENS - 4
    for sample in (7, 1, 7, 3, 9, 2):
        passes.leave(tree, sample, sample % 2, sample)
    assert tree.clock < 10
    order: list[int] = []
    while len(order) < 5:
        order.append(passes.oldest(tree, np.arange(10), order)[0])
    assert order == [1, 7, 3, 9, 2]
    passes.heard(tree, 1, 7)
    assert held(passes) == [2, 9]


def test_what_left_for_a_lost_peer_is_this_nodes() -> None:
    passes, tree = passes_of()
    passes.open(tree, 11)
    passes.leave(tree, 1, 1, 500)
    passes.forget(1)
    assert held(passes) == [1]
    passes.move(tree, 0, 1)
    assert held(passes) == []


def test_a_log_grows_and_drops_what_left_again() -> None:
    passes, tree = passes_of()
    for turn in range(5 * ROOM):
        passes.leave(tree, turn % 3, 1, turn)
    assert len(tree.log_of(1).left) == ROOM
    assert held(passes) == [0, 1, 2]


def test_an_epoch_of_one_tree_is_none_of_another() -> None:
    job = Job(3, [draw % 4 for draw in range(240)], trees=2)
    train, val = ([path for path in range(240) if path % 2 == tree] for tree in (0, 1))
    for _ in range(3):
        for number in range(3):
            job.tell(number, 0)
        # Half of another tree before, in the middle and after.
        got = [job.open(path % 3, path) for path in val[:40]]
        first = [job.open(path % 3, path) for path in random.Random(1).sample(train, 120)[:60]]
        assert not twice(first)
        got += [job.open(path % 3, path) for path in val[40:]]
        assert not twice(got)


@pytest.mark.parametrize("first", [0, 1])
def test_what_readers_have_reserved_comes_in_the_epochs_of_other_nodes_as_well(first: int) -> None:
    """Node 0 has all samples. Its readers ask for all sizes in the next epoch, or in the one before: node 1 is told of
    the next one first."""
    job = Job(2, [0] * 4)
    job.most_messages = 100
    for number in range(2):
        job.tell(number)
    got = [job.open(0, path) for path in range(2)] if not first else []
    job.tell(first)
    reserved = [job.nodes[0].reserve(path) for path in range(4)]
    got += [job.open(1, path) for path in (range(2) if first else range(2, 4))]
    if first:
        job.tell(0)
        got += [job.open(0, path) for path in range(2, 4)]
    assert sorted(got) == [0, 1, 2, 3]
    assert sorted(map(str, reserved)) == ["0", "1", "2", "3"]


def test_a_size_from_before_an_epoch_is_of_no_sample_that_came_in_it_at_another_node() -> None:
    """Node 0 has all samples. Node 1 is told of the epoch before it, and a program lists the files of node 0."""
    job = Job(2, [0] * 4)
    node = job.nodes[0]
    for number in (0, 1, 1):
        job.tell(number)
    got = [job.open(1, path) for path in range(2)]
    reserved = [node.reserve(path) for path in range(4)]
    assert node.begin_pass(None)
    assert sorted(node.revoked) == sorted(got)
    assert not node._late, "one that continues has no empty list, and others in another order for it"
    for path in range(2, 4):
        sample = reserved[path]
        assert isinstance(sample, int)
        got.append(job.open(0, path) if sample in node.revoked else node.take(sample, path).sample)
    assert sorted(got) == [0, 1, 2, 3]


def test_one_node_may_be_told_alone_for_ever() -> None:
    """As of a validation that the first rank reads. What others remember of its epochs has a bound."""
    job = Job(3, [path % 4 for path in range(120)])
    for epoch in range(2 * MOST_BEHIND):
        job.tell(0)
        assert not twice([job.open(0, path) for path in random.Random(epoch).sample(range(120), 120)])
    for node in job.nodes[1:]:
        given = node.state().arrays["pass.ahead"]
        assert 0 < len(given) <= MOST_BEHIND * 40


@pytest.mark.parametrize("exchange", [0, 0.2])
@pytest.mark.parametrize("nodes", [3, 4, 8])
def test_an_open_that_nobody_in_reach_has_an_allowed_sample_for_is_answered_soon(nodes: int, exchange: float) -> None:
    """Once a node is cut off, the others open more paths in an epoch than they have samples."""
    samples, last = 10 * nodes, nodes - 1
    job = Job(nodes, [0] * samples, exchange=exchange)
    job.read(streams("whole", samples, nodes, 2, seed=1))
    for number, node in enumerate(job.nodes[:last]):
        assert not node.lost(last)
        assert not job.nodes[last].lost(number)
    job.most_messages = job.messages + 4 * samples * 2 * nodes
    job.read(streams("whole", samples, nodes, 4, seed=2))


TELL = -1
"""In place of a path: the epoch begins."""

CUT = -2
"""In place of a path: from now on, the node and the others cannot reach each other."""


class Crew:
    """Workers of nodes on an unreliable network, each of which opens one path at a time, and may stat it before."""

    def __init__(self, job: Job, draw: random.Random) -> None:
        self.job, self.draw, self.network = job, draw, Network(draw)
        self.lost: int | None = None
        self.given_up = 0
        self.got: dict[int, list[int]] = {}
        self.paths: dict[tuple[int, int], int] = {}

    def run(self, todo: Sequence[Sequence[tuple[int, int]]], *, workers: int, stats: float, told: bool) -> None:
        """Each node opens its stream, with so many workers. An epoch begins at a node when all of the one before is
        through there."""
        nodes = self.job.nodes
        left = [list(stream) for stream in todo]
        in_epoch = [0] * len(nodes)
        waiting: dict[tuple[int, int], int] = {}
        busy = [0] * len(nodes)
        for _ in range(400 * (10 + sum(map(len, left)))):
            ready = [
                number
                for number, stream in enumerate(left)
                if stream and busy[number] < workers and (stream[0][0] == in_epoch[number] or not busy[number])
            ]
            letters = len(self.network.under_way)
            if not ready and not waiting:
                return
            if not ready and not letters and not self.network.unanswered:
                break
            at = self.draw.randrange(len(ready) + letters + len(self.network.unanswered))
            if at < len(ready):
                number = ready[at]
                epoch, path = left[number].pop(0)
                in_epoch[number] = epoch
                if path == TELL:
                    if told:
                        self.job.tell_of(number, epoch)
                    continue
                if path == CUT:
                    self.cut(number, waiting)
                else:
                    self.open(number, path, epoch, waiting, stats)
            elif at < len(ready) + letters:
                self.arrive(at - len(ready), waiting)
            elif self.network.unanswered:
                self.network.send_again()
            self.give_up_hopeless(waiting)
            for number, node in enumerate(nodes):
                self.network.send(number, node)
                busy[number] = sum(at == number for at, _ in waiting)
                node.unloaded.clear()
                node.revoked.clear()
        pytest.fail(f"stuck: {waiting}")

    def give_up_hopeless(self, waiting: dict[tuple[int, int], int]) -> None:
        """No open waits for a class of which no node in reach has samples."""
        if self.lost is None:
            return
        for number, ticket in [*waiting]:
            is_of_class = self.job.class_of == self.job.class_of[self.paths[number, ticket]]
            if not (is_of_class & ((self.job.part_of == self.lost) == (number == self.lost))).any():
                self.job.nodes[number].cancel(ticket)
                del waiting[number, ticket]
                self.given_up += 1

    def open(self, number: int, path: int, epoch: int, waiting: dict[tuple[int, int], int], stats: float) -> None:
        node = self.job.nodes[number]
        if self.draw.random() < stats:
            chosen = node.reserve(path)
            if isinstance(chosen, Pending):
                node.cancel(chosen.ticket)
            elif chosen is not None:
                if self.draw.random() < 0.5:
                    self.note(epoch, path, node.take(chosen, path).sample)
                    return
                node.put_back(chosen)
        turn = node.request(path)
        if isinstance(turn, Pending):
            waiting[number, turn.ticket] = epoch
            self.paths[number, turn.ticket] = path
        else:
            self.note(epoch, path, turn.sample)

    def cut(self, lost: int, waiting: dict[tuple[int, int], int]) -> None:
        """A node is lost to the others, and they to it, with all that was under way between them."""
        self.lost = lost
        self.network.under_way = [each for each in self.network.under_way if not is_of(lost, each.message)]
        unanswered = self.network.unanswered
        self.network.unanswered = {key: each for key, each in unanswered.items() if not is_of(lost, each)}
        for number, node in enumerate(self.job.nodes):
            for other in range(len(self.job.nodes)):
                if number != other and lost in (number, other):
                    self.deliver(number, node.lost(other), waiting)

    def note(self, epoch: int, path: int, sample: int) -> None:
        assert self.job.class_of[sample] == self.job.class_of[path]
        self.got.setdefault(epoch, []).append(sample)

    def arrive(self, at: int, waiting: dict[tuple[int, int], int]) -> None:
        letter = self.network.take(at)
        if letter is None:
            return
        take = message_of(numbers_of(letter.message))
        assert isinstance(take, Take)
        if letter.answer is None:
            handled = self.job.nodes[take.home].handle(take)
            if handled.answer is not None:
                self.network.post(Letter(take, handled.answer))
            return
        node = self.job.nodes[take.requester]
        delivered = node.receive(answer_of(numbers_of(letter.answer)))
        self.network.note_answered(take)
        self.deliver(take.requester, delivered or (), waiting)

    def deliver(self, number: int, delivered: Sequence[Delivered], waiting: dict[tuple[int, int], int]) -> None:
        for ticket, served in delivered:
            assert served is not None
            self.note(waiting.pop((number, ticket)), self.paths[number, ticket], served.sample)


def is_of(number: int, message: Message) -> bool:
    assert isinstance(message, Take)
    return number in (message.requester, message.home)


@given(
    seed=st.integers(0, 1 << 32),
    nodes=st.integers(2, 4),
    samples=st.integers(1, 60),
    classes=st.integers(1, 6),
    exchange=st.sampled_from([0, 0.3, 1]),
    workers=st.integers(1, 3),
    stats=st.sampled_from([0, 0.3]),
    told=st.booleans(),
    ahead=st.sampled_from([0, 0, 1, 12]),
)
# The last samples of a class are under way from one node to the other, which needs fewer.
@example(seed=35, nodes=2, samples=35, classes=2, exchange=1, workers=1, stats=0, told=True, ahead=0)
# They are under way to a node that is in the next epoch when they come.
@example(seed=1319, nodes=4, samples=23, classes=3, exchange=1, workers=1, stats=0, told=True, ahead=0)
@pytest.mark.slow
def test_nodes_on_any_network_are_never_stuck_and_told_epochs_are_exact(
    seed: int,
    nodes: int,
    samples: int,
    classes: int,
    exchange: float,
    workers: int,
    stats: float,
    told: bool,
    ahead: int,
) -> None:
    """Also after one that was told so often more, as jobs died."""
    crew, todo = crew_of(seed, nodes, samples, classes, exchange)
    for _ in range(ahead):
        crew.job.tell(seed % nodes)
    crew.job.start(JobStore())
    crew.run(todo, workers=workers, stats=stats, told=told)
    assert sum(map(len, crew.got.values())) == sum(map(len, todo)) - 3 * nodes
    if told:
        assert not any(twice(got) for got in crew.got.values())


@given(
    seed=st.integers(0, 1 << 32),
    nodes=st.integers(2, 4),
    samples=st.integers(1, 60),
    classes=st.integers(1, 6),
    exchange=st.sampled_from([0, 0.3, 1]),
    workers=st.integers(1, 3),
    stats=st.sampled_from([0, 0.3]),
    told=st.booleans(),
    whole=st.booleans(),
    after=st.integers(0, 100),
)
# The last sample in reach had its turn in the epoch of one node, and not yet in that of the other, which has it.
@example(seed=0, nodes=3, samples=13, classes=3, exchange=0, workers=1, stats=0, told=True, whole=False, after=0)
# A sample that a lap was thought to leave out was left in it, and came into it once more.
@example(
    seed=120487,
    nodes=3,
    samples=39,
    classes=4,
    exchange=0.3,
    workers=2,
    stats=0.3,
    told=False,
    whole=False,
    after=3,
)
@pytest.mark.slow
def test_nodes_are_never_stuck_when_one_of_them_is_cut_off(
    seed: int,
    nodes: int,
    samples: int,
    classes: int,
    exchange: float,
    workers: int,
    stats: float,
    told: bool,
    whole: bool,
    after: int,
) -> None:
    crew, todo = crew_of(seed, nodes, samples, classes, exchange, whole=whole)
    opens = sum(map(len, todo)) - 3 * nodes
    epoch = todo[-1][after][0] if after < len(todo[-1]) else 3
    todo[-1].insert(after, (epoch, CUT))
    crew.job.start(JobStore())
    crew.run(todo, workers=workers, stats=stats, told=told)
    assert sum(map(len, crew.got.values())) + crew.given_up == opens


def crew_of(
    seed: int, nodes: int, samples: int, classes: int, exchange: float, *, whole: bool = False
) -> tuple[Crew, list[list[tuple[int, int]]]]:
    """Nodes, and what they open in three epochs: of all paths a part, or all for ``whole``."""
    draw = random.Random(seed)
    job = Job(nodes, [draw.randrange(classes) for _ in range(samples)], exchange=exchange, seed=seed, chunk_size=4)
    todo: list[list[tuple[int, int]]] = [[] for _ in range(nodes)]
    for epoch in range(1, 4):
        order = draw.sample(range(samples), samples)
        order = order if whole else order[: draw.randint(0, samples)]
        for number in range(nodes):
            # A node is told of an epoch of which it opens nothing, too.
            todo[number] += [(epoch, path) for path in (TELL, *order[number::nodes])]
    return Crew(job, draw), todo
