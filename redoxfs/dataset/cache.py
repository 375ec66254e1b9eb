"""The scan cache: the tree of a source, kept between mounts.

The entries of a directory are taken from the cache if it still has the inode, mtime and ctime that the scan saw before
it listed that directory; all others are listed again. Adding, removing or renaming a file changes its directory's
times. Rewriting a file in place does not; the file's size and time are checked when it is loaded. A directory whose
times are less than 2 s older than the scan proves nothing, because a second change in the same clock tick would not
change them (git's "racily clean" index entries), so it is listed again. So is one on a filesystem whose directories may
keep their times.

The cache never fails a mount. If it is unusable for any reason (truncated, corrupt, another user's, another
version's), redoxfs scans. If the cache cannot be written, redoxfs logs one warning, and the next mount scans again.

Invariant: a folder with a cache's name is complete. It is written under another name, synced, and renamed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from numpy.typing import NDArray

from redoxfs.arrays import distinct, is_in
from redoxfs.dataset import array_files
from redoxfs.dataset.errors import show
from redoxfs.dataset.scan import Earlier, Progress, find_unchanged, read_tree
from redoxfs.dataset.tree import Tree
from redoxfs.linux.mount_table import type_of_filesystem, types_by_device
from redoxfs.linux.owned import is_own_folder

FORMAT_VERSION = 3
MANIFEST = "manifest.json"
# The coarsest timestamps in use: FAT keeps times to 2 s. A directory must be unchanged for longer than that.
RACY_NS = 2_000_000_000

_PLAIN_FIELDS = ("extensions", "roots", "skipped", "control_left_out")
TREE_ARRAYS = tuple(field.name for field in fields(Tree) if field.name not in _PLAIN_FIELDS)
"""The columns of a tree that are arrays."""

_KEEPS_TIMES = frozenset({"fuse.ceph-fuse", "fuse.ceph", "fuse.glusterfs", "fuse.juicefs", "fuse.mfs"})
"""Types of filesystems in user space whose directories have times as those of the kernel's."""

_IMAGES = frozenset({"squashfs", "erofs", "iso9660", "cramfs", "romfs"})
"""Types of filesystems that are written once. Their tools may give all directories the same time (SOURCE_DATE_EPOCH).
Then the times are no proof: another image at the same path has them too."""

log = logging.getLogger(__name__)


class _UnusableError(Exception):
    """The reason that a cache is not used, for the log."""


class ChangedError(Exception):
    """A directory has changed since the scan. The text names it."""


def default_cache_dir() -> Path:
    """$XDG_CACHE_HOME/redoxfs, or ~/.cache/redoxfs, where / is the home of a user without one, as in containers."""
    try:
        return platformdirs.user_cache_path("redoxfs")
    except RuntimeError:
        # HOME is not set, and /etc/passwd has no line for the user.
        return Path("/.cache/redoxfs")


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """A tree, how many of its directories were listed for it, and how many are as in the cache."""

    tree: Tree
    listed: int
    kept: int

    @property
    def reused(self) -> bool:
        """Whether all of it is from the cache."""
        return not self.listed


def load_or_scan(
    source: Path,
    root_fd: int,
    cache_dir: Path,
    *,
    progress: Progress | None = None,
    rescan: bool = False,
    clock_ns: Callable[[], int] = time.time_ns,
) -> Scan:
    """The tree of the directory that `root_fd` is open on.

    `source` is the path that the user gave, and the key of the cache. `rescan` ignores the cache and reads the source.
    The arrays of a reused tree are read-only. Raises SourceError, as read_tree does, and nothing else.
    """
    given = os.path.abspath(source)
    place = cache_dir / hashlib.sha256(os.fsencode(given)).hexdigest()[:32]
    scanned_at_ns = clock_ns()
    earlier = None if rescan else _earlier(place, given, root_fd, progress)
    if earlier is not None and not _changed(earlier):
        if progress is not None:
            progress(len(earlier.tree), _directories(earlier.tree))
        return Scan(earlier.tree, 0, _directories(earlier.tree))
    tree = read_tree(root_fd, progress=progress, roots=(os.fsencode(given),), earlier=earlier)
    try:
        _save(tree, place, given, root_fd, scanned_at_ns)
    except OSError as error:
        log.warning("cannot cache the scan of %s in %s (%s); the next mount will scan again", given, cache_dir, error)
    # One that was below a directory which has vanished counts as kept.
    kept = 0 if earlier is None else int(np.count_nonzero(earlier.unchanged))
    return Scan(tree, max(1, _directories(tree) - kept), kept)


