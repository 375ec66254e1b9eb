"""A public dataset's tree, and the rules that tell the true labels and splits of its files.

A rule takes a file's path below the directory with the unpacked archives, and returns the label or split that a
training script uses for it. Two files may stand in for each other if both rules agree on them. The truth comes from
the dataset's authors or its usual scripts, whether or not a name shows it: a label may come from a table outside, and
a split from a list or from chance.
"""

from __future__ import annotations

import os
import re
import stat
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

Rule = Callable[[str], str]

TEXTS = (".txt", ".csv", ".tsv", ".json", ".md", ".xml", ".TXT")
TABLE_LABELS = 5
"""The number of labels in a table outside the tree. Enough that a class of a few files is certain to have two."""


@dataclass(frozen=True, slots=True, eq=False)
class Public:
    """One dataset as it unpacks.

    `source` is the directory that redoxfs mounts; labels may lie beside it. `ideal` is the choice of a user who knows
    the dataset: "dir", "any", "none", or the splits in which the directory is the label. `blind` is for trees that mix
    although their names equal those of a tree in which the directory is the label. It names the place of the label.
    """

    name: str
    files: tuple[str, ...]
    label: Rule
    split: Rule
    ideal: str = "none"
    source: str = "."
    blind: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)

    def build(self, parent: Path) -> Path:
        """Make the tree below `parent`. Return the path of SOURCE. Files are empty, except texts."""
        root = parent / self.name
        for directory in {PurePosixPath(path).parent for path in (*self.files, *self.texts)}:
            (root / directory).mkdir(parents=True, exist_ok=True)
        for path in self.files:
            if path.endswith(TEXTS):
                (root / path).write_text(f"{path} 1\n")
            else:
                os.mknod(root / path, stat.S_IFREG | 0o644)
        for path, text in self.texts.items():
            (root / path).write_text(text)
        return root / self.source

    def mixing(self, classes: Iterable[Sequence[str]]) -> list[str]:
        """The faults of classes of paths: a line for each class that has two labels or two splits."""
        found = []
        for paths in classes:
            for what, rule in (("label", self.label), ("split", self.split)):
                values: dict[str, str] = {}
                for path in paths:
                    values.setdefault(rule(path), path)
                if len(values) > 1:
                    (one, first), (two, second) = list(values.items())[:2]
                    found.append(f"{what} {one!r} of {first} and {two!r} of {second}")
        return found


def parent(path: str) -> str:
    return path.split("/")[-2]


def part(at: int) -> Rule:
    return lambda path: path.split("/")[at]


def own(path: str) -> str:
    """A label that no other file has: a box, a mask, a sentence. A split: chance or a list decides for each file."""
    return path


def fixed(value: str) -> Rule:
    return lambda _path: value


def table(path: str) -> str:
    """A column of a table, which names do not show."""
    return f"row {zlib.crc32(path.encode()) % TABLE_LABELS}"


def named(pattern: str) -> Rule:
    """The pattern's groups in the path. A path that does not match has its own value."""
    compiled = re.compile(pattern)

    def rule(path: str) -> str:
        found = compiled.search(path)
        return path if found is None else "/".join(str(group) for group in found.groups())

    return rule


def below(rules: Mapping[str, Rule], other: Rule) -> Rule:
    """A rule for each prefix of the path."""

    def rule(path: str) -> str:
        return next((found for prefix, found in rules.items() if path.startswith(prefix)), other)(path)

    return rule


listed = drawn = own
"""A split by a list of files, or by chance in the script: two files may differ whatever their names."""
whole = fixed("all")
"""One split only."""

nothing = fixed("nothing")
"""The script learns nothing from the path."""
