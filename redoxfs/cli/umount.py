"""`redoxfs umount`: end the mount, and return when nothing of it is left.

The daemon's pid comes from the mount itself, through a file that only our daemons serve, and it is held as a
descriptor before the mount goes: waiting on a number could end up waiting for somebody who got the same
number later. Nobody is killed here; the daemon ends because its mount has ended.
"""

import argparse
import errno
import json
import os
import select
from collections.abc import Callable
from pathlib import Path

from redoxfs.launch.deadline import read_file
from redoxfs.launch.detach import detach, unmount
from redoxfs.launch.errors import DaemonError, MountpointError, StillInUseError
from redoxfs.launch.path_status import CONTROL_FOLDER, Place, clear_stale, our_mount_at
from redoxfs.launch.say import say
from redoxfs.linux.mount_table import also_mounted

# A daemon has little to do at its end: loads in flight are abandoned. Longer than this is a daemon that
# hangs.
_END_WAIT_S = 30.0
# After so long it is worth a look whether somebody else keeps the filesystem mounted.
_LOOK_AFTER_S = 2.0
# One detached with --lazy may live as long as its last user; this only covers the case that there is none.
_LAZY_END_WAIT_S = 2.0
# A daemon that does not tell its pid at once may hang, which must not keep it from being unmounted.
_PID_WAIT_S = 5.0


def run(arguments: argparse.Namespace) -> int:
    """Unmount; returns 0 once the daemon has ended."""
    place = our_mount_at(arguments.mountpoint, arguments.timeout)
    if place.is_stale:
        clear_stale(place)
        return 0
    daemon = _daemon_of(place, min(arguments.timeout, _PID_WAIT_S))
    try:
        if arguments.lazy:
            _end(place, detach)
            _await_lazy(daemon, place)
        else:
            _end(place, unmount)
            _await_end(daemon, place, min(arguments.timeout, _END_WAIT_S))
    finally:
        if daemon is not None:
            os.close(daemon)
    return 0


def _daemon_of(place: Place, timeout_s: float) -> int | None:
    """A pidfd of the daemon, or None where it cannot be had: it hangs, or is another user's."""
    try:
        stats = json.loads(read_file(place.path / CONTROL_FOLDER / "stats.json", timeout_s))
        return os.pidfd_open(int(stats["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _end(place: Place, way: Callable[[Path], None]) -> None:
    try:
        way(place.path)
    except OSError as failure:
        if failure.errno == errno.EBUSY:
            raise StillInUseError(
                f"{place.path}: still in use; see by whom: fuser -vm {place.path} (or: umount --lazy)"
            ) from None
        raise MountpointError(f"{place.path}: cannot be unmounted: {failure.strerror}") from None


def _await_end(daemon: int | None, place: Place, timeout_s: float) -> None:
    if daemon is None:
        say(f"{place.path} is unmounted; its daemon could not be asked for its pid, so it was not waited for")
        return
    look_after_s = min(_LOOK_AFTER_S, timeout_s)
    for wait_s in (look_after_s, timeout_s - look_after_s):
        if _has_ended(daemon, wait_s):
            return
        elsewhere = None if place.mount is None else also_mounted(place.mount)
        if elsewhere is not None:
            raise StillInUseError(f"{place.path} is unmounted, but {elsewhere}; its daemon ends when that is unmounted")
    raise DaemonError(
        f"{place.path} is unmounted, but its daemon has not ended within {timeout_s:g} s: a mount namespace of "
        "another user may still have it mounted; else see its log"
    )


def _await_lazy(daemon: int | None, place: Place) -> None:
    if daemon is None or not _has_ended(daemon, _LAZY_END_WAIT_S):
        say(f"{place.path} is detached; its daemon ends when the last one who uses it is done")


def _has_ended(daemon: int, timeout_s: float) -> bool:
    waiting = select.poll()
    waiting.register(daemon, select.POLLIN)
    return bool(waiting.poll(timeout_s * 1000))
