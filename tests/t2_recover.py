"""A node continues where another one was killed, at any moment: between two entries of its journal, or at any notice to
the kernel. What the programs see is one mount that never stopped.
"""

import errno
import math
import os
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count, product, repeat
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import trio
from packs import Options, opened, pack_here, store_of
from patience import PATIENCE_S
from stores import NoKernel, read_from

from redoxfs.chunks import Cells, ChunkStore, build_cells
from redoxfs.chunks.directory import DirectoryStore
from redoxfs.dataset import Catalog, build_catalog, read_tree
from redoxfs.linux.pids import TICKS_PER_S
from redoxfs.native import Shared
from redoxfs.node import PLANNERS, ExpectedOpen, Journal, Node, OpenFile, Past, Plan, RecoveryError
from redoxfs.node.callers import Callers
from redoxfs.node.journal import CLOSED, EXACT, FAILED, OPEN, OPENED, Entry
from redoxfs.node.recent import TURNS, RecentTurns
from redoxfs.node.recovery import Recovered

CLASSES, PER_CLASS, WORKERS = 3, 8, 4


class Killed(BaseException):
    """The process ends here."""


class Life:
    """The life of a process, which ends after ``steps``. Nothing that it does after that has any effect."""

    def __init__(self, steps: float) -> None:
        self.steps = steps

    def step(self) -> None:
        self.steps -= 1
        if self.steps <= 0:
            raise Killed


@dataclass
class Memory:
    """`redoxfs.native.Shared`, without what a process of it sees."""

    log: list[Entry] = field(default_factory=list)
    saved: tuple[int, bytes] | None = None
    checkpoint_bytes: float = math.inf


class FakeShared:
    """`redoxfs.native.Shared`, of one process."""

    def __init__(self, memory: Memory, life: Life) -> None:
        self.memory = memory
        self._life = life

    @property
    def position(self) -> int:
        return len(self.memory.log)

    def note(
        self, kind: int, file: int, flags: int, thread: int, path: int, sample: int, request: int, value: int, /
    ) -> None:
        assert kind < 1 << 8 > file
        assert flags < 1 << 16
        assert 0 <= thread < 1 << 32 > path >= 0
        assert -(1 << 31) <= sample < 1 << 31
        assert 0 <= request < 1 << 64
        assert -(1 << 63) <= value < 1 << 63
        self._life.step()
        self.memory.log.append((kind, file, int(flags), thread, path, sample, request, value))
        self._life.step()

    def entries(self, after: int, /) -> Sequence[Entry]:
        return self.memory.log[after:]

    def checkpoint(self, data: bytes, /) -> None:
        self._life.step()
        if len(data) > self.memory.checkpoint_bytes:
            raise ValueError(f"{len(data)} bytes do not fit")
        self.memory.saved = len(self.memory.log), data

    def checkpointed(self) -> tuple[int, bytes] | None:
        return self.memory.saved


class MortalKernel(NoKernel):
    """A kernel at whose notices the process may die."""

    def __init__(self, life: Life) -> None:
        self._life = life

    def turned(self, _entries: Sequence[int]) -> None:
        self._life.step()

    def freed(self, _entries: Sequence[int]) -> None:
        self._life.step()

    def unhold(self, _thread: int) -> None:
        self._life.step()


@dataclass
class Request:
    """``answer``: what the program got; None so far."""

    kind: str
    entry: int
    thread: int = 0
    handle: int = 0
    answer: int | OSError | None = None


