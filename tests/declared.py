"""Whether stats.json has what the metrics declare, and nothing else."""

from collections.abc import Mapping
from typing import Any

from redoxfs.telemetry import EACH, Metric, When


def undeclared(stats: Mapping[str, Any], metrics: tuple[Metric, ...]) -> list[str]:
    """The places of ``stats`` that no metric declares. The inside of a declared place belongs to its metric."""
    return sorted(_undeclared(stats, (), [metric.place.split(".") for metric in metrics]))


def _undeclared(value: Any, at: tuple[str, ...], places: list[list[str]]) -> set[str]:
    here = [place for place in places if _matches(place[: len(at)], at)]
    if at and any(len(place) == len(at) for place in here):
        return set()
    if not here:
        return {".".join(at)}
    if value is None:
        # An object that this mount does not have.
        return set()
    if isinstance(value, Mapping):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = [(str(number), element) for number, element in enumerate(value)]
    else:
        return {".".join(at)}
    found: set[str] = set()
    for key, element in inner:
        found |= _undeclared(element, (*at, key), places)
    return found


def _matches(place: list[str], at: tuple[str, ...]) -> bool:
    return len(place) == len(at) and all(name in (EACH, key) for name, key in zip(place, at, strict=True))


def missing(stats: Mapping[str, Any], metrics: tuple[Metric, ...], present: frozenset[When]) -> list[str]:
    """The places of stable metrics that ``stats`` lacks, of a mount that has the fields of ``present``."""
    return [
        metric.place
        for metric in metrics
        if metric.stable and metric.when in present and not _has(stats, metric.place.split("."))
    ]


def _has(value: Any, path: list[str]) -> bool:
    """Whether the place is there; its value may be null."""
    if not path:
        return True
    name, *rest = path
    if name == EACH:
        elements = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
        return any(_has(inner, rest) for inner in elements)
    return isinstance(value, Mapping) and name in value and _has(value[name], rest)
