"""All other nodes of the job, for one node.

A node creates a `Peers`, starts it, which opens the node's port, and joins: every peer learns what this node serves,
and must serve the same. Peers may ask from `start` on, so the service must be able to answer by then. This node may
ask from `join` on. Nothing here decides about samples; the service does, in the same trio task.
"""

import errno
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import trio

from redoxfs.chunks.store import Payload
from redoxfs.native import Histogram
from redoxfs.peers.bounds import Bounds
from redoxfs.peers.bridge import Bridge
from redoxfs.peers.channel import Plaintext, Transport, listening_at
from redoxfs.peers.client import CALLS_AT_ONCE, Client
from redoxfs.peers.server import Server
from redoxfs.peers.service import LapService, PeerService
from redoxfs.peers.traces import Trace
from redoxfs.peers.v1 import peers_pb2 as pb
from redoxfs.peers.view import (
    ANEW,
    INCARNATION_BITS,
    RESUMED,
    Difference,
    Identity,
    View,
    differences,
    introduce,
    refusal,
)
from redoxfs.protocol.events import Message
from redoxfs.telemetry import as_json

REPORT_S = 5.0
"""Between two reports of missing nodes."""

FAREWELL_S = 0.3
"""The time for the last reply to be sent."""

GONE = ("unreachable", "refused")
"""States of a peer in which requests must not wait for it."""

THREADS = 128
"""The most calls that are handled at once, for any number of nodes, beside those that carry messages."""

MOST_REREADS = THREADS // 2
"""Of those, the most that wait for storage. Without a limit those of 17 peers left no thread for a Hello, and the nodes
took each other for lost."""

log = logging.getLogger(__name__)


class RefusedError(Exception):
    """A node of the view does not serve the same: one line."""


class JoinTimeoutError(Exception):
    """Nodes did not answer in time: ``missing``, by address."""

    def __init__(self, timeout_s: float, missing: Sequence[str], reasons: Sequence[str]) -> None:
        lines = [
            f"{address} ({reason})" if reason else address for address, reason in zip(missing, reasons, strict=True)
        ]
        super().__init__(f"no answer within {timeout_s:g} s from {', '.join(lines)}")
        self.missing = tuple(missing)


class Place(NamedTuple):
    """The numbers by which this process and the other nodes know each other. With them another process goes on as it.

    ``incarnation``   a number that no other process has, unless it goes on as this one
    ``incarnations``  of each node, None where it is not known, as at this node itself
    ``joined``        whether the laps have begun
    """

    incarnation: int
    incarnations: Sequence[int | None]
    joined: bool


