"""The slot policy against the paper's pseudo-code, written out line by line."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redoxfs.protocol import SlotPolicy
from redoxfs.protocol.turns import Turns


class PseudoCode:
    """Alg. 2 and 3, line by line, for one VC; the chunk it may choose is checked, not chosen."""

    def __init__(self, pcs: list[list[int]]) -> None:
        self.pcs = pcs
        self.slots = len(pcs[0])
        self.vfs: list[int | None] = [None] * self.slots
        self.consumed = {f: False for pc in pcs for f in pc if f >= 0}

    def read_local_file(self, offset: int, chosen: int | None) -> int:
        held = self.vfs[offset]
        if held is not None:
            assert chosen is None, "a file in memory is served without a load"
            self.vfs[offset] = None
            return held
        if self.is_through(offset):
            for o in [o for o in range(self.slots) if self.vfs[o] is None and self.is_through(o)]:
                self.consumed |= {pc[o]: False for pc in self.pcs if pc[o] >= 0}
        assert chosen in self.find_replace_pcs(offset)
        for i, f in enumerate(self.pcs[chosen]):
            if f >= 0 and not self.consumed[f] and self.vfs[i] is None:
                self.vfs[i] = f
                self.consumed[f] = True
        answer = self.vfs[offset]
        assert answer is not None
        self.vfs[offset] = None
        return answer

    def is_through(self, offset: int) -> bool:
        return all(pc[offset] < 0 or self.consumed[pc[offset]] for pc in self.pcs)

    def find_replace_pcs(self, offset: int) -> list[int]:
        useful = {
            i: sum(self.vfs[j] is None and f >= 0 and not self.consumed[f] for j, f in enumerate(pc))
            for i, pc in enumerate(self.pcs)
            if pc[offset] >= 0 and not self.consumed[pc[offset]]
        }
        return [i for i, n in useful.items() if n == max(useful.values())]


def policy_of(cells: list[list[int]], vc_sizes: list[int], seed: int = 0) -> SlotPolicy:
    array = np.array(cells, np.int32)
    starts = np.concatenate([[0], np.cumsum(vc_sizes)]).astype(np.int32)
    return SlotPolicy(array, starts, samples=int((array >= 0).sum()), seed=seed)


def same(one: Turns, other: Turns) -> bool:
    return [one.laps.tolist(), one.had.tolist(), one.given] == [other.laps.tolist(), other.had.tolist(), other.given]


@st.composite
def one_vc(draw: st.DrawFn) -> list[list[int]]:
    chunks, slots = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    holes = draw(st.sets(st.integers(1, chunks * slots - 1))) if chunks * slots > 1 else set()
    numbers = iter(range(chunks * slots))
    return [[-1 if c * slots + s in holes else next(numbers) for s in range(slots)] for c in range(chunks)]


@given(one_vc(), st.data())
def test_each_decision_is_allowed_by_the_pseudo_code(cells: list[list[int]], data: st.DataObject) -> None:
    policy, paper = policy_of(cells, [len(cells)]), PseudoCode(cells)
    samples = [f for row in cells for f in row if f >= 0]
    for asked in data.draw(st.lists(st.sampled_from(samples), max_size=60)):
        offset = next(row.index(asked) for row in cells if asked in row)
        before = list(paper.vfs)
        served = policy.request(asked)
        chosen = served.loads[0].chunk if served.loads else None
        assert served.sample == paper.read_local_file(offset, chosen)
        if served.loads:
            kept = {f for f in paper.vfs if f is not None} - set(before) | {served.sample}
            assert served.loads[0].samples[0] == served.sample
            assert set(served.loads[0].samples) == kept
        assert policy.residents() == sum(f is not None for f in paper.vfs)


def test_the_running_example_of_the_paper() -> None:
    # §3.7: four chunks of four share a VC; reads 2 and 3 are redirected into the chunk that read 1 loaded.
    policy = policy_of([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]], [4])
    first = policy.request(1)
    assert first.loads
    loaded = set(first.loads[0].samples)
    assert len(loaded) == 4
    second, third = policy.request(10), policy.request(15)
    assert not second.loads
    assert not third.loads
    assert {first.sample, second.sample, third.sample} < loaded
    # Read 5 asks for a slot whose sample is gone: the VC is refilled, and the sample left in it is kept.
    fifth = policy.request(5)
    assert fifth.loads
    assert not set(fifth.loads[0].samples) & loaded
    assert policy.request(8).sample in loaded


def test_ties_are_broken_at_random_and_by_the_seed_alone() -> None:
    cells = np.arange(64 * 4).reshape(64, 4).tolist()
    first_chunks = {policy_of(cells, [64], seed).request(0).sample for seed in range(40)}
    assert len(first_chunks) > 10
    orders = [[policy_of(cells, [64], 7).request(s).sample for s in range(256)] for _ in range(2)]
    assert orders[0] == orders[1]


def test_requests_touch_only_their_virtual_chunk() -> None:
    policy = policy_of([[0, 1], [2, 3], [4, 5], [6, 7]], [2, 2])
    assert {policy.request(0).sample, policy.request(0).sample} == {0, 2}
    assert {policy.request(4).sample, policy.request(6).sample} == {4, 6}


def test_a_column_s_next_request_begins_its_next_lap() -> None:
    policy = policy_of([[0, 1], [2, 3]], [2])
    both = np.array([0, 1])
    policy.request(0)
    policy.request(0)
    assert policy.laps(both).tolist() == [1, 1]
    policy.request(0)
    assert policy.laps(both).tolist() == [2, 1]


def test_finished_columns_begin_the_next_lap_together() -> None:
    policy = policy_of(np.arange(8 * 4).reshape(4, 8).tolist(), [4])
    for epoch in range(3):
        first = policy.request(0)
        assert first.loads
        assert len(first.loads[0].samples) == 8, f"epoch {epoch} begins with a whole chunk"
        assert len({first.sample, *(policy.request(s).sample for s in range(1, 32))}) == 32


@given(
    vc_sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    slots=st.integers(1, 5),
    holes=st.integers(0, 6),
    processes=st.lists(st.tuples(st.booleans(), st.integers(0, 50)), min_size=1, max_size=4),
    seed=st.integers(0, 1 << 32),
)
@pytest.mark.slow
def test_another_policy_resumes_anywhere_in_the_laps(
    vc_sizes: list[int], slots: int, holes: int, processes: list[tuple[bool, int]], seed: int
) -> None:
    random = np.random.default_rng(seed)
    cells = np.zeros((sum(vc_sizes), slots), int)
    cells.reshape(-1)[random.permutation(cells.size)[: min(holes, cells.size - 1)]] = -1
    samples = int((cells >= 0).sum())
    cells[cells >= 0] = random.permutation(samples)
    policy = policy_of(cells.tolist(), vc_sizes)
    # The plain way: a column's turns may differ by one, those of the lap that it is in.
    turns = np.zeros(samples, int)
    reserved: set[int] = set()

    def had_turn(sample: int) -> None:
        turns[sample] += 1
        reserved.discard(sample)
        of_column = turns[policy.columns == policy.columns[sample]]
        assert of_column.max() - of_column.min() <= 1

    for is_new, steps in [*processes, (False, 50)]:
        for step in random.random(steps).tolist():
            asked = int(random.integers(samples))
            if step < 0.6:
                had_turn(policy.request(asked).sample)
            elif step < 0.8 or not reserved:
                chosen = policy.reserve(asked)
                reserved |= set() if chosen is None else {chosen}
            elif step < 0.9:
                had_turn(policy.take(min(reserved)).sample)
            else:
                policy.put_back(reserved.pop())
        state = policy.turns()
        laps = state.laps[policy.columns]
        assert state.given == turns.sum()
        assert turns.tolist() == (laps - 1 + state.flags(policy.column_count, samples)).tolist()
        policy = policy_of(cells.tolist(), vc_sizes, seed=1) if is_new else policy
        policy.restore(state)
        reserved.clear()
        assert policy.residents() == 0
        assert same(policy.turns(), state)


def test_turns_of_another_layout_are_refused() -> None:
    policy = policy_of([[0, 1], [2, 3]], [2])
    turns = policy_of([[0, 1], [2, 3]], [1, 1]).turns()
    with pytest.raises(ValueError, match="not those of 2 and 4"):
        policy.restore(turns)


@pytest.mark.parametrize("cells", [[[0, 0]], [[0, 2]]])
def test_a_layout_must_have_each_sample_once(cells: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="exactly one cell"):
        policy_of(cells, [1])
