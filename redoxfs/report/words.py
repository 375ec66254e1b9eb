"""What happened, in plain sentences, and what doctor advises."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from redoxfs.doctor.mount import Watched, check_mount
from redoxfs.doctor.result import Level, Result
from redoxfs.doctor.verdict import judge
from redoxfs.launch.control_files import WRONG
from redoxfs.launch.sizes import counted
from redoxfs.report import html
from redoxfs.telemetry import Distribution, Outcome, Rates, storage_bytes
from redoxfs.telemetry.history_form import Point, Read, growth

PID = {"pid": 0}
"""The counters of a history go on over restarts, as if one process had served."""

WAITING = (Outcome.IN_FLIGHT, Outcome.DEMAND, Outcome.REMOTE)
"""Outcomes of opens that waited for bytes."""

ANSWERED = tuple(outcome for outcome in Outcome if outcome is not Outcome.FAILED)
"""Outcomes whose times are of interest: a failure may take a minute, or none."""


@dataclass(frozen=True)
class Run:
    """The figures of a history, computed once. ``told_by``: its input, if another history is of the same mountpoint."""

    history: Read
    told_by: str | None = None

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Two at least."""
        points = self.history.points
        return points if len(points) > 1 else (*points, Point(points[0].time_s + 1e-3, points[0].stats))

    @property
    def first(self) -> Point:
        return self.points[0]

    @property
    def last(self) -> Point:
        return self.points[-1]

    @cached_property
    def rates(self) -> tuple[Rates, ...]:
        """Between each two points."""
        return tuple(rates_of(one, two) for one, two in pairwise(self.points))

    @cached_property
    def grown(self) -> dict[str, Any]:
        """What counters and histograms of stats.json grew by, from the first point to the last."""
        return growth(self.first, self.last)

    @cached_property
    def active_s(self) -> float:
        """The time of the intervals in which files were opened."""
        return sum(rates.seconds for rates in self.rates if rates.opens_per_s)

    @cached_property
    def restarts(self) -> tuple[float, ...]:
        """When another daemon had taken over, in seconds since the Unix epoch."""
        counts = [(point.stats.get("keeper") or {}).get("restarts") or 0 for point in self.points]
        pairs = zip(self.points[1:], counts, counts[1:], strict=False)
        return tuple(point.time_s for point, before, after in pairs if after > before)

    @cached_property
    def mountpoint(self) -> str:
        return str(self.history.stats.get("mountpoint", "?"))

    @cached_property
    def name(self) -> str:
        stats = self.history.stats
        name = f"{self.mountpoint} (node {stats.get('node')})" if stats.get("peers") else self.mountpoint
        return name if self.told_by is None else f"{name} ({self.told_by})"


def rates_of(one: Point, two: Point) -> Rates:
    return Rates.between({**one.stats, **PID}, {**two.stats, **PID}, max(two.time_s - one.time_s, 1e-9))


def times_of(stats: Mapping[str, Any], *outcomes: Outcome) -> Distribution:
    times = stats.get("open_seconds") or {}
    return Distribution.of(*(times[outcome.label] for outcome in outcomes if outcome.label in times))


def amplification(grown: Mapping[str, Any]) -> float | None:
    """Bytes read from storage for each byte that was served; None if none was."""
    served = grown.get("bytes_served")
    return storage_bytes(grown) / served if served and grown.get("bytes_read") is not None else None


def redirected_share(grown: Mapping[str, Any]) -> float | None:
    """Of the opens that have an answer; None if there were none."""
    answered = grown["redirected"] + grown["exact"]
    return grown["redirected"] / answered if answered else None


def moment(time_s: float) -> str:
    """UTC, so that the same history gives the same page anywhere."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_s))


def story(run: Run) -> Iterator[str]:
    """Sentences about the whole history, the most important first."""
    grown = run.grown
    opens = int(grown["opens"])
    length_s = run.last.time_s - run.first.time_s
    active = run.active_s
    if opens:
        idle = f" of {html.seconds(length_s)} in all" if active < 0.9 * length_s else ""
        rate = html.number(opens / active) if active else html.NONE
        yield f"Programs opened {counted(opens, 'file')} in {html.seconds(active)}{idle}: {rate} a second."
    else:
        yield f"No file was opened in {html.seconds(length_s)}."
    hanging = int(run.last.stats.get("waiting_opens") or 0)
    if hanging:
        waits = "waits for its" if hanging == 1 else "wait for their"
        yield f"{counted(hanging, 'open')} {waits} reply."
    if not opens:
        return
    everything, answered, waited = (times_of(grown, *outcomes) for outcomes in (Outcome, ANSWERED, WAITING))
    if waited.count:
        part = waited.sum_s / active if active else 0.0
        yield (
            f"Of the opens, {html.share(waited.count / max(1, everything.count))} waited for bytes, "
            f"{html.seconds(waited.sum_s)} in all: on average, {html.number(part, digits=2)} programs waited at a time."
        )
    elif everything.count:
        yield "No open waited for bytes."
    if answered.count:
        half, most = (html.seconds(answered.quantile_s(share)) for share in (0.5, 0.99))
        yield f"Half of the opens took at most {half}, and 99 % at most {most}."
    ratio = amplification(grown)
    if ratio is not None:
        yield (
            f"Storage delivered {html.size(storage_bytes(grown))}, which is {html.number(ratio)} bytes for each byte "
            f"that programs read ({html.size(grown['bytes_served'])})."
        )
    yield "Reads that the kernel's page cache answered did not reach redoxfs, and are in no figure."
    redirected = redirected_share(grown)
    if redirected is not None:
        yield f"Another sample of the same class answered {html.share(redirected)} of the opens."
    errors = int(grown["errors"])
    yield f"{counted(errors, 'open or read', 'opens and reads')} failed." if errors else "Nothing failed."
    if run.restarts:
        yield (
            f"{counted(len(run.restarts), 'restart')}: another daemon took over. If the one before was killed, what it "
            "did since its last point is missing here."
        )


def judged(history: Read) -> Result:
    """The verdict, as `redoxfs doctor` and `redoxfs status` have it. Raises ValueError for a damaged history."""
    try:
        return judge(history)
    except WRONG as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def advice(run: Run) -> list[Result]:
    """The verdict, and what `redoxfs doctor` has to say of the whole history, but for what is well."""
    before = {**run.first.stats, **PID}
    stats = run.history.stats
    # The text says which mount; its counters are those of the history.
    after = {**stats, **run.last.stats, **PID, "keeper": stats.get("keeper")}
    watched = Watched(before, after, run.active_s or 1e-9)
    others = [each for each in check_mount(watched) if each.level is not Level.OK]
    return [judged(run.history), *others]
