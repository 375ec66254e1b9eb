"""Tar archives as SOURCE: which files it names, and the dataset in them.

SOURCE is an archive; a folder that holds archives, and beside them only files that describe such; a glob; or names with
WebDataset's braces, `train-{000..999}.tar`. Everything is opened below one descriptor: that of the folder above all.
"""

import glob
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from redoxfs.launch.deadline import Child, call_in_child
from redoxfs.launch.errors import SourceUnusableError, UsageError
from redoxfs.launch.options import DatasetOptions
from redoxfs.launch.path_status import ArchiveFiles, PathStatus
from redoxfs.launch.say import say
from redoxfs.launch.scanning import showing_scan
from redoxfs.launch.sizes import counted, format_seconds
from redoxfs.linux.descriptors import opened

if TYPE_CHECKING:
    from redoxfs.packed import Index
    from redoxfs.packed.archive_cache import ArchiveIndex
    from redoxfs.packed.archive_files import ArchiveSource

_SUFFIX = ".tar"

_COMPRESSED = (".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar.bz2", ".tar.lz4")

# In the first header of all formats but v7's.
_MAGIC_AT, _MAGIC = 257, b"ustar"

# What writers and indexers of shards leave beside them.
_BESIDE = (".json", ".jsonl", ".parquet", ".idx", ".index", ".csv", ".tsv", ".txt", ".md", ".yaml", ".yml", ".sha256")
_BESIDE_NAMES = frozenset({"license", "readme", "md5sums", "sha256sums", "_success"})

# Taken for an archive only where a path or an address names one, so that whoever indexes it says why it is refused.
_ZIP = ".zip"

_BRACES = re.compile(r"\{([^{}]*)\}")

_MOST_BESIDE = 1000
"""A folder with so many other files, and more than ten for each archive, is a folder of these."""

_NAMES_MAX = 1 << 20
"""More archives than anybody has. Two braces make as many names in a few bytes."""


def with_archives(
    source: PathStatus, timeout_s: float, asked: DatasetOptions | None = None, child: Child | None = None
) -> PathStatus:
    """The same, with the archives that SOURCE names, if it names any.

    None if ``asked`` has --archives none, or --samples of archives: then whole archives are samples.

    Raises SourceUnusableError.
    """
    are_files = asked is not None and (
        asked.archives == "none" or (asked.archives is None and any(map(names_archives, asked.samples)))
    )
    if source.address is not None or are_files or source.is_stale or source.is_redirected:
        return source
    try:
        call = call_in_child if child is None else child.call
        found = call(partial(_found, source.asked), timeout_s, SourceUnusableError)
    except OSError as failure:
        from redoxfs.packed.index import LASTING_ERRORS

        if asked is None or failure.errno in LASTING_ERRORS:
            # Whoever uses SOURCE says what is wrong with it.
            return source
        # Storage may answer the next look: the archives would then be served as files.
        trouble = "it does not answer" if isinstance(failure, TimeoutError) else failure.strerror
        raise SourceUnusableError(f"{source.asked}: {trouble}") from None
    return source if found is None else replace(source, archives=found)


def _found(asked: str) -> ArchiveFiles | None:
    """In a child: the real paths of archives, from the folder above all, and their names.

    Raises SourceUnusableError.
    """
    beside = ""
    given = os.path.abspath(asked)
    try:
        mode = os.stat(given).st_mode
    except FileNotFoundError:
        try:
            names = list(_matching(asked))
        except UsageError as error:
            raise SourceUnusableError(str(error)) from None
    else:
        names = []
        if stat.S_ISREG(mode) and _is_archive(given):
            names = [given]
        elif stat.S_ISDIR(mode):
            names, beside = _in_folder(given)
    names = [os.path.abspath(name) for name in names]
    paths = [os.path.realpath(name) for name in names]
    if not names:
        return None
    for name in names:
        if not os.path.isfile(name):
            raise SourceUnusableError(f"{name}: {'is no' if os.path.lexists(name) else 'no such'} archive")
    root, above = (os.path.commonpath([os.path.dirname(each) for each in some]) for some in (paths, names))
    return ArchiveFiles(
        Path(root),
        tuple(os.path.relpath(path, root) for path in paths),
        tuple(os.path.relpath(name, above) for name in names),
        beside,
    )


