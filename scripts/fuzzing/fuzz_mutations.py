"""Changes valid inputs of parsers: JSON by its structure, arrays by their values, everything else by its bytes.

An input is a mapping of parts, such as the files of a folder; a part's name ends with its kind: `.json`, `.npy`, or
anything else. All randomness comes from the generator that is given, so a number repeats a run.
"""

import ast
import json
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Parts = dict[str, bytes]

NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64,
    -(2**31), -(2**63), 10**30, 10**400, 0.5, -0.0, 1e308, -1e308, 5e-324, float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
TEXTS = (
    "", " ", "\x1b[2J\x1b]0;owned\x07", "\x9b31m", "a\nredoxfs: all is well", "\r", "\x7f", "\u202e\u2066", "\ud800",
    "\u2028", "\x00", "../../etc/passwd", "/", ".", "x" * 5000, "é" * 300, "<script>alert(1)</script>", "%s%n{0}", "-1",
    "1e999", "nan", "0x10", "[::1]:7420", "n[0-999999999]", "🙂",
)  # fmt: skip
BREAKING: tuple[Any, ...] = (float("inf"), float("nan"), 10**30, 10**400, -1, None, "", [], {}, "\x1b[2J")
"""What parsers forget first."""

NUMBERS_OF_BYTES = (1, 2, 4, 8)
MOST_BYTES = 1 << 18
"""An input grows no longer than this by changes."""
DEEP = 3000


def mutated(parts: Parts, others: Sequence[Parts], words: Sequence[bytes], draw: random.Random) -> Parts:
    """The parts with one change or a few. ``others`` are inputs to take pieces from, ``words`` what the format has."""
    changed = dict(parts)
    for _ in range(min(8, 1 + int(draw.expovariate(0.9)))):
        # A description says more than one of its many arrays.
        described = [name for name in changed if name.endswith(".json")]
        name = draw.choice(described if described and draw.random() < 0.4 else [*changed])
        other = draw.choice(others).get(name, b"") if others else b""
        changed[name] = _change(name, changed[name], other, words, draw)[:MOST_BYTES]
    return changed


def _change(name: str, data: bytes, other: bytes, words: Sequence[bytes], draw: random.Random) -> bytes:
    if draw.random() < 0.85:
        try:
            if name.endswith(".json"):
                return _of_json(data, words, draw)
            if name.endswith(".npy"):
                return _of_array(data, draw)
        except Exception:  # it is no JSON or no array any more, too deep, or has a number that is too large
            return _of_bytes(data, other, words, draw)
    return _of_bytes(data, other, words, draw)


# JSON


