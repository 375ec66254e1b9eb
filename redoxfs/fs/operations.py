"""pyfuse3's operations. They translate requests, and nothing else.

Attributes: the tree does not change, so the kernel may cache names forever, and the attributes of directories,
symlinks and exact files too. Attributes of a redirected file are valid while it is bound. Otherwise each stat is a
request, because the answer depends on the caller. Attributes are invalidated when a path is freed. They are invalidated
again when the path is bound, if the kernel got a size meanwhile: a reply that is still on its way would otherwise be
applied after the opener's own, and leave the kernel with the wrong size.

Pages are dropped when a path is freed, and the open that makes a binding does not keep them. So the page cache never
holds bytes of an answer that is over. A freed path has no handle, so no page of it is being read; otherwise dropping it
would block. The same holds with direct_io: sendfile and splice use the page cache, and the kernel truncates data that
they have sent and that nobody has received if the file becomes shorter while it has the page.

Missing on purpose: xattrs (one ENOSYS saves two requests per file in `ls -l`), flush and access (one ENOSYS).
"""

import errno
import json
import logging
import os
import stat
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from itertools import count, repeat
from typing import Any, NoReturn

import numpy as np
import pyfuse3
from pyfuse3 import EntryAttributes, FileHandleT, FileInfo, FUSEError, InodeT, RequestContext

from redoxfs.dataset import Tree
from redoxfs.fs.handlers import handler
from redoxfs.fs.inodes import (
    BRANCH_NAMES,
    BRANCH_SHIFT,
    CONTROL,
    CONTROL_INODE,
    CONTROL_NAME,
    DATA,
    EXACT,
    FIRST_OUTSIDE_DATA,
    SERVED,
    STATS_INODE,
    STATS_NAME,
    Branch,
    branch_and_entry,
    inode_of,
)
from redoxfs.node import Node, OpenFile

log = logging.getLogger(__name__)

FOREVER_S = 10 * 365 * 24 * 3600.0
"""The timeout of what is valid as long as the mount lives."""

BLOCK_BYTES = 128 * 1024
"""st_blksize: the size of buffered reads. It halves the number of PIL's reads against the default."""

NAMES_AT_ONCE = 256
"""Entries in one reply, which take some 0.3 ms, during which no other request is answered. With half as many a listing
takes a third longer; more entries save hardly anything."""

FEW_NAMES = 16
"""Below this number, entries are as fast one by one as by the column."""

TEXT_HANDLES = 1 << 62
"""Handles of generated files start here, those of the node at 1."""

ROOT = 0


