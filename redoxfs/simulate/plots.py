"""The curves of §5.4 and §5.5 as pictures. matplotlib is optional: `redoxfs[plot]`."""

import importlib
from collections.abc import Sequence
from typing import Any

from redoxfs.simulate import chunk_size, remote_memory


class NoPlotsError(Exception):
    """matplotlib is not installed."""

    def __init__(self) -> None:
        super().__init__("--plot needs matplotlib; to install it: pip install 'redoxfs[plot]'")


def check() -> None:
    """Raises NoPlotsError where plots cannot be drawn. Call it before minutes of simulation."""
    _figure()


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
    figure.savefig(path)


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
    figure.savefig(path)


def _color(axes: Any, color: str) -> None:
    """Two scales share the picture: each has the color of its curve."""
    axes.yaxis.label.set_color(color)
    axes.tick_params(axis="y", colors=color)


def _figure() -> Any:
    """A figure of its own: pyplot's state is for interactive use."""
    try:
        module = importlib.import_module("matplotlib.figure")
    except ImportError:
        raise NoPlotsError from None
    return module.Figure(figsize=(7, 4.5), dpi=150, layout="constrained")
