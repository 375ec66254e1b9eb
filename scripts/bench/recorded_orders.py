"""Orders of samples: recorded through mounts of redoxfs, and drawn without one.

To record an order, an ordinary DataLoader reads files that contain their numbers. The numbers are kept batch by batch.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import mounts
import numpy as np
import numpy.typing as npt
import torch
from full_path import Checkout
from small_resnet import Images
from torch.utils.data import DataLoader, Dataset, RandomSampler

from redoxfs.chunks import build_cells
from redoxfs.simulate.pool_cluster import PoolCluster

sys.path.append(str(Path(__file__).parents[1] / "research"))

from randomness import shuffle_buffer

UInt16 = npt.NDArray[np.uint16]
Ints = npt.NDArray[np.integer]

MOST_SAMPLES = 1 << 16
"""Their numbers are kept in 16 bits."""
NUMBER = slice(5, 10)
"""The place of a file's number: in the comment of a PGM image."""

WORKERS = 2
BATCH = 128
ANOTHER_SEED = 1_000
BUFFER_PART = 10
"""A buffer holds a tenth of the samples."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The source of an order.

    ``kind``     "plain", a control, or the policy of a mount; "former pool" is that of another checkout
    ``classes``  --classes of the mount
    """

    kind: str
    chunk_size: int = 0
    share: str = ""
    classes: str = "dir"

    @property
    def is_mount(self) -> bool:
        return bool(self.chunk_size)

    @property
    def policy(self) -> str:
        return self.kind.removeprefix("former ")

    @property
    def name(self) -> str:
        if not self.is_mount:
            return self.kind
        labels = ", labels in files" if self.classes == "any" else ""
        return f"{self.kind}, K={self.chunk_size}, {self.share}{labels}"

    @property
    def file_name(self) -> str:
        kept = (letter if letter.isalnum() else "-" for letter in self.name.replace("%", ""))
        return "".join(kept).replace("--", "-")


NODES, NODES_CHUNK_SIZE, NODES_MEMORY = 3, 16, 0.4
"""Nodes that share the samples; what each has room for, as a share of all."""

PLAIN = Setting("plain")
ANOTHER, ONE, BUFFER, SORTED = map(Setting, ("another shuffle", "one shuffle", "class shards, buffer", "by class"))
EXCHANGE, NO_EXCHANGE = map(Setting, ("three nodes", "three nodes, no exchange"))


