"""`redoxfs restart`: put a daemon of the installed redoxfs in the place of the one that serves a mount.

What the old daemon leaves must be of a layout that the new one can read. This process is of the version that is
installed, so it compares the two before anything happens. Programs wait meanwhile, and notice nothing else.
"""

import os
import select
import time
from contextlib import ExitStack
from typing import Any

from redoxfs.cli.options.mounts import RestartOptions
from redoxfs.launch.control import ask_daemon, live_mount, send_control
from redoxfs.launch.control_files import pid_here
from redoxfs.launch.errors import DaemonError, MountpointError
from redoxfs.launch.keeper import layouts
from redoxfs.launch.path_status import PathStatus
from redoxfs.launch.runtime_paths import control_path_of_daemon
from redoxfs.launch.say import say
from redoxfs.launch.turn import own_turn
from redoxfs.linux.ends import end_of

# A new daemon takes ten times as long to begin, or longer.
_LOOK_EVERY_S = 0.05

_ANSWER_S = 5.0
"""For a daemon that listens to answer, before it is asked once more."""


def run(options: RestartOptions) -> int:
    """Restart the daemon at MOUNTPOINT; returns 0 once the new one answers."""
    mount = live_mount(options.mountpoint, options.timeout_s)
    with own_turn(mount.path):
        old = ask_daemon(mount, "stats", b"", options.timeout_s)
        check(mount, old)
        with ExitStack() as held:
            keeper, daemon = (_held(pid, mount, held) for pid in (old["keeper"]["pid"], old["pid"]))
            ask_daemon(mount, "restart", b"", options.timeout_s)
            new = _next(mount, old["pid"], keeper, daemon, options.timeout_s)
    say(
        f"{mount.path}: the daemon is now pid {new['pid']} of redoxfs {new['version']}; "
        f"before, it was pid {old['pid']} of redoxfs {old['version']}"
    )
    return 0


def check(mount: PathStatus, stats: dict[str, Any]) -> None:
    """Raises MountpointError if no other daemon can be put in the place of the one with these statistics."""
    keeper = stats.get("keeper")
    if not keeper or keeper["pid"] is None:
        reason = "was mounted without a keeper" if not keeper else "has lost its keeper, which was killed"
        raise MountpointError(f"{mount.path}: {reason}; to restart its daemon, unmount and mount again")
    if pid_here(stats) is None:
        # Its end, and that of its keeper, could not be seen.
        raise MountpointError(
            f"{mount.path}: its daemon has another pid namespace, as in a container; to restart it, run this there"
        )
    for name, here in layouts().items():
        there = keeper["layouts"].get(name)
        if there != here:
            raise MountpointError(
                f"{mount.path}: redoxfs {stats['version']} serves it, with layout {there} of the {name} memory, and "
                f"this redoxfs reads layout {here}; it goes on as it is; to change the version, unmount and mount again"
            )


def _held(pid: int, mount: PathStatus, held: ExitStack) -> int:
    """A descriptor of a process, until ``held`` ends. Raises DaemonError if the process has ended."""
    try:
        fd = end_of(pid)
    except ProcessLookupError:
        raise DaemonError(f"{mount.path}: its daemon or its keeper has just ended; see redoxfs status") from None
    held.callback(os.close, fd)
    return fd


def _next(mount: PathStatus, pid: int, keeper: int, daemon: int, timeout_s: float) -> dict[str, Any]:
    """The statistics of the next daemon."""
    path, deadline_s = control_path_of_daemon(mount.path), time.monotonic() + timeout_s
    ended = select.poll()
    ended.register(keeper, select.POLLIN)
    ended.register(daemon, select.POLLIN)
    while time.monotonic() < deadline_s:
        # The old daemon's end is awaited, and then only the keeper's, which ends if it gives up.
        for fd, _ in ended.poll(_LOOK_EVERY_S * 1000):
            if fd == keeper:
                raise DaemonError(f"{mount.path}: no other daemon could be started; its log says why")
            ended.unregister(fd)
        try:
            # Not for longer at a time: the keeper may end meanwhile.
            left_s = max(_LOOK_EVERY_S, min(_ANSWER_S, deadline_s - time.monotonic()))
            stats = send_control(path, "stats", timeout_s=left_s)
        except (OSError, ValueError):
            continue
        if stats["pid"] != pid:
            return stats
    raise DaemonError(f"{mount.path}: the new daemon does not answer within {timeout_s:g} s; its log may say why")
