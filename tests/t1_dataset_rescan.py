"""A scan that builds on an earlier one: compared with os.walk and with a scan of everything, after random changes."""

from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
import tempfile
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from packs import opened
from patience import completed

from redoxfs.dataset import SourceError, Tree, load_or_scan, read_tree
from redoxfs.dataset.cache import ChangedError, check_unchanged, tell_changes
from redoxfs.dataset.scan import Earlier, find_unchanged


def same(one: Tree, other: Tree) -> None:
    for field in fields(Tree):
        assert np.array_equal(getattr(one, field.name), getattr(other, field.name)), field.name


def walked(root: Path) -> dict[str, tuple[int, int, int]]:
    """Mode, inode and modification time by path, as os.walk finds them."""
    found = {}
    for above, directories, files in os.walk(root):
        for name in (*directories, *files):
            path = os.path.join(above, name)
            status = os.lstat(path)
            found[os.path.relpath(path, root)] = (status.st_mode, status.st_ino, status.st_mtime_ns)
    return found


def scanned(tree: Tree) -> dict[str, tuple[int, int, int]]:
    return {
        os.fsdecode(tree.path(entry)): (int(tree.mode[entry]), int(tree.inode[entry]), int(tree.mtime_ns[entry]))
        for entry in range(1, len(tree))
    }


