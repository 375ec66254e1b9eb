from collections.abc import Callable, Sequence
from typing import Any, Final, final

from numpy.typing import NDArray
from typing_extensions import Buffer as HasBuffer

# numpy declares that its arrays are buffers for Python 3.12 and later only.
Readable = HasBuffer | NDArray[Any]

SOURCES: Final[str]
"""What the extension was built of; see `redoxfs.native.sources`."""

@final
class Buffer:
    """The bytes of one file. Supports the buffer protocol, read-only; `len()` is its size in bytes.

    Its memory goes back to the system when nothing refers to it any more: no Python object, no memoryview, no open
    handle of a session.
    """

    def __init__(self, data: Readable) -> None:
        """A copy of ``data``. Raises MemoryError."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @staticmethod
    def total_bytes() -> int:
        """The bytes of all buffers of the process."""

@final
class Sections:
    """The columns of `redoxfs.protocol.pool.queues.Queues`, which says what the methods do. Keeps the arrays alive.

    Args: int32 arrays, ``had`` and ``stays`` uint8. Their lengths: ``queue`` has that of the samples in any section;
    ``at``, ``class_of``, ``had`` and ``stays`` that of all samples; ``begun`` has one more than the other borders and
    ``stock``, which have that of the classes.

    Raises:
        ValueError: an array has another length or item size, or cannot be written.
    """

    def __init__(
        self,
        *,
        queue: Readable,
        at: Readable,
        class_of: Readable,
        begun: Readable,
        kept: Readable,
        for_next: Readable,
        served: Readable,
        stream: Readable,
        arrived: Readable,
        loaded: Readable,
        stock: Readable,
        had: Readable,
        stays: Readable,
    ) -> None: ...
    def take_out(self, cls: int, place: int, /) -> int:
        """Raises IndexError if no resident is there."""

    def keep(self, sample: int, retained: bool, /) -> None:
        """Raises IndexError if the sample had no turn, or stays already."""

    def let_go(self, sample: int, /) -> bool:
        """Raises IndexError if the sample does not stay."""

    def load(self, samples: Sequence[int], /) -> tuple[int, list[int]]:
        """Raises IndexError if one of the samples is a resident; those before it are loaded."""

class Tree:
    """The columns of a `redoxfs.dataset.Tree` and the samples of its entries, as C reads them. Keeps the arrays alive.

    Args: arrays of the types that `redoxfs.dataset.Tree` names, and ``sample_of``: int32[N], -1 for files that are not
    redirected.

    Raises:
        ValueError: an array has another length or item size.
    """

    def __init__(
        self,
        *,
        names: Readable,
        name_at: Readable,
        parent: Readable,
        first_child: Readable,
        children: Readable,
        mode: Readable,
        nlink: Readable,
        uid: Readable,
        gid: Readable,
        size: Readable,
        mtime_ns: Readable,
        ctime_ns: Readable,
        sample_of: Readable,
    ) -> None: ...
    def __len__(self) -> int: ...
    def path(self, entry: int) -> bytes:
        """The path of an entry, relative to the root."""

FAILED: Final[int]
NOT_REGULAR: Final[int]
CHANGED: Final[int]
WRONG_SUM: Final[int]
ELSEWHERE: Final[int]
NARROWED: Final[int]

Failure = tuple[int, int] | tuple[int, int, int, int, int]
"""Why a file could not be read: an errno, and what went wrong.

FAILED       a system call, or an allocation (ENOMEM)
NOT_REGULAR  no longer a regular file
CHANGED      while it was read
WRONG_SUM    of a file in a shard
ELSEWHERE    the shard is on another node
NARROWED     fewer users may read it than at the scan; with its mode, owner and group now
"""

FileResult = Any
"""A file that was read, or a Failure. A file is ``file((data, stamp, changed))``, with its bytes in a Buffer,
``stamp((size, mtime_ns, inode))``, and whether it has changed since the scan. Both are the source's NamedTuples."""

@final
class Files:
    """Files of a tree under a directory descriptor, which stays the caller's. A source for `Reader`.

    ``stamp`` and ``file`` are the types of its results; see `FileResult`. ``guards``: a file that fewer users may read
    than at the scan is a Failure.
    """

    def __init__(self, tree: Tree, root: int, *, stamp: type[Any], file: type[Any], guards: bool) -> None: ...
    def read(self, entries: Sequence[int]) -> tuple[FileResult, ...]:
        """Read whole files, in this thread, without the interpreter's lock."""

