"""From argv to an exit code: choose the verb, run it, and turn any exception into one line.

A traceback is for debugging redoxfs: REDOXFS_DEBUG=1 prints it. Everybody else gets one line with what was found,
where, and what to type next.
"""

import gc
import importlib
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from redoxfs.cli.arguments import VERBS, parse
from redoxfs.cli.exits import reported
from redoxfs.launch.errors import UsageError


def run(argv: Sequence[str] | None = None) -> int:
    """Parse `argv` (default: the process's own) and run its verb. Never raises an Exception."""
    _let_any_name_through(sys.stdout, "surrogateescape")
    try:
        return _dispatch(argv)
    except BrokenPipeError:
        # The reader of our output has closed the pipe (`| head`). Python would complain again at its last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stdout.fileno())
        return 0
    except (Exception, KeyboardInterrupt) as error:  # the last place where a bug can become one line
        return reported(error)


def _dispatch(argv: Sequence[str] | None) -> int:
    command = parse(argv)
    if command.version:
        from redoxfs import __version__

        print(f"redoxfs {__version__}")
        return 0
    if command.verb is None:
        raise UsageError(f"usage: redoxfs VERB …, where VERB is one of {', '.join(VERBS)} (see redoxfs --help)")
    # numpy's linear algebra, unused here, would start a thread for each core before our forks.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Each verb is a module with a `run(options) -> int`, imported when chosen: mount and inspect load numpy.
    verb = importlib.import_module(f"redoxfs.cli.{command.verb.replace('-', '_')}")
    if not gc.isenabled():
        # Modules never become garbage. Left out of all collections, they also stay shared with what we fork.
        gc.freeze()
        gc.enable()
    code: int = verb.run(command.options)
    sys.stdout.flush()
    return code


def _let_any_name_through(stream: TextIO, errors: str) -> None:
    """Print file names that are not valid text as the bytes they are, instead of failing on them."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors=errors)
