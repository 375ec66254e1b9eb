"""Files that are served as they are: no class, or asked for under ``.redoxfs/exact``.

A handle is an open file of the store, read in worker threads by position. The kernel keeps one set of pages for
a path, and one size, whatever file lies behind it by now. So pages are shared only between handles on the same state
of the file: while a handle on another state is open a new one bypasses them, and afterwards they are dropped once.
Meanwhile the size told is that of the longest. What the kernel would fill up with zeros, past the end of a shorter
state whose handle shares pages, is an error.
"""

import errno
import threading
from collections.abc import Callable, Set
from typing import NamedTuple

import trio

from redoxfs.chunks import ChunkStore, SourceFile, Stamp
from redoxfs.dataset import Tree
from redoxfs.node.waits import Waits

THREADS = 16
"""Reads of exact files under way at once."""


class ExactFile(NamedTuple):
    """An open source file; ``shares_pages``: it may read and fill the kernel's pages."""

    file: SourceFile
    entry: int
    shares_pages: bool


class ExactFiles:
    """Opens and reads source files in worker threads. Used from the node's task alone."""

    def __init__(self, tree: Tree, store: ChunkStore, opens: Waits, reads: Waits) -> None:
        self._size: memoryview[int] = tree.size.data
        self._mtime_ns: memoryview[int] = tree.mtime_ns.data
        self._inode: memoryview[int] = tree.inode.data
        self._store = store
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

    def is_as_scanned(self, entry: int) -> bool:
        """Whether `told` is what the tree says."""
        return entry not in self._now and entry not in self._handles

    def known(self, entry: int) -> Stamp:
        """The file's state as the last open, else the scan, saw it."""
        return self._now.get(entry) or Stamp(self._size[entry], self._mtime_ns[entry], self._inode[entry])

    async def open(self, entry: int) -> tuple[ExactFile, bool]:
        """An open file, and whether the kernel's pages and size of it are of this state.

        Raises:
            OSError: as the storage gives it.
            TooManyWaitingError, trio.TooSlowError: as `Waits.one`.
        """
        opening = _Opening(lambda: self._store.open_file(entry))
        try:
            with self._opens.one():
                file = await trio.to_thread.run_sync(opening.run, abandon_on_cancel=True, limiter=self._limiter)
        except BaseException:
            opening.abandon()
            raise
        stamp = file.stamp
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
        return ExactFile(file, entry, alone), keep

    async def read(self, file: ExactFile, offset: int, size: int) -> bytes:
        end = file.file.stamp.size
        if file.shares_pages and offset + size > end and self.told(file.entry).size > end:
            raise OSError(errno.ESTALE, "the file was replaced while it was open")
        with self._reads.one():
            return await trio.to_thread.run_sync(
                file.file.read, offset, size, abandon_on_cancel=True, limiter=self._limiter
            )

    def close(self, file: ExactFile) -> bool:
        """True where something else is to be told of the file from now on."""
        file.file.close()
        told = self.told(file.entry)
        others = self._handles[file.entry]
        others.remove(file.file.stamp)
        if not others:
            del self._handles[file.entry]
        return self.told(file.entry) != told

    def changed(self) -> Set[int]:
        """Entries that were found to be other than the scan saw."""
        return self._now.keys()


class _Opening:
    """An open(2) in a thread that may outlive the wait for it; then it closes what it opened."""

    def __init__(self, opener: Callable[[], SourceFile]) -> None:
        self._opener = opener
        self._file: SourceFile | None = None
        self._abandoned = False
        self._lock = threading.Lock()

    def run(self) -> SourceFile:
        file = self._file = self._opener()
        if self._abandoned:
            self._close()
        return file

    def abandon(self) -> None:
        self._abandoned = True
        self._close()

    def _close(self) -> None:
        # The thread and who waited for it may both get here.
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            file.close()
