"""Several real nodes on one machine run a data-parallel job: labels are right, and every sample comes once an epoch."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from certificates import Authority
from images import make_images, path_in
from machine import Machine
from patience import PATIENCE_S, until
from ports import reserve, reserve_addresses

from redoxfs.packed import load_index

pytest.importorskip("torch")

EPOCHS = 2
SAMPLES = 300
PAIRS = 60
# WordNet ids are proof for --classes auto.
CLASSES = {"n00000001": 1, "n00000005": 5, "n00000024": 24, "n00000060": 60}
CLASSES |= {f"n0000007{i}": 70 for i in range(3)}
SAMPLER = ("--sampler", "torch-distributed,seed=7")
MEMORY = ("--memory", "6MiB")
# No node is lost in these tests, and a slow one must not be taken for lost.
PATIENT = ("--peer-timeout", "3600")
SLOT = ("--policy", "slot", "--chunk-size", "8")

Pairs = list[tuple[str, str]]


def make_source(root: Path, *, more: int = 0) -> Path:
    make_images(root, CLASSES | {"n00000072": 70 + more}, typical_bytes=4_000)
    return root


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_source(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_source(tmp_path_factory.mktemp("images"), more=1)


@pytest.fixture(scope="module")
def packed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    dst = tmp_path_factory.mktemp("packed") / "dst"
    command = [sys.executable, "-m", "redoxfs", "pack", str(source), str(dst), "--chunk-size", "8"]
    subprocess.run(command, check=True, capture_output=True)
    return dst


def up(machine: Machine, nodes: int, source: Path, *options: str) -> None:
    machine.mount_nodes(source, reserve_addresses(nodes), *MEMORY, *PATIENT, *options)


def train(machine: Machine, nodes: int, meet: str = "") -> list[list[Pairs]]:
    """The files that each rank got, by epoch."""
    where = meet or machine.folder / "meet"
    words = (Path(__file__).with_name("rank.py"), machine.mnt, nodes, EPOCHS, where, machine.folder)
    with subprocess.Popen(
        [sys.executable, *map(str, words)],
        env=machine.environment | {"GLOO_SOCKET_IFNAME": "lo"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as ranks:
        try:
            _, errors = ranks.communicate(timeout=2 * PATIENCE_S)
        except BaseException:
            # Kill the ranks and their workers too: they are in its session.
            os.killpg(ranks.pid, signal.SIGKILL)
            raise
    assert ranks.returncode == 0, errors
    outs = [machine.folder / f"rank{rank}.jsonl" for rank in range(nodes)]
    return [[[(a, s) for a, s in json.loads(line)] for line in out.read_text().splitlines()] for out in outs]


def check_labels(given: list[list[Pairs]]) -> None:
    for epochs in given:
        for pairs in epochs:
            for asked, served in pairs:
                assert asked.split("/")[1] == served.split("/")[1], f"{asked} gave {served}"


def in_epoch(given: list[list[Pairs]], epoch: int) -> Counter[str]:
    return Counter(served for epochs in given for _, served in epochs[epoch])


def check_clean(machine: Machine, nodes: int) -> list[dict[str, int]]:
    """End a run and check that there was no fault; return the nodes' counters."""
    told = json.loads(machine.ok("cluster", "status", machine.mnt, "--json").stdout)
    assert len(told["nodes"]) == nodes
    for stats in told["nodes"]:
        assert stats["errors"] == 0, machine.log()
        assert stats["degraded"] == 0
        assert stats["memory_used_bytes"] <= stats["memory_limit_bytes"]
        assert [peer["state"] for peer in stats["peers"]] == ["ready"] * (nodes - 1)
    machine.ok("cluster", "down", machine.mnt)
    assert machine.nothing_is_left()
    assert not list(machine.mnt.iterdir())
    return told["nodes"]


