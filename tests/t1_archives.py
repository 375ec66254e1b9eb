"""The index of tar archives: the tree that tar makes, sets and layouts, what is kept, and archives that are hostile."""

import errno
import io
import os
import random
import stat
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from packs import SPEED, opened, put_in_place_when_missed, python_calls
from patience import PATIENCE_S
from tars import LONG_AGO_S, files_of, indexed, member, paths_of, tar_of, two_archives, write_tar

from redoxfs.chunks import Cells, FileBytes
from redoxfs.chunks.store import Access, NarrowedError
from redoxfs.cli import main
from redoxfs.dataset import Catalog, ClassesError, build_catalog
from redoxfs.dataset.groups import TOGETHER
from redoxfs.launch.archives import check_hidden, expanded, with_archives
from redoxfs.launch.errors import SourceUnusableError, UsageError
from redoxfs.launch.options import DatasetOptions
from redoxfs.launch.path_status import ArchiveFiles, path_status
from redoxfs.packed import DamagedDatasetError
from redoxfs.packed.archive_files import OnDisk, UnusableArchiveError
from redoxfs.packed.archive_groups import apart, other_key, scattered, shares_stems
from redoxfs.packed.archive_samples import Asked, load_or_find
from redoxfs.packed.archive_sets import sets_of
from redoxfs.packed.archive_store import ArchiveStore, chunks_of, index_of, runs, size_for_classes
from redoxfs.packed.archives import load_or_index
from redoxfs.packed.sharded import PackedFile
from redoxfs.testing import CHUNK_SIZE, GROUPS, StoreTests, Subject

# The tree


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("archives") / "source"
    (root / "cat/inner").mkdir(parents=True)
    (root / "empty").mkdir()
    for number in range(30):
        (root / f"cat/{number}.jpg").write_bytes(b"%d" % number * number * 40)
    (root / "cat/inner/large").write_bytes(random.Random(0).randbytes(300_000))
    (root / "link").symlink_to("cat/1.jpg")
    os.link(root / "cat/2.jpg", root / "hard.jpg")
    os.utime(root / "cat/3.jpg", ns=(0, 1_234_567_890_123_456_789))
    return root


def long_names(root: Path) -> Path:
    """The source with names of which only newer formats are capable."""
    deep = root / ("d" * 120) / ("e" * 130)
    deep.mkdir(parents=True, exist_ok=True)
    (deep / ("f" * 200)).write_bytes(b"of a long name")
    (root / "käse \udcff.jpg").write_bytes(b"a name that is not UTF-8")
    return root


def everything_in(root: Path) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for above, directories, files in os.walk(root):
        for name in (*directories, *files):
            path = os.path.join(above, name)
            known = os.lstat(path)
            if stat.S_ISLNK(known.st_mode):
                content: object = os.readlink(path)
            elif stat.S_ISREG(known.st_mode):
                content = Path(path).read_bytes()
            else:
                content = None
            found[os.path.relpath(path, root)] = (stat.S_IFMT(known.st_mode), content, known.st_mtime_ns)
    return found


def everything_of(folder: Path, name: str, cache: Path) -> dict[str, tuple[object, ...]]:
    index = indexed(folder, name, cache=cache)
    tree = index.grown.tree
    files = files_of(folder, index)
    found: dict[str, tuple[object, ...]] = {}
    for entry in range(1, len(tree)):
        path = os.fsdecode(tree.path(entry))
        content: object = files.get(path)
        if tree.is_link(entry):
            content = os.fsdecode(tree.link_target(entry))
        found[path] = (stat.S_IFMT(int(tree.mode[entry])), content, int(tree.mtime_ns[entry]))
    return found


@pytest.mark.parametrize("kind", ["v7", "ustar", "gnu", "oldgnu", "pax"])
def test_an_archive_of_gnu_tar_is_the_tree_that_it_extracts(source: Path, kind: str, tmp_path: Path) -> None:
    root = source
    if kind in ("gnu", "oldgnu", "pax"):
        subprocess.run(["cp", "-a", source, tmp_path / "long"], check=True)
        root = long_names(tmp_path / "long")
    archive = tmp_path / "a.tar"
    subprocess.run(["tar", "-C", root, f"--format={kind}", "-cf", archive, "."], check=True)
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run(["tar", "-C", out, "-xf", archive], check=True)
    found = everything_of(tmp_path, "a.tar", tmp_path / "cache")
    assert found == everything_in(out)
    assert len(found) >= 36


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_an_archive_of_python_is_the_tree_that_it_lists(source: Path, kind: int, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=kind) as archive:
        archive.add(source, "")
    with tarfile.open(tmp_path / "a.tar") as archive:
        files = {}
        for info in archive:
            if info.isreg() or info.islnk():
                file = archive.extractfile(info)
                assert file is not None
                files[info.name] = file.read()
    assert files_of(tmp_path, indexed(tmp_path, "a.tar")) == files


def test_of_a_repeated_path_the_last_member_counts_and_a_link_is_what_its_target_was(tmp_path: Path) -> None:
    members = [
        member("a", b"first"),
        member("before", type=tarfile.LNKTYPE, linkname="./a"),
        member("./a", b"second"),
        member("after", type=tarfile.LNKTYPE, linkname="a"),
        member("lost", type=tarfile.LNKTYPE, linkname="none"),
        member("dir/x", b"x"),
        member("dir", b"cannot replace what is not empty"),
        member("a/below", b"a file is no directory"),
        member("gone", b"a file"),
        member("gone", type=tarfile.DIRTYPE),
        member(".redoxfs", b"control"),
    ]
    index = indexed(write_tar(tmp_path / "a.tar", members).parent, "a.tar")
    tree = index.grown.tree
    assert files_of(tmp_path, index) == {"a": b"second", "before": b"first", "after": b"second", "dir/x": b"x"}
    assert tree.is_dir(tree.find(b"gone"))
    assert tree.nlink[tree.find(b"a")] == tree.nlink[tree.find(b"after")] == 2
    assert tree.inode[tree.find(b"a")] == tree.inode[tree.find(b"after")] != tree.inode[tree.find(b"before")]
    assert (index.grown.blocked, index.grown.lost, tree.control_left_out) == (2, 1, 1)
    assert [line for line in index.said if line.startswith("left out")] == [
        "left out: 2 members below a file or a link, or in the place of a directory that is not empty",
        "left out: 1 hard links to files that are not there",
    ]


