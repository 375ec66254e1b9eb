"""Where a daemon keeps its log, its state file, and its control socket.

Their names follow from the mountpoint, so that other commands find them. The folder of the sockets is private (0700,
owned by us, not a symlink): /tmp belongs to everybody, and a folder that another user made there first could hand our
socket to them.
"""

import hashlib
import os
import re
import stat
from pathlib import Path

from redoxfs.launch.errors import CommandError, UsageError

# sun_path is 108 bytes, including a final zero (unix(7)).
_LONGEST_SOCKET_PATH_BYTES = 107

# Characters that are safe in a file name.
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 64


def control_path(mountpoint: Path) -> Path:
    """The control socket of the daemon at `mountpoint`. Makes its folder. Raises CommandError."""
    name = f"{_mark(mountpoint)}.sock"
    for base in _runtime_bases():
        folder = base / "redoxfs"
        if len(os.fsencode(folder / name)) <= _LONGEST_SOCKET_PATH_BYTES:
            _make_private(folder)
            return folder / name
    raise CommandError(
        f"every folder for the control socket has a path of more than {_LONGEST_SOCKET_PATH_BYTES} bytes"
    )


def control_path_of_daemon(mountpoint: Path) -> Path:
    """The control socket of the daemon at `mountpoint`, which may have been started with another XDG_RUNTIME_DIR.

    mount(8) and sudo pass none on. Raises CommandError.
    """
    path = control_path(mountpoint)
    if path.exists():
        return path
    for base in (Path(f"/run/user/{os.geteuid()}"), _own_base()):
        other = base / "redoxfs" / path.name
        if _is_private(base) and _is_private(other.parent) and other.exists():
            return other
    return path


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
        return _open_append(path), path
    except OSError:
        path = control_path(mountpoint).parent / path.name
        return _open_append(path), path


def kept_path(mountpoint: Path, kind: str) -> Path:
    """The path of a file that outlives the daemon at `mountpoint`; its folder may not exist yet.

    Raises CommandError if the user has no home.
    """
    # Imported here, because most commands need no such path and would start later.
    from platformdirs import user_state_path

    try:
        folder = user_state_path("redoxfs")
    except RuntimeError as homeless:
        raise CommandError(str(homeless)) from None
    stem = _NOT_PLAIN.sub("_", mountpoint.name)[:_LONGEST_NAME] or "root"
    return folder / f"{stem}-{_mark(mountpoint)}.{kind}"


def _open_append(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY, 0o600)


def _mark(mountpoint: Path) -> str:
    return hashlib.sha256(os.fsencode(mountpoint)).hexdigest()[:16]


def _runtime_bases() -> list[Path]:
    """Folders that may hold ours, best first. After `sudo`, the variable may still name another user's folder."""
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(given) and _is_private(Path(given)):
        return [Path(given), _own_base()]
    return [_own_base()]


def _own_base() -> Path:
    return Path(f"/tmp/redoxfs-{os.geteuid()}")


def _make_private(folder: Path) -> None:
    for each in (folder.parent, folder):
        try:
            each.mkdir(mode=0o700)
        except FileExistsError:
            pass
        except OSError as failure:
            raise CommandError(f"{each}: cannot be made, for the control socket: {failure.strerror}") from None
        if not _is_private(each):
            raise CommandError(f"{each}: not a private folder of yours (owner, mode 0700, no symlink); remove it")


def _is_private(folder: Path) -> bool:
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
