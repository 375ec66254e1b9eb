"""The proof that the directories of a split are classes, for `--classes auto` (see evidence).

There are two proofs. Another part of the data (val beside train) has directories of the same names, and these are not
all numbers. Or all directories are WordNet ids, and the split's whole name is a split word: ILSVRC2013_train is also a
split, but of a dataset whose labels are boxes.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from redoxfs.dataset.errors import show
from redoxfs.dataset.scene import Scene
from redoxfs.dataset.splits import is_split, is_split_word, parts_named

_WORDNET = re.compile(rb"n\d{8}")


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether the directories of a split are classes beyond doubt, and a clause with the reason or what is missing."""

    holds: bool
    because: str
    known: bool = False  # the classes are WordNet ids


def prove(scene: Scene) -> dict[int, Proof]:
    """The proof of each class tree (entry)."""
    names = {split: frozenset(map(scene.tree.name, holders)) for split, holders in scene.trees.classes.items()}
    splits: dict[frozenset[bytes], list[int]] = {}
    for split, inside in names.items():
        if is_split(_name(scene, split)):
            splits.setdefault(inside, []).append(split)
    return {split: _prove(scene, split, inside, splits.get(inside, [])) for split, inside in names.items()}


def _prove(scene: Scene, split: int, names: frozenset[bytes], alike: list[int]) -> Proof:
    holders, own = scene.trees.classes[split], _name(scene, split)
    if len(holders) == 1:
        return Proof(False, f"{scene.path(holders[0])} is the only directory with samples in {scene.path(split)}")
    what = "nothing shows that " + " and ".join(map(scene.path, holders[:2])) + " are classes"
    if not is_split(own):
        return Proof(False, f"{what}: there is no second split (train, val, …) with the same directories")
    if is_split_word(own) and all(map(_WORDNET.fullmatch, names)):
        return Proof(True, f"its {len(names):,} class directories are WordNet ids", known=True)
    if not all(_shares_part(own, _name(scene, other)) for other in alike):
        because = f"{len(alike)} splits have the same {len(names):,} class directories"
    elif split == 0 and (twin := _twin_beside(scene, names)) is not None:
        because = f"{twin} beside the source has the same {len(names):,} class directories"
    else:
        return Proof(False, f"{what}: no other split has the same directories")
    if all(name.isdigit() for name in names):
        return Proof(False, f"{what}: the names of all their directories are numbers")
    return Proof(True, because)


def _twin_beside(scene: Scene, names: frozenset[bytes]) -> str | None:
    for text, inside in scene.beside.splits.items():
        name = os.fsencode(text)
        if inside is None or not is_split(name) or _shares_part(scene.own_split, name):
            continue
        if names == frozenset(map(os.fsencode, inside.directories)):
            return show(name)
    return None


def _shares_part(one: bytes, other: bytes) -> bool:
    return not parts_named(one).isdisjoint(parts_named(other))


def _name(scene: Scene, split: int) -> bytes:
    return scene.tree.name(split) if split else scene.own_split
