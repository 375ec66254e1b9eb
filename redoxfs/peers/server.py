"""This node as its peers see it.

gRPC calls the handlers in its own threads. They read constant data only, and enter the trio task through the bridge for
anything that changes the node. The call with a peer's messages has two threads for as long as it lasts, and a handler
of a sample that is sent again waits for as long as storage takes. The limits of the clients (`redoxfs.peers.client`)
keep the number of waiting threads below the number of threads, and with many peers a limit of those that wait for
storage does.
"""

import errno
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, ParamSpec, TypeVar

import grpc
import trio
from grpc_health.v1 import health, health_pb2

from redoxfs.peers.answering import Answering
from redoxfs.peers.asking import check_threads
from redoxfs.peers.bounds import SIGNED, Bounds, check_below
from redoxfs.peers.bridge import Bridge, ClosedError, keep, keep_error
from redoxfs.peers.channel import SERVER_OPTIONS, Transport, one_line
from redoxfs.peers.fields import split_payload, with_payload
from redoxfs.peers.outgoing import CrowdedError, Outbox, Outgoing
from redoxfs.peers.parts import PART_BYTES, Cut
from redoxfs.peers.service import PeerService, Reply
from redoxfs.peers.traces import TraceAssembly
from redoxfs.peers.translation import TooManyFilesError, asked, failed_head, parse, refused_head, reply_head
from redoxfs.peers.v1 import peers_pb2 as pb

SERVICE = "redoxfs.v1.Peers"

HEALTH_SERVICE = "grpc.health.v1.Health"

CALL_S = 60.0
"""The deadline of a caller that gives none; redoxfs's clients do."""

REREAD_BYTES = 64 << 20
"""For samples that are sent again and not fetched yet. They can be read once more."""

STOP_S = 5.0
"""How long the end waits for gRPC, which takes milliseconds. What is left then ends with the process."""

P = ParamSpec("P")
T = TypeVar("T")

Act = Callable[[T], Reply | Awaitable[Reply | None] | None]

log = logging.getLogger(__name__)


class _Pool(ThreadPoolExecutor):
    """``least`` of its threads start at once, and calls for which no other can be started wait for one of them.

    gRPC's thread that takes calls would end with an error of `submit`, and no call would be answered any more.

    Raises RuntimeError if those cannot be started.
    """

    def __init__(self, most: int, least: int) -> None:
        super().__init__(most, thread_name_prefix="redoxfs-peers")
        together = threading.Barrier(least)
        for _ in range(least):
            self.submit(together.wait)
        if len(self._threads) < least:
            together.abort()
            self.shutdown()
            raise RuntimeError("can't start the threads that answer other nodes")

    def _adjust_thread_count(self) -> None:
        with suppress(RuntimeError):
            super()._adjust_thread_count()


