"""What the pool retains from lap to lap: what a lap reads then, and that no sample is early or late for it."""

from collections import Counter

import numpy as np
import pytest
from pools import SIZE_BYTES, Pool, policy_of

from redoxfs.protocol import PoolPolicy
from redoxfs.protocol.pool.retained import STREAM_CHUNKS, STREAM_PER_CLASS, STREAM_SHARE, draw_chunks, streamed_share

TEN, HUNDRED = [300] * 10, [30] * 100


def retained(pool: Pool) -> set[int]:
    return {sample for sample in range(pool.samples) if pool.policy.is_retained(sample)}


def read_in(pool: Pool, laps: int, seed: int = 5) -> list[float]:
    """What each of so many laps reads, as a share of the samples."""
    shares, before = [], 0
    for answers in pool.epochs(laps, seed):
        assert sorted(answers) == list(range(pool.samples))
        shares.append((pool.read.total() - before) / pool.samples)
        before = pool.read.total()
    return shares


@pytest.mark.parametrize(
    ("of_class", "resident", "most"),
    [(TEN, 0.26, 0.9), (TEN, 0.52, 0.62), (TEN, 0.83, 0.32)]
    + [(HUNDRED, 0.26, 0.96), (HUNDRED, 0.52, 0.69), (HUNDRED, 0.83, 0.37)],
)
def test_a_lap_reads_what_is_not_retained(of_class: list[int], resident: float, most: float) -> None:
    pool = Pool(of_class, 16, resident=resident)
    kept = retained(pool)
    first, second, *later = read_in(pool, 5)
    streamed = 1 - len(kept) / pool.samples
    assert 1 <= first <= 1 + STREAM_SHARE * streamed + STREAM_PER_CLASS * len(of_class) / pool.samples
    assert streamed - 0.1 < min(second, *later) <= max(second, *later) <= most
    assert {pool.read[sample] for sample in kept} == {1}, "read in the first lap, with the others, and never again"
    assert pool.policy.retained_bytes == len(kept) * SIZE_BYTES
    assert pool.policy.reads_saved == 4 * len(kept)
    assert pool.policy.reads_alone < 0.01 * 4 * pool.samples


def test_the_stream_has_what_the_rule_says() -> None:
    few, many = np.array(TEN), np.array(HUNDRED)
    for of_class, capacity, chunk_samples, stream in (
        (few, 1_500, 16, lambda streamed: streamed * STREAM_SHARE),
        (many, 1_500, 16, lambda _: 100 * STREAM_PER_CLASS),
        (few, 2_700, 64, lambda _: STREAM_CHUNKS * 64),
        (few, 300, 16, lambda _: 300),
    ):
        streamed = streamed_share(of_class, capacity, chunk_samples) * 3_000
        assert 3_000 - streamed + stream(streamed) == pytest.approx(max(capacity, stream(streamed)), abs=1)
    assert streamed_share(few, 3_000, 16) == 0
    assert streamed_share(few, 0, 16) == 1


def test_memory_for_an_eighth_and_less_is_all_for_the_stream() -> None:
    pool = Pool([640] * 10, 16, resident=0.12)
    assert retained(pool) == set()
    assert read_in(pool, 3)[2] > 0.97


@pytest.mark.parametrize("resident", [0.3, 0.6, 0.9])
def test_successive_laps_are_independent(resident: float) -> None:
    """With chunks so large that few are streamed, and with small ones."""
    for chunk_size in (64, 16):
        correlations = []
        for seed in range(6):
            pool = Pool(TEN, chunk_size, resident=resident, seed=seed)
            places = np.array([np.argsort(answers) for answers in pool.epochs(4, seed)][1:])
            correlations += np.asarray(np.corrcoef(places))[np.triu_indices(3, 1)].tolist()
        # The samples of a chunk come near each other, so chance is not that of 3,000 samples.
        assert abs(np.mean(correlations)) < 3 * np.std(correlations) / np.sqrt(len(correlations))
        assert abs(np.mean(correlations)) < 0.05


