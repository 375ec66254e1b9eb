"""Raises the kernel's limit of pending closes.

The kernel sends RELEASE in the background, and at most ``max_background`` (12) such requests at a time. A further close
waits in the kernel, and a later open overtakes it. Here the path would still be open, and the open would join a binding
that is over. So the limit is raised to the maximum.

pyfuse3 does not let a filesystem choose the limit when the session begins. So it is written to the connection's file in
the *fusectl* filesystem: where the system has mounted it, as most do, or else, as root, in an instance that is not
mounted. The mount's own number is read from the mount table: a stat would be a request to ourselves.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from redoxfs.linux.libc import last_error, libc
from redoxfs.linux.mount_table import read_mounts

MOST = 65_535
"""The largest value that the kernel accepts."""

CONNECTIONS = Path("/sys/fs/fuse/connections")
USERS_MOST = Path("/sys/module/fuse/parameters/max_user_bgreq")

# System calls of the mount API (Linux 5.2), the same on every architecture.
FSOPEN, FSCONFIG, FSMOUNT = 430, 431, 432
FSCONFIG_CMD_CREATE = 6


def raise_backlog(mountpoint: Path) -> bool:
    """Raise the limit as far as the kernel allows; False if that fails."""
    connection = _connection(mountpoint)
    if connection is None:
        return False
    limit = Path(connection, "max_background")
    if (CONNECTIONS / limit).exists():
        return _write(CONNECTIONS / limit)
    try:
        with _fusectl() as unmounted:
            return _write(unmounted / limit)
    except OSError:
        return False


def _write(limit: Path) -> bool:
    for most in (str(MOST), _users_most()):
        with suppress(OSError):
            limit.write_text(most)
            return True
    return False


def _users_most() -> str:
    """The most that a mount's owner may set without being root."""
    try:
        return USERS_MOST.read_text()
    except OSError:
        return "12"


def _connection(mountpoint: Path) -> str | None:
    """The number of the topmost mount at ``mountpoint``: the minor of its device."""
    devices = [mount.device for mount in read_mounts() if mount.mountpoint == os.fspath(mountpoint)]
    return devices[-1].partition(":")[2] if devices else None


@contextmanager
def _fusectl() -> Iterator[Path]:
    """A fusectl filesystem that is mounted nowhere, by way of our own descriptor of it."""
    context = _called(FSOPEN, b"fusectl", 1)
    try:
        _called(FSCONFIG, context, FSCONFIG_CMD_CREATE, None, None, 0)
        mount = _called(FSMOUNT, context, 1, 0)
    finally:
        os.close(context)
    try:
        yield Path(f"/proc/self/fd/{mount}")
    finally:
        os.close(mount)


def _called(number: int, *arguments: int | bytes | None) -> int:
    result = libc.syscall(number, *arguments)
    if result < 0:
        raise last_error()
    return int(result)
