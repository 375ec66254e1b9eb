"""Contents in the order in which they came, of which only some have bytes to drop.

A path that shows bytes which the slots keep owns none. If a job never opens one file of each group, every path stays at
rest, and most of them are such. A search for the oldest bytes must not walk past them with each open. So a content that
cannot go when it is looked at is put apart, and comes back to its place when it may go.
"""

from collections import OrderedDict
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")

_Place: TypeAlias = tuple[int, int, T]
"""A number that grows with each content, its key, and the content."""


class ByAge(Generic[T]):
    """Contents by key.

    ``of``  all of them, oldest first; only for looking

    Args:
        can_go: whether there is anything to drop of a content. If that becomes true, call `look_again`.
    """

    def __init__(self, can_go: Callable[[T], bool]) -> None:
        self.of: dict[int, T] = {}
        self._can_go = can_go
        self._came = 0
        # Each is in one of the first two. Places that are apart and may go are in the heap, some of them out of date.
        self._in_order: OrderedDict[int, _Place[T]] = OrderedDict()
        self._apart: dict[int, _Place[T]] = {}
        self._back: list[_Place[T]] = []

    def add(self, key: int, content: T) -> None:
        """The youngest from now on. The key has none."""
        self.of[key] = content
        self._came += 1
        self._in_order[key] = self._came, key, content

    def take(self, key: int) -> T | None:
        """Remove the content of ``key``, if there is one."""
        content = self.of.pop(key, None)
        if content is not None and self._in_order.pop(key, None) is None:
            del self._apart[key]
        return content

    def clear(self) -> None:
        """Remove all."""
        for each in (self.of, self._in_order, self._apart, self._back):
            each.clear()

    def look_again(self, key: int) -> None:
        """The content of ``key``, if there is one, may go by now."""
        place = self._apart.get(key)
        if place is not None:
            heappush(self._back, place)

    def look_at_all_again(self) -> None:
        """Any may go by now."""
        for key in self._apart:
            self.look_again(key)

    def oldest(self) -> int | None:
        """The key of the oldest that can go."""
        first: _Place[T] | None = None
        while self._in_order:
            place = next(iter(self._in_order.values()))
            if self._can_go(place[2]):
                first = place
                break
            self._apart[place[1]] = self._in_order.popitem(last=False)[1]
        while self._back:
            place = self._back[0]
            if self._apart.get(place[1]) is place and self._can_go(place[2]):
                first = place if first is None or place[0] < first[0] else first
                break
            heappop(self._back)
        return None if first is None else first[1]
