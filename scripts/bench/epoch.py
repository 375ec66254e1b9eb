"""Epochs in random order from slow storage: the plain directory, redoxfs on it, redoxfs on a packed copy.

    scripts/bench/epoch.py [--files 20480] [--profiles nas,hdd,none] [--ways plain,directory,packed,sweep,archive,cache]
                           [--json FILE]
                           [--epochs 1] [--cold] [--memory-mb 256] [--cap-mb 768] [--against CHECKOUT]
    scripts/bench/epoch.py --profiles latency [--readers 4,8,16] [--rounds 1] [--json FILE]

8 processes share the epoch, as the workers of one job do. They read each file whole. At first no file is in the
page cache. Names and inodes are cached, since a plain job lists the files before its epoch, and redoxfs scans them. A
cap limits the storage's reads and bytes a second, and another the memory of all processes together, page cache
included. The profiles are those of scripts/bench/throttle.py, which needs root. Scanning, packing (once for a dataset)
and mounting are not timed.

One epoch is read from an empty page cache and, by redoxfs, with empty memory. With --epochs, more follow at once: from
the second on, redoxfs has what its memory keeps, and the plain directory what the page cache has of it, unless --cold
drops that before each epoch. --against measures another checkout of redoxfs on the packed copy in the same run, with
the Python of its .venv.

The way "archive" is redoxfs on a tar of a tar for each class, as ImageNet comes. "cache" is redoxfs on the directory
with --cache: on the same disk, and under the same caps, so that its second epoch shows whether copies are read as fast
as a packed dataset. With a store it is on the disk below the delay, as a local disk beside a slow network; --cache-on
names a folder on another disk.

The profiles "filer", "parallel", "disk", "volume" and "objects" are stores: a filesystem (scripts/slow_store.c) with a
delay in each request, a number of requests in service, and a bandwidth. A long read is one request there, while a cap
counts each MiB of it. It keeps no pages from one open to the next. "latency" is one with a delay of 2 ms alone. It
serves many requests at a time, so more processes get more from it: the benchmark runs with 4, 8 and 16, and has no
sweep. Stores need gcc and libfuse3-dev, and no root.

How to read the result: "plain" is the rate without redoxfs, and "over plain" the gain over it, in the median; "over
other", over the other checkout. "sweep" reads the packed shards from end to end and does nothing else, so nothing can
be faster in the first epoch; "of sweep" is a share of that. "amplification" is what the storage read, as a multiple of
the dataset, and "kept" the share of the samples that the cache has after the epoch. Every file holds its own name: each
must come exactly once in each epoch, with the label of the path that was opened. The exit code is 1 if one does not.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import mounts
import throttle
from full_path import other_checkout
from labelled import make_files, read_epoch
from results import Row, medians, options_of, tell
from rich.console import Console

READERS = [8]
LATENCY_READERS = [4, 8, 16]
SMALLEST_BYTES, LARGEST_BYTES = 50_000, 150_000
SWEEP_BYTES = 4 << 20

WAYS = {
    "plain": "plain directory",
    "directory": "redoxfs, directory",
    "packed": "redoxfs, packed",
    "archive": "redoxfs, a tar of tars",
    "cache": "redoxfs, --cache",
    "against": "the other checkout, packed",
    "sweep": "bare sweep",
}
COLUMNS = (
    *("profile", "readers", "way", "epoch", "files_per_s", "mb_per_s", "over_plain", "over_other", "of_sweep"),
    *("amplification", "waits", "kept", "wrong_labels", "not_once"),
)


@dataclass(frozen=True, slots=True)
class Storage:
    """Where a profile's files are, and what its storage has read."""

    folder: Path
    """That of ``work``, as the storage has it."""
    counted: Callable[[], tuple[int, int]]
    """The requests and the bytes so far."""
    enter: Callable[[], None] | None = None
    """Processes that are measured call it between fork and exec."""
    forget: Callable[[], None] = lambda: None
    """Drops all pages of it that the kernel has cached. Names and inodes stay, as if a job had just listed them."""
    leave: Callable[[int], None] = lambda _more_bytes: None
    """Caps the memory of the processes and their page cache: so much beside what the processes hold now."""

    @property
    def source(self) -> Path:
        return self.folder / "data"

    @property
    def packed(self) -> Path:
        return self.folder / "packed"

    @property
    def archive(self) -> Path:
        return self.folder / "all.tar"


