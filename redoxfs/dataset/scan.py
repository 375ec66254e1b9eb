"""Read a source directory into a Tree.

Everything is opened beneath a descriptor of the root, through no symlink. The mount may lie over the source's own path,
and a scan that left the source would serve files from outside it.

Threads in C read the directories (native/scan.c), many at once, because on network storage each call waits for a round
trip. They need no interpreter, so on a local disk they do not wait for each other either. Here the directories go out
level by level, some thousands at a time, and their entries are appended in that order: the tree is breadth-first
without sorting, and does not depend on the threads' timing. (`os.walk` is depth-first, follows paths, and makes an
object for each entry; asyncio has no directory calls.) Only the directories of two levels exist as Python objects.

A scan can build on an earlier one. A directory that still has its inode, mtime and ctime is opened and not listed; its
entries are those of the earlier scan. All entries of other directories are read, also those that have the same inode
as before: a file that is removed and written again often gets the same number.

An entry that vanishes during the scan is left out. An entry that exists and cannot be read is a SourceError.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from redoxfs.arrays import is_in
from redoxfs.dataset.errors import SourceError, show
from redoxfs.dataset.new_tree import ROW, UNCHANGED, Found, NewTree
from redoxfs.dataset.tree import Tree
from redoxfs.linux.beneath import open_beneath
from redoxfs.native import scan_directories

# Waiting threads cost little, and network storage answers this many requests at once.
THREADS = 32
# Directories that go out at once: many for each thread, so that few threads wait for the last ones. The other bound is
# the entries, which are in memory twice until they are appended.
DIRECTORIES_AT_ONCE = 4096
ENTRIES_AT_ONCE = 1 << 18
# For the progress display, the log and the like.
DESCRIPTORS_LEFT = 8
# Real datasets are a few levels deep. A source that never ends is a filesystem that contains itself.
LEVELS_MAX = 1000

Progress = Callable[[int, int], object]
"""Called with the entries and the directories so far."""


@dataclass(frozen=True, slots=True, eq=False)
class Earlier:
    """A tree of the same source. `unchanged`: bool[N], the directories that are as they were, by `find_unchanged`."""

    tree: Tree
    unchanged: NDArray[np.bool_]


@dataclass(slots=True)
class _Level:
    """Directories of one depth: their entries in the new tree, their paths, and their entries in the earlier tree."""

    entries: list[int]
    paths: list[bytes]
    earlier: list[int]  # -1: not in it

    def part(self, begin: int, end: int) -> _Level:
        return _Level(self.entries[begin:end], self.paths[begin:end], self.earlier[begin:end])


def read_tree(
    root_fd: int,
    *,
    progress: Progress | None = None,
    workers: int = THREADS,
    roots: tuple[bytes, ...] = (),
    earlier: Earlier | None = None,
    at_once: int = DIRECTORIES_AT_ONCE,
) -> Tree:
    """Read everything under the directory that `root_fd` is open on.

    `progress` is called in this thread, now and then and at the end. `roots` are absolute paths of the root, besides
    the one from the kernel. `workers` threads read directories; they have ended when this returns or raises, except if
    `progress` or a signal raises while storage does not answer. `at_once` directories go out together. Directories that
    `earlier` has as unchanged are not read again. Raises SourceError if a directory or a file in it cannot be read.
    """
    new = NewTree(None if earlier is None else earlier.tree)
    level = _Level([0], [b""], [-1 if earlier is None else 0])
    depth = directories = 0
    while level.entries:
        if depth > LEVELS_MAX:
            raise SourceError(f"the source has more than {LEVELS_MAX:,} levels of directories; does it contain itself?")
        below = _Level([], [], [])
        at = 0
        while at < len(level.entries):
            shown = None if progress is None else _beyond(progress, len(new), directories)
            done = _read(root_fd, new, level.part(at, at + at_once), below, earlier, workers, shown)
            at += done
            directories += done
            if progress is not None:
                progress(len(new), directories)
        level = below
        depth += 1
    tree = new.finish(_known_as(root_fd, roots))
    return tree if earlier is None else _with_new_links(tree)


def _with_new_links(tree: Tree) -> Tree:
    """A tree that is partly from an earlier scan. A file of that part may have another name in a changed directory."""
    regular = tree.kind_mask(stat.S_IFREG)
    many = np.flatnonzero(regular & (tree.nlink > 1))
    one = np.flatnonzero(regular & (tree.nlink <= 1))
    one = one[is_in(tree.inode[one], tree.inode[many])]
    if not len(one):
        return tree
    links = dict(zip(_files(tree, many), tree.nlink[many].tolist(), strict=True))
    nlink = tree.nlink.copy()
    nlink[one] = [links.get(file, before) for file, before in zip(_files(tree, one), nlink[one].tolist(), strict=True)]
    return replace(tree, nlink=nlink)


def _files(tree: Tree, entries: NDArray[np.int64]) -> list[tuple[int, int]]:
    return list(zip(tree.device[entries].tolist(), tree.inode[entries].tolist(), strict=True))


def _threads(workers: int) -> int:
    """No more than there are descriptors for: a thread has a directory open, and may be on its way to a deep one."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:
        used = 16
    return workers if most < 0 else max(1, min(workers, (most - used - DESCRIPTORS_LEFT) // 2))


def _beyond(progress: Progress, entries: int, directories: int) -> Progress:
    return lambda more, read: progress(entries + more, directories + read)


def _read(
    root_fd: int,
    new: NewTree,
    part: _Level,
    below: _Level,
    earlier: Earlier | None,
    workers: int,
    progress: Progress | None,
) -> int:
    """Append what is in some directories to the new tree and to the next level. Return how many it has done."""
    before = np.array(part.earlier, np.int64)
    kept = np.zeros(len(before), bool) if earlier is None else (before >= 0) & earlier.unchanged[before]
    to_read = np.flatnonzero(~kept)
    found = Found.nothing()
    done = len(before)
    if len(to_read):
        paths = [part.paths[at] for at in to_read.tolist()]
        found = _scan(root_fd, paths, workers, progress)
        if len(found.states) < len(to_read):
            done = int(to_read[len(found.states)])
    children = new.add(np.array(part.entries[:done], np.int64), np.where(kept, before, -1)[:done], found)
    for entry, above, name, source in children:
        path = part.paths[above]
        below.entries.append(entry)
        below.paths.append(path + b"/" + name if path else name)
        if earlier is not None and source < 0 <= part.earlier[above]:
            source = earlier.tree.lookup(part.earlier[above], name)
            if source >= 0 and not earlier.tree.is_dir(source):
                source = -1
        below.earlier.append(source)
    return done


def _scan(root_fd: int, paths: list[bytes], workers: int, progress: Progress | None) -> Found:
    arrays, skipped, left_out, failure = scan_directories(
        root_fd,
        paths,
        b"",
        threads=_threads(workers),
        most_entries=ENTRIES_AT_ONCE,
        checks_only=False,
        progress=progress,
    )
    if failure is not None:
        directory, name, number = failure
        if number == errno.ENOMEM:
            raise MemoryError("too little memory for the scan")
        if number in (errno.EMFILE, errno.ENFILE):
            raise SourceError(f"cannot scan: {os.strerror(number)}; raise the limit (ulimit -n)")
        where = paths[directory] if name is None else os.path.join(paths[directory], name)
        shown = show(where) if where else "the source directory"
        raise SourceError(
            f"cannot read {shown}: {os.strerror(number)}; make it readable for this user, or move it out of the source"
        )
    found = Found.of(arrays, skipped, left_out)
    if not len(found.states):
        raise MemoryError("too little memory for the scan")
    return found


def find_unchanged(
    root_fd: int,
    tree: Tree,
    *,
    among: NDArray[np.bool_] | None = None,
    progress: Progress | None = None,
    workers: int = THREADS,
) -> NDArray[np.bool_]:
    """bool[N]: the directories of `tree` that have the device, inode, mtime and ctime that the scan saw.

    Each is opened rather than looked up by name: on NFS an open asks the server, while a stat may use a cache. One that
    cannot be opened is not unchanged, nor is one outside `among` (bool[N]), which is not opened.
    """
    asked = tree.kind_mask(stat.S_IFDIR)
    if among is not None:
        asked &= among
    unchanged = np.zeros(len(tree), bool)
    directories = np.flatnonzero(asked)
    done = 0
    for part in np.split(directories, range(DIRECTORIES_AT_ONCE, len(directories), DIRECTORIES_AT_ONCE)):
        known = np.stack(
            [tree.inode[part].astype(np.uint64).view(np.int64), tree.mtime_ns[part], tree.ctime_ns[part]], axis=1
        )
        shown = None if progress is None else _beyond(progress, 0, done)
        (states, own, *_), *_ = scan_directories(
            root_fd,
            [tree.path(entry) for entry in part.tolist()],
            np.ascontiguousarray(known),
            threads=_threads(workers),
            most_entries=1,
            checks_only=True,
            progress=shown,
        )
        found = np.frombuffer(states, np.int32)
        # Root directories of different filesystems mostly have the same inode number.
        same_device = np.frombuffer(own, ROW)["device"] == tree.device[part[: len(found)]]
        unchanged[part[: len(found)]] = (found == UNCHANGED) & same_device
        done += len(part)
    return unchanged


def read_small(root_fd: int, path: bytes, most_bytes: int) -> bytes:
    """Read the regular file at `path` under `root_fd`, following no symlink; b"" if it is longer or unreadable."""
    text = read_beginning(root_fd, path, most_bytes + 1)
    return text if len(text) <= most_bytes else b""


def read_beginning(root_fd: int, path: bytes, most_bytes: int) -> bytes:
    """As much of the regular file at `path` under `root_fd`, following no symlink; b"" if it is unreadable."""
    try:
        fd = open_beneath(root_fd, path)
    except OSError:
        return b""
    with open(fd, "rb") as file:
        try:
            return file.read(most_bytes) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
        except OSError:
            return b""


def _known_as(root_fd: int, roots: tuple[bytes, ...]) -> tuple[bytes, ...]:
    # Without /proc, absolute symlinks are judged by the given roots alone.
    with contextlib.suppress(OSError):
        roots = (os.readlink(b"/proc/self/fd/%d" % root_fd), *roots)
    return tuple(dict.fromkeys(roots))
