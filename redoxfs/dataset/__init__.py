"""The source directory: its tree, its samples, and the classes within which samples may stand in for each other."""

from typing import TYPE_CHECKING

from redoxfs.late import names_of

if TYPE_CHECKING:
    from redoxfs.dataset import array_files
    from redoxfs.dataset.beside import Beside, look_beside
    from redoxfs.dataset.cache import ChangedError, Scan, check_unchanged, default_cache_dir, load_or_scan
    from redoxfs.dataset.catalog import TURN_OFF, Catalog, Finding, Verdict
    from redoxfs.dataset.catalog_file import CatalogFile, DamagedCatalogError, at_source, read_catalog, write_catalog
    from redoxfs.dataset.decision import build_catalog, check_options
    from redoxfs.dataset.errors import ClassesError, SourceError, show
    from redoxfs.dataset.fingerprints import fingerprint
    from redoxfs.dataset.scan import read_tree
    from redoxfs.dataset.tree import Tree
else:
    __getattr__ = names_of(
        __name__,
        beside="Beside look_beside",
        cache="ChangedError Scan check_unchanged default_cache_dir load_or_scan",
        catalog="TURN_OFF Catalog Finding Verdict",
        catalog_file="CatalogFile DamagedCatalogError at_source read_catalog write_catalog",
        decision="build_catalog check_options",
        errors="ClassesError SourceError show",
        fingerprints="fingerprint",
        scan="read_tree",
        tree="Tree",
    )

__all__ = [
    "TURN_OFF",
    "Beside",
    "Catalog",
    "CatalogFile",
    "ChangedError",
    "ClassesError",
    "DamagedCatalogError",
    "Finding",
    "Scan",
    "SourceError",
    "Tree",
    "Verdict",
    "array_files",
    "at_source",
    "build_catalog",
    "check_options",
    "check_unchanged",
    "default_cache_dir",
    "fingerprint",
    "load_or_scan",
    "look_beside",
    "read_catalog",
    "read_tree",
    "show",
    "write_catalog",
]
