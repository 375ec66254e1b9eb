"""How much memory the remote VCs should have (§5.4): how much of a limit they use, and what prefetching then saves.

The cluster is that of the breakdown (§5.3), with the limit in bytes of samples of ImageNet's mean size.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from chunk_size import SAMPLE_BYTES
from paper_layout import plain_layout

from redoxfs.protocol import SlotPolicy
from redoxfs.simulate.cluster import PAPER, Scale, SlotCluster
from redoxfs.simulate.orders import orders

LIMITS_BYTES = (50_000_000, 500_000_000, 1_000_000_000, 1_500_000_000, 2_000_000_000, 3_000_000_000)
"""The paper's limits."""


@dataclass(frozen=True, slots=True)
class Row:
    """An epoch with ``limit_bytes`` a node; the memory that a node used, on average and at most, sampled after each
    answer.
    """

    limit_bytes: int
    mean_used_bytes: int
    peak_used_bytes: int
    remote_requests: int
    loads: int


def remote_memory(
    scale: Scale = PAPER, *, seed: int = 0, limits_bytes: Iterable[int] = LIMITS_BYTES, sample_bytes: int = SAMPLE_BYTES
) -> Iterator[Row]:
    """A row for each limit; ``scale.remote_memory_samples`` is ignored."""
    cells, vc_start = plain_layout(scale.files, chunk_size=scale.chunk_size, chunks_per_vc=scale.chunks_per_vc)
    for limit in limits_bytes:
        policies = [SlotPolicy(cells, vc_start, samples=scale.files, seed=seed + i) for i in range(scale.nodes)]
        cluster = SlotCluster(cells, policies, remote_memory_samples=limit // sample_bytes, window=scale.window)
        used: list[int] = []
        counts, _ = cluster.epoch(orders(scale.files, scale.nodes, seed=seed, epoch=0), used.append)
        mean = sum(used) / max(1, len(used))
        yield Row(
            limit,
            round(mean * sample_bytes),
            max(used, default=0) * sample_bytes,
            counts.remote_requests,
            counts.loads,
        )
