"""Measures how many simulated accelerators one node feeds, as MLPerf Storage does, but with one file per sample.

    scripts/bench/mlperf.py [--profiles none,nas,latency,hdd] [--json FILE] [--plot FILE.svg] [--dlio PYTHON]
    scripts/bench/mlperf.py --quick

The workload is MLPerf Storage's ResNet-50: samples of 114,660 bytes, batches of 400, and a sleep for each batch that
stands for an accelerator's computation: 0.224 s for an H100, 0.435 s for an A100. An accelerator is fed if it computes
for at least 90 % of the time. Here each sample is a file; MLPerf packs them into TFRecord files. So this is a variant,
and its numbers are not MLPerf results.

Everything else follows DLIO, which MLPerf Storage runs: 8 readers for each accelerator, which read two batches ahead;
each accelerator has its share of one random order; all wait for each other after each batch; the first batch is not
counted. The utilisation is DLIO's: computation divided by time.

It searches the highest number of accelerators. First the readers run without computation, which gives a first guess.
Then it tries one accelerator more or less, until one number passes and the next does not. Each try is an epoch on a
fresh mount, without cached pages, and ends after --limit seconds at the latest.

The storage is that of scripts/bench/epoch.py: its profiles need root, "latency" needs gcc and libfuse3-dev. A cap
limits the memory for data, page cache included, to a fifth of the dataset, as MLPerf's rules require. What all
processes hold before they read does not count. With "latency" the kernel caches no pages, and there is no cap. It takes
about 12 minutes and 5 GB of disk.

With --dlio, DLIO itself also trains on the plain directory and on a mount. PYTHON is an interpreter that has it.

How to read the result: "2 (97 %)" means that 2 accelerators were busy for 97 % of the time, and 3 were busy for less
than 90 %. "0 (28 %)" means that a single one was busy for 28 %. Every file contains its own name, and must come once in
a whole epoch, with the label of the path that was opened. Otherwise the exit code is 1.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import dlio
import epoch
import mlperf_page
import mounts
import quick
import throttle
from accelerators import AHEAD, READERS, Fed, Load, feed, highest
from labelled import CLASSES, make_files
from mlperf_page import WAYS
from results import check_plot, rounded, write
from rich.console import Console

SAMPLE_BYTES = 114_660
BATCH = 400
COMPUTE_S = {"H100": 0.224, "A100": 0.435}
"""Seconds for a batch of 400: configs/dlio/workload/resnet50_*.yaml of mlcommons/storage, version 2.0 of the rules."""

FED = 0.9
"""The least utilisation: ``metric.au`` there."""

PROFILES = ("none", "nas", "latency", "hdd")

LEAST_STEPS = 5
"""Batches of each accelerator: fewer do not say much, as the first is not counted."""
LEAST_CAP_MB = 192
"""Where the dataset is small. redoxfs needs that much."""


def within(stored: epoch.Storage, folder: Path, load: Load, cap_bytes: int) -> Fed:
    """`feed` in a child where the storage is slow, with ``cap_bytes`` beside what all processes hold as they begin."""
    command = [sys.executable, __file__, "--child", str(folder), json.dumps(asdict(load))]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, preexec_fn=stored.enter, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        # It ends without a line if it fails.
        if child.stdout.readline():
            stored.leave(cap_bytes)
            child.stdin.write("\n")
        told, _ = child.communicate()
    if child.returncode:
        raise SystemExit(f"reading {folder} failed")
    return Fed(**json.loads(told))


def _all_are_there() -> None:
    """In a child: tell `within`, and wait until it has set the cap."""
    os.write(sys.stdout.fileno(), b"\n")
    os.read(sys.stdin.fileno(), 1)


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of all tries of a run. ``compute_s`` has the seconds of a batch for each accelerator."""

    work: Path
    files: int
    batch: int
    compute_s: dict[str, float]
    limit_s: float
    memory_mb: int
    cap_mb: int
    seed: int

    @property
    def most(self) -> int:
        """Accelerators that still have enough batches."""
        return self.files // (self.batch * LEAST_STEPS)

    def load(self, accelerators: int, accelerator: str | None) -> Load:
        compute_s = self.compute_s[accelerator] if accelerator else 0.0
        return Load(accelerators, self.batch, compute_s, self.limit_s, self.seed)


def tried(setting: Setting, profile: throttle.Profile, way: str, load: Load) -> dict[str, Any]:
    """One try: mount, and read. The result of `feed`, and how often the storage read the dataset."""
    with (
        epoch.storage(profile, setting.work, None) as stored,
        epoch.reading(stored, way, setting.work, setting.memory_mb) as folder,
    ):
        stored.forget()
        before = stored.read_bytes() if stored.read_bytes else 0
        found = within(stored, folder, load, setting.cap_mb << 20)
        read = stored.read_bytes() - before if stored.read_bytes else None
    served = found.steps * load.batch * load.accelerators * SAMPLE_BYTES
    return {**asdict(found), "amplification": None if read is None else read / served}