@pytest.mark.parametrize(
    ("store", "options"),
    [
        ("packed", ("--exchange", "0.3")),
        ("directory", ("--storage", "local")),
        ("packed", (*SLOT, "--prefetch-window", "1")),
    ],
)
def test_ranks_that_meet_between_epochs_get_each_sample_once_an_epoch(
    machine: Machine, source: Path, packed: Path, store: str, options: tuple[str, ...]
) -> None:
    up(machine, 3, packed if store == "packed" else source, *options)
    given = train(machine, 3)
    check_labels(given)
    for epoch in range(EPOCHS):
        counts = in_epoch(given, epoch)
        assert counts == dict.fromkeys(counts, 1), f"epoch {epoch}: a sample came twice"
        assert len(counts) == SAMPLES, f"epoch {epoch}: a sample did not come"
    check_requests(check_clean(machine, 3), EPOCHS * SAMPLES, options)


def check_requests(counted: list[dict[str, int]], total: int, options: tuple[str, ...]) -> None:
    """That ``total`` opens were answered by the nodes that should answer them."""
    assert sum(stats["opens"] for stats in counted) == total
    remote = sum(stats["remote_samples"] for stats in counted)
    requests = sum(stats["remote_requests"] for stats in counted)
    if SLOT[1] in options:
        # Every virtual chunk has one home, and all nodes request samples of all of them equally.
        assert 0.5 < remote / total < 0.95
        assert sum(stats["prefetched"] for stats in counted) + requests >= remote
        if SAMPLER[0] in options:
            assert requests < remote / 2
        else:
            assert requests == remote
    elif "--exchange" in options:
        assert 0.2 < remote / total < 0.6
    else:
        assert remote < total / 3
    assert all(stats["remote_bytes_in"] > 0 for stats in counted if stats["remote_samples"])


