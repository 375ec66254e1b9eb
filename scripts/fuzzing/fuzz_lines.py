"""Which lines and which steps from line to line of some modules have run: by sys.settrace, in one thread."""

import importlib.util
import sys
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import Any

Line = tuple[str, int]


class Lines:
    """``seen``: lines that ran. ``all``: those of all functions that were called. ``steps``: how many different steps
    between two lines there were."""

    def __init__(self, modules: Iterable[str]) -> None:
        self.seen: set[Line] = set()
        self.all: set[Line] = set()
        self._steps: set[tuple[CodeType, int, int]] = set()
        self._called: set[CodeType] = set()
        specs = map(importlib.util.find_spec, modules)
        self._paths = {spec.origin for spec in specs if spec is not None}

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
        if path not in self._paths:
            return None
        if code not in self._called:
            self._called.add(code)
            numbers = {number for _, _, number in code.co_lines() if number is not None}
            self.all |= {(path, number) for number in numbers - {code.co_firstlineno}}
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
