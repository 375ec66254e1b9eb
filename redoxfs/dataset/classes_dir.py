"""`--classes dir`: the user's word that the directory is the label, and the warnings against it.

The word counts for directories that can be classes (`class_trees.possible_classes`). Another directory cannot name a
label: one class for all of val would mix all labels. Samples there are not redirected, and a line says so. Findings of
`auto` that are signs of wrong labels become warnings: a table beside the data, and pairs within a directory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redoxfs.arrays import distinct
from redoxfs.dataset.catalog import Finding
from redoxfs.dataset.class_trees import Unnamed, place_of, possible_classes
from redoxfs.dataset.errors import show
from redoxfs.dataset.evidence import parts_within, scene_of
from redoxfs.dataset.groups import Groups
from redoxfs.dataset.label_files import label_files
from redoxfs.dataset.scene import TABLE, Scene
from redoxfs.dataset.tree import Tree

# Directories named in a line before it says "…".
SHOWN_MAX = 3


@dataclass(frozen=True, slots=True, eq=False)
class ClassesDir:
    """The class directories (entries, ascending), the result for each split, and lines for the user."""

    directories: NDArray[np.int64]
    findings: tuple[Finding, ...]
    left_out: str | None  # the samples that are not redirected, as a clause
    warnings: tuple[str, ...]


def apply_classes_dir(
    tree: Tree, mask: NDArray[np.bool_], groups: Groups, *, grouped: bool, root_fd: int | None = None
) -> ClassesDir:
    """Apply `--classes dir` to the samples `groups`; `mask`, `grouped` and `root_fd` as for `evidence.judge`."""
    place = tree.parent[groups.first].astype(np.int64)
    directories, rest = possible_classes(tree, distinct(place))
    sizes = np.bincount(place, minlength=len(tree))
    others = int(sizes.sum() - sizes[directories].sum())
    seen = mask.copy()
    seen[groups.members] = True
    scene = scene_of(tree, seen, grouped=grouped, root_fd=root_fd)
    warnings = _warnings(scene) if len(directories) else ()
    findings = tuple(_findings(tree, directories, rest, sizes))
    return ClassesDir(directories, findings, _left_out(tree, rest, others) if others else None, tuple(warnings))


def _findings(tree: Tree, directories: NDArray[np.int64], rest: Unnamed, sizes: NDArray[np.int64]) -> Iterator[Finding]:
    trees: dict[int, list[int]] = {}
    for directory in directories.tolist():
        trees.setdefault(place_of(tree, directory), []).append(directory)
    for entry, inside in trees.items():
        yield Finding(show(tree.path(entry)), True, "by --classes dir", len(inside), int(sizes[inside].sum()))
    for entries, why in (
        (rest.in_source, "samples lie in no class directory"),
        (rest.splits, "samples lie directly in the split"),
        (rest.lone, "no other class directory lies beside it"),
    ):
        for entry in entries:
            yield Finding(show(tree.path(entry)), False, why, 1, int(sizes[entry]))


def _left_out(tree: Tree, rest: Unnamed, samples: int) -> str:
    where = ["in the source itself"] if rest.in_source else []
    if rest.splits:
        where.append(f"directly in a split ({_some(tree, rest.splits)})")
    if rest.lone:
        where.append(f"in a directory with no other class beside it ({_some(tree, rest.lone)})")
    what = "1 sample" if samples == 1 else f"{samples:,} samples"
    return f"{what} {' or '.join(where)}; to redirect them: {TABLE}"


def _some(tree: Tree, entries: list[int]) -> str:
    shown = [show(tree.path(entry)) for entry in entries[:SHOWN_MAX]]
    return ", ".join(shown + ["…"] * (len(entries) > SHOWN_MAX))


def _warnings(scene: Scene) -> Iterator[str]:
    table = label_files(scene)
    if table is not None:
        yield f"{table.what}; --classes dir does not read it; for labels from a table: {TABLE}"
    pair = None if scene.grouped else parts_within(scene)
    if pair is not None:
        yield (
            f"{pair.what}; --classes dir may answer one with the other; --groups keeps the files of a sample together,"
            " if the script opens them together, each time"
        )
