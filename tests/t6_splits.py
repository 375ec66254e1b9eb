"""Scripts that split a tree by themselves, with PyTorch on a real mount: it says so, and says nothing of others."""

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from images import make_images
from machine import Machine

pytest.importorskip("torch")

import torch
from torch.utils.data import DataLoader, DistributedSampler, Subset, WeightedRandomSampler, random_split

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes:UserWarning")

LABELS = {"n00000001": 120, "n00000002": 120}
FILES = sum(LABELS.values())
BATCH = 16
LINE = "the job reads two sets of paths of train; samples cross them"

Script = Callable[[Any, int], Iterator[None]]
"""Reads a dataset with so many workers; yields after each epoch."""


class Images:
    """A file's name for each index, once it was read."""

    def __init__(self, root: Path) -> None:
        self.paths = [str(path) for path in sorted(root.rglob("*.png"))]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> str:
        with open(self.paths[index], "rb") as file:
            file.read()
        return self.paths[index]


def read(data: Any, workers: int, **options: Any) -> None:
    for _ in DataLoader(data, BATCH, num_workers=workers, **options):
        pass


def epochs(data: Any, parts: Sequence[Sequence[int]], workers: int, count: int = 3) -> Iterator[None]:
    """Training is shuffled, validation is in order."""
    for _ in range(count):
        read(Subset(data, parts[0]), workers, shuffle=True)
        if parts[1]:
            read(Subset(data, parts[1]), workers)
        yield


def torch_split(data: Any, workers: int) -> Iterator[None]:
    training, validation = random_split(data, [0.8, 0.2])
    yield from epochs(data, [training.indices, validation.indices], workers)


def validation_split(data: Any, workers: int) -> Iterator[None]:
    """As Keras: the last fifth of a fixed random order, read in that order."""
    order = shuffled(len(data))
    at = len(order) * 4 // 5
    yield from epochs(data, [order[:at], order[at:]], workers)


def train_test_split(data: Any, workers: int) -> Iterator[None]:
    """As scikit-learn with ``stratify``: a random fifth of each class."""
    order = shuffled(len(data))
    halves = [[index for index in order if index // 120 == label] for label in (0, 1)]
    yield from epochs(data, [halves[0][24:] + halves[1][24:], halves[0][:24] + halves[1][:24]], workers)


def folds(data: Any, workers: int) -> Iterator[None]:
    """Five folds, three epochs with each; here the first of them."""
    order = shuffled(len(data))
    yield from epochs(data, [[index for at, index in enumerate(order) if at % 5], order[::5]], workers)


def few_shot(data: Any, workers: int) -> Iterator[None]:
    yield from epochs(data, [shuffled(len(data))[:80], []], workers)


def shuffled(count: int) -> list[int]:
    order = list(range(count))
    random.Random(4).shuffle(order)
    return order


@pytest.fixture
def mounted(machine: Machine, tmp_path: Path) -> Machine:
    root = tmp_path / "data"
    make_images(root, LABELS)
    memory = machine.inspect(root)["memory_for"]["25%"]
    machine.ok("mount", root, machine.mnt, "--memory", str(memory))
    torch.manual_seed(2)
    return machine


@pytest.mark.parametrize(
    ("script", "workers"), [(torch_split, 0), (validation_split, 2), (train_test_split, 2), (folds, 0), (few_shot, 2)]
)
def test_a_split_of_a_script_is_told_by_the_third_epoch(mounted: Machine, script: Script, workers: int) -> None:
    for _ in script(Images(mounted.mnt / "train"), workers):
        pass
    expected = 80 if script is few_shot else FILES // 5
    (paths,) = mounted.stats()["split_paths"].values()
    assert paths == pytest.approx(expected, abs=6)
    assert LINE in mounted.ok("status", mounted.mnt).stdout
    assert mounted.log().count(LINE) == 1
    mounted.ok("report", mounted.mnt, "-o", mounted.folder / "report.html")
    assert LINE in (mounted.folder / "report.html").read_text()
    mounted.ok("umount", mounted.mnt)


def whole_epochs(data: Any, workers: int) -> None:
    read(data, workers, shuffle=True)


def drop_last(data: Any, workers: int) -> None:
    read(data, workers, shuffle=True, drop_last=True)


def in_order(data: Any, workers: int) -> None:
    read(data, workers)


def a_look_first(data: Any, workers: int) -> None:
    next(iter(DataLoader(data, BATCH, shuffle=True, num_workers=workers)))
    read(data, workers, shuffle=True)


def by_weight(data: Any, workers: int) -> None:
    weights = [9.0 if index % 2 else 1.0 for index in range(len(data))]
    read(data, workers, sampler=WeightedRandomSampler(weights, len(data)))


def seven_ranks(data: Any, workers: int) -> None:
    """One after another, with a padded share each."""
    seed = int(torch.randint(1000, (1,)))
    for rank in range(7):
        sampler = DistributedSampler(data, 7, rank, seed=seed)
        read(data, workers, sampler=sampler)


@pytest.mark.parametrize(
    ("loader", "workers"),
    [
        (whole_epochs, 0),
        (drop_last, 2),
        (in_order, 0),
        (in_order, 2),
        (a_look_first, 2),
        (by_weight, 0),
        (seven_ranks, 1),
    ],
)
def test_nothing_is_told_of_loaders_that_split_nothing(
    mounted: Machine, loader: Callable[[Any, int], None], workers: int
) -> None:
    data = Images(mounted.mnt / "train")
    for _ in range(4):
        loader(data, workers)
    stats = mounted.stats()
    assert stats["turns"] > 3 * FILES
    assert stats["split_paths"] == {"train": 0}
    assert LINE not in mounted.log()
    assert "splits" not in mounted.ok("status", mounted.mnt).stdout
    mounted.ok("umount", mounted.mnt)
