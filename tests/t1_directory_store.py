"""The directory store over a real tree that changes under it."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from redoxfs.chunks import DirectoryStore, FileBytes, beneath, open_beneath
from redoxfs.dataset import Catalog, build_catalog, read_tree


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
