"""The pool policy: what is loaded when, which resident is served, and when a class begins its next lap."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pools import SIZE_BYTES, Pool, policy_of

from redoxfs.protocol import PoolPolicy, Served
from redoxfs.protocol.pool import LOADS_PER_REQUEST, SAMPLES_AT_A_TIME, chunk_order
from redoxfs.protocol.turns import Turns


def small(classes: list[int], rows: list[list[int]], capacity: int, seed: int = 0) -> PoolPolicy:
    """Samples 0, 1, … of the classes given, in the chunks given, with memory for ``capacity`` of them."""
    return policy_of(np.array(rows, np.int32), np.array(classes, np.int32), capacity * SIZE_BYTES, seed)


def test_memory_for_more_samples_than_an_int32_counts() -> None:
    policy = small([0, 0], [[0], [1]], capacity=1 << 60)
    assert sorted(policy.request(sample).sample for sample in (0, 1)) == [0, 1]


def same(one: Turns, other: Turns) -> bool:
    return [one.laps.tolist(), one.had.tolist(), one.given] == [other.laps.tolist(), other.had.tolist(), other.given]


def fill(policy: PoolPolicy, sample: int, requests: int) -> list[int]:
    return [policy.request(sample).sample for _ in range(requests)]


def test_a_chunk_with_only_reserved_samples_is_not_loaded() -> None:
    """Programs list a whole class, while another is asked so rarely that it has enough in memory."""
    for seed in range(5):
        pool = Pool([40, 40, 40], chunk_size=2, resident=0.8, seed=seed)
        listed = [pool.policy.reserve(sample) for sample in range(80, 120)]
        assert len(set(listed)) == 40
        for _ in range(20):
            assert sorted(pool.ask_all(range(40))) == list(range(40))
            assert all(load.samples for load in pool.ask(40).loads)


class CoverModel:
    """A plain model of a policy whose laps cover some samples; asserts its rules at every step.

    ``lap``      each class's; ``to_come``: the samples of it that had no turn yet, ``reserved``: those reserved, and
                 whether they were in memory then
    ``held``     samples that were loaded and neither served nor reserved
    ``lent``     so many of ``capacity`` were given back
    """

    def __init__(
        self,
        class_of: list[int],
        covered: list[bool],
        rows: list[list[int]],
        capacity: int,
        retained: int | None = None,
    ) -> None:
        self.class_of, self.covered, self.capacity = class_of, covered, capacity
        self.cells, self.retained = np.array(rows, np.int32), retained
        self.policy = self.new_policy()
        self.given = 0
        self.of_lap = {cls: set[int]() for cls in itertools.compress(class_of, covered)}
        for sample in itertools.compress(range(len(class_of)), covered):
            self.of_lap[class_of[sample]].add(sample)
        self.lap = dict.fromkeys(self.of_lap, 1)
        self.to_come = {cls: set(samples) for cls, samples in self.of_lap.items()}
        self.reserved: dict[int, bool] = {}
        self.held: set[int] = set()
        self.lent = 0

    def new_policy(self) -> PoolPolicy:
        return PoolPolicy(
            self.cells,
            np.array(self.class_of, np.int32),
            np.full(len(self.class_of), SIZE_BYTES, np.int64),
            capacity_bytes=self.capacity * SIZE_BYTES,
            retained_bytes=None if self.retained is None else self.retained * SIZE_BYTES,
            seed=len(self.class_of),
            covered=np.array(self.covered),
        )

    def begin_lap_if_over(self, cls: int) -> None:
        if not self.to_come[cls]:
            self.lap[cls] += 1
            self.to_come[cls] = set(self.of_lap[cls])

    def request(self, sample: int) -> None:
        cls = self.class_of[sample]
        self.begin_lap_if_over(cls)
        served = self.policy.request(sample)
        assert served.preempted == (served.sample in self.reserved) == (self.to_come[cls] <= self.reserved.keys())
        self.serve(cls, served)

    def reserve(self, sample: int) -> None:
        cls = self.class_of[sample]
        self.begin_lap_if_over(cls)
        chosen = self.policy.reserve(sample)
        if chosen is None:
            assert self.to_come[cls] <= self.reserved.keys()
        else:
            assert chosen in self.to_come[cls] - self.reserved.keys()
            self.reserved[chosen] = chosen in self.held
            self.held.discard(chosen)

    def take(self, reserved: int) -> None:
        served = self.policy.take(reserved)
        assert (served.sample, served.preempted) == (reserved, False)
        self.serve(self.class_of[reserved], served)

    def put_back(self, reserved: int) -> None:
        was_held = self.reserved.pop(reserved)
        if self.policy.put_back(reserved):
            assert was_held
            self.held.add(reserved)
        else:
            assert not was_held or self.policy._free_bytes < SIZE_BYTES

    def resume_with(self, policy: PoolPolicy) -> None:
        """Save the turns, and resume them with ``policy``, which may be the present one."""
        turns = self.policy.turns()
        had = np.flatnonzero(turns.flags(len(turns.laps), len(self.class_of)))
        assert set(had.tolist()) == {s for c, samples in self.of_lap.items() for s in samples - self.to_come[c]}
        assert turns.given == self.given
        policy.restore(turns)
        self.lent = 0
        self.policy = policy
        self.reserved.clear()
        self.held.clear()

    def give_back(self, samples: int) -> None:
        """Retained samples make room for others: those that had their turn, and those that wait for it."""
        gone, gone_bytes = self.policy.give_back(samples * SIZE_BYTES)
        assert gone_bytes == len(gone) * SIZE_BYTES
        assert set(gone) <= self.held
        assert all(self.policy.is_retained(sample) for sample in gone)
        assert len(gone) == len(set(gone))
        assert len(gone) < samples + self.cells.shape[1]
        self.held -= set(gone)
        self.lent += len(gone)

    def take_back(self) -> None:
        self.policy.take_back(self.lent * SIZE_BYTES)
        self.lent = 0

    def skip(self, cls: int, laps: int) -> None:
        """Skip so many laps of a class."""
        until, let_go = self.lap[cls] + laps, set[int]()
        if laps:
            let_go = {sample for sample in self.held if self.class_of[sample] == cls}
            if laps == 1:
                let_go &= self.to_come[cls]
            self.reserved = {s: held for s, held in self.reserved.items() if s not in self.to_come[cls]}
            self.lap[cls] = until
            self.to_come[cls] = set(self.of_lap[cls])
        assert sorted(self.policy.skip(cls, until)) == sorted(let_go)
        self.held -= let_go

    def serve(self, cls: int, served: Served) -> None:
        self.given += 1
        assert served.sample in self.to_come[cls], "each of the lap's samples once, and no other"
        # What was in memory as it was reserved still is, for another budget.
        assert served.is_demanded != self.reserved.get(served.sample, served.sample in self.held)
        for chunk, samples in served.loads:
            for sample in samples:
                assert self.policy.chunk_of(sample) == chunk
                assert sample not in self.held
                assert sample not in self.reserved or sample == served.sample
                assert self.covered[sample], "of this lap or the next"
            self.held |= set(samples)
        self.held -= set(served.gone)
        (self.held.add if served.kept else self.held.discard)(served.sample)
        self.reserved.pop(served.sample, None)
        self.to_come[cls].remove(served.sample)

    def check(self) -> None:
        samples = range(len(self.class_of))
        assert self.policy.resident_bytes == len(self.held) * SIZE_BYTES <= (self.capacity - self.lent) * SIZE_BYTES
        assert self.policy.residents() == len(self.held)
        assert self.policy._free_bytes >= 0, "what is reserved for retained samples fits as well"
        in_sections = {s for s in samples if self.policy._queues.is_retained(self.class_of[s], s)}
        assert in_sections <= self.held
        flagged = sum(self.policy.is_retained(s) for s in in_sections)
        assert 0 <= self.policy.retained_bytes - flagged * SIZE_BYTES <= len(self.reserved) * SIZE_BYTES
        assert [s for s in samples if self.policy.is_resident(s)] == sorted(self.held)
        of_classes = [s for s in samples if self.class_of[s] in self.lap]
        laps = self.policy.laps(np.array(of_classes, np.int32)).tolist()
        assert laps == [self.lap[self.class_of[s]] for s in of_classes]
        self.check_counts()

    def check_counts(self) -> None:
        """The counts of `_chunks` are those of the model, and its order fits them."""
        policy = self.policy
        this_lap, next_lap = np.zeros(len(self.cells), int), np.zeros(len(self.cells), int)
        for sample, cls in enumerate(self.class_of):
            chunk = policy.chunk_of(sample)
            if sample in self.reserved or not self.covered[sample]:
                continue
            to_come, is_held = sample in self.to_come[cls], sample in self.held
            this_lap[chunk] += to_come and not is_held
            is_for_next = policy._queues.stays[sample] if to_come else is_held
            next_lap[chunk] += bool(policy._runs_over[cls]) and not is_for_next
        assert policy._chunks.this_lap_array.tolist() == this_lap.tolist()
        assert policy._chunks.next_lap_array.tolist() == next_lap.tolist()
        ranks = [0 if this_lap[chunk] else 1 if next_lap[chunk] else 2 for chunk in policy._chunks.order_array.tolist()]
        assert ranks == sorted(ranks)
        assert (policy._chunks.this_lap_end, policy._chunks.next_lap_end) == (
            ranks.count(0),
            len(ranks) - ranks.count(2),
        )


@st.composite
def cover_models(draw: st.DrawFn) -> CoverModel:
    """Few classes, samples and chunks; laps cover all, whole chunks, as `deal` has them, or anything."""
    samples, chunk_size = draw(st.integers(1, 40)), draw(st.integers(1, 6))
    parts = draw(st.integers(1, 4))
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    class_of = random.integers(0, draw(st.integers(1, 4)), samples)
    chunks = -(-samples // chunk_size)
    in_order = random.permutation(samples).tolist() + [-1] * (chunks * chunk_size - samples)
    cells = [in_order[first : first + chunk_size] for first in range(0, len(in_order), chunk_size)]
    covered = random.integers(0, parts, samples) == 0
    if draw(st.booleans()):
        for chunk in cells:
            covered[[s for s in chunk if s >= 0]] = random.integers(0, parts) == 0
    capacity = draw(st.integers(0, samples + 3))
    retained = draw(st.none() | st.integers(0, samples))
    return CoverModel(class_of.tolist(), covered.tolist(), cells, capacity, retained)


@given(cover_models(), st.data())
@pytest.mark.slow
def test_a_lap_serves_what_it_covers_and_loads_at_most_the_next(model: CoverModel, data: st.DataObject) -> None:
    run(model, data.draw(st.integers(0, 120)), data)


@given(cover_models(), st.data())
@pytest.mark.slow
def test_laps_may_be_skipped_at_any_time(model: CoverModel, data: st.DataObject) -> None:
    asked = [s for s, cls in enumerate(model.class_of) if cls in model.lap]
    for sample, laps in data.draw(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)), max_size=12)):
        run(model, data.draw(st.integers(0, 30)), data)
        if asked:
            model.skip(model.class_of[asked[sample % len(asked)]], laps)
        model.check()


def test_a_class_that_no_lap_has_is_not_skipped() -> None:
    cells, sizes = np.array([[0, 1]], np.int32), np.full(2, SIZE_BYTES, np.int64)
    policy = PoolPolicy(cells, cells[0], sizes, capacity_bytes=0, seed=0, covered=np.array([True, False]))
    assert policy.skip(1, 5) == []


@given(
    cover_models(),
    st.lists(st.tuples(st.booleans(), st.integers(0, 60), st.integers(0, 3)), min_size=1, max_size=4),
    st.data(),
)
@pytest.mark.slow
def test_another_policy_resumes_anywhere_in_the_laps(
    model: CoverModel, processes: list[tuple[bool, int, int]], data: st.DataObject
) -> None:
    for is_new, steps, skipped in processes:
        run(model, steps, data)
        if skipped and model.lap:
            model.skip(min(model.lap), skipped)
        model.resume_with(model.new_policy() if is_new else model.policy)
    run(model, 60, data)


def run(model: CoverModel, steps: int, data: st.DataObject) -> None:
    """Ask, stat, open what was stat'ed and forget it, at random; changes of many chunks at once happen in both ways."""
    with pytest.MonkeyPatch.context() as ways:
        for constant in ("SORTED_FOR_ONE", "COUNTED_FOR_ONE"):
            ways.setattr(chunk_order, constant, data.draw(st.sampled_from([1, 64])))
        run_at_random(model, steps, data)


