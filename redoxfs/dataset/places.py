"""Checks on the places of samples for `--classes auto` (see evidence): one level of directories below splits?"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from redoxfs.arrays import is_in
from redoxfs.dataset.beside import Names
from redoxfs.dataset.class_trees import place_of
from redoxfs.dataset.errors import show
from redoxfs.dataset.scene import Against, Doubt, Scene
from redoxfs.dataset.splits import glued_among, is_split, parts_named


def shape(scene: Scene) -> Doubt | None:
    """Samples must lie below splits in one place, each at one depth; or below one directory that is not a split."""
    tree, classes, flat = scene.tree, scene.trees.classes, scene.trees.flat
    if scene.holders[0] == 0:
        entry = scene.samples[np.argmax(tree.parent[scene.samples] == 0)]
        return Doubt(f"{scene.path(entry)} lies at the top, in no class directory")
    both = scene.holders[is_in(scene.holders, tree.parent[scene.holders])]
    if len(both):
        return Doubt(f"{scene.path(both[0])} holds both samples and directories of samples")
    if not classes:
        entry = scene.samples[np.argmax(tree.parent[scene.samples] == flat[0])]
        return Doubt(f"{scene.path(entry)} lies directly in the split {scene.path(flat[0])}")
    splits = [*classes, *flat]
    if len(splits) == 1:
        return None
    if 0 in classes:
        if flat:
            return Doubt(f"{scene.path(flat[0])} is named like a split but lies among directories of samples")
        other = next(entry for entry in classes if entry)
        one = classes[0][0]
        return Doubt(
            f"samples lie at more than one depth: in {scene.path(one)} and below {scene.path(other)}",
            Against.DIR_UNPROVEN,
        )
    place = place_of(tree, splits[0])
    for split in splits:
        if place_of(tree, split) != place:
            return Doubt(
                f"samples lie at more than one place: below {scene.path(splits[0])} and below {scene.path(split)}",
                Against.DIR_UNPROVEN,
            )
    for entry in classes:
        if not is_split(tree.name(entry)):
            return Doubt(
                f"{scene.path(entry)} holds directories of samples but is not named like a split (train, val, …)"
            )
    return None


def splits_of_one_part(scene: Scene) -> Iterator[list[int]]:
    """Directories of one name in several splits of one part of the data, such as train_images and train_masks."""
    by_place: dict[tuple[bytes, bytes], list[int]] = {}
    for split in [*scene.trees.flat, *scene.trees.classes]:
        for part in parts_named(scene.tree.name(split)):
            for directory in scene.trees.classes.get(split, [split]):
                name = b"" if directory == split else scene.tree.name(directory)
                by_place.setdefault((part, name), []).append(directory)
    for directories in by_place.values():
        if len(directories) > 1:
            yield directories


def parallel_beside(scene: Scene) -> Doubt | None:
    """If SOURCE is a split, a split of the same part beside it (train_masks) may hold parts of its samples."""
    if not scene.own_split:
        return None
    classes = {os.fsdecode(scene.tree.name(entry)) for entry in scene.trees.directories.tolist()}
    glued = glued_among([scene.own_split, *map(os.fsencode, scene.beside.names.directories)])
    for name, names in scene.beside.splits.items():
        of = os.fsencode(name)
        parts = parts_named(of) or parts_named(glued.get(of, b""))
        if parts & parts_named(scene.own_split) and (names is None or _may_be_parts(names, classes)):
            return Doubt(
                f"{show(os.fsencode(name))} beside the source is the same part of the data and may hold parts of its"
                " samples",
                Against.DIR | Against.ANY,
            )
    return None


def _may_be_parts(names: Names, classes: set[str]) -> bool:
    return bool(names.files) or not classes.isdisjoint(names.directories)