def test_owner_and_mode_are_those_of_the_archive(tmp_path: Path) -> None:
    write_tar(
        tmp_path / "a.tar", [member("dir/x", b"x", mode=0o4777, uid=4242), member("l", type=b"2", linkname="dir")]
    )
    os.chmod(tmp_path / "a.tar", 0o640)
    index = indexed(tmp_path, "a.tar")
    tree = index.grown.tree
    # A kept index is of the same mode.
    assert (index.read, indexed(tmp_path, "a.tar").read) == (1, 0)
    os.chmod(tmp_path / "a.tar", 0o600)
    again = indexed(tmp_path, "a.tar")
    assert oct(again.grown.tree.mode[tree.find(b"dir/x")]) == "0o100400"
    # Its ctime, which might be that of other bytes.
    assert again.checksum != index.checksum
    own = (tmp_path / "a.tar").stat()
    assert oct(tree.mode[tree.find(b"dir/x")]) == "0o100440"
    assert oct(tree.mode[tree.find(b"dir")]) == oct(tree.mode[0]) == "0o40550"
    assert {*tree.uid.tolist()} == {own.st_uid}
    assert {*tree.gid.tolist()} == {own.st_gid}
    assert (tree.link_device.tolist(), tree.link_inode.tolist()) == ([1], [int(tree.inode[tree.find(b"dir")])])


def bytes_of(path: Path, files: dict[str, bytes]) -> bytes:
    data = tar_of(path, files).read_bytes()
    path.unlink()
    return data


def test_archives_in_an_archive_are_its_folders(tmp_path: Path) -> None:
    inner = {f"n{number}.tar": bytes_of(tmp_path / "inner", {"a.jpg": b"%d" % number}) for number in range(3)}
    tar_of(tmp_path / "all.tar", {f"./train/{name}": data for name, data in inner.items()})
    index = indexed(tmp_path, "all.tar")
    assert files_of(tmp_path, index) == {f"train/n{number}/a.jpg": b"%d" % number for number in range(3)}
    tar_of(tmp_path / "mixed.tar", {**inner, "b.jpg": b"no archive"})
    assert set(files_of(tmp_path, indexed(tmp_path, "mixed.tar"))) == {*inner, "b.jpg"}


# Sets and layouts


@pytest.mark.parametrize(
    ("names", "places"),
    [
        (["a.tar"], [("", ["a.tar"], False)]),
        # These numbers are no counter.
        (["s-0.tar", "s-10.tar"], [("s-0", ["s-0.tar"], False), ("s-10", ["s-10.tar"], False)]),
        (["s-10.tar", "s-9.tar"], [("", ["s-9.tar", "s-10.tar"], True)]),
        (["s-0.tar", "s-1.tar", "s-2.tar"], [("", ["s-0.tar", "s-1.tar", "s-2.tar"], True)]),
        (
            ["train-00.tar", "train-01.tar", "val-00.tar"],
            [("train", ["train-00.tar", "train-01.tar"], True), ("val-00", ["val-00.tar"], False)],
        ),
        (
            ["train/0.tar", "train/1.tar", "val/0.tar", "val/1.tar"],
            [("train", ["train/0.tar", "train/1.tar"], True), ("val", ["val/0.tar", "val/1.tar"], True)],
        ),
        (
            ["in1k-0-of-2.tar", "in1k-1-of-2.tar"],
            [("", ["in1k-0-of-2.tar", "in1k-1-of-2.tar"], True)],
        ),
        (["n01.tar", "n99.tar"], [("n01", ["n01.tar"], False), ("n99", ["n99.tar"], False)]),
        (["train.tar", "train/a.tar"], [("train.tar", ["train.tar"], False), ("train", ["train/a.tar"], False)]),
    ],
)
def test_archives_form_sets_by_their_names(names: list[str], places: list[tuple[str, list[str], bool]]) -> None:
    found = [(each.place, [names[at] for at in each.archives], each.is_sharded) for each in sets_of(names)]
    assert found == places


@pytest.mark.parametrize("name", ["n{:08}.tar", "n{:08}/x.tar"], ids=["sets of a folder", "folders"])
def test_the_sets_of_many_archives_cost_so_much_for_each(name: str) -> None:
    """Not for each pair: ImageNet-21k has 21,841 archives whose numbers are no counter."""
    names = [name.format(number * 1000) for number in range(2000)]
    assert python_calls(lambda: sets_of(names)) < 100 * len(names)
    assert len({each.place for each in sets_of(names)}) == len(names)


