"""Shared memory: what a session leaves there, and how the next one goes on. A session that is dropped without `close`
stands for a daemon that was killed."""

import errno
import mmap
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
import wire
from small_tree import FILES, FIRST, LINK, PLAIN, small_tree
from wire import Device, Request

from redoxfs.fs.inodes import DATA, EXACT, inode_of
from redoxfs.native import Buffer, Session, Shared
from redoxfs.native._native import INIT, LAYOUT, OPEN, READ, RELEASE, STAT

OPENED, FAILED, CLOSED = 5, 6, 7
SLOTS = 8192
FOR_RELEASE = 1024
LANDING = 4096
"""Where the first landing begins."""

FILE = inode_of(DATA, FIRST)
OTHER = inode_of(DATA, FIRST + 1)


class Mount:
    """A device and shared memory, which outlive the sessions that serve them."""

    def __init__(self, helpers: int = 0) -> None:
        self.device = Device()
        self.fd = os.memfd_create("redoxfs-test")
        self._helpers = helpers
        self._sockets: list[socket.socket] = []
        self.sessions: list[Session] = []
        self.go_on()
        unique = self.device.send(wire.init())
        assert self.session.take(0, 1000) == [(INIT, 0, 1, 0, 0, 0)]
        assert self.device.reply_to(unique).error == 0
        assert self.relay.recv(4096)

    def go_on(self, *, blames: bool = False) -> None:
        """Another session, with a relay and handles of its own."""
        self.relay, front = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.relay.setblocking(False)
        self._sockets += [self.relay, front]
        self.shared = Shared(self.fd)
        self.session = Session(
            self.device.fd,
            front.fileno(),
            small_tree(),
            max_read=1 << 20,
            helpers=self._helpers,
            clones=[self.device.fd] * self._helpers,
            shared=self.shared,
            blames=blames,
        )
        self.sessions.append(self.session)

    def events(self) -> list[tuple[int, ...]]:
        events = self.session.take(0, 0)
        assert events is not None
        return [event for event in events if event[0] != INIT]

    def event(self, request: Request, thread: int = 7) -> tuple[int, ...]:
        self.device.send(request, thread)
        (event,) = self.events()
        return event

    def open(self, inode: int, handle: int, thread: int = 7) -> None:
        event = self.event(wire.open_(inode), thread)
        assert self.session.opened(event[1], inode, thread, handle, Buffer(b"12345"), 5, False, True)
        self.device.receive()

    def journal(self) -> list[tuple[int, ...]]:
        return list(self.shared.entries(0))

    def land(self, request: Request, unique: int) -> None:
        """A read(2) has returned ``request``, and nothing was done with it yet."""
        with mmap.mmap(self.fd, 0) as memory:
            message = request.message(unique)
            memory[LANDING : LANDING + len(message)] = message

    def close(self) -> None:
        for session in self.sessions:
            session.close()
        for end in self._sockets:
            end.close()
        self.device.close()
        os.close(self.fd)


@contextmanager
def mounted(helpers: int = 0) -> Iterator[Mount]:
    with closing(Mount(helpers)) as mount:
        yield mount


@pytest.fixture
def mount() -> Iterator[Mount]:
    with mounted() as mount:
        yield mount


def test_unanswered_requests_are_delivered_again_in_their_order(mount: Mount) -> None:
    sent = [mount.device.send(wire.open_(inode_of(DATA, entry)), 7) for entry in range(FIRST, FIRST + FILES)]
    sent += [mount.device.send(wire.getattr_(FILE), 9)]
    before = mount.events()
    mount.go_on()
    assert mount.session.waiting() == [event[1] for event in before]
    # Each was received anew, so an open's moment of receipt is another.
    assert [event[:5] for event in mount.events()] == [event[:5] for event in before]
    assert [event[0] for event in before] == [OPEN] * FILES + [STAT]
    assert mount.session.waiting() == []
    assert mount.session.opened(before[0][1], FILE, 7, 1, Buffer(b"12345"), 5, False, True)
    assert wire.parse_opened(mount.device.reply_to(sent[0]).body).handle == 1


