r"""The access log: how an open becomes a line of it, and what a line says.

    # time  pid  outcome  microseconds  path  served
    2026-11-23T03:53:55.123456Z  4711  resident  38  train/cat/7.jpg  train/cat/9.jpg

Tabs separate the fields of a line. A line that begins with # says something about the log itself. In a path, a
backslash begins an escape: ``\\``, ``\t``, ``\n``, ``\r``, or ``\x`` and two hexadecimal digits for any other byte that
is not part of printable UTF-8. So each line has the same number of tabs, whatever the names of files are.
"""

import errno
import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from redoxfs.telemetry.outcome import Outcome

FIELDS = ("time", "pid", "outcome", "microseconds", "path", "served")

HEADER = b"# " + "\t".join(FIELDS).encode() + b"\n"

CONTINUED = b"# another daemon serves the mount now; it does not list the opens before this line\n"

IDLE = b"#\n"
"""There was no open for a while."""

BATCH = 64
"""Lines made between two other requests; they take about 0.3 ms. A read that gets fewer has all there are."""

NOTHING = b"-"
"""In place of a served path: the open failed."""

# Printable ASCII, but for the backslash: nearly all paths.
_PLAIN = re.compile(rb"[ !-\[\]-~]+")
_LETTERS = {"\\": b"\\\\", "\t": b"\\t", "\n": b"\\n", "\r": b"\\r"}
_ESCAPED = re.compile(rb"(?:[^\\]|\\(?:[\\tnr]|x[0-9a-f]{2}))*", re.DOTALL)
_ESCAPE = re.compile(rb"\\(?:([\\tnr])|x(..))")
_BYTES = {b"\\": b"\\", b"t": b"\t", b"n": b"\n", b"r": b"\r"}

_LOST = re.compile(rb"# lost ([0-9]{1,20}) lines: .*")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Access:
    """One open.

    ``time_ns``  when it had its reply, since the Unix epoch
    ``pid``      the thread that opened, as the kernel numbers it
    ``took_us``  from the receipt of the request to the reply
    ``path``     that was asked for, relative to the mount
    ``served``   of the file whose bytes it got, relative to the source; None: it failed
    ``error``    an errno; 0: it did not fail
    """

    time_ns: int
    pid: int
    outcome: Outcome
    took_us: int
    path: bytes
    served: bytes | None
    error: int = 0

    @property
    def outcome_word(self) -> str:
        """The outcome as the log has it: ``demand``, ``failed:EIO``."""
        label = self.outcome.label
        return f"{label}:{errno.errorcode.get(self.error, self.error)}" if self.error else label

    @property
    def fields(self) -> dict[str, object]:
        """The fields of a line but its time, for a line of the daemon's own log."""
        served = NOTHING if self.served is None else self.served
        paths = (path.decode("utf-8", "surrogateescape") for path in (self.path, served))
        return dict(zip(FIELDS[1:], (self.pid, self.outcome_word, self.took_us, *paths), strict=True))


class Lines:
    """Makes lines of accesses. Most have the second of the line before, whose text it keeps."""

    def __init__(self) -> None:
        self._second = -1
        self._text = b""

    def line(self, access: Access) -> bytes:
        """The line, with its end."""
        second, rest_ns = divmod(access.time_ns, 1_000_000_000)
        if second != self._second:
            self._second = second
            self._text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)).encode()
        return b"%s.%06dZ\t%d\t%s\t%d\t%s\t%s\n" % (
            self._text,
            rest_ns // 1000,
            access.pid,
            access.outcome_word.encode(),
            access.took_us,
            _shown(access.path),
            NOTHING if access.served is None else _shown(access.served),
        )


def lost_line(count: int) -> bytes:
    """Says that ``count`` lines are missing here."""
    return b"# lost %d lines: the reader was too slow\n" % count


def lost_of(line: bytes) -> int:
    """How many lines a line of the log says to be missing; 0 for all other lines."""
    found = _LOST.fullmatch(line.rstrip(b"\n"))
    return int(found[1]) if found else 0


def parse(line: bytes) -> Access:
    """What a line of an open says. Raises ValueError for any other line."""
    moment, pid, outcome, took, path, served = line.removesuffix(b"\n").split(b"\t")
    if not moment.endswith(b"Z"):
        raise ValueError("the time is not in UTC")
    since_epoch = datetime.fromisoformat(moment.decode("ascii")) - _EPOCH
    word, _, name = outcome.decode("ascii").partition(":")
    if word != word.lower() or (word == Outcome.FAILED.label) != bool(name):
        raise ValueError(f"{word!r} is not an outcome")
    try:
        kind = Outcome[word.upper()]
        error = 0 if not name else int(name) if name.isdigit() else int(getattr(errno, name))
    except (KeyError, AttributeError, TypeError):
        raise ValueError(f"{outcome!r} is not an outcome") from None
    if (kind is Outcome.FAILED) != (served == NOTHING):
        raise ValueError("only an open that failed has no served path")
    return Access(
        time_ns=((since_epoch.days * 86400 + since_epoch.seconds) * 1_000_000 + since_epoch.microseconds) * 1000,
        pid=_number(pid),
        outcome=kind,
        took_us=_number(took),
        path=unescaped(path),
        served=None if served == NOTHING else unescaped(served),
        error=error,
    )


def escaped(path: bytes) -> bytes:
    """A path as the log has it: without a tab, a line break, or a byte that is not printable UTF-8."""
    if _PLAIN.fullmatch(path):
        return path
    return b"".join(map(_escaped, path.decode("utf-8", "surrogateescape")))


def unescaped(text: bytes) -> bytes:
    """The inverse of `escaped`. Raises ValueError for what `escaped` does not return."""
    if b"\\" in text and not _ESCAPED.fullmatch(text):
        raise ValueError("a backslash begins no known escape")
    return _ESCAPE.sub(lambda found: _BYTES[found[1]] if found[1] else bytes.fromhex(found[2].decode()), text)


def _escaped(character: str) -> bytes:
    if character in _LETTERS:
        return _LETTERS[character]
    raw = character.encode("utf-8", "surrogateescape")
    return raw if character.isprintable() else b"".join(b"\\x%02x" % byte for byte in raw)


def _shown(path: bytes) -> bytes:
    # A file may have the name that stands for no path.
    return b"\\x2d" if path == NOTHING else escaped(path)


def _number(text: bytes) -> int:
    if not (text.isdigit() and len(text) <= 20):
        raise ValueError(f"{text!r} is not a number")
    return int(text)
