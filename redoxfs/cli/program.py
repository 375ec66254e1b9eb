"""From argv to an exit code: choose the verb, run it, and turn any exception into one line.

A traceback is for debugging redoxfs: REDOXFS_DEBUG=1 prints it. Everybody else gets one line with what was found,
where, and what to type next.

If nobody reads stdout, a command ends with the code for that, as others do, unless it has found something wrong.
"""

import gc
import importlib
import io
import os
import select
import sys
from collections.abc import Sequence
from typing import TextIO

from redoxfs.cli.arguments import VERBS, parse
from redoxfs.cli.exits import UNREAD, reported
from redoxfs.launch.errors import CommandError, DestinationError, UsageError
from redoxfs.launch.say import discard


def run(argv: Sequence[str] | None = None) -> int:
    """Parse `argv` (default: the process's own) and run its verb. Never raises an Exception."""
    _open_what_is_closed()
    _let_any_name_through(sys.stdout, "surrogateescape")
    try:
        code = _dispatch(argv)
    except SystemExit as end:
        if end.code:
            # That of rich, where nobody reads stdout. It has discarded the rest.
            return UNREAD
        # That of --help.
        raise SystemExit(_flushed(0)) from None
    except BrokenPipeError as error:
        # It may as well be a bug, about a socket.
        code = UNREAD if _is_unread(sys.stdout) else reported(error)
    except (Exception, KeyboardInterrupt) as error:  # the last place where a bug can become one line
        code = reported(_of_stdout(error) or error)
    return _flushed(code)


def _flushed(code: int) -> int:
    """The exit code, once all is written. Python would complain of what cannot be, and end with another one."""
    try:
        sys.stdout.flush()
    except OSError as error:
        discard(sys.stdout)
        code = code or (UNREAD if isinstance(error, BrokenPipeError) else reported(_not_written(error)))
    try:
        sys.stderr.flush()
    except OSError:
        discard(sys.stderr)
    return code


def _of_stdout(error: BaseException) -> CommandError | None:
    """Why stdout cannot be written, if that is what ``error`` says: a disk that is full, for example."""
    if not isinstance(error, OSError) or error.filename is not None:
        return None
    buffer = getattr(sys.stdout, "buffer", None)
    try:
        # What could not be written is still there, or is lost where Python has no buffer (PYTHONUNBUFFERED).
        if isinstance(buffer, io.RawIOBase):
            buffer.write(b"\n")
        sys.stdout.flush()
    except OSError as again:
        return _not_written(error) if again.errno == error.errno else None
    return None


def _not_written(error: OSError) -> CommandError:
    return DestinationError(f"the output cannot be written: {error.strerror}")


def _is_unread(stream: TextIO) -> bool:
    """Whether the reader of a stream has closed its end of the pipe, or of the connection."""
    looking = select.poll()
    looking.register(stream, 0)
    return bool(looking.poll(0))


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
        # Modules never become garbage. Left out of all collections, they also stay shared with what we fork.
        gc.freeze()
        gc.enable()
    code: int = verb.run(command.options)
    return code


def _let_any_name_through(stream: TextIO, errors: str) -> None:
    """Print file names that are not valid text as the bytes they are, instead of failing on them."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors=errors)
