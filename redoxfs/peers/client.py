"""One peer as this node sees it: sends messages over one channel until they are answered.

Everything runs in the trio task, except that other threads read replies: they copy the bytes to their final place, and
the task only learns that they have arrived. All messages go by one call, and after any failure again by the next one.
"""

import ctypes
import errno
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from time import monotonic_ns
from typing import Any, TypeVar

import grpc
import trio

from redoxfs.chunks.store import Payload
from redoxfs.native import Histogram
from redoxfs.peers.asking import ASKING_THREADS, Asked, Asking, check_threads
from redoxfs.peers.bounds import Bounds
from redoxfs.peers.bridge import Bridge
from redoxfs.peers.channel import one_line
from redoxfs.peers.failures import (
    MEANINGS,
    UNREACHED,
    AgainError,
    GoneError,
    RefusalError,
    SettledError,
    UnknownError,
    is_unreached,
    plainly,
)
from redoxfs.peers.fields import split_payload, with_payload
from redoxfs.peers.parts import PART_BYTES, Assembly
from redoxfs.peers.server import SERVICE
from redoxfs.peers.service import PeerService
from redoxfs.peers.traces import Trace
from redoxfs.peers.translation import Received, ask, parse, received, reread
from redoxfs.peers.v1 import peers_pb2 as pb
from redoxfs.protocol.events import Message

SHORTEST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
"""The pause before a retry: doubled each time, and randomized, so that nodes do not retry in step."""

MOST_DOUBLINGS = 10

PARTS_AT_ONCE = 8
"""Calls in progress to one peer; each occupies one of its threads."""

TRACES_KEPT = 2
"""For an unreachable peer: those of this epoch and the next."""

HELLO_S = 10.0
"""The deadline of a Hello, which waits for nothing but the network."""

BEATS = 10
"""The number of Hellos to a silent peer within the time that it may be silent."""

LONGEST_BEAT_S = 1.0

MALFORMED_LOGGED = 100
"""The most malformed replies in a row that are logged."""

CALLS_AT_ONCE = 2 * (1 + PARTS_AT_ONCE + 2)
"""Twice the most calls of one peer to a server at once: one of its messages, parts, a Hello and a part of a trace. A
peer may connect anew before the server knows that its last connection is broken."""

T = TypeVar("T")

log = logging.getLogger(__name__)


ANSWERS = ("Part", "Reread")


_Answer = tuple[Received, Assembly | None, str]


@dataclass(slots=True)
class Counts:
    """``requests``: messages, each counted once; ``retries``: calls made again; ``bytes_in``: of answers."""

    requests: int = 0
    retries: int = 0
    samples: int = 0
    bytes_in: int = 0


class _Incoming:
    """A message that was sent, and the callbacks for the samples of its answer."""

    def __init__(self, message: Message, acked_below: int) -> None:
        self.message = message
        self.acked_below = acked_below
        self.attempt = 0
        self.received: Received | None = None
        self.sent_ns = monotonic_ns()
        self.sinks: dict[int, Callable[[Payload], None]] = {}
        self.fetching: trio.CancelScope | None = None


