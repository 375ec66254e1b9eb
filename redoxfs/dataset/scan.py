"""Read a source directory into a Tree.

Everything is opened relative to a descriptor of the root, without following symlinks. The mount may lie over the
source's own path, and a scan that left the source would serve files from outside it.

Several directories of one level are read at once, because on network storage each call waits for a round trip. They
are appended in order, so the result is breadth-first without sorting. (`os.walk` is depth-first, follows paths, and
keeps a list of strings per directory; asyncio has no directory calls.) A worker returns one directory as columns, so
only the names of directories under way exist as Python objects.

An entry that vanishes during the scan is left out. An entry that exists and cannot be read is a SourceError.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from redoxfs.dataset.errors import SourceError, show
from redoxfs.dataset.tree import CONTROL_NAME, Tree

# The most directories in the pool for each worker: enough that no worker idles while results are appended in order,
# few enough that finished ones do not pile up.
AHEAD_PER_WORKER = 4
# How often the number of directories read at once changes, and the share of one core above which it is halved. On
# storage that answers at once, threads only compete for the interpreter: 16 were 3 times slower than one.
RECONSIDER_S = 0.1
BUSY_SHARE = 0.7
# Longer suffixes are part of a name rather than a format ("v1.0 of the third attempt"). No decoder is chosen by them.
EXTENSION_MAX_BYTES = 16
# One openat takes less than PATH_MAX (4096) bytes; deeper directories are reached in steps.
PATH_STEP_MAX_BYTES = 4000
# `progress` is called once per this many entries.
PROGRESS_EVERY_ENTRIES = 10_000

_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ELOOP)
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# The columns of Tree that stat fills, and the array type of each. A C int is 32 bits on every supported machine.
_STAT_COLUMNS = {
    "mode": "I",
    "uid": "I",
    "gid": "I",
    "nlink": "I",
    "size": "q",
    "mtime_ns": "q",
    "ctime_ns": "q",
    "inode": "Q",
    "device": "Q",
}
_DTYPES = {"I": np.uint32, "q": np.int64, "Q": np.uint64}
_NLINK_MAX = 2**32 - 1


@dataclass(slots=True)
class _Listing:
    """One directory: its children in name order, in columns. `at` indexes the children."""

    entry: int
    path: bytes
    own: os.stat_result | None = None  # None: it vanished
    names: list[bytes] = field(default_factory=list)
    columns: dict[str, NDArray[np.generic]] = field(default_factory=dict)
    directories: list[int] = field(default_factory=list)
    links: list[tuple[int, bytes, int, int]] = field(default_factory=list)  # at, target, device, inode
    skipped: int = 0
    control_left_out: int = 0


def open_below(root_fd: int, path: bytes) -> int:
    """Open the directory at `path` under `root_fd`. Does not follow a symlink as the last component.

    The caller closes the descriptor. OSError as from open(2).
    """
    if not path:
        return os.open(b".", _OPEN_DIRECTORY, dir_fd=root_fd)
    at, held = root_fd, -1
    try:
        while len(path) > PATH_STEP_MAX_BYTES:
            cut = path.rfind(b"/", 0, PATH_STEP_MAX_BYTES)
            step = os.open(path[:cut], _OPEN_DIRECTORY, dir_fd=at)
            if held >= 0:
                os.close(held)
            at = held = step
            path = path[cut + 1 :]
        return os.open(path, _OPEN_DIRECTORY, dir_fd=at)
    finally:
        if held >= 0:
            os.close(held)


def read_small(root_fd: int, path: bytes, most_bytes: int) -> bytes:
    """Read the regular file at `path` under `root_fd`, following no symlink; b"" if it is longer or unreadable."""
    above, _, name = path.rpartition(b"/")
    try:
        directory = _open_by_component(root_fd, above)
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        finally:
            os.close(directory)
    except OSError:
        return b""
    with open(fd, "rb") as file:
        try:
            text = file.read(most_bytes + 1) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
        except OSError:
            return b""
    return text if len(text) <= most_bytes else b""


def _open_by_component(root_fd: int, path: bytes) -> int:
    """As open_below, but follows no component: slower, and safe if a directory was replaced by a symlink meanwhile."""
    at = os.open(b".", _OPEN_DIRECTORY, dir_fd=root_fd)
    for part in filter(None, path.split(b"/")):
        try:
            step = os.open(part, _OPEN_DIRECTORY, dir_fd=at)
        finally:
            os.close(at)
        at = step
    return at


def _open_listed(root_fd: int, path: bytes, identity: tuple[int, int]) -> int:
    fd = open_below(root_fd, path)
    own = os.fstat(fd)
    if path and (own.st_dev, own.st_ino) != identity:
        # Something else is there: a mount that this open triggered, or a parent that has become a symlink.
        os.close(fd)
        fd = _open_by_component(root_fd, path)
    return fd


def _say(path: bytes, error: OSError) -> SourceError:
    shown = show(path) if path else "the source directory"
    return SourceError(
        f"cannot read {shown}: {error.strerror}; make it readable for this user, or move it out of the source"
    )


def _list(root_fd: int, entry: int, path: bytes, identity: tuple[int, int]) -> _Listing:
    listing = _Listing(entry, path)
    try:
        fd = _open_listed(root_fd, path, identity)
    except OSError as error:
        if path and error.errno in _GONE:
            return listing
        raise _say(path, error) from None
    try:
        # Before the listing: a change during the listing gives the directory a later mtime, which the cache notices.
        listing.own = os.fstat(fd)
        _fill(listing, fd)
    except OSError as error:
        if path and error.errno in _GONE:
            return _Listing(entry, path)
        raise _say(path, error) from None
    finally:
        os.close(fd)
    return listing


def _fill(listing: _Listing, fd: int) -> None:
    names: list[bytes] = []
    columns = {name: array(code) for name, code in _STAT_COLUMNS.items()}
    append = {name: column.append for name, column in columns.items()}
    mode, uid, gid, nlink = append["mode"], append["uid"], append["gid"], append["nlink"]
    size, mtime_ns, ctime_ns = append["size"], append["mtime_ns"], append["ctime_ns"]
    inode, device = append["inode"], append["device"]
    special: list[int] = []  # directories and symlinks, by order of arrival
    with os.scandir(fd) as children:
        for child in children:
            try:
                found = child.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise _say(os.path.join(listing.path, os.fsencode(child.name)), error) from None
            if not listing.path and os.fsencode(child.name) == CONTROL_NAME:
                listing.control_left_out = 1
                continue
            kind = stat.S_IFMT(found.st_mode)
            if kind != stat.S_IFREG:
                if kind not in (stat.S_IFDIR, stat.S_IFLNK):
                    listing.skipped += 1
                    continue
                special.append(len(names))
            names.append(os.fsencode(child.name))
            mode(found.st_mode)
            uid(found.st_uid)
            gid(found.st_gid)
            nlink(min(found.st_nlink, _NLINK_MAX))
            size(found.st_size)
            mtime_ns(found.st_mtime_ns)
            ctime_ns(found.st_ctime_ns)
            inode(found.st_ino)
            device(found.st_dev)
    order = sorted(range(len(names)), key=names.__getitem__)
    taken = np.array(order, np.intp)
    for name, code in _STAT_COLUMNS.items():
        listing.columns[name] = np.frombuffer(columns[name], _DTYPES[code])[taken]
    listing.names = [names[at] for at in order]
    place = np.empty_like(taken)
    place[taken] = np.arange(len(taken))
    for at in sorted(place[special].tolist()):
        if stat.S_ISDIR(int(listing.columns["mode"][at])):
            listing.directories.append(at)
        else:
            listing.links.append((at, *_read_link(fd, listing.path, listing.names[at])))


def _read_link(fd: int, directory: bytes, name: bytes) -> tuple[bytes, int, int]:
    """A symlink's target, and the device and inode of the file at the end (0, 0: none that can be reached)."""
    try:
        target = os.readlink(name, dir_fd=fd)
    except OSError as error:
        if error.errno in (*_GONE, errno.EINVAL):
            return b"", 0, 0
        raise _say(os.path.join(directory, name), error) from None
    try:
        end = os.stat(name, dir_fd=fd)
    except OSError:
        return target, 0, 0
    return target, end.st_dev, end.st_ino


