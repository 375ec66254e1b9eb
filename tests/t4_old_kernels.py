"""What redoxfs does on an older Linux, which `old_kernel.py` imitates. No old kernel was booted."""

import os
import sys
from pathlib import Path

import pytest
from machine import Machine

OLD = Path(__file__).with_name("old_kernel.py")


@pytest.fixture
def old(machine: Machine) -> Machine:
    machine.before = sys.executable, str(OLD)
    return machine


def test_without_pidfd_and_openat2_a_mount_serves_restarts_and_ends(old: Machine, source: Path) -> None:
    old.ok("mount", source, old.mnt, "--classes", "dir")
    assert (old.mnt / "train/n02121808/cat3.jpg").read_bytes().startswith(b"cat ")
    old.ok("status", old.mnt)
    pid = old.stats()["pid"]
    old.ok("restart", old.mnt)
    assert old.stats()["pid"] != pid
    assert (old.mnt / "train/n02084071/dog23.jpg").read_bytes().startswith(b"dog ")
    old.umount()


@pytest.mark.parametrize("more", [(), ("--no-keeper",), ("-f",)], ids=" ".join)
def test_a_kernel_with_an_older_fuse_is_named_at_once(old: Machine, source: Path, more: tuple[str, ...]) -> None:
    old.environment = {**old.environment, "OLD_FUSE_MINOR": "27"}
    done = old.run("mount", source, old.mnt, *more)
    assert done.returncode == 7
    assert "has version 7.27 of FUSE; redoxfs needs 7.31, which Linux 5.4 has" in done.stderr
    assert old.nothing_is_left()
    assert os.listdir(old.mnt) == []
