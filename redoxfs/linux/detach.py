"""Ending a mount: umount2(2) where the kernel permits it, else the setuid helper fusermount3.

The system call is tried first for every user, because it needs a capability and not a user id. Only EPERM leads to the
helper, and never for root: run by root it has no more rights than we do. Both fail with an OSError that has an errno.

The path is one of the mount table, without symlinks. Other users may rename folders above their own mounts and put
symlinks in their place, so a symlink in the path is an error: root would end another mount.
"""

import errno
import os
import shutil
import subprocess
from pathlib import Path

from redoxfs.linux.descriptors import opened
from redoxfs.linux.libc import last_error, libc

# <sys/mount.h>
MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8

# Where Debian installs it, for a PATH that lacks /usr/bin.
_HELPER_PATHS = ("/usr/bin", "/bin", "/usr/local/bin")

# fusermount3 unmounts for a user only mounts that are listed here; containers and minimal systems may lack it.
_MTAB = "/etc/mtab"


def unmount(path: Path) -> None:
    """End the mount at `path`. Raises OSError: EBUSY if it is in use, ELOOP if there is a symlink on the way."""
    _umount2(path, _UMOUNT_NOFOLLOW, ["-u"])


def detach(path: Path) -> None:
    """Take the mount at `path` out of the tree; its users keep it until they close it. Raises OSError."""
    _umount2(path, _UMOUNT_NOFOLLOW | MNT_DETACH, ["-u", "-z"])


def find_helper() -> str | None:
    """Where fusermount3 is; None if it is not installed."""
    return shutil.which("fusermount3") or shutil.which("fusermount3", path=os.pathsep.join(_HELPER_PATHS))


def _umount2(path: Path, flags: int, helper_flags: list[str]) -> None:
    try:
        _umount_beneath_its_parent(os.fsencode(path), flags)
        return
    except OSError as error:
        failure = error
    if failure.errno != errno.EPERM or os.geteuid() == 0:
        raise failure
    _ask_helper(path, helper_flags)


def _umount_beneath_its_parent(path: bytes, flags: int) -> None:
    parent, name = os.path.split(path)
    with opened(os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as folder:
        within = b"/proc/self/fd/%d" % folder
        # The kernel's own name of the folder differs if it was reached through a symlink.
        if os.readlink(within) != parent:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if libc.umount2(within + b"/" + name, flags) != 0:
            raise last_error()


def _ask_helper(path: Path, flags: list[str]) -> None:
    helper = find_helper()
    if helper is None:
        raise OSError(errno.EPERM, "fusermount3 is not installed; only root can unmount without it (apt install fuse3)")
    # The helper gives its reasons in words only; in the C locale "busy" is one of them.
    environment = os.environ | {"LC_ALL": "C"}
    done = subprocess.run(
        [helper, *flags, "--", os.fspath(path)], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        words = " ".join(done.stderr.split()) or f"fusermount3 failed with {done.returncode}"
        if f"failed to open {_MTAB}" in words:
            words += f"; to make it, as root: ln -s ../proc/self/mounts {_MTAB}"
        raise OSError(errno.EBUSY if "busy" in words.lower() else errno.EPERM, words)
