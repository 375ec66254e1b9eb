"""Failed opens and reads in the daemon's log: a line for each, but not for each of a storm.

When storage fails, every open of a job may fail, and some jobs try again at once. The log gets `LINES` of them in
`WINDOW_S`, and the number of the others in the line of the next failure after that, or at the end. `errors` in the
statistics counts them all.
"""

import logging
import time
from collections.abc import Callable, Mapping

LINES = 100
WINDOW_S = 60.0

log = logging.getLogger(__name__)


class Failures:
    """Logs failed opens and reads. Used by the node's task alone."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._until_s = -1.0
        self._room = 0
        self._left_out = 0

    def note(self, fields: Callable[[], Mapping[str, str]], what: str = "an open failed") -> None:
        """Something failed. ``fields`` of its line are asked for only if there is one."""
        now_s = self._clock_s()
        if now_s >= self._until_s:
            self.tell_left_out()
            self._until_s, self._room = now_s + WINDOW_S, LINES
        if self._room:
            self._room -= 1
            log.warning(what, extra={"fields": dict(fields())})
        else:
            self._left_out += 1

    def tell_left_out(self) -> None:
        """Log how many failures have no line of their own, if there are any."""
        left_out, self._left_out = self._left_out, 0
        if left_out:
            log.warning("more opens or reads failed", extra={"fields": {"count": left_out}})
