"""Telling one calling thread from the next that got its number.

FUSE names the caller by thread number, and numbers come again: a hold of a worker that died would otherwise give
a stranger a second look. A thread is known by its number and the time it was born, read from /proc when it is
first seen and again only when an open might be a second look, which is rare. Called from the node's task alone.
"""

from collections import OrderedDict
from pathlib import Path

from redoxfs.protocol.binding import UNKNOWN_THREAD

KNOWN = 65_536
"""As many as there can be holds; a thread that was forgotten is seen for the first time again."""

STARTTIME_FIELD = 19
"""Of /proc/N/stat, counted after the name's closing parenthesis (proc(5): field 22, in clock ticks)."""


class Threads:
    """The births of the threads that were seen. ``proc`` is where the kernel lists them."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._born: OrderedDict[int, str] = OrderedDict()

    def meet(self, thread: int) -> None:
        """Note the birth of a thread at its first call."""
        if thread != UNKNOWN_THREAD and thread not in self._born:
            self._note(thread)

    def is_another(self, thread: int) -> bool:
        """True where the number belongs to another thread than when it was met; it is met anew."""
        known = self._born.get(thread)
        born = self._note(thread)
        return known is not None and known != born

    def _note(self, thread: int) -> str:
        try:
            fields = (self._proc / str(thread) / "stat").read_text("latin-1")
            born = fields.rpartition(")")[2].split()[STARTTIME_FIELD]
        except (OSError, IndexError):
            # Gone, or /proc hides other users' processes: then numbers are all there is.
            born = ""
        self._born[thread] = born
        if len(self._born) > KNOWN:
            self._born.popitem(last=False)
        return born
