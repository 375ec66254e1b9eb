"""`redoxfs umount`: end a mount, or all mounts of a user or a job, and return when nothing of them is left.

The daemon's pid comes from the mount itself, through a file that only our daemons serve. It is held as a descriptor
before the mount ends, because the number may belong to another process later; and not at all if it counts in another
pid namespace, such as that of a container. Nothing is killed here: the daemon ends because its mount has ended.
A keeper's pid comes from a lock, also while no daemon serves; it ends after its daemon.

--all takes the mounts from the mount table, which lists them also when their daemons hang or are dead. Without
--all-users it leaves the mounts of other users alone, also as root: `sudo redoxfs umount --all` is typed for one's own.
An epilog of Slurm is root, and ends the mounts of a job whoever made them. No command asks: scripts run them.
"""

import errno
import json
import os
import select
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from redoxfs.cli.exits import code_of, line_of
from redoxfs.cli.options.mounts import UmountOptions
from redoxfs.launch.control_files import WRONG, pid_here, read_control
from redoxfs.launch.errors import (
    CommandError,
    DaemonError,
    MountpointError,
    ReportedError,
    StillInUseError,
    UsageError,
)
from redoxfs.launch.path_status import STALE_ERRORS, clear_stale, listed_mount_at
from redoxfs.launch.say import say
from redoxfs.launch.sizes import counted
from redoxfs.launch.turn import keeper_of
from redoxfs.linux.detach import detach, unmount
from redoxfs.linux.ends import end_of
from redoxfs.linux.mount_table import Mount, also_mounted, mount_of, read_mounts

# A daemon has little to do at its end: it abandons loads in flight. One that takes longer than this hangs.
_END_WAIT_S = 30.0
# After this time, check whether another mount namespace keeps the filesystem mounted.
_LOOK_AFTER_S = 2.0
# A daemon detached with --lazy lives as long as its last user; this covers only the case without users.
_LAZY_END_WAIT_S = 2.0
# A daemon that does not report its pid soon may hang; it must be unmountable all the same.
_PID_WAIT_S = 5.0
# Much more than stats.json has.
_MOST_STATS_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class _Daemon:
    """A daemon, or its keeper. ``pidfd`` None: it hangs, is another user's or in another pid namespace, or is dead."""

    pidfd: int | None
    is_dead: bool = False


def run(options: UmountOptions) -> int:
    """Unmount; returns 0 once every daemon has ended."""
    if options.mountpoint is None and not options.all:
        raise UsageError("umount needs a MOUNTPOINT, or --all (see redoxfs umount --help)")
    if options.mountpoint is not None and options.all:
        raise UsageError(f"umount takes a MOUNTPOINT or --all, not {options.mountpoint} and --all")
    if options.job is not None and not options.all:
        raise UsageError("--job is for umount --all")
    if options.job == "":
        raise UsageError("--job needs the ID of a job, which is empty here; without --job, --all ends every mount")
    if options.all_users and (not options.all or options.job is not None):
        raise UsageError("--all-users is for umount --all; with --job it ends the mounts of that job, whoever mounted")
    if options.all_users and os.geteuid() != 0:
        raise UsageError("only root can end the mounts of all users; without --all-users, --all ends yours")
    with ExitStack() as held:
        if options.mountpoint is None:
            return _run_all(options, held)
        mount = listed_mount_at(options.mountpoint, options.timeout_s)
        daemon = _taken_down(mount, options, held)
        _await_end(daemon, mount, options)
    return 0


def _run_all(options: UmountOptions, held: ExitStack) -> int:
    """Unmount all before any daemon is awaited: one daemon serves several mounts, if one is bound elsewhere."""
    ours = [mount for mount in read_mounts() if mount.ours]
    mounts = [mount for mount in ours if is_asked_for(mount, options, os.geteuid())]
    if not mounts:
        job = "" if options.job is None else f" of job {options.job}"
        is_of_all = os.geteuid() == 0 and (options.all_users or options.job is not None)
        whose = "any" if is_of_all else "this"
        others = os.geteuid() == 0 and not is_of_all and ours
        more = f"; to end {counted(len(ours), 'mount')} of other users: --all-users" if others else ""
        say(f"nothing to unmount: no redoxfs mount{job} of {whose} user is here{more}")
        return 0
    ended: list[tuple[Mount, _Daemon]] = []
    failures: list[CommandError] = []
    # A mount on top of another is further down in the table.
    for mount in reversed(mounts):
        with _going_on(failures):
            try:
                _check_visible(mount)
                ended.append((mount, _taken_down(mount, options, held)))
            except CommandError:
                # A daemon that was told to end may have unmounted it meanwhile.
                if _is_listed(mount):
                    raise
    for mount, daemon in ended:
        with _going_on(failures):
            _await_end(daemon, mount, options)
    if failures:
        raise ReportedError(
            code_of(failures[0]), f"{len(failures)} of {counted(len(mounts), 'redoxfs mount')} could not be ended"
        )
    return 0


