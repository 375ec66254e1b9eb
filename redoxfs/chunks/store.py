"""The interface of every chunk store: derive from `ChunkStore`. `redoxfs.testing` has the tests that a store must pass.

A store does not read by itself. For samples of a chunk it returns *reads*: pieces of work that any thread may carry
out, in any order, and that touch nothing but the storage. So one pool of threads serves every store. A store that reads
a chunk in one sweep returns one read for all samples; a store that reads file by file returns one for each.

A store of this package describes its reads (`NativeRead`), and threads in C carry them out without Python. A store
whose storage has its own threads carries reads out by itself, in the background (`BackgroundRead`). Another store
returns functions (`Read`), which threads in Python call.
"""

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from redoxfs.native import Buffer, Files, Shards

if TYPE_CHECKING:
    # A type alias of the stub.
    from redoxfs.native._native import FileResult

Result = TypeVar("Result")

ATTEMPTS = 2
"""A failed read is retried once: after a network error the second attempt mostly succeeds."""


def attempted(read: Callable[[], Result]) -> Result:
    """What ``read`` returns, at the second attempt if the first fails. Raises OSError: that of the last one."""
    for _ in range(ATTEMPTS):
        try:
            return read()
        except OSError as error:
            failure = error
    raise failure


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


class Access(NamedTuple):
    """Who may read a file: its permissions without its kind, its owner and its group."""

    mode: int
    uid: int
    gid: int

    def admits(self, others: "Access") -> bool:
        """Whether all who may read a file with ``others`` may read one with this. As in native/files.c."""
        read = 0o444
        is_same = (self.uid, self.gid) == (others.uid, others.gid)
        return self.mode & read == read or (is_same and not others.mode & read & ~self.mode)


class NarrowedError(PermissionError):
    """Fewer users may read a file than at the scan; ``access`` says who."""

    def __init__(self, path: str, access: Access) -> None:
        super().__init__(errno.EACCES, "fewer users may read it than at the scan", path)
        self.access = access


class FileBytes(NamedTuple):
    """The bytes of one file. ``changed``: the file is no longer as the scan saw it.

    A file that has grown since the scan may have any size, and memory was planned for the size of the scan. So it comes
    without bytes, and only ``stamp`` has its size: whoever opened it reads it by position.
    """

    data: bytes | memoryview | Buffer
    stamp: Stamp
    changed: bool


Payload = tuple[FileBytes | OSError, ...]
"""The files of one sample, in the order of its class's roles. An error takes the place of an unreadable file."""


class Read:
    """Blocking work for a worker thread: a function that returns one payload for each of ``samples``.

    The function never raises an error of the storage.
    """

    __slots__ = ("_run", "samples")

    def __init__(self, samples: tuple[int, ...], run: Callable[[], Sequence[Payload]]) -> None:
        self.samples = samples
        self._run = run

    def run(self) -> Sequence[Payload]:
        """Carry it out in this thread."""
        return self._run()


class NativeSource(Protocol):
    """What `NativeRead` is read from. Any thread may call it."""

    @property
    def native(self) -> Files | Shards: ...

    def failure(self, entry: int, error: int, fault: int) -> OSError:
        """The error that takes the place of a file; see `redoxfs.native._native.Failure`."""


class NativeRead(Read):
    """A read as data: the files of one sample after the other, from ``source``.

    ``entries``  their entries in the tree
    ``counts``   the number of files of each sample; None: each sample has one
    """

    __slots__ = ("_counts", "_source", "entries")

    def __init__(
        self, samples: tuple[int, ...], entries: Sequence[int], counts: Sequence[int] | None, source: NativeSource
    ) -> None:
        self.samples = samples
        self.entries = entries
        self._counts = counts
        self._source = source

    @property
    def native(self) -> Files | Shards:
        """What carries it out."""
        return self._source.native

    def run(self) -> Sequence[Payload]:
        """Carry it out in this thread."""
        return self.payloads(self._source.native.read(self.entries))

    def payloads(self, results: "Sequence[FileResult]") -> Sequence[Payload]:
        """The payloads that ``results`` of the entries make."""
        files: Sequence[FileBytes | OSError] = results
        for result in results:
            if not isinstance(result, FileBytes):
                files = self._with_errors(results)
                break
        if len(self.samples) == 1:
            return [tuple(files)]
        if self._counts is None:
            return [(file,) for file in files]
        at = iter(files)
        return [tuple(islice(at, count)) for count in self._counts]

    def failed(self, error: OSError) -> Sequence[Payload]:
        """Payloads with ``error`` in the place of each file."""
        counts = self._counts or (1,) * len(self.samples)
        return [(error,) * count for count in counts]

    def _with_errors(self, results: "Sequence[FileResult]") -> Sequence[FileBytes | OSError]:
        """The same, with an OSError in the place of each Failure."""
        return [
            result if isinstance(result, FileBytes) else self._source.failure(entry, *result)
            for entry, result in zip(self.entries, results, strict=True)
        ]


