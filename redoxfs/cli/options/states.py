"""The options of `redoxfs state`."""

from dataclasses import dataclass

from redoxfs.launch.defaults import LONG_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class StateSaveOptions:
    mountpoint: str
    file: str
    less: int = 0
    timeout_s: float = LONG_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class StateLoadOptions:
    mountpoint: str
    file: str
    timeout_s: float = LONG_TIMEOUT_S
