"""Runs a command as if Linux were older: `old_kernel.py COMMAND…`.

A seccomp filter, which its children inherit, answers ENOSYS to pidfd_open (Linux 5.3) and openat2 (5.6). With
OLD_FUSE_MINOR the command is redoxfs, whose session finds that the kernel has that minor version of FUSE.
"""

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Sequence

PIDFD_OPEN, OPENAT2 = 434, 437
"""Their numbers on all architectures."""

# <linux/filter.h>, <linux/seccomp.h>, <linux/prctl.h>
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000
NO_NEW_PRIVS, SET_SECCOMP, FILTER = 38, 22, 2


def refuse(*calls: int) -> None:
    """Have the kernel answer ENOSYS to these system calls of this process."""
    rules = [(LOAD, 0, 0, 0)]
    for number in calls:
        rules += [(JUMP_IF_EQUAL, 0, 1, number), (RETURN, 0, 0, FAIL | errno.ENOSYS)]
    rules.append((RETURN, 0, 0, ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rules), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    # Root needs no promise of no new privileges, which would break fusermount3.
    if os.geteuid() and libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS")
    if libc.prctl(SET_SECCOMP, FILTER, program, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_SECCOMP")


def offer(minor: int) -> None:
    """Have the session find this minor version of FUSE."""
    from redoxfs.fs import requests
    from redoxfs.native import INIT

    handle = requests.Requests._handle

    def changed(
        self: requests.Requests, events: Sequence[tuple[int, int, int, int, int, int]], *, were_held: bool = False
    ) -> None:
        changed_events = [(INIT, 0, 0, 0, minor, 0) if event[0] == INIT else event for event in events]
        handle(self, changed_events, were_held=were_held)

    requests.Requests._handle = changed  # type: ignore[method-assign]


if __name__ == "__main__":
    refuse(PIDFD_OPEN, OPENAT2)
    if "OLD_FUSE_MINOR" in os.environ:
        from redoxfs.cli import main

        offer(int(os.environ["OLD_FUSE_MINOR"]))
        sys.exit(main(sys.argv[sys.argv.index("redoxfs") + 1 :]))
    os.execv(sys.argv[1], sys.argv[1:])
