"""The session in C over a `wire.Device`: what it answers by itself, what becomes an event, and in which order."""

import errno
import gc
import os
import select
import socket
import stat
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import wire
from hypothesis import example, given
from hypothesis import strategies as st
from patience import PATIENCE_S
from small_tree import FILES, FIRST, FOLDER, LINK, NAMES, PLAIN, ROOT, small_tree
from stores import bytes_in_buffers
from t1_native import TREES, Nested, columns_of, native_tree, tree_of
from wire import Device, Opcode, Reply, Request

from redoxfs.fs.inodes import (
    ACCESS_LOG_INODE,
    CONTROL,
    CONTROL_INODE,
    CONTROL_NAME,
    DATA,
    EXACT,
    SERVED,
    STATS_INODE,
    inode_of,
)
from redoxfs.native import Buffer, Session, Tree
from redoxfs.native._native import (
    INIT,
    INTERRUPT,
    LOG_POLL,
    LOG_READ,
    LOG_RELEASE,
    LOG_TRY,
    OPEN,
    READ,
    RELEASE,
    STAT,
)

Event = tuple[int, int, int, int, int, int]
FOREVER_S = 10 * 365 * 24 * 3600
RELAY_HANDLE = (1 << 62) + 1
MAX_READ = 1 << 20
RELAY_BYTES = 64 * 1024


class Served:
    """A session and the device it serves, in one thread. ``relay`` is the relay's end of its socket."""

    def __init__(self, *, begun: bool = True, helpers: int = 0, tree: Tree | None = None):
        self.device = Device()
        self.relay, self._front = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self.relay, self._front):
            end.setblocking(False)
        self.session = Session(
            self.device.fd,
            self._front.fileno(),
            small_tree() if tree is None else tree,
            max_read=MAX_READ,
            helpers=helpers,
        )
        if begun:
            self.begin()

    def begin(self) -> wire.Init:
        unique = self.device.send(wire.init())
        assert self.events() == [(INIT, 0, 1, 0, 0, 0)]
        reply = wire.parse_init(self.device.reply_to(unique, 0).body)
        self.relay.recv(4096)
        return reply

    def events(self) -> list[Event]:
        events = self.session.take(0, 0)
        assert events is not None
        return events

    def ask(self, request: Request, thread: int = 0) -> Reply:
        """The reply of the session alone."""
        unique = self.device.send(request, thread)
        assert self.events() == []
        return self.device.reply_to(unique, 0)

    def event(self, request: Request, thread: int = 0) -> Event:
        """The event that a request makes. Nothing is answered yet, but for a RELEASE."""
        unique = self.device.send(request, thread)
        (event,) = self.events()
        assert event[:2] == (event[0], unique)
        return event

    def open(
        self, inode: int, handle: int, data: bytes | None, *, bind: bool = True, thread: int = 7, keep: bool = False
    ) -> wire.Opened:
        event = self.event(wire.open_(inode), thread)
        assert event[0] == OPEN
        buffer = None if data is None else Buffer(data)
        size = len(data) if data is not None and bind else -1
        assert self.session.opened(event[1], inode, thread, handle, buffer, size, keep, True)
        return wire.parse_opened(self.device.reply_to(event[1], 0).body)

    def voided(self) -> list[tuple[int, bool]]:
        """Inodes that were voided since the last call, and whether only their attributes."""
        waiting = self.device.notices + self.device.waiting()
        self.device.notices.clear()
        assert all(notice.is_notice and notice.error == wire.Notice.INVALIDATE_INODE for notice in waiting)
        return [(inode, offset < 0) for inode, offset, _ in (wire.parse_invalidated_inode(n.body) for n in waiting)]

    def close(self) -> None:
        self.session.close()
        for end in (self.relay, self._front):
            end.close()
        self.device.close()


@contextmanager
def served(**options: Any) -> Iterator[Served]:
    with closing(Served(**options)) as it:
        yield it


@pytest.fixture
def it() -> Iterator[Served]:
    with served() as it:
        yield it


# The beginning and the end -----------------------------------------------------------------------------------------


def test_the_beginning_is_an_event_and_the_relay_gets_a_copy() -> None:
    with served(begun=False) as it:
        unique = it.device.send(wire.init(flags=wire.INIT_FLAGS | 7 << 7))  # the kernel can splice
        assert it.events() == [(INIT, 0, 1, 0, 0, 0)]
        reply = wire.parse_init(it.device.reply_to(unique, 0).body)
        assert (reply.major, reply.minor, reply.max_readahead) == (7, 38, 1 << 17)
        assert (reply.max_background, reply.congestion, reply.max_pages) == (65_535, 65_535, 256)
        assert reply.time_gran == 1
        assert reply.flags & wire.INIT_EXT
        assert reply.flags2 << 32 == wire.DIRECT_IO_ALLOW_MMAP
        copy = it.relay.recv(4096)
        length, opcode, number, *_ = wire.IN_HEADER.unpack_from(copy)
        assert (length, opcode, number) == (len(copy), Opcode.INIT, unique)
        low, high = wire.INIT_IN.unpack_from(copy, wire.IN_HEADER.size)[3:]
        assert low | high << 32 == wire.INIT_FLAGS
        # Its reply is for nobody.
        it.relay.send(wire.OUT_HEADER.pack(wire.OUT_HEADER.size, 0, unique))
        assert it.events() == []
        assert it.device.waiting() == []


def test_the_session_takes_no_more_than_the_kernel_offers() -> None:
    with served(begun=False) as it:
        offered = 1 << 0 | 1 << 13 | 1 << 14
        unique = it.device.send(wire.init(minor=31, flags=offered))
        assert it.events() == [(INIT, 0, 0, 0, 0, 0)]
        reply = wire.parse_init(it.device.reply_to(unique, 0).body)
        assert reply.flags2 == 0
        # READDIRPLUS_AUTO is declined: every listing brings the attributes.
        assert (reply.minor, reply.flags) == (31, 1 << 0 | 1 << 13)
        opened = wire.parse_opened(it.ask(wire.opendir(1)).body)
        assert opened.flags == wire.FOPEN_CACHE_DIR | wire.FOPEN_KEEP_CACHE


@pytest.mark.parametrize("version", [(6, 40), (7, 30)])
def test_an_older_kernel_is_refused(version: tuple[int, int]) -> None:
    with served(begun=False) as it:
        unique = it.device.send(wire.init(*version))
        assert it.events() == [(INIT, 0, 0, 0, version[1], 0)]
        assert it.device.reply_to(unique, 0).error == errno.EPROTO
        assert it.session.counts()["malformed"] == 1


def test_a_newer_kernel_is_told_the_version_and_asks_again() -> None:
    with served(begun=False) as it:
        assert wire.parse_init(it.ask(wire.init(8, 0)).body).major == 7
        it.begin()


