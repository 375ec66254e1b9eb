"""The session in C over a node, served on a `wire.Device` as it is on /dev/fuse."""

import socket
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pyfuse3
import trio
import wire
from reference import Mounted, stats
from wire import Device

from redoxfs.chunks import FileBytes
from redoxfs.dataset import Catalog
from redoxfs.fs.handlers import errno_of
from redoxfs.fs.inodes import DATA, branch_and_entry
from redoxfs.fs.operations import Operations
from redoxfs.native import _native as native
from redoxfs.node import Node, OpenFile
from redoxfs.node.node import Handle


class Loop:
    """Carries events of a session to a node, and answers back."""

    def __init__(self, session: native.Session, nursery: trio.Nursery) -> None:
        self._session = session
        self._nursery = nursery
        self._node: Node
        self.ended = trio.Event()

    def attach(self, node: Node) -> None:
        self._node = node

    # Calls of the node

    def bound(self, entries: Sequence[int]) -> None:
        self._session.turned(entries)

    def freed(self, entries: Sequence[int]) -> None:
        self._session.freed(entries)

    def changed(self, entry: int) -> None:
        self._session.ask(entry, True)
        for branch in range(2):
            self._session.changed((branch << 40) + entry + 1)

    async def run(self) -> None:
        while (events := self._session.take(0, 0)) is not None:
            for event in events:
                self._act(*event)
            await trio.lowlevel.checkpoint()
            if not events:
                await trio.lowlevel.wait_readable(self._session.fileno())
        self.ended.set()

    def _act(self, kind: int, unique: int, number: int, thread: int, offset: int, size: int) -> None:
        try:
            if kind == native.OPEN:
                branch, entry = branch_and_entry(number)
                opened = self._node.open(entry, thread) if branch is DATA else self._node.open_exact(entry)
                if isinstance(opened, OpenFile):
                    self._opened(opened, unique, number, thread)
                else:
                    self._later(unique, self._open_late(opened, unique, number, thread))
            elif kind == native.STAT:
                result = self._node.stat(number, thread)
                assert isinstance(result, tuple)
                self._session.stat(unique, number, *result)
            elif kind == native.READ:
                data = self._node.read(number, offset, size)
                if isinstance(data, bytes | memoryview):
                    self._session.data(unique, data)
                else:
                    self._later(unique, self._read_late(data, unique))
            elif kind == native.RELEASE:
                self._node.close(number)
        except Exception as error:
            self._session.failed(unique, errno_of(error))

    def _later(self, unique: int, answering: Coroutine[Any, Any, None]) -> None:
        async def act() -> None:
            try:
                await answering
            except Exception as error:
                self._session.failed(unique, errno_of(error))

        self._nursery.start_soon(act)

    async def _open_late(self, opening: Coroutine[Any, Any, OpenFile], unique: int, number: int, thread: int) -> None:
        self._opened(await opening, unique, number, thread)

    async def _read_late(self, reading: Coroutine[Any, Any, bytes | memoryview], unique: int) -> None:
        self._session.data(unique, await reading)

    def _opened(self, opened: OpenFile, unique: int, inode: int, thread: int) -> None:
        handle = self._node._handles[opened.handle]
        data, size = None, -1
        entry = branch_and_entry(inode)[1]
        if isinstance(handle, Handle):
            file = handle.content.files[handle.file]
            if isinstance(file, FileBytes):
                data, size = native.Buffer(file.data), len(file.data)
            for other in self._node.supply.files_of(handle.path):
                if other != entry:
                    self._session.bind(other, self._node.look(other)[0])
        self._session.opened(unique, inode, thread, opened.handle, data, size, opened.keep_pages, opened.shares_pages)


@asynccontextmanager
async def serving(mounted: Mounted, device: Device) -> AsyncIterator[Catalog]:
    front, back = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    front.setblocking(False)
    for end in (front, back):
        wire.widen(end)
    with mounted.scanned() as (catalog, root_fd), front:
        tree = catalog.tree
        names = ("names", "name_at", "parent", "first_child", "children", "mode", "nlink", "uid", "gid", "size")
        columns = {name: getattr(tree, name) for name in (*names, "mtime_ns", "ctime_ns", "inode")}
        session = native.Session(
            device.fd,
            front.fileno(),
            native.Tree(**columns, sample_of=catalog.sample_of),
            max_read=1 << 20,
            direct_io=mounted.direct_io,
            helpers=0,
        )
        async with trio.open_nursery() as nursery:
            loop = Loop(session, nursery)
            operations = Operations(tree, direct_io=mounted.direct_io, stats=stats, answering=lambda: None)
            async with mounted.node(catalog, root_fd, loop) as node:
                loop.attach(node)
                operations.attach(node)
                # libfuse closes it.
                pyfuse3.init(operations, f"/dev/fd/{back.detach()}", set())
                nursery.start_soon(pyfuse3.main)
                nursery.start_soon(loop.run)
                yield catalog
            nursery.cancel_scope.cancel()
        pyfuse3.close()
        session.close()
