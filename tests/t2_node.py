"""The node without a filesystem: waits, failures, the owners of bytes, and a clean end."""

import errno
import json
import logging
import os
import shutil
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from patience import PATIENCE_S, until_in_trio
from stores import HeldStore, NoKernel, all_arrived, opened_by, read_from, running_node
from t2_programs import run

from redoxfs.chunks import Read, SourceFile, Stamp, build_cells
from redoxfs.chunks.store import Payload
from redoxfs.dataset import Catalog, build_catalog, read_tree
from redoxfs.launch import control as control_client
from redoxfs.launch.control import ask_daemon, send_control
from redoxfs.launch.errors import DaemonError
from redoxfs.launch.path_status import path_status
from redoxfs.linux.pids import TICKS_PER_S
from redoxfs.node import Node, NoThreadError, OpenFile, plan_slot, serve_control
from redoxfs.node.callers import Callers
from redoxfs.node.control import clients_file
from redoxfs.node.loader import SLICE_S, Loader
from redoxfs.node.programs import Programs

CLASSES, PER_CLASS = 4, 16
TIMEOUT_S = 10.0


@pytest.fixture
def source(tmp_path: Path) -> Iterator[tuple[Catalog, int]]:
    root = tmp_path / "data"
    for label in range(CLASSES):
        (root / f"class{label}").mkdir(parents=True)
        for number in range(PER_CLASS):
            (root / f"class{label}" / f"{label}-{number}.jpg").write_bytes(b"x" * 1000)
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    yield build_catalog(read_tree(fd), classes="dir"), fd
    os.close(fd)


@asynccontextmanager
async def running(
    source: tuple[Catalog, int],
    store: HeldStore,
    *,
    share: float = 0.25,
    timeout_s: float = PATIENCE_S,
    callers: Callers | None = None,
) -> AsyncIterator[Node]:
    catalog, _ = source
    kernel = NoKernel()
    async with running_node(
        catalog, store, kernel, chunk_size=4, share=share, timeout_s=timeout_s, callers=callers
    ) as node:
        yield node


def entries(source: tuple[Catalog, int]) -> list[int]:
    return [int(entry) for entry in source[0].members]


async def whole(node: Node, entry: int, thread: int) -> int:
    """Open, read, close. Returns the number of the sample that was served."""
    opened = await opened_by(node, entry, thread)
    data = await read_from(node, opened.handle, 0, 1 << 20)
    node.close(opened.handle)
    assert len(data) == 1000
    return int(data.rstrip(b"."))


async def test_a_store_that_gets_no_threads_ends_the_start(source: tuple[Catalog, int]) -> None:
    class Refused(HeldStore):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    with pytest.raises(NoThreadError):
        async with running(source, Refused()):
            pass


async def test_epochs_are_exact_and_classes_kept(source: tuple[Catalog, int]) -> None:
    store = HeldStore()
    catalog = source[0]
    async with running(source, store) as node:
        for epoch in range(3):
            order = np.random.default_rng(epoch).permutation(entries(source))
            served = [await whole(node, int(entry), 100 + epoch) for entry in order]
            assert sorted(served) == list(range(CLASSES * PER_CLASS))
            asked = catalog.sample_of[order]
            assert (catalog.class_of[asked] == catalog.class_of[served]).all()
        stats = node.stats()
        assert stats["opens"] == stats["redirected"] + stats["exact"] == 3 * CLASSES * PER_CLASS
        assert stats["bytes_read"] == stats["bytes_served"] == stats["opens"] * 1000
        assert stats["lap"] == {".": 3}
        assert stats["memory_used_bytes"] <= stats["memory_limit_bytes"]


def test_the_same_requests_give_the_same_answers(source: tuple[Catalog, int]) -> None:
    async def answers() -> list[int]:
        async with running(source, HeldStore()) as node:
            order = np.random.default_rng(5).permutation(entries(source))
            return [await whole(node, int(entry), 100) for entry in order]

    assert trio.run(answers) == trio.run(answers)


async def test_open_and_read_of_a_resident_sample_never_suspend(source: tuple[Catalog, int]) -> None:
    store = HeldStore()
    async with running(source, store) as node:
        order = entries(source)
        await whole(node, order[0], 100)
        await all_arrived(node)
        direct = 0
        for entry in order[1:]:
            loads = node.counters.demand_loads
            opening = node.open(entry, 100)
            if isinstance(opening, OpenFile):
                direct += 1
                assert isinstance(node.read(opening.handle, 0, 100), memoryview)
            else:
                assert node.counters.demand_loads > loads
                await opening
            await all_arrived(node)
        assert direct > 5


