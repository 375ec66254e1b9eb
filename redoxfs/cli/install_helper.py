"""`redoxfs install-helper`: a link by which mount(8) finds `mount.redoxfs`, and its removal.

pip puts the script beside `redoxfs`, and mount(8) looks in /sbin alone. Nothing is replaced or removed but a link to
this script, or to a script of this name that is not there any more, as after a venv was moved.
"""

import os
import shlex
import sys
import sysconfig
from pathlib import Path

from redoxfs.cli.options.mounts import InstallHelperOptions
from redoxfs.launch.errors import CommandError, DestinationError
from redoxfs.launch.say import say

_NAME = "mount.redoxfs"


def run(options: InstallHelperOptions) -> int:
    """Make or remove the link."""
    link = Path(os.path.abspath(options.directory)) / _NAME
    try:
        if options.undo:
            _remove(link)
        else:
            _make(link)
    except OSError as failure:
        raise DestinationError(f"{link}: {failure.strerror}") from None
    return 0


def _make(link: Path) -> None:
    script = _script()
    if _is_link_to(link, script):
        say(f"{link} is a link to {script} already")
        return
    if os.path.lexists(link):
        _check_ours(link, script)
        link.unlink()
    link.symlink_to(script)
    say(f"linked {link} to {script}: mount -t redoxfs SOURCE MOUNTPOINT -o OPTIONS works now, and so does /etc/fstab")
    folder = str(link.parent)
    where = "" if folder == InstallHelperOptions().directory else f" --directory {shlex.quote(folder)}"
    say(f"to undo it: redoxfs install-helper --undo{where}")
    owner = script.stat().st_uid
    if owner not in (0, os.geteuid()):
        say(f"warning: user {owner} owns {script}, and so decides what root's next mount -t redoxfs runs")


def _remove(link: Path) -> None:
    if not os.path.lexists(link):
        say(f"nothing to undo: there is no {link}")
        return
    _check_ours(link, _script())
    link.unlink()
    say(f"removed {link}")


def _check_ours(link: Path, script: Path) -> None:
    """Raises DestinationError if something else is there."""
    if not link.is_symlink():
        raise DestinationError(f"{link}: not a link of redoxfs; left as it is")
    target = Path(os.readlink(link))
    is_dangling = target.name == _NAME and not link.exists()
    if not is_dangling and not _is_link_to(link, script):
        raise DestinationError(f"{link}: a link to {target}, which is not of this installation; left as it is")


def _is_link_to(link: Path, script: Path) -> bool:
    return link.is_symlink() and link.resolve() == script.resolve()


def _script() -> Path:
    """Where pip put the script of this installation. Raises CommandError."""
    folders = [Path(sys.argv[0]).resolve().parent, Path(sysconfig.get_path("scripts")), Path(sys.executable).parent]
    for folder in folders:
        if (folder / _NAME).is_file():
            return folder / _NAME
    raise CommandError(f"{_NAME} is in none of {', '.join(map(str, folders))}; install redoxfs with pip again")
