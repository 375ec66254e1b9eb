"""`redoxfs umount --all`: every mount of a user or a job, whatever state each is in.

Other mounts of this machine are not the tests' to end, so root's commands name a job, and a user of its own runs the
others.
"""

import os
import select
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine import PATIENCE_S, Machine, has_ended, mount_at
from patience import completed

from redoxfs.linux.mount_table import read_mounts

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts of other types, and other users, need root")

USER = 600_000 + os.getpid() % 100_000
"""A user that does not exist, in no range that systems give away. Each process has its own: a test ends all mounts of
its user."""


@pytest.fixture
def job() -> str:
    return uuid.uuid4().hex


def folders(machine: Machine, *names: str) -> list[Path]:
    made = [machine.folder / name for name in names]
    for folder in made:
        folder.mkdir()
    return made


def test_all_of_a_job_ends_and_other_mounts_stay(machine: Machine, source: Path, job: str) -> None:
    a, b, other, none = folders(machine, "a", "b", "other", "none")
    machine.ok("mount", source, a, "--job", job)
    machine.environment["SLURM_JOB_ID"] = job
    machine.ok("mount", source, b)
    machine.ok("mount", source, none, "--job", "")
    machine.environment["SLURM_JOB_ID"] = f"{job}0"
    machine.ok("mount", source, other)
    done = machine.ok("umount", "--all", "--job", job)
    assert done.stdout + done.stderr == ""
    assert sorted(machine.mounts()) == [str(none), str(other)]
    assert machine.daemons() == machine.processes_of(none, other)
    machine.ok("umount", "--all", "--job", f"{job}0")
    machine.umount(none)


def test_nothing_to_unmount_is_one_line(machine: Machine, job: str) -> None:
    done = machine.ok("umount", "--all", "--job", job)
    assert done.stderr.splitlines() == [
        f"nothing to unmount: no redoxfs mount of job {job} of {'any' if os.geteuid() == 0 else 'this'} user is here"
    ]


def test_an_empty_job_is_refused(machine: Machine) -> None:
    """As that of a script whose variable is not set. It has not ended what it was to end."""
    assert "--job needs the ID of a job" in machine.refused(2, "umount", "--all", "--job", "")


def test_a_mount_that_cannot_be_ended_keeps_no_other(machine: Machine, source: Path, job: str) -> None:
    busy, dead, good, hung = folders(machine, "busy", "dead", "good", "hung")
    for mountpoint, keeper in ((busy, "--keeper"), (dead, "--no-keeper"), (good, "--keeper"), (hung, "--no-keeper")):
        machine.ok("mount", keeper, source, mountpoint, "--job", job)
    machine.kill(signal.SIGKILL, dead)
    pid = machine.pid(hung)
    ended = os.pidfd_open(pid)
    os.kill(pid, signal.SIGSTOP)
    try:
        with open(busy / "train/n02121808/cat3.jpg", "rb") as held:
            # Without --timeout: the stopped daemon is given up after some seconds, in which the others have to answer.
            done = machine.run("umount", "--all", "--job", job)
            assert done.returncode == 8
            assert machine.mounts() == [str(busy)]
            words = sorted(line.replace(str(machine.folder), "") for line in done.stderr.splitlines())
            assert words == [
                "/hung is unmounted; its daemon did not report its pid, so its end was not awaited",
                "cleared the stale mount that a killed daemon left at /dead",
                "redoxfs: /busy: still in use; to see by whom: fuser -vm /busy (or: umount --lazy)",
                "redoxfs: 1 of 4 redoxfs mounts could not be ended",
            ]
            assert machine.ok("umount", "--all", "--job", job, "--lazy").stderr.count("is detached") == 1
            assert not machine.mounts()
            assert held.read().startswith(b"cat ")
    finally:
        os.kill(pid, signal.SIGCONT)
        assert has_ended(ended)


@needs_root
def test_a_mount_that_another_hides_is_left_alone(machine: Machine, source: Path, job: str) -> None:
    machine.ok("mount", source, machine.mnt, "--job", job)
    subprocess.run(["mount", "-t", "tmpfs", "above", machine.mnt], check=True)
    try:
        done = machine.run("umount", "--all", "--job", job)
        assert (done.returncode, done.stderr.count("\n")) == (8, 2)
        assert f"{machine.mnt}: the tmpfs mount at {machine.mnt} hides it; end that first" in done.stderr
        line = f"redoxfs: {machine.mnt}: the tmpfs mount at {machine.mnt} hides the redoxfs mount; end that first\n"
        for verb in ("umount", "status"):
            assert machine.refused(4, verb, machine.mnt) == line
        assert mount_at(machine.mnt).fstype == "tmpfs"
    finally:
        subprocess.run(["umount", machine.mnt], check=True)
    machine.umount("--all", "--job", job)


@needs_root
def test_all_ends_bind_mounts_of_a_mount_too(machine: Machine, source: Path, job: str) -> None:
    (other,) = folders(machine, "other")
    machine.ok("mount", source, machine.mnt, "--job", job)
    subprocess.run(["mount", "--bind", machine.mnt / "train", other], check=True)
    subprocess.run(["mount", "--bind", machine.mnt, machine.mnt], check=True)
    assert len(machine.mounts()) == 3
    machine.umount("--all", "--job", job)