@final
class Shards:
    """Files in packed shards. A source for `Reader`.

    ``shards``    int32[n], a descriptor for each shard, -1 for one that is not here; they stay the caller's
    ``shard_of``  int32[N]; ``data_at`` int64[N]: the position of each entry's bytes
    ``sums``      uint64[M]: XXH3 of each mebibyte of each file; ``block_at`` int64[N]: a file's first
    ``stamp``, ``file``  the types of its results; see `FileResult`
    ``versions``  int64[n, 3]: length, mtime and inode of shards without sums. Their files are served while they have
                  them, and may lie far from each other in a sweep, or at one place
    ``guards``    with versions: files of a shard that fewer users may read than when it was indexed are Failures
    """

    def __init__(
        self,
        tree: Tree,
        *,
        shards: Readable,
        shard_of: Readable,
        data_at: Readable,
        sums: Readable,
        block_at: Readable,
        stamp: type[Any],
        file: type[Any],
        versions: Readable | None,
        guards: bool,
    ) -> None: ...
    def read(self, entries: Sequence[int]) -> tuple[FileResult, ...]:
        """Read files that lie one after the other in a shard, in one sweep, each checked."""

    def scatter(self, entries: Sequence[int], pieces: Sequence[Readable], /) -> tuple[FileResult, ...]:
        """The same files from bytes that are here already, copied once and checked, without the interpreter's lock.

        ``pieces`` follow each other, and begin with the first byte of the first file.
        """

@final
class Reader:
    """A pool of threads that carry out reads. Its methods are for one thread; the reads run without Python.

    Args:
        threads: how many reads may be in flight.

    Raises:
        OSError: no thread can be started.
    """

    def __init__(self, threads: int) -> None: ...
    def fileno(self) -> int:
        """Readable while `take` has something to return: an eventfd."""

    def submit(self, source: Files | Shards, reads: Sequence[tuple[Any, Sequence[int]]], awaited: bool, /) -> None:
        """Queue reads: pairs of a token, hashable and unlike all others under way, and the entries to read.

        ``awaited``: a request waits for the first.
        """

    def hasten(self, token: Any, /) -> None:
        """A request waits for this read: it goes first, and so does its result. Nothing if the read is not here."""

    def cancel(self, token: Any, /) -> bool:
        """Drop a read that has not begun. False if it has; then its result comes as usual."""

    def take(self, most: int, /) -> list[tuple[Any, tuple[FileResult, ...]]]:
        """Up to ``most`` completed reads, those that are waited for first. Never blocks."""

    def set_threads(self, threads: int, /) -> None:
        """How many reads may be in flight from now on, at least 1."""

    def counts(self) -> dict[str, int]:
        """``queued``, ``running``, ``done`` (not taken yet), ``threads``; of all reads so far: ``reads`` (how many),
        ``amount`` (of how many files), ``read_ns`` (their time)."""

    def close(self, wait_s: float, /) -> None:
        """End the threads. Queued reads are dropped; reads in progress get ``wait_s``. Threads that storage holds are
        left behind: they touch nothing of the interpreter afterwards."""

EVENTS_AT_ONCE: Final[int]
"""The most events that `Session.take` returns."""

INIT: Final[int]
OPEN: Final[int]
STAT: Final[int]
READ: Final[int]
RELEASE: Final[int]
LOG_READ: Final[int]
LOG_TRY: Final[int]
LOG_POLL: Final[int]
LOG_RELEASE: Final[int]
INTERRUPT: Final[int]