class Client:
    """One peer.

    Args:
        channel: makes a channel to the peer.
        address: for messages to users.
        introduction: describes this node.
        met: called with the reply to each Hello; returns whether the two nodes go together.
        changed: called with the new state and the old one.
        spawn: starts an async function in the trio task.
        timeout_s: the deadline of a call; messages are asked again if none is answered for so long.
        silence_s: a peer that answers nothing for so long is unreachable.
        waits: but not before it has answered for the first time.
        bounds: refuse answers that are out of these.
        max_answer_bytes: fetch no bytes of an answer that announces more.
    """

    def __init__(
        self,
        service: PeerService,
        bridge: Bridge,
        channel: Callable[[], grpc.Channel],
        address: str,
        introduction: pb.Introduction,
        *,
        met: Callable[[pb.HelloReply], bool],
        changed: Callable[[str, str], None],
        spawn: Callable[..., None],
        timeout_s: float,
        silence_s: float,
        waits: bool,
        max_answer_bytes: int,
        bounds: Bounds,
    ) -> None:
        self._service = service
        self._bridge = bridge
        self._new_channel = channel
        self.address = address
        self._introduction = introduction
        self._caller = pb.Caller(node=introduction.node, incarnation=introduction.incarnation, view=introduction.view)
        self._met = met
        self._changed = changed
        self._spawn = spawn
        self._timeout_s = timeout_s
        self._silence_s = silence_s
        self._waits = waits
        self._bounds = bounds
        self._malformed = 0
        self._heard_s = trio.current_time()
        self._max_answer_bytes = max_answer_bytes
        self._channel: grpc.Channel
        self._methods: dict[str, Any]
        self._ask_method: Any
        self._connect()
        self._asking: Asking | None = None
        # The last reply to a message, or the first message that waits.
        self._answered_s = 0.0
        self._taken: _Incoming | None = None
        self._parts = trio.Semaphore(PARTS_AT_ONCE)
        self._greeting = trio.Lock()
        self._greetings = 0
        self._traces: deque[Trace] = deque(maxlen=TRACES_KEPT)
        self._sending_traces = False
        self._incoming: set[_Incoming] = set()
        self._rereads: set[trio.CancelScope] = set()
        # Whether the last call did not reach the peer; set when it was reached after that; pauses since then.
        self._is_unreached = False
        self._reached = trio.Event()
        self._pauses = MOST_DOUBLINGS
        self._closed = False
        self.state = "joining"
        self.reason = ""
        self.counts = Counts()
        # From a message to its answer, repetitions included.
        self.answer_times = Histogram()

    def send(self, message: Message) -> None:
        """Ask until ``message`` is answered; the service receives the answer."""
        self.counts.requests += 1
        # The core acknowledges an answer when it arrives, but the peer must keep bytes that have not been fetched.
        coming = [other.message.number for other in self._incoming if other.sinks or other is self._taken]
        incoming = _Incoming(message, min([message.acked_below, *coming]))
        self._incoming.add(incoming)
        self._ask(incoming)

    def follow(self, trace: Trace) -> None:
        """Send the peer a trace, after those before."""
        self._traces.append(trace)
        if not self._sending_traces:
            self._sending_traces = True
            self._spawn(self._send_traces)

    def know(self, incarnation: int) -> None:
        """The peer is this process: another one must not answer calls from now on."""
        self._caller.callee = incarnation

    def reached(self) -> None:
        """The peer has called, so it listens again: repeat now what did not reach it."""
        if self._is_unreached:
            self._is_unreached, self._pauses = False, 0
            self._reached.set()
            self._reached = trio.Event()

    def enter_view(self, number: int) -> None:
        """Calls belong to view ``number`` from now on. Before any call but Hello."""
        self._caller.view = number

    def give_up_bytes(self, why: str) -> None:
        """Give up bytes of answers that are not here yet. Messages without an answer are still sent."""
        for incoming in list(self._incoming):
            self._give_up(incoming, why)

    def refuse(self, reason: str) -> None:
        """This peer does not serve the same."""
        self._become("refused", reason)

    def close(self) -> None:
        """Make no more calls. Samples that have not arrived get an error."""
        self._closed = True
        if self._is_usable:
            self._channel.close()
        for incoming in list(self._incoming):
            self._give_up(incoming, "this node ends")
        self._give_up_rereads()

    async def greet(self) -> None:
        """Send Hello until the peer answers; then check that it is alive, forever."""
        for attempt in count():
            try:
                await self._greet()
            except AgainError:
                if self.state == "refused" and self._waits:
                    return
                silent_s = trio.current_time() - self._heard_s
                if not self._waits and self.state == "joining" and silent_s > self._silence_s:
                    self._become("unreachable", self.reason)
                await self._pause(attempt)
            else:
                break
        await self._watch()

    async def _watch(self) -> None:
        """Detect a stopped process and a broken link, which show in nothing but silence."""
        beat_s = min(LONGEST_BEAT_S, self._silence_s / BEATS)
        while True:
            await trio.sleep(beat_s)
            if self._asking is not None and self._asking.waits:
                unanswered_s = trio.current_time() - self._answered_s
                if unanswered_s > self._timeout_s:
                    self._asking.break_off(RefusalError(grpc.StatusCode.DEADLINE_EXCEEDED, ""))
            silent_s = trio.current_time() - self._heard_s
            if silent_s > self._silence_s and self.state == "ready":
                self._become("unreachable", f"no answer for {silent_s:.1f} s")
                self.give_up_bytes("the peer does not answer any more")
                self._give_up_rereads()
            if silent_s > beat_s:
                with suppress(AgainError), trio.move_on_after(max(beat_s, self._silence_s / 2)):
                    await self._greet()

    # The channel

    def _connect(self) -> None:
        channel = self._channel = self._new_channel()
        self._is_usable = True
        self._methods = {
            name: channel.unary_unary(f"/{SERVICE}/{name}", None, None)
            for name in ("Hello", "Part", "Follow", "Turns", "Reread")
        }
        self._ask_method = channel.stream_stream(f"/{SERVICE}/Ask", None, None)

    def _begun(self, begin: Callable[[], T], threads: int = 0) -> T:
        """What ``begin`` returns, which has gRPC begin a call. Not before ``threads`` can be started.

        Raises AgainError: no thread can be started.
        """
        try:
            # Each channel that is given up costs memory and a connection.
            check_threads(threads if self._is_usable else max(1, threads))
            if not self._is_usable:
                self._connect()
        except RuntimeError as error:
            raise AgainError(str(error)) from error
        try:
            return begin()
        except RuntimeError as error:
            # gRPC takes its thread of this channel for started, and starts none for later calls either. To close the
            # channel would wait for that thread, and so would Python when it frees the channel: it is never freed.
            self._is_usable = False
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._channel))
            raise AgainError(str(error)) from error

    # One call

    async def _call(self, method: str, request: bytes, timeout_s: float, read: Callable[[bytes], T]) -> T:
        """Call ``read`` with the reply in gRPC's thread and return its result; ValueError means a malformed reply.

        Raises:
            AgainError, SettledError.
        """
        if self._closed:
            # Until this task is cancelled.
            await trio.sleep_forever()
        done = trio.Event()
        results: list[T] = []
        errors: list[Exception] = []

        def finish(call: Any) -> None:
            try:
                reply: bytes = call.result()
                results.append(read(reply))
                size = len(reply) if method in ANSWERS else 0
            except grpc.FutureCancelledError:
                return
            except Exception as error:
                errors.append(error)
                size = 0
            self._bridge.post(arrived, size)

        def arrived(size: int) -> None:
            self._note_reply(errors[0] if errors else None, size)
            done.set()

        call = self._begun(lambda: self._methods[method].future(request, timeout=timeout_s))
        call.add_done_callback(finish)
        try:
            await done.wait()
        except trio.Cancelled:
            call.cancel()
            raise
        if not errors:
            return results[0]
        raise self._meaning(method, errors[0]) from errors[0]

    def _note_reply(self, error: Exception | None, size: int) -> None:
        self.counts.bytes_in += size
        self._is_unreached = error is not None and is_unreached(error)
        if not self._is_unreached:
            self._heard_s = trio.current_time()
        if error is None:
            self._malformed = 0

    def _meaning(self, method: str, error: Exception) -> Exception:
        if isinstance(error, grpc.RpcError):
            code: grpc.StatusCode = error.code()
            why = plainly(code, error.details() or "")
            if self.state == "joining":
                if code is grpc.StatusCode.PERMISSION_DENIED:
                    self.refuse(f"{self.address}: {one_line(error.details() or '')}")
                elif code in UNREACHED:
                    self.reason = why
            return MEANINGS.get(code, AgainError)(why)
        if isinstance(error, ValueError):
            self._malformed += 1
            if self._malformed <= MALFORMED_LOGGED:
                log.warning("%s: malformed reply to %s: %s", self.address, method, error)
            return AgainError(str(error))
        log.error("a bug in redoxfs: please report it", exc_info=error)
        return AgainError(repr(error))

    async def _again(self, attempt: int, error: AgainError) -> None:
        """Prepare for the next attempt."""
        self.counts.retries += 1
        if isinstance(error, UnknownError):
            with suppress(AgainError):
                await self._greet()
        await self._pause(attempt)

    async def _retried(self, act: Callable[[], Awaitable[T]]) -> T:
        """What ``act`` returns, which is called until it does not raise AgainError."""
        for attempt in count():
            try:
                return await act()
            except AgainError as error:
                await self._again(attempt, error)
        raise AssertionError("attempts do not end")

    async def _pause(self, attempt: int) -> None:
        """Sleep until the next attempt, at the latest until the peer is reached."""
        doublings = min(attempt, self._pauses, MOST_DOUBLINGS)
        self._pauses = min(self._pauses + 1, MOST_DOUBLINGS)
        longest_s = min(LONGEST_PAUSE_S, SHORTEST_PAUSE_S * 2**doublings)
        with trio.move_on_after(longest_s * random.uniform(0.5, 1)):
            await self._reached.wait()

    # Hello

    async def _greet(self) -> None:
        """Send one Hello, for all tasks that need one now. Raises AgainError."""
        before = self._greetings
        async with self._greeting:
            if self._greetings != before:
                return
            joins = self.state == "joining"
            request = pb.HelloRequest(caller=self._introduction, joins=joins).SerializeToString()
            reply = await self._call("Hello", request, min(HELLO_S, self._timeout_s), partial(parse, pb.HelloReply))
            if not self._met(reply):
                raise AgainError(self.reason)
            self._greetings += 1
            self._become("ready", "")

    # Messages

    def _ask(self, incoming: _Incoming) -> None:
        """Send a message, again if it was sent before. All of them go by one call."""
        if self._closed:
            return
        if self._asking is None or self._asking.is_over:
            try:
                self._asking = self._begun(lambda: Asking(self._ask_method, self._bridge), ASKING_THREADS)
            except AgainError as error:
                self._spawn(self._ask_again, incoming, error)
                return
        if not self._asking.waits:
            self._answered_s = trio.current_time()
        message = incoming.message
        request = ask(self._caller, message, incoming.acked_below)
        asked = Asked(partial(self._read_answer, message), partial(self._arrived, incoming))
        self._asking.ask(message.number, request, asked)

    async def _ask_again(self, incoming: _Incoming, error: AgainError) -> None:
        if incoming.received is not None and not incoming.sinks:
            # It was answered and its bytes were given up. Another process must not answer it again.
            self._incoming.discard(incoming)
            return
        await self._again(incoming.attempt, error)
        incoming.attempt += 1
        self._ask(incoming)

    def _arrived(self, incoming: _Incoming, found: _Answer | Exception, size: int) -> None:
        """A reply to a message is here, or why there is none. No task waits for it: one is made if it is needed."""
        self._note_reply(found if isinstance(found, Exception) else None, size)
        self._answered_s = trio.current_time()
        if not isinstance(found, Exception):
            answer, assembly, why_not = found
            if self._take(incoming, answer, assembly, why_not):
                self._spawn(self._fetch, incoming, assembly)
                return
        else:
            error = self._meaning("Ask", found)
            if isinstance(error, AgainError):
                self._spawn(self._ask_again, incoming, error)
                return
            self._give_up(incoming, "the peer takes this message for answered")
        self._incoming.discard(incoming)

    def _read_answer(self, message: Message, reply: pb.AskReply, payload: memoryview) -> _Answer:
        """In the thread of the call: the answer, the assembly of its bytes, and why there is none."""
        answer = received(reply, message, self._bounds)
        total_bytes = sum(answer.sizes)
        if total_bytes > self._max_answer_bytes:
            return answer, None, f"an answer of {total_bytes} bytes, and at most {self._max_answer_bytes} are allowed"
        assembly = Assembly(answer.samples)
        assembly.fill(0, payload)
        return answer, assembly, ""

    def _take(self, incoming: _Incoming, answer: Received, assembly: Assembly | None, why_not: str) -> bool:
        """Give the service an answer and the bytes that came with it. Returns whether there are parts to fetch."""
        if incoming.received is None:
            # It may send messages.
            self._taken = incoming
            try:
                sinks = self._service.receive(answer.answer, answer.sizes)
            finally:
                self._taken = None
            if sinks is None:
                return False
            incoming.sinks = dict(enumerate(sinks))
            self.answer_times.since(incoming.sent_ns)
        elif incoming.received.answer != answer.answer:
            # The peer was restarted, and decided again.
            self._give_up(incoming, "the peer gave another answer the second time")
            return False
        incoming.received = answer
        if assembly is None:
            self._give_up(incoming, why_not)
            return False
        self._deliver(incoming, assembly, 0)
        return bool(incoming.sinks)

    async def _fetch(self, incoming: _Incoming, assembly: Assembly) -> None:
        """Fetch the missing parts, and ask again if the peer has dropped them."""
        gone: list[GoneError] = []

        async def fetch(part: int) -> None:
            error = await self._retried(partial(self._fetch_part, incoming.message.number, assembly, part))
            if error is None:
                self._deliver(incoming, assembly, part)
            else:
                gone.append(error)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            incoming.fetching = nursery.cancel_scope
            for part in range(1, assembly.part_count):
                # A sample that came before the peer dropped the parts is not fetched twice.
                if any(sample in incoming.sinks for sample in assembly.samples_of(part)):
                    nursery.start_soon(fetch, part)
        if gone:
            await self._ask_again(incoming, gone[0])
        else:
            self._incoming.discard(incoming)

    async def _fetch_part(self, number: int, assembly: Assembly, part: int) -> GoneError | None:
        def read(data: bytes) -> None:
            assembly.fill(part, split_payload(data)[1])

        request = pb.PartRequest(caller=self._caller, number=number, part=part).SerializeToString()
        try:
            async with self._parts:
                await self._call("Part", request, self._timeout_s, read)
        except GoneError as error:
            return error
        return None

    def _deliver(self, incoming: _Incoming, assembly: Assembly, part: int) -> None:
        """``part`` is here: deliver the samples that it completes."""
        for sample in assembly.arrived(part):
            payload = assembly.payload(sample)
            sink = incoming.sinks.pop(sample, None)
            if sink is not None:
                self.counts.samples += 1
                _hand_over(sink, payload)

    def _give_up(self, incoming: _Incoming, why: str) -> None:
        """Deliver errors for the missing samples."""
        if not incoming.sinks or incoming.received is None:
            return
        if not self._closed:
            log.warning("%s: %d samples were not received: %s", self.address, len(incoming.sinks), why)
        if incoming.fetching is not None:
            # It holds what has come of the other samples, and would fetch the rest for as long as the peer is lost.
            incoming.fetching.cancel()
        sinks, incoming.sinks = incoming.sinks, {}
        for sample, sink in sinks.items():
            _hand_over(sink, tuple(OSError(errno.EIO, why) for _ in incoming.received.samples[sample]))

    # Samples again

    async def reread(self, sample: int) -> Payload:
        """The bytes of a sample that lies at the peer, once more.

        Raises:
            OSError: it does not send them: one line.
        """
        why = self.reason or "no answer in time"
        with trio.move_on_after(self._timeout_s) as scope:
            self._rereads.add(scope)
            try:
                for attempt in count():
                    if self._closed or self.state in ("unreachable", "refused"):
                        break
                    try:
                        return await self._reread(sample)
                    except SettledError as error:
                        why = str(error)
                        break
                    except AgainError as error:
                        why = str(error)
                        await self._again(attempt, error)
            finally:
                self._rereads.discard(scope)
        if self.state != "ready":
            why = self.reason or self.state
        raise OSError(errno.EIO, f"{self.address} does not send a sample again: {why}")

    async def _reread(self, sample: int) -> Payload:
        def first(data: bytes) -> Assembly:
            head, size, payload = reread(data)
            if size > self._max_answer_bytes:
                raise ValueError(f"a sample of {size} bytes, and at most {self._max_answer_bytes} are allowed")
            made = Assembly((head,))
            made.fill(0, payload)
            return made

        request = pb.RereadRequest(caller=self._caller, sample=sample)
        async with self._parts:
            assembly = await self._call("Reread", request.SerializeToString(), self._timeout_s, first)
        complete = assembly.arrived(0)
        for part in range(1, assembly.part_count):
            request.part = part

            def further(data: bytes, part: int = part) -> None:
                assembly.fill(part, split_payload(data)[1])

            async with self._parts:
                await self._call("Reread", request.SerializeToString(), self._timeout_s, further)
            complete = assembly.arrived(part)
        assert complete
        return assembly.payload(0)

    def _give_up_rereads(self) -> None:
        for scope in self._rereads:
            scope.cancel()

    # Traces

    async def _send_traces(self) -> None:
        while self._traces:
            await self._send_trace(self._traces.popleft())
        self._sending_traces = False

    async def _send_trace(self, trace: Trace) -> None:
        total_bytes = len(trace.order)
        head = pb.FollowRequest(serial=trace.serial, epoch=trace.epoch, total_bytes=total_bytes)

        async def send_part() -> int:
            head.caller.CopyFrom(self._caller)
            payload = trace.order[head.offset : head.offset + PART_BYTES]
            request = with_payload(head.SerializeToString(), (payload,))
            reply = await self._call("Follow", request, self._timeout_s, partial(parse, pb.FollowReply))
            received_bytes = reply.received_bytes
            if received_bytes != total_bytes and not head.offset < received_bytes < total_bytes:
                # The peer was restarted. Or it misbehaves, and must not keep both nodes busy.
                head.offset = 0
                raise AgainError("no progress")
            head.offset = received_bytes
            return received_bytes

        while await self._retried(send_part) != total_bytes:
            pass

    # How far it is

    async def turns(self, *, now: bool, longest_bytes: int) -> bytes:
        """The file of the peer's turns so far, or of its start. Retries from its start, as it may have changed."""
        return await self._retried(partial(self._turns, now=now, longest_bytes=longest_bytes))

    async def _turns(self, *, now: bool, longest_bytes: int) -> bytes:
        request = pb.TurnsRequest(caller=self._caller, now=now)
        data = bytearray()

        def read(reply: bytes) -> tuple[int, memoryview]:
            head, payload = split_payload(reply)
            total_bytes = parse(pb.TurnsReply, head).total_bytes
            if total_bytes > longest_bytes or len(payload) != min(PART_BYTES, total_bytes - request.offset):
                raise ValueError(
                    f"{len(payload)} bytes of {total_bytes} from {request.offset}, at most {longest_bytes}"
                )
            return total_bytes, payload

        while True:
            total_bytes, payload = await self._call("Turns", request.SerializeToString(), self._timeout_s, read)
            data += payload
            request.offset = len(data)
            if len(data) == total_bytes:
                return bytes(data)

    def _become(self, state: str, reason: str) -> None:
        self.reason = reason
        if state != self.state:
            before, self.state = self.state, state
            (log.info if state == "ready" else log.warning)("%s is %s%s", self.address, state, reason and f": {reason}")
            self._changed(state, before)


def _hand_over(sink: Callable[[Payload], None], payload: Payload) -> None:
    try:
        sink(payload)
    except Exception:
        # It would end all calls to and from peers.
        log.exception("a bug in redoxfs: please report it")
