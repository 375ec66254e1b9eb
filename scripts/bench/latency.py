"""How long an open of a resident sample takes, idle and under load: median, p99, p99.9 and longest, in µs.

    scripts/bench/latency.py [--files 60000] [--rounds 5] [--mode default|page_cache|direct_io] [--json FILE]

One process calls os.open and os.close, one after the other, and both are timed. The close waits for nothing, but the
next open meets the daemon at its RELEASE, as it does in a training job. It needs FUSE and `find`.

Every file is a sample, and there is memory for half of them. After an epoch, which fills the memory, four parts of the
files are for the four rows; each of these files is opened once. The rest are for two processes that read any of them,
over and over. Each turn of a sample that does not stay in memory makes redoxfs load another, so it loads in every row,
and the more the more processes read. One row is idle but for that, in one a process lists the mount, in one the two
processes read, and in one both happen.

Some opens come before their bytes are in memory. The mount's access log tells them apart; they are left out of the
figures, and "waited" counts them. The log is read between groups of opens, while none is timed. For each open it costs
the daemon less than a microsecond.

Each round has a mount of its own. The figures are medians of the rounds, but "waited" and "longest" are the most of
any round.

The script fails if nothing was loaded during the opens of a row with readers.

How to read the result: the processes that make the load take CPU time from the one that measures. So under the same
load the same files are also opened in the directory underneath. The row "underneath" is the machine's share of the
time, and the rest is the filesystem's. Aim: a p99 below 1,500 µs in the rows under load.
"""

import multiprocessing
import os
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import mounts
from results import medians, options_of, tell

from redoxfs.chunks.layout import RESIDENT_SHARE
from redoxfs.telemetry import Outcome
from redoxfs.telemetry.access_log import lost_of, parse

FILE_BYTES = 10_000
FILES_PER_FOLDER = 1000
LOADS = (("idle", 0, 0), ("find", 0, 1), ("loads", 2, 0), ("both", 2, 1))
"""Title, processes that read, processes that list."""

IN_MEMORY_SHARE = 0.5
"""Share of the files."""

LOADED_SHARE = 0.2
"""Share of the files that are read to cause loads."""

GROUP = 4000
"""Opens between two looks at the access log, which keeps the last 65,536 of all processes."""

PATIENCE_S = 60
MODES = {"default": [], "page_cache": ["-o", "page_cache"], "direct_io": ["-o", "direct_io"]}

fork = multiprocessing.get_context("fork")


def make_files(source: Path, count: int) -> list[str]:
    names = [f"{i // FILES_PER_FOLDER:03}/{i:06}.jpg" for i in range(count)]
    for name in names:
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.randbytes(FILE_BYTES))
    return names


def read_on(paths: list[str], passes: Any, stop: Any) -> None:
    """Read random files, over and over, until ``stop`` is set. In rotation, they would at times all be in memory."""
    while not stop.is_set():
        for _ in paths:
            with open(random.choice(paths), "rb") as file:
                file.read()
        passes.release()


def find_on(root: str, passes: Any, stop: Any) -> None:
    """List the mount until ``stop`` is set."""
    while not stop.is_set():
        subprocess.run(["find", root], check=True, stdout=subprocess.DEVNULL)
        passes.release()


@contextmanager
def busy(target: Callable[..., None], what: Any) -> Iterator[None]:
    """Run a process that makes load. The block begins after its first pass."""
    passes, stop = fork.Semaphore(0), fork.Event()
    process = fork.Process(target=target, args=(what, passes, stop), daemon=True)
    process.start()
    try:
        if not passes.acquire(timeout=PATIENCE_S):
            raise SystemExit(f"{target.__name__} did not finish a pass within {PATIENCE_S} s")
        yield
    finally:
        stop.set()
        process.join(PATIENCE_S)
        process.kill()


def open_times_us(paths: list[str]) -> list[float]:
    times = []
    for path in paths:
        began = time.perf_counter_ns()
        os.close(os.open(path, os.O_RDONLY))
        times.append((time.perf_counter_ns() - began) / 1000)
    return times


def waits(log: BinaryIO, count: int) -> list[bool]:
    """Whether each of the last ``count`` opens of this process waited."""
    found: list[bool] = []
    while len(found) < count:
        line = log.readline()
        if lost_of(line):
            raise SystemExit("the access log has lost lines, so which opens waited is not known")
        if not line.startswith(b"#") and (access := parse(line)).pid == os.getpid():
            found.append(access.outcome is not Outcome.RESIDENT)
    return found


def summary(times: list[float]) -> dict[str, float]:
    thousandths = statistics.quantiles(times, n=1000)
    return {"median": thousandths[499], "p99": thousandths[989], "p99.9": thousandths[998], "longest": max(times)}


def measure(work: Path, count: int, mode: str) -> dict[str, Any]:
    source, root = work / "data", work / "mnt"
    names = make_files(source, count)
    random.shuffle(names)
    memory = str(int(count * FILE_BYTES * IN_MEMORY_SHARE / RESIDENT_SHARE))
    command = mounts.redoxfs(source, root, "--classes", "any", "--memory", memory, *MODES[mode])
    rows = []
    with mounts.served_by(command, root):
        subprocess.run(["find", root], check=True, stdout=subprocess.DEVNULL)  # from here on the kernel knows all names
        for name in names:
            (root / name).read_bytes()
        loaded = [str(root / name) for name in names[: int(count * LOADED_SHARE)]]
        measured = names[len(loaded) :]
        for i, (title, loaders, finders) in enumerate(LOADS):
            part = measured[i :: len(LOADS)]
            with ExitStack() as stack:
                for j in range(loaders):
                    stack.enter_context(busy(read_on, loaded[j::loaders]))
                for _ in range(finders):
                    stack.enter_context(busy(find_on, str(root)))
                log = stack.enter_context((root / ".redoxfs/accesslog").open("rb"))
                times, waited, loads = [], 0, 0
                for start in range(0, len(part), GROUP):
                    before = mounts.stats(root)["chunk_loads"]
                    took = open_times_us([str(root / name) for name in part[start : start + GROUP]])
                    loads += mounts.stats(root)["chunk_loads"] - before
                    for took_us, has_waited in zip(took, waits(log, len(took)), strict=True):
                        if has_waited:
                            waited += 1
                        else:
                            times.append(took_us)
                underneath = open_times_us([str(source / name) for name in part])
            if loaders and not loads:
                raise SystemExit(f"{title}: nothing was loaded during {len(part)} opens")
            rows.append(
                {
                    "load": title,
                    "opens": len(part),
                    "waited": waited,
                    **{f"{name}_us": took for name, took in summary(times).items()},
                    **{f"underneath_{name}_us": took for name, took in summary(underneath).items()},
                    "loads": loads,
                }
            )
    return {"machine": mounts.machine(), "mode": mode, "files": count, "file_bytes": FILE_BYTES, "rows": rows}


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--files", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mode", choices=MODES, default="default")
    arguments = parser.parse_args()
    rounds = []
    for _ in range(max(arguments.rounds, 1)):
        with mounts.work_folder() as folder:
            rounds.append(measure(folder, arguments.files, arguments.mode))
    rows = [row for each in rounds for row in each["rows"]]
    found = medians(rows, "load")
    for row in found:
        for name in ("waited", "longest_us", "underneath_longest_us"):
            row[name] = max(each[name] for each in rows if each["load"] == row["load"])
    tell({**rounds[0], "rows": found, "all": rows}, arguments.json, *rows[0])


if __name__ == "__main__":
    main()
