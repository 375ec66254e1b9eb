"""What points and laps of a history have, and history.json as whoever reads it gets it.

`redoxfs.telemetry.history` writes it. This module does without numpy, whose import was a third of the time of
`redoxfs status`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from redoxfs.telemetry.distribution import DIGITS, FIRST_BITS, LAST_BITS
from redoxfs.telemetry.metric import EACH, Kind, Metric
from redoxfs.telemetry.outcome import Outcome
from redoxfs.telemetry.registry import METRICS

FORMAT = 1
"""Of history.json. A reader refuses another number."""

MOST_READ = 4096
"""Points, and laps, of a history that is read. A row takes some 9 kB."""

_EACH_OF = {"outcome": tuple(outcome.label for outcome in Outcome)}
"""Labels whose values are known. Metrics with other labels have no history."""


class Column(NamedTuple):
    """One number of a point: a place in stats.json; of a histogram, ``part`` is "count", "sum" or a bucket's bound."""

    place: tuple[str, ...]
    part: str = ""
    grows: bool = False


@cache
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


def row_of(stats: Mapping[str, Any]) -> list[float]:
    """The numbers of a snapshot, by `columns`. NaN where it has none."""
    row = [math.nan] * len(columns())
    at = 0
    for place, part, _ in _firsts():
        value: Any = stats
        for name in place:
            value = value.get(name) if isinstance(value, Mapping) else None
        if not part:
            if isinstance(value, int | float):
                row[at] = float(value)
            at += 1
            continue
        if isinstance(value, Mapping):
            row[at], row[at + 1] = float(value["count"]), float(value["sum"])
            row[at + 2 : at + 2 + len(_BUCKET)] = [0.0] * len(_BUCKET)
            for bound, count in value["buckets"].items():
                row[at + 2 + _BUCKET[bound]] = float(count)
        at += 2 + len(_BUCKET)
    return row


@cache
def _firsts() -> tuple[Column, ...]:
    """Each metric's first column."""
    return tuple(column for column in columns() if column.part in ("", "count"))


_BUCKET = {bound: number for number, bound in enumerate(bounds())}


def stats_of(row: Sequence[float]) -> dict[str, Any]:
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
                "sum": row[at + 1],
                "buckets": {bound: int(count) for bound, count in zip(_BUCKET, buckets, strict=True) if count > 0},
            }
        at += 2 + len(_BUCKET)
    return stats


def _number(value: float) -> float | int | None:
    if math.isnan(value):
        return None
    return int(value) if value.is_integer() else value


@dataclass(frozen=True, slots=True)
class LapQuality:
    """Shuffle quality of one lap; None where it could not be measured.

    ``followed``       how many samples were followed from the lap before
    ``batches``        how many batches were looked at
    ``chunk_entropy``  of the chunks in a batch, in bits; ``class_entropy``: of the classes
    """

    displacement: float | None
    rank_correlation: float | None
    followed: int
    mate_pairs: float | None
    mate_pairs_at_end: float | None
    mate_pairs_if_random: float | None
    batches: int
    chunk_entropy: float | None = None
    chunk_entropy_if_random: float | None = None
    class_entropy: float | None = None
    class_entropy_if_random: float | None = None


QUALITY = tuple(LapQuality.__dataclass_fields__)

ABOUT = ("tree", "first", "last", "whole", "began", "ended", *QUALITY)
"""What a lap's record has before its row. A tree and laps as numbers; NaN for None."""

ADDED = {name for name, each in LapQuality.__dataclass_fields__.items() if each.default is None}
"""Measures that a history of an earlier version lacks."""


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
    rows = zip(columns(), row_of(one.stats), row_of(two.stats), strict=True)
    return stats_of(
        [after - before if column.grows and not math.isnan(before) else after for column, before, after in rows]
    )


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
    rows = [[math.nan] * len(number) for _ in range(count)]
    for name, column in values.items():
        place, _, part = name.partition(":")
        at = number.get((place, part))
        if at is not None:
            for row, each in zip(rows, column, strict=True):
                row[at] = math.nan if each is None else float(each)
    return [stats_of(row) for row in rows]
