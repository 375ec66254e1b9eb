"""Opens that are slower than `--slow-open`: a line in the daemon's log for each, but not for each of a storm.

When storage hangs, all opens are slow at once, and so are the next. The log gets `LINES` of them in a minute, and
then one line with the number of the others. That is at most 1.5 MB a day with paths of 100 characters.
"""

import logging
import time
from collections.abc import Callable

import trio

from redoxfs.fs.access_log import OpenRecord
from redoxfs.node.failures import FewLines
from redoxfs.telemetry.access_log import Access

LINES = 5

log = logging.getLogger(__name__)


class SlowOpens(FewLines):
    """Logs slow opens. Used by the request loop's thread alone."""

    def __init__(
        self, access_of: Callable[[OpenRecord], Access], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(log, LINES, "more opens were slow", clock_s)
        self._access_of = access_of
        self._is_storm = trio.Event()

    def tell(self, record: OpenRecord) -> None:
        """An open was slow."""
        if not self.note(lambda: self._access_of(record).fields, "an open was slow"):
            self._is_storm.set()

    async def run(self) -> None:
        """Tell of the end of each storm, until cancelled."""
        while True:
            await self._is_storm.wait()
            await trio.sleep(max(0.0, self._until_s - self._clock_s()))
            self._is_storm = trio.Event()
            self.tell_left_out()
