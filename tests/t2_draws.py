"""Draws of a node: what a sampler drew waits in memory, outlives a daemon, and comes once."""

import base64
import itertools
import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from packs import Options, catalog_of
from patience import PATIENCE_S
from stores import HeldStore, NoKernel, all_arrived, opened_by, read_from
from t2_recover import Killed, Mount

from redoxfs.chunks import build_cells
from redoxfs.dataset import Catalog, fingerprint
from redoxfs.node import ExpectedOpen, Node, OpenFile, Plan, plan_pool, pool_memory_for
from redoxfs.node.drawing import FILES, SAMPLERS, Blocks, Drawing

SPLITS = {"train": 48, "val": 16}
SIZE = 1000
TOKEN = 7


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    root = tmp_path_factory.mktemp("data")
    for split, count in SPLITS.items():
        (root / split).mkdir()
        for number in range(count):
            (root / split / f"{number}.jpg").write_bytes(b"x" * SIZE)
    (root / "train/labels.csv").write_text("of no sample")
    return catalog_of(root, Options(classes="sampler"))


def plan_of(catalog: Catalog, samples: int) -> Plan:
    """With memory for so many samples."""
    cells = build_cells(
        catalog.class_of, catalog.sample_bytes, chunk_size=4, seed=0, tree_of_class=catalog.tree_of_class
    )
    return plan_pool(catalog, cells, memory_bytes=samples * SIZE, seed=0)


@asynccontextmanager
async def running(catalog: Catalog, store: HeldStore, samples: int = 40) -> AsyncIterator[tuple[Node, Drawing]]:
    node = Node(catalog, plan_of(catalog, samples), store, timeout_s=PATIENCE_S, kernel=NoKernel())
    node.start()
    try:
        with trio.fail_after(PATIENCE_S):
            yield node, Drawing(node, catalog, fingerprint(catalog), seed=1)
    finally:
        store.gate.set()
        node.stop()


async def draw(drawing: Drawing, number: int, count: int = 1, classes: Sequence[int] = (0,)) -> list[int]:
    identity = (await drawing.samples(b""))["identity"]
    return samples_in(await drawing.draw(json.dumps([TOKEN, number, count, list(classes), identity]).encode()))


def samples_in(answer: Any) -> list[int]:
    return np.frombuffer(base64.b64decode(answer["samples"]), "<i4").tolist()


async def whole(node: Node, catalog: Catalog, sample: int) -> int:
    """Open the file of a sample, read and close it; the sample that it has."""
    opened = await opened_by(node, int(catalog.members[sample]), 100)
    read = await read_from(node, opened.handle)
    node.close(opened.handle)
    return int(read.rstrip(b"."))


@pytest.mark.parametrize("memory_samples", [40, 200])
async def test_epochs_of_draws_are_exact_and_read_each_sample_once(catalog: Catalog, memory_samples: int) -> None:
    """With memory for all samples too, where they are kept."""
    store = HeldStore()
    async with running(catalog, store, memory_samples) as (node, drawing):
        numbers = itertools.count()
        for _ in range(3):
            served: list[int] = []
            while len(served) < SPLITS["train"]:
                for sample in await draw(drawing, next(numbers)):
                    assert await whole(node, catalog, sample) == sample
                    served.append(sample)
            assert sorted(served) == list(range(SPLITS["train"]))
        stats = node.stats()
        assert stats["exact"] == stats["opens"] == 3 * SPLITS["train"]
        assert (stats["redirected"], stats["samples_reread"], stats["errors"]) == (0, 0, 0)
        assert stats["memory_used_bytes"] <= stats["memory_limit_bytes"]
        assert stats["in_closed_files"] == 1, "the one that the thread holds"
        if memory_samples == 200:
            assert set(Counter(store.reads_made).values()) == {1}


async def test_what_was_drawn_waits_in_memory(catalog: Catalog) -> None:
    store = HeldStore()
    async with running(catalog, store) as (node, drawing):
        (sample,) = await draw(drawing, 1)
        await all_arrived(node)
        reads = store.reads_made.count(sample)
        assert reads == 1
        assert isinstance(node.open(int(catalog.members[sample]), 100), OpenFile)
        assert store.reads_made.count(sample) == reads