def _stat_row(found: os.stat_result) -> dict[str, int]:
    return {
        "mode": found.st_mode,
        "uid": found.st_uid,
        "gid": found.st_gid,
        "nlink": min(found.st_nlink, _NLINK_MAX),
        "size": found.st_size,
        "mtime_ns": found.st_mtime_ns,
        "ctime_ns": found.st_ctime_ns,
        "inode": found.st_ino,
        "device": found.st_dev,
    }


class _Columns:
    """The tree under construction: grown by one directory at a time, in breadth-first order."""

    def __init__(self, root: os.stat_result) -> None:
        self.names = bytearray()
        self.name_lengths = array("i", [0])
        self.parent = array("i", [0])
        self.stats = {name: array(code) for name, code in _STAT_COLUMNS.items()}
        self.extension = array("i", [0])
        self.extensions: dict[bytes, int] = {b"": 0}
        self.links = array("i")
        self.link_names = bytearray()
        self.link_lengths = array("i")
        self.link_device = array("Q")
        self.link_inode = array("Q")
        self.gone: list[int] = []
        self.skipped = self.control_left_out = 0
        for name, value in _stat_row(root).items():
            self.stats[name].append(value)

    def __len__(self) -> int:
        return len(self.parent)

    def add(self, listing: _Listing) -> list[tuple[int, bytes, tuple[int, int]]]:
        """Append a directory's children. Return the directories among them, for `_list`."""
        if listing.own is None:
            self.gone.append(listing.entry)
            return []
        self._set_stat(listing.entry, listing.own)
        first, names = len(self), listing.names
        self.names += b"".join(names)
        self.name_lengths.extend(map(len, names))
        self.parent.extend([listing.entry] * len(names))
        for name, column in self.stats.items():
            column.frombytes(listing.columns[name].tobytes())
        ids = self.extensions
        for child in names:
            dot = child.rfind(b".")
            suffix = child[dot:].lower() if dot > 0 and len(child) - dot <= EXTENSION_MAX_BYTES else b""
            self.extension.append(ids.setdefault(suffix, len(ids)))
        for at, target, device, inode in listing.links:
            self.links.append(first + at)
            self.link_names += target
            self.link_lengths.append(len(target))
            self.link_device.append(device)
            self.link_inode.append(inode)
        self.skipped += listing.skipped
        self.control_left_out += listing.control_left_out
        below = []
        for at in listing.directories:
            path = listing.path + b"/" + names[at] if listing.path else names[at]
            identity = (int(self.stats["device"][first + at]), int(self.stats["inode"][first + at]))
            below.append((first + at, path, identity))
        return below

    def _set_stat(self, entry: int, found: os.stat_result) -> None:
        for name, value in _stat_row(found).items():
            self.stats[name][entry] = value

    def finish(self, roots: tuple[bytes, ...]) -> Tree:
        parent = np.frombuffer(self.parent, np.int32)
        lengths = np.frombuffer(self.name_lengths, np.int32)
        names: NDArray[np.uint8] = np.frombuffer(self.names, np.uint8)
        columns = {name: np.frombuffer(self.stats[name], _DTYPES[code]) for name, code in _STAT_COLUMNS.items()}
        columns["extension"] = np.frombuffer(self.extension, np.int32)
        links = np.frombuffer(self.links, np.int32)
        if self.gone:
            keep = np.ones(len(parent), bool)
            keep[self.gone] = False
            renumbered = (np.cumsum(keep) - 1).astype(np.int32)
            names = names[np.repeat(keep, lengths)]
            parent, lengths = renumbered[parent[keep]], lengths[keep]
            columns = {name: column[keep] for name, column in columns.items()}
            links = renumbered[links]
        children = np.bincount(parent[1:], minlength=len(parent)).astype(np.int32)
        first_child = (1 + np.cumsum(children, dtype=np.int64) - children).astype(np.int32)
        first_child[children == 0] = 0
        return Tree(
            names=names,
            name_at=_offsets(lengths),
            parent=parent,
            first_child=first_child,
            children=children,
            link_entry=links,
            link_names=np.frombuffer(self.link_names, np.uint8),
            link_at=_offsets(np.frombuffer(self.link_lengths, np.int32)),
            link_device=np.frombuffer(self.link_device, np.uint64),
            link_inode=np.frombuffer(self.link_inode, np.uint64),
            extensions=tuple(self.extensions),
            roots=roots,
            skipped=self.skipped,
            control_left_out=self.control_left_out,
            **columns,
        )


