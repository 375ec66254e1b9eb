"""Mounts of tar archives by the real command: an epoch of a nested one, samples of shards, and what tar says."""

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from images import image, path_in, pixels_in, read_each
from machine import Machine
from object_server import REFUSED, Server, serving
from patience import SLOWNESS, completed, until
from tars import LONG_AGO_S, tar_of

CLASSES = {f"n0000010{number}": 30 for number in range(4)}
MEMORY = ("--memory", "2MiB", "--storage-speed", "1000,100MiB")
SHARDS, KEYS = 3, 20


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tar of a tar for each class, as ImageNet comes."""
    folder = tmp_path_factory.mktemp("nested")
    for label, (name, count) in enumerate(CLASSES.items()):
        paths = [f"train/{name}/train-{name}-{number}.png" for number in range(count)]
        files = {os.path.basename(path): image(path, label, at, 9_000) for at, path in enumerate(paths)}
        tar_of(folder / "inner" / f"{name}.tar", files)
    inner = {path.name: path.read_bytes() for path in sorted((folder / "inner").iterdir())}
    return tar_of(folder / "all.tar", inner)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of KEY.png and KEY.json, of which the second one is not beside the first."""
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(SHARDS):
        keys = [f"{shard:03}{number:04}" for number in range(KEYS)]
        files = [(f"{key}.png", image(f"{key}.png", 0, 0, 4_000)) for key in keys]
        files += [(f"{key}.json", json.dumps({"key": key}).encode()) for key in keys]
        random.Random(shard).shuffle(files)
        tar_of(folder / f"train-{shard:06}.tar", dict(files))
    (folder / "train.json").write_text("{}")
    return folder


def test_an_epoch_of_a_nested_archive_has_each_sample_once_and_its_label(machine: Machine, nested: Path) -> None:
    said = machine.ok("mount", "--classes", "dir", nested, machine.mnt, *MEMORY).stderr
    assert "archives: 120 files in 1 archive, indexed in" in said
    for _ in range(2):
        read = read_each([*machine.mnt.glob("n*/*")])
        assert set(read.values()) == {1}
        assert len(read) == sum(CLASSES.values())
    stats = machine.stats()
    assert stats["redirected"] > sum(CLASSES.values())
    assert (stats["source"], stats["source_kind"]) == (str(nested), "archives")
    machine.ok("umount", machine.mnt)
    again = machine.ok("mount", "--classes", "dir", nested, machine.mnt, *MEMORY).stderr
    assert "1 archive, unchanged since the last index" in again


def test_chunks_of_archives_are_so_small_that_the_memory_is_enough(machine: Machine, tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "a.tar", {f"{number:03}.jpg": b"x" * 100_000 for number in range(80)})
    options = ("--classes", "any", "--storage-speed", "1000,100MiB", "--memory", "1MiB")
    said = machine.ok("mount", archive, machine.mnt, *options).stderr
    assert "larger ones need more --memory" in said
    assert {len(path.read_bytes()) for path in machine.mnt.iterdir()} == {100_000}
    machine.ok("umount", machine.mnt)
    refused = machine.run("mount", archive, machine.mnt, *options, "--chunk-size", "16")
    assert (refused.returncode, "it needs at least --memory" in refused.stderr) == (5, True), refused.stderr


def test_the_files_of_a_key_are_read_together_over_shards(machine: Machine, shards: Path) -> None:
    said = machine.ok("mount", "--classes", "any", shards, machine.mnt, *MEMORY).stderr
    assert "ignored beside them: train.json" in said
    assert "files of one stem are one sample" in said
    read_keys_twice(machine)


def read_keys_twice(machine: Machine) -> None:
    """Two epochs of the images and the texts of all keys: each once, and together."""

    def read(image_path: Path) -> str:
        key = path_in(image_path.read_bytes()).removesuffix(".png")
        assert json.loads(image_path.with_suffix(".json").read_bytes()) == {"key": key}
        return key

    for _ in range(2):
        with ThreadPoolExecutor(4) as threads:
            found = Counter(threads.map(read, sorted(machine.mnt.glob("*.png"))))
        assert len(found) == SHARDS * KEYS
        assert set(found.values()) == {1}
    assert machine.stats()["redirected"] > SHARDS * KEYS


