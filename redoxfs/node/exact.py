"""Exact files, which are never redirected: files without a class, and all files under ``.redoxfs/exact``.

A handle is an open file of the store, read in worker threads by position. The kernel keeps one set of pages and one
size for a path, even if the file behind it is replaced. So only handles on the same state of the file share pages.
While a handle on another state is open, a new handle bypasses the pages; afterwards they are dropped once. Meanwhile
stat returns the size of the longest open state. A read past the end of a shorter state, whose handle shares pages,
fails: the kernel would fill it with zeros.
"""

import errno
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

import trio

from redoxfs.chunks import ChunkStore, SourceFile, Stamp
from redoxfs.chunks.store import Access
from redoxfs.node.permissions import Permissions
from redoxfs.node.threads import in_thread
from redoxfs.node.waits import Waits

THREADS = 16
"""The number of reads of exact files at the same time."""


class ExactFile(NamedTuple):
    """An open source file.

    ``shares_pages``  its reads may use and fill the kernel's pages
    ``branch``        of the mount, that it was opened in
    ``bypasses``      its reads do not use the kernel's pages, although they might
    """

    file: SourceFile
    entry: int
    shares_pages: bool
    branch: int = 0
    bypasses: bool = False


class ExactFiles:
    """Opens and reads source files in worker threads. Called from the node's task alone.

    ``scanned``         returns the state of a file at the scan
    ``changed_states``  by entry: its present state, if that differs from the scan. A file that is as at the scan again
                        stays here until its last handle is closed
    ``stale_pages``     entries whose pages in the kernel are void at the next open
    """

    def __init__(
        self,
        scanned: Callable[[int], Stamp],
        store: ChunkStore,
        opens: Waits,
        reads: Waits,
        permissions: Permissions,
    ) -> None:
        self.scanned = scanned
        self._store = store
        self._permissions = permissions
        self._opens = opens
        self._reads = reads
        self._limiter = trio.CapacityLimiter(THREADS)
        self.changed_states: dict[int, Stamp] = {}
        self._handles: dict[int, list[Stamp]] = {}
        self.stale_pages: set[int] = set()

    def state(self, entry: int) -> Stamp:
        """The state that stat returns: the known state, with the size of the longest open state."""
        known = self.known(entry)
        handles = self._handles.get(entry)
        return known._replace(size=max(known.size, *(h.size for h in handles))) if handles else known

    def is_open(self, entry: int) -> bool:
        """Whether a handle on the file itself is open."""
        return entry in self._handles

    def is_as_scanned(self, entry: int) -> bool:
        """Whether `state` equals the state in the tree."""
        return self.state(entry) == self.scanned(entry)

    def known(self, entry: int) -> Stamp:
        """The file's state at the last open, else at the scan."""
        return self.changed_states.get(entry) or self.scanned(entry)

    async def open(self, entry: int, branch: int = 0, *, bypasses: bool = False) -> tuple[ExactFile, bool]:
        """An open file, and whether the kernel's pages and size belong to this state of it.

        ``bypasses``: its reads do not use the kernel's pages.

        Raises:
            OSError: from storage.
            trio.TooSlowError: see `Waits.one`.
        """
        opening = _Opening(lambda: self._store.open_file(entry))
        try:
            with self._opens.one():
                file = await in_thread(opening.run, abandon_on_cancel=True, limiter=self._limiter)
        except BaseException:
            opening.abandon()
            raise
        access: Access | None = getattr(file, "access", None)
        if access is not None:
            # The kernel has checked what was known.
            known = self._permissions.of(entry)
            self._permissions.saw(entry, access)
            if not access.admits(known):
                file.close()
                raise PermissionError(errno.EACCES, "fewer users may read it than was known")
        return self._opened(entry, file, branch, bypasses=bypasses)

    def _opened(self, entry: int, file: SourceFile, branch: int, *, bypasses: bool = False) -> tuple[ExactFile, bool]:
        stamp = file.stamp
        if stamp != self.known(entry):
            self.changed_states[entry] = stamp
            self.stale_pages.add(entry)
        others = self._handles.setdefault(entry, [])
        alone = all(other == stamp for other in others)
        others.append(stamp)
        keep = alone and entry not in self.stale_pages
        if not alone:
            self.stale_pages.add(entry)
        elif not bypasses:
            # Such an open drops them.
            self.stale_pages.discard(entry)
        return ExactFile(file, entry, alone, branch, bypasses), keep

    def resume(self, known: Mapping[int, Stamp], stale: Iterable[int]) -> None:
        """Continue with what another process knew of files (`changed_states`, `stale_pages`). Before any open."""
        self.changed_states.update(known)
        self.stale_pages.update(stale)

    def reopen(self, entry: int, stamp: Stamp, branch: int, *, shares_pages: bool | None = None) -> ExactFile:
        """A handle of another process on ``stamp`` of a file. ``shares_pages``: what it was, None to decide as `open`.

        Nothing is read before the first read of the handle. That fails if the file has another state by then.
        """
        file = _Reopened(partial(self._store.open_file, entry), stamp)
        if shares_pages is None:
            return self._opened(entry, file, branch)[0]
        self._handles.setdefault(entry, []).append(stamp)
        return ExactFile(file, entry, shares_pages, branch)

    async def read(self, file: ExactFile, offset: int, size: int) -> bytes:
        end = file.file.stamp.size
        if file.shares_pages and offset + size > end and self.state(file.entry).size > end:
            raise OSError(errno.ESTALE, "the file was replaced while it was open")
        with self._reads.one():
            return await in_thread(file.file.read, offset, size, abandon_on_cancel=True, limiter=self._limiter)

    def close(self, file: ExactFile) -> bool:
        """Close the handle; True if stat returns something else from now on."""
        file.file.close()
        before = self.state(file.entry)
        others = self._handles[file.entry]
        others.remove(file.file.stamp)
        if not others:
            del self._handles[file.entry]
            if self.changed_states and self.changed_states.get(file.entry) == self.scanned(file.entry):
                # It has become as it was.
                del self.changed_states[file.entry]
        return self.state(file.entry) != before


class _Reopened:
    """A `SourceFile` that another process had open with the content of ``stamp``. Opened at its first read."""

    def __init__(self, opener: Callable[[], SourceFile], stamp: Stamp) -> None:
        self.stamp = stamp
        self._opener = opener
        self._file: SourceFile | None = None
        self._closed = False
        self._lock = threading.Lock()

    def read(self, offset: int, size: int) -> bytes:
        return (self._file or self._opened()).read(offset, size)

    def _opened(self) -> SourceFile:
        file = self._opener()
        # Only for a moment, since `close` must not wait for storage.
        with self._lock:
            usable = file.stamp == self.stamp and not self._closed and self._file is None
            if usable:
                self._file = file
            present = self._file
        if not usable:
            file.close()
        if present is None:
            raise OSError(errno.ESTALE, "the file was replaced while it was open")
        return present

    def close(self) -> None:
        with self._lock:
            file, self._file, self._closed = self._file, None, True
        if file is not None:
            file.close()


class _Opening:
    """An open(2) in a thread that may outlive the wait for it. It then closes the file itself."""

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
        # The thread and the waiting task may both get here.
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            file.close()
