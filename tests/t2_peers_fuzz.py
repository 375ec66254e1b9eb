"""Any bytes from the network are a valid message or one clear error, and take little memory."""

import errno
import logging
import resource
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ParamSpec, TypeVar

import grpc
import numpy as np
import numpy.typing as npt
import pytest
import trio
from grpc_health.v1 import health_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import PATIENCE_S
from t0_local_first import nodes_of
from t2_peers import CALL_S, MOST_BYTES, addresses, file, read_reply, take

from redoxfs.chunks import build_cells, deal, fit
from redoxfs.chunks.store import Payload
from redoxfs.node.state import decode, encode
from redoxfs.peers import Bounds, Plaintext, Reply
from redoxfs.peers.bounds import LAST_PEER_LAP, MOST_FAILED_FILES, MOST_FILES, MOST_HITS
from redoxfs.peers.bridge import Bridge
from redoxfs.peers.channel import HEADER_LIMIT_BYTES, REQUEST_LIMIT_BYTES
from redoxfs.peers.client import Client
from redoxfs.peers.fields import split_payload, with_payload
from redoxfs.peers.outgoing import MOST_ANSWERS, CrowdedError, Outbox
from redoxfs.peers.parts import PART_BYTES, Cut
from redoxfs.peers.server import HEALTH_SERVICE, SERVICE, Server, _cut
from redoxfs.peers.traces import FEWEST_BYTES, TraceAssembly
from redoxfs.peers.translation import ask, parse, replied, reply_head
from redoxfs.peers.v1 import peers_pb2 as pb
from redoxfs.protocol import (
    Given,
    Hit,
    LocalFirst,
    Pending,
    RemoteAnswer,
    RemoteRead,
    SlotNode,
    SlotPolicy,
    Take,
    homes_by_vc,
)
from redoxfs.protocol.events import Answer, Message
from redoxfs.protocol.turns import LAST_LAP

pytestmark = pytest.mark.slow

P = ParamSpec("P")
T = TypeVar("T")

SAMPLES, CLASSES = 1000, 10
BOUNDS = Bounds(SAMPLES, CLASSES)
CALLER = pb.Caller(node=1, incarnation=5, view=1)
INTRODUCTION = pb.Introduction(
    version=3,
    node=1,
    nodes=2,
    incarnation=5,
    view=1,
    view_digest="ab",
    dataset="d1",
    settings={"--seed": "0", "a": "b"},
    beginning="laps from one",
)

MOST_TAKEN_BYTES = 48 << 20
"""The most memory for one message at a time: a fraction of a node's memory, and 24 times the message."""

CODES = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}

READ = RemoteRead(1, 0, 7, 5, 99, 3, -1, 1 << 40, (Hit(4, -1), Hit(5, 2**33)), (1, 2))
TAKE = take(9, 4)

REQUESTS = [
    ("Hello", pb.HelloRequest(caller=INTRODUCTION, joins=True).SerializeToString()),
    ("Ask", ask(CALLER, READ)),
    ("Ask", ask(CALLER, TAKE)),
    ("Part", pb.PartRequest(caller=CALLER, number=7, part=1).SerializeToString()),
    (
        "Follow",
        with_payload(
            pb.FollowRequest(caller=CALLER, serial=1, epoch=3, total_bytes=24, offset=8).SerializeToString(),
            (np.arange(3, dtype="<i4").tobytes(),),
        ),
    ),
    ("Turns", pb.TurnsRequest(caller=CALLER, now=True, offset=9).SerializeToString()),
]


def examples(fewest: int) -> int:
    """The number of examples of the profile, with a minimum: one takes a millisecond."""
    return max(fewest, settings().max_examples)


CLASS_OF = np.where(np.arange(SAMPLES) < 2, 3, np.arange(SAMPLES) % CLASSES).astype(np.int32)
CELLS = build_cells(CLASS_OF, np.ones(SAMPLES, np.int64), chunk_size=10, seed=0)


def pool_node() -> LocalFirst:
    """Node 0 of two."""
    return nodes_of(CLASS_OF, deal(CELLS, 2, seed=0), CELLS.cells, nodes=2, made=LocalFirst)[0]


