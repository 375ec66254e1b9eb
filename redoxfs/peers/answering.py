"""One call of a peer that carries its messages, as their home sees it.

A thread of this class reads messages, and gRPC's thread writes answers, in the order in which they are ready. So an
answer that waits for storage delays no other. No task and no thread waits for a message.
"""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from queue import SimpleQueue

from redoxfs.peers.outgoing import Outbox, Outgoing

TAKEN_AT_ONCE = 32
"""Messages of a call that are read before they are answered: twice what a peer sends. More wait at the peer."""


class Answering:
    """The answers to ``requests``. Ends with the call, or once all are answered after the last message.

    Args:
        take: returns the answer to a request. Raises to end the call.
        reply: returns an answer that is ready as bytes. Raises to end the call.
        spare: carries out a function in a thread that there is already.
    """

    def __init__(
        self,
        outbox: Outbox,
        requests: Iterator[bytes],
        take: Callable[[bytes], Outgoing],
        reply: Callable[[Outgoing], bytes],
        spare: Callable[[Callable[[], None]], object],
    ) -> None:
        self._outbox = outbox
        self._requests = requests
        self._take = take
        self._reply = reply
        self._spare = spare
        self._room = threading.Semaphore(TAKEN_AT_ONCE)
        # A future that is done keeps its callbacks, and so must not lead to the answer that it is of: of such a cycle
        # nobody would free the bytes, nor the call, as the daemon looks for no garbage among old objects.
        self._awaited: dict[int, Outgoing] = {}
        # Answers that are ready, and why the call ends; None: without an error.
        self._ready: SimpleQueue[Outgoing | Exception | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._over = False

    def replies(self) -> Iterator[bytes]:
        """Called by gRPC's thread."""
        try:
            threading.Thread(target=self._read, name="redoxfs-peers-messages", daemon=True).start()
        except RuntimeError:
            self._spare(self._read)
        try:
            while (answer := self._ready.get()) is not None:
                if isinstance(answer, Exception):
                    try:
                        raise answer
                    finally:
                        # Its traceback has this frame.
                        del answer
                try:
                    data = self._reply(answer)
                finally:
                    self._outbox.leave(answer)
                self._room.release()
                yield data
        finally:
            self._end()

    def end(self) -> None:
        """The call is over. Called by any thread."""
        self._ready.put(None)

    def _read(self) -> None:
        try:
            for number, request in enumerate(self._requests):
                self._room.acquire()
                answer = self._awaited[number] = self._take(request)
                answer.ready.add_done_callback(partial(self._is_ready, number))
            for _ in range(TAKEN_AT_ONCE):
                self._room.acquire()
        except Exception as error:
            self._ready.put(error)
        else:
            self._ready.put(None)

    def _is_ready(self, number: int, _ready: object) -> None:
        answer = self._awaited.pop(number)
        with self._lock:
            if not self._over:
                self._ready.put(answer)
                return
        self._outbox.leave(answer)

    def _end(self) -> None:
        with self._lock:
            self._over = True
        while not self._ready.empty():
            answer = self._ready.get()
            if isinstance(answer, Outgoing):
                self._outbox.leave(answer)
        self._room.release(TAKEN_AT_ONCE)
