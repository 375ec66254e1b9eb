"""One running node, without the filesystem in front of it."""

from redoxfs.node.control import Verb, serve_control
from redoxfs.node.journal import Journal
from redoxfs.node.kernel import Kernel
from redoxfs.node.node import ExpectedOpen, Node, OpenFile
from redoxfs.node.plan import (
    PLANNERS,
    Plan,
    Share,
    check_pool,
    plan_pool,
    plan_slot,
    pool_memory_for,
    pool_of_node,
    pool_reads,
    slot_memory_for,
)
from redoxfs.node.recovery import OpenBefore, Past, Recovered, RecoveryError
from redoxfs.node.threads import NoThreadError
from redoxfs.node.waits import WAITING_OPENS, WAITING_READS

__all__ = [
    "PLANNERS",
    "WAITING_OPENS",
    "WAITING_READS",
    "ExpectedOpen",
    "Journal",
    "Kernel",
    "NoThreadError",
    "Node",
    "OpenBefore",
    "OpenFile",
    "Past",
    "Plan",
    "Recovered",
    "RecoveryError",
    "Share",
    "Verb",
    "check_pool",
    "plan_pool",
    "plan_slot",
    "pool_memory_for",
    "pool_of_node",
    "pool_reads",
    "serve_control",
    "slot_memory_for",
]
