"""The requests and stats that wait for a sample from a peer."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from redoxfs.arrays import Int64
from redoxfs.protocol.tables import rows


class Ticket(NamedTuple):
    """A request of ``sample`` that waits, or a stat that ``reserves``."""

    number: int
    reserves: bool
    sample: int


class Waiting:
    """The tickets that wait, by class, oldest first. They are numbered; ``last_ticket`` is the last number."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[Ticket]] = {}
        self.last_ticket = 0

    def __contains__(self, cls: int) -> bool:
        """Whether any ticket waits for a class."""
        return cls in self._queues

    def __iter__(self) -> Iterator[int]:
        """The classes that tickets wait for."""
        return iter(self._queues)

    def count(self, cls: int) -> int:
        """How many tickets wait for a class."""
        return len(self._queues.get(cls, ()))

    def add(self, cls: int, sample: int, *, reserves: bool) -> int:
        """A new ticket of ``sample`` waits for its class; returns its number."""
        self.last_ticket += 1
        self._queues.setdefault(cls, deque()).append(Ticket(self.last_ticket, reserves, sample))
        return self.last_ticket

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

    def table(self) -> Int64:
        """int64[n, 4]: the class that each ticket waits for, its number, whether it reserves, its sample; in order."""
        return rows(((cls, *ticket) for cls, queue in self._queues.items() for ticket in queue), 4)

    def resume(self, table: Sequence[Sequence[int]], last_ticket: int) -> None:
        """Continue where a `table` was taken."""
        self.last_ticket = last_ticket
        for cls, number, reserves, sample in table:
            self._queues.setdefault(cls, deque()).append(Ticket(number, bool(reserves), sample))
