"""Lines for the person at the shell, on stderr and on stdout.

They quote names of files, and what mounts, servers and packed datasets say, which may belong to somebody else. So a
line has no character that a terminal obeys, or that would begin another line.

A reader may close its end of a pipe (`| head`), and the disk of a file may be full. Where stderr cannot be written, a
command goes on in silence: its lines there are not what it is for. What happens where stdout cannot:
`redoxfs.cli.program`.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO


def plain(text: str) -> str:
    """A text without control characters: each is shown as Python writes it, such as \\x1b.

    Bytes of a file name that are not valid text pass, as the bytes they are.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isprintable() or "\udc80" <= c <= "\udcff" else repr(c)[1:-1] for c in text)


LONGEST_CHARACTERS = 4000
"""A line with two names of the longest kind is shorter, unless most of their characters are written as escapes."""


def cut(line: str) -> str:
    """A line without its middle, if what it quotes is too long for anybody to read."""
    half = LONGEST_CHARACTERS // 2
    return line if len(line) <= LONGEST_CHARACTERS else f"{line[:half]} … {line[-half:]}"


def show(line: str) -> None:
    """Print a line of a command's result to stdout."""
    print(plain(line), flush=True)


def _print(line: str) -> None:
    print_error(cut(plain(line)))


def print_error(text: str) -> None:
    """Print a text to stderr as it is, if anybody reads that."""
    try:
        print(text, file=sys.stderr, flush=True)
    except BrokenPipeError:
        discard(sys.stderr)
    except OSError:
        # A full disk may have room for later lines.
        pass


def discard(stream: TextIO) -> None:
    """Let what is written to a stream that nobody reads go nowhere, also what it has kept, which it writes again."""
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class Watched:
    """A stream that knows by which error it could last not be written: the error itself does not say what it is about.

    argparse drops such errors.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.failure: OSError | None = None

    def write(self, text: str) -> int:
        with self._failing():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._failing():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.failure = error
            raise


def not_written(error: OSError) -> str:
    """Why stdout could not be written."""
    return f"the output cannot be written: {error.strerror}"


@contextmanager
def read_or_not(*, goes_on: bool = True) -> Iterator[None]:
    """The block prints to stdout. If that cannot be written, the block ends early, and the command goes on; unless
    ``goes_on``, the block raises the OSError, as without this."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if not goes_on:
            raise
        discard(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            say(not_written(error))


_printer: Callable[[str], None] = _print


def say(line: str) -> None:
    """Print a line to stderr: stdout is for a command's result."""
    _printer(line)


def say_by(printer: Callable[[str], None]) -> None:
    """From now on, pass each line to ``printer``: where stderr is a log of another format."""
    global _printer
    _printer = printer
