"""What lies in the source directory, and which of it may stand in for which."""

from redoxfs.dataset.cache import default_cache_dir, load_or_scan
from redoxfs.dataset.catalog import Catalog, Verdict, build_catalog
from redoxfs.dataset.errors import ClassesError, SourceError
from redoxfs.dataset.scan import read_tree
from redoxfs.dataset.tree import Tree

__all__ = [
    "Catalog",
    "ClassesError",
    "SourceError",
    "Tree",
    "Verdict",
    "build_catalog",
    "default_cache_dir",
    "load_or_scan",
    "read_tree",
]
