"""The redirection protocol without any I/O: it decides which sample answers which open.

Nothing here reads a clock, a disk or a socket, and numpy is the only import from outside the standard library. The same
events in the same order give the same decisions on every machine. The runtime (`redoxfs.node`) carries them out.

``slot``         the paper's local protocol (§3.4, Alg. 1-3): which sample has the next turn, and what to load for it
``pool``         one virtual chunk with a queue for each class: every chunk is loaded once, ahead of demand
``binding``      what an open of a path means while it is open elsewhere, after it was closed, and after a stat
``slot_nodes``   the paper's distributed protocol (§3.5, §3.6, Alg. 1, 4-6): virtual chunks that live at other nodes
``local_first``  the pool on several nodes: own chunks first, then batches from peers
``trace``        a node's order of access, which the distributed protocol prefetches by
``samplers``     the orders of access that PyTorch's samplers produce
``replay``       repeats what a binding decided, from a record, so that a new process continues from it
``shared_replay``  the same where samples lie at several nodes: the policy itself is repeated
``as_numbers``   messages and answers as lists of numbers, for such a record
``tables``       the state of a binding as arrays
``turns``        how far the laps are: the state that is saved, and merged where nodes share laps
``lap_progress``  the lap of each tree, counted turn by turn
``events``       the records that these modules exchange, and what a binding needs of a policy
``serving``      the whole interface of a policy, as a node uses it
"""

from redoxfs.protocol.as_numbers import answer_of, message_of, numbers_of
from redoxfs.protocol.binding import UNDECIDED, Binding, DrawnBinding
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
    SharedState,
    StatResult,
    ThreadEnded,
)
from redoxfs.protocol.lap_progress import TreeLap
from redoxfs.protocol.local_first import Given, LocalFirst, Take, exchange_for
from redoxfs.protocol.pool import PoolPolicy, retained_bytes_for
from redoxfs.protocol.replay import NO_SAMPLE, Repetition, Replay, ReplayError
from redoxfs.protocol.serving import Kept, ServingPolicy, SharedServingPolicy
from redoxfs.protocol.shared_replay import SharedReplay
from redoxfs.protocol.slot import SlotPolicy
from redoxfs.protocol.slot_nodes import Hit, RemoteAnswer, RemoteRead, SlotNode, homes_by_vc
from redoxfs.protocol.tables import BindingTables

__all__ = [
    "NO_SAMPLE",
    "UNDECIDED",
    "Answer",
    "Binding",
    "BindingTables",
    "Closed",
    "Delivered",
    "DrawnBinding",
    "Given",
    "Handled",
    "Hit",
    "Kept",
    "Load",
    "LocalFirst",
    "Message",
    "Opened",
    "Pending",
    "Policy",
    "PoolPolicy",
    "RemoteAnswer",
    "RemoteRead",
    "Repetition",
    "Replay",
    "ReplayError",
    "Served",
    "ServingPolicy",
    "SharedPolicy",
    "SharedReplay",
    "SharedServingPolicy",
    "SharedState",
    "SlotNode",
    "SlotPolicy",
    "StatResult",
    "Take",
    "ThreadEnded",
    "TreeLap",
    "answer_of",
    "exchange_for",
    "homes_by_vc",
    "message_of",
    "numbers_of",
    "retained_bytes_for",
]
