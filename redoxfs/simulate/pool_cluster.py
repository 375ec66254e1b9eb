"""Several nodes that share a dataset on shared storage under the pool policy, local first, in step as in `cluster`.

Chunks are dealt to the nodes so that every class is spread evenly. Each node retains what the rule of a mount says.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from redoxfs.chunks.layout import Cells, deal
from redoxfs.protocol import LocalFirst, Pending, PoolPolicy, Served, exchange_for, retained_bytes_for
from redoxfs.protocol.local_first import Take
from redoxfs.simulate.cluster import Counts, Reads

Int8 = npt.NDArray[np.int8]
Int32 = npt.NDArray[np.int32]

REMOTE_SHARE = 1 / 4
"""Remote memory as a share of the pool's: more than batches ever fill."""


class PoolCluster:
    """``nodes`` pools of ``capacity`` samples each.

    Args:
        exchange: the share that they take from each other on purpose; None: by how much of its part each retains.
    """

    def __init__(
        self, cells: Cells, class_of: Int32, *, nodes: int, capacity: int, seed: int, exchange: float | None = None
    ) -> None:
        self.part_of = deal(cells, nodes, seed=seed)
        self._cells, self._class_of, self._capacity, self._exchanged = cells, class_of, capacity, exchange
        self.pools: list[PoolPolicy] = []
        self.nodes = [self._node(node, nodes, seed + node) for node in range(nodes)]
        self._reads = Reads(cells.cells)

    def _node(self, node: int, nodes: int, seed: int) -> LocalFirst:
        # Bytes are counted in samples: every sample is one of them.
        sizes = np.ones(len(self._class_of), np.int64)
        own = self.part_of == node
        retained = retained_bytes_for(self._class_of[own], sizes[own], self._cells.chunk_size, self._capacity)
        exchange = exchange_for(retained / max(1, int(own.sum()))) if self._exchanged is None else self._exchanged
        pool = PoolPolicy(
            self._cells.cells,
            self._class_of,
            sizes,
            capacity_bytes=self._capacity,
            retained_bytes=retained,
            seed=seed,
            covered=own,
        )
        self.pools.append(pool)
        return LocalFirst(
            node,
            pool,
            self._class_of,
            self.part_of,
            sizes,
            nodes=nodes,
            remote_memory_bytes=round(self._capacity * REMOTE_SHARE),
            exchange=exchange,
            seed=seed,
        )

    def epoch(self, orders: Sequence[Int32], watch: Callable[[int], None] | None = None) -> tuple[Counts, Int32]:
        """As `SlotCluster.epoch`. A remote request is a Take, even if the peer had nothing left."""
        in_step = np.stack(orders, axis=1)
        served = np.empty(in_step.size, np.int32)
        answers: memoryview[int] = served.data
        counts = Counts(requests=in_step.size)
        at = 0
        for row in in_step.tolist():
            for node, sample in zip(self.nodes, row, strict=True):
                turn = node.request(sample)
                delivered = self._exchange(node, counts) if node.outbox else {}
                if delivered and watch is not None:
                    watch(node.used_bytes())
                if isinstance(turn, Pending):
                    turn = delivered[turn.ticket]
                answers[at] = turn.sample
                if turn.loads:
                    counts.demand_loads += turn.is_demanded
                    self._reads.count(turn.loads, counts)
                at += 1
        return counts, served

    def _exchange(self, node: LocalFirst, counts: Counts) -> dict[int, Served]:
        """Answer the messages of ``node`` until it sends no more; returns the turns by ticket."""
        delivered: dict[int, Served] = {}
        while node.outbox:
            take = node.outbox.pop(0)
            assert isinstance(take, Take)
            handled = self.nodes[take.home].handle(take)
            assert handled.answer is not None
            samples = handled.answer.samples
            counts.remote_requests += 1
            counts.remote_samples += len(samples)
            counts.demand_loads += any(load.samples[0] in samples for load in handled.loads)
            self._reads.count(handled.loads, counts)
            for ticket, turn in node.receive(handled.answer) or ():
                assert turn is not None
                delivered[ticket] = turn
        return delivered