def _offsets(lengths: NDArray[np.int32]) -> NDArray[np.int64]:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def read_tree(
    root_fd: int,
    *,
    progress: Callable[[int], None] | None = None,
    workers: int = 16,
    roots: tuple[bytes, ...] = (),
) -> Tree:
    """Read everything under the directory that `root_fd` is open on.

    `progress` is called in this thread with the number of entries so far, now and then and at the end. `roots` are
    absolute paths of the root, besides the one from the kernel. `workers` threads read directories; they have ended
    when this returns or raises. Raises SourceError if a directory or a file in it cannot be read.
    """
    try:
        own = os.fstat(root_fd)
    except OSError as error:
        raise _say(b"", error) from None
    columns = _Columns(own)
    said = 0
    level: list[tuple[int, bytes, tuple[int, int]]] = [(0, b"", (own.st_dev, own.st_ino))]
    pace = _Pace(workers * AHEAD_PER_WORKER)
    with ThreadPoolExecutor(workers, thread_name_prefix="redoxfs-scan") as pool:
        try:
            while level:
                below: list[tuple[int, bytes, tuple[int, int]]] = []
                for listing in _in_order(pool, root_fd, level, pace):
                    below += columns.add(listing)
                    if progress is not None and len(columns) - said >= PROGRESS_EVERY_ENTRIES:
                        said = len(columns)
                        progress(said)
                level = below
        finally:
            pool.shutdown(cancel_futures=True)
    tree = columns.finish(_known_as(root_fd, roots))
    if progress is not None:
        progress(len(tree))
    return tree


