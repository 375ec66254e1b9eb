"""Damaged and hostile packed datasets: the result is an error that names the place, or exactly the right bytes.

Damage comes from disks: bytes flip, files are truncated, lost or swapped. Hostile datasets are forged, with valid
checksums. Neither may raise any other error, take much memory, or lead out of the tree.
"""

import errno
import io
import os
import pickle
import shutil
import stat
import sys
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packs import (
    Options,
    array,
    flip,
    manifest_of,
    opened,
    pack_here,
    replace_array,
    replace_array_file,
    reseal,
    shards_of,
    store_of,
)

from redoxfs.chunks import FileBytes
from redoxfs.packed import MANIFEST, DamagedDatasetError, is_packed, load_index, verify
from redoxfs.packed.headers import BLOCK_BYTES, header_of
from redoxfs.packed.index import FOLDER, MANIFEST_MAX_BYTES

pytestmark = pytest.mark.slow

OPTIONS = Options(chunk_size=3, shard_bytes=6000, groups="stem")

MEMORY_BYTES = 32 << 20
"""Far more than the small dataset takes, far less than the forged sizes."""

Truth = dict[bytes, tuple[int, int, bytes]]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source") / "data"
    for label in ("cat", "dog"):
        (root / label).mkdir(parents=True)
        for number in range(7):
            (root / label / f"{number}.jpg").write_bytes(f"{label} {number} ".encode() * 60 * number)
            (root / label / f"{number}.txt").write_bytes(f"caption of {label} {number}".encode())
    (root / "large.bin").write_bytes(b"0123456789" * 250_000)
    (root / "notes.txt").write_text("of no class")
    (root / "link").symlink_to("notes.txt")
    return root


@pytest.fixture(scope="module")
def truth(source: Path) -> Truth:
    """The mode, time and content of every entry."""
    found: Truth = {}
    for path in [source, *source.rglob("*")]:
        known = path.lstat()
        content = b""
        if stat.S_ISREG(known.st_mode):
            content = path.read_bytes()
        elif stat.S_ISLNK(known.st_mode):
            content = os.fsencode(path.readlink())
        name = b"" if path == source else os.fsencode(path.relative_to(source))
        found[name] = (known.st_mode, known.st_mtime_ns, content)
    return found


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    dst = tmp_path_factory.mktemp("whole") / "dst"
    pack_here(source, dst, OPTIONS)
    return dst


@pytest.fixture
def dst(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "dst", symlinks=True)


def refusal(dst: Path) -> str:
    """The message that refuses a dataset."""
    with pytest.raises(DamagedDatasetError) as raised:
        load_index(dst)
    line = str(raised.value)
    assert line
    assert "\n" not in line
    return line


def serve(dst: Path, truth: Truth) -> set[bytes]:
    """Read every file in every way. Return the names of files that are EIO; all others must be as packed."""
    failed: set[bytes] = set()

    def judge(path: bytes, what: object) -> None:
        if isinstance(what, OSError):
            assert what.errno == errno.EIO
            failed.add(path)
        else:
            assert isinstance(what, FileBytes)
            assert bytes(what.data) == truth[path][2]

    with store_of(dst) as (index, store):
        tree = index.catalog.tree
        assert {tree.path(entry) for entry in range(len(tree))} == set(truth)
        for chunk, row in enumerate(index.cells.cells):
            for read in store.reads(chunk, row[row >= 0].tolist()):
                for sample, payload in zip(read.samples, read.run(), strict=True):
                    members = index.catalog.members[index.catalog.member_at[sample] :]
                    for entry, file in zip(members.tolist(), payload, strict=False):
                        judge(tree.path(entry), file)
        for entry in range(len(tree)):
            mode, mtime_ns, content = truth[tree.path(entry)]
            assert (tree.mode[entry], tree.mtime_ns[entry]) == (mode, mtime_ns)
            if tree.is_link(entry):
                assert tree.link_target(entry) == content
            if tree.is_file(entry):
                try:
                    assert store.open_file(entry).read(0, 1 << 30) == content
                except OSError as error:
                    judge(tree.path(entry), error)
    return failed


def outcome(dst: Path, truth: Truth) -> None:
    """The one rule: a dataset is refused in one line, or every file is right or EIO, and verify finds the EIO."""
    try:
        failed = serve(dst, truth)
    except DamagedDatasetError:
        with pytest.raises(DamagedDatasetError, match=r"\A.+\Z"):
            verify(dst, jobs=1)
    else:
        problems = verify(dst, jobs=1).problems
        assert all("\n" not in problem for problem in problems)
        for path in failed:
            assert any(path.decode() in problem for problem in problems)


def spread(length: int, count: int) -> list[int]:
    """Offsets over a whole file, including its first and last byte."""
    return sorted({*range(min(length, 4)), *np.linspace(0, length - 1, count).astype(int).tolist()})


def test_an_undamaged_dataset_is_served_whole(dst: Path, truth: Truth) -> None:
    assert serve(dst, truth) == set()
    assert verify(dst, jobs=1).problems == ()


# Damage


