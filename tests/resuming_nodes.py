"""Nodes that end or die, and others that go on from the files that they left, in one process and without a mount.

Nodes, state files and gRPC are real, and so is what `redoxfs mount --resume` does before it mounts.
"""

import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import trio
from packs import opened
from patience import PATIENCE_S, until_in_trio
from ports import reserve
from stores import NoKernel, opened_by, read_from

from redoxfs.chunks import DirectoryStore, build_cells
from redoxfs.dataset import build_catalog, read_tree
from redoxfs.launch.options import SamplerSpec
from redoxfs.launch.resume import resume, settings_of
from redoxfs.launch.source import Dataset
from redoxfs.node import Node, Plan, Share, plan_pool, plan_slot
from redoxfs.node.cluster import ClusterConfig, Membership, joined
from redoxfs.node.state import StateFile, StateWriter, decode, read_bytes
from redoxfs.peers import Identity, Plaintext, View
from redoxfs.protocol.turns import Turns

NODES = 3
CLASSES = {"few": 2, "more": 20, "most": 38}
"""A class has fewer samples than there are nodes."""

SAMPLES = sum(CLASSES.values())
ALL = range(SAMPLES)
REPEATS = 100
REMOTE_BYTES = 8_000
MEMORY_BYTES = {1: 25_000, 2: 17_500 + REMOTE_BYTES, 3: 14_000 + REMOTE_BYTES}
"""By the number of nodes: with it the slot policy has five virtual chunks."""

PEER_TIMEOUT_S = 2 * PATIENCE_S
"""Nothing takes so long, so no node takes another for lost unless a test moves the clock."""

PREFETCHES = "slot with a sampler"
"""A policy that has memory for all samples: other nodes send only what they have."""

POLICIES = ("pool", "slot", PREFETCHES)


