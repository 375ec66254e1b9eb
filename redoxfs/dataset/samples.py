"""The regular files that count as samples.

A documented list of extensions decides, not the content of files. So the answer is the same at each mount, costs
nothing for 13 million files, and can be predicted from a page of documentation. Text formats (txt, json, csv, xml)
are not on the list: most are tables or annotations, and a caption belongs to its image (`--groups stem`).
"""

from __future__ import annotations

import re
import stat
from fnmatch import translate

import numpy as np
from numpy.typing import NDArray

from redoxfs.arrays import is_in
from redoxfs.dataset.tree import Tree

IMAGES = frozenset(
    b".jpg .jpeg .jpe .jfif .png .bmp .gif .webp .tif .tiff .ppm .pgm .pbm .pnm .jp2 .j2k .jxl .avif .heic .heif"
    b" .exr .hdr .tga .dcm .nii".split()
)
AUDIO = frozenset(b".wav .flac .mp3 .ogg .oga .opus .m4a .aac .aif .aiff .wma .sph .amr .au".split())
VIDEO = frozenset(b".mp4 .m4v .mkv .webm .avi .mov .mpg .mpeg .wmv .flv .ogv .3gp".split())
ARRAYS = frozenset(b".npy .npz".split())
DATA_EXTENSIONS = IMAGES | AUDIO | VIDEO | ARRAYS

OF_MANY_SAMPLES = frozenset(
    b".arrow .parquet .feather .orc .avro .h5 .hdf5 .tfrecord .tfrecords .record .rec .mdb .lmdb .db .sqlite .sqlite3"
    b" .jsonl .ndjson .mds .beton".split()
)
"""Files that hold a dataset, or a shard of it."""

COMPRESSED_IMAGE, COMPRESSION = b".nii.gz", b".gz"
"""The volumes of medical imaging come compressed. Other compressed files may be anything."""

COMPRESSIONS = frozenset(b".gz .bz2 .xz .zst".split())
"""What is before the suffix says what is compressed."""

# Directories that storage appliances create beside the data: thumbnails (named like the images!) and deleted files.
APPLIANCE_DIRECTORIES = frozenset((b"@eaDir", b"#recycle", b"#snapshot", b"lost+found"))


def hidden(tree: Tree) -> NDArray[np.bool_]:
    """Entries whose name, or the name of a directory above, starts with a dot or is an appliance's: bool[N]."""
    first = np.zeros(len(tree), np.uint8)
    named = tree.name_at[1:] > tree.name_at[:-1]
    first[named] = tree.names[tree.name_at[:-1][named]]
    mask: NDArray[np.bool_] = first == ord(".")
    directories = np.flatnonzero(tree.kind_mask(stat.S_IFDIR))
    for directory in directories[is_in(first[directories], np.frombuffer(b"@#l", np.uint8))].tolist():
        mask[directory] = tree.name(directory) in APPLIANCE_DIRECTORIES
    # Parents come before children and a level is contiguous, so one pass per level reaches everything.
    while True:
        spread = mask | mask[tree.parent]
        if bool((spread == mask).all()):
            return mask
        mask = spread


def sample_mask(tree: Tree, globs: tuple[str, ...] = ()) -> NDArray[np.bool_]:
    """Regular files that count as samples: bool[N].

    Without `globs`, the extension decides. A glob with a slash matches the whole path relative to the source; any
    other glob matches the name. Both are case-sensitive, and `*` matches slashes too. Hidden files are never samples.
    """
    mask = tree.kind_mask(stat.S_IFREG) & ~hidden(tree)
    if not globs:
        listed = np.array([extension in DATA_EXTENSIONS for extension in tree.extensions], bool)
        known = listed[tree.extension]
        if COMPRESSION in tree.extensions:
            known |= _ends_with(tree, COMPRESSED_IMAGE)
        mask &= known
        return mask
    by_name = _matcher([glob for glob in globs if "/" not in glob])
    by_path = _matcher([glob.removeprefix("/") for glob in globs if "/" in glob])
    matched = np.zeros(len(tree), bool)
    above, prefix = -1, b""
    for entry in np.flatnonzero(mask).tolist():
        name = tree.name(entry)
        if by_name is not None and by_name.match(name):
            matched[entry] = True
        elif by_path is not None:
            parent = int(tree.parent[entry])
            if parent != above:
                above, prefix = parent, tree.path(parent)
            matched[entry] = by_path.match(prefix + b"/" + name if prefix else name) is not None
    return matched


def _ends_with(tree: Tree, suffix: bytes) -> NDArray[np.bool_]:
    """Entries whose name has more than ``suffix``, which is in lower case, at its end in either case: bool[N]."""
    wanted = np.frombuffer(suffix, np.uint8)
    ends = np.flatnonzero(tree.name_at[1:] - tree.name_at[:-1] > len(suffix))
    for at in range(1, len(suffix) + 1):
        found = tree.names[tree.name_at[ends + 1] - at]
        upper = (found >= ord("A")) & (found <= ord("Z"))
        ends = ends[np.where(upper, found + 32, found) == wanted[-at]]
    mask = np.zeros(len(tree), bool)
    mask[ends] = True
    return mask


def _matcher(globs: list[str]) -> re.Pattern[bytes] | None:
    if not globs:
        return None
    # fnmatch.translate takes text; latin-1 carries any byte through it unchanged.
    pattern = "|".join(translate(glob.encode("utf-8", "surrogateescape").decode("latin-1")) for glob in globs)
    return re.compile(pattern.encode("latin-1"))