def run_at_random(model: CoverModel, steps: int, data: st.DataObject) -> None:
    asked = [s for s, cls in enumerate(model.class_of) if cls in model.lap]
    if not asked:
        return
    random = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    favourites = random.choice(asked, 2)
    stats = data.draw(st.sampled_from([0, 0.2, 0.6]))
    gives = data.draw(st.sampled_from([0, 0.1]))
    model.check()
    for _ in range(steps):
        held_reserved = sorted(model.reserved)
        if random.random() < gives:
            if random.random() < 0.3:
                model.take_back()
            elif random.random() < 0.3:
                model.policy._stream_more()
            else:
                model.give_back(int(random.integers(1, 9)))
        elif random.random() > stats:
            model.request(int(random.choice(favourites if random.random() < 0.4 else asked)))
        elif not held_reserved or random.random() < 0.5:
            model.reserve(int(random.choice(asked)))
        elif random.random() < 0.5:
            model.take(int(random.choice(held_reserved)))
        else:
            model.put_back(int(random.choice(held_reserved)))
        model.check()


def test_laps_that_cover_each_sample_are_as_laps_without_a_cover() -> None:
    pool = Pool([50] * 8, 8, resident=0.2)
    sizes = np.full(pool.samples, SIZE_BYTES, np.int64)
    policy = PoolPolicy(
        pool.cells,
        pool.class_of,
        sizes,
        capacity_bytes=pool.capacity_bytes,
        seed=0,
        covered=np.ones(pool.samples, np.bool_),
    )
    order = np.random.default_rng(0).integers(0, pool.samples, 2_000).tolist()
    assert [policy.request(s) for s in order] == [pool.policy.request(s) for s in order]


