"""From SOURCE to a dataset and an amount of memory: what `mount`, `inspect` and `pack` have in common.

They share it so that `inspect` cannot describe another mount than `mount` makes with the same options. Progress and
decisions go to stderr. `mount` opens the directory here, before it mounts anything, because an over-mount hides the
directory from every later open by path.
"""

import errno
import os
import shlex
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from redoxfs.dataset.errors import ClassesError
from redoxfs.launch.catalogs import catalog_from_file
from redoxfs.launch.deadline import call_in_child
from redoxfs.launch.defaults import POLICIES
from redoxfs.launch.errors import SourceUnusableError, UsageError
from redoxfs.launch.memory import available_memory, default_memory
from redoxfs.launch.options import DatasetOptions, MemoryOptions
from redoxfs.launch.path_status import EXACT_FOLDER, PathStatus
from redoxfs.launch.say import say
from redoxfs.launch.scanning import answering, showing_scan
from redoxfs.launch.sizes import counted, format_bytes, format_seconds, parse_size

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from redoxfs.chunks import Cells, ChunkStore, StorageSpeed
    from redoxfs.dataset import Beside, Catalog, Scan, Verdict
    from redoxfs.launch.members import Membership
    from redoxfs.launch.objects import Objects
    from redoxfs.packed import Index

DEFAULT_CHUNK_SIZE = 64

# The pool takes the smallest chunks that read well. Files in a directory are read one by one, so a chunk is only the
# unit of a decision, and this many samples share the cost of one.
_DIRECTORY_CHUNK_SIZE = 8

# In a cache the samples of a chunk lie side by side. At 200 reads a second, which a rotating disk does, chunks of so
# many bytes are read about as fast as a sweep. It is not measured: all nodes, and all mounts of a cache, must have the
# same chunks.
_CACHED_CHUNK_BYTES = 768 << 10

# Options that `redoxfs pack` fixes for good.
_FIXED_BY_PACK = {name: f"--{name}" for name in ("classes", "samples", "groups", "rescan", "catalog")}


class Opening(NamedTuple):
    """What `open_dataset` is asked for.

    ``measure_storage``   measure the speed of its storage, where it matters
    ``members``           the nodes that must all choose the same chunks
    ``is_storage_local``  each node has only its own files
    ``is_cached``         there is a cache
    """

    source: PathStatus
    root_fd: int
    options: DatasetOptions
    memory: MemoryOptions
    timeout_s: float
    measure_storage: bool
    members: "Membership | None" = None
    is_storage_local: bool = False
    is_cached: bool = False


class Reading(NamedTuple):
    """What a store is told of the mount.

    ``memory_bytes``  of the mount, of which reads in flight may take a share beside it
    ``timeout_s``     the deadline of a read, where the store can keep one
    ``guards``        see `redoxfs.chunks.DirectoryStore`. The modes of a packed dataset are part of it
    """

    memory_bytes: int
    timeout_s: float
    guards: bool


