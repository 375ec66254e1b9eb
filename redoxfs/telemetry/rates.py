"""What a mount did between two snapshots of its stats.json."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from redoxfs.telemetry.distribution import Distribution
from redoxfs.telemetry.outcome import Outcome

WAITS = tuple(outcome.label for outcome in Outcome if outcome is not Outcome.FAILED)


def storage_bytes(stats: Mapping[str, Any]) -> float:
    """The bytes of a snapshot, or of what its counters grew by, that came from storage: not those of --cache."""
    copied: float = (stats.get("cache") or {}).get("read_bytes") or 0
    read: float = stats.get("bytes_read") or 0
    # What was read of a copy that is damaged was not used.
    return max(0, read - copied)


@dataclass(frozen=True, slots=True)
class Rates:
    """What was done in ``seconds``, and what holds at their end.

    ``redirected_share``        of opens that have an answer; None if there were none
    ``wait_p50_s, wait_p99_s``  of opens that did not fail, from receipt to reply; None if there were none
    ``remote_share``            of the time of these opens, that of opens that waited for another node; None if it is 0
    ``waiting_mean``            how many programs waited at once, on average: a wait counts when it ends
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
    remote_share: float | None
    waiting_mean: float
    waiting_opens: int
    loads_in_flight: int
    memory_used_bytes: int
    memory_limit_bytes: int
    laps: float

    @classmethod
    def between(cls, before: Mapping[str, Any], after: Mapping[str, Any], seconds: float) -> "Rates":
        """From two snapshots, ``seconds`` apart. Another daemon's counters begin at zero."""
        same = before["pid"] == after["pid"]

        def grown_of(value: Callable[[Mapping[str, Any]], float]) -> float:
            return max(0, value(after) - (value(before) if same else 0))

        def grown(name: str) -> float:
            return grown_of(itemgetter(name))

        def waited(outcomes: Iterable[str]) -> Distribution:
            now, former = (
                Distribution.of(*(each["open_seconds"][name] for name in outcomes)) for each in (after, before)
            )
            return now.since(former) if same else now

        answered = grown("redirected") + grown("exact")
        waits = waited(WAITS)
        return cls(
            seconds=seconds,
            opens_per_s=grown("opens") / seconds,
            storage_bytes_per_s=grown_of(storage_bytes) / seconds,
            served_bytes_per_s=grown("bytes_served") / seconds,
            errors_per_s=grown("errors") / seconds,
            redirected_share=grown("redirected") / answered if answered else None,
            wait_p50_s=waits.quantile_s(0.5),
            wait_p99_s=waits.quantile_s(0.99),
            remote_share=waited((Outcome.REMOTE.label,)).sum_s / waits.sum_s if waits.sum_s else None,
            waiting_mean=grown("wait_seconds") / seconds,
            waiting_opens=after["waiting_opens"],
            loads_in_flight=after["loads_in_flight"],
            memory_used_bytes=after["memory_used_bytes"],
            memory_limit_bytes=after["memory_limit_bytes"],
            laps=after["turns"] / max(1, after["samples"]),
        )
