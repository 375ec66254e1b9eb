"""The view, which is the list of nodes, and the change to another.

A new view comes from the launcher (`redoxfs nodes --set`). All nodes in it start anew: with another plan, laps counted
from one, and other peers. Open files stay open, and opens that wait are asked for again. The port is closed for a
moment. A node that has not heard of the view yet is asked until it has. Loading a state is such a change as well: to
the same nodes, whose laps continue from the state; what was given since it was saved must not be taken in any more.

All methods are called in the node's task.
"""

import base64
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from redoxfs.node.cluster.epochs import EpochTracker, Orders, Sampler
from redoxfs.node.cluster.messages import Messages
from redoxfs.node.cluster.prefetch import Prefetch
from redoxfs.node.cluster.resume import Laps, lineage_after, new_lineage, part_of
from redoxfs.node.node import Node
from redoxfs.node.plan import Plan, Sharing
from redoxfs.node.posts import Posts
from redoxfs.node.state import StateWriter, longest_bytes, name_of
from redoxfs.node.threads import in_thread
from redoxfs.peers import Identity, JoinTimeoutError, Peers, Place, RefusedError, Transport, View
from redoxfs.peers.bounds import Bounds
from redoxfs.peers.view import ANEW, RESUMED
from redoxfs.protocol.turns import Turns

SILENT_SHARE = 0.5
"""Of --peer-timeout: a node that is silent for so long is taken for lost. The rest is for others to answer the requests
that wait for it."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Which nodes are to come together, and how.

    ``node``       this node's number in ``view``
    ``plan_for``   returns how node i of n serves the dataset
    ``identity``   returns what all nodes must have in common, given the plan
    ``timeout_s``  how long the nodes may take to come up
    ``sampler``    how the job asks, where the policy can use it and it is known
    ``report``     called with the addresses that have not answered yet
    ``transport``  what calls go over
    ``kept``       with --resume this node's state file, empty where there is none; None without
    ``say``        prints a line for the user who started this node
    """

    view: View
    node: int
    plan_for: Callable[[int, int], Plan]
    identity: Callable[[Plan], Identity]
    timeout_s: float
    sampler: Sampler | None
    report: Callable[[Sequence[str]], None]
    transport: Callable[[View], Transport]
    kept: bytes | None
    say: Callable[[str], None]


def continued_plan(config: ClusterConfig, place: Mapping[str, Any]) -> Plan:
    """The plan of the view that a former process was in, which it described by `Membership.place`."""
    addresses = place["addresses"]
    return config.plan_for(addresses.index(config.view.addresses[config.node]), len(addresses))


