"""The files that make one sample, and their roles.

A group's files are in role order, and its kind is the tuple of its roles. A script picks its decoder by suffix, so a
sample can only stand in for one with the same roles. Groups are arrays, all members end to end; the dictionaries used
to find them live for one directory (stem) or one pattern (template).

A group that cannot be redirected as a whole is not redirected at all, and is counted. Groups exist to prevent an image
of one sample beside the caption of another.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redoxfs.arrays import Int32, offsets_of
from redoxfs.dataset.bases import BASES, WORD_BYTES, bases_of, words_of
from redoxfs.dataset.errors import ClassesError, show
from redoxfs.dataset.samples import COMPRESSIONS, hidden
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

# Of a compressed file. Numbers are none.
_IS_SUFFIX = re.compile(rb"\.[a-z][a-z0-9]{0,7}")


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
        return Groups(
            offsets_of(lengths[keep]), self.members[np.repeat(keep, lengths)], self.kind[keep], self.kinds, self.saw
        )


def make_groups(tree: Tree, mask: NDArray[np.bool_], groups: str | None, *, named: bool = False) -> Groups:
    """The samples of a tree. `mask` (bool[N]) marks the sample files.

    `groups` is None (each sample file is a sample), "stem", "wds" (WebDataset's keys), or a template of patterns with
    one {key} each. A template selects its files itself, so the mask narrows it only if the user gave globs (`named`).
    Raises ClassesError if the template is wrong.
    """
    if groups is None:
        entries = np.flatnonzero(mask).astype(np.int32)
        kind, kinds = _kinds_of_files(tree, entries)
        return Groups(np.arange(len(entries) + 1, dtype=np.int64), entries, kind, kinds)
    if groups in BASES:
        return _by_base(tree, mask, groups)
    return _by_template(tree, mask, groups, named=named)


def _kinds_of_files(tree: Tree, entries: Int32) -> tuple[Int32, list[Kind]]:
    """What each file is: int32[n] into kinds. A compressed one is what it is without: .nii.gz is not .json.gz."""
    kinds: dict[Kind, int] = {(extension,): at for at, extension in enumerate(tree.extensions)}
    kind = tree.extension[entries]
    is_compressed = np.array([extension in COMPRESSIONS for extension in tree.extensions], bool)[kind]
    for at in np.flatnonzero(is_compressed).tolist():
        stem, outer = os.path.splitext(tree.name(int(entries[at])).lower())
        inner = os.path.splitext(stem)[1]
        if _IS_SUFFIX.fullmatch(inner):
            kind[at] = kinds.setdefault((inner + outer,), len(kinds))
    return kind, [*kinds]


def check_groups(groups: str | None) -> None:
    """Raises ClassesError if a template is malformed, whatever the tree is."""
    if groups is not None and groups not in BASES:
        _patterns(groups)


def _by_base(tree: Tree, mask: NDArray[np.bool_], groups: str) -> Groups:
    holds_samples = np.zeros(len(tree), np.bool_)
    holds_samples[tree.parent[mask]] = True
    is_link = tree.kind_mask(stat.S_IFLNK)
    taken = (tree.kind_mask(stat.S_IFREG) | is_link) & holds_samples[tree.parent] & ~hidden(tree)
    entries = np.flatnonzero(taken)
    first_of, base_bytes = bases_of(tree, entries, groups)
    role, roles = _roles(tree, entries, base_bytes)
    # In the order of the first files of the groups, and in role order.
    order = np.lexsort((role, first_of))
    entries, role, first_of = entries[order], role[order], first_of[order]
    starts = np.flatnonzero(np.diff(first_of, prepend=-1))
    if not len(starts):
        return Groups(np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int32), [])
    lengths = np.diff(starts, append=len(entries))
    of_group = np.repeat(np.arange(len(starts)), lengths)
    is_sample = np.logical_or.reduceat(mask[entries], starts)
    is_linked = is_sample & np.logical_or.reduceat(is_link[entries], starts)
    # 0001.jpg beside 0001.JPG: their roles cannot be told apart.
    alike = np.flatnonzero((np.diff(role) == 0) & (np.diff(of_group) == 0))
    are_alike = np.zeros(len(starts), np.bool_)
    are_alike[of_group[alike]] = True
    are_alike &= is_sample & ~is_linked
    whole = is_sample & ~is_linked & ~are_alike
    many = np.flatnonzero(whole & (lengths > MEMBERS_MAX))
    if len(many):
        first = int(entries[starts[many[0]] : starts[many[0]] + lengths[many[0]]].min())
        raise ClassesError(
            f"--groups {groups}: {lengths[many[0]]} files belong to {show(tree.path(first))}, more than"
            f" {MEMBERS_MAX}; these are not the files of one sample, leave --groups out"
        )
    saw = []
    if linked := int(np.count_nonzero(is_linked)):
        saw.append(f"not redirected: {linked:,} groups with a symlink among their files")
    if two_alike := int(np.count_nonzero(are_alike)):
        saw.append(f"not redirected: {two_alike:,} groups with two files of one suffix")
    kept = whole[of_group]
    kind, kinds = _kinds(role[kept], lengths[whole], roles)
    return Groups(offsets_of(lengths[whole]), entries[kept].astype(np.int32), kind, kinds, tuple(saw))


def _roles(
    tree: Tree, entries: NDArray[np.int64], base_bytes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], list[bytes]]:
    """The number of each file's role, what its name has behind its base in lower case, and the roles in order."""
    start, end = tree.name_at[entries] + base_bytes, tree.name_at[entries + 1]
    role = np.zeros(len(entries), np.int64)
    windows = words_of(tree)
    for at in range(0, int((end - start).max(initial=0)), WORD_BYTES):
        left = np.flatnonzero(end - start > at)
        text = windows[start[left] + at]
        text[np.arange(WORD_BYTES) >= (end - start - at)[left][:, None]] = 0
        text[(text >= ord("A")) & (text <= ord("Z"))] += 32
        word = np.zeros(len(entries), np.uint64)
        # Such numbers sort as the texts do.
        word[left] = text.view(">u8").ravel()
        words, number = np.unique(word, return_inverse=True)
        role = np.unique(role * len(words) + number, return_inverse=True)[1]
    _, one_of = np.unique(role, return_index=True)
    spans = zip(start[one_of].tolist(), end[one_of].tolist(), strict=True)
    return role, [tree.names[begin:stop].tobytes().lower() for begin, stop in spans]


def _kinds(
    role: NDArray[np.integer], lengths: NDArray[np.int64], roles: Sequence[bytes]
) -> tuple[NDArray[np.int32], list[Kind]]:
    """The kind of each group of one or more files, and the kinds. ``role``: of the files of all groups, in order."""
    at = offsets_of(lengths)[:-1]
    kind = np.zeros(len(lengths), np.int64)
    for place in range(int(lengths.max(initial=0))):
        left = lengths > place
        next_role = np.zeros(len(lengths), np.int64)
        next_role[left] = role[at[left] + place] + 1
        kind = np.unique(kind * (len(roles) + 1) + next_role, return_inverse=True)[1]
    _, one_of = np.unique(kind, return_index=True)
    spans = zip(at[one_of].tolist(), (at + lengths)[one_of].tolist(), strict=True)
    return kind.astype(np.int32), [tuple(roles[each] for each in role[begin:end].tolist()) for begin, end in spans]


@dataclass(frozen=True, slots=True)
class _Pattern:
    """``begin`` is what each path of it begins with, ``path`` the expression of one, and ``stars`` its number of *."""

    begin: bytes
    path: re.Pattern[bytes]
    stars: int

    @classmethod
    def of(cls, text: bytes) -> _Pattern:
        parts = re.split(rb"(\*|\{key\})", text)
        expressions = {b"*": rb"([^/]+)", KEY.encode(): rb"(.+)"}
        path = b"".join(expressions.get(part, re.escape(part)) for part in parts)
        return cls(parts[0], re.compile(path, re.DOTALL), parts.count(b"*"))


def _patterns(template: str) -> list[_Pattern]:
    patterns = []
    for pattern in template.split(","):
        text = re.sub("/+", "/", pattern.strip()).removeprefix("./").lstrip("/")
        if text.count(KEY) != 1:
            raise ClassesError(
                f"--groups: the pattern {pattern.strip()!r} needs exactly one {KEY}; write stem, wds, or patterns like"
                f" images/{KEY}.jpg,masks/{KEY}.png"
            )
        patterns.append(_Pattern.of(text.encode("utf-8", "surrogateescape")))
    if len(set(patterns)) < len(patterns):
        raise ClassesError(f"--groups: {template!r} has the same pattern twice; write each pattern once")
    if len({pattern.stars for pattern in patterns}) > 1:
        raise ClassesError(
            f"--groups: the patterns of {template!r} differ in their number of *; each * stands for a directory, which"
            " is the same in all patterns"
        )
    return patterns


def _matches(tree: Tree, is_file: NDArray[np.bool_], pattern: _Pattern) -> Iterator[tuple[tuple[bytes, ...], int]]:
    """What each * and the {key} stand for in the path of each file of a pattern, and its entry."""
    for directory in np.flatnonzero(tree.kind_mask(stat.S_IFDIR)).tolist():
        prefix = tree.path(directory) + b"/" if directory else b""
        if not (prefix.startswith(pattern.begin) or pattern.begin.startswith(prefix)):
            continue
        children = tree.children_of(directory)
        wanted = is_file[children.start : children.stop].tolist()
        for entry, name, taken in zip(children, tree.names_of(children), wanted, strict=True):
            found = pattern.path.fullmatch(prefix + name) if taken else None
            if found is not None:
                yield found.groups(), entry


def _by_template(tree: Tree, mask: NDArray[np.bool_], template: str, *, named: bool) -> Groups:
    patterns = _patterns(template)
    is_file = tree.kind_mask(stat.S_IFREG) & ~hidden(tree)
    found = [dict(_matches(tree, is_file, pattern)) for pattern in patterns]
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
    keys = sorted(set().union(*found))
    rows = np.stack([np.fromiter((matches.get(key, -1) for key in keys), np.int32, len(keys)) for matches in found], 1)
    whole = rows[(rows >= 0).all(axis=1)]
    taken = whole[mask[whole].any(axis=1)] if named else whole
    lengths = np.full(len(taken), len(patterns))
    kind, kinds = _kinds(tree.extension[taken].ravel(), lengths, tree.extensions)
    incomplete = len(rows) - len(whole)
    saw = (f"not redirected: {incomplete:,} keys that lack a file of the template",) if incomplete else ()
    return Groups(offsets_of(lengths), taken.ravel(), kind, kinds, saw)
