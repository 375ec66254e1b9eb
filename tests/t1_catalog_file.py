"""A catalog in a file: equal to the one that was written, refused if damaged, and compared with the source."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import xxhash
from packs import opened

from redoxfs.cli import main
from redoxfs.dataset import (
    Catalog,
    DamagedCatalogError,
    SourceError,
    Tree,
    at_source,
    build_catalog,
    fingerprint,
    read_catalog,
    read_tree,
    write_catalog,
)
from redoxfs.dataset.catalog_file import FORMAT, VERSION
from redoxfs.launch.forks import forked

ASKED: dict[str, object] = {"classes": "dir", "samples": [], "groups": None, "table": None}
HEAD = struct.Struct("<16sQQQ16s")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    for split in ("train", "val"):
        for kind in ("cat", "dog"):
            (root / split / kind).mkdir(parents=True)
            for number in range(5):
                (root / split / kind / f"{number}.jpg").write_bytes(kind.encode() * (number + 1))
    (root / "train/link").symlink_to("../names.txt")
    (root / "names.txt").write_bytes(b"cat\ndog\n")
    return root


def test_an_export_that_is_ended_leaves_nothing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "to"
    folder.mkdir()
    # What only the file of a catalog is given, before it has its name.
    monkeypatch.setattr(os, "fchmod", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    with forked(lambda: main(["catalog", "export", str(source), str(folder / "set.catalog")]), signal.SIGKILL) as child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    assert list(folder.iterdir()) == []


def catalog_at(root: Path) -> Catalog:
    with opened(root) as fd:
        return build_catalog(read_tree(fd), classes="dir", root_fd=fd)


@pytest.fixture
def catalog(source: Path) -> Catalog:
    return catalog_at(source)


@pytest.fixture
def file(tmp_path: Path, catalog: Catalog) -> Path:
    path = tmp_path / "data.catalog"
    write_catalog(path, catalog, asked=ASKED, about={"source": "/data"})
    return path


def sealed(path: Path, change: Callable[[dict[str, object]], None]) -> None:
    """Write a changed description with the right lengths and sum, as somebody could who means harm."""
    data = path.read_bytes()
    _, version, _, length, _ = HEAD.unpack(data[: HEAD.size])
    description = json.loads(data[HEAD.size : HEAD.size + length])
    first = -(-(HEAD.size + length) // 64) * 64
    change(description)
    text = json.dumps(description).encode()
    text += b" " * (-(len(text) + HEAD.size) % 64)
    body = text + data[first:]
    numbers = (version, HEAD.size + len(body), len(text))
    sum_ = xxhash.xxh3_128_digest(struct.pack("<QQQ", *numbers) + body)
    path.write_bytes(HEAD.pack(FORMAT, *numbers, sum_) + body)


def test_a_catalog_is_read_as_it_was_written(catalog: Catalog, file: Path) -> None:
    read = read_catalog(file)
    assert (read.asked, read.about) == (ASKED, {"source": "/data"})
    for field in fields(Catalog):
        if field.name != "tree":
            assert np.array_equal(getattr(read.catalog, field.name), getattr(catalog, field.name)), field.name
    for field in fields(Tree):
        if field.name != "roots":
            assert np.array_equal(getattr(read.catalog.tree, field.name), getattr(catalog.tree, field.name)), field.name
    assert fingerprint(read.catalog) == fingerprint(catalog)


def test_a_file_is_replaced_as_a_whole_and_nothing_else_is_left(catalog: Catalog, file: Path) -> None:
    before = file.read_bytes()
    write_catalog(file, catalog, asked=ASKED, about={"source": "/elsewhere"})
    assert file.read_bytes() != before
    assert read_catalog(file).about == {"source": "/elsewhere"}
    assert sorted(path.name for path in file.parent.iterdir()) == ["data.catalog", "source"]


def test_a_failed_write_leaves_the_old_file(catalog: Catalog, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()

    def fails(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="No space left"):
        write_catalog(file, catalog, asked=ASKED, about={})
    assert file.read_bytes() == before
    assert sorted(path.name for path in file.parent.iterdir()) == ["data.catalog", "source"]


def test_a_flipped_bit_anywhere_is_found(file: Path) -> None:
    data = file.read_bytes()
    for at in [*range(HEAD.size + 8), *range(HEAD.size + 8, len(data), 37), len(data) - 1]:
        file.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        with pytest.raises(DamagedCatalogError, match=r"data\.catalog is "):
            read_catalog(file)


@pytest.mark.parametrize("length", [0, 1, 15, 16, 55, 56, 57, 200, 4000, -1, -64])
def test_a_truncated_file_is_refused(file: Path, length: int) -> None:
    os.truncate(file, length if length >= 0 else file.stat().st_size + length)
    with pytest.raises(DamagedCatalogError, match=str(file)):
        read_catalog(file)


def test_a_longer_file_is_refused(file: Path) -> None:
    with file.open("ab") as more:
        more.write(b"\0")
    with pytest.raises(DamagedCatalogError, match=r"is damaged: .* bytes long instead of"):
        read_catalog(file)


def test_another_version_is_named(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[16:24] = struct.pack("<Q", VERSION + 1)
    file.write_bytes(data)
    with pytest.raises(DamagedCatalogError, match="format version 2; this redoxfs reads version 1; export it again"):
        read_catalog(file)


def test_a_link_to_a_file_is_followed_and_a_fifo_is_refused(tmp_path: Path, file: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(file)
    assert read_catalog(tmp_path / "link").asked == ASKED
    with pytest.raises(DamagedCatalogError, match="not a regular file"):
        read_catalog(tmp_path / "fifo")
    with pytest.raises(FileNotFoundError):
        read_catalog(tmp_path / "missing")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(class_names=[1]), "not a text"),
        (lambda d: d.update(class_names=["cat"]), "the classes are counted wrong"),
        (lambda d: d.update(extensions=[]), "an extension is not in the list"),
        (lambda d: d["arrays"]["names"].update(length=1 << 40), "invalid value"),
        (lambda d: d["arrays"]["uid"].update(length=1 << 40), "impossible length"),
        (lambda d: d["arrays"]["uid"].update(length=1 << 30), "impossible length"),
        (lambda d: d["arrays"]["uid"].update(length=3), "differ in length"),
        (lambda d: d["arrays"].pop("size"), "KeyError"),
        (lambda d: d.pop("verdict"), "KeyError"),
    ],
)
def test_a_forged_description_with_a_right_checksum_is_refused(
    file: Path, change: Callable[[dict[str, object]], None], said: str
) -> None:
    sealed(file, change)
    with pytest.raises(DamagedCatalogError, match=said):
        read_catalog(file)


def test_the_source_of_the_scan_agrees_with_all_numbers(source: Path, catalog: Catalog) -> None:
    with opened(source) as fd:
        here = at_source(catalog, fd, (b"/here",))
    assert np.array_equal(here.catalog.tree.inode, catalog.tree.inode)
    assert (here.catalog.tree.roots, here.has_same_times) == ((b"/here",), True)


def test_a_copy_agrees_and_its_inodes_are_unknown(tmp_path: Path, source: Path, catalog: Catalog) -> None:
    shutil.copytree(source, tmp_path / "copy", symlinks=True, copy_function=shutil.copyfile)
    with opened(tmp_path / "copy") as fd:
        here = at_source(catalog, fd, ())
    assert not here.catalog.tree.inode.any()
    assert np.array_equal(here.catalog.tree.size, catalog.tree.size)
    assert not here.has_same_times


def changed(source: Path, how: str) -> str:
    """Change the source; returns what is said of it."""
    path = source / "train/cat/3.jpg"
    if how == "missing file":
        path.unlink()
        return "train/cat/3.jpg is in the catalog and not here"
    if how == "other size":
        path.write_bytes(b"1234567")
        return "train/cat/3.jpg has 7 bytes here and 12 in the catalog"
    if how == "directory for a file":
        path.unlink()
        path.mkdir()
        return "train/cat/3.jpg is not a regular file here"
    if how == "link to the file":
        path.rename(source.parent / "aside")
        path.symlink_to(source.parent / "aside")
        return "train/cat/3.jpg is not a regular file here"
    if how == "more files":
        (source / "val/dog/more.jpg").write_bytes(b"")
        return "val/dog/more.jpg is here and not in the catalog"
    (source / "train").rename(source.parent / "aside")
    (source / "train").symlink_to(source.parent / "aside")
    return "train.* is in the catalog and not here"


@pytest.mark.parametrize(
    "how", ["missing file", "other size", "directory for a file", "link to the file", "more files", "link on the way"]
)
def test_another_source_is_refused_with_the_first_difference(source: Path, catalog: Catalog, how: str) -> None:
    said = changed(source, how)
    with opened(source) as fd, pytest.raises(SourceError, match=said):
        at_source(catalog, fd, ())


def test_what_a_scan_leaves_out_hides_no_more_files(source: Path) -> None:
    os.mkfifo(source / "val/dog/fifo")
    catalog = catalog_at(source)
    assert catalog.tree.skipped == 1
    os.mkfifo(source / "val/dog/another")
    with opened(source) as fd:
        at_source(catalog, fd, ())
        (source / "val/dog/more.jpg").write_bytes(b"")
        with pytest.raises(SourceError, match=r"val/dog/more.jpg is here and not in the catalog"):
            at_source(catalog, fd, ())


def test_only_a_sample_of_a_large_source_is_compared(tmp_path: Path) -> None:
    for number in range(400):
        (tmp_path / f"{number:03d}.jpg").write_bytes(b"1")
    catalog = catalog_at(tmp_path)
    (tmp_path / "001.jpg").write_bytes(b"not in the sample")
    with opened(tmp_path) as fd:
        assert len(at_source(catalog, fd, ()).catalog.tree) == 401
        (tmp_path / "000.jpg").write_bytes(b"in the sample")
        with pytest.raises(SourceError, match=r"000\.jpg has 13 bytes"):
            at_source(catalog, fd, ())
