"""Kills the daemon at random moments while it fills a cache, and checks what the death leaves.

    scripts/bench/cache_kills.py [--kills 30] [--files 2000] [--memory-mb 32] [--seed N] [--folder DIR] [--json FILE]

Each round begins with an empty cache. 8 threads read an epoch, and SIGKILL ends the daemon, which has no keeper, at a
random moment of it. Then `redoxfs cache verify` must find no damage. Another mount with the same cache must serve a
whole epoch: each sample once, whole, with the right label, and all copies usable.

How to read the result: "kept" is the share of the samples that the cache has after the death. The exit code is 1 if
anything was wrong. 30 deaths take a few minutes. With fusermount3 it needs no root.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import mounts
from labelled import make_files, read_epoch
from results import options_of, tell
from rich.console import Console

SMALLEST_BYTES, LARGEST_BYTES = 50_000, 150_000
READERS = 8


def read_until_it_dies(server: "subprocess.Popen[bytes]", folder: Path, names: list[str], kill_after_s: float) -> None:
    """Read an epoch, and kill the daemon after so many seconds, or at the end of the epoch."""
    is_over = threading.Event()

    def kill() -> None:
        is_over.wait(kill_after_s)
        server.kill()

    def read(part: list[str]) -> None:
        # Until it is killed.
        with suppress(OSError):
            for name in part:
                (folder / name).read_bytes()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with ThreadPoolExecutor(READERS) as pool:
            list(pool.map(read, [names[number::READERS] for number in range(READERS)]))
    finally:
        is_over.set()
        killer.join()


def run(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Make the files, and kill."""
    console = Console(stderr=True)
    at_random = random.Random(arguments.seed)
    console.print(f"making {arguments.files:,} files …")
    names = make_files(work / "data", arguments.files, SMALLEST_BYTES, LARGEST_BYTES, classes=8)
    mnt, copies = work / "mnt", work / "copies"
    paths = {name: str(mnt / name) for name in names}
    options = ["--classes", "dir", "--memory", f"{arguments.memory_mb}MiB", "--cache", str(copies)]
    # In the foreground, so without a keeper.
    served = partial(mounts.served_by, mounts.redoxfs(work / "data", mnt, *options), mnt)
    with served():
        epoch_s = read_epoch(paths, READERS).seconds
    rows = []
    for number in range(1, 1 + arguments.kills):
        shutil.rmtree(copies, ignore_errors=True)
        after_s = at_random.uniform(0, epoch_s)
        at_random.shuffle(names)
        with served() as server:
            read_until_it_dies(server, mnt, names, after_s)
        verify = [sys.executable, "-P", "-m", "redoxfs", "cache", "verify", str(copies), "--json"]
        verified = json.loads(subprocess.run(verify, stdout=subprocess.PIPE, check=False).stdout)
        damaged = [entry["damaged_files"] + entry["damaged_index_bytes"] for entry in verified]
        kept = sum(entry["files"] for entry in verified)
        with served():
            epoch = read_epoch(paths, READERS)
            stats = mounts.stats(mnt)
        rows.append(
            {
                "kill": number,
                "after_s": after_s,
                "kept": kept / len(names),
                "damaged": sum(damaged),
                "wrong_labels": epoch.wrong_labels,
                "not_once": epoch.not_once,
                "errors": stats["errors"],
                "failures": stats["cache"]["failures"],
            }
        )
        wrong = sum(rows[-1][name] for name in WRONG)
        share = kept / len(names)
        console.print(f"death {number} after {after_s:.2f} s of {epoch_s:.2f}: {share:.0%} kept, {wrong} wrong")
    return {
        "machine": mounts.machine(),
        "files": arguments.files,
        "kills": arguments.kills,
        "seed": arguments.seed,
        "epoch_s": epoch_s,
        "rows": rows,
    }


WRONG = ("damaged", "wrong_labels", "not_once", "errors", "failures")


def main() -> int:
    """Run it. Returns the exit code."""
    parser = options_of(__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--memory-mb", type=int, default=32)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--folder", type=Path, help="where to make the files (default: the temporary folder)")
    arguments = parser.parse_args()
    with mounts.work_folder(arguments.folder) as work:
        result = run(arguments, work)
    tell(result, arguments.json, "kill", "after_s", "kept", *WRONG)
    return int(any(row[name] for row in result["rows"] for name in WRONG))


if __name__ == "__main__":
    sys.exit(main())
