"""How long the index of tar archives takes, beside `tar tf` and Python's tarfile, all from the page cache.

python scripts/bench/archives.py [--members 100000] [--archives 100] [--bytes 1000] [FOLDER]
"""

import argparse
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from redoxfs.native import index_archives
from redoxfs.packed.archives import HEADERS_MAX, THREADS, THROUGH_BYTES, load_or_index

ROUNDS = 3


def write(folder: Path, archives: int, members: int, size: int) -> list[str]:
    """Shards of members, with times of long ago, so that a kept index is trusted."""
    data = os.urandom(size)
    names = []
    for number in range(archives):
        name = f"shard-{number:06}.tar"
        with tarfile.open(folder / name, "w", format=tarfile.USTAR_FORMAT) as archive:
            for member in range(members // archives):
                info = tarfile.TarInfo(f"{number:06}{member:06}.jpg")
                info.size = size
                archive.addfile(info, io.BytesIO(data))
        os.utime(folder / name, (1_600_000_000, 1_600_000_000))
        names.append(name)
    return names


def best(run: Callable[[], object], rounds: int = ROUNDS) -> float:
    """The least seconds of some runs."""
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin)
    return min(found)


def headers(folder: Path, names: list[str]) -> int:
    """The number of members, as C finds them."""
    fds = [os.open(folder / name, os.O_RDONLY) for name in names]
    try:
        ranges = [(fd, 0, os.fstat(fd).st_size) for fd in fds]
        found = index_archives(
            ranges, threads=THREADS, most_headers=HEADERS_MAX, through_bytes=THROUGH_BYTES, progress=None
        )
        return sum(len(each[2]) for each in found)
    finally:
        for fd in fds:
            os.close(fd)


def tar_tf(folder: Path, names: list[str]) -> None:
    for name in names:
        subprocess.run(["tar", "tf", folder / name], stdout=subprocess.DEVNULL, check=True)


def python(folder: Path, names: list[str]) -> int:
    count = 0
    for name in names:
        with tarfile.open(folder / name) as archive:
            count += len(archive.getmembers())
    return count


def main() -> int:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--members", type=int, default=100_000)
    given.add_argument("--archives", type=int, default=100)
    given.add_argument("--bytes", type=int, default=1000)
    given.add_argument("folder", nargs="?", type=Path, default=Path(tempfile.gettempdir()))
    asked = given.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as made:
        folder = Path(made)
        names = write(folder, asked.archives, asked.members, asked.bytes)
        pairs = [(name, name) for name in names]
        root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        cache = folder / "cache"
        rows = {
            "redoxfs, headers alone": best(lambda: headers(folder, names)),
            "redoxfs, first mount's index": best(lambda: load_or_index(made, root, pairs, cache, rescan=True)),
            "redoxfs, second mount's index": best(lambda: load_or_index(made, root, pairs, cache)),
            "tar tf": best(lambda: tar_tf(folder, names)),
            "Python's tarfile": best(lambda: python(folder, names), 1),
        }
        for name, seconds in rows.items():
            print(f"{name:30} {seconds:8.2f} s {asked.members / seconds:12,.0f} members/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
