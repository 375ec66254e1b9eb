"""What it costs to watch a mount: opens a second, and processor time of an open, with and without somebody who looks.

    scripts/bench/telemetry.py [--rounds 12] [--seconds 2] [--readers 2] [--json FILE]

Readers open, read and close small files of one mount without a pause. Its daemon has --metrics all the time. Meanwhile,
in slices of some seconds, nobody looks ("nothing"), or somebody does: a scrape each second, a reader of the access log,
`redoxfs top`, and all of these at once. Each round has a slice of each setting, in an order that rotates, so that a
machine that becomes slower does not look like a cost.

How to read the result:

- A ratio compares a slice with the slice "nothing" of its own round. The table has the median of all rounds, and the
  quartiles. A difference that is smaller than the quartiles of "nothing again" is noise.
- "CPU us an open" is the daemon's. Opens a second also fall because the watcher takes processor time from the readers;
  "watcher's CPU" has how much.
- Opens are counted by the readers, outside of redoxfs.
"""

import multiprocessing
import os
import pty
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import mounts
from results import options_of, tell

FILE_BYTES = 10_000

SCRAPE_EACH_S = 1.0

START_S = 1.5
"""For a watcher to start, before a slice is measured."""

NOTHING, AGAIN = "nothing", "nothing again"

COLUMNS = (
    *("setting", "opens_per_s", "opens_ratio.low", "opens_ratio.median", "opens_ratio.high", "us_per_open"),
    *("cpu_ratio.low", "cpu_ratio.median", "cpu_ratio.high", "watcher_cpu_share"),
)

LOG_READER = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
fd, lines = os.open(sys.argv[1], os.O_RDONLY), 0
try:
    while part := os.read(fd, 1 << 16):
        lines += part.count(b"\\n")
finally:
    print(lines)
