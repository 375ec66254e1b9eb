"""Listing: directories and trees read through a mount, beside the same files on the filesystem underneath, in one run.

    scripts/bench/listing.py [--flat 200000] [--tree 100000] [--rounds 1] [--json FILE]

The usual programs and Python's os.walk list one directory of --flat empty files, and a tree of --tree files with 1,000
in a directory: on the underlying filesystem, on a mount that redirects all files (--classes dir), and on one that
redirects none. As root, the benchmark drops the kernel's dentries and inodes before each listing, on all three alike.
The page cache keeps what storage returned, so no disk is measured. Without root all listings but the first are
warm, and the output says so. Before each listing it waits until the daemons are idle, as they may still be busy with
what the kernel forgot. "again" is a second listing right after, with all that the kernel kept of the first.

How to read the result: times are in seconds. Beside each stands what multiple it is of the time of the underlying
filesystem. Without root, "caches dropped" says no. Aims: find within 4 times, a second find within 2, ls -l within 8.
``--tree 1300000`` is a tree as large as ImageNet's; it takes minutes to make.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import mounts
import throttle
from results import Row, medians, options_of, tell

FILES_PER_FOLDER = 1000
BELOW = "underneath"
MOUNTED = {"redirecting": "dir", "as it is": "none"}
COLUMNS = ("part", "listing", BELOW, *(f"{name}{of}" for name in MOUNTED for of in ("", ", times")))
AGAIN = ("find", "ls -l")

RACY_S = 2.5
"""redoxfs keeps a catalog for the next mount only if its directories have not changed for 2 s."""


def make_files(root: Path, flat: int, tree: int) -> None:
    folders = [(root / "flat", flat)] if flat else []
    folders += [
        (root / "tree" / f"{i // FILES_PER_FOLDER:04}", min(FILES_PER_FOLDER, tree - i))
        for i in range(0, tree, FILES_PER_FOLDER)
    ]
    for folder, files in folders:
        folder.mkdir(parents=True)
        for i in range(files):
            os.close(os.open(folder / f"{folder.name}-{i:08}.jpg", os.O_CREAT | os.O_WRONLY, 0o644))


def run(*command: str, folder: str) -> None:
    # The C locale, so that the time is not mostly that of sorting.
    subprocess.run([*command, folder], check=True, stdout=subprocess.DEVNULL, env={**os.environ, "LC_ALL": "C"})


def find_by_size(folder: str) -> None:
    subprocess.run(["find", folder, "-size", "+1"], check=True, stdout=subprocess.DEVNULL)


def walk(folder: str) -> None:
    for _ in os.walk(folder):
        pass


def walk_and_stat(folder: str) -> None:
    for path, _, names in os.walk(folder):
        for name in names:
            os.stat(os.path.join(path, name))


LISTINGS: dict[str, Callable[..., None]] = {
    "ls -f": partial(run, "ls", "-f", "-R"),
    "find": partial(run, "find"),
    "find -size +1": find_by_size,
    "ls -l": partial(run, "ls", "-l", "-R"),
    "du -s": partial(run, "du", "-s"),
    "os.walk": walk,
    "os.walk + os.stat": walk_and_stat,
}


def inspect(source: Path) -> None:
    """Scan the source once. Both mounts then map the catalog that the scan keeps."""
    command = [sys.executable, "-P", "-m", "redoxfs", "inspect", "--classes", "dir", "--json", str(source)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def measure(work: Path, flat: int, tree: int, rounds: int) -> dict[str, Any]:
    source = work / "data"
    make_files(source, flat, tree)
    time.sleep(RACY_S)
    inspect(source)
    roots = {BELOW: source}
    daemons: dict[str, int] = {}
    found: dict[tuple[int, str, str], Row] = {}
    rss: dict[str, int] = {}
    cold = True
    with ExitStack() as stack:
        for name, classes in MOUNTED.items():
            roots[name] = work / classes
            command = mounts.redoxfs(source, roots[name], "--classes", classes, "--memory", "1GiB")
            daemons[name] = stack.enter_context(mounts.served_by(command, roots[name])).pid
            rss[f"{name}, rss_bytes_before"] = mounts.rss_bytes(daemons[name])
        for number in range(rounds):
            for part in sorted(os.listdir(source)):
                for title, listing in LISTINGS.items():
                    for name, root in roots.items():
                        cold &= throttle.can_drop_caches(pages=False)
                        for said in (title, f"{title}, again") if title in AGAIN else (title,):
                            for pid in daemons.values():
                                mounts.settle(pid)
                            began = time.perf_counter()
                            listing(folder=str(root / part))
                            row = found.setdefault((number, part, said), {"part": part, "listing": said})
                            row[name] = time.perf_counter() - began
                            row[f"{name}, times"] = row[name] / row[BELOW]
        for name, pid in daemons.items():
            rss[f"{name}, rss_bytes_after"] = mounts.rss_bytes(pid)
    return {
        "machine": mounts.machine(),
        "flat": flat,
        "tree": tree,
        "rounds": rounds,
        "caches_dropped": cold,
        "rows": medians([*found.values()], "part", "listing"),
        "all": [*found.values()],
        **rss,
        "catalog_bytes": sum(path.stat().st_size for path in (work / "redoxfs").rglob("*.npy")),
    }


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--flat", type=int, default=200_000, help="files in one directory")
    parser.add_argument("--tree", type=int, default=100_000, help="files in a tree")
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    with mounts.work_folder() as folder:
        result = measure(folder, arguments.flat, arguments.tree, arguments.rounds)
    tell(result, arguments.json, *COLUMNS)


if __name__ == "__main__":
    main()