class _Pace:
    """The number of directories in flight: doubled after a time of waiting, halved after a time of computing."""

    def __init__(self, most: int) -> None:
        self.ahead = 1
        self._most = most
        self._wall_s, self._cpu_s = time.monotonic(), time.process_time()

    def reconsider(self) -> None:
        wall_s, cpu_s = time.monotonic(), time.process_time()
        if wall_s - self._wall_s < RECONSIDER_S:
            return
        busy = (cpu_s - self._cpu_s) / (wall_s - self._wall_s) > BUSY_SHARE
        self.ahead = max(1, self.ahead // 2) if busy else min(self._most, self.ahead * 2)
        self._wall_s, self._cpu_s = wall_s, cpu_s


def _in_order(
    pool: ThreadPoolExecutor, root_fd: int, level: list[tuple[int, bytes, tuple[int, int]]], pace: _Pace
) -> Iterator[_Listing]:
    waiting: deque[Future[_Listing]] = deque()
    for entry, path, identity in level:
        waiting.append(pool.submit(_list, root_fd, entry, path, identity))
        while len(waiting) >= pace.ahead:
            yield waiting.popleft().result()
            pace.reconsider()
    while waiting:
        yield waiting.popleft().result()


def _known_as(root_fd: int, roots: tuple[bytes, ...]) -> tuple[bytes, ...]:
    # Without /proc, absolute symlinks are judged by the given roots alone.
    with contextlib.suppress(OSError):
        roots = (os.readlink(b"/proc/self/fd/%d" % root_fd), *roots)
    return tuple(dict.fromkeys(roots))
