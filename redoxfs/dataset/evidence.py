"""`--classes auto`: for each split, proof that the directory is the label, or a doubt.

Without a doubt there is still no proof: a tree of cameras, cities or speakers may look like a tree of classes, with the
labels in a file outside SOURCE. So a split is redirected only with proof of its own (see proof), and only if its file
names say nothing (see identities). And any doubt stops the redirection of all splits: if one part of the data is not
what it seems, the others may not be either. Each check below looks for one other meaning of the tree and returns it as
a Doubt. A fact about one split only, such as samples directly in it, is not a doubt. Reasons for and against are not
weighed: a wrong "none" costs the user one option, a wrong "dir" costs a training run with wrong labels and no sign of
it.

A check is a function from the Scene to a Doubt or None. To add a check, add it to CHECKS (cheap and frequent ones
first) and name its doubt in docs/classes.md.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from os.path import splitext

import numpy as np
from numpy.typing import NDArray

from redoxfs.arrays import distinct, is_in
from redoxfs.dataset import identities, mirrors
from redoxfs.dataset.beside import Beside
from redoxfs.dataset.catalog import Finding
from redoxfs.dataset.class_trees import find_trees, is_single, possible_classes
from redoxfs.dataset.classes import hard_links_apart, is_of_two_splits, symlink_apart
from redoxfs.dataset.directory_names import numbered, role_directories, sensors
from redoxfs.dataset.label_files import arrays_beside, label_files, label_files_beside
from redoxfs.dataset.places import parallel_beside, shape, splits_of_one_part
from redoxfs.dataset.proof import Proof, prove
from redoxfs.dataset.randomness import Told
from redoxfs.dataset.samples import OF_MANY_SAMPLES, hidden
from redoxfs.dataset.scene import STEM, Against, Check, Doubt, Scene, hint
from redoxfs.dataset.splits import is_split
from redoxfs.dataset.tree import Tree


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """`auto` redirects the samples in `directories` (entries, ascending). `refusal` is a line if it redirects none."""

    directories: NDArray[np.int64]
    findings: tuple[Finding, ...]
    refusal: str | None


def judge(
    tree: Tree, mask: NDArray[np.bool_], *, grouped: bool, root_fd: int | None = None, beside: Beside | None = None
) -> Judgement:
    """Find the directories that are classes beyond doubt.

    `mask` is bool[N], the sample files. `grouped`: the user joined files to samples. `root_fd` is open on the source.
    `beside` has the names beside the source, for a source that is itself a split.
    """
    scene = scene_of(tree, mask, grouped=grouped, root_fd=root_fd, beside=beside)
    checks = CHECKS if len(scene.samples) else (links, no_samples)
    doubts = [found for check in checks if (found := check(scene)) is not None]
    proofs = prove(scene)
    told = telling_names(scene, proofs) if len(scene.samples) else None
    if told is not None and any(proof.holds for proof in proofs.values()):
        files = " and ".join(map(scene.path, told.entries))
        doubts.append(Doubt(f"{files} {told.what}", told.against, told.instead))
    taken = [split for split, proof in proofs.items() if proof.holds] if not doubts else []
    directories = np.array(sorted(entry for split in taken for entry in scene.trees.classes[split]), np.int64)
    refusal = None if taken else _refusal(scene, doubts, proofs, told)
    return Judgement(directories, tuple(_findings(scene, doubts, proofs)), refusal)


def _findings(scene: Scene, doubts: list[Doubt], proofs: dict[int, Proof]) -> Iterator[Finding]:
    tree, classes, flat = scene.tree, scene.trees.classes, scene.trees.flat
    if doubts and not all(is_split(tree.name(split)) for split in classes):
        # Without splits, the doubt is about the whole source.
        yield Finding(".", False, doubts[0].what, len(scene.holders), len(scene.samples))
        return
    sizes = np.bincount(tree.parent[scene.samples], minlength=len(tree))
    for split in sorted([*classes, *flat]):
        holders = classes.get(split, [split])
        is_taken = split in classes and not doubts and proofs[split].holds
        if split not in classes:
            because = "samples lie directly in the split"
        else:
            because = doubts[0].what if doubts else proofs[split].because
        yield Finding(scene.path(split), is_taken, because, len(holders), int(sizes[holders].sum()))


def _refusal(scene: Scene, doubts: list[Doubt], proofs: dict[int, Proof], told: Told | None) -> str:
    """The line for the user: the first doubt, or the missing proof, and the options that no doubt speaks against."""
    doubt = doubts[0] if doubts else _unproven(scene, proofs)
    against = reduce(or_, (found.against for found in doubts), Against.NOTHING)
    if Against.TABLE in against:
        return doubt.what
    if not len(scene.samples):
        against |= Against.ANY
    if told is not None:
        against |= told.against
    directories, _ = possible_classes(scene.tree, scene.holders)
    options = hint(
        against,
        is_proven=any(proof.holds for proof in proofs.values()),
        has_directories=len(directories) > 0,
        is_single=is_single(scene.tree, directories),
        instead=doubt.instead,
        read="" if told is None else f"{told.read} {' and '.join(map(scene.path, told.entries))}",
    )
    return f"{doubt.what}; {options}"


def _unproven(scene: Scene, proofs: dict[int, Proof]) -> Doubt:
    """The missing proof: of the first split with several directories, else of the first split."""
    several = (split for split, holders in scene.trees.classes.items() if len(holders) > 1)
    split = next(several, next(iter(proofs), None))
    return Doubt("no split has directories with samples" if split is None else proofs[split].because)


def scene_of(
    tree: Tree, mask: NDArray[np.bool_], *, grouped: bool, root_fd: int | None = None, beside: Beside | None = None
) -> Scene:
    """The input of the checks. Arguments as for `judge`."""
    samples = np.flatnonzero(mask)
    holders = distinct(tree.parent[samples]).astype(np.int64)
    return Scene(tree, samples, holders, find_trees(tree, holders), hidden(tree), grouped, beside or Beside(), root_fd)


_TWO_LABELS = "so a file may have two labels"


def links(scene: Scene) -> Doubt | None:
    """No file may appear under two directories, by a symlink or a hard link."""
    tree = scene.tree
    # These two keep splits apart, and refuse such a file.
    against = Against.ANY | Against.SAMPLER if is_of_two_splits(tree, scene.samples) else Against.NOTHING
    apart = hard_links_apart(tree, scene.samples, tree.parent[scene.samples])
    if apart is not None:
        one, other = map(scene.path, apart)
        return Doubt(
            f"{one} and {other} in another directory are one file (hard links), {_TWO_LABELS}", Against.DIR | against
        )
    apart = symlink_apart(tree, scene.samples)
    if apart is not None:
        link, target = map(scene.path, apart)
        return Doubt(f"{link} is a symlink to {target} in another directory, {_TWO_LABELS}", Against.DIR | against)
    if len(tree.link_entry):
        return Doubt(f"{scene.path(tree.link_entry[0])} is a symlink, {_TWO_LABELS}", against)
    second = scene.samples[tree.nlink[scene.samples] > 1]
    if len(second):
        return Doubt(f"{scene.path(second[0])} has a second name (hard link), {_TWO_LABELS}", against)
    return None


def no_samples(scene: Scene) -> Doubt | None:
    """There must be something to redirect."""
    if len(scene.samples):
        return None
    tree = scene.tree
    files = np.flatnonzero(tree.kind_mask(stat.S_IFREG))
    if not len(files):
        return Doubt("the source holds no files", Against.TABLE)
    # Of the kind that has most of the data: a .json lies beside anything.
    kind = np.bincount(tree.extension[files], weights=tree.size[files]).argmax()
    example = int(files[np.argmax(tree.extension[files] == kind)])
    # Shards may be .tfrecord-00000-of-00010.
    if splitext(tree.name(example).lower())[1].partition(b"-")[0] in OF_MANY_SAMPLES:
        what = "holds many samples, and redoxfs helps only where each has a file of its own"
        return Doubt(f"{scene.path(example)} {what}", Against.TABLE)
    return Doubt(
        f"none of {len(files):,} files ({scene.path(example)}, …) counts as a sample",
        instead="to select the samples: --samples GLOB",
    )


def groups_given(scene: Scene) -> Doubt | None:
    """With samples of several files, the tree's shape proves nothing."""
    return Doubt("with --groups, redoxfs does not guess the label") if scene.grouped else None


