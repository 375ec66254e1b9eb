"""Of the processes that ask for one mount at the same time, one makes it, and the others get it.

Every rank of a job may run the same `redoxfs mount`, and the kernel would stack all their mounts. So a process waits
for its turn at the mountpoint: for a record lock on a file. Such a lock ends with its process, and a fork does not
inherit it. The process that mounts locks one byte until the mount answers, and its daemon another, since the daemon
outlives a process that is killed. A keeper, which comes between the two, locks a third. There is no deadline: the
process that has the turn may be scanning.

A keeper in the foreground was the process that mounts, and has the first byte until the mount answers.

`redoxfs restart` takes its turn as well. Beyond these bytes, the keeper of a mount locks the one with the number of the
mount's device, for as long as it lives: so other commands find it also while no daemon serves.

Other users, and sessions with other runtime folders, have other files to lock. Of those, the second to mount fails
(`redoxfs.linux.fuse_device.OccupiedError`).
"""

import fcntl
import os
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from redoxfs.launch.deadline import Child
from redoxfs.launch.errors import CommandError, DaemonError
from redoxfs.launch.path_status import path_status
from redoxfs.launch.runtime_paths import control_path, lock_path_of_daemon
from redoxfs.launch.say import say
from redoxfs.linux.descriptors import opened
from redoxfs.linux.mount_table import Mount
from redoxfs.linux.parent import signal_at_the_parents_end
from redoxfs.linux.pids import born_s

if TYPE_CHECKING:
    from redoxfs.launch.options import MountOptions

# The bytes that are locked, whether or not the file has them.
_COMMAND, KEEPER, DAEMON = 0, 1, 2  # keeper.c has the first two

# The byte of the keeper of a mount with device number 0:0.
_KEEPERS = 16

# <fcntl.h>, on Linux with 64 bits: type, whence, start, length, pid.
_FLOCK = struct.Struct("@hhqqi4x")


def await_turn(options: "MountOptions", child: Child) -> int:
    """The descriptor of a lock that makes this the only process that is about to mount there."""
    asked = options.source if options.mountpoint is None else options.mountpoint
    path = path_status(asked, options.timeout_s, child).path
    turn = _locked(path, f"waiting for another redoxfs mount of {path} that is in progress", child.end)
    # The daemon of a command that was killed ends soon.
    for byte in (KEEPER, DAEMON):
        fcntl.lockf(turn, fcntl.LOCK_EX, 1, byte)
        fcntl.lockf(turn, fcntl.LOCK_UN, 1, byte)
    return turn


@contextmanager
def own_turn(mountpoint: Path) -> Iterator[None]:
    """Meanwhile no other process mounts there, or restarts the daemon there."""
    turn = _locked(mountpoint, f"waiting for another redoxfs command at {mountpoint} that is in progress")
    with opened(turn):
        yield


def byte_of_keeper(device: str) -> int:
    """The byte that the keeper of a mount locks. ``device``: the number of the mount's device, major:minor."""
    return _KEEPERS + int(device.partition(":")[2])


def keeper_of(mount: Mount) -> int | None:
    """The pid of the keeper of a mount of this user; None if it has none."""
    try:
        fd = os.open(lock_path_of_daemon(Path(mount.mountpoint)), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    with opened(fd):
        pid = keeper_by(fd, mount.device)
    return pid if pid is not None and pid > 0 else None


def keeper_by(lock: int, device: str) -> int | None:
    """Who has locked the keeper's byte of an open file; None: nobody. It is 0 in another namespace of processes."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte_of_keeper(device), 1, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(lock, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else int(pid)


def _locked(mountpoint: Path, notice: str, on_wait: Callable[[], None] = lambda: None) -> int:
    path = control_path(mountpoint).with_suffix(".lock")
    try:
        turn = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as failure:
        raise CommandError(f"{path}: cannot be made: {failure.strerror}") from None
    try:
        fcntl.lockf(turn, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _COMMAND)
    except OSError:
        on_wait()
        say(notice)
        fcntl.lockf(turn, fcntl.LOCK_EX, 1, _COMMAND)
    return turn


def take_part(turn: int, parent: int, byte: int = DAEMON) -> None:
    """Called in the daemon, or in the keeper to be: it ends if the process that forked it ends before `end_turn`.

    Raises DaemonError if that has happened already.
    """
    signal_at_the_parents_end(signal.SIGTERM)
    fcntl.lockf(turn, fcntl.LOCK_EX, 1, byte)
    # If the parent is there, it has its lock, and no other process has passed all of them.
    if os.getppid() != parent:
        raise DaemonError("the command that started this mount was killed")


def end_turn(turn: int) -> None:
    """Called in the daemon, when the mount answers."""
    signal_at_the_parents_end(0)
    os.close(turn)


def began_before(boottime_s: float) -> bool:
    """Whether this process began before a time of CLOCK_BOOTTIME."""
    return born_s(os.getpid()) < boottime_s
