"""The chunk store that reads the members of archives, and the chunks that they form.

It reads as the packed store does, from the same places. There are no checksums: an archive is served while it has the
length, mtime and inode with which it was indexed, and reads fail once it has not. A sample's files may lie in any order
and at any distance in their archive, since nobody packed them.
"""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import redoxfs.native._native as faults
from redoxfs.chunks import Cells, NativeRead, Payload, StorageSpeed, divisors
from redoxfs.chunks.store import Access, NarrowedError
from redoxfs.dataset import Catalog
from redoxfs.linux.times import mtime_ns
from redoxfs.packed.archive_cache import ArchiveIndex
from redoxfs.packed.index import Index
from redoxfs.packed.positions import Positions
from redoxfs.packed.sharded import ShardedStore, Sweep
from redoxfs.packed.store import NOT_HERE, PackedStore

if TYPE_CHECKING:
    from redoxfs.native._native import FileResult

CHUNK_SIZE = 64
"""The most samples of a chunk, as of a packed dataset. A mount takes fewer where that reads as well."""

STREAM_SHARE = 0.1
"""The share of the samples that the pool shuffles; memory above it keeps samples from lap to lap."""

CHUNKS_OF_CLASS = 0.75
"""See `size_for_classes`."""


def index_of(found: ArchiveIndex, catalog: Catalog, cells: Cells, *, seed: int) -> Index:
    """The index of a packed dataset, for archives: without sums, and with versions."""
    count = len(catalog.tree)
    return Index(
        catalog=catalog,
        cells=cells,
        positions=_positions(found),
        sums=np.zeros(0, np.uint64),
        block_at=np.zeros(count + 1, np.int64),
        seed=seed,
        asked={"layout": found.layout},
        checksum=found.checksum,
        versions=found.versions,
    )


def chunks_of(found: ArchiveIndex, catalog: Catalog) -> Cells:
    """The chunks of the samples in archives."""
    return runs(catalog, _positions(found), CHUNK_SIZE)


def _positions(found: ArchiveIndex) -> Positions:
    return Positions(
        found.grown.shard,
        found.grown.data_at,
        tuple(archive.path for archive in found.archives),
        tuple(archive.bytes for archive in found.archives),
    )


