"""How many requests wait, and for how long.

A request that waits holds its program in the kernel, where not even a signal ends it, and memory here. So each wait has
a deadline. Whoever takes the requests keeps their number within `WAITING_OPENS` and `WAITING_READS`, and leaves further
ones undecided.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import trio

WAITING_OPENS = 640
"""Each is a client thread that is blocked in open(2); the job of a node rarely has a tenth of that."""

WAITING_READS = 320


class Waits:
    """Waits of one kind, each at most ``timeout_s`` long."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.now = 0
        self.seconds = 0.0

    @contextmanager
    def one(self, timeout_s: float | None = None) -> Iterator[None]:
        """Wrap one wait. ``timeout_s``: its deadline, if not the usual one.

        Raises:
            trio.TooSlowError: at the deadline.
        """
        began = self.enter()
        try:
            with trio.fail_after(self._timeout_s if timeout_s is None else timeout_s):
                yield
        finally:
            self.leave(began)

    def enter(self) -> float:
        """A wait begins; returns when, for `leave`. The caller keeps the deadline."""
        self.now += 1
        return trio.current_time()

    def leave(self, began: float) -> None:
        """A wait is over."""
        self.now -= 1
        self.seconds += trio.current_time() - began
