"""Tables, page and figure of overall.py, and for each ratio below the paper's what limited it."""

import importlib
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from overall_run import WAYS
from overall_settings import CHUNK_SIZE, SETTINGS, slots_share

FULL = 0.85
"""A resource that is used to this share limits an epoch. An epoch begins with empty queues, so none reaches 1."""

CLOSE = 0.1
"""How far a time may be from what the model predicts, to count as close."""

LIMITS = {
    "reads": "the cap on the storage's reads",
    "bytes": "the cap on the storage's bytes",
    "compute": "the GPUs",
    "CPU": "the processors of this machine, which all nodes share",
}

Row = Mapping[str, Any]


def over(row: Row, way: str, rows: Sequence[Row]) -> float | None:
    """How many times the speed of another way with the same model: the median of the epochs, one beside the other."""
    for other in rows:
        if (other["way"], other["model"]) == (way, row["model"]) and "rounds_s" in other and "rounds_s" in row:
            pairs = zip(other["rounds_s"], row["rounds_s"], strict=True)
            return round(float(statistics.median(theirs / ours for theirs, ours in pairs)), 2)
    return None


def uses(row: Row, setting: Row) -> dict[str, float]:
    """The used share of each resource that can limit an epoch."""
    if "seconds" not in row:
        return {}
    nodes, found = setting["nodes"], {"compute": row["compute_s"] / row["seconds"], "CPU": row["cpu"]}
    if setting["reads_per_s"]:
        found["reads"] = row["storage_reads"] / row["seconds"] / (setting["reads_per_s"] * nodes)
    if setting["bytes_per_s"]:
        found["bytes"] = row["storage_bytes"] / row["seconds"] / (setting["bytes_per_s"] * nodes)
    return {name: round(share, 3) for name, share in found.items()}


def limit(row: Row, setting: Row) -> tuple[str, dict[str, float]]:
    """What limited an epoch, a key of `LIMITS`, and what `uses` found."""
    found = uses(row, setting)
    most = max(found, key=lambda name: found[name], default="waits")
    return most if found.get(most, 0) >= FULL else "waits", found


def wrong(rows: Sequence[Row]) -> list[Row]:
    """The rows whose epochs were not complete or had wrong labels."""
    return [row for row in rows if row.get("wrong_labels") or row.get("not_once")]


def short_of_paper(report: Row) -> list[str]:
    """For each of the paper's ratios that redoxfs slot does not reach, a sentence or two on why."""
    told = []
    for setting in report["settings"]:
        mine = [row for row in report["rows"] if row["setting"] == setting["name"]]
        for paper, key, other in (
            (setting["paper_over_pytorch"], "over_pytorch", "plain"),
            (setting["paper_over_coordl"], "over_coordl", "coordl"),
        ):
            slots = [row for row in mine if row["way"] == "slot" and row.get(key)]
            if paper and slots:
                best = max(slots, key=lambda row: float(row[key]))
                if best[key] < paper:
                    told.append(_why(best, setting, mine, key, other, paper))
    return told


