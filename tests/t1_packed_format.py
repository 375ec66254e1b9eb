"""Shards as other programs read them, the positions of entries, and reproducible packing."""

import dataclasses
import errno
import io
import json
import os
import stat
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packs import (
    Options,
    array,
    catalog_of,
    files_in,
    made_up_catalog,
    made_up_tree,
    manifest_of,
    opened,
    pack_here,
    python_calls,
    reseal,
    seal_made_up,
    shards_of,
)

from redoxfs.chunks import UNKNOWN_SPEED, Cells, build_cells, measure_storage, measurement
from redoxfs.chunks.measurement import MOST_FILES
from redoxfs.chunks.storage_speed import StorageSpeed, speed_of_reads
from redoxfs.cli import main
from redoxfs.cli.values import storage_speed
from redoxfs.dataset import Catalog
from redoxfs.launch.members import Membership
from redoxfs.launch.options import DatasetOptions, MemoryOptions
from redoxfs.launch.path_status import path_status
from redoxfs.launch.source import Opening, open_dataset
from redoxfs.packed import is_packed, load_index, verify
from redoxfs.packed.headers import BLOCK_BYTES, RECORD_BYTES, header_bytes, header_of
from redoxfs.packed.index import FOLDER
from redoxfs.packed.positions import assign_positions, files_in_order

OLD_NS = -5_000_000_123
"""A time before 1970, with a fraction."""

