"""The redirection protocol without any input or output: which sample answers which open.

Nothing here reads a clock, a disk or a socket, and nothing but numpy is imported, so the same events in the
same order give the same decisions on every machine. The runtime (``redoxfs.node``) carries the decisions out.

``slot``     the paper's local protocol (§3.4, Alg. 1-3): which sample has the next turn, what to load for it
``binding``  what an open of a path means while others hold it open, after it was closed, and after a stat
``events``   the frozen records in which both speak, and the interface that a policy offers to the binding
"""

from redoxfs.protocol.binding import Binding
from redoxfs.protocol.events import Closed, Ended, Load, Opened, Policy, Served, Told
from redoxfs.protocol.slot import SlotPolicy

__all__ = ["Binding", "Closed", "Ended", "Load", "Opened", "Policy", "Served", "SlotPolicy", "Told"]
