"""`redoxfs pack`: make a packed dataset of a source directory.

The order of the steps makes a killed pack harmless:

1. The draft (all arrays except the checksums) goes to DST/.packing. It depends on the source and the options alone. A
   second run makes the same draft, and so knows that it may resume.
2. Each shard is written to DST/.packing and synced, its checksums are saved beside it, and only then is it renamed
   into DST. A second run keeps a shard if every byte matches its checksums, and writes it again if not.
3. The source's directories are checked once more, the index is moved into place, and last the manifest is written.

So unfinished shards have temporary names that no reader uses, and a folder with a manifest is complete.

Others may be able to write to DST, and put symlinks there. So DST and DST/.packing are reached by descriptors. The
latter is this user's own, and nobody else may write to it. In DST itself, names are renamed and removed; no file there
is written to, and only this user's own files get another mode.
"""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from redoxfs.chunks import Cells
from redoxfs.dataset import Catalog, ChangedError, SourceError, Tree, array_files, check_unchanged, show
from redoxfs.linux import durable
from redoxfs.linux.descriptors import opened
from redoxfs.linux.owned import is_own_folder
from redoxfs.packed.index import (
    FOLDER,
    MANIFEST,
    PACKING,
    DamagedDatasetError,
    Sums,
    arrays_of,
    describe,
    positions_of,
    read_manifest,
    save_arrays,
    seal,
    tree_of,
)
from redoxfs.packed.positions import Positions, assign_positions
from redoxfs.packed.shard import PACK_AGAIN, ShardMap, check_shard, write_shard
from redoxfs.packed.workers import Done, State, Tally, Work, each_shard

DRAFT = "plan.json"
"""The name on disk, which earlier versions use too."""

LOCK = "lock"

INODES = "inode.npy"

READABLE_BY_ALL = {stat.S_IFREG: 0o444, stat.S_IFDIR: 0o555}


class PackError(Exception):
    """DST cannot take the dataset."""


@dataclass(frozen=True, slots=True)
class Packed:
    """The result of a pack. An interrupted run had finished ``kept`` shards, and left ``rewritten`` damaged ones.

    ``already``: the whole dataset had been packed before.
    """

    shards: int
    kept: int
    rewritten: int
    size: int
    already: bool = False


_RESUME = "run the same command again to resume"

_MENDS = {
    # A disk may have a limit of its own: FAT has 4 GiB.
    errno.EFBIG: "remove it, and pack with a smaller --shard-size, or raise the limit of the size of files (ulimit -f)",
    errno.EMFILE: f"raise the limit of open files (ulimit -n), and {_RESUME}",
}


@dataclass(frozen=True, slots=True)
class Totals:
    """The total work, to measure progress by."""

    files: int
    size: int

    @classmethod
    def of(cls, tree: Tree) -> "Totals":
        return cls(len(tree), int(tree.size[tree.kind_mask(stat.S_IFREG)].sum()))


def pack(
    catalog: Catalog,
    cells: Cells,
    root_fd: int,
    dst: Path,
    *,
    shard_bytes: int,
    seed: int,
    asked: dict[str, Any],
    jobs: int,
    on_progress: Callable[[Done, Totals], None] = lambda _done, _totals: None,
) -> Packed:
    """Write the tree of ``catalog`` to ``dst``, or resume an interrupted pack there.

    Args:
        root_fd: the source directory.
        asked: the options that decided on classes, for the manifest.
        on_progress: called now and then with the work done and the total.

    Raises:
        PackError: ``dst`` holds something else, or cannot be written.
        SourceError: a file cannot be read, or the source changed. Finished shards are kept.
    """
    tree = catalog.tree
    positions = assign_positions(catalog, cells, shard_bytes=shard_bytes)
    manifest = describe(catalog, cells, positions, seed=seed, asked=asked)
    totals = Totals.of(tree)
    with contextlib.ExitStack() as held:
        at: _Places | None = None
        try:
            at = _enter(dst, held)
            held.enter_context(_locked(at))
            records = _save_draft(at, arrays_of(catalog, cells, positions), manifest)
            if (at.dst / MANIFEST).exists():
                return _already(at, manifest, records)
            # Inodes are not in the index; they give the order of reading.
            np.save(at.making / INODES, tree.inode, allow_pickle=False)
            work = Work(_prepare, (seen_by_workers(root_fd), at.dst, at.making), _carry_out)
            sums, kept, rewritten = carry_out(work, tree, positions, jobs, lambda done: on_progress(done, totals))
            must_be_unchanged(tree, root_fd)
            _finish(at, manifest, records, sums, private=_is_private(tree))
        except OSError as error:
            # It may be a name in DST, or its descriptor.
            name = error.filename if isinstance(error.filename, str | bytes) else b""
            where = os.path.join(dst, os.fsdecode(name)).rstrip("/")
            where = where if at is None else at.named(where)
            mend = _MENDS.get(error.errno or 0, _RESUME)
            raise PackError(f"{where}: {error.strerror or error}; {mend}") from None
    return Packed(len(positions.shard_names), kept, rewritten, sum(positions.shard_bytes))