class Kind(NamedTuple):
    """A kind of SOURCE, as `KINDS` has them.

    ``is_it``  whether SOURCE is of this kind, where it is of none before
    ``open``   makes the dataset of it
    ``store``  makes the store of the dataset, in every daemon of the mount
    """

    is_it: Callable[[Opening], bool]
    open: Callable[[Opening], "Dataset"]
    store: Callable[["Dataset", Reading], "ChunkStore"]


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """SOURCE, ready to be served: plain files, or packed (`index` is what the pack wrote).

    Of archives, ``index`` is that which `redoxfs.packed.archives` made, and `root_fd` is open on the folder above them.
    ``texts`` are what `fingerprint_of` and `layout_of` have found. ``objects``: its shards are in an object store.
    ``kind``: its name in `KINDS`.
    """

    catalog: "Catalog"
    cells: "Cells"
    root_fd: int
    index: "Index | None"
    storage: "StorageSpeed | None"
    texts: dict[str, str] = field(default_factory=dict)
    objects: "Objects | None" = None
    kind: str = "directory"

    @property
    def chunk_size(self) -> int:
        return self.cells.chunk_size

    def parts_where_data_lies(self, node: int, nodes: int) -> "npt.NDArray[np.int8] | None":
        """int8[S]: the node of each sample with --storage local; None where the layout deals them.

        Raises SourceUnusableError if a shard that ``node`` needs is not here.
        """
        if self.index is None or self.objects is not None or self.index.versions is not None:
            return None
        from redoxfs.packed import shards_at

        is_needed = shards_at(node, nodes)
        for shard, name in enumerate(self.index.positions.shard_names):
            if is_needed(shard, name) and not os.path.lexists(f"/proc/self/fd/{self.root_fd}/{name}"):
                raise SourceUnusableError(f"node {node} of {nodes} needs {name}, which is not here")
        catalog = self.catalog
        shard_of = self.index.positions.shard[catalog.members[catalog.member_at[:-1]]]
        parts: npt.NDArray[np.int8] = (shard_of % nodes).astype("int8")
        return parts

    def store(self, reading: Reading) -> "ChunkStore":
        """A store that reads the files, by no path that a mount might hide. Raises OSError."""
        return KINDS[self.kind].store(self, reading)


def fingerprint_of(dataset: Dataset) -> str:
    """A text that identifies the dataset; kept, because it takes a while and is needed more than once."""
    from redoxfs.dataset import fingerprint

    if "fingerprint" not in dataset.texts:
        dataset.texts["fingerprint"] = fingerprint(dataset.catalog)
    return dataset.texts["fingerprint"]


def layout_of(dataset: Dataset) -> str:
    """A text that identifies which sample is in which chunk; kept likewise."""
    import numpy as np
    import xxhash

    if "layout" not in dataset.texts:
        cells = np.ascontiguousarray(dataset.cells.cells).view(np.uint8)
        dataset.texts["layout"] = xxhash.xxh3_64_hexdigest(cells.data)
    return dataset.texts["layout"]


def open_dataset(opening: Opening) -> Dataset:
    """The dataset in SOURCE, described on stderr.

    Raises:
        UsageError: options contradict a packed dataset.
        Exception: as `catalog_of` and `load_index`.
    """
    source, options = opening.source, opening.options
    if not _are_archives(opening) and options.archives not in (None, "none"):
        raise UsageError(f"{source.asked} names no tar archive, so there is nothing for --archives {options.archives}")
    name, kind = next((name, kind) for name, kind in KINDS.items() if kind.is_it(opening))
    return replace(kind.open(opening), kind=name)


def _open_directory(opening: Opening) -> Dataset:
    options, root_fd = opening.options, opening.root_fd
    catalog = catalog_of(opening.source, root_fd, options, timeout_s=opening.timeout_s)
    chunk_size = options.chunk_size or _directory_chunk_size(catalog, opening.memory, is_cached=opening.is_cached)
    return Dataset(catalog, cells_of(catalog, chunk_size, options.seed), root_fd, None, None)


def _directory_store(dataset: Dataset, reading: Reading) -> "ChunkStore":
    from redoxfs.chunks import DirectoryStore

    return DirectoryStore(dataset.catalog, dataset.root_fd, guards=reading.guards)


def _directory_chunk_size(catalog: "Catalog", memory: MemoryOptions, *, is_cached: bool) -> int:
    size = _DIRECTORY_CHUNK_SIZE if POLICIES[memory.policy].streams else DEFAULT_CHUNK_SIZE
    if is_cached and len(catalog.class_of):
        mean_bytes = float(catalog.sample_bytes.mean())
        while size < DEFAULT_CHUNK_SIZE and size * mean_bytes < _CACHED_CHUNK_BYTES:
            size *= 2
    return size


def chunks_with_cache(dataset: Dataset, options: DatasetOptions, memory: MemoryOptions) -> "Cells":
    """The chunks that a mount of the same dataset has with --cache."""
    if dataset.kind != "directory" or options.chunk_size is not None:
        return dataset.cells
    chunk_size = _directory_chunk_size(dataset.catalog, memory, is_cached=True)
    if chunk_size == dataset.chunk_size:
        return dataset.cells
    return cells_of(dataset.catalog, chunk_size, options.seed)