class Server:
    """Answers the peers of one node, from `start` to `close`.

    Args:
        why_unknown: returns why this node has not met a caller; None if it has. Called by any thread.
        why_not_yet: returns why this node cannot answer about samples yet; None if it can. Called by any thread.
        kept: called in the trio task; returns the file that this node starts from.
        turns: called in the trio task; returns the file of the turns of its readers so far.
        meet: called in the trio task with a caller's Hello; returns the reply.
        spawn: starts an async function; called in the trio task.
        threads: the number of calls that are handled at once.
        least_threads: as many threads start with it, for a process that can start none later.
        most_rereads: the number of calls that wait for a sample to be read again; callers repeat further ones.
        bounds: refuse messages that are out of these.
        kept_bytes: limit for answers that were requested and not fetched; beyond it the oldest are dropped.
    """

    def __init__(
        self,
        service: PeerService,
        bridge: Bridge,
        *,
        node: int,
        why_unknown: Callable[[pb.Caller], str | None],
        why_not_yet: Callable[[], str | None],
        kept: Callable[[], bytes],
        turns: Callable[[], bytes],
        meet: Callable[[pb.HelloRequest], pb.HelloReply],
        spawn: Callable[..., None],
        threads: int,
        least_threads: int,
        most_rereads: int,
        bounds: Bounds,
        kept_bytes: int,
    ) -> None:
        self._service = service
        self._bridge = bridge
        self._node = node
        self._why_unknown = why_unknown
        self._why_not_yet = why_not_yet
        self._kept = kept
        self._turns_now = turns
        self._meet = meet
        self._spawn = spawn
        self._threads = threads
        self._least_threads = least_threads
        self._bounds = bounds
        self._transport: Transport
        self._traces = TraceAssembly(bounds.samples)
        # Files of more than one part, by the node that fetches them.
        self._turns_of: dict[int, bytes] = {}
        self._health = health.HealthServicer()
        self._pool: ThreadPoolExecutor | None = None
        self._server: grpc.Server | None = None
        self.outbox = Outbox(lambda reply: bridge.post(service.release, reply), kept_bytes)
        # Storage may be slow, and calls that wait for nothing need threads too.
        self._waiting_rereads = threading.Semaphore(most_rereads)
        # Samples that are sent again, by their numbers.
        self._rereads = Outbox(lambda reply: bridge.post(service.release, reply), REREAD_BYTES)

    def start(self, transport: Transport, address: str) -> None:
        """Answer at ``address``. Raises OSError if this node cannot listen there, or cannot start threads."""
        self._transport = transport
        try:
            self._start(transport, address)
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, f"cannot answer at {address}: {error}") from error

    def _start(self, transport: Transport, address: str) -> None:
        pool = self._pool = _Pool(self._threads, self._least_threads)
        server = grpc.server(
            pool,
            options=SERVER_OPTIONS,
            interceptors=list(transport.interceptors),
            # More calls than threads wait; beyond this number they are refused, and callers retry.
            maximum_concurrent_rpcs=4 * self._threads,
        )
        # Without (de)serializers: bytes in, bytes out.
        methods = {
            "Hello": self._hello,
            "Part": self._part,
            "Follow": self._follow,
            "Turns": self._turns,
            "Reread": self._reread,
        }
        handlers: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(partial(_valid, method)) for name, method in methods.items()
        }
        handlers["Ask"] = grpc.stream_stream_rpc_method_handler(self._ask)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        # Only Check: a Watch would occupy one of the calls for as long as its caller likes.
        check: dict[str, Any] = {"Check": grpc.unary_unary_rpc_method_handler(partial(_valid, self._check_health))}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(HEALTH_SERVICE, check),))
        self.set_health(ready=False)
        try:
            # A server of gRPC that gets no thread keeps the address.
            check_threads(1)
            transport.listen(server, address)
            server.start()
        except BaseException:
            server.stop(None)
            pool.shutdown()
            raise
        self._server = server

    def set_health(self, *, ready: bool) -> None:
        """Set the answer of the standard health service."""
        kinds = health_pb2.HealthCheckResponse
        for service in ("", SERVICE):
            self._health.set(service, kinds.SERVING if ready else kinds.NOT_SERVING)

    def bytes_sent(self, requester: int) -> int:
        """The bytes of replies to a node that had bytes of samples."""
        return self.outbox.bytes_sent[requester] + self._rereads.bytes_sent[requester]

    def forget(self, requester: int) -> None:
        """``requester`` is another process now."""
        self.outbox.settle(requester)
        self._rereads.settle(requester)
        self._traces.forget(requester)
        self._turns_of.pop(requester, None)

    def give_up(self, requester: int) -> None:
        """``requester`` is lost."""
        self.outbox.give_up(requester)
        self._rereads.give_up(requester)

    def close(self) -> None:
        """End, with every thread. Call after the bridge is closed, which wakes waiting threads."""
        if self._server is not None and self._pool is not None:
            self._health.enter_graceful_shutdown()
            if self._server.stop(None).wait(STOP_S):
                self._pool.shutdown()
            else:
                # The pool stays: gRPC would still submit calls to it.
                log.warning("calls of other nodes did not end within %g s", STOP_S)

    # Called by gRPC's threads. ValueError: see `_valid`

    def _hello(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        request = parse(pb.HelloRequest, data)
        self._check_name(request.caller.node, context)
        return self._in_node(context, self._meet, request).SerializeToString()

    def _ask(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        assert self._pool is not None
        answering = Answering(
            self.outbox,
            requests,
            partial(self._take, context=context),
            partial(self._reply, context=context),
            self._pool.submit,
        )
        context.add_callback(answering.end)
        return answering.replies()

    def _take(self, data: bytes, context: grpc.ServicerContext) -> Outgoing:
        """The answer to a message. It is being prepared."""
        try:
            request = parse(pb.AskRequest, data)
            self._admit(request.caller, context)
            message = asked(request, self._node, self._bounds)
        except ValueError as error:
            _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        self.outbox.settle(message.requester, message.acked_below)
        what = f"message {message.number} of node {message.requester}"
        keys = message.requester, message.number
        return self._taken(context, self.outbox, keys, what, self._service.handle, message)

    def _taken(
        self, context: grpc.ServicerContext, outbox: Outbox, keys: tuple[int, int], what: str, act: Act[T], asked: T
    ) -> Outgoing:
        """The answer by ``keys`` in ``outbox``. Unless it was asked for before, ``act(asked)`` prepares it."""
        try:
            answer, is_new = outbox.take(*keys, self._bridge.promise)
        except CrowdedError as error:
            _refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        if is_new:
            self._bridge.post(self._prepare, outbox, answer, what, act, asked)
        return answer

    def _reply(self, answer: Outgoing, context: grpc.ServicerContext) -> bytes:
        """An answer that is ready, with part 0 of its bytes; or why it is not sent."""
        try:
            if not answer.ready.result(0):
                return _refusal(answer, grpc.StatusCode.ABORTED, f"message {answer.number} was answered before")
        except ClosedError as error:
            _refuse(context, grpc.StatusCode.UNAVAILABLE, str(error))
        except Exception as error:
            return _refusal(answer, grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}")
        return _bytes_of(self.outbox, answer, 0, answer.head)

    def _reread(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        request = parse(pb.RereadRequest, data)
        self._admit(request.caller, context)
        self._bounds.check_reread(request.sample, self._node)
        requester, sample, part = request.caller.node, request.sample, request.part
        rereads = self._rereads
        if part:
            return self._part_of(context, rereads, requester, sample, part)
        what = f"a request of node {requester} for sample {sample} again"
        if not self._waiting_rereads.acquire(blocking=False):
            _refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "other samples that are sent again are read first")
        try:
            answer = self._taken(context, rereads, (requester, sample), what, self._service.reread, sample)
            try:
                self._result(context, answer)
                return _bytes_of(rereads, answer, 0, answer.head)
            finally:
                rereads.leave(answer)
        finally:
            self._waiting_rereads.release()

    def _part(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        request = parse(pb.PartRequest, data)
        self._admit(request.caller, context)
        return self._part_of(context, self.outbox, request.caller.node, request.number, request.part)

    def _part_of(self, context: grpc.ServicerContext, outbox: Outbox, requester: int, number: int, part: int) -> bytes:
        answer = outbox.find(requester, number)
        if answer is None:
            _refuse(context, grpc.StatusCode.NOT_FOUND, f"no bytes of answer {number}")
        try:
            if not answer.ready.done() or not 0 < part < answer.cut.part_count:
                _refuse(context, grpc.StatusCode.NOT_FOUND, f"answer {number} has no part {part}")
            return _bytes_of(outbox, answer, part, b"")
        finally:
            outbox.leave(answer)

    def _follow(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        head, payload = split_payload(data)
        request = parse(pb.FollowRequest, head)
        self._admit(request.caller, context)
        requester = request.caller.node
        check_below(SIGNED, epoch=request.epoch, serial=request.serial)
        received, order = self._traces.take(requester, request.serial, request.total_bytes, request.offset, payload)
        if order is not None:
            self._in_node(context, self._service.follow, requester, request.epoch, order)
        return pb.FollowReply(received_bytes=received).SerializeToString()

    def _turns(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        request = parse(pb.TurnsRequest, data)
        # The file that this node starts from is available before the nodes have started.
        (self._admit if request.now else self._admit_before_all)(request.caller, context)
        check_below(SIGNED, offset=request.offset)
        requester = request.caller.node
        if request.offset:
            turns = self._turns_of.get(requester, b"")
        else:
            turns = self._in_node(context, self._turns_now if request.now else self._kept)
            self._turns_of[requester] = turns
        after = request.offset + PART_BYTES
        if after >= len(turns):
            self._turns_of.pop(requester, None)
        head = pb.TurnsReply(total_bytes=len(turns)).SerializeToString()
        return with_payload(head, (memoryview(turns)[request.offset : after],))

    def _check_health(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        request = parse(health_pb2.HealthCheckRequest, data)
        return self._health.Check(request, context).SerializeToString()

    def _check_name(self, node: int, context: grpc.ServicerContext) -> None:
        """Refuse a caller that is not the node that it claims to be, as far as the transport can tell."""
        why = self._transport.why_not(context, node)
        if why is not None:
            _refuse(context, grpc.StatusCode.PERMISSION_DENIED, why)

    def _admit(self, caller: pb.Caller, context: grpc.ServicerContext) -> None:
        self._admit_before_all(caller, context)
        why = self._why_not_yet()
        if why is not None:
            _refuse(context, grpc.StatusCode.FAILED_PRECONDITION, why)

    def _admit_before_all(self, caller: pb.Caller, context: grpc.ServicerContext) -> None:
        """As `_admit`, but also before this node knows where its laps start."""
        self._check_name(caller.node, context)
        why = self._why_unknown(caller)
        if why is not None:
            _refuse(context, grpc.StatusCode.FAILED_PRECONDITION, why)

    def _result(self, context: grpc.ServicerContext, answer: Outgoing) -> bool:
        """Wait until ``answer`` is ready, and return its result."""
        try:
            return answer.ready.result(_left_s(context))
        except TimeoutError:
            _refuse(context, grpc.StatusCode.DEADLINE_EXCEEDED, "the bytes are not here yet")
        except ClosedError as error:
            _refuse(context, grpc.StatusCode.UNAVAILABLE, str(error))
        except Exception as error:
            _refuse(context, grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}")

    def _in_node(self, context: grpc.ServicerContext, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``act`` in the trio task and return its result."""
        try:
            return self._bridge.call(_left_s(context), act, *args, **kwargs)
        except (ClosedError, TimeoutError) as error:
            _refuse(context, grpc.StatusCode.UNAVAILABLE, str(error))
        except Exception as error:
            log.exception("a bug in redoxfs: please report it")
            _refuse(context, grpc.StatusCode.INTERNAL, repr(error))

    # In the trio task

    def _prepare(self, outbox: Outbox, answer: Outgoing, what: str, act: Act[T], asked: T) -> None:
        """Let the service answer, by ``act(asked)``. A task is only made if it has to wait for bytes."""
        try:
            found = act(asked)
            if isinstance(found, Awaitable):
                self._spawn(self._prepare_late, outbox, answer, what, found)
            else:
                self._prepared(outbox, answer, found)
        except Exception as error:
            _failed(outbox, answer, what, error)

    async def _prepare_late(self, outbox: Outbox, answer: Outgoing, what: str, found: Awaitable[Reply | None]) -> None:
        try:
            self._prepared(outbox, answer, await found)
        except Exception as error:
            _failed(outbox, answer, what, error)

    def _prepared(self, outbox: Outbox, answer: Outgoing, reply: Reply | None) -> None:
        if reply is None:
            outbox.drop(answer)
        else:
            head, cut = self._cut(reply)
            if cut.part_count == 1:
                # Nothing else of it will be fetched.
                outbox.finish(answer, with_payload(head, cut.pieces(0)))
                self._service.release(reply)
            else:
                outbox.prepared(answer, reply, head, cut)
        keep(answer.ready, reply is not None)

    def _cut(self, reply: Reply) -> tuple[bytes, Cut]:
        """As `_cut` below. A reply that cannot be cut is released, since it does not get to the outbox."""
        try:
            return _cut(reply)
        except BaseException:
            self._service.release(reply)
            raise


def _failed(outbox: Outbox, answer: Outgoing, what: str, error: Exception) -> None:
    is_bug = not isinstance(error, (OSError, trio.TooSlowError))
    log.warning("%s is not answered yet: %r", what, error, exc_info=error if is_bug else None)
    outbox.drop(answer)
    keep_error(answer.ready, error)


def _bytes_of(outbox: Outbox, answer: Outgoing, part: int, head: bytes) -> bytes:
    if answer.whole is not None:
        return answer.whole
    data = with_payload(head, answer.cut.pieces(part))
    outbox.sent(answer, part, len(data))
    return data


def _cut(reply: Reply) -> tuple[bytes, Cut]:
    """A reply as it is sent: its head, and the bytes."""
    cut = Cut(reply.payloads)
    try:
        return reply_head(reply.answer, reply.payloads, cut), cut
    except TooManyFilesError as error:
        # A retry would not help, and the samples were given: the requester gets errors instead of bytes.
        log.warning("gave %d samples without their bytes: %s", len(reply.payloads), error)
        return failed_head(reply.answer, reply.payloads, OSError(errno.EIO, str(error))), Cut(())


def _left_s(context: grpc.ServicerContext) -> float:
    left_s = context.time_remaining()
    return CALL_S if left_s is None else max(0.0, min(left_s, CALL_S))


def _refusal(answer: Outgoing, code: grpc.StatusCode, why: str) -> bytes:
    number, _ = code.value
    return refused_head(answer.number, number, why)


def _valid(act: Callable[[bytes, grpc.ServicerContext], bytes], data: bytes, context: grpc.ServicerContext) -> bytes:
    """Answer a call by ``act``, which raises ValueError if ``data`` is no valid message."""
    try:
        return act(data, context)
    except ValueError as error:
        _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))


def _refuse(context: grpc.ServicerContext, code: grpc.StatusCode, why: str) -> NoReturn:
    context.abort(code, one_line(why))
    raise AssertionError("abort returned")
