"""Runs DLIO with the RetinaNet of MLPerf Storage v3.0, which has one file per sample, on emulated storage.

    scripts/bench/retinanet.py --dlio PYTHON [--profiles filer,disk,objects] [--epochs 2] [--json FILE]
                               [--plot FILE.svg]
    scripts/bench/retinanet.py --quick

PYTHON is an interpreter that has DLIO 2.0.0; scripts/bench/dlio.py says how to install it. Its default is the variable
REDOXFS_DLIO. Without it, --quick says so and runs nothing. MLPerf Storage v3.0 runs a later revision of DLIO, which no
registry has. So these numbers are no MLPerf results.

One simulated accelerator takes a batch of 24 JPEGs and sleeps for 0.04755 s, as v3.0's does. It is fed if it computes
for at least 85 % of the time: the accelerator utilisation (AU). Four processes of DLIO read and decode the files. They
need more than two cores for that pace, so the benchmark also runs with steps of 4 and 16 times the time. If an
accelerator is fed, longer steps are left out.

DLIO makes the files, all in one directory, and reads them as a plain directory and through redoxfs: from the
directory, from a packed copy, and from a tar file. The storage is a profile of scripts/bench/throttle.py: a
filesystem (scripts/slow_store.c) with a delay in each open and read, a number of requests in service, and a bandwidth.
It keeps no pages from one open to the next. A control group caps the memory of DLIO and redoxfs, page cache included,
at a fifth of the dataset beside what the processes hold themselves. redoxfs has two thirds of that for samples.

How to read the result: "62 % (301)" is DLIO's AU, the mean of all epochs, and its samples a second of the last one. The
first row has no storage: all files are in the page cache, so this is all that the processor can do. The exit code is 1
if a mount's counters do not show that each sample came exactly once in each epoch. Needs root, gcc and libfuse3-dev.
"""

import argparse
import itertools
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import epoch
import mounts
import retinanet_page
import throttle
from dlio import BATCH, FED, STEP_S, THREADS, VERSION, Dlio, DlioError
from results import check_plot, options_of, parse_quick, rounded, write
from retinanet_page import WAYS
from rich.console import Console

PROFILES = ("filer", "disk", "objects")
TIMES = (1, 4, 16)

CLASSES = "any"
"""DLIO has no labels. All its files are in one directory."""

LEEWAY_MB = 64
"""For what the processes hold at times: the most memory of DLIO differs by some 20 MB from run to run."""

LEAST_CAP_MB = 40
"""Where the dataset is small. redoxfs needs that much."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of all runs."""

    dlio: Dlio
    work: Path
    files: int
    epochs: int
    cap_mb: int

    @property
    def memory_mb(self) -> int:
        """Memory of a mount, for samples."""
        return self.cap_mb * 2 // 3

    def train(self, folder: Path, times: int, group: throttle.Group, watch: Callable[[], object]) -> dict[str, Any]:
        """Run DLIO in the group. Raises DlioError."""
        report = self.dlio.train(folder, self.files, self.epochs, STEP_S * times, group.take, watch)
        return {
            "times": times,
            "utilisation": statistics.mean(report.utilisation),
            # The first epoch has the start of the workers, which takes as long as many a scaled-down epoch.
            "files_per_s": report.samples_per_s[-1],
            "mean_files_per_s": statistics.mean(report.samples_per_s),
            # Of the last minute, of all programs, DLIO's own five processes included.
            "load": os.getloadavg()[0],
        }


def without_storage(setting: Setting) -> tuple[dict[str, Any], int]:
    """A row for the page cache, and the most memory that DLIO held itself."""
    most = 0

    with throttle.throttled(throttle.PROFILES["none"], None, setting.work) as group:

        def watch() -> None:
            nonlocal most
            most = max(most, group.used_bytes())

        row = setting.train(setting.work / "data", 1, group, watch)
    return {"profile": "none", "way": "plain", **row}, most


def measured(setting: Setting, profile: throttle.Profile, way: str, times: int, dlio_bytes: int) -> dict[str, Any]:
    """A row: DLIO's figures, what the storage was asked for, and the counters of a mount."""
    work = setting.work
    with (
        throttle.throttled(throttle.PROFILES["none"], None, work) as group,
        epoch.storage(profile, work, None) as stored,
        epoch.reading(replace(stored, enter=group.enter), way, work, setting.memory_mb, classes=CLASSES) as folder,
    ):
        group.limit_memory(group.used_bytes() + dlio_bytes + (setting.cap_mb + LEEWAY_MB << 20))
        store = stored.source.parent
        before = throttle.store_read(store)
        row = setting.train(folder, times, group, lambda: None)
        after = throttle.store_read(store)
        counted = {} if way == "plain" else counters(mounts.stats(folder))
    read = {"storage_requests": after[0] - before[0], "storage_bytes": after[1] - before[1]}
    return {"profile": profile.name, "way": way, **row, **read, **counted}