class Mount:
    """The request loop of `redoxfs.fs`, the session in C, and what outlives both."""

    def __init__(self, make_node: Callable[[MortalKernel, Journal], Node], lives: Iterator[float]) -> None:
        self._make_node = make_node
        self._lives = lives
        self.memory = Memory()
        self.deaths = 0
        self._waiting: dict[int, Request] = {}
        self._received = 0
        self.begin()
        try:
            self._journal.checkpoint()
        except Killed:
            self.begin()
            self._life.steps = 10
            self._journal.checkpoint()

    def begin(self) -> None:
        self._life = Life(next(self._lives))
        self._shared = FakeShared(self.memory, self._life)
        self._journal = Journal(cast(Shared, self._shared), checkpoint_entries=50)
        self.node = self._make_node(MortalKernel(self._life), self._journal)
        self.node.start()
        self._arrivals = self.node.supply.loader.take_over()
        self._begun: set[int] = set()

    def end(self) -> None:
        self._life.steps = math.inf
        self.node.end_expected()
        self.node.stop()

    # Programs

    def ask(self, kind: str, entry: int, thread: int = 0, handle: int = 0) -> Request:
        request = Request(kind, entry, thread, handle)
        self._received += 1
        self._waiting[self._received] = request
        return request

    async def serve(self) -> None:
        """Answer all requests, by as many processes as that takes."""
        while self._waiting:
            try:
                for number, request in [*self._waiting.items()]:
                    if number not in self._begun:
                        await self.begin_request(number, request)
                self._journal.checkpoint_if_due()
                if self._waiting and not self.node.supply.loader.deliver_some():
                    with trio.fail_after(PATIENCE_S):
                        await trio.lowlevel.wait_readable(self._arrivals)
            except Killed:
                await self.restart()

    async def read(self, handle: int, offset: int, size: int) -> bytes:
        return await read_from(self.node, handle, offset, size)

    # The next process

    def recover(self) -> Recovered:
        return self.node.recover(Past.of(self._journal))

    async def restart(self) -> None:
        """Another process takes over, or several, if the first die."""
        while True:
            self.deaths += 1
            self.node.freeze()
            self.end()
            self.begin()
            try:
                recovered = self.recover()
                await self._answer_again(recovered)
                recovered.release_pins()
            except Killed:
                continue
            return

    async def _answer_again(self, recovered: Recovered) -> None:
        for number, request in [*self._waiting.items()]:
            if number in recovered.answered:
                self._over(number, recovered.answered[number])
            elif number in recovered.failed:
                self._over(number, OSError(recovered.failed[number], "as before"))
            else:
                await self.begin_request(number, request)

    # Requests

    async def begin_request(self, number: int, request: Request) -> None:
        self._begun.add(number)
        if request.kind == "close":
            self.node.close(request.handle)
            self._note(CLOSED, sample=request.handle)
            self._over(number, 0)
        elif request.kind == "stat":
            told = self.node.stat(request.entry, request.thread)
            assert isinstance(told, tuple)
            self._over(number, told[0])
        else:
            await self._open_file(number, request)

    async def _open_file(self, number: int, request: Request) -> None:
        self._journal.request = number
        try:
            if request.kind == "exact":
                opened = await self.node.open_exact(request.entry)
            else:
                opening = self.node.open(request.entry, request.thread)
                if isinstance(opening, ExpectedOpen):
                    self.node.expect(opening, partial(self._expected, number))
                    return
                assert isinstance(opening, OpenFile)
                opened = opening
        except OSError as error:
            self._expected(number, error)
            return
        self._expected(number, opened)

    def _expected(self, number: int, result: OpenFile | Exception) -> None:
        request = self._waiting[number]
        if isinstance(result, OpenFile):
            branch = EXACT if request.kind == "exact" else 0
            self._note(OPENED, branch, 1, request.thread, request.entry, result.handle, number, result.size)
            self._over(number, result.handle)
        else:
            assert isinstance(result, OSError)
            if request.kind == "open":
                self._note(FAILED, request=number)
            self._over(number, result)

    def _note(
        self,
        kind: int,
        file: int = 0,
        flags: int = 0,
        thread: int = 0,
        path: int = 0,
        sample: int = -1,
        request: int = 0,
        value: int = 0,
    ) -> None:
        self._shared.note(kind, file, flags, thread, path, sample, request, value)

    def _over(self, number: int, answer: int | OSError) -> None:
        self._waiting.pop(number).answer = answer


# A dataset whose files say what they are


def content_of(name: str) -> bytes:
    return (name.encode() + b"|") * (10 + 7 * (sum(name.encode()) % 23))


def write_dataset(root: Path, kinds: Sequence[str], per_class: int = PER_CLASS) -> None:
    for label in range(CLASSES):
        folder = root / f"class{label}"
        folder.mkdir(parents=True)
        for number in range(per_class):
            for kind in kinds:
                (folder / f"{label}-{number}.{kind}").write_bytes(content_of(f"{label}-{number}.{kind}"))


@dataclass
class Dataset:
    catalog: Catalog
    store: ChunkStore
    cells: Cells
    root: Path


