"""The redirection protocol without any input or output: which sample answers which open.

Nothing here reads a clock, a disk or a socket, and nothing but numpy is imported, so the same events in the
same order give the same decisions on every machine. The runtime (``redoxfs.node``) carries the decisions out.

``slot``         the paper's local protocol (§3.4, Alg. 1-3): which sample has the next turn, what to load for it
``pool``         one virtual chunk with a queue for each class: every chunk is loaded once, ahead of demand
``binding``      what an open of a path means while others hold it open, after it was closed, and after a stat
``remote``       the paper's distributed protocol (§3.5, §3.6, Alg. 1, 4-6): virtual chunks that live at other nodes
``local_first``  the pool on several nodes: own chunks first, then batches from peers
``trace``        a node's order of access, which the remote protocol prefetches by
``events``       the frozen records in which both speak, and the interface that a policy offers to the binding
"""

from redoxfs.protocol.binding import Binding
from redoxfs.protocol.events import Closed, Ended, Load, Opened, Policy, Served, Told
from redoxfs.protocol.local_first import Answered, Given, LocalFirst, Received, Take
from redoxfs.protocol.pool import PoolPolicy
from redoxfs.protocol.remote import Delivered, Handled, Hit, RemoteAnswer, RemoteRead, SlotNode, homes_by_vc
from redoxfs.protocol.slot import SlotPolicy

__all__ = [
    "Answered",
    "Binding",
    "Closed",
    "Delivered",
    "Ended",
    "Given",
    "Handled",
    "Hit",
    "Load",
    "LocalFirst",
    "Opened",
    "Policy",
    "PoolPolicy",
    "Received",
    "RemoteAnswer",
    "RemoteRead",
    "Served",
    "SlotNode",
    "SlotPolicy",
    "Take",
    "Told",
    "homes_by_vc",
]
