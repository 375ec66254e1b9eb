"""A line about splits that the script makes itself, which no name in SOURCE shows.

`random_split`, `validation_split`, `train_test_split`, k-fold and few-shot subsets divide a list of paths. An open of a
path that the script took for validation may return a sample that it trains on. redoxfs sees neither the list nor the
epoch, so it can only say so beforehand, in one line a mount.

A line at every mount would be noise. If a name shows validation data, such as a directory `val/` or a class `cat-val`
of a table, the script has a validation set and hardly makes another one. Train and test alone are no such sign: from
`train/` beside `test/`, scripts hold back a part for validation. `trainval` is to be split, so it is none either. Folds
in a column of a table are the script's own split.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Iterator

import numpy as np

from redoxfs.dataset.beside import Beside, own_name
from redoxfs.dataset.samples import hidden
from redoxfs.dataset.splits import glued_splits, parts_named
from redoxfs.dataset.tree import Tree

SCRIPT_SPLITS = "random_split, validation_split, train_test_split, k-fold, few-shot"

_VALIDATION = frozenset((b"val", b"dev", b"eval", b"holdout"))


def script_splits(
    tree: Tree, names: Iterable[str], columns: Iterable[frozenset[str]] = (), beside: Beside | None = None
) -> str | None:
    """The line about `tree`, or None if a name shows validation data.

    `names` are texts in which the samples or their table name splits, `columns` the values that columns for a split
    have. `beside` has the names beside SOURCE, if known.
    """
    if any(len(values) > 1 and not all(map(_is_train_or_test, values)) for values in columns):
        return None
    if any(map(_is_validation, _named(tree, names, beside or Beside()))):
        return None
    return (
        f"nothing is named like a validation split: if the script makes a split itself ({SCRIPT_SPLITS}), its parts"
        " mix; a table with the column split keeps them apart"
    )


def _named(tree: Tree, names: Iterable[str], beside: Beside) -> Iterator[bytes]:
    yield own_name(tree)
    for text in names:
        yield from re.split(rb"[/+]", text.encode("utf-8", "surrogateescape"))
    for text in beside.splits:
        yield text.encode("utf-8", "surrogateescape")
    shown = ~hidden(tree)
    for entry in np.flatnonzero(tree.kind_mask(stat.S_IFDIR) & shown).tolist():
        yield tree.name(entry)
    for entry, word in glued_splits(tree).items():
        if shown[entry]:
            yield word


def _is_validation(name: bytes) -> bool:
    parts = parts_named(name)
    return not parts.isdisjoint(_VALIDATION) and b"train" not in parts


def _is_train_or_test(value: str) -> bool:
    name = value.encode("utf-8", "surrogateescape")
    return bool(parts_named(name)) and not _is_validation(name)