def counters(stats: dict[str, Any]) -> dict[str, int]:
    """Those of a mount that tell whether each sample came once in each epoch, of all its trees together."""
    passes = stats["passes"].values()
    return {
        "opens": stats["opens"],
        "epochs_complete": sum(each["complete"] for each in passes),
        "epochs_early": sum(each["early"] for each in passes),
        "given_twice": stats["passes_given_twice"],
        "errors": stats["errors"],
    }


def is_wrong(result: dict[str, Any]) -> bool:
    """Whether a mount gave a sample not exactly once in an epoch, as far as its counters tell."""
    wanted = {
        "opens": result["files"] * result["epochs"],
        "epochs_complete": result["epochs"],
        **dict.fromkeys(("epochs_early", "given_twice", "errors"), 0),
    }
    mounted = [row for row in result["rows"] if row["way"] != "plain"]
    return any(row[name] != number for row in mounted for name, number in wanted.items())


def run(arguments: argparse.Namespace, work: Path, dlio: Dlio) -> dict[str, Any]:
    """Raises DlioError."""
    console = Console(stderr=True)
    console.print(f"making {arguments.files:,} files …")
    dlio.make_files(work / "data", arguments.files)
    total = sum(path.stat().st_size for path in (work / "data/train").iterdir())
    if "packed" in arguments.ways:
        mounts.pack(work / "data", work / "packed", classes=CLASSES)
    if "archive" in arguments.ways:
        subprocess.run(["tar", "-C", work / "data", "-cf", work / "all.tar", "."], check=True)
    cap_mb = max(LEAST_CAP_MB, total // 5 >> 20)
    setting = Setting(dlio, work, arguments.files, arguments.epochs, cap_mb)
    row, dlio_bytes = without_storage(setting)
    rows = [row]
    fed = set()
    for times in sorted(arguments.times):
        for profile, way in itertools.product(arguments.profiles, arguments.ways):
            if (profile, way) in fed:
                continue
            row = measured(setting, throttle.PROFILES[profile], way, times, dlio_bytes)
            told = f"{row['utilisation']:.0%}, {row['files_per_s']:,.0f} files/s"
            console.print(f"{profile}, {WAYS[way]}, {times} x {STEP_S} s: {told}")
            rows.append(row)
            if row["utilisation"] >= FED:
                fed.add((profile, way))
    return {
        "machine": mounts.machine(),
        "dlio": VERSION,
        "files": arguments.files,
        "bytes": total,
        "epochs": arguments.epochs,
        "batch": BATCH,
        "step_s": STEP_S,
        "threads": THREADS,
        "fed": FED,
        "cap_mb": cap_mb,
        "memory_mb": setting.memory_mb,
        "dlio_mb": dlio_bytes >> 20,
        "leeway_mb": LEEWAY_MB,
        "rows": rows,
    }


def _names(allowed: Collection[str]) -> Callable[[str], list[str]]:
    def parsed(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(allowed)}")
        return names

    return parsed


def parsed() -> argparse.Namespace:
    parser = options_of(__doc__)
    stores = [name for name, profile in throttle.PROFILES.items() if profile.delay_ms is not None]
    parser.add_argument("--dlio", metavar="PYTHON", default=os.environ.get("REDOXFS_DLIO"), help="which has DLIO")
    parser.add_argument("--files", type=int, default=1_200, help=f"a multiple of {BATCH}")
    parser.add_argument("--epochs", type=int, default=2, help="MLPerf has 8")
    parser.add_argument("--profiles", type=_names(stores), default=list(PROFILES))
    parser.add_argument("--ways", type=_names(WAYS), default=list(WAYS))
    parser.add_argument(
        "--times",
        type=lambda text: [int(part) for part in text.split(",")],
        default=list(TIMES),
        help=f"how many times {STEP_S} s a step takes",
    )
    parser.add_argument("--quick", action="store_true", help="a small dataset, one kind of storage")
    parser.add_argument("--dir", type=Path, help="where to make the files (default: the temporary folder)")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="also draw it (needs redoxfs[plot])")
    given = parse_quick(parser, files=10 * BATCH, epochs=1, profiles=["filer"], times=[TIMES[-1]])
    if given.files < 2 * BATCH or given.files % BATCH:
        parser.error(f"--files {given.files} is not two or more batches of {BATCH}")
    if "plain" not in given.ways:
        parser.error("--ways needs plain, which the others are compared with")
    if not given.dlio and not given.quick:
        parser.error("--dlio PYTHON is missing, or REDOXFS_DLIO: scripts/bench/dlio.py says how to install DLIO")
    return given


def main() -> int:
    given = parsed()
    if not given.dlio:
        print("retinanet.py: nothing is run without DLIO: give --dlio PYTHON, or set REDOXFS_DLIO", file=sys.stderr)
        return 0
    if given.plot:
        check_plot()
    with mounts.work_folder(given.dir) as work:
        try:
            with Dlio(given.dlio) as dlio:
                result = rounded(run(given, work, dlio))
        except DlioError as failure:
            raise SystemExit(f"DLIO: {failure}") from None
    if given.json:
        write(result, given.json)
    if given.plot:
        retinanet_page.plot(result, given.plot)
    print(retinanet_page.page(result))
    return 1 if is_wrong(result) else 0


if __name__ == "__main__":
    sys.exit(main())
