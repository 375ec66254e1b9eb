"""The index of archives, kept between mounts: the members of each archive, and the tree of all.

It is used like a kept scan (`redoxfs.dataset.cache`): an archive is as it was if it has its path, length, mtime, ctime
and inode, unless it was written less than 2 s before it was indexed. It never fails a mount.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redoxfs.dataset import Tree
from redoxfs.dataset.cache import RACY_NS, TREE_ARRAYS, keep_folder, kept_arrays, read_kept
from redoxfs.packed.archive_tree import MEMBER, Grown, Volume

FORMAT_VERSION = 2

_PLACES = ("shard", "data_at", "member")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Archive:
    """A file. ``path`` leads to it from the root, through no symlink; ``name`` is what the user calls it.

    An object has no inode and no ctime. Its ``e_tag`` is the server's, if there is one.
    """

    path: str
    name: str
    bytes: int
    mtime_ns: int
    inode: int
    mode: int
    uid: int
    gid: int
    e_tag: str | None = None
    ctime_ns: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class ArchiveIndex:
    """What archives hold.

    ``layout``      "tree", or "folders": one for each archive
    ``is_sharded``  they are shards of one dataset, by their names
    ``said``        a line for each kind of thing that is left out or odd
    ``read``        how many archives were read, rather than known
    ``at_ns``       the time of the index, which no other one of these archives has
    """

    archives: tuple[Archive, ...]
    grown: Grown
    layout: str
    is_sharded: bool
    said: tuple[str, ...]
    checksum: str
    read: int
    at_ns: int

    @property
    def versions(self) -> NDArray[np.int64]:
        """int64[n, 3]: length, mtime and inode of each archive, as C compares them."""
        found = np.zeros((len(self.archives), 3), np.int64)
        found[:, :2] = [(archive.bytes, archive.mtime_ns) for archive in self.archives]
        found.view(np.uint64)[:, 2] = [archive.inode for archive in self.archives]
        return found


def kept_at(cache_dir: Path, source: str, what: str = "archives") -> Path:
    """The folder of what is kept of a source."""
    return cache_dir / f"{what}-{hashlib.sha256(os.fsencode(source)).hexdigest()[:32]}"


def keep(
    cache_dir: Path,
    source: str,
    archives: Sequence[Archive],
    volumes: Mapping[int, Sequence[Volume]],
    at_ns: int,
    index: ArchiveIndex | None = None,
    *,
    asked: str = "",
    auto: str | None = None,
) -> None:
    """Keep the volumes that there are, and the tree if all are there.

    ``asked``: for which layout. ``auto``: what the rule chose, now or for a former mount.
    """
    listed = [volume for at in sorted(volumes) for volume in volumes[at]]
    arrays: dict[str, NDArray[Any]] = {
        "members": np.concatenate([np.empty(0, MEMBER), *(volume.members for volume in listed)]).view(np.uint8),
        "texts": np.frombuffer(b"".join(volume.texts for volume in listed), np.uint8),
    }
    manifest: dict[str, Any] = {
        "format": FORMAT_VERSION,
        "source": os.fsencode(source).hex(),
        "indexed_at_ns": at_ns,
        "archives": [asdict(archive) for archive in archives],
        "volumes": [
            (v.archive, v.inner.hex(), len(v.members), len(v.texts), v.left_out, v.has_end_mark, v.has_rest, v.fault)
            for v in listed
        ],
        "tree": None,
        "auto": auto,
    }
    if index is not None:
        tree = index.grown.tree
        arrays |= {name: getattr(tree, name) for name in TREE_ARRAYS}
        arrays |= {name: getattr(index.grown, name) for name in _PLACES}
        manifest["tree"] = {
            "layout": index.layout,
            "asked": asked,
            "is_sharded": index.is_sharded,
            "has_faults": any(volume.fault for volume in listed),
            "said": index.said,
            "checksum": index.checksum,
            "extensions": [extension.hex() for extension in tree.extensions],
            "skipped": tree.skipped,
            "control_left_out": tree.control_left_out,
        }
    try:
        keep_folder(kept_at(cache_dir, source), manifest, arrays)
    except OSError as error:
        log.warning("cannot keep the index of %s in %s (%s); the next mount reads it again", source, cache_dir, error)


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """An index as it was kept, and its time. Its arrays are loaded when they are needed."""

    place: Path
    manifest: dict[str, Any]
    at_ns: int

    @classmethod
    def load(cls, cache_dir: Path, source: str) -> Kept | None:
        """What is kept of a source, if anything can be used."""
        # Another command may be about to put its own in place of what was there.
        return cls._load(cache_dir, source) or cls._load(cache_dir, source)

    @classmethod
    def _load(cls, cache_dir: Path, source: str) -> Kept | None:
        place = kept_at(cache_dir, source)
        try:
            manifest = read_kept(place)
            if manifest["format"] != FORMAT_VERSION or manifest["source"] != os.fsencode(source).hex():
                return None
            at_ns = int(manifest["indexed_at_ns"])
        except Exception as error:  # a damaged manifest can raise anything, and must not fail the mount
            log.debug("not reusing %s: %r", place, error)
            return None
        return cls(place, manifest, at_ns)

    @property
    def auto(self) -> str | None:
        """The layout that the rule chose; None if it did not."""
        found = self.manifest.get("auto")
        return found if isinstance(found, str) else None

    def is_of(self, archives: Sequence[Archive], made_at_ns: int | None = None) -> bool:
        """Whether it has the tree of these archives. ``made_at_ns``: the time of an index that was made of them."""
        try:
            before = self.manifest["archives"]
            if self.manifest["tree"] is None or len(before) != len(archives):
                return False
            pairs = zip(archives, before, strict=True)
            return self.at_ns == made_at_ns or all(self._is_current(now, then) for now, then in pairs)
        except Exception as error:  # as in load
            log.debug("not reusing %s: %r", self.place, error)
            return False

    def index(
        self, archives: tuple[Archive, ...], layout: str, *, salvages: bool, made_at_ns: int | None = None
    ) -> ArchiveIndex | None:
        """The whole index, if nothing has changed. ``made_at_ns``: as in `is_of`."""
        try:
            tree = self.manifest["tree"]
            if not self.is_of(archives, made_at_ns):
                return None
            if layout not in (tree["asked"], tree["layout"]) or (tree["has_faults"] and not salvages):
                return None
            made = Tree(
                **kept_arrays(self.place, self.manifest, TREE_ARRAYS),
                extensions=tuple(bytes.fromhex(text) for text in tree["extensions"]),
                roots=(),
                skipped=int(tree["skipped"]),
                control_left_out=int(tree["control_left_out"]),
            )
            grown = Grown(made, **kept_arrays(self.place, self.manifest, _PLACES), blocked=0, lost=0)
            return ArchiveIndex(
                archives,
                grown,
                tree["layout"],
                tree["is_sharded"],
                tuple(tree["said"]),
                tree["checksum"],
                0,
                self.at_ns,
            )
        except Exception as error:  # as above
            log.debug("not reusing %s: %r", self.place, error)
            return None

    def volumes(self, archives: Sequence[Archive], *, salvages: bool) -> dict[int, list[Volume]]:
        """Those of the archives that are as they were, by their numbers now."""
        now = {archive.path: at for at, archive in enumerate(archives)}
        found: dict[int, list[Volume]] = {}
        try:
            arrays = kept_arrays(self.place, self.manifest, ("members", "texts"))
            members, texts = arrays["members"].view(MEMBER), arrays["texts"].tobytes()
            before = self.manifest["archives"]
            first = text = 0
            faulty = {number for number, *_, fault in self.manifest["volumes"] if fault and not salvages}
            for number, inner, count, text_bytes, left_out, has_end_mark, has_rest, fault in self.manifest["volumes"]:
                at = now.get(before[number]["path"], -1)
                if at >= 0 and number not in faulty and self._is_current(archives[at], before[number]):
                    part = members[first : first + count], texts[text : text + text_bytes]
                    volume = Volume(at, bytes.fromhex(inner), *part, tuple(left_out), has_end_mark, has_rest, fault)
                    found.setdefault(at, []).append(volume)
                first += count
                text += text_bytes
        except Exception as error:  # as above
            log.debug("not reusing %s: %r", self.place, error)
            return {}
        return found

    def _is_current(self, now: Archive, before: dict[str, Any]) -> bool:
        # A file that was written while the clock stood may change without another time.
        is_certain = now.e_tag is not None or now.mtime_ns < self.at_ns - RACY_NS
        return Archive(**before) == now and is_certain
