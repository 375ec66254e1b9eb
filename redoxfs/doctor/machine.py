"""Checks of this machine, whatever is mounted: FUSE, the kernel, limits and memory.

`check_fuse` (launch/fuse_access.py) makes the first of them before each mount and raises the first failure. Here, each
is a line of its own. Paths are arguments, so that tests can give a procfs or a configuration of their own.
"""

import errno
import os
import re
import resource
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

from redoxfs.doctor.result import Result, ok, problem, warning
from redoxfs.launch.apparmor import ENABLED, FOLDER, confinement
from redoxfs.launch.fuse_access import DEVICE, FUSE_CONF, device_trouble, has_name, may_mount, others_allowed
from redoxfs.launch.memory import default_memory, memory_and_limit, process_limit
from redoxfs.launch.sizes import counted, format_bytes
from redoxfs.linux.beneath import has_openat2
from redoxfs.linux.detach import find_helper
from redoxfs.linux.pids import sees_all_pids

PROC = Path("/proc")

OLDEST_KERNEL = (5, 4)
"""Version 7.31 of FUSE. Distributions bring it into older kernels, so only a mount can tell."""

FEATURES = {
    (5, 6): "openat2",
    (6, 6): "shared mmap with -o direct_io",
    (6, 14): "reads that leave no pages in the cache",
}
"""By the first version of Linux that has it, what redoxfs uses and can do without."""

FEW_FILES, ENOUGH_FILES = 256, 4096
"""Descriptors: below the first a mount fails under load, since 128 reads may be in flight. The second has room for the
shards of a packed dataset of 4 TB."""

FEW_PROCESSES = 256
"""Up to 128 threads read, and some more serve."""

LITTLE_MEMORY_BYTES = 512 << 20
"""A daemon needs up to 130 MB besides --memory, and the default of --memory is a quarter of what is available."""

_INSTALL = (
    ("apt-get", "apt-get install fuse3"),
    ("dnf", "dnf install fuse3"),
    ("zypper", "zypper install fuse3"),
    ("apk", "apk add fuse3"),
    ("pacman", "pacman -S fuse3"),
)


def check_machine() -> list[Result]:
    """All of this module."""
    checks: tuple[Callable[[], Result], ...] = (
        check_device,
        check_helper,
        check_allow_other,
        check_apparmor,
        check_kernel,
        check_open_files,
        check_processes,
        check_callers,
        check_memory,
    )
    return [check() for check in checks]


def check_device(device: Path = DEVICE) -> Result:
    """The FUSE device can be opened: it exists, its mode permits it, and the device cgroup too."""
    trouble = device_trouble(device)
    if trouble is None:
        return ok(str(device), "can be opened")
    # The mode permits it to everybody, or this user is root: then only a device cgroup or a security module forbids it.
    by_group = trouble.error == errno.EPERM
    why = f"{trouble.what}{' (the device cgroup of this container forbids it)' if by_group else ''}"
    container = "docker run --device /dev/fuse --cap-add SYS_ADMIN …"
    commands = {
        errno.ENOENT: f"{as_root('modprobe fuse')}; in a container: {container}",
        errno.ENODEV: as_root("modprobe fuse"),
        errno.EACCES: as_root(f"chmod 666 {device}"),
        errno.EPERM: container,
    }
    return problem(str(device), why, commands.get(trouble.error, f"ls -l {device}"))


def check_helper(
    find: Callable[[], str | None] = find_helper,
    is_root: bool | None = None,
    proc: Path = PROC,
    named: Callable[[], bool] = has_name,
) -> Result:
    """fusermount3 is there, setuid root, and works for this user. Root mounts without it, and so does CAP_SYS_ADMIN."""
    name = "fusermount3"
    root = os.geteuid() == 0 if is_root is None else is_root
    is_able = root or (is_root is None and may_mount(proc))
    level = warning if is_able else problem
    who = "root does not" if root else "you do not"
    for_whom = f"; {who} need it, other users do" if is_able else "; only root can mount without it"
    path = find()
    if path is None:
        return level(name, f"is not installed{for_whom}", install_command(root))
    found = os.stat(path)
    if not found.st_mode & stat.S_ISUID or found.st_uid != 0:
        return level(
            name, f"{path} is not setuid root{for_whom}", as_root(f"chown root {path} && chmod u+s {path}", root)
        )
    if not is_able and _status(proc, "NoNewPrivs") == "1":
        return problem(
            name,
            "this process may gain no privileges (no_new_privs), so setuid has no effect",
            "in Kubernetes allowPrivilegeEscalation: true, or redoxfs csi (docs/kubernetes.md)",
        )
    if not root and not may_mount(proc) and not named():
        uid = os.getuid()
        return problem(
            name,
            f"user {uid} has no name, which {name} requires",
            f"echo 'redoxfs:x:{uid}:{os.getgid()}::/:/bin/sh' | sudo tee -a /etc/passwd",
        )
    return ok(name, f"{path}, setuid root")


def as_root(command: str, is_root: bool | None = None) -> str:
    """A command that only root may run, as this user types it."""
    root = os.geteuid() == 0 if is_root is None else is_root
    return command if root else " && ".join(f"sudo {each}" for each in command.split(" && "))


def install_command(is_root: bool) -> str:
    """How to install fusermount3 here."""
    command = next((command for tool, command in _INSTALL if shutil.which(tool)), None)
    return "install the package fuse3" if command is None else as_root(command, is_root)


def check_allow_other(conf: Path = FUSE_CONF, is_root: bool | None = None) -> Result:
    """Whether users may mount with -o allow_other."""
    root = os.geteuid() == 0 if is_root is None else is_root
    if others_allowed(conf):
        return ok("allow_other", f"{conf} permits it to all users")
    if root:
        return ok("allow_other", f"permitted to root; {conf} does not permit it to other users")
    return warning(
        "allow_other",
        f"{conf} lacks the line user_allow_other: only you could read your mounts",
        f"echo user_allow_other | sudo tee -a {conf}",
    )


