"""What nodes say to each other, over gRPC.

``peers``        what a node uses: all other nodes of its job
``view``         who they are, and what they must have in common
``service``      what a node has to offer to them
``server``       this node as they see it; ``outgoing``, ``traces``: what it keeps for them
``client``       one of them as this node sees it
``translation``  the core's messages as protobuf; ``fields``, ``parts``: the bytes of samples, copied once on each side
``bounds``       what a message can say at most
``bridge``       between gRPC's threads and the trio task
``channel``      what calls go over; ``tls``: with credentials; ``quiet``: what gRPC says by itself
``v1``           generated from proto/ by scripts/proto

May be imported before a fork; a `Peers` must not be started before one.
"""

import redoxfs.peers.quiet  # noqa: F401
from redoxfs.peers.bounds import Bounds
from redoxfs.peers.channel import Plaintext, Transport
from redoxfs.peers.peers import JoinTimeoutError, Peers, RefusedError
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
    "Plaintext",
    "RefusedError",
    "Reply",
    "Tls",
    "TlsError",
    "Transport",
    "View",
]
