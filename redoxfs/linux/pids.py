"""What /proc says of processes and threads, where their numbers count, and which process a socket leads to."""

import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

_FIRST = "pid:[4026531836]"
"""The pid namespace of the machine itself has this number in each kernel (PROC_PID_INIT_INO)."""

STATE, STARTTIME = 0, 19
"""Of the fields of `stat_of` (proc(5): fields 3 and 22, the latter in clock ticks since boot)."""

ENDED = frozenset({b"Z", b"X"})
"""States of a process that has ended, and that its parent has not waited for."""

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def sees_all_pids(proc: Path = Path("/proc")) -> bool:
    """Whether this process is in the machine's own pid namespace, where each thread has a number. Raises OSError."""
    return os.readlink(proc / "self/ns/pid") == _FIRST


class _Connection(Protocol):
    def getsockopt(self, level: int, option: int, buffersize: int, /) -> bytes: ...


def pid_of_peer(connection: _Connection) -> int:
    """The process at the other end of a Unix socket that is connected; 0 if its pid namespace cannot be seen from here.

    Raises OSError.
    """
    # <sys/socket.h>, struct ucred: pid, uid, gid.
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", found)[0])


def born_s(number: int, proc: Path = Path("/proc")) -> float:
    """When a process or a thread began, in s since boot. Raises OSError, or ValueError, where /proc does not say it."""
    fields = stat_of(number, proc)
    if len(fields) <= STARTTIME:
        raise ValueError("this is no stat of a process")
    return int(fields[STARTTIME]) / TICKS_PER_S


def process_of(thread: int, proc: Path = Path("/proc")) -> int:
    """The process of a thread. Raises OSError, or ValueError, where /proc does not say it."""
    return int(field_of(status_of(thread, proc), b"Tgid"))


def parent_of(number: int, proc: Path = Path("/proc")) -> int:
    """The parent of a process, or of that of a thread; 0: another namespace has it. Raises OSError, or ValueError,
    where /proc does not say it."""
    return int(field_of(status_of(number, proc), b"PPid"))


def stat_of(number: int, proc: Path = Path("/proc")) -> list[bytes]:
    """The fields of a process's or a thread's `stat` behind the name, which may have anything in it. Raises OSError."""
    return (proc / str(number) / "stat").read_bytes().rpartition(b")")[2].split()


def status_of(number: int | str, proc: Path = Path("/proc")) -> bytes:
    """The `status` of a process or a thread, a name and a value on each line. Raises OSError."""
    return (proc / str(number) / "status").read_bytes()


def field_of(status: bytes, name: bytes) -> bytes:
    """A value of `status_of`. Raises ValueError if there is none of this name."""
    status = b"\n" + status
    begin = status.index(b"\n%s:" % name) + len(name) + 2
    return status[begin : status.index(b"\n", begin)].strip()


def exists(number: int, signal: Callable[[int, int], None] = os.kill) -> bool:
    """Whether there is a process or a thread of this number. Not from /proc, which may hide other users' processes."""
    try:
        signal(number, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def pid_namespace() -> int | None:
    """The number of the pid namespace of this process; None if the kernel has none."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None
