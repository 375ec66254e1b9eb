"""What other nodes ask of this one, and what they answer it: between the core and `redoxfs.peers`.

A new view comes from the launcher (`redoxfs nodes --set`). It is a new beginning for all nodes of it: another plan,
laps counted from one, other peers; what is open stays open, and who waits is asked for anew. The port is closed for a
moment. Nodes that have not heard of it yet are asked until they have. A state that is loaded is such a view, of the
same nodes, whose laps go on where that was saved: what was given since then must not be taken in any more.

Nodes that are started with `--resume` tell each other what they kept, and each comes to the same laps by itself. None
answers for samples before it has.

Messages and answers are the core's; here their samples get their bytes. A sample given to another node leaves the
slots with its bytes, which are kept until they were sent; should they be asked for once more they are read again.
A sample that comes from another node is there for the core with its answer, and for whoever opens it when its last
byte is in.
"""

import hashlib
import json
import logging
import secrets
import time
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
from redoxfs.node.cluster.epochs import (
    EpochTracker,
    Orders,
    Sampler,
    orders_of,
    place_in_epochs,
    requests_of,
    samples_of,
)
from redoxfs.node.memory import Content
from redoxfs.node.node import Node
from redoxfs.node.plan import Plan, Share, SharedServingPolicy
from redoxfs.node.state import (
    WRITE_EVERY_S,
    State,
    StateError,
    StateWriter,
    longest_bytes,
    name_of,
    summary,
    told_of,
)
from redoxfs.node.supply import all_here
from redoxfs.peers import Identity, JoinTimeoutError, Peers, RefusedError, Reply, Transport, View
from redoxfs.peers.bounds import LAST_LAP_TOLD, Bounds, check_laps
from redoxfs.peers.view import ANEW, RESUMED
from redoxfs.protocol import Answer, Delivered, LocalFirst, Message, RemoteRead, SlotNode, Take
from redoxfs.protocol.turns import Turns

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
class ClusterConfig:
    """Which nodes are to come together.

    ``plan_for``   how the dataset is served by node i of n
    ``identity``   what all of them must have in common, given the plan
    ``timeout_s``  how long they may take to come up
    ``sampler``    how the job asks, where the policy can use it and it is known
    ``report``     told the addresses that have not answered yet
    ``transport``  what calls go over
    ``kept``       with --resume what this node's laps go on from, as its file has it, empty where there is none
    ``say``        told lines for who started this
    """

    view: View
    plan_for: Callable[[int, int], Plan]
    identity: Callable[[Plan], Identity]
    timeout_s: float
    sampler: Sampler | None
    report: Callable[[Sequence[str]], None]
    transport: Callable[[View], Transport]
    kept: bytes | None
    say: Callable[[str], None]


