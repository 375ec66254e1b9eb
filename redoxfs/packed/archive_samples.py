"""The samples of archives and their chunks, kept between mounts beside the index.

They follow from the index, from the options and from the rules of `redoxfs.dataset` and of this room, whose sources are
part of the key. So an unchanged set is loaded, and anything else is made again. Like the index, it never fails a mount.
"""

from __future__ import annotations

import hashlib
import logging
import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import xxhash

from redoxfs import __version__, dataset
from redoxfs.chunks import Cells
from redoxfs.dataset import Catalog, ClassesError, Tree, build_catalog, show
from redoxfs.dataset.cache import keep_folder, kept_arrays, read_kept
from redoxfs.dataset.decision import is_table
from redoxfs.dataset.members import role_of
from redoxfs.dataset.stored import CLASSES, catalog_of, described, in_range
from redoxfs.packed.archive_cache import ArchiveIndex, kept_at
from redoxfs.packed.archive_contents import contents_of
from redoxfs.packed.archive_files import ArchiveSource
from redoxfs.packed.archive_groups import apart, other_key, scattered, shares_stems
from redoxfs.packed.archive_store import chunks_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Asked:
    """The options that decide on samples, as for `build_catalog`."""

    classes: str = "auto"
    samples: tuple[str, ...] = ()
    groups: str | None = None


def load_or_find(
    source: str, found: ArchiveIndex, cache_dir: Path, asked: Asked, files: ArchiveSource | None = None
) -> tuple[Catalog, Cells]:
    """The samples in archives, with what was found about them in the verdict, and their chunks.

    Args:
        source: what the user gave, as for the index.
        files: the archives, for labels in members.

    Raises:
        ClassesError, and with ``files`` UnusableArchiveError and OSError.
    """
    # A table is a file of its own, which may change.
    key = None if is_table(asked.classes) else _key(found, asked)
    kept = None if key is None else _load(cache_dir, source, key, found)
    if kept is not None:
        return kept
    catalog = catalog_of_archives(found, asked, files)
    cells = chunks_of(found, catalog)
    if key is not None:
        _keep(cache_dir, source, key, catalog, cells)
    return catalog, cells


def catalog_of_archives(found: ArchiveIndex, asked: Asked, files: ArchiveSource | None = None) -> Catalog:
    """The samples in archives. Raises as `load_or_find`."""
    tree, groups = found.grown.tree, asked.groups
    said = list(found.said)
    has_labels = role_of(asked.classes) is not None
    is_grouped = has_labels or (found.is_sharded and asked.classes != "none" and shares_stems(tree))
    if groups is None and is_grouped:
        groups = "stem"
        why = f"as --classes {asked.classes} asks for their labels" if has_labels else "as the archives are shards"
        said.append(f"files of one stem are one sample, {why} (--groups)")
        if (name := other_key(tree)) is not None:
            said.append(f"WebDataset's keys end at the first dot, and that of {show(name)} does not (--groups wds)")
    contents = None if files is None else partial(contents_of, found, files)
    catalog = build_catalog(tree, classes=asked.classes, samples=asked.samples, groups=groups, contents=contents)
    if len(catalog.members) != len(catalog.class_of):
        entry = apart(catalog, found.grown.shard)
        if entry >= 0:
            raise ClassesError(
                f"--groups {groups}: the files of {show(tree.path(entry))} lie in two archives; "
                "to keep the archives apart: --archives folders"
            )
        if count := scattered(catalog, found.grown.member):
            said.append(
                f"{count:,} sample{'s' * (count > 1)} whose files do not follow each other in the archive; "
                "webdataset makes several samples of each"
            )
    verdict = catalog.verdict
    if verdict.mode == "none" and asked.classes == "auto" and 0 < _labels(tree) == catalog.sample_files:
        said.append("each sample has a member KEY.cls; if that is its label: --classes member:cls")
    return replace(catalog, verdict=replace(verdict, saw=(*said, *verdict.saw)))


def _labels(tree: Tree) -> int:
    """How many members hold a label, by WebDataset's suffix."""
    return int((tree.extension == tree.extensions.index(b".cls")).sum()) if b".cls" in tree.extensions else 0


def _key(found: ArchiveIndex, asked: Asked) -> str:
    """A text that is another one for another index, other options or other rules."""
    what = _rules(), found.at_ns, found.checksum, found.is_sharded, found.said, found.archives, asked
    return xxhash.xxh3_128_hexdigest(repr(what).encode())


def _rules() -> str:
    digest = hashlib.blake2b(__version__.encode(), digest_size=16)
    for folder in (*dataset.__path__, os.path.dirname(__file__)):
        for path in sorted(Path(folder).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _keep(cache_dir: Path, source: str, key: str, catalog: Catalog, cells: Cells) -> None:
    manifest = {"key": key, **described(catalog, line=catalog.verdict.line)}
    arrays = {name: getattr(catalog, name) for name in CLASSES} | {"cells": cells.cells}
    try:
        keep_folder(kept_at(cache_dir, source, "samples"), manifest, arrays)
    except OSError as error:
        log.warning(
            "cannot keep the samples of %s in %s (%s); the next mount finds them again", source, cache_dir, error
        )


def _load(cache_dir: Path, source: str, key: str, found: ArchiveIndex) -> tuple[Catalog, Cells] | None:
    place = kept_at(cache_dir, source, "samples")
    try:
        manifest = read_kept(place)
        if manifest["key"] != key:
            return None
        arrays = kept_arrays(place, manifest, (*CLASSES, "cells"))
        catalog = catalog_of(found.grown.tree, manifest, arrays)
        cells = arrays["cells"]
        if not in_range(cells + 1, len(catalog.class_of) + 1):
            return None
        return catalog, Cells(cells, np.arange(len(cells) + 1, dtype=np.int32))
    except Exception as error:  # a damaged manifest can raise anything, and must not fail the mount
        log.debug("not reusing %s: %r", place, error)
        return None
