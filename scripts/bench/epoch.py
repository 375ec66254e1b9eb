"""One epoch in random order from slow storage: the plain directory, redoxfs on it, redoxfs on a packed copy.

    scripts/bench/epoch.py [--files 20480] [--profiles nas,hdd,none] [--ways plain,directory,packed,sweep] [--json]

8 processes share the epoch, as the workers of one job do. They read each file whole, from a cold cache. A cap limits
the storage's reads and bytes a second, and another the memory of all processes together, page cache included. The
profiles are those of scripts/bench/throttle.py, which needs root. Scanning, packing (once for a dataset) and
mounting are not timed.

How to read the result: "plain directory" is the rate without redoxfs, and "x plain" the gain over it. "bare sweep"
reads the packed shards from end to end and does nothing else, so nothing can be faster; "of sweep" is a share of that.
"read" is what the storage read, as a multiple of the dataset. Every file holds its own name: each must come exactly
once, with the label of the path that was opened. The exit code is 1 if one does not.
"""

import argparse
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import mounts
import throttle
from rich.console import Console
from rich.table import Table

PROCESSES = 8
CLASSES = 64
SMALLEST_BYTES, LARGEST_BYTES = 50_000, 150_000
NAME_BYTES = 64
SWEEP_BYTES = 4 << 20

WAYS = {
    "plain": "plain directory",
    "directory": "redoxfs, directory",
    "packed": "redoxfs, packed",
    "sweep": "bare sweep",
}


def make_files(source: Path, count: int, classes: int = CLASSES) -> int:
    """Make files of random bytes that begin with their names. Returns the total in bytes."""
    total = 0
    for label in range(classes):
        (source / f"class{label:02}").mkdir(parents=True)
        for i in range(label, count, classes):
            name = f"class{label:02}/{i:07}.jpg"
            length = random.randrange(SMALLEST_BYTES, LARGEST_BYTES)
            (source / name).write_bytes(name.encode().ljust(NAME_BYTES) + random.randbytes(length - NAME_BYTES))
            total += length
    return total


def read_epoch(root: Path) -> dict[str, Any]:
    """Read all files under ``root`` in child processes. Returns the time and the number of errors."""
    names = sorted(f"{path.parent.name}/{path.name}" for path in root.glob("class*/*"))
    random.Random(0).shuffle(names)
    fork = multiprocessing.get_context("fork")
    start, answers = fork.Barrier(PROCESSES + 1), fork.SimpleQueue()

    def work(number: int) -> None:
        seen, wrong = [], 0
        start.wait()
        for name in names[number::PROCESSES]:
            with open(root / name, "rb") as file:
                got = file.read()[:NAME_BYTES].rstrip().decode()
            wrong += got.partition("/")[0] != name.partition("/")[0]
            seen.append(got)
        answers.put((seen, wrong))

    processes = [fork.Process(target=work, args=(number,), daemon=True) for number in range(PROCESSES)]
    for process in processes:
        process.start()
    start.wait()
    began = time.monotonic()
    found = [answers.get() for _ in processes]
    took = time.monotonic() - began
    for process in processes:
        process.join()
    seen = [name for part, _ in found for name in part]
    return {
        "seconds": took,
        "wrong_labels": sum(wrong for _, wrong in found),
        "not_once": len(names) - len(set(seen)) + len(seen) - len(set(seen)),
    }


