"""Trees of files in text tables: one line for a tree, and a line for each pattern of its files."""

from __future__ import annotations

import itertools
import random
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

Draw = Callable[[random.Random], object]

_CONSTANT = re.compile(r"([A-Z]\w*) = (.*)")
_FIELD = re.compile(r"([A-Za-z](?:,?\w)*)=(.*)")
_EXPRESSION = re.compile(r"[\w.]*\(|\[")
_IN_CAPITALS = re.compile(r"\{[A-Z][^{}]*\}")


class Row(NamedTuple):
    """A tree: what its line says of it, and the paths of its files."""

    name: str
    fields: dict[str, str]
    files: list[str]


def rows_of(path: Path, functions: Mapping[str, object] | None = None) -> list[Row]:
    """The trees of a table. Two blanks divide cells, and a line with eight blanks in front continues the one before.

        WORD = …                                  a constant, for the lines below
        NAME  FIELD=TEXT  …                       a tree
            PATTERN  PATTERN  …  FIELD=VALUES  …  files: the patterns with every combination of the fields' values

    A pattern is an f-string of its fields. Values are a number of values from 0; words, separated by bars if a word has
    blanks; an expression of Python, which may call ``functions``; or a draw: a function that returns a new value for
    each combination, in any directory. Each value of a field `a,b` has two words. A field in capitals repeats the line
    for each of its values, so that draws begin again.

    Raises:
        ValueError: a line would be lost, or a part of it: the tests would see less than the table says.
    """
    rows: dict[str, Row] = {}
    files: list[str] = []
    known: dict[str, object] = {**(functions or {})}
    for line in path.read_text().replace("\n        ", "  ").splitlines():
        constant = _CONSTANT.fullmatch(line)
        cells = re.split("  +", line.strip())
        matches = [match for match in map(_FIELD.fullmatch, cells) if match is not None]
        fields = {match[1]: match[2] for match in matches}
        others = [cell for cell in cells if _FIELD.fullmatch(cell) is None]
        if not line or line.startswith("#"):
            continue
        if constant is not None:
            known[constant[1]] = " ".join(constant[2].split())
            continue
        fault = "a field twice" if len(fields) < len(matches) else ""
        if line.startswith("    "):
            added = [*_files(others, fields, known)]
            twice = [file for file, times in Counter(files + added).items() if times > 1]
            fault = fault or ("" if added else "no file") or (f"{twice[0]} twice" if twice else "")
            files.extend(added)
        else:
            name, *rest = others
            fault = fault or (f"{rest[0]!r} beside its name" if rest else "") or ("two rows" if name in rows else "")
            files = []
            rows[name] = Row(name, fields, files)
        if fault:
            raise ValueError(f"{path.name}: {[*rows][-1]} has {fault}: {line.strip()}")
    return [*rows.values()]


def _files(patterns: list[str], fields: dict[str, str], known: dict[str, object]) -> Iterator[str]:
    repeating = {key: text for key, text in fields.items() if key.isupper()}
    draws = {key: text for key, text in fields.items() if text.partition("(")[0] in _DRAWS}
    spread = {key: text for key, text in fields.items() if key not in repeating | draws}
    for outer in _combinations(repeating, known):
        here = known | outer
        several = tuple(_IN_CAPITALS.sub(partial(_filled_one, here), each) for each in patterns)
        drawn = {key: _values(text, here) for key, text in draws.items()}
        # Seeded by this line alone, so that other lines do not change its files.
        seed = (several, [(key, _values(text, here)) for key, text in spread.items()]) if draws else None
        chance = random.Random(repr(seed))
        for chosen in _combinations(spread, here):
            one = chosen | {key: draw(chance) for key, draw in drawn.items()}
            yield from (_filled(pattern, here | one) for pattern in several)


def _combinations(fields: Mapping[str, str], known: dict[str, object]) -> Iterator[dict[str, Any]]:
    if not fields:
        yield {}
        return
    (key, text), *others = fields.items()
    names = key.split(",")
    values = _values(text, known)
    if isinstance(values, int):
        values = range(values)
    elif isinstance(values, str):
        values = values.split("|") if "|" in values or len(names) > 1 else values.split()
    for value in values:
        words: Iterable[object] = (value,)
        if len(names) > 1:
            words = map(_number_or_word, value.split()) if isinstance(value, str) else value
        chosen = dict(zip(names, words, strict=True))
        for rest in _combinations(dict(others), known | chosen):
            yield chosen | rest


def _number_or_word(word: str) -> int | str:
    return int(word) if re.fullmatch("0|[1-9][0-9]*", word) else word


def _values(text: str, known: dict[str, object]) -> Any:
    if _EXPRESSION.match(text):
        return eval(text, dict(_DRAWS), known)
    return int(text) if text.isdigit() else known.get(text, text)


def _filled_one(values: dict[str, object], field: re.Match[str]) -> str:
    return _filled(field[0], values)


def _filled(pattern: str, values: dict[str, object]) -> str:
    return str(eval(_compiled(pattern), {}, values))


@cache
def _compiled(pattern: str) -> CodeType:
    return compile(f"f{pattern!r}", pattern, "eval")


def through(start: int = 0, step: int = 1) -> Draw:
    """A number that continues across directories."""
    count = itertools.count(start, step)
    return lambda _chance: next(count)


def some(below: int, start: int = 0) -> Draw:
    """Numbers in random order, each once."""
    given: set[int] = set()

    def draw(chance: random.Random) -> int:
        while (number := chance.randrange(start, below)) in given:
            pass
        given.add(number)
        return number

    return draw


def hexes(digits: int) -> Draw:
    return lambda chance: f"{chance.getrandbits(4 * digits):0{digits}x}"


def uuids() -> Draw:
    return lambda chance: str(uuid.UUID(int=chance.getrandbits(128), version=4))


def letters(count: int, alphabet: str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789") -> Draw:
    """Names without meaning, such as video ids."""
    return lambda chance: "".join(chance.choices(alphabet, k=count))


def flickr() -> Draw:
    """A photo's name at Flickr: its number and its secret."""
    return lambda chance: f"{chance.randrange(10**7, 10**10)}_{chance.getrandbits(40):010x}"


_DRAWS = {draw.__name__: draw for draw in (through, some, hexes, uuids, letters, flickr)}
