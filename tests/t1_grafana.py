"""The dashboard for Grafana and the alerts ask for nothing that is not declared, and the dashboard shows what is."""

import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from dashboards import (
    DASHBOARD,
    EXPOSED,
    Query,
    alert_queries,
    alerts,
    exposed_of,
    labels_of,
    panel_queries,
    panels,
    variables,
)

ROOT = Path(__file__).parents[1]

NOT_SHOWN = {
    "redoxfs_lap": "redoxfs_lap_number says the same, and goes with the turns of the lap",
    "redoxfs_virtual_chunks": "it never changes while a dataset is mounted",
    "redoxfs_chunks_per_virtual_chunk": "likewise",
    "redoxfs_exchange": "likewise: what comes from other nodes is shown",
}
"""Stable metrics that no panel has, and why."""

QUERIES = [*panel_queries(), *alert_queries()]


def unknown_names(query: Query) -> set[str]:
    return {name for name in query.names() if name != "up" and exposed_of(name) not in EXPOSED}


def unknown_labels(query: Query) -> set[str]:
    """Labels that no series of the query has."""
    wrong = {label for name, labels in query.selectors() for label in labels - labels_of(name)}
    had = set().union(*(labels_of(name) for name in query.names()))
    return wrong | (query.grouped_by() - had) | (query.named_in_the_legend() - had)


def test_the_dashboard_is_up_to_date(tmp_path: Path) -> None:
    made = tmp_path / "redoxfs.json"
    with made.open("wb") as out:
        subprocess.run([sys.executable, ROOT / "scripts/grafana_dashboard.py"], stdout=out, check=True)
    assert made.read_text() == DASHBOARD.read_text(), "out of date: run scripts/grafana"


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.of)
def test_a_query_names_only_metrics_and_labels_that_are_declared(query: Query) -> None:
    assert query.names()
    assert unknown_names(query) == set()
    assert unknown_labels(query) == set()


def test_variables_are_values_of_labels_that_are_declared() -> None:
    found = variables()
    assert [*found] == ["job", "instance", "mount", "node"]
    for name, (metric, label) in found.items():
        assert label == name
        query = Query(name, f"group by ({label}) ({metric})")
        assert unknown_names(query) == unknown_labels(query) == set()


def test_every_stable_metric_is_in_a_panel() -> None:
    shown = {exposed_of(name) for query in panel_queries() for name in query.names()}
    stable = {name for name, metric in EXPOSED.items() if metric.stable}
    assert stable - shown == set(NOT_SHOWN)


def test_a_name_or_a_label_that_is_not_declared_is_found() -> None:
    wrong = Query("", 'rate(redoxfs_opens[1m]) / redoxfs_up{node="0"} + sum by (outcome) (redoxfs_lap)', "{{peer}}")
    assert unknown_names(wrong) == {"redoxfs_opens"}
    right = Query("", 'sum by (outcome) (redoxfs_open_duration_seconds_bucket{le="1",mount="m"})', "{{outcome}}")
    assert (unknown_names(right), unknown_labels(right)) == (set(), set())
    assert unknown_labels(Query("", 'redoxfs_up{node="0"} + sum by (outcome) (redoxfs_lap)', "{{peer}}")) == {
        "node",
        "outcome",
        "peer",
    }


def test_panels_say_what_they_show_and_in_which_unit() -> None:
    titles = [panel["title"] for panel in panels()]
    assert len(titles) == len(set(titles))
    for panel in panels():
        assert re.fullmatch(r"[A-Z][^\n]{20,}\.", panel["description"]), panel["title"]
        if panel["type"] not in ("state-timeline", "table", "heatmap"):
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        # Two queries of a panel have one letter each.
        letters = [target["refId"] for target in panel["targets"]]
        assert len(letters) == len(set(letters))


def test_panels_do_not_overlap() -> None:
    def apart(one: dict[str, Any], other: dict[str, Any]) -> bool:
        return any(
            first[at] + first[size] <= second[at]
            for at, size in (("x", "w"), ("y", "h"))
            for first, second in ((one, other), (other, one))
        )

    places = [panel["gridPos"] for panel in panels()]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    assert all(apart(one, other) for one, other in combinations(places, 2))


def test_an_alert_says_how_bad_it_is_and_what_to_do() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names))
    for rule in alerts():
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"].endswith(".")


def test_the_alert_of_a_node_that_cannot_be_reached_names_the_command_that_shows_it() -> None:
    """`redoxfs nodes` lists the nodes, without their states."""
    (rule,) = [rule for rule in alerts() if rule["alert"] == "RedoxfsDegraded"]
    assert "Run redoxfs status {{ $labels.mount }} " in rule["annotations"]["description"]


def test_the_page_has_every_alert_with_its_severity() -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    rows = dict(re.findall(r"^\| `(Redoxfs\w+)` \| (\w+) \|", page, re.MULTILINE))
    assert rows == {rule["alert"]: rule["labels"]["severity"] for rule in alerts()}
