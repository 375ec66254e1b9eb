"""The options of each verb, beside `redoxfs.launch.options`, and how one such value is made of many.

A verb's `run` takes one of these. Nothing behind the grammar knows argparse.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

from redoxfs.launch.options import DEFAULT_TIMEOUT_S, CacheOptions, DatasetOptions, MemoryOptions, MountOptions

Options = TypeVar("Options")

# ImageNet-1k, as in the paper's tables, and in round numbers.
PAPER_FILES = 1_281_167
SIMULATED_FILES = 1_280_000

# With the bandwidth of the paper's smaller cluster, 0.38 GB/s, the seek time at which its best chunk size is the best.
SEEK_TIME_S = 0.02
BANDWIDTH_BYTES_PER_S = 380e6


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """``mount`` has no mountpoint: the mount comes from the socket ``fd_socket``.

    ``given`` are the names of the options that the command line has, also those with the value of their default.
    """

    fd_socket: str
    mount: MountOptions
    given: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CsiOptions:
    endpoint: str
    node_id: str
    kubelet_dir: str = "/var/lib/kubelet"
    log_format: str = "text"
    log_level: str = "info"


@dataclass(frozen=True, slots=True)
class UmountOptions:
    """``mountpoint``, or ``all``: every mount of this user, or of one job."""

    mountpoint: str | None = None
    lazy: bool = False
    all: bool = False
    job: str | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class InstallHelperOptions:
    """``directory`` is where mount(8) looks for helpers."""

    directory: str = "/sbin"
    undo: bool = False


@dataclass(frozen=True, slots=True)
class RestartOptions:
    mountpoint: str
    timeout_s: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class LogLevelOptions:
    """``level`` None: print it."""

    mountpoint: str
    level: str | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class StatusOptions:
    mountpoint: str
    json: bool = False
    timeout_s: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class StatsOptions:
    """``count`` None: until the mount ends."""

    mountpoint: str
    interval_s: float = 1.0
    count: int | None = None
    json: bool = False
    timeout_s: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class TopOptions:
    """Empty ``mountpoints``: all mounts of this user. ``count`` None: until a key or a signal ends it."""

    mountpoints: tuple[str, ...] = ()
    interval_s: float = 1.0
    count: int | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """``path`` is a mountpoint, or an access log that was saved. ``seconds_s`` None: until Ctrl-C."""

    path: str
    seconds_s: float | None = None
    interval_s: float = 2.0
    depth: int = 1
    limit: int = 20
    json: bool = False
    timeout_s: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    listen: str = "127.0.0.1:9470"
    metrics_label: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterUpOptions:
    """``mount`` is what all nodes have in common; its mountpoint, its nodes and its rank are set for each.

    ``count`` None: the nodes are those of a Ray cluster that have ``resource``, or all of them.
    """

    folder: str
    mount: MountOptions
    count: int | None = None
    ray: bool = False
    resource: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterStatusOptions:
    folder: str
    ray: bool = False
    json: bool = False
    timeout_s: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class ClusterDownOptions:
    folder: str
    ray: bool = False
    lazy: bool = False
    timeout_s: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class TraceOptions:
    mountpoint: str
    file: str
    timeout_s: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class NodesOptions:
    """``new_list`` is the text of --set; None: print the nodes."""

    mountpoint: str
    new_list: str | None = None
    json: bool = False
    timeout_s: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class StateSaveOptions:
    mountpoint: str
    file: str
    less: int = 0
    timeout_s: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class StateLoadOptions:
    mountpoint: str
    file: str
    timeout_s: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class InspectOptions:
    source: str
    json: bool = False
    dataset: DatasetOptions = field(default_factory=DatasetOptions)
    memory: MemoryOptions = field(default_factory=MemoryOptions)
    timeout_s: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """``path`` is SOURCE or MOUNTPOINT; None: check the machine alone."""

    path: str | None = None
    nodes: str | None = None
    json: bool = False
    probe_s: float = 10.0
    timeout_s: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class DebugOptions:
    """``interval_s`` is between two looks at the statistics."""

    mountpoint: str
    output: str
    interval_s: float = 2.0
    timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """``inputs`` are mountpoints and files."""

    inputs: tuple[str, ...]
    output: str
    timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class PackOptions:
    """``jobs`` None: one process for each core."""

    source: str
    dst: str
    dataset: DatasetOptions = field(default_factory=DatasetOptions)
    shard_size: str = "1GiB"
    jobs: int | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """``jobs`` None: one process for each core."""

    source: str
    json: bool = False
    jobs: int | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class CatalogExportOptions:
    source: str
    file: str
    dataset: DatasetOptions = field(default_factory=DatasetOptions)
    timeout_s: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class CatalogShowOptions:
    file: str
    json: bool = False


@dataclass(frozen=True, slots=True)
class CacheListOptions:
    folder: str
    json: bool = False


@dataclass(frozen=True, slots=True)
class CacheVerifyOptions:
    folder: str
    json: bool = False


@dataclass(frozen=True, slots=True)
class CacheRemoveOptions:
    """``keys``, or ``all``."""

    folder: str
    keys: tuple[str, ...] = ()
    all: bool = False


@dataclass(frozen=True, slots=True)
class WarmupOptions:
    source: str
    cache: CacheOptions = field(default_factory=CacheOptions)
    dataset: DatasetOptions = field(default_factory=DatasetOptions)
    jobs: int = 32
    timeout_s: float = DEFAULT_TIMEOUT_S


# Simulations


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


def built(kind: type[Options], given: Mapping[str, Any]) -> Options:
    """An instance of a dataclass, and of those that are its fields; a field that is not ``given`` has its default."""
    values: dict[str, Any] = {}
    for each in fields(kind):  # type: ignore[arg-type]
        if is_dataclass(each.type):
            values[each.name] = built(each.type, given)  # type: ignore[arg-type]
        elif each.name in given:
            value = given[each.name]
            values[each.name] = tuple(value) if isinstance(value, list) else value
    return kind(**values)


def flat(options: object) -> dict[str, Any]:
    """The fields of a dataclass, and of those that are its fields, by their names: the inverse of `built`."""
    values: dict[str, Any] = {}
    for each in fields(options):  # type: ignore[arg-type]
        value = getattr(options, each.name)
        if is_dataclass(each.type):
            values |= flat(value)
        else:
            values[each.name] = value
    return values


def default_of(kind: type, name: str) -> Any:
    """The default of an option, for its help text."""
    return next(each.default for each in fields(kind) if each.name == name)
