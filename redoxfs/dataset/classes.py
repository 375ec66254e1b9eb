"""Labels, and the classes made of them. The samples of a class may stand in for each other.

A label is what the script learns from the path: the directory (`dir`), nothing (`any`), or an entry of a table (`csv`).
A class is finer: one label, one split (train and validation must never mix), one kind (a script picks its decoder by
suffix), and one set of readers (no user may get a file that the user may not read).

A file under two labels has no right answer: a hard link or symlink would show bytes of one class under the other. That
is an error rather than a warning, and it names both paths.
"""

from __future__ import annotations

import os.path
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from redoxfs.arrays import distinct, is_in
from redoxfs.dataset.access import readers_of
from redoxfs.dataset.errors import ClassesError, show
from redoxfs.dataset.groups import Groups
from redoxfs.dataset.scene import TABLE
from redoxfs.dataset.splits import splits_of
from redoxfs.dataset.tree import Tree


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """The labels of S samples. Equal numbers mean equal labels; numbers need not be dense."""

    label: NDArray[np.int64]  # [S] into names
    split: NDArray[np.int64]  # [S] into split_names
    names: dict[int, str]  # of each label in use
    split_names: list[str]
    label_is_place: bool  # whether the label is a directory, whose parent is its class tree


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
    """C classes of S samples, sorted by name."""

    class_of: NDArray[np.int32]  # [S]
    names: list[str]
    trees: list[str]
    tree_of: NDArray[np.int32]  # [C]
    saw: tuple[str, ...]


def label_by_directory(tree: Tree, groups: Groups) -> Labels:
    """The label of a sample is the directory of its first member."""
    label = tree.parent[groups.first].astype(np.int64)
    # The directory has the split already. A file's own name can add one: train_1.jpg beside val_1.jpg.
    code, _, added = _splits(tree, groups.first)
    split, texts = _numbered(code, added)
    names = {entry: show(tree.path(entry)) for entry in distinct(label).tolist()}
    return Labels(label, split, names, texts, True)


