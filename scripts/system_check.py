"""Checks redoxfs on the system that it runs on: for each way to use it a row of files read, wrong, distinct, and RSS.

    python3 system_check.py REDOXFS FOLDER [ROW…]

REDOXFS is the installed command, of one or more words. FOLDER is an empty directory with a short path, since sockets
are made in it. A ROW may have colons for spaces, as a kernel's command line has it.

It makes its own dataset, in which each file says its name and ends with the sum of its bytes. An epoch is exact if each
sample came once, whole, and of the class that was asked for. In the row "planted fault" a file says another class, so
that it must not be exact. Root's run has a row for a user who is not root, and only if it is named the row "a user,
50 epochs", with direct_io. The exit code is 0 only if each row is good.

It imports nothing of redoxfs and nothing that is not in Debian's python3, since what it checks is what was installed.
"""

import ctypes
import json
import mmap
import os
import platform
import random
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CLASSES = ("cat", "dog", "emu")
FILES = 240
"""More than fit in memory, and few enough for an emulator, where a file takes up to 50 ms."""
# Between 35 and 70 kB the rounding to large pages would cost most.
LEAST_BYTES, MOST_BYTES = 35_000, 70_000
MEMORY_MIB = 8
# Beyond --memory: pages of requests, stacks of threads, what buffers round up. With 1.87 times the memory, as pages of
# 64 kB once took, a row fails. tests/t4_memory.py allows more, for many readers.
OVER_MEMORY_MIB = 8
# docs/cache.md: for samples that wait to be written, and for the write in progress.
CACHE_MIB = 32 + 16
READERS = 4
USER = 65534
PATIENCE_S = 300
"""An emulated machine is slow."""

Read = Callable[[Path], bytes]


def make_dataset(root: Path) -> None:
    own = random.Random(1)
    for number in range(FILES):
        kind = CLASSES[number % len(CLASSES)]
        (root / "train" / kind).mkdir(parents=True, exist_ok=True)
        (root / f"train/{kind}/{number:03}.jpg").write_bytes(
            sample(kind, number, own.randrange(LEAST_BYTES, MOST_BYTES))
        )


def sample(kind: str, number: int, size: int) -> bytes:
    body = f"{kind}/{number:03}\n".encode() + random.Random(number).randbytes(size)
    return body + zlib.crc32(body).to_bytes(4, "big")


def name_of(data: bytes) -> str | None:
    """The name that a sample says; None if it is not whole."""
    if zlib.crc32(data[:-4]).to_bytes(4, "big") != data[-4:]:
        return None
    return data.partition(b"\n")[0].decode()


def plainly(path: Path) -> bytes:
    return path.read_bytes()


def by_mmap(path: Path) -> bytes:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as pages:
        return pages[:]


def by_sendfile(path: Path) -> bytes:
    out = os.memfd_create("sent")
    with path.open("rb") as file, open(out, "rb") as sent:
        while os.sendfile(out, file.fileno(), None, 1 << 20):
            pass
        os.lseek(out, 0, os.SEEK_SET)
        return sent.read()


