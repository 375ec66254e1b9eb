"""What nodes retain: what their laps read and move, and that no sample is early or late for it. Without data."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from redoxfs.chunks.layout import Cells, build_cells
from redoxfs.protocol.local_first.exchange import RETAINED_SHARE, exchange_for
from redoxfs.simulate.classes import class_table
from redoxfs.simulate.cluster import Counts
from redoxfs.simulate.orders import orders
from redoxfs.simulate.pool_cluster import PoolCluster

FILES, NODES = 3_000, 3
TEN, HUNDRED = 10, 100


class Nodes(PoolCluster):
    """Three nodes; ``memory`` is what each holds, as a share of the dataset."""

    def __init__(self, classes: int, *, memory: float, exchange: float | None = None, seed: int = 0) -> None:
        self.class_of = class_table(FILES, classes, 0.0)
        cells: Cells = build_cells(self.class_of, np.ones(FILES, np.int64), chunk_size=16, seed=seed)
        super().__init__(cells, self.class_of, nodes=NODES, capacity=int(memory * FILES), seed=seed, exchange=exchange)
        self.seed = seed

    def laps(self, count: int) -> Iterator[tuple[Counts, npt.NDArray[np.int32]]]:
        """The counts of each lap, and its answers, dealt to the nodes in turn. Each sample comes once."""
        for epoch in range(count):
            counts, served = self.epoch(orders(FILES, NODES, seed=self.seed, epoch=epoch))
            assert np.array_equal(np.sort(served), np.arange(FILES))
            yield counts, served

    def retained(self) -> npt.NDArray[np.bool_]:
        """bool[S]: the samples that any node retains."""
        return np.array([any(node._policy.is_retained(sample) for node in self.nodes) for sample in range(FILES)])


@pytest.mark.parametrize("classes", [TEN, HUNDRED])
def test_nodes_that_hold_everything_together_read_it_once(classes: int) -> None:
    nodes = Nodes(classes, memory=0.4)
    assert nodes.retained().all()
    first, *later = [counts for counts, _ in nodes.laps(4)]
    assert first.samples_kept == FILES
    assert [counts.samples_kept for counts in later] == [0, 0, 0]
    # What need alone takes is a tenth of classes with ten samples at a node.
    for counts in later:
        assert counts.remote_samples / FILES == pytest.approx(RETAINED_SHARE, abs=0.03)


@pytest.mark.parametrize(("memory", "least", "most"), [(0.1, 0.7, 0.85), (0.2, 0.4, 0.55), (0.3, 0.08, 0.2)])
def test_a_lap_of_nodes_reads_what_they_do_not_retain(memory: float, least: float, most: float) -> None:
    """Each node has a third to serve: a tenth of the dataset is 30 % of that."""
    nodes = Nodes(TEN, memory=memory)
    kept = nodes.retained()
    *_, third, fourth = [counts for counts, _ in nodes.laps(4)]
    for counts in (third, fourth):
        assert least < counts.samples_kept / FILES < most
        assert counts.samples_kept < (1 - kept.mean()) * FILES * 1.1
        assert counts.remote_samples / FILES == pytest.approx(exchange_for(kept.mean()), abs=0.04)


@pytest.mark.parametrize("exchange", [0.0, None])
@pytest.mark.parametrize(("classes", "memory"), [(TEN, 0.4), (HUNDRED, 0.4), (TEN, 0.2)])
def test_successive_laps_of_nodes_are_independent(classes: int, memory: float, exchange: float | None) -> None:
    """Neither samples, nor those of a class at one node, come at like places in successive laps."""
    of_samples, of_groups = [], []
    for seed in range(3):
        nodes = Nodes(classes, memory=memory, exchange=exchange, seed=seed)
        group = nodes.class_of * NODES + nodes.part_of
        places = np.array([np.argsort(served) for _, served in nodes.laps(5)][1:])
        means = [np.bincount(group, lap) / np.maximum(1, np.bincount(group)) for lap in places]
        above = np.triu_indices(len(places), 1)
        of_samples += np.asarray(np.corrcoef(places))[above].tolist()
        of_groups += np.asarray(np.corrcoef(means))[above].tolist()
    for correlations in (of_samples, of_groups):
        assert abs(np.mean(correlations)) < 3 * np.std(correlations) / np.sqrt(len(correlations))
    assert abs(np.mean(of_samples)) < 0.03


def test_no_sample_of_nodes_is_early_or_late_because_it_is_retained() -> None:
    early = []
    for seed in range(6):
        nodes = Nodes(TEN, memory=0.2, seed=seed)
        kept = nodes.retained()
        assert 0.4 < kept.mean() < 0.7
        for _, served in [*nodes.laps(4)][1:]:
            places = np.argsort(served) / FILES
            early.append(places[kept].mean() - places[~kept].mean())
    assert abs(np.mean(early)) < 3 * np.std(early) / np.sqrt(len(early)) < 0.02


def test_exchange_spreads_what_a_node_has_to_all_nodes() -> None:
    nodes = Nodes(TEN, memory=0.4)
    seen = np.zeros((NODES, FILES), np.bool_)
    for _, served in nodes.laps(5):
        for node in range(NODES):
            seen[node, served[node::NODES]] = True
    # Of the two thirds of other nodes, a tenth comes in each lap.
    assert seen.mean() == pytest.approx(1 / 3 + 2 / 3 * (1 - 0.9**5), abs=0.05)