def is_asked_for(mount: Mount, options: UmountOptions, uid: int) -> bool:
    """Whether --all of the user ``uid`` is to end a redoxfs mount."""
    if options.job not in (None, mount.job):
        return False
    if uid == 0 and (options.all_users or options.job is not None):
        return True
    return mount.owner is not None and mount.owner[0] == uid


def _is_listed(mount: Mount) -> bool:
    return any(other.mount_id == mount.mount_id for other in read_mounts())


@contextmanager
def _going_on(failures: list[CommandError]) -> Iterator[None]:
    """Report an error, and go on with the other mounts."""
    try:
        yield
    except CommandError as error:
        failures.append(error)
        say(line_of(error))


def _check_visible(mount: Mount) -> None:
    """Raises StillInUseError if the mount lies below another: umount(2) would end that one."""
    on_top = mount_of(Path(mount.mountpoint), read_mounts())
    if on_top is None or on_top.mount_id != mount.mount_id:
        above = "another mount" if on_top is None else f"the {on_top.fstype} mount at {on_top.mountpoint}"
        raise StillInUseError(f"{mount.mountpoint}: {above} hides it; end that first")


def _taken_down(mount: Mount, options: UmountOptions, held: ExitStack) -> _Daemon:
    """Unmount, and return the daemon, which then ends."""
    daemon = _daemon_of(mount, min(options.timeout_s, _PID_WAIT_S))
    if daemon.pidfd is not None:
        held.callback(os.close, daemon.pidfd)
    if daemon.is_dead:
        clear_stale(Path(mount.mountpoint))
    else:
        _end(mount, detach if options.lazy else unmount)
    return daemon


def _daemon_of(mount: Mount, timeout_s: float) -> _Daemon:
    keeper = keeper_of(mount)
    if keeper is not None:
        with suppress(ProcessLookupError):
            pidfd = end_of(keeper)
            # Then the number was not given to another process.
            if keeper_of(mount) == keeper:
                return _Daemon(pidfd)
            os.close(pidfd)
    try:
        pid = pid_here(json.loads(read_control(mount, "stats.json", timeout_s, _MOST_STATS_BYTES)))
        return _Daemon(None if pid is None else end_of(pid))
    except OSError as failure:
        return _Daemon(None, is_dead=failure.errno in STALE_ERRORS)
    except WRONG:
        # Another user's daemon may say anything.
        return _Daemon(None)


def _end(mount: Mount, way: Callable[[Path], None]) -> None:
    path = mount.mountpoint
    try:
        way(Path(path))
    except OSError as failure:
        if failure.errno == errno.EBUSY:
            raise StillInUseError(
                f"{path}: still in use; to see by whom: fuser -vm {shlex.quote(path)} (or: umount --lazy)"
            ) from None
        if mount.owner is not None and os.geteuid() not in (0, mount.owner[0]):
            # fusermount3 says something about /etc/mtab.
            raise MountpointError(f"{path}: is another user's mount; run this as its owner, or as root") from None
        raise MountpointError(f"{path}: cannot be unmounted: {failure.strerror}") from None


def _await_end(daemon: _Daemon, mount: Mount, options: UmountOptions) -> None:
    if daemon.is_dead:
        return
    path, pidfd = mount.mountpoint, daemon.pidfd
    if options.lazy:
        if pidfd is None or not _has_ended(pidfd, _LAZY_END_WAIT_S):
            say(f"{path} is detached; its daemon ends with its last user")
        return
    if pidfd is None:
        say(f"{path} is unmounted; its daemon did not report its pid, so its end was not awaited")
        return
    timeout_s = min(options.timeout_s, _END_WAIT_S)
    look_after_s = min(_LOOK_AFTER_S, timeout_s)
    for wait_s in (look_after_s, timeout_s - look_after_s):
        if _has_ended(pidfd, wait_s):
            return
        elsewhere = also_mounted(mount)
        if elsewhere is not None:
            raise StillInUseError(f"{path} is unmounted, but {elsewhere}; its daemon ends when that is unmounted")
    raise DaemonError(
        f"{path} is unmounted, but its daemon has not ended within {timeout_s:g} s; another user's mount "
        "namespace may still have it mounted; otherwise see its log"
    )


def _has_ended(daemon: int, timeout_s: float) -> bool:
    waiting = select.poll()
    waiting.register(daemon, select.POLLIN)
    return bool(waiting.poll(timeout_s * 1000))
