"""A catalog that one machine exports and others mount, on real mounts; and mounts after an earlier scan."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine import OTHERS_CLEARED, Machine
from patience import completed

from redoxfs.dataset import read_catalog, write_catalog

KINDS = ("cat", "dog")
FILES = 60


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    for kind in KINDS:
        (root / kind).mkdir(parents=True)
        for number in range(FILES):
            (root / kind / f"{number:02d}.jpg").write_bytes(f"{kind} {number} ".encode() * (1 + number % 7))
    return root


@pytest.fixture
def file(machine: Machine, tmp_path: Path, source: Path) -> Path:
    path = tmp_path / "data.catalog"
    machine.ok("catalog", "export", source, path, "--classes", "dir")
    return path


@pytest.fixture
def elsewhere(machine: Machine, source: Path, file: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy at another path, with other times and inodes, and a machine that has never scanned it."""
    del file
    copy = tmp_path / "other machine/data"
    shutil.copytree(source, copy, copy_function=shutil.copyfile)
    shutil.rmtree(machine.folder / "cache")
    (machine.folder / "cache").mkdir()
    yield copy
    # The folder in which a scan would be kept.
    assert list((machine.folder / "cache").iterdir()) == []


def contents(root: Path) -> dict[str, bytes]:
    return {f"{kind}/{path.name}": path.read_bytes() for kind in KINDS for path in sorted((root / kind).iterdir())}


def check_epochs(mount: Path, expected: dict[str, bytes]) -> None:
    for _ in range(2):
        served = contents(mount)
        assert served.keys() == expected.keys()
        assert sorted(served.values()) == sorted(expected.values())
        assert all(data.startswith(name[:3].encode()) for name, data in served.items())


def test_another_machine_mounts_the_catalog_without_a_scan(
    machine: Machine, source: Path, file: Path, elsewhere: Path
) -> None:
    done = machine.ok("mount", "--catalog", file, elsewhere, machine.mnt, "--memory", "64KiB")
    assert f"catalog: 120 files, read from {file}" in done.stderr
    assert "redirecting within 2 class directories, by --classes dir" in done.stderr
    check_epochs(machine.mnt, contents(source))
    assert contents(machine.mnt / ".redoxfs/exact") == contents(source)
    stats = machine.stats()
    assert (stats["errors"], stats["redirected"] > FILES) == (0, True)
    assert (stats["changed"], "files here have other times" in done.stderr) == (2 * FILES, True)
    machine.ok("umount", machine.mnt)


def test_a_copy_with_the_same_times_has_no_changed_file(
    machine: Machine, source: Path, file: Path, elsewhere: Path
) -> None:
    for path in source.rglob("*.jpg"):
        shutil.copystat(path, elsewhere / path.relative_to(source))
    done = machine.ok("mount", "--catalog", file, elsewhere, machine.mnt, "--memory", "64KiB")
    check_epochs(machine.mnt, contents(source))
    assert (machine.stats()["changed"], "other times" in done.stderr) == (0, False)
    machine.ok("umount", machine.mnt)