def slot_node() -> SlotNode:
    """Node 0 of two, the home of all samples."""
    sizes = np.ones(SAMPLES, np.int64)
    layout = fit(CELLS, sizes, SAMPLES // 2)
    policy = SlotPolicy(layout.cells, layout.vc_start, samples=SAMPLES, seed=0)
    homes = np.zeros_like(homes_by_vc(policy.columns, layout.chunk_size, 1))
    return SlotNode(0, policy, homes, sizes, remote_memory_bytes=100, window=20)


def goes_on(node: LocalFirst | SlotNode, sample: int) -> None:
    """Serve the rest of a lap of the class of ``sample``, and more; its turns fit in a state file."""
    for _ in range(SAMPLES // CLASSES + 1):
        turn = node.request(sample)
        if isinstance(turn, Pending):
            node.cancel(turn.ticket)
    node.laps(np.arange(SAMPLES))
    state = decode(encode({}, node.turns(), 0))
    node.merged([node.turns(), state.turns])
    again = pool_node() if isinstance(node, LocalFirst) else slot_node()
    again.restore(state.turns)


class StrictHost:
    """Passes messages to real cores, new ones each time, and lets them continue."""

    def __init__(self) -> None:
        self.handled = 0
        self.followed = 0
        self.unreleased = 0

    async def handle(self, message: Message) -> Reply | None:
        self.handled += 1
        assert (message.requester, message.home) == (1, 0)
        if isinstance(message, RemoteRead):
            slot = slot_node()
            slot.follow(1, message.epoch, np.arange(SAMPLES, dtype=np.int32))
            slot.handle(message)
            goes_on(slot, message.sample)
            answer: Answer = RemoteAnswer(0, message.number, message.sample, (), (1,))
        else:
            assert isinstance(message, Take)
            pool = pool_node()
            pool.handle(message)
            goes_on(pool, CLASS_OF.tolist().index(message.cls))
            answer = Given(0, message.number, message.cls, message.lap, (3,), 0, 0)
        self.unreleased += 1
        return Reply(answer, [(file(b"bytes"),)])

    def release(self, _reply: Reply) -> None:
        self.unreleased -= 1

    def kept(self) -> bytes:
        return b""

    def turns(self) -> bytes:
        return bytes(100)

    def follow(self, requester: int, epoch: int, order: npt.NDArray[np.int32]) -> None:
        slot_node().follow(requester, epoch, order)
        self.followed += 1


@asynccontextmanager
async def door(host: Any, bounds: Bounds = BOUNDS, kept_bytes: int = MOST_BYTES) -> AsyncIterator[tuple[Server, str]]:
    """A server that has met node 1, and its address."""
    bridge = Bridge()
    (address,) = addresses(1)

    def why_unknown(caller: pb.Caller) -> str | None:
        return None if (caller.node, caller.incarnation, caller.view) == (1, 5, 1) else "say Hello first"

    async with trio.open_nursery() as nursery:
        server = Server(
            host,
            bridge,
            node=0,
            why_unknown=why_unknown,
            why_not_yet=lambda: None,
            kept=lambda: b"",
            turns=lambda: bytes(100),
            meet=lambda request: pb.HelloReply(callee=request.caller),
            spawn=lambda act, *words: bridge.post(nursery.start_soon, act, *words),
            threads=4,
            least_threads=2,
            most_rereads=2,
            bounds=bounds,
            kept_bytes=kept_bytes,
        )
        server.start(Plaintext(), address)
        try:
            with trio.fail_after(PATIENCE_S + examples(500) / 10):
                yield server, address
        finally:
            bridge.close()
            server.close()
            nursery.cancel_scope.cancel()


def outcome(channel: grpc.Channel, method: str, request: bytes, service: str = SERVICE) -> grpc.RpcError | bytes:
    calls: Any = channel.unary_unary(f"/{service}/{method}", None, None)
    try:
        reply: bytes = calls(request, timeout=CALL_S)
    except grpc.RpcError as error:
        return error
    return reply


def check(channel: grpc.Channel, method: str, request: bytes) -> grpc.StatusCode | None:
    """One clear error, or a reply."""
    found = outcome(channel, method, request)
    if isinstance(found, bytes):
        return None
    details = found.details()
    assert found.code() in CODES, (found.code(), details)
    assert details
    assert len(details) < 400
    assert details.isprintable()
    code: grpc.StatusCode = found.code()
    return code


def works(channel: grpc.Channel) -> None:
    """The server still answers a valid request."""
    for method, request in REQUESTS[:3]:
        assert isinstance(outcome(channel, method, request), bytes)


@contextmanager
def little_memory(most_bytes: int = MOST_TAKEN_BYTES) -> Iterator[None]:
    """Asserts a limit for the additional memory of a block, at its peak. Around more, it would be slow."""
    tracemalloc.start()
    try:
        yield
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < most_bytes


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


LARGE = st.sampled_from([0, 1, 127, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**70])

fields = st.builds(
    lambda number, kind, value, tail: varint(number << 3 | kind) + varint(value) + tail,
    st.integers(0, 16) | LARGE,
    st.integers(0, 7),
    LARGE,
    st.binary(max_size=9),
)
"""A field of any number, kind and value or length, complete or truncated."""


@st.composite
def mutated(draw: st.DrawFn, message: bytes) -> bytes:
    """``message`` with bytes flipped, truncated, inserted, removed or repeated, or with a field of any kind added."""
    data = bytearray(message)
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.integers(0, 7))
        at = draw(st.integers(0, len(data)))
        end = draw(st.integers(at, min(len(data), at + 40)))
        if kind == 0 and at < len(data):
            data[at] ^= draw(st.integers(1, 255))
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            del data[at:end]
        elif kind == 3:
            data[at:at] = draw(st.binary(max_size=12))
        elif kind == 4:
            data[at:at] = data[at:end] * draw(st.integers(1, 50))
        elif kind == 5:
            data += draw(fields)
        elif kind == 6 and at < len(data):
            # A number or a length changes, and the rest moves.
            data[at : at + 1] = varint(draw(LARGE))
        else:
            data[at:at] = draw(fields)
    return bytes(data)


async def test_the_server_survives_any_message(caplog: pytest.LogCaptureFixture) -> None:
    host = StrictHost()
    seen: set[grpc.StatusCode | None] = set()

    def fuzz(address: str) -> None:
        with grpc.insecure_channel(address) as channel:
            works(channel)

            @settings(max_examples=examples(500))
            @given(st.sampled_from(REQUESTS).flatmap(lambda r: st.tuples(st.just(r[0]), mutated(r[1]))))
            def any_change(change: tuple[str, bytes]) -> None:
                with little_memory(4 << 20):
                    seen.add(check(channel, *change))

            @given(st.sampled_from(["Hello", "Ask", "Part", "Follow", "Turns"]), st.binary(max_size=200))
            def any_bytes(method: str, data: bytes) -> None:
                with little_memory(4 << 20):
                    seen.add(check(channel, method, data))

            @given(st.binary(max_size=50))
            def any_health(data: bytes) -> None:
                outcome(channel, "Check", data, HEALTH_SERVICE)

            any_change()
            any_bytes()
            any_health()
            works(channel)
            healthy = outcome(channel, "Check", b"", HEALTH_SERVICE)
            assert isinstance(healthy, bytes)
            assert health_pb2.HealthCheckResponse.FromString(healthy).status

    threads = threading.active_count()
    async with door(host) as (server, address):
        await trio.to_thread.run_sync(fuzz, address)
        assert len(server.outbox) == 0
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert grpc.StatusCode.INVALID_ARGUMENT in seen
    assert None in seen
    assert host.handled > 2
    assert threading.active_count() <= threads + 2, "trio keeps its threads for a while"


NUMBERS = st.sampled_from(
    [
        0,
        1,
        9,
        10,
        SAMPLES - 1,
        SAMPLES,
        LAST_PEER_LAP,
        LAST_LAP,
        LAST_LAP + 1,
        2**31 - 1,
        2**31,
        2**32 - 1,
        2**63 - 1,
        2**63,
        2**64 - 1,
    ]
)


def narrow(number: int, bits: int) -> int:
    return number & ((1 << bits) - 1)


def signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


@st.composite
def senseless(draw: st.DrawFn) -> tuple[str, bytes]:
    """A well-formed message with any numbers."""
    n: Callable[[], int] = lambda: draw(NUMBERS)  # noqa: E731
    request = pb.AskRequest(caller=CALLER, number=n(), settled=n())
    if draw(st.booleans()):
        request.settled = min(request.settled, request.number)
    kind = draw(st.integers(0, 2))
    if kind == 0:
        request.take.CopyFrom(pb.Take(cls=narrow(n(), 32), lap=n(), most=n(), room_bytes=n(), again=n(), done=n()))
    elif kind == 1:
        read = pb.RemoteRead(sample=narrow(n(), 32), epoch=signed(n()), position=signed(n()), room_bytes=n())
        for _ in range(draw(st.integers(0, 3))):
            read.hits.append(pb.Hit(sample=narrow(n(), 32), position=signed(n())))
            read.passed.append(narrow(n(), 32))
        request.remote_read.CopyFrom(read)
    else:
        head = pb.FollowRequest(caller=CALLER, serial=n(), epoch=signed(n()), total_bytes=4 * draw(st.integers(0, 3)))
        head.offset = draw(st.sampled_from([0, 4, 8, 2**63, 2**64 - 4]))
        order = draw(st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(0, SAMPLES), max_size=3))
        return "Follow", with_payload(head.SerializeToString(), (np.array(order, "<i4").tobytes(),))
    return "Ask", request.SerializeToString()


