"""Does the order in which redoxfs serves samples make a trained network worse (§5.6)? A ResNet, 60,000 images.

    scripts/bench/convergence.py [--seeds 5] [--epochs 6] [--settings SETTINGS] [--jobs 2]
                                 [--resume FOLDER] [--against CHECKOUT] [--json FILE] [--plot FILE.svg]
    scripts/bench/convergence.py --quick

The data are the images of Debian's package dataset-fashion-mnist, 28 by 28 pixels in ten classes; --data names another
folder of four files in the format of MNIST. Each training image is a file in the directory of its class.

For each setting and seed, it first records the order of samples, and then replays it. To record it, an ordinary
DataLoader with two workers reads all files through a mount, shuffled, epoch after epoch. Every file contains its own
number, and the numbers are kept batch by batch. To replay it, the network is trained on the same batches from memory.
This changes nothing for the network, which depends on the samples of each batch only. The requests of the two workers
mix as their speed has it, so two recordings of one setting differ. With --resume FOLDER all orders and results are
kept, and tasks that have a result are skipped. So orders can be recorded on one machine and replayed on another.

The seed sets the first weights, the order of the loader and the chunks of the mount. So each setting is compared with
plain reading seed by seed. Four controls show what the comparison can find. "another shuffle" differs from plain
reading only by chance. "one shuffle" has the first epoch's order in every epoch. "class shards, buffer" is WebDataset's
method on shards that hold 1,024 images in the order of the directories: shards in random order, through a buffer of a
tenth of the images. "by class" has all images of a class, then all of the next, as a directory lists them.

"three nodes" is what the core of three nodes serves a data-parallel job, in step and without a mount. Together they
retain all images, and each has its own third. They exchange the default share, or, with "no exchange", only what a node
lacks. The network sees the batches of all nodes as one.

The files lie class by class, but redoxfs builds chunks of several classes. The label is the directory, so each batch
has the classes that the loader asked for. With "labels in files" (--classes any) each image may stand in for any other,
and the classes of a batch depend on the samples in memory.

--against CHECKOUT also records the pool of another checkout of redoxfs, with the Python of its .venv: "former pool".

Needs FUSE, PyTorch and SciPy. In each epoch each sample must come once, with the label of the path that was opened.
The exit code is 1 if one does not. The settings of "cross" take about an hour and a half on two cores, those of
"retained", with memory for half and on three nodes, about 45 minutes.

How to read the result: "less plain" is the mean difference from plain reading in percentage points, with the 95 %
confidence interval of a paired t-test. The true difference may be anywhere in the interval. "Holm" is the p of that
test, corrected for the number of settings with a mount. Wilcoxon's p cannot be below 0.06 with five seeds. "rank
correlation" is that of successive epochs, measured on the recorded orders: 0 if they are independent. "class mix"
is how far the classes of a batch are from their shares in the dataset: 1 as if drawn at random, more if batches tend
to have few classes.
"""

import argparse
import contextlib
import fcntl
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import convergence_page
import mounts
import numpy as np
import small_resnet
import torch
from full_path import other_checkout, this_checkout
from recorded_orders import (
    ANOTHER,
    BATCH,
    BUFFER,
    EXCHANGE,
    MOST_SAMPLES,
    NO_EXCHANGE,
    ONE,
    PLAIN,
    SORTED,
    WORKERS,
    Recorded,
    Setting,
    class_mix,
    draw,
    make_files,
    record,
)
from results import check_plot, options_of, parse_quick, rounded, write
from rich.console import Console
from rich.markdown import Markdown
from shuffle_quality import quality  # in a folder that recorded_orders has put on the path
from small_resnet import DEBIAN_FOLDER, read_images

TRAINING, QUICK_TRAINING = 60_000, 2_000

CONFIDENCE = 0.95

SHARES = ("5%", "10%", "25%")
CHUNK_SIZES = (4, 16, 64)


CROSS = (
    PLAIN,
    *(Setting("pool", 16, share) for share in SHARES),
    *(Setting("slot", 16, share) for share in SHARES),
    *(Setting("pool", size, "10%") for size in CHUNK_SIZES if size != 16),
    Setting("pool", 64, "5%", "any"),
    ANOTHER,
    ONE,
    BUFFER,
    SORTED,
)
ALL = (
    *CROSS,
    *(
        setting
        for kind in ("pool", "slot")
        for size in CHUNK_SIZES
        for share in SHARES
        if (setting := Setting(kind, size, share)) not in CROSS
    ),
    *(Setting("pool", size, "10%", "any") for size in CHUNK_SIZES),
    EXCHANGE,
    NO_EXCHANGE,
    # With half of the samples retained.
    *(Setting("pool", size, "50%") for size in CHUNK_SIZES),
)
RETAINED = (PLAIN, Setting("pool", 16, "50%"), EXCHANGE, NO_EXCHANGE, ANOTHER, ONE)
QUICK = (PLAIN, Setting("pool", 16, "10%"), SORTED)


