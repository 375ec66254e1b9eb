"""The chunk store over objects: a sweep is one ranged request, or a few for a large file.

A sweep's bytes arrive in memory of obstore's, whole. C copies each file to a buffer of its own and compares its
checksums (native/shards.c), without the interpreter's lock: one copy of ours, in the thread of the event loop. The
memory of the sweep is dropped then, so requests in flight hold their ranges, which together are bounded, and samples in
memory hold nothing but themselves. Rejected: samples as slices of what arrived. One sample that waits for its reader
would keep all others of its sweep in memory, and the memory of a mount could not be promised.

A file whose checksum is wrong is requested once more by itself. A request that fails is repeated until the deadline
(`client`); then each file of the sweep is an error in its place, with the same text.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

import redoxfs.native._native as faults
from redoxfs.chunks import BackgroundRead, FileBytes, NativeRead, Payload, Read, StorageSpeed
from redoxfs.objects.client import PART_BYTES, Client, Version
from redoxfs.objects.index import all_of
from redoxfs.packed import Index
from redoxfs.packed.index import GROUP_GAP_MAX_BYTES
from redoxfs.packed.sharded import ShardedStore, Sweep

if TYPE_CHECKING:
    from redoxfs.native._native import FileResult


class ObjectStore(ShardedStore):
    """Reads the shards of ``index`` through ``client``.

    Args:
        versions: of each shard; another one is an error.
        most_held_bytes: of all requests in flight together.
    """

    depth = 16
    """Requests in flight at first. With the latency of a store next to the machine, they give some hundred MB/s."""

    most_depth = 128

    def __init__(
        self,
        index: Index,
        client: Client,
        versions: Sequence[Version],
        speed: StorageSpeed,
        *,
        most_held_bytes: int,
    ) -> None:
        super().__init__(index, speed, np.full(len(versions), -1, np.int32), PART_BYTES)
        self._client = client
        self._versions = versions
        self.most_held_bytes = most_held_bytes
        # More parts of a large file would share the line, and each would be cut at its deadline.
        self._parts = asyncio.Semaphore(max(1, most_held_bytes // PART_BYTES))

    def start(self) -> None:
        """Those of requests."""
        self._client.start()

    def stats(self) -> dict[str, int]:
        """Its part of `objects` in stats.json."""
        counts = self._client.counts
        return {"requests": counts.requests, "retries": counts.retries, "received_bytes": counts.size}

    def _read(self, sweep: Sweep) -> Read:
        held = sum(self._end(files) - self._data_at[files[0]] for files in self._together(sweep.entries))
        return _ObjectRead(self, self._described(sweep), held)

    def _together(self, entries: Sequence[int]) -> list[Sequence[int]]:
        """Entries in order, as they are fetched: a gap that is longer than a pack makes is left out.

        Between the files of a sample in an archive can be anything, or they are links to one file.
        """
        most = max(GROUP_GAP_MAX_BYTES, self._speed.longest_gap_bytes)
        gaps = (self._data_at[after] - self._end([before]) for before, after in pairwise(entries))
        cuts = [0, *(at for at, gap in enumerate(gaps, 1) if not 0 <= gap <= most), len(entries)]
        return [entries[begin:end] for begin, end in pairwise(cuts)]

    def _end(self, entries: Sequence[int]) -> int:
        return self._data_at[entries[-1]] + self._size[entries[-1]]

    def _bytes_of(self, entry: int, offset: int, size: int, *, again: bool) -> bytes:  # nothing caches
        if not size:
            return b""
        begin = self._data_at[entry] + offset
        return b"".join(self._client.run(self.fetch(self._shard_of[entry], begin, begin + size)))

    # In the event loop

    async def results(self, entries: Sequence[int]) -> "Sequence[FileResult]":
        """Files in the order in which they lie in a shard. Raises ObjectError."""
        together = self._together(entries)
        if len(together) == 1:
            return await self._results(entries)
        return [result for results in await all_of(map(self._results, together)) for result in results]

    async def _results(self, entries: Sequence[int]) -> "Sequence[FileResult]":
        """Files that are fetched together."""
        shard = self._shard_of[entries[0]]
        pieces = await self.fetch(shard, self._data_at[entries[0]], self._end(entries))
        results = self.native.scatter(entries, pieces)
        if all(isinstance(result, FileBytes) for result in results):
            return results
        mended = list(results)
        for number, (entry, result) in enumerate(zip(entries, results, strict=True)):
            if not isinstance(result, FileBytes) and result[1] == faults.WRONG_SUM:
                begin = self._data_at[entry]
                pieces = await self.fetch(shard, begin, begin + self._size[entry])
                (mended[number],) = self.native.scatter([entry], pieces)
        return mended

    async def fetch(self, shard: int, begin: int, end: int) -> Sequence[Any]:
        """The bytes of a shard, in pieces that follow each other. Raises ObjectError."""
        name, version = self._index.positions.shard_names[shard], self._versions[shard]
        if begin == end:
            return ()
        if end - begin <= PART_BYTES:
            return (await self._client.get(name, begin, end, version),)
        # The smallest number of equal parts: none is tiny.
        parts = -(-(end - begin) // PART_BYTES)
        bounds = [begin + (end - begin) * part // parts for part in range(parts + 1)]

        async def part(first: int, last: int) -> Any:
            async with self._parts:
                return await self._client.get(name, first, last, version)

        return await all_of(part(first, last) for first, last in pairwise(bounds))


class _ObjectRead(BackgroundRead):
    """One sweep."""

    __slots__ = ("_described", "_store")

    def __init__(self, store: ObjectStore, described: NativeRead, held_bytes: int) -> None:
        super().__init__(described.samples, held_bytes)
        self._store = store
        self._described = described

    def run(self) -> Sequence[Payload]:
        return self._store._client.run(self._payloads())

    def begin(self, done: Callable[[Sequence[Payload]], None]) -> Callable[[], None]:
        return self._store._client.spawn(self._payloads(), lambda payloads: done(payloads or ()))

    async def _payloads(self) -> Sequence[Payload]:
        try:
            return self._described.payloads(await self._store.results(self._described.entries))
        except OSError as error:
            return self._described.failed(error)
