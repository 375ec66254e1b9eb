"""`redoxfs state`: save the progress of a mount's laps to a file, or load it.

`save` makes the daemon write the file, as it writes its own every second, in the folder that this process sees. `load`
gives a file to the daemon, which continues from it at once: samples that were served after the save are served again.
`save --less N` takes back the last N opens, which loaders may have made ahead of the training loop. Save a state with
each checkpoint of the training, and load both together. With several nodes, any node saves the progress of all, and
each node has to load it.
"""

import os
from pathlib import Path

from redoxfs.cli.options.states import StateLoadOptions, StateSaveOptions
from redoxfs.launch.control import ask_daemon, live_mount
from redoxfs.launch.errors import DestinationError, UsageError
from redoxfs.launch.outputs import check_replaceable, opened_folder, outside
from redoxfs.launch.path_status import PathStatus
from redoxfs.launch.say import show


def run(options: StateSaveOptions | StateLoadOptions) -> int:
    """Save or load; returns 0 once it is done."""
    mount = live_mount(options.mountpoint, options.timeout_s)
    path = outside(options.file, options.timeout_s)
    if isinstance(options, StateSaveOptions):
        from redoxfs.node.state import MAGIC

        check_replaceable(path, options.file, MAGIC, "state file")
        show(f"saved: {_save(mount, path, options.file, options.less, options.timeout_s)}")
    else:
        answer = ask_daemon(mount, "state-load", _read(path, options.file), options.timeout_s)
        show(f"loaded: {answer['told']}; samples served since the save are served again")
    return 0


def _save(mount: PathStatus, path: Path, name: str, less: int, timeout_s: float) -> str:
    verb, data = "state-save", os.fsencode(path)
    if less:
        verb, data = "state-save-less", b"%d %s" % (less, data)
    with opened_folder(path.parent) as folder:
        try:
            answer = ask_daemon(mount, verb, data, timeout_s, folder=folder)
        except UsageError as refusal:
            _, is_of_file, why = str(refusal).partition(f"{path}: ")
            if not is_of_file:
                raise
            raise DestinationError(f"{name}: {why}") from None
    if not less:
        return answer["told"]
    again = f", and {answer['again']:,} more of the lap after them" if answer["again"] else ""
    came = f"{answer['told']}; the last {answer['less']:,} that were opened come again{again}"
    if answer["less"] < less:
        return f"{came}; no more than these, of {less:,}, were opened since the state was loaded or the mount began"
    return came


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
