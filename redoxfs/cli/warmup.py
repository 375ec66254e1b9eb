"""`redoxfs warmup`: read all samples of SOURCE into a cache."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from redoxfs.cli.jobs import end_as_by_ctrl_c
from redoxfs.cli.options.caches import WarmupOptions
from redoxfs.cli.progress import showing
from redoxfs.launch.archives import with_archives
from redoxfs.launch.cache import check_cache, open_cache, resolved_cache
from redoxfs.launch.errors import DestinationError, SourceUnusableError
from redoxfs.launch.open_files import allow_open_files, opened_store
from redoxfs.launch.options import MemoryOptions
from redoxfs.launch.path_status import path_status
from redoxfs.launch.say import say
from redoxfs.launch.sizes import counted, format_bytes
from redoxfs.launch.source import Dataset, Opening, Reading, check_source, open_dataset, open_root, say_verdict

if TYPE_CHECKING:
    from redoxfs.cache import CacheStore

# In place of --memory: requests in flight and samples that wait to be written take shares of it.
_MEMORY_BYTES = 2 << 30

_READ_BYTES = 512 << 20
"""The most memory of reads in progress, unless a single sample takes more."""

_PIECE_BYTES = 16 << 20
"""The most that one job reads at once, so that a chunk of large samples does not take all memory."""


def run(options: WarmupOptions) -> int:
    """Fill the cache. Raises CommandError."""
    end_as_by_ctrl_c()
    allow_open_files()
    cache = resolved_cache(options.cache)
    source = path_status(options.source, options.timeout_s)
    source = with_archives(source, options.timeout_s, options.dataset)
    check_source(source)
    if source.address is None:
        check_cache(cache, ("SOURCE", source.path))
    root_fd = open_root(source)
    dataset = open_dataset(
        Opening(
            source,
            root_fd,
            options.dataset,
            MemoryOptions(),
            options.timeout_s,
            measure_storage=True,
            is_cached=True,
        )
    )
    say_verdict(dataset.catalog.verdict)
    if not len(dataset.catalog.class_of):
        raise SourceUnusableError(f"{source.name}: a cache keeps samples of classes, and there is none; see --classes")
    store = open_cache(
        opened_store(dataset, Reading(_MEMORY_BYTES, options.timeout_s, guards=False), source.name),
        dataset,
        cache,
        source=source.name,
        memory_bytes=_MEMORY_BYTES,
    )
    return _filled(dataset, store, options.jobs)


def _filled(dataset: Dataset, store: "CacheStore", jobs: int) -> int:
    sizes = dataset.catalog.sample_bytes
    wanted = list(_wanted(dataset, store))
    total = sum(int(sizes[chunk].sum()) for _, chunk in wanted)
    lock = threading.Lock()
    room = _Room(_READ_BYTES)
    done = failed = size = 0
    first: OSError | None = None

    def copy(chunk: int, members: list[int]) -> None:
        nonlocal done, failed, size, first
        if not store.is_writing:
            return
        bytes_read = int(sizes[members].sum())
        with room.taken(bytes_read):
            errors = store.copy(chunk, members)
        with lock:
            done += len(members)
            size += bytes_read
            failed += len(errors)
            first = first or (errors[0] if errors else None)
            progress(done, size, total)

    pool = ThreadPoolExecutor(jobs)
    try:
        with showing("warmup") as progress:
            for _ in pool.map(lambda each: copy(*each), wanted):
                pass
            store.flush()
    finally:
        # After Ctrl-C as well, so that what was read is kept. A second Ctrl-C breaks this off.
        pool.shutdown(cancel_futures=True)
        store.flush()
        stats, failure = store.cache_stats(), store.failure
        store.end()
        there = f"{stats['samples']:,} of {counted(len(sizes), 'sample')}, {format_bytes(int(stats['size_bytes']))}"
        say(f"in the cache: {there}")
    if first is not None:
        raise SourceUnusableError(f"{counted(failed, 'file')} could not be read; the first: {first}")
    if not stats["writes"]:
        why = "the cache is full (--cache-size)" if failure is None else f"the cache was given up: {failure.strerror}"
        raise DestinationError(f"{why}; mounts read the other samples from SOURCE")
    if (changed := len(sizes) - int(stats["samples"])) > 0:
        say(f"{counted(changed, 'sample')} changed since the scan and are not kept (--rescan)")
    return 0


def _wanted(dataset: Dataset, store: "CacheStore") -> Iterator[tuple[int, list[int]]]:
    """Pieces of chunks, with those of their samples that are not in the cache."""
    sizes: memoryview[int] = dataset.catalog.sample_bytes.data
    for chunk, row in enumerate(dataset.cells.cells.tolist()):
        piece: list[int] = []
        size = 0
        for sample in row:
            if sample < 0 or store.has(sample):
                continue
            if piece and size + sizes[sample] > _PIECE_BYTES:
                yield chunk, piece
                piece, size = [], 0
            piece.append(sample)
            size += sizes[sample]
        if piece:
            yield chunk, piece


class _Room:
    """A number of bytes, of which threads take a part and give it back."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._taken = 0
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Wait until there is room for ``size`` bytes, or no other thread has any."""
        with self._changed:
            self._changed.wait_for(lambda: not self._taken or self._taken + size <= self._most)
            self._taken += size
        try:
            yield
        finally:
            with self._changed:
                self._taken -= size
                self._changed.notify_all()