def search(setting: Setting, profile: throttle.Profile, way: str, console: Console) -> list[dict[str, Any]]:
    """A row for each accelerator: the highest number that is fed, and every try."""
    bare = tried(setting, profile, way, setting.load(1, None))
    rows = []
    for accelerator, compute_s in setting.compute_s.items():
        tries: dict[int, dict[str, Any]] = {}

        def passes(number: int, accelerator: str = accelerator, tries: dict[int, dict[str, Any]] = tries) -> bool:
            tries[number] = tried(setting, profile, way, setting.load(number, accelerator))
            console.print(f"{profile.name}, {WAYS[way]}: {number} x {accelerator}: {_share(tries[number])}")
            return bool(tries[number]["utilisation"] >= FED)

        guess = int(bare["samples_per_s"] / (FED * setting.batch / compute_s))
        found = highest(passes, guess, setting.most)
        all_tries = [bare, *tries.values()]
        rows.append(
            {
                "profile": profile.name,
                "way": way,
                "accelerator": accelerator,
                "accelerators": found,
                "is_least": found == setting.most,
                **{name: tries[max(1, found)][name] for name in ("utilisation", "samples_per_s", "amplification")},
                "bare_samples_per_s": bare["samples_per_s"],
                "tries": [{"accelerators": n, **tries[n]} for n in sorted(tries)],
                "wrong_labels": sum(each["wrong_labels"] for each in all_tries),
                "not_once": sum(each["not_once"] or 0 for each in all_tries),
                "whole_epochs": sum(each["not_once"] is not None for each in all_tries),
            }
        )
    return rows


def run(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    console = Console(stderr=True)
    console.print(f"making {arguments.files:,} files …")
    random.seed(arguments.seed)
    make_files(work / "data", arguments.files, SAMPLE_BYTES, SAMPLE_BYTES)
    total = arguments.files * SAMPLE_BYTES
    if "packed" in arguments.ways:
        mounts.pack(work / "data", work / "packed")
    setting = Setting(
        work=work,
        files=arguments.files,
        batch=arguments.batch,
        compute_s={name: COMPUTE_S[name] * arguments.batch / BATCH for name in arguments.accelerators},
        limit_s=arguments.limit,
        memory_mb=arguments.memory_mb,
        cap_mb=max(LEAST_CAP_MB, total // 5 >> 20),
        seed=arguments.seed,
    )
    rows = [
        row
        for name in arguments.profiles
        for way in arguments.ways
        for row in search(setting, throttle.PROFILES[name], way, console)
    ]
    return {
        "machine": mounts.machine(),
        "files": arguments.files,
        "bytes": total,
        "sample_bytes": SAMPLE_BYTES,
        "batch": arguments.batch,
        "compute_s": setting.compute_s,
        "readers": READERS,
        "ahead": AHEAD,
        "fed": FED,
        "memory_mb": setting.memory_mb,
        "cap_mb": setting.cap_mb,
        "limit_s": setting.limit_s,
        "rows": rows,
    }


def is_wrong(result: dict[str, Any]) -> bool:
    return any(row["wrong_labels"] or row["not_once"] for row in result["rows"])


def _share(row: dict[str, Any]) -> str:
    return f"{row['utilisation']:.0%} busy, {row['samples_per_s']:,.0f} samples/s"


def _names(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    def parsed(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(allowed)}")
        return names

    return parsed


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=19_200)
    parser.add_argument("--batch", type=int, default=BATCH, help="smaller batches compute for less time in proportion")
    parser.add_argument("--profiles", type=_names(list(throttle.PROFILES)), default=list(PROFILES))
    parser.add_argument("--ways", type=_names(list(WAYS)), default=list(WAYS))
    parser.add_argument("--accelerators", type=_names(list(COMPUTE_S)), default=list(COMPUTE_S))
    parser.add_argument("--limit", type=float, default=12.0, metavar="S", help="seconds of a try at most")
    parser.add_argument("--memory-mb", type=int, default=160, help="--memory of the mounts, MiB")
    parser.add_argument("--seed", type=int, default=0, help="of the files and the order")
    parser.add_argument("--dlio", metavar="PYTHON", help="also run DLIO, with this interpreter, which has it")
    parser.add_argument("--quick", action="store_true", help="a small dataset, two kinds of storage, under a minute")
    parser.add_argument("--dir", type=Path, help="where to make the files (default: the temporary folder)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="also draw it (needs redoxfs[plot])")
    parser.add_argument("--child", nargs=2, metavar=("FOLDER", "LOAD"), help=argparse.SUPPRESS)
    small = {"files": 2_400, "batch": 60, "limit": 2.5, "memory_mb": 48}
    given = quick.parsed(parser, **small, profiles=["none", "nas"], accelerators=["H100"])
    if given.files < 2 * given.batch:
        parser.error(f"--files {given.files} is less than two batches of {given.batch}")
    if given.files < CLASSES:
        parser.error(f"--files {given.files} is less than one for each of {CLASSES} classes")
    return given


def main() -> int:
    given = parsed()
    if given.child:
        folder, load = Path(given.child[0]), Load(**json.loads(given.child[1]))
        print(json.dumps(asdict(feed(folder, load, _all_are_there))))
        return 0
    if given.plot:
        check_plot()
    with mounts.work_folder(given.dir) as work:
        result = run(given, work)
        if given.dlio:
            result["dlio"] = dlio.measured(given.dlio, work / "dlio", result)
    result = rounded(result)
    if given.json:
        write(result, given.json)
    if given.plot:
        mlperf_page.plot(result, given.plot)
    print(mlperf_page.page(result))
    return 1 if is_wrong(result) else 0


if __name__ == "__main__":
    sys.exit(main())
