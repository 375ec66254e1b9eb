"""Mounts a descriptor of /dev/fuse, and ends that mount.

mount(2) is tried first for every user, because it needs a capability and not a user id. EPERM leads to the setuid
helper fusermount3, which mounts and sends its descriptor back.

The kernel lists the mount at once. Requests of programs then wait until the first request, INIT, is answered.

Other users may own a folder on the way to the mountpoint, and put a symlink in its place, or in that of the mountpoint,
at any time. So the mountpoint is held by a descriptor (`hold`), the mount is made on that, and ended again if it is not
at the path.
"""

import ctypes
import errno
import fcntl
import logging
import os
import select
import shlex
import socket
import stat
import struct
import subprocess
import time
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

from redoxfs.linux.descriptors import opened
from redoxfs.linux.detach import MNT_DETACH, detach, find_helper
from redoxfs.linux.libc import last_error, libc
from redoxfs.linux.mount_table import is_mounted, mount_id_of, read_mounts, topmost_at

DEVICE = "/dev/fuse"

MAX_READ_BYTES = 1 << 20
"""The longest read that the kernel sends: 256 pages of 4 KiB, the most that it takes in one request."""

READAHEAD = "/sys/class/bdi/{}/read_ahead_kb"
"""How far the kernel reads ahead on a mount. Its default of 128 KiB also limits reads through the page cache."""

SUBTYPE = "redoxfs"

# <sys/mount.h>
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_NOATIME, _MS_NODIRATIME = 1, 2, 4, 8, 1024, 2048

_MOST_MOVES = 64
"""Looks for a mount whose folder somebody moves about."""

_UNMOUNT_S = 1.0
"""For an `umount -f`, which unmounts microseconds after it has ended the connection."""

_BETWEEN_LOOKS_S = 0.01

# <linux/fuse.h>: _IOR(229, 0, uint32_t)
_FUSE_DEV_IOC_CLONE = 0x8004E500

# <linux/fuse.h>: a FUSE_NOTIFY_INVAL_INODE of the root's attributes.
_VOID_ROOT = struct.pack("=IiQQqq", 40, 2, 0, 1, -1, 0)

_ALWAYS = {"ro": _MS_RDONLY, "nosuid": _MS_NOSUID, "nodev": _MS_NODEV}
_FLAGS = {"noexec": _MS_NOEXEC, "noatime": _MS_NOATIME, "nodiratime": _MS_NODIRATIME}

log = logging.getLogger(__name__)


class MountError(Exception):
    """The kernel did not accept the mount."""


class OccupiedError(MountError):
    """Another redoxfs mount is there."""


