"""Scanning a directory into a Tree: the arrays compared with os.walk, symlinks, vanished and unreadable entries."""

from __future__ import annotations

import os
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packs import opened

from redoxfs.dataset import SourceError, Tree, build_catalog, read_tree
from redoxfs.dataset.tree import CONTROL_NAME


def scan(root: Path | bytes, progress: Callable[[int, int], None] | None = None) -> Tree:
    with opened(root) as fd:
        return read_tree(fd, workers=3, progress=progress)


NOT_NAMES = (b".", b"..", CONTROL_NAME)
names = st.binary(min_size=1, max_size=12).filter(lambda n: not {0, ord("/")} & set(n) and n not in NOT_NAMES)
Nested = dict[bytes, "Nested | int | None"]
trees = st.recursive(
    st.one_of(st.integers(0, 3), st.none()), lambda below: st.dictionaries(names, below, max_size=5), max_leaves=25
)


def lay_out(at: bytes, what: object) -> None:
    """A dict is a directory, a number a file of that many bytes, None a dangling symlink."""
    if isinstance(what, dict):
        os.mkdir(at)
        for name, below in what.items():
            lay_out(at + b"/" + name, below)
    elif isinstance(what, int):
        with open(at, "wb") as file:
            file.write(b"x" * what)
    else:
        os.symlink(b"nowhere", at)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(names, trees, max_size=6))
@pytest.mark.slow
def test_the_arrays_equal_os_walk(what: Nested) -> None:
    with tempfile.TemporaryDirectory() as base:
        root = os.fsencode(base) + b"/root"
        lay_out(root, what)
        tree = scan(root)
        expected = {b""}
        for above, directories, files in os.walk(root):
            expected |= {os.path.relpath(os.path.join(above, name), root) for name in directories + files}
        paths = [tree.path(entry) for entry in range(len(tree))]
        assert len(paths) == len(expected)
        assert set(paths) == expected
        for entry, path in enumerate(paths):
            found = os.lstat(os.path.join(root, path))
            assert tree.find(path) == entry
            assert (tree.mode[entry], tree.size[entry], tree.inode[entry], tree.mtime_ns[entry]) == (
                found.st_mode,
                found.st_size,
                found.st_ino,
                found.st_mtime_ns,
            )
            inside = [tree.name(child) for child in tree.children_of(entry)]
            assert inside == (sorted(os.listdir(os.path.join(root, path))) if tree.is_dir(entry) else [])
            suffix = os.path.splitext(tree.name(entry))[1].lower()
            if tree.name(entry).lstrip(b".") == tree.name(entry):
                assert tree.extensions[tree.extension[entry]] == suffix
        depth = [path.count(b"/") + bool(path) for path in paths]
        assert depth == sorted(depth)
        assert bool((np.diff(tree.parent) >= 0).all())


