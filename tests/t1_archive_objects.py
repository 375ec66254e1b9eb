"""Archives in an object store: which there are, what the index of their headers requests, and the store's tests."""

import dataclasses
import errno
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from object_server import CUT_SHORT, REFUSED, STATUS_503, Server, Traffic, environment, serving, times
from patience import PATIENCE_S
from tars import LONG_AGO_S, files_of, indexed, member, paths_of, tar_of, two_archives, write_tar

from redoxfs.chunks import FileBytes, StorageSpeed
from redoxfs.dataset import build_catalog
from redoxfs.launch.archive_objects import are_archives, split
from redoxfs.launch.options import DatasetOptions
from redoxfs.native import index_archives
from redoxfs.objects import parse_address
from redoxfs.objects.archives import ArchiveObjectStore, InStore, names_at, versions_of
from redoxfs.objects.client import Client
from redoxfs.objects.errors import ObjectError
from redoxfs.packed import DamagedDatasetError
from redoxfs.packed.archive_cache import ArchiveIndex, Kept
from redoxfs.packed.archive_files import UnusableArchiveError
from redoxfs.packed.archive_store import chunks_of, index_of, runs
from redoxfs.packed.archives import load_or_index
from redoxfs.testing import CHUNK_SIZE, GROUPS, StoreTests, Subject