FILES = {
    b"cat/plain.jpg": b"plain",
    b"cat/empty.jpg": b"",
    b"cat/\xff\xfe not utf-8.jpg": b"short raw name",
    b"cat/" + b"\xff" * 200 + b".jpg": b"long raw name",
    b"cat/new\nline.jpg": b"line break",
    b"cat/back\\slash.jpg": b"backslash",
    b"cat/ends in a blank .jpg ": b"blank",
    b"cat/-rf.jpg": b"an option",
    b"cat/\xc3\xa4\xe2\x82\xac.jpg": b"UTF-8",
    b"cat/" + "\u20ac".encode() * 80 + b".jpg": b"long UTF-8",
    b"cat/" + b"l" * 91 + b".jpg": b"a path of 99 bytes",
    b"cat/" + b"m" * 92 + b".jpg": b"a path of 100 bytes",
    b"cat/" + b"n" * 93 + b".jpg": b"a path of 101 bytes",
    b"cat/" + b"o" * 251 + b".jpg": b"the longest name",
    b"/".join([b"deep" * 20] * 8) + b"/file.jpg": b"a path of over 255 bytes",
    b"/".join([b"deep" * 20] * 8) + b"/file\xff.jpg": b"and one that is no text",
    b"d" * 99 + b"/x": b"a directory that fills the field with its slash",
    b"e" * 100 + b"/x": b"one that does not",
    b"f" * 156 + b"/x": b"one that fits no prefix either",
    b"notes.txt": b"of no class",
    b"exactly one block": b"b" * 512,
    b"one block and a byte": b"b" * 513,
    b"over a checksum's block": b"0123456789" * 110_000,
}
LINKS = {
    b"link": b"notes.txt",
    b"dangling": b"nowhere",
    b"outside": b"../../etc/passwd",
    b"absolute": b"/etc/passwd",
    b"raw": b"\xff\xfe",
    b"far": b"../" * 60 + b"somewhere/" * 12,
    b"far and raw": b"\xff" * 300,
    b"cat/line": b"with a\nbreak",
}
MODES = {b"cat": 0o2751, b"notes.txt": 0o4640, b"closed": 0o500, b"cat/plain.jpg": 0o1600}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Awkward names, sizes, owners and times."""
    root = os.fsencode(tmp_path_factory.mktemp("awkward")) + b"/data"
    for path, data in FILES.items():
        whole = root + b"/" + path
        os.makedirs(os.path.dirname(whole), exist_ok=True)
        with open(whole, "wb") as file:
            file.write(data)
    os.mkdir(root + b"/closed")
    os.mkdir(root + b"/closed/inner")
    for path, target in LINKS.items():
        os.symlink(target, root + b"/" + path)
    if os.geteuid() == 0:
        os.chown(root + b"/notes.txt", 2_097_152, 2**32 - 2)
        os.chown(root + b"/cat/\xff\xfe not utf-8.jpg", 2**31, 2**31 + 1)
        os.chown(root + b"/link", 3_000_000, 4_000_000, follow_symlinks=False)
    for path, mode in MODES.items():
        os.chmod(root + b"/" + path, mode)
    os.utime(root + b"/cat/plain.jpg", ns=(OLD_NS, OLD_NS))
    os.utime(root + b"/cat/\xff\xfe not utf-8.jpg", ns=(OLD_NS, OLD_NS))
    os.utime(root + b"/notes.txt", ns=(0, 1_234_567_890_123_456_789))
    os.utime(root + b"/link", ns=(0, 1_111_111_111_999_999_999), follow_symlinks=False)
    for path in (b"closed/inner", b"closed", b"cat", b""):
        os.utime(root + b"/" + path, ns=(0, 1_000_000_000_500_000_000))
    return root


@pytest.fixture(scope="module", params=[1 << 30, 4096], ids=["one shard", "many shards"])
def dst(source: bytes, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path_factory.mktemp("awkward") / "dst"
    pack_here(source, folder, Options(chunk_size=4, shard_bytes=request.param))
    return folder


def facts(root: bytes) -> dict[bytes, tuple[object, ...]]:
    """The parts of a tree that a tar can keep: kind, mode, owner, whole seconds from 1970 on, bytes or target."""
    found: dict[bytes, tuple[object, ...]] = {}
    for above, directories, files in os.walk(root):
        for name in [b".", *files, *(d for d in directories if os.path.islink(os.path.join(above, d)))]:
            path = os.path.normpath(os.path.join(above, name))
            known = os.lstat(path)
            content: object = None
            if stat.S_ISREG(known.st_mode):
                with open(path, "rb") as file:
                    content = file.read()
            elif stat.S_ISLNK(known.st_mode):
                content = os.readlink(path)
            seconds = max(0, known.st_mtime_ns // 1_000_000_000)
            found[os.path.relpath(path, root)] = (known.st_mode, known.st_uid, known.st_gid, seconds, content)
    return found


def extraction_order(dst: Path) -> list[Path]:
    """Samples come first, directories last."""
    return sorted(shards_of(dst), key=lambda shard: (shard.name.startswith("tree"), shard.name))


def run_tar(*arguments: str | Path) -> bytes:
    done = subprocess.run(["tar", "--numeric-owner", *map(str, arguments)], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


def test_gnu_tar_lists_and_extracts_the_same_tree_silently(source: bytes, dst: Path, tmp_path: Path) -> None:
    listed = b"".join(run_tar("--quoting-style=escape", "-tvf", shard) for shard in shards_of(dst))
    assert listed.count(b"\n") == len(facts(source))
    out = tmp_path / "out"
    out.mkdir()
    for shard in extraction_order(dst):
        run_tar("-xpf", shard, "-C", out)
    assert facts(os.fsencode(out)) == facts(source)


def test_pythons_tarfile_lists_and_extracts_the_same_tree(source: bytes, dst: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    names: list[bytes] = []
    for shard in extraction_order(dst):
        with tarfile.open(shard) as tar:
            names += [os.path.normpath(os.fsencode(name)) for name in tar.getnames()]
            # Python 3.11.4 added the argument. Older versions ignore the attribute and extract everything.
            tar.extraction_filter = lambda member, _: member
            tar.extractall(out, numeric_owner=True)
    assert sorted(names) == sorted(facts(source))
    assert without_times_of_links(facts(os.fsencode(out))) == without_times_of_links(facts(source))


def without_times_of_links(found: dict[bytes, tuple[object, ...]]) -> dict[bytes, tuple[object, ...]]:
    """tarfile does not change them."""
    return {path: fact[:3] + fact[4:] if path in LINKS else fact for path, fact in found.items()}


def test_the_index_has_exact_times_and_all_other_attributes(source: bytes, dst: Path) -> None:
    tree = load_index(dst).catalog.tree
    for path, (mode, uid, gid, _, content) in facts(source).items():
        entry = tree.find(path)
        known = os.lstat(os.path.join(source, path))
        assert (tree.mode[entry], tree.uid[entry], tree.gid[entry]) == (mode, uid, gid)
        assert (tree.size[entry], tree.mtime_ns[entry]) == (known.st_size, known.st_mtime_ns)
        if tree.is_link(entry):
            assert tree.link_target(entry) == content
    assert len(tree) == len(facts(source))
    assert tree.mtime_ns[tree.find(b"cat/plain.jpg")] == OLD_NS


def test_verify_finds_nothing_wrong(dst: Path) -> None:
    found = verify(dst, jobs=1)
    assert found.problems == ()
    assert (found.files, found.shards) == (len(FILES), len(shards_of(dst)))
    assert found.size == sum(map(len, FILES.values()))


def test_a_shard_is_whole_records_and_ends_in_two_empty_blocks(dst: Path) -> None:
    for shard in shards_of(dst):
        data = shard.read_bytes()
        assert len(data) % RECORD_BYTES == 0
        assert data[-2 * BLOCK_BYTES :] == bytes(2 * BLOCK_BYTES)


# Headers

names = st.binary(min_size=1, max_size=255).filter(lambda n: not {0, ord("/")} & set(n) and n not in (b".", b".."))
owners = st.integers(0, 2**32 - 1)
times = st.integers(-(2**62), 2**62)


@given(
    st.lists(names, max_size=6),
    names,
    st.binary(min_size=1, max_size=600).filter(lambda t: 0 not in t),
    st.tuples(owners, owners, times, st.integers(0, 2**59), st.integers(0, 0o7777)),
)
@pytest.mark.slow
def test_any_header_matches_the_tree_and_its_computed_length(
    folders: list[bytes], name: bytes, target: bytes, numbers: tuple[int, int, int, int, int]
) -> None:
    uid, gid, mtime_ns, size, bits = numbers
    entries = [(depth, folder, stat.S_IFDIR | bits) for depth, folder in enumerate(folders)]
    entries += [(len(folders), name, stat.S_IFREG | bits), (len(folders), name + b"2"[:1], stat.S_IFLNK | 0o777)]
    count = len(entries) + 1
    tree = made_up_tree(
        entries,
        targets=[target],
        uid=[uid] * count,
        gid=[gid] * count,
        mtime_ns=[mtime_ns] * count,
        size=[*[4096] * (count - 2), size, len(target)],
    )
    planned = header_bytes(tree)
    for entry in range(count):
        header = header_of(tree, entry)
        assert len(header) == planned[entry]
        assert len(header) % BLOCK_BYTES == 0
        with tarfile.open(fileobj=io.BytesIO(header + bytes(RECORD_BYTES)), encoding="utf-8") as tar:
            told = tar.next()
        assert told is not None
        assert os.fsencode(told.name) == (tree.path(entry) or b".")
        assert (told.uid, told.gid, told.mtime) == (uid, gid, max(0, mtime_ns // 1_000_000_000))
        assert told.mode == stat.S_IMODE(int(tree.mode[entry]))
        assert (told.isdir(), told.isreg(), told.issym()) == (
            tree.is_dir(entry),
            entry == count - 2,
            entry == count - 1,
        )
        assert told.size == (size if told.isreg() else 0)
        assert os.fsencode(told.linkname) == (target if told.issym() else b"")


def test_both_tars_read_a_file_over_8_gib(tmp_path: Path) -> None:
    size = (9 << 30) + 5
    tree = made_up_tree(
        [(0, b"after.jpg", stat.S_IFREG | 0o644), (0, b"large.jpg", stat.S_IFREG | 0o644)], size=[0, 3, size]
    )
    catalog = made_up_catalog(tree, [0, 0], [[2], [1]])
    positions = assign_positions(
        catalog, Cells(np.array([[0], [1]], np.int32), np.array([0, 2], np.int32)), shard_bytes=1 << 40
    )
    shard = tmp_path / positions.shard_names[0]
    with open(shard, "wb") as file:
        for entry in (1, 2):
            header = header_of(tree, entry)
            file.seek(int(positions.data_at[entry]) - len(header))
            file.write(header)
        file.seek(int(positions.data_at[1]))
        file.write(b"end")
        file.truncate(positions.shard_bytes[0])
    assert os.stat(shard).st_blocks * 512 < 1 << 20
    assert [line.split()[2] for line in run_tar("-tvf", shard).splitlines()] == [b"%d" % size, b"3"]
    with tarfile.open(shard) as tar:
        assert [(told.name, told.size) for told in tar] == [("large.jpg", size), ("after.jpg", 3)]
        after = tar.extractfile("after.jpg")
        assert after is not None
        assert after.read() == b"end"


# Positions


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("grouped") / "data"
    for label in ("cat", "dog", "eel"):
        (root / label).mkdir(parents=True)
        for number in range(30):
            for suffix in ("jpg", "txt", "json"):
                text = f"{label} {number} {suffix} "
                (root / label / f"{number:03}.{suffix}").write_text(text * (number % 7))
    (root / "README").write_text("three classes")
    return root


GROUPED = Options(chunk_size=5, groups="stem")
SHARD_SIZES = [1, 512, 5000, 10_240, 20_000, 60_000, 1 << 30]


@pytest.mark.parametrize("shard_bytes", [1, 20_000, 1 << 30])
@pytest.mark.slow
def test_chunks_are_whole_and_files_of_a_sample_side_by_side(grouped: Path, tmp_path: Path, shard_bytes: int) -> None:
    pack_here(grouped, tmp_path / "dst", dataclasses.replace(GROUPED, shard_bytes=shard_bytes))
    index = load_index(tmp_path / "dst")
    stored: list[bytes] = []
    shard_of: dict[bytes, int] = {}
    for number, name in enumerate(index.positions.shard_names):
        with tarfile.open(tmp_path / "dst" / name) as tar:
            inside = [os.fsencode(told.name) for told in tar]
        shard_of |= dict.fromkeys(inside, number)
        stored += inside
    expected: list[bytes] = []
    ends: list[int] = []
    for row in index.cells.cells:
        files = files_in_order(index.catalog, row[row >= 0])
        paths = [index.catalog.tree.path(entry) for entry in files.tolist()]
        assert len({shard_of[path] for path in paths}) == 1
        ends.append(shard_of[paths[0]])
        expected += paths
    assert stored[: len(expected)] == expected
    assert ends == sorted(ends)
    for sample in range(len(index.catalog.class_of)):
        at = stored.index(index.catalog.tree.path(int(index.catalog.members[index.catalog.member_at[sample]])))
        assert {path.partition(b".")[0] for path in stored[at : at + 3]} == {stored[at].partition(b".")[0]}
    assert stored[len(expected) :] == [b"README", b"eel", b"dog", b"cat", b"."]


@pytest.mark.parametrize("shard_bytes", SHARD_SIZES)
def test_a_shard_ends_with_the_chunk_that_fills_it(grouped: Path, shard_bytes: int) -> None:
    catalog = catalog_of(grouped, GROUPED)
    cells = build_cells(catalog.class_of, catalog.sample_bytes, chunk_size=5, seed=0)
    positions = assign_positions(catalog, cells, shard_bytes=shard_bytes)
    end = positions.data_at + np.where(catalog.tree.kind_mask(stat.S_IFREG), catalog.tree.size, 0)
    chunk_of = np.full(len(catalog.tree), -1)
    for chunk, row in enumerate(cells.cells):
        chunk_of[files_in_order(catalog, row[row >= 0])] = chunk
    sample_shards = [number for number, name in enumerate(positions.shard_names) if name.startswith("samples")]
    for shard in sample_shards:
        inside = np.flatnonzero(positions.shard == shard)
        assert positions.shard_bytes[shard] >= end[inside].max() + 2 * BLOCK_BYTES
        assert positions.shard_bytes[shard] - end[inside].max() <= 3 * BLOCK_BYTES + RECORD_BYTES
        without_last = end[inside][chunk_of[inside] < chunk_of[inside].max()]
        assert without_last.max(initial=0) < shard_bytes
        if shard != sample_shards[-1]:
            assert -(-end[inside].max() // BLOCK_BYTES) * BLOCK_BYTES >= shard_bytes


@pytest.mark.slow
def test_packing_twice_gives_the_same_bytes(grouped: Path, tmp_path: Path) -> None:
    pack_here(grouped, tmp_path / "one", GROUPED)
    pack_here(grouped, tmp_path / "two", dataclasses.replace(GROUPED, jobs=2))
    assert files_in(tmp_path / "one") == files_in(tmp_path / "two")
    pack_here(grouped, tmp_path / "other", dataclasses.replace(GROUPED, seed=1))

    def order(dst: Path) -> list[str]:
        with tarfile.open(dst / "samples-000000.tar") as tar:
            return tar.getnames()

    assert sorted(order(tmp_path / "other")) == sorted(order(tmp_path / "one"))
    assert order(tmp_path / "other") != order(tmp_path / "one")


def test_a_source_without_samples_or_files_is_packed(tmp_path: Path) -> None:
    root = tmp_path / "data"
    (root / "a/b").mkdir(parents=True)
    pack_here(root, tmp_path / "directories")
    assert verify(tmp_path / "directories", jobs=1).problems == ()
    (root / "a/notes.txt").write_text("no sample")
    pack_here(root, tmp_path / "notes", Options(classes="none"))
    index = load_index(tmp_path / "notes")
    assert [shard.name for shard in shards_of(tmp_path / "notes")] == ["tree-000000.tar"]
    assert (len(index.catalog.tree), len(index.catalog.class_of), index.cells.cells.shape) == (4, 0, (0, 8))
    assert verify(tmp_path / "notes", jobs=1).problems == ()


@pytest.mark.parametrize("beside", [[], ["samples-000000.tar"]], ids=["alone", "of shards"])
def test_a_folder_that_is_named_like_the_index_makes_no_packed_dataset(
    tmp_path: Path, beside: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    (tmp_path / FOLDER / "cat").mkdir(parents=True)
    for name in (f"{FOLDER}/cat/1.jpg", f"{FOLDER}/samples-000000.idx", *beside):
        (tmp_path / name).write_bytes(b"x")
    with opened(tmp_path) as fd:
        assert not is_packed(fd)
        # That of a pack, whose other files are gone.
        (tmp_path / FOLDER / "size.npy").write_bytes(b"x")
        assert is_packed(fd)
        monkeypatch.setattr(os, "lstat", fail)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            is_packed(fd)


def test_the_findings_of_each_split_are_optional_in_the_index(grouped: Path, tmp_path: Path) -> None:
    pack_here(grouped, tmp_path / "dst", GROUPED)
    known = catalog_of(grouped, GROUPED).verdict
    assert known.splits
    assert load_index(tmp_path / "dst").catalog.verdict == known
    reseal(tmp_path / "dst", lambda manifest: manifest["verdict"].pop("splits"))
    assert load_index(tmp_path / "dst").catalog.verdict == dataclasses.replace(known, splits=())


def test_the_manifest_has_the_options_and_begins_with_its_format(grouped: Path, tmp_path: Path) -> None:
    pack_here(grouped, tmp_path / "dst", GROUPED)
    manifest = manifest_of(tmp_path / "dst")
    assert next(iter(manifest)) == "format"
    assert (manifest["version"], manifest["chunk_size"], manifest["seed"]) == (1, 5, 0)
    assert manifest["asked"] == {"classes": "dir", "groups": "stem"}
    for name, record in manifest["arrays"].items():
        values = array(tmp_path / "dst", name)
        assert (list(values.shape), str(values.dtype)) == (record["shape"], record["dtype"])
    assert {path.stem for path in (tmp_path / "dst/index").iterdir()} == set(manifest["arrays"])


# Chunks of a mount


@pytest.mark.parametrize(("speed", "chunk_size"), [("1000,1kB", 1), ("1000,1GB", 8)])
def test_inspect_names_the_chunks_of_a_mount_with_that_speed_of_storage(
    grouped: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], speed: str, chunk_size: int
) -> None:
    dst = tmp_path / "dst"
    pack_here(grouped, dst, Options(chunk_size=8, groups="stem"))
    assert main(["inspect", str(dst), "--storage-speed", speed, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["chunk_size"] == chunk_size
    memory = MemoryOptions(storage_speed=storage_speed(speed))
    with opened(dst) as fd:
        asked = Opening(path_status(str(dst), 10), fd, DatasetOptions(), memory, 10, measure_storage=True)
        assert open_dataset(asked).chunk_size == chunk_size


def test_the_largest_chunks_are_split_for_the_pool(grouped: Path, tmp_path: Path) -> None:
    """It counts the samples of a chunk in 16 bits."""
    dst = tmp_path / "dst"
    pack_here(grouped, dst, Options(chunk_size=1 << 16, groups="stem"))
    memory = MemoryOptions(storage_speed=storage_speed("1,1GB"))
    with opened(dst) as fd:
        asked = Opening(path_status(str(dst), 10), fd, DatasetOptions(), memory, 10, measure_storage=True)
        # Nodes choose by no speed that each has measured by itself.
        of_nodes = asked._replace(memory=MemoryOptions(), members=Membership(("a:1", "b:1"), 0))
        for each in (asked, of_nodes):
            assert open_dataset(each).chunk_size == 1 << 15


# Many files


def test_the_speed_of_a_storage_is_measured_with_few_files_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are largest, since short ones give no long reads. A read is as long as what came."""
    monkeypatch.setattr(measurement, "LASTS_S", 0.001)
    files = [tmp_path / str(number) for number in range(MOST_FILES + 50)]
    for number, path in enumerate(files):
        path.touch()
        os.truncate(path, 1 << 20 if number < 50 else 2 << 20)
    opened_files: list[object] = []
    known = os.open

    def noted(path: Path, flags: int) -> int:
        opened_files.append(path)
        return known(path, flags)

    read: list[int] = []

    def speed(seek_s: float, large: int, large_s: float, even: int, even_s: float) -> StorageSpeed:
        read.append(large)
        return speed_of_reads(seek_s, large, large_s, even, even_s)

    monkeypatch.setattr(os, "open", noted)
    monkeypatch.setattr(measurement, "speed_of_reads", speed)
    assert measure_storage(files) != UNKNOWN_SPEED
    assert read == [2 << 20]
    assert sorted(map(str, opened_files)) == sorted(map(str, files[50:]))


