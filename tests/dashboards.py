"""What the dashboard for Grafana and the alerts ask Prometheus, and which metrics and labels a query names."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from redoxfs.telemetry import METRICS, Kind, Metric, When
from redoxfs.telemetry.prometheus import MOUNT, NODE, UP

FOLDER = Path(__file__).parents[1] / "mount/grafana"
DASHBOARD, ALERTS, ALERTS_TEST = (FOLDER / name for name in ("redoxfs.json", "alerts.yaml", "alerts_test.yaml"))

EXPOSED = {metric.exposed: metric for metric in METRICS if metric.exposed} | {f"redoxfs_{UP.name}": UP}

OF_TARGET = frozenset({"job", "instance"})
"""Labels that Prometheus itself gives each series."""

OF_TARGETS = "up"
"""The metric that Prometheus itself makes of each scrape."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query of a panel or an alert, with the name of what asks, and the legend of a panel."""

    of: str
    text: str
    legend: str = ""

    def names(self) -> set[str]:
        """Names of metrics, as they are written."""
        return {name for name, _ in self.selectors()}

    def metrics(self) -> list[Metric]:
        """The metrics that it names, without `OF_TARGETS`. Raises KeyError."""
        return [EXPOSED[exposed_of(name)] for name in sorted(self.names() - {OF_TARGETS})]

    def selectors(self) -> list[tuple[str, set[str]]]:
        """Each metric that it selects, with the labels that it selects by."""
        found = re.findall(r"\b(redoxfs_\w+|up)\b(?:\{([^}]*)\})?", self.text)
        return [(name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside))) for name, inside in found]

    def grouped_by(self) -> set[str]:
        """Labels that it groups or matches by."""
        lists = re.findall(r"\b(?:by|on|ignoring|without|group_left)\s*\(([^)]*)\)", self.text)
        return {label.strip() for each in lists for label in each.split(",")} - {""}

    def named_in_the_legend(self) -> set[str]:
        return set(re.findall(r"\{\{\s*(\w+)\s*\}\}", self.legend))

    def with_values(self, interval: str, mount: str | None = None) -> str:
        """As Grafana sends it, for one mount or for all of them, and with all values of the other variables."""
        chosen = ".*" if mount is None else re.escape(mount).replace("\\", "\\\\")
        text = self.text.replace("$__rate_interval", interval).replace("$mount", chosen)
        return re.sub(r"\$(job|instance|node)\b", ".*", text)


def exposed_of(name: str) -> str:
    """The exposed name of the metric of a series: a histogram has three kinds of them."""
    short = re.sub(r"_(bucket|sum|count)$", "", name)
    return short if short in EXPOSED and EXPOSED[short].kind is Kind.HISTOGRAM else name


def labels_of(name: str) -> set[str]:
    """The labels of the series of this name."""
    if name == OF_TARGETS:
        return {*OF_TARGET}
    metric = EXPOSED[exposed_of(name)]
    own = {MOUNT} if metric is UP else {MOUNT, NODE, *metric.labels}
    return {*OF_TARGET, *own, *({"le"} if name.endswith("_bucket") else ())}


def panels() -> list[dict[str, Any]]:
    """All panels of the dashboard that are no rows."""
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def variables() -> dict[str, tuple[str, str]]:
    """The metric with its selector, and the label, whose values a variable of the dashboard has."""
    found = json.loads(DASHBOARD.read_text())["templating"]["list"]
    asked = {each["name"]: each["query"]["query"] for each in found if each["type"] == "query"}
    pairs = {name: re.fullmatch(r"label_values\((.+), (\w+)\)", text) for name, text in asked.items()}
    return {name: (pair[1], pair[2]) for name, pair in pairs.items() if pair}


def panel_queries() -> list[Query]:
    return [
        Query(panel["title"], target["expr"], target.get("legendFormat", ""))
        for panel in panels()
        for target in panel["targets"]
    ]


def alerts() -> list[dict[str, Any]]:
    """The rules of alerts.yaml."""
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def alert_queries() -> Iterator[Query]:
    for rule in alerts():
        texts = " ".join(rule["annotations"].values())
        labels = re.sub(r"\$labels\.(\w+)", r"\1", re.sub(r"\{\{ \$value[^}]*\}\}", "", texts))
        yield Query(rule["alert"], rule["expr"], labels)


def may_be_empty(query: Query, present: frozenset[When]) -> bool:
    """Whether it asks for a metric that mounts with the fields of ``present`` do not have."""
    return any(metric is not UP and metric.when not in present for metric in query.metrics())
