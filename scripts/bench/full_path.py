"""Files a second and processor time per file where redoxfs loads all that it serves and storage costs nothing.

    scripts/bench/full_path.py [--files 8192] [--sizes 10000,100000] [--readers 1,2,4,8,16] [--rounds 3] [--json FILE]
                               [--ways plain,stock,directory,packed] [--direct-io] [--cores N] [--against CHECKOUT]
                               [--keeper]

1 to 16 processes share epochs in random order and read each file whole with open().read(). redoxfs has memory for a
fifth of the dataset, so it loads each sample again in each epoch. All source files are in the page cache: the rates are
what the daemon can do, and no storage limits them.

``--against`` measures another checkout of redoxfs in the same run, with the Python of its .venv, and gives the ratio to
it. ``--keeper`` also measures mounts that have a keeper, with the ratio to those without. The ways take turns, in
another order in each round, and the table gives medians. A turn begins with an epoch that is not measured; the epochs
that are measured follow it without a pause. So what the daemon loads in advance belongs to the next epoch that is
measured, as in a long job.

How to read the result: "stock pyfuse3" (stock_pyfuse3.py) loads nothing and decides nothing. It is mounted anew for
each epoch, since the kernel would keep its pages. "CPU µs" is the processor time that a file costs the server, in user
space and in the kernel. It includes the work of waking readers, and up to 50 µs of looking before the server sleeps.

Every file holds its own name: in each epoch each must come exactly once, with the label of the path that was opened.
The exit code is 1 if one does not.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import mounts
from labelled import Epoch, make_files, read_epoch
from results import options_of, tell
from rich.console import Console

MEMORY_SHARE = 0.2
WAYS = {"plain": "plain directory", "stock": "stock pyfuse3", "directory": "directory", "packed": "packed"}
NOW, AGAINST, KEPT = "redoxfs", "against", "with a keeper"
COLUMNS = (
    *("file_bytes", "title", "readers", "files_per_s", "server_us_per_file", "times_plain", "times_stock"),
    *("times_against", "times_without_keeper"),
)


Turn = Callable[[list[int]], Iterator[tuple[int, Epoch]]]
"""Reads an epoch with each number of readers. Yields the number and what was measured; 0 readers: do not count it."""


@dataclass(frozen=True, slots=True)
class Checkout:
    """A checkout of redoxfs whose daemon is measured.

    ``keeper``  whether its mounts have one; None: they are in the foreground, where none can have one
    """

    title: str
    python: str
    commit: str
    keeper: bool | None = None


@dataclass(frozen=True, slots=True)
class Way:
    """What serves the files, and how to read epochs from it."""

    key: str
    checkout: Checkout | None
    turn: Turn

    @property
    def title(self) -> str:
        return f"{self.checkout.title}, {WAYS[self.key]}" if self.checkout else WAYS[self.key]


@dataclass(slots=True)
class Row:
    """What was measured of one way with one number of readers: one epoch for each round."""

    way: Way
    file_bytes: int
    readers: int
    epochs: list[Epoch] = field(default_factory=list)


def this_checkout() -> Checkout:
    return checkout_at(mounts.HERE.parents[1], NOW, sys.executable)


def other_checkout(root: Path) -> Checkout:
    return checkout_at(root.resolve(), AGAINST, str(root.resolve() / ".venv/bin/python"))


def checkout_at(root: Path, title: str, python: str) -> Checkout:
    """Describe the checkout in ``root``. Raises SystemExit unless its Python imports redoxfs from there."""
    command = [python, "-P", "-c", "import redoxfs; print(redoxfs.__file__)"]
    try:
        found = Path(subprocess.check_output(command, text=True, cwd="/").strip())
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"{root} has no redoxfs that runs: {error}") from None
    if not found.is_relative_to(root):
        raise SystemExit(f"{python} imports {found}, which is not in {root}")
    git = ["git", "-C", str(root), "describe", "--always", "--dirty"]
    done = subprocess.run(git, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return Checkout(title, python, done.stdout.strip() or "unknown")


class Dataset:
    """Files of one size, in classes and as links in one flat folder, and the ways to read them."""

    def __init__(self, work: Path, files: int, file_bytes: int, *, direct_io: bool) -> None:
        self._work = work
        self._source = work / "data"
        self._flat = work / "flat"
        self._memory = str(int(files * file_bytes * MEMORY_SHARE))
        self._options = ["-o", "direct_io"] if direct_io else []
        self._stock_options = ["--direct-io"] if direct_io else []
        self._names = make_files(self._source, files, file_bytes, file_bytes)
        # stock_pyfuse3.py serves one folder.
        self._flat.mkdir()
        for name in self._names:
            os.symlink(self._source / name, self._flat / flat(name))

    @contextmanager
    def ways(self, keys: list[str], checkouts: list[Checkout]) -> Iterator[list[Way]]:
        """Mount what stays mounted. The mounts are idle until their turns."""
        with ExitStack() as stack:
            ways = []
            for key in keys:
                if key == "plain":
                    ways.append(Way(key, None, self._plain))
                elif key == "stock":
                    ways.append(Way(key, None, self._stock))
                else:
                    for i, checkout in enumerate(checkouts):
                        turn = stack.enter_context(self._redoxfs(key, checkout, self._work / f"{key}{i}"))
                        ways.append(Way(key, checkout, turn))
            yield ways

    def _plain(self, readers: list[int]) -> Iterator[tuple[int, Epoch]]:
        paths = below(self._source, self._names)
        yield 0, read_epoch(paths, max(readers))
        for count in readers:
            yield count, read_epoch(paths, count)

    def _stock(self, readers: list[int]) -> Iterator[tuple[int, Epoch]]:
        mnt = self._work / "stock"
        command = mounts.stock_pyfuse3(self._flat, mnt, *self._stock_options)
        for count in readers:
            with mounts.served_by(command, mnt) as server:
                list_all(mnt)
                paths = {name: str(mnt / flat(name)) for name in self._names}
                yield count, read_epoch(paths, count, partial(mounts.cpu_s, server.pid))

    @contextmanager
    def _redoxfs(self, key: str, checkout: Checkout, folder: Path) -> Iterator[Turn]:
        folder.mkdir()
        # A cache and a packed copy of its own: another commit may have another format.
        environment = {**os.environ, "XDG_CACHE_HOME": str(folder), "XDG_STATE_HOME": str(folder)}
        source, classes = self._source, ["--classes", "dir"]
        if key == "packed":
            source = folder / "packed"
            pack = [checkout.python, "-P", "-m", "redoxfs", "pack", *classes, str(self._source), str(source)]
            quiet = subprocess.DEVNULL
            subprocess.run(pack, check=True, stdout=quiet, stderr=quiet, env=environment)
            classes = []
        mnt = folder / "mnt"
        command = mounts.redoxfs(
            source, mnt, "--memory", self._memory, *classes, *self._options, python=checkout.python
        )
        with ExitStack() as stack:
            if checkout.keeper is not None:
                # All in the background: the scheduler treats those in the foreground together with the readers.
                option = "--keeper" if checkout.keeper else "--no-keeper"
                command = [option if word == "-f" else word for word in command]
                pid = stack.enter_context(mounts.background(command, mnt, environment))
            else:
                pid = stack.enter_context(mounts.served_by(command, mnt, environment=environment)).pid
            list_all(mnt)
            paths = below(mnt, self._names)

            def turn(readers: list[int]) -> Iterator[tuple[int, Epoch]]:
                yield 0, read_epoch(paths, max(readers))
                for count in readers:
                    yield count, read_epoch(paths, count, partial(mounts.cpu_s, pid))
                mounts.settle(pid)

            mounts.settle(pid)

            yield turn


def flat(name: str) -> str:
    return name.replace("/", "-")


def below(root: Path, names: list[str]) -> dict[str, str]:
    return {name: str(root / name) for name in names}


def list_all(root: Path) -> None:
    """Make all names known to the kernel, as a job's own scan does."""
    for _ in os.walk(root):
        pass


