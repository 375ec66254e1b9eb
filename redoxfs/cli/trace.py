"""`redoxfs trace`: tell a mount the order of this node's next epoch.

The order is a hint that lets other nodes read ahead. Paths go to the daemon relative to the mount, otherwise as
written. The daemon knows which of them are samples.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from redoxfs.cli.options.nodes import TraceOptions
from redoxfs.launch.control import ask_daemon, live_mount
from redoxfs.launch.errors import UsageError


def run(options: TraceOptions) -> int:
    """Send the order; returns 0 once the daemon has it."""
    mount = live_mount(options.mountpoint, options.timeout_s)
    # A path of a file may go to the mount through the same symlink.
    tops = [os.fsencode(top) for top in (mount.path, os.path.abspath(options.mountpoint))]
    paths = relative_paths(_read(options.file), tops, options.file)
    answer = ask_daemon(mount, "trace", b"\0".join(paths), options.timeout_s)
    print(f"{answer.get('samples', 0):,} of {len(paths):,} paths are samples, and form the order of the next epoch")
    return 0


def relative_paths(text: bytes, tops: Sequence[bytes], name: str) -> list[bytes]:
    """The path on each line that is not empty, relative to the mount. Each of ``tops`` is a path of the mount.

    Raises UsageError, with the ``name`` of the file and the line, if a path leads out of the mount.
    """
    found = []
    for number, line in enumerate(text.split(b"\n"), 1):
        if not line:
            continue
        path = os.path.normpath(line)
        if path.startswith(b"/"):
            # On Linux, several slashes at the beginning mean the same as one.
            path = b"/" + path.lstrip(b"/")
            below = [path[len(top) + 1 :] for top in tops if path.startswith(top.rstrip(b"/") + b"/")]
            if not below:
                raise UsageError(f"{name}, line {number}: {os.fsdecode(line)} is not below {os.fsdecode(tops[0])}")
            path = below[0]
        if b"\0" in path or path in (b".", b"..") or path.startswith(b"../"):
            raise UsageError(f"{name}, line {number}: {os.fsdecode(line)} is not a file below {os.fsdecode(tops[0])}")
        found.append(path)
    if not found:
        raise UsageError(f"{name}: contains no paths")
    return found


def _read(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as failure:
        raise UsageError(f"{name}: {failure.strerror}") from None
