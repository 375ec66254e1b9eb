"""DIR of --cache: a folder for each dataset, and the locks and sizes that mounts share.

    DIR/lock               held while a mount reserves room, so that all mounts together stay within --cache-size
    DIR/KEY/about.json     the source of the dataset, and its last use
    DIR/KEY/lock           shared by all mounts that use the folder; exclusive while it is removed
    DIR/KEY/ID.data …      segments (`segments`)

KEY identifies names, sizes, times, samples and classes of the dataset. DIR may contain other files and folders, even
with names like KEY: redoxfs never touches a folder that contains any other file.
"""

import errno
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from redoxfs.cache.segments import KEPT, read_batches, seed_of
from redoxfs.linux.descriptors import opened
from redoxfs.linux.durable import is_leftover, replace

if TYPE_CHECKING:
    from redoxfs.dataset import Catalog

ABOUT = "about.json"
LAST_TIME_S = 1e11
"""In the year 5138: a later time of use is damage."""

LAYOUT = 1
"""Of the folder and of segments. It is a part of KEY."""

_KEY = re.compile(r"[0-9a-f]{32}")
_FILE = re.compile(r"lock|about\.json|[0-9a-f]{16}\.(data|index)")
_REMOVED = ".removed-"
_REMOVED_FOLDER = re.compile(r"\.removed-[0-9a-f]{32}-\d+")
# A filesystem that has found errors is often made read-only.
_OF_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EUCLEAN, errno.ENODEV, errno.ENXIO)


class CacheError(Exception):
    """DIR cannot be used: one line. ``is_disk``: its disk is full or fails, so another DIR would do."""

    is_disk = False

    @classmethod
    def of(cls, name: str, failure: OSError) -> "CacheError":
        """The error for DIR ``name`` and a failed call."""
        error = cls(f"{name}: {failure.strerror}")
        error.is_disk = failure.errno in _OF_DISK
        return error


class InUseError(CacheError):
    """A mount uses the folder of a dataset."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The copies of a dataset in DIR.

    ``source``    the last SOURCE
    ``files``     number of copies of files, perhaps several of one
    ``size``      bytes on the disk
    ``used_at_s`` when a mount last used it
    """

    key: str
    source: str
    files: int
    size: int
    used_at_s: float
    is_in_use: bool


def key_of(catalog: "Catalog", fingerprint: str, checksum: str | None) -> str:
    """KEY of a dataset. ``checksum`` identifies the content of a packed one."""
    digest = xxhash.xxh3_128(f"{LAYOUT} {fingerprint} {checksum} ".encode())
    digest.update(np.ascontiguousarray(catalog.tree.mtime_ns).view(np.uint8).data)
    if checksum is None:
        # Tools such as tar and rsync give new content an old mtime, but none sets a ctime. That of a directory changes
        # with its name, too.
        digest.update(catalog.tree.ctime_ns[catalog.members].view(np.uint8).data)
    return digest.hexdigest()


class Root:
    """DIR, through a descriptor, which a mount over it does not hide. Creates it if it is missing.

    Raises CacheError.
    """

    def __init__(self, path: Path, *, makes: bool = True) -> None:
        self.name = str(path)
        try:
            if makes:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileExistsError:
            raise CacheError(f"{self.name}: is not a folder") from None
        except FileNotFoundError:
            raise CacheError(f"{self.name}: {'cannot be created' if makes else 'no such folder'}") from None
        except OSError as failure:
            raise CacheError.of(self.name, failure) from None
        self.path = Path(f"/proc/self/fd/{self.fd}")

    def close(self) -> None:
        os.close(self.fd)

    def folder(self, key: str) -> "Folder":
        """The folder of a dataset, in use until it is closed. Creates it if it is missing. Raises CacheError."""
        try:
            return Folder(self, key)
        except OSError as failure:
            raise CacheError.of(self.name, failure) from None

    def used_bytes(self) -> int:
        """The length of all segments in DIR. Raises OSError."""
        return sum(_used_bytes(folder) for folder in self._folders())

    def free_bytes(self) -> int:
        """Free space of the disk. Raises OSError."""
        disk = os.fstatvfs(self.fd)
        return disk.f_bavail * disk.f_frsize

    @contextmanager
    def reserving(self) -> Iterator[None]:
        """Keep other mounts from reserving room meanwhile. Raises OSError."""
        with opened(os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield

    @property
    def is_cache(self) -> bool:
        """Whether a mount has used it. Raises CacheError."""
        try:
            return (self.path / "lock").exists() or bool(self._folders())
        except OSError as failure:
            raise CacheError.of(self.name, failure) from None

    def entries(self) -> list[Entry]:
        """The datasets in DIR, in the order of last use. Raises CacheError."""
        try:
            found = [entry for folder in self._folders() if (entry := _entry(folder)) is not None]
        except OSError as failure:
            raise CacheError.of(self.name, failure) from None
        return sorted(found, key=lambda entry: entry.used_at_s)

    def make_room(self, needs_bytes: int, most_bytes: int, keeps: str) -> list[Entry]:
        """Remove datasets that no mount uses, least recently used first, until ``needs_bytes`` fit, or none is left.

        Returns the removed datasets. Raises CacheError, OSError.

        Args:
            most_bytes: of DIR as a whole.
            keeps: the key of a dataset that stays.
        """
        if self.used_bytes() + needs_bytes <= most_bytes:
            return []
        removed = []
        for entry in self.entries():
            if self.used_bytes() + needs_bytes <= most_bytes:
                break
            if entry.key != keeps:
                # One that is in use stays.
                with suppress(InUseError):
                    self.remove(entry.key)
                    removed.append(entry)
        return removed

    def remove(self, key: str) -> None:
        """Remove a dataset from DIR, if it is still there. Raises CacheError: InUseError if a mount uses it."""
        folder = self.path / key
        try:
            with opened(os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)) as fd:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.path.samestat(os.stat(folder / "lock"), os.fstat(fd)):
                    # Another process has removed the folder, and a mount has made a new one.
                    self.remove(key)
                    return
                # At once, so that what is left of it after a crash is not taken for a cache.
                gone = self.path / f"{_REMOVED}{key}-{os.getpid()}"
                folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
            # `sweep` of another process may have been faster.
            if gone.exists():
                shutil.rmtree(gone)
        except FileNotFoundError:
            # Another process removes it.
            return
        except BlockingIOError:
            raise InUseError(f"{self.name}: a mount uses {key}") from None
        except OSError as failure:
            raise CacheError.of(self.name, failure) from None

    def sweep(self) -> None:
        """Remove the leftovers of an interrupted `remove`. Raises OSError."""
        for path in self.path.iterdir():
            if _REMOVED_FOLDER.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)

    def _folders(self) -> list[Path]:
        return [path for path in self.path.iterdir() if _KEY.fullmatch(path.name) and path.is_dir() and _is_ours(path)]


