"""A mount namespace, and folders for sockets, caches and logs, of each process that runs tests.

So no test sees what another one, or anybody else on the machine, has mounted or keeps open; and what this process
mounts ends with it. Without root it stays where it is.
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

from redoxfs.linux.libc import last_error, libc
from redoxfs.linux.mount_table import read_mounts

CLONE_NEWNS = 0x20000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
MNT_DETACH = 2

T = TypeVar("T")

HOMES = ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME")


def why_not() -> str | None:
    """Why this user's processes stay in the machine's mount namespace; None if they need not."""
    try:
        subprocess.run(["unshare", "--mount", "true"], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else str(error)
        return f"no mount namespace of their own, so tests see each other's mounts: {reason}"
    return None


def seclude() -> None:
    """Before any test is imported."""
    folder = Path(tempfile.mkdtemp(prefix="redoxfs-tests-"))
    # Forks of this process run the exit handlers too.
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    for name in HOMES:
        os.environ[name] = str(folder / name.lower())
        Path(os.environ[name]).mkdir(mode=0o700)
    if not enter_own_mounts():
        return
    # A copy of a mount would keep it busy for its owner.
    for mount in reversed(read_mounts()):
        if mount.ours:
            libc.umount2(os.fsencode(mount.mountpoint), MNT_DETACH)


def enter_own_mounts() -> bool:
    """Give this thread, and what it starts, a copy of the mounts that it sees; False if it may not."""
    if libc.unshare(CLONE_NEWNS) != 0:
        return False
    if libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None) != 0:
        raise last_error("/")
    return True


def with_own_folder(folder: Path, call: Callable[[], T]) -> T:
    """The result of ``call`` in a thread that sees an empty folder at this path, as its children do. Needs root."""

    def run() -> T:
        # It ends with the thread.
        assert enter_own_mounts()
        subprocess.run(["mount", "-t", "tmpfs", "own", folder], check=True)
        return call()

    with ThreadPoolExecutor(1) as own:
        return own.submit(run).result()