class Numbers(Dataset[int]):
    """The number that each file holds, by the place of its path in ``paths``."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> int:
        with open(self.paths[index], "rb", buffering=0) as file:
            return int(file.read()[NUMBER])


def make_files(folder: Path, images: Images) -> None:
    """Write LABEL/NUMBER.pgm for each image, with its number in a comment."""
    for label in np.unique(images.labels):
        (folder / str(label)).mkdir(parents=True)
    height, width = images.images.shape[1:]
    for number, (image, label) in enumerate(zip(images.images, images.labels, strict=True)):
        head = f"P5\n# {number:05}\n{width} {height}\n255\n"
        (folder / path_of(number, label)).write_bytes(head.encode() + image.tobytes())


def path_of(number: int, label: int) -> str:
    return f"{label}/{number:05}.pgm"


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """The samples of each epoch, uint16[epochs, S], in the order in which they came, and what was wrong with them."""

    orders: UInt16
    wrong_labels: int = 0
    not_once: int = 0
    memory_bytes: int | None = None
    redirected: float | None = None
    seconds: float = 0.0

    def save(self, path: Path) -> None:
        values = {field: getattr(self, field) for field in self.__dataclass_fields__ if field != "orders"}
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            np.savez_compressed(file, orders=self.orders, about=json.dumps(values))
        part.replace(path)

    @classmethod
    def load(cls, path: Path) -> "Recorded":
        with np.load(path) as kept:
            return cls(kept["orders"], **json.loads(str(kept["about"])))


def shuffles(samples: int, epochs: int, seed: int) -> UInt16:
    """uint16[epochs, S]: what `RandomSampler` with this seed asks for, as in `record`."""
    sampler = RandomSampler(range(samples), generator=torch.Generator().manual_seed(seed))
    return np.array([list(sampler) for _ in range(epochs)], np.uint16)


def draw(setting: Setting, seed: int, images: Images, epochs: int) -> Recorded:
    """The order of a setting without a mount."""
    by_class = np.argsort(images.labels, kind="stable").astype(np.uint16)
    if setting == SORTED:
        return Recorded(np.tile(by_class, (epochs, 1)))
    if setting == BUFFER:
        held = len(images) // BUFFER_PART
        drawn = [shuffle_buffer(len(images), held, seed=seed * ANOTHER_SEED + epoch) for epoch in range(epochs)]
        return Recorded(by_class[np.array(drawn)])
    if setting in (EXCHANGE, NO_EXCHANGE):
        return Recorded(of_nodes(images, epochs, seed, None if setting == EXCHANGE else 0.0))
    orders = shuffles(len(images), epochs, seed + ANOTHER_SEED * (setting == ANOTHER))
    return Recorded(np.tile(orders[0], (epochs, 1)) if setting == ONE else orders)


def of_nodes(images: Images, epochs: int, seed: int, exchange: float | None) -> UInt16:
    """What nodes that hold all samples together give a data-parallel job, as the core decides it. They are in step, so
    a batch has a part of each node. Raises SystemExit where the samples cannot be dealt evenly.
    """
    samples, class_of = len(images), images.labels.astype(np.int32)
    if samples % NODES:
        raise SystemExit(f"{samples:,} images cannot be dealt to {NODES} nodes; take a multiple of {NODES}")
    cells = build_cells(class_of, np.ones(samples, np.int64), chunk_size=NODES_CHUNK_SIZE, seed=seed)
    cluster = PoolCluster(
        cells, class_of, nodes=NODES, capacity=round(NODES_MEMORY * samples), seed=seed, exchange=exchange
    )
    asked = shuffles(samples, epochs, seed).astype(np.int32)
    epochs_of = [cluster.epoch([order[node::NODES] for node in range(NODES)])[1] for order in asked]
    return np.array(epochs_of).astype(np.uint16)


def record(setting: Setting, seed: int, images: Images, epochs: int, source: Path, checkout: Checkout) -> Recorded:
    """Mount ``source``, which `make_files` made, and read it. Raises SystemExit if it cannot be mounted."""
    options = ["--classes", setting.classes, "--policy", setting.policy, "--chunk-size", str(setting.chunk_size)]
    options += ["--seed", str(seed)]
    memory = memory_for(source, setting.share, checkout, options)
    with tempfile.TemporaryDirectory(prefix="mnt-", dir=source.parent) as folder:
        mnt = Path(folder) / "mnt"
        command = mounts.redoxfs(source, mnt, "--memory", str(memory), *options, python=checkout.python)
        with mounts.served_by(command, mnt):
            began = time.monotonic()
            orders, asked = read_epochs(mnt, seed, images, epochs)
            seconds = time.monotonic() - began
            stats = mounts.stats(mnt)
    wrong_labels, not_once = faults(orders, asked, images.labels)
    return Recorded(
        orders.astype(np.uint16),
        wrong_labels=0 if setting.classes == "any" else wrong_labels,
        not_once=not_once,
        memory_bytes=memory,
        redirected=stats["redirected"] / stats["opens"],
        seconds=seconds,
    )


def faults(orders: Ints, asked: Ints, labels: npt.NDArray[np.uint8]) -> tuple[int, int]:
    """How many samples, of all epochs, came with another label than was asked for, and how many did not come.

    ``orders`` and ``asked`` are int[epochs, S].
    """
    samples = np.arange(len(labels))
    wrong_labels = np.count_nonzero(labels[orders] != labels[asked])
    return int(wrong_labels), sum(len(np.setdiff1d(samples, order)) for order in orders)


def read_epochs(mnt: Path, seed: int, images: Images, epochs: int) -> tuple[npt.NDArray[np.int64], UInt16]:
    """The samples that came, int64[epochs, S], and those that were asked for."""
    paths = [str(mnt / path_of(number, label)) for number, label in enumerate(images.labels)]
    dataset = Numbers(paths)
    sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(seed))
    loader = DataLoader(dataset, BATCH, sampler=sampler, num_workers=WORKERS, collate_fn=np.array)
    orders = np.array([np.concatenate(list(loader)) for _ in range(epochs)])
    if orders.max() >= len(images):
        raise SystemExit("a file holds the number of no sample")
    return orders, shuffles(len(images), epochs, seed)


def memory_for(source: Path, share: str, checkout: Checkout, options: list[str]) -> int:
    command = [checkout.python, "-P", "-m", "redoxfs", "inspect", "--json", *options, str(source)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd="/")
    if done.returncode:
        raise SystemExit(done.stderr)
    return int(json.loads(done.stdout)["memory_for"][share])


def class_mix(orders: UInt16, labels: npt.NDArray[np.uint8]) -> float:
    """Pearson's chi-squared of the classes of a batch, a degree of freedom, on average over all whole batches.

    It is 1 if batches are drawn at random without replacement from many samples.
    """
    whole = orders.shape[1] // BATCH * BATCH
    of_batch = labels[orders[:, :whole]].reshape(-1, BATCH)
    expected = np.bincount(labels) / len(labels) * BATCH
    seen = np.stack([(of_batch == label).sum(axis=1) for label in range(len(expected))], axis=1)
    is_class = expected > 0
    squared = ((seen - expected)[:, is_class] ** 2 / expected[is_class]).sum(axis=1)
    return float(squared.mean() / (np.count_nonzero(is_class) - 1))
