"""`--classes auto` on small datasets whose file names say something, and on some whose names say nothing.

Three authors drew them up without knowledge of the rules (see `telling_trees`). A tree counts as redirected if two of
its samples can stand in for each other. Every file is a sample, so that names decide and not suffixes.
"""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packs import opened

from redoxfs.dataset import build_catalog, read_tree

if TYPE_CHECKING:
    from telling_trees import Tree

pytestmark = pytest.mark.slow

MISTAKEN = frozenset({"radar chips by azimuth"})
"""Trees whose names say something, and which auto redirects. Five digits of an angle look like a number of an image."""

KEPT_BACK = frozenset(
    {
        "class word with its own shuffled count",
        "class_name_and_number",
        "random words as project names",
        "random_six_capitals",
        "signed_url_hash",
        "sound archive numbers",
        "ten small letters",
    }
)
"""Trees whose names say nothing, and which auto does not redirect."""

# Making tens of thousands of files takes longer than all other work here on a busy disk.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None


@cache
def trees() -> tuple[list[Tree], list[Tree]]:
    """Those whose names say something, and those whose names say nothing. The import draws all these names."""
    from telling_trees import TREES

    return [tree for tree in TREES if tree.says], [tree for tree in TREES if not tree.says]


@cache
def is_redirected(tree: Tree) -> bool:
    with tempfile.TemporaryDirectory(dir=MEMORY) as top:
        for directory in {os.path.dirname(path) for path in tree.files}:
            Path(top, directory).mkdir(parents=True)
        for path in tree.files:
            Path(top, path).touch()
        with opened(Path(top)) as fd:
            found = build_catalog(read_tree(fd, workers=1), classes="auto", samples=("*",))
    return len(found.class_of) > len(set(found.class_of.tolist()))


def test_the_corpus_is_large_enough_to_judge_by() -> None:
    saying, opaque = trees()
    assert len(saying) >= 150
    assert len(opaque) >= 50
    assert 3 * sum(tree.kind == "one field" for tree in saying) >= len(saying)


@pytest.mark.parametrize("kind", ["one field", "several fields"])
def test_auto_redirects_only_the_known_trees_whose_names_say_something(kind: str) -> None:
    saying, _ = trees()
    of_kind = [tree for tree in saying if tree.kind == kind]
    assert {tree.name for tree in of_kind if is_redirected(tree)} == {tree.name for tree in of_kind} & MISTAKEN
    assert len(MISTAKEN) <= 0.03 * len(saying)


def test_auto_redirects_most_trees_whose_names_say_nothing() -> None:
    _, opaque = trees()
    assert {tree.name for tree in opaque if not is_redirected(tree)} == KEPT_BACK
    assert len(KEPT_BACK) <= 0.2 * len(opaque)
