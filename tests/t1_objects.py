"""Packed datasets in object stores: addresses, profiles, the store's tests, retries, and the kept index."""

import asyncio
import ctypes
import errno
import json
import os
import re
import selectors
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import object_server
import process_limits
import pytest
import xxhash
from forks import EXECUTED
from object_server import CUT_SHORT, OTHER_BYTES, REFUSED, SILENT, STATUS_503, Server, serving, times
from packs import Options, catalog_of, pack_here
from patience import PATIENCE_S, until
from stores import bytes_in_buffers

from redoxfs.chunks import FileBytes, StorageSpeed, build_cells
from redoxfs.launch.objects import Objects
from redoxfs.native import Buffer
from redoxfs.objects import Address, AddressError, index, is_address, parse_address, upload
from redoxfs.objects.client import PART_BYTES, Client, Version
from redoxfs.objects.credentials import ProfileError, absolute_files, aws_settings, credential_files
from redoxfs.objects.errors import ObjectError
from redoxfs.objects.index import UNUSED_S, NotPackedError, _install, fetch, load
from redoxfs.objects.speed import measure
from redoxfs.objects.store import ObjectStore
from redoxfs.objects.writer import Writer
from redoxfs.packed import DamagedDatasetError, Index, load_index
from redoxfs.packed.index import FOLDER, MANIFEST, arrays_of, describe, save_arrays
from redoxfs.packed.packing import DRAFT, draft_of
from redoxfs.packed.positions import assign_positions
from redoxfs.packed.workers import Tally
from redoxfs.testing import CHUNK_SIZE, GROUPS, StoreTests, Subject, make_source, payloads

GROUPED = Options(chunk_size=CHUNK_SIZE, groups=GROUPS)

HELD_BYTES = 64 << 20

DEADLINE_S = PATIENCE_S


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_source(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def packed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    dst = tmp_path_factory.mktemp("packed") / "dst"
    pack_here(source, dst, GROUPED)
    return dst


@pytest.fixture
def server(packed: Path) -> Iterator[Server]:
    with serving(packed.parent) as server:
        yield server


def client_of(server: Server, deadline_s: float = DEADLINE_S) -> Client:
    return Client(parse_address(f"{server.url}/dst"), deadline_s=deadline_s)


@contextmanager
def store_at(client: Client, cache: Path, gap_s: float = 0.002) -> Iterator[tuple[Index, ObjectStore]]:
    fetched = fetch(client, cache)
    index = load(fetched)
    speed = StorageSpeed(seek_s=gap_s, bytes_per_s=200e6)
    yield index, ObjectStore(index, client, fetched.versions, speed, most_held_bytes=HELD_BYTES)


class TestObjectStore(StoreTests):
    @pytest.fixture(params=[0.002, 1e-9], ids=["gaps are read", "gaps are skipped"])
    def subject(
        self, source: Path, server: Server, tmp_path: Path, request: pytest.FixtureRequest
    ) -> Iterator[Subject]:
        with store_at(client_of(server), tmp_path, request.param) as (index, store):
            tree, positions = index.catalog.tree, index.positions
            lost: list[int] = []

            # The bytes change and the version does not, as when a store returns wrong bytes.
            true_bytes = store.fetch

            async def wrong_bytes(shard: int, begin: int, end: int) -> list[bytes]:
                pieces = [bytearray(piece) for piece in await true_bytes(shard, begin, end)]
                for entry in lost:
                    at = int(positions.data_at[entry]) - begin
                    if positions.shard[entry] == shard and 0 <= at < end - begin:
                        pieces[0][at] ^= 1
                return [bytes(piece) for piece in pieces]

            store.fetch = wrong_bytes  # type: ignore[method-assign]

            @contextmanager
            def unreadable(sample: int) -> Iterator[None]:
                lost.append(int(index.catalog.members[index.catalog.member_at[sample]]))
                try:
                    yield
                finally:
                    lost.clear()

            def content(entry: int) -> bytes:
                return (source / os.fsdecode(tree.path(entry))).read_bytes()

            yield Subject(store, index.catalog, index.cells, content, unreadable)


# Addresses


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3://bucket/a/prefix/", "s3://bucket/a/prefix"),
        ("S3://bucket", "s3://bucket"),
        ("gs://bucket//x", "gs://bucket/x"),
        ("https://host:8443/data", "https://host:8443/data"),
    ],
)
def test_an_address_has_one_form(text: str, url: str) -> None:
    assert is_address(text)
    assert parse_address(text).url == url


@pytest.mark.parametrize("path", ["/data", "data", "./s3:/x", "a:/b", "s3:/bucket"])
def test_a_path_is_no_address(path: str) -> None:
    assert not is_address(path)


