"""Tar archives in an object store: which there are, the index of their headers, and the chunk store.

An archive is what it was while it has its ETag and length; where the server has no ETags, its time of modification.
Every request names that version. `redoxfs.packed.archives` makes the index, from ranges: members of up to
`StorageSpeed.longest_gap_bytes` are read through, in pieces of four times that and with pieces requested ahead, and
longer ones are skipped with a request for each. A piece of four times what the store sends in the time of a request
has four fifths of the rate of a stream.
"""

import asyncio
import errno
import os
import posixpath
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from redoxfs.chunks import StorageSpeed
from redoxfs.objects.client import Client, Version
from redoxfs.objects.errors import ObjectError
from redoxfs.objects.index import LOOKS_IN_FLIGHT, all_of
from redoxfs.objects.store import ObjectStore
from redoxfs.objects.window import Window
from redoxfs.packed.archive_cache import Archive
from redoxfs.packed.archive_files import THROUGH_BYTES, UnusableArchiveError
from redoxfs.packed.archive_store import AsTheyLie

if TYPE_CHECKING:
    from typing_extensions import Buffer as HasBuffer

MOST_THROUGH_BYTES = 512 << 10
WINDOWS_PER_GAP = 4
SHORT_WINDOW_BYTES = 16 << 10

MOST_AHEAD = 16
AHEAD_BYTES = 128 << 20
"""Of pieces that are requested ahead for all archives together."""

_MAGIC = "*?["


def names_at(client: Client, patterns: Sequence[str]) -> list[str]:
    """The objects that globs stand for; a name without a wildcard is itself. Raises ObjectError, UnusableArchiveError.

    As in a folder, a wildcard stands for no slash.
    """
    found: list[str] = []
    for pattern in patterns:
        if not any(character in pattern for character in _MAGIC):
            found.append(pattern)
            continue
        if client.address.is_read_only:
            raise UnusableArchiveError(
                f"{client.address.of(pattern)}: a web server has no list of names; write them with braces, {{000..999}}"
            )
        matching = client.run(_matching(client, pattern.split("/")))
        if not matching:
            raise UnusableArchiveError(f"{client.address.of(pattern)}: no object has such a name")
        found += sorted(matching)
    return found


async def _matching(client: Client, parts: Sequence[str]) -> list[str]:
    folders = [""]
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        if not any(character in part for character in _MAGIC) and not is_last:
            folders = [f"{folder}{part}/" for folder in folders]
            continue
        below = []
        for folder in folders:
            objects, prefixes = await client.listed(folder.rstrip("/"))
            paths = objects if is_last else prefixes
            below += [path for path in paths if fnmatchcase(path.rstrip("/").rpartition("/")[2], part)]
        folders = below if is_last else [f"{path.rstrip('/')}/" for path in below]
    return folders


def versions_of(client: Client, names: Sequence[str]) -> tuple[Version, ...]:
    """What the objects are now. Raises ObjectError, UnusableArchiveError."""

    async def all_versions() -> list[Version]:
        limit = asyncio.Semaphore(LOOKS_IN_FLIGHT)

        async def one(name: str) -> Version:
            async with limit:
                return await client.head(name)

        return await all_of(one(name) for name in names)

    try:
        return tuple(client.run(all_versions()))
    except ObjectError as error:
        if error.errno == errno.ENOENT:
            raise UnusableArchiveError(error.strerror) from None
        raise


class InStore:
    """The objects of ``names`` for `load_or_index`; see `redoxfs.packed.archive_files.ArchiveSource`."""

    threads = LOOKS_IN_FLIGHT
    at_once = 2 * LOOKS_IN_FLIGHT

    def __init__(self, client: Client, names: Sequence[str], versions: Sequence[Version], speed: StorageSpeed) -> None:
        self._client = client
        self._names = names
        self._versions = versions
        self.through_bytes = min(max(speed.longest_gap_bytes, THROUGH_BYTES), MOST_THROUGH_BYTES)
        long_window = WINDOWS_PER_GAP * self.through_bytes
        self.windows = long_window, SHORT_WINDOW_BYTES
        in_turn = max(1, min(len(names), self.threads))
        self._most_ahead = max(1, min(MOST_AHEAD, AHEAD_BYTES // (long_window * in_turn)))
        self._failures: dict[str, ObjectError] = {}
        # By thread: each one reads one archive at a time.
        self._windows: dict[int, tuple[int, int, Window]] = {}

    def looked_at(self) -> tuple[Archive, ...]:
        now_ns = time.time_ns()
        # As on a disk, names are those below the folder above all.
        above = posixpath.commonpath([posixpath.dirname(name) for name in self._names]) if self._names else ""
        found = []
        for name, version in zip(self._names, self._versions, strict=True):
            # Without a version, it is as if it had been written just now.
            mtime_ns = now_ns if version.modified is None else int(version.modified.timestamp()) * 1_000_000_000
            owner = os.geteuid(), os.getegid()
            shown = posixpath.relpath(name, above) if above else name
            found.append(Archive(name, shown, version.size, mtime_ns, 0, 0o444, *owner, version.e_tag))
        return tuple(found)

    @contextmanager
    def opened(self, archives: Sequence[Archive], some: Sequence[int]) -> Iterator[Mapping[int, int]]:
        try:
            yield {at: at for at in some}
        finally:
            for _, _, window in self._windows.values():
                window.close()
            self._windows.clear()

    def head(self, number: int, at: int) -> bytes:
        version = self._versions[number]
        work = self._client.get(self._names[number], at, min(at + 8, version.size), version)
        return bytes(self._client.run(work))

    def failure(self, archive: Archive, error: int) -> OSError:
        return self._failures.get(archive.path) or ObjectError(error, os.strerror(error), lasts=False)

    def read(self, number: int, size: int, at: int) -> "HasBuffer | int":
        """As `redoxfs.native.index_archives` calls it, in many threads."""
        name, version = self._names[number], self._versions[number]
        try:
            me = threading.get_ident()
            before, end, window = self._windows.get(me, (-1, 0, None))
            if window is not None and before == number and 0 <= at - end <= self.through_bytes:
                window.ahead = min(2 * window.ahead, self._most_ahead)
            else:
                if size <= SHORT_WINDOW_BYTES:
                    return bytes(self._client.run(self._client.get(name, at, at + size, version)))
                if window is not None:
                    window.close()
                window = Window(self._client, name, version, part_bytes=self.windows[0], ahead=1)
            self._windows[me] = number, at + size, window
            return window.read(size, at)
        except ObjectError as error:
            self._failures[name] = error
            return error.errno or errno.EIO
        except CancelledError:
            # The index ends.
            return errno.ECANCELED


class ArchiveObjectStore(AsTheyLie, ObjectStore):
    """Reads archives of ``index`` through a client."""
