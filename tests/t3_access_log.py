"""The readers of the access log and the log of slow opens, over a session that notes what it is told."""

import errno
import logging
import sys
import time
from dataclasses import dataclass, field
from typing import cast

import pytest
import trio
import trio.testing

from redoxfs.fs.access_log import (
    IDLE_S,
    MOST_READERS,
    MOST_READS,
    PAUSE_S,
    READABLE,
    RECORDS,
    AccessLog,
    OpenRecord,
)
from redoxfs.fs.open_times import NO_SAMPLE, OpenTimes
from redoxfs.fs.slow_opens import LINES, SlowOpens
from redoxfs.native import Opens, Session
from redoxfs.node.failures import WINDOW_S
from redoxfs.telemetry import Outcome
from redoxfs.telemetry.access_log import BATCH, CONTINUED, HEADER, IDLE, Access, lost_line, parse

SIZE = 1 << 16


@dataclass
class Answers:
    """A session: what each request was answered with, and who was woken."""

    told: dict[int, bytes | int] = field(default_factory=dict)
    woken: list[int] = field(default_factory=list)
    is_awaited: bool = True

    def log_opened(self, unique: int, handle: int) -> bool:
        self._answer(unique, handle)
        return self.is_awaited

    def data(self, unique: int, data: bytes) -> None:
        self._answer(unique, data)

    def failed(self, unique: int, number: int) -> None:
        self._answer(unique, -number)

    def polled(self, unique: int, events: int) -> None:
        self._answer(unique, events)

    def wake(self, waiter: int) -> None:
        self.woken.append(waiter)

    def _answer(self, unique: int, answer: bytes | int) -> None:
        assert unique not in self.told
        self.told[unique] = answer


