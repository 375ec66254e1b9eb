"""The registry of metrics is consistent, and the page that is made from it is up to date."""

import math
import re
import subprocess
import sys
import time
from bisect import bisect_right
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from declared import missing, undeclared
from hypothesis import given
from hypothesis import strategies as st
from scrapes import told

from redoxfs.native import Histogram
from redoxfs.telemetry import EACH, METRICS, Distribution, Kind, Metric, When

ROOT = Path(__file__).parents[1]

SMALL = (
    Metric("opens", Kind.COUNTER, "opens", "Opens."),
    Metric("lap", Kind.GAUGE, "lap.*", "Laps.", labels=("tree",)),
    Metric("peer_retries", Kind.COUNTER, "peers.*.retries", "Retries.", labels=("peer",), when=When.NODES),
    Metric("keeper_pid", Kind.FACT, "keeper.pid", "Its pid.", when=When.KEEPER),
    Metric("layouts", Kind.FACT, "layouts", "Layouts.", stable=False),
)


def test_the_page_is_up_to_date(tmp_path: Path) -> None:
    made = tmp_path / "metrics.md"
    with made.open("wb") as out:
        subprocess.run([sys.executable, ROOT / "scripts/metrics_page.py"], stdout=out, check=True)
    assert made.read_text() == (ROOT / "docs/metrics.md").read_text(), "out of date: run scripts/metrics"


def test_the_page_names_nothing_that_is_not_declared() -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    text, _, tables = page.partition("## Every field")
    exposed = {metric.exposed for metric in METRICS} - {""}
    assert set(re.findall(r"\bredoxfs_\w+", tables)) == exposed
    # A histogram is three names in a query.
    named = {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\bredoxfs_\w+", text)}
    assert named <= exposed | {"redoxfs_up"}


def test_names_and_places_are_unique() -> None:
    for names in ([metric.name for metric in METRICS], [metric.place for metric in METRICS if metric.place]):
        assert len(names) == len(set(names))


def test_names_follow_the_conventions_of_prometheus() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", metric.name), metric.name
        if metric.kind is not Kind.FACT and metric.unit:
            assert metric.name.endswith(metric.unit), metric.name
        assert not metric.name.endswith(("_total", "_count", "_sum", "_bucket")), metric.name


def test_a_place_has_a_label_for_each_part_that_varies() -> None:
    for metric in METRICS:
        assert len(metric.labels) == metric.place.split(".").count(EACH), metric.name


def test_a_help_is_one_sentence() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"[A-Z`][^|\n]*\.", metric.help), metric.name


def test_values_are_found_with_their_labels() -> None:
    stats = {"opens": 3, "lap": {"train": 1, "val": 2}, "peers": [{"address": "a:1", "retries": 5}], "keeper": None}
    found = {metric.place: [*metric.values(stats)] for metric in SMALL}
    assert found == {
        "opens": [((), 3)],
        "lap.*": [(("train",), 1), (("val",), 2)],
        "peers.*.retries": [(("a:1",), 5)],
        "keeper.pid": [],
        "layouts": [],
    }


def test_a_field_that_is_not_declared_is_found() -> None:
    stats = {"opens": 3, "more": 1, "peers": [{"retries": 5, "state": "ready"}], "keeper": {"pid": 1, "past": {"a": 1}}}
    assert undeclared(stats, SMALL) == ["keeper.past", "more", "peers.0.state"]


def test_a_stable_field_that_is_missing_is_found() -> None:
    always = frozenset({When.ALWAYS})
    assert missing({"opens": 0}, SMALL, always) == ["lap.*"]
    assert missing({"opens": None, "lap": {"a": 1}}, SMALL, always) == []
    assert missing({"opens": 0, "lap": {"a": 1}, "peers": [{}]}, SMALL, always | {When.NODES}) == ["peers.*.retries"]


@given(st.lists(st.integers(0, 1 << 40)))
def test_each_time_is_counted_in_the_bucket_of_its_bounds(times_ns: list[int]) -> None:
    histogram = Histogram()
    for time_ns in times_ns:
        histogram.record(time_ns)
    bounds_ns = histogram.bounds_ns()
    expected = Counter(bisect_right(bounds_ns, time_ns) for time_ns in times_ns)
    assert histogram.counts() == [expected[number] for number in range(len(bounds_ns) + 1)]
    assert histogram.sum_ns == sum(times_ns)


def test_bounds_differ_by_a_quarter_at_most() -> None:
    bounds_ns = Histogram.bounds_ns()
    assert (bounds_ns[0], bounds_ns[-1]) == (1 << 10, 1 << 37)
    assert all(1 < after / before <= 1.25 for before, after in pairwise(bounds_ns))


def test_a_time_is_counted_since_a_moment_of_the_monotonic_clock() -> None:
    histogram = Histogram()
    histogram.since(time.monotonic_ns() - 5_000_000_000)
    # A moment to come: the clock of another processor, at most.
    histogram.since(time.monotonic_ns() + 5_000_000_000)
    assert histogram.counts()[0] == 1
    assert 5_000_000_000 <= histogram.sum_ns < 65_000_000_000


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_a_quarter_too_long_at_most(times_s: list[float], share: float) -> None:
    exact_s = sorted(times_s)[math.ceil(share * len(times_s)) - 1]
    quantile_s = Distribution.of(told(*times_s)).quantile_s(share)
    assert quantile_s is not None
    assert exact_s <= quantile_s <= max(1.3 * exact_s, 2e-6)


def test_no_times_have_no_quantile() -> None:
    assert Distribution.of().quantile_s(0.5) is None


def test_what_came_since_a_snapshot_is_the_difference() -> None:
    before, after = told(0.001, 0.5), told(0.001, 0.5, 0.5, 2)
    since = Distribution.of(after).since(Distribution.of(before))
    assert since.count == 2
    assert since.sum_s == pytest.approx(2.5)
    assert [count for _, count in since.buckets] == [1, 1]


def test_after_a_restart_all_times_came_since() -> None:
    after = Distribution.of(told(0.25))
    assert after.since(Distribution.of(told(0.001, 0.5))) == after
