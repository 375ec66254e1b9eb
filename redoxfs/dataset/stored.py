"""A catalog that was written to a file, and is read again: the parts that are no arrays, and the checks of all of it.

A packed dataset and an exported catalog are both written so. A checksum shows that a file is as it was written, not by
whom: every number that C uses as a position, and every name that the kernel gets, is checked here.
"""

from __future__ import annotations

import dataclasses
import stat
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redoxfs.dataset.catalog import Catalog, Finding, Verdict
from redoxfs.dataset.errors import show
from redoxfs.dataset.groups import MEMBERS_MAX
from redoxfs.dataset.tree import CONTROL_NAME, Tree

NAME_MAX_BYTES = 255
TARGET_MAX_BYTES = 4095
"""Linux's own limits."""

COLUMNS = {
    "parent": "int32",
    **dict.fromkeys(("mode", "uid", "gid", "nlink"), "uint32"),
    **dict.fromkeys(("size", "mtime_ns", "ctime_ns"), "int64"),
}
"""The arrays of a tree that have a value for each entry, and their types."""

NAMES = {"names": "uint8", "name_at": "int64", "link_entry": "int32", "link_names": "uint8", "link_at": "int64"}
"""The other arrays of a tree."""

CLASSES = {"members": "int32", "member_at": "int64", "class_of": "int32", "tree_of_class": "int32"}
"""Those of a catalog."""


def described(catalog: Catalog, *, line: str) -> dict[str, Any]:
    """What a catalog has beside its arrays, as JSON values. ``line`` is the verdict's."""
    verdict = dataclasses.asdict(catalog.verdict)
    return {
        "verdict": {**verdict, "line": line, "saw": list(catalog.verdict.saw), "splits": list(verdict["splits"])},
        "class_names": catalog.class_names,
        "class_trees": catalog.class_trees,
        "sample_files": catalog.sample_files,
        "skipped": catalog.tree.skipped,
        "control_left_out": catalog.tree.control_left_out,
    }