class Row:
    """What a mount served so far, and how much memory its daemon took."""

    def __init__(self, redoxfs: str, folder: Path, name: str) -> None:
        self.redoxfs, self.folder, self.name = redoxfs, folder, name
        self.mnt = folder / "mnt"
        self.read = self.wrong = self.distinct = self.epochs = self.redirected = 0
        self.rss_mib = self.started_mib = self.grown_mib = 0.0
        self.most_mib = MEMORY_MIB + OVER_MEMORY_MIB
        self.began_s = time.monotonic()

    def call(self, *words: str | Path) -> None:
        done = subprocess.run(
            [*self.redoxfs.split(), *map(str, words)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        if done.returncode:
            raise RuntimeError(f"redoxfs {' '.join(map(str, words))} ended with {done.returncode}: {done.stderr}")

    def stats(self) -> dict[str, object]:
        return json.loads((self.mnt / ".redoxfs/stats.json").read_text())

    def rss(self) -> float:
        return int(Path(f"/proc/{self.stats()['pid']}/statm").read_text().split()[1]) * mmap.PAGESIZE / 2**20

    def mount(self, source: Path, *options: str | Path) -> None:
        self.call("mount", source, self.mnt, "--classes", "dir", "--memory", f"{MEMORY_MIB}M", *options)
        self.started_mib = self.rss()

    def epoch(self, how: Read = plainly, halfway: Callable[[], None] | None = None) -> None:
        """Read each file once, in random order; ``halfway`` runs in between, under files that are half read."""
        paths = sorted((self.mnt / "train").glob("*/*"))
        random.Random(self.epochs).shuffle(paths)
        half = len(paths) // 2
        with ThreadPoolExecutor(READERS) as pool:
            read = list(pool.map(how, paths[:half]))
            if halfway:
                held = [path.open("rb", buffering=0) for path in paths[half : half + READERS]]
                begun = [file.read(1000) for file in held]
                self.note()
                halfway()
                self.started_mib = self.rss()
                read += [first + file.read() for first, file in zip(begun, held, strict=True)]
                for file in held:
                    file.close()
            read += pool.map(how, paths[len(read) :])
        names = [name_of(each) for each in read]
        self.read += len(names)
        self.wrong += sum(
            name is None or name.partition("/")[0] != path.parent.name for path, name in zip(paths, names, strict=True)
        )
        self.distinct += len(set(names))
        self.epochs += 1

    def note(self) -> None:
        """What this daemon did and takes, before it ends."""
        self.redirected += int(str(self.stats()["redirected"]))
        self.rss_mib = self.rss()
        self.grown_mib = max(self.grown_mib, self.rss_mib - self.started_mib)

    def unmount(self) -> None:
        self.note()
        self.call("umount", self.mnt)

    @property
    def is_exact(self) -> bool:
        expected = FILES * self.epochs
        return self.wrong == 0 and self.read == self.distinct == expected > 0

    def tell(self, is_faulty: bool) -> bool:
        good = not self.is_exact if is_faulty else self.is_exact and self.redirected and self.grown_mib <= self.most_mib
        verdict = ("fails, as it must" if is_faulty else "ok") if good else "FAILED"
        print(
            f"{self.name:<18} {self.read:>5} {self.wrong:>5} {self.distinct:>8} {self.redirected:>10} "
            f"{self.rss_mib:>7.1f} {self.grown_mib:>6.1f} {time.monotonic() - self.began_s:>6.0f}  {verdict}",
            flush=True,
        )
        return bool(good)


def mounted(*options: str, epochs: int = 1) -> Callable[[Row, Path], None]:
    def check(row: Row, data: Path) -> None:
        row.mount(data, *options)
        while row.epochs < epochs:
            row.epoch()
            if row.epochs % 10 == 0:
                print(f"{row.name}, epoch {row.epochs}: {row.read} {row.wrong} {row.distinct}", flush=True)
        row.unmount()

    return check


def packed(row: Row, data: Path) -> None:
    row.call("pack", data, row.folder / "packed", "--classes", "dir")
    row.call("mount", row.folder / "packed", row.mnt, "--memory", f"{MEMORY_MIB}M")
    row.started_mib = row.rss()
    row.epoch()
    row.unmount()


def cached(row: Row, data: Path) -> None:
    row.most_mib += CACHE_MIB
    for _ in range(2):
        row.mount(data, "--cache", row.folder / "cache")
        row.epoch()
        row.unmount()


def read_by(how: Read) -> Callable[[Row, Path], None]:
    def check(row: Row, data: Path) -> None:
        row.mount(data)
        row.epoch(how)
        row.unmount()

    return check


def killed(row: Row, data: Path) -> None:
    row.mount(data)
    row.epoch(halfway=lambda: os.kill(int(str(row.stats()["pid"])), signal.SIGKILL))
    row.unmount()


def restarted(row: Row, data: Path) -> None:
    row.mount(data)
    row.epoch(halfway=lambda: row.call("restart", row.mnt))
    row.unmount()


def faulty(row: Row, data: Path) -> None:
    path = data / "train/cat/000.jpg"
    right = path.read_bytes()
    path.write_bytes(sample("dog", 0, len(right) - len(b"dog/000\n") - 4))
    try:
        row.mount(data)
        row.epoch()
        row.unmount()
    finally:
        path.write_bytes(right)


ROWS: dict[str, Callable[[Row, Path], None]] = {
    "pool": mounted(epochs=2),
    "pool direct_io": mounted("-o", "direct_io"),
    "pool page_cache": mounted("-o", "page_cache"),
    "slot": mounted("--policy", "slot", epochs=2),
    "slot direct_io": mounted("--policy", "slot", "-o", "direct_io"),
    "slot page_cache": mounted("--policy", "slot", "-o", "page_cache"),
    "packed": packed,
    "cache": cached,
    "mmap": read_by(by_mmap),
    "sendfile": read_by(by_sendfile),
    "keeper": killed,
    "restart": restarted,
    "planted fault": faulty,
}


USERS_ROWS: dict[str, Callable[[Row, Path], None]] = {
    "a user": mounted(epochs=2),
    "a user, 50 epochs": mounted("-o", "direct_io", epochs=50),
}
"""Of a user who is not root."""

EVERY = ROWS | USERS_ROWS


def check(redoxfs: str, folder: Path, name: str, data: Path) -> bool:
    here = folder / str(list(EVERY).index(name))
    (here / "mnt").mkdir(parents=True)
    for home in ("CACHE", "STATE", "RUNTIME"):
        (here / home).mkdir(mode=0o700)
        os.environ[f"XDG_{home}_{'DIR' if home == 'RUNTIME' else 'HOME'}"] = str(here / home)
    row = Row(redoxfs, here, name)
    try:
        EVERY[name](row, data)
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"{name}: {error}", flush=True)
        for log in here.rglob("*.log"):
            print(log.read_text(errors="replace")[-2000:], flush=True)
        return False
    return row.tell(name == "planted fault")


def become_user() -> None:
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)


def check_as_user(redoxfs: str, folder: Path, name: str, data: Path) -> bool:
    """In a child process, since a process cannot be root again."""
    mine = folder / "user"
    mine.mkdir(exist_ok=True)
    os.chown(mine, USER, USER)
    child = os.fork()
    if not child:
        is_good = False
        try:
            become_user()
            # Else /proc of this process stays root's.
            ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
            is_good = check(redoxfs, mine, name, data)
        finally:
            os._exit(not is_good)
    return os.waitpid(child, 0)[1] == 0


def main() -> int:
    redoxfs, folder, *wanted = (word.replace(":", " ") for word in sys.argv[1:])
    root = Path(folder).resolve()
    data = root / "data"
    make_dataset(data)
    print(
        f"Linux {os.uname().release} {os.uname().machine}, pages of {mmap.PAGESIZE} bytes, "
        f"Python {platform.python_version()}, {' '.join(platform.libc_ver())}"
    )
    print(f"{'':<18} {'read':>5} {'wrong':>5} {'distinct':>8} {'redirected':>10} {'RSS MiB':>7} {'grown':>6} {'s':>6}")
    results = [check(redoxfs, root, name, data) for name in wanted or ROWS if name not in USERS_ROWS]
    if os.getuid() == 0:
        results += [check_as_user(redoxfs, root, name, data) for name in wanted or ["a user"] if name in USERS_ROWS]
    print(f"{sum(results)} of {len(results)} rows ok", flush=True)
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
