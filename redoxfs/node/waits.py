"""A bound on how many requests wait, and on how long.

A request that waits holds one of the session's tasks, and a session without a free task receives nothing, not even
the close that would end a wait. So opens and reads that wait are counted apart, and both together stay below the
number of tasks: releases, and reads and opens of what is in memory, always get through.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import trio

WAITING_OPENS = 640
"""Each is a client thread that is stopped in open(2); a node's job rarely has a tenth of that."""

WAITING_READS = 320


class TooManyWaitingError(Exception):
    """No more requests of this kind may wait."""


class Waits:
    """At most ``limit`` waits at once, each at most ``timeout_s`` long."""

    def __init__(self, limit: int, timeout_s: float) -> None:
        self._limit = limit
        self._timeout_s = timeout_s
        self.now = 0
        self.seconds = 0.0

    @contextmanager
    def one(self, timeout_s: float | None = None) -> Iterator[None]:
        """Around whatever is awaited; ``timeout_s`` where this wait has a deadline of its own.

        Raises:
            TooManyWaitingError: at once.
            trio.TooSlowError: at the deadline.
        """
        if self.now >= self._limit:
            raise TooManyWaitingError(f"{self._limit} requests wait for storage already")
        self.now += 1
        began = trio.current_time()
        try:
            with trio.fail_after(self._timeout_s if timeout_s is None else timeout_s):
                yield
        finally:
            self.now -= 1
            self.seconds += trio.current_time() - began