def test_shards_are_one_tree_unless_a_path_or_a_key_is_in_two_of_them(tmp_path: Path) -> None:
    tar_of(tmp_path / "s-0.tar", {"0.jpg": b"a", "0.json": b"b"})
    tar_of(tmp_path / "s-1.tar", {"1.jpg": b"c"})
    index = indexed(tmp_path, "s-0.tar", "s-1.tar")
    assert (index.layout, index.is_sharded) == ("tree", True)
    assert paths_of(index.grown.tree) == ["0.jpg", "0.json", "1.jpg"]
    folders = indexed(tmp_path, "s-0.tar", "s-1.tar", layout="folders")
    assert [path for path in paths_of(folders.grown.tree) if "." in path] == ["s-0/0.jpg", "s-0/0.json", "s-1/1.jpg"]
    # The same key as in the other shard, by another path.
    tar_of(tmp_path / "s-1.tar", {"0.txt": b"c", "1.jpg": b"d"})
    both = indexed(tmp_path, "s-0.tar", "s-1.tar", cache=tmp_path / "other")
    assert both.layout == "folders"
    assert any("or its key" in line for line in both.said)
    assert files_of(tmp_path, both)["s-1/0.txt"] == b"c"


def test_a_layout_that_an_added_shard_would_change_is_refused(tmp_path: Path) -> None:
    tar_of(tmp_path / "s-0.tar", {"0.jpg": b"a"})
    tar_of(tmp_path / "s-1.tar", {"1.jpg": b"b"})
    tar_of(tmp_path / "s-2.tar", {"1.jpg": b"again"})
    assert indexed(tmp_path, "s-0.tar", "s-1.tar").layout == "tree"
    with pytest.raises(UnusableArchiveError, match="--archives tree, and now it would be --archives folders"):
        indexed(tmp_path, "s-0.tar", "s-1.tar", "s-2.tar")
    with pytest.raises(UnusableArchiveError, match="--archives tree, and now it would be --archives folders"):
        indexed(tmp_path, "s-0.tar", "s-1.tar", "s-2.tar", rescan=True)
    chosen = indexed(tmp_path, "s-0.tar", "s-1.tar", "s-2.tar", layout="tree")
    assert files_of(tmp_path, chosen) == {"0.jpg": b"a", "1.jpg": b"again"}
    # Also after a mount that was told.
    with pytest.raises(UnusableArchiveError, match="--archives tree, and now it would be --archives folders"):
        indexed(tmp_path, "s-0.tar", "s-1.tar", "s-2.tar")


def test_keys_of_webdataset_end_at_the_first_dot(tmp_path: Path) -> None:
    names = ["img_0.5_3.jpg", "img_0.6_3.png", "b.cls", "b.jpg"]
    tree = indexed(tar_of(tmp_path / "a.tar", {f"c/{name}": b"x" for name in names}).parent, "a.tar").grown.tree
    assert other_key(tree) == b"img_0.5_3.jpg"
    kinds = {
        groups: np.diff(build_catalog(tree, classes="any", groups=groups).member_at).tolist()
        for groups in ("stem", "wds")
    }
    assert kinds == {"stem": [2, 1, 1], "wds": [2, 2]}


def test_a_sample_never_spans_two_archives(tmp_path: Path) -> None:
    tar_of(tmp_path / "s-0.tar", {"0.jpg": b"a", "1.jpg": b"b"})
    tar_of(tmp_path / "s-1.tar", {"0.json": b"c"})
    tree = indexed(tmp_path, "s-0.tar", "s-1.tar", layout="tree").grown
    catalog = build_catalog(tree.tree, classes="any", groups="stem")
    assert catalog.tree.path(apart(catalog, tree.shard)) == b"0.json"
    folders = indexed(tmp_path, "s-0.tar", "s-1.tar", layout="folders").grown
    assert apart(build_catalog(folders.tree, classes="any", groups="stem"), folders.shard) == -1


# What is kept


def test_only_archives_that_changed_are_read_again(tmp_path: Path) -> None:
    names = [f"s-{number}.tar" for number in range(4)]
    for number, name in enumerate(names):
        tar_of(tmp_path / name, {f"{number}.jpg": b"x" * number, f"d/{number}.jpg": b"y"})
    first = indexed(tmp_path, *names)
    again = indexed(tmp_path, *names)
    assert (first.read, again.read) == (4, 0)
    assert again.checksum == first.checksum
    assert (again.layout, again.is_sharded, again.said) == (first.layout, first.is_sharded, first.said)
    assert files_of(tmp_path, again) == files_of(tmp_path, first)
    for name in ("mode", "mtime_ns", "nlink", "inode", "extension"):
        assert np.array_equal(getattr(again.grown.tree, name), getattr(first.grown.tree, name))
    tar_of(tmp_path / "s-2.tar", {"2.jpg": b"other and longer" * 1000})
    changed = indexed(tmp_path, *names)
    assert (changed.read, changed.checksum != first.checksum) == (1, True)
    assert files_of(tmp_path, changed) == {**files_of(tmp_path, indexed(tmp_path, *names, rescan=True))}
    assert files_of(tmp_path, changed)["2.jpg"].startswith(b"other")
    # A time of now proves nothing: the archive may change again in the same tick.
    os.utime(tmp_path / "s-2.tar")
    assert (indexed(tmp_path, *names).read, indexed(tmp_path, *names).read) == (1, 1)


def test_a_damaged_index_is_made_again(tmp_path: Path) -> None:
    tar_of(tmp_path / "a.tar", {"0.jpg": b"a"})
    indexed(tmp_path, "a.tar")
    for names, read in ((["names.npy"], 0), (["names.npy", "members.npy"], 1), (["manifest.json"], 1)):
        for name in names:
            (kept,) = (tmp_path / "cache").glob(f"archives-*/{name}")
            kept.write_bytes(kept.read_bytes()[:-1])
        index = indexed(tmp_path, "a.tar")
        assert (files_of(tmp_path, index), index.read) == ({"0.jpg": b"a"}, read)