def parts_within(scene: Scene) -> Doubt | None:
    """A sample must be one file: no 0001.jpg + 0001.png, no 0001.png + 0001_mask.png."""
    pair = mirrors.within(scene.tree, scene.samples)
    if pair is None:
        return None
    one, other = (scene.tree.name(entry) for entry in pair)
    instead = STEM if os.path.splitext(one)[0] == os.path.splitext(other)[0] else ""
    return Doubt(
        f"{scene.path(pair[0])} and {scene.name(pair[1])} may be parts of one sample",
        Against.DIR | Against.ANY,
        instead,
    )


def telling_names(scene: Scene, proofs: dict[int, Proof]) -> Told | None:
    """What file names say beside the class: in the splits with proof, or anywhere if none has proof."""
    parent = scene.tree.parent[scene.samples]

    def told(directories: list[int], known: bool = False) -> Told | None:
        return identities.told(scene.tree, scene.samples[is_in(parent, np.array(directories))], known=known)

    for parts in map(told, splits_of_one_part(scene)):
        if parts is not None and len(parts.entries) > 1 and parts.against:
            return replace(parts, against=Against.DIR | Against.ANY)
    proven = [split for split, proof in proofs.items() if proof.holds]
    known = bool(proven) and all(proofs[split].known for split in proven)
    flat = [] if proven else [[split] for split in scene.trees.flat]
    found = (told(directories, known) for directories in [*(scene.trees.classes[at] for at in proven or proofs), *flat])
    return next((each for each in found if each is not None), None)


CHECKS: tuple[Check, ...] = (
    links,
    no_samples,
    groups_given,
    label_files,
    label_files_beside,
    arrays_beside,
    role_directories,
    shape,
    numbered,
    sensors,
    parallel_beside,
    parts_within,
)