def _why(row: Row, setting: Row, mine: Sequence[Row], key: str, other: str, paper: float) -> str:
    beside = next(each for each in mine if each["way"] == other and each["model"] == row["model"])
    ideal = next((each for each in mine if each["way"] == "none" and each["model"] == row["model"]), None)
    used = row["used"]
    text = (
        f"**{setting['name']}** ({setting['where']}, {row['model']}): {row[key]:.2f} times {WAYS[other]}, in the paper "
        f"{paper:.2f}. "
    )
    text += (
        f"The limit was {LIMITS[row['limit']]} ({used[row['limit']]:.0%} of it used). "
        if row["limit"] in used
        else f"No resource was used to {FULL:.0%}. "
    )
    needed_s = beside["seconds"] / paper
    if ideal and needed_s < ideal["seconds"]:
        text += (
            f"To reach the paper's figure, an epoch would have to take {needed_s:.2f} s, less than the "
            f"{ideal['seconds']:.2f} s of No-I/O here. "
        )
    if row["limit"] == "bytes":
        most = row["amplification"] * needed_s / row["seconds"]
        text += (
            f"It read {row['amplification']:.2f} times the dataset in {row['chunk_loads']:,} loads; with the paper's "
            f"figure it could read {most:.2f} times. {slots_share(setting['nodes']):.0%} of --memory are slots, and "
            "the rest is for open files and samples of other nodes. So a load keeps fewer samples of its chunk than in "
            "the paper. "
        )
    elif row["limit"] == "reads":
        chunk_bytes = CHUNK_SIZE * setting["bytes"] / setting["files"]
        text += (
            f"{row['chunk_loads']:,} loads took {row['storage_reads']:,} reads of "
            f"{row['storage_bytes'] / row['storage_reads'] / (1 << 10):.0f} KiB on average. "
        )
        if not setting.get("at_once"):
            text += (
                f"The cap counts each MiB of a longer read, so a whole chunk of {chunk_bytes / 1e6:.1f} MB takes "
                f"{math.ceil(chunk_bytes / (1 << 20))} of them. The paper's storage delivers more in the time of a "
                "small file. "
            )
    elif row["limit"] == "CPU":
        text += (
            f"A sample took {row['cpu_ms_per_sample']:.2f} ms of processor time, of all processes on this machine. "
            f"The storage was used to {max(used.get('reads', 0), used.get('bytes', 0)):.0%}, the GPUs to "
            f"{used['compute']:.0%}. "
        )
    elif row["limit"] == "waits":
        waits = row["demand_loads"] + row["in_flight_waits"]
        shares = ", ".join(f"{name} {share:.0%}" for name, share in used.items())
        text += (
            f"{waits:,} of {setting['files']:,} opens waited for a load, since the slot policy reads on demand "
            f"({shares}). "
        )
    if other == "coordl" and "cache" in beside:
        text += f"CoorDL got {beside['cache']['peer']:,} samples from other nodes. "
    return text.rstrip()


HEADINGS = ("model", "way", "epoch", "x PyTorch", "x CoorDL", "read", "reads", "of cap", "compute", "CPU", "limit")


def _cells(row: Row, setting: Row) -> list[str]:
    if "refused" in row:
        return [row["model"], WAYS[row["way"]], "refused", *[""] * (len(HEADINGS) - 3)]
    used = row["used"]
    caps = [used[name] for name in ("reads", "bytes") if name in used]
    is_slot = row["way"] == "slot"
    return [
        row["model"],
        WAYS[row["way"]],
        f"{row['seconds']:.1f} s",
        _ratio(row["over_pytorch"], setting["paper_over_pytorch"] if is_slot else None),
        _ratio(row["over_coordl"], setting["paper_over_coordl"] if is_slot else None),
        f"{row['amplification']:.2f} x",
        f"{row['storage_reads']:,}",
        f"{max(caps):.0%}" if caps else "",
        f"{used['compute']:.0%}",
        f"{used['CPU']:.0%}",
        row["limit"],
    ]


def _ratio(value: float | None, paper: float | None) -> str:
    return "" if value is None else f"{value:.2f}" + (f" ({paper:.2f})" if paper else "")


def _title(setting: Row) -> str:
    nodes = "1 node" if setting["nodes"] == 1 else f"{setting['nodes']} nodes"
    storage = f"{setting['delay_ms']} ms in each open and read"
    if setting.get("at_once"):
        storage += f", {setting['at_once']} at once, and {setting['bytes_per_s'] / 1e6:.0f} MB/s each"
    elif setting["reads_per_s"]:
        storage = f"{setting['reads_per_s']} reads/s and {setting['bytes_per_s'] / 1e6:.0f} MB/s each"
    link = f", links of {setting['mbit_per_s']:,} Mbit/s" if setting["mbit_per_s"] else ""
    return (
        f"{setting['workload']}, {setting['where']}; {nodes}, memory for {setting['memory_share']:.0%} each; "
        f"{setting['files']:,} files of {setting['classes']:,} classes, {setting['bytes'] / 1e9:.2f} GB; "
        f"{setting['profile']}: {storage}{link}"
    )


