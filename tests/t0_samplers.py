"""The samplers' orders: fixed values from PyTorch, and properties of any. t4_samplers_torch.py compares many more."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redoxfs.protocol.samplers import RandomOrder, distributed_orders, in_step

SIZES = st.integers(1, 200)
WORLDS = st.integers(1, 9)
SEEDS = st.integers(-(2**63), 2**64 - 8)


def test_torch_2_13_random_sampler() -> None:
    assert [order.tolist() for order in islice(RandomOrder(8, 0, loader=False), 3)] == [
        [4, 0, 7, 3, 2, 5, 1, 6],
        [6, 5, 2, 0, 3, 1, 4, 7],
        [5, 0, 3, 1, 7, 2, 4, 6],
    ]


def test_torch_2_13_data_loader() -> None:
    assert [order.tolist() for order in islice(RandomOrder(8, 0, loader=True), 3)] == [
        [5, 3, 1, 7, 2, 6, 4, 0],
        [2, 3, 4, 7, 1, 0, 6, 5],
        [3, 5, 6, 7, 0, 2, 1, 4],
    ]


def test_torch_2_13_data_loader_with_persistent_workers() -> None:
    assert [order.tolist() for order in islice(RandomOrder(8, 0, persistent_workers=True), 3)] == [
        [5, 3, 1, 7, 2, 6, 4, 0],
        [0, 3, 4, 6, 1, 7, 5, 2],
        [1, 0, 7, 3, 2, 5, 6, 4],
    ]


@pytest.mark.parametrize(
    ("samples", "world", "rank", "epoch", "seed", "drop_last", "order"),
    [
        (10, 2, 0, 0, 0, False, [4, 7, 3, 0, 6]),
        (10, 3, 2, 1, 42, False, [9, 1, 2, 4]),
        (10, 3, 2, 1, 42, True, [9, 1, 2]),
        (2, 5, 4, 0, 7, False, [1]),
        (7, 2, 1, 3, 2**32 + 5, False, [5, 4, 2, 1]),
    ],
)
def test_torch_2_13_distributed_sampler(
    samples: int, world: int, rank: int, epoch: int, seed: int, drop_last: bool, order: list[int]
) -> None:
    made = distributed_orders(samples, world=world, epoch=epoch, seed=seed, drop_last=drop_last)[rank]
    assert made.dtype == np.int32
    assert made.tolist() == order


@given(SIZES, SEEDS, st.booleans())
def test_each_epoch_has_its_own_seeded_permutation(samples: int, seed: int, loader: bool) -> None:
    orders = list(islice(RandomOrder(samples, seed, loader=loader), 3))
    for order in orders:
        assert sorted(order.tolist()) == list(range(samples))
    again = list(islice(RandomOrder(samples, seed, loader=loader), 3))
    assert [order.tolist() for order in orders] == [order.tolist() for order in again]
    if samples > 30:  # 30! is past any chance that two of them are alike
        assert len({tuple(order.tolist()) for order in orders}) == 3


@given(SIZES, WORLDS, SEEDS, st.booleans())
def test_ranks_share_one_padded_permutation(samples: int, world: int, seed: int, shuffle: bool) -> None:
    orders = distributed_orders(samples, world=world, epoch=3, seed=seed, shuffle=shuffle)
    asked = in_step(list(orders)).tolist()
    assert sorted(asked[:samples]) == list(range(samples))
    assert len(asked) == -(-samples // world) * world
    assert asked == (asked[:samples] * world)[: len(asked)]
    if not shuffle:
        assert asked[:samples] == list(range(samples))


@given(SIZES, WORLDS, SEEDS)
def test_drop_last_does_not_change_the_order(samples: int, world: int, seed: int) -> None:
    kept = distributed_orders(samples, world=world, epoch=0, seed=seed, drop_last=True)
    filled = distributed_orders(samples, world=world, epoch=0, seed=seed)
    assert kept.shape == (world, samples // world)
    assert np.array_equal(kept, filled[:, : kept.shape[1]])


def test_ranks_of_one_node_ask_in_turn() -> None:
    orders = [np.array(order, np.int32) for order in ([1, 2, 3], [4], [], [5, 6])]
    assert in_step(orders).tolist() == [1, 4, 5, 2, 6, 3]
    assert in_step([]).tolist() == []


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1])
def test_a_seed_of_more_than_64_bits_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        RandomOrder(10, seed)
    with pytest.raises(ValueError, match="64 bits"):
        distributed_orders(10, world=1, epoch=0, seed=seed)


@pytest.mark.parametrize("samples", [0, -1, 2**31])
def test_a_bad_number_of_samples_is_refused(samples: int) -> None:
    with pytest.raises(ValueError, match="samples"):
        RandomOrder(samples, 0)
    with pytest.raises(ValueError, match="samples"):
        distributed_orders(samples, world=1, epoch=0, seed=0)


def test_a_world_without_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match="world is 0"):
        distributed_orders(10, world=0, epoch=0, seed=0)
