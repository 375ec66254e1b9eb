"""Packed datasets for tests: packed in this process, read, changed, and sealed again as an attacker would."""

import json
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from redoxfs.chunks import Cells, StorageSpeed, build_cells
from redoxfs.dataset import Catalog, Tree, Verdict, array_files, build_catalog, read_tree
from redoxfs.packed import MANIFEST, Index, PackedStore, load_index, pack
from redoxfs.packed.index import FOLDER, arrays_of, block_offsets, describe, save_arrays, seal, tree_of
from redoxfs.packed.packing import Packed
from redoxfs.packed.positions import assign_positions
from redoxfs.packed.workers import Tally

if TYPE_CHECKING:
    import pytest

SPEED = StorageSpeed(seek_s=0.002, bytes_per_s=200e6)


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Change a bit of a file."""
    with open(path, "r+b", buffering=0) as file:
        byte = os.pread(file.fileno(), 1, offset)
        os.pwrite(file.fileno(), bytes([byte[0] ^ 1 << bit]), offset)


@contextmanager
def opened(folder: Path | str | bytes) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


@dataclass(frozen=True)
class Options:
    """The options of `redoxfs pack`."""

    chunk_size: int = 8
    shard_bytes: int = 1 << 30
    seed: int = 0
    classes: str = "dir"
    groups: str | None = None
    samples: tuple[str, ...] = ()
    jobs: int = 1


DEFAULT = Options()


def catalog_of(source: Path | bytes, options: Options = DEFAULT) -> Catalog:
    with opened(source) as fd:
        return build_catalog(read_tree(fd), classes=options.classes, groups=options.groups, samples=options.samples)


def pack_here(source: Path | bytes, dst: Path, options: Options = DEFAULT, *, catalog: Catalog | None = None) -> Packed:
    """`redoxfs pack` in this process. ``catalog`` if the source was scanned before."""
    catalog = catalog or catalog_of(source, options)
    cells = build_cells(catalog.class_of, catalog.sample_bytes, chunk_size=options.chunk_size, seed=options.seed)
    with opened(source) as fd:
        return pack(
            catalog,
            cells,
            fd,
            dst,
            shard_bytes=options.shard_bytes,
            seed=options.seed,
            asked={"classes": options.classes, "groups": options.groups},
            jobs=options.jobs,
        )


@contextmanager
def store_of(dst: Path, speed: StorageSpeed = SPEED) -> Iterator[tuple[Index, PackedStore]]:
    index = load_index(dst)
    store = PackedStore(index, dst, speed)
    try:
        yield index, store
    finally:
        store.close()


def python_calls(work: Callable[[], object]) -> int:
    """How many functions are called by ``work``: its cost, on any machine."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def end_this_process(*_: object) -> None:
    """Work of a process that is killed by it."""
    os.kill(os.getpid(), signal.SIGKILL)


WENT_ON = "went on"


def interrupt_the_end(_state: int, _shard: int, tally: Tally) -> None:
    """A worker's work: Ctrl-C for its parent once this has to stop, while the parent waits for the end."""
    while not tally.stopping():
        time.sleep(0.01)
    os.kill(os.getppid(), signal.SIGINT)
    # A parent that no longer waits is gone by then.
    time.sleep(0.5)


def end_the_parent_and_hang(folder: Path, _shard: int, tally: Tally) -> None:
    """A worker's work: SIGTERM for its parent, which waits for the end of this."""
    while not tally.stopping():
        time.sleep(0.01)
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(20.0)
    (folder / WENT_ON).touch()


def end_or_hang(state: tuple[Any, Any, Path], shard: int, _tally: object) -> None:
    """Work of a process that is killed by it, while the others wait for what that one held."""
    if not shard:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(20.0)
    (state[2] / WENT_ON).touch()


def files_in(folder: Path) -> dict[str, bytes]:
    """The bytes of every file of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def shards_of(dst: Path) -> list[Path]:
    return sorted(dst.glob("*.tar"))


def manifest_of(dst: Path) -> dict[str, Any]:
    return json.loads((dst / MANIFEST).read_bytes())


def reseal(dst: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Apply ``change`` to the manifest and write it with a new checksum."""
    manifest = manifest_of(dst)
    del manifest["checksum"]
    change(manifest)
    (dst / MANIFEST).write_bytes(seal(manifest))


