"""Files a second through a mount, with everything in memory: redoxfs beside other FUSE filesystems, in one run.

    scripts/bench/fuse_rate.py [--files 4000] [--rounds 3] [--rows redoxfs,stock] [--cores N]
                                [--work-us N] [--sleep-us N] [--json FILE]

1, 2 and 4 processes read every file of 100 kB whole with open().read(): for the first time through its mount (other
filesystems) or for the first time in its binding (redoxfs). All files were listed before, as a job's own scan does,
except for "never listed", whose opens look up their names. Rounds are interleaved, and the table gives medians.

Needs FUSE, PyTorch and webdataset. bindfs, squashfuse, mksquashfs, and gcc and pkg-config for bare_fuse.c, come from
the distribution; ratarmount comes from PyPI. The benchmark leaves out rows whose program is not installed, and says so.

How to read the result:

- "bare libfuse in C" (bare_fuse.c) is the least that any program can do for the requests that the kernel sends redoxfs.
  "stock pyfuse3" (stock_pyfuse3.py) is the least that pyfuse3 can do. The distance to them is what redoxfs could gain.
- "server us per file" is the processor time that a file costs the server. On a virtual machine most of that
  may be the cost of waking a program on another core. ``--cores 1`` leaves one core to the server and all readers,
  where waking is only a switch: the rates are lower, and only the work itself is left.
- ``--work-us`` has a reader compute after each file, and ``--sleep-us`` sleep, as a job does something with a file. The
  rates say little then: look at the processor time of the server.
- ``--rows`` measures only the rows that begin with one of the words, and without DataLoader.
- "access log read" is the default while `cat` reads .redoxfs/accesslog: what a line for each open costs.
- The last rows have DataLoader with 2 and 4 workers, beside WebDataset with as many over a tar of the same files.
"""

import importlib
import os
import random
import shutil
import subprocess
import sys
import tarfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import mounts
from children import Children, fork
from results import Row, medians, options_of, tell

FILE_BYTES = 100_000
READERS = (1, 2, 4)
WORKERS = (2, 4)


def make_files(root: Path, count: int) -> None:
    folder = root / "files"
    folder.mkdir()
    for i in range(count):
        (folder / f"{i:06}.bin").write_bytes(i.to_bytes(8, "little") + random.randbytes(FILE_BYTES - 8))


def paths_in(root: Path) -> list[str]:
    """All files below. The listing also makes their names known to the kernel, as a job's own scan does."""
    return [os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names]


class Pause(NamedTuple):
    """What a reader does after each file, in seconds."""

    work_s: float = 0.0
    sleep_s: float = 0.0

    def take(self) -> None:
        until = time.perf_counter() + self.work_s
        while self.work_s and time.perf_counter() < until:
            pass
        if self.sleep_s:
            time.sleep(self.sleep_s)


def _read_all(paths: list[str], pause: Pause, ready: Any, go: Any) -> tuple[float, int]:
    ready.release()
    go.wait()
    began = time.perf_counter()
    total = 0
    for path in paths:
        with open(path, "rb") as file:
            total += len(file.read())
        pause.take()
    return time.perf_counter() - began, total


def rate(paths: list[str], readers: int, pause: Pause) -> float:
    """Files a second, where each of ``readers`` processes reads a part of ``paths``."""
    ready, go = fork.Semaphore(0), fork.Event()
    with Children() as children:
        for i in range(readers):
            children.start(_read_all, paths[i::readers], pause, ready, go)
        for _ in range(readers):
            ready.acquire()
        go.set()
        found = children.answers()
    took: float = max(seconds for seconds, _ in found)
    read = sum(total for _, total in found)
    if read != len(paths) * FILE_BYTES:
        raise SystemExit(f"short reads: {read} bytes of {len(paths)} files")
    return len(paths) / took


def resident_paths(mountpoint: Path, paths: list[str]) -> list[str]:
    """Open some of ``paths`` until every chunk has been loaded. Returns the others, whose samples are all in memory."""
    random.shuffle(paths)
    for opened, path in enumerate(paths):
        if opened % 16 == 0:
            now = mounts.stats(mountpoint)
            # All stay in memory, also those that were opened.
            if now["in_slots"] == len(paths) and now["memory_used_bytes"] >= len(paths) * FILE_BYTES:
                return paths[opened:]
        with open(path, "rb") as file:
            file.read()
    raise SystemExit("the files were never all in memory; this machine may have too little")


