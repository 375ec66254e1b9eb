"""The order in which each node will request samples, epoch by epoch: the slot policy prefetches by it (§3.6).

Every node computes the orders of all nodes from the job's sampler, an epoch ahead and in a worker thread. Without a
known sampler, each node gets its own order for the next epoch (`redoxfs trace`) and sends it to the others. An epoch is
over after as many requests for samples as its order has. A trace is a hint: requests that leave it are served, but not
prefetched for.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import trio

from redoxfs.dataset import Catalog
from redoxfs.node.threads import in_thread
from redoxfs.protocol import SharedServingPolicy
from redoxfs.protocol.samplers import RandomOrder, distributed_orders, in_step
from redoxfs.protocol.turns import Turns

Int32 = npt.NDArray[np.int32]

Orders = Callable[[int], Sequence[Int32]]
"""Takes an epoch, from 0 and never less than the last one; returns the samples that each node requests, in order."""

log = logging.getLogger(__name__)


class Sampler(Protocol):
    """One of PyTorch's, as `--sampler` names it.

    ``kind``    torch-distributed, whose ranks are dealt to the nodes in equal blocks, or torch-random, one per node
    ``ranks``   the number of ranks on all nodes, None for one per node
    ``tree``    the class tree that it draws from, None for the one with the most samples
    """

    @property
    def kind(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def ranks(self) -> int | None: ...
    @property
    def shuffle(self) -> bool: ...
    @property
    def drop_last(self) -> bool: ...
    @property
    def persistent_workers(self) -> bool: ...
    @property
    def tree(self) -> str | None: ...


def samples_of(catalog: Catalog, tree: str | None) -> Int32:
    """The samples of a class tree in the order in which torchvision's ImageFolder numbers them.

    Raises ValueError if there is no such tree.
    """
    tree_of = catalog.tree_of_class[catalog.class_of]
    if tree is None:
        number = int(np.bincount(tree_of, minlength=1).argmax())
    elif tree in catalog.class_trees:
        number = catalog.class_trees.index(tree)
    else:
        raise ValueError(f"no samples in {tree}; the trees with samples are {', '.join(catalog.class_trees)}")
    return np.flatnonzero(tree_of == number).astype(np.int32)


def orders_of(sampler: Sampler, samples: Int32, nodes: int) -> Orders:
    """The orders of a job on ``nodes`` nodes. Raises ValueError if the ranks cannot be dealt to the nodes."""
    if sampler.kind == "torch-random":
        drawn = enumerate(
            RandomOrder(len(samples), sampler.seed, loader=True, persistent_workers=sampler.persistent_workers)
        )

        def random(epoch: int) -> Sequence[Int32]:
            return [samples[next(order for number, order in drawn if number == epoch)]] * nodes

        return random
    ranks = nodes if sampler.ranks is None else sampler.ranks
    if ranks % nodes:
        raise ValueError(f"{ranks} ranks cannot be dealt to {nodes} nodes in equal numbers")
    at_each = ranks // nodes

    def distributed(epoch: int) -> Sequence[Int32]:
        orders = distributed_orders(
            len(samples),
            world=ranks,
            epoch=epoch,
            seed=sampler.seed,
            shuffle=sampler.shuffle,
            drop_last=sampler.drop_last,
        )
        of_rank = [samples[order] for order in orders]
        return [in_step(of_rank[node * at_each : (node + 1) * at_each]) for node in range(nodes)]

    return distributed


def requests_of(sampler: Sampler, samples: int, nodes: int) -> int:
    """The number of requests in an epoch of all nodes."""
    if sampler.kind == "torch-random":
        return nodes * samples
    ranks = nodes if sampler.ranks is None else sampler.ranks
    return ranks * (samples // ranks if sampler.drop_last else -(-samples // ranks))


def place_in_epochs(turns: Turns, laps: Int32, samples: Int32, requests: int) -> tuple[int, float]:
    """The current epoch, from 0, and the share of its ``requests`` that were made.

    Each request was a turn of one of ``samples``, int32[n], which are in ``laps``, int32[n].
    """
    made = int((laps.astype(np.int64) - 1).sum()) + int(np.unpackbits(turns.had)[samples].sum())
    return made // max(1, requests), made % max(1, requests) / max(1, requests)


class EpochTracker:
    """This node's position in its order; gives the policy the orders of all nodes.

    Args:
        samples: the traced samples. Requests for others, such as those of a validation set, count in no epoch.
        orders: None if the sampler is not known.
        tell: sends this node's order of an epoch to the other nodes.
        begun: called when an epoch has begun, at its first request or between two.
        followed: called between two requests when the policy was told orders.
    """

    def __init__(
        self,
        node: int,
        policy: SharedServingPolicy,
        samples: Int32,
        number_of_samples: int,
        orders: Orders | None,
        tell: Callable[[int, Int32], None],
        begun: Callable[[], None],
        followed: Callable[[], None],
    ) -> None:
        self._node = node
        self._policy = policy
        is_traced = np.zeros(number_of_samples, np.uint8)
        is_traced[samples] = 1
        self._is_traced: memoryview[int] = is_traced.data
        self._orders = orders
        self._tell = tell
        self._begun = begun
        self._followed = followed
        self._own: dict[int, Int32] = {}
        self._epoch = -1
        self._left = 0
        self._length = 0
        # Requests of an epoch whose order is not known yet.
        self._early = 0
        self._nursery: trio.Nursery

    async def start(self, nursery: trio.Nursery, epoch: int = 0, share: float = 0.0) -> None:
        """Begin in ``epoch``, of whose requests ``share`` were made before."""
        self._nursery = nursery
        # An order that is handed in is never that of epoch 0, in which there was none.
        self._epoch = epoch if self._orders is None else epoch - 1
        if self._orders is not None:
            await self._prepare(epoch)
            self._begin(epoch)
            self._left -= round(share * self._left)
            if share and not self._left:
                self._begin(epoch + 1)

    @property
    def place(self) -> tuple[int, int, int]:
        """The epoch, how many of its requests are left, and how many an epoch has: what `go_on` takes."""
        return self._epoch, self._left, self._length

    def go_on(self, nursery: trio.Nursery, place: Sequence[int], turned: Sequence[int]) -> None:
        """Continue in the place of another process; instead of `start`. The policy knows the orders that it knew there.

        Args:
            place: of the other process.
            turned: samples that were requested since.
        """
        self._nursery = nursery
        epoch, left, length = place
        made = sum([self._is_traced[sample] for sample in turned])
        if self._orders is None:
            self._epoch, self._left, self._length = epoch, max(0, left - made), length
            return
        if left > made:
            self._left = left - made
        else:
            # An epoch waited for its order, or was about to begin.
            epoch, self._early = epoch + (left > 0), made - left
        self._epoch, self._length = epoch, length
        nursery.start_soon(self._prepare, epoch + 1 if self._left else epoch)

    def note(self, sample: int) -> None:
        """A turn for ``sample`` was requested here."""
        if self._left and self._is_traced[sample]:
            self._left -= 1
            if not self._left and self._orders is not None:
                self._begin(self._epoch + 1)
        elif self._is_traced[sample] and self._orders is not None:
            self._early += 1

    def hand_in(self, order: Int32) -> None:
        """An epoch begins, with requests of this node in ``order``. Raises ValueError if a sampler gives the orders."""
        if self._orders is not None:
            raise ValueError("this mount computes its orders from --sampler")
        self._epoch += 1
        self._left = self._length = len(order)
        self._tell(self._epoch, order)
        self._policy.follow(self._node, self._epoch, order)

    def _begin(self, epoch: int) -> None:
        self._epoch = epoch
        order = self._own.pop(epoch, None)
        if order is None:
            log.info("epoch %d begins before its order is computed", epoch)
            return
        self._length = len(order)
        self._left, self._early = max(1, self._length - self._early), 0
        self._policy.follow(self._node, epoch, order)
        self._begun()
        self._nursery.start_soon(self._prepare, epoch + 1)

    async def _prepare(self, epoch: int) -> None:
        assert self._orders is not None
        orders = await in_thread(self._orders, epoch, abandon_on_cancel=True)
        for node, order in enumerate(orders):
            if node == self._node:
                self._own[epoch] = order
            else:
                self._policy.follow(node, epoch, order)
        if self._epoch == epoch:
            self._begin(epoch)
        self._followed()
