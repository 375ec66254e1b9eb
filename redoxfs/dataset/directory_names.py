"""Checks on the names of directories for `--classes auto` (see evidence): could they name classes?"""

from __future__ import annotations

import os
import re
import stat

import numpy as np

from redoxfs.dataset.errors import show
from redoxfs.dataset.scene import Against, Doubt, Scene

# Directories named for the part of a sample that they hold, rather than for its content.
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
    blurry blurred sharp rain rainy norain hazy haze degraded before after pre post left right trainA trainB testA
    testB valA valB anchor anchors query queries gallery probe support content style unlabeled unlabelled
    unsup unsupervised labeled labelled day night t1 t1ce t1c t1w t2 t2w flair dwi adc blobs snapshots refs
    thumbnails thumbs
    """.lower().split()
)

# Of these, the words that a folder of plain data is called by, too: ~/audio/dog/1.wav.
_KIND_NAMES = frozenset(
    b"image images img imgs picture pictures photos audio audios wav wavs wave waves clips video videos".split()
)

# Numbered things: fold3, Actor_01, cam_a. A letter counts only after a separator (camp, party).
_COUNTED = re.compile(
    rb"(?:fold|part|batch|shard|chunk|subset|split|set|group|actor|speaker|spk|subject|subj|sub|patient|person|user|cam|camera"
    rb"|seq|sequence|session|video|vid|clip|scene|frame|view|day|run|trial|take|dir|folder|volume|vol)s?"
    rb"(?:[-_ .]?\d+|[-_ .][a-z])",
    re.IGNORECASE,
)
# Names of classes that have a number: n01440764 (WordNet), class_3.
_CLASS_NUMBER = re.compile(
    rb"n\d{8}|(?:class|classes|cls|category|label|type|grade|species|digit)[-_ .]?\d+", re.IGNORECASE
)
# Shards, hashes and UUIDs.
_HEX = re.compile(rb"[0-9a-f]{2,4}|[0-9a-f]{8,}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
# Classes 0 … 9 lack few numbers in between. If more than half are missing, the numbers are ids.
GAPS_MAX = 10


# Words for sensors and their positions. A directory is a sensor's if all words of its name are in this list.
_SENSORS = frozenset(
    b"""
    cam cams camera cameras webcam kinect gopro stereo mono ring lidar lidars radar radars sensor sensors
    velodyne imu mic mics microphone channel ch fisheye wide narrow tele event events front back rear side left
    right center centre middle mid top bottom upper lower inner outer forward backward fl fr rl rr bl br fv rv lv
    mvl mvr view
    """.split()
)


def role_directories(scene: Scene) -> Doubt | None:
    """No directory may be named for a part of a sample, nor the source itself (a mount of leftImg8bit alone)."""
    tree = scene.tree
    for root in tree.roots:
        *_, above, own = (b"", *root.split(b"/"))
        if own.lower() in ROLE_NAMES:
            word = show(own)
            doubt = f"the source is called {word}, which names a part of each sample, so its labels may lie beside it"
            only_kind = f"if {word} names only the kind of its files, and the directory is the label: --classes dir"
            return Doubt(doubt, Against.DIR, only_kind if own.lower() in _KIND_NAMES else "")
        if scene.own_split and above.lower() in ROLE_NAMES:
            return Doubt(f"the source lies in {show(above)}, and its labels may lie beside that", Against.DIR)
    directories = np.flatnonzero(tree.kind_mask(stat.S_IFDIR) & ~scene.hidden).tolist()
    names = {entry: tree.name(entry).lower() for entry in directories}
    roles = [entry for entry, name in names.items() if name in ROLE_NAMES]
    if roles:
        # A single part, such as images, may be the whole sample.
        against = Against.DIR if len({names[entry] for entry in roles}) == 1 else Against.DIR | Against.ANY
        return Doubt(f"{scene.path(roles[0])} is named like a part of each sample, not like a class", against)
    letters: dict[int, set[bytes]] = {}
    for entry, name in names.items():
        if len(name) == 1 and name.isalpha():
            letters.setdefault(int(tree.parent[entry]), set()).add(name)
    for parent, found in letters.items():
        # A to Z are classes (sign language). A and B alone are the two sides of a pair.
        if found == {b"a", b"b"}:
            what = f"A and B in {scene.path(parent)} are named like the two sides of a pair"
            return Doubt(what, Against.DIR | Against.ANY)
    if scene.own_split:
        for name_beside in scene.beside.names.directories:
            name = os.fsencode(name_beside)
            if name.lower() in ROLE_NAMES:
                return Doubt(f"{show(name)} beside the source is named like a part of each sample", Against.DIR)
    return None


def numbered(scene: Scene) -> Doubt | None:
    """No directories that number things (fold1, Actor_01, 0000, a3)."""
    for holders in scene.trees.classes.values():
        names = [scene.tree.name(holder) for holder in holders]
        counted = [at for at, name in enumerate(names) if _COUNTED.fullmatch(name)]
        pair, against = _numbering(names), Against.DIR_UNPROVEN
        if len(counted) >= 2:
            pair, against = (counted[0], counted[1]), Against.DIR
        if pair is not None:
            one, other = (scene.path(holders[at]) for at in pair)
            return Doubt(f"{one} and {other} are named like numbered things, not like classes", against)
    return None


def sensors(scene: Scene) -> Doubt | None:
    """No directories named for the camera or sensor of their samples (cam_front, lidar_top, left, rear)."""
    for holders in scene.trees.classes.values():
        found = [holder for holder in holders if _is_sensor(scene.tree.name(holder))]
        if len(found) >= 2 and 2 * len(found) >= len(holders):
            one, other = (scene.path(holder) for holder in found[:2])
            return Doubt(
                f"{one} and {other} are named like cameras or sensors, not like classes", Against.DIR | Against.ANY
            )
    return None


def _is_sensor(name: bytes) -> bool:
    # CamFront and cam2 are two words each.
    words = re.findall(rb"[A-Z]?[a-z]+|[A-Z]+|[\x80-\xff]+", name)
    return bool(words) and all(word.lower() in _SENSORS for word in words)


def _numbering(names: list[bytes]) -> tuple[int, int] | None:
    """Two names (indices) of siblings that differ only in numbers, if at least half of the siblings do; or None."""
    if all(_HEX.fullmatch(name) for name in names) and len({len(name) for name in names}) == 1:
        # "bad", "cab" and "face" are also words; "ab" and "cd" hardly.
        digits = any(re.search(rb"\d", name) for name in names)
        if (digits or len(names[0]) == 2) and len(names) > 1 and not all(name.isdigit() for name in names):
            return 0, 1
    skeletons = [re.sub(rb"\d+", b"#", name.lower()) for name in names]
    # VG_100K_2 continues VG_100K, which has no number of its own.
    first = {_without_number(skeleton) for skeleton in skeletons}.intersection(skeletons) - {b"", b"#"}
    alike: dict[bytes, list[int]] = {}
    for at, (name, skeleton) in enumerate(zip(names, skeletons, strict=True)):
        if not _CLASS_NUMBER.fullmatch(name):
            begun = skeleton if skeleton in first else _without_number(skeleton)
            alike.setdefault(begun + b"_#" if begun in first else skeleton, []).append(at)
    plain = alike.pop(b"#", [])
    if any(names[at].startswith(b"0") and len(names[at]) > 1 for at in plain) or (
        len(plain) > 1 and max(int(names[at]) for at in plain) > 2 * len(plain) + GAPS_MAX
    ):
        alike[b"#"] = plain
    series = [ats for skeleton, ats in alike.items() if b"#" in skeleton and len(ats) >= 2]
    # FGVC-Aircraft has 737-200 and 747-300 among other names: a few numbers are no numbering, half of the names are.
    if 2 * sum(map(len, series)) >= len(names):
        return (series[0][0], series[0][1]) if series else None
    return None


def _without_number(skeleton: bytes) -> bytes:
    """The part before a separate number at the end; empty if there is none."""
    found = re.fullmatch(rb"(.+)[-_. ]#", skeleton)
    return found[1] if found else b""
