"""Public datasets as they unpack, with the true labels and splits, to judge `--classes auto` by.

The trees are modeled after the archives, the pages and the usual loaders of the datasets, with a few files in place of
many. They do not depend on the rules of redoxfs.
"""

from pathlib import Path
from typing import Any

from tree_tables import Row, rows_of

from public_trees import public
from public_trees.public import Public


def _tree(row: Row) -> Public:
    fields: dict[str, Any] = {**row.fields}
    for key in fields.keys() & {"label", "split", "texts"}:
        fields[key] = eval(fields[key], vars(public))
    return Public(row.name, tuple(row.files), **fields)


TREES = [_tree(row) for table in sorted(Path(__file__).parent.glob("*.txt")) for row in rows_of(table)]

__all__ = ["TREES", "Public"]
