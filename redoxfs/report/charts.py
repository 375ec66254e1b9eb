"""Charts as SVG, with their labels as HTML: the drawing stretches to any width, and the text keeps its size.

Each chart has a title, a text that says what is to be seen, and a table of its figures. Its colors are classes of the
page's style, so a meaning has one color on the whole page, in light and in dark.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from redoxfs.report.html import Html, binary_unit, escaped, joined, rate, seconds, tag

WIDTH, HEIGHT = 1000, 200
MOST_BANDS = 100
"""Places of a chart that show their figures under a mouse."""

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Series:
    """A curve, an area or a bar of each place. ``kind`` is the class of its color."""

    name: str
    kind: str
    values: Values


@dataclass(frozen=True, slots=True)
class Table:
    """The figures behind a chart. Text; the first cell of a row is its heading."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


Written = Callable[[float], str]


def figure(title: str, about: str, drawing: Html, table: Table | None = None, *, legend: Sequence[Series] = ()) -> Html:
    """A chart with its title, its legend and its figures."""
    key = tag(
        "ul",
        *(tag("li", tag("i", class_=f"key {series.kind}"), series.name) for series in legend),
        class_="legend",
    )
    return tag(
        "figure",
        tag("figcaption", tag("h3", title), tag("p", about)),
        key if legend else Html(),
        drawing,
        Html() if table is None else figures(table),
    )


def figures(table: Table, *, opened: bool = False, summary: str = "Figures") -> Html:
    """A table that can be opened. It scrolls by itself where the page is narrow."""
    return Html(f"<details{' open' if opened else ''}>{tag('summary', summary)}{scrolled(written(table))}</details>")


def scrolled(table: Html) -> Html:
    return tag("div", table, class_="scroll", tabindex=0, role="region", aria_label="table of figures")


def written(table: Table) -> Html:
    head = tag("tr", *(tag("th", heading, scope="col") for heading in table.headings))
    rows = (tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in table.rows)
    return tag("table", tag("thead", head), tag("tbody", *rows))


@dataclass(frozen=True, slots=True)
class Scale:
    """Values to places of a drawing, from 0 to 1."""

    low: float
    high: float
    log: bool = False

    def at(self, value: float) -> float:
        if self.log:
            value = max(value, self.low)
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)

    def ticks(self, about: int = 4, unit: float = 1.0) -> list[float]:
        """Values that are round in this unit."""
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            step = max(1, math.ceil((last - first + 1) / (about + 1)))
            return [10.0**power for power in range(first, last + 1, step)]
        rough = (self.high - self.low) / about
        power = unit * 10 ** math.floor(math.log10(rough / unit))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        return [each * step for each in range(first, math.floor(self.high / step + 1e-9) + 1)]


_TIMES = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


def time_ticks(end_s: float, about: int = 4) -> list[float]:
    """Round times from 0."""
    if end_s < about:
        return Scale(0, max(end_s, 1e-9)).ticks(about)
    step = next((each for each in _TIMES if end_s / each <= about + 0.5), 86400 * math.ceil(end_s / 86400 / about))
    return [float(each) for each in range(0, int(end_s) + 1, int(step))]


def lines(
    title: str,
    times_s: Sequence[float],
    series: Sequence[Series],
    label: Written,
    *,
    stacked: bool = False,
    log: bool = False,
    top: float | None = None,
    marks: Sequence[tuple[float, str]] = (),
) -> Html:
    """Curves over time, or areas on top of each other. A value holds from the time before to its own: a step.

    Args:
        times_s: one more than there are values: the ends of the intervals.
        top: the end of the scale, if it is known.
        marks: moments with a name.
    """
    end_s = max(times_s[-1] - times_s[0], 1e-9)
    sums = _sums(series) if stacked else [each.values for each in series]
    known = [value for values in sums for value in values if value is not None]
    highest = max([*known, 0.0]) if top is None else top
    if log:
        positive = [value for value in known if value > 0] or [1e-6, 1e-3]
        scale = Scale(
            10 ** math.floor(math.log10(min(positive))), 10 ** math.ceil(math.log10(max(positive)) + 1e-9), True
        )
    else:
        scale = Scale(0, highest * (1.0 if top else 1.04) or 1.0)
    at_x = [WIDTH * (time_s - times_s[0]) / end_s for time_s in times_s]
    if stacked:
        shapes = [_areas([*pairwise(at_x)], series, sums, scale)]
    else:
        shapes = [f'<path class="line {each.kind}" d="{_steps(at_x, each.values, scale)}"/>' for each in series]
    for time_s, name in marks:
        x = WIDTH * (time_s - times_s[0]) / end_s
        shapes.append(f'<path class="mark" d="M{x:.1f} 0V{HEIGHT}"><title>{escaped(name)}</title></path>')
    bands = _bands(times_s, at_x, series, label)
    return _plot(
        title,
        Html("".join(shapes) + bands),
        [(scale.at(tick), label(tick)) for tick in scale.ticks(unit=binary_unit(highest) if label is rate else 1.0)],
        [(tick / end_s, seconds(tick)) for tick in time_ticks(end_s)],
    )


def _sums(series: Sequence[Series]) -> list[list[float | None]]:
    sums: list[list[float | None]] = []
    total = [0.0] * len(series[0].values)
    for each in series:
        total = [one + (two or 0.0) for one, two in zip(total, each.values, strict=True)]
        sums.append(list(total))
    return sums


def _y(value: float, scale: Scale) -> float:
    return HEIGHT * (1 - min(1.0, max(0.0, scale.at(value))))


