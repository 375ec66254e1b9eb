"""Detects that a thread number belongs to a new thread, that a thread has ended, and which program it runs.

FUSE names the caller by its thread number, and the kernel reuses numbers. Without this, a new thread would inherit the
holds of a dead worker and get a second look. A thread that was born after its number was last seen is a new one. The
time of birth is read from /proc only when the answer depends on the caller, which is rare. Called from the node's task
alone.

The name of a program is read when a thread is heard for the first time. A thread that was silent may have become
another one, or run another program since, so it is read again then.

The kernel numbers callers as the process that mounted sees them. If that process is in another pid namespace than this
one, such as the plugin of Kubernetes, a number means nothing here: /proc has another thread with it, or none.
"""

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from pathlib import Path

from redoxfs.linux.pids import born_s, exists
from redoxfs.node.programs import Programs
from redoxfs.protocol.binding import HOLDS, UNKNOWN_THREAD

RECYCLED_S = 0.05
"""The kernel gives out all other numbers before it reuses one, which takes longer than this."""

GONE_S = 0.05
"""The shortest time between two checks for ended threads."""

GONE_SHARE = 1 / 50
"""The largest share of the time that these checks may take."""


SESSIONS_S = 60.0
"""A session counts for so long after it was heard."""

SESSIONS_EVERY_S = 10.0
"""The sessions are not looked for more often, and of so many threads: that takes 10 to 20 us each."""

THREADS_OF_SESSIONS = 64


_since_boot_s = partial(time.clock_gettime, time.CLOCK_BOOTTIME)


class Callers:
    """When each thread number was last seen.

    Args:
        proc: the directory where the kernel lists threads.
        signal: like `os.kill`.
        sees: the numbers are those of this process's pid namespace. Otherwise no thread counts as another one, or as
            ended, and no program is recognized.
        programs: those that get exact files; None: no program is recognized.

    ``copying``  the threads that run one of ``programs``, with its name
    ``heard_s``  by thread: when it was last heard, in s since boot, the latest last
    """

    def __init__(
        self,
        proc: Path = Path("/proc"),
        clock_s: Callable[[], float] = _since_boot_s,
        signal: Callable[[int, int], None] = os.kill,
        *,
        sees: bool = True,
        programs: Programs | None = None,
    ) -> None:
        self._sees = sees
        self._programs = programs if sees else None
        self.copying: dict[int, str] = {}
        self._tell: Callable[[bool], None] = lambda _: None
        self._began_s = clock_s()
        self._proc = proc
        self._clock_s = clock_s
        self._signal = signal
        self.heard_s: OrderedDict[int, float] = OrderedDict()
        self._look_s = 0.0
        self._sessions_s = 0.0
        self._sessions: dict[str, list[str]] = {}

    def hear(self, thread: int) -> float:
        """A request of ``thread`` is here. Returns when, in s since boot; 0 if it cannot be seen."""
        if thread == UNKNOWN_THREAD:
            return 0.0
        heard_s = self._clock_s()
        before_s = self.heard_s.get(thread, -1.0)
        if before_s < heard_s - RECYCLED_S or before_s < self._began_s:
            self._recognize(thread)
        self.heard_s[thread] = heard_s
        self.heard_s.move_to_end(thread)
        if len(self.heard_s) > HOLDS:
            self.heard_s.popitem(last=False)
        return heard_s

    def watch_copying(self, tell: Callable[[bool], None]) -> None:
        """``tell`` is called when the first thread is ``copying``, and when none is any more; before any request."""
        self._tell = tell

    def _recognize(self, thread: int) -> None:
        name = None if self._programs is None else self._programs.name_of(thread)
        if name is None:
            self.forget(thread)
            return
        is_first = not self.copying
        self.copying[thread] = name
        if is_first:
            self._tell(True)

    def forget(self, thread: int) -> None:
        """``thread`` has ended, or runs another program."""
        if self.copying.pop(thread, None) is not None and not self.copying:
            self._tell(False)

    def sessions(self) -> dict[str, list[str]]:
        """The programs of each session of processes that was heard lately and does not copy, by its number."""
        now_s = self._clock_s()
        if self._programs is not None and now_s >= self._sessions_s:
            self._sessions_s = now_s + SESSIONS_EVERY_S
            found: dict[str, set[str]] = {}
            for thread, heard_s in islice(reversed(self.heard_s.items()), THREADS_OF_SESSIONS):
                if heard_s > now_s - SESSIONS_S and thread not in self.copying:
                    seen = self._programs.session_of(thread)
                    if seen is not None:
                        found.setdefault(str(seen[0]), set()).add(seen[1])
            self._sessions = {session: sorted(names) for session, names in found.items()}
        return self._sessions

    def resume(self, heard_s: Mapping[int, float]) -> None:
        """Continue with what another process heard since the last boot."""
        self.heard_s.update(heard_s)

    def is_another(self, thread: int) -> bool:
        """Whether the number belonged to another thread when it was last seen. A request with it is here."""
        heard_s = self.heard_s.get(thread)
        if not self._sees or heard_s is None or self._clock_s() - heard_s < RECYCLED_S:
            return False
        try:
            return born_s(thread, self._proc) > heard_s
        except (OSError, ValueError):
            # The thread is gone, or /proc hides other users' processes. Then only the number is known.
            return False

    def gone(self, threads: Iterable[int]) -> list[int]:
        """Those of ``threads`` that have ended; none if the last check was too recent."""
        start_s = self._clock_s()
        if not self._sees or start_s < self._look_s:
            return []
        gone = [thread for thread in threads if not exists(thread, self._signal)]
        now_s = self._clock_s()
        self._look_s = now_s + max(GONE_S, (now_s - start_s) / GONE_SHARE)
        return gone
