"""Tests that every chunk store must pass, for authors of stores.

`redoxfs.chunks.ChunkStore` says what a store offers. In short, a store must:

- return reads that cover each wanted sample exactly once, the first sample in the first read;
- return a sample's files in the order of its class's roles, byte for byte;
- let any thread run reads in any order, at the same time, and more than once;
- put an OSError in the place of a file that it cannot read, and let no read raise;
- give a file the same stamp however it is read, but for the inode, which a copy of a file does not have;
- read ranges of samples, and open any regular file of the tree, also one that belongs to no sample.

Subclass `StoreTests` and provide a fixture ``subject``:

    import pytest
    from redoxfs.testing import StoreTests, Subject, layout_of, make_source

    @pytest.fixture(scope="module")
    def source(tmp_path_factory):
        return make_source(tmp_path_factory.mktemp("source"))

    class TestMyStore(StoreTests):
        @pytest.fixture
        def subject(self, source):
            catalog, cells = layout_of(source)
            store = MyStore(catalog, ...)
            yield Subject(store, catalog, cells, content, unreadable)

``content`` returns the bytes that the file of a tree entry must have. ``unreadable`` is a context manager that makes
the first file of a sample unreadable.

pytest shows the values in a failed assertion if a ``conftest.py`` calls
``pytest.register_assert_rewrite("redoxfs.testing")`` before the import.

Only this module needs pytest, which redoxfs does not install, and nothing in redoxfs imports this module.
"""

import os
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from redoxfs.chunks import Cells, ChunkStore, FileBytes, Payload, Read, build_cells
from redoxfs.dataset import Catalog, build_catalog, read_tree
from redoxfs.linux.descriptors import opened

__all__ = ["CHUNK_SIZE", "GROUPS", "LARGE_BYTES", "StoreTests", "Subject", "layout_of", "make_source", "payloads"]

CHUNK_SIZE = 700
"""A chunk has more pieces than one preadv takes (1024): 700 samples of two files, and the gaps between them."""

GROUPS = "stem"
"""An image and its caption are one sample."""

LARGE_BYTES = (5 << 19) + 7
"""Size of the largest file: 2.5 times the MiB that a packed dataset's checksum covers, and 7 bytes."""


@dataclass(frozen=True)
class Subject:
    """A store under test.

    ``store``       over the tree of `make_source`
    ``catalog``     the samples of that tree
    ``cells``       which samples each chunk holds
    ``content``     returns the bytes that the file of a tree entry must have
    ``unreadable``  makes the first file of a sample unreadable within a ``with`` block
    """

    store: ChunkStore
    catalog: Catalog
    cells: Cells
    content: Callable[[int], bytes]
    unreadable: Callable[[int], AbstractContextManager[None]]

    def entries(self, sample: int) -> list[int]:
        at = self.catalog.member_at
        return [int(entry) for entry in self.catalog.members[at[sample] : at[sample + 1]]]

    def sample_at(self, path: bytes) -> int:
        return int(self.catalog.sample_of[self.catalog.tree.find(path)])

    def is_whole(self, sample: int, payload: Payload) -> bool:
        """Whether a payload holds the sample's files in their order, unchanged since the scan."""
        expected = [self.content(entry) for entry in self.entries(sample)]
        assert all(isinstance(file, FileBytes) and not file.changed for file in payload), payload
        return [bytes(file.data) for file in payload if isinstance(file, FileBytes)] == expected

    def chunks(self) -> Iterator[tuple[int, list[int]]]:
        for chunk, row in enumerate(self.cells.cells):
            yield chunk, row[row >= 0].tolist()


def make_source(folder: Path) -> Path:
    """Make the tree that the tests read, in ``folder``: two classes of images with captions, and two other files.

    There are many small samples, empty files, and one large sample.
    """
    for label, count in (("cat", 700), ("dog", 90)):
        (folder / label).mkdir(parents=True)
        for number in range(count):
            (folder / label / f"{number}.jpg").write_bytes(f"{label} {number} ".encode() * (number % 5))
            (folder / label / f"{number}.txt").write_bytes(b"x" * (number % 3))
    (folder / "cat/large.jpg").write_bytes(random.Random(0).randbytes(LARGE_BYTES))
    (folder / "cat/large.txt").write_bytes(b"of a large one")
    (folder / "notes.txt").write_bytes(b"of no sample")
    (folder / "empty").write_bytes(b"")
    return folder


