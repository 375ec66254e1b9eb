"""Metrics of a mount: scrapes, as Prometheus makes them, and histograms, as stats.json has them."""

from typing import Any
from urllib.request import urlopen

from patience import PATIENCE_S
from prometheus_client.parser import text_string_to_metric_families

from redoxfs.native import Histogram
from redoxfs.telemetry import as_json

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def text_of(port: int) -> str:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
        text: str = answer.read().decode()
    return text


def series_of(text: str) -> Series:
    """Each sample of an exposition by its name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value_of(series: Series, name: str, **labels: str) -> float:
    """The sum of all samples of this name that have these labels."""
    found = [value for (of_name, of), value in series.items() if of_name == name and labels.items() <= dict(of).items()]
    assert found, name
    return sum(found)


def told(*times_s: float) -> dict[str, Any]:
    """A histogram of stats.json."""
    histogram = Histogram()
    for time_s in times_s:
        histogram.record(round(time_s * 1e9))
    return as_json(histogram.counts(), histogram.sum_ns, histogram.bounds_ns())