@pytest.fixture(scope="module")
def many() -> Catalog:
    """A directory of 200,000 files of a few bytes."""
    count = 200_000
    tree = made_up_tree(
        [(0, b"flat", stat.S_IFDIR | 0o755), *((1, b"%09d.jpg" % n, stat.S_IFREG | 0o644) for n in range(count))],
        size=[4096, 4096, *(n % 7 for n in range(count))],
    )
    return made_up_catalog(tree, [0] * count, [[entry] for entry in range(2, count + 2)])


@pytest.mark.slow
def test_positions_cost_no_call_per_file(many: Catalog) -> None:
    cells = build_cells(many.class_of, many.sample_bytes, chunk_size=64, seed=0)
    assert python_calls(lambda: assign_positions(many, cells, shard_bytes=1 << 26)) < 20_000


@pytest.mark.slow
def test_opening_the_index_costs_no_call_per_file(many: Catalog, tmp_path: Path) -> None:
    cells = build_cells(many.class_of, many.sample_bytes, chunk_size=64, seed=0)
    seal_made_up(tmp_path / "dst", many, cells)
    assert python_calls(lambda: load_index(tmp_path / "dst")) < 20_000
    assert len(load_index(tmp_path / "dst").catalog.class_of) == len(many.class_of)


# WebDataset


