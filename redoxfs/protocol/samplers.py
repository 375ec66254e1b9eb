"""The orders of PyTorch's samplers, bit for bit, without PyTorch.

A trace has to be there before the job asks. Where the job's sampler has a seed of its own, its order is a function of
that seed and is computed here: `distributed_orders` for a DistributedSampler, `RandomOrder` for a RandomSampler or a
shuffling DataLoader that was given a generator.

They rest on the following behavior of PyTorch 2.13, which tests/t4_samplers_torch.py compares:

- torch's CPU generator is the MT19937 of numpy's `RandomState`, seeded with the low 32 bits of the seed;
- `torch.randperm` of n swaps each place i but the last with place i + draw % (n - i). From `WIDE` samples on it takes
  draws of 64 bits, and builds the permutation inside out: i goes to place draw % (i + 1), and what was there to i;
- a RandomSampler's epoch ends with a second permutation that it does not use;
- a DataLoader draws a 64-bit seed for its workers before the permutation, whether it has workers or not; one with
  persistent workers does so before the first epoch only.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from redoxfs.arrays import Int32

WIDE = (2**32 - 1) // 20
"""From this many samples on, `torch.randperm` uses another method: remainders of 32 bits are not even enough."""

MOST = 2**31
"""Samples are numbered in 32 bits."""


class RandomOrder(Iterator[Int32]):
    """The orders of successive epochs of a RandomSampler with a generator of its own, each int32[samples].

    Epochs have to be read to their end: an epoch that the job breaks off leaves the generator in another state.

    Args:
        samples: the length of the dataset.
        seed: the argument of the generator's ``manual_seed``.
        loader: as of ``DataLoader(shuffle=True, generator=…)``; else the sampler is iterated alone.
        persistent_workers: the loader's argument.

    Raises:
        ValueError: no samples, or 2^31 and more; a seed that torch does not accept.
    """

    def __init__(self, samples: int, seed: int, *, loader: bool = True, persistent_workers: bool = False) -> None:
        if not 0 < samples < MOST:
            raise ValueError(f"a random order takes 1 to {MOST - 1} samples, not {samples}")
        self._samples = samples
        self._random = _generator(seed)
        self._draws_seed = loader
        self._persistent_workers = persistent_workers

    def __next__(self) -> Int32:
        if self._draws_seed:
            _draws(self._random, 2)
            self._draws_seed = not self._persistent_workers
        order = _permutation(self._random, self._samples)
        _permutation_draws(self._random, self._samples)
        return order


def distributed_orders(
    samples: int, *, world: int, epoch: int, seed: int, shuffle: bool = True, drop_last: bool = False
) -> Int32:
    """int32[world, n]: the orders of a ``DistributedSampler`` for each rank of ``world`` after ``set_epoch(epoch)``.

    n is samples / world, rounded up and filled with samples from the start of the order, or rounded down where
    ``drop_last``.

    Raises:
        ValueError: no samples, or 2^31 and more; a seed that torch does not accept.
    """
    if not 0 < samples < MOST:
        raise ValueError(f"a distributed order takes 1 to {MOST - 1} samples, not {samples}")
    if world < 1:
        raise ValueError(f"world is {world}, not 1 or more")
    everyone = _permutation(_generator(seed + epoch), samples) if shuffle else np.arange(samples, dtype=np.int32)
    each = samples // world if drop_last else -(-samples // world)
    return np.resize(everyone, each * world).reshape(each, world).T


def in_step(orders: Sequence[Int32]) -> Int32:
    """int32[n]: the requests of one node whose ranks follow ``orders``: each rank once in turn; finished ones are
    skipped.
    """
    if not orders:
        return np.empty(0, np.int32)
    turn = np.concatenate([np.arange(len(order)) for order in orders])
    return np.concatenate(orders)[np.argsort(turn, kind="stable")]


def _generator(seed: int) -> np.random.RandomState:
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"seed {seed} has more than 64 bits, which a torch generator does not accept")
    return np.random.RandomState(seed & 0xFFFF_FFFF)


def _draws(random: np.random.RandomState, count: int) -> npt.NDArray[np.uint32]:
    """uint32[count]: the generator's next numbers."""
    return random.randint(0, 2**32, count, dtype=np.uint32)


def _permutation_draws(random: np.random.RandomState, samples: int) -> npt.NDArray[np.unsignedinteger]:
    """uint32[samples - 1], or from `WIDE` samples on uint64[samples]: the draws of a permutation."""
    if samples < WIDE:
        return _draws(random, samples - 1)
    halves = _draws(random, 2 * samples).astype(np.uint64)
    wide: npt.NDArray[np.uint64] = halves[0::2] << np.uint64(32) | halves[1::2]
    return wide


def _permutation(random: np.random.RandomState, samples: int) -> Int32:
    """torch.randperm: 0.4 s for 1.28 M samples, nearly all of it in the swaps, which follow from one another."""
    draws = _permutation_draws(random, samples)
    order = np.arange(samples, dtype=np.int32)
    # Plain ints out of int32 buffers: three times as fast as a list, which takes ten times the memory.
    at: memoryview[int] = order.data
    if samples < WIDE:
        partners = (draws % np.arange(samples, 1, -1, dtype=np.uint32)).astype(np.int32)
        partners += np.arange(samples - 1, dtype=np.int32)
        for i, partner in enumerate(partners.data):
            at[i], at[partner] = at[partner], at[i]
    else:
        partners = (draws % np.arange(1, samples + 1, dtype=np.uint64)).astype(np.int32)
        for i, partner in enumerate(partners.data):
            at[i] = at[partner]
            at[partner] = i
    return order
