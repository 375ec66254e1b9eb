"""--cache: copies of samples on a local disk, for a mount or for `redoxfs warmup`."""

import logging
import os
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from redoxfs.launch.errors import DestinationError, UsageError
from redoxfs.launch.options import CacheOptions
from redoxfs.launch.say import say
from redoxfs.launch.sizes import counted, format_bytes, parse_size
from redoxfs.launch.source import Dataset, fingerprint_of

if TYPE_CHECKING:
    from redoxfs.arrays import Flags
    from redoxfs.cache import CacheStore
    from redoxfs.chunks import ChunkStore

_DEFAULT_SHARE = 0.9

_LEAST_FREE_BYTES = 1 << 16

log = logging.getLogger(__name__)


class DiskError(DestinationError):
    """The disk of DIR is full or fails."""


def resolved_cache(cache: CacheOptions) -> CacheOptions:
    """The same, with an absolute DIR. Raises UsageError."""
    if cache.cache is None:
        if cache.cache_size is not None:
            raise UsageError("--cache-size needs --cache DIR")
        return cache
    if cache.cache_size is not None:
        parse_size(cache.cache_size, 1 << 40, "--cache-size")
    return replace(cache, cache=os.path.realpath(cache.cache))


def check_cache(cache: CacheOptions, *apart: tuple[str, Path]) -> None:
    """Make DIR. Refuse one that lies in one of the folders ``apart``, each with its name. Raises DestinationError."""
    if cache.cache is None:
        return
    from redoxfs.cache import CacheError, Root

    path = Path(cache.cache)
    for what, folder in apart:
        if folder in (path, *path.parents):
            raise DestinationError(f"--cache {path}: lies inside {what} ({folder})")
    try:
        # Now rather than after the scan.
        Root(path).close()
    except CacheError as error:
        if not error.is_disk:
            raise DestinationError(f"--cache {error}") from None


def with_cache(
    store: "ChunkStore",
    dataset: Dataset,
    cache: CacheOptions,
    *,
    source: str,
    memory_bytes: int,
    is_first: bool,
    reads: "Flags | None" = None,
) -> "ChunkStore":
    """``store``, with its copies in DIR, if there is one. Raises DestinationError, UsageError.

    If the disk of DIR is full or fails, it prints one line and returns ``store`` as it is. So does any daemon but the
    first whatever the trouble is, because programs wait for the mount.
    """
    if cache.cache is None:
        return store
    if not len(dataset.catalog.class_of):
        say("no cache: it would keep samples of classes, and there is none here (see --classes)")
        return store
    try:
        return open_cache(store, dataset, cache, source=source, memory_bytes=memory_bytes, reads=reads)
    except DiskError as error:
        say(f"no cache: {error}")
    except (DestinationError, UsageError) as error:
        if is_first:
            raise
        log.warning("no cache: %s", error)
    return store


def open_cache(
    store: "ChunkStore",
    dataset: Dataset,
    cache: CacheOptions,
    *,
    source: str,
    memory_bytes: int,
    reads: "Flags | None" = None,
) -> "CacheStore":
    """``store`` with its copies in DIR. Describes the cache on stderr. Raises DestinationError, UsageError.

    ``reads``: bool[S], the samples that this node reads; None: all.
    """
    from redoxfs.cache import CacheError, CacheStore, Root, key_of
    from redoxfs.cache.copies import Copies
    from redoxfs.cache.writer import Writer
    from redoxfs.launch.own_memory import waiting_bytes

    assert cache.cache is not None
    index = dataset.index
    checksum = None if index is None else index.checksum
    # Whoever goes on without a cache must not keep it in use.
    with ExitStack() as opened:
        try:
            root = Root(Path(cache.cache))
            opened.callback(root.close)
            root.sweep()
            room = root.free_bytes() + root.used_bytes()
            most = int(room * _DEFAULT_SHARE) if cache.cache_size is None else parse_size(cache.cache_size, room)
            key = key_of(dataset.catalog, fingerprint_of(dataset), checksum)
            folder = root.folder(key)
            opened.callback(folder.close)
            # Only people and `make_room` need it. On a full disk, copies are served without it.
            with suppress(OSError):
                folder.describe({"source": source, "fingerprint": fingerprint_of(dataset)})
            copies = Copies(dataset.catalog, dataset.cells, folder)
            opened.callback(copies.close)
            copies.load()
            if not copies.number and root.free_bytes() < _LEAST_FREE_BYTES:
                raise DiskError(f"--cache {cache.cache}: its disk is full")
            is_missing = np.frombuffer(copies.here, np.uint8) == 0
            needs = int(dataset.catalog.sample_bytes[is_missing if reads is None else is_missing & reads].sum())
            try:
                for entry in root.make_room(needs, most, key):
                    size = format_bytes(entry.size)
                    say(f"cache: removed {entry.key} ({size} of {entry.source or 'a dataset'}) to make room")
            except CacheError as error:
                # The copies that are there are served from a disk that takes no more.
                if not (copies.number and error.is_disk):
                    raise
        except CacheError as error:
            raise (DiskError if error.is_disk else DestinationError)(f"--cache {error}") from None
        except OSError as failure:
            trouble = CacheError.of(cache.cache, failure)
            raise (DiskError if trouble.is_disk else DestinationError)(f"--cache {trouble}") from None
        opened.pop_all()
    waiting = waiting_bytes(memory_bytes)
    samples = counted(len(copies.here), "sample")
    say(
        f"cache: {copies.number:,} of {samples}, {format_bytes(copies.size)}, in {cache.cache}, "
        f"which may hold {format_bytes(most)} (--cache-size)"
    )
    if most > room:
        say(
            f"cache: --cache-size {cache.cache_size} is more than the disk of {cache.cache} has room for, which is "
            f"{format_bytes(room)}: copies end when it is full"
        )
    if copies.damaged_bytes:
        say(f"cache: ignored {format_bytes(copies.damaged_bytes)} of its index, which are damaged")
    writer = Writer(folder, copies, most_bytes=most, most_waiting_bytes=waiting)
    return CacheStore(dataset.catalog, store, copies, writer, is_fixed=index is not None)
