"""What other nodes ask of this one, and what they answer it: between the core and `redoxfs.peers`.

Messages and answers are the core's; here their samples get their bytes. A sample given to another node leaves the
slots with its bytes, which are kept until they were sent; should they be asked for once more they are read again.
A sample that comes from another node is there for the core with its answer, and for whoever opens it when its last
byte is in.
"""

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import trio

from redoxfs.chunks.store import Payload
from redoxfs.dataset import Catalog
from redoxfs.node.memory import Content
from redoxfs.node.node import Node
from redoxfs.node.plan import Plan, Sharing
from redoxfs.node.supply import all_here
from redoxfs.node.traces import Sampler, Traces, orders_of, samples_of
from redoxfs.peers import Identity, JoinTimeoutError, Peers, RefusedError, Reply, View
from redoxfs.protocol import Answer, Message, SlotNode

PAUSE_S = 0.005
"""Before peers are asked once more for what none of them had, doubled each time up to `LONGEST_PAUSE_S`: what is
missing is on its way between two of them, or waits for a reader at one."""

LONGEST_PAUSE_S = 0.2

log = logging.getLogger(__name__)


class JoinError(Exception):
    """The nodes do not come together: one line."""


@dataclass(frozen=True, slots=True)
class Joining:
    """Which nodes are to come together.

    ``identity``   what all of them must have in common
    ``timeout_s``  how long they may take to come up
    ``sampler``    how the job asks, where the policy can use it and it is known
    ``report``     told the addresses that have not answered yet
    """

    view: View
    identity: Identity
    timeout_s: float
    sampler: Sampler | None
    report: Callable[[Sequence[str]], None]


@asynccontextmanager
async def joined(
    node: Node, catalog: Catalog, plan: Plan, joining: Joining, *, timeout_s: float
) -> AsyncIterator["Host"]:
    """The nodes, once all have answered; they may ask this one from then on.

    Raises:
        JoinError: they do not come together.
    """
    sharing = plan.sharing
    assert sharing is not None
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        host = Host(node, catalog, sharing, joining.view.addresses, nursery, timeout_s=timeout_s)
        peers = Peers(
            joining.view,
            sharing.share.node,
            joining.identity,
            host,
            timeout_s=sharing.timeout_s,
            max_answer_bytes=plan.memory_bytes,
        )
        host.attach(peers)
        try:
            try:
                await host.follow_sampler(joining.sampler)
                await peers.start()
                await peers.join(joining.report, joining.timeout_s)
            except (OSError, ValueError, RefusedError, JoinTimeoutError) as error:
                raise JoinError(str(error)) from error
            yield host
        except trio.Cancelled:
            raise
        except BaseException as error:
            # As it is, and not in the group that a nursery would make of it.
            failure = error
        finally:
            peers.close()
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


