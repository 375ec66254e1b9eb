"""The arguments of what mounts keep: `redoxfs state`, `cache`, `warmup` and `catalog`; --cache and --catalog."""

import argparse

from redoxfs.cli import values
from redoxfs.cli.options.building import default_of
from redoxfs.cli.parser import Parser, Verbs, add_verb
from redoxfs.cli.policy_arguments import add_layout
from redoxfs.cli.shared_arguments import add_archives, add_files, add_json, add_timeout
from redoxfs.launch.defaults import LONG_TIMEOUT_S

# As redoxfs.node.recent.TURNS, which a short command does not import.
MOST_LESS = 1 << 16


def add_state(verbs: "Verbs[Parser]") -> None:
    from redoxfs.cli.options.states import StateLoadOptions, StateSaveOptions

    state = add_verb(verbs, "state", None, "save or load the progress of a mount's epochs")
    actions = state.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)
    for name, makes, text in (
        ("save", StateSaveOptions, "write to FILE which samples were served in the current epoch"),
        ("load", StateLoadOptions, "return to the position in FILE; samples served since the save come again"),
    ):
        verb = add_verb(actions, name, makes, text)
        verb.add_argument("mountpoint", metavar="MOUNTPOINT")
        verb.add_argument("file", metavar="FILE", help="not below MOUNTPOINT")
        if name == "save":
            verb.add_argument(
                "--less",
                metavar="N",
                type=_less,
                help="take back the last N opens, which loaders may have made ahead of training",
            )
        add_timeout(verb, LONG_TIMEOUT_S)


def _less(text: str) -> int:
    try:
        return values.whole_number(text, 0, MOST_LESS)
    except argparse.ArgumentTypeError as refusal:
        raise argparse.ArgumentTypeError(f"{refusal}: a mount keeps the order of so many opens") from None


def add_cache_options(group: "argparse._ActionsContainer", *, required: bool = False) -> argparse.Action:
    """--cache, and --cache-size, which is returned."""
    group.add_argument(
        "--cache", metavar="DIR", required=required, help="keep copies of samples in DIR, on a local disk"
    )
    return group.add_argument(
        "--cache-size",
        metavar="SIZE",
        help="limit of DIR, for all datasets: 500GiB, or 80%% of its disk's free space (default: 90%%)",
    )


def add_cache(verbs: "Verbs[Parser]") -> None:
    """`redoxfs cache`."""
    from redoxfs.cli.options.caches import CacheListOptions, CacheRemoveOptions, CacheVerifyOptions

    cache = add_verb(verbs, "cache", None, "list, check or remove what mounts with --cache DIR keep")
    actions = cache.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)
    listing = add_verb(actions, "ls", CacheListOptions, "list the datasets in DIR")
    listing.add_argument("folder", metavar="DIR")
    add_json(listing)
    check = add_verb(actions, "verify", CacheVerifyOptions, "check every byte in DIR, and give up damaged copies")
    check.add_argument("folder", metavar="DIR")
    add_json(check)
    usage = "%(prog)s [OPTIONS] DIR (KEY… | --all)"
    remove = add_verb(actions, "rm", CacheRemoveOptions, "remove datasets from DIR that no mount uses", usage=usage)
    remove.add_argument("folder", metavar="DIR")
    remove.add_argument("keys", metavar="KEY", nargs="*", help="key of a dataset, or its beginning (see cache ls)")
    remove.add_argument("--all", action="store_true", help="all datasets")


def add_warmup(verbs: "Verbs[Parser]") -> None:
    """`redoxfs warmup`."""
    from redoxfs.cli.options.caches import WarmupOptions

    verb = add_verb(verbs, "warmup", WarmupOptions, "read SOURCE into a cache before a job needs it")
    verb.add_argument("source", metavar="SOURCE", help="a directory, a packed dataset, or an address: s3://…")
    add_cache_options(verb, required=True)
    verb.add_argument(
        "--jobs",
        metavar="N",
        type=values.jobs,
        help=f"chunks to read at a time (default: {default_of(WarmupOptions, 'jobs')})",
    )
    add_files(verb)
    add_catalog_option(verb)
    add_archives(verb)
    add_layout(verb)
    add_timeout(verb)


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
