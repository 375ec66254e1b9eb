"""A mount namespace, and folders for files, sockets, caches and logs, of each process that runs tests.

So no test sees what another one, or anybody else on the machine, has mounted or keeps open; and what this process
mounts ends with it. Without root it stays where it is.

The folders are in memory. The tests make a quarter of a million files, and some disks take a third of a millisecond of
processor time to make one. The folders end with the process, however it ends.
"""

import atexit
import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from redoxfs.launch.memory import available_memory
from redoxfs.linux.libc import last_error, libc
from redoxfs.linux.mount_table import read_mounts

CLONE_NEWNS = 0x20000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
MNT_DETACH = 2

T = TypeVar("T")

ENOUGH_BYTES = 8 << 30
"""Of memory. The files of a whole run take 4 GiB."""

HOMES = ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME")


def why_not() -> str | None:
    """Why this user's processes stay in the machine's mount namespace; None if they need not."""
    try:
        subprocess.run(["unshare", "--mount", "true"], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else str(error)
        return f"no mount namespace of their own, so tests see each other's mounts: {reason}"
    return None


def seclude(files: Path | None) -> None:
    """Before any test is imported. ``files``: the folder of the tests' files, to have it in memory too."""
    folder = Path(tempfile.mkdtemp(prefix="redoxfs-tests-"))
    atexit.register(_remove, folder, os.getpid())
    if enter_own_mounts():
        # A copy of a mount would keep it busy for its owner.
        for mount in reversed(read_mounts()):
            if mount.ours:
                libc.umount2(os.fsencode(mount.mountpoint), MNT_DETACH)
        if available_memory() >= ENOUGH_BYTES:
            for each in filter(None, (folder, files)):
                have_in_memory(each)
    for name in HOMES:
        os.environ[name] = str(folder / name.lower())
        Path(os.environ[name]).mkdir(mode=0o700)


def enter_own_mounts() -> bool:
    """Give this thread, and what it starts, a copy of the mounts that it sees; False if it may not."""
    if libc.unshare(CLONE_NEWNS) != 0:
        return False
    if libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None) != 0:
        raise last_error("/")
    return True


def have_in_memory(folder: Path) -> None:
    """Mount an empty filesystem in memory over a folder."""
    if libc.mount(b"tests", os.fsencode(folder), b"tmpfs", ctypes.c_ulong(0), b"mode=0700") != 0:
        raise last_error(os.fspath(folder))


def _remove(folder: Path, owner: int) -> None:
    # Forks run the exit handlers too.
    if os.getpid() == owner:
        libc.umount2(os.fsencode(folder), MNT_DETACH)
        shutil.rmtree(folder, ignore_errors=True)


def with_own_folder(folder: Path, call: Callable[[], T]) -> T:
    """The result of ``call`` in a thread that sees an empty folder at this path, as its children do. Needs root."""

    def run() -> T:
        # It ends with the thread.
        assert enter_own_mounts()
        have_in_memory(folder)
        return call()

    with ThreadPoolExecutor(1) as own:
        return own.submit(run).result()
