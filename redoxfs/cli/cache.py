"""`redoxfs cache`: list, check or remove the datasets that mounts with --cache have kept."""

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from redoxfs.cli.options.caches import CacheListOptions, CacheRemoveOptions, CacheVerifyOptions
from redoxfs.cli.progress import showing
from redoxfs.cli.table import print_table
from redoxfs.launch.errors import DamagedError, DestinationError, StillInUseError, UsageError
from redoxfs.launch.say import read_or_not, say
from redoxfs.launch.sizes import counted, format_bytes

if TYPE_CHECKING:
    from redoxfs.cache import Entry, Root


def run(options: CacheListOptions | CacheVerifyOptions | CacheRemoveOptions) -> int:
    """Carry out one of its actions."""
    from redoxfs.cache import CacheError, InUseError, Root

    try:
        root = Root(Path(options.folder), makes=False)
        if not root.is_cache:
            raise DestinationError(f"{root.name}: is no cache: no mount has used it with --cache")
        match options:
            case CacheListOptions():
                return _list(root, options)
            case CacheVerifyOptions():
                return _verify(root, options)
            case CacheRemoveOptions():
                return _remove(root, options)
    except InUseError as error:
        raise StillInUseError(str(error)) from None
    except CacheError as error:
        raise DestinationError(str(error)) from None


def _list(root: "Root", options: CacheListOptions) -> int:
    entries = root.entries()
    if options.json:
        print(json.dumps([_told(entry) for entry in entries], indent=2))
        return 0
    if not entries:
        say(f"{root.name}: contains no dataset")
    for entry in entries:
        used = datetime.fromtimestamp(entry.used_at_s).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
        print_table(
            entry.key,
            [
                ("source", entry.source or "unknown"),
                ("content", f"{counted(entry.files, 'copy', 'copies')}, {format_bytes(entry.size)}"),
                ("last used", f"{used}{', in use now' if entry.is_in_use else ''}"),
            ],
        )
    return 0


def _told(entry: "Entry") -> dict[str, object]:
    return {
        "key": entry.key,
        "source": entry.source,
        "files": entry.files,
        "size_bytes": entry.size,
        "used_at": entry.used_at_s,
        "in_use": entry.is_in_use,
    }


def _verify(root: "Root", options: CacheVerifyOptions) -> int:
    from redoxfs.cache import verify

    found = []
    damaged, fault = 0, ""
    for entry in root.entries():
        with showing("verify") as progress:
            checked = verify(root, entry.key, progress)
        damaged += checked.damaged + checked.index_bytes
        fault = checked.fault or fault
        found.append(
            {
                "key": entry.key,
                "source": entry.source,
                "files": checked.files,
                "size_bytes": checked.size,
                "damaged_files": checked.damaged,
                "damaged_index_bytes": checked.index_bytes,
            }
        )
        trouble = f"{checked.damaged:,} of them damaged, and {format_bytes(checked.index_bytes)} of the index"
        is_whole = not checked.damaged and not checked.index_bytes
        content = f"{counted(checked.files, 'copy', 'copies')}, {format_bytes(checked.size)}"
        say(f"{entry.key}: {content}, {'none damaged' if is_whole else trouble}")
    if options.json:
        with read_or_not(goes_on=bool(damaged)):
            print(json.dumps(found, indent=2))
    elif not found:
        say(f"{root.name}: contains no dataset")
    if damaged:
        what = f"cannot be marked ({fault})" if fault else "are given up"
        raise DamagedError(f"{root.name}: has damaged copies, which {what}; mounts read these files from SOURCE")
    return 0


def _remove(root: "Root", options: CacheRemoveOptions) -> int:
    from redoxfs.cache import InUseError

    if bool(options.keys) == options.all:
        raise UsageError("give the keys of datasets, or --all (see redoxfs cache ls)")
    entries = root.entries()
    chosen = {entry.key: entry for entry in entries} if options.all else {}
    for given in options.keys:
        found = [entry for entry in entries if given and entry.key.startswith(given)]
        if len(found) != 1:
            raise UsageError(f"{given}: {'several keys begin' if found else 'no key begins'} with it")
        chosen[found[0].key] = found[0]
    in_use: list[InUseError] = []
    for key, entry in chosen.items():
        try:
            root.remove(key)
        except InUseError as error:
            in_use.append(error)
            continue
        say(f"removed {key}, {format_bytes(entry.size)}")
    for each in in_use[:-1]:
        say(f"not removed: {each}")
    if in_use:
        raise in_use[-1]
    return 0
