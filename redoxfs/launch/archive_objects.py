"""Tar archives in an object store, or on a web server, as SOURCE.

SOURCE is an address that ends like an archive, and may have wildcards and braces: `s3://bucket/train-{000..999}.tar`.
As for a packed dataset, a child does what needs the network (`redoxfs.launch.objects`). It keeps the index, and this
process loads it.
"""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from redoxfs.launch.archives import addresses_archives, expanded, index_with_samples, indexed, say_found
from redoxfs.launch.errors import SourceUnusableError
from redoxfs.launch.objects import NotKeptError, Objects, in_child, with_index_cache
from redoxfs.launch.options import DatasetOptions
from redoxfs.objects import Address

if TYPE_CHECKING:
    from redoxfs.packed import Index
    from redoxfs.packed.archive_cache import Archive


NOT_KEPT = "the index cannot be kept there"


def are_archives(address: Address, options: DatasetOptions) -> bool:
    """Whether an address names tar archives, rather than a packed dataset."""
    return options.archives != "none" and addresses_archives(address.url)


def open_archive_objects(
    address: Address,
    options: DatasetOptions,
    *,
    timeout_s: float,
    measures: bool,
    given: tuple[float, int] | None = None,
) -> "tuple[Objects, Index]":
    """The dataset in the archives at an address, described on stderr.

    Args:
        measures: measure the speed of the store.
        given: reads and bytes a second of the store, where they are known.

    Raises:
        UsageError, SourceUnusableError, DamagedError, and the errors of the dataset.
    """
    from redoxfs.chunks import UNKNOWN_SPEED, StorageSpeed
    from redoxfs.dataset.members import role_of
    from redoxfs.objects.archives import InStore, names_at, versions_of
    from redoxfs.objects.client import Client
    from redoxfs.objects.credentials import absolute_files
    from redoxfs.objects.speed import measure
    from redoxfs.packed.archive_cache import Kept
    from redoxfs.packed.archive_files import UnusableArchiveError

    folder, patterns = split(address)
    os.environ.update(absolute_files(address.scheme, os.environ))
    layout = options.archives or "auto"
    begin = time.monotonic()

    def index(cache: Path) -> _Indexed:
        """In a child: keep the index, and the samples if that takes the contents of members."""
        client = Client(folder, deadline_s=timeout_s, has_checksums=False)
        try:
            names = names_at(client, patterns)
            versions = versions_of(client, names)
            measured = measure(client, names, versions) if measures else None
            speed = measured or UNKNOWN_SPEED if given is None else StorageSpeed(1 / given[0], given[1])
            files = InStore(client, names, versions, speed)
            found = indexed(address.url, files, cache, options)
            if role_of(options.classes or "auto") is not None:
                index_with_samples(address.url, found, cache, options, files)
        except UnusableArchiveError as error:
            raise SourceUnusableError(str(error)) from None
        # Whoever keeps one says why it cannot. That of another command does as well, if it is of the same archives.
        kept = Kept.load(cache, address.url)
        if kept is None or not kept.is_of(found.archives, found.at_ns):
            raise NotKeptError(NOT_KEPT)
        return _Indexed(Objects(folder, tuple(versions), measured), found.archives, found.read, found.at_ns)

    def find(cache: Path, _is_kept: bool) -> "tuple[Objects, Index]":
        told = in_child(lambda: index(cache))
        kept = Kept.load(cache, address.url)
        found = None
        if kept is not None:
            found = kept.index(told.archives, layout, salvages=options.salvage, made_at_ns=told.at_ns)
        if found is None:
            raise NotKeptError(NOT_KEPT)
        found = replace(found, read=told.read)
        say_found(found, address.url, time.monotonic() - begin)
        return told.objects, index_with_samples(address.url, found, cache, options)

    return with_index_cache(find)


def split(address: Address) -> tuple[Address, list[str]]:
    """The folder above all archives, and their names or wildcards in it. Raises UsageError."""
    root = f"{address.scheme}://{address.url.split('/')[2]}"
    paths = [path.split("/") for path in expanded(address.url[len(root) + 1 :])]
    fixed = [path[:-1] for path in paths]
    depth = 0
    while all(
        len(each) > depth and each[depth] == fixed[0][depth] and not set("*?[") & set(each[depth]) for each in fixed
    ):
        depth += 1
    folder = "/".join([root, *paths[0][:depth]])
    return Address(address.scheme, folder), ["/".join(path[depth:]) for path in paths]


class _Indexed(NamedTuple):
    """What a child tells of archives: see `redoxfs.packed.archive_cache.ArchiveIndex`."""

    objects: Objects
    archives: "tuple[Archive, ...]"
    read: int
    at_ns: int
