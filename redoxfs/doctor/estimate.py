"""How long an epoch takes, plain and through redoxfs: from what the storage did in the probe, and what one daemon can.

Storage that serves r files a second with d reads in flight gives a plain epoch of N files with d workers in N / r.
redoxfs reads a directory with up to 128 reads in flight, and packed shards in long reads. Either way a daemon serves no
more than its processor allows. Time of the training itself, and of memory that is full at once, is not in it.
"""

from dataclasses import dataclass

from redoxfs.chunks import UNKNOWN_SPEED, StorageSpeed
from redoxfs.doctor.storage import Probe

DAEMON_FILES_PER_S = 7000.0
"""One daemon, 4 readers, files of 100 kB: docs/performance.md, "The full path"."""

DAEMON_BYTES_PER_S = DAEMON_FILES_PER_S * 100_000
"""Larger files take it longer; nothing was measured that is faster."""

READERS = 8
"""Workers of a usual job."""

PACKED_SHARE = 0.95
"""Of the storage's rate that redoxfs reaches on a packed dataset: docs/performance.md, "Packed and plain"."""

WORTH = 1.2
"""A gain below this is within the error of a probe."""

DEFAULT_CHUNK, MOST_CHUNK = 64, 1024
"""Samples in a chunk: what `pack` writes by default, and the most that is advised."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of an epoch. ``directory`` is through redoxfs without packing; None: it is packed already.

    ``bandwidth_is_assumed``: no file was long enough to measure long reads, on which ``packed`` depends.
    """

    files: int
    bytes: int
    plain_one: float | None
    plain_eight: float | None
    directory: float | None
    packed: float
    bandwidth_is_assumed: bool


def estimate(probe: Probe, files: int, total_bytes: int) -> Estimate | None:
    """For ``files`` of ``total_bytes`` in all; None if the probe says nothing."""
    best = probe.best
    if best is None or not files:
        return None
    mean = max(1.0, total_bytes / files)
    daemon = min(DAEMON_FILES_PER_S, DAEMON_BYTES_PER_S / mean)
    is_assumed = not probe.long_bytes_per_s and probe.bytes_per_s < UNKNOWN_SPEED.bytes_per_s
    bandwidth = UNKNOWN_SPEED.bytes_per_s if is_assumed else probe.bytes_per_s
    packed = files / min(daemon, PACKED_SHARE * bandwidth / mean)
    if probe.is_packed:
        return Estimate(files, total_bytes, None, None, None, packed, is_assumed)
    # The probe may have met smaller or larger files than the average.
    scale = _per_file(probe, mean)
    rates = {depth: probe.per_s(depth) * scale for depth in (1, READERS)}
    directory = files / min(daemon, best.per_s * scale)
    return Estimate(files, total_bytes, files / rates[1], files / rates[READERS], directory, packed, is_assumed)


def _per_file(probe: Probe, mean: float) -> float:
    """By what the rate of files is to be multiplied if their mean size is another than in the probe: where reads are
    limited by bytes, it falls as they grow."""
    if not probe.mean_bytes or mean <= 2 * probe.mean_bytes or probe.long_bytes_per_s is None:
        return 1.0
    best = probe.best
    assert best is not None
    share = min(1.0, best.bytes_per_s / probe.long_bytes_per_s)
    return 1.0 / (1.0 - share + share * mean / probe.mean_bytes)


def chunk_size(probe: Probe, mean_bytes: float) -> int:
    """Samples in a chunk that read about as fast as a sweep: a power of two from `DEFAULT_CHUNK` on."""
    best = probe.best
    if best is None or probe.long_bytes_per_s is None:
        return DEFAULT_CHUNK
    # As in `measure_storage`: with several reads in flight, what limits them is a number of reads a second.
    speed = StorageSpeed(1 / max(probe.per_s(READERS), 1e-9), probe.long_bytes_per_s, adds=False)
    size = DEFAULT_CHUNK
    while size * mean_bytes < speed.streaming_bytes and size < MOST_CHUNK:
        size *= 2
    return size
