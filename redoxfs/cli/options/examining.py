"""The options of the verbs that explain a dataset, a machine or a mount."""

from dataclasses import dataclass, field

from redoxfs.launch.defaults import DEFAULT_TIMEOUT_S
from redoxfs.launch.options import DatasetOptions, MemoryOptions


@dataclass(frozen=True, slots=True)
class InspectOptions:
    """``nodes``: how many are to share the dataset. ``cache``: the folder of the cache of that mount."""

    source: str
    nodes: int = 1
    cache: str | None = None
    json: bool = False
    dataset: DatasetOptions = field(default_factory=DatasetOptions)
    memory: MemoryOptions = field(default_factory=MemoryOptions)
    timeout_s: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """``path`` is SOURCE or MOUNTPOINT; None: check the machine alone. ``left``: list what is left instead."""

    path: str | None = None
    left: bool = False
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
