"""Calls that other threads leave for the node's task, such as those that read the messages of other nodes.

The request loop makes them between two requests: as long as requests come, it gives trio's scheduler a turn only every
few milliseconds, and a message that waited for it would be late at both nodes. While no loop runs, trio makes them.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import trio


class Posts:
    """Made in the trio task. `post` is for any thread, all else for that of the task."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._lock = threading.Lock()  # of all that follows
        self._acts: deque[Callable[[], None]] = deque()
        self._fd = -1
        self._signalled = False

    def post(self, act: Callable[[], None]) -> None:
        """Have ``act`` called in the task, in the order of the calls. It must raise nothing."""
        with self._lock:
            self._acts.append(act)
            if self._fd >= 0:
                if not self._signalled:
                    self._signalled = True
                    os.eventfd_write(self._fd, 1)
                return
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self.run, idempotent=True)

    def run(self) -> bool:
        """Make the calls that are here. False if there are none."""
        if not self._acts:
            return False
        with self._lock:
            if self._signalled:
                self._signalled = False
                os.eventfd_read(self._fd)
            here = len(self._acts)
        for _ in range(here):
            self._acts.popleft()()
        return True

    def take_over(self) -> int:
        """The caller makes the calls from now on: `run`, whenever the returned descriptor is readable."""
        with self._lock:
            self._fd = os.eventfd(bool(self._acts), os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._signalled = bool(self._acts)
        return self._fd

    def give_back(self) -> None:
        """The caller of `take_over` makes no more calls. Trio makes those that are here."""
        with self._lock:
            os.close(self._fd)
            self._fd, self._signalled = -1, False
        self.run()
