"""A pool of threads that carry out reads and deliver the results to the node's task.

Threads take reads from one queue and put results on another. They wake the event loop once for all results that have
arrived since. While all memory fills, results may arrive as fast as they are delivered, so delivery is cut into time
slices, and the loop does its other work in between.

Awaited reads, for which a request waits, go before the others, and so do their results; within each group the order is
that of arrival. A thread holds no lock while it reads. The threads are daemon threads, so storage that never answers
cannot keep the process from ending.

Rejected: a trio worker thread for each file. A chunk is up to K reads, and to start and finish one through the event
loop costs more than the read itself.
"""

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from time import perf_counter

import trio

from redoxfs.chunks.store import Payload, Read

JOIN_S = 2.0
"""How long a clean end waits for reads in progress. The end of the process ends those that hang."""

SLICE_S = 1e-3
"""How long one slice of delivery takes: a hundred results or so, and the longest delay that it adds to an open."""

log = logging.getLogger(__name__)


class Loader:
    """A pool of reading threads.

    Args:
        deliver: called in the task's thread with a read and its payloads, which are empty if the store raised.
    """

    def __init__(self, deliver: Callable[[Read, Sequence[Payload]], None], *, threads: int) -> None:
        self._deliver = deliver
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
        self._threads = [
            threading.Thread(target=self._work, name=f"redoxfs-read-{i}", daemon=True) for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, reads: Sequence[Read], *, awaited: bool) -> None:
        """Queue reads. ``awaited``: a request waits for the first of them."""
        with self._wake:
            self._others.update(dict.fromkeys(reads[awaited:]))
            if awaited:
                self._awaited.append(reads[0])
            self._wake.notify(len(reads))

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

    def close(self) -> None:
        """End the threads. Queued reads are dropped; reads in progress get up to `JOIN_S`."""
        with self._wake:
            self._closing = True
            self._awaited.clear()
            self._others.clear()
            self._wake.notify_all()
        for thread in self._threads:
            thread.join(JOIN_S / len(self._threads))
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
            if not self._hand_over_soon():
                return

    def _hand_over(self) -> None:
        until = perf_counter() + SLICE_S
        while self._awaited_here or self._here:
            result = self._awaited_here.popleft() if self._awaited_here else self._here.popitem(last=False)
            try:
                self._deliver(*result)
            except Exception:
                # It would end the event loop, and with it the mount.
                log.exception("a bug in redoxfs: please report it")
            if perf_counter() > until:
                self._hand_over_soon()
                return

    def _hand_over_soon(self) -> bool:
        """Schedule `_hand_over` in the loop; False if the loop has ended."""
        try:
            self._token.run_sync_soon(self._hand_over, idempotent=True)
        except trio.RunFinishedError:
            return False
        return True
