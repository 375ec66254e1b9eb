"""The index of a packed dataset in an object store: fetched once, and kept on a local disk.

The manifest is fetched at each start, since it identifies the dataset. The arrays are fetched only if they are not
kept yet. CACHE/indexes/CHECKSUM has them under the checksum of the manifest, so a copy of the dataset at another
address shares them. They are fetched to a temporary folder, which gets its name when all of it is on disk. Each array
is compared with its checksum whenever it is loaded.

Each shard is looked at as well. Its version (the ETag) is part of every later request, so a shard that is replaced
under a mount is an error and never a mixture.
"""

import asyncio
import errno
import fcntl
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redoxfs.linux import durable
from redoxfs.linux.descriptors import opened
from redoxfs.linux.owned import is_own_folder
from redoxfs.objects.client import PART_BYTES, Client, Version
from redoxfs.objects.errors import ObjectError
from redoxfs.packed.index import (
    ARRAYS,
    FOLDER,
    MANIFEST,
    MANIFEST_MAX_BYTES,
    PACKING,
    DamagedDatasetError,
    Index,
    load_index,
    parse_manifest,
)

INDEXES = "indexes"
"""The folder in the cache."""

LOOKS_IN_FLIGHT = 32
"""Requests for the versions of shards, at a time."""

PARTS_IN_FLIGHT = 8
"""Parts of the index that are fetched at a time, in 64 MiB of memory."""

LEFT_S = 2 * 24 * 3600.0
"""The age at which a temporary folder is a leftover."""

UNUSED_S = 90 * 24 * 3600.0
"""How long an index is kept that nobody mounts. A later mount fetches it again."""

LOCK_WAIT_S = 30.0
"""Much longer than a check of an index takes."""

_LOOK_S = 0.02

_CHECKSUM = re.compile(r"[0-9a-f]{32}")


class NotPackedError(Exception):
    """There is no packed dataset at the address: one line."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Where the index is, and whether it had to be fetched. ``versions``: of each shard, in the manifest's order.

    ``size``: the bytes of the arrays.
    """

    folder: Path
    was_kept: bool
    versions: tuple[Version, ...]
    size: int


def fetch(client: Client, cache: Path) -> Fetched:
    """Make the index available in a folder of ``cache``, and look at each shard.

    Raises:
        ObjectError, NotPackedError
        DamagedDatasetError: the manifest is damaged, or a shard is not as long as it should be.
        OSError: ``cache`` cannot be written.
    """
    return client.run(_fetch(client, cache))


def load(fetched: Fetched) -> Index:
    """The index in a folder, checked. Raises DamagedDatasetError."""
    return load_index(fetched.folder, lambda _shard, _name: False)


async def _fetch(client: Client, cache: Path) -> Fetched:
    text = await _manifest_text(client)
    indexes = cache / INDEXES
    indexes.mkdir(mode=0o700, parents=True, exist_ok=True)
    _remove_old(indexes)
    fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=indexes))
    try:
        durable.write_file(fresh / MANIFEST, text)
        try:
            manifest = parse_manifest(text, client.address.of(MANIFEST))
            checksum = str(json.loads(text)["checksum"])
            sizes = {name: int(manifest["arrays"][name]["bytes"]) for name in ARRAYS}
            shards = [(str(shard["name"]), int(shard["bytes"])) for shard in manifest["shards"]]
        except (KeyError, TypeError, ValueError, OverflowError):
            raise DamagedDatasetError(f"{client.address.of(MANIFEST)} is damaged") from None
        if not _CHECKSUM.fullmatch(checksum) or any(size < 0 for size in sizes.values()):
            raise DamagedDatasetError(f"{client.address.of(MANIFEST)} is damaged")
        place = indexes / checksum
        versions = await _versions(client, shards)
        total = sum(sizes.values())
        if _is_whole(place, sizes, text):
            with suppress(OSError):
                os.utime(place)
            return Fetched(place, True, versions, total)
        await _arrays(client, fresh / FOLDER, sizes)
        try:
            load_index(fresh, lambda _shard, _name: False)
        except DamagedDatasetError as error:
            raise DamagedDatasetError(str(error).replace(str(fresh), client.address.url)) from None
        durable.sync_directory(fresh)
        _install(fresh, place, sizes, text)
        return Fetched(place, False, versions, total)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _remove_old(indexes: Path) -> None:
    """Remove what a killed process has left, and what nobody has mounted for long.

    Whoever still works in a temporary folder may not take so long. A mount that has an index keeps its files open.
    """
    for folder in indexes.iterdir():
        is_temporary = folder.name.startswith((".new-", ".old-"))
        if not is_temporary and not _CHECKSUM.fullmatch(folder.name):
            continue
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > (LEFT_S if is_temporary else UNUSED_S):
                shutil.rmtree(folder, ignore_errors=True)