def do_task(setting: Setting, seed: int, arguments: argparse.Namespace) -> None:
    """Record and replay one order, as far as that is not done. Leaves a file for each in ``arguments.resume``."""
    training = read_images(arguments.data, "train", arguments.images)
    order_path, run_path = paths_of(setting, seed, arguments.resume)
    if not order_path.exists():
        if setting.is_mount:
            checkout = this_checkout() if setting.kind == setting.policy else other_checkout(arguments.against)
            order = record(setting, seed, training, arguments.epochs, arguments.files, checkout)
        else:
            order = draw(setting, seed, training, arguments.epochs)
        order.save(order_path)
    recorded = Recorded.load(order_path)
    orders = recorded.orders
    began = time.monotonic()
    tested = small_resnet.train(training, read_images(arguments.data, "t10k"), orders, BATCH, seed)
    # The chunk of a sample has no influence on what is taken from here.
    alike = quality(list(orders.astype(np.int32)), np.zeros(len(training), np.int32)) if len(orders) > 1 else None
    told = {
        "setting": setting.name,
        "seed": seed,
        "accuracy": [each.accuracy for each in tested],
        "loss": [each.loss for each in tested],
        "rank_correlation": alike.rank_correlation if alike else None,
        "displacement": alike.displacement if alike else None,
        "class_mix": class_mix(orders, training.labels),
        "redirected": recorded.redirected,
        "memory_bytes": recorded.memory_bytes,
        "wrong_labels": recorded.wrong_labels,
        "not_once": recorded.not_once,
        "record_s": recorded.seconds,
        "train_s": time.monotonic() - began,
    }
    part = run_path.with_suffix(".part")
    part.write_text(json.dumps(told))
    part.replace(run_path)


def paths_of(setting: Setting, seed: int, folder: Path) -> tuple[Path, Path]:
    """The file of an order, and that of the result of its training."""
    name = f"{setting.file_name}-seed-{seed}"
    return folder / f"{name}.npz", folder / f"{name}.json"


def do_tasks(settings: Sequence[Setting], arguments: argparse.Namespace) -> None:
    """Do the tasks that are not done, and that no other process is doing. Seeds come one after the other, so that what
    is there after an interruption has all settings."""
    torch.set_num_threads(1)
    console = Console(stderr=True, highlight=False)
    tasks = [(setting, seed) for seed in range(arguments.seeds) for setting in settings]
    for setting, seed in tasks:
        path = paths_of(setting, seed, arguments.resume)[1]
        if path.exists():
            continue
        with claimed(path.with_suffix(".claim")) as is_mine:
            if not is_mine or path.exists():
                continue
            do_task(setting, seed, arguments)
        told = run_of(setting, seed, arguments.resume)
        done = sum(paths_of(*task, arguments.resume)[1].exists() for task in tasks)
        console.print(
            f"{done} of {len(tasks)}: {setting.name}, seed {seed}: {told['accuracy'][-1]:.2%}; "
            f"recorded in {told['record_s']:.0f} s, trained in {told['train_s']:.0f} s"
        )


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Hold ``path`` unless another process does. The kernel releases it when the process ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
            # One that opened it before another process was done, and held it after that, finds it removed.
            path.unlink(missing_ok=True)


