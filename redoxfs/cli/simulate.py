"""`redoxfs simulate`: the protocol without data, at any scale: the paper's tables, and what a policy would cost.

Each table is a function of `redoxfs.simulate` that gives row after row. They are printed when all are there; until
then a terminal is told on stderr how far it is.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from redoxfs.chunks.storage_speed import StorageSpeed
from redoxfs.launch.errors import UsageError
from redoxfs.launch.sizes import format_bytes, format_seconds
from redoxfs.simulate import breakdown, chunk_size, plots, policies, randomness, remote_memory
from redoxfs.simulate.quality import BATCH

Row = TypeVar("Row")

Column = tuple[str, Callable[[Row], str]]
"""A heading, and how a row's value under it is written."""

# Wider than any row: off a terminal a table does not fold.
_UNFOLDED_COLUMNS = 1 << 16


def run(arguments: argparse.Namespace) -> int:
    """Print the table that was asked for."""
    if getattr(arguments, "classes", 1) > arguments.files:
        raise UsageError(f"--classes {arguments.classes} is more than there are --files, {arguments.files}")
    try:
        if getattr(arguments, "plot", None):
            plots.check()
        _TABLES[arguments.table](arguments)
    except plots.NoPlotsError as missing:
        raise UsageError(str(missing)) from None
    except MemoryError:
        raise UsageError(f"--files {arguments.files}: this machine has too little memory to simulate them") from None
    return 0


def _breakdown(arguments: argparse.Namespace) -> None:
    scale = breakdown.PAPER
    if arguments.files != scale.files:
        scale = scale.shrunk_to(arguments.files)
    rows = _gathered(breakdown.breakdown(scale, seed=arguments.seed), len(breakdown.VARIANTS))
    if arguments.json:
        _print_json([asdict(row) for row in rows])
        return
    compared = arguments.files == breakdown.PAPER.files
    columns: list[Column[breakdown.Row]] = [
        ("variant", lambda row: row.variant),
        ("loads", lambda row: f"{row.loads:,}"),
        ("remote requests", lambda row: f"{row.remote_requests:,}"),
    ]
    if compared:
        columns += [
            ("paper: loads", lambda row: f"{row.paper_loads:,} ({row.loads / row.paper_loads - 1:+.1%})"),
            (
                "paper: remote requests",
                lambda row: (
                    f"{row.paper_remote_requests:,} ({row.remote_requests / row.paper_remote_requests - 1:+.1%})"
                ),
            ),
            ("independent: loads", lambda row: f"{row.loads / row.expected_loads - 1:+.1%}"),
            ("remote requests", lambda row: f"{row.remote_requests / row.expected_remote_requests - 1:+.1%}"),
        ]
    _print_rows(
        f"{scale.nodes} nodes, {scale.files:,} files, chunks of {scale.chunk_size}, {scale.chunks_per_vc} chunks a VC",
        columns,
        rows,
    )


def _policies(arguments: argparse.Namespace) -> None:
    dataset = _dataset(arguments)
    measured = (policies.measure(arguments.policy, dataset, nodes=arguments.nodes) for _ in range(1))
    (row,) = _gathered(measured, 1)
    if arguments.json:
        _print_json(asdict(row))
        return
    columns: list[Column[policies.Row]] = [
        ("policy", lambda row: row.policy),
        ("resident", lambda row: f"{row.resident_share:.2%}"),
        ("loads per chunk", lambda row: f"{row.loads_per_chunk:.3f}"),
        ("read amplification", lambda row: f"{row.read_amplification:.3f}"),
        ("as packed", lambda row: f"{row.read_amplification_packed:.3f}"),
        ("waited for a load", lambda row: f"{row.demand_load_share:.3%}"),
        ("from other nodes", lambda row: f"{row.remote_share:.2%}"),
        ("remote requests", lambda row: f"{row.remote_request_share:.2%}"),
    ]
    skew = f" (Zipf, exponent {row.skew:g})" if row.skew else ""
    nodes = "1 node" if row.nodes == 1 else f"{row.nodes} nodes"
    _print_rows(
        f"{row.files:,} files of {row.classes:,} classes{skew}, {row.chunks:,} chunks of {row.chunk_size}, {nodes}",
        columns,
        [row],
    )


def _chunk_size(arguments: argparse.Namespace) -> None:
    storage = StorageSpeed(arguments.seek_time, arguments.bandwidth)
    sizes = [size for size in chunk_size.SIZES if size <= arguments.files]
    found = chunk_size.chunk_sizes(arguments.policy, _dataset(arguments), storage, sizes=sizes)
    rows = _gathered(found, len(sizes))
    if arguments.plot:
        _save(arguments.plot, lambda path: plots.plot_chunk_sizes(rows, path))
    if arguments.json:
        _print_json([asdict(row) for row in rows])
        return
    best = min(rows, key=lambda row: row.epoch_seconds)
    columns: list[Column[chunk_size.Row]] = [
        ("chunk size", lambda row: f"{row.chunk_size}"),
        ("loads per chunk", lambda row: f"{row.loads_per_chunk:.3f}"),
        ("bytes read", lambda row: format_bytes(row.bytes_read)),
        ("from storage", lambda row: f"{format_bytes(int(row.bytes_per_s))}/s"),
        ("epoch", lambda row: format_seconds(row.epoch_seconds) + (" (least)" if row is best else "")),
    ]
    _print_rows(
        f"{arguments.policy}, memory for {arguments.resident:.3g} of {arguments.files:,} files; a read costs "
        f"{storage.seek_s * 1000:g} ms and its bytes at {format_bytes(int(storage.bytes_per_s))}/s",
        columns,
        rows,
    )


