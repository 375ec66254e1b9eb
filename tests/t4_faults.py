"""Faulty storage under a real mount: files that vanish, change, cannot be read, or do not answer."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from images import identity, image, make_full_images, path_in
from machine import Machine
from patience import PATIENCE_S, until

from redoxfs.chunks import DirectoryStore
from redoxfs.fs.operations import Operations

CLASSES = {"cat": 40, "dog": 40}
OPTIONS = ["--classes", "dir", "--chunk-size", "4"]
TRIO_THREADS = 40
"""trio's default limit."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_full_images(tmp_path / "data", CLASSES)


@pytest.fixture
def root(machine: Machine, source: Path) -> Path:
    memory = machine.inspect(source, *OPTIONS)["memory_for"]["25%"]
    machine.ok("mount", source, machine.mnt, *OPTIONS, "--memory", str(memory))
    return machine.mnt / "train"


def epoch(root: Path) -> tuple[Counter[str], list[int]]:
    """The samples and errnos of a job that opens every file once and continues after errors."""
    served: Counter[str] = Counter()
    errors: list[int] = []

    def read(path: Path) -> None:
        try:
            label, sample = identity(path.read_bytes(), "train", CLASSES)
        except OSError as error:
            errors.append(error.errno or 0)
        else:
            assert label == path.parent.name
            served[sample] += 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read, sorted(root.glob("*/*.png"))))
    return served, errors


def test_vanished_files_are_eio_at_their_own_turn(machine: Machine, source: Path, root: Path) -> None:
    gone = [source / "train/cat/train-cat-3.png", source / "train/dog/train-dog-5.png"]
    for path in gone:
        path.unlink()
    for lap in range(1, 4):
        served, errors = epoch(root)
        assert errors == [errno.EIO] * len(gone)
        assert served == dict.fromkeys(served, 1)
        assert len(served) == sum(CLASSES.values()) - len(gone)
        assert machine.stats()["errors"] == lap * len(gone)
        assert machine.stats()["lap"] == {"train": lap}
    assert "train-cat-3.png" in machine.log()
    gone[0].write_bytes(image("train/cat/train-cat-3.png", 0, 3, 500))
    served, errors = epoch(root)
    assert errors == [errno.EIO]
    assert served["train/cat/train-cat-3.png"] == 1


def test_an_exact_file_may_grow_and_shrink(machine: Machine, source: Path) -> None:
    (source / "notes.txt").write_text("first")
    machine.ok("mount", source, machine.mnt, *OPTIONS)
    notes = machine.mnt / "notes.txt"
    for text in ("first", "second, and longer", "3rd", "", "fifth"):
        (source / "notes.txt").write_text(text)
        assert notes.read_text() == text
    (source / "notes.txt").unlink()
    with pytest.raises(FileNotFoundError):
        notes.read_text()


@pytest.mark.parametrize("branch", ["", ".redoxfs/exact"])
def test_an_exact_file_replaced_while_open_is_never_mixed(machine: Machine, source: Path, branch: str) -> None:
    path = source / "weights.bin"
    path.write_bytes(b"A" * 1_000_000)
    machine.ok("mount", source, machine.mnt, *OPTIONS)
    served = machine.mnt / branch / "weights.bin"
    with open(served, "rb", buffering=0) as first:
        assert first.read(100) == b"A" * 100
        path.with_name("new").write_bytes(b"B" * 1_200_000)
        path.with_name("new").rename(path)
        with open(served, "rb", buffering=0) as second:
            assert set(os.pread(first.fileno(), 1 << 21, 0)) == {ord("A")}
            assert second.read() == b"B" * 1_200_000
            assert set(os.pread(first.fileno(), 1 << 21, 500_000)) == {ord("A")}
            # The kernel has one size, the longer: it would fill the end of the shorter file with zeros.
            with pytest.raises(OSError):
                os.pread(first.fileno(), 1 << 21, 999_990)
        assert served.read_bytes() == b"B" * 1_200_000
    for _ in range(2):
        assert served.read_bytes() == b"B" * 1_200_000
    with open(served, "rb", buffering=0) as first:
        path.with_name("new").write_bytes(b"C" * 900_000)
        path.with_name("new").rename(path)
        with open(served, "rb", buffering=0) as second:
            assert first.read() == b"B" * 1_200_000
            assert second.read() == b"C" * 900_000
    assert served.read_bytes() == b"C" * 900_000
    path.write_bytes(b"D" * 950_000)
    assert served.read_bytes() == b"D" * 950_000


