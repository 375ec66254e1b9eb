"""What ARCHITECTURE.md says of the rooms is what they import, and a document that the code cites is there."""

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import redoxfs

assert redoxfs.__file__ is not None
PACKAGE = Path(redoxfs.__file__).parent
ROOT = PACKAGE.parent

BELOW_ALL = {"arrays", "late"}
"""Modules that every room may import, and that import no room."""

PURE = {"collections", "dataclasses", "enum", "itertools", "numpy", "redoxfs.arrays", "redoxfs.protocol", "typing"}
"""The standard library's pure parts and numpy, which the core may import beside itself."""

PURE_IN_C = {"Sections"}
"""What the core has of `redoxfs.native`: a table that does no I/O."""

ROOM = re.compile(r"^      (\w+)/ .*→ (.+)$", re.MULTILINE)
"""A line of the table of rooms: its name, and what its arrow points to."""


def said() -> dict[str, set[str]]:
    """By room, the rooms that it imports as ARCHITECTURE.md has it."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rooms = dict(ROOM.findall(text))
    return {room: {other for other in re.findall(r"\w+", told) if other in rooms} for room, told in rooms.items()}


def imported(room: str) -> set[str]:
    """The rooms that the modules of a room import, wherever in them."""
    return imported_by((PACKAGE / room).rglob("*.py")) - BELOW_ALL - {room}


def imported_by(sources: Iterable[Path]) -> set[str]:
    """What sources import of redoxfs: rooms, and modules below them."""
    modules = modules_imported_by(sources)
    return {parts[1] for module in modules if (parts := module.split("."))[0] == "redoxfs" and len(parts) > 1}


def modules_imported_by(sources: Iterable[Path]) -> set[str]:
    modules: set[str] = set()
    for source in sources:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, source
                modules.add(node.module or "")
    return modules


def test_each_room_imports_the_rooms_that_its_arrow_points_to() -> None:
    rooms = said()
    assert set(rooms) == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {room: imported(room) for room in rooms} == rooms


def test_what_lies_below_all_rooms_imports_none() -> None:
    assert imported_by(PACKAGE / f"{name}.py" for name in BELOW_ALL) == set()


def test_the_core_imports_nothing_that_does_io() -> None:
    """Nor does what it imports."""
    sources = [PACKAGE / "arrays.py", *(PACKAGE / "protocol").rglob("*.py")]
    assert len(sources) >= 12
    modules = modules_imported_by(sources) - {"redoxfs.native"}
    assert not {module for module in modules if not any(f"{module}.".startswith(f"{name}.") for name in PURE)}
    nodes = [node for source in sources for node in ast.walk(ast.parse(source.read_text()))]
    from_native = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == "redoxfs.native"]
    assert {alias.name for node in from_native for alias in node.names} == PURE_IN_C


def test_arrows_point_down() -> None:
    rooms = list(said().items())
    for number, (room, others) in enumerate(rooms):
        below = {name for name, _ in rooms[number + 1 :]}
        assert others <= below, room


def test_a_document_that_the_code_cites_is_in_the_repository() -> None:
    cited = {
        (source, name)
        for folder in ("redoxfs", "proto", "scripts", "tests")
        for source in (ROOT / folder).rglob("*")
        if source.suffix in (".py", ".proto", "") and source.is_file() and source.name != "redoxfs-keeper"
        for name in re.findall(r"\b(?:[\w-]+/)*[A-Z][\w-]*\.md\b", source.read_text())
    }
    assert cited
    assert not {(source, name) for source, name in cited if not (ROOT / name).exists()}