def cells_of(catalog: "Catalog", chunk_size: int, seed: int) -> "Cells":
    """The samples of a directory in chunks, as `mount` serves and `pack` writes them."""
    from redoxfs.chunks import build_cells

    return build_cells(
        catalog.class_of,
        catalog.sample_bytes,
        chunk_size=chunk_size,
        seed=seed,
        tree_of_class=catalog.tree_of_class,
    )


def holds_packed(source: PathStatus, root_fd: int) -> bool:
    """Whether SOURCE is a packed dataset. Raises SourceUnusableError if storage fails."""
    from redoxfs.packed import is_packed

    try:
        return is_packed(root_fd)
    except OSError as failure:
        raise SourceUnusableError(f"{source.asked}: {failure.strerror}") from None


def _is_packed(opening: Opening) -> bool:
    return holds_packed(opening.source, opening.root_fd)


def _open_packed(opening: Opening) -> Dataset:
    from redoxfs.packed import load_index, shards_at

    source, root_fd, options, memory = opening.source, opening.root_fd, opening.options, opening.memory
    members = opening.members
    given = [option for name, option in _FIXED_BY_PACK.items() if getattr(options, name)]
    if given:
        needless = [option for option in given if option in ("--rescan", "--catalog")]
        why = f"it needs no {' '.join(needless)}" if needless else f"{' '.join(given)} was fixed by redoxfs pack"
        raise UsageError(f"{source.asked} is a packed dataset: {why}")
    begin = time.monotonic()
    objects = None
    if source.address is not None:
        measures = opening.measure_storage and memory.storage_speed is None
        from redoxfs.launch.objects import open_objects

        objects, index = open_objects(source.address, timeout_s=opening.timeout_s, measures=measures)
    elif members is not None and opening.is_storage_local:
        index = load_index(source.path, shards_at(members.rank, len(members.addresses)))
    else:
        index = load_index(source.path)
    files = int(index.catalog.tree.kind_mask(stat.S_IFREG).sum())
    shards = len(index.positions.shard_names)
    content = f"{counted(files, 'file')} in {counted(shards, 'shard')}"
    say(f"packed dataset: {content}, opened in {format_seconds(time.monotonic() - begin)}")
    storage = _storage_of(opening, index, objects)
    # Each node measures another speed, and all must come to the same chunks.
    speed = storage if memory.storage_speed is not None or members is None else None
    chunk_size = _packed_chunk_size(source, index, speed, options, memory)
    return Dataset(index.catalog, index.cells.split(chunk_size), root_fd, index, storage, objects=objects)


def _packed_store(dataset: Dataset, reading: Reading) -> "ChunkStore":
    del reading
    from redoxfs.packed import PackedStore

    assert dataset.index is not None
    assert dataset.storage is not None
    return PackedStore(dataset.index, Path(f"/proc/self/fd/{dataset.root_fd}"), dataset.storage)


def _object_store(dataset: Dataset, reading: Reading) -> "ChunkStore":
    assert dataset.objects is not None
    return dataset.objects.store(
        dataset.index, dataset.storage, memory_bytes=reading.memory_bytes, timeout_s=reading.timeout_s
    )


