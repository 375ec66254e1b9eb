"""Several nodes that share a dataset over slow links: the paper's protocol with and without prefetching, and the pool.

    scripts/bench/nodes.py [--nodes 3] [--files 9600] [--classes 48] [--mbit 400] [--epochs 2] [--json FILE]

Each node is a real mount in its own network namespace. tc caps its link in both directions, so this needs root and
iproute2. The readers on each node follow its part of a DistributedSampler's order, and all nodes wait for each other
between epochs. The first epoch warms up and is not counted.

How to read the result: beside the bytes on the wire stands what `redoxfs simulate policies` computes for the same
files. Every file holds its own name: each must come once in each epoch, with the label of the path that was opened.
"""

import argparse
import json
import math
import multiprocessing
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mounts
from labelled import NAME_BYTES, make_files
from results import options_of, tell
from rich.console import Console

from redoxfs.chunks.layout import RESIDENT_SHARE
from redoxfs.protocol.samplers import distributed_orders
from redoxfs.simulate.policies import Dataset, measure

READERS = 4
SMALLEST_BYTES, LARGEST_BYTES = 50_000, 150_000
PORT = 7420
CHUNK_SIZE = 64
WAYS = {
    "slot": ["--policy", "slot", "--prefetch-window", "1"],
    "slot, prefetch": ["--policy", "slot", "--sampler", "torch-distributed"],
    "pool": ["--policy", "pool"],
}
COLUMNS = (
    *("way", "seconds", "sent_bytes", "remote_share", "simulated_share", "remote_requests"),
    *("wrong_labels", "not_once", "errors"),
)


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


class Network:
    """Namespaces node0 … and one more with a bridge between them. The machine's own namespace stays as it is."""

    def __init__(self, nodes: int, mbit: int) -> None:
        self._mark = f"redoxfs-bench-{os.getpid()}"
        self._switch = f"{self._mark}-switch"
        self.spaces = [f"{self._mark}-{node}" for node in range(nodes)]
        self.addresses = [f"10.77.0.{node + 1}:{PORT}" for node in range(nodes)]
        self._mbit = mbit

    @contextmanager
    def up(self) -> Iterator["Network"]:
        made = []
        try:
            for space in (self._switch, *self.spaces):
                ip("netns", "add", space)
                made.append(space)
            ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
            ip("-n", self._switch, "link", "set", "bridge", "up")
            for node, space in enumerate(self.spaces):
                port = f"port{node}"
                ip("-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", self._switch)
                ip("-n", self._switch, "link", "set", port, "master", "bridge", "up")
                ip("-n", space, "addr", "add", f"10.77.0.{node + 1}/24", "dev", "eth0")
                for device in ("lo", "eth0"):
                    ip("-n", space, "link", "set", device, "up")
                self._cap(space, "eth0")
                self._cap(self._switch, port)
            yield self
        finally:
            for space in made:
                subprocess.run(["ip", "netns", "del", space], check=False)

    def _cap(self, space: str, device: str) -> None:
        # By itself tc makes the quantum of a fast link so large that the kernel warns.
        rate = ["rate", f"{self._mbit}mbit", "burst", "256k", "quantum", "60000"]
        for words in (
            ["qdisc", "add", "dev", device, "root", "handle", "1:", "htb", "default", "1"],
            ["class", "add", "dev", device, "parent", "1:", "classid", "1:1", "htb", *rate],
        ):
            subprocess.run(["ip", "netns", "exec", space, "tc", *words], check=True)

    def sent_bytes(self) -> int:
        """Bytes that all nodes have sent so far, headers included."""
        return sum(
            json.loads(ip("-n", space, "-s", "-j", "link", "show", "dev", "eth0"))[0]["stats64"]["tx"]["bytes"]
            for space in self.spaces
        )


@contextmanager
def nodes_up(network: Network, source: Path, folder: Path, options: Sequence[str]) -> Iterator[list[Path]]:
    """Mount the source in each namespace. The mountpoints."""
    asked = []
    for node, space in enumerate(network.spaces):
        joins = ["--nodes", ",".join(network.addresses), "--node-rank", str(node), "--insecure"]
        command = mounts.redoxfs(source, folder / str(node), *options, *joins)
        asked.append(mounts.Served(["nsenter", f"--net=/run/netns/{space}", *command], folder / str(node)))
    with mounts.served_together(asked):
        yield [each.mountpoint for each in asked]