def test_requests_before_the_beginning_are_refused() -> None:
    with served(begun=False) as it:
        for request in (wire.lookup(1, b"folder"), wire.open_(inode_of(DATA, FIRST)), wire.read(5, 1, 0, 10)):
            assert it.ask(request).error == errno.EIO
        it.begin()
        assert it.ask(wire.init()).error == errno.EIO


def test_the_end_of_the_mount_is_none_after_the_last_events(it: Served) -> None:
    it.device.send(wire.open_(inode_of(DATA, FIRST)))
    it.device.end()
    assert [event[0] for event in it.events()] == [OPEN]
    assert it.session.take(0, 0) is None
    assert it.session.take(1000, 1000) is None


def test_a_device_that_cannot_be_read_is_no_end_of_the_mount(it: Served, tmp_path: Path) -> None:
    it.device.send(wire.open_(inode_of(DATA, FIRST)))
    assert [event[0] for event in it.events()] == [OPEN]
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    os.dup2(folder, it.device.fd)
    os.close(folder)
    for _ in range(2):
        with pytest.raises(IsADirectoryError, match="/dev/fuse"):
            it.session.take(0, 0)


def test_a_connection_that_the_kernel_ended_is_the_end_of_the_mount(it: Served) -> None:
    with socket.socket() as unconnected:
        os.dup2(unconnected.fileno(), it.device.fd)
    assert it.session.take(0, 0) is None


def test_destroy_is_answered_and_ends_the_session(it: Served) -> None:
    unique = it.device.send(wire.destroy())
    assert it.session.take(0, 0) is None
    assert it.device.reply_to(unique, 0).error == 0


def test_closing_drops_all_bytes_and_is_idempotent() -> None:
    before = bytes_in_buffers()
    with served() as it:
        for number in range(1, 6):
            it.open(inode_of(DATA, FIRST + number), number * 1000, b"x" * 1000)
        assert Buffer.total_bytes() == before + 5000
        it.session.close()
        assert Buffer.total_bytes() == before
        it.session.close()
        assert it.session.take(0, 0) is None
        with pytest.raises(ValueError, match="closed"):
            it.session.opened(1, 5, 7, 1, None, -1, False, True)


def test_a_closed_session_writes_nothing_to_descriptors_that_may_be_others_files_by_now() -> None:
    with served() as it:
        event = it.event(wire.open_(inode_of(DATA, FIRST)))
        it.session.close()
        it.session.failed(event[1], errno.EIO)
        assert not it.session.log_opened(event[1], 1 << 63)
        it.session.freed([FIRST])
        it.session.wake(3)
        assert it.device.waiting() == []


def test_a_session_that_nobody_closed_drops_all_bytes() -> None:
    before = bytes_in_buffers()
    with Device() as device:
        session = Session(device.fd, -1, small_tree(), max_read=MAX_READ, helpers=2)
        session.opened(2, inode_of(DATA, FIRST), 7, 1, Buffer(b"x" * 1000), 1000, False, True)
        assert Buffer.total_bytes() == before + 1000
        del session
        gc.collect()
        assert Buffer.total_bytes() == before


