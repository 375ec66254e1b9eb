"""The reference for the session in C: today's meaning of each request, as pyfuse3 and Python give it.

`Reference` starts this file as a program. libfuse serves a socket there in place of /dev/fuse (``/dev/fd/N`` as the
mountpoint), and stock pyfuse3 calls `WholeOperations`, which answers every request itself. A process of its own,
because pyfuse3 has one session in each process, and the session under test has one behind its relay.
"""

import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

import pyfuse3
import trio
from packs import opened
from patience import PATIENCE_S
from pyfuse3 import EntryAttributes, FileHandleT, FileInfo, InodeT, RequestContext

from redoxfs.chunks import DirectoryStore, build_cells, memory_for_share
from redoxfs.dataset import Catalog, build_catalog, read_tree
from redoxfs.fs.handlers import handler
from redoxfs.fs.inodes import DATA, EXACT, branch_and_entry, inode_of
from redoxfs.fs.operations import TEXT_HANDLES, Operations
from redoxfs.node import Node, OpenBefore, OpenFile, plan_slot
from redoxfs.node.callers import Callers
from redoxfs.node.kernel import Kernel


@dataclass(frozen=True, slots=True)
class Mounted:
    """What determines every answer: two nodes of equal `Mounted` give equal answers to equal requests."""

    root: str
    chunk_size: int
    share: float
    seed: int
    grouped: bool
    direct_io: bool
    helpers: int = 0

    @contextmanager
    def scanned(self) -> Iterator[tuple[Catalog, int]]:
        """The catalog, and a descriptor of the root."""
        with opened(self.root) as fd:
            yield build_catalog(read_tree(fd), classes="dir", groups="stem" if self.grouped else None), fd

    @asynccontextmanager
    async def node(self, catalog: Catalog, root_fd: int, kernel: Kernel) -> AsyncIterator[Node]:
        cells = build_cells(catalog.class_of, catalog.sample_bytes, chunk_size=self.chunk_size, seed=self.seed)
        memory_bytes = memory_for_share(cells, catalog.sample_bytes, self.share)
        plan = plan_slot(catalog, cells, memory_bytes=memory_bytes, seed=self.seed)
        node = Node(
            catalog,
            plan,
            DirectoryStore(catalog, root_fd),
            timeout_s=PATIENCE_S,
            kernel=kernel,
            callers=immortal_callers(),
        )
        node.start()
        try:
            yield node
        finally:
            node.stop()


def immortal_callers() -> Callers:
    """Threads whose numbers are never reused and that never end, so that no answer depends on the time."""
    return Callers(clock_s=lambda: 0.0, signal=lambda _thread, _signal: None)


def stats() -> dict[str, Any]:
    """What stats.json holds, on both sides."""
    return {"sessions": "of two kinds"}


class Notices:
    """The node's kernel: passes on what is out of date, by way of pyfuse3."""

    def __init__(self) -> None:
        self.sized_while_free: set[int] = set()

    def reopened(self, handle: OpenBefore) -> None:
        raise AssertionError(f"no node before this one had {handle}")

    def turned(self, entries: Sequence[int]) -> None:
        for entry in entries:
            if entry in self.sized_while_free:
                self.sized_while_free.remove(entry)
                _void(inode_of(DATA, entry), attr_only=True)

    def freed(self, entries: Sequence[int]) -> None:
        for entry in entries:
            _void(inode_of(DATA, entry), attr_only=False)

    def void_size(self, entry: int, settles_s: float) -> bool:
        _void(inode_of(DATA, entry), attr_only=True)
        return True

    def changed(self, entry: int, *, redirected: bool = False) -> None:
        for branch in (EXACT,) if redirected else (DATA, EXACT):
            _void(inode_of(branch, entry), attr_only=True)

    # What follows concerns a session that has answers of its own.

    def bind(self, entry: int, size: int) -> None:
        pass

    def shed(self, entry: int) -> None:
        pass

    def sizes_differ(self, differ: bool) -> None:
        pass

    def unhold(self, thread: int) -> None:
        pass

    def ask(self, entry: int, asks: bool) -> None:
        pass


def _void(inode: InodeT, *, attr_only: bool) -> None:
    with suppress(FileNotFoundError):
        pyfuse3.invalidate_inode(inode, attr_only)


class WholeOperations(Operations):
    """Every request, those too that the session in C keeps to itself."""

    def __init__(self, catalog: Catalog, node: Node, notices: Notices, *, direct_io: bool) -> None:
        super().__init__(catalog.tree, node, stats=stats)
        self._notices = notices
        self._direct_io = direct_io

    async def opendir(self, inode: InodeT, _ctx: RequestContext) -> FileHandleT:
        return FileHandleT(inode)

    async def releasedir(self, _fh: FileHandleT) -> None:
        return

    @handler
    async def open(self, inode: InodeT, flags: int, ctx: RequestContext) -> FileInfo:
        branch, entry = branch_and_entry(inode)
        if branch not in (DATA, EXACT):
            return await super().open(inode, flags, ctx)
        opening = self._node.open(entry, ctx.pid) if branch is DATA else self._node.open_exact(entry)
        opened = opening if isinstance(opening, OpenFile) else await opening
        return FileInfo(
            fh=FileHandleT(opened.handle),
            direct_io=self._direct_io or not opened.shares_pages,
            keep_cache=opened.keep_pages,
            nonseekable=False,
        )

    @handler
    async def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        if fh >= TEXT_HANDLES:
            return await super().read(fh, off, size)
        data = self._node.read(fh, off, size)
        return bytes(await data if isinstance(data, Coroutine) else data)

    @handler
    async def release(self, fh: FileHandleT) -> None:
        if fh >= TEXT_HANDLES:
            await super().release(fh)
        else:
            self._node.close(fh)

    def _redirected(self, entry: int, size: int, bound: bool) -> EntryAttributes:
        if not bound:
            self._notices.sized_while_free.add(entry)
        return super()._redirected(entry, size, bound)


class Reference:
    """The process of the reference. It serves one socket after the other."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()]
            )
        self._control = ours

    @contextmanager
    def serving(self, mounted: Mounted, fd: int) -> Iterator[None]:
        """Answer requests on ``fd`` until the block ends."""
        socket.send_fds(self._control, [json.dumps(asdict(mounted)).encode()], [fd])
        self._must_say(b"s")
        try:
            yield
        finally:
            self._control.send(b"e")
            self._must_say(b"e")

    def _must_say(self, expected: bytes) -> None:
        said = self._control.recv(1)
        if said != expected:
            raise RuntimeError("the process of the reference has failed; its traceback is in the output")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._control.close()
        self._process.wait()


def main(control: socket.socket) -> None:
    while True:
        spec, fds, _, _ = socket.recv_fds(control, 1 << 16, 1)
        if not spec:
            return
        trio.run(serve, Mounted(**json.loads(spec)), fds[0], control)


async def serve(mounted: Mounted, fd: int, control: socket.socket) -> None:
    with mounted.scanned() as (catalog, root_fd):
        notices = Notices()
        async with mounted.node(catalog, root_fd, notices) as node:
            operations = WholeOperations(catalog, node, notices, direct_io=mounted.direct_io)
            pyfuse3.init(operations, f"/dev/fd/{fd}", set())
            control.send(b"s")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pyfuse3.main)
                await trio.lowlevel.wait_readable(control)
                control.recv(1)
                nursery.cancel_scope.cancel()
            pyfuse3.close()
    control.send(b"e")


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
