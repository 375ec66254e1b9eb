"""Nodes that share a dataset and whose processes are killed: the next one goes on as the same, without a filesystem."""

import itertools
import math
import os
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import trio
from packs import opened
from patience import PATIENCE_S
from ports import reserve
from resuming_nodes import config_of
from stores import NoKernel
from t2_recover import PER_CLASS, FakeShared, Life, Memory, content_of, write_dataset

from redoxfs.chunks import Cells, ChunkStore, DirectoryStore, build_cells
from redoxfs.chunks.layout import deal
from redoxfs.dataset import Catalog, build_catalog, read_tree
from redoxfs.launch.options import SamplerSpec
from redoxfs.native import Shared
from redoxfs.node import ExpectedOpen, Journal, Node, OpenFile, Past, Plan, Recovered, Share, plan_pool, plan_slot
from redoxfs.node.cluster import Membership, continued_plan, joined
from redoxfs.node.journal import CLOSED, FAILED, OPENED
from redoxfs.node.state import StateWriter
from redoxfs.peers import View
from redoxfs.protocol import SlotNode

pytestmark = pytest.mark.slow

# No peer is lost in these tests, and a slow one must not be taken for lost.
PEER_TIMEOUT_S = PATIENCE_S
NODES, WORKERS = 3, 3


class Outliving(FakeShared):
    """Memory that a process writes no more once it is dead."""

    is_dead = False

    def note(self, *entry: int) -> None:
        if not self.is_dead:
            super().note(*entry)

    def checkpoint(self, data: bytes, /) -> None:
        if not self.is_dead:
            super().checkpoint(data)


@dataclass
class Dataset:
    catalog: Catalog
    store: ChunkStore
    cells: Cells


@contextmanager
def dataset_at(root: Path, per_class: int = PER_CLASS) -> Iterator[Dataset]:
    write_dataset(root, ("jpg",), per_class)
    with opened(root) as fd:
        catalog = build_catalog(read_tree(fd), classes="dir")
        cells = build_cells(catalog.class_of, catalog.sample_bytes, chunk_size=4, seed=0)
        yield Dataset(catalog, DirectoryStore(catalog, fd), cells)


@contextmanager
def parts_of(dataset: Dataset, roots: Sequence[Path]) -> Iterator[list[Dataset]]:
    """The same dataset at each node, in a folder that has only the files that lie at the node."""
    catalog = dataset.catalog
    lies_at = deal(dataset.cells, len(roots), seed=0)
    with ExitStack() as stack:
        parts = []
        for node, root in enumerate(roots):
            write_dataset(root, ("jpg",))
            for sample in np.flatnonzero(lies_at != node).tolist():
                (root / os.fsdecode(catalog.tree.path(int(catalog.members[catalog.member_at[sample]])))).unlink()
            fd = stack.enter_context(opened(root))
            parts.append(Dataset(catalog, DirectoryStore(catalog, fd), dataset.cells))
        yield parts


@dataclass
class Request:
    """An open, or a close of ``handle``. ``answer``: a handle, or why there is none."""

    entry: int
    thread: int
    handle: int = 0
    answer: int | OSError | None = None
    answered: trio.Event = field(default_factory=trio.Event)