def test_immediate_answers_equal_awaited_ones(source: tuple[Catalog, int]) -> None:
    """Compares immediate opens and reads with those that wait, and with reads by position."""

    async def answers(late: bool, seed: int) -> list[bytes]:
        random = np.random.default_rng(seed)
        store = HeldStore()
        got: list[bytes] = []
        async with running(source, store) as node:
            handles: list[int] = []
            for _ in range(60):
                entry, thread = int(random.choice(entries(source))), int(random.integers(0, 4))
                store.gate.clear() if late else store.gate.set()
                opening = node.open(entry, thread)
                if not isinstance(opening, OpenFile):
                    trio.lowlevel.current_trio_token().run_sync_soon(store.gate.set)
                    opening = await opening
                handles.append(opening.handle)
                store.gate.set()
                offset, size = int(random.integers(0, 1100)), int(random.integers(0, 1100))
                got.append(await read_from(node, opening.handle, offset, size))
                if late:
                    await trio.testing.wait_all_tasks_blocked()
                if random.random() < 0.7:
                    node.close(handles.pop(int(random.integers(len(handles)))))
                told = node.stat(entry, thread)
                assert isinstance(told, tuple)
                got.append(str(told[0]).encode())
        return got

    for seed in range(5):
        assert trio.run(answers, False, seed) == trio.run(answers, True, seed)


async def test_opens_of_one_load_in_flight_share_it(source: tuple[Catalog, int]) -> None:
    store = HeldStore()
    store.gate.clear()
    async with running(source, store, share=1.0) as node:
        served: list[int] = []

        async def reader(entry: int, thread: int) -> None:
            served.append(await whole(node, entry, thread))

        async with trio.open_nursery() as nursery:
            for thread in range(3):
                nursery.start_soon(reader, entries(source)[0], 100 + thread)
            await trio.testing.wait_all_tasks_blocked()
            assert node.counters.demand_loads == 1
            assert node.counters.in_flight_waits == 2
            store.gate.set()
        assert len(set(served)) == 1
        assert max(Counter(store.reads_made).values()) == 1
        assert node.stats()["wait_seconds"] > 0


async def test_several_chunk_loads_are_in_flight_at_once(source: tuple[Catalog, int]) -> None:
    store = HeldStore()
    store.gate.clear()
    async with running(source, store, share=1.0) as node:
        async with trio.open_nursery() as nursery:
            for number, entry in enumerate(entries(source)):
                nursery.start_soon(opened_by, node, entry, 1000 + number)
            await trio.testing.wait_all_tasks_blocked()
            assert node.counters.chunk_loads == source[0].class_of.size // 4
            # Opens wait; reads of bytes in memory, closes and stats do not.
            assert node.stat(entries(source)[0], 7) == (1000, False)
            store.gate.set()
        assert node.stats()["open_files"] == len(entries(source))


async def test_a_broken_sample_fails_only_the_open_of_its_turn(source: tuple[Catalog, int]) -> None:
    store = HeldStore()
    store.broken = {5}
    async with running(source, store) as node:
        for epoch in range(3):
            served, failed = [], []
            for entry in entries(source):
                try:
                    served.append(await whole(node, entry, 100 + epoch))
                except OSError as error:
                    failed.append(error.errno)
            assert failed == [errno.EIO]
            assert sorted([*served, 5]) == list(range(CLASSES * PER_CLASS))
        assert node.counters.errors == 3
        store.broken = set()
        assert len({await whole(node, entry, 200) for entry in entries(source)}) == CLASSES * PER_CLASS


class Unreadable:
    """An open file that no read gets anything of."""

    def __init__(self, stamp: Stamp) -> None:
        self.stamp = stamp

    def read(self, offset: int, size: int) -> bytes:  # as the other one
        # As os.pread does: it knows no name.
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def close(self) -> None:
        pass


class OpensUnreadable(HeldStore):
    def open_file(self, entry: int) -> SourceFile:
        return Unreadable(super().open_file(entry).stamp)


