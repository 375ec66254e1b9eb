"""What a mount did over time, in a bounded amount of memory.

*Points* are snapshots of stats.json: every counter and gauge that has no label, and every histogram that is not of a
peer. When their number reaches the bound, neighbours are merged: the later of two stays, and the interval between two
points doubles. Counters are sums since the mount began, so nothing is lost but the moment.

*Laps* have one record for each lap of a tree: what the counters and histograms grew by, and how well the lap was
shuffled. When their number reaches the bound, the older half is merged in pairs.

*Progress* is the last moment at which something came, or no program waited. Points may be minutes apart, and do not say
it.

All of it but progress lies in one block of memory. If a keeper holds that block, the next daemon continues: sums go on,
and what happened between the last point and the death of a daemon is in none.
"""

import json
import math
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from redoxfs.telemetry.history_form import ABOUT, FORMAT, QUALITY, LapQuality, columns, row_of

Row = npt.NDArray[np.float64]
Rows = npt.NDArray[np.float64]

POINTS, LAPS, TREES = 320, 96, 8
"""The most that are kept. A tree beyond the first `TREES` has no laps."""

FIRST_INTERVAL_S = 1.0

NEAR = 0.75
"""Two points at less than so many intervals from each other become one."""

MAGIC = b"RedoxHis"

CLOCK_STEP_S = 1.0
"""A clock that was set by less is left alone."""

_HEAD = struct.Struct("<8sIIIIddd")
"""Magic, a sum over the names of the columns, whether it is whole, points, laps, the interval, when it began, and what
the clock is ahead of the time since the boot."""


@cache
def _answers() -> npt.NDArray[np.bool_]:
    """The columns that grow when an open is answered or bytes are read."""
    return np.array([each.place == ("bytes_read",) or (each.place[0], each.part) == _OPENS for each in columns()])


_OPENS = ("open_seconds", "count")


@cache
def _grows() -> npt.NDArray[np.bool_]:
    return np.array([column.grows for column in columns()])


def memory_bytes() -> int:
    """Of a history, whatever happens."""
    width = len(columns())
    return _HEAD.size + 8 * (POINTS * (1 + width) + LAPS * (len(ABOUT) + width) + TREES * (1 + width) + width)