async def test_what_does_not_fit_is_read_again_at_its_open_and_counted(catalog: Catalog) -> None:
    store = HeldStore()
    async with running(catalog, store, samples=20) as (node, drawing):
        drawn = []
        for number in range(SPLITS["train"]):
            drawn += await draw(drawing, number)
            await trio.testing.wait_all_tasks_blocked()
            assert node.memory.claims_bytes <= node.plan.claims_bytes
        assert sorted(drawn) == list(range(SPLITS["train"]))
        await all_arrived(node)
        assert [await whole(node, catalog, sample) for sample in drawn] == drawn
        room = node.plan.claims_bytes // SIZE
        assert SPLITS["train"] > node.stats()["samples_reread"] >= SPLITS["train"] - room


async def test_what_was_not_drawn_is_read_for_its_open(catalog: Catalog) -> None:
    async with running(catalog, HeldStore()) as (node, _):
        assert await whole(node, catalog, 5) == 5
        assert await whole(node, catalog, SPLITS["train"] + 3) == SPLITS["train"] + 3
        assert node.given == 0


async def test_a_draw_does_not_wait_for_storage(catalog: Catalog) -> None:
    store = HeldStore()
    store.gate.clear()
    async with running(catalog, store) as (node, drawing):
        (sample,) = await draw(drawing, 1)
        opening = node.open(int(catalog.members[sample]), 100)
        assert isinstance(opening, ExpectedOpen)
        store.gate.set()
        node.close((await opening).handle)


async def test_the_same_block_has_the_same_samples(catalog: Catalog) -> None:
    async with running(catalog, HeldStore()) as (node, drawing):
        first = await draw(drawing, 1, 2)
        assert await draw(drawing, 1, 2) == first
        assert node.given == len(first)
        assert await draw(drawing, 2, 2) != first
        assert node.given > len(first)


def test_only_the_last_block_of_the_last_samplers_is_kept() -> None:
    blocks = Blocks()
    for token in range(SAMPLERS + 1):
        for number in (1, 2):
            blocks.add(token, number, token)
    assert blocks.find(0, 2) is None
    assert blocks.find(1, 1) is None
    assert blocks.find(1, 2) == [1]
    assert len([*blocks.rows()]) == SAMPLERS