@pytest.mark.parametrize(
    "text",
    [
        "ftp://host/x",
        "s3://",
        "s3:///x",
        "s3://b/../c",
        "https://me:hunter2@host/x",
        "https://host/x?sig=hunter2",
        "s3://me:hunter2/more@bucket/x",
        "s3:///me:hunter2@bucket/x",
        "https://me:hunter2/more@host/x",
    ],
)
def test_an_address_that_cannot_be_used_is_one_line_without_its_secret(text: str) -> None:
    with pytest.raises(AddressError) as raised:
        parse_address(text)
    assert "hunter2" not in str(raised.value)
    assert "\n" not in str(raised.value)


# Profiles


def profile(home: Path, credentials: str = "", config: str = "") -> dict[str, str]:
    (home / ".aws").mkdir()
    (home / ".aws/credentials").write_text(credentials)
    (home / ".aws/config").write_text(config)
    return {"HOME": str(home)}


def test_a_profile_gives_keys_region_and_endpoint(tmp_path: Path) -> None:
    environ = profile(
        tmp_path,
        "[default]\naws_access_key_id=A\naws_secret_access_key=S%\n[other]\naws_access_key_id=B\n",
        "[default]\nregion = eu-west-1\n[profile other]\nendpoint_url = http://minio:9000\n",
    )
    assert aws_settings(environ) == {"access_key_id": "A", "secret_access_key": "S%", "region": "eu-west-1"}
    assert aws_settings({**environ, "AWS_PROFILE": "other"}) == {
        "access_key_id": "B",
        "endpoint": "http://minio:9000",
    }


def test_the_environment_goes_before_a_profile(tmp_path: Path) -> None:
    environ = profile(tmp_path, "[default]\naws_access_key_id=A\naws_secret_access_key=S\naws_session_token=T\n")
    assert aws_settings({**environ, "AWS_ACCESS_KEY_ID": "E"}) == {}


def test_a_profile_that_needs_a_service_is_refused_with_the_command(tmp_path: Path) -> None:
    environ = profile(tmp_path, config="[default]\nsso_session = mine\n")
    with pytest.raises(ProfileError, match="export-credentials"):
        aws_settings(environ)


def test_a_profile_that_is_missing_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="'nobody'"):
        aws_settings({"HOME": str(tmp_path), "AWS_PROFILE": "nobody"})


def test_a_broken_file_is_refused_without_its_lines(tmp_path: Path) -> None:
    environ = profile(tmp_path, "aws_secret_access_key=hunter2\n")
    with pytest.raises(ProfileError) as raised:
        aws_settings(environ)
    assert "hunter2" not in str(raised.value)


def test_files_of_credentials_are_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {"HOME": "/home/someone", "AWS_CONFIG_FILE": "here", "GOOGLE_APPLICATION_CREDENTIALS": "../key.json"}
    assert absolute_files("s3", environ) == {"AWS_CONFIG_FILE": str(tmp_path / "here")}
    assert absolute_files("http", environ) == {}
    assert credential_files("s3", environ) == [str(tmp_path / "here"), "/home/someone/.aws/credentials"]
    assert credential_files("gs", environ) == [str(tmp_path.parent / "key.json")]


# The index


def test_the_index_is_fetched_once_and_kept(server: Server, tmp_path: Path) -> None:
    first = fetch(client_of(server), tmp_path)
    fetched = server.traffic.ranges
    assert (first.was_kept, fetched > 0) == (False, True)
    second = fetch(client_of(server), tmp_path)
    assert (second.was_kept, second.folder) == (True, first.folder)
    assert server.traffic.ranges == fetched


def test_a_damaged_kept_index_is_fetched_again(server: Server, tmp_path: Path) -> None:
    folder = fetch(client_of(server), tmp_path).folder
    path = folder / "index/names.npy"
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    again = fetch(client_of(server), tmp_path)
    assert not again.was_kept
    assert bytes(damaged) != path.read_bytes()
    assert [name for name in os.listdir(tmp_path / "indexes") if name.startswith(".")] == []


@pytest.mark.parametrize("is_damaged", [False, True])
def test_commands_that_install_an_index_at_once_leave_a_whole_one_in_place(
    server: Server, tmp_path: Path, is_damaged: bool
) -> None:
    place = fetch(client_of(server), tmp_path).folder
    manifest = (place / MANIFEST).read_bytes()
    sizes = {path.stem: path.stat().st_size for path in place.glob("index/*.npy")}
    before = place.stat().st_ino
    for _ in range(10):
        fresh = [Path(shutil.copytree(place, place.with_name(f".new-{number}"))) for number in range(6)]
        if is_damaged:
            (place / "index/names.npy").unlink()
        together = threading.Barrier(len(fresh))

        def install(folder: Path, together: threading.Barrier = together) -> None:
            together.wait()
            _install(folder, place, sizes, manifest)

        with ThreadPoolExecutor(len(fresh)) as threads:
            list(threads.map(install, fresh))
        load_index(place, lambda _shard, _name: False)
        assert (place.stat().st_ino == before) == (not is_damaged)
        # Whoever was slower drops its own.
        for folder in fresh:
            shutil.rmtree(folder, ignore_errors=True)
        assert os.listdir(place.parent) == [place.name]
        before = place.stat().st_ino


