"""Of the processes that ask for one mount at the same time, one makes it, and the others get it.

Every rank of a job may run the same `redoxfs mount`, and the kernel would stack all their mounts. So a process waits
for its turn at the mountpoint: for a record lock on a file. Such a lock ends with its process, and a fork does not
inherit it. The process that mounts locks one byte until the mount answers, and its daemon another, since the daemon
outlives a process that is killed. There is no deadline: the process that has the turn may be scanning.

Other users, and sessions with other runtime folders, have other files to lock. Of those, the second to mount fails
(`redoxfs.linux.fuse_device.OccupiedError`).
"""

import fcntl
import os
import signal

from redoxfs.launch.errors import DaemonError
from redoxfs.launch.options import MountOptions
from redoxfs.launch.path_status import path_status
from redoxfs.launch.runtime_paths import control_path
from redoxfs.launch.say import say
from redoxfs.linux.libc import last_error, libc

# The bytes that are locked, whether or not the file has them.
_COMMAND, _DAEMON = 0, 1

# <sys/prctl.h>
_PR_SET_PDEATHSIG = 1


def await_turn(options: MountOptions) -> int:
    """The descriptor of a lock that makes this the only process that is about to mount there."""
    asked = options.source if options.mountpoint is None else options.mountpoint
    path = path_status(asked, options.timeout_s).path
    turn = os.open(control_path(path).with_suffix(".lock"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(turn, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _COMMAND)
    except OSError:
        say(f"waiting for another redoxfs mount of {path} that is in progress")
        fcntl.lockf(turn, fcntl.LOCK_EX, 1, _COMMAND)
    # The daemon of a command that was killed ends soon.
    fcntl.lockf(turn, fcntl.LOCK_EX, 1, _DAEMON)
    fcntl.lockf(turn, fcntl.LOCK_UN, 1, _DAEMON)
    return turn


def take_part(turn: int, command: int) -> None:
    """Called in the daemon: it ends if the process ``command``, which forked it, ends before `end_turn`.

    Raises DaemonError if that has happened already.
    """
    _signal_at_the_parents_end(signal.SIGTERM)
    fcntl.lockf(turn, fcntl.LOCK_EX, 1, _DAEMON)
    # If the command is there, it has its lock, and no other process has passed both.
    if os.getppid() != command:
        raise DaemonError("the command that started this mount was killed")


def end_turn(turn: int) -> None:
    """Called in the daemon, when the mount answers."""
    _signal_at_the_parents_end(0)
    os.close(turn)


def began_before(boottime_s: float) -> bool:
    """Whether this process began before a time of CLOCK_BOOTTIME."""
    with open("/proc/self/stat", "rb") as file:
        # Behind the program's name, which may contain anything; the time is field 22 (proc(5)).
        fields = file.read().rpartition(b")")[2].split()
    return int(fields[22 - 3]) / os.sysconf("SC_CLK_TCK") < boottime_s


def _signal_at_the_parents_end(number: int) -> None:
    if libc.prctl(_PR_SET_PDEATHSIG, number) != 0:
        raise last_error()
