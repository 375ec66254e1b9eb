"""The memory that inspect names for several nodes is what they then need, and the limit has room for all of it."""

import json
import os
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from packs import Options, catalog_of, opened

from redoxfs.chunks import Cells, DirectoryStore, build_cells
from redoxfs.cli import main
from redoxfs.cli.arguments import parse
from redoxfs.dataset import Catalog, build_catalog, read_tree
from redoxfs.launch.members import remote_memory_of
from redoxfs.launch.options import MountOptions, SharingOptions
from redoxfs.launch.own_memory import HELD_FILE_BYTES, PoolOfNode, limit_for
from redoxfs.launch.path_status import path_status
from redoxfs.launch.sizes import format_needed, parse_size
from redoxfs.launch.source import Opening, open_dataset
from redoxfs.node import Share, plan_pool
from redoxfs.node.memory import Memory

MIB = 1 << 20
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> tuple[Catalog, Cells]:
    root = tmp_path_factory.mktemp("data")
    for label in range(4):
        (root / f"class{label}").mkdir()
        for number in range(500):
            (root / f"class{label}" / f"{label}-{number}.jpg").write_bytes(b"x" * (50 + number % 200))
    catalog = catalog_of(root)
    return catalog, build_cells(catalog.class_of, catalog.sample_bytes, chunk_size=4, seed=1)


@pytest.mark.parametrize("nodes", [2, 3, 8])
@pytest.mark.parametrize("share", [0.10, 0.25, 0.5, 1.0])
def test_nodes_with_the_memory_of_inspect_hold_the_share_and_with_less_do_not(
    dataset: tuple[Catalog, Cells], nodes: int, share: float
) -> None:
    catalog, cells = dataset
    memory = PoolOfNode(catalog, cells, nodes).memory_for(share)

    def held(memory_bytes: int) -> float:
        """By all nodes together."""
        of_remote = remote_memory_of(SharingOptions(), memory_bytes)
        held_bytes = 0
        for node in range(nodes):
            asked = Share(node, nodes, of_remote, True, None, timeout_s=1.0, exchange=0.0, window=1, needs_less=True)
            held_bytes += plan_pool(catalog, cells, memory_bytes=memory_bytes, seed=0, share=asked).resident_bytes
        return held_bytes

    total = int(catalog.sample_bytes.sum())
    assert held(memory) >= share * total
    assert held(memory * 9 // 10) < share * total


@pytest.mark.parametrize("nodes", [2, 8])
@pytest.mark.parametrize("share", [0.0, 0.01, 1.0])
def test_each_node_takes_the_memory_of_inspect(tmp_path: Path, nodes: int, share: float) -> None:
    """Also where that is the least, with which a node has a chunk, some open files, and samples from other nodes."""
    for number in range(100):
        (tmp_path / f"{number}.jpg").write_bytes(b"x" * (30 if number % 25 else 1000))
    catalog = catalog_of(tmp_path, Options(classes="any"))
    cells = build_cells(catalog.class_of, catalog.sample_bytes, chunk_size=4, seed=0)
    memory = PoolOfNode(catalog, cells, nodes).memory_for(share)
    of_remote = remote_memory_of(SharingOptions(), memory)
    for node in range(nodes):
        asked = Share(node, nodes, of_remote, True, None, timeout_s=1.0, exchange=0.0, window=1, needs_less=True)
        plan_pool(catalog, cells, memory_bytes=memory, seed=0, share=asked)


def test_the_memory_for_samples_of_a_few_bytes_is_found(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"{number}.jpg").write_bytes(b"x" * (1 + number % 2))
    assert main(["inspect", str(tmp_path), "--classes", "any", "--nodes", "4"]) == 0


@pytest.mark.parametrize("options", [[], ["--policy", "slot"], ["--nodes", "2"]])
def test_the_memory_for_empty_files_is_one_that_the_option_takes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], options: list[str]
) -> None:
    for number in range(8):
        (tmp_path / f"{number}.jpg").touch()
    command = ["inspect", str(tmp_path), "--classes", "any", "--json", *options]
    assert main(command) == 0
    needed = json.loads(capfd.readouterr().out)["memory_for"]
    for size in set(needed.values()):
        assert main([*command, "--memory", format_needed(size)]) == 0
        assert json.loads(capfd.readouterr().out)["memory_suffices"]


def test_a_limit_is_the_sum_that_the_promises_name() -> None:
    """SEMANTICS.md, section "Memory": the program, 130 bytes a file, 800 a file in memory, a tenth, and the cache."""
    assert limit_for(1000 * MIB, 0, 1e5) == 1000 * MIB + 130_000_000 + 100 * MIB
    large, small = (limit_for(1000 * MIB, 1_000_000, size) - limit_for(1000 * MIB, 0, 1.0) for size in (1e12, 10.0))
    assert large == pytest.approx(130_000_000, abs=10)
    assert small == 130_000_000 + 800_000_000
    assert limit_for(MIB, 1_000_000, MIB / 2) - limit_for(MIB, 1_000_000, 1e12) == pytest.approx(1600, abs=10)
    assert limit_for(0, 1000, 0.0) == 130_000_000 + 130_000 + 800_000
    of_cache = limit_for(1000 * MIB, 1_000_000, 10.0, caches=True) - limit_for(1000 * MIB, 1_000_000, 10.0)
    assert of_cache == 30_000_000 + 16 * MIB + 125 * MIB
    assert limit_for(MIB, 0, 1e5, caches=True) - limit_for(MIB, 0, 1e5) == 48 * MIB
    assert limit_for(9000 * MIB, 0, 1e5, caches=True) - limit_for(9000 * MIB, 0, 1e5) == 272 * MIB