def test_an_index_that_another_command_is_putting_in_place_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tar_of(tmp_path / "a.tar", {"0.jpg": b"a"})
    assert indexed(tmp_path, "a.tar").read == 1
    (place,) = (tmp_path / "cache").glob("archives-*")
    put_in_place_when_missed(place, tmp_path / "aside", monkeypatch)
    assert indexed(tmp_path, "a.tar").read == 0


def test_samples_of_unchanged_archives_are_loaded(tmp_path: Path) -> None:
    names = ["train-0.tar", "train-1.tar"]
    for number, name in enumerate(names):
        files = {f"{number}{at}{suffix}": b"x" for at in range(70) for suffix in (".jpg", ".json")}
        tar_of(tmp_path / name, files)

    def found(classes: str = "any", groups: str | None = None) -> tuple[Catalog, Cells]:
        index = indexed(tmp_path, *names)
        return load_or_find(str(tmp_path), index, tmp_path / "cache", Asked(classes, (), groups))

    def is_loaded(*asked: str) -> bool:
        """By a word that only the kept samples have. What is found anew replaces them."""
        (kept,) = (tmp_path / "cache").glob("samples-*/manifest.json")
        kept.write_text(kept.read_text().replace("redirecting among", "kept and redirecting among"))
        return found(*asked)[0].verdict.line.startswith("kept")

    (first, cells), (again, same_cells) = found(), found()
    assert np.array_equal(cells.cells, same_cells.cells)
    assert np.array_equal(cells.group_start, same_cells.group_start)
    for name in ("sample_of", "member_of", "member_at", "members", "class_of", "tree_of_class", "sample_bytes"):
        assert np.array_equal(getattr(first, name), getattr(again, name))
    assert (again.verdict, again.class_names, again.class_trees) == (
        (first.verdict, first.class_names, first.class_trees)
    )
    assert (is_loaded(), is_loaded("any", "wds"), is_loaded("any", "wds")) == (True, False, True)
    # The same bytes, of the same time, in another place of the tree.
    os.rename(tmp_path / names[0], tmp_path / "val.tar")
    names[0] = "val.tar"
    assert (is_loaded("any", "wds"), is_loaded("any", "wds")) == (False, True)
    for damaged in ("cells.npy", "class_of.npy", "manifest.json"):
        (kept,) = (tmp_path / "cache").glob(f"samples-*/{damaged}")
        kept.write_bytes(kept.read_bytes()[:-1])
        assert np.array_equal(found()[1].cells, found()[1].cells)
        assert (is_loaded(), len(found()[0].class_of)) == (True, 140)


# Labels in members


def labelled(folder: Path, labels: dict[str, bytes], **more: bytes) -> None:
    """Two shards of KEY.jpg and KEY.cls; the label of a key is the same in both."""
    for shard in range(2):
        files = {
            f"{shard}{key}{suffix}": data
            for key, label in labels.items()
            for suffix, data in ((".jpg", key.encode() * 3000), (".cls", label))
        }
        tar_of(folder / f"s-{shard}.tar", files | {f"{shard}{name}": data for name, data in more.items()})


def samples_in(folder: Path, classes: str = "member:cls", **options: object) -> Catalog:
    """Their index and samples, as a mount makes them."""
    with opened(folder) as fd:
        files = OnDisk(fd, [(name, name) for name in ("s-0.tar", "s-1.tar")])
        found = load_or_index(str(folder), files, folder / "cache")
        return load_or_find(str(folder), found, folder / "cache", Asked(classes, **options), files)[0]  # type: ignore[arg-type]


def test_the_class_of_a_sample_is_the_content_of_its_member(tmp_path: Path) -> None:
    labels = {"a": b"7", "b": b"10\n", "c": b" 7 ", "d": "käse".encode(), "e": b"7"}
    labelled(tmp_path, labels)
    for _ in range(2):
        catalog = samples_in(tmp_path)
        found = {
            catalog.tree.path(int(catalog.members[at]))[1:2].decode(): catalog.class_names[label]
            for at, label in zip(catalog.member_at[:-1].tolist(), catalog.class_of.tolist(), strict=True)
        }
        assert found == {key: label.decode().strip() for key, label in labels.items()}
        assert catalog.verdict.line == "redirecting within 3 classes, by --classes member:cls"
        assert TOGETHER not in catalog.verdict.saw
    # An archive that has changed has other labels; the second time, a tool gives it its length and time of before.
    for label in ("8", "9"):
        before = (tmp_path / "s-0.tar").stat()
        # Until the clock of the filesystem has ticked.
        while (tmp_path / "s-0.tar").stat().st_ctime_ns == before.st_ctime_ns:
            labelled(tmp_path, {**labels, "a": label.encode()})
            os.utime(tmp_path / "s-0.tar", (LONG_AGO_S + 1, LONG_AGO_S + 1))
        assert samples_in(tmp_path).class_names == ["10", "7", label, "käse"]
    after = (tmp_path / "s-0.tar").stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)
    # A time of now does not prove that labels are the same.
    now_ns = time.time_ns()
    for old, new in ((b"10\n", b"10\n"), (b"10\n", b"11\n")):
        data = (tmp_path / "s-1.tar").read_bytes().replace(old, new)
        (tmp_path / "s-1.tar").write_bytes(data)
        os.utime(tmp_path / "s-1.tar", ns=(now_ns, now_ns))
        assert new.decode().strip() in samples_in(tmp_path).class_names
    assert samples_in(tmp_path).class_names == ["10", "11", "7", "9", "käse"]