"""
"""Prints how many lines it read, on SIGTERM."""

fork = multiprocessing.get_context("fork")


@dataclass(slots=True)
class Watching:
    """What watchers did: their processes, and how often they looked."""

    pids: list[int]
    scrapes: int = 0
    lines: int = 0


Watcher = Callable[[Watching], AbstractContextManager[None]]


@contextmanager
def scraping(port: int, watching: Watching) -> Iterator[None]:
    """A scrape each second."""
    ended = threading.Event()

    def scrape() -> None:
        while not ended.wait(SCRAPE_EACH_S):
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=mounts.PATIENCE_S) as answer:
                watching.scrapes += b"redoxfs_opens_total" in answer.read()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def started(command: list[str], watching: Watching) -> Iterator[subprocess.Popen[str]]:
    """A watcher of its own process, with a terminal, ended by SIGTERM."""
    ours, theirs = pty.openpty()
    with open(theirs, "wb") as terminal:
        environment = os.environ | {"TERM": "xterm"}
        process = subprocess.Popen(command, env=environment, stdout=terminal, stderr=subprocess.PIPE, text=True)
    drained = threading.Thread(target=_drain, args=(ours, watching))
    drained.start()
    watching.pids.append(process.pid)
    try:
        yield process
        if process.poll() is not None:
            assert process.stderr is not None
            raise SystemExit(f"{command} ended: {process.stderr.read()}")
    finally:
        watching.pids.remove(process.pid)
        process.terminate()
        process.wait(mounts.PATIENCE_S)
        drained.join()


def _drain(terminal: int, watching: Watching) -> None:
    """Take what a watcher prints, so that it never waits. What the reader of the log prints is a number of lines."""
    # Reading fails once the watcher has ended.
    with open(terminal) as lines, suppress(OSError):
        for line in lines:
            if line.strip().isdigit():
                watching.lines += int(line)


@contextmanager
def running(command: list[str], watching: Watching) -> Iterator[None]:
    with started(command, watching):
        yield


@contextmanager
def together(watchers: list[Watcher], watching: Watching) -> Iterator[None]:
    with ExitStack() as ends:
        for watcher in watchers:
            ends.enter_context(watcher(watching))
        yield


def watchers_of(mountpoint: Path, port: int) -> dict[str, Watcher]:
    """The settings, by their names."""
    log = [sys.executable, "-c", LOG_READER, str(mountpoint / ".redoxfs/accesslog")]
    top = [sys.executable, "-P", "-m", "redoxfs", "top", str(mountpoint)]
    found: dict[str, Watcher] = {
        "scrapes": lambda watching: scraping(port, watching),
        "access log": lambda watching: running(log, watching),
        "top": lambda watching: running(top, watching),
    }
    each = [*found.values()]
    nothing: Watcher = lambda _: nullcontext()  # noqa: E731
    return {NOTHING: nothing, **found, "everything": lambda watching: together(each, watching), AGAIN: nothing}


def read_for_ever(paths: list[str], opens: Any) -> None:
    """Count each open in ``opens``."""
    while True:
        random.shuffle(paths)
        for path in paths:
            fd = os.open(path, os.O_RDONLY)
            if len(os.read(fd, FILE_BYTES)) != FILE_BYTES:
                raise SystemExit(f"{path}: a short read")
            os.close(fd)
            opens.value += 1


@contextmanager
def readers(paths: list[str], count: int) -> Iterator[Callable[[], int]]:
    """``count`` processes that read; yields a function that returns how many opens they have made."""
    counts = [fork.RawValue("q", 0) for _ in range(count)]
    processes = [fork.Process(target=read_for_ever, args=(paths, each)) for each in counts]

    def opens() -> int:
        if not all(process.is_alive() for process in processes):
            raise SystemExit("a reader has failed")
        return sum(each.value for each in counts)

    for process in processes:
        process.start()
    try:
        yield opens
    finally:
        for process in processes:
            process.kill()
            process.join()


@dataclass(frozen=True, slots=True)
class Slice:
    """Some seconds of one setting."""

    opens: int
    opens_per_s: float
    us_per_open: float
    watcher_cpu_share: float
    scrapes: int
    lines: int


def measured(opens: Callable[[], int], daemon: int, watcher: Watcher, seconds: float) -> Slice:
    watching = Watching([])
    with watcher(watching):
        time.sleep(START_S)
        own, before = [os.getpid(), *watching.pids], opens()
        cpu_s, own_s, began_s = mounts.cpu_s(daemon), sum(map(mounts.cpu_s, own)), time.monotonic()
        scrapes = watching.scrapes
        time.sleep(seconds)
        made, took_s = opens() - before, time.monotonic() - began_s
        cpu_s, own_s = mounts.cpu_s(daemon) - cpu_s, sum(map(mounts.cpu_s, own)) - own_s
        scrapes = watching.scrapes - scrapes
    return Slice(made, made / took_s, cpu_s / made * 1e6, own_s / took_s, scrapes, watching.lines)


def spread(values: list[float]) -> dict[str, float]:
    """The median and the quartiles."""
    if len(values) < 2:
        return dict.fromkeys(("low", "median", "high"), values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"low": low, "median": median, "high": high}


def row(name: str, slices: list[Slice], base: list[Slice]) -> dict[str, Any]:
    pairs = list(zip(slices, base, strict=True))
    return {
        "setting": name,
        "opens_per_s": statistics.median(each.opens_per_s for each in slices),
        "us_per_open": statistics.median(each.us_per_open for each in slices),
        "opens_ratio": spread([each.opens_per_s / nothing.opens_per_s for each, nothing in pairs]),
        "cpu_ratio": spread([each.us_per_open / nothing.us_per_open for each, nothing in pairs]),
        "watcher_cpu_share": statistics.median(each.watcher_cpu_share for each in slices),
        "opens": sum(each.opens for each in slices),
        "scrapes": sum(each.scrapes for each in slices),
        "log_lines": sum(each.lines for each in slices),
    }


def measure(work: Path, files: int, rounds: int, seconds: float, count: int) -> dict[str, Any]:
    source, mountpoint = work / "data", work / "mnt"
    (source / "files").mkdir(parents=True)
    for number in range(files):
        (source / f"files/{number:06}.bin").write_bytes(random.randbytes(FILE_BYTES))
    port = mounts.free_port()
    memory = str(3 * files * FILE_BYTES)
    options = ("--classes", "any", "--samples", "*", "--memory", memory, "--metrics", str(port))
    with mounts.served_by(mounts.redoxfs(source, mountpoint, *options), mountpoint) as server:
        paths = [str(path) for path in (mountpoint / "files").iterdir()]
        watchers = watchers_of(mountpoint, port)
        slices: dict[str, list[Slice]] = {name: [] for name in watchers}
        with readers(paths, count) as opens:
            # Memory fills, and the readers reach their speed.
            time.sleep(seconds)
            order = [*watchers]
            for _ in range(rounds):
                for name in order:
                    slices[name].append(measured(opens, server.pid, watchers[name], seconds))
                order = order[1:] + order[:1]
        told = mounts.stats(mountpoint)
    return {
        "machine": mounts.machine(),
        "files": files,
        "file_bytes": FILE_BYTES,
        "readers": count,
        "rounds": rounds,
        "seconds": seconds,
        "errors": told["errors"],
        "rows": [row(name, slices[name], slices[NOTHING]) for name in watchers],
    }


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each slice (default: 2)")
    parser.add_argument("--readers", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="for the files and the mount (default: a temporary one)")
    arguments = parser.parse_args()
    with mounts.work_folder(arguments.folder) as folder:
        result = measure(folder, arguments.files, arguments.rounds, arguments.seconds, arguments.readers)
    tell(result, arguments.json, *COLUMNS)


if __name__ == "__main__":
    main()
