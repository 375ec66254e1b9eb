"""The core does no I/O: it may import numpy, the standard library's pure parts, and itself. So may what it imports."""

import ast
from pathlib import Path

import redoxfs.protocol

PURE = {"collections", "dataclasses", "enum", "itertools", "numpy", "redoxfs.arrays", "redoxfs.protocol", "typing"}


def test_the_core_imports_nothing_that_does_io() -> None:
    assert redoxfs.protocol.__file__ is not None
    room = Path(redoxfs.protocol.__file__).parent
    sources = [room.parent / "arrays.py", *sorted(room.rglob("*.py"))]
    assert len(sources) >= 12
    for source in sources:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0
                modules = [node.module or ""]
            else:
                continue
            for module in modules:
                pure = any(module == name or module.startswith(f"{name}.") for name in PURE)
                assert pure, f"{source.name} imports {module}"
