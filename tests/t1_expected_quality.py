"""What the measures of shuffle quality are for a permutation and for the pool, beside orders drawn or served."""

from math import log2

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shuffle_quality import entropies, mean_mate_pairs

from redoxfs.chunks.layout import build_cells
from redoxfs.protocol import PoolPolicy
from redoxfs.simulate.cluster import OneNode
from redoxfs.simulate.orders import orders
from redoxfs.simulate.policies import Dataset
from redoxfs.telemetry.expected_quality import (
    CHUNKS_LOOKED_AT,
    block_variance,
    entropy_of_permutation,
    expected_of_pool,
)
from redoxfs.telemetry.quality import BATCH

pytestmark = pytest.mark.slow

Int32 = npt.NDArray[np.int32]


def entropy(labels: list[int]) -> float:
    """As the definition has it."""
    shares = [labels.count(label) / len(labels) for label in set(labels)]
    return -sum(share * log2(share) for share in shares)


@given(st.lists(st.integers(0, 5), min_size=8, max_size=40))
def test_the_entropy_of_a_batch_is_that_of_its_shares(labels: list[int]) -> None:
    rows = [labels[at : at + 8] for at in range(0, len(labels) - 7, 8)]
    assert entropies(np.array(labels, np.int32), 8) == pytest.approx([entropy(row) for row in rows])


@pytest.mark.parametrize("sizes", [[64] * 100, [150, 100, 50], [1, 2, 3, 500, 40], [256]])
def test_a_permutation_has_the_entropy_of_drawn_orders(sizes: list[int]) -> None:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    drawn = np.array([entropies(random.permutation(labels)[:BATCH], BATCH).item() for _ in range(1_000)])
    error = drawn.std() / np.sqrt(len(drawn))
    assert abs(entropy_of_permutation(np.array(sizes)) - drawn.mean()) <= 4 * error + 1e-9


def test_a_batch_of_all_samples_has_the_entropy_of_all() -> None:
    assert entropy_of_permutation(np.array([4, 3, 1]), batch=8) == pytest.approx(entropy([0] * 4 + [1] * 3 + [2]))
    with pytest.raises(ValueError, match="no batch"):
        entropy_of_permutation(np.array([4, 3]), batch=8)


def served(dataset: Dataset, epochs: int) -> tuple[list[Int32], Int32, Int32, float]:
    """The orders of some laps of the pool, the chunk of each sample, the cells, and the share that a lap reads."""
    sizes = np.ones(dataset.files, np.int64)
    cells = build_cells(dataset.class_of, sizes, chunk_size=dataset.chunk_size, seed=0).cells
    policy = PoolPolicy(cells, dataset.class_of, sizes, capacity_bytes=round(dataset.resident * dataset.files), seed=0)
    retained = sum(policy.is_retained(sample) for sample in range(dataset.files))
    node = OneNode(policy, cells)
    laps = [node.epoch(orders(dataset.files, 1, seed=0, epoch=epoch)[0])[1] for epoch in range(1 + epochs)]
    chunk_of = np.empty(dataset.files, np.int32)
    chunk_of[cells[cells >= 0]] = np.nonzero(cells >= 0)[0]
    return laps[1:], chunk_of, cells, 1 - retained / dataset.files


@pytest.mark.parametrize(
    ("chunk_size", "resident"), [(64, 0.05), (64, 0.125), (64, 0.25), (64, 0.5), (64, 0.8), (16, 0.5), (16, 1.0)]
)
def test_the_pool_mixes_as_expected(chunk_size: int, resident: float) -> None:
    laps, chunk_of, cells, read_share = served(Dataset(16_000, 20, 0.0, chunk_size, resident), 2)
    sizes = (cells >= 0).sum(axis=1)
    found = expected_of_pool(sizes, read_share=read_share, held_share=resident)
    mates, _, if_random = mean_mate_pairs(laps, chunk_of)
    bits = np.mean([entropies(chunk_of[lap], BATCH).mean() for lap in laps])
    assert found.mates == pytest.approx(mates / if_random, rel=0.1)
    assert found.chunk_entropy == pytest.approx(bits, abs=0.08)
    assert found.chunk_entropy <= entropy_of_permutation(sizes)


