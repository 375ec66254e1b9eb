"""Turns that another node has to give: tickets, undecided paths and promised stats.

Where the samples lie at several nodes, the policy may leave a turn to another node and return a ticket (`Pending`). The
path of an open is *undecided* then: opens and stats of it wait until the ticket is answered. A stat that has to reserve
waits for a *promise*: a sample that its reservation is for. Every ticket here is one that the policy waits for; a new
plan asks for all of them again.

Used from the node's task alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from redoxfs.protocol import Delivered, Pending, Served, SharedServingPolicy

if TYPE_CHECKING:
    from redoxfs.node.node import Node


@dataclass(slots=True)
class Undecided:
    """A path whose answer another node has to give. ``over``: the answer is here, or nothing waits for it."""

    path: int
    ticket: int
    over: trio.Event


@dataclass(slots=True)
class Promise:
    """A stat of ``path`` by ``thread``, for which another node has to give a sample to reserve."""

    path: int
    thread: int
    over: trio.Event


class PendingTurns:
    """All tickets of one node, and its undecided paths."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._binding = node.binding
        self._waiting: dict[int, Undecided | Promise] = {}
        self.undecided: dict[int, Undecided] = {}
        # By ticket: stats of the process before this one.
        self._before: dict[int, Promise] = {}

    def leave_undecided(self, path: int, ticket: int) -> Undecided:
        """An open of ``path`` waits for the answer to ``ticket``."""
        undecided = self.undecided[path] = self._waiting[ticket] = Undecided(path, ticket, trio.Event())
        return undecided

    def promise(self, path: int, thread: int, ticket: int) -> Promise:
        """A stat waits for the answer to ``ticket``; until `withdraw`."""
        promise = self._waiting[ticket] = Promise(path, thread, trio.Event())
        return promise

    def withdraw(self, ticket: int, promise: Promise) -> bool:
        """The stat is over. If its ticket was not answered, cancel it at the policy. Returns whether it was not."""
        if self._waiting.get(ticket) is not promise:
            return False
        del self._waiting[ticket]
        if self._node.plan.sharing is not None:
            self._policy.cancel(ticket)
        return True

    def delivered(self, delivered: Sequence[Delivered]) -> None:
        """Tickets were answered."""
        self._binding.revoke_preempted(delivered)
        for ticket, served in delivered:
            waiting = self._waiting.pop(ticket)
            if isinstance(waiting, Promise):
                if served is not None:
                    self._keep_promise(waiting, served)
                waiting.over.set()
            else:
                assert served is not None
                self._decide(waiting, served)

    def ask_again(self) -> None:
        """Another policy decides: undecided paths are asked for again. Promised stats ask again by themselves."""
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            if isinstance(each, Promise):
                each.over.set()
                continue
            turn = self._binding.ask_again(each.path)
            if isinstance(turn, Pending):
                each.ticket = turn.ticket
                self._waiting[turn.ticket] = each
            else:
                self._decide(each, turn)

    def resume(self, undecided: Mapping[int, int], promises: Mapping[int, tuple[int, int]]) -> None:
        """Continue with the tickets of another process. Before any event.

        Args:
            undecided: by path, its ticket.
            promises: by ticket, the path and the thread of a stat. Nothing waits for them here (`withdraw_before`).
        """
        for path, ticket in undecided.items():
            self.leave_undecided(path, ticket)
        for ticket, (path, thread) in promises.items():
            self._before[ticket] = self.promise(path, thread, ticket)

    def former_promise(self, path: int, thread: int) -> tuple[int, Promise] | None:
        """The ticket and the promise of a stat of the process before this one, if it is repeated now.

        It must not ask anew: its first ticket would get the sample of the second.
        """
        for ticket, promise in self._before.items():
            if (promise.path, promise.thread) == (path, thread):
                return ticket, self._before.pop(ticket)
        return None

    def withdraw_before(self) -> None:
        """The stats of the process before this one have asked again, or their programs are gone."""
        before, self._before = self._before, {}
        for ticket, promise in before.items():
            self.withdraw(ticket, promise)

    def tickets(self) -> tuple[dict[int, int], dict[int, tuple[int, int]]]:
        """What `resume` takes."""
        promises = {
            ticket: (each.path, each.thread) for ticket, each in self._waiting.items() if isinstance(each, Promise)
        }
        return {path: each.ticket for path, each in self.undecided.items()}, promises

    def decide_alone(self, undecided: Undecided) -> bool:
        """No node answers. Where every sample can be read here, the paper's policy reads the one that was asked for.

        Returns False where that is not possible.
        """
        sharing = self._node.plan.sharing
        if sharing is None or not sharing.decides_alone:
            return False
        self._policy.cancel(undecided.ticket)
        del self._waiting[undecided.ticket]
        self._decide(undecided, Served(undecided.path, remote=True))
        return True

    def give_up_unless_bound(self, path: int) -> None:
        """An open of ``path`` failed: if no other waits for its answer, nothing does."""
        if path in self.undecided and not self._binding.is_bound(path):
            undecided = self.undecided.pop(path)
            del self._waiting[undecided.ticket]
            self._policy.cancel(undecided.ticket)

    def _keep_promise(self, promise: Promise, served: Served) -> None:
        result = self._binding.promise(promise.path, promise.thread, served.sample)
        if served.sample in result.unloaded:
            # It was put back: `unload` looks for its bytes among the reserved ones.
            self._node.memory.reserve(served.sample, remote=served.remote)
        for sample in result.unloaded:
            self._node.unload(sample)
        if result.reserved:
            # Last, as what was unloaded makes room for it.
            self._node.memory.reserve(served.sample, remote=served.remote)

    def _decide(self, undecided: Undecided, served: Served) -> None:
        path = undecided.path
        del self.undecided[path]
        self._binding.decide(path, served)
        self._node.give(path, served)
        undecided.over.set()

    @property
    def _policy(self) -> SharedServingPolicy:
        sharing = self._node.plan.sharing
        assert sharing is not None
        return sharing.policy
