"""`redoxfs simulate`: the protocol without data, at any scale: the paper's tables, and the cost of a policy.

Each table is a function of `redoxfs.simulate` that yields rows. They are printed together at the end; until then a
terminal shows the progress on stderr.
"""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from redoxfs.chunks.storage_speed import StorageSpeed
from redoxfs.cli.options.simulations import (
    BreakdownOptions,
    ChunkSizeOptions,
    PoliciesOptions,
    RandomnessOptions,
    RelatedOptions,
    RemoteMemoryOptions,
)
from redoxfs.launch.errors import UsageError
from redoxfs.launch.sizes import format_bytes, format_seconds
from redoxfs.simulate import breakdown, chunk_size, plots, policies, randomness, related, remote_memory
from redoxfs.telemetry.quality import BATCH

Row = TypeVar("Row")

Column = tuple[str, Callable[[Row], str]]
"""A heading, and the text of a row's value under it."""

# Wider than any row: off a terminal a table does not fold.
_UNFOLDED_COLUMNS = 1 << 16


Options = (
    BreakdownOptions | PoliciesOptions | ChunkSizeOptions | RemoteMemoryOptions | RandomnessOptions | RelatedOptions
)


def run(options: Options) -> int:
    """Print a table."""
    classes = getattr(options, "classes", 1)
    if classes > options.files:
        raise UsageError(f"--classes {classes} is more than --files {options.files}")
    try:
        match options:
            case BreakdownOptions():
                _breakdown(options)
            case PoliciesOptions():
                _policies(options)
            case ChunkSizeOptions():
                _chunk_size(options)
            case RemoteMemoryOptions():
                _remote_memory(options)
            case RandomnessOptions():
                _randomness(options)
            case RelatedOptions():
                _related(options)
    except plots.NoPlotsError as missing:
        raise UsageError(str(missing)) from None
    except MemoryError:
        raise UsageError(f"--files {options.files}: this machine has too little memory to simulate them") from None
    return 0


def _breakdown(options: BreakdownOptions) -> None:
    scale = breakdown.PAPER
    if options.files != scale.files:
        scale = scale.shrunk_to(options.files)
    rows = _gathered(breakdown.breakdown(scale, seed=options.seed), len(breakdown.VARIANTS))
    if options.json:
        _print_json([asdict(row) for row in rows])
        return
    compared = options.files == breakdown.PAPER.files
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


def _policies(options: PoliciesOptions) -> None:
    dataset = _dataset(options)
    measured = (policies.measure(options.policy, dataset, nodes=options.nodes) for _ in range(1))
    (row,) = _gathered(measured, 1)
    if options.json:
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


def _chunk_size(options: ChunkSizeOptions) -> None:
    _check_plot(options.plot)
    storage = StorageSpeed(options.seek_time_s, options.bandwidth)
    sizes = [size for size in chunk_size.SIZES if size <= options.files]
    found = chunk_size.chunk_sizes(options.policy, _dataset(options), storage, sizes=sizes)
    rows = _gathered(found, len(sizes))
    if options.plot:
        _save(options.plot, lambda path: plots.plot_chunk_sizes(rows, path))
    if options.json:
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
        f"{options.policy}, memory for {options.resident:.3g} of {options.files:,} files; a read costs "
        f"{storage.seek_s * 1000:g} ms and its bytes at {format_bytes(int(storage.bytes_per_s))}/s",
        columns,
        rows,
    )


