"""Opens that are slower than `--slow-open`: a line in the daemon's log for each, but not for each of a storm.

When storage hangs, all opens are slow at once, and so are the next. The log gets `LINES` of them in `WINDOW_S`, and
then one line with the number of the others. That is at most 1.5 MB a day with paths of 100 characters.
"""

import logging
import time
from collections.abc import Callable

import trio

from redoxfs.fs.access_log import OpenRecord
from redoxfs.telemetry.access_log import Access

LINES = 5
WINDOW_S = 60.0

log = logging.getLogger(__name__)


class SlowOpens:
    """Logs slow opens. Used by the request loop's thread alone."""

    def __init__(
        self, access_of: Callable[[OpenRecord], Access], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._access_of = access_of
        self._clock_s = clock_s
        self._until_s = -1.0
        self._room = 0
        self._left_out = 0
        self._is_storm = trio.Event()

    def note(self, record: OpenRecord) -> None:
        """An open was slow."""
        now_s = self._clock_s()
        if now_s >= self._until_s:
            self.tell_left_out()
            self._until_s, self._room = now_s + WINDOW_S, LINES
        if self._room:
            self._room -= 1
            log.warning("an open was slow", extra={"fields": self._access_of(record).fields})
        else:
            self._left_out += 1
            self._is_storm.set()

    def tell_left_out(self) -> None:
        """Log how many slow opens have no line of their own, if there are any."""
        left_out, self._left_out = self._left_out, 0
        if left_out:
            log.warning("more opens were slow", extra={"fields": {"count": left_out}})

    async def run(self) -> None:
        """Tell of the end of each storm, until cancelled."""
        while True:
            await self._is_storm.wait()
            await trio.sleep(max(0.0, self._until_s - self._clock_s()))
            self._is_storm = trio.Event()
            self.tell_left_out()
