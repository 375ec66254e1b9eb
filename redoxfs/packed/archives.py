"""The index of tar archives: their members, and the tree that they make. It is kept like the scan of a directory.

C reads the headers (native/archive.c), several archives at once. An archive whose length, times and inode are those of
the kept index is not read again. While a long index is made, what there is of it is kept now and then, so that an
interrupted one goes on.

In an archive whose files all are archives themselves, as ImageNet's is, each of these is a folder.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import xxhash

from redoxfs.dataset import show
from redoxfs.native import index_archives
from redoxfs.packed.archive_cache import Archive, ArchiveIndex, Kept, keep
from redoxfs.packed.archive_files import ArchiveSource, UnusableArchiveError
from redoxfs.packed.archive_sets import SUFFIX, sets_of, stem_of
from redoxfs.packed.archive_tree import (
    DIRECTORY,
    FILE,
    MEMBER,
    Grown,
    Owned,
    RepeatedError,
    TooManyDirectoriesError,
    Volume,
    grow,
)
from redoxfs.packed.headers import BLOCK_BYTES
from redoxfs.packed.index import DamagedDatasetError

KEEP_EVERY_S = 60.0

HEADERS_MAX = 1 << 26
"""Of all archives together. ImageNet has 1.3 million; a list of headers alone should not fill the memory."""

SALVAGE = "to serve what comes before: --salvage"

COMPRESSED = {
    b"\x1f\x8b": ("gzip", "gunzip -k"),
    b"BZh": ("bzip2", "bunzip2 -k"),
    b"\xfd7zXZ": ("xz", "unxz -k"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd"),
    b"\x04\x22\x4d\x18": ("lz4", "unlz4"),
}
"""By their first bytes: the program, and the command that unpacks it beside the archive."""

ZIPS = b"PK\x03\x04", b"PK\x05\x06"
"""The first bytes of a zip file, and of an empty one."""

POINTER, POINTER_BYTES = b"version ", 1024
"""What Git LFS leaves in the place of a file that it has not fetched: its first bytes, and less than so many in all."""

Progress = Callable[[int, int], object]
"""Called with the headers and the archives so far."""


def load_or_index(
    source: str,
    files: ArchiveSource,
    cache_dir: Path,
    *,
    layout: str = "auto",
    rescan: bool = False,
    salvages: bool = False,
    progress: Progress | None = None,
) -> ArchiveIndex:
    """The index of the archives that ``files`` has.

    Args:
        source: what the user gave; the key of the kept index.
        layout: "auto", "tree" or "folders".
        salvages: of a damaged archive, the members before the fault are served.

    Raises:
        UnusableArchiveError: a file is no archive, or cannot be served.
        DamagedDatasetError: an archive is damaged.
        OSError: a file cannot be read; its ``filename`` is the name.
    """
    archives = files.looked_at()
    known = Kept.load(cache_dir, source)
    kept = None if rescan else known
    whole = None if kept is None else kept.index(archives, layout, salvages=salvages)
    if whole is not None:
        return whole
    volumes = {} if kept is None else kept.volumes(archives, salvages=salvages)
    missing = [at for at in range(len(archives)) if at not in volumes]
    began_ns = time.time_ns()
    before = None if known is None else known.auto
    last_s, unkept = time.monotonic(), 0
    try:
        for begin in range(0, len(missing), files.at_once):
            some = missing[begin : begin + files.at_once]
            shown = None if progress is None else _beyond(progress, volumes)
            volumes.update(_indexed(files, archives, some, salvages=salvages, progress=shown))
            unkept += len(some)
            if time.monotonic() - last_s > KEEP_EVERY_S:
                keep(cache_dir, source, archives, volumes, began_ns, auto=before)
                last_s, unkept = time.monotonic(), 0
    except BaseException:
        # The next mount goes on from here.
        if unkept:
            keep(cache_dir, source, archives, volumes, began_ns, auto=before)
        raise
    listed = [volume for at in range(len(archives)) for volume in volumes[at]]
    index = _grown(archives, listed, layout, len(missing), began_ns)
    if layout == "auto" and before not in (None, index.layout):
        raise UnusableArchiveError(
            f"{source}: with the archives of the last mount it was --archives {before}, and now it would be --archives "
            f"{index.layout}, which changes all paths; give one of the two"
        )
    chosen = index.layout if layout == "auto" else before
    keep(cache_dir, source, archives, volumes, began_ns, index, asked=layout, auto=chosen)
    return index


def _beyond(progress: Progress, volumes: dict[int, list[Volume]]) -> Progress:
    members = sum(len(volume.members) for some in volumes.values() for volume in some)
    archives = len(volumes)
    return lambda more, done: progress(members + more, archives + done)


# Reading


def _indexed(
    files: ArchiveSource, archives: Sequence[Archive], some: Sequence[int], *, salvages: bool, progress: Progress | None
) -> dict[int, list[Volume]]:
    """The volumes of some archives."""
    volumes: dict[int, list[Volume]] = {at: [] for at in some}
    with files.opened(archives, some) as numbers:
        reading = _Reading(files, archives, numbers, salvages)
        found = reading.volumes([(at, b"", 0, archives[at].bytes) for at in some], progress)
        inner: list[tuple[int, bytes, int, int]] = []
        for volume in found:
            at = volume.archive
            places = _inner_archives(volume)
            if not places:
                volumes[at].append(volume)
                continue
            inner += [(at, path, begin, end) for path, begin, end in places]
            volumes[at].append(_without_files(volume))
        for volume in reading.volumes(inner, None) if inner else ():
            volumes[volume.archive].append(volume)
    return volumes


@dataclass(frozen=True, slots=True)
class _Reading:
    """Some open archives."""

    files: ArchiveSource
    archives: Sequence[Archive]
    numbers: Mapping[int, int]
    salvages: bool

    def volumes(self, ranges: Sequence[tuple[int, bytes, int, int]], progress: Progress | None) -> list[Volume]:
        """The archives in some ranges of files: the number of a file, the path in it, the begin and the end."""
        files = self.files
        long_window, short_window = files.windows
        results = index_archives(
            [(self.numbers[at], begin, end) for at, _, begin, end in ranges],
            threads=files.threads,
            most_headers=HEADERS_MAX,
            through_bytes=files.through_bytes,
            long_window=long_window,
            short_window=short_window,
            salvages=self.salvages,
            read=files.read,
            progress=progress,
        )
        faults = [""] * len(ranges)
        # An archive that was left because of another one has no fault.
        ordered = sorted(enumerate(results), key=lambda each: each[1][0] in (_NOT_BEGUN, _CANCELED))
        for number, (state, place, *_) in ordered:
            if state:
                at, inner, begin, end = ranges[number]
                fault = self._fault(at, inner, state, begin, place - begin, end - begin)
                if not self.salvages or state not in (_NOT_TAR, _DAMAGED, _TRUNCATED):
                    raise fault
                faults[number] = str(fault).removesuffix(f"; {SALVAGE}")
        return [
            Volume(at, inner, np.frombuffer(members, MEMBER), texts, (sparse, special, bad), has_end, has_rest, fault)
            for fault, (at, inner, _, _), (_, _, members, texts, sparse, special, bad, has_end, has_rest) in zip(
                faults, ranges, results, strict=True
            )
        ]

    def _fault(self, at: int, inner: bytes, state: int, begin: int, place: int, length: int) -> Exception:
        """What to raise for a state of an archive that begins at ``begin`` of a file."""
        archive = self.archives[at]
        name = f"{show(inner + SUFFIX.encode())} in {archive.name}" if inner else archive.name
        head = b"" if place or state not in (_NOT_TAR, _TRUNCATED) else self.files.head(self.numbers[at], begin)
        # One in another archive has no path that a command could be given.
        given = "" if inner else f" {shlex.quote(archive.name)}"
        if head.startswith(ZIPS):
            how = given and f"; unpack it: unzip{given}"
            return UnusableArchiveError(f"{name} is a zip file, and redoxfs reads tar files{how}")
        if state == _NOT_TAR or (not place and length < BLOCK_BYTES):
            for magic, (program, command) in COMPRESSED.items():
                if head.startswith(magic):
                    how = given and f"; unpack it: {command}{given}"
                    return UnusableArchiveError(
                        f"{name} is compressed with {program}, and archives are read in place{how}"
                    )
            if head.startswith(POINTER) and length < POINTER_BYTES:
                return UnusableArchiveError(
                    f"{name} is not a tar archive but a pointer of Git LFS; to fetch the archive: git lfs pull"
                )
            return UnusableArchiveError(f"{name} is not a tar archive")
        if state == _DAMAGED:
            return DamagedDatasetError(f"{name} is damaged: the header at {place:,} is wrong; {SALVAGE}")
        if state == _TRUNCATED:
            return DamagedDatasetError(
                f"{name} is truncated: the member at {place:,} ends beyond the {length:,} bytes that there are; "
                f"{SALVAGE}"
            )
        if state == _TOO_MANY:
            return UnusableArchiveError(f"{name}: the archives have more than {HEADERS_MAX:,} members")
        return self.files.failure(archive, state)


_NOT_TAR, _DAMAGED, _TRUNCATED, _TOO_MANY, _NOT_BEGUN = -1, -2, -3, -4, -5
_CANCELED = 125


def _inner_archives(volume: Volume) -> list[tuple[bytes, int, int]]:
    """The path without suffix, the begin and the end of each archive in an archive that holds nothing else."""
    members = volume.members
    is_file = members["kind"] == FILE
    if not is_file.any() or not (is_file | (members["kind"] == DIRECTORY)).all():
        return []
    ends = np.cumsum(members["path_bytes"].astype(np.int64) + members["target_bytes"])
    found: dict[bytes, tuple[int, int]] = {}
    for at in np.flatnonzero(is_file).tolist():
        length = int(members["path_bytes"][at])
        end = int(ends[at] - members["target_bytes"][at])
        path = volume.texts[end - length : end]
        if (
            not path.lower().endswith(SUFFIX.encode())
            or path.endswith(b"/" + SUFFIX.encode())
            or len(path) <= len(SUFFIX)
        ):
            return []
        begin = int(members["data_at"][at])
        # Of a repeated one, the last counts.
        found[path[: -len(SUFFIX)]] = (begin, begin + int(members["size"][at]))
    return [(path, *place) for path, place in found.items()]


def _without_files(volume: Volume) -> Volume:
    """The directories alone. They have no target, so each text is a path."""
    members = volume.members
    keep = members["kind"] == DIRECTORY
    lengths = members["path_bytes"].astype(np.int64)
    texts = np.frombuffer(volume.texts, np.uint8)[np.repeat(keep, lengths)].tobytes()
    return replace(volume, members=members[keep], texts=texts)


# The tree


def _grown(archives: tuple[Archive, ...], volumes: list[Volume], layout: str, read: int, at_ns: int) -> ArchiveIndex:
    names = [archive.name for archive in archives]
    columns = np.array([(each.mode, each.uid, each.gid, each.mtime_ns) for each in archives], np.int64)
    owned = Owned(*columns.reshape(-1, 4).T)
    sets = sets_of(names)
    place_of = {at: each.place for each in sets for at in each.archives}
    folder_of = {
        at: os.path.join(each.place, stem_of(names[at])) if len(each.archives) > 1 else each.place
        for each in sets
        for at in each.archives
    }
    # The order of the numbers in the names: of a repeated path the last archive has the file.
    order = {at: number for number, at in enumerate(at for each in sets for at in each.archives)}
    volumes = sorted(volumes, key=lambda volume: order[volume.archive])
    said: list[str] = []
    chosen = "folders" if layout == "folders" else "tree"
    try:
        while True:
            places = place_of if chosen == "tree" else folder_of
            try:
                tree = grow(
                    volumes, [places[v.archive] for v in volumes], owned, apart=layout == "auto" and chosen == "tree"
                )
                break
            except RepeatedError as repeated:
                said.append(f"a folder for each archive, as two of them have {repeated}, or its key (--archives)")
                chosen = "folders"
    except TooManyDirectoriesError:
        raise UnusableArchiveError("the paths of the members make more directories than any dataset has") from None
    said += _oddities(names, volumes, tree)
    is_sharded = any(each.is_sharded for each in sets) and not any(volume.inner for volume in volumes)
    checksum = _checksum(archives, volumes, chosen)
    return ArchiveIndex(archives, tree, chosen, is_sharded, tuple(said), checksum, read, at_ns)


def _checksum(archives: Sequence[Archive], volumes: Sequence[Volume], layout: str) -> str:
    versions = [(each.bytes, each.mtime_ns, each.ctime_ns, each.inode, each.e_tag) for each in archives]
    digest = xxhash.xxh3_128(json.dumps([versions, layout]).encode())
    for volume in volumes:
        digest.update(volume.members.tobytes())
        digest.update(volume.texts)
    return digest.hexdigest()


def _oddities(names: Sequence[str], volumes: Sequence[Volume], grown: Grown) -> list[str]:
    """A line for each thing that a user should know of."""
    sparse, _, bad = (sum(volume.left_out[which] for volume in volumes) for which in range(3))
    said = []
    for count, what in (
        (sparse, "sparse files"),
        (bad, "members with a name that leads out of the archive, or that Linux does not allow"),
        (grown.blocked, "members below a file or a link, or in the place of a directory that is not empty"),
        (grown.lost, "hard links to files that are not there"),
    ):
        if count:
            said.append(f"left out: {count:,} {what}")
    faults = [volume.fault for volume in volumes if volume.fault]
    if faults:
        said.append(f"salvaged: {faults[0]}{_more(faults)}; what comes before is served")
    endless = [names[volume.archive] for volume in volumes if not (volume.has_end_mark or volume.fault)]
    if endless:
        said.append(f"no end mark: {endless[0]}{_more(endless)}; an archive without it may have been cut off")
    rest = [names[volume.archive] for volume in volumes if volume.has_rest]
    if rest:
        said.append(f"bytes after the end mark are left out, as by tar: {rest[0]}{_more(rest)}")
    return said


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - 1:,} more" if len(names) > 1 else ""
