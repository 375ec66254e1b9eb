"""What a node writes down so that another process can continue from it (`Node.recover`).

The memory that outlives the process has a *journal*, a ring of entries, and the last *checkpoint*. The node appends an
entry after each decision and before its answer, so nothing that a program saw is missing. What was decided and has no
entry was seen by nobody: its request is still there, and is decided again. A checkpoint has the state in which the
entries before it resulted. The next process loads it and repeats the entries after it.

    OPEN     `Binding.open` for ``request``. sample: of the turn, or NO_SAMPLE. flags: PREEMPTED. value: when the thread
             was heard, in ns since boot
    STAT     `Binding.stat`. sample: that of the result, or NO_SAMPLE. flags: NEW where it was reserved. value: as OPEN
    FORGET   `Binding.thread`
    CHANGED  a file is not as at the scan. path: its entry; value: its size, or -1 if it is as at the scan again
    OPENED   the open of ``request`` is answered. path: the entry; file: DATA or EXACT; sample: the handle; value: the
             size, or -1 if the file is not redirected. flags: SHARES_PAGES
    FAILED   the open of ``request`` is answered with an error
    CLOSED   handle ``sample`` is closed
    STAMP    of a file that the OPENED after it serves, or of another file of the same sample, if it is not as at the
             scan. path: its entry; value: its time; request: its inode; thread, sample: the lower, upper 32 bits of its
             size

With other nodes, also what passes between the policies. An OPEN whose turn another node has to give has UNDECIDED as
its sample.

    NUMBERS    two numbers of the event that follows: request and value. path: how many came before them
    HANDLED    a message of another node was answered. Its numbers: message, answer, and what the policy beneath chose
    RECEIVED   an answer of another node came. Its numbers: answer, and what the policy beneath chose
    WITHDRAWN  a stat waits for a ticket no longer. value: the ticket
    ALONE      no node answered for ``path``, and this one decided

For samplers:

    DRAWN      a draw gave ``sample`` to the sampler ``request``, in its block ``value``

Whatever else changes what a policy decides has no entry: a checkpoint is written before its messages leave the node.
Orders of access are not kept.

The session appends OPENED, FAILED and CLOSED (`redoxfs.native.Session`), the node all others. Called from the node's
task alone.
"""

import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias

from redoxfs.chunks.store import Stamp
from redoxfs.native import Shared

OPEN, STAT, FORGET, CHANGED, OPENED, FAILED, CLOSED, STAMP = range(1, 9)
NUMBERS, HANDLED, RECEIVED, WITHDRAWN, ALONE, DRAWN = range(9, 15)

PREEMPTED = NEW = SHARES_PAGES = 1
"""Flags of OPEN, STAT and OPENED."""

DATA, EXACT = range(2)
"""Branches of the mount that files are opened in."""

MASK = (1 << 64) - 1
"""Numbers with a sign are in ``request`` as their 64 bits."""

CHECKPOINT_ENTRIES = 16_384
"""A quarter of the ring. Some 5,000 files: the checkpoint of a million samples then costs 1 % of their time, and a new
process repeats the entries in a tenth of a second."""

Entry: TypeAlias = tuple[int, int, int, int, int, int, int, int]
"""kind, file, flags, thread, path, sample, request, value."""

log = logging.getLogger(__name__)


class Journal:
    """The journal of one node, in memory that outlives the process.

    ``request``  the number of the request that is being decided; set before each `Node.open`
    ``soon``     whether a checkpoint has to come before the next request
    ``note``     appends an entry
    """

    def __init__(self, shared: Shared, *, checkpoint_entries: int = CHECKPOINT_ENTRIES) -> None:
        self.request = 0
        self.soon = False
        self.note = shared.note
        self._shared = shared
        self._every = checkpoint_entries
        self._next = shared.position + checkpoint_entries
        self._state: Callable[[], bytes] = bytes
        self._failed = False

    def attach(self, state: Callable[[], bytes]) -> None:
        """``state`` returns the node's checkpoint."""
        self._state = state

    def checkpoint_soon(self) -> None:
        """Have a checkpoint written before the next request."""
        self.soon = True
        self._next = self._shared.position

    def checkpoint_if_due(self) -> None:
        """Between two requests: replace the checkpoint if it is time."""
        if self._shared.position >= self._next:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Replace the checkpoint. Never between a decision and its entry."""
        self.soon = False
        self._next = self._shared.position + self._every
        try:
            self._shared.checkpoint(self._state())
        except ValueError as error:
            if not self._failed:
                log.warning("cannot write a checkpoint: %s; if this daemon dies, the mount may end", error)
            self._failed = True
        else:
            self._failed = False

    def stamp(self, entry: int, stamp: Stamp) -> None:
        """A STAMP entry."""
        size = stamp.size
        self.note(STAMP, 0, 0, size & 0xFFFFFFFF, entry, size >> 32, stamp.inode, stamp.mtime_ns)

    def event(self, kind: int, numbers: Sequence[int]) -> None:
        """A HANDLED or RECEIVED entry, after its numbers."""
        note = self.note
        for at in range(0, len(numbers) - 1, 2):
            note(NUMBERS, 0, 0, 0, at, 0, numbers[at] & MASK, numbers[at + 1])
        if len(numbers) % 2:
            note(NUMBERS, 0, 0, 0, len(numbers) - 1, 0, numbers[-1] & MASK, 0)
        note(kind, 0, 0, 0, len(numbers), 0, 0, 0)

    def past(self) -> tuple[bytes, Sequence[Entry]]:
        """The last checkpoint, and the entries after it. Raises ValueError."""
        checkpointed = self._shared.checkpointed()
        if checkpointed is None:
            raise ValueError("there is no checkpoint")
        position, data = checkpointed
        entries = self._shared.entries(position)
        if len(entries) != self._shared.position - position:
            raise ValueError(
                f"of {self._shared.position - position} entries after the checkpoint {len(entries)} are left"
            )
        return data, entries


def stamp_of(entry: Entry) -> Stamp:
    """The inverse of `Journal.stamp`."""
    _, _, _, low, _, high, inode, mtime_ns = entry
    return Stamp(high << 32 | low, mtime_ns, inode)
