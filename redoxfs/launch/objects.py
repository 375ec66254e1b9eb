"""A packed dataset in an object store, as SOURCE.

Everything that needs the network before the daemon runs is done in a child: obstore's threads would not outlive the
fork of the daemon. The child leaves the index in the cache and reports the versions of the shards. Keys and passwords
stay in the environment and in files. A daemon, and a successor of it, reads them there when it first needs them.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from redoxfs.dataset.errors import ClassesError
from redoxfs.launch.deadline import Result, call_in_child
from redoxfs.launch.errors import CommandError, DamagedError, SourceUnusableError
from redoxfs.launch.say import say
from redoxfs.launch.sizes import format_bytes
from redoxfs.linux.owned import is_own_folder
from redoxfs.objects import Address

if TYPE_CHECKING:
    from redoxfs.chunks import ChunkStore, StorageSpeed
    from redoxfs.objects.client import Version
    from redoxfs.objects.index import Fetched
    from redoxfs.packed import Index
    from redoxfs.packed.verifying import Verified
    from redoxfs.packed.workers import Done

# Each request has a deadline of its own; an index of gigabytes may take many.
_FETCH_S = 24 * 3600.0

# Requests in flight hold what they have received, beside the memory of --memory.
_HELD_SHARE = 8
_HELD_BYTES = (16 << 20, 256 << 20)

# Requests in flight share the line, so on a slow one many would all be too late.
_HELD_TIME_SHARE = 8


@dataclass(frozen=True, slots=True)
class Objects:
    """Where the shards are, and what they were when they were looked at. ``measured``: the storage's speed."""

    address: Address
    versions: "tuple[Version, ...]"
    measured: "StorageSpeed | None"

    def store(
        self, index: "Index | None", speed: "StorageSpeed | None", *, memory_bytes: int, timeout_s: float
    ) -> "ChunkStore":
        """The store that reads them. It makes no request before its first read."""
        from redoxfs.chunks import UNKNOWN_SPEED
        from redoxfs.objects.archives import ArchiveObjectStore
        from redoxfs.objects.client import PART_BYTES, Client, obstore
        from redoxfs.objects.store import ObjectStore

        assert index is not None
        # Imported before a mount may hide it.
        obstore()
        speed = speed or UNKNOWN_SPEED
        least, most = _HELD_BYTES
        in_time = max(int(speed.bytes_per_s * timeout_s / _HELD_TIME_SHARE), PART_BYTES)
        is_packed = index.versions is None
        return (ObjectStore if is_packed else ArchiveObjectStore)(
            index,
            Client(self.address, deadline_s=timeout_s, has_checksums=is_packed),
            self.versions,
            speed,
            most_held_bytes=min(max(memory_bytes // _HELD_SHARE, least), most, in_time),
        )


def nowhere() -> int:
    """A descriptor of a folder that is empty and has no name."""
    folder = tempfile.mkdtemp(prefix="redoxfs-")
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.rmdir(folder)


def hidden_credentials(address: Address, mountpoint: Path) -> str | None:
    """A file of credentials that would be hidden below a mount; None if there is none.

    A daemon reads them again while it serves, and another daemon before it serves. It would wait for itself.
    """
    from redoxfs.objects.credentials import credential_files

    for path in credential_files(address.scheme, os.environ):
        if mountpoint in Path(os.path.realpath(path)).parents:
            return path
    return None


def open_objects(address: Address, *, timeout_s: float, measures: bool) -> "tuple[Objects, Index]":
    """The dataset at an address. Progress goes to stderr.

    Raises:
        SourceUnusableError, DamagedError, DamagedDatasetError
    """
    from redoxfs.objects.credentials import absolute_files
    from redoxfs.packed.index import load_index

    # A daemon, and whatever it starts, works in another folder.
    os.environ.update(absolute_files(address.scheme, os.environ))

    def fetch(cache: Path, is_kept: bool) -> "tuple[Objects, Index]":
        found, speed = in_child(lambda: _fetched(address, cache, timeout_s, measures=measures))
        # Its arrays are mapped, so they stay when the folder is removed.
        index = load_index(found.folder, lambda _shard, _name: False)
        if not found.was_kept:
            say(f"fetched the index, {format_bytes(found.size)}" + (f", and kept it in {cache}" if is_kept else ""))
        return Objects(address, found.versions, speed), index

    return with_index_cache(fetch)


def verify_objects(
    address: Address, jobs: int, timeout_s: float, on_progress: "Callable[[Done, int], None]"
) -> "Verified":
    """Check every byte of the dataset at an address. Raises as `open_objects`."""
    from redoxfs.objects.check import verify

    def check(cache: Path, _is_kept: bool) -> "Verified":
        with _translated():
            fetched, _ = _fetched(address, cache, timeout_s, measures=False)
            return verify(address, fetched, jobs=jobs, timeout_s=timeout_s, on_progress=on_progress)

    return with_index_cache(check)


class NotKeptError(Exception):
    """An index cannot be kept in the folder for it: one line."""


def with_index_cache(work: "Callable[[Path, bool], Result]") -> "Result":
    """Call ``work`` with the folder where indexes are kept, and True; else with a temporary one, and False.

    A mount from an object store needs no room at home: if ``work`` raises NotKeptError, it is called again.
    """
    cache, trouble = _index_cache()
    if not trouble:
        try:
            return work(cache, True)
        except NotKeptError as error:
            trouble = str(error)
    say(f"{cache}: {trouble}; the index is fetched again at each start")
    with tempfile.TemporaryDirectory(prefix="redoxfs-") as folder:
        try:
            return work(Path(folder), False)
        except NotKeptError as error:
            raise SourceUnusableError(f"{folder}: {error}") from None


def _index_cache() -> tuple[Path, str]:
    """The folder where indexes are kept, and why it cannot be used."""
    from redoxfs.dataset import default_cache_dir

    cache, trouble = default_cache_dir(), ""
    try:
        (cache / "indexes").mkdir(mode=0o700, parents=True, exist_ok=True)
        trouble = "" if os.access(cache / "indexes", os.W_OK) else "it is not writable"
        # An index has the modes and owners of all files.
        if cache.stat().st_uid != os.geteuid() or not is_own_folder(os.lstat(cache / "indexes")):
            trouble = "it is another user's, or others may write to it"
    except OSError as failure:
        trouble = failure.strerror or str(failure)
    return cache, trouble


def _fetched(
    address: Address, cache: Path, timeout_s: float, *, measures: bool
) -> "tuple[Fetched, StorageSpeed | None]":
    from redoxfs.objects.client import Client
    from redoxfs.objects.errors import ObjectError
    from redoxfs.objects.index import fetch, load
    from redoxfs.objects.speed import measure

    client = Client(address, deadline_s=timeout_s)
    try:
        found = fetch(client, cache)
    except ObjectError:
        raise
    except OSError as failure:
        raise NotKeptError(failure.strerror or str(failure)) from None
    speed = measure(client, load(found).positions.shard_names, found.versions) if measures else None
    return found, speed


@contextmanager
def _translated() -> Iterator[None]:
    """The block uses obstore. Raises errors of objects as CommandErrors."""
    from redoxfs.objects.client import NoObstoreError, obstore
    from redoxfs.objects.errors import ObjectError
    from redoxfs.objects.index import NotPackedError
    from redoxfs.packed import DamagedDatasetError

    try:
        obstore()
        yield
    except DamagedDatasetError as error:
        raise DamagedError(str(error)) from None
    except (NotPackedError, NoObstoreError) as error:
        raise SourceUnusableError(str(error)) from None
    except ObjectError as error:
        raise SourceUnusableError(error.strerror) from None


def in_child(call: "Callable[[], Result]") -> "Result":
    """What ``call`` returns in a child. Raises CommandErrors, ClassesErrors and NotKeptErrors; see `_translated`."""

    def answer() -> "Result":
        with _translated():
            return call()

    # Here too, so that the child need not import obstore.
    with _translated():
        try:
            return call_in_child(answer, _FETCH_S, CommandError, ClassesError, NotKeptError)
        except OSError as failure:
            raise SourceUnusableError(f"the index could not be fetched: {failure.strerror}") from None
