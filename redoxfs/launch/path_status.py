"""A path of the command line and what is there: nothing, a directory, or a redoxfs mount, alive or dead.

SOURCE may be the address of an object store instead. It stands for itself here: nothing is asked over the network.

A mount is dead ("stale") when its daemon was killed: the kernel keeps it and answers every request with ENOTCONN. Such
a mount serves nobody, so `path_status_cleared` detaches it; a live one is only reported.
"""

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from redoxfs.launch.deadline import Child, Look, look
from redoxfs.launch.errors import NO_PROCESS, CommandError, MountpointError, UsageError
from redoxfs.launch.runtime_paths import control_path_of_daemon, remove_dead_sockets
from redoxfs.launch.say import say
from redoxfs.linux.detach import detach
from redoxfs.linux.mount_table import Mount, mount_of, read_mounts, topmost_at
from redoxfs.objects import Address, AddressError, is_address, parse_address

CONTROL_FOLDER = ".redoxfs"
EXACT_FOLDER = f"{CONTROL_FOLDER}/exact"

# Of a mount whose daemon is dead. ECONNABORTED is for requests that were in progress when it died.
STALE_ERRORS = frozenset({errno.ENOTCONN, errno.ECONNABORTED})

# Mounts can be stacked, but not so high. A mount that cannot be detached must not be tried forever.
_MOST_STALE = 64

_MOST_LINKS = 40
"""In a path, as the kernel has it."""

_SHOWN = 3
"""Mounts to name of those that were not meant."""


@dataclass(frozen=True, slots=True)
class ArchiveFiles:
    """The archives that SOURCE names: ``paths`` lead to them from ``root`` through no symlink, ``names`` are shown.

    ``beside``: what else lies in a folder of archives, in words.
    """

    root: Path
    paths: tuple[str, ...]
    names: tuple[str, ...]
    beside: str


@dataclass(frozen=True, slots=True)
class PathStatus:
    """A path as given, and what is there; `mount` is the mount it lies on. `address`: it is one, and no path.

    `archives`: it is SOURCE, and names tar archives (`redoxfs.launch.archives`).
    """

    asked: str
    seen: Look
    mount: Mount | None
    address: Address | None = None
    archives: ArchiveFiles | None = None

    @property
    def path(self) -> Path:
        """Absolute and without symlinks."""
        return self.seen.path

    @property
    def name(self) -> str:
        """What messages, stats and the mount table call it."""
        return str(self.path) if self.address is None else self.address.url

    @property
    def ours(self) -> Mount | None:
        """The redoxfs mount that the path lies on or in, alive or dead."""
        return self.mount if self.mount is not None and self.mount.ours else None

    @property
    def is_our_root(self) -> bool:
        """Whether the path is the mountpoint of a redoxfs mount."""
        return self.ours is not None and self.ours.mountpoint == str(self.path)

    @property
    def is_stale(self) -> bool:
        """Whether the redoxfs mount it lies on has lost its daemon."""
        return self.ours is not None and self.seen.error in STALE_ERRORS

    @property
    def is_redirected(self) -> bool:
        """Whether a read here may return another sample's bytes."""
        if self.ours is None:
            return False
        exact = Path(self.ours.mountpoint) / EXACT_FOLDER
        return self.path != exact and exact not in self.path.parents

    @property
    def trouble(self) -> str | None:
        """Why this is not a usable directory, in words; None if it is one."""
        if self.address is not None:
            return "is an address of an object store, and must be a directory"
        if self.seen.error == errno.ENOENT:
            return "no such directory"
        if self.seen.error == errno.ETIMEDOUT:
            return "it does not answer"
        if self.seen.error:
            return NO_PROCESS if self.seen.error == errno.EAGAIN else os.strerror(self.seen.error)
        return None if stat.S_ISDIR(self.seen.mode) else "not a directory"


def address_status(address: Address) -> PathStatus:
    """The status of an address."""
    return PathStatus(address.url, Look(Path(address.url), 0, 0, False), None, address)


def path_status(asked: str, timeout_s: float, child: Child | None = None) -> PathStatus:
    """The status of a path, or of an address. Raises UsageError if it is an address that cannot be used."""
    if is_address(asked):
        try:
            return address_status(parse_address(asked))
        except AddressError as error:
            raise UsageError(str(error)) from None
    seen = look(asked, timeout_s, child)
    return PathStatus(asked, seen, mount_of(seen.path, read_mounts()))


