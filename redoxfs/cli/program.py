"""From argv to an exit code: choose the verb, run it, and turn whatever it raises into one line.

A traceback is for the person who debugs redoxfs, who asks for it with REDOXFS_DEBUG=1; everybody else gets
what was found, where, and what to type next.
"""

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import TextIO

from redoxfs.cli.arguments import parser
from redoxfs.cli.exits import code_of, line_of
from redoxfs.launch.errors import UsageError

# Each verb is a module with a `run(arguments) -> int`, imported when chosen: mount and inspect pull in numpy.
_VERBS = {
    "mount": "redoxfs.cli.mount",
    "umount": "redoxfs.cli.umount",
    "status": "redoxfs.cli.status",
    "cluster": "redoxfs.cli.cluster",
    "trace": "redoxfs.cli.trace",
    "state": "redoxfs.cli.state",
    "nodes": "redoxfs.cli.nodes",
    "inspect": "redoxfs.cli.inspect",
    "pack": "redoxfs.cli.pack",
    "verify": "redoxfs.cli.verify",
    "simulate": "redoxfs.cli.simulate",
}


def run(argv: Sequence[str] | None = None) -> int:
    """Parse `argv` (default: the process's own) and run its verb. Never raises an Exception."""
    _let_any_name_through(sys.stdout, "surrogateescape")
    try:
        return _dispatch(argv)
    except BrokenPipeError:
        # Whoever read our output has seen enough (`| head`). Python would complain again when it flushes at
        # exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stdout.fileno())
        return 0
    except (Exception, KeyboardInterrupt) as error:  # the last place that can turn a bug into one line
        if os.environ.get("REDOXFS_DEBUG") == "1":
            traceback.print_exc()
        print(line_of(error), file=sys.stderr)
        return code_of(error)


def _dispatch(argv: Sequence[str] | None) -> int:
    arguments = parser().parse_args(argv)
    if arguments.version:
        from redoxfs import __version__

        print(f"redoxfs {__version__}")
        return 0
    if arguments.verb is None:
        *others, last = _VERBS
        raise UsageError(f"say what to do: {', '.join(others)} or {last} (try: redoxfs --help)")
    # numpy's linear algebra, which nothing here uses, would start a thread for each core before our forks.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    verb = importlib.import_module(_VERBS[arguments.verb])
    code: int = verb.run(arguments)
    sys.stdout.flush()
    return code


def _let_any_name_through(stream: TextIO, errors: str) -> None:
    """File names are bytes; print those that are no text as the bytes they are instead of failing on them."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors=errors)
