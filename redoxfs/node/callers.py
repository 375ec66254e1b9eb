"""Telling one calling thread from the next that got its number, and from one that is gone.

FUSE names the caller by thread number, and numbers come again: a hold of a worker that died would otherwise give
a stranger a second look. A thread that was born after its number was last heard of is another one. The time of
birth is read from /proc only when it matters who asks, which is rare. Called from the node's task alone.
"""

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path

from redoxfs.protocol.binding import HOLDS, UNKNOWN_THREAD

STARTTIME_FIELD = 19
"""Of /proc/N/stat, counted after the name's closing parenthesis (proc(5): field 22, in clock ticks since boot)."""

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


RECYCLED_S = 0.05
"""All other numbers are given out before one comes again, which takes longer than this."""

GONE_S = 0.05
"""Between two checks for threads that are gone, at least."""

GONE_SHARE = 1 / 50
"""The share of the time that these checks may take."""


def _since_boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Callers:
    """When each thread number was last heard of.

    Args:
        proc: where the kernel lists threads.
        signal: as `os.kill`.
    """

    def __init__(
        self,
        proc: Path = Path("/proc"),
        clock_s: Callable[[], float] = _since_boot_s,
        signal: Callable[[int, int], None] = os.kill,
    ) -> None:
        self._proc = proc
        self._clock_s = clock_s
        self._signal = signal
        self._heard_s: OrderedDict[int, float] = OrderedDict()
        self._look_s = 0.0

    def hear(self, thread: int) -> None:
        """A thread asks for something now."""
        if thread == UNKNOWN_THREAD:
            return
        self._heard_s[thread] = self._clock_s()
        self._heard_s.move_to_end(thread)
        if len(self._heard_s) > HOLDS:
            self._heard_s.popitem(last=False)

    def is_another(self, thread: int) -> bool:
        """Whether the number, which asks for something now, was another thread's when it was last heard of."""
        heard_s = self._heard_s.get(thread)
        if heard_s is None or self._clock_s() - heard_s < RECYCLED_S:
            return False
        try:
            fields = (self._proc / str(thread) / "stat").read_text("latin-1")
            born_s = int(fields.rpartition(")")[2].split()[STARTTIME_FIELD]) / TICKS_PER_S
        except (OSError, IndexError, ValueError):
            # Gone, or /proc hides other users' processes: then numbers are all there is.
            return False
        return born_s > heard_s

    def gone(self, threads: Iterable[int]) -> list[int]:
        """Those of ``threads`` that have ended; none if the last check was a moment ago."""
        start_s = self._clock_s()
        if start_s < self._look_s:
            return []
        gone = [thread for thread in threads if not self._exists(thread)]
        now_s = self._clock_s()
        self._look_s = now_s + max(GONE_S, (now_s - start_s) / GONE_SHARE)
        return gone

    def _exists(self, thread: int) -> bool:
        # Not by /proc, which may hide other users' processes.
        try:
            self._signal(thread, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return True
        return True
