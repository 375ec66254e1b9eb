"""The pool on a real mount: it decides like its core alone, stays within memory, and reads each chunk once."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from machine import Machine
from t4_memory import highest_rss_bytes, rss_bytes

from redoxfs.chunks import build_cells
from redoxfs.dataset import build_catalog, read_tree
from redoxfs.node import plan_pool
from redoxfs.protocol import Served

CLASSES, FILES, FILE_BYTES = 10, 100, 40_000
CHUNK_SIZE = 8
SEED = 11
EPOCHS = 2

OVER_MEMORY_BYTES = 48 << 20
"""The daemon's memory beyond --memory, once it is up: pages of requests, threads, memory kept for the next files."""

READER = """
import random, sys
paths = [line.rstrip("\\n") for line in sys.stdin]
random.Random(sys.argv[1]).shuffle(paths)
for path in paths:
    with open(path, "rb") as file:
        file.read()
"""


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
    fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
    try:
        catalog = build_catalog(read_tree(fd), classes="dir")
    finally:
        os.close(fd)
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


@pytest.mark.parametrize("packed", [False, True], ids=["directory", "packed"])
def test_the_daemon_stays_within_memory_over_epochs(machine: Machine, source: Path, packed: bool) -> None:
    served, options = source, ["--classes", "dir"]
    if packed:
        served, options = machine.folder / "packed", []
        machine.ok("pack", source, served, "--classes", "dir")
    memory = 16 << 20
    machine.ok("mount", served, machine.mnt, *options, "--memory", str(memory))
    pid = machine.pid()
    before = rss_bytes(pid)
    paths = "\n".join(str(path) for path in sorted(machine.mnt.rglob("*.jpg")))
    readers = [
        subprocess.Popen([sys.executable, "-c", READER, str(number)], stdin=subprocess.PIPE, text=True)
        for number in range(4)
    ]
    try:
        for reader in readers:
            assert reader.stdin is not None
            reader.stdin.write(paths)
            reader.stdin.close()
        for reader in readers:
            # Every look counts, so this is no wait for one event.
            while _runs(reader):
                assert machine.stats()["memory_used_bytes"] <= memory
        assert all(reader.returncode == 0 for reader in readers)
    finally:
        for reader in readers:
            reader.kill()
            reader.wait()
    assert highest_rss_bytes(pid) <= before + memory + OVER_MEMORY_BYTES
    assert machine.stats()["bytes_served"] > 5 * memory, "many times the size of memory was served"
    machine.ok("umount", machine.mnt)


def _runs(reader: "subprocess.Popen[str]") -> bool:
    """Whether the reader runs, after a pause: without one the checks would take a core from the daemon."""
    try:
        reader.wait(0.05)
    except subprocess.TimeoutExpired:
        return True
    return False
