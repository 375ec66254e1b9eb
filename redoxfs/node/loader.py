"""Carries out the reads of any store in threads, and delivers the results to the node's task.

Described reads (`NativeRead`) go to threads in C, and need Python only to be queued and delivered. Reads that the store
carries out by itself (`BackgroundRead`) are begun in turn, so many at a time (`transfers`). Reads of copies
(`CopyRead`) have threads in C of their own, since they read another disk. The reads of any other store in Python go to
threads in Python (`callables`), which start with the first of them. In each way awaited reads, for which a request
waits, go before the others, and so do their results.

While all memory fills, results may arrive as fast as they are delivered, so delivery is cut into time slices, and the
loop does its other work in between. A task of the loader delivers by itself. Whoever handles requests outside of trio
takes that over (`Loader.take_over`), and spares every result a turn of trio's scheduler.
"""

import logging
import select
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any

import trio

from redoxfs.chunks.store import BackgroundRead, CopyRead, NativeRead, Payload, Read
from redoxfs.native import Reader
from redoxfs.node.callables import Callables
from redoxfs.node.depth import Depth
from redoxfs.node.transfers import Transfers

JOIN_S = 2.0
"""How long a clean end waits for reads in progress. The end of the process ends those that hang."""

SLICE_S = 1e-3
"""How long one slice of delivery takes: a hundred results or so, and the longest delay that it adds to an open."""

# The exception would end the event loop, and with it the mount.
BUG = "a bug in redoxfs: please report it"

LOOK_S = 0.1
"""How often the depth is looked at, while results come: a part of `depth.WINDOW_S`."""

_OF_READER = (NativeRead, BackgroundRead)

log = logging.getLogger(__name__)


