"""What a read of an object costs: a request, and the bytes.

As for files (`chunks.measurement`), many requests are in flight, as the store has them later: a single one would
measure the distance to the server. On a line that is slower than the server, the time of a request hides behind that of
the bytes of others. Where the processor of either end is the limit, the two add up: so that is measured. Requests cost
money and bytes cost time, so both are bounded. A slow line gets fewer requests at once, because they share it and each
has a deadline.
"""

import asyncio
import random
from collections.abc import Sequence

from redoxfs.chunks import UNKNOWN_SPEED, StorageSpeed, even_bytes, speed_of_reads
from redoxfs.objects.client import Client, Version

IN_FLIGHT = 32
SMALL_BYTES, LARGE_BYTES = 4096, 4 << 20

LASTS_S = 0.4
MOST_SMALL, MOST_EVEN, MOST_LARGE = 1024, 256, 32
"""Requests of each kind; as many large ones as are in flight at once, 128 MiB. Those of even length take no more bytes
together, which is enough to have as many of them in flight."""

LARGE_TAKE_S = 4.0
"""So long may the large requests in flight take together."""

LEAST_BYTES = 64 << 20
"""Below this total size there is nothing to decide."""


def measure(client: Client, names: Sequence[str], versions: Sequence[Version]) -> StorageSpeed:
    """The speed of the store that has these shards; UNKNOWN_SPEED if they are small. Raises ObjectError."""
    if sum(version.size for version in versions) < LEAST_BYTES:
        return UNKNOWN_SPEED
    return client.run(_measure(client, names, versions))


async def _measure(client: Client, names: Sequence[str], versions: Sequence[Version]) -> StorageSpeed:
    at_random = random.Random(0)
    sizes = [version.size for version in versions]
    now = asyncio.get_running_loop().time

    async def seconds_each(size: int, most: int, in_flight: int) -> float:
        began, requests = now(), 0

        async def work() -> None:
            nonlocal requests
            while now() - began < LASTS_S and requests < most:
                requests += 1
                (shard,) = at_random.choices(range(len(names)), sizes)
                begin = at_random.randrange(max(1, sizes[shard] - size))
                await client.get(names[shard], begin, min(begin + size, sizes[shard]), versions[shard])

        await asyncio.gather(*(work() for _ in range(in_flight)))
        return (now() - began) / requests

    request_s = await seconds_each(SMALL_BYTES, MOST_SMALL, IN_FLIGHT)
    alone_s = await seconds_each(LARGE_BYTES, 1, 1)
    in_flight = max(1, min(IN_FLIGHT, int(LARGE_TAKE_S / alone_s)))
    large_s = await seconds_each(LARGE_BYTES, MOST_LARGE, in_flight)
    even = max(SMALL_BYTES, even_bytes(request_s, LARGE_BYTES, large_s))
    even_s = await seconds_each(even, min(MOST_EVEN, MOST_LARGE * LARGE_BYTES // even), in_flight)
    return speed_of_reads(request_s, LARGE_BYTES, large_s, even, even_s)
