"""The tree that `tar x` makes of the members of archives, and the place of each file's bytes.

Of a path that comes twice, the last member counts. A hard link is the file that had its target's path when the link
came. A directory replaces a file, and a file an empty directory. What tar could not extract is left out and counted.
Owner and mode are those of the archive, since whoever can read the archive can read all of it; times are the members'.
"""

from __future__ import annotations

import stat
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redoxfs.arrays import offsets_of
from redoxfs.dataset.errors import show
from redoxfs.dataset.new_tree import extensions_of
from redoxfs.dataset.scan import LEVELS_MAX
from redoxfs.dataset.tree import CONTROL_NAME, Tree

FILE, DIRECTORY, SYMLINK, HARD_LINK = range(4)

MEMBER = np.dtype(
    [
        *((name, np.int64) for name in ("size", "data_at", "mtime_ns")),
        *((name, np.uint32) for name in ("kind", "path_bytes", "target_bytes", "unused")),
    ]
)
"""A member, as C writes it (redox_member)."""

DIRECTORIES_BASE, DIRECTORIES_PER_MEMBER = 1 << 20, 4
"""The most directories. A path of four kilobytes makes two thousand, so a small archive could make billions."""


class TooManyDirectoriesError(Exception):
    """The paths of the members make more directories than any dataset has."""


class RepeatedError(Exception):
    """Two archives have a path, or the key of a sample, in one directory. The text is that path."""


@dataclass(frozen=True, slots=True, eq=False)
class Volume:
    """The members of one archive, or of an archive in an archive.

    ``archive``  the number of the file that holds it
    ``inner``    its path in that file, without its suffix; b"" for the file itself
    ``left_out`` sparse files, special files, and names that Linux does not allow
    ``fault``    what is wrong with it, in words, behind the last of these members
    """

    archive: int
    inner: bytes
    members: NDArray[np.void]  # of MEMBER
    texts: bytes
    left_out: tuple[int, int, int] = (0, 0, 0)
    has_end_mark: bool = True
    has_rest: bool = False
    fault: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Owned:
    """What files have of their archive: int arrays by its number. Times in nanoseconds."""

    mode: NDArray[np.int64]
    uid: NDArray[np.int64]
    gid: NDArray[np.int64]
    mtime_ns: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Grown:
    """A tree, and where its files lie. ``member``: int64[N], of all members one after the other; -1: a directory."""

    tree: Tree
    shard: NDArray[np.int32]  # [N]
    data_at: NDArray[np.int64]  # [N]
    member: NDArray[np.int64]
    blocked: int  # members below a file or a link, or in the place of a directory
    lost: int  # hard links without a target


class _Directory:
    __slots__ = ("archive", "children", "keys", "mtime_ns")

    def __init__(self, archive: int, mtime_ns: int) -> None:
        self.archive, self.mtime_ns = archive, mtime_ns
        self.children: dict[bytes, Any] = {}  # a _Directory, or the number of a member
        self.keys: dict[bytes, int] = {}


class _Growing:
    def __init__(self, owned: Owned, most_directories: int) -> None:
        self.times: list[int] = owned.mtime_ns.tolist()
        self.root = _Directory(0, self.times[0])
        self.left = most_directories
        self.blocked = self.lost = self.control = 0

    def directory(self, top: _Directory, path: bytes, archive: int) -> _Directory | None:
        """The directory at a path below `top`, which is made; None if something else is there, or it is too deep."""
        at = top
        if not path:
            return at
        parts = path.split(b"/")
        if len(parts) > LEVELS_MAX:
            return None
        for part in parts:
            child = at.children.get(part)
            if child is None:
                self.left -= 1
                if self.left < 0:
                    raise TooManyDirectoriesError
                child = at.children[part] = _Directory(archive, self.times[archive])
            elif type(child) is not _Directory:
                return None
            at = child
        return at

    def add(self, volume: Volume, place: bytes, first: int, *, apart: bool) -> None:
        """Add the members of a volume. Raises RepeatedError if `apart`, and another archive has one of them."""
        archive, texts, at = volume.archive, volume.texts, 0
        top = self.directory(self.root, place, archive)
        if top is None:
            self.blocked += len(volume.members)
            return
        above, here = None, top
        member = first - 1
        columns = (volume.members[name].tolist() for name in ("kind", "path_bytes", "target_bytes", "mtime_ns"))
        for kind, length, target_length, mtime_ns in zip(*columns, strict=True):
            member += 1
            path = texts[at : at + length]
            target = texts[at + length : at + length + target_length]
            at += length + target_length
            if not path:
                top.mtime_ns = mtime_ns
                continue
            before, _, name = path.rpartition(b"/")
            if before != above:
                found = self.directory(top, before, archive)
                if found is None:
                    self.blocked += 1
                    continue
                above, here = before, found
            child = here.children.get(name)
            if kind == DIRECTORY:
                if type(child) is not _Directory:
                    here.children.pop(name, None)
                    child = self.directory(here, name, archive)
                    assert child is not None
                child.mtime_ns = mtime_ns
                continue
            if type(child) is _Directory:
                if child.children:
                    self.blocked += 1
                    continue
                above = None
            if kind == HARD_LINK:
                linked = self._target(top, target)
                if linked < 0:
                    self.lost += 1
                    continue
                here.children[name] = linked
            else:
                here.children[name] = member
            if apart:
                dot = name.find(b".", 1)
                key = name if dot < 0 else name[:dot]
                if here.keys.setdefault(key, archive) != archive:
                    raise RepeatedError(show(path))

    def _target(self, top: _Directory, path: bytes) -> int:
        at: Any = top
        for part in path.split(b"/"):
            at = at.children.get(part) if type(at) is _Directory else None
        return -1 if at is None or type(at) is _Directory else int(at)

    def leave_out_control(self) -> None:
        self.control = int(self.root.children.pop(CONTROL_NAME, None) is not None)


