"""How long opens took, by what they waited for: from the request's receipt to the reply."""

from collections.abc import Callable
from typing import Any

from redoxfs.native import Histogram
from redoxfs.telemetry import Outcome, as_json


class OpenTimes:
    """One histogram for each outcome. Used by the node's task alone.

    ``done`` has a function for each outcome, to call when an open has its reply, with the moment of its receipt in ns
    of the monotonic clock. A method would cost as much again as the functions do.
    """

    def __init__(self) -> None:
        self._of = [Histogram() for _ in Outcome]
        self.done: tuple[Callable[[int], None], ...] = tuple(histogram.since for histogram in self._of)

    def stats(self) -> dict[str, Any]:
        """Its part of stats.json."""
        bounds_ns = Histogram.bounds_ns()
        return {
            "open_seconds": {
                outcome.label: as_json(self._of[outcome].counts(), self._of[outcome].sum_ns, bounds_ns)
                for outcome in Outcome
            }
        }