@contextmanager
def directory(root: Path, kinds: Sequence[str] = ("jpg",)) -> Iterator[Dataset]:
    write_dataset(root, kinds)
    with scanned(root, groups="stem" if len(kinds) > 1 else None) as dataset:
        yield dataset


@contextmanager
def scanned(root: Path, groups: str | None = None) -> Iterator[Dataset]:
    with opened(root) as fd:
        catalog = build_catalog(read_tree(fd), classes="dir", groups=groups)
        cells = build_cells(catalog.class_of, catalog.sample_bytes, chunk_size=4, seed=0)
        yield Dataset(catalog, DirectoryStore(catalog, fd), cells, root)


@contextmanager
def packed(root: Path, kinds: Sequence[str] = ("jpg",)) -> Iterator[Dataset]:
    write_dataset(root, kinds)
    pack_here(root, root.parent / "packed", Options(chunk_size=4, groups="stem" if len(kinds) > 1 else None))
    with store_of(root.parent / "packed") as (index, store):
        cells = build_cells(index.catalog.class_of, index.catalog.sample_bytes, chunk_size=4, seed=0)
        yield Dataset(index.catalog, store, cells, root)


def plan_of(dataset: Dataset, policy: str, share: float) -> Plan:
    """``share``: of the samples, that are in memory at a time."""
    catalog, cells = dataset.catalog, dataset.cells
    planner = PLANNERS[policy]
    return planner.plan(catalog, cells, memory_bytes=planner.memory_for(catalog, cells, share), seed=1)


def mounted(
    dataset: Dataset,
    policy: str = "pool",
    share: float = 1.0,
    lives: Iterator[float] | None = None,
    clock_s: Callable[[], float] = lambda: 1000.0,
) -> Mount:
    """``lives``: how long each process lives; they live for ever if it is None."""

    turns_fd = os.memfd_create("turns")

    def make(kernel: MortalKernel, journal: Journal) -> Node:
        callers = Callers(dataset.root / "proc", clock_s, signal=lambda *_: None)
        plan, recent = plan_of(dataset, policy, share), RecentTurns(turns_fd, dataset.root / "proc")
        options: dict[str, Any] = {"timeout_s": PATIENCE_S, "kernel": kernel, "callers": callers}
        return Node(dataset.catalog, plan, dataset.store, journal=journal, recent=recent, **options)

    mount = Mount(make, repeat(math.inf) if lives is None else lives)
    weakref.finalize(mount, os.close, turns_fd)
    return mount


def lives_of(random: np.random.Generator, most: int) -> Iterator[float]:
    while True:
        yield float(random.integers(1, most))