def page(report: Row) -> str:
    """The page in Markdown."""
    on = report["machine"]
    lines = [
        "# Epoch time of a training (§5.1, §5.2 of the paper)",
        "",
        "How long does an epoch of training take with redoxfs? An unmodified PyTorch script trains in four ways: "
        "without I/O (No-I/O), on the plain directory (PyTorch), through CoorDL's cache, and on redoxfs. The slot "
        "policy on packed data is the paper's Redox.",
        "",
        f"`scripts/bench/overall.py` ran on {on['cores']} cores ({on['cpu']}, Linux {on['kernel']}), "
        f"{_epochs(report['rounds'])} of each after one to warm up, {report['minutes']} minutes in all. A step of the "
        "GPU is a sleep that takes the same share of the epoch as in the paper; only the small CNN computes. The "
        "ratios between storage, memory, compute and network are the paper's. The number of files and the time are "
        "scaled down: `scripts/bench/overall_settings.py` has the factors with their sources.",
        "",
        "The columns: *x PyTorch* and *x CoorDL* are speed-ups over these two. In brackets is the paper's best "
        "speed-up over all models of the setting. *Read* is the bytes that storage read, as a multiple of the dataset. "
        "*Of cap* is the used share of the reads or bytes that the storage allows in a second. *Compute* and *CPU* are "
        "the shares of time that the GPUs and the processors were busy. *Limit* is the resource that was used to at "
        f"least {FULL:.0%}; *waits* means that none was.",
        "",
    ]
    for setting in report["settings"]:
        rows = [row for row in report["rows"] if row["setting"] == setting["name"]]
        lines += [f"## {setting['name']}", "", f"{_title(setting)}.", ""]
        if setting["time_factor"]:
            lines += [
                f"Scaled: one file for {setting['data_factor']:g} of the paper's; time runs "
                f"{setting['time_factor']:g} times as fast as in the paper.",
                "",
            ]
        lines += [_line(HEADINGS), _line(["---"] * 2 + ["---:"] * (len(HEADINGS) - 3) + ["---"])]
        lines += [_line(_cells(row, setting)) for row in rows]
        lines.append("")
        for row in rows:
            if "refused" in row:
                lines += [f"{WAYS[row['way']]} refused to mount: {row['refused'].removeprefix('redoxfs: ')}", ""]
    lines += _predicted(report)
    measured = {setting["name"] for setting in report["settings"]}
    if others := [name for name in SETTINGS if name not in measured]:
        lines += [f"This page lacks some settings: {', '.join(others)}. To measure one, pass its name to `--only`.", ""]
    bad = wrong(report["rows"])
    lines.append(
        f"{len(bad)} rows had samples that came not once, or under a wrong label."
        if bad
        else "In each epoch of each row, every sample came exactly once and under its own label."
    )
    short = short_of_paper(report)
    if short:
        lines += ["", "Where the slot policy is below the paper's figure:", "", *(f"- {text}" for text in short)]
    return "\n".join(lines) + "\n"


def _predicted(report: Row) -> list[str]:
    """What the model in virtual time predicts for the rows, beside what they took."""
    rows = [row for row in report["rows"] if row.get("predicted_s")]
    if not rows:
        return []
    ways = [way for way in WAYS if any(row["way"] == way for row in rows)]
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        off = row["seconds"] / row["predicted_s"] - 1
        told = f"{row['seconds']:.1f} of {row['predicted_s']:.1f} s ({off:+.0%})"
        cells.setdefault((row["setting"], row["model"]), {})[row["way"]] = told
    close = [row for row in rows if abs(row["seconds"] / row["predicted_s"] - 1) <= CLOSE]
    of_ways = ", ".join(
        f"{WAYS[way]} {sum(row['way'] == way for row in close)} of {sum(row['way'] == way for row in rows)}"
        for way in ways
    )
    return [
        "## Beside the model",
        "",
        "How well does the model that [has the paper's clusters](epoch-times.md) predict these epochs? It has the "
        "storage, links, memory and files of this benchmark, and virtual time. A cell has the time that an epoch took, "
        "and the time that the model predicts. No-I/O calibrates a step. The first row calibrates what a file costs a "
        "loader, and what a request takes beside its delay. All other times are predictions. In the model, nodes do "
        "not share processors; here they do. "
        f"{len(close)} of {len(rows)} times are within {CLOSE:.0%} of it: {of_ways}.",
        "",
        _line(["setting", "model", *(WAYS[way] for way in ways)]),
        _line(["---", "---", *["---:"] * len(ways)]),
        *(_line([*key, *(of_way.get(way, "") for way in ways)]) for key, of_way in cells.items()),
        "",
    ]


