"""A soak test: 8 processes open files over and over, and check after every read which file the bytes are from.

    scripts/bench/soak.py [--opens 1000000] [--mode default|page_cache|direct_io] [--json FILE]

Each file holds its own path, length and CRC-32. So the test notices bytes of two files, a missing piece, or a sample of
another class; fstat must agree with what is read as well. There is memory for a quarter of the samples. Seven processes
share the files of an epoch, as the workers of one job do, each in random order, and now and then open one of a few hot
files. The eighth opens only hot files, each a second time while it is open: both opens must return the same sample.

It needs FUSE. The daemon's memory is sampled throughout; after the first quarter of the opens it must not
grow by more than 16 MB. The exit code is 1 if anything was wrong, and the table is followed by the
first problems.
"""

import json
import multiprocessing
import os
import random
import subprocess
import sys
import time
import traceback
import zlib
from collections.abc import Iterator, MutableSequence
from pathlib import Path
from typing import Any

import mounts
from results import options_of, tell

PROCESSES = 8
CLASSES = 12
FILES_PER_CLASS = 300
SMALLEST_BYTES = 100
LARGEST_BYTES = 60_000

HOT_FILES = 8
HOT_EVERY = 16
"""Processes that share the epoch open a hot file once in this many opens."""

WARM_UP = 0.25
"""Share of the opens after which memory is expected not to grow."""

GROWTH_BYTES = 16_000_000
"""About 20 bytes an open in the default run: less than any object that could leak."""

SAMPLE_EVERY_S = 0.5
STALLED_S = 120
PROBLEMS_SHOWN = 20

COLUMNS = (
    *("opens", "seconds", "opens_per_second", "redirected", "exact", "joined", "chunk_loads", "samples_reread"),
    "errors",
)
MODES = {"default": [], "page_cache": ["-o", "page_cache"], "direct_io": ["-o", "direct_io"]}

fork = multiprocessing.get_context("fork")


def payload(name: str, length: int) -> bytes:
    head = f"{name}\n{length}\n".encode()
    body = head + random.randbytes(length - len(head) - 8)
    return body + b"%08x" % zlib.crc32(body)


def make_files(source: Path) -> list[str]:
    """Make the files. The logarithms of their sizes are uniform, so there are as many small files as large ones."""
    names = []
    for label in range(CLASSES):
        (source / f"class{label:02}").mkdir(parents=True)
        for i in range(FILES_PER_CLASS):
            length = round(SMALLEST_BYTES * (LARGEST_BYTES / SMALLEST_BYTES) ** random.random())
            names.append(f"class{label:02}/{label:02}-{i:05}.jpg")
            (source / names[-1]).write_bytes(payload(names[-1], length))
    return names


def trouble(asked: str, data: bytes, size: int) -> str | None:
    """The error in ``data``, read from the file ``asked`` for which fstat returned ``size``, or None."""
    name, _, rest = data.partition(b"\n")
    said = f"{asked}: {len(data)} bytes that begin as {name[:40]!r}"
    length = rest.partition(b"\n")[0]
    if not length.isdigit() or len(data) != int(length):
        return f"{said} are incomplete"
    if b"%08x" % zlib.crc32(data[:-8]) != data[-8:]:
        return f"{said} are mixed or damaged"
    if os.path.dirname(name.decode()) != os.path.dirname(asked):
        return f"{said} are of another class"
    if len(data) != size:
        return f"{said}, but fstat returned {size}"
    return None