class Programs:
    """Programs that read every sample once an epoch, and check each byte."""

    def __init__(self, mount: Mount, catalog: Catalog, random: np.random.Generator) -> None:
        self.mount = mount
        self.catalog = catalog
        self.random = random
        # By handle: the content that its first read had.
        self.open: dict[int, bytes] = {}
        self.entry_of: dict[int, int] = {}
        self.failed = 0

    async def epoch(self, number: int) -> Counter[bytes]:
        served: Counter[bytes] = Counter()
        order = self.random.permutation(len(self.catalog.class_of))
        for at in range(0, len(order), WORKERS):
            batch = [int(path) for path in order[at : at + WORKERS]]
            threads = [1000 * number + worker for worker in range(1, len(batch) + 1)]
            files = [self.files(path) for path in batch]
            asks = self.random.random() < 0.5
            sizes = [
                await self.size(entries[0], thread) for entries, thread in zip(files, threads, strict=True) if asks
            ]
            opened = [
                self.mount.ask("open", entries[0], thread) for entries, thread in zip(files, threads, strict=True)
            ]
            await self.mount.serve()
            for worker, request in enumerate(opened):
                if isinstance(request.answer, OSError):
                    assert request.answer.errno == errno.EIO
                    self.failed += 1
                    continue
                whole = await self.whole(request)
                if asks:
                    assert len(whole) == sizes[worker]
                served[whole.split(b"|")[0]] += 1
                for other in files[worker][1:]:
                    second = await self.whole(await self.opened("open", other, threads[worker]))
                    assert second.split(b".")[0] == whole.split(b".")[0], "the files of a group stay together"
            await self.read_some()
            if self.random.random() < 0.3 and not isinstance(opened[-1].answer, OSError):
                await self.look_again(batch[-1], threads[-1])
            if self.random.random() < 0.3:
                await self.open_exactly()
            await self.close_some(keep=6)
        await self.close_some(keep=0)
        return served

    def files(self, path: int) -> list[int]:
        first, end = self.catalog.member_at[path : path + 2]
        return [int(entry) for entry in self.catalog.members[first:end]]

    async def opened(self, kind: str, entry: int, thread: int = 0) -> Request:
        request = self.mount.ask(kind, entry, thread)
        await self.mount.serve()
        return request

    async def handle(self, kind: str, entry: int, thread: int = 0) -> int:
        """The handle of an open that must succeed."""
        request = await self.opened(kind, entry, thread)
        assert isinstance(request.answer, int)
        self.entry_of[request.answer] = entry
        return request.answer

    async def size(self, entry: int, thread: int) -> int:
        request = await self.opened("stat", entry, thread)
        assert isinstance(request.answer, int)
        return request.answer

    async def whole(self, request: Request) -> bytes:
        """The content of the file that ``request`` opened, which must be that of one file."""
        handle = request.answer
        assert isinstance(handle, int)
        data = await self.mount.read(handle, 0, 1 << 20)
        assert data == content_of(data.split(b"|")[0].decode())
        self.open[handle] = data
        return data

    async def read_some(self) -> None:
        for handle, data in self.open.items():
            begin = int(self.random.integers(len(data)))
            assert await self.mount.read(handle, begin, 100) == data[begin : begin + 100]

    async def look_again(self, path: int, thread: int) -> None:
        """A second look gets the same bytes."""
        entry = self.files(path)[0]
        first = await self.opened("open", entry, thread)
        data = await self.whole(first)
        assert isinstance(first.answer, int)
        await self.close(first.answer)
        again = await self.opened("open", entry, thread)
        assert await self.whole(again) == data

    async def open_exactly(self) -> None:
        entry = int(self.random.choice(self.catalog.members))
        request = await self.opened("exact", entry)
        if not isinstance(request.answer, OSError):
            data = await self.whole(request)
            assert self.catalog.tree.path(entry).endswith(data.split(b"|")[0])

    async def close_some(self, keep: int) -> None:
        while len(self.open) > keep:
            await self.close(int(self.random.choice([*self.open])))

    async def close(self, handle: int) -> None:
        del self.open[handle]
        self.mount.ask("close", 0, handle=handle)
        await self.mount.serve()


@pytest.mark.parametrize(
    ("kind", "policy", "groups"),
    [(directory, "pool", False), (directory, "slot", True), (packed, "pool", True), (packed, "slot", False)],
)
@pytest.mark.slow
def test_every_sample_comes_once_an_epoch_over_kills(
    kind: Callable[..., AbstractContextManager[Dataset]], policy: str, groups: bool, tmp_path: Path
) -> None:
    with kind(tmp_path / "data", ("jpg", "txt") if groups else ("jpg",)) as dataset:
        deaths = 0
        # With the last two, processes die just after an epoch had all paths.
        for seed in (*range(6), 10, 39):
            random = np.random.default_rng(seed)

            async def main(random: np.random.Generator = random, seed: int = seed) -> int:
                mount = mounted(dataset, policy, (0.3, 1.0)[seed % 2], lives_of(random, (20, 60, 300)[seed % 3]))
                programs = Programs(mount, dataset.catalog, random)
                for epoch in range(1, 4):
                    served = await programs.epoch(epoch)
                    assert set(served.values()) == {1}
                    assert len(served) == CLASSES * PER_CLASS
                assert mount.node.given == 3 * CLASSES * PER_CLASS
                turns = sorted(map(tuple, mount.node.recent.last(TURNS).tolist()))
                assert turns == list(product(range(CLASSES * PER_CLASS), (1, 2, 3)))
                assert mount.node.binding.counts()["bound"] == mount.node.stats()["open_files"] == 0
                mount.end()
                return mount.deaths

            deaths += trio.run(main)
        assert deaths > 60


@pytest.mark.slow
def test_a_file_that_cannot_be_read_fails_one_open_an_epoch_over_kills(tmp_path: Path) -> None:
    with directory(tmp_path / "data") as dataset:
        (dataset.root / "class1" / "1-3.jpg").unlink()
        for seed in range(6):
            random = np.random.default_rng(seed)

            async def main(random: np.random.Generator = random, seed: int = seed) -> None:
                mount = mounted(dataset, ("pool", "slot")[seed % 2], lives=lives_of(random, 40))
                programs = Programs(mount, dataset.catalog, random)
                for epoch in range(1, 4):
                    served = await programs.epoch(epoch)
                    assert set(served.values()) == {1}
                    assert len(served) == CLASSES * PER_CLASS - 1
                    assert programs.failed == epoch
                mount.end()

            trio.run(main)