@pytest.mark.parametrize(
    ("labels", "more", "line"),
    [
        ({"a": b"1", "b": b" "}, {}, "0b.cls is empty"),
        ({"a": b"1", "b": b"\xff"}, {}, "0b.cls is not a text in one line"),
        ({"a": b"1", "b": b"one\ntwo"}, {}, "0b.cls is not a text in one line"),
        ({"a": b"1", "b": b"1" * 257}, {}, "0b.cls is longer than 256 bytes"),
        ({"a": b"1", "b": b"1"}, {"c.jpg": b"x"}, "2 of 6 samples have no file with this suffix, such as 0c.jpg"),
    ],
)
def test_labels_that_are_none_are_refused_by_their_name(
    labels: dict[str, bytes], more: dict[str, bytes], line: str, tmp_path: Path
) -> None:
    labelled(tmp_path, labels, **more)
    with pytest.raises(ClassesError, match=line):
        samples_in(tmp_path)
    if more:
        assert len(samples_in(tmp_path, samples=("*[ab].jpg",)).class_of) == 4


def test_labels_in_members_are_named_if_each_sample_has_one(tmp_path: Path) -> None:
    labelled(tmp_path, {"a": b"7", "b": b"10"})
    assert sum("--classes member:cls" in line for line in samples_in(tmp_path, "auto").verdict.saw) == 1
    assert not any("--classes member:cls" in line for line in samples_in(tmp_path, "any").verdict.saw)
    labelled(tmp_path, {"a": b"7", "b": b"10"}, **{"c.jpg": b"without"})
    os.utime(tmp_path / "s-0.tar", (LONG_AGO_S + 1, LONG_AGO_S + 1))
    assert not any("--classes member:cls" in line for line in samples_in(tmp_path, "auto").verdict.saw)


def test_labels_are_read_wherever_they_lie(tmp_path: Path) -> None:
    """Side by side, far apart, as links, and the last bytes of an archive."""
    labels = [member(f"{at}.cls", b"%d" % (at % 3)) for at in range(300)]
    images = [member(f"{at}.jpg", b"x" * (at * at * 7)) for at in range(300)]
    random.Random(0).shuffle(images)
    far = [member("300.cls", b"1"), member("filler", b"\0" * 200_000), member("301.cls", b"2")]
    linked = [
        member("302.cls", type=tarfile.LNKTYPE, linkname="1.cls"),
        *(member(f"{at}.jpg") for at in (300, 301, 302)),
    ]
    write_tar(tmp_path / "s-0.tar", [*labels[:200], *images, *labels[200:], *far, *linked])
    write_tar(tmp_path / "s-1.tar", [member("400.jpg", b"x"), member("400.cls", b"2" * 256)])
    catalog = samples_in(tmp_path)
    tree = catalog.tree
    for at, label in zip(catalog.member_at[:-1].tolist(), catalog.class_of.tolist(), strict=True):
        number = int(tree.path(int(catalog.members[at])).partition(b".")[0])
        expected = {300: "1", 301: "2", 302: "1", 400: "2" * 256}.get(number, str(number % 3))
        assert catalog.class_names[label] == expected


# Archives that nobody should trust


def test_names_that_lead_out_are_left_out_and_counted(tmp_path: Path) -> None:
    names = ["../out", "a/../../out", "/etc/passwd", "n" * 256, "d/" * 2100 + "x", "ok"]
    index = indexed(write_tar(tmp_path / "a.tar", [member(name, b"x") for name in names]).parent, "a.tar")
    assert set(files_of(tmp_path, index)) == {"etc/passwd", "ok"}
    assert any("4 members with a name" in line for line in index.said)


def test_links_out_of_the_tree_lead_to_no_file_of_it(tmp_path: Path) -> None:
    members = [
        member("up", type=b"2", linkname="../../etc/passwd"),
        member("loop", type=b"2", linkname="loop"),
        member("x"),
    ]
    tree = indexed(write_tar(tmp_path / "a.tar", members).parent, "a.tar").grown.tree
    assert tree.link_target(tree.find(b"up")) == b"../../etc/passwd"
    assert tree.link_inode.tolist() == [0, 0]


def test_paths_that_make_too_many_directories_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redoxfs.packed.archive_tree.DIRECTORIES_BASE", 1000)
    tar_of(tmp_path / "a.tar", {f"{number}/" + "d/" * 900 + "x": b"" for number in range(3)})
    with pytest.raises(UnusableArchiveError, match="more directories than any dataset has"):
        indexed(tmp_path, "a.tar")


def cut(data: bytes) -> bytes:
    return data[:-1500]


def torn(data: bytes) -> bytes:
    return data[:1024] + b"x" * 512 + data[1536:]


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 12345\n" % (b"0" * 64)


def zipped(*files: bytes) -> Callable[[bytes], bytes]:
    def change(_: bytes) -> bytes:
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w") as archive:
            for number, data in enumerate(files):
                archive.writestr(f"{number}.jpg", data)
        return made.getvalue()

    return change


