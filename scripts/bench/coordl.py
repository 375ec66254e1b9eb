"""CoorDL's cache, for comparisons: MinIO on one node, partitioned over several (Mohan et al., VLDB 2021, §4.1, §4.2).

*MinIO* (§4.1). The cache keeps samples as they were read from storage. The first samples fill it, and it never replaces
one. So each epoch finds as many samples in it as it holds, in any order.

*Partitioned caching* (§4.2). In the first epoch each node reads its part of the dataset from storage and caches what
fits. From then on every node knows what each cache holds. A sample that is not in the node's own cache comes from the
cache of the node that has it, over TCP, and from storage only if no node has it.

The third technique of the paper, coordinated preparation, serves several jobs that train on one dataset. Here there
is one job. All DataLoader workers of a node share one cache, as in the paper. They are forked, so they inherit its
memory.
"""

import contextlib
import ctypes
import mmap
import multiprocessing
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt

DIRECTORY = -1
"""In the place of a sample's number: asks for the list of samples that a cache holds."""

ABSENT = -1
NUMBER = struct.Struct("<q")
PATIENCE_S = 60
PR_SET_PDEATHSIG = 1

fork = multiprocessing.get_context("fork")


class From(IntEnum):
    """Where a sample came from."""

    CACHE = 0
    PEER = 1
    STORAGE = 2


class MinIO:
    """Samples in memory that forked processes share. Once it is full, it does not change.

    Args:
        samples: the number of samples, which are numbered from 0.
        capacity_bytes: the most bytes of samples that it keeps.
    """

    def __init__(self, samples: int, capacity_bytes: int) -> None:
        self._arena = mmap.mmap(-1, max(1, capacity_bytes))
        self._capacity_bytes = capacity_bytes
        self._start = _shared(samples)
        self._length = _shared(samples)
        self._start[:] = ABSENT
        self._used = _shared(1)
        self._lock = fork.Lock()

    @property
    def used_bytes(self) -> int:
        return int(self._used[0])

    def get(self, number: int) -> bytes | None:
        start = int(self._start[number])
        return None if start < 0 else self._arena[start : start + int(self._length[number])]

    def offer(self, number: int, data: bytes) -> None:
        """Keep a sample if there is room."""
        with self._lock:
            start = int(self._used[0])
            if self._start[number] >= 0 or start + len(data) > self._capacity_bytes:
                return
            self._arena[start : start + len(data)] = data
            self._used[0] = start + len(data)
            self._length[number] = len(data)
            # Last, since `get` takes no lock.
            self._start[number] = start

    def held(self) -> npt.NDArray[np.bool_]:
        """bool[samples]: what it holds."""
        return self._start >= 0


class Node:
    """The cache of one node of a job, and the way to the others.

    Args:
        samples, capacity_bytes: as of `MinIO`; each node has the same ``samples``.
        addresses: host:port of each node; empty for a single node.
        rank: of this node.
    """

    def __init__(self, samples: int, capacity_bytes: int, addresses: Sequence[str] = (), rank: int = 0) -> None:
        self.cache = MinIO(samples, capacity_bytes)
        self._addresses = [_parsed(address) for address in addresses]
        self._rank = rank
        self._owner = _shared(samples)
        self._owner[:] = ABSENT
        self._counts = _shared(len(From))
        self._lock = fork.Lock()
        self._links: dict[int, socket.socket] = {}
        self._links_of = 0
        self._server: multiprocessing.process.BaseProcess | None = None

    def serve(self) -> None:
        """Start the process that answers the other nodes. The address is taken when this returns."""
        if len(self._addresses) > 1:
            listening = socket.create_server(self._addresses[self._rank], backlog=128)
            self._server = fork.Process(target=_serve, args=(listening, self.cache), daemon=True)
            self._server.start()
            listening.close()

    def close(self) -> None:
        """End the server, and the connections of this process. Those of workers end with them."""
        for link in self._links.values():
            link.close()
        self._links.clear()
        if self._server:
            self._server.kill()
            self._server.join()

    def refresh(self) -> None:
        """Learn what the other caches hold. Call it when all nodes have ended the first epoch."""
        for rank in range(len(self._addresses)):
            if rank != self._rank:
                held = np.unpackbits(np.frombuffer(self._ask(rank, DIRECTORY) or b"", np.uint8))
                self._owner[np.flatnonzero(held)] = rank

    def read(self, number: int, from_storage: Callable[[], bytes]) -> bytes:
        """A sample, from the nearest place that has it."""
        data, place = self.cache.get(number), From.CACHE
        if data is None and self._owner[number] >= 0:
            data, place = self._ask(int(self._owner[number]), number), From.PEER
        if data is None:
            data, place = from_storage(), From.STORAGE
            self.cache.offer(number, data)
        with self._lock:
            self._counts[place] += 1
        return data

    def counts(self) -> dict[str, int]:
        """How many samples came from where so far."""
        return {place.name.lower(): int(self._counts[place]) for place in From}

    def _ask(self, rank: int, number: int) -> bytes | None:
        if self._links_of != os.getpid():
            # A connection that was inherited belongs to the process that forked.
            self._links, self._links_of = {}, os.getpid()
        if rank not in self._links:
            self._links[rank] = _connected(self._addresses[rank])
        link = self._links[rank]
        link.sendall(NUMBER.pack(number))
        (length,) = NUMBER.unpack(_received(link, NUMBER.size))
        return None if length < 0 else bytes(_received(link, length))


def _serve(listening: socket.socket, cache: MinIO) -> None:
    # Not longer than the process that forked it, also if that is killed.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    while True:
        link, _ = listening.accept()
        threading.Thread(target=_answer, args=(link, cache), daemon=True).start()


def _answer(link: socket.socket, cache: MinIO) -> None:
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with link, contextlib.suppress(ConnectionError):
        while True:
            (number,) = NUMBER.unpack(_received(link, NUMBER.size))
            data = np.packbits(cache.held()).tobytes() if number == DIRECTORY else cache.get(number)
            link.sendall(NUMBER.pack(ABSENT if data is None else len(data)))
            if data:
                link.sendall(data)


def _connected(address: tuple[str, int]) -> socket.socket:
    """A connection to a node that may not listen yet."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            link = socket.create_connection(address, timeout=PATIENCE_S)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return link


def _received(link: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    view = memoryview(data)
    while view:
        count = link.recv_into(view)
        if not count:
            raise ConnectionResetError("the other node closed the connection")
        view = view[count:]
    return data


def _parsed(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def _shared(count: int) -> npt.NDArray[np.int64]:
    return np.frombuffer(mmap.mmap(-1, max(1, count) * 8), np.int64)[:count]