def test_any_flipped_byte_of_the_manifest_is_refused_or_harmless(dst: Path) -> None:
    path = dst / MANIFEST
    data = path.read_bytes()
    known = manifest_of(dst)
    taken = 0
    for offset in range(len(data)):
        flip(path, offset, offset % 8)
        try:
            load_index(dst)
        except DamagedDatasetError as error:
            assert str(path) in str(error)  # noqa: PT017 - it may be taken as well: blanks mean nothing
        else:
            assert manifest_of(dst) == known
            taken += 1
        flip(path, offset, offset % 8)
    assert taken < len(data) // 10


@pytest.mark.parametrize("length", [0, 1, 10, 100, 1000, -1000, -100, -3, -2])
def test_a_truncated_manifest_is_refused(dst: Path, length: int) -> None:
    path = dst / MANIFEST
    path.write_bytes(path.read_bytes()[:length])
    assert str(path) in refusal(dst)


def test_a_missing_manifest_is_refused_and_shards_are_no_source(dst: Path) -> None:
    (dst / MANIFEST).unlink()
    assert "manifest is missing" in refusal(dst)
    with opened(dst) as fd:
        assert is_packed(fd)


def test_any_array_with_a_flipped_byte_is_refused_by_name(dst: Path) -> None:
    for path in sorted((dst / FOLDER).iterdir()):
        length = path.stat().st_size
        for offset in spread(length, 12):
            flip(path, offset, offset % 8)
            assert str(path) in refusal(dst)
            flip(path, offset, offset % 8)
    load_index(dst)


def test_any_array_of_another_length_is_refused_by_name(dst: Path) -> None:
    for path in sorted((dst / FOLDER).iterdir()):
        data = path.read_bytes()
        for changed in (b"", data[:1], data[:64], data[:127], data[:128], data[:-1], data + b"\0", data * 2):
            if changed != data:
                path.write_bytes(changed)
                assert str(path) in refusal(dst)
        path.write_bytes(data)
    load_index(dst)


def test_any_missing_array_is_refused_by_name(dst: Path) -> None:
    for path in sorted((dst / FOLDER).iterdir()):
        path.rename(dst / "away")
        assert refusal(dst) == f"{path}: No such file or directory"
        (dst / "away").rename(path)
    shutil.rmtree(dst / FOLDER)
    assert str(dst / FOLDER) in refusal(dst)
    with opened(dst) as fd:
        assert is_packed(fd)


def test_swapped_arrays_are_refused(dst: Path, truth: Truth) -> None:
    paths = sorted((dst / FOLDER).iterdir())
    for one, other in pairwise(paths):
        same = one.read_bytes() == other.read_bytes()
        for a, b in ((one, dst / "away"), (other, one), (dst / "away", other)):
            a.rename(b)
        if same:
            assert serve(dst, truth) == set()
        else:
            assert str(dst / FOLDER) in refusal(dst)
        for a, b in ((one, dst / "away"), (other, one), (dst / "away", other)):
            a.rename(b)
    load_index(dst)


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_symlink(path: Path) -> None:
    elsewhere = path.parent.parent / f"elsewhere-{path.name}"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def replace_by_what_never_ends(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    "replace",
    [replace_by_directory, replace_by_fifo, replace_by_symlink, replace_by_what_never_ends],
    ids=lambda replace: replace.__name__,
)
@pytest.mark.parametrize("name", [MANIFEST, f"{FOLDER}/size.npy", "samples-000000.tar", "tree-000000.tar"])
def test_anything_but_a_regular_file_is_refused_at_once(dst: Path, name: str, replace: Callable[[Path], None]) -> None:
    replace(dst / name)
    assert str(dst / name) in refusal(dst)


def test_verify_finds_any_flipped_byte_of_a_header(dst: Path, truth: Truth) -> None:
    index = load_index(dst)
    tree, positions = index.catalog.tree, index.positions
    flipped: list[bytes] = []
    for entry in range(len(tree)):
        shard = dst / positions.shard_names[positions.shard[entry]]
        length = len(header_of(tree, entry))
        flip(shard, int(positions.data_at[entry]) - length + (37 * entry) % length, entry % 8)
        flipped.append(tree.path(entry) or b".")
    assert serve(dst, truth) == set()
    problems = verify(dst, jobs=1).problems
    assert len(problems) == len(tree)
    for path in flipped:
        assert any(f"not the header of {path.decode()}" in problem for problem in problems)