class Kinds:
    """The rows to measure: name → a context in which paths can be read for the first time."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self.source = work / "data"
        self.left_out: list[str] = []
        self.kinds: dict[str, Callable[[], Any]] = {}
        self.kinds["redoxfs, default, never listed"] = partial(self._redoxfs, [], is_listed=False)
        self.kinds["redoxfs, default"] = partial(self._redoxfs, [])
        self.kinds["redoxfs, access log read"] = self._redoxfs_with_log
        for mode, redox, stock in (
            ("page-cache", ["-o", "page_cache"], []),
            ("direct_io", ["-o", "direct_io"], ["--direct-io"]),
        ):
            self.kinds[f"redoxfs, {mode}"] = partial(self._redoxfs, redox)
            stocked = mounts.stock_pyfuse3(self.source / "files", self._mnt, *stock)
            self.kinds[f"stock pyfuse3, {mode}"] = partial(self._plain, stocked)
            if bare := self._bare():
                self.kinds[f"bare libfuse in C, {mode}"] = partial(
                    self._plain, [bare, str(self.source / "files"), str(self._mnt), mode]
                )
        self._add("bindfs", ["bindfs", "-f", "-r", str(self.source), str(self._mnt)])
        if self._have("mksquashfs"):
            image = work / "files.squashfs"
            quiet = ["-noI", "-noD", "-noF", "-noX", "-no-progress", "-quiet"]
            subprocess.run(["mksquashfs", self.source, image, *quiet], check=True, stdout=subprocess.DEVNULL)
            self._add("squashfuse", ["squashfuse", "-f", str(image), str(self._mnt)])
        self._add("ratarmount", ["ratarmount", "-f", "--index-file", ":memory:", str(tar_of(work)), str(self._mnt)])
        self.kinds["the directory itself"] = self._directory

    @property
    def _mnt(self) -> Path:
        return self._work / "mnt"

    def _bare(self) -> str | None:
        """The compiled bare_fuse.c, or None without a compiler."""
        if self._have("gcc") and self._have("pkg-config"):
            return str(mounts.compiled(mounts.HERE / "bare_fuse.c", self._work))
        return None

    def _have(self, program: str) -> bool:
        found = shutil.which(program) or shutil.which(program, path=os.path.dirname(sys.executable))
        if not found:
            self.left_out.append(program)
        return bool(found)

    def _add(self, name: str, command: list[str]) -> None:
        if self._have(command[0]):
            inside = os.path.join(os.path.dirname(sys.executable), command[0])
            program = inside if os.path.exists(inside) else command[0]
            self.kinds[name] = partial(self._plain, [program, *command[1:]])

    @contextmanager
    def _redoxfs(self, options: list[str], is_listed: bool = True) -> Iterator[tuple[list[str], int]]:
        memory = str(3 * sum(FILE_BYTES for _ in (self.source / "files").iterdir()))
        command = mounts.redoxfs(
            self.source, self._mnt, "--classes", "any", "--samples", "*", "--memory", memory, *options
        )
        with mounts.served_by(command, self._mnt) as server:
            listed = self._mnt if is_listed else self.source
            paths = [str(self._mnt / os.path.relpath(path, listed)) for path in paths_in(listed)]
            yield resident_paths(self._mnt, paths), server.pid

    @contextmanager
    def _redoxfs_with_log(self) -> Iterator[tuple[list[str], int]]:
        with self._redoxfs([]) as (paths, server):
            log = subprocess.Popen(["cat", self._mnt / ".redoxfs/accesslog"], stdout=subprocess.DEVNULL)
            try:
                yield paths, server
            finally:
                log.terminate()
                log.wait()

    @contextmanager
    def _plain(self, command: list[str]) -> Iterator[tuple[list[str], int]]:
        with mounts.served_by(command, self._mnt) as server:
            yield paths_in(self._mnt), server.pid

    @contextmanager
    def _directory(self) -> Iterator[tuple[list[str], None]]:
        yield paths_in(self.source), None


def tar_of(work: Path) -> Path:
    path = work / "files.tar"
    if not path.exists():
        with tarfile.open(path, "w") as tar:
            for file in sorted((work / "data/files").iterdir()):
                tar.add(file, file.name)
    return path


class Bytes:
    """A dataset of the contents of files."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> bytes:
        with open(self.paths[index], "rb") as file:
            return file.read()


