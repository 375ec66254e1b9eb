"""A node's order of access in one epoch, as both sides of the distributed protocol see it (§3.6, ``sn``).

Requester and home are given the same order, and each keeps the part it needs. Positions count the requests that live
at *one* home: the prefetch window covers those, and a home never needs to know what the requester asks elsewhere. A
request that leaves the order has no position (`OFF_TRACE`); it is served without prefetch.

The requester looks a position up by sample instead of counting its requests: several workers make requests out of
order. A sample that the order has several times (padding, sampling with replacement) takes its positions in turn.
"""

import numpy as np

from redoxfs.arrays import Bytes, Flags, Int64, Numbers, distinct

OFF_TRACE = -1
"""The position of a request that the trace does not have, or no longer has."""


class OwnTrace:
    """The requester's side: the position of each request.

    Args:
        order: int[n], the samples that this node asks for in the epoch, its own among them.
        home_of: int[S], the node at which each sample lives.
        spent: bool[n], the requests that were made before: of one sample, the first ones. None: no request.
    """

    def __init__(self, order: Numbers, home_of: Numbers, spent: Flags | None = None) -> None:
        self.order = order
        self._is_spent = np.zeros(len(order), np.bool_) if spent is None else spent
        self._spent: memoryview[int] = self._is_spent.view(np.uint8).data
        homes = home_of[order]
        place = np.empty(len(order), np.int32)
        for home in distinct(homes):
            at_home = homes == home
            place[at_home] = np.arange(np.count_nonzero(at_home), dtype=np.int32)
        # The requests of one sample form a chain: its first, and from each the next of the same sample.
        to_come = np.flatnonzero(~self._is_spent).astype(np.int32)
        by_sample = to_come[np.argsort(order[to_come], kind="stable")]
        same = order[by_sample[1:]] == order[by_sample[:-1]]
        first = np.full(len(home_of), -1, np.int32)
        after = np.full(len(order), -1, np.int32)
        after[by_sample[:-1][same]] = by_sample[1:][same]
        starts = by_sample[np.append(True, ~same)] if len(by_sample) else by_sample
        first[order[starts]] = starts
        self._place: memoryview[int] = place.data
        self._next: memoryview[int] = first.data
        self._after: memoryview[int] = after.data

    def pass_by(self, sample: int) -> int:
        """The position of the request for ``sample`` that is made now."""
        at = self._next[sample]
        if at < 0:
            return OFF_TRACE
        self._next[sample] = self._after[at]
        self._spent[at] = 1
        return self._place[at]

    def spent(self) -> Bytes:
        """One bit for each request of the order, set where it was made."""
        return np.packbits(self._is_spent)


class HomeTrace:
    """The home's side: the requests that one requester has yet to make here.

    Args:
        order: int[n], the samples that live here, in the order in which the requester asks for them.
        columns: int64[n], the column of each.
        spent: bool[n], the requests that were made before; None: no request.
    """

    def __init__(self, order: Numbers, columns: Int64, spent: Flags | None = None) -> None:
        self.samples = order
        self.columns = columns
        self._is_ahead = np.ones(len(order), np.bool_) if spent is None else ~spent
        self._ahead: memoryview[int] = self._is_ahead.view(np.uint8).data

    def pass_by(self, position: int) -> bool:
        """The request at ``position`` was made. False where the trace has no such request."""
        if not 0 <= position < len(self._ahead):
            return False
        self._ahead[position] = 0
        return True

    def spent(self) -> Bytes:
        """One bit for each request, set where it was made."""
        return np.packbits(~self._is_ahead)

    def window(self, position: int, requests: int) -> tuple[int, Int64, Flags]:
        """The ``requests`` requests from ``position`` on, without the one at ``position``.

        Returns:
            The position of the first, the columns, and which were not made yet.
        """
        ahead = slice(position + 1, position + requests)
        return position + 1, self.columns[ahead], self._is_ahead[ahead]