def _directories(tree: Tree) -> int:
    return int(np.count_nonzero(tree.kind_mask(stat.S_IFDIR)))


def _changed(earlier: Earlier) -> int:
    """How many directories are not as they were."""
    return _directories(earlier.tree) - int(np.count_nonzero(earlier.unchanged))


def _earlier(place: Path, given: str, root_fd: int, progress: Progress | None) -> Earlier | None:
    """The cached tree, compared with the source; None if there is none that can be used."""
    kind = type_of_filesystem(root_fd)
    if not keeps_times(kind):
        log.info("scanning %s as a whole: on %s, a directory may keep its times although its files change", given, kind)
        return None
    try:
        tree, scanned_at_ns = _load(place, given, root_fd)
        among = tell_changes(tree, scanned_at_ns, types_by_device())
        earlier = Earlier(tree, find_unchanged(root_fd, tree, among=among, progress=progress))
    except _UnusableError as why:
        log.debug("not reusing %s: %s", place, why)
        return None
    except Exception as error:  # a damaged manifest can raise anything, and must not fail the mount
        log.debug("not reusing %s: %r", place, error)
        return None
    if tree.skipped and _changed(earlier):
        # The number of sockets and the like is known of the whole tree only.
        log.debug("not reusing %s: it has sockets or the like, and something has changed", place)
        return None
    if _changed(earlier):
        # Where a symlink leads may have changed with other directories than its own.
        earlier.unchanged[tree.parent[tree.link_entry]] = False
    return earlier


def keeps_times(kind: str) -> bool:
    """Whether directories of a filesystem of this type have another time after each change of their names.

    Those of many filesystems in user space have the time of the mount, or none: rclone, s3fs, goofys, mergerfs.
    """
    return kind.partition(".")[0] != "fuse" or kind in _KEEPS_TIMES


def tell_changes(tree: Tree, scanned_at_ns: int, types: Mapping[int, str]) -> NDArray[np.bool_]:
    """bool[N]: the entries of a tree that would have other times now if they had changed after the scan.

    ``types`` are those of the filesystems by device: others than that of the root may be mounted below it.
    """
    latest = np.maximum(tree.mtime_ns, tree.ctime_ns)
    tells = latest <= scanned_at_ns - RACY_NS
    # The root of FAT has no times on its disk.
    tells &= (tree.mtime_ns != 0) | (tree.ctime_ns != 0)
    return tells & ~_is_silent(tree, types)


def _is_silent(tree: Tree, types: Mapping[int, str]) -> NDArray[np.bool_]:
    """bool[N]: the entries on filesystems whose directories may keep their times, or all have one time (images)."""
    silent = [device for device, kind in types.items() if not keeps_times(kind)]
    images = [device for device, kind in types.items() if kind in _IMAGES]
    of_images = is_in(tree.device, np.array(images, np.uint64))
    times_ns = tree.mtime_ns[of_images & tree.kind_mask(stat.S_IFDIR)]
    are_same = len(distinct(times_ns)) < 2
    return is_in(tree.device, np.array(silent, np.uint64)) | (of_images & are_same)


def _load(place: Path, given: str, root_fd: int) -> tuple[Tree, int]:
    """The cached tree, and the time of its scan."""
    try:
        return _load_once(place, given, root_fd)
    except Exception:  # as in _earlier
        # Another command may have replaced it meanwhile, or be about to.
        return _load_once(place, given, root_fd)


def _load_once(place: Path, given: str, root_fd: int) -> tuple[Tree, int]:
    manifest = read_kept(place)
    if manifest.get("format") != FORMAT_VERSION:
        raise _UnusableError("of another format version")
    if manifest["source"] != os.fsencode(given).hex():
        raise _UnusableError("of another source")
    root = os.fstat(root_fd)
    if manifest["inode"] != root.st_ino:
        raise _UnusableError("the source is another directory now")
    arrays = kept_arrays(place, manifest, TREE_ARRAYS)
    if manifest["device"] != root.st_dev:
        # Network filesystems get a new device number at each mount. With one device in the tree, that is the reason.
        if (arrays["device"] != np.uint64(manifest["device"])).any():
            raise _UnusableError("on other devices")
        arrays["device"] = np.full(len(arrays["device"]), root.st_dev, np.uint64)
        ends = arrays["link_device"]
        arrays["link_device"] = np.where(ends == np.uint64(manifest["device"]), np.uint64(root.st_dev), ends)
    tree = Tree(
        **arrays,
        extensions=tuple(bytes.fromhex(text) for text in manifest["extensions"]),
        roots=tuple(bytes.fromhex(text) for text in manifest["roots"]),
        skipped=int(manifest["skipped"]),
        control_left_out=int(manifest["control_left_out"]),
    )
    return tree, int(manifest["scanned_at_ns"])