async def test_impossible_numbers_do_not_reach_the_core(caplog: pytest.LogCaptureFixture) -> None:
    host = StrictHost()
    seen: set[grpc.StatusCode | None] = set()

    def fuzz(address: str) -> None:
        with grpc.insecure_channel(address) as channel:

            @settings(max_examples=examples(500))
            @given(senseless())
            def any_numbers(told: tuple[str, bytes]) -> None:
                seen.add(check(channel, *told))

            any_numbers()
            works(channel)

    async with door(host) as (_, address):
        await trio.to_thread.run_sync(fuzz, address)
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert seen >= {None, grpc.StatusCode.INVALID_ARGUMENT}


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (READ._replace(sample=SAMPLES), "sample 1000 of 1000"),
        (READ._replace(hits=(Hit(SAMPLES, 0),)), "sample 1000 of 1000"),
        (READ._replace(sample=3), "sample 3 lives at node 1, not at node 0"),
        (READ._replace(epoch=-1), "epoch is -1"),
        (READ._replace(position=-2), "a position below -1"),
        (READ._replace(hits=(Hit(4, -9),)), "a position below -1"),
        (READ._replace(hits=(Hit(4, 1),) * (MOST_HITS + 1)), "131073 hits, more than 131072"),
        (READ._replace(passed=(1,) * (MOST_HITS + 1)), "131073 positions passed"),
        (READ._replace(room_bytes=2**63), "room_bytes is"),
        (READ._replace(number=2**63, acked_below=0), "number is"),
        (READ._replace(acked_below=8), "acknowledges its own answer"),
        (TAKE, "a Take, which the policy of this job does not know"),
        (TAKE._replace(lap=0), "lap 0, where laps are 1 to 536870912"),
        (TAKE._replace(lap=LAST_PEER_LAP + 1), "lap 536870913, where laps are 1 to 536870912"),
        (TAKE._replace(lap=2**31 - 1), "lap 2147483647, where"),
        (TAKE._replace(lap=2**31), "lap 2147483648, where"),
        (TAKE._replace(max_samples=2**31), "most is 2147483648"),
        (TAKE._replace(done=2**32), "done is"),
    ],
)
async def test_a_refusal_names_the_problem(message: Message, line: str) -> None:
    bounds = Bounds(SAMPLES, CLASSES, (RemoteRead,), np.array([int(n == 3) for n in range(SAMPLES)], np.int8))
    host = StrictHost()
    async with door(host, bounds) as (_, address):

        def talk() -> None:
            with grpc.insecure_channel(address) as channel:
                error = outcome(channel, "Ask", ask(CALLER, message))
                assert isinstance(error, grpc.RpcError)
                assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert line in str(error.details())

        await trio.to_thread.run_sync(talk)
    assert not host.handled


