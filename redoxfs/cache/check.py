"""`redoxfs cache verify`: reads every copy in a dataset's folder and compares its checksums."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from redoxfs.cache.copies import signed
from redoxfs.cache.folder import CacheError, Root
from redoxfs.cache.segments import KEPT, TAKEN_BACK, blocks_of, read_batches, sums_of
from redoxfs.cache.writer import Disk, _Segment

PIECE_BYTES = 1 << 20


@dataclass(slots=True)
class Checked:
    """``damaged`` copies of files are taken back. ``index_bytes`` of indexes are damaged."""

    files: int = 0
    size: int = 0
    damaged: int = 0
    index_bytes: int = 0


def verify(root: Root, key: str, progress: Callable[[int, int, int], None]) -> Checked:
    """Check a dataset's copies, and take back those that are damaged. Raises CacheError.

    Args:
        progress: called with files and bytes done, and all bytes.
    """
    folder = root.folder(key)
    checked = Checked()
    wrong: list[tuple[int, int, int]] = []
    try:
        names = folder.segments()
        read = {}
        for name in names:
            fd = folder.open(f"{name}.index", os.O_RDONLY)
            try:
                read[name] = read_batches(fd, 0, folder.seed)
            finally:
                os.close(fd)
        batches = [(name, batch) for name, found in read.items() for batch in found.batches]
        taken_back = {(int(a), int(b)) for _, batch in batches if batch.magic == TAKEN_BACK for a, b, _ in batch.files}
        total = sum(int(batch.files[:, 2].sum()) for _, batch in batches if batch.magic == KEPT)
        checked.index_bytes = sum(found.damaged_bytes for found in read.values())
        for name, batch in batches:
            if batch.magic != KEPT:
                continue
            number = signed(name)
            fd = folder.open(f"{name}.data", os.O_RDONLY)
            try:
                first = np.cumsum(blocks := blocks_of(batch.files[:, 2])) - blocks
                for (_, at, size), begin, count in zip(
                    batch.files.tolist(), first.tolist(), blocks.tolist(), strict=True
                ):
                    if (number, at) in taken_back:
                        continue
                    checked.files += 1
                    checked.size += size
                    if not _is_right(fd, at, size, batch.sums[begin : begin + count].tolist()):
                        wrong.append((number, at, 0))
                progress(checked.files, checked.size, total)
            finally:
                os.close(fd)
        checked.damaged = len(wrong)
        if wrong:
            segment = _Segment(folder, Disk())
            try:
                segment.append(TAKEN_BACK, wrong, [])
            finally:
                segment.close()
    except OSError as failure:
        raise CacheError(f"{root.name}: {failure.strerror}") from None
    finally:
        folder.close()
    return checked


def _is_right(fd: int, at: int, size: int, sums: list[int]) -> bool:
    with suppress(OSError):
        for number, wanted in enumerate(sums):
            begin = number * PIECE_BYTES
            # From the disk, where it matters.
            os.posix_fadvise(fd, at + begin, PIECE_BYTES, os.POSIX_FADV_DONTNEED)
            data = os.pread(fd, min(PIECE_BYTES, size - begin), at + begin)
            if len(data) != min(PIECE_BYTES, size - begin) or sums_of(memoryview(data)) != [wanted]:
                return False
        return True
    return False
