"""Files that a known tool wrote into SOURCE while it trained, and that say no more than the directories do.

A first run on the plain directory leaves them, and they must not stop the redirection of the second. Such a file is
recognized by its name, its place and its beginning, since any of these alone may be that of a file with labels.

Ultralytics keeps what it found out about the images of `train/` in `train.cache` beside it: an array of numpy with a
pickled mapping of a hash of the paths, and the path and the directory's number of each image. Its `labels.cache` and
the caches of its other tasks begin with the boxes of each image, so they stay what they are: labels by file.
"""

from __future__ import annotations

import re

from redoxfs.dataset.scan import read_beginning
from redoxfs.dataset.scene import Scene

BEGINNING_BYTES = 1024
"""The header of the array has 128, and the first keys follow within 400 more."""

TOOL_FILES_MAX = 16
"""How many are looked at: a tool leaves one for each split, and each look is a read of storage."""

_MEMO = rb"(?:\x94|q.)"


def _text(length: int, pattern: bytes) -> bytes:
    """A text in a pickle of protocol 3 or 4, which numpy writes."""
    return rb"(?:\x8c\x%02x|X\x%02x\x00\x00\x00)%b%b" % (length, length, pattern, _MEMO)


_ULTRALYTICS = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '\|O', 'fortran_order': False, 'shape': \(\), \} *\n"
    # An array of one object, a mapping, and its first keys. Those of other tasks begin with `labels`.
    rb"\x80[\x03\x04].{0,99}_reconstruct[^\]]{0,299}\]%b\}%b\("
    % (_MEMO, _MEMO)
    + _text(4, b"hash")
    + _text(64, b"[0-9a-f]{64}")
    + _text(7, b"results"),
    re.DOTALL,
)


def is_of_a_tool(scene: Scene, entry: int) -> bool:
    """Whether the file is one that says nothing about labels. Reads its beginning if its name and place fit."""
    tree, root_fd = scene.tree, scene.root_fd
    name = tree.name(entry)
    stem, _, extension = name.rpartition(b".")
    if root_fd is None or extension != b"cache" or not stem:
        return False
    siblings = tree.children_of(int(tree.parent[entry]))
    caches = [each for each in siblings if tree.is_file(each) and tree.name(each).endswith(b".cache")]
    if caches.index(entry) >= TOOL_FILES_MAX:
        return False
    # The tool replaces what follows the last dot of the directory's name, if it has one.
    if not any(tree.is_dir(each) and _stem(tree.name(each)) == stem for each in siblings):
        return False
    return _ULTRALYTICS.match(read_beginning(root_fd, tree.path(entry), BEGINNING_BYTES)) is not None


def _stem(name: bytes) -> bytes:
    stem, dot, _ = name.rpartition(b".")
    return stem if dot and stem else name
