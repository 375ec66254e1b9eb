"""Fakes below a node, for tests: stores that wait and fail on demand, system calls that fail, and a kernel without
caches."""

import ctypes
import errno
import gc
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import trio
from patience import PATIENCE_S, until_in_trio

import redoxfs.native._native as native_module
from redoxfs.chunks import (
    ChunkStore,
    FileBytes,
    Payload,
    Read,
    SourceFile,
    Stamp,
    build_cells,
    memory_for_share,
)
from redoxfs.dataset import Catalog
from redoxfs.linux import beneath
from redoxfs.native import Buffer
from redoxfs.node import Kernel, Node, OpenBefore, OpenFile, plan_slot
from redoxfs.node.callers import Callers


def bytes_in_buffers() -> int:
    """The bytes of all buffers that something still needs: garbage of other tests does not count."""
    gc.collect()
    return Buffer.total_bytes()


class HeldStore(ChunkStore):
    """Every file holds the number of its sample. Reads wait while ``gate`` is closed; samples in ``broken`` fail.

    Without a catalog, a sample is one file of ``size`` bytes, and the entry of the same number. With a catalog, files
    have its sizes, and files of no sample hold "-1".
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


@asynccontextmanager
async def running_node(
    catalog: Catalog,
    store: HeldStore,
    kernel: Kernel,
    *,
    chunk_size: int,
    share: float,
    timeout_s: float = PATIENCE_S,
    callers: Callers | None = None,
) -> AsyncIterator[Node]:
    """A node over ``store`` with the slot policy, and memory for ``share`` of the samples."""
    cells = build_cells(catalog.class_of, catalog.sample_bytes, chunk_size=chunk_size, seed=0)
    memory_bytes = memory_for_share(cells, catalog.sample_bytes, share)
    plan = plan_slot(catalog, cells, memory_bytes=memory_bytes, seed=0)
    node = Node(catalog, plan, store, timeout_s=timeout_s, kernel=kernel, callers=callers)
    node.start()
    try:
        with trio.fail_after(PATIENCE_S):
            yield node
    finally:
        store.gate.set()
        node.stop()


async def opened_by(node: Node, entry: int, thread: int) -> OpenFile:
    opening = node.open(entry, thread)
    return opening if isinstance(opening, OpenFile) else await opening


async def read_from(node: Node, handle: int, offset: int = 0, size: int = 1 << 20) -> bytes:
    reading = node.read(handle, offset, size)
    return bytes(reading if isinstance(reading, bytes | memoryview) else await reading)


async def all_arrived(node: Node) -> None:
    """Wait until no read is on its way."""
    await until_in_trio(lambda: not node.supply._expected)


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


class FaultyStore(ChunkStore):
    """``store``, but ``fault`` replaces every Nth read, where N is ``every`` (0: none).

    ``hit`` has the samples of those reads, once for each read.
    """

    def __init__(self, store: ChunkStore, fault: Callable[[Read], Sequence[Payload]]) -> None:
        self._store = store
        self._fault = fault
        self._made = 0
        self._lock = threading.Lock()
        self.depth = store.depth
        self.every = 0
        self.hit: list[int] = []

    def reads(self, chunk: int, samples: Sequence[int]) -> Sequence[Read]:
        return [Read(read.samples, partial(self._run, read)) for read in self._store.reads(chunk, samples)]

    def read_range(self, sample: int, file: int, stamp: Stamp, offset: int, size: int) -> bytes:
        return self._store.read_range(sample, file, stamp, offset, size)

    def open_file(self, entry: int) -> SourceFile:
        return self._store.open_file(entry)

    def _run(self, read: Read) -> Sequence[Payload]:
        with self._lock:
            self._made += 1
            goes_wrong = self.every and not self._made % self.every
            if goes_wrong:
                self.hit += read.samples
        return self._fault(read) if goes_wrong else read.run()


def fails(read: Read) -> Sequence[Payload]:
    """The storage returns EIO."""
    return [(OSError(errno.EIO, os.strerror(errno.EIO)),) for _ in read.samples]


def is_short(read: Read) -> Sequence[Payload]:
    """The read returns fewer samples than requested."""
    return read.run()[: len(read.samples) - 1]


def lacks_files(read: Read) -> Sequence[Payload]:
    """The read returns samples without their files."""
    return [() for _ in read.samples]


def raises(read: Read) -> Sequence[Payload]:
    """The read raises, which no store should do."""
    raise MemoryError(read.samples)


def is_slow(read: Read) -> Sequence[Payload]:
    """The read takes 20 ms longer."""
    # Slow storage is what it stands for. No test needs it to be faster or slower than anything.
    time.sleep(0.02)
    return read.run()


class _Part(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


_PREADV2 = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t,
    *(ctypes.c_int, ctypes.POINTER(_Part), ctypes.c_int, ctypes.c_longlong, ctypes.c_int),
    use_errno=True,
)
_OPENAT2 = ctypes.CFUNCTYPE(
    ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t, use_errno=True
)


class _StorageCalls(ctypes.Structure):
    """struct redox_storage_calls: the system calls of native/files.c and native/shards.c."""

    _fields_ = (("openat2", ctypes.c_void_p), ("preadv2", ctypes.c_void_p))


@contextmanager
def _native_call(name: str, replacement: Any) -> Iterator[None]:
    """Replace a system call of the C sources within the ``with`` block."""
    calls = _StorageCalls.in_dll(ctypes.CDLL(native_module.__file__), "redox_storage_calls")
    before = getattr(calls, name)
    setattr(calls, name, ctypes.cast(replacement, ctypes.c_void_p).value)
    try:
        yield
    finally:
        setattr(calls, name, before)


@contextmanager
def no_openat2() -> Iterator[None]:
    """The kernel refuses openat2 within the ``with`` block, for sources that are made there too."""

    def refuse(_directory: int, _path: bytes, _how: int, _size: int) -> int:
        ctypes.set_errno(errno.ENOSYS)
        return -1

    with _native_call("openat2", _OPENAT2(refuse)), patch.object(beneath, "has_openat2", lambda: False):
        yield


class FaultyCalls:
    """``fault`` replaces every Nth read system call of this process, in Python and in C. ``hit`` counts them.

    A fault receives the filled buffer. It may raise, fill less of it, or change the bytes.
    """

    def __init__(self, fault: Callable[[memoryview, int], int], every: int) -> None:
        self._fault = fault
        self._every = every
        self._made = 0
        self._lock = threading.Lock()
        self._preadv = os.preadv
        self.hit = 0

    @contextmanager
    def made(self) -> Iterator[None]:
        """Patch the calls within the ``with`` block."""
        native = _native_call("preadv2", _PREADV2(self._preadv2))
        with patch.object(os, "preadv", self.preadv), patch.object(os, "pread", self.pread), native:
            yield

    def preadv(self, fd: int, parts: Sequence[memoryview], at: int, flags: int = 0) -> int:
        whole = memoryview(bytearray(sum(len(part) for part in parts)))
        done = self._preadv(fd, [whole], at, flags)
        if self._goes_wrong():
            done = self._fault(whole[:done], done)
        left = whole[:done]
        for part in parts:
            part[: len(left)] = left[: len(part)]
            left = left[len(part) :]
        return done

    def pread(self, fd: int, size: int, at: int) -> bytes:
        whole = memoryview(bytearray(size))
        return bytes(whole[: self.preadv(fd, [whole], at)])

    def _preadv2(self, fd: int, parts: Any, count: int, at: int, flags: int) -> int:
        memory = [(ctypes.c_char * part.size).from_address(part.base) for part in parts[:count]]
        try:
            return self.preadv(fd, [memoryview(part).cast("B") for part in memory], at, flags)
        except OSError as error:
            ctypes.set_errno(error.errno or errno.EIO)
            return -1

    def _goes_wrong(self) -> bool:
        with self._lock:
            self._made += 1
            goes_wrong = not self._made % self._every
            self.hit += goes_wrong
        return goes_wrong


def call_fails(_data: memoryview, _done: int) -> int:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def call_is_short(_data: memoryview, done: int) -> int:
    """The call returns a part, as the kernel may do at any time."""
    return (done + 1) // 2


def call_ends(_data: memoryview, _done: int) -> int:
    """The call returns nothing, as after the end of a file."""
    return 0


def call_flips_bits(data: memoryview, done: int) -> int:
    """The call returns all bytes, and every hundredth is wrong."""
    for at in range(0, done, 100):
        data[at] ^= 4
    return done


class NoKernel:
    """A kernel that caches nothing and ignores all notices."""

    def reopened(self, handle: OpenBefore) -> None:
        pass

    def turned(self, entries: Sequence[int]) -> None:
        pass

    def bind(self, entry: int, size: int) -> None:
        pass

    def freed(self, entries: Sequence[int]) -> None:
        pass

    def shed(self, entry: int) -> None:
        pass

    def sizes_differ(self, differ: bool) -> None:
        pass

    def unhold(self, thread: int) -> None:
        pass

    def void_size(self, entry: int, settles_s: float) -> bool:
        return True

    def changed(self, entry: int, *, redirected: bool = False) -> None:
        pass

    def ask(self, entry: int, asks: bool) -> None:
        pass
