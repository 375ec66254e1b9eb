"""One node among several that serve a dataset together. Imports gRPC, so a node without peers does not import this.

``join``      the nodes come together before the mount
``views``     the list of nodes, and the change to another
``messages``  messages between nodes, and the bytes of their answers
``resume``    how far the laps of all nodes are, and where they start
``prefetch``  the orders of access that the slot policy prefetches by; ``epochs``: this node's place in them
"""

from redoxfs.node.cluster.join import JoinError, joined
from redoxfs.node.cluster.views import ClusterConfig, Membership, continued_plan

__all__ = ["ClusterConfig", "JoinError", "Membership", "continued_plan", "joined"]
