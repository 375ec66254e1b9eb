"""Lines on stderr for the person at the shell."""

import sys
from collections.abc import Callable


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


_printer: Callable[[str], None] = _print


def say(line: str) -> None:
    """Print a line to stderr: stdout is for a command's result."""
    _printer(line)


def say_by(printer: Callable[[str], None]) -> None:
    """From now on, pass each line to ``printer``: where stderr is a log of another format."""
    global _printer
    _printer = printer