# Amplifiers


def huge_requests() -> Iterator[tuple[str, bytes]]:
    """A message full of the element that takes the most memory per byte."""
    caller = pb.AskRequest(caller=CALLER).SerializeToString()
    room = REQUEST_LIMIT_BYTES - 100
    hits = b"\x2a\x00" * (room // 2)
    yield "Ask", caller + b"\x22" + varint(len(hits)) + hits
    passed = b"\x32" + varint(room - 10) + bytes(room - 10)
    yield "Ask", caller + b"\x22" + varint(len(passed)) + passed
    unpacked = b"\x30\x01" * (room // 2)
    yield "Ask", caller + b"\x22" + varint(len(unpacked)) + unpacked
    told = b"".join(b"\x42\x06\x0a\x04" + n.to_bytes(2).hex().encode() for n in range(65_536)) * 3
    yield "Hello", b"\x0a" + varint(len(told)) + told
    yield "Hello", pb.HelloRequest(caller=pb.Introduction(dataset="x" * 5000)).SerializeToString()
    yield "Hello", pb.HelloRequest(caller=pb.Introduction(dataset="two\nlines")).SerializeToString()
    yield "Hello", pb.HelloRequest(caller=pb.Introduction(incarnation=2**63)).SerializeToString()
    yield "Hello", pb.HelloRequest(caller=pb.Introduction(settings={str(n): "" for n in range(65)})).SerializeToString()
    yield "Part", pb.PartRequest(caller=CALLER).SerializeToString() + b"\x7a\xe8\x07" + bytes(1000)
    yield "Follow", b"\x7a" + varint(room) + bytes(room)
    yield "Ask", bytes(REQUEST_LIMIT_BYTES + 1)


async def test_a_message_full_of_one_field_is_cheap(caplog: pytest.LogCaptureFixture) -> None:
    host = StrictHost()
    requests = [*huge_requests()]

    def talk(address: str) -> None:
        with grpc.insecure_channel(address, [("grpc.max_send_message_length", -1)]) as channel, little_memory():
            for method, request in requests:
                assert len(request) <= REQUEST_LIMIT_BYTES + 1
                assert check(channel, method, request) in CODES, method
            works(channel)

    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with door(host) as (_, address):
        await trio.to_thread.run_sync(talk, address)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 400 << 10, "with protobuf's own"
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def huge_replies() -> Iterator[bytes]:
    count = HEADER_LIMIT_BYTES // 5 - 100
    none = [0] * count
    head = pb.Header(given=pb.Given(lap=1, samples=[1]), file_counts=[count], lengths=none, sizes=none, mtimes_ns=none)
    head.MergeFrom(pb.Header(inodes=none, changed=[False] * count))
    yield pb.AskReply(header=head).SerializeToString()
    many = [1] * (HEADER_LIMIT_BYTES - 100)
    yield pb.AskReply(header=pb.Header(given=pb.Given(lap=1, samples=many))).SerializeToString()
    yield pb.AskReply(header=pb.Header(given=pb.Given(lap=1, samples=[1]), file_counts=many)).SerializeToString()
    yield pb.AskReply(header=pb.Header(remote_answer=pb.RemoteAnswer(prefetched=many))).SerializeToString()
    problem = b"\x4a\x00" * (HEADER_LIMIT_BYTES // 2 - 100)
    told = pb.Header(given=pb.Given(lap=1, samples=[1]), file_counts=[1]).SerializeToString() + problem
    yield b"\x0a" + varint(len(told)) + told
    failed = pb.Header(
        given=pb.Given(lap=1, samples=[1]), file_counts=[MOST_FAILED_FILES + 1], problems=[pb.Problem(errno=5)]
    )
    failed.part_count = 1
    yield pb.AskReply(header=failed).SerializeToString()
    failed.file_counts[0] = 2**32 - 1
    yield pb.AskReply(header=failed).SerializeToString()


def test_a_reply_full_of_one_field_is_cheap() -> None:
    replies = [*huge_replies()]
    for reply in replies:
        assert len(reply) < 2 * HEADER_LIMIT_BYTES
        for message in (take(0, 2), READ):
            with little_memory(), pytest.raises(ValueError, match=r"."):
                read_reply(reply, message)
    for hello in (
        pb.HelloReply(differences=[pb.Difference()] * 65),
        pb.HelloReply(differences=[pb.Difference(field="a\nb")]),
        pb.HelloReply(callee=pb.Introduction(settings={"\0": ""})),
        pb.HelloReply(begun=b"123"),
        pb.HelloReply(begun=np.array([1, LAST_PEER_LAP + 1], "<i4").tobytes()),
        pb.HelloReply(begun=np.array([1, -1], "<i4").tobytes()),
    ):
        with pytest.raises(ValueError, match=r"."):
            parse(pb.HelloReply, hello.SerializeToString())
    with pytest.raises(ValueError, match="more than 1024"):
        parse(pb.FollowReply, bytes(1025))


# Replies


def whole_reply(message: Message) -> bytes:
    payloads: list[Payload] = [(file(b"zero"),), (file(b"one"), OSError(errno.EIO, "bad"))]
    answer: Answer = (
        Given(0, message.number, 3, 1, (0, 1), 0, 9)
        if isinstance(message, Take)
        else RemoteAnswer(0, message.number, 0, (1,), (1, 2))
    )
    cut = Cut(payloads)
    return with_payload(reply_head(answer, payloads, cut), cut.pieces(0))


REPLIES = [(TAKE, whole_reply(TAKE)), (READ, whole_reply(READ))]
HELLO_REPLY = pb.HelloReply(
    callee=INTRODUCTION, differences=[pb.Difference(field="a", caller="b", callee="c")], begun=bytes(8)
).SerializeToString()


def reader() -> Client:
    client = Client.__new__(Client)
    client._max_answer_bytes, client._bounds = MOST_BYTES, BOUNDS
    return client


@settings(max_examples=examples(500))
@given(st.sampled_from(REPLIES).flatmap(lambda r: st.tuples(st.just(r[0]), mutated(r[1]))))
def test_any_reply_is_a_valid_answer_or_a_value_error(case: tuple[Message, bytes]) -> None:
    message, data = case
    with little_memory(4 << 20):
        result, line = tried(read_reply, data, message, BOUNDS)
        assert len(line) < 400
        if result is None:
            return
        found, _ = result
        assert all(0 <= sample < SAMPLES for sample in found.answer.samples)
        assert len(found.samples) == len(found.sizes) == len(found.answer.samples)
        assert all(str(f.strerror).isprintable() for s in found.samples for f in s if isinstance(f, OSError))
        read, line = tried(reader()._read_answer, message, *replied(data))
        assert read is None or (read[1] is None) == bool(read[2]), line


def tried(act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T | None, str]:
    """The result of ``act``, or the one line of its ValueError."""
    try:
        return act(*args, **kwargs), ""
    except ValueError as error:
        return None, str(error)


@given(mutated(HELLO_REPLY), mutated(pb.FollowReply(received_bytes=9).SerializeToString()), st.binary(max_size=99))
def test_any_other_reply_is_valid_or_a_value_error(hello: bytes, follow: bytes, part: bytes) -> None:
    lines = [
        tried(parse, pb.HelloReply, hello)[1],
        tried(parse, pb.FollowReply, follow)[1],
        tried(split_payload, part)[1],
    ]
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (Given(0, 9, 3, 1, (SAMPLES,), 0, 0), "sample 1000 of 1000"),
        (Given(0, 9, 4, 1, (0,), 0, 0), "class 4, where class 3 was asked for"),
        (Given(0, 9, 3, 1, (1,), 0, 0), "sample 1, which is not of class 3"),
        (Given(0, 9, 3, 1, (0,), 2**31, 0), "left is 2147483648"),
        (Given(0, 9, 3, LAST_PEER_LAP + 1, (0,), 0, 0), "lap 536870913, where laps are 1 to 536870912"),
        (Given(0, 9, 3, 0, (0,), 0, 0), "lap 0, where laps are 1 to 536870912"),
        (Given(0, 9, 3, 1, (0,) * 5, 0, 0), "5 samples, where 4 were asked for"),
        (RemoteAnswer(0, 9, 1, (), (1,)), "a Take was answered with remote_answer"),
    ],
)
def test_an_answer_with_unknown_samples_is_malformed(answer: Answer, line: str) -> None:
    bounds = Bounds(SAMPLES, CLASSES, class_of=np.where(np.arange(SAMPLES) == 1, 2, 3))
    payloads: list[Payload] = [(file(b"x"),) for _ in answer.samples]
    with pytest.raises(ValueError, match=line):
        read_reply(reply_head(answer, payloads, Cut(payloads)), TAKE, bounds)
    elsewhere = Bounds(SAMPLES, CLASSES, home_of=np.ones(SAMPLES, np.int8))
    with pytest.raises(ValueError, match="sample 0 lives at node 1, not at node 0"):
        read_reply(REPLIES[1][1], READ, elsewhere)


# Limits


def test_an_answer_of_too_many_files_fails_without_a_retry(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is sent in a few bytes, and once."""
    payloads: list[Payload] = [(file(b"x"),) * MOST_FILES, (file(b"y"),), ()]
    reply = Reply(Given(0, 0, 3, 1, (0, 1, 2), 0, 9), payloads)
    head, cut = _cut(reply)
    assert len(head) < 300
    assert (cut.total_bytes, cut.part_count) == (0, 1)
    found, payload = read_reply(head, take(0, 3))
    assert found.answer == reply.answer
    assert found.sizes == (0, 0, 0)
    assert [len(sample) for sample in found.samples] == [MOST_FILES, 1, 0]
    assert {f.errno for sample in found.samples for f in sample if isinstance(f, OSError)} == {errno.EIO}
    assert isinstance(found.samples[1][0], OSError)
    assert found.samples[1][0].strerror == f"an answer of {MOST_FILES + 1} files, more than {MOST_FILES}"
    assert not payload
    assert "gave 3 samples without their bytes: an answer of 131073 files" in caplog.text
    _, assembly, _ = reader()._read_answer(take(0, 3), *replied(head))
    assert assembly is not None
    assert assembly.arrived(0) == [0, 1, 2]
    monkeypatch.setattr("redoxfs.peers.translation.HEADER_LIMIT_BYTES", 500)
    few: list[Payload] = [(file(b"x"),) * 100]
    head, _ = _cut(Reply(Given(0, 0, 3, 1, (0,), 0, 9), few))
    assert len(read_reply(head, take(0, 3))[0].samples[0]) == 100
    monkeypatch.setattr("redoxfs.peers.translation.MOST_FAILED_FILES", 9)
    with pytest.raises(ValueError, match="an answer of 100 files, more than 9"):
        _cut(Reply(Given(0, 0, 3, 1, (0,), 0, 9), few))


async def test_an_answer_that_cannot_be_cut_is_released(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has too many files even for a header without bytes."""
    monkeypatch.setattr("redoxfs.peers.translation.MOST_FILES", 1)
    monkeypatch.setattr("redoxfs.peers.translation.MOST_FAILED_FILES", 1)
    host = Large(files=2)
    async with door(host) as (server, address):

        def talk() -> None:
            with grpc.insecure_channel(address) as channel:
                for _ in range(2):
                    found = outcome(channel, "Ask", ask(CALLER, take(0, 1)))
                    assert isinstance(found, bytes)
                    reply, _ = replied(found)
                    assert "an answer of 2 files, more than 1" in reply.refusal.text

        await trio.to_thread.run_sync(talk)
        assert host.handled == [0, 0]
        assert not host.unreleased
        assert not len(server.outbox)
    assert "message 0 of node 1 is not answered yet" in caplog.text


def prepared(outbox: Outbox, requester: int, number: int, size: int, released: list[Reply]) -> Reply:
    """An answer that was requested, and whose first part was sent."""
    answer, is_new = outbox.take(requester, number, lambda: None)  # type: ignore[arg-type, return-value]
    assert is_new
    assert not released or answer.reply is None
    payloads: list[Payload] = [(file(bytes(size)),)]
    reply = Reply(Given(0, number, 0, 1, (0,), 0, 0), payloads)
    outbox.prepared(answer, reply, b"", Cut(payloads))
    outbox.sent(answer, 0, PART_BYTES)
    outbox.leave(answer)
    return reply


def test_answers_not_fetched_are_dropped_beyond_the_limit() -> None:
    released: list[Reply] = []
    outbox = Outbox(released.append, 10 * PART_BYTES)
    size = 3 * PART_BYTES
    of_two = prepared(outbox, 2, 0, size, released)
    replies = [prepared(outbox, 1, number, size, released) for number in range(2)]
    assert not released
    # A fetch makes an answer the most recent one.
    fetched = outbox.find(1, 0)
    assert fetched is not None
    outbox.leave(fetched)
    replies.append(prepared(outbox, 1, 2, size, released))
    assert released == [replies[1]], "of the requester with the most bytes"
    assert outbox.find(1, 1) is None
    # An answer that is being sent keeps its bytes until it was sent.
    busy = outbox.find(1, 0)
    assert busy is not None
    other = outbox.find(1, 2)
    assert other is not None
    outbox.leave(other)
    replies.append(prepared(outbox, 1, 3, size, released))
    assert released == [replies[1]]
    outbox.leave(busy)
    assert released == [replies[1], replies[0]]
    # An answer above the limit is kept alone.
    prepared(outbox, 1, 4, 11 * PART_BYTES, released)
    assert set(map(id, released)) == {id(reply) for reply in (of_two, *replies)}
    assert len(outbox) == 1
    outbox.settle(1)
    assert len(released) == 6
    assert outbox._kept.total() == 0


async def test_a_dropped_answer_is_prepared_again() -> None:
    host = Large()

    def talk(address: str) -> None:
        def asks(number: int) -> bytes:
            found = outcome(channel, "Ask", ask(CALLER, take(number, 1)))
            assert isinstance(found, bytes)
            return found

        def part(number: int) -> grpc.RpcError | bytes:
            return outcome(channel, "Part", pb.PartRequest(caller=CALLER, number=number, part=1).SerializeToString())

        with grpc.insecure_channel(address) as channel:
            first = asks(0)
            for number in range(1, 9):
                asks(number)
            gone = part(0)
            assert isinstance(gone, grpc.RpcError)
            assert gone.code() is grpc.StatusCode.NOT_FOUND
            assert asks(0) == first
            assert isinstance(part(0), bytes)

    async with door(host, kept_bytes=4 * PART_BYTES) as (server, address):
        await trio.to_thread.run_sync(talk, address)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert host.handled == [*range(9), 0]
        assert len(server.outbox) == len(host.unreleased) == 1


class Large:
    """Gives files of two parts each time."""

    def __init__(self, files: int = 1) -> None:
        self.files = files
        self.handled: list[int] = []
        self.unreleased: list[Reply] = []

    async def handle(self, message: Message) -> Reply | None:
        assert isinstance(message, Take)
        self.handled.append(message.number)
        payload = (file(bytes(2 * PART_BYTES)),) * self.files
        reply = Reply(Given(0, message.number, 3, 1, (1,), 0, 0), [payload])
        self.unreleased.append(reply)
        return reply

    def release(self, reply: Reply) -> None:
        self.unreleased.remove(reply)


def test_a_requester_has_a_limit_of_pending_answers() -> None:
    outbox = Outbox(lambda _reply: None, MOST_BYTES)
    promise: Any = lambda: None  # noqa: E731
    for number in range(MOST_ANSWERS):
        outbox.take(1, number, promise)
    with pytest.raises(CrowdedError, match="4096 messages of node 1 wait"):
        outbox.take(1, MOST_ANSWERS, promise)
    assert outbox.take(1, 0, promise)[1] is False
    assert outbox.take(2, 0, promise)[1] is True


def test_an_impossible_trace_is_refused_at_its_first_bad_part() -> None:
    traces = TraceAssembly(SAMPLES)

    def part(*order: int) -> memoryview:
        return np.array(order, "<i4").view(np.uint8).data

    assert traces.take(1, 1, 16, 0, part(0, SAMPLES - 1)) == (8, None)
    for wrong in ((SAMPLES,), (-1, 0), (0, 2**31 - 1)):
        with pytest.raises(ValueError, match=r"a trace with sample .* of 1000"):
            traces.take(1, 1, 16, 8, part(*wrong))
    for total, offset in ((FEWEST_BYTES + 4, 0), (16, 2), (2**64 - 4, 0)):
        with pytest.raises(ValueError, match="of a trace of"):
            traces.take(1, 1, total, offset, part(1))
    with pytest.raises(ValueError, match="of a trace of 8, before of 16"):
        traces.take(1, 1, 8, 0, part(1))
    _, order = traces.take(1, 1, 16, 8, part(1, 1))
    assert order is not None
    assert order.tolist() == [0, SAMPLES - 1, 1, 1]
