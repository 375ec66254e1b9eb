"""The request loop over a session, without a mount: it starves nothing, and every end is clean."""

import select
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
import trio
import trio.testing
import wire
from packs import catalog_of
from patience import PATIENCE_S, until_in_trio
from stores import HeldFile, HeldStore, NoKernel, running_node
from wire import Device, Reply, Request

from redoxfs.chunks import SourceFile
from redoxfs.dataset import Catalog
from redoxfs.dataset.columns import native_tree
from redoxfs.fs.inodes import DATA, EXACT, branch_and_entry, inode_of
from redoxfs.fs.open_times import OpenTimes
from redoxfs.fs.page_cache import PageCache
from redoxfs.fs.requests import KernelCaches, Requests
from redoxfs.native import Session
from redoxfs.native._native import STAT
from redoxfs.node import Node
from redoxfs.node.callers import Callers
from redoxfs.node.posts import Posts
from redoxfs.node.programs import Programs

THREAD = 1234
COPIER = 77


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    root = tmp_path / "data"
    for label in ("cat", "dog"):
        (root / label).mkdir(parents=True)
        for number in range(8):
            (root / label / f"{number}.jpg").write_bytes(b"x" * 1000)
    return catalog_of(root)


@dataclass
class Serving:
    """A loop that runs, and the kernel's end of its session."""

    device: Device
    store: HeldStore
    node: Node
    requests: Requests
    times: OpenTimes
    has_ended: trio.Event = field(default_factory=trio.Event)

    async def run(self, grace_s: float) -> None:
        await self.requests.run(grace_s)
        self.has_ended.set()

    async def ask(self, request: Request, thread: int = THREAD) -> Reply:
        return await trio.to_thread.run_sync(self.device.ask, request, thread)

    async def reply_to(self, unique: int) -> Reply:
        return await trio.to_thread.run_sync(self.device.reply_to, unique)

    async def wait_for_an_open(self, entry: int) -> int:
        """Send an OPEN that has to wait for storage; returns its number."""
        self.store.gate.clear()
        unique = self.device.send(wire.open_(inode_of(DATA, entry)), THREAD)
        await until_in_trio(lambda: self.node.stats()["waiting_opens"], self.node.stats)
        return unique


@asynccontextmanager
async def serving(catalog: Catalog, grace_s: float = 60.0, *, callers: Callers | None = None) -> AsyncIterator[Serving]:
    caches, store = KernelCaches(), HeldStore(catalog)
    async with running_node(catalog, store, caches, chunk_size=2, share=1, callers=callers) as node:
        with Device() as device:
            session = Session(device.fd, -1, native_tree(catalog), max_read=1 << 20, helpers=0)
            try:
                caches.attach(session)
                begun, times = trio.Event(), OpenTimes()
                requests = Requests(node, session, begun.set, PageCache(), times=times)
                made = Serving(device, store, node, requests, times)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(made.run, grace_s)
                    await made.ask(wire.init())
                    await begun.wait()
                    yield made
                    made.requests.stop()
                    store.gate.set()
            finally:
                session.close()


class BusySession:
    """A session whose kernel has another stat of ``entry`` at any time."""

    MOST_TAKES = 1_000_000
    """Many more than there are in a turn of the loop."""

    def __init__(self, entry: int) -> None:
        self._event = (STAT, 2, entry, THREAD, 0, 0)
        self._epoll = select.epoll()
        self.takes = 0
        self.answers = 0
        self.at_take: Callable[[int], None] = lambda _: None

    def fileno(self) -> int:
        return self._epoll.fileno()

    def watch(self, fd: int) -> None:
        self._epoll.register(fd, select.EPOLLIN)

    def take(self, _look_us: int, _wait_ms: int) -> list[tuple[int, ...]]:
        self.takes += 1
        assert self.takes < self.MOST_TAKES, "no other task had a turn"
        self.at_take(self.takes)
        return [self._event]

    def stat(self, _unique: int, _entry: int, _size: int, _bound: bool) -> None:
        self.answers += 1

    def close(self) -> None:
        self._epoll.close()


async def test_other_tasks_run_while_requests_keep_coming(catalog: Catalog) -> None:
    async with (
        running_node(catalog, HeldStore(catalog), NoKernel(), chunk_size=2, share=1) as node,
        trio.open_nursery() as nursery,
    ):
        session = BusySession(int(catalog.members[0]))
        requests = Requests(node, cast(Session, session), lambda: None, PageCache())
        nursery.start_soon(requests.run, 0.0)
        for _ in range(10):
            await trio.lowlevel.checkpoint()
        requests.stop()
    session.close()
    assert session.answers == session.takes > 0