def _is_archive(path: str) -> bool:
    """Whether a file is one by its name or its first header. Whoever indexes it finds whether it can be served."""
    if path.lower().endswith((_SUFFIX, *_COMPRESSED, _ZIP)):
        return True
    with open(path, "rb") as file:
        return file.read(_MAGIC_AT + len(_MAGIC))[_MAGIC_AT:] == _MAGIC


def addresses_archives(url: str) -> bool:
    """Whether an address is of archives, or of one that is refused."""
    return names_archives(url) or url.lower().endswith(_ZIP) or "{" in url


def names_archives(pattern: str) -> bool:
    """Whether a pattern is of archives: of --samples, or at the end of an address."""
    return pattern.lower().endswith((_SUFFIX, *_COMPRESSED))


def _in_folder(folder: str) -> tuple[list[str], str]:
    """The archives of a folder of archives, and what else lies there; none if it holds anything that is no such."""
    from redoxfs.packed import is_packed

    with opened(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        if is_packed(fd):
            return [], ""
    archives, others = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name.lower()
            if name.startswith("."):
                continue
            is_archive = name.endswith((_SUFFIX, *_COMPRESSED))
            is_beside = os.path.splitext(name)[1] in _BESIDE or name in _BESIDE_NAMES
            # Last: a symlink may lead to storage that fails, which does not matter if its name is of no archive.
            if not (is_archive or is_beside) or entry.is_dir():
                return [], ""
            if is_archive:
                archives.append(os.path.join(folder, entry.name))
            else:
                others.append(entry.name)
            if len(others) > max(_MOST_BESIDE, 10 * len(archives)):
                return [], ""
    # What is unpacked lies beside: gunzip -k.
    unpacked = {archive.lower() for archive in archives}
    for archive in archives.copy():
        for suffix in _COMPRESSED:
            if archive.lower().endswith(suffix) and archive.lower().removesuffix(suffix) + _SUFFIX in unpacked:
                archives.remove(archive)
                others.append(os.path.basename(archive))
    if not archives or not others:
        return sorted(archives), ""
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    return sorted(archives), f"{min(others)}{more}"


def _matching(pattern: str) -> Iterator[str]:
    """The files that a glob, or a name with braces, stands for. Raises UsageError if there is none."""
    if not _BRACES.search(pattern) and not glob.has_magic(pattern):
        return
    for name in expanded(pattern):
        if not glob.has_magic(name):
            yield name
            continue
        found = sorted(glob.glob(name))
        if not found:
            raise UsageError(f"{name}: no file has such a name")
        yield from found


def expanded(pattern: str) -> list[str]:
    """The names that braces stand for: `{000..999}` with as many digits, and `{train,val}`. Raises UsageError."""
    names = [pattern]
    while (match := _BRACES.search(names[0])) is not None:
        choices = _choices(match[1])
        if choices is None:
            raise UsageError(f"{pattern}: braces have two numbers, {{000..999}}, or a list, {{train,val}}")
        if len(names) * len(choices) > _NAMES_MAX:
            raise UsageError(f"{pattern}: stands for more than {_NAMES_MAX:,} names")
        # All names have the same braces, in other places.
        names = [
            name[: found.start()] + choice + name[found.end() :]
            for name in names
            for found in (_BRACES.search(name),)
            if found is not None
            for choice in choices
        ]
    return names


def _choices(text: str) -> Sequence[str] | None:
    numbers = re.fullmatch(r"([0-9]{1,18})\.\.([0-9]{1,18})", text)
    if numbers is None:
        return text.split(",") if "," in text else None
    first, last = int(numbers[1]), int(numbers[2])
    if not 0 <= last - first < _NAMES_MAX:
        return None
    width = max(map(len, numbers.groups())) if "0" in (numbers[1][:1], numbers[2][:1]) else 0
    return [f"{number:0{width}}" for number in range(first, last + 1)]


def check_hidden(archives: ArchiveFiles, mountpoint: Path) -> str | None:
    """An archive that a mount would hide from the daemon; None if there is none.

    Over the folder itself it hides none: that is open already.
    """
    if archives.root not in mountpoint.parents:
        return None
    below = os.path.relpath(mountpoint, archives.root) + "/"
    return next((path for path in archives.paths if path.startswith(below)), None)


def open_archives(source: PathStatus, root_fd: int, options: DatasetOptions, *, is_storage_local: bool) -> "Index":
    """The dataset in archives, as the index of a packed one, described on stderr.

    Raises:
        UsageError, SourceUnusableError, and the errors of the index and the dataset.
    """
    from redoxfs.dataset import default_cache_dir
    from redoxfs.packed.archive_files import OnDisk, UnusableArchiveError

    if is_storage_local:
        raise UsageError(
            f"{source.asked}: --storage local is for a packed dataset; every node has to reach all archives"
        )
    assert source.archives is not None
    begin = time.monotonic()
    files = OnDisk(root_fd, tuple(zip(source.archives.paths, source.archives.names, strict=True)))
    try:
        found = indexed(source.name, files, default_cache_dir(), options)
        say_found(found, source.asked, time.monotonic() - begin)
        if source.archives.beside:
            say(f"archives: ignored beside them: {source.archives.beside} (--archives none serves all as files)")
        return index_with_samples(source.name, found, default_cache_dir(), options, files)
    except UnusableArchiveError as error:
        raise SourceUnusableError(str(error)) from None
    except OSError as failure:
        raise SourceUnusableError(f"{failure.filename or source.asked}: {failure.strerror}") from None


def indexed(source: str, files: "ArchiveSource", cache_dir: Path, options: DatasetOptions) -> "ArchiveIndex":
    """The index of archives as ``options`` ask for it, with progress on stderr. Raises as `load_or_index`."""
    from redoxfs.packed.archives import load_or_index

    with showing_scan("archive") as progress:
        return load_or_index(
            source,
            files,
            cache_dir,
            layout=options.archives or "auto",
            rescan=options.rescan,
            salvages=options.salvage,
            progress=progress,
        )


def say_found(found: "ArchiveIndex", asked: str, took_s: float) -> None:
    """Describe an index on stderr. Raises SourceUnusableError if it has no files."""
    files = int(found.grown.tree.kind_mask(stat.S_IFREG).sum())
    if not files:
        raise SourceUnusableError(f"{asked}: there are no files in it")
    how = f"indexed in {format_seconds(took_s)}"
    if not found.read:
        how = "unchanged since the last index (--rescan)"
    elif found.read < len(found.archives):
        how = (
            f"{counted(found.read, 'changed archive')} {how}, {len(found.archives) - found.read:,} unchanged (--rescan)"
        )
    say(f"archives: {counted(files, 'file')} in {counted(len(found.archives), 'archive')}, {how}")


def index_with_samples(
    source: str,
    found: "ArchiveIndex",
    cache_dir: Path,
    options: DatasetOptions,
    files: "ArchiveSource | None" = None,
) -> "Index":
    """The index with the samples that ``options`` ask for. Raises as `load_or_find`."""
    from redoxfs.packed.archive_samples import Asked, load_or_find
    from redoxfs.packed.archive_store import index_of

    asked = Asked(options.classes or "auto", options.samples, options.groups)
    return index_of(found, *load_or_find(source, found, cache_dir, asked, files), seed=options.seed)
