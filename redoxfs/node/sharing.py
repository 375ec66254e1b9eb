"""What other nodes ask of this one, and what they answer it: between the core and `redoxfs.peers`.

A new view comes from the launcher (`redoxfs nodes --set`). It is a new beginning for all nodes of it: another plan,
laps counted from one, other peers; what is open stays open, and who waits is asked for anew. The port is closed for a
moment. Nodes that have not heard of it yet are asked until they have.

Messages and answers are the core's; here their samples get their bytes. A sample given to another node leaves the
slots with its bytes, which are kept until they were sent; should they be asked for once more they are read again.
A sample that comes from another node is there for the core with its answer, and for whoever opens it when its last
byte is in.
"""

import json
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
from redoxfs.node.plan import Plan, Share, SharedServingPolicy
from redoxfs.node.supply import all_here
from redoxfs.node.traces import Sampler, Traces, orders_of, samples_of
from redoxfs.peers import Identity, JoinTimeoutError, Peers, RefusedError, Reply, Transport, View
from redoxfs.peers.bounds import Bounds
from redoxfs.protocol import Answer, Delivered, LocalFirst, Message, RemoteRead, SlotNode, Take

PAUSE_S = 0.005
"""Before peers are asked once more for what none of them had, doubled each time up to `LONGEST_PAUSE_S`: what is
missing is on its way between two of them, or waits for a reader at one."""

LONGEST_PAUSE_S = 0.2

SILENT_SHARE = 0.5
"""Of --peer-timeout: a node that is silent for so long is taken for lost, and those who wait for it are answered by
others within the rest."""

log = logging.getLogger(__name__)


class JoinError(Exception):
    """The nodes do not come together: one line."""


@dataclass(frozen=True, slots=True)
class Joining:
    """Which nodes are to come together.

    ``plan_for``   how the dataset is served by node i of n
    ``identity``   what all of them must have in common, given the plan
    ``timeout_s``  how long they may take to come up
    ``sampler``    how the job asks, where the policy can use it and it is known
    ``report``     told the addresses that have not answered yet
    ``transport``  what calls go over
    """

    view: View
    plan_for: Callable[[int, int], Plan]
    identity: Callable[[Plan], Identity]
    timeout_s: float
    sampler: Sampler | None
    report: Callable[[Sequence[str]], None]
    transport: Callable[[View], Transport]


@asynccontextmanager
async def joined(
    node: Node, catalog: Catalog, plan: Plan, joining: Joining, *, timeout_s: float
) -> AsyncIterator["Host"]:
    """The nodes, once all have answered; they may ask this one from then on.

    Raises:
        JoinError: they do not come together.
    """
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        host = Host(node, catalog, joining, nursery, timeout_s=timeout_s)
        try:
            try:
                await host.start(plan, joining.view)
            except OSError as error:
                raise JoinError(error.strerror or str(error)) from error
            except (ValueError, RefusedError, JoinTimeoutError) as error:
                raise JoinError(str(error)) from error
            yield host
        except trio.Cancelled:
            raise
        except BaseException as error:
            # As it is, and not in the group that a nursery would make of it.
            failure = error
        finally:
            host.close()
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


