"""The limit of open files: each shard, each archive, and each open file that is served exactly, takes a descriptor."""

import errno
import os
import resource
from typing import TYPE_CHECKING

from redoxfs.launch.errors import SourceUnusableError, UsageError
from redoxfs.launch.sizes import counted

if TYPE_CHECKING:
    from redoxfs.chunks import ChunkStore
    from redoxfs.launch.source import Dataset, Reading

LEAST_OPEN_FILES = 64
"""Twice what a mount without an open file takes."""


def allow_open_files() -> None:
    """Raise the limit to its maximum. Raises UsageError if that is too low for any mount."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= most < LEAST_OPEN_FILES:
        raise UsageError(f"the limit of open files is {most}, and redoxfs needs {LEAST_OPEN_FILES} (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def opened_store(dataset: "Dataset", reading: "Reading", source: str) -> "ChunkStore":
    """The store of ``source``. Raises SourceUnusableError if a file of it cannot be opened."""
    try:
        return dataset.store(reading)
    except OSError as failure:
        if failure.errno == errno.EMFILE and dataset.index is not None:
            most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            what = "shard" if dataset.index.versions is None else "archive"
            raise SourceUnusableError(
                f"{source}: has {counted(len(dataset.index.positions.shard_names), what)}, each of which takes an open "
                f"file, and the limit of open files is {most:,} (ulimit -Hn)"
            ) from None
        name = os.path.basename(os.fsdecode(failure.filename or b""))
        raise SourceUnusableError(f"{source}/{name}: {failure.strerror}") from None
