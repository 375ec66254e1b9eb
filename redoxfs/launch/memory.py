"""How much memory this process may count on.

`available_memory` is the smallest of what the kernel can provide without swapping (MemAvailable) and of what each
memory cgroup around this process leaves. A container or a Slurm job sees the whole machine in /proc/meminfo, and a
quarter of that would get it killed. Page cache charged to a cgroup counts as left, because the kernel gives it back
under pressure; otherwise a job that has just read its dataset once would seem to have no memory at all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from redoxfs.launch.errors import UsageError
from redoxfs.linux.mount_table import Mount, parse_mountinfo

# Enough to be of use on any machine; the other three quarters are for the training job.
_DEFAULT_SHARE = 4

# cgroup v1 writes "no limit" as the largest multiple of a page below 2^63; nobody has limits near it.
_V1_UNLIMITED_BYTES = 1 << 62

_PROC = Path("/proc")

_Limits = Callable[[Path], tuple[int, int] | None]
"""Of the folder of a control group: its limit, and what is left of it; None: it has none."""


def default_memory(available_bytes: int) -> int:
    """The memory of a mount without --memory."""
    return max(1, available_bytes // _DEFAULT_SHARE)


@dataclass(frozen=True, slots=True)
class GroupLimit:
    """A limit of a control group, and how much of it is left: bytes, or processes. ``version``: of cgroup."""

    folder: Path
    version: str
    limit: int
    left: int


def available_memory(proc: Path = _PROC) -> int:
    """Bytes that can be taken now without swapping or reaching a limit; `proc` is where procfs is mounted."""
    return memory_and_limit(proc)[0]


def memory_and_limit(proc: Path = _PROC) -> tuple[int, GroupLimit | None]:
    """The bytes that can be taken, and the limit that was looked at for them: both change all the time."""
    limit = memory_limit(proc)
    free = _meminfo_available(proc / "meminfo")
    return max(0, free if limit is None else min(free, limit.left)), limit


def memory_limit(proc: Path = _PROC) -> GroupLimit | None:
    """Of the memory limits of the control groups around this process, the one that leaves the least; None: none."""
    return _tightest(proc, "memory", _left_v1, _left_v2)


def process_limit(proc: Path = _PROC) -> GroupLimit | None:
    """Likewise of their limits of processes, which count threads."""
    return _tightest(proc, "pids", _processes, _processes)


def _tightest(proc: Path, controller: str, v1: _Limits, v2: _Limits) -> GroupLimit | None:
    found: list[GroupLimit] = []
    mounts = parse_mountinfo((proc / "self/mountinfo").read_bytes())
    for controllers, group in groups_of(proc / "self/cgroup"):
        for mount in mounts:
            if controllers == {""} and mount.fstype == "cgroup2":
                version, limits = "cgroup v2", v2
            elif controller in controllers and mount.fstype == "cgroup" and controller in mount.super_options:
                version, limits = "cgroup v1", v1
            else:
                continue
            found += [
                GroupLimit(folder, version, *limit)
                for folder in group_folders(mount, group)
                if (limit := limits(folder)) is not None
            ]
    return min(found, key=lambda limit: limit.left, default=None)


def _meminfo_available(path: Path) -> int:
    for line in path.read_text("ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise UsageError(f"{path} has no MemAvailable; set --memory")


def groups_of(path: Path) -> list[tuple[set[str], PurePosixPath]]:
    """(controllers, group) of each hierarchy that a process is in, from its file `cgroup`; for v2 they are {""}."""
    try:
        lines = path.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return []
    fields = [line.split(":", 2) for line in lines]
    return [(set(field[1].split(",")), PurePosixPath(field[2])) for field in fields if len(field) == 3]


def group_folders(mount: Mount, group: PurePosixPath) -> list[Path]:
    """The folders of `group` and of every group around it that this mount of the hierarchy shows.

    In a container the mount's root is the container's own group, and without a cgroup namespace the group's path still
    starts at the machine's root. For a group outside the mount, only the mount's own root can be read.
    """
    top = Path(mount.mountpoint)
    try:
        inside = group.relative_to(mount.root)
    except ValueError:
        inside = PurePosixPath()
    folder = top / inside
    return [folder, *(parent for parent in folder.parents if parent == top or top in parent.parents)]


def _left_v2(folder: Path) -> tuple[int, int] | None:
    """The limit, and what is left of it."""
    # Past memory.high the kernel slows the group down instead of killing it: in effect a limit.
    limits = [limit for name in ("memory.max", "memory.high") if (limit := _number(folder / name)) is not None]
    used = _number(folder / "memory.current")
    if not limits or used is None:
        return None
    stat = _stat(folder / "memory.stat")
    cache = stat.get("active_file", 0) + stat.get("inactive_file", 0) + stat.get("slab_reclaimable", 0)
    return min(limits), min(limits) - max(0, used - cache)


def _left_v1(folder: Path) -> tuple[int, int] | None:
    limit = _number(folder / "memory.limit_in_bytes")
    used = _number(folder / "memory.usage_in_bytes")
    if limit is None or used is None or limit >= _V1_UNLIMITED_BYTES:
        return None
    stat = _stat(folder / "memory.stat")
    return limit, limit - max(0, used - stat.get("total_active_file", 0) - stat.get("total_inactive_file", 0))


def _processes(folder: Path) -> tuple[int, int] | None:
    limit, used = _number(folder / "pids.max"), _number(folder / "pids.current")
    return None if limit is None or used is None else (limit, limit - used)


def _number(path: Path) -> int | None:
    """The number in a cgroup file; None for "max", and for a file that is not there (the root has none)."""
    try:
        text = path.read_text("ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _stat(path: Path) -> dict[str, int]:
    try:
        rows = [line.split() for line in path.read_text("ascii").splitlines()]
    except OSError:
        return {}
    return {row[0]: int(row[1]) for row in rows if len(row) == 2}
