"""The page of the evaluation on MLPerf Storage's RetinaNet, and its figure, from a result of retinanet.py."""

import importlib
from pathlib import Path
from typing import Any

import throttle
from results import table

Row = dict[str, Any]

WAYS = {
    "plain": "plain directory",
    "directory": "redoxfs, directory",
    "packed": "redoxfs, packed",
    "archive": "redoxfs, tar",
}
PLOT_COLORS = {"plain": "tab:gray", "directory": "tab:blue", "packed": "tab:orange", "archive": "tab:green"}

OFFICIAL_FILES, OFFICIAL_EPOCHS = 1_170_301, 8

PUBLISHED = {"Alluxio over FUSE": (14_558, 192), "XFS on a RAID of local NVMe drives": (31_447, 144)}
"""Files a second and virtual processors of results of MLPerf Storage v3.0's RetinaNet."""

ALIKE = 0.1
"""Rates that differ by this share, or less, count as the same."""


def page(result: Row) -> str:
    parts = ["# MLPerf Storage's RetinaNet, by DLIO", *_about(result)]
    parts += [
        "DLIO's accelerator utilisation, the mean of all epochs, and in brackets its samples a second in the last one, "
        f"for several times of a step. An accelerator is fed from {result['fed'] * 100:.0f} % on. Longer steps are "
        "left out then (-).",
        _utilisations(result),
        "What the storage was asked for, for each file of the dataset and epoch, with the shortest step:",
        _requests(result),
        _findings(result),
        _beside_published(result),
        _checked(result),
    ]
    return "\n\n".join(parts)


def page_short(result: Row) -> str:
    """What holds: the rates of redoxfs beside those of plain files, for each storage."""
    told = []
    for profile in _profiles(result):
        rates = _rates(result, profile)
        ratios = [f"{rate / rates['plain']:.2f} ({WAYS[way]})" for way, rate in rates.items() if way != "plain"]
        told.append(f"with {_storage(profile)} {', '.join(ratios)}")
    return f"Samples a second that DLIO reports, as a multiple of plain files: {'; '.join(told)}."


def when_not(result: Row) -> str:
    """Where a way of redoxfs is slower than the plain directory."""
    lost = []
    for profile in _profiles(result):
        rates = _rates(result, profile)
        for way, rate in rates.items():
            if rate < rates["plain"] * (1 - ALIKE):
                lost.append(f"{WAYS[way]}, on {_storage(profile)}: {rate / rates['plain']:.2f} times")
    return f"DLIO was slower with redoxfs than with plain files in these cases: {'; '.join(lost)}." if lost else ""


def plot(result: Row, path: Path) -> None:
    """Bars of samples a second with the shortest step, and a line for the processor. Needs matplotlib."""
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    profiles = _profiles(result)
    ways = [way for way in WAYS if any(way in _rates(result, profile) for profile in profiles)]
    width = 0.8 / len(ways)
    for number, way in enumerate(ways):
        rates = [_rates(result, profile).get(way, 0.0) for profile in profiles]
        places = [at + (number - (len(ways) - 1) / 2) * width for at in range(len(profiles))]
        axes.bar(places, rates, width, label=WAYS[way], color=PLOT_COLORS[way])
    axes.axhline(_rates(result, "none")["plain"], color="black", linewidth=0.7, linestyle="--", label="page cache")
    axes.set_xticks(range(len(profiles)), profiles)
    axes.set(xlabel="storage", ylabel="samples/s")
    axes.legend()
    figure.savefig(path)


def _about(result: Row) -> list[str]:
    cores = result["machine"]["cores"]
    needed = result["batch"] / result["step_s"]
    return [
        "How fast does a job of MLPerf Storage read one file per sample? This is the RetinaNet of MLPerf Storage v3.0, "
        f"run by DLIO {result['dlio']}, with v3.0's parameters: JPEGs, batches of {result['batch']}, "
        f"{result['step_s']} s of computation for a batch, {result['threads']} reading processes, which are forked. "
        f"One accelerator takes {needed:,.0f} samples a second. DLIO makes the files, and reports utilisation and "
        "samples a second; this page has its figures. v3.0 itself runs a later revision of DLIO from a repository, "
        f"which no package registry has. So these numbers are not MLPerf results.",
        f"It is scaled down: {result['files']:,} files instead of {OFFICIAL_FILES:,}, {result['epochs']} of "
        f"{OFFICIAL_EPOCHS} epochs, one accelerator, {cores} cores, and emulated storage. The files have "
        f"{result['bytes'] / result['files']:,.0f} bytes on average; those of v3.0 have 322,957. The "
        f"dataset is {result['bytes'] / (result['cap_mb'] << 20):.1f} times the memory for it; v3.0 wants five times. "
        f"DLIO and redoxfs share {result['cap_mb']} MiB, page cache included, "
        f"beside what their processes hold themselves (DLIO {result['dlio_mb']:,} MiB, redoxfs what it holds once it "
        f"is mounted, and {result['leeway_mb']} MiB of leeway, since that varies). redoxfs may hold "
        f"{result['memory_mb']} MiB of samples. The storage keeps no pages from one open to the next.",
        "DLIO uses no labels, so the mounts have `--classes any`. A real RetinaNet looks up the boxes of each file by "
        "its name, so it needs `--classes sampler`, which is not measured here.",
    ]


