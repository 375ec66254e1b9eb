"""The lap of a tree is what the turns of its samples say, however they were counted."""

from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import answered, pool_node

from redoxfs.protocol import LocalFirst, Pending, PoolPolicy, SlotPolicy, TreeLap, lap_progress
from redoxfs.protocol.lap_progress import LapProgress
from redoxfs.protocol.turns import Turns


def lap_of(turns: Iterable[int]) -> TreeLap:
    """The plain way: the lap of samples that had so many turns each. A lap that is over lasts until the next begins."""
    each = list(turns)
    number = 1 + min(each)
    in_lap = sum(count >= number for count in each)
    if number > 1 and not in_lap:
        number, in_lap = number - 1, len(each)
    return TreeLap(number, in_lap, len(each))


def pool(samples: int, unit_of: npt.NDArray[np.int32], seed: int) -> PoolPolicy:
    cells = np.full(-(-samples // 3) * 3, -1, np.int32)
    cells[:samples] = np.random.default_rng(seed).permutation(samples)
    sizes = np.ones(samples, np.int64)
    return PoolPolicy(cells.reshape(-1, 3), unit_of, sizes, capacity_bytes=samples // 2, seed=seed)


def slots(samples: int, seed: int) -> SlotPolicy:
    """Two virtual chunks, of chunks of three."""
    cells = np.full(-(-samples // 6) * 6, -1, np.int32)
    cells[:samples] = np.random.default_rng(seed).permutation(samples)
    chunks = len(cells) // 3
    return SlotPolicy(cells.reshape(-1, 3), np.array([0, chunks // 2, chunks], np.int32), samples=samples, seed=seed)


@given(
    samples=st.integers(6, 30),
    classes=st.integers(1, 6),
    trees=st.integers(1, 3),
    is_slot=st.booleans(),
    most_ahead=st.sampled_from([1, 2, 1024]),
    seed=st.integers(0, 1 << 32),
)
@pytest.mark.slow
def test_the_count_is_that_of_a_plain_model(
    samples: int, classes: int, trees: int, is_slot: bool, most_ahead: int, seed: int
) -> None:
    """Units are asked unevenly, samples are reserved and put back, and earlier states are loaded."""
    random = np.random.default_rng(seed)
    class_of = random.integers(0, classes, samples).astype(np.int32)

    def new() -> PoolPolicy | SlotPolicy:
        return slots(samples, seed) if is_slot else pool(samples, class_of, seed)

    policy = new()
    units = np.asarray(policy.units)
    tree_of = random.integers(0, trees, int(units.max()) + 1)[units]
    turns: Counter[int] = Counter()
    reserved: set[int] = set()
    favourites = random.integers(0, samples, 2)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lap_progress, "MOST_AHEAD", most_ahead)
        policy.count_laps(tree_of, trees)
        saved, had = policy.turns(), turns.copy()
        for _ in range(200):
            step = random.random()
            asked = int(random.integers(samples) if random.random() < 0.6 else random.choice(favourites))
            if step < 0.8:
                sample = policy.request(asked).sample
                turns[sample] += 1
                reserved.discard(sample)
            elif step < 0.88:
                chosen = policy.reserve(asked)
                reserved |= set() if chosen is None else {chosen}
            elif step < 0.98 and reserved:
                sample = reserved.pop()
                if step < 0.93:
                    turns[policy.take(sample).sample] += 1
                else:
                    policy.put_back(sample)
            elif step > 0.985:
                # A state that was loaded, or another process.
                if random.random() < 0.5:
                    policy = new()
                    policy.count_laps(tree_of, trees)
                policy.restore(saved)
                turns = had.copy()
                reserved.clear()
            if random.random() < 0.1:
                saved, had = policy.turns(), turns.copy()
            if random.random() < 0.3:
                expected = [
                    lap_of(turns[sample] for sample in np.flatnonzero(tree_of == tree).tolist())
                    if (tree_of == tree).any()
                    else TreeLap(1, 0, 0)
                    for tree in range(trees)
                ]
                assert policy.tree_laps() == expected


def test_trees_are_not_counted_unless_asked() -> None:
    assert pool(6, np.zeros(6, np.int32), 0).tree_laps() == slots(6, 0).tree_laps() == []


def test_a_look_at_the_laps_costs_no_look_at_the_samples() -> None:
    counted = []

    def all_turns() -> Turns:
        counted.append(1)
        return Turns(np.ones(1, np.int32), np.zeros(1, np.uint8), 0)

    progress = LapProgress(np.zeros(5, np.int32), np.zeros(5, np.int32), 1, all_turns)
    for lap in (1, 2, 3):
        for _ in range(5):
            progress.note(0, lap)
            progress.of_trees()
    assert progress.of_trees() == [TreeLap(3, 5, 5)]
    assert not counted


class Nodes:
    """Two nodes with a pool each, whose messages arrive at once. Samples 0 to 7 are of tree 0, the others of tree 1."""

    def __init__(self) -> None:
        self.class_of = np.repeat(np.arange(4), 4).astype(np.int32)
        self.nodes = [self.new(node) for node in range(2)]

    def new(self, node: int) -> LocalFirst:
        created = pool_node(
            node,
            2,
            cells=np.arange(16, dtype=np.int32).reshape(-1, 1),
            class_of=self.class_of,
            part_of=np.tile(np.array([0, 1], np.int8), 8),
            sample_bytes=np.ones(16, np.int64),
            resident=9,
            remote_memory_bytes=1 << 30,
            exchange=0,
            seed=node,
        )
        created.count_laps(np.repeat(np.arange(2), 8), 2)
        return created

    def ask(self, node: int, sample: int) -> None:
        """A turn at a node, whoever has the sample."""
        turn = self.nodes[node].request(sample)
        if isinstance(turn, Pending):
            assert turn.ticket in answered(self.nodes, self.nodes[node])


def test_nodes_count_the_turns_of_their_own_readers() -> None:
    pair = Nodes()
    for sample in range(0, 8, 2):
        pair.ask(0, sample)
        pair.ask(1, sample + 1)
    pair.ask(1, 15)
    assert pair.nodes[0].tree_laps() == [TreeLap(1, 4, 8), TreeLap(1, 0, 8)]
    assert pair.nodes[1].tree_laps() == [TreeLap(1, 4, 8), TreeLap(1, 1, 8)]


def test_one_of_two_nodes_may_read_all() -> None:
    pair = Nodes()
    for sample in range(8):
        pair.ask(0, sample)
    assert pair.nodes[0].tree_laps()[0] == TreeLap(1, 8, 8)
    pair.ask(0, 0)
    assert pair.nodes[0].tree_laps()[0] == TreeLap(2, 1, 8)


def test_a_node_moves_on_before_it_is_asked_for_each_class_again() -> None:
    pair = Nodes()
    for sample in range(0, 8, 2):
        pair.ask(0, sample)
        pair.ask(1, sample + 1)
    for _ in range(3):
        pair.ask(0, 0)
    assert pair.nodes[0].tree_laps()[0] == TreeLap(2, 3, 8), "class 1 was not asked in lap 2"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ([0, 1, 0], TreeLap(1, 2, 8)),
        ([0, 4, 0, 4], TreeLap(1, 4, 8)),
        ([0, 1, 4, 5, 0, 1], TreeLap(2, 2, 8)),
    ],
    ids=["one class is ahead", "in the middle of a lap", "in the next lap"],
)
def test_a_node_that_continues_counts_as_before(asked: list[int], expected: TreeLap) -> None:
    pair = Nodes()
    for sample in asked:
        pair.ask(0, sample)
        pair.ask(1, sample)
    assert pair.nodes[0].tree_laps()[0] == expected
    heir = pair.new(0)
    assert heir.tree_laps()[0] == TreeLap(1, 0, 8)
    heir.restore(pair.nodes[0].merged([node.turns() for node in pair.nodes]), pair.nodes[0].turns())
    assert heir.tree_laps() == pair.nodes[0].tree_laps()
    again = pair.new(0)
    assert again.tree_laps()[0] == TreeLap(1, 0, 8)
    again.resume(pair.nodes[0].state())
    again.settle()
    assert again.tree_laps() == pair.nodes[0].tree_laps()
