"""The bytes of an object that is read mostly in order: parts of it are requested ahead."""

import asyncio
import concurrent.futures
from collections import deque
from functools import partial
from typing import Any

from redoxfs.objects.client import PART_BYTES, Client, Version

AHEAD = 8
"""Ranges that a reader has requested ahead, in 64 MiB of memory."""


class Window:
    """The bytes of an object. ``ahead``: parts of ``part_bytes`` in flight, with the one that is waited for."""

    def __init__(
        self, client: Client, name: str, version: Version, *, part_bytes: int = PART_BYTES, ahead: int = AHEAD
    ) -> None:
        self.ahead = ahead
        self._client = client
        self._get = partial(client.get, name, version=version)
        self._size = version.size
        self._part_bytes = part_bytes
        self._parts: deque[tuple[int, concurrent.futures.Future[Any]]] = deque()
        self._following = 0

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
        """Cancel what is in flight."""
        for _, part in self._parts:
            part.cancel()
        self._parts.clear()

    def _part(self, at: int) -> "tuple[int, concurrent.futures.Future[Any]]":
        """The part that has a position. Parts before it are dropped, and others requested."""
        while self._parts and self._parts[0][0] + self._part_bytes <= at:
            self._parts.popleft()[1].cancel()
        if not self._parts or at < self._parts[0][0]:
            self.close()
            self._following = at
        while len(self._parts) < self.ahead and self._following < self._size:
            work = self._get(self._following, min(self._following + self._part_bytes, self._size))
            self._parts.append((self._following, asyncio.run_coroutine_threadsafe(work, self._client.loop)))
            self._following += self._part_bytes
        return self._parts[0]
