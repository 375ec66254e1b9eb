"""The readers of a file are part of its class."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packs import opened

from redoxfs.dataset import Catalog, Tree, build_catalog, read_tree
from redoxfs.dataset.access import readers_of


def scan(root: Path) -> Tree:
    with opened(root) as fd:
        return read_tree(fd, workers=2)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tmp_path.chmod(0o755)
    # Without it, each catalog has a line about splits that a script makes.
    (tmp_path / "val").mkdir()
    for name in ("cat/1.jpg", "cat/2.jpg", "cat/3.jpg", "dog/4.jpg", "dog/small/5.jpg", "dog/small/6.jpg"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o755)
        path.write_bytes(b"")
        path.chmod(0o644)
    return scan(tmp_path)


def with_owner(tree: Tree, **changes: tuple[int, int, int]) -> Tree:
    """The tree, with (uid, gid, mode) set for the entries of these names (without suffix)."""
    uid, gid, mode = tree.uid.copy(), tree.gid.copy(), tree.mode.copy()
    for entry in range(len(tree)):
        change = changes.get("_" + tree.name(entry).decode().partition(".")[0])
        if change is not None:
            uid[entry], gid[entry] = change[:2]
            mode[entry] = (mode[entry] & 0o170000) | change[2]
    return replace(tree, uid=uid, gid=gid, mode=mode)


def partition(found: Catalog) -> list[list[str]]:
    names = [found.tree.name(int(entry)).decode().removesuffix(".jpg") for entry in found.members]
    classes: dict[int, list[str]] = {}
    for name, number in zip(names, found.class_of.tolist(), strict=True):
        classes.setdefault(number, []).append(name)
    assert len(set(found.class_names)) == len(found.class_names) == len(classes)
    return sorted(classes.values())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [["1", "2", "3", "4", "5", "6"]]),
        # All users may read these, whatever their owner and their other bits.
        ({"_1": (7, 8, 0o755), "_2": (9, 9, 0o444)}, [["1", "2", "3", "4", "5", "6"]]),
        ({"_1": (7, 8, 0o600), "_2": (9, 8, 0o600)}, [["1"], ["2"], ["3", "4", "5", "6"]]),
        # A group matters if it has rights that others lack, and does not matter otherwise.
        ({"_1": (7, 8, 0o640), "_2": (7, 9, 0o640)}, [["1"], ["2"], ["3", "4", "5", "6"]]),
        ({"_1": (7, 8, 0o600), "_2": (7, 9, 0o600)}, [["1", "2"], ["3", "4", "5", "6"]]),
        # Odd modes: others may read, the owner may not.
        ({"_1": (7, 8, 0o044), "_2": (9, 8, 0o044)}, [["1"], ["2"], ["3", "4", "5", "6"]]),
        # Modes of the directory itself, and of those above.
        ({"_cat": (7, 8, 0o700)}, [["1", "2", "3"], ["4", "5", "6"]]),
        ({"_cat": (7, 8, 0o744)}, [["1", "2", "3"], ["4", "5", "6"]]),
        ({"_cat": (7, 8, 0o711)}, [["1", "2", "3", "4", "5", "6"]]),
        ({"_dog": (7, 8, 0o750)}, [["1", "2", "3"], ["4", "5", "6"]]),
        ({"_small": (7, 8, 0o750), "_cat": (7, 8, 0o750)}, [["1", "2", "3", "5", "6"], ["4"]]),
        ({"_dog": (7, 8, 0o750), "_small": (7, 8, 0o750), "_cat": (7, 8, 0o750)}, [["1", "2", "3", "4", "5", "6"]]),
        ({"_dog": (7, 8, 0o750), "_small": (7, 9, 0o750)}, [["1", "2", "3"], ["4"], ["5", "6"]]),
    ],
)
def test_only_files_with_the_same_readers_stand_in_for_each_other(
    tree: Tree, changes: dict[str, tuple[int, int, int]], expected: list[list[str]]
) -> None:
    found = build_catalog(with_owner(tree, **changes), classes="any")
    assert partition(found) == expected
    said = "1 label is on files with different owners or modes, which do not stand in for each other"
    assert found.verdict.saw == ((said,) if len(expected) > 1 else ())


def test_directories_of_several_readers_are_one_line(tmp_path: Path, tree: Tree) -> None:
    (tmp_path / "dog/small").rename(tmp_path / "small")
    tree = scan(tmp_path)
    changed = with_owner(tree, _1=(7, 8, 0o600), _5=(7, 8, 0o600))
    found = build_catalog(changed, classes="dir")
    assert partition(found) == [["1"], ["2", "3"], ["4"], ["5"], ["6"]]
    said = "2 directories hold files with different owners or modes, which do not stand in for each other"
    assert found.verdict.saw[-1] == said
    assert sum("(readers " in name for name in found.class_names) == 4
    assert said not in build_catalog(tree, classes="dir").verdict.saw


def test_a_group_matches_only_if_each_of_its_files_does(tmp_path: Path) -> None:
    for key in "abc":
        (tmp_path / f"{key}.jpg").write_bytes(b"")
        (tmp_path / f"{key}.txt").write_bytes(b"")
        (tmp_path / f"{key}.txt").chmod(0o600 if key == "b" else 0o644)
        (tmp_path / f"{key}.jpg").chmod(0o644)
    found = build_catalog(scan(tmp_path), classes="any", groups="stem")
    first = [found.tree.name(int(found.members[at])).decode() for at in found.member_at[:-1]]
    assert sorted(zip(first, found.class_of.tolist(), strict=True)) in (
        [("a.jpg", 0), ("b.jpg", 1), ("c.jpg", 0)],
        [("a.jpg", 1), ("b.jpg", 0), ("c.jpg", 1)],
    )


owners = st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(0, 0o777))


def may(user: int, groups: set[int], row: tuple[int, int, int], bit: int) -> bool:
    uid, gid, mode = row
    return bool(mode >> (6 if user == uid else 3 if gid in groups else 0) & bit)


@given(st.lists(st.tuples(owners, owners, owners), min_size=2, max_size=6))
def test_equal_numbers_mean_equal_access_for_every_user(rows: list[tuple[tuple[int, int, int], ...]]) -> None:
    """Chains of two directories and a file, compared with the kernel's rule."""
    count = len(rows)
    parent = [0, *[0] * count, *range(1, 1 + 2 * count)]
    every = [(0, 0, 0o755), *(row[0] for row in rows), *(row[1] for row in rows), *(row[2] for row in rows)]
    kinds = [0o040000] * (1 + 2 * count) + [0o100000] * count
    names = np.zeros(len(parent), np.int64)
    columns = dict.fromkeys(Tree.__dataclass_fields__, names)
    columns |= {
        "parent": np.array(parent, np.int32),
        "uid": np.array([row[0] for row in every], np.uint32),
        "gid": np.array([row[1] for row in every], np.uint32),
        "mode": np.array([kind | row[2] for kind, row in zip(kinds, every, strict=True)], np.uint32),
    }
    tree = Tree(**columns)  # type: ignore[arg-type]
    number = readers_of(tree, np.arange(1 + 2 * count, 1 + 3 * count, dtype=np.int32)).tolist()
    answers = [
        tuple(
            may(user, groups, row[0], 1) and may(user, groups, row[1], 1) and may(user, groups, row[2], 4)
            for user in (1, 2, 3)
            for groups in (set[int](), {1}, {2}, {1, 2})
        )
        for row in rows
    ]
    for one in range(count):
        for other in range(one):
            assert number[one] != number[other] or answers[one] == answers[other]
