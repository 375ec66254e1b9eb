"""Files that are served as they are: no class, or asked for under ``.redoxfs/exact``.

A handle is a descriptor of the source file, read in worker threads by position. The kernel's page cache keeps what
was read; that is right as long as the file is what it was, which every open checks.
"""

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass

import trio

from redoxfs.chunks import open_beneath
from redoxfs.dataset import Tree
from redoxfs.node.waits import Waits

THREADS = 16
"""Reads of exact files under way at once."""


@dataclass(frozen=True, slots=True)
class ExactFile:
    """An open source file; ``changed``: not what the last open, or the scan, saw."""

    fd: int
    changed: bool


class ExactFiles:
    """Opens and reads source files in worker threads. Used from the node's task alone."""

    def __init__(self, tree: Tree, root_fd: int, opens: Waits, reads: Waits) -> None:
        self._tree = tree
        self._root_fd = root_fd
        self._opens = opens
        self._reads = reads
        self._limiter = trio.CapacityLimiter(THREADS)
        self._now: dict[int, tuple[int, int]] = {}

    def size(self, entry: int) -> int:
        """The file's size in bytes, as far as is known."""
        return self.attributes(entry)[0]

    def attributes(self, entry: int) -> tuple[int, int]:
        """Size in bytes and mtime in nanoseconds: those of the last open, else of the scan."""
        return self._now.get(entry) or (int(self._tree.size[entry]), int(self._tree.mtime_ns[entry]))

    async def open(self, entry: int) -> ExactFile:
        """Raises: OSError as the storage gives it; what `Waits.one` raises."""
        path = self._tree.path(entry)
        opening = _Opening(lambda: open_beneath(self._root_fd, path))
        try:
            with self._opens.one():
                fd, now = await trio.to_thread.run_sync(opening.run, abandon_on_cancel=True, limiter=self._limiter)
        except BaseException:
            opening.abandon()
            raise
        changed = now != self.attributes(entry)
        if changed:
            self._now[entry] = now
        return ExactFile(fd, changed)

    async def read(self, file: ExactFile, offset: int, size: int) -> bytes:
        with self._reads.one():
            return await trio.to_thread.run_sync(
                os.pread, file.fd, size, offset, abandon_on_cancel=True, limiter=self._limiter
            )

    @property
    def changed(self) -> int:
        """How many files were found to be other than the scan saw."""
        return len(self._now)


class _Opening:
    """An open(2) in a thread that may outlive the wait for it; then it closes what it opened."""

    def __init__(self, opener: Callable[[], int]) -> None:
        self._opener = opener
        self._fd = -1
        self._abandoned = False

    def run(self) -> tuple[int, tuple[int, int]]:
        fd = self._opener()
        try:
            now = os.fstat(fd)
            if not stat.S_ISREG(now.st_mode):
                raise OSError(5, "not a regular file any more")
        except OSError:
            os.close(fd)
            raise
        self._fd = fd
        if self._abandoned:
            self._close()
        return fd, (now.st_size, now.st_mtime_ns)

    def abandon(self) -> None:
        self._abandoned = True
        self._close()

    def _close(self) -> None:
        # Both sides may get here; the GIL makes taking the number atomic, so one of them closes it.
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
