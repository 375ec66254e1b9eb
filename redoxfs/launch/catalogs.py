"""A catalog in a file: `redoxfs catalog export` writes it, and `--catalog FILE` takes it in place of a scan."""

import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redoxfs.launch.errors import DestinationError, SourceUnusableError, UsageError
from redoxfs.launch.options import DatasetOptions
from redoxfs.launch.outputs import check_replaceable
from redoxfs.launch.path_status import PathStatus
from redoxfs.launch.say import say
from redoxfs.launch.sizes import counted, format_seconds

if TYPE_CHECKING:
    from redoxfs.dataset import Catalog, CatalogFile

LATEST_S = 1 << 37
"""In the fourth millennium. Dates end with the year 9999."""

_TABLE = "table"
"""Stands for the path of a table, which another machine need not have."""


def check_is_catalog(path: Path, asked: str) -> None:
    """Refuse to replace a file that is no catalog. Raises DestinationError."""
    from redoxfs.dataset.catalog_file import FORMAT

    check_replaceable(path, asked, FORMAT, "catalog")


def export_catalog(path: Path, catalog: "Catalog", source: PathStatus, options: DatasetOptions) -> int:
    """Write the catalog of ``source``, which was made with ``options``, to a file. Returns its length.

    Raises:
        DestinationError: it cannot be written.
    """
    from redoxfs import __version__
    from redoxfs.dataset import fingerprint, write_catalog

    about = {
        "source": os.fsencode(source.path).decode("utf-8", "backslashreplace"),
        "exported_at_s": int(time.time()),
        "redoxfs": __version__,
        "fingerprint": fingerprint(catalog),
    }
    try:
        return write_catalog(path, catalog, asked=_asked(options, catalog), about=about)
    except OSError as failure:
        raise DestinationError(f"{path}: {failure.strerror}") from None


def _asked(options: DatasetOptions, catalog: "Catalog") -> dict[str, Any]:
    """The options that decided on samples and classes, as a catalog file has them."""
    is_table = catalog.verdict.mode == "csv"
    return {
        "classes": _TABLE if is_table else options.classes or "auto",
        "samples": list(options.samples),
        "groups": options.groups,
        "table": _sum_of(options.classes or "") if is_table else None,
    }


def catalog_from_file(source: PathStatus, root_fd: int, options: DatasetOptions) -> "Catalog":
    """The catalog in the file that ``options`` name, for the SOURCE that ``root_fd`` is open on.

    Raises:
        UsageError: the file cannot be read, or is for other options.
        SourceUnusableError: it is of another dataset.
        redoxfs.dataset.DamagedCatalogError: it is damaged.
    """
    from redoxfs.dataset import SourceError, at_source

    path = options.catalog
    assert path is not None
    if options.rescan:
        raise UsageError("--rescan scans SOURCE, and --catalog is there to scan nothing; leave one of them out")
    begin = time.monotonic()
    file = open_catalog(path)
    _check_options(path, file.asked, options)
    try:
        here = at_source(file.catalog, root_fd, _roots(source, root_fd))
    except SourceError as error:
        raise SourceUnusableError(
            f"{source.asked} is not the dataset in {path}: {error}; export it again: redoxfs catalog export"
        ) from None
    files = int(here.catalog.tree.kind_mask(stat.S_IFREG).sum())
    say(f"catalog: {counted(files, 'file')}, read from {path} in {format_seconds(time.monotonic() - begin)}")
    if not here.has_same_times:
        say(
            f"files here have other times than in {path}, so each counts as changed once it was read; "
            "copy them with their times (cp -p, rsync -t), or export a catalog here"
        )
    return here.catalog


def open_catalog(path: str) -> "CatalogFile":
    """Read and check a file. Raises UsageError, redoxfs.dataset.DamagedCatalogError."""
    from redoxfs.dataset import DamagedCatalogError, read_catalog

    try:
        file = read_catalog(Path(path))
    except OSError as failure:
        raise UsageError(f"{path}: {failure.strerror}") from None
    if not _is_described(file):
        raise DamagedCatalogError(f"{path} is damaged: it does not say how it was made; export it again")
    return file


def _is_described(file: "CatalogFile") -> bool:
    """Whether a file has what `export_catalog` writes beside the catalog."""
    asked, about = file.asked, file.about
    texts = [asked.get("classes"), *(about.get(name) for name in ("source", "redoxfs", "fingerprint"))]
    samples, exported_at_s = asked.get("samples"), about.get("exported_at_s")
    return (
        all(isinstance(text, str) for text in texts)
        and isinstance(samples, list)
        and all(isinstance(glob, str) for glob in samples)
        and all(isinstance(asked.get(name, 0), str | None) for name in ("groups", "table"))
        and type(exported_at_s) is int
        and 0 <= exported_at_s < LATEST_S
    )


def _roots(source: PathStatus, root_fd: int) -> tuple[bytes, ...]:
    paths = [os.readlink(b"/proc/self/fd/%d" % root_fd), os.fsencode(source.path)]
    return tuple(dict.fromkeys(paths))


def _check_options(path: str, asked: dict[str, Any], options: DatasetOptions) -> None:
    """Raises UsageError if an option was given that is not as in the file."""
    there = f"{path} was made with"
    if options.classes is not None and not _is_asked(options.classes, asked):
        what = "another table" if asked["classes"] == _TABLE else f"--classes {asked['classes']}"
        raise _other(f"--classes {options.classes}: {there} {what}")
    if options.samples and list(options.samples) != asked["samples"]:
        what = " ".join(f"--samples {glob}" for glob in asked["samples"]) or "the default of --samples"
        raise _other(f"--samples {' '.join(options.samples)}: {there} {what}")
    if options.groups is not None and options.groups != asked["groups"]:
        what = "no --groups" if asked["groups"] is None else f"--groups {asked['groups']}"
        raise _other(f"--groups {options.groups}: {there} {what}")


def _other(what: str) -> UsageError:
    return UsageError(f"{what}; leave the option out, or export another catalog with it")


def _is_asked(classes: str, asked: dict[str, Any]) -> bool:
    from redoxfs.dataset.decision import is_table

    if asked["classes"] != _TABLE or not is_table(classes):
        return bool(classes == asked["classes"])
    return bool(_sum_of(classes) == asked["table"])


def _sum_of(table: str) -> str:
    import xxhash

    try:
        return xxhash.xxh3_128_hexdigest(Path(table).read_bytes())
    except OSError as failure:
        raise UsageError(f"--classes {table}: {failure.strerror}") from None