@asynccontextmanager
async def joined(
    node: Node, catalog: Catalog, plan: Plan, config: ClusterConfig, state: StateWriter, *, timeout_s: float
) -> AsyncIterator["Host"]:
    """The nodes, once all have answered; they may ask this one from then on.

    Raises:
        JoinError: they do not come together.
    """
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        host = Host(node, catalog, config, state, nursery, timeout_s=timeout_s)
        try:
            try:
                await host.start(plan, config.view)
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
        self,
        node: Node,
        catalog: Catalog,
        config: ClusterConfig,
        state: StateWriter,
        nursery: trio.Nursery,
        *,
        timeout_s: float,
    ) -> None:
        self._node = node
        self._catalog = catalog
        self._config = config
        self._state = state
        self._nursery = nursery
        self._timeout_s = timeout_s
        self._contents: dict[int, Sequence[Content]] = {}
        self._epochs: EpochTracker | None = None
        self._peers: Peers | None = None
        self._view = config.view
        self._own = ""
        # Node 0's counts, if all begin anew: later than that of any laps before.
        self.lap_lineage = f"{time.time_ns():020}-{secrets.token_hex(4)}.{0:08}."
        # What the laps of this view go on from.
        self._kept = config.kept or b""
        self._policy: SharedServingPolicy
        self._share: Share
        self._renewing = trio.Lock()

    async def start(self, plan: Plan, view: View) -> None:
        """Meet the others. Raises OSError, ValueError, RefusedError, JoinTimeoutError."""
        assert plan.sharing is not None
        self._own = view.addresses[plan.sharing.share.node]
        self._state.share(self)
        start_point = ANEW if self._config.kept is None else RESUMED
        await self._enter(view, plan, self._orders(plan.nodes), start_point, self.lap_lineage)
        assert self._peers is not None
        await self._peers.join(self._config.report, self._config.timeout_s)
        self._view = self._peers.view

    def close(self) -> None:
        """Leave the others, and end every thread."""
        if self._peers is not None:
            self._peers.close()

    async def _enter(
        self,
        view: View,
        plan: Plan,
        orders: Orders | None,
        start_point: str,
        lap_lineage: str,
        *,
        turns: Turns | None = None,
    ) -> None:
        """Answer the nodes of ``view`` from now on, as ``plan`` says, whose laps have come as far as ``turns``.

        Until that is possible all that this tells is of the view before.
        """
        sharing = plan.sharing
        if sharing is None:
            self._view, self.lap_lineage = view, lap_lineage
            self._peers = self._epochs = None
            return
        peers = Peers(
            view,
            sharing.share.node,
            self._config.identity(plan),
            self,
            self,
            timeout_s=sharing.timeout_s,
            silence_s=sharing.timeout_s * SILENT_SHARE,
            max_answer_bytes=plan.memory_bytes,
            max_turns_bytes=longest_bytes(sharing.policy.turns()),
            start_point=start_point,
            lap_lineage=lap_lineage,
            bounds=self._bounds(sharing.policy),
            renews=view.number > self._config.view.number,
            transport=self._config.transport(view),
        )
        traces = await self._traces_of(sharing.policy, sharing.share, orders, turns)
        await peers.start()
        self._view, self.lap_lineage, self._peers = view, lap_lineage, peers
        self._policy, self._share = sharing.policy, sharing.share
        self._node.attach(self._flush)
        self._follow(traces)

    def _bounds(self, policy: SharedServingPolicy) -> Bounds:
        catalog = self._catalog
        if isinstance(policy, SlotNode):
            return Bounds(len(catalog.class_of), len(catalog.class_names), kinds=(RemoteRead,), home_of=policy.home_of)
        return Bounds(len(catalog.class_of), len(catalog.class_names), kinds=(Take,), class_of=catalog.class_of)

    # Views

    async def view(self, data: bytes) -> Mapping[str, Any]:
        """The view; with a JSON list of addresses, a new one of these nodes. Raises ValueError."""
        if not data:
            return {"view": self._view.number, "nodes": self._view.addresses}
        addresses = json.loads(data)
        if not (isinstance(addresses, list) and all(isinstance(address, str) for address in addresses)):
            raise ValueError("expected a list of addresses")
        if self._own not in addresses:
            raise ValueError(f"this node, {self._own}, is not among them; to end it: redoxfs umount")
        try:
            await self._renew(tuple(addresses), None, b"")
        finally:
            await self._state.begin_anew()
        return {"view": self._view.number, "nodes": self._view.addresses}

    async def _renew(self, addresses: tuple[str, ...], turns: Turns | None, data: bytes) -> None:
        """Go on with these nodes, from ``turns``, which ``data`` is the file of, if there are any.

        Raises ValueError; all stays as it is, then, unless it says otherwise.
        """
        async with self._renewing:
            view = View(self._view.number + 1, addresses)
            start_point = ANEW if turns is None else name_of(data)
            orders = self._orders(len(addresses))
            plan = await self._plan(addresses.index(self._own), len(addresses), turns)
            self.close()
            for contents in self._contents.values():
                self._sent(contents)
            self._contents.clear()
            self._kept = data
            lap_lineage = _lineage_after(self.lap_lineage, f"{view.digest} {start_point}")
            try:
                await self._enter(view, plan, orders, start_point, lap_lineage, turns=turns)
            except OSError as error:
                # The port is another's now. The old view is gone: this node goes on as if it were alone.
                plan = await self._plan(0, 1, turns)
                await self._enter(View(view.number, (self._own,)), plan, None, start_point, lap_lineage)
                raise ValueError(f"{error}; the node goes on by itself") from error
            finally:
                if turns is None:
                    self._node.renew(plan)
                else:
                    self._node.go_on(plan)
            log.info("view %d: %s", view.number, ", ".join(addresses))
            if self._peers is not None:
                self._nursery.start_soon(self._join_late, self._peers)

    async def _plan(self, node: int, nodes: int, turns: Turns | None) -> Plan:
        def plan_for() -> Plan:
            plan = self._config.plan_for(node, nodes)
            if turns is not None:
                plan.policy.restore(_part_of(turns, node, nodes))
            return plan

        return await trio.to_thread.run_sync(plan_for, abandon_on_cancel=True)

    async def _join_late(self, peers: Peers) -> None:
        def report(missing: Sequence[str]) -> None:
            log.info("waiting for %s", ", ".join(missing) if missing else "nobody: all nodes are there")

        while True:
            try:
                await peers.join(report, self._config.timeout_s)
            except JoinTimeoutError as error:
                log.warning("%s; it is still waited for", error)
            except RefusedError as error:
                log.warning("%s", error)
                return
            else:
                return

    # Traces

    def _orders(self, nodes: int) -> Orders | None:
        """How a job on so many nodes asks, where the sampler is known. Raises ValueError."""
        sampler = self._config.sampler
        return None if sampler is None else orders_of(sampler, self._traced(), nodes)

    def _traced(self) -> npt.NDArray[np.int32]:
        sampler = self._config.sampler
        return samples_of(self._catalog, None if sampler is None else sampler.tree)

    async def _traces_of(
        self, policy: SharedServingPolicy, share: Share, orders: Orders | None, turns: Turns | None
    ) -> EpochTracker | None:
        """What knows the orders of the epoch that is under way, where the policy prefetches by them."""
        if not isinstance(policy, SlotNode):
            return None
        samples = self._traced()
        traces = EpochTracker(share.node, policy, samples, len(self._catalog.class_of), orders, self._tell_order)
        epoch, share_made = 0, 0.0
        if turns is not None and self._config.sampler is not None:
            requests = requests_of(self._config.sampler, len(samples), share.nodes)
            epoch, share_made = place_in_epochs(turns, policy.laps(samples), samples, requests)
        await traces.start(self._nursery, epoch, share_made)
        return traces

    def _follow(self, traces: EpochTracker | None) -> None:
        """Prefetch by ``traces`` from now on."""
        self._epochs = traces
        if traces is not None:
            self._node.watch_turns(traces.note)

    async def _follow_from(self, turns: Turns) -> None:
        """Prefetch by the orders of the epoch that is under way after ``turns``."""
        orders = self._orders(self._share.nodes)
        self._follow(await self._traces_of(self._policy, self._share, orders, turns))

    def _tell_order(self, epoch: int, order: npt.NDArray[np.int32]) -> None:
        if self._peers is not None:
            self._peers.follow(epoch, order)

    async def trace(self, data: bytes) -> Mapping[str, Any]:
        """The order of this node's next epoch, as paths that end in a zero byte each. Raises ValueError."""
        if self._epochs is None:
            raise ValueError("this mount has no use for an order: it does not prefetch (--policy slot does)")
        order = await trio.to_thread.run_sync(self._samples_at, data.split(b"\0"))
        self._epochs.hand_in(order)
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

    # How far all are

    @property
    def node(self) -> int:
        """This node's number."""
        return 0 if self._peers is None else self._share.node

    @property
    def nodes(self) -> int:
        """How many there are."""
        return 1 if self._peers is None else self._share.nodes

    def kept(self) -> bytes:
        """What the laps go on from: this node's part or, of a state that was loaded, all."""
        return self._kept

    def turns(self) -> bytes:
        """What this node gave its readers by now."""
        return self._state.encoded()

    async def resume(self, kept: Mapping[str, bytes]) -> str:
        """Go on where all nodes were; the origin of these laps. Raises ValueError."""
        of_all = {self._own: self._kept, **kept}
        states = await self._decoded({address: data for address, data in of_all.items() if data})
        if not states:
            self._config.say("there is nothing to resume at any node")
            return ""
        # Files of laps that began at another time are left over, such as of a node that gave nothing in these.
        lap_lineage = max(state.lap_lineage for state in states.values())
        decoded = {address: state.turns for address, state in states.items() if state.lap_lineage == lap_lineage}
        turns = self._policy.merged(list(decoded.values()))
        nothing = turns._replace(had=np.zeros_like(turns.had), given=0)
        self._policy.restore(turns, decoded.get(self._own, nothing))
        told = told_of(summary(turns, len(self._catalog.class_of)))
        self._config.say(
            f"resumed: {told} at all nodes; "
            f"what a node that was killed had served in its last {WRITE_EVERY_S:g} s may come twice"
        )
        lacking = [address for address in of_all if address not in decoded]
        if lacking:
            self._config.say(f"nothing was kept of {', '.join(lacking)}: what it served in these laps comes again")
        await self._follow_from(turns)
        return lap_lineage

    async def follow_state(self, data: bytes) -> None:
        """Go on from the state that the others have loaded. Raises ValueError."""
        try:
            turns = await trio.to_thread.run_sync(self._state.decoded_whole, data)
            _check_told(turns)
        except StateError as error:
            raise ValueError(f"the state that the others go on from is not taken: {error}") from error
        self._kept = data
        self._policy.restore(_part_of(turns, self._share.node, self._share.nodes))
        self._config.say(f"the others go on from {name_of(data)}, and so does this node")
        await self._follow_from(turns)

    def set_lap_lineage(self, lap_lineage: str) -> None:
        """The origin of these laps."""
        self.lap_lineage = lap_lineage

    async def turns_of_all(self) -> Turns:
        """What all nodes gave their readers by now. Raises ValueError."""
        if self._peers is None:
            return self._node.turns()
        async with self._renewing:
            try:
                of_peers = await self._peers.turns()
            except TimeoutError as missing:
                raise ValueError(f"no answer from {', '.join(missing.args[0])}, which gave samples as well") from None
            states = await self._decoded(of_peers)
            return self._policy.merged([self._node.turns(), *(state.turns for state in states.values())])

    async def go_on(self, turns: Turns, data: bytes) -> None:
        """Go on from a state that is loaded; the others once they have it, too. Raises ValueError."""
        if self._peers is None:
            self._node.restore(turns)
        else:
            await self._renew(self._view.addresses, turns, data)

    async def _decoded(self, of_nodes: Mapping[str, bytes]) -> dict[str, State]:
        """What the nodes at these addresses say. Raises ValueError."""
        decoded = {}
        for address, data in of_nodes.items():
            try:
                decoded[address] = await trio.to_thread.run_sync(self._state.decoded, data)
                if address != self._own:
                    _check_told(decoded[address].turns)
            except StateError as error:
                raise ValueError(f"{address}: what it kept is not taken: {error}") from error
        return decoded

    # What others ask

    async def handle(self, message: Message) -> Reply | None:
        """The answer to another node's message, with the bytes; None where it has the answer."""
        handled = self._policy.handle(message)
        self._flush()
        for sample in handled.preempted:
            self._node.binding.revoke(sample)
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
        if self._config.kept is not None:
            self._config.say("the others went on without this node, and it goes on with them: nothing is resumed")
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
            "peers": [{"address": address, **of_peer} for address, of_peer in of_peers["peers"].items()],
        }

    def _deliver(self, delivered: Sequence[Delivered]) -> None:
        self._void()
        for ticket, served in delivered:
            self._node.delivered(ticket, served)
        self._flush()

    def _void(self) -> None:
        policy = self._policy
        if policy.unloaded or policy.revoked:
            self._node.void(policy.unloaded, policy.revoked)
            policy.unloaded.clear()
            policy.revoked.clear()

    def _flush(self) -> None:
        self._void()
        outbox = self._policy.outbox
        if not outbox or self._peers is None:
            return
        messages = outbox.copy()
        outbox.clear()
        for message in messages:
            self._node.counters.remote_requests += 1
            attempt = message.attempt if isinstance(message, Take) else 0
            if attempt:
                pause_s = min(LONGEST_PAUSE_S, PAUSE_S * 2 ** min(attempt, 8))
                self._nursery.start_soon(self._send_late, self._peers, message, pause_s)
            else:
                self._peers.send(message)

    async def _send_late(self, peers: Peers, message: Message, pause_s: float) -> None:
        await trio.sleep(pause_s)
        peers.send(message)

    def _sent(self, contents: Sequence[Content]) -> None:
        for content in contents:
            self._node.sent(content)


def _lineage_after(lap_lineage: str, start_point: str) -> str:
    """The origin of laps that begin after those of ``origin``: the same wherever these began alike."""
    first, number, _ = lap_lineage.split(".")
    digest = hashlib.sha256(f"{lap_lineage} {start_point}".encode()).hexdigest()[:8]
    return f"{first}.{int(number) + 1:08}.{digest}"


def _check_told(turns: Turns) -> None:
    """Raises StateError if another node told turns of laps that it cannot be in."""
    try:
        check_laps(turns.laps[turns.laps > LAST_LAP_TOLD][:1].tolist())
    except ValueError as error:
        raise StateError(str(error)) from error


def _part_of(turns: Turns, node: int, nodes: int) -> Turns:
    """What a node goes on from where all do from ``turns``: its part of the turns given are counted as its own."""
    each, rest = divmod(turns.given, nodes)
    return turns._replace(given=each + (node < rest))
