"""The figures of §5.2, §5.4 and §5.5 as pictures. matplotlib is optional: `redoxfs[plot]`."""

import importlib
from collections.abc import Sequence
from typing import Any

import chunk_size
import epoch_settings
import epoch_times
import related
import remote_memory

_DPI = 150

# The room of a letter of 7 points, in pixels.
_LETTER_PX = (7, 17)


class NoPlotsError(Exception):
    """matplotlib is not installed."""

    def __init__(self) -> None:
        super().__init__("--plot needs matplotlib; to install it: pip install 'redoxfs[plot]'")


def check() -> None:
    """Raises NoPlotsError where plots cannot be drawn. Call it before minutes of simulation."""
    _figure()


def plot_epoch_times(rows: Sequence[epoch_times.Row], path: str) -> None:
    """The best speed-ups over PyTorch, beside those of the paper, and what an epoch without I/O would reach."""
    figure = _figure()
    axes = figure.subplots()
    seconds = {(row.setting, row.model, row.way): row.seconds for row in rows if not row.varied}
    settings = list(dict.fromkeys(row.setting for row in rows))
    bars = {"paper": "tab:gray", "slot": "tab:blue", "pool": "tab:orange", "No-I/O": "tab:green"}
    for number, (name, color) in enumerate(bars.items()):
        heights = [
            epoch_settings.SETTINGS[setting].over_pytorch
            if name == "paper"
            else epoch_times.best_speed_up(seconds, setting, name, "PyTorch")
            for setting in settings
        ]
        places = [at + (number - (len(bars) - 1) / 2) * 0.2 for at in range(len(settings))]
        axes.bar(places, heights, 0.2, label=name, color=color)
    axes.set_xticks(range(len(settings)), settings, rotation=20)
    axes.set(ylabel="epochs in the time of one of PyTorch")
    axes.legend()
    _save(figure, path)


def plot_chunk_sizes(rows: Sequence[chunk_size.Row], path: str) -> None:
    """Loads per chunk and epoch time over the chunk size."""
    figure = _figure()
    axes = figure.subplots()
    sizes = [row.chunk_size for row in rows]
    axes.plot(sizes, [row.epoch_seconds / 3600 for row in rows], "o-", color="tab:blue")
    axes.set(xscale="log", xlabel="chunk size (samples)", ylabel="epoch time (h)", xticks=sizes)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    loads = axes.twinx()
    loads.plot(sizes, [row.loads_per_chunk for row in rows], "s--", color="tab:orange")
    loads.set(ylabel="loads per chunk", ylim=(0, None))
    _color(axes, "tab:blue")
    _color(loads, "tab:orange")
    _save(figure, path)


def plot_remote_memory(rows: Sequence[remote_memory.Row], path: str) -> None:
    """Memory used and remote requests over the limit."""
    figure = _figure()
    axes = figure.subplots()
    limits = [row.limit_bytes / 1e9 for row in rows]
    axes.plot(limits, [row.peak_used_bytes / 1e9 for row in rows], "o-", color="tab:blue", label="at most")
    axes.plot(limits, [row.mean_used_bytes / 1e9 for row in rows], "o:", color="tab:blue", label="on average")
    axes.set(xlabel="limit (GB)", ylabel="used by remote chunks (GB)", xlim=(0, None), ylim=(0, None))
    axes.legend()
    requests = axes.twinx()
    requests.plot(limits, [row.remote_requests for row in rows], "s--", color="tab:orange")
    requests.set(ylabel="remote requests", ylim=(0, None))
    _color(axes, "tab:blue")
    _color(requests, "tab:orange")
    _save(figure, path)


def plot_related(rows: Sequence[related.Row], path: str) -> None:
    """The cost of each system, and how well it shuffles: mates in a batch, relative to chance, over storage time."""
    figure = _figure()
    axes = figure.subplots()
    places = [(row.storage_s / 3600, row.mate_pairs / row.mate_pairs_if_random) for row in rows]
    for row, place in zip(rows, places, strict=True):
        ours = row.system in ("slot", "pool")
        # Hollow: some samples come several times an epoch, others not at all.
        fill = "full" if row.exactly_once else "none"
        axes.plot(*place, "s" if ours else "o", color="tab:orange" if ours else "tab:blue", fillstyle=fill)
    axes.axhline(1, linestyle=":", color="gray", zorder=0)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="time of storage in an epoch, by the model (h)",
        ylabel="mates in a batch (1: random)",
    )
    axes.margins(0.1, 0.2)
    # Room for the names of the marks on the right.
    axes.set_xlim(right=8 * max(hours for hours, _ in places))
    figure.canvas.draw()
    _label(axes, [row.title for row in rows], places)
    _save(figure, path)


def _label(axes: Any, titles: Sequence[str], places: Sequence[tuple[float, float]]) -> None:
    """The names of the systems beside their marks, where they cover neither a mark nor another name."""
    marks = [axes.transData.transform(place) for place in places]
    taken = [(x - 8, x + 8, y - 8, y + 8) for x, y in marks]
    rightmost_first = sorted(zip(titles, places, marks, strict=True), key=lambda each: each[1], reverse=True)
    for title, place, (x, y) in rightmost_first:
        begin, width = x + 15, len(title) * _LETTER_PX[0]
        for line in (0, *(each for lines in range(1, 20) for each in (lines, -lines))):
            center = y + line * _LETTER_PX[1]
            box = (begin, begin + width, center - _LETTER_PX[1] / 2, center + _LETTER_PX[1] / 2)
            if not any(_meet(box, other) for other in taken):
                break
        taken.append(box)
        axes.annotate(
            title,
            place,
            (15 * 72 / _DPI, (center - y) * 72 / _DPI),
            textcoords="offset points",
            fontsize=7,
            va="center",
            arrowprops={"arrowstyle": "-", "linewidth": 0.4} if line else None,
        )


def _meet(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[1] and other[0] < one[1] and one[2] < other[3] and other[2] < one[3]


def _color(axes: Any, color: str) -> None:
    """Two scales share the picture: each has the color of its curve."""
    axes.yaxis.label.set_color(color)
    axes.tick_params(axis="y", colors=color)


def _save(figure: Any, path: str) -> None:
    """Text of an SVG stays text, and the same figures make the same file."""
    matplotlib = importlib.import_module("matplotlib")
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "redoxfs"}):
        figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)


def _figure() -> Any:
    """A figure of its own: pyplot's state is for interactive use."""
    try:
        module = importlib.import_module("matplotlib.figure")
    except ImportError:
        raise NoPlotsError from None
    return module.Figure(figsize=(7, 4.5), dpi=_DPI, layout="constrained")
