"""Answers that are being prepared or sent, by requester and number.

The core decides an answer and remembers it. Its bytes are here, from the first request for them until every part was
sent once, or the requester acknowledges the answer; those of an answer of one part only until those who wait for it
have it. If the answer was lost after that, the message comes again and the node reads the bytes again. The same happens
if all answers together exceed the limit, so a requester that does not fetch its answers cannot fill this node's memory,
and if the requester is lost, as it may be for good.

Handler threads come here under a lock. Rejected: to enter the trio task for each part, which would wait for all that
the task does.
"""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future

from redoxfs.peers.parts import Cut
from redoxfs.peers.service import Reply

MOST_ANSWERS = 4096
"""Of one requester, at once. A call has 32 of them, and those of calls that broke may still be read."""

NOTHING = Cut(())


class CrowdedError(Exception):
    """A requester waits for too many answers at the same time."""


class Outgoing:
    """One answer. ``ready``: its bytes are here (True), or there is nothing to send (False)."""

    __slots__ = ("cut", "dropped", "head", "number", "ready", "reply", "requester", "unsent", "users", "whole")

    def __init__(self, requester: int, number: int, ready: "Future[bool]") -> None:
        self.requester = requester
        self.number = number
        self.ready = ready
        self.reply: Reply | None = None
        self.head = b""
        self.cut = NOTHING
        self.unsent: set[int] = set()
        self.users = 0
        self.whole: bytes | None = None
        self.dropped = False


class Outbox:
    """All answers of a node.

    Args:
        release: called from any thread with a reply whose bytes are not needed any more.
        most_bytes: the limit for all answers together; the latest is kept in any case.
    """

    def __init__(self, release: Callable[[Reply], None], most_bytes: int) -> None:
        self._release = release
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        # By requester; the answer of each that was not asked for longest comes first.
        self._answers: dict[int, dict[int, Outgoing]] = {}
        self._kept: Counter[int] = Counter()
        # Requesters that are lost, until they ask again.
        self._lost: set[int] = set()
        self.bytes_sent: Counter[int] = Counter()

    def take(self, requester: int, number: int, promise: Callable[[], "Future[bool]"]) -> tuple[Outgoing, bool]:
        """The answer to a message, and whether the caller has to prepare it. Its bytes stay until `leave`.

        Raises:
            CrowdedError: the requester has too many.
        """
        with self._lock:
            self._lost.discard(requester)
            answers = self._answers.setdefault(requester, {})
            answer = answers.get(number)
            if is_new := answer is None:
                if len(answers) >= MOST_ANSWERS:
                    raise CrowdedError(f"{len(answers)} messages of node {requester} wait for their answers")
                answer = answers[number] = Outgoing(requester, number, promise())
            answer.users += 1
            return answer, is_new

    def find(self, requester: int, number: int) -> Outgoing | None:
        """As `take`, but None if there is no such answer."""
        with self._lock:
            answers = self._answers.get(requester, {})
            answer = answers.pop(number, None)
            if answer is not None:
                answers[number] = answer
                answer.users += 1
            return answer

    def leave(self, answer: Outgoing) -> None:
        with self._lock:
            answer.users -= 1
            self._let_go(answer)

    def finish(self, answer: Outgoing, whole: bytes) -> None:
        """The answer has one part, and these are all of its bytes. They are here until those who asked have them."""
        with self._lock:
            answer.whole = whole
            self.bytes_sent[answer.requester] += len(whole)
            self._drop(answer)

    def prepared(self, answer: Outgoing, reply: Reply, head: bytes, cut: Cut) -> None:
        """The bytes are here."""
        with self._lock:
            answer.reply, answer.head, answer.cut = reply, head, cut
            answer.unsent = set(range(cut.part_count))
            if not answer.dropped:
                self._kept[answer.requester] += cut.total_bytes
                self._shed(answer)
                if answer.requester in self._lost:
                    self._drop(answer)
            self._let_go(answer)

    def sent(self, answer: Outgoing, part: int, size: int) -> None:
        """``part``, of ``size`` bytes, was copied for sending."""
        with self._lock:
            self.bytes_sent[answer.requester] += size
            answer.unsent.discard(part)
            if not answer.unsent:
                self._drop(answer)

    def drop(self, answer: Outgoing) -> None:
        """Discard the answer. If the message comes again, it is handled again."""
        with self._lock:
            self._drop(answer)
            self._let_go(answer)

    def settle(self, requester: int, acked_below: int | None = None) -> None:
        """The requester has all answers below ``acked_below``, or is another process now and wants none."""
        with self._lock:
            answers = self._answers.get(requester, {})
            for number in [n for n in answers if acked_below is None or n < acked_below]:
                answer = answers[number]
                self._drop(answer)
                self._let_go(answer)

    def give_up(self, requester: int) -> None:
        """The requester is lost: discard what it has not fetched, also what is still being prepared."""
        with self._lock:
            self._lost.add(requester)
            for answer in list(self._answers.get(requester, {}).values()):
                # To handle a message again while it is being prepared would prepare it twice.
                if answer.reply is not None:
                    self._drop(answer)
                    self._let_go(answer)

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._answers.values()))

    def _drop(self, answer: Outgoing) -> None:
        if answer.dropped:
            return
        answer.dropped = True
        del self._answers[answer.requester][answer.number]
        if answer.reply is not None:
            self._kept[answer.requester] -= answer.cut.total_bytes

    def _shed(self, latest: Outgoing) -> None:
        """Get below the limit: drop the least recently used answers of the requester with the most bytes."""
        while self._kept.total() > self._most_bytes:
            idle = (
                answer
                for requester, _ in self._kept.most_common()
                for answer in self._answers.get(requester, {}).values()
                if answer.reply is not None and answer is not latest
            )
            oldest = next(idle, None)
            if oldest is None:
                return
            self._drop(oldest)
            self._let_go(oldest)

    def _let_go(self, answer: Outgoing) -> None:
        """Release the bytes, once, when no thread uses them."""
        if answer.dropped and not answer.users and answer.reply is not None:
            reply, answer.reply = answer.reply, None
            answer.cut = NOTHING
            self._release(reply)
