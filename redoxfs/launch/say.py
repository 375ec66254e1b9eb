"""Lines on stderr for the person at the shell."""

import sys


def say(line: str) -> None:
    """Print a line to stderr: stdout is for a command's result."""
    print(line, file=sys.stderr, flush=True)
