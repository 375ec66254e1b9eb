"""The options of `redoxfs simulate`."""

from dataclasses import dataclass

# ImageNet-1k, as in the paper's tables, and in round numbers.
PAPER_FILES = 1_281_167
SIMULATED_FILES = 1_280_000

# With the bandwidth of the paper's smaller cluster, 0.38 GB/s, the seek time at which its best chunk size is the best.
SEEK_TIME_S = 0.02
BANDWIDTH_BYTES_PER_S = 380e6


@dataclass(frozen=True, slots=True)
class BreakdownOptions:
    files: int = PAPER_FILES
    seed: int = 0
    json: bool = False


@dataclass(frozen=True, slots=True)
class PoliciesOptions:
    files: int = SIMULATED_FILES
    seed: int = 0
    json: bool = False
    classes: int = 1000
    skew: float = 0.0
    policy: str = "pool"
    resident: float = 0.1
    chunk_size: int = 64
    nodes: int = 1


@dataclass(frozen=True, slots=True)
class ChunkSizeOptions:
    files: int = SIMULATED_FILES
    seed: int = 0
    json: bool = False
    classes: int = 1000
    skew: float = 0.0
    policy: str = "slot"
    resident: float = 0.1
    seek_time_s: float = SEEK_TIME_S
    bandwidth: float = BANDWIDTH_BYTES_PER_S
    plot: str | None = None


@dataclass(frozen=True, slots=True)
class RemoteMemoryOptions:
    files: int = PAPER_FILES
    seed: int = 0
    json: bool = False
    plot: str | None = None


@dataclass(frozen=True, slots=True)
class RandomnessOptions:
    """Empty ``policies``: all of them."""

    files: int = SIMULATED_FILES
    seed: int = 0
    json: bool = False
    classes: int = 1000
    skew: float = 0.0
    policies: tuple[str, ...] = ()
    chunk_sizes: tuple[int, ...] = (64, 16, 4)
    residents: tuple[float, ...] = (0.25, 0.1, 0.02)


RELATED_SYSTEMS = (
    "pytorch",
    "coordl",
    "locality-aware",
    "nopfs",
    "quiver",
    "shade",
    "partial-shuffle",
    "deepio",
    "diesel",
    "diesel-chunk",
    "webdataset",
    "webdataset-memory",
    "py1e",
    "py1br",
    "py1e-default",
    "slot",
    "pool",
)
"""The systems of `redoxfs.simulate.related`, which takes too long to import for a grammar."""


# Enough for all systems to be in their steady state, and few enough for a test.
QUICK_FILES = 32_000


@dataclass(frozen=True, slots=True)
class RelatedOptions:
    """Three nodes whose memory holds a quarter of ImageNet-1k, as in §5.2. Empty ``systems``: all of them."""

    files: int = SIMULATED_FILES
    seed: int = 0
    json: bool = False
    classes: int = 1000
    systems: tuple[str, ...] = ()
    nodes: int = 3
    resident: float = 0.25
    chunk_size: int = 64
    seek_time_s: float = SEEK_TIME_S
    bandwidth: float = BANDWIDTH_BYTES_PER_S
    plot: str | None = None
