"""How large a chunk should be (§5.5): loads per chunk, bytes read, and epoch time under a model of the storage.

The model: a load is one read of a whole chunk, and reading n bytes takes ``seek_s + n / bytes_per_s`` (`StorageSpeed`).
Small chunks pay for seeks. Large ones pay for waste under the slot policy: the more slots a chunk has, the less evenly
they are used up, and the more samples of a load find their slot taken. A chunk size of 1 is plain random reading: every
file by itself, once.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from paper_layout import plain_layout

from redoxfs.chunks import StorageSpeed
from redoxfs.protocol import SlotPolicy
from redoxfs.simulate.cluster import OneNode
from redoxfs.simulate.orders import orders
from redoxfs.simulate.policies import WARM_EPOCHS, Dataset, one_node

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""The paper's sizes, and 1 for comparison."""

SAMPLE_BYTES = 105_000
"""ImageNet-1k: 135 GB in 1.28 M files (§5.1)."""


@dataclass(frozen=True, slots=True)
class Row:
    """An epoch with chunks of ``chunk_size`` samples. ``bytes_per_s``: the rate of the storage while it reads."""

    policy: str
    chunk_size: int
    loads_per_chunk: float
    bytes_read: int
    epoch_seconds: float
    bytes_per_s: float


def chunk_sizes(
    name: str,
    dataset: Dataset,
    speed: StorageSpeed,
    *,
    sample_bytes: int = SAMPLE_BYTES,
    sizes: Iterable[int] = SIZES,
) -> Iterator[Row]:
    """A row for each of ``sizes``; ``dataset.chunk_size`` is ignored."""
    for chunk_size in sizes:
        if chunk_size == 1:
            loads, chunks, samples_read = dataset.files, dataset.files, dataset.files
        else:
            loads, chunks, samples_read = _epoch(name, dataset, chunk_size)
        bytes_read = samples_read * sample_bytes
        seconds = loads * speed.seek_s + bytes_read / speed.bytes_per_s
        yield Row(name, chunk_size, loads / chunks, bytes_read, seconds, bytes_read / seconds)


def _epoch(name: str, dataset: Dataset, chunk_size: int) -> tuple[int, int, int]:
    """Loads, chunks, and samples read."""
    if name == "slot":
        # In the paper's organisation, because the figure is the paper's.
        cells, vc_start = plain_layout(
            dataset.files, chunk_size=chunk_size, chunks_per_vc=max(1, round(1 / dataset.resident))
        )
        node = OneNode(SlotPolicy(cells, vc_start, samples=dataset.files, seed=dataset.seed), cells)
    else:
        policy, cells, _ = one_node(
            name,
            Dataset(dataset.files, dataset.classes, dataset.skew, chunk_size, dataset.resident, dataset.seed),
        )
        node = OneNode(policy, cells)
    for epoch in range(WARM_EPOCHS[name] + 1):
        counts, _ = node.epoch(orders(dataset.files, 1, seed=dataset.seed, epoch=epoch)[0])
    return counts.loads, len(cells), counts.samples_read
