"""The tests of every chunk store, for all stores; then the directory store over a tree that changes."""

import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packs import Options, opened, pack_here, store_of
from stores import FaultyCalls, HeldStore, bytes_in_buffers, call_is_short, no_openat2

from redoxfs.chunks import DirectoryStore, FileBytes, Stamp, StorageSpeed, open_beneath
from redoxfs.dataset import Catalog, build_catalog, read_tree
from redoxfs.native import Buffer
from redoxfs.packed import PackedStore, load_index
from redoxfs.testing import CHUNK_SIZE, GROUPS, StoreTests, Subject, layout_of, make_source

GROUPED = Options(chunk_size=CHUNK_SIZE, groups=GROUPS)


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_source(tmp_path_factory.mktemp("grouped"))


class TestDirectoryStore(StoreTests):
    @pytest.fixture
    def subject(self, grouped: Path) -> Iterator[Subject]:
        catalog, cells = layout_of(grouped)

        def path_of(entry: int) -> Path:
            return grouped / os.fsdecode(catalog.tree.path(entry))

        @contextmanager
        def unreadable(sample: int) -> Iterator[None]:
            path = path_of(int(catalog.members[catalog.member_at[sample]]))
            path.rename(path.with_name("away"))
            try:
                yield
            finally:
                path.with_name("away").rename(path)

        with opened(grouped) as fd:
            yield Subject(DirectoryStore(catalog, fd), catalog, cells, lambda e: path_of(e).read_bytes(), unreadable)


