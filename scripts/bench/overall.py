"""The paper's §5.1 and §5.2: the epoch time of a PyTorch training on slow storage, without and with redoxfs.

    scripts/bench/overall.py [--json FILE] [--plot FILE.svg]                 25 minutes on 2 cores
    scripts/bench/overall.py --quick [--json FILE] [--plot FILE.svg]         2 minutes
    scripts/bench/overall.py --only 1k-p100,libri-a10 --ways plain,slot,packed --files 12000 --rounds 3

An unmodified PyTorch script (overall_train.py: ImageFolder, DataLoader, DistributedSampler, all-reduce) trains on

- *No-I/O*: samples that the script makes up, so no way to read can be faster;
- *PyTorch*: the plain directory, with a page cache of the setting's share of the dataset;
- *CoorDL*: the same directory through CoorDL's cache of that share, partitioned over the nodes (coordl.py);
- *redoxfs slot, packed*: the paper's Redox, with that share as --memory, and on several nodes with prefetching;
- *redoxfs pool*: redoxfs by its default policy, on the directory and packed, with that share as --memory.

Each node has slow storage of its own, a network namespace, and a cap on memory. overall_settings.py has the setting of
the paper for each, and its scale. With --caps the storage is a disk with caps on reads and bytes, which counts long
reads as many: a check of the other. The first epoch warms up and does not count, as in the paper. Ratios are the median
over the epochs. Needs root, FUSE, loop devices, network namespaces, PyTorch, gcc and libfuse3-dev.

How to read the result: "x PyTorch" is the speed-up over PyTorch, with the paper's figure for its Redox in brackets. "of
cap" is the used share of the requests or bytes that the storage can serve; "compute" is the share of the epoch in which
the GPUs worked, "CPU" that of the processors of this machine. The one that is nearest to 100 % limits the epoch. Each
sample must come exactly once in an epoch over all nodes, under its own label. Otherwise the exit code is 1.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import mounts
import overall_page
import throttle
from overall_data import make_image
from overall_run import WAYS, RefusedError, set_up
from overall_settings import PAPER_READS_PER_S, SETTINGS, WORKLOADS, Setting, mbit_per_s, profile_of
from results import check_plot, options_of, parse_quick, write
from rich.console import Console
from rich.markdown import Markdown

HERE = Path(__file__).parent
# The model in virtual time lies there.
sys.path.append(str(HERE.parent / "research"))

from overall_model import predicted_s  # noqa: E402

FILES, READS_PER_S, ROUNDS = 3600, 500, 2
QUICK_FILES, QUICK_ROUNDS, QUICK_SETTINGS = 1440, 1, "1k-p100,1k-3xa10"
WORKERS = 2
CORES = len(os.sched_getaffinity(0))


def run(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    console = Console(stderr=True, highlight=False)
    began = time.monotonic()
    chosen = [SETTINGS[name] for name in arguments.only.split(",")]
    rows: list[dict[str, Any]] = []
    settings: list[dict[str, Any]] = []
    # Libraries that are read before do not count as memory of the first group that reads them.
    subprocess.run([sys.executable, HERE / "overall_train.py", "--help"], check=True, stdout=subprocess.DEVNULL)
    # The files of one workload are there at a time.
    for name in dict.fromkeys(setting.workload for setting in chosen):
        workload = WORKLOADS[name]
        files = workload.files(arguments.files)
        console.print(f"{name}: making {files:,} files …")
        image = work / "image"
        total = make_image(image, work / "made", workload, arguments.files)
        for setting in (setting for setting in chosen if setting.workload == name):
            settings.append(about(setting, arguments, files, total))
            rows += measure(setting, arguments, image, files, total, work, console)
        image.unlink()
    return {
        "machine": mounts.machine(),
        "files": arguments.files,
        "rounds": arguments.rounds,
        "reads_per_s": arguments.reads,
        "workers": WORKERS,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "settings": settings,
        "rows": rows,
    }


def about(setting: Setting, arguments: argparse.Namespace, files: int, total: int) -> dict[str, Any]:
    """The scaled setting, and the paper's figures for it."""
    workload, profile = WORKLOADS[setting.workload], profile_of(setting, arguments.reads, caps=arguments.caps)
    rate = profile.files_per_s
    return {
        "name": setting.name,
        "where": setting.where,
        "workload": setting.workload,
        "nodes": setting.nodes,
        "memory_share": setting.share,
        "profile": setting.profile,
        "files": files,
        "bytes": total,
        "classes": workload.classes(arguments.files),
        "data_factor": round(workload.paper_files / files, 1),
        "time_factor": round(rate / PAPER_READS_PER_S, 2) if rate else None,
        "reads_per_s": profile.reads_per_s or (rate and round(rate * throttle.REQUESTS_OF_FILE, 1)),
        "bytes_per_s": profile.bytes_per_s,
        "delay_ms": profile.delay_ms,
        "at_once": profile.at_once,
        "mbit_per_s": mbit_per_s(rate, total / files) if rate and setting.nodes > 1 else None,
        "models": {model.name: [model.share and round(model.share, 3), model.source] for model in setting.models},
        "paper_over_pytorch": setting.over_pytorch,
        "paper_over_coordl": setting.over_coordl,
    }


