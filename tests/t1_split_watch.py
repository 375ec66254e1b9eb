"""What the order of asks shows: a set of paths that a job keeps apart, and nothing where there is none."""

import math
import random
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts/bench"))

import loader_opens
from loader_opens import CLASSES, DOCUMENTED, FILES, played, shuffled

from redoxfs.telemetry.split_watch import FOLLOWED, Apart, SplitWatch, cut

Order = Callable[[random.Random, int], list[int]]
"""The paths of an epoch, by its number from 0."""

SPLITS = {"validation_split", "train_test_split", "folds", "few-shot"}
"""Documented loaders that keep paths apart. Folds that rotate do so only when they come again."""


def watch(samples: int, classes: int) -> SplitWatch:
    class_of = (np.arange(samples) * classes // samples).astype(np.int32)
    return SplitWatch(class_of, np.zeros(classes, np.int32), 1)


def feed(follows: SplitWatch, asked: list[int], *, alone: bool = True, at_once: int = 256) -> list[Apart]:
    found = []
    for first in range(0, len(asked), at_once):
        found += follows.look(asked[first : first + at_once], alone=alone)
    return found


def first_seen(
    order: Order, samples: int, classes: int = 4, *, epochs: int = 6, seed: int = 0, alone: bool = True, late: int = 0
) -> tuple[int, int] | None:
    """In which epoch, from 1, a set was seen to come apart, and of how many paths; None: in none.

    ``late``: opens are up to so many places late, as with workers.
    """
    draw, follows = random.Random(seed), watch(samples, classes)
    for number in range(epochs):
        asked = order(draw, number)
        for apart in feed(follows, delayed(draw, asked, late), alone=alone):
            return number + 1, apart.paths
    return None


def delayed(draw: random.Random, asked: list[int], late: int) -> list[int]:
    return [path for _, path in sorted((at + draw.uniform(0, late), path) for at, path in enumerate(asked))]


def by_workers(draw: random.Random, asked: list[int], workers: int, batch: int) -> list[int]:
    """Each worker opens every so many batches, faster or slower."""
    batches = [asked[first : first + batch] for first in range(0, len(asked), batch)]
    opens = []
    for worker in range(workers):
        at_s = draw.uniform(0, batch / 2)
        for path in (path for each in batches[worker::workers] for path in each):
            at_s += draw.uniform(0.5, 1.5)
            opens.append((at_s, path))
    return [path for _, path in sorted(opens)]


def parts(samples: int, share: float = 0.2, seed: int = 7) -> tuple[list[int], list[int]]:
    order = shuffled(random.Random(seed), range(samples))
    return order[int(share * samples) :], order[: int(share * samples)]


@pytest.mark.parametrize("late", [0, 8], ids=["in turn", "workers"])
@pytest.mark.parametrize(("samples", "classes", "epoch"), [(150, 2, 3), (480, 4, 3), (2400, 20, 2), (3000, 600, 2)])
def test_a_split_of_a_script_is_seen_when_two_or_three_epochs_are_over(
    samples: int, classes: int, epoch: int, late: int
) -> None:
    training, validation = parts(samples)
    orders: dict[str, Order] = {
        "both shuffled": lambda draw, _: shuffled(draw, training) + shuffled(draw, validation),
        "validation in order": lambda draw, _: shuffled(draw, training) + validation,
        "validation first": lambda draw, _: validation + shuffled(draw, training),
        "never validated": lambda draw, _: shuffled(draw, training),
    }
    for name, order in orders.items():
        for seed in range(3):
            found = first_seen(order, samples, classes, seed=seed, late=late)
            assert found is not None, name
            assert found[0] == epoch, name
            assert found[1] == pytest.approx(len(validation), rel=0.1, abs=2 * late), name


@pytest.mark.parametrize("late", [0, 8], ids=["in turn", "workers"])
@pytest.mark.parametrize(("samples", "folds", "epoch"), [(480, 3, 5), (480, 5, 7), (3000, 5, 6), (3000, 10, 11)])
def test_folds_that_change_after_every_epoch_are_seen_when_they_come_again(
    samples: int, folds: int, epoch: int, late: int
) -> None:
    once = shuffled(random.Random(7), range(samples))

    def order(draw: random.Random, number: int) -> list[int]:
        validation = once[number % folds :: folds]
        return shuffled(draw, set(once).difference(validation)) + validation

    for seed in range(3):
        found = first_seen(order, samples, epochs=2 * folds, seed=seed, late=late)
        assert found is not None
        assert found[0] == epoch
        assert found[1] == pytest.approx(samples / folds, rel=0.1, abs=2 * late)


def test_validation_four_times_in_a_large_epoch_is_seen() -> None:
    training, validation = parts(6000, 0.1)

    def order(draw: random.Random, _: int) -> list[int]:
        quarters = np.array_split(shuffled(draw, training), 4)
        return [path for quarter in quarters for path in (*quarter.tolist(), *validation)]

    assert first_seen(order, 6000) is not None


@pytest.mark.parametrize("loader", DOCUMENTED)
def test_of_the_loaders_only_those_that_split_are_seen(loader: str) -> None:
    epochs = played(DOCUMENTED[loader][0]).asked()
    follows = watch(FILES, CLASSES)
    seen = [number for number, asked in enumerate(epochs, 1) if feed(follows, asked)]
    assert seen == ([3] if loader in SPLITS else [])


def without_a_split(samples: int, classes: int) -> dict[str, Order]:
    once = shuffled(random.Random(1), range(samples))
    by_class = [[path for path in range(samples) if path * classes // samples == label] for label in range(classes)]
    weights = [math.exp(random.Random(path).gauss(0, 1)) for path in range(samples)]
    shards = [list(range(first, min(first + samples // 16, samples))) for first in range(0, samples, samples // 16)]

    def padded(draw: random.Random, _: int) -> list[int]:
        order = shuffled(draw, range(samples))
        return order + order[:7]

    return {
        "shuffled": lambda draw, _: shuffled(draw, range(samples)),
        "in order": lambda _draw, _: list(range(samples)),
        "in one random order": lambda _draw, _: once,
        "in order, by workers": lambda draw, _: by_workers(draw, list(range(samples)), 4, 32),
        "in one random order, by workers": lambda draw, _: by_workers(draw, once, 8, 16),
        "drop_last": lambda draw, _: shuffled(draw, range(samples))[: samples // 64 * 64],
        "in order, drop_last": lambda _draw, _: list(range(samples // 64 * 64)),
        "padded": padded,
        "a third of an epoch": lambda draw, _: shuffled(draw, range(samples))[: samples // 3],
        "a look at a batch first": lambda draw, _: shuffled(draw, range(samples))[:32] + shuffled(draw, range(samples)),
        "the same look each time": lambda draw, _: list(range(0, samples, 7)) + shuffled(draw, range(samples)),
        "class after class": lambda draw, _: [path for paths in by_class for path in shuffled(draw, paths)],
        "by weight": lambda draw, _: draw.choices(range(samples), weights, k=samples),
        "nearly by size": lambda draw, _: sorted(range(samples), key=lambda at: at + draw.uniform(0, samples * 0.2)),
        "shards": lambda draw, _: [path for shard in shuffled_lists(draw, shards) for path in shuffled(draw, shard)],
        "half, as one of two ranks": lambda draw, _: shuffled(draw, range(samples))[::2],
        "the first batches again and again": lambda draw, _: by_workers(draw, once[:128], 4, 16),
    }


def shuffled_lists(draw: random.Random, lists: Iterable[list[int]]) -> list[list[int]]:
    order = list(lists)
    draw.shuffle(order)
    return order


@pytest.mark.parametrize("name", without_a_split(64, 2))
def test_nothing_is_seen_where_no_set_comes_apart(name: str) -> None:
    for samples, classes in ((64, 2), (240, 4), (600, 3), (1200, 150)):
        for seed in range(3):
            order = without_a_split(samples, classes)[name]
            assert first_seen(order, samples, classes, epochs=12, seed=seed, late=4) is None, (samples, seed)


def test_a_node_that_reads_its_share_keeps_nothing_apart() -> None:
    share = parts(1000, 0.5)[0]
    order: Order = lambda draw, _: shuffled(draw, share)  # noqa: E731
    assert first_seen(order, 1000, alone=False) is None
    assert first_seen(order, 1000) is not None


def test_a_node_that_reads_its_share_of_a_split_shows_it() -> None:
    training, validation = parts(4000)
    order: Order = lambda draw, _: shuffled(draw, training)[::2] + validation[::2]  # noqa: E731
    assert first_seen(order, 4000, alone=False) is not None


def test_classes_that_are_read_apart_are_no_split() -> None:
    """No sample crosses from one class to another."""
    order: Order = lambda draw, _: shuffled(draw, range(500)) + shuffled(draw, range(500, 1000))  # noqa: E731
    assert first_seen(order, 1000, 2) is None
    assert first_seen(order, 1000, 1) is not None


def test_a_random_order_is_hardly_ever_taken_for_a_split() -> None:
    draw = np.random.default_rng(3)
    none = np.zeros(0, np.int64)
    for samples in (32, 48, 64, 200):
        everything, class_of = np.arange(samples), np.zeros(samples, np.int32)
        for _ in range(300):
            one, two = draw.permutation(samples), draw.permutation(samples)
            assert (cut(one, two, none, everything, class_of, alone=True) or (0, False))[0] == 0


def test_trees_are_told_apart() -> None:
    tree_of_class = np.array([0, 1], np.int32)
    follows = SplitWatch((np.arange(1200) // 600).astype(np.int32), tree_of_class, 2)
    training, validation = parts(600)
    draw = random.Random(0)
    found = []
    for _ in range(4):
        found += feed(follows, shuffled(draw, range(600)))
        found += feed(follows, [600 + path for path in (*shuffled(draw, training), *validation)])
    assert [(apart.tree, apart.of) for apart in found] == [(1, 600)]


def test_a_large_tree_is_followed_in_part() -> None:
    samples, classes = 400_000, 20_000
    class_of = np.random.default_rng(0).integers(0, classes, samples).astype(np.int32)
    follows = SplitWatch(class_of, np.zeros(classes, np.int32), 1)
    assert len(follows._paths) == pytest.approx(FOLLOWED, rel=0.1)
    draw = np.random.default_rng(1)
    validation, training = np.split(draw.permutation(samples), [samples // 5])
    found = []
    for _ in range(2):
        found += feed(follows, [*draw.permutation(training).tolist(), *validation.tolist()], at_once=4096)
    (apart,) = found
    assert apart.paths == pytest.approx(samples / 5, rel=0.05)


def test_the_orders_of_the_page_are_of_these_sizes() -> None:
    assert (loader_opens.FILES, loader_opens.CLASSES, loader_opens.VALIDATION) == (480, 4, 96)
