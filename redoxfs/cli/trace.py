"""`redoxfs trace`: hand in the order in which this node will ask in the next epoch.

The order is a hint that lets other nodes read ahead. The paths go to the daemon as they are written, relative to the
mount; whether they are samples is for the daemon to say, which knows them.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from redoxfs.launch.control import ask_daemon, live_mount
from redoxfs.launch.errors import UsageError


def run(arguments: argparse.Namespace) -> int:
    """Hand the order in; returns 0 once the daemon has taken it."""
    place = live_mount(arguments.mountpoint, arguments.timeout)
    # A symlink on the way to the mount is on the way to its files, too.
    tops = [os.fsencode(top) for top in (place.path, os.path.abspath(arguments.mountpoint))]
    paths = relative_paths(_read(arguments.file), tops, arguments.file)
    answer = ask_daemon(place, "trace", b"\0".join(paths))
    print(f"{answer.get('samples', 0):,} of {len(paths):,} paths are taken as the order of the next epoch")
    return 0


def relative_paths(text: bytes, tops: Sequence[bytes], name: str) -> list[bytes]:
    """The path on each line that is not empty, relative to the mount, whose own path is each of ``tops``.

    Raises UsageError, with the ``name`` of the file and the line, if one leads out of the mount.
    """
    found = []
    for number, line in enumerate(text.split(b"\n"), 1):
        if not line:
            continue
        path = os.path.normpath(line)
        if path.startswith(b"/"):
            # A path may begin with two slashes, and means the same on Linux.
            path = b"/" + path.lstrip(b"/")
            below = [path[len(top) + 1 :] for top in tops if path.startswith(top.rstrip(b"/") + b"/")]
            if not below:
                raise UsageError(f"{name}, line {number}: {os.fsdecode(line)} is not below {os.fsdecode(tops[0])}")
            path = below[0]
        if b"\0" in path or path in (b".", b"..") or path.startswith(b"../"):
            raise UsageError(f"{name}, line {number}: {os.fsdecode(line)} is no file below {os.fsdecode(tops[0])}")
        found.append(path)
    if not found:
        raise UsageError(f"{name}: has no paths in it")
    return found


def _read(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as failure:
        raise UsageError(f"{name}: {failure.strerror}") from None