@pytest.mark.parametrize(
    ("change", "error", "line"),
    [
        (cut, DamagedDatasetError, r"^a\.tar is truncated: the member at 1,024 ends beyond the 1,\d+ bytes"),
        (torn, DamagedDatasetError, r"^a\.tar is damaged: the header at 1,024 is wrong; to serve .*: --salvage$"),
        (lambda data: b"\x1f\x8b" + data, UnusableArchiveError, "is compressed with gzip.*unpack it: gunzip -k a.tar"),
        (lambda data: b"\x28\xb5\x2f\xfd" + data, UnusableArchiveError, "is compressed with zstd"),
        (lambda _: b"x" * 2000, UnusableArchiveError, r"^a\.tar is not a tar archive$"),
        # Shorter than a header.
        (lambda data: b"\x1f\x8b" + data[:100], UnusableArchiveError, "is compressed with gzip.*: gunzip -k a.tar"),
        (lambda _: b"Not found\n", UnusableArchiveError, r"^a\.tar is not a tar archive$"),
        (lambda _: POINTER, UnusableArchiveError, "^a.tar is not .* but a pointer of Git LFS.*: git lfs pull$"),
        (
            zipped(b"x"),
            UnusableArchiveError,
            r"^a\.tar is a zip file, and redoxfs reads tar files; unpack it: unzip a\.tar$",
        ),
        (zipped(b"x" * 5000), UnusableArchiveError, r"^a\.tar is a zip file"),
        (zipped(), UnusableArchiveError, r"^a\.tar is a zip file"),
    ],
)
def test_an_archive_that_is_none_or_damaged_is_one_line(
    tmp_path: Path, change: Callable[[bytes], bytes], error: type[Exception], line: str
) -> None:
    path = tar_of(tmp_path / "a.tar", {"0.jpg": b"a" * 100, "1.jpg": b"b" * 900})
    # Without the zeros at the end.
    path.write_bytes(change(path.read_bytes()[: 512 * 5]))
    with pytest.raises(error, match=line) as raised:
        indexed(tmp_path, "a.tar")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("head", [b"PK\x03\x04", b"\x1f\x8b"])
def test_the_command_that_unpacks_an_archive_can_be_typed_as_it_is(tmp_path: Path, head: bytes) -> None:
    (tmp_path / "of a day.tar").write_bytes(head + b"x" * 600)
    with pytest.raises(UnusableArchiveError, match=r"; unpack it: \w+( -k)? 'of a day\.tar'$"):
        indexed(tmp_path, "of a day.tar")
    # None can be given for one in another archive.
    tar_of(tmp_path / "all.tar", {"n0.tar": head + b"x" * 600})
    with pytest.raises(UnusableArchiveError, match=r"^n0\.tar in all\.tar is .*(read in place|reads tar files)$"):
        indexed(tmp_path, "all.tar")


@pytest.mark.parametrize(("change", "what"), [(cut, "truncated"), (torn, "damaged"), (lambda _: b"x" * 2000, "not")])
def test_archives_with_a_fault_are_served_on_request_as_far_as_they_go(
    tmp_path: Path, change: Callable[[bytes], bytes], what: str
) -> None:
    bad = tar_of(tmp_path / "s-0.tar", {"0.jpg": b"a" * 100, "1.jpg": b"b" * 900})
    tar_of(tmp_path / "s-1.tar", {"2.jpg": b"c"})
    bad.write_bytes(change(bad.read_bytes()[: 512 * 5]))
    os.utime(bad, (LONG_AGO_S, LONG_AGO_S))
    for read in (2, 0):
        index = indexed(tmp_path, "s-0.tar", "s-1.tar", salvages=True)
        kept = {} if what == "not" else {"0.jpg": b"a" * 100}
        assert (files_of(tmp_path, index), index.read) == ({**kept, "2.jpg": b"c"}, read)
        (line,) = index.said
        assert line.startswith("salvaged: s-0.tar is ")
        assert what in line
    # What was kept of it is not for a mount that did not ask.
    with pytest.raises((DamagedDatasetError, UnusableArchiveError), match=r"^s-0\.tar is"):
        indexed(tmp_path, "s-0.tar", "s-1.tar")


def test_what_is_odd_about_an_end_is_said(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "a.tar", {"0.jpg": b"a"})
    whole = path.read_bytes()
    path.write_bytes(whole[:1024])
    assert indexed(tmp_path, "a.tar").said == ("no end mark: a.tar; an archive without it may have been cut off",)
    path.write_bytes(whole + whole)
    assert indexed(tmp_path, "a.tar").said == ("bytes after the end mark are left out, as by tar: a.tar",)


# The store


class TestArchiveStore(StoreTests):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> Iterator[Subject]:
        root = two_archives(tmp_path)
        found = indexed(tmp_path, "s-0.tar", "s-1.tar")
        catalog = build_catalog(found.grown.tree, classes="dir", groups=GROUPS)
        index = index_of(found, catalog, chunks_of(found, catalog), seed=0)
        cells = runs(catalog, index.positions, CHUNK_SIZE)
        assert scattered(catalog, found.grown.member) > 700

        @contextmanager
        def unreadable(sample: int) -> Iterator[None]:
            assert int(index.positions.shard[catalog.members[catalog.member_at[sample]]]) == 1
            os.utime(tmp_path / "s-1.tar")
            try:
                yield
            finally:
                os.utime(tmp_path / "s-1.tar", (LONG_AGO_S, LONG_AGO_S))

        def content(entry: int) -> bytes:
            return (root / os.fsdecode(catalog.tree.path(entry))).read_bytes()

        store = ArchiveStore(index, tmp_path, SPEED)
        yield Subject(store, catalog, cells, content, unreadable)
        store.close()


def test_an_archive_that_changed_fails_by_its_name(tmp_path: Path) -> None:
    tar_of(tmp_path / "a.tar", {"c/0.jpg": b"a" * 600, "c/1.jpg": b"b" * 600})
    found = indexed(tmp_path, "a.tar")
    catalog = build_catalog(found.grown.tree, classes="any")
    store = ArchiveStore(index_of(found, catalog, chunks_of(found, catalog), seed=0), tmp_path, SPEED)
    with open(tmp_path / "a.tar", "r+b") as file:
        file.write(b"x")
    (read,) = store.reads(0, [0, 1])
    for payload in read.run():
        (error,) = payload
        assert isinstance(error, OSError)
        assert error.errno == errno.ESTALE
        assert "a.tar has changed since it was indexed" in str(error)
    store.close()


