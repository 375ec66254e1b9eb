"""One node among several that serve a dataset together. Imports gRPC: import it after a fork, and only with peers."""

from redoxfs.node.cluster.views import ClusterConfig, Host, JoinError, joined

__all__ = ["ClusterConfig", "Host", "JoinError", "joined"]