class History:
    """The history of one mount. Called from one task.

    Args:
        memory: `memory_bytes` bytes that may be those of another daemon; None: a new block.
    """

    def __init__(self, memory: bytearray | memoryview | None = None) -> None:
        block = memoryview(bytearray(memory_bytes()) if memory is None else memory).cast("B")
        if len(block) < memory_bytes():
            raise ValueError(f"a history takes {memory_bytes()} bytes, not {len(block)}")
        self._block = block
        width, at = len(columns()), _HEAD.size
        tables = []
        shapes = ((POINTS, 1 + width), (LAPS, len(ABOUT) + width), (TREES, 1 + width), (1, width))
        for rows, each in shapes:
            tables.append(np.frombuffer(block, np.float64, rows * each, at).reshape(rows, each))
            at += 8 * rows * each
        self._points, self._laps, self._begun, sums = tables
        self._sums: Row = sums[0]
        self._now: Row | None = None
        self.taken_s = 0.0
        self._progress_s = math.nan
        self._count: int
        self._lap_count: int
        magic, names, whole, self._count, self._lap_count, *times = _HEAD.unpack_from(block)
        self.interval_s, self.began_s, self._ahead_s = times
        is_mine = (magic, names, whole) == (MAGIC, _sum_of(FORMAT), 1)
        if is_mine and self._count <= POINTS and self._lap_count <= LAPS and self.interval_s >= FIRST_INTERVAL_S:
            self.continues = True
            return
        self.continues = False
        self._count = self._lap_count = 0
        self.interval_s, self.began_s, self._ahead_s = FIRST_INTERVAL_S, 0.0, math.nan
        self._begun[:] = np.nan
        self._write()

    def _write(self, *, whole: bool = True) -> None:
        about = (self._count, self._lap_count, self.interval_s, self.began_s, self._ahead_s)
        _HEAD.pack_into(self._block, 0, MAGIC, _sum_of(FORMAT), whole, *about)

    def __len__(self) -> int:
        return self._count

    # Points

    def take_in(self, stats: Mapping[str, Any], now_s: float | None = None) -> None:
        """Bring the sums up to date with a snapshot of now. The first of a daemon comes before its first request."""
        self._follow_clock()
        now_s = time.time() if now_s is None else now_s
        row, grows = np.array(row_of(stats)), _grows()
        if self._now is None:
            self._progress_s = now_s
            if not self.continues:
                self._sums[:] = row
            else:
                # Most counters of a new daemon begin anew, so they are less than the sums. Some continue.
                self._sums[:] = np.where(grows, np.fmax(self._sums, row), row)
        else:
            growth = row - self._now
            # Some counters of several nodes begin again with a view.
            growth = np.where(growth < 0, row, growth)
            if (growth[_answers()] > 0).any() or (stats.get("waiting_opens"), stats.get("waiting_reads")) == (0, 0):
                self._progress_s = now_s
            former = np.nan_to_num(self._sums)
            self._sums[:] = np.where(grows, np.where(np.isnan(row), self._sums, former + np.nan_to_num(growth)), row)
        self._now = row
        self.taken_s = time.time()

    def _follow_clock(self) -> None:
        """If the clock was set, move all times with it, so that intervals stay as long as they were."""
        ahead_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        step_s = ahead_s - self._ahead_s
        if abs(step_s) < CLOCK_STEP_S:
            return
        if not math.isnan(step_s):
            self._write(whole=False)
            self._points[: self._count, 0] += step_s
            began = ABOUT.index("began")
            self._laps[: self._lap_count, began : began + 2] += step_s
            self._begun[:, 0] += step_s
            self.began_s += step_s
            self._progress_s += step_s
        self._ahead_s = ahead_s
        self._write()

    def add(self, stats: Mapping[str, Any], now_s: float | None = None) -> None:
        """Add a point: a snapshot of now, in seconds since the Unix epoch."""
        now_s = time.time() if now_s is None else now_s
        self.take_in(stats, now_s)
        if not self._count:
            self.began_s = now_s
        elif now_s <= self._points[self._count - 1, 0]:
            # The clock was set back a little.
            now_s = float(np.nextafter(self._points[self._count - 1, 0], np.inf))
        if self._count >= 2 and (self._is_idle() or now_s - self._points[self._count - 2, 0] < NEAR * self.interval_s):
            # A mount that does nothing takes no room, however long. Nor do many restarts.
            self._count -= 1
        if self._count == POINTS:
            self._thin()
        self._points[self._count, 0] = now_s
        self._points[self._count, 1:] = self._sums
        self._count += 1
        self._write()

    def _is_idle(self) -> bool:
        """Whether nothing was counted since the last point but one."""
        last = self._points[self._count - 2 : self._count, 1:][:, _grows()]
        now = self._sums[_grows()]
        return bool(((last == now) | (np.isnan(last) & np.isnan(now))).all())

    def _thin(self) -> None:
        """Double the interval until a quarter of the room is free."""
        self._write(whole=False)
        while self._count > POINTS * 3 // 4:
            self.interval_s *= 2
            points = self._points[: self._count]
            kept = [0]
            for number in range(1, len(points) - 1):
                # The point after this one would be too far from the last that is kept.
                if points[number + 1, 0] - points[kept[-1], 0] > self.interval_s * 1.25:
                    kept.append(number)
            kept.append(len(points) - 1)
            self._points[: len(kept)] = points[kept]
            self._count = len(kept)
        self._write()

    # Laps

    def begin_lap(self, tree: int, now_s: float) -> None:
        """The first turn of a lap of a tree came about now. ``take_in`` was called before."""
        if tree < TREES and math.isnan(self._begun[tree, 0]):
            self._begun[tree, 1:] = self._sums
            self._begun[tree, 0] = now_s

    def end_lap(self, tree: int, first: int, last: int, quality: LapQuality, now_s: float, *, whole: bool) -> None:
        """Laps ``first`` to ``last`` of a tree are over. ``take_in`` was called before."""
        if tree >= TREES or math.isnan(self._begun[tree, 0]):
            return
        if self._lap_count == LAPS:
            self._merge_laps()
        measured = [math.nan if value is None else value for value in (getattr(quality, name) for name in QUALITY)]
        grown = np.where(_grows(), self._sums - np.nan_to_num(self._begun[tree, 1:]), self._sums)
        self._laps[self._lap_count] = (tree, first, last, whole, self._begun[tree, 0], now_s, *measured, *grown)
        self._lap_count += 1
        self._begun[tree, 0] = math.nan
        self._write()

    def _merge_laps(self) -> None:
        self._write(whole=False)
        older = [*self._laps[: LAPS // 2]]
        merged: list[Row] = []
        waiting: dict[float, int] = {}
        for record in older:
            number = waiting.pop(record[0], None)
            if number is None:
                waiting[record[0]] = len(merged)
                merged.append(record.copy())
            else:
                merged[number] = _joined(merged[number], record)
        rest = self._laps[LAPS // 2 :].copy()
        self._lap_count = len(merged) + len(rest)
        self._laps[: self._lap_count] = [*merged, *rest]
        self._write()

    # history.json

    def copy(self, now_s: float | None = None) -> "Snapshot":
        """What there is, and one more point: the sums that `take_in` brought up to date."""
        now_s = time.time() if now_s is None else now_s
        if self._count:
            now_s = max(now_s, float(self._points[self._count - 1, 0]))
        return Snapshot(
            np.concatenate([self._points[: self._count], [[now_s, *self._sums]]]),
            self._laps[: self._lap_count].copy(),
            self.interval_s,
            self.began_s,
            self._progress_s,
        )


@cache
def _sum_of(version: int) -> int:
    return crc32(repr((version, POINTS, LAPS, TREES, ABOUT, columns())).encode())


def _joined(one: Row, two: Row) -> Row:
    """Two records of laps of one tree as one."""
    at = len(ABOUT)
    a, b = (dict(zip(ABOUT, record.tolist(), strict=False)) for record in (one, two))
    about = a | {"last": b["last"], "whole": a["whole"] and b["whole"], "ended": b["ended"]}
    for name in QUALITY:
        known = [value for value in (a[name], b[name]) if not math.isnan(value)]
        about[name] = sum(known) / len(known) if known else math.nan
    row = np.where(_grows(), np.nan_to_num(one[at:]) + np.nan_to_num(two[at:]), two[at:])
    return np.concatenate([[*about.values()], row])


class Snapshot(NamedTuple):
    """A copy of a history. Lines of points begin with their time, lines of laps with `ABOUT`."""

    points: Rows
    laps: Rows
    interval_s: float
    began_s: float
    progress_s: float

    def pieces(self, stats: Mapping[str, Any], trees: Sequence[str], pause: float | None = 0.0) -> Iterator[str]:
        """The text of history.json, in pieces. ``stats`` is of now, ``trees`` are the names of the trees."""
        progress_s = None if math.isnan(self.progress_s) else round(self.progress_s, 3)
        about = {
            "format": FORMAT,
            "interval_s": self.interval_s,
            "began_s": self.began_s,
            "progress_s": progress_s,
        }
        yield json.dumps(about)[:-1] + ', "stats": ' + json.dumps(dict(stats)) + ', "points": {"time": '
        yield json.dumps(self.points[:, 0].round(3).tolist())
        yield from _written(self.points[:, 1:], pause)
        yield '}, "laps": {"tree": '
        at = len(ABOUT)
        yield json.dumps([trees[int(number)] for number in self.laps[:, 0]])
        for number, name in enumerate(ABOUT[1:], 1):
            yield f', "{name}": ' + _texts(self.laps[:, number])
        yield from _written(self.laps[:, at:], pause)
        yield "}}\n"


def _written(rows: Rows, pause: float | None) -> Iterator[str]:
    """The columns of rows. Buckets in which nothing was counted are left out."""
    yield ', "values": {'
    separator = ""
    for number, (place, part, _) in enumerate(columns()):
        column = rows[:, number]
        if part not in ("", "count", "sum") and not np.nan_to_num(column).any():
            continue
        yield separator + json.dumps(":".join([".".join(place), part]) if part else ".".join(place)) + ": "
        yield _texts(column)
        separator = ", "
        if pause is not None:
            # Other threads of the daemon may wait for the interpreter.
            time.sleep(pause)
    yield "}"


def _texts(column: Row) -> str:
    return "[" + ", ".join("null" if value != value else f"{value:.15g}" for value in column.tolist()) + "]"