def path_status_cleared(asked: str, timeout_s: float, child: Child) -> PathStatus:
    """The status of a path, after stale redoxfs mounts there are cleared, each with a line on stderr."""
    for _ in range(_MOST_STALE):
        found = path_status(asked, timeout_s, child)
        if not (found.is_our_root and found.is_stale):
            return found
        clear_stale(found.path)
    raise MountpointError(f"{asked}: the stale redoxfs mounts there cannot be cleared")


def our_mount_at(asked: str, timeout_s: float) -> PathStatus:
    """The redoxfs mount, alive or dead, whose mountpoint is this path. Raises MountpointError."""
    return checked_mount(path_status(asked, timeout_s))


def checked_mount(found: PathStatus) -> PathStatus:
    """The same if it is the mountpoint of a redoxfs mount. Raises MountpointError."""
    if found.is_our_root:
        return found
    if found.ours is not None:
        raise MountpointError(
            f"{found.asked}: lies inside the redoxfs mount at {found.ours.mountpoint}; give that path"
        )
    if found.trouble is not None:
        raise MountpointError(f"MOUNTPOINT {found.asked}: {found.trouble}")
    ours = sorted({mount.mountpoint for mount in read_mounts() if mount.ours})
    if found.mount is not None and str(found.path) in ours:
        above = f"the {found.mount.fstype} mount at {found.mount.mountpoint}"
        raise MountpointError(f"{found.asked}: {above} hides the redoxfs mount; end that first")
    more = ["…"] * (len(ours) > _SHOWN)
    known = f"; other redoxfs mounts: {', '.join(ours[:_SHOWN] + more)}" if ours else ""
    raise MountpointError(f"{found.asked}: no redoxfs mount is there{known}")


def listed_mount_at(asked: str, timeout_s: float) -> Mount:
    """The redoxfs mount, alive or dead, whose mountpoint is this path. Raises MountpointError.

    As `our_mount_at`, but nothing asks a mount that the mount table names: its daemon may hang, or be awaited.
    """
    at = asked
    for _ in range(_MOST_LINKS):
        folder, name = os.path.split(at.rstrip("/"))
        if name in ("", os.curdir, os.pardir):
            break
        path = look(folder or os.curdir, timeout_s).path / name
        mount = topmost_at(path, read_mounts())
        if mount is not None and mount.ours:
            return mount
        try:
            # A look would follow it, and ask the mount there.
            at = os.path.join(path.parent, os.readlink(path))
        except OSError:
            break
    mount = our_mount_at(asked, timeout_s).mount
    assert mount is not None
    return mount


def our_mount_of(path: Path, mounts: Sequence[Mount]) -> PathStatus | None:
    """The redoxfs mount, alive or dead, that ``path`` (absolute, free of symlinks) lies in; None if it lies in none.

    For programs that import redoxfs: the mount table says it, so any thread may call this, and no process is forked,
    as a program with CUDA or gRPC must not be. Whoever asks the daemon has a deadline for that.
    """
    through = mount_of(path, mounts)
    if through is None or not through.ours:
        return None
    # It may be a bind mount. The daemon's socket has the name of the mount that the daemon made, which is mostly the
    # first of them in the table. But a copy of a mount namespace lists mounts in the order of the tree.
    whole = [each for each in mounts if each.shares(through) and each.root == "/"]
    visible = [each for each in whole if topmost_at(Path(each.mountpoint), mounts) == each]
    mount = next(filter(_has_socket, visible), next(iter(visible), through))
    return PathStatus(mount.mountpoint, Look(Path(mount.mountpoint), 0, stat.S_IFDIR, False), mount)


def _has_socket(mount: Mount) -> bool:
    with suppress(CommandError, OSError):
        return control_path_of_daemon(Path(mount.mountpoint)).exists()
    return False


def place_in(mount: PathStatus, path: Path, mounts: Sequence[Mount]) -> str | None:
    """Where ``path`` (absolute, free of symlinks) lies below the root of our mount; None if it lies elsewhere.

    It may lead through a bind mount of a folder of our mount.
    """
    through = mount_of(path, mounts)
    if mount.mount is None or through is None or not through.shares(mount.mount):
        return None
    return os.path.relpath(os.path.join(through.root, path.relative_to(through.mountpoint)), "/")


def clear_stale(mountpoint: Path) -> None:
    """Detach a mount whose daemon is gone, and remove its control socket.

    Raises MountpointError if that is not allowed.
    """
    mount = topmost_at(mountpoint, read_mounts())
    try:
        detach(mountpoint)
    except OSError as failure:
        raise MountpointError(f"{mountpoint}: the stale redoxfs mount cannot be cleared: {failure.strerror}") from None
    if mount is not None:
        remove_dead_sockets(mountpoint, mount.device)
    say(f"cleared the stale mount that a killed daemon left at {mountpoint}")
