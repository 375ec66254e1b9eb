"""The names beside SOURCE: the second split, if SOURCE is itself a split.

A job may mount imagenet/train and imagenet/val one by one. Only the directory above then shows whether they hold the
same directories. It is reached from SOURCE's descriptor by "..", so a mount over SOURCE does not matter. Only names are
read: no file is opened, no symlink followed, and at most NAMES_MAX names are read in a directory. A directory that
cannot be read is no evidence.

A directory beside SOURCE may be a mount that hangs, so the command line looks from a separate process with a deadline.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from redoxfs.dataset.samples import APPLIANCE_DIRECTORIES
from redoxfs.dataset.splits import names_split
from redoxfs.dataset.tree import Tree

NAMES_MAX = 100_000
SPLITS_MAX = 32

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Names:
    """The names in one directory, without hidden ones, as `os.fsdecode` returns them."""

    directories: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)  # and symlinks, and anything else that is not a directory


@dataclass(frozen=True, slots=True)
class Beside:
    """The names beside SOURCE, and the names in each split there (None: could not be read)."""

    names: Names = field(default_factory=Names)
    splits: dict[str, Names | None] = field(default_factory=dict)


def own_name(tree: Tree) -> bytes:
    """The name of SOURCE; b"" if its paths end in different names, or are not known."""
    names = {root.rpartition(b"/")[2] for root in tree.roots}
    return names.pop() if len(names) == 1 else b""


def look_beside(root_fd: int) -> Beside:
    """The names beside the directory that `root_fd` is open on. Raises nothing for unreadable directories."""
    try:
        own = os.path.basename(os.readlink(f"/proc/self/fd/{root_fd}"))
        above = os.open("..", _OPEN_DIRECTORY, dir_fd=root_fd)
    except OSError:
        return Beside()
    try:
        if os.path.samestat(os.fstat(above), os.fstat(root_fd)):
            return Beside()
        names = _names_in(above)
        if names is None:
            return Beside()
        others = Names(_without(names.directories, own), _without(names.files, own))
        splits = [name for name in others.directories if names_split(os.fsencode(name))]
        return Beside(others, {name: _look_into(above, name) for name in splits[:SPLITS_MAX]})
    finally:
        os.close(above)


def _look_into(above: int, name: str) -> Names | None:
    try:
        fd = os.open(name, _OPEN_DIRECTORY, dir_fd=above)
    except OSError:
        return None
    try:
        return _names_in(fd)
    finally:
        os.close(fd)


def _names_in(fd: int) -> Names | None:
    """None if the names cannot be read, or are too many to be class directories."""
    found = Names()
    try:
        with os.scandir(fd) as children:
            for read, child in enumerate(children):
                if read == NAMES_MAX:
                    return None
                if child.name.startswith(".") or os.fsencode(child.name) in APPLIANCE_DIRECTORIES:
                    continue
                is_directory = child.is_dir(follow_symlinks=False)
                (found.directories if is_directory else found.files).append(child.name)
    except OSError:
        return None
    found.directories.sort()
    found.files.sort()
    return found


def _without(names: Iterable[str], own: str) -> list[str]:
    return [name for name in names if name != own]
