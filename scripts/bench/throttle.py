"""Control groups that cap the reads of a storage, and the memory of the processes in them, page cache included.

They work with cgroup v1 and v2, and need root. A group counts what its processes read from the device, so the
benchmarks know what a way of reading costs the storage without relying on what the program reports.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
PATIENCE_S = 10

REQUESTS_OF_FILE = 2
"""Of a small file, of storage that counts requests: the open and the read."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The most reads and bytes a second that the storage may do; None: no cap.

    With ``delay_ms`` there are no caps: slow_store.c serves the files, with that delay in each request, ``at_once`` of
    them in service, and ``bytes_per_s`` for all together. A long read is one request there, as of storage, while a cap
    counts each MiB of it.
    """

    name: str
    reads_per_s: int | None = None
    bytes_per_s: int | None = None
    delay_ms: float | None = None
    at_once: int | None = None

    @property
    def files_per_s(self) -> float | None:
        """How many small files it can serve in a second, each in an open and a read; None: as many as are asked."""
        if self.delay_ms is None:
            return self.reads_per_s
        return None if self.at_once is None else self.at_once / (REQUESTS_OF_FILE * self.delay_ms / 1e3)

    def store(self, program: Path, source: Path, at: Path, *options: str) -> list[str]:
        """The command of slow_store.c, which is ``program``."""
        words = [str(program), str(source), str(at), str(self.delay_ms), *options]
        words += [f"at-once={self.at_once}"] if self.at_once else []
        return words + ([f"mb-per-s={self.bytes_per_s / 1e6}"] if self.bytes_per_s else [])

    @property
    def title(self) -> str:
        if self.delay_ms is not None:
            told = f"{self.name}: {self.delay_ms:g} ms in each open and read"
            told += f", {self.at_once} at once" if self.at_once else ""
            return told + (f", {self.bytes_per_s / 1e6:.0f} MB/s" if self.bytes_per_s else "")
        if self.reads_per_s is None or self.bytes_per_s is None:
            return f"{self.name}: not capped"
        return f"{self.name}: {self.reads_per_s} reads/s, {self.bytes_per_s / 1e6:.0f} MB/s"


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("nas", 500, 200_000_000),
        Profile("hdd", 200, 150_000_000),
        Profile("none"),
        Profile("latency", delay_ms=2),
        # Stores: a filer with disks, a parallel filesystem, a disk, a volume of a cloud with 3,000 requests a second,
        # and objects behind a filesystem.
        Profile("filer", None, 400_000_000, delay_ms=5, at_once=8),
        Profile("parallel", None, 1_000_000_000, delay_ms=1, at_once=16),
        Profile("disk", None, 150_000_000, delay_ms=8, at_once=1),
        Profile("volume", None, 125_000_000, delay_ms=1, at_once=3),
        Profile("objects", None, 500_000_000, delay_ms=25, at_once=64),
    )
}


def store_read(mountpoint: Path) -> tuple[int, int]:
    """How many requests slow_store.c had at ``mountpoint``, and how many bytes it read."""
    requests, read, _ = os.getxattr(mountpoint, "user.read").split()
    return int(requests), int(read)


class Group:
    """A group for processes. A child calls `enter` between fork and exec."""

    def __init__(self, files: "_V1 | _V2") -> None:
        self._files = files

    def enter(self) -> None:
        self.take(os.getpid())

    def take(self, pid: int) -> None:
        """Move a running process into the group. What it has in memory is not counted."""
        for folder in self._files.folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def kill(self) -> None:
        """End what is left in it, such as workers of a process that was killed."""
        for pid in (self._files.folders[0] / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def read_bytes(self) -> int:
        """Bytes that its processes have read from the disk."""
        return self._files.read_bytes()

    def reads(self) -> int:
        """How many requests that took."""
        return self._files.reads()

    def cap(self, profile: Profile) -> None:
        """Put other caps in the place of those so far."""
        self._files.cap(profile)

    def limit_memory(self, memory_bytes: int | None) -> None:
        """Let its processes and their page cache have so much memory; None: any amount."""
        self._files.limit_memory(memory_bytes)

    def used_bytes(self) -> int:
        """Memory of its processes without their page cache."""
        return self._files.used_bytes()


@contextmanager
def throttled(profile: Profile, memory_bytes: int | None, below: Path, part: str = "") -> Iterator[Group]:
    """Make a group that caps reads of the disk that holds ``below``. Each group of a process has a ``part``."""
    if os.geteuid() != 0:
        raise SystemExit("throttling the storage needs root")
    number = os.stat(below).st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    is_v2 = (GROUPS / "cgroup.controllers").exists()
    files = (_V2 if is_v2 else _V1)(f"redoxfs-bench-{os.getpid()}{part}", device)
    try:
        files.make()
        files.cap(profile)
        files.limit_memory(memory_bytes)
        yield Group(files)
    finally:
        deadline = time.monotonic() + PATIENCE_S
        for folder in files.folders:
            while folder.exists():
                try:
                    folder.rmdir()
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)


class _V1:
    def __init__(self, name: str, device: str) -> None:
        self._block, self._memory = GROUPS / "blkio" / name, GROUPS / "memory" / name
        self.folders = [self._block, self._memory]
        self._device = device

    def make(self) -> None:
        for folder in self.folders:
            folder.mkdir()

    def cap(self, profile: Profile) -> None:
        # 0 removes a cap.
        (self._block / "blkio.throttle.read_iops_device").write_text(f"{self._device} {profile.reads_per_s or 0}")
        (self._block / "blkio.throttle.read_bps_device").write_text(f"{self._device} {profile.bytes_per_s or 0}")

    def limit_memory(self, memory_bytes: int | None) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                (self._memory / "memory.limit_in_bytes").write_text(str(memory_bytes or -1))
            except OSError:
                # EBUSY: the kernel did not find enough to drop in one go.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return

    def read_bytes(self) -> int:
        return self._of_device("blkio.throttle.io_service_bytes")

    def reads(self) -> int:
        return self._of_device("blkio.throttle.io_serviced")

    def used_bytes(self) -> int:
        of = dict(line.split() for line in (self._memory / "memory.stat").read_text().splitlines())
        used = int((self._memory / "memory.usage_in_bytes").read_text())
        return used - int(of["total_cache"]) + int(of["total_shmem"])

    def _of_device(self, name: str) -> int:
        lines = (self._block / name).read_text().splitlines()
        return sum(int(line.split()[2]) for line in lines if line.startswith(f"{self._device} Read "))


class _V2:
    def __init__(self, name: str, device: str) -> None:
        self._folder = GROUPS / name
        self.folders = [self._folder]
        self._device = device

    def make(self) -> None:
        (GROUPS / "cgroup.subtree_control").write_text("+io +memory")
        self._folder.mkdir()

    def cap(self, profile: Profile) -> None:
        reads, size = profile.reads_per_s or "max", profile.bytes_per_s or "max"
        (self._folder / "io.max").write_text(f"{self._device} riops={reads} rbps={size}")

    def limit_memory(self, memory_bytes: int | None) -> None:
        (self._folder / "memory.max").write_text(str(memory_bytes or "max"))

    def read_bytes(self) -> int:
        return self._of_device("rbytes")

    def reads(self) -> int:
        return self._of_device("rios")

    def used_bytes(self) -> int:
        of = dict(line.split() for line in (self._folder / "memory.stat").read_text().splitlines())
        return int((self._folder / "memory.current").read_text()) - int(of["file"]) + int(of["shmem"])

    def _of_device(self, name: str) -> int:
        for line in (self._folder / "io.stat").read_text().splitlines():
            if line.startswith(f"{self._device} "):
                # A device that was not used yet has a line of its number alone.
                return int(dict(pair.split("=") for pair in line.split()[1:]).get(name, 0))
        return 0


def drop_caches(*, pages: bool = True, names: bool = True) -> None:
    """Drop what the kernel has cached, pages or names with their inodes, so that it has to be read again.

    Raises OSError.
    """
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text(str(pages + 2 * names))


def can_drop_caches(*, pages: bool = True) -> bool:
    """As `drop_caches`, always with the names. False if that is not permitted."""
    try:
        drop_caches(pages=pages)
    except OSError:
        return False
    return True
