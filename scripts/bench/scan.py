"""Scans: the first, one with nothing changed, one with a directory changed, and a catalog instead, beside find.

    scripts/bench/scan.py [--files 1300000] [--folder /tmp] [--delay-ms 1] [--delayed-files 20000] [--json FILE]

A tree of --files empty files, 1,000 in a directory, is scanned as `redoxfs mount` does it before it decides on classes,
each time in a process of its own. `find -size +1` asks for the same attributes with one thread, right before each scan
of the source. As root, the benchmark drops the kernel's dentries, inodes and pages before each "cold" run; "warm" is
the run right after it. The catalog is also read warm only: it is one file.

Then the same with a tree of --delayed-files behind scripts/slow_store.c, which delays each request for names and
attributes by --delay-ms and keeps none of them, as network storage does at a first look. There is no warm run.

Besides the time, it prints the time of the processor: on a busy machine, only that can be compared with other runs.

How to read the result: "of find" is how much slower or faster than find a scan is. Aims: a first scan of a local
disk no slower than find, and behind the delay 10 times faster; a scan with nothing changed at least 10 times faster
than the first, and an import independent of the storage.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mounts
import throttle
from results import Row, options_of, tell

COLUMNS = (
    *("part", "what", "seconds", "find_s", "of_find", "cpu_s", "find_cpu_s", "peak_mib", "listed"),
    *("decide_s", "write_s", "bytes"),
)
FILES_PER_FOLDER = 1000

CHILD = """
import json, os, resource, sys, time
from pathlib import Path
what, source, cache, file = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4])
from redoxfs.dataset import at_source, build_catalog, cache as kept, load_or_scan, read_catalog, write_catalog
# Its directories have the times of those behind it, as on the network storage that it stands for.
kept._KEEPS_TIMES |= {"fuse.slow_store"}
fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
began, cpu_s = time.monotonic(), time.process_time()
if what == "import":
    tree = at_source(read_catalog(file).catalog, fd, ()).catalog.tree
    listed = 0
else:
    # A minute later, so that directories which were just made count as old.
    scan = load_or_scan(source, fd, cache, clock_ns=lambda: time.time_ns() + 60 * 10**9)
    tree, listed = scan.tree, scan.listed
took = time.monotonic() - began
if what == "export":
    began = time.monotonic()
    catalog = build_catalog(tree, classes="dir", root_fd=fd)
    decided = time.monotonic() - began
    began = time.monotonic()
    size = write_catalog(file, catalog, asked={}, about={})
    print(json.dumps({"decide_s": decided, "write_s": time.monotonic() - began, "bytes": size}))
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    found = {"seconds": took, "cpu_s": time.process_time() - cpu_s, "peak_mib": peak}
    print(json.dumps({**found, "entries": len(tree), "listed": listed}))
"""


def make_files(root: Path, files: int) -> None:
    for first in range(0, files, FILES_PER_FOLDER):
        folder = root / f"{first // FILES_PER_FOLDER:04}"
        folder.mkdir(parents=True)
        at = os.open(folder, os.O_RDONLY)
        for number in range(first, min(first + FILES_PER_FOLDER, files)):
            os.close(os.open(f"{folder.name}_{number:08}.jpg", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=at))
        os.close(at)


def find(source: Path) -> tuple[float, float]:
    """Seconds, and seconds of the processor."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["find", source, "-size", "+1"], check=True, stdout=subprocess.DEVNULL)
    took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class Scans:
    """Scans of one source, with a cache of their own."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.source, self.cache, self.file = source, folder / "cache", folder / "catalog"

    def child(self, what: str) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-c", CHILD, what, self.source, self.cache, self.file],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        )
        return json.loads(done.stdout)

    def beside_find(self, *, cold: bool) -> dict[str, Any]:
        if cold:
            throttle.can_drop_caches()
        beside, beside_cpu_s = find(self.source)
        if cold:
            throttle.can_drop_caches()
        found = self.child("scan")
        return {**found, "find_s": beside, "find_cpu_s": beside_cpu_s, "of_find": found["seconds"] / beside}


def measure(source: Path, changing: Path, folder: Path, *, warm: bool) -> dict[str, Any]:
    """All scans of ``source``; a file that is added at ``changing`` appears in it."""
    scans = Scans(source, folder)
    temperatures = {"cold": True, "warm": False} if warm else {"": False}
    report: dict[str, Any] = {}

    def each(what: str) -> None:
        for name, cold in temperatures.items():
            if what == "first":
                shutil.rmtree(scans.cache, ignore_errors=True)
            elif what == "one directory changed":
                (changing / f"new-{time.monotonic_ns()}.jpg").touch()
            label = f"{what}, {name}" if name else what
            report[label] = scans.beside_find(cold=cold)
            print(f"{label}: {report[label]['seconds']:.2f} s", file=sys.stderr)

    each("first")
    each("unchanged")
    each("one directory changed")
    report["export"] = scans.child("export")
    report["imported"] = scans.child("import")
    return report


@contextmanager
def delayed(source: Path, folder: Path, delay_ms: float) -> Iterator[Path]:
    program, at = mounts.compiled(mounts.HERE.parent / "slow_store.c", folder), folder / "slow"
    with mounts.served_by([str(program), str(source), str(at), str(delay_ms), "names"], at):
        yield at


def main() -> int:
    """Measure, and print a report."""
    parser = options_of(__doc__)
    parser.add_argument("--files", type=int, default=1_300_000)
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where the trees are made")
    parser.add_argument("--delay-ms", type=float, default=1.0)
    parser.add_argument("--delayed-files", type=int, default=20_000, help="0: no run with a delay")
    options = parser.parse_args()
    rows: list[Row] = []
    report = {"files": options.files, "delayed_files": options.delayed_files, "delay_ms": options.delay_ms}
    report |= {"cold": throttle.can_drop_caches(), "rows": rows}
    with tempfile.TemporaryDirectory(prefix="redoxfs-scan-", dir=options.folder) as name:
        folder = Path(name)
        for part, files in (("local", options.files), ("delayed", options.delayed_files)):
            if not files:
                continue
            root, own = folder / f"{part} files", folder / part
            own.mkdir()
            make_files(root, files)
            if part == "local":
                found = measure(root, root / "0000", own, warm=True)
            else:
                with delayed(root, own, options.delay_ms) as at:
                    found = measure(at, root / "0000", own, warm=False)
            rows += [{"part": part, "what": what, **row} for what, row in found.items()]
    tell(report, options.json, *COLUMNS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