def replace_array(dst: Path, name: str, values: np.ndarray[Any, Any]) -> None:
    """Replace an array of the index, and its record in the manifest."""
    (dst / FOLDER / f"{name}.npy").unlink()
    record = array_files.save(dst / FOLDER, name, values)
    reseal(dst, lambda manifest: manifest["arrays"].update({name: record}))


def replace_array_file(dst: Path, name: str, data: bytes, **record: object) -> None:
    """Replace an array's file by any bytes, with their length and checksum in the manifest, and ``record`` besides."""
    (dst / FOLDER / f"{name}.npy").write_bytes(data)
    known = {"bytes": len(data), "xxh3_128": xxhash.xxh3_128_hexdigest(data), **record}
    reseal(dst, lambda manifest: manifest["arrays"][name].update(known))


def array(dst: Path, name: str) -> np.ndarray[Any, Any]:
    return np.load(dst / FOLDER / f"{name}.npy")


def made_up_tree(
    entries: Sequence[tuple[int, bytes, int]], *, targets: Sequence[bytes] = (), **columns: Sequence[int]
) -> Tree:
    """A tree that is not on disk, from (parent, name, mode) of each entry below the root, and ``columns`` of all.

    The root is entry 0. Values without a column are zero.
    """
    count = len(entries) + 1
    names = [b"", *(name for _, name, _ in entries)]
    mode = np.array([stat.S_IFDIR | 0o755, *(mode for _, _, mode in entries)], np.uint32)
    types = {"uid": np.uint32, "gid": np.uint32, "nlink": np.uint32}
    given = {
        name: np.array(columns.get(name, np.zeros(count)), types.get(name, np.int64))
        for name in ("uid", "gid", "nlink", "size", "mtime_ns", "ctime_ns")
    }
    return tree_of(
        {
            **given,
            "mode": mode,
            "parent": np.array([0, *(parent for parent, _, _ in entries)], np.int32),
            "names": np.frombuffer(b"".join(names), np.uint8),
            "name_at": _offsets(names),
            "link_entry": np.flatnonzero(mode & np.uint32(0o170000) == stat.S_IFLNK).astype(np.int32),
            "link_names": np.frombuffer(b"".join(targets), np.uint8),
            "link_at": _offsets(targets),
        },
        skipped=0,
        control_left_out=0,
    )


def made_up_catalog(tree: Tree, class_of: Sequence[int], groups: Sequence[Sequence[int]]) -> Catalog:
    """A catalog of a made-up tree, from the class and the entries of each sample."""
    members = np.array([entry for group in groups for entry in group], np.int32)
    member_at = np.concatenate([[0], np.cumsum([len(group) for group in groups])]).astype(np.int64)
    classes = max(class_of, default=-1) + 1
    return Catalog.of_samples(
        tree,
        member_at,
        members,
        class_of=np.array(class_of, np.int32),
        class_names=[str(number) for number in range(classes)],
        class_trees=["."],
        tree_of_class=np.zeros(classes, np.int32),
        verdict=Verdict("dir", "dir", "made up"),
        sample_files=len(members),
    )


def seal_made_up(dst: Path, catalog: Catalog, cells: Cells) -> None:
    """Write a packed dataset of a made-up tree: the index, and empty shards of the right length."""
    positions = assign_positions(catalog, cells, shard_bytes=1 << 30)
    (dst / FOLDER).mkdir(parents=True)
    arrays = arrays_of(catalog, cells, positions)
    blocks = int(block_offsets(catalog.tree)[-1])
    records = save_arrays(dst / FOLDER, {**arrays, "sums": np.zeros(blocks, np.uint64)})
    manifest = describe(catalog, cells, positions, seed=0, asked={})
    (dst / MANIFEST).write_bytes(seal({**manifest, "arrays": records}))
    for name, length in zip(positions.shard_names, positions.shard_bytes, strict=True):
        (dst / name).touch()
        os.truncate(dst / name, length)


def _offsets(parts: Sequence[bytes]) -> np.ndarray[Any, Any]:
    return np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)


def put_in_place_when_missed(place: Path, aside: Path, monkeypatch: "pytest.MonkeyPatch") -> None:
    """Move ``place`` to ``aside``, and back as soon as somebody has looked for it: another command puts it there."""
    lstat = os.lstat
    place.rename(aside)

    def lstat_before_it_is_in_place(path: Path) -> os.stat_result:
        try:
            return lstat(path)
        finally:
            if path == place and aside.exists():
                aside.rename(place)

    monkeypatch.setattr(os, "lstat", lstat_before_it_is_in_place)