def page_short(report: Row) -> str:
    """What holds: the ranges over the paper's settings."""
    of_paper = {setting["name"] for setting in report["settings"] if setting["paper_over_pytorch"]}
    rows = [row for row in report["rows"] if row["setting"] in of_paper]
    told = [
        f"{WAYS[way]}: {_range(rows, way, 'over_pytorch')} times as fast as PyTorch, {_range(rows, way, 'over_coordl')}"
        " times as fast as CoorDL"
        for way in ("directory", "slot", "packed")
        if any(row["way"] == way and row.get("over_pytorch") for row in rows)
    ]
    paper = [setting["paper_over_pytorch"] for setting in report["settings"] if setting["name"] in of_paper]
    most = f"; the paper's Redox: {min(paper):.2f} to {max(paper):.2f} times PyTorch" if paper else ""
    return f"Real trainings, small: {'; '.join(told)}{most}."


def when_not(report: Row) -> str:
    """What a dataset gains that is not packed, in the settings of the paper, where reads of storage limit epochs."""
    limited = {setting["name"] for setting in report["settings"] if setting["paper_over_pytorch"]}
    rows = [row for row in report["rows"] if row["setting"] in limited]
    if not any(row["way"] == "directory" and row.get("over_pytorch") for row in rows):
        return ""
    return (
        "Without packing it saves only the reads of what memory keeps: where reads are the limit, an epoch on a "
        f"directory was {_range(rows, 'directory', 'over_pytorch')} times as fast as with plain files, and "
        f"{_range(rows, 'directory', 'over_coordl')} times as fast as through a cache of the same size (CoorDL)."
    )


def _range(rows: Sequence[Row], way: str, key: str) -> str:
    found = [row[key] for row in rows if row["way"] == way and row.get(key)]
    return f"{min(found):.2f} to {max(found):.2f}" if found else "?"


def _epochs(number: int) -> str:
    return "1 epoch" if number == 1 else f"{number} epochs"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def plot(report: Row, path: Path) -> None:
    """A group of bars for each setting and model: the epoch times, as the paper's figures show them."""
    groups: dict[tuple[str, str], dict[str, float]] = {}
    for row in report["rows"]:
        if "seconds" in row:
            groups.setdefault((row["setting"], row["model"]), {})[row["way"]] = row["seconds"]
    across = min(4, len(groups))
    down = -(-len(groups) // across)
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(3 * across, 2.6 * down), layout="constrained")
    colors = dict(zip(WAYS, ("0.75", "tab:red", "tab:orange", "tab:blue", "tab:cyan", "tab:green"), strict=True))
    for number, ((setting, model), seconds) in enumerate(groups.items()):
        axes = figure.add_subplot(down, across, number + 1)
        ways = [way for way in WAYS if way in seconds]
        bars = axes.bar(range(len(ways)), [seconds[way] for way in ways], color=[colors[way] for way in ways])
        axes.bar_label(bars, fmt="%.1f", fontsize=7)
        axes.set_xticks([])
        axes.set_title(f"{setting}: {model}", fontsize=8)
        axes.set_ylabel("epoch (s)" if number % across == 0 else "", fontsize=8)
        axes.tick_params(labelsize=7)
    patch = importlib.import_module("matplotlib.patches").Patch
    handles = [patch(color=colors[way], label=WAYS[way]) for way in WAYS]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8)
    figure.savefig(path)
