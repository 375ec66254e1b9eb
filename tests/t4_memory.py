"""A daemon's memory stays within --memory and the amounts named here, with any readers and over many epochs."""

import os
import random
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from forks import EXECUTED
from machine import PATIENCE_S, Machine

MIB = 1 << 20

PROGRAM_BYTES = 56 * MIB
"""A daemon right after its start, with a few thousand files: the interpreter, numpy, trio, pyfuse3 and the catalog.
Measured: 40 MiB with Python 3.11."""

OVER_MEMORY_BYTES = 24 * MIB
"""Its memory beyond --memory and its start: pages of requests, stacks of its threads, and what buffers round up and
keep for the next files. Measured: up to 7 MiB."""

HANDLE_BYTES = 2_000
"""The memory of an open file: its handle, and the binding of the path."""

READER = """
import os, random, sys, threading
number, readers, epochs, slow = map(int, sys.argv[1:])
paths = [line.rstrip("\\n") for line in sys.stdin]
together = threading.Barrier(readers)

def read(path):
    with open(path, "rb") as file:
        data = file.read()
        if data.count(data[0]) != len(data):
            os._exit(1)

def read_slowly(path):
    # A piece, then wait for the others with the file open, then the rest.
    with open(path, "rb", buffering=0) as file:
        data = file.read(1000)
        together.wait()
        while piece := file.read(10_000):
            data += piece
        if data.count(data[0]) != len(data) or len(data) != os.fstat(file.fileno()).st_size:
            os._exit(2)

def job(thread):
    for epoch in range(epochs):
        mine = paths[thread::readers]
        random.Random(f"{number} {thread} {epoch}").shuffle(mine)
        for path in mine[: len(paths) // readers]:
            (read_slowly if slow else read)(path)

threads = [threading.Thread(target=job, args=(thread,)) for thread in range(readers)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def files(root: Path, count: int, size: int) -> Path:
    """Files of ten classes, each of one byte over and over, from half of ``size`` to all of it."""
    own = random.Random(0)
    for label in range(10):
        (root / f"kind{label}").mkdir(parents=True)
        for number in range(count // 10):
            (root / f"kind{label}/{number:05}.jpg").write_bytes(bytes([label]) * own.randrange(size // 2, size))
    return root


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def kept_rss_bytes(pid: int) -> int:
    """Its memory without pages of files: those of programs and libraries come when they are first touched, which may be
    late, and the kernel takes them back."""
    status = Path(f"/proc/{pid}/status").read_text()
    return sum(int(status.split(f"{kind}:")[1].split()[0]) << 10 for kind in ("RssAnon", "RssShmem"))


def highest_rss_bytes(pid: int) -> int:
    """Its peak memory, as counted by the kernel."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def mounted(machine: Machine, source: Path, policy: str, memory: int, *options: str) -> tuple[int, list[str]]:
    """The daemon, and all its files."""
    every = ("--policy", policy, "--memory", str(memory), *options)
    if not (source / "manifest.json").exists():
        every += ("--classes", "dir")
    machine.before = EXECUTED
    machine.ok("mount", source, machine.mnt, *every)
    pid = machine.pid()
    assert rss_bytes(pid) <= PROGRAM_BYTES
    return pid, sorted(map(str, machine.mnt.rglob("*.jpg")))


@contextmanager
def reading(paths: Sequence[str], kinds: Sequence[tuple[int, bool]], epochs: int) -> Iterator[None]:
    """Processes that read ``paths``, one for each of ``kinds``: its number of threads, slow or not. All succeed."""
    processes = []
    try:
        for number, (readers, slow) in enumerate(kinds):
            command = [sys.executable, "-c", READER, *map(str, (number, readers, epochs, int(slow)))]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
            processes.append(process)
            assert process.stdin is not None
            process.stdin.write("\n".join(paths[number :: len(kinds)]))
            process.stdin.close()
        yield
        assert [process.wait(2 * PATIENCE_S) for process in processes] == [0] * len(kinds)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def has_laps(stats: dict[str, Any], policy: str, epochs: int) -> bool:
    """Readers that do not meet between epochs have passes that overlap, which end the laps of the pool earlier."""
    lap: int = stats["lap"]["."]
    return lap >= epochs if policy == "pool" else lap == epochs


@pytest.mark.parametrize(("policy", "packed"), [("pool", True), ("slot", False)])
def test_32_readers_some_slow_stay_within_memory(machine: Machine, tmp_path: Path, policy: str, packed: bool) -> None:
    memory, served = 8 * MIB, files(tmp_path / "data", 800, 60_000)
    if packed:
        machine.ok("pack", served, tmp_path / "packed", "--classes", "dir")
        served = tmp_path / "packed"
    pid, paths = mounted(machine, served, policy, memory)
    before = rss_bytes(pid)
    kinds = [(8, False), (8, False), (8, False), (8, True)]
    with reading(paths, kinds, epochs=3):
        pass
    stats = machine.stats()
    assert stats["bytes_served"] > 8 * memory
    assert stats["errors"] == 0
    assert has_laps(stats, policy, 3)
    assert stats["memory_used_bytes"] <= memory
    assert highest_rss_bytes(pid) <= before + memory + OVER_MEMORY_BYTES


