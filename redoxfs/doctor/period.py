"""The part of a mount's history that its verdict is about: the newest lap, or what came after it.

What was long ago says little: the first epoch fills a cache, and a job may have been mended since. What a mount does at
this second says nothing once the job has ended. So all tools speak of the same period. Pure, without I/O and clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from redoxfs.telemetry.history_form import Point, Read, growth

LEAST_S = 10.0
"""What came after a lap counts by itself once programs have used the mount for so long, or for half of the lap's time.
Before, it may be the beginning of an epoch, or a short validation."""


@dataclass(frozen=True, slots=True)
class Period:
    """``grown``: what counters and histograms grew by; its gauges are those of the end. ``seconds``: in which programs
    opened files. ``name``: of the period, as the end of a sentence."""

    grown: Mapping[str, Any]
    seconds: float
    name: str

    def get(self, name: str) -> float:
        """What a counter grew by; 0 for one that the mount does not have."""
        return float(self.grown.get(name) or 0)

    @property
    def opens_per_s(self) -> float:
        return self.get("opens") / self.seconds

    @property
    def waiting_mean(self) -> float:
        """How many programs waited at once, on average."""
        return self.get("wait_seconds") / self.seconds


def period_of(history: Read) -> Period | None:
    """None if no program has opened a file."""
    points = history.points
    first, last = points[0], points[-1]
    # Laps of the tree that is read most: a validation set says little of the job.
    laps = [lap for lap in history.laps if lap.grown.get("opens")]
    most = max(laps, key=lambda lap: lap.grown["opens"], default=None)
    newest = None if most is None else [lap for lap in laps if lap.tree == most.tree][-1]
    if newest is not None:
        of = "" if newest.tree == "." else f" of {newest.tree}"
        number = f"{newest.first}" if newest.first == newest.last else f"{newest.first} to {newest.last}"
        length_s = max(newest.ended_s - newest.began_s, 1e-3)
        since = _since(points, newest.ended_s)
        after_s = _active_s(points, since.time_s, last.time_s)
        if after_s < min(LEAST_S, length_s / 2):
            inside_s = _active_s(points, newest.began_s, newest.ended_s)
            return Period(newest.grown, inside_s or length_s, f"in lap {number}{of}")
        return Period(growth(since, last), after_s, f"since lap {number}{of}")
    seconds = _active_s(points, first.time_s, last.time_s)
    grown = growth(first, last) if seconds else last.stats
    if not grown.get("opens"):
        return None
    # All opens may lie before the first point.
    return Period(grown, seconds or max(last.time_s - first.time_s, 1.0), "since the mount")


def still_s(history: Read) -> float:
    """For how long no open was answered and no byte was read while programs waited, at the end of the history."""
    points = history.points
    last = points[-1]
    if history.progress_s is not None:
        return max(0.0, last.time_s - history.progress_s)
    # Of an earlier version: to within an interval, and also while no program waited.
    for before, after in reversed([*pairwise(points)]):
        if _answered(growth(before, after)):
            return float(last.time_s - after.time_s)
    return last.time_s - points[0].time_s


def _since(points: tuple[Point, ...], time_s: float) -> Point:
    """The first point that is not before ``time_s``."""
    return next((point for point in points if point.time_s >= time_s), points[-1])


def _active_s(points: tuple[Point, ...], from_s: float, to_s: float) -> float:
    """The time between two moments in which files were opened."""
    seconds = 0.0
    for one, two in pairwise(points):
        if (two.stats.get("opens") or 0) > (one.stats.get("opens") or 0):
            seconds += max(0.0, min(two.time_s, to_s) - max(one.time_s, from_s))
    return seconds


def _answered(grown: Mapping[str, Any]) -> bool:
    times = (grown.get("open_seconds") or {}).values()
    return bool(grown.get("bytes_read")) or any(each["count"] for each in times)