def test_without_memory_for_its_events_take_keeps_them(mount: Mount) -> None:
    _testcapi = pytest.importorskip("_testcapi")
    for entry in range(FIRST, FIRST + FILES):
        mount.device.send(wire.open_(inode_of(DATA, entry)), 7)
    events, refused = None, 0
    while events is None:
        # One more allocation than before, and then none.
        _testcapi.set_nomemory(refused)
        try:
            events = mount.session.take(0, 0)
        except MemoryError:
            refused += 1
        finally:
            _testcapi.remove_mem_hooks()
    assert refused > FILES
    assert [(event[0], event[2]) for event in events] == [
        (OPEN, inode_of(DATA, entry)) for entry in range(FIRST, FIRST + FILES)
    ]
    assert mount.session.waiting() == []


def test_an_answered_request_is_not_delivered_again(mount: Mount) -> None:
    mount.open(FILE, 1)
    event = mount.event(wire.open_(OTHER))
    mount.session.failed(event[1], errno.EIO)
    mount.go_on()
    assert mount.session.waiting() == []
    assert mount.events() == []


def test_a_request_is_answered_once_whoever_answers(mount: Mount) -> None:
    event = mount.event(wire.open_(FILE))
    mount.session.failed(event[1], errno.EIO)
    assert mount.device.receive().error == errno.EIO
    other = mount.event(wire.open_(FILE))
    mount.session.failed(event[1], errno.EIO)  # its slot has another request now
    assert mount.device.waiting() == []
    mount.session.failed(other[1], errno.ESTALE)
    assert mount.device.receive().error == errno.ESTALE


def test_the_kernel_sends_init_once_and_each_relay_gets_it(mount: Mount) -> None:
    mount.go_on()
    assert mount.session.take(0, 0) == [(INIT, 0, 1, 0, 0, 0)]
    assert struct.unpack_from("<II", mount.relay.recv(4096))[1] == wire.Opcode.INIT
    assert mount.device.waiting() == []


def test_what_was_received_and_not_kept_comes_last(mount: Mount) -> None:
    first = mount.event(wire.open_(FILE))
    mount.land(wire.open_(OTHER), unique=1 << 20)
    mount.go_on()
    assert [event[2] for event in mount.events()] == [first[2], OTHER]


def test_what_was_received_and_kept_comes_once(mount: Mount) -> None:
    unique = mount.device.send(wire.open_(FILE))
    assert len(mount.events()) == 1
    mount.land(wire.open_(FILE), unique)
    mount.go_on()
    assert len(mount.events()) == 1


def test_what_needs_no_decision_is_answered_by_the_next_session(mount: Mount) -> None:
    mount.land(wire.getattr_(inode_of(EXACT, PLAIN)), unique=1 << 20)
    mount.go_on()
    assert mount.events() == []
    assert mount.device.reply_to(1 << 20).error == 0
    mount.go_on()
    assert mount.session.waiting() == []


def test_a_forget_is_not_kept(mount: Mount) -> None:
    mount.land(wire.forget(FILE), unique=1 << 20)
    mount.go_on()
    assert mount.session.waiting() == []


def test_a_close_waits_until_it_is_done(mount: Mount) -> None:
    mount.open(FILE, 1)
    unique = mount.device.send(wire.release(FILE, 1))
    (event,) = mount.events()
    assert mount.device.reply_to(unique).error == 0
    mount.go_on()
    mount.session.reopened(1, FILE, 7, 5, True)
    (again,) = mount.events()
    assert (again[0], again[1], again[2]) == (RELEASE, event[1], 1)
    mount.session.released(again[1], 1)
    assert mount.journal()[-1][0] == CLOSED
    mount.go_on()
    assert mount.session.waiting() == []


def test_a_close_of_a_file_that_is_closed_already_is_answered(mount: Mount) -> None:
    mount.open(FILE, 1)
    mount.device.send(wire.release(FILE, 1))
    mount.events()
    mount.go_on()
    assert mount.events() == []
    assert mount.session.waiting() == []


def test_an_open_file_is_read_after_it_was_reopened(mount: Mount) -> None:
    mount.open(FILE, 1)
    mount.go_on()
    mount.session.reopened(1, FILE, 7, 5, True)
    event = mount.event(wire.read(FILE, 1, 0, 100))
    assert event[0] == READ
    mount.session.data(event[1], b"12345")
    assert mount.device.receive().body == b"12345"
    mount.device.send(wire.getattr_(FILE), 7)
    assert mount.events() == []
    assert wire.parse_attributes(mount.device.receive().body).attr.size == 5


