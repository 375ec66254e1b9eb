"""The description of a public dataset's tree: its files as patterns, and their true labels and splits.

A rule takes a file's path below the directory with the unpacked archives, and returns the label or split that a
training script uses for it. Two files may stand in for each other if both rules agree on them. The truth comes from
the dataset's authors or its usual scripts, whether or not a name shows it: a label may come from a table outside, and
a split from a list or from chance.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import stat
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

Rule = Callable[[str], str]
Draw = Callable[[random.Random], object]
Field = str | int | Sequence[object] | Draw

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


def public(
    name: str,
    *files: str | Iterable[str],
    label: Rule,
    split: Rule,
    ideal: str = "none",
    source: str = ".",
    blind: str = "",
    texts: Mapping[str, str] | None = None,
) -> Public:
    paths = [path for item in files for path in ([item] if isinstance(item, str) else item)]
    if len(set(paths)) != len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise ValueError(f"{name} has {twice} twice")
    return Public(name, tuple(paths), label, split, ideal, source, blind, texts or {})


def at(*patterns: str, **fields: Field) -> Iterator[str]:
    """The patterns with every combination of the fields' values.

    A field is a number of values from 0, a sequence, words (separated by bars if a word has blanks), or a draw: a
    function that returns a new value for each combination, in any directory.
    """
    spread: dict[str, Iterable[object]] = {}
    draws: dict[str, Draw] = {}
    for key, values in fields.items():
        if isinstance(values, int):
            spread[key] = range(values)
        elif isinstance(values, str):
            spread[key] = values.split("|") if "|" in values else values.split()
        elif callable(values):
            draws[key] = values
        else:
            spread[key] = values
    # Seeded by this pattern alone, so that other patterns do not change its files.
    chance = random.Random(repr((patterns, [(key, values) for key, values in fields.items() if key not in draws])))
    for combination in itertools.product(*spread.values()):
        chosen = dict(zip(spread, combination, strict=True)) | {key: draw(chance) for key, draw in draws.items()}
        for pattern in patterns:
            yield pattern.format(**chosen)


def through(start: int = 0, step: int = 1) -> Draw:
    """A number that continues across directories."""
    count = itertools.count(start, step)
    return lambda _chance: next(count)


def some(below: int, start: int = 0) -> Draw:
    """Numbers in random order, each once."""
    given: set[int] = set()

    def draw(chance: random.Random) -> int:
        while (number := chance.randrange(start, below)) in given:
            pass
        given.add(number)
        return number

    return draw


def hexes(digits: int) -> Draw:
    return lambda chance: f"{chance.getrandbits(4 * digits):0{digits}x}"


def uuids() -> Draw:
    return lambda chance: str(uuid.UUID(int=chance.getrandbits(128), version=4))


def letters(count: int, alphabet: str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789") -> Draw:
    """Names without meaning, such as video ids."""
    return lambda chance: "".join(chance.choices(alphabet, k=count))


def flickr() -> Draw:
    """A photo's name at Flickr: its number and its secret."""
    return lambda chance: f"{chance.randrange(10**7, 10**10)}_{chance.getrandbits(40):010x}"


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