def test_a_restored_policy_reads_only_samples_without_a_turn() -> None:
    pool = Pool([200] * 10, 16, resident=0.2)
    order = np.random.default_rng(5).permutation(pool.samples).tolist()
    before = pool.ask_all(order[:900])
    turns = pool.policy.turns()
    pool.policy = policy_of(pool.cells, pool.class_of, pool.capacity_bytes)
    pool.policy.restore(turns)
    pool.loads.clear()
    pool.read.clear()
    pool.kept.clear()
    after = pool.ask_all(order[900:])
    assert sorted(before + after) == list(range(pool.samples))
    assert set(after) <= set(pool.read)
    held = pool.policy.residents()
    assert pool.read.total() + pool.kept.total() == len(after) + held, "and some samples of the next lap"


def test_turns_of_other_samples_are_refused_unchanged() -> None:
    cells, class_of = np.array([[0, 1, 2]], np.int32), np.array([0, 0, 1], np.int32)
    sizes, covered = np.ones(3, np.int64), np.array([True, False, True])
    policy = PoolPolicy(cells, class_of, sizes, capacity_bytes=2, seed=0, covered=covered, chunks_drawn=1)
    policy.request(2)
    before = policy.turns()
    for turns, why in (
        (before._replace(laps=np.ones(3, np.int32)), "not those of 2 and 3"),
        (before._replace(had=np.zeros(2, np.uint8)), "not those of 2 and 3"),
        (before._replace(laps=np.array([1, 0], np.int32)), "laps are counted"),
        (before._replace(laps=np.array([1, 1 << 30 | 1], np.int32)), "laps are counted"),
    ):
        with pytest.raises(ValueError, match=why):
            policy.restore(turns)
        assert same(policy.turns(), before)
    policy.restore(before)
    assert same(policy.turns(), before)