def make_dataset(work: Path, files: int, console: Console, *, has_archive: bool = False) -> int:
    """Make the files, a packed copy, and perhaps a tar of a tar for each class. Returns the bytes of the files."""
    console.print(f"making {files:,} files …")
    names = make_files(work / "data", files, SMALLEST_BYTES, LARGEST_BYTES)
    mounts.pack(work / "data", work / "packed")
    if has_archive:
        (work / "inner").mkdir()
        for folder in sorted((work / "data").iterdir()):
            subprocess.run(["tar", "-C", folder, "-cf", work / f"inner/{folder.name}.tar", "."], check=True)
        subprocess.run(["tar", "-C", work / "inner", "--remove-files", "-cf", work / "all.tar", "."], check=True)
    return sum((work / "data" / name).stat().st_size for name in names)


@contextmanager
def storage(profile: throttle.Profile, work: Path, cap_bytes: int | None) -> Iterator[Storage]:
    if profile.delay_ms is None:
        with throttle.throttled(profile, cap_bytes, work) as group:

            def leave(more_bytes: int) -> None:
                group.limit_memory(group.used_bytes() + more_bytes)

            def counted() -> tuple[int, int]:
                return group.reads(), group.read_bytes()

            yield Storage(work, counted, group.enter, partial(throttle.drop_caches, names=False), leave)
        return
    slow = work / "slow"
    program = mounts.compiled(mounts.HERE.parent / "slow_store.c", work)
    with mounts.served_by(profile.store(program, work, slow), slow):
        yield Storage(slow, lambda: throttle.store_read(slow))


@contextmanager
def reading(
    stored: Storage,
    way: str,
    work: Path,
    memory_mb: int,
    *options: str,
    classes: str = "dir",
    python: str = sys.executable,
) -> Iterator[Path]:
    """Where the files are read: "plain", or a mount of the "directory", of the "packed" copy or of the "archive".

    "sweep": the copy.

    The daemon is that of the redoxfs of ``python``.
    """
    if way == "plain":
        yield stored.source
        return
    if way == "sweep":
        yield stored.packed
        return
    mnt = work / "mnt"
    source = {"packed": stored.packed, "archive": stored.archive}.get(way, stored.source)
    redirected = [] if way == "packed" else ["--classes", classes]
    command = mounts.redoxfs(source, mnt, "--memory", f"{memory_mb}MiB", *redirected, *options, python=python)
    with mounts.served_by(command, mnt, stored.enter):
        yield mnt


def read_all(folder: Path, readers: int) -> Row:
    """Read all files of a directory in random order. Returns the time and the number of errors."""
    names = [f"{path.parent.name}/{path.name}" for path in folder.glob("class*/*")]
    return read_epoch({name: str(folder / name) for name in names}, readers).told