def do_all(settings: Sequence[Setting], arguments: argparse.Namespace) -> None:
    """Do all tasks in several processes. Raises SystemExit if one fails."""
    tasks = [paths_of(setting, seed, arguments.resume)[1] for setting in settings for seed in range(arguments.seeds)]
    workers_needed = min(arguments.jobs, sum(not path.exists() for path in tasks))
    command = [sys.executable, *sys.argv, "--resume", str(arguments.resume), "--files", str(arguments.files)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    workers = [subprocess.Popen(command, env=environment) for _ in range(workers_needed)]
    try:
        while any(worker.poll() is None for worker in workers) and not any(worker.returncode for worker in workers):
            time.sleep(0.1)
    finally:
        for worker in workers:
            worker.terminate()
        codes = [worker.wait() for worker in workers]
    if any(codes):
        raise SystemExit(next(code for code in codes if code))


def run_of(setting: Setting, seed: int, folder: Path) -> dict[str, Any]:
    return json.loads(paths_of(setting, seed, folder)[1].read_text())


def paired(values: Sequence[float], plain: Sequence[float]) -> dict[str, float | None]:
    """The mean of the differences, seed by seed, its confidence interval, and p by two tests."""
    import scipy.stats

    differences = np.subtract(values, plain)
    told: dict[str, float | None] = {"mean": float(differences.mean()), "low": None, "high": None}
    told |= {"t_p": None, "wilcoxon_p": None}
    if len(differences) < 2 or not differences.any():
        return told
    found = scipy.stats.ttest_1samp(differences, 0)
    interval = found.confidence_interval(CONFIDENCE)
    told |= {"low": float(interval.low), "high": float(interval.high), "t_p": float(found.pvalue)}
    return told | {"wilcoxon_p": float(scipy.stats.wilcoxon(differences).pvalue)}


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Each p, corrected for the number of those that are not None."""
    order = sorted((value, place) for place, value in enumerate(values) if value is not None)
    corrected: list[float | None] = [None] * len(values)
    least = 0.0
    for done, (value, place) in enumerate(order):
        least = max(least, min(1.0, value * (len(order) - done)))
        corrected[place] = least
    return corrected


def mean_of(runs: Sequence[dict[str, Any]], name: str) -> float | None:
    values = [run[name] for run in runs if run[name] is not None]
    return statistics.mean(values) if values else None


def row_of(setting: Setting, runs: Sequence[dict[str, Any]], plain: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The row of a setting. ``runs`` and ``plain`` have the same seeds."""
    last = {name: [run[name][-1] for run in runs] for name in ("accuracy", "loss")}
    beside = {name: [run[name][-1] for run in plain] for name in last}
    told: dict[str, Any] = {**asdict(setting), "setting": setting.name, "seeds": len(runs)}
    for name, values in last.items():
        told[name] = {
            "mean": statistics.mean(values),
            "deviation": statistics.stdev(values) if len(values) > 1 else None,
            "all": values,
        }
        told[f"{name}_less_plain"] = None if setting == PLAIN else paired(values, beside[name])
    told["accuracy_by_epoch"] = np.mean([run["accuracy"] for run in runs], axis=0).tolist()
    for name in ("rank_correlation", "displacement", "class_mix", "redirected", "memory_bytes", "record_s", "train_s"):
        told[name] = mean_of(runs, name)
    return told | {name: sum(run[name] for run in runs) for name in ("wrong_labels", "not_once")}


def together(rows: Sequence[dict[str, Any]], kind: str) -> dict[str, Any] | None:
    """All settings of a policy as one: the mean of their accuracies for each seed, less that of plain reading.

    Only of the seeds that all of them have.
    """
    of_kind = [row for row in rows if row["kind"] == kind]
    if len(of_kind) < 2:
        return None
    seeds = min(row["seeds"] for row in of_kind)
    means = np.mean([row["accuracy"]["all"][:seeds] for row in of_kind], axis=0).tolist()
    less = paired(means, rows[0]["accuracy"]["all"][:seeds])
    return {"kind": kind, "settings": len(of_kind), "seeds": seeds, "accuracy_less_plain": less}


def halves(rows: Sequence[dict[str, Any]]) -> None:
    """Of a setting with more seeds than others, also the differences of the seeds that all have, and of the rest.

    A setting that differs in a few seeds may get more of them. Only those are a test of that difference.
    """
    plain = rows[0]["accuracy"]["all"]
    mounted = [row for row in rows if row["chunk_size"]]
    seeds = min((row["seeds"] for row in mounted), default=0)
    for row in mounted:
        values = row["accuracy"]["all"]
        parts = [(values[:seeds], plain[:seeds]), (values[seeds:], plain[seeds : len(values)])]
        row["halves"] = [
            {"seeds": len(part), "accuracy_less_plain": paired(part, beside)} for part, beside in parts if part
        ]


def summarized(settings: Sequence[Setting], arguments: argparse.Namespace) -> dict[str, Any]:
    """The result, of those runs that are there."""
    runs = {
        setting: {
            seed: run_of(setting, seed, arguments.resume)
            for seed in range(arguments.seeds)
            if paths_of(setting, seed, arguments.resume)[1].exists()
        }
        for setting in settings
    }
    rows = []
    for setting, by_seed in runs.items():
        seeds = sorted(by_seed.keys() & runs[PLAIN].keys())
        if seeds:
            rows.append(row_of(setting, [by_seed[seed] for seed in seeds], [runs[PLAIN][seed] for seed in seeds]))
    mounted = [row for row in rows if row["chunk_size"]]
    for row, corrected in zip(mounted, holm([row["accuracy_less_plain"]["t_p"] for row in mounted]), strict=True):
        row["accuracy_less_plain"]["holm_p"] = corrected
    halves(rows)
    checkouts = [this_checkout(), *([other_checkout(arguments.against)] if arguments.against else [])]
    return {
        "machine": {**mounts.machine(), "torch": torch.__version__},
        "commits": {checkout.title: checkout.commit for checkout in checkouts},
        "data": arguments.data.name,
        "images": arguments.images,
        "test_images": len(read_images(arguments.data, "t10k")),
        "seeds": arguments.seeds,
        "epochs": arguments.epochs,
        "batch": BATCH,
        "workers": WORKERS,
        "rows": rows,
        "together": [told for kind in ("pool", "slot", "former pool") if (told := together(rows, kind))],
    }


def check_kept(arguments: argparse.Namespace) -> None:
    """Raises SystemExit if what --resume has was made with other settings."""
    path = arguments.resume / "made-with"
    made_with = f"{arguments.data.name}, --images {arguments.images}, --epochs {arguments.epochs}"
    if not path.exists():
        path.write_text(made_with)
    elif path.read_text() != made_with:
        raise SystemExit(f"{arguments.resume} was made with {path.read_text()}, and this is {made_with}")


@contextlib.contextmanager
def folders(arguments: argparse.Namespace) -> Iterator[None]:
    """Draw the files, and set where orders and results are kept."""
    with mounts.work_folder(arguments.folder) as work:
        arguments.files = work / "train"
        arguments.resume = arguments.resume or work / "runs"
        arguments.resume.mkdir(parents=True, exist_ok=True)
        check_kept(arguments)
        make_files(arguments.files, read_images(arguments.data, "train", arguments.images))
        yield


def chosen(arguments: argparse.Namespace) -> list[Setting]:
    """The settings to run; plain reading comes first. Raises SystemExit for a name of none."""
    sets = {"cross": CROSS, "retained": RETAINED, "all": ALL, "quick": QUICK}
    known = with_former(ALL, arguments)
    if arguments.settings in sets:
        return with_former(sets[arguments.settings], arguments)
    by_name = {setting.name: setting for setting in known}
    names: list[str] = [name.strip() for name in arguments.settings.split(";")]
    if unknown := [name for name in names if name not in by_name]:
        raise SystemExit(f"--settings: no {unknown[0]!r}; there are: {'; '.join(by_name)}")
    return list(dict.fromkeys([PLAIN, *(by_name[name] for name in names)]))


def with_former(settings: Sequence[Setting], arguments: argparse.Namespace) -> list[Setting]:
    """With --against, each setting of the pool also for the other checkout."""
    pools = [setting for setting in settings if setting.kind == "pool" and arguments.against]
    return [*settings, *(replace(setting, kind=f"former {setting.kind}") for setting in pools)]


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="default: 5")
    parser.add_argument("--epochs", type=int, default=6, help="default: 6")
    parser.add_argument(
        "--images", type=int, default=TRAINING, help=f"of the training images, the first N (default: {TRAINING})"
    )
    parser.add_argument(
        "--settings", default="cross", help="cross (the default), retained, all, or names with semicolons between them"
    )
    parser.add_argument("--data", type=Path, default=DEBIAN_FOLDER, help="where the images are")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="tasks at a time")
    parser.add_argument(
        "--resume", type=Path, metavar="FOLDER", help="keep orders and results here, and continue from them"
    )
    parser.add_argument("--so-far", action="store_true", help="run nothing: show the results in --resume FOLDER")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="also record the pool of this checkout")
    parser.add_argument("--folder", type=Path, help="where to make the files (default: the temporary folder)")
    parser.add_argument("--quick", action="store_true", help="2 seeds, 2 epochs, 2,000 images and three settings")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw the result here")
    parser.add_argument("--files", type=Path, help=argparse.SUPPRESS)
    arguments = parse_quick(parser, seeds=2, epochs=2, images=QUICK_TRAINING, settings="quick")
    if not BATCH <= arguments.images <= MOST_SAMPLES:
        parser.error(f"--images must be from {BATCH} to {MOST_SAMPLES:,}")
    if min(arguments.seeds, arguments.epochs, arguments.jobs) < 1:
        parser.error("--seeds, --epochs and --jobs must be at least 1")
    if arguments.so_far and not arguments.resume:
        parser.error("--so-far needs --resume FOLDER")
    if arguments.plot:
        check_plot()
    settings = chosen(arguments)
    if arguments.files:
        do_tasks(settings, arguments)
        return 0
    if arguments.so_far:
        check_kept(arguments)
        result = rounded(summarized(settings, arguments))
    else:
        with folders(arguments):
            do_all(settings, arguments)
            result = rounded(summarized(settings, arguments))
    if not result["rows"]:
        raise SystemExit(f"{arguments.resume} has no result of plain reading yet")
    Console().print(Markdown(convergence_page.page(result)))
    if arguments.json:
        write(result, arguments.json)
    if arguments.plot:
        convergence_page.plot(result, arguments.plot)
    return 1 if any(row["wrong_labels"] or row["not_once"] for row in result["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
