#!/usr/bin/env python3
"""Epochs from a real S3 server (SeaweedFS), compared with a bare obstore reader of the same ranges and depth.

    scripts/bench/objects.py --files 20000 --nodes 3 --json

Both ways read the whole packed dataset in pieces of one chunk, in turn, for several rounds. The bare reader requests
each range and drops the bytes; redoxfs serves each file to processes that read it. The nodes count the bytes of all
answers, so the result shows how often an epoch fetches each byte. Server, redoxfs and readers share this machine.

Without a limit, the server, redoxfs and readers compete for the processor. ``--line 800`` puts the server behind a link
of 800 Mbit/s in its own network namespace, which needs root. Then the link limits both ways, as storage does.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import mounts
from results import options_of, tell

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from netspaces import Network
from ports import reserve
from seaweed import BUCKET, Seaweed, seaweed, settings

ADDRESS = f"s3://{BUCKET}/data"
COLUMNS = ("nodes", "mb_per_s", "bare_mb_per_s", "share", "depth", "piece_bytes", "fetched_share")


def make_source(folder: Path, files: int, size: int) -> None:
    """Files in ten classes, whose bytes do not compress."""
    at_random = random.Random(0)
    for number in range(files):
        path = folder / f"n0000000{number % 10}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(number.to_bytes(8, "big") + at_random.randbytes(size - 8))


def redoxfs(*arguments: object, env: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "redoxfs", *map(str, arguments)], env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"redoxfs {arguments[0]}: {done.stderr}")
    return done.stdout


def ranges_of(shards: dict[str, int], piece: int) -> list[tuple[str, int, int]]:
    """All bytes of the shards in pieces, in a random order."""
    found = [
        (name, begin, min(begin + piece, length))
        for name, length in shards.items()
        for begin in range(0, length, piece)
    ]
    random.Random(1).shuffle(found)
    return found


def bare(shards: dict[str, int], piece: int, depth: int, env: dict[str, str]) -> float:
    """Seconds that a process with obstore alone takes for all ranges."""
    arguments = json.dumps([ADDRESS, ranges_of(shards, piece), depth])
    done = subprocess.run(
        [sys.executable, __file__, "--bare"], input=arguments, env=env, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def read_ranges() -> None:
    """The bare reader, in a process of its own."""
    import obstore
    from obstore.store import from_url

    address, ranges, depth = json.load(sys.stdin)
    store = from_url(address, client_options={"allow_http": True, "http1_only": True})

    async def read() -> None:
        left = iter(ranges)

        async def work() -> None:
            for name, begin, end in left:
                data = await obstore.get_range_async(store, name, start=begin, end=end)
                assert len(data) == end - begin

        await asyncio.gather(*(work() for _ in range(depth)))

    began = time.perf_counter()
    asyncio.run(read())
    print(time.perf_counter() - began, flush=True)
    # The threads of obstore may abort a process whose interpreter ends.
    os._exit(0)


def read_part(part: list[tuple[Path, str]]) -> list[bytes]:
    """What one process does: read its files whole; the first eight bytes of each, its number."""
    return [(mountpoint / path).read_bytes()[:8] for mountpoint, path in part]


def read_files(mountpoints: list[Path], paths: list[str], readers: int, seed: int, expected: int) -> float:
    """Seconds of an epoch: each file once, dealt to the mounts. Raises if a sample is missing."""
    paths = [*paths]
    random.Random(seed).shuffle(paths)
    dealt = [(mountpoints[number % len(mountpoints)], path) for number, path in enumerate(paths)]

    with ProcessPoolExecutor(readers) as pool:
        began = time.perf_counter()
        parts = pool.map(read_part, [dealt[reader::readers] for reader in range(readers)])
        numbers = {number for part in parts for number in part}
    took = time.perf_counter() - began
    if len(numbers) != expected:
        raise SystemExit(f"{expected - len(numbers)} samples are missing")
    return took


@contextmanager
def mounted(folder: Path, nodes: int, memory: int, env: dict[str, str]) -> Iterator[list[Path]]:
    """The dataset on so many nodes."""
    addresses = ",".join(f"127.0.0.1:{port}" for port in reserve(nodes))
    asked = []
    for node in range(nodes):
        joins = ["--nodes", addresses, "--node-rank", str(node), "--insecure"] if nodes > 1 else []
        mountpoint = folder / f"mnt{node}"
        command = mounts.redoxfs(ADDRESS, mountpoint, "--memory", str(memory), *joins)
        asked.append(mounts.Served(command, mountpoint))
    with mounts.served_together(asked, env):
        yield [each.mountpoint for each in asked]


def measure(options: argparse.Namespace, folder: Path, server: Seaweed) -> dict[str, Any]:
    env = settings(server.port, server.host) | {
        f"XDG_{name}_HOME": str(folder / name.lower()) for name in ("CACHE", "STATE")
    }
    (folder / "run").mkdir(mode=0o700)
    env["XDG_RUNTIME_DIR"] = str(folder / "run")
    make_source(folder / "source", options.files, options.bytes)
    began = time.perf_counter()
    redoxfs("pack", folder / "source", ADDRESS, "--classes", "dir", "--shard-size", "256MiB", env=env)
    pack_s = time.perf_counter() - began
    report = json.loads(redoxfs("inspect", ADDRESS, "--json", env=env))
    size = report["shards_bytes"]
    rows = []
    for nodes in sorted({1, options.nodes}):
        memory = max(64 << 20, int(options.memory * options.files * options.bytes)) // nodes
        with mounted(folder / "mounts" if nodes == 1 else folder / "more", nodes, memory, env) as mountpoints:
            piece = mounts.stats(mountpoints[0])["chunk_size"] * options.bytes
            paths = [f"n0000000{number % 10}/{number}.jpg" for number in range(options.files)]
            shards = shards_of(env)
            row: dict[str, Any] = {"nodes": nodes, "piece_bytes": piece, "memory_bytes": memory}
            mine, theirs, sent = [], [], []
            # The first epoch finds the depth.
            read_files(mountpoints, paths, options.readers, 0, options.files)
            for epoch in range(1, options.rounds + 1):
                before = requested(mountpoints)
                mine.append(size / 1e6 / read_files(mountpoints, paths, options.readers, epoch, options.files))
                sent.append((requested(mountpoints) - before) / size)
                depth = depth_of(mountpoints)
                theirs.append(size / 1e6 / bare(shards, piece, depth, env))
            row |= {
                "mb_per_s": statistics.median(mine),
                "bare_mb_per_s": statistics.median(theirs),
                "share": statistics.median(mine) / statistics.median(theirs),
                "depth": depth,
                "fetched_share": statistics.median(sent),
                "all_mb_per_s": mine,
                "all_bare_mb_per_s": theirs,
            }
            rows.append(row)
    return {
        "machine": {"cores": os.cpu_count(), "kernel": os.uname().release, "python": sys.version.split()[0]},
        "files": options.files,
        "file_bytes": options.bytes,
        "line_mbit": options.line,
        "shards_bytes": size,
        "pack_mb_per_s": size / 1e6 / pack_s,
        "rows": rows,
    }


def shards_of(env: dict[str, str]) -> dict[str, int]:
    script = (
        "import json, obstore, obstore.store\n"
        f"store = obstore.store.from_url({ADDRESS!r}, client_options={{'allow_http': True}})\n"
        "found = [entry for batch in obstore.list(store) for entry in batch if entry['path'].startswith('samples-')]\n"
        "print(json.dumps({entry['path']: entry['size'] for entry in found}))"
    )
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def requested(mountpoints: list[Path]) -> int:
    """The bytes of all answers of the server, as the nodes counted them."""
    return sum(mounts.stats(mountpoint)["objects"]["received_bytes"] for mountpoint in mountpoints)


def depth_of(mountpoints: list[Path]) -> int:
    """The reads in flight that the nodes chose, together."""
    return sum(mounts.stats(mountpoint)["objects"]["reads_limit"] for mountpoint in mountpoints)


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--bytes", type=int, default=100_000, help="of each file")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--readers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", type=float, default=0.2, help="share of the dataset, of all nodes together")
    parser.add_argument("--folder", type=Path, help="where the server keeps its data (default: a temporary folder)")
    parser.add_argument("--line", type=int, metavar="MBIT", help="put the server behind a link of MBIT Mbit/s")
    # How the processes that this one starts are told what they are.
    parser.add_argument("--server", type=json.loads, default={}, help=argparse.SUPPRESS)
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        read_ranges()
        return
    if options.line and not options.server:
        with Network(2).up() as network:
            network.slow(0, options.line)
            host = network.addresses[0].partition(":")[0]
            where = json.dumps({"host": host, "inside": network.inside(0)})
            raise SystemExit(subprocess.call([*network.inside(1), sys.executable, *sys.argv, "--server", where]))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder)))
        (folder / "mounts").mkdir()
        (folder / "more").mkdir()
        server = stack.enter_context(seaweed(folder / "server", **options.server))
        found = measure(options, folder, server)
    tell(found, options.json, *COLUMNS)


if __name__ == "__main__":
    main()
