"""A catalog in one file, for mounts that must not scan: `redoxfs catalog export` and `mount --catalog`.

    FORMAT, version, length of the file, length of the description, XXH3-128 of all other bytes
    the description, as JSON
    the arrays, each at a multiple of 64 bytes

It holds the tree and what was decided about it: a node that has read it serves what every other node serves, whatever
lies beside its own copy of the data. It has no absolute path, so the data may lie elsewhere, on another machine.

`agree` compares a sample of the file with a source. Other inode numbers and times are no difference, because a copy of
the data has others.

Invariant: a file with the final name is complete. It is written under another name, synced, and renamed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import struct
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from redoxfs.arrays import distinct
from redoxfs.dataset.catalog import Catalog
from redoxfs.dataset.errors import SourceError, show
from redoxfs.dataset.stored import (
    CLASSES,
    COLUMNS,
    NAMES,
    catalog_of,
    children_of,
    described,
    must_be_text,
    wrong_catalog,
    wrong_tree,
)
from redoxfs.dataset.tree import CONTROL_NAME, Tree
from redoxfs.linux import durable
from redoxfs.linux.beneath import open_directory
from redoxfs.linux.descriptors import opened
from redoxfs.linux.times import mtime_ns

FORMAT = b"redoxfs catalog\n"
VERSION = 1

_HEAD = struct.Struct("<16sQQQ16s")
_ALIGNMENT = 64
_BLOCK_BYTES = 1 << 24
# A longer description would be that of millions of classes. It is bounded because a forged length must cost no memory.
_DESCRIPTION_MAX_BYTES = 1 << 28

_COLUMNS = {**COLUMNS, **dict.fromkeys(("inode", "device"), "uint64"), "extension": "int32"}
_TREE = {**_COLUMNS, **NAMES, **dict.fromkeys(("link_device", "link_inode"), "uint64")}
_ARRAYS = {**_TREE, **CLASSES}

# What `agree` compares. On network storage each is a round trip, or a few, and 16 are under way at once: with 10 ms,
# a tenth of a second.
SAMPLED_DIRECTORIES = SAMPLED_FILES = 64
_AT_ONCE = 16
# Names of sampled directories that are compared, where a directory has another time than in the catalog.
_NAMES_MAX = 20_000


class DamagedCatalogError(Exception):
    """A file is not a catalog, is damaged, or has another version. The text is one line that names it."""


@dataclass(frozen=True, slots=True, eq=False)
class CatalogFile:
    """What a file has. `about` is for people, apart from `asked`: the options that decided on samples and classes."""

    catalog: Catalog
    asked: dict[str, Any]
    about: dict[str, Any]


def write_catalog(path: Path, catalog: Catalog, *, asked: dict[str, Any], about: dict[str, Any]) -> int:
    """Write a file through to the disk, in the place of one with this name. Returns its length. Raises OSError."""
    tree = catalog.tree
    arrays: dict[str, NDArray[Any]] = {
        **{name: getattr(tree, name).astype(kind, copy=False) for name, kind in _TREE.items()},
        **{name: getattr(catalog, name).astype(kind, copy=False) for name, kind in CLASSES.items()},
    }
    stored, records = [], {}
    for name, values in arrays.items():
        # Owners, modes and devices are mostly the same everywhere.
        is_constant = len(values) > 1 and bool((values == values[0]).all())
        records[name] = {"length": len(values), "constant": is_constant}
        stored.append(np.ascontiguousarray(values[:1] if is_constant else values))
    description = json.dumps(
        {
            **described(catalog, line=catalog.verdict.line),
            "extensions": [extension.hex() for extension in tree.extensions],
            "asked": asked,
            "about": about,
            "arrays": records,
        }
    ).encode()
    parts = [memoryview(description)]
    at = _HEAD.size + len(description)
    for values in stored:
        parts += [memoryview(bytes(-at % _ALIGNMENT)), values.view(np.uint8).data]
        at += -at % _ALIGNMENT + values.nbytes
    lengths = (VERSION, at, len(description))
    digest = xxhash.xxh3_128(struct.pack("<QQQ", *lengths))
    for part in parts:
        digest.update(part)
    folder = path.parent
    fd, making = tempfile.mkstemp(prefix=f".{path.name[:200]}.", dir=folder)
    try:
        with open(fd, "wb", buffering=0) as file:
            for part in (memoryview(_HEAD.pack(FORMAT, *lengths, digest.digest())), *parts):
                rest = part
                while rest:
                    rest = rest[file.write(rest[:_BLOCK_BYTES]) :]
            # It has no secret that a listing of the source does not tell. Other users' containers shall read it.
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        durable.rename(Path(making), path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(making)
        raise
    return at


def read_catalog(path: Path) -> CatalogFile:
    """Read a file into memory, and check all of it.

    Raises:
        DamagedCatalogError: it is not what `write_catalog` wrote.
        OSError: it cannot be read.
    """
    data, description_bytes = _read(path)
    try:
        description = json.loads(bytes(data[_HEAD.size : _HEAD.size + description_bytes]))
        must_be_text(description)
        arrays = _arrays(data, description, _HEAD.size + description_bytes)
        first_child, children = children_of([arrays[name] for name in _COLUMNS], arrays["parent"])
        tree = Tree(
            **{name: arrays[name] for name in _TREE},
            first_child=first_child,
            children=children,
            extensions=tuple(bytes.fromhex(text) for text in description["extensions"]),
            roots=(),
            skipped=int(description["skipped"]),
            control_left_out=int(description["control_left_out"]),
        )
        catalog = catalog_of(tree, description, arrays)
        if not ((tree.extension >= 0) & (tree.extension < len(tree.extensions))).all():
            raise ValueError("an extension is not in the list")
        wrong = wrong_tree(tree) or wrong_catalog(catalog)
        asked, about = dict(description["asked"]), dict(description["about"])
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, RecursionError) as error:
        wrong = f"an invalid value ({type(error).__name__}: {error})"
    if wrong:
        raise DamagedCatalogError(f"{path} is damaged: {wrong}; export it again")
    return CatalogFile(catalog, asked, about)


def _read(path: Path) -> tuple[memoryview, int]:
    """The bytes of a file, whose checksum is right, and the length of its description."""
    # A FIFO must not block the open.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise DamagedCatalogError(f"{path} is not a regular file")
        length = status.st_size
        head = file.read(_HEAD.size)
        if head[: len(FORMAT)] != FORMAT or len(head) < _HEAD.size:
            raise DamagedCatalogError(f"{path} is not a catalog that redoxfs catalog export wrote")
        _, version, expected, description_bytes, digest = _HEAD.unpack(head)
        if version != VERSION:
            raise DamagedCatalogError(
                f"{path} is a catalog of format version {version}; this redoxfs reads version {VERSION}; "
                "export it again"
            )
        if length != expected or description_bytes > min(length - _HEAD.size, _DESCRIPTION_MAX_BYTES):
            raise DamagedCatalogError(
                f"{path} is damaged: {length:,} bytes long instead of {expected:,}; export it again"
            )
        data = np.empty(length, np.uint8).data
        at, sum_ = _HEAD.size, xxhash.xxh3_128(struct.pack("<QQQ", version, expected, description_bytes))
        while at < length:
            got = file.readinto(data[at : at + _BLOCK_BYTES])
            if not got:
                raise DamagedCatalogError(f"{path} was truncated while it was read")
            sum_.update(data[at : at + got])
            at += got
    if sum_.digest() != digest:
        raise DamagedCatalogError(f"{path} is damaged: its checksum is wrong; export it again")
    return data.toreadonly(), description_bytes


def _arrays(data: memoryview, description: dict[str, Any], at: int) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    for name, kind in _ARRAYS.items():
        record = description["arrays"][name]
        at += -at % _ALIGNMENT
        values: NDArray[Any] = np.frombuffer(data, kind, 1 if record["constant"] else record["length"], at)
        at += values.nbytes
        if record["constant"]:
            # Each entry has nine bytes or more in the file, so no column is longer than that.
            if not 0 < record["length"] <= len(data):
                raise ValueError(f"the column {name} has an impossible length")
            values = np.full(record["length"], values[0])
        arrays[name] = values
    if at != len(data):
        raise ValueError("bytes are left over")
    return arrays


# The source


@dataclass(frozen=True, slots=True, eq=False)
class AtSource:
    """A catalog for a source. `has_same_times`: the files in the sample have the times that they had at the scan."""

    catalog: Catalog
    has_same_times: bool


def at_source(catalog: Catalog, root_fd: int, roots: tuple[bytes, ...]) -> AtSource:
    """The catalog of another scan for the directory that `root_fd` is open on, after a look at a sample of it.

    Raises:
        SourceError: something in the sample is missing, of another kind or of another length, or a directory has other
            names in it. The text names the first such path.
    """
    tree = catalog.tree
    directories = _spread(np.flatnonzero(tree.kind_mask(stat.S_IFDIR)), SAMPLED_DIRECTORIES)
    files = _spread(np.flatnonzero(tree.kind_mask(stat.S_IFREG)), SAMPLED_FILES)
    left = _NAMES_MAX
    checks: list[Callable[[], tuple[bool, bool]]] = [partial(_agrees, tree, root_fd, entry) for entry in files.tolist()]
    for entry in directories.tolist():
        is_listed = int(tree.children[entry]) <= left
        left -= int(tree.children[entry]) if is_listed else 0
        checks.append(partial(_agrees_inside, tree, root_fd, entry, lists=is_listed))
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="redoxfs-sample") as pool:
        futures = [pool.submit(check) for check in checks]
        try:
            found = [future.result() for future in futures]
        finally:
            pool.shutdown(cancel_futures=True)
    own = os.fstat(root_fd)
    if all(same_inode for same_inode, _ in found):
        inode, device = tree.inode, tree.device
        if (device == device[0]).all():
            # Network filesystems get a new device number at each mount.
            device = np.full(len(tree), own.st_dev, np.uint64)
    else:
        # A copy: its numbers are not known, and no number is better than a wrong one.
        inode = device = np.zeros(len(tree), np.uint64)
    here = replace(catalog, tree=replace(tree, inode=inode, device=device, roots=roots))
    return AtSource(here, all(same_time for _, same_time in found[: len(files)]))


def _spread(entries: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Some of the entries, the first and the last among them."""
    return entries[distinct(np.linspace(0, len(entries) - 1, min(count, len(entries))).astype(np.int64))]