class CopyRead(NativeRead):
    """``read`` of copies. If a copy cannot be read, ``instead`` reads its sample from the source.

    Args:
        note: called with the numbers of samples and of bytes that were read.
        instead: given samples and the errors of their copies, returns reads of the source, as `ChunkStore.reads` does.
            A request may wait for the first of them.
    """

    __slots__ = ("_instead", "_note", "_read")

    def __init__(
        self,
        read: NativeRead,
        note: Callable[[int, int], None],
        instead: Callable[[Sequence[int], Sequence[OSError]], Sequence[Read]],
    ) -> None:
        self.samples = read.samples
        self.entries = read.entries
        self._read = read
        self._note = note
        self._instead = instead

    @property
    def native(self) -> Files | Shards:
        return self._read.native

    def run(self) -> Sequence[Payload]:
        """Carry out the read in this thread, and the reads of the source for bad copies."""
        payloads = self.payloads(self.native.read(self.entries))
        found = dict(zip(self.samples, payloads, strict=True))
        for read in self.instead(payloads):
            found.update(zip(read.samples, read.run(), strict=True))
        return [found[sample] for sample in self.samples]

    def payloads(self, results: "Sequence[FileResult]") -> Sequence[Payload]:
        payloads = self._read.payloads(results)
        size = sum(len(file.data) for payload in payloads for file in payload if isinstance(file, FileBytes))
        self._note(len(payloads), size)
        return payloads

    def failed(self, error: OSError) -> Sequence[Payload]:
        return self._read.failed(error)

    def instead(self, payloads: Sequence[Payload]) -> Sequence[Read]:
        """Reads of the source for the samples that have an error in ``payloads``."""
        wrong = {
            sample: file
            for sample, payload in zip(self.samples, payloads, strict=True)
            for file in payload
            if isinstance(file, OSError)
        }
        return self._instead([*wrong], [*wrong.values()]) if wrong else ()


class BackgroundRead(Read):
    """A read that its store carries out by itself, while no thread waits for it.

    ``held_bytes``: the memory that it takes until it is done, besides that of its payloads.
    """

    __slots__ = ("held_bytes",)

    def __init__(self, samples: tuple[int, ...], held_bytes: int) -> None:
        self.samples = samples
        self.held_bytes = held_bytes

    def begin(self, done: Callable[[Sequence[Payload]], None]) -> Callable[[], None]:
        """Carry it out. ``done`` is called once, in any thread, perhaps before this has returned.

        Returns a function that ends it early; then ``done`` gets no payloads.
        """
        raise NotImplementedError


class SourceFile(Protocol):
    """An open file that is not redirected, with the content of ``stamp``. Reads block; any thread may read."""

    @property
    def stamp(self) -> Stamp: ...

    def read(self, offset: int, size: int) -> bytes:
        """At most ``size`` bytes from ``offset``, fewer where the file ends. Raises OSError."""

    def close(self) -> None: ...


class ChunkStore(ABC):
    """A place that chunks are read from. Any thread may call any method.

    A store declares its limits, and by them who carries out its reads:

    ``depth``            the number of reads in flight at which the storage reaches its full rate
    ``most_depth``       of described reads: ``depth`` is how many are in flight at first, and their number then follows
                         what the storage gains, up to this one. None: it stays
    ``most_held_bytes``  all its reads are a `BackgroundRead`, and those in flight hold no more than that together,
                         unless a single one does. None: none is
    ``copies_depth``     some of its reads are a `CopyRead`, and so many of these are in flight. None: none is

    Of its other reads, either all are a `NativeRead`, or none is: threads in Python call those.
    """

    depth: int
    most_depth: int | None = None
    most_held_bytes: int | None = None
    copies_depth: int | None = None

    @abstractmethod
    def reads(self, chunk: int, samples: Sequence[int]) -> Sequence[Read]:
        """Reads that cover each of ``samples`` of ``chunk`` once. The first is awaited, so the first read has it."""

    @abstractmethod
    def read_range(self, sample: int, file: int, stamp: Stamp, offset: int, size: int) -> bytes:
        """Read bytes of one file of a sample again, by position. Blocks.

        Raises:
            OSError: from the storage; ESTALE if the file no longer has the content of ``stamp``.
        """

    @abstractmethod
    def open_file(self, entry: int) -> SourceFile:
        """Open any regular file of the tree as it is now. Blocks. Raises OSError."""

    def start(self) -> None:  # noqa: B027 - most stores have no threads of their own
        """The mount begins: start the threads that reads need. Raises RuntimeError if none can be started."""

    def end(self) -> None:  # noqa: B027 - most stores have nothing to end
        """The mount ends; no read follows."""

    def stats(self) -> Mapping[str, int] | None:
        """Counts for `objects` in stats.json; None: there is no such part."""
        return None

    def cache_stats(self) -> Mapping[str, Any] | None:
        """`cache` in stats.json; None: there are no copies."""
        return None
