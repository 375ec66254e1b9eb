"""What `redoxfs top` draws: lines of text for a terminal of a given size. One mount in detail, or several side by side.

Nothing depends on colour: a bar has its number beside it, a state its word. Without UTF-8, bars and curves are drawn in
ASCII. With few lines, rows that matter less are left out; with many, the curves grow.
"""

import os
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.text import Text

from redoxfs.cli.stats import NONE, time_text
from redoxfs.cli.top_view import Lap, MountView, State
from redoxfs.launch.sizes import counted, format_bytes

MOST_NOTES = 3
"""Of several mounts, how many are said to be in trouble. Each has its state in any case."""

HIGHEST_CURVE = 5
"""Lines of a curve, where there is room."""

LABEL_COLUMNS = 13
LEAST_COLUMNS, MOST_COLUMNS = 13, 20
"""Of one mount among several."""

_STYLES = {
    State.ASKED: "dim",
    State.SERVES: "green",
    State.SILENT: "bold yellow",
    State.DEAD: "bold red",
    State.ENDED: "bold red",
    State.REFUSED: "bold yellow",
}

_MEMORY = (
    ("in_slots", "in slots"),
    ("in_remote_slots", "from peers"),
    ("in_open_files", "open"),
    ("in_closed_files", "just closed"),
    ("put_aside", "reserved"),
    ("dropped", "dropped"),
)
"""Where samples are in memory: place in stats.json, and label."""


@dataclass(frozen=True, slots=True)
class Size:
    """Of the terminal. ``is_utf8``: it shows more than ASCII."""

    columns: int
    lines: int
    is_utf8: bool = True


def time_left(seconds: float | None) -> str:
    """For people: "42 s", "12m 03s", "3h 12m", "5 days"."""
    if seconds is None:
        return NONE
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    if whole < 72 * 3600:
        return f"{whole // 3600}h {whole % 3600 // 60:02}m"
    return f"{whole // 86400} days"


def screen(
    views: Sequence[MountView], size: Size, *, head: str, chosen: int | None = None, first: int = 0
) -> list[Text]:
    """The lines of the screen: no more than fit, and none too long.

    Args:
        head: the right part of the first line.
        chosen: the mount to show in detail; None for all, if there are several.
        first: the first mount that is shown, where they do not fit side by side.
    """
    if len(views) == 1:
        chosen = 0
    shown = _all(views, size, first) if chosen is None else _detail(views[chosen], size)
    title = Text("redoxfs top", "bold")
    if chosen is None:
        title.append(f"  {counted(len(views), 'mount')}", "none")
    else:
        title.append(f"  {_fitted(views[chosen].name, max(8, size.columns - len(title) - len(head) - 4))}", "none")
    lines = [_apart(title, Text(head, "dim"), size.columns), *shown]
    for line in lines:
        line.truncate(size.columns, overflow="crop")
    return lines[: size.lines]


