"""From argv to an exit code: choose the verb, run it, and turn any exception into one line.

A traceback is for debugging redoxfs: REDOXFS_DEBUG=1 prints it. Everybody else gets one line with what was found,
where, and what to type next.

If nobody reads stdout, a command ends with the code for that, as others do, unless it has found something wrong.
"""

import codecs
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from typing import TextIO, cast

from redoxfs.cli.arguments import VERBS, parse
from redoxfs.cli.exits import UNREAD, reported
from redoxfs.launch.errors import DestinationError, UsageError
from redoxfs.launch.say import Watched, discard, not_written


def run(argv: Sequence[str] | None = None) -> int:
    """Parse `argv` (default: the process's own) and run its verb. Never raises an Exception."""
    _open_what_is_closed()
    _let_any_text_through(sys.stdout)
    whole, stdout = sys.stdout, Watched(sys.stdout)
    sys.stdout = cast(TextIO, stdout)
    try:
        code = _dispatch(argv)
    except SystemExit as end:
        if end.code:
            # That of rich, where nobody reads stdout. It has discarded the rest.
            return UNREAD
        # That of --help.
        raise SystemExit(_flushed(0, stdout)) from None
    except (Exception, KeyboardInterrupt) as error:  # the last place where a bug can become one line
        # Another error of the same kind may be a bug, about a socket.
        code = _not_written(stdout.failure) if error is stdout.failure else reported(error)
    finally:
        sys.stdout = whole
    return _flushed(code, stdout)


def _flushed(code: int, stdout: Watched) -> int:
    """The exit code, once all is written. Python would complain of what cannot be, and end with another one."""
    try:
        stdout.flush()
    except OSError:
        discard(sys.stdout)
    if stdout.failure is not None:
        code = code or _not_written(stdout.failure)
    try:
        sys.stderr.flush()
    except OSError:
        discard(sys.stderr)
    return code


def _not_written(error: OSError) -> int:
    """The exit code where stdout cannot be written, once stderr says why, unless its reader has gone away."""
    return UNREAD if isinstance(error, BrokenPipeError) else reported(DestinationError(not_written(error)))


def _open_what_is_closed() -> None:
    """A command may be started without stdout or stderr (`>&-`). Then nobody wants to know what it prints. One without
    stdin has nothing to read there."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115 - until the process ends
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - until the process ends


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
        import signal

        # Some programs that start others ignore the ends of children. Nobody could then wait for ours.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if os.getpid() == 1:
            # The kernel keeps a signal from the first process of a container that has no handler for it.
            signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
        # Modules never become garbage. Left out of all collections, they also stay shared with what we fork.
        gc.freeze()
        gc.enable()
    return verb.run(command.options)


def _let_any_text_through(stream: TextIO) -> None:
    """Print file names that are not valid text as the bytes they are, and what the terminal's encoding lacks as its
    escape, instead of failing on them."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        codecs.register_error(_ANY_TEXT, _any_text)
        reconfigure(errors=_ANY_TEXT)


_ANY_TEXT = "redoxfs"


def _any_text(error: UnicodeError) -> tuple[bytes, int]:
    assert isinstance(error, UnicodeEncodeError)
    character = error.object[error.start]
    if "\udc80" <= character <= "\udcff":
        return os.fsencode(character), error.start + 1
    # The only other character that our own words have, in every usage.
    return ("..." if character == "…" else character).encode("ascii", "backslashreplace"), error.start + 1
