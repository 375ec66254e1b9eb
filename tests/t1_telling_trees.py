"""`--classes auto` on small datasets whose file names say something, and on some whose names say nothing.

Three authors drew them up without knowledge of the rules (see `telling_trees`). A tree counts as redirected if two of
its samples can stand in for each other. Every file is a sample, so that names decide and not suffixes.
"""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

import pytest
from telling_trees import TREES, Tree

from redoxfs.dataset import build_catalog, read_tree

pytestmark = pytest.mark.slow

SAYING = [tree for tree in TREES if tree.says]
OPAQUE = [tree for tree in TREES if not tree.says]

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
def is_redirected(tree: Tree) -> bool:
    with tempfile.TemporaryDirectory(dir=MEMORY) as top:
        for directory in {os.path.dirname(path) for path in tree.files}:
            Path(top, directory).mkdir(parents=True)
        for path in tree.files:
            Path(top, path).touch()
        fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
        try:
            found = build_catalog(read_tree(fd, workers=1), classes="auto", samples=("*",))
        finally:
            os.close(fd)
    return len(found.class_of) > len(set(found.class_of.tolist()))


def test_the_corpus_is_large_enough_to_judge_by() -> None:
    assert len(SAYING) >= 150
    assert len(OPAQUE) >= 50
    assert 3 * sum(tree.kind == "one field" for tree in SAYING) >= len(SAYING)


@pytest.mark.parametrize("kind", ["one field", "several fields"])
def test_auto_redirects_only_the_known_trees_whose_names_say_something(kind: str) -> None:
    trees = [tree for tree in SAYING if tree.kind == kind]
    assert {tree.name for tree in trees if is_redirected(tree)} == {tree.name for tree in trees} & MISTAKEN
    assert len(MISTAKEN) <= 0.03 * len(SAYING)


def test_auto_redirects_most_trees_whose_names_say_nothing() -> None:
    assert {tree.name for tree in OPAQUE if not is_redirected(tree)} == KEPT_BACK
    assert len(KEPT_BACK) <= 0.2 * len(OPAQUE)
