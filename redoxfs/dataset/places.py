"""Checks on directories for `--classes auto` (see evidence): do their names and places read like classes?"""

from __future__ import annotations

import re
import stat

import numpy as np

from redoxfs.dataset.errors import show
from redoxfs.dataset.scene import OPTIONS, Scene
from redoxfs.dataset.splits import is_split, names_split, split_of_name, without_split

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
    unsup unsupervised labeled labelled day night t1 t1ce t1c t1w t2 t2w flair dwi adc blobs snapshots refs
    thumbnails thumbs
    """.lower().split()
)

# What is counted rather than named: fold3, Actor_01, cam_a. A letter counts behind a separator only (camp, party).
_COUNTED = re.compile(
    rb"(?:fold|part|batch|shard|chunk|subset|split|set|group|actor|speaker|spk|subject|subj|sub|patient|person|user|cam|camera"
    rb"|seq|sequence|session|video|vid|clip|scene|frame|view|day|run|trial|take|dir|folder|volume|vol)s?"
    rb"(?:[-_ .]?\d+|[-_ .][a-z])",
    re.IGNORECASE,
)
# Names with a number that are those of classes all the same: n01440764 (WordNet), class_3.
_CLASS_NUMBER = re.compile(
    rb"n\d{8}|(?:class|classes|cls|category|label|type|grade|species|digit)[-_ .]?\d+", re.IGNORECASE
)
_HEX = re.compile(rb"[0-9a-f]{2,4}", re.IGNORECASE)
# Classes 0 … 9 lack few numbers in between; what lacks more than half of them are somebody's ids.
GAPS_MAX = 10


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


def split_classes(scene: Scene) -> str | None:
    """images_train beside images_test, mytrain beside mytest: splits, where classes should be."""
    tree = scene.tree
    suspects = set(scene.holders.tolist())
    for above in scene.above.tolist():
        entry = above
        while entry and entry not in suspects:
            suspects.add(entry)
            entry = int(tree.parent[entry])
    bare: dict[tuple[int, bytes], tuple[bytes, int]] = {}
    for entry in sorted(suspects):
        name = tree.name(entry)
        if is_split(name):
            continue
        if names_split(name):
            return f"{scene.path(entry)} is named like a split rather than a class; {OPTIONS}"
        found = without_split(name)
        if found is None:
            continue
        word, rest = found
        first = bare.setdefault((int(tree.parent[entry]), rest), (word, entry))
        if first[0] != word:
            return (
                f"{scene.path(first[1])} and {scene.path(entry)} are named like splits rather than classes; {OPTIONS}"
            )
    return None


def numbered(scene: Scene) -> str | None:
    """Directories that count things (fold1, Actor_01, 0000, a3) rather than name classes."""
    tree = scene.tree
    siblings: dict[int, list[int]] = {}
    for holder in scene.holders.tolist():
        siblings.setdefault(int(tree.parent[holder]), []).append(holder)
    for holders in siblings.values():
        pair = _counted([tree.name(holder) for holder in holders])
        if pair is not None:
            one, other = (scene.path(holders[at]) for at in pair)
            return f"{one} and {other} read like numbered things rather than classes; {OPTIONS}"
    return None


def _counted(names: list[bytes]) -> tuple[int, int] | None:
    """Two of the names (places in the list) of siblings that show that these are numbered, or None."""
    counted = [at for at, name in enumerate(names) if _COUNTED.fullmatch(name)]
    if len(counted) >= 2:
        return counted[0], counted[1]
    if all(_HEX.fullmatch(name) for name in names) and len({len(name) for name in names}) == 1:
        # "bad", "cab" and "face" are words too; "ab" and "cd" hardly.
        digits = any(re.search(rb"\d", name) for name in names)
        if (digits or len(names[0]) == 2) and not all(name.isdigit() for name in names):
            return 0, 1
    alike: dict[bytes, list[int]] = {}
    for at, name in enumerate(names):
        if not _CLASS_NUMBER.fullmatch(name):
            alike.setdefault(re.sub(rb"\d+", b"#", name.lower()), []).append(at)
    plain = alike.pop(b"#", [])
    if any(names[at].startswith(b"0") and len(names[at]) > 1 for at in plain) or (
        len(plain) > 1 and max(int(names[at]) for at in plain) > 2 * len(plain) + GAPS_MAX
    ):
        alike[b"#"] = plain
    series = [ats for skeleton, ats in alike.items() if b"#" in skeleton and len(ats) >= 2]
    # FGVC-Aircraft has 737-200 and 747-300 among other names: some numbers do not make a numbering, half of them do.
    if 2 * sum(map(len, series)) >= len(names):
        return (series[0][0], series[0][1]) if series else None
    return None
