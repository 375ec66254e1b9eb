"""The scan cache: it is reused while nothing has changed, and never fails a mount."""

from __future__ import annotations

import json
import logging
import os
import pwd
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import xxhash
from packs import opened, put_in_place_when_missed

from redoxfs.dataset import Tree, default_cache_dir, load_or_scan
from redoxfs.launch.runtime_paths import kept_path


class Source:
    """A source with its descriptor. For the cache, it is scanned a minute after its last change."""

    def __init__(self, base: Path) -> None:
        self.path, self.cache = base / "source", base / "cache"
        for name in ("cat", "dog", "deep/er"):
            (self.path / name).mkdir(parents=True)
            (self.path / name / "1.jpg").write_bytes(name.encode())
        (self.path / "link").symlink_to("cat/1.jpg")
        self.fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        self.later_ns = 60_000_000_000

    def load(self, rescan: bool = False) -> tuple[Tree, bool]:
        scan = load_or_scan(
            self.path, self.fd, self.cache, rescan=rescan, clock_ns=lambda: time.time_ns() + self.later_ns
        )
        return scan.tree, scan.reused

    def entry(self) -> Path:
        (found,) = (path for path in self.cache.iterdir() if not path.name.startswith("."))
        return found


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    source = Source(tmp_path)
    yield source
    os.close(source.fd)


def test_a_cached_tree_equals_the_scanned_one(source: Source) -> None:
    scanned, reused = source.load()
    assert not reused
    kept, reused = source.load()
    assert reused
    for field in fields(Tree):
        assert np.array_equal(getattr(kept, field.name), getattr(scanned, field.name)), field.name
    assert kept.link_target(kept.find(b"link")) == b"cat/1.jpg"
    assert not kept.size.flags.writeable


def test_the_cache_is_private_and_leaves_no_other_files(source: Source) -> None:
    source.load()
    source.load(rescan=True)
    assert [path.name for path in source.cache.iterdir()] == [source.entry().name]
    assert source.entry().stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in source.entry().iterdir()} == {0o600}


