"""`redoxfs log-level`: show what the daemon of a mount logs, or have it log more or less from now on.

A daemon that takes the place of another begins with the level of the mount's own `--log-level`.
"""

from redoxfs.cli.options.mounts import LogLevelOptions
from redoxfs.launch.control import ask_daemon, live_mount
from redoxfs.launch.defaults import LOG_LEVELS
from redoxfs.launch.errors import UsageError


def run(options: LogLevelOptions) -> int:
    """Print the level, or set it; returns 0 once the daemon has it."""
    if options.level not in (None, *LOG_LEVELS):
        raise UsageError(f"{options.level!r} is not a level of the log: {', '.join(LOG_LEVELS)}")
    mount = live_mount(options.mountpoint, options.timeout_s)
    answer = ask_daemon(mount, "log-level", (options.level or "").encode(), options.timeout_s)
    if options.level is None:
        print(answer["level"])
    else:
        print(f"{mount.path}: the daemon logs from {answer['level']} on; before, from {answer['before']} on")
    return 0
