"""How one value of options is made of many values, and the other way around."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

Options = TypeVar("Options")


def built(kind: type[Options], given: Mapping[str, Any]) -> Options:
    """An instance of a dataclass, and of those that are its fields; a field that is not ``given`` has its default."""
    values: dict[str, Any] = {}
    for each in fields(kind):  # type: ignore[arg-type]
        if is_dataclass(each.type):
            values[each.name] = built(each.type, given)  # type: ignore[arg-type]
        elif each.name in given:
            value = given[each.name]
            values[each.name] = tuple(value) if isinstance(value, list) else value
    return kind(**values)


def flat(options: object) -> dict[str, Any]:
    """The fields of a dataclass, and of those that are its fields, by their names: the inverse of `built`."""
    values: dict[str, Any] = {}
    for each in fields(options):  # type: ignore[arg-type]
        value = getattr(options, each.name)
        if is_dataclass(each.type):
            values |= flat(value)
        else:
            values[each.name] = value
    return values


def default_of(kind: type, name: str) -> Any:
    """The default of an option, for its help text."""
    return next(each.default for each in fields(kind) if each.name == name)
