"""What all benchmarks have in common: their options, and results as files and as text.

``--json FILE`` writes a result. With ``--quick`` a benchmark runs at a small size, which says whether it works, and not
how fast anything is.
"""

import argparse
import json
import statistics
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.table import Table

from redoxfs.cli.table import show_table
from redoxfs.report import Figures, html, recognized

Row = dict[str, Any]


def options_of(about: str | None) -> argparse.ArgumentParser:
    """A parser of what every benchmark takes. ``about`` is the benchmark's docstring."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result here")
    return parser


def parse_quick(parser: argparse.ArgumentParser, **quick: Any) -> argparse.Namespace:
    """The arguments. With --quick, ``quick`` are the defaults, so what is given beside it counts."""
    if parser.parse_args().quick:
        parser.set_defaults(**quick)
    return parser.parse_args()


def write(result: Any, path: Path) -> None:
    """Write a result as JSON."""
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def tell(result: Row, file: Path | None, *columns: str) -> None:
    """Write a result to ``file``, and print it as `show` does."""
    if file is not None:
        write(result, file)
    show(result, *columns)


def show(result: Row, *columns: str) -> None:
    """Print where and with what a result was measured, and its rows: some columns, or all.

    Values within values are named as `redoxfs report` does, which shows them all: "open_us.p99".
    """
    figures = recognized("", result)
    assert isinstance(figures, Figures)
    values = dict(zip(figures.table.headings, zip(*figures.table.rows, strict=True), strict=True))
    shown, kept = Table(), []
    for column in [column.replace("_", " ") for column in columns] or values:
        # Some are of ways that were not asked for.
        if {*values.get(column, ())} - {html.NONE}:
            is_text = any(value[:1].isalpha() for value in values[column])
            shown.add_column(column, justify="left" if is_text else "right")
            kept.append(values[column])
    for cells in zip(*kept, strict=True):
        shown.add_row(*cells)
    show_table(figures.about, shown)


def medians(rows: Sequence[Row], *names: str) -> list[Row]:
    """A row for each combination of the values with these names, with the medians of all other numbers."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return [
        dict(zip(names, values, strict=True))
        | {
            name: statistics.median(each[name] for each in of)
            for name, value in of[0].items()
            if name not in (*names, "round") and isinstance(value, int | float)
        }
        for values, of in groups.items()
    ]


def shares(count: int, parts: int) -> list[int]:
    """``count`` in parts that differ by one at most."""
    return [(count + i) // parts for i in reversed(range(parts))]


def check_plot() -> None:
    """Exits where no figure can be drawn. Call it before minutes of measurements."""
    # Importing it takes memory, which the processes that are measured must not have.
    if find_spec("matplotlib") is None:
        raise SystemExit("--plot needs matplotlib; to install it: pip install 'redoxfs[plot]'")


def rounded(value: Any, digits: int = 6) -> Any:
    """The same value, with floats of ``digits`` significant digits: people read results, too."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {key: rounded(each, digits) for key, each in value.items()}
    return [rounded(each, digits) for each in value] if isinstance(value, list | tuple) else value


def grid(title: str, headings: Sequence[str]) -> Table:
    """A table for a terminal, to be filled; all columns but the first are numbers."""
    made = Table(title=title)
    for heading in headings:
        made.add_column(heading, justify="right" if made.columns else "left", no_wrap=True)
    return made


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown; all columns but the first are numbers."""
    lines = [f"| {' | '.join(headings)} |", f"|---|{'---:|' * (len(headings) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