def test_a_class_without_a_lap_is_refused() -> None:
    cells, class_of = np.array([[0, 1]], np.int32), np.array([0, 1], np.int32)
    sizes = np.ones(2, np.int64)
    policy = PoolPolicy(cells, class_of, sizes, capacity_bytes=2, seed=0, covered=np.array([True, False]))
    assert policy.request(0).sample == 0
    with pytest.raises(ValueError, match="no lap has a sample of class 1"):
        policy.request(1)


def test_a_dataset_that_fits_is_loaded_once_and_shuffled() -> None:
    pool = Pool([200] * 20, 16, resident=1)
    orders = list(pool.epochs(4))
    assert all(sorted(answers) == list(range(pool.samples)) for answers in orders)
    assert set(pool.loads.values()) == {1}
    assert set(pool.read.values()) == {1}
    assert pool.policy.residents() == pool.samples
    assert pool.demanded <= 20, "at most once for each class, when its first samples are loaded"
    places = np.array([np.argsort(answers) for answers in orders])
    correlation = np.corrcoef(places)[np.triu_indices(4, 1)]
    assert np.abs(correlation).max() < 0.1


@pytest.mark.parametrize("resident", [0.1, 0.25, 0.5, 0.99])
@pytest.mark.slow
def test_every_chunk_is_loaded_once_per_epoch(resident: float) -> None:
    pool = Pool([200] * 20, 16, resident=resident)
    for epoch, answers in enumerate(pool.epochs(4), 1):
        assert sorted(answers) == list(range(pool.samples))
        assert max(pool.loads.values()) <= epoch + 1, "at most once each, and some ahead for the next epoch"
        assert set((pool.read + pool.kept).values()) <= {epoch, epoch + 1}, "kept or read again, and never both"
        assert pool.read.total() + pool.kept.total() == epoch * pool.samples + pool.policy.residents()
    assert pool.demanded == 1, "only the very first"