def _remote_memory(options: RemoteMemoryOptions) -> None:
    _check_plot(options.plot)
    scale = breakdown.PAPER
    limits: Sequence[int] = remote_memory.LIMITS_BYTES
    if options.files != scale.files:
        limits = tuple(limit * options.files // scale.files for limit in limits)
        scale = scale.shrunk_to(options.files)
    rows = _gathered(remote_memory.remote_memory(scale, seed=options.seed, limits_bytes=limits), len(limits))
    if options.plot:
        _save(options.plot, lambda path: plots.plot_remote_memory(rows, path))
    if options.json:
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


def _randomness(options: RandomnessOptions) -> None:
    bound = randomness.bound()
    sizes, residents = list(options.chunk_sizes), list(options.residents)
    names = list(options.policies or policies.POLICIES)
    dataset = policies.Dataset(options.files, options.classes, options.skew, seed=options.seed)
    if options.files < BATCH:
        raise UsageError(f"--files {options.files} is less than one batch of {BATCH}")
    found = randomness.randomness(dataset, policies=names, chunk_sizes=sizes, residents=residents)
    rows = _gathered(found, len(sizes) * (1 + len(residents) * (1 + len(names))))
    if options.json:
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
    _print_rows(f"shuffle quality, {options.files:,} files of {options.classes:,} classes", columns, rows)


def _related(options: RelatedOptions) -> None:
    _check_plot(options.plot)
    if options.files < max(BATCH, options.nodes * options.chunk_size):
        raise UsageError(f"--files {options.files} is less than a batch of {BATCH}, or than a chunk for each node")
    setting = related.Setting(
        files=options.files - options.files % options.nodes,
        nodes=options.nodes,
        resident=options.resident,
        chunk_size=options.chunk_size,
        classes=options.classes,
        seed=options.seed,
    )
    speed = StorageSpeed(options.seek_time_s, options.bandwidth)
    names = list(options.systems or related.SYSTEMS)
    rows = _gathered(related.compare(setting, speed, names=names), len(names))
    if options.plot:
        _save(options.plot, lambda path: plots.plot_related(rows, path))
    if options.json:
        _print_json(related.report(setting, speed, rows))
        return
    columns: list[Column[related.Row]] = [
        ("system", lambda row: row.title),
        ("file reads", lambda row: f"{row.file_reads:,}"),
        ("chunk reads", lambda row: f"{row.chunk_reads:,}"),
        ("bytes read", lambda row: format_bytes(row.file_bytes + row.chunk_bytes)),
        ("storage time", lambda row: format_seconds(row.storage_s)),
        ("messages", lambda row: f"{row.messages:,}"),
        ("bytes between nodes", lambda row: format_bytes(row.sent_bytes)),
        ("memory", lambda row: f"{row.peak_share:.1%}"),
        ("samples seen", lambda row: f"{row.seen_share:.1%}"),
        ("displacement", lambda row: "" if row.displacement is None else f"{row.displacement:.4f}"),
        ("rank correlation", lambda row: "" if row.rank_correlation is None else f"{row.rank_correlation:+.4f}"),
        (f"mates in {BATCH}", lambda row: f"{row.mate_pairs:.2f}"),
        ("in the last 5 %", lambda row: f"{row.mate_pairs_at_end:.2f}"),
        ("if random", lambda row: f"{row.mate_pairs_if_random:.2f}"),
        ("same node", lambda row: "" if row.same_node_share is None else f"{row.same_node_share:.1%}"),
    ]
    nodes = "1 node" if setting.nodes == 1 else f"{setting.nodes} nodes"
    _print_rows(
        f"an epoch of {setting.files:,} files, chunks of {setting.chunk_size}, {nodes}, memory for "
        f"{setting.resident:.3g} of the files; a read costs {speed.seek_s * 1000:g} ms and its bytes at "
        f"{format_bytes(int(speed.bytes_per_s))}/s",
        columns,
        rows,
    )


def _dataset(options: PoliciesOptions | ChunkSizeOptions) -> policies.Dataset:
    return policies.Dataset(
        files=options.files,
        classes=options.classes,
        skew=options.skew,
        chunk_size=options.chunk_size if isinstance(options, PoliciesOptions) else 1,
        resident=options.resident,
        seed=options.seed,
    )


def _gathered(rows: Iterable[Row], count: int) -> list[Row]:
    """All ``count`` rows; a terminal shows how many there are so far."""
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
    """Draw before anything is printed, so that a file that cannot be written gives one line alone."""
    try:
        draw(path)
    except (OSError, ValueError) as failure:
        raise UsageError(f"--plot {path}: {failure}") from None


def _check_plot(path: str | None) -> None:
    """Fail before the simulation if it could not be drawn."""
    if path:
        plots.check()