def test_the_log_names_the_files_of_failed_opens_and_reads(
    source: tuple[Catalog, int], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        store = OpensUnreadable()
        async with running(source, store) as node:
            entry, other = entries(source)[:2]
            opened = await node.open_exact(entry)
            with pytest.raises(OSError):
                await read_from(node, opened.handle, 0, 100)
            store.broken.add(other)
            with pytest.raises(OSError):
                await node.open_exact(other)
            assert node.counters.errors == 2
            node.close(opened.handle)

    catalog = source[0]
    first, second = (os.fsdecode(catalog.tree.path(entry)) for entry in entries(source)[:2])
    with caplog.at_level(logging.WARNING):
        trio.run(main)
    assert [(record.message, record.__dict__["fields"]) for record in caplog.records] == [
        ("a read failed", {"path": first, "sample": first, "error": os.strerror(errno.EIO)}),
        ("an open failed", {"path": second, "sample": second, "error": "broken"}),
    ]


class AlwaysOpening(NoKernel):
    """The job may always be about to ask for the size of what it opened."""

    def void_size(self, entry: int, settles_s: float) -> bool:
        return False


async def test_a_copy_that_the_job_keeps_waiting_for_too_long_is_counted_and_logged(
    source: tuple[Catalog, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    catalog = source[0]
    run(tmp_path, 7, "cp")
    callers = Callers(tmp_path, signal=lambda *_: None, programs=Programs(proc=tmp_path))
    monkeypatch.setattr("redoxfs.node.node.MOST_SETTLE_S", 0.01)
    kernel, (entry, other) = AlwaysOpening(), entries(source)[:2]
    async with running_node(catalog, HeldStore(), kernel, chunk_size=4, share=0.25, callers=callers) as node:
        await opened_by(node, entry, 1)
        with pytest.raises(trio.TooSlowError):
            await opened_by(node, other, 7)
        assert (node.counters.opens, node.counters.errors, node.counters.copied) == (2, 1, 0)
    assert [record.__dict__["fields"]["path"] for record in caplog.records] == [os.fsdecode(catalog.tree.path(other))]


class OpensAs(HeldStore):
    """Files have ``stamp`` when they are opened."""

    def __init__(self, stamp: Stamp) -> None:
        super().__init__()
        self.stamp = stamp

    def open_file(self, entry: int) -> SourceFile:
        return Unreadable(self.stamp)


async def test_an_exact_file_that_is_as_at_the_scan_again_does_not_count_as_changed(
    source: tuple[Catalog, int],
) -> None:
    entry = entries(source)[0]
    tree = source[0].tree
    scanned = Stamp(int(tree.size[entry]), int(tree.mtime_ns[entry]), int(tree.inode[entry]))
    store = OpensAs(scanned._replace(size=7, inode=8))
    async with running(source, store) as node:
        other = await node.open_exact(entry)
        store.stamp = scanned
        first, second = [await node.open_exact(entry) for _ in range(2)]
        assert node.stats()["changed"] == 1
        for opened in (first, other, second):
            node.close(opened.handle)
        assert (node.stats()["changed"], node.out_of_date()) == (0, set())


async def test_a_failed_read_is_retried_at_its_turn(source: tuple[Catalog, int]) -> None:
    store = HeldStore()
    async with running(source, store, share=1.0) as node:
        store.broken = set(range(CLASSES * PER_CLASS))
        with pytest.raises(OSError):
            await whole(node, entries(source)[0], 100)
        while len(store.reads_made) < 4:
            await trio.sleep(0)
        store.broken = set()
        served = [await whole(node, entry, 100) for entry in entries(source)[1:]]
        assert len(set(served)) == CLASSES * PER_CLASS - 1
        assert node.counters.samples_reread > 0


async def test_an_open_that_waits_too_long_fails_at_its_deadline(
    source: tuple[Catalog, int], clock: trio.testing.MockClock
) -> None:
    # Its time stands still, so the second open has all the time that it takes.
    store = HeldStore()
    store.gate.clear()
    async with running(source, store, timeout_s=TIMEOUT_S) as node, trio.open_nursery() as nursery:
        failed = trio.Event()

        async def opened_in_vain() -> None:
            with pytest.raises(trio.TooSlowError):
                await opened_by(node, entries(source)[0], 100)
            failed.set()

        nursery.start_soon(opened_in_vain)
        await trio.testing.wait_all_tasks_blocked()
        clock.jump(TIMEOUT_S - 1)
        await trio.testing.wait_all_tasks_blocked()
        assert not failed.is_set()
        clock.jump(1)
        await trio.testing.wait_all_tasks_blocked()
        assert failed.is_set()
        assert node.stats()["bound"] == node.stats()["open_files"] == 0
        store.gate.set()
        assert await whole(node, entries(source)[0], 100) in range(PER_CLASS * CLASSES)
        assert node.counters.errors == 1


async def test_open_files_past_their_share_are_read_by_position(source: tuple[Catalog, int]) -> None:
    store = HeldStore()
    async with running(source, store) as node:
        opened = [await opened_by(node, entry, 1000 + n) for n, entry in enumerate(entries(source))]
        stats = node.stats()
        assert stats["dropped"] > len(opened) / 2
        assert stats["memory_used_bytes"] <= stats["memory_limit_bytes"]
        served = set()
        for one in opened:
            head = await read_from(node, one.handle, 0, 10)
            tail = await read_from(node, one.handle, 10, 5000)
            assert head + tail == store.content(int(head.rstrip(b".")))
            served.add(head)
            assert await read_from(node, one.handle, 1000, 10) == b""
        assert len(served) == len(opened)
        for one in opened:
            node.close(one.handle)
        assert node.stats()["open_files"] == node.stats()["dropped"] == node.stats()["in_open_files"] == 0


async def test_reserved_samples_stay_within_memory(source: tuple[Catalog, int]) -> None:
    async with running(source, HeldStore()) as node:
        for round_number in range(6):
            for number, entry in enumerate(entries(source)):
                node.stat(entry, 1000 * round_number + number)
            await whole(node, entries(source)[round_number], 99_000 + round_number)
            await all_arrived(node)
            stats = node.stats()
            assert stats["memory_used_bytes"] <= stats["memory_limit_bytes"]
        served = [await whole(node, entry, 99_999) for entry in entries(source)]
        assert {source[0].class_of[s] for s in served} == set(range(CLASSES))


async def test_an_open_that_fails_half_way_leaves_nothing_bound(source: tuple[Catalog, int]) -> None:
    async with running(source, HeldStore()) as node:
        good, node.kernel = node.kernel, BrokenKernel()
        with pytest.raises(OSError, match="no memory"):
            node.open(entries(source)[0], 100)
        node.kernel = good
        stats = node.stats()
        assert (stats["bound"], stats["open_files"], stats["errors"]) == (0, 0, 1)
        served = [await whole(node, entry, 200) for entry in entries(source)]
        assert len(set(served)) >= CLASSES * PER_CLASS - 1


class BrokenKernel(NoKernel):
    def turned(self, entries: Sequence[int]) -> None:
        raise OSError(errno.ENOMEM, f"no memory for {entries}")


async def test_awaited_reads_go_first_and_in_order() -> None:
    gate, order, done = threading.Event(), list[int](), trio.Event()

    def read(number: int) -> Read:
        def run() -> Sequence[Payload]:
            gate.wait()
            order.append(number)
            return [()]

        return Read((number,), run)

    loader = Loader(lambda read, _payloads: done.set() if read.samples == (9,) else None, threads=1)
    reads = [read(number) for number in range(10)]
    loader.submit(reads[0:1], awaited=True)  # in progress
    loader.submit([reads[1], reads[8], reads[9]], awaited=True)
    loader.submit([reads[2]], awaited=True)
    loader.submit([reads[3]], awaited=True)
    loader.hasten(reads[8])
    gate.set()
    with trio.fail_after(PATIENCE_S):
        await done.wait()
    loader.close()
    assert [number for number in order if number] == [1, 2, 3, 8, 9]


async def test_reads_wait_for_threads_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of threads of a user or a container is reached for a while."""
    arrived, starts, left = list[int](), threading.Thread.start, 0

    def start(thread: threading.Thread) -> None:
        nonlocal left
        if thread.name.startswith("redoxfs-read"):
            if left == 0:
                raise RuntimeError("can't start new thread")
            left -= 1
        starts(thread)

    loader = Loader(lambda read, _payloads: arrived.append(read.samples[0]), threads=3)
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", start)
        for number in range(4):
            with pytest.raises(RuntimeError):
                loader.submit([Read((number,), lambda: [()])], awaited=True)
        left = 1
        loader.submit([Read((4,), lambda: [()])], awaited=True)
        await until_in_trio(lambda: len(arrived) == 5)
    loader.submit([Read((5,), lambda: [()])], awaited=True)
    await until_in_trio(lambda: len(arrived) == 6)
    loader.close()
    assert arrived == [0, 1, 2, 3, 4, 5]


async def test_results_come_in_slices_awaited_ones_first() -> None:
    was_begun, gate, delivered = [threading.Event() for _ in range(104)], threading.Event(), list[int]()

    def deliver(read: Read, _payloads: Sequence[Payload]) -> None:
        # Five of them take a slice, or fewer where a sleep takes longer.
        time.sleep(SLICE_S / 5)
        delivered.extend(read.samples)

    def read(number: int) -> Read:
        def run() -> Sequence[Payload]:
            was_begun[number].set()
            if number == 102:
                gate.wait()
            return [()]

        return Read((number,), run)

    # Nothing is delivered before this task yields to the loop, and the only thread has finished each read by then.
    loader = Loader(deliver, threads=1)
    reads = [read(number) for number in range(104)]
    loader.submit(reads[:100], awaited=False)
    assert was_begun[99].wait(PATIENCE_S)
    loader.submit(reads[100:101], awaited=True)
    assert was_begun[100].wait(PATIENCE_S)
    loader.submit(reads[101:102], awaited=True)
    assert was_begun[101].wait(PATIENCE_S)
    loader.submit(reads[102:103], awaited=False)
    assert was_begun[102].wait(PATIENCE_S)
    loader.hasten(reads[60])  # here
    loader.hasten(reads[102])  # in progress
    gate.set()
    loader.submit(reads[103:], awaited=False)
    assert was_begun[103].wait(PATIENCE_S)
    most = 0
    with trio.fail_after(PATIENCE_S):
        while len(delivered) < 104:
            before = len(delivered)
            await trio.lowlevel.checkpoint()
            most = max(most, len(delivered) - before)
    loader.close()
    # Two slices: trio may run one between two turns of this task, and then the other.
    assert most <= 2 * 6
    assert delivered == [100, 101, 60, 102, *(number for number in range(104) if number not in (100, 101, 60, 102))]


def test_a_loop_ends_cleanly_with_results_pending() -> None:
    delivered: list[int] = []

    def deliver(read: Read, _payloads: Sequence[Payload]) -> None:
        # Each result takes a slice, so most are left when the loop ends.
        time.sleep(SLICE_S)
        delivered.extend(read.samples)

    async def main() -> Loader:
        was_begun = threading.Event()

        def begin() -> Sequence[Payload]:
            was_begun.set()
            return [()]

        loader = Loader(deliver, threads=1)
        loader.submit([*(Read((number,), lambda: [()]) for number in range(9)), Read((9,), begin)], awaited=False)
        assert was_begun.wait(PATIENCE_S)
        return loader

    loader = trio.run(main)
    assert len(delivered) < 9
    loader.close()


async def test_a_store_that_raises_fails_only_its_own_samples(source: tuple[Catalog, int]) -> None:
    class Raising(HeldStore):
        def _payloads(self, sample: int) -> Sequence[Payload]:
            if sample == 3:
                raise ZeroDivisionError
            return super()._payloads(sample)

    async with running(source, Raising()) as node:
        outcomes = []
        for entry in entries(source):
            try:
                outcomes.append(await whole(node, entry, 100))
            except OSError as error:
                outcomes.append(-(error.errno or 0))
        assert sorted(outcomes) == sorted([-errno.EIO, *(s for s in range(CLASSES * PER_CLASS) if s != 3)])


async def test_a_second_look_needs_no_second_read(source: tuple[Catalog, int]) -> None:
    store = HeldStore()
    async with running(source, store) as node:
        assert len({await whole(node, entries(source)[0], 100) for _ in range(5)}) == 1
        assert node.counters.samples_reread == 0
        assert node.counters.joined == 4
        assert max(Counter(store.reads_made).values()) == 1


async def test_stopping_leaves_no_thread(source: tuple[Catalog, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redoxfs.node.loader.JOIN_S", PATIENCE_S)
    async with running(source, HeldStore()) as node:
        await whole(node, entries(source)[0], 100)
        assert any(thread.name.startswith("redoxfs-read") for thread in threading.enumerate())
    assert not any(thread.name.startswith("redoxfs-read") for thread in threading.enumerate())


# Callers


def write_stat(proc: Path, thread: int, born_s: float) -> None:
    (proc / str(thread)).mkdir(parents=True, exist_ok=True)
    fields = ["S", *map(str, range(4, 22)), str(int(born_s * TICKS_PER_S)), "0"]
    (proc / str(thread) / "stat").write_text(f"{thread} (a name) with) {' '.join(fields)}")


def test_a_reused_thread_number_is_detected_by_birth_time(tmp_path: Path) -> None:
    now = [100.0]
    callers = Callers(tmp_path, lambda: now[0])
    write_stat(tmp_path, 7, born_s=90)
    assert not callers.is_another(7), "never seen"
    callers.hear(7)
    assert not callers.is_another(7)
    now[0] = 200.0
    assert not callers.is_another(7), "the same thread, later"
    write_stat(tmp_path, 7, born_s=150)
    assert callers.is_another(7)
    callers.hear(7)
    assert not callers.is_another(7), "the new one is known from its first request on"


def test_without_birth_times_numbers_identify_threads(tmp_path: Path) -> None:
    callers = Callers(tmp_path)
    callers.hear(8)
    assert not callers.is_another(8)


def test_numbers_of_another_pid_namespace_tell_nothing_of_threads_here() -> None:
    """The sidecar of a pod: its own /proc has other threads with these numbers, or none."""

    def none_is_here(thread: int, _signal: int) -> None:
        raise ProcessLookupError(thread)

    now = [0.0]
    seen, unseen = (Callers(clock_s=lambda: now[0], signal=none_is_here, sees=sees) for sees in (True, False))
    here = threading.get_native_id()
    for callers in (seen, unseen):
        callers.hear(here)
    now[0] = 1.0
    assert (seen.is_another(here), unseen.is_another(here)) == (True, False)
    assert (seen.gone([7]), unseen.gone([7])) == ([7], [])


def test_the_calling_thread_is_no_other() -> None:
    callers = Callers()
    callers.hear(threading.get_native_id())
    assert not callers.is_another(threading.get_native_id())


def test_a_thread_born_after_the_last_call_is_another() -> None:
    now = [0.0]
    callers = Callers(clock_s=lambda: now[0])
    callers.hear(threading.get_native_id())
    now[0] = 1.0
    assert callers.is_another(threading.get_native_id())


async def test_a_reused_thread_number_inherits_no_second_look(source: tuple[Catalog, int], tmp_path: Path) -> None:
    now = [100.0]
    callers = Callers(tmp_path, lambda: now[0], signal=lambda *_: None)
    write_stat(tmp_path, 7, born_s=90)
    async with running(source, HeldStore(), callers=callers) as node:
        first, other = entries(source)[:2]
        before = await whole(node, first, 7)
        write_stat(tmp_path, 7, born_s=150)
        now[0] = 200.0
        node.stat(other, 7)
        assert await whole(node, first, 7) != before
        assert node.counters.joined == 0


async def test_reservations_of_an_ended_thread_are_freed(source: tuple[Catalog, int]) -> None:
    now = [100.0]
    alive = {7, 8}

    def signal(thread: int, _signal: int) -> None:
        if thread not in alive:
            raise ProcessLookupError

    async with running(source, HeldStore(), callers=Callers(clock_s=lambda: now[0], signal=signal)) as node:
        first, *others = entries(source)[:PER_CLASS]
        for entry in others:
            node.stat(entry, 7)
        alive.remove(7)
        now[0] += 1
        node.stat(first, 8)
        assert node.binding.counts()["reservations"] == 1
        assert node.stats()["put_aside"] == 0


def test_ended_threads_are_found_at_intervals() -> None:
    now = [100.0]
    callers = Callers(clock_s=lambda: now[0])
    over, both_there, ids = threading.Event(), threading.Barrier(3), list[int]()

    def live() -> None:
        ids.append(threading.get_native_id())
        both_there.wait(PATIENCE_S)
        over.wait(PATIENCE_S)

    helpers = [threading.Thread(target=live) for _ in range(2)]
    for helper in helpers:
        helper.start()
    both_there.wait(PATIENCE_S)
    assert callers.gone([*ids, threading.get_native_id()]) == []
    over.set()
    for helper, number in zip(helpers, ids, strict=True):
        helper.join()
        while Path(f"/proc/{number}").exists():
            os.sched_yield()
    assert callers.gone(ids) == [], "the last check was a moment ago"
    now[0] += 1
    assert callers.gone([*ids, threading.get_native_id()]) == ids


def test_another_users_thread_counts_as_alive() -> None:
    def refuse(_thread: int, _signal: int) -> None:
        raise PermissionError

    assert Callers(signal=refuse).gone([7]) == []


# The control socket


def control(path: Path, ask: Callable[[], object]) -> tuple[object, int]:
    """The result of ``ask``, in a thread, at a node with the verbs `stop` and `count`, and the number of stops."""
    calls = []

    async def stop(_data: bytes) -> dict[str, Any]:
        calls.append(1)
        return {}

    async def count(data: bytes) -> dict[str, Any]:
        if not data:
            raise ValueError("nothing to count")
        return {"bytes": len(data)}

    async def main() -> object:
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_control, path, {"stop": stop, "count": count})
            assert path.stat().st_mode & 0o777 == 0o600
            answer = await trio.to_thread.run_sync(ask)
            nursery.cancel_scope.cancel()
        return answer

    return trio.run(main), len(calls)


def test_the_control_socket_takes_its_verbs_and_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "control"
    path.write_text("left behind by a dead daemon")
    assert control(path, lambda: send_control(path, "stop", timeout_s=PATIENCE_S)) == ({"ok": True}, 1)
    assert not path.exists()


def test_the_control_socket_takes_data_with_a_verb(tmp_path: Path) -> None:
    path = tmp_path / "control"
    for size in (1, 3, 1 << 20):
        told, _ = control(path, partial(send_control, path, "count", b"x" * size, timeout_s=PATIENCE_S))
        assert told == {"ok": True, "bytes": size}


def opens(number: str, other: int) -> bool:
    """Whether a descriptor of this process is of the same file as another one."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(int(number)), os.fstat(other))
    return False


def test_a_folder_comes_with_a_request_and_is_closed_after_it(tmp_path: Path) -> None:
    async def write(data: bytes) -> dict[str, Any]:
        if not data:
            raise ValueError("nothing to write")
        clients_file(Path("/elsewhere/file")).write_bytes(data)
        return {}

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_control, tmp_path / "control", {"write": write})
            ask = partial(send_control, tmp_path / "control", "write", timeout_s=PATIENCE_S)
            for data in (b"short", b"x" * (1 << 20)):
                await trio.to_thread.run_sync(partial(ask, data, folder=folder))
                assert (tmp_path / "clients/file").read_bytes() == data
            await trio.to_thread.run_sync(send_two)
            with pytest.raises(ValueError, match="nothing to write"):
                await trio.to_thread.run_sync(partial(ask, folder=folder))
            with pytest.raises(ValueError, match="expected one of: write"):
                await trio.to_thread.run_sync(
                    partial(send_control, tmp_path / "control", "other", timeout_s=PATIENCE_S, folder=folder)
                )
            assert [number for number in os.listdir("/proc/self/fd") if opens(number, folder)] == [str(folder)]
            nursery.cancel_scope.cancel()

    def send_two() -> None:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(os.fspath(tmp_path / "control"))
            socket.send_fds(client, [b'{"do": "write", "bytes": 3}\ntwo'], [folder, folder])
            assert client.makefile("rb").read() == b'{"ok": true}\n'
        assert (tmp_path / "clients/file").read_bytes() == b"two"

    (tmp_path / "clients").mkdir()
    folder = os.open(tmp_path / "clients", os.O_RDONLY | os.O_DIRECTORY)
    try:
        trio.run(main)
    finally:
        os.close(folder)


def test_the_control_socket_returns_a_verbs_error(tmp_path: Path) -> None:
    path = tmp_path / "control"

    def ask() -> str:
        with pytest.raises(ValueError) as refused:
            send_control(path, "count", timeout_s=PATIENCE_S)
        return str(refused.value)

    assert control(path, ask) == ("nothing to count", 0)


def test_the_control_socket_refuses_data_that_ends_early(tmp_path: Path) -> None:
    path = tmp_path / "control"

    def ask() -> bytes:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(os.fspath(path))
            client.sendall(b'{"do": "count", "bytes": 10}\nonly')
            client.shutdown(socket.SHUT_WR)
            return client.makefile("rb").read()

    answer, _ = control(path, ask)
    assert answer == b'{"error": "10 bytes were announced, and 4 came"}\n'


async def listening(path: Path, of: str, nursery: trio.Nursery, **named: Any) -> None:
    async def name(data: bytes) -> dict[str, Any]:
        del data
        return {"name": of}

    await nursery.start(partial(serve_control, path, {"name": name}, **named))


def name_at(path: Path, device: str | None = None) -> str:
    return str(send_control(path, "name", timeout_s=PATIENCE_S, device=device)["name"])


async def test_statistics_of_a_hundred_thousand_class_trees_are_an_answer(tmp_path: Path) -> None:
    trees = [f"day-{number:05}-of-a-recording/{'x' * 100}" for number in range(100_000)]

    async def stats(_data: bytes) -> dict[str, Any]:
        return {"trees": trees}

    async with trio.open_nursery() as nursery:
        await nursery.start(serve_control, tmp_path / "control", {"stats": stats})
        ask = partial(send_control, tmp_path / "control", "stats", timeout_s=PATIENCE_S)
        assert (await trio.to_thread.run_sync(ask))["trees"] == trees
        nursery.cancel_scope.cancel()


async def test_a_living_daemons_control_socket_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "control"
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as earlier:
            await listening(path, "first", earlier)
            await listening(path, "second", nursery)
            assert await trio.to_thread.run_sync(name_at, path) == "first"
            earlier.cancel_scope.cancel()
        # The other one listens there once the first has ended.
        await until_in_trio(path.exists)
        assert await trio.to_thread.run_sync(name_at, path) == "second"
        nursery.cancel_scope.cancel()
    assert not os.listdir(tmp_path)


async def test_a_control_socket_that_was_removed_is_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "run/redoxfs"
    path = folder / "control"
    async with trio.open_nursery() as nursery:
        # Its folder cannot be made at first: the mount serves all the same.
        (tmp_path / "run").write_text("in the way")
        await listening(path, "it", nursery, look=partial(os.makedirs, folder, exist_ok=True))
        (tmp_path / "run").unlink()
        await until_in_trio(path.exists)
        assert await trio.to_thread.run_sync(name_at, path) == "it"
        for remove in (path.unlink, partial(shutil.rmtree, tmp_path / "run")):
            remove()
            await until_in_trio(path.exists)
            assert await trio.to_thread.run_sync(name_at, path) == "it"
        nursery.cancel_scope.cancel()
    assert not os.listdir(folder)


async def test_a_request_for_another_mount_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "control"
    async with trio.open_nursery() as nursery:
        await listening(path, "it", nursery, device="0:52")
        for device in (None, "0:52"):
            assert await trio.to_thread.run_sync(name_at, path, device) == "it"
        with pytest.raises(ValueError, match="serves the mount with device 0:52"):
            await trio.to_thread.run_sync(name_at, path, "0:53")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (b'{"do": "count", "bytes": 10}\nonly', "10 bytes were announced, and 4 came within 10 s"),
        (b'{"do": "cou', "no line came within 10 s"),
    ],
)
def test_the_control_socket_times_out_only_slow_clients(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, said: bytes, line: str
) -> None:
    path = tmp_path / "control"

    async def count(data: bytes) -> dict[str, Any]:
        raise AssertionError(f"called with {data!r}")

    async def main() -> bytes:
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_control, path, {"count": count})
            async with await trio.open_unix_socket(path) as client:
                await client.send_all(said)
                answer = b"".join([part async for part in client])
            nursery.cancel_scope.cancel()
        return answer

    answer = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.01))
    assert json.loads(answer) == {"error": line}
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("verb", "has_read", "is_asked_again"),
    [("epoch", False, True), ("state-save", False, True), ("state-save", True, True), ("epoch", True, False)],
)
def test_a_request_at_which_a_daemon_ended_goes_to_the_next_unless_it_may_have_been_carried_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, *, has_read: bool, is_asked_again: bool
) -> None:
    path = tmp_path / "control"
    monkeypatch.setattr(control_client, "control_path_of_daemon", lambda _mountpoint: path)
    monkeypatch.setattr(control_client, "_is_started_again", lambda _mount: True)
    listening = [socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]

    def serve() -> None:
        dying, next_one = listening
        with dying, dying.accept()[0] as client:
            # Leaves some of the request unread, or nothing.
            client.recv(1 << 16 if has_read else 1)
            path.unlink()
            next_one.bind(os.fspath(path))
            next_one.listen()
        if is_asked_again:
            with next_one, next_one.accept()[0] as client:
                client.recv(1 << 16)
                client.sendall(b'{"by": "the next"}\n')

    listening[0].bind(os.fspath(path))
    listening[0].listen()
    server = threading.Thread(target=serve, daemon=True)
    server.start()
    mount = path_status(str(tmp_path), PATIENCE_S)
    if is_asked_again:
        assert ask_daemon(mount, verb, b"data", PATIENCE_S) == {"by": "the next"}
    else:
        with pytest.raises(DaemonError, match="it ended without an answer"):
            ask_daemon(mount, verb, b"data", PATIENCE_S)
    server.join()
    listening[1].close()


