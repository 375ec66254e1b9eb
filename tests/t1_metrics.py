"""The registry of metrics is consistent, and the page that is made from it is up to date."""

import re
import subprocess
import sys
from pathlib import Path

from redoxfs.telemetry import EACH, METRICS, Kind, Metric, When, missing, undeclared

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
    assert set(re.findall(r"\bredoxfs_\w+", page)) == {metric.exposed for metric in METRICS} - {""}


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
