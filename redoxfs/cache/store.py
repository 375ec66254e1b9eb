"""The chunk store of a mount with --cache: reads copies where they are, and all else from the source.

The store offers samples from the source to the writer, load by load, so that the samples of a chunk lie side by side in
the cache and a later epoch reads them in one sweep. If a copy cannot be read, or has wrong checksums, the store reads
the sample from the source (`CopyRead`), and never uses the copy again.

It copies only files that are as the scan found them. Any thread may call anything here.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from redoxfs.cache.copies import Copies
from redoxfs.cache.writer import Offered, Writer
from redoxfs.chunks import BackgroundRead, ChunkStore, FileBytes, NativeRead, Payload, Read, SourceFile, Stamp
from redoxfs.chunks.store import CopyRead
from redoxfs.packed.sharded import PackedFile, ShardedStore

if TYPE_CHECKING:
    from redoxfs.dataset import Catalog
    from redoxfs.native import Files, Shards
    from redoxfs.native._native import FileResult

LEAST_FAILURES = 64
MOST_FAILED = 0.1
"""After so many copies that could not be read, if they are more than this share of all, the store stops reading the
cache: its disk is failing."""

COPIES_DEPTH = 8
"""Reads of copies in flight. A few saturate a local disk, and each has the bytes of a part of a chunk."""

CLOSE_S = 2.0
"""How long the end of a mount waits for the writer."""

log = logging.getLogger(__name__)


class CacheStore(ChunkStore):
    """``source`` with its ``copies``, which ``writer`` makes.

    Args:
        is_fixed: files of the source cannot change, so single files are read from copies, too.
    """

    def __init__(
        self, catalog: "Catalog", source: ChunkStore, copies: Copies, writer: Writer, *, is_fixed: bool
    ) -> None:
        self._source = source
        self._copies = copies
        self._writer = writer
        self._is_fixed = is_fixed
        self._members: memoryview[int] = catalog.members.data
        self._member_at: memoryview[int] = catalog.member_at.data
        self._sample_of: memoryview[int] = catalog.sample_of.data
        self._size: memoryview[int] = catalog.tree.size.data
        self._mtime_ns: memoryview[int] = catalog.tree.mtime_ns.data
        self._failures = 0
        self._gives_up = False
        self._counting = threading.Lock()
        self._read_bytes = 0
        self._read_samples = 0
        self._loaded_samples = 0
        self.depth = source.depth
        self.copies_depth = COPIES_DEPTH
        self.most_depth = source.most_depth
        self.most_held_bytes = source.most_held_bytes

    def reads(self, chunk: int, samples: Sequence[int]) -> Sequence[Read]:
        """Reads of copies, and of the source for the rest; those with the first sample first."""
        here = self._copies.here
        cached = [] if self._gives_up else [sample for sample in samples if here[sample]]
        if not cached:
            return self._from_source(chunk, samples)
        copies = [self._copy_read(chunk, read) for read in self._copies.reads(chunk, cached)]
        if len(cached) == len(samples):
            return copies
        is_cached = set(cached)
        others = self._from_source(chunk, [sample for sample in samples if sample not in is_cached])
        return [*copies, *others] if samples[0] in is_cached else [*others, *copies]

    def read_range(self, sample: int, file: int, stamp: Stamp, offset: int, size: int) -> bytes:
        """Read bytes of one file of a sample again, from its copy if that has the content of ``stamp``."""
        entry = self._members[self._member_at[sample] + file]
        is_scanned = stamp.size == self._size[entry] and stamp.mtime_ns == self._mtime_ns[entry]
        if is_scanned and self._copies.here[sample] and not self._gives_up:
            try:
                data = self._copies.read_range(sample, file, stamp, offset, size)
            except OSError as error:
                self._failed(sample, error)
            else:
                self._note_read(1, len(data))
                return data
        return self._source.read_range(sample, file, stamp, offset, size)

    def open_file(self, entry: int) -> SourceFile:
        """Open any file of the tree as it is now."""
        sample = self._sample_of[entry]
        if self._is_fixed and sample >= 0 and self._copies.here[sample] and not self._gives_up:
            return _CopiedFile(self, entry, sample)
        return self._source.open_file(entry)

    def stats(self) -> Mapping[str, int] | None:
        """Those of the source."""
        return self._source.stats()

    def cache_stats(self) -> dict[str, int | bool]:
        """Its part of stats.json: `cache`."""
        writer, copies = self._writer, self._copies
        return {
            "samples": copies.number,
            "size_bytes": copies.size,
            "read_samples": self._loaded_samples,
            "read_bytes": self._read_bytes,
            "written_bytes": writer.written_bytes,
            "left_out": writer.left_out,
            "failures": self._failures,
            "writes": writer.failure is None and not writer.is_full,
        }

    @property
    def failure(self) -> OSError | None:
        """Why the writer gave up, if it did."""
        return self._writer.failure

    def flush(self) -> None:
        """Wait until all samples that were read are written, or given up."""
        self._writer.flush()

    def start(self) -> None:
        """Those of the source; the writer's start with the first copies."""
        self._source.start()

    def end(self) -> None:
        """Write the samples that wait, within some seconds. No read may follow."""
        self._writer.close(CLOSE_S)

    # Copies

    def _copy_read(self, chunk: int, read: Read) -> Read:
        assert isinstance(read, NativeRead)
        return CopyRead(read, self._note_loaded, partial(self._instead, chunk))

    def _note_loaded(self, samples: int, size: int) -> None:
        self._note_read(samples, size)
        with self._counting:
            self._loaded_samples += samples

    def _note_read(self, samples: int, size: int) -> None:
        with self._counting:
            self._read_samples += samples
            self._read_bytes += size

    def _instead(self, chunk: int, samples: Sequence[int], errors: Sequence[OSError]) -> Sequence[Read]:
        """Reads of the source for samples whose copies could not be read."""
        for sample, error in zip(samples, errors, strict=True):
            self._failed(sample, error)
        return self._from_source(chunk, samples)

    def _failed(self, sample: int, error: OSError) -> None:
        what = self._copies.forget(sample)
        if what is None:
            return
        self._writer.take_back(what)
        with self._counting:
            self._failures += 1
            is_first = self._failures == 1
            gives_up = self._failures >= LEAST_FAILURES and self._failures > MOST_FAILED * self._read_samples
            gives_up, self._gives_up = gives_up and not self._gives_up, self._gives_up or gives_up
        name = self._writer.name
        if is_first:
            log.warning(
                "%s: a copy cannot be used, so its file is read from SOURCE: %s "
                "(cache.failures in stats.json counts such copies)",
                name,
                error,
            )
        if gives_up:
            log.error("%s: this mount stops reading the cache: %d of its copies cannot be used", name, self._failures)

    # The source

    def _from_source(self, chunk: int, samples: Sequence[int]) -> Sequence[Read]:
        reads = self._source.reads(chunk, samples)
        if self._writer.is_over:
            self._writer.leave_out(len(samples))
            return reads
        load = _Load(len(samples), self._offer)
        return [_observed(read, load) for read in reads]

    def _offer(self, samples: Sequence[tuple[int, Payload]], *, waits: bool = False) -> None:
        """All of a load has arrived."""
        offered = []
        for sample, payload in samples:
            entries = self._members[self._member_at[sample] : self._member_at[sample + 1]].tolist()
            files = [file for file in payload if isinstance(file, FileBytes)]
            if len(files) == len(entries) and all(map(self._is_as_scanned, entries, files)):
                offered.append(Offered(sample, entries, files, sum(len(file.data) for file in files)))
        if offered:
            self._writer.offer(offered, waits=waits)

    def _is_as_scanned(self, entry: int, file: FileBytes) -> bool:
        stamp = file.stamp
        return (
            not file.changed
            and len(file.data) == stamp.size == self._size[entry]
            and stamp.mtime_ns == self._mtime_ns[entry]
        )

    # To fill the cache without a mount

    @property
    def is_writing(self) -> bool:
        """Whether the writer still makes copies."""
        return not self._writer.is_over

    def has(self, sample: int) -> bool:
        """Whether a copy of the sample is here."""
        return bool(self._copies.here[sample])

    def copy(self, chunk: int, samples: Sequence[int]) -> list[OSError]:
        """Read samples from the source and offer them, waiting for the writer. Blocks. Returns the errors."""
        found: list[tuple[int, Payload]] = []
        for read in self._source.reads(chunk, samples):
            payloads = _carried_out(read) if isinstance(read, BackgroundRead) else read.run()
            found += zip(read.samples, payloads, strict=True)
        self._offer(found, waits=True)
        return [file for _, payload in found for file in payload if isinstance(file, OSError)]


