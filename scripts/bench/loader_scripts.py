"""How much a training script changes with a loader: counted in the scripts of loader_jobs, not typed.

Lines are those of code: without comments, docstrings and empty lines. `prepare` is no part of a training script, and is
counted by itself, with the constants that only it uses.
"""

import ast
import difflib
from pathlib import Path

PREPARES = "prepare"


def changed_lines(before: Path, after: Path) -> int:
    """Lines that were replaced, added or removed; the larger side counts where lines were replaced."""
    matcher = difflib.SequenceMatcher(None, training_script(before), training_script(after), autojunk=False)
    return sum(
        max(a_end - a_begin, b_end - b_begin)
        for kind, a_begin, a_end, b_begin, b_end in matcher.get_opcodes()
        if kind != "equal"
    )


def preparation_lines(script: Path) -> int:
    """Lines of code of `prepare`; 0 where a script has none."""
    return len(_code(script, [node for node in _tree(script).body if _prepares(node)]))


def training_script(script: Path) -> list[str]:
    """The lines of code of a script, without `prepare` and without what only the benchmark needs."""
    return _code(script, [node for node in _tree(script).body if not (_prepares(node) or _is_for_the_benchmark(node))])


def _tree(script: Path) -> ast.Module:
    return ast.parse(script.read_text())


def _prepares(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == PREPARES


def _is_for_the_benchmark(node: ast.stmt) -> bool:
    """Docstrings, PACKAGES, and imports of `job` and typing: a training script needs none of them."""
    if isinstance(node, ast.Expr):
        return True
    if isinstance(node, ast.ImportFrom):
        return node.module in ("job", "typing")
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == "PACKAGES" for target in node.targets
    )


def _code(script: Path, nodes: list[ast.stmt]) -> list[str]:
    lines = script.read_text().splitlines()
    kept = []
    for node in nodes:
        docstring = _docstring_lines(node)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1):
            line = lines[number - 1].strip()
            if line and not line.startswith("#") and number not in docstring:
                kept.append(line)
    return kept


def _docstring_lines(node: ast.stmt) -> set[int]:
    """Of all functions and classes within ``node``."""
    found: set[int] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(inner) is not None:
            first = inner.body[0]
            found |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return found