def test_10_000_open_files_stay_within_memory(machine: Machine, tmp_path: Path) -> None:
    """A path and its handle belong to no policy."""
    memory, handles = 8 * MIB, 10_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < handles + 1000:
        pytest.skip(f"{hard} files may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (handles + 1000, hard))
    pid, paths = mounted(machine, files(tmp_path / "data", 2000, 20_000), "pool", memory, "-o", "direct_io")
    before = rss_bytes(pid)
    opened: list[int] = []
    try:
        for _ in range(handles // len(paths)):
            opened += [os.open(path, os.O_RDONLY) for path in paths]
        for fd in opened[:: len(opened) // 2000]:
            data = os.pread(fd, 30_000, 0)
            assert data.count(data[0]) == len(data)
        stats = machine.stats()
        assert stats["open_files"] == handles
        assert stats["memory_used_bytes"] <= memory
        assert highest_rss_bytes(pid) <= before + memory + OVER_MEMORY_BYTES + handles * HANDLE_BYTES
    finally:
        for fd in opened:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def takes_huge_pages(process: int) -> bool:
    """Whether a process may have them, where the kernel has any."""
    return Path(f"/proc/{process}/status").read_text().split("THP_enabled:")[1].split()[0] == "1"


@pytest.mark.parametrize("page_bytes", [4 << 10, 16 << 10])
def test_a_daemon_takes_no_huge_pages_where_pages_are_large(machine: Machine, source: Path, page_bytes: int) -> None:
    """A huge page has 32 MiB there. The size of a page is set; scripts/test-systems boots a kernel that has it."""
    set_size = f"import mmap, sys; mmap.PAGESIZE = {page_bytes}"
    program = f"{set_size}; from redoxfs.cli import main; sys.exit(main(sys.argv[4:]))"
    machine.before = *EXECUTED, sys.executable, "-c", program
    machine.ok("mount", source, machine.mnt)
    assert takes_huge_pages(machine.pid()) == (page_bytes == 4 << 10 and takes_huge_pages(os.getpid()))


GROWTH_BYTES = 3 * MIB // 2
"""The growth over 15 more epochs, which read 45 MB in 3,000 opens: memory that is kept for the next files varies.
Measured: 0.2 to 0.5 MiB."""


@pytest.mark.parametrize(("policy", "memory", "retains"), [("pool", 2 * MIB, True), ("slot", MIB, False)])
def test_20_epochs_take_no_more_memory_than_5(
    machine: Machine, tmp_path: Path, policy: str, memory: int, retains: bool
) -> None:
    pid, paths = mounted(machine, files(tmp_path / "data", 200, 20_000), policy, memory)
    after: dict[int, int] = {}
    for epoch in (5, 20):
        with reading(paths, [(4, False)], epochs=epoch - max(after, default=0)):
            pass
        after[epoch] = kept_rss_bytes(pid)
    stats = machine.stats()
    assert has_laps(stats, policy, 20)
    assert stats["memory_used_bytes"] <= memory
    assert after[20] - after[5] <= GROWTH_BYTES
    # Not how many are there now: where the order of opens has many samples read alone, the stream grows.
    assert (stats["reads_saved"] > 0) == retains


@pytest.mark.parametrize(("policy", "policy_of_pages"), [("pool", "direct_io"), ("slot", "page_cache")])
def test_files_that_grow_and_shrink_after_the_scan_take_no_memory(
    machine: Machine, tmp_path: Path, policy: str, policy_of_pages: str
) -> None:
    """Sparse ones, whose size costs the writer nothing."""
    memory, size = 8 * MIB, 3 << 30
    source = files(tmp_path / "data", 400, 60_000)
    pid, paths = mounted(machine, source, policy, memory, "-o", policy_of_pages)
    before = rss_bytes(pid)
    every = sorted(source.rglob("*.jpg"))
    for path in every[::3]:
        os.truncate(path, size)
    for path in every[1::3]:
        os.truncate(path, 100)
    sizes = {path.stat().st_size for path in every}
    for _ in range(2):
        for name in paths:
            with open(name, "rb", buffering=0) as file:
                now = os.fstat(file.fileno()).st_size
                assert now in sizes
                assert len(file.read(1 << 16)) == min(now, 1 << 16)
                if now == size:
                    file.seek(-10, os.SEEK_END)
                    assert file.read() == bytes(10)
    stats = machine.stats()
    assert stats["errors"] == 0
    assert stats["changed"] == len(every[::3]) + len(every[1::3])
    assert highest_rss_bytes(pid) <= before + memory + OVER_MEMORY_BYTES
