"""pyfuse3's operations: every request that the session does not answer itself.

These are `.redoxfs`, statfs, symlinks, extended attributes, and names and attributes of files that have changed since
the scan. None of it is fast, and nothing here tries to be: one general path serves any entry of any branch.

Attributes: the tree does not change, so the kernel may cache names forever, and the attributes of directories,
symlinks and exact files too. Attributes of a redirected file are valid while it is bound. Otherwise each stat is a
request, because the answer depends on the caller.

Missing are operations that the session answers itself: opendir, all that would change something, and those for which
the kernel gets ENOSYS once and then does not ask again: xattrs, which saves two requests per file in `ls -l`, flush and
access. The handle of a directory is its inode number.
"""

import errno
import json
import os
import re
import stat
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any

import pyfuse3
from pyfuse3 import EntryAttributes, FileHandleT, FileInfo, InodeT, RequestContext

from redoxfs.dataset import Tree
from redoxfs.fs.handlers import handler
from redoxfs.fs.inodes import (
    ACCESS_LOG_INODE,
    ACCESS_LOG_NAME,
    BATCHES_INODE,
    BATCHES_NAME,
    BRANCH_NAMES,
    CONTROL,
    CONTROL_INODE,
    CONTROL_NAME,
    DATA,
    EXACT,
    HISTORY_INODE,
    HISTORY_NAME,
    MARK_INODE,
    SERVED,
    SERVED_BY_INODE,
    SERVED_BY_INODE_NAME,
    STATS_INODE,
    STATS_NAME,
    Branch,
    branch_and_entry,
    inode_of,
)
from redoxfs.node import Node
from redoxfs.node.recent import Batch

FOREVER_S = 10 * 365 * 24 * 3600.0
"""The timeout of what is valid as long as the mount lives."""

BLOCK_BYTES = 128 * 1024
"""st_blksize: the size of buffered reads. It halves the number of PIL's reads against the default."""

MOST_NAMES = 512
"""Entries to consider for one reply, which has room for some 400."""

TEXT_HANDLES = 1 << 62
"""Handles of texts are above this, so that none is taken for a handle of the node."""

NAMED = {
    STATS_NAME: STATS_INODE,
    HISTORY_NAME: HISTORY_INODE,
    SERVED_BY_INODE_NAME: SERVED_BY_INODE,
    ACCESS_LOG_NAME: ACCESS_LOG_INODE,
    BATCHES_NAME: BATCHES_INODE,
}

ANSWERS_HANDLE = TEXT_HANDLES
"""The handle of every open of served-by-inode, which needs no text of its own. It outlives a daemon."""

INODE_BYTES = 4096
"""The space of an inode in served-by-inode: the longest path."""

ROOT = 0

_BATCH = re.compile(rb"(\d{1,18})-(\d{1,18})-(\d{1,18})")


