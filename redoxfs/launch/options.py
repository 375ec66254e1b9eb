"""What a mount is asked to do, as frozen values: the one place of each option's type and default.

`redoxfs.cli.arguments` builds these from a command line and renders them back into one. An option that was not given
has its default here; a value that depends on SOURCE or on the machine is None until it is decided.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from redoxfs.launch.defaults import (
    DEFAULT_JOIN_TIMEOUT_S,
    DEFAULT_PEER_TIMEOUT_S,
    DEFAULT_PREFETCH_WINDOW,
    DEFAULT_SLOW_OPEN_S,
    DEFAULT_TIMEOUT_S,
)


@dataclass(frozen=True, slots=True)
class SamplerSpec:
    """The sampler of the training, as --sampler names it.

    ``ranks`` are the processes that share the epoch (None: one for each node), ``tree`` the class tree that is read
    (None: the one with the most samples).
    """

    kind: str
    seed: int
    ranks: int | None = None
    shuffle: bool = True
    drop_last: bool = False
    persistent_workers: bool = False
    tree: str | None = None


@dataclass(frozen=True, slots=True)
class DatasetOptions:
    """How samples, classes and chunks are found in SOURCE.

    ``chunk_size`` None: chosen for the storage and policy. ``catalog`` is a file that replaces the scan. ``archives``
    is how tar archives form a tree (None: auto), and with ``salvage`` damaged ones are served as far as they go.
    """

    classes: str | None = None
    samples: tuple[str, ...] = ()
    groups: str | None = None
    chunk_size: int | None = None
    seed: int = 0
    rescan: bool = False
    catalog: str | None = None
    archives: str | None = None
    salvage: bool = False


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """How much memory holds samples, and by which policy.

    ``memory_size`` is the text of --memory (None: a quarter of what is available). ``storage_speed`` is reads and bytes
    a second (None: measured where it matters).
    """

    memory_size: str | None = None
    policy: str = "pool"
    storage_speed: tuple[float, int] | None = None


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """Where copies of samples are kept: the folder ``cache``; None: nowhere.

    ``cache_size`` is the text of --cache-size (None: nine tenths of what the disk has free).
    """

    cache: str | None = None
    cache_size: str | None = None


@dataclass(frozen=True, slots=True)
class SharingOptions:
    """What the nodes of a cluster do for each other, and over which transport.

    ``exchange`` None: by how much of its part a node retains.
    """

    storage: str = "shared"
    exchange: float | None = None
    remote_memory: str | None = None
    join_timeout_s: float = DEFAULT_JOIN_TIMEOUT_S
    peer_timeout_s: float = DEFAULT_PEER_TIMEOUT_S
    prefetch_window: int = DEFAULT_PREFETCH_WINDOW
    sampler: SamplerSpec | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Which nodes share the dataset. ``nodes`` is the text of --nodes; None: this node alone."""

    nodes: str | None = None
    node_rank: int | None = None
    node_count: int | None = None
    insecure: bool = False
    sharing: SharingOptions = field(default_factory=SharingOptions)


@dataclass(frozen=True, slots=True)
class MountOptions:
    """All that `redoxfs mount` takes.

    ``mountpoint`` None: over SOURCE. ``fuse_options`` are the values of -o. ``fuse_threads`` None: by the number of
    cores. ``job`` None: Slurm's, if there is one; empty: none. ``keeper``: start another daemon when one dies; None:
    where that is possible. ``metrics`` is where the daemon listens for scrapes; each metric has the
    labels of ``metrics_label``. Opens that take ``slow_open_s`` are logged; 0: none. Programs
    named in ``exact_for`` get exact files, besides those that do by default, and those in ``redirect_for`` do not.
    """

    source: str
    mountpoint: str | None = None
    dataset: DatasetOptions = field(default_factory=DatasetOptions)
    memory: MemoryOptions = field(default_factory=MemoryOptions)
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    timeout_s: float = DEFAULT_TIMEOUT_S
    foreground: bool = False
    log: str | None = None
    resume: bool = False
    state: str | None = None
    fuse_options: tuple[str, ...] = ()
    fuse_threads: int | None = None
    job: str | None = None
    keeper: bool | None = None
    metrics: str | None = None
    metrics_label: tuple[str, ...] = ()
    log_format: str = "text"
    log_level: str = "info"
    slow_open_s: float = DEFAULT_SLOW_OPEN_S
    exact_for: tuple[str, ...] = ()
    redirect_for: tuple[str, ...] = ()


def paths_in(given: Mapping[str, Any]) -> dict[str, str]:
    """Of options by their names, those that are paths, but for SOURCE and MOUNTPOINT."""
    from redoxfs.dataset.decision import is_table

    names = ["catalog", "cache", "log", "state", "tls_cert", "tls_key", "tls_ca"]
    if given["classes"] is not None and is_table(given["classes"]):
        names.append("classes")
    return {name: given[name] for name in names if given[name] is not None}
