"""The folder of a packed dataset: shards, an index of plain arrays, a manifest.

    DST/samples-000000.tar …   the samples, chunk after chunk (packed.positions)
    DST/tree-000000.tar …      everything else
    DST/index/NAME.npy         the tree, the classes, the chunks, and each entry's position; memory-mapped
    DST/manifest.json          format version, options, counts, length and checksum of each array

Everything is checked before use. The manifest has its own checksum and the checksum of each array, each shard's length
is compared, and every number used as a position is checked against its range. So damaged, swapped or forged data is
a one-line error here, not a wrong byte later. The bytes of files are checked when they are read (`packed.store`).

Invariant: a folder with a manifest is complete. The manifest is written last, under another name, synced, and renamed.
"""

import errno
import json
import math
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import xxhash

from redoxfs.chunks import Cells
from redoxfs.dataset import TURN_OFF, Catalog, Tree, array_files, show
from redoxfs.dataset.stored import (
    CLASSES,
    COLUMNS,
    NAMES,
    catalog_of,
    children_of,
    described,
    in_range,
    must_be_text,
    wrong_catalog,
    wrong_tree,
)
from redoxfs.packed.headers import BLOCK_BYTES
from redoxfs.packed.positions import Positions

MANIFEST = "manifest.json"
FOLDER = "index"
PACKING = ".packing"
"""The folder for the unfinished files of a pack."""

FORMAT = "redoxfs packed dataset"
VERSION = 1

SUM_BLOCK_BYTES = 1 << 20
"""A checksum covers this many bytes of a file, fewer at its end. Nearly every sample has one checksum, and a small read
of a file of gigabytes reads no more than this to check the bytes."""

CHUNK_SIZE_MAX = 1 << 16
"""The largest --chunk-size of an earlier version, whose packs are read. Now it is one less."""

MANIFEST_MAX_BYTES = 1 << 28
"""Enough for millions of class names. A longer file is not a manifest and is not read."""

MOST_DEPTH = 16
"""Three times that of a manifest. The text that the checksum is of has each value on an indented line, so deep lists
would be a thousand times as long in it, and take hours."""

TEXT_MOST_TIMES = 8
"""A manifest that was written without blanks becomes no longer than this when it is written as here."""

GROUP_GAP_MAX_BYTES = 1 << 20
"""One header lies between two files of a sample, and no path is long enough for a header of this length."""

_TREE = {**COLUMNS, **NAMES}
_POSITIONS = {"cells": "int32", "group_start": "int32", "shard": "int32", "data_at": "int64"}
ARRAYS = {**_TREE, **CLASSES, **_POSITIONS, "sums": "uint64"}
_SHARD_NAME = re.compile(r"(samples|tree)-[0-9]{6,}\.tar")

Sums = npt.NDArray[np.uint64]


class DamagedDatasetError(Exception):
    """A packed dataset is damaged. The text names the place."""


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """All facts about a packed dataset, without reading a shard.

    ``sums``      uint64[B]: XXH3-64 of each SUM_BLOCK_BYTES of each regular file, in the order of the tree
    ``block_at``  int64[N + 1]: the index in ``sums`` of an entry's first block
    ``seed``      of the layout
    ``asked``     the options of the pack that decided on classes: classes, samples, groups
    ``checksum``  of the manifest; identifies the dataset
    ``versions``  int64[shards, 3]: the length, mtime and inode of shards that have no checksums (`packed.archives`)
    """

    catalog: Catalog
    cells: Cells
    positions: Positions
    sums: Sums
    block_at: npt.NDArray[np.int64]
    seed: int
    asked: dict[str, Any]
    checksum: str
    versions: npt.NDArray[np.int64] | None = None


LASTING_ERRORS = frozenset(
    {errno.EACCES, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.EPERM}
)
"""What a path is, or who may read it: the next look finds the same."""