def test_an_index_that_was_installed_stays_whatever_others_found_before_it(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that has installed one loads it next, and must find it."""
    place = fetch(client_of(server), tmp_path).folder
    manifest = (place / MANIFEST).read_bytes()
    sizes = {path.stem: path.stat().st_size for path in place.glob("index/*.npy")}
    fresh = [Path(shutil.copytree(place, place.with_name(f".new-{number}"))) for number in range(6)]
    (place / "index/names.npy").unlink()
    together = threading.Barrier(len(fresh))
    judge, found = index._is_whole, count()

    def judge_slowly(*of: Any) -> bool:
        is_whole = judge(*of)
        if not is_whole:
            # Each later than the last, which installs its own meanwhile, unless the others wait.
            time.sleep(0.02 * next(found))
        return is_whole

    monkeypatch.setattr(index, "_is_whole", judge_slowly)

    def install(folder: Path) -> int:
        together.wait()
        _install(folder, place, sizes, manifest)
        return place.stat().st_ino

    with ThreadPoolExecutor(len(fresh)) as threads:
        assert set(threads.map(install, fresh)) == {place.stat().st_ino}


def test_a_fetch_removes_what_a_killed_one_left_days_ago(server: Server, tmp_path: Path) -> None:
    old, young = (tmp_path / f"indexes/.new-{name}" for name in ("old", "young"))
    for folder in (old, young):
        (folder / ".redoxfs").mkdir(parents=True)
    os.utime(old, (0, 0))
    fetch(client_of(server), tmp_path)
    assert not old.exists()
    assert young.exists()


def test_a_fetch_removes_the_index_of_a_dataset_that_was_not_mounted_for_months(server: Server, tmp_path: Path) -> None:
    kept = fetch(client_of(server), tmp_path).folder
    unused, other = kept.with_name("0" * 32), kept.with_name("of-somebody")
    for folder in (unused, other):
        folder.mkdir()
        os.utime(folder, (0, 0))
    os.utime(kept, (time.time() - UNUSED_S / 2,) * 2)
    for _ in range(2):
        again = fetch(client_of(server), tmp_path)
        assert again.was_kept
        # In use, so young again.
        assert time.time() - again.folder.stat().st_mtime < UNUSED_S / 4
    assert not unused.exists()
    assert other.exists()


def test_requests_in_flight_hold_what_the_line_carries_in_time(server: Server, tmp_path: Path) -> None:
    client = client_of(server)
    fetched = fetch(client, tmp_path)
    objects, index = Objects(client.address, fetched.versions, None), load(fetched)

    def held(bytes_per_s: float) -> int:
        store = objects.store(index, StorageSpeed(0.01, bytes_per_s), memory_bytes=1 << 30, timeout_s=16)
        assert isinstance(store, ObjectStore)
        assert store.most_held_bytes is not None
        return store.most_held_bytes

    assert [held(rate) for rate in (1e3, 1e7, 1e9)] == [PART_BYTES, 20_000_000, 128 << 20]


class VirtualTime(selectors.SelectSelector):
    """Waits only in ``now_s``."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now_s += timeout or 0
        return super().select(0)


class FarClient:
    """A store behind a line that all requests share. ``size``: bytes that were asked for."""

    def __init__(self, latency_s: float, bytes_per_s: float) -> None:
        self._latency_s = latency_s
        self._bytes_per_s = bytes_per_s
        self._free_at_s = 0.0
        self.size = 0

    def run(self, work: Coroutine[Any, Any, StorageSpeed]) -> StorageSpeed:
        clock = VirtualTime()
        loop = asyncio.SelectorEventLoop(clock)
        try:
            with patch.object(loop, "time", lambda: clock.now_s):
                return loop.run_until_complete(work)
        finally:
            loop.close()

    async def get(self, name: str, begin: int, end: int, version: Version) -> None:  # as the other one
        self.size += end - begin
        now_s = asyncio.get_running_loop().time()
        self._free_at_s = max(self._free_at_s, now_s) + (end - begin) / self._bytes_per_s
        await asyncio.sleep(self._latency_s + self._free_at_s - now_s)


@pytest.mark.parametrize(
    ("latency_s", "bytes_per_s"), [(0.02, 1.25e9), (0.001, 1e10), (0.05, 1e10), (0.02, 1e8), (0.2, 1e7)]
)
def test_a_measurement_takes_no_more_bytes_than_its_page_says(latency_s: float, bytes_per_s: float) -> None:
    page = (Path(__file__).parents[1] / "docs/objects.md").read_text()
    (most_mib,) = re.findall(r"requests of up to (\d+) MiB in all", page)
    client: Any = FarClient(latency_s, bytes_per_s)
    speed = measure(client, ["shard"], [Version(1 << 30, None, None)])
    assert client.size <= int(most_mib) << 20
    assert speed.bytes_per_s == pytest.approx(bytes_per_s, rel=0.2)


def test_a_fetch_that_fails_leaves_nothing(server: Server, tmp_path: Path) -> None:
    server.fault = times(1, REFUSED, part="sums.npy")
    with pytest.raises(ObjectError):
        fetch(client_of(server), tmp_path)
    assert os.listdir(tmp_path / "indexes") == []


def test_a_folder_that_is_not_packed_is_one_line(server: Server, tmp_path: Path) -> None:
    with pytest.raises(NotPackedError, match="redoxfs pack makes one"):
        fetch(Client(parse_address(f"{server.url}/nothing"), deadline_s=5), tmp_path)


def test_a_shard_that_is_missing_or_short_is_damage(source: Path, tmp_path: Path) -> None:
    dst = tmp_path / "here/dst"
    dst.parent.mkdir()
    pack_here(source, dst, GROUPED)
    shard = dst / "samples-000000.tar"
    with serving(dst.parent) as server:
        os.truncate(shard, 1000)
        with pytest.raises(DamagedDatasetError, match="1,000 bytes long"):
            fetch(client_of(server), tmp_path)
        shard.unlink()
        with pytest.raises(DamagedDatasetError, match="is missing"):
            fetch(client_of(server), tmp_path)


# Faults


def whole_chunk(store: ObjectStore, index: Index) -> list[FileBytes | OSError]:
    chunk = int((index.cells.cells >= 0).sum(axis=1).argmax())
    samples = index.cells.cells[chunk][index.cells.cells[chunk] >= 0].tolist()
    return [file for payload in payloads(store.reads(chunk, samples)).values() for file in payload]


@pytest.mark.parametrize("fault", [STATUS_503, CUT_SHORT, OTHER_BYTES])
def test_a_fault_that_passes_costs_a_retry(server: Server, tmp_path: Path, fault: str) -> None:
    with store_at(client_of(server), tmp_path) as (index, store):
        server.fault = times(1, fault, part="samples-")
        files = whole_chunk(store, index)
        assert len(files) > 100
        assert all(isinstance(file, FileBytes) for file in files)


def test_a_server_that_comes_back_in_time_costs_nothing_but_time(server: Server, tmp_path: Path) -> None:
    client = client_of(server)
    with store_at(client, tmp_path) as (index, store):
        server.stop()
        read = store.reads(0, index.cells.cells[0][:4].tolist())[0]
        came_back = []

        def come_back(method: str, path: str) -> None:
            came_back.append((method, path))

        server.fault = come_back
        with ThreadPoolExecutor(1) as threads:
            reading = threads.submit(read.run)
            try:
                # Nothing listens until an attempt was refused and made again.
                until(lambda: client.counts.retries >= 1)
            finally:
                server.start()
            assert all(isinstance(file, FileBytes) for payload in reading.result() for file in payload)
        assert came_back


def test_a_server_that_does_not_come_back_is_its_error(server: Server, tmp_path: Path) -> None:
    with store_at(client_of(server), tmp_path):
        server.stop()
        failing = client_of(server, 1)
        with pytest.raises(ObjectError) as raised:
            failing.run(failing.head("manifest.json"))
        assert raised.value.errno == errno.ECONNREFUSED
        server.start()


def test_a_deadline_ends_a_read_of_a_silent_server(server: Server, tmp_path: Path) -> None:
    with store_at(client_of(server), tmp_path) as (index, _):
        fetched = fetch(client_of(server), tmp_path)
        speed = StorageSpeed(seek_s=0.002, bytes_per_s=200e6)
        client = client_of(server, 2)
        store = ObjectStore(index, client, fetched.versions, speed, most_held_bytes=HELD_BYTES)
        server.fault = lambda _method, path: SILENT if "samples-" in path else None
        found = {file.errno for file in whole_chunk(store, index) if isinstance(file, OSError)}
        assert found == {errno.ETIMEDOUT}


@pytest.mark.parametrize("has_tags", [True, False])
def test_a_shard_that_is_replaced_is_an_error_and_never_mixed(source: Path, tmp_path: Path, has_tags: bool) -> None:
    dst = tmp_path / "here/dst"
    dst.parent.mkdir()
    pack_here(source, dst, GROUPED)
    with serving(dst.parent) as server:
        server.has_tags = has_tags
        with store_at(client_of(server), tmp_path) as (index, store):
            for shard in dst.glob("samples-*.tar"):
                stamp = shard.stat().st_mtime_ns
                # Other padding at the end: all files are as they were.
                with shard.open("r+b") as file:
                    file.seek(-1, os.SEEK_END)
                    file.write(b"x")
                os.utime(shard, ns=(stamp, stamp + 10**10))
            failed = {file.errno for file in whole_chunk(store, index) if isinstance(file, OSError)}
            assert failed == {errno.ESTALE}
            assert store._client.counts.retries == 0


@pytest.mark.parametrize("is_newer", [False, True])
def test_tags_that_differ_between_answers_count_no_longer(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, is_newer: bool
) -> None:
    """As those of several servers behind one name. Length, time and checksums tell then."""
    dst = tmp_path / "here/dst"
    dst.parent.mkdir()
    pack_here(source, dst, GROUPED)
    with serving(dst.parent) as server, store_at(client_of(server), tmp_path) as (index, store):
        server.tags_differ = True
        for shard in dst.glob("samples-*.tar") if is_newer else ():
            stamp = shard.stat().st_mtime_ns
            os.utime(shard, ns=(stamp, stamp + 10**10))
        failed = {file.errno for file in whole_chunk(store, index) if isinstance(file, OSError)}
        assert failed == ({errno.ESTALE} if is_newer else set())
        assert caplog.text.count("its ETag differs between answers") == (not is_newer)


@pytest.mark.parametrize(("fault", "number"), [(REFUSED, errno.EACCES), ("404", errno.ENOENT)])
def test_a_lasting_fault_is_not_retried(server: Server, tmp_path: Path, fault: str, number: int) -> None:
    with store_at(client_of(server), tmp_path) as (index, store):
        before = server.traffic.ranges
        server.fault = lambda method, path: fault if "samples-" in path and method == "GET" else None
        read = store.reads(0, index.cells.cells[0][:1].tolist())[0]
        errors = {file.errno for payload in read.run() for file in payload if isinstance(file, OSError)}
        assert errors == {number}
        assert server.traffic.ranges - before == 1


# Threads

READ_AFTER_START = """
import os, sys
from redoxfs.objects import parse_address
from redoxfs.objects.client import Client
client = Client(parse_address(sys.argv[1]), deadline_s=float(sys.argv[2]))
threads = lambda: set(os.listdir("/proc/self/task"))
before = threads()
client.start()
started = threads()
client.run(client.head("manifest.json"))
print(len(started - before) > 0, len(threads() - started))
"""


def test_a_start_leaves_no_thread_for_the_first_read_to_start(server: Server) -> None:
    """At a limit of processes none would start."""
    command = [sys.executable, "-c", READ_AFTER_START, f"{server.url}/dst", str(DEADLINE_S)]
    run = subprocess.run([*EXECUTED, *command], capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == ("True 0\n", "")


READ_BY_NAME_WHEN_TOLD = """
import sys, time
from redoxfs.objects import parse_address
from redoxfs.objects.client import Client
Client(parse_address(sys.argv[1]), deadline_s=float(sys.argv[2])).start()
time.sleep(10.5)  # obstore's threads end after ten seconds without work
print("ready", flush=True)
sys.stdin.readline()
# It has no connection yet, and so needs the address.
client = Client(parse_address(sys.argv[1]), deadline_s=float(sys.argv[2]))
print(client.run(client.head("manifest.json")).size)
"""


@pytest.mark.skipif(process_limits.FOLDER is None, reason="this process may not limit the processes of a control group")
def test_a_name_is_looked_up_at_a_limit_of_processes(server: Server) -> None:
    url = f"{server.url}/dst".replace("127.0.0.1", "localhost")
    command = [*EXECUTED, sys.executable, "-c", READ_BY_NAME_WHEN_TOLD, url, str(DEADLINE_S)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reading,
        process_limits.limited([reading.pid]) as limit,
    ):
        assert reading.stdout is not None
        assert reading.stdout.readline() == "ready\n"
        limit.reach()
        assert server.folder is not None
        size = (server.folder / "dst/manifest.json").stat().st_size
        assert reading.communicate("\n", timeout=PATIENCE_S)[0] == f"{size}\n"


START_WHEN_TOLD = """
import sys
from redoxfs.objects import parse_address
from redoxfs.objects.client import Client
client = Client(parse_address("http://127.0.0.1:1/dst"), deadline_s=1)
if sys.argv[1] == "has a loop":
    client.loop
print("ready", flush=True)
sys.stdin.readline()
try:
    client.start()
except RuntimeError as error:
    print(error)
"""


@pytest.mark.skipif(process_limits.FOLDER is None, reason="this process may not limit the processes of a control group")
@pytest.mark.parametrize("has_loop", ["has a loop", "has none"])
def test_a_start_at_a_limit_of_processes_is_an_error(has_loop: str) -> None:
    command = [*EXECUTED, sys.executable, "-W", "ignore", "-c", START_WHEN_TOLD, has_loop]
    with (
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as starting,
        process_limits.limited([starting.pid]) as limit,
    ):
        assert starting.stdout is not None
        assert starting.stdout.readline() == "ready\n"
        limit.reach()
        printed, _ = starting.communicate("\n", timeout=PATIENCE_S)
        assert re.search("can't (start new|spawn worker) thread", printed)


# Memory


def test_a_large_file_is_a_few_requests_and_its_bytes_are_kept_once(tmp_path: Path) -> None:
    source, dst = tmp_path / "source", tmp_path / "packed/dst"
    for label in ("cat", "dog"):
        (source / label).mkdir(parents=True)
        (source / label / "1.jpg").write_bytes(b"small")
    content = os.urandom(2 * PART_BYTES + 5)
    (source / "cat/2.jpg").write_bytes(content)
    dst.parent.mkdir()
    pack_here(source, dst)
    with serving(dst.parent) as server, store_at(client_of(server), tmp_path) as (index, store):
        sample = int(index.catalog.sample_of[index.catalog.tree.find(b"cat/2.jpg")])
        before, requests = bytes_in_buffers(), server.traffic.ranges
        ((file,),) = store.reads(0, [sample])[0].run()
        assert isinstance(file, FileBytes)
        assert server.traffic.ranges - requests == 3
        assert bytes(file.data) == content
        assert Buffer.total_bytes() - before == len(content)


def test_parts_of_a_large_file_are_as_many_at_once_as_the_line_carries_in_time(server: Server, tmp_path: Path) -> None:
    """Otherwise each would take as long as the whole file, and none would come before its deadline."""

    class Impatient(FarClient):
        longest_s = 0.0

        async def get(self, name: str, begin: int, end: int, version: Version) -> None:
            began_s = asyncio.get_running_loop().time()
            await super().get(name, begin, end, version)
            self.longest_s = max(self.longest_s, asyncio.get_running_loop().time() - began_s)

    bytes_per_s, timeout_s = 12e6, 8.0
    client: Any = Impatient(0.01, bytes_per_s)
    fetched = fetch(client_of(server), tmp_path)
    store = Objects(client_of(server).address, fetched.versions, None).store(
        load(fetched), StorageSpeed(0.01, bytes_per_s), memory_bytes=1 << 30, timeout_s=timeout_s
    )
    assert isinstance(store, ObjectStore)
    store._client = client
    client.run(store.fetch(0, 0, 8 * PART_BYTES))
    assert client.size == 8 * PART_BYTES
    # An attempt is given half of the time.
    assert client.longest_s < timeout_s / 2


def test_a_version_by_a_weak_tag_is_compared_here(server: Server) -> None:
    client = client_of(server)
    version = client.run(client.head("manifest.json"))
    other = Version(version.size, 'W/"other"', None)
    with pytest.raises(ObjectError) as raised:
        client.run(client.get("manifest.json", 0, 10, other))
    assert raised.value.errno == errno.ESTALE


def test_an_error_has_no_secret(monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path) -> None:
    for name, value in object_server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "hunter1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    server.fault = lambda _method, _path: REFUSED
    client = Client(Address("s3", "s3://bucket/dst"), deadline_s=5)
    with pytest.raises(ObjectError) as raised:
        client.run(client.head("manifest.json"))
    assert raised.value.errno == errno.EACCES
    assert "hunter" not in str(raised.value)
    assert raised.value.strerror == "s3://bucket/dst/manifest.json: permission denied (403)"


def answers(status: str, *headers: str) -> bytes:
    """Two bytes of an object, of a server that sends its headers so."""
    always = ("Connection: close", 'ETag: "x"', "Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT")
    return "\r\n".join((f"HTTP/1.1 {status}", *always, *headers, "", "ab")).encode()


WITH_LENGTH = "Content-Length: 2"
SECOND = "Content-Range: bytes 2-3/4"


def refusal(status: str, code: str) -> bytes:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>hunter2</Message></Error>"
    return f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


ARCHIVED = "the object is archived, and has to be restored first"


@pytest.mark.parametrize(
    ("answer", "words", "lasts"),
    [
        (answers("301 Moved", WITH_LENGTH), "is elsewhere; is the region right (AWS_REGION)?", True),
        (answers("302 Found", "Location: /here", WITH_LENGTH), "is redirected without end", False),
        (answers("200 OK", WITH_LENGTH), "the server sends no ranges of an object", True),
        (answers("206 Partial", WITH_LENGTH), "the server does not say which range it sent", False),
        (answers("206 Partial", WITH_LENGTH, "Content-Range: x"), "the server does not say which range it sent", False),
        (answers("206 Partial", WITH_LENGTH, SECOND), "the server sent another range than requested", False),
        (answers("206 Partial", "Content-Range: bytes 0-1/4"), "the server does not say how long the object is", False),
        (refusal("403 Forbidden", "InvalidObjectState"), f"{ARCHIVED} (403 InvalidObjectState)", True),
        (refusal("409 Conflict", "BlobArchived"), f"{ARCHIVED} (409 BlobArchived)", True),
        (refusal("403 Forbidden", "AccessDenied"), "permission denied (403 AccessDenied)", True),
    ],
)
def test_an_answer_of_no_use_is_not_called_a_broken_connection(
    monkeypatch: pytest.MonkeyPatch, answer: bytes, words: str, lasts: bool
) -> None:
    # Longer than the deadline: there is one attempt.
    monkeypatch.setattr("redoxfs.objects.client.FIRST_PAUSE_S", 1e12)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            client = Client(Address("http", f"http://127.0.0.1:{server.server_address[1]}"), deadline_s=PATIENCE_S)
            with pytest.raises(ObjectError) as raised:
                client.run(client.get("a.tar", 0, 2, Version(4, None, None)))
        finally:
            server.shutdown()
    assert str(raised.value).endswith(f"/a.tar: {words}")
    assert raised.value.lasts == lasts


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("AWS_ENDPOINT_URL", "127.0.0.1:9000", "is no address of a server; write https://HOST or http://HOST:PORT"),
        ("AWS_ENDPOINT_URL", "ftp://127.0.0.1", "is no address of a server; write https://HOST or http://HOST:PORT"),
        ("AWS_ENDPOINT_URL", "http://a b", "is no address of a server; write https://HOST or http://HOST:PORT"),
        ("AWS_ENDPOINT_URL", "http://ä.example", "is no address of a server; write https://HOST or http://HOST:PORT"),
        ("AWS_ENDPOINT_URL", "HTTP://example", "is no address of a server; write https://HOST or http://HOST:PORT"),
        ("AWS_ENDPOINT_URL", "https://[b", "is no address of a server; write https://HOST or http://HOST:PORT"),
        ("AWS_ACCESS_KEY_ID", "key\r\n", "has a line break or another control character in it"),
        ("AWS_SESSION_TOKEN", "tok\nen", "has a line break or another control character in it"),
    ],
)
def test_a_setting_that_cannot_be_sent_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], variable: str, value: str, words: str
) -> None:
    settings = {
        "AWS_ACCESS_KEY_ID": "A",
        "AWS_SECRET_ACCESS_KEY": "S",
        "AWS_REGION": "R",
        "AWS_CONFIG_FILE": "/dev/null",
    }
    for name, text in object_server.environment(**{**settings, variable: value}).items():
        monkeypatch.setenv(name, text)
    # Longer than the deadline: there is one attempt.
    monkeypatch.setattr("redoxfs.objects.client.FIRST_PAUSE_S", 1e12)
    client = Client(Address("s3", "s3://bucket/dst"), deadline_s=PATIENCE_S)
    with pytest.raises(ObjectError) as raised:
        client.run(client.head("manifest.json"))
    assert (raised.value.strerror, raised.value.lasts) == (f"{variable} {words}", True)
    # Not even of a thread of obstore, which would say that it panicked.
    assert capfd.readouterr().err == ""


