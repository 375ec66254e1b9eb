"""The content of `redoxfs debug`: what a report of a fault should have, of a daemon that is well, hangs or is dead.

Each part that cannot be had leaves a line in ``missing`` instead. Sizes are bounded. There is nothing secret: no
environment, no keys, no bytes of files. Paths of the dataset are in it, in the log and in the options.
"""

import importlib.metadata
import json
import os
import platform
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
from redoxfs.doctor.process import files_of, listener_of, log_of
from redoxfs.launch.deadline import read_file, run_in_child
from redoxfs.launch.path_status import CONTROL_FOLDER, PathStatus
from redoxfs.launch.runtime_paths import control_path_of_daemon, kept_path
from redoxfs.launch.stacks import NoStacksError, stacks_of
from redoxfs.launch.turn import keeper_of

LOG_BYTES = 1 << 20
"""The end of the log that is kept."""

PART_BYTES = 2 << 20
"""The most of any part."""

_LIBRARIES = ("numpy", "trio", "pyfuse3", "grpcio", "protobuf", "xxhash")


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
    pid, keeper = _processes(bundle, mount, stats)
    if stats is not None:
        bundle.add_json("request.json", stats.get("request"))
        time.sleep(interval_s)
        _stats(bundle, mount, "stats-2.json", timeout_s)
    else:
        bundle.missing["request.json"] = "it is one of the statistics"
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
        data = read_file(mount.path / CONTROL_FOLDER / "stats.json", timeout_s)
        stats: dict[str, Any] = json.loads(data)
    except (OSError, ValueError) as failure:
        bundle.missing[name] = str(getattr(failure, "strerror", None) or failure)
        return None
    bundle.add(name, data)
    return stats


def _processes(bundle: Bundle, mount: PathStatus, stats: dict[str, Any] | None) -> tuple[int | None, int | None]:
    """The pids of the daemon, by its socket where it does not answer, and of the keeper."""
    pid = None if stats is None else int(stats["pid"])
    if pid is None:
        pid = listener_of(control_path_of_daemon(mount.path))
    if pid is None:
        bundle.missing["daemon"] = "no process serves the mount, or it is another user's"
    return pid, None if mount.mount is None else keeper_of(mount.mount)


def _stacks(bundle: Bundle, pid: int) -> None:
    try:
        bundle.add("stacks.txt", stacks_of(pid))
    except NoStacksError as refusal:
        bundle.missing["stacks.txt"] = str(refusal)


def _of_mount(mountinfo: str, mount: PathStatus) -> str:
    """The lines of the mount, and of those around and below it."""
    here = str(mount.path)
    lines = [line for line in mountinfo.splitlines() if len(line.split(" ")) > 4]
    return "".join(f"{line}\n" for line in lines if _is_near(line.split(" ")[4], here))


def _is_near(point: str, here: str) -> bool:
    return point == here or here.startswith(point.rstrip("/") + "/") or point.startswith(f"{here}/")


def _log(bundle: Bundle, mount: PathStatus, pid: int | None, keeper: int | None, timeout_s: float) -> None:
    choices: list[Callable[[], Path | None]] = [
        lambda: None if pid is None else log_of(pid),
        lambda: None if keeper is None else log_of(keeper),
        lambda: kept_path(mount.path, "log"),
    ]
    for choose in choices:
        path = choose()
        if path is None:
            continue
        try:
            bundle.add("log.txt", run_in_child(partial(_tail, path), timeout_s))
            return
        except OSError as failure:
            bundle.missing["log.txt"] = f"{path}: {failure.strerror}"
    bundle.missing.setdefault("log.txt", "the daemon does not log to a file")


def _tail(path: Path) -> bytes:
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
        return file.read(LOG_BYTES)
