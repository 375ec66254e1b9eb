"""Nodes that all end within an epoch and resume from what each of them saved: every sample still comes once."""

import random
from collections import Counter, deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import CHUNK_SIZE, Letter, Network, parts_of_chunks, pool_node, random_cells

from redoxfs.protocol import (
    Pending,
    PoolPolicy,
    Served,
    SharedPolicy,
    SlotNode,
    SlotPolicy,
    homes_by_vc,
)
from redoxfs.protocol.turns import LAST_LAP, Ledger, Turns, merged

pytestmark = pytest.mark.slow

STEPS_PER_REQUEST = 200
"""Far more than any request takes: one that takes more is stuck."""

Numbers = npt.NDArray[np.integer]


class Pools:
    """The pool on several nodes. `unit_of` is the class of each sample."""

    def __init__(self, draw: random.Random, samples: int) -> None:
        self.samples = samples
        # Some classes are smaller than there are nodes, so that a node may have none of their samples.
        classes = draw.randint(1, max(1, samples // 3))
        self.unit_of = np.array([draw.randrange(classes) for _ in range(samples)], np.int32)
        self.retained = draw.choice([0, 0.5, 1])
        self.exchange = draw.choice([0.0, 0.0, 0.4, 1.0])
        self.cells = random_cells(draw, samples)
        self.homes = [draw.random() for _ in self.cells]

    def node(self, node: int, nodes: int) -> SharedPolicy:
        return pool_node(
            node,
            nodes,
            cells=self.cells,
            class_of=self.unit_of,
            part_of=parts_of_chunks(self.cells, [int(home * nodes) for home in self.homes]),
            sample_bytes=np.ones(self.samples, np.int64),
            resident=2,
            retained=self.retained,
            remote_memory_bytes=20,
            exchange=self.exchange,
            pool_seed=node,
        )

    def alone(self) -> PoolPolicy:
        sizes = np.ones(self.samples, np.int64)
        return PoolPolicy(self.cells, self.unit_of, sizes, capacity_bytes=max(1, self.samples // 5), seed=1)


class Slots:
    """The slot policy on several nodes. `unit_of` is the column of each sample."""

    def __init__(self, draw: random.Random, samples: int) -> None:
        self.samples = samples
        cells = np.arange(samples + -samples % CHUNK_SIZE, dtype=np.int32).reshape(-1, CHUNK_SIZE)
        self.cells = np.where(cells < samples, cells, -1).astype(np.int32)
        per_vc = draw.choice([1, 2, 5])
        self.starts = np.append(np.arange(0, len(cells), per_vc), len(cells)).astype(np.int32)
        self.window = draw.choice([1, 4, 1000])
        self.unit_of = self.policy(0).columns

    def policy(self, seed: int) -> SlotPolicy:
        return SlotPolicy(self.cells, self.starts, samples=self.samples, seed=seed)

    def node(self, node: int, nodes: int) -> SharedPolicy:
        own = self.policy(node)
        homes = homes_by_vc(own.columns, CHUNK_SIZE, nodes)
        sizes = np.ones(self.samples, np.int64)
        return SlotNode(node, own, homes, sizes, remote_memory_bytes=100, window=self.window)


Kind = Pools | Slots


class Job:
    """Nodes whose readers open every path once in an epoch, and meet before the next. ``turns`` counts those of each
    sample.
    """

    def __init__(self, draw: random.Random, kind: Kind, nodes: int) -> None:
        self.draw, self.kind = draw, kind
        self.turns: Counter[int] = Counter()
        self.begin([kind.node(node, nodes) for node in range(nodes)])
        self.todo: list[deque[int]] = [deque() for _ in range(nodes)]

    def begin(self, nodes: Sequence[SharedPolicy]) -> None:
        self.nodes = list(nodes)
        self.network = Network(self.draw, repeated=0, lost=0)
        # By node and ticket: the path that waits, and whether for a stat; by node and sample: the reserving path.
        self.waiting: dict[tuple[int, int], tuple[int, bool]] = {}
        self.reserved: dict[tuple[int, int], int] = {}

    def begin_epoch(self, epoch: int) -> None:
        order = self.draw.sample(range(self.kind.samples), self.kind.samples)
        self.todo = [deque(order[node :: len(self.nodes)]) for node in range(len(self.nodes))]
        self.follow(epoch)

    def follow(self, epoch: int) -> None:
        for node in self.nodes:
            if isinstance(node, SlotNode):
                for requester, todo in enumerate(self.todo):
                    node.follow(requester, epoch, np.array(todo, np.int32))

    @property
    def is_through(self) -> bool:
        return not any(self.todo) and not self.waiting and not self.reserved

    def run(self, most_turns: int = LAST_LAP) -> None:
        """Run until all are through, or so many turns were given."""
        until = self.turns.total() + most_turns
        steps = STEPS_PER_REQUEST * (50 + self.kind.samples)
        while not self.is_through and self.turns.total() < until:
            steps -= 1
            assert steps, "somebody waits forever"
            self.step()

    def step(self) -> None:
        at = self.draw.randrange(len(self.nodes))
        what = self.draw.random()
        if what < 0.5 and self.network.under_way:
            self.arrive(self.draw.randrange(len(self.network.under_way)))
        elif what < 0.6 and self.reserved:
            node, sample = self.draw.choice(list(self.reserved))
            path = self.reserved.pop((node, sample))
            if self.draw.random() < 0.3:
                self.nodes[node].put_back(sample)
                self.todo[node].append(path)
            else:
                self.serve(node, path, self.nodes[node].take(sample))
            self.flush(node)
        elif self.todo[at]:
            self.open(at, self.todo[at].popleft(), stats=self.draw.random() < 0.2)

    def open(self, at: int, path: int, *, stats: bool) -> None:
        node = self.nodes[at]
        if stats:
            reserved = node.reserve(path)
            if isinstance(reserved, Pending):
                self.waiting[at, reserved.ticket] = path, True
            elif reserved is not None:
                self.reserved[at, reserved] = path
            else:
                self.todo[at].append(path)
        else:
            turn = node.request(path)
            if isinstance(turn, Pending):
                self.waiting[at, turn.ticket] = path, False
            else:
                self.serve(at, path, turn)
        self.flush(at)

    def serve(self, at: int, path: int, served: Served) -> None:
        assert self.kind.unit_of[served.sample] == self.kind.unit_of[path]
        self.turns[served.sample] += 1
        if served.preempted:
            self.revoke(at, served.sample)

    def revoke(self, at: int, sample: int) -> None:
        path = self.reserved.pop((at, sample), None)
        if path is not None:
            self.todo[at].appendleft(path)

    def flush(self, at: int) -> None:
        self.network.send(at, self.nodes[at])
        for sample in self.nodes[at].revoked:
            self.revoke(at, sample)
        self.nodes[at].revoked.clear()

    def arrive(self, letter_at: int) -> None:
        letter = self.network.take(letter_at)
        assert letter is not None
        message, answer = letter.message, letter.answer
        if answer is None:
            handled = self.nodes[message.home].handle(message)
            for sample in handled.preempted:
                self.revoke(message.home, sample)
            assert handled.answer is not None
            self.network.post(Letter(message, handled.answer))
            self.flush(message.home)
            return
        at = message.requester
        for ticket, served in self.nodes[at].receive(answer) or ():
            path, reserves = self.waiting.pop((at, ticket))
            assert served is not None
            if not reserves:
                self.serve(at, path, served)
                continue
            if served.preempted:
                self.revoke(at, served.sample)
            self.reserved[at, served.sample] = path
        self.flush(at)

    def end(self) -> list[int]:
        """End all nodes; returns the paths that were not read."""
        left = [path for todo in self.todo for path in todo]
        left += [path for path, _ in self.waiting.values()]
        return [*left, *self.reserved.values()]

    def resume(self, turns: Turns, left: Sequence[int], own: Sequence[Turns | None], epoch: int) -> None:
        """Start new nodes, as many as ``own`` has entries."""
        self.begin([self.kind.node(node, len(own)) for node in range(len(own))])
        for node, had in zip(self.nodes, own, strict=True):
            node.restore(turns, had)
        order = self.draw.sample(list(left), len(left))
        self.todo = [deque(order[node :: len(own)]) for node in range(len(own))]
        self.follow(epoch)

    def kept(self) -> list[Turns]:
        return [node.turns() for node in self.nodes]

    def check(self, turns: Turns) -> None:
        """The nodes' ledgers together are what their readers had."""
        had = turns.flags(len(turns.laps), self.kind.samples)
        for sample in range(self.kind.samples):
            lap = turns.laps[self.kind.unit_of[sample]]
            assert self.turns[sample] == lap - (not had[sample])


def is_same(one: Turns, other: Turns) -> bool:
    return np.array_equal(one.laps, other.laps) and np.array_equal(one.had, other.had) and one.given == other.given


jobs = st.builds(
    lambda seed, kind, samples, nodes: Job(draw := random.Random(seed), kind(draw, samples), nodes),
    st.integers(0, 1 << 32),
    st.sampled_from([Pools, Slots]),
    st.integers(1, 60),
    st.integers(2, 4),
)


@given(jobs, st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_nodes_resume_anywhere_in_an_epoch(job: Job, ends: list[float]) -> None:
    samples = job.kind.samples
    for epoch, end in enumerate(ends):
        job.begin_epoch(epoch)
        job.run(int(end * (samples + 1)))
        kept = job.kept()
        together = job.nodes[0].merged(kept)
        job.check(together)
        assert together.given == job.turns.total()
        job.resume(together, job.end(), kept, epoch)
        assert is_same(job.nodes[-1].merged(job.kept()), together), "ending again at once loses nothing"
        job.run()
        assert job.turns == dict.fromkeys(range(samples), epoch + 1)


@given(jobs, st.floats(0, 1), st.integers(1, 5))
def test_any_number_of_nodes_resumes_a_merged_state(job: Job, end: float, nodes: int) -> None:
    samples = job.kind.samples
    job.begin_epoch(0)
    job.run(int(end * (samples + 1)))
    together = job.nodes[0].merged(job.kept())
    left = job.end()
    if isinstance(job.kind, Pools) and nodes == 1:
        alone = job.kind.alone()
        alone.restore(together)
        for path in left:
            job.turns[alone.request(path).sample] += 1
        assert job.turns == dict.fromkeys(range(samples), 1)
        return
    count = max(2, nodes)
    job.resume(together._replace(given=0), left, [None] * count, 0)
    again = job.nodes[0].merged(job.kept())
    assert is_same(again._replace(given=0), together._replace(given=0)), "each sample is recorded by one node"
    job.run()
    for epoch in (1, 2):
        assert job.turns == dict.fromkeys(range(samples), epoch)
        job.begin_epoch(epoch)
        job.run()


@given(jobs, st.integers(0, 3), st.floats(0, 1), st.data())
def test_an_old_ledger_only_repeats_samples(job: Job, epochs: int, end: float, data: st.DataObject) -> None:
    """Nodes write at different times, and die at another."""
    samples = job.kind.samples
    for epoch in range(epochs):
        job.begin_epoch(epoch)
        job.run()
    kept, at = job.kept(), [job.turns.total()] * len(job.nodes)
    job.begin_epoch(epochs)
    last = int(end * (samples + 1))
    writes = sorted(
        data.draw(st.lists(st.tuples(st.integers(0, last), st.integers(0, len(job.nodes) - 1)), max_size=9))
    )
    for turns, node in writes:
        job.run(epochs * samples + turns - job.turns.total())
        kept[node], at[node] = job.nodes[node].turns(), job.turns.total()
    job.run(epochs * samples + last - job.turns.total())
    together = job.nodes[0].merged(kept)
    had = together.flags(len(together.laps), samples)
    unseen = 0
    for sample in range(samples):
        lap = int(together.laps[job.kind.unit_of[sample]])
        recorded = lap - (not had[sample])
        assert recorded <= job.turns[sample]
        unseen += job.turns[sample] - recorded
    since = sum(job.turns.total() - then for then in at)
    assert unseen <= since
    # After a resume each sample has its turns; those that the ledger lacks come once more.
    before = job.turns.copy()
    job.resume(together, [], kept, epochs)
    job.begin_epoch(epochs)
    job.run()
    job.begin_epoch(epochs + 1)
    job.run()
    again = {sample: job.turns[sample] - before[sample] for sample in range(samples)}
    for unit in np.unique(job.kind.unit_of):
        of_unit = np.flatnonzero(job.kind.unit_of == unit).tolist()
        total = [again[sample] + (1 if had[sample] else 0) for sample in of_unit]
        assert max(total) - min(total) <= 1, "laps are exact for what was saved"


def test_a_ledger_keeps_the_last_lap_of_each_unit() -> None:
    unit_of = np.array([0, 1, 0, 1, 0], np.int32)
    ledger = Ledger(unit_of, 3, lambda unit: np.flatnonzero(unit_of == unit))

    def had() -> tuple[list[int], list[int]]:
        turns = ledger.turns()
        return turns.laps.tolist(), np.flatnonzero(turns.flags(3, 5)).tolist()

    ledger.note(0, 1)
    ledger.note(3, 1)
    assert had() == ([1, 1, 1], [0, 3])
    ledger.note(2, 4)
    assert had() == ([4, 1, 1], [2, 3]), "a later lap, and nothing had a turn in it before"
    ledger.note(0, 2)
    assert had() == ([4, 1, 1], [2, 3]), "a lap that is over"
    assert ledger.given == 4
    ledger.begin_anew(unit_of == 0)
    assert had() == ([1, 1, 1], [3])


def test_turns_of_other_samples_are_refused() -> None:
    unit_of = np.zeros(9, np.int32)
    good = Turns(np.array([3], np.int32), np.packbits(np.arange(9) == 1), 1)
    for bad in (
        good._replace(laps=np.ones(2, np.int32)),
        good._replace(had=np.zeros(1, np.uint8)),
        good._replace(laps=np.zeros(1, np.int32)),
        good._replace(laps=np.full(1, LAST_LAP + 1, np.int32)),
    ):
        with pytest.raises(ValueError, match=r"not those of 1 and 9|laps are counted"):
            merged([good, bad], unit_of)
        for kind in (Pools, Slots):
            node = kind(random.Random(1), 9).node(0, 2)
            before = node.turns()
            with pytest.raises(ValueError, match=r"not those of \d+ and 9|laps are counted"):
                node.restore(bad)
            assert is_same(node.turns(), before)


def test_samples_of_a_home_s_old_process_count_in_no_lap() -> None:
    """Its laps count from one again, and samples of lap 50 are here, reserved, and on the way."""
    draw = random.Random(2)
    kind = Slots(draw, 32)
    kind.starts, kind.window = np.array([0, 4, 8], np.int32), 100
    kind.unit_of = kind.policy(0).columns
    nodes = [kind.node(node, 2) for node in range(2)]
    nothing = np.zeros(4, np.uint8)
    for node in nodes:
        node.restore(Turns(np.full(8, 50, np.int32), nothing, 0))
    here, home = nodes
    assert isinstance(here, SlotNode)
    assert isinstance(home, SlotNode)
    theirs = np.flatnonzero(here.home_of == 1).astype(np.int32)
    for node in (here, home):
        node.follow(0, 0, theirs)

    def ask(path: int, other: SharedPolicy) -> int:
        turn = here.request(path)
        if isinstance(turn, Served):
            return turn.sample
        message = here.outbox.pop()
        answer = other.handle(message).answer
        assert answer is not None
        ((_, served),) = here.receive(answer) or ()
        assert served is not None
        return served.sample

    ask(int(theirs[0]), home)
    assert here.prefetched
    reserved = here.reserve(int(theirs[1]))
    assert isinstance(reserved, int)
    assert here.turns().laps.max() == 50
    here.restarted(1)
    again = kind.node(1, 2)
    here.take(reserved)
    served = [ask(int(path), again) for path in [*theirs[2:], *theirs[:2]]]
    turns = here.turns()
    columns = np.unique(kind.unit_of[theirs])
    assert set(turns.laps[columns]) == {1}
    # Samples of the old process are not among those that had their turn.
    had = np.flatnonzero(turns.flags(8, 32)[theirs])
    assert 0 < len(had) < len(theirs)
    assert set(theirs[had]) <= set(served)


def test_resumed_laps_end_without_a_lost_node() -> None:
    kind = Pools(random.Random(3), 12)
    for first in ("lost", "restored"):
        node = kind.node(0, 2)
        turns = kind.node(0, 2).turns()
        if first == "lost":
            node.lost(1)
            node.restore(turns)
        else:
            node.restore(turns)
            node.lost(1)
        assert all(isinstance(node.request(path), Served) for path in range(12))
