"""The arguments of `redoxfs catalog`, and --catalog."""

import argparse

from redoxfs.cli.parser import Parser, Verbs, add_verb
from redoxfs.cli.shared_arguments import add_files, add_json, add_timeout


def add_catalog(verbs: "Verbs[Parser]") -> None:
    """`redoxfs catalog`."""
    from redoxfs.cli.options.datasets import CatalogExportOptions, CatalogShowOptions

    catalog = add_verb(verbs, "catalog", None, "keep a scan in a file, so that other mounts need not scan")
    actions = catalog.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)
    export = add_verb(actions, "export", CatalogExportOptions, "scan SOURCE and write its catalog to FILE")
    export.add_argument("source", metavar="SOURCE", help="the directory with the training files")
    export.add_argument("file", metavar="FILE", help="a file outside SOURCE; one that exists is replaced")
    export.add_argument("--rescan", action="store_true", help="list all directories again, also unchanged ones")
    add_files(export)
    add_timeout(export)
    show = add_verb(actions, "show", CatalogShowOptions, "check FILE, and show what is in it")
    show.add_argument("file", metavar="FILE")
    add_json(show)


def add_catalog_option(verb: "argparse._ActionsContainer") -> argparse.Action:
    """--catalog."""
    return verb.add_argument("--catalog", metavar="FILE", help="do not scan; FILE is what redoxfs catalog export wrote")