@needs_root
@pytest.mark.parametrize(
    "words", ['{"pid": 1e400}', f'{{"pid": {1 << 70}}}', "[" * 100_000], ids=["inf", "2^70", "deep"]
)
def test_a_daemon_that_reports_nonsense_is_detached_all_the_same(
    machine: Machine, source: Path, job: str, words: str
) -> None:
    machine.ok("mount", "--no-keeper", source, machine.mnt, "--job", job)
    ended = os.pidfd_open(machine.pid())
    nonsense = machine.folder / "nonsense"
    nonsense.write_text(words)
    subprocess.run(["mount", "--bind", nonsense, machine.mnt / ".redoxfs/stats.json"], check=True)
    done = machine.ok("umount", "--all", "--job", job, "--lazy")
    assert done.stderr == f"{machine.mnt} is detached; its daemon ends with its last user\n"
    assert has_ended(ended)
    assert machine.nothing_is_left()


def test_a_source_that_looks_like_a_job_belongs_to_none(machine: Machine, source: Path, job: str) -> None:
    odd = source.rename(source.with_name(f"data#job={job}"))
    machine.ok("mount", odd, machine.mnt, "--job", "")
    assert "nothing to unmount" in machine.ok("umount", "--all", "--job", job).stderr
    machine.ok("umount", machine.mnt)


class User:
    """Runs the command as another user, who may read this checkout wherever it lies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source, self.mnt = folder / "data", folder / "mnt"
        for path in (self.source, self.mnt):
            path.mkdir()
        (self.source / "file").write_text("as it is")
        for path in (folder, *folder.rglob("*")):
            os.chown(path, USER, USER)

    def run(self, *arguments: str | Path, rights: str = "+dac_override,+sys_admin") -> subprocess.CompletedProcess[str]:
        """By default with rights to mount, too: fusermount3 cannot where /dev/fuse is root's alone."""
        command = [sys.executable, "-m", "redoxfs", *map(str, arguments)]
        return completed(
            [
                "setpriv",
                f"--reuid={USER}",
                f"--regid={USER}",
                "--clear-groups",
                f"--inh-caps={rights}",
                f"--ambient-caps={rights}",
                *command,
            ],
            env=os.environ | {"HOME": str(self.folder), "XDG_RUNTIME_DIR": str(self.folder)},
        )

    def mounts(self) -> list[str]:
        return [mount.mountpoint for mount in read_mounts() if mount.mountpoint.startswith(str(self.folder))]


@pytest.fixture
def user() -> Iterator[User]:
    # Not below the tests' folder, which others may not enter.
    with tempfile.TemporaryDirectory() as folder:
        user = User(Path(folder))
        try:
            yield user
        finally:
            for mountpoint in reversed(user.mounts()):
                subprocess.run(["umount", "--lazy", mountpoint], check=True)


@needs_root
def test_all_of_a_user_ends_no_mount_of_another(machine: Machine, source: Path, user: User) -> None:
    machine.ok("mount", source, machine.mnt)
    done = user.run("mount", user.source, user.mnt)
    assert done.returncode == 0, done.stderr
    done = user.run("umount", "--all")
    assert (done.returncode, done.stderr) == (0, "")
    assert user.mounts() == []
    assert machine.mounts() == [str(machine.mnt)]
    done = user.run("umount", "--all")
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert "nothing to unmount: no redoxfs mount of this user" in done.stderr
    machine.ok("umount", machine.mnt)


@needs_root
def test_a_command_at_another_users_mount_says_who_may(machine: Machine, source: Path, user: User) -> None:
    machine.ok("mount", source, machine.mnt)
    for verb in ("umount", "status", "report", "profile"):
        output = ["--output", str(user.folder / "page")] if verb == "report" else []
        done = user.run(verb, machine.mnt, *output, rights="+dac_override")
        assert (done.returncode, done.stderr.count("\n")) == (4, 1), done.stderr
        assert "run this as its owner" in done.stderr
    assert machine.mounts() == [str(machine.mnt)]
    machine.ok("umount", machine.mnt)


@needs_root
def test_root_ends_a_job_of_another_user_and_awaits_it(machine: Machine, user: User, job: str) -> None:
    for how in (signal.SIGCONT, signal.SIGKILL):
        done = user.run("mount", user.source, user.mnt, "--job", job)
        assert done.returncode == 0, done.stderr
        daemon = int(done.stderr.partition("the daemon is pid ")[2].split()[0])
        ended = os.pidfd_open(daemon)
        try:
            os.kill(daemon, how)
            done = machine.ok("umount", "--all", "--job", job)
            assert "pid" not in done.stderr
            waiting = select.poll()
            waiting.register(ended, select.POLLIN)
            assert waiting.poll(0 if how is signal.SIGCONT else PATIENCE_S * 1000)
        finally:
            os.close(ended)
        assert user.mounts() == []
