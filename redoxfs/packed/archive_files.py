"""Where archives lie, for the index of their headers: files below a folder.

`redoxfs.objects.archives` has the same for objects. Only the thread of `load_or_index` calls anything here but `read`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

from redoxfs.linux.times import ctime_ns, mtime_ns
from redoxfs.packed.archive_cache import Archive

if TYPE_CHECKING:
    from typing_extensions import Buffer as HasBuffer

THREADS = 16
"""Archives that are read at once. Network storage answers as many requests at the same time."""

ARCHIVES_AT_ONCE = 256
"""Open at the same time, and indexed between two looks at the clock."""

THROUGH_BYTES = 64 << 10
"""Up to this length, members are read in windows of twice as much, rather than skipped one by one."""

SHORT_WINDOW_BYTES = 4 << 10


class UnusableArchiveError(Exception):
    """Archives cannot be served. The text is a line."""


class ArchiveSource(Protocol):
    """Where archives lie, and how their headers are read.

    ``threads``        archives that are read at once
    ``at_once``        archives that are opened, and indexed between two looks at the clock
    ``through_bytes``  longer members are skipped
    ``windows``        bytes that are read at once: where members are read through, and where they are skipped
    ``read``           see `redoxfs.native.index_archives`
    """

    @property
    def threads(self) -> int: ...
    @property
    def at_once(self) -> int: ...
    @property
    def through_bytes(self) -> int: ...
    @property
    def windows(self) -> tuple[int, int]: ...
    @property
    def read(self) -> Callable[[int, int, int], HasBuffer | int] | None: ...

    def looked_at(self) -> tuple[Archive, ...]:
        """All archives as they are now. Raises UnusableArchiveError, OSError; ``filename`` is a name."""

    def opened(self, archives: Sequence[Archive], some: Sequence[int]) -> AbstractContextManager[Mapping[int, int]]:
        """By their numbers, what stands for some archives in `read`.

        Raises UnusableArchiveError at the end of the block if one has changed, and OSError.
        """

    def head(self, number: int, at: int) -> bytes:
        """A few bytes of an open archive."""

    def failure(self, archive: Archive, error: int) -> OSError:
        """What to raise for an errno of a read."""


class OnDisk:
    """The files at ``paths``: pairs of `Archive.path` and `Archive.name`."""

    threads, at_once, through_bytes, read = THREADS, ARCHIVES_AT_ONCE, THROUGH_BYTES, None
    windows = 2 * THROUGH_BYTES, SHORT_WINDOW_BYTES

    def __init__(self, root_fd: int, paths: Sequence[tuple[str, str]]) -> None:
        self._root_fd = root_fd
        self._paths = paths

    def looked_at(self) -> tuple[Archive, ...]:
        found = []
        for path, name in self._paths:
            try:
                now = os.stat(path, dir_fd=self._root_fd, follow_symlinks=False)
            except OSError as failure:
                raise OSError(failure.errno, failure.strerror, name) from None
            if not stat.S_ISREG(now.st_mode):
                raise UnusableArchiveError(f"{name} is not a regular file")
            found.append(_as_it_is(path, name, now))
        return tuple(found)

    @contextmanager
    def opened(self, archives: Sequence[Archive], some: Sequence[int]) -> Iterator[Mapping[int, int]]:
        fds: dict[int, int] = {}
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            for at in some:
                try:
                    fds[at] = os.open(archives[at].path, flags, dir_fd=self._root_fd)
                except OSError as failure:
                    raise OSError(failure.errno, failure.strerror, archives[at].name) from None
            yield fds
            for at, fd in fds.items():
                archive = archives[at]
                if _as_it_is(archive.path, archive.name, os.fstat(fd)) != archive:
                    raise UnusableArchiveError(f"{archive.name} is being written; try again when it is complete")
        finally:
            for fd in fds.values():
                os.close(fd)

    def head(self, number: int, at: int) -> bytes:
        return os.pread(number, 8, at)

    def failure(self, archive: Archive, error: int) -> OSError:
        return OSError(error, os.strerror(error), archive.name)


def _as_it_is(path: str, name: str, now: os.stat_result) -> Archive:
    owned = stat.S_IMODE(now.st_mode), now.st_uid, now.st_gid
    return Archive(path, name, now.st_size, mtime_ns(now), now.st_ino, *owned, ctime_ns=ctime_ns(now))