@pytest.fixture
def web(nested: Path, shards: Path, tmp_path: Path) -> Iterator[Server]:
    """A web server with the archives of both."""
    (tmp_path / "web").mkdir()
    for path in (nested, *shards.glob("*.tar")):
        os.link(path, tmp_path / "web" / path.name)
    with serving(tmp_path / "web") as server:
        yield server


def test_an_epoch_of_a_nested_archive_on_a_web_server_is_exact(machine: Machine, web: Server) -> None:
    source = f"{web.url}/all.tar"
    said = machine.ok("mount", "--classes", "dir", source, machine.mnt, *MEMORY).stderr
    assert "archives: 120 files in 1 archive, indexed in" in said
    before = web.traffic.sent
    for _ in range(2):
        read = read_each([*machine.mnt.glob("n*/*")])
        assert set(read.values()) == {1}
        assert len(read) == sum(CLASSES.values())
    assert machine.stats()["source"] == source
    assert machine.stats()["objects"]["received_bytes"] == web.traffic.sent - before
    before_pid = machine.pid()
    machine.kill(signal.SIGKILL)
    until(lambda: machine.pid() != before_pid, lambda: "no other daemon")
    assert len(read_each([*machine.mnt.glob("n*/*")])) == sum(CLASSES.values())
    machine.ok("umount", machine.mnt)
    web.traffic.requests.clear()
    again = machine.ok("mount", "--classes", "dir", source, machine.mnt, *MEMORY).stderr
    assert "1 archive, unchanged since the last index" in again
    assert web.traffic.requests == {"HEAD": 1}


def test_shards_on_a_web_server_are_read_once_and_then_from_the_cache(
    machine: Machine, web: Server, tmp_path: Path
) -> None:
    source = f"{web.url}/train-{{000000..{SHARDS - 1:06}}}.tar"
    cache = ("--cache", str(tmp_path / "copies"))
    machine.ok("warmup", "--classes", "any", source, *cache)
    machine.ok("mount", "--classes", "any", source, machine.mnt, *MEMORY, *cache)
    web.fault = lambda _method, _path: REFUSED
    read_keys_twice(machine)
    assert machine.stats()["errors"] == 0
    assert "train-000001.tar" not in machine.log()


def test_reads_of_an_archive_that_is_replaced_on_a_server_fail_by_its_name(
    machine: Machine, web: Server, nested: Path
) -> None:
    machine.ok("mount", "--classes", "dir", f"{web.url}/all.tar", machine.mnt, *MEMORY)
    assert web.folder is not None
    data = nested.read_bytes()
    (web.folder / "all.tar").unlink()
    (web.folder / "all.tar").write_bytes(data[:-1] + b"x")
    with pytest.raises(OSError):
        read_each([*machine.mnt.glob("n*/*")])
    assert "all.tar: the object has changed since the mount" in machine.log()


