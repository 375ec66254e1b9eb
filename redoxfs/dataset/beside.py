"""The names beside SOURCE: the second split, if SOURCE is itself a split.

A job may mount imagenet/train and imagenet/val one by one. Only the directory above then shows whether they hold the
same directories. It is reached from SOURCE's descriptor by "..", so a mount over SOURCE does not matter. If SOURCE is a
symlink, what lies beside that counts too. Only names are read: no file is opened, of a symlink only whether it leads to
a directory, and at most NAMES_MAX names are read in a directory. A directory that cannot be read is no evidence.

A directory beside SOURCE may be a mount that hangs, so the command line looks from a separate process with a deadline.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from redoxfs.dataset.samples import APPLIANCE_DIRECTORIES
from redoxfs.dataset.splits import glued_among, names_split, parts_named
from redoxfs.dataset.tree import Tree
from redoxfs.linux.descriptors import opened

NAMES_MAX = 100_000
SPLITS_MAX = 32

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Names:
    """The names in one directory, without hidden ones, as `os.fsdecode` returns them."""

    directories: list[str] = field(default_factory=list)  # and symlinks to directories
    files: list[str] = field(default_factory=list)  # and anything else that is not a directory


@dataclass(frozen=True, slots=True)
class Beside:
    """The names beside SOURCE, and the names in each directory there that is named for a split (None: not read)."""

    names: Names = field(default_factory=Names)
    splits: dict[str, Names | None] = field(default_factory=dict)


def own_name(tree: Tree) -> bytes:
    """The name of SOURCE; b"" if its paths end in different names, or are not known."""
    names = {root.rpartition(b"/")[2] for root in tree.roots}
    return names.pop() if len(names) == 1 else b""


def look_beside(root_fd: int, given: str | None = None) -> Beside:
    """The names beside the directory that `root_fd` is open on, and beside the path by which it was ``given``, if that
    is a symlink. Raises nothing for unreadable directories."""
    try:
        own = os.path.basename(os.readlink(f"/proc/self/fd/{root_fd}"))
        found = _look_around(os.open("..", _OPEN_DIRECTORY, dir_fd=root_fd), own, root_fd)
    except OSError:
        found = Beside()
    if given is None or not os.path.islink(given := os.path.abspath(given)):
        return found
    try:
        above = os.open(os.path.dirname(given), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return found
    more = _look_around(above, os.path.basename(given), root_fd)
    names = Names(
        sorted({*found.names.directories, *more.names.directories}), sorted({*found.names.files, *more.names.files})
    )
    # A symlink is not looked into.
    return Beside(names, {**more.splits, **found.splits})


def _look_around(above: int, own: str, root_fd: int) -> Beside:
    """What is in the directory ``above``, which is closed, without ``own``."""
    try:
        if os.path.samestat(os.fstat(above), os.fstat(root_fd)):
            return Beside()
        names = _names_in(above)
        if names is None:
            return Beside()
        others = Names(_without(names.directories, own), _without(names.files, own))
        glued = glued_among(map(os.fsencode, names.directories))
        splits = [name for name in others.directories if _is_of_split(os.fsencode(name), glued)]
        # Of further ones nobody knows what is in them.
        looked_at = splits[:SPLITS_MAX]
        return Beside(others, {name: _look_into(above, name) if name in looked_at else None for name in splits})
    finally:
        os.close(above)


def _is_of_split(name: bytes, glued: Mapping[bytes, bytes]) -> bool:
    return names_split(name) or bool(parts_named(name)) or name in glued


def _look_into(above: int, name: str) -> Names | None:
    try:
        fd = os.open(name, _OPEN_DIRECTORY, dir_fd=above)
    except OSError:
        return None
    with opened(fd):
        return _names_in(fd)


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
                (found.directories if _leads_to_directory(child) else found.files).append(child.name)
    except OSError:
        return None
    found.directories.sort()
    found.files.sort()
    return found


def _leads_to_directory(child: os.DirEntry[str]) -> bool:
    try:
        return child.is_dir()
    except OSError:
        # A symlink into storage that fails may lead to one.
        return child.is_symlink()


def _without(names: Iterable[str], own: str) -> list[str]:
    return [name for name in names if name != own]
