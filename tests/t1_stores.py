"""What every chunk store must do, on all of them; then what is the directory store's own, over a tree that changes."""

import errno
import os
import random
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from packs import Options, catalog_of, opened, pack_here, store_of
from stores import HeldStore

from redoxfs.chunks import (
    Cells,
    ChunkStore,
    DirectoryStore,
    FileBytes,
    Read,
    StorageSpeed,
    beneath,
    build_cells,
    open_beneath,
)
from redoxfs.chunks.store import Payload
from redoxfs.dataset import Catalog, build_catalog, read_tree

GROUPED = Options(chunk_size=700, groups="stem")
"""One chunk has more pieces than one preadv takes: 700 samples of two files, and what lies between them."""

LARGE_BYTES = (5 << 19) + 7
"""Two and a half times what a checksum covers, and a little."""


@dataclass
class Subject:
    """A store, what it is of, what its files hold, and a way to make a sample's first file unreadable for a while."""

    store: ChunkStore
    catalog: Catalog
    cells: Cells
    content: Callable[[int], bytes]
    without: Callable[[int], AbstractContextManager[None]]

    def entries(self, sample: int) -> list[int]:
        at = self.catalog.member_at
        return [int(entry) for entry in self.catalog.members[at[sample] : at[sample + 1]]]

    def sample_at(self, path: bytes) -> int:
        return int(self.catalog.sample_of[self.catalog.tree.find(path)])

    def is_whole(self, sample: int, payload: Payload) -> bool:
        """Whether a payload is the sample's files in their order, each as it should be."""
        expected = [self.content(entry) for entry in self.entries(sample)]
        assert all(isinstance(file, FileBytes) and not file.changed for file in payload), payload
        return [bytes(file.data) for file in payload if isinstance(file, FileBytes)] == expected

    def chunks(self) -> Iterator[tuple[int, list[int]]]:
        for chunk, row in enumerate(self.cells.cells):
            yield chunk, row[row >= 0].tolist()


def payloads(reads: Sequence[Read]) -> dict[int, Payload]:
    return {sample: payload for read in reads for sample, payload in zip(read.samples, read.run(), strict=True)}


