"""What `redoxfs top` knows of a mount: its last two snapshots, and the figures that follow from them."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from redoxfs.doctor.result import Result
from redoxfs.launch.control_files import with_texts
from redoxfs.telemetry import Rates

REMEMBERED = 600
"""Intervals: more than the widest terminal has columns."""

RECENT_S = 30.0
"""The time left follows from the rate of this time: one interval is too short for loaders that fetch in batches."""


class State(Enum):
    """Whether a mount answers, and what to call it."""

    ASKED = "asking"
    SERVES = "serving"
    SILENT = "no answer"
    DEAD = "daemon dead"
    ENDED = "ended"
    REFUSED = "unreadable"


@dataclass(frozen=True, slots=True)
class Lap:
    """The lap of a split.

    ``of``      how many turns this mount will give in the lap: all of the split's samples, or a node's part of them
    ``left_s``  None if it is not known
    """

    number: int
    turns: int
    of: int
    left_s: float | None

    @property
    def share(self) -> float:
        return min(1.0, self.turns / self.of) if self.of else 0.0


class MountView:
    """One mount: `saw`, `judged`, `missed` and `refused` take what an asker brought; all else is read.

    ``name``     as it was given
    ``reason``   why it is not serving, in a line
    ``stats``    the last snapshot; empty before the first
    ``before``   the one before it, by the same daemon; empty if there is none
    ``rates``    of the last interval; None before there are two snapshots, and while it does not answer
    ``history``  the rates of the last intervals
    ``verdict``  the last; None before the first, and while it does not answer
    """

    stats: Mapping[str, Any]
    before: Mapping[str, Any]
    rates: Rates | None
    history: deque[Rates | None]
    verdict: Result | None
    _at_s: float
    _recent: deque[tuple[float, Mapping[str, Any]]]

    def __init__(self, name: str) -> None:
        self.name = printable(name)
        self.refused("")
        self.state = State.ASKED

    @property
    def serves(self) -> bool:
        return self.state is State.SERVES

    def saw(self, at_s: float, stats: Mapping[str, Any]) -> None:
        """A snapshot, made at ``at_s``. If it makes no sense, Python's error is raised: call `refused` then."""
        if (seconds := at_s - self._at_s) <= 0:
            return
        before, self.stats, self._at_s = self.stats, with_texts(stats, printable), at_s
        self.state, self.reason = State.SERVES, ""
        # Another daemon began to count at zero.
        self.before = before if before and before["pid"] == self.stats["pid"] else {}
        self._recent.append((at_s, self.stats.get("laps", {})))
        while len(self._recent) > 2 and self._recent[1][0] <= at_s - RECENT_S:
            self._recent.popleft()
        if before:
            self.rates = Rates.between(before, self.stats, seconds)
            self.history.append(self.rates)

    def judged(self, verdict: Result) -> None:
        """What `doctor` says of it, too."""
        self.verdict = verdict if self.serves else None

    def missed(self, state: State, reason: str) -> None:
        """It did not answer."""
        self.state, self.reason, self.rates, self.verdict = state, printable(reason), None, None
        self.history.append(None)

    def refused(self, reason: str) -> None:
        """Its statistics make no sense, so nothing is known of it."""
        self.stats, self.before, self._at_s = {}, {}, float("-inf")
        self.history, self._recent = deque(maxlen=REMEMBERED), deque()
        self.missed(State.REFUSED, reason)

    @property
    def restarts(self) -> int:
        return int((self.stats.get("keeper") or {}).get("restarts", 0))

    def laps(self) -> dict[str, Lap]:
        """Of each split."""
        return {tree: self._lap(tree, lap) for tree, lap in self.stats.get("laps", {}).items()}

    def _lap(self, tree: str, lap: Mapping[str, int]) -> Lap:
        # One node of several may read more than its part.
        part = -(-lap["samples"] // (self.stats.get("nodes") or 1))
        of = part if lap["turns"] <= part else lap["samples"]
        (began_s, before), left, left_s = self._recent[0], of - lap["turns"], None
        if self.serves and left > 0:
            former = before.get(tree, lap)
            # Over the ends of laps. Less than none: they began again, with another view of the nodes or another state.
            given = (lap["number"] - former["number"]) * of + lap["turns"] - former["turns"]
            left_s = left * (self._at_s - began_s) / given if given > 0 else None
        return Lap(lap["number"], lap["turns"], of, left_s)


def printable(text: str) -> str:
    """A text with "?" for whatever a terminal could take for more than a character: each keeps its width."""
    return "".join(each if each.isprintable() else "?" for each in text)
