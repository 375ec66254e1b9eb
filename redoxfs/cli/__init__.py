"""The command line: parse, call, print.

Only `main` is public. Each verb is a module. It imports the rooms below only when it runs, so that `--help` and a
mistyped option answer at once.
"""

from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit codes are the table in `redoxfs.cli.exits`."""
    from redoxfs.cli.program import run

    return run(argv)