async def test_what_other_nodes_send_waits_for_one_request_at_most(catalog: Catalog) -> None:
    """And for no turn of other tasks. After the loop trio sees to it."""
    handled: list[int] = []
    async with (
        running_node(catalog, HeldStore(catalog), NoKernel(), chunk_size=2, share=1) as node,
        trio.open_nursery() as nursery,
    ):
        session = BusySession(int(catalog.members[0]))
        requests = Requests(node, cast(Session, session), lambda: None, PageCache())
        # As where a daemon takes over: it joins the others last.
        node.posts = posts = Posts()

        def take(number: int) -> None:
            if 3 <= number < 6:
                posts.post(lambda: handled.append(session.takes))

        session.at_take = take
        nursery.start_soon(requests.run, 0.0)
        await until_in_trio(lambda: len(handled) == 3)
        requests.stop()
        await trio.testing.wait_all_tasks_blocked()
        posts.post(lambda: handled.append(-1))
        await until_in_trio(lambda: len(handled) == 4)
    session.close()
    assert handled == [3, 4, 5, -1]


async def test_an_open_that_waits_holds_up_no_other_request(catalog: Catalog) -> None:
    async with serving(catalog) as it:
        opens = int(catalog.members[0]), int(catalog.members[1])
        waiting = await it.wait_for_an_open(opens[0])
        assert not (await it.ask(wire.lookup(wire.ROOT, b"cat"))).error
        assert not it.device.waiting()
        it.store.gate.set()
        assert not (await it.reply_to(waiting)).error


async def test_at_a_stop_requests_that_wait_still_get_their_answers(catalog: Catalog) -> None:
    async with serving(catalog) as it:
        waiting = await it.wait_for_an_open(int(catalog.members[0]))
        it.requests.stop()
        await trio.testing.wait_all_tasks_blocked()
        assert not it.has_ended.is_set()
        it.store.gate.set()
        assert not (await it.reply_to(waiting)).error
        await it.has_ended.wait()


async def test_what_waits_longer_than_the_grace_is_cancelled(catalog: Catalog) -> None:
    async with serving(catalog, grace_s=0) as it:
        await it.wait_for_an_open(int(catalog.members[0]))
        it.requests.stop()
        await it.has_ended.wait()
        assert it.node.stats()["waiting_opens"] == 0