class _Load:
    """Collects the samples of one load until all have arrived."""

    def __init__(self, samples: int, whole: Callable[[Sequence[tuple[int, Payload]]], None]) -> None:
        self._left = samples
        self._whole = whole
        self._here: list[tuple[int, Payload]] = []
        self._lock = threading.Lock()

    def arrived(self, samples: Sequence[int], payloads: Sequence[Payload]) -> None:
        with self._lock:
            here = self._here
            here.extend(zip(samples, payloads, strict=False))
            self._left -= len(samples)
            if self._left:
                return
            self._here = []
        self._whole(here)


def _observed(read: Read, load: _Load) -> Read:
    if isinstance(read, NativeRead):
        return _ObservedNative(read, load)
    if isinstance(read, BackgroundRead):
        return _ObservedBackground(read, load)
    return Read(read.samples, partial(_run, read, load))


def _run(read: Read, load: _Load) -> Sequence[Payload]:
    payloads = read.run()
    load.arrived(read.samples, payloads)
    return payloads


class _ObservedNative(NativeRead):
    """A read of the source that offers its results as they become Python objects."""

    __slots__ = ("_load", "_read")

    def __init__(self, read: NativeRead, load: _Load) -> None:
        self.samples = read.samples
        self.entries = read.entries
        self._read = read
        self._load = load

    @property
    def native(self) -> "Files | Shards":
        return self._read.native

    def run(self) -> Sequence[Payload]:
        return self.payloads(self._read.native.read(self.entries))

    def payloads(self, results: "Sequence[FileResult]") -> Sequence[Payload]:
        payloads = self._read.payloads(results)
        self._load.arrived(self.samples, payloads)
        return payloads

    def failed(self, error: OSError) -> Sequence[Payload]:
        return self._read.failed(error)


