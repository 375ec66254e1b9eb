"""The source directory: its tree, its samples, and the classes within which samples may stand in for each other."""

from redoxfs.dataset import array_files
from redoxfs.dataset.beside import Beside, look_beside
from redoxfs.dataset.cache import ChangedError, check_unchanged, default_cache_dir, load_or_scan
from redoxfs.dataset.catalog import TURN_OFF, Catalog, Verdict, build_catalog
from redoxfs.dataset.errors import ClassesError, SourceError, show
from redoxfs.dataset.evidence import Finding
from redoxfs.dataset.fingerprint import fingerprint
from redoxfs.dataset.scan import read_tree
from redoxfs.dataset.tree import CONTROL_NAME, Tree

__all__ = [
    "CONTROL_NAME",
    "TURN_OFF",
    "Beside",
    "Catalog",
    "ChangedError",
    "ClassesError",
    "Finding",
    "SourceError",
    "Tree",
    "Verdict",
    "array_files",
    "build_catalog",
    "check_unchanged",
    "default_cache_dir",
    "fingerprint",
    "load_or_scan",
    "look_beside",
    "read_tree",
    "show",
]
