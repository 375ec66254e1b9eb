"""`--classes auto`: proof that the directory is the label, split by split, or the doubt that there is.

The absence of reasons against it proves nothing: a tree of cameras, cities or speakers may look like one of classes,
with the labels in a file outside SOURCE. So a split is redirected only where the tree says twice what the classes are
(`_proof`): the same directories under several splits, or names from WordNet. And whatever speaks against it stops it:
each check below looks for one other reading of the tree and returns it as a Doubt; the first decides, for all splits.
No check weighs for against: a wrong "none" costs the user one option, a wrong "dir" costs a training run with wrong
labels and no sign of it.

A check is a function from the Scene to a Doubt or None. To add one, add it to CHECKS, cheap and telling ones first,
and a row to the table in docs/classes.md.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import or_

import numpy as np
from numpy.typing import NDArray

from redoxfs.dataset import mirrors, series
from redoxfs.dataset.beside import Beside
from redoxfs.dataset.class_trees import classes_by_word, find_trees, is_single
from redoxfs.dataset.directory_names import numbered, role_directories, sensors
from redoxfs.dataset.errors import show
from redoxfs.dataset.label_files import arrays_beside, label_files, label_files_beside
from redoxfs.dataset.places import nested_splits, parallel_beside, parallel_splits, shape, split_classes
from redoxfs.dataset.samples import hidden
from redoxfs.dataset.scene import Against, Check, Doubt, Scene, hint
from redoxfs.dataset.splits import is_split, is_split_word, parts_named
from redoxfs.dataset.tree import Tree

_WORDNET = re.compile(rb"n\d{8}")


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found out about one split, or about the whole source ("."), as a clause."""

    split: str
    redirected: bool
    because: str
    directories: int  # of samples, in it
    samples: int  # files


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """What `auto` redirects: the samples in `directories` (entries, ascending); none where `refusal` is a line."""

    directories: NDArray[np.int64]
    findings: tuple[Finding, ...]
    refusal: str | None


def judge(
    tree: Tree, mask: NDArray[np.bool_], *, grouped: bool, root_fd: int | None = None, beside: Beside | None = None
) -> Judgement:
    """Which directories are classes beyond doubt.

    `mask` is bool[N], the sample files; `grouped` says that the user joined files to samples; `root_fd` is open on the
    directory itself; `beside` is what lies beside it, for a source that is a split itself.
    """
    scene = scene_of(tree, mask, grouped=grouped, root_fd=root_fd, beside=beside)
    doubt = next((found for check in CHECKS if (found := check(scene)) is not None), None)
    proofs = {} if doubt is not None else {split: _proof(scene, split) for split in scene.trees.classes}
    taken = sorted(entry for split, proof in proofs.items() if proof for entry in scene.trees.classes[split])
    refusal = None
    if not taken:
        refusal = _refusal(scene, doubt or _unproven(scene))
    return Judgement(np.array(taken, np.int64), tuple(_findings(scene, doubt, proofs)), refusal)


def _findings(scene: Scene, doubt: Doubt | None, proofs: dict[int, str | None]) -> Iterator[Finding]:
    sizes = np.bincount(scene.tree.parent[scene.samples], minlength=len(scene.tree))
    for split in sorted([*scene.trees.classes, *scene.trees.flat]):
        holders = scene.trees.classes.get(split, [split])
        proof = proofs.get(split)
        if split not in scene.trees.classes:
            because = "samples lie directly in the split"
        else:
            because = doubt.what if doubt is not None else proof or _lack(scene, split)
        yield Finding(_shown(scene, split), bool(proof), because, len(holders), int(sizes[holders].sum()))


def scene_of(
    tree: Tree, mask: NDArray[np.bool_], *, grouped: bool, root_fd: int | None = None, beside: Beside | None = None
) -> Scene:
    """What the checks look at; arguments as those of `judge`."""
    samples = np.flatnonzero(mask)
    holders = np.unique(tree.parent[samples]).astype(np.int64)
    above = np.unique(tree.parent[holders]).astype(np.int64)
    trees = find_trees(tree, holders)
    classified = samples[~np.isin(tree.parent[samples], trees.flat)]
    return Scene(tree, samples, classified, holders, above, trees, hidden(tree), grouped, beside or Beside(), root_fd)


def _proof(scene: Scene, split: int) -> str | None:
    """What shows that the directories of `split` are classes, as a clause."""
    holders, names = scene.trees.classes[split], _names(scene, split)
    own = _split_name(scene, split)
    if len(holders) < 2 or not is_split(own):
        return None
    if is_split_word(own) and all(map(_WORDNET.fullmatch, names)):
        return f"its {len(names):,} class directories are WordNet ids"
    twins = _twins(scene, split)
    if twins and not all(name.isdigit() for name in names):
        return f"{twins[0]} has the same {len(names):,} class directories"
    return None


def _twins(scene: Scene, split: int) -> list[str]:
    """The splits of another part of the data that have directories of the same names."""
    names = _names(scene, split)
    own = parts_named(_split_name(scene, split))
    found = [
        _shown(scene, other)
        for other in scene.trees.classes
        if other != split and not own & parts_named(_split_name(scene, other)) and _names(scene, other) == names
    ]
    if split == 0:
        for text, inside in scene.beside.splits.items():
            name, held = os.fsencode(text), set() if inside is None else set(map(os.fsencode, inside.directories))
            if is_split(name) and not own & parts_named(name) and held == names:
                found.append(f"{show(name)} beside the source")
    return found