Event = tuple[int, int, int, int, int, int]
"""(kind, unique, number, thread, offset, size).

INIT     the kernel has accepted the mount. number: 1 if programs can map files that bypass the page cache, else 0.
         offset: 0; or FUSE's minor version of a kernel that is too old, which was refused
OPEN     number: inode; offset: open flags; size: when it was received, in ns of the monotonic clock.
         To be answered by `opened` (`log_opened` for the access log) or `failed`
STAT     number: entry, redirected and not known to be held by the thread.  `stat` or `failed`
READ     number: handle whose bytes are not in memory.  `data` or `failed`
RELEASE  number: handle; size: its reads, 0 if it used the page cache. Answered already

Of the access log, whose handles are 2^63 and above:

LOG_READ     number: handle; offset: the kernel's number of the request, as in INTERRUPT.  `data` or `failed`
LOG_TRY      the same; it must not wait
LOG_POLL     number: handle; offset: whom to `wake` when there is something to read, or 0.  `polled` or `failed`
LOG_RELEASE  number: handle. Answered already

INTERRUPT  number: the kernel's number of a request whose program got a signal. Not to be answered

``unique`` stands for the request in an answer. It is the kernel's number, and in its upper byte who received it.
"""

LAYOUT: Final[int]
"""The layout of `Shared`, with the journal's entries and the checkpoints."""

@final
class Shared:
    """Memory that outlives a daemon: requests without an answer, a journal, and two checkpoints.

    The requests are the session's. An entry of the journal is eight numbers: kind, file (8 bits each), flags (16),
    thread, path (32), sample (32, signed), request (64), value (64, signed).

    Args:
        fd: a file of shared memory, which is laid out if it is empty.
        entries: how many the journal holds before the oldest is overwritten; a power of two.
        checkpoint_bytes: the largest size of a checkpoint.

    Raises:
        ValueError: the memory has another layout, or is damaged: one line.
    """

    def __init__(self, fd: int, entries: int = 65536, checkpoint_bytes: int = 1 << 20) -> None: ...
    @property
    def position(self) -> int:
        """How many entries were appended."""

    def note(
        self, kind: int, file: int, flags: int, thread: int, path: int, sample: int, request: int, value: int, /
    ) -> None:
        """Append an entry."""

    def entries(self, after: int, /) -> list[tuple[int, int, int, int, int, int, int, int]]:
        """The entries after position ``after``. Raises ValueError if some of them are overwritten."""

    def checkpoint(self, data: Readable, /) -> None:
        """Replace the older checkpoint by ``data``, which covers all entries. Raises ValueError if it is too long."""

    def checkpointed(self) -> tuple[int, bytes] | None:
        """The last checkpoint, and the position that it covers."""

@final
class Histogram:
    """How long something took: counts of times in buckets of fixed bounds, four to each power of two."""

    def __init__(self) -> None: ...
    @property
    def sum_ns(self) -> int:
        """All times together."""

    def record(self, ns: int, /) -> None:
        """Count a time. A negative one counts as zero."""

    def since(self, began_ns: int, /) -> None:
        """Count the time since a moment of `time.monotonic_ns`."""

    def counts(self) -> list[int]:
        """How many times lie in each bucket."""

    @staticmethod
    def bounds_ns() -> list[int]:
        """The upper bound of each bucket, which is not in it. The last bucket has none."""

OpenRecord = tuple[int, int, int, int, int, int, int]
"""(at_ns, took_ns, inode, sample, thread, outcome, error).

``at_ns``   when the open had its reply, since the Unix epoch
``inode``   that was asked for
``sample``  whose file it got; -1: the file itself, or none
``error``   an errno; 0: it did not fail
"""

@final
class Opens:
    """How long opens took, and records of them while somebody reads the records.

    Args:
        histograms: one for each outcome.
        capacity: how many records are kept; a power of two. They take 40 bytes each, while opens are recorded.
        slow_ns: an open that takes as long is slow; 0: none is.
        slow: called with the record of a slow open.
    """

    def __init__(
        self,
        histograms: tuple[Histogram, ...],
        capacity: int,
        slow_ns: int,
        slow: Callable[[OpenRecord], object],
    ) -> None: ...
    def done(self, outcome: int, received_ns: int, inode: int, thread: int, sample: int, error: int, /) -> None:
        """An open that was received at a moment of `time.monotonic_ns` has its reply."""

    def start(self) -> None:
        """Record opens from now on. Raises MemoryError."""

    def stop(self) -> None:
        """Record no more, and free the memory of records."""

    @property
    def is_recording(self) -> bool: ...
    @property
    def position(self) -> int:
        """How many opens were recorded so far."""

    def records(self, after: int, most: int, /) -> tuple[int, list[OpenRecord]]:
        """How many records after position ``after`` are lost, and up to ``most`` of those that follow.

        Raises ValueError if opens are not recorded.
        """

