"""--cache, and the arguments of `redoxfs cache` and `redoxfs warmup`."""

import argparse

from redoxfs.cli import values
from redoxfs.cli.catalog_arguments import add_catalog_option
from redoxfs.cli.options.building import default_of
from redoxfs.cli.parser import Parser, Verbs, add_verb
from redoxfs.cli.policy_arguments import add_layout
from redoxfs.cli.shared_arguments import add_archives, add_files, add_json, add_timeout


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