def _lack(scene: Scene, split: int) -> str:
    """Why there is no proof for `split`, as a clause."""
    holders = scene.trees.classes[split]
    if len(holders) == 1:
        return f"{scene.path(holders[0])} is the only directory with samples in {_shown(scene, split)}"
    if not is_split(_split_name(scene, split)):
        what = "nothing shows that {} are classes: there is no second split (train, val, …) with the same directories"
    elif _twins(scene, split):
        what = "nothing shows that {} are classes: all directories of the splits are numbers"
    else:
        what = "nothing shows that {} are classes: no other split has the same directories"
    return what.format(" and ".join(scene.path(holder) for holder in holders[:2]))


def _unproven(scene: Scene) -> Doubt:
    """What is missing where nothing is proven: of the first split that has several directories, else of the first."""
    classes = scene.trees.classes
    split = next((entry for entry, holders in classes.items() if len(holders) > 1), next(iter(classes)))
    return Doubt(_lack(scene, split))


def _refusal(scene: Scene, doubt: Doubt) -> str:
    """The line for people: the doubt, and the options that nothing that was seen speaks against."""
    if not scene.tree.kind_mask(stat.S_IFREG).any():
        return doubt.what
    if not len(scene.holders):
        options = hint(Against.ANY, is_proven=False, has_directories=False, is_single=False, instead=doubt.instead)
        return f"{doubt.what}; {options}"
    others = [found.against for check in CHECKS if (found := check(scene)) is not None]
    if series.several(scene.tree, scene.samples) is not None:
        # Also where they lie directly in a split: the label may be in the name.
        others.append(Against.ANY)
    directories, _ = classes_by_word(scene.tree, scene.holders)
    options = hint(
        reduce(or_, others, doubt.against),
        is_proven=any(_proof(scene, split) for split in scene.trees.classes),
        has_directories=len(directories) > 0,
        is_single=is_single(scene.tree, directories),
        instead=doubt.instead,
    )
    return f"{doubt.what}; {options}"


def _names(scene: Scene, split: int) -> frozenset[bytes]:
    return frozenset(scene.tree.name(entry) for entry in scene.trees.classes[split])


def _split_name(scene: Scene, split: int) -> bytes:
    return scene.tree.name(split) if split else scene.own_split


def _shown(scene: Scene, split: int) -> str:
    return scene.path(split)


def links(scene: Scene) -> Doubt | None:
    """A symlink or a second name shows one file under two directories."""
    tree = scene.tree
    if len(tree.link_entry):
        return Doubt(f"{scene.path(tree.link_entry[0])} is a symlink, so a file may have two labels")
    second = scene.samples[tree.nlink[scene.samples] > 1]
    if len(second):
        return Doubt(f"{scene.path(second[0])} has another name (hard link), so a file may have two labels")
    return None


def no_samples(scene: Scene) -> Doubt | None:
    """There must be something to redirect."""
    if len(scene.samples):
        return None
    files = np.flatnonzero(scene.tree.kind_mask(stat.S_IFREG))
    if not len(files):
        return Doubt("the source holds no files")
    return Doubt(
        f"none of {len(files):,} files ({scene.path(files[0])}, …) counts as a sample",
        instead="to name the samples: --samples GLOB",
    )


def groups_given(scene: Scene) -> Doubt | None:
    """With samples of several files, the tree's shape proves nothing."""
    return Doubt("with --groups redoxfs does not guess the label") if scene.grouped else None


def parts_within(scene: Scene) -> Doubt | None:
    """A sample must be one file: no 0001.jpg + 0001.png, no 0001.png + 0001_mask.png."""
    pair = mirrors.within(scene.tree, scene.samples)
    if pair is None:
        return None
    one, other = (scene.tree.name(entry) for entry in pair)
    instead = ""
    if os.path.splitext(one)[0] == os.path.splitext(other)[0]:
        instead = "if files that share a stem are one sample, and the directory its label: --groups stem --classes dir"
    return Doubt(
        f"{scene.path(pair[0])} and {scene.name(pair[1])} may be parts of one sample",
        Against.DIR | Against.ANY,
        instead,
    )


def parts_across(scene: Scene) -> Doubt | None:
    """No directory may hold the stems of its sibling: image and mask, left and right, frame and frame."""
    pair = mirrors.across(scene.tree, scene.classified)
    if pair is None:
        return None
    return Doubt(
        f"{scene.path(pair[0])} and {scene.path(pair[1])} may be parts of one sample (their names match)",
        Against.DIR_UNPROVEN | Against.ANY,
    )


def told_apart(scene: Scene) -> Doubt | None:
    """No directory may hold files whose names come in several kinds: they say more than the directory does."""
    pair = series.several(scene.tree, scene.classified)
    if pair is None:
        return None
    return Doubt(
        f"{scene.path(pair[0])} and {scene.name(pair[1])} lie in one directory and are named in different ways, so the"
        " label may be in the name",
        Against.DIR_UNPROVEN | Against.ANY,
    )


CHECKS: tuple[Check, ...] = (
    links,
    no_samples,
    groups_given,
    label_files,
    label_files_beside,
    arrays_beside,
    role_directories,
    shape,
    split_classes,
    nested_splits,
    numbered,
    sensors,
    parallel_beside,
    parts_within,
    parallel_splits,
    parts_across,
    told_apart,
)
