"""What a mount did between two snapshots follows from their difference, and a restart is no negative rate."""

from typing import Any

import pytest
from scrapes import told

from redoxfs.native import Histogram
from redoxfs.telemetry import Outcome, Rates, storage_bytes
from redoxfs.telemetry.distribution import LONGEST_S


def snapshot(
    *, pid: int = 1, opens: int = 0, failed: int = 0, waits_s: dict[Outcome, list[float]] | None = None
) -> dict[str, Any]:
    """A stats.json, as far as rates need it. Each open reads 10 bytes from storage, and half are redirected, unless
    they failed."""
    waited_s = waits_s or {}
    times = {outcome.label: told(*waited_s.get(outcome, [])) for outcome in Outcome}
    return {
        "pid": pid,
        "opens": opens,
        "redirected": (opens - failed) // 2,
        "exact": (opens - failed) // 2,
        "bytes_read": 10 * opens,
        "bytes_served": 20 * opens,
        "errors": 0,
        "open_seconds": times,
        "wait_seconds": sum(map(sum, waited_s.values())),
        "waiting_opens": 3,
        "loads_in_flight": 2,
        "memory_used_bytes": 100,
        "memory_limit_bytes": 200,
        "turns": opens,
        "samples": 40,
    }


def test_rates_are_differences_for_each_second() -> None:
    rates = Rates.between(snapshot(opens=100), snapshot(opens=300), 2.0)
    assert (rates.opens_per_s, rates.storage_bytes_per_s, rates.served_bytes_per_s) == (100, 1000, 2000)
    assert rates.redirected_share == 0.5
    assert (rates.waiting_opens, rates.loads_in_flight, rates.memory_used_bytes) == (3, 2, 100)
    assert rates.laps == 7.5


def test_bytes_of_the_cache_did_not_come_from_storage() -> None:
    before, after = snapshot(opens=100), snapshot(opens=300)
    before["cache"], after["cache"] = {"read_bytes": 400}, {"read_bytes": 1000}
    assert Rates.between(before, after, 2.0).storage_bytes_per_s == 700
    assert (storage_bytes(after), storage_bytes(snapshot(opens=300))) == (2000, 3000)
    # Of a copy that turned out to be damaged, nothing was used.
    assert storage_bytes(after | {"cache": {"read_bytes": 4000}}) == 0


def test_failed_opens_are_no_part_of_the_redirected_share() -> None:
    rates = Rates.between(snapshot(opens=100), snapshot(opens=300, failed=100), 2.0)
    assert (rates.opens_per_s, rates.redirected_share) == (100, 0.5)


def test_an_interval_without_opens_has_no_share_and_no_waits() -> None:
    waits = {Outcome.RESIDENT: [0.001]}
    rates = Rates.between(snapshot(opens=1, waits_s=waits), snapshot(opens=1, waits_s=waits), 1.0)
    assert (rates.opens_per_s, rates.redirected_share, rates.wait_p50_s, rates.wait_p99_s) == (0, None, None, None)
    assert (rates.remote_share, rates.waiting_mean) == (None, 0)


def test_waits_are_those_of_the_interval_whatever_they_waited_for() -> None:
    before = {Outcome.RESIDENT: [5.0] * 1000}
    after = before | {Outcome.DEMAND: [0.25] * 98, Outcome.REMOTE: [2.0] * 2, Outcome.FAILED: [60.0] * 50}
    rates = Rates.between(snapshot(opens=1000, waits_s=before), snapshot(opens=1150, waits_s=after), 2.0)
    assert rates.wait_p50_s == pytest.approx(0.25, rel=0.25)
    assert rates.wait_p99_s == pytest.approx(2.0, rel=0.25)
    assert rates.remote_share == pytest.approx(4 / (4 + 98 * 0.25))
    assert rates.waiting_mean == pytest.approx((4 + 98 * 0.25 + 50 * 60) / 2)


def test_a_wait_beyond_the_largest_bound_is_a_finite_number() -> None:
    rates = Rates.between(snapshot(), snapshot(opens=1, waits_s={Outcome.DEMAND: [500.0]}), 1.0)
    assert rates.wait_p99_s == LONGEST_S == Histogram().bounds_ns()[-1] / 1e9


def test_after_a_restart_the_counters_of_the_new_daemon_count() -> None:
    before = snapshot(pid=1, opens=500, waits_s={Outcome.RESIDENT: [5.0] * 500})
    after = snapshot(pid=2, opens=600, waits_s={Outcome.RESIDENT: [0.001] * 600})
    rates = Rates.between(before, after, 1.0)
    assert rates.opens_per_s == 600
    assert rates.wait_p99_s == pytest.approx(0.001, rel=0.3)
