"""The aligned layout: the invariants that keep labels right, and the memory that it needs."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redoxfs.arrays import Numbers
from redoxfs.chunks import Layout, MemoryTooSmallError, build_cells, deal, fit, memory_for_share

PLENTY = 1 << 50


@st.composite
def datasets(draw: st.DrawFn) -> tuple[Numbers, Numbers, int]:
    """The class and size of each sample, in no order, and a chunk size."""
    lengths = draw(st.lists(st.integers(1, 90), min_size=1, max_size=12))
    class_of = np.repeat(np.arange(len(lengths)), lengths)
    random = np.random.default_rng(draw(st.integers(0, 5)))
    random.shuffle(class_of)
    sizes = random.integers(0, draw(st.sampled_from([1, 10, 5000])), len(class_of))
    return class_of, sizes, draw(st.sampled_from([1, 3, 7, 64]))


def slot_maxima(layout: Layout, sizes: Numbers) -> int:
    """The most that the slots of all VCs hold, computed in the simplest way."""
    total = 0
    for vc in range(layout.vc_count):
        rows = layout.cells[layout.vc_start[vc] : layout.vc_start[vc + 1]]
        for slot in range(layout.chunk_size):
            total += max((int(sizes[s]) for s in rows[:, slot] if s >= 0), default=0)
    return total


def build_layout(class_of: Numbers, sizes: Numbers, *, chunk_size: int, memory_bytes: int, seed: int) -> Layout:
    return fit(build_cells(class_of, sizes, chunk_size=chunk_size, seed=seed), sizes, memory_bytes)


@given(datasets(), st.integers(0, 100))
@pytest.mark.slow
def test_every_sample_has_one_cell_and_every_column_one_class(
    dataset: tuple[Numbers, Numbers, int], extra: int
) -> None:
    class_of, sizes, chunk_size = dataset
    least = memory_for_share(build_cells(class_of, sizes, chunk_size=chunk_size, seed=1), sizes, 0)
    memory = least * (100 + extra) // 100
    layout = build_layout(class_of, sizes, chunk_size=chunk_size, memory_bytes=memory, seed=1)
    placed = layout.cells[layout.cells >= 0]
    assert sorted(placed.tolist()) == list(range(len(class_of)))
    assert layout.cells.shape[1] == chunk_size
    assert (layout.cells >= 0).any(axis=1).all(), "no chunk is empty"
    assert layout.vc_start[0] == 0
    assert layout.vc_start[-1] == layout.chunk_count
    for vc in range(layout.vc_count):
        rows = layout.cells[layout.vc_start[vc] : layout.vc_start[vc + 1]]
        assert 1 <= len(rows) <= layout.chunks_per_vc
        for slot in range(chunk_size):
            column = rows[:, slot][rows[:, slot] >= 0]
            assert len(np.unique(class_of[column])) <= 1
            # The node reads one sample of each column from the cells of the first chunk.
            assert rows[0, slot] >= 0 or not len(column)
    assert layout.resident_bytes == slot_maxima(layout, sizes) <= memory


@given(datasets())
@pytest.mark.slow
def test_too_little_memory_is_refused_with_the_needed_size(dataset: tuple[Numbers, Numbers, int]) -> None:
    class_of, sizes, chunk_size = dataset
    least = memory_for_share(build_cells(class_of, sizes, chunk_size=chunk_size, seed=1), sizes, 0)
    build_layout(class_of, sizes, chunk_size=chunk_size, memory_bytes=least, seed=1)
    with pytest.raises(MemoryTooSmallError) as refused:
        build_layout(class_of, sizes, chunk_size=chunk_size, memory_bytes=least - 1, seed=1)
    assert (refused.value.needed_bytes, refused.value.given_bytes) == (least, least - 1)


def test_a_sample_much_larger_than_all_others_must_fit_twice() -> None:
    """Once among the loaded samples, once among the open files."""
    sizes = np.full(6400, 1000)
    sizes[77] = 3 << 30
    cells = build_cells(np.arange(6400) % 10, sizes, chunk_size=8, seed=0)
    assert 2 * sizes[77] < memory_for_share(cells, sizes, 0) < 2.01 * sizes[77]


@pytest.mark.slow
def test_memory_for_a_share_holds_that_share() -> None:
    class_of = np.repeat(np.arange(192), 1280)
    sizes = np.random.default_rng(0).integers(50_000, 150_000, len(class_of))
    for chunks_per_vc in (64, 16, 4, 1):
        share = 1 / chunks_per_vc
        memory = memory_for_share(build_cells(class_of, sizes, chunk_size=64, seed=0), sizes, share)
        layout = build_layout(class_of, sizes, chunk_size=64, memory_bytes=memory, seed=0)
        assert layout.chunks_per_vc == chunks_per_vc
        # With a cut along sizes, a slot's largest sample is hardly larger than its mean.
        assert layout.resident_bytes <= 1.1 * share * sizes.sum()


def test_chunks_mix_classes_and_are_full() -> None:
    class_of = np.repeat(np.arange(192), 640)
    layout = build_layout(class_of, np.ones_like(class_of), chunk_size=64, memory_bytes=PLENTY, seed=0)
    assert (layout.cells >= 0).all()
    assert all(len(np.unique(class_of[chunk])) == 64 for chunk in layout.cells)


def test_chunks_of_a_small_dataset_stay_near_their_size() -> None:
    class_of = np.repeat(np.arange(10), 50)
    layout = build_layout(class_of, np.ones_like(class_of), chunk_size=64, memory_bytes=PLENTY, seed=0)
    assert len(class_of) / layout.chunk_count > 48


def test_the_seed_decides() -> None:
    class_of = np.repeat(np.arange(4), 100)
    cells = [
        build_layout(class_of, np.ones_like(class_of), chunk_size=8, memory_bytes=PLENTY, seed=seed).cells
        for seed in (1, 1, 2)
    ]
    assert (cells[0] == cells[1]).all()
    assert (cells[0] != cells[2]).any()


def test_no_samples_make_no_chunks() -> None:
    layout = build_layout(np.empty(0, np.int32), np.empty(0, np.int64), chunk_size=64, memory_bytes=1, seed=0)
    assert (layout.chunk_count, layout.vc_count, layout.resident_bytes) == (0, 0, 0)


@pytest.mark.parametrize("part", [1, 2, 4, 8])
def test_a_smaller_chunk_is_a_consecutive_part_of_a_larger_one(part: int) -> None:
    class_of = np.sort(np.random.default_rng(0).integers(0, 20, 900)).astype(np.int32)
    whole = build_cells(class_of, np.ones_like(class_of), chunk_size=8, seed=0)
    split = whole.split(part)
    stretches = {tuple(cells[i : i + part].tolist()) for cells in whole.cells for i in range(0, 8, part)}
    assert {tuple(cells.tolist()) for cells in split.cells} == stretches
    assert np.array_equal(np.sort(split.cells[split.cells >= 0]), np.arange(900))
    for first, last in pairwise(split.group_start):
        for column in split.cells[first:last].T:
            assert len(set(class_of[column[column >= 0]].tolist())) <= 1, "one class in a slot of a group"


def test_a_chunk_is_not_cut_into_unequal_parts() -> None:
    cells = build_cells(np.zeros(10, np.int32), np.ones(10, np.int64), chunk_size=8, seed=0)
    with pytest.raises(ValueError, match="3 does not divide 8"):
        cells.split(3)


def test_chunks_do_not_mix_trees_and_each_tree_is_well_filled() -> None:
    class_of = np.repeat(np.arange(30), [*[300] * 10, *[7] * 20]).astype(np.int32)
    tree_of_class = np.repeat([0, 1, 2], 10)
    cells = build_cells(class_of, np.ones_like(class_of), chunk_size=16, seed=0, tree_of_class=tree_of_class).cells
    assert np.array_equal(np.sort(cells[cells >= 0]), np.arange(len(class_of)))
    for chunk in cells:
        assert len(set(tree_of_class[class_of[chunk[chunk >= 0]]].tolist())) == 1
    small = cells[np.isin(cells, np.flatnonzero(class_of >= 10)).any(axis=1)]
    assert (small >= 0).mean() > 0.5


@given(datasets(), st.integers(1, 9))
@pytest.mark.slow
def test_chunks_go_to_one_part_and_columns_spread_evenly(dataset: tuple[Numbers, Numbers, int], nodes: int) -> None:
    class_of, sizes, chunk_size = dataset
    cells = build_cells(class_of, sizes, chunk_size=chunk_size, seed=0)
    part_of = deal(cells, nodes, seed=0)
    assert part_of.shape == class_of.shape
    assert part_of.dtype == np.int8
    for chunk in cells.cells:
        assert len(set(part_of[chunk[chunk >= 0]].tolist())) == 1
    for first, last in pairwise(cells.group_start):
        for column in cells.cells[first:last].T:
            of_part = np.bincount(part_of[column[column >= 0]], minlength=nodes)
            assert of_part.max() - of_part.min() <= 1
    of_part = np.bincount(part_of, minlength=nodes)
    assert len(of_part) == nodes
    assert of_part.max() - of_part.min() <= 2 * chunk_size, "the parts are of nearly equal size"


@pytest.mark.parametrize("nodes", [3, 8])
def test_every_class_is_dealt_evenly(nodes: int) -> None:
    class_of = np.repeat(np.arange(100), 1_280)
    cells = build_cells(class_of, np.ones_like(class_of), chunk_size=64, seed=0)
    part_of = deal(cells, nodes, seed=0)
    of_part = np.bincount(class_of * nodes + part_of, minlength=100 * nodes)
    # 3 does not divide 64, so each of its 20 columns of 64 has one sample more in one part than in the others.
    assert np.abs(of_part - 1_280 / nodes).max() <= 10
    assert (deal(cells, nodes, seed=0) == part_of).all()
    assert (deal(cells, nodes, seed=1) != part_of).any()


@pytest.mark.parametrize("nodes", [0, 128])
def test_chunks_cannot_be_dealt_to_zero_or_too_many_nodes(nodes: int) -> None:
    cells = build_cells(np.zeros(10, np.int32), np.ones(10, np.int64), chunk_size=8, seed=0)
    with pytest.raises(ValueError, match="1 to 127"):
        deal(cells, nodes, seed=0)
