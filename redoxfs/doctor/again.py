"""Commands that a verdict names: the mount once more, or its source packed, with the options that it was given.

They are made from what stats.json says of the mount, and can be run as they are printed. The options that are in a file
of `--catalog` are not in stats.json, and a mount beside that file takes no others. So where they matter, the command
shows them and leaves the mount as it is. A comment of the shell says what to do with them.
"""

import shlex
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

_OF_DATASET = ("--classes", "--samples", "--groups")
"""What `pack` fixes for good."""


def mount_again(stats: Mapping[str, Any], **changes: str | None) -> str | None:
    """The commands that end the mount and make it anew with other options; None: drop one. None if only the owner of
    the mountpoint can, such as a pod's manifest."""
    asked = _asked(stats)
    if asked is None:
        return None
    options, paths = asked
    file = catalog_of(stats)
    is_of_dataset = not {f"--{name}" for name in changes}.isdisjoint(_OF_DATASET)
    change = " ".join(f"--{name} {value}" for name, value in changes.items() if value is not None)
    if is_of_dataset and (stats.get("nodes") or 1) > 1:
        # The other nodes refuse one that has another dataset.
        how = f"with {change}" if change else f"without --{next(iter(changes))}"
        return f"unmount all nodes, and mount each again {how}"
    if file is not None and is_of_dataset:
        and_change = f" and {change}" if change else ""
        return f"{_shown(file)}  # mount again, without --catalog, with the options that it names{and_change}"
    for name, value in changes.items():
        option = f"--{name.replace('_', '-')}"
        options = [word for word in options if not word.startswith(f"{option}=")]
        options += [] if value is None else [f"{option}={value}"]
    return f"redoxfs umount {_where(stats)} && {shlex.join(['redoxfs', 'mount', *options, *paths])}"


def is_packed(stats: Mapping[str, Any]) -> bool:
    """Whether the mount serves a packed dataset."""
    return stats.get("source_kind") in ("packed", "objects")


def pack(stats: Mapping[str, Any]) -> str | None:
    """The command that packs the source of the mount; a mount over it is ended first. Of archives it packs the files
    that the mount shows. None if it cannot be named, as where the labels are members of archives."""
    asked = _asked(stats)
    source = stats.get("source")
    if asked is None or not source or is_packed(stats):
        return None
    if stats.get("source_kind") == "archives":
        if str(source).startswith("http") or stats.get("classes_mode") == "member":
            return None
        return _packed(asked[0], f"{stats.get('mountpoint')}/.redoxfs/exact", f"{str(source).rstrip('/')}-packed")
    file = catalog_of(stats)
    if file is not None:
        return f"{_shown(file)}  # then redoxfs pack, with the options that it names"
    before = f"redoxfs umount {_where(stats)} && " if source == stats.get("mountpoint") else ""
    return before + _packed(asked[0], source, f"{str(source).rstrip('/')}-packed")


def _packed(options: Sequence[str], files: str, dst: str) -> str:
    of_dataset = [word for word in options if word.partition("=")[0] in _OF_DATASET]
    return shlex.join(["redoxfs", "pack", *of_dataset, *_paths([files, dst])])


def without(stats: Mapping[str, Any], option: str) -> str:
    """How to be rid of an option of the dataset: mount again; or, if a packed copy has it for good, make another copy
    of the files that the mount shows. In words if only the mountpoint's owner can, or nothing can be written there.
    """
    value = f"{option} {stats.get('classes_mode')}"
    if was_given(stats, option) or catalog_of(stats) is not None:
        return mount_again(stats, **{option[2:]: None}) or f"mount again, without {value}"
    source = str(stats.get("source"))
    if _asked(stats) is None or source.startswith("http"):
        return f"pack the dataset again, without {value}"
    files = f"{stats.get('mountpoint')}/.redoxfs/exact"
    return shlex.join(["redoxfs", "pack", *_paths([files, f"{source.rstrip('/')}-anew"])])


def was_given(stats: Mapping[str, Any], option: str) -> bool:
    """Whether the mount was asked for with ``option``."""
    return any(word.partition("=")[0] == option for word in _words(stats))


def scan_again(stats: Mapping[str, Any], where: str) -> str:
    """How the mount at ``where`` comes to know files that have changed."""
    file = catalog_of(stats)
    if file is None:
        return f"redoxfs umount {where} && redoxfs mount --rescan …"
    return f"{_shown(file)}  # then redoxfs catalog export with the options that it names, and mount again"


def catalog_of(stats: Mapping[str, Any]) -> str | None:
    """The file that replaced the scan; None if SOURCE was scanned."""
    options = takewhile(lambda word: word != "--", _words(stats))
    return next((word.partition("=")[2] for word in options if word.startswith("--catalog=")), None)


def _words(stats: Mapping[str, Any]) -> list[str]:
    return [str(word) for word in (stats.get("request") or {}).get("words") or []]


def _shown(catalog: str) -> str:
    return shlex.join(["redoxfs", "catalog", "show", *_paths([catalog])])


def _where(stats: Mapping[str, Any]) -> str:
    return shlex.quote(str(stats.get("mountpoint")))


def _asked(stats: Mapping[str, Any]) -> tuple[list[str], list[str]] | None:
    """The options and the paths of the mount; None if another program made it."""
    words = _words(stats)
    if "--" not in words or any(word.startswith("--fd-socket") for word in words):
        return None
    at = words.index("--")
    return words[:at], _paths(words[at + 1 :])


def _paths(paths: Sequence[str]) -> list[str]:
    return ["--", *paths] if any(path.startswith("-") for path in paths) else list(paths)
