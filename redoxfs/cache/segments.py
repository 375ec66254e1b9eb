"""The two files of a segment: the bytes of files, and an index of batches.

    ID.data     bytes of files, sample after sample, without anything between them
    ID.index    batches, each with a checksum of its own

A batch is a head of 32 bytes, 24 bytes for each file, and 8 bytes for each checksum:

    head    magic, number of files, number of checksums, zero, checksum of the batch
    files   entry in the tree, position in ID.data, size in bytes
    sums    XXH3-64 of each SUM_BLOCK_BYTES of each file, file after file

The writer writes a batch after the bytes that it names, but readers do not rely on the order on the disk: a batch
is valid if its checksum is right, and bytes are valid if theirs are. So readers notice any damage by a crash. The seed
of a batch's checksum is the dataset's key, so a batch of another dataset is invalid.

A batch of the other kind takes back copies that turned out to be damaged. Its files are (segment, position, 0).

One process writes a segment, and holds a lock on ID.data. After it has ended, another one may continue the segment.
"""

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from redoxfs.packed.index import SUM_BLOCK_BYTES

KEPT = 0x3145_4843_4143_5852
"""The magic of a batch of copies."""

TAKEN_BACK = 0x3150_4F52_4443_5852
"""The magic of a batch of copies that are taken back."""

_HEAD = struct.Struct("<QIIQQ")
_BEFORE_SUM = _HEAD.size - 8

Int64 = npt.NDArray[np.int64]
Sums = npt.NDArray[np.uint64]


class Batch(NamedTuple):
    """``files``: int64[F, 3], as above. ``sums``: uint64[B]."""

    magic: int
    files: Int64
    sums: Sums

    @property
    def is_sound(self) -> bool:
        """Whether it is of copies, and its parts fit each other."""
        sizes = self.files[:, 2]
        if self.magic != KEPT or not len(sizes) or int(sizes.min()) < 0:
            return False
        return int(blocks_of(sizes).sum()) == len(self.sums)


@dataclass(frozen=True, slots=True)
class Batches:
    """The batches of an index file, the end of the last one, and the number of bytes before it that are no batch."""

    batches: list[Batch]
    end: int
    damaged_bytes: int


def blocks_of(sizes: Int64) -> Int64:
    """How many checksums files of these sizes have."""
    return -(-sizes // SUM_BLOCK_BYTES)


def sums_of(data: memoryview) -> list[int]:
    """The checksums of a file."""
    digest = xxhash.xxh3_64_intdigest
    if len(data) <= SUM_BLOCK_BYTES:
        return [digest(data)] if len(data) else []
    return [digest(data[at : at + SUM_BLOCK_BYTES]) for at in range(0, len(data), SUM_BLOCK_BYTES)]


def seed_of(key: str) -> int:
    """The seed of checksums of batches."""
    return xxhash.xxh3_64_intdigest(key.encode())


def encoded(magic: int, files: Sequence[tuple[int, int, int]], sums: Sequence[int], seed: int) -> bytes:
    """A batch as bytes."""
    body = np.array(files, np.int64).reshape(-1, 3).tobytes() + np.array(sums, np.uint64).tobytes()
    head = _HEAD.pack(magic, len(files), len(sums), 0, 0)[:_BEFORE_SUM]
    return head + struct.pack("<Q", _checksum(head, memoryview(body), seed)) + body


def encoded_bytes(files: int, blocks: int) -> int:
    """The length of a batch."""
    return _HEAD.size + 24 * files + 8 * blocks


def read_batches(fd: int, at: int, seed: int) -> Batches:
    """The batches from ``at`` on. Skips bytes that are no batch. Raises OSError."""
    data = _read(fd, at)
    found: list[Batch] = []
    place = end = damaged = 0
    while place + _HEAD.size <= len(data):
        batch, length = _batch_at(data, place, seed)
        if batch is not None:
            damaged += place - end
            found.append(batch)
            place = end = place + length
        else:
            place = _next_magic(data, place + 8)
    return Batches(found, at + end, damaged)


def _batch_at(data: memoryview, at: int, seed: int) -> tuple[Batch | None, int]:
    magic, files, blocks, zero, checksum = _HEAD.unpack_from(data, at)
    length = encoded_bytes(files, blocks)
    if magic not in (KEPT, TAKEN_BACK) or zero or at + length > len(data):
        return None, 0
    body = data[at + _HEAD.size : at + length]
    if _checksum(data[at : at + _BEFORE_SUM], body, seed) != checksum:
        return None, 0
    rows = np.frombuffer(body[: 24 * files], np.int64).reshape(-1, 3)
    return Batch(magic, rows, np.frombuffer(body[24 * files :], np.uint64)), length


def _next_magic(data: memoryview, at: int) -> int:
    """Where a batch might begin: at a multiple of 8, as all lengths are."""
    words = np.frombuffer(data[at : at + (len(data) - at) // 8 * 8], np.uint64)
    hits = np.flatnonzero((words == KEPT) | (words == TAKEN_BACK))
    return at + 8 * int(hits[0]) if len(hits) else len(data)


def _checksum(head: bytes | memoryview, body: memoryview, seed: int) -> int:
    digest = xxhash.xxh3_64(head, seed=seed)
    digest.update(body)
    return digest.intdigest()


def _read(fd: int, at: int) -> memoryview:
    data = memoryview(bytearray(max(0, os.fstat(fd).st_size - at)))
    done = 0
    while done < len(data) and (some := os.preadv(fd, [data[done : done + (1 << 24)]], at + done)):
        done += some
    return data[:done]
