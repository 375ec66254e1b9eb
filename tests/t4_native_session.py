"""The session in C on a real mount: what the kernel makes of its answers."""

import errno
import os
import random
import select
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from patience import until
from small_tree import FILES, FIRST, FOLDER, NAMES, PLAIN, small_tree
from stores import bytes_in_buffers

from redoxfs.fs.inodes import DATA, inode_of
from redoxfs.fs.serve import _mounted
from redoxfs.linux.detach import detach
from redoxfs.linux.fuse_device import MAX_READ_BYTES, clone, mount
from redoxfs.native import Buffer, Session
from redoxfs.native._native import INIT, OPEN, READ, RELEASE, STAT

MISSING, HELD = NAMES[-1], NAMES[-2]
"""Files whose open fails, and whose open waits for `Filesystem.go_on`."""


def answer_of(entry: int, turn: int) -> bytes:
    """What a file holds in one of its turns: no two are equal, nor of equal size."""
    filler = b"%d in turn %d|" % (entry, turn)
    size = random.Random(filler).choice((0, 1, 4095, 4096, 100_000, 300_000)) + 50 * turn
    return (filler * (size // len(filler) + 1))[:size]


class Filesystem:
    """Binds a file to a new answer whenever it is opened while nobody has it open. Serves in a thread of its own."""

    def __init__(self, mountpoint: Path, *, direct_io: bool, helpers: int) -> None:
        self.mountpoint = mountpoint
        self.folder = mountpoint / "folder"
        self._device = mount(mountpoint, fsname="test", options=set())
        self._clones = [clone(self._device.fd) for _ in range(helpers)]
        self.session = Session(
            self._device.fd, -1, small_tree(), max_read=MAX_READ_BYTES, helpers=helpers, clones=self._clones
        )
        self._direct_io = direct_io
        self.events: Counter[int] = Counter()
        self.turns: Counter[int] = Counter()
        self._bound: dict[int, tuple[Buffer, int]] = {}
        self._handles: dict[int, int] = {}
        self._held: list[tuple[int, int, int]] = []
        self._ending = False
        self._wake, self._woken = os.pipe()[::-1]
        self.session.watch(self._woken)
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        while (events := self.session.take(50, 1000)) is not None:
            for kind, unique, number, thread, offset, size in events:
                self.events[kind] += 1
                if kind == OPEN:
                    self._open(unique, number, thread)
                elif kind == RELEASE:
                    self._release(number)
                elif kind == STAT:
                    bound = self._bound.get(number)
                    self.session.stat(unique, number, 12_345 if bound is None else len(bound[0]), bound is not None)
                elif kind == READ:
                    self.session.data(unique, b"exact bytes"[offset : offset + size])
            if select.select([self._woken], [], [], 0)[0]:
                os.read(self._woken, 1)
                if self._ending:
                    return
                for held in self._held:
                    self._answer(*held)
                self._held.clear()

    def go_on(self) -> None:
        """Answer the opens that are held."""
        os.write(self._wake, b"x")

    def _open(self, unique: int, inode: int, thread: int) -> None:
        entry = inode - 1
        if entry == NAMES.index(MISSING):
            self.session.failed(unique, errno.ESTALE)
        elif entry == NAMES.index(HELD):
            self._held.append((unique, inode, thread))
        else:
            self._answer(unique, inode, thread)

    def _answer(self, unique: int, inode: int, thread: int) -> None:
        entry = inode - 1
        handle = next(number for number in range(1, 1000) if number not in self._handles)
        data: Buffer | None = None
        users = 0
        if entry >= FIRST:
            if entry not in self._bound:
                self.turns[entry] += 1
                self._bound[entry] = Buffer(answer_of(entry, self.turns[entry])), 0
                self.session.turned([entry])
            data, users = self._bound[entry]
            self._bound[entry] = data, users + 1
        size = -1 if data is None else len(data)
        self._handles[handle] = entry
        shares_pages = entry >= FIRST and not self._direct_io
        if not self.session.opened(unique, inode, thread, handle, data, size, users > 0, shares_pages):
            self._release(handle)

    def _release(self, handle: int) -> None:
        entry = self._handles.pop(handle)
        if entry >= FIRST:
            data, users = self._bound.pop(entry)
            if users > 1:
                self._bound[entry] = data, users - 1
            else:
                self.session.freed([entry])

    def end(self) -> None:
        """All files are closed."""
        until(lambda: not self.session.counts()["handles"] and not self._bound)
        self._ending = True
        self.go_on()
        self.thread.join()
        assert self.session.counts()["not_voided"] == 0
        self.session.close()
        for each in self._clones:
            os.close(each)
        self._device.end()
        for fd in (self._wake, self._woken):
            os.close(fd)


@contextmanager
def mounted(folder: Path, *, direct_io: bool = False, helpers: int = 0) -> Iterator[Filesystem]:
    mountpoint = folder / "mnt"
    mountpoint.mkdir()
    filesystem = Filesystem(mountpoint, direct_io=direct_io, helpers=helpers)
    try:
        yield filesystem
    finally:
        filesystem.end()


@pytest.mark.parametrize("helpers", [0, 2])
@pytest.mark.parametrize("direct_io", [False, True])
def test_every_open_reads_one_whole_answer(tmp_path: Path, direct_io: bool, helpers: int) -> None:
    before = bytes_in_buffers()

    def read(entry: int) -> None:
        with open(it.folder / os.fsdecode(NAMES[entry]), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read()
        assert len(data) == size
        # It says itself which answer it is.
        turns = range(1, it.turns[entry] + 1)
        assert data in {answer_of(entry, turn) for turn in turns}

    with mounted(tmp_path, direct_io=direct_io, helpers=helpers) as it:
        entries = [random.Random(0).choice(range(FIRST, FIRST + 8)) for _ in range(400)]
        with ThreadPoolExecutor(4) as readers:
            for done in [readers.submit(read, entry) for entry in entries]:
                done.result()
        assert it.session.counts()["bytes_served"] > 0
        assert it.session.counts()["malformed"] == 0
        until(lambda: not it.session.counts()["bound"])
    assert Buffer.total_bytes() == before


def test_the_opener_knows_the_size_and_others_ask(tmp_path: Path) -> None:
    with mounted(tmp_path) as it:
        path = it.folder / "file 000"
        assert path.stat().st_size == 12_345
        assert it.events[STAT] == 1
        with path.open("rb") as file:
            size = len(answer_of(FIRST, 1))
            assert (os.fstat(file.fileno()).st_size, path.stat().st_size) == (size, size)
            assert it.events[STAT] == 1
        # The size lasts as long as the answer.
        until(lambda: not it.session.counts()["bound"])
        assert path.stat().st_size == 12_345


def test_the_kernel_keeps_names_and_listings(tmp_path: Path) -> None:
    with mounted(tmp_path) as it:
        assert sorted(os.listdir(it.folder)) == [os.fsdecode(name) for name in NAMES[FIRST:]]
        assert not (it.mountpoint / "nothing").exists()
        asked = it.session.counts()["requests"]
        for _ in range(3):
            assert len(os.listdir(it.folder)) == FILES
            assert not (it.mountpoint / "nothing").exists()
        assert it.session.counts()["requests"] == asked
        assert (it.mountpoint / "plain").stat().st_size == 1000 * PLAIN
        assert it.folder.stat().st_ino == FOLDER + 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount fusectl")
def test_the_kernel_sends_as_many_releases_as_there_are(tmp_path: Path) -> None:
    with mounted(tmp_path) as it:
        number = os.minor(it.mountpoint.stat().st_dev)
        control = tmp_path / "control"
        control.mkdir()
        subprocess.run(["mount", "-t", "fusectl", "none", control], check=True)
        try:
            assert (control / str(number) / "max_background").read_text() == "65535\n"
        finally:
            subprocess.run(["umount", control], check=True)


def test_reads_without_bytes_and_failures_reach_the_program(tmp_path: Path) -> None:
    with mounted(tmp_path) as it:
        assert (it.mountpoint / "plain").read_bytes() == b"exact bytes"
        assert it.events[READ] > 0
        with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
            (it.folder / os.fsdecode(MISSING)).read_bytes()
        with pytest.raises(OSError, match=os.strerror(errno.EROFS)):
            (it.folder / "new").touch()
        with pytest.raises(OSError, match=os.strerror(errno.EOPNOTSUPP)):
            os.listxattr(it.folder)


def test_an_answer_that_nobody_waits_for_leaves_nothing(tmp_path: Path) -> None:
    with mounted(tmp_path) as it:
        before = it.session.counts()
        buffer = Buffer(b"12345")
        inode = inode_of(DATA, FIRST)
        # The kernel has sent no such request.
        assert it.session.opened(1 << 40, inode, 7, 999, buffer, 5, False, True) is False
        it.session.stat(1 << 40, FIRST, 5, True)
        it.session.failed(1 << 40, errno.EIO)
        after = it.session.counts()
        assert (after["handles"], after["bound"]) == (before["handles"], before["bound"]) == (0, 0)
        with (it.folder / "file 000").open("rb"):
            # That which was bound before stays so.
            assert it.session.opened(1 << 40, inode, 7, 999, buffer, 5, False, True) is False
            assert it.session.counts()["bound"] == 1


def test_a_program_that_is_killed_while_it_waits_closes_its_file(tmp_path: Path) -> None:
    with mounted(tmp_path) as it:
        path = it.folder / os.fsdecode(HELD)
        program = subprocess.Popen(
            [sys.executable, "-c", f"print(end='x', flush=True); open({os.fspath(path)!r})"], stdout=-1
        )
        assert program.stdout is not None
        assert program.stdout.read(1) == b"x"
        until(lambda: it.events[OPEN])
        program.kill()
        it.go_on()
        program.communicate()
        until(lambda: it.events[RELEASE])
        assert it.session.counts()["handles"] == 0


@pytest.mark.parametrize("helpers", [0, 3])
def test_an_unmount_ends_the_session(tmp_path: Path, helpers: int) -> None:
    with mounted(tmp_path, helpers=helpers) as it:
        (it.folder / "file 000").read_bytes()
        # The kernel sends it after the close, and drops it where the mount ends first.
        until(lambda: not it.session.counts()["handles"])
        detach(it.mountpoint)
        it.thread.join()
        assert it.session.take(0, 0) is None
    assert it.events[INIT] == 1


def devices() -> set[int]:
    """The descriptors of mounts that this process has."""
    found = set()
    for fd in map(int, os.listdir("/proc/self/fd")):
        # That of the listing itself is closed by now.
        with suppress(FileNotFoundError):
            if os.readlink(f"/proc/self/fd/{fd}") == "/dev/fuse":
                found.add(fd)
    return found


def test_a_mount_that_fails_while_it_serves_is_dead_at_once(tmp_path: Path) -> None:
    def fail() -> None:
        assert len(devices()) == 4
        raise OSError(errno.EIO, "of the test")

    device = mount(tmp_path, fsname="test", options=set())
    spec: Any = SimpleNamespace(receive=lambda: device, keeper=None, fuse_threads=3)
    relay: Any = SimpleNamespace(fd=-1)
    with pytest.raises(OSError, match="of the test"), _mounted(spec, small_tree(), relay, None):
        fail()
    left = devices()
    for fd in left:
        # While one is open, whoever looks at the mount waits.
        os.close(fd)
    with pytest.raises(OSError, match="not connected"):
        tmp_path.stat()
    detach(tmp_path)
    assert not left
