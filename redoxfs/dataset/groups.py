"""The files that make one sample, and their roles.

A group's files are in role order, and its kind is the tuple of its roles. A script picks its decoder by suffix, so a
sample can only stand in for one with the same roles. Groups are arrays, all members end to end; the dictionaries used
to find them live for one directory (stem) or one pattern (template).

A group that cannot be redirected as a whole is not redirected at all, and is counted. Groups exist to prevent an image
of one sample beside the caption of another.
"""

from __future__ import annotations

import re
import stat
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redoxfs.arrays import distinct
from redoxfs.dataset.errors import ClassesError, show
from redoxfs.dataset.samples import hidden
from redoxfs.dataset.tree import Tree

TOGETHER = (
    "--groups is for scripts that open the files of a sample together, each time; one that reads all labels or captions"
    " once and keeps them, as Ultralytics does, pairs them with other samples"
)
"""A line about every mount with groups: the binding of a sample's files ends when they are closed and opened again."""

KEY = "{key}"
# A bound sample keeps one bit of a 64-bit word for each of its files.
MEMBERS_MAX = 64

Kind = tuple[bytes, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """S samples of M files: sample s has the entries members[member_at[s]:member_at[s + 1]], in role order."""

    member_at: NDArray[np.int64]  # [S + 1]
    members: NDArray[np.int32]  # [M]
    kind: NDArray[np.int32]  # [S] into kinds
    kinds: list[Kind]
    saw: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def first(self) -> NDArray[np.int32]:
        """The first member of each sample. Its directory is the place of the sample."""
        return self.members[self.member_at[:-1]]

    def only(self, keep: NDArray[np.bool_]) -> Groups:
        """The samples where `keep` (bool[S])."""
        lengths = np.diff(self.member_at)
        member_at = np.zeros(int(keep.sum()) + 1, np.int64)
        np.cumsum(lengths[keep], out=member_at[1:])
        return Groups(member_at, self.members[np.repeat(keep, lengths)], self.kind[keep], self.kinds, self.saw)


class _Growing:
    def __init__(self) -> None:
        self.members = array("i")
        self.lengths = array("i")
        self.kind = array("i")
        self.kinds: dict[Kind, int] = {}

    def add(self, kind: Kind, members: list[int]) -> None:
        self.members.extend(members)
        self.lengths.append(len(members))
        self.kind.append(self.kinds.setdefault(kind, len(self.kinds)))

    def finish(self, saw: tuple[str, ...]) -> Groups:
        member_at = np.zeros(len(self.lengths) + 1, np.int64)
        np.cumsum(np.frombuffer(self.lengths, np.int32), out=member_at[1:])
        members, kind = np.frombuffer(self.members, np.int32), np.frombuffer(self.kind, np.int32)
        return Groups(member_at, members, kind, list(self.kinds), saw)


def make_groups(tree: Tree, mask: NDArray[np.bool_], groups: str | None, *, named: bool = False) -> Groups:
    """The samples of a tree. `mask` (bool[N]) marks the sample files.

    `groups` is None (each sample file is a sample), "stem", "wds" (WebDataset's keys), or a template of patterns with
    one {key} each. A template selects its files itself, so the mask narrows it only if the user gave globs (`named`).
    Raises ClassesError if the template is wrong.
    """
    if groups is None:
        entries = np.flatnonzero(mask).astype(np.int32)
        kinds: list[Kind] = [(extension,) for extension in tree.extensions]
        return Groups(np.arange(len(entries) + 1, dtype=np.int64), entries, tree.extension[entries], kinds)
    if groups in _BASES:
        return _by_base(tree, mask, groups)
    return _by_template(tree, mask, groups, named=named)


def check_groups(groups: str | None) -> None:
    """Raises ClassesError if a template is malformed, whatever the tree is."""
    if groups is not None and groups not in _BASES:
        _patterns(groups)


def stem_bases(names: list[bytes]) -> list[bytes]:
    """The stem of the group of each file of one directory.

    A stem is a name without its last suffix. A stem that extends another stem of the directory at a dot joins the
    shortest such stem.
    """
    stems = [name[:dot] if (dot := name.rfind(b".")) > 0 else name for name in names]
    known = set(stems)
    bases = []
    for stem in stems:
        dot = stem.find(b".", 1)
        while dot >= 0 and stem[:dot] not in known:
            dot = stem.find(b".", dot + 1)
        bases.append(stem if dot < 0 else stem[:dot])
    return bases


def webdataset_bases(names: list[bytes]) -> list[bytes]:
    """The key that WebDataset gives each file: its name up to the first dot."""
    return [name[:dot] if (dot := name.find(b".", 1)) > 0 else name for name in names]


_BASES = {"stem": stem_bases, "wds": webdataset_bases}


def _by_base(tree: Tree, mask: NDArray[np.bool_], groups: str) -> Groups:
    bases_of = _BASES[groups]
    growing = _Growing()
    linked = two_alike = 0
    shown = ~hidden(tree)
    is_file, is_link = tree.kind_mask(stat.S_IFREG), tree.kind_mask(stat.S_IFLNK)
    holds_samples = distinct(tree.parent[np.flatnonzero(mask)])
    for directory in holds_samples.tolist():
        children = tree.children_of(directory)
        span = slice(children.start, children.stop)
        taken = np.flatnonzero((is_file[span] | is_link[span]) & shown[span]) + children.start
        entries = taken.tolist()
        every = tree.names_of(children)
        names = [every[entry - children.start] for entry in entries]
        sampled = set((np.flatnonzero(mask[span]) + children.start).tolist())
        linked_here = set((np.flatnonzero(is_link[span]) + children.start).tolist())
        found: dict[bytes, list[tuple[bytes, int]]] = {}
        for base, name, entry in zip(bases_of(names), names, entries, strict=True):
            found.setdefault(base, []).append((name[len(base) :].lower(), entry))
        for group in found.values():
            members = [entry for _, entry in group]
            if not any(map(sampled.__contains__, members)):
                continue
            if not linked_here.isdisjoint(members):
                linked += 1
                continue
            group.sort()
            roles = tuple(role for role, _ in group)
            if len(set(roles)) < len(roles):
                # 0001.jpg beside 0001.JPG: their roles cannot be told apart.
                two_alike += 1
                continue
            if len(members) > MEMBERS_MAX:
                raise ClassesError(
                    f"--groups {groups}: {len(members)} files belong to {show(tree.path(members[0]))}, more than"
                    f" {MEMBERS_MAX}; these are not the files of one sample, leave --groups out"
                )
            growing.add(roles, [entry for _, entry in group])
    saw = []
    if linked:
        saw.append(f"not redirected: {linked:,} groups with a symlink among their files")
    if two_alike:
        saw.append(f"not redirected: {two_alike:,} groups with two files of one suffix")
    return growing.finish(tuple(saw))


def _patterns(template: str) -> list[tuple[bytes, bytes]]:
    patterns = []
    for pattern in template.split(","):
        text = re.sub("/+", "/", pattern.strip()).removeprefix("./").lstrip("/")
        if text.count(KEY) != 1:
            raise ClassesError(
                f"--groups: the pattern {pattern.strip()!r} needs exactly one {KEY}; write stem, wds, or patterns like"
                f" images/{KEY}.jpg,masks/{KEY}.png"
            )
        before, after = text.encode("utf-8", "surrogateescape").split(KEY.encode())
        patterns.append((before, after))
    if len(set(patterns)) < len(patterns):
        raise ClassesError(f"--groups: {template!r} has the same pattern twice; write each pattern once")
    return patterns


def _matches(tree: Tree, is_file: NDArray[np.bool_], before: bytes, after: bytes) -> Iterator[tuple[bytes, int]]:
    """(key, entry) of each file whose path is before + key + after."""
    for directory in np.flatnonzero(tree.kind_mask(stat.S_IFDIR)).tolist():
        prefix = tree.path(directory) + b"/" if directory else b""
        if not (prefix.startswith(before) or before.startswith(prefix)):
            continue
        children = tree.children_of(directory)
        wanted = is_file[children.start : children.stop].tolist()
        for entry, name, taken in zip(children, tree.names_of(children), wanted, strict=True):
            if not taken:
                continue
            path = prefix + name
            stop = len(path) - len(after)
            if stop > len(before) and path.startswith(before) and path.endswith(after):
                yield path[len(before) : stop], entry


def _by_template(tree: Tree, mask: NDArray[np.bool_], template: str, *, named: bool) -> Groups:
    patterns = _patterns(template)
    is_file = tree.kind_mask(stat.S_IFREG) & ~hidden(tree)
    found = [dict(_matches(tree, is_file, before, after)) for before, after in patterns]
    role = np.full(len(tree), -1, np.int32)
    for at, matches in enumerate(found):
        entries = np.fromiter(matches.values(), np.int64, len(matches))
        twice = entries[role[entries] >= 0]
        if len(twice):
            entry = int(twice[0])
            both = " and ".join(template.split(",")[which].strip() for which in (int(role[entry]), at))
            raise ClassesError(
                f"--groups: {show(tree.path(entry))} matches both {both}; make the patterns exclude each other"
            )
        role[entries] = at
    growing = _Growing()
    incomplete = 0
    for key in sorted(set().union(*found)):
        members = [matches.get(key, -1) for matches in found]
        if min(members) < 0:
            incomplete += 1
        elif not named or mask[members].any():
            growing.add(tuple(tree.extensions[int(tree.extension[entry])] for entry in members), members)
    saw = []
    if incomplete:
        saw.append(f"not redirected: {incomplete:,} keys that lack a file of the template")
    return growing.finish(tuple(saw))
