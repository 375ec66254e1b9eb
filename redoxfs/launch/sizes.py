"""Amounts of memory, times and counts: as people write them, and as they read them."""

import math
import re
import shlex
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Decimal

from redoxfs.launch.errors import UsageError

_LETTERS = "kmgtp"

_MOST_BYTES = 2**63 - 1
"""What file systems, the kernel and arrays of numbers can count."""

_TIMES = ((1e-6, "us", 999.5), (1e-3, "ms", 999.5), (1.0, "s", 99.5), (60.0, "min", 99.5), (3600.0, "h", math.inf))
"""Units of time in seconds, and how many of each are told in the next."""
_SIZE = re.compile(r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*(?:(%)|([kmgtp]?)(i?)(b?))\s*", re.ASCII | re.IGNORECASE)


def parse_size(text: str, available_bytes: int | None, option: str = "") -> int:
    """The bytes of "4GiB", "2G", "1.5 GB", "10%" (of `available_bytes`) or "1048576". At least 1, at most 2^63 - 1.

    With None available, there is nothing to be a share of.

    One letter and the IEC names are powers of 1024; KB, MB, GB, TB and PB powers of 1000. Raises UsageError, whose text
    names the ``option``.
    """
    shown = f"{option} {shlex.quote(text)}" if option else repr(text)
    match = _SIZE.fullmatch(text)
    if match is None or (match[4] and not (match[3] and match[5])) or (match[2] and available_bytes is None):
        share = "" if available_bytes is None else ", 10%"
        raise UsageError(f"{shown}: not a size; write it like 4GiB, 512MiB, 2G{share} or plain bytes")
    number, percent, letter, binary, byte = match.groups()
    value = Decimal(number)
    if percent:
        assert available_bytes is not None
        if value > 100:
            raise UsageError(f"{shown}: more than all there is; write 100% or less")
        size = value * available_bytes / 100
    else:
        base = 1000 if byte and letter and not binary else 1024
        size = value * base ** (_LETTERS.index(letter.lower()) + 1 if letter else 0)
    if size < 1:
        raise UsageError(f"{shown}: less than one byte")
    if size > _MOST_BYTES:
        raise UsageError(f"{shown}: more than a file or a memory can have; write less than 8192PiB")
    return int(size)


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """A count with its noun: "1 file", "1,200 files". ``plural`` is for nouns that take more than an s."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def format_bytes(size: int) -> str:
    """`size` for people, to a tenth of the unit: "1.5 GiB"."""
    return _formatted(size, ROUND_HALF_EVEN, " ")


def format_needed(size: int) -> str:
    """`size` as a value to type for --memory, "1.5GiB": never less than `size`, whatever the rounding."""
    return _formatted(size, ROUND_CEILING, "").replace(".0", "")


def format_seconds(seconds: float) -> str:
    """A time for people, to a tenth of a second."""
    if not seconds:
        return "0 s"
    return f"{seconds:,.1f} s" if seconds >= 0.1 else "under 0.1 s"


def format_time(seconds: float, digits: int = 3) -> str:
    """A long or a short time for people, with ``digits`` at most: "87 us", "1.5 ms", "12 s", "3.2 min", "1.5 h".

    Nothing is shorter than 1 us. Raises ValueError if ``seconds`` is no finite number.
    """
    if not math.isfinite(seconds):
        raise ValueError(f"{seconds} is no time")
    seconds = max(seconds, 1e-6)
    value, unit = next((seconds / of, unit) for of, unit, below in _TIMES if seconds / of < below)
    places = max(0, digits - len(str(int(value))))
    shown = f"{value:,.{places}f}"
    return f"{shown.rstrip('0').rstrip('.') if places else shown} {unit}"


def _formatted(size: int, rounding: str, space: str) -> str:
    power = 0
    value = Decimal(size)
    for power in range(len(_LETTERS) + 1):
        value = (Decimal(size) / 1024**power).quantize(Decimal("0.1") if power else Decimal(1), rounding)
        if value < 1024:
            break
    unit = f"{_LETTERS[power - 1].upper()}iB" if power else "B"
    return f"{value}{space}{unit}"
