"""The kernel's mount table, and the mount that a path lies on.

A mount is ours if its type is fuse.redoxfs. Its source ends with the job that it was made for. The kernel keeps both
even when the daemon is long dead. The table is parsed rather than queried by stat(2), because a stat of a mount whose
daemon hangs would hang as well. /etc/mtab and mount(8) do not list parents, and without those a mount hidden below
another looks like the one on top.
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

OUR_TYPE = "fuse.redoxfs"

# Of what the kernel keeps of a mount and lists for everybody, only its source is free text.
_JOB_MARK = "#job="

_ESCAPE = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo. Paths are decoded as os.fsdecode does, so any bytes survive.

    All mounts of one filesystem have the same ``device``, major:minor. Where ``is_shared``, mounts made there are made
    in other mount namespaces as well.
    """

    mount_id: int
    parent_id: int
    device: str
    root: str
    mountpoint: str
    fstype: str
    source: str
    super_options: frozenset[str]
    is_shared: bool = False

    @property
    def ours(self) -> bool:
        """Whether a redoxfs daemon made it, alive or dead."""
        return self.fstype == OUR_TYPE

    def shares(self, other: "Mount") -> bool:
        """Whether both are mounts of one filesystem. A new one may get the number of one that has just ended."""
        return (self.device, self.source) == (other.device, other.source)

    @property
    def job(self) -> str | None:
        """The job that the mount was made for."""
        _, mark, job = self.source.rpartition(_JOB_MARK)
        return job if mark else None

    @property
    def owner(self) -> tuple[int, int] | None:
        """The user and the group whose daemon serves a FUSE mount; None for any other mount."""
        options = dict(option.split("=", 1) for option in self.super_options if "=" in option)
        try:
            return int(options["user_id"]), int(options["group_id"])
        except (KeyError, ValueError):
            return None


def source_text(source: str | Path, job: str | None) -> str:
    """What the mount table lists as the source of a mount: ASCII, without a comma, which would end a mount option."""
    text = os.fspath(source).encode("ascii", "replace").decode()
    for unfit in (",", "\\"):
        text = text.replace(unfit, "?")
    text = text.replace(_JOB_MARK, _JOB_MARK.replace("#", "?"))
    return text if job is None else f"{text}{_JOB_MARK}{job}"


def read_mounts() -> tuple[Mount, ...]:
    """The mounts of this process's mount namespace."""
    return parse_mountinfo(Path("/proc/self/mountinfo").read_bytes())


def of_mount(path: Path, device: str) -> Path:
    """``path`` with the number of a mount's device in its name. No other mount of this kernel has that number."""
    return path.with_stem(f"{path.stem}-{device.partition(':')[2]}")


def is_mounted(device: str) -> bool:
    """Whether a redoxfs mount with this device number is in the mount table."""
    return any(mount.ours and mount.device == device for mount in read_mounts())


def type_of_filesystem(fd: int) -> str:
    """The type of the filesystem that an open file lies on, as in the mount table; "" if it is not known."""
    try:
        mount_id = mount_id_of(fd)
    except (OSError, ValueError):
        return ""
    return next((mount.fstype for mount in read_mounts() if mount.mount_id == mount_id), "")


def types_by_device() -> dict[int, str]:
    """The types of the mounted filesystems, by the device numbers that stat(2) has for their files.

    Some filesystems have more numbers than their mounts, such as btrfs one for each subvolume.
    """
    try:
        mounts = read_mounts()
    except OSError:
        return {}
    return {os.makedev(*map(int, mount.device.split(":"))): mount.fstype for mount in mounts}


def also_mounted(mount: Mount) -> str | None:
    """A clause that names another mount of the same filesystem, after ``mount`` has ended; None if none is found.

    Another mount namespace is visible through any process in it that we may inspect.
    """
    here = [other.mountpoint for other in read_mounts() if other.ours and other.shares(mount)]
    if here:
        return f"it is also mounted at {', '.join(here)}"
    own = _namespace("self")
    for process in Path("/proc").glob("[0-9]*"):
        if _namespace(process.name) in (own, None):
            continue
        try:
            mounts = parse_mountinfo((process / "mountinfo").read_bytes())
            name = os.fsdecode((process / "comm").read_bytes()).rstrip("\n")
        except OSError:
            continue
        for other in mounts:
            if other.ours and other.shares(mount):
                return (
                    f"process {process.name} ({name}) has it mounted at {other.mountpoint} in another mount namespace"
                )
    return None


def _namespace(pid: str) -> str | None:
    """The identity of a process's mount namespace; None if we may not read it."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return None


def parse_mountinfo(text: bytes) -> tuple[Mount, ...]:
    """The lines of a mountinfo file (proc(5)), in order; lines of an unknown format are skipped."""
    return tuple(mount for line in text.split(b"\n") if (mount := _parse_line(line)) is not None)


def mount_of(path: Path, mounts: Sequence[Mount]) -> Mount | None:
    """The mount that `path` (absolute, free of symlinks) lies on; the topmost where they are stacked.

    It walks down from the root as the kernel does: at each directory, to the mount whose parent is the current one. So
    a mount that another one hides is not found, though its line is still in the table.
    """
    known = {mount.mount_id for mount in mounts}
    children: dict[tuple[int, str], Mount] = {}
    for mount in mounts:
        outer = mount.parent_id in known and mount.parent_id != mount.mount_id
        # Of two mounts with the same parent and mountpoint, the later line is on top.
        children[mount.parent_id if outer else -1, mount.mountpoint] = mount
    current: Mount | None = None
    for folder in _from_root(path):
        above = children.get((current.mount_id if current else -1, folder))
        while above is not None:
            current = above
            above = children.get((current.mount_id, folder))
    return current


def topmost_at(path: Path, mounts: Sequence[Mount]) -> Mount | None:
    """The visible mount whose mountpoint is `path` itself; None if there is none."""
    mount = mount_of(path, mounts)
    return mount if mount is not None and mount.mountpoint == str(path) else None


def mount_id_of(fd: int) -> int:
    """The number of the mount that an open file lies on."""
    with open(f"/proc/self/fdinfo/{fd}", "rb", buffering=0) as info:
        (line,) = [line for line in info.read(4096).splitlines() if line.startswith(b"mnt_id:")]
    return int(line.split()[1])


def _from_root(path: Path) -> Iterable[str]:
    return [str(parent) for parent in reversed(path.parents)] + [str(path)]


def _parse_line(line: bytes) -> Mount | None:
    # Not split(): an empty source is an empty field between two spaces.
    fields = line.split(b" ")
    try:
        end = fields.index(b"-", 6)
        fstype, source, options = fields[end + 1 : end + 4]
        return Mount(
            mount_id=int(fields[0]),
            parent_id=int(fields[1]),
            device=os.fsdecode(fields[2]),
            root=_unescape(fields[3]),
            mountpoint=_unescape(fields[4]),
            fstype=_unescape(fstype),
            source=_unescape(source),
            super_options=frozenset(_unescape(options).split(",")),
            is_shared=any(field.startswith(b"shared:") for field in fields[6:end]),
        )
    except ValueError:
        return None


def _unescape(field: bytes) -> str:
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), field))
