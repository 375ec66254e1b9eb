"""`redoxfs umount`: end the mount, and return when nothing of it is left.

The daemon's pid comes from the mount itself, through a file that only our daemons serve. It is held as a descriptor
before the mount ends, because the number may belong to another process later. Nothing is killed here: the daemon ends
because its mount has ended.
"""

import errno
import json
import os
import select
from collections.abc import Callable
from pathlib import Path

from redoxfs.cli.options import UmountOptions
from redoxfs.launch.deadline import read_file
from redoxfs.launch.errors import DaemonError, MountpointError, StillInUseError
from redoxfs.launch.path_status import CONTROL_FOLDER, PathStatus, clear_stale, our_mount_at
from redoxfs.launch.say import say
from redoxfs.linux.detach import detach, unmount
from redoxfs.linux.mount_table import also_mounted

# A daemon has little to do at its end: it abandons loads in flight. One that takes longer than this hangs.
_END_WAIT_S = 30.0
# After this time, check whether another mount namespace keeps the filesystem mounted.
_LOOK_AFTER_S = 2.0
# A daemon detached with --lazy lives as long as its last user; this covers only the case without users.
_LAZY_END_WAIT_S = 2.0
# A daemon that does not report its pid soon may hang; it must be unmountable all the same.
_PID_WAIT_S = 5.0


def run(options: UmountOptions) -> int:
    """Unmount; returns 0 once the daemon has ended."""
    mount = our_mount_at(options.mountpoint, options.timeout_s)
    if mount.is_stale:
        clear_stale(mount)
        return 0
    daemon = _daemon_of(mount, min(options.timeout_s, _PID_WAIT_S))
    try:
        if options.lazy:
            _end(mount, detach)
            _await_lazy(daemon, mount)
        else:
            _end(mount, unmount)
            _await_end(daemon, mount, min(options.timeout_s, _END_WAIT_S))
    finally:
        if daemon is not None:
            os.close(daemon)
    return 0


def _daemon_of(mount: PathStatus, timeout_s: float) -> int | None:
    """A pidfd of the daemon; None if it hangs or is another user's."""
    try:
        stats = json.loads(read_file(mount.path / CONTROL_FOLDER / "stats.json", timeout_s))
        return os.pidfd_open(int(stats["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _end(mount: PathStatus, way: Callable[[Path], None]) -> None:
    try:
        way(mount.path)
    except OSError as failure:
        if failure.errno == errno.EBUSY:
            raise StillInUseError(
                f"{mount.path}: still in use; to see by whom: fuser -vm {mount.path} (or: umount --lazy)"
            ) from None
        raise MountpointError(f"{mount.path}: cannot be unmounted: {failure.strerror}") from None


def _await_end(daemon: int | None, mount: PathStatus, timeout_s: float) -> None:
    if daemon is None:
        say(f"{mount.path} is unmounted; its daemon did not report its pid, so its end was not awaited")
        return
    look_after_s = min(_LOOK_AFTER_S, timeout_s)
    for wait_s in (look_after_s, timeout_s - look_after_s):
        if _has_ended(daemon, wait_s):
            return
        elsewhere = None if mount.mount is None else also_mounted(mount.mount)
        if elsewhere is not None:
            raise StillInUseError(f"{mount.path} is unmounted, but {elsewhere}; its daemon ends when that is unmounted")
    raise DaemonError(
        f"{mount.path} is unmounted, but its daemon has not ended within {timeout_s:g} s; another user's mount "
        "namespace may still have it mounted; otherwise see its log"
    )


def _await_lazy(daemon: int | None, mount: PathStatus) -> None:
    if daemon is None or not _has_ended(daemon, _LAZY_END_WAIT_S):
        say(f"{mount.path} is detached; its daemon ends with its last user")


def _has_ended(daemon: int, timeout_s: float) -> bool:
    waiting = select.poll()
    waiting.register(daemon, select.POLLIN)
    return bool(waiting.poll(timeout_s * 1000))
