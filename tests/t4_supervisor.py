"""A supervised mount ends with its owner, whichever of the processes is killed, and leaves nothing."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine import PATIENCE_S, Machine, has_ended

OWNER = """
import sys
from redoxfs.launch.supervisor import Supervised

mount = Supervised(sys.argv[2:], sys.argv[1], lambda line: None)
mount.wait_ready()
print(mount.code, mount.line, flush=True)
sys.stdin.read()
mount.end()
mount.wait_end()
print(mount.code, mount.line, flush=True)
"""


class Owner:
    """A process that owns a supervised mount at ``mountpoint``, which does not exist before."""

    def __init__(self, machine: Machine, source: Path, *options: str) -> None:
        self.machine = machine
        self.mountpoint = machine.folder / "made" / "mnt"
        words = [
            str(self.mountpoint),
            "--foreground",
            "--memory=1MiB",
            f"--log={machine.folder}/log",
            *options,
            "--",
            str(source),
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, *words, str(self.mountpoint)],
            env=machine.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.first = self.process.stdout.readline().strip()

    def daemon(self) -> int:
        return self.machine.pid(self.mountpoint)

    def supervisor(self) -> int:
        return int(Path(f"/proc/{self.daemon()}/stat").read_text().rpartition(")")[2].split()[1])

    def end(self) -> str:
        """Let it end its mount; its last line."""
        told, _ = self.process.communicate(timeout=PATIENCE_S)
        return str(told).strip()


@pytest.fixture
def owner(machine: Machine, source: Path) -> Iterator[Owner]:
    one = Owner(machine, source)
    try:
        yield one
    finally:
        one.process.kill()
        one.process.communicate()


def gone(*pids: int) -> list[int]:
    """Descriptors for `has_ended`."""
    return [os.pidfd_open(pid) for pid in pids]


def check_nothing_is_left(owner: Owner) -> None:
    assert owner.machine.nothing_is_left()
    assert not list(owner.machine.sockets.rglob("*.owner"))


def test_the_owner_ends_the_mount_at_a_folder_that_was_made(owner: Owner) -> None:
    assert owner.first == "None"
    assert (owner.mountpoint / "train").is_dir()
    ends = gone(owner.daemon(), owner.supervisor())
    assert owner.end() == "0 ended with its owner"
    assert all(map(has_ended, ends))
    check_nothing_is_left(owner)


@pytest.mark.parametrize("who", ["owner", "daemon"])
def test_nothing_is_left_of_a_mount_after_a_kill_of(owner: Owner, who: str) -> None:
    ends = gone(owner.daemon(), owner.supervisor())
    os.kill(owner.process.pid if who == "owner" else owner.daemon(), signal.SIGKILL)
    assert all(map(has_ended, ends))
    check_nothing_is_left(owner)
    assert owner.end() == ("137 its daemon was killed (SIGKILL)" if who == "daemon" else "")


def test_a_daemon_whose_supervisor_is_killed_unmounts(owner: Owner) -> None:
    ends = gone(owner.daemon(), owner.supervisor())
    os.kill(owner.supervisor(), signal.SIGKILL)
    assert all(map(has_ended, ends))
    assert not owner.machine.mounts()
    assert not list(owner.machine.sockets.rglob("*.sock"))
    assert owner.end() == "1 its supervisor has ended"


def test_the_next_owner_waits_while_a_daemon_that_hangs_is_killed(owner: Owner, source: Path) -> None:
    first = owner.daemon()
    ends = gone(first, owner.supervisor())
    os.kill(first, signal.SIGSTOP)
    os.kill(owner.process.pid, signal.SIGKILL)
    next_one = Owner(owner.machine, source)
    assert next_one.first == "None"
    assert all(map(has_ended, ends))
    assert next_one.daemon() != first
    assert next_one.end() == "0 ended with its owner"
    check_nothing_is_left(owner)


def test_a_second_owner_gets_the_reason_why_it_cannot_mount(owner: Owner, source: Path) -> None:
    second = Owner(owner.machine, source)
    assert second.first.startswith(f"4 {owner.mountpoint}: a live redoxfs mount is there already")
    second.end()
    assert json.loads((owner.mountpoint / ".redoxfs/stats.json").read_text())["pid"] == owner.daemon()
    owner.end()
    check_nothing_is_left(owner)


@pytest.mark.parametrize("who", ["another owner", "a command"])
def test_a_mount_that_is_refused_leaves_a_paused_one_alone(machine: Machine, source: Path, who: str) -> None:
    """A look at it has no answer, as if its daemon hung for good."""
    mountpoint = machine.folder / "made" / "mnt"
    if who == "a command":
        mountpoint.mkdir(parents=True)
        machine.ok("mount", source, mountpoint, "--no-keeper")
    else:
        first = Owner(machine, source)
    daemon = machine.pid(mountpoint)
    os.kill(daemon, signal.SIGSTOP)
    try:
        second = Owner(machine, source, "--timeout=1")
        assert second.first.startswith(f"4 {mountpoint}: ")
        second.end()
    finally:
        os.kill(daemon, signal.SIGCONT)
    assert machine.pid(mountpoint) == daemon
    if who == "a command":
        machine.ok("umount", mountpoint)
    else:
        first.end()
