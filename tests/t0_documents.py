"""The documents cite tests that exist, and every promise cites a test."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import spent

TESTS = Path(__file__).parent
ROOT = TESTS.parent
ARCHITECTURE = [ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs/decisions").glob("*.md"))]
DOCUMENTS = [*ARCHITECTURE, ROOT / "README.md", ROOT / "SEMANTICS.md", *sorted((ROOT / "docs").glob("*.md"))]

CITATION = re.compile(r"`(?:tests/)?(t\d_[a-z]\w+)(?:\.py)?(?:::(test_\w+)(…?))?`")
"""A test file, and perhaps one of its tests by its name, or by the beginning of its name before an ellipsis."""

MENTION = re.compile(r"\bt\d_[a-z]\w+|\btest_\w+")
ITEM = re.compile(r"^### (.+)\n((?:(?!#).*\n)*)", re.MULTILINE)
PARTS = ["Promise", "Exceptions", "Tests"]


@cache
def lanes_in(file: Path) -> dict[str, bool]:
    """The names of a file's tests, and whether each runs on every change."""
    nodes = ast.walk(ast.parse(file.read_text()))
    tests = [
        node
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]
    return {test.name: "pytest.mark.long" not in map(ast.unparse, test.decorator_list) for test in tests}


def cited(file: str, test: str, ellipsis: str) -> dict[str, bool]:
    """The tests of a citation, as `lanes_in` has them. A file may be cited as a whole."""
    path = TESTS / f"{file}.py"
    known = lanes_in(path) if path.is_file() else {}
    return {
        name: lane for name, lane in known.items() if not test or name == test or (ellipsis and name.startswith(test))
    }


def exists(file: str, test: str, ellipsis: str) -> bool:
    return bool(cited(file, test, ellipsis)) if test else (TESTS / f"{file}.py").is_file()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_cited_test_exists(document: Path) -> None:
    citations: list[tuple[str, str, str]] = CITATION.findall(document.read_text())
    assert not [citation for citation in citations if not exists(*citation)]


@pytest.mark.parametrize("name", ["SEMANTICS.md", "docs/RELIABILITY.md"])
def test_what_shows_a_promise_runs_on_every_change(name: str) -> None:
    citations: list[tuple[str, str, str]] = CITATION.findall((ROOT / name).read_text())
    rare = [test for citation in citations if citation[1] for test, often in cited(*citation).items() if not often]
    assert rare == []
    # A file that is cited as a whole may have some that run rarely.
    assert not [
        file for file, test, _ in citations if not test and not any((cited(file, "", "") or {"": True}).values())
    ]


@pytest.mark.parametrize(
    "names", [["ARCHITECTURE.md", "docs/decisions/*.md"], ["SEMANTICS.md"], ["docs/RELIABILITY.md"]]
)
def test_every_mention_of_a_test_is_a_citation(names: list[str]) -> None:
    lines = (line for name in names for path in ROOT.glob(name) for line in path.read_text().splitlines())
    text = "\n".join(line for line in lines if not line.startswith("    "))
    assert CITATION.search(text)
    assert MENTION.findall(CITATION.sub("", text)) == []


def test_every_promise_has_its_exceptions_and_cites_a_test() -> None:
    items: list[tuple[str, str]] = ITEM.findall((ROOT / "SEMANTICS.md").read_text())
    assert len(items) > 20
    for title, text in items:
        assert re.findall(r"^\*\*(\w+)\.\*\* ?", text, re.MULTILINE) == PARTS, title
        assert CITATION.search(text.split("**Tests.**")[1]), title


def test_every_fault_in_the_summary_cites_a_test() -> None:
    summary = (ROOT / "docs/RELIABILITY.md").read_text().partition("\n## Summary\n")[2].partition("\n## ")[0]
    rows = [line for line in summary.splitlines() if line.startswith("| ")][1:]
    assert rows
    assert not [row for row in rows if not CITATION.search(row.rsplit("|", 2)[1])]


def test_a_file_that_the_architecture_names_exists() -> None:
    text = "\n".join(path.read_text() for path in ARCHITECTURE)
    named = set(re.findall(r"\b(?:\w+/)+\w+\.py\b", text))
    assert named
    assert not [
        name for name in sorted(named) if not (ROOT / name).is_file() and not (ROOT / "redoxfs" / name).is_file()
    ]


def test_what_may_cost_more_exists_and_has_its_reason() -> None:
    for name, reason in spent.costly().items():
        file, test = name.split("::")
        assert test == "runTest" or test in lanes_in(TESTS / file), name
        assert reason.strip(), name