class Membership:
    """This node's place among the nodes: a `redoxfs.node.state.Cluster`.

    Invariant: `Node.plan` is of the view that this reports, but while a change is under way.
    """

    def __init__(
        self,
        node: Node,
        config: ClusterConfig,
        state: StateWriter,
        nursery: trio.Nursery,
        *,
        timeout_s: float,
    ) -> None:
        self._node = node
        self._config = config
        self._state = state
        self._nursery = nursery
        self._own = config.view.addresses[config.node]
        self._view = config.view
        self._peers: Peers | None = None
        self._start_point = ANEW
        self._posts = node.posts = Posts()
        self._messages = Messages(node, nursery, timeout_s=timeout_s)
        self.prefetch = Prefetch(node, config.sampler, nursery)
        self._laps = Laps(
            node,
            state,
            self.prefetch,
            own=self._own,
            kept=config.kept,
            samples=len(node.catalog.class_of),
            flush=self._messages.flush,
            say=config.say,
        )
        self._changing = trio.Lock()
        node.place = self.place

    async def start(self) -> None:
        """Meet the other nodes, by the node's plan. Raises OSError, ValueError, RefusedError, JoinTimeoutError."""
        self._state.share(self)
        start_point = ANEW if self._config.kept is None else RESUMED
        plan = self._node.plan
        orders = self.prefetch.orders(plan.nodes)
        lineage = new_lineage(self._config.node, await in_thread(self._state.lineage_before))
        await self._enter(self._config.view, plan, orders, start_point, lineage)
        assert self._peers is not None
        await self._peers.join(self._config.report, self._config.timeout_s)
        self._view, self._start_point = self._peers.view, self._peers.start_point

    async def take_over(self, place: Mapping[str, Any], turned: Sequence[int]) -> None:
        """Continue as the process that was here before, in place of `start`. The node has recovered, by the
        `continued_plan`.

        Args:
            place: its `place`.
            turned: the samples whose opens took a turn since the checkpoint.

        Raises OSError, ValueError.
        """
        self._state.share(self)
        view, plan = View(place["view"], tuple(place["addresses"])), self._node.plan
        peers = None
        self._laps.begin(base64.b64decode(place["kept"]))
        epochs = None
        if plan.sharing is not None:
            before = Place(*place["peers"])
            peers = self._peers_of(view, plan, plan.sharing, place["start_point"], place["lineage"], before)
            epochs = self.prefetch.go_on(plan.sharing, place["epochs"], turned)
            await peers.start()
        self._take_place(view, peers, place["start_point"], place["lineage"], epochs)
        self._state.renumber()
        if peers is None:
            return
        if peers.place.joined:
            peers.go_on()
        else:
            self._nursery.start_soon(self._join_late, peers)
        self._messages.send_again()

    def place(self) -> Mapping[str, Any]:
        """What another process needs to `take_over`, as JSON."""
        return {
            "view": self._view.number,
            "addresses": self._view.addresses,
            "start_point": self._start_point,
            "lineage": self.lap_lineage,
            "kept": base64.b64encode(self._laps.kept()).decode(),
            "peers": None if self._peers is None else self._peers.place,
            "epochs": self.prefetch.place,
        }

    def close(self) -> None:
        """Leave the other nodes, and end every thread."""
        if self._peers is not None:
            self._peers.close()

    # Verbs of the control socket

    async def view(self, data: bytes) -> Mapping[str, Any]:
        """The view. With a JSON list of addresses: change to a new view of these nodes. Raises ValueError."""
        if not data:
            return {"view": self._view.number, "nodes": self._view.addresses}
        try:
            addresses = json.loads(data)
        except (ValueError, RecursionError):
            addresses = None
        if not (isinstance(addresses, list) and all(isinstance(address, str) for address in addresses)):
            raise ValueError("expected a list of addresses")
        if self._own not in addresses:
            raise ValueError(f"this node, {self._own}, is not among them; to end it: redoxfs umount")
        try:
            async with self._changing:
                await self._change(tuple(addresses), None, b"")
        finally:
            await self._state.begin_anew()
        return {"view": self._view.number, "nodes": self._view.addresses}

    # How far all nodes are

    @property
    def node(self) -> int:
        """This node's number."""
        return 0 if self._peers is None else self._node.share.node

    @property
    def nodes(self) -> int:
        """How many there are."""
        return 1 if self._peers is None else self._node.share.nodes

    @property
    def lap_lineage(self) -> str:
        """The lineage of these laps."""
        return self._laps.lineage

    async def turns_of_all(self) -> Turns:
        """The turns of all nodes so far. Raises ValueError."""
        async with self._changing:
            if self._peers is None:
                return self._node.kept_turns(whole=True)
            try:
                of_peers = await self._peers.turns()
            except TimeoutError as missing:
                raise ValueError(f"no answer from {', '.join(missing.args[0])}, which served samples as well") from None
            return await self._laps.merged(of_peers)

    async def go_on(self, turns: Turns, data: bytes) -> None:
        """Continue from a state that is loaded. The other nodes do so once they have it, too. Raises ValueError."""
        async with self._changing:
            if self._peers is None:
                self._node.restore(turns)
            else:
                await self._change(self._view.addresses, turns, data)

    def stats(self) -> dict[str, Any]:
        """The part of `stats.json` about other nodes."""
        stats: dict[str, Any] = {"view": self._view.number}
        if self._peers is None:
            return {**stats, "node": 0, "nodes": 1, "peers": []}
        of_peers = self._peers.stats()
        policy, share = self._node.shared_policy, self._node.share
        return {
            **stats,
            "degraded": policy.degraded + self._node.counters.degraded,
            "node": share.node,
            "nodes": share.nodes,
            "exchange": round(share.exchange or 0.0, 4),
            "missed": policy.missed,
            **policy.figures(),
            "remote_bytes_in": of_peers["bytes_in"],
            "remote_bytes_out": of_peers["bytes_out"],
            "retries": of_peers["retries"],
            "peers": [{"address": address, **of_peer} for address, of_peer in of_peers["peers"].items()],
        }

    # Changes

    async def _change(self, addresses: tuple[str, ...], turns: Turns | None, data: bytes) -> None:
        """Change to a view of these nodes, whose laps start from ``turns``, the file of which is ``data``.

        Called with ``_changing``, so that it goes by the view that the change before has left. Raises ValueError.
        Nothing has changed then, unless the message says so.
        """
        view = View(self._view.number + 1, addresses)
        start_point = ANEW if turns is None else name_of(data)
        orders = self.prefetch.orders(len(addresses))
        plan = await self._plan(addresses.index(self._own), len(addresses), turns)
        self._messages.detach()
        self.close()
        self._messages.drop_replies()
        self._laps.begin(data)
        lineage = lineage_after(self.lap_lineage, f"{view.digest} {start_point}")
        try:
            await self._enter(view, plan, orders, start_point, lineage, turns=turns)
        except OSError as error:
            # Another process has the port now, or no thread can be started, and the old view is gone: this node
            # continues as the only one.
            plan = await self._plan(0, 1, turns)
            await self._enter(View(view.number, (self._own,)), plan, None, start_point, lineage)
            raise ValueError(f"{error}; this node continues without the others") from error
        finally:
            if turns is None:
                self._node.renew(plan)
            else:
                self._node.go_on(plan)
        self._messages.flush()
        log.info("view %d: %s", view.number, ", ".join(addresses))
        if self._peers is not None:
            self._nursery.start_soon(self._join_late, self._peers)

    async def _plan(self, node: int, nodes: int, turns: Turns | None) -> Plan:
        def plan_for() -> Plan:
            plan = self._config.plan_for(node, nodes)
            if turns is not None:
                plan.policy.restore(part_of(turns, node, nodes))
            return plan

        return await in_thread(plan_for, abandon_on_cancel=True)

    async def _enter(
        self,
        view: View,
        plan: Plan,
        orders: Orders | None,
        start_point: str,
        lineage: str,
        *,
        turns: Turns | None = None,
    ) -> None:
        """Answer the nodes of ``view`` by ``plan`` from now on; its laps have come as far as ``turns``.

        Until that is possible everything that this reports is of the view before.
        """
        sharing = plan.sharing
        peers = epochs = None
        if sharing is not None:
            peers = self._peers_of(view, plan, sharing, start_point, lineage, None)
            epochs = await self.prefetch.prepare(sharing, orders, turns)
            await peers.start()
        self._take_place(view, peers, start_point, lineage, epochs)

    def _take_place(
        self, view: View, peers: Peers | None, start_point: str, lineage: str, epochs: EpochTracker | None
    ) -> None:
        self._view, self._peers, self._start_point = view, peers, start_point
        self._laps.set_lap_lineage(lineage)
        self._messages.attach(peers)
        self.prefetch.follow(epochs, peers)

    def _peers_of(
        self, view: View, plan: Plan, sharing: Sharing, start_point: str, lineage: str, before: Place | None
    ) -> Peers:
        return Peers(
            view,
            sharing.share.node,
            self._config.identity(plan),
            self._messages,
            self._laps,
            timeout_s=sharing.timeout_s,
            silence_s=sharing.timeout_s * SILENT_SHARE,
            max_answer_bytes=plan.memory_bytes,
            max_turns_bytes=longest_bytes(sharing.policy.turns()),
            start_point=start_point,
            lap_lineage=lineage,
            bounds=self._bounds(sharing),
            renews=view.number > self._config.view.number,
            before=before,
            transport=self._config.transport(view),
            post=self._posts.post,
        )

    def _bounds(self, sharing: Sharing) -> Bounds:
        catalog, policy = self._node.catalog, sharing.policy
        return Bounds(
            len(catalog.class_of),
            len(catalog.class_names),
            kinds=(policy.message_kind,),
            home_of=policy.home_of,
            class_of=catalog.class_of,
            lies_at=sharing.lies_at,
        )

    async def _join_late(self, peers: Peers) -> None:
        def report(missing: Sequence[str]) -> None:
            if missing:
                log.info("waiting for %s", ", ".join(missing))
            else:
                log.info("all nodes have joined")

        while True:
            try:
                await peers.join(report, self._config.timeout_s)
            except JoinTimeoutError as error:
                log.warning("%s; still waiting", error)
            except RefusedError as error:
                log.warning("%s", error)
                return
            else:
                # Otherwise another view has replaced this one.
                if peers.is_running:
                    self._node.checkpoint()
                return
