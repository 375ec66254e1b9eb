"""Epochs from slow storage with --cache, beside the plain directory, redoxfs without a cache, and a packed copy.

    scripts/bench/cache.py [--files 20480] [--profiles nas,hdd,latency] [--epochs 3] [--rounds 3] [--cache-on DIR]
        [--folder DIR] [--quick] [--json FILE] [--plot FILE.svg]

8 processes share each epoch. Storage and caps are those of scripts/bench/epoch.py; the profiles are in
scripts/bench/throttle.py and need root. The cache lies on the same disk, and its reads have the same caps, unless
--cache-on names a folder on another disk. So epoch 2 shows whether copies are read as fast as a packed dataset. With
the profile "latency" the cache is on the disk below the delay, as a local disk beside a slow network.

A round measures all ways of a profile, in turn. The mount with a cache stays for all epochs of a round; the page cache
is dropped before each epoch. Every file contains its own name, and must come exactly once an epoch, with the right
label. Otherwise the exit code is 1. At full size a profile takes about ten minutes, with --quick half a minute.

How to read the result: "of no cache" in epoch 1 shows the cost of writing the cache: the rate as a share of the rate
without a cache. "of packed" in epoch 2 is the rate from copies as a share of the rate of a packed dataset. Both are
medians of the ratios within a round. "kept" is the share of the samples in the cache after the epoch. The aims: epoch 1
at least 90 % of no cache, epoch 2 at least 95 % of packed.
"""

import argparse
import importlib
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import mounts
import quick
import throttle
from epoch import READERS, make_dataset, reading, storage, within
from results import check_plot, grid, rounded, table, write
from rich.console import Console

WAYS = {
    "plain": "plain directory",
    "directory": "redoxfs, no cache",
    "packed": "redoxfs, packed",
    "cache": "redoxfs, --cache",
}

SLOWER_MOST = 0.9
OF_PACKED_LEAST = 0.95
"""The aims: of epoch 1 as a share of the rate without a cache, and of epoch 2 as a share of the packed copy's."""


