"""`redoxfs verify` of an address: every byte of every shard is fetched once, in order, and compared with the index."""

import asyncio
import concurrent.futures
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from redoxfs.objects.address import Address
from redoxfs.objects.client import PART_BYTES, Client, Version
from redoxfs.objects.errors import ObjectError
from redoxfs.objects.index import Fetched, load
from redoxfs.objects.writer import Writer
from redoxfs.packed.index import Index
from redoxfs.packed.shard import ShardMap, check_bytes
from redoxfs.packed.verifying import Verified, verified
from redoxfs.packed.workers import Done, Tally, Work, each_shard

AHEAD = 8
"""Ranges that a worker has requested ahead, in 64 MiB of memory."""


def verify(
    address: Address,
    fetched: Fetched,
    *,
    jobs: int,
    timeout_s: float,
    on_progress: Callable[[Done, int], None] = lambda _done, _size: None,
) -> Verified:
    """As `redoxfs.packed.verifying`, of an index that was fetched."""
    index = load(fetched)
    tree, names = index.catalog.tree, index.positions.shard_names
    size = int(tree.size[tree.kind_mask(0o100000)].sum())
    work = Work(_prepare, (address, fetched, timeout_s), _carry_out)
    problems = dict(each_shard(work, range(len(names)), jobs, lambda done: on_progress(done, size)))
    return verified(index, problems, _tars(address, timeout_s))


def _tars(address: Address, timeout_s: float) -> list[str]:
    """The shards that are there, as far as the store lists them."""
    if address.is_read_only:
        return []
    try:
        return [name for name in Writer(address, timeout_s).names() if name.endswith(".tar") and "/" not in name]
    except ObjectError:
        # To list a bucket takes a permission of its own.
        return []


_State = tuple[Index, ShardMap, Client, tuple[Version, ...]]


def _prepare(argument: tuple[Address, Fetched, float]) -> _State:
    address, fetched, timeout_s = argument
    index = load(fetched)
    shards = ShardMap.of(index.catalog.tree, index.positions, index.block_at)
    return index, shards, Client(address, deadline_s=timeout_s), fetched.versions


def _carry_out(state: _State, shard: int, tally: Tally) -> list[str]:
    index, shards, client, versions = state
    name = index.positions.shard_names[shard]
    sums = index.sums[shards.blocks(shard)]
    window = _Window(client, name, versions[shard])
    try:
        return check_bytes(
            shards, shard, versions[shard].size, window.read, sums, progress=tally.add, stopping=tally.stopping
        )
    except ObjectError as error:
        return [f"{name}: {error.strerror}"]
    finally:
        window.close()


class _Window:
    """The bytes of an object, which are read mostly in order."""

    def __init__(self, client: Client, name: str, version: Version) -> None:
        self._client = client
        self._get = partial(client.get, name, version=version)
        self._size = version.size
        self._parts: deque[tuple[int, concurrent.futures.Future[Any]]] = deque()

    def read(self, size: int, at: int) -> bytes:
        """Up to ``size`` bytes from ``at``; fewer at the end. Raises ObjectError."""
        end = min(at + size, self._size)
        found = []
        while at < end:
            begin, part = self._part(at)
            data = memoryview(part.result())[at - begin : end - begin]
            found.append(data)
            at += len(data)
        return b"".join(found)

    def close(self) -> None:
        for _, part in self._parts:
            part.cancel()

    def _part(self, at: int) -> tuple[int, "concurrent.futures.Future[Any]"]:
        """The part that has a position. Parts before it are dropped, and others requested."""
        if self._parts and at < self._parts[0][0]:
            self.close()
            self._parts.clear()
        while self._parts and self._parts[0][0] + PART_BYTES <= at:
            self._parts.popleft()[1].cancel()
        following = self._parts[-1][0] + PART_BYTES if self._parts else at // PART_BYTES * PART_BYTES
        while len(self._parts) < AHEAD and following < self._size:
            work = self._get(following, min(following + PART_BYTES, self._size))
            self._parts.append((following, asyncio.run_coroutine_threadsafe(work, self._client.loop)))
            following += PART_BYTES
        return self._parts[0]