def grow(volumes: Sequence[Volume], places: Sequence[str], owned: Owned, *, apart: bool) -> Grown:
    """The tree of all volumes, one after the other, each in its directory of ``places``.

    ``apart``: raise RepeatedError if two archives share a directory and a path, or the key of a sample, in it.

    Raises:
        TooManyDirectoriesError
    """
    count = sum(len(volume.members) for volume in volumes)
    growing = _Growing(owned, DIRECTORIES_BASE + DIRECTORIES_PER_MEMBER * count)
    first = 0
    for volume, place in zip(volumes, places, strict=True):
        path = b"/".join(filter(None, (place.encode("utf-8", "surrogateescape"), volume.inner)))
        growing.add(volume, path, first, apart=apart)
        first += len(volume.members)
    growing.leave_out_control()
    return _flattened(growing, volumes, owned)


def _flattened(growing: _Growing, volumes: Sequence[Volume], owned: Owned) -> Grown:
    directories, entries = [growing.root], [0]
    names: list[bytes] = [b""]
    parent, member = array("i", [0]), array("q", [-1])
    for number, directory in enumerate(directories):
        own = entries[number]
        for name, child in sorted(directory.children.items()):
            if type(child) is _Directory:
                entries.append(len(names))
                directories.append(child)
                member.append(-1)
            else:
                member.append(child)
            names.append(name)
            parent.append(own)
        directory.children = {}
    members = np.concatenate([volume.members for volume in volumes]) if volumes else np.empty(0, MEMBER)
    archive_of = np.repeat([v.archive for v in volumes], [len(v.members) for v in volumes]).astype(np.int32)
    of = np.frombuffer(member, np.int64)
    is_dir = of < 0
    shard = np.zeros(len(of), np.int32)
    shard[~is_dir] = archive_of[of[~is_dir]]
    shard[entries] = [directory.archive for directory in directories]
    column = {name: np.zeros(len(of), np.int64) for name in ("size", "data_at", "mtime_ns", "kind")}
    for field, values in column.items():
        values[~is_dir] = members[field][of[~is_dir]]
    column["mtime_ns"][entries] = [directory.mtime_ns for directory in directories]
    is_link = ~is_dir & (column["kind"] == SYMLINK)
    mode = owned.mode[shard] & 0o444
    # A directory may hold files of several archives.
    every = int(np.bitwise_or.reduce(owned.mode & 0o444)) if len(owned.mode) else 0
    mode = np.where(
        is_dir, stat.S_IFDIR | every | every >> 2, np.where(is_link, stat.S_IFLNK | 0o777, mode | stat.S_IFREG)
    )
    lengths = np.fromiter(map(len, names), np.int64, len(names))
    parents = np.frombuffer(parent, np.int32)
    children = np.bincount(parents[1:], minlength=len(parents)).astype(np.int32)
    first_child = np.where(children > 0, 1 + np.cumsum(children, dtype=np.int64) - children, 0).astype(np.int32)
    nlink = np.full(len(of), 2, np.int64)
    nlink[~is_dir] = np.bincount(of[~is_dir], minlength=len(members))[of[~is_dir]]
    inode = np.where(is_dir, 1 + len(members) + np.arange(len(of)), 1 + of).astype(np.uint64)
    name_at = offsets_of(lengths)
    blob: NDArray[np.uint8] = np.frombuffer(b"".join(names), np.uint8)
    extension, extensions = extensions_of(blob, name_at)
    links = np.flatnonzero(is_link).astype(np.int32)
    targets = _targets(volumes, of[links])
    for values in column.values():
        values.flags.writeable = False
    tree = Tree(
        names=blob,
        name_at=name_at,
        parent=parents,
        first_child=first_child,
        children=children,
        mode=mode.astype(np.uint32),
        uid=owned.uid[shard].astype(np.uint32),
        gid=owned.gid[shard].astype(np.uint32),
        nlink=nlink.astype(np.uint32),
        size=np.where(is_link, 0, column["size"]),
        mtime_ns=column["mtime_ns"],
        ctime_ns=column["mtime_ns"],
        inode=inode,
        device=np.ones(len(of), np.uint64),
        extension=extension,
        link_entry=links,
        link_names=np.frombuffer(b"".join(targets), np.uint8),
        link_at=offsets_of(np.fromiter(map(len, targets), np.int64, len(targets))),
        link_device=np.zeros(len(links), np.uint64),
        link_inode=np.zeros(len(links), np.uint64),
        extensions=extensions,
        roots=(),
        skipped=sum(volume.left_out[1] for volume in volumes),
        control_left_out=growing.control,
    )
    for at, entry in enumerate(links.tolist()):
        end = tree.resolve(entry)
        if end >= 0:
            tree.link_device[at], tree.link_inode[at] = 1, inode[end]
    tree.size[links] = np.diff(tree.link_at)
    return Grown(tree, shard, column["data_at"], of, growing.blocked, growing.lost)


def _targets(volumes: Sequence[Volume], members: NDArray[np.int64]) -> list[bytes]:
    """The targets of symlinks, by the numbers of their members."""
    first = 0
    wanted = set(members.tolist())
    found: dict[int, bytes] = {}
    for volume in volumes:
        ends = np.cumsum(volume.members["path_bytes"].astype(np.int64) + volume.members["target_bytes"])
        for at in np.flatnonzero(volume.members["kind"] == SYMLINK).tolist():
            if first + at in wanted:
                end = int(ends[at])
                found[first + at] = volume.texts[end - int(volume.members["target_bytes"][at]) : end]
        first += len(volume.members)
    return [found[member] for member in members.tolist()]
