"""Repeats what a binding and a policy of several nodes decided, from a record of their events.

For its peers the new process is the old one: it has the same numbers of messages, the same answers and the same laps.
So the policy itself is repeated, unlike in `replay`. Only the policy beneath it, whose choices depend on what was in
memory, is replaced, by one that gives what was recorded (`SharedPolicy.expect`). Messages that repeated events send are
dropped: they were sent, or are among `SharedPolicy.unanswered`.

An event is recorded after it was decided and before anything leaves the node. What a peer does not know did not happen.
"""

from collections.abc import Mapping, Sequence

from redoxfs.protocol.binding import UNDECIDED, Binding
from redoxfs.protocol.events import (
    Answer,
    Closed,
    Delivered,
    Message,
    Opened,
    Pending,
    Served,
    SharedPolicy,
    SharedState,
)
from redoxfs.protocol.replay import NO_SAMPLE, ReplayError


class SharedReplay:
    """Repeats events on ``binding`` and ``policy``, and ends in `finish`.

    ``binding`` decides by ``policy`` and has the tables of the time of ``state``. ``policy`` is new.

    Args:
        undecided: by path that waits for another node, the ticket.
        promises: by ticket of a stat that waits for another node, its path and thread.

    Raises:
        ValueError: ``state`` is damaged, or of other samples.
    """

    def __init__(
        self,
        binding: Binding,
        policy: SharedPolicy,
        state: SharedState,
        *,
        undecided: Mapping[int, int],
        promises: Mapping[int, tuple[int, int]],
    ) -> None:
        self._binding = binding
        self._policy = policy
        self.undecided = dict(undecided)
        self.promises = dict(promises)
        policy.resume(state)

    def open(self, path: int, file: int, thread: int, sample: int, *, preempted: bool) -> Opened:
        """An open that took a turn of ``sample``; of none: NO_SAMPLE, or UNDECIDED where another node has to give it.

        Raises ReplayError.
        """
        self._policy.expect(() if sample < 0 else (sample,))
        opened = self._binding.open(path, file, thread)
        turn = opened.turn
        if isinstance(turn, Pending):
            self.undecided[path] = turn.ticket
            found = UNDECIDED
        else:
            found = NO_SAMPLE if turn is None else turn.sample
        if found != sample or (isinstance(turn, Served) and turn.preempted != preempted):
            raise ReplayError(f"an open of path {path} got sample {found}, and {sample} in the journal")
        self._void()
        return opened

    def stat(self, path: int, file: int, thread: int, sample: int, *, is_new: bool) -> None:
        """A stat that reported ``sample``, or none. ``is_new``: it was reserved for that. Raises ReplayError."""
        self._policy.expect((sample,) if is_new else ())
        result = self._binding.stat(path, file, thread)
        if (NO_SAMPLE if result.sample is None else result.sample) != sample or result.reserved != is_new:
            raise ReplayError(f"a stat of path {path} got sample {result.sample}, and {sample} in the journal")
        self._void()
        if result.pending is not None:
            self.promises[result.pending.ticket] = path, thread

    def close(self, path: int) -> Closed:
        """A handle was closed. Raises ReplayError."""
        self._must_be_bound(path)
        closed = self._binding.close(path)
        self._give_up(path)
        return closed

    def fail(self, path: int, thread: int) -> Closed:
        """An open failed. Nothing may wait for its path's answer any more. Raises ReplayError."""
        self._must_be_bound(path)
        closed = self._binding.fail(path, thread)
        self._give_up(path)
        return closed

    def end(self, thread: int) -> None:
        """A thread had ended."""
        self._binding.thread(thread)

    def handled(self, message: Message, answer: Answer | None, chosen: Sequence[int]) -> None:
        """A peer's message was answered. Raises ReplayError."""
        handled = self._policy.handle_again(message, answer, chosen)
        self._void()
        for sample in handled.preempted:
            self._binding.revoke(sample)

    def received(self, answer: Answer, chosen: Sequence[int]) -> None:
        """A peer's answer was taken in. Raises ReplayError."""
        self._policy.expect(chosen)
        delivered = self._policy.receive(answer) or ()
        self._void()
        self._binding.revoke_preempted(delivered)
        for each in delivered:
            self._deliver(each)

    def cancelled(self, ticket: int) -> None:
        """A stat no longer waited. Raises ReplayError."""
        if self.promises.pop(ticket, None) is None:
            raise ReplayError(f"the journal cancels ticket {ticket}, which no stat waits for")
        self._policy.cancel(ticket)

    def alone(self, path: int) -> None:
        """No node answered, and the sample of the path itself was read. Raises ReplayError."""
        ticket = self.undecided.pop(path, None)
        if ticket is None:
            raise ReplayError(f"the journal decides path {path}, which waits for no node")
        self._policy.cancel(ticket)
        self._binding.decide(path, Served(path, remote=True))

    def finish(self) -> None:
        """The policy decides from here on. Raises ValueError."""
        self._policy.settle()
        self._void()

    def _deliver(self, delivered: Delivered) -> None:
        ticket, served = delivered
        promise = self.promises.pop(ticket, None)
        if promise is not None:
            if served is not None:
                self._binding.promise(*promise, served.sample)
            return
        path = next((path for path, waits_for in self.undecided.items() if waits_for == ticket), None)
        if path is None or served is None:
            raise ReplayError(f"an answer in the journal is for ticket {ticket}, which nothing waits for")
        del self.undecided[path]
        self._binding.decide(path, served)

    def _give_up(self, path: int) -> None:
        if path in self.undecided and not self._binding.is_bound(path):
            self._policy.cancel(self.undecided.pop(path))

    def _void(self) -> None:
        """What left the node has left it, and revoked reservations are void."""
        policy = self._policy
        for sample in policy.revoked:
            self._binding.revoke(sample)
        policy.revoked.clear()
        policy.unloaded.clear()
        policy.outbox.clear()

    def _must_be_bound(self, path: int) -> None:
        if not self._binding.is_bound(path):
            raise ReplayError(f"the journal closes path {path}, which is not open")
