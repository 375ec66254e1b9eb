"""One running node, without the filesystem in front of it."""

from redoxfs.node.control import send_control, serve_control
from redoxfs.node.node import Kernel, Node, OpenFile
from redoxfs.node.plan import Plan, plan_slot
from redoxfs.node.waits import WAITING_OPENS, WAITING_READS, TooManyWaitingError

__all__ = [
    "WAITING_OPENS",
    "WAITING_READS",
    "Kernel",
    "Node",
    "OpenFile",
    "Plan",
    "TooManyWaitingError",
    "plan_slot",
    "send_control",
    "serve_control",
]
