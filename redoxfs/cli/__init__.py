"""The command line: parse, call, print.

Only `main` is public. Each verb is a module. It imports the rooms below only when it runs, so that `--help` and a
mistyped option answer at once.
"""

import gc
import sys

from redoxfs import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: "Sequence[str] | None" = None) -> int:
    """Run one command; the exit codes are the table in `redoxfs.cli.exits`."""
    if argv is None:
        # Imports make no garbage, and so many objects that the collector would go through them again and again.
        gc.disable()
    try:
        from redoxfs.cli.program import run
    except KeyboardInterrupt:
        # Imports may take seconds on a network filesystem.
        print("redoxfs: interrupted", file=sys.stderr)
        return 130
    code = run(argv)
    if argv is None:
        import signal

        # The command is done, and has said so. A Ctrl-C from now on would break off the interpreter's end.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return code