def test_an_archive_that_was_made_private_is_read_for_nobody_while_it_is(tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "a.tar", {"c/0.jpg": b"a" * 600, "c/1.jpg": b"b" * 600, "c/2.jpg": b""})
    archive.chmod(0o644)
    found = indexed(tmp_path, "a.tar")
    catalog = build_catalog(found.grown.tree, classes="any")
    index = index_of(found, catalog, chunks_of(found, catalog), seed=0)
    store, heedless = ArchiveStore(index, tmp_path, SPEED, guards=True), ArchiveStore(index, tmp_path, SPEED)
    tree, entry = catalog.tree, int(catalog.members[0])
    scanned = Access(int(tree.mode[entry]) & 0o7777, int(tree.uid[entry]), int(tree.gid[entry]))

    def read_by(store: ArchiveStore) -> list[FileBytes | OSError]:
        (read,) = store.reads(0, [0, 1, 2])
        return [file for (file,) in read.run()]

    def access_of(store: ArchiveStore) -> Access | None:
        file = store.open_file(entry)
        assert isinstance(file, PackedFile)
        return file.access

    # Fewer, more, and the first ones. What only concerns writing and execution is no change.
    for mode, admits in ((0o640, False), (0o755, True), (0o600, False), (0o666, True), (0o644, True)):
        archive.chmod(mode)
        for file in read_by(store):
            assert isinstance(file, FileBytes if admits else NarrowedError)
            assert isinstance(file, FileBytes) or (file.access.mode == mode & 0o444 and file.filename == "a.tar")
        now = access_of(store)
        assert now is not None
        assert now.admits(scanned) == admits
        assert (now == scanned) == admits
        assert all(isinstance(file, FileBytes) for file in read_by(heedless))
        assert access_of(heedless) is None
    store.close()
    heedless.close()


def test_links_to_one_file_and_files_far_apart_are_read(tmp_path: Path) -> None:
    members = [
        member("c/0.jpg", b"zero"),
        member("c/1.jpg", type=tarfile.LNKTYPE, linkname="c/0.jpg"),
        member("c/filler", b"\0" * (17 << 20)),
        member("c/0.json", b"{}"),
        member("c/1.json", b"[]"),
        member("c/2.jpg", b"two"),
        member("c/2.json", type=tarfile.LNKTYPE, linkname="c/2.jpg"),
        member("c/3.json", b"before its image"),
        member("c/3.jpg", b"three"),
    ]
    found = indexed(write_tar(tmp_path / "a.tar", members).parent, "a.tar")
    catalog = build_catalog(found.grown.tree, classes="any", groups="stem")
    assert shares_stems(found.grown.tree)
    store = ArchiveStore(index_of(found, catalog, chunks_of(found, catalog), seed=0), tmp_path, SPEED)
    got = {}
    for read in store.reads(0, [2, 0, 3, 1]):
        for sample, payload in zip(read.samples, read.run(), strict=True):
            files = [file for file in payload if isinstance(file, FileBytes)]
            got[sample] = [bytes(file.data) for file in files]
    assert got == {0: [b"zero", b"{}"], 1: [b"zero", b"[]"], 2: [b"two", b"two"], 3: [b"three", b"before its image"]}
    store.close()


def test_chunks_are_neighbours_of_one_archive(tmp_path: Path) -> None:
    for number in range(2):
        names = [f"c/{number}{at:03}.jpg" for at in range(10)]
        random.Random(number).shuffle(names)
        tar_of(tmp_path / f"s-{number}.tar", dict.fromkeys(names, b"x" * 700))
    found = indexed(tmp_path, "s-0.tar", "s-1.tar")
    catalog = build_catalog(found.grown.tree, classes="any")
    positions = index_of(found, catalog, chunks_of(found, catalog), seed=0).positions
    cells = runs(catalog, positions, 4)
    assert sorted(cells.cells[cells.cells >= 0].tolist()) == list(range(20))
    assert (cells.cells >= 0).sum(axis=1).tolist() == [4, 4, 2, 4, 4, 2]
    for row in cells.cells:
        entries = catalog.members[row[row >= 0]]
        assert len({*positions.shard[entries].tolist()}) == 1
        assert np.diff(positions.data_at[entries]).tolist() == [1536] * (len(entries) - 1)


def test_chunks_of_an_archive_that_is_sorted_by_class_are_smaller(tmp_path: Path) -> None:
    names = [f"{label}/{number:03}.jpg" for label in range(4) for number in range(320)]
    sizes = {}
    for order in ("sorted", "mixed"):
        if order == "mixed":
            random.Random(0).shuffle(names)
        tar_of(tmp_path / f"{order}.tar", dict.fromkeys(names, b"x" * 100))
        found = indexed(tmp_path, f"{order}.tar")
        catalog = build_catalog(found.grown.tree, classes="dir")
        index = index_of(found, catalog, chunks_of(found, catalog), seed=0)
        assert len(index.catalog.class_names) == 4
        sizes[order] = [size_for_classes(index, 64, least_bytes) for least_bytes in (0, 3_000, 6_000)]
    # A tenth of the 1,280 samples are 4 chunks of 32, of 3,200 bytes: one of each class.
    assert sizes == {"sorted": [32, 32, 64], "mixed": [64, 64, 64]}


# What SOURCE names


@pytest.mark.parametrize("look", ["scandir", "listdir"])
def test_storage_that_fails_while_its_kind_is_found_is_an_error_and_never_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], look: str
) -> None:
    """`scandir` finds the archives, `listdir` a packed dataset. The scan, which is native, would find plain files."""
    tar_of(tmp_path / "s-0.tar", {"a/x.jpg": b"x"})

    def fail(_at: object = None) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(os, look, fail)
    command = ["inspect", str(tmp_path), *(["--archives", "none"] if look == "listdir" else [])]
    assert main(command) == 3
    said = capfd.readouterr().err.splitlines()
    assert said[-1] == f"redoxfs: {tmp_path}: {os.strerror(errno.ESTALE)}"


