"""Reads many small members of archives, such as labels, in the order in which they lie.

As for headers, what lies between two of them is read too if it is short.
"""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from redoxfs.packed.archive_cache import ArchiveIndex
from redoxfs.packed.archive_files import ArchiveSource


def contents_of(found: ArchiveIndex, files: ArchiveSource, entries: NDArray[np.int32]) -> list[bytes]:
    """The content of each of some files of the tree. Raises UnusableArchiveError, OSError."""
    shard, at, size = found.grown.shard[entries], found.grown.data_at[entries], found.grown.tree.size[entries]
    order = np.lexsort((at, shard))
    parts = [part for part in np.split(order, np.flatnonzero(np.diff(shard[order])) + 1) if len(part)]
    contents = [b""] * len(entries)

    def read(number: int, archive: int, part: NDArray[np.int64]) -> None:
        texts = _in_one(files, number, found, archive, at[part].tolist(), size[part].tolist())
        for place, text in zip(part.tolist(), texts, strict=True):
            contents[place] = text

    for begin in range(0, len(parts), files.at_once):
        some = {int(shard[part[0]]): part for part in parts[begin : begin + files.at_once]}
        # The threads end before the archives are closed.
        with files.opened(found.archives, [*some]) as numbers, ThreadPoolExecutor(files.threads) as pool:
            reads = [pool.submit(read, numbers[archive], archive, part) for archive, part in some.items()]
            for each in reads:
                each.result()
    return contents


def _in_one(
    files: ArchiveSource, number: int, found: ArchiveIndex, archive: int, at: list[int], size: list[int]
) -> list[bytes]:
    """The texts at some places of an archive, in ascending order."""
    long_window, short_window = files.windows
    texts = []
    begin, data = 0, memoryview(b"")
    for place, length, following in zip(at, size, [*at[1:], at[-1] + long_window], strict=True):
        if place + length > begin + len(data) or place < begin:
            window = long_window if following - place <= files.through_bytes else short_window
            begin = place
            window = min(max(window, length), found.archives[archive].bytes - place)
            read = os.pread(number, window, place) if files.read is None else files.read(number, window, place)
            if isinstance(read, int):
                raise files.failure(found.archives[archive], read)
            data = memoryview(read)
            if len(data) < length:
                raise files.failure(found.archives[archive], errno.EIO)
        texts.append(bytes(data[place - begin : place - begin + length]))
    return texts