class Peers:
    """The peers of ``node`` in ``view``, from `start` to `close`, all in one trio task's thread.

    Args:
        identity: what all nodes must have in common.
        timeout_s: the deadline of one call. Calls that fail or take longer are retried until `close`.
        silence_s: a peer that answers nothing for so long is lost, until it answers again.
        max_answer_bytes: a larger answer is an error for each of its samples.
        max_turns_bytes: the longest state file that a peer may have.
        start_point: what the laps of the view start from: ANEW, RESUMED, or the name of a state that was loaded.
        lap_lineage: identifies these laps among those of other times; where all begin anew, the greatest of all nodes'.
        bounds: messages that are out of these are refused.
        renews: this view follows another, and peers may not have heard of it yet.
        before: of the process that this one goes on as; None: no other was here.
        listen: the address to listen at, if not that of `listening_at`.
        post: see `Bridge`.
    """

    def __init__(
        self,
        view: View,
        node: int,
        identity: Identity,
        service: PeerService,
        laps: LapService,
        *,
        timeout_s: float,
        silence_s: float,
        max_answer_bytes: int,
        bounds: Bounds,
        max_turns_bytes: int = 0,
        start_point: str = ANEW,
        lap_lineage: str = "",
        renews: bool = False,
        before: Place | None = None,
        listen: str | None = None,
        transport: Transport | None = None,
        post: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        if not 0 <= node < len(view.addresses):
            raise ValueError(f"node {node} of {len(view.addresses)}")
        self._view = view
        self._node = node
        self._service = service
        self._laps = laps
        self._timeout_s = timeout_s
        self._silence_s = silence_s
        self._max_answer_bytes = max_answer_bytes
        self._max_turns_bytes = max_turns_bytes
        # The lap lineages of others. One that has joined counts before those that may have been restarted.
        self._lineages: dict[int, tuple[bool, str]] = {}
        # The start point of a later view that this node has found itself in.
        self._caught_up = ""
        self._bounds = bounds
        self._renews = renews
        self._listen = listen or listening_at(view.addresses, node)
        self._transport = transport or Plaintext()
        self._post = post
        self._introduction = introduce(
            view,
            node,
            secrets.randbits(INCARNATION_BITS) if before is None else before.incarnation,
            identity,
            start_point,
            lap_lineage,
        )
        # Read by the server's threads; each entry is written at once.
        self._incarnations: list[int | None] = [None] * len(view.addresses)
        # Processes that replaced others. If this one does: the laps that its peers have begun, by peer.
        self._successors: set[int] = set()
        self._begun: dict[int, npt.NDArray[np.int32]] = {}
        self._clients: dict[int, Client] = {}
        self._server: Server
        self._bridge: Bridge
        self._nursery: trio.Nursery
        self._change = trio.Event()
        # Greater than all numbers of a process that this one goes on as.
        self._traces = time.time_ns()
        self._last_trace: Trace | None = None
        self._running = False
        self._joining = trio.CancelScope()
        self._joined = False
        if before is not None:
            self._incarnations[:] = before.incarnations
            self._introduction.joined = self._joined = before.joined

    async def start(self) -> None:
        """Listen and answer.

        Raises:
            OSError: this node cannot listen at its address.
        """
        self._bridge = Bridge(self._post)
        self._server = Server(
            self._service,
            self._bridge,
            node=self._node,
            why_unknown=self._why_unknown,
            why_not_yet=self._why_not_yet,
            kept=self._kept,
            turns=self._laps.turns,
            meet=self._meet,
            spawn=self._spawn,
            bounds=self._bounds,
            kept_bytes=self._max_answer_bytes,
            threads=threads_for(len(self._view.addresses) - 1),
            # Two for the messages of each peer, and two for all else.
            least_threads=2 * len(self._view.addresses),
            most_rereads=MOST_REREADS,
        )
        started = trio.Event()
        trio.lowlevel.spawn_system_task(self._live, started)
        await started.wait()
        self._running = True
        for node, address in enumerate(self._view.addresses):
            if node != self._node:
                client = self._clients[node] = Client(
                    self._service,
                    self._bridge,
                    partial(self._transport.channel, address),
                    address,
                    self._introduction,
                    met=partial(self._met, node),
                    changed=partial(self._changed, node),
                    spawn=self._spawn,
                    timeout_s=self._timeout_s,
                    silence_s=self._silence_s,
                    waits=not (self._renews or self._joined),
                    max_answer_bytes=self._max_answer_bytes,
                    bounds=self._bounds,
                )
                incarnation = self._incarnations[node]
                if incarnation is not None:
                    client.know(incarnation)
        try:
            self._server.start(self._transport, self._listen)
        except BaseException:
            self.close()
            raise

    def go_on(self) -> None:
        """Meet all peers again, as the process that has `joined` before; in place of `join`."""
        for client in self._clients.values():
            self._spawn(client.greet)
        self._server.set_health(ready=True)

    @property
    def place(self) -> Place:
        """What another process needs to go on as this one."""
        return Place(self._introduction.incarnation, tuple(self._incarnations), self._joined)

    async def join(self, report: Callable[[Sequence[str]], None], timeout_s: float) -> None:
        """Meet all peers. Calls ``report`` with the missing addresses at each change and every 5 s; at last with none.

        It returns early if `close` is called.

        Raises:
            JoinTimeoutError: some did not answer.
            RefusedError: one serves something else, or the files to start from cannot be used.
        """
        with trio.CancelScope() as self._joining:
            if self._running:
                await self._join(report, timeout_s)

    async def _join(self, report: Callable[[Sequence[str]], None], timeout_s: float) -> None:
        for client in self._clients.values():
            self._spawn(client.greet)
        deadline = trio.current_time() + timeout_s
        report_at = deadline
        reported: list[str] | None = None
        while True:
            self._change = trio.Event()
            for client in self._clients.values():
                if client.state == "refused" and not self._renews:
                    # The reply to the other node's Hello has to get out, or that node would wait.
                    await trio.sleep(FAREWELL_S)
                    raise RefusedError(client.reason)
            strangers = [client for client in self._clients.values() if client.state in ("joining", "refused")]
            missing = [client.address for client in strangers]
            now = trio.current_time()
            if missing != reported or now >= report_at:
                report(missing)
                reported, report_at = missing, now + REPORT_S
            if not missing:
                break
            if now >= deadline:
                raise JoinTimeoutError(timeout_s, missing, [client.reason for client in strangers])
            with trio.move_on_at(min(report_at, deadline)):
                await self._change.wait()
        introduction = self._introduction
        try:
            introduction.origin = await self._begin(max(self._timeout_s, deadline - trio.current_time()))
        except ValueError as error:
            raise RefusedError(str(error)) from error
        self._laps.set_lap_lineage(introduction.origin)
        introduction.joined = self._joined = True
        self._server.set_health(ready=True)

    async def _begin(self, timeout_s: float) -> str:
        """Start the laps where all nodes are. Returns their lineage. Raises ValueError, JoinTimeoutError."""
        _, lap_lineage = max([*self._lineages.values(), (False, self._introduction.origin)])
        if self._begun:
            self._laps.rejoin(np.maximum.reduce(list(self._begun.values())))
            return lap_lineage
        resumes, follows = self._resumes, self._caught_up not in ("", ANEW, RESUMED)
        if not resumes and not follows:
            return lap_lineage
        try:
            kept = await self._gather(now=False, timeout_s=timeout_s)
        except TimeoutError as missing:
            raise JoinTimeoutError(timeout_s, missing.args[0], ["met before"] * len(missing.args[0])) from None
        if resumes:
            return await self._laps.resume(kept) or lap_lineage
        # All nodes that have loaded the state have the same file.
        await self._laps.follow_state(max(kept.values()))
        return lap_lineage

    def _kept(self) -> bytes:
        """The file that this node starts from, for others; not one that belongs to another view."""
        return b"" if self._caught_up else self._laps.kept()

    async def turns(self) -> Mapping[str, bytes]:
        """The files of the turns of all peers so far, by address.

        Raises:
            TimeoutError: ``args[0]`` has the addresses of those that do not answer.
        """
        return await self._gather(now=True, timeout_s=self._timeout_s)

    async def _gather(self, *, now: bool, timeout_s: float) -> Mapping[str, bytes]:
        found: dict[str, bytes] = {}

        async def fetch(client: Client) -> None:
            found[client.address] = await client.turns(now=now, longest_bytes=self._max_turns_bytes)

        with trio.move_on_after(timeout_s):
            async with trio.open_nursery() as nursery:
                for client in self._clients.values():
                    nursery.start_soon(fetch, client)
        missing = [client.address for client in self._clients.values() if client.address not in found]
        if missing:
            raise TimeoutError(missing)
        return found

    @property
    def view(self) -> View:
        """The view. `join` may change its number."""
        return self._view

    @property
    def start_point(self) -> str:
        """What the laps of the view start from. `join` may change it with the view."""
        return self._introduction.beginning

    def send(self, message: Message) -> None:
        """Ask ``message.home`` until it answers; the service receives the answer."""
        if self._running:
            self._clients[message.home].send(message)

    async def reread(self, node: int, sample: int) -> Payload:
        """The bytes of a sample that lies at ``node``, once more, outside of any turn. Raises OSError: one line."""
        if not self._running:
            raise OSError(errno.EIO, "this node has left the others")
        return await self._clients[node].reread(sample)

    @property
    def is_running(self) -> bool:
        """Whether `close` was not called yet."""
        return self._running

    def follow(self, epoch: int, order: npt.NDArray[np.integer]) -> None:
        """Send all peers the order of this node's requests in ``epoch``, int[n], which must not change afterwards."""
        little = np.ascontiguousarray(order, "<i4").view(np.uint8).data
        self._traces += 1
        self._last_trace = Trace(self._traces, epoch, little)
        if self._running:
            for client in self._clients.values():
                client.follow(self._last_trace)

    def stats(self) -> dict[str, Any]:
        """For `stats.json`, from `start` on: by address, and in total."""
        bounds_ns = Histogram.bounds_ns()
        peers = {
            client.address: {
                "state": client.state,
                "reason": client.reason,
                "requests_sent": client.counts.requests,
                "retries": client.counts.retries,
                "samples_received": client.counts.samples,
                "bytes_in": client.counts.bytes_in,
                "bytes_out": self._server.bytes_sent(node),
                "answer_seconds": as_json(client.answer_times.counts(), client.answer_times.sum_ns, bounds_ns),
            }
            for node, client in self._clients.items()
        }
        sums = ("requests_sent", "retries", "samples_received", "bytes_in", "bytes_out")
        return {**{key: sum(peer[key] for peer in peers.values()) for key in sums}, "peers": peers}

    def close(self) -> None:
        """End all calls of this node and of others, and every thread. Takes some milliseconds."""
        if not self._running:
            return
        self._running = False
        self._joining.cancel()
        self._bridge.close()
        for client in self._clients.values():
            client.close()
        self._server.close()
        self._nursery.cancel_scope.cancel()

    # The tasks

    async def _live(self, started: trio.Event) -> None:
        """The parent of all other tasks: a system task, since the caller has no nursery for it."""
        async with trio.open_nursery() as self._nursery:
            started.set()
            await trio.sleep_forever()

    def _spawn(self, act: Callable[..., Any], *args: object) -> None:
        if self._running:
            self._nursery.start_soon(_guarded, act, args)

    def _changed(self, node: int, state: str, before: str) -> None:
        self._change.set()
        if state in GONE and before not in GONE:
            self._server.give_up(node)
            self._service.lost(node)
        elif before in GONE and state not in GONE:
            self._service.found(node)

    # Which peer is which process

    def _why_unknown(self, caller: pb.Caller) -> str | None:
        """In the server's threads: why a call of ``caller`` is refused."""
        if caller.view != self._view.number:
            return f"this is view {self._view.number}, not {caller.view}"
        if not self._is_peer(caller.node):
            return f"node {self._node} has no peer with number {caller.node}"
        if self._incarnations[caller.node] != caller.incarnation:
            return f"node {caller.node} must send Hello first"
        if caller.callee not in (0, self._introduction.incarnation):
            # The caller would take an answer for one of the process that was here before.
            return f"node {self._node} was restarted"
        return None

    def _why_not_yet(self) -> str | None:
        """In the server's threads: why calls about samples are refused."""
        if self._joined or not (self._begun or self._resumes or self._caught_up):
            return None
        return f"node {self._node} does not know yet where its laps start"

    @property
    def _resumes(self) -> bool:
        """Whether this node starts from the files that all nodes kept: not in a later view."""
        return self._introduction.beginning == RESUMED

    def _is_peer(self, node: int) -> bool:
        return node < len(self._incarnations) and node != self._node

    def _meet(self, request: pb.HelloRequest) -> pb.HelloReply:
        """A peer sent Hello."""
        caller = request.caller
        self._catch_up(caller)
        found = differences(self._introduction, caller)
        if not found and not self._is_peer(caller.node):
            found = (Difference("peers", f"all but {self._node}", str(caller.node)),)
        if not found:
            self._know(caller)
        # A node of an earlier view must not make this one fail.
        elif self._is_peer(caller.node) and caller.view >= self._introduction.view:
            client = self._clients[caller.node]
            if client.state == "joining":
                client.refuse(refusal(client.address, found))
        # Before the laps have begun, a new process is no replacement.
        succeeds = not found and request.joins and self._joined and caller.incarnation in self._successors
        return pb.HelloReply(
            callee=self._introduction,
            differences=[pb.Difference(field=d.field, caller=d.there, callee=d.here) for d in found],
            succeeds=succeeds,
            begun=self._laps.begun().astype("<i4").tobytes() if succeeds else b"",
        )

    def _met(self, node: int, reply: pb.HelloReply) -> bool:
        """A peer answered this node's Hello. Returns whether the two go together."""
        client, callee = self._clients[node], reply.callee
        if self._catch_up(callee):
            return False
        if self._renews and callee.view < self._view.number:
            # The launcher has not given it the new view yet.
            client.reason = f"is still in view {callee.view}"
            return False
        found = differences(self._introduction, callee)
        if not found and any(d.field == "view" for d in reply.differences):
            # The reply is from before this node caught up.
            return False
        found = found or tuple(Difference(d.field, d.caller, d.callee) for d in reply.differences)
        if found:
            client.refuse(refusal(client.address, found))
            return False
        if callee.node != node:
            client.refuse(f"{client.address}: is node {callee.node} of its view, here it is node {node}")
            return False
        self._know(callee)
        if reply.succeeds and client.state == "joining":
            self._note_begun(node, reply.begun)
        return True

    def _catch_up(self, other: pb.Introduction) -> bool:
        """Take over a later number of the same view, which was given before this process replaced another."""
        if self._joined or self._renews or other.view <= self._view.number:
            return False
        if other.view_digest != self._view.digest:
            return False
        self._view = View(other.view, self._view.addresses)
        self._introduction.view = other.view
        self._introduction.beginning = self._caught_up = other.beginning
        self._introduction.origin = other.origin
        for client in self._clients.values():
            client.enter_view(other.view)
        return True

    def _note_begun(self, node: int, laps: bytes) -> None:
        classes = len(self._laps.begun())
        if len(laps) == 4 * classes:
            self._begun[node] = np.frombuffer(laps, "<i4").astype(np.int32)
        else:
            log.warning("%s: malformed laps in its reply to Hello", self._clients[node].address)

    def _know(self, other: pb.Introduction) -> None:
        node, incarnation = other.node, other.incarnation
        if not (self._joined or self._renews):
            self._lineages[node] = other.joined, other.origin
        known, self._incarnations[node] = self._incarnations[node], incarnation
        self._clients[node].know(incarnation)
        if known is None or known == incarnation:
            self._clients[node].reached()
            return
        client = self._clients[node]
        log.warning("%s was restarted", client.address)
        self._successors.add(incarnation)
        # The count was of the old process, and the new one has begun no more laps than the others.
        self._begun.pop(node, None)
        client.give_up_bytes("the peer was restarted")
        self._server.forget(node)
        if self._last_trace is not None:
            client.follow(self._last_trace)
        self._service.restarted(node)


def threads_for(peers: int) -> int:
    """The calls of so many peers that are handled at once. Those that carry messages last as long as the peers, and
    take two threads where none can be started."""
    return min(THREADS, CALLS_AT_ONCE * max(1, peers)) + 2 * peers


async def _guarded(act: Callable[..., Any], args: tuple[object, ...]) -> None:
    try:
        await act(*args)
    except Exception:
        # It would end every other task here, and the event loop.
        log.exception("a bug in redoxfs: please report it")