def check_unchanged(tree: Tree, root_fd: int, types: Mapping[int, str] | None = None) -> None:
    """Raise ChangedError unless every directory of `tree` has the inode and times that the scan saw.

    Of one whose filesystem may keep its times, the names are read again instead. ``types`` are those of the filesystems
    by device, by default as they are mounted. Raises SourceError if such a directory cannot be read.
    """
    directories = tree.kind_mask(stat.S_IFDIR)
    tells = directories & ~_is_silent(tree, types_by_device() if types is None else types)
    changed = np.flatnonzero(tells & ~find_unchanged(root_fd, tree, among=tells))
    first = int(changed[0]) if len(changed) else None
    if first is None and not np.array_equal(tells, directories):
        first = _first_other(tree, read_tree(root_fd, earlier=Earlier(tree, tells)))
    if first is not None:
        raise ChangedError(f"{show(tree.path(first))} has changed")


def _first_other(tree: Tree, now: Tree) -> int | None:
    """The first directory of ``tree`` that has other names, or another kind of file, in a later scan."""
    most = min(len(tree), len(now))
    # Entries are by directory, so of two that differ the one with the lower number has changed.
    others = np.flatnonzero(
        (tree.parent[:most] != now.parent[:most])
        | ((tree.mode[:most] ^ now.mode[:most]) & np.uint32(0o170000) != 0)
        | (np.diff(tree.name_at)[:most] != np.diff(now.name_at)[:most])
    )
    end = int(others[0]) if len(others) else most
    bytes_before = int(tree.name_at[end])
    letters = np.flatnonzero(tree.names[:bytes_before] != now.names[:bytes_before])
    if len(letters):
        end = int(np.searchsorted(tree.name_at, letters[0], side="right")) - 1
    parents = [int(each.parent[end]) for each in (tree, now) if end < len(each)]
    return min(parents) if parents else None


def _save(tree: Tree, place: Path, given: str, root_fd: int, scanned_at_ns: int) -> None:
    root = os.fstat(root_fd)
    manifest = {
        "format": FORMAT_VERSION,
        "source": os.fsencode(given).hex(),
        "source_text": given.encode("utf-8", "backslashreplace").decode(),
        "device": root.st_dev,
        "inode": root.st_ino,
        "scanned_at_ns": scanned_at_ns,
        "entries": len(tree),
        "directories": _directories(tree),
        "symlinks": len(tree.link_entry),
        "skipped": tree.skipped,
        "control_left_out": tree.control_left_out,
        "extensions": [extension.hex() for extension in tree.extensions],
        "roots": [path.hex() for path in tree.roots],
    }
    keep_folder(place, manifest, {name: getattr(tree, name) for name in TREE_ARRAYS})


# Kept folders: a manifest and arrays


def keep_folder(place: Path, manifest: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Make a cache's folder, which appears when it is complete. Where another command makes it at the same time, one of
    both stays. Raises OSError.

    It waits for no disk, as it would for each of some twenty files. What a power failure leaves does not match its
    records, and is made again.
    """
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))  # 0700
    try:
        records = {name: array_files.save(making, name, values, sync=False) for name, values in arrays.items()}
        (making / MANIFEST).touch(0o600)
        (making / MANIFEST).write_bytes(json.dumps({**manifest, "arrays": records}, indent=1).encode())
        _replace(making, place)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise


def read_kept(place: Path) -> dict[str, Any]:
    """The manifest of a folder that `keep_folder` made. A damaged one can raise anything."""
    if not is_own_folder(os.lstat(place)):
        raise _UnusableError("not a directory that only this user can write")
    return json.loads((place / MANIFEST).read_bytes())


def kept_arrays(place: Path, manifest: Mapping[str, Any], names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Arrays of a kept folder. They are not mapped, so that a mount survives a failure of the cache's disk."""
    return {name: array_files.load(place, name, manifest["arrays"][name], in_memory=True) for name in names}


def _replace(making: Path, place: Path) -> None:
    """Put a finished folder in place. Readers have read the old one into memory, so it can be removed.

    Another command may be faster. What it has put there stays, since it is as new.
    """
    old = making.with_name(making.name + ".old")
    with contextlib.suppress(FileNotFoundError):
        os.rename(place, old)
    try:
        os.rename(making, place)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        shutil.rmtree(making, ignore_errors=True)
    finally:
        if os.path.lexists(old):
            if old.is_dir() and not old.is_symlink():
                shutil.rmtree(old, ignore_errors=True)
            else:
                old.unlink()
