"""`mount -t redoxfs` and /etc/fstab, by mount(8) itself: the commands of docs/hosts.md, in a mount namespace.

The namespace has an /sbin and an /etc/fstab of its own, so that nothing of this machine changes.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machine import OTHERS_CLEARED, PATIENCE_S, has_ended
from patience import completed

import redoxfs
from redoxfs.linux.mount_table import Mount, parse_mountinfo

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mount(8) and mount namespaces need root")

PAGE = (Path(__file__).parents[1] / "docs" / "hosts.md").read_text()

# What systemd gives to mount(8), at most.
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}

PREPARE = rf"""
{OTHERS_CLEARED}
mount --bind "$1/sbin" "$(readlink -f /sbin)"
mount --bind "$1/fstab" /etc/fstab
mkdir -p ~/.cache ~/.local/state
mount --bind "$1/cache" ~/.cache
mount --bind "$1/state" ~/.local/state
echo ready
read line
"""


class Host:
    """A mount namespace, in which /data/set and /mnt/set of the page stand for ``source`` and ``mnt``."""

    def __init__(self, folder: Path) -> None:
        self.source, self.mnt, self.fstab = folder / "data", folder / "mnt", folder / "fstab"
        for name in ("mnt", "sbin", "cache", "state"):
            (folder / name).mkdir()
        self.fstab.touch()
        words = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", PREPARE, "sh", str(folder)]
        self._holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"ready\n"

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """A line for a shell, as the page has it."""
        here = {"sudo ": "", "/data/set": str(self.source), "/mnt/set": str(self.mnt)}
        here["redoxfs install-helper"] = f"{Path(sys.executable).with_name('redoxfs')} install-helper"
        for there, own in here.items():
            command = command.replace(there, own)
        return completed(["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", "sh", "-c", command], env=ENVIRONMENT)

    def ok(self, command: str) -> subprocess.CompletedProcess[str]:
        done = self.run(command)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done

    def write_fstab(self, *lines: str) -> None:
        own = [line.replace("/data/set", str(self.source)).replace("/mnt/set", str(self.mnt)) for line in lines]
        self.fstab.write_text("".join(f"{line}\n" for line in own))

    def mounts(self) -> list[Mount]:
        found = parse_mountinfo(Path(f"/proc/{self._holder.pid}/mountinfo").read_bytes())
        return [mount for mount in found if mount.ours]

    def stats(self) -> dict[str, Any]:
        return json.loads(self.ok("cat /mnt/set/.redoxfs/stats.json").stdout)

    def daemon(self) -> int:
        """A pidfd of the daemon."""
        return os.pidfd_open(self.stats()["pid"])

    def kill(self) -> None:
        """Kill the keeper of the mount, if it has one, and the daemon."""
        stats = self.stats()
        for pid in ([] if stats["keeper"] is None else [stats["keeper"]["pid"]]) + [stats["pid"]]:
            process = os.pidfd_open(pid)
            os.kill(pid, signal.SIGKILL)
            assert has_ended(process)

    def close(self) -> None:
        for mount in reversed(self.mounts()):
            self.run(f"umount -l '{mount.mountpoint}'")
        self._holder.communicate(timeout=PATIENCE_S)


@pytest.fixture
def host(tmp_path: Path, source: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    assert host.source == source
    try:
        yield host
    finally:
        host.close()


def commands(section: str) -> list[str]:
    """The commands of a section of the page, in order."""
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"^    ((?:sudo|redoxfs) .*)", text, re.MULTILINE)


def fstab_line() -> str:
    (line,) = re.findall(r"^    (/data/set .*)", PAGE, re.MULTILINE)
    return str(line)


def test_the_pages_commands_mount_and_unmount(host: Host) -> None:
    link, mount, umount, undo = commands("mount(8)")
    assert "linked /sbin/mount.redoxfs to " in host.ok(link).stderr
    done = host.ok(mount)
    assert "is served at" in done.stderr
    (found,) = host.mounts()
    assert (found.mountpoint, found.source) == (str(host.mnt), str(host.source))
    assert {"ro", "allow_other"} <= found.super_options
    assert host.ok("cat /mnt/set/train/n02121808/cat3.jpg").stdout.startswith("cat ")
    daemon = host.daemon()
    host.ok(umount)
    assert has_ended(daemon)
    assert host.mounts() == []
    host.ok(undo)
    assert host.run(mount).returncode != 0


def test_the_pages_line_of_fstab_is_mounted_once_by_mount_a(host: Host) -> None:
    host.ok(commands("mount(8)")[0])
    host.write_fstab(fstab_line())
    mount, umount = commands("/etc/fstab")
    host.ok(mount)
    daemon = host.daemon()
    assert host.ok("cat /mnt/set/README").stdout
    # What is mounted already is no error, and no second mount.
    assert host.ok(mount).stderr == ""
    assert "already mounted" in host.ok(f"{mount} --verbose").stdout
    (found,) = host.mounts()
    assert found.mountpoint == str(host.mnt)
    assert host.run("mount -t redoxfs /data/set /mnt/set").returncode == 32
    assert len(host.mounts()) == 1
    # A dead mount is still in the table, so mount(8) lets it be; it has to be ended first.
    host.kill()
    assert has_ended(daemon)
    host.ok(f"{umount} && {mount}")
    daemon = host.daemon()
    host.ok(umount)
    assert has_ended(daemon)
    assert host.mounts() == []


def test_commands_find_the_daemon_without_its_environment(host: Host, short_path: Path) -> None:
    """mount(8) passes no XDG_RUNTIME_DIR on, and the user's shell has one."""
    host.ok(commands("mount(8)")[0])
    host.ok("mount -t redoxfs /data/set /mnt/set")
    state = host.mnt.parent / "saved"
    redoxfs = f"XDG_RUNTIME_DIR={short_path} {Path(sys.executable).with_name('redoxfs')}"
    host.ok(f"{redoxfs} state save /mnt/set {state}")
    assert state.stat().st_size