@final
class Session:
    """One mounted filesystem, on the kernel's side.

    Args:
        device: the FUSE descriptor, made non-blocking. Stays the caller's, who closes it after `close`.
        relay: one end of a SOCK_SEQPACKET pair, whose other end libfuse serves; -1 for none. Likewise.
        max_read: the limit of one read, in bytes.
        helpers: threads that answer too, beside the caller of `take`.
        clones: of the descriptor, for the helpers. Those that lack one share it. They stay the caller's.
        shared: what outlives the session. If a former session used it, this one goes on: the requests that wait are
            delivered again, in their order, before new ones are received.
        blames: the former session crashed, which counts against the requests that it was at.
    """

    def __init__(
        self,
        device: int,
        relay: int,
        tree: Tree,
        *,
        max_read: int,
        helpers: int,
        clones: Sequence[int] = (),
        shared: Shared | None = None,
        blames: bool = False,
    ) -> None: ...
    def fileno(self) -> int:
        """Readable when `take` would return or do something: an epoll descriptor."""

    def watch(self, fd: int, /) -> None:
        """`take` also returns, with what it has, when ``fd`` is readable."""

    def take(self, look_us: int, wait_ms: int, /) -> list[Event] | None:
        """Receive requests, answer those that need no decision, and return the others; None when the mount is over.

        Returns as soon as there are events and no further request is there; after some hundred requests, or some 2 ms
        (or ``wait_ms``, if that is more), in any case. If there is nothing, looks for ``look_us``, then sleeps, up to
        ``wait_ms`` in all, and returns an empty list. Where looks after the same kind of request rarely found anything,
        most are left out. It neither looks nor sleeps while requests are with the relay, which may run in this thread:
        wait for `fileno` before the next call. Raises MemoryError without memory for the events, which the next call
        returns, and OSError if no request can be received though the mount is not over.
        """

    def opened(
        self,
        unique: int,
        inode: int,
        thread: int,
        handle: int,
        data: Buffer | None,
        size: int,
        keep_pages: bool,
        shares_pages: bool,
        /,
    ) -> bool:
        """Answer an OPEN: reads of ``handle`` get slices of ``data``, or become events if it is None.

        ``size``: the file is bound: stats of ``inode`` by this thread, and lookups, get this size; -1: they do not.
        ``keep_pages``: pages of ``inode`` in the page cache are right; ``shares_pages``: reads go through it.
        False if nobody waits for the answer any more: no RELEASE will come, and the handle's number is free.

        Raises:
            ValueError: the handle is open already, or not in 1 to 2^20 - 1.
            MemoryError
        """

    def reopened(self, handle: int, inode: int, thread: int, size: int, shares_pages: bool, /) -> None:
        """A file that a former session opened: as `opened`, without bytes and without an answer. Call it before `take`,
        `bind` and `turned`."""

    def answered(self, unique: int, handle: int, shares_pages: bool, /) -> None:
        """Answer an OPEN whose file a former session had opened. The kernel may have the answer already."""

    def released(self, unique: int, handle: int, /) -> None:
        """What a RELEASE asks for is done."""

    def log_opened(self, unique: int, handle: int, /) -> bool:
        """Answer an OPEN of the access log. False if nobody waits for the answer any more."""

    def polled(self, unique: int, events: int, /) -> None:
        """Answer a LOG_POLL: these events of poll(2) are there."""

    def wake(self, waiter: int, /) -> None:
        """Wake the program whose LOG_POLL had this number. One that is gone is no error."""

    def waiting(self) -> list[int]:
        """The requests of former sessions that `take` has not delivered again, in their order."""

    def crashes(self, unique: int, /) -> int:
        """How many sessions crashed while they were at a request that waits."""

    def deciding(self, unique: int, /) -> None:
        """The caller is at this request now; 0: at none."""

    def stat(self, unique: int, entry: int, size: int, bound: bool, /) -> None:
        """Answer a STAT. The kernel may keep the attributes while the file is bound."""

    def data(self, unique: int, data: Readable, /) -> None: ...
    def failed(self, unique: int, errno: int, /) -> None: ...
    def bind(self, entry: int, size: int, /) -> None:
        """The other files of a bound group: as ``size`` in `opened`, without a handle."""

    def turned(self, entries: Sequence[int], /) -> None:
        """Files get another answer: sizes that the kernel got while they had none are void."""

    def freed(self, entries: Sequence[int], /) -> None:
        """Files are not bound any more: attributes and pages in the kernel are void."""

    def changed(self, inode: int, /) -> None:
        """Attributes in the kernel are void."""

    def ask(self, entry: int, asks: bool, /) -> None:
        """Whether lookups, stats and listings of the entry go to the relay, since its columns are out of date."""

    def shed(self, entry: int, /) -> None:
        """The handles of ``entry`` let go of their bytes: their reads become events."""

    def sizes_differ(self, differ: bool, /) -> None:
        """Whether the size of a bound file depends on who asks. Then the kernel keeps none that it gets from now on."""

    def void_size(self, entry: int, settles_ns: int, /) -> bool:
        """The size of a bound file in the kernel is void. False: not yet, as a program may be waiting for it. None is,
        ``settles_ns`` after it opened the file or was told the size."""

    def unhold(self, thread: int, /) -> None:
        """What ``thread`` opened is no longer known as its own; -1: of all threads."""

    def counts(self) -> dict[str, int]:
        """``bytes_served`` (without events), ``requests``, ``handles`` (open now), ``bound`` (files), ``relayed``
        (requests so far), ``malformed`` (requests that made no sense), ``not_voided`` (times that the kernel did not
        void something) and ``looks`` (that `take` began before it slept).
        """

    def close(self) -> None:
        """End the helpers and drop all handles. The descriptors stay open."""

