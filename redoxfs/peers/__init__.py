"""The protocol between nodes, over gRPC.

``peers``        what a node uses: all other nodes of its job
``view``         the list of nodes, and what they must have in common
``service``      what a node implements for its peers
``server``       this node as its peers see it; ``outgoing``, ``traces``: the answers and traces that it keeps for them
``client``       one peer as this node sees it; ``failures``: what a failed call means
``asking``       the call that carries messages to a peer; ``answering``: the same at the home
``translation``  the core's messages as protobuf; ``fields``, ``parts``: the bytes of samples, copied once on each side
``bounds``       the limits of messages
``bridge``       between gRPC's threads and the trio task
``channel``      the connections between nodes; ``tls``: with credentials; ``quiet``: gRPC's own messages
``v1``           generated from proto/ by scripts/proto

This may be imported before a fork, but a `Peers` must not be started before one.
"""

import redoxfs.peers.quiet  # noqa: F401
from redoxfs.peers.bounds import Bounds
from redoxfs.peers.channel import Plaintext, Transport
from redoxfs.peers.peers import JoinTimeoutError, Peers, Place, RefusedError
from redoxfs.peers.service import LapService, PeerService, Reply
from redoxfs.peers.tls import Tls, TlsError
from redoxfs.peers.view import Identity, View

__all__ = [
    "Bounds",
    "Identity",
    "JoinTimeoutError",
    "LapService",
    "PeerService",
    "Peers",
    "Place",
    "Plaintext",
    "RefusedError",
    "Reply",
    "Tls",
    "TlsError",
    "Transport",
    "View",
]
