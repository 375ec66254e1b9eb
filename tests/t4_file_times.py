"""Times of files that are unusual: out of the range of 64 bits of nanoseconds, and those that never change."""

import os
import time
from pathlib import Path

import pytest
import slow_store
from machine import Machine
from packs import files_in, opened

from redoxfs.dataset import load_or_scan
from redoxfs.dataset.cache import keeps_times

YEAR_2300_S = 10_413_792_000
"""After 2262, where 64 bits of nanoseconds end. ext4 reaches 2446."""


def test_files_of_a_broken_clock_are_packed_and_read(machine: Machine, source: Path, tmp_path: Path) -> None:
    whole = files_in(source)
    for path in source.rglob("*"):
        os.utime(path, (YEAR_2300_S, YEAR_2300_S))
    assert all(path.stat().st_mtime_ns > 2**63 for path in source.rglob("*"))
    packed = tmp_path / "packed"
    machine.ok("pack", source, packed)
    machine.ok("verify", packed)
    machine.ok("mount", source, machine.mnt)
    assert sorted(files_in(machine.mnt).values()) == sorted(whole.values())
    assert files_in(machine.mnt / ".redoxfs/exact") == whole
    stats = machine.stats()
    assert (stats["changed"], stats["errors"]) == (0, 0)
    machine.ok("umount", machine.mnt)


def test_which_filesystems_change_the_times_of_their_directories() -> None:
    for kind in ("ext4", "xfs", "nfs4", "lustre", "ceph", "overlay", "", "fuseblk", "fuse.juicefs"):
        assert keeps_times(kind), kind
    for kind in ("fuse", "fuse.rclone", "fuse.s3fs", "fuse.goofys", "fuse.mergerfs", "fuse.sshfs", "fuse.gcsfuse"):
        assert not keeps_times(kind), kind


@pytest.mark.usefixtures("compiler")
def test_a_filesystem_in_user_space_is_scanned_as_a_whole(source: Path, tmp_path: Path) -> None:
    """Also where the times of its directories have not changed: nobody can know what that means there.

    Of a source with such a filesystem below it, only that filesystem.
    """
    program, outer, slow = slow_store.compiled(tmp_path), tmp_path / "outer", tmp_path / "outer/slow"
    slow.mkdir(parents=True)
    (outer / "local/deep").mkdir(parents=True)
    below = 1 + sum(path.is_dir() for path in source.rglob("*"))

    def later_ns() -> int:
        return time.time_ns() + 60_000_000_000

    with slow_store.served(program, source, slow, 0):
        for root, listed in ((source, 0), (slow, below), (outer, below)):
            with opened(root) as fd:
                scans = [load_or_scan(root, fd, tmp_path / "scans", clock_ns=later_ns) for _ in range(2)]
            assert not scans[0].reused
            assert scans[1].listed == listed
            assert len(scans[0].tree) == len(scans[1].tree)
