"""Several nodes that share a dataset on shared storage under the pool policy, local first, in step as in `cluster`.

Chunks are dealt to the nodes so that every class is spread evenly. Each node retains what the rule of a mount says.
"""

import numpy as np

from redoxfs.arrays import Int32
from redoxfs.chunks.layout import Cells, deal
from redoxfs.protocol import LocalFirst, PoolPolicy, exchange_for, retained_bytes_for
from redoxfs.simulate.cluster import Cluster

REMOTE_SHARE = 1 / 4
"""Remote memory as a share of the pool's: more than batches ever fill."""


class PoolCluster(Cluster[LocalFirst]):
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
        super().__init__([self._node(node, nodes, seed + node) for node in range(nodes)], cells.cells)

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
