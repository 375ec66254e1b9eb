"""A path of the command line, and what stands there: nothing, a directory, a redoxfs mount alive or dead.

A mount is dead ("stale") when its daemon was killed: the kernel keeps it and answers everything with
ENOTCONN. Such a mount serves nobody, so `settled` clears it on the way; a live one is only ever reported.
"""

import errno
import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from redoxfs.launch.deadline import Look, look
from redoxfs.launch.detach import detach
from redoxfs.launch.errors import MountpointError
from redoxfs.linux.mount_table import Mount, mount_of, read_mounts

CONTROL_FOLDER = ".redoxfs"
EXACT_FOLDER = f"{CONTROL_FOLDER}/exact"

# ECONNABORTED is what those get whose request was under way when the daemon died.
_STALE_ERRORS = frozenset({errno.ENOTCONN, errno.ECONNABORTED})

# Mounts can be stacked; nobody has this many, and a mount that cannot be detached must not be tried for ever.
_MOST_STALE = 64


@dataclass(frozen=True, slots=True)
class Place:
    """A path as given and what was found there; `mount` is the mount it lies on."""

    asked: str
    seen: Look
    mount: Mount | None

    @property
    def path(self) -> Path:
        """Absolute and without symlinks."""
        return self.seen.path

    @property
    def ours(self) -> Mount | None:
        """The redoxfs mount that the path lies on or in, alive or dead."""
        return self.mount if self.mount is not None and self.mount.ours else None

    @property
    def is_our_root(self) -> bool:
        """Whether a redoxfs mount stands exactly here."""
        return self.ours is not None and self.ours.mountpoint == str(self.path)

    @property
    def is_stale(self) -> bool:
        """Whether the redoxfs mount it lies on has lost its daemon."""
        return self.ours is not None and self.seen.error in _STALE_ERRORS

    @property
    def is_redirected(self) -> bool:
        """Whether what is read here may be another sample's bytes."""
        if self.ours is None:
            return False
        exact = Path(self.ours.mountpoint) / EXACT_FOLDER
        return self.path != exact and exact not in self.path.parents

    @property
    def trouble(self) -> str | None:
        """Why this is no directory one can use, in words; None if it is one."""
        if self.seen.error == errno.ENOENT:
            return "no such directory"
        if self.seen.error == errno.ETIMEDOUT:
            return "it does not answer"
        if self.seen.error:
            return os.strerror(self.seen.error)
        return None if stat.S_ISDIR(self.seen.mode) else "not a directory"


def find(asked: str, timeout_s: float) -> Place:
    """What stands at a path."""
    seen = look(asked, timeout_s)
    return Place(asked, seen, mount_of(seen.path, read_mounts()))


def settled(asked: str, timeout_s: float) -> Place:
    """What stands at a path once the stale redoxfs mounts there are cleared; each is told on stderr."""
    for _ in range(_MOST_STALE):
        place = find(asked, timeout_s)
        if not (place.is_our_root and place.is_stale):
            return place
        clear_stale(place)
    raise MountpointError(f"{asked}: the stale redoxfs mounts there cannot be cleared")


def our_mount_at(asked: str, timeout_s: float) -> Place:
    """The redoxfs mount, alive or dead, whose root is at this path. Raises MountpointError."""
    place = find(asked, timeout_s)
    if place.is_our_root:
        return place
    if place.ours is not None:
        raise MountpointError(f"{asked}: lies inside the redoxfs mount at {place.ours.mountpoint}; name that")
    if place.trouble is not None:
        raise MountpointError(f"{asked}: {place.trouble}")
    ours = sorted({mount.mountpoint for mount in read_mounts() if mount.ours})
    known = f"; there is one at {', '.join(ours)}" if ours else ""
    raise MountpointError(f"{asked}: no redoxfs mount is there{known}")


def clear_stale(place: Place) -> None:
    """Detach a mount whose daemon is gone. Raises MountpointError if that is not allowed."""
    try:
        detach(place.path)
    except OSError as failure:
        raise MountpointError(f"{place.path}: the stale redoxfs mount cannot be cleared: {failure.strerror}") from None
    print(f"cleared the stale mount that a killed daemon left at {place.path}", file=sys.stderr)