@pytest.fixture(scope="module")
def packed(grouped: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    dst = tmp_path_factory.mktemp("packed") / "dst"
    pack_here(grouped, dst, GROUPED)
    return dst


class TestPackedStore(StoreTests):
    @pytest.fixture(params=[0.002, 1e-9], ids=["gaps are read", "gaps are skipped"])
    def subject(self, grouped: Path, packed: Path, request: pytest.FixtureRequest) -> Iterator[Subject]:
        with store_of(packed, StorageSpeed(seek_s=request.param, bytes_per_s=200e6)) as (index, store):
            tree, positions = index.catalog.tree, index.positions

            @contextmanager
            def unreadable(sample: int) -> Iterator[None]:
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

            yield Subject(store, index.catalog, index.cells, content, unreadable)

    def test_a_gap_is_read_if_that_is_faster_than_skipping_it(self, packed: Path) -> None:
        with store_of(packed) as (index, store):
            wanted = index.cells.cells[0][index.cells.cells[0] >= 0][::2].tolist()
            assert len(store.reads(0, wanted)) == 1
        with store_of(packed, StorageSpeed(seek_s=1e-9, bytes_per_s=200e6)) as (_, store):
            assert len(store.reads(0, wanted)) == len(wanted)

    def test_a_file_whose_shard_is_on_another_node_cannot_be_opened(self, packed: Path, tmp_path: Path) -> None:
        here = shutil.copytree(packed, tmp_path / "here")
        index = load_index(here)
        tree, positions = index.catalog.tree, index.positions
        entry = int(index.catalog.members[np.flatnonzero(tree.size[index.catalog.members])[0]])
        (here / positions.shard_names[positions.shard[entry]]).unlink()
        store = PackedStore(index, here, StorageSpeed(seek_s=0.002, bytes_per_s=200e6))
        try:
            with pytest.raises(FileNotFoundError, match="is on another node"):
                store.open_file(entry)
        finally:
            store.close()

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
        catalog, cells = layout_of(grouped)
        store = HeldStore(catalog)

        @contextmanager
        def unreadable(sample: int) -> Iterator[None]:
            store.broken.add(sample)
            yield
            store.broken.discard(sample)

        def content(entry: int) -> bytes:
            return (
                str(catalog.sample_of[entry]).encode().ljust(catalog.tree.size[entry], b".")[: catalog.tree.size[entry]]
            )

        return Subject(store, catalog, cells, content, unreadable)


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


def test_a_load_reads_each_wanted_file_whole_the_first_one_first(store: DirectoryStore, catalog: Catalog) -> None:
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
        assert bytes(file.data) == f"{label} {number[0]}".encode() * int(number[0])
        assert not file.changed


def test_a_file_that_takes_several_reads_takes_its_memory_once(root_fd: int, root: Path) -> None:
    """Linux reads 2 GiB at once. Here a call returns at most half of what it is asked for."""
    content = random.Random(0).randbytes(8 << 20)
    (root / "cat/4.jpg").write_bytes(content)
    catalog = build_catalog(read_tree(root_fd), classes="dir")
    store = DirectoryStore(catalog, root_fd)
    before = bytes_in_buffers()
    calls = FaultyCalls(call_is_short, 1)
    with calls.made():
        file = read(store, sample_at(catalog, "cat/4.jpg"))
    assert calls.hit > 5
    assert isinstance(file, FileBytes)
    assert bytes(file.data) == content
    assert Buffer.total_bytes() - before == len(content)


def test_a_changed_file_is_read_as_it_is_now_and_marked(store: DirectoryStore, catalog: Catalog, root: Path) -> None:
    path = root / "cat/2.jpg"
    now = path.read_bytes()[::-1][1:]
    path.write_bytes(now)
    file = read(store, sample_at(catalog, "cat/2.jpg"))
    assert isinstance(file, FileBytes)
    assert (bytes(file.data), file.changed) == (now, True)


@pytest.mark.parametrize("size", [1000, 3 << 30, 1 << 43])
def test_a_file_that_has_grown_is_read_by_position_alone(
    store: DirectoryStore, catalog: Catalog, root: Path, size: int
) -> None:
    path, sample = root / "cat/2.jpg", sample_at(catalog, "cat/2.jpg")
    os.truncate(path, size)
    before = Buffer.total_bytes()
    file = read(store, sample)
    assert isinstance(file, FileBytes)
    assert Buffer.total_bytes() == before
    now = path.stat()
    assert (bytes(file.data), file.stamp, file.changed) == (b"", Stamp(size, now.st_mtime_ns, now.st_ino), True)
    with path.open("rb") as there:
        assert store.read_range(sample, 0, file.stamp, 0, 900) == there.read(900)


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
def test_a_file_that_became_something_else_is_an_error_in_its_place(
    store: DirectoryStore, catalog: Catalog, root: Path, replace: object
) -> None:
    assert callable(replace)
    replace(root / "cat/2.jpg")
    assert isinstance(read(store, sample_at(catalog, "cat/2.jpg")), OSError)
    assert isinstance(read(store, sample_at(catalog, "cat/3.jpg")), FileBytes)


def test_a_range_of_a_changed_file_is_an_error(store: DirectoryStore, catalog: Catalog, root: Path) -> None:
    sample = sample_at(catalog, "dog/4.jpg")
    file = read(store, sample)
    assert isinstance(file, FileBytes)
    assert store.read_range(sample, 0, file.stamp, 4, 9) == memoryview(file.data)[4:13]
    assert store.read_range(sample, 0, file.stamp, len(file.data) - 2, 100) == memoryview(file.data)[-2:]
    (root / "dog/4.jpg").write_bytes(b"other")
    with pytest.raises(OSError) as raised:
        store.read_range(sample, 0, file.stamp, 0, 1)
    assert raised.value.errno == errno.ESTALE


def test_a_range_of_a_file_that_changes_during_the_read_is_an_error(
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
def opener(request: pytest.FixtureRequest) -> Iterator[None]:
    with no_openat2() if request.param != "openat2" else nullcontext():
        yield


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


@pytest.mark.usefixtures("opener")
@pytest.mark.parametrize("swapped", ["cat", "cat/3.jpg"])
def test_a_sample_is_not_read_through_a_symlink(
    root: Path, root_fd: int, catalog: Catalog, tmp_path: Path, swapped: str
) -> None:
    store = DirectoryStore(catalog, root_fd)
    (root / swapped).rename(tmp_path / "elsewhere")
    (root / swapped).symlink_to(tmp_path / "elsewhere")
    file = read(store, sample_at(catalog, "cat/3.jpg"))
    assert isinstance(file, OSError)
    assert file.errno in (errno.ELOOP, errno.ENOTDIR)
    assert file.filename == "cat/3.jpg"
    assert isinstance(read(store, sample_at(catalog, "dog/3.jpg")), FileBytes)


@pytest.mark.usefixtures("opener")
def test_descriptors_are_closed_even_after_errors(root: Path, root_fd: int, catalog: Catalog) -> None:
    store = DirectoryStore(catalog, root_fd)
    before = set(os.listdir("/proc/self/fd"))
    replace_by_directory(root / "cat/2.jpg")
    with pytest.raises(OSError):
        store.open_file(catalog.tree.find(b"cat/2.jpg"))
    for sample in range(len(catalog.class_of)):
        read(store, sample)
    # Garbage of other tests may have held one before.
    assert set(os.listdir("/proc/self/fd")) <= before


def test_an_error_names_its_reason_and_the_file(store: DirectoryStore, catalog: Catalog, root: Path) -> None:
    replace_by_nothing(root / "cat/1.jpg")
    replace_by_fifo(root / "cat/2.jpg")
    found = [read(store, sample_at(catalog, f"cat/{number}.jpg")) for number in (1, 2)]
    assert [(f.errno, f.strerror, f.filename) for f in found if isinstance(f, OSError)] == [
        (errno.ENOENT, "No such file or directory", "cat/1.jpg"),
        (errno.EIO, "no longer a regular file", "cat/2.jpg"),
    ]


def fails_once(real: Callable[..., Any]) -> Callable[..., Any]:
    """A call of the system of which the first fails."""
    made = 0

    def call(*args: Any) -> Any:
        nonlocal made
        made += 1
        if made == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(*args)

    return call


def test_a_file_itself_is_opened_and_read_again_after_a_failure(
    store: DirectoryStore, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fstat", fails_once(os.fstat))
    file = store.open_file(catalog.tree.find(b"cat/4.jpg"))
    for _ in range(2):
        monkeypatch.setattr(os, "pread", fails_once(os.pread))
        assert file.read(0, 100) == b"cat 4" * 4
    file.close()


def test_a_short_read_of_a_file_itself_is_completed_and_no_end(
    store: DirectoryStore, catalog: Catalog, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = store.open_file(catalog.tree.find(b"cat/4.jpg"))
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: real(fd, min(size, 3), at))
    assert file.read(1, 100) == (b"cat 4" * 4)[1:]
    # The storage says that it ends before the file does.
    monkeypatch.setattr(os, "pread", lambda fd, size, at: real(fd, max(0, min(size, 7 - at)), at))
    with pytest.raises(OSError, match="fewer bytes"):
        file.read(0, 100)
    # Of a file that has become shorter, that is right.
    shrink(root / "cat/4.jpg")
    assert file.read(0, 100) == b"cat"
    file.close()


def test_a_packed_file_itself_is_read_again_after_a_failure(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with store_of(packed) as (index, store):
        file = store.open_file(index.catalog.tree.find(b"cat/large.jpg"))
        whole = file.read(0, 1 << 20)
        file.close()
        monkeypatch.setattr(os, "preadv", fails_once(os.preadv))
        assert file.read(0, 1 << 20) == whole
        file.close()


def grow(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"more")


def shrink(path: Path) -> None:
    os.truncate(path, 3)


def touch(path: Path) -> None:
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


@pytest.mark.parametrize("change", [grow, shrink, touch], ids=lambda change: change.__name__)
@pytest.mark.parametrize("times", [1, 2])
def test_a_file_that_changes_during_a_read_is_read_once_more(
    store: DirectoryStore, catalog: Catalog, root: Path, change: Callable[[Path], None], times: int
) -> None:
    path = root / "cat/4.jpg"

    def changes(_data: memoryview, done: int) -> int:
        if calls.hit <= times:
            change(path)
        return done

    calls = FaultyCalls(changes, 1)
    with calls.made():
        file = read(store, sample_at(catalog, "cat/4.jpg"))
    if times == 1 or change is grow:
        assert isinstance(file, FileBytes)
        now = path.read_bytes()
        data = b"" if change is grow else now
        assert (bytes(file.data), file.stamp.size, file.changed) == (data, len(now), True)
    else:
        assert isinstance(file, OSError)
        assert (file.errno, file.strerror) == (errno.EIO, "the file changed while it was read")