class Loader:
    """A pool of reading threads; made in a trio task.

    Args:
        deliver: called in the task's thread with a read and its payloads, which are empty if the store raised.
        threads: how many reads are in flight; at first, if there is ``most_threads``.
        most_threads: how many reads may be in flight, if the storage gains from it.
        most_held_bytes: the store carries its reads out in the background, and they may hold so much together.
        copies_threads: how many reads of copies are in flight; None: the store has none.

    Raises:
        OSError: no thread can be started.
    """

    def __init__(
        self,
        deliver: Callable[[Read, Sequence[Payload]], None],
        *,
        threads: int,
        most_threads: int | None = None,
        most_held_bytes: int | None = None,
        copies_threads: int | None = None,
    ) -> None:
        self._deliver = deliver
        self._reader: Reader | Transfers = (
            Reader(threads) if most_held_bytes is None else Transfers(threads, most_held_bytes)
        )
        self._copies = None if copies_threads is None else Reader(copies_threads)
        self._copies_first = True
        self._either: select.epoll | None = None
        if self._copies is not None:
            self._either = select.epoll()
            self._either.register(self._reader.fileno(), select.EPOLLIN)
            self._either.register(self._copies.fileno(), select.EPOLLIN)
        self._depth = None if most_threads is None else Depth(threads, most_threads)
        self._look_at = 0.0
        self._callables = Callables(threads)
        self._delivers = True
        self._closed = False
        trio.lowlevel.spawn_system_task(self._deliver_by_itself)
        trio.lowlevel.spawn_system_task(self._deliver_callables)

    def reads(self) -> dict[str, Any]:
        """How many reads were carried out so far and how long they took, without those of copies, as in stats.json."""
        counts = {"reads": 0, "read_ns": 0, "threads": 0} if self._closed else self._reader.counts()
        return {
            "reads": counts["reads"],
            "read_seconds": round(counts["read_ns"] / 1e9, 6),
            "reads_limit": counts["threads"],
        }

    def submit(self, reads: Sequence[Read], *, awaited: bool) -> None:
        """Queue reads of one call of a store. ``awaited``: a request waits for the first of them.

        After `close` they are dropped.
        """
        if self._closed:
            return
        first = reads[0]
        if self._copies is not None:
            copies = [read for read in reads if isinstance(read, CopyRead)]
            if copies:
                of_copies = [(read, read.entries) for read in copies]
                self._copies.submit(copies[0].native, of_copies, awaited and copies[0] is first)
                reads = [read for read in reads if not isinstance(read, CopyRead)]
                if not reads:
                    return
                awaited = awaited and reads[0] is first
                first = reads[0]
        reader = self._of(first)
        if isinstance(reader, Transfers):
            reader.submit(reads, awaited)
        elif isinstance(first, NativeRead):
            described = [(read, read.entries) for read in reads if isinstance(read, NativeRead)]
            reader.submit(first.native, described, awaited)

    def hasten(self, read: Read) -> None:
        """A request waits for ``read`` now: put it first."""
        if not self._closed:
            self._of(read).hasten(read)

    def cancel(self, read: Read) -> bool:
        """Drop a read that has not begun. False if it has; then it is delivered as usual."""
        return not self._closed and self._of(read).cancel(read)

    def take_over(self) -> int:
        """The caller delivers from now on: `deliver_some` whenever the returned descriptor is readable."""
        fd = self._fileno()
        if self._delivers:
            self._delivers = False
            trio.lowlevel.notify_closing(fd)
        return fd

    def deliver_some(self) -> bool:
        """Deliver what has arrived, for the time of one slice. False if nothing has."""
        if self._closed:
            return False
        take = self._reader.take if self._copies is None else self._take
        taken = take(1)
        if not taken:
            return False
        until = self._deliver_slice(taken, take)
        if self._depth is not None and until > self._look_at:
            self._look_at = until + LOOK_S
            self._follow(self._depth, until)
        return True

    def close(self) -> None:
        """End the threads. Queued reads are dropped; reads in progress get up to `JOIN_S`."""
        if self._closed:
            return
        self._closed = True
        # If the loop has ended, so have the tasks.
        with suppress(RuntimeError):
            trio.lowlevel.notify_closing(self._callables.fileno())
            if self._delivers:
                trio.lowlevel.notify_closing(self._fileno())
        self._delivers = False
        if self._either is not None:
            self._either.close()
        self._reader.close(JOIN_S)
        if self._copies is not None:
            self._copies.close(JOIN_S)
        self._callables.close(JOIN_S)

    def _of(self, read: Read) -> Reader | Transfers:
        if self._copies is not None and isinstance(read, CopyRead):
            return self._copies
        return self._reader if isinstance(read, _OF_READER) else self._callables

    def _fileno(self) -> int:
        """A descriptor that is readable while there are results."""
        return self._reader.fileno() if self._either is None else self._either.fileno()

    def _take(self, most: int, /) -> Any:
        """As `Reader.take`, from both readers in turn, so that neither waits until the other has no results."""
        assert self._copies is not None
        first, second = (self._copies, self._reader) if self._copies_first else (self._reader, self._copies)
        self._copies_first = not self._copies_first
        return first.take(most) or second.take(most)

    def _deliver_slice(self, taken: Any, take: Callable[[int], Any]) -> float:
        """Deliver what was taken and more, for the time of one slice. Returns when that ends."""
        until = perf_counter() + SLICE_S
        while taken:
            try:
                ((read, results),) = taken
                self._deliver(read, read.payloads(results) if isinstance(read, NativeRead) else results)
            except Exception:
                log.exception(BUG)
            if perf_counter() > until:
                break
            taken = take(1)
        return until

    def _follow(self, depth: Depth, now_s: float) -> None:
        counts, before = self._reader.counts(), depth.threads
        if depth.observe(now_s, counts["reads"], counts["read_ns"], counts["amount"]) != before:
            self._reader.set_threads(depth.threads)

    async def _deliver_by_itself(self) -> None:
        try:
            while self._delivers:
                await trio.lowlevel.wait_readable(self._fileno())
                # `close` may come between the wake-up and this.
                if self._delivers:
                    self.deliver_some()
        except trio.ClosedResourceError:
            # `close` or `take_over`.
            return

    async def _deliver_callables(self) -> None:
        take = self._callables.take
        with suppress(trio.ClosedResourceError):
            while not self._closed:
                await trio.lowlevel.wait_readable(self._callables.fileno())
                # As in `_deliver_by_itself`.
                if not self._closed:
                    self._deliver_slice(take(1), take)
