"""The paper's tables, and other systems beside redoxfs, by the protocol without data.

    python scripts/research/simulate.py breakdown       loads and remote requests without each optimization (§5.3)
    python scripts/research/simulate.py chunk-size      loads, bytes and epoch time over the chunk size (§5.5)
    python scripts/research/simulate.py remote-memory   how much of a memory limit remote chunks use, and save (§5.4)
    python scripts/research/simulate.py randomness      the bound of §4, and measured shuffle quality
    python scripts/research/simulate.py passes          what exact epochs cost jobs that leave files out or break off
    python scripts/research/simulate.py epoch-times     epoch times of the paper's nine settings, in virtual time (§5.2)
    python scripts/research/simulate.py related         storage, network, memory and shuffle of 17 systems (§2.2)

Each table is a function that yields rows. They are printed together at the end, as JSON with --json; until then a
terminal shows the progress on stderr. `redoxfs simulate policies` has the cost of one policy.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

# The modules of this folder import each other by name.
sys.path.insert(0, str(Path(__file__).parent))

import breakdown
import chunk_size
import epoch_settings
import epoch_times
import passes
import plots
import randomness
import related
import remote_memory

from redoxfs.chunks import StorageSpeed
from redoxfs.cli import values
from redoxfs.cli.table import show_table
from redoxfs.launch.defaults import POLICIES
from redoxfs.launch.errors import UsageError
from redoxfs.launch.sizes import format_bytes, format_seconds, parse_size
from redoxfs.simulate.cluster import PAPER
from redoxfs.simulate.policies import Dataset
from redoxfs.telemetry.quality import BATCH

Row = TypeVar("Row")

Column = tuple[str, Callable[[Row], str]]
"""A heading, and the text of a row's value under it."""

# ImageNet-1k in round numbers.
_FILES = 1_280_000

# With the bandwidth of the paper's smaller cluster, 0.38 GB/s, the seek time at which its best chunk size is the best.
_SEEK_TIME_S = 0.02
_BANDWIDTH_BYTES_PER_S = 380e6

_EACH = ("each", 0.0)

# Enough for all systems to be in their steady state, and few enough for a test.
_QUICK_FILES = 32_000


def main(words: Sequence[str] | None = None) -> int:
    try:
        given = _parser().parse_args(words)
        if hasattr(given, "classes") and given.classes > given.files:
            raise UsageError(f"--classes {given.classes} is more than --files {given.files}")
        if getattr(given, "plot", None):
            # Before minutes of simulation.
            plots.check()
        given.run(given)
    except (UsageError, plots.NoPlotsError) as refusal:
        print(f"simulate.py: {refusal}", file=sys.stderr)
        return 2
    except MemoryError:
        print(f"simulate.py: --files {given.files}: this machine has too little memory", file=sys.stderr)
        return 2
    return 0


def _breakdown(given: argparse.Namespace) -> None:
    scale = PAPER if given.files == PAPER.files else PAPER.shrunk_to(given.files)
    rows = _gathered(breakdown.breakdown(scale, seed=given.seed), len(breakdown.VARIANTS))
    if given.json:
        _print_json([asdict(row) for row in rows])
        return
    columns: list[Column[breakdown.Row]] = [
        ("variant", lambda row: row.variant),
        ("loads", lambda row: f"{row.loads:,}"),
        ("remote requests", lambda row: f"{row.remote_requests:,}"),
    ]
    if scale is PAPER:
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


def _chunk_size(given: argparse.Namespace) -> None:
    storage = StorageSpeed(given.seek_time, given.bandwidth)
    sizes = [size for size in chunk_size.SIZES if size <= given.files]
    dataset = Dataset(given.files, given.classes, given.skew, chunk_size=1, resident=given.resident, seed=given.seed)
    rows = _gathered(chunk_size.chunk_sizes(given.policy, dataset, storage, sizes=sizes), len(sizes))
    _plot(given.plot, lambda path: plots.plot_chunk_sizes(rows, path))
    if given.json:
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
        f"{given.policy}, memory for {given.resident:.3g} of {given.files:,} files; a read costs "
        f"{storage.seek_s * 1000:g} ms and its bytes at {format_bytes(int(storage.bytes_per_s))}/s",
        columns,
        rows,
    )


