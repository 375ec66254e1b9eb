"""Nodes connected over loopback, with fakes for decisions and reads."""

import errno
import gc
import itertools
import logging
import random
import socket
import threading
import tracemalloc
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import pytest
import trio
import trio.testing
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE_S, until_in_trio
from ports import reserve
from stores import bytes_in_buffers

from redoxfs.chunks.store import FileBytes, Payload, Stamp
from redoxfs.native import Buffer
from redoxfs.peers import Identity, JoinTimeoutError, Peers, Plaintext, RefusedError, Reply, View
from redoxfs.peers.asking import ASKING_THREADS
from redoxfs.peers.bounds import LAST_PEER_LAP, Bounds
from redoxfs.peers.channel import listening_at
from redoxfs.peers.client import PARTS_AT_ONCE, Client
from redoxfs.peers.fields import PAYLOAD_TAG, split_payload, with_payload
from redoxfs.peers.outgoing import Outgoing
from redoxfs.peers.parts import PART_BYTES, Assembly, Cut, FileHead
from redoxfs.peers.server import SERVICE
from redoxfs.peers.traces import TraceAssembly
from redoxfs.peers.translation import Received, ask, asked, parse, received, replied, reply_head
from redoxfs.peers.v1 import peers_pb2 as pb
from redoxfs.protocol import Given, Hit, RemoteAnswer, RemoteRead, Take
from redoxfs.protocol.events import Answer, Message
from redoxfs.protocol.slot_nodes.requester import MOST_PASSED

pytestmark = pytest.mark.slow

CALL_S = PATIENCE_S / 3
SILENCE_S = PATIENCE_S / 3
"""Nothing in these tests takes so long, so a peer is lost only where a test has moved the clock."""

MOST_BYTES = 64 << 20
BOUNDS = Bounds(1 << 20, 16, lies_at=np.zeros(1 << 20, np.int8))
IDENTITY = Identity("d1", {"chunk_size": "64", "seed": "0"})


def take(number: int, most: int, *, home: int = 0, requester: int = 1, acked_below: int = 0) -> Take:
    return Take(
        requester, home, number, acked_below, cls=3, lap=1, max_samples=most, room_bytes=1 << 40, attempt=0, done=0
    )


def file(data: bytes, inode: int = 7) -> FileBytes:
    return FileBytes(data, Stamp(len(data), -5, inode), changed=bool(inode % 2))


def told(payload: Payload) -> list[object]:
    """A payload in a form that can be compared."""
    return [(f.errno, f.strerror) if isinstance(f, OSError) else (bytes(f.data), f.stamp, f.changed) for f in payload]


class FakeService:
    """Gives the samples of ``shelf``, each once, and remembers which it gave to whom until they have it.

    ``gate`` closed: an answer takes until it is opened. ``wanted``: whether answers are.
    """

    def __init__(self, shelf: dict[int, Payload] | None = None) -> None:
        self.shelf = shelf or {}
        self.left = deque(self.shelf)
        self.given: dict[tuple[int, int], Answer] = {}
        self.handled: list[int] = []
        self.reread_samples: list[int] = []
        self.busy: Counter[tuple[int, int]] = Counter()
        self.gate = trio.Event()
        self.gate.set()
        self.unreleased: list[Reply] = []
        self.wanted = True
        self.answers: list[Answer] = []
        self.sizes: list[Sequence[int]] = []
        self.got: dict[int, Payload] = {}
        self.arrival = trio.Event()
        self.traces: list[tuple[int, int, list[int]]] = []
        self.restarts: list[int] = []
        self.silences: list[int] = []
        self.laps: list[int] = []
        self.rejoined: list[list[int]] = []
        self.files = b"", b""
        self.resumed: list[dict[str, bytes]] = []
        self.followed: list[bytes] = []
        self.lineages: list[str] = []
        self.why_not_resumed = ""

    async def handle(self, message: Message) -> Reply | None:
        key = message.requester, message.number
        self.handled.append(message.number)
        for old in [k for k in self.given if k[0] == message.requester and k[1] < message.acked_below]:
            del self.given[old]
        if key not in self.given:
            self.given[key] = self._decide(message)
        answer = self.given[key]
        self.busy[key] += 1
        assert self.busy[key] == 1, "the service is already handling this message"
        try:
            await self.gate.wait()
        finally:
            self.busy[key] -= 1
        reply = Reply(answer, [self.shelf[sample] for sample in answer.samples])
        self.unreleased.append(reply)
        return reply

    def _decide(self, message: Message) -> Answer:
        if isinstance(message, Take):
            samples = tuple(self.left.popleft() for _ in range(min(message.max_samples, len(self.left))))
            return Given(message.home, message.number, message.cls, message.lap, samples, len(self.left), 9)
        assert isinstance(message, RemoteRead)
        samples = tuple(self.left.popleft() for _ in range(min(message.room_bytes, len(self.left))))
        return RemoteAnswer(message.home, message.number, None, samples, (1,) * len(samples))

    async def reread(self, sample: int) -> Reply:
        self.reread_samples.append(sample)
        await self.gate.wait()
        reply = Reply(None, [self.shelf[sample]])
        self.unreleased.append(reply)
        return reply

    def release(self, reply: Reply) -> None:
        self.unreleased.remove(reply)

    def receive(self, answer: Answer, sizes: Sequence[int]) -> Sequence[Callable[[Payload], None]] | None:
        self.answers.append(answer)
        self.sizes.append(sizes)
        self._tell()
        return [partial(self._sink, sample) for sample in answer.samples] if self.wanted else None

    def _sink(self, sample: int, payload: Payload) -> None:
        assert sample not in self.got
        self.got[sample] = payload
        self._tell()

    def follow(self, requester: int, epoch: int, order: npt.NDArray[np.int32]) -> None:
        assert order.dtype == np.int32
        self.traces.append((requester, epoch, order.tolist()))
        self._tell()

    def restarted(self, node: int) -> None:
        self.restarts.append(node)
        self._tell()

    def lost(self, node: int) -> None:
        self.silences.append(node)
        self._tell()

    def found(self, node: int) -> None:
        self.silences.remove(node)
        self._tell()

    def kept(self) -> bytes:
        return self.files[0]

    def turns(self) -> bytes:
        return self.files[1]

    async def resume(self, kept: Mapping[str, bytes]) -> str:
        if self.why_not_resumed:
            raise ValueError(self.why_not_resumed)
        self.resumed.append(dict(kept))
        await self.gate.wait()
        return "of the files"

    async def follow_state(self, data: bytes) -> None:
        self.followed.append(data)

    def set_lap_lineage(self, lap_lineage: str) -> None:
        self.lineages.append(lap_lineage)

    def begun(self) -> npt.NDArray[np.int32]:
        return np.array(self.laps, np.int32)

    def rejoin(self, begun: npt.NDArray[np.int32]) -> None:
        self.rejoined.append(begun.tolist())

    def _tell(self) -> None:
        self.arrival.set()
        self.arrival = trio.Event()

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until an arrival makes the condition true."""
        while not true():
            await self.arrival.wait()


class Losing(grpc.ServerInterceptor):
    """Loses calls to ``method``: requests if ``before``, else replies. A call of many messages breaks at one."""

    def __init__(self, method: str, lose: Callable[[], bool], *, before: bool = False) -> None:
        self._method = f"/{SERVICE}/{method}"
        self._lose = lose
        self._before = before
        self.lost = 0

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = continuation(details)
        if details.method != self._method:
            return handler

        def lose(context: grpc.ServicerContext) -> None:
            self.lost += 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "lost by the test")

        def act(data: bytes, context: grpc.ServicerContext) -> bytes:
            loses = self._lose()
            if not (loses and self._before):
                reply: bytes = handler.unary_unary(data, context)
            if loses:
                lose(context)
            return reply

        def passed(messages: Iterator[bytes], context: grpc.ServicerContext, *, loses: bool) -> Iterator[bytes]:
            for message in messages:
                if loses and self._lose():
                    lose(context)
                yield message

        def act_on_all(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            replies = handler.stream_stream(passed(requests, context, loses=self._before), context)
            return passed(replies, context, loses=not self._before)

        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(act_on_all)
        return grpc.unary_unary_rpc_method_handler(act)


class Lossy(Plaintext):
    def __init__(self, *interceptors: grpc.ServerInterceptor) -> None:
        self.interceptors = interceptors


class ThreadLimit:
    """As a limit of processes, for threads with a name that begins like ``names``: after ``most`` more none starts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]) -> None:
        self._most: int | None = None
        self.refused: list[str] = []
        start = threading.Thread.start

        def may_start(thread: threading.Thread) -> None:
            if self._most is not None and thread.name.startswith(names):
                if not self._most:
                    self.refused.append(thread.name)
                    raise RuntimeError("can't start new thread")
                self._most -= 1
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", may_start)

    def reach(self, most: int = 0) -> None:
        self._most = most

    def lift(self) -> None:
        self._most = None


