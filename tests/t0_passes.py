"""Passes: no run of opens of distinct paths gets a sample twice, whatever was opened before it."""

from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pools import SIZE_BYTES, Pool

from redoxfs.protocol import Binding, PoolPolicy
from redoxfs.protocol.pool import passes, state
from redoxfs.protocol.pool.passes import LOOK_SHARE, Passes
from redoxfs.protocol.pool.state import LOOKS_SHARE
from redoxfs.protocol.turns import taken_back


class Run:
    """The longest run of opens of a tree without a path twice, by the definition; and what they got."""

    def __init__(self) -> None:
        self.opens: list[tuple[int, int]] = []

    def open(self, path: int, sample: int) -> bool:
        """Whether the run had the sample."""
        paths = [each for each, _ in self.opens]
        if path in paths:
            del self.opens[: paths.index(path) + 1]
        twice = any(got == sample for _, got in self.opens)
        self.opens.append((path, sample))
        return twice

    def close(self, kept: int) -> None:
        """The run begins with its last ``kept`` opens."""
        self.opens = self.opens[len(self.opens) - kept :]


class Job:
    """A job on a pool that keeps passes. Counts the samples that a pass got twice."""

    def __init__(
        self,
        of_class: list[int],
        chunk_size: int = 16,
        *,
        resident: float = 0.1,
        seed: int = 0,
        trees: int = 1,
        retained: int | None = None,
    ) -> None:
        self.pool = Pool(of_class, chunk_size, resident=resident, seed=seed, retained=retained)
        self.samples = self.pool.samples
        self.class_of = self.pool.class_of
        self.tree_of = self.class_of % trees
        self.trees = trees
        self.policy.keep_passes(self.tree_of, trees)

    @property
    def policy(self) -> PoolPolicy:
        return self.pool.policy

    @property
    def passes(self) -> Passes:
        assert self.policy._passes is not None
        return self.policy._passes

    def read(self, paths: Iterable[int]) -> list[int]:
        return [self.pool.ask(path).sample for path in paths]

    def read_twice(self, paths: Iterable[int]) -> int:
        """How many of the samples came twice."""
        answers = self.read(paths)
        return len(answers) - len(set(answers))


def shuffled(random: np.random.Generator, paths: int, count: int | None = None) -> list[int]:
    return random.permutation(paths)[:count].tolist()


TEN = [50] * 10
ONE = [500]

N = 500
EPOCHS = 9


