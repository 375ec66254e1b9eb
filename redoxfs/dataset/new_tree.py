"""A tree under construction: grown by the entries of some directories at a time, in breadth-first order.

They come from a scan in C, or from an earlier tree. Either way they are columns, and no object is made for an entry.
"""

from __future__ import annotations

import stat
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redoxfs.arrays import offsets_of, ranges
from redoxfs.dataset.tree import Tree

UNCHANGED, GONE = -1, -3
"""States of a directory in the result of `scan_directories`; 0 stands for one that was listed."""

# Longer suffixes are part of a name rather than a format ("v1.0 of the third attempt"). No decoder is chosen by them.
EXTENSION_MAX_BYTES = 16
# Entries in temporary arrays at once, which take about 300 bytes for each.
_PIECE = 1 << 18

ROW = np.dtype(
    [
        *((name, np.int64) for name in ("size", "mtime_ns", "ctime_ns")),
        *((name, np.uint64) for name in ("inode", "device")),
        *((name, np.uint32) for name in ("mode", "uid", "gid", "nlink")),
    ]
)
"""The attributes of an entry, as C writes them (redox_row)."""

_CODES = {np.dtype(np.int64): "q", np.dtype(np.uint64): "Q", np.dtype(np.uint32): "I"}
_STAT_COLUMNS = {name: ROW[name] for name in ROW.names or ()}

Child = tuple[int, int, bytes, int]


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What a scan found in D directories: M entries in the order of their directories, each one's sorted by name."""

    states: NDArray[np.int32]  # [D]; 0, or GONE
    own: NDArray[np.void]  # [D] of ROW
    counts: NDArray[np.int32]  # [D]
    rows: NDArray[np.void]  # [M] of ROW
    lengths: NDArray[np.int32]  # [M]
    names: NDArray[np.uint8]
    link_at: NDArray[np.int64]  # [L], among the entries
    link_lengths: NDArray[np.int32]
    targets: NDArray[np.uint8]
    link_ends: NDArray[np.uint64]  # [L, 2]: device and inode
    skipped: int
    control_left_out: int

    @classmethod
    def of(cls, arrays: tuple[bytes, ...], skipped: int, control_left_out: int) -> Found:
        """From the result of `scan_directories`, without the failure."""
        kinds: list[Any] = [np.int32, ROW, np.int32, ROW, np.int32, np.uint8, np.int64, np.int32, np.uint8, np.uint64]
        columns: list[Any] = [np.frombuffer(data, kind) for data, kind in zip(arrays, kinds, strict=True)]
        columns[-1] = columns[-1].reshape(-1, 2)
        return cls(*[*columns, skipped, control_left_out])

    @classmethod
    def nothing(cls) -> Found:
        """No directory."""
        return cls.of((b"",) * 10, 0, 0)


