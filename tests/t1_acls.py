"""Access control lists that close what modes open."""

import os
import struct
from pathlib import Path

import numpy as np
import pytest
from packs import opened

from redoxfs.dataset import read_tree
from redoxfs.launch.acls import GROUP, GROUP_OBJ, MASK, NAME, READ, SEARCH, USER, Acl, closed_by_a_list

USER_OBJ, OTHER, NOBODY = 0x01, 0x20, 0xFFFFFFFF


def value(*entries: tuple[int, int, int]) -> bytes:
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def list_of(group: int = 4, other: int = 4, mask: int = 4, *named: tuple[int, int, int]) -> bytes:
    rest = ((GROUP_OBJ, group, NOBODY), (MASK, mask, NOBODY), (OTHER, other, NOBODY))
    return value((USER_OBJ, 6, NOBODY), *named, *rest)


@pytest.mark.parametrize(
    ("entries", "mode", "closes"),
    [
        (list_of(), 0o644, False),
        (list_of(0), 0o644, True),
        (list_of(0, 0, 0), 0o600, False),
        (list_of(4, 4, 4, (USER, 4, 1000)), 0o644, False),
        (list_of(4, 4, 4, (USER, 0, 1000)), 0o644, True),
        (list_of(4, 0, 4, (GROUP, 0, 1000)), 0o640, True),
        (list_of(0, 0, 0, (USER, 7, 1000)), 0o600, False),
        (list_of(4, 4, 0, (USER, 4, 1000)), 0o604, True),
    ],
)
def test_a_list_closes_what_the_mode_gives_somebody(entries: bytes, mode: int, closes: bool) -> None:
    found = Acl.of(entries)
    assert found is not None
    assert found.closes(mode, READ) is closes


def test_the_right_to_search_is_another() -> None:
    found = Acl.of(list_of(4, 5, 5))
    assert found is not None
    assert (found.closes(0o755, READ), found.closes(0o755, SEARCH)) == (False, True)


@pytest.mark.parametrize("other", [b"", b"\2\0", struct.pack("<I", 3), struct.pack("<I", 2) + b"abc"])
def test_what_is_no_list_is_none(other: bytes) -> None:
    assert Acl.of(other) is None


@pytest.mark.parametrize("at", ["", "a", "a/b", "a/b/7.jpg"])
def test_files_and_the_directories_above_are_looked_at(tmp_path: Path, at: str) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    for number in range(10):
        (tmp_path / f"a/b/{number}.jpg").write_bytes(b"x")
    with opened(tmp_path) as fd:

        def found() -> bytes | None:
            tree = read_tree(fd, workers=1)
            files = np.array([entry for entry in range(len(tree)) if not tree.is_dir(entry)])
            return closed_by_a_list(fd, tree, files)

        assert found() is None
        (tmp_path / at).chmod(0o755)
        os.setxattr(tmp_path / at, NAME, list_of(5, 5, 5, (USER, 0, 1234)))
        assert found() == at.encode()