async def test_what_is_left_to_the_next_process_counts_there(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it is neither an open nor an error."""
    read, open_file = HeldFile.read, HeldStore.open_file
    gate = threading.Event()

    def held_read(file: HeldFile, offset: int, size: int) -> bytes:
        gate.wait(PATIENCE_S)
        return read(file, offset, size)

    def held_open(store: HeldStore, entry: int) -> SourceFile:
        store.gate.wait(PATIENCE_S)
        return open_file(store, entry)

    monkeypatch.setattr(HeldFile, "read", held_read)
    monkeypatch.setattr(HeldStore, "open_file", held_open)
    async with serving(catalog, grace_s=0) as it:
        inode = inode_of(EXACT, int(catalog.members[0]))
        handle = wire.parse_opened((await it.ask(wire.open_(inode))).body).handle
        await it.wait_for_an_open(int(catalog.members[0]))
        it.device.send(wire.open_(inode_of(EXACT, int(catalog.members[1]))), THREAD + 1)
        it.device.send(wire.read(inode, handle, 0, 100), THREAD + 2)

        def waiting() -> tuple[int, int]:
            stats = it.node.stats()
            return stats["waiting_opens"], stats["waiting_reads"]

        await until_in_trio(lambda: waiting() == (2, 1), it.node.stats)
        it.requests.stop()
        await it.has_ended.wait()
        assert waiting() == (0, 0)
        stats = it.node.stats()
        assert (stats["opens"], stats["exact"], stats["errors"]) == (1, 1, 0)
        gate.set()


async def test_the_end_of_the_mount_ends_the_loop_and_what_waits(catalog: Catalog) -> None:
    async with serving(catalog) as it:
        await it.wait_for_an_open(int(catalog.members[0]))
        it.device.end()
        await it.has_ended.wait()
        assert it.node.stats()["waiting_opens"] == 0


async def test_the_end_of_an_idle_mount_ends_the_loop(catalog: Catalog) -> None:
    async with serving(catalog) as it:
        await trio.testing.wait_all_tasks_blocked()
        it.device.end()
        await it.has_ended.wait()


async def test_a_stop_ends_an_idle_loop(catalog: Catalog) -> None:
    async with serving(catalog) as it:
        await trio.testing.wait_all_tasks_blocked()
        it.requests.stop()
        await it.has_ended.wait()


async def test_a_cancelled_loop_leaves_nothing_waiting(catalog: Catalog) -> None:
    with trio.CancelScope() as scope:
        async with serving(catalog) as it:
            await it.wait_for_an_open(int(catalog.members[0]))
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert it.node.stats()["waiting_opens"] == 0


async def test_the_bytes_of_a_cancelled_open_are_not_kept(catalog: Catalog) -> None:
    """Its program was told nothing, so it will close nothing."""
    async with serving(catalog, grace_s=0) as it:
        await it.wait_for_an_open(int(catalog.members[0]))
        it.requests.stop()
        await it.has_ended.wait()
        stats = it.node.stats()
        assert (stats["open_files"], stats["bound"]) == (0, 0)


async def test_opens_beyond_those_that_may_wait_take_their_turn_later(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redoxfs.fs.requests.WAITING_OPENS", 3)
    async with serving(catalog) as it:
        it.store.gate.clear()
        entries = [int(entry) for entry in catalog.members]
        sent = [
            it.device.send(wire.open_(inode_of(DATA, entry)), THREAD + number) for number, entry in enumerate(entries)
        ]
        await until_in_trio(lambda: it.node.stats()["waiting_opens"] == 3, it.node.stats)
        # Requests that wait for nothing are answered, and those beyond the limit have taken no turn.
        assert not (await it.ask(wire.lookup(wire.ROOT, b"cat"))).error
        assert it.node.stats()["waiting_opens"] == it.node.given == 3
        it.store.gate.set()
        for unique in sent:
            assert not (await it.reply_to(unique)).error
        assert it.node.counters.opens == it.node.given == len(entries)
        # Each sample once: what waited for its turn got one.
        assert it.node.stats()["errors"] == 0


async def test_reads_beyond_those_that_may_wait_are_answered_later(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redoxfs.fs.requests.WAITING_READS", 2)
    async with serving(catalog) as it:
        inode = inode_of(EXACT, int(catalog.members[0]))
        handle = wire.parse_opened((await it.ask(wire.open_(inode))).body).handle
        gate, read = threading.Event(), HeldFile.read

        def held(file: HeldFile, offset: int, size: int) -> bytes:
            gate.wait(PATIENCE_S)
            return read(file, offset, size)

        monkeypatch.setattr(HeldFile, "read", held)
        sent = [it.device.send(wire.read(inode, handle, at, 100), THREAD) for at in range(0, 1000, 100)]
        await until_in_trio(lambda: it.node.stats()["waiting_reads"] == 2, it.node.stats)
        assert not (await it.ask(wire.lookup(wire.ROOT, b"cat"))).error
        assert it.node.stats()["waiting_reads"] == 2
        gate.set()
        for unique in sent:
            assert len((await it.reply_to(unique)).body) == 100


async def test_at_a_stop_opens_that_have_no_turn_get_none(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are for the next process."""
    monkeypatch.setattr("redoxfs.fs.requests.WAITING_OPENS", 1)
    async with serving(catalog) as it:
        first = await it.wait_for_an_open(int(catalog.members[0]))
        it.device.send(wire.open_(inode_of(DATA, int(catalog.members[1]))), THREAD + 1)
        assert not (await it.ask(wire.lookup(wire.ROOT, b"cat"))).error
        it.requests.stop()
        it.store.gate.set()
        assert not (await it.reply_to(first)).error
        await it.has_ended.wait()
        assert it.node.given == 1


async def test_an_open_is_counted_by_what_it_waited_for(catalog: Catalog) -> None:
    async with serving(catalog) as it:

        def counts() -> dict[str, int]:
            told = it.times.stats()["open_seconds"]
            return {outcome: times["count"] for outcome, times in told.items() if times["count"]}

        entry = int(catalog.members[0])
        first = await it.wait_for_an_open(entry)
        second = it.device.send(wire.open_(inode_of(DATA, entry)), THREAD + 1)
        await until_in_trio(lambda: it.node.stats()["waiting_opens"] == 2, it.node.stats)
        assert counts() == {}
        it.store.gate.set()
        for unique in (first, second):
            await it.reply_to(unique)
        expected = {"demand": 1, "in_flight": 1}
        assert await settled(counts, expected) == expected
        await it.ask(wire.open_(inode_of(DATA, entry)))
        expected["resident"] = 1
        assert await settled(counts, expected) == expected
        await it.ask(wire.open_(inode_of(EXACT, entry)))
        expected["direct"] = 1
        assert await settled(counts, expected) == expected


class CopierIsTar(Programs):
    """Takes one thread for a program that copies."""

    def name_of(self, thread: int) -> str | None:
        return "tar" if thread == COPIER else None


@asynccontextmanager
async def serving_a_copier(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Serving]:
    """The thread `COPIER` copies. What a program was told is on its way to it until it asks for something else."""
    monkeypatch.setattr("redoxfs.node.node.SETTLES_S", 1e6)
    monkeypatch.setattr("redoxfs.node.node.MOST_SETTLE_S", PATIENCE_S)
    callers = Callers(signal=lambda _thread, _number: None, programs=CopierIsTar())
    async with serving(catalog, callers=callers) as it:
        yield it


def voided(it: Serving) -> list[int]:
    """The inodes of paths whose sizes the kernel was told to be void since the last call."""
    told = [wire.parse_voided(notice)[0] for notice in it.device.notices]
    it.device.notices.clear()
    return [inode for inode in told if branch_and_entry(inode)[0] is DATA]


async def test_a_copy_s_stat_waits_for_the_size_that_the_job_waits_for(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel drops a size that the job asked for before a notice, and cuts the job's read off at an older one."""
    async with serving_a_copier(catalog, monkeypatch) as it:
        entry, other = int(catalog.members[0]), int(catalog.members[1])
        inode = inode_of(DATA, entry)
        opened = wire.parse_opened((await it.ask(wire.open_(inode))).body)
        copied = it.device.send(wire.getattr_(inode), COPIER)

        async def is_undecided() -> bool:
            # Stats are decided in their order.
            await it.ask(wire.getattr_(inode_of(DATA, other)), THREAD + 1)
            return it.device.reply_now(copied) is None and not voided(it)

        assert await is_undecided(), "the job may be about to ask for the size"
        await it.ask(wire.getattr_(inode, opened.handle))
        assert await is_undecided(), "the job may not have woken up with it"
        await it.ask(wire.read(inode, opened.handle, 0, 1))
        reply = await it.reply_to(copied)
        # Before the reply, whose size is not the job's.
        assert set(voided(it)) == {inode}
        assert wire.parse_attributes(reply.body).attr_valid == 0
        # From now on the kernel has the job's size: nothing is dropped that matters.
        await it.ask(wire.getattr_(inode), COPIER)
        assert voided(it) == [inode]
        # Nor does another reader of the job make a size void that the first one may wait for.
        await it.ask(wire.open_(inode), THREAD + 2)
        assert voided(it) == []


async def test_a_copy_begins_when_the_job_has_the_sizes_that_it_was_told(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving_a_copier(catalog, monkeypatch) as it:
        first, second, third = (inode_of(DATA, int(entry)) for entry in catalog.members[:3])
        for inode, thread in ((first, THREAD), (second, THREAD + 1)):
            opened = wire.parse_opened((await it.ask(wire.open_(inode), thread)).body)
            await it.ask(wire.getattr_(inode, opened.handle), thread)
        await it.ask(wire.read(second, opened.handle, 0, 1), THREAD + 1)
        voided(it)
        copied = it.device.send(wire.open_(third), COPIER)
        await it.ask(wire.getattr_(third), THREAD + 2)
        assert it.device.reply_now(copied) is None
        assert voided(it) == [second]
        await it.ask(wire.lookup(wire.ROOT, b"cat"))
        assert not (await it.reply_to(copied)).error
        assert voided(it) == [first]
        # What the job asks for from now on is not kept.
        assert wire.parse_attributes((await it.ask(wire.getattr_(first))).body).attr_valid == 0


async def settled(counts: Callable[[], dict[str, int]], expected: dict[str, int]) -> dict[str, int]:
    """The counts once there are as many as expected: an open is counted just after its reply."""
    await until_in_trio(lambda: sum(counts().values()) >= sum(expected.values()), counts)
    return counts()