def config_of(
    view: View,
    node: int,
    plan_for: Callable[[int, int], Plan],
    sampler: SamplerSpec | None = None,
    kept: bytes | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> ClusterConfig:
    """How a node of ``view`` meets the others in tests."""
    return ClusterConfig(
        view=view,
        node=node,
        plan_for=plan_for,
        identity=lambda _plan: Identity("d1"),
        timeout_s=PATIENCE_S,
        sampler=sampler,
        report=lambda _missing: None,
        transport=Plaintext().for_view,
        kept=kept,
        say=say,
    )


class Life:
    """One process of a node, from its start until `end` or `kill`. ``said``: its lines for the user."""

    def __init__(self, node: Node, state: StateWriter, said: list[str]) -> None:
        self.node = node
        self.state = state
        self.said = said
        self.membership: Membership
        self.threads = 0
        self._scope = trio.CancelScope()
        self._up = trio.Event()
        self._ended = trio.Event()
        self._is_killed = False

    async def run(self, config: ClusterConfig | None) -> None:
        self.node.start()
        try:
            with self._scope:
                if config is None:
                    self._up.set()
                    await trio.sleep_forever()
                    return
                joining = joined(self.node, config, self.state, timeout_s=PATIENCE_S)
                async with joining as self.membership:
                    self._up.set()
                    await trio.sleep_forever()
        finally:
            if not self._is_killed:
                self.state.final()
            self.node.stop()
            self._ended.set()

    async def up(self) -> None:
        await self._up.wait()

    async def end(self) -> None:
        """As `redoxfs umount` does."""
        self._scope.cancel()
        await self._ended.wait()

    async def kill(self) -> None:
        """What it has not written is lost."""
        self._is_killed = True
        await self.end()

    def write(self) -> None:
        """As every second."""
        self.state.final()

    def is_with(self, others: int) -> bool:
        return [peer["state"] for peer in self.membership.stats()["peers"]] == ["ready"] * others


class Job:
    """Nodes by the folder that each is mounted at, whose state file is named after it."""

    def __init__(self, folder: Path, dataset: Dataset, policy: str, nursery: trio.Nursery) -> None:
        self.addresses = [f"127.0.0.1:{port}" for port in reserve(NODES)]
        self._folder = folder
        self._dataset = dataset
        self.policy = policy
        self._nursery = nursery
        tree, catalog = dataset.catalog.tree, dataset.catalog
        self.entries = [int(catalog.members[at]) for at in catalog.member_at[:-1]]
        self.names = [tree.path(entry).decode() for entry in self.entries]

    def plan(self, rank: int, nodes: int) -> Plan:
        share, memory_bytes, remote_bytes = None, MEMORY_BYTES[nodes], REMOTE_BYTES
        if self.policy == PREFETCHES:
            memory_bytes, remote_bytes = 1 << 20, 1 << 17
        if nodes > 1:
            share = Share(rank, nodes, remote_bytes, True, None, PEER_TIMEOUT_S, exchange=0.3, window=100)
        make = plan_pool if self.policy == "pool" else plan_slot
        catalog, cells = self._dataset.catalog, self._dataset.cells
        return make(catalog, cells, memory_bytes=memory_bytes, seed=0, share=share)

    def kept(self) -> list[Turns]:
        """The content of each file."""
        return [decode(read_bytes(path)).turns for path in sorted(self._folder.glob("*.state.?"))]

    def given(self) -> list[int]:
        """How many turns each file has."""
        return [turns.given for turns in self.kept()]

    async def start(
        self, at: int, *, ranks: Sequence[int] = range(NODES), resumes: bool = False, is_alone: bool = False
    ) -> Life:
        """Begin to mount at folder ``at``. ``ranks`` has the folders of all nodes, by their numbers."""
        nodes = 1 if is_alone else len(ranks)
        rank = 0 if is_alone else ranks.index(at)
        plan = self.plan(rank, nodes)
        file = StateFile(self._folder / f"{at}.state")
        file.number(rank, nodes)
        settings = partial(settings_of, self._dataset, 0)
        kept = resume(file, plan, settings(plan), SAMPLES) if resumes else None
        store = DirectoryStore(self._dataset.catalog, self._dataset.root_fd)
        node = Node(self._dataset.catalog, plan, store, timeout_s=PATIENCE_S, kernel=NoKernel())
        said: list[str] = []
        life = Life(node, StateWriter(file, lambda: settings(node.plan), SAMPLES, node), said)
        config = None
        if not is_alone:
            view = View(1, tuple(self.addresses[number] for number in ranks))
            sampler = SamplerSpec("torch-distributed", seed=0, shuffle=False) if self.policy == PREFETCHES else None
            config = config_of(view, rank, self.plan, sampler, kept, said.append)
        self._nursery.start_soon(life.run, config)
        return life

    async def started(self, nodes: int = NODES, *, resumes: bool = False) -> list[Life]:
        lives = [await self.start(at, ranks=range(nodes), resumes=resumes) for at in range(nodes)]
        for life in lives:
            await life.up()
        return lives

    async def save(self, life: Life, name: str) -> bytes:
        """Save the state of all nodes at one of them; returns the bytes of the file."""
        path = self._folder / name
        await life.state.save(os.fsencode(path))
        return read_bytes(path)

    async def read(self, lives: Sequence[Life], paths: Sequence[int]) -> Counter[str]:
        """Each node reads its part of ``paths``, all at once; returns how often each sample was served."""
        served: Counter[str] = Counter()
        async with trio.open_nursery() as nursery:
            for at, life in enumerate(lives):
                nursery.start_soon(self._read, life, paths[at :: len(lives)], served)
        return served

    async def _read(self, life: Life, paths: Sequence[int], served: Counter[str]) -> None:
        life.threads += 1
        thread = life.threads
        for path in paths:
            file = await opened_by(life.node, self.entries[path], thread)
            name, _, rest = (await read_from(life.node, file.handle)).partition(b"|")
            assert rest == name * REPEATS
            life.node.close(file.handle)
            assert name.split(b"/")[0].decode() == self.names[path].split("/")[0]
            served[name.decode()] += 1

    def once(self) -> dict[str, int]:
        """What an epoch serves."""
        return dict.fromkeys(self.names, 1)


@contextmanager
def dataset_at(root: Path) -> Iterator[Dataset]:
    for label, count in CLASSES.items():
        (root / label).mkdir(parents=True)
        for number in range(count):
            name = f"{label}/{number:02}.jpg"
            (root / name).write_bytes(f"{name}|".encode() + name.encode() * REPEATS)
    with opened(root) as fd:
        catalog = build_catalog(read_tree(fd), classes="dir")
        cells = build_cells(catalog.class_of, catalog.sample_bytes, chunk_size=4, seed=0)
        yield Dataset(catalog, cells, fd, None, None)


@asynccontextmanager
async def job_at(
    folder: Path, dataset: Dataset, policy: str = "pool", *, patience_s: float = PATIENCE_S
) -> AsyncIterator[Job]:
    """A job whose nodes keep their files in ``folder``."""
    with trio.fail_after(patience_s):
        async with trio.open_nursery() as nursery:
            yield Job(folder, dataset, policy, nursery)
            nursery.cancel_scope.cancel()


async def ended(lives: Sequence[Life]) -> None:
    for life in lives:
        await life.end()


async def all_ready(lives: Sequence[Life]) -> None:
    await until_in_trio(lambda: all(life.is_with(len(lives) - 1) for life in lives))