class _Redirecting(BaseHTTPRequestHandler):
    """Redirects each request to ``location``; None: answers it. Notes the session token of S3, and that it came."""

    location: ClassVar[str | None] = None
    came: ClassVar[list[str | None]] = []

    def _answer(self) -> None:
        self.came.append(self.headers.get("x-amz-security-token"))
        if self.location is not None:
            self.send_response(307)
            self.send_header("Location", self.location + self.path)
            self.send_header("Content-Length", "0")
        else:
            self.send_response(200)
            self.send_header("ETag", '"x"')
            self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
            self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD = _answer  # noqa: N815 - the names of http.server

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def redirecting(location: str | None) -> Iterator[tuple[int, list[str | None]]]:
    """A server's port, and the session tokens that came."""

    class Handler(_Redirecting):
        came: ClassVar[list[str | None]] = []

    Handler.location = location
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield server.server_address[1], Handler.came
        finally:
            server.shutdown()


def test_a_redirect_takes_no_session_token_to_another_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter1")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "hunter2")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with redirecting(None) as (port, stolen), redirecting(f"http://localhost:{port}") as (endpoint, came):
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{endpoint}")
        client = Client(Address("s3", "s3://bucket/dst"), deadline_s=20)
        with pytest.raises(ObjectError, match="is redirected to another server, which is not followed") as raised:
            client.run(client.head("manifest.json"))
        assert raised.value.lasts
        assert (came, stolen) == (["hunter2"], [])
        # Without credentials a web server may redirect: nothing but the address goes there.
        plain = Client(Address("http", f"http://127.0.0.1:{endpoint}/dst"), deadline_s=20)
        plain.run(plain.head("manifest.json"))
        assert stolen == [None]