@pytest.mark.parametrize(("nodes", "options"), [(5, ()), (3, (*SLOT, *SAMPLER))])
def test_an_uneven_dataset_repeats_as_many_samples_as_the_sampler_pads(
    machine: Machine, uneven: Path, nodes: int, options: tuple[str, ...]
) -> None:
    up(machine, nodes, uneven, *options)
    given = train(machine, nodes)
    check_labels(given)
    samples, padded = SAMPLES + 1, nodes * -(-(SAMPLES + 1) // nodes)
    first = in_epoch(given, 0)
    assert first.total() == padded
    assert len(first) == samples
    assert sum(count - 1 for count in first.values()) == padded - samples
    turns: Counter[str] = sum((in_epoch(given, epoch) for epoch in range(EPOCHS)), Counter())
    assert set(turns.values()) <= {EPOCHS, EPOCHS + 1}
    check_requests(check_clean(machine, nodes), EPOCHS * padded, options)


@pytest.mark.parametrize(("options", "meet"), [((), "in turn"), ((*SLOT, *SAMPLER), "-")])
def test_ranks_that_never_meet_get_exact_laps_but_for_what_passes_hold_back(
    machine: Machine, source: Path, options: tuple[str, ...], meet: str
) -> None:
    up(machine, 3, source, *options)
    given = train(machine, 3, meet)
    check_labels(given)
    turns: Counter[str] = sum((in_epoch(given, epoch) for epoch in range(EPOCHS)), Counter())
    held_back = sum(stats["samples_held_back"] for stats in check_clean(machine, 3))
    # A sample that a lap began without may have no turn in it. Each other one has.
    assert sum(max(0, turns[sample] - EPOCHS) for sample in turns) <= held_back
    assert turns.total() == EPOCHS * SAMPLES


@pytest.mark.parametrize("options", [(), SLOT])
def test_a_stat_gives_the_size_of_the_next_read_from_any_node(
    machine: Machine, source: Path, options: tuple[str, ...]
) -> None:
    up(machine, 3, source, *options)
    root = machine.mnt / "1"
    paths = sorted(root.glob("train/*/*"))
    sizes = []
    for path in paths:
        told = path.stat().st_size
        with open(path, "rb") as file:
            assert os.fstat(file.fileno()).st_size == told
            assert len(file.read()) == told
        sizes.append(told)
    # One node that requests every file gets every file, most of them from other nodes.
    assert sorted(sizes) == sorted(path.stat().st_size for path in (source / "train").glob("*/*"))
    stats = machine.stats(root)
    assert stats["remote_samples"] > len(paths) / 2
    assert stats["errors"] == 0
    walk = sum(path.stat().st_size for path in root.glob("train/*/*"))
    assert walk > 0


@pytest.mark.parametrize("options", [(), SLOT])
def test_the_files_of_a_group_arrive_together_from_any_node(
    machine: Machine, tmp_path: Path, options: tuple[str, ...]
) -> None:
    root = tmp_path / "pairs"
    for number in range(PAIRS):
        folder = root / f"class{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        for kind, size in (("jpg", 3000 + 7 * number), ("txt", 100 + number)):
            name = f"class{number % 3}/{number:03}"
            (folder / f"{number:03}.{kind}").write_bytes(name.encode().ljust(size))
    up(machine, 3, root, "--classes", "dir", "--groups", "stem", *options)
    for epoch in range(2):
        seen: Counter[str] = Counter()
        for node in range(3):
            for number in range(node, PAIRS, 3):
                path = machine.mnt / str(node) / f"class{number % 3}/{number:03}"
                image, text = (path.with_suffix(suffix).read_bytes().split()[0] for suffix in (".jpg", ".txt"))
                assert image == text, f"epoch {epoch}: an image and the text of another"
                assert image.startswith(path.parent.name.encode())
                seen[image.decode()] += 1
        assert seen == dict.fromkeys(seen, 1)
        assert len(seen) == PAIRS
    check_clean(machine, 3)


def test_a_supplied_order_is_prefetched(machine: Machine, source: Path) -> None:
    up(machine, 3, source, *SLOT, "--prefetch-window", "100")
    paths = [path.relative_to(source) for path in sorted(source.glob("train/*/*"))]
    requests = []
    for epoch in range(2):
        random.Random(epoch).shuffle(paths)
        for node in range(3):
            order = machine.folder / f"order{node}"
            order.write_text("".join(f"{path}\n" for path in paths[node::3]))
            if epoch:
                told = machine.ok("trace", machine.mnt / str(node), order)
                assert "100" in told.stdout + told.stderr
        before = sum(machine.stats(machine.mnt / str(node))["remote_requests"] for node in range(3))
        seen = Counter[str]()
        for part in zip(*(paths[node::3] for node in range(3)), strict=True):
            for node, path in enumerate(part):
                seen[path_in_or_name((machine.mnt / str(node) / path).read_bytes())] += 1
        assert len(seen) == SAMPLES
        requests.append(sum(machine.stats(machine.mnt / str(node))["remote_requests"] for node in range(3)) - before)
    assert requests[1] < requests[0] / 2
    assert all(machine.stats(machine.mnt / str(node))["prefetched"] > requests[1] / 3 for node in range(3))


def test_an_order_with_a_missing_file_is_refused(machine: Machine, source: Path) -> None:
    up(machine, 2, source, *SLOT)
    order = machine.folder / "order"
    order.write_text("train/n00000001/nothing.png\n")
    refused = machine.run("trace", machine.mnt / "0", order)
    assert refused.returncode
    assert "train/n00000001/nothing.png: no such file" in refused.stderr
    assert refused.stderr.count("\n") == 1


def mount_pair(machine: Machine, sources: Sequence[Path], *options: Sequence[str]) -> list[tuple[int, str]]:
    """Mount one node at each source with its own options; return each exit code and last line of output."""
    ports = reserve(len(sources))
    nodes = ",".join(f"127.0.0.1:{port}" for port in ports)
    started = []
    for rank, (source, own) in enumerate(zip(sources, options, strict=True)):
        mountpoint = machine.folder / f"node{rank}"
        mountpoint.mkdir()
        words = (str(source), str(mountpoint), *MEMORY, *PATIENT, "--nodes", nodes, "--node-rank", str(rank), *own)
        command = machine.command("mount", *words)
        started.append(subprocess.Popen(command, env=machine.environment, stderr=subprocess.PIPE, text=True))
    ended = []
    for process in started:
        _, said = process.communicate(timeout=2 * PATIENCE_S)
        ended.append((process.returncode, said.splitlines()[-1]))
    return ended


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (("--seed", "1"), "--seed (1"),
        (("--chunk-size", "16"), "--chunk-size (16"),
        (("--policy", "slot", "--chunk-size", "8"), "--policy (slot"),
    ],
)
def test_a_node_with_other_options_is_refused_in_one_line(
    machine: Machine, source: Path, options: tuple[str, ...], field: str
) -> None:
    ended = mount_pair(machine, [source, source], ("--chunk-size", "8"), options)
    assert [code for code, _ in ended] == [10, 10], ended
    assert any(field in line for _, line in ended), ended
    assert machine.nothing_is_left()