def measure(work: Path, file_bytes: int, checkouts: list[Checkout], arguments: argparse.Namespace) -> list[Row]:
    """All rows of one size of files."""
    dataset = Dataset(work, arguments.files, file_bytes, direct_io=arguments.direct_io)
    console = Console(stderr=True)
    with dataset.ways(arguments.ways, checkouts) as ways:
        rows = {(way, readers): Row(way, file_bytes, readers) for way in ways for readers in (0, *arguments.readers)}
        for number in range(arguments.rounds):
            console.print(f"{file_bytes:,} bytes, round {number + 1} of {arguments.rounds} …")
            for i in range(len(ways)):
                way = ways[(i + number) % len(ways)]
                for readers, epoch in way.turn(arguments.readers):
                    rows[way, readers].epochs.append(epoch)
    return list(rows.values())


def ratio(row: Row, other: Row | None) -> float | None:
    """How many times the files a second of ``other``: the median of the rounds."""
    if other is None or other is row:
        return None
    pairs = zip(row.epochs, other.epochs, strict=True)
    return statistics.median(ours.files_per_s / theirs.files_per_s for ours, theirs in pairs)


def told(row: Row, rows: list[Row]) -> dict[str, Any]:
    """A row of the result."""
    beside = [other for other in rows if (other.file_bytes, other.readers) == (row.file_bytes, row.readers)]
    ours = row.way.checkout

    def ratio_to(key: str, title: str | None = None) -> float | None:
        found = (x for x in beside if x.way.key == key and (x.way.checkout.title if x.way.checkout else None) == title)
        return ratio(row, next(found, None)) if ours else None

    return {
        "title": row.way.title,
        "way": row.way.key,
        "commit": ours.commit if ours else None,
        "file_bytes": row.file_bytes,
        "readers": row.readers,
        "files_per_s": statistics.median(epoch.files_per_s for epoch in row.epochs),
        "server_us_per_file": statistics.median(epoch.server_us_per_file for epoch in row.epochs),
        "times_plain": ratio_to("plain"),
        "times_stock": ratio_to("stock"),
        "times_against": ratio_to(row.way.key, AGAINST),
        "times_without_keeper": ratio_to(row.way.key, NOW) if ours and ours.keeper else None,
        "all_files_per_s": [epoch.files_per_s for epoch in row.epochs],
        "all_server_us_per_file": [epoch.server_us_per_file for epoch in row.epochs],
    }