def _open_archives(opening: Opening) -> Dataset:
    from redoxfs.chunks import UNKNOWN_SPEED
    from redoxfs.dataset import check_options
    from redoxfs.packed.archive_store import size_for_classes

    source, root_fd, options, memory = opening.source, opening.root_fd, opening.options, opening.memory
    if options.catalog is not None:
        raise UsageError(
            f"{source.asked}: --catalog is for a directory of files; the index of archives is kept by itself"
        )
    check_options(options.classes or "auto", options.groups, reads_members=True)
    objects = None
    if source.address is not None:
        from redoxfs.launch.archive_objects import open_archive_objects

        given = memory.storage_speed
        measures = opening.measure_storage and given is None
        objects, index = open_archive_objects(
            source.address, options, timeout_s=opening.timeout_s, measures=measures, given=given
        )
    else:
        from redoxfs.launch.archives import open_archives

        index = open_archives(source, root_fd, options, is_storage_local=opening.is_storage_local)
    storage = _storage_of(opening, index, objects)
    if not POLICIES[memory.policy].streams:
        # Its memory is for chunks that have the same classes in their slots, which neighbours have not.
        cells = cells_of(index.catalog, options.chunk_size or DEFAULT_CHUNK_SIZE, options.seed)
        return Dataset(index.catalog, cells, root_fd, index, storage, objects=objects)
    speed = storage if memory.storage_speed is not None or opening.members is None else None
    chunk_size = _packed_chunk_size(source, index, speed, options, memory)
    if options.chunk_size is None:
        most = chunk_size
        chunk_size = size_for_classes(index, most, (speed or UNKNOWN_SPEED).longest_gap_bytes)
        if chunk_size < most:
            say(f"chunks of {counted(chunk_size, 'sample')}, not {most}: neighbours are of one class (--chunk-size)")
        if opening.members is None:
            # Nodes may have other memory, and all must come to the same chunks.
            chunk_size = _that_fits(index, chunk_size, memory)
    return Dataset(index.catalog, index.cells.split(chunk_size), root_fd, index, storage, objects=objects)


def _are_archives(opening: Opening) -> bool:
    source = opening.source
    if source.address is None:
        return source.archives is not None
    from redoxfs.launch.archive_objects import are_archives

    return are_archives(source.address, opening.options)


def _archive_store(dataset: Dataset, reading: Reading) -> "ChunkStore":
    if dataset.objects is not None:
        return _object_store(dataset, reading)
    from redoxfs.packed.archive_store import ArchiveStore

    assert dataset.index is not None
    assert dataset.storage is not None
    folder = Path(f"/proc/self/fd/{dataset.root_fd}")
    return ArchiveStore(dataset.index, folder, dataset.storage, guards=reading.guards)


KINDS = {
    "archives": Kind(_are_archives, _open_archives, _archive_store),
    "objects": Kind(lambda opening: opening.source.address is not None, _open_packed, _object_store),
    "packed": Kind(_is_packed, _open_packed, _packed_store),
    "directory": Kind(lambda _: True, _open_directory, _directory_store),
}
"""How SOURCE becomes a dataset and a store: the first kind that it is of."""


def _packed_chunk_size(
    source: PathStatus, index: "Index", speed: "StorageSpeed | None", options: DatasetOptions, memory: MemoryOptions
) -> int:
    """--chunk-size; else, for the pool, the smallest that is read about as fast as a sweep; else that of the pack."""
    packed = index.cells.chunk_size
    if options.chunk_size is not None:
        if packed % options.chunk_size:
            is_packed = "is packed" if index.versions is None else "is read"
            raise UsageError(f"{source.asked} {is_packed} in chunks of {packed}; --chunk-size must divide that")
        return options.chunk_size
    if not POLICIES[memory.policy].streams or not len(index.catalog.class_of):
        return packed
    from redoxfs.chunks import UNKNOWN_SPEED, divisors

    # A pack of an earlier version may have chunks that are larger than the pool takes, and --chunk-size.
    sizes = [size for size in divisors(packed) if size < 1 << 16]
    if speed is None:
        return sizes[-1]
    mean_bytes = max(1, int(index.catalog.sample_bytes.mean()))
    chosen = next((size for size in sizes if size * mean_bytes >= speed.streaming_bytes), sizes[-1])
    advice = ""
    if chosen * mean_bytes < speed.streaming_bytes and speed is not UNKNOWN_SPEED:
        advice = "; to read larger pieces, pack again with a larger --chunk-size" if index.versions is None else ""
    say(
        f"chunks of {counted(chosen, 'sample')}, {format_bytes(chosen * mean_bytes)}; "
        f"this storage reads well in pieces of {format_bytes(speed.streaming_bytes)} or more{advice}"
    )
    return chosen


