"""`--classes auto`: proof that the directory is the label, or the doubt that there is.

The default mount redirects only where the tree leaves no other reading than "one directory, one class".
Each check below looks for one other reading and returns it as a sentence; the first doubt decides. No check
weighs for against: a wrong "none" costs the user one option, a wrong "dir" costs a training run with wrong
labels and no sign of it.

A check is a function from the Scene to a sentence or None. To add one, add it to CHECKS, cheap and telling
ones first, and a row to the table in docs/classes.md.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redoxfs.dataset import mirrors
from redoxfs.dataset.errors import show
from redoxfs.dataset.samples import ARRAYS, DATA_EXTENSIONS, hidden
from redoxfs.dataset.splits import is_split, split_of_name
from redoxfs.dataset.tree import Tree

IF_LABEL = "if the directory is the label use --classes dir"
OPTIONS = f"{IF_LABEL}, if there are no labels --classes any, else --classes FILE.csv"

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

# Files that tell about a dataset and label nothing, by the start of their names and their suffix.
ABOUT_NAMES = (b"readme", b"license", b"licence", b"copying", b"notice")
ABOUT_EXTENSIONS = frozenset((b"", b".txt", b".md", b".rst"))
# What desktops leave behind.
LITTER = frozenset((b"thumbs.db", b"desktop.ini"))
# May lie beside samples without belonging to any.
HARMLESS_EXTENSIONS = ABOUT_EXTENSIONS | frozenset(b".html .htm .pdf .py .sh .ipynb .log .zip .tar .tgz .gz".split())

# Directories named for the part of a sample that they hold, rather than for what is seen in it.
ROLE_NAMES = frozenset(
    b"""
    image images img imgs jpegimages pngimages image_files imagefiles picture pictures photos frames frame
    image_0 image_1 image_2 image_3 leftimg8bit rightimg8bit audio audios wav wavs wave waves clips video
    videos mel mels spectrogram spectrograms features feature embedding embeddings f0 pitch label labels
    labelmap labelmaps label_map label_maps labelids lbl lbls labels_raw mask masks matte mattes alpha
    alphas trimap trimaps segmentation segmentations segmentationclass segmentationobject segmentation_masks
    segmap segmaps seg segs semantic semantics instance instances instance_masks panoptic gt gts gtfine
    gtcoarse ground_truth groundtruth ground-truth truth annotation annotations annot annots ann anns bbox
    bboxes boxes bounding_boxes keypoint keypoints landmark landmarks pose poses caption captions transcript
    transcripts transcription transcriptions subtitles text texts txt metadata meta imagesets image_sets
    filelists file_lists lists splits rgb rgbs color colour depth depths depth_map depth_maps depthmap
    depthmaps disparity disparities disp normal_map normal_maps normals surface_normals flow flows
    optical_flow edge edges thermal infrared ir nir visible lidar radar velodyne albedo shading input inputs
    target targets output outputs reference references source_images target_images lr hr low high lowres
    highres low_res high_res low_resolution high_resolution lr_bicubic noisy noise clean denoised blur
    blurry blurred sharp rain rainy norain hazy haze degraded before after left right trainA trainB testA
    testB valA valB anchor anchors query queries gallery probe support content style unlabeled unlabelled
    unsup unsupervised t1 t1ce t1c t1w t2 t2w flair dwi adc blobs snapshots refs thumbnails thumbs
    """.lower().split()
)


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """What the checks look at: the tree, its samples, the directories that hold them (P) and those above (G)."""

    tree: Tree
    samples: NDArray[np.int64]  # entries, ascending
    holders: NDArray[np.int64]  # P, ascending
    above: NDArray[np.int64]  # G, ascending
    hidden: NDArray[np.bool_]  # [N]
    grouped: bool

    def path(self, entry: int) -> str:
        return show(self.tree.path(int(entry)))

    def name(self, entry: int) -> str:
        return show(self.tree.name(int(entry)))


Check = Callable[[Scene], str | None]


def find_doubt(tree: Tree, mask: NDArray[np.bool_], *, grouped: bool) -> str | None:
    """The first reason not to redirect by directory, with the option to use instead; None where there is no doubt.

    `mask` is bool[N], the sample files; `grouped` says that the user joined files to samples.
    """
    samples = np.flatnonzero(mask)
    holders = np.unique(tree.parent[samples]).astype(np.int64)
    above = np.unique(tree.parent[holders]).astype(np.int64)
    scene = Scene(tree, samples, holders, above, hidden(tree), grouped)
    for check in CHECKS:
        doubt = check(scene)
        if doubt is not None:
            return doubt
    return None


def links(scene: Scene) -> str | None:
    """A symlink or a second name shows one file under two directories."""
    tree = scene.tree
    if len(tree.link_entry):
        return f"{scene.path(tree.link_entry[0])} is a symlink, so a file may have two labels; {OPTIONS}"
    second = scene.samples[tree.nlink[scene.samples] > 1]
    if len(second):
        return f"{scene.path(second[0])} has another name (hard link), so a file may have two labels; {OPTIONS}"
    return None


def no_samples(scene: Scene) -> str | None:
    """There must be something to redirect."""
    if len(scene.samples):
        return None
    files = np.flatnonzero(scene.tree.kind_mask(stat.S_IFREG))
    if not len(files):
        return "the source holds no files"
    return (
        f"none of {len(files):,} files ({scene.path(files[0])}, …) counts as a sample; name the samples with"
        " --samples GLOB"
    )


def groups_given(scene: Scene) -> str | None:
    """With samples of several files, the tree's shape proves nothing."""
    return f"with --groups redoxfs does not guess the label; {OPTIONS}" if scene.grouped else None