THREAD_OF_GRPC = "Thread-"
THREADS_OF_CLIENT = THREAD_OF_GRPC, "redoxfs-peers-probe", "redoxfs-peers-answers"
THREADS_OF_SERVER = "redoxfs-peers_", "redoxfs-peers-messages"


def first(calls: int) -> Callable[[], bool]:
    """Returns True that many times, then False."""
    left = iter([True] * calls)
    return lambda: next(left, False)


def addresses(count: int) -> tuple[str, ...]:
    """Addresses with free ports."""
    return tuple(f"127.0.0.1:{port}" for port in reserve(count))


SETTINGS: dict[str, Any] = {
    "timeout_s": CALL_S,
    "silence_s": SILENCE_S,
    "max_answer_bytes": MOST_BYTES,
    "bounds": BOUNDS,
}


def quiet(_missing: Sequence[str]) -> None:
    pass


@asynccontextmanager
async def running(view: View, node: int, host: FakeService, **options: Any) -> AsyncIterator[Peers]:
    """A node that has started and not yet joined."""
    identity = options.pop("identity", IDENTITY)
    peers = Peers(view, node, identity, host, host, **{**SETTINGS, **options})
    await peers.start()
    try:
        with trio.fail_after(PATIENCE_S):
            yield peers
    finally:
        peers.close()


async def jump_once(clock: trio.testing.MockClock, happened: Callable[[], object], seconds: float) -> None:
    """Let ``seconds`` pass once something has happened. The deadlines of gRPC are not moved."""
    await until_in_trio(happened)
    clock.jump(seconds)


async def join_all(*nodes: Peers) -> None:
    async with trio.open_nursery() as nursery:
        for peers in nodes:
            nursery.start_soon(peers.join, quiet, PATIENCE_S)


@asynccontextmanager
async def pair(home: FakeService, requester: FakeService, **options: Any) -> AsyncIterator[tuple[Peers, Peers]]:
    """Node 0, the home, and node 1, after they have met. ``options`` are the home's."""
    view = View(1, addresses(2))
    most = options.pop("max_answer_bytes", MOST_BYTES)
    async with (
        running(view, 0, home, **options) as at_home,
        running(view, 1, requester, max_answer_bytes=most) as asking,
    ):
        await join_all(at_home, asking)
        yield at_home, asking


def payload_of(random_: random.Random, sample: int, longest: int) -> Payload:
    """Up to four files, including empty ones and errors."""
    files: list[FileBytes | OSError] = []
    for number in range(random_.randrange(5)):
        kind = random_.randrange(6)
        if kind == 0:
            files.append(OSError(errno.ENOENT, f"no file {number} of {sample}"))
        else:
            size = 0 if kind == 1 else random_.randrange(longest)
            files.append(file(random_.randbytes(size), inode=sample))
    return tuple(files)


# Answers


async def test_answers_of_every_shape_arrive_unchanged() -> None:
    random_ = random.Random(1)
    shelf: dict[int, Payload] = {}
    for sample in range(300):
        shelf[sample] = payload_of(random_, sample, 3 * PART_BYTES if sample % 50 == 9 else 30_000)
    shelf[300] = (file(random_.randbytes(PART_BYTES)),)
    shelf[301] = (file(random_.randbytes(10 * PART_BYTES + 1)), file(b""))
    shelf[302] = (file(b""),)
    shelf[303] = ()
    counts = [0, 1, 10, 1, 88, 0, 199, 1, 1, 1, 1, 1, 1, 1]
    home, requester = FakeService(shelf), FakeService()
    async with pair(home, requester) as (at_home, asking):
        for number, most in enumerate(counts):
            asking.send(take(number, most))
        await requester.until(lambda: len(requester.got) == len(shelf) and len(requester.answers) == len(counts))
        assert {s: told(p) for s, p in requester.got.items()} == {s: told(p) for s, p in shelf.items()}
        assert sorted(home.handled) == list(range(len(counts))), "each was asked once"
        by_number = {answer.number: answer for answer in requester.answers}
        assert by_number == {number: answer for (_, number), answer in home.given.items()}
        total = sum(len(f.data) for p in shelf.values() for f in p if isinstance(f, FileBytes))
        assert sum(map(sum, requester.sizes)) == total
        # Releases are called in the order of the trio loop.
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert not home.unreleased
        stats = asking.stats()
        assert (stats["requests_sent"], stats["samples_received"]) == (len(counts), len(shelf))
        assert stats["retries"] == 0
        assert total < stats["bytes_in"] == at_home.stats()["bytes_out"]