@pytest.mark.parametrize(
    ("scheme", "variable", "word"),
    [
        ("s3", "AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP"),
        ("s3", "AWS_ENDPOINT_URL_S3", "AWS_ALLOW_HTTP"),
        ("az", "AZURE_STORAGE_ENDPOINT", "AZURE_ALLOW_HTTP"),
    ],
)
def test_a_server_without_tls_beyond_this_machine_has_to_be_allowed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scheme: str, variable: str, word: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "someone")
    monkeypatch.delenv(word, raising=False)
    for host in ("minio.example", "10.0.0.1", "127.0.0.1.example"):
        monkeypatch.setenv(variable, f"http://{host}:9000")
        with pytest.raises(ObjectError, match=f"the server at {host} is without TLS, .*{word}=true"):
            Client(Address(scheme, f"{scheme}://bucket/dst"), deadline_s=1).store  # noqa: B018 - it is made there
    monkeypatch.setenv(word, "true")
    assert Client(Address(scheme, f"{scheme}://bucket/dst"), deadline_s=1).store
    monkeypatch.delenv(word)
    for url in ("http://localhost:9000", "http://127.0.0.2:9000", "http://[::1]:9000", "https://minio.example"):
        monkeypatch.setenv(variable, url)
        assert Client(Address(scheme, f"{scheme}://bucket/dst"), deadline_s=1).store