class Host:
    """Answers for a node, and takes in what it asked for. All methods are called in the node's task."""

    def __init__(
        self,
        node: Node,
        catalog: Catalog,
        sharing: Sharing,
        addresses: Sequence[str],
        nursery: trio.Nursery,
        *,
        timeout_s: float,
    ) -> None:
        self._node = node
        self._catalog = catalog
        self._addresses = addresses
        self._share = sharing.share
        self._policy = sharing.policy
        self._nursery = nursery
        self._timeout_s = timeout_s
        self._contents: dict[int, Sequence[Content]] = {}
        self._traces: Traces | None = None
        self._peers: Peers

    def attach(self, peers: Peers) -> None:
        """``peers`` sends; before anything else."""
        self._peers = peers
        self._node.attach(self._flush)

    # Traces

    async def follow_sampler(self, sampler: Sampler | None) -> None:
        """Know the orders of the first epoch, where the policy prefetches by them. Raises ValueError."""
        policy = self._policy
        if not isinstance(policy, SlotNode):
            return
        samples = samples_of(self._catalog, None if sampler is None else sampler.tree)
        orders = None if sampler is None else orders_of(sampler, samples, self._share.nodes)
        number = len(self._catalog.class_of)
        self._traces = Traces(
            self._share.node, policy, samples, number, orders, lambda epoch, order: self._peers.follow(epoch, order)
        )
        self._node.watch_turns(self._traces.note)
        await self._traces.start(self._nursery)

    async def trace(self, data: bytes) -> Mapping[str, Any]:
        """The order of this node's next epoch, as paths that end in a zero byte each. Raises ValueError."""
        if self._traces is None:
            raise ValueError("this mount has no use for an order: it does not prefetch (--policy slot does)")
        order = await trio.to_thread.run_sync(self._samples_at, data.split(b"\0"))
        self._traces.hand_in(order)
        return {"samples": len(order)}

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
                raise ValueError(f"{path.decode('utf-8', 'backslashreplace')}: is served as it is, in no order")
            order.append(int(sample_of[entry]))
        return np.array(order, np.int32)

    # What others ask

    async def handle(self, message: Message) -> Reply | None:
        """The answer to another node's message, with the bytes; None where it has the answer."""
        handled = self._policy.handle(message)
        self._flush()
        for sample in handled.stolen:
            self._node.binding.rob(sample)
        answer = handled.answer
        if answer is None:
            return None
        supply = self._node.supply
        demanded = bool(handled.loads) and handled.loads[0].samples[0] in answer.samples
        self._node.counters.demand_loads += demanded
        supply.load(handled.loads, awaited=demanded)
        contents = [supply.give(sample, again=handled.repeated) for sample in answer.samples]
        try:
            await all_here(contents, self._timeout_s)
        except BaseException:
            self._sent(contents)
            raise
        reply = Reply(answer, tuple(content.payload for content in contents))
        self._contents[id(reply)] = contents
        return reply

    def release(self, reply: Reply) -> None:
        """The bytes of ``reply`` have been sent."""
        self._sent(self._contents.pop(id(reply)))

    def follow(self, requester: int, epoch: int, order: npt.NDArray[np.int32]) -> None:
        """``requester`` tells the order of its requests."""
        if isinstance(self._policy, SlotNode):
            self._policy.follow(requester, epoch, order)

    def restarted(self, node: int) -> None:
        """Another process has taken the place of ``node``."""
        log.warning("node %d was started again; what it had been given may be missing from this lap", node)

    # What others answer

    def receive(self, answer: Answer, sizes: Sequence[int]) -> Sequence[Callable[[Payload], None]] | None:
        """What to call with the bytes of each of the answer's samples; None where they are not wanted."""
        del sizes  # the core keeps account of what the samples should have
        delivered = self._policy.receive(answer)
        if delivered is None:
            return None
        contents = self._node.expect_from_peer(answer.samples)
        self._node.counters.remote_samples += len(contents)
        for ticket, served in delivered:
            self._node.delivered(ticket, served)
        self._node.forget_without_room(answer.samples)
        self._flush()
        return [partial(self._node.supply.came, content) for content in contents]

    def stats(self) -> dict[str, Any]:
        """What `stats.json` says of other nodes."""
        told = self._peers.stats()
        addresses = [address for number, address in enumerate(self._addresses) if number != self._share.node]
        of_policy = {}
        if isinstance(self._policy, SlotNode):
            of_policy = {"prefetched": self._policy.prefetched, "conflicts": self._policy.conflicts}
        return {
            "node": self._share.node,
            "nodes": self._share.nodes,
            "view": told["view"],
            "remote_bytes_in": told["bytes_in"],
            "remote_bytes_out": told["bytes_out"],
            **of_policy,
            "retries": told["retries"],
            "peers": [{"address": address, **told["peers"][address]} for address in addresses],
        }

    def _flush(self) -> None:
        outbox = self._policy.outbox
        if not outbox:
            return
        messages = outbox.copy()
        outbox.clear()
        for message in messages:
            self._node.counters.remote_requests += 1
            again = getattr(message, "again", 0)
            if again:
                self._nursery.start_soon(self._send_late, message, min(LONGEST_PAUSE_S, PAUSE_S * 2 ** min(again, 8)))
            else:
                self._peers.send(message)

    async def _send_late(self, message: Message, pause_s: float) -> None:
        await trio.sleep(pause_s)
        self._peers.send(message)

    def _sent(self, contents: Sequence[Content]) -> None:
        for content in contents:
            self._node.sent(content)