def problems(rows: list[Row]) -> list[str]:
    """A line for each epoch in which a sample was missing, came twice or had a wrong label."""
    return [
        f"{row.way.title}, {row.file_bytes:,} bytes, {row.readers or 'first epoch of'} readers: "
        f"{epoch.wrong_labels:,} wrong labels, {epoch.not_once:,} samples not once"
        for row in rows
        for epoch in row.epochs
        if not epoch.is_complete
    ]


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    checkouts = [this_checkout()]
    if arguments.against:
        checkouts.append(other_checkout(arguments.against))
    if arguments.keeper:
        checkouts[0] = replace(checkouts[0], keeper=False)
        checkouts.append(replace(checkouts[0], title=KEPT, keeper=True))
    rows: list[Row] = []
    for file_bytes in arguments.sizes:
        with tempfile.TemporaryDirectory(prefix="redoxfs-bench-", dir=arguments.folder) as folder:
            rows += measure(Path(folder), file_bytes, checkouts, arguments)
    return {
        "machine": mounts.machine(),
        "load_average": os.getloadavg(),
        "commits": {checkout.title: checkout.commit for checkout in checkouts},
        "files": arguments.files,
        "memory_share": MEMORY_SHARE,
        "direct_io": arguments.direct_io,
        "rounds": arguments.rounds,
        "rows": [told(row, rows) for row in rows if row.readers],
        "wrong": problems(rows),
    }


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def chosen_ways(text: str) -> list[str]:
    keys = text.split(",")
    if unknown := set(keys) - set(WAYS):
        raise argparse.ArgumentTypeError(f"no such way: {', '.join(sorted(unknown))}")
    return keys


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--files", type=int, default=8192)
    parser.add_argument("--sizes", type=numbers, default="10000,100000", help="sizes of the files, in bytes")
    parser.add_argument("--readers", type=numbers, default="1,2,4,8,16", help="numbers of processes that read")
    parser.add_argument("--ways", type=chosen_ways, default=",".join(WAYS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--direct-io", action="store_true", help="mount with direct_io")
    parser.add_argument("--cores", type=int, help="number of cores that servers and readers share (default: all)")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="also measure the redoxfs of this checkout")
    parser.add_argument("--keeper", action="store_true", help="also measure mounts that have a keeper")
    parser.add_argument("--folder", type=Path, help="where to make the files (default: the temporary folder)")
    arguments = parser.parse_args()
    if arguments.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
    result = run(arguments)
    tell(result, arguments.json, *COLUMNS)
    for problem in result["wrong"]:
        print(problem, file=sys.stderr)
    return 1 if result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