def test_a_file_changed_after_dropped_bytes_is_an_error(machine: Machine, source: Path) -> None:
    memory = machine.inspect(source, *OPTIONS)["memory_for"]["least"]
    machine.ok("mount", source, machine.mnt, *OPTIONS, "-o", "direct_io", "--memory", str(memory))
    opened = [os.open(path, os.O_RDONLY) for path in sorted((machine.mnt / "train").glob("*/*.png"))]
    try:
        assert machine.stats()["dropped"] > 0
        before = {fd: os.pread(fd, 100, 0) for fd in opened}
        for path in source.glob("train/*/*.png"):
            path.write_bytes(b"something else altogether" * 100)
        for fd in opened:
            try:
                assert os.pread(fd, 100, 0) == before[fd]
            except OSError as error:
                assert error.errno == errno.ESTALE  # noqa: PT017 - either is right, and nothing else is
    finally:
        for fd in opened:
            os.close(fd)


@pytest.fixture
def hanging(machine: Machine, source: Path, tmp_path: Path) -> tuple[Path, int]:
    """Storage that can be stopped: the exact files of another mount, and the process to stop."""
    under = tmp_path / "under"
    under.mkdir()
    machine.ok("mount", source, under, "--classes", "none", "-o", "direct_io")
    return under / ".redoxfs/exact", machine.pid(under)


LATER = """
import os, sys, time
import trio
from redoxfs.cli import main

class Later(trio.abc.Clock):
    def start_clock(self):
        pass

    def current_time(self):
        return time.monotonic() + os.stat(sys.argv[1]).st_size

    def deadline_to_sleep_time(self, deadline):
        return deadline - self.current_time()

run = trio.run
trio.run = lambda *arguments, clock: run(*arguments, clock=Later())
sys.exit(main(sys.argv[2:]))
"""
"""The program, whose daemon is as many seconds ahead as a file has bytes."""

TIMEOUT_S = 3600
"""Far more than the test takes: a deadline passes when the test says so, and not before."""


