"""Failed opens and reads in the daemon's log: a line for each, but not for each of a storm.

When storage fails, every open of a job may fail, and some jobs try again at once. The log gets some lines in
`WINDOW_S`, and the number of the others in the line of the next failure after that, or at the end. `errors` in the
statistics counts them all.
"""

import logging
import time
from collections.abc import Callable, Mapping

LINES = 100
WINDOW_S = 60.0

log = logging.getLogger(__name__)


class FewLines:
    """Warnings in ``log``, so many in `WINDOW_S`; a line that says ``more`` has the number of the others."""

    def __init__(self, log: logging.Logger, lines: int, more: str, clock_s: Callable[[], float]) -> None:
        self._log = log
        self._lines = lines
        self._more = more
        self._clock_s = clock_s
        self._until_s = -1.0
        self._room = 0
        self._left_out = 0

    def note(self, fields: Callable[[], Mapping[str, object]], what: str = "an open failed") -> bool:
        """Something failed. ``fields`` of its line are asked for only if there is one. Returns whether there is."""
        now_s = self._clock_s()
        if now_s >= self._until_s:
            self.tell_left_out()
            self._until_s, self._room = now_s + WINDOW_S, self._lines
        if self._room:
            self._room -= 1
            self._log.warning(what, extra={"fields": dict(fields())})
            return True
        self._left_out += 1
        return False

    def tell_left_out(self) -> None:
        """Log how many have no line of their own, if there are any."""
        left_out, self._left_out = self._left_out, 0
        if left_out:
            self._log.warning(self._more, extra={"fields": {"count": left_out}})


def failures(clock_s: Callable[[], float] = time.monotonic) -> FewLines:
    """Of opens and reads."""
    return FewLines(log, LINES, "more opens or reads failed", clock_s)
