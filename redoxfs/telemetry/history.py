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

from redoxfs.telemetry.distribution import DIGITS, FIRST_BITS, LAST_BITS
from redoxfs.telemetry.lap_watch import LapQuality
from redoxfs.telemetry.metric import EACH, Kind, Metric
from redoxfs.telemetry.outcome import Outcome
from redoxfs.telemetry.registry import METRICS

Row = npt.NDArray[np.float64]
Rows = npt.NDArray[np.float64]

FORMAT = 1
"""Of history.json. A reader refuses another number."""

POINTS, LAPS, TREES = 320, 96, 8
"""The most that are kept. A tree beyond the first `TREES` has no laps."""

FIRST_INTERVAL_S = 1.0

NEAR = 0.75
"""Two points at less than so many intervals from each other become one."""

MAGIC = b"RedoxHis"

CLOCK_STEP_S = 1.0
"""A clock that was set by less is left alone."""

MOST_READ = 4096
"""Points, and laps, of a history that is read. A row takes some 9 kB."""

_HEAD = struct.Struct("<8sIIIIddd")
"""Magic, a sum over the names of the columns, whether it is whole, points, laps, the interval, when it began, and what
the clock is ahead of the time since the boot."""

_EACH_OF = {"outcome": tuple(outcome.label for outcome in Outcome)}
"""Labels whose values are known. Metrics with other labels have no history."""


class Column(NamedTuple):
    """One number of a point: a place in stats.json; of a histogram, ``part`` is "count", "sum" or a bucket's bound."""

    place: tuple[str, ...]
    part: str = ""
    grows: bool = False


def bounds() -> tuple[str, ...]:
    """The names of the buckets of a histogram in stats.json: four to a power of two."""
    ns = [(4 + quarter) << (bits - 2) for bits in range(FIRST_BITS, LAST_BITS) for quarter in range(4)]
    return (*(f"{each / 1e9:.{DIGITS}f}" for each in (*ns, 1 << LAST_BITS)), "inf")


def has_history(metric: Metric) -> bool:
    """Whether points have the metric's values."""
    if metric.kind is Kind.HISTOGRAM:
        return all(label in _EACH_OF for label in metric.labels)
    return metric.kind is not Kind.FACT and not metric.labels


@cache
def columns() -> tuple[Column, ...]:
    """All numbers of a point, in order."""
    found: list[Column] = []
    for metric in METRICS:
        if not has_history(metric):
            continue
        if metric.kind is not Kind.HISTOGRAM:
            found.append(Column(tuple(metric.place.split(".")), grows=metric.kind is Kind.COUNTER))
            continue
        for place in _places(metric):
            found += [Column(place, part, grows=True) for part in ("count", "sum", *bounds())]
    return tuple(found)


def _places(metric: Metric) -> list[tuple[str, ...]]:
    places: list[tuple[str, ...]] = [()]
    labels = iter(metric.labels)
    for name in metric.place.split("."):
        names = _EACH_OF[next(labels)] if name == EACH else (name,)
        places = [(*place, each) for place in places for each in names]
    return places


def row_of(stats: Mapping[str, Any]) -> Row:
    """float64[columns]: the numbers of a snapshot. NaN where it has none."""
    row = np.full(len(columns()), np.nan)
    at = 0
    for place, part, _ in _firsts():
        value: Any = stats
        for name in place:
            value = value.get(name) if isinstance(value, Mapping) else None
        if not part:
            if isinstance(value, int | float):
                row[at] = value
            at += 1
            continue
        if isinstance(value, Mapping):
            row[at], row[at + 1] = value["count"], value["sum"]
            row[at + 2 : at + 2 + len(_BUCKET)] = 0
            for bound, count in value["buckets"].items():
                row[at + 2 + _BUCKET[bound]] = count
        at += 2 + len(_BUCKET)
    return row


@cache
def _firsts() -> tuple[Column, ...]:
    """Each metric's first column."""
    return tuple(column for column in columns() if column.part in ("", "count"))


_BUCKET = {bound: number for number, bound in enumerate(bounds())}


def stats_of(row: Row) -> dict[str, Any]:
    """The inverse of `row_of`: the part of stats.json that a row has."""
    stats: dict[str, Any] = {}
    at = 0
    for place, part, _ in _firsts():
        inner = stats
        for name in place[:-1]:
            inner = inner.setdefault(name, {})
        if not part:
            inner[place[-1]] = _number(row[at])
            at += 1
            continue
        buckets = row[at + 2 : at + 2 + len(_BUCKET)]
        if not math.isnan(row[at]):
            inner[place[-1]] = {
                "count": _number(row[at]),
                "sum": float(row[at + 1]),
                "buckets": {
                    bound: int(count) for bound, count in zip(_BUCKET, buckets.tolist(), strict=True) if count > 0
                },
            }
        at += 2 + len(_BUCKET)
    return stats


def _number(value: float) -> float | int | None:
    if math.isnan(value):
        return None
    return int(value) if float(value).is_integer() else float(value)


@cache
def _answers() -> npt.NDArray[np.bool_]:
    """The columns that grow when an open is answered or bytes are read."""
    return np.array([each.place == ("bytes_read",) or (each.place[0], each.part) == _OPENS for each in columns()])


