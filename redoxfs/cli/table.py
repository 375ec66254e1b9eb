"""Rows of (name, value) on stdout, as a table.

On a terminal, long values fold at its width. Elsewhere nothing folds, because `grep` cannot find a path in two lines.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from redoxfs.launch.say import plain

if TYPE_CHECKING:
    from rich.table import Table

# Wider than any row; the table itself is only as wide as its widest.
_UNFOLDED_COLUMNS = 1 << 16


def print_table(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """Print `rows` under `title`. Values are text, never markup nor what a terminal obeys."""
    title, rows = plain(title), [(plain(name), plain(value)) for name, value in rows]
    if (
        rows
        and not sys.stdout.isatty()
        and sys.stdout.encoding.lower() == "utf-8"
        and _is_plain(title, *map("".join, rows))
    ):
        print("\n".join(_plain(title, rows)))
    else:
        _print_rich(title, rows)


def _is_plain(*texts: str) -> bool:
    """Whether each character takes one column."""
    return all(text.isascii() and text.isprintable() for text in texts)


def _plain(title: str, rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    """What rich prints off a terminal, without rich, whose import takes longer than all else of a short command."""
    names, values = (max(len(row[column]) for row in rows) for column in (0, 1))
    yield title
    yield f"┌─{'─' * names}─┬─{'─' * values}─┐"
    for name, value in rows:
        yield f"│ {name:{names}} │ {value:{values}} │"
    yield f"└─{'─' * names}─┴─{'─' * values}─┘"


def _print_rich(title: str, rows: Iterable[tuple[str, str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False)
    # Both fold: on a narrow terminal, names that did not would leave no room for values.
    table.add_column(style="bold", overflow="fold")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(name), Text(value))
    show_table(title, table)


def show_table(title: str, table: "Table") -> None:
    """Print a table of rich, under a title."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console = Console(width=_UNFOLDED_COLUMNS)
    # A title of the table itself would be padded with blanks to its width, and folded at it.
    console.print(Text(title, style="table.title"))
    console.print(table)
