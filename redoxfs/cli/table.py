"""Rows of (name, value) on stdout, as a table.

On a terminal, long values fold at its width. Elsewhere nothing folds, because `grep` cannot find a path in two lines.
"""

from collections.abc import Iterable

# Wider than any row; the table itself is only as wide as its widest.
_UNFOLDED_COLUMNS = 1 << 16


def print_table(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """Print `rows` under `title`. Values are text, never markup."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(name), Text(value))
    console = Console()
    if not console.is_terminal:
        console = Console(width=_UNFOLDED_COLUMNS)
    # A title of the table itself would be padded with blanks to its width, and folded at it.
    console.print(Text(title, style="table.title"))
    console.print(table)
