"""What a node stands on, for tests: a store that is held back and failed at will, and a kernel that caches nothing."""

import threading
from collections.abc import Sequence
from functools import partial

from redoxfs.chunks import FileBytes, Read, SourceFile, Stamp
from redoxfs.chunks.store import Payload


class HeldStore:
    """Every sample's only file holds its own number. ``gate`` closed: reads wait; ``broken``: samples that fail."""

    depth = 32

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.broken: set[int] = set()
        self.reads_made: list[int] = []
        self.size = 1000

    def reads(self, chunk: int, samples: Sequence[int]) -> Sequence[Read]:
        return [Read((sample,), partial(self._payloads, sample)) for sample in samples]

    def read_range(self, sample: int, file: int, stamp: Stamp, offset: int, size: int) -> bytes:
        self.gate.wait()
        return self.content(sample)[offset : offset + size]

    def open_file(self, entry: int) -> SourceFile:
        raise NotImplementedError

    def content(self, sample: int) -> bytes:
        return str(sample).encode().ljust(self.size, b".")

    def _payloads(self, sample: int) -> Sequence[Payload]:
        self.gate.wait()
        self.reads_made.append(sample)
        if sample in self.broken:
            return [(OSError(5, "broken"),)]
        return [(FileBytes(self.content(sample), Stamp(self.size, 0, sample), changed=False),)]


class NoKernel:
    """Caches nothing, so it need not be told of anything."""

    def bound(self, entries: Sequence[int]) -> None:
        pass

    def freed(self, entries: Sequence[int]) -> None:
        pass

    def changed(self, entry: int) -> None:
        pass
