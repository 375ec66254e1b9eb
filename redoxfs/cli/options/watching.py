"""The options of the verbs that show what mounts do."""

from dataclasses import dataclass

from redoxfs.launch.defaults import DEFAULT_TIMEOUT_S


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
