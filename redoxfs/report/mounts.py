"""The charts of one mount over time, of its laps side by side, and of several mounts side by side."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from redoxfs.report import html
from redoxfs.report.charts import Series, Table, bars, figure, histogram, lines
from redoxfs.report.html import Html, joined, tag
from redoxfs.report.words import (
    ANSWERED,
    WAITING,
    Run,
    advice,
    amplification,
    moment,
    rates_of,
    redirected_share,
    story,
    times_of,
)
from redoxfs.telemetry import Outcome, storage_bytes
from redoxfs.telemetry.history_form import Lap, LapQuality, Point, growth

MOST_ROWS = 40
"""Of a table about time."""

OUTCOMES = {
    Outcome.RESIDENT: "resident",
    Outcome.IN_FLIGHT: "in flight",
    Outcome.DEMAND: "demand",
    Outcome.REMOTE: "remote",
    Outcome.DIRECT: "direct",
    Outcome.FAILED: "failed",
}

PLACES = {
    "in_slots": ("loaded", "resident"),
    "in_remote_slots": ("from peers", "remote"),
    "in_open_files": ("in open files", "served"),
    "in_closed_files": ("in files just closed", "direct"),
    "put_aside": ("reserved by stats", "wait"),
}

RANDOM_DISPLACEMENT = 1 / 3

ALIKE = 0.1
"""A rank correlation of two laps beyond which one tells something of the other."""

MOST_MATES = 6
"""A shuffle buffer with a tenth of the samples has nearly so many times the mates of a random order (SEMANTICS.md)."""


def of_mount(run: Run) -> Html:
    """All that is known of one mount."""
    verdict, *others = advice(run)
    told = [tag("p", verdict.line, class_="story"), tag("p", " ".join(story(run)), class_="story")]
    if others:
        told.append(tag("ul", *(tag("li", each.line) for each in others), class_="advice"))
    if sum(bool(rates.opens_per_s) for rates in run.rates):
        told.append(tag("div", *_over_time(run), class_="charts"))
        told += _laps(run)
    return joined(told)


def facts(run: Run) -> Html:
    """A line about what was served."""
    stats = run.history.stats
    parts = [
        f"{stats.get('source')} at {run.mountpoint}",
        f"{int(stats.get('samples', 0)):,} samples of {int(stats.get('classes', 0)):,} classes",
        f"policy {stats.get('policy')}",
        f"{html.size(stats.get('memory_limit_bytes'))} of memory",
        f"redoxfs {stats.get('version')}",
        f"from {moment(run.first.time_s)} to {moment(run.last.time_s)}",
    ]
    return tag("p", "; ".join(parts), class_="facts")


# Over time


def _over_time(run: Run) -> Iterator[Html]:
    times_s = [point.time_s for point in run.points]
    marks = [(time_s, "another daemon took over") for time_s in run.restarts]

    def chart(
        title: str,
        about: str,
        series: Sequence[Series],
        label: Callable[[float], str],
        headings: Sequence[str],
        cells: Callable[[Point, Point], Sequence[str]],
        *,
        has_legend: bool = True,
        **how: Any,
    ) -> Html:
        drawing = lines(title, times_s, series, label, marks=marks, **how)
        return figure(title, about, drawing, _table(run, headings, cells), legend=series if has_legend else ())

    yield chart(
        "Opens a second",
        _steps(run),
        [Series("opens", "served", [rates.opens_per_s for rates in run.rates])],
        _per_s,
        ("opens", "opens a second"),
        lambda one, two: (_number(growth(one, two)["opens"]), html.number(rates_of(one, two).opens_per_s)),
        has_legend=False,
    )
    yield chart(
        "Bytes a second",
        "A rate from storage above that to programs is reading ahead, or reading again.",
        [
            Series("from storage", "storage", [rates.storage_bytes_per_s for rates in run.rates]),
            Series("to programs", "served", [rates.served_bytes_per_s for rates in run.rates]),
        ],
        html.rate,
        ("from storage", "to programs"),
        lambda one, two: (html.size(storage_bytes(growth(one, two))), html.size(growth(one, two)["bytes_served"])),
    )
    sources = _sources(run)
    # Opens that wait for their first reply are counted, and have no outcome yet.
    if sources:
        yield chart(
            "Where samples came from",
            "The share of opens by what they waited for: nothing (resident), a read in progress (in flight), a read of "
            "their own (demand), another node (remote), or storage, as the file is not redirected (direct).",
            sources,
            html.share,
            [*OUTCOMES.values()],
            lambda one, two: [_number(count) for count in _counts(growth(one, two))],
            stacked=True,
            top=1.0,
        )
        yield chart(
            "How long opens took",
            "So many opens took at most this time, from receipt to reply. The scale is logarithmic.",
            [
                Series("half of the opens", "served", [rates.wait_p50_s for rates in run.rates]),
                Series("99 %", "wait", [rates.wait_p99_s for rates in run.rates]),
            ],
            html.seconds,
            ("half of the opens", "99 %"),
            lambda one, two: [
                html.seconds(times_of(growth(one, two), *ANSWERED).quantile_s(share)) for share in (0.5, 0.99)
            ],
            log=True,
        )
        yield _waits(run)
    places = {place: of for place, of in PLACES.items() if any(point.stats.get(place) for point in run.points)}
    if places:
        most_used = max(float(point.stats.get("memory_used_bytes") or 0) for point in run.points)
        yield chart(
            "Samples in memory",
            f"By what they are there for. At most {html.size(most_used)} were used, of "
            f"{html.size(run.last.stats.get('memory_limit_bytes'))}.",
            [
                Series(name, kind, [float(point.stats.get(place) or 0) for point in run.points[1:]])
                for place, (name, kind) in places.items()
            ],
            html.compact,
            [*(name for name, _ in places.values()), "bytes"],
            lambda _, two: [
                *(_number(two.stats.get(place)) for place in places),
                html.size(two.stats.get("memory_used_bytes")),
            ],
            stacked=True,
        )
    yield chart(
        "Read amplification",
        "Bytes read from storage for each byte served, since the beginning. 1 is reading everything once.",
        [
            Series(
                "since the beginning",
                "storage",
                [amplification(growth(run.first, point)) for point in run.points[1:]],
            )
        ],
        html.number,
        ("since the beginning",),
        lambda _, two: (html.number(amplification(growth(run.first, two))),),
        has_legend=False,
    )


def _steps(run: Run) -> str:
    interval = html.seconds(run.history.interval_s)
    return f"The average of each interval, about {interval} long." if len(run.points) > 2 else "The average."


def _per_s(value: float) -> str:
    return html.number(value, "/s")


def _table(run: Run, headings: Sequence[str], cells: Callable[[Point, Point], Sequence[str]]) -> Table:
    """A row for each interval between at most `MOST_ROWS` + 1 of the points, the first and the last among them."""
    step = max(1, -(-(len(run.points) - 1) // MOST_ROWS))
    rows = [
        (html.seconds(two.time_s - run.first.time_s), *cells(one, two))
        for one, two in pairwise((*run.points[:-1:step], run.last))
    ]
    return Table(("until", *headings), rows)


def _number(value: float | None) -> str:
    return html.NONE if value is None else f"{value:,.0f}"


def _counts(grown: Mapping[str, Any]) -> list[int]:
    """The opens of each of `OUTCOMES`."""
    return [times_of(grown, outcome).count for outcome in OUTCOMES]


def _sources(run: Run) -> list[Series]:
    """The share of each outcome in each interval; outcomes that there were."""
    counts = [_counts(growth(one, two)) for one, two in pairwise(run.points)]
    return [
        Series(OUTCOMES[outcome], outcome.label, [each[at] / sum(each) if any(each) else None for each in counts])
        for at, outcome in enumerate(OUTCOMES)
        if any(each[at] for each in counts)
    ]


def _waits(run: Run) -> Html:
    """A histogram of all opens, by outcome."""
    found = {outcome: times_of(run.grown, outcome).buckets for outcome in OUTCOMES}
    ends = [bound for buckets in found.values() for bound, _ in buckets if bound != float("inf")]
    low, high = min(ends, default=1e-6), max(ends, default=1e-3)
    bound = 2.0**10 / 1e9
    bounds = [bound]
    while bounds[-1] < high:
        bounds.append(bounds[-1] * 2)
    while len(bounds) > 4 and bounds[1] < low:
        del bounds[0]
    series = []
    for outcome, buckets in found.items():
        counts = [0.0] * len(bounds)
        for end, count in buckets:
            at = next((number for number, most in enumerate(bounds) if end <= most * 1.0001), len(bounds) - 1)
            counts[at] += count
        if any(counts):
            series.append(Series(OUTCOMES[outcome], outcome.label, counts))
    rows = [
        (html.seconds(most), *(_number(each.values[number]) for each in series)) for number, most in enumerate(bounds)
    ]
    table = Table(("up to", *(each.name for each in series)), rows)
    return figure(
        "Opens by how long they took",
        "The number of opens in each range of times, by what they waited for. A range ends at twice its beginning.",
        histogram("Opens by how long they took", bounds, series, html.compact, html.seconds),
        table,
        legend=series,
    )


# Laps

LAP_ROWS = 60
"""A page shows the last so many laps of a tree; history.json may have more."""


def _laps(run: Run) -> Iterator[Html]:
    trees = list(dict.fromkeys(lap.tree for lap in run.history.laps))
    if not trees:
        # A mount that redirects nothing has no laps, however many epochs were read.
        if run.last.stats.get("samples"):
            yield tag("p", "No lap was completed yet, so there are none to compare.", class_="about")
        return
    for tree in trees:
        laps = [lap for lap in run.history.laps if lap.tree == tree][-LAP_ROWS:]
        name = f"Epochs of {tree}" if tree != "." else "Epochs"
        yield tag("h2", name)
        yield tag(
            "p",
            "A lap is as many turns as the tree has samples; with several nodes, this node's equal share. Figures "
            "are of all that the mount did meanwhile.",
            class_="about",
        )
        headings = (
            "lap", "time", "opens", "waited", "redirected", "p99", "from storage", "read amplification", "failed"
        )  # fmt: skip
        rows = [(_lap_cells(lap), (lap.ended_s - lap.began_s) / (lap.last - lap.first + 1)) for lap in laps]
        yield tag(
            "figure",
            tag("figcaption", tag("h3", "One lap beside another"), tag("p", "The bar is the time of one lap.")),
            bars(headings, rows, "served"),
        )
        yield _shuffle(laps)


def _lap_name(lap: Lap) -> str:
    numbers = f"{lap.first}" if lap.first == lap.last else f"{lap.first} to {lap.last}"
    return numbers if lap.whole else f"{numbers} (in part)"


def _lap_cells(lap: Lap) -> list[str]:
    waited, *others = _cells(lap.grown)
    return [
        _lap_name(lap),
        html.seconds(lap.ended_s - lap.began_s),
        _number(lap.grown["opens"]),
        waited,
        html.share(redirected_share(lap.grown)),
        *others,
    ]


def _cells(grown: Mapping[str, Any]) -> list[str]:
    """The share of opens that waited, the p99 of all, bytes from storage, read amplification, and failures."""
    everything, waited = times_of(grown, *Outcome), times_of(grown, *WAITING)
    return [
        html.share(waited.count / everything.count if everything.count else None),
        html.seconds(times_of(grown, *ANSWERED).quantile_s(0.99)),
        html.size(storage_bytes(grown)),
        html.number(amplification(grown)),
        _number(grown["errors"]),
    ]


def _shuffle(laps: Sequence[Lap]) -> Html:
    measured = [lap for lap in laps if lap.quality.displacement is not None or lap.quality.mate_pairs is not None]
    if not measured:
        return tag("p", "The laps were too short to measure how well they were shuffled.", class_="about")
    rows = []
    for lap in measured:
        quality = lap.quality
        cells = [
            _lap_name(lap),
            shuffled(quality, lap.grown.get("chunks"), lap.grown.get("nodes")),
            html.number(quality.displacement),
            html.number(quality.rank_correlation),
            html.number(quality.mate_pairs),
            html.number(quality.mate_pairs_at_end),
            html.number(quality.mate_pairs_if_random),
            _bits(quality.chunk_entropy, quality.chunk_entropy_if_random),
            _bits(quality.class_entropy, quality.class_entropy_if_random),
            f"{quality.followed:,}",
            f"{quality.batches:,}",
        ]
        rows.append((cells, quality.displacement))
    headings = (
        "lap", "the order is", "displacement", "rank correlation", "mate pairs", "in the last 5 %", "if random",
        "entropy of chunks", "entropy of classes", "samples", "batches",
    )  # fmt: skip
    return tag(
        "figure",
        tag(
            "figcaption",
            tag("h3", "How well laps were shuffled"),
            tag(
                "p",
                "Displacement is how far a sample moves from one lap to the next, as a share of the lap: a third where "
                "both are random, which is the longest bar. The rank correlation of two laps is 0 where they are "
                "independent. Mate pairs are the pairs of one chunk that meet in a batch of 256, beside the number for "
                "a random order; a shuffle buffer with a tenth of the samples has up to six times as many. One of N "
                "nodes serves mostly samples of its own part of the chunks, so they meet up to N times as often there. "
                "Entropies are of the chunks and the classes in such a batch, in bits, beside those of a random order: "
                "the nearer, the better mixed. Classes come in the order in which the job asks for them. All are "
                "estimates, from so many samples and batches. Smaller chunks, and up to an eighth of the samples in "
                "memory, mix more.",
            ),
        ),
        bars(
            headings,
            [*rows, (("random", "good", html.number(RANDOM_DISPLACEMENT), "0", *[html.NONE] * 7), RANDOM_DISPLACEMENT)],
            "shuffle",
        ),
    )


def shuffled(quality: LapQuality, chunks: float | None = None, nodes: float | None = None) -> str:
    """Whether the order of a lap is good for training, in words. ``chunks``: of the dataset; ``nodes``: that share it.
    None: not known, or one node."""
    alike, mates, random_mates = quality.rank_correlation, quality.mate_pairs, quality.mate_pairs_if_random
    # Three standard errors, where few samples were followed. Those of a chunk are read together, so they count once.
    followed = min(quality.followed, chunks or quality.followed)
    if alike is not None and abs(alike) > max(ALIKE, 3 / max(1, followed) ** 0.5):
        return "bad: like the lap before" if alike > 0 else "bad: the lap before, reversed"
    # A node draws from its own part. The batches of all nodes together have no more mates by that.
    if mates is not None and random_mates and mates > max(MOST_MATES * random_mates * (nodes or 1), 1.0):
        return "bad: chunks stay together"
    return "good"


def _bits(entropy: float | None, if_random: float | None) -> str:
    return html.NONE if entropy is None or if_random is None else f"{entropy:.2f} of {if_random:.2f}"


# Several mounts


def compared(runs: Sequence[Run]) -> Html:
    """One mount beside another: figures, and the rates of all in one chart, each from its own beginning."""
    headings = ("mount", "opens", "opens a second", "waited", "p99", "from storage", "read amplification", "failed")
    rows = []
    for run in runs:
        opens = run.grown["opens"]
        rate = opens / run.active_s if run.active_s else None
        cells = [run.name, _number(opens), html.number(rate), *_cells(run.grown)]
        rows.append((cells, rate))
    charts = [
        tag(
            "figure",
            tag("figcaption", tag("h3", "One mount beside another"), tag("p", "The bar is the rate of opens.")),
            bars(headings, rows, "served"),
        )
    ]
    highest = max((rates.opens_per_s for run in runs for rates in run.rates), default=1.0)
    longest_s = max(run.last.time_s - run.first.time_s for run in runs)
    small = []
    for run in runs:
        times_s = [point.time_s - run.first.time_s for point in run.points]
        values: list[float | None] = [rates.opens_per_s for rates in run.rates]
        if times_s[-1] < longest_s:
            # All have the same axes.
            times_s, values = [*times_s, longest_s], [*values, None]
        drawing = lines(
            f"Opens a second of {run.name}",
            times_s,
            [Series("opens", "served", values)],
            _per_s,
            top=highest * 1.04 or 1.0,
        )
        small.append(figure(run.name, "Opens a second, with the same axes for all mounts.", drawing))
    return joined([*charts, tag("div", *small, class_="charts")])