LABELS = ("cat", "dog", "10")


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of KEY.cls and KEY.png, whose first pixel has the number of the label."""
    folder = tmp_path_factory.mktemp("labelled")
    for shard in range(SHARDS):
        files: dict[str, bytes] = {}
        for number in range(KEYS):
            key, label = f"{shard:03}{number:04}", random.Random(100 * shard + number).randrange(len(LABELS))
            files |= {f"{key}.cls": f"{LABELS[label]}\n".encode(), f"{key}.png": image(key, label, number, 4_000)}
        tar_of(folder / f"train-{shard:06}.tar", files)
    return folder


def read_classes_twice(machine: Machine) -> None:
    """Two epochs of a script that reads all labels first, and then each class by itself."""
    labels = {path: path.read_text().strip() for path in machine.mnt.glob("*.cls")}
    assert set(labels.values()) == set(LABELS)
    for _ in range(2):
        found: Counter[str] = Counter()
        for number, label in enumerate(LABELS):
            own = [path.with_suffix(".png") for path, its_label in labels.items() if its_label == label]
            with ThreadPoolExecutor(4) as threads:
                for data in threads.map(Path.read_bytes, own):
                    assert pixels_in(data)[0] == number
                    found[path_in(data)] += 1
        assert (len(found), set(found.values())) == (SHARDS * KEYS, {1})
    assert machine.stats()["redirected"] > SHARDS * KEYS
    assert machine.stats()["classes"] == len(LABELS)


def test_a_script_that_reads_labels_first_gets_images_of_them(machine: Machine, labelled: Path) -> None:
    mount = ("mount", "--classes", "member:cls", labelled, machine.mnt, *MEMORY)
    said = machine.ok(*mount).stderr
    assert "redirecting within 3 classes, by --classes member:cls" in said
    read_classes_twice(machine)
    machine.ok("umount", machine.mnt)
    assert "redirecting within 3 classes" in machine.ok(*mount).stderr
    read_classes_twice(machine)
    machine.ok("umount", machine.mnt)
    done = machine.run("mount", "--classes", "member:txt", labelled, machine.mnt)
    assert (done.returncode, "60 of 60 samples have no file with this suffix" in done.stderr) == (6, True)


def test_labels_in_archives_on_a_web_server_are_read_once(machine: Machine, labelled: Path) -> None:
    with serving(labelled) as server:
        source = f"{server.url}/train-{{000000..{SHARDS - 1:06}}}.tar"
        mount = ("mount", "--classes", "member:cls", source, machine.mnt, *MEMORY)
        machine.ok(*mount)
        read_classes_twice(machine)
        machine.ok("umount", machine.mnt)
        server.traffic.requests.clear()
        machine.ok(*mount)
        assert server.traffic.requests == {"HEAD": SHARDS}
        machine.ok("umount", machine.mnt)
        done = machine.run("mount", "--classes", "member:png", source, machine.mnt)
        assert (done.returncode, "000000.png is longer than 256 bytes" in done.stderr) == (6, True), done.stderr
        done = machine.run("mount", "--classes", "member:txt", source, machine.mnt)
        assert (done.returncode, "60 of 60 samples have no file with this suffix" in done.stderr) == (6, True)


def test_an_address_of_archives_that_cannot_be_mounted_is_one_line(machine: Machine, web: Server) -> None:
    assert web.folder is not None
    cut = web.folder / "cut.tar"
    cut.write_bytes((web.folder / "train-000000.tar").read_bytes()[:20_000])
    for name, options, code, line in (
        ("none.tar", (), 3, "none.tar: no such object"),
        ("*.tar", (), 3, "a web server has no list of names"),
        ("{a}.tar", (), 2, "braces have two numbers"),
        ("cut.tar", (), 9, "cut.tar is truncated"),
        ("all.tar", ("--catalog", "x"), 2, "--catalog is for a directory"),
        ("all.tar", ("--archives", "none"), 3, "is not a packed dataset"),
    ):
        done = machine.run("mount", f"{web.url}/{name}", machine.mnt, *options)
        assert (done.returncode, line in done.stderr.splitlines()[-1]) == (code, True), done.stderr
    report = machine.inspect(f"{web.url}/cut.tar", "--classes", "any", "--salvage")
    assert 0 < report["files"] < 2 * KEYS
    assert any(said.startswith("salvaged: cut.tar is truncated") for said in report["saw"])
    assert f"{web.url}/all.tar answers" in machine.run("doctor", f"{web.url}/all.tar").stdout


def test_tar_finds_only_other_modes_and_owners_in_the_exact_files(
    machine: Machine, nested: Path, tmp_path: Path
) -> None:
    with open(nested.parent / "inner/n00000100.tar", "rb") as inner:
        (tmp_path / "one.tar").write_bytes(inner.read())
    machine.ok("mount", "--classes", "dir", nested, machine.mnt, *MEMORY)
    exact = machine.mnt / ".redoxfs/exact/n00000100"
    done = completed(["tar", "-C", exact, "-df", tmp_path / "one.tar"])
    differences = {line.rpartition(": ")[2] for line in (done.stdout + done.stderr).splitlines()}
    assert differences <= {"Mode differs", "Uid differs", "Gid differs"}
    assert len([*exact.iterdir()]) == 30


def test_another_daemon_serves_the_same_archives(machine: Machine, nested: Path) -> None:
    machine.ok("mount", "--classes", "dir", nested, machine.mnt, *MEMORY)
    before = machine.pid()
    machine.kill(signal.SIGKILL)
    until(lambda: machine.pid() != before, lambda: "no other daemon")
    read = read_each([*machine.mnt.glob("n*/*")])
    assert len(read) == sum(CLASSES.values())


def test_reads_of_an_archive_that_changed_fail_by_its_name(machine: Machine, nested: Path, tmp_path: Path) -> None:
    archive = tmp_path / "all.tar"
    archive.write_bytes(nested.read_bytes())
    machine.ok("mount", "--classes", "dir", archive, machine.mnt, *MEMORY)
    os.utime(archive, (LONG_AGO_S, LONG_AGO_S))
    with pytest.raises(OSError):
        next(machine.mnt.glob("n*/*")).read_bytes()
    assert "all.tar has changed since it was indexed; unmount, and mount it again" in machine.log()


def test_a_cache_keeps_samples_of_archives(machine: Machine, nested: Path, tmp_path: Path) -> None:
    cache = ("--cache", str(tmp_path / "copies"))
    machine.ok("warmup", "--classes", "dir", nested, *cache)
    machine.ok("mount", "--classes", "dir", nested, machine.mnt, *MEMORY, *cache)
    read = read_each([*machine.mnt.glob("n*/*")])
    assert len(read) == sum(CLASSES.values())
    assert machine.stats()["cache"]["read_bytes"] == sum(CLASSES.values()) * 9_000


def test_inspect_and_doctor_look_at_archives(machine: Machine, shards: Path) -> None:
    report = machine.inspect(shards, "--classes", "any")
    assert (report["archives"], report["archives_layout"], report["packed"]) == (SHARDS, "tree", False)
    assert (report["samples"], report["files_per_sample"]["max"]) == (SHARDS * KEYS, 2)
    assert report["read_bytes"] == report["sample_bytes"]["total"] // report["chunks"]
    # So many reads a second take 15 % of the time of 100 MB, beside 85 % for the bytes.
    reads, read_s = 100e6 / report["read_bytes"], 1 / report["reads_per_s_for_100_mb_per_s"]
    assert 1 / (1 + reads * read_s) == pytest.approx(0.85, rel=0.01)
    assert any("webdataset makes several samples" in line for line in report["saw"])
    folders = machine.inspect(shards, "--classes", "any", "--archives", "folders")
    assert (folders["archives_layout"], folders["samples"]) == ("folders", SHARDS * KEYS)
    files = machine.inspect(shards, "--archives", "none")
    assert (files["files"], "archives" in files) == (SHARDS + 1, False)
    done = machine.run("doctor", "--probe-seconds", str(2 * SLOWNESS), shards)
    assert f"not needed: redoxfs reads {SHARDS} archives as they are" in done.stdout


def test_what_cannot_be_done_with_archives_is_one_line(machine: Machine, nested: Path, tmp_path: Path) -> None:
    compressed = tmp_path / "a.tar.gz"
    compressed.write_bytes(b"\x1f\x8b" + b"x" * 600)
    zipped = tmp_path / "a.zip"
    zipped.write_bytes(b"PK\x03\x04" + b"x" * 600)
    for words, code, line in (
        (("mount", compressed, machine.mnt), 3, "is compressed with gzip"),
        (("mount", zipped, machine.mnt), 3, "a.zip is a zip file, and redoxfs reads tar files; unpack it: unzip a.zip"),
        (("mount", nested), 2, "archives cannot be mounted over themselves; give MOUNTPOINT"),
        (("pack", nested, tmp_path / "dst"), 3, "mount it, and give MOUNTPOINT/.redoxfs/exact"),
        (("catalog", "export", nested, tmp_path / "c"), 3, "mount it, and give MOUNTPOINT/.redoxfs/exact"),
        (("inspect", "--archives", "tree", tmp_path), 2, "names no tar archive"),
        (("mount", f"{nested.parent}/{{a,b}}.tar", machine.mnt), 3, "a.tar: no such archive"),
    ):
        done = machine.run(*words)
        assert (done.returncode, line in done.stderr.splitlines()[-1]) == (code, True), done.stderr