def sweep(folder: Path) -> Row:
    """Read all shards from end to end. Returns the time."""
    began = time.monotonic()
    for path in sorted(folder.glob("samples-*.tar")):
        with open(path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while file.read(SWEEP_BYTES):
                pass
    return {"seconds": time.monotonic() - began, "wrong_labels": 0, "not_once": 0}


def within(stored: Storage, folder: Path, readers: int) -> Row:
    """Run this program as a child where the storage is slow. Returns the result of `read_all`; 0 readers: `sweep`."""
    command = [sys.executable, __file__, "--child", str(folder), str(readers)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, preexec_fn=stored.enter)
    return json.loads(done.stdout)


def measure(
    work: Path,
    way: str,
    profile: throttle.Profile,
    readers: int,
    total: int,
    arguments: argparse.Namespace,
    epochs: int = 1,
) -> list[Row]:
    """A row for each epoch."""
    rows = []
    source, python, options = way, sys.executable, arguments.options
    if way == "against":
        source, python = "packed", other_checkout(arguments.against).python
    elif way == "cache":
        copies = (arguments.cache_on or work) / "copies"
        shutil.rmtree(copies, ignore_errors=True)
        source, options = "directory", [*options, "--cache", str(copies)]
    with (
        storage(profile, work, arguments.cap_mb << 20) as stored,
        reading(stored, source, work, arguments.memory_mb, *options, python=python) as folder,
    ):
        for number in range(1, 1 + (1 if way == "sweep" else epochs)):
            if number == 1 or arguments.cold:
                stored.forget()
            _, before = stored.counted()
            found = within(stored, folder, 0 if way == "sweep" else readers)
            stats = mounts.stats(folder) if source in ("directory", "packed", "archive") else {}
            read_bytes = stored.counted()[1] - before
            rows.append(
                {
                    "way": way,
                    "profile": profile.name,
                    "readers": readers,
                    "epoch": number,
                    **found,
                    "storage_bytes": read_bytes,
                    "files_per_s": arguments.files / found["seconds"],
                    "mb_per_s": total / found["seconds"] / 1e6,
                    "amplification": read_bytes / total,
                    "waits": stats["in_flight_waits"] + stats["demand_loads"] if stats else None,
                    "kept": stats["cache"]["samples"] / arguments.files if way == "cache" else None,
                }
            )
    return rows


def run(arguments: argparse.Namespace, work: Path) -> Row:
    console = Console(stderr=True)
    total = make_dataset(work, arguments.files, console, has_archive="archive" in arguments.ways)
    rows = []
    for profile in (throttle.PROFILES[name] for name in arguments.profiles.split(",")):
        is_delayed = profile.delay_ms is not None and profile.at_once is None
        ways = [way for way in arguments.ways.split(",") if not (is_delayed and way == "sweep")]
        ways += ["against"] if arguments.against else []
        for readers in arguments.readers or (LATENCY_READERS if is_delayed else READERS):
            for number in range(arguments.rounds):
                for way in ways:
                    console.print(f"{profile.name}, {readers} readers, round {number + 1}: {WAYS[way]} …")
                    of_way = measure(work, way, profile, readers, total, arguments, arguments.epochs)
                    rows += [{"round": number + 1, **row} for row in of_way]
    rows = with_ratios(rows)
    return {
        "machine": mounts.machine(),
        "files": arguments.files,
        "bytes": total,
        "rounds": arguments.rounds,
        "epochs": arguments.epochs,
        "against": other_checkout(arguments.against).commit if arguments.against else None,
        "memory_mb": arguments.memory_mb,
        "cap_mb": arguments.cap_mb,
        "options": " ".join(arguments.options),
        "rows": medians(rows, "profile", "readers", "way", "epoch"),
        "all": rows,
    }


def with_ratios(rows: list[Row]) -> list[Row]:
    """``rows``, with the rate as a multiple of that of other ways, in the same round and epoch."""
    rate = {
        (row["profile"], row["readers"], row["round"], row["way"], row["epoch"]): row["files_per_s"] for row in rows
    }

    def over(row: Row, way: str, epoch: int) -> float | None:
        other = rate.get((row["profile"], row["readers"], row["round"], way, epoch))
        return other and row["files_per_s"] / other

    return [
        row
        | {
            "over_plain": over(row, "plain", row["epoch"]),
            "over_other": over(row, "against", row["epoch"]) if row["way"] == "packed" else None,
            "of_sweep": over(row, "sweep", 1),
        }
        for row in rows
    ]


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--files", type=int, default=20_480)
    parser.add_argument("--profiles", default="nas,hdd,none")
    parser.add_argument("--ways", default="plain,directory,packed,sweep")
    parser.add_argument(
        "--readers",
        type=lambda text: [int(part) for part in text.split(",")],
        help=f"numbers of processes (default: {READERS[0]}; latency: {','.join(map(str, LATENCY_READERS))})",
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=1, help="one after the other on each mount")
    parser.add_argument("--cold", action="store_true", help="drop the page cache before each epoch, not only the first")
    parser.add_argument("--cache-on", type=Path, metavar="DIR", help='where the cache of the way "cache" lies')
    parser.add_argument("--against", type=Path, help="another checkout of redoxfs, with a .venv")
    parser.add_argument("--memory-mb", type=int, default=256, help="--memory of the mounts, MiB")
    parser.add_argument(
        "--cap-mb", type=int, default=768, help="cap on the memory of all processes and their page cache, MiB"
    )
    parser.add_argument(
        "--folder", type=Path, help="where to make the files, on the disk to measure (default: the temporary folder)"
    )
    parser.add_argument("--options", nargs="*", default=[], help="further options of redoxfs mount")
    parser.add_argument("--child", nargs=2, metavar=("FOLDER", "READERS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        folder, readers = Path(arguments.child[0]), int(arguments.child[1])
        print(json.dumps(read_all(folder, readers) if readers else sweep(folder)))
        return 0
    with mounts.work_folder(arguments.folder) as work:
        result = run(arguments, work)
    tell(result, arguments.json, *COLUMNS)
    return 1 if any(row["wrong_labels"] or row["not_once"] for row in result["all"]) else 0


if __name__ == "__main__":
    sys.exit(main())
