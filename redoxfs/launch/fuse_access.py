"""Whether this user may mount FUSE here, checked before the scan.

libfuse would find out too, but after minutes of scanning, in the daemon, and with its reason on another stream than
our exit code. Causes that cannot be checked beforehand (a seccomp filter, a missing capability) end in the same exit
code when the mount itself fails.
"""

import errno
import os
import stat
from pathlib import Path

from redoxfs.launch.errors import FuseUnavailableError
from redoxfs.launch.fuse_options import FuseOptions
from redoxfs.linux.detach import find_helper

_DEVICE = Path("/dev/fuse")
_FUSE_CONF = Path("/etc/fuse.conf")

_ADVICE = {
    errno.ENOENT: "load the module (modprobe fuse), or start the container with --device /dev/fuse",
    errno.ENODEV: "load the module: modprobe fuse",
    errno.EACCES: "ask for access to it (usually its mode is 0666)",
    errno.EPERM: "start the container with --device /dev/fuse",
}


def check_fuse(options: FuseOptions) -> None:
    """Raises FuseUnavailableError with what is missing and how to get it."""
    try:
        device = os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError as failure:
        advice = _ADVICE.get(failure.errno or 0, "FUSE needs it")
        raise FuseUnavailableError(f"{_DEVICE}: {failure.strerror}; {advice}") from None
    try:
        if not stat.S_ISCHR(os.fstat(device).st_mode):
            raise FuseUnavailableError(f"{_DEVICE}: not a device; {_ADVICE[errno.ENOENT]}")
    finally:
        os.close(device)
    if os.geteuid() == 0:
        return
    if find_helper() is None:
        raise FuseUnavailableError("fusermount3 is not installed; only root can mount without it: apt install fuse3")
    if "allow_other" in options.kernel and not _others_allowed():
        raise FuseUnavailableError(f"-o allow_other: not permitted: {_FUSE_CONF} lacks the line user_allow_other")


def _others_allowed() -> bool:
    try:
        lines = _FUSE_CONF.read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    return any(line.strip() == "user_allow_other" for line in lines)