def access_of(record: OpenRecord) -> Access:
    at_ns, took_ns, inode, _, thread, outcome, error = record
    path = b"%d" % inode
    kind = Outcome(outcome)
    served = None if kind is Outcome.FAILED else path
    return Access(at_ns // 1000 * 1000, thread, kind, took_ns // 1000, path, served, error)


class Logged:
    """An access log, and what its readers got."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.times = OpenTimes()
        self.session = Answers()
        self.log = AccessLog(cast(Session, self.session), self.times.opens, access_of, clock_s=lambda: self.now_s)
        self._unique = 0

    @property
    def opens(self) -> Opens:
        return self.times.opens

    def next(self) -> int:
        self._unique += 1
        return self._unique

    def open(self) -> int:
        """A reader that has taken the header; returns its handle."""
        unique = self.next()
        self.log.open(unique)
        handle = self.session.told[unique]
        assert isinstance(handle, int)
        assert self.read(handle) == HEADER
        return handle

    def wait(self, handle: int, size: int = SIZE) -> int:
        """A read that may wait; returns its number."""
        unique = self.next()
        self.log.read(unique, handle, unique + 1000, size, waits=True)
        return unique

    def read(self, handle: int, size: int = SIZE) -> bytes | int:
        """What a read gets that must not wait."""
        unique = self.next()
        self.log.read(unique, handle, unique + 1000, size, waits=False)
        return self.session.told[unique]

    def all(self, handle: int, size: int = SIZE) -> bytes:
        """All there is."""
        text = b""
        while not isinstance(more := self.read(handle, size), int):
            text += more
        assert more == -errno.EAGAIN
        return text

    def done(self, *inodes: int) -> None:
        """Opens that end now."""
        for inode in inodes:
            self.opens.done(Outcome.RESIDENT, 0, inode, 7, NO_SAMPLE, 0)


def inodes_in(text: bytes) -> list[int]:
    return [int(parse(line).path) for line in text.splitlines(keepends=True) if not line.startswith(b"#")]


def test_nothing_is_recorded_while_nobody_reads() -> None:
    it = Logged()
    it.done(1, 2, 3)
    assert (it.opens.is_recording, it.opens.position) == (False, 0)
    first, second = it.open(), it.open()
    it.done(4)
    it.log.release(first)
    it.done(5)
    it.log.release(second)
    it.done(6, 7)
    assert (it.opens.is_recording, it.opens.position) == (False, 2)
    with pytest.raises(ValueError, match="position"):
        it.opens.records(0, 1)
    it.open()
    assert it.opens.records(0, 10) == (2, [])
    it.done(8)
    lost, (record,) = it.opens.records(1, 10)
    assert (lost, record[2]) == (1, 8)
    it.opens.stop()
    assert it.times.stats()["open_seconds"]["resident"]["count"] == 8


def test_an_open_that_nobody_waits_for_makes_no_reader() -> None:
    it = Logged()
    it.session.is_awaited = False
    it.log.open(1)
    assert not it.opens.is_recording


def test_each_reader_gets_every_line_from_its_open_on() -> None:
    it = Logged()
    first = it.open()
    it.done(1, 2)
    second = it.open()
    it.done(3)
    assert inodes_in(it.all(first)) == [1, 2, 3]
    assert inodes_in(it.all(second)) == [3]
    it.done(4)
    assert inodes_in(it.all(second)) == [4]
    assert inodes_in(it.all(first)) == [4]


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_reads_of_any_size_get_the_whole_lines_in_order(size: int) -> None:
    it = Logged()
    reader = it.open()
    it.done(*range(300))
    assert inodes_in(it.all(reader, size)) == list(range(300))


def test_a_slow_reader_is_told_how_many_lines_it_lost() -> None:
    it = Logged()
    slow, fast = it.open(), it.open()
    for _ in range(3):
        it.done(*range(RECORDS // 2))
        assert len(inodes_in(it.all(fast))) == RECORDS // 2
    text = it.all(slow)
    lost = RECORDS // 2
    assert text.startswith(lost_line(lost))
    assert len(inodes_in(text)) == RECORDS
    assert text.count(b"#") == 1
    it.done(9)
    assert inodes_in(it.all(slow)) == [9]


def test_one_answer_has_a_bounded_number_of_lines() -> None:
    it = Logged()
    reader = it.open()
    it.done(*range(BATCH * 3))
    text = it.read(reader, 1 << 20)
    assert isinstance(text, bytes)
    assert len(inodes_in(text)) == BATCH


def test_a_read_waits_for_the_next_portion_of_lines() -> None:
    it = Logged()
    reader = it.open()
    read = it.wait(reader)
    it.log.answer_waiting()
    assert read not in it.session.told
    it.done(5)
    assert read not in it.session.told
    it.log.answer_waiting()
    answer = it.session.told[read]
    assert isinstance(answer, bytes)
    assert inodes_in(answer) == [5]
    # A full portion is there at once.
    it.done(*range(BATCH))
    assert it.wait(reader) in it.session.told


def test_a_portion_for_short_reads_is_one_wait() -> None:
    it = Logged()
    reader = it.open()
    read = it.wait(reader, 1)
    it.done(*range(BATCH // 2))
    it.log.answer_waiting()
    text = b""
    while read in it.session.told:
        answer = it.session.told[read]
        assert isinstance(answer, bytes)
        text += answer
        read = it.wait(reader, 1)
    assert inodes_in(text) == list(range(BATCH // 2))


def test_a_waiting_read_ends_with_a_signal_and_loses_no_line() -> None:
    it = Logged()
    reader = it.open()
    read = it.wait(reader)
    it.log.interrupt(read + 1000)
    it.log.interrupt(12_345)
    assert it.session.told[read] == -errno.EINTR
    it.done(5)
    it.log.answer_waiting()
    assert inodes_in(it.all(reader)) == [5]


def test_a_read_that_waits_long_gets_a_line_without_an_open() -> None:
    it = Logged()
    read = it.wait(it.open())
    it.now_s += IDLE_S - 0.1
    it.log.answer_waiting()
    assert read not in it.session.told
    it.now_s += 0.1
    it.log.answer_waiting()
    assert it.session.told[read] == IDLE


def test_a_reader_of_single_bytes_gets_the_whole_line_without_an_open() -> None:
    it = Logged()
    reader = it.open()
    read = it.wait(reader, 1)
    it.now_s += IDLE_S
    it.log.answer_waiting()
    assert it.session.told[read] == IDLE[:1]
    it.done(5)
    rest = it.all(reader, 1)
    assert rest.startswith(IDLE[1:])
    assert inodes_in(rest.removeprefix(IDLE[1:])) == [5]


def test_a_poll_says_what_is_there_and_wakes_once() -> None:
    it = Logged()
    reader = it.open()
    it.log.poll(501, reader, 9)
    assert it.session.told[501] == 0
    it.log.answer_waiting()
    assert it.session.woken == []
    it.done(1)
    it.log.answer_waiting()
    it.log.answer_waiting()
    assert it.session.woken == [9]
    it.log.poll(502, reader, 0)
    assert it.session.told[502] == READABLE


def test_readers_and_waiting_reads_have_a_limit() -> None:
    it = Logged()
    readers = [it.open() for _ in range(MOST_READERS)]
    it.log.open(700)
    assert it.session.told[700] == -errno.EBUSY
    assert it.read(1 << 63) == -errno.EBUSY
    for _ in range(MOST_READS):
        assert it.wait(readers[0]) not in it.session.told
    assert it.session.told[it.wait(readers[0])] == -errno.EAGAIN
    it.log.release(readers[0])
    it.open()


def test_a_reader_of_a_former_daemon_goes_on_and_is_told() -> None:
    it = Logged()
    handle = (1 << 63) + 5
    read = it.wait(handle)
    assert it.session.told[read] == CONTINUED
    it.done(1)
    assert inodes_in(it.all(handle)) == [1]
    it.log.release(handle)
    # One that never read here.
    it.log.release((1 << 63) + 6)
    assert not it.opens.is_recording


def test_the_end_gives_waiting_reads_what_is_left_or_the_end_of_file() -> None:
    it = Logged()
    idle = it.wait(it.open())
    it.done(1)
    busy = it.wait(it.open())
    it.log.end(is_followed=False)
    left = it.session.told[idle]
    assert isinstance(left, bytes)
    assert inodes_in(left) == [1]
    assert it.session.told[busy] == b""
    assert not it.opens.is_recording


def test_the_end_leaves_waiting_reads_to_the_next_daemon() -> None:
    it = Logged()
    read = it.wait(it.open())
    it.log.end(is_followed=True)
    assert read not in it.session.told


@pytest.mark.parametrize("is_followed", [False, True])
def test_the_end_wakes_those_who_poll(is_followed: bool) -> None:
    it = Logged()
    for unique, waiter in ((501, 9), (502, 0), (503, 4)):
        it.log.poll(unique, it.open(), waiter)
    it.log.end(is_followed=is_followed)
    assert it.session.woken == [9, 4]


async def test_lines_and_wakes_come_while_the_log_runs(clock: trio.testing.MockClock) -> None:
    clock.autojump_threshold = 0
    it = Logged()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(it.log.run)
        reader = it.open()
        for number in range(3):
            read = it.wait(reader)
            it.done(number)
            await trio.sleep(2 * PAUSE_S)
            answer = it.session.told[read]
            assert isinstance(answer, bytes)
            assert inodes_in(answer) == [number]
        it.log.poll(900, reader, 4)
        it.done(7)
        await trio.sleep(2 * PAUSE_S)
        assert it.session.woken == [4]
        nursery.cancel_scope.cancel()


def fails_at_two(record: OpenRecord) -> Access:
    if record[2] == 2:
        raise IndexError("no such entry")
    return access_of(record)


def test_a_record_that_cannot_be_told_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    it = Logged()
    it.log = AccessLog(cast(Session, it.session), it.opens, fails_at_two)
    reader = it.open()
    it.done(1, 2, 3)
    assert inodes_in(it.all(reader)) == [1, 3]
    assert "a bug in redoxfs" in caplog.text


def test_a_record_that_cannot_be_told_is_no_end_of_the_file(caplog: pytest.LogCaptureFixture) -> None:
    it = Logged()
    it.log = AccessLog(cast(Session, it.session), it.opens, fails_at_two)
    read = it.wait(it.open())
    it.done(2)
    it.log.answer_waiting()
    assert read not in it.session.told
    assert "a bug in redoxfs" in caplog.text
    it.done(3)
    it.log.answer_waiting()
    answer = it.session.told[read]
    assert isinstance(answer, bytes)
    assert inodes_in(answer) == [3]


# Slow opens


def opened(slow_ns: int, record: list[OpenRecord], took_ns: int) -> None:
    opens = OpenTimes(slow_ns / 1e9, record.append).opens
    opens.done(Outcome.DEMAND, time.monotonic_ns() - took_ns, 4711, 7, 3, 0)


def test_only_opens_that_take_as_long_are_slow() -> None:
    slow: list[OpenRecord] = []
    hour_ns = 3600 * 10**9
    opened(hour_ns, slow, hour_ns // 2)
    opened(0, slow, 10 * hour_ns)
    assert slow == []
    opened(hour_ns, slow, 2 * hour_ns)
    (record,) = slow
    assert record[1] >= 2 * hour_ns
    assert record[2:] == (4711, 3, 7, Outcome.DEMAND, 0)


def test_an_error_of_the_log_of_slow_opens_is_not_the_opens() -> None:
    def fails(_: OpenRecord) -> None:
        raise OSError("the disk is full")

    reported: list[object] = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda told: reported.append(told.exc_value)
    try:
        OpenTimes(1e-9, fails).opens.done(Outcome.DEMAND, 0, 1, 1, 1, 0)
    finally:
        sys.unraisablehook = hook
    assert [str(error) for error in reported] == ["the disk is full"]


class Slow:
    """The log of slow opens, at a time that a test chooses."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slow = SlowOpens(access_of, clock_s=lambda: self.now_s)

    def note(self, count: int) -> None:
        for number in range(count):
            self.slow.tell((0, 12_000_000_000, number, 3, 7, Outcome.DEMAND, 0))


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records]


def test_a_slow_open_is_one_warning_with_the_fields_of_a_line(caplog: pytest.LogCaptureFixture) -> None:
    Slow().note(1)
    (record,) = caplog.records
    assert (record.levelno, record.message) == (logging.WARNING, "an open was slow")
    fields = {"pid": 7, "outcome": "demand", "microseconds": 12_000_000, "path": "0", "served": "0"}
    assert record.__dict__["fields"] == fields


async def test_the_count_is_told_when_no_other_open_is_slow(
    caplog: pytest.LogCaptureFixture, clock: trio.testing.MockClock
) -> None:
    clock.autojump_threshold = 0
    slow = SlowOpens(access_of, clock_s=trio.current_time)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slow.run)
        for number in range(LINES + 3):
            slow.tell((0, 12_000_000_000, number, 3, 7, Outcome.DEMAND, 0))
        await trio.sleep(WINDOW_S + 1)
        nursery.cancel_scope.cancel()
    assert events(caplog)[-1] == "more opens were slow"
    assert caplog.records[-1].__dict__["fields"] == {"count": 3}