def test_too_little_memory_never_reads_a_sample_twice() -> None:
    pool = Pool([30] * 100, 32, resident=0.05)
    for epoch, answers in enumerate(pool.epochs(3), 1):
        assert sorted(answers) == list(range(pool.samples))
        assert pool.read.total() + pool.kept.total() == epoch * pool.samples + pool.policy.residents()
    assert pool.demanded > 10


def test_samples_loaded_for_the_next_lap_are_not_served_early() -> None:
    pool = Pool([40, 40], 4, resident=0.25)
    order = np.random.default_rng(2).permutation(80).tolist()
    pool.ask_all(order)
    early = {s for s in range(80) if pool.policy.is_resident(s)}
    assert pool.policy.laps(np.arange(80)).tolist() == [1] * 80, "no request has reached the next lap"
    assert 12 <= len(early) <= 20, "and memory is full of it"
    assert {pool.read[s] + pool.kept[s] for s in early} == {2}, "read for this lap, then kept or read for the next"
    demanded = pool.demanded
    second = pool.ask_all(order)
    assert set(second) == set(range(80))
    assert pool.policy.laps(np.arange(80)).tolist() == [2] * 80
    assert pool.demanded == demanded


def test_the_seed_alone_decides_the_answers() -> None:
    def run(seed: int) -> list[Served]:
        pool = Pool([50] * 8, 8, resident=0.2)
        policy = policy_of(pool.cells, pool.class_of, pool.capacity_bytes, seed)
        return [policy.request(s) for _ in range(2) for s in range(pool.samples)]

    assert run(1) == run(1)
    assert [s.sample for s in run(1)] != [s.sample for s in run(2)]