def index_archives(
    archives: Sequence[tuple[int, int, int]],
    *,
    threads: int,
    most_headers: int,
    through_bytes: int,
    long_window: int,
    short_window: int,
    salvages: bool,
    read: Callable[[int, int, int], HasBuffer | int] | None,
    progress: Callable[[int, int], object] | None,
) -> list[tuple[int, int, bytes, bytes, int, int, int, bool, bool]]:
    """Read the headers of tar archives, by threads that have ended when this returns or raises.

    Args:
        archives: a descriptor, or another number for `read`, and the begin and the end of an archive in its file.
        most_headers: in all archives together.
        through_bytes: longer gaps between headers are skipped.
        long_window: bytes that are read at once where gaps are read; ``short_window``: where they are skipped.
        salvages: members before a fault count, and a faulty archive ends no other.
        read: called with a number, a size and a place, by many threads; returns the bytes, or an errno.
        progress: called ten times a second with the headers and the archives so far.

    Returns:
        For each archive its state (0: done, an errno, or those of native/archive.h), the place where it ended or
        failed, its members and their texts (redox_member), how many members were left out (sparse files, special files,
        names that Linux does not allow), whether it has an end mark, and whether bytes follow that. After the first
        failure no further archive is begun.
    """

def scan_directories(
    root: int,
    paths: Sequence[bytes],
    known: Readable,
    *,
    threads: int,
    most_entries: int,
    checks_only: bool,
    progress: Callable[[int, int], object] | None,
) -> tuple[tuple[bytes, ...], int, int, tuple[int, bytes | None, int] | None]:
    """Read the directories at ``paths`` below ``root``, by threads that have ended when this returns or raises.

    Args:
        known: int64[D, 3], or empty: the inode, mtime and ctime that each directory had; inode 0 if they are not known.
            A directory that still has them is not listed.
        most_entries: no further directory is begun after so many. The result is that of the first ones then.
        checks_only: compare the directories with ``known`` and list none.
        progress: called ten times a second with the entries and the directories so far.

    Returns:
        Arrays as bytes: a state for each directory (0: listed, -1: as known, -2: changed, -3: it is gone), their
        attributes, the numbers of their entries, the attributes of these, the lengths of their names, the names, the
        places of symlinks among the entries, the lengths of their targets, the targets, and device and inode of the
        file at the end of each. `redoxfs.dataset.new_tree.Found` has the types. Then the number of sockets and the
        like, whether the root has a control folder, and the first failure: the directory, the name in it, or None, and
        an errno.

    Raises:
        ValueError: an argument is out of range.
        OSError: no thread can be started.
        Exception: as ``progress``, or a signal's handler.
    """