class Reader:
    """One of the processes. Number 0 opens only hot files."""

    def __init__(self, number: int, root: Path, names: list[str], opens: int, done: MutableSequence[int]) -> None:
        self._number = number
        self._root = root
        self._names = names
        self._hot = names[:: len(names) // HOT_FILES]
        self._opens = opens
        self._done = done

    def run(self, problems: Any) -> None:
        try:
            for name in self._order():
                if sum(self._done) >= self._opens:
                    return
                for problem in self._read(name):
                    problems.put(problem)
                self._done[self._number] += 2 if self._number == 0 else 1
        except Exception:
            problems.put(f"process {self._number} ended: {traceback.format_exc()}")

    def _order(self) -> Iterator[str]:
        own = random.Random(self._number)
        epoch = 0
        while True:
            if self._number == 0:
                yield own.choice(self._hot)
                continue
            shuffled = random.Random(f"epoch {epoch}").sample(self._names, len(self._names))
            for name in shuffled[self._number - 1 :: PROCESSES - 1]:
                yield name if own.randrange(HOT_EVERY) else own.choice(self._hot)
            epoch += 1

    def _read(self, name: str) -> Iterator[str]:
        path = self._root / name
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                data = file.read()
                if self._number == 0 and path.read_bytes() != data:
                    yield f"{name}: two opens at the same time returned two samples"
        except OSError as error:
            yield f"{name}: {error}"
            return
        problem = trouble(name, data, size)
        if problem:
            yield problem


def soak(root: Path, daemon: int, names: list[str], opens: int) -> dict[str, Any]:
    """Run the processes. Returns what they found, and (opens so far, the daemon's memory) over time."""
    problems = fork.SimpleQueue()
    done = fork.Array("q", PROCESSES, lock=False)
    readers = [Reader(number, root, names, opens, done) for number in range(PROCESSES)]
    processes = [fork.Process(target=reader.run, args=(problems,), daemon=True) for reader in readers]
    found: list[str] = []
    rss = [(0, mounts.rss_bytes(daemon))]
    began = moved = time.monotonic()
    try:
        for process in processes:
            process.start()
        while any(process.is_alive() for process in processes):
            time.sleep(SAMPLE_EVERY_S)
            now = time.monotonic()
            moved = now if sum(done) > rss[-1][0] else moved
            rss.append((sum(done), mounts.rss_bytes(daemon)))
            while not problems.empty():
                found.append(problems.get())
            if now - moved > STALLED_S:
                found.append(f"no open for {STALLED_S} s")
                break
        took = time.monotonic() - began
        found += [f"process {i} ended with {p.exitcode}" for i, p in enumerate(processes) if p.exitcode]
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
    return {"opens": sum(done), "seconds": took, "opens_per_second": sum(done) / took, "problems": found, "rss": rss}


def memory_for_a_quarter(source: Path) -> int:
    command = [sys.executable, "-P", "-m", "redoxfs", "inspect", "--classes", "dir", "--json", str(source)]
    told = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return int(told["memory_for"]["25%"])


def measure(work: Path, opens: int, mode: str) -> dict[str, Any]:
    names = make_files(work / "data")
    memory = memory_for_a_quarter(work / "data")
    command = mounts.redoxfs(work / "data", work / "mnt", "--classes", "dir", "--memory", str(memory), *MODES[mode])
    with mounts.served_by(command, work / "mnt") as server:
        found = soak(work / "mnt", server.pid, names, opens)
        stats = mounts.stats(work / "mnt")
    problems = found.pop("problems")
    rss = found.pop("rss")
    warm = [size for at, size in rss if at >= WARM_UP * opens]
    if warm and warm[-1] - warm[0] > GROWTH_BYTES:
        problems.append(f"the daemon grew by {warm[-1] - warm[0]:,} bytes after the warm-up")
    if stats["memory_used_bytes"] > stats["memory_limit_bytes"]:
        problems.append(f"{stats['memory_used_bytes']:,} bytes of samples in {stats['memory_limit_bytes']:,} of memory")
    return {
        "machine": mounts.machine(),
        "mode": mode,
        "processes": PROCESSES,
        "files": len(names),
        "classes": CLASSES,
        "memory_bytes": memory,
        "rows": [{name: stats[name] for name in COLUMNS if name in stats} | found],
        "rss_after_warm_up_bytes": {"first": warm[0], "last": warm[-1], "max": max(warm)} if warm else None,
        "rss_bytes_by_opens": rss,
        "wrong": len(problems),
        "problems": problems[:PROBLEMS_SHOWN],
    }


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--opens", type=int, default=1_000_000)
    parser.add_argument("--mode", choices=MODES, default="default")
    arguments = parser.parse_args()
    with mounts.work_folder() as folder:
        result = measure(folder, arguments.opens, arguments.mode)
    tell(result, arguments.json, *COLUMNS)
    for problem in result["problems"]:
        print(problem, file=sys.stderr)
    return 1 if result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
