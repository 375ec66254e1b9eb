"""Tar archives for tests, and what is indexed of them."""

import io
import os
import random
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from packs import opened

from redoxfs.dataset import Tree
from redoxfs.packed.archive_cache import ArchiveIndex
from redoxfs.packed.archive_files import OnDisk
from redoxfs.packed.archives import load_or_index
from redoxfs.testing import make_source

LONG_AGO_S = 1_600_000_000
"""A time of archives that are not new, so that a kept index is trusted."""


def member(name: str, data: bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.mtime = LONG_AGO_S
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def write_tar(path: Path, members: Iterable[tuple[tarfile.TarInfo, bytes]], kind: int = tarfile.PAX_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=kind) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    os.utime(path, (LONG_AGO_S, LONG_AGO_S))
    return path


def tar_of(path: Path, files: Mapping[str, bytes]) -> Path:
    return write_tar(path, (member(name, data) for name, data in files.items()))


def indexed(folder: Path, *names: str, cache: Path | None = None, **options: object) -> ArchiveIndex:
    """The index of archives in a folder, kept below it or in ``cache``."""
    load: Callable[..., ArchiveIndex] = load_or_index
    with opened(folder) as fd:
        files = OnDisk(fd, [(name, name) for name in names])
        return load(str(folder), files, cache or folder / "cache", **options)


def files_of(folder: Path, found: ArchiveIndex) -> dict[str, bytes]:
    """The path and the bytes of each file of an index."""
    tree = found.grown.tree
    contents = {}
    for entry in range(len(tree)):
        if tree.is_file(entry):
            archive = found.archives[int(found.grown.shard[entry])]
            with open(folder / archive.path, "rb") as file:
                data = os.pread(file.fileno(), int(tree.size[entry]), int(found.grown.data_at[entry]))
            contents[os.fsdecode(tree.path(entry))] = data
    return contents


def paths_of(tree: Tree) -> list[str]:
    return sorted(os.fsdecode(tree.path(entry)) for entry in range(1, len(tree)))


def two_archives(folder: Path) -> Path:
    """The dataset of `StoreTests` in ``s-0.tar`` and, with its large files, ``s-1.tar``, each shuffled; its folder."""
    root = make_source(folder / "source")
    names = [str(path.relative_to(root)) for path in sorted(root.rglob("*")) if path.is_file()]
    random.Random(5).shuffle(names)
    for number in range(2):
        own = [name for name in names if ("large" in name) == bool(number)]
        tar_of(folder / f"s-{number}.tar", {name: (root / name).read_bytes() for name in own})
    return root