def children_of(
    columns: Sequence[NDArray[Any]], parent: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The first child of each entry, and how many there are: int32[N] each.

    Raises:
        ValueError: ``parent`` is not that of a tree, or a column has another length.
    """
    count = len(parent)
    if not count or any(len(column) != count for column in columns):
        raise ValueError("the columns of the tree differ in length")
    if parent[0] or (parent[1:] < parent[:-1]).any() or (parent[1:] >= np.arange(1, count)).any():
        raise ValueError("the entries do not form a tree")
    children = np.bincount(parent[1:], minlength=count).astype(np.int32)
    first = np.where(children > 0, np.concatenate([[1], np.cumsum(children[:-1]) + 1]), 0).astype(np.int32)
    return first, children


def catalog_of(tree: Tree, described: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Catalog:
    """The catalog of a tree, from what `described` made and ``members``, ``member_at`` and the like.

    Raises:
        ValueError, KeyError, TypeError: they do not fit together.
    """
    count = len(tree)
    verdict = described["verdict"]
    members, member_at = arrays["members"], arrays["member_at"]
    samples = len(arrays["class_of"])
    if not _are_offsets(member_at, samples, len(members)) or (member_at[1:] == member_at[:-1]).any():
        raise ValueError("the files of the samples are counted wrong")
    if len(members) and not (members.min() >= 0 and members.max() < count):
        raise ValueError("a sample has a file that is not in the tree")
    if (tree.size < 0).any() or (tree.size >= 1 << 60).any():
        raise ValueError("a file's size is beyond reason")
    return Catalog.of_samples(
        tree,
        member_at,
        members,
        class_of=arrays["class_of"],
        class_names=[str(name) for name in described["class_names"]],
        class_trees=[str(name) for name in described["class_trees"]],
        tree_of_class=arrays["tree_of_class"],
        verdict=Verdict(
            verdict["asked"],
            verdict["mode"],
            verdict["line"],
            tuple(verdict["saw"]),
            tuple(Finding(**finding) for finding in verdict.get("splits", ())),
        ),
        sample_files=int(described["sample_files"]),
    )


_FINDING = {"redirected": bool, "directories": int, "samples": int}


def must_be_text(described: Mapping[str, Any]) -> None:
    """Check the texts, which are printed or looked up. Raises TypeError."""
    verdict = described["verdict"]
    said = [*verdict["saw"], *(verdict[name] for name in ("asked", "mode", "line"))]
    # Datasets of earlier versions have none.
    for finding in verdict.get("splits", ()):
        said += [finding["split"], finding["because"]]
        if any(type(finding[name]) is not kind for name, kind in _FINDING.items()):
            raise TypeError(f"{finding!r:.40} does not describe a split")
    for text in (*said, *described["class_names"], *described["class_trees"]):
        if not isinstance(text, str):
            raise TypeError(f"{text!r:.40} is not a text")


def wrong_tree(tree: Tree) -> str:
    """The fault that makes the tree unfit to serve, or "" if it has none."""
    if not _are_offsets(tree.name_at, len(tree), len(tree.names)):
        return "the names overlap"
    if not _are_offsets(tree.link_at, len(tree.link_entry), len(tree.link_names)):
        return "the targets of links overlap"
    kinds = tree.mode & np.uint32(0o170000)
    directory, link = kinds == stat.S_IFDIR, kinds == stat.S_IFLNK
    if not directory[0] or not directory[tree.parent].all():
        return "an entry lies in something that is not a directory"
    if not (directory | link | (kinds == stat.S_IFREG)).all():
        return f"{_first(tree, ~(directory | link | (kinds == stat.S_IFREG)))} is a device or the like"
    if not np.array_equal(tree.link_entry, np.flatnonzero(link)):
        return "the links are not those of the tree"
    lengths = np.diff(tree.name_at)
    if lengths[0] or (lengths[1:] == 0).any() or (lengths > NAME_MAX_BYTES).any():
        return "a name is empty or longer than 255 bytes"
    for byte, called in ((0, "a NUL"), (ord("/"), "a slash")):
        at = np.flatnonzero(tree.names == byte)
        if len(at):
            entry = int(np.searchsorted(tree.name_at, at[0], side="right")) - 1
            return f"{show(tree.path(entry))} has {called} in its name"
    if (tree.link_names == 0).any() or (np.diff(tree.link_at) > TARGET_MAX_BYTES).any():
        return "a link has an impossible target"
    dot = np.append(tree.names, np.uint8(0))[tree.name_at[:-1]] == ord(".")
    last_dot = np.append(tree.names, np.uint8(0))[tree.name_at[1:] - 1] == ord(".")
    upwards = (dot & (lengths == 1)) | (dot & last_dot & (lengths == 2))
    upwards[0] = False
    if upwards.any():
        return f"{_first(tree, upwards)} leads out of its directory"
    if tree.lookup(0, CONTROL_NAME) >= 0:
        return f"{show(CONTROL_NAME)} is in the root, where the mount has its control folder"
    twice = _not_ascending(tree)
    if twice >= 0:
        return f"{show(tree.path(twice))} is there twice, or not in order"
    return ""


def _first(tree: Tree, mask: NDArray[np.bool_]) -> str:
    return show(tree.path(int(np.flatnonzero(mask)[0])))


def _are_offsets(at: NDArray[np.int64], count: int, length: int) -> bool:
    # Neighbors are compared directly: their difference may overflow and change its sign.
    return len(at) == count + 1 and at[0] == 0 and at[-1] == length and bool((at[1:] >= at[:-1]).all())


def _not_ascending(tree: Tree) -> int:
    """An entry whose name does not sort after its previous sibling's, or -1. Compares eight bytes of all at a time."""
    padded = np.append(tree.names, np.zeros(NAME_MAX_BYTES + 9, np.uint8))
    windows = np.lib.stride_tricks.sliding_window_view(padded, 8)
    lengths = np.diff(tree.name_at)
    later = np.flatnonzero(np.diff(tree.parent) == 0) + 1
    later = later[later > 1]
    offset = 0
    while len(later):
        below = _word(windows, tree.name_at[later - 1] + offset, lengths[later - 1] - offset)
        above = _word(windows, tree.name_at[later] + offset, lengths[later] - offset)
        ended = (below == above) & (lengths[later] <= offset + 8) & (lengths[later - 1] <= offset + 8)
        wrong = (below > above) | ended
        if wrong.any():
            return int(later[wrong][0])
        later = later[below == above]
        offset += 8
    return -1


def _word(windows: NDArray[np.uint8], at: NDArray[np.int64], left: NDArray[np.int64]) -> NDArray[Any]:
    """Eight bytes of each name as one number that sorts like them. Bytes after a name's end count as zeros."""
    window = windows[at]
    window[np.arange(8) >= left[:, None]] = 0
    return window.view(">u8").ravel()


def wrong_catalog(catalog: Catalog) -> str:
    """The fault in samples or classes, or ""."""
    classes = len(catalog.class_names)
    class_of, members = catalog.class_of, catalog.members
    if len(catalog.tree_of_class) != classes or not in_range(catalog.tree_of_class, len(catalog.class_trees)):
        return "the classes are counted wrong"
    if not in_range(class_of, classes) or (np.diff(class_of) < 0).any():
        return "a sample has no class"
    if (np.bincount(class_of, minlength=classes) == 0).any():
        return "a class has no sample"
    if (np.bincount(members, minlength=1) > 1).any():
        return "a file belongs to two samples"
    if not (catalog.tree.mode[members] & np.uint32(0o170000) == stat.S_IFREG).all():
        return "a sample is not a file"
    files = np.diff(catalog.member_at)
    same_class = np.diff(class_of) == 0
    if (files > MEMBERS_MAX).any() or (np.diff(files)[same_class] != 0).any():
        return "samples of one class have different numbers of files"
    return ""


def in_range(values: NDArray[Any], end: int) -> bool:
    """Whether all values are from 0 to below ``end``."""
    return not len(values) or bool(values.min() >= 0 and values.max() < end)