def test_the_cache_waits_for_no_disk(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    def waits(_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(os, "fsync", waits)
    source.load()
    assert source.load()[1]


@pytest.mark.parametrize("change", ["add", "remove", "rename", "deep", "chmod"])
def test_a_change_in_any_directory_means_a_scan(source: Source, change: str) -> None:
    source.load()
    if change == "add":
        (source.path / "cat/2.jpg").write_bytes(b"")
    elif change == "remove":
        (source.path / "dog/1.jpg").unlink()
    elif change == "rename":
        (source.path / "cat").rename(source.path / "horse")
    elif change == "deep":
        (source.path / "deep/er/2.jpg").write_bytes(b"")
    else:
        (source.path / "cat").chmod(0o711)
    tree, reused = source.load()
    assert not reused
    assert len(tree) == 1 + sum(len(d) + len(f) for _, d, f in os.walk(source.path))
    assert source.load()[1]


def test_a_replaced_directory_with_the_same_times_means_a_scan(source: Source) -> None:
    source.load()
    times = (source.path / "cat").stat()
    (source.path / "cat").rename(source.path / "old")
    (source.path / "cat").mkdir()
    os.utime(source.path / "cat", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert not source.load()[1]


def test_a_directory_as_young_as_the_scan_is_not_trusted(source: Source) -> None:
    source.later_ns = 0
    assert not source.load()[1]
    assert not source.load()[1]


def test_rescan_reads_the_source_again(source: Source) -> None:
    source.load()
    assert not source.load(rescan=True)[1]
    assert source.load()[1]


@pytest.mark.parametrize("name", ["manifest.json", "size.npy", "names.npy", "link_at.npy"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "remove"])
def test_a_damaged_cache_means_a_scan(source: Source, name: str, damage: str) -> None:
    tree, _ = source.load()
    path = source.entry() / name
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[-1 if name != "manifest.json" else 0] ^= 0x10
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes({"flip": bytes(data), "truncate": bytes(data[: len(data) // 2]), "empty": b""}[damage])
    again, reused = source.load()
    assert not reused
    assert np.array_equal(again.size, tree.size)
    assert source.load()[1]


@pytest.mark.parametrize(
    "change", [{"format": 0}, {"source": "00"}, {"inode": 1}, {"arrays": {}}, {"arrays": []}, {"scanned_at_ns": "x"}]
)
def test_a_foreign_manifest_means_a_scan(source: Source, change: dict[str, object]) -> None:
    source.load()
    path = source.entry() / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert not source.load()[1]


def test_a_cache_that_others_can_write_is_not_trusted(source: Source) -> None:
    source.load()
    source.entry().chmod(0o777)
    assert not source.load()[1]


def test_a_new_device_number_alone_is_a_remount(source: Source) -> None:
    tree, _ = source.load()
    entry = source.entry()
    manifest = json.loads((entry / "manifest.json").read_text())
    other = np.full(len(tree), manifest["device"] + 1, np.uint64)
    np.save(entry / "device.npy", other)

    manifest["device"] += 1
    manifest["arrays"]["device"]["xxh3_128"] = xxhash.xxh3_128_hexdigest((entry / "device.npy").read_bytes())
    (entry / "manifest.json").write_text(json.dumps(manifest))
    ends = np.full(len(tree.link_device), manifest["device"], np.uint64)
    np.save(entry / "link_device.npy", ends)
    manifest["arrays"]["link_device"]["xxh3_128"] = xxhash.xxh3_128_hexdigest((entry / "link_device.npy").read_bytes())
    (entry / "manifest.json").write_text(json.dumps(manifest))
    again, reused = source.load()
    assert reused
    assert set(again.device.tolist()) == set(again.link_device.tolist()) == {os.fstat(source.fd).st_dev}


def test_a_cache_folder_that_cannot_be_made_is_one_warning(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    source.cache.write_bytes(b"a file is in the way")
    with caplog.at_level(logging.WARNING):
        tree, reused = source.load()
    assert not reused
    assert tree.find(b"cat/1.jpg") > 0
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert str(source.cache) in caplog.text


def test_a_scan_that_another_command_saves_at_the_same_time_stays(
    source: Source, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.load()
    others: list[Path] = []
    rename = os.rename

    def rename_and_let_another_save(old: Path, new: Path) -> None:
        rename(old, new)
        if not others:
            others.append(old)
            source.load(rescan=True)

    monkeypatch.setattr(os, "rename", rename_and_let_another_save)
    with caplog.at_level(logging.WARNING):
        assert not source.load(rescan=True)[1]
    assert others == [source.entry()]
    assert not caplog.records
    assert list(source.cache.iterdir()) == others
    assert source.load()[1]


def test_a_scan_that_another_command_is_putting_in_place_is_found(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.load()
    put_in_place_when_missed(source.entry(), source.cache / "aside", monkeypatch)
    assert source.load()[1]


def test_a_scan_that_another_command_replaces_while_it_is_loaded_is_loaded_again(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.load()
    others: list[os.PathLike[str]] = []
    open_file = os.open

    def open_after_another_has_saved(path: os.PathLike[str], *how: int) -> int:
        if not others and os.fspath(path).endswith(".npy"):
            others.append(path)
            (source.path / "cat/2.jpg").write_bytes(b"new")
            source.load()
        return open_file(path, *how)

    monkeypatch.setattr(os, "open", open_after_another_has_saved)
    tree, reused = source.load()
    assert reused
    assert tree.find(b"cat/2.jpg") > 0


def test_a_reused_tree_outlives_the_cache(source: Source) -> None:
    scanned, _ = source.load()
    kept, reused = source.load()
    assert reused
    # Reading a mapped file after it was truncated kills the process by a signal.
    for path in source.entry().iterdir():
        os.truncate(path, 0)
    for field in fields(Tree):
        assert np.array_equal(getattr(kept, field.name), getattr(scanned, field.name)), field.name
    assert not source.load()[1]


def test_an_empty_source_can_be_cached(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with opened(tmp_path / "empty") as fd:
        for expected in (False, True):
            scan = load_or_scan(
                tmp_path / "empty", fd, tmp_path / "c", clock_ns=lambda: time.time_ns() + 60_000_000_000
            )
            assert scan.reused is expected
            assert len(scan.tree) == 1


def test_the_cache_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache_dir() == Path("/somewhere/redoxfs")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_cache_dir() == Path("/home/someone/.cache/redoxfs")


def test_a_user_without_a_home_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user has no line in /etc/passwd. Where / cannot be written, that is one line."""
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {}[uid])
    assert default_cache_dir() == Path("/.cache/redoxfs")
    assert kept_path(Path("/mnt/set"), "log").parent == Path("/.local/state/redoxfs")
