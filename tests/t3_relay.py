"""Stock pyfuse3 behind the relay's socket: what the session forwards gets an answer, and the end is clean."""

import errno
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
import wire
from pyfuse3 import RequestContext, StatvfsData
from reference import Mounted, stats
from stores import NoKernel
from wire import Reply, Request

from redoxfs.fs import relay as relay_module
from redoxfs.fs.inodes import (
    ACCESS_LOG_INODE,
    BATCHES_INODE,
    CONTROL_INODE,
    SERVED_BY_INODE,
    SERVED_BY_INODE_NAME,
    STATS_INODE,
    Branch,
    inode_of,
)
from redoxfs.fs.operations import FOREVER_S, Operations
from redoxfs.fs.relay import TASKS, Relay

USUAL_ROOM_BYTES = 212_992
"""net.core.wmem_max, unless somebody has changed it."""


class SlowOperations(Operations):
    """statfs waits until ``gate`` is open."""

    gate: trio.Event

    async def statfs(self, ctx: RequestContext) -> StatvfsData:
        await self.gate.wait()
        return await super().statfs(ctx)


class Asking:
    """Plays the session: numbers requests, and receives replies."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self._unique = 0

    def send(self, request: Request) -> int:
        self._unique += 1
        os.write(self.relay.fd, request.message(self._unique))
        return self._unique

    def receive(self) -> Reply:
        return wire.parse_reply(os.read(self.relay.fd, wire.MESSAGE_BYTES))

    async def ask(self, request: Request) -> bytes:
        """The body of the answer, which is not an error."""
        reply = await self.reply(request)
        assert reply.error == 0
        return reply.body

    async def reply(self, request: Request) -> Reply:
        unique = self.send(request)
        await trio.lowlevel.wait_readable(self.relay.fd)
        reply = self.receive()
        assert reply.unique == unique
        return reply


@asynccontextmanager
async def relayed(root: Path) -> AsyncIterator[tuple[Asking, SlowOperations]]:
    """A relay that runs and has had its INIT."""
    root.mkdir()
    for label in ("cat", "dog"):
        (root / label).mkdir()
        for number in range(4):
            (root / label / f"{number}.jpg").write_bytes(bytes(number))
    (root / "link").symlink_to("README")
    mounted = Mounted(os.fspath(root), chunk_size=2, share=1, seed=0, grouped=False, direct_io=False)
    with mounted.scanned() as (catalog, root_fd):
        async with mounted.node(catalog, root_fd, NoKernel()) as node, trio.open_nursery() as nursery:
            operations = SlowOperations(catalog.tree, node, stats=stats)
            operations.gate = trio.Event()
            operations.gate.set()
            relay = Relay(operations)
            nursery.start_soon(relay.run)
            asking = Asking(relay)
            assert wire.parse_init(await asking.ask(wire.init())).major == 7
            yield asking, operations
            relay.stop()
    relay.close()


async def test_pyfuse3_answers_what_the_session_forwards(tmp_path: Path) -> None:
    async with relayed(tmp_path / "data") as (session, _):
        control = wire.parse_entry(await session.ask(wire.lookup(wire.ROOT, b".redoxfs")))
        assert (control.inode, control.entry_valid) == (CONTROL_INODE, FOREVER_S)
        listing = await session.ask(wire.readdirplus(CONTROL_INODE, CONTROL_INODE, 0, 4096))
        names = {dirent.name: dirent.inode for dirent in wire.parse_dirents(listing, plus=True)}
        roots = {b"exact": inode_of(Branch.EXACT, 0), b"served": inode_of(Branch.SERVED, 0)}
        files = {b"stats.json": STATS_INODE, b"accesslog": ACCESS_LOG_INODE, SERVED_BY_INODE_NAME: SERVED_BY_INODE}
        assert names == {**files, b"batches": BATCHES_INODE, **roots}
        opened = wire.parse_opened(await session.ask(wire.open_(STATS_INODE)))
        assert opened.flags == wire.FOPEN_DIRECT_IO
        text = await session.ask(wire.read(STATS_INODE, opened.handle, 0, 4096))
        assert b"of two kinds" in text
        assert await session.ask(wire.read(STATS_INODE, opened.handle, 3, 5)) == text[3:8]
        assert await session.ask(wire.read(STATS_INODE, opened.handle, len(text), 4096)) == b""
        assert await session.ask(wire.release(STATS_INODE, opened.handle)) == b""
        (link,) = [
            dirent.inode
            for dirent in wire.parse_dirents(
                await session.ask(wire.readdirplus(wire.ROOT, wire.ROOT, 0, 4096)), plus=True
            )
            if dirent.name == b"link"
        ]
        assert await session.ask(wire.readlink(link)) == b"README"
        assert await session.ask(wire.statfs())
        assert (await session.reply(wire.getxattr(wire.ROOT, b"user.x"))).error == errno.ENOSYS


@pytest.mark.parametrize("is_root", [False, True])
async def test_the_replies_to_all_waiting_requests_fit(
    tmp_path: Path, is_root: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads them meanwhile. If they did not fit, pyfuse3 would block the thread that has to read them."""

    def make_room(end: socket.socket) -> None:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, USUAL_ROOM_BYTES)

    if not is_root:
        monkeypatch.setattr(relay_module, "_make_room", make_room)
    async with relayed(tmp_path / "data") as (session, operations):
        operations.gate = trio.Event()
        sent = []
        for _ in range(TASKS - 1):
            sent.append(session.send(wire.statfs()))
            await trio.testing.wait_all_tasks_blocked()
        # A task is left for this one.
        listing = await session.ask(wire.readdirplus(wire.ROOT, wire.ROOT, 0, 4096))
        assert len(list(wire.parse_dirents(listing, plus=True))) == 3
        operations.gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(session.receive().unique for _ in sent) == sent


async def test_the_longest_reply_fits(tmp_path: Path) -> None:
    text = "x" * (64 << 10)
    async with relayed(tmp_path / "data") as (session, operations):
        operations._stats = lambda: {"long": text}
        opened = wire.parse_opened(await session.ask(wire.open_(STATS_INODE)))
        assert len(await session.ask(wire.read(STATS_INODE, opened.handle, 0, len(text)))) == len(text)


async def test_the_relay_ends_once_waiting_requests_have_answers(tmp_path: Path) -> None:
    async with relayed(tmp_path / "data") as (session, operations):
        operations.gate = trio.Event()
        sent = session.send(wire.statfs())
        await trio.testing.wait_all_tasks_blocked()
        session.relay.stop()
        await trio.testing.wait_all_tasks_blocked()
        operations.gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert session.receive().unique == sent


def test_relays_come_and_go_without_a_trace(tmp_path: Path) -> None:
    async def main(root: Path) -> None:
        async with relayed(root) as (session, _):
            assert await session.ask(wire.statfs())

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    trio.run(main, tmp_path / "first")
    before = descriptors()
    for number in range(5):
        trio.run(main, tmp_path / str(number))
    # Garbage of other tests may have held one before.
    assert descriptors() <= before


async def test_a_cancelled_relay_can_be_closed(tmp_path: Path) -> None:
    with trio.CancelScope() as scope:
        async with relayed(tmp_path / "data") as (session, operations):
            operations.gate = trio.Event()
            session.send(wire.statfs())
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    session.relay.close()
