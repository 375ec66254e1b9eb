"""Begins reads that a store carries out in the background: so many at a time, those that are awaited first.

It has the interface of `redoxfs.native.Reader`, whose place it takes, so the loader treats both alike. Reads in flight
are limited twice: by their number, which follows the storage's gain (`depth`), and by the memory that they hold.

Results come from a thread of the store. That thread also begins the next reads, so storage never waits for the event
loop of the node. All else is called by the node's thread alone.
"""

import logging
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic_ns

from redoxfs.chunks.store import BackgroundRead, Payload, Read

log = logging.getLogger(__name__)

Done = tuple[Read, Sequence[Payload]]


class Transfers:
    """Reads in flight.

    Args:
        threads: how many there may be.
        most_held_bytes: what they may hold together. A read that holds more goes alone. Not in `Callables`.
    """

    def __init__(self, threads: int, most_held_bytes: int = 0) -> None:
        self._most = threads
        self._most_held_bytes = most_held_bytes
        self._lock = threading.Lock()  # of all that follows
        self._queues: tuple[OrderedDict[Read, None], ...] = (OrderedDict(), OrderedDict())  # [1]: awaited
        self._under_way: dict[Read, int] = {}  # when each began
        self._awaited: set[Read] = set()  # of those
        self._held_bytes = 0
        self._done: tuple[deque[Done], deque[Done]] = (deque(), deque())  # [1]: awaited
        self._signalled = False
        self._closing = False
        self._reads = self._size = self._read_ns = 0
        self._cancels: dict[Read, Callable[[], None]] = {}
        self._over = threading.Condition(self._lock)
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        """Readable while `take` has something to return."""
        return self._fd

    def submit(self, reads: Sequence[Read], awaited: bool, /) -> None:
        """Queue reads. ``awaited``: a request waits for the first."""
        with self._lock:
            for read in reads:
                self._queues[awaited][read] = None
                awaited = False
        self._begin_more()

    def hasten(self, read: Read, /) -> None:
        """A request waits for ``read`` now: it goes first, and so does its result."""
        others, first = self._queues
        with self._lock:
            if read in others:
                del others[read]
                first[read] = None
            elif read in self._under_way:
                self._awaited.add(read)
            else:
                here = [done for done in self._done[0] if done[0] is read]
                for done in here:
                    self._done[0].remove(done)
                    self._done[1].append(done)

    def cancel(self, read: Read, /) -> bool:
        """Drop a read that has not begun. False if it has; then its result comes as usual."""
        with self._lock:
            for queue in self._queues:
                if read in queue:
                    del queue[read]
                    return True
        return False

    def take(self, most: int, /) -> list[Done]:
        """Up to ``most`` completed reads, those that are waited for first. Never blocks."""
        taken: list[Done] = []
        with self._lock:
            for done in reversed(self._done):
                while done and len(taken) < most:
                    taken.append(done.popleft())
            if self._signalled and not any(self._done):
                os.eventfd_read(self._fd)
                self._signalled = False
        return taken

    def set_threads(self, threads: int, /) -> None:
        """How many reads may be in flight from now on, at least 1."""
        with self._lock:
            self._most = max(1, threads)
        self._begin_more()

    def counts(self) -> dict[str, int]:
        """``queued``, ``running``, ``done`` (not taken yet), ``threads`` (the limit); of all reads so far: ``reads``
        (how many), ``amount`` (the bytes that they held), ``read_ns`` (their time).
        """
        with self._lock:
            now_ns = monotonic_ns()
            return {
                "queued": sum(map(len, self._queues)),
                "running": len(self._under_way),
                "done": sum(map(len, self._done)),
                "threads": self._most,
                "reads": self._reads,
                "amount": self._size,
                # Those in flight too: the window of an observation may be shorter than a read.
                "read_ns": self._read_ns + sum(now_ns - began_ns for began_ns in self._under_way.values()),
            }

    def close(self, wait_s: float, /) -> None:
        """Drop queued reads, and end those in flight; wait for them up to ``wait_s``."""
        with self._lock:
            self._closing = True
            for queue in self._queues:
                queue.clear()
            cancels = [*self._cancels.values()]
        for cancel in cancels:
            cancel()
        with self._over:
            self._over.wait_for(lambda: not self._under_way, wait_s)
            for done in self._done:
                done.clear()
            os.close(self._fd)
            self._fd = -1

    def _begin_more(self) -> None:
        while (read := self._next()) is not None:
            try:
                cancel = self._begin(read)
            except Exception:
                log.exception("a read could not begin")
                self._end(read, ())
                continue
            with self._lock:
                # It may be over already.
                if read in self._under_way:
                    self._cancels[read] = cancel
                is_closing = self._closing
            if is_closing:
                cancel()

    def _begin(self, read: Read) -> Callable[[], None]:
        """Have a read carried out. Returns what ends it early."""
        assert isinstance(read, BackgroundRead)
        return read.begin(partial(self._arrived, read))

    def _next(self) -> Read | None:
        """A read that may begin now, counted as under way."""
        with self._lock:
            if self._closing or len(self._under_way) >= self._most:
                return None
            for queue in reversed(self._queues):
                if not queue:
                    continue
                read = next(iter(queue))
                # An awaited read does not let others overtake it, or it might wait for ever.
                held_bytes = _held_bytes(read)
                if self._under_way and self._held_bytes + held_bytes > self._most_held_bytes:
                    return None
                del queue[read]
                self._under_way[read] = monotonic_ns()
                self._held_bytes += held_bytes
                if queue is self._queues[1]:
                    self._awaited.add(read)
                return read
        return None

    def _arrived(self, read: Read, payloads: Sequence[Payload]) -> None:
        self._end(read, payloads)
        self._begin_more()

    def _end(self, read: Read, payloads: Sequence[Payload]) -> None:
        """A read is over. It makes room for others."""
        with self._lock:
            self._read_ns += monotonic_ns() - self._under_way.pop(read)
            self._reads += 1
            self._size += _held_bytes(read)
            self._held_bytes -= _held_bytes(read)
            self._cancels.pop(read, None)
            awaited = read in self._awaited
            self._awaited.discard(read)
            self._over.notify_all()
            if not self._closing:
                self._done[awaited].append((read, payloads))
                if not self._signalled:
                    os.eventfd_write(self._fd, 1)
                    self._signalled = True


def _held_bytes(read: Read) -> int:
    return read.held_bytes if isinstance(read, BackgroundRead) else 0