def shown_at_once(mounts: int, columns: int) -> int:
    """How many of several mounts fit side by side; beside them is the sum of all."""
    return max(1, min(mounts, (columns - LABEL_COLUMNS) // LEAST_COLUMNS - 1))


# One mount


def _detail(view: MountView, size: Size) -> list[Text]:
    rates, stats = view.rates, view.stats
    state = [Text.assemble((_state(view), _STYLES[view.state]), _facts(view))]
    if view.reason:
        state.append(Text(view.reason, _STYLES[view.state]))
    if not stats:
        return state
    if not view.serves:
        state.append(Text("What it last reported:", "dim"))
    curves = [
        ("opens/s", f"{rates.opens_per_s:,.0f}" if rates else NONE, view.opens, 0),
        ("storage MB/s", f"{rates.storage_bytes_per_s / 1e6:,.1f}" if rates else NONE, view.storage, 1),
        ("readers MB/s", f"{rates.served_bytes_per_s / 1e6:,.1f}" if rates else NONE, view.served, 1),
    ]
    counts = _counts(view)
    waits = _waits(view)
    memory = _memory(stats, size)
    laps = _laps(view.laps(), size)
    peers = _peers(view)
    room = size.lines - 1
    waits, peers = _cut(room - len(state) - len(curves) - len(counts) - len(memory) - len(laps), waits, peers)
    sections = [section for section in (counts, waits, memory, laps, peers) if section]
    spare = room - len(state) - len(curves) - sum(len(section) for section in sections)
    # First an empty line before each section, from the last on; then higher curves.
    gaps = min(max(0, spare), 1 + len(sections))
    spare -= gaps
    # A curve of several lines has an empty one below it, to be told from the next.
    height = max(1, min(HIGHEST_CURVE, (spare + 1) // len(curves)))
    drawn: list[Text] = []
    for label, value, history, digits in curves:
        drawn += [*([Text()] if drawn and height > 1 else []), *_curve(label, value, history, height, size, digits)]
    lines = list(state)
    for at, section in enumerate([drawn, *sections]):
        if at + gaps >= 1 + len(sections):
            lines.append(Text())
        lines += section
    return lines


def _cut(room: int, waits: list[Text], peers: list[Text]) -> tuple[list[Text], list[Text]]:
    """These sections, without the rows that do not fit: first those of single outcomes, then peers."""
    if len(waits) + len(peers) > room and len(waits) > 2:
        # The row of all opens stays.
        waits = waits[: max(2, room - len(peers))]
    too_many = len(waits) + len(peers) - room
    if too_many > 0 and len(peers) > 2:
        kept = max(2, len(peers) - too_many - 1)
        if kept < len(peers):
            peers = [*peers[:kept], Text(f"… and {counted(len(peers) - kept, 'more peer')}", "dim")]
    return waits, peers


def _state(view: MountView) -> str:
    return view.state.value


def _facts(view: MountView) -> str:
    stats = view.stats
    if not stats:
        return ""
    facts = [str(stats["policy"]), counted(stats["samples"], "sample"), counted(stats["classes"], "class", "classes")]
    if "node" in stats:
        facts.append(f"node {stats['node']} of {stats['nodes']}")
    facts.append(f"pid {stats['pid']}")
    if view.restarts:
        facts.append(counted(view.restarts, "restart"))
    return "  " + "  ".join(facts)


def _counts(view: MountView) -> list[Text]:
    rates, stats = view.rates, view.stats
    if rates is None:
        return []
    line = Text.assemble(
        ("redirected ", "dim"),
        NONE if rates.redirected_share is None else f"{rates.redirected_share:.1%}",
        ("   waiting ", "dim"),
        f"{rates.waiting_opens:,} opens, {stats['waiting_reads']:,} reads",
        ("   loads in flight ", "dim"),
        f"{rates.loads_in_flight:,}",
        ("   errors/s ", "dim"),
        (f"{rates.errors_per_s:,.0f}", "bold red" if rates.errors_per_s else "none"),
    )
    return [line]


def _waits(view: MountView) -> list[Text]:
    rates = view.rates
    if rates is None:
        return []
    rows = [("all", rates.opens_per_s, 1.0, rates.wait_p50_s, rates.wait_p99_s)]
    rows += [(each.label, each.per_s, each.share, each.p50_s, each.p99_s) for each in view.waits()]
    lines = [Text(f"{'time of opens':14}{'opens/s':>10}{'share':>9}{'p50':>10}{'p99':>10}", "dim")]
    for label, per_s, share, p50_s, p99_s in rows:
        shown_share = f"{share:.1%}" if rates.opens_per_s else NONE
        cells = f"{per_s:>10,.0f}{shown_share:>9}{time_text(p50_s):>10}{time_text(p99_s):>10}"
        style = "red" if label == "failed" and per_s else "none"
        lines.append(Text.assemble((f"{label:14}", "none" if label == "all" else "dim"), (cells, style)))
    return lines


def _memory(stats: Any, size: Size) -> list[Text]:
    used, limit = stats["memory_used_bytes"], stats["memory_limit_bytes"]
    amount = f" {format_bytes(used)} of {format_bytes(limit)}"
    bar = _bar(used / limit if limit else 0.0, size.columns - 14 - len(amount), size)
    states = [f"{label} {stats[place]:,}" for place, label in _MEMORY if stats.get(place) or place == "in_slots"]
    lines = [Text.assemble((f"{'memory':14}", "dim"), (bar, "cyan"), amount)]
    for at, text in enumerate(
        textwrap.wrap("   ".join(each.replace(" ", "\0") for each in states), max(20, size.columns - 14))
    ):
        label = "" if at else "samples"
        lines.append(Text.assemble((f"{label:14}", "dim"), text.replace("\0", " ")))
    return lines


def _laps(laps: Iterable[Lap], size: Size) -> list[Text]:
    lines = []
    for lap in laps:
        label = f"{_fitted(_tree(lap.tree), 12)} "
        figures = f" {lap.share:6.1%}  {lap.turns:,} of {lap.of:,}"
        left = f"  {time_left(lap.left_s)} left" if lap.left_s is not None else ""
        bar = _bar(lap.share, max(8, size.columns - 14 - 8 - 44), size)
        lines.append(Text.assemble((f"{label:14}", "dim"), f"lap {lap.number:<4}", (bar, "green"), f"{figures}{left}"))
    return lines


def _tree(tree: str) -> str:
    return "dataset" if tree in ("", ".") else tree


def _peers(view: MountView) -> list[Text]:
    peers = view.peers()
    if not peers:
        return []
    lines = [Text(f"{'peer':22}{'state':>12}{'in MB/s':>9}{'out MB/s':>9}{'samples/s':>10}{'p50':>8}{'p99':>8}", "dim")]
    for peer in peers:
        line = Text(f"{_fitted(peer.address, 21):22}")
        if peer.state == "ready":
            line.append(f"{peer.state:>12}{peer.in_bytes_per_s / 1e6:>9,.1f}{peer.out_bytes_per_s / 1e6:>9,.1f}")
            line.append(f"{peer.samples_per_s:>10,.0f}{time_text(peer.p50_s):>8}{time_text(peer.p99_s):>8}")
        else:
            line.append(f"{peer.state:>12}  {peer.reason}", "bold yellow")
        lines.append(line)
    return lines


# Several mounts


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the comparison. ``rank``: rows of the highest are left out first; ``sums``: the cell of all mounts."""

    label: str
    cell: Callable[[MountView], str]
    sums: Callable[[Sequence[MountView]], str] | None = None
    rank: int = 0
    style: Callable[[MountView], str] = lambda _view: "none"


def _all(views: Sequence[MountView], size: Size, first: int) -> list[Text]:
    count = shown_at_once(len(views), size.columns)
    first = max(0, min(first, len(views) - count))
    shown = views[first : first + count]
    width = min(MOST_COLUMNS, (size.columns - LABEL_COLUMNS) // (count + 1))
    names = short_names([view.name for view in views])
    room = size.lines - 1
    rows = _rows(views)
    notes = [
        Text(f"{name}: {view.reason}", _STYLES[view.state])
        for name, view in zip(names, views, strict=True)
        if view.reason
    ][:MOST_NOTES]
    if count < len(views):
        notes.append(Text(f"mounts {first + 1} to {first + count} of {len(views)}; left and right show others", "dim"))
    while len(rows) > room - 1 - len(notes) and max(row.rank for row in rows):
        least = max(row.rank for row in rows)
        rows.remove(next(row for row in reversed(rows) if row.rank == least))
    heads = [f"[{first + at + 1}] {_fitted(name, width - 5)}" for at, name in enumerate(names[first : first + count])]
    lines = [
        Text.assemble(" " * LABEL_COLUMNS, *[(_right(head, width), "bold") for head in heads], _right("all", width))
    ]
    serving = [view for view in views if view.serves]
    for row in rows:
        cells = [
            (_right(row.cell(view), width), row.style(view) if view.serves or row is rows[0] else "dim")
            for view in shown
        ]
        total = row.sums(serving) if row.sums is not None and serving else ""
        lines.append(Text.assemble((f"{row.label:{LABEL_COLUMNS}}", "dim"), *cells, _right(total, width)))
    return [*lines[: room - len(notes)], *notes]


def _rows(views: Sequence[MountView]) -> list[_Row]:
    rows = [
        _Row(
            "state",
            lambda view: view.state.value,
            lambda serving: f"{len(serving)} serving",
            style=lambda view: _STYLES[view.state],
        ),
        _rate("opens/s", lambda rates: rates.opens_per_s, "{:,.0f}"),
        _rate("storage MB/s", lambda rates: rates.storage_bytes_per_s / 1e6, "{:,.1f}"),
        _rate("readers MB/s", lambda rates: rates.served_bytes_per_s / 1e6, "{:,.1f}"),
        _Row("redirected", _redirected, _redirected_of_all),
        _Row("p50", lambda view: time_text(view.rates.wait_p50_s if view.rates else None)),
        _Row("p99", lambda view: time_text(view.rates.wait_p99_s if view.rates else None)),
        _rate("waiting", lambda rates: rates.waiting_opens, "{:,.0f}"),
        _rate("loads", lambda rates: rates.loads_in_flight, "{:,.0f}"),
        _rate("errors/s", lambda rates: rates.errors_per_s, "{:,.0f}", rank=1),
    ]
    trees = list(dict.fromkeys(lap.tree for view in views for lap in view.laps()))
    for tree in trees:
        rows += [
            _Row(_fitted(_tree(tree), LABEL_COLUMNS - 1), partial(_lap_cell, tree), partial(lap_of_all, tree)),
            _Row("  time left", partial(_time_left, tree), partial(_most_left, tree)),
        ]
    rows.append(
        _Row(
            "memory",
            lambda view: format_bytes(view.stats["memory_used_bytes"]) if view.stats else NONE,
            lambda of: format_bytes(sum(view.stats["memory_used_bytes"] for view in of)),
        )
    )
    rows.append(_Row("  of limit", _memory_share, rank=1))
    for place, label in _MEMORY:
        if any(view.stats.get(place) for view in views):
            rows.append(
                _Row(
                    f"  {label}"[:LABEL_COLUMNS],
                    partial(_count, place),
                    partial(_count_of_all, place),
                    rank=2,
                )
            )
    if any(view.stats.get("peers") for view in views):
        rows += [
            _Row("peers ready", _peers_ready, style=_peer_style),
            _Row("  in MB/s", _from_peers, _from_peers_of_all, rank=1),
            _Row("  answer p50", lambda view: _slowest_peer(view, "p50_s"), rank=3),
            _Row("  answer p99", lambda view: _slowest_peer(view, "p99_s"), rank=1),
        ]
    if any(view.restarts for view in views):
        rows.append(
            _Row(
                "restarts",
                lambda view: f"{view.restarts:,}",
                lambda of: f"{sum(view.restarts for view in of):,}",
                rank=1,
            )
        )
    return rows


def _rate(label: str, value: Callable[[Any], float], form: str, rank: int = 0) -> _Row:
    def of_all(serving: Sequence[MountView]) -> str:
        values = [value(view.rates) for view in serving if view.rates is not None]
        return form.format(sum(values)) if values else NONE

    return _Row(label, lambda view: form.format(value(view.rates)) if view.rates else NONE, of_all, rank)


def _redirected(view: MountView) -> str:
    return _redirected_of_all([view])


def _redirected_of_all(views: Sequence[MountView]) -> str:
    known = [
        (view.rates.redirected_share, view.rates.opens_per_s)
        for view in views
        if view.rates is not None and view.rates.redirected_share is not None
    ]
    opens = sum(weight for _, weight in known)
    return f"{sum(share * weight for share, weight in known) / opens:.1%}" if opens else NONE


def _count(place: str, view: MountView) -> str:
    return f"{view.stats[place]:,}" if view.stats else NONE


def _count_of_all(place: str, views: Sequence[MountView]) -> str:
    return f"{sum(view.stats[place] for view in views):,}"


def _lap_of(tree: str, view: MountView) -> Lap | None:
    return next((lap for lap in view.laps() if lap.tree == tree), None)


def _lap_cell(tree: str, view: MountView) -> str:
    lap = _lap_of(tree, view)
    return NONE if lap is None else f"lap {lap.number} {lap.share:.1%}"


def _time_left(tree: str, view: MountView) -> str:
    lap = _lap_of(tree, view)
    return time_left(None if lap is None else lap.left_s)


def _most_left(tree: str, views: Sequence[MountView]) -> str:
    laps = [_lap_of(tree, view) for view in views]
    known = [lap.left_s for lap in laps if lap is not None and lap.left_s is not None]
    return time_left(max(known)) if known and is_one_cluster(views) else ""


def is_one_cluster(views: Sequence[MountView]) -> bool:
    """Whether these are all the nodes that share one dataset."""
    places = [(view.stats.get("nodes"), view.stats.get("node"), view.stats.get("source")) for view in views]
    nodes = {count for count, _, _ in places}
    return nodes == {len(views)} and len({node for _, node, _ in places}) == len(views)


def lap_of_all(tree: str, views: Sequence[MountView]) -> str:
    """The lap that the nodes of one cluster share: their turns together. Empty where they are no cluster."""
    laps = [lap for view in views for lap in view.laps() if lap.tree == tree]
    if not is_one_cluster(views) or len(laps) != len(views):
        return ""
    number, samples = min(lap.number for lap in laps), views[0].stats["laps"][tree]["samples"]
    # A node that is ahead has given its part of this lap.
    turns = sum(lap.turns if lap.number == number else samples / len(views) for lap in laps)
    return f"lap {number} {min(1.0, turns / samples) if samples else 0.0:.1%}"


def _memory_share(view: MountView) -> str:
    limit = view.stats.get("memory_limit_bytes")
    return f"{view.stats['memory_used_bytes'] / limit:.0%}" if limit else NONE


def _peers_ready(view: MountView) -> str:
    peers = view.peers()
    ready = sum(peer.state == "ready" for peer in peers)
    return f"{ready} of {len(peers)}" if peers else NONE


def _peer_style(view: MountView) -> str:
    return "none" if all(peer.state == "ready" for peer in view.peers()) else "bold yellow"


def _from_peers(view: MountView) -> str:
    return _from_peers_of_all([view])


def _from_peers_of_all(views: Sequence[MountView]) -> str:
    return f"{sum(peer.in_bytes_per_s for view in views for peer in view.peers()) / 1e6:,.1f}"


def _slowest_peer(view: MountView, name: str) -> str:
    known = [getattr(peer, name) for peer in view.peers() if getattr(peer, name) is not None]
    return time_text(max(known)) if known else NONE


def short_names(paths: Sequence[str]) -> list[str]:
    """The paths without the folders that they have in common, which keeps them different."""
    folder = os.path.commonpath([str(Path(path).parent) for path in paths]) if len(paths) > 1 else ""
    return [os.path.relpath(path, folder) if folder not in ("", "/") else path for path in paths]


# Lines


def _apart(left: Text, right: Text, columns: int) -> Text:
    """Two texts at both ends of a line."""
    return Text.assemble(left, " " * max(2, columns - left.cell_len - right.cell_len), right)


def _right(text: str, width: int) -> str:
    return _fitted(text, width - 1).rjust(width)


def _fitted(text: str, width: int) -> str:
    """The end of a text, which tells paths apart, where it is too long."""
    shown = text.encode("utf-8", "replace").decode()
    shown = "".join(each if each.isprintable() else "?" for each in shown)
    return shown if len(shown) <= width else f"…{shown[len(shown) - width + 1 :]}"


def _bar(share: float, width: int, size: Size) -> str:
    width = max(4, width)
    full, empty = ("█", "░") if size.is_utf8 else ("#", ".")
    filled = round(max(0.0, min(1.0, share)) * width)
    # Something is not nothing, and not all is not all.
    filled = min(max(filled, int(share > 0)), width - int(share < 1))
    return full * filled + empty * (width - filled)


_RAMPS = {True: " ▁▂▃▄▅▆▇█", False: " .:-=+*#@"}


def _curve(label: str, value: str, history: Iterable[float], height: int, size: Size, digits: int) -> list[Text]:
    """A figure and its history, which ends at the right edge; the highest value beside it, where there is room."""
    width = max(1, size.columns - 26)
    values = list(history)[-width:]
    most = max(values, default=0.0)
    ramp = _RAMPS[size.is_utf8]
    steps = len(ramp) - 1
    levels = [0 if not most else max(int(value > 0), round(value / most * height * steps)) for value in values]
    lines = []
    for line in range(height - 1, -1, -1):
        drawn = "".join(ramp[max(0, min(steps, level - line * steps))] for level in levels).rjust(width)
        if line == 0:
            beside = Text.assemble((f"{label:14}", "dim"), (f"{value:>10}  ", "bold"))
        else:
            is_peak = line == height - 1 and most
            beside = Text(f"{f'max {most:,.{digits}f}' if is_peak else '':>24}  ", "dim")
        lines.append(Text.assemble(beside, (drawn, "cyan")))
    return lines