class Folder:
    """The folder of a dataset. Raises OSError."""

    def __init__(self, root: Root, key: str) -> None:
        self.root = root
        self.key = key
        self.seed = seed_of(key)
        self.path = root.path / key
        while True:
            self.path.mkdir(mode=0o700, exist_ok=True)
            self.fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._lock = _lock_of(Path(f"/proc/self/fd/{self.fd}"), makes=True)
            except OSError as failure:
                os.close(self.fd)
                if failure.errno != errno.ENOENT:
                    raise
                # It was removed in between.
                continue
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(self.path), os.fstat(self.fd)):
                    return
            self.close()

    def describe(self, about: dict[str, Any]) -> None:
        """Record its dataset, and the time of this use. Raises OSError."""
        with self.root.reserving():
            # Nobody else writes the file meanwhile, so each such file is one that a killed process left.
            for name in os.listdir(self.fd):
                if is_leftover(name, ABOUT):
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=self.fd)
            replace(self.fd, ABOUT, json.dumps({"layout": LAYOUT, "used_at_s": time.time(), **about}).encode())

    def segments(self) -> list[str]:
        """The IDs of its segments that have both files, in the order of their last change. Raises OSError."""
        found = []
        names = set(os.listdir(self.fd))
        for path in names:
            name = path.removesuffix(".index")
            if re.fullmatch(r"[0-9a-f]{16}\.index", path) and f"{name}.data" in names:
                with suppress(FileNotFoundError):
                    found.append((os.stat(path, dir_fd=self.fd).st_mtime_ns, name))
        return [name for _, name in sorted(found)]

    def open(self, name: str, flags: int) -> int:
        """A descriptor of one of its files. Raises OSError."""
        return os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=self.fd)

    def close(self) -> None:
        """End its use by this process."""
        os.close(self._lock)
        os.close(self.fd)


def _lock_of(folder: Path, *, makes: bool) -> int:
    """A descriptor of the lock of a dataset's folder. Raises OSError."""
    # Network storage locks only files that are open for writing; on a disk that is read-only, no file can be.
    try:
        return os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if makes else 0), 0o600)
    except OSError as failure:
        if failure.errno != errno.EROFS:
            raise
        with suppress(OSError):
            return os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
        raise


def _is_ours(folder: Path) -> bool:
    """Whether nothing else is in it; False if it was removed meanwhile. Raises OSError."""
    with suppress(FileNotFoundError):
        return all(_FILE.fullmatch(name) or is_leftover(name, ABOUT) for name in os.listdir(folder))
    return False


def _used_bytes(folder: Path) -> int:
    """The length of its files; 0 if it was removed meanwhile. Raises OSError."""
    total = 0
    with suppress(FileNotFoundError):
        for name in os.listdir(folder):
            with suppress(FileNotFoundError):
                total += os.stat(folder / name).st_size
    return total


def _entry(folder: Path) -> Entry | None:
    """The copies in the folder of a dataset; None if it was removed meanwhile. Raises OSError."""
    try:
        about = json.loads((folder / ABOUT).read_bytes())
        source, used_at_s = str(about["source"]), float(about["used_at_s"])
        if not 0 <= used_at_s < LAST_TIME_S:
            raise ValueError
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        source, used_at_s = "", 0.0
    files = 0
    seed = seed_of(folder.name)
    try:
        for name in os.listdir(folder):
            if name.endswith(".index"):
                with opened(os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC)) as fd:
                    files += sum(len(batch.files) for batch in read_batches(fd, 0, seed).batches if batch.magic == KEPT)
        return Entry(folder.name, source, files, _used_bytes(folder), used_at_s, _is_in_use(folder))
    except FileNotFoundError:
        return None


def _is_in_use(folder: Path) -> bool:
    try:
        fd = _lock_of(folder, makes=False)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
