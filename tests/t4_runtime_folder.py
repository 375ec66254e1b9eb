"""The folder of control sockets and locks, which others may remove, and which mounts of equal paths share."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from disks import small_disk
from forks import EXECUTED
from machine import PATIENCE_S, Machine, contents, has_ended, mount_at
from patience import until

from redoxfs.launch.turn import keeper_of


@pytest.fixture(autouse=True)
def own_sockets(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """`keeper_of` looks where the commands of the machine do."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(machine.sockets))


def sockets(machine: Machine) -> list[Path]:
    return list(machine.sockets.rglob("*.sock"))


def test_a_runtime_folder_that_was_removed_is_made_anew(machine: Machine, source: Path) -> None:
    whole = contents(source)
    machine.ok("mount", "--keeper", source, machine.mnt)
    keeper = machine.stats()["keeper"]["pid"]
    shutil.rmtree(machine.sockets / "redoxfs")
    # Three deaths within a minute would end the mount.
    for deaths in range(2):
        until(lambda: sockets(machine), machine.log)
        until(lambda: keeper_of(mount_at(machine.mnt)) == keeper, machine.log)
        machine.ok("state", "save", machine.mnt, machine.folder / f"saved-{deaths}")
        shutil.rmtree(machine.sockets / "redoxfs")
        machine.kill(signal.SIGKILL)
        assert contents(machine.mnt) == whole
    assert "run this as its owner" not in machine.log()
    until(lambda: sockets(machine), machine.log)
    machine.umount()


def test_a_keeper_is_found_by_a_lock_that_another_command_made_anew(machine: Machine, source: Path) -> None:
    machine.ok("mount", "--keeper", source, machine.mnt)
    keeper = machine.stats()["keeper"]["pid"]
    (lock,) = machine.sockets.rglob("*.lock")
    (new := lock.with_suffix(".new")).touch()
    new.replace(lock)
    until(lambda: keeper_of(mount_at(machine.mnt)) == keeper, machine.log)
    machine.umount()


def test_a_mount_serves_where_no_runtime_folder_can_be_made(machine: Machine, source: Path) -> None:
    whole = contents(source)
    machine.ok("mount", "--keeper", source, machine.mnt)
    shutil.rmtree(machine.sockets)
    machine.sockets.write_text("in the way")
    try:
        machine.kill(signal.SIGKILL)
        assert contents(machine.mnt) == whole
        assert machine.stats()["keeper"]["restarts"] == 1
    finally:
        machine.sockets.unlink()
        machine.sockets.mkdir(mode=0o700)
    until(lambda: sockets(machine), machine.log)
    assert "no control socket, trying again every 1 s" in machine.log()
    machine.umount()


def test_a_full_runtime_folder_is_one_line(machine: Machine, source: Path) -> None:
    with small_disk(machine.sockets, "nr_inodes=2,mode=700"):
        assert "lock: cannot be made: No space left on device" in machine.refused(1, "mount", source, machine.mnt)


def test_two_mount_namespaces_may_have_the_same_mountpoint(machine: Machine, source: Path) -> None:
    """As containers that share a home and /run/user do."""
    whole = contents(source)
    machine.ok("mount", source, machine.mnt)
    one = contents(machine.mnt)
    script = """
set -e
"$@" mount SOURCE MNT
ls MNT/train >/dev/null
"$@" state save MNT FOLDER/second
"$@" restart MNT
cat MNT/train/*/*.jpg >/dev/null
"$@" status MNT --json >FOLDER/told
touch FOLDER/ready
read line
"$@" umount MNT
"""
    for name, value in {"SOURCE": source, "MNT": machine.mnt, "FOLDER": machine.folder}.items():
        script = script.replace(name, str(value))
    outer = machine.pid()
    hidden = f"umount {machine.mnt}\n{script}"
    words = machine.command()
    machine.before = ()
    other = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", hidden, "sh", *EXECUTED, *words],
        env=machine.environment,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: (machine.folder / "ready").exists() or other.poll() is not None)
        assert other.poll() is None, other.communicate()[1]
        assert len(sockets(machine)) == 2
        assert machine.pid() == outer
        machine.ok("state", "save", machine.mnt, machine.folder / "first")
        # Neither daemon counts the other's turns.
        told = json.loads((machine.folder / "told").read_text())
        assert told["turns"] == machine.stats()["turns"] == 40
        assert (machine.folder / "first").read_bytes() != (machine.folder / "second").read_bytes()
    finally:
        _, said = other.communicate("\n", timeout=PATIENCE_S)
    assert other.returncode == 0, said
    assert "another mount keeps its state there" in said
    assert one == whole
    assert machine.stats()["turns"] == machine.stats()["turns_kept"] == len(whole)
    machine.umount()


def test_a_successor_does_not_write_the_state_that_was_handed_over(machine: Machine, source: Path) -> None:
    whole = contents(source)
    machine.ok("mount", "--keeper", source, machine.mnt)
    held = os.open(machine.mnt, os.O_RDONLY | os.O_DIRECTORY)
    try:
        detached = machine.pid()
        machine.ok("umount", "--lazy", machine.mnt)
        machine.ok("mount", "--keeper", "--resume", source, machine.mnt)
        newer = machine.pid()
        process = os.pidfd_open(detached)
        os.kill(detached, signal.SIGKILL)
        assert has_ended(process)

        # The successor of the detached daemon serves those who are still in there.
        def read(folder: int) -> list[bytes]:
            root = f"/proc/self/fd/{folder}/train"
            return sorted(path.read_bytes() for path in Path(root).glob("*/*.jpg"))

        assert read(held) == whole
        first = next((machine.mnt / "train").glob("*/*.jpg"))
        first.read_bytes()
        until(lambda: machine.stats()["turns_kept"] == 1, machine.stats)
        assert machine.pid() == newer
        machine.ok("state", "save", machine.mnt, machine.folder / "saved")
    finally:
        os.close(held)
    until(lambda: len(machine.daemons()) == 2, machine.daemons)
    machine.umount()
    machine.ok("mount", "--resume", source, machine.mnt)
    assert machine.stats()["turns"] == 1


@pytest.mark.parametrize("by", ["umount", "mount"])
def test_nothing_is_left_of_a_daemon_that_was_killed(machine: Machine, source: Path, by: str) -> None:
    machine.ok("mount", "--no-keeper", source, machine.mnt)
    machine.kill(signal.SIGKILL)
    assert sockets(machine)
    if by == "mount":
        machine.ok("mount", source, machine.mnt)
        assert len(sockets(machine)) == 1
    machine.umount()