def _remote_memory(arguments: argparse.Namespace) -> None:
    scale = breakdown.PAPER
    limits = remote_memory.LIMITS_BYTES
    if arguments.files != scale.files:
        limits = tuple(limit * arguments.files // scale.files for limit in limits)
        scale = scale.shrunk_to(arguments.files)
    rows = _gathered(remote_memory.remote_memory(scale, seed=arguments.seed, limits_bytes=limits), len(limits))
    if arguments.plot:
        _save(arguments.plot, lambda path: plots.plot_remote_memory(rows, path))
    if arguments.json:
        _print_json([asdict(row) for row in rows])
        return
    columns: list[Column[remote_memory.Row]] = [
        ("limit", lambda row: format_bytes(row.limit_bytes)),
        ("used at most", lambda row: format_bytes(row.peak_used_bytes)),
        ("on average", lambda row: format_bytes(row.mean_used_bytes)),
        ("remote requests", lambda row: f"{row.remote_requests:,}"),
        ("loads", lambda row: f"{row.loads:,}"),
    ]
    _print_rows(f"remote memory of each of {scale.nodes} nodes, {scale.files:,} files", columns, rows)


def _randomness(arguments: argparse.Namespace) -> None:
    bound = randomness.bound()
    sizes, residents = arguments.chunk_size or [64, 16, 4], arguments.resident or [0.25, 0.1, 0.02]
    names = arguments.policy or list(policies.POLICIES)
    dataset = policies.Dataset(arguments.files, arguments.classes, arguments.skew, seed=arguments.seed)
    if arguments.files < BATCH:
        raise UsageError(f"--files {arguments.files} do not make one batch of {BATCH}")
    found = randomness.randomness(dataset, policies=names, chunk_sizes=sizes, residents=residents)
    rows = _gathered(found, len(sizes) * (1 + len(residents) * (1 + len(names))))
    if arguments.json:
        _print_json({"bound": asdict(bound), "quality": [asdict(row) for row in rows]})
        return
    print(
        f"Orders of a VC's samples at least (§4, K = {bound.chunk_size}, F = {bound.files:,}, "
        f"M = {bound.virtual_chunks:,}): {bound.randomness_at_least}; mapped to one at most: {bound.most_mapped_to_one}"
    )
    columns: list[Column[randomness.Row]] = [
        ("policy", lambda row: row.policy),
        ("chunk size", lambda row: f"{row.chunk_size}"),
        ("memory", lambda row: "" if row.resident is None else f"{row.resident:.3g}"),
        ("displacement", lambda row: f"{row.displacement:.4f}"),
        ("rank correlation", lambda row: f"{row.rank_correlation:+.4f}"),
        (f"mates in {BATCH}", lambda row: f"{row.mate_pairs:.2f}"),
        ("in the last 5 %", lambda row: f"{row.mate_pairs_at_end:.2f}"),
        ("if random", lambda row: f"{row.mate_pairs_if_random:.2f}"),
    ]
    _print_rows(f"shuffle quality, {arguments.files:,} files of {arguments.classes:,} classes", columns, rows)


def _dataset(arguments: argparse.Namespace) -> policies.Dataset:
    return policies.Dataset(
        files=arguments.files,
        classes=arguments.classes,
        skew=arguments.skew,
        chunk_size=getattr(arguments, "chunk_size", 1),
        resident=arguments.resident,
        seed=arguments.seed,
    )


def _gathered(rows: Iterable[Row], count: int) -> list[Row]:
    """All of ``count`` rows; a terminal is told how many there are so far."""
    if not sys.stderr.isatty():
        return list(rows)
    from rich.console import Console
    from rich.progress import track

    return list(track(rows, "simulating", total=count, console=Console(stderr=True), transient=True))


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def _print_rows(title: str, columns: Sequence[Column[Row]], rows: Iterable[Row]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for heading, _ in columns:
        table.add_column(heading, justify="left" if heading == columns[0][0] else "right")
    for row in rows:
        table.add_row(*(Text(written(row)) for _, written in columns))
    console = Console()
    if not console.is_terminal:
        console = Console(width=_UNFOLDED_COLUMNS)
    console.print(Text(title, style="table.title"))
    console.print(table)


def _save(path: str, draw: Callable[[str], None]) -> None:
    """Draw before anything is printed, so that a file that cannot be written is the only thing said."""
    try:
        draw(path)
    except (OSError, ValueError) as failure:
        raise UsageError(f"--plot {path}: {failure}") from None


_TABLES: dict[str, Callable[[argparse.Namespace], None]] = {
    "breakdown": _breakdown,
    "policies": _policies,
    "chunk-size": _chunk_size,
    "remote-memory": _remote_memory,
    "randomness": _randomness,
}