def test_the_next_session_does_not_void_the_size_of_an_open_file(mount: Mount) -> None:
    mount.device.send(wire.getattr_(FILE), 7)
    mount.session.stat(mount.events()[0][1], FIRST, 77, False)
    event = mount.event(wire.open_(FILE))
    assert mount.session.opened(event[1], FILE, 7, 1, Buffer(b"12345"), 5, False, True)
    assert [reply.is_notice for reply in mount.device.waiting()] == [False, True, False]
    mount.go_on()
    mount.session.reopened(1, FILE, 7, 5, True)
    mount.session.bind(FIRST, 5)
    mount.session.turned([FIRST, FIRST + 1])
    # The kernel may have asked for the other one's size before.
    (notice,) = mount.device.waiting()
    assert wire.parse_invalidated_inode(notice.body)[0] == OTHER


def test_reads_without_bytes_are_delivered_again(mount: Mount) -> None:
    mount.open(FILE, 1)
    mount.session.shed(FIRST)
    before = mount.event(wire.read(FILE, 1, 0, 100))
    mount.go_on()
    mount.session.reopened(1, FILE, 7, 5, True)
    assert mount.events() == [before]


def test_an_open_that_was_answered_is_answered_again_with_its_handle(mount: Mount) -> None:
    event = mount.event(wire.open_(FILE))
    mount.go_on()
    mount.session.reopened(3, FILE, 7, 5, False)
    mount.session.answered(event[1], 3, False)
    assert wire.parse_opened(mount.device.receive().body).handle == 3
    assert mount.session.waiting() == []


def test_relayed_requests_go_to_the_next_relay(mount: Mount) -> None:
    unique = mount.device.send(wire.readlink(inode_of(DATA, LINK)))
    mount.events()
    assert mount.relay.recv(4096)
    mount.go_on()
    mount.events()
    mount.relay.recv(4096)  # INIT
    (ticket,) = struct.unpack_from("<Q", mount.relay.recv(4096), 8)
    mount.relay.send(wire.OUT_HEADER.pack(wire.OUT_HEADER.size + 4, 0, ticket) + b"goal")
    mount.events()
    assert mount.device.reply_to(unique).body == b"goal"
    mount.go_on()
    assert mount.session.waiting() == []


def test_the_journal_says_what_was_opened_failed_and_closed(mount: Mount) -> None:
    event = mount.event(wire.open_(FILE))
    assert mount.session.opened(event[1], FILE, 7, 4, Buffer(b"12345"), 5, False, True)
    failed = mount.event(wire.open_(OTHER))
    mount.session.failed(failed[1], errno.EIO)
    mount.session.released(mount.event(wire.release(FILE, 4))[1], 4)
    assert mount.journal() == [
        (OPENED, 0, 1, 7, FIRST, 4, event[1], 5),
        (FAILED, 0, 0, 0, 0, -1, failed[1], errno.EIO),
        (CLOSED, 0, 0, 0, 0, 4, 0, 0),
    ]


def test_an_open_that_nobody_waits_for_is_closed_in_the_journal(mount: Mount) -> None:
    event = mount.event(wire.open_(FILE))
    mount.session.failed(event[1], errno.EIO)
    assert not mount.session.opened(event[1], FILE, 7, 4, Buffer(b"12345"), 5, False, True)
    assert [entry[0] for entry in mount.journal()] == [FAILED, OPENED, CLOSED]


def test_too_many_requests_are_refused_but_closes_are_not(mount: Mount) -> None:
    mount.open(FILE, 1)
    kept = 0
    while kept < SLOTS - FOR_RELEASE:
        for _ in range(64):
            mount.device.send(wire.getattr_(OTHER), 9)
        kept += len(mount.events())
    refused = mount.device.send(wire.getattr_(OTHER), 9)
    assert mount.events() == []
    assert mount.device.reply_to(refused).error == errno.EAGAIN
    assert mount.event(wire.release(FILE, 1))[0] == RELEASE


@pytest.mark.parametrize("helpers", [1, 3])
def test_helpers_wait_until_the_old_requests_were_delivered(helpers: int) -> None:
    with mounted(helpers) as mount:
        before: list[tuple[int, ...]] = []
        count = 200
        for _ in range(count):
            mount.device.send(wire.open_(FILE))
        while len(before) < count:
            before += mount.events()
        for session in mount.sessions:
            session.close()  # its threads would receive what the next one is sent
        mount.go_on()
        newer = mount.device.send(wire.open_(OTHER))
        after: list[tuple[int, ...]] = []
        while len(after) <= count:
            after += mount.events()
        assert [event[:5] for event in after[:count]] == [event[:5] for event in before]
        assert after[count][2] == OTHER
        mount.session.failed(after[count][1], errno.EIO)
        assert mount.device.reply_to(newer).error == errno.EIO


