"""How long opens took, by what they waited for: from the request's receipt to the reply."""

from collections.abc import Callable
from typing import Any

from redoxfs.fs.access_log import RECORDS, OpenRecord
from redoxfs.native import Histogram, Opens
from redoxfs.telemetry import Outcome, as_json

NO_SAMPLE = -1
"""In a record of an open: it got the file itself, or failed."""


class OpenTimes:
    """One histogram for each outcome. Used by the node's task alone.

    Args:
        slow_s: an open that takes as long is slow; 0: none is.
        slow: called with the record of a slow open.
    """

    def __init__(self, slow_s: float = 0.0, slow: Callable[[OpenRecord], object] = lambda _: None) -> None:
        self._of = tuple(Histogram() for _ in Outcome)
        self.opens = Opens(self._of, RECORDS, round(slow_s * 1e9), slow)

    def stats(self) -> dict[str, Any]:
        """Its part of stats.json."""
        bounds_ns = Histogram.bounds_ns()
        return {
            "open_seconds": {
                outcome.label: as_json(self._of[outcome].counts(), self._of[outcome].sum_ns, bounds_ns)
                for outcome in Outcome
            }
        }