def _steps(at_x: Sequence[float], values: Values, scale: Scale) -> str:
    path, pen_down = [], False
    for number, value in enumerate(values):
        if value is None or not math.isfinite(value) or (scale.log and value <= 0):
            pen_down = False
            continue
        y = _y(value, scale)
        path.append(f"V{y:.1f}" if pen_down else f"M{at_x[number]:.1f} {y:.1f}")
        path.append(f"H{at_x[number + 1]:.1f}")
        pen_down = True
    return "".join(path)


def _areas(
    places: Sequence[tuple[float, float]], series: Sequence[Series], sums: Sequence[Values], scale: Scale
) -> str:
    """Areas on top of each other. ``places``: where each value begins and ends."""
    below: Values = [0.0] * len(places)
    shapes = []
    for each, values in zip(series, sums, strict=True):
        path = []
        for (left, right), high, low in zip(places, values, below, strict=True):
            top, bottom = _y(high or 0.0, scale), _y(low or 0.0, scale)
            if top < bottom:
                path.append(f"M{left:.1f} {bottom:.1f}V{top:.1f}H{right:.1f}V{bottom:.1f}Z")
        shapes.append(f'<path class="area {each.kind}" d="{"".join(path)}"/>')
        below = values
    return "".join(shapes)


def _band(left: float, right: float, *words: str) -> str:
    """A strip that names its figures under a mouse."""
    title = escaped("\n".join(words))
    return (
        f'<rect class="band" x="{left:.1f}" y="0" width="{right - left:.1f}" height="{HEIGHT}">'
        f"<title>{title}</title></rect>"
    )


def _bands(times_s: Sequence[float], at_x: Sequence[float], series: Sequence[Series], label: Written) -> str:
    step = max(1, math.ceil((len(at_x) - 1) / MOST_BANDS))
    found = []
    for number in range(0, len(at_x) - 1, step):
        last = min(number + step, len(at_x) - 1)
        told = [f"{each.name}: {label(value)}" for each in series if (value := each.values[last - 1]) is not None]
        found.append(_band(at_x[number], at_x[last], f"at {seconds(times_s[last] - times_s[0])}", *told))
    return "".join(found)


def histogram(
    title: str, bounds: Sequence[float], series: Sequence[Series], label: Written, bound_label: Written
) -> Html:
    """Bars of things in buckets, on top of each other; the buckets are as wide as each other.

    Args:
        bounds: the upper bound of each bucket, each twice the one before.
    """
    sums = _sums(series)
    scale = Scale(0, max([value for value in sums[-1] if value is not None] + [1.0]) * 1.04)
    wide = WIDTH / len(bounds)
    places = [((number + 0.06) * wide, (number + 0.94) * wide) for number in range(len(bounds))]
    shapes = [_areas(places, series, sums, scale)]
    for number, bound in enumerate(bounds):
        told = [f"{each.name}: {label(value)}" for each in series if (value := each.values[number])]
        shapes.append(_band(number * wide, (number + 1) * wide, f"up to {bound_label(bound)}", *told))
    decades = Scale(bounds[0] / 2, bounds[-1], True)
    return _plot(
        title,
        Html("".join(shapes)),
        [(scale.at(tick), label(tick)) for tick in scale.ticks(3)],
        [(decades.at(tick), bound_label(tick)) for tick in decades.ticks(4)],
    )


def _plot(title: str, shapes: Html, ys: Sequence[tuple[float, str]], xs: Sequence[tuple[float, str]]) -> Html:
    """The drawing between its axes. Places are shares of the drawing, from the lower left."""
    grid = "".join(f'<path class="grid" d="M0 {HEIGHT * (1 - y):.1f}H{WIDTH}"/>' for y, _ in ys)
    svg = Html(
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{escaped(title)}">'
        f"<title>{escaped(title)}</title>{grid}{shapes}</svg>"
    )
    return tag(
        "div",
        tag("div", *(_place(text, top=1 - y) for y, text in ys), class_="ys", aria_hidden="true"),
        svg,
        tag("div", *(_x_place(text, x) for x, text in xs), class_="xs", aria_hidden="true"),
        class_="plot",
    )


def _place(text: str, *, top: float) -> Html:
    return tag("span", text, style=f"top:{100 * top:.2f}%")


def _x_place(text: str, x: float) -> Html:
    edge = "first" if x < 0.05 else "last" if x > 0.93 else None
    return tag("span", text, class_=edge, style=f"left:{100 * min(1.0, x):.2f}%")


def bars(headings: Sequence[str], rows: Sequence[tuple[Sequence[str], float | None]], kind: str) -> Html:
    """A table with a bar beside each row: the cells of a row, and the length of its bar."""
    longest = max([length for _, length in rows if length is not None and math.isfinite(length)] + [0.0]) or 1.0
    first, *others = (tag("th", heading, scope="col") for heading in headings)
    head = tag("tr", first, tag("td", class_="bars"), *others)
    body = []
    for cells, length in rows:
        share = 0.0 if length is None or not math.isfinite(length) else 100 * length / longest
        bar = tag("i", class_=f"bar {kind}", style=f"width:{share:.1f}%")
        body.append(
            tag(
                "tr",
                tag("th", cells[0], scope="row"),
                tag("td", bar, class_="bars", aria_hidden="true"),
                *(tag("td", cell) for cell in cells[1:]),
            )
        )
    return scrolled(tag("table", tag("thead", head), tag("tbody", joined(body)), class_="barred"))