class Operations(pyfuse3.Operations):
    """The requests of one mount that the session forwards.

    ``stats``    the content of stats.json
    ``history``  the text of history.json; None: there is no such file
    """

    enable_writeback_cache = False

    def __init__(
        self,
        tree: Tree,
        node: Node,
        *,
        stats: Callable[[], dict[str, Any]],
        history: Callable[[], Awaitable[bytes]] | None = None,
    ) -> None:
        super().__init__()
        self._tree = tree
        self._node = node
        self._stats = stats
        self._history = history
        self._named = {name: inode for name, inode in NAMED.items() if history is not None or inode != HISTORY_INODE}
        self._blocks = int(tree.size.sum()) // 4096 + 1
        self._texts: dict[int, bytes] = {}
        # A program may have a text of a former daemon of the mount open. So no daemon gives a handle of another.
        self._next_text = TEXT_HANDLES + 1 + time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    # Names and attributes

    @handler
    async def lookup(self, parent_inode: InodeT, name: bytes, ctx: RequestContext) -> EntryAttributes:
        branch, entry = branch_and_entry(parent_inode)
        if parent_inode == BATCHES_INODE:
            return self._mark(name, ctx.pid)
        if branch is CONTROL:
            return self._lookup_control(name)
        if branch is DATA and entry == ROOT and name == CONTROL_NAME:
            return self._directory(CONTROL_INODE)
        child = self._tree.lookup(entry, name)
        if child < 0:
            return _no_such_entry()
        return self._attributes(branch, child)

    @handler
    async def getattr(self, inode: InodeT, ctx: RequestContext) -> EntryAttributes:
        branch, entry = branch_and_entry(inode)
        if branch is CONTROL:
            return self._control(inode)
        if branch is DATA and self._node.is_redirected(entry):
            result = self._node.stat(entry, ctx.pid)
            return self._redirected(entry, *(result if isinstance(result, tuple) else await result))
        return self._attributes(branch, entry)

    @handler
    async def readlink(self, inode: InodeT, ctx: RequestContext) -> bytes:
        return self._tree.link_target(branch_and_entry(inode)[1])

    # Directories

    @handler
    async def readdir(self, fh: FileHandleT, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        branch, entry = branch_and_entry(fh)
        if fh == BATCHES_INODE:
            return
        if branch is CONTROL:
            names = (*self._named, *BRANCH_NAMES)
            for position, name in enumerate(names[start_id:], start_id + 1):
                if not pyfuse3.readdir_reply(token, name, self._lookup_control(name), position):
                    return
            return
        children = self._tree.children_of(entry)[start_id : start_id + MOST_NAMES]
        for name, child, position in zip(self._tree.names_of(children), children, count(start_id + 1), strict=False):
            if not pyfuse3.readdir_reply(token, name, self._attributes(branch, child), position):
                return

    # Texts: the files of `.redoxfs` that are generated

    @handler
    async def open(self, inode: InodeT, flags: int, ctx: RequestContext) -> FileInfo:
        branch, entry = branch_and_entry(inode)
        if branch not in (SERVED, CONTROL):
            raise ValueError(f"the session forwarded an open of inode {inode}, which it answers itself")
        if inode == SERVED_BY_INODE:
            return FileInfo(fh=FileHandleT(ANSWERS_HANDLE), direct_io=True, keep_cache=False, nonseekable=False)
        handle = self._next_text
        self._next_text += 1
        if inode == HISTORY_INODE and self._history is not None:
            self._texts[handle] = await self._history()
        else:
            self._texts[handle] = self._stats_json() if branch is CONTROL else self._served(entry)
        return FileInfo(fh=FileHandleT(handle), direct_io=True, keep_cache=False, nonseekable=False)

    @handler
    async def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        if fh == ANSWERS_HANDLE:
            return self._served_by_inode(*divmod(off, INODE_BYTES))[:size]
        text = self._texts.get(fh)
        if text is None:
            raise OSError(errno.ESTALE, "a former daemon generated this text")
        return text[off : off + size]

    @handler
    async def release(self, fh: FileHandleT) -> None:
        # A former daemon may have generated it.
        self._texts.pop(fh, None)

    @handler
    async def statfs(self, ctx: RequestContext) -> pyfuse3.StatvfsData:
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
        state = self._node.exact.state(entry)
        attributes = self._entry(branch, entry, state.size, FOREVER_S)
        attributes.st_mtime_ns = state.mtime_ns
        return attributes

    def _redirected(self, entry: int, size: int, bound: bool) -> EntryAttributes:
        return self._entry(DATA, entry, size, FOREVER_S if bound and not self._node.copying else 0.0)

    def _entry(self, branch: Branch, entry: int, size: int, attr_timeout_s: float) -> EntryAttributes:
        tree, attributes = self._tree, EntryAttributes()
        attributes.entry_timeout = FOREVER_S
        attributes.attr_timeout = attr_timeout_s
        attributes.st_ino = inode_of(branch, entry)
        access = self._node.permissions.of(entry)
        attributes.st_mode = stat.S_IFMT(int(tree.mode[entry])) | access.mode
        attributes.st_nlink = int(tree.nlink[entry])
        attributes.st_uid, attributes.st_gid = access.uid, access.gid
        attributes.st_size = size
        attributes.st_blksize = BLOCK_BYTES
        attributes.st_blocks = -(-size // 512)
        attributes.st_mtime_ns = attributes.st_atime_ns = int(tree.mtime_ns[entry])
        attributes.st_ctime_ns = int(tree.ctime_ns[entry])
        return attributes

    # .redoxfs

    def _lookup_control(self, name: bytes) -> EntryAttributes:
        if name in self._named:
            return self._control(self._named[name])
        if name in BRANCH_NAMES:
            return self._attributes(BRANCH_NAMES[name], ROOT)
        return _no_such_entry()

    def _control(self, inode: InodeT) -> EntryAttributes:
        """The attributes of `.redoxfs`, and of its files."""
        if inode == CONTROL_INODE:
            return self._directory(inode)
        if inode == BATCHES_INODE:
            # For the owner alone: other users could push the owner's batches out of the table.
            return _owners(self._directory(inode), 0o500)
        # They have no size, like files in /proc: an open generates them, and programs read to their end.
        attributes = self._text(inode, b"")
        # The access log tells what others open, and is served by the session and the request loop
        # (`redoxfs.fs.access_log`). The other names files of any directory. Others read `.redoxfs/served`, which keeps
        # the modes of directories.
        return _owners(attributes, 0o400) if inode in (ACCESS_LOG_INODE, SERVED_BY_INODE) else attributes

    def _mark(self, name: bytes, thread: int) -> EntryAttributes:
        """A worker of a loader begins the batch ``name``: TOKEN-ITERATION-NUMBER. The kernel caches no such name."""
        if not thread:
            raise OSError(errno.EPERM, "its pid namespace cannot be seen from here")
        match = _BATCH.fullmatch(name)
        if match is None:
            return _no_such_entry()
        self._node.recent.mark(thread, Batch(*map(int, match.groups())))
        attributes = self._text(MARK_INODE, b"")
        attributes.entry_timeout = 0.0
        # So a stat sends one request, the look-up.
        attributes.attr_timeout = 1.0
        return attributes

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

    def _served(self, entry: int) -> bytes:
        path = self._node.served(entry)
        return path + b"\n" if path else b""

    def _served_by_inode(self, inode: int, offset: int) -> bytes:
        """The content of `.redoxfs/served` for a file, without a newline, for a program that has the file open."""
        # A program chooses the number, which may be that of no branch, or of none of its entries.
        branch, entry = branch_and_entry(inode) if 0 < inode < CONTROL_INODE else (CONTROL, 0)
        if branch not in (DATA, EXACT) or not 0 <= entry < len(self._tree):
            raise OSError(errno.EINVAL, "no file of the tree has this inode")
        if self._tree.is_dir(entry):
            raise OSError(errno.EISDIR, "a directory")
        return (self._tree.path(entry) if branch is EXACT else self._node.served(entry))[offset:]

    def _stats_json(self) -> bytes:
        return json.dumps(self._stats(), indent=2).encode() + os.linesep.encode()


def _owners(attributes: EntryAttributes, permissions: int) -> EntryAttributes:
    """The same attributes, with access for the user who mounted alone."""
    attributes.st_mode = stat.S_IFMT(attributes.st_mode) | permissions
    attributes.st_uid, attributes.st_gid = os.getuid(), os.getgid()
    return attributes


def _no_such_entry() -> EntryAttributes:
    """A negative reply that the kernel caches: the tree does not change."""
    attributes = EntryAttributes()
    attributes.st_ino = InodeT(0)
    attributes.entry_timeout = FOREVER_S
    return attributes
