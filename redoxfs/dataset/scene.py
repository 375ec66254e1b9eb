"""What the checks of `--classes auto` look at (see evidence)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redoxfs.dataset.errors import show
from redoxfs.dataset.tree import Tree

IF_LABEL = "if the directory is the label use --classes dir"
OPTIONS = f"{IF_LABEL}, if there are no labels --classes any, else --classes FILE.csv"


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """What the checks look at: the tree, its samples, the directories that hold them (P) and those above (G)."""

    tree: Tree
    samples: NDArray[np.int64]  # entries, ascending
    holders: NDArray[np.int64]  # P, ascending
    above: NDArray[np.int64]  # G, ascending
    hidden: NDArray[np.bool_]  # [N]
    grouped: bool

    def path(self, entry: int) -> str:
        return show(self.tree.path(int(entry)))

    def name(self, entry: int) -> str:
        return show(self.tree.name(int(entry)))


Check = Callable[[Scene], str | None]