def is_packed(folder_fd: int) -> bool:
    """Whether the directory holds a packed dataset: whole, damaged, or unfinished.

    Raises OSError if storage fails: at the next look it may answer, and a packed dataset would pass for plain files.
    """
    try:
        fd = os.open(MANIFEST, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder_fd)
        with open(fd, "rb", buffering=0) as file:
            if FORMAT.encode() in file.read(1 << 12):
                return True
    except OSError as error:
        if error.errno not in LASTING_ERRORS:
            raise
    try:
        names = set(os.listdir(folder_fd))
    except OSError as error:
        if error.errno not in LASTING_ERRORS:
            raise
        return False
    has_shards = any(_SHARD_NAME.fullmatch(name) for name in names)
    # Classes, and what others make of shards, may be in a folder of this name too.
    has_index = FOLDER in names and any(_exists(f"{FOLDER}/{name}.npy", folder_fd) for name in ARRAYS)
    # A pack that was interrupted early has no shard yet.
    return (has_index or bool(names & {PACKING, MANIFEST})) and (has_shards or names <= {FOLDER, PACKING})


def _exists(path: str, folder_fd: int) -> bool:
    try:
        os.lstat(path, dir_fd=folder_fd)
    except OSError as error:
        if error.errno not in LASTING_ERRORS:
            raise
        return False
    return True


