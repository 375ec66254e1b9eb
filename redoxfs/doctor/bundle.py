"""The content of `redoxfs debug`: what a report of a fault should have, of a daemon that is well, hangs or is dead.

Each part that cannot be had leaves a line in ``missing`` instead. Sizes are bounded. There is nothing secret: no
environment, no keys, no bytes of files. Paths of the dataset are in it, in the log and in the options.

Root may ask about a user's mount. So what the mount and its process say is checked before a process is looked into, or
a file is read, because they say so.
"""

import errno
import importlib.metadata
import json
import os
import platform
import stat
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from redoxfs import __version__
from redoxfs.doctor.machine import check_machine
from redoxfs.doctor.process import files_of, listener_of, log_of, owner_of
from redoxfs.launch.control_files import WRONG, become, pid_here, read_control
from redoxfs.launch.deadline import call_in_child, run_in_child
from redoxfs.launch.path_status import PathStatus
from redoxfs.launch.runtime_paths import control_path_of_daemon, kept_path
from redoxfs.launch.stacks import ANSWER_S, THREAD_S, NoStacksError, has_memory_for_stacks, stacks_of
from redoxfs.launch.turn import keeper_of

LOG_BYTES = 1 << 20
"""The end of the log that is kept."""

PART_BYTES = 2 << 20
"""The most of any part."""

STACKS_S = THREAD_S + 3 * ANSWER_S
"""For the stacks: longer than the process has to answer."""

_LIBRARIES = ("numpy", "trio", "pyfuse3", "grpcio", "protobuf", "xxhash", "prometheus_client")


@dataclass(slots=True)
class Bundle:
    """Parts by their names, and what is missing, by what it would be."""

    parts: dict[str, bytes] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, text: str | bytes) -> None:
        data = text if isinstance(text, bytes) else text.encode("utf-8", "backslashreplace")
        self.parts[name] = data[:PART_BYTES]

    def add_json(self, name: str, value: Any) -> None:
        self.add(name, json.dumps(value, indent=2, default=str) + "\n")


def collect(mount: PathStatus, interval_s: float, timeout_s: float) -> Bundle:
    """All that can be had of the mount. ``interval_s`` is between two looks at its statistics."""
    bundle = Bundle()
    stats = _stats(bundle, mount, "stats-1.json", timeout_s)
    pid, keeper = processes(bundle, mount, stats)
    if stats is not None:
        bundle.add_json("request.json", stats.get("request"))
        time.sleep(interval_s)
        _stats(bundle, mount, "stats-2.json", timeout_s)
    else:
        bundle.missing["request.json"] = "it is one of the statistics"
    _history(bundle, mount, timeout_s)
    if pid is not None:
        _stacks(bundle, pid)
        for name, text in files_of(pid).items():
            bundle.add(f"daemon/{name}.txt", _of_mount(text, mount) if name == "mountinfo" else text)
    if keeper is not None:
        for name, text in files_of(keeper).items():
            if name != "mountinfo":
                bundle.add(f"keeper/{name}.txt", text)
    if mount.mount is not None:
        bundle.add_json("mount.json", {name: getattr(mount.mount, name) for name in mount.mount.__slots__})
    _log(bundle, mount, pid, keeper, timeout_s)
    bundle.add_json("machine.json", [each.as_dict() for each in check_machine()])
    bundle.add_json("about.json", _about(mount, pid, keeper, bundle))
    return bundle


def _about(mount: PathStatus, pid: int | None, keeper: int | None, bundle: Bundle) -> dict[str, Any]:
    versions = {}
    for name in _LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "redoxfs": __version__,
        "python": sys.version,
        "libraries": versions,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "mountpoint": str(mount.path),
        "is_dead": mount.is_stale,
        "pid": pid,
        "keeper": keeper,
        "missing": bundle.missing,
    }