def test_a_session_that_is_closed_leaves_old_requests_to_the_next_one(mount: Mount) -> None:
    event = mount.event(wire.open_(FILE))
    mount.go_on()
    mount.session.close()
    assert mount.events() == []
    assert mount.session.take(0, 0) is None
    assert mount.session.waiting() == [event[1]]
    mount.go_on()
    assert [again[:5] for again in mount.events()] == [event[:5]]


def test_crashes_count_against_the_request_that_was_decided(mount: Mount) -> None:
    blameless, guilty = mount.event(wire.open_(FILE)), mount.event(wire.open_(OTHER))
    for time in (1, 2, 3):
        mount.session.deciding(guilty[1])
        mount.go_on(blames=True)
        assert [mount.session.crashes(each[1]) for each in (blameless, guilty)] == [0, time]
    mount.go_on(blames=True)  # nothing was being decided
    mount.session.deciding(guilty[1])
    mount.go_on()  # it was killed
    assert mount.session.crashes(guilty[1]) == 3
    mount.session.failed(guilty[1], errno.EIO)
    assert mount.session.waiting() == [blameless[1]]


def test_crashes_count_against_what_a_thread_was_answering(mount: Mount) -> None:
    mount.land(wire.getattr_(inode_of(EXACT, PLAIN)), unique=1 << 20)
    mount.go_on(blames=True)
    (unique,) = mount.session.waiting()
    assert mount.session.crashes(unique) == 1
    mount.go_on(blames=True)
    assert mount.session.crashes(unique) == 1


def test_memory_of_another_layout_is_refused_in_one_line(mount: Mount) -> None:
    with mmap.mmap(mount.fd, 0) as memory:
        struct.pack_into("<I", memory, 8, LAYOUT + 1)
    with pytest.raises(ValueError, match=f"has layout {LAYOUT + 1}, and this redoxfs reads layout {LAYOUT}"):
        Shared(mount.fd)


@pytest.mark.parametrize("damage", [(0, b"Bytes"), (16, b"\xff"), (24, b"\x03"), (32, b"\xff" * 8)])
def test_damaged_memory_is_refused_in_one_line(mount: Mount, damage: tuple[int, bytes]) -> None:
    at, data = damage
    with mmap.mmap(mount.fd, 0) as memory:
        memory[at : at + len(data)] = data
    with pytest.raises(ValueError, match="damaged"):
        Shared(mount.fd)


def test_truncated_memory_is_refused() -> None:
    fd = os.memfd_create("redoxfs-test")
    try:
        os.truncate(fd, 100)
        with pytest.raises(ValueError, match="damaged"):
            Shared(fd)
    finally:
        os.close(fd)


def test_a_checkpoint_covers_the_entries_before_it(mount: Mount) -> None:
    assert mount.shared.checkpointed() is None
    mount.shared.note(1, 2, 3, 4, 5, -6, 7, -8)
    mount.shared.checkpoint(b"first")
    mount.shared.note(2, 0, 0, 0, 0, 0, 0, 0)
    assert Shared(mount.fd).checkpointed() == (1, b"first")
    mount.shared.checkpoint(b"second")
    assert Shared(mount.fd).checkpointed() == (2, b"second")
    assert Shared(mount.fd).entries(0)[0] == (1, 2, 3, 4, 5, -6, 7, -8)


def test_a_checkpoint_that_is_too_long_changes_nothing(mount: Mount) -> None:
    mount.shared.checkpoint(b"first")
    with pytest.raises(ValueError, match="does not fit"):
        mount.shared.checkpoint(bytes((1 << 20) + 1))
    assert mount.shared.checkpointed() == (0, b"first")


def test_overwritten_entries_are_refused() -> None:
    fd = os.memfd_create("redoxfs-test")
    try:
        shared = Shared(fd, 16)
        for number in range(20):
            shared.note(1, 0, 0, 0, number, 0, 0, 0)
        assert [entry[4] for entry in shared.entries(4)] == list(range(4, 20))
        with pytest.raises(ValueError, match="after 3"):
            shared.entries(3)
    finally:
        os.close(fd)
