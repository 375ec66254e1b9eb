"""The options of the verbs that write a dataset or its catalog, or check one."""

from dataclasses import dataclass, field

from redoxfs.launch.defaults import DEFAULT_TIMEOUT_S
from redoxfs.launch.options import DatasetOptions


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
