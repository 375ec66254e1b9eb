"""The pool on a real mount: it decides like its core alone, and reads each chunk once."""

import os
import random
from pathlib import Path

import pytest
from machine import Machine
from packs import opened

from redoxfs.chunks import build_cells
from redoxfs.dataset import build_catalog, read_tree
from redoxfs.node import plan_pool
from redoxfs.protocol import Served

CLASSES, FILES, FILE_BYTES = 10, 100, 40_000
CHUNK_SIZE = 8
SEED = 11
EPOCHS = 2


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    own = random.Random(0)
    for label in range(CLASSES):
        (root / f"kind{label:02}").mkdir(parents=True)
        for number in range(FILES):
            size = own.randrange(FILE_BYTES // 2, FILE_BYTES)
            (root / f"kind{label:02}" / f"{label:02}-{number:04}.jpg").write_bytes(bytes([label]) * size)
    return root


def test_a_mount_decides_like_the_core_alone(machine: Machine, source: Path) -> None:
    with opened(source) as fd:
        catalog = build_catalog(read_tree(fd), classes="dir")
    trees = catalog.tree_of_class
    cells = build_cells(catalog.class_of, catalog.sample_bytes, chunk_size=CHUNK_SIZE, seed=SEED, tree_of_class=trees)
    memory = int(catalog.sample_bytes.sum()) // 10
    core = plan_pool(catalog, cells, memory_bytes=memory, seed=SEED).policy
    options = ["--classes", "dir", "--chunk-size", str(CHUNK_SIZE), "--seed", str(SEED), "--memory", str(memory)]
    machine.ok("mount", source, machine.mnt, *options)
    order = random.Random(0)
    loads = samples = demanded = 0
    for epoch in range(EPOCHS):
        asked = order.sample(range(len(catalog.class_of)), len(catalog.class_of))
        for sample in asked:
            served = core.request(sample)
            assert isinstance(served, Served)
            loads += len(served.loads)
            samples += sum(len(load.samples) for load in served.loads)
            demanded += served.is_demanded
            data = (machine.mnt / os.fsdecode(catalog.tree.path(int(catalog.members[sample])))).read_bytes()
            answer = int(catalog.members[served.sample])
            assert (len(data), data[:1]) == (catalog.tree.size[answer], bytes([catalog.class_of[sample]]))
        assert machine.stats()["lap"] == {".": epoch + 1}
    stats = machine.stats()
    assert (stats["chunk_loads"], stats["samples_loaded"], stats["demand_loads"]) == (loads, samples, demanded)
    chunks = stats["chunks"]
    assert EPOCHS * chunks <= loads <= (EPOCHS + 0.2) * chunks, "each chunk once an epoch, and some ahead"
    machine.ok("umount", machine.mnt)
