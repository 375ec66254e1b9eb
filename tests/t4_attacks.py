"""Attacks by other users of the machine on what root, or the user who mounts, does. SECURITY.md lists them."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import slow_store
from machine import Machine
from patience import until
from strangers import Stranger, stranger_here

from redoxfs.linux.fuse_device import MountError, hold, mount
from redoxfs.linux.mount_table import read_mounts

pytestmark = [pytest.mark.mount, pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two other users")]


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    with stranger_here() as one:
        yield one


def redoxfs_mounts() -> set[str]:
    return {each.mountpoint for each in read_mounts() if each.ours}


# A mount of root below a folder that another user owns.


@pytest.fixture(scope="module")
def slow_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return slow_store.compiled(tmp_path_factory.mktemp("slow"))


@pytest.mark.parametrize("keeper", ["--keeper", "--no-keeper"])
@pytest.mark.parametrize("above", [False, True])
def test_a_symlink_that_is_made_during_the_scan_leads_no_mount_astray(
    machine: Machine, source: Path, stranger: Stranger, slow_program: Path, keeper: str, above: bool
) -> None:
    victim, before = machine.folder / "victim", redoxfs_mounts()
    (victim / "mnt").mkdir(parents=True)
    mnt = stranger.mkdir("data") / "mnt"
    stranger.does(mnt.mkdir)
    slow = machine.folder / "slow"
    slow.mkdir()

    def swap() -> None:
        moved = mnt.parent if above else mnt
        moved.rename(stranger.folder / "moved")
        moved.symlink_to(victim if above else victim / "mnt")

    with (
        slow_store.served(slow_program, source, slow, 30, names=True) as store,
        subprocess.Popen(
            machine.command("mount", slow, mnt, keeper), env=machine.environment, stderr=subprocess.PIPE, text=True
        ) as command,
    ):
        assert command.stderr is not None
        # Once it says what memory it takes, it has checked the mountpoint; then it scans.
        said = command.stderr.readline()
        store.send_signal(signal.SIGSTOP)
        stranger.does(swap)
        store.send_signal(signal.SIGCONT)
        said += command.stderr.read()
        assert (command.wait(), said.count("Traceback")) == (7, 0), said
    assert f"{mnt} could not be mounted: it was moved or replaced meanwhile" in said
    assert "is served" not in said
    assert redoxfs_mounts() == before
    assert not list((victim / "mnt").iterdir())
    # A keeper ends a moment after its daemon.
    until(lambda: not machine.daemons(), lambda: f"still there: {machine.daemons()}")


def test_a_mountpoint_that_is_replaced_after_it_was_held_is_refused(tmp_path: Path, stranger: Stranger) -> None:
    before = redoxfs_mounts()
    victim, mnt = tmp_path / "victim", stranger.mkdir("mnt")
    victim.mkdir()
    held = hold(mnt)
    try:
        stranger.does(lambda: mnt.rename(stranger.folder / "moved"))
        stranger.does(lambda: mnt.symlink_to(victim))
        with pytest.raises(MountError, match="it was moved or replaced meanwhile"):
            mount(mnt, fsname="x", options=set(), held=held)
        assert redoxfs_mounts() == before
        with pytest.raises(OSError, match="a symlink is in its path"):
            hold(mnt)
    finally:
        os.close(held)