def test_samples_of_one_chunk_do_not_come_out_one_after_another() -> None:
    pool = Pool([2000] * 4, 64, resident=0.25, retained=0)
    *_, answers = pool.epochs(3)
    chunks = np.array([pool.policy.chunk_of(s) for s in answers])
    batches = chunks[: len(chunks) // 256 * 256].reshape(-1, 256)
    pairs = np.mean([sum(n * (n - 1) / 2 for n in Counter(batch.tolist()).values()) for batch in batches])
    # By age alone it would be each chunk's 64 within a few batches: more than two thousand.
    assert pairs < 900


def test_one_class_is_served_with_memory_full_of_others() -> None:
    pool = Pool([30] * 20, 16, resident=0.2)
    of_first = list(range(30))
    for lap in range(1, 6):
        assert sorted(pool.ask_all(of_first)) == of_first
        assert pool.policy.laps(np.array([0, 599])).tolist() == [lap, 1]
    assert pool.policy.resident_bytes <= pool.capacity_bytes
    everybody = pool.ask_all(range(30, 600))
    assert sorted(everybody) == list(range(30, 600))


@pytest.mark.slow
def test_rarely_asked_classes_do_not_fill_memory() -> None:
    pool = Pool([400] * 20, 16, resident=0.2)
    weight = np.random.default_rng(3).exponential(size=20)[pool.class_of]
    asked = np.random.default_rng(4).choice(pool.samples, 24_000, p=weight / weight.sum()).tolist()
    turns = Counter(pool.ask_all(asked[:12_000]))
    before = pool.demanded
    turns.update(pool.ask_all(asked[12_000:]))
    # If they filled it, 22 of 100 opens would wait.
    assert pool.demanded - before < 0.15 * 12_000
    for cls in range(20):
        of_class = [turns[s] for s in np.flatnonzero(pool.class_of == cls).tolist()]
        assert max(of_class) - min(of_class) <= 1


@pytest.mark.parametrize("capacity", [0, 1])
def test_opens_are_answered_with_memory_for_less_than_a_chunk(capacity: int) -> None:
    policy = small([0, 0, 1, 1], [[0, 2], [1, 3]], capacity)
    for _ in range(3):
        served = [policy.request(s) for s in (0, 2, 3, 1)]
        assert sorted(s.sample for s in served) == [0, 1, 2, 3]
        assert policy.residents() <= capacity
    if not capacity:
        assert all(len(s.loads) == len(s.loads[0].samples) == 1 for s in served)


def test_a_demand_load_keeps_what_the_poorest_classes_need() -> None:
    # Chunk 0 fills the memory with classes 1 and 2; class 0 and 3 have nothing.
    classes = [0, 1, 1, 2, 2, 3, 0, 1, 2, 3]
    policy = small(classes, [[1, 2, 3, 4, -1], [0, 5, 7, 8, -1], [6, 9, -1, -1, -1]], 4)
    first = policy.request(1)
    while policy.residents() < 3:
        policy.request(1)
    assert first.is_demanded
    for _ in range(8):
        served = policy.request(0)
        if served.is_demanded:
            kept = served.loads[0].samples[1:]
            assert all(classes[s] in (0, 3) for s in kept) or policy.resident_bytes <= 4 * SIZE_BYTES


def test_few_chunks_are_handed_out_at_once() -> None:
    pool = Pool([100] * 10, 5, resident=0.5)
    first = pool.ask(0)
    most = LOADS_PER_REQUEST - 1 + SAMPLES_AT_A_TIME // 5
    assert LOADS_PER_REQUEST < len(first.loads) <= 1 + most
    assert first.is_demanded
    assert not any(pool.ask(s).loads[most:] for s in range(1, 60))
    assert pool.policy.residents() > 0.5 * pool.samples - SAMPLES_AT_A_TIME


def test_the_oldest_resident_goes_out_during_the_first_loads() -> None:
    pool = Pool([2000], 50, resident=0.8)
    first = pool.ask(0)
    assert first.sample == first.loads[0].samples[0]
    scheduled = [s for load in first.loads for s in load.samples]
    answers = [pool.ask(0).sample for _ in range(20)]
    assert answers == scheduled[1:21]


def test_an_unloaded_reservation_is_loaded_at_its_turn() -> None:
    policy = small([0, 1, 0, 1], [[0, 1], [2, 3]], 4)
    reserved = policy.reserve(0)
    assert reserved is not None
    assert policy.residents() == 0
    taken = policy.take(reserved)
    assert taken.is_demanded
    assert not taken.preempted
    assert set(taken.loads[0].samples) == ({0, 1} if reserved == 0 else {2, 3})


def test_a_dataset_without_samples_is_accepted() -> None:
    policy = policy_of(np.empty((0, 8), np.int32), np.empty(0, np.int32), 100)
    assert policy.residents() == 0


@pytest.mark.parametrize("cells", [[[0, 0]], [[0, 2]], [[0, -1]], [[0, 1], [1, -1]]])
def test_cells_must_have_each_sample_once(cells: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="exactly one cell"):
        small([0, 0], cells, 1)
