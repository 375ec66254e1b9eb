"""Where a daemon keeps its log, its state file, and its control socket.

Their names follow from the mountpoint, so that other commands find them. The folder of the sockets is private (0700,
owned by us, not a symlink): /tmp belongs to everybody, and a folder that another user made there first could hand our
socket to them. Nor may such a folder keep us from working. So the folder lies where only we or root can make one:

1. $XDG_RUNTIME_DIR; sudo, cron and units pass none on
2. /run/redoxfs for root, which it shares with folders of jobs; /run/user/UID for other users
3. /tmp/redoxfs-UID, or, if somebody else has that name, one of ours that begins with it. The end is drawn at random,
   and other commands find it by its owner

A command looks for a daemon's socket in all of them.
"""

import errno
import glob
import hashlib
import os
import re
import socket
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from redoxfs.launch.errors import CommandError, UsageError
from redoxfs.linux.mount_table import of_mount, read_mounts, topmost_at
from redoxfs.linux.owned import ANY, WRITE, is_own_folder

# sun_path is 108 bytes, including a final zero (unix(7)).
_LONGEST_SOCKET_PATH_BYTES = 107

# What `of_mount` adds: a number of up to 20 bits (MINORBITS of the kernel), and a dash.
_LONGEST_NUMBER = 8

# Characters that are safe in a file name.
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 64


def control_path(mountpoint: Path) -> Path:
    """The control socket of the daemon at `mountpoint`. Makes its folder. Raises CommandError.

    Two mount namespaces, or a mount and one that was detached, may have the same mountpoint. So the daemon adds the
    number of its mount's device to this name (`of_mount`). Only a mount that the daemon received has this very name.
    """
    name = f"{_mark(mountpoint)}.sock"
    failure = CommandError(
        f"every folder for the control socket has a path of more than {_LONGEST_SOCKET_PATH_BYTES} bytes"
    )
    for base in _runtime_bases():
        folder = base / "redoxfs"
        if len(os.fsencode(folder / name)) + _LONGEST_NUMBER <= _LONGEST_SOCKET_PATH_BYTES:
            try:
                _make_private(folder)
                return folder / name
            except CommandError as error:
                failure = error
    raise failure


def control_path_of_daemon(mountpoint: Path) -> Path:
    """The control socket of the daemon at `mountpoint`, which may have been started with another XDG_RUNTIME_DIR.

    sudo passes none on. Raises CommandError.
    """
    mount = topmost_at(mountpoint, read_mounts())
    paths = _everywhere(control_path(mountpoint))
    if mount is not None:
        paths = [of_mount(path, mount.device) for path in paths]
    return next((path for path in paths if path.exists()), paths[0])


def lock_path_of_daemon(mountpoint: Path) -> Path:
    """The file by which processes at `mountpoint` take turns (`redoxfs.launch.turn`), found likewise."""
    paths = [path.with_suffix(".lock") for path in _everywhere(control_path(mountpoint))]
    return next((path for path in paths if path.exists()), paths[0])


def sockets_of_detached(mountpoint: Path) -> list[Path]:
    """The control sockets of daemons that were at `mountpoint` before, or are there in another mount namespace."""
    found: list[Path] = []
    for path in _everywhere(control_path(mountpoint)):
        found += [path, *path.parent.glob(f"{path.stem}-*{path.suffix}")]
    return [path for path in found if path.exists()]


def remove_dead_sockets(mountpoint: Path, device: str | None = None) -> None:
    """Remove the control sockets that killed daemons left at `mountpoint`; with ``device``, only that of this mount."""
    with suppress(CommandError, OSError):
        for path in sockets_of_detached(mountpoint):
            if device is not None and path != of_mount(path.with_stem(path.stem.partition("-")[0]), device):
                continue
            with socket.socket(socket.AF_UNIX) as call:
                call.setblocking(False)
                is_dead = call.connect_ex(os.fspath(path)) == errno.ECONNREFUSED
            if is_dead:
                path.unlink()


def make_folder_again(path: Path) -> None:
    """Make the folder of a control socket, which was removed. Raises CommandError."""
    _make_private(path.parent)


def _everywhere(path: Path) -> list[Path]:
    """A path in our runtime folder, then the same name in others that may be ours."""
    paths = [path]
    for base in _every_base():
        other = base / "redoxfs" / path.name
        if other != path and _is_private(other.parent):
            paths.append(other)
    return paths


def open_log(asked: str | None, mountpoint: Path) -> tuple[int, Path]:
    """A descriptor that appends to the daemon's log, and the log's path.

    Without a writable home, as for a service account, the default log is in the runtime folder. Raises UsageError if
    the file that was ``asked`` for cannot be written.
    """
    if asked is not None:
        path = Path(os.path.abspath(asked))
        try:
            return _open_append(path), path
        except OSError as failure:
            if not os.path.isdir(path.parent):
                raise UsageError(f"--log {asked}: {path.parent}: no such directory") from None
            raise UsageError(f"--log {asked}: {failure.strerror}") from None
    path = kept_path(mountpoint, "log")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # With another user's HOME, that user could have us write to any file of ours.
        if path.parent.stat().st_uid != os.geteuid():
            raise PermissionError
        return _open_append(path, os.O_NOFOLLOW), path
    except OSError:
        path = control_path(mountpoint).parent / path.name
        return _open_append(path), path