SPEED = StorageSpeed(seek_s=0.001, bytes_per_s=100e6)
SHARDS = [f"s-{number}.tar" for number in range(6)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as server:
        yield server


def client_of(server: Server, deadline_s: float = PATIENCE_S) -> Client:
    return Client(parse_address(server.url), deadline_s=deadline_s, has_checksums=False)


def found_at(
    server: Server, *names: str, deadline_s: float = PATIENCE_S, salvages: bool = False, rescan: bool = False
) -> ArchiveIndex:
    """The index of archives in a store, kept beside them."""
    assert server.folder is not None
    client = client_of(server, deadline_s)
    files = InStore(client, names, versions_of(client, names), SPEED)
    return load_or_index(server.url, files, server.folder / "kept", salvages=salvages, rescan=rescan)


def many(folder: Path, size: int = 20_000) -> dict[str, bytes]:
    """The files of a few shards, which lie in a folder."""
    every: dict[str, bytes] = {}
    for shard, name in enumerate(SHARDS):
        files = {f"{shard}-{number:02}.jpg": random.Random(number).randbytes(size) for number in range(40)}
        tar_of(folder / name, files)
        every |= files
    return every


# The index


def test_the_index_of_objects_is_that_of_files(server: Server, tmp_path: Path) -> None:
    files = many(tmp_path)
    found, there = found_at(server, *SHARDS), indexed(tmp_path, *SHARDS)
    assert files_of(tmp_path, found) == files
    for name in ("names", "name_at", "parent", "size", "mtime_ns", "mode"):
        if name != "mode":
            assert np.array_equal(getattr(found.grown.tree, name), getattr(there.grown.tree, name))
    assert np.array_equal(found.grown.data_at, there.grown.data_at)


def test_the_index_of_another_command_will_do_if_it_is_of_the_same_archives(server: Server, tmp_path: Path) -> None:
    many(tmp_path)
    first, second = found_at(server, *SHARDS), found_at(server, *SHARDS, rescan=True)
    kept = Kept.load(tmp_path / "kept", server.url)
    assert kept is not None
    assert kept.at_ns == second.at_ns != first.at_ns
    assert kept.is_of(first.archives, first.at_ns)
    others = (dataclasses.replace(first.archives[0], e_tag="other"), *first.archives[1:])
    assert not kept.is_of(others, first.at_ns)
    assert kept.is_of(others, second.at_ns)


def test_small_members_are_read_through_once_and_large_ones_skipped(server: Server, tmp_path: Path) -> None:
    many(tmp_path)
    found_at(server, *SHARDS)
    whole = sum((tmp_path / name).stat().st_size for name in SHARDS)
    # A piece has 400 kB.
    assert server.traffic.requests["GET"] <= 3 * len(SHARDS)
    assert server.traffic.sent <= whole
    server.traffic.requests.clear()
    server.traffic.sent = 0
    tar_of(tmp_path / "large.tar", {f"{number}.bin": bytes(3 << 20) for number in range(5)})
    found_at(server, "large.tar")
    assert server.traffic.requests["GET"] <= 6
    assert server.traffic.sent < 1 << 20


def test_pax_headers_cost_no_request_of_their_own(server: Server, tmp_path: Path) -> None:
    members = [member(f"{number}.jpg", b"x", mtime=LONG_AGO_S + 0.5) for number in range(300)]
    found = found_at(server, write_tar(tmp_path / "a.tar", members).name)
    assert int(found.grown.tree.mtime_ns[1]) == LONG_AGO_S * 10**9 + 5 * 10**8
    assert server.traffic.requests["GET"] == 2


def test_archives_in_an_archive_are_read_at_the_same_time(server: Server, tmp_path: Path) -> None:
    """The server holds the requests for the inner ones until three are there."""
    inner = {}
    for number in range(20):
        inner[f"n{number}"] = tar_of(tmp_path / "inner", {"a.jpg": b"%d" % number * 200_000}).read_bytes()
    tar_of(tmp_path / "outer.tar", {f"{name}.bin": data for name, data in inner.items()})
    tar_of(tmp_path / "all.tar", {f"{name}.tar": data for name, data in inner.items()})
    found_at(server, "outer.tar")
    of_outer, server.traffic = server.traffic.requests["GET"], Traffic()
    held: list[str] = []
    alone: list[str] = []
    are_three = threading.Event()

    def hold(method: str, path: str) -> None:
        if method != "GET" or server.traffic.requests["GET"] <= of_outer:
            return
        held.append(path)
        if len(held) >= 3:
            are_three.set()
        if not are_three.wait(PATIENCE_S):
            alone.append(path)

    server.fault = hold
    found = found_at(server, "all.tar", deadline_s=2 * PATIENCE_S)
    assert (len(held) >= 20, alone) == (True, [])
    assert set(files_of(tmp_path, found)) == {f"n{number}/a.jpg" for number in range(20)}


def test_an_object_is_read_again_only_if_its_version_is_another(server: Server, tmp_path: Path) -> None:
    files = many(tmp_path)
    assert found_at(server, *SHARDS).read == len(SHARDS)
    server.traffic.requests.clear()
    assert found_at(server, *SHARDS).read == 0
    assert server.traffic.requests == {"HEAD": len(SHARDS)}
    # The same length and time, as only a tag tells.
    other = dict.fromkeys([f"2-{number:02}.jpg" for number in range(40)], bytes(20_000))
    tar_of(tmp_path / "s-2.tar", other)
    server._contents.clear()
    found = found_at(server, *SHARDS)
    assert (found.read, files_of(tmp_path, found)) == (1, {**files, **other})


def test_without_tags_a_time_of_now_proves_nothing(server: Server, tmp_path: Path) -> None:
    server.has_tags = False
    many(tmp_path)
    # Ahead, so that it is not over when a busy machine comes to the last look.
    os.utime(tmp_path / "s-1.tar", times=(time.time() + PATIENCE_S,) * 2)
    assert [found_at(server, *SHARDS).read for _ in range(3)] == [len(SHARDS), 1, 1]


def test_an_index_that_broke_off_goes_on_with_what_is_missing(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = many(tmp_path)
    monkeypatch.setattr(InStore, "at_once", 2)
    server.fault = lambda method, path: REFUSED if method == "GET" and "s-5" in path else None
    with pytest.raises(ObjectError, match=r"s-5\.tar: permission denied \(403\)"):
        found_at(server, *SHARDS)
    server.fault = lambda _method, _path: None
    found = found_at(server, *SHARDS)
    assert (found.read, files_of(tmp_path, found)) == (2, files)


def test_a_server_that_fails_now_and_then_costs_no_index(server: Server, tmp_path: Path) -> None:
    files = many(tmp_path)
    at_random = random.Random(0)
    server.fault = lambda _method, _path: STATUS_503 if at_random.random() < 0.2 else None
    assert files_of(tmp_path, found_at(server, *SHARDS)) == files


def test_an_object_that_changes_while_it_is_indexed_is_an_error(server: Server, tmp_path: Path) -> None:
    many(tmp_path)

    def change(method: str, path: str) -> None:
        if method == "GET" and "s-3" in path:
            tar_of(tmp_path / "s-3.tar", {"0.jpg": b"other"})

    server.fault = change
    with pytest.raises(ObjectError) as raised:
        found_at(server, *SHARDS)
    assert raised.value.errno == errno.ESTALE


def test_damaged_and_missing_objects_are_named(server: Server, tmp_path: Path) -> None:
    many(tmp_path)
    with pytest.raises(UnusableArchiveError, match=r"s-7\.tar: no such object"):
        found_at(server, "s-7.tar")
    (tmp_path / "s-4.tar").write_bytes((tmp_path / "s-4.tar").read_bytes()[:100_000])
    with pytest.raises(DamagedDatasetError, match=r"^s-4\.tar is truncated.*--salvage$"):
        found_at(server, *SHARDS)
    found = found_at(server, *SHARDS, salvages=True)
    assert len(files_of(tmp_path, found)) == 40 * 5 + 4
    (tmp_path / "s-4.tar").write_bytes(b"\x1f\x8b" + bytes(600))
    with pytest.raises(UnusableArchiveError, match="is compressed with gzip"):
        found_at(server, "s-4.tar")
    (tmp_path / "s-4.tar").write_bytes(b"PK\x05\x06" + bytes(18))
    with pytest.raises(UnusableArchiveError, match=r"^s-4\.tar is a zip file"):
        found_at(server, "s-4.tar")


def test_headers_without_end_are_bounded(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redoxfs.packed.archives.HEADERS_MAX", 2000)
    write_tar(tmp_path / "bomb.tar", [member(f"{number}") for number in range(4000)])
    with pytest.raises(UnusableArchiveError, match="more than 2,000 members"):
        found_at(server, "bomb.tar")


def index_with(read: Callable[[int, int, int], bytes | int]) -> list[Any]:
    """The result of an index of one archive of 4,096 bytes."""
    return index_archives(
        [(0, 0, 4096)],
        threads=1,
        most_headers=10,
        through_bytes=0,
        long_window=4096,
        short_window=4096,
        salvages=False,
        read=read,
        progress=None,
    )


def test_a_reader_that_returns_anything_else_is_an_error() -> None:
    for wrong in (b"short", 0, -1):
        result = index_with(lambda _number, _size, _at, wrong=wrong: wrong)  # type: ignore[misc]
        assert result[0][0] == errno.EIO


def test_the_threads_of_an_index_leave_signals_to_the_program() -> None:
    blocked: list[set[signal.Signals | int]] = []

    def read(_number: int, _size: int, _at: int) -> int:
        blocked.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        return errno.EIO

    index_with(read)
    assert {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGUSR1} <= blocked[0]
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


# Names


@pytest.mark.parametrize(
    ("text", "folder", "names"),
    [
        ("s3://b/a.tar", "s3://b", ["a.tar"]),
        ("s3://b/x/t-{00..02}.tar", "s3://b/x", ["t-00.tar", "t-01.tar", "t-02.tar"]),
        ("s3://b/x/{train,val}/*.tar", "s3://b/x", ["train/*.tar", "val/*.tar"]),
        ("s3://b/x/*/y/*.tar", "s3://b/x", ["*/y/*.tar"]),
        ("https://h:1/a/b/c.tar", "https://h:1/a/b", ["c.tar"]),
        # It is refused where its first bytes are read.
        ("s3://b/x/a.ZIP", "s3://b/x", ["a.ZIP"]),
    ],
)
def test_an_address_of_archives_is_a_folder_and_names(text: str, folder: str, names: list[str]) -> None:
    address = parse_address(text)
    assert are_archives(address, DatasetOptions())
    assert not are_archives(address, DatasetOptions(archives="none"))
    found, patterns = split(address)
    assert (found.url, patterns) == (folder, names)


def test_names_are_those_below_the_folder_above_all_archives(server: Server, tmp_path: Path) -> None:
    for number in range(2):
        tar_of(tmp_path / f"deep/down/s-{number}.tar", {f"{number}.jpg": b"x"})
    found = found_at(server, "deep/down/s-0.tar", "deep/down/s-1.tar")
    assert paths_of(found.grown.tree) == ["0.jpg", "1.jpg"]
    assert [archive.path for archive in found.archives] == ["deep/down/s-0.tar", "deep/down/s-1.tar"]


def test_a_web_server_lists_nothing(server: Server) -> None:
    with pytest.raises(UnusableArchiveError, match="a web server has no list of names; write them with braces"):
        names_at(client_of(server), ["*.tar"])


def listing(server: Server, monkeypatch: pytest.MonkeyPatch, *names: str) -> Client:
    """A client of s3://bucket/p. ``server`` is S3 with one answer: that these are the objects there."""
    for name, value in environment(AWS_SKIP_SIGNATURE="true", AWS_ENDPOINT_URL=server.url).items():
        monkeypatch.setenv(name, value)
    assert server.folder is not None
    entry = "<Contents><Key>{}</Key><LastModified>2024-01-01T00:00:00Z</LastModified><Size>1</Size></Contents>"
    answer = f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(map(entry.format, names))}</ListBucketResult>"
    (server.folder / "bucket?delimiter=%2F&list-type=2&prefix=p%2F").write_text(answer)
    return Client(parse_address("s3://bucket/p"), deadline_s=PATIENCE_S)


@pytest.mark.parametrize("fault", [STATUS_503, "429", "400 RequestTimeout", CUT_SHORT])
def test_a_list_that_a_store_refuses_for_a_while_is_asked_for_again(
    server: Server, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    client = listing(server, monkeypatch, "p/a.tar", "p/b.txt")
    server.fault = times(2, fault)
    assert names_at(client, ["*.tar"]) == ["a.tar"]
    assert server.traffic.requests["GET"] == 3


@pytest.mark.parametrize(("fault", "words"), [(REFUSED, "permission denied"), ("404", "no such object")])
def test_a_list_that_is_refused_for_good_is_not_asked_for_again(
    server: Server, monkeypatch: pytest.MonkeyPatch, fault: str, words: str
) -> None:
    client = listing(server, monkeypatch, "p/a.tar")
    server.fault = times(1, fault)
    with pytest.raises(ObjectError, match=rf"s3://bucket/p: {words} \({fault}\)$"):
        names_at(client, ["*.tar"])


@pytest.mark.parametrize("name", ["p//a.tar", "p/../a.tar", "p/a\x7f.tar"])
def test_a_name_that_cannot_be_read_is_no_broken_connection(
    server: Server, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    client = listing(server, monkeypatch, name, "p/b.tar")
    with pytest.raises(ObjectError, match="s3://bucket/p: there is a name that cannot be read: with a control"):
        names_at(client, ["*.tar"])
    assert server.traffic.requests["GET"] == 1


# The store


class TestArchiveObjectStore(StoreTests):
    @pytest.fixture
    def subject(self, server: Server, tmp_path: Path) -> Subject:
        root = two_archives(tmp_path)
        found = found_at(server, "s-0.tar", "s-1.tar")
        catalog = build_catalog(found.grown.tree, classes="dir", groups=GROUPS)
        index = index_of(found, catalog, chunks_of(found, catalog), seed=0)
        cells = runs(catalog, index.positions, CHUNK_SIZE)

        @contextmanager
        def unreadable(sample: int) -> Iterator[None]:
            assert int(index.positions.shard[catalog.members[catalog.member_at[sample]]]) == 1
            server.fault = lambda _method, path: REFUSED if "s-1" in path else None
            try:
                yield
            finally:
                server.fault = lambda _method, _path: None

        def content(entry: int) -> bytes:
            return (root / os.fsdecode(catalog.tree.path(entry))).read_bytes()

        client = client_of(server)
        versions = versions_of(client, ["s-0.tar", "s-1.tar"])
        store = ArchiveObjectStore(index, client, versions, SPEED, most_held_bytes=64 << 20)
        return Subject(store, catalog, cells, content, unreadable)


def test_an_archive_with_another_tag_is_not_read_though_its_length_and_time_are_the_same(
    server: Server, tmp_path: Path
) -> None:
    """Nothing else tells: an archive has no checksums."""
    write_tar(tmp_path / "a.tar", [member("c/0.jpg", b"zero"), member("c/1.jpg", b"one")])
    found = found_at(server, "a.tar")
    catalog = build_catalog(found.grown.tree, classes="any")
    client = client_of(server)
    versions = versions_of(client, ["a.tar"])
    store = ArchiveObjectStore(
        index_of(found, catalog, chunks_of(found, catalog), seed=0), client, versions, SPEED, most_held_bytes=64 << 20
    )
    server.tags_differ = True
    got = [file for read in store.reads(0, [0, 1]) for payload in read.run() for file in payload]
    assert {file.errno if isinstance(file, OSError) else None for file in got} == {errno.ESTALE}


def test_what_lies_between_the_files_of_a_sample_is_not_fetched(server: Server, tmp_path: Path) -> None:
    members = [
        member("c/0.jpg", b"zero"),
        member("c/1.jpg", type=b"1", linkname="c/0.jpg"),
        member("c/filler", bytes(17 << 20)),
        member("c/0.json", b"{}"),
        member("c/1.json", b"[]"),
    ]
    write_tar(tmp_path / "a.tar", members)
    found = found_at(server, "a.tar")
    catalog = build_catalog(found.grown.tree, classes="any", groups="stem")
    client = client_of(server)
    versions = versions_of(client, ["a.tar"])
    store = ArchiveObjectStore(
        index_of(found, catalog, chunks_of(found, catalog), seed=0), client, versions, SPEED, most_held_bytes=64 << 20
    )
    server.traffic.sent = 0
    got = {}
    for read in store.reads(0, [0, 1]):
        for sample, payload in zip(read.samples, read.run(), strict=True):
            got[sample] = [bytes(file.data) for file in payload if isinstance(file, FileBytes)]
    assert got == {0: [b"zero", b"{}"], 1: [b"zero", b"[]"]}
    assert server.traffic.sent < 100