async def test_several_classes_end_their_laps_together(catalog: Catalog) -> None:
    async with running(catalog, HeldStore()) as (node, drawing):
        numbers = itertools.count()
        # Turns that no drawing counted.
        before = [node.draw(SPLITS["train"], 1, number) for number in range(3)]
        drawn = [*before]
        epochs = 3
        while len(drawn) < epochs * sum(SPLITS.values()):
            drawn += await draw(drawing, next(numbers), classes=(0, 1))
        for epoch in range(epochs):
            one = drawn[epoch * sum(SPLITS.values()) :][: sum(SPLITS.values())]
            assert set(Counter(one).values()) == {1}
        is_val = np.array(drawn[3 : sum(SPLITS.values())]) >= SPLITS["train"]
        assert is_val[: len(is_val) // 2].any()
        assert is_val[len(is_val) // 2 :].any(), "they are mixed"


@pytest.mark.parametrize("memory_samples", [40, 200])
async def test_ranks_end_a_lap_that_has_samples_left_once(catalog: Catalog, memory_samples: int) -> None:
    """As after an epoch that left some out, and one that was broken off early, with or without memory for all."""
    async with running(catalog, HeldStore(), memory_samples) as (node, drawing):
        identity = (await drawing.samples(b""))["identity"]
        numbers, lap, files = itertools.count(), 0, sum(SPLITS.values())
        for epoch, count in enumerate([files - 1, 10, files, 30, files, files]):
            served: list[int] = []
            ended = dict.fromkeys(range(3), lap)
            for rank in itertools.cycle(ended):
                asked = [rank, next(numbers), 1, [0, 1], identity, ended[rank]]
                answer = await drawing.draw(json.dumps(asked).encode())
                ended[rank], lap = 0, answer["lap"]
                served += samples_in(answer)
                assert await whole(node, catalog, served[-1]) == served[-1]
                if len(served) == count:
                    break
            assert len(set(served)) == count, epoch
            assert lap == epoch + 1
            laps = node.stats()["laps"].values()
            assert ({each["number"] for each in laps}, sum(each["turns"] for each in laps)) == ({lap}, count)
        stats = node.stats()
        assert stats["samples_reread"] == stats["errors"] == 0
        assert stats["memory_used_bytes"] <= stats["memory_limit_bytes"]


async def test_the_files_of_a_dataset_are_found_by_inode(catalog: Catalog) -> None:
    async with running(catalog, HeldStore()) as (_, drawing):
        entries = [int(catalog.members[sample]) for sample in (50, 0)]
        label = next(entry for entry in range(len(catalog.tree)) if catalog.tree.path(entry).endswith(b"labels.csv"))
        inodes = [*(entry + 1 for entry in entries), label + 1, 0, 1 << 40]
        answer = await drawing.samples(np.array(inodes, "<i8").tobytes())
        assert samples_in(answer) == [50, 0, -1, -1, -1]
        assert (answer["classes"], answer["of"]) == ([0, 1], sum(SPLITS.values()))
        with pytest.raises(ValueError, match="64 bits"):
            await drawing.samples(b"1234")
        with pytest.raises(ValueError, match="at most 50,000 files"):
            await drawing.samples(bytes(8 * (FILES + 1)))


@pytest.mark.parametrize(
    "asked",
    [
        "",
        "[]",
        "[1, 2]",
        "[" * 100_000,
        "[1, 2, 3, [], ID]",
        "[1, 2, 0, [0], ID]",
        "[1, 2, 3, [2], ID]",
        "[1, 2, 3, [-1], ID]",
        "[1, 2, 3, [0, 0, 1], ID]",
        "[-1, 2, 3, [0], ID]",
        '[1, 2, "3", [0], ID]',
    ],
    ids=lambda asked: asked[:20],
)
async def test_a_draw_that_makes_no_sense_is_refused(catalog: Catalog, asked: str) -> None:
    async with running(catalog, HeldStore()) as (node, drawing):
        identity = (await drawing.samples(b""))["identity"]
        with pytest.raises(ValueError, match="expected a token"):
            await drawing.draw(asked.replace("ID", json.dumps(identity)).encode())
        with pytest.raises(ValueError, match="the files of the mount have changed"):
            await drawing.draw(b'[1, 2, 3, [9], "other"]')
        assert node.given == 0


async def test_other_mounts_serve_no_sampler(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").write_bytes(b"x")
    catalog = catalog_of(tmp_path, Options(classes="any"))
    async with running(catalog, HeldStore()) as (_, drawing):
        with pytest.raises(ValueError, match="mount with --classes sampler"):
            await draw(drawing, 1)


def test_memory_for_a_share_holds_it_beside_what_is_drawn(catalog: Catalog) -> None:
    cells = build_cells(catalog.class_of, catalog.sample_bytes, chunk_size=4, seed=0)
    for share in (0.25, 0.5, 1.0):
        memory = pool_memory_for(catalog, cells, share)
        assert plan_pool(catalog, cells, memory_bytes=memory, seed=0).held_share == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 20, 45])
async def test_draws_outlive_a_daemon(catalog: Catalog, steps: int) -> None:
    """Killed every ``steps`` steps: each sample comes once, and a block that was asked for again is the same."""
    lives = itertools.chain([50.0], (float(steps + 4 * number) for number in itertools.count()))

    def make(kernel: Any, journal: Any) -> Node:
        return Node(catalog, plan_of(catalog, 40), HeldStore(), timeout_s=PATIENCE_S, kernel=kernel, journal=journal)

    async def _drawn_again(mount: Mount, number: int) -> list[int]:
        """As a sampler: the same block, until there is an answer."""
        while True:
            try:
                return await draw(Drawing(mount.node, catalog, fingerprint(catalog)), number, 3)
            except Killed:
                await mount.restart()

    mount = Mount(make, lives)
    drawn: list[int] = []
    number = 0
    while len(drawn) < 2 * SPLITS["train"]:
        number += 1
        drawn += await _drawn_again(mount, number)
    assert mount.deaths > 3
    for epoch in range(2):
        one = drawn[epoch * SPLITS["train"] :][: SPLITS["train"]]
        assert set(Counter(one).values()) == {1}
    mount._life.steps = math.inf
    assert mount.node.given == len(drawn)
    mount.end()
