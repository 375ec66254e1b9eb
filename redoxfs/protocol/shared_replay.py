"""Repeats what a binding and a policy of several nodes decided, from a record of their events.

For its peers the new process is the old one: it has the same numbers of messages, the same answers and the same laps.
So the policy itself is repeated, unlike in `replay`. Only the policy beneath it, whose choices depend on what was in
memory, is replaced, by one that gives what was recorded (`SharedPolicy.expect`). Messages that repeated events send are
dropped: they were sent, or are among `SharedPolicy.unanswered`.

An event is recorded after it was decided and before anything leaves the node. What a peer does not know did not happen.
"""

from collections.abc import Mapping, Sequence

from redoxfs.protocol.binding import Binding
from redoxfs.protocol.events import Answer, Delivered, Message, Served, SharedPolicy, SharedState
from redoxfs.protocol.replay import Repetition, ReplayError


class SharedReplay(Repetition):
    """Repeats events on ``binding``, which has the tables of the time of ``state``, and on ``policy``, which is new.

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
        super().__init__(binding)
        self._policy = policy
        self.undecided |= undecided
        self.promises |= promises
        policy.resume(state)

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

    def _expect(self, sample: int, *, is_chosen: bool, preempted: bool = False) -> None:
        self._policy.expect((sample,) if is_chosen else ())

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
