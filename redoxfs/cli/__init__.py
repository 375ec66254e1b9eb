"""The command line: parse, call, print.

`main` is all that is public. What it does lives in one module for each verb; they import the rooms below only
when they run, so that `--help` and a mistyped option answer at once.
"""

from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit codes are the table in `redoxfs.cli.exits`."""
    from redoxfs.cli.program import run

    return run(argv)
