"""Files that are served as they are: no class, or asked for under ``.redoxfs/exact``.

A handle is a descriptor of the source file, read in worker threads by position. The kernel keeps one set of pages for
a path, and one size, whatever file lies behind it by now. So pages are shared only between handles on the same state
of the file: while a handle on another state is open a new one bypasses them, and afterwards they are dropped once.
Meanwhile the size told is that of the longest. What the kernel would fill up with zeros, past the end of a shorter
state whose handle shares pages, is an error.
"""

import errno
import os
import stat
import threading
from collections.abc import Callable, Set
from typing import NamedTuple

import trio

from redoxfs.chunks import Stamp, open_beneath
from redoxfs.dataset import Tree
from redoxfs.node.waits import Waits

THREADS = 16
"""Reads of exact files under way at once."""


class ExactFile(NamedTuple):
    """An open source file in the state ``stamp``; ``shares_pages``: it may read and fill the kernel's pages."""

    fd: int
    entry: int
    stamp: Stamp
    shares_pages: bool


class ExactFiles:
    """Opens and reads source files in worker threads. Used from the node's task alone."""

    def __init__(self, tree: Tree, root_fd: int, opens: Waits, reads: Waits) -> None:
        self._tree = tree
        self._size: memoryview[int] = tree.size.data
        self._mtime_ns: memoryview[int] = tree.mtime_ns.data
        self._inode: memoryview[int] = tree.inode.data
        self._root_fd = root_fd
        self._opens = opens
        self._reads = reads
        self._limiter = trio.CapacityLimiter(THREADS)
        self._now: dict[int, Stamp] = {}
        self._handles: dict[int, list[Stamp]] = {}
        self._stale_pages: set[int] = set()

    def told(self, entry: int) -> Stamp:
        """What to tell of the file: its known state, with the size of the longest that is open."""
        known = self.known(entry)
        handles = self._handles.get(entry)
        return known._replace(size=max(known.size, *(h.size for h in handles))) if handles else known

    def known(self, entry: int) -> Stamp:
        """The file's state as the last open, else the scan, saw it."""
        return self._now.get(entry) or Stamp(self._size[entry], self._mtime_ns[entry], self._inode[entry])

    async def open(self, entry: int) -> tuple[ExactFile, bool]:
        """An open file, and whether the kernel's pages and size of it are of this state.

        Raises:
            OSError: as the storage gives it.
            TooManyWaitingError, trio.TooSlowError: as `Waits.one`.
        """
        path = self._tree.path(entry)
        opening = _Opening(lambda: open_beneath(self._root_fd, path))
        try:
            with self._opens.one():
                fd, stamp = await trio.to_thread.run_sync(opening.run, abandon_on_cancel=True, limiter=self._limiter)
        except BaseException:
            opening.abandon()
            raise
        if stamp != self.known(entry):
            self._now[entry] = stamp
            self._stale_pages.add(entry)
        others = self._handles.setdefault(entry, [])
        alone = all(other == stamp for other in others)
        others.append(stamp)
        keep = alone and entry not in self._stale_pages
        if alone:
            self._stale_pages.discard(entry)
        else:
            self._stale_pages.add(entry)
        return ExactFile(fd, entry, stamp, alone), keep

    async def read(self, file: ExactFile, offset: int, size: int) -> bytes:
        end = file.stamp.size
        if file.shares_pages and offset + size > end and self.told(file.entry).size > end:
            raise OSError(errno.ESTALE, "the file was replaced while it was open")
        with self._reads.one():
            return await trio.to_thread.run_sync(
                os.pread, file.fd, size, offset, abandon_on_cancel=True, limiter=self._limiter
            )

    def close(self, file: ExactFile) -> bool:
        """True where something else is to be told of the file from now on."""
        os.close(file.fd)
        told = self.told(file.entry)
        others = self._handles[file.entry]
        others.remove(file.stamp)
        if not others:
            del self._handles[file.entry]
        return self.told(file.entry) != told

    def changed(self) -> Set[int]:
        """Entries that were found to be other than the scan saw."""
        return self._now.keys()


class _Opening:
    """An open(2) in a thread that may outlive the wait for it; then it closes what it opened."""

    def __init__(self, opener: Callable[[], int]) -> None:
        self._opener = opener
        self._fd = -1
        self._abandoned = False
        self._lock = threading.Lock()

    def run(self) -> tuple[int, Stamp]:
        fd = self._opener()
        try:
            now = os.fstat(fd)
            if not stat.S_ISREG(now.st_mode):
                raise OSError(errno.EIO, "not a regular file any more")
        except OSError:
            os.close(fd)
            raise
        self._fd = fd
        if self._abandoned:
            self._close()
        return fd, Stamp(now.st_size, now.st_mtime_ns, now.st_ino)

    def abandon(self) -> None:
        self._abandoned = True
        self._close()

    def _close(self) -> None:
        # The thread and who waited for it may both get here.
        with self._lock:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
