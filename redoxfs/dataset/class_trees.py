"""The places of samples: directories that could be classes, the trees that they form, and flat splits.

A *class tree* is a directory whose child directories hold samples: train/cat and train/dog lie in the class tree train.
A directory that holds samples and is named like a split is *flat*: it is never a class, whatever lies beside it.

If the only entry of a directory is a directory of the same name (training_set/training_set, as many archives unpack),
the two count as one: the content of the inner one lies beside the siblings of the outer one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redoxfs.dataset.beside import own_name
from redoxfs.dataset.splits import glued_splits, is_split, names_split, split_of_directory
from redoxfs.dataset.tree import Tree


@dataclass(frozen=True, slots=True, eq=False)
class ClassTrees:
    """All directories that hold samples, as entries of the tree; each is in one of the two."""

    classes: dict[int, list[int]]  # class tree -> the directories of samples in it, both ascending
    flat: list[int]  # directories named like splits that hold samples; ascending

    @property
    def directories(self) -> NDArray[np.int64]:
        """All possible class directories, ascending."""
        return np.array(sorted(entry for entries in self.classes.values() for entry in entries), np.int64)


def find_trees(tree: Tree, holders: NDArray[np.int64]) -> ClassTrees:
    """The class trees of the directories `holders`, which hold samples."""
    classes: dict[int, list[int]] = {}
    flat: list[int] = []
    for holder in holders.tolist():
        if is_split(tree.name(holder)):
            flat.append(holder)
        else:
            classes.setdefault(place_of(tree, holder), []).append(holder)
    return ClassTrees(dict(sorted(classes.items())), flat)


def place_of(tree: Tree, directory: int) -> int:
    """The parent of a directory, past parents that hold only a directory of their own name."""
    while directory:
        parent = int(tree.parent[directory])
        if parent == 0 or tree.name(parent) != tree.name(directory) or _shown_in(tree, parent) > 1:
            return parent
        directory = parent
    return 0


def _shown_in(tree: Tree, directory: int) -> int:
    return sum(not name.startswith(b".") for name in tree.names_of(tree.children_of(directory)))


@dataclass(frozen=True, slots=True, eq=False)
class Unnamed:
    """Directories that `--classes dir` does not take for classes: their names cannot be labels. Entries, ascending."""

    in_source: list[int]  # SOURCE itself, at most
    splits: list[int]
    lone: list[int]


def possible_classes(tree: Tree, holders: NDArray[np.int64]) -> tuple[NDArray[np.int64], Unnamed]:
    """Divide `holders`, directories that hold samples, into those that `--classes dir` takes for classes and the rest.

    The rest are SOURCE itself, directories named like splits, and lone directories. A class has a meaning only beside
    another class: the only directory of samples in its place (train/images, all) is a folder rather than a class.
    """
    rest = Unnamed([], [], [])
    beside: dict[int, list[int]] = {}
    glued = glued_splits(tree)
    for holder in holders.tolist():
        if holder == 0:
            rest.in_source.append(holder)
        elif names_split(tree.name(holder)) or holder in glued:
            rest.splits.append(holder)
        else:
            beside.setdefault(place_of(tree, holder), []).append(holder)
    rest.lone.extend(sorted(entries[0] for entries in beside.values() if len(entries) == 1))
    taken = sorted(entry for entries in beside.values() if len(entries) > 1 for entry in entries)
    return np.array(taken, np.int64), rest


def is_single(tree: Tree, directories: NDArray[np.int64]) -> bool:
    """Whether no split's name divides the class directories, so the script has to split them itself."""
    if not len(directories) or (is_split(own_name(tree)) and not tree.parent[directories].any()):
        return False
    of_directory, _, _ = split_of_directory(tree)
    return not of_directory[directories].any()
