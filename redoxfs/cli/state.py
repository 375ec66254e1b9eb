"""`redoxfs state`, and what `redoxfs mount --resume` goes on from: how far the laps of a mount are.

`save` has the daemon write the file, as it writes its own every second; `load` hands a file to the daemon, which goes
on from there at once: what had its turn after the save comes again. That belongs to a checkpoint of the training:
saved with it, loaded with it. Of several nodes any saves what all had, and each has to load it.
"""

import argparse
import os
from pathlib import Path

from redoxfs.launch.control import ask_daemon, live_mount
from redoxfs.launch.errors import UsageError
from redoxfs.launch.resume import outside


def run(arguments: argparse.Namespace) -> int:
    """Save or load; returns 0 once it is done."""
    place = live_mount(arguments.mountpoint, arguments.timeout)
    path = outside(arguments.file, arguments.timeout)
    if arguments.what == "save":
        told = ask_daemon(place, "state-save", os.fsencode(path))
        print(f"saved: {told['told']}")
    else:
        told = ask_daemon(place, "state-load", _read(path, arguments.file))
        print(f"loaded: {told['told']}; what had its turn after it was saved comes again")
    return 0


def _read(path: Path, name: str) -> bytes:
    from redoxfs.node.state import StateError, decode, read_bytes

    try:
        data = read_bytes(path)
        decode(data)
    except OSError as failure:
        raise UsageError(f"{name}: {failure.strerror or failure}") from None
    except StateError as refusal:
        raise UsageError(f"{name}: {refusal}") from None
    return data
