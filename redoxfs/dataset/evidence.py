"""`--classes auto`: proof that the directory is the label, or the doubt that there is.

The default mount redirects only where the tree leaves no other reading than "one directory, one class".
Each check below looks for one other reading and returns it as a sentence; the first doubt decides. No check
weighs for against: a wrong "none" costs the user one option, a wrong "dir" costs a training run with wrong
labels and no sign of it.

A check is a function from the Scene to a sentence or None. To add one, add it to CHECKS, cheap and telling
ones first, and a row to the table in docs/classes.md.
"""

from __future__ import annotations

import stat

import numpy as np
from numpy.typing import NDArray

from redoxfs.dataset import mirrors, series
from redoxfs.dataset.label_files import arrays_beside, label_files
from redoxfs.dataset.places import nested_splits, numbered, role_directories, shape, split_classes
from redoxfs.dataset.samples import hidden
from redoxfs.dataset.scene import IF_LABEL, OPTIONS, Check, Scene
from redoxfs.dataset.tree import Tree


def find_doubt(tree: Tree, mask: NDArray[np.bool_], *, grouped: bool) -> str | None:
    """The first reason not to redirect by directory, with the option to use instead; None where there is no doubt.

    `mask` is bool[N], the sample files; `grouped` says that the user joined files to samples.
    """
    samples = np.flatnonzero(mask)
    holders = np.unique(tree.parent[samples]).astype(np.int64)
    above = np.unique(tree.parent[holders]).astype(np.int64)
    scene = Scene(tree, samples, holders, above, hidden(tree), grouped)
    for check in CHECKS:
        doubt = check(scene)
        if doubt is not None:
            return doubt
    return None


def links(scene: Scene) -> str | None:
    """A symlink or a second name shows one file under two directories."""
    tree = scene.tree
    if len(tree.link_entry):
        return f"{scene.path(tree.link_entry[0])} is a symlink, so a file may have two labels; {OPTIONS}"
    second = scene.samples[tree.nlink[scene.samples] > 1]
    if len(second):
        return f"{scene.path(second[0])} has another name (hard link), so a file may have two labels; {OPTIONS}"
    return None


def no_samples(scene: Scene) -> str | None:
    """There must be something to redirect."""
    if len(scene.samples):
        return None
    files = np.flatnonzero(scene.tree.kind_mask(stat.S_IFREG))
    if not len(files):
        return "the source holds no files"
    return (
        f"none of {len(files):,} files ({scene.path(files[0])}, …) counts as a sample; name the samples with"
        " --samples GLOB"
    )


def groups_given(scene: Scene) -> str | None:
    """With samples of several files, the tree's shape proves nothing."""
    return f"with --groups redoxfs does not guess the label; {OPTIONS}" if scene.grouped else None


def parts_within(scene: Scene) -> str | None:
    """A sample must be one file: no 0001.jpg + 0001.png, no 0001.png + 0001_mask.png."""
    pair = mirrors.within(scene.tree, scene.samples)
    if pair is None:
        return None
    return (
        f"{scene.path(pair[0])} and {scene.name(pair[1])} may be parts of one sample; {IF_LABEL}, with --groups stem"
        " where files that share a stem belong together"
    )


def parts_across(scene: Scene) -> str | None:
    """No directory may hold the stems of its sibling: image and mask, left and right, frame and frame."""
    pair = mirrors.across(scene.tree, scene.samples)
    if pair is None:
        return None
    return (
        f"{scene.path(pair[0])} and {scene.path(pair[1])} may be parts of one sample (their names match); if the"
        " directory is the label: --classes dir"
    )


def told_apart(scene: Scene) -> str | None:
    """No directory may hold files whose names come in several kinds: they say more than the directory does."""
    pair = series.several(scene.tree, scene.samples)
    if pair is None:
        return None
    return (
        f"{scene.path(pair[0])} and {scene.name(pair[1])} lie in one directory and are named in different ways, so the"
        f" label may be in the name; {OPTIONS}"
    )


CHECKS: tuple[Check, ...] = (
    links,
    no_samples,
    groups_given,
    label_files,
    arrays_beside,
    role_directories,
    shape,
    split_classes,
    nested_splits,
    numbered,
    parts_within,
    parts_across,
    told_apart,
)
