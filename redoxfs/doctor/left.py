"""What redoxfs leaves on this machine, each with the command that removes it (docs/remove.md).

Only this user's own folders are looked at, and those of the machine that anybody may read. What a person named, such as
DIR of --cache or a packed copy, is known only while a mount uses it.
"""

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from redoxfs.dataset.cache import default_cache_dir
from redoxfs.doctor.result import Result, advice, ok
from redoxfs.launch.runtime_paths import kept_path, own_folders
from redoxfs.launch.sizes import counted, format_bytes
from redoxfs.linux.mount_table import read_mounts

HELPERS = (Path("/sbin/mount.redoxfs"), Path("/usr/sbin/mount.redoxfs"))
OF_SLURM = (Path("/etc/slurm/prolog.d/50-redoxfs"), Path("/etc/slurm/epilog.d/50-redoxfs"))
FSTAB, UNITS = Path("/etc/fstab"), Path("/etc/systemd/system")
OF_UNITS = (Path("/etc/redoxfs"), Path("/var/cache/redoxfs"), Path("/var/lib/redoxfs"))
"""What redoxfs@.service reads, and what systemd makes for it."""

_OF_OUR_TYPE = re.compile(r"^[ \t]*Type[ \t]*=[ \t]*redoxfs[ \t]*$", re.MULTILINE)


def left() -> list[Result]:
    """All that was found, in the order in which to remove it."""
    found = [*_mounts(), *_folders(), *_of_machine()]
    return found or [ok("nothing", "redoxfs has left nothing here that it knows of")]


def _mounts() -> Iterator[Result]:
    uid = os.getuid()
    for mount in read_mounts():
        if mount.ours and mount.owner is not None and (uid in (0, mount.owner[0])):
            where = shlex.quote(mount.mountpoint)
            yield advice("mount", f"{mount.mountpoint}, of {mount.source}", f"redoxfs umount {where}")


def _folders() -> Iterator[Result]:
    """Of this user."""
    named = {"scans and indexes": default_cache_dir(), "logs and states": kept_path(Path("/"), "log").parent}
    folders = [*named.items(), *(("sockets and locks", folder) for folder in own_folders())]
    for name, folder in folders:
        if folder.is_dir():
            files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
            size = sum(path.lstat().st_size for path in files)
            what = f"{folder}: {counted(len(files), 'file')}, {format_bytes(size)}"
            yield advice(name, what, f"rm -r {shlex.quote(os.fspath(folder))}", files=len(files), bytes=size)


def _of_machine() -> Iterator[Result]:
    for helper in HELPERS:
        if helper.is_symlink() and not helper.parent.is_symlink():
            where = "" if helper.parent == Path("/sbin") else f" --directory {helper.parent}"
            yield advice("helper of mount(8)", str(helper), f"sudo redoxfs install-helper --undo{where}")
    for path in OF_SLURM:
        if path.exists():
            yield advice("Slurm", str(path), f"sudo rm {path}")
    try:
        lines = FSTAB.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if not line.lstrip().startswith("#") and "redoxfs" in line:
            yield advice("fstab", f"{FSTAB}: {line.strip()}", f"sudo editor {FSTAB}")
    for unit in _units():
        yield advice("unit", str(unit), _removal(unit))
    for folder in OF_UNITS:
        if folder.is_dir():
            yield advice("files of units", str(folder), f"sudo rm -r {folder}")


def _units() -> list[Path]:
    """The units, and the folders of drop-ins. A mount unit may have any name, as it is that of the mountpoint."""
    if not UNITS.is_dir():
        return []
    found = set(UNITS.glob("*redoxfs*"))
    for unit in UNITS.glob("*.mount"):
        if _is_of_our_type(unit):
            automount = unit.with_suffix(".automount")
            drop_ins = (each.with_name(f"{each.name}.d") for each in (unit, automount))
            found |= {unit, *(each for each in (automount, *drop_ins) if os.path.lexists(each))}
    return sorted(found)


def _is_of_our_type(unit: Path) -> bool:
    try:
        return _OF_OUR_TYPE.search(unit.read_text(errors="replace")) is not None
    except OSError:
        return False


def _removal(unit: Path) -> str:
    # systemd escapes the characters of a mountpoint in a unit's name with backslashes.
    name, where = shlex.quote(unit.name), shlex.quote(os.fspath(unit))
    if unit.is_dir() and not unit.is_symlink():
        # A folder, such as that of drop-ins, is no unit.
        return f"sudo rm -r {where}"
    if unit.stem.endswith("@"):
        # --now would stop the template itself, which systemctl refuses.
        every = shlex.quote(f"{unit.stem}*{unit.suffix}")
        return f"sudo systemctl stop {every} && sudo systemctl disable {name} && sudo rm {where}"
    return f"sudo systemctl disable --now {name} && sudo rm {where}"
