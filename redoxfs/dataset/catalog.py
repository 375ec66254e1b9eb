"""The catalog: the samples of a tree, and the classes within which they may stand in for each other.

Invariants:

- Only redirected samples have numbers, 0..S-1, in the order of class, then directory path, then name. Classes are
  dense, 0..C-1, and never decrease along the samples.
- Each regular file belongs to at most one sample. A file of no sample is never redirected.
- The members of a sample are in role order, the same for every sample of its class. So the n-th member of one sample
  stands in for the n-th member of another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from redoxfs.dataset.tree import Tree

Mode = Literal["dir", "any", "sampler", "none", "csv", "member"]

# The end of a verdict's line about a directory. A packed dataset, whose classes are fixed, leaves it out.
TURN_OFF = "; --classes none turns this off"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result for one split, or for the whole source (".")."""

    split: str
    redirected: bool
    because: str  # a clause
    directories: int  # that hold samples
    samples: int  # files


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision about classes, in words.

    `line` is one line: the choice, its reason, and the option that changes it. `saw` has further lines for the user.
    `splits` has what `auto` and `dir` found about each split.
    """

    asked: str
    mode: Mode
    line: str
    saw: tuple[str, ...] = ()
    splits: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Catalog:
    """N tree entries, S samples, M member files, C classes."""

    tree: Tree
    sample_of: NDArray[np.int32]  # [N]; -1: not redirected
    member_of: NDArray[np.uint16]  # [N]; the file's role in its sample, an index into the sample's members
    member_at: NDArray[np.int64]  # [S + 1]
    members: NDArray[np.int32]  # [M] entries
    class_of: NDArray[np.int32]  # [S]
    class_names: list[str]
    class_trees: list[str]
    tree_of_class: NDArray[np.int32]  # [C] into class_trees, by which laps are reported
    sample_bytes: NDArray[np.int64]  # [S]; the sum over the members
    verdict: Verdict
    sample_files: int  # files that count as samples, redirected or not

    @classmethod
    def of_samples(
        cls,
        tree: Tree,
        member_at: NDArray[np.int64],
        members: NDArray[np.int32],
        *,
        class_of: NDArray[np.int32],
        class_names: list[str],
        class_trees: list[str],
        tree_of_class: NDArray[np.int32],
        verdict: Verdict,
        sample_files: int,
    ) -> Catalog:
        """A catalog with what follows from the members of its samples, of which each has one or more."""
        samples, lengths = len(class_of), np.diff(member_at)
        sample_of = np.full(len(tree), -1, np.int32)
        sample_of[members] = np.repeat(np.arange(samples, dtype=np.int32), lengths)
        member_of = np.zeros(len(tree), np.uint16)
        member_of[members] = np.arange(len(members)) - np.repeat(member_at[:-1], lengths)
        return cls(
            tree=tree,
            sample_of=sample_of,
            member_of=member_of,
            member_at=member_at,
            members=members,
            class_of=class_of,
            class_names=class_names,
            class_trees=class_trees,
            tree_of_class=tree_of_class,
            sample_bytes=np.add.reduceat(tree.size[members], member_at[:-1]) if samples else np.zeros(0, np.int64),
            verdict=verdict,
            sample_files=sample_files,
        )

    @property
    def is_for_sampler(self) -> bool:
        """Whether each open returns its own file, and a sampler asks for the order."""
        return self.verdict.mode == "sampler"