async def test_a_samples_bytes_keep_nothing_else_alive() -> None:
    shelf: dict[int, Payload] = {n: (file(n.to_bytes(2) * 500),) for n in range(1000)}
    home, requester = FakeService(shelf), FakeService()
    async with pair(home, requester) as (_, asking):
        asking.send(take(0, 1000))
        await requester.until(lambda: len(requester.got) == 1000)
        for payload in requester.got.values():
            (got,) = payload
            assert isinstance(got, FileBytes)
            whole = memoryview(got.data).obj
            assert len(whole) == 1000  # type: ignore[arg-type]


def test_messages_and_answers_of_both_kinds_arrive_unchanged() -> None:
    caller = pb.Caller(node=1, incarnation=2**63 - 1, view=4)
    messages: list[Message] = [
        RemoteRead(1, 0, 7, 5, 99, 3, -1, 1 << 40, (Hit(4, -1), Hit(5, 2**33)), (1, 2)),
        RemoteRead(1, 0, 0, 0, 0, 0, 0, 0, (), ()),
        RemoteRead(1, 0, 0, 0, 0, 0, 0, 0, (), tuple(range(MOST_PASSED))),
        take(2**40, 16, acked_below=2**40),
        replace_take(take(3, 0), attempt=12, room_bytes=0, done=77),
    ]
    for message in messages:
        request = parse(pb.AskRequest, ask(caller, message))
        assert request.caller == caller
        assert asked(request, 0, BOUNDS) == message
    read, took = messages[0], messages[3]
    answers: list[tuple[Message, Answer]] = [
        (read, RemoteAnswer(0, read.number, None, (3, 2, 1), (1, 2, LAST_PEER_LAP))),
        (read, RemoteAnswer(0, read.number, 0, (), (7,))),
        (took, Given(0, took.number, 3, 9, (5, 0), 2, 1)),
        (took, Given(0, took.number, 3, 1, (), 0, 0)),
    ]
    for message, answer in answers:
        payloads: list[Payload] = [(file(b"x"), OSError(errno.EIO, "bad")) for _ in answer.samples]
        cut = Cut(payloads)
        reply = with_payload(reply_head(answer, payloads, cut), cut.pieces(0))
        found, payload = read_reply(reply, message)
        assert found.answer == answer
        assert found.sizes == (1,) * len(answer.samples)
        assert bytes(payload) == b"x" * len(answer.samples)


def test_an_unknown_error_number_is_eio() -> None:
    payloads: list[Payload] = [(OSError(9999, "odd"), OSError("no number"), OSError(errno.ESTALE, "\udcff"))]
    cut = Cut(payloads)
    found, _ = read_reply(reply_head(Given(0, 0, 3, 1, (8,), 0, 9), payloads, cut), take(0, 1))
    assert [(f.errno, f.strerror) for f in found.samples[0] if isinstance(f, OSError)] == [
        (errno.EIO, "odd"),
        (errno.EIO, "no number"),
        (errno.ESTALE, "?"),
    ]


def read_reply(data: bytes, message: Message, bounds: Bounds = BOUNDS) -> tuple[Received, memoryview]:
    """An answer, and its part 0. Raises ValueError."""
    reply, payload = replied(data)
    return received(reply, message, bounds), payload


def replace_take(message: Take, **fields: Any) -> Take:
    return message._replace(**fields)


async def test_an_answer_that_was_fetched_is_no_garbage() -> None:
    """A daemon looks for none among objects as old as an answer that waited for storage."""
    home, requester = FakeService({n: (file(b"x" * 100 * n),) for n in range(20)}), FakeService()
    async with pair(home, requester) as (_, asking):
        gc.collect()
        gc.disable()
        try:
            home.gate = trio.Event()
            for number in range(10):
                asking.send(take(number, 2))
            await until_in_trio(lambda: len(home.handled) == 10)
            home.gate.set()
            await requester.until(lambda: len(requester.got) == 20)
            # The thread that has written an answer holds it until it writes the next one.
            assert sum(isinstance(each, Outgoing) for each in gc.get_objects()) <= 2
        finally:
            gc.enable()


async def test_an_unneeded_answer_is_not_fetched() -> None:
    home, requester = FakeService({0: (file(bytes(3 * PART_BYTES)),), 1: (file(b"1"),)}), FakeService()
    requester.wanted = False
    async with pair(home, requester) as (_, asking):
        asking.send(take(0, 1))
        await requester.until(lambda: len(requester.answers) == 1)
        assert len(home.unreleased) == 1, "the other parts may be asked for"
        requester.wanted = True
        asking.send(take(1, 1, acked_below=1))
        await requester.until(lambda: 1 in requester.got)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert not home.unreleased, "acknowledged answers are dropped"
        assert asking.stats()["bytes_in"] < 2 * PART_BYTES


async def test_a_too_large_answer_is_an_error_for_each_file(caplog: pytest.LogCaptureFixture) -> None:
    shelf: dict[int, Payload] = {0: (file(bytes(2 * PART_BYTES)), file(b"")), 1: (file(b"1"),)}
    home, requester = FakeService(shelf), FakeService()
    async with pair(home, requester, max_answer_bytes=PART_BYTES) as (_, asking):
        asking.send(take(0, 2))
        await requester.until(lambda: len(requester.got) == 2)
        assert {s: [f.errno for f in p if isinstance(f, OSError)] for s, p in requester.got.items()} == {
            0: [errno.EIO, errno.EIO],
            1: [errno.EIO],
        }
    assert "2097153 bytes, and at most 1048576 are allowed" in caplog.text


# Losses


