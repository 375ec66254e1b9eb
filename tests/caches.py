"""Caches for tests: a directory with copies of its samples, filled in this process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packs import opened

from redoxfs.cache import CacheStore, Root, key_of
from redoxfs.cache.copies import Copies
from redoxfs.cache.writer import Disk, Writer
from redoxfs.chunks import Cells, DirectoryStore, FileBytes, Payload, build_cells
from redoxfs.dataset import Catalog, build_catalog, fingerprint, read_tree


@dataclass
class Cached:
    """A directory with its copies in a cache."""

    source: Path
    root: Root
    catalog: Catalog
    cells: Cells
    store: CacheStore
    copies: Copies
    writer: Writer

    def chunks(self) -> Iterator[tuple[int, list[int]]]:
        for chunk, row in enumerate(self.cells.cells):
            yield chunk, row[row >= 0].tolist()

    def fill(self, *, every: int = 1) -> None:
        """Read every so many chunks from the source, and wait until they are written, or given up."""
        for chunk, samples in [*self.chunks()][::every]:
            wanted = [sample for sample in samples if not self.store.has(sample)]
            if wanted:
                self.store.copy(chunk, wanted)
        self.store.flush()

    def path_of(self, entry: int) -> Path:
        return self.source / os.fsdecode(self.catalog.tree.path(entry))

    def entries(self, sample: int) -> list[int]:
        first, end = self.catalog.member_at[sample : sample + 2]
        return self.catalog.members[first:end].tolist()

    def check_epoch(self) -> None:
        """Each sample has the bytes of its files."""
        for chunk, samples in self.chunks():
            found: dict[int, Payload] = {}
            for read in self.store.reads(chunk, samples):
                found.update(zip(read.samples, read.run(), strict=True))
            for sample in samples:
                for entry, file in zip(self.entries(sample), found[sample], strict=True):
                    assert isinstance(file, FileBytes), file
                    assert bytes(file.data) == self.path_of(entry).read_bytes()

    def place(self, entry: int) -> tuple[Path, int]:
        """The segment that has the copy of a file, and where."""
        name = self.copies._segments[int(self.copies._shard[entry])].name
        return Path(os.readlink(self.root.path)) / self.copies._folder.key / f"{name}.data", int(self.copies._at[entry])

    def files(self, ending: str) -> list[Path]:
        return sorted(Path(os.readlink(self.root.path)).glob(f"*/*{ending}"))


@contextmanager
def cached(
    source: Path,
    where: Path,
    *,
    most_bytes: int = 1 << 30,
    most_waiting_bytes: int = 1 << 28,
    chunk_size: int = 8,
    groups: str | None = None,
    disk: Disk | None = None,
) -> Iterator[Cached]:
    """A directory store with a cache in ``where``."""
    with opened(source) as fd:
        catalog = build_catalog(read_tree(fd), classes="dir", groups=groups)
        cells = build_cells(catalog.class_of, catalog.sample_bytes, chunk_size=chunk_size, seed=0)
        root = Root(where)
        folder = root.folder(key_of(catalog, fingerprint(catalog), None))
        folder.describe({"source": str(source)})
        copies = Copies(catalog, cells, folder)
        copies.load()
        writer = Writer(folder, copies, most_bytes=most_bytes, most_waiting_bytes=most_waiting_bytes, disk=disk)
        store = CacheStore(catalog, DirectoryStore(catalog, fd), copies, writer, is_fixed=False)
        try:
            yield Cached(source, root, catalog, cells, store, copies, writer)
        finally:
            store.end()
            copies.close()
            folder.close()
            root.close()
