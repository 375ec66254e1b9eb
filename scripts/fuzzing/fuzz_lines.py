"""Which lines and which steps from line to line of chosen functions have run: by sys.settrace, in one thread."""

import importlib.util
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

Line = tuple[str, int]
Functions = Mapping[str, Iterable[str]]
"""Of each module, the names of functions and classes; one that ends with "*" begins like that."""


class Lines:
    """``seen``: lines of the functions that ran. ``steps``: how many different steps between two lines there were."""

    def __init__(self, functions: Functions) -> None:
        self.seen: set[Line] = set()
        self._steps: set[tuple[CodeType, int, int]] = set()
        self.all: dict[Line, str] = {}
        self._codes: dict[tuple[str, str, int], str] = {}
        for module, names in functions.items():
            for path, code in codes(module, names):
                self._codes[(path, code.co_name, code.co_firstlineno)] = path
                for _, _, number in code.co_lines():
                    if number is not None and number != code.co_firstlineno:
                        self.all[path, number] = code.co_name
        self._paths = {path for path, _, _ in self._codes}

    @property
    def steps(self) -> int:
        return len(self._steps)

    def __enter__(self) -> "Lines":
        sys.settrace(self._call)
        return self

    def __exit__(self, *_error: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        code = frame.f_code
        path = code.co_filename
        if path not in self._paths or (path, code.co_name, code.co_firstlineno) not in self._codes:
            return None
        seen, steps, before = self.seen, self._steps, 0

        def line(of: FrameType, event: str, _argument: Any) -> Any:
            nonlocal before
            if event == "line":
                number = of.f_lineno
                step = (code, before, number)
                if step not in steps:
                    steps.add(step)
                    seen.add((path, number))
                before = number
            return line

        return line


def codes(module: str, names: Iterable[str]) -> Iterable[tuple[str, CodeType]]:
    """The file of a module, and the code of each of its functions with one of the names, and of those in them."""
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    path = found.origin
    wanted = tuple(names)
    left = [(compile(Path(path).read_bytes(), path, "exec"), False)]
    while left:
        code, is_wanted = left.pop()
        for inner in code.co_consts:
            if not isinstance(inner, CodeType):
                continue
            is_named = any(
                inner.co_name.startswith(name[:-1]) if name.endswith("*") else inner.co_name == name for name in wanted
            )
            is_class = inner.co_name.isidentifier() and not inner.co_flags & 0x2  # no fast locals: a class body
            if (is_wanted or is_named) and not is_class:
                yield path, inner
            left.append((inner, is_wanted or is_named))