async def test_a_lossy_network_loses_and_repeats_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redoxfs.peers.client.LONGEST_PAUSE_S", 0.1)
    nodes, messages, most = 3, 15, 4
    randoms = random.Random(5)
    interceptors = [
        [
            Losing(method, lambda: randoms.random() < 0.3, before=before)
            for method in ("Ask", "Part", "Hello", "Follow", "Turns")
            for before in (True, False)
        ]
        for _ in range(nodes)
    ]
    hosts = []
    for node in range(nodes):
        numbers = range(node * 10_000, node * 10_000 + messages * most * (nodes - 1))
        hosts.append(FakeService({s: (file(randoms.randbytes(randoms.randrange(600_000))),) for s in numbers}))
    view = View(1, addresses(nodes))
    async with trio.open_nursery() as nursery:
        done = [trio.Event() for _ in hosts]

        async def one(node: int, task_status: trio.TaskStatus[Peers]) -> None:
            async with running(view, node, hosts[node], transport=Lossy(*interceptors[node])) as peers:
                task_status.started(peers)
                await done[node].wait()

        peers = [await nursery.start(one, node) for node in range(nodes)]
        await join_all(*peers)
        for node, of_node in enumerate(peers):
            of_node.follow(node, np.arange(PART_BYTES // 2, dtype=np.int64) + node)
            for number in range(messages):
                for home in set(range(nodes)) - {node}:
                    of_node.send(take(number, most, home=home, requester=node))
        for host in hosts:
            await host.until(lambda host=host: len(host.got) == messages * most * (nodes - 1))  # type: ignore[misc]
            await host.until(lambda host=host: len(host.traces) == nodes - 1)  # type: ignore[misc]
        everything = {sample: told(p) for host in hosts for sample, p in host.shelf.items()}
        got = [sample for host in hosts for sample in host.got]
        assert sorted(got) == sorted(everything)
        assert {s: told(p) for host in hosts for s, p in host.got.items()} == everything
        for node, host in enumerate(hosts):
            assert not host.left
            assert len(host.answers) == messages * (nodes - 1), "each answer is received once"
            assert sorted(t[:2] for t in host.traces) == [(n, n) for n in range(nodes) if n != node]
            assert all(order == list(range(n, n + PART_BYTES // 2)) for n, _, order in host.traces)
            assert not host.restarts
        assert sum(of.stats()["retries"] for of in peers) > 0
        for event in done:
            event.set()
    for of_node in interceptors:
        assert all(losing.lost for losing in of_node[:4]), "the test lost nothing"


async def test_what_did_not_reach_a_peer_is_repeated_when_it_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process does that continues in the place of another."""
    for name in ("SHORTEST_PAUSE_S", "LONGEST_PAUSE_S"):
        monkeypatch.setattr(f"redoxfs.peers.client.{name}", 10 * PATIENCE_S)
    losing = Losing("Ask", first(1), before=True)
    home, requester = FakeService({0: (file(b"0"),)}), FakeService()
    async with pair(home, requester, transport=Lossy(losing)) as (at_home, asking):
        asking.send(take(0, 1))
        await until_in_trio(lambda: asking.stats()["retries"])
        await at_home._clients[1]._greet()
        await requester.until(lambda: 0 in requester.got)
        assert asking.stats()["retries"] == 1
    assert losing.lost == 1


async def test_dropped_bytes_of_an_answer_are_requested_again() -> None:
    shelf: dict[int, Payload] = {n: (file(bytes([n]) * 600_000),) for n in range(5)}
    home, requester = FakeService(shelf), FakeService()
    # The reply is lost after all parts counted as sent.
    losing = Losing("Part", first(1))
    async with pair(home, requester, transport=Lossy(losing)) as (_, asking):
        asking.send(take(0, 5))
        await requester.until(lambda: len(requester.got) == 5)
        assert {s: told(p) for s, p in requester.got.items()} == {s: told(p) for s, p in shelf.items()}
        assert len(requester.answers) == 1
        assert home.handled == [0, 0]
        assert losing.lost == 1


@pytest.mark.parametrize("lost", [0, 1])
async def test_a_node_that_is_lost_within_an_answer_leaves_no_bytes(lost: int, clock: trio.testing.MockClock) -> None:
    """Neither what had come of the answer to the requester, nor what the home has read for it."""
    clock.rate = 1.0
    home = FakeService({n: (file(bytes(2 * PART_BYTES)),) for n in range(2)})
    requester = FakeService()
    nothing = Losing("Part", lambda: True, before=True)
    async with pair(home, requester, transport=Lossy(nothing)) as nodes:
        nodes[1].send(take(0, 1))
        await requester.until(lambda: len(requester.answers) == 1)
        home.gate = trio.Event()
        nodes[1].send(take(1, 1))
        await until_in_trio(lambda: home.handled == [0, 1])
        assert len(home.unreleased) == 1
        nodes[lost].close()
        left = (requester, home)[lost]
        (client,) = nodes[1 - lost]._clients.values()
        await jump_once(clock, lambda: client._is_unreached, SILENCE_S)
        await left.until(lambda: left.silences == [lost])
        if left is home:
            # One that is read later is let go as well.
            home.gate.set()
            await until_in_trio(lambda: not home.busy.total() and not home.unreleased)
        else:
            await until_in_trio(lambda: [each.message.number for each in client._incoming] == [1])


async def test_a_later_message_keeps_bytes_not_yet_fetched() -> None:
    shelf: dict[int, Payload] = {0: (file(b"0" * (PART_BYTES + 1)),), 1: (file(b"one"),)}
    home, requester = FakeService(shelf), FakeService()
    held = threading.Event()
    async with pair(home, requester, transport=Lossy(Losing("Part", lambda: not held.is_set(), before=True))) as (
        _,
        asking,
    ):
        asking.send(take(0, 1))
        await requester.until(lambda: len(requester.answers) == 1)
        # The core acknowledges message 0.
        asking.send(take(1, 1, acked_below=1))
        await requester.until(lambda: 1 in requester.got)
        held.set()
        await requester.until(lambda: 0 in requester.got)
        assert {s: told(p) for s, p in requester.got.items()} == {s: told(p) for s, p in shelf.items()}
        assert home.handled == [0, 1]


async def test_a_message_sent_while_an_answer_is_taken_in_keeps_its_bytes() -> None:
    shelf: dict[int, Payload] = {0: (file(b"0" * (PART_BYTES + 1)),), 1: (file(b"one"),)}

    class Eager(FakeService):
        asking: Peers

        def receive(self, answer: Answer, sizes: Sequence[int]) -> Sequence[Callable[[Payload], None]] | None:
            if not answer.number:
                # The core has the answer, and acknowledges it.
                self.asking.send(take(1, 1, acked_below=1))
            return super().receive(answer, sizes)

    home, requester = FakeService(shelf), Eager()
    held = threading.Event()
    losing = Losing("Part", lambda: not held.is_set(), before=True)
    async with pair(home, requester, transport=Lossy(losing)) as (_, requester.asking):
        requester.asking.send(take(0, 1))
        await requester.until(lambda: 1 in requester.got)
        held.set()
        await requester.until(lambda: 0 in requester.got)
        assert {s: told(p) for s, p in requester.got.items()} == {s: told(p) for s, p in shelf.items()}
        assert home.handled == [0, 1]


async def test_messages_are_asked_again_if_none_is_answered_for_too_long(clock: trio.testing.MockClock) -> None:
    class Deaf(grpc.ServerInterceptor):
        calls = 0

        def intercept_service(self, continuation: Any, details: Any) -> Any:
            if not details.method.endswith("/Ask"):
                return continuation(details)
            self.calls += 1
            if self.calls > 1:
                return continuation(details)
            return grpc.stream_stream_rpc_method_handler(lambda requests, _context: (b"" for r in requests if not r))

    clock.rate = 1.0
    home, requester = FakeService({0: (file(b"0"),)}), FakeService()
    deaf = Deaf()
    async with pair(home, requester, transport=Lossy(deaf)) as (_, asking):
        asking.send(take(0, 1))
        await jump_once(clock, lambda: deaf.calls, CALL_S + 1)
        await requester.until(lambda: 0 in requester.got)
        assert (deaf.calls, asking.stats()["retries"]) == (2, 1)


async def test_a_repeated_message_waits_for_the_same_answer() -> None:
    home = FakeService({0: (file(b"zero"),)})
    view = View(1, addresses(2))
    async with running(view, 0, home) as at_home:
        home.gate = trio.Event()
        caller = pb.Caller(node=1, incarnation=5, view=1)
        introduction = replaced(at_home._introduction, node=1, incarnation=5)

        def talk() -> list[bytes]:
            with grpc.insecure_channel(view.addresses[0]) as channel:
                say(channel, "Hello", pb.HelloRequest(caller=introduction).SerializeToString())
                asks: Any = channel.unary_unary(f"/{SERVICE}/Ask", None, None)
                calls = [asks.future(ask(caller, take(0, 1)), timeout=CALL_S) for _ in range(3)]
                trio.from_thread.run(until_all_asked)
                return [call.result() for call in calls]

        async def until_all_asked() -> None:
            outbox = at_home._server.outbox
            await until_in_trio(lambda: (answer := outbox._answers.get(1, {}).get(0)) and answer.users >= 3)
            home.gate.set()

        replies = await trio.to_thread.run_sync(talk)
        assert len(set(replies)) == 1
        assert bytes(split_payload(replies[0])[1]) == b"zero"
        assert home.handled == [0]


def replaced(introduction: pb.Introduction, **fields: int) -> pb.Introduction:
    copy = pb.Introduction()
    copy.CopyFrom(introduction)
    for name, value in fields.items():
        setattr(copy, name, value)
    return copy


def say(channel: grpc.Channel, method: str, request: bytes) -> bytes:
    call: Any = channel.unary_unary(f"/{SERVICE}/{method}", None, None)
    return call(request, timeout=CALL_S)


async def test_a_node_without_threads_for_a_while_hears_of_its_peer_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redoxfs.peers.client.LONGEST_BEAT_S", 0.05)
    limit = ThreadLimit(monkeypatch, THREADS_OF_CLIENT)
    home, requester = FakeService({0: (file(b"zero"),)}), FakeService()
    async with pair(home, requester) as (_, asking):
        limit.reach()
        # A Hello of each, and later ones.
        await until_in_trio(lambda: len(limit.refused) > 4, limit.refused)
        assert [name.startswith(THREAD_OF_GRPC) for name in limit.refused].count(True) == 2, "each costs a channel"
        limit.lift()
        asking.send(take(0, 1))
        await requester.until(lambda: 0 in requester.got)


@pytest.mark.parametrize("started", range(2 * ASKING_THREADS))
async def test_a_message_whose_call_got_no_thread_is_asked_again(monkeypatch: pytest.MonkeyPatch, started: int) -> None:
    """Of the threads that the look for room and the call start, so many do."""
    home, requester = FakeService({0: (file(b"zero"),)}), FakeService()
    async with pair(home, requester) as (_, asking):
        limit = ThreadLimit(monkeypatch, THREADS_OF_CLIENT)
        limit.reach(started)
        asking.send(take(0, 1))
        assert limit.refused
        limit.lift()
        await requester.until(lambda: 0 in requester.got)
        assert (home.handled, asking.stats()["retries"]) == ([0], 1)


async def test_a_home_without_new_threads_answers_with_those_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = ThreadLimit(monkeypatch, THREADS_OF_SERVER)
    home, requester = FakeService({n: (file(b"%d" % n),) for n in range(20)}), FakeService()
    async with pair(home, requester) as (_, asking):
        limit.reach()
        asking.send(take(0, 1))
        await requester.until(lambda: 0 in requester.got)
        home.gate = trio.Event()
        sent_again: list[int] = []

        async def reread(sample: int) -> None:
            assert told(await asking.reread(0, sample)) == told(home.shelf[sample])
            sent_again.append(sample)

        async with trio.open_nursery() as nursery:
            for sample in range(PARTS_AT_ONCE):
                nursery.start_soon(reread, sample)
            await until_in_trio(lambda: any(name.startswith("redoxfs-peers_") for name in limit.refused))
            home.gate.set()
        assert sorted(sent_again) == list(range(PARTS_AT_ONCE))
        assert asking.stats()["retries"] == 0


@pytest.mark.parametrize("names", [("redoxfs-peers-probe",), THREADS_OF_SERVER])
async def test_a_start_without_threads_is_an_error_and_leaves_the_address(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    view = View(1, addresses(2))
    limit = ThreadLimit(monkeypatch, names)
    limit.reach()
    with pytest.raises(OSError, match=f"cannot answer at {view.addresses[0]}: can't start") as refused:
        async with running(view, 0, FakeService()):
            pass
    assert refused.value.errno == errno.EAGAIN
    limit.lift()
    async with running(view, 0, FakeService()) as at_home, running(view, 1, FakeService()) as asking:
        await join_all(at_home, asking)


async def test_a_failed_handler_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(FakeService):
        failures = iter([trio.TooSlowError(), OSError(errno.EIO, "no disk"), ZeroDivisionError()])

        async def handle(self, message: Message) -> Reply | None:
            for error in self.failures:
                raise error
            return await super().handle(message)

    home, requester = Failing({0: (file(b"zero"),)}), FakeService()
    async with pair(home, requester) as (_, asking):
        asking.send(take(0, 1))
        await requester.until(lambda: 0 in requester.got)
        assert asking.stats()["retries"] == 3
    assert caplog.text.count("Traceback") == 1, "only of the bug"


async def test_an_acknowledged_message_is_not_retried_for_ever() -> None:
    class Forgetful(FakeService):
        async def handle(self, message: Message) -> Reply | None:
            self.handled.append(message.number)
            self._tell()
            return None

    home, requester = Forgetful(), FakeService()
    async with pair(home, requester) as (_, asking):
        asking.send(take(0, 1))
        await home.until(lambda: home.handled == [0])
        client = asking._clients[0]
        await until_in_trio(lambda: not client._incoming)
        assert (home.handled, requester.answers, client.counts.retries) == ([0], [], 0)


async def test_a_restarted_node_is_detected_and_served(clock: trio.testing.MockClock) -> None:
    clock.rate = 1.0
    home, requester = FakeService({0: (file(b"zero"),)}), FakeService()
    view = View(1, addresses(2))
    async with running(view, 1, requester) as asking:
        async with running(view, 0, home) as at_home:
            await join_all(at_home, asking)
            asking.follow(2, np.array([4, 0, 9]))
            await home.until(lambda: home.traces == [(1, 2, [4, 0, 9])])
        asking.send(take(0, 1))
        await jump_once(clock, lambda: asking._clients[0]._is_unreached, SILENCE_S)
        await until_in_trio(lambda: asking.stats()["peers"][view.addresses[0]]["state"] == "unreachable")
        again = FakeService(home.shelf)
        # It does not join: the requester finds out by itself.
        async with running(view, 0, again):
            await requester.until(lambda: 0 in requester.got)
            assert told(requester.got[0]) == told(home.shelf[0])
            await again.until(lambda: again.traces == [(1, 2, [4, 0, 9])])
            assert requester.restarts == [0]
            assert asking.stats()["peers"][view.addresses[0]]["state"] == "ready"
            assert asking.stats()["retries"] > 0


async def test_another_answer_after_a_restart_fails_missing_samples() -> None:
    shelf: dict[int, Payload] = {0: (file(b"zero"),), 1: (file(bytes(3 * PART_BYTES)),)}
    closed = threading.Event()
    home, requester = FakeService(shelf), FakeService()
    view = View(1, addresses(2))
    async with running(view, 1, requester) as asking:
        losing = Losing("Part", lambda: not closed.is_set(), before=True)
        async with running(view, 0, home, transport=Lossy(losing)) as at_home:
            await join_all(at_home, asking)
            asking.send(take(0, 2))
            await requester.until(lambda: 0 in requester.got)
        async with running(view, 0, FakeService({5: (file(b"five"),)})):
            await requester.until(lambda: 1 in requester.got)
            # An Ask may overtake the Hello of the new process.
            assert requester.restarts == [0]
        (problem,) = requester.got[1]
        assert isinstance(problem, OSError)
        assert problem.errno == errno.EIO
        assert set(requester.got) == {0, 1}
        assert requester.restarts == [0]


# Joining


@pytest.mark.parametrize(
    ("identity", "line"),
    [
        (replace(IDENTITY, dataset="d2"), "has another dataset (d2 there, d1 here)"),
        (Identity("d1", {"chunk_size": "32", "seed": "0"}), "has another chunk_size (32 there, 64 here)"),
        (Identity("d1", {"chunk_size": "64"}), "has another seed (none there, 0 here)"),
    ],
)
async def test_nodes_that_serve_different_data_refuse_each_other(identity: Identity, line: str) -> None:
    view = View(1, addresses(2))
    ours, theirs = FakeService(), FakeService()
    async with (
        running(view, 0, ours) as here,
        running(view, 1, theirs, identity=identity) as there,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(refused, there, f"{view.addresses[0]}: has another ")
        await refused(here, f"{view.addresses[1]}: {line}")


async def test_a_late_node_joins_the_later_view_of_the_same_nodes() -> None:
    view = View(3, addresses(3))
    async with (
        running(view, 0, FakeService()) as here,
        running(view, 1, FakeService({5: (file(b"five"),)})) as there,
    ):
        late = FakeService()
        async with running(replace(view, number=1), 2, late) as starting:
            await join_all(here, there, starting)
            assert starting.view == view
            starting.send(take(0, 1, home=1, requester=2))
            await late.until(lambda: 5 in late.got)


async def refused(peers: Peers, line: str) -> None:
    with pytest.raises(RefusedError) as found:
        await peers.join(quiet, PATIENCE_S)
    assert str(found.value).startswith(line)


async def test_a_node_that_ends_tells_the_peer_of_the_refusal() -> None:
    view = View(1, addresses(2))
    async with running(view, 0, FakeService()) as here:
        async with running(view, 1, FakeService(), identity=Identity("d2")) as there:
            await refused(there, f"{view.addresses[0]}: has another dataset (d1 there, d2 here)")
        await refused(here, f"{view.addresses[1]}: has another dataset (d2 there, d1 here)")


async def test_another_version_of_the_protocol_and_another_list_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = addresses(3)
    view = View(1, found[:2])
    async with running(view, 0, FakeService()) as here:
        monkeypatch.setattr("redoxfs.peers.view.PROTOCOL_VERSION", 9)
        async with running(view, 1, FakeService()) as there:
            await refused(there, f"{found[0]}: has another protocol version (6 there, 9 here)")
        await refused(here, f"{found[1]}: has another protocol version (9 there, 6 here)")
    monkeypatch.undo()
    async with running(view, 0, FakeService()) as here, running(View(1, found), 1, FakeService()) as there:
        await refused(there, f"{found[0]}: has another view")
        await refused(here, f"{found[1]}: has another view")


async def test_a_node_of_an_earlier_view_does_not_fail_a_start() -> None:
    found = addresses(3)
    view = View(2, found[:2])
    async with (
        running(view, 0, FakeService()) as here,
        running(View(1, (found[0], found[2])), 1, FakeService()) as old,
    ):
        await refused(old, f"{found[0]}: has another view")
        async with running(view, 1, FakeService()) as there:
            await join_all(here, there)


@pytest.mark.parametrize(
    ("others", "where"), [("10.0.0.2", "[::]:7420"), ("127.0.0.1", "machine:7420"), ("unknown", "[::]:7420")]
)
def test_a_node_whose_name_is_a_loopback_address_is_reached_by_others_alone(
    monkeypatch: pytest.MonkeyPatch, others: str, where: str
) -> None:
    found = {"machine": "127.0.1.1", "other": others}

    def resolve(host: str, *_: object, **__: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        if found[host] == "unknown":
            raise socket.gaierror
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (found[host], 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert listening_at(("machine:7420", "other:7420"), 0) == where
    assert listening_at(("other:7420", "machine:7420"), 0) == "other:7420"


async def test_swapped_addresses_are_reported() -> None:
    view = View(1, addresses(3))
    # Node 2 listens where node 1 should.
    async with (
        running(view, 0, FakeService()) as here,
        running(view, 2, FakeService(), listen=view.addresses[1]),
    ):
        await refused(here, f"{view.addresses[1]}: is node 2 of its view, here it is node 1")


async def test_calls_of_strangers_are_refused() -> None:
    view = View(3, addresses(2))
    host = FakeService({0: (file(b"zero"),)})
    async with running(view, 0, host) as at_home:
        introduction = replaced(at_home._introduction, node=1, incarnation=5)
        strangers = {
            "this is view 3, not 2": pb.Caller(node=1, incarnation=5, view=2),
            "node 0 has no peer with number 2": pb.Caller(node=2, incarnation=5, view=3),
            "node 0 has no peer with number 0": pb.Caller(node=0, incarnation=5, view=3),
            "node 1 must send Hello first": pb.Caller(node=1, incarnation=6, view=3),
            "node 0 was restarted": pb.Caller(node=1, incarnation=5, view=3, callee=7),
        }

        def talk() -> None:
            with grpc.insecure_channel(view.addresses[0]) as channel:
                say(channel, "Hello", pb.HelloRequest(caller=introduction).SerializeToString())
                for line, caller in strangers.items():
                    for method, request in (
                        ("Ask", ask(caller, take(0, 1))),
                        ("Part", pb.PartRequest(caller=caller, part=1).SerializeToString()),
                        ("Follow", pb.FollowRequest(caller=caller).SerializeToString()),
                        ("Turns", pb.TurnsRequest(caller=caller, now=True).SerializeToString()),
                    ):
                        with pytest.raises(grpc.RpcError) as error:
                            say(channel, method, request)
                        assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
                        assert error.value.details() == line
                for method in ("Hello", "Ask", "Part", "Follow", "Turns"):
                    with pytest.raises(grpc.RpcError) as error:
                        say(channel, method, b"\x0a\xff")
                    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT

        await trio.to_thread.run_sync(talk)
        assert not host.handled


async def test_a_join_timeout_names_the_missing_nodes(clock: trio.testing.MockClock) -> None:
    clock.rate = 1.0
    view = View(1, addresses(3))
    reports: list[list[str]] = []
    async with (
        running(view, 0, FakeService()) as here,
        running(view, 1, FakeService()),
        trio.open_nursery() as nursery,
    ):

        def only_one_is_missing() -> bool:
            return reports[-1:] == [[view.addresses[2]]] and here._clients[2].reason == "connection refused"

        nursery.start_soon(jump_once, clock, only_one_is_missing, 20)
        with pytest.raises(JoinTimeoutError) as error:
            await here.join(lambda missing: reports.append(list(missing)), 20)
        assert error.value.missing == view.addresses[2:]
        assert str(error.value).startswith(f"no answer within 20 s from {view.addresses[2]} (connection refused)")
    # A wait of REPORT_S or more is reported again.
    assert [key for key, _ in itertools.groupby(reports)] == [list(view.addresses[1:]), list(view.addresses[2:])]


async def test_each_change_is_reported_during_a_join() -> None:
    view = View(1, addresses(2))
    reports: list[list[str]] = []
    missing = trio.Event()

    def report(names: Sequence[str]) -> None:
        reports.append(list(names))
        missing.set()

    async with running(view, 0, FakeService()) as here, trio.open_nursery() as nursery:
        nursery.start_soon(here.join, report, PATIENCE_S)
        await missing.wait()
        async with running(view, 1, FakeService()) as there:
            await there.join(quiet, PATIENCE_S)
            await until_in_trio(lambda: not reports[-1])
    assert reports == [[view.addresses[1]], []]


async def test_a_join_ends_with_its_peers() -> None:
    """As when another view replaces theirs, whose nodes have to be met instead."""
    reports: list[list[str]] = []
    view = View(1, addresses(2))
    async with running(view, 0, FakeService()) as here, trio.open_nursery() as nursery:
        nursery.start_soon(here.join, lambda missing: reports.append(list(missing)), CALL_S)
        await until_in_trio(lambda: bool(reports))
        here.close()
        await here.join(lambda missing: reports.append(list(missing)), CALL_S)
    assert reports == [[view.addresses[1]]]


async def test_an_address_in_use_is_an_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        peers = Peers(View(1, (address,)), 0, IDENTITY, FakeService(), FakeService(), **SETTINGS)
        with pytest.raises(OSError, match=f"cannot listen at {address}: Address already in use") as error:
            await peers.start()
        assert error.value.errno == errno.EADDRINUSE
    view = View(1, addresses(1))
    async with running(view, 0, FakeService()):
        with pytest.raises(OSError, match="cannot listen"):
            await Peers(view, 0, IDENTITY, FakeService(), FakeService(), **SETTINGS).start()


async def test_the_health_service_reports_a_joined_node() -> None:
    view = View(1, addresses(1))
    async with running(view, 0, FakeService()) as alone:

        def status() -> int:
            with grpc.insecure_channel(view.addresses[0]) as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                said = stub.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=CALL_S)
                return int(said.status)

        assert await trio.to_thread.run_sync(status) == health_pb2.HealthCheckResponse.NOT_SERVING
        await alone.join(quiet, PATIENCE_S)
        assert await trio.to_thread.run_sync(status) == health_pb2.HealthCheckResponse.SERVING


# Ends


async def test_close_leaves_no_thread_and_no_waiting_sample() -> None:
    before = set(threading.enumerate())

    shelf: dict[int, Payload] = {n: (file(bytes(2 * PART_BYTES)),) for n in range(2)}
    home, requester = FakeService(shelf), FakeService()
    asleep = Losing("Part", lambda: True, before=True)
    async with pair(home, requester, transport=Lossy(asleep)) as (at_home, asking):
        asking.send(take(0, 1))
        await requester.until(lambda: len(requester.answers) == 1)
        home.gate = trio.Event()
        asking.send(take(1, 1))
        await until_in_trio(lambda: len(home.handled) >= 2)
        assert not requester.got
        at_home.close()
        asking.close()
        (problem,) = requester.got[0]
        assert isinstance(problem, OSError)
        assert problem.errno == errno.EIO
        asking.send(take(2, 1))
        asking.follow(0, np.arange(3))
        at_home.close()
        assert at_home.stats()["requests_sent"] == 0
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert len(requester.answers) == 1
    # trio keeps its own for the next ones who ask, and ends them when it likes.
    made = [each for each in threading.enumerate() if each not in before and not each.name.startswith("Trio thread")]
    for thread in made:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in made)


# Bytes


files = st.one_of(st.binary(max_size=40), st.sampled_from([OSError(errno.EIO, "bad"), OSError(errno.ENOENT, "none")]))
samples = st.lists(st.lists(files, max_size=4), max_size=12)


@given(samples, st.integers(1, 50), st.randoms(use_true_random=False))
def test_parts_are_assembled_in_any_order(
    contents: list[list[bytes | OSError]], part_bytes: int, order: random.Random
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("redoxfs.peers.parts.PART_BYTES", part_bytes)
        payloads: list[Payload] = [tuple(file(f) if isinstance(f, bytes) else f for f in sample) for sample in contents]
        cut = Cut(payloads)
        heads = [
            tuple(FileHead(len(f.data), f.stamp, f.changed) if isinstance(f, FileBytes) else f for f in payload)
            for payload in payloads
        ]
        assembly = Assembly(heads)
        assert assembly.part_count == cut.part_count
        whole = b"".join(f for sample in contents for f in sample if isinstance(f, bytes))
        parts = [b"".join(cut.pieces(part)) for part in range(cut.part_count)]
        assert b"".join(parts) == whole
        assert all(len(part) == part_bytes for part in parts[:-1])
        arrivals = list(range(cut.part_count)) * 2
        order.shuffle(arrivals)
        found: dict[int, list[object]] = {}
        for part in arrivals:
            with pytest.raises(ValueError, match="bytes instead of"):
                assembly.fill(part, memoryview(parts[part] + b"!"))
            assembly.fill(part, memoryview(parts[part]))
            for sample in assembly.arrived(part):
                assert sample not in found
                found[sample] = told(assembly.payload(sample))
        assert found == {number: told(payload) for number, payload in enumerate(payloads)}


@given(st.binary(max_size=300), st.integers(0, 2**64 - 1), st.integers(0, 2**63 - 1))
def test_the_wire_format_equals_the_generated_class(payload: bytes, serial: int, offset: int) -> None:
    request = pb.FollowRequest(serial=serial, offset=offset, caller=pb.Caller(node=3))
    head = request.SerializeToString()
    by_hand = with_payload(head, (payload[:7], memoryview(payload)[7:]))
    request.payload = payload
    assert by_hand == request.SerializeToString()
    assert pb.FollowRequest.FromString(by_hand) == request
    found, bytes_ = split_payload(by_hand)
    assert (bytes(found), bytes(bytes_)) == (head, payload)


@given(st.binary(max_size=60), st.binary(max_size=40))
def test_any_bytes_are_a_message_or_a_value_error(noise: bytes, payload: bytes) -> None:
    for data in (noise, pb.AskReply(payload=payload).SerializeToString() + noise, noise + PAYLOAD_TAG + noise):
        try:
            head, found = split_payload(data)
        except ValueError:
            continue
        try:
            reply = parse(pb.AskReply, bytes(head))
        except ValueError:
            continue
        assert not reply.payload
        assert pb.AskReply.FromString(data).payload == bytes(found)


@pytest.mark.parametrize(
    "data",
    [
        b"\x7a",
        b"\x7a\x05abcd",
        b"\x7a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x7a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x7a" + b"\x80" * 11,
        b"\x7a\x01a\x7a\x01b",
        b"\x7a\x01a\x08\x01",
        b"\x78\x01",
        b"\x00\x01",
        b"\x0b\x0c",
        b"\x09abc",
        b"\x0dabc",
        b"\x0a\x7f",
    ],
)
def test_malformed_messages_are_value_errors(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"message|payload"):
        split_payload(data)


def whole_reply() -> bytes:
    payloads: list[Payload] = [(file(b"zero"),), (file(b"one"), OSError(errno.EIO, "bad"))]
    cut = Cut(payloads)
    return with_payload(reply_head(Given(0, 0, 3, 1, (0, 1), 0, 9), payloads, cut), cut.pieces(0))


def hostile_replies() -> Iterator[bytes]:
    """Replies that announce more than they contain, or impossible values."""
    reply = pb.AskReply.FromString(whole_reply())
    for length in (0, 1 << 33, 2**64 - 4):
        reply.header.lengths[0] = length
        yield reply.SerializeToString()
        reply.header.total_bytes = length + 3
        reply.header.part_count = 2**32 - 1
        yield reply.SerializeToString()
    reply = pb.AskReply.FromString(whole_reply())
    reply.header.given.samples.append(7)
    yield reply.SerializeToString()
    reply = pb.AskReply.FromString(whole_reply())
    reply.header.lengths[2] = 1
    yield reply.SerializeToString()
    reply = pb.AskReply.FromString(whole_reply())
    reply.header.remote_answer.sample = 1
    yield reply.SerializeToString()
    for field in ("file_counts", "inodes", "changed"):
        reply = pb.AskReply.FromString(whole_reply())
        getattr(reply.header, field)[:] = [2**32 - 1 if field == "file_counts" else 1]
        yield reply.SerializeToString()
    for problem in (pb.Problem(file=9, errno=5), pb.Problem(file=2), pb.Problem(file=0, errno=5)):
        reply = pb.AskReply.FromString(whole_reply())
        reply.header.problems.append(problem)
        yield reply.SerializeToString()
    yield b""
    yield with_payload(whole_reply()[:-9], (bytes(3 << 20),))
    for cut in range(1, len(whole_reply()), 5):
        yield whole_reply()[:cut]


async def test_hostile_answers_cost_no_memory(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redoxfs.peers.client.LONGEST_PAUSE_S", 0.001)
    hostile = [*hostile_replies()]
    replies = deque([*hostile, whole_reply()])

    class Replacing(grpc.ServerInterceptor):
        def intercept_service(self, continuation: Any, details: Any) -> Any:
            if not details.method.endswith("/Ask"):
                return continuation(details)
            return grpc.stream_stream_rpc_method_handler(
                lambda requests, _context: (replies.popleft() for _ in requests)
            )

    requester = FakeService()
    async with pair(FakeService(), requester, transport=Lossy(Replacing())) as (_, asking):
        tracemalloc.start()
        asking.send(take(0, 2))
        await requester.until(lambda: len(requester.got) == 2)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak_bytes < 16 << 20
        assert told(requester.got[0]) == told((file(b"zero"),))
        assert len(requester.answers) == 1
        assert asking.stats()["retries"] == len(hostile)
    warnings = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == len(hostile)
    assert all(" malformed reply to Ask: " in r.getMessage() and r.exc_info is None for r in warnings)


def test_a_huge_announced_size_allocates_nothing() -> None:
    head = pb.Header(given=pb.Given(cls=3, lap=1, samples=[1]), file_counts=[1], lengths=[1 << 60], sizes=[1])
    head.MergeFrom(pb.Header(mtimes_ns=[1], inodes=[1], changed=[False]))
    head.total_bytes, head.part_count = 1 << 60, 2**32 - 1
    with pytest.raises(ValueError, match="in all, said to be"):
        read_reply(pb.AskReply(header=head).SerializeToString(), take(0, 1))
    head.lengths[0] = head.total_bytes = 1 << 50
    head.part_count = 1 << 30
    client = Client.__new__(Client)
    client._max_answer_bytes, client._bounds = MOST_BYTES, BOUNDS
    tracemalloc.start()
    buffers_bytes = bytes_in_buffers()
    _, assembly, why = client._read_answer(take(0, 1), *replied(pb.AskReply(header=head).SerializeToString()))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert Buffer.total_bytes() == buffers_bytes
    assert assembly is None
    assert "1125899906842624 bytes" in why
    assert peak_bytes < 1 << 16


def test_parts_of_a_trace_may_repeat_but_not_exceed_it() -> None:
    traces = TraceAssembly(6)
    data = np.arange(6, dtype="<i4").view(np.uint8).data
    assert traces.take(1, 1, 24, 8, data[8:16]) == (0, None), "a part is missing before it"
    assert traces.take(1, 1, 24, 0, data[:16]) == (16, None)
    assert traces.take(1, 1, 24, 0, data[:16]) == (16, None)
    received_bytes, order = traces.take(1, 1, 24, 16, data[16:])
    assert received_bytes == 24
    assert order is not None
    assert order.tolist() == list(range(6))
    assert traces.take(1, 1, 24, 16, data[16:]) == (24, None), "returned once"
    assert traces.take(1, 2, 24, 0, data[:4]) == (4, None)
    assert traces.take(1, 1, 24, 0, data[:4]) == (24, None), "an older one"
    empty, order = traces.take(2, 1, 0, 0, data[:0])
    assert (empty, order is not None and order.tolist()) == (0, [])
    traces.forget(1)
    assert traces.take(1, 1, 24, 0, data[:4]) == (4, None)
    for total, offset, payload in ((23, 0, data[:1]), (1 << 40, 0, data), (8, 0, data), (8, 4, data[:8])):
        with pytest.raises(ValueError, match="of a trace of"):
            traces.take(1, 3, total, offset, payload)
