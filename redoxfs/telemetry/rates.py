"""What a mount did between two snapshots of its stats.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redoxfs.telemetry.distribution import Distribution
from redoxfs.telemetry.outcome import Outcome

WAITS = tuple(outcome.label for outcome in Outcome if outcome is not Outcome.FAILED)


@dataclass(frozen=True, slots=True)
class Rates:
    """What was done in ``seconds``, and what holds at their end.

    ``redirected_share``        of all opens; None if there were none
    ``wait_p50_s, wait_p99_s``  of opens that did not fail, from receipt to reply; None if there were none
    ``laps``                    turns of this node for each sample of the dataset, since the first lap began
    """

    seconds: float
    opens_per_s: float
    storage_bytes_per_s: float
    served_bytes_per_s: float
    errors_per_s: float
    redirected_share: float | None
    wait_p50_s: float | None
    wait_p99_s: float | None
    waiting_opens: int
    loads_in_flight: int
    memory_used_bytes: int
    memory_limit_bytes: int
    laps: float

    @classmethod
    def between(cls, before: Mapping[str, Any], after: Mapping[str, Any], seconds: float) -> "Rates":
        """From two snapshots, ``seconds`` apart. Another daemon's counters begin at zero."""
        same = before["pid"] == after["pid"]

        def grown(name: str) -> int:
            growth: int = after[name] - (before[name] if same else 0)
            return max(0, growth)

        opens = grown("opens")
        waits = _waits(after).since(_waits(before)) if same else _waits(after)
        return cls(
            seconds=seconds,
            opens_per_s=opens / seconds,
            storage_bytes_per_s=grown("bytes_read") / seconds,
            served_bytes_per_s=grown("bytes_served") / seconds,
            errors_per_s=grown("errors") / seconds,
            redirected_share=grown("redirected") / opens if opens else None,
            wait_p50_s=waits.quantile_s(0.5),
            wait_p99_s=waits.quantile_s(0.99),
            waiting_opens=after["waiting_opens"],
            loads_in_flight=after["loads_in_flight"],
            memory_used_bytes=after["memory_used_bytes"],
            memory_limit_bytes=after["memory_limit_bytes"],
            laps=after["turns"] / max(1, after["samples"]),
        )


def _waits(stats: Mapping[str, Any]) -> Distribution:
    return Distribution.of(*(stats["open_seconds"][outcome] for outcome in WAITS))
