"""Results of benchmarks, as files and as text."""

import json
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.table import Table


def write(result: Any, path: Path) -> None:
    """Write a result as JSON."""
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


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