def kept_path(mountpoint: Path, kind: str) -> Path:
    """The path of a file that outlives the daemon at `mountpoint`; its folder may not exist yet.

    A user without a home has /, as in `default_cache_dir`.
    """
    # Imported here, because most commands need no such path and would start later.
    from platformdirs import user_state_path

    try:
        folder = user_state_path("redoxfs")
    except RuntimeError:
        folder = Path("/.local/state/redoxfs")
    stem = _NOT_PLAIN.sub("_", mountpoint.name)[:_LONGEST_NAME] or "root"
    # A home may be shared by hosts, and each may have a mount at this path.
    return folder / f"{stem}-{_mark(mountpoint)}-{_host()}.{kind}"


def own_folders() -> list[Path]:
    """Folders of sockets and locks that processes of this user made, wherever they are."""
    return sorted({base / "redoxfs" for base in _every_base() if (base / "redoxfs").is_dir()})


def kept_by_other_hosts(path: Path) -> list[Path]:
    """Files like ``path``, of `kept_path`, that mounts of other hosts left."""
    stem = path.stem.removesuffix(f"-{_host()}")
    return sorted(other for other in path.parent.glob(f"{glob.escape(stem)}-*{path.suffix}") if other != path)


def _open_append(path: Path, flags: int = 0) -> int:
    return os.open(path, flags | os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY, 0o600)


def _host() -> str:
    return _NOT_PLAIN.sub("_", socket.gethostname())[:_LONGEST_NAME]


def _mark(mountpoint: Path) -> str:
    return hashlib.sha256(os.fsencode(mountpoint)).hexdigest()[:16]


def _runtime_bases() -> Iterator[Path]:
    """Folders that may hold ours, best first. After `sudo`, the variable may still name another user's folder."""
    yield from _of_environment()
    if os.geteuid() == 0:
        yield _OF_ROOT
    elif _is_private(_of_user()):
        yield _of_user()
    yield _own_base()
    # The first one that a process of ours made, by its name, which all others then take as well.
    with suppress(OSError):
        if not _further_bases():
            tempfile.mkdtemp(prefix=f"{_own_base().name}-", dir=_own_base().parent)
    yield from _further_bases()


def _of_environment() -> Iterator[Path]:
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(given) and _is_private(Path(given)):
        yield Path(given)


def _every_base() -> list[Path]:
    """Those that exist: of this environment, and wherever a process with another one has its own."""
    bases = [*_of_environment(), _of_user(), _OF_ROOT, *_of_job(), _own_base(), *_further_bases()]
    return [base for base in bases if _is_base(base)]


_OF_ROOT = Path("/run/redoxfs")
"""A folder that all may enter: users' own folders of their jobs may lie there too (docs/slurm.md)."""


def _of_job() -> Iterator[Path]:
    """That of a mount which Slurm's Prolog made for this job."""
    job = os.environ.get("SLURM_JOB_ID", "")
    if job.isdecimal():
        yield _OF_ROOT / f"{job}.d"


def _of_user() -> Path:
    return Path(f"/run/user/{os.geteuid()}")


def _own_base() -> Path:
    return Path(f"/tmp/redoxfs-{os.geteuid()}")


def _further_bases() -> list[Path]:
    """Folders of ours beside `_own_base`, which somebody else has. Nobody can make one of ours, or move one."""
    own = _own_base()
    return sorted(path for path in own.parent.glob(f"{own.name}-*") if _is_private(path))


def _make_private(folder: Path) -> None:
    base = folder.parent
    for each, mode in ((base, 0o755 if base == _OF_ROOT else 0o700), (folder, 0o700)):
        try:
            each.mkdir(mode=mode)
            # Whatever the umask is.
            each.chmod(mode)
        except FileExistsError:
            pass
        except OSError as failure:
            raise CommandError(f"{each}: cannot be made, for the control socket: {failure.strerror}") from None
        if not (_is_base(each) if each == base else _is_private(each)):
            raise CommandError(f"{each}: not a private folder of yours (owner, mode 0700, no symlink); remove it")


def _is_base(folder: Path) -> bool:
    """Whether only we can make our folder in it."""
    return _is_private(folder, WRITE if folder == _OF_ROOT else ANY)


def _is_private(folder: Path, kept: int = ANY) -> bool:
    """Whether a folder is ours, and others have none of the rights ``kept``."""
    try:
        return is_own_folder(os.lstat(folder), kept)
    except OSError:
        return False
