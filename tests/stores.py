"""What a node stands on, for tests: a store that is held back and failed at will, and a kernel that caches nothing."""

import threading
from collections.abc import Sequence
from functools import partial

from redoxfs.chunks import FileBytes, Read, SourceFile, Stamp
from redoxfs.chunks.store import Payload
from redoxfs.dataset import Catalog


class HeldStore:
    """Every file holds the number of its sample. ``gate`` closed: reads wait; ``broken``: samples that fail.

    Without a catalog a sample is one file of ``size`` bytes, and the entry of the same number; with one, files have
    the sizes that it says, and those of no sample hold "-1".
    """

    depth = 32

    def __init__(self, catalog: Catalog | None = None) -> None:
        self._catalog = catalog
        self.gate = threading.Event()
        self.gate.set()
        self.broken: set[int] = set()
        self.reads_made: list[int] = []
        self.size = 1000

    def reads(self, chunk: int, samples: Sequence[int]) -> Sequence[Read]:
        return [Read((sample,), partial(self._payloads, sample)) for sample in samples]

    def read_range(self, sample: int, file: int, stamp: Stamp, offset: int, size: int) -> bytes:
        self.gate.wait()
        self._must_be_whole(sample)
        return self.content(sample, file)[offset : offset + size]

    def open_file(self, entry: int) -> SourceFile:
        catalog = self._catalog
        sample = entry if catalog is None else int(catalog.sample_of[entry])
        self._must_be_whole(sample)
        size = self.size if catalog is None else int(catalog.tree.size[entry])
        return HeldFile(_filled(sample, size), Stamp(size, 0, sample))

    def content(self, sample: int, file: int = 0) -> bytes:
        catalog = self._catalog
        if catalog is None:
            return _filled(sample, self.size)
        return _filled(sample, int(catalog.tree.size[catalog.members[catalog.member_at[sample] + file]]))

    def _payloads(self, sample: int) -> Sequence[Payload]:
        self.gate.wait()
        self.reads_made.append(sample)
        catalog = self._catalog
        files = 1 if catalog is None else int(catalog.member_at[sample + 1] - catalog.member_at[sample])
        return [tuple(self._file(sample, file) for file in range(files))]

    def _file(self, sample: int, file: int) -> FileBytes | OSError:
        try:
            self._must_be_whole(sample)
        except OSError as error:
            return error
        data = self.content(sample, file)
        return FileBytes(data, Stamp(len(data), 0, sample), changed=False)

    def _must_be_whole(self, sample: int) -> None:
        if sample in self.broken:
            raise OSError(5, "broken")


class HeldFile:
    """An open file of a HeldStore."""

    def __init__(self, data: bytes, stamp: Stamp) -> None:
        self._data = data
        self.stamp = stamp

    def read(self, offset: int, size: int) -> bytes:
        return self._data[offset : offset + size]

    def close(self) -> None:
        pass


def _filled(sample: int, size: int) -> bytes:
    return str(sample).encode().ljust(size, b".")[:size]


class NoKernel:
    """Caches nothing, so it need not be told of anything."""

    def bound(self, entries: Sequence[int]) -> None:
        pass

    def freed(self, entries: Sequence[int]) -> None:
        pass

    def changed(self, entry: int) -> None:
        pass