def check_apparmor(folder: Path = FOLDER, enabled: Path = ENABLED, is_root: bool | None = None) -> Result:
    """Where AppArmor lets fusermount3 mount."""
    root = os.geteuid() == 0 if is_root is None else is_root
    confined = confinement(folder, enabled)
    if confined is None:
        return ok("AppArmor", "does not confine fusermount3")
    places = f"lets fusermount3 mount below {', '.join(confined.places)} alone"
    if root:
        return ok("AppArmor", f"{places}; root mounts without it")
    return warning("AppArmor", places, confined.mending("MOUNTPOINT"))


def check_kernel(release: str | None = None, openat2: Callable[[], bool] = has_openat2) -> Result:
    """The version, and features that are tried where that is possible."""
    text = os.uname().release if release is None else release
    version = version_of(text)
    if version < OLDEST_KERNEL:
        oldest = f"{OLDEST_KERNEL[0]}.{OLDEST_KERNEL[1]}"
        return warning(
            "kernel",
            f"Linux {text} is older than {oldest}; redoxfs mount says whether its FUSE is new enough",
            f"try a mount; else use Linux {oldest} or newer",
        )
    missing = [what for since, what in FEATURES.items() if version < since]
    if version >= (5, 6) and not openat2():
        return warning(
            "kernel",
            f"Linux {text}, but openat2 is refused, by a seccomp filter perhaps: each open of a file takes more calls",
            "update the container runtime, or its seccomp profile",
        )
    lacks = f", without {', '.join(missing)}; redoxfs does without" if missing else ""
    return ok("kernel", f"Linux {text}{lacks}", missing=missing)


def version_of(release: str) -> tuple[int, int]:
    """Major and minor of a release such as 6.18.4-generic; (0, 0) of another text."""
    numbers = release.split("-")[0].split(".")
    try:
        return int(numbers[0]), int(numbers[1])
    except (ValueError, IndexError):
        return 0, 0


def check_open_files(limits: tuple[int, int] | None = None, shards: int = 0) -> Result:
    """RLIMIT_NOFILE. A daemon raises it to its hard limit. ``shards`` of a packed dataset take a descriptor each."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE) if limits is None else limits
    hard = 1 << 62 if hard == resource.RLIM_INFINITY else hard
    shown = "unlimited" if hard >= 1 << 62 else f"{hard:,}"
    mend = "ulimit -Hn 65536 as root; LimitNOFILE=65536 in systemd; docker run --ulimit nofile=65536:65536 …"
    if hard < FEW_FILES + shards:
        needed = f"a mount needs {FEW_FILES}" + (f", and {counted(shards, 'shard')} as many more" if shards else "")
        return problem("open files", f"at most {shown}; {needed}", mend, hard=hard)
    if hard < ENOUGH_FILES:
        return warning("open files", f"at most {shown}, which many readers or shards exceed", mend, hard=hard)
    return ok("open files", f"at most {shown}", hard=hard)


def check_processes(proc: Path = PROC) -> Result:
    """The limits of threads: RLIMIT_NPROC, and the pids controller of every control group around this process."""
    # The soft one: a daemon raises only its limit of open files.
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    rlimit = None if most == resource.RLIM_INFINITY or os.geteuid() == 0 else most
    limit = process_limit(proc)
    if limit is not None and limit.left < FEW_PROCESSES:
        return warning(
            "threads",
            f"{limit.folder} permits {max(0, limit.left):,} more, and redoxfs may start {FEW_PROCESSES}",
            f"raise pids.max there ({limit.limit:,}): docker run --pids-limit, TasksMax= in systemd",
            left=limit.left,
        )
    if rlimit is not None and rlimit < FEW_PROCESSES:
        return warning("threads", f"at most {rlimit:,} processes and threads of this user", "ulimit -u 4096")
    return ok("threads", "no limit is near")


def check_callers(proc: Path = PROC) -> Result:
    """Whether a mount from here can tell all programs apart: by their pid namespace, and what /proc shows of others."""
    hides = re.search(r" /proc .* - proc .*hidepid=(?!0|off)", (proc / "self/mountinfo").read_text(errors="replace"))
    if hides is not None and os.geteuid() != 0:
        found = "/proc hides processes of other users (hidepid), so redoxfs does not see which of them copy"
        return warning("callers", found, "copy MOUNTPOINT/.redoxfs/exact/")
    if not sees_all_pids(proc):
        return ok(
            "callers", "those of this pid namespace are told apart; all others hold files by path, as one program"
        )
    return ok("callers", "all are told apart")


def check_memory(proc: Path = PROC) -> Result:
    """Memory that a mount can take: what the machine has left, and what the control groups leave."""
    available, limit = memory_and_limit(proc)
    inside = limit is not None and limit.left <= available
    what = f"{format_bytes(available)} can be taken"
    if inside and limit is not None:
        what += f", as the control group {limit.folder} ({limit.version}) has a limit of {format_bytes(limit.limit)}"
    values = {"available_bytes": available, "limit_bytes": None if limit is None else limit.limit}
    if available < LITTLE_MEMORY_BYTES:
        mend = "ask for more: #SBATCH --mem, resources.limits.memory, docker run --memory" if inside else "free -h"
        return warning("memory", f"{what}, which is little", mend, **values)
    return ok("memory", f"{what}; a mount takes {format_bytes(default_memory(available))} by default", **values)


def _status(proc: Path, name: str) -> str | None:
    try:
        lines = (proc / "self/status").read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(f"{name}:")), None)
