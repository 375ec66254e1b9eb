"""The options of `redoxfs cache` and `redoxfs warmup`."""

from dataclasses import dataclass, field

from redoxfs.launch.defaults import DEFAULT_TIMEOUT_S
from redoxfs.launch.options import CacheOptions, DatasetOptions


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
