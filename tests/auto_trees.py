"""Small trees, and what `--classes auto` says of them: the tables auto_verdicts.txt and auto_names.txt."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import md5
from pathlib import Path
from uuid import UUID

from tree_tables import Row, rows_of

OPTIONS = {"DIR": "--classes dir", "ANY": "--classes any", "STEM": "--groups stem"}
"""Those that a line may suggest. It always suggests a sampler and FILE.csv."""

DIR, ANY, STEM = OPTIONS.values()


def make(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())


def numbers(key: str, count: int) -> list[int]:
    """Numbers without meaning, other ones for each key: 0 and others below 100,000, ascending."""
    return sorted(random.Random(key).sample(range(100_000), count))


def numbered_uuid(number: int) -> UUID:
    return UUID(int=number, version=4)


def random_uuid(key: str) -> UUID:
    return numbered_uuid(random.Random(key).getrandbits(128))


def shuffled(key: str, count: int) -> list[int]:
    return random.Random(key).sample(range(count), count)


FIELDS = {"words", "splits", "offers", "like", "below"}
FUNCTIONS = {"md5": md5} | {function.__name__: function for function in (numbers, numbered_uuid, random_uuid, shuffled)}


@dataclass(frozen=True, slots=True)
class Tree:
    """``splits``: whether each is redirected. ``offers``: the options that a refusal suggests.

    A file may be a `LINK -> TARGET`, a second name (`PATH == PATH`), or have a text (`PATH := TEXT`).
    """

    name: str
    files: tuple[str, ...]
    words: str
    splits: dict[str, bool]
    offers: set[str]

    def build(self, root: Path) -> None:
        for file in self.files:
            path, _, target = file.partition(" -> ")
            same, _, known = file.partition(" == ")
            named, _, text = file.partition(" := ")
            if target:
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).symlink_to(target)
            elif known:
                os.link(root / known, root / same)
            else:
                make(root, named)
                if text:
                    (root / named).write_text(text.replace(r"\n", "\n"))


def _trees() -> Iterator[Tree]:
    rows: dict[str, Row] = {}
    for table in ("auto_verdicts.txt", "auto_names.txt"):
        for row in rows_of(Path(__file__).with_name(table), FUNCTIONS):
            if row.name in rows or not row.fields.keys() <= FIELDS:
                raise ValueError(f"{table}: {row.name} is in both tables, or has a field that means nothing")
            rows[row.name] = row
    for name, fields, files in rows.values():
        paths, like = files, fields.get("like")
        while like is not None:
            paths, like = [*rows[like].files, *paths], rows[like].fields.get("like")
        below = fields.get("below", "").split()
        paths = [f"{split}/{path}" for split in below for path in paths] or paths
        splits = {split.removeprefix("-"): split[0] != "-" for split in fields.get("splits", "").split()}
        offers = {OPTIONS[each] for each in fields.get("offers", "").split()}
        yield Tree(name, tuple(paths), fields["words"], splits, offers)


TREES = {tree.name: tree for tree in _trees()}
