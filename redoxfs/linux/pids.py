"""Which processes of the machine this one can see, where their numbers count, and which one a socket leads to."""

import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

_FIRST = "pid:[4026531836]"
"""The pid namespace of the machine itself has this number in each kernel (PROC_PID_INIT_INO)."""

_STARTTIME = 19
"""Of /proc/N/stat, counted after the name's closing parenthesis (proc(5): field 22, in clock ticks since boot)."""

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
    # The name may have anything in it.
    fields = (proc / str(number) / "stat").read_text("latin-1").rpartition(")")[2].split()
    if len(fields) <= _STARTTIME:
        raise ValueError("this is no stat of a process")
    return int(fields[_STARTTIME]) / TICKS_PER_S


def process_of(thread: int, proc: Path = Path("/proc")) -> int:
    """The process of a thread. Raises OSError, or ValueError, where /proc does not say it."""
    return _number_in_status(thread, b"\nTgid:", proc)


def parent_of(number: int, proc: Path = Path("/proc")) -> int:
    """The parent of a process, or of that of a thread; 0: another namespace has it. Raises OSError, or ValueError,
    where /proc does not say it."""
    return _number_in_status(number, b"\nPPid:", proc)


def _number_in_status(number: int, name: bytes, proc: Path) -> int:
    return int((proc / str(number) / "status").read_bytes().partition(name)[2].partition(b"\n")[0])


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