def samples_a_second(loader: Any) -> float:
    """After the first batch, so that the start of worker processes is not counted."""
    batches = iter(loader)
    next(batches)
    began, count = time.perf_counter(), 0
    for batch in batches:
        count += len(batch)
    return count / (time.perf_counter() - began)


def through_dataloader(paths: list[str], workers: int) -> float:
    from torch.utils.data import DataLoader

    return samples_a_second(DataLoader(Bytes(paths), batch_size=64, shuffle=True, num_workers=workers, collate_fn=list))


def through_webdataset(work: Path, workers: int) -> float:
    from torch.utils.data import DataLoader

    folder = work / f"shards{workers}"
    if not folder.exists():
        folder.mkdir()
        files = sorted((work / "data/files").iterdir())
        for i in range(workers):
            with tarfile.open(folder / f"{i}.tar", "w") as tar:
                for file in files[i::workers]:
                    tar.add(file, file.name)
    webdataset = importlib.import_module("webdataset")  # not a dependency of redoxfs
    shards = sorted(str(path) for path in folder.iterdir())
    data = webdataset.WebDataset(shards, shardshuffle=False, nodesplitter=lambda shards: shards).shuffle(1000)
    return samples_a_second(DataLoader(data, batch_size=64, num_workers=workers, collate_fn=list))


def measure(work: Path, files: int, rounds: int, rows: tuple[str, ...], pause: Pause) -> dict[str, Any]:
    make_files(work / "data", files)
    kinds = Kinds(work)
    if rows:
        kinds.kinds = {name: kind for name, kind in kinds.kinds.items() if name.startswith(rows)}
    found: list[Row] = []
    for _ in range(rounds):
        for name, kind in kinds.kinds.items():
            for readers in READERS:
                with kind() as (paths, server):
                    random.shuffle(paths)
                    before = mounts.cpu_s(server) if server else 0.0
                    row = {"of": name, "readers": readers, "files_per_s": rate(paths, readers, pause)}
                    if server:
                        row["server_us_per_file"] = (mounts.cpu_s(server) - before) / len(paths) * 1e6
                    found.append(row)
        for workers in WORKERS if not rows else ():
            for name in ("redoxfs, default", "redoxfs, page-cache"):
                with kinds.kinds[name]() as (paths, _):
                    samples_per_s = through_dataloader(paths, workers)
                    found.append({"of": f"{name}, DataLoader", "readers": workers, "files_per_s": samples_per_s})
            samples_per_s = through_webdataset(work, workers)
            found.append({"of": "webdataset, DataLoader", "readers": workers, "files_per_s": samples_per_s})
    return {
        "machine": mounts.machine(),
        "files": files,
        "file_bytes": FILE_BYTES,
        "rounds": rounds,
        **pause._asdict(),
        "left_out": ", ".join(sorted({*kinds.left_out})),
        "rows": medians(found, "of", "readers"),
        "all": found,
    }


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--files", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--rows",
        type=lambda text: tuple(text.split(",")),
        default=(),
        help="measure only the rows that begin with one of these words, and without DataLoader",
    )
    parser.add_argument(
        "--cores", type=int, help="number of cores that the server and the readers share (default: all)"
    )
    parser.add_argument("--work-us", type=float, default=0, help="how long a reader computes after each file")
    parser.add_argument("--sleep-us", type=float, default=0, help="how long it sleeps")
    arguments = parser.parse_args()
    if arguments.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
    pause = Pause(arguments.work_us / 1e6, arguments.sleep_us / 1e6)
    with mounts.work_folder() as work:
        (work / "data").mkdir()
        warnings.filterwarnings("ignore", "This DataLoader will create")
        result = measure(work, arguments.files, arguments.rounds, arguments.rows, pause)
    tell(result, arguments.json, "of", "readers", "files_per_s", "server_us_per_file")


if __name__ == "__main__":
    main()