def _that_fits(index: "Index", chunk_size: int, memory: MemoryOptions) -> int:
    """The largest size of chunks, up to ``chunk_size``, for which --memory is enough; if none is, ``chunk_size``."""
    from redoxfs.chunks import divisors
    from redoxfs.node import PLANNERS

    if memory.memory_size is None or not len(index.catalog.class_of):
        return chunk_size
    given = parse_size(memory.memory_size, available_memory(), "--memory")
    for size in reversed(divisors(chunk_size)):
        needed = PLANNERS[memory.policy].memory_for(index.catalog, index.cells.split(size), 0.0)
        if needed <= given:
            if size < chunk_size:
                say(f"chunks of {counted(size, 'sample')}: larger ones need more --memory")
            return size
    return chunk_size


def _storage_of(opening: Opening, index: "Index", objects: "Objects | None") -> "StorageSpeed | None":
    """--storage-speed; else what is measured, if it is to be."""
    from redoxfs.chunks import UNKNOWN_SPEED, StorageSpeed, measure_storage

    if opening.memory.storage_speed is not None:
        reads_per_s, bytes_per_s = opening.memory.storage_speed
        return StorageSpeed(1 / reads_per_s, bytes_per_s)
    if not opening.measure_storage:
        return None
    try:
        if objects is not None and objects.measured is not None:
            storage = objects.measured
        else:
            paths = [Path(f"/proc/self/fd/{opening.root_fd}/{name}") for name in index.positions.shard_names]
            storage = measure_storage([path for path in paths if path.exists()])
    except OSError as failure:
        name = os.path.basename(os.fsdecode(failure.filename or b""))
        raise SourceUnusableError(f"{opening.source.name}/{name}: {failure.strerror}") from None
    speeds = f"{1 / storage.seek_s:,.0f} reads/s, {format_bytes(int(storage.bytes_per_s))}/s"
    if storage is UNKNOWN_SPEED:
        say(f"storage: {speeds} assumed, as the dataset is too small to measure it (--storage-speed)")
    else:
        say(f"storage: {speeds} measured (--storage-speed)")
    return storage


def check_source(source: PathStatus, argument: str = "SOURCE") -> None:
    """Raises SourceUnusableError unless `source` is a directory whose files have bytes of their own.

    ``argument`` is its name in the usage of the verb.
    """
    mount = source.ours
    if mount is not None and source.is_stale:
        command = f"redoxfs umount {shlex.quote(mount.mountpoint)}"
        raise SourceUnusableError(f"{source.asked}: the daemon of the mount here was killed; run: {command}")
    if mount is not None and source.is_redirected:
        raise SourceUnusableError(
            f"{source.asked}: is served by a live redoxfs mount, so reads would be redirected twice; "
            f"use {mount.mountpoint}/{EXACT_FOLDER} instead"
        )
    if source.address is None and source.archives is None and source.trouble is not None:
        raise SourceUnusableError(f"{argument} {source.asked}: {source.trouble}")


def open_root(source: PathStatus) -> int:
    """A descriptor of SOURCE, opened before anything is mounted over it. Raises SourceUnusableError.

    For an object store, which no descriptor stands for, it is that of an empty folder; for archives, that of the folder
    above them.
    """
    if source.address is not None:
        from redoxfs.launch.objects import nowhere

        return nowhere()
    root = source.path if source.archives is None else source.archives.root
    try:
        root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # A directory that may be listed but not searched opens; only a lookup in it fails.
            os.stat(".", dir_fd=root_fd)
        except OSError:
            os.close(root_fd)
            raise
    except OSError as failure:
        raise SourceUnusableError(f"{source.asked}: {failure.strerror}") from None
    return root_fd


def memory_of(size: str | None) -> int:
    """Bytes that the value of --memory stands for, or the default; printed either way. Raises UsageError."""
    available = available_memory()
    if size is None:
        memory = default_memory(available)
        say(f"memory: {format_bytes(memory)}, a quarter of the {format_bytes(available)} available (--memory)")
        return memory
    memory = parse_size(size, available, "--memory")
    beyond = f", more than the {format_bytes(available)} available" if memory > available else ""
    say(f"memory: {format_bytes(memory)}{beyond}")
    return memory


