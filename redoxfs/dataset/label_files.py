"""Checks on files that are not samples for `--classes auto` (see evidence): may one of them hold the labels?

Any file that is not known to be harmless is a doubt, wherever it lies. There are many formats, and a label table that
redoxfs took for something else would go unnoticed.
"""

from __future__ import annotations

import os
import re
import stat

import numpy as np
from numpy.typing import NDArray

from redoxfs.arrays import is_in
from redoxfs.dataset.class_trees import place_of
from redoxfs.dataset.errors import show
from redoxfs.dataset.samples import ARRAYS, DATA_EXTENSIONS
from redoxfs.dataset.scan import read_small
from redoxfs.dataset.scene import STEM, Against, Doubt, Scene
from redoxfs.dataset.splits import is_split_word
from redoxfs.dataset.stems import stems_of
from redoxfs.dataset.tool_files import is_of_a_tool

# Formats that often hold labels, captions, boxes, or lists of files.
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

# Files about a dataset that hold no labels, by their whole stem.
ABOUT_STEMS = frozenset(
    b"readme license licence copying notice authors contributors changelog changes version citation dockerfile"
    b" makefile".split()
)
ABOUT_EXTENSIONS = frozenset((b"", b".txt", b".md", b".rst"))
# Documents, programs and archives: harmless unless they are named for labels or after a sample.
OTHER_EXTENSIONS = frozenset(
    b".md .rst .html .htm .pdf .doc .docx .rtf .py .pyc .sh .ipynb .log .zip .tar .tgz .rar .7z .css .js .bib"
    b" .cff".split()
)
# Of one file, whatever that is: sums, and what downloads leave.
OF_A_FILE = frozenset(b".md5 .sha1 .sha256 .aria2 .torrent".split())
# Files that desktops leave behind (_DS_Store on hosts that allow no leading dot), the sample answers of a competition,
# whose labels are made up, and the readme of a Roboflow export.
LITTER = frozenset(
    b"thumbs.db desktop.ini _ds_store sample_submission.csv samplesubmission.csv readme.dataset.txt"
    b" readme.roboflow.txt".split()
)
# A list of class names is a text of lines, at most this long: 10,000 names of 100 bytes.
NAME_LIST_EXTENSIONS = frozenset((b"", b".txt", b".lst", b".list", b".names"))
NAME_LIST_MAX_BYTES = 1 << 20
NAME_LISTS_MAX = 16
_LABEL_WORD = re.compile(
    rb"label|annot|box|caption|class|meta|split|truth|mask|target|answer|landmark|keypoint|transcript|list"
    rb"|(?:^|[^a-z])(?:gt|ann|anno|cls|lbl)(?![a-z])"
)


def label_files(scene: Scene) -> Doubt | None:
    """Every file must be a sample or known to be harmless: any other may hold the labels."""
    tree = scene.tree
    other = tree.kind_mask(stat.S_IFREG)
    other[scene.samples] = False
    lists = _NameLists(scene)
    documents: list[int] = []
    for entry in np.flatnonzero(other).tolist():
        name = tree.name(entry).lower()
        if _is_table(name):
            # Hidden ones too: a .csv always has a purpose.
            if (not scene.hidden[entry] or _has_table_extension(name)) and not lists.has(entry):
                return Doubt(f"{scene.path(entry)} looks like a label table", Against.DIR_UNPROVEN | Against.ANY)
        elif not scene.hidden[entry] and not _is_harmless(name) and not is_of_a_tool(scene, entry):
            return Doubt(
                f"{scene.path(entry)} is not a sample and may hold labels or belong to a sample",
                Against.DIR_UNPROVEN | Against.ANY,
            )
        elif not scene.hidden[entry] and not _is_about(name):
            documents.append(entry)
    return _of_one_sample(scene, np.array(documents, np.int64))


def _of_one_sample(scene: Scene, documents: NDArray[np.int64]) -> Doubt | None:
    """No document may have the stem of a sample, wherever it lies: 7.md, 7.html or 7.zip may describe 7.jpg."""
    tree = scene.tree
    if not len(documents):
        return None
    known = np.concatenate([stems.whole() for stems in stems_of(tree.names, tree.name_at, documents)])
    for stems in stems_of(tree.names, tree.name_at, scene.samples):
        found = np.flatnonzero(is_in(stems.whole(), known))
        if len(found):
            sample = int(stems.entry[found[0]])
            document = int(documents[np.argmax(known == stems.whole()[found[0]])])
            instead = STEM if tree.parent[sample] == tree.parent[document] else ""
            what = f"{scene.path(document)} may belong to {scene.path(sample)} and hold its label"
            return Doubt(what, Against.DIR_UNPROVEN | Against.ANY, instead)
    return None


def label_files_beside(scene: Scene) -> Doubt | None:
    """If SOURCE is named like a split, no table for all splits may lie beside it."""
    if not scene.own_split:
        return None
    for file in scene.beside.names.files:
        name = os.fsencode(file)
        # A symlink called val leads to a split; it is hardly a list of names.
        if _is_table(name.lower()) and not is_split_word(name):
            return Doubt(f"{show(name)} beside the source looks like a label table", Against.DIR_UNPROVEN | Against.ANY)
    return None


def arrays_beside(scene: Scene) -> Doubt | None:
    """No array may lie beside samples of another kind: it may hold their labels."""
    tree = scene.tree
    kinds = tree.extension[scene.samples]
    is_array = np.array([name in ARRAYS for name in tree.extensions], bool)[kinds]
    if is_array.any() and not is_array.all():
        entry = scene.samples[np.argmax(is_array)]
        return Doubt(f"{scene.path(entry)} may hold labels of the other files", Against.DIR_UNPROVEN | Against.ANY)
    return None


class _NameLists:
    """Recognizes texts that list each class directory once, and so have no more information than the directories.

    A text with one name for each sample lists labels and has repeated lines. A text in a directory of samples may
    label these samples.
    """

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._left = NAME_LISTS_MAX
        self._names: frozenset[bytes] | None = None

    def has(self, entry: int) -> bool:
        tree, root_fd = self._scene.tree, self._scene.root_fd
        _, extension = _parts(tree.name(entry).lower())
        size = int(tree.size[entry])
        if root_fd is None or not self._left or extension not in NAME_LIST_EXTENSIONS or size > NAME_LIST_MAX_BYTES:
            return False
        classes = self._scene.trees.classes
        if not self._lies_above_classes(int(tree.parent[entry])):
            return False
        self._left -= 1
        if self._names is None:
            self._names = frozenset(tree.name(at) for holders in classes.values() for at in holders)
        text = read_small(root_fd, tree.path(entry), NAME_LIST_MAX_BYTES)
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return bool(lines) and len(set(lines)) == len(lines) and self._names.issuperset(lines)

    def _lies_above_classes(self, directory: int) -> bool:
        for above in self._scene.trees.classes:
            if directory == 0 or directory in (above, place_of(self._scene.tree, above)):
                return True
        return False


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
    """Whether a file is harmless, by its name, which is not a table's."""
    stem, extension = _parts(name)
    if extension in COMPRESSED and extension != b".zip":
        # One packed file: answers.tab.gz is as unknown as answers.tab.
        return _parts(stem)[1] == b".tar"
    if _is_about(name) or extension in OF_A_FILE:
        return True
    # 7.jpg.md is about 7.jpg.
    return extension in OTHER_EXTENSIONS and _parts(stem)[1] not in DATA_EXTENSIONS