class NewTree:
    """See the module. ``earlier`` is the tree that entries may be taken from."""

    def __init__(self, earlier: Tree | None) -> None:
        self._earlier = earlier
        self._names = bytearray()
        self._lengths = array("i", [0])
        self._parent = array("i", [0])
        self._stats = {name: array(_CODES[kind], [0]) for name, kind in _STAT_COLUMNS.items()}
        self._links = array("i")
        self._link_names = bytearray()
        self._link_lengths = array("i")
        self._link_device = array("Q")
        self._link_inode = array("Q")
        self._gone: list[int] = []
        self._skipped = self._control_left_out = 0

    def __len__(self) -> int:
        return len(self._parent)

    def add(self, directories: NDArray[np.int64], kept: NDArray[np.int64], found: Found) -> Iterator[Child]:
        """Append the entries of some directories, which are entries already.

        ``kept`` are their entries in the earlier tree, from where their entries are taken; -1: they are the next of
        ``found``. Yields the directories among the new entries: the entry, the place of its parent in ``directories``,
        its name, and its entry in the earlier tree if it was taken from there, else -1. The caller reads all of them.
        """
        old = self._earlier
        boundary = 0 if old is None else len(old)
        is_kept = kept >= 0
        read = np.flatnonzero(~is_kept)
        counts = np.zeros(len(directories), np.int64)
        first = np.zeros(len(directories), np.int64)  # below the boundary: of the earlier tree; else of `found`
        counts[read] = found.counts
        first[read] = boundary + np.cumsum(found.counts) - found.counts
        self._gone += directories[read[found.states == GONE]].tolist()
        self._set_stats(directories[read], {name: found.own[name] for name in _STAT_COLUMNS})
        self._skipped += found.skipped
        self._control_left_out += found.control_left_out
        if old is not None:
            counts[is_kept] = old.children[kept[is_kept]]
            first[is_kept] = old.first_child[kept[is_kept]]
            self._set_stats(directories[is_kept], {name: getattr(old, name)[kept[is_kept]] for name in _STAT_COLUMNS})
            if len(kept) and kept[0] == 0:
                self._control_left_out += old.control_left_out
        starts = np.cumsum(counts) - counts
        total = int(counts.sum())
        name_at = offsets_of(found.lengths)
        for begin in range(0, total, _PIECE):
            place = np.arange(begin, min(begin + _PIECE, total))
            # Of directories without entries, which begin at the same place, the last has the entry.
            above = np.searchsorted(starts, place, side="right") - 1
            source = first[above] + place - starts[above]
            yield from self._append(directories, above, source, boundary, found, name_at)

    def _append(
        self,
        directories: NDArray[np.int64],
        above: NDArray[np.int64],
        source: NDArray[np.int64],
        boundary: int,
        found: Found,
        name_at: NDArray[np.int64],
    ) -> Iterator[Child]:
        base, old = len(self), self._earlier
        is_old = source < boundary
        olds, news = source[is_old], source[~is_old] - boundary
        columns = {name: np.empty(len(source), kind) for name, kind in _STAT_COLUMNS.items()}
        lengths = np.empty(len(source), np.int32)
        lengths[~is_old] = found.lengths[news]
        rows = found.rows[news]
        for name, column in columns.items():
            column[~is_old] = rows[name]
        if old is not None:
            for name, column in columns.items():
                column[is_old] = getattr(old, name)[olds]
            lengths[is_old] = np.diff(old.name_at)[olds] if len(olds) else 0
        self._parent.frombytes(directories[above].astype(np.int32).tobytes())
        self._lengths.frombytes(lengths.tobytes())
        for name, column in columns.items():
            self._stats[name].frombytes(column.tobytes())
        at = offsets_of(lengths)
        names = np.empty(int(at[-1]), np.uint8)
        _copy_texts(names, at, np.flatnonzero(~is_old), found.names, name_at, news)
        if old is not None:
            _copy_texts(names, at, np.flatnonzero(is_old), old.names, old.name_at, olds)
        self._names += names.tobytes()
        kinds = columns["mode"] & np.uint32(0o170000)
        self._append_links(base + np.flatnonzero(kinds == stat.S_IFLNK), source[kinds == stat.S_IFLNK], boundary, found)
        blob = names.tobytes()
        for child in np.flatnonzero(kinds == stat.S_IFDIR).tolist():
            text = blob[at[child] : at[child + 1]]
            yield base + child, int(above[child]), text, int(source[child]) if is_old[child] else -1

    def _append_links(self, entries: NDArray[np.int64], source: NDArray[np.int64], boundary: int, found: Found) -> None:
        if not len(entries):
            return
        old = self._earlier
        is_old = source < boundary
        lengths = np.empty(len(entries), np.int32)
        ends = np.empty((len(entries), 2), np.uint64)
        news = np.searchsorted(found.link_at, source[~is_old] - boundary)
        olds = np.zeros(0, np.int64)
        lengths[~is_old] = found.link_lengths[news]
        ends[~is_old] = found.link_ends[news]
        if old is not None:
            olds = np.searchsorted(old.link_entry, source[is_old])
            lengths[is_old] = np.diff(old.link_at)[olds]
            ends[is_old] = np.stack([old.link_device[olds], old.link_inode[olds]], axis=1)
        at = offsets_of(lengths)
        targets = np.empty(int(at[-1]), np.uint8)
        _copy_texts(targets, at, np.flatnonzero(~is_old), found.targets, offsets_of(found.link_lengths), news)
        if old is not None:
            _copy_texts(targets, at, np.flatnonzero(is_old), old.link_names, old.link_at, olds)
        self._links.frombytes(entries.astype(np.int32).tobytes())
        self._link_lengths.frombytes(lengths.tobytes())
        self._link_names += targets.tobytes()
        self._link_device.frombytes(ends[:, 0].tobytes())
        self._link_inode.frombytes(ends[:, 1].tobytes())

    def _set_stats(self, entries: NDArray[np.int64], values: dict[str, NDArray[np.generic]]) -> None:
        for name, kind in _STAT_COLUMNS.items():
            np.frombuffer(self._stats[name], kind)[entries] = values[name]

    def finish(self, roots: tuple[bytes, ...]) -> Tree:
        """The tree, without directories that have vanished. Nothing can be added after that."""
        parent = np.frombuffer(self._parent, np.int32)
        lengths = np.frombuffer(self._lengths, np.int32)
        names: NDArray[np.uint8] = np.frombuffer(self._names, np.uint8)
        columns = {name: np.frombuffer(self._stats[name], kind) for name, kind in _STAT_COLUMNS.items()}
        links = np.frombuffer(self._links, np.int32)
        if self._gone:
            keep = np.ones(len(parent), bool)
            keep[self._gone] = False
            renumbered = (np.cumsum(keep) - 1).astype(np.int32)
            names = names[np.repeat(keep, lengths)]
            parent, lengths = renumbered[parent[keep]], lengths[keep]
            columns = {name: column[keep] for name, column in columns.items()}
            links = renumbered[links]
        children = np.bincount(parent[1:], minlength=len(parent)).astype(np.int32)
        first_child = (1 + np.cumsum(children, dtype=np.int64) - children).astype(np.int32)
        first_child[children == 0] = 0
        name_at = offsets_of(lengths)
        extension, extensions = extensions_of(names, name_at)
        return Tree(
            names=names,
            name_at=name_at,
            parent=parent,
            first_child=first_child,
            children=children,
            extension=extension,
            link_entry=links,
            link_names=np.frombuffer(self._link_names, np.uint8),
            link_at=offsets_of(np.frombuffer(self._link_lengths, np.int32)),
            link_device=np.frombuffer(self._link_device, np.uint64),
            link_inode=np.frombuffer(self._link_inode, np.uint64),
            extensions=extensions,
            roots=roots,
            skipped=self._skipped,
            control_left_out=self._control_left_out,
            **columns,
        )