class Operations(pyfuse3.Operations):
    """One mounted node. ``answering`` is called when the kernel has established the mount."""

    enable_writeback_cache = False

    def __init__(
        self, tree: Tree, *, direct_io: bool, stats: Callable[[], dict[str, Any]], answering: Callable[[], None]
    ) -> None:
        super().__init__()
        self._tree = tree
        # A memoryview gives plain ints at a third of numpy's price.
        self._mode: memoryview[int] = tree.mode.data
        self._nlink: memoryview[int] = tree.nlink.data
        self._uid: memoryview[int] = tree.uid.data
        self._gid: memoryview[int] = tree.gid.data
        self._size: memoryview[int] = tree.size.data
        self._mtime_ns: memoryview[int] = tree.mtime_ns.data
        self._ctime_ns: memoryview[int] = tree.ctime_ns.data
        self._blocks = int(tree.size.sum()) // 4096 + 1
        self._attributes_reply = EntryAttributes()
        self._attributes_reply.entry_timeout = FOREVER_S
        self._attributes_reply.st_blksize = BLOCK_BYTES
        # Files whose size the kernel got while they had no answer.
        self._sized_while_free = bytearray(len(tree))
        # As many as fit in a reply: older kernels read a directory by the page, which has room for some 25.
        self._names_at_once = NAMES_AT_ONCE
        self._direct_io = direct_io
        self._stats = stats
        self._answering = answering
        self._node: Node
        self._texts: dict[int, bytes] = {}
        self._next_text = TEXT_HANDLES

    def attach(self, node: Node) -> None:
        """The node to serve; before any request."""
        self._node = node

    # Calls of the node: attributes or pages in the kernel become invalid

    def bound(self, entries: Sequence[int]) -> None:
        for entry in entries:
            if self._sized_while_free[entry]:
                self._sized_while_free[entry] = 0
                self._void(inode_of(DATA, entry), attr_only=True)

    def freed(self, entries: Sequence[int]) -> None:
        for entry in entries:
            self._void(InodeT(entry + 1), attr_only=False)

    def changed(self, entry: int) -> None:
        # The replies to opens handle its pages: a program may be reading them.
        for branch in (DATA, EXACT):
            self._void(inode_of(branch, entry), attr_only=True)

    def _void(self, inode: InodeT, *, attr_only: bool) -> None:
        try:
            pyfuse3.invalidate_inode(inode, attr_only)
        except FileNotFoundError:
            return  # the kernel does not know the inode
        except OSError as error:
            log.warning("the kernel did not invalidate inode %d: %s", inode, error)

    def init(self) -> None:
        self._answering()

    # Names and attributes

    @handler
    def lookup(self, parent_inode: InodeT, name: bytes, ctx: RequestContext) -> EntryAttributes:
        branch, entry = branch_and_entry(parent_inode)
        if branch is CONTROL:
            return self._lookup_control(name)
        if branch is DATA and entry == ROOT and name == CONTROL_NAME:
            return self._directory(CONTROL_INODE)
        child = self._tree.lookup(entry, name)
        if child < 0:
            return _no_such_entry()
        return self._attributes(branch, child)

    @handler
    def getattr(self, inode: InodeT, ctx: RequestContext) -> EntryAttributes | Coroutine[Any, Any, EntryAttributes]:
        branch, entry = branch_and_entry(inode)
        if branch is DATA and self._node.is_redirected(entry):
            result = self._node.stat(entry, ctx.pid)
            return self._redirected(entry, *result) if isinstance(result, tuple) else self._stat_late(entry, result)
        if branch is CONTROL:
            return self._directory(inode) if inode == CONTROL_INODE else self._text(inode, b"")
        return self._attributes(branch, entry)

    async def _stat_late(self, entry: int, stating: Coroutine[Any, Any, tuple[int, bool]]) -> EntryAttributes:
        return self._redirected(entry, *(await stating))

    @handler
    def readlink(self, inode: InodeT, ctx: RequestContext) -> bytes:
        return self._tree.link_target(branch_and_entry(inode)[1])

    # Directories

    @handler
    def opendir(self, inode: InodeT, ctx: RequestContext) -> FileHandleT:
        return FileHandleT(inode)

    @handler
    def readdir(self, fh: FileHandleT, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        branch, entry = branch_and_entry(fh)
        if branch is CONTROL:
            names = (STATS_NAME, *BRANCH_NAMES)
            for position, name in enumerate(names[start_id:], start_id + 1):
                if not pyfuse3.readdir_reply(token, name, self._lookup_control(name), position):
                    return
            return
        children = self._tree.children_of(entry)[start_id : start_id + self._names_at_once]
        reply, listed = pyfuse3.readdir_reply, self._attributes_of(branch, children)
        for name, attributes, position in zip(self._tree.names_of(children), listed, count(start_id + 1), strict=False):
            if not reply(token, name, attributes, position):
                self._names_at_once = max(FEW_NAMES, position - start_id)
                return
        if len(children) == self._names_at_once:
            self._names_at_once = min(2 * self._names_at_once, NAMES_AT_ONCE)

    @handler
    def releasedir(self, fh: FileHandleT) -> None:
        return

    # Files

    @handler
    def open(self, inode: InodeT, flags: int, ctx: RequestContext) -> FileInfo | Coroutine[Any, Any, FileInfo]:
        if inode < FIRST_OUTSIDE_DATA:
            opened = self._node.open(inode - 1, ctx.pid)
            return self._file_info(opened) if isinstance(opened, OpenFile) else self._open_late(opened)
        branch, entry = branch_and_entry(inode)
        if branch is EXACT:
            return self._open_late(self._node.open_exact(entry))
        return self._open_text(self._stats_json() if branch is CONTROL else self._served(entry))

    async def _open_late(self, opening: Coroutine[Any, Any, OpenFile]) -> FileInfo:
        return self._file_info(await opening)

    def _file_info(self, opened: OpenFile) -> FileInfo:
        return FileInfo(opened.handle, self._direct_io or not opened.shares_pages, opened.keep_pages, False)

    @handler
    def read(  # type: ignore[override] # pyfuse3 takes any buffer; a slice of one is not copied
        self, fh: FileHandleT, off: int, size: int
    ) -> bytes | memoryview | Coroutine[Any, Any, bytes | memoryview]:
        if fh >= TEXT_HANDLES:
            return self._texts[fh][off : off + size]
        return self._node.read(fh, off, size)

    @handler
    def release(self, fh: FileHandleT) -> None:
        if fh >= TEXT_HANDLES:
            del self._texts[fh]
        else:
            self._node.close(fh)

    @handler
    def statfs(self, ctx: RequestContext) -> pyfuse3.StatvfsData:
        answer = pyfuse3.StatvfsData()
        answer.f_bsize = answer.f_frsize = 4096
        answer.f_blocks = self._blocks
        answer.f_files = len(self._tree)
        answer.f_namemax = 255
        return answer

    async def forget(self, inode_list: Sequence[tuple[InodeT, int]]) -> None:
        return

    # Attributes of an entry

    def _attributes(self, branch: Branch, entry: int) -> EntryAttributes:
        """The attributes of any tree entry. For no caller: this reserves nothing."""
        if branch is SERVED and not self._tree.is_dir(entry):
            return self._text(inode_of(branch, entry), self._served(entry))
        if branch is DATA and self._node.is_redirected(entry):
            size, bound = self._node.look(entry)
            return self._redirected(entry, size, bound)
        state = self._node.exact_state(entry)
        attributes = self._entry(branch, entry, state.size, FOREVER_S)
        attributes.st_mtime_ns = state.mtime_ns
        return attributes

    def _attributes_of(self, branch: Branch, entries: range) -> Iterator[EntryAttributes]:
        """`_attributes` of each, faster: columns are read at once, and fields that equal the last entry's are not set
        again. Free files get no times, since the kernel asks again before it uses them.
        """
        if branch is SERVED or len(entries) < FEW_NAMES:
            yield from (self._attributes(branch, entry) for entry in entries)
            return
        attributes, node, part = self._attributes_reply, self._node, slice(entries.start, entries.stop)
        free: Iterable[bool] = repeat(False)
        if branch is DATA:
            are_free = node.are_free(entries)
            np.frombuffer(self._sized_while_free, bool)[part] |= are_free
            free = are_free.tolist()
        inodes = range(inode_of(branch, entries.start), inode_of(branch, entries.stop))
        before: tuple[int, ...] = ()
        for entry, inode, size, is_free, owner in zip(
            entries, inodes, self._size[part], free, self._owners(part), strict=False
        ):
            if owner is not before:
                attributes.st_mode, attributes.st_nlink, attributes.st_uid, attributes.st_gid = before = owner
            attributes.st_ino = inode
            if is_free:
                attributes.attr_timeout = 0.0
                attributes.st_size = size
                yield attributes
                continue
            mtime_ns = self._mtime_ns[entry]
            attributes.st_atime_ns = mtime_ns
            if branch is DATA and node.is_redirected(entry):
                size, _ = node.look(entry)
            elif not node.is_as_scanned(entry):
                state = node.exact_state(entry)
                size, mtime_ns = state.size, state.mtime_ns
            attributes.st_mtime_ns = mtime_ns
            attributes.st_ctime_ns = self._ctime_ns[entry]
            attributes.st_size = size
            attributes.st_blocks = -(-size // 512)
            attributes.attr_timeout = FOREVER_S
            yield attributes

    def _owners(self, part: slice) -> Iterable[tuple[int, ...]]:
        """Mode, links, user and group of each entry. Usually all are equal: then the same object each time."""
        tree = self._tree
        columns = [column[part] for column in (tree.mode, tree.nlink, tree.uid, tree.gid)]
        if all((column == column[:1]).all() for column in columns):
            return repeat(tuple(int(value) for column in columns for value in column[:1]))
        return zip(*(column.tolist() for column in columns), strict=True)

    def _redirected(self, entry: int, size: int, bound: bool) -> EntryAttributes:
        if bound:
            return self._entry(DATA, entry, size, FOREVER_S)
        self._sized_while_free[entry] = 1
        return self._entry(DATA, entry, size, 0.0)

    def _entry(self, branch: Branch, entry: int, size: int, attr_timeout_s: float) -> EntryAttributes:
        # One object for all replies: pyfuse3 copies it before other code runs.
        attributes = self._attributes_reply
        attributes.st_ino = (branch << BRANCH_SHIFT) + entry + 1
        attributes.attr_timeout = attr_timeout_s
        attributes.st_mode = self._mode[entry]
        attributes.st_nlink = self._nlink[entry]
        attributes.st_uid = self._uid[entry]
        attributes.st_gid = self._gid[entry]
        attributes.st_size = size
        attributes.st_blocks = -(-size // 512)
        attributes.st_mtime_ns = attributes.st_atime_ns = self._mtime_ns[entry]
        attributes.st_ctime_ns = self._ctime_ns[entry]
        return attributes

    # .redoxfs

    def _lookup_control(self, name: bytes) -> EntryAttributes:
        if name == STATS_NAME:
            # It has no size, like files in /proc: an open generates it, and programs read to its end.
            return self._text(STATS_INODE, b"")
        if name in BRANCH_NAMES:
            return self._attributes(BRANCH_NAMES[name], ROOT)
        return _no_such_entry()

    def _directory(self, inode: InodeT) -> EntryAttributes:
        attributes = self._entry(DATA, ROOT, 0, FOREVER_S)
        attributes.st_ino = inode
        attributes.st_mode = stat.S_IFDIR | 0o555
        return attributes

    def _text(self, inode: InodeT, text: bytes) -> EntryAttributes:
        attributes = self._entry(DATA, ROOT, len(text), 0.0)
        attributes.st_ino = inode
        attributes.st_mode = stat.S_IFREG | 0o444
        attributes.st_nlink = 1
        return attributes

    def _open_text(self, text: bytes) -> FileInfo:
        handle = self._next_text
        self._next_text += 1
        self._texts[handle] = text
        return FileInfo(fh=FileHandleT(handle), direct_io=True, keep_cache=False, nonseekable=False)

    def _served(self, entry: int) -> bytes:
        path = self._node.served(entry)
        return path + b"\n" if path else b""

    def _stats_json(self) -> bytes:
        return json.dumps(self._stats(), indent=2).encode() + os.linesep.encode()


def _no_such_entry() -> EntryAttributes:
    """A negative reply that the kernel caches: the tree does not change."""
    attributes = EntryAttributes()
    attributes.st_ino = InodeT(0)
    attributes.entry_timeout = FOREVER_S
    return attributes


async def _read_only(*_arguments: object) -> NoReturn:
    raise FUSEError(errno.EROFS)


# On a read-only mount the kernel refuses these itself; this is for a mount that was remounted.
MUTATIONS = (
    *("create", "link", "mkdir", "mknod", "removexattr", "rename"),
    *("rmdir", "setattr", "setxattr", "symlink", "unlink", "write"),
)
for _name in MUTATIONS:
    setattr(Operations, _name, _read_only)
