"""The requests and stats that wait for a sample from a peer."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Ticket(NamedTuple):
    """A request that waits, or a stat that ``reserves``."""

    number: int
    reserves: bool


class Waiting:
    """The tickets that wait, by class, oldest first."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[Ticket]] = {}
        self._tickets = 0

    def __contains__(self, cls: int) -> bool:
        """Whether any ticket waits for a class."""
        return cls in self._queues

    def __iter__(self) -> Iterator[int]:
        """The classes that tickets wait for."""
        return iter(self._queues)

    def count(self, cls: int) -> int:
        """How many tickets wait for a class."""
        return len(self._queues.get(cls, ()))

    def add(self, cls: int, *, reserves: bool) -> int:
        """A new ticket waits for a class; returns its number."""
        self._tickets += 1
        self._queues.setdefault(cls, deque()).append(Ticket(self._tickets, reserves))
        return self._tickets

    def cancel(self, number: int) -> None:
        """A ticket no longer waits. No effect where it does not."""
        for cls, queue in self._queues.items():
            for ticket in queue:
                if ticket.number == number:
                    queue.remove(ticket)
                    if not queue:
                        del self._queues[cls]
                    return

    def pop(self, cls: int) -> Sequence[Ticket]:
        """Remove the tickets of a class."""
        return self._queues.pop(cls, ())

    def put_back(self, cls: int, tickets: Sequence[Ticket]) -> None:
        """These of the removed tickets wait on."""
        if tickets:
            self._queues[cls] = deque(tickets)
