"""How long the index of tar archives takes, beside `tar tf`, Python's tarfile and ratarmount, if that is installed.

    python scripts/bench/archives.py [--members 100000] [--archives 100] [--bytes 1000] [--holes] [--rounds 3]
                                     [--no-tarfile] [--json FILE] [FOLDER]

All rows are from the page cache but for those that say cold, before which the archives are dropped from it. Each row
has the time that passed, and the processor time of this process and of those that it waited for. The rows of mounts are
of the real commands, which make the index before they fork their daemons. With ``--holes`` the members have no blocks
on disk.
"""

import importlib.util
import os
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mounts
from results import options_of, rounded, tell
from tar_writer import TarWriter

from redoxfs.native import index_archives
from redoxfs.packed.archive_files import OnDisk
from redoxfs.packed.archives import HEADERS_MAX, load_or_index


def write(folder: Path, archives: int, members: int, size: int, *, holes: bool) -> list[str]:
    """Shards of members, with times of long ago, so that a kept index is trusted."""
    data = os.urandom(size)
    names = []
    for number in range(archives):
        name = f"shard-{number:06}.tar"
        with TarWriter(folder / name) as archive:
            for member in range(members // archives):
                path = f"{number:06}{member:06}.jpg"
                if holes:
                    archive.add_hole(path, size)
                else:
                    archive.add(path, data)
        os.utime(folder / name, (1_600_000_000, 1_600_000_000))
        names.append(name)
    return names


def drop(folder: Path, names: list[str]) -> None:
    for name in names:
        with (folder / name).open("rb") as archive:
            os.posix_fadvise(archive.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def best(
    run: Callable[[], object], rounds: int = 1, before: Callable[[], object] = lambda: None
) -> tuple[float, float]:
    """The least seconds of some runs, and the processor time of that run."""
    found = []
    for _ in range(rounds):
        before()
        begin, busy = time.perf_counter(), processor_s()
        run()
        found.append((time.perf_counter() - begin, processor_s() - busy))
    return min(found)


def processor_s() -> float:
    """Of this process and of its children that have ended."""
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def headers(folder: Path, names: list[str]) -> int:
    """The number of members, as C finds them."""
    fds = [os.open(folder / name, os.O_RDONLY) for name in names]
    try:
        ranges = [(fd, 0, os.fstat(fd).st_size) for fd in fds]
        found = index_archives(
            ranges,
            threads=OnDisk.threads,
            most_headers=HEADERS_MAX,
            through_bytes=OnDisk.through_bytes,
            long_window=OnDisk.windows[0],
            short_window=OnDisk.windows[1],
            salvages=False,
            read=None,
            progress=None,
        )
        return sum(len(each[2]) for each in found)
    finally:
        for fd in fds:
            os.close(fd)


def mount(folder: Path, cache: Path) -> None:
    """Mount and unmount the archives by the command."""
    mountpoint = folder.parent / "mnt"
    mountpoint.mkdir(exist_ok=True)
    environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
    command = [sys.executable, "-m", "redoxfs"]
    options = ["--classes", "any", "--memory", "64MiB", "--storage-speed", "500,200MB"]
    subprocess.run([*command, "mount", *options, folder, mountpoint], check=True, env=environment, capture_output=True)
    subprocess.run([*command, "umount", mountpoint], check=True, env=environment, capture_output=True)


def ratarmount(folder: Path, names: list[str], indexes: Path) -> None:
    """Mount and unmount the archives as one tree; their indexes are kept, and made if there are none."""
    mountpoint = folder.parent / "rata"
    mountpoint.mkdir(exist_ok=True)
    indexes.mkdir(exist_ok=True)
    # By default it keeps no index of a small archive.
    command = [sys.executable, "-m", "ratarmount", "--index-minimum-file-count", "0"]
    archives = [folder / name for name in names]
    subprocess.run([*command, "--index-folders", indexes, *archives, mountpoint], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["umount", mountpoint], check=True)


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
    given = options_of(__doc__)
    given.add_argument("--members", type=int, default=100_000)
    given.add_argument("--archives", type=int, default=100)
    given.add_argument("--bytes", type=int, default=1000)
    given.add_argument("--holes", action="store_true")
    given.add_argument("--rounds", type=int, default=3)
    given.add_argument("--no-tarfile", action="store_true")
    given.add_argument("folder", nargs="?", type=Path, default=Path(tempfile.gettempdir()))
    asked = given.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as made:
        folder, cache = Path(made) / "archives", Path(made) / "cache"
        folder.mkdir()
        names = write(folder, asked.archives, asked.members, asked.bytes, holes=asked.holes)
        files = OnDisk(os.open(folder, os.O_RDONLY | os.O_DIRECTORY), [(name, name) for name in names])

        rows: list[dict[str, Any]] = []

        def show(name: str, run: Callable[[], object], rounds: int = asked.rounds, **options: Any) -> None:
            seconds, busy = best(run, rounds, **options)
            print(f"{name}: {seconds:.2f} s", file=sys.stderr)
            rate = asked.members / seconds
            rows.append({"what": name, "seconds": seconds, "members_per_s": rate, "processor_seconds": busy})

        def index(*, rescan: bool) -> None:
            load_or_index(made, files, cache, rescan=rescan)

        show("redoxfs, headers alone, cold", lambda: headers(folder, names), 1, before=lambda: drop(folder, names))
        show("redoxfs, headers alone", lambda: headers(folder, names))
        show("redoxfs, first mount's index", lambda: index(rescan=True))
        show("redoxfs, second mount's index", lambda: index(rescan=False))
        show("tar tf, cold", lambda: tar_tf(folder, names), 1, before=lambda: drop(folder, names))
        show("tar tf", lambda: tar_tf(folder, names))
        if not asked.no_tarfile:
            show("Python's tarfile", lambda: python(folder, names), 1)
        show("redoxfs mount and umount, first", lambda: mount(folder, cache), 1)
        show("redoxfs mount and umount, second", lambda: mount(folder, cache), 1)
        most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        if importlib.util.find_spec("ratarmount") is not None:
            for which in ("first", "second"):
                show(f"ratarmount and umount, {which}", lambda: ratarmount(folder, names, cache / "ratarmount"), 1)
        given_words = {"members": asked.members, "archives": asked.archives, "bytes": asked.bytes}
        told = {"machine": mounts.machine(), **given_words, "most_memory_bytes": most << 10, "rows": rows}
        tell(rounded(told), asked.json, *rows[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
