"""A catalog's columns as C reads them."""

import numpy as np

from redoxfs.dataset.catalog import Catalog
from redoxfs.native import Tree

SHARED = (
    *("names", "name_at", "parent", "first_child", "children", "mode", "nlink", "uid", "gid", "size"),
    *("mtime_ns", "ctime_ns"),
)
"""The columns of a tree that C reads."""


def native_tree(catalog: Catalog) -> Tree:
    """The tree of ``catalog`` and the samples of its entries, for C. Columns are copied only if they have gaps."""
    columns = {name: np.ascontiguousarray(getattr(catalog.tree, name)) for name in SHARED}
    return Tree(sample_of=catalog.sample_of, **columns)