def epochs(kind: str, random: np.random.Generator) -> Iterator[tuple[bool, list[int]]]:
    """What a job reads, in turn, of 500 files; and whether it is an epoch."""
    in_order = list(range(N))
    first = {"two first": 2, "a fifth first": 100, "a third first": 167}
    if kind in first:
        yield False, shuffled(random, N, first[kind])
    if kind == "a fifth first, in order":
        yield False, in_order[:100]
    if kind == "the last first":
        yield False, [N - 1]
    if kind == "broken off at half":
        yield True, shuffled(random, N)
        yield False, shuffled(random, N, N // 2)
    dropped = {"drop_last": 448, "3 left out": 497, "one left out": 499, "a tenth": 50, "half": 250}
    for _ in range(EPOCHS):
        if kind == "the same 7 before each":
            yield False, in_order[:7]
        if kind == "7 before each":
            yield False, shuffled(random, N, 7)
        if kind == "padded":
            order = shuffled(random, N)
            yield True, order
            yield False, order[:5]
        elif kind == "nearly in order":
            # As several processes read that share an epoch in order.
            yield True, np.argsort(np.arange(N) + 4 * random.random(N), kind="stable").tolist()
        elif kind in dropped:
            yield True, shuffled(random, N, dropped[kind])
        elif kind in ("in order", "the last first", "a fifth first, in order"):
            yield True, in_order
        elif kind == "the same 98 % in order":
            yield True, in_order[:490]
        elif kind == "all but one in order":
            yield True, in_order[:-1]
        elif kind == "the same third in order":
            yield True, in_order[:166]
        elif kind == "the same third":
            yield True, random.permutation(166).tolist()
        else:
            yield True, shuffled(random, N)


KINDS = [
    "whole",
    "in order",
    "two first",
    "a fifth first",
    "a third first",
    "a fifth first, in order",
    "the last first",
    "broken off at half",
    "drop_last",
    "3 left out",
    "one left out",
    "a tenth",
    "half",
    "the same 7 before each",
    "7 before each",
    "padded",
    "the same 98 % in order",
    "all but one in order",
    "the same third in order",
    "the same third",
    "nearly in order",
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_gets_no_sample_twice(kind: str) -> None:
    for of_class, resident, seed in (
        (TEN, 0.1, 0),
        (ONE, 0.1, 1),
        (TEN, 0.5, 2),
        (ONE, 1.1, 3),
        ([12] * 41 + [8], 0.1, 4),
    ):
        job = Job(of_class, resident=resident, seed=seed)
        for is_epoch, paths in epochs(kind, np.random.default_rng(seed)):
            twice = job.read_twice(paths)
            # One that leaves out a single path looks like one more of the epoch before, if it begins with that path's.
            assert not is_epoch or twice <= (kind == "one left out")
            assert job.policy.resident_bytes <= job.pool.capacity_bytes
        assert job.policy.passes_given_twice == 0


class Model:
    """A plain model of one pool with passes; asserts its rules at every step.

    ``runs``      by tree
    ``held``      samples in memory that are neither served nor reserved
    ``reserved``  by path: the sample that a stat has reserved for it
    ``turns``     since the last resume: path, sample and lap
    """

    def __init__(self, job: Job) -> None:
        self.job, self.policy = job, job.policy
        self.runs = [Run() for _ in range(job.trees)]
        self.closed = [0] * job.trees
        self.unordered = [0] * job.trees
        self.given_twice = 0
        self.held: set[int] = set()
        self.reserved: dict[int, int] = {}
        self.given = 0
        self.turns: list[tuple[int, int, int]] = []

    def open(self, path: int) -> None:
        tree = int(self.job.tree_of[path])
        reserved = self.reserved.pop(path, None)
        served = self.policy.request(path) if reserved is None else self.policy.take(reserved, path)
        assert self.job.class_of[served.sample] == self.job.class_of[path]
        assert reserved in (None, served.sample)
        owners = [owner for owner, sample in self.reserved.items() if sample == served.sample]
        assert served.preempted == bool(owners)
        for owner in owners:
            del self.reserved[owner]
        self.given += 1
        self.turns.append((path, served.sample, self.policy.lap_of(served.sample)))
        for chunk, samples in served.loads:
            assert not self.held & set(samples), "no sample in memory is read again"
            assert not set(samples) & {*self.reserved.values()}
            assert all(self.policy.chunk_of(sample) == chunk for sample in samples)
            self.held |= set(samples)
        assert self.held >= set(served.gone)
        self.held -= set(served.gone)
        (self.held.add if served.kept else self.held.discard)(served.sample)
        run, of_tree = self.runs[tree], self.job.passes.trees[tree]
        if any(each == path for each, _ in run.opens[: self.unordered[tree]]):
            # In which order they came was not kept.
            del run.opens[: self.unordered[tree]]
            self.unordered[tree] = 0
        elif any(each == path for each, _ in run.opens):
            self.unordered[tree] = 0
        if self.policy.passes_given_twice != self.given_twice:
            self.given_twice = self.policy.passes_given_twice
            run.opens = [each for each in run.opens if self.job.class_of[each[1]] != self.job.class_of[path]]
        if of_tree.closed != self.closed[tree]:
            self.closed[tree] = of_tree.closed
            run.close(of_tree.opens - 1)
            self.unordered[tree] = 0
        assert not run.open(path, served.sample), "no sample twice in a run"
        assert of_tree.opens <= len(run.opens)

    def stat(self, path: int) -> None:
        if path in self.reserved:
            return
        chosen = self.policy.reserve(path)
        if chosen is not None:
            assert chosen not in self.reserved.values()
            assert self.job.class_of[chosen] == self.job.class_of[path]
            self.held.discard(chosen)
            self.reserved[path] = chosen
            assert chosen in self.policy._reserved[int(self.job.class_of[chosen])]

    def forget(self, path: int) -> None:
        sample = self.reserved.pop(path, None)
        if sample is not None and self.policy.put_back(sample):
            self.held.add(sample)

    def resume(self, *, whole: bool) -> None:
        turns = self.policy.kept_turns(whole=whole)
        assert turns.given == self.given
        self.policy.restore(turns)
        self.held.clear()
        self.reserved.clear()
        for tree, run in zip(self.job.passes.trees, self.runs, strict=True):
            run.close(min(len(run.opens), tree.opens))
            self.unordered[tree.number] = min(len(run.opens), self.unordered[tree.number] if whole else len(run.opens))
            asked = np.flatnonzero((self.job.passes.asked_array > tree.since) & (self.job.tree_of == tree.number))
            assert {path for path, _ in run.opens} >= {*asked.tolist()}
        self.closed = [tree.closed for tree in self.job.passes.trees]
        self.turns.clear()

    def lose_paths(self) -> None:
        """Resume without a record of which paths were opened."""
        turns = self.policy.kept_turns(whole=True)
        assert turns.passes is not None
        self.policy.restore(turns._replace(passes=turns.passes._replace(asked=np.zeros_like(turns.passes.asked))))
        self.held.clear()
        for run in self.runs:
            run.opens = [(-1, sample) for _, sample in run.opens]

    def take_back(self, taken: Collection[int]) -> None:
        """Resume without these of `turns`, as a loader had opened them ahead."""
        rows = np.array([self.turns[number][1:] for number in taken], np.int64).reshape(-1, 2)
        last = {turn[:2]: number for number, turn in enumerate(self.turns)}
        opens = [tree.opens for tree in self.job.passes.trees]
        turns, _ = taken_back(self.policy.kept_turns(whole=True), self.policy.units, rows[:, 0], rows[:, 1])
        self.policy.restore(turns)
        self.given = self.policy.given
        self.held.clear()
        self.reserved.clear()
        self.turns.clear()
        for tree, run, length in zip(self.job.passes.trees, self.runs, opens, strict=True):
            run.close(length)
            run.opens = [each for each in run.opens if last[each] not in taken]
            of_tree = self.job.tree_of == tree.number
            asked = np.flatnonzero((self.job.passes.asked_array > tree.since) & of_tree)
            assert asked.tolist() == sorted(path for path, _ in run.opens)
            in_pass = np.flatnonzero(self.job.passes.in_pass_array & of_tree)
            assert in_pass.tolist() == sorted(sample for _, sample in run.opens)
        self.closed = [tree.closed for tree in self.job.passes.trees]

    def check(self) -> None:
        policy, class_of = self.policy, self.job.class_of
        queues, in_pass = policy._queues, self.job.passes.in_pass_array
        assert policy.resident_bytes == len(self.held) * SIZE_BYTES <= self.job.pool.capacity_bytes
        assert policy._free_bytes >= 0
        retained = [s for s in self.held if policy.is_retained(s) and queues.is_retained(int(class_of[s]), s)]
        assert policy.retained_bytes == len(retained) * SIZE_BYTES + policy._put_aside_bytes
        assert {s for s in range(self.job.samples) if policy.is_resident(s)} == self.held
        this_lap, next_lap = np.zeros((2, len(self.job.pool.cells)), int)
        for sample, cls in enumerate(class_of.tolist()):
            place = queues.at_array[sample]
            is_left = place >= queues.served[cls]
            assert (queues.had[sample] != 0) == (not is_left)
            assert (queues.had[sample] == 2) == (sample in self.reserved.values())
            if is_left:
                assert not in_pass[sample], "all that is left in a lap is allowed"
            chunk = policy.chunk_of(sample)
            this_lap[chunk] += place >= queues.loaded[cls]
            is_open = place >= queues.next[cls] and queues.had[sample] != 2 and not queues.stays[sample]
            next_lap[chunk] += bool(policy._runs_over[cls]) and is_open
        assert policy._chunks.this_lap_array.tolist() == this_lap.tolist()
        assert policy._chunks.next_lap_array.tolist() == next_lap.tolist()
        for cls in range(int(class_of.max()) + 1):
            ends = [queues.begun, queues.kept, queues.next, queues.served, queues.stream, queues.arrived, queues.loaded]
            borders = [int(each[cls]) for each in ends] + [int(queues.begun[cls + 1])]
            assert borders == sorted(borders)
            stock = borders[2] - borders[1] + borders[6] - borders[4]
            assert queues.stock[cls] == stock
        assert queues.at_array[queues.queue_array].tolist() == list(range(self.job.samples))


@given(
    of_class=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    chunk_size=st.integers(1, 8),
    resident=st.floats(0, 1.5),
    trees=st.integers(1, 2),
    retained=st.none() | st.integers(0, 30),
    looks=st.sampled_from([(LOOK_SHARE, LOOKS_SHARE), (1 / 4, 1.0)]),
    seed=st.integers(0, 1 << 16),
    data=st.data(),
)
@pytest.mark.slow
def test_no_run_of_distinct_paths_gets_a_sample_twice(
    of_class: list[int],
    chunk_size: int,
    resident: float,
    trees: int,
    retained: int | None,
    looks: tuple[float, float],
    seed: int,
    data: st.DataObject,
) -> None:
    """Looks, epochs whole and limited, in order, by several processes and repeated; stats, second tries, resumes."""
    trees = min(trees, len(of_class))
    with patch.object(passes, "LOOK_SHARE", looks[0]), patch.object(state, "LOOKS_SHARE", looks[1]):
        job = Job(of_class, chunk_size, resident=resident, seed=seed, trees=trees, retained=retained)
        _read_at_random(Model(job), data, seed)


def _read_at_random(model: Model, data: st.DataObject, seed: int) -> None:
    trees = model.job.trees
    random = np.random.default_rng(seed)
    paths = model.job.samples
    kinds = st.sampled_from(
        ["epoch", "limited", "in order", "look", "one", "same", "stats", "again", "forget", "parallel"]
    )
    for kind in data.draw(st.lists(kinds | st.sampled_from(["whole resume", "resume", "say"]), max_size=14)):
        count = int(random.integers(1, paths + 1))
        order = shuffled(random, paths)
        if kind == "in order":
            order = sorted(order[:count]) if random.random() < 0.5 else list(range(paths))
        elif kind in ("limited", "look"):
            order = order[: count if kind == "limited" else 1 + count // 8]
        elif kind == "one":
            order = order[:1] * 3
        elif kind == "same":
            order = list(range(count))
        elif kind == "parallel":
            order = [path for first in range(3) for path in range(first, paths, 3)]
        elif kind == "say":
            for tree in range(trees):
                model.policy.begin_pass(tree)
                model.runs[tree].close(0)
                model.unordered[tree] = 0
            continue
        elif kind in ("whole resume", "resume"):
            model.resume(whole=kind == "whole resume")
            model.check()
            continue
        for path in order[:40]:
            if kind == "again" and random.random() < 0.3:
                # One that failed and is tried again.
                model.open(path)
                model.open(path)
            elif kind == "stats" and random.random() < 0.7:
                model.stat(path)
            elif kind == "forget":
                model.forget(path)
            else:
                model.open(path)
            if random.random() < 0.3:
                model.check()
        model.check()
    assert model.policy.passes_given_twice == 0


@given(
    of_class=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    resident=st.floats(0, 1.5),
    trees=st.integers(1, 2),
    loaders=st.integers(1, 3),
    stats=st.sampled_from([0, 0.2]),
    seed=st.integers(0, 1 << 16),
)
@pytest.mark.slow
def test_a_pass_keeps_what_it_got_when_an_earlier_turn_of_that_is_taken_back(
    of_class: list[int], resident: float, trees: int, loaders: int, stats: float, seed: int
) -> None:
    """One of the loaders is behind, and others have begun the next pass."""
    model = Model(Job(of_class, 4, resident=resident, seed=seed, trees=min(trees, len(of_class))))
    random, samples = np.random.default_rng(seed), model.job.samples
    for _ in range(random.integers(1, 4)):
        for path in shuffled(random, samples, int(random.integers(1, samples + 1))):
            if random.random() < stats:
                model.stat(int(random.integers(samples)))
            model.open(path)
    laps = model.policy.kept_turns(whole=True).laps[model.job.class_of]
    later = {turn[1:]: number for number, turn in enumerate(model.turns)}
    first = int(random.integers(len(model.turns) + 1))
    taken = {
        number
        for number, (_, sample, lap) in enumerate(model.turns)
        # Of earlier laps, and of two turns in one, a state does not know which one the pass has.
        if number % loaders == 0 and lap >= laps[sample] - 1 and later[sample, lap] == number >= first
    }
    model.take_back(taken)
    for path in shuffled(random, samples) + shuffled(random, samples):
        model.open(path)
    model.check()
    assert model.policy.passes_given_twice == 0


@given(
    of_class=st.lists(st.integers(1, 8), min_size=1, max_size=3),
    resident=st.floats(0, 1.5),
    seed=st.integers(0, 1 << 16),
)
@pytest.mark.slow
def test_a_pass_that_was_given_a_sample_twice_keeps_what_it_gets_from_then_on(
    of_class: list[int], resident: float, seed: int
) -> None:
    model = Model(Job(of_class, 4, resident=resident, seed=seed))
    random, samples = np.random.default_rng(seed), model.job.samples
    for path in shuffled(random, samples, int(random.integers(1, samples + 1))):
        model.open(path)
    model.lose_paths()
    for _ in range(3):
        for path in shuffled(random, samples):
            model.open(path)
        model.check()


def test_a_pass_that_is_said_to_begin_gets_all_samples_at_once() -> None:
    """In order, and broken off anywhere: without the word the first opens would get what they got before."""
    job = Job(TEN, seed=3)
    for count in (500, 20, 300, 500, 500):
        job.policy.begin_pass(0)
        assert job.passes.trees[0].opens == 0
        assert job.read_twice(range(count)) == 0
    assert job.policy.passes_given_twice == 0


@pytest.mark.parametrize("first", [1, 20, 250])
def test_epochs_in_order_that_began_with_another_file_are_exact_once_one_is_told(first: int) -> None:
    """Nothing else tells which file is the first one: an epoch that begins with any other has the same order."""
    job = Job(ONE, seed=first)
    job.read(range(first, N))
    twice_in = [job.read_twice(range(N)) for _ in range(4)]
    assert 0 < min(twice_in) <= max(twice_in) <= min(first, 0.3 * N)
    job.policy.begin_pass(0)
    assert not any(job.read_twice(range(N)) for _ in range(4))


@pytest.mark.parametrize("order", ["in order", "shuffled"])
@pytest.mark.parametrize("classes", [1, 3, 10])
@pytest.mark.parametrize("share", [0.1, 0.4, 1])
def test_a_reader_that_asks_for_sizes_first_gets_what_was_reserved(share: float, classes: int, order: str) -> None:
    """Also where a job reads less than half of a tree, such as some classes of it."""
    job = Job(TEN)
    model, random = Model(job), np.random.default_rng(7)
    some = np.concatenate([np.flatnonzero(job.class_of == cls)[: int(share * 50)] for cls in range(classes)])
    for _ in range(4):
        for path in (random.permutation(some) if order == "shuffled" else some).tolist():
            model.stat(path)
            assert path in model.reserved
            model.open(path)


def test_a_sample_that_was_read_again_for_the_next_lap_leaves_the_count_of_retained_ones() -> None:
    """After a resume nothing is retained yet. The sizes that are asked for then are of the next pass."""
    for seed in range(4):
        job = Job([40], 4, resident=0.5, retained=10, seed=seed)
        model = Model(job)
        for path in range(40):
            model.open(path)
            if path == 20:
                model.resume(whole=True)
        for path in range(12, 40):
            model.stat(path)
        model.check()


@pytest.mark.parametrize("classes", [1, 3])
def test_two_readers_in_order_of_some_classes_get_most_of_the_sizes_that_they_ask_for(classes: int) -> None:
    """What is left in a lap is for one of them, whichever asks first. To keep it for the other would be unfair."""
    wrong, opens = 0, 0
    for seed in range(3):
        job, random = Job([40] * 10, seed=seed), np.random.default_rng(seed)
        binding = Binding(job.policy, np.ones(job.samples, np.int64))
        for epoch in range(5):
            batches = np.arange(40 * classes).reshape(-1, 8)
            todo = [batches[reader::2].ravel().tolist() for reader in range(2)]
            told: dict[int, int | None] = {}
            while any(todo):
                reader = int(random.integers(2))
                if not todo[reader]:
                    continue
                thread = 2 * epoch + reader + 1
                if thread not in told:
                    told[thread] = binding.stat(todo[reader][0], 0, thread).sample
                    continue
                path = todo[reader].pop(0)
                wrong += binding.open(path, 0, thread).sample != told.pop(thread)
                opens += 1
                binding.close(path)
    assert wrong < 0.07 * opens


def test_a_size_that_is_asked_for_within_the_next_pass_is_of_that_wherever_it_is_found_to_begin() -> None:
    """The pass had all paths, with the help of the first ones of the next, which are in order."""
    for seed in range(8):
        model = Model(Job([14], seed=seed))
        for path in (2, *range(4, 14), 0, 1, 2, 3):
            model.open(path)
        model.stat(12)
        for path in range(8, 13):
            model.open(path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["whole", "drop_last", "3 left out", "7 before each", "in order"])
def test_epochs_read_each_chunk_once_and_do_not_depend_on_each_other(kind: str) -> None:
    loads, correlations = [], []
    for seed in range(4):
        job, orders = Job(ONE, 10, resident=0.2, seed=seed), []
        for is_epoch, paths in epochs(kind, np.random.default_rng(seed)):
            before = job.pool.loads.total()
            answers = job.read(paths)
            if is_epoch:
                loads.append((job.pool.loads.total() - before) / len(job.pool.cells))
                orders.append(dict(zip(answers, range(len(answers)), strict=True)))
        for one, other in pairwise(orders[1:]):
            both = [sample for sample in one if sample in other]
            correlations.append(np.corrcoef([one[s] for s in both], [other[s] for s in both])[0, 1])
    assert np.mean(loads) < 1.12
    if kind in ("whole", "in order"):
        # In small trees where files were left out, the first opens of an epoch show what came early in the last one.
        assert abs(np.mean(correlations)) < 3 * np.std(correlations) / np.sqrt(len(correlations)) + 0.02


@pytest.mark.parametrize("resident", [0.1, 0.5])
def test_a_look_at_some_files_before_an_epoch_costs_no_chunks(resident: float) -> None:
    """What was looked at stays in memory. Read for the epoch again, it cost 1.2 times the chunks and more."""
    loads = []
    for look in (0, 30):
        job, random = Job([400] * 10, resident=resident), np.random.default_rng(0)
        for _ in range(6):
            job.read(shuffled(random, job.samples, look))
            assert job.read_twice(shuffled(random, job.samples)) == 0
        loads.append(job.pool.loads.total())
    assert loads[1] < 1.03 * loads[0]


def test_what_a_pass_was_given_first_leaves_memory_once_it_was_no_look() -> None:
    job, random = Job([400] * 10), np.random.default_rng(0)
    job.read(shuffled(random, job.samples))
    order = shuffled(random, job.samples)
    first = job.read(order[:30])
    assert all(job.policy.is_resident(sample) for sample in first)
    job.read(order[30:2400])
    assert not any(job.policy.is_resident(sample) for sample in first)


@pytest.mark.slow
@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize(("look", "left_out"), [(0, 32), (0, 400), (30, 0)])
def test_the_order_of_epochs_that_leave_files_out_does_not_depend_on_the_one_before(
    look: int, left_out: int, told: bool
) -> None:
    """Chunks that had samples left when a pass ended their lap are loaded as early or late as any, and samples that
    were looked at first.
    """
    correlations = []
    for seed in range(2):
        job, random, before = Job([400] * 10, seed=seed), np.random.default_rng(seed), np.zeros(0)
        for number in range(10):
            job.read(shuffled(random, job.samples, look))
            if told:
                job.policy.begin_pass(0)
            places = np.full(job.samples, np.nan)
            answers = job.read(shuffled(random, job.samples, job.samples - left_out))
            places[answers] = np.arange(len(answers))
            if number > 1:
                both = ~np.isnan(places + before)
                correlations.append(np.corrcoef(places[both], before[both])[0, 1])
            before = places
    # It was 0.06 to 0.1 with them late in each lap.
    assert abs(np.mean(correlations)) < 0.04


@pytest.mark.parametrize("died_before", ["nothing", "its record"])
def test_another_process_continues_the_pass_in_the_memory_that_outlived_one(died_before: str) -> None:
    memory = memoryview(bytearray(Job(TEN).policy.passes_bytes()))
    job = Job(TEN, seed=1)
    job.policy.keep_passes_in(memory)
    random = np.random.default_rng(1)
    job.read(shuffled(random, N, 30))
    order = shuffled(random, N)
    answers = job.read(order[:200])
    turns = job.policy.turns_to_repeat()
    if died_before == "its record":
        job.read(order[200:201])
    after = Job(TEN, seed=2)
    after.policy.keep_passes_in(memory)
    after.policy.recover(turns)
    answers += after.read(order[200:])
    assert len({*answers}) == N
    assert after.read_twice(shuffled(random, N)) == 0


@pytest.mark.parametrize("seed", range(3))
def test_what_was_reserved_for_the_next_pass_is_of_that_pass_after_a_death(seed: int) -> None:
    """Readers ask for sizes, and two others have opened paths, when a process dies at the beginning of an epoch."""
    memory = memoryview(bytearray(Job([40]).policy.passes_bytes()))
    job, asked, opened = Job([40], seed=seed), range(12, 30), [3, 7]
    job.policy.keep_passes_in(memory)
    job.read(range(40))
    reserved = [job.policy.reserve(path) for path in asked]
    answers = job.read(opened)
    turns = job.policy.turns_to_repeat()
    after = Job([40], seed=seed + 1)
    after.policy.keep_passes_in(memory)
    after.policy.recover(turns)
    for sample in reserved:
        assert sample is not None
        after.policy.reserve_again(sample)
    for path, sample in zip(asked, reserved, strict=True):
        assert sample is not None
        answers.append(after.policy.take(sample, path).sample)
    answers += after.read({*range(40)}.difference(asked, opened))
    assert len({*answers}) == 40


def test_an_epoch_that_was_told_and_broken_off_before_half_of_it_is_not_counted() -> None:
    cells, sizes = np.arange(80, dtype=np.int32).reshape(20, 4), np.ones(80, np.int64)
    policy = PoolPolicy(cells, np.zeros(80, np.int32), sizes, capacity_bytes=20, seed=0)
    policy.keep_passes(np.zeros(80, np.int32), 1)
    early = []
    for opened in (3, 39, 40, 80, 0):
        policy.begin_pass(None)
        early.append(policy.passes()[0].early)
        for path in range(opened):
            policy.request(path)
    assert early == [0, 0, 0, 1, 1]
    assert policy.passes()[0].complete == 1