def test_no_sample_is_early_or_late_because_it_is_retained() -> None:
    """With so many small classes that a class often has nothing of the stream in memory."""
    early, samples, alone = [], 0, 0
    for seed in range(8):
        pool = Pool([12] * 300, 16, resident=0.6, seed=seed, retained=1_440)
        kept = np.array(sorted(retained(pool)))
        assert len(kept) > 1_400
        others = np.setdiff1d(np.arange(pool.samples), kept)
        for answers in [*pool.epochs(4, seed)][1:]:
            places = np.argsort(answers) / pool.samples
            early.append(places[kept].mean() - places[others].mean())
        samples, alone = pool.samples, alone + pool.policy.reads_alone
    error = np.sqrt((1 / len(kept) + 1 / len(others)) / 12 / len(early))
    assert abs(np.mean(early)) < 3 * error < 0.01
    assert alone > 0.001 * 8 * 4 * samples, "otherwise this shows nothing"


def test_no_size_is_early_or_late() -> None:
    random = np.random.default_rng(0)
    class_of = np.repeat(np.arange(10, dtype=np.int32), 400)
    sizes = random.lognormal(10, 1, len(class_of)).astype(np.int64)
    correlations = []
    for seed in range(4):
        cells = random.permutation(len(class_of)).astype(np.int32).reshape(-1, 16)
        policy = PoolPolicy(cells, class_of, sizes, capacity_bytes=int(sizes.sum() * 0.5), seed=seed)
        assert 0.4 * sizes.sum() < sizes[[policy.is_retained(s) for s in range(len(sizes))]].sum() < 0.5 * sizes.sum()
        for lap in range(4):
            order = random.permutation(len(class_of)).tolist()
            places = np.argsort([policy.request(sample).sample for sample in order])
            assert policy.resident_bytes <= 0.5 * sizes.sum()
            if lap:
                correlations.append(np.corrcoef(np.argsort(np.argsort(sizes)), places)[0, 1])
    assert abs(np.mean(correlations)) < 3 / np.sqrt(len(correlations) * len(sizes))


def test_every_chunk_is_retained_as_often_whatever_its_size() -> None:
    """Chi-square over 200 seeds; large and small chunks."""
    random = np.random.default_rng(0)
    sizes = random.integers(500, 1_500, 60)
    seeds, times = 200, np.zeros(60)
    for seed in range(seeds):
        drawn = draw_chunks(sizes, int(sizes.sum() * 0.4), np.random.default_rng([seed, 1]))
        assert 0.37 * sizes.sum() < sizes[drawn].sum() <= 0.4 * sizes.sum()
        times[drawn] += 1
    share = times.mean() / seeds
    chi_square = ((times - share * seeds) ** 2).sum() / (seeds * share * (1 - share))
    assert abs(chi_square - 59) < 3 * np.sqrt(2 * 59)
    assert abs(np.corrcoef(sizes, times)[0, 1]) < 3 / np.sqrt(60)


def test_what_is_retained_does_not_depend_on_the_first_lap() -> None:
    kept = retained(Pool(TEN, 16, resident=0.5))
    for seed in range(3):
        pool = Pool(TEN, 16, resident=0.5)
        assert len([*pool.epochs(1, seed)]) == 1
        assert {sample for sample in kept if pool.policy.is_resident(sample)} == kept
        assert pool.policy.retained_samples == len(kept)


def test_a_policy_that_resumes_fills_again_from_what_it_reads_anyway() -> None:
    pool = Pool(TEN, 16, resident=0.6)
    order = np.random.default_rng(5).permutation(pool.samples).tolist()
    before = pool.ask_all(order[:1_000])
    turns = pool.policy.turns()
    pool.policy = policy_of(pool.cells, pool.class_of, pool.capacity_bytes)
    pool.policy.restore(turns)
    pool.read.clear()
    assert sorted(before + pool.ask_all(order[1_000:])) == list(range(pool.samples))
    assert pool.read.total() < 2_000 + 0.2 * pool.samples, "the rest of the lap, and what is ahead of the next"
    pool.read.clear()
    second, third, fourth = read_in(pool, 3)
    kept = retained(pool)
    assert second < 0.8, "those that had their turn before it resumed are read"
    assert max(third, fourth) < 0.55
    assert {pool.read[sample] for sample in kept} <= {0, 1}


