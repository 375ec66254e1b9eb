"""Mounts of the device without a filesystem behind them: their options, their reasons to fail, and their ends."""

import errno
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import wire
from patience import completed

from redoxfs.linux.detach import detach, unmount
from redoxfs.linux.fuse_device import MAX_READ_BYTES, Device, MountError, mount
from redoxfs.linux.mount_table import Mount, read_mounts

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount as it likes")


@pytest.fixture
def mnt(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "mnt"
    path.mkdir()
    yield path
    for _ in mounts_at(path):
        detach(path)


def mounts_at(path: Path) -> list[Mount]:
    return [mount for mount in read_mounts() if mount.mountpoint == str(path)]


def flags_at(path: Path) -> set[str]:
    """The flags of the mount itself, which `Mount` does not have."""
    (line,) = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {path} " in line]
    return set(line.split()[5].split(","))


def mounted(path: Path, *options: str) -> Device:
    return mount(path, fsname="/some/source", options=set(options))


def test_a_mount_is_read_only_and_reads_up_to_a_mebibyte(mnt: Path) -> None:
    device = mounted(mnt)
    (found,) = mounts_at(mnt)
    assert (found.fstype, found.source) == ("fuse.redoxfs", "/some/source")
    assert f"max_read={MAX_READ_BYTES}" in found.super_options
    assert not found.super_options & {"allow_other", "default_permissions"}
    assert flags_at(mnt) >= {"ro", "nosuid", "nodev"}
    assert not os.get_blocking(device.fd)
    assert not os.get_inheritable(device.fd)
    _, opcode, *_ = wire.IN_HEADER.unpack_from(os.read(device.fd, wire.MESSAGE_BYTES))
    assert opcode == wire.Opcode.INIT
    device.end()
    assert not mounts_at(mnt)


@needs_root
def test_mount_options_reach_the_kernel(mnt: Path) -> None:
    device = mounted(mnt, "allow_other", "default_permissions", "noexec", "noatime", "nodiratime")
    assert mounts_at(mnt)[0].super_options >= {"allow_other", "default_permissions"}
    assert flags_at(mnt) >= {"noexec", "noatime", "nodiratime"}
    device.end()


def test_a_mount_for_which_descriptors_run_out_is_not_left_waiting(mnt: Path) -> None:
    # Three descriptors are free: of the device, and two of the mountpoint.
    code = """
import os, resource, sys
from pathlib import Path
from redoxfs.linux.fuse_device import MountError, mount
free = os.open("/dev/null", os.O_RDONLY)
os.close(free)
resource.setrlimit(resource.RLIMIT_NOFILE, (free + 3, free + 3))
try:
    mount(Path(sys.argv[1]), fsname="x", options=set())
except MountError as error:
    os.close(os.open("/dev/null", os.O_RDONLY))
    sys.exit(str(error))
"""
    done = completed([sys.executable, "-c", code, mnt])
    assert (done.returncode, done.stderr) == (1, f"{mnt} could not be mounted: Too many open files\n")
    assert not mounts_at(mnt)


@pytest.mark.parametrize("name", ["with space", "new\nline", "ünï", "back\\slash", "com,ma"])
def test_mountpoints_may_have_any_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.mkdir()
    mounted(path).end()
    assert not mounts_at(path)


def test_the_reason_of_a_failure_is_told(tmp_path: Path) -> None:
    with pytest.raises(MountError, match="No such file or directory"):
        mounted(tmp_path / "missing")


@needs_root
def test_an_end_after_an_unmount_leaves_other_mounts_alone(mnt: Path) -> None:
    device = mounted(mnt)
    detach(mnt)
    other = mounted(mnt)
    device.end()
    assert not device.is_dead
    assert len(mounts_at(mnt)) == 1
    other.end()


@needs_root
def test_an_end_tells_a_connection_that_the_kernel_ended_from_an_unmount(
    mnt: Path, caplog: pytest.LogCaptureFixture
) -> None:
    device = mounted(mnt)
    assert subprocess.run(["umount", "-f", mnt], check=False).returncode == 0
    device.end()
    assert not device.is_dead
    assert not caplog.records
    device = mounted(mnt)
    user = os.open(mnt, os.O_PATH)
    try:
        assert subprocess.run(["umount", "-f", mnt], check=False).returncode != 0
        device.end()
    finally:
        os.close(user)
    assert device.is_dead
    assert len(mounts_at(mnt)) == 1
    (line,) = caplog.messages
    assert line.endswith(f"and the mount is dead; to clear it: redoxfs umount {mnt}")


@needs_root
def test_an_end_after_a_lazy_unmount_leaves_other_mounts_alone(mnt: Path) -> None:
    """The first mount is still in use, so nothing tells that it is not visible any more."""
    device = mounted(mnt)
    user = os.open(mnt, os.O_PATH)
    try:
        detach(mnt)
        other = mounted(mnt)
        device.end()
        assert len(mounts_at(mnt)) == 1
        other.end()
    finally:
        os.close(user)


def test_a_closed_device_leaves_a_dead_mount(mnt: Path) -> None:
    mounted(mnt).close()
    assert len(mounts_at(mnt)) == 1
    with pytest.raises(OSError) as raised:
        os.listdir(mnt)
    assert raised.value.errno == errno.ENOTCONN


UNPRIVILEGED = """
import os, sys
from pathlib import Path
from redoxfs.linux.fuse_device import MountError, mount
from redoxfs.linux.mount_table import read_mounts

os.chdir("/")
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
path, *options = sys.argv[1:]
try:
    device = mount(Path(path), fsname="/some/source", options=set(options))
except MountError as error:
    sys.exit(str(error))
assert not os.get_blocking(device.fd)
assert not os.get_inheritable(device.fd)
(found,) = [each for each in read_mounts() if each.mountpoint == path]
print(found.fstype, found.source, *sorted(found.super_options))
device.end()
assert path not in [each.mountpoint for each in read_mounts()]
"""


@pytest.fixture
def public() -> Iterator[Path]:
    """An empty folder that everybody can reach; ``tmp_path`` is its owner's alone."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    path.rmdir()


@pytest.fixture
def unprivileged(tmp_path: Path) -> list[str]:
    """A program that mounts as a user without rights, in a namespace of its own where everybody may use /dev/fuse."""
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("fusermount3") is None:
        pytest.skip("needs root, unshare and fusermount3")
    node = tmp_path / "fuse"
    os.mknod(node, stat.S_IFCHR | 0o600, os.stat("/dev/fuse").st_rdev)
    node.chmod(0o666)
    script = 'mount --bind "$0" /dev/fuse; exec "$@"'
    return ["unshare", "--mount", "sh", "-ec", script, str(node), sys.executable, "-c", UNPRIVILEGED]


def run(program: list[str], path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return completed([*program, str(path), *options])


def test_without_rights_the_helper_mounts(unprivileged: list[str], public: Path) -> None:
    os.chown(public, 65534, 65534)
    done = run(unprivileged, public, "default_permissions", "noexec", "noatime", "nodiratime")
    assert (done.returncode, done.stderr) == (0, "")
    kind, source, *options = done.stdout.split()
    assert (kind, source) == ("fuse.redoxfs", "/some/source")
    assert {"default_permissions", "user_id=65534", f"max_read={MAX_READ_BYTES}"} <= set(options)


def test_the_words_of_the_helper_are_the_reason(unprivileged: list[str], public: Path) -> None:
    done = run(unprivileged, public)
    assert done.returncode == 1
    assert "no write access to mountpoint" in done.stderr


@needs_root
def test_a_symlink_in_a_path_never_leads_to_another_mount(mnt: Path, tmp_path: Path) -> None:
    """As a user may put one there after the mount table was read."""
    device = mounted(mnt)
    try:
        link = tmp_path / "link"
        link.symlink_to(tmp_path)
        for end in (unmount, detach):
            with pytest.raises(OSError, match="symbolic links"):
                end(link / mnt.name)
        assert mounts_at(mnt)
    finally:
        device.end()


@needs_root
def test_without_the_helper_the_reason_is_that_it_is_missing(mnt: Path) -> None:
    program = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", sys.executable, "-c", WITHOUT_HELPER]
    done = completed([*program, str(mnt)])
    assert done.returncode == 1
    assert "fusermount3 is not installed" in done.stderr


WITHOUT_HELPER = """
import sys
from pathlib import Path
from redoxfs.linux import fuse_device as device
device.find_helper = lambda: None
try:
    device.mount(Path(sys.argv[1]), fsname="x", options=set())
except device.MountError as error:
    sys.exit(str(error))
"""