def label_table(scene: Scene) -> str | None:
    """The labels may be in a file."""
    tree = scene.tree
    is_file = tree.kind_mask(stat.S_IFREG)
    suspect = np.array([name in TABLE_EXTENSIONS or name in COMPRESSED or not name for name in tree.extensions], bool)
    is_sample = np.zeros(len(tree), bool)
    is_sample[scene.samples] = True
    for entry in np.flatnonzero(is_file & suspect[tree.extension] & ~is_sample).tolist():
        if _looks_like_table(tree.name(entry).lower(), visible=not scene.hidden[entry]):
            return f"{scene.path(entry)} looks like a label table; {OPTIONS}"
    kinds = tree.extension[scene.samples]
    is_array = np.array([name in ARRAYS for name in tree.extensions], bool)[kinds]
    if is_array.any() and not is_array.all():
        entry = scene.samples[np.argmax(is_array)]
        return f"{scene.path(entry)} may hold labels of the other files; {OPTIONS}"
    return None


def _looks_like_table(name: bytes, *, visible: bool) -> bool:
    stem, dot, extension = name.rpartition(b".")
    if not dot or not stem:
        return visible and name in TABLE_NAMES
    extension = dot + extension
    if extension in COMPRESSED:
        inner = stem[stem.rfind(b".") :] if b"." in stem else b""
        return inner in TABLE_EXTENSIONS
    about = name.startswith(ABOUT_NAMES) and extension in ABOUT_EXTENSIONS
    return extension in TABLE_EXTENSIONS and not about and name not in LITTER


def role_directories(scene: Scene) -> str | None:
    """A directory is named for a part of a sample; the source itself may be (a mount of leftImg8bit alone)."""
    tree = scene.tree
    for root in tree.roots:
        own = root.rpartition(b"/")[2]
        if own.lower() in ROLE_NAMES:
            return f"the source is called {show(own)}, and its labels may lie beside it; {OPTIONS}"
    letters: dict[int, set[bytes]] = {}
    for entry in np.flatnonzero(tree.kind_mask(stat.S_IFDIR) & ~scene.hidden).tolist():
        name = tree.name(entry).lower()
        if name in ROLE_NAMES:
            return f"{scene.path(entry)} reads like one part of each sample rather than a class; {OPTIONS}"
        if len(name) == 1 and name.isalpha():
            letters.setdefault(int(tree.parent[entry]), set()).add(name)
    for parent, found in letters.items():
        # All of A to Z are classes (sign language); A and B alone are the two sides of a pair.
        if found == {b"a", b"b"}:
            return f"A and B in {scene.path(parent)} read like the two sides of a pair; {OPTIONS}"
    return None


