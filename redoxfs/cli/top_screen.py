"""What `redoxfs top` draws: one mount in detail, or several side by side.

Nothing depends on colour: a bar has its number beside it, a state its word. What matters most comes first, because a
short terminal shows only that. No text is markup: `console` turns it off.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from io import TextIOWrapper
from math import ceil
from typing import IO, Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from redoxfs.cli.stats import NONE, time_text
from redoxfs.cli.top_view import MountView, State, printable
from redoxfs.doctor.result import Level
from redoxfs.launch.control_files import WRONG
from redoxfs.launch.sizes import counted, format_bytes
from redoxfs.telemetry import Distribution, Outcome

MOST_NOTES = 3
"""Of several mounts, how many are said to be in trouble. Each has its state in any case."""

LABEL_COLUMNS = 14
LEAST_COLUMNS, MOST_COLUMNS = 13, 20
"""Of one mount among several. All have a blank at their end."""

_STYLES = {State.ASKED: "dim", State.SERVES: "green", State.DEAD: "bold red", State.ENDED: "bold red"}
_TROUBLE = "bold yellow"
_LEVELS = {Level.OK: "green", Level.WARNING: _TROUBLE, Level.PROBLEM: "bold red"}

_RATES = (
    ("opens/s", "opens_per_s", 1, 0),
    ("storage MiB/s", "storage_bytes_per_s", 1 << 20, 1),
    ("readers MiB/s", "served_bytes_per_s", 1 << 20, 1),
    ("waiting", "waiting_opens", 1, 0),
    ("loads", "loads_in_flight", 1, 0),
    ("errors/s", "errors_per_s", 1, 0),
)
"""Label, name in `Rates`, unit, digits."""

_COUNTS = {
    "waiting_reads": "waiting reads",
    "in_slots": "  loaded",
    "retained_samples": "  retained",
    "in_remote_slots": "  from peers",
    "in_open_files": "  open",
    "in_closed_files": "  just closed",
    "put_aside": "  reserved",
    "dropped": "  dropped",
}
"""Place in stats.json, and label: shown unless it is 0. All but the first say where samples are in memory."""

_Figure = Callable[[Sequence[MountView]], str]
"""Of mounts that have statistics: one of them, or all that serve together."""


def console(file: IO[str]) -> Console:
    """A console that draws on the terminal ``file``, which may have no more than ASCII."""
    if isinstance(file, TextIOWrapper):
        file.reconfigure(errors="replace")
    return Console(file=file, force_terminal=True, force_interactive=True, markup=False, emoji=False, highlight=False)


def take_in(view: MountView, at_s: float, stats: Mapping[str, Any], on: Console) -> None:
    """A snapshot, made at ``at_s``. If it cannot be drawn, the mount is one that cannot be read, and has no figures."""
    try:
        view.saw(at_s, stats)
        for views in ([view], [view, view]):
            on.render_lines(screen(views, on, head=""))
    except WRONG as error:
        version = stats.get("version")
        view.refused(f"{view.name}: redoxfs {version} serves it, and its statistics make no sense: {error!r}")


def screen(
    views: Sequence[MountView], on: Console, *, head: str, chosen: int | None = None, first: int = 0
) -> RenderableType:
    """The screen, from its first line on; it may have more lines than the terminal.

    Args:
        head: the right part of the first line.
        chosen: the mount to show in detail; None for all, if there are several.
        first: the first mount that is shown, where they do not fit side by side.
    """
    title = Text("redoxfs top  ", "bold", no_wrap=True)
    shown: Iterable[RenderableType]
    if len(views) == 1 or chosen is not None:
        view = views[chosen or 0]
        title.append(_fitted(view.name, max(8, on.width - len(title) - len(head) - 2)), "none")
        shown = _detail(view, on)
    else:
        at_once = shown_at_once(len(views), on.width)
        first = max(0, min(first, len(views) - at_once))
        some = f"{first + 1} to {first + at_once} of " if at_once < len(views) else ""
        title.append(f"{some}{counted(len(views), 'mount')}", "none")
        shown = _side_by_side(views, range(first, first + at_once), on.width)
    title.pad_right(max(2, on.width - title.cell_len - len(head)))
    return Group(title.append(head, "dim"), *shown)


def shown_at_once(mounts: int, columns: int) -> int:
    """How many of several mounts fit side by side; beside them is the sum of all."""
    return max(1, min(mounts, (columns - LABEL_COLUMNS) // LEAST_COLUMNS - 1))


# One mount


def _detail(view: MountView, on: Console) -> list[RenderableType]:
    state: list[RenderableType] = [*_verdict(view)]
    state.append(Text.assemble(_state(view), *_facts(view.stats), no_wrap=True, overflow="ellipsis"))
    if view.reason:
        state.append(Text(view.reason, _style(view)))
    if not view.stats:
        return state
    if not view.serves:
        state.append(Text("What it last reported:", "dim"))
    table = _table("", "")
    table.expand, table.show_header = True, False
    table.add_column(ratio=1)
    for label, figure in _rows([view]):
        table.add_row(label, figure([view]), _picture(label, view))
    sections = [Group(*state), table, *_waits(view), *_peers(view)]
    if len(on.render_lines(Group(*sections))) + len(sections) <= on.height:
        sections = [each for section in sections for each in (section, Text())]
    return sections


def _verdict(view: MountView, whose: str = "") -> Iterator[Text]:
    """What `doctor`, `status` and `report` say first, too."""
    if view.verdict is not None:
        yield Text(whose + printable(view.verdict.line), _LEVELS.get(view.verdict.level, "none"))


def _facts(stats: Mapping[str, Any]) -> Iterator[str]:
    if stats:
        yield f"  {stats['policy']}  {counted(stats['samples'], 'sample')}"
        yield f"  {counted(stats['classes'], 'class', 'classes')}"
        yield f"  node {stats['node']} of {stats['nodes']}" if "node" in stats else ""
        yield f"  pid {stats['pid']}"


def _picture(label: str, view: MountView) -> RenderableType:
    """What is beside a figure: the past of a rate, or a bar."""
    for name in (name for rate, name, _, _ in _RATES if rate == label):
        return _Curve([getattr(rates, name) if rates else 0.0 for rates in view.history])
    if label == "memory":
        return ProgressBar(view.stats["memory_limit_bytes"], view.stats["memory_used_bytes"])
    for lap in (lap for tree, lap in view.laps().items() if _label(tree) == label):
        picture = Table.grid(padding=(0, 1), expand=True)
        picture.add_column(ratio=1)
        picture.add_column(no_wrap=True)
        picture.add_row(ProgressBar(1.0, lap.share), f"{lap.turns:,} of {lap.of:,}")
        return picture
    return ""


def _waits(view: MountView) -> Iterator[Table]:
    """By outcome, those that came up at all since the mount began."""
    if rates := view.rates:
        now, before = view.stats["open_seconds"], view.before.get("open_seconds", {})
        times = {each.label: _since(now[each.label], before.get(each.label)) for each in Outcome}
        total = sum(each.count for each in times.values())
        table = _table("time of opens", "opens/s", "share", "p50", "p99")
        all_of = f"{rates.opens_per_s:,.0f}", "100.0%" if total else NONE
        table.add_row("all", *all_of, time_text(rates.wait_p50_s), time_text(rates.wait_p99_s))
        for label, each in times.items():
            if now[label]["count"]:
                share = f"{each.count / total:.1%}" if total else NONE
                style = "red" if label == Outcome.FAILED.label and each.count else "none"
                rate = f"{each.count / rates.seconds:,.0f}"
                table.add_row(label.replace("_", " "), rate, share, *_half_and_most(each), style=style)
        yield table


def _peers(view: MountView) -> Iterator[RenderableType]:
    """Those in trouble first."""
    ready = _table("peer", "in MiB/s", "out MiB/s", "samples/s", "p50", "p99")
    before = {peer["address"]: peer for peer in view.before.get("peers", ())}
    seconds = view.rates.seconds if view.rates else 1.0
    for peer in view.stats.get("peers", ()):
        if peer["state"] != "ready":
            yield Text(f"{peer['address']}  {peer['state']}  {peer.get('reason') or ''}", _TROUBLE)
            continue
        former = before.get(peer["address"], peer)
        # Another view of the nodes begins these counters again.
        received, sent, samples = (
            max(0, peer[name] - former[name]) / seconds for name in ("bytes_in", "bytes_out", "samples_received")
        )
        times = _half_and_most(_since(peer["answer_seconds"], former["answer_seconds"]))
        ready.add_row(
            peer["address"], f"{received / (1 << 20):,.1f}", f"{sent / (1 << 20):,.1f}", f"{samples:,.0f}", *times
        )
    if ready.row_count:
        yield ready


def _since(now: Mapping[str, Any], before: Mapping[str, Any] | None) -> Distribution:
    return Distribution.of(now).since(Distribution.of(before)) if before else Distribution.of(now)


def _half_and_most(times: Distribution) -> tuple[str, str]:
    return time_text(times.quantile_s(0.5)), time_text(times.quantile_s(0.99))


# Several mounts


def _side_by_side(views: Sequence[MountView], shown: range, columns: int) -> Iterator[RenderableType]:
    for view in [view for view in views if view.reason][:MOST_NOTES]:
        yield Text(view.reason, _style(view))
    ills = [view for view in views if view.verdict is not None and view.verdict.level is not Level.OK]
    for view in ills[:1]:
        yield from _verdict(view, f"{view.name}: ")
    width = min(MOST_COLUMNS, (columns - LABEL_COLUMNS) // (len(shown) + 1)) - 1
    table = _table("", *(f"[{at + 1}] {_fitted(views[at].name, width - 4)}" for at in shown), "all")
    for column in table.columns[1:]:
        column.width = width
    serving = [view for view in views if view.serves]
    table.add_row("state", *(_state(views[at]) for at in shown), f"{len(serving)} serving")
    if any(view.verdict for view in views):
        table.add_row("verdict", *(_cause(views[at]) for at in shown), f"{len(ills)} to mend" if ills else "")
    for label, figure in _rows(views):
        cells = (
            Text(figure([view]) if view.stats else NONE, "none" if view.serves else "dim")
            for view in views[shown.start : shown.stop]
        )
        table.add_row(label, *cells, figure(serving) if serving else "")
    yield table


def _rows(views: Sequence[MountView]) -> Iterator[tuple[str, _Figure]]:
    """Label and figure."""
    for label, name, unit, digits in _RATES:
        yield label, partial(_rate, name, unit, digits)
    yield "redirected", _redirected
    if len(views) > 1:
        yield "p50", lambda of: _longest(view.rates.wait_p50_s for view in of if view.rates)
        yield "p99", lambda of: _longest(view.rates.wait_p99_s for view in of if view.rates)
    for tree in dict.fromkeys(tree for view in views for tree in view.laps()):
        yield _label(tree), partial(_lap, tree)
        yield "  time left", partial(_left, tree)
    if any(view.restarts for view in views):
        yield "restarts", lambda of: f"{sum(view.restarts for view in of):,}"
    yield "memory", partial(_total, "memory_used_bytes", format_bytes)
    yield "  limit", partial(_total, "memory_limit_bytes", format_bytes)
    if any("peers" in view.stats for view in views):
        yield "peers ready", _peers_ready
    for place, label in _COUNTS.items():
        if any(view.stats.get(place) for view in views):
            yield label, partial(_total, place, "{:,}".format)


def _rate(name: str, unit: float, digits: int, views: Sequence[MountView]) -> str:
    known = [getattr(view.rates, name) for view in views if view.rates]
    return f"{sum(known) / unit:,.{digits}f}" if known else NONE


def _redirected(views: Sequence[MountView]) -> str:
    known = [view.rates for view in views if view.rates and view.rates.redirected_share is not None]
    opens = sum(rates.opens_per_s for rates in known)
    return f"{sum((rates.redirected_share or 0) * rates.opens_per_s for rates in known) / opens:.1%}" if opens else NONE


def _longest(seconds: Iterable[float | None]) -> str:
    return time_text(max((each for each in seconds if each is not None), default=None))


def _total(place: str, shown: Callable[[int], str], views: Sequence[MountView]) -> str:
    return shown(sum(view.stats.get(place, 0) for view in views))


def _peers_ready(views: Sequence[MountView]) -> str:
    states = [peer["state"] for view in views for peer in view.stats.get("peers", ())]
    return f"{states.count('ready')} of {len(states)}" if states else NONE


def _lap(tree: str, views: Sequence[MountView]) -> str:
    """The lap of a mount, or of all nodes of one cluster: their turns together. Empty where they are no cluster."""
    laps = [view.laps()[tree] for view in views if tree in view.laps()]
    if len(views) == 1:
        return f"lap {laps[0].number} {laps[0].share:.1%}" if laps else NONE
    if not is_one_cluster(views) or len(laps) != len(views):
        return ""
    number, samples = min(lap.number for lap in laps), views[0].stats["laps"][tree]["samples"]
    # A node that is ahead has given its part of this lap.
    turns = sum(lap.turns if lap.number == number else samples / len(views) for lap in laps)
    return f"lap {number} {min(1.0, turns / samples) if samples else 0.0:.1%}"


def _left(tree: str, views: Sequence[MountView]) -> str:
    laps = [view.laps()[tree] for view in views if tree in view.laps()]
    known = [ceil(lap.left_s) for lap in laps if lap.left_s is not None]
    return _longest(known) if len(views) == 1 or is_one_cluster(views) else ""


def is_one_cluster(views: Sequence[MountView]) -> bool:
    """Whether these are all the nodes that share one dataset."""
    nodes, node = ({view.stats.get(name) for view in views} for name in ("nodes", "node"))
    return nodes == {len(views)} and len(node) == len(views)


# Parts


def _style(view: MountView) -> str:
    return _STYLES.get(view.state, _TROUBLE)


def _state(view: MountView) -> Text:
    return Text(view.state.value, _style(view))


def _cause(view: MountView) -> Text:
    if view.verdict is None:
        return Text(NONE)
    return Text(printable(str(view.verdict.values.get("cause"))), _LEVELS.get(view.verdict.level, "none"))


def _label(tree: str) -> str:
    return _fitted(tree if tree not in ("", ".") else "dataset", LABEL_COLUMNS - 1)


def _table(label: str, *figures: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column(label, style="dim", min_width=LABEL_COLUMNS - 1, no_wrap=True)
    for name in figures:
        table.add_column(name, justify="right", min_width=9, no_wrap=True)
    return table


def _fitted(text: str, width: int) -> str:
    """The end of a text, which tells paths apart, where it is too long."""
    return text if len(text) <= width else f"…{text[len(text) - width + 1 :]}"


class _Curve:
    """Values of the past, in one line that ends at the right edge."""

    def __init__(self, values: Sequence[float]) -> None:
        self._values = values

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> Iterator[Text]:
        ramp = " .:-=+*#@" if options.ascii_only else " ▁▂▃▄▅▆▇█"
        values = self._values[-options.max_width :]
        most = max(values, default=0.0) or 1.0
        levels = (max(int(value > 0), round(value / most * (len(ramp) - 1))) for value in values)
        yield Text("".join(ramp[level] for level in levels).rjust(options.max_width), "cyan", no_wrap=True)

    def __rich_measure__(self, _console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, options.max_width)