def test_chunks_of_one_sample_have_no_mates_that_could_meet_more_often() -> None:
    sizes = np.ones(2_000, np.int64)
    found = expected_of_pool(sizes, read_share=1.0, held_share=0.05)
    assert (found.mates, found.chunk_entropy) == (1, entropy_of_permutation(sizes))


def test_the_pool_has_no_more_mates_than_expected_where_classes_have_few_in_memory() -> None:
    laps, chunk_of, cells, read_share = served(Dataset(16_000, 1_000, 0.0, 64, 0.05), 1)
    found = expected_of_pool((cells >= 0).sum(axis=1), read_share=read_share, held_share=0.05)
    mates, _, if_random = mean_mate_pairs(laps, chunk_of)
    assert 1 < mates / if_random < found.mates


def variance_of_means(cells: Int32, class_of: Int32) -> float:
    """As the definition has it, with a vector for each class."""
    gradients = np.eye(int(class_of.max()) + 1)[class_of]
    mean = gradients.mean(axis=0)
    variance = ((gradients - mean) ** 2).sum(axis=1).mean()
    blocks = (row[row >= 0] for row in cells)
    of_blocks = [len(block) * ((gradients[block].mean(axis=0) - mean) ** 2).sum() / variance for block in blocks]
    return float(np.mean(of_blocks))


@given(st.integers(2, 6), st.integers(2, 9), st.integers(1, 12), st.integers(0, 2**31))
def test_the_variance_of_blocks_is_that_of_their_means(classes: int, width: int, chunks: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    samples = max(2, chunks * width - int(random.integers(0, width)))
    class_of = np.append([0, 1], random.integers(0, classes, samples - 2)).astype(np.int32)
    flat = np.full(chunks * width, -1, np.int32)
    flat[:samples] = random.permutation(samples)
    cells = flat.reshape(chunks, width)
    found = block_variance(cells, class_of, np.bincount(class_of))
    assert found is not None
    assert found[0] == pytest.approx(variance_of_means(cells, class_of))
    without_samples = np.full((1, width), -1, np.int32)
    assert block_variance(np.append(cells, without_samples, axis=0), class_of, np.bincount(class_of)) == found


def test_the_variance_of_blocks_tells_mixed_chunks_from_chunks_of_one_class() -> None:
    class_of = np.repeat(np.arange(50, dtype=np.int32), 640)
    stored = np.arange(32_000, dtype=np.int32)
    sizes = np.bincount(class_of)
    drawn = np.random.default_rng(0).permutation(stored)
    aligned = build_cells(class_of, np.ones(32_000, np.int64), chunk_size=64, seed=0).cells
    of_one, of_drawn, of_aligned = (
        block_variance(cells.reshape(-1, 64), class_of, sizes) for cells in (stored, drawn, aligned)
    )
    assert of_one
    assert of_drawn
    assert of_aligned
    assert of_one[0] == pytest.approx(64)
    assert of_drawn[0] == pytest.approx(1, abs=0.05)
    assert of_drawn[1] == pytest.approx(1, abs=0.01)
    assert of_aligned[0] < 0.5 * of_drawn[0]
    assert block_variance(stored.reshape(-1, 64), np.zeros(32_000, np.int32), np.array([32_000])) is None


def test_of_many_chunks_some_are_looked_at() -> None:
    class_of = (np.random.default_rng(0).random(160_000) ** 2 * 20).astype(np.int32)
    cells = np.arange(160_000, dtype=np.int32).reshape(-1, 8)
    touched = cells[: len(cells) // 2].copy()
    # Chunks of one class, in one half of the dataset: any even choice of chunks sees them.
    class_of[touched] = class_of[touched[:, :1]]
    found = block_variance(cells, class_of, np.bincount(class_of))
    assert found is not None
    assert len(cells) > 4 * CHUNKS_LOOKED_AT
    assert found[0] == pytest.approx(variance_of_means(cells, class_of), rel=0.05)
