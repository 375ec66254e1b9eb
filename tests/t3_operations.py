"""The relay's operations, called without a mount: their translation, and their errors."""

import errno
import logging
import os
import stat
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import wraps
from inspect import iscoroutinefunction, signature
from pathlib import Path
from typing import Any, NamedTuple

import pyfuse3
import pytest
import trio
from pyfuse3 import EntryAttributes, FileHandleT, InodeT, RequestContext
from stores import NoKernel, opened_by

from redoxfs.chunks import DirectoryStore, build_cells, memory_for_share
from redoxfs.dataset import Catalog, build_catalog, read_tree
from redoxfs.fs import operations as operations_module
from redoxfs.fs.handlers import errno_of, handler
from redoxfs.fs.inodes import (
    BRANCH_SHIFT,
    CONTROL_INODE,
    SERVED_BY_INODE,
    STATS_INODE,
    Branch,
    branch_and_entry,
    inode_of,
)
from redoxfs.fs.operations import FOREVER_S, INODE_BYTES, Operations
from redoxfs.node import Node, OpenFile, plan_slot

CALLER = RequestContext()


@pytest.fixture
def source(tmp_path: Path) -> Iterator[tuple[Catalog, int]]:
    root = tmp_path / "data"
    for label in ("cat", "dog"):
        (root / label).mkdir(parents=True)
        for number in range(4):
            (root / label / f"{number}.jpg").write_bytes(label.encode() * (number + 1))
    (root / "dog/1.jpg").chmod(0o600)
    (root / "README").write_text("read me")
    (root / "link").symlink_to("README")
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    yield build_catalog(read_tree(fd), classes="dir", samples=("[0-9].jpg",)), fd
    os.close(fd)


class Served(NamedTuple):
    ops: Operations
    node: Node

    async def open(self, entry: int) -> OpenFile:
        """What the request loop does; the kernel's caller is the same thread each time."""
        return await opened_by(self.node, entry, CALLER.pid)


@asynccontextmanager
async def operations(source: tuple[Catalog, int]) -> AsyncIterator[Served]:
    catalog, fd = source
    sizes = (catalog.class_of, catalog.sample_bytes)
    cells = build_cells(*sizes, chunk_size=2, seed=0)
    memory = memory_for_share(cells, sizes[1], 0.25)
    plan = plan_slot(catalog, cells, memory_bytes=memory, seed=0)
    node = Node(catalog, plan, DirectoryStore(catalog, fd), timeout_s=10, kernel=NoKernel())
    node.start()
    try:
        yield Served(Operations(catalog.tree, node, stats=lambda: {"a": 1}), node)
    finally:
        node.stop()


def entry_at(source: tuple[Catalog, int], path: str) -> int:
    return source[0].tree.find(path.encode())


def test_inode_numbers_encode_branch_and_entry() -> None:
    assert inode_of(Branch.DATA, 0) == pyfuse3.ROOT_INODE
    for branch in (Branch.DATA, Branch.EXACT, Branch.SERVED):
        for entry in (0, 1, 13_000_000, (1 << 40) - 2):
            assert branch_and_entry(inode_of(branch, entry)) == (branch, entry)
    assert {branch_and_entry(inode)[0] for inode in (CONTROL_INODE, STATS_INODE)} == {Branch.CONTROL}


async def test_a_number_that_is_no_inode_of_a_file_names_none(source: tuple[Catalog, int]) -> None:
    async with operations(source) as (ops, _):
        control = (await ops.open(SERVED_BY_INODE, os.O_RDONLY, CALLER)).fh

        async def named(inode: int) -> bytes:
            return await ops.read(control, inode * INODE_BYTES, INODE_BYTES)

        last = len(source[0].tree) - 1
        assert await named(inode_of(Branch.EXACT, last)) == source[0].tree.path(last)
        first = [branch << BRANCH_SHIFT for branch in (*Branch, len(Branch), 1 << 10)]
        for inode in (*first, inode_of(Branch.DATA, last + 1), inode_of(Branch.EXACT, last + 1), STATS_INODE):
            with pytest.raises(pyfuse3.FUSEError) as raised:
                await named(inode)
            assert raised.value.errno == errno.EINVAL


async def test_redirected_attributes_are_cached_only_while_bound(source: tuple[Catalog, int]) -> None:
    async with operations(source) as served:
        entry = entry_at(source, "cat/2.jpg")
        inode = inode_of(Branch.DATA, entry)
        assert (await served.ops.getattr(inode, CALLER)).attr_timeout == 0
        opened = await served.open(entry)
        bound = await served.ops.getattr(inode, CALLER)
        assert (bound.attr_timeout, bound.st_size) == (FOREVER_S, opened.size)
        served.node.close(opened.handle)
        assert (await served.ops.getattr(inode, CALLER)).attr_timeout == 0


