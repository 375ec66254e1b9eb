"""Epochs from tar archives as they are, beside redoxfs' own packed copy of the same samples, in turns.

    scripts/bench/archive_epochs.py [--shape imagenet|shards] [--storages filer,nas] [--archives 1000]
                                    [--members 128] [--bytes 110000] [--memory 0.25] [--epochs 1] [--rounds 2]
                                    [--json FILE]
    scripts/bench/archive_epochs.py --storages s3 [--line 800] …

- imagenet: a script like ImageFolder's, on an archive with an archive for each class, as ImageNet comes.
- shards: a script that reads KEY.jpg and KEY.json of each sample, on shards as WebDataset's writer makes them. Labels
  are in random order.

8 processes share an epoch, in random order. Every file holds the name of its sample: each sample must come exactly
once in each epoch, with the label of the path that was opened, or of its KEY.json. The exit code is 1 if one does not.
A round mounts each way anew, with empty memory, and reads some epochs. The copy is packed from a mount of the archives.

A storage is a profile of scripts/bench/throttle.py: a store (scripts/slow_store.c), or a cap, which needs root. Mounts
are told its speed, since what they measure on a busy machine is another one each time. Or it is "s3", a real S3 server
(SeaweedFS). ``--line 800`` puts that behind a link of 800 Mbit/s, which needs root, too; without it, server, redoxfs
and readers share the processor. "mount" is the time of the command; of archives, the first one on a storage may have
the index. "amplification" is what the storage read, as a multiple of the samples, and "bytes of read" the mean of a
request, where they are counted. The last table has the samples a second of archives as a share of the packed copy's.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import epoch
import mounts
import throttle
from labelled import NAME_BYTES as HEAD_BYTES
from labelled import read_epoch, read_file
from results import Row, options_of, tell
from rich.console import Console
from tar_writer import BLOCK_BYTES, END_BYTES, TarWriter, padded

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from netspaces import Network
from seaweed import BUCKET, seaweed, settings

READERS = 8
CAP_BYTES = 512 << 20
"""Of processes and page cache beside --memory, where the storage is capped."""
MOUNT_S = 1800
"""The index of millions of members takes minutes on slow storage."""
COLUMNS = (
    *("storage", "memory", "round", "way", "epoch", "samples_per_s", "mb_per_s", "mount_s", "amplification"),
    *("bytes_of_read", "chunk_size", "daemon_s", "wrong_labels", "not_once"),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """The options of mounts and of `pack`, and where the archives lie below a folder."""

    classes: list[str]
    archives: str


SHAPES = {
    "imagenet": Shape(["--classes", "dir"], "all.tar"),
    "shards": Shape(["--classes", "any"], "shards/shard-{000000..%06d}.tar"),
}


# The archives


def sizes(count: int, mean_bytes: int) -> list[int]:
    """Of images: uniform, from half to one and a half times of the mean."""
    return [random.randint(mean_bytes // 2, mean_bytes * 3 // 2) for _ in range(count)]


def make_imagenet(folder: Path, archives: int, members: int, mean_bytes: int) -> tuple[list[str], int]:
    """An archive of archives. Returns the paths of a mount, and the bytes of the files."""
    paths, total = [], 0
    with TarWriter(folder / "all.tar") as whole:
        for label in range(archives):
            of = sizes(members, mean_bytes)
            whole.begin(f"n{label:08}.tar", sum(BLOCK_BYTES + padded(size) for size in of) + END_BYTES)
            for number, size in enumerate(of):
                path = f"n{label:08}/n{label:08}_{number}.JPEG"
                paths.append(path)
                whole.add(path.partition("/")[2], path.encode().ljust(HEAD_BYTES) + random.randbytes(size - HEAD_BYTES))
            whole.end()
            total += sum(of)
    return paths, total


def make_shards(folder: Path, archives: int, members: int, mean_bytes: int) -> tuple[list[str], int]:
    """Shards of KEY.jpg and KEY.json. Returns the keys, and the bytes of the files."""
    (folder / "shards").mkdir()
    keys, total = [], 0
    for shard in range(archives):
        with TarWriter(folder / f"shards/shard-{shard:06}.tar") as writer:
            for number, size in enumerate(sizes(members, mean_bytes)):
                key = f"{shard:06}{number:06}"
                keys.append(key)
                label = random.randrange(1000)
                head = f"{key} {label}".encode().ljust(HEAD_BYTES)
                description = json.dumps({"key": key, "label": label}).encode()
                writer.add(f"{key}.jpg", head + random.randbytes(size - HEAD_BYTES))
                writer.add(f"{key}.json", description)
                total += size + len(description)
    return keys, total


# The scripts


def image_and_json(path: str, key: str) -> tuple[str, bool]:
    """The sample whose image came, and whether the description beside it is of it."""
    del key
    with open(f"{path}.jpg", "rb") as file:
        came, label = file.read()[:HEAD_BYTES].decode().split()
    with open(f"{path}.json", "rb") as file:
        described = json.load(file)
    return came, described == {"key": came, "label": int(label)}


# The storage


@dataclass(frozen=True, slots=True)
class Storage:
    """``sources``: of each way. ``counted``: the requests, None where nobody counts them, and the bytes so far."""

    sources: dict[str, str]
    counted: Callable[[Path], tuple[int | None, int]]
    forget: Callable[[], None] = lambda: None
    enter: Callable[[], None] | None = None
    speed: tuple[str, ...] = ()


@contextmanager
def storage(name: str, work: Path, shape: Shape, cap_bytes: int) -> Iterator[Storage]:
    """The archives in ``work`` and the packed copy of them, on the storage."""
    if name == "s3":
        yield Storage(
            {"archive": f"s3://{BUCKET}/{shape.archives}", "packed": f"s3://{BUCKET}/packed"},
            lambda mountpoint: (None, mounts.stats(mountpoint)["objects"]["received_bytes"]),
        )
        return
    profile = throttle.PROFILES[name]
    requests = profile.reads_per_s
    if profile.at_once and profile.delay_ms:
        requests = round(profile.at_once / profile.delay_ms * 1e3)
    speed = ("--storage-speed", f"{requests},{profile.bytes_per_s}") if requests and profile.bytes_per_s else ()

    with epoch.storage(profile, work, cap_bytes) as stored:
        yield Storage(
            {"archive": str(stored.folder / shape.archives), "packed": str(stored.packed)},
            lambda _mountpoint: stored.counted(),
            stored.forget,
            stored.enter,
            speed,
        )


def pack(source: str, target: str, shape: Shape, work: Path) -> None:
    """Pack the samples of archives, from a mount of them."""
    mountpoint = work / "mnt"
    command = mounts.redoxfs(source, mountpoint, *shape.classes, "--memory", "256MiB", "--storage-speed", "9999,2GB")
    with mounts.served_by(command, mountpoint, patience_s=MOUNT_S):
        stems = ["--groups", "stem"] if "any" in shape.classes else []
        mounts.pack(mountpoint / ".redoxfs/exact", target, *stems, classes=shape.classes[1])


def upload(folder: Path) -> None:
    import obstore
    from obstore.store import from_url

    store = from_url(f"s3://{BUCKET}", client_options={"allow_http": True})
    for path in sorted(folder.rglob("*.tar")):
        obstore.put(store, str(path.relative_to(folder)), path)


# The run


def measure(asked: argparse.Namespace, work: Path, environment: dict[str, str] | None) -> Row:
    console = Console(stderr=True)
    shape = SHAPES[asked.shape]
    if "%" in shape.archives:
        shape = Shape(shape.classes, shape.archives % (asked.archives - 1))
    make, read = (make_imagenet, read_file) if asked.shape == "imagenet" else (make_shards, image_and_json)
    console.print(f"making {asked.archives * asked.members:,} samples …")
    names, total = make(work, asked.archives, asked.members, asked.bytes)
    console.print("packing a copy …")
    pack(str(work / shape.archives), f"s3://{BUCKET}/packed" if environment else str(work / "packed"), shape, work)
    if environment:
        upload(work)
    rows = []
    for name, share in itertools.product(asked.storages, asked.memory):
        memory_bytes = int(share * total)
        with storage(name, work, shape, memory_bytes + CAP_BYTES) as stored:
            for number in range(asked.rounds):
                for way in asked.ways[:: -1 if number % 2 else 1]:
                    console.print(f"{name}, memory for {share:.0%}, round {number + 1}: {way} …")
                    of_mount = epochs(stored, way, shape, work, memory_bytes, names, read, asked)
                    rows += [{"storage": name, "memory": share, "round": number + 1} | row for row in of_mount]
    for row in rows:
        row["samples_per_s"] = len(names) / row["seconds"]
        row["mb_per_s"] = total / 1e6 / row["seconds"]
        row["amplification"] = row["bytes"] / total
        row["bytes_of_read"] = row["requests"] and row["bytes"] / row["requests"]
    return {
        "machine": mounts.machine(),
        "load_average": os.getloadavg(),
        **{key: getattr(asked, key) for key in ("shape", "line", "archives", "members", "options")},
        "samples": len(names),
        "bytes": total,
        "rows": rows,
        "shares": shares(rows),
    }


def epochs(
    stored: Storage,
    way: str,
    shape: Shape,
    work: Path,
    memory_bytes: int,
    names: list[str],
    read: Callable[[str, str], tuple[str, bool]],
    asked: argparse.Namespace,
) -> Iterable[Row]:
    """A row for each epoch of a mount."""
    mountpoint = work / "mnt"
    options = [*(shape.classes if way == "archive" else ()), "--memory", str(memory_bytes), *asked.options]
    command = mounts.redoxfs(stored.sources[way], mountpoint, *stored.speed, *options)
    began = time.monotonic()
    rows = []
    with mounts.served_by(command, mountpoint, stored.enter, patience_s=MOUNT_S) as daemon:
        mount_s = time.monotonic() - began
        stored.forget()
        for number in range(1, asked.epochs + 1):
            before, spent_s = stored.counted(mountpoint), mounts.cpu_s(daemon.pid)
            found = read_epoch({name: f"{mountpoint}/{name}" for name in names}, READERS, read=read)
            requests, read_bytes = (
                None if a is None or b is None else a - b
                for a, b in zip(stored.counted(mountpoint), before, strict=True)
            )
            rows.append(
                {
                    "way": way,
                    "epoch": number,
                    "mount_s": mount_s,
                    **found.told,
                    "daemon_s": mounts.cpu_s(daemon.pid) - spent_s,
                    "requests": requests,
                    "bytes": read_bytes,
                    "chunk_size": mounts.stats(mountpoint)["chunk_size"],
                }
            )
    return rows


def shares(rows: list[Row]) -> list[Row]:
    """The samples a second of archives as a share of the packed copy's: the median of the rounds, and all."""
    rates: dict[tuple[str, float, int], dict[str, list[float]]] = {}
    for row in rows:
        of_ways = rates.setdefault((row["storage"], row["memory"], row["epoch"]), {"archive": [], "packed": []})
        of_ways[row["way"]].append(row["samples_per_s"])
    found = []
    for (name, memory, number), of_ways in rates.items():
        if all(of_ways.values()):
            ratios = [ours / theirs for ours, theirs in zip(*of_ways.values(), strict=True)]
            share = {"share": statistics.median(ratios), "all": ratios}
            found.append({"storage": name, "memory": memory, "epoch": number} | share)
    return found


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="imagenet")
    parser.add_argument("--storages", type=lambda text: text.split(","), default=["filer", "nas"])
    parser.add_argument("--archives", type=int, default=1000)
    parser.add_argument("--members", type=int, default=128, help="samples of each archive")
    parser.add_argument("--bytes", type=int, default=110_000, help="of an image, on average")
    parser.add_argument(
        "--memory",
        type=lambda text: [float(part) for part in text.split(",")],
        default=[0.25],
        help="shares of the samples, one after the other",
    )
    parser.add_argument("--ways", type=lambda text: text.split(","), default=["archive", "packed"])
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--line", type=int, metavar="MBIT", help="put the S3 server behind a link of MBIT Mbit/s")
    parser.add_argument("--folder", type=Path, help="where to make the files (default: the temporary folder)")
    parser.add_argument("--options", nargs="*", default=[], help="further options of redoxfs mount")
    # How the process that this one starts is told where the server is.
    parser.add_argument("--server", type=json.loads, default={}, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.line and not asked.server:
        with Network(2).up() as network:
            network.slow(0, asked.line)
            host = network.addresses[0].partition(":")[0]
            where = json.dumps({"host": host, "inside": network.inside(0)})
            return subprocess.call([*network.inside(1), sys.executable, *sys.argv, "--server", where])
    with ExitStack() as stack:
        work = stack.enter_context(mounts.work_folder(asked.folder))
        environment = None
        if "s3" in asked.storages:
            server = stack.enter_context(seaweed(work / "server", **asked.server))
            environment = settings(server.port, server.host)
            os.environ |= environment
        result = measure(asked, work, environment)
    tell(result, asked.json, *COLUMNS)
    tell({"rows": result["shares"]}, None, "storage", "memory", "epoch", "share")
    return 1 if any(row["wrong_labels"] or row["not_once"] for row in result["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