def entry_of(catalog: Catalog, name: str) -> int:
    (entry,) = (int(entry) for entry in catalog.members if catalog.tree.path(int(entry)).endswith(name.encode()))
    return entry


async def open_all(programs: Programs, thread: int = 1) -> dict[bytes, int]:
    """Every file is open: by the name in its content, the handle."""
    handles = {}
    for number, entry in enumerate(programs.catalog.members):
        handle = await programs.handle("open", int(entry), thread + number)
        data = await programs.mount.read(handle, 0, 1 << 20)
        handles[data.split(b"|")[0]] = handle
    return handles


@pytest.mark.parametrize("by", ["journal", "checkpoint"])
@pytest.mark.parametrize("when", ["before the open", "after the open"])
async def test_an_open_file_has_its_bytes_after_a_kill_or_is_stale(tmp_path: Path, by: str, when: str) -> None:
    with directory(tmp_path / "data") as dataset:
        mount = mounted(dataset)
        changed = dataset.root / "class0" / "0-1.jpg"
        entry = entry_of(dataset.catalog, "0-1.jpg")
        if when == "before the open":
            changed.write_bytes(b"0-1.jpg|is new")
        handles = await open_all(Programs(mount, dataset.catalog, np.random.default_rng(0)))
        assert (entry in mount.node.out_of_date()) == (when == "before the open")
        handle = handles[b"0-1.jpg"]
        if by == "checkpoint":
            mount.node.renew(mount.node.plan)
        await mount.restart()
        assert (entry in mount.node.out_of_date()) == (when == "before the open")
        expected = b"0-1.jpg|is new" if when == "before the open" else content_of("0-1.jpg")
        assert await mount.read(handle, 0, 1 << 20) == expected
        changed.write_bytes(b"0-1.jpg|newest")
        with pytest.raises(OSError) as caught:
            await mount.read(handle, 0, 10)
        assert caught.value.errno == errno.ESTALE
        changed.unlink()
        with pytest.raises(OSError) as caught:
            await mount.read(handle, 0, 10)
        assert caught.value.errno == errno.ESTALE
        assert await mount.read(handles[b"0-2.jpg"], 3, 10) == content_of("0-2.jpg")[3:13]
        mount.end()


async def test_two_states_of_a_sample_stay_apart_over_a_kill(tmp_path: Path) -> None:
    """One handle has what a file was in the lap before, another what it is now."""
    with directory(tmp_path / "data") as dataset:
        mount = mounted(dataset, share=0.3)
        programs = Programs(mount, dataset.catalog, np.random.default_rng(0))
        old = await open_all(programs)
        changed = dataset.root / "class0" / "0-1.jpg"
        changed.write_bytes(b"0-1.jpg|is new")
        for name in [name for name in old if name != b"0-1.jpg"]:
            mount.ask("close", 0, handle=old.pop(name))
        await mount.serve()
        new, held = -1, programs.entry_of[old[b"0-1.jpg"]]
        for number, entry in enumerate([*dataset.catalog.members, *dataset.catalog.members]):
            if entry == held:
                continue
            handle = await programs.handle("open", int(entry), 1000 + number)
            if await mount.read(handle, 0, 100) == b"0-1.jpg|is new":
                new = handle
                break
            mount.ask("close", 0, handle=handle)
            await mount.serve()
        assert new > 0
        await mount.restart()
        assert await mount.read(new, 0, 100) == b"0-1.jpg|is new"
        with pytest.raises(OSError, match="changed"):
            await mount.read(old[b"0-1.jpg"], 0, 100)
        mount.end()