def measure(
    work: Path, way: str, profile: throttle.Profile, total: int, arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    """A row for each epoch."""
    rows = []
    copies = (arguments.cache_on or work) / "copies"
    shutil.rmtree(copies, ignore_errors=True)
    options = ["--cache", str(copies)] if way == "cache" else []
    with (
        storage(profile, work, arguments.cap_mb << 20) as stored,
        reading(stored, way, work, arguments.memory_mb, *options) as folder,
    ):
        for number in range(1, 1 + (arguments.epochs if way == "cache" else 1)):
            stored.forget()
            _, before = stored.counted()
            found = within(stored, folder, READERS[0])
            told = mounts.stats(folder).get("cache") if way == "cache" else None
            rows.append(
                {
                    "way": way,
                    "profile": profile.name,
                    "epoch": number,
                    **found,
                    "files_per_s": arguments.files / found["seconds"],
                    "mb_per_s": total / found["seconds"] / 1e6,
                    "amplification": (stored.counted()[1] - before) / total,
                    "cache": told,
                    "kept": None if told is None else told["samples"] / arguments.files,
                }
            )
    shutil.rmtree(copies, ignore_errors=True)
    return rows


def run(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Make the files, and measure all ways on all profiles."""
    console = Console(stderr=True)
    total = make_dataset(work, arguments.files, console)
    rows = []
    for profile in (throttle.PROFILES[name] for name in arguments.profiles.split(",")):
        for number in range(1, 1 + arguments.rounds):
            for way in arguments.ways.split(","):
                console.print(f"{profile.name}, round {number}: {WAYS[way]} …")
                rows += [{"round": number, **row} for row in measure(work, way, profile, total, arguments)]
    return {
        "machine": mounts.machine(),
        "files": arguments.files,
        "bytes": total,
        "rounds": arguments.rounds,
        "memory_mb": arguments.memory_mb,
        "cap_mb": arguments.cap_mb,
        "cache_on": None if arguments.cache_on is None else "another disk",
        "rows": with_ratios(rows),
    }


def with_ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """``rows``, with each rate as a share of those without a cache and of the packed copy, of its round."""
    rate = {(row["profile"], row["round"], row["way"]): row["files_per_s"] for row in rows if row["epoch"] == 1}

    def share(row: dict[str, Any], way: str) -> float | None:
        other = rate.get((row["profile"], row["round"], way))
        return None if other is None else row["files_per_s"] / other

    return [{**row, "of_no_cache": share(row, "directory"), "of_packed": share(row, "packed")} for row in rows]


def summary(result: dict[str, Any]) -> list[dict[str, Any]]:
    """For each profile, way and epoch: medians over the rounds."""
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in result["rows"]:
        groups.setdefault((row["profile"], row["way"], row["epoch"]), []).append(row)

    def median(rows: list[dict[str, Any]], name: str) -> float | None:
        known = [row[name] for row in rows if row[name] is not None]
        return statistics.median(known) if known else None

    names = ("files_per_s", "mb_per_s", "of_no_cache", "of_packed", "amplification", "kept")
    return [
        {"profile": profile, "way": way, "epoch": epoch, **{name: median(rows, name) for name in names}}
        for (profile, way, epoch), rows in groups.items()
    ]


HEADINGS = ("", "epoch", "files/s", "MB/s", "of no cache", "of packed", "read", "kept")


def cells(row: dict[str, Any]) -> list[str]:
    """A row of `summary`, for `HEADINGS`."""

    def share(value: float | None) -> str:
        return "" if value is None else f"{value:.0%}"

    return [
        WAYS[row["way"]],
        str(row["epoch"]),
        f"{row['files_per_s']:,.0f}",
        f"{row['mb_per_s']:,.0f}",
        share(row["of_no_cache"]),
        share(row["of_packed"]),
        f"{row['amplification']:.2f} x",
        share(row["kept"]),
    ]


def show(result: dict[str, Any]) -> None:
    """Print the result as tables."""
    console = Console(width=100)
    found = summary(result)
    for profile in dict.fromkeys(row["profile"] for row in found):
        shown = grid(f"{profile}: {result['files']:,} files, {result['bytes'] / 1e9:.2f} GB", HEADINGS)
        for row in found:
            if row["profile"] == profile:
                shown.add_row(*cells(row))
        console.print(shown)


def page(result: dict[str, Any]) -> str:
    """The section about the cache, in Markdown."""
    found = summary(result)
    cache_is = "another disk" if result["cache_on"] else "the same disk, under the same caps"
    parts = [
        "## The cache",
        f"{result['files']:,} files, {result['bytes'] / 1e9:.1f} GB, read by {READERS[0]} processes with "
        f"{result['memory_mb']} MiB of `--memory`; medians of {result['rounds']} rounds. The cache lies on {cache_is}; "
        "with the profile latency, on a disk without the delay. `scripts/bench/cache.py` measured it.",
    ]
    for profile in dict.fromkeys(row["profile"] for row in found):
        rows = [cells(row) for row in found if row["profile"] == profile]
        parts.append(table([throttle.PROFILES[profile].title, *HEADINGS[1:]], rows))
    return "\n\n".join([*parts, " ".join(judged(found))])


def judged(found: list[dict[str, Any]]) -> list[str]:
    """Sentences on what met its aim, and what fell short, and why."""
    sentences = []
    for row in found:
        if row["way"] != "cache":
            continue
        if row["epoch"] == 1 and row["of_no_cache"] is not None and row["of_no_cache"] < SLOWER_MOST:
            sentences.append(
                f"On {row['profile']} the first epoch reaches {row['of_no_cache']:.0%} of the rate without a cache, "
                f"below the aim of {SLOWER_MOST:.0%}."
            )
        if row["epoch"] == 2 and row["of_packed"] is not None and row["of_packed"] < OF_PACKED_LEAST:
            why = ""
            if row["kept"] is not None and row["kept"] < 1:
                why = f": {1 - row['kept']:.0%} of the samples were not kept, since the writer was behind the readers"
            sentences.append(
                f"On {row['profile']} the second epoch reaches {row['of_packed']:.0%} of the rate of a packed copy, "
                f"below the aim of {OF_PACKED_LEAST:.0%}{why}."
            )
    return sentences or [
        f"The first epoch reaches at least {SLOWER_MOST:.0%} of the rate without a cache, and the second at least "
        f"{OF_PACKED_LEAST:.0%} of the rate of a packed copy, on each storage."
    ]


def plot(result: dict[str, Any], path: str) -> None:
    """Files a second of each way and epoch, a group of bars for each storage. Needs matplotlib."""
    figure_class = importlib.import_module("matplotlib.figure").Figure
    found = summary(result)
    profiles = list(dict.fromkeys(row["profile"] for row in found))
    bars = list(dict.fromkeys((row["way"], row["epoch"]) for row in found))
    figure = figure_class(figsize=(7, 4.5), dpi=150, layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(bars)
    for number, (way, epoch) in enumerate(bars):
        name = WAYS[way] if way != "cache" else f"{WAYS[way]}, epoch {epoch}"
        rates = {row["profile"]: row["files_per_s"] for row in found if (row["way"], row["epoch"]) == (way, epoch)}
        places = [at + number * width for at in range(len(profiles))]
        axes.bar(places, [rates.get(profile, 0) for profile in profiles], width, label=name)
    axes.set_xticks([at + 0.4 - width / 2 for at in range(len(profiles))], profiles)
    axes.set(ylabel="files/s", ylim=(0, None))
    axes.legend()
    figure.savefig(path)


def main() -> int:
    """Run it. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=20_480)
    parser.add_argument("--profiles", default="nas,hdd,latency")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory-mb", type=int, default=256)
    parser.add_argument("--cap-mb", type=int, default=1024)
    parser.add_argument("--cache-on", type=Path, metavar="DIR")
    parser.add_argument("--folder", type=Path, help="where to make the files (default: the temporary folder)")
    parser.add_argument("--quick", action="store_true", help="a small size, to see that it works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there")
    parser.add_argument("--plot", metavar="FILE", help="draw the rates, as SVG, PNG or PDF")
    arguments = quick.parsed(parser, files=1024, epochs=2, rounds=1, memory_mb=32)
    if arguments.plot:
        check_plot()
    with mounts.work_folder(arguments.folder) as work:
        result = run(arguments, work)
    if arguments.json:
        write(rounded(result), arguments.json)
    if arguments.plot:
        plot(result, arguments.plot)
    show(result)
    return int(any(row["wrong_labels"] or row["not_once"] for row in result["rows"]))


if __name__ == "__main__":
    sys.exit(main())
