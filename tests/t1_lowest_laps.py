"""The lowest lap of each tree is that of its slowest class or column, for any plan."""

from pathlib import Path

import numpy as np
import pytest
from packs import catalog_of

from redoxfs.chunks import build_cells
from redoxfs.dataset import Catalog
from redoxfs.node import plan_pool, plan_slot
from redoxfs.node.lowest_laps import LowestLaps
from redoxfs.node.plan import Plan, Share, pool_memory_for, slot_memory_for


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    for split, count in (("train", 30), ("val", 7)):
        for label in range(3):
            (tmp_path / split / f"class{label}").mkdir(parents=True)
            for number in range(count):
                (tmp_path / split / f"class{label}" / f"{split}-{label}-{number}.jpg").write_bytes(b"x" * 100)
    return catalog_of(tmp_path)


def slowest(catalog: Catalog, plan: Plan) -> list[int]:
    """By tree, sample by sample."""
    laps = plan.policy.laps(plan.lapping)
    trees = catalog.tree_of_class[catalog.class_of[plan.lapping]]
    return [int(laps[trees == tree].min()) for tree in range(len(catalog.class_trees))]


@pytest.mark.parametrize("policy", ["pool", "slot"])
def test_the_lowest_lap_is_that_of_the_slowest(catalog: Catalog, policy: str) -> None:
    cells = build_cells(catalog.class_of, catalog.sample_bytes, chunk_size=4, seed=1)
    if policy == "pool":
        plan = plan_pool(catalog, cells, memory_bytes=pool_memory_for(catalog, cells, 0.3), seed=1)
    else:
        plan = plan_slot(catalog, cells, memory_bytes=slot_memory_for(catalog, cells, 0.3), seed=1)
    lowest = LowestLaps(catalog, plan)
    assert lowest.now() == [1, 1]
    units = plan.policy.laps_of_units()
    assert np.array_equal(units[plan.units], plan.policy.laps(plan.lapping))
    draw = np.random.default_rng(2)
    for _ in range(20):
        units += draw.integers(0, 3, len(units), np.int32)
        assert lowest.now() == slowest(catalog, plan)


def test_a_tree_without_a_column_on_a_node_has_the_number_of_its_lap(catalog: Catalog) -> None:
    cells = build_cells(catalog.class_of, catalog.sample_bytes, chunk_size=64, seed=1)
    # Six classes, and one virtual chunk of each.
    share = Share(7, 8, 1 << 20, True, None, timeout_s=1.0, exchange=0.0, window=1)
    plan = plan_slot(catalog, cells, memory_bytes=1 << 30, seed=1, share=share)
    assert len(plan.units) == 0
    assert LowestLaps(catalog, plan).now() == [1, 1]
