"""A tree as the session in C reads it: a root with a folder of redirected files, a link and another file."""

import stat

import numpy as np

from redoxfs.native import Tree

FILES = 40
"""In the folder, each a sample."""

ROOT, FOLDER, LINK, PLAIN, FIRST = 0, 1, 2, 3, 4
"""Entries; FIRST is the first file in the folder."""

NAMES = [b"", b"folder", b"link", b"plain", *(b"file %03d" % number for number in range(FILES))]


def small_tree() -> Tree:
    """Sizes, times and owners tell the entries apart."""
    count = len(NAMES)
    numbers = np.arange(count)
    mode = np.full(count, stat.S_IFREG | 0o644, np.uint32)
    mode[[ROOT, FOLDER]] = stat.S_IFDIR | 0o755
    mode[LINK] = stat.S_IFLNK | 0o777
    parent = np.full(count, FOLDER, np.int32)
    parent[:FIRST] = ROOT
    first_child, children = np.zeros((2, count), np.int32)
    first_child[:2] = FOLDER, FIRST
    children[:2] = FIRST - 1, FILES
    return Tree(
        names=np.frombuffer(b"".join(NAMES), np.uint8),
        name_at=np.cumsum([0, *map(len, NAMES)], dtype=np.int64),
        parent=parent,
        first_child=first_child,
        children=children,
        mode=mode,
        nlink=np.where(numbers < 2, 2, 1).astype(np.uint32),
        uid=(numbers + 100).astype(np.uint32),
        gid=(numbers + 200).astype(np.uint32),
        size=numbers * 1000,
        mtime_ns=numbers * 1_500_000_000 - 1_000_000_000,
        ctime_ns=numbers * 2_500_000_001,
        sample_of=np.maximum(numbers - FIRST, -1).astype(np.int32),
    )