def _utilisations(result: Row) -> str:
    times = sorted({row["times"] for row in result["rows"]})
    lines = [["the page cache alone", *(_cell(_row(result, "none", "plain", each)) for each in times)]]
    for profile in _profiles(result):
        for way in _rates(result, profile):
            cells = [_cell(_row(result, profile, way, each)) for each in times]
            lines.append([f"{profile}: {WAYS[way]}", *cells])
    return table(["storage", *(f"{result['step_s'] * each:.5g} s" for each in times)], lines)


def _requests(result: Row) -> str:
    lines = []
    opened = result["files"] * result["epochs"]
    for profile in _profiles(result):
        for way in _rates(result, profile):
            row = next(row for row in result["rows"] if (row["profile"], row["way"]) == (profile, way))
            share = row["storage_bytes"] / (result["bytes"] * result["epochs"])
            lines.append([f"{profile}: {WAYS[way]}", f"{row['storage_requests'] / opened:.2f}", f"{share:.2f}"])
    return table(["storage", "opens and reads", "bytes, of the dataset's"], lines)


def _findings(result: Row) -> str:
    """A bullet for the processor, and one for each storage."""
    bare, loads = _rates(result, "none")["plain"], [row["load"] for row in result["rows"]]
    told = [
        f"- Without storage, from the page cache, DLIO reads and decodes {bare:,.0f} samples a second on these cores. "
        f"An accelerator takes {result['batch'] / result['step_s']:,.0f}. The load of the machine was "
        f"{min(loads):.0f} to {max(loads):.0f}. Where the processor limits, and not the storage, rates say little."
    ]
    for profile in _profiles(result):
        rates = _rates(result, profile)
        ratios = [f"{rate / rates['plain']:.2f} times ({WAYS[way]})" for way, rate in rates.items() if way != "plain"]
        told.append(f"- With {_storage(profile)}, DLIO reads {', '.join(ratios)} as many samples as from plain files.")
    return "\n".join(told)


def _beside_published(result: Row) -> str:
    """Files a second and core: the best of each way here, and what others have published."""
    cores = result["machine"]["cores"]
    lines = [["page cache, here", _rates(result, "none")["plain"], cores]]
    for way, title in WAYS.items():
        rates = [_rates(result, profile).get(way, 0.0) for profile in _profiles(result)]
        if any(rates):
            lines.append([f"{title}, best storage here", max(rates), cores])
    lines += [[f"{title}, published", *figures] for title, figures in PUBLISHED.items()]
    cells = [[title, f"{rate:,.0f}", str(cpus), f"{rate / cpus:,.0f}"] for title, rate, cpus in lines]
    text = (
        "Beside published results of v3.0's RetinaNet. Those count virtual processors, read real storage, and feed "
        "each accelerator; here the cores are shared with the emulated storage, and the accelerator waits:"
    )
    return f"{text}\n\n{table(['', 'files/s', 'cores', 'files/s and core'], cells)}"


def _checked(result: Row) -> str:
    mounted = [row for row in result["rows"] if "opens" in row]
    opens, wanted = sum(row["opens"] for row in mounted), len(mounted) * result["files"] * result["epochs"]
    complete = sum(row["epochs_complete"] for row in mounted)
    return (
        f"The counters of the {len(mounted)} mounts: {opens:,} opens for {wanted:,} samples; {complete} of "
        f"{len(mounted) * result['epochs']} epochs complete; {sum(row['given_twice'] for row in mounted)} samples "
        f"given twice in an epoch; {sum(row['errors'] for row in mounted)} errors."
    )


def _cell(row: Row | None) -> str:
    return f"{row['utilisation'] * 100:.0f} % ({row['files_per_s']:,.0f})" if row else "-"


def _row(result: Row, profile: str, way: str, times: int) -> Row | None:
    wanted = (profile, way, times)
    return next((row for row in result["rows"] if (row["profile"], row["way"], row["times"]) == wanted), None)


def _rates(result: Row, profile: str) -> dict[str, float]:
    """Samples a second of each way, with the shortest step."""
    rows = [row for row in result["rows"] if row["profile"] == profile]
    shortest = min(row["times"] for row in rows)
    return {row["way"]: row["files_per_s"] for row in rows if row["times"] == shortest}


def _profiles(result: Row) -> list[str]:
    return list(dict.fromkeys(row["profile"] for row in result["rows"] if row["profile"] != "none"))


def _storage(profile: str) -> str:
    return throttle.PROFILES[profile].title.replace(f"{profile}: ", f"{profile} (", 1) + ")"
