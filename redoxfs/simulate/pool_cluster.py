"""Several nodes that share a dataset under the pool policy, local first, in step as in `cluster`.

Chunks are dealt to the nodes in turn. Chunks of one group of the aligned layout have one class pattern, so every class
is spread evenly.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from redoxfs.protocol import LocalFirst, PoolPolicy, Served, Take
from redoxfs.simulate.cluster import Counts, Reads

Int32 = npt.NDArray[np.int32]


class PoolCluster:
    """``nodes`` pools of ``capacity`` samples each."""

    def __init__(self, cells: Int32, class_of: Int32, *, nodes: int, capacity: int, seed: int) -> None:
        home_of = np.empty(len(class_of), np.int32)
        exists = cells >= 0
        home_of[cells[exists]] = np.nonzero(exists)[0] % nodes
        self.nodes = [self._node(node, nodes, cells, class_of, home_of, capacity, seed) for node in range(nodes)]
        self._reads = Reads(cells)

    def epoch(self, orders: Sequence[Int32]) -> tuple[Counts, Int32]:
        """As `SlotCluster.epoch`. A remote request is a Take, whether or not anything was left there."""
        in_step = np.stack(orders, axis=1)
        served = np.empty(in_step.size, np.int32)
        answers: memoryview[int] = served.data
        counts = Counts(requests=in_step.size)
        at = 0
        for row in in_step.tolist():
            for node, sample in zip(self.nodes, row, strict=True):
                outcome = node.request(sample)
                turn = outcome if isinstance(outcome, Served) else self._remote(node, outcome, counts)
                answers[at] = turn.sample
                if turn.loads:
                    counts.demand_loads += turn.is_demanded
                    self._reads.count(turn.loads, counts)
                at += 1
        return counts, served

    def _remote(self, node: LocalFirst, outcome: tuple[int, Take | None], counts: Counts) -> Served:
        _, take = outcome
        while take is not None:
            answered = self.nodes[take.home].handle(take)
            given = answered.given
            assert given is not None
            counts.remote_requests += 1
            counts.remote_samples += len(given.samples)
            counts.demand_loads += any(load.samples[0] in given.samples for load in answered.loads)
            self._reads.count(answered.loads, counts)
            received = node.receive(given)
            take = received.take
        ((_, turn),) = received.served
        return turn

    @staticmethod
    def _node(
        node: int, nodes: int, cells: Int32, class_of: Int32, home_of: Int32, capacity: int, seed: int
    ) -> LocalFirst:
        own = np.flatnonzero(home_of == node).astype(np.int32)
        # One more, so that a hole, -1, stays one.
        number = np.full(len(class_of) + 1, -1, np.int32)
        number[own] = np.arange(len(own), dtype=np.int32)
        policy = PoolPolicy(
            np.ascontiguousarray(number[cells[node::nodes]]),
            class_of[own],
            np.ones(len(own), np.int64),
            capacity_bytes=capacity,
            seed=seed + node,
        )
        chunks = np.arange(node, len(cells), nodes, dtype=np.int32)
        return LocalFirst(node, policy, own, chunks, class_of, home_of, nodes=nodes)