_OPENS = ("open_seconds", "count")


@cache
def _grows() -> npt.NDArray[np.bool_]:
    return np.array([column.grows for column in columns()])


QUALITY = tuple(LapQuality.__dataclass_fields__)

ABOUT = ("tree", "first", "last", "whole", "began", "ended", *QUALITY)
"""What a lap's record has before its row. A tree and laps as numbers; NaN for None."""

ADDED = {name for name, each in LapQuality.__dataclass_fields__.items() if each.default is None}
"""Measures that a history of an earlier version lacks."""


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

    @property
    def laps(self) -> int:
        """How many records there are."""
        return self._lap_count

    # Points

    def take_in(self, stats: Mapping[str, Any], now_s: float | None = None) -> None:
        """Bring the sums up to date with a snapshot of now. The first of a daemon comes before its first request."""
        self._follow_clock()
        now_s = time.time() if now_s is None else now_s
        row, grows = row_of(stats), _grows()
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


# Reading


class UnreadableError(ValueError):
    """A text is no history.json that this version reads: one line."""


class Point(NamedTuple):
    """A snapshot: when, in seconds since the Unix epoch, and its part of stats.json."""

    time_s: float
    stats: dict[str, Any]


class Lap(NamedTuple):
    """Laps ``first`` to ``last`` of a tree; ``grown`` is what counters and histograms of stats.json grew by."""

    tree: str
    first: int
    last: int
    whole: bool
    began_s: float
    ended_s: float
    quality: LapQuality
    grown: dict[str, Any]


class Read(NamedTuple):
    """A history.json. ``progress_s`` is None in that of an earlier version."""

    stats: dict[str, Any]
    interval_s: float
    points: tuple[Point, ...]
    laps: tuple[Lap, ...]
    progress_s: float | None = None


def growth(one: Point, two: Point) -> dict[str, Any]:
    """What counters and histograms grew by between two points, as in stats.json. Gauges are those of ``two``."""
    before, after = row_of(one.stats), row_of(two.stats)
    return stats_of(np.where(_grows(), after - np.nan_to_num(before), after))


def is_history(value: Any) -> bool:
    """Whether a JSON value is meant to be a history."""
    return isinstance(value, Mapping) and {"format", "stats", "points", "laps"} <= value.keys()


def read(value: Mapping[str, Any]) -> Read:
    """The inverse of `Snapshot.pieces`. Raises UnreadableError."""
    if value.get("format") != FORMAT:
        raise UnreadableError(f"its format is {value.get('format')!r}, and this redoxfs reads format {FORMAT}")
    try:
        points, laps = value["points"], value["laps"]
        times = [float(each) for each in points["time"]]
        if not 1 <= len(times) <= MOST_READ or len(laps["tree"]) > MOST_READ:
            raise ValueError(f"{len(times)} points and {len(laps['tree'])} laps")
        if not all(map(math.isfinite, times)):
            raise ValueError("a time is no number")
        of_points = tuple(map(Point, times, _snapshots(points["values"], len(times))))
        count = len(laps["tree"])
        # An older history has none of the measures with a default.
        abouts = [laps.get(name, [None] * count) if name in ADDED else laps[name] for name in ABOUT]
        of_laps = tuple(
            Lap(
                str(of["tree"]),
                int(of["first"]),
                int(of["last"]),
                bool(of["whole"]),
                float(of["began"]),
                float(of["ended"]),
                LapQuality(**{name: of[name] for name in QUALITY}),
                grown,
            )
            for of, grown in zip(
                (dict(zip(ABOUT, each, strict=True)) for each in zip(*abouts, strict=True)),
                _snapshots(laps["values"], count),
                strict=True,
            )
        )
        progress_s = value.get("progress_s")
        if progress_s is not None and not math.isfinite(progress_s):
            raise ValueError("a time is no number")
        return Read(dict(value["stats"]), float(value["interval_s"]), of_points, of_laps, progress_s)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UnreadableError(f"it is damaged: {type(error).__name__}: {error}") from None


def _snapshots(values: Mapping[str, Sequence[float | None]], count: int) -> list[dict[str, Any]]:
    """``count`` parts of stats.json from their columns. A place that this version does not know is left out."""
    number = {(".".join(place), part): at for at, (place, part, _) in enumerate(columns())}
    rows = np.full((count, len(columns())), np.nan)
    for name, column in values.items():
        place, _, part = name.partition(":")
        at = number.get((place, part))
        if at is not None:
            rows[:, at] = np.array([math.nan if each is None else each for each in column]).reshape(count)
    for at, column_ in enumerate(columns()):
        if column_.part not in ("", "count", "sum"):
            rows[:, at] = np.nan_to_num(rows[:, at])
    return [stats_of(row) for row in rows]


__all__ = [
    "FORMAT",
    "Column",
    "History",
    "Lap",
    "Point",
    "Read",
    "Snapshot",
    "UnreadableError",
    "bounds",
    "columns",
    "growth",
    "has_history",
    "is_history",
    "memory_bytes",
    "read",
]
