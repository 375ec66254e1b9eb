"""The clock of a daemon's trio loop: every deadline there is one of time in which the daemon ran."""

import trio

from redoxfs.linux.running_time import RunningTime


class RunningClock(trio.abc.Clock):
    """trio's clock over `RunningTime`."""

    def __init__(self) -> None:
        self._time = RunningTime()

    def start_clock(self) -> None:
        """Nothing: it goes from the beginning."""

    def current_time(self) -> float:
        return self._time.now()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return self._time.sleep_until(deadline)