def block_offsets(tree: Tree) -> npt.NDArray[np.int64]:
    """int64[N + 1]: the index of each entry's first checksum."""
    sizes = np.where(tree.kind_mask(stat.S_IFREG), tree.size, 0)
    return np.concatenate([[0], np.cumsum(-(-sizes // SUM_BLOCK_BYTES))]).astype(np.int64)


def arrays_of(catalog: Catalog, cells: Cells, positions: Positions) -> dict[str, npt.NDArray[Any]]:
    """All arrays of the index except the checksums, by name."""
    tree = catalog.tree
    return {
        **{name: getattr(tree, name) for name in _TREE},
        **{name: getattr(catalog, name) for name in CLASSES},
        "cells": cells.cells,
        "group_start": cells.group_start,
        "shard": positions.shard,
        "data_at": positions.data_at,
    }


def save_arrays(folder: Path, arrays: dict[str, npt.NDArray[Any]]) -> dict[str, dict[str, Any]]:
    """Write arrays into ``folder``. Return their records."""
    return {name: array_files.save(folder, name, values.astype(ARRAYS[name])) for name, values in arrays.items()}


def describe(
    catalog: Catalog, cells: Cells, positions: Positions, *, seed: int, asked: dict[str, Any]
) -> dict[str, Any]:
    """The manifest of a dataset, without the records of its arrays."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "seed": seed,
        "chunk_size": cells.chunk_size,
        "asked": asked,
        **described(catalog, line=catalog.verdict.line.removesuffix(TURN_OFF)),
        "shards": [{"name": n, "bytes": b} for n, b in zip(positions.shard_names, positions.shard_bytes, strict=True)],
    }


def seal(manifest: dict[str, Any]) -> bytes:
    """The manifest as bytes, with its own checksum in it."""
    return _text({**manifest, "checksum": _checksum(manifest)})


def _text(manifest: dict[str, Any], most_bytes: float = math.inf) -> bytes:
    """The bytes of a manifest. Raises ValueError if they are more than ``most_bytes``."""
    # Not sorted: it begins with the format's name (see `is_packed`), and JSON keeps the order.
    pieces, length = [], 0
    for piece in json.JSONEncoder(indent=1).iterencode(manifest):
        length += len(piece)
        if length > most_bytes:
            raise ValueError(f"it would be longer than {most_bytes:,.0f} bytes")
        pieces.append(piece)
    return "".join(pieces).encode() + b"\n"


def _is_deep(value: Any, most: int) -> bool:
    """Whether lists and objects lie in each other more than ``most`` times."""
    inner = value.values() if isinstance(value, dict) else value
    return most == 0 or any(_is_deep(each, most - 1) for each in inner if isinstance(each, dict | list))


def _checksum(manifest: dict[str, Any], most_bytes: float = math.inf) -> str:
    return xxhash.xxh3_128_hexdigest(_text(manifest, most_bytes))


def load_index(folder: Path, is_needed: Callable[[int, str], bool] = lambda _shard, _name: True) -> Index:
    """Load and check the index of the packed dataset at ``folder``. Shards that are not needed may be absent.

    Raises:
        DamagedDatasetError: the text names the file and the fault.
    """
    manifest = read_manifest(folder)
    try:
        must_be_text(manifest)
        arrays = {name: array_files.load(folder / FOLDER, name, manifest["arrays"][name]) for name in ARRAYS}
        for name, dtype in ARRAYS.items():
            if str(arrays[name].dtype) != dtype or arrays[name].ndim != (2 if name == "cells" else 1):
                _damaged(folder, f"the array {name} has the wrong type")
        if not 1 <= arrays["cells"].shape[1] <= CHUNK_SIZE_MAX or arrays["cells"].shape[1] != manifest["chunk_size"]:
            _damaged(folder, "the chunks have another size than in the manifest")
        index = _assemble(manifest, arrays)
        wrong = wrong_tree(index.catalog.tree) or wrong_catalog(index.catalog) or _wrong_cells(index)
        wrong = wrong or _wrong_positions(index)
    except array_files.DamagedArrayError as error:
        raise DamagedDatasetError(str(error)) from None
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, RecursionError) as error:
        _damaged(folder, f"the index has an invalid value ({type(error).__name__}: {error})")
    if wrong:
        _damaged(folder, wrong)
    for shard, (name, length) in enumerate(zip(index.positions.shard_names, index.positions.shard_bytes, strict=True)):
        if is_needed(shard, name) or os.path.lexists(folder / name):
            _check_shard(folder / name, length)
    return index


def shards_at(node: int, nodes: int) -> Callable[[int, str], bool]:
    """Whether node ``node`` of ``nodes`` needs a shard (by number and name), if storage is not shared.

    Shards of samples are dealt to the nodes in turn. Every node needs the shards of files that are not redirected.
    """
    return lambda shard, name: not name.startswith("samples-") or shard % nodes == node


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest. Raises DamagedDatasetError if it is damaged or of an unknown version."""
    path = folder / MANIFEST
    try:
        with array_files.open_plain(path) as file:
            if os.fstat(file.fileno()).st_size > MANIFEST_MAX_BYTES:
                raise DamagedDatasetError(f"{path} is longer than any manifest")
            return parse_manifest(file.read(), str(path))
    except FileNotFoundError:
        if (folder / PACKING).is_dir():
            what = "the pack is unfinished; run the same redoxfs pack again to resume it"
        else:
            what = "the manifest is missing; pack the dataset again"
        raise DamagedDatasetError(f"{folder}: {what}") from None
    except OSError as error:
        raise DamagedDatasetError(f"{path}: {error.strerror or error}") from None


def parse_manifest(text: bytes, where: str) -> dict[str, Any]:
    """The manifest that a text is. Raises DamagedDatasetError, as `read_manifest`."""
    try:
        manifest = json.loads(text)
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise DamagedDatasetError(f"{where} is not the manifest of a packed dataset, or is damaged")
        if _is_deep(manifest, MOST_DEPTH):
            raise ValueError("lists in lists")
        if manifest.pop("checksum", None) != _checksum(manifest, TEXT_MOST_TIMES * len(text)):
            raise DamagedDatasetError(f"{where} is damaged: its checksum is wrong")
    except (ValueError, RecursionError):
        raise DamagedDatasetError(f"{where} is damaged: it is not JSON, or not that of a manifest") from None
    if manifest.get("version") != VERSION:
        raise DamagedDatasetError(
            f"{where} is of format version {manifest.get('version')!r:.20}; this redoxfs reads version {VERSION}"
        )
    return manifest


def _damaged(folder: Path, what: str) -> NoReturn:
    raise DamagedDatasetError(f"{folder}: {what}; pack the dataset again")


def _check_shard(path: Path, length: int) -> None:
    try:
        found = os.lstat(path)
    except OSError as error:
        raise DamagedDatasetError(f"{path}: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise DamagedDatasetError(f"{path} is not a regular file")
    if found.st_size != length:
        raise DamagedDatasetError(f"{path} is {found.st_size:,} bytes long instead of {length:,}")


def tree_of(arrays: Mapping[str, npt.NDArray[Any]], *, skipped: int, control_left_out: int) -> Tree:
    """The tree in the arrays. Columns that only a scan needs (inodes, devices, extensions) are zero.

    Raises:
        ValueError: they are not a tree.
    """
    first_child, children = children_of([arrays[name] for name in COLUMNS], arrays["parent"])
    count = len(children)
    nowhere = np.zeros(1, np.uint64)
    return Tree(
        **{name: arrays[name] for name in _TREE},
        first_child=first_child,
        children=children,
        inode=np.broadcast_to(nowhere, count),
        device=np.broadcast_to(nowhere, count),
        extension=np.broadcast_to(np.zeros(1, np.int32), count),
        link_device=np.broadcast_to(nowhere, len(arrays["link_entry"])),
        link_inode=np.broadcast_to(nowhere, len(arrays["link_entry"])),
        extensions=(b"",),
        roots=(),
        skipped=skipped,
        control_left_out=control_left_out,
    )


def positions_of(arrays: Mapping[str, npt.NDArray[Any]], shards: Sequence[dict[str, Any]]) -> Positions:
    """The positions of the entries. ``shards`` is the manifest's list."""
    return Positions(
        shard=arrays["shard"],
        data_at=arrays["data_at"],
        shard_names=tuple(str(shard["name"]) for shard in shards),
        shard_bytes=tuple(int(shard["bytes"]) for shard in shards),
    )


def _assemble(manifest: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> Index:
    skipped, left_out = int(manifest["skipped"]), int(manifest["control_left_out"])
    tree = tree_of(arrays, skipped=skipped, control_left_out=left_out)
    count = len(tree)
    if len(arrays["shard"]) != count or len(arrays["data_at"]) != count:
        raise ValueError("the columns of the positions differ in length")
    catalog = catalog_of(tree, manifest, {name: arrays[name] for name in CLASSES})
    return Index(
        catalog=catalog,
        cells=Cells(arrays["cells"], arrays["group_start"]),
        positions=positions_of(arrays, manifest["shards"]),
        sums=arrays["sums"],
        block_at=block_offsets(tree),
        seed=int(manifest["seed"]),
        asked=dict(manifest["asked"]),
        checksum=_checksum(manifest),
    )


def _wrong_cells(index: Index) -> str:
    cells, starts = index.cells.cells, index.cells.group_start
    class_of = index.catalog.class_of
    samples = cells[cells >= 0]
    if (cells < -1).any() or not in_range(samples, len(class_of)) or len(samples) != len(class_of):
        return "the chunks do not hold each sample once"
    if (np.bincount(samples, minlength=len(class_of)) != 1).any():
        return "the chunks do not hold each sample once"
    if not len(starts) or starts[0] or starts[-1] != len(cells) or (starts[1:] <= starts[:-1]).any():
        return "the chunks are grouped wrong"
    if len(cells):
        label = np.append(class_of, -1)[cells]
        highest = np.maximum.reduceat(label, starts[:-1], axis=0)
        lowest = np.minimum.reduceat(np.where(label < 0, np.iinfo(label.dtype).max, label), starts[:-1], axis=0)
        if (lowest < highest).any():
            return "the chunks mix classes"
    return ""


def _wrong_positions(index: Index) -> str:
    positions, tree = index.positions, index.catalog.tree
    if not all(_SHARD_NAME.fullmatch(name) for name in positions.shard_names):
        return "a shard has an impossible name"
    if len(set(positions.shard_names)) != len(positions.shard_names):
        return "a shard is listed twice"
    if not in_range(positions.shard, len(positions.shard_names)):
        return "an entry lies in no shard"
    sizes = np.where(tree.kind_mask(stat.S_IFREG), tree.size, 0)
    room = np.array(positions.shard_bytes, np.int64)[positions.shard] - positions.data_at
    outside = (positions.data_at < BLOCK_BYTES) | (positions.data_at % BLOCK_BYTES != 0) | (sizes > room)
    if outside.any():
        return f"{show(tree.path(int(np.flatnonzero(outside)[0])))} lies outside its shard"
    if _are_apart(index.catalog, positions):
        return "the files of a sample do not lie side by side"
    if len(index.sums) != index.block_at[-1]:
        return "the number of checksums is wrong"
    return ""


def _are_apart(catalog: Catalog, positions: Positions) -> bool:
    """Whether a file of a sample does not follow the one before it. A sweep reads all bytes between them."""
    members = catalog.members
    beside = catalog.sample_of[members[1:]] == catalog.sample_of[members[:-1]]
    before, after = members[:-1][beside], members[1:][beside]
    gap = positions.data_at[after] - positions.data_at[before] - catalog.tree.size[before]
    other_shard = positions.shard[after] != positions.shard[before]
    return bool((other_shard | (gap < 0) | (gap > GROUP_GAP_MAX_BYTES)).any())
