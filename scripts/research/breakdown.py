"""The paper's breakdown (§5.3): memory misses and remote requests of an epoch, without each optimization in turn.

Three nodes, ImageNet-1k, the paper's data organization. The paper does not state how many chunks share a VC, how long
the prefetch window is, or how much remote memory a node has. With these values an independent simulation meets all
eight of its figures; ``expected`` has the counts of that simulation.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from paper_layout import plain_layout

from redoxfs.arrays import Flags
from redoxfs.protocol import SlotPolicy
from redoxfs.simulate.cluster import PAPER, Scale, SlotCluster
from redoxfs.simulate.orders import orders


class RandomSelection(SlotPolicy):
    """FindReplacePC without the choice: any chunk that still has a sample for the asked slot."""

    def _find_replace_pc(self, vc: int, fresh: Flags) -> int:
        return int(self._vc_start[vc]) + self._one_of(np.flatnonzero(fresh))


@dataclass(frozen=True, slots=True)
class Variant:
    """A row of the paper's table: what is left out, the paper's counts, and those of the independent simulation."""

    name: str
    policy: type[SlotPolicy]
    prefetches: bool
    paper: tuple[int, int]
    expected: tuple[int, int]


VARIANTS = (
    Variant("Redox", SlotPolicy, True, (126_000, 41_000), (125_700, 38_900)),
    Variant("random selection", RandomSelection, True, (133_000, 46_000), (133_000, 42_400)),
    Variant("no prefetching", SlotPolicy, False, (178_000, 854_000), (178_200, 853_000)),
    Variant("no optimization", RandomSelection, False, (191_000, 854_000), (191_300, 853_000)),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One variant: counts of this simulation, of the paper, and of the independent simulation; the last two for
    `PAPER`.
    """

    variant: str
    loads: int
    remote_requests: int
    paper_loads: int
    paper_remote_requests: int
    expected_loads: int
    expected_remote_requests: int


def breakdown(scale: Scale = PAPER, *, seed: int = 0) -> Iterator[Row]:
    """One epoch of each variant. All samples are served by its end, so the next would begin in the same way."""
    for variant in VARIANTS:
        loads, remote_requests = count(variant, scale, seed=seed)
        yield Row(variant.name, loads, remote_requests, *variant.paper, *variant.expected)


def count(variant: Variant, scale: Scale, *, seed: int) -> tuple[int, int]:
    """Loads and remote requests of one epoch."""
    cells, vc_start = plain_layout(scale.files, chunk_size=scale.chunk_size, chunks_per_vc=scale.chunks_per_vc)
    policies = [variant.policy(cells, vc_start, samples=scale.files, seed=seed + node) for node in range(scale.nodes)]
    cluster = SlotCluster(
        cells,
        policies,
        remote_memory_samples=scale.remote_memory_samples,
        window=scale.window if variant.prefetches else 1,
    )
    counts, _ = cluster.epoch(orders(scale.files, scale.nodes, seed=seed, epoch=0))
    return counts.loads, counts.remote_requests
