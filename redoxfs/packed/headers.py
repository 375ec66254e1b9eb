"""The tar header of a tree entry.

A header depends on the tree alone. So the length of every header is known before the first byte is written, and the
bytes between files can be computed again at any time: that is how shards are checked.

Python's tarfile makes the bytes in the simplest format that fits: ustar, which every reader knows; pax if a name, a
number or a link is too long for ustar; GNU's long names if such a name is not UTF-8, because GNU tar warns of the
keyword with which pax marks raw bytes. Times are whole seconds, not before 1970: a fraction would cost a kilobyte per
file, and GNU tar warns of older times. The index has the exact times.
"""

import stat
import tarfile

import numpy as np
import numpy.typing as npt

from redoxfs.dataset import Tree

BLOCK_BYTES = tarfile.BLOCKSIZE

RECORD_BYTES = tarfile.RECORDSIZE
"""A tar file is a whole number of records, and ends with two or more blocks of zeros."""

NAME_BYTES = 100
"""A path of at most this length fits a plain header. A longer path may fit too."""

NUMBER_LIMIT = 8**7
"""Owner numbers below this fit a plain header."""

SIZE_LIMIT = 8**11
"""Sizes, and times in seconds, below this fit a plain header."""


def header_of(tree: Tree, entry: int) -> bytes:
    """The header blocks of an entry: a whole number of BLOCK_BYTES, one in nearly every case."""
    path = tree.path(entry) or b"."
    info = tarfile.TarInfo(path.decode("utf-8", "surrogateescape"))
    mode = int(tree.mode[entry])
    info.mode = stat.S_IMODE(mode)
    info.uid, info.gid = int(tree.uid[entry]), int(tree.gid[entry])
    info.mtime = max(0, int(tree.mtime_ns[entry]) // 1_000_000_000)
    if stat.S_ISDIR(mode):
        info.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(mode):
        info.type = tarfile.SYMTYPE
        info.linkname = tree.link_target(entry).decode("utf-8", "surrogateescape")
    else:
        info.size = int(tree.size[entry])
    try:
        return info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape")
    except ValueError:
        raw = any("\udc80" <= c <= "\udcff" for c in info.name + info.linkname)
        return info.tobuf(tarfile.GNU_FORMAT if raw else tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def header_bytes(tree: Tree) -> npt.NDArray[np.int64]:
    """int64[N]: the length of each entry's header."""
    lengths = np.full(len(tree), BLOCK_BYTES, np.int64)
    seconds = tree.mtime_ns // 1_000_000_000
    plain = (_path_bytes(tree) <= NAME_BYTES) & (tree.size < SIZE_LIMIT)
    plain &= (tree.uid < NUMBER_LIMIT) & (tree.gid < NUMBER_LIMIT) & (seconds < SIZE_LIMIT)
    plain[tree.link_entry] &= np.diff(tree.link_at) <= NAME_BYTES
    for entry in np.flatnonzero(~plain).tolist():
        lengths[entry] = len(header_of(tree, entry))
    return lengths


def _path_bytes(tree: Tree) -> npt.NDArray[np.int64]:
    """int64[N]: the length of each entry's path, with the slash that ends a directory's."""
    lengths: npt.NDArray[np.int64] = np.diff(tree.name_at)
    # Breadth-first: a directory's children are one range, and come after their parent's length is known.
    directories = np.flatnonzero(tree.kind_mask(stat.S_IFDIR))
    for directory in directories.tolist():
        children = tree.children_of(directory)
        if directory:
            lengths[children.start : children.stop] += lengths[directory] + 1
    lengths[directories] += 1
    return lengths