class _ObservedBackground(BackgroundRead):
    __slots__ = ("_load", "_read")

    def __init__(self, read: BackgroundRead, load: _Load) -> None:
        super().__init__(read.samples, read.held_bytes)
        self._read = read
        self._load = load

    def run(self) -> Sequence[Payload]:
        return _run(self._read, self._load)

    def begin(self, done: Callable[[Sequence[Payload]], None]) -> Callable[[], None]:
        def here(payloads: Sequence[Payload]) -> None:
            # The reader first.
            done(payloads)
            self._load.arrived(self.samples, payloads)

        return self._read.begin(here)


def _carried_out(read: BackgroundRead) -> Sequence[Payload]:
    arrived = threading.Event()
    found: list[Payload] = []

    def here(payloads: Sequence[Payload]) -> None:
        found.extend(payloads)
        arrived.set()

    read.begin(here)
    arrived.wait()
    return found


class _CopiedFile:
    """An open file of a source that cannot change: its copy, and the source once that fails."""

    def __init__(self, store: CacheStore, entry: int, sample: int) -> None:
        self._store = store
        self._entry = entry
        self._sample = sample
        copies: ShardedStore = store._copies
        self._file: SourceFile = PackedFile(copies, entry)
        self._is_copy = True
        self.stamp = copies.stamp(entry)

    def read(self, offset: int, size: int) -> bytes:
        try:
            data = self._file.read(offset, size)
            if self._is_copy:
                self._store._note_read(0, len(data))
            return data
        except OSError as error:
            if not self._is_copy:
                raise
            self._store._failed(self._sample, error)
            self._file = self._store._source.open_file(self._entry)
            self._is_copy = False
            return self._file.read(offset, size)

    def close(self) -> None:
        self._file.close()