def webdataset_reads(dst: Path) -> list[dict[str, Any]]:
    """The samples of the shards as the webdataset library reads them."""
    tariterators = pytest.importorskip(
        "webdataset.tariterators", reason="webdataset is not installed; scripts/setup installs it"
    )
    found: list[dict[str, Any]] = []
    for shard in dst.glob("samples-*.tar"):
        with open(shard, "rb") as stream:
            files = ({**file, "__url__": shard.name} for file in tariterators.tar_file_iterator(stream))
            found += tariterators.group_by_keys(files)
    return found


@pytest.mark.slow
def test_webdataset_reads_every_sample_with_its_files(grouped: Path, tmp_path: Path) -> None:
    pack_here(grouped, tmp_path / "dst", dataclasses.replace(GROUPED, shard_bytes=20_000))
    assert verify(tmp_path / "dst", jobs=1).not_for_webdataset_count == 0
    found = webdataset_reads(tmp_path / "dst")
    assert len(found) == 90
    for sample in found:
        for suffix in ("jpg", "txt", "json"):
            assert sample[suffix] == (grouped / f"{sample['__key__']}.{suffix}").read_bytes()


def test_verify_names_files_that_webdataset_would_merge_or_miss(tmp_path: Path) -> None:
    root = tmp_path / "data"
    good = ["a.jpg", "-b.jpg", "c d.jpg", "\xff.jpg", "__e.jpg"]
    bad = ["no dot", "two.dots.jpg", "three.dots.in.it", ".hidden"]
    (root / "a.directory").mkdir(parents=True)
    for name in (*good, *bad):
        (root / "a.directory" / name).write_text(name)
    table = tmp_path / "all.csv"
    lines = [f"a.directory/{name},one" for name in (*good, *bad)]
    table.write_text("\n".join(["path,class", *lines, ""]))
    pack_here(root, tmp_path / "dst", Options(classes=str(table)))
    told = verify(tmp_path / "dst", jobs=1)
    assert set(told.not_for_webdataset) == {f"a.directory/{name}" for name in bad}
    found = [(sample["__key__"], dict(sample)) for sample in webdataset_reads(tmp_path / "dst")]
    for name in good:
        stem, _, suffix = name.partition(".")
        assert [sample[suffix] for key, sample in found if key == f"a.directory/{stem}"] == [name.encode()]
    keys = {key for key, _ in found}
    assert "a.directory/no dot" not in keys
    assert not any("hidden" in key for key in keys)