def test_what_is_known_of_a_file_in_memory_takes_no_more_than_the_limit_counts(tmp_path: Path) -> None:
    files = 1000
    for number in range(files):
        (tmp_path / f"{number}.jpg").write_bytes(b"x")
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        store = DirectoryStore(build_catalog(read_tree(fd), classes="any"), fd)
        memory = Memory(MIB, lambda _: None)
        tracemalloc.start()
        for content in memory.expect(range(files)):
            # As `Supply` does: a store describes a read for each sample.
            (content.read,) = store.reads(0, (content.sample,))
            (payload,) = content.read.run()
            memory.arrive(content, payload)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        os.close(fd)
    assert memory.counts()["in_slots"] == files
    # Buffers add a header, and Python what it cannot use of its arenas.
    assert 300 < taken / files < 0.75 * HELD_FILE_BYTES


def test_inspect_names_the_memory_of_each_node(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for number in range(40):
        (tmp_path / f"{number}.jpg").write_bytes(b"x" * 100)
    assert main(["inspect", str(tmp_path), "--classes", "any", "--nodes", "3"]) == 0
    shown = capfd.readouterr().out
    assert "each of 3 nodes: least " in shown
    assert "read an epoch" in shown
    assert "chunk mates" not in shown
    assert "with --cache" in shown
    assert main(["inspect", str(tmp_path), "--classes", "any", "--json"]) == 0
    facts = json.loads(capfd.readouterr().out)
    for share, size in facts["memory_for"].items():
        assert facts["limit_for"][share] == limit_for(size, 40, 100.0)
        in_cache = facts["memory_with_cache_for"][share]
        assert in_cache >= size
        assert facts["limit_with_cache_for"][share] == limit_for(in_cache, 40, 100.0, caches=True)
    assert main(["inspect", str(tmp_path), "--classes", "any", "--nodes", "3", "--policy", "slot"]) == 2
    assert capfd.readouterr().err.splitlines()[-1].endswith("for slot: redoxfs simulate --help")


@pytest.mark.parametrize("options", [[], ["--chunk-size", "4"], ["--policy", "slot"], ["--nodes", "2"]])
def test_inspect_describes_the_mount_with_a_cache(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], options: list[str]
) -> None:
    root, folder = tmp_path / "data", tmp_path / "cache"
    root.mkdir()
    for number in range(400):
        (root / f"{number}.jpg").write_bytes(b"x" * 2800)

    def facts(*more: str) -> dict[str, Any]:
        assert main(["inspect", str(root), "--classes", "any", "--json", *options, *more]) == 0
        return json.loads(capfd.readouterr().out)

    plain, cached = facts(), facts("--cache", str(folder))
    assert not folder.exists()
    with opened(root) as fd:
        command = parse(
            ["mount", str(root), "--classes", "any", "--cache", str(folder)] + options * ("2" not in options)
        )
        mounting: MountOptions = command.options
        opening = Opening(
            path_status(str(root), 60.0), fd, mounting.dataset, mounting.memory, 60.0, False, is_cached=True
        )
        mounted = open_dataset(opening)
    assert cached["chunk_size"] == plain["chunk_size_with_cache"] == mounted.chunk_size
    assert cached["chunks"] == len(mounted.cells.cells)
    assert cached["memory_for"] == plain["memory_with_cache_for"]
    assert cached["limit_for"] == plain["limit_with_cache_for"]
    assert (cached["memory_for"] == plain["memory_for"]) == ("--chunk-size" in options or "--policy" in options)


def test_the_variance_of_chunks_of_one_class_counts_the_samples_that_are_there(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for number in range(4):
            (tmp_path / label / f"{number}.jpg").write_bytes(b"x" * 100)
    assert main(["inspect", str(tmp_path), "--classes", "dir", "--chunk-size", "64"]) == 0
    told = " ".join(capfd.readouterr().out.split())
    assert "chunks │ 4, of up to 64 samples each" in told
    assert "2 for chunks of one class" in told


def test_the_examples_of_four_nodes_apply_the_rule() -> None:
    """docs/slurm.md and docs/kubernetes.md: 1.28 million files, eight ranks of 15 GiB on each node."""
    slurm, pods = ((ROOT / "docs" / name).read_text() for name in ("slurm.md", "kubernetes.md"))

    def figures(row: str) -> dict[str, str]:
        (line,) = re.findall(rf"^    {row} +each of 4 nodes: (.*)$", slurm, re.MULTILINE)
        return dict(each.split() for each in line.split(", ")[1:])

    memory, limit = figures("--memory needed"), figures("limit needed")
    assert memory.keys() == limit.keys() == {"10%", "25%", "50%", "all"}
    for share, text in memory.items():
        of_share = limit_for(parse_size(text, 0), 1_280_000, 114_000.0)
        assert parse_size(limit[share], 0) == pytest.approx(of_share, abs=103 * MIB)
    lines = re.search(r"\n((?:    #SBATCH .*\n)+\n    (OPTIONS=.*)\n\n    (srun .*)\n)", slurm)
    assert lines is not None
    (of_node,) = re.findall(r"--mem=(\S+)", lines[1])
    assert 0 <= parse_size(of_node, 0) - parse_size(limit["25%"], 0) - parse_size("120GiB", 0) < 1024 * MIB
    script = (ROOT / "mount/slurm/train.sbatch").read_text()
    for line, added in ((lines[2], f" --memory {memory['25%']}"), (lines[3], "--cpus-per-task=12 ")):
        assert line.count(added) == 1
        assert f"\n{line.replace(added, '')}\n" in script
    assert f"limits: {{memory: {limit['25%']}}}".replace("GiB", "Gi") in pods
    assert f"volumeAttributes: {{memory: {memory['25%']}}}" in pods