def _remote_memory(given: argparse.Namespace) -> None:
    scale, limits = PAPER, remote_memory.LIMITS_BYTES
    if given.files != scale.files:
        limits = tuple(limit * given.files // scale.files for limit in limits)
        scale = scale.shrunk_to(given.files)
    rows = _gathered(remote_memory.remote_memory(scale, seed=given.seed, limits_bytes=limits), len(limits))
    _plot(given.plot, lambda path: plots.plot_remote_memory(rows, path))
    if given.json:
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


def _randomness(given: argparse.Namespace) -> None:
    if given.files < BATCH:
        raise UsageError(f"--files {given.files} is less than one batch of {BATCH}")
    bound = randomness.bound()
    sizes, residents = given.chunk_sizes or [64, 16, 4], given.residents or [0.25, 0.1, 0.02]
    names = given.policies or POLICIES
    dataset = Dataset(given.files, given.classes, given.skew, seed=given.seed)
    found = randomness.randomness(dataset, policies=names, chunk_sizes=sizes, residents=residents)
    rows = _gathered(found, len(sizes) * (1 + len(residents) * (1 + len(names))))
    if given.json:
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
    _print_rows(f"shuffle quality, {given.files:,} files of {given.classes:,} classes", columns, rows)


def _passes(given: argparse.Namespace) -> None:
    dataset = Dataset(given.files, given.classes, chunk_size=given.chunk_size, resident=given.resident, seed=given.seed)
    jobs = given.jobs or list(passes.JOBS)
    rows = _gathered(passes.passes(dataset, jobs=jobs), len(jobs))
    if given.json:
        _print_json([asdict(row) for row in rows])
        return
    columns: list[Column[passes.Row]] = [
        ("job", lambda row: row.job),
        ("opens per file", lambda row: f"{row.opens_share:.4f}"),
        ("loads per chunk", lambda row: f"{row.loads_per_chunk:.4f}"),
        ("samples read per open", lambda row: f"{row.reads_per_open:.4f}"),
        ("read singly, of 1,000 opens", lambda row: f"{1000 * row.single_reads:.3f}"),
        ("waited, of 1,000 opens", lambda row: f"{1000 * row.demand_load_share:.3f}"),
        ("twice", lambda row: f"{row.twice}"),
        ("rank correlation", lambda row: f"{row.rank_correlation:+.4f}"),
        ("bytes a sample", lambda row: f"{row.bytes_a_sample:.1f}"),
    ]
    _print_rows(
        f"epochs of {given.files:,} files of {given.classes:,} classes, chunks of {given.chunk_size}, memory for "
        f"{given.resident:.3g} of the files",
        columns,
        rows,
    )


def _related(given: argparse.Namespace) -> None:
    if given.files < max(BATCH, given.nodes * given.chunk_size):
        raise UsageError(f"--files {given.files} is less than a batch of {BATCH}, or than a chunk for each node")
    setting = related.Setting(
        files=given.files - given.files % given.nodes,
        nodes=given.nodes,
        resident=given.resident,
        chunk_size=given.chunk_size,
        classes=given.classes,
        seed=given.seed,
    )
    speed = StorageSpeed(given.seek_time, given.bandwidth)
    names = given.systems or list(related.SYSTEMS)
    rows = _gathered(related.compare(setting, speed, names=names), len(names))
    _plot(given.plot, lambda path: plots.plot_related(rows, path))
    if given.json:
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


def _epoch_times(given: argparse.Namespace) -> None:
    names = given.ways or epoch_times.NAMES
    settings = [
        epoch_times.shrunk(epoch_settings.SETTINGS[name], given.files or epoch_settings.SETTINGS[name].workload.files)
        for name in given.settings or epoch_settings.SETTINGS
    ]
    measure = epoch_times.measure_varied if given.vary == _EACH else epoch_times.measure
    if given.vary and given.vary != _EACH:
        settings = [epoch_times.varied(setting, *given.vary) for setting in settings]
    rows = [
        row
        for setting in settings
        for name in names
        if setting.nodes > 1 or name != epoch_times.NO_PREFETCH
        for row in measure(setting, name, seed=given.seed)
    ]
    _plot(given.plot, partial(plots.plot_epoch_times, rows))
    if given.json:
        _print_json(epoch_times.by_figure(rows) if given.vary == _EACH else [asdict(row) for row in rows])
        return
    seconds = {(row.setting, row.model, row.varied, row.way): row.seconds for row in rows}

    def over(way: str) -> Callable[[epoch_times.Row], str]:
        def written(row: epoch_times.Row) -> str:
            base = seconds.get((row.setting, row.model, row.varied, way))
            return "" if base is None else f"{base / row.seconds:.2f}"

        return written

    columns: list[Column[epoch_times.Row]] = [
        ("setting", lambda row: row.setting),
        ("model", lambda row: row.model),
        ("way", lambda row: row.way),
        ("epoch", lambda row: f"{row.seconds / 3600:.3f} h"),
        ("x PyTorch", over("PyTorch")),
        ("x CoorDL", over("CoorDL")),
        ("read", lambda row: f"{row.read:.2f} x"),
        ("limit", lambda row: f"{row.limit}, {row.used:.0%}"),
    ]
    if given.vary == _EACH:
        columns.insert(2, ("varied", lambda row: row.varied))
    _print_rows("the third epoch, in virtual time", columns, rows)


def _parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = _Parser("scripts/research/simulate.py", description=__doc__, formatter_class=formatter)
    tables = parser.add_subparsers(dest="table", metavar="TABLE", required=True)

    def table(
        name: str, run: Callable[[argparse.Namespace], None], files: int | None = _FILES
    ) -> argparse.ArgumentParser:
        made = tables.add_parser(name)
        made.set_defaults(run=run)
        made.add_argument(
            "--files", metavar="N", type=values.files, default=files, help=f"samples ({files or 'the paper has'})"
        )
        made.add_argument("--seed", metavar="N", type=values.seed, default=0, help="same seed, same figures")
        made.add_argument("--json", action="store_true", help="print JSON")
        return made

    def share(made: argparse.ArgumentParser, default: float) -> None:
        made.add_argument(
            "--resident", metavar="SHARE", type=values.share, default=default, help="samples in memory (%(default)s)"
        )

    def classes(made: argparse.ArgumentParser) -> None:
        made.add_argument("--classes", metavar="N", type=values.files, default=1000, help="(%(default)s)")

    def skew(made: argparse.ArgumentParser) -> None:
        made.add_argument("--skew", metavar="S", type=values.skew, default=0.0, help="Zipf's exponent (%(default)s)")

    def storage(made: argparse.ArgumentParser) -> None:
        made.add_argument(
            "--seek-time", metavar="S", type=values.seconds, default=_SEEK_TIME_S, help="of a read (%(default)s)"
        )
        made.add_argument(
            "--bandwidth",
            metavar="SIZE",
            type=_bandwidth,
            default=_BANDWIDTH_BYTES_PER_S,
            help="(380MB a second)",
        )

    def plot(made: argparse.ArgumentParser) -> None:
        made.add_argument("--plot", metavar="FILE.png", help="also draw it (needs redoxfs[plot])")

    table("breakdown", _breakdown, PAPER.files)
    made = table("chunk-size", _chunk_size)
    classes(made)
    skew(made)
    made.add_argument("--policy", choices=POLICIES, default="slot", help="(%(default)s)")
    share(made, 0.1)
    storage(made)
    plot(made)
    plot(table("remote-memory", _remote_memory, PAPER.files))
    made = table("randomness", _randomness)
    classes(made)
    skew(made)
    made.add_argument("--policy", dest="policies", choices=POLICIES, action="append", help="may be repeated (all)")
    made.add_argument(
        "--chunk-size", dest="chunk_sizes", metavar="N", type=values.chunk_size, action="append", help="(64, 16, 4)"
    )
    made.add_argument(
        "--resident", dest="residents", metavar="SHARE", type=values.share, action="append", help="(25%%, 10%%, 2%%)"
    )
    made = table("passes", _passes)
    classes(made)
    share(made, 0.1)
    made.add_argument("--chunk-size", metavar="N", type=values.chunk_size, default=64, help="(%(default)s)")
    made.add_argument("--job", dest="jobs", choices=passes.JOBS, action="append", help="may be repeated (all)")
    made = table("epoch-times", _epoch_times, None)
    made.add_argument("--setting", dest="settings", choices=epoch_settings.SETTINGS, action="append", help="(all)")
    made.add_argument("--way", dest="ways", choices=epoch_times.NAMES, action="append", help="may be repeated (all)")
    made.add_argument(
        "--vary",
        metavar="NAME=FACTOR",
        type=_varied,
        help="change one figure, such as latency_s=1.25; each: one at a time, a quarter down and up",
    )
    plot(made)
    # Three nodes whose memory holds a quarter of ImageNet-1k, as in §5.2.
    made = table("related", _related)
    classes(made)
    made.add_argument("--quick", dest="files", action="store_const", const=_QUICK_FILES, help="seconds, not minutes")
    made.add_argument("--system", dest="systems", choices=related.SYSTEMS, action="append", help="may be repeated")
    made.add_argument("--nodes", metavar="N", type=values.nodes, default=3, help="(%(default)s)")
    share(made, 0.25)
    made.add_argument("--chunk-size", metavar="N", type=values.chunk_size, default=64, help="(%(default)s)")
    storage(made)
    plot(made)
    return parser


def _bandwidth(text: str) -> float:
    try:
        return float(parse_size(text, None))
    except UsageError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes a second; write it like 200MB") from None


def _varied(text: str) -> tuple[str, float]:
    """A figure of `epoch_settings` and a factor, or `_EACH`."""
    if text == "each":
        return _EACH
    name, _, factor = text.partition("=")
    if name not in epoch_times.VARIED:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(epoch_times.VARIED)}")
    try:
        return name, float(factor)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{factor!r} is no factor") from None


class _Parser(argparse.ArgumentParser):
    """A mistake is one line, as with redoxfs."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see --help)")


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
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for heading, _ in columns:
        table.add_column(heading, justify="left" if heading == columns[0][0] else "right")
    for row in rows:
        table.add_row(*(Text(written(row)) for _, written in columns))
    show_table(title, table)


def _plot(path: str | None, draw: Callable[[str], None]) -> None:
    """Draw before anything is printed, so that a file that cannot be written gives one line alone."""
    if path is None:
        return
    try:
        draw(path)
    except (OSError, ValueError) as failure:
        raise UsageError(f"--plot {path}: {failure}") from None


if __name__ == "__main__":
    sys.exit(main())
