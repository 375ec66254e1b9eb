"""Carries reads out on a fixed number of threads and hands what they brought to the node's task.

Why not a trio worker thread for each file: a chunk is up to K reads, and starting and finishing each through the
event loop costs more there than the read itself. Threads of our own take reads from one queue and put results on
another; the loop is woken once for as many results as have come in meanwhile. While all memory is filled, results may
come in as fast as they are handed over, so that is done in slices, with whatever else the loop has to do between.

Reads that somebody waits for go before those that nobody does, each in the order in which they came, and so do their
results. The threads hold no lock while they read, and they are daemon threads, so that storage that never answers
cannot keep a process from ending.
"""

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from time import perf_counter

import trio

from redoxfs.chunks.store import Payload, Read

JOIN_S = 2.0
"""How long a clean end waits for reads that are under way; a hung one is left to the end of the process."""

SLICE_S = 1e-3
"""How long results are handed over at a time: some hundred of them, and the longest that an open waits for that."""

log = logging.getLogger(__name__)


class Loader:
    """A pool of reading threads.

    Args:
        deliver: called in the task's thread with a read and its payloads; none where the store raised.
    """

    def __init__(self, deliver: Callable[[Read, Sequence[Payload]], None], *, threads: int) -> None:
        self._deliver = deliver
        self._token = trio.lowlevel.current_trio_token()
        self._awaited: deque[Read] = deque()
        # There may be hundreds of thousands, of which any may be hastened.
        self._others: OrderedDict[Read, None] = OrderedDict()
        # What is being read, and what has been, for nobody as yet; the results that somebody waits for.
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
        """Queue reads; the first of them is waited for where ``awaited`` says so."""
        with self._wake:
            self._others.update(dict.fromkeys(reads[awaited:]))
            if awaited:
                self._awaited.append(reads[0])
            self._wake.notify(len(reads))

    def hasten(self, read: Read) -> None:
        """Somebody waits for ``read`` now."""
        with self._wake:
            if read in self._others:
                del self._others[read]
                self._awaited.append(read)
            elif read in self._here:
                self._awaited_here.append((read, self._here.pop(read)))
            else:
                self._under_way.discard(read)

    def close(self) -> None:
        """End the threads. Queued reads are dropped; those under way are waited for a little."""
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
                log.exception("a store raised instead of giving an error for each file")
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
        """Have the loop do it; False where there is no loop any more."""
        try:
            self._token.run_sync_soon(self._hand_over, idempotent=True)
        except trio.RunFinishedError:
            return False
        return True
