"""Write one shard, and check one against the index.

A shard is written file by file in the order of the source's inodes, which on most filesystems is close to the order on
disk, with many reads in flight. Each file goes to its position. The bytes between files (headers, padding, the end)
depend on the tree alone, so a check compares all of them.

A worker process does one shard at a time. The reading threads share only the array of checksums, in which each writes
its own elements.
"""

import errno
import io
import os
import stat
import tarfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from redoxfs.arrays import ranges
from redoxfs.chunks import open_beneath
from redoxfs.dataset import SourceError, Tree, array_files, show
from redoxfs.linux.descriptors import opened
from redoxfs.linux.times import ctime_ns, mtime_ns
from redoxfs.packed.headers import BLOCK_BYTES, RECORD_BYTES, header_of
from redoxfs.packed.index import SUM_BLOCK_BYTES, Sums, block_offsets
from redoxfs.packed.positions import Positions

READS_IN_FLIGHT = 32
"""Files that one worker reads at once. Network storage and cloud volumes need as many for their full rate."""

BATCH_FILES = 16
"""Files handed to a thread at a time. One at a time, handing over would cost more than copying small files."""

PROBLEMS_PER_SHARD = 20
"""Listed one by one. Of further problems only the number is given."""

HEADER_READ_BYTES = 1 << 16
"""Bytes read of a header that should not be there. Enough for any header that was not made long on purpose."""

PACK_AGAIN = "when SOURCE no longer changes, remove DST and pack again with --rescan"

Progress = Callable[[int, int], None]
"""Called from any thread with the files and bytes done since the last call."""


class StoppedError(Exception):
    """The work was told to stop."""


@dataclass(frozen=True, slots=True, eq=False)
class ShardMap:
    """The entries of each shard, in their order, and the positions of their checksums among all."""

    tree: Tree
    positions: Positions
    block_at: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]

    @classmethod
    def of(cls, tree: Tree, positions: Positions) -> "ShardMap":
        order = np.lexsort((positions.data_at, positions.shard))
        starts = np.searchsorted(positions.shard[order], np.arange(len(positions.shard_names) + 1))
        return cls(tree, positions, block_offsets(tree), order, starts)

    def entries(self, shard: int) -> npt.NDArray[np.int64]:
        """The entries of a shard in their order."""
        return self.order[self.starts[shard] : self.starts[shard + 1]]

    def blocks(self, shard: int) -> npt.NDArray[np.int64]:
        """The indices of a shard's checksums among all, in the order of its entries."""
        entries = self.entries(shard)
        first = self.block_at[entries]
        return ranges(first, self.block_at[entries + 1] - first)


def write_shard(
    shards: ShardMap, shard: int, root_fd: int, path: Path, *, progress: Progress, stopping: Callable[[], bool]
) -> Sums:
    """Write a shard to ``path`` and sync it. Return the checksums of its files, in their order.

    Raises:
        SourceError: a file of the source cannot be read, or has changed since the scan.
        OSError: ``path`` cannot be written.
        StoppedError: ``stopping`` returned True.
    """
    entries = shards.entries(shard)
    tree = shards.tree
    first_block = np.zeros(len(tree), np.int64)
    counts = shards.block_at[entries + 1] - shards.block_at[entries]
    first_block[entries] = np.cumsum(counts) - counts
    sums = np.zeros(int(counts.sum()), np.uint64)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    failed = threading.Event()

    def copy(batch: list[int]) -> None:
        for entry in batch:
            if failed.is_set() or stopping():
                raise StoppedError
            data_at = int(shards.positions.data_at[entry])
            for size in _copy(tree, entry, root_fd, fd, data_at, sums, int(first_block[entry])):
                progress(0, size)
                if failed.is_set() or stopping():
                    raise StoppedError
            progress(1, 0)

    try:
        _reserve(fd, shards.positions.shard_bytes[shard])
        by_inode = entries[np.argsort(tree.inode[entries], kind="stable")].tolist()
        batches = [by_inode[i : i + BATCH_FILES] for i in range(0, len(by_inode), BATCH_FILES)]
        with ThreadPoolExecutor(READS_IN_FLIGHT, thread_name_prefix="redoxfs-pack") as pool:
            _run(pool, copy, batches, failed)
        os.fsync(fd)
    finally:
        os.close(fd)
    return sums


