"""What a mount tells of itself: every metric, declared once, and what is made of the declarations.

Nothing here does I/O, but for the server of `prometheus`. The values come from stats.json, as one snapshot.
"""

from typing import TYPE_CHECKING

from redoxfs.late import names_of

if TYPE_CHECKING:
    from redoxfs.telemetry.distribution import Distribution, as_json
    from redoxfs.telemetry.metric import EACH, Kind, Metric, When
    from redoxfs.telemetry.outcome import Outcome
    from redoxfs.telemetry.rates import Rates, storage_bytes
    from redoxfs.telemetry.registry import METRICS
else:
    __getattr__ = names_of(
        __name__,
        distribution="Distribution as_json",
        metric="EACH Kind Metric When",
        outcome="Outcome",
        rates="Rates storage_bytes",
        registry="METRICS",
    )

__all__ = [
    "EACH",
    "METRICS",
    "Distribution",
    "Kind",
    "Metric",
    "Outcome",
    "Rates",
    "When",
    "as_json",
    "storage_bytes",
]
