"""The common part of all systems: the setting of the comparison, and the counts of an epoch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int8 = npt.NDArray[np.int8]
Int32 = npt.NDArray[np.int32]

Orders = Callable[[int], Sequence[Int32]]
"""By epoch, int32[files / nodes] for each node: the order in which its job asks. Each epoch is a permutation."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The dataset and the cluster.

    ``files``     a multiple of ``nodes``, so that all nodes get equally many
    ``resident``  the memory of all nodes together, as a share of the samples
    ``batch``     samples of a batch of one node
    """

    files: int = 1_279_998
    nodes: int = 3
    resident: float = 0.25
    chunk_size: int = 64
    classes: int = 1_000
    batch: int = 256
    seed: int = 0

    @property
    def node_capacity(self) -> int:
        """Samples that the memory of one node holds."""
        return round(self.resident * self.files / self.nodes)

    def random(self, epoch: int, purpose: int = 0) -> np.random.Generator:
        """Its own numbers for each epoch and purpose. Purpose 0 is the default; orders use none of them."""
        return np.random.default_rng([self.seed, epoch, purpose, 1])


@dataclass(frozen=True, slots=True)
class Epoch:
    """What happened in an epoch, over all nodes together.

    ``served``          int32[files], the samples in the order in which the nodes trained on them, step by step
    ``node``            int8[files], the node that trained on each
    ``stored``          int32[files], the chunk or shard of each sample: the samples that a single read may bring
    ``file_reads``      reads of one file each, at random places
    ``chunk_reads``     sequential reads of a chunk or a shard, or of parts of one
    ``chunk_samples``   samples that these brought
    ``messages``        requests to another node
    ``remote_samples``  samples that nodes sent each other
    ``peak``            samples in the memory of all nodes at most
    """

    served: Int32
    node: Int8
    stored: Int32
    file_reads: int = 0
    chunk_reads: int = 0
    chunk_samples: int = 0
    messages: int = 0
    remote_samples: int = 0
    peak: int = 0


System = Callable[[Setting, Orders], Iterator[Epoch]]
"""Yields epoch after epoch, without end."""


def in_step(by_node: Sequence[Int32]) -> tuple[Int32, Int8]:
    """The samples of all nodes, the first of each node, then the second, …, and the node of each.

    Where nodes have unequally many, those with more continue alone.
    """
    step = np.concatenate([np.arange(len(samples)) for samples in by_node])
    node = np.repeat(np.arange(len(by_node), dtype=np.int8), [len(samples) for samples in by_node])
    turn = np.argsort(step, kind="stable")
    return np.concatenate(by_node)[turn], node[turn]


def side_by_side(setting: Setting, together: int | None = None) -> Int32:
    """int32[files]: the chunk of each sample where ``together`` consecutive samples share one."""
    return np.arange(setting.files, dtype=np.int32) // (together or setting.chunk_size)


def are_remote(holders: Int8, node: Int8) -> int:
    """How many samples another node holds; ``holders`` is -1 where no node does."""
    return int(np.count_nonzero((holders >= 0) & (holders != node)))
