"""How long it takes to open the index of a packed dataset, and how much memory that takes.

    scripts/bench/index.py [--samples 1300000] [--classes 1000] [--rounds 3] [--json]

The index is made up: --samples files of 110 kB in --classes directories, as in ImageNet, and shards of the right length
that hold nothing. A new process opens it each time, in the way a mount does: it computes every array's checksum and
checks every number. As root, the benchmark drops the page cache before the first round and keeps it for the others.
Without root all rounds are warm, and the table says so.

How to read the result: "own memory" is the process's own, "mapped" is the part of the page cache that it maps, and
"peak" is the highest sum of both, with the interpreter. Aim: under 2 s for 1.3 million samples.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import throttle
from rich.console import Console
from rich.table import Table

from redoxfs.chunks import build_cells
from redoxfs.dataset import Catalog, Tree, Verdict
from redoxfs.packed import MANIFEST
from redoxfs.packed.index import FOLDER, arrays_of, block_offsets, describe, save_arrays, seal, tree_of
from redoxfs.packed.positions import assign_positions

CHUNK_SIZE = 64
SHARD_BYTES = 1 << 30
MEAN_BYTES = 110_000
AIM_S = 2.0

OPENER = """
import json, sys, time
from pathlib import Path
from redoxfs.packed import load_index

def resident():
    lines = dict(line.split(":") for line in open("/proc/self/status") if line.startswith(("Rss", "VmHWM")))
    return {name: int(value.split()[0]) << 10 for name, value in lines.items()}

before, begin = resident(), time.perf_counter()
index = load_index(Path(sys.argv[1]))
seconds, after = time.perf_counter() - begin, resident()
own, mapped = (after[name] - before[name] for name in ("RssAnon", "RssFile"))
print(json.dumps({"seconds": seconds, "own_bytes": own, "mapped_bytes": mapped, "peak_bytes": after["VmHWM"]}))
"""


def made_up_tree(samples: int, classes: int) -> Tree:
    """A tree of directories with the same number of files in each. All names have one length."""
    count = 1 + classes + samples
    numbers = np.concatenate([np.arange(classes), np.arange(samples)])
    digits = (numbers[:, None] // 10 ** np.arange(8, -1, -1) % 10 + ord("0")).astype(np.uint8)
    suffix = np.broadcast_to(np.frombuffer(b".jpg", np.uint8), (len(numbers), 4))
    names = np.concatenate([np.full((len(numbers), 1), ord("n"), np.uint8), digits, suffix], axis=1)
    in_class = np.sort(np.arange(samples) % classes) if classes else np.zeros(0, np.int64)
    kinds = np.repeat(np.array([0o040755, 0o100644], np.uint32), [1 + classes, samples])
    sizes = np.random.default_rng(0).integers(MEAN_BYTES // 2, MEAN_BYTES * 3 // 2, samples)
    return tree_of(
        {
            "parent": np.concatenate([np.zeros(1 + classes, np.int32), in_class.astype(np.int32) + 1]).astype(np.int32),
            "names": names.ravel(),
            "name_at": np.concatenate([[0, 0], np.cumsum(np.full(len(numbers), names.shape[1]))]).astype(np.int64),
            "mode": kinds,
            "uid": np.zeros(count, np.uint32),
            "gid": np.zeros(count, np.uint32),
            "nlink": np.ones(count, np.uint32),
            "size": np.concatenate([np.full(1 + classes, 4096), sizes]).astype(np.int64),
            "mtime_ns": np.full(count, 1_700_000_000_000_000_000, np.int64),
            "ctime_ns": np.full(count, 1_700_000_000_000_000_000, np.int64),
            "link_entry": np.zeros(0, np.int32),
            "link_names": np.zeros(0, np.uint8),
            "link_at": np.zeros(1, np.int64),
        },
        skipped=0,
        control_left_out=0,
    )


def made_up_catalog(samples: int, classes: int) -> Catalog:
    tree = made_up_tree(samples, classes)
    members = np.arange(1 + classes, len(tree), dtype=np.int32)
    return Catalog.of_samples(
        tree,
        np.arange(samples + 1, dtype=np.int64),
        members,
        class_of=(tree.parent[members] - 1).astype(np.int32),
        class_names=[f"n{number:09}.jpg" for number in range(classes)],
        class_trees=["."],
        tree_of_class=np.zeros(classes, np.int32),
        verdict=Verdict("dir", "dir", "made up"),
        sample_files=samples,
    )


def make(dst: Path, samples: int, classes: int) -> int:
    """Write the index. Returns its size in bytes."""
    catalog = made_up_catalog(samples, classes)
    cells = build_cells(catalog.class_of, catalog.sample_bytes, chunk_size=CHUNK_SIZE, seed=0)
    positions = assign_positions(catalog, cells, shard_bytes=SHARD_BYTES)
    sums: npt.NDArray[np.uint64] = np.zeros(int(block_offsets(catalog.tree)[-1]), np.uint64)
    (dst / FOLDER).mkdir(parents=True)
    records = save_arrays(dst / FOLDER, {**arrays_of(catalog, cells, positions), "sums": sums})
    manifest = describe(catalog, cells, positions, seed=0, asked={})
    (dst / MANIFEST).write_bytes(seal({**manifest, "arrays": records}))
    for name, length in zip(positions.shard_names, positions.shard_bytes, strict=True):
        (dst / name).touch()
        os.truncate(dst / name, length)
    return sum(record["bytes"] for record in records.values())


def open_once(dst: Path) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", OPENER, str(dst)], check=True, capture_output=True, text=True)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1_300_000)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="redoxfs-index-") as folder:
        dst = Path(folder) / "dst"
        index_bytes = make(dst, arguments.samples, arguments.classes)
        cold = throttle.can_drop_caches()
        first = open_once(dst)
        rounds = [open_once(dst) for _ in range(arguments.rounds)]
    facts = {
        "samples": arguments.samples,
        "index_bytes": index_bytes,
        "first_is_cold": cold,
        "first_s": first["seconds"],
        "warm_s": statistics.median(told["seconds"] for told in rounds),
        **{name: max(told[name] for told in rounds) for name in ("own_bytes", "mapped_bytes", "peak_bytes")},
        "aim_s": AIM_S,
    }
    if arguments.json:
        print(json.dumps(facts, indent=2))
        return
    table = Table(title=f"opening the index of {arguments.samples:,} samples, {index_bytes / 1e6:,.0f} MB")
    for column in ("page cache", "seconds", "own memory", "mapped", "peak"):
        table.add_column(column, justify="right")
    for title, seconds in (("empty" if cold else "warm", facts["first_s"]), ("warm", facts["warm_s"])):
        sizes = (facts[name] / 1e6 for name in ("own_bytes", "mapped_bytes", "peak_bytes"))
        table.add_row(title, f"{seconds:.2f}", *(f"{size:,.0f} MB" for size in sizes))
    Console().print(table)
    Console().print(f"aim: under {AIM_S:g} s for 1,300,000 samples")


if __name__ == "__main__":
    main()