def sweep(folder: Path) -> dict[str, Any]:
    """Read all shards from end to end. Returns the time."""
    began = time.monotonic()
    for path in sorted(folder.glob("samples-*.tar")):
        with open(path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while file.read(SWEEP_BYTES):
                pass
    return {"seconds": time.monotonic() - began, "wrong_labels": 0, "not_once": 0}


def within(group: throttle.Group, what: str, folder: Path) -> dict[str, Any]:
    """Run this program as a child in the group. Returns the result of `what` on ``folder``."""
    command = [sys.executable, __file__, "--child", what, str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, preexec_fn=group.enter)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def measure(
    work: Path, way: str, profile: throttle.Profile, total: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    source, packed, mnt = work / "data", work / "packed", work / "mnt"
    with throttle.throttled(profile, arguments.cap_mb << 20, work) as group:
        stats = None
        if way in ("plain", "sweep"):
            throttle.drop_caches()
            before = group.read_bytes()
            found = within(group, way, source if way == "plain" else packed)
        else:
            options = ["--memory", f"{arguments.memory_mb}MiB", *arguments.options]
            options += ["--classes", "dir"] if way == "directory" else []
            command = mounts.redoxfs(source if way == "directory" else packed, mnt, *options)
            with mounts.served_by(command, mnt, group.enter):
                throttle.drop_caches()
                before = group.read_bytes()
                found = within(group, "plain", mnt)
                stats = mounts.stats(mnt)
        found["storage_bytes"] = group.read_bytes() - before
    return {
        "way": way,
        "profile": profile.name,
        **found,
        "files_per_s": arguments.files / found["seconds"],
        "mb_per_s": total / found["seconds"] / 1e6,
        "amplification": found["storage_bytes"] / total,
        "stats": stats,
    }


def run(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    console = Console(stderr=True)
    console.print(f"making {arguments.files:,} files …")
    total = make_files(work / "data", arguments.files)
    redoxfs = [sys.executable, "-m", "redoxfs"]
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([*redoxfs, "pack", "--classes", "dir", work / "data", work / "packed"], **quiet)  # type: ignore[call-overload]
    rows = []
    for profile in arguments.profiles.split(","):
        for way in arguments.ways.split(","):
            console.print(f"{profile}: {WAYS[way]} …")
            rows.append(measure(work, way, throttle.PROFILES[profile], total, arguments))
    return {
        "machine": mounts.machine(),
        "files": arguments.files,
        "bytes": total,
        "processes": PROCESSES,
        "memory_mb": arguments.memory_mb,
        "cap_mb": arguments.cap_mb,
        "options": arguments.options,
        "rows": rows,
    }


def show(result: dict[str, Any]) -> None:
    console = Console()
    on = result["machine"]
    console.print(f"{on['cores']} cores, {on['cpu']}, Linux {on['kernel']}")
    console.print(
        f"{result['files']:,} files, {result['bytes'] / 1e9:.2f} GB, {result['processes']} readers; "
        f"{result['memory_mb']} MiB for redoxfs, {result['cap_mb']} MiB for all with the page cache"
    )
    for profile in dict.fromkeys(row["profile"] for row in result["rows"]):
        rows = {row["way"]: row for row in result["rows"] if row["profile"] == profile}
        table = Table(title=_title(throttle.PROFILES[profile]))
        for column in ("", "files/s", "MB/s", "x plain", "of sweep", "read", "waits"):
            table.add_column(column, justify="right" if column else "left", no_wrap=True)
        for way, row in rows.items():
            table.add_row(
                WAYS[way],
                f"{row['files_per_s']:,.0f}",
                f"{row['mb_per_s']:,.0f}",
                f"{row['files_per_s'] / rows['plain']['files_per_s']:.2f}" if "plain" in rows else "",
                f"{row['files_per_s'] / rows['sweep']['files_per_s']:.0%}" if "sweep" in rows else "",
                f"{row['amplification']:.2f} x",
                f"{row['stats']['in_flight_waits'] + row['stats']['demand_loads']:,}" if row["stats"] else "",
            )
        console.print(table)
    wrong = [row for row in result["rows"] if row["wrong_labels"] or row["not_once"]]
    for row in wrong:
        console.print(f"{row['profile']}, {row['way']}: {row['wrong_labels']} wrong labels, {row['not_once']} not once")


def _title(profile: throttle.Profile) -> str:
    if profile.reads_per_s is None or profile.bytes_per_s is None:
        return f"{profile.name}: not capped"
    return f"{profile.name}: {profile.reads_per_s} reads/s, {profile.bytes_per_s / 1e6:.0f} MB/s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=20_480)
    parser.add_argument("--profiles", default="nas,hdd,none")
    parser.add_argument("--ways", default="plain,directory,packed,sweep")
    parser.add_argument("--memory-mb", type=int, default=256, help="--memory of the mounts, MiB")
    parser.add_argument(
        "--cap-mb", type=int, default=768, help="cap on the memory of all processes and their page cache, MiB"
    )
    parser.add_argument(
        "--folder", type=Path, help="where to make the files, on the disk to measure (default: the temporary folder)"
    )
    parser.add_argument("--options", nargs="*", default=[], help="further options of redoxfs mount")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", nargs=2, metavar=("WHAT", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        what, folder = arguments.child
        print(json.dumps(read_epoch(Path(folder)) if what == "plain" else sweep(Path(folder))))
        return 0
    with tempfile.TemporaryDirectory(prefix="redoxfs-bench-", dir=arguments.folder) as folder:
        os.environ["XDG_CACHE_HOME"] = os.environ["XDG_STATE_HOME"] = folder
        result = run(arguments, Path(folder))
    print(json.dumps(result, indent=2)) if arguments.json else show(result)
    return 1 if any(row["wrong_labels"] or row["not_once"] for row in result["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
