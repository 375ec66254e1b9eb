"""What /proc says of a daemon: its threads, what each does in the kernel, limits and control groups.

It is read in children with a deadline, since the kernel lets a reader of some of these files wait for the process.
Nothing is read that may hold secrets: neither its environment nor its memory.
"""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from redoxfs.launch.deadline import call_in_child
from redoxfs.launch.memory import group_folders, groups_of
from redoxfs.linux.mount_table import read_mounts
from redoxfs.linux.pids import pid_of_peer

ANSWER_S = 3.0

MOST_THREADS = 256

_OF_PROCESS = ("status", "limits", "cgroup", "stat", "io", "oom_score", "sched", "wchan", "mountinfo")
# The kernel locks the memory of the process for these.
_OF_MEMORY = ("cmdline", "smaps_rollup")
_OF_THREAD = ("comm", "status", "wchan", "syscall", "stack")

_OF_GROUP = (
    *("memory.max", "memory.high", "memory.current", "memory.events", "pids.max", "pids.current"),
    *("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.failcnt", "memory.oom_control"),
)


def listener_of(path: Path) -> int | None:
    """The pid of the process that listens at a Unix socket; None if nobody does. It need not answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(ANSWER_S)
        try:
            client.connect(os.fspath(path))
        except OSError:
            return None
        return pid_of_peer(client) or None


def files_of(pid: int) -> dict[str, str]:
    """By name, what /proc has of a process: a text, or a line in brackets that says why there is none."""
    found: dict[str, str] = {}
    for names in (_OF_PROCESS, _OF_MEMORY):
        found |= _in_child(partial(_texts, pid, names), names)
    if "cmdline" in found:
        found["cmdline"] = found["cmdline"].rstrip("\0").replace("\0", "\n")
    found |= _in_child(lambda: {"threads": _threads(pid)}, ("threads",))
    found |= _in_child(lambda: {"cgroup-limits": _groups(pid)}, ("cgroup-limits",))
    return found


def log_of(pid: int) -> Path | None:
    """The path of the file that a process has as its stderr; None if that is no file. Another may be there now."""
    with suppress(OSError):
        path = os.readlink(f"/proc/{pid}/fd/2")
        if path.startswith("/") and not path.startswith("/dev/"):
            return Path(path)
    return None


def owner_of(pid: int) -> int | None:
    """The user of a process; None if there is none."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def _in_child(work: Callable[[], dict[str, str]], names: tuple[str, ...]) -> dict[str, str]:
    try:
        return call_in_child(work, ANSWER_S)
    except TimeoutError:
        return dict.fromkeys(names, f"[the kernel did not answer within {ANSWER_S:g} s]\n")
    except OSError as failure:
        return dict.fromkeys(names, f"[{failure.strerror}]\n")


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError as failure:
        return f"[{failure.strerror}]\n"


def _texts(pid: int, names: tuple[str, ...]) -> dict[str, str]:
    return {name: _text(Path(f"/proc/{pid}/{name}")) for name in names}


def _threads(pid: int) -> str:
    tasks = sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda task: int(task.name))
    texts = [f"{len(tasks)} threads\n"]
    for task in tasks[:MOST_THREADS]:
        texts.append(f"\n== thread {task.name}\n")
        texts += [f"-- {name}\n{_text(task / name).rstrip()}\n" for name in _OF_THREAD]
    return "".join(texts)


def _groups(pid: int) -> str:
    """The limits of the control groups around a process, as far as they are mounted here."""
    texts: list[str] = []
    mounts = read_mounts()
    for controllers, group in groups_of(Path(f"/proc/{pid}/cgroup")):
        for mount in mounts:
            is_v1 = mount.fstype == "cgroup" and not controllers.isdisjoint(mount.super_options)
            if not is_v1 and not (mount.fstype == "cgroup2" and controllers == {""}):
                continue
            for folder in group_folders(mount, group):
                files = [folder / name for name in _OF_GROUP if (folder / name).is_file()]
                texts += [f"{file}: {' '.join(_text(file).split())}\n" for file in files]
    return "".join(texts)
