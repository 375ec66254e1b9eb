"""The file ``.redoxfs/accesslog``: a line for each open, for as long as somebody reads it.

The session in C records an open when it has its reply (`redoxfs.native.Opens`), in a ring that exists only while there
are readers. Nothing else is done then. Lines are made when a reader takes them, at most `BATCH` of them between two
other requests. So a reader costs the same whether it is fast or slow. If the ring has overtaken it, it is told how many
lines it lost.

A read that finds nothing waits here, and not among the requests of programs (`redoxfs.node.waits`). It ends with the
next lines, with a signal of its program, or after `IDLE_S`. Lines come in portions: each answer wakes a program, which
would cost more than its line.
"""

import errno
import logging
import select
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import trio

from redoxfs.fs.inodes import CONTROL, EXACT, branch_and_entry
from redoxfs.native import Opens, Session, Tree
from redoxfs.node import Node
from redoxfs.telemetry import Outcome
from redoxfs.telemetry.access_log import BATCH, CONTINUED, HEADER, IDLE, Access, Lines, lost_line

RECORDS = 1 << 16
"""That a slow reader may be behind: some seconds of opens at the highest rate. They take 2.6 MB."""

MOST_READERS = 16

MOST_READS = 64
"""That wait at once. A reader with one thread has one."""

PAUSE_S = 0.05
"""Between two portions for a reader that has taken all lines."""

IDLE_S = 10.0
"""After which a read that waits gets a line without an open. So a program that writes to a closed pipe finds out."""

HANDLES = 1 << 63
"""Handles of this file are above this. The session in C knows them by that."""

READABLE = select.POLLIN | select.POLLRDNORM

EXACT_FOLDER = b".redoxfs/exact/"

log = logging.getLogger(__name__)

OpenRecord: TypeAlias = tuple[int, int, int, int, int, int, int]
"""As `redoxfs.native.Opens` makes it: (at_ns, took_ns, inode, sample, thread, outcome, error)."""


def access_of(tree: Tree, node: Node, record: OpenRecord) -> Access:
    """What a record of the session means. ``tree`` is that of the node's catalog."""
    at_ns, took_ns, inode, sample, thread, outcome, error = record
    branch, entry = branch_and_entry(inode)
    assert branch is not CONTROL
    path, kind = tree.path(entry), Outcome(outcome)
    asked = EXACT_FOLDER + path if branch is EXACT else path
    served = path if sample < 0 else tree.path(node.file_of(sample, entry))
    took_us = (took_ns + 500) // 1000
    return Access(at_ns, thread, kind, took_us, asked, None if kind is Outcome.FAILED else served, error)


@dataclass(slots=True, eq=False)
class Reader:
    """An open of the file.

    ``at``      the position of the next record
    ``until``   the position that its present portion goes to
    ``text``    that comes before its line
    ``waiter``  whom to wake when there is something to read; 0: nobody
    """

    at: int
    until: int
    text: bytes
    waiter: int = 0


@dataclass(slots=True, eq=False)
class WaitingRead:
    unique: int
    reader: Reader
    size: int
    since_s: float