def test_any_flipped_byte_of_a_file_is_eio_and_found_by_verify(dst: Path, truth: Truth) -> None:
    index = load_index(dst)
    tree, positions = index.catalog.tree, index.positions
    for entry in np.flatnonzero(tree.kind_mask(stat.S_IFREG)).tolist():
        size, at = int(tree.size[entry]), int(positions.data_at[entry])
        shard = dst / positions.shard_names[positions.shard[entry]]
        for offset in (0, size // 2, size - 1) if size else ():
            flip(shard, at + offset, offset % 8)
            name = tree.path(entry)
            if offset == 0 or name == b"large.bin":
                assert serve(dst, truth) == {name}
                assert verify(dst, jobs=1).problems == (f"{shard.name}: {name.decode()}: wrong checksum at {at:,}",)
            flip(shard, at + offset, offset % 8)


def test_only_the_damaged_part_of_a_large_file_is_lost(dst: Path, truth: Truth) -> None:
    index = load_index(dst)
    entry = index.catalog.tree.find(b"large.bin")
    shard = dst / index.positions.shard_names[index.positions.shard[entry]]
    flip(shard, int(index.positions.data_at[entry]) + (1 << 20) + 5)
    content = truth[b"large.bin"][2]
    with store_of(dst) as (_, store):
        file = store.open_file(entry)
        assert file.read(0, 1 << 20) == content[: 1 << 20]
        assert file.read(2 << 20, 1 << 20) == content[2 << 20 :]
        with pytest.raises(OSError) as raised:
            file.read((1 << 20) - 1, 2)
        assert raised.value.errno == errno.EIO


def test_verify_finds_bytes_between_and_after_the_files(dst: Path, truth: Truth) -> None:
    index = load_index(dst)
    tree, positions = index.catalog.tree, index.positions
    entry = tree.find(b"notes.txt")
    shard = dst / positions.shard_names[positions.shard[entry]]
    flip(shard, int(positions.data_at[entry]) + int(tree.size[entry]) + 3)
    last = dst / positions.shard_names[0]
    flip(last, last.stat().st_size - 1)
    assert serve(dst, truth) == set()
    problems = verify(dst, jobs=1).problems
    assert len(problems) == 2
    assert any("after the last entry" in problem for problem in problems)


def test_a_truncated_shard_is_refused_at_once(dst: Path) -> None:
    for shard in shards_of(dst):
        data = shard.read_bytes()
        for length in [*spread(len(data), 6)[:-1], len(data) - 1, len(data) + 1, len(data) + 10_240]:
            os.truncate(shard, length)
            assert str(shard) in refusal(dst)
            with pytest.raises(DamagedDatasetError):
                verify(dst, jobs=1)
        shard.write_bytes(data)
    load_index(dst)


def test_a_shard_truncated_while_served_is_eio_for_the_lost_files(dst: Path, truth: Truth) -> None:
    for shard in shards_of(dst):
        data = shard.read_bytes()
        for length in spread(len(data), 8):
            with store_of(dst) as (index, store):
                os.truncate(shard, length)
                tree, positions = index.catalog.tree, index.positions
                for chunk, row in enumerate(index.cells.cells):
                    for read in store.reads(chunk, row[row >= 0].tolist()):
                        for sample, payload in zip(read.samples, read.run(), strict=True):
                            first = int(index.catalog.member_at[sample])
                            for number, file in enumerate(payload):
                                entry = int(index.catalog.members[first + number])
                                end = int(positions.data_at[entry] + tree.size[entry])
                                here = positions.shard_names[positions.shard[entry]] == shard.name
                                if here and tree.size[entry] and end > length:
                                    assert isinstance(file, OSError)
                                    assert file.errno == errno.EIO
                                else:
                                    assert isinstance(file, FileBytes)
                                    assert bytes(file.data) == truth[tree.path(entry)][2]
            shard.write_bytes(data)


def test_swapped_shards_are_refused_or_their_files_are_eio(dst: Path, truth: Truth) -> None:
    one, other = dst / "samples-000000.tar", dst / "samples-000001.tar"
    length = max(one.stat().st_size, other.stat().st_size)
    for shard in (one, other):
        os.truncate(shard, length)
    numbers = [manifest["name"] for manifest in manifest_of(dst)["shards"]]

    def grow(manifest: dict[str, Any]) -> None:
        for shard in (one, other):
            manifest["shards"][numbers.index(shard.name)]["bytes"] = length

    reseal(dst, grow)
    for a, b in ((one, dst / "away"), (other, one), (dst / "away", other)):
        a.rename(b)
    failed = serve(dst, truth)
    assert failed
    outcome(dst, truth)


def test_a_missing_shard_and_an_extra_one_are_found(dst: Path) -> None:
    shutil.copy(dst / "samples-000000.tar", dst / "extra.tar")
    assert verify(dst, jobs=1).problems == ("extra.tar: not a shard of this dataset",)
    (dst / "samples-000001.tar").unlink()
    assert refusal(dst) == f"{dst / 'samples-000001.tar'}: No such file or directory"


changes = st.lists(
    st.tuples(
        st.integers(0, 1 << 30),
        st.floats(0, 1, exclude_max=True),
        st.sampled_from(["flip", "cut", "zero", "double", "swap", "drop", "fill"]),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes)
def test_any_damage_is_found_or_harmless(
    whole: Path, truth: Truth, tmp_path: Path, changes: list[tuple[int, float, str]]
) -> None:
    dst = tmp_path / "dst"
    shutil.rmtree(dst, ignore_errors=True)
    shutil.copytree(whole, dst)
    for number, where, what in changes:
        paths = [path for path in sorted(dst.rglob("*")) if path.is_file()]
        path = paths[number % len(paths)]
        data = path.read_bytes()
        at = int(where * len(data))
        if what == "drop":
            path.unlink()
        elif what == "swap":
            other = paths[int(where * len(paths))]
            path.write_bytes(other.read_bytes())
            other.write_bytes(data)
        else:
            path.write_bytes(
                {
                    "flip": data[:at] + bytes(byte ^ 1 << number % 8 for byte in data[at : at + 1]) + data[at + 1 :],
                    "cut": data[:at],
                    "zero": data[:at] + bytes(len(data) - at),
                    "double": data[:at] + data,
                    "fill": data[:at] + b"\xff" * (len(data) - at),
                }[what]
            )
    outcome(dst, truth)


# Hostile: every checksum is right


def in_manifest(*keys: str | int, value: object) -> Callable[[Path], None]:
    """A manifest with ``value`` in that place."""

    def change(manifest: dict[str, Any]) -> None:
        inner: Any = manifest
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value

    return lambda dst: reseal(dst, change)


def without_key(*keys: str) -> Callable[[Path], None]:
    def change(manifest: dict[str, Any]) -> None:
        inner: Any = manifest
        for key in keys[:-1]:
            inner = inner[key]
        del inner[keys[-1]]

    return lambda dst: reseal(dst, change)


Array = np.ndarray[Any, Any]


def in_array(name: str, change: Callable[[Array], Array | None]) -> Callable[[Path], None]:
    """An array that ``change`` has changed in place or replaced."""

    def work(dst: Path) -> None:
        values = array(dst, name)
        other = change(values)
        replace_array(dst, name, values if other is None else other)

    return work


def put(at: Any, value: object) -> Callable[[np.ndarray[Any, Any]], None]:
    def change(values: np.ndarray[Any, Any]) -> None:
        values[at] = value

    return change


def put_where(old: int, value: int) -> Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    return lambda values: np.where(values == old, np.int32(value), values)


def files_apart(shard: int) -> Callable[[Path], None]:
    """The index has the second file of a sample at the beginning of a shard."""

    def work(dst: Path) -> None:
        catalog, positions = load_index(dst).catalog, load_index(dst).positions
        in_first = np.flatnonzero(positions.shard[catalog.members[::2]] == 0)
        last = in_first[np.argmax(positions.data_at[catalog.members[::2]][in_first])]
        entry = int(catalog.members[2 * last + 1])
        in_array("shard", put(entry, shard))(dst)
        in_array("data_at", put(entry, BLOCK_BYTES))(dst)

    return work


def renamed(old: bytes, new: bytes) -> Callable[[Path], None]:
    """The tree with one name changed."""

    def work(dst: Path) -> None:
        tree = load_index(dst).catalog.tree
        entry = tree.find(old)
        names = [tree.name(number) for number in range(len(tree))]
        names[entry] = new
        replace_array(dst, "names", np.frombuffer(b"".join(names), np.uint8))
        replace_array(dst, "name_at", np.concatenate([[0], np.cumsum([len(name) for name in names])]).astype(np.int64))

    return work


def nested(depth: int) -> object:
    value: object = 0
    for _ in range(depth):
        value = [value]
    return value


NAME = "cat/3.jpg"
LARGEST = 2**63 - 1
MANIFESTS: dict[str, tuple[Callable[[Path], None], str]] = {
    **{
        f"without {'.'.join(keys)}": (without_key(*keys), "has an invalid value")
        for keys in [
            ("seed",),
            ("chunk_size",),
            ("asked",),
            ("verdict",),
            ("verdict", "saw"),
            ("verdict", "mode"),
            ("class_names",),
            ("class_trees",),
            ("sample_files",),
            ("skipped",),
            ("control_left_out",),
            ("shards",),
            ("arrays",),
            ("arrays", "sums"),
        ]
    },
    "without version": (without_key("version"), "format version None"),
    "without a record's bytes": (without_key("arrays", "size", "bytes"), "size.npy"),
    "without a record's checksum": (without_key("arrays", "size", "xxh3_128"), "size.npy"),
    "without a record's shape": (without_key("arrays", "size", "shape"), "size.npy"),
    "version 2": (in_manifest("version", value=2), "format version 2"),
    "version is a list": (in_manifest("version", value=[1]), "format version [1]"),
    "version is two lines": (in_manifest("version", value="1\n2"), "format version '1\\n2'"),
    "a length of two lines": (in_manifest("arrays", "size", "bytes", value="1\n2" * 100), "bytes long instead of '1"),
    "seed is text": (in_manifest("seed", value="x"), "has an invalid value"),
    "seed is infinite": (in_manifest("seed", value=float("inf")), "has an invalid value"),
    "asked is a number": (in_manifest("asked", value=5), "has an invalid value"),
    "chunk size is another": (in_manifest("chunk_size", value=4), "chunks"),
    "arrays is a list": (in_manifest("arrays", value=[]), "has an invalid value"),
    "a record is text": (in_manifest("arrays", "size", value="bytes"), "size.npy"),
    "a record is null": (in_manifest("arrays", "size", value=None), "size.npy"),
    "shape is a number": (in_manifest("arrays", "size", "shape", value=35), "size.npy"),
    "shape is huge": (in_manifest("arrays", "size", "shape", value=[2**62]), "size.npy"),
    "shape is negative": (in_manifest("arrays", "size", "shape", value=[-1]), "size.npy"),
    "shape is empty": (in_manifest("arrays", "size", "shape", value=[0]), "size.npy"),
    "dtype is another": (in_manifest("arrays", "size", "dtype", value="float64"), "size.npy"),
    "dtype is object": (in_manifest("arrays", "size", "dtype", value="object"), "size.npy"),
    "shards is a number": (in_manifest("shards", value=5), "has an invalid value"),
    "no shards": (in_manifest("shards", value=[]), "in no shard"),
    "a shard is a number": (in_manifest("shards", 0, value=5), "has an invalid value"),
    "a shard has no length": (in_manifest("shards", 0, value={"name": "samples-000000.tar"}), "has an invalid value"),
    "a shard is listed twice": (in_manifest("shards", 1, "name", value="samples-000000.tar"), "twice"),
    "a shard is negative": (in_manifest("shards", 0, "bytes", value=-1), "outside its shard"),
    "a shard is huge": (in_manifest("shards", 0, "bytes", value=2**70), "has an invalid value"),
    "a shard is longer": (in_manifest("shards", 0, "bytes", value=2**60), "bytes long instead of"),
    "a shard's length is text": (in_manifest("shards", 0, "bytes", value="9" * 5000), "has an invalid value"),
    **{
        f"a shard is called {name!r:.30}": (in_manifest("shards", 0, "name", value=name), "an impossible name")
        for name in [
            "../samples-000000.tar",
            "/etc/passwd",
            "samples-000000.tar/..",
            "./samples-000000.tar",
            "samples-000000.tar\n",
            "samples-000000.tar\0",
            "samples-00000\u0660.tar",
            "",
            "..",
            "manifest.json",
            ["samples-000000.tar"],
            None,
            "x" * 100_000,
        ]
    },
    "class names of numbers": (in_manifest("class_names", value=[1, 2]), "is not a text"),
    "a class name too many": (in_manifest("class_names", value=["a", "b", "c"]), "counted wrong"),
    "class names of nested lists": (in_manifest("class_names", value=nested(50)), "not that of a manifest"),
    "no class trees": (in_manifest("class_trees", value=[]), "counted wrong"),
    "a verdict of nested lists": (in_manifest("verdict", value=nested(50)), "not that of a manifest"),
    "a line that is a list": (in_manifest("verdict", "line", value=["x"]), "is not a text"),
    "splits are a number": (in_manifest("verdict", "splits", value=5), "has an invalid value"),
    "a split without a name": (in_manifest("verdict", "splits", 0, value={}), "has an invalid value"),
    "a split's reason is a list": (in_manifest("verdict", "splits", 0, "because", value=["x"]), "is not a text"),
    "a split's samples are text": (
        in_manifest("verdict", "splits", 0, "samples", value="9"),
        "does not describe a split",
    ),
    "a split tells more than is known": (in_manifest("verdict", "splits", 0, "more", value=1), "has an invalid value"),
    "skipped is null": (in_manifest("skipped", value=None), "has an invalid value"),
}
ARRAYS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a tree of nothing": (in_array("parent", lambda values: values[:0]), "differ in length"),
    "columns of different lengths": (in_array("mode", lambda values: values[:-1]), "differ in length"),
    "a parent that comes later": (in_array("parent", put(1, 5)), "do not form a tree"),
    "an entry that is its own parent": (in_array("parent", put(slice(3, None), 3)), "do not form a tree"),
    "parents that are not in order": (in_array("parent", put(-1, 0)), "do not form a tree"),
    "a parent below zero": (in_array("parent", put(1, -1)), "do not form a tree"),
    "a parent so low that the step to it overflows": (in_array("parent", put(-1, -(2**31))), "do not form a tree"),
    "a root above the root": (in_array("parent", put(0, 1)), "do not form a tree"),
    "parents of another type": (in_array("parent", lambda values: values.astype(np.int64)), "wrong type"),
    "parents that are fractions": (in_array("parent", lambda values: values.astype(np.float32)), "wrong type"),
    "parents of the other byte order": (in_array("parent", lambda values: values.astype(">i4")), "wrong type"),
    "parents in two dimensions": (in_array("parent", lambda values: values[None]), "wrong type"),
    "a file that is a root": (in_array("mode", put(0, stat.S_IFREG | 0o644)), "not a directory"),
    "a directory that is a file": (in_array("mode", put(1, stat.S_IFREG | 0o644)), "not a directory"),
    "a file that is a link": (in_array("mode", put(-1, stat.S_IFLNK | 0o777)), "not those of the tree"),
    **{
        f"a file that is a {name}": (in_array("mode", put(-1, kind | 0o666)), "a device or the like")
        for name, kind in {
            "block device": stat.S_IFBLK,
            "character device": stat.S_IFCHR,
            "fifo": stat.S_IFIFO,
            "socket": stat.S_IFSOCK,
            "nothing": 0,
            "everything": 0o170000,
        }.items()
    },
    "the control folder": (renamed(b"cat", b".redoxfs"), "where the mount has its control folder"),
    "a negative size": (in_array("size", put(-1, -1)), "beyond reason"),
    "a huge size": (in_array("size", put(-1, LARGEST)), "beyond reason"),
    "a size beyond the shard": (in_array("size", put(-1, 1 << 59)), "outside its shard"),
    "a size a little beyond the shard": (in_array("size", put(-1, 20_000)), "outside its shard"),
    "names that overlap": (in_array("name_at", put(5, 0)), "names overlap"),
    "names beyond their end": (in_array("name_at", put(-1, 1 << 40)), "names overlap"),
    "names whose steps overflow": (in_array("name_at", put(slice(2, 4), [LARGEST, -2])), "names overlap"),
    "a name too few": (in_array("name_at", lambda values: values[:-1]), "names overlap"),
    "a root with a name": (in_array("name_at", put(1, 1)), "a name is empty or longer"),
    "link targets whose steps overflow": (
        in_array("link_at", lambda _: np.array([0, LARGEST, -2, 9], np.int64)),
        "targets of links overlap",
    ),
    "links elsewhere": (in_array("link_entry", put(0, 1)), "not those of the tree"),
    "links below zero": (in_array("link_entry", put(0, -1)), "not those of the tree"),
    "a target with a NUL": (in_array("link_names", put(2, 0)), "an impossible target"),
    "members that are not there": (in_array("members", put(0, 1 << 20)), "not in the tree"),
    "members below zero": (in_array("members", put(0, -1)), "not in the tree"),
    "a file in two samples": (in_array("members", lambda v: np.append(v[-1:], v[1:])), "two samples"),
    "a directory as a sample": (in_array("members", put(0, 1)), "not a file"),
    "samples without files": (in_array("member_at", put(1, 0)), "counted wrong"),
    "samples beyond their files": (in_array("member_at", put(-1, 1 << 40)), "counted wrong"),
    "samples whose steps overflow": (in_array("member_at", put(slice(1, 3), [LARGEST, -2])), "counted wrong"),
    "samples of different numbers of files": (in_array("member_at", put(1, 1)), "different numbers of files"),
    "a class beyond the classes": (in_array("class_of", put(-1, 2)), "no class"),
    "a class below zero": (in_array("class_of", put(0, -1)), "no class"),
    "classes out of order": (in_array("class_of", put(0, 1)), "no class"),
    "an empty class": (in_array("class_of", put(slice(None), 0)), "no sample"),
    "a class of no tree": (in_array("tree_of_class", put(0, 1)), "counted wrong"),
    "a sample in two cells": (in_array("cells", put_where(0, 1)), "each sample once"),
    "a sample in no cell": (in_array("cells", put_where(0, -1)), "each sample once"),
    "a cell of a sample that is not there": (in_array("cells", put_where(0, 10_000)), "each sample once"),
    "a cell far below zero": (in_array("cells", put_where(-1, -(2**31))), "each sample once"),
    "chunks of no slots": (in_array("cells", lambda v: v[:, :0]), "another size than"),
    "chunks of far too many slots": (in_array("cells", lambda _: np.zeros((0, 2**31), np.int32)), "another size than"),
    "chunks that mix classes": (
        in_array("cells", lambda v: np.vstack([np.roll(v[:1], 1, axis=1), v[1:]])),
        "mix classes",
    ),
    "groups beyond the chunks": (in_array("group_start", put(-1, 10_000)), "grouped wrong"),
    "groups whose steps overflow": (
        in_array("group_start", lambda v: np.array([0, 2**31 - 1, -2, v[-1]], np.int32)),
        "grouped wrong",
    ),
    "no groups": (in_array("group_start", lambda v: v[:0]), "grouped wrong"),
    "a shard beyond the shards": (in_array("shard", put(0, 100)), "in no shard"),
    "a shard below zero": (in_array("shard", put(0, -1)), "in no shard"),
    "an entry before its shard": (in_array("data_at", put(1, 0)), "outside its shard"),
    "an entry far before its shard": (in_array("data_at", put(1, -LARGEST)), "outside its shard"),
    "an entry behind its shard": (in_array("data_at", put(1, 1 << 40)), "outside its shard"),
    "an entry between blocks": (in_array("data_at", lambda v: v + (np.arange(len(v)) == 1)), "outside its shard"),
    "positions too few": (in_array("data_at", lambda v: v[:-1]), "differ in length"),
    "the files of a sample in different shards": (files_apart(shard=1), "side by side"),
    "the files of a sample out of order": (files_apart(shard=0), "side by side"),
    "checksums too few": (in_array("sums", lambda v: v[:-1]), "the number of checksums"),
    "checksums too many": (in_array("sums", lambda v: np.append(v, v)), "the number of checksums"),
    **{
        f"a name {name[:20]!r}": (renamed(b"notes.txt", name), words)
        for name, words in {
            b"a/b": "a slash in its name",
            b"/etc/passwd": "a slash in its name",
            b"../x": "a slash in its name",
            b"a\0b": "a NUL in its name",
            b".": "leads out of",
            b"..": "leads out of",
            b"": "a name is empty",
            b"z" * 256: "longer than 255 bytes",
            b"large.bin": "twice, or not in order",
            b"aaa": "twice, or not in order",
            b"large.bi": "twice, or not in order",
        }.items()
    },
}


@pytest.mark.parametrize("name", [*MANIFESTS, *ARRAYS])
def test_a_contradictory_index_is_refused_in_one_line(dst: Path, name: str) -> None:
    change, words = (MANIFESTS | ARRAYS)[name]
    change(dst)
    tracemalloc.start()
    try:
        assert words in refusal(dst)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES
    finally:
        tracemalloc.stop()


def npy(header: str, values: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    """An array file with any header."""
    text = header.encode("latin-1") + b"\n"
    length = len(text).to_bytes(2 if version == (1, 0) else 4, "little")
    return b"\x93NUMPY" + bytes(version) + length + text + values


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("size.npy", bytes(1 << 24))
    return file.getvalue()


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


HEADERS = {
    "huge": "{'descr': '<i8', 'fortran_order': False, 'shape': (4611686018427387904,)}",
    "huge in two dimensions": "{'descr': '<i8', 'fortran_order': False, 'shape': (2147483648, 2147483648)}",
    "beyond 64 bits": "{'descr': '<i8', 'fortran_order': False, 'shape': (99999999999999999999999,)}",
    "a terabyte": "{'descr': '<i8', 'fortran_order': False, 'shape': (137438953472,)}",
    "negative": "{'descr': '<i8', 'fortran_order': False, 'shape': (-1,)}",
    "true": "{'descr': '<i8', 'fortran_order': False, 'shape': (True,)}",
    "fractions": "{'descr': '<i8', 'fortran_order': False, 'shape': (1.5,)}",
    "the other way round": "{'descr': '<i8', 'fortran_order': True, 'shape': (1,)}",
    "objects": "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
    "text of a gigabyte": "{'descr': '<U268435456', 'fortran_order': False, 'shape': (1,)}",
    "records": "{'descr': [('a', '<i8')], 'fortran_order': False, 'shape': (1,)}",
    "nothing": "",
    "a list": "[]",
    "a call": "__import__('os').abort()",
    "open brackets": "(" * 300,
    "signs": "-" * 3000 + "1",
    "an open string": "{'descr': '<i8",
    "an open triple string": '"""',
    "a bad indent": " x\n  y\n z",
    "a NUL": "{'descr': '\0'}",
    "too long": "{'descr': '<i8', 'fortran_order': False, 'shape': (1,)" + " " * 30_000 + "}",
}


@pytest.mark.parametrize("shape", [[0], [1 << 37]], ids=str)
@pytest.mark.parametrize("name", HEADERS)
def test_an_array_with_a_forged_header_takes_no_memory(dst: Path, name: str, shape: list[int]) -> None:
    for version in ((1, 0), (2, 0)):
        replace_array_file(dst, "size", npy(HEADERS[name], bytes(8), version), shape=shape, dtype="int64")
        tracemalloc.start()
        try:
            assert str(dst / FOLDER / "size.npy") in refusal(dst)
            assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES
        finally:
            tracemalloc.stop()


def test_other_files_that_numpy_would_open_are_refused(dst: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    for data in (zipped(), b"", b"\x93NUMPY", b"PK\x03\x04", pickle.dumps(Trap(trap)), b"\x80\x04."):
        replace_array_file(dst, "size", data)
        assert str(dst / FOLDER / "size.npy") in refusal(dst)
    objects = io.BytesIO()
    np.save(objects, np.array([Trap(trap)], dtype=object), allow_pickle=True)
    replace_array_file(dst, "size", objects.getvalue(), shape=[1], dtype="object")
    assert str(dst / FOLDER / "size.npy") in refusal(dst)
    assert not trap.exists()


@pytest.mark.parametrize("depth", [10, 240, 320, 480, 990, 100_000])
def test_a_deeply_nested_manifest_is_refused_or_read(dst: Path, truth: Truth, depth: int) -> None:
    text = (dst / MANIFEST).read_text()
    (dst / MANIFEST).write_text(text[: text.rindex("}")] + ', "more": ' + "[" * depth + "]" * depth + "}")
    assert str(dst / MANIFEST) in refusal(dst)
    (dst / MANIFEST).write_text(text)
    if depth < 1000:
        # Sealing needs more recursion depth than the sealed manifest has.
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(10_000)
        try:
            reseal(dst, lambda manifest: manifest.update(more=nested(depth)))
        finally:
            sys.setrecursionlimit(limit)
        outcome(dst, truth)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b'"redoxfs packed dataset"',
        b"1" * 100_000,
        b"{" * 100_000,
        b'{"format": "redoxfs packed dataset", "format": "redoxfs packed dataset"}',
        b'{"format": ["redoxfs packed dataset"]}',
        b'{"format": "redoxfs packed dataset", "checksum": null}',
        b'\xff\xfe{\0"\0f\0',
        b'{"a": "\\ud800"}',
        b'{"a": NaN}',
        b"\xef\xbb\xbf{}",
    ],
    ids=lambda data: repr(data[:20]),
)
def test_other_files_in_place_of_the_manifest_are_refused(dst: Path, data: bytes) -> None:
    (dst / MANIFEST).write_bytes(data)
    assert str(dst / MANIFEST) in refusal(dst)


def test_a_far_too_long_manifest_is_not_read(dst: Path) -> None:
    os.truncate(dst / MANIFEST, MANIFEST_MAX_BYTES + 1)
    tracemalloc.start()
    try:
        assert "longer than any manifest" in refusal(dst)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES
    finally:
        tracemalloc.stop()


def test_overlapping_entries_are_eio_and_found_by_verify(dst: Path, truth: Truth) -> None:
    tree, positions = load_index(dst).catalog.tree, load_index(dst).positions
    one, other = tree.find(b"large.bin"), tree.find(b"notes.txt")
    replace_array(dst, "shard", np.where(np.arange(len(tree)) == other, positions.shard[one], positions.shard))
    replace_array(dst, "data_at", np.where(np.arange(len(tree)) == other, positions.data_at[one], positions.data_at))
    assert serve(dst, truth) == {b"notes.txt"}
    problems = verify(dst, jobs=1).problems
    assert any("notes.txt: overlaps the entry before it" in problem for problem in problems)
    outcome(dst, truth)


def test_a_shard_of_mostly_holes_takes_no_memory(dst: Path, truth: Truth) -> None:
    length = 1 << 42
    tree, positions = load_index(dst).catalog.tree, load_index(dst).positions
    entry = tree.find(b"notes.txt")
    shard = int(positions.shard[entry])
    os.truncate(dst / positions.shard_names[shard], length)
    in_manifest("shards", shard, "bytes", value=length)(dst)
    tracemalloc.start()
    try:
        problems = verify(dst, jobs=1).problems
        assert len(problems) == 1
        assert "after the last entry" in problems[0]
        in_array("data_at", put(entry, length - (1 << 20)))(dst)
        assert serve(dst, truth) == {b"notes.txt"}
        problems = verify(dst, jobs=1).problems
        assert any("belong to no entry" in problem for problem in problems)
        assert any("not the header of notes.txt" in problem for problem in problems)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES
    finally:
        tracemalloc.stop()


# Foreign shards


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


FOREIGN: dict[str, tuple[bytes, str]] = {
    "absolute": (member("/etc/passwd"), "/etc/passwd, which leads out of the tree"),
    "upwards": (member("../../etc/passwd"), "../../etc/passwd, which leads out of the tree"),
    "upwards inside": (member("cat/../../x"), "cat/../../x, which leads out of the tree"),
    "long and absolute": (member("/" + "etc/" * 100 + "passwd"), "etc/passwd, which leads out of the tree"),
    "long and not UTF-8": (
        (lambda info: info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))(
            tarfile.TarInfo("/" + "\udcff" * 200)
        ),
        "\\xff, which leads out of the tree",
    ),
    "NUL": (member("cat/0.jpg").replace(b"cat/0.jpg\0", b"cat/0.jpg\0evil"[:10]), "cat/0.jpg"),
    "a block device": (member("sda", tarfile.BLKTYPE), "sda, a device or the like"),
    "a character device": (member("mem", tarfile.CHRTYPE), "mem, a device or the like"),
    "a fifo": (member("pipe", tarfile.FIFOTYPE), "pipe, a device or the like"),
    "a hard link": (member("cat/0.jpg", tarfile.LNKTYPE, "/etc/shadow"), "a hard link to /etc/shadow"),
    "a link": (member("out", tarfile.SYMTYPE, "/etc"), "but of out"),
    "another file": (member("cat/none.jpg"), "but of cat/none.jpg"),
    "a line break": (member("a\nb"), "but of a\\nb"),
    "nothing": (bytes(512), "nor any other"),
    "noise": (bytes(range(256)) * 2, "nor any other"),
    "a header that never ends": (
        member("x" * 120)[:512].replace(b"00000000210\0", b"77777777777\0"),
        "nor any other",
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_header_is_refused_by_name(dst: Path, truth: Truth, name: str) -> None:
    header, words = FOREIGN[name]
    shard = dst / "samples-000000.tar"
    index = load_index(dst)
    first = np.flatnonzero((index.positions.shard == 0) & (index.positions.data_at == BLOCK_BYTES))[0]
    own = index.catalog.tree.path(int(first)).decode()
    data = shard.read_bytes()
    shard.write_bytes(header + data[len(header) :])
    problems = verify(dst, jobs=1).problems
    assert problems[0].startswith(f"samples-000000.tar: at 0: not the header of {own}")
    assert words in problems[0] or own in words
    outcome(dst, truth)


def test_a_foreign_tar_serves_none_of_its_files(dst: Path, truth: Truth, tmp_path: Path) -> None:
    shard = dst / "samples-000000.tar"
    length = shard.stat().st_size
    with tarfile.open(tmp_path / "foreign.tar", "w") as tar:
        for name in ("/etc/passwd", "../up", "cat/1.jpg", "cat/1.jpg"):
            info = tarfile.TarInfo(name)
            info.size = 100
            tar.addfile(info, io.BytesIO(b"E" * 100))
        for name, kind in (("dev", tarfile.CHRTYPE), ("hard", tarfile.LNKTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/shadow"
            tar.addfile(info)
    data = (tmp_path / "foreign.tar").read_bytes()
    shard.write_bytes(data[:length].ljust(length, b"\0"))
    index = load_index(dst)
    inside = np.flatnonzero((index.positions.shard == 0) & (index.catalog.tree.size > 0))
    assert serve(dst, truth) == {index.catalog.tree.path(entry) for entry in inside.tolist()}
    problems = verify(dst, jobs=1).problems
    assert "/etc/passwd, which leads out of the tree" in problems[0]