class Changing:
    """A directory that changes at random, in ways that change the times of directories."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.chance, self.made = root, random.Random(seed), 0
        self.clock_ns = 1_600_000_000_000_000_000

    def directories(self) -> list[Path]:
        return [self.root, *sorted(path for path in self.root.rglob("*") if path.is_dir() and not path.is_symlink())]

    def entries(self) -> list[Path]:
        return sorted(self.root.rglob("*"))

    def new_name(self, above: Path) -> Path:
        self.made += 1
        return above / f"{self.chance.choice('aBz.')}{self.made}{self.chance.choice(['', '.jpg', '.PNG', '.tar.gz'])}"

    def step(self) -> None:
        above = self.chance.choice(self.directories())
        changed = {above}
        what = self.chance.choice(["file", "file", "directory", "link", "remove", "rename", "replace"])
        if what == "file":
            self.new_name(above).write_bytes(b"x" * self.chance.randrange(4))
        elif what == "directory":
            self.new_name(above).mkdir()
        elif what == "link":
            self.new_name(above).symlink_to(self.chance.choice(["nowhere", "..", str(self.root)]))
        elif entries := self.entries():
            path = self.chance.choice(entries)
            changed.add(path.parent)
            self.change(what, path, above)
        # A scan and a change may come within one tick of the kernel's clock, and then both have one time.
        self.clock_ns += 1_000_000_000
        for directory in changed:
            if directory.exists():
                os.utime(directory, ns=(self.clock_ns, self.clock_ns))

    def change(self, what: str, path: Path, above: Path) -> None:
        is_directory = path.is_dir() and not path.is_symlink()
        if what == "rename" and path not in (above, *above.parents):
            path.rename(self.new_name(above))
        elif what == "replace" and not is_directory:
            path.unlink()
            path.mkdir()
        elif is_directory and not any(path.iterdir()):
            path.rmdir()
        elif not is_directory:
            path.unlink()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40), st.sampled_from([1, 3, 4096]))
@pytest.mark.slow
def test_a_scan_after_random_changes_equals_os_walk(seed: int, steps: int, at_once: int) -> None:
    with tempfile.TemporaryDirectory() as base:
        root = Path(base) / "root"
        root.mkdir()
        changing, kept = Changing(root, seed), 0
        for _ in range(steps):
            changing.step()
        with opened(root) as fd:
            tree = read_tree(fd, at_once=at_once)
            assert scanned(tree) == walked(root)
            for _ in range(3):
                for _ in range(changing.chance.randrange(4)):
                    changing.step()
                earlier = Earlier(tree, find_unchanged(fd, tree, workers=3))
                tree = read_tree(fd, earlier=earlier, at_once=at_once, workers=3)
                kept += int(earlier.unchanged.sum())
                assert scanned(tree) == walked(root)
                same(tree, read_tree(fd, workers=1))
            event(f"kept {min(kept, 5)} directories")


def test_threads_and_pieces_change_nothing_in_the_tree(tmp_path: Path) -> None:
    changing = Changing(tmp_path, 7)
    for _ in range(150):
        changing.step()
    with opened(tmp_path) as fd:
        expected = read_tree(fd, workers=1)
        for workers, at_once in ((1, 1), (32, 1), (32, 2), (64, 4096)):
            same(read_tree(fd, workers=workers, at_once=at_once), expected)


def test_only_directories_that_changed_are_listed_again(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "train" / name).mkdir(parents=True)
        (tmp_path / "train" / name / "1.jpg").write_bytes(b"old")
    with opened(tmp_path) as fd:
        tree = read_tree(fd)
        # Written in place: neither directory changes.
        (tmp_path / "train/cat/1.jpg").write_bytes(b"longer than before")
        (tmp_path / "train/dog/1.jpg").write_bytes(b"longer than before")
        (tmp_path / "train/dog/2.jpg").write_bytes(b"new")
        again = read_tree(fd, earlier=Earlier(tree, find_unchanged(fd, tree)))
    sizes = {path: int(again.size[again.find(path)]) for path in (b"train/cat/1.jpg", b"train/dog/1.jpg")}
    assert sizes == {b"train/cat/1.jpg": 3, b"train/dog/1.jpg": 18}
    assert again.find(b"train/dog/2.jpg") > 0


def test_a_scan_lists_again_what_changed_and_counts_it(tmp_path: Path) -> None:
    source, hour_ns = tmp_path / "source", 3_600_000_000_000
    for name in ("cat", "dog", "horse"):
        (source / name).mkdir(parents=True)
        (source / name / "1.jpg").write_bytes(b"1")
    with opened(source) as fd:
        clock = iter([os.stat(source).st_mtime_ns + hour_ns * after for after in range(1, 9)])

        def scan(rescan: bool = False) -> tuple[int, int]:
            found = load_or_scan(source, fd, tmp_path / "cache", rescan=rescan, clock_ns=lambda: next(clock))
            assert scanned(found.tree) == walked(source)
            return found.listed, found.kept

        assert scan() == (4, 0)
        assert scan() == (0, 4)
        (source / "dog/2.jpg").write_bytes(b"2")
        assert scan() == (1, 3)
        assert scan() == (0, 4)
        assert scan(rescan=True) == (4, 0)


def test_a_source_with_sockets_that_changed_is_scanned_as_a_whole(tmp_path: Path) -> None:
    source, hour_ns = tmp_path / "source", 3_600_000_000_000
    (source / "cat").mkdir(parents=True)
    (source / "dog").mkdir(parents=True)
    os.mkfifo(source / "cat/fifo")
    with opened(source) as fd:
        clock = iter([os.stat(source).st_mtime_ns + hour_ns * after for after in range(1, 9)])
        for expected in (1, 1, 2):
            scan = load_or_scan(source, fd, tmp_path / "cache", clock_ns=lambda: next(clock))
            assert scan.tree.skipped == expected
            if expected == 1 and scan.reused:
                os.mkfifo(source / "dog/fifo")


def test_a_new_name_of_a_file_in_another_directory_is_a_hard_link(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.jpg").write_bytes(name.encode())
    with opened(tmp_path) as fd:
        tree = read_tree(fd)
        os.link(tmp_path / "cat/1.jpg", tmp_path / "dog/2.jpg")
        again = read_tree(fd, earlier=Earlier(tree, find_unchanged(fd, tree)))
        assert again.nlink.tolist() == read_tree(fd).nlink.tolist()
        assert int(again.nlink[again.find(b"cat/1.jpg")]) == 2


def test_a_symlink_leads_to_the_file_that_is_there_now(tmp_path: Path) -> None:
    source, hour_ns = tmp_path / "source", 3_600_000_000_000
    for name in ("cat", "dog"):
        (source / name).mkdir(parents=True)
        (source / name / "1.jpg").write_bytes(name.encode())
    (source / "dog/2.jpg").symlink_to("../cat/1.jpg")
    with opened(source) as fd:
        clock = iter([os.stat(source).st_mtime_ns + hour_ns * after for after in range(1, 9)])
        load_or_scan(source, fd, tmp_path / "cache", clock_ns=lambda: next(clock))
        (source / "cat/new").write_bytes(b"another file")
        (source / "cat/new").rename(source / "cat/1.jpg")
        again = load_or_scan(source, fd, tmp_path / "cache", clock_ns=lambda: next(clock))
        assert again.listed < 3
        same(again.tree, load_or_scan(source, fd, tmp_path / "cache", rescan=True).tree)


def test_a_directory_of_another_filesystem_is_not_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    with opened(tmp_path) as fd:
        tree = read_tree(fd)
        assert find_unchanged(fd, tree).tolist() == [True, True]
        device = tree.device.copy()
        device[1] += np.uint64(1)
        assert find_unchanged(fd, replace(tree, device=device)).tolist() == [True, False]


def test_a_directory_that_may_keep_its_times_is_listed_again(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
    with opened(tmp_path) as fd:
        tree = read_tree(fd)
        later_ns = int(tree.ctime_ns.max()) + 60_000_000_000
        assert tell_changes(tree, later_ns, {int(tree.device[0]): "ext4", 7: "fuse.s3fs"}).all()
        device = tree.device.copy()
        device[1] = 7
        for kind, tells in (("fuse", False), ("fuse.s3fs", False), ("fuse.juicefs", True), ("nfs4", True)):
            found = tell_changes(replace(tree, device=device), later_ns, {7: kind})
            assert found.tolist() == [True, tells, True], kind
        # As of the root of FAT.
        times = np.array([0, *tree.ctime_ns[1:]])
        assert tell_changes(replace(tree, mtime_ns=times, ctime_ns=times), later_ns, {}).tolist() == [False, True, True]
        # As of an image that was made with one time for all, and of another image.
        one = np.full(3, tree.ctime_ns.max())
        of_image = {int(tree.device[0]): "squashfs"}
        assert not tell_changes(replace(tree, mtime_ns=one, ctime_ns=one), later_ns, of_image).any()
        assert tell_changes(replace(tree, mtime_ns=one + [0, 1, 0], ctime_ns=one), later_ns, of_image).all()
        among = np.array([True, False, True])
        assert find_unchanged(fd, tree, among=among).tolist() == among.tolist()


def test_a_scan_is_done_with_few_descriptors(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "1.jpg").touch()
    scan = (
        "import os, resource, sys; from redoxfs.dataset import read_tree\n"
        "fd = os.open(sys.argv[1], os.O_RDONLY); resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))\n"
        "for _ in range(5): print(len(read_tree(fd)))"
    )
    done = completed([sys.executable, "-c", scan, tmp_path])
    assert (done.stdout.split(), done.stderr) == (["601"] * 5, "")


def test_a_source_that_never_ends_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redoxfs.dataset.scan.LEVELS_MAX", 5)
    (tmp_path / "1/2/3/4/5").mkdir(parents=True)
    with opened(tmp_path) as root:
        assert len(read_tree(root)) == 6
        (tmp_path / "1/2/3/4/5/6").mkdir()
        with pytest.raises(SourceError, match="more than 5 levels"):
            read_tree(root)


def test_ctrl_c_ends_a_scan(tmp_path: Path) -> None:
    for name in range(20):
        (tmp_path / str(name)).mkdir()

    def interrupt(_entries: int, _directories: int) -> None:
        raise KeyboardInterrupt

    with opened(tmp_path) as fd, pytest.raises(KeyboardInterrupt):
        read_tree(fd, progress=interrupt, at_once=1)


def with_times_of_now(tree: Tree, root: Path) -> Tree:
    """The same names, and directories that seem not to have changed since."""
    directories = np.flatnonzero(tree.kind_mask(stat.S_IFDIR))
    found = [os.stat(root / os.fsdecode(tree.path(int(entry)))) for entry in directories]
    mtime_ns, ctime_ns = tree.mtime_ns.copy(), tree.ctime_ns.copy()
    mtime_ns[directories] = [each.st_mtime_ns for each in found]
    ctime_ns[directories] = [each.st_ctime_ns for each in found]
    return replace(tree, mtime_ns=mtime_ns, ctime_ns=ctime_ns)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ("touch a/0.jpg", "a"),
        ("rm b/3.jpg", "b"),
        ("mv b/3.jpg b/4.jpg", "b"),
        ("mv b/3.jpg c/3.jpg", "b"),
        ("rm a/2.jpg; mkdir a/2.jpg", "a"),
        ("touch c/9.jpg", "c"),
        ("mkdir d", r"\."),
        ("touch a b", None),
    ],
)
def test_names_are_read_again_where_times_of_directories_say_nothing(
    tmp_path: Path, change: str, where: str | None
) -> None:
    for name in ("a/1.jpg", "a/2.jpg", "b/3.jpg", "c/5.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with opened(tmp_path) as fd:
        before = read_tree(fd)
        subprocess.run(["sh", "-c", change], cwd=tmp_path, check=True)
        tree, silent = with_times_of_now(before, tmp_path), {tmp_path.stat().st_dev: "fuse.rclone"}
        check_unchanged(tree, fd, {})
        if where is None:
            check_unchanged(before, fd, silent)
        else:
            with pytest.raises(ChangedError, match=f"^{where} has changed"):
                check_unchanged(tree, fd, silent)