class AccessLog:
    """The readers of one mount's access log. Used by the request loop's thread alone."""

    def __init__(
        self,
        session: Session,
        opens: Opens,
        access_of: Callable[[OpenRecord], Access],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._opens = opens
        self._access_of = access_of
        self._clock_s = clock_s
        self._lines = Lines()
        self._readers: dict[int, Reader] = {}
        # By the number that the kernel gave the request.
        self._reads: dict[int, WaitingRead] = {}
        self._somebody_waits = trio.Event()
        # No daemon gives a handle of another.
        self._next = HANDLES + time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    # Requests

    def open(self, unique: int) -> None:
        """Answer an open. The reader gets a line for each open that ends from now on."""
        handle = self._next
        if not self._add(handle, HEADER):
            self._session.failed(unique, errno.EBUSY)
            return
        self._next += 1
        if not self._session.log_opened(unique, handle):
            self.release(handle)

    def read(self, unique: int, handle: int, number: int, size: int, *, waits: bool) -> None:
        """Answer a read, or keep it until there is something. ``number`` is the kernel's for it.

        Without ``waits`` it fails with EAGAIN if there is nothing.
        """
        reader = self._reader(handle)
        if reader is None:
            self._session.failed(unique, errno.EBUSY)
            return
        text = b""
        if not waits or reader.text or reader.at < reader.until or self._opens.position - reader.at >= BATCH:
            text = self._taken(reader, size)
        if text:
            self._session.data(unique, text)
        elif not waits or len(self._reads) >= MOST_READS:
            self._session.failed(unique, errno.EAGAIN)
        else:
            self._reads[number] = WaitingRead(unique, reader, size, self._clock_s())
            self._somebody_waits.set()

    def poll(self, unique: int, handle: int, waiter: int) -> None:
        """Answer a poll; if there is nothing, ``waiter`` is woken later, unless it is 0."""
        reader = self._reader(handle)
        if reader is None:
            self._session.failed(unique, errno.EBUSY)
            return
        reader.waiter = waiter
        if waiter:
            self._somebody_waits.set()
        self._session.polled(unique, READABLE if self._is_readable(reader) else 0)

    def release(self, handle: int) -> None:
        """A reader is gone. Without the last one nothing is recorded any more."""
        # One of a former daemon may never have read here.
        self._readers.pop(handle, None)
        if not self._readers:
            self._opens.stop()

    def interrupt(self, number: int) -> None:
        """The program behind a request got a signal."""
        read = self._reads.pop(number, None)
        if read is not None:
            self._session.failed(read.unique, errno.EINTR)

    # While the mount is served

    async def run(self) -> None:
        """Answer what waits, until cancelled."""
        while True:
            await self._somebody_waits.wait()
            await trio.sleep(PAUSE_S)
            self.answer_waiting()
            if not self._reads and not any(reader.waiter for reader in self._readers.values()):
                self._somebody_waits = trio.Event()

    def answer_waiting(self) -> None:
        """Give those who wait what there is."""
        now_s = self._clock_s()
        for number, read in list(self._reads.items()):
            if not self._is_readable(read.reader) and now_s - read.since_s >= IDLE_S:
                # A read may be shorter than this line, too.
                read.reader.text = IDLE
            # An answer without bytes would be the end of the file.
            if text := self._taken(read.reader, read.size):
                del self._reads[number]
                self._session.data(read.unique, text)
        for reader in self._readers.values():
            if reader.waiter and self._is_readable(reader):
                self._session.wake(reader.waiter)
                reader.waiter = 0

    def end(self, *, is_followed: bool) -> None:
        """No request comes any more. Reads that wait get the lines that are left, or the end of the file. Polls end.

        ``is_followed``: the reads are left to the next daemon.
        """
        for read in self._reads.values():
            if not is_followed:
                self._session.data(read.unique, self._taken(read.reader, read.size))
        self._reads.clear()
        for reader in self._readers.values():
            if reader.waiter:
                # The program asks again. The next daemon does not know whom to wake.
                self._session.wake(reader.waiter)
        self._readers.clear()
        self._opens.stop()

    # Lines

    def _reader(self, handle: int) -> Reader | None:
        """The reader with this handle; None if there are too many. A former daemon may have opened the file for it."""
        if handle not in self._readers and not self._add(handle, CONTINUED):
            return None
        return self._readers[handle]

    def _add(self, handle: int, text: bytes) -> bool:
        if len(self._readers) >= MOST_READERS:
            return False
        self._opens.start()
        self._readers[handle] = Reader(self._opens.position, self._opens.position, text)
        return True

    def _is_readable(self, reader: Reader) -> bool:
        return bool(reader.text) or self._opens.position > reader.at

    def _taken(self, reader: Reader, size: int) -> bytes:
        """Up to ``size`` bytes; empty if there is nothing."""
        if reader.at >= reader.until:
            reader.until = self._opens.position
        lost, records = self._opens.records(reader.at, BATCH)
        parts = [reader.text]
        if lost:
            parts.append(lost_line(lost))
        reader.at += lost
        length = sum(map(len, parts))
        for record in records:
            if length >= size:
                break
            parts.append(self._line(record))
            length += len(parts[-1])
            reader.at += 1
        text = b"".join(parts)
        reader.text = text[size:]
        return text[:size]

    def _line(self, record: OpenRecord) -> bytes:
        try:
            return self._lines.line(self._access_of(record))
        except Exception:
            # A log must not end a mount.
            log.exception("a bug in redoxfs: please report it")
            return b""
