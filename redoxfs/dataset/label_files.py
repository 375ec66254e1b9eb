"""Checks on files that are no samples for `--classes auto` (see evidence): may one of them hold the labels?

What is not known to be harmless is a doubt, wherever it lies: formats are many, and nobody sees a label
table that redoxfs took for something else.
"""

from __future__ import annotations

import re
import stat

import numpy as np

from redoxfs.dataset.samples import ARRAYS
from redoxfs.dataset.scene import OPTIONS, Scene

# Formats that hold labels, captions, boxes, or lists of files often enough.
TABLE_EXTENSIONS = frozenset(
    b".csv .tsv .psv .json .jsonl .ndjson .jsonlines .geojson .xml .yaml .yml .toml .txt .lst .list .names .index .mat"
    b" .parquet .arrow .feather .orc .avro .pkl .pickle .joblib .pt .pth .h5 .hdf5 .db .sqlite .sqlite3 .lmdb .mdb .xls"
    b" .xlsx .ods .arff .tfrecord .tfrecords .record .rec .idx .msgpack .ann .lab .label .labels .cls .lbl .trans .srt"
    b" .vtt .textgrid .rttm .ctm .stm .phn .wrd .data".split()
)
TABLE_NAMES = frozenset(
    b"labels label classes annotations annotation captions index names list filelist metadata train val test".split()
)
COMPRESSED = frozenset(b".gz .bz2 .xz .zst .lz4 .zip .z".split())

# Files that tell about a dataset and label nothing, by their whole stem.
ABOUT_STEMS = frozenset(
    b"readme license licence copying notice authors contributors changelog changes version citation dockerfile"
    b" makefile".split()
)
ABOUT_EXTENSIONS = frozenset((b"", b".txt", b".md", b".rst"))
# Documents, programs and archives: harmless unless they are named for labels.
OTHER_EXTENSIONS = frozenset(
    b".md .rst .html .htm .pdf .doc .docx .rtf .py .pyc .sh .ipynb .log .zip .tar .tgz .rar .7z".split()
) | frozenset(b".css .js .bib .cff .md5 .sha1 .sha256 .aria2 .torrent".split())
# What desktops leave behind.
LITTER = frozenset((b"thumbs.db", b"desktop.ini"))
_LABEL_WORD = re.compile(
    rb"label|annot|box|caption|class|meta|split|truth|mask|target|answer|landmark|keypoint|transcript|list"
    rb"|(?:^|[^a-z])(?:gt|ann|anno|cls|lbl)(?![a-z])"
)


def label_files(scene: Scene) -> str | None:
    """The labels may be in a file: anything that is neither a sample nor known to be harmless."""
    tree = scene.tree
    other = tree.kind_mask(stat.S_IFREG)
    other[scene.samples] = False
    for entry in np.flatnonzero(other).tolist():
        name = tree.name(entry).lower()
        if _is_table(name):
            # Hidden ones too: nobody names a .csv for nothing.
            if not scene.hidden[entry] or _has_table_extension(name):
                return f"{scene.path(entry)} looks like a label table; {OPTIONS}"
        elif not scene.hidden[entry] and not _is_harmless(name):
            return f"{scene.path(entry)} is no sample and may hold labels, or belong to a sample; {OPTIONS}"
    return None


def arrays_beside(scene: Scene) -> str | None:
    """An array beside samples of another kind may hold their labels."""
    tree = scene.tree
    kinds = tree.extension[scene.samples]
    is_array = np.array([name in ARRAYS for name in tree.extensions], bool)[kinds]
    if is_array.any() and not is_array.all():
        entry = scene.samples[np.argmax(is_array)]
        return f"{scene.path(entry)} may hold labels of the other files; {OPTIONS}"
    return None


def _parts(name: bytes) -> tuple[bytes, bytes]:
    """Stem and last suffix with its dot, like os.path.splitext."""
    dot = name.rfind(b".")
    return (name[:dot], name[dot:]) if dot > 0 else (name, b"")


def _has_table_extension(name: bytes) -> bool:
    stem, extension = _parts(name)
    if extension in COMPRESSED:
        extension = _parts(stem)[1]
    return extension in TABLE_EXTENSIONS


def _is_about(name: bytes) -> bool:
    stem, extension = _parts(name)
    return (stem in ABOUT_STEMS and extension in ABOUT_EXTENSIONS) or name in LITTER


def _is_table(name: bytes) -> bool:
    if _is_about(name):
        return False
    stem, _ = _parts(name)
    return _has_table_extension(name) or name in TABLE_NAMES or _LABEL_WORD.search(stem) is not None


def _is_harmless(name: bytes) -> bool:
    """Of a name that is no table's."""
    stem, extension = _parts(name)
    if extension in COMPRESSED and extension != b".zip":
        # One packed file: answers.tab.gz is as unknown as answers.tab.
        return _parts(stem)[1] == b".tar"
    return _is_about(name) or extension == b".zip" or extension in OTHER_EXTENSIONS