def test_hung_storage_fails_opens_at_the_deadline(machine: Machine, hanging: tuple[Path, int]) -> None:
    storage, pid = hanging
    # The slot policy, which reads only on demand: with a pool, samples read ahead would need no storage.
    options = (*OPTIONS, "--policy", "slot")
    memory = machine.inspect(storage, *options)["memory_for"]["25%"]
    ahead = machine.folder / "ahead"
    ahead.touch()
    program = [sys.executable, "-c", LATER, str(ahead), "mount", str(storage), str(machine.mnt), *options]
    mount = [*program, "--memory", str(memory), "--timeout", str(TIMEOUT_S)]
    subprocess.run(mount, env=machine.environment, check=True, capture_output=True)
    paths = sorted((machine.mnt / "train").glob("*/*.png"))
    with open(paths[0], "rb", buffering=0) as held:
        os.kill(pid, signal.SIGSTOP)
        try:
            errors: list[int] = []

            def open_one(path: Path) -> None:
                try:
                    path.read_bytes()
                except OSError as error:
                    errors.append(error.errno or 0)

            # More than stock pyfuse3 would serve at once: each blocks a thread of this process in open(2).
            waiting = [threading.Thread(target=open_one, args=(path,)) for path in (paths[1:] * 2)[:120]]
            for thread in waiting:
                thread.start()
            until(lambda: machine.stats()["waiting_opens"] >= 60, machine.stats)
            assert path_in(held.read()).startswith("train/cat/")
            assert os.listdir(machine.mnt) == ["train"]
            os.truncate(ahead, TIMEOUT_S // 2)
            assert machine.stats()["waiting_opens"] >= 60
            assert errors == []

            def have_ended() -> bool:
                """Whether all have, after another deadline: a thread that was late may begin to wait only now."""
                os.truncate(ahead, ahead.stat().st_size + TIMEOUT_S)
                # A request wakes the daemon, which looks at its clock.
                machine.stats()
                return not any(thread.is_alive() for thread in waiting)

            until(have_ended, machine.stats)
            assert set(errors) == {errno.EIO}
        finally:
            os.kill(pid, signal.SIGCONT)
    served, errors = epoch(machine.mnt / "train")
    assert not errors
    assert set(served) <= {path.relative_to(machine.mnt).as_posix() for path in paths}
    machine.ok("umount", machine.mnt)


# A process is stopped for longer than a deadline, which the clock of the kernel measures.
@pytest.mark.timed
def test_opens_outlive_a_stop_of_the_daemon_past_their_deadline(machine: Machine, hanging: tuple[Path, int]) -> None:
    storage, storage_pid = hanging
    options = (*OPTIONS, "--policy", "slot", "--timeout", "4")
    memory = machine.inspect(storage, *OPTIONS, "--policy", "slot")["memory_for"]["25%"]
    machine.ok("mount", storage, machine.mnt, *options, "--memory", str(memory))
    paths = sorted((machine.mnt / "train").glob("*/*.png"))[:12]
    daemon = machine.pid()
    os.kill(storage_pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(len(paths)) as pool:
            reads = [pool.submit(path.read_bytes) for path in paths]
            until(lambda: machine.stats()["waiting_opens"] == len(paths), machine.stats)
            os.kill(daemon, signal.SIGSTOP)
            try:
                os.kill(storage_pid, signal.SIGCONT)
                time.sleep(6)
            finally:
                os.kill(daemon, signal.SIGCONT)
            served = [path_in(read.result()) for read in reads]
    finally:
        os.kill(storage_pid, signal.SIGCONT)
    assert len(set(served)) == len(paths)
    assert machine.stats()["errors"] == 0


def test_a_mount_over_hung_storage_can_be_ended(machine: Machine, hanging: tuple[Path, int]) -> None:
    storage, pid = hanging
    machine.ok("mount", storage, machine.mnt, *OPTIONS, "--timeout", str(TIMEOUT_S))
    path = next((machine.mnt / "train").glob("*/*.png"))
    os.kill(pid, signal.SIGSTOP)
    try:
        reader = subprocess.Popen(
            [sys.executable, "-c", f"open({str(path)!r}, 'rb').read()"], stderr=subprocess.DEVNULL
        )
        until(lambda: machine.stats()["waiting_opens"], reader.poll)
        assert reader.poll() is None
        machine.kill(signal.SIGTERM)
        assert reader.wait(PATIENCE_S) != 0
    finally:
        os.kill(pid, signal.SIGCONT)
    assert not os.path.ismount(machine.mnt)


def test_a_killed_daemon_is_loud_and_the_next_mount_clears_it(machine: Machine, source: Path) -> None:
    machine.ok("mount", "--no-keeper", source, machine.mnt, *OPTIONS)
    machine.kill(signal.SIGKILL)
    with pytest.raises(OSError) as raised:
        os.listdir(machine.mnt)
    assert raised.value.errno == errno.ENOTCONN
    machine.ok("mount", source, machine.mnt, *OPTIONS)
    assert len(epoch(machine.mnt / "train")[0]) == sum(CLASSES.values())


def test_killed_readers_leave_nothing_open(machine: Machine, root: Path) -> None:
    script = (
        "import signal, sys; files = [open(p, 'rb') for p in sys.argv[1:]]; print('open', flush=True); signal.pause()"
    )
    paths = [str(path) for path in sorted(root.glob("*/*.png"))]
    readers = [
        subprocess.Popen([sys.executable, "-c", script, *paths[i::4]], stdout=subprocess.PIPE, text=True)
        for i in range(4)
    ]
    for reader in readers:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "open\n"
    assert machine.stats()["open_files"] == len(paths)
    for reader in readers:
        reader.kill()
        reader.communicate()

    def has_closed_all() -> bool:
        stats = machine.stats()
        return not stats["open_files"] and not stats["bound"]

    until(has_closed_all, machine.stats)
    served, errors = epoch(root)
    assert not errors
    assert len(served) == len(paths)


def test_descriptors_and_threads_do_not_grow(machine: Machine, root: Path) -> None:
    def held() -> tuple[int, list[str]]:
        """Descriptors, and names of threads but for those of two pools, which grow and shrink within their limits."""
        process = Path("/proc") / str(machine.pid())
        names = sorted((thread / "comm").read_text().strip() for thread in (process / "task").iterdir())
        assert DirectoryStore.most_depth is not None
        assert 0 < names.count("redoxfs-read") <= DirectoryStore.most_depth
        trio_threads = [name for name in names if name.startswith("Trio thread")]
        assert len(trio_threads) <= TRIO_THREADS
        others = [name for name in names if name != "redoxfs-read" and name not in trio_threads]
        return len(list((process / "fd").iterdir())), others

    epoch(root)
    before = held()
    for _ in range(5):
        served, errors = epoch(root)
        assert (len(served), errors) == (sum(CLASSES.values()), [])

    def has_not_grown() -> bool:
        """A descriptor that is open for a moment may be in the first count, and is in none after it."""
        after = held()
        return after[0] <= before[0] and after[1] == before[1]

    # A thread that has just started does not have its name yet.
    until(has_not_grown, lambda: (before, held()))


BREAKABLE = """
import os, sys
from functools import wraps
from inspect import iscoroutinefunction
import trio
from redoxfs.cli import main
from redoxfs.fs.handlers import handler
from redoxfs.fs.operations import Operations
from redoxfs.node import Node

def is_broken(name):
    try:
        os.unlink(os.path.join(sys.argv[1], name))
    except FileNotFoundError:
        return False
    return True

def breakable(name, whole):
    @wraps(whole)
    def act(*arguments):
        if is_broken(name):
            raise ZeroDivisionError(name)
        return whole(*arguments)

    @wraps(whole)
    async def act_late(*arguments):
        if is_broken(name):
            await trio.lowlevel.checkpoint()
            raise ZeroDivisionError(name)
        return await whole(*arguments)

    return act_late if iscoroutinefunction(whole) else act

for name, made in list(vars(Operations).items()):
    if hasattr(made, "__wrapped__"):
        setattr(Operations, name, handler(breakable(name, made.__wrapped__)))
for name in sys.argv[2].split(","):
    setattr(Node, name, breakable("node." + name, vars(Node)[name]))
sys.exit(main(sys.argv[3:]))
"""
"""The program, with a bug in the next call of a handler, or of the node, for which a file of its name exists."""

OF_THE_NODE = ("open", "open_exact", "stat", "read", "close")
"""What the request loop calls for a request."""


@dataclass(frozen=True)
class Call:
    """Makes the kernel request an operation. ``tells``: whether the caller gets the result."""

    make: Callable[[Path], object]
    tells: bool = True


def open_and_close(path: Path) -> None:
    os.close(os.open(path, os.O_RDONLY))


def errno_of(call: Callable[[Path], object], path: Path) -> int:
    try:
        call(path)
    except OSError as error:
        return error.errno or 0
    return 0


CALLS = {
    "lookup": Call(lambda root: os.stat(root / ".redoxfs/never asked for")),
    "getattr": Call(lambda root: os.stat(root / ".redoxfs/stats.json")),
    "readlink": Call(lambda root: os.readlink(root / "link")),
    "readdir": Call(lambda root: os.listdir(root / ".redoxfs")),
    "open": Call(lambda root: open_and_close(root / ".redoxfs/stats.json")),
    "read": Call(lambda root: (root / ".redoxfs/stats.json").read_text()),
    "release": Call(lambda root: open_and_close(root / ".redoxfs/stats.json"), tells=False),
    "statfs": Call(os.statvfs),
    "node.open": Call(lambda root: open_and_close(root / "train/dog/train-dog-3.png")),
    "node.open_exact": Call(lambda root: open_and_close(root / ".redoxfs/exact/train/dog/train-dog-3.png")),
    "node.stat": Call(lambda root: os.stat(root / "train/cat/train-cat-3.png")),
    "node.read": Call(lambda root: (root / "not read before").read_text()),
    "node.close": Call(lambda root: open_and_close(root / "notes.txt"), tells=False),
}


def test_the_mount_survives_a_bug_in_any_handler(machine: Machine, source: Path, tmp_path: Path) -> None:
    handlers = {name for name, made in vars(Operations).items() if hasattr(made, "__wrapped__")}
    assert set(CALLS) == handlers | {f"node.{name}" for name in OF_THE_NODE}
    (source / "link").symlink_to("train")
    for name in ("notes.txt", "not read before"):
        (source / name).write_text("of no sample")
    broken = tmp_path / "broken"
    broken.mkdir()
    program = [sys.executable, "-c", BREAKABLE, str(broken), ",".join(OF_THE_NODE)]
    # With direct_io a read is requested once; otherwise the kernel's readahead would hit the bug, and retry.
    mount = [*program, "mount", str(source), str(machine.mnt), *OPTIONS, "-o", "direct_io"]
    subprocess.run(mount, env=machine.environment, check=True, capture_output=True)
    for path in ("train/cat/train-cat-3.png", ".redoxfs/stats.json"):
        os.stat(machine.mnt / path)
    for name, call in CALLS.items():
        before = machine.log()
        (broken / name).touch()
        assert (name, errno_of(call.make, machine.mnt)) == (name, errno.EIO if call.tells else 0)

        def is_told(before: str = before, name: str = name) -> str:
            told = machine.log().removeprefix(before)
            return told if f"ZeroDivisionError: {name}" in told else ""

        told = until(is_told, name)
        assert told.count("a bug in redoxfs: please report it") == told.count("Traceback") == 1
        assert len([line for line in told.splitlines() if " ERROR " in line or " WARNING " in line]) <= 1
        assert not list(broken.iterdir())
        assert (machine.mnt / "notes.txt").read_text() == "of no sample"
    for _ in range(2):
        served, errors = epoch(machine.mnt / "train")
        assert (len(served), errors) == (sum(CLASSES.values()), [])
    machine.umount()
