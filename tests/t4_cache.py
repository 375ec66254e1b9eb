"""Mounts with --cache: later epochs read no source, and no death, fault or flipped bit makes a byte wrong."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from declared import missing, undeclared
from disks import BLOCK_BYTES, Disk, small_disk
from images import make_images, path_in, read_each
from machine import Machine
from object_server import serving
from packs import Options, flip, pack_here
from patience import until

from redoxfs.telemetry import METRICS, When

CLASSES = {f"n0000010{number}": 60 for number in range(4)}
SAMPLES = sum(CLASSES.values())
MEMORY = ("--memory", "1MiB")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cached")
    make_images(folder / "source", CLASSES, typical_bytes=20_000)
    return folder / "source"


@pytest.fixture
def where(tmp_path: Path) -> Path:
    return tmp_path / "copies"


def read_all(root: Path) -> None:
    """Read each file once, by several threads. Each sample comes once, whole, with the right label."""
    found = read_each([*root.glob("train/*/*")])
    assert set(found.values()) == {1}
    assert len(found) >= SAMPLES - len(CLASSES)


def cache_of(machine: Machine, mountpoint: Path | None = None) -> dict[str, Any]:
    return machine.stats(mountpoint)["cache"]


def until_kept(machine: Machine, mountpoint: Path | None = None, *, least: int = SAMPLES) -> None:
    """Read epochs until so many samples are kept: what the writer could not take in one, it takes in a later one."""

    def are_kept() -> bool:
        read_all(mountpoint or machine.mnt)
        return int(cache_of(machine, mountpoint)["samples"]) >= least

    until(are_kept, lambda: cache_of(machine, mountpoint))


def test_later_epochs_and_mounts_read_no_source(machine: Machine, data: Path, where: Path) -> None:
    machine.ok("mount", data, machine.mnt, *MEMORY, "--cache", where)
    until_kept(machine)
    stats = machine.stats()
    assert undeclared(stats, METRICS) == []
    assert missing(stats, METRICS, frozenset({When.ALWAYS, When.KEEPER, When.CACHE})) == []
    before = stats["bytes_read"] - stats["cache"]["read_bytes"]
    read_all(machine.mnt)
    stats = machine.stats()
    assert stats["bytes_read"] - stats["cache"]["read_bytes"] == before
    machine.ok("umount", machine.mnt)
    said = machine.ok("mount", data, machine.mnt, *MEMORY, "--cache", where).stderr
    assert f"cache: {SAMPLES} of {SAMPLES} samples" in said
    read_all(machine.mnt)
    stats = machine.stats()
    assert stats["bytes_read"] == stats["cache"]["read_bytes"] > 0
    assert stats["cache"]["failures"] == stats["cache"]["written_bytes"] == 0
    # Loads may be under way.
    assert 0 < stats["cache"]["read_samples"] <= stats["samples_loaded"] + stats["samples_reread"]


def test_files_that_are_gone_are_served_from_the_cache(machine: Machine, where: Path, tmp_path: Path) -> None:
    make_images(tmp_path / "data", CLASSES, typical_bytes=2000)
    machine.ok("warmup", tmp_path / "data", "--cache", where)
    machine.ok("mount", tmp_path / "data", machine.mnt, *MEMORY, "--cache", where)
    for path in (tmp_path / "data").glob("train/*/*"):
        path.unlink()
    read_all(machine.mnt)


def test_daemons_that_are_killed_at_any_moment_leave_a_right_cache(machine: Machine, data: Path, where: Path) -> None:
    for share in (0.1, 0.4, 0.7, 1):
        machine.ok("mount", "--no-keeper", data, machine.mnt, *MEMORY, "--cache", where)
        for path in [*machine.mnt.glob("train/*/*")][: int(share * SAMPLES)]:
            found = path.read_bytes()
            assert not found or Path(path_in(found)).parent.name == path.parent.name
        machine.kill(signal.SIGKILL)
        machine.ok("umount", machine.mnt)
    machine.ok("mount", data, machine.mnt, *MEMORY, "--cache", where)
    until_kept(machine)
    assert cache_of(machine)["failures"] == 0
    # Its keeper starts another one, which uses the same cache.
    machine.kill(signal.SIGKILL)
    read_all(machine.mnt)
    stats = machine.stats()
    assert stats["keeper"]["restarts"] == 1
    assert stats["cache"]["samples"] == SAMPLES
    machine.ok("umount", machine.mnt)
    machine.ok("cache", "verify", where)


def test_bits_that_flip_under_a_mount_reach_no_reader(machine: Machine, data: Path, where: Path) -> None:
    machine.ok("mount", data, machine.mnt, *MEMORY, "--cache", where)
    until_kept(machine)
    (path,) = where.glob("*/*.data")
    for at in range(0, path.stat().st_size, path.stat().st_size // 20):
        flip(path, at)
    read_all(machine.mnt)
    read_all(machine.mnt)
    assert 10 < cache_of(machine)["failures"] <= 21
    machine.ok("umount", machine.mnt)
    done = machine.run("cache", "verify", where)
    assert done.returncode in (0, 9), done.stderr
    machine.ok("cache", "verify", where)
    machine.ok("mount", data, machine.mnt, *MEMORY, "--cache", where)
    until_kept(machine)
    read_all(machine.mnt)
    assert cache_of(machine)["failures"] == 0


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    with small_disk(tmp_path / "disk", "size=1m") as disk:
        yield disk


def test_a_full_disk_costs_a_line_and_no_open(machine: Machine, data: Path, full: Path) -> None:
    done = machine.ok("mount", data, machine.mnt, *MEMORY, "--cache", full / "copies", "--cache-size", "1GiB")
    more = f"cache: --cache-size 1GiB is more than the disk of {full / 'copies'} has room for, which is 1.0 MiB"
    assert more in done.stderr
    for _ in range(3):
        read_all(machine.mnt)
    # The copies are written a moment after the reads.
    until(lambda: not machine.stats()["cache"]["writes"], "the mount finds its disk full")
    stats = machine.stats()
    machine.ok("umount", machine.mnt)
    log = "".join(path.read_text() for path in (machine.folder / "state").rglob("*.log"))
    assert log.count("its disk is full: nothing more is kept in this cache") == 1
    assert stats["cache"]["failures"] == 0


def test_what_is_on_a_full_disk_is_served(machine: Machine, data: Path, full: Path) -> None:
    where = full / "copies"
    options = ("--cache", str(where), "--cache-size", "1GiB")
    done = machine.run("warmup", data, *options)
    assert (done.returncode, done.stderr.count("given up: No space left on device")) == (4, 1), done.stderr
    subprocess.run(["mount", "-o", "remount,size=32m", full], check=True)
    machine.ok("warmup", data, *options)
    with (full / "rest").open("wb", buffering=0) as file:
        # As much as there is room for.
        file.write(bytes(64 << 20))
    done = machine.ok("mount", data, machine.mnt, *MEMORY, *options)
    assert f"cache: {SAMPLES} of {SAMPLES} samples" in done.stderr
    read_all(machine.mnt)
    stats = machine.stats()
    assert stats["bytes_read"] == stats["cache"]["read_bytes"] > 0


def test_a_mount_whose_cache_has_no_room_says_so(machine: Machine, data: Path, full: Path) -> None:
    with (full / "rest").open("wb", buffering=0) as file:
        file.write(bytes(64 << 20))
    done = machine.ok("mount", data, machine.mnt, *MEMORY, "--cache", full / "copies")
    assert done.stderr.count(f"no cache: --cache {full}/copies: its disk is full\n") == 1
    read_all(machine.mnt)


def test_without_classes_there_is_nothing_to_keep(machine: Machine, data: Path, where: Path) -> None:
    done = machine.ok("mount", data, machine.mnt, "--classes", "none", "--cache", where)
    assert done.stderr.count("no cache: it would keep samples of classes") == 1
    done = machine.run("warmup", data, "--classes", "none", "--cache", where)
    assert (done.returncode, "samples of classes" in done.stderr) == (3, True)


def test_shards_are_opened_as_far_as_the_hard_limit_permits(
    machine: Machine, data: Path, tmp_path: Path, where: Path
) -> None:
    """The soft one is 1,024 nearly everywhere, and each shard takes a descriptor."""
    pack_here(data, tmp_path / "packed", Options(shard_bytes=1, chunk_size=2))
    shards = len([*(tmp_path / "packed").glob("*.tar")])
    assert shards > 100
    machine.before = ("prlimit", "--nofile=100:4096")
    for command in (["warmup", "--cache", where], ["mount", *MEMORY]):
        machine.ok(*command, tmp_path / "packed", *[machine.mnt][: command[0] == "mount"])
    read_all(machine.mnt)
    machine.ok("umount", machine.mnt)
    machine.before = ("prlimit", "--nofile=100:100")
    for command in (["warmup", "--cache", where], ["mount", *MEMORY]):
        done = machine.run(*command, tmp_path / "packed", *[machine.mnt][: command[0] == "mount"])
        assert (done.returncode, done.stderr.splitlines()[-1]) == (
            3,
            f"redoxfs: {tmp_path}/packed: has {shards} shards, each of which takes an open file, "
            "and the limit of open files is 100 (ulimit -Hn)",
        )


@pytest.mark.parametrize("options", ["size=1m,nr_inodes=1", "ro"], ids=["full", "read-only"])
def test_a_mount_goes_on_without_a_disk_that_takes_nothing(
    machine: Machine, data: Path, tmp_path: Path, options: str
) -> None:
    with small_disk(tmp_path / "disk", options) as disk:
        done = machine.ok("mount", data, machine.mnt, *MEMORY, "--cache", disk / "copies")
        assert done.stderr.count("no cache: --cache") == 1
        read_all(machine.mnt)
        assert "cache" not in machine.stats()
        assert machine.run("warmup", data, "--cache", disk / "copies").returncode == 4


def test_copies_on_a_disk_that_is_read_only_are_read_and_listed(machine: Machine, data: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=64m") as disk:
        where = disk / "copies"
        for classes in ("any", "auto"):
            machine.ok("warmup", data, "--classes", classes, "--cache", where)
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        # There is no room, and none can be made.
        machine.ok("mount", data, machine.mnt, *MEMORY, "--cache", where, "--cache-size", "1MiB")
        read_all(machine.mnt)
        here = cache_of(machine)
        assert here["read_samples"] >= SAMPLES
        told = json.loads(machine.ok("cache", "ls", where, "--json").stdout)
        assert [(each["files"], each["in_use"]) for each in told] == [(here["samples"], False), (here["samples"], True)]
        found = json.loads(machine.ok("cache", "verify", where, "--json").stdout)
        assert [(each["files"], each["damaged_files"]) for each in found] == 2 * [(here["samples"], 0)]
        assert machine.run("cache", "rm", where, told[0]["key"]).returncode == 4
        machine.ok("umount", machine.mnt)
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        for path in where.glob("*/*.data"):
            flip(path, 100)
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        verified = machine.run("cache", "verify", where)
        assert (verified.returncode, verified.stderr.count("1 of them damaged")) == (9, 2)
        assert "damaged copies, which cannot be marked (Read-only file system)" in verified.stderr
        # Without its lock it is of no use, and nothing waits for that.
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        for lock in where.glob("*/lock"):
            lock.unlink()
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        assert "no cache: --cache" in machine.ok("mount", data, machine.mnt, *MEMORY, "--cache", where).stderr


@pytest.fixture
def disk(machine: Machine, tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path, 32 << 20)
    try:
        yield made
    finally:
        machine.clear()


def test_a_disk_that_fails_costs_a_line_and_no_open(machine: Machine, data: Path, disk: Disk) -> None:
    where = disk.place / "copies"
    machine.ok("warmup", data, "--cache", where)
    # Then none of it is in the page cache.
    disk.detach()
    disk.attach().check_returncode()
    machine.ok("mount", data, machine.mnt, *MEMORY, "--cache", where)
    (path,) = where.glob("*/*.data")
    blocks = sorted(disk.blocks_of(path, 0, path.stat().st_size))
    disk.lose(blocks[len(blocks) // 2] * BLOCK_BYTES)
    for _ in range(3):
        read_all(machine.mnt)
    stats = machine.stats()
    assert stats["cache"]["failures"] > 10
    assert stats["errors"] == 0
    log = machine.log()
    assert log.count("a copy cannot be used") == 1
    assert log.count("nothing more is kept") <= 1
    found = machine.run("doctor", machine.mnt, "--json", "--probe-seconds", "0.1")
    (line,) = [each for each in json.loads(found.stdout)["checks"] if each["name"] == "cache"]
    assert line["level"] == "warning"
    assert "could not be used" in machine.ok("status", machine.mnt).stdout.replace("\n", " ")


def test_a_mount_goes_on_without_a_disk_that_fails(machine: Machine, data: Path, disk: Disk) -> None:
    disk.detach()
    disk.attach().check_returncode()
    disk.lose(0)
    done = machine.ok("mount", data, machine.mnt, *MEMORY, "--cache", disk.place / "copies")
    assert done.stderr.count("no cache: --cache") == 1
    read_all(machine.mnt)


def test_a_dataset_that_no_mount_uses_gives_way(machine: Machine, data: Path, where: Path, tmp_path: Path) -> None:
    make_images(tmp_path / "other", CLASSES, typical_bytes=20_000)
    size = sum(path.stat().st_size for path in data.glob("train/*/*"))
    room = ("--cache", str(where), "--cache-size", str(size * 3 // 2))
    machine.ok("warmup", tmp_path / "other", *room)
    machine.ok("mount", tmp_path / "other", machine.mnt, *MEMORY, *room)
    # Not while it is in use.
    assert machine.run("warmup", data, *room).returncode == 4
    done = machine.run("cache", "rm", where, "--all")
    assert (done.returncode, done.stderr.count("removed "), done.stderr.count("a mount uses")) == (8, 1, 1)
    (told,) = json.loads(machine.ok("cache", "ls", where, "--json").stdout)
    assert (told["source"], told["in_use"]) == (str(tmp_path / "other"), True)
    machine.ok("umount", machine.mnt)
    done = machine.ok("warmup", data, *room)
    assert done.stderr.count("cache: removed") == 1
    assert str(tmp_path / "other") in done.stderr
    (told,) = json.loads(machine.ok("cache", "ls", where, "--json").stdout)
    assert told["source"] == str(data)


def test_a_size_is_kept_and_the_rest_is_read_from_the_source(machine: Machine, data: Path, where: Path) -> None:
    machine.ok("mount", data, machine.mnt, *MEMORY, "--cache", where, "--cache-size", "1MiB")
    for _ in range(3):
        read_all(machine.mnt)
    assert sum(path.stat().st_size for path in where.glob("*/*.*")) <= 1 << 20


def test_two_mounts_fill_one_cache(machine: Machine, data: Path, where: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    places = [machine.mnt, tmp_path / "other"]
    for place in places:
        machine.ok("mount", data, place, *MEMORY, "--cache", where)
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda place: until_kept(machine, place), places))
        for place in places:
            assert cache_of(machine, place)["failures"] == 0
        assert machine.run("cache", "rm", where, "--all").returncode == 8
    finally:
        machine.ok("umount", places[1])
    machine.ok("umount", machine.mnt)
    machine.ok("cache", "verify", where)
    (told,) = json.loads(machine.ok("cache", "ls", where, "--json").stdout)
    assert told["source"] == str(data)
    assert not told["in_use"]
    machine.ok("cache", "rm", where, told["key"][:8])
    assert json.loads(machine.ok("cache", "ls", where, "--json").stdout) == []


def test_an_epoch_from_the_cache_costs_no_request(machine: Machine, data: Path, where: Path, tmp_path: Path) -> None:
    pack_here(data, tmp_path / "packed", Options(shard_bytes=1 << 18, chunk_size=8))
    with serving(tmp_path / "packed") as server:
        options = (*MEMORY, "--storage-speed", "1000,100MiB", "--cache", where)
        machine.ok("mount", server.url, machine.mnt, *options)
        until_kept(machine)
        before = server.traffic.sent, len(server.paths)
        read_all(machine.mnt)
        read_all(machine.mnt)
        assert (server.traffic.sent, len(server.paths)) == before
        machine.ok("umount", machine.mnt)
        machine.ok("mount", server.url, machine.mnt, *options)
        before = server.traffic.sent, len(server.paths)
        read_all(machine.mnt)
        assert (server.traffic.sent, len(server.paths)) == before
        machine.ok("umount", machine.mnt)


def test_a_packed_dataset_is_warmed_up_and_read_from_the_cache(
    machine: Machine, data: Path, where: Path, tmp_path: Path
) -> None:
    pack_here(data, tmp_path / "packed", Options(shard_bytes=1 << 18, chunk_size=8))
    assert f"{SAMPLES} of {SAMPLES} samples" in machine.ok("warmup", tmp_path / "packed", "--cache", where).stderr
    machine.ok("mount", tmp_path / "packed", machine.mnt, *MEMORY, "--cache", where)
    read_all(machine.mnt)
    stats = machine.stats()
    assert stats["bytes_read"] == stats["cache"]["read_bytes"] > 0


def test_a_folder_that_cannot_be_a_cache_is_one_line(machine: Machine, data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for where in (data / "train", machine.mnt, machine.mnt / "below", tmp_path / "file"):
        done = machine.run("mount", data, machine.mnt, "--cache", where)
        assert (done.returncode, done.stderr.splitlines()[-1].count("--cache")) == (4, 1), done.stderr
    assert machine.run("mount", data, machine.mnt, "--cache-size", "1GiB").returncode == 2
    assert machine.run("cache", "ls", tmp_path / "nowhere").returncode == 4
    for verb, *more in (["ls"], ["verify"], ["rm", "--all"]):
        told = machine.refused(4, "cache", verb, data, *more)
        assert "no mount has used it with --cache" in told
    assert not os.path.ismount(machine.mnt)
