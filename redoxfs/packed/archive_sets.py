"""Which archives belong together, and the directory that each gets in the tree: from their names alone.

A *set* are archives of one folder whose names differ in one number, and whose numbers are dense: the shards of one
writer. All other archives are sets of their own. Where there are several sets, each has a directory, because often only
the name of an archive says which split its samples are of (train-000.tar, val-000.tar). Sparse numbers are no counter:
they are names, such as WordNet's of ImageNet's classes.
"""

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

SUFFIX = ".tar"

SPARSE = 2
"""The numbers of a set span less than so many times their count."""

_NUMBER = re.compile(r"([0-9]+)")


@dataclass(frozen=True, slots=True)
class ArchiveSet:
    """Some archives, by their places in the list, in the order of their numbers. ``place``: their directory."""

    place: str
    archives: tuple[int, ...]
    is_sharded: bool


def stem_of(path: str) -> str:
    """The name of an archive without its suffix."""
    name = os.path.basename(path)
    return name[: -len(SUFFIX)] if name.lower().endswith(SUFFIX) and len(name) > len(SUFFIX) else name


def sets_of(paths: Sequence[str]) -> list[ArchiveSet]:
    """The sets of archives with these relative paths, in the order of their names."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for at, path in enumerate(paths):
        alike.setdefault((os.path.dirname(path), *_NUMBER.split(stem_of(path))[::2]), []).append(at)
    found: list[tuple[str, str, list[int], bool]] = []
    for (folder, *_), archives in sorted(alike.items()):
        for before, some, is_sharded in _divided(paths, archives):
            found.append((folder, before, some, is_sharded))
    sets_in = Counter(folder for folder, *_ in found)
    lineages = [_with_parents(folder) for folder in sets_in]
    above = {parent for lineage in lineages for parent in lineage}
    # A folder with archives below it too.
    upper = {"", *(parent for lineage in lineages for parent in lineage[:-1])} if len(sets_in) > 1 else set()
    taken: set[str] = set()
    sets = []
    for folder, label, some, is_sharded in found:
        place = folder
        if folder in upper or sets_in[folder] > 1:
            place = os.path.join(folder, label)
            if place in taken or place in above:
                place = os.path.join(folder, os.path.basename(paths[some[0]]))
        taken.add(place)
        sets.append(ArchiveSet(place, tuple(some), is_sharded))
    return sets


def _with_parents(folder: str) -> list[str]:
    parts = folder.split("/")
    return ["/".join(parts[: end + 1]) for end in range(len(parts))]


def _divided(paths: Sequence[str], archives: Sequence[int]) -> list[tuple[str, list[int], bool]]:
    """Archives whose names differ in numbers alone, as sets: a label, the archives, and whether they are shards."""
    pieces = {at: _NUMBER.split(stem_of(paths[at])) for at in archives}
    numbers = len(pieces[archives[0]]) // 2
    varying = [i for i in range(numbers) if len({pieces[at][2 * i + 1] for at in archives}) > 1]
    alone = [(stem_of(paths[at]), [at], False) for at in sorted(archives, key=paths.__getitem__)]
    if not varying:
        return alone
    counter = 2 * varying[-1] + 1
    counted: dict[tuple[str, ...], list[int]] = {}
    for at, piece in pieces.items():
        counted.setdefault((*piece[:counter], *piece[counter + 1 :]), []).append(at)
    sets = []
    for texts, some in sorted(counted.items()):
        some.sort(key=lambda at: int(pieces[at][counter]))
        values = [int(pieces[at][counter]) for at in some]
        if len(some) < 2 or values[-1] - values[0] >= SPARSE * len(some) or len(set(values)) < len(some):
            sets += [(stem_of(paths[at]), [at], False) for at in some]
            continue
        label = "".join(texts[:counter]).rstrip("-_. ") or "".join(texts[counter:]).lstrip("-_. ")
        sets.append((label or stem_of(paths[some[0]]), some, True))
    return sets
