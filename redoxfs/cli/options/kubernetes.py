"""The options of the verbs that run in Kubernetes."""

from dataclasses import dataclass

from redoxfs.launch.options import MountOptions


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
