"""The page of the evaluation on simulated accelerators, and its figure, from a result of mlperf.py."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import throttle
from results import table

WAYS = {"plain": "plain directory", "directory": "redoxfs, directory", "packed": "redoxfs, packed"}
FROM = {"directory": "(from the directory)", "packed": "(from a packed copy)"}
PLOT_COLORS = {"plain": "tab:gray", "directory": "tab:blue", "packed": "tab:orange"}

ALIKE = 0.1
"""Rates that differ by this share, or less, count as the same."""


def page(result: dict[str, Any]) -> str:
    accelerators = list(result["compute_s"])
    parts = ["# MLPerf Storage, with one file per sample", _about(result)]
    for accelerator in accelerators:
        parts += [f"Accelerators that one node feeds, {accelerator}, and how busy they are:", _fed(result, accelerator)]
    parts += ["Samples a second that the eight readers of one accelerator read if nothing computes:", _bare(result)]
    parts.append(_findings(result))
    if "dlio" in result:
        parts.append(_dlio(result))
    return "\n\n".join(parts)


def when_not(result: dict[str, Any]) -> str:
    """Where the plain directory feeds as many accelerators as redoxfs, or more."""
    lost = []
    for profile in _profiles(result):
        rates = {way: row["bare_samples_per_s"] for way, row in _rows(result, profile).items()}
        best = max((rate for way, rate in rates.items() if way != "plain"), default=0.0)
        if "plain" in rates and best and rates["plain"] > best:
            lost.append(
                f"With {_storage(profile)}, plain files were {rates['plain'] / best:.1f} times as fast as redoxfs."
            )
    return " ".join(lost)


def plot(result: dict[str, Any], path: Path) -> None:
    """Bars of samples a second, and a line for each accelerator that could be fed. Needs matplotlib."""
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    profiles = _profiles(result)
    ways = [way for way in WAYS if any(way in _rows(result, profile) for profile in profiles)]
    width = 0.8 / len(ways)
    for number, way in enumerate(ways):
        rates = [_rows(result, profile).get(way, {}).get("bare_samples_per_s", 0.0) for profile in profiles]
        places = [at + (number - (len(ways) - 1) / 2) * width for at in range(len(profiles))]
        axes.bar(places, rates, width, label=WAYS[way], color=PLOT_COLORS[way])
    accelerator = next(iter(result["compute_s"]))
    needed = result["fed"] * result["batch"] / result["compute_s"][accelerator]
    top = max(row["bare_samples_per_s"] for row in result["rows"])
    for number in range(1, max(2, int(top / needed) + 1)):
        axes.axhline(number * needed, color="black", linewidth=0.7, linestyle="--")
        axes.text(len(profiles) - 0.5, number * needed, f" {number} {accelerator}", va="center", fontsize="small")
    axes.set_xticks(range(len(profiles)), profiles)
    axes.set(xlabel="storage", ylabel="samples/s")
    axes.legend()
    figure.savefig(path)


def _about(result: dict[str, Any]) -> str:
    needs = " and ".join(
        f"{result['batch']} per {seconds:g} s ({result['batch'] / seconds:,.0f} a second) for one {name}"
        for name, seconds in result["compute_s"].items()
    )
    return (
        "How many accelerators can one node feed? This is a variant of the ResNet-50 of MLPerf Storage: each of the "
        f"{result['files']:,} samples of {result['sample_bytes']:,} bytes is a file, while MLPerf packs them into "
        f"TFRecord files. So these numbers are not MLPerf results. An accelerator is a sleep for each batch: {needs}. "
        f"It is fed if it computes for at least {result['fed'] * 100:.0f} % of the time. Readers are as in DLIO: "
        f"{result['readers']} for each accelerator, {result['ahead']} batches ahead, one random order for all, a "
        f"barrier after each batch. The first batch does not count. redoxfs has {result['memory_mb']} MiB of memory. "
        f"All processes together, page cache included, have {result['cap_mb']} MiB beside what they hold before they "
        f"read. The storage with latency has no such limit, because the kernel caches none of its pages. Each number "
        f"comes from an epoch, or from its first {result['limit_s']:g} s, on a fresh mount without cached pages."
    )


def page_short(result: dict[str, Any]) -> str:
    """What holds: the rate of redoxfs beside that of plain files, for each storage."""
    told = []
    for profile in _profiles(result):
        rates = {way: row["bare_samples_per_s"] for way, row in _rows(result, profile).items()}
        ratios = [
            f"{rate / rates['plain']:.2f} {FROM[way].strip('()')}"
            for way, rate in rates.items()
            if way != "plain" in rates
        ]
        if ratios:
            told.append(f"with {_storage(profile)} {', '.join(ratios)}")
    return f"Samples a second, as a multiple of plain files: {'; '.join(told)}."


def _fed(result: dict[str, Any], accelerator: str) -> str:
    rows = []
    for profile in _profiles(result):
        of = _rows(result, profile, accelerator)
        rows.append([_storage(profile), *(_cell(of[way]) if way in of else "" for way in WAYS)])
    return table(["storage", *WAYS.values()], rows)


def _bare(result: dict[str, Any]) -> str:
    rows = []
    for profile in _profiles(result):
        of = _rows(result, profile)
        cells = [f"{of[way]['bare_samples_per_s']:,.0f}" if way in of else "" for way in WAYS]
        rows.append([_storage(profile), *cells])
    return table(["storage", *WAYS.values()], rows)


def _cell(row: dict[str, Any]) -> str:
    least = "at least " if row["is_least"] else ""
    return f"{least}{row['accelerators']} ({row['utilisation'] * 100:.0f} %)"


def _findings(result: dict[str, Any]) -> str:
    """A bullet for each storage: the rates beside plain files, with the reason."""
    told = []
    for profile in _profiles(result):
        rates = {way: row["bare_samples_per_s"] for way, row in _rows(result, profile).items()}
        if "plain" not in rates:
            continue
        ratios = {way: rate / rates["plain"] for way, rate in rates.items() if way != "plain"}
        words = " and ".join(f"{ratio:.2f} times {FROM[way]}" for way, ratio in ratios.items())
        line = f"- With {_storage(profile)}, redoxfs delivers samples at {words} the rate of plain files."
        told.append(" ".join([line, *_reasons(result, throttle.PROFILES[profile], ratios)]))
    return "\n".join(told)


def _reasons(result: dict[str, Any], known: throttle.Profile, ratios: dict[str, float]) -> Iterator[str]:
    if known.reads_per_s and ratios.get("directory", 9) < 1 + ALIKE:
        yield "There each file costs a read, with redoxfs or without, so only a packed copy saves reads."
        held = (result["memory_mb"] << 20) // result["sample_bytes"]
        yield (
            f"A try of {result['limit_s']:g} s has up to {round(known.reads_per_s * result['limit_s']):,} reads. About "
            f"{held:,} of them fill the memory of redoxfs, and the job gets these samples only later."
        )
    if not known.reads_per_s and known.delay_ms is None and max(ratios.values(), default=9) < 1:
        yield "There storage costs little, so the requests through FUSE cost more than the reads they save."
    if known.delay_ms is not None and ratios.get("directory", 0) > 1:
        yield (
            "More accelerators have more readers. Without redoxfs these hide more of the latency; with redoxfs, its "
            "one daemon shares the processor with all of them."
        )


def _dlio(result: dict[str, Any]) -> str:
    dlio = result["dlio"]
    if "missing" in dlio:
        return f"DLIO itself did not run: {dlio['missing'].rstrip('.')}."
    rows = [
        [WAYS[row["way"]], f"{row['utilisation'] * 100:.1f} %", f"{row['samples_per_s']:,.0f}"] for row in dlio["rows"]
    ]
    text = (
        f"DLIO {dlio['version']} itself, with its PyTorch loader and one simulated {dlio['accelerator']}, on "
        f"{_storage(dlio['profile'])}: {dlio['files']:,} files that it made (npz, one sample each), one epoch. "
        f"Each of its {result['readers']} workers reads a batch, so several batches arrive at a time. NumPy reads an "
        "npz file in several pieces. On the plain directory, each is a read of the storage; redoxfs reads the whole "
        "file at once:"
    )
    return f"{text}\n\n{table(['', 'utilisation', 'samples/s'], rows)}"


def _profiles(result: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(row["profile"] for row in result["rows"]))


def _rows(result: dict[str, Any], profile: str, accelerator: str | None = None) -> dict[str, dict[str, Any]]:
    """The row of each way; without an accelerator, of the first."""
    accelerator = accelerator or next(iter(result["compute_s"]))
    return {row["way"]: row for row in result["rows"] if (row["profile"], row["accelerator"]) == (profile, accelerator)}


def _storage(profile: str) -> str:
    known = throttle.PROFILES[profile]
    if known.delay_ms is not None:
        return f"{known.delay_ms:g} ms in each open and read"
    if known.reads_per_s is None or known.bytes_per_s is None:
        return "a local disk"
    return f"{known.reads_per_s} reads/s and {known.bytes_per_s / 1e6:.0f} MB/s"
