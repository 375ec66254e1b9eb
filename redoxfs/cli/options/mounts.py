"""The options of the verbs that change how a mount runs, or end it."""

from dataclasses import dataclass

from redoxfs.launch.defaults import DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class UmountOptions:
    """``mountpoint``, or ``all``: every mount of this user, with ``all_users`` of everybody, or of one job."""

    mountpoint: str | None = None
    lazy: bool = False
    all: bool = False
    all_users: bool = False
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