def shape(scene: Scene) -> str | None:
    """All samples at one depth, in two or more directories below one parent, or below each of several splits."""
    tree = scene.tree
    if scene.holders[0] == 0:
        entry = scene.samples[np.argmax(tree.parent[scene.samples] == 0)]
        return f"{scene.path(entry)} lies at the top, in no class directory; {OPTIONS}"
    for holder in scene.holders.tolist():
        if is_split(tree.name(holder)):
            entry = scene.samples[np.argmax(tree.parent[scene.samples] == holder)]
            return f"{scene.path(entry)} lies directly in the split {scene.path(holder)}; {OPTIONS}"
    both = np.intersect1d(scene.holders, scene.above)
    if len(both):
        return f"{scene.path(both[0])} holds samples and directories of samples; {OPTIONS}"
    per_above = np.bincount(tree.parent[scene.holders])[scene.above]
    if per_above.min() < 2:
        above = int(scene.above[np.argmin(per_above)])
        only = int(scene.holders[np.argmax(tree.parent[scene.holders] == above)])
        return f"{scene.path(only)} is the only directory with samples in {scene.path(above)}; {OPTIONS}"
    if len(scene.above) == 1:
        return None
    beside = tree.parent[scene.above]
    if (beside != beside[0]).any():
        other = scene.above[np.argmax(beside != beside[0])]
        return (
            f"samples lie at more than one place: below {scene.path(scene.above[0])} and below {scene.path(other)};"
            f" {OPTIONS}"
        )
    for above in scene.above.tolist():
        if not is_split(tree.name(above)):
            return f"{scene.path(above)} holds directories of samples and is no split (train, val, …); {OPTIONS}"
    return None


def nested_splits(scene: Scene) -> str | None:
    """Splits at two levels, in the path or in the names of the files, leave open which of them the script goes by."""
    tree = scene.tree
    if is_split(tree.name(int(scene.above[0]))):
        entry = int(tree.parent[scene.above[0]])
        while entry:
            if is_split(tree.name(entry)):
                return f"{scene.path(scene.above[0])} is a split inside a split; {OPTIONS}"
            entry = int(tree.parent[entry])
    bits = split_of_name(tree, scene.samples)
    above = tree.parent[tree.parent[scene.samples]]
    _, first, inverse = np.unique(above, return_index=True, return_inverse=True)
    differs = np.flatnonzero(bits != bits[first][inverse])
    if len(differs):
        one, other = scene.samples[differs[0]], scene.samples[first[inverse[differs[0]]]]
        return f"{scene.path(one)} and {scene.path(other)} name different splits in one directory; {OPTIONS}"
    return None


def strangers(scene: Scene) -> str | None:
    """A file of an unknown format, beside the samples or where they would be, may be a part of one."""
    tree = scene.tree
    known = np.array([name in DATA_EXTENSIONS or name in HARMLESS_EXTENSIONS for name in tree.extensions], bool)
    counted = np.zeros(len(tree), bool)
    counted[scene.samples] = True
    strange = np.flatnonzero(tree.kind_mask(stat.S_IFREG) & ~known[tree.extension] & ~counted & ~scene.hidden)
    parent = tree.parent[strange]
    near = np.isin(parent, scene.holders) | np.isin(tree.parent[parent], scene.above)
    for entry in strange[near].tolist():
        if tree.name(entry).lower() not in LITTER:
            return f"{scene.path(entry)} lies among the samples and may belong to one of them; {OPTIONS}"
    return None


def parts_within(scene: Scene) -> str | None:
    """A sample must be one file: no 0001.jpg + 0001.png, no 0001.png + 0001_mask.png."""
    pair = mirrors.within(scene.tree, scene.samples)
    if pair is None:
        return None
    return (
        f"{scene.path(pair[0])} and {scene.name(pair[1])} may be parts of one sample; {IF_LABEL}, with --groups stem"
        " where files that share a stem belong together"
    )


def parts_across(scene: Scene) -> str | None:
    """No directory may hold the stems of its sibling: image and mask, left and right, frame and frame."""
    pair = mirrors.across(scene.tree, scene.samples)
    if pair is None:
        return None
    return (
        f"{scene.path(pair[0])} and {scene.path(pair[1])} may be parts of one sample (their names match); if the"
        " directory is the label: --classes dir"
    )


CHECKS: tuple[Check, ...] = (
    links,
    no_samples,
    groups_given,
    label_table,
    role_directories,
    shape,
    nested_splits,
    strangers,
    parts_within,
    parts_across,
)