# Packs


class Shelf:
    """A store with one user, who is a `Writer`."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def put(self, name: str, data: bytes) -> None:
        self.objects[name] = data

    def put_parts(self, name: str, parts: Iterator[bytes]) -> str:
        self.put(name, b"".join(parts))
        return xxhash.xxh3_64_hexdigest(self.objects[name])

    def read_if_there(self, name: str, _most_bytes: int) -> bytes | None:
        return self.objects.get(name)

    def version_of(self, name: str) -> Version:
        return Version(len(self.objects[name]), xxhash.xxh3_64_hexdigest(self.objects[name]), None)


def test_a_finished_shard_of_another_pack_is_not_kept(tmp_path: Path) -> None:
    shelf = Shelf()
    tally = Tally((ctypes.c_longlong * 3)(), threading.Lock())

    def pack_a_shard(content: bytes) -> tuple[bool, bool]:
        """A pack at the same address, whose draft was removed. Returns whether its shard was there, and was kept."""
        source, folder = tmp_path / content.decode(), tmp_path / f"draft of {content.decode()}"
        if not folder.exists():
            (source / "class").mkdir(parents=True)
            (folder / FOLDER).mkdir(parents=True)
            (source / "class/1.jpg").write_bytes(content)
            catalog = catalog_of(source)
            cells = build_cells(catalog.class_of, catalog.sample_bytes, chunk_size=8, seed=0)
            positions = assign_positions(catalog, cells, shard_bytes=1 << 30)
            records = save_arrays(folder / FOLDER, arrays_of(catalog, cells, positions))
            manifest = describe(catalog, cells, positions, seed=0, asked={})
            (folder / DRAFT).write_bytes(draft_of(manifest, records))
        state = upload._prepare((source, folder, parse_address("s3://bucket/p"), DEADLINE_S))
        try:
            _, *found = upload._carry_out(replace(state, writer=shelf), 0, tally)  # type: ignore[arg-type]
        finally:
            os.close(state.root_fd)
        assert content in shelf.objects[state.shards.positions.shard_names[0]]
        return found[0], found[1]

    assert pack_a_shard(b"one") == (False, False)
    assert pack_a_shard(b"one") == (True, True)
    # It is not said to be damaged.
    assert pack_a_shard(b"two") == (False, False)
    assert pack_a_shard(b"one") == (False, False)
    # As an earlier version wrote it.
    (record,) = (name for name in shelf.objects if name.endswith(".record"))
    head, _, sums = shelf.objects[record].partition(b"\n")
    shelf.objects[record] = json.dumps({"e_tag": json.loads(head)["e_tag"]}).encode() + b"\n" + sums
    assert pack_a_shard(b"one") == (False, False)
    assert pack_a_shard(b"one") == (True, True)
    (shard,) = (name for name in shelf.objects if name != record)
    shelf.objects[shard] += b"damage"
    assert pack_a_shard(b"one") == (True, False)


def test_a_folder_that_a_console_has_made_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    itself = "<Contents><Key>p/</Key><LastModified>2024-01-01T00:00:00Z</LastModified><Size>0</Size></Contents>"
    answer = f"<ListBucketResult><IsTruncated>false</IsTruncated>{itself}</ListBucketResult>"
    (tmp_path / "bucket?list-type=2&prefix=p%2F").write_text(answer)
    with serving(tmp_path) as server:
        for name, value in object_server.environment(AWS_SKIP_SIGNATURE="true", AWS_ENDPOINT_URL=server.url).items():
            monkeypatch.setenv(name, value)
        assert Writer(parse_address("s3://bucket/p"), DEADLINE_S).names(most=1) == []