@pytest.mark.parametrize("by", ["journal", "checkpoint"])
async def test_an_exact_file_stays_open_over_a_kill_until_it_is_replaced(tmp_path: Path, by: str) -> None:
    with directory(tmp_path / "data") as dataset:
        mount = mounted(dataset)
        programs = Programs(mount, dataset.catalog, np.random.default_rng(0))
        kept, replaced = [
            await programs.handle("exact", entry_of(dataset.catalog, name)) for name in ("0-1.jpg", "0-2.jpg")
        ]
        path = dataset.root / "class0" / "0-2.jpg"
        path.unlink()
        path.write_bytes(content_of("0-2.jpg"))
        if by == "checkpoint":
            mount.node.renew(mount.node.plan)
        await mount.restart()
        assert await mount.read(kept, 2, 100) == content_of("0-1.jpg")[2:102]
        with pytest.raises(OSError, match="replaced"):
            await mount.read(replaced, 0, 10)
        again = await programs.handle("exact", entry_of(dataset.catalog, "0-2.jpg"))
        assert await mount.read(again, 0, 10) == content_of("0-2.jpg")[:10]
        for handle in (kept, replaced, again):
            mount.ask("close", 0, handle=handle)
        await mount.serve()
        assert mount.node.stats()["open_files"] == 0
        mount.end()


async def test_a_thread_number_that_is_reused_during_a_restart_is_a_new_thread(tmp_path: Path) -> None:
    with directory(tmp_path / "data") as dataset:
        now_s = 100.0
        mount = mounted(dataset, clock_s=lambda: now_s)
        programs = Programs(mount, dataset.catalog, np.random.default_rng(0))
        served = []
        for born_s in (90, 90, 115):
            stat = dataset.root / "proc" / "77" / "stat"
            stat.parent.mkdir(parents=True, exist_ok=True)
            stat.write_text(f"77 (python) S {' '.join(['0'] * 18)} {int(born_s * TICKS_PER_S)} 0")
            request = await programs.opened("open", int(dataset.catalog.members[0]), 77)
            assert isinstance(request.answer, int)
            served.append((await programs.whole(request)).split(b"|")[0])
            await programs.close(request.answer)
            await mount.restart()
            now_s += 10
        assert served[0] == served[1] != served[2]
        mount.end()


async def test_a_loaded_state_holds_after_a_kill(tmp_path: Path) -> None:
    with directory(tmp_path / "data") as dataset:
        mount = mounted(dataset)
        programs = Programs(mount, dataset.catalog, np.random.default_rng(0))
        await programs.epoch(1)
        saved = mount.node.turns()
        await programs.epoch(2)
        mount.node.restore(saved)
        await mount.restart()
        assert mount.node.given == saved.given == CLASSES * PER_CLASS
        assert set((await programs.epoch(3)).values()) == {1}
        mount.end()


