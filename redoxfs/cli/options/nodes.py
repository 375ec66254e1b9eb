"""The options of the verbs for several nodes."""

from dataclasses import dataclass

from redoxfs.launch.defaults import DEFAULT_TIMEOUT_S, LONG_TIMEOUT_S
from redoxfs.launch.options import MountOptions


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
    """The daemon may look up millions of paths, for a minute or longer, before it answers."""

    mountpoint: str
    file: str
    timeout_s: float = LONG_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class NodesOptions:
    """``new_list`` is the text of --set; None: print the nodes."""

    mountpoint: str
    new_list: str | None = None
    json: bool = False
    timeout_s: float = LONG_TIMEOUT_S