def _run(
    pool: ThreadPoolExecutor, copy: Callable[[list[int]], None], batches: list[list[int]], failed: threading.Event
) -> None:
    """Run all batches, and stop soon after the first failure. Raise that failure, not those it caused."""
    futures: list[Future[None]] = [pool.submit(copy, batch) for batch in batches]
    wait(futures, return_when=FIRST_EXCEPTION)
    failed.set()
    pool.shutdown(cancel_futures=True)
    errors = [future.exception() for future in futures if future.done() and not future.cancelled()]
    real = [error for error in errors if error is not None]
    real.sort(key=lambda error: isinstance(error, StoppedError))
    if real:
        raise real[0]


def _reserve(fd: int, length: int) -> None:
    """Reserve the whole shard, in one piece if the filesystem can. A full disk fails here."""
    try:
        os.posix_fallocate(fd, 0, length)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        os.ftruncate(fd, length)


def _copy(tree: Tree, entry: int, root_fd: int, fd: int, data_at: int, sums: Sums, block: int) -> Iterator[int]:
    """Write an entry to its position, piece by piece. Yield the length of each piece."""
    header = header_of(tree, entry)
    if not tree.is_file(entry):
        _write(fd, header, data_at - len(header))
        return
    name = tree.path(entry)
    size = int(tree.size[entry])
    try:
        with source_file(tree, entry, root_fd) as source:
            _write(fd, header, data_at - len(header))
            for at in range(0, size, SUM_BLOCK_BYTES):
                data = read_exactly(source, at, min(SUM_BLOCK_BYTES, size - at), name)
                sums[block] = xxhash.xxh3_64_intdigest(data)
                block += 1
                _write(fd, data, data_at + at)
                yield len(data)
    except _WriteError as error:
        raise error.cause from None


@contextmanager
def source_file(tree: Tree, entry: int, root_fd: int) -> Iterator[int]:
    """A descriptor of a file of the source. Checks before and after the block that the file is as the scan found it.

    Raises:
        SourceError: it has changed, or the block or the open raised OSError.
    """
    name = tree.path(entry)
    known = (int(tree.size[entry]), int(tree.mtime_ns[entry]), int(tree.ctime_ns[entry]))
    try:
        with opened(open_beneath(root_fd, name)) as source:
            _must_be(source, known, name)
            yield source
            _must_be(source, known, name)
    except OSError as error:
        raise SourceError(f"{show(name)}: {error.strerror}; a packed dataset must hold every file") from None


def _must_be(source: int, known: tuple[int, int, int], name: bytes) -> None:
    """Raise SourceError unless an open file has this size, mtime and ctime."""
    now = os.fstat(source)
    if not stat.S_ISREG(now.st_mode) or (now.st_size, mtime_ns(now), ctime_ns(now)) != known:
        raise SourceError(f"{show(name)} has changed since it was scanned; {PACK_AGAIN}")


def read_exactly(source: int, at: int, size: int, name: bytes) -> bytes:
    """Bytes of an open file. Raises SourceError if it ends before."""
    data = os.pread(source, size, at)
    while len(data) < size:
        more = os.pread(source, size - len(data), at + len(data))
        if not more:
            raise SourceError(f"{show(name)} became shorter while it was read; {PACK_AGAIN}")
        data += more
    return data


