"""The orders of access that the slot policy prefetches by (§3.6): from a sampler, or handed in by the job.

Used from the node's task alone; orders are worked out in worker threads.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import trio

from redoxfs.node.cluster.epochs import (
    EpochTracker,
    Orders,
    Sampler,
    orders_of,
    place_in_epochs,
    requests_of,
    samples_of,
)
from redoxfs.node.node import Node
from redoxfs.node.plan import Sharing
from redoxfs.node.threads import in_thread
from redoxfs.peers import Peers
from redoxfs.protocol.turns import Turns


class Prefetch:
    """Tracks the epochs of a plan, where its policy prefetches.

    Args:
        sampler: how the job asks, where that is known.
    """

    def __init__(self, node: Node, sampler: Sampler | None, nursery: trio.Nursery) -> None:
        self._node = node
        self._catalog = node.catalog
        self._sampler = sampler
        self._nursery = nursery
        self._epochs: EpochTracker | None = None
        self._peers: Peers | None = None

    def orders(self, nodes: int) -> Orders | None:
        """How a job on ``nodes`` nodes asks, where the sampler is known. Raises ValueError."""
        return None if self._sampler is None else orders_of(self._sampler, self._traced(), nodes)

    async def prepare(self, sharing: Sharing, orders: Orders | None, turns: Turns | None) -> EpochTracker | None:
        """A tracker of the epoch that is under way after ``turns``, where the policy of ``sharing`` prefetches."""
        samples = self._traced()
        epochs = self._tracker(sharing, samples, orders)
        if epochs is None:
            return None
        epoch, share_made = 0, 0.0
        if turns is not None and self._sampler is not None:
            requests = requests_of(self._sampler, len(samples), sharing.share.nodes)
            epoch, share_made = place_in_epochs(turns, sharing.policy.laps(samples), samples, requests)
        await epochs.start(self._nursery, epoch, share_made)
        return epochs

    def go_on(self, sharing: Sharing, place: Sequence[int] | None, turned: Sequence[int]) -> EpochTracker | None:
        """A tracker that continues in the place of another process."""
        epochs = self._tracker(sharing, self._traced(), self.orders(sharing.share.nodes))
        if epochs is not None and place is not None:
            epochs.go_on(self._nursery, place, turned)
        return epochs

    @property
    def place(self) -> tuple[int, int, int] | None:
        """What `go_on` takes."""
        return None if self._epochs is None else self._epochs.place

    def follow(self, epochs: EpochTracker | None, peers: Peers | None) -> None:
        """Prefetch by ``epochs`` from now on, and send orders that are handed in to ``peers``."""
        self._epochs, self._peers = epochs, peers
        if epochs is not None:
            self._node.watch_turn = epochs.note

    async def follow_from(self, turns: Turns) -> None:
        """Prefetch by the orders of the epoch that is under way after ``turns``, with the plan in force."""
        sharing = self._node.plan.sharing
        assert sharing is not None
        self.follow(await self.prepare(sharing, self.orders(sharing.share.nodes), turns), self._peers)

    async def hand_in(self, data: bytes) -> Mapping[str, Any]:
        """Take the order of this node's next epoch, as paths that end in a zero byte each. Raises ValueError."""
        if self._epochs is None:
            raise ValueError("this mount cannot use an order: it does not prefetch (only --policy slot does)")
        order = await in_thread(self._samples_at, data.split(b"\0"))
        self._epochs.hand_in(order)
        # Before the order leaves: the next process must not give its number to another one.
        self._node.checkpoint()
        return {"samples": len(order)}

    def _tracker(self, sharing: Sharing, samples: npt.NDArray[np.int32], orders: Orders | None) -> EpochTracker | None:
        """None if the policy does not prefetch."""
        policy = sharing.policy
        if not policy.needs_order:
            return None
        node, of_all = sharing.share.node, len(self._catalog.class_of)
        # An order has no entry in the journal, so a checkpoint has it before the next request.
        begun, followed = self._node.checkpoint_soon, self._node.checkpoint
        return EpochTracker(node, policy, samples, of_all, orders, self._send_order, begun, followed)

    def _traced(self) -> npt.NDArray[np.int32]:
        return samples_of(self._catalog, None if self._sampler is None else self._sampler.tree)

    def _send_order(self, epoch: int, order: npt.NDArray[np.int32]) -> None:
        if self._peers is not None:
            self._peers.follow(epoch, order)

    def _samples_at(self, paths: Sequence[bytes]) -> npt.NDArray[np.int32]:
        tree, sample_of = self._catalog.tree, self._catalog.sample_of
        order = []
        for path in paths:
            if not path:
                continue
            entry = tree.find(path)
            if entry < 0:
                raise ValueError(f"{path.decode('utf-8', 'backslashreplace')}: no such file")
            if sample_of[entry] < 0:
                raise ValueError(f"{path.decode('utf-8', 'backslashreplace')}: is not redirected, so it has no order")
            order.append(int(sample_of[entry]))
        return np.array(order, np.int32)
