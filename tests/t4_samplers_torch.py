"""Orders that redoxfs computes, compared with the installed PyTorch."""

from collections.abc import Sequence
from itertools import islice, product

import numpy as np
import pytest

from redoxfs.protocol.samplers import RandomOrder, distributed_orders

pytestmark = pytest.mark.programs

torch = pytest.importorskip("torch")
data = pytest.importorskip("torch.utils.data")
distributed = pytest.importorskip("torch.utils.data.distributed")

SIZES = (1, 2, 3, 7, 100, 1000, 12345)
SEEDS = (0, 1, 42, 2**31, 2**32 - 1, 2**32, 2**40 + 7, 2**63 - 1, -1)


class Numbers(Sequence[int]):
    """A dataset in which each sample is its own index."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> int:  # type: ignore[override]
        return range(self._samples)[index]


@pytest.mark.parametrize("samples", SIZES)
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_orders_equal_those_of_distributed_samplers(samples: int, shuffle: bool, drop_last: bool) -> None:
    for world, epoch in product((1, 2, 3, 4, 5, 8), range(4)):
        asked = []
        for rank in range(world):
            sampler = distributed.DistributedSampler(
                Numbers(samples), world, rank, shuffle=shuffle, seed=3, drop_last=drop_last
            )
            sampler.set_epoch(epoch)
            asked.append(list(sampler))
        orders = distributed_orders(samples, world=world, epoch=epoch, seed=3, shuffle=shuffle, drop_last=drop_last)
        assert orders.tolist() == asked


@pytest.mark.parametrize("seed", [s for s in SEEDS if s >= 0])
def test_a_distributed_order_is_right_for_any_seed(seed: int) -> None:
    for rank in range(3):
        sampler = distributed.DistributedSampler(Numbers(1000), 3, rank, seed=seed)
        sampler.set_epoch(2)
        order = distributed_orders(1000, world=3, epoch=2, seed=seed)[rank]
        assert order.dtype == np.int32
        assert order.tolist() == list(sampler)


@pytest.mark.parametrize("samples", SIZES)
@pytest.mark.parametrize("seed", SEEDS)
def test_an_order_equals_that_of_a_random_sampler(samples: int, seed: int) -> None:
    generator = torch.Generator()
    generator.manual_seed(seed)
    sampler = data.RandomSampler(Numbers(samples), generator=generator)
    orders = RandomOrder(samples, seed, loader=False)
    for _ in range(4):
        assert next(orders).tolist() == list(sampler)


@pytest.mark.parametrize("samples", SIZES)
@pytest.mark.parametrize(("batch_size", "drop_last"), [(1, False), (32, False), (100, True)])
def test_an_order_equals_that_of_a_loader_without_workers(samples: int, batch_size: int, drop_last: bool) -> None:
    generator = torch.Generator()
    generator.manual_seed(2**35 + 11)
    loader = data.DataLoader(
        Numbers(samples), batch_size, shuffle=True, drop_last=drop_last, generator=generator, collate_fn=list
    )
    for order in islice(RandomOrder(samples, 2**35 + 11), 4):
        asked = [sample for batch in loader for sample in batch]
        assert asked == order[: len(asked)].tolist()
        assert len(asked) == (samples // batch_size * batch_size if drop_last else samples)


@pytest.mark.parametrize("persistent", [True, False])
def test_an_order_equals_that_of_a_loader_with_workers(persistent: bool) -> None:
    generator = torch.Generator()
    generator.manual_seed(5)
    loader = data.DataLoader(
        Numbers(1000),
        32,
        shuffle=True,
        generator=generator,
        collate_fn=list,
        num_workers=2,
        persistent_workers=persistent,
    )
    for order in islice(RandomOrder(1000, 5, persistent_workers=persistent), 4):
        assert [sample for batch in loader for sample in batch] == order.tolist()