class _WriteError(Exception):
    """An error of the shard, as opposed to an error of the source."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _write(fd: int, data: bytes, at: int) -> None:
    buffer = memoryview(data)
    try:
        while buffer:
            done = os.pwrite(fd, buffer, at)
            buffer = buffer[done:]
            at += done
    except OSError as error:
        raise _WriteError(error) from None


Pread = Callable[[int, int], bytes]
"""Reads so many bytes of a shard from an offset; fewer at its end. Raises OSError."""


def check_shard(
    shards: ShardMap,
    shard: int,
    path: Path,
    sums: Sums,
    *,
    progress: Progress,
    stopping: Callable[[], bool] = lambda: False,
) -> list[str]:
    """The problems of a shard, a line each. ``sums`` are those of `write_shard`.

    Raises:
        OSError: the shard cannot be read.
        StoppedError: ``stopping`` returned True.
    """
    with array_files.open_plain(path) as file:
        fd = file.fileno()
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        length = os.fstat(fd).st_size
        return check_bytes(shards, shard, length, partial(os.pread, fd), sums, progress=progress, stopping=stopping)


def check_bytes(
    shards: ShardMap,
    shard: int,
    found_bytes: int,
    read: Pread,
    sums: Sums,
    *,
    progress: Progress,
    stopping: Callable[[], bool] = lambda: False,
) -> list[str]:
    """As `check_shard`, of a shard that is ``found_bytes`` long, wherever it lies. Its bytes are read in order."""
    problems: list[str] = []
    more = 0
    for problem in _problems(shards, shard, found_bytes, read, sums, progress, stopping):
        if len(problems) < PROBLEMS_PER_SHARD:
            problems.append(f"{shards.positions.shard_names[shard]}: {problem}")
        else:
            more += 1
    if more:
        problems.append(f"{shards.positions.shard_names[shard]}: {more:,} more")
    return problems


def _problems(
    shards: ShardMap,
    shard: int,
    found: int,
    read: Pread,
    sums: Sums,
    progress: Progress,
    stopping: Callable[[], bool],
) -> Iterator[str]:
    tree, positions = shards.tree, shards.positions
    length = positions.shard_bytes[shard]
    if found != length:
        yield f"{found:,} bytes long instead of {length:,}"
    at = block = 0
    for entry in shards.entries(shard).tolist():
        if stopping():
            raise StoppedError
        header, data_at = header_of(tree, entry), int(positions.data_at[entry])
        begin = data_at - len(header)
        if begin < at:
            yield f"{show(tree.path(entry))}: overlaps the entry before it"
        elif begin - at >= BLOCK_BYTES:
            yield f"{show(tree.path(entry))}: {begin - at:,} bytes before it, at {at:,}, belong to no entry"
        elif read(begin - at, at).strip(b"\0"):
            yield f"{show(tree.path(entry))}: bytes before it, at {at:,}, are not zero"
        if begin < 0 or read(len(header), begin) != header:
            yield _other_header(read, max(0, begin), tree.path(entry))
        size = int(tree.size[entry]) if tree.is_file(entry) else 0
        wrong = False
        for offset in range(0, size, SUM_BLOCK_BYTES):
            if stopping():
                raise StoppedError
            data = read(min(SUM_BLOCK_BYTES, size - offset), data_at + offset)
            wrong |= xxhash.xxh3_64_intdigest(data) != int(sums[block])
            block += 1
        if wrong:
            yield f"{show(tree.path(entry))}: wrong checksum at {data_at:,}"
        at = max(at, data_at + size)
        progress(1, size)
    # Padding, two blocks of zeros, and padding to whole records.
    if length - at > 3 * BLOCK_BYTES + RECORD_BYTES:
        yield f"{length - at:,} bytes after the last entry, at {at:,}, belong to no entry"
    elif read(max(0, length - at), at).strip(b"\0"):
        yield f"bytes after the last entry, at {at:,}, are not zero"


def _other_header(read: Pread, at: int, name: bytes) -> str:
    """Describe the bytes at ``at``, where the header of ``name`` should be."""
    due = f"at {at:,}: not the header of {show(name)}"
    begins = io.BytesIO(read(HEADER_READ_BYTES, at))
    try:
        # Includes long names that come before it.
        with tarfile.open(fileobj=begins, mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
            there = tar.next()
    except Exception:  # foreign bytes can raise anything
        there = None
    if there is None:
        return f"{due}, nor any other"
    other = show(there.name.encode("utf-8", "surrogateescape"))
    if there.isdev():
        return f"{due} but of {other}, a device or the like"
    if there.name.startswith("/") or ".." in there.name.split("/"):
        return f"{due} but of {other}, which leads out of the tree"
    if there.islnk():
        return f"{due} but of {other}, a hard link to {show(there.linkname.encode('utf-8', 'surrogateescape'))}"
    if there.name.encode("utf-8", "surrogateescape").rstrip(b"/") == name:
        return f"{due} as it was packed"
    return f"{due} but of {other}"
