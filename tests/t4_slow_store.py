"""The slow store of the demo: the files of its source with a delay in each open and read, and redoxfs can serve it."""

import errno
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import slow_store
from machine import PATIENCE_S, Machine
from packs import files_in
from patience import completed

from redoxfs.dataset import read_tree

pytestmark = pytest.mark.usefixtures("compiler")

CLASSES, FILES = 4, 12
FILE_BYTES = 3_000
LARGE_BYTES = 1_000_000
"""More than the kernel asks for in one read request."""

DELAY_MS = 30

Mount = Callable[..., AbstractContextManager[None]]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return slow_store.compiled(tmp_path_factory.mktemp("built"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    for label in range(CLASSES):
        (root / f"kind{label}").mkdir(parents=True)
        for number in range(FILES):
            name = f"{label}-{number:02}.jpg"
            (root / f"kind{label}" / name).write_bytes(os.urandom(FILE_BYTES + number))
    return root


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    mountpoint = tmp_path / "slow"
    mountpoint.mkdir()
    return mountpoint


@pytest.fixture
def mounted(program: Path, machine: Machine, slow: Path) -> Mount:
    """Mounts a source at ``slow``; ``machine`` detaches a mount that a failed test leaves."""

    @contextmanager
    def mounted(source: Path, delay_ms: float = 0, *options: str, names: bool = False) -> Iterator[None]:
        with slow_store.served(program, source, slow, delay_ms, *options, names=names):
            yield
        assert str(slow) not in machine.mounts()

    return mounted


def attributes(path: Path) -> tuple[int, ...]:
    now = path.lstat()
    return (now.st_ino, now.st_mode, now.st_size, now.st_mtime_ns, now.st_nlink)


def test_slow_store_shows_the_files_of_its_source(mounted: Mount, source: Path, slow: Path) -> None:
    (source / "large").write_bytes(os.urandom(LARGE_BYTES))
    (source / "empty").touch(0o640)
    (source / "link").symlink_to("kind0/0-00.jpg")
    with mounted(source):
        assert files_in(slow) == files_in(source)
        assert os.readlink(slow / "link") == "kind0/0-00.jpg"
        for path in source.rglob("*"):
            assert attributes(slow / path.relative_to(source)) == attributes(path)


def test_slow_store_refuses_writes(mounted: Mount, source: Path, slow: Path) -> None:
    with mounted(source):
        for attempt in (
            lambda: (slow / "new").touch(),
            lambda: (slow / "kind0/0-00.jpg").write_bytes(b""),
            lambda: (slow / "kind0/0-00.jpg").unlink(),
            lambda: (slow / "new").mkdir(),
        ):
            with pytest.raises(OSError) as refused:
                attempt()
            assert refused.value.errno == errno.EROFS


def test_slow_store_delays_each_open_and_each_first_read(mounted: Mount, source: Path, slow: Path) -> None:
    """Also where the same file was read before: nothing stays cached from one open to the next."""
    # Only the least is asserted: a busy machine takes longer.
    least_s = DELAY_MS / 1000
    with mounted(source, DELAY_MS):
        for path in 3 * sorted((slow / "kind0").iterdir())[:3]:
            began = time.monotonic()
            fd = os.open(path, os.O_RDONLY)
            opened = time.monotonic()
            os.read(fd, FILE_BYTES)
            ended = time.monotonic()
            os.close(fd)
            assert opened - began >= least_s
            assert ended - opened >= least_s


def requests(slow: Path) -> tuple[int, int]:
    """How many requests the store had, and how many bytes it read."""
    had, read, _ = os.getxattr(slow, "user.read").split()
    return int(had), int(read)


def test_a_read_across_pages_that_the_kernel_has_is_one_request_of_a_slow_store(
    mounted: Mount, source: Path, slow: Path
) -> None:
    """redoxfs reads many samples at once. A page that two samples share stays in memory when one of them is dropped."""
    length = 1 << 20
    data = os.urandom(5 * length)
    (source / "large").write_bytes(data)
    with mounted(source, 1):
        fd = os.open(slow / "large", os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        # The store does not remember the reads of these pages, after so many others.
        for number in (1, 6, 11, *range(17, 79)):
            os.pread(fd, 10, number * length // 16 + 1_000)
        before, read_before = requests(slow)
        assert os.pread(fd, length + 5_000, 1_000) == data[1_000 : length + 6_000]
        had, read = requests(slow)
        os.close(fd)
    assert read - read_before < length, "the kernel left out what it has"
    assert had - before == 1


def test_a_long_read_is_one_request_of_a_slow_store(mounted: Mount, source: Path, slow: Path) -> None:
    """Also while other threads read from the same descriptor. The kernel cuts each of these reads into many."""
    length, count = 4 << 20, 4
    data = os.urandom(2 * count * length)
    (source / "large").write_bytes(data)
    with mounted(source, DELAY_MS):
        fd = os.open(slow / "large", os.O_RDONLY)
        assert requests(slow) == (1, 0)

        def read(number: int) -> None:
            # Not from where another one ends, nor from where the kernel reads ahead.
            at = (2 * number + 1) * length - 100_000
            if os.pread(fd, length, at) == data[at : at + length]:
                right.append(number)

        right: list[int] = []
        threads = [threading.Thread(target=read, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os.close(fd)
        assert sorted(right) == list(range(count))
        had, read_bytes = requests(slow)
        assert had == 1 + count
        assert count * length <= read_bytes <= len(data)


def test_a_slow_store_has_so_many_requests_in_service(mounted: Mount, source: Path, slow: Path) -> None:
    paths = [slow / f"kind0/0-{number:02}.jpg" for number in range(6)]
    with mounted(source, DELAY_MS, "at-once=2"):
        began = time.monotonic()
        threads = [threading.Thread(target=path.read_bytes) for path in paths]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # An open and a read for each.
        assert time.monotonic() - began >= 2 * len(paths) / 2 * DELAY_MS / 1000
        assert requests(slow)[0] == 2 * len(paths)


def test_bytes_of_a_slow_store_take_time(mounted: Mount, source: Path, slow: Path) -> None:
    (source / "large").write_bytes(os.urandom(LARGE_BYTES))
    with mounted(source, 0, "mb-per-s=2"):
        began = time.monotonic()
        (slow / "large").read_bytes()
        assert time.monotonic() - began >= LARGE_BYTES / 2e6


def test_a_slow_store_may_leave_pages_in_the_page_cache(mounted: Mount, source: Path, slow: Path) -> None:
    for options, again in ([], True), (["cached"], False):
        with mounted(source, 0, *options):
            (slow / "kind0/0-00.jpg").read_bytes()
            before = requests(slow)[1]
            assert before
            (slow / "kind0/0-00.jpg").read_bytes()
            assert (requests(slow)[1] > before) == again


def test_slow_store_delays_names_if_it_is_asked_to(mounted: Mount, source: Path, slow: Path) -> None:
    with mounted(source, DELAY_MS, names=True):
        for action in (
            lambda: os.listdir(slow / "kind0"),
            lambda: os.stat(slow / "kind0/0-00.jpg"),
            lambda: os.stat(slow / "kind0/0-00.jpg"),
        ):
            began = time.monotonic()
            action()
            assert time.monotonic() - began >= DELAY_MS / 1000
    # A walk asks for some hundred names, so each takes less here.
    with mounted(source, 1, names=True):
        assert files_in(slow) == files_in(source)


def test_redoxfs_serves_a_slow_store(machine: Machine, mounted: Mount, source: Path, slow: Path) -> None:
    expected = files_in(source)
    with mounted(source, 1):
        machine.ok("mount", slow, machine.mnt, "--classes", "dir", "--memory", "64KiB")
        served = files_in(machine.mnt)
        assert files_in(machine.mnt / ".redoxfs/exact") == expected
        assert machine.stats()["errors"] == 0
        machine.ok("umount", machine.mnt)
    assert sorted(served.values()) == sorted(expected.values())


def test_redoxfs_packs_and_serves_a_packed_slow_store(
    machine: Machine, mounted: Mount, source: Path, slow: Path, tmp_path: Path
) -> None:
    expected = files_in(source)
    packed = tmp_path / "packed"
    with mounted(source, 1):
        machine.ok("pack", slow, packed, "--classes", "dir", "--jobs", "1")
    with mounted(packed, 1):
        machine.ok("mount", slow, machine.mnt)
        served = files_in(machine.mnt)
        assert files_in(machine.mnt / ".redoxfs/exact") == expected
        assert machine.stats()["errors"] == 0
        machine.ok("umount", machine.mnt)
    assert sorted(served.values()) == sorted(expected.values())


def test_ctrl_c_ends_a_scan_of_storage_that_does_not_answer(program: Path, source: Path, slow: Path) -> None:
    def interrupt(_entries: int, _directories: int) -> None:
        raise KeyboardInterrupt

    with slow_store.served(program, source, slow) as server:
        root = os.open(slow, os.O_RDONLY)
        try:
            server.send_signal(signal.SIGSTOP)
            with pytest.raises(KeyboardInterrupt):
                read_tree(root, progress=interrupt)
        finally:
            server.send_signal(signal.SIGCONT)
            os.close(root)


def test_a_scan_counts_the_files_of_one_directory_as_their_attributes_come(
    mounted: Mount, tmp_path: Path, slow: Path
) -> None:
    (tmp_path / "many").mkdir()
    for number in range(384):
        (tmp_path / f"many/{number}").touch()
    told = set[int]()
    with mounted(tmp_path / "many", 5, names=True):
        root = os.open(slow, os.O_RDONLY)
        try:
            tree = read_tree(root, workers=1, progress=lambda entries, _directories: told.add(entries))
        finally:
            os.close(root)
    assert max(told) == len(tree) == 385
    # A thread asks for 64 at a time.
    assert len(told) > 3


def test_a_scan_ends_where_storage_answers_nothing(
    program: Path, machine: Machine, source: Path, tmp_path: Path
) -> None:
    # SOURCE itself answers, and one directory in it does not.
    (tmp_path / "all/slow").mkdir(parents=True)
    with slow_store.served(program, source, tmp_path / "all/slow") as server:
        server.send_signal(signal.SIGSTOP)
        command = machine.command("mount", "--timeout", "2", tmp_path / "all", machine.mnt)
        with subprocess.Popen(command, env=machine.environment, stderr=subprocess.PIPE, text=True) as mounting:
            assert mounting.stderr is not None
            said = next(line for line in mounting.stderr if line.startswith("redoxfs: "))
            # The kernel ends no process that waits for such storage.
            server.send_signal(signal.SIGCONT)
            assert mounting.wait(PATIENCE_S) == 3
            assert mounting.stderr.read() == ""
    assert said == f"redoxfs: {tmp_path}/all: the storage has not answered for 2 s during the scan (--timeout)\n"


def test_a_wrong_number_is_a_usage_error(program: Path, source: Path, slow: Path) -> None:
    for delay in ("-1", "soon", "", "nan", "60001"):
        done = completed([program, source, slow, delay])
        assert (done.returncode, done.stderr.startswith("usage: slow_store")) == (2, True)
    for option in ("at-once=0", "at-once=many", "mb-per-s=-1", "mb-per-s=", "fast"):
        done = completed([program, source, slow, "1", option])
        assert (done.returncode, done.stderr.startswith("usage: slow_store")) == (2, True)
