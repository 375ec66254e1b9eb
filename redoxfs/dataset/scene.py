"""The input and the result of the checks of `--classes auto` (see evidence)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Flag, auto

import numpy as np
from numpy.typing import NDArray

from redoxfs.dataset.beside import Beside, own_name
from redoxfs.dataset.class_trees import ClassTrees
from redoxfs.dataset.errors import show
from redoxfs.dataset.splits import is_split
from redoxfs.dataset.tree import Tree

TABLE = "--classes FILE.csv, for one label a file (boxes, pairs and order would be wrong)"
"""A table as a suggestion. It is never made without the condition: a table has no way to say what a box is."""

STEM = (
    "if files with one stem are one sample, the script opens them together, each time, and their directory is the"
    " label: --groups stem --classes dir"
)


class Against(Flag):
    """The options that would give wrong labels if a doubt is right."""

    NOTHING = 0
    DIR_UNPROVEN = auto()  # --classes dir, unless several splits have the same directories
    DIR = auto()
    ANY = auto()
    SAMPLER = auto()
    TABLE = auto()  # there is nothing that any option could redirect


@dataclass(frozen=True, slots=True)
class Doubt:
    """A reason not to redirect by directory, as a clause. `instead` is an option that only this reason suggests."""

    what: str
    against: Against = Against.NOTHING
    instead: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """The tree, its samples, their directories (P), and the names around SOURCE."""

    tree: Tree
    samples: NDArray[np.int64]  # entries, ascending
    holders: NDArray[np.int64]  # P, ascending
    trees: ClassTrees
    hidden: NDArray[np.bool_]  # [N]
    grouped: bool
    beside: Beside
    root_fd: int | None  # open on SOURCE, to read a list of names in it; None: nothing is read

    @property
    def own_split(self) -> bytes:
        """The name of SOURCE if it is named like a split and has directories of samples; else b""."""
        own = own_name(self.tree)
        return own if 0 in self.trees.classes and is_split(own) else b""

    def path(self, entry: int) -> str:
        return show(self.tree.path(int(entry)))

    def name(self, entry: int) -> str:
        return show(self.tree.name(int(entry)))


Check = Callable[[Scene], Doubt | None]


def hint(
    against: Against, *, is_proven: bool, has_directories: bool, is_single: bool, instead: str = "", read: str = ""
) -> str:
    """The options that no doubt speaks against, as the end of a line. A table always fits.

    `is_single`: all class directories lie in one tree, so the script has to split it, and no name shows how.
    `read`: what the script could do with names.
    """
    fits = [instead] if instead else []
    dir_is_out = Against.DIR in against or (Against.DIR_UNPROVEN in against and not is_proven)
    if has_directories and not dir_is_out:
        caution = " (but a split that the script makes itself, such as random_split or validation_split, would mix)"
        only = f" and the script does not {read}" if read else ""
        fits.append(f"if the directory is the label{only}: --classes dir{caution if is_single else ''}")
    if Against.ANY not in against:
        fits.append("if there are no labels: --classes any")
    if Against.SAMPLER not in against:
        fits.append("if the script can take a sampler: --classes sampler")
    return "; ".join([*fits, f"else: {TABLE}" if fits else TABLE])