class StoreTests:
    """What every ChunkStore must do. A store is tested by a subclass with a fixture ``subject``."""

    def test_each_wanted_sample_comes_exactly_once_and_the_first_in_the_first_read(self, subject: Subject) -> None:
        at_random = random.Random(1)
        for chunk, samples in subject.chunks():
            for count in {1, 2, 3, len(samples) // 2, len(samples)} - {0}:
                wanted = at_random.sample(samples, min(count, len(samples)))
                asked = tuple(wanted)
                reads = subject.store.reads(chunk, asked)
                assert asked[0] in reads[0].samples
                assert sorted(sample for read in reads for sample in read.samples) == sorted(wanted)

    def test_a_chunk_comes_whole_with_the_files_of_a_sample_in_role_order(self, subject: Subject) -> None:
        sizes = set()
        for chunk, samples in subject.chunks():
            for sample, payload in payloads(subject.store.reads(chunk, samples)).items():
                assert subject.is_whole(sample, payload)
                sizes |= {len(file.data) for file in payload if isinstance(file, FileBytes)}
        assert {0, 1, LARGE_BYTES} < sizes

    def test_any_samples_of_a_chunk_come_whole(self, subject: Subject) -> None:
        at_random = random.Random(2)
        for chunk, samples in subject.chunks():
            for count in (1, 2, 7):
                wanted = at_random.sample(samples, min(count, len(samples)))
                for sample, payload in payloads(subject.store.reads(chunk, wanted)).items():
                    assert subject.is_whole(sample, payload)

    def test_reads_may_be_carried_out_in_any_order_by_any_thread_and_again(self, subject: Subject) -> None:
        chunk, samples = max(subject.chunks(), key=lambda pair: len(pair[1]))
        reads = [*subject.store.reads(chunk, samples), *subject.store.reads(chunk, samples[::7])] * 2
        random.Random(3).shuffle(reads)
        with ThreadPoolExecutor(8) as pool:
            for read, found in zip(reads, pool.map(lambda read: read.run(), reads), strict=True):
                for sample, payload in zip(read.samples, found, strict=True):
                    assert subject.is_whole(sample, payload)

    @pytest.mark.parametrize("path", [b"cat/large.jpg", b"cat/0.jpg", b"cat/1.jpg", b"cat/40.jpg"])
    def test_a_range_is_what_the_file_has_there(self, subject: Subject, path: bytes) -> None:
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

    def test_any_file_of_the_tree_can_be_opened_and_read_at_any_offset(self, subject: Subject) -> None:
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

    def test_the_stamp_is_the_same_however_a_file_is_read(self, subject: Subject) -> None:
        for path in (b"cat/large.jpg", b"dog/0.jpg"):
            sample = subject.sample_at(path)
            for _ in range(2):
                (payload,) = subject.store.reads(0, [sample])[0].run()
                for file, entry in zip(payload, subject.entries(sample), strict=True):
                    assert isinstance(file, FileBytes)
                    opened_file = subject.store.open_file(entry)
                    assert opened_file.stamp == file.stamp
                    assert file.stamp.size == len(file.data)
                    opened_file.close()

    def test_what_storage_has_lost_is_an_error_in_its_place_and_nothing_is_raised(self, subject: Subject) -> None:
        lost = subject.sample_at(b"cat/large.jpg")
        chunk, samples = next((chunk, row) for chunk, row in subject.chunks() if lost in row)
        (before,) = subject.store.reads(chunk, [lost])[0].run()
        assert isinstance(before[0], FileBytes)
        with subject.without(lost):
            found = payloads(subject.store.reads(chunk, samples))
            assert isinstance(found.pop(lost)[0], OSError)
            assert all(subject.is_whole(sample, payload) for sample, payload in found.items())
            with pytest.raises(OSError):
                subject.store.read_range(lost, 0, before[0].stamp, 0, 10)
            with pytest.raises(OSError):
                subject.store.open_file(subject.entries(lost)[0]).read(0, 10)
        assert subject.is_whole(lost, subject.store.reads(chunk, [lost])[0].run()[0])


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples of an image and its caption: many small ones, empty ones, a large one; and files of no sample."""
    root = tmp_path_factory.mktemp("grouped") / "data"
    for label, count in (("cat", 700), ("dog", 90)):
        (root / label).mkdir(parents=True)
        for number in range(count):
            (root / label / f"{number}.jpg").write_bytes(f"{label} {number} ".encode() * (number % 5))
            (root / label / f"{number}.txt").write_bytes(b"x" * (number % 3))
    (root / "cat/large.jpg").write_bytes(random.Random(0).randbytes(LARGE_BYTES))
    (root / "cat/large.txt").write_bytes(b"of a large one")
    (root / "notes.txt").write_bytes(b"of no sample")
    (root / "empty").write_bytes(b"")
    return root


def cells_of(catalog: Catalog) -> Cells:
    return build_cells(catalog.class_of, catalog.sample_bytes, chunk_size=GROUPED.chunk_size, seed=GROUPED.seed)


class TestDirectoryStore(StoreTests):
    @pytest.fixture
    def subject(self, grouped: Path) -> Iterator[Subject]:
        catalog = catalog_of(grouped, GROUPED)

        def path_of(entry: int) -> Path:
            return grouped / os.fsdecode(catalog.tree.path(entry))

        @contextmanager
        def without(sample: int) -> Iterator[None]:
            path = path_of(int(catalog.members[catalog.member_at[sample]]))
            path.rename(path.with_name("away"))
            try:
                yield
            finally:
                path.with_name("away").rename(path)

        with opened(grouped) as fd:
            yield Subject(
                DirectoryStore(catalog, fd), catalog, cells_of(catalog), lambda e: path_of(e).read_bytes(), without
            )


@pytest.fixture(scope="module")
def packed(grouped: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    dst = tmp_path_factory.mktemp("packed") / "dst"
    pack_here(grouped, dst, GROUPED)
    return dst


class TestPackedStore(StoreTests):
    @pytest.fixture(params=[0.002, 1e-9], ids=["what is between is read", "what is between is skipped"])
    def subject(self, grouped: Path, packed: Path, request: pytest.FixtureRequest) -> Iterator[Subject]:
        with store_of(packed, StorageSpeed(seek_s=request.param, bytes_per_s=200e6)) as (index, store):
            tree, positions = index.catalog.tree, index.positions

            @contextmanager
            def without(sample: int) -> Iterator[None]:
                entry = int(index.catalog.members[index.catalog.member_at[sample]])
                with open(packed / positions.shard_names[positions.shard[entry]], "r+b", buffering=0) as shard:
                    at = int(positions.data_at[entry])
                    byte = os.pread(shard.fileno(), 1, at)
                    os.pwrite(shard.fileno(), bytes([byte[0] ^ 1]), at)
                    try:
                        yield
                    finally:
                        os.pwrite(shard.fileno(), byte, at)

            def content(entry: int) -> bytes:
                return (grouped / os.fsdecode(tree.path(entry))).read_bytes()

            yield Subject(store, index.catalog, index.cells, content, without)

    def test_what_is_between_is_read_where_that_takes_less_time_than_to_skip_it(self, packed: Path) -> None:
        with store_of(packed) as (index, store):
            wanted = index.cells.cells[0][index.cells.cells[0] >= 0][::2].tolist()
            assert len(store.reads(0, wanted)) == 1
        with store_of(packed, StorageSpeed(seek_s=1e-9, bytes_per_s=200e6)) as (_, store):
            assert len(store.reads(0, wanted)) == len(wanted)

    def test_shards_are_closed(self, packed: Path) -> None:
        def shards_open() -> int:
            return sum(os.path.realpath(link).endswith(".tar") for link in Path("/proc/self/fd").iterdir())

        assert shards_open() == 0
        with store_of(packed):
            assert shards_open() == 2
        assert shards_open() == 0


class TestHeldStore(StoreTests):
    @pytest.fixture
    def subject(self, grouped: Path) -> Subject:
        catalog = catalog_of(grouped, GROUPED)
        store = HeldStore(catalog)

        @contextmanager
        def without(sample: int) -> Iterator[None]:
            store.broken.add(sample)
            yield
            store.broken.discard(sample)

        def content(entry: int) -> bytes:
            return (
                str(catalog.sample_of[entry]).encode().ljust(catalog.tree.size[entry], b".")[: catalog.tree.size[entry]]
            )

        return Subject(store, catalog, cells_of(catalog), content, without)


# The directory store alone


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for label in ("cat", "dog"):
        (tmp_path / "data" / label).mkdir(parents=True)
        for number in range(5):
            (tmp_path / "data" / label / f"{number}.jpg").write_bytes(f"{label} {number}".encode() * number)
    return tmp_path / "data"


@pytest.fixture
def root_fd(root: Path) -> Iterator[int]:
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.fixture
def catalog(root_fd: int) -> Catalog:
    return build_catalog(read_tree(root_fd), classes="dir")


@pytest.fixture
def store(catalog: Catalog, root_fd: int) -> DirectoryStore:
    return DirectoryStore(catalog, root_fd)


def sample_at(catalog: Catalog, path: str) -> int:
    return int(catalog.sample_of[catalog.tree.find(path.encode())])


def read(store: DirectoryStore, sample: int) -> FileBytes | OSError:
    (one,) = store.reads(0, [sample])
    ((file,),) = one.run()
    return file


def test_a_load_reads_each_wanted_file_whole_the_asked_one_first(store: DirectoryStore, catalog: Catalog) -> None:
    wanted = [sample_at(catalog, path) for path in ("dog/3.jpg", "cat/4.jpg", "cat/0.jpg", "dog/1.jpg")]
    reads = store.reads(0, wanted)
    assert reads[0].samples == (wanted[0],)
    assert sorted(s for r in reads for s in r.samples) == sorted(wanted)
    inodes = [int(catalog.tree.inode[catalog.members[r.samples[0]]]) for r in reads[1:]]
    assert inodes == sorted(inodes)
    for one in reads:
        ((file,),) = one.run()
        assert isinstance(file, FileBytes)
        label, number = catalog.tree.path(int(catalog.members[one.samples[0]])).decode().split("/")
        assert file.data == f"{label} {number[0]}".encode() * int(number[0])
        assert not file.changed


def test_a_file_that_takes_several_reads_takes_its_memory_once(
    store: DirectoryStore, catalog: Catalog, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux reads 2 GiB at once, here a mebibyte."""
    monkeypatch.setattr("redoxfs.chunks.directory.LONGEST_READ_BYTES", 1 << 20)
    content = random.Random(0).randbytes(8 << 20)
    (root / "cat/4.jpg").write_bytes(content)
    tracemalloc.start()
    try:
        file = read(store, sample_at(catalog, "cat/4.jpg"))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(file, FileBytes)
    assert file.data == content
    assert peak_bytes < 1.2 * len(content)


def test_a_changed_file_is_read_as_it_is_now_and_marked(store: DirectoryStore, catalog: Catalog, root: Path) -> None:
    (root / "cat/2.jpg").write_bytes(b"longer than it was before")
    file = read(store, sample_at(catalog, "cat/2.jpg"))
    assert isinstance(file, FileBytes)
    assert (file.data, file.changed) == (b"longer than it was before", True)


def replace_by_nothing(path: Path) -> None:
    path.unlink()


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_symlink(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def replace_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "replace", [replace_by_nothing, replace_by_directory, replace_by_symlink, replace_by_fifo], ids=lambda r: r.__name__
)
def test_what_is_no_regular_file_any_more_is_an_error_in_its_place(
    store: DirectoryStore, catalog: Catalog, root: Path, replace: object
) -> None:
    assert callable(replace)
    replace(root / "cat/2.jpg")
    assert isinstance(read(store, sample_at(catalog, "cat/2.jpg")), OSError)
    assert isinstance(read(store, sample_at(catalog, "cat/3.jpg")), FileBytes)


def test_a_range_is_read_only_of_what_it_was(store: DirectoryStore, catalog: Catalog, root: Path) -> None:
    sample = sample_at(catalog, "dog/4.jpg")
    file = read(store, sample)
    assert isinstance(file, FileBytes)
    assert store.read_range(sample, 0, file.stamp, 4, 9) == file.data[4:13]
    assert store.read_range(sample, 0, file.stamp, len(file.data) - 2, 100) == file.data[-2:]
    (root / "dog/4.jpg").write_bytes(b"other")
    with pytest.raises(OSError) as raised:
        store.read_range(sample, 0, file.stamp, 0, 1)
    assert raised.value.errno == errno.ESTALE


def test_a_range_of_a_file_that_changes_while_it_is_read_is_an_error(
    store: DirectoryStore, catalog: Catalog, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = sample_at(catalog, "dog/4.jpg")
    file = read(store, sample)
    assert isinstance(file, FileBytes)
    pread = os.pread

    def slow_pread(fd: int, size: int, offset: int) -> bytes:
        (root / "dog/4.jpg").write_bytes(b"something else")
        return pread(fd, size, offset)

    monkeypatch.setattr(os, "pread", slow_pread)
    with pytest.raises(OSError) as raised:
        store.read_range(sample, 0, file.stamp, 0, 5)
    assert raised.value.errno == errno.ESTALE


@pytest.fixture(params=["openat2", "component by component"])
def opener(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "openat2":
        monkeypatch.setattr(beneath, "_has_openat2", lambda: False)


@pytest.mark.usefixtures("opener")
def test_nothing_is_opened_outside_or_through_a_symlink(root: Path, root_fd: int) -> None:
    fd = open_beneath(root_fd, b"cat/3.jpg")
    assert os.read(fd, 5) == b"cat 3"
    assert not os.get_inheritable(fd)
    os.close(fd)
    (root.parent / "secret").write_text("secret")
    (root / "inside").symlink_to("cat")
    (root / "cat/link.jpg").symlink_to("../../secret")
    for path in (b"../secret", b"cat/../../secret", b"inside/3.jpg", b"cat/link.jpg", b"/etc/passwd", b""):
        with pytest.raises(OSError):
            open_beneath(root_fd, path)


@pytest.mark.usefixtures("opener")
def test_a_directory_swapped_for_a_symlink_is_not_followed(root: Path, root_fd: int, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "3.jpg").write_text("not of this tree")
    (root / "cat").rename(root / "was-cat")
    (root / "cat").symlink_to(elsewhere)
    with pytest.raises(OSError):
        open_beneath(root_fd, b"cat/3.jpg")


def test_descriptors_are_closed_also_after_errors(
    store: DirectoryStore, catalog: Catalog, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(os.listdir("/proc/self/fd"))
    replace_by_directory(root / "cat/2.jpg")
    for has_openat2 in (True, False):
        monkeypatch.setattr(beneath, "_has_openat2", lambda answer=has_openat2: answer)
        for sample in range(len(catalog.class_of)):
            read(store, sample)
    assert set(os.listdir("/proc/self/fd")) == before