def test_a_catalog_serves_in_a_mount_namespace_of_its_own(
    machine: Machine, source: Path, file: Path, elsewhere: Path
) -> None:
    script = f"""
    {OTHERS_CLEARED}
    set -e
    mount --bind "$1" "$2"
    cd "$(dirname "$3")"
    redoxfs() {{ "$PYTHON" -m redoxfs "$@"; }}
    redoxfs mount --catalog "$(basename "$3")" "$2"
    cat "$2"/cat/*.jpg "$2"/dog/*.jpg | wc -c
    redoxfs umount "$2"
    """
    here = machine.folder / "in container"
    here.mkdir()
    done = completed(
        ["unshare", "--mount", "sh", "-c", script, "sh", elsewhere, here, file],
        env=machine.environment | {"PYTHON": machine.command()[0], "MNT": str(here)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == str(sum(map(len, contents(source).values())))


def test_the_nodes_of_a_cluster_read_one_catalog(machine: Machine, source: Path, file: Path, elsewhere: Path) -> None:
    folder = machine.mnt / "nodes"
    done = machine.ok("cluster", "up", "--nodes", "2", "--catalog", file, elsewhere, folder, "--memory", "64KiB")
    assert f"read from {file}" in done.stderr
    for node in ("0", "1"):
        assert contents(folder / node / ".redoxfs/exact") == contents(source)
    machine.ok("cluster", "down", folder)


def test_show_describes_a_catalog(machine: Machine, source: Path, file: Path) -> None:
    shown = json.loads(machine.ok("catalog", "show", file, "--json").stdout)
    assert (shown["files"], shown["samples"], shown["classes"], shown["directories"]) == (120, 120, 2, 3)
    assert (shown["source"], shown["classes_asked"], shown["samples_asked"]) == (str(source), "dir", [])
    table = machine.ok("catalog", "show", file).stdout
    for text in (str(source), "--classes dir", "120 in 3 directories", shown["fingerprint"]):
        assert text in table


def test_a_table_of_classes_is_known_by_its_content(machine: Machine, source: Path, tmp_path: Path) -> None:
    rows = [f"{kind}/{number:02d}.jpg,{kind}" for kind in KINDS for number in range(FILES)]
    (tmp_path / "labels.csv").write_text("\n".join(["path,class", *rows]))
    (tmp_path / "same.csv").write_text("\n".join(["path,class", *rows]))
    (tmp_path / "other.csv").write_text("\n".join(["path,class", *rows[1:]]))
    file = tmp_path / "data.catalog"
    machine.ok("catalog", "export", source, file, "--classes", str(tmp_path / "labels.csv"))
    for options in ([], ["--classes", str(tmp_path / "same.csv")]):
        machine.ok("inspect", "--catalog", str(file), source, *options)
    for other in (str(tmp_path / "other.csv"), "dir"):
        refused = machine.run("inspect", "--catalog", file, source, "--classes", other)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 2)
        assert f"--classes {other}: {file} was made with another table; leave the option out" in refused.stderr


def refused(machine: Machine, code: int, *arguments: str | Path) -> str:
    """The one line with which a command ends."""
    done = machine.run(*arguments)
    assert done.returncode == code, done.stderr
    assert not os.path.ismount(machine.mnt)
    assert done.stderr.count("redoxfs: ") == 1
    return done.stderr.splitlines()[-1].removeprefix("redoxfs: ")


def test_other_options_than_those_of_the_catalog_are_refused(machine: Machine, source: Path, file: Path) -> None:
    mount = ("mount", "--catalog", file, source, machine.mnt)
    for options, said in (
        (["--classes", "any"], f"--classes any: {file} was made with --classes dir; "),
        (["--samples", "*.png"], f"--samples *.png: {file} was made with the default of --samples; "),
        (["--groups", "stem"], f"--groups stem: {file} was made with no --groups; "),
        (["--rescan"], "--rescan scans SOURCE, and --catalog is there to scan nothing; "),
    ):
        assert refused(machine, 2, *mount, *options).startswith(said)


def test_a_damaged_or_missing_catalog_is_refused(machine: Machine, source: Path, file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    for verb in (("mount", "--catalog", file, source, machine.mnt), ("catalog", "show", file)):
        assert refused(machine, 9, *verb) == f"{file} is damaged: its checksum is wrong; export it again"
    assert refused(machine, 2, "catalog", "show", file.with_name("none")).endswith("No such file or directory")


@pytest.mark.parametrize(
    "said",
    [{"asked": {}}, {"asked": {"classes": "dir", "samples": 1}}, {"about": {}}, {"about": {"exported_at_s": 1 << 60}}],
)
def test_a_catalog_that_says_no_options_is_refused(
    machine: Machine, source: Path, file: Path, said: dict[str, dict[str, object]]
) -> None:
    read = read_catalog(file)
    write_catalog(file, read.catalog, asked=said.get("asked", read.asked), about=said.get("about", read.about))
    for verb in (("mount", "--catalog", file, "--groups", "stem", source, machine.mnt), ("catalog", "show", file)):
        assert refused(machine, 9, *verb) == f"{file} is damaged: it does not say how it was made; export it again"


def test_another_dataset_is_refused(machine: Machine, source: Path, file: Path, tmp_path: Path) -> None:
    (source / "dog").rename(source / "wolf")
    line = refused(machine, 3, "mount", "--catalog", file, source, machine.mnt)
    assert line.startswith(f"{source} is not the dataset in {file}: dog")
    machine.ok("pack", source, tmp_path / "packed", "--classes", "dir", "--jobs", "1")
    assert "packed dataset" in refused(machine, 2, "mount", "--catalog", file, tmp_path / "packed", machine.mnt)
    assert "packed dataset" in refused(machine, 3, "catalog", "export", tmp_path / "packed", file)


def test_an_export_goes_where_it_can_and_nowhere_else(machine: Machine, source: Path, tmp_path: Path) -> None:
    for where, said in (
        (source / "data.catalog", "lies inside SOURCE"),
        (tmp_path / "none/data.catalog", "is not a directory"),
        (tmp_path, "is not a regular file"),
    ):
        assert said in refused(machine, 4, "catalog", "export", source, where)
    assert sorted(path.name for path in source.iterdir()) == ["cat", "dog"]


def test_an_export_replaces_a_catalog_and_no_other_file(machine: Machine, source: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.catalog"
    for _ in range(2):
        machine.ok("catalog", "export", source, file)
    file.write_text("import torch")
    told = machine.refused(4, "catalog", "export", source, file)
    assert "is there, and is no catalog" in told
    assert file.read_text() == "import torch"


def test_a_file_overwritten_after_the_scan_is_served_as_it_is(machine: Machine, source: Path) -> None:
    """Its directory has not changed, so the next mount does not notice it before it reads the file."""
    for directory in (source, source / "cat", source / "dog"):
        os.utime(directory, ns=(10**18, 10**18))
    machine.ok("inspect", source, "--classes", "dir")
    # The times of a directory, which has just been made, prove nothing yet.
    cached = next((machine.folder / "cache/redoxfs").glob("[!.]*/manifest.json"))
    manifest = json.loads(cached.read_text())
    cached.write_text(json.dumps(manifest | {"scanned_at_ns": manifest["scanned_at_ns"] + 60 * 10**9}))
    (source / "cat/00.jpg").write_bytes(b"cat, overwritten with more than there was")
    done = machine.ok("mount", source, machine.mnt, "--classes", "dir", "--memory", "64KiB")
    assert "unchanged since the last scan (--rescan)" in done.stderr
    check_epochs(machine.mnt, contents(source))
    assert machine.stats()["changed"] == 1
    machine.ok("umount", machine.mnt)
    (source / "dog/new.jpg").write_bytes(b"dog, new")
    done = machine.ok("mount", source, machine.mnt, "--classes", "dir", "--memory", "64KiB")
    assert "1 changed directory scanned in" in done.stderr
    check_epochs(machine.mnt, contents(source))
    machine.ok("umount", machine.mnt)
    assert "121 files, scanned in" in machine.ok("inspect", source, "--rescan").stderr