def _copy_texts(
    to: NDArray[np.uint8],
    to_at: NDArray[np.int64],
    places: NDArray[np.int64],
    blob: NDArray[np.uint8],
    blob_at: NDArray[np.int64],
    texts: NDArray[np.int64],
) -> None:
    """Copy some texts of a blob to places in another one, where there is room for them."""
    if not len(texts):
        return
    lengths = blob_at[texts + 1] - blob_at[texts]
    if int(texts[-1]) - int(texts[0]) + 1 == len(texts) == int(places[-1]) - int(places[0]) + 1:
        # Both ascend, so both are without gaps.
        to[to_at[places[0]] : to_at[places[-1] + 1]] = blob[blob_at[texts[0]] : blob_at[texts[-1] + 1]]
        return
    to[ranges(to_at[places], lengths)] = blob[ranges(blob_at[texts], lengths)]


def extensions_of(names: NDArray[np.uint8], name_at: NDArray[np.int64]) -> tuple[NDArray[np.int32], tuple[bytes, ...]]:
    """The number of each entry's extension, and the extensions in order, of which b"" is the first."""
    found: dict[bytes, int] = {b"": 0}
    numbers = np.zeros(len(name_at) - 1, np.int32)
    for begin in range(0, len(numbers), _PIECE):
        end = min(begin + _PIECE, len(numbers))
        suffixes, inverse = np.unique(
            _suffixes(names[name_at[begin] : name_at[end]], name_at[begin : end + 1] - name_at[begin]),
            return_inverse=True,
        )
        ids = np.array([found.setdefault(suffix, len(found)) for suffix in suffixes.tolist()], np.int32)
        numbers[begin:end] = ids[inverse]
    extensions = sorted(found)
    order = np.empty(len(found), np.int32)
    order[[found[extension] for extension in extensions]] = np.arange(len(found), dtype=np.int32)
    return order[numbers], tuple(extensions)


def _suffixes(names: NDArray[np.uint8], name_at: NDArray[np.int64]) -> NDArray[np.bytes_]:
    """The last suffix of each name, with its dot and in lower case; b"" for a name that has none or a long one."""
    dots = np.flatnonzero(names == ord("."))
    last = np.full(len(name_at) - 1, -1, np.int64)
    # Of several dots the last one stays.
    last[np.searchsorted(name_at, dots, side="right") - 1] = dots
    has_one = (last > name_at[:-1]) & (name_at[1:] - last <= EXTENSION_MAX_BYTES)
    start, end = last[has_one], name_at[1:][has_one]
    at = start[:, None] + np.arange(EXTENSION_MAX_BYTES)
    text = np.where(at < end[:, None], np.append(names, np.uint8(0))[np.minimum(at, len(names))], 0).astype(np.uint8)
    text[(text >= ord("A")) & (text <= ord("Z"))] += 32
    suffixes = np.zeros(len(name_at) - 1, f"S{EXTENSION_MAX_BYTES}")
    suffixes[has_one] = np.ascontiguousarray(text).view(f"S{EXTENSION_MAX_BYTES}").ravel()
    return suffixes