def test_lines_of_fstab_that_fail_keep_no_other(host: Host) -> None:
    host.ok(commands("mount(8)")[0])
    for name in ("a b", "bad", "other"):
        (host.mnt.parent / name).mkdir()
    host.write_fstab(
        "/data/set /mnt/set redoxfs ro,memory=1kB,nofail 0 0",
        f"/data/set {host.mnt.parent}/bad redoxfs memory=10%,unheard_of 0 0",
        f'/data/set {host.mnt.parent}/a\\040b redoxfs memory=10%,samples="*.jpg,*.png",samples=*.jpg,_netdev 0 0',
        f"/data/set {host.mnt.parent}/other redoxfs noauto,user,x-systemd.automount,comment=later 0 0",
    )
    done = host.run("mount -a")
    # mount(8): some mounts succeeded.
    assert done.returncode == 64
    assert "needs at least --memory" in done.stderr
    assert "-o unheard_of: not an option of redoxfs mount or mount(8)" in done.stderr
    (found,) = host.mounts()
    assert found.mountpoint == f"{host.mnt.parent}/a b"
    host.ok(f"mount {host.mnt.parent}/other")
    assert [mount.mountpoint for mount in host.mounts()][1:] == [f"{host.mnt.parent}/other"]


def test_bad_options_have_the_exit_codes_of_mount(host: Host) -> None:
    host.ok(commands("mount(8)")[0])
    for options, code, words in (
        ("memory", 1, "memory needs a value"),
        ("classes=dir,seed=x", 1, "not a whole number"),
        ("nodes=a,b", 1, 'quote a value with commas: name="a,b"'),
        ("memory=1kB", 32, "too little"),
        ("remount", 1, ""),
    ):
        done = host.run(f"mount -t redoxfs /data/set /mnt/set -o '{options}'")
        assert done.returncode == code, done.stderr
        assert words in done.stderr
        assert "Traceback" not in done.stderr
    done = host.run("mount -t redoxfs /data/nothing /mnt/set")
    assert done.returncode == 32
    host.ok("mount -sf -t redoxfs /data/set /mnt/set -o unheard_of")
    assert host.mounts() == []
    host.ok("mount -s -t redoxfs /data/set /mnt/set -o unheard_of")
    assert len(host.mounts()) == 1


OF_A_USER = r"""
for closed; do
    mkdir -p "/mnt/own$closed" "/mnt/work$closed"
    mount -t overlay -o "lowerdir=$closed,upperdir=/mnt/own$closed,workdir=/mnt/work$closed" overlay "$closed"
    chmod o+x "$closed"
done
mknod -m 666 /mnt/fuse c 10 229
mount --bind /mnt/fuse /dev/fuse
mkdir -p /mnt/u/data /mnt/u/mnt
echo as it is > /mnt/u/data/file
chown -R 612345:612345 /mnt/u
# mount(8) keeps the user's name.
{ cat /etc/passwd; echo "redoxfs-test:x:612345:612345::/mnt/u:/bin/sh"; } > /mnt/passwd
mount --bind /mnt/passwd /etc/passwd
"""


def test_a_user_may_mount_and_unmount_a_line_with_user(host: Host) -> None:
    """In the namespace the user may read this checkout and use /dev/fuse, as on a usual machine."""
    host.ok(commands("mount(8)")[0])
    host.ok("mount -t tmpfs -o mode=755 tmpfs /mnt")
    needed = {Path(sys.executable), Path(sys.executable).resolve(), Path(redoxfs.__file__)}
    parents = sorted({parent for path in needed for parent in path.parents})
    closed = [str(parent) for parent in parents if not parent.stat().st_mode & 0o001]
    host.ok(f"set -e; set -- {shlex.join(closed)}; {OF_A_USER}")
    host.write_fstab("/mnt/u/data /mnt/u/mnt redoxfs noauto,user,memory=10% 0 0")
    user = "setpriv --reuid=612345 --regid=612345 --clear-groups env HOME=/mnt/u"
    try:
        host.ok(f"{user} mount /mnt/u/mnt")
        (found,) = host.mounts()
        assert (found.mountpoint, found.owner) == ("/mnt/u/mnt", (612345, 612345))
        assert host.ok(f"{user} cat /mnt/u/mnt/file").stdout == "as it is\n"
        host.ok(f"{user} umount /mnt/u/mnt")
        assert host.mounts() == []
    finally:
        shutil.rmtree("/tmp/redoxfs-612345", ignore_errors=True)


def test_a_mount_enters_the_namespace_of_n(host: Host) -> None:
    helper = Path(sys.executable).with_name("mount.redoxfs")
    namespace = f"/proc/{host._holder.pid}/ns/mnt"
    done = completed([helper, host.source, host.mnt, "-N", namespace, "-o", "rw"], env={})
    assert done.returncode == 0, done.stderr
    assert [mount.mountpoint for mount in host.mounts()] == [str(host.mnt)]
