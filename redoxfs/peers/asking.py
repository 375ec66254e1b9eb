"""One call that carries messages to a peer and their answers back, from its first message until it breaks.

A call for each message would cost more than the message: both nodes set it up and tear it down, in several threads.
A message has no deadline of its own: the client breaks a call that brings no reply for too long.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple

import grpc

from redoxfs.peers.bridge import Bridge
from redoxfs.peers.failures import RefusalError
from redoxfs.peers.translation import replied
from redoxfs.peers.v1 import peers_pb2 as pb

ASKING_THREADS = 3
"""Those that a call starts: gRPC's for the channel, gRPC's that sends, and the one that reads replies."""

CODES = {code.value[0]: code for code in grpc.StatusCode}


class Asked(NamedTuple):
    """A message that was sent.

    ``read``     is called with its reply, in a thread; ValueError: the reply is malformed
    ``arrived``  is called in the trio task with what that returned, or with an error; and with the size of the reply
    """

    read: Callable[[pb.AskReply, memoryview], Any]
    arrived: Callable[[Any, int], None]


class Asking:
    """Used in the trio task, except that a thread of its own reads replies.

    Args:
        method: of gRPC.
    """

    def __init__(self, method: Any, bridge: Bridge) -> None:
        self._bridge = bridge
        self._requests: SimpleQueue[bytes | None] = SimpleQueue()
        # By number. The thread removes an entry before it reads the reply.
        self._asked: dict[int, Asked] = {}
        self._why: Exception | None = None
        self.is_over = False
        self._call = method(iter(self._requests.get, None))
        if not self._call.add_callback(self._ended):
            self._ended()
        try:
            threading.Thread(target=self._receive, name="redoxfs-peers-answers", daemon=True).start()
        except RuntimeError:
            self._call.cancel()
            raise

    @property
    def waits(self) -> bool:
        """Whether a reply is missing."""
        return bool(self._asked)

    def ask(self, number: int, request: bytes, asked: Asked) -> None:
        """Send a message."""
        self._asked[number] = asked
        self._requests.put(request)

    def break_off(self, why: Exception) -> None:
        """End the call. Called by any thread."""
        self._why = why
        self._call.cancel()

    def _receive(self) -> None:
        try:
            for data in self._call:
                self._take(data)
        except grpc.RpcError:
            # `_ended` is called, even if gRPC lets the wait for a reply never end.
            pass
        except Exception as error:
            self.break_off(error)

    def _ended(self) -> None:
        # Ends gRPC's thread that sends.
        self._requests.put(None)
        self._bridge.post(self._end)

    def _end(self) -> None:
        self.is_over = True
        why = self._why
        if why is None:
            why = ValueError("the call ended") if self._call.code() is grpc.StatusCode.OK else self._call
        asked, self._asked = self._asked, {}
        for each in asked.values():
            each.arrived(why, 0)

    def _take(self, data: bytes) -> None:
        reply, payload = replied(data)
        asked = self._asked.pop(reply.number, None)
        if asked is None:
            raise ValueError(f"a reply to message {reply.number}, which was not sent")
        try:
            if reply.HasField("refusal"):
                code = CODES.get(reply.refusal.code, grpc.StatusCode.UNKNOWN)
                raise RefusalError(code, reply.refusal.text)
            self._bridge.post(asked.arrived, asked.read(reply, payload), len(data))
        except Exception as error:
            self._bridge.post(asked.arrived, error, 0)


def check_threads(count: int) -> None:
    """Raise RuntimeError unless so many threads can be started now."""
    over = threading.Event()
    probes = [threading.Thread(target=over.wait, name="redoxfs-peers-probe", daemon=True) for _ in range(count)]
    try:
        for probe in probes:
            probe.start()
    finally:
        over.set()
        for probe in probes:
            if probe.ident is not None:
                probe.join()