def read_epochs(mountpoints: Sequence[Path], names: Sequence[str], epochs: int, network: Network) -> dict[str, Any]:
    """Read a first epoch and ``epochs`` more. Returns the times and counts of the latter, and the errors of all."""
    fork = multiprocessing.get_context("fork")
    nodes = len(mountpoints)
    barrier, answers = fork.Barrier(nodes * READERS + 1), fork.SimpleQueue()

    def work(node: int, reader: int) -> None:
        for epoch in range(epochs + 1):
            order = distributed_orders(len(names), world=nodes, epoch=epoch, seed=0)[node]
            seen, wrong = [], 0
            barrier.wait()
            for index in order[reader::READERS].tolist():
                name = names[index]
                got = (mountpoints[node] / name).read_bytes()[:NAME_BYTES].rstrip().decode()
                wrong += got.partition("/")[0] != name.partition("/")[0]
                seen.append(got)
            barrier.wait()
            answers.put((epoch, seen, wrong))

    processes = [
        fork.Process(target=work, args=(node, reader), daemon=True)
        for node in range(nodes)
        for reader in range(READERS)
    ]
    for process in processes:
        process.start()
    seconds, seen, wrong = [], [Counter[str]() for _ in range(epochs + 1)], 0
    sent, before = 0, [mounts.stats(mountpoint) for mountpoint in mountpoints]
    for epoch in range(epochs + 1):
        barrier.wait()
        began = time.monotonic()
        barrier.wait()
        seconds.append(time.monotonic() - began)
        for _ in processes:
            of_epoch, part, wrong_here = answers.get()
            seen[of_epoch].update(part)
            wrong += wrong_here
        if epoch == 0:
            sent, before = network.sent_bytes(), [mounts.stats(mountpoint) for mountpoint in mountpoints]
    sent = network.sent_bytes() - sent
    after = [mounts.stats(mountpoint) for mountpoint in mountpoints]
    for process in processes:
        process.join()
    padded = math.ceil(len(names) / nodes) * nodes - len(names)
    return {
        "seconds": sum(seconds[1:]) / epochs,
        "sent_bytes": sent / epochs,
        "wrong_labels": wrong,
        "not_once": sum(len(names) - len(of) + sum(of.values()) - len(of) - padded for of in seen),
        **{
            name: sum(a[name] - b[name] for a, b in zip(after, before, strict=True)) / epochs
            for name in ("remote_requests", "remote_samples", "opens", "chunk_loads", "errors", "degraded")
        },
    }


def simulated(way: str, arguments: argparse.Namespace, total: int) -> float:
    """The share of samples from other nodes that the core computes, without data."""
    own_mb = arguments.memory_mb - arguments.remote_memory_mb
    dataset = Dataset(
        files=arguments.files,
        classes=arguments.classes,
        skew=0.0,
        chunk_size=CHUNK_SIZE,
        resident=min(1.0, arguments.nodes * RESIDENT_SHARE * (own_mb << 20) / total),
        seed=0,
    )
    return measure("pool" if way == "pool" else "slot", dataset, nodes=arguments.nodes).remote_share


def run(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    console = Console(stderr=True)
    console.print(f"making {arguments.files:,} files …")
    source = work / "data"
    names = make_files(source, arguments.files, SMALLEST_BYTES, LARGEST_BYTES, arguments.classes)
    total = sum((source / name).stat().st_size for name in names)
    memory = ["--memory", f"{arguments.memory_mb}MiB", "--remote-memory", f"{arguments.remote_memory_mb}MiB"]
    common = ["--classes", "dir", "--chunk-size", str(CHUNK_SIZE), *memory]
    rows = []
    with Network(arguments.nodes, arguments.mbit).up() as network:
        for way, options in WAYS.items():
            console.print(f"{way} …")
            with nodes_up(network, source, work / "mnt", [*common, *options]) as mountpoints:
                found = read_epochs(mountpoints, names, arguments.epochs, network)
            shares = {
                "remote_share": found["remote_samples"] / arguments.files,
                "simulated_share": simulated(way, arguments, total),
            }
            rows.append({"way": way, **found, **shares})
    return {
        "machine": mounts.machine(),
        "nodes": arguments.nodes,
        "files": arguments.files,
        "classes": arguments.classes,
        "bytes": total,
        "mbit_per_s": arguments.mbit,
        "memory_mb": arguments.memory_mb,
        "remote_memory_mb": arguments.remote_memory_mb,
        "readers": READERS,
        "rows": rows,
    }


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--files", type=int, default=9_600)
    parser.add_argument("--classes", type=int, default=48)
    parser.add_argument("--mbit", type=int, default=400, help="of each node's link, each way")
    parser.add_argument("--memory-mb", type=int, default=256, help="--memory of each mount, MiB")
    parser.add_argument("--remote-memory-mb", type=int, default=128, help="of it, for samples from other nodes, MiB")
    parser.add_argument("--epochs", type=int, default=2, help="counted, after one to warm up")
    arguments = parser.parse_args()
    with mounts.work_folder() as folder:
        result = run(arguments, folder)
    tell(result, arguments.json, *COLUMNS)
    return 1 if any(row["wrong_labels"] or row["not_once"] or row["errors"] for row in result["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