def _stats(bundle: Bundle, mount: PathStatus, name: str, timeout_s: float) -> dict[str, Any] | None:
    try:
        data = _read_control(mount, "stats.json", timeout_s)
        stats: dict[str, Any] = dict(json.loads(data))
    except (OSError, *WRONG) as failure:
        bundle.missing[name] = str(getattr(failure, "strerror", None) or failure)
        return None
    bundle.add(name, data)
    return stats


def _read_control(mount: PathStatus, name: str, timeout_s: float) -> bytes:
    if mount.ours is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    return read_control(mount.ours, name, timeout_s)


def _history(bundle: Bundle, mount: PathStatus, timeout_s: float) -> None:
    name = "history.json"
    try:
        bundle.add(name, _read_control(mount, name, timeout_s))
    except OSError as failure:
        bundle.missing[name] = str(failure.strerror or failure)


def processes(bundle: Bundle, mount: PathStatus, stats: dict[str, Any] | None) -> tuple[int | None, int | None]:
    """The pids of the daemon, by its socket where it does not answer, and of the keeper."""
    keeper = None if mount.mount is None else keeper_of(mount.mount)
    if stats is None:
        pid = listener_of(control_path_of_daemon(mount.path))
        if pid is None:
            bundle.missing["daemon"] = "no process serves the mount, or it is another user's"
        return pid, keeper
    told = stats.get("pid")
    if isinstance(told, int) and pid_here(stats) == told and _serves(told, mount):
        return told, keeper
    bundle.missing["daemon"] = f"process {told}, which the mount names, is no daemon of the mount's owner here"
    return None, keeper


def _serves(pid: int, mount: PathStatus) -> bool:
    """Whether a process that the mount names can be its daemon."""
    users = set() if mount.mount is None or mount.mount.owner is None else {mount.mount.owner[0]}
    if os.geteuid() != 0:
        # The mount may come from another process (`redoxfs serve`). Users learn nothing from their own processes.
        users.add(os.geteuid())
    if owner_of(pid) not in users:
        return False
    return has_memory_for_stacks(pid) or pid == listener_of(control_path_of_daemon(mount.path))


def _stacks(bundle: Bundle, pid: int) -> None:
    def as_its_user() -> str:
        owner = os.stat(f"/proc/{pid}")
        become(owner.st_uid, owner.st_gid)
        return stacks_of(pid)

    try:
        bundle.add("stacks.txt", call_in_child(as_its_user, STACKS_S, NoStacksError))
    except NoStacksError as refusal:
        bundle.missing["stacks.txt"] = str(refusal)
    except OSError as failure:
        bundle.missing["stacks.txt"] = f"process {pid}: {failure.strerror}"


def _of_mount(mountinfo: str, mount: PathStatus) -> str:
    """The lines of the mount, and of those around and below it."""
    here = str(mount.path)
    lines = [line for line in mountinfo.splitlines() if len(line.split(" ")) > 4]
    return "".join(f"{line}\n" for line in lines if _is_near(line.split(" ")[4], here))


def _is_near(point: str, here: str) -> bool:
    return point == here or here.startswith(point.rstrip("/") + "/") or point.startswith(f"{here}/")


def _log(bundle: Bundle, mount: PathStatus, pid: int | None, keeper: int | None, timeout_s: float) -> None:
    choices: list[tuple[Callable[[], Path | None], int | None]] = [
        *((partial(log_of, each), owner_of(each)) for each in (pid, keeper) if each is not None),
        (lambda: kept_path(mount.path, "log"), os.geteuid()),
    ]
    why = "the daemon does not log to a file"
    for choose, owner in choices:
        path = choose()
        if path is None:
            continue
        try:
            bundle.add("log.txt", run_in_child(partial(tail, path, owner), timeout_s))
            return
        except OSError as failure:
            why = f"{path}: {failure.strerror}"
    bundle.missing["log.txt"] = why


def tail(path: Path, owner: int | None) -> bytes:
    """The end of a log. Raises OSError, also unless it is a regular file of ``owner``: the path may lead elsewhere."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != owner:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        file.seek(max(0, found.st_size - LOG_BYTES))
        return file.read(LOG_BYTES)
