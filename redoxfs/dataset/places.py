"""Checks on the places of samples for `--classes auto` (see evidence): one level of directories below splits?"""

from __future__ import annotations

import os

import numpy as np

from redoxfs.dataset import mirrors
from redoxfs.dataset.beside import Names
from redoxfs.dataset.class_trees import place_of
from redoxfs.dataset.errors import show
from redoxfs.dataset.scene import Against, Doubt, Scene
from redoxfs.dataset.splits import is_split, names_split, parts_named, split_of_name, without_split


def shape(scene: Scene) -> Doubt | None:
    """Samples must lie below splits in one place, each at one depth; or below one directory that is not a split."""
    tree, classes, flat = scene.tree, scene.trees.classes, scene.trees.flat
    if scene.holders[0] == 0:
        entry = scene.samples[np.argmax(tree.parent[scene.samples] == 0)]
        return Doubt(f"{scene.path(entry)} lies at the top, in no class directory")
    both = np.intersect1d(scene.holders, scene.above, assume_unique=True)
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


def nested_splits(scene: Scene) -> Doubt | None:
    """No splits at two levels, in the path or in file names: the script may use either of them."""
    tree = scene.tree
    splits = [entry for entry in scene.trees.classes if is_split(tree.name(entry))]
    for split in splits:
        above = place_of(tree, split)
        while above:
            if is_split(tree.name(above)):
                return Doubt(f"{scene.path(split)} is a split inside a split")
            above = int(tree.parent[above])
    samples = scene.classified
    bits = split_of_name(tree, samples)
    above_of = tree.parent[tree.parent[samples]]
    _, first, inverse = np.unique(above_of, return_index=True, return_inverse=True)
    differs = np.flatnonzero(bits != bits[first][inverse])
    if len(differs):
        one, other = samples[differs[0]], samples[first[inverse[differs[0]]]]
        return Doubt(f"{scene.path(one)} and {scene.path(other)} lie in one directory and name different splits")
    return None


def split_classes(scene: Scene) -> Doubt | None:
    """No directory in the place of a class may have a split's name: my_train_640, or mytrain beside mytest."""
    tree = scene.tree
    suspects = set(scene.holders.tolist())
    for above in scene.above.tolist():
        entry = above
        while entry and entry not in suspects:
            suspects.add(entry)
            entry = int(tree.parent[entry])
    without_word: dict[tuple[int, bytes], tuple[bytes, int]] = {}
    for entry in sorted(suspects):
        name = tree.name(entry)
        if is_split(name):
            continue
        if names_split(name):
            return Doubt(f"{scene.path(entry)} is named like a split rather than a class")
        found = without_split(name)
        if found is None:
            continue
        word, rest = found
        first = without_word.setdefault((int(tree.parent[entry]), rest), (word, entry))
        if first[0] != word:
            return Doubt(f"{scene.path(first[1])} and {scene.path(entry)} are named like splits rather than classes")
    return None


def parallel_splits(scene: Scene) -> Doubt | None:
    """Splits of one part of the data (train_images, train_masks) must not share stems in equal places."""
    tree = scene.tree
    by_part: dict[bytes, dict[bytes, list[int]]] = {}
    for split in scene.trees.flat:
        for part in parts_named(tree.name(split)):
            by_part.setdefault(part, {}).setdefault(b"", []).append(split)
    for split, directories in scene.trees.classes.items():
        for part in parts_named(tree.name(split)):
            for directory in directories:
                by_part.setdefault(part, {}).setdefault(tree.name(directory), []).append(directory)
    for places in by_part.values():
        alike = [directories for directories in places.values() if len(directories) > 1]
        if not alike:
            continue
        group = np.full(len(tree), -1, np.int32)
        for number, directories in enumerate(alike):
            group[directories] = number
        entries = scene.samples[group[tree.parent[scene.samples]] >= 0]
        pair = mirrors.across(tree, entries, group)
        if pair is not None:
            one, other = (scene.path(entry) for entry in pair)
            return Doubt(
                f"{one} and {other} may be parts of one sample (their splits are the same part of the data, and their"
                " names match)",
                Against.DIR | Against.ANY,
            )
    return None


def parallel_beside(scene: Scene) -> Doubt | None:
    """If SOURCE is a split, a split of the same part beside it (train_masks) may hold parts of its samples."""
    if not scene.own_split:
        return None
    classes = {os.fsdecode(scene.tree.name(entry)) for entry in scene.trees.directories.tolist()}
    for name, names in scene.beside.splits.items():
        if parts_named(os.fsencode(name)) & parts_named(scene.own_split) and (
            names is None or _may_be_parts(names, classes)
        ):
            return Doubt(
                f"{show(os.fsencode(name))} beside the source is the same part of the data and may hold parts of its"
                " samples",
                Against.DIR | Against.ANY,
            )
    return None


def _may_be_parts(names: Names, classes: set[str]) -> bool:
    return bool(names.files) or not classes.isdisjoint(names.directories)