def catalog_of(source: PathStatus, root_fd: int, options: DatasetOptions, *, timeout_s: float) -> "Catalog":
    """Scan SOURCE, with what the cached scan has, and find samples, groups and classes in it; or read it from a file.

    Raises SourceUnusableError if it holds no file, and the dataset's own SourceError and ClassesError.
    """
    from redoxfs.dataset import build_catalog, check_options, default_cache_dir, load_or_scan

    if options.catalog is not None:
        return catalog_from_file(source, root_fd, options)
    check_options(options.classes or "auto", options.groups)
    beside = _look_beside(source, root_fd, options, timeout_s)
    begin = time.monotonic()
    try:
        with showing_scan() as shown:
            progress = answering(shown, source.asked, timeout_s)
            scan = load_or_scan(source.path, root_fd, default_cache_dir(), progress=progress, rescan=options.rescan)
    except OSError as failure:
        if failure.errno not in (errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.ENOENT):
            raise
        raise SourceUnusableError(f"{failure.filename or source.asked}: {failure.strerror}") from None
    if scan.tree.kind_mask(stat.S_IFDIR).all():
        raise SourceUnusableError(f"{source.asked}: there are no files in it")
    files = int(scan.tree.kind_mask(stat.S_IFREG).sum())
    say(f"catalog: {counted(files, 'file')}, {_how(scan, format_seconds(time.monotonic() - begin))}")
    return build_catalog(
        scan.tree,
        classes=options.classes or "auto",
        samples=options.samples,
        groups=options.groups,
        root_fd=root_fd,
        beside=beside,
    )


def _how(scan: "Scan", took: str) -> str:
    if scan.reused:
        return "unchanged since the last scan (--rescan)"
    if not scan.kept:
        return f"scanned in {took}"
    changed = counted(scan.listed, "changed directory", "changed directories")
    return f"{changed} scanned in {took}, {scan.kept:,} unchanged (--rescan)"


def _look_beside(source: PathStatus, root_fd: int, options: DatasetOptions, timeout_s: float) -> "Beside | None":
    """The siblings of a SOURCE that is a split by name; None where they are no evidence, or do not answer in time."""
    from redoxfs.dataset import look_beside
    from redoxfs.dataset.splits import is_split

    if options.classes not in (None, "auto") or not is_split(os.fsencode(source.path.name)):
        return None
    try:
        return call_in_child(lambda: look_beside(root_fd, source.asked), timeout_s)
    except OSError:
        return None


def say_verdict(verdict: "Verdict") -> None:
    """Print what was decided about classes, and the evidence, a line each."""
    say(verdict.line)
    for line in (*evidence(verdict), *verdict.saw):
        say(line)


def check_redirects(catalog: "Catalog", classes: str | None, source: str) -> None:
    """Raises ClassesError if a mount of ``catalog`` would redirect nothing, though that was not asked for."""
    if not len(catalog.class_of) and classes not in ("none", "sampler"):
        raise ClassesError(
            f"a mount of this copy would redirect nothing; redoxfs inspect {shlex.quote(source)} says why, and which "
            "--classes would; to copy it as it is: --classes none"
        )


def evidence(verdict: "Verdict") -> list[str]:
    """What `auto` found about the splits, those alike in one line; empty where the verdict's own line says it all."""
    if verdict.asked != "auto" or not any(finding.redirected for finding in verdict.splits):
        return []
    splits: dict[tuple[bool, str], list[str]] = {}
    for finding in sorted(verdict.splits, key=lambda finding: not finding.redirected):
        shown = "the source" if finding.split == "." else finding.split
        splits.setdefault((finding.redirected, finding.because), []).append(shown)
    return [
        f"{', '.join(names)}: {'redirected' if redirected else 'not redirected'} ({because})"
        for (redirected, because), names in splits.items()
    ]