def label_by_table(
    tree: Tree,
    groups: Groups,
    label: NDArray[np.int64],
    names: list[str],
    told: NDArray[np.int64] | None = None,
    told_names: list[str] | None = None,
) -> Labels:
    """Labels from a table (or one label for all), kept apart by the splits in the paths and those of the table.

    `told` is the split that the table has for each sample, int64[S] into `told_names`.
    """
    of_path = _labels_by_path(tree, groups, label, names)
    if told is None or told_names is None:
        return of_path
    many = len(told_names)
    pairs, split = np.unique(of_path.split * many + told, return_inverse=True)
    texts = [(of_path.split_names[pair // many], told_names[pair % many]) for pair in pairs.tolist()]
    joined = ["/".join(filter(None, both)) for both in texts]
    return replace(of_path, split=split.astype(np.int64), split_names=joined)


def _labels_by_path(tree: Tree, groups: Groups, label: NDArray[np.int64], names: list[str]) -> Labels:
    code, wholes, _ = _splits(tree, groups.members)
    code, texts = _numbered(code, wholes)
    if len(groups.members) == len(groups):
        return Labels(label, code, dict(enumerate(names)), texts, False)
    # A sample of several files has the splits of all of them, which are mostly the same.
    starts = groups.member_at[:-1]
    split = code[starts]
    mixed = np.flatnonzero(np.maximum.reduceat(code, starts) != np.minimum.reduceat(code, starts))
    ids: dict[tuple[int, ...], int] = {}
    for sample, start, stop in zip(
        mixed.tolist(), starts[mixed].tolist(), groups.member_at[mixed + 1].tolist(), strict=True
    ):
        several = tuple(dict.fromkeys(code[start:stop].tolist()))
        split[sample] = len(texts) + ids.setdefault(several, len(ids))
    joined = ["+".join(dict.fromkeys(filter(None, (texts[at] for at in several)))) for several in ids]
    # Some were of files of mixed samples alone.
    used, split = np.unique(split, return_inverse=True)
    names_of_splits = [*texts, *joined]
    return Labels(label, split, dict(enumerate(names)), [names_of_splits[at] for at in used.tolist()], False)


def _numbered(code: NDArray[np.int64], texts: list[str]) -> tuple[NDArray[np.int64], list[str]]:
    """Make codes of equal texts equal: val/1.jpg and val_1.jpg are of one split, found in two ways."""
    ids: dict[str, int] = {}
    number = np.array([ids.setdefault(text, len(ids)) for text in texts], np.int64)
    return number[code] if len(code) else code, list(ids)


def _splits(tree: Tree, entries: NDArray[np.int32]) -> tuple[NDArray[np.int64], list[str], list[str]]:
    order = np.argsort(entries, kind="stable")
    code, texts, added = splits_of(tree, entries[order].astype(np.int64))
    back = np.empty_like(code)
    back[order] = code
    return back, texts, added


def make_classes(tree: Tree, groups: Groups, labels: Labels) -> Classes:
    """One class for each (label, split, kind, readers) in use, in that order."""
    rows = np.stack([labels.label, labels.split, groups.kind.astype(np.int64), _readers(tree, groups)], axis=1)
    unique, code = _unique_rows(rows)
    kind_text = ["+".join(show(role) if role else "(no suffix)" for role in kind) for kind in groups.kinds]
    texts = [(labels.names[a], labels.split_names[b], kind_text[c], d) for a, b, c, d in unique.tolist()]
    order = sorted(range(len(texts)), key=texts.__getitem__)
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    kinds_of: dict[tuple[str, str], int] = {}
    readers_of_kind: dict[tuple[str, str, str], int] = {}
    for label, split, kind, _ in texts:
        readers_of_kind[label, split, kind] = readers_of_kind.get((label, split, kind), 0) + 1
    for label, split, _ in readers_of_kind:
        kinds_of[label, split] = kinds_of.get((label, split), 0) + 1
    names: list[str] = []
    trees: list[str] = []
    ids: dict[str, int] = {}
    tree_of = np.empty(len(order), np.int32)
    for at, code_at in enumerate(order):
        label, split, kind, readers = texts[code_at]
        if labels.label_is_place:
            place = os.path.dirname(label) or "."
            name = f"{label} ({split})" if split else label
        else:
            place = split or "."
            name = (f"{label} ({split})" if split else label) if label else place
        if kinds_of[label, split] > 1:
            name = f"{name} *{kind}"
        names.append(f"{name} (readers {readers + 1})" if readers_of_kind[label, split, kind] > 1 else name)
        tree_of[at] = ids.setdefault(place, len(ids))
        if len(ids) > len(trees):
            trees.append(place)
    mixed = len({key[0] for key, count in readers_of_kind.items() if count > 1})
    return Classes(rank[code], names, trees, tree_of, _saw_readers(mixed, labels))


def _readers(tree: Tree, groups: Groups) -> NDArray[np.int64]:
    """A number for the readers of each sample, equal only if all members have the same readers."""
    of_member = readers_of(tree, groups.members)
    if len(of_member) == len(groups) or not of_member.any():
        return of_member[: len(groups)]
    ids: dict[tuple[int, ...], int] = {}
    return np.fromiter(
        (
            ids.setdefault(tuple(of_member[start:stop].tolist()), len(ids))
            for start, stop in zip(groups.member_at[:-1].tolist(), groups.member_at[1:].tolist(), strict=True)
        ),
        np.int64,
        len(groups),
    )


def _saw_readers(mixed: int, labels: Labels) -> tuple[str, ...]:
    if not mixed:
        return ()
    if labels.label_is_place:
        what = "1 directory holds" if mixed == 1 else f"{mixed:,} directories hold"
    else:
        what = "1 label is on" if mixed == 1 else f"{mixed:,} labels are on"
    return (f"{what} files with different owners or modes, which do not stand in for each other",)


def _unique_rows(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """As np.unique(axis=0) with inverse, by lexsort: np.unique compares rows as opaque bytes, ten times slower."""
    order = np.lexsort(rows.T[::-1])
    ordered = rows[order]
    fresh = np.ones(len(rows), bool)
    fresh[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    code = np.empty(len(rows), np.intp)
    code[order] = np.cumsum(fresh) - 1
    return ordered[fresh], code


def refuse_two_labels(tree: Tree, groups: Groups, labels: Labels) -> None:
    """Raise ClassesError if an inode is a member under two labels, or a symlink elsewhere leads to a member."""
    lengths = np.diff(groups.member_at)
    of_member = np.repeat(np.arange(len(groups)), lengths)
    label = labels.label if labels.label_is_place else labels.label * len(labels.split_names) + labels.split
    apart = hard_links_apart(tree, groups.members, label[of_member])
    if apart is not None:
        one, other = (show(tree.path(entry)) for entry in apart)
        raise ClassesError(
            f"{one} and {other} are one file (hard links) in two classes; copy it, remove one of the names, or turn"
            " redirection off with --classes none"
        )
    apart = symlink_apart(tree, groups.members) if labels.label_is_place else None
    if apart is not None:
        link, target = (show(tree.path(entry)) for entry in apart)
        raise ClassesError(
            f"{link} is a symlink to {target}, whose class is another directory; if there are no labels:"
            f" --classes any; else: {TABLE}"
        )


def hard_links_apart(tree: Tree, files: NDArray[np.integer], label: NDArray[np.integer]) -> tuple[int, int] | None:
    """Two of ``files`` (entries) that are one file under two labels; None if there are none. ``label`` has each one's
    label."""
    many = np.flatnonzero(tree.nlink[files] > 1)
    entries, said = files[many], label[many]
    order = np.lexsort((said, tree.inode[entries], tree.device[entries]))
    entries, said = entries[order], said[order]
    inode, device = tree.inode[entries], tree.device[entries]
    clash = np.flatnonzero((inode[1:] == inode[:-1]) & (device[1:] == device[:-1]) & (said[1:] != said[:-1]))
    return (int(entries[clash[0]]), int(entries[clash[0] + 1])) if len(clash) else None


def is_of_two_splits(tree: Tree, files: NDArray[np.int64]) -> bool:
    """Whether one of ``files`` (entries, ascending) has names in two splits, by hard links."""
    many = files[tree.nlink[files] > 1]
    if not len(many):
        return False
    code, texts, _ = splits_of(tree, many)
    return hard_links_apart(tree, many, _numbered(code, texts)[0]) is not None


def symlink_apart(tree: Tree, files: NDArray[np.integer]) -> tuple[int, int] | None:
    """A symlink to one of ``files`` (entries) in another directory, and that file; None if there is none."""
    targets = files[is_in(tree.inode[files], tree.link_inode)].tolist()
    if not targets:
        return None
    found = {(int(tree.device[entry]), int(tree.inode[entry])): entry for entry in targets}
    for link, device, inode in zip(
        tree.link_entry.tolist(), tree.link_device.tolist(), tree.link_inode.tolist(), strict=True
    ):
        target = found.get((device, inode))
        if target is not None and int(tree.parent[link]) != int(tree.parent[target]):
            return link, target
    return None