async def _manifest_text(client: Client) -> bytes:
    try:
        text, _ = await client.get_small(MANIFEST, MANIFEST_MAX_BYTES)
    except ObjectError as error:
        if error.errno != errno.ENOENT:
            raise
        if "NoSuchBucket" in str(error):
            raise NotPackedError(f"{client.address}: there is no such bucket") from None
        try:
            await client.head(f"{PACKING}/plan.json")
        except ObjectError:
            raise NotPackedError(
                f"{client.address}: is not a packed dataset, as there is no {MANIFEST}; redoxfs pack makes one; "
                f"for tar archives, write {client.address}/*.tar"
            ) from None
        raise DamagedDatasetError(
            f"{client.address}: the pack is unfinished; run the same redoxfs pack again to resume it"
        ) from None
    return text


def _is_whole(place: Path, sizes: dict[str, int], manifest: bytes) -> bool:
    """Whether a kept index is complete, and of this manifest and user. Its content is checked when it is loaded."""
    try:
        if not is_own_folder(os.lstat(place)) or (place / MANIFEST).read_bytes() != manifest:
            return False
        if any((place / FOLDER / f"{name}.npy").stat().st_size != size for name, size in sizes.items()):
            return False
        load_index(place, lambda _shard, _name: False)
    except (OSError, DamagedDatasetError):
        return False
    return True


def _install(fresh: Path, place: Path, sizes: dict[str, int], manifest: bytes) -> None:
    """Give a complete folder its name; a damaged one there makes way.

    Another process may be faster. What it has installed stays, since others may be loading it: so only one process at a
    time judges what is there, and moves it.
    """
    asides = []
    lock = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _await_lock(lock)
        while True:
            try:
                fresh.rename(place)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            else:
                durable.sync_directory(place.parent)
                return
            if _is_whole(place, sizes, manifest):
                return
            asides.append(Path(tempfile.mkdtemp(prefix=".old-", dir=place.parent)))
            # Another process may have moved it, or is about to install its own.
            with suppress(FileNotFoundError):
                place.rename(asides[-1] / place.name)
    finally:
        os.close(lock)
        for aside in asides:
            shutil.rmtree(aside, ignore_errors=True)


def _await_lock(fd: int) -> None:
    """Lock a folder; go on without a lock where a network filesystem has none, or another process hangs with it."""
    until_s = time.monotonic() + LOCK_WAIT_S
    while time.monotonic() < until_s:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOOK_S)
            continue
        except OSError:
            pass
        return


async def _arrays(client: Client, folder: Path, sizes: dict[str, int]) -> None:
    """Fetch all arrays into a new folder, part by part, many at a time."""
    folder.mkdir()
    limit = asyncio.Semaphore(PARTS_IN_FLIGHT)

    async def part(fd: int, name: str, version: Version, begin: int) -> None:
        async with limit:
            data = memoryview(await client.get(name, begin, min(begin + PART_BYTES, version.size), version))
            while data:
                written = os.pwrite(fd, data, begin)
                begin += written
                data = data[written:]

    async def array(name: str, size: int) -> None:
        path, key = folder / f"{name}.npy", f"{FOLDER}/{name}.npy"
        async with limit:
            version = await client.head(key)
        if version.size != size:
            raise DamagedDatasetError(
                f"{client.address.of(key)} is {version.size:,} bytes long instead of {size:,}; pack the dataset again"
            )
        with opened(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)) as fd:
            await all_of(part(fd, key, version, begin) for begin in range(0, size, PART_BYTES))
            os.fsync(fd)

    await all_of(array(name, size) for name, size in sizes.items())
    durable.sync_directory(folder)


async def _versions(client: Client, shards: Sequence[tuple[str, int]]) -> tuple[Version, ...]:
    """The version of each shard, which must have its length."""
    limit = asyncio.Semaphore(LOOKS_IN_FLIGHT)

    async def one(name: str, length: int) -> Version:
        try:
            async with limit:
                version = await client.head(name)
        except ObjectError as error:
            if error.errno == errno.ENOENT:
                raise DamagedDatasetError(f"{client.address.of(name)}: is missing") from None
            raise
        if version.size != length:
            raise DamagedDatasetError(f"{client.address.of(name)} is {version.size:,} bytes long instead of {length:,}")
        return version

    return tuple(await all_of(one(name, length) for name, length in shards))


async def all_of(works: Any) -> list[Any]:
    """The results of coroutines that run at the same time. The first failure ends the others, and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
