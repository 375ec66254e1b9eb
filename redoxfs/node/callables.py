"""A pool of Python threads that call the reads of stores that are written in Python.

Threads take reads from one queue and put results on another. They wake the event loop once for all results that have
arrived since. Awaited reads, for which a request waits, go before the others, and so do their results; within each
group the order is that of arrival. A thread holds no lock while it reads. The threads are daemon threads, so storage
that never answers cannot keep the process from ending.

Rejected: a trio worker thread for each file. A chunk is up to K reads, and to start and finish one through the event
loop costs more than the read itself.
"""

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

import trio

from redoxfs.chunks.store import Payload, Read

log = logging.getLogger(__name__)


class Callables:
    """A pool of reading threads, which start with the first read.

    Args:
        deliver_soon: called in the event loop when there are results to `take`.
    """

    def __init__(self, deliver_soon: Callable[[], None], *, threads: int) -> None:
        self._deliver_soon = deliver_soon
        self._token = trio.lowlevel.current_trio_token()
        self._awaited: deque[Read] = deque()
        # There may be hundreds of thousands, and any of them may be hastened.
        self._others: OrderedDict[Read, None] = OrderedDict()
        # Not awaited so far: reads in progress, and results. Then results that are awaited.
        self._under_way: set[Read] = set()
        self._here: OrderedDict[Read, Sequence[Payload]] = OrderedDict()
        self._awaited_here: deque[tuple[Read, Sequence[Payload]]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._count = threads
        self._threads: list[threading.Thread] = []

    def submit(self, reads: Sequence[Read], *, awaited: bool) -> None:
        """Queue reads. ``awaited``: a request waits for the first of them."""
        with self._wake:
            self._others.update(dict.fromkeys(reads[awaited:]))
            if awaited:
                self._awaited.append(reads[0])
            self._wake.notify(len(reads))
        while len(self._threads) < self._count:
            thread = threading.Thread(target=self._work, name=f"redoxfs-read-{len(self._threads)}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def hasten(self, read: Read) -> None:
        """A request waits for ``read`` now: put it first."""
        with self._wake:
            if read in self._others:
                del self._others[read]
                self._awaited.append(read)
            elif read in self._here:
                self._awaited_here.append((read, self._here.pop(read)))
            else:
                self._under_way.discard(read)

    def cancel(self, read: Read) -> bool:
        """Drop a read that is not awaited and has not begun; False if it has."""
        with self._wake:
            was_queued = read in self._others
            self._others.pop(read, None)
        return was_queued

    def take(self) -> tuple[Read, Sequence[Payload]] | None:
        """A result, those that are awaited first; the payloads are empty if the store raised."""
        if self._awaited_here:
            return self._awaited_here.popleft()
        return self._here.popitem(last=False) if self._here else None

    def deliver_later(self) -> bool:
        """Call ``deliver_soon`` in the loop; False if the loop has ended."""
        try:
            self._token.run_sync_soon(self._deliver_soon, idempotent=True)
        except trio.RunFinishedError:
            return False
        return True

    def close(self, wait_s: float) -> None:
        """End the threads. Queued reads are dropped; reads in progress get up to ``wait_s``."""
        with self._wake:
            self._closing = True
            self._awaited.clear()
            self._others.clear()
            self._wake.notify_all()
        for thread in self._threads:
            thread.join(wait_s / len(self._threads))
        self._here.clear()
        self._awaited_here.clear()

    def _work(self) -> None:
        while True:
            with self._wake:
                while not (self._awaited or self._others or self._closing):
                    self._wake.wait()
                if self._closing:
                    return
                if self._awaited:
                    read = self._awaited.popleft()
                else:
                    read, _ = self._others.popitem(last=False)
                    self._under_way.add(read)
            try:
                payloads = read.run()
            except Exception:
                log.exception("a store raised instead of returning an error for each file")
                payloads = ()
            with self._wake:
                if read in self._under_way:
                    self._under_way.remove(read)
                    self._here[read] = payloads
                else:
                    self._awaited_here.append((read, payloads))
            if not self.deliver_later():
                return