class Machine:
    """One node over the lives of its processes: what the kernel, the session and the keeper are to it."""

    def __init__(self, number: int, dataset: Dataset, view: View, policy: str, sampler: SamplerSpec | None) -> None:
        self._dataset = dataset
        self._policy = policy
        self.memory = Memory()
        self.deaths = 0
        self._requests: dict[int, Request] = {}
        self._numbers = itertools.count(1)
        self._lives = trio.Event()
        self._scope = trio.CancelScope()
        self._reads: set[trio.CancelScope] = set()
        self._nursery: trio.Nursery
        self.node: Node
        self.membership: Membership
        self._journal: Journal
        self._shared: Outliving
        self._prefetched_before = 0
        self._config = config_of(view, number, self._plan_for, sampler)

    def _plan_for(self, node: int, nodes: int) -> Plan:
        catalog, cells = self._dataset.catalog, self._dataset.cells
        memory_bytes = 1 << 20
        share = None
        if nodes > 1:
            shared = not self._policy.endswith("local storage")
            share = Share(node, nodes, memory_bytes // 8, shared, None, PEER_TIMEOUT_S, exchange=0.3, window=100)
        plan = plan_slot if self._policy.startswith("slot") else plan_pool
        return plan(catalog, cells, memory_bytes=memory_bytes, seed=0, share=share)

    # Lives

    async def run(self) -> None:
        while True:
            await self._live()
            if not self._shared.is_dead:
                return
            self.deaths += 1

    async def _live(self) -> None:
        catalog = self._dataset.catalog
        self._shared = Outliving(self.memory, Life(math.inf))
        self._journal = Journal(cast(Shared, self._shared), checkpoint_entries=100)
        past, recovered = None, None
        before: tuple[Mapping[str, Any], Sequence[int]] | None = None
        plan = self._plan_for(self._config.node, len(self._config.view.addresses))
        if self.memory.saved is not None:
            past = Past.of(self._journal)
            assert past.state.place is not None
            plan = continued_plan(self._config, past.state.place)
        node = Node(catalog, plan, self._dataset.store, timeout_s=PATIENCE_S, kernel=NoKernel(), journal=self._journal)
        state = StateWriter(None, lambda: {"dataset": "d1"}, len(catalog.class_of), node)
        node.start()
        with trio.CancelScope() as self._scope:
            if past is not None:
                recovered = node.recover(past)
                self._answer_again(recovered)
                assert past.state.place is not None
                before = past.state.place, recovered.turned
            async with joined(node, self._config, state, timeout_s=PATIENCE_S, past=before) as self.membership:
                self.node = node
                if recovered is None:
                    node.checkpoint()
                async with trio.open_nursery() as self._nursery:
                    for number in [*self._requests]:
                        self._begin(number)
                    if recovered is not None:
                        recovered.release_pins()
                    policy = node.shared_policy
                    self._prefetched_before = policy.prefetched if isinstance(policy, SlotNode) else 0
                    self._lives.set()
                    await trio.sleep_forever()
        node.stop()

    def prefetched_since_death(self) -> int:
        """Samples that other nodes sent ahead to the last process."""
        policy = self.node.shared_policy
        assert isinstance(policy, SlotNode)
        return policy.prefetched - self._prefetched_before

    def kill(self) -> None:
        """The process ends, if there is one. What it does after that reaches nobody."""
        if not self._lives.is_set():
            return
        self._lives = trio.Event()
        self._shared.is_dead = True
        self.node.freeze()
        for scope in self._reads:
            scope.cancel()
        self._scope.cancel()

    def end(self) -> None:
        self._scope.cancel()

    async def wait_alive(self) -> None:
        # It may have been killed again since the event was set.
        while not self._lives.is_set():
            await self._lives.wait()

    def _answer_again(self, recovered: Recovered) -> None:
        for number, request in [*self._requests.items()]:
            if number in recovered.answered:
                self._over(number, recovered.answered[number])
            elif number in recovered.failed and not request.handle:
                self._over(number, OSError(recovered.failed[number], "as before"))

    # Programs

    async def ask(self, request: Request) -> int:
        number = next(self._numbers)
        self._requests[number] = request
        if self._lives.is_set():
            self._begin(number)
        await request.answered.wait()
        if isinstance(request.answer, OSError):
            raise request.answer
        assert request.answer is not None
        return request.answer

    async def read(self, handle: int) -> bytes:
        while True:
            await self.wait_alive()
            reading = self.node.read(handle, 0, 1 << 20)
            if isinstance(reading, bytes | memoryview):
                return bytes(reading)
            # If the process dies meanwhile, the kernel's request is for the next one.
            with trio.CancelScope() as scope:
                self._reads.add(scope)
                try:
                    return bytes(await reading)
                finally:
                    self._reads.discard(scope)

    def _begin(self, number: int) -> None:
        request = self._requests[number]
        if request.handle:
            self.node.close(request.handle)
            self._shared.note(CLOSED, 0, 0, 0, 0, request.handle, 0, 0)
            self._over(number, 0)
            return
        self._journal.request = number
        try:
            opening = self.node.open(request.entry, request.thread)
        except OSError as error:
            self._expected(number, error)
            return
        if isinstance(opening, ExpectedOpen):
            self.node.expect(opening, lambda result: self._expected(number, result))
        elif isinstance(opening, OpenFile):
            self._expected(number, opening)
        else:
            self._nursery.start_soon(self._wait, number, opening)

    async def _wait(self, number: int, opening: Coroutine[Any, Any, OpenFile]) -> None:
        try:
            opened = await opening
        except OSError as error:
            self._expected(number, error)
        else:
            self._expected(number, opened)

    def _expected(self, number: int, result: OpenFile | Exception) -> None:
        if self._shared.is_dead:
            return
        request = self._requests[number]
        if isinstance(result, OpenFile):
            self._shared.note(OPENED, 0, 1, request.thread, request.entry, result.handle, number, result.size)
            self._over(number, result.handle)
        else:
            assert isinstance(result, OSError)
            self._shared.note(FAILED, 0, 0, 0, 0, -1, number, 0)
            self._over(number, result)

    def _over(self, number: int, answer: int | OSError) -> None:
        request = self._requests.pop(number)
        request.answer = answer
        request.answered.set()


class Job:
    """Programs at all nodes, which open each path once an epoch, and someone who kills processes.

    ``shuffles``: in another order each time; otherwise in that of the samples.
    """

    def __init__(
        self, machines: Sequence[Machine], catalog: Catalog, seed: int, kill_every: int, *, shuffles: bool = True
    ) -> None:
        self._shuffles = shuffles
        self._machines = machines
        self._catalog = catalog
        self._random = np.random.default_rng(seed)
        self._kill_every = kill_every
        self._opens = self._epochs = 0
        self._kill_all_at = -1
        self.served: Counter[str] = Counter()

    async def epoch(self) -> None:
        samples = len(self._catalog.class_of)
        order = self._random.permutation(samples) if self._shuffles else np.arange(samples)
        self.served.clear()
        # A thread that opens a path twice in a row gets the same sample again, so each epoch has its own.
        self._epochs += 1
        async with trio.open_nursery() as nursery:
            for at, machine in enumerate(self._machines):
                mine = iter(order[at :: len(self._machines)].tolist())
                for worker in range(WORKERS):
                    nursery.start_soon(self._work, machine, mine, 1000 * self._epochs + 100 * at + worker)

    async def _work(self, machine: Machine, mine: Iterator[int], thread: int) -> None:
        catalog = self._catalog
        for path in mine:
            entry = int(catalog.members[catalog.member_at[path]])
            handle = await machine.ask(Request(entry, thread))
            data = await machine.read(handle)
            name = data.split(b"|")[0].decode()
            assert data == content_of(name)
            assert name[0] == catalog.tree.path(entry).decode().removeprefix("class")[0], "of the same class"
            self.served[name] += 1
            await machine.ask(Request(entry, thread, handle))
            self._opens += 1
            if self._kill_every and self._opens % self._kill_every == 0:
                self._kill()
            if self._opens == self._kill_all_at:
                for each in self._machines:
                    each.kill()

    def kill_all_once(self, after: int) -> None:
        """Kill every process after so many opens from now on."""
        self._kill_all_at = self._opens + after

    def _kill(self) -> None:
        for machine in self._random.permutation(np.array(self._machines, object))[: 1 + self._random.integers(2)]:
            machine.kill()


@pytest.mark.parametrize("kill_every", [3, 7])
@pytest.mark.parametrize("policy", ["pool", "pool with local storage", "slot", "slot with a sampler"])
def test_every_sample_comes_once_an_epoch_over_kills_at_three_nodes(
    tmp_path: Path, policy: str, kill_every: int
) -> None:
    async def main(dataset: Dataset, parts: Sequence[Dataset]) -> None:
        view = View(1, tuple(f"127.0.0.1:{port}" for port in reserve(NODES)))
        sampler = SamplerSpec("torch-distributed", seed=0, ranks=3) if policy.endswith("sampler") else None
        machines = [Machine(number, parts[number], view, policy, sampler) for number in range(NODES)]
        job = Job(machines, dataset.catalog, 0, kill_every)
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for machine in machines:
                    nursery.start_soon(machine.run)
                for machine in machines:
                    await machine.wait_alive()
                for _ in range(4):
                    await job.epoch()
                    assert set(job.served.values()) == {1}
                    assert len(job.served) == len(dataset.catalog.class_of)
                for machine in machines:
                    await machine.wait_alive()
                    assert machine.membership.stats()["missed"] == 0
                    assert machine.node.stats()["errors"] == 0
                    assert machine.deaths
                    machine.end()

    with dataset_at(tmp_path / "data") as dataset:
        if policy.endswith("local storage"):
            with parts_of(dataset, [tmp_path / str(node) for node in range(NODES)]) as parts:
                trio.run(main, dataset, parts)
        else:
            trio.run(main, dataset, [dataset] * NODES)


async def test_samples_are_prefetched_in_the_epoch_in_which_all_nodes_die(tmp_path: Path) -> None:
    """Each node knows the orders of all, and which requests were made."""
    with dataset_at(tmp_path / "data", per_class=64) as dataset:
        view = View(1, tuple(f"127.0.0.1:{port}" for port in reserve(NODES)))
        sampler = SamplerSpec("torch-distributed", seed=0, ranks=NODES, shuffle=False)
        machines = [Machine(number, dataset, view, "slot", sampler) for number in range(NODES)]
        job = Job(machines, dataset.catalog, 0, 0, shuffles=False)
        samples = len(dataset.catalog.class_of)
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for machine in machines:
                    nursery.start_soon(machine.run)
                for machine in machines:
                    await machine.wait_alive()
                # Some seventy samples after the first death, some twenty after the second. Half an epoch is too little:
                # few requests of a window are left then for which another node has a sample.
                for quarter in range(2):
                    job.kill_all_once(max(1, quarter * samples // 4))
                    await job.epoch()
                    assert set(job.served.values()) == {1}
                    assert len(job.served) == samples
                    for machine in machines:
                        await machine.wait_alive()
                        assert machine.deaths == quarter + 1
                    assert sum(machine.prefetched_since_death() for machine in machines) > 0
                for machine in machines:
                    machine.end()
