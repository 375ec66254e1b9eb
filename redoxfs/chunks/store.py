"""What every place that chunks can be read from offers.

A store plans: asked for samples of a chunk, it answers with *reads*, blocking pieces of work that any thread may
carry out in any order and that touch nothing but the storage. So one pool of threads serves every store, a store
that reads a chunk in one sweep gives one read for all samples, and one that reads file by file gives one for each.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

NO_INODE = 0
"""No file has it."""


class Stamp(NamedTuple):
    """What told a file's content apart when it was read: size in bytes, time in nanoseconds.

    ``inode``: NO_INODE where the content was read from a copy of the file, whose inode is another.
    """

    size: int
    mtime_ns: int
    inode: int

    def is_of(self, file: "Stamp") -> bool:
        """Whether ``file``, which has an inode, still has the content."""
        return self == file or self == file._replace(inode=NO_INODE)


@dataclass(frozen=True, slots=True)
class FileBytes:
    """One file as it was read. ``changed``: it is no longer what the scan saw."""

    data: bytes | memoryview
    stamp: Stamp
    changed: bool


Payload = tuple[FileBytes | OSError, ...]
"""The files of one sample, in the order of its class's roles; an error in place of a file that has one."""


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """Blocking work for a worker thread: ``run`` gives one payload for each of ``samples``, and never raises
    for what the storage does."""

    samples: tuple[int, ...]
    run: Callable[[], Sequence[Payload]]


class SourceFile(Protocol):
    """An open file that is served as it is, in the state ``stamp``. Reads block, and may be made by several threads."""

    @property
    def stamp(self) -> Stamp: ...

    def read(self, offset: int, size: int) -> bytes:
        """At most ``size`` bytes from ``offset``, fewer where the file ends. Raises OSError."""

    def close(self) -> None: ...


class ChunkStore(Protocol):
    @property
    def depth(self) -> int:
        """Reads in flight at which the storage gives its full rate."""

    def reads(self, chunk: int, samples: Sequence[int]) -> Sequence[Read]:
        """How to read ``samples`` of ``chunk``; the first of them is waited for."""

    def read_range(self, sample: int, file: int, stamp: Stamp, offset: int, size: int) -> bytes:
        """Bytes of one file of a sample again, by position; blocks.

        Raises:
            OSError: as the storage gives it; ESTALE where the file is no longer what ``stamp`` says.
        """

    def open_file(self, entry: int) -> SourceFile:
        """Any regular file of the tree, as it is now; blocks. Raises OSError."""