def _differs(path: bytes, how: str) -> SourceError:
    return SourceError(f"{show(path)} {how}")


def _agrees(tree: Tree, root_fd: int, entry: int) -> tuple[bool, bool]:
    """Whether a file has the inode number and the time of the catalog. Raises SourceError if it is another one."""
    path = tree.path(entry)
    above, _, name = path.rpartition(b"/")
    try:
        with opened(open_directory(root_fd, above.split(b"/") if above else ())) as directory:
            found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError as error:
        raise _differs(path, _because(error)) from None
    if not stat.S_ISREG(found.st_mode):
        raise _differs(path, "is not a regular file here")
    if found.st_size != tree.size[entry]:
        raise _differs(path, f"has {found.st_size:,} bytes here and {int(tree.size[entry]):,} in the catalog")
    return found.st_ino == int(tree.inode[entry]), mtime_ns(found) == int(tree.mtime_ns[entry])


def _agrees_inside(tree: Tree, root_fd: int, entry: int, *, lists: bool) -> tuple[bool, bool]:
    """The same of a directory; with ``lists`` also its names, where its time is not that of the catalog."""
    path = tree.path(entry)
    try:
        with opened(open_directory(root_fd, path.split(b"/") if path else ())) as fd:
            found = os.fstat(fd)
            same_time = mtime_ns(found) == int(tree.mtime_ns[entry])
            names = None if same_time or not lists else {os.fsencode(name) for name in os.listdir(fd)}
    except OSError as error:
        raise _differs(path, _because(error)) from None
    if names is not None:
        expected = set(tree.names_of(tree.children_of(entry)))
        if entry == 0:
            names.discard(CONTROL_NAME)
        for missing in sorted(expected - names)[:1]:
            raise _differs(path + b"/" + missing if path else missing, "is in the catalog and not here")
        for more in sorted(names - expected):
            there = path + b"/" + more if path else more
            # A scan leaves out sockets, fifos and devices.
            if not tree.skipped or _is_scanned(root_fd, there):
                raise _differs(there, "is here and not in the catalog")
    return found.st_ino == int(tree.inode[entry]), same_time


def _is_scanned(root_fd: int, path: bytes) -> bool:
    try:
        mode = os.stat(path, dir_fd=root_fd, follow_symlinks=False).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)


def _because(error: OSError) -> str:
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
        return "is in the catalog and not here"
    return f"cannot be read: {error.strerror}"