def test_a_stat_before_each_open_costs_no_retained_sample() -> None:
    """Its room is kept while it is reserved."""
    pool = Pool(TEN, 16, resident=0.6)
    random = np.random.default_rng(0)
    for _ in range(4):
        pool.read.clear()
        order = random.permutation(pool.samples).tolist()
        answers = []
        waiting: list[int] = []
        for sample in order:
            reserved = pool.policy.reserve(sample)
            if reserved is None:
                turn = pool.policy.request(sample)
                answers.append(turn.sample)
                waiting = [each for each in waiting if each != turn.sample]
            else:
                turn = None
                waiting.append(reserved)
            if len(waiting) > 40:
                turn = pool.policy.take(waiting.pop(0))
                answers.append(turn.sample)
            if turn is not None:
                pool.read.update(s for load in turn.loads for s in load.samples)
        for reserved in waiting:
            turn = pool.policy.take(reserved)
            answers.append(turn.sample)
            pool.read.update(s for load in turn.loads for s in load.samples)
        assert sorted(answers) == list(range(pool.samples))
        assert pool.policy.resident_bytes <= pool.capacity_bytes
    kept = retained(pool)
    assert not kept & set(pool.read)
    assert pool.policy.retained_bytes == len(kept) * SIZE_BYTES


def test_a_retained_sample_saves_a_read_with_its_turn_and_not_before() -> None:
    """What a counter has counted, it never takes back, as when a reservation ends without a turn."""
    pool = Pool(TEN, 16, resident=0.6)
    [*pool.epochs(1)]
    kept = retained(pool)
    saved = pool.policy.reads_saved
    reserved = [each for each in map(pool.policy.reserve, range(pool.samples)) if each in kept]
    assert len(reserved) > 500
    assert pool.policy.reads_saved == saved
    for number, sample in enumerate(reserved):
        if number % 2:
            pool.policy.put_back(sample)
        else:
            pool.policy.take(sample)
    saved += (len(reserved) + 1) // 2
    assert pool.policy.reads_saved == saved
    # As on several nodes, where the lap goes on without it: it stays for the next one.
    assert not pool.policy.leave_out(reserved[1])
    assert pool.policy.is_resident(reserved[1])
    assert pool.policy.reads_saved == saved


def test_what_is_given_back_is_drawn_at_random_and_filled_again() -> None:
    times: Counter[int] = Counter()
    for seed in range(6):
        pool = Pool(TEN, 30, resident=0.6, seed=seed)
        kept = retained(pool)
        [*pool.epochs(2)]
        gone, gone_bytes = pool.policy.give_back(200 * SIZE_BYTES)
        assert 200 <= len(gone) < 230
        assert gone_bytes == len(gone) * SIZE_BYTES
        times.update({pool.policy.chunk_of(sample) for sample in gone})
        assert all(not pool.policy.is_resident(sample) for sample in gone)
        pool.capacity_bytes -= gone_bytes
        for answers in pool.epochs(2, seed):
            assert sorted(answers) == list(range(pool.samples))
            assert pool.policy.resident_bytes <= pool.capacity_bytes
        assert pool.policy.retained_bytes == len(kept) * SIZE_BYTES - gone_bytes
        pool.policy.take_back(gone_bytes)
        read_in(pool, 1)
        pool.read.clear()
        read_in(pool, 1)
        assert pool.policy.retained_bytes == len(kept) * SIZE_BYTES
        assert not kept & set(pool.read)
    assert len(times) > 25, "of 100 chunks, 7 of which were let go in each pool"


def test_the_stream_grows_where_too_many_samples_are_read_alone() -> None:
    pool = Pool(HUNDRED, 16, resident=0.5, retained=1_200)
    before = len(retained(pool))
    alone: list[float] = []
    for _ in range(8):
        counted = pool.policy.reads_alone
        read_in(pool, 1, seed=len(alone))
        alone.append((pool.policy.reads_alone - counted) / pool.samples)
    stream = 1_500 - before
    assert alone[-1] < 0.01 < alone[1]
    assert before - 2 * stream <= len(retained(pool)) < before


def test_a_program_that_asks_class_by_class_does_not_end_retention() -> None:
    """Samples are read alone then, however large the stream is."""
    pool = Pool(TEN, 16, resident=0.5)
    before = len(retained(pool))
    for _ in range(12):
        pool.ask_all(range(pool.samples))
    stream = 1_500 - before
    assert len(retained(pool)) >= before - stream - 2 * 16
