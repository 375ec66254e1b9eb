"""What `redoxfs top` knows of a mount: its last snapshots, and the figures that follow from them."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from redoxfs.telemetry import Rates
from redoxfs.telemetry.distribution import Distribution
from redoxfs.telemetry.outcome import Outcome

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
    REFUSED = "cannot be read"


@dataclass(frozen=True, slots=True)
class Lap:
    """The lap of a split.

    ``of``      how many turns this mount will give in the lap: all of the split's samples, or a node's part of them
    ``left_s``  None if it is not known
    """

    tree: str
    number: int
    turns: int
    of: int
    left_s: float | None

    @property
    def share(self) -> float:
        return min(1.0, self.turns / self.of) if self.of else 0.0


@dataclass(frozen=True, slots=True)
class Waits:
    """The opens of one outcome in the last interval."""

    label: str
    per_s: float
    share: float
    p50_s: float | None
    p99_s: float | None


@dataclass(frozen=True, slots=True)
class Peer:
    """What passed between a node and another in the last interval; ``p50_s, p99_s``: its answer times in it."""

    address: str
    state: str
    reason: str
    in_bytes_per_s: float
    out_bytes_per_s: float
    samples_per_s: float
    retries: int
    p50_s: float | None
    p99_s: float | None


@dataclass(frozen=True, slots=True)
class _Snapshot:
    at_s: float
    stats: Mapping[str, Any]


class MountView:
    """One mount: `saw` and `missed` take what an asker brought; all else is read.

    ``name``    as it was given
    ``reason``  why it is not serving, in a line
    ``rates``   of the last interval; None before there are two snapshots, and while it does not answer

    ``opens, storage, served``  opens, and MB from storage and to programs, each a second, of the last intervals
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = State.ASKED
        self.reason = ""
        self.rates: Rates | None = None
        self.opens: deque[float] = deque(maxlen=REMEMBERED)
        self.storage: deque[float] = deque(maxlen=REMEMBERED)
        self.served: deque[float] = deque(maxlen=REMEMBERED)
        self._before: _Snapshot | None = None
        self._now: _Snapshot | None = None
        self._given: deque[tuple[float, dict[str, int]]] = deque()

    @property
    def stats(self) -> Mapping[str, Any]:
        """The last snapshot; empty before the first."""
        return {} if self._now is None else self._now.stats

    @property
    def serves(self) -> bool:
        return self.state is State.SERVES

    def saw(self, at_s: float, stats: Mapping[str, Any]) -> None:
        """A snapshot, made at ``at_s``."""
        if "open_seconds" not in stats:
            version = stats.get("version")
            self.missed(State.REFUSED, f"redoxfs {version} serves it, which has no times of opens")
            return
        if self._now is not None and at_s <= self._now.at_s:
            return
        self.state, self.reason = State.SERVES, ""
        self._before, self._now = self._now, _Snapshot(at_s, stats)
        self._note_laps()
        if self._before is None:
            return
        self.rates = Rates.between(self._before.stats, stats, at_s - self._before.at_s)
        storage, served = self.rates.storage_bytes_per_s / 1e6, self.rates.served_bytes_per_s / 1e6
        self._remember(self.rates.opens_per_s, storage, served)

    def forget(self) -> None:
        """What was seen, which cannot be shown."""
        self._before = self._now = None
        self._given.clear()

    def missed(self, state: State, reason: str) -> None:
        """It did not answer."""
        self.state, self.reason = state, reason
        self.rates = None
        self._remember(0.0, 0.0, 0.0)

    def _remember(self, opens: float, storage: float, served: float) -> None:
        self.opens.append(opens)
        self.storage.append(storage)
        self.served.append(served)

    # Laps

    def laps(self) -> list[Lap]:
        """Of each split."""
        return [self._lap(tree, lap) for tree, lap in self.stats.get("laps", {}).items()]

    def _lap(self, tree: str, lap: Mapping[str, int]) -> Lap:
        of = self._turns_of(lap)
        return Lap(tree, lap["number"], lap["turns"], of, self._left_s(tree, of - lap["turns"]))

    def _turns_of(self, lap: Mapping[str, int]) -> int:
        """How many turns this mount gives in a lap. One node of several may read more than its part."""
        part = -(-lap["samples"] // (self.stats.get("nodes") or 1))
        return part if lap["turns"] <= part else lap["samples"]

    def _left_s(self, tree: str, turns: int) -> float | None:
        if not self.serves or len(self._given) < 2 or turns <= 0:
            return None
        (began_s, began), (now_s, now) = self._given[0], self._given[-1]
        given = now[tree] - began.get(tree, now[tree])
        return turns * (now_s - began_s) / given if given > 0 else None

    def _note_laps(self) -> None:
        """Add up the turns of each split since the first snapshot, over the ends of laps."""
        assert self._now is not None
        given = {}
        before = {} if self._before is None else self._before.stats.get("laps", {})
        for tree, lap in self._now.stats.get("laps", {}).items():
            former = before.get(tree, lap)
            laps = lap["number"] - former["number"]
            turns = lap["turns"] - former["turns"] + laps * self._turns_of(former)
            if laps < 0 or (laps == 0 and turns < 0):
                # The laps began again: with another view of the nodes, or from a state that was loaded.
                self._given.clear()
            given[tree] = max(0, turns) + (self._given[-1][1].get(tree, 0) if self._given else 0)
        self._given.append((self._now.at_s, given))
        while len(self._given) > 2 and self._given[1][0] <= self._now.at_s - RECENT_S:
            self._given.popleft()

    # Opens and peers of the last interval

    def waits(self) -> list[Waits]:
        """By outcome, those that came up at all since the mount began."""
        if self.rates is None or self._before is None:
            return []
        found = []
        of = {outcome.label: self._since(("open_seconds", outcome.label)) for outcome in Outcome}
        total = sum(times.count for times in of.values())
        for label, times in of.items():
            if not self.stats["open_seconds"][label]["count"]:
                continue
            per_s = times.count / self.rates.seconds
            share = times.count / total if total else 0.0
            found.append(Waits(label.replace("_", " "), per_s, share, times.quantile_s(0.5), times.quantile_s(0.99)))
        return found

    def _since(self, place: tuple[str, str]) -> Distribution:
        assert self._before is not None
        first, second = place
        now = Distribution.of(self.stats[first][second])
        if not self._is_same:
            return now
        return now.since(Distribution.of(self._before.stats[first][second]))

    @property
    def _is_same(self) -> bool:
        """Whether one daemon made both snapshots."""
        return self._before is not None and self._before.stats.get("pid") == self.stats.get("pid")

    def peers(self) -> list[Peer]:
        """The other nodes, in the order of their numbers."""
        before = {}
        if self._is_same and self._before is not None:
            before = {peer["address"]: peer for peer in self._before.stats.get("peers", ())}
        seconds = self.rates.seconds if self.rates is not None else 0.0
        return [_peer(peer, before.get(peer["address"], {}), seconds) for peer in self.stats.get("peers", ())]

    @property
    def restarts(self) -> int:
        return int((self.stats.get("keeper") or {}).get("restarts", 0))


def _peer(now: Mapping[str, Any], before: Mapping[str, Any], seconds: float) -> Peer:
    def per_s(name: str) -> float:
        # Another view of the nodes begins these counters again.
        return max(0, now[name] - before.get(name, 0)) / seconds if seconds and before else 0.0

    times = Distribution.of(now["answer_seconds"])
    if before:
        times = times.since(Distribution.of(before["answer_seconds"]))
    return Peer(
        address=now["address"],
        state=now["state"],
        reason=now.get("reason") or "",
        in_bytes_per_s=per_s("bytes_in"),
        out_bytes_per_s=per_s("bytes_out"),
        samples_per_s=per_s("samples_received"),
        retries=now["retries"],
        p50_s=times.quantile_s(0.5),
        p99_s=times.quantile_s(0.99),
    )