def test_a_source_that_does_not_answer_while_its_kind_is_found_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceUnusableError, match=f"^{tmp_path}: it does not answer$"):
        with_archives(path_status(str(tmp_path), PATIENCE_S), 0.0, DatasetOptions())


@pytest.mark.parametrize(("name", "is_refused"), [("cat", False), ("s-0.tar", True)])
def test_a_link_to_storage_that_fails_is_an_error_where_it_may_be_an_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, *, is_refused: bool
) -> None:
    def fail() -> bool:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    entries = nullcontext([SimpleNamespace(name=name, is_dir=fail)])
    source = path_status(str(tmp_path), PATIENCE_S)
    monkeypatch.setattr(os, "scandir", lambda _folder: entries)
    with pytest.raises(SourceUnusableError) if is_refused else nullcontext():
        assert with_archives(source, PATIENCE_S, DatasetOptions()) is source


def test_braces_stand_for_names() -> None:
    assert expanded("a-{08..11}.tar") == ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]
    assert expanded("{train,val}-{0..1}.tar") == ["train-0.tar", "train-1.tar", "val-0.tar", "val-1.tar"]
    for wrong in ("{}", "{a}", "{3..1}", "{0..99999999}", "{0..9999}-{0..9999}"):
        with pytest.raises(UsageError):
            expanded(wrong)


def names_at(asked: str) -> tuple[str, ...]:
    archives = with_archives(path_status(asked, 60), 60).archives
    return () if archives is None else archives.names


def test_a_source_names_archives_by_path_folder_glob_and_braces(tmp_path: Path) -> None:
    for name in ("s-0.tar", "s-1.tar", "more/s-2.tar"):
        tar_of(tmp_path / "all" / name, {"x": b""})
    folder = tmp_path / "all"
    assert names_at(str(folder / "s-0.tar")) == ("s-0.tar",)
    # A folder in it: these are not the shards of one dataset.
    assert names_at(str(folder)) == ()
    assert names_at(f"{folder}/*.tar") == ("s-0.tar", "s-1.tar")
    assert names_at(f"{folder}/{{s-0,more/s-2}}.tar") == ("s-0.tar", "more/s-2.tar")
    (folder / "more/s-2.json").write_text("{}")
    assert names_at(str(folder / "more")) == ("s-2.tar",)
    # What gunzip -k leaves beside it, which may be the folder's only archive.
    for name in ("more/s-2.tar.gz", "more/S-2.TGZ"):
        (folder / name).write_text("")
    assert names_at(str(folder / "more")) == ("s-2.tar",)
    (folder / "more/s-3.tar.gz").write_text("")
    assert names_at(str(folder / "more")) == ("s-2.tar", "s-3.tar.gz")
    (folder / "more/image.jpg").write_text("")
    assert names_at(str(folder / "more")) == ()
    assert names_at(str(folder / "more/image.jpg")) == ()
    (folder / "s-0.tar").rename(folder / "by-its-header")
    assert names_at(str(folder / "by-its-header")) == ("by-its-header",)
    (folder / "by-its-header").rename(folder / "s-0.tar")
    for wrong, line in (
        (f"{folder}/no*.tar", "no file has such a name"),
        (f"{folder}/s-{{0..3}}.tar", "s-2.tar: no such"),
    ):
        with pytest.raises(SourceUnusableError, match=line):
            names_at(wrong)


def test_a_mount_does_not_hide_its_own_archives() -> None:
    archives = ArchiveFiles(Path("/data"), ("a.tar", "shards/b.tar"), ("a.tar", "b.tar"), "")
    assert check_hidden(archives, Path("/data/shards")) == "shards/b.tar"
    assert check_hidden(archives, Path("/data")) is None
    assert check_hidden(archives, Path("/data/mnt")) is None


def test_sparse_files_and_devices_are_left_out(tmp_path: Path) -> None:
    with open(tmp_path / "holes", "wb") as file:
        file.truncate(1 << 20)
        file.write(b"x")
    (tmp_path / "plain").write_bytes(b"p")
    os.mkfifo(tmp_path / "fifo")
    for kind in ("gnu", "pax"):
        archive = f"{kind}.tar"
        files = ["holes", "fifo", "plain"]
        subprocess.run(["tar", "-C", tmp_path, f"--format={kind}", "-S", "-cf", tmp_path / archive, *files], check=True)
        index = indexed(tmp_path, archive)
        assert files_of(tmp_path, index) == {"plain": b"p"}
        assert "left out: 1 sparse files" in index.said
        assert index.grown.tree.skipped == 1


def test_an_archive_in_an_archive_that_is_damaged_is_named(tmp_path: Path) -> None:
    inner = io.BytesIO(bytes_of(tmp_path / "inner", {"a": b"x"})).getvalue()
    tar_of(tmp_path / "all.tar", {"good.tar": inner, "bad.tar": inner[:512] + b"x" * 1024})
    with pytest.raises(DamagedDatasetError, match=r"^bad\.tar in all\.tar is damaged"):
        indexed(tmp_path, "all.tar")
    index = indexed(tmp_path, "all.tar", salvages=True)
    assert files_of(tmp_path, index) == {"good/a": b"x", "bad/a": b"x"}
    assert index.said[0].startswith("salvaged: bad.tar in all.tar is damaged: the header at 1,024 is wrong; what")
