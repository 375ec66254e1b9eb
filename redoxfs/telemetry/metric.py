"""What is declared of a metric, and how its values are found in stats.json.

A place is a path of names, joined by dots. ``*`` stands for every key of an object, or for every element of a list of
objects: ``lap.*``, ``peers.*.retries``. The key, or the address of the element, is the value of the metric's label.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

EACH = "*"

PREFIX = "redoxfs_"
"""Of each name in Prometheus."""


class Kind(StrEnum):
    """What a value does over time.

    A counter only grows while one daemon serves; some of several nodes begin again with each view. A gauge goes up and
    down. A fact is a text, or a number that nobody computes with.
    """

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    FACT = "fact"


class When(StrEnum):
    """Which mounts have a field."""

    ALWAYS = "every mount"
    SLOT = "`--policy slot`"
    KEEPER = "a mount with a keeper"
    DEATH = "a mount with a keeper, once a daemon has died"
    OBJECTS = "a mount of an object store"
    CACHE = "a mount with `--cache`"
    PASSES = "one node, `--policy pool`"
    NODES = "several nodes"
    SLOT_NODES = "several nodes, `--policy slot`"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    ``name``    in Prometheus, without `PREFIX` and ``_total``
    ``place``   in stats.json
    ``unit``    ``seconds``, ``bytes``, or empty: a number of things, or no number at all
    ``help``    one sentence
    ``stable``  whether name, place and meaning stay in later versions
    ``labels``  one for each `EACH` of the place
    """

    name: str
    kind: Kind
    place: str
    help: str
    unit: str = ""
    labels: tuple[str, ...] = ()
    when: When = When.ALWAYS
    stable: bool = True

    @property
    def exposed(self) -> str:
        """The name in Prometheus; empty for a fact, which only stats.json has."""
        if self.kind is Kind.FACT:
            return ""
        return f"{PREFIX}{self.name}{'_total' if self.kind is Kind.COUNTER else ''}"

    def values(self, stats: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
        """The values of its labels, and its value, for each value that ``stats`` has. Null counts as none."""
        yield from _found(stats, self.place.split("."), ())


def _found(value: Any, path: list[str], labels: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if value is None:
        return
    if not path:
        yield labels, value
        return
    name, *rest = path
    if name != EACH:
        if isinstance(value, Mapping) and name in value:
            yield from _found(value[name], rest, labels)
        return
    for key, inner in _elements(value):
        yield from _found(inner, rest, (*labels, key))


def _elements(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, list):
        for number, element in enumerate(value):
            yield (element.get("address", str(number)) if isinstance(element, Mapping) else str(number)), element
