"""Control groups that cap the reads of a storage, and the memory of the processes in them, page cache included.

They work with cgroup v1 and v2, and need root. A group counts what its processes read from the device, so the
benchmarks know what a way of reading costs the storage without relying on what the program reports.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
PATIENCE_S = 10


@dataclass(frozen=True, slots=True)
class Profile:
    """The most reads and bytes a second that the storage may do; None: no cap.

    With ``delay_ms``, slow_store.c delays each open and each read instead, and there are no caps.
    """

    name: str
    reads_per_s: int | None = None
    bytes_per_s: int | None = None
    delay_ms: float | None = None


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("nas", 500, 200_000_000),
        Profile("hdd", 200, 150_000_000),
        Profile("none"),
        Profile("latency", delay_ms=2),
    )
}


class Group:
    """A group for processes. A child calls `enter` between fork and exec."""

    def __init__(self, folders: list[Path], read_bytes: Callable[[], int]) -> None:
        self._folders = folders
        self.read_bytes = read_bytes

    def enter(self) -> None:
        for folder in self._folders:
            (folder / "cgroup.procs").write_text(str(os.getpid()))


@contextmanager
def throttled(profile: Profile, memory_bytes: int, below: Path) -> Iterator[Group]:
    """Make a group that caps reads of the disk that holds ``below``."""
    if os.geteuid() != 0:
        raise SystemExit("throttling the storage needs root")
    number = os.stat(below).st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    name = f"redoxfs-bench-{os.getpid()}"
    is_v2 = (GROUPS / "cgroup.controllers").exists()
    made = _v2(name, profile, memory_bytes, device) if is_v2 else _v1(name, profile, memory_bytes, device)
    folders, read_bytes = made
    try:
        yield Group(folders, read_bytes)
    finally:
        deadline = time.monotonic() + PATIENCE_S
        for folder in folders:
            while folder.exists():
                try:
                    folder.rmdir()
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)


def _v1(name: str, profile: Profile, memory_bytes: int, device: str) -> tuple[list[Path], Callable[[], int]]:
    block, memory = GROUPS / "blkio" / name, GROUPS / "memory" / name
    for folder in (block, memory):
        folder.mkdir()
    if profile.reads_per_s:
        (block / "blkio.throttle.read_iops_device").write_text(f"{device} {profile.reads_per_s}")
    if profile.bytes_per_s:
        (block / "blkio.throttle.read_bps_device").write_text(f"{device} {profile.bytes_per_s}")
    (memory / "memory.limit_in_bytes").write_text(str(memory_bytes))

    def read_bytes() -> int:
        lines = (block / "blkio.throttle.io_service_bytes").read_text().splitlines()
        return sum(int(line.split()[2]) for line in lines if line.startswith(f"{device} Read "))

    return [block, memory], read_bytes


def _v2(name: str, profile: Profile, memory_bytes: int, device: str) -> tuple[list[Path], Callable[[], int]]:
    (GROUPS / "cgroup.subtree_control").write_text("+io +memory")
    folder = GROUPS / name
    folder.mkdir()
    reads, size = profile.reads_per_s or "max", profile.bytes_per_s or "max"
    (folder / "io.max").write_text(f"{device} riops={reads} rbps={size}")
    (folder / "memory.max").write_text(str(memory_bytes))

    def read_bytes() -> int:
        for line in (folder / "io.stat").read_text().splitlines():
            if line.startswith(f"{device} "):
                return int(dict(pair.split("=") for pair in line.split()[1:])["rbytes"])
        return 0

    return [folder], read_bytes


def drop_caches() -> None:
    """Drop all cached pages and names, so that they have to be read again."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")
