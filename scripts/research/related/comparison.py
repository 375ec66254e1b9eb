"""Compares all systems on the same cluster: how much an epoch reads, sends and holds, and how well it is shuffled.

The storage model is that of `chunk_size`: a read costs ``seek_s`` and its bytes, one read after the
other. A chunk or a shard is one read, as in a packed dataset.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice, pairwise
from typing import Any

import numpy as np
from chunk_size import SAMPLE_BYTES
from randomness import MEASURED_EPOCHS
from shuffle_quality import mean_mate_pairs, quality

from redoxfs.chunks import StorageSpeed
from redoxfs.simulate.orders import orders
from redoxfs.simulate.policies import WARM_EPOCHS
from related import caches, redox, shuffles, substitutes
from related.epoch import Epoch, Int32, Setting, System


@dataclass(frozen=True, slots=True)
class Compared:
    """A system, its name in the table, and the epochs before its steady state."""

    title: str
    run: System
    warm_epochs: int


SYSTEMS: dict[str, Compared] = {
    "pytorch": Compared("PyTorch (page cache)", caches.page_cache, 2),
    "coordl": Compared("CoorDL", caches.coordl, 1),
    "locality-aware": Compared("locality-aware loading", caches.locality_aware, 1),
    "nopfs": Compared("NoPFS", caches.nopfs, 1),
    "quiver": Compared("Quiver", substitutes.quiver, 1),
    "shade": Compared("SHADE", substitutes.shade, 3),
    "partial-shuffle": Compared("partial shuffle", shuffles.partial_shuffle, 1),
    "deepio": Compared("DeepIO", shuffles.deepio, 0),
    "diesel": Compared("DIESEL+", shuffles.diesel, 0),
    "diesel-chunk": Compared("DIESEL+ (chunk by chunk)", shuffles.diesel_chunk, 0),
    "webdataset": Compared("WebDataset (buffer of 1,000)", shuffles.webdataset, 0),
    "webdataset-memory": Compared("WebDataset (buffer of all memory)", shuffles.webdataset_memory, 0),
    "py1e": Compared("Streaming py1e (block that fits)", shuffles.py1e, 0),
    "py1br": Compared("Streaming py1br (block that fits)", shuffles.py1br, 0),
    "py1e-default": Compared("Streaming py1e (default block)", shuffles.py1e_default, 0),
    "slot": Compared("Redox (slot)", redox.slot, WARM_EPOCHS["slot"]),
    "pool": Compared("redoxfs pool", redox.pool, WARM_EPOCHS["pool"]),
}
"""By the name that the command line has for it."""


@dataclass(frozen=True, slots=True)
class Row:
    """An epoch of a system, in the steady state: the mean of `MEASURED_EPOCHS`.

    ``file_reads``, ``file_bytes``    reads of one file at a random place
    ``chunk_reads``, ``chunk_bytes``  sequential reads of a chunk or a shard, or of parts of one
    ``storage_s``              the time of all reads by the storage model
    ``messages``               requests to other nodes; ``sent_bytes``: bytes of the samples that nodes sent each other
    ``peak_share``             the most samples in memory, over all nodes, as a share of all
    ``seen_share``             the share of the samples that an epoch had
    ``same_node_share``        the share that came to the same node as in the epoch before; 1 / nodes if random
    ``displacement``, …        as in `redoxfs.telemetry.quality`, in batches over all nodes

    Measures that compare successive epochs are None if an epoch repeats samples.
    """

    system: str
    title: str
    file_reads: int
    file_bytes: int
    chunk_reads: int
    chunk_bytes: int
    storage_s: float
    messages: int
    sent_samples: int
    sent_bytes: int
    peak_share: float
    exactly_once: bool
    seen_share: float
    same_node_share: float | None
    displacement: float | None
    rank_correlation: float | None
    mate_pairs: float
    mate_pairs_at_end: float
    mate_pairs_if_random: float


def compare(
    setting: Setting, speed: StorageSpeed, *, names: Iterable[str] = SYSTEMS, sample_bytes: int = SAMPLE_BYTES
) -> Iterator[Row]:
    """A row for each of ``names``."""

    def dealt(epoch: int) -> Sequence[Int32]:
        return orders(setting.files, setting.nodes, seed=setting.seed, epoch=epoch)

    for name in names:
        compared = SYSTEMS[name]
        epochs = islice(compared.run(setting, dealt), compared.warm_epochs, compared.warm_epochs + MEASURED_EPOCHS)
        yield _row(name, setting, speed, list(epochs), sample_bytes)


def report(
    setting: Setting, speed: StorageSpeed, rows: Iterable[Row], *, sample_bytes: int = SAMPLE_BYTES
) -> dict[str, Any]:
    """The setting and the rows for JSON, with their significant digits."""
    return {
        **asdict(setting),
        "sample_bytes": sample_bytes,
        "seek_time_s": speed.seek_s,
        "bytes_per_s": speed.bytes_per_s,
        "rows": [{field: _rounded(value) for field, value in asdict(row).items()} for row in rows],
    }


def _rounded(value: Any) -> Any:
    return round(value, 5) if isinstance(value, float) else value


def _row(name: str, setting: Setting, speed: StorageSpeed, epochs: Sequence[Epoch], sample_bytes: int) -> Row:
    def mean(counts: Iterable[int]) -> int:
        return round(sum(counts) / len(epochs))

    file_reads, chunk_reads = mean(each.file_reads for each in epochs), mean(each.chunk_reads for each in epochs)
    file_bytes = file_reads * sample_bytes
    chunk_bytes = mean(each.chunk_samples for each in epochs) * sample_bytes
    sent = mean(each.remote_samples for each in epochs)
    served, stored = [each.served for each in epochs], epochs[0].stored
    seen = [np.count_nonzero(np.bincount(each, minlength=setting.files)) for each in served]
    exactly_once = all(len(each) == distinct == setting.files for each, distinct in zip(served, seen, strict=True))
    found = quality(served, stored) if exactly_once else None
    pairs, at_end, if_random = mean_mate_pairs(served, stored)
    return Row(
        system=name,
        title=SYSTEMS[name].title,
        file_reads=file_reads,
        file_bytes=file_bytes,
        chunk_reads=chunk_reads,
        chunk_bytes=chunk_bytes,
        storage_s=(file_reads + chunk_reads) * speed.seek_s + (file_bytes + chunk_bytes) / speed.bytes_per_s,
        messages=mean(each.messages for each in epochs),
        sent_samples=sent,
        sent_bytes=sent * sample_bytes,
        peak_share=max(each.peak for each in epochs) / setting.files,
        exactly_once=exactly_once,
        seen_share=float(np.mean(seen)) / setting.files,
        same_node_share=_same_node(epochs) if exactly_once else None,
        displacement=found.displacement if found else None,
        rank_correlation=found.rank_correlation if found else None,
        mate_pairs=pairs,
        mate_pairs_at_end=at_end,
        mate_pairs_if_random=if_random,
    )


def _same_node(epochs: Sequence[Epoch]) -> float:
    nodes = [each.node[np.argsort(each.served)] for each in epochs]
    return float(np.mean([np.mean(before == after) for before, after in pairwise(nodes)]))