def test_a_request_at_which_two_daemons_ended_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A keeper gives up after three deaths in a minute."""
    path = tmp_path / "control"
    monkeypatch.setattr(control_client, "control_path_of_daemon", lambda _mountpoint: path)
    monkeypatch.setattr(control_client, "_is_started_again", lambda _mount: True)
    ends = 0

    def serve() -> None:
        nonlocal ends
        with suppress(OSError):
            while True:
                with listener.accept()[0] as client:
                    client.recv(1 << 16)
                    if ends == 2:
                        client.sendall(b"{}\n")
                ends += 1

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(path))
        listener.listen()
        server = threading.Thread(target=serve, daemon=True)
        server.start()
        with pytest.raises(DaemonError, match="it ended without an answer"):
            ask_daemon(path_status(str(tmp_path), PATIENCE_S), "stats", b"", PATIENCE_S)
        listener.shutdown(socket.SHUT_RDWR)
        server.join()
    assert ends == 2


@pytest.mark.parametrize(("verb", "data"), [("nodes", b""), ("nodes", b'["a:1"]'), ("trace", b"x" * (1 << 22))])
def test_a_single_node_refuses_verbs_of_several_nodes(tmp_path: Path, verb: str, data: bytes) -> None:
    def ask() -> str:
        with pytest.raises(ValueError) as refused:
            send_control(tmp_path / "control", verb, data, timeout_s=PATIENCE_S)
        return str(refused.value)

    answer, _ = control(tmp_path / "control", ask)
    assert answer == "serves one node alone; `nodes` and `trace` need a mount with --nodes"


@pytest.mark.parametrize("verb", ["explode", "", "stop " * 100_000])
def test_the_control_socket_refuses_unknown_verbs(tmp_path: Path, verb: str) -> None:
    def ask() -> str:
        with pytest.raises((ValueError, ConnectionError)) as refused:
            send_control(tmp_path / "control", verb, timeout_s=PATIENCE_S)
        return type(refused.value).__name__

    answer, calls = control(tmp_path / "control", ask)
    assert answer
    assert calls == 0


async def test_reads_that_nobody_wants_any_more_are_not_made(source: tuple[Catalog, int]) -> None:
    store = HeldStore(source[0])
    # Of a whole chunk one sample is awaited. Others are queued behind it.
    store.depth = 1
    async with running(source, store) as node:
        store.gate.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(whole, node, entries(source)[0], 100)
            await trio.testing.wait_all_tasks_blocked()
            assert node.counters.samples_loaded > 1
            cells = build_cells(source[0].class_of, source[0].sample_bytes, chunk_size=4, seed=0)
            node.renew(plan_slot(source[0], cells, memory_bytes=node.plan.memory_bytes, seed=1))
            store.gate.set()
        assert len(store.reads_made) == 1, "the awaited one, which a path owns"
        served = [await whole(node, entry, 200) for entry in entries(source)]
        assert sorted(served) == list(range(CLASSES * PER_CLASS))
