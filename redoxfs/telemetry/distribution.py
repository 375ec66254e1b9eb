"""How long something took, as stats.json has it, and what follows from two such snapshots.

In stats.json a histogram is an object: ``count``, ``sum`` in seconds, and ``buckets``, which has the number of times in
each bucket that is not empty, by the bucket's upper bound in seconds; ``inf`` is the last.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

DIGITS = 9
"""Of seconds after the point: bounds are whole numbers of ns."""


def as_json(counts: Sequence[int], sum_ns: int, bounds_ns: Sequence[int]) -> dict[str, Any]:
    """A histogram for stats.json. The last of ``counts`` has no bound."""
    *bounded, above = counts
    # A snapshot is taken between two opens, so the names of empty buckets are not made.
    buckets = {f"{ns / 1e9:.{DIGITS}f}": count for ns, count in zip(bounds_ns, bounded, strict=True) if count}
    if above:
        buckets["inf"] = above
    return {"count": sum(counts), "sum": round(sum_ns / 1e9, DIGITS), "buckets": buckets}


FIRST_BITS, LAST_BITS = 10, 37
"""Bounds lie between 2 ** FIRST_BITS and 2 ** LAST_BITS ns, from 1 us to 2 minutes."""

LONGEST_S = (1 << LAST_BITS) / 1e9


@dataclass(frozen=True, slots=True)
class Distribution:
    """Times in buckets. ``buckets``: upper bound in seconds, and number, in ascending order."""

    count: int
    sum_s: float
    buckets: tuple[tuple[float, int], ...]

    @classmethod
    def of(cls, *told: Mapping[str, Any]) -> "Distribution":
        """Of histograms of stats.json, added up."""
        sums: dict[float, int] = {}
        for histogram in told:
            for bound, count in histogram["buckets"].items():
                sums[float(bound)] = sums.get(float(bound), 0) + count
        return cls(sum(sums.values()), sum(each["sum"] for each in told), tuple(sorted(sums.items())))

    def since(self, before: "Distribution") -> "Distribution":
        """What came after ``before``, an older snapshot; all of it if another daemon began to count since."""
        old = dict(before.buckets)
        now = dict(self.buckets)
        if any(now.get(bound, 0) < count for bound, count in old.items()):
            return self
        left = tuple((bound, count - old.get(bound, 0)) for bound, count in self.buckets if count > old.get(bound, 0))
        return Distribution(self.count - before.count, max(0.0, self.sum_s - before.sum_s), left)

    def quantile_s(self, share: float) -> float | None:
        """A time that ``share`` of all are below, in seconds; a quarter too long at most. None of no times.

        No time is longer than `LONGEST_S`: all that is known of such times is that they are longer.
        """
        wanted = math.ceil(share * self.count)
        for (bound, _), total in zip(self.buckets, accumulate(count for _, count in self.buckets), strict=True):
            if total >= wanted > 0:
                return min(bound, LONGEST_S)
        return None
