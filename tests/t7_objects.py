"""Packed datasets in a real S3 server: packs, epochs on one node and on three, its requests, and faults.

A proxy in front of the server counts requests and bytes, and fails on demand.
"""

import json
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from images import make_images, path_in, read_each
from machine import Machine
from object_server import CUT_SHORT, REFUSED, SILENT, SLOW, STATUS_503, Server, serving, times
from patience import PATIENCE_S, SLOWNESS, until
from ports import reserve
from seaweed import BUCKET, Seaweed, program, seaweed, settings
from tars import tar_of

pytestmark = pytest.mark.skipif(program() is None, reason="SeaweedFS is not installed")

CLASSES = {f"n0000010{number}": 100 for number in range(5)}
FILES = sum(CLASSES.values())
SHARDS = 5
ADDRESS = f"s3://{BUCKET}/data"
PACK = ("--chunk-size", "8", "--shard-size", "8MiB")
MEMORY_BYTES = 24 << 20
SPEED = ("--storage-speed", "1000,100MiB")
MEMORY = ("--memory", "16MiB", *SPEED)
DEADLINE_S = 10 * SLOWNESS
"""Enough for a read of a server that answers, and soon over at one that does not."""

NEVER = "3600"
"""As a deadline: longer than any test."""

PATIENT = ("--peer-timeout", NEVER)
"""No node is lost, and a slow one must not be taken for lost."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    make_images(folder, CLASSES, typical_bytes=100_000)
    return folder


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    with seaweed(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@pytest.fixture(scope="module")
def packed(s3: Seaweed, source: Path) -> str:
    command = [sys.executable, "-m", "redoxfs", "pack", str(source), ADDRESS, *PACK]
    subprocess.run(command, check=True, capture_output=True, env=settings(s3.port))
    return ADDRESS


@pytest.fixture
def proxy(s3: Seaweed) -> Iterator[Server]:
    with serving(behind=s3.port) as server:
        yield server


@pytest.fixture
def machine(machine: Machine, proxy: Server) -> Machine:
    machine.environment = {
        **settings(proxy.port),
        **{name: value for name, value in machine.environment.items() if name.startswith("XDG_")},
    }
    return machine


def read_all(*roots: Path, seed: int = 0) -> Counter[str]:
    """Read each file at one of ``roots``, in a random order: the paths that the bytes were made for."""
    names = sorted(str(path.relative_to(roots[0])) for path in roots[0].glob("train/*/*"))
    random.Random(seed).shuffle(names)
    paths = [roots[number % len(roots)] / name for number, name in enumerate(names)]
    assert len(paths) == FILES
    return read_each(paths)


def is_readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True


def expected(source: Path) -> Counter[str]:
    return Counter(str(path.relative_to(source)) for path in source.glob("train/*/*") if path.stat().st_size)


def size_of_shards(machine: Machine) -> int:
    report = json.loads(machine.ok("inspect", ADDRESS, "--json").stdout)
    return int(report["shards_bytes"])


# Packs


def test_what_is_packed_is_verified_and_inspected(machine: Machine, packed: str) -> None:
    assert "all as packed" in machine.ok("verify", packed).stderr
    report = json.loads(machine.ok("inspect", packed, "--json").stdout)
    assert (report["source"], report["packed"], report["samples"]) == (packed, True, FILES)
    assert report["shards"] > 3


def test_a_second_pack_uploads_nothing(machine: Machine, packed: str, source: Path, proxy: Server) -> None:
    assert "holds this dataset already" in machine.ok("pack", source, packed, *PACK).stderr
    assert (proxy.traffic.requests["PUT"], proxy.traffic.requests["POST"]) == (0, 0)


def test_other_options_are_refused(machine: Machine, packed: str, source: Path) -> None:
    done = machine.run("pack", source, packed, "--chunk-size", "4")
    assert done.returncode == 4
    assert "name a new folder" in done.stderr


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_killed_pack_has_no_manifest_and_resumes(machine: Machine, source: Path, proxy: Server, jobs: str) -> None:
    dst = f"s3://{BUCKET}/killed{jobs}"
    pack: list[subprocess.Popen[bytes]] = []
    seen = []

    def kill_after_some_shards(method: str, path: str) -> None:
        if method == "PUT" and path.endswith(".record"):
            seen.append(path)
            if len(seen) == 3:
                pack[0].send_signal(signal.SIGKILL)

    proxy.fault = kill_after_some_shards
    command = machine.command("pack", source, dst, *PACK, "--jobs", jobs)
    # It leaves its temporary files.
    environment = machine.environment | {"TMPDIR": str(machine.folder)}
    pack.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE))
    assert pack[0].wait(PATIENCE_S) == -signal.SIGKILL
    pack[0].communicate()
    done = machine.run("mount", dst, machine.mnt)
    assert done.returncode == 9
    assert "the pack is unfinished" in done.stderr
    again = machine.ok("pack", source, dst, *PACK, "--jobs", jobs)
    assert "of an interrupted pack" in again.stderr
    assert "all as packed" in machine.ok("verify", dst).stderr
    # The records are gone.
    assert not any("record" in path for path in proxy.paths[-1:])


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize("part", ["plan.json", ".tar", ".record"])
def test_ctrl_c_ends_a_pack_to_a_silent_store(
    machine: Machine, source: Path, proxy: Server, part: str, jobs: str
) -> None:
    dst = f"s3://{BUCKET}/silent{jobs}-{part.strip('.')}"
    is_silent = threading.Event()

    def fault(method: str, path: str) -> str | None:
        if method == "GET" or part not in path:
            return None
        is_silent.set()
        return SILENT

    proxy.fault = fault
    # No deadline of a request ends the pack meanwhile.
    command = machine.command("pack", source, dst, *PACK, "--jobs", jobs, "--timeout", NEVER)
    with subprocess.Popen(command, env=machine.environment, stderr=subprocess.PIPE, text=True) as pack:
        try:
            assert is_silent.wait(PATIENCE_S)
            pack.send_signal(signal.SIGINT)
            told = pack.communicate(timeout=PATIENCE_S)[1]
        finally:
            pack.kill()
    assert pack.returncode == 130
    assert told.splitlines()[-1] == "redoxfs: interrupted"
    proxy.fault = lambda _method, _path: None
    machine.ok("pack", source, dst, *PACK, "--jobs", jobs)
    assert "all as packed" in machine.ok("verify", dst).stderr


def test_a_pack_survives_a_server_that_fails_now_and_then(machine: Machine, source: Path, proxy: Server) -> None:
    dst = f"s3://{BUCKET}/often"
    at_random = random.Random(0)
    proxy.fault = lambda _method, _path: STATUS_503 if at_random.random() < 0.1 else None
    machine.ok("pack", source, dst, *PACK)
    assert "all as packed" in machine.ok("verify", dst).stderr


def test_a_source_that_changes_ends_a_pack_without_a_manifest(machine: Machine, tmp_path: Path, proxy: Server) -> None:
    make_images(tmp_path / "changing", {"n00000001": 20}, typical_bytes=50_000)
    path = tmp_path / "changing/train/n00000001/train-n00000001-7.png"

    def change(method: str, name: str) -> None:
        if method == "PUT" and name.endswith("plan.json"):
            path.write_bytes(b"other")

    proxy.fault = change
    dst = f"s3://{BUCKET}/changing"
    done = machine.run("pack", tmp_path / "changing", dst, "--classes", "none")
    assert done.returncode == 3
    assert "has changed since it was scanned" in done.stderr
    assert machine.run("inspect", dst).returncode == 9


# Epochs


@pytest.mark.parametrize("policy", ["pool", "slot"])
def test_an_epoch_is_exact_and_reads_each_byte_once(
    machine: Machine, packed: str, source: Path, proxy: Server, policy: str
) -> None:
    size = size_of_shards(machine)
    machine.ok("mount", packed, machine.mnt, "--memory", f"{MEMORY_BYTES}", *SPEED, "--policy", policy)
    before = proxy.traffic.sent
    for epoch in range(2):
        assert read_all(machine.mnt, seed=epoch) == expected(source)
    # Memory has samples of the third epoch already.
    assert proxy.traffic.sent - before <= 2 * 1.02 * size + MEMORY_BYTES
    assert machine.stats()["errors"] == 0


def test_three_nodes_read_each_byte_once_together(machine: Machine, packed: str, source: Path, proxy: Server) -> None:
    size = size_of_shards(machine)
    addresses = [f"127.0.0.1:{port}" for port in reserve(3)]
    mountpoints = machine.mount_nodes(packed, addresses, "--memory", f"{MEMORY_BYTES}", *SPEED, "--insecure", *PATIENT)
    before = proxy.traffic.sent
    for epoch in range(2):
        assert read_all(*mountpoints, seed=epoch) == expected(source)
    assert proxy.traffic.sent - before <= 2 * 1.02 * size + 3 * MEMORY_BYTES


def until_kept(machine: Machine, source: Path, copies: Path, *mountpoints: Path) -> None:
    """Read epochs until all samples are in the cache: what a writer could not take in one, it takes in a later one."""

    def are_kept() -> bool:
        assert read_all(*mountpoints) == expected(source)
        (told,) = json.loads(machine.ok("cache", "ls", copies, "--json").stdout)
        return int(told["files"]) >= FILES

    until(are_kept)
    # Of this epoch, some samples were asked of the store before their copies were written.
    assert read_all(*mountpoints) == expected(source)


@pytest.mark.parametrize("policy", ["pool", "slot"])
def test_an_epoch_from_the_cache_costs_no_request(
    machine: Machine, packed: str, source: Path, proxy: Server, tmp_path: Path, policy: str
) -> None:
    size = size_of_shards(machine)
    options = ("--memory", f"{MEMORY_BYTES}", *SPEED, "--policy", policy, "--cache", str(tmp_path / "copies"))
    machine.ok("mount", packed, machine.mnt, *options)
    before = proxy.traffic.sent
    assert read_all(machine.mnt) == expected(source)
    # Memory has samples of the second epoch already.
    assert proxy.traffic.sent - before <= 1.02 * size + MEMORY_BYTES
    until_kept(machine, source, tmp_path / "copies", machine.mnt)
    requests = len(proxy.paths)
    for epoch in range(2):
        assert read_all(machine.mnt, seed=epoch) == expected(source)
    assert len(proxy.paths) == requests
    machine.ok("umount", machine.mnt)
    machine.ok("mount", packed, machine.mnt, *options)
    requests = len(proxy.paths)
    assert read_all(machine.mnt) == expected(source)
    assert len(proxy.paths) == requests


def test_a_warm_cache_serves_while_the_store_refuses(
    machine: Machine, packed: str, source: Path, proxy: Server, tmp_path: Path
) -> None:
    machine.ok("warmup", packed, "--cache", tmp_path / "copies", "--jobs", "8")
    machine.ok("cache", "verify", tmp_path / "copies")
    machine.ok("mount", packed, machine.mnt, *MEMORY, "--cache", tmp_path / "copies")
    proxy.fault = lambda _method, _path: REFUSED
    for epoch in range(2):
        assert read_all(machine.mnt, seed=epoch) == expected(source)
    assert machine.stats()["errors"] == 0


def test_nodes_with_local_storage_share_the_requests_and_then_make_none(
    machine: Machine, packed: str, source: Path, proxy: Server, tmp_path: Path
) -> None:
    size = size_of_shards(machine)
    addresses = [f"127.0.0.1:{port}" for port in reserve(3)]
    local = ("--storage", "local", "--insecure", "--cache", str(tmp_path / "copies"))
    mountpoints = machine.mount_nodes(packed, addresses, "--memory", f"{MEMORY_BYTES}", *SPEED, *local, *PATIENT)
    before = proxy.traffic.sent
    assert read_all(*mountpoints) == expected(source)
    assert proxy.traffic.sent - before <= 1.02 * size + 3 * MEMORY_BYTES
    until_kept(machine, source, tmp_path / "copies", *mountpoints)
    requests = len(proxy.paths)
    for epoch in range(2):
        assert read_all(*mountpoints, seed=epoch) == expected(source)
    assert len(proxy.paths) == requests


# Faults


@pytest.mark.parametrize("fault", [STATUS_503, CUT_SHORT, SLOW])
def test_an_epoch_survives_faults_that_pass(
    machine: Machine, packed: str, source: Path, proxy: Server, fault: str
) -> None:
    machine.ok("mount", packed, machine.mnt, *MEMORY)
    at_random = random.Random(0)
    proxy.fault = lambda method, _path: fault if method == "GET" and at_random.random() < 0.2 else None
    assert read_all(machine.mnt) == expected(source)


def test_a_server_that_is_killed_and_started_again_costs_no_sample(
    machine: Machine, packed: str, source: Path, s3: Seaweed, proxy: Server
) -> None:
    machine.ok("mount", packed, machine.mnt, *MEMORY, "--timeout", NEVER)
    seen = []

    def kill(method: str, _path: str) -> None:
        if method == "GET":
            seen.append(method)
            if len(seen) == 10:
                s3.kill()

    proxy.fault = kill
    with ThreadPoolExecutor(1) as pool:
        epoch = pool.submit(read_all, machine.mnt)
        try:
            # One request more has failed by then, and others wait.
            while proxy.failed < 5 and not epoch.done():
                proxy.any_failed.wait(1)
        finally:
            s3.start()
        assert epoch.result(2 * PATIENCE_S) == expected(source)
    assert proxy.failed >= 5


def test_a_silent_server_ends_an_open_at_the_deadline(machine: Machine, packed: str, proxy: Server) -> None:
    machine.ok("mount", packed, machine.mnt, *MEMORY, "--timeout", str(DEADLINE_S))
    proxy.fault = lambda method, _path: SILENT if method == "GET" else None
    path = next(machine.mnt.glob("train/*/*"))
    with pytest.raises(OSError):
        path.read_bytes()
    # Reads that are under way still hang; the opens that wait for them end with them.
    proxy.fault = lambda _method, _path: None
    until(lambda: is_readable(path))


def test_wrong_keys_are_one_line(machine: Machine, packed: str) -> None:
    machine.environment["AWS_SECRET_ACCESS_KEY"] = "wrong"
    done = machine.run("mount", packed, machine.mnt)
    assert done.returncode == 3
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("redoxfs: ")]
    assert line == f"redoxfs: {packed}/manifest.json: permission denied (403 SignatureDoesNotMatch)"


def test_an_object_that_changes_is_an_error_and_never_mixed(machine: Machine, source: Path) -> None:
    dst = f"s3://{BUCKET}/replaced"
    machine.ok("pack", source, dst, *PACK)
    machine.ok("mount", dst, machine.mnt, *MEMORY)
    script = (
        "import obstore, obstore.store\n"
        f"store = obstore.store.from_url({dst!r}, client_options={{'allow_http': True}})\n"
        "for batch in obstore.list(store):\n"
        "    for entry in batch:\n"
        "        if entry['path'].startswith('samples-'):\n"
        "            obstore.put(store, entry['path'], bytes(entry['size']))\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env=machine.environment)
    failed = 0
    for path in machine.mnt.glob("train/*/*"):
        try:
            data = path.read_bytes()
        except OSError:
            failed += 1
        else:
            # What was in memory already.
            assert not data or path_in(data)
    assert failed > FILES / 2
    assert "the object has changed since the mount" in machine.log()


# Archives that redoxfs did not write


@pytest.fixture(scope="module")
def archives(s3: Seaweed, source: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """In the store: a tar of a tar for each class, and shards of KEY.png and KEY.json in two folders."""
    folder = tmp_path_factory.mktemp("archives")
    inner = {}
    for label in CLASSES:
        files = {path.name: path.read_bytes() for path in sorted((source / "train" / label).iterdir())}
        inner[f"{label}.tar"] = tar_of(folder / "inner", files).read_bytes()
    tar_of(folder / "all.tar", inner)
    images = [source / path for path in sorted(expected(source))]
    for shard in range(SHARDS):
        files = {}
        for path in images[shard::SHARDS]:
            files[path.name] = path.read_bytes()
            files[f"{path.stem}.json"] = json.dumps({"of": path.stem}).encode()
        tar_of(folder / f"shards/{shard % 2}/train-{shard:03}.tar", files)
    (folder / "inner").unlink()
    upload(s3, folder, "archives")
    return f"s3://{BUCKET}/archives"


def upload(s3: Seaweed, folder: Path, prefix: str) -> None:
    """Put all files of a folder below a prefix."""
    script = (
        "import os, sys, obstore, obstore.store\n"
        f"store = obstore.store.from_url('s3://{BUCKET}/{prefix}', client_options={{'allow_http': True}})\n"
        "for above, _, names in os.walk(sys.argv[1]):\n"
        "    for name in names:\n"
        "        path = os.path.join(above, name)\n"
        "        obstore.put(store, os.path.relpath(path, sys.argv[1]), open(path, 'rb'))\n"
    )
    subprocess.run([sys.executable, "-c", script, folder], check=True, env=settings(s3.port))


def test_an_epoch_of_a_nested_archive_is_exact_and_reads_each_byte_once(
    machine: Machine, archives: str, source: Path, proxy: Server
) -> None:
    said = machine.ok("mount", "--classes", "dir", f"{archives}/all.tar", machine.mnt, *MEMORY).stderr
    assert f"archives: {FILES} files in 1 archive, indexed in" in said
    size = sum(path.stat().st_size for path in machine.mnt.glob("n*/*"))
    before = proxy.traffic.sent
    for _ in range(2):
        assert read_each([*machine.mnt.glob("n*/*")]) == expected(source)
    assert proxy.traffic.sent - before <= 2 * 1.05 * size + (16 << 20)


@pytest.mark.parametrize("names", ["shards/*/train-*.tar", "shards/{0,1}/*.tar"])
def test_the_files_of_a_key_come_together_over_shards(
    machine: Machine, archives: str, source: Path, proxy: Server, names: str
) -> None:
    said = machine.ok("mount", "--classes", "any", f"{archives}/{names}", machine.mnt, *MEMORY).stderr
    stems = {Path(path).stem: 1 for path in expected(source)}
    assert f"archives: {2 * len(stems)} files in {SHARDS} archives, indexed in" in said

    def read(path: Path) -> str:
        stem = Path(path_in(path.read_bytes())).stem
        assert json.loads(path.with_suffix(".json").read_bytes()) == {"of": stem}
        return stem

    for _ in range(2):
        with ThreadPoolExecutor(4) as threads:
            found = Counter(threads.map(read, sorted(machine.mnt.glob("*/*.png"))))
        assert found == stems
    machine.ok("umount", machine.mnt)
    proxy.traffic.requests.clear()
    machine.ok("mount", "--classes", "any", f"{archives}/{names}", machine.mnt, *MEMORY)
    # A list of each folder that a wildcard is in, and the version of each archive.
    assert proxy.traffic.requests["HEAD"] == SHARDS
    assert proxy.traffic.requests["GET"] <= 3


def test_an_archive_that_is_replaced_is_indexed_again_and_fails_where_it_is_mounted(
    machine: Machine, s3: Seaweed, tmp_path: Path
) -> None:
    source = f"s3://{BUCKET}/swapped/s-{{0..3}}.tar"
    for number in range(4):
        tar_of(tmp_path / f"shards/s-{number}.tar", {f"{number}-{at:02}.jpg": b"x" * 100_000 for at in range(20)})
    upload(s3, tmp_path / "shards", "swapped")
    machine.ok("mount", "--classes", "any", source, machine.mnt, "--memory", "1MiB", *SPEED)
    tar_of(tmp_path / "shards/s-2.tar", {f"2-{at:02}.jpg": b"y" * 100_000 for at in range(20)})
    upload(s3, tmp_path / "shards", "swapped")
    with pytest.raises(OSError):
        _ = [path.read_bytes() for path in machine.mnt.glob("*.jpg")]
    assert "s-2.tar: the object has changed since the mount" in machine.log()
    machine.ok("umount", machine.mnt)
    machine.ok("mount", "--classes", "any", source, machine.mnt, *MEMORY)
    assert {path.read_bytes() for path in machine.mnt.glob("*.jpg")} == {b"x" * 100_000, b"y" * 100_000}


def test_an_object_that_is_refused_or_missing_is_an_error_of_its_opens(
    machine: Machine, packed: str, proxy: Server
) -> None:
    machine.ok("mount", packed, machine.mnt, *MEMORY)
    for fault in (REFUSED, "404"):
        proxy.fault = times(10**6, fault)
        failed = 0
        for path in sorted(machine.mnt.glob("train/*/*"))[:50]:
            try:
                path.read_bytes()
            except OSError:
                failed += 1
        assert failed
    proxy.fault = times(0, STATUS_503)
    assert sum(read_all(machine.mnt).values()) > FILES / 2
