"""Attacks by other users of the machine on what root, or the user who mounts, does. SECURITY.md lists them."""

import json
import os
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import slow_store
from hostile_mount import Link, hostile_mount
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


# A mount that another user made, and that root looks at.


SECRET = "only root may read this"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of root's. Its content is a JSON object, so that a command that reads it would show it."""
    path = tmp_path / "secret"
    path.write_text(json.dumps({"source": SECRET, "pid": 1, "version": SECRET, "opens": 7, "open_seconds": {}}))
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("options", ["allow_other", ""])
def test_root_follows_no_symlink_that_another_users_mount_serves(
    machine: Machine, stranger: Stranger, secret: Path, options: str
) -> None:
    link = Link(str(secret))
    mnt = stranger.mkdir("mnt")
    for tree in (
        {".redoxfs": {"stats.json": link, "history.json": link, "accesslog": link}},
        {".redoxfs": Link(str(secret.parent))},
    ):
        with hostile_mount(mnt, tree, stranger.uid, options=options):
            bundle = machine.folder / "bundle"
            told = [machine.run("debug", mnt, "-o", bundle, "--interval", "0.1").stdout]
            with tarfile.open(bundle) as archive:
                names = archive.getnames()
                told += [file.read().decode() for each in archive if (file := archive.extractfile(each)) is not None]
            assert "redoxfs-debug/history.json" not in names
            bundle.unlink()
            for words in (
                ("status", mnt),
                ("status", mnt, "--json"),
                ("stats", mnt, "--count", "1", "--interval", "0.1"),
                ("doctor", mnt),
                ("report", mnt, "-o", machine.folder / "page.html"),
                ("profile", mnt, "--seconds", "0.2"),
                ("top", mnt, "--count", "1", "--interval", "0.1"),
            ):
                done = machine.run(*words)
                told += [done.stdout, done.stderr]
                assert done.returncode != 2, done.stderr
                assert not (machine.folder / "page.html").exists()
            assert SECRET not in "".join(told)


def test_a_file_of_another_users_mount_is_read_as_that_user(machine: Machine, stranger: Stranger) -> None:
    """Without allow_other the kernel refuses root; and what serves the mount learns that its user asks."""
    mnt = stranger.mkdir("mnt")
    stats = {"pid": 1, "version": "0", "source": "/data", "opens": 12345}
    with hostile_mount(mnt, {".redoxfs": {"stats.json": json.dumps(stats).encode()}}, stranger.uid, options=""):
        with pytest.raises(PermissionError):
            (mnt / ".redoxfs/stats.json").read_bytes()
        assert json.loads(machine.ok("status", mnt, "--json").stdout) == stats
