"""The interface of every chunk store. `redoxfs.testing` has the tests that a store must pass.

A store does not read by itself. For samples of a chunk it returns *reads*: blocking pieces of work that any thread
may run, in any order, and that touch nothing but the storage. So one pool of threads serves every store. A store that
reads a chunk in one sweep returns one read for all samples; a store that reads file by file returns one for each.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

NO_INODE = 0
"""Not the inode of any file."""


class Stamp(NamedTuple):
    """Identifies a file's content at the time of the read: size in bytes, time in nanoseconds.

    ``inode`` is NO_INODE if the content was read from a copy of the file, which has another inode.
    """

    size: int
    mtime_ns: int
    inode: int

    def is_of(self, file: "Stamp") -> bool:
        """Whether ``file``, a stamp with an inode, still has this content."""
        return self == file or self == file._replace(inode=NO_INODE)


@dataclass(frozen=True, slots=True)
class FileBytes:
    """The bytes of one file. ``changed``: the file is no longer as the scan saw it."""

    data: bytes | memoryview
    stamp: Stamp
    changed: bool


Payload = tuple[FileBytes | OSError, ...]
"""The files of one sample, in the order of its class's roles. An error takes the place of an unreadable file."""


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """Blocking work for a worker thread.

    ``run`` returns one payload for each of ``samples``. It never raises an error of the storage.
    """

    samples: tuple[int, ...]
    run: Callable[[], Sequence[Payload]]


class SourceFile(Protocol):
    """An open file that is not redirected, with the content of ``stamp``. Reads block; any thread may read."""

    @property
    def stamp(self) -> Stamp: ...

    def read(self, offset: int, size: int) -> bytes:
        """At most ``size`` bytes from ``offset``, fewer where the file ends. Raises OSError."""

    def close(self) -> None: ...


class ChunkStore(Protocol):
    """A place that chunks are read from. Any thread may call any method."""

    @property
    def depth(self) -> int:
        """The number of reads in flight at which the storage reaches its full rate."""

    def reads(self, chunk: int, samples: Sequence[int]) -> Sequence[Read]:
        """Reads that cover each of ``samples`` of ``chunk`` once. The first is awaited, so the first read has it."""

    def read_range(self, sample: int, file: int, stamp: Stamp, offset: int, size: int) -> bytes:
        """Read bytes of one file of a sample again, by position. Blocks.

        Raises:
            OSError: from the storage; ESTALE if the file no longer has the content of ``stamp``.
        """

    def open_file(self, entry: int) -> SourceFile:
        """Open any regular file of the tree as it is now. Blocks. Raises OSError."""