class Device:
    """A mount.

    Args:
        fd: the non-blocking descriptor of its requests.
        number: the device number of its files, major:minor; None: it is visible at ``mountpoint``.

    ``is_dead``  after `end`: the mount is still there, but the kernel has ended its connection
    """

    def __init__(self, fd: int, mountpoint: Path, number: str | None = None) -> None:
        self.fd = fd
        self._mountpoint = mountpoint
        self.number = _number_at(mountpoint) if number is None else number
        self.is_dead = False

    def widen_readahead(self) -> None:
        """Allow reads of up to `MAX_READ_BYTES` through the page cache. Without root they stay at 128 KiB.

        Call it after INIT, whose reply sets the limit anew.
        """
        with suppress(OSError):
            Path(READAHEAD.format(self.number)).write_text(str(MAX_READ_BYTES >> 10))

    def end(self) -> None:
        """Close the descriptor and unmount, unless that has happened. Programs that still use the mount get errors."""
        polled = select.poll()
        polled.register(self.fd, 0)
        is_over = any(events & select.POLLERR for _, events in polled.poll(0))
        self.is_dead = is_over and self._stays()
        # Before the unmount, which could otherwise send a request that nobody answers.
        self.close()
        if self.is_dead:
            log.error(
                "the kernel has ended the connection of the mount at %s (umount -f of a mount in use, or abort in "
                "/sys/fs/fuse/connections), and the mount is dead; to clear it: redoxfs umount %s",
                self._mountpoint,
                shlex.quote(str(self._mountpoint)),
            )
        if is_over:
            return
        if _number_at(self._mountpoint) != self.number:
            # It was detached, and is still in use; or another mount hides it, which is not ours to end.
            log.info("%s: the mount is not visible any more, and ends with its last user", self._mountpoint)
            return
        try:
            detach(self._mountpoint)
        except OSError as error:
            log.warning("%s could not be unmounted: %s", self._mountpoint, error.strerror)

    def close(self) -> None:
        """Close the descriptor. If the mount is still there, it stays, dead: programs get ENOTCONN."""
        os.close(self.fd)

    def _stays(self) -> bool:
        """Whether the mount is still there a while after its connection has ended."""
        until_s = time.monotonic() + _UNMOUNT_S
        while self.number is not None and self._has_root() and is_mounted(self.number):
            if time.monotonic() > until_s:
                return True
            time.sleep(_BETWEEN_LOOKS_S)
        return False

    def _has_root(self) -> bool:
        """Whether the kernel has the filesystem of this connection. If not, its number may be another's by now."""
        try:
            os.write(self.fd, _VOID_ROOT)
        except OSError:
            return False
        return True


