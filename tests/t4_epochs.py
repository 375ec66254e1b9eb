"""`redoxfs.epoch` on real mounts."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from images import image
from machine import Machine

import redoxfs
from redoxfs.epochs import EpochError, tell_epoch
from redoxfs.launch.path_status import our_mount_of, place_in
from redoxfs.linux.mount_table import read_mounts
from redoxfs.sampler import Draws, mount_of_files


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    for split in ("train", "val"):
        for label, name in enumerate(("cat", "dog")):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(4):
                (folder / f"{number}.jpg").write_bytes(image(f"{split}/{name}/{number}.jpg", label, number, 300))
    return root


@pytest.fixture(autouse=True)
def _reachable(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process finds the mount's control socket."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(machine.environment["XDG_RUNTIME_DIR"]))


def test_a_mount_is_told_of_an_epoch_by_any_path_in_it(machine: Machine, source: Path) -> None:
    machine.ok("mount", source, machine.mnt, "--classes", "dir")
    assert redoxfs.epoch(machine.mnt) is True
    assert redoxfs.epoch(os.fspath(machine.mnt / "train/cat/1.jpg"), "train") is True
    assert machine.stats()["epochs_told"] == 2
    with pytest.raises(EpochError, match="'test' is not a class tree of this mount; its class trees: train, val"):
        redoxfs.epoch(machine.mnt, "test")


def test_a_sampler_draws_in_the_same_order_from_a_new_mount(machine: Machine, source: Path) -> None:
    """Of the same seed, also with several classes: the two splits."""
    files = [machine.mnt / path.relative_to(source) for path in sorted(source.rglob("*.jpg"))]
    orders = []
    for seed in ("7", "7", "8"):
        machine.ok("mount", source, machine.mnt, "--classes", "sampler", "--seed", seed)
        mount = mount_of_files(files)
        assert mount is not None
        draws = Draws(mount, files)
        orders.append([draws.next(left) for left in range(len(files), 0, -1)])
        assert sorted(orders[-1]) == list(range(len(files)))
        machine.umount()
    assert orders[0] == orders[1] != orders[2]


def test_a_mount_that_redirects_nothing_has_no_epochs(machine: Machine, source: Path) -> None:
    machine.ok("mount", source, machine.mnt, "--classes", "none")
    assert redoxfs.epoch(machine.mnt) is False
    assert redoxfs.epoch(machine.mnt, "train") is False


@pytest.mark.skipif(os.getuid() != 0, reason="mounts folders of the mount at other paths")
def test_a_mount_is_told_and_drawn_from_by_paths_of_bind_mounts(machine: Machine, source: Path, tmp_path: Path) -> None:
    machine.ok("mount", source, machine.mnt, "--classes", "sampler")
    with ExitStack() as bound:
        for name, folder in {"whole": machine.mnt, "cats": machine.mnt / "train/cat"}.items():
            (tmp_path / name).mkdir()
            subprocess.run(["mount", "--bind", folder, tmp_path / name], check=True)
            bound.callback(partial(subprocess.run, ["umount", tmp_path / name], check=True))
            assert redoxfs.epoch(tmp_path / name) is False, "a sampler has no passes"
        mounts = read_mounts()
        files = [tmp_path / "whole/train/dog/1.jpg", tmp_path / "cats/1.jpg", machine.mnt / "train/cat/2.jpg"]
        for first in files:
            mount = mount_of_files([first])
            assert mount is not None
            draws = Draws(mount, files)
            assert sorted(draws.next(left) for left in (3, 2, 1)) == [0, 1, 2]
        assert mount is not None
        places = [place_in(mount, path, mounts) for path in (*files, tmp_path / "cats", machine.mnt, tmp_path)]
        assert places == ["train/dog/1.jpg", "train/cat/1.jpg", "train/cat/2.jpg", "train/cat", ".", None]


@pytest.mark.parametrize("by_rank", [False, True])
def test_the_last_file_of_an_epoch_may_be_the_first_of_the_next(machine: Machine, source: Path, by_rank: bool) -> None:
    """For the same thread. Where nobody tells, that is a second look, and takes no turn."""
    machine.ok("mount", source, machine.mnt, "--classes", "dir")
    files = sorted((machine.mnt / "train").glob("*/*.jpg"))
    mount = our_mount_of(machine.mnt, read_mounts())
    assert mount is not None
    for number in range(6):
        if by_rank:
            tell_epoch(mount, "train", number, 1, 0)
        else:
            redoxfs.epoch(machine.mnt, "train")
        assert len({path.read_bytes() for path in files}) == len(files)
        files.reverse()


def test_a_plain_directory_is_told_nothing(source: Path) -> None:
    assert redoxfs.epoch(source) is False
    assert redoxfs.epoch(source / "nowhere") is False


def test_any_thread_may_ask_a_mount_and_none_forks(
    machine: Machine, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [machine.mnt / "train" / name / f"{number}.jpg" for name in ("cat", "dog") for number in range(4)]

    def asked() -> tuple[str, list[int]]:
        mount = mount_of_files(files)
        assert mount is not None
        draws = Draws(mount, files)
        with pytest.raises(EpochError, match="'test' is not a class tree"):
            redoxfs.epoch(machine.mnt, "test")
        return redoxfs.served(files[0]), sorted(draws.next(left) for left in range(8, 0, -1))

    def fork() -> int:
        raise AssertionError

    machine.ok("mount", source, machine.mnt, "--classes", "sampler")
    files[0].read_bytes()
    # As where Ray Train runs a training loop.
    with monkeypatch.context() as forking, ThreadPoolExecutor(1) as threads:
        forking.setattr(os, "fork", fork)
        assert threads.submit(asked).result() == (str(files[0]), [*range(8)])
