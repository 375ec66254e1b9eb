"""The loader over described reads, which threads in C carry out; and the depth that it chooses.

`t2_node` has its tests over reads in Python.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from packs import catalog_of, opened
from patience import PATIENCE_S
from stores import FaultyCalls, bytes_in_buffers

from redoxfs.chunks import DirectoryStore, FileBytes, NativeRead, Payload, Read
from redoxfs.chunks.store import CopyRead
from redoxfs.native import Buffer, Reader
from redoxfs.node import loader as loader_module
from redoxfs.node.depth import LEAST_DEPTH, PAUSE_S, WINDOW_S, Depth
from redoxfs.node.loader import Loader
from redoxfs.node.transfers import Transfers

FILES = 30


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DirectoryStore]:
    for label in ("cat", "dog"):
        (tmp_path / "data" / label).mkdir(parents=True)
    for number in range(FILES):
        label = "cat" if number < FILES // 2 else "dog"
        (tmp_path / f"data/{label}/{number:02}.jpg").write_bytes(b"%02d" % number * 50)
    catalog = catalog_of(tmp_path / "data")
    with opened(tmp_path / "data") as fd:
        yield DirectoryStore(catalog, fd)


def reads_of(store: DirectoryStore, samples: Sequence[int]) -> list[Read]:
    """A read for each sample, in their order."""
    return [store.reads(0, [sample])[0] for sample in samples]


def number_in(payloads: Sequence[Payload]) -> int:
    ((file,),) = payloads
    assert isinstance(file, FileBytes)
    return int(bytes(file.data)[:2])


class Gate:
    """Holds every read system call until it is opened. ``entered`` is set by the first."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._opened = threading.Event()

    def open(self) -> None:
        self._opened.set()

    @contextmanager
    def shut(self) -> Iterator[None]:
        def wait(_data: memoryview, done: int) -> int:
            self.entered.set()
            self._opened.wait()
            return done

        with FaultyCalls(wait, 1).made():
            try:
                yield
            finally:
                self.open()


def until_done(reader: Reader | Transfers, reads: int) -> None:
    while reader.counts()["done"] < reads:
        os.sched_yield()


async def test_awaited_files_are_read_and_delivered_first(store: DirectoryStore) -> None:
    delivered: list[int] = []
    loader = Loader(lambda _read, payloads: delivered.append(number_in(payloads)), threads=1)
    gate = Gate()
    reads = reads_of(store, range(8))
    with gate.shut():
        loader.submit(reads[:1], awaited=False)
        gate.entered.wait()
        loader.submit(reads[1:4], awaited=False)
        loader.submit(reads[4:6], awaited=True)
        loader.submit(reads[6:], awaited=True)
        loader.hasten(reads[3])
        loader.hasten(reads[0])
        gate.open()
        until_done(loader._reader, 8)
    loader.hasten(reads[7])
    with trio.fail_after(PATIENCE_S):
        while len(delivered) < 8:
            await trio.lowlevel.checkpoint()
    loader.hasten(reads[0])
    assert delivered == [0, 4, 6, 3, 7, 1, 2, 5]
    loader.close()


async def test_reads_of_copies_and_of_the_source_are_delivered_in_turn(store: DirectoryStore) -> None:
    delivered: list[Read] = []
    loader = Loader(lambda read, _payloads: delivered.append(read), threads=1, copies_threads=1)
    others = reads_of(store, range(8))
    copies = [
        CopyRead(read, lambda _samples, _size: None, lambda _samples, _errors: ())
        for read in reads_of(store, range(8, 16))
        if isinstance(read, NativeRead)
    ]
    loader.submit([*copies, *others], awaited=False)
    assert loader._copies is not None
    until_done(loader._copies, 8)
    until_done(loader._reader, 8)
    with trio.fail_after(PATIENCE_S):
        while len(delivered) < 16:
            await trio.lowlevel.checkpoint()
    assert [isinstance(read, CopyRead) for read in delivered] == [True, False] * 8
    loader.close()