def runs(catalog: Catalog, positions: Positions, chunk_size: int) -> Cells:
    """Chunks of samples that lie side by side in one archive, and are of one tree."""
    samples = len(catalog.class_of)
    if not samples:
        return Cells(np.empty((0, chunk_size), np.int32), np.zeros(1, np.int32))
    first = np.minimum.reduceat(positions.data_at[catalog.members], catalog.member_at[:-1])
    archive = positions.shard[catalog.members[catalog.member_at[:-1]]]
    tree = catalog.tree_of_class[catalog.class_of]
    order = np.lexsort((first, archive, tree))
    begins = np.ones(samples, bool)
    begins[1:] = (np.diff(archive[order]) != 0) | (np.diff(tree[order]) != 0)
    begin = np.flatnonzero(begins)
    lengths = np.diff(np.append(begin, samples))
    place = np.arange(samples) - np.repeat(begin, lengths)
    chunks = -(-lengths // chunk_size)
    chunk = np.repeat(np.cumsum(chunks) - chunks, lengths) + place // chunk_size
    cells = np.full((int(chunks.sum()), chunk_size), -1, np.int32)
    cells[chunk, place % chunk_size] = order
    # Each chunk is a group of its own: side by side, nothing has the same classes in its slots.
    return Cells(cells, np.arange(len(cells) + 1, dtype=np.int32))


def size_for_classes(index: Index, most: int, least_bytes: int) -> int:
    """The largest size of chunks, up to ``most``, with which a tenth of the samples has enough chunks of each class.

    Neighbours in an archive are often of one class. With few chunks of a class in memory, requests for it find none,
    and chunks are read in parts. In a simulation with 128 samples in each class and memory for a tenth, 0.8 chunks for
    each class had 3 % more reads, and 0.6 % of the opens wait. Half as many had twice the reads, and 5 % wait.

    Chunks of less than ``least_bytes`` are not made for that: on this storage, their reads take longer to begin than to
    carry out.
    """
    catalog, cells = index.catalog, index.cells
    samples = len(catalog.class_of)
    if not samples:
        return most
    label = np.append(catalog.class_of, -1)[cells.cells]
    chosen = most
    for size in reversed(divisors(most)):
        if size < most and size * float(catalog.sample_bytes.mean()) < least_bytes:
            break
        chosen = size
        # Holes are -1, so they come first.
        in_order = np.sort(label.reshape(-1, size), axis=1)
        classes = np.count_nonzero(np.diff(in_order, axis=1, prepend=-1), axis=1)
        of_each_class = classes.sum() / np.count_nonzero(classes) * (samples / size) / len(catalog.class_names)
        if of_each_class * STREAM_SHARE >= CHUNKS_OF_CLASS:
            break
    return chosen


class AsTheyLie(ShardedStore):
    """Shards that somebody else wrote: without checksums, and with the files of a sample in any order."""

    def __init__(self, index: Index, *args: Any, **options: Any) -> None:
        assert index.versions is not None
        self._has_groups = len(index.catalog.members) != len(index.catalog.class_of)
        super().__init__(index, *args, **options)

    def _as_they_lie(self, sample: int) -> list[int]:
        files = super()._as_they_lie(sample)
        return sorted(files, key=self._data_at.__getitem__) if self._has_groups else files

    def _described(self, sweep: Sweep) -> NativeRead:
        if not self._has_groups:
            return super()._described(sweep)
        roles = [file for sample in sweep.samples for file in ShardedStore._as_they_lie(self, sample)]
        place = {file: at for at, file in enumerate(sweep.entries)}
        return ArchiveRead(tuple(sweep.samples), sweep, self, [place[file] for file in roles])

    def _is_right(self, entry: int, data: memoryview, block: int = 0) -> bool:  # there are no sums
        return True


class ArchiveStore(AsTheyLie, PackedStore):
    """Reads the archives of ``index`` below ``folder``.

    ``guards``: no bytes of an archive that fewer users may read than when it was indexed, as in `DirectoryStore`.

    Raises:
        OSError: an archive cannot be opened.
    """

    def __init__(self, index: Index, folder: Path, speed: StorageSpeed, *, guards: bool = False) -> None:
        assert index.versions is not None
        self._versions: list[list[int]] = index.versions.tolist()
        self._guards = guards
        super().__init__(index, folder, speed, guards=guards)

    def _bytes_of(self, entry: int, offset: int, size: int, *, again: bool) -> bytes:
        data = super()._bytes_of(entry, offset, size, again=again)
        shard = self._shard_of[entry]
        now = os.fstat(self._fds[shard])
        # After the read, as in native/shards.c.
        if [now.st_size, mtime_ns(now), now.st_ino] != self._versions[shard]:
            raise self._has_changed(entry)
        return data

    def _access(self, entry: int) -> Access | None:
        fd = self._fds[self._shard_of[entry]]
        if not self._guards or fd == NOT_HERE:
            return None
        now = os.fstat(fd)
        # As in the tree (packed/archive_tree.py) and in native/shards.c.
        return Access(now.st_mode & 0o444, now.st_uid, now.st_gid)

    def failure(self, entry: int, error: int, fault: int, *access: int) -> OSError:
        """See `NativeSource.failure`."""
        if access:
            return NarrowedError(self._shard_name(entry), Access(*access))
        return self._has_changed(entry) if fault == faults.CHANGED else super().failure(entry, error, fault)

    def _has_changed(self, entry: int) -> OSError:
        name = self._shard_name(entry)
        return OSError(errno.ESTALE, f"{name} has changed since it was indexed; unmount, and mount it again")

    def _is_elsewhere(self, entry: int) -> OSError:
        return OSError(errno.ENOENT, f"{self._shard_name(entry)} is gone")


class ArchiveRead(NativeRead):
    """A sweep over samples of several files, which are read in the order in which they lie.

    ``order``: the places, in that order, of the files as samples have them: in the order of their roles.
    """

    __slots__ = ("_order",)

    def __init__(self, samples: tuple[int, ...], sweep: Sweep, store: AsTheyLie, order: list[int]) -> None:
        super().__init__(samples, sweep.entries, sweep.counts, store)
        self._order = order

    def payloads(self, results: "Sequence[FileResult]") -> Sequence[Payload]:
        """The payloads that ``results`` of the entries make."""
        as_roles = [results[at] for at in self._order]
        by_role = NativeRead(self.samples, [self.entries[at] for at in self._order], self._counts, self._source)
        return by_role.payloads(as_roles)