def layout_of(source: Path) -> tuple[Catalog, Cells]:
    """Scan the tree of `make_source` and lay its samples out in chunks of `CHUNK_SIZE`."""
    with opened(os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as root_fd:
        catalog = build_catalog(read_tree(root_fd), classes="dir", groups=GROUPS)
    return catalog, build_cells(catalog.class_of, catalog.sample_bytes, chunk_size=CHUNK_SIZE, seed=0)


def payloads(reads: Sequence[Read]) -> dict[int, Payload]:
    """Run ``reads``: the payload of each sample."""
    return {sample: payload for read in reads for sample, payload in zip(read.samples, read.run(), strict=True)}


class StoreTests:
    """What every ChunkStore must do. A subclass provides the fixture ``subject``."""

    def test_reads_cover_each_sample_once_the_first_one_first(self, subject: Subject) -> None:
        at_random = random.Random(1)
        for chunk, samples in subject.chunks():
            for count in {1, 2, 3, len(samples) // 2, len(samples)} - {0}:
                wanted = at_random.sample(samples, min(count, len(samples)))
                asked = tuple(wanted)
                reads = subject.store.reads(chunk, asked)
                assert asked[0] in reads[0].samples
                assert sorted(sample for read in reads for sample in read.samples) == sorted(wanted)

    def test_a_whole_chunk_has_files_in_role_order(self, subject: Subject) -> None:
        sizes = set()
        for chunk, samples in subject.chunks():
            for sample, payload in payloads(subject.store.reads(chunk, samples)).items():
                assert subject.is_whole(sample, payload)
                sizes |= {len(file.data) for file in payload if isinstance(file, FileBytes)}
        assert {0, 1, LARGE_BYTES} < sizes

    def test_any_samples_of_a_chunk_are_whole(self, subject: Subject) -> None:
        at_random = random.Random(2)
        for chunk, samples in subject.chunks():
            for count in (1, 2, 7):
                wanted = at_random.sample(samples, min(count, len(samples)))
                for sample, payload in payloads(subject.store.reads(chunk, wanted)).items():
                    assert subject.is_whole(sample, payload)

    def test_any_thread_runs_reads_in_any_order_and_again(self, subject: Subject) -> None:
        chunk, samples = max(subject.chunks(), key=lambda pair: len(pair[1]))
        reads = [*subject.store.reads(chunk, samples), *subject.store.reads(chunk, samples[::7])] * 2
        random.Random(3).shuffle(reads)
        with ThreadPoolExecutor(8) as pool:
            for read, found in zip(reads, pool.map(lambda read: read.run(), reads), strict=True):
                for sample, payload in zip(read.samples, found, strict=True):
                    assert subject.is_whole(sample, payload)

    @pytest.mark.parametrize("path", [b"cat/large.jpg", b"cat/0.jpg", b"cat/1.jpg", b"cat/40.jpg"])
    def test_a_range_has_the_bytes_of_the_file(self, subject: Subject, path: bytes) -> None:
        sample = subject.sample_at(path)
        (payload,) = subject.store.reads(0, [sample])[0].run()
        for number, (file, entry) in enumerate(zip(payload, subject.entries(sample), strict=True)):
            assert isinstance(file, FileBytes)
            content = subject.content(entry)
            block, size = 1 << 20, len(content)
            for offset in sorted({0, 1, block - 1, block, block + 1, 2 * block, size - 1, size, size + 1, 3 * block}):
                for length in (0, 1, 2, 4096, block, 4 * block):
                    found = subject.store.read_range(sample, number, file.stamp, max(0, offset), length)
                    assert found == content[max(0, offset) : max(0, offset) + length]

    def test_any_file_of_the_tree_opens_and_reads_at_any_offset(self, subject: Subject) -> None:
        for path in (b"notes.txt", b"cat/large.jpg", b"cat/large.txt", b"dog/0.jpg", b"empty"):
            entry = subject.catalog.tree.find(path)
            content = subject.content(entry)
            file = subject.store.open_file(entry)
            try:
                assert file.stamp.size == len(content)
                for offset in (0, 1, (1 << 20) - 1, 1 << 20, len(content) - 1, len(content), len(content) + 1):
                    for size in (0, 1, 4096, 1 << 22):
                        assert file.read(max(0, offset), size) == content[max(0, offset) : max(0, offset) + size]
            finally:
                file.close()

    def test_a_file_has_one_stamp_however_it_is_read(self, subject: Subject) -> None:
        for path in (b"cat/large.jpg", b"dog/0.jpg"):
            sample = subject.sample_at(path)
            for _ in range(2):
                (payload,) = subject.store.reads(0, [sample])[0].run()
                for file, entry in zip(payload, subject.entries(sample), strict=True):
                    assert isinstance(file, FileBytes)
                    opened_file = subject.store.open_file(entry)
                    assert file.stamp.is_of(opened_file.stamp)
                    assert file.stamp.size == len(file.data)
                    opened_file.close()

    def test_an_unreadable_file_is_an_error_in_its_place(self, subject: Subject) -> None:
        lost = subject.sample_at(b"cat/large.jpg")
        chunk, samples = next((chunk, row) for chunk, row in subject.chunks() if lost in row)
        (before,) = subject.store.reads(chunk, [lost])[0].run()
        assert isinstance(before[0], FileBytes)
        with subject.unreadable(lost):
            found = payloads(subject.store.reads(chunk, samples))
            assert isinstance(found.pop(lost)[0], OSError)
            assert all(subject.is_whole(sample, payload) for sample, payload in found.items())
            with pytest.raises(OSError):
                subject.store.read_range(lost, 0, before[0].stamp, 0, 10)
            with pytest.raises(OSError):
                subject.store.open_file(subject.entries(lost)[0]).read(0, 10)
        assert subject.is_whole(lost, subject.store.reads(chunk, [lost])[0].run()[0])