class Host:
    """Answers for a node, and takes in what it asked for. All methods are called in the node's task."""

    def __init__(
        self, node: Node, catalog: Catalog, joining: Joining, nursery: trio.Nursery, *, timeout_s: float
    ) -> None:
        self._node = node
        self._catalog = catalog
        self._joining = joining
        self._nursery = nursery
        self._timeout_s = timeout_s
        self._contents: dict[int, Sequence[Content]] = {}
        self._traces: Traces | None = None
        self._peers: Peers | None = None
        self._view = joining.view
        self._own = ""
        self._policy: SharedServingPolicy
        self._share: Share
        self._renewing = trio.Lock()

    async def start(self, plan: Plan, view: View) -> None:
        """Meet the others. Raises OSError, ValueError, RefusedError, JoinTimeoutError."""
        assert plan.sharing is not None
        self._own = view.addresses[plan.sharing.share.node]
        await self._enter(view, plan, renews=False)
        assert self._peers is not None
        await self._peers.join(self._joining.report, self._joining.timeout_s)
        self._view = self._peers.view

    def close(self) -> None:
        """Leave the others, and end every thread."""
        if self._peers is not None:
            self._peers.close()

    async def _enter(self, view: View, plan: Plan, *, renews: bool) -> None:
        """Answer the nodes of ``view`` from now on, as ``plan`` says."""
        self._view = view
        sharing = plan.sharing
        if sharing is None:
            self._peers = self._traces = None
            return
        self._peers = Peers(
            view,
            sharing.share.node,
            self._joining.identity(plan),
            self,
            timeout_s=sharing.timeout_s,
            silence_s=sharing.timeout_s * SILENT_SHARE,
            max_answer_bytes=plan.memory_bytes,
            bounds=self._bounds(sharing.policy),
            renews=renews,
            transport=self._joining.transport(view),
        )
        self._policy, self._share = sharing.policy, sharing.share
        self._node.attach(self._flush)
        await self._follow_sampler()
        await self._peers.start()

    def _bounds(self, policy: SharedServingPolicy) -> Bounds:
        catalog = self._catalog
        if isinstance(policy, SlotNode):
            return Bounds(len(catalog.class_of), len(catalog.class_names), kinds=(RemoteRead,), home_of=policy.home_of)
        return Bounds(len(catalog.class_of), len(catalog.class_names), kinds=(Take,), class_of=catalog.class_of)

    # Views

    async def nodes(self, data: bytes) -> Mapping[str, Any]:
        """The view; with a JSON list of addresses, a new one of these nodes. Raises ValueError."""
        if not data:
            return {"view": self._view.number, "nodes": self._view.addresses}
        addresses = json.loads(data)
        if not (isinstance(addresses, list) and all(isinstance(address, str) for address in addresses)):
            raise ValueError("expected a list of addresses")
        if self._own not in addresses:
            raise ValueError(f"this node, {self._own}, is not among them; to end it: redoxfs umount")
        async with self._renewing:
            view = View(self._view.number + 1, tuple(addresses))
            plan = await trio.to_thread.run_sync(
                self._joining.plan_for, addresses.index(self._own), len(addresses), abandon_on_cancel=True
            )
            self.close()
            for contents in self._contents.values():
                self._sent(contents)
            self._contents.clear()
            try:
                await self._enter(view, plan, renews=True)
            except OSError as error:
                # The port is another's now. The old view is gone: this node goes on as if it were alone.
                plan = await trio.to_thread.run_sync(self._joining.plan_for, 0, 1)
                await self._enter(View(view.number, (self._own,)), plan, renews=True)
                raise ValueError(f"{error}; the node goes on by itself") from error
            finally:
                self._node.renew(plan)
            log.info("view %d: %s", view.number, ", ".join(addresses))
            if self._peers is not None:
                self._nursery.start_soon(self._join_late, self._peers)
        return {"view": view.number, "nodes": view.addresses}

    async def _join_late(self, peers: Peers) -> None:
        def report(missing: Sequence[str]) -> None:
            log.info("waiting for %s", ", ".join(missing) if missing else "nobody: all nodes are there")

        try:
            await peers.join(report, self._joining.timeout_s)
        except (RefusedError, JoinTimeoutError) as error:
            log.warning("%s", error)

    # Traces

    async def _follow_sampler(self) -> None:
        """Know the orders of the first epoch, where the policy prefetches by them. Raises ValueError."""
        policy, sampler = self._policy, self._joining.sampler
        if not isinstance(policy, SlotNode):
            return
        samples = samples_of(self._catalog, None if sampler is None else sampler.tree)
        orders = None if sampler is None else orders_of(sampler, samples, self._share.nodes)
        self._traces = Traces(self._share.node, policy, samples, len(self._catalog.class_of), orders, self._tell_order)
        self._node.watch_turns(self._traces.note)
        await self._traces.start(self._nursery)

    def _tell_order(self, epoch: int, order: npt.NDArray[np.int32]) -> None:
        if self._peers is not None:
            self._peers.follow(epoch, order)

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
        self._sent(self._contents.pop(id(reply), ()))

    def follow(self, requester: int, epoch: int, order: npt.NDArray[np.int32]) -> None:
        """``requester`` tells the order of its requests."""
        if isinstance(self._policy, SlotNode):
            self._policy.follow(requester, epoch, order)

    # How others are

    def lost(self, node: int) -> None:
        """``node`` does not answer any more."""
        self._deliver(self._policy.lost(node))

    def found(self, node: int) -> None:
        """``node`` answers again."""
        self._deliver(self._policy.found(node))

    def restarted(self, node: int) -> None:
        """Another process has taken the place of ``node``."""
        self._deliver(self._policy.restarted(node))

    def begun(self) -> npt.NDArray[np.int32]:
        """int32[C]: how many laps of each class have begun."""
        policy = self._policy
        return policy.begun() if isinstance(policy, LocalFirst) else np.zeros(0, np.int32)

    def rejoin(self, begun: npt.NDArray[np.int32]) -> None:
        """This process has taken the place of another."""
        if isinstance(self._policy, LocalFirst):
            log.info("another process was this node before: it takes part again from the next lap of each class")
            self._policy.rejoin(begun)
            self._flush()

    # What others answer

    def receive(self, answer: Answer, sizes: Sequence[int]) -> Sequence[Callable[[Payload], None]] | None:
        """What to call with the bytes of each of the answer's samples; None where they are not wanted."""
        del sizes  # the core keeps account of what the samples should have
        delivered = self._policy.receive(answer)
        self._flush()
        if delivered is None:
            return None
        contents = self._node.expect_from_peer(answer.samples)
        self._node.counters.remote_samples += len(contents)
        self._deliver(delivered)
        self._node.forget_without_room(answer.samples)
        return [partial(self._node.supply.came, content) for content in contents]

    def stats(self) -> dict[str, Any]:
        """What `stats.json` says of other nodes."""
        told: dict[str, Any] = {"view": self._view.number}
        if self._peers is None:
            return {**told, "node": 0, "nodes": 1, "peers": []}
        of_peers = self._peers.stats()
        addresses = [address for number, address in enumerate(self._view.addresses) if number != self._share.node]
        if isinstance(self._policy, SlotNode):
            told["prefetched"] = self._policy.prefetched
            told["conflicts"] = self._policy.conflicts
            told["degraded"] = self._policy.degraded + self._node.counters.degraded
        return {
            **told,
            "node": self._share.node,
            "nodes": self._share.nodes,
            "missed": self._policy.missed,
            "remote_bytes_in": of_peers["bytes_in"],
            "remote_bytes_out": of_peers["bytes_out"],
            "retries": of_peers["retries"],
            "peers": [{"address": address, **of_peers["peers"][address]} for address in addresses],
        }

    def _deliver(self, delivered: Sequence[Delivered]) -> None:
        self._void()
        for ticket, served in delivered:
            self._node.delivered(ticket, served)
        self._flush()

    def _void(self) -> None:
        policy = self._policy
        if policy.unloaded or policy.robbed:
            self._node.void(policy.unloaded, policy.robbed)
            policy.unloaded.clear()
            policy.robbed.clear()

    def _flush(self) -> None:
        self._void()
        outbox = self._policy.outbox
        if not outbox or self._peers is None:
            return
        messages = outbox.copy()
        outbox.clear()
        for message in messages:
            self._node.counters.remote_requests += 1
            again = message.again if isinstance(message, Take) else 0
            if again:
                pause_s = min(LONGEST_PAUSE_S, PAUSE_S * 2 ** min(again, 8))
                self._nursery.start_soon(self._send_late, self._peers, message, pause_s)
            else:
                self._peers.send(message)

    async def _send_late(self, peers: Peers, message: Message, pause_s: float) -> None:
        await trio.sleep(pause_s)
        peers.send(message)

    def _sent(self, contents: Sequence[Content]) -> None:
        for content in contents:
            self._node.sent(content)
