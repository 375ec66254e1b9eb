"""Answers that are being prepared or sent, by requester and number.

The core decides what an answer is and remembers it; here are its bytes, from the first time that a message asks for
them until every part was sent once, or the requester says that it has the answer. If it was lost after that, the
message comes again and the node reads the bytes again.

Handler threads come here under a lock: to enter the trio task for each part would make them wait for whatever it does.
"""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future

from redoxfs.peers.host import Reply
from redoxfs.peers.parts import Cut


class Outgoing:
    """One answer. ``ready``: its bytes are here (True), or it is not to be sent (False)."""

    __slots__ = ("cut", "dropped", "head", "number", "ready", "reply", "requester", "unsent", "users")

    def __init__(self, requester: int, number: int, ready: "Future[bool]") -> None:
        self.requester = requester
        self.number = number
        self.ready = ready
        self.reply: Reply | None = None
        self.head = b""
        self.cut = Cut(())
        self.unsent: set[int] = set()
        self.users = 0
        self.dropped = False


class Outbox:
    """All answers of a node.

    Args:
        release: called from any thread with a reply whose bytes are not needed any more.
    """

    def __init__(self, release: Callable[[Reply], None]) -> None:
        self._release = release
        self._lock = threading.Lock()
        self._answers: dict[int, dict[int, Outgoing]] = {}
        self.bytes_sent: Counter[int] = Counter()

    def take(self, requester: int, number: int, promise: Callable[[], "Future[bool]"]) -> tuple[Outgoing, bool]:
        """The answer to a message, and whether it is for the caller to prepare. Its bytes stay until `leave`."""
        with self._lock:
            answers = self._answers.setdefault(requester, {})
            answer = answers.get(number)
            if is_new := answer is None:
                answer = answers[number] = Outgoing(requester, number, promise())
            answer.users += 1
            return answer, is_new

    def find(self, requester: int, number: int) -> Outgoing | None:
        """As `take`, if it is there."""
        with self._lock:
            answer = self._answers.get(requester, {}).get(number)
            if answer is not None:
                answer.users += 1
            return answer

    def leave(self, answer: Outgoing) -> None:
        with self._lock:
            answer.users -= 1
            self._let_go(answer)

    def prepared(self, answer: Outgoing, reply: Reply, head: bytes, cut: Cut) -> None:
        """The bytes are here."""
        with self._lock:
            answer.reply, answer.head, answer.cut = reply, head, cut
            answer.unsent = set(range(cut.part_count))
            self._let_go(answer)

    def sent(self, answer: Outgoing, part: int, size: int) -> None:
        """``size`` bytes, those of ``part``, were copied for sending."""
        with self._lock:
            self.bytes_sent[answer.requester] += size
            answer.unsent.discard(part)
            if not answer.unsent:
                self._drop(answer)

    def drop(self, answer: Outgoing) -> None:
        """It is not to be sent; when the message comes again, it is asked anew."""
        with self._lock:
            self._drop(answer)
            self._let_go(answer)

    def settle(self, requester: int, settled: int | None = None) -> None:
        """The requester has the answers to all messages below ``settled``, or is another process now and wants none."""
        with self._lock:
            answers = self._answers.get(requester, {})
            for number in [n for n in answers if settled is None or n < settled]:
                answer = answers[number]
                self._drop(answer)
                self._let_go(answer)

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._answers.values()))

    def _drop(self, answer: Outgoing) -> None:
        answers = self._answers.get(answer.requester, {})
        if answers.get(answer.number) is answer:
            del answers[answer.number]
        answer.dropped = True

    def _let_go(self, answer: Outgoing) -> None:
        """Give the bytes back, once, when nobody needs them."""
        if answer.dropped and not answer.users and answer.reply is not None:
            reply, answer.reply = answer.reply, None
            answer.cut = Cut(())
            self._release(reply)
