"""Python threads that call the reads of stores that are written in Python.

The threads are daemon threads, so storage that never answers cannot keep the process from ending.

Rejected: a trio worker thread for each file. A chunk is up to K reads, and to start and finish one through the event
loop costs more than the read itself.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from time import monotonic

from redoxfs.chunks.store import Payload, Read
from redoxfs.node.transfers import Transfers

log = logging.getLogger(__name__)


class Callables(Transfers):
    """Reads in flight, each in one of so many threads, which start with the first read."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self._calls: SimpleQueue[Read | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def close(self, wait_s: float, /) -> None:
        super().close(0)
        for _ in self._threads:
            self._calls.put(None)
        until_s = monotonic() + wait_s
        for thread in self._threads:
            thread.join(max(0.0, until_s - monotonic()))

    def submit(self, reads: Sequence[Read], awaited: bool, /) -> None:
        super().submit(reads, awaited)
        while len(self._threads) < self._most:
            thread = threading.Thread(target=self._work, name=f"redoxfs-read-{len(self._threads)}", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # The limit of threads is reached. The next reads try again, and those that are queued wait for that.
                if self._threads:
                    return
                raise
            self._threads.append(thread)
            self._begin_more()

    def _begin_more(self) -> None:
        # A read that has begun takes the place of others.
        if self._threads:
            super()._begin_more()

    def _begin(self, read: Read) -> Callable[[], None]:
        self._calls.put(read)
        return lambda: None

    def _work(self) -> None:
        while (read := self._calls.get()) is not None:
            payloads: Sequence[Payload] = ()
            try:
                payloads = read.run()
            except Exception:
                log.exception("a store raised instead of returning an error for each file")
            self._arrived(read, payloads)
            # Not until the next one comes.
            del read, payloads