def test_lookup_of_a_missing_path(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b").write_bytes(b"1")
    tree = scan(tmp_path)
    assert tree.lookup(0, b"b") == -1
    assert tree.find(b"a/c") == -1
    assert tree.find(b"a/b/c") == -1
    assert tree.find(b"../a") == -1
    assert tree.find(b"./a//b") == tree.lookup(tree.lookup(0, b"a"), b"b") >= 0


def test_symlinks_are_read_and_resolved_without_leaving_the_tree(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "data/deep").mkdir(parents=True)
    (root / "data/deep/x.jpg").write_bytes(b"x")
    (tmp_path / "outside.jpg").write_bytes(b"o")
    links = {
        "plain": ("data/deep/x.jpg", "data/deep/x.jpg"),
        "folder": ("data/deep", "data/deep"),
        "through": ("folder/x.jpg", "data/deep/x.jpg"),
        "data/up": ("../plain", "data/deep/x.jpg"),
        "data/up2": ("../folder/../deep/./x.jpg", "data/deep/x.jpg"),
        "absolute": (f"{root}/data/deep/x.jpg", "data/deep/x.jpg"),
        "around": ("../root/data/deep", "data/deep"),
        "self": (".", ""),
        "out": ("../outside.jpg", None),
        "out2": ("/etc/passwd", None),
        "dangling": ("data/none", None),
        "loop": ("loop2", None),
        "loop2": ("loop", None),
        "infile": ("data/deep/x.jpg/..", None),
    }
    for name, (target, _) in links.items():
        (root / name).symlink_to(target)
    tree = scan(root)
    for name, (target, end) in links.items():
        entry = tree.find(name.encode())
        assert tree.is_link(entry)
        assert tree.link_target(entry) == target.encode()
        assert tree.resolve(entry) == (-1 if end is None else tree.find(end.encode())), name
        row = list(tree.link_entry).index(entry)
        expected = os.stat(root / name).st_ino if (root / name).exists() else 0
        assert tree.link_inode[row] == expected
    plain = tree.find(b"data/deep/x.jpg")
    assert tree.resolve(plain) == plain
    with pytest.raises(KeyError):
        tree.link_target(plain)


def test_specials_are_counted_and_left_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_bytes(b"")
    tree = scan(tmp_path)
    assert tree.skipped == 1
    assert [tree.name(entry) for entry in tree.children_of(0)] == [b"file"]


def test_an_entry_named_like_the_control_folder_is_left_out(tmp_path: Path) -> None:
    (tmp_path / ".redoxfs").mkdir()
    (tmp_path / ".redoxfs/stats.json").write_bytes(b"")
    (tmp_path / "cat/.redoxfs").mkdir(parents=True)
    (tmp_path / "cat/1.jpg").write_bytes(b"")
    tree = scan(tmp_path)
    assert [tree.path(entry) for entry in range(len(tree))] == [b"", b"cat", b"cat/.redoxfs", b"cat/1.jpg"]
    assert tree.control_left_out == 1
    for classes in ("auto", "none", "dir"):
        said = build_catalog(tree, classes=classes).verdict.saw
        assert said == (".redoxfs in the source is left out: the mount's control folder has that name",)
    (tmp_path / ".redoxfs/stats.json").unlink()
    (tmp_path / ".redoxfs").rmdir()
    tree = scan(tmp_path)
    assert tree.control_left_out == 0
    assert build_catalog(tree, classes="none").verdict.saw == ()


def test_progress_ends_at_the_entry_count_and_no_thread_stays(tmp_path: Path) -> None:
    for at in range(20):
        (tmp_path / f"d{at}").mkdir()
        (tmp_path / f"d{at}/x").write_bytes(b"")
    before = set(threading.enumerate())
    said: list[tuple[int, int]] = []
    tree = scan(tmp_path, lambda entries, directories: said.append((entries, directories)))
    assert said[-1] == (len(tree), 21) == (41, 21)
    assert not set(threading.enumerate()) - before


def test_a_directory_that_vanishes_during_the_scan_is_left_out(tmp_path: Path) -> None:
    # Progress is called between levels, before the directories of the second level are read.
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_bytes(b"")

    def vanish(_entries: int, _directories: int) -> None:
        if (tmp_path / "here").exists():
            (tmp_path / "here/x").unlink()
            (tmp_path / "here").rmdir()

    tree = scan(tmp_path, vanish)
    assert tree.find(b"here") == -1
    assert tree.find(b"there/x") == len(tree) - 1


def test_a_directory_swapped_for_a_symlink_is_not_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "here/below").mkdir(parents=True)
    (outside / "below").mkdir(parents=True)
    (outside / "below/secret").write_bytes(b"s")

    def swap(_entries: int, _directories: int) -> None:
        if not (root / "here").is_symlink():
            (root / "here").rename(tmp_path / "aside")
            (root / "here").symlink_to(outside)

    tree = scan(root, swap)
    assert all(tree.name(entry) != b"secret" for entry in range(len(tree)))


@contextmanager
def nobody() -> Iterator[None]:
    """Root can read everything, so permission tests run as another user."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_directory_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "open").mkdir()
    (tmp_path / "open/closed").mkdir(mode=0)
    try:
        with opened(tmp_path) as fd, nobody(), pytest.raises(SourceError) as caught:
            read_tree(fd, workers=3)
    finally:
        (tmp_path / "open/closed").chmod(0o700)
    assert str(caught.value).startswith("cannot read open/closed: Permission denied; make it readable")


def test_a_file_without_a_stat_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "listable").mkdir()
    (tmp_path / "listable/x").write_bytes(b"")
    (tmp_path / "listable").chmod(0o444)
    try:
        with opened(tmp_path) as fd, nobody(), pytest.raises(SourceError, match="cannot read listable/x: "):
            read_tree(fd, workers=3)
    finally:
        (tmp_path / "listable").chmod(0o700)


def test_a_descriptor_of_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        with pytest.raises(SourceError, match="cannot read the source directory"):
            read_tree(fd)
    finally:
        os.close(fd)


def test_paths_longer_than_one_call_allows(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    name = b"n" * 200
    for _ in range(25):
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open(b"x", os.O_CREAT, dir_fd=fd))
    os.close(fd)
    tree = scan(tmp_path)
    assert len(tree.path(len(tree) - 1)) == 25 * 201 + 1
    assert stat.S_ISREG(int(tree.mode[-1]))
