"""The mount of a volume: made with privileges, looked at without touching it, and ended whatever serves it.

A call by path into a filesystem whose process hangs blocks in the kernel, where not even SIGKILL ends it. So the plugin
reads the mount table, and has a process of its own look whether a mount is dead. A thread or a fork would not do: a
thread would keep the plugin from ending, and gRPC's threads do not survive a fork.
"""

import errno
import re
import subprocess
import sys
from collections.abc import Set
from pathlib import Path

from redoxfs.linux.detach import detach
from redoxfs.linux.fuse_device import Device, mount
from redoxfs.linux.mount_table import Mount, read_mounts, topmost_at

LOOK_S = 2.0
"""A mount that has not answered by then counts as alive. A dead one answers at once."""

# The kernel's stack of mounts cannot be this high; a mount that cannot be detached must not be tried forever.
_MOST_STACKED = 64

_LOOK = """
import os, sys
try:
    os.statvfs(sys.argv[1])
except OSError as error:
    sys.exit(error.errno)
"""

_DEAD = frozenset({errno.ENOTCONN, errno.ECONNABORTED})

_NOT_PLAIN = re.compile(r"[^A-Za-z0-9._/:-]")


def mount_at(target: Path) -> Mount | None:
    """The visible mount at a target, whatever it is."""
    return topmost_at(target, read_mounts())


def make_mount(target: Path, volume_id: str, options: Set[str]) -> Device:
    """Mount at a target. Raises redoxfs.linux.fuse_device.MountError.

    The owner of the mount is this process's user, root: every user of the pod may use it by ``allow_other``, and the
    files' own modes decide what they may read. An owner has no other rights than to abort it.
    """
    return mount(target, fsname=_NOT_PLAIN.sub("_", volume_id), options=options)


class Look:
    """Looks at the mount at a target."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._held: subprocess.Popen[bytes] | None = None

    def is_dead(self) -> bool:
        """Whether the process that served the mount has ended. False while it hangs."""
        if self._held is not None and self._held.poll() is None:
            # Another one would hang too, and a pod could fill the plugin's memory with them.
            return False
        self._held = None
        looking = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LOOK, str(self._target)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            return looking.wait(LOOK_S) in _DEAD
        except subprocess.TimeoutExpired:
            # The kernel may hold it for as long as the mount hangs: nobody waits for it.
            looking.kill()
            self._held = looking
            return False


def end_mounts(target: Path) -> None:
    """Detach every mount at a target. Raises OSError.

    Detached, not unmounted: a program that still uses it must not keep the pod from ending.
    """
    for _ in range(_MOST_STACKED):
        if mount_at(target) is None:
            return
        detach(target)
    raise OSError(errno.EBUSY, f"{target}: still mounted")
