"""The scan cache: the tree of a source, kept between mounts.

A cached tree is used only if every directory of the source still has the inode, mtime and ctime that the scan saw
before it listed that directory. Adding, removing or renaming a file changes its directory's times. Rewriting a file in
place does not; the file's size and time are checked when it is loaded. A directory whose times are less than 2 s older
than the scan proves nothing, because a second change in the same clock tick would not change them (git's "racily
clean" index entries), so such a cache is not used.

The cache never fails a mount. If it is unusable for any reason (truncated, corrupt, another user's, another
version's), redoxfs scans. If the cache cannot be written, redoxfs logs one warning, and the next mount scans again.

Invariant: a folder with a cache's name is complete. It is written under another name, synced, and renamed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path

import numpy as np
import platformdirs
from numpy.typing import NDArray

from redoxfs.dataset import array_files
from redoxfs.dataset.errors import show
from redoxfs.dataset.scan import open_below, read_tree
from redoxfs.dataset.tree import Tree
from redoxfs.linux import durable

FORMAT_VERSION = 3
MANIFEST = "manifest.json"
# The coarsest timestamps in use: FAT keeps times to 2 s. A directory must be unchanged for longer than that.
RACY_NS = 2_000_000_000
# Directories checked at once. On network storage each check takes a round trip.
CHECK_WORKERS = 16

_PLAIN_FIELDS = ("extensions", "roots", "skipped", "control_left_out")
_ARRAYS = tuple(field.name for field in fields(Tree) if field.name not in _PLAIN_FIELDS)

log = logging.getLogger(__name__)


class _UnusableError(Exception):
    """The reason that a cache is not used, for the log."""


class ChangedError(Exception):
    """A directory has changed since the scan. The text names it."""


def default_cache_dir() -> Path:
    """$XDG_CACHE_HOME/redoxfs, or ~/.cache/redoxfs."""
    return platformdirs.user_cache_path("redoxfs")


def load_or_scan(
    source: Path,
    root_fd: int,
    cache_dir: Path,
    *,
    progress: Callable[[int], None] | None = None,
    rescan: bool = False,
    clock_ns: Callable[[], int] = time.time_ns,
) -> tuple[Tree, bool]:
    """The tree of the directory that `root_fd` is open on, and whether it came from the cache.

    `source` is the path that the user gave, and the key of the cache. `rescan` ignores the cache and reads the source.
    The arrays of a reused tree are read-only. Raises SourceError, as read_tree does, and nothing else.
    """
    given = os.path.abspath(source)
    place = cache_dir / hashlib.sha256(os.fsencode(given)).hexdigest()[:32]
    if not rescan:
        try:
            tree = _load(place, given, root_fd)
            check_unchanged(tree, root_fd)
        except _UnusableError as why:
            log.debug("not reusing %s: %s", place, why)
        except Exception as error:  # a damaged manifest can raise anything, and must not fail the mount
            log.debug("not reusing %s: %r", place, error)
        else:
            if progress is not None:
                progress(len(tree))
            return tree, True
    scanned_at_ns = clock_ns()
    tree = read_tree(root_fd, progress=progress, roots=(os.fsencode(given),))
    try:
        _save(tree, place, given, root_fd, scanned_at_ns)
    except OSError as error:
        log.warning("cannot cache the scan of %s in %s (%s); the next mount will scan again", given, cache_dir, error)
    return tree, False


def _load(place: Path, given: str, root_fd: int) -> Tree:
    own = os.lstat(place)
    if not stat.S_ISDIR(own.st_mode) or own.st_uid != os.geteuid() or own.st_mode & 0o022:
        raise _UnusableError("not a directory that only this user can write")
    manifest = json.loads((place / MANIFEST).read_bytes())
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT_VERSION:
        raise _UnusableError("of another format version")
    if manifest["source"] != os.fsencode(given).hex():
        raise _UnusableError("of another source")
    root = os.fstat(root_fd)
    if manifest["inode"] != root.st_ino:
        raise _UnusableError("the source is another directory now")
    # Not mapped, so that a mount survives a failure of the cache's disk.
    arrays = {name: array_files.load(place, name, manifest["arrays"][name], in_memory=True) for name in _ARRAYS}
    if manifest["device"] != root.st_dev:
        # Network filesystems get a new device number at each mount. With one device in the tree, that is the reason.
        if (arrays["device"] != np.uint64(manifest["device"])).any():
            raise _UnusableError("on other devices")
        arrays["device"] = np.full(len(arrays["device"]), root.st_dev, np.uint64)
    tree = Tree(
        **arrays,
        extensions=tuple(bytes.fromhex(text) for text in manifest["extensions"]),
        roots=tuple(bytes.fromhex(text) for text in manifest["roots"]),
        skipped=int(manifest["skipped"]),
        control_left_out=int(manifest["control_left_out"]),
    )
    directories = np.flatnonzero(tree.kind_mask(stat.S_IFDIR))
    youngest_ns = max(int(tree.mtime_ns[directories].max()), int(tree.ctime_ns[directories].max()))
    if youngest_ns > manifest["scanned_at_ns"] - RACY_NS:
        raise _UnusableError("a directory was changed within 2 s of the scan")
    return tree


def check_unchanged(tree: Tree, root_fd: int) -> None:
    """Raise ChangedError unless every directory of `tree` has the inode and times that the scan saw."""
    directories = np.flatnonzero(tree.kind_mask(stat.S_IFDIR))

    def check(part: NDArray[np.int64]) -> None:
        for entry in part.tolist():
            # Opened rather than looked up by name: on NFS an open asks the server, while a stat may use a cache.
            fd = open_below(root_fd, tree.path(entry))
            try:
                found = os.fstat(fd)
            finally:
                os.close(fd)
            known = (int(tree.inode[entry]), int(tree.mtime_ns[entry]), int(tree.ctime_ns[entry]))
            if (found.st_ino, found.st_mtime_ns, found.st_ctime_ns) != known:
                raise ChangedError(f"{show(tree.path(entry))} has changed")

    with ThreadPoolExecutor(CHECK_WORKERS, thread_name_prefix="redoxfs-check") as pool:
        parts = np.array_split(directories, min(len(directories), CHECK_WORKERS * 8))
        futures = [pool.submit(check, part) for part in parts]
        try:
            for future in futures:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _save(tree: Tree, place: Path, given: str, root_fd: int, scanned_at_ns: int) -> None:
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))  # 0700
    try:
        known = {name: array_files.save(making, name, getattr(tree, name)) for name in _ARRAYS}
        root = os.fstat(root_fd)
        manifest = {
            "format": FORMAT_VERSION,
            "source": os.fsencode(given).hex(),
            "source_text": given.encode("utf-8", "backslashreplace").decode(),
            "device": root.st_dev,
            "inode": root.st_ino,
            "scanned_at_ns": scanned_at_ns,
            "entries": len(tree),
            "directories": int(np.count_nonzero(tree.kind_mask(stat.S_IFDIR))),
            "symlinks": len(tree.link_entry),
            "skipped": tree.skipped,
            "control_left_out": tree.control_left_out,
            "extensions": [extension.hex() for extension in tree.extensions],
            "roots": [path.hex() for path in tree.roots],
            "arrays": known,
        }
        durable.write_file(making / MANIFEST, json.dumps(manifest, indent=1).encode())
        durable.sync_directory(making)
        _replace(making, place)
        durable.sync_directory(place.parent)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise


def _replace(making: Path, place: Path) -> None:
    """Put a finished folder in place. Readers have read the old one into memory, so it can be removed."""
    old = making.with_name(making.name + ".old")
    with contextlib.suppress(FileNotFoundError):
        os.rename(place, old)
    try:
        os.rename(making, place)
    finally:
        if os.path.lexists(old):
            if old.is_dir() and not old.is_symlink():
                shutil.rmtree(old, ignore_errors=True)
            else:
                old.unlink()
