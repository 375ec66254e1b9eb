"""What the time of opens went to: by outcome, and by directory."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from redoxfs.telemetry.access_log import Access
from redoxfs.telemetry.outcome import Outcome

STEP = 1.02
"""Between the bounds of two buckets of times: a quantile is at most 2 % too long."""

MOST_DIRECTORIES = 10_000
"""That are told apart; a profile may run for days. All others count as `OTHERS`."""

OTHERS = b"(others)"

TOP = b"."
"""The directory of a file at the top of the mount."""

Key = TypeVar("Key")

_EXACT = b".redoxfs/exact/"
_LOG_STEP = math.log(STEP)


@dataclass(slots=True)
class Times:
    """The times of some opens."""

    opens: int = 0
    total_us: int = 0
    slowest: Access | None = None
    outcome_us: dict[Outcome, int] = field(default_factory=dict)
    _buckets: dict[int, int] = field(default_factory=dict)

    def add(self, access: Access) -> None:
        """Count an open."""
        took_us = access.took_us
        self.opens += 1
        self.total_us += took_us
        self.outcome_us[access.outcome] = self.outcome_us.get(access.outcome, 0) + took_us
        if self.slowest is None or took_us > self.slowest.took_us:
            self.slowest = access
        bucket = math.ceil(math.log(took_us) / _LOG_STEP) if took_us > 1 else 0
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    @property
    def slowest_us(self) -> int:
        return 0 if self.slowest is None else self.slowest.took_us

    def quantile_us(self, share: float) -> float:
        """A time that ``share`` of the opens are not above; at most 2 % too long. 0 without opens."""
        wanted, total = math.ceil(share * self.opens), 0
        for bucket in sorted(self._buckets):
            total += self._buckets[bucket]
            if total >= wanted:
                return min(STEP**bucket, self.slowest_us)
        return 0.0

    def as_json(self, all_us: int) -> dict[str, Any]:
        """All of it, in seconds, beside ``all_us``, the time of all opens."""
        worst = self.slowest
        return {
            "opens": self.opens,
            "seconds": self.total_us / 1e6,
            "share": self.total_us / all_us if all_us else 0.0,
            "mean_seconds": self.total_us / 1e6 / self.opens if self.opens else 0.0,
            "p50_seconds": self.quantile_us(0.5) / 1e6,
            "p99_seconds": self.quantile_us(0.99) / 1e6,
            "slowest_seconds": self.slowest_us / 1e6,
            "slowest_path": None if worst is None else worst.path.decode("utf-8", "surrogateescape"),
            "outcome_seconds": {outcome.label: spent / 1e6 for outcome, spent in sorted(self.outcome_us.items())},
        }


class OpenProfile:
    """Opens by outcome, and by the directory of the path that was asked for.

    ``depth`` is how many names of the directory count; a deeper one counts as its parent.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.all = Times()
        self.outcomes: dict[Outcome, Times] = {}
        self.directories: dict[bytes, Times] = {}

    def add(self, access: Access) -> None:
        """Count an open."""
        self.all.add(access)
        self.outcomes.setdefault(access.outcome, Times()).add(access)
        name = directory_of(access.path, self.depth)
        if name not in self.directories and len(self.directories) >= MOST_DIRECTORIES:
            name = OTHERS
        self.directories.setdefault(name, Times()).add(access)

    def as_json(self) -> dict[str, Any]:
        """All of it; directories with the most time first."""
        all_us = self.all.total_us
        return {
            **self.all.as_json(all_us),
            "outcomes": {each.label: times.as_json(all_us) for each, times in by_time(self.outcomes)},
            "directories": [
                {"directory": name.decode("utf-8", "surrogateescape"), **times.as_json(all_us)}
                for name, times in by_time(self.directories)
            ],
        }


def by_time(groups: Mapping[Key, Times]) -> list[tuple[Key, Times]]:
    """Groups, that with the most time first."""
    return sorted(groups.items(), key=lambda group: -group[1].total_us)


def directory_of(path: bytes, depth: int) -> bytes:
    """The first ``depth`` names of the directory of a path. Those of ``.redoxfs/exact`` do not count."""
    exact, inside = (_EXACT, path[len(_EXACT) :]) if path.startswith(_EXACT) else (b"", path)
    *names, _file = inside.split(b"/")
    return (exact + b"/".join(names[:depth])).rstrip(b"/") or TOP
