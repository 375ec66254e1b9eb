"""`redoxfs stats`: a line for each interval, with what a mount did in it."""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import Any

from redoxfs.cli.options.watching import StatsOptions
from redoxfs.cli.status import read_stats
from redoxfs.launch.control_files import parsed_stats, understood
from redoxfs.launch.errors import MountpointError
from redoxfs.launch.sizes import format_bytes, format_time
from redoxfs.telemetry import Rates

LINES_TO_A_HEADER = 20
"""On a terminal, where the header scrolls away."""

NONE = "-"

COLUMNS = (
    ("time", 8),
    ("opens/s", 8),
    ("storage MiB/s", 13),
    ("served MiB/s", 12),
    ("redirected", 10),
    ("p50", 7),
    ("p99", 7),
    ("waiting", 7),
    ("loads", 5),
    ("memory", 10),
    ("laps", 7),
)


def run(options: StatsOptions) -> int:
    """Print lines until the count is reached, Ctrl-C, or the end of the mount."""
    try:
        lines = _intervals(options)
        for number, rates in enumerate(lines if options.count is None else islice(lines, options.count)):
            if options.json:
                print(json.dumps({"time": time.time(), **asdict(rates)}), flush=True)
                continue
            if number == 0 or (sys.stdout.isatty() and number % LINES_TO_A_HEADER == 0):
                print(joined(name for name, _ in COLUMNS))
            print(joined(cells_of(rates)), flush=True)
    except KeyboardInterrupt:
        # The usual end of a view that goes on by itself.
        return 0
    return 0


def _intervals(options: StatsOptions) -> Iterator[Rates]:
    before, began_s = _snapshot(options), time.monotonic()
    due_s = began_s
    while True:
        # No drift. A snapshot that takes longer than the interval delays the next.
        now_s = time.monotonic()
        due_s = max(due_s + options.interval_s, now_s)
        time.sleep(due_s - now_s)
        after, now_s = _later_snapshot(options), time.monotonic()
        with understood(options.mountpoint):
            rates = Rates.between(before, after, now_s - began_s)
            list(cells_of(rates))
        yield rates
        before, began_s = after, now_s


def _snapshot(options: StatsOptions) -> dict[str, Any]:
    path, text, _ = read_stats(options.mountpoint, options.timeout_s)
    with understood(path):
        return parsed_stats(text)


def _later_snapshot(options: StatsOptions) -> dict[str, Any]:
    try:
        return _snapshot(options)
    except MountpointError as error:
        raise MountpointError(f"the mount has ended: {error}") from None


def cells_of(rates: Rates) -> Iterator[str]:
    share = rates.redirected_share
    yield time.strftime("%H:%M:%S")
    yield f"{rates.opens_per_s:,.0f}"
    yield f"{rates.storage_bytes_per_s / (1 << 20):,.1f}"
    yield f"{rates.served_bytes_per_s / (1 << 20):,.1f}"
    yield NONE if share is None else f"{share:.1%}"
    yield time_text(rates.wait_p50_s)
    yield time_text(rates.wait_p99_s)
    yield f"{rates.waiting_opens:,}"
    yield f"{rates.loads_in_flight:,}"
    yield format_bytes(rates.memory_used_bytes)
    yield f"{rates.laps:,.2f}"


def time_text(seconds: float | None) -> str:
    """Three digits at most, with a unit."""
    return NONE if seconds is None else format_time(seconds)


def joined(cells: Iterator[str]) -> str:
    return "  ".join(cell.rjust(width) for cell, (_, width) in zip(cells, COLUMNS, strict=True))
