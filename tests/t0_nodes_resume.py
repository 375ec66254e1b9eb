"""Nodes that all end within an epoch and resume from what each of them saved: every sample still comes once."""

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import CHUNK_SIZE, Worker, parts_of_chunks
from t0_lost_nodes import STEPS_PER_TURN, Faults
from t0_lost_nodes import Pools as FailingPools
from t0_lost_nodes import Slots as FailingSlots

from redoxfs.protocol import LocalFirst, PoolPolicy, Served, SharedPolicy, SlotNode, homes_by_vc
from redoxfs.protocol.turns import LAST_LAP, Ledger, Turns, merged

pytestmark = pytest.mark.slow

WORKERS = 3
"""Of each node."""

Numbers = npt.NDArray[np.integer]


class Pools(FailingPools):
    """The pool on several nodes. `unit_of` is the class of each sample."""

    def __init__(self, draw: random.Random, samples: int, nodes: int) -> None:
        self.homes = [draw.random() for _ in range(-(-samples // CHUNK_SIZE))]
        super().__init__(
            draw.getrandbits(32),
            nodes=nodes,
            samples=samples,
            # Some classes are smaller than there are nodes, so that a node may have none of their samples.
            classes=draw.randint(1, max(1, samples // 3)),
            faults=Faults(),
            resident=2,
            retained=draw.choice([0, 0.5, 1]),
            remote_memory_bytes=20,
            exchange=draw.choice([0.0, 0.0, 0.4, 1.0]),
            stats=0.2,
        )

    @property
    def unit_of(self) -> Numbers:
        return self.class_of

    def start(self, nodes: int) -> None:
        self.count = nodes
        self.part_of = parts_of_chunks(self.cells, [int(home * nodes) for home in self.homes])
        super().start(nodes)

    def check(self, number: int) -> None:
        """Other tests look at a node's memory after each call."""

    def alone(self) -> PoolPolicy:
        return PoolPolicy(self.cells, self.class_of, self.sizes, capacity_bytes=max(1, self.samples // 5), seed=1)


class Slots(FailingSlots):
    """The slot policy on several nodes. `unit_of` is the column of each sample."""

    def __init__(self, draw: random.Random, samples: int, nodes: int, **shape: int) -> None:
        shape = {"per_vc": draw.choice([1, 2, 5]), "window": draw.choice([1, 4, 1000])} | shape
        super().__init__(
            draw.getrandbits(32),
            nodes=nodes,
            chunks=-(-samples // CHUNK_SIZE),
            rest=-samples % CHUNK_SIZE,
            room=100,
            reads_alone=True,
            faults=Faults(),
            stats=0.2,
            **shape,
        )

    @property
    def unit_of(self) -> Numbers:
        return self.columns

    def start(self, nodes: int) -> None:
        self.count = nodes
        self.homes = homes_by_vc(self.columns, CHUNK_SIZE, nodes)
        super().start(nodes)


class Job:
    """Nodes whose readers open every path once in an epoch, and meet before the next. ``turns`` counts those of each
    sample.
    """

    def __init__(self, draw: random.Random, kind: type[Pools | Slots], samples: int, nodes: int) -> None:
        self.draw = draw
        self.crew = kind(draw, samples, nodes)
        self.samples = samples
        self.turns: Counter[int] = Counter()
        serve = self.crew.turn

        def turn(worker: Worker, served: Served) -> None:
            serve(worker, served)
            self.turns[served.sample] += 1

        self.crew.turn = turn  # type: ignore[method-assign]

    @property
    def nodes(self) -> Sequence[LocalFirst | SlotNode]:
        return [process.node for process in self.crew.processes]

    def begin_epoch(self, epoch: int) -> None:
        self.read(range(self.samples), epoch)

    def read(self, paths: Sequence[int], epoch: int) -> None:
        """Readers begin to open ``paths``, in any order."""
        order, nodes = self.draw.sample(paths, len(paths)), self.nodes
        of_nodes = [order[node :: len(nodes)] for node in range(len(nodes))]
        self.crew.workers = [
            Worker(node=node, todo=own[first::WORKERS]) for node, own in enumerate(of_nodes) for first in range(WORKERS)
        ]
        for node in nodes:
            if isinstance(node, SlotNode):
                for requester, own in enumerate(of_nodes):
                    node.follow(requester, epoch, np.array(own, np.int32))

    def run(self, most_turns: int = LAST_LAP) -> None:
        """Run until all are through, or so many turns were given."""
        until = self.turns.total() + most_turns
        for _ in range(STEPS_PER_TURN * (10 + self.samples)):
            if self.turns.total() >= until or all(worker.is_through for worker in self.crew.workers):
                return
            self.crew.step(0)
        pytest.fail("somebody waits forever")

    def end(self) -> list[int]:
        """End all nodes; returns the paths that were not read."""
        workers = self.crew.workers
        return [path for worker in workers for path in (*worker.todo, worker.asked) if path >= 0]

    def resume(self, turns: Turns, left: Sequence[int], own: Sequence[Turns | None], epoch: int) -> None:
        """Start new nodes, as many as ``own`` has entries."""
        self.crew.start(len(own))
        for node, had in zip(self.nodes, own, strict=True):
            node.restore(turns, had)
        self.read(left, epoch)

    def kept(self) -> list[Turns]:
        return [node.turns() for node in self.nodes]

    def check(self, turns: Turns) -> None:
        """The nodes' ledgers together are what their readers had."""
        had = turns.flags(len(turns.laps), self.samples)
        for sample in range(self.samples):
            lap = turns.laps[self.crew.unit_of[sample]]
            assert self.turns[sample] == lap - (not had[sample])


def is_same(one: Turns, other: Turns) -> bool:
    return np.array_equal(one.laps, other.laps) and np.array_equal(one.had, other.had) and one.given == other.given


jobs = st.builds(
    lambda seed, kind, samples, nodes: Job(random.Random(seed), kind, samples, nodes),
    st.integers(0, 1 << 32),
    st.sampled_from([Pools, Slots]),
    st.integers(1, 60),
    st.integers(2, 4),
)


@given(jobs, st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_nodes_resume_anywhere_in_an_epoch(job: Job, ends: list[float]) -> None:
    samples = job.samples
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
    samples = job.samples
    job.begin_epoch(0)
    job.run(int(end * (samples + 1)))
    together = job.nodes[0].merged(job.kept())
    left = job.end()
    if isinstance(job.crew, Pools) and nodes == 1:
        alone = job.crew.alone()
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
    samples = job.samples
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
        lap = int(together.laps[job.crew.unit_of[sample]])
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
    for unit in np.unique(job.crew.unit_of):
        of_unit = np.flatnonzero(job.crew.unit_of == unit).tolist()
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
            node = kind(random.Random(1), 9, 2).processes[0].node
            before = node.turns()
            with pytest.raises(ValueError, match=r"not those of \d+ and 9|laps are counted"):
                node.restore(bad)
            assert is_same(node.turns(), before)


def test_samples_of_a_home_s_old_process_count_in_no_lap() -> None:
    """Its laps count from one again, and samples of lap 50 are here, reserved, and on the way."""
    draw = random.Random(2)
    kind = Slots(draw, 32, 2, per_vc=4, window=100)
    nodes = [process.node for process in kind.processes]
    nothing = np.zeros(4, np.uint8)
    for node in nodes:
        node.restore(Turns(np.full(8, 50, np.int32), nothing, 0))
    here, home = nodes
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
    again = kind.new_node(1, 1)
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
    kind = Pools(random.Random(3), 12, 2)
    for first in ("lost", "restored"):
        node = kind.new_node(0, 0)
        turns = kind.new_node(0, 0).turns()
        if first == "lost":
            node.lost(1)
            node.restore(turns)
        else:
            node.restore(turns)
            node.lost(1)
        assert all(isinstance(node.request(path), Served) for path in range(12))