@dataclass(frozen=True, slots=True)
class _Places:
    """DST by its ``name``; and paths that lead to open descriptors of DST and of DST/.packing."""

    name: Path
    dst: Path
    making: Path

    def named(self, path: str) -> str:
        """A path as the user knows it."""
        path = path.replace(os.fspath(self.making), os.fspath(self.name / PACKING))
        return path.replace(os.fspath(self.dst), os.fspath(self.name))

    def clear(self) -> None:
        """Remove the folder of unfinished files."""
        for name in os.listdir(self.making):
            _remove(self.making / name)
        (self.dst / PACKING).rmdir()


def _enter(dst: Path, held: contextlib.ExitStack) -> _Places:
    """Make DST, and the folder in it for unfinished files, and hold both open."""
    dst.mkdir(exist_ok=True)
    dst_fd = os.open(dst, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    held.callback(os.close, dst_fd)
    found = set(os.listdir(dst_fd))
    if found and PACKING not in found and MANIFEST not in found:
        raise PackError(f"{dst}: is not empty and is not a packed dataset; name a new folder")
    with contextlib.suppress(FileExistsError):
        os.mkdir(PACKING, 0o700, dir_fd=dst_fd)
    try:
        making_fd = os.open(PACKING, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dst_fd)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        raise PackError(f"{dst / PACKING}: is no folder; remove it, or name a folder of your own") from None
    held.callback(os.close, making_fd)
    if not is_own_folder(os.fstat(making_fd)):
        raise PackError(f"{dst / PACKING}: others may write to it, or it is another user's; name a folder of your own")
    return _Places(dst, seen_by_workers(dst_fd), seen_by_workers(making_fd))


@contextlib.contextmanager
def _locked(at: _Places) -> Iterator[None]:
    """Lock DST against another pack: two would write to one shard, and the first to finish would seal it.

    This is a record lock, which network filesystems support, and which ends with this process.
    """
    making = at.making
    with opened(os.open(making / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)) as fd:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The process that held the lock may have finished and removed the lock file with its other files.
            mine = os.path.samestat(os.fstat(fd), os.stat(making / LOCK))
        except OSError as error:
            # On a filesystem without locks, pack without one.
            mine = error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
        if not mine:
            raise PackError(f"{at.name}: another redoxfs pack is writing to it; wait until that is done")
        yield


def _save_draft(
    at: _Places, arrays: dict[str, np.ndarray[Any, Any]], manifest: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """Save the arrays in DST/.packing/index, and the draft manifest. Return the arrays' records.

    An earlier run's draft must be of the same dataset and options.
    """
    making = at.making
    folder = making / FOLDER
    fresh = making / "plan"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    records = save_arrays(fresh, arrays)
    draft = draft_of(manifest, records)
    if (making / DRAFT).exists():
        try:
            must_resume((making / DRAFT).read_bytes(), draft, str(at.name))
        except PackError:
            shutil.rmtree(fresh)
            raise
        shutil.rmtree(folder, ignore_errors=True)
    else:
        # An earlier run ended before its draft was complete: discard all of it.
        for name in set(os.listdir(making)) - {fresh.name, LOCK}:
            _remove(making / name)
    fresh.rename(folder)
    if not (making / DRAFT).exists():
        durable.write_file(making / "plan.new", draft)
        (making / "plan.new").rename(making / DRAFT)
    durable.sync_directory(making)
    return records


def draft_of(manifest: dict[str, Any], records: dict[str, dict[str, Any]]) -> bytes:
    """Identifies the dataset and the options of a pack, as text."""
    return json.dumps({"manifest": manifest, "arrays": records}, sort_keys=True).encode()


def must_resume(there: bytes | None, draft: bytes, where: str) -> None:
    """Raise PackError unless the draft ``there`` has the same dataset and options."""
    if there is None or not _same_facts(there, draft):
        raise PackError(
            f"{where}: holds an unfinished pack of another source or with other options; "
            "remove it, or give the same options again"
        )


def _same_facts(one: bytes, other: bytes) -> bool:
    """Whether two drafts are of the same dataset and options. The verdict's words may differ between versions."""
    try:
        return facts_of(one) == facts_of(other)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # damaged
        return False


def facts_of(draft: bytes) -> dict[str, Any]:
    """What a draft has but for the verdict. A damaged one can raise anything."""
    read = json.loads(draft)
    return {**read, "manifest": _facts(read["manifest"])}


def _facts(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest without the verdict, which is a text about the other values."""
    return {name: value for name, value in manifest.items() if name != "verdict"}


def packed_before(
    there: dict[str, Any], manifest: dict[str, Any], records: dict[str, dict[str, Any]], where: str
) -> Packed:
    """The size of the dataset with the manifest ``there``. Raises PackError if it is not the dataset to be packed."""
    arrays = there.get("arrays")
    of_sums = arrays.pop("sums", None) if isinstance(arrays, dict) else None
    if of_sums is None or _facts(there) != _facts({**manifest, "arrays": records}):
        raise PackError(f"{where}: holds a packed dataset of another source or with other options; name a new folder")
    return Packed(len(there["shards"]), 0, 0, sum(shard["bytes"] for shard in there["shards"]), already=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _already(at: _Places, manifest: dict[str, Any], records: dict[str, dict[str, Any]]) -> Packed:
    at.clear()
    try:
        there = read_manifest(at.dst)
    except DamagedDatasetError as error:
        raise PackError(f"{at.named(str(error))}; remove {at.name}, or name a new folder") from None
    return packed_before(there, manifest, records, str(at.name))


# The shards


def carry_out(
    work: Work[State, tuple[Sums, bool, bool]],
    tree: Tree,
    positions: Positions,
    jobs: int,
    on_progress: Callable[[Done], None],
) -> tuple[Sums, int, int]:
    """Make all shards. Return their checksums, and how many shards were kept and how many made again.

    For each shard, ``work`` returns its checksums, whether it was there, and whether it was complete.
    """
    shards = ShardMap.of(tree, positions)
    sums = np.zeros(int(shards.block_at[-1]), np.uint64)
    kept = rewritten = 0
    for shard, (of_shard, was_there, was_whole) in each_shard(
        work, range(len(positions.shard_names)), jobs, on_progress
    ):
        sums[shards.blocks(shard)] = of_shard
        kept += was_whole
        rewritten += was_there and not was_whole
    return sums, kept, rewritten


def seen_by_workers(fd: int) -> Path:
    """A path of an open directory, for worker processes, which do not have the descriptor."""
    return Path(f"/proc/{os.getpid()}/fd/{fd}")


def planned_shards(folder: Path) -> ShardMap:
    """The shards of the draft in ``folder``. A tree without `inode.npy` beside the draft has no inodes."""
    draft = json.loads((folder / DRAFT).read_bytes())
    arrays = {name: _map_array(folder / FOLDER / f"{name}.npy") for name in draft["arrays"]}
    tree = tree_of(arrays, skipped=0, control_left_out=0)
    if (folder / INODES).exists():
        tree = replace(tree, inode=_map_array(folder / INODES))
    return ShardMap.of(tree, positions_of(arrays, draft["manifest"]["shards"]))


def _map_array(path: Path) -> np.ndarray[Any, Any]:
    """The array in a file, mapped."""
    values: np.ndarray[Any, Any]
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
    except ValueError:
        values = np.load(path, allow_pickle=False)  # an empty array cannot be mapped
    return values


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    shards: ShardMap
    root_fd: int
    dst: Path
    making: Path


def _prepare(argument: tuple[Path, Path, Path]) -> _State:
    root, dst, making = argument
    return _State(planned_shards(making), os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), dst, making)


def _carry_out(state: _State, shard: int, tally: Tally) -> tuple[Sums, bool, bool]:
    """Keep or write a shard. Return its checksums, whether it was there, and whether it was whole."""
    making = state.making
    name = state.shards.positions.shard_names[shard]
    final, sums_at = state.dst / name, making / f"{name}.sums.npy"
    was_there = os.path.lexists(final)
    if was_there:
        # Not what a symlink leads to, which somebody else may change.
        known = None if final.is_symlink() else _known_sums(sums_at, len(state.shards.blocks(shard)))
        if known is not None:
            counted = Done(0, 0)

            def count(files: int, size: int) -> None:
                nonlocal counted
                counted = Done(counted.files + files, counted.size + size)
                tally.add(files, size)

            if not check_shard(state.shards, shard, final, known, progress=count, stopping=tally.stopping):
                return known, True, True
            tally.add(-counted.files, -counted.size)
        final.unlink()
    part = making / f"{name}.part"
    sums = write_shard(state.shards, shard, state.root_fd, part, progress=tally.add, stopping=tally.stopping)
    for old in (sums_at, making / f"{name}.new.npy"):
        old.unlink(missing_ok=True)
    array_files.save(making, f"{name}.new", sums)
    durable.rename(making / f"{name}.new.npy", sums_at)
    durable.rename(part, final)
    return sums, was_there, False


def _known_sums(path: Path, count: int) -> Sums | None:
    try:
        # An empty array cannot be mapped.
        sums = np.lib.format.open_memmap(path, mode="r") if count else np.zeros(0, np.uint64)
    except Exception:  # a damaged file can raise anything; then the shard is written again
        return None
    return sums if sums.shape == (count,) and sums.dtype == np.uint64 else None


# The end


def must_be_unchanged(tree: Tree, root_fd: int) -> None:
    """Raise SourceError if a directory has changed since the scan."""
    try:
        check_unchanged(tree, root_fd)
    except ChangedError as error:
        raise SourceError(f"{error} while it was packed; {PACK_AGAIN}") from None
    except OSError as error:
        raise SourceError(
            f"{show(error.filename or b'')}: {error.strerror}, but the scan saw it; {PACK_AGAIN}"
        ) from None


def _is_private(tree: Tree) -> bool:
    """Whether some users may not read some of the source. Then only the owner may read the shards."""
    return any(bool((tree.mode[tree.kind_mask(kind)] & bits != bits).any()) for kind, bits in READABLE_BY_ALL.items())


def _finish(at: _Places, manifest: dict[str, Any], records: dict[str, Any], sums: Sums, *, private: bool) -> None:
    dst, making = at.dst, at.making
    folder = dst / FOLDER
    (making / FOLDER / "sums.npy").unlink(missing_ok=True)
    records = {**records, "sums": array_files.save(making / FOLDER, "sums", sums)}
    (making / MANIFEST).unlink(missing_ok=True)
    durable.write_file(making / MANIFEST, seal({**manifest, "arrays": records}))
    if not private:
        umask = os.umask(0)
        os.umask(umask)
        shards = (dst / shard["name"] for shard in manifest["shards"])
        for path in (making / MANIFEST, *(making / FOLDER).iterdir(), *shards):
            _set_mode(path, 0o644 & ~umask)
    durable.sync_directory(making / FOLDER)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
    (making / FOLDER).rename(folder)
    durable.sync_directory(dst)
    durable.rename(making / MANIFEST, dst / MANIFEST)
    at.clear()


def _set_mode(path: Path, mode: int) -> None:
    """Set the mode of a file of this user's own, and of no file that a symlink or another user's link leads to."""
    with array_files.open_plain(path) as file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.geteuid() or found.st_nlink != 1:
            raise PackError(f"{path.name} in DST was replaced by another file; pack again into a folder of your own")
        os.fchmod(file.fileno(), mode)