def hold(mountpoint: Path) -> int:
    """A descriptor of what is at ``mountpoint``, an absolute path free of symlinks.

    Raises OSError: ELOOP if there is a symlink on the way by now.
    """
    held = os.open(mountpoint, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    if stat.S_ISLNK(os.fstat(held).st_mode) or os.readlink(_held(held)) != os.fspath(mountpoint):
        os.close(held)
        raise OSError(errno.ELOOP, "a symlink is in its path, which was not there before", os.fspath(mountpoint))
    return held


def mount(mountpoint: Path, *, fsname: str, options: Set[str], held: int | None = None) -> Device:
    """Mount at ``mountpoint``, read-only.

    Args:
        mountpoint: absolute and free of symlinks.
        fsname: the source that mount(8) lists; without a comma and a backslash.
        options: of allow_other, default_permissions, noexec, noatime and nodiratime.
        held: of `hold`, since the mountpoint was checked; stays open. None: the mountpoint is held from now on.

    Raises:
        OccupiedError: another process made a redoxfs mount there; the kernel would stack them.
        MountError: with the reason, of the kernel or of fusermount3; also if the mountpoint was moved or replaced.
    """
    before = read_mounts()
    there = topmost_at(mountpoint, before)
    if there is not None and there.ours:
        raise OccupiedError(f"{mountpoint}: another process has made a redoxfs mount there meanwhile")
    try:
        own = hold(mountpoint) if held is None else None
        try:
            target = held if own is None else own
            assert target is not None
            return _mounted(mountpoint, target, fsname, options, {one.mount_id for one in before})
        finally:
            if own is not None:
                os.close(own)
    except OSError as error:
        raise MountError(f"{mountpoint} could not be mounted: {error.strerror}") from error


def clone(fd: int) -> int:
    """Another non-blocking descriptor of a mount's requests, with a queue of its own. Raises OSError."""
    cloned = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(cloned, _FUSE_DEV_IOC_CLONE, struct.pack("I", fd))
    except OSError:
        os.close(cloned)
        raise
    return cloned


def _held(held: int) -> str:
    """A path that leads to what a descriptor holds, wherever that is by now."""
    return f"/proc/self/fd/{held}"


def _mounted(mountpoint: Path, held: int, fsname: str, options: Set[str], before: Set[int]) -> Device:
    """``before``: the numbers of the mounts that were there before. Raises OSError, and then leaves no mount."""
    # Descriptors may run out meanwhile.
    spare = os.dup(held)
    try:
        fd = _mount(mountpoint, held, fsname, options)
        try:
            made = topmost_at(mountpoint, read_mounts())
            if made is None or not made.ours or made.mount_id in before:
                raise OSError(errno.ENOTDIR, "it was moved or replaced meanwhile")
            return Device(fd, mountpoint)
        except OSError:
            # Nobody would serve it, and programs would wait.
            os.close(fd)
            os.close(spare)
            spare = -1
            _end_made(held, before)
            raise
    finally:
        if spare >= 0:
            os.close(spare)


def _mount(mountpoint: Path, held: int, fsname: str, options: Set[str]) -> int:
    kind = stat.S_IFMT(os.fstat(held).st_mode)
    fd = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    flags = sum(_ALWAYS.values()) + sum(flag for name, flag in _FLAGS.items() if name in options)
    owner = (f"fd={fd}", f"rootmode={kind:o}", f"user_id={os.getuid()}", f"group_id={os.getgid()}")
    if _mount2(fsname, _held(held), flags, ",".join((*owner, *_kernel_options(options)))):
        return fd
    failure = last_error()
    os.close(fd)
    if failure.errno != errno.EPERM:
        raise failure
    # The helper checks by itself that the path is the user's.
    return _mount_by_helper(mountpoint, fsname, options)


def _end_made(held: int, before: Set[int]) -> None:
    """End the mount that was made on ``held``, wherever that is by now: that one alone, by a descriptor of its root."""
    for _ in range(_MOST_MOVES):
        place = os.readlink(_held(held))
        with suppress(OSError), opened(os.open(place, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)) as root:
            number = mount_id_of(root)
            made = next((one for one in read_mounts() if one.mount_id == number), None)
            if made is None or not made.ours or number in before or made.mountpoint != place:
                continue
            if libc.umount2(_held(root).encode(), MNT_DETACH) != 0:
                if os.geteuid() == 0:
                    raise last_error()
                detach(Path(place))
            return
    log.warning("the mount that is now at %s could not be ended; it is dead", os.readlink(_held(held)))


def _mount2(fsname: str, target: str, flags: int, data: str) -> bool:
    """mount(2); whether it succeeded."""
    kind = f"fuse.{SUBTYPE}"
    done = libc.mount(fsname.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode())
    return int(done) == 0


def _kernel_options(options: Set[str]) -> list[str]:
    return [f"max_read={MAX_READ_BYTES}", *sorted(options - _FLAGS.keys())]


def _mount_by_helper(mountpoint: Path, fsname: str, options: Set[str]) -> int:
    helper = find_helper()
    if helper is None:
        raise OSError(errno.EPERM, "fusermount3 is not installed; only root can mount without it (apt install fuse3)")
    # Some versions of the helper refuse nodiratime, which changes nothing on a mount without access times.
    flags = [*_ALWAYS, *sorted(options & _FLAGS.keys() - {"nodiratime"})]
    words = ",".join([*flags, f"fsname={fsname}", f"subtype={SUBTYPE}", *_kernel_options(options)])
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            running = subprocess.Popen(
                [helper, "-o", words, "--", os.fspath(mountpoint)],
                env=os.environ | {"LC_ALL": "C", "_FUSE_COMMFD": str(theirs.fileno())},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        said, _ = running.communicate()
        # The descriptor, if there is one, is in the socket's queue.
        _, received, _, _ = socket.recv_fds(ours, 1, 1)
    if not received:
        raise OSError(errno.EPERM, " ".join(said.split()) or f"fusermount3 failed with {running.returncode}")
    (fd,) = received
    os.set_inheritable(fd, False)
    os.set_blocking(fd, False)
    return fd


def _number_at(mountpoint: Path) -> str | None:
    """The device number of the visible mount at ``mountpoint``; None if there is none."""
    mount = topmost_at(mountpoint, read_mounts())
    return None if mount is None else mount.device
