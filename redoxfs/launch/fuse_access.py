"""Whether this user may mount FUSE here, checked before the scan.

libfuse would find out too, but after minutes of scanning, in the daemon, and with its reason on another stream than
our exit code. Causes that cannot be checked beforehand (a seccomp filter, a missing capability) end in the same exit
code when the mount itself fails.
"""

import errno
import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from redoxfs.launch.apparmor import ENABLED, FOLDER, confinement
from redoxfs.launch.errors import FuseUnavailableError
from redoxfs.launch.fuse_options import FuseOptions
from redoxfs.linux.descriptors import opened
from redoxfs.linux.detach import find_helper
from redoxfs.linux.pids import field_of, status_of

DEVICE = Path("/dev/fuse")
FUSE_CONF = Path("/etc/fuse.conf")

_CAP_SYS_ADMIN = 21

_ADVICE = {
    errno.ENOENT: "load the module (modprobe fuse), or start the container with --device /dev/fuse",
    errno.ENODEV: "load the module: modprobe fuse",
    errno.EACCES: "ask for access to it (usually its mode is 0666)",
    errno.EPERM: "start the container with --device /dev/fuse",
}


def check_fuse(options: FuseOptions, mountpoint: Path) -> None:
    """Raises FuseUnavailableError with what is missing and how to get it."""
    trouble = device_trouble()
    if trouble is not None:
        raise FuseUnavailableError(f"{DEVICE}: {trouble.what}; {_ADVICE.get(trouble.error, 'FUSE needs it')}")
    if os.geteuid() == 0 or may_mount():
        return
    if find_helper() is None:
        raise FuseUnavailableError("fusermount3 is not installed; only root can mount without it: apt install fuse3")
    check_name()
    check_apparmor(mountpoint)
    if "allow_other" in options.kernel and not others_allowed():
        raise FuseUnavailableError(f"-o allow_other: not permitted: {FUSE_CONF} lacks the line user_allow_other")


def may_mount(proc: Path = Path("/proc")) -> bool:
    """Whether this process may call mount(2), as root may: then it needs no fusermount3."""
    try:
        return bool(int(field_of(status_of("self", proc), b"CapEff"), 16) >> _CAP_SYS_ADMIN & 1)
    except (OSError, ValueError):
        return False


def check_apparmor(mountpoint: Path, folder: Path = FOLDER, enabled: Path = ENABLED) -> None:
    """Raises FuseUnavailableError if AppArmor does not let fusermount3 mount at ``mountpoint``, an absolute path."""
    confined = confinement(folder, enabled)
    if confined is not None and not confined.permits(mountpoint):
        raise FuseUnavailableError(
            f"AppArmor lets fusermount3 mount below {', '.join(confined.places)} alone, not at {mountpoint}; "
            f"mount there, or type: {confined.mending(mountpoint)}"
        )


def check_name() -> None:
    """Raises FuseUnavailableError if this user has no name."""
    if not has_name():
        what = f"user {os.getuid()} has no name, which fusermount3 requires"
        raise FuseUnavailableError(f"{what}; add a line for it to /etc/passwd, or mount as another user")


def has_name() -> bool:
    """Whether this user has a name, without which fusermount3 mounts nothing. In a container it may have none."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class DeviceTrouble:
    """Why the device cannot be used: an errno, and words."""

    error: int
    what: str


def device_trouble(device: Path = DEVICE) -> DeviceTrouble | None:
    """Why ``device`` cannot be opened; None if it can."""
    try:
        fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    except OSError as failure:
        return DeviceTrouble(failure.errno or errno.EIO, str(failure.strerror))
    with opened(fd):
        is_device = stat.S_ISCHR(os.fstat(fd).st_mode)
    return None if is_device else DeviceTrouble(errno.ENOENT, "not a device")


def others_allowed(conf: Path = FUSE_CONF) -> bool:
    """Whether ``conf`` permits -o allow_other to all users."""
    try:
        lines = conf.read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    return any(line.strip() == "user_allow_other" for line in lines)