def measure(
    setting: Setting,
    arguments: argparse.Namespace,
    image: Path,
    files: int,
    total: int,
    work: Path,
    console: Console,
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    models = setting.models[-1:] if arguments.quick else setting.models
    profile = profile_of(setting, arguments.reads, caps=arguments.caps)
    with set_up(setting, profile, image, total / files, work, WORKERS) as ready:
        for way in WAYS:
            if way not in arguments.ways.split(","):
                continue
            console.print(f"{setting.name}: {WAYS[way]} …")
            try:
                rows += ready.measure(way, models, arguments.rounds, files, total)
            except RefusedError as error:
                rows += [{"setting": setting.name, "way": way, "model": models[0].name, "refused": str(error)}]
                console.print(f"  {error}")
    told = about(setting, arguments, files, total)
    for row in rows:
        if "rounds_s" in row:
            row["seconds"] = round(statistics.median(row["rounds_s"]), 2)
            row["cpu_ms_per_sample"] = round(row["cpu"] * CORES * row["seconds"] / files * 1e3, 3)
            row["amplification"] = round(row["storage_bytes"] / total, 3)
        row["over_pytorch"] = overall_page.over(row, "plain", rows)
        row["over_coordl"] = overall_page.over(row, "coordl", rows)
        row["limit"], row["used"] = overall_page.limit(row, told)
    no_io_s = {row["model"]: row["seconds"] for row in rows if row["way"] == "none"}
    for row in rows:
        if setting.models[0].share is not None and row["model"] in no_io_s:
            predicted = predicted_s(row["way"], row["model"], no_io_s[row["model"]], told, WORKERS)
            if predicted is not None:
                row["predicted_s"] = round(predicted, 2)
    return rows


def parsed() -> argparse.Namespace:
    parser = options_of(__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_FILES} files, settings {QUICK_SETTINGS}")
    parser.add_argument("--only", default=",".join(SETTINGS), help=f"settings, of {','.join(SETTINGS)}; all by default")
    parser.add_argument("--ways", default=",".join(WAYS), help="of %(default)s")
    parser.add_argument("--files", type=int, default=FILES, help="of ImageNet-1k-like (%(default)s); the others follow")
    parser.add_argument(
        "--reads", type=int, default=READS_PER_S, help="small files a second of all nodes (%(default)s)"
    )
    parser.add_argument("--caps", action="store_true", help="a disk with caps on reads and bytes is the storage")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="epochs that are counted (%(default)s)")
    parser.add_argument("--dir", type=Path, help="where to make the files (default: the temporary folder)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw it here")
    arguments = parse_quick(parser, files=QUICK_FILES, rounds=QUICK_ROUNDS, only=QUICK_SETTINGS)
    for kind, given, known in (("setting", arguments.only, SETTINGS), ("way", arguments.ways, WAYS)):
        for name in given.split(","):
            if name not in known:
                parser.error(f"{name!r} is no {kind}; there are {', '.join(known)}")
    if arguments.files < 30 or arguments.rounds < 1 or arguments.reads < 10:
        parser.error("--files must be at least 30, --rounds 1, --reads 10")
    if arguments.plot:
        check_plot()
    if os.geteuid() != 0:
        raise SystemExit("this benchmark needs root")
    return arguments


def main() -> int:
    arguments = parsed()
    with mounts.work_folder(arguments.dir) as work:
        report = run(arguments, work)
    if arguments.json:
        write(report, arguments.json)
    if arguments.plot:
        overall_page.plot(report, arguments.plot)
    Console().print(Markdown(overall_page.page(report)))
    return 1 if overall_page.wrong(report["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
