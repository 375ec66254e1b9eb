"""The redirection protocol without any input or output: which sample answers which open.

Nothing here reads a clock, a disk or a socket, and nothing but numpy is imported, so the same events in the
same order give the same decisions on every machine. The runtime (``redoxfs.node``) carries the decisions out.

``slot``         the paper's local protocol (§3.4, Alg. 1-3): which sample has the next turn, what to load for it
``pool``         one virtual chunk with a queue for each class: every chunk is loaded once, ahead of demand
``binding``      what an open of a path means while others hold it open, after it was closed, and after a stat
``slot_nodes``   the paper's distributed protocol (§3.5, §3.6, Alg. 1, 4-6): virtual chunks that live at other nodes
``local_first``  the pool on several nodes: own chunks first, then batches from peers
``trace``        a node's order of access, which the remote protocol prefetches by
``samplers``     the orders of access that PyTorch's samplers give
``turns``        how far laps are: what is kept of them, and merged where nodes share them
``events``       the records in which all speak, and the interfaces that a policy offers to the binding and to peers
"""

from redoxfs.protocol.binding import Binding
from redoxfs.protocol.events import (
    Answer,
    Closed,
    Delivered,
    Handled,
    Load,
    Message,
    Opened,
    Pending,
    Policy,
    Served,
    SharedPolicy,
    StatResult,
    ThreadEnded,
)
from redoxfs.protocol.local_first import Given, LocalFirst, Take, parts_by_lap
from redoxfs.protocol.pool import PoolPolicy
from redoxfs.protocol.samplers import RandomOrder, distributed_order, distributed_orders, in_step
from redoxfs.protocol.slot import SlotPolicy
from redoxfs.protocol.slot_nodes import Hit, RemoteAnswer, RemoteRead, SlotNode, homes_by_vc

__all__ = [
    "Answer",
    "Binding",
    "Closed",
    "Delivered",
    "Given",
    "Handled",
    "Hit",
    "Load",
    "LocalFirst",
    "Message",
    "Opened",
    "Pending",
    "Policy",
    "PoolPolicy",
    "RandomOrder",
    "RemoteAnswer",
    "RemoteRead",
    "Served",
    "SharedPolicy",
    "SlotNode",
    "SlotPolicy",
    "StatResult",
    "Take",
    "ThreadEnded",
    "distributed_order",
    "distributed_orders",
    "homes_by_vc",
    "in_step",
    "parts_by_lap",
]