async def test_delivery_is_cut_into_slices(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each result takes a slice.
    monkeypatch.setattr(loader_module, "SLICE_S", -1.0)
    delivered: list[int] = []
    loader = Loader(lambda _read, payloads: delivered.append(number_in(payloads)), threads=4)
    loader.submit(reads_of(store, range(FILES)), awaited=False)
    until_done(loader._reader, FILES)
    with trio.fail_after(PATIENCE_S):
        while len(delivered) < FILES:
            before = len(delivered)
            await trio.lowlevel.checkpoint()
            assert len(delivered) <= before + 2
    loader.close()
    assert sorted(delivered) == list(range(FILES))


async def test_the_owner_of_the_descriptor_delivers(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    # One slice has time for all results.
    monkeypatch.setattr(loader_module, "SLICE_S", PATIENCE_S)
    delivered: list[int] = []
    loader = Loader(lambda _read, payloads: delivered.append(number_in(payloads)), threads=2)
    await trio.testing.wait_all_tasks_blocked()
    fd = loader.take_over()
    assert loader.take_over() == fd
    assert not loader.deliver_some()
    loader.submit(reads_of(store, range(5)), awaited=False)
    until_done(loader._reader, 5)
    await trio.testing.wait_all_tasks_blocked()
    assert delivered == []
    with trio.fail_after(PATIENCE_S):
        await trio.lowlevel.wait_readable(fd)
    assert loader.deliver_some()
    assert sorted(delivered) == list(range(5))
    with trio.move_on_after(0) as waiting:
        await trio.lowlevel.wait_readable(fd)
    assert waiting.cancelled_caught
    loader.close()


async def test_a_bug_in_delivery_is_logged_and_the_rest_arrives(
    store: DirectoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    delivered: list[int] = []

    def deliver(_read: Read, payloads: Sequence[Payload]) -> None:
        delivered.append(number_in(payloads))
        if delivered[-1] == 2:
            raise ZeroDivisionError

    loader = Loader(deliver, threads=2)
    loader.submit(reads_of(store, range(5)), awaited=False)
    with trio.fail_after(PATIENCE_S):
        while len(delivered) < 5:
            await trio.lowlevel.checkpoint()
    loader.close()
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    caplog.clear()


@pytest.mark.parametrize("after_the_loop", [False, True])
def test_an_end_drops_what_is_queued_and_what_has_arrived(store: DirectoryStore, after_the_loop: bool) -> None:
    delivered: list[int] = []
    before = bytes_in_buffers()

    async def main() -> Loader:
        loader = Loader(lambda _read, payloads: delivered.append(number_in(payloads)), threads=1)
        gate = Gate()
        with gate.shut():
            loader.submit(reads_of(store, range(FILES)), awaited=False)
            gate.entered.wait()
        if not after_the_loop:
            loader.close()
            await trio.testing.wait_all_tasks_blocked()
            assert delivered == []
        return loader

    loader = trio.run(main)
    loader.close()
    assert Buffer.total_bytes() == before
    # The node may still be at work on what came before.
    (read,) = reads_of(store, [0])
    loader.submit([read], awaited=True)
    loader.hasten(read)
    assert not loader.cancel(read)
    assert not loader.deliver_some()
    loader.close()


def test_an_end_does_not_wait_for_storage_that_hangs(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_module, "JOIN_S", 0.01)
    before = bytes_in_buffers()
    gate = Gate()

    async def main() -> None:
        loader = Loader(lambda _read, _payloads: None, threads=3)
        loader.submit(reads_of(store, range(FILES)), awaited=True)
        gate.entered.wait()
        loader.close()

    with gate.shut():
        trio.run(main)
        assert Buffer.total_bytes() > before
        gate.open()
        # The threads that were left behind free what they have read.
        while Buffer.total_bytes() > before:
            os.sched_yield()


def test_a_queued_read_can_be_cancelled(store: DirectoryStore) -> None:
    reader = Reader(1)
    gate = Gate()
    with gate.shut():
        reader.submit(store.native, [(token, (number + 3,)) for number, token in enumerate("abc")], False)
        gate.entered.wait()
        assert reader.cancel("b")
        assert not reader.cancel("b")
        assert not reader.cancel("a")
        with pytest.raises(ValueError, match="token"):
            reader.submit(store.native, [("d", (4,)), ("c", (5,))], False)
        reader.submit(store.native, [("b", (6,)), ("d", (7,))], True)
        gate.open()
        until_done(reader, 4)
    taken = reader.take(10)
    assert [token for token, _ in taken] == ["b", "a", "c", "d"]
    assert reader.take(10) == []
    assert reader.counts() | {"read_ns": 0} == dict.fromkeys(("queued", "running", "done", "read_ns"), 0) | {
        "reads": 4,
        "amount": 4,
        "threads": 1,
    }
    reader.close(60)
    with pytest.raises(ValueError, match="closed"):
        reader.take(1)
    reader.close(60)


@pytest.mark.parametrize(
    ("reads", "error"),
    [
        ([("a", (1 << 31,))], IndexError),
        ([("a", (-1,))], IndexError),
        ([("a", (1 << 70,))], IndexError),
        ([("a", ("b",))], TypeError),
        ([("a", 3)], TypeError),
        ([("a",)], TypeError),
        ([("good", (2,)), (["unhashable"], (2,))], TypeError),
        (3, TypeError),
    ],
)
def test_bad_reads_are_refused_whole(store: DirectoryStore, reads: object, error: type[Exception]) -> None:
    reader = Reader(1)
    with pytest.raises(error):
        reader.submit(store.native, reads, False)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        reader.submit(store, [("good", (2,))], False)  # type: ignore[arg-type]
    reader.submit(store.native, [("good", (2,))], False)
    until_done(reader, 1)
    assert [token for token, _ in reader.take(10)] == ["good"]
    reader.close(60)


# The depth


def observe(depth: Depth, seconds: float, rate_at: Callable[[int], float], *, share: float = 1.0) -> list[int]:
    """The depths over time, on storage that gives ``rate_at(depth)`` reads a second. ``share``: of the threads read."""
    now_s, reads, read_ns, found = 0.0, 0.0, 0.0, []
    for _ in range(int(seconds * 10)):
        now_s += 0.1
        reads += 0.1 * rate_at(depth.threads)
        read_ns += 0.1e9 * share * depth.threads
        found.append(depth.observe(now_s, int(reads), int(read_ns), int(reads)))
    return found


def test_latency_is_met_with_more_threads() -> None:
    found = observe(Depth(32, 128), 60, lambda threads: threads / 0.02)
    assert max(found) == 128
    assert found[-100:].count(128) > 90


def test_a_page_cache_gets_few_threads() -> None:
    found = observe(Depth(32, 128), 60, lambda _threads: 20_000)
    assert max(found) == 64
    assert found[-1] == LEAST_DEPTH


def test_storage_that_is_full_at_the_start_keeps_its_depth() -> None:
    found = observe(Depth(32, 128), 600, lambda threads: min(threads / 0.02, 1600))
    assert found.count(32) / len(found) > 1 - 6 * WINDOW_S / PAUSE_S
    assert found.count(16) < found.count(32) / 10


def test_shorter_reads_are_no_gain() -> None:
    depth, found = Depth(8, 32), []
    reads = read_ns = 0
    for tenth in range(1, 51):
        # At any depth 1,000 files a second, in reads that are the shorter the more there are.
        reads += 10 * depth.threads
        read_ns += int(0.1e9) * depth.threads
        found.append(depth.observe(tenth / 10, reads, read_ns, 100 * tenth))
    assert set(found) == {8, 16, 4}
    assert found[-1] == 4


def test_without_demand_nothing_is_tried() -> None:
    assert set(observe(Depth(32, 128), 60, lambda threads: threads / 0.02, share=0.5)) == {32}
    # So few reads that a window is long.
    assert set(observe(Depth(32, 128), 6, lambda _threads: 10)) == {32}


def test_a_depth_of_one_stays_where_nothing_else_is_allowed() -> None:
    assert set(observe(Depth(1, 1), 60, lambda _threads: 1000)) == {1}
