"""What a JSON value is: the history of a mount, or rows of figures, as simulations and benchmarks print them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from redoxfs.report import html
from redoxfs.report.charts import Table
from redoxfs.telemetry.history_form import Read, UnreadableError, is_history, read

MOST_COLUMNS = 64
"""A table of more is no result of anything."""


class UnknownInputError(ValueError):
    """A JSON value that a report cannot show: one line."""


@dataclass(frozen=True, slots=True)
class MountRun:
    """The history of a mount, with a name for it."""

    name: str
    history: Read


@dataclass(frozen=True, slots=True)
class Figures:
    """Rows of figures. ``about``: where they were measured, and with which settings."""

    name: str
    about: str
    table: Table


Input = MountRun | Figures


def recognized(name: str, value: Any) -> Input:
    """What ``value``, which came from ``name``, is. Raises UnknownInputError."""
    if is_history(value):
        try:
            return MountRun(name, read(value))
        except UnreadableError as error:
            raise UnknownInputError(str(error)) from None
    if isinstance(value, Mapping) and "open_seconds" in value and "pid" in value:
        raise UnknownInputError("it is stats.json, one snapshot; a report needs .redoxfs/history.json of the mount")
    rows = [dict(_flat(row)) for row in _rows(value)]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    if not 0 < len(columns) <= MOST_COLUMNS:
        raise UnknownInputError("it is no history.json, and has no rows of figures")
    headings = [column.replace("_", " ") for column in columns]
    try:
        cells = [[_written(row.get(column)) for column in columns] for row in rows]
        return Figures(name, about(value), Table(headings, cells))
    except (ValueError, ArithmeticError) as error:
        raise UnknownInputError(f"it is damaged: {type(error).__name__}: {error}") from None


def about(value: Any) -> str:
    """The machine and the settings of a result, as far as it has them."""
    if not isinstance(value, Mapping):
        return ""
    parts = []
    machine = value.get("machine")
    if isinstance(machine, Mapping):
        told = (("cores", "{} cores"), ("cpu", "{}"), ("kernel", "Linux {}"), ("python", "Python {}"))
        parts.append(", ".join(words.format(machine[key]) for key, words in told if key in machine))
    if _table_in(value) is not value:
        settings = (f"{key.replace('_', ' ')}: {_written(each)}" for key, each in value.items() if _is_plain(each))
        parts.append(", ".join(settings))
    return "; ".join(parts).strip("; ")


def _rows(value: Any) -> Iterator[Mapping[str, Any]]:
    table = _table_in(value)
    if isinstance(table, list):
        yield from table
    elif isinstance(table, Mapping):
        if all(isinstance(row, Mapping) for row in table.values()):
            for name, row in table.items():
                yield {"": name, **row}
        else:
            yield table


def _table_in(value: Any) -> Any:
    """The rows of a result: a list of objects, or an object of objects; else the result itself, as one row."""
    if _is_table(value):
        return value
    if not isinstance(value, Mapping):
        return None
    inner = [each for name, each in value.items() if name != "machine" and _is_table(each)]
    # A list before an object: the latter may be what a benchmark was asked for.
    return min(inner, key=lambda table: isinstance(table, Mapping), default=value)


def _is_table(value: Any) -> bool:
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return bool(inner) and all(isinstance(row, Mapping) for row in inner)


def _flat(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The plain values of a row, those in objects with their names joined by points."""
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif _is_plain(value) or value is None:
            yield f"{prefix}{name}", value


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float)


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return html.number(value)
    return html.NONE if value is None else str(value)
