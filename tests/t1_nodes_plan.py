"""How a node among several divides its memory: its part of the dataset, open files, and samples of other nodes."""

from pathlib import Path

import numpy as np
import pytest
from packs import catalog_of

from redoxfs.chunks import Cells, build_cells
from redoxfs.dataset import Catalog
from redoxfs.node import Plan, Share, plan_pool
from redoxfs.node.plan import LEAST_SAMPLES, OPEN_SAMPLES, REMOTE_PER_CLASS
from redoxfs.protocol import LocalFirst, PoolPolicy
from redoxfs.protocol.local_first.exchange import LEAST_SHARE, RETAINED_SHARE

NODES, CLASSES, FILES, SIZE = 3, 20, 600, 100
PART = FILES // NODES


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> tuple[Catalog, Cells]:
    root = tmp_path_factory.mktemp("data")
    for number in range(FILES):
        path = root / f"class{number % CLASSES}" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * SIZE)
    catalog = catalog_of(root)
    # Chunks of 5, so that the parts are equal.
    return catalog, build_cells(catalog.class_of, catalog.sample_bytes, chunk_size=5, seed=0)


def planned(dataset: tuple[Catalog, Cells], samples: int, *, remote: int | None = None, node: int = 0) -> Plan:
    """The plan of a node with memory for so many ``samples``. ``remote``: --remote-memory, in samples."""
    needs_less = remote is None
    remote_bytes = samples * SIZE // 8 if remote is None else remote * SIZE
    share = Share(node, NODES, remote_bytes, True, None, 1.0, None, 1, needs_less=needs_less)
    return plan_pool(*dataset, memory_bytes=samples * SIZE, seed=0, share=share)


def divided(plan: Plan) -> tuple[int, int, int]:
    """In samples: the pool's share, that of open files, and that of samples of other nodes."""
    assert plan.sharing is not None
    remote_bytes = plan.sharing.share.memory_bytes
    assert plan.resident_bytes + plan.claims_bytes + remote_bytes == plan.memory_bytes
    return plan.resident_bytes // SIZE, plan.claims_bytes // SIZE, remote_bytes // SIZE


def retained(plan: Plan) -> float:
    """The share of the node's part that stays in memory."""
    assert isinstance(plan.retained, PoolPolicy)
    return sum(map(plan.retained.is_retained, range(FILES))) / PART


def test_what_the_part_leaves_is_for_open_files_and_other_nodes(dataset: tuple[Catalog, Cells]) -> None:
    needed = REMOTE_PER_CLASS * CLASSES
    for samples, of_open, remote in (
        (PART + 2 * LEAST_SAMPLES, LEAST_SAMPLES, LEAST_SAMPLES),
        (PART + OPEN_SAMPLES, OPEN_SAMPLES // 2, OPEN_SAMPLES // 2),
        (PART + OPEN_SAMPLES + 30, OPEN_SAMPLES - 7, 36),  # an eighth of memory
        (PART + 1_000, 1_000 - needed, needed),
    ):
        for node in range(NODES):
            plan = planned(dataset, samples, node=node)
            assert divided(plan) == (PART, of_open, remote)
            assert retained(plan) == 1
            assert plan.sharing is not None
            assert plan.sharing.share.exchange == RETAINED_SHARE
            # Open files have a quarter if they need it.
            shared = samples * SIZE - plan.sharing.share.memory_bytes
            assert plan.claims_bytes + plan.lendable_bytes >= shared // 4


def test_with_less_memory_a_part_is_retained_by_the_rule_of_one_node(dataset: tuple[Catalog, Cells]) -> None:
    plan = planned(dataset, PART + 2 * LEAST_SAMPLES - 1)
    assert 0 < retained(plan) < 0.6
    _, of_open, remote = divided(plan)
    assert remote == (PART + 2 * LEAST_SAMPLES - 1) // 8
    assert of_open == (PART + 2 * LEAST_SAMPLES - 1 - remote) // 4 < OPEN_SAMPLES
    least = planned(dataset, 120)
    assert retained(least) == 0
    assert least.sharing is not None
    assert least.sharing.share.exchange == LEAST_SHARE


def test_a_remote_memory_that_is_given_stays_so(dataset: tuple[Catalog, Cells]) -> None:
    assert divided(planned(dataset, PART + 1_000, remote=500)) == (PART, 500, 500)
    assert divided(planned(dataset, PART + 60, remote=50))[2] == 50


@pytest.mark.parametrize("size", [0, SIZE])
def test_a_node_knows_each_tree_and_whether_it_can_read_the_samples_of_others(tmp_path: Path, size: int) -> None:
    for name in ("train/a", "train/b", "val/a", "val/b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "1.jpg").write_bytes(b"x" * size)
    catalog = catalog_of(tmp_path)
    cells = build_cells(catalog.class_of, catalog.sample_bytes, chunk_size=1, seed=0)
    for is_shared in (True, False):
        part_of = None if is_shared else np.array([0, 1, 1, 1], np.int8)
        share = Share(0, 2, 100 * SIZE, is_shared, part_of, 1.0, None, 1)
        plan = plan_pool(catalog, cells, memory_bytes=1_000 * SIZE, seed=0, share=share)
        assert isinstance(plan.policy, LocalFirst)
        plan.policy.lost(1)
        assert (plan.policy.classes_alone() > 0) == is_shared
        for tree in range(len(catalog.class_trees)):
            assert plan.policy.begin_pass(tree)
            assert plan.policy.pass_number(tree) == 1
