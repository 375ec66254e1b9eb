"""HTML as text, and figures with their units. Everything that is not `Html` is escaped."""

import html
import math
from collections.abc import Iterable


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def escaped(text: object) -> Html:
    """Any text as HTML. Bytes of a path that are not UTF-8 are shown as \\udcXX, control characters as \\xXX.

    HTML has no control characters, and a terminal that shows the page would obey them.
    """
    if isinstance(text, Html):
        return text
    return Html(html.escape(str(text).translate(_CONTROLS).encode("utf-8", "backslashreplace").decode()))


def tag(name: str, *inner: object, **attributes: object) -> Html:
    """An element. ``class_`` and ``for_`` lose their underscore; other underscores become hyphens; None: left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{written}>{joined(inner)}</{name}>")


def joined(parts: Iterable[object]) -> Html:
    return Html("".join(escaped(part) for part in parts))


NONE = "–"  # noqa: RUF001 - a dash in a table
_THIN = "\N{NO-BREAK SPACE}"


def number(value: float | None, unit: str = "", digits: int = 3) -> str:
    """At least three digits of what is below 1,000, and the unit."""
    if value is None or not math.isfinite(value):
        return NONE
    size = abs(value)
    if value == int(value) or size >= 10 ** (digits - 1):
        text = f"{value:,.0f}"
    else:
        text = f"{value:.{max(0, digits - 1 - math.floor(math.log10(size)))}f}"
        if "." in text:
            text = text.rstrip("0").rstrip(".")
    return f"{text}{_THIN}{unit}" if unit else text


def compact(value: float) -> str:
    """A count, for the scale of a chart."""
    for unit, of in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= of:
            return number(value / of, unit)
    return number(value)


_BINARY = {1 << 40: "TiB", 1 << 30: "GiB", 1 << 20: "MiB", 1 << 10: "KiB", 1: "B"}


def size(value: float | None) -> str:
    """Bytes, in powers of 1024, as everywhere."""
    if value is None or not math.isfinite(value):
        return NONE
    of = binary_unit(value)
    return number(value / of, _BINARY[of])


def binary_unit(value: float) -> int:
    """The unit in which bytes are shown."""
    return next((of for of in _BINARY if abs(value) >= 0.9995 * of), 1)


def rate(value: float | None) -> str:
    """Bytes a second."""
    text = size(value)
    return text if text == NONE else f"{text}/s"


def share(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return NONE
    percent = 100 * value
    if 0 < percent < 0.1:
        return f"under 0.1{_THIN}%"
    return f"{percent:.1f}{_THIN}%" if percent < 99.95 and percent % 1 else f"{percent:.0f}{_THIN}%"


def seconds(value: float | None) -> str:
    """A time from microseconds to days."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0:
        return f"0{_THIN}s"
    if value < 0.9995e-3:
        return number(value / 1e-6, "µs")
    if value < 0.9995:
        return number(value / 1e-3, "ms")
    if value < 120:
        return number(value, "s")
    minutes = value / 60
    if minutes < 120:
        return number(minutes, "min")
    hours = minutes / 60
    return number(hours, "h") if hours < 72 else number(hours / 24, "days")