def _of_json(data: bytes, words: Sequence[bytes], draw: random.Random) -> bytes:
    if draw.random() < 0.01:
        deep = draw.choice(words or (b"",)) + b"["
        return draw.choice((b"[" * DEEP + b"]" * DEEP, b'{"a":' * DEEP + b"1" + b"}" * DEEP, deep * DEEP))
    value = json.loads(data)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        value = _with_change(value, draw)
    return json.dumps(value, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")


def _with_change(value: Any, draw: random.Random) -> Any:
    places: list[tuple[Any, Any]] = []
    _collect(value, places)
    if not places:
        return _value(value, draw)
    # Of all places, or on the way down: else the few fields at the top would be lost among those of long lists.
    inner, key = draw.choice(places) if draw.random() < 0.5 else _place(value, draw)
    way = draw.randrange(8)
    if way == 0:
        del inner[key]
    elif way == 1 and isinstance(inner, dict):
        inner[draw.choice(TEXTS)] = inner.pop(key) if draw.random() < 0.5 else inner[key]
    elif way == 1:
        inner.insert(draw.randrange(len(inner) + 1), inner[key])
    elif way == 2:
        source, name = draw.choice(places)
        inner[key] = json.loads(json.dumps(source.get(name) if isinstance(source, dict) else _at(source, name)))
    elif way == 3 and isinstance(inner, list):
        inner *= draw.choice((0, 2, 50))
    else:
        inner[key] = _value(inner[key], draw)
    return value


def _place(value: Any, draw: random.Random) -> tuple[Any, Any]:
    while True:
        key = draw.choice([*value]) if isinstance(value, dict) else draw.randrange(len(value))
        inner = value[key]
        if not isinstance(inner, dict | list) or not inner or draw.random() < 0.3:
            return value, key
        value = inner


def _at(inner: list[Any], at: int) -> Any:
    return inner[at] if at < len(inner) else None


def _collect(value: Any, places: list[tuple[Any, Any]]) -> None:
    if isinstance(value, dict | list):
        keys = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            places.append((value, key))
            _collect(value[key], places)


def _value(value: Any, draw: random.Random) -> Any:
    """Another value: near this one, of another type, or of those that break parsers."""
    way = draw.randrange(9)
    if way < 3 and isinstance(value, int) and not isinstance(value, bool):
        return draw.choice((value + 1, value - 1, -value, value * 1000, value << 32, float(value)))
    if way < 3 and isinstance(value, str):
        at = draw.randrange(len(value) + 1)
        return value[:at] + draw.choice(TEXTS) + value[at + draw.randrange(3) :]
    if way == 3:
        return draw.choice((None, True, False, [], {}, [[]], [value], {"": value}, str(value)[:1000]))
    if way in (5, 6):
        return draw.choice(BREAKING)
    if way == 4:
        return _nested(draw.choice((5, 100, 800)))
    return draw.choice(NUMBERS if draw.random() < 0.5 else TEXTS)


def _nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = {"a": value} if level % 2 else [value]
    return value


# Arrays


def _of_array(data: bytes, draw: random.Random) -> bytes:
    """A .npy with other values, another length, shape or type; its header stays that of numpy."""
    head, values = _split_array(data)
    width = int(str(head["descr"])[2:] or 1)
    count = len(values) // width
    way = draw.randrange(10)
    if way == 0:
        head["descr"] = draw.choice(("<i8", "<i4", "|u1", "<u8", ">i4", "<f8", "<U4", "|O", "|V8", "<M8[ns]"))
    elif way == 1:
        head["shape"] = draw.choice(((), (count,), (count, 1), (1, count), (0,), (2**40,), (-1,), (2**31, 2**31)))
    elif way == 2:
        values = values[: width * draw.randrange(count + 1)]
        head["shape"] = (len(values) // width, *head["shape"][1:])
    elif way == 3:
        values += values[: width * draw.randrange(count + 1)]
        head["shape"] = (len(values) // width, *head["shape"][1:])
    elif count:
        changed = bytearray(values)
        for _ in range(draw.choice((1, 1, 1, 2, 5, count))):
            at, number = width * draw.randrange(count), draw.choice(NUMBERS[:19])
            if draw.random() < 0.5:
                near = int.from_bytes(changed[at : at + width], "little") + draw.choice((-1, 1, -2, 2, 100))
                number = near
            changed[at : at + width] = (int(number) & ((1 << 8 * width) - 1)).to_bytes(width, "little")
        values = bytes(changed)
    return joined_array(head, values)


def _split_array(data: bytes) -> tuple[dict[str, Any], bytes]:
    if data[:8] != b"\x93NUMPY\x01\x00":
        raise ValueError
    (length,) = struct.unpack_from("<H", data, 8)
    head = ast.literal_eval(data[10 : 10 + length].decode("latin1"))
    if not isinstance(head, dict) or not isinstance(head["shape"], tuple):
        raise ValueError  # noqa: TRY004 - all that is no array is one case
    return head, data[10 + length :]


def joined_array(head: Mapping[str, Any], values: bytes) -> bytes:
    """A .npy of version 1."""
    text = repr(dict(head)).encode("latin1", "replace")
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) & 0xFFFF) + text + values


# Bytes


def _of_bytes(data: bytes, other: bytes, words: Sequence[bytes], draw: random.Random) -> bytes:
    at = draw.randrange(len(data) + 1)
    end = min(len(data), at + draw.choice((1, 2, 4, 8, 64, len(data))))
    return draw.choice(_WAYS)(data, at, end, other, words, draw)


_Way = Callable[[bytes, int, int, bytes, Sequence[bytes], random.Random], bytes]


def _flip(data: bytes, at: int, _end: int, _other: bytes, _words: Sequence[bytes], draw: random.Random) -> bytes:
    if at == len(data):
        return data
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]


def _number(data: bytes, at: int, _end: int, _other: bytes, _words: Sequence[bytes], draw: random.Random) -> bytes:
    width = draw.choice(NUMBERS_OF_BYTES)
    number = int(draw.choice(NUMBERS[:19])) & ((1 << 8 * width) - 1)
    return data[:at] + number.to_bytes(width, draw.choice(("little", "big"))) + data[at + width :]


def _remove(data: bytes, at: int, end: int, _other: bytes, _words: Sequence[bytes], _draw: random.Random) -> bytes:
    return data[:at] + data[end:]


def _repeat(data: bytes, at: int, end: int, _other: bytes, _words: Sequence[bytes], draw: random.Random) -> bytes:
    return data[:at] + data[at:end] * draw.choice((2, 3, 100)) + data[end:]


def _noise(data: bytes, at: int, end: int, _other: bytes, _words: Sequence[bytes], draw: random.Random) -> bytes:
    return data[:at] + draw.randbytes(min(end - at, 64)) + data[end:]


def _word(data: bytes, at: int, end: int, _other: bytes, words: Sequence[bytes], draw: random.Random) -> bytes:
    word = draw.choice(words) if words and draw.random() < 0.7 else draw.choice(TEXTS).encode("utf-8", "surrogatepass")
    return data[:at] + word + data[draw.choice((at, end)) :]


def _splice(data: bytes, at: int, end: int, other: bytes, _words: Sequence[bytes], draw: random.Random) -> bytes:
    begin = draw.randrange(len(other) + 1)
    return data[:at] + other[begin : begin + draw.choice((4, 32, len(other)))] + data[end:]


_WAYS: tuple[_Way, ...] = (_flip, _flip, _number, _remove, _repeat, _noise, _word, _word, _splice)
