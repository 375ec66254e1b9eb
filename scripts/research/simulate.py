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
sys.path.append(str(Path(__file__).parents[1] / "bench"))

import breakdown
import chunk_size
import epoch_settings
import epoch_times
import passes
import plots
import randomness
import related
import remote_memory
from results import show

from redoxfs.chunks import StorageSpeed
from redoxfs.cli import values
from redoxfs.launch.defaults import POLICIES
from redoxfs.launch.errors import UsageError
from redoxfs.launch.sizes import parse_size
from redoxfs.simulate.cluster import PAPER
from redoxfs.simulate.policies import Dataset
from redoxfs.telemetry.quality import BATCH

Row = TypeVar("Row")

# ImageNet-1k in round numbers.
_FILES = 1_280_000

# With the bandwidth of the paper's smaller cluster, 0.38 GB/s, the seek time at which its best chunk size is the best.
_SEEK_TIME_S = 0.02
_BANDWIDTH_BYTES_PER_S = 380e6

_EACH = ("each", 0.0)

_OF_RELATED = (
    *("title", "file_reads", "chunk_reads", "storage_s", "messages", "sent_bytes", "peak_share", "seen_share"),
    *("displacement", "rank_correlation", "mate_pairs", "mate_pairs_at_end", "same_node_share"),
)
"""Columns of its table. JSON has all."""

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
    _tell(given, rows)


def _chunk_size(given: argparse.Namespace) -> None:
    storage = StorageSpeed(given.seek_time, given.bandwidth)
    sizes = [size for size in chunk_size.SIZES if size <= given.files]
    dataset = Dataset(given.files, given.classes, given.skew, chunk_size=1, resident=given.resident, seed=given.seed)
    rows = _gathered(chunk_size.chunk_sizes(given.policy, dataset, storage, sizes=sizes), len(sizes))
    _plot(given.plot, lambda path: plots.plot_chunk_sizes(rows, path))
    _tell(given, rows)


def _remote_memory(given: argparse.Namespace) -> None:
    scale, limits = PAPER, remote_memory.LIMITS_BYTES
    if given.files != scale.files:
        limits = tuple(limit * given.files // scale.files for limit in limits)
        scale = scale.shrunk_to(given.files)
    rows = _gathered(remote_memory.remote_memory(scale, seed=given.seed, limits_bytes=limits), len(limits))
    _plot(given.plot, lambda path: plots.plot_remote_memory(rows, path))
    _tell(given, rows)


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
    show({**asdict(bound), "rows": [asdict(row) for row in rows]})


def _passes(given: argparse.Namespace) -> None:
    dataset = Dataset(given.files, given.classes, chunk_size=given.chunk_size, resident=given.resident, seed=given.seed)
    jobs = given.jobs or list(passes.JOBS)
    rows = _gathered(passes.passes(dataset, jobs=jobs), len(jobs))
    _tell(given, rows)


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
    result = related.report(setting, speed, rows)
    if given.json:
        _print_json(result)
        return
    show(result, *_OF_RELATED)


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
    if given.vary == _EACH:
        _print_json(epoch_times.by_figure(rows))
        return
    _tell(given, rows)


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


def _tell(given: argparse.Namespace, rows: Sequence[Any]) -> None:
    """Print rows, which are dataclasses."""
    told = [asdict(row) for row in rows]
    if given.json:
        _print_json(told)
    else:
        show({**vars(given), "rows": told})


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