@pytest.mark.parametrize("seed", range(3))
async def test_an_epoch_over_a_kill_gets_no_sample_twice_after_another_view_has_left_one_node(
    seed: int, tmp_path: Path
) -> None:
    """Also if an epoch before was broken off."""
    with directory(tmp_path / "data") as dataset:
        mount = mounted(dataset, share=0.3)
        mount.node.renew(plan_of(dataset, "pool", 0.3))
        random = np.random.default_rng(seed)
        programs = Programs(mount, dataset.catalog, random)
        entries, threads = dataset.catalog.members, count(1)

        async def read(entry: int) -> bytes:
            request = await programs.opened("open", entry, next(threads))
            content = (await programs.whole(request)).split(b"|")[0]
            await programs.close_some(keep=0)
            return content

        for entry in random.permutation(entries)[: len(entries) * 4 // 10].tolist():
            await read(entry)
        got: list[bytes] = []
        for number, entry in enumerate(random.permutation(entries).tolist()):
            if number == len(entries) * 7 // 10:
                await mount.restart()
            got.append(await read(entry))
        assert len(set(got)) == len(got)
        mount.end()


async def test_the_ranks_that_told_of_an_epoch_are_known_after_a_kill(tmp_path: Path) -> None:
    with directory(tmp_path / "data") as dataset:
        mount = mounted(dataset)
        mount.node.ranks[0] = [None, 3], {0: (700, 1.5), 2: (702, 2.0)}
        mount.node.ranks[None] = [7, 2], {1: (0, 3.0)}
        mount.node.checkpoint()
        await mount.restart()
        assert mount.node.ranks == {0: ([None, 3], {0: (700, 1.5), 2: (702, 2.0)}), None: ([7, 2], {1: (0, 3.0)})}
        mount.end()


async def test_an_open_whose_program_was_killed_meanwhile_leaves_nothing_bound(tmp_path: Path) -> None:
    with directory(tmp_path / "data") as dataset:
        mount = mounted(dataset)
        entry = int(dataset.catalog.members[0])
        mount.node.open(entry, 1)
        await mount.restart()
        assert mount.node.binding.counts()["bound"] == 0
        assert mount.node.given == 1
        await mount.restart()
        assert mount.node.binding.counts()["bound"] == 0
        mount.end()


async def test_an_open_without_an_answer_keeps_its_sample_over_two_kills(tmp_path: Path) -> None:
    """The second kill comes after a checkpoint, and before the open was repeated."""
    with directory(tmp_path / "data") as dataset:
        mount = mounted(dataset)
        programs = Programs(mount, dataset.catalog, np.random.default_rng(0))
        request = mount.ask("open", int(dataset.catalog.members[0]), 1)
        await mount.begin_request(1, request)
        answer = mount.node.binding.answer(0)
        assert answer is not None
        mount.end()
        mount.begin()
        mount.recover()
        assert mount.node.binding.is_bound(0)
        mount.node.renew(mount.node.plan)
        await mount.restart()
        await mount.serve()
        assert len(await programs.whole(request)) == dataset.catalog.sample_bytes[answer]
        assert mount.node.given == 1
        assert isinstance(request.answer, int)
        await programs.close(request.answer)
        assert mount.node.binding.counts()["bound"] == 0
        mount.end()


async def test_a_damaged_checkpoint_is_refused_in_one_line(tmp_path: Path) -> None:
    with directory(tmp_path / "data") as dataset:
        mount = mounted(dataset)
        await open_all(Programs(mount, dataset.catalog, np.random.default_rng(0)))
        mount.node.renew(mount.node.plan)
        assert mount.memory.saved is not None
        position, data = mount.memory.saved
        random = np.random.default_rng(0)
        for at in [*range(40), *random.integers(len(data), size=40).tolist()]:
            flipped = bytearray(data)
            flipped[at] ^= 1 << int(random.integers(8))
            for damaged in (bytes(flipped), data[:at]):
                mount.memory.saved = position, damaged
                refused(mount)
        mount.memory.saved = None
        refused(mount)
        mount.end()


def refused(mount: Mount) -> None:
    mount.end()
    mount.begin()
    with pytest.raises(RecoveryError) as caught:
        mount.recover()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", ["a file was touched", "a file was added", "a policy was chosen"])
def test_a_journal_of_another_scan_or_policy_is_refused(tmp_path: Path, change: str) -> None:
    async def main(dataset: Dataset, rescanned: Dataset) -> None:
        former = mounted(dataset)
        await open_all(Programs(former, dataset.catalog, np.random.default_rng(0)))
        mount = mounted(rescanned, "slot" if change == "a policy was chosen" else "pool")
        mount.memory.saved, mount.memory.log = former.memory.saved, former.memory.log
        refused(mount)
        former.end()
        mount.end()

    with directory(tmp_path / "data") as dataset:
        path = dataset.root / "class0" / "0-1.jpg"
        if change == "a file was touched":
            os.utime(path, (0, 0))
        elif change == "a file was added":
            (path.parent / "0-0-0.jpg").write_bytes(b"0-0-0.jpg|")
        with scanned(dataset.root) as rescanned:
            trio.run(main, dataset, rescanned)


async def test_a_checkpoint_that_does_not_fit_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with directory(tmp_path / "data") as dataset:
        mount = mounted(dataset)
        programs = Programs(mount, dataset.catalog, np.random.default_rng(0))
        mount.memory.checkpoint_bytes = 10
        await programs.epoch(1)
        (warning,) = (record.getMessage() for record in caplog.records)
        assert warning.startswith("cannot write a checkpoint: ")
        await mount.restart()
        assert set((await programs.epoch(2)).values()) == {1}, "the entries since the first checkpoint are still there"
        mount.end()


async def test_a_journal_that_lacks_an_entry_is_refused(tmp_path: Path) -> None:
    with directory(tmp_path / "data") as dataset:
        mount = mounted(dataset)
        await open_all(Programs(mount, dataset.catalog, np.random.default_rng(0)))
        log = mount.memory.log
        opens = [at for at, entry in enumerate(log) if entry[0] == OPEN]
        for at in opens[:5]:
            mount.memory.log = [*log[:at], *log[at + 1 :]]
            refused(mount)
        mount.end()