async def test_all_other_attributes_are_cached_for_ever(source: tuple[Catalog, int]) -> None:
    async with operations(source) as (ops, _):
        for path, kind in (("cat", stat.S_ISDIR), ("README", stat.S_ISREG), ("link", stat.S_ISLNK)):
            told = await ops.lookup(pyfuse3.ROOT_INODE, path.encode(), CALLER)
            assert kind(told.st_mode)
            assert (told.entry_timeout, told.attr_timeout) == (FOREVER_S, FOREVER_S)
        absent = await ops.lookup(pyfuse3.ROOT_INODE, b"absent", CALLER)
        assert (absent.st_ino, absent.entry_timeout) == (0, FOREVER_S)
        link = inode_of(Branch.DATA, entry_at(source, "link"))
        assert await ops.readlink(link, CALLER) == b"README"


@pytest.mark.parametrize("branch", [Branch.DATA, Branch.EXACT, Branch.SERVED])
async def test_a_listing_has_the_attributes_of_lookups(
    source: tuple[Catalog, int], branch: Branch, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: dict[bytes, Mapping[str, int]] = {}

    def reply(_token: object, name: bytes, told: EntryAttributes, _position: int) -> bool:
        listed[name] = told.__getstate__()
        return True

    monkeypatch.setattr(pyfuse3, "readdir_reply", reply)
    async with operations(source) as served:
        # Some files are bound, and an exact file has grown since the scan.
        os.write(grown := os.open("README", os.O_WRONLY | os.O_APPEND, dir_fd=source[1]), b", longer")
        os.close(grown)
        bound = ["cat/0.jpg", "cat/1.jpg", "cat/3.jpg", "dog/1.jpg", "dog/2.jpg"]
        for path in (*bound, "README"):
            await served.open(entry_at(source, path))
        for path in ("", "cat", "dog"):
            listed.clear()
            folder = inode_of(branch, entry_at(source, path))
            await served.ops.readdir(FileHandleT(folder), 0, None)  # type: ignore[arg-type]
            assert len(listed) == 4
            if branch is Branch.DATA and path:
                ours = {f"{path}/{os.fsdecode(name)}" for name, told in listed.items() if told["attr_timeout"]}
                assert ours == {name for name in bound if name.startswith(path)}
            if branch is not Branch.SERVED and not path:
                assert listed[b"README"]["st_size"] == len("read me, longer")
            for name, told in listed.items():
                assert told == (await served.ops.lookup(folder, name, CALLER)).__getstate__()


@pytest.mark.parametrize("most", [1, 3, 4, 5])
def test_a_listing_continues_after_a_full_reply(
    source: tuple[Catalog, int], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, listed = 0, list[tuple[bytes, int]]()

    def reply(_token: object, name: bytes, _told: EntryAttributes, position: int) -> bool:
        if len(listed) == room:
            return False
        listed.append((name, position))
        return True

    async def main() -> None:
        nonlocal room
        async with operations(source) as (ops, _):
            folder = FileHandleT(inode_of(Branch.DATA, entry_at(source, "cat")))
            for at_a_time in (3, 1, 2, 1, 4, 5):
                listed.clear()
                before = -1
                while before < (before := len(listed)):
                    room = before + at_a_time
                    await ops.readdir(folder, listed[-1][1] if listed else 0, None)  # type: ignore[arg-type]
                assert [name for name, _ in listed] == [b"0.jpg", b"1.jpg", b"2.jpg", b"3.jpg"]

    monkeypatch.setattr(pyfuse3, "readdir_reply", reply)
    monkeypatch.setattr(operations_module, "MOST_NAMES", most)
    trio.run(main)


async def test_the_control_folder_is_only_at_the_root(source: tuple[Catalog, int]) -> None:
    async with operations(source) as (ops, _):
        control = await ops.lookup(pyfuse3.ROOT_INODE, b".redoxfs", CALLER)
        assert control.st_ino == CONTROL_INODE
        inner = inode_of(Branch.DATA, entry_at(source, "cat"))
        assert (await ops.lookup(inner, b".redoxfs", CALLER)).st_ino == 0
        stats = await ops.lookup(InodeT(control.st_ino), b"stats.json", CALLER)
        opened = await ops.open(InodeT(stats.st_ino), os.O_RDONLY, CALLER)
        assert opened.direct_io
        assert bytes(await ops.read(FileHandleT(opened.fh), 0, 4096)) == b'{\n  "a": 1\n}\n'


async def test_a_text_of_a_former_daemon_is_stale(source: tuple[Catalog, int]) -> None:
    async with operations(source) as (former, node):
        open_before = FileHandleT((await former.open(STATS_INODE, os.O_RDONLY, CALLER)).fh)
        ops = Operations(source[0].tree, node, stats=lambda: {"b": 2})
        opened = FileHandleT((await ops.open(STATS_INODE, os.O_RDONLY, CALLER)).fh)
        with pytest.raises(pyfuse3.FUSEError) as failure:
            await ops.read(open_before, 0, 4096)
        assert failure.value.errno == errno.ESTALE
        await ops.release(open_before)
        assert bytes(await ops.read(opened, 0, 4096)) == b'{\n  "b": 2\n}\n'


class BrokenNode:
    """An object whose every method is a bug."""

    def __getattr__(self, name: str) -> Callable[..., object]:
        def raises(*_arguments: object) -> object:
            raise ZeroDivisionError(name)

        return raises


CALLS: dict[str, Callable[[Operations, int], Coroutine[Any, Any, object]]] = {
    "lookup": lambda ops, _entry: ops.lookup(pyfuse3.ROOT_INODE, b"README", CALLER),
    "getattr": lambda ops, entry: ops.getattr(inode_of(Branch.DATA, entry), CALLER),
    "readlink": lambda ops, _entry: ops.readlink(InodeT(1 << 39), CALLER),
    "readdir": lambda ops, _entry: ops.readdir(FileHandleT(1), 0, None),  # type: ignore[arg-type]
    "open": lambda ops, entry: ops.open(inode_of(Branch.SERVED, entry), os.O_RDONLY, CALLER),
    "open of no text": lambda ops, entry: ops.open(inode_of(Branch.DATA, entry), os.O_RDONLY, CALLER),
    "read": lambda ops, _entry: ops.read(FileHandleT(7), 0, 10),
    "release": lambda ops, _entry: ops.release(FileHandleT(7)),
    "statfs": lambda ops, _entry: ops.statfs(CALLER),
}

OPERATIONS = sorted(name for name, what in vars(pyfuse3.Operations).items() if iscoroutinefunction(what))
"""All operations that any version of pyfuse3 may call."""

HANDLED = sorted(name for name in OPERATIONS if hasattr(getattr(Operations, name), "__wrapped__"))

LEFT_OUT = {
    *("access", "flush", "fsync", "fsyncdir", "getxattr", "listxattr", "opendir", "poll", "releasedir"),
    *("create", "link", "mkdir", "mknod", "removexattr", "rename"),
    *("rmdir", "setattr", "setxattr", "symlink", "unlink", "write"),
}
"""The session answers these itself, the changes with EROFS and most others with ENOSYS."""


@pytest.mark.parametrize("name", CALLS)
def test_a_bug_in_a_handler_is_eio_and_one_log_line(
    source: tuple[Catalog, int], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with operations(source) as (ops, _):
            ops._node = BrokenNode()  # type: ignore[assignment]
            ops._tree = BrokenNode()  # type: ignore[assignment]
            ops._texts = BrokenNode()  # type: ignore[assignment]
            with pytest.raises(pyfuse3.FUSEError) as raised:
                await CALLS[name](ops, entry_at(source, "cat/2.jpg"))
            assert raised.value.errno == errno.EIO

    with caplog.at_level(logging.WARNING):
        trio.run(main)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert caplog.records[0].exc_info


def test_every_operation_is_a_handler_or_the_session_answers_it() -> None:
    assert {*HANDLED, *LEFT_OUT, "forget"} == {*OPERATIONS, *LEFT_OUT}
    assert not set(HANDLED) & {*LEFT_OUT, "forget"}
    assert {name.split()[0] for name in CALLS} == set(HANDLED)


@pytest.mark.parametrize("name", sorted(LEFT_OUT & set(OPERATIONS)))
async def test_missing_operations_are_enosys(source: tuple[Catalog, int], name: str) -> None:
    async with operations(source) as (ops, _):
        with pytest.raises(pyfuse3.FUSEError) as raised:
            await getattr(ops, name)(*[None] * len(signature(getattr(ops, name)).parameters))
        assert raised.value.errno == errno.ENOSYS


@pytest.mark.parametrize("late", [False, True], ids=["at once", "after a wait"])
@pytest.mark.parametrize("name", HANDLED)
def test_any_exception_of_a_handler_is_eio_and_one_log_line(
    name: str, late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The handler itself raises, before it answers or after it has suspended."""
    whole = getattr(Operations, name).__wrapped__

    @wraps(whole)
    async def raises(*_arguments: object) -> None:
        if late:
            await trio.lowlevel.checkpoint()
        raise ZeroDivisionError(name)

    async def main() -> None:
        with pytest.raises(pyfuse3.FUSEError) as raised:
            await handler(raises)(*[None] * len(signature(whole).parameters))
        assert raised.value.errno == errno.EIO

    with caplog.at_level(logging.WARNING):
        trio.run(main)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert caplog.records[0].exc_info
    assert isinstance(caplog.records[0].exc_info[1], ZeroDivisionError)


def test_exceptions_have_their_errno(caplog: pytest.LogCaptureFixture) -> None:
    assert errno_of(PermissionError(errno.EACCES, "no")) == errno.EACCES
    assert errno_of(OSError("no number")) == errno.EIO
    assert errno_of(trio.TooSlowError()) == errno.EIO
    assert not caplog.records
    assert errno_of(ValueError("a bug")) == errno.EIO
    assert len(caplog.records) == 1