# Names and attributes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("branch", [DATA, EXACT])
def test_names_have_the_attributes_of_their_columns(it: Served, branch: Any) -> None:
    for parent, name, entry in ((ROOT, b"folder", FOLDER), (ROOT, b"plain", PLAIN), (FOLDER, b"file 005", FIRST + 5)):
        found = wire.parse_entry(it.ask(wire.lookup(inode_of(branch, parent), name)).body)
        redirected = branch is DATA and entry >= FIRST
        assert (found.inode, found.entry_valid) == (inode_of(branch, entry), FOREVER_S)
        assert found.attr_valid == (0 if redirected else FOREVER_S)
        mtime_ns, ctime_ns = entry * 1_500_000_000 - 1_000_000_000, entry * 2_500_000_001
        assert found.attr == wire.Attr(
            inode=inode_of(branch, entry),
            size=entry * 1000,
            blocks=-(-entry * 1000 // 512),
            atime=mtime_ns // 10**9,
            mtime=mtime_ns // 10**9,
            ctime=ctime_ns // 10**9,
            atime_ns=mtime_ns % 10**9,
            mtime_ns=mtime_ns % 10**9,
            ctime_ns=ctime_ns % 10**9,
            mode=stat.S_IFDIR | 0o755 if entry == FOLDER else stat.S_IFREG | 0o644,
            nlink=2 if entry == FOLDER else 1,
            uid=100 + entry,
            gid=200 + entry,
            rdev=0,
            blksize=128 * 1024,
            flags=0,
        )
        if not redirected:
            attributes = wire.parse_attributes(it.ask(wire.getattr_(found.inode)).body)
            assert (attributes.attr_valid, attributes.attr) == (FOREVER_S, found.attr)


def test_a_time_before_1970_counts_down_from_it(it: Served) -> None:
    root = wire.parse_attributes(it.ask(wire.getattr_(wire.ROOT)).body).attr
    assert (root.mtime, root.mtime_ns) == (2**64 - 1, 0)


@pytest.mark.parametrize("name", [b"", b"nothing", b"file 5", b"folder2", b"x" * 255])
def test_a_missing_name_is_cached_as_missing(it: Served, name: bytes) -> None:
    missing = wire.parse_entry(it.ask(wire.lookup(wire.ROOT, name)).body)
    assert (missing.inode, missing.entry_valid) == (0, FOREVER_S)


@given(TREES)
@example({b".redoxfs": None, b".redoxfs.x": {}})
def test_lookups_are_those_of_the_dataset_tree(nested: Nested) -> None:
    tree = tree_of(nested)
    with closing(Served(tree=native_tree(columns_of(tree)))) as it:
        for entry in (0, *(parent for parent in range(1, len(tree)) if tree.is_dir(parent))):
            own = [tree.name(child) for child in tree.children_of(entry)]
            # Names that others continue come before these.
            near = {name + more for name in own for more in (b"\1", b"m", b"\xff")} | {name[:-1] for name in own}
            # At the root the control folder hides what has its name; no tree that was read has any.
            for name in {*own, *near, b"a"} - {b"", b".", b"..", CONTROL_NAME}:
                found = wire.parse_entry(it.ask(wire.lookup(inode_of(DATA, entry), name)).body)
                child = tree.lookup(entry, name)
                assert found.inode == (0 if child < 0 else inode_of(DATA, child))


def test_lookups_show_the_size_of_the_answer_while_it_lasts(it: Served) -> None:
    inode, request = inode_of(DATA, FIRST), wire.lookup(inode_of(DATA, FOLDER), b"file 000")

    def sized() -> tuple[int, int]:
        entry = wire.parse_entry(it.ask(request).body)
        return entry.attr.size, entry.attr_valid

    assert sized() == (FIRST * 1000, 0)
    it.open(inode, 1, b"12345")
    assert sized() == (5, FOREVER_S)
    assert it.session.counts()["bound"] == 1
    it.event(wire.release(inode, 1))
    assert sized() == (5, FOREVER_S)  # until Python says otherwise
    it.session.freed([FIRST])
    assert sized() == (FIRST * 1000, 0)
    assert it.session.counts()["bound"] == 0


def test_other_files_of_a_group_are_bound_without_a_handle(it: Served) -> None:
    it.session.bind(FIRST + 1, 17)
    entry = wire.parse_entry(it.ask(wire.lookup(inode_of(DATA, FOLDER), b"file 001")).body)
    assert (entry.attr.size, entry.attr_valid) == (17, FOREVER_S)
    it.session.freed([FIRST + 1])
    assert it.session.counts()["bound"] == 0


def test_a_thread_that_has_the_file_open_knows_its_size(it: Served) -> None:
    inode = inode_of(DATA, FIRST)
    assert it.event(wire.getattr_(inode), thread=7)[::2] == (STAT, FIRST, 0)
    it.open(inode, 1, b"12345", thread=7)
    attributes = wire.parse_attributes(it.ask(wire.getattr_(inode, handle=1), thread=7).body)
    assert (attributes.attr.size, attributes.attr_valid) == (5, FOREVER_S)
    # Others ask Python, and so does it once it has opened another file or closed this one.
    assert it.event(wire.getattr_(inode, handle=1), thread=8)[0] == STAT
    it.open(inode_of(DATA, FIRST + 1), 2, b"123", thread=7)
    assert it.event(wire.getattr_(inode), thread=7)[0] == STAT
    it.open(inode, 3, b"12345", thread=7)
    assert it.ask(wire.getattr_(inode), thread=7).error == 0
    assert it.event(wire.release(inode, 3))[0] == RELEASE
    assert it.event(wire.getattr_(inode), thread=7)[0] == STAT


@pytest.mark.parametrize("ended", [7, -1])
def test_what_a_thread_opened_can_be_forgotten(it: Served, ended: int) -> None:
    inode = inode_of(DATA, FIRST)
    it.open(inode, 1, b"12345", thread=7)
    it.session.unhold(9)
    assert it.ask(wire.getattr_(inode), thread=7).error == 0
    it.session.unhold(ended)
    assert it.event(wire.getattr_(inode), thread=7)[0] == STAT


def test_a_caller_of_another_namespace_holds_nothing(it: Served) -> None:
    inode = inode_of(DATA, FIRST)
    it.open(inode, 1, b"12345", thread=0)
    assert it.event(wire.getattr_(inode), thread=0)[0] == STAT


@pytest.mark.parametrize("bound", [False, True])
def test_python_answers_a_stat_that_it_has_to_decide(it: Served, bound: bool) -> None:
    event = it.event(wire.getattr_(inode_of(DATA, FIRST)), thread=7)
    it.session.stat(event[1], FIRST, 77, bound)
    attributes = wire.parse_attributes(it.device.reply_to(event[1], 0).body)
    assert (attributes.attr.size, attributes.attr_valid) == (77, FOREVER_S if bound else 0)
    # The kernel has a size of a file that had no answer: void when it gets one.
    it.session.turned([FIRST])
    assert it.voided() == ([] if bound else [(inode_of(DATA, FIRST), True)])


# Sizes and pages in the kernel -------------------------------------------------------------------------------------


def test_only_sizes_from_before_an_answer_become_void(it: Served) -> None:
    folder = inode_of(DATA, FOLDER)
    it.ask(wire.lookup(folder, b"file 001"))
    listed = it.ask(wire.readdirplus(folder, 0, 2, 3 * 176))
    assert len(list(wire.parse_dirents(listed.body, plus=True))) == 3
    it.ask(wire.readdir(folder, 0, 10, 4096))
    it.ask(wire.lookup(inode_of(EXACT, FOLDER), b"file 020"))
    it.session.turned(range(FIRST, FIRST + FILES))
    assert it.voided() == [(inode_of(DATA, FIRST + number), True) for number in (1, 2, 3, 4)]
    it.session.turned(range(FIRST, FIRST + FILES))
    assert it.voided() == []


@pytest.mark.parametrize("binds", ["open", "bind"])
def test_a_size_from_a_wait_for_the_answer_becomes_void(it: Served, binds: str) -> None:
    inode = inode_of(DATA, FIRST)
    event = it.event(wire.open_(inode), 7)
    it.session.turned([FIRST])
    it.ask(wire.lookup(inode_of(DATA, FOLDER), b"file 000"))
    if binds == "open":
        it.session.opened(event[1], inode, 7, 1, Buffer(b"12"), 2, False, True)
        # Before the answer, so that the opener's own size is the last one.
        assert it.device.waiting()[0].is_notice
    else:
        it.session.bind(FIRST, 2)
        assert it.voided() == [(inode, True)]


def test_pages_and_attributes_of_a_freed_file_are_void(it: Served) -> None:
    it.session.freed([FIRST + 2, FIRST])
    assert it.voided() == [(inode_of(DATA, FIRST + 2), False), (inode_of(DATA, FIRST), False)]
    it.session.changed(inode_of(EXACT, PLAIN))
    assert it.voided() == [(inode_of(EXACT, PLAIN), True)]


def test_a_size_is_void_once_a_program_has_it(it: Served) -> None:
    inode, hour_ns = inode_of(DATA, FIRST), 3600 * 10**9
    assert it.session.void_size(FIRST, hour_ns), "no program has it open"
    assert it.voided() == [(inode, True)]
    it.open(inode, 1, b"12345", thread=7)
    assert not it.session.void_size(FIRST, hour_ns)
    # Others say nothing of it, nor does a program that waits for the size.
    it.ask(wire.lookup(ROOT, b"plain"), thread=8)
    it.ask(wire.getattr_(inode, handle=1), thread=7)
    assert not it.session.void_size(FIRST, hour_ns)
    assert it.voided() == []
    it.ask(wire.lookup(ROOT, b"plain"), thread=7)
    assert it.session.void_size(FIRST, hour_ns)
    assert it.voided() == [(inode, True)]
    # The kernel has the size for all that open the file.
    it.open(inode, 2, b"12345", thread=9)
    assert it.session.void_size(FIRST, hour_ns)


def test_a_size_that_no_program_asks_for_is_void_after_a_while(it: Served) -> None:
    it.open(inode_of(DATA, FIRST), 1, b"12345", thread=7)
    assert not it.session.void_size(FIRST, 3600 * 10**9)
    assert it.session.void_size(FIRST, 0)
    assert it.voided() == [(inode_of(DATA, FIRST), True)]


def test_an_open_of_the_file_itself_waits_for_no_size(it: Served) -> None:
    it.open(inode_of(DATA, FIRST), 1, b"12345", bind=False, thread=7)
    assert it.session.void_size(FIRST, 3600 * 10**9)


# Directories -------------------------------------------------------------------------------------------------------


def listing(it: Served, inode: int, size: int, *, plus: bool) -> list[wire.Dirent]:
    ask = wire.readdirplus if plus else wire.readdir
    found: list[wire.Dirent] = []
    while True:
        body = it.ask(ask(inode, 0, found[-1].offset if found else 0, size)).body
        assert len(body) <= size
        part = list(wire.parse_dirents(body, plus=plus))
        if not part:
            return found
        found += part


@pytest.mark.parametrize("plus", [False, True])
@pytest.mark.parametrize("size", [200, 1000, 4096, 1 << 20, 2**32 - 1])
@pytest.mark.parametrize("branch", [DATA, EXACT])
def test_a_listing_has_every_name_once_in_order(it: Served, branch: Any, size: int, plus: bool) -> None:
    for directory, entries in ((ROOT, range(FOLDER, FIRST)), (FOLDER, range(FIRST, FIRST + FILES))):
        found = listing(it, inode_of(branch, directory), size, plus=plus)
        assert [one.name for one in found] == [NAMES[entry] for entry in entries]
        assert [one.inode for one in found] == [inode_of(branch, entry) for entry in entries]
        assert [one.offset for one in found] == list(range(1, len(entries) + 1))
        for one in found:
            kind = {b"folder": stat.S_IFDIR, b"link": stat.S_IFLNK}.get(one.name, stat.S_IFREG)
            assert one.kind == kind >> 12
            if plus:
                looked_up = it.ask(wire.lookup(inode_of(branch, directory), one.name))
                assert one.entry == wire.parse_entry(looked_up.body)


@pytest.mark.parametrize("offset", [FILES, FILES + 1, 1 << 31, 2**63, 2**64 - 1])
def test_a_listing_past_the_end_is_empty(it: Served, offset: int) -> None:
    assert it.ask(wire.readdirplus(inode_of(DATA, FOLDER), 0, offset, 4096)).body == b""


def test_a_file_has_no_names(it: Served) -> None:
    assert it.ask(wire.readdir(inode_of(DATA, FIRST), 0, 0, 4096)).body == b""


def test_the_kernel_needs_no_opendir(it: Served) -> None:
    for inode in (wire.ROOT, CONTROL_INODE):
        assert it.ask(wire.opendir(inode)).error == errno.ENOSYS
    assert it.ask(wire.releasedir(wire.ROOT, 0)).error == 0


# Open files --------------------------------------------------------------------------------------------------------


def test_an_open_has_the_moment_of_its_receipt() -> None:
    with served() as it:
        before_ns = time.monotonic_ns()
        received_ns = it.event(wire.open_(inode_of(DATA, FIRST)), 7)[5]
        assert before_ns <= received_ns <= time.monotonic_ns()


def test_open_flags_follow_the_answer() -> None:
    expected = {
        (False, True): 0,
        (True, True): wire.FOPEN_KEEP_CACHE,
        (False, False): wire.FOPEN_DIRECT_IO,
        (True, False): wire.FOPEN_KEEP_CACHE | wire.FOPEN_DIRECT_IO,
    }
    with served() as it:
        for handle, ((keep, shares), flags) in enumerate(expected.items(), 1):
            event = it.event(wire.open_(inode_of(EXACT, PLAIN), os.O_RDONLY | os.O_CLOEXEC), 7)
            assert event[2:5] == (inode_of(EXACT, PLAIN), 7, os.O_RDONLY | os.O_CLOEXEC)
            it.session.opened(event[1], event[2], 7, handle, None, -1, keep, shares)
            opened = wire.parse_opened(it.device.reply_to(event[1], 0).body)
            assert opened == (handle, flags)


@pytest.mark.parametrize(("shares", "reads"), [(True, 0), (False, 3)])
def test_a_release_tells_how_often_a_program_read(shares: bool, reads: int) -> None:
    inode = inode_of(DATA, FIRST)
    with served() as it:
        it.event(wire.open_(inode))
        it.session.opened(2, inode, 7, 1, Buffer(b"12345"), 5, False, shares)
        for offset in (0, 3, 5):
            it.ask(wire.read(inode, 1, offset, 3))
        assert it.event(wire.release(inode, 1))[5] == reads


@given(data=st.binary(max_size=300), offset=st.integers(0, 400), size=st.integers(0, 400))
def test_a_read_is_a_slice(data: bytes, offset: int, size: int) -> None:
    with served() as it:
        it.open(inode_of(DATA, FIRST), 1, data)
        assert it.ask(wire.read(inode_of(DATA, FIRST), 1, offset, size)).body == data[offset : offset + size]
        assert it.session.counts()["bytes_served"] == len(data[offset : offset + size])


@pytest.mark.parametrize("offset", [1 << 31, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_read_far_past_the_end_is_empty(it: Served, offset: int) -> None:
    it.open(inode_of(DATA, FIRST), 1, b"12345")
    assert it.ask(wire.read(inode_of(DATA, FIRST), 1, offset, 2**32 - 1)).body == b""


def test_no_reply_exceeds_the_limit_of_a_read(it: Served) -> None:
    data = os.urandom(MAX_READ + 1000)
    it.open(inode_of(DATA, FIRST), 1, data)
    assert it.ask(wire.read(inode_of(DATA, FIRST), 1, 0, 2**32 - 1)).body == data[:MAX_READ]


def test_reads_of_a_handle_without_bytes_are_events(it: Served) -> None:
    inode = inode_of(EXACT, PLAIN)
    it.open(inode, 1, None)
    assert it.event(wire.read(inode, 1, 4096, 2**32 - 1), 7)[2:] == (1, 7, 4096, MAX_READ)
    event = it.event(wire.read(inode, 1, 5, 10), 7)
    assert event[2:] == (1, 7, 5, 10)
    it.session.data(event[1], b"text")
    assert it.device.reply_to(event[1], 0).body == b"text"
    event = it.event(wire.read(inode, 1, 5, 10))
    it.session.failed(event[1], errno.EIO)
    assert it.device.reply_to(event[1], 0).error == errno.EIO


def test_shed_handles_let_go_of_their_bytes(it: Served) -> None:
    before = bytes_in_buffers()
    inode, other = inode_of(DATA, FIRST), inode_of(DATA, FIRST + 1)
    for handle, of in ((1, inode), (2, other), (3, inode), (4, inode)):
        it.open(of, handle, b"x" * 100)
    it.event(wire.release(inode, 3))
    it.session.shed(FIRST)
    assert Buffer.total_bytes() == before + 100
    assert it.event(wire.read(inode, 1, 0, 10))[0] == READ
    assert it.event(wire.read(inode, 4, 0, 10))[0] == READ
    assert it.ask(wire.read(other, 2, 0, 10)).body == b"x" * 10
    for handle, of in ((1, inode), (4, inode), (2, other)):
        assert it.event(wire.release(of, handle))[::2] == (RELEASE, handle, 0)
    assert it.session.counts()["handles"] == 0
    it.session.shed(FIRST)


def test_a_release_is_answered_at_once_and_drops_the_bytes(it: Served) -> None:
    before = bytes_in_buffers()
    inode = inode_of(DATA, FIRST)
    it.open(inode, 1, b"x" * 1000)
    event = it.event(wire.release(inode, 1))
    assert it.device.reply_to(event[1], 0).error == 0
    assert Buffer.total_bytes() == before
    # No second event, and nothing to read.
    assert it.ask(wire.release(inode, 1)).error == 0
    assert it.ask(wire.read(inode, 1, 0, 10)).error == errno.EBADF


def test_a_handle_may_be_used_again_after_its_release(it: Served) -> None:
    inode = inode_of(DATA, FIRST)
    it.open(inode, 5, b"1")
    event = it.event(wire.open_(inode))
    with pytest.raises(ValueError, match="handle 5"):
        it.session.opened(event[1], inode, 7, 5, None, -1, False, True)
    it.event(wire.release(inode, 5))
    assert it.session.opened(event[1], inode, 7, 5, Buffer(b"22"), 2, False, True)
    assert it.ask(wire.read(inode, 5, 0, 10)).body == b"22"


@pytest.mark.parametrize("handle", [0, 1 << 20, 1 << 40, 1 << 63])
def test_handles_outside_the_table_are_refused(it: Served, handle: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        it.session.opened(2, inode_of(DATA, FIRST), 7, handle, None, -1, False, True)
    assert it.session.counts()["handles"] == it.session.counts()["bound"] == 0


def test_events_keep_the_order_of_the_requests(it: Served) -> None:
    folder, inode = inode_of(DATA, FOLDER), inode_of(DATA, FIRST)
    it.open(inode, 1, b"1")
    it.open(inode_of(EXACT, PLAIN), 2, None)
    sent = [
        it.device.send(request, 7)
        for request in (
            wire.release(inode, 1),
            wire.lookup(folder, b"file 001"),
            wire.open_(inode),
            wire.getattr_(inode),
            wire.getattr_(folder),
            wire.read(inode_of(EXACT, PLAIN), 2, 0, 10),
        )
    ]
    events = it.events()
    assert [event[0] for event in events] == [RELEASE, OPEN, STAT, READ]
    assert [event[1] for event in events] == [sent[0], sent[2], sent[3], sent[5]]


def test_a_turn_returns_many_events_but_not_all(it: Served) -> None:
    sent = [it.device.send(wire.open_(inode_of(DATA, FIRST))) for _ in range(100)]
    taken: list[int] = []
    while len(taken) < len(sent):
        events = it.events()
        assert 0 < len(events) <= 64
        taken += [event[1] for event in events]
    assert taken == sent


# Waiting -----------------------------------------------------------------------------------------------------------


def is_readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def test_the_descriptor_is_readable_when_there_is_something_to_take(it: Served) -> None:
    fd = it.session.fileno()
    assert not is_readable(fd)
    it.device.send(wire.open_(inode_of(DATA, FIRST)))
    assert is_readable(fd)
    it.events()
    assert not is_readable(fd)
    it.relay.send(b"noise")
    assert is_readable(fd)
    it.events()
    assert not is_readable(fd)


def test_a_watched_descriptor_ends_the_wait(it: Served) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        it.session.watch(ours.fileno())
        theirs.send(b"x")
        assert is_readable(it.session.fileno())
        # An hour, if it did not.
        assert it.session.take(0, 3_600_000) == []
        for _ in range(100):
            it.device.send(wire.lookup(wire.ROOT, b"folder"))
        # The requests are served too, a part of them in each turn.
        while len(it.device.waiting()) < 100 and it.session.counts()["requests"] < 101:
            assert it.session.take(0, 3_600_000) == []


def test_a_call_from_another_thread_and_bad_arguments_are_refused(it: Served) -> None:
    with pytest.raises(TypeError):
        it.session.take()  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="look_us"):
        it.session.take(-1, 0)
    with pytest.raises(IndexError):
        it.session.stat(2, 10_000, 1, True)
    with pytest.raises(IndexError):
        it.session.freed([FIRST, -1])
    with pytest.raises(ValueError, match="negative"):
        it.session.bind(FIRST, -1)
    with pytest.raises(OverflowError):
        it.session.opened(2, 5, 1 << 32, 1, None, -1, False, True)
    with pytest.raises(TypeError):
        it.session.opened(2, 5, 1, 1, b"bytes", -1, False, True)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_read"):
        Session(it.device.fd, -1, small_tree(), max_read=0, helpers=0)
    with pytest.raises(ValueError, match="helpers"):
        Session(it.device.fd, -1, small_tree(), max_read=4096, helpers=64)
    with pytest.raises(OSError, match="Bad file descriptor"):
        Session(-1, -1, small_tree(), max_read=4096, helpers=0)


# Helpers -----------------------------------------------------------------------------------------------------------
# A socket cannot be cloned, so they share the owner's descriptor here.

QUEUE = 4096
"""Events that the session keeps for its owner."""


@contextmanager
def helped(helpers: int) -> Iterator[tuple[Device, Session]]:
    with Device() as device:
        session = Session(device.fd, -1, small_tree(), max_read=MAX_READ, helpers=helpers)
        try:
            unique = device.send(wire.init())
            assert take(session, 1) == [(INIT, 0, 1, 0, 0, 0)]
            assert device.reply_to(unique).error == 0
            yield device, session
        finally:
            session.close()


def take(session: Session, count: int) -> list[Event]:
    """As many events, some of which may still be on their way."""
    found: list[Event] = []
    poll = select.poll()
    poll.register(session.fileno(), select.POLLIN)
    while len(found) < count:
        assert poll.poll(PATIENCE_S * 1000)
        events = session.take(0, 0)
        assert events is not None
        found += events
    return found


def kernels(unique: int) -> int:
    """The kernel's number of a request; an event's says besides which helper received it."""
    return unique & ((1 << 56) - 1)


def test_looks_that_find_nothing_are_left_out_after_that_kind_of_request() -> None:
    def looks(session: Session, times: int) -> int:
        before = session.counts()["looks"]
        for _ in range(times):
            assert session.take(1, 0) == []
        return session.counts()["looks"] - before

    ours, theirs = socket.socketpair()
    with ours, theirs, helped(0) as (device, session):
        session.watch(ours.fileno())
        device.send(wire.lookup(wire.ROOT, b"folder"))
        assert session.take(0, 0) == []
        # Six times in a row nothing was found. Of the next 160, one in 16 is tried.
        assert looks(session, 6) == 6
        assert looks(session, 160) == 10
        # What follows another kind of request has its own odds.
        device.send(wire.release(FIRST, 1))
        session.take(0, 0)
        assert looks(session, 6) == 6
        assert looks(session, 160) == 10
        # Once looks find something, all are done again.
        in_a_row, ends_s = 0, time.monotonic() + PATIENCE_S
        while in_a_row < 2:
            assert time.monotonic() < ends_s
            before = session.counts()["looks"]
            sender = threading.Timer(0.001, theirs.send, (b"x",))
            sender.start()
            assert session.take(1_000_000, 0) == []
            sender.join()
            ours.recv(1)
            in_a_row = in_a_row + 1 if session.counts()["looks"] > before else 0
        assert looks(session, 1) == 1


def test_the_wait_goes_on_over_requests_that_the_session_answers_by_itself() -> None:
    """So requests that a program makes before an open do not wake the caller."""

    def kernel(device: Device) -> None:
        for _ in range(5):
            # The session sleeps again.
            time.sleep(0.01)
            device.ask(wire.lookup(wire.ROOT, b"folder"))
        device.send(wire.open_(inode_of(DATA, FIRST)))

    with helped(0) as (device, session), ThreadPoolExecutor(1) as threads:
        sent = threads.submit(kernel, device)
        events = session.take(0, 3_600_000)
        # If that returned too early, the thread still waits for answers.
        while not sent.done():
            session.take(0, 10)
        sent.result()
    assert events is not None
    assert [event[0] for event in events] == [OPEN]


@pytest.mark.parametrize("helpers", [1, 3])
def test_helpers_answer_while_the_owner_is_busy(helpers: int) -> None:
    with helped(helpers) as (device, session):
        for name in NAMES[FIRST:]:
            found = wire.parse_entry(device.ask(wire.lookup(inode_of(DATA, FOLDER), name)).body)
            assert found.inode == inode_of(DATA, NAMES.index(name))
        unique = device.send(wire.open_(inode_of(DATA, FIRST)), 7)
        (event,) = take(session, 1)
        assert (kernels(event[1]), *event[2:5]) == (unique, inode_of(DATA, FIRST), 7, os.O_RDONLY)
        assert session.opened(event[1], inode_of(DATA, FIRST), 7, 1, Buffer(b"12345"), 5, False, True)
        assert wire.parse_opened(device.reply_to(unique).body).handle == 1
        assert device.ask(wire.read(inode_of(DATA, FIRST), 1, 1, 3)).body == b"234"
        assert device.ask(wire.release(inode_of(DATA, FIRST), 1)).error == 0
        assert take(session, 1)[0][::2] == (RELEASE, 1, 0)


@pytest.mark.parametrize("helpers", [1, 3])
def test_helpers_keep_the_order_of_events_and_lose_none(helpers: int) -> None:
    with helped(helpers) as (device, session):
        # More than the queue takes: the rest waits in the socket.
        sent = [device.send(wire.open_(inode_of(DATA, FIRST))) for _ in range(QUEUE + 500)]
        assert [kernels(event[1]) for event in take(session, len(sent))] == sent
        assert session.take(0, 0) == []
        assert not is_readable(session.fileno())


def test_helpers_end_while_they_wait_for_room() -> None:
    with helped(2) as (device, session):
        for _ in range(QUEUE + 100):
            device.send(wire.open_(inode_of(DATA, FIRST)))
        take(session, 1)


@pytest.mark.parametrize("helpers", [0, 3])
def test_an_end_that_helpers_find_reaches_the_owner(helpers: int) -> None:
    with helped(helpers) as (device, session):
        device.end()
        while (events := session.take(0, 1000)) is not None:
            assert events == []


def test_sessions_leave_no_descriptors_and_no_threads_behind() -> None:
    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    before = held()
    for helpers in (0, 1, 3) * 3:
        with helped(helpers):
            pass
    gc.collect()
    # Other tests may have left an idle thread, or garbage, that ends meanwhile.
    assert all(now <= then for now, then in zip(held(), before, strict=True))


# The relay ---------------------------------------------------------------------------------------------------------

RELAYED = [
    wire.lookup(wire.ROOT, b".redoxfs"),
    wire.lookup(CONTROL_INODE, b"stats.json"),
    wire.lookup(inode_of(SERVED, FOLDER), b"file 000"),
    wire.getattr_(CONTROL_INODE),
    wire.getattr_(inode_of(SERVED, FIRST)),
    wire.open_(STATS_INODE),
    wire.open_(inode_of(SERVED, FIRST)),
    wire.read(STATS_INODE, RELAY_HANDLE, 10, 4096),
    wire.release(STATS_INODE, RELAY_HANDLE),
    wire.readlink(inode_of(DATA, LINK)),
    wire.statfs(),
]


@pytest.mark.parametrize("request_", RELAYED, ids=lambda request: f"{Opcode(request.opcode).name} {request.inode:x}")
def test_cold_requests_and_their_replies_pass_unchanged(it: Served, request_: Request) -> None:
    unique = it.device.send(request_, 7)
    assert it.events() == []
    assert it.relay.recv(1 << 17) == request_.message(unique, 7)
    reply = wire.OUT_HEADER.pack(wire.OUT_HEADER.size + 5, 0, unique) + b"12345"
    it.relay.send(reply)
    assert it.events() == []
    assert it.device.reply_to(unique, 0) == Reply(unique, 0, b"12345")
    # A second reply has no receiver.
    it.relay.send(reply)
    assert it.events() == []
    assert it.device.waiting() == []
    assert it.session.counts()["relayed"] == 2  # with INIT


def test_a_folder_elsewhere_may_be_called_redoxfs(it: Served) -> None:
    assert wire.parse_entry(it.ask(wire.lookup(inode_of(DATA, FOLDER), b".redoxfs")).body).inode == 0
    assert wire.parse_entry(it.ask(wire.lookup(inode_of(EXACT, ROOT), b".redoxfs")).body).inode == 0


def relayed(it: Served) -> bytes:
    assert it.events() == []
    return it.relay.recv(1 << 17)


def test_listings_name_the_directory_and_long_replies_fit(it: Served) -> None:
    unique = it.device.send(wire.readdirplus(CONTROL_INODE, 0, 0, 1 << 20))
    assert relayed(it) == wire.readdirplus(CONTROL_INODE, CONTROL_INODE, 0, RELAY_BYTES).message(unique)
    unique = it.device.send(wire.read(STATS_INODE, RELAY_HANDLE, 0, 1 << 20))
    assert relayed(it) == wire.read(STATS_INODE, RELAY_HANDLE, 0, RELAY_BYTES).message(unique)


def test_requests_for_a_changed_entry_go_to_the_relay(it: Served) -> None:
    folder, changed = inode_of(DATA, FOLDER), FIRST + 3
    it.session.ask(changed, True)
    for request in (
        wire.lookup(folder, b"file 003"),
        wire.getattr_(inode_of(DATA, changed)),
        wire.getattr_(inode_of(EXACT, changed)),
        wire.readdirplus(folder, folder, 3, 4096),
    ):
        unique = it.device.send(request)
        assert relayed(it) == request.message(unique)
    # A listing stops before it.
    names = list(wire.parse_dirents(it.ask(wire.readdirplus(folder, 0, 0, 4096)).body, plus=True))
    assert [one.name for one in names] == [b"file 000", b"file 001", b"file 002"]
    it.session.ask(changed, False)
    assert wire.parse_entry(it.ask(wire.lookup(folder, b"file 003")).body).inode == inode_of(DATA, changed)


@pytest.mark.parametrize(
    "request_",
    [
        wire.lookup(inode_of(DATA, FOLDER), b"file 003"),
        wire.getattr_(inode_of(DATA, FIRST + 3)),
        wire.readdirplus(inode_of(DATA, FOLDER), inode_of(DATA, FOLDER), 3, 4096),
    ],
    ids=lambda request: Opcode(request.opcode).name,
)
def test_a_size_that_the_relay_tells_becomes_void_too(it: Served, request_: Request) -> None:
    it.session.ask(FIRST + 3, True)
    it.device.send(request_)
    relayed(it)
    it.session.turned([FIRST + 2, FIRST + 3])
    assert it.voided() == [(inode_of(DATA, FIRST + 3), True)]


def test_a_changed_file_that_the_thread_has_open_keeps_its_size(it: Served) -> None:
    inode = inode_of(DATA, FIRST)
    it.open(inode, 1, b"12345", thread=7)
    it.session.ask(FIRST, True)
    assert wire.parse_attributes(it.ask(wire.getattr_(inode), 7).body).attr.size == 5


def test_errors_and_notices_of_the_relay_pass_too(it: Served) -> None:
    unique = it.device.send(wire.readlink(inode_of(DATA, LINK)))
    relayed(it)
    it.relay.send(wire.OUT_HEADER.pack(wire.OUT_HEADER.size, -errno.EINVAL, unique))
    void = wire.INVALIDATE_INODE_OUT.pack(5, -1, 0)
    it.relay.send(wire.OUT_HEADER.pack(wire.OUT_HEADER.size + len(void), wire.Notice.INVALIDATE_INODE, 0) + void)
    assert it.events() == []
    assert it.device.reply_to(unique, 0).error == errno.EINVAL
    assert it.voided() == [(5, True)]


def test_a_reply_that_lies_about_its_length_is_an_error(it: Served) -> None:
    unique = it.device.send(wire.statfs())
    relayed(it)
    it.relay.send(wire.OUT_HEADER.pack(1000, 0, unique) + b"short")
    assert it.events() == []
    assert it.device.reply_to(unique, 0).error == errno.EIO


def test_the_relay_gets_only_what_its_replies_have_room_for(it: Served) -> None:
    sent = [it.device.send(wire.readdir(CONTROL_INODE, 0, at, 1 << 20)) for at in range(10)]
    answered: list[int] = []
    while len(answered) < len(sent):
        assert it.events() == []
        there: list[int] = []
        while is_readable(it.relay.fileno()):
            there.append(wire.IN_HEADER.unpack_from(it.relay.recv(4096))[2])
        assert 0 < len(there) * RELAY_BYTES <= 192 * 1024
        for unique in there:
            it.relay.send(wire.OUT_HEADER.pack(wire.OUT_HEADER.size, 0, unique))
        assert it.events() == []
        answered += [reply.unique for reply in it.device.waiting()]
    assert answered == sent


def test_more_than_the_relay_can_take_is_refused(it: Served) -> None:
    refused: list[int] = []
    count = 0
    while not refused:
        for _ in range(32):
            it.device.send(wire.statfs())
        count += 32
        it.session.take(0, 0)
        refused += [reply.error for reply in it.device.waiting()]
    assert set(refused) == {errno.EAGAIN}
    assert count - len(refused) == 511  # and INIT, whose reply has not come
    # The rest is refused too when the relay ends.
    it.relay.close()
    it.session.take(0, 0)
    assert [reply.error for reply in it.device.waiting()] == [errno.EIO] * 511
    assert it.ask(wire.statfs()).error == errno.EIO
    assert not is_readable(it.session.fileno())


def test_without_a_relay_there_is_nothing_cold() -> None:
    with Device() as device:
        session = Session(device.fd, -1, small_tree(), max_read=MAX_READ, helpers=0)
        for request, error in ((wire.init(), 0), (wire.statfs(), errno.ENOSYS)):
            unique = device.send(request)
            session.take(0, 0)
            assert device.reply_to(unique, 0).error == error
        session.close()


# The access log -----------------------------------------------------------------------------------------------------


LOG_HANDLE = (1 << 63) + 5


def test_the_access_log_is_opened_without_pages_and_without_a_position(it: Served) -> None:
    event = it.event(wire.open_(ACCESS_LOG_INODE))
    assert event[0] == OPEN
    assert event[2] == ACCESS_LOG_INODE
    assert it.session.log_opened(event[1], LOG_HANDLE)
    opened = wire.parse_opened(it.device.reply_to(event[1], 0).body)
    direct_io, nonseekable, stream = 1 << 0, 1 << 2, 1 << 4
    assert (opened.handle, opened.flags) == (LOG_HANDLE, direct_io | nonseekable | stream)


def test_reads_of_the_access_log_are_events_that_may_wait_or_not(it: Served) -> None:
    event = it.event(wire.read(ACCESS_LOG_INODE, LOG_HANDLE, 0, 4096))
    assert event == (LOG_READ, event[1], LOG_HANDLE, 0, event[1], 4096)
    it.session.data(event[1], b"a line\n")
    assert it.device.reply_to(event[1], 0).body == b"a line\n"
    body = wire.READ_IN.pack(LOG_HANDLE, 0, 4096, 0, 0, os.O_NONBLOCK)
    event = it.event(Request(Opcode.READ, ACCESS_LOG_INODE, body))
    assert event[0] == LOG_TRY
    it.session.failed(event[1], errno.EAGAIN)
    assert it.device.reply_to(event[1], 0).error == errno.EAGAIN


def test_a_poll_of_the_access_log_is_an_event_and_wakes(it: Served) -> None:
    waiter, schedule = 77, 1
    event = it.event(Request(Opcode.POLL, ACCESS_LOG_INODE, wire.POLL_IN.pack(LOG_HANDLE, waiter, schedule, 1)))
    assert event == (LOG_POLL, event[1], LOG_HANDLE, 0, waiter, 0)
    it.session.polled(event[1], 1)
    assert it.device.reply_to(event[1], 0).body == wire.POLL_OUT.pack(1)
    it.session.wake(waiter)
    (notice,) = it.device.waiting()
    assert (notice.error, notice.body) == (wire.Notice.POLL, struct.pack("=Q", waiter))


def test_a_release_of_the_access_log_is_answered_and_told(it: Served) -> None:
    unique = it.device.send(wire.release(ACCESS_LOG_INODE, LOG_HANDLE))
    assert it.events() == [(LOG_RELEASE, unique, LOG_HANDLE, 0, 0, 0)]
    assert it.device.reply_to(unique, 0).error == 0


def test_no_poll_of_another_file_waits(it: Served) -> None:
    poll = select.POLLIN | select.POLLOUT | select.POLLRDNORM | select.POLLWRNORM
    reply = it.ask(Request(Opcode.POLL, inode_of(DATA, FIRST), wire.POLL_IN.pack(1, 3, 1, 1)))
    assert reply.body == wire.POLL_OUT.pack(poll)


# What nobody serves, and what makes no sense ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "opcode",
    [Opcode.FLUSH, Opcode.FSYNC, Opcode.GETXATTR, Opcode.LISTXATTR, Opcode.ACCESS, Opcode.IOCTL]
    + [Opcode.FSYNCDIR, Opcode.LSEEK, Opcode.STATX, 99, 4096],
)
def test_what_no_filesystem_needs_is_not_implemented(it: Served, opcode: int) -> None:
    assert it.ask(Request(opcode, inode_of(DATA, FIRST), bytes(64))).error == errno.ENOSYS


@pytest.mark.parametrize("opcode", [4, 6, 8, 9, 10, 11, 12, 13, 16, 21, 24, 35, 45])
def test_nothing_changes_the_tree(it: Served, opcode: int) -> None:
    assert it.ask(Request(opcode, inode_of(DATA, FIRST), bytes(64))).error == errno.EROFS


def test_some_requests_have_no_reply(it: Served) -> None:
    for request in (wire.forget(5), wire.batch_forget([(5, 1)], count=1 << 31)):
        it.device.send(request)
        assert it.events() == []
    it.device.interrupt(4)
    assert it.events() == [(INTERRUPT, 5, 4, 0, 0, 0)]
    assert it.device.waiting() == []


OUTSIDE = [0, inode_of(DATA, FIRST + FILES), inode_of(EXACT, FIRST + FILES), (1 << 40) - 1, 1 << 40, 4 << 40, 2**64 - 1]


@pytest.mark.parametrize("inode", OUTSIDE)
def test_inodes_that_cannot_be_are_errors(it: Served, inode: int) -> None:
    for request in (
        wire.lookup(inode, b"x"),
        wire.getattr_(inode),
        wire.open_(inode),
        wire.readdirplus(inode, 0, 0, 4096),
        wire.readlink(inode),
    ):
        assert it.ask(request).error == errno.EIO
    assert it.session.counts()["malformed"] == 5


BODIES = [
    (Opcode.LOOKUP, b""),
    (Opcode.LOOKUP, b"folder"),
    (Opcode.OPEN, b"1234"),
    (Opcode.READ, bytes(39)),
    (Opcode.RELEASE, bytes(23)),
    (Opcode.READDIR, bytes(39)),
    (Opcode.READDIRPLUS, b""),
]


@pytest.mark.parametrize(("opcode", "body"), BODIES)
@pytest.mark.parametrize("inode", [inode_of(DATA, FOLDER), inode_of(SERVED, FOLDER), CONTROL_INODE])
def test_a_request_that_is_too_short_is_invalid(it: Served, opcode: Opcode, body: bytes, inode: int) -> None:
    assert it.ask(Request(opcode, inode, body)).error == errno.EINVAL


def test_a_name_too_long_for_the_kernel_does_not_reach_the_relay(it: Served) -> None:
    assert it.ask(wire.lookup(CONTROL_INODE, b"x" * 5000)).error == errno.EINVAL


@pytest.mark.parametrize("claimed", [0, 39, 41, 64, 2**32 - 1])
def test_a_header_that_lies_about_its_length_is_invalid(it: Served, claimed: int) -> None:
    it.device.send_raw(wire.raw(Opcode.STATFS, 1, b"", 1000, length=claimed))
    assert it.events() == []
    assert it.device.reply_to(1000, 0).error == errno.EINVAL


def test_half_a_header_gets_no_reply(it: Served) -> None:
    it.device.send_raw(b"half a header")
    # The upper byte of a number says which descriptor to answer on.
    it.device.send_raw(wire.raw(Opcode.STATFS, 1, b"", 1 << 56))
    assert it.events() == []
    assert it.device.waiting() == []
    assert it.session.counts()["malformed"] == 2


OPCODES = st.one_of(st.sampled_from([*Opcode]), st.integers(0, 60)).filter(lambda opcode: opcode != Opcode.DESTROY)
NO_REPLY = (Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INTERRUPT, 41)
INODES = st.one_of(
    st.sampled_from([*OUTSIDE, CONTROL_INODE, STATS_INODE, wire.ROOT]),
    st.builds(inode_of, st.sampled_from([DATA, EXACT, SERVED, CONTROL]), st.integers(0, FIRST + FILES)),
)
NUMBERS = st.one_of(st.integers(0, 5), st.integers(0, 2**64 - 1))
WORDS = st.lists(NUMBERS, max_size=8).map(lambda numbers: struct.pack(f"={len(numbers)}Q", *numbers))


@given(st.lists(st.tuples(OPCODES, INODES, st.one_of(WORDS, st.binary(max_size=100))), max_size=30))
def test_every_request_gets_one_answer_at_most(requests: list[tuple[int, int, bytes]]) -> None:
    with served() as it:
        it.open(inode_of(DATA, FIRST), 1, b"12345")
        it.open(inode_of(EXACT, FIRST), 2, None)
        sent = {it.device.send(Request(*request), 7): request[0] for request in requests}
        events: list[Event] = []
        while it.session.counts()["requests"] < 3 + len(sent):
            events += it.events()
        relayed = set()
        while is_readable(it.relay.fileno()):
            relayed.add(wire.IN_HEADER.unpack_from(it.relay.recv(1 << 17))[2])
        for event in events:
            if event[0] not in (RELEASE, LOG_RELEASE, INTERRUPT):
                it.session.failed(event[1], errno.EIO)
        answered = [reply.unique for reply in it.device.waiting()]
        assert len(answered) == len(set(answered))
        assert not relayed & set(answered)
        silent = {unique for unique, opcode in sent.items() if opcode in NO_REPLY}
        assert relayed | set(answered) == set(sent) - silent
