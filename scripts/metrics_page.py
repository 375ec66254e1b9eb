"""Prints docs/metrics.md with the tables of the registry: scripts/metrics writes it.

The text before the section of the tables is written by hand, and stays.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from redoxfs.telemetry import METRICS, Kind, Metric

PAGE = Path(__file__).parents[1] / "docs/metrics.md"

TITLE = "## Every field"


def page(text: str, metrics: tuple[Metric, ...]) -> str:
    """``text`` with tables of ``metrics`` in place of everything from `TITLE` on."""
    head, title, _ = text.partition(f"{TITLE}\n")
    assert title, "the page has no section for the tables"
    return head + title + "\n" + "\n".join(_tables(metrics)) + "\n"


def _tables(metrics: tuple[Metric, ...]) -> Iterator[str]:
    yield "`*` stands for each key of an object, or for each element of a list."
    for when in dict.fromkeys(metric.when for metric in metrics):
        yield from ("", f"### {when[:1].upper()}{when[1:]}" if when[0] != "`" else f"### With {when}", "")
        yield "| field | in Prometheus | kind | meaning |"
        yield "|---|---|---|---|"
        yield from (_row(metric) for metric in metrics if metric.when is when)


def _row(metric: Metric) -> str:
    labels = f"{{{','.join(metric.labels)}}}" if metric.labels else ""
    exposed = f"`{metric.exposed}{labels}`" if metric.kind is not Kind.FACT else ""
    kind = metric.kind if metric.stable else f"{metric.kind}, may change"
    place = f"`{metric.place}`" if metric.place else ""
    return f"| {place} | {exposed} | {kind} | {metric.help} |"


if __name__ == "__main__":
    sys.stdout.write(page(PAGE.read_text(), METRICS))
