"""`redoxfs cache verify`: reads every copy in a dataset's folder and compares its checksums."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from redoxfs.cache.copies import signed
from redoxfs.cache.folder import CacheError, Folder, Root
from redoxfs.cache.segments import TAKEN_BACK, Batch, Batches, blocks_of, read_batches, sums_of
from redoxfs.cache.writer import Disk, Segment
from redoxfs.linux.descriptors import opened
from redoxfs.packed.index import SUM_BLOCK_BYTES


@dataclass(slots=True)
class Checked:
    """``damaged`` copies are taken back, unless ``fault`` says why not. ``index_bytes`` of indexes are damaged."""

    files: int = 0
    size: int = 0
    damaged: int = 0
    index_bytes: int = 0
    fault: str = ""


def verify(root: Root, key: str, progress: Callable[[int, int, int], None]) -> Checked:
    """Check a dataset's copies, and take back those that are damaged. Raises CacheError.

    Args:
        progress: called with files and bytes done, and all bytes.
    """
    folder = root.folder(key)
    try:
        return _verified(folder, progress)
    except OSError as failure:
        raise CacheError(f"{root.name}: {failure.strerror}") from None
    finally:
        folder.close()


def _verified(folder: Folder, progress: Callable[[int, int, int], None]) -> Checked:
    read = {name: _batches_of(folder, name) for name in folder.segments()}
    batches = [(name, batch) for name, found in read.items() for batch in found.batches]
    kept = [(name, batch) for name, batch in batches if batch.is_sound]
    taken_back = {(int(a), int(b)) for _, batch in batches if batch.magic == TAKEN_BACK for a, b, _ in batch.files}
    total = sum(int(batch.files[:, 2].sum()) for _, batch in kept)
    checked = Checked(index_bytes=sum(found.damaged_bytes for found in read.values()))
    wrong: list[tuple[int, int, int]] = []
    for name, batch in kept:
        number = signed(name)
        with opened(folder.open(f"{name}.data", os.O_RDONLY)) as fd:
            for at, size, sums in _files_of(batch):
                if (number, at) in taken_back:
                    continue
                checked.files += 1
                checked.size += size
                if not _is_right(fd, at, size, sums):
                    wrong.append((number, at, 0))
        progress(checked.files, checked.size, total)
    checked.damaged = len(wrong)
    if wrong:
        try:
            segment = Segment(folder, Disk())
            try:
                segment.append(TAKEN_BACK, wrong, [])
            finally:
                segment.close()
        except OSError as failure:
            checked.fault = failure.strerror or str(failure)
    return checked


def _batches_of(folder: Folder, name: str) -> Batches:
    with opened(folder.open(f"{name}.index", os.O_RDONLY)) as fd:
        return read_batches(fd, 0, folder.seed)


def _files_of(batch: Batch) -> Iterator[tuple[int, int, list[int]]]:
    """Position, size and checksums of each file."""
    ends = np.cumsum(blocks_of(batch.files[:, 2])).tolist()
    sums = batch.sums.tolist()
    for (_, at, size), begin, end in zip(batch.files.tolist(), [0, *ends[:-1]], ends, strict=True):
        yield at, size, sums[begin:end]


def _is_right(fd: int, at: int, size: int, sums: list[int]) -> bool:
    with suppress(OSError):
        for begin, wanted in zip(range(0, size, SUM_BLOCK_BYTES), sums, strict=True):
            length = min(SUM_BLOCK_BYTES, size - begin)
            # From the disk, where it matters.
            os.posix_fadvise(fd, at + begin, length, os.POSIX_FADV_DONTNEED)
            data = os.pread(fd, length, at + begin)
            if len(data) != length or sums_of(memoryview(data)) != [wanted]:
                return False
        return True
    return False
