"""A clock that stops while the process does, for the deadlines of what a daemon waits for.

A process may be stopped: SIGSTOP, `docker pause`, `scontrol suspend`. Storage and peers cannot answer a process that
does not run, so by any other clock each wait would end at its deadline when the process goes on. Here a loop that looks
much later than it meant to was not running, and that time does not count. So it has its deadlines still before it, and
first takes what arrived meanwhile.

The loop must look at least every `TICK_S` while it has a deadline. One thread uses an instance.
"""

import math
import time
from collections.abc import Callable

TICK_S = 0.5
"""The longest sleep of a loop that has a deadline. A loop of trio or asyncio wakes up in less than 0.1 ms."""

LATE_S = 1.0
"""Between two looks of a loop that runs, also on a busy machine. What is longer does not count."""


class RunningTime:
    """Seconds in which this process ran, from some beginning.

    ``clock_s``: a clock that goes on.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._looked_s = self._ran_s = clock_s()
        self._was_late = False

    def now(self) -> float:
        looked_s = self._clock_s()
        passed_s, self._looked_s = looked_s - self._looked_s, looked_s
        is_late = passed_s > LATE_S
        # A loop that is late each time, as on an overloaded machine, must not wait forever.
        if not is_late or self._was_late:
            self._ran_s += min(passed_s, LATE_S)
        self._was_late = is_late
        return self._ran_s

    def sleep_until(self, deadline_s: float) -> float:
        """How long to sleep before the next look, in seconds; inf without a deadline."""
        return math.inf if deadline_s == math.inf else min(deadline_s - self.now(), TICK_S)
