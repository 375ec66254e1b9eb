"""An answer's bytes in parts: cut at the sender, assembled at the receiver.

The files of all samples, one after the other, are cut every 1 MiB. gRPC moves data about fastest at that size, and
neither side ever holds a much larger message. A file within one part is copied once, into a Buffer of its own. A file
that spans several parts gets memory when its first piece comes, and becomes a Buffer when it is complete. Either way it
keeps no message alive. Nothing is allocated before bytes arrive, whatever length a peer announces.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from redoxfs.chunks.store import FileBytes, Payload, Stamp
from redoxfs.native import Buffer

PART_BYTES = 1 << 20


class FileHead(NamedTuple):
    """A file of ``length`` bytes, before they arrive."""

    length: int
    stamp: Stamp
    changed: bool


SampleHead = tuple[FileHead | OSError, ...]


def part_count(total_bytes: int) -> int:
    """The number of parts of ``total_bytes``; one empty part if there are no bytes."""
    return max(1, -(-total_bytes // PART_BYTES))


class Cut:
    """The bytes of samples, to be sent in parts. Used by any thread."""

    def __init__(self, payloads: Sequence[Payload]) -> None:
        files = [file for payload in payloads for file in payload if isinstance(file, FileBytes)]
        self._buffers = [memoryview(file.data) for file in files]
        self._ends = list(accumulate(len(buffer) for buffer in self._buffers))
        self.total_bytes = self._ends[-1] if self._ends else 0
        self.part_count = part_count(self.total_bytes)

    def pieces(self, part: int) -> list[memoryview]:
        """The pieces of ``part``; nothing is copied."""
        at, end = part * PART_BYTES, min((part + 1) * PART_BYTES, self.total_bytes)
        found = []
        file = bisect_right(self._ends, at)
        while at < end:
            buffer = self._buffers[file]
            began = self._ends[file] - len(buffer)
            piece = buffer[at - began : end - began]
            if len(piece):
                found.append(piece)
            at += len(piece)
            file += 1
        return found


class Assembly:
    """Samples whose parts arrive in any order, each any number of times.

    The receiving thread calls `fill`, one call at a time; the trio task calls everything else.
    """

    def __init__(self, samples: Sequence[SampleHead]) -> None:
        self._samples = samples
        self._files = [head for sample in samples for head in sample if isinstance(head, FileHead)]
        ends = list(accumulate((head.length for head in self._files), initial=0))
        self._begins = ends
        self.total_bytes = ends[-1]
        self.part_count = part_count(self.total_bytes)
        self._data: dict[int, Buffer] = {}
        # Of files that span several parts.
        self._incomplete: dict[int, memoryview] = {}
        self._first_file = list(
            accumulate((sum(isinstance(head, FileHead) for head in sample) for sample in samples), initial=0)
        )
        self._left = [1] * len(samples)
        self._samples_of: list[list[int]] = [[] for _ in range(self.part_count)]
        self._arrived = [False] * self.part_count
        for sample, (first_file, after) in enumerate(pairwise(self._first_file)):
            began, end = ends[first_file], ends[after]
            # An empty sample comes with part 0.
            first, last = (began // PART_BYTES, (end - 1) // PART_BYTES) if end > began else (0, 0)
            self._left[sample] = last - first + 1
            for part in range(first, last + 1):
                self._samples_of[part].append(sample)

    def fill(self, part: int, payload: memoryview) -> None:
        """Copy the bytes of ``part``.

        Raises:
            ValueError: the number of bytes is wrong for that part.
        """
        at, end = part * PART_BYTES, min((part + 1) * PART_BYTES, self.total_bytes)
        if len(payload) != end - at:
            raise ValueError(f"part {part} of an answer has {len(payload)} bytes instead of {end - at}")
        file = bisect_right(self._begins, at) - 1
        offset = at
        while offset < end:
            began, length = self._begins[file], self._files[file].length
            piece = payload[offset - at : began + length - at]
            if len(piece) == length:
                self._data[file] = Buffer(piece)
            else:
                buffer = self._incomplete.get(file)
                if buffer is None:
                    # Not a bytearray, which would be filled with zeros first.
                    buffer = self._incomplete[file] = np.empty(length, np.uint8).data
                buffer[offset - began : offset - began + len(piece)] = piece
            offset += len(piece)
            file += 1

    def samples_of(self, part: int) -> list[int]:
        """The indices of the samples that have bytes in ``part``."""
        return self._samples_of[part]

    def arrived(self, part: int) -> list[int]:
        """``part`` was filled. Returns the indices of the samples that this completes."""
        if self._arrived[part]:
            return []
        self._arrived[part] = True
        complete = []
        for sample in self._samples_of[part]:
            self._left[sample] -= 1
            if not self._left[sample]:
                complete.append(sample)
        return complete

    def payload(self, sample: int) -> Payload:
        """The files of a complete sample. Can be called once for each sample."""
        file = self._first_file[sample]
        files: list[FileBytes | OSError] = []
        for head in self._samples[sample]:
            if isinstance(head, FileHead):
                data = self._data.pop(file) if file in self._data else Buffer(self._incomplete.pop(file, b""))
                files.append(FileBytes(data, head.stamp, head.changed))
                file += 1
            else:
                files.append(head)
        return tuple(files)