def test_a_node_with_another_dataset_is_refused_in_one_line(machine: Machine, source: Path, uneven: Path) -> None:
    ended = mount_pair(machine, [source, uneven], (), ())
    assert [code for code, _ in ended] == [10, 10], ended
    assert all("another dataset" in line for _, line in ended), ended
    assert machine.nothing_is_left()


def test_a_mount_names_the_peers_that_do_not_come(machine: Machine, source: Path) -> None:
    ports = reserve(3)
    nodes = ",".join(f"127.0.0.1:{port}" for port in ports)
    # It names them at the latest at the end of this time, which may as well be over before it has called anybody.
    alone = machine.run(
        "mount", source, machine.mnt, *MEMORY, "--nodes", nodes, "--node-rank", "1", "--join-timeout", "2"
    )
    assert alone.returncode == 10
    assert f"127.0.0.1:{ports[0]}" in alone.stderr.splitlines()[-1]
    assert f"127.0.0.1:{ports[2]}" in alone.stderr.splitlines()[-1]
    assert f"waiting for 127.0.0.1:{ports[0]}, 127.0.0.1:{ports[2]}" in alone.stderr
    assert machine.nothing_is_left()


def test_a_port_in_use_is_reported_in_one_line(machine: Machine, source: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        nodes = f"{address},127.0.0.1:{reserve(1)[0]}"
        alone = machine.run("mount", source, machine.mnt, *MEMORY, "--nodes", nodes, "--node-rank", "0")
    assert alone.returncode == 10
    assert f"cannot listen at {address}" in alone.stderr.splitlines()[-1]


def test_each_node_reads_its_own_shards_on_local_storage(machine: Machine, source: Path) -> None:
    whole = machine.folder / "whole"
    machine.ok("pack", source, whole, "--chunk-size", "8", "--shard-size", "24KiB")
    shards = sorted(whole.glob("samples-*.tar"))
    assert len(shards) > 30
    parts = []
    for node in range(3):
        part = machine.folder / f"part{node}"
        shutil.copytree(whole, part, ignore=shutil.ignore_patterns("samples-*.tar"))
        for shard in shards[node::3]:
            shutil.copy2(shard, part)
        parts.append(part)
    local = ("--storage", "local")
    missing = machine.run("mount", parts[0], machine.mnt, *MEMORY, "--nodes", "127.0.0.1:1,127.0.0.1:2", *local)
    assert missing.returncode != 0
    ended = mount_pair(machine, parts, local, local, local)
    assert [code for code, _ in ended] == [0, 0, 0], ended
    names = sorted(path.relative_to(source) for path in source.glob("train/*/*"))
    random.Random(0).shuffle(names)
    seen = Counter[str]()
    for node in range(3):
        for name in names[node::3]:
            data = (machine.folder / f"node{node}" / name).read_bytes()
            served = path_in(data) if data else "train/n00000070/the empty one"
            assert served.split("/")[1] == name.parts[1]
            seen[served] += 1
    assert seen == dict.fromkeys(seen, 1)
    assert len(seen) == SAMPLES
    alone = machine.run("nodes", machine.folder / "node0", "--set", machine.nodes(machine.folder / "node0")[0])
    assert alone.returncode == 2
    assert "node 0 of 1 needs samples-000001.tar" in alone.stderr
    for node in range(3):
        assert machine.stats(machine.folder / f"node{node}")["errors"] == 0
        shards_bytes = sum(path.stat().st_size for path in parts[node].glob("samples-*.tar"))
        # Each chunk is read once, and some chunks for the next epoch.
        assert machine.stats(machine.folder / f"node{node}")["bytes_read"] < 2 * shards_bytes
    index = load_index(whole)
    tree, positions = index.catalog.tree, index.positions
    sample = int(index.catalog.members[np.flatnonzero(tree.size[index.catalog.members])[0]])
    lies_at = int(positions.shard_names[positions.shard[sample]].removeprefix("samples-").removesuffix(".tar")) % 3
    for node in range(3):
        exact = machine.folder / f"node{node}/.redoxfs/exact" / os.fsdecode(tree.path(sample))
        if node == lies_at:
            assert len(exact.read_bytes()) == tree.size[sample]
        else:
            with pytest.raises(FileNotFoundError):
                exact.read_bytes()


@pytest.mark.parametrize("is_packed", [False, True])
def test_after_an_epoch_local_storage_with_caches_needs_no_source(
    machine: Machine, source: Path, *, is_packed: bool
) -> None:
    given = machine.folder / "source"
    if is_packed:
        machine.ok("pack", source, given, "--chunk-size", "8", "--shard-size", "24KiB")
    else:
        shutil.copytree(source, given)
    caches = [machine.folder / f"copies{node}" for node in range(3)]
    # Memory for a few samples, so that none are retained.
    few = ("--memory", "104KiB", *(() if is_packed else ("--chunk-size", "8")))
    own = [("--storage", "local", *few, "--cache", str(cache)) for cache in caches]
    ended = mount_pair(machine, [given] * 3, *own)
    assert [code for code, _ in ended] == [0, 0, 0], ended
    mounts = [machine.folder / f"node{node}" for node in range(3)]
    names = sorted(path.relative_to(source) for path in source.glob("train/*/*"))
    order = random.Random(0)

    def epoch() -> None:
        order.shuffle(names)
        seen = Counter[str]()
        for number, name in enumerate(names):
            data = (mounts[number % 3] / name).read_bytes()
            served = path_in(data) if data else "train/n00000070/the empty one"
            assert served.split("/")[1] == name.parts[1]
            seen[served] += 1
        assert seen == dict.fromkeys(seen, 1)
        assert len(seen) == SAMPLES

    def kept() -> list[int]:
        return [machine.stats(mount)["cache"]["samples"] for mount in mounts]

    epoch()
    until(lambda: sum(kept()) >= SAMPLES, "a copy is missing")
    # Each has its own share, and nothing else.
    assert sum(kept()) == SAMPLES
    assert min(kept()) > SAMPLES // 5
    for path in given.glob("samples-*.tar" if is_packed else "train/*/*"):
        os.truncate(path, 0)
    before = [machine.stats(mount)["cache"]["read_bytes"] for mount in mounts]
    epoch()
    for mount, earlier in zip(mounts, before, strict=True):
        stats = machine.stats(mount)
        assert stats["errors"] == stats["changed"] == stats["cache"]["failures"] == 0
        assert stats["cache"]["read_bytes"] > earlier


def path_in_or_name(data: bytes) -> str:
    return path_in(data) if data else "the empty one"


def test_nodes_with_certificates_share_a_dataset(machine: Machine, source: Path) -> None:
    authority = Authority.at(machine.folder / "ca")
    shown = authority.issue("node", "IP:127.0.0.1")
    tls = ("--tls-cert", str(shown.cert), "--tls-key", str(shown.key), "--tls-ca", str(authority.file))
    up(machine, 2, source, *SLOT, *tls)
    paths = sorted(source.glob("train/n00000060/*"))
    read = Counter(path_in((machine.mnt / "0" / path.relative_to(source)).read_bytes()) for path in paths)
    assert read == dict.fromkeys(read, 1)
    assert len(read) == len(paths)
    assert machine.stats(machine.mnt / "0")["remote_samples"] > 0
    check_clean(machine, 2)
