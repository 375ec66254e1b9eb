"""`--classes auto` on public datasets as they unpack: none of its classes mixes labels or splits.

`public_trees` has the trees and the truth. Only the truth judges the classes: two samples of one class must have one
label and one split, whatever the verdict is.
"""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path, PurePosixPath

import pytest
from packs import opened
from public_trees import TREES, Public

from redoxfs.dataset import Catalog, build_catalog, read_tree
from redoxfs.dataset.samples import DATA_EXTENSIONS

pytestmark = pytest.mark.slow

SEEN = [tree for tree in TREES if not tree.blind]
BLIND = [tree for tree in TREES if tree.blind]

NAIVELY_MIXED = 403
"""Trees that mix labels or splits if each directory is a class."""

MIXED_BY_DIR = 231
"""Trees that `--classes dir`, which takes the user's word, mixes."""

REDIRECTED = 25
"""Trees in which auto redirects anything."""

# Trees of which auto redirects no split, or not every split, although the directory is the label.
_KEPT_BACK = """
10-monkey-species 100-sports 140k-real-and-fake-faces alzheimers-dataset asl-alphabet AwA2
BelgiumTSC birds_525 blood-cells blood_cells_images brain-tumor-classification-mri
brain_tumor_validation_split Brain-Tumor-MRI-Dataset butterfly-images40-species by_class C-NMC_Leukemia
cards-image-dataset CASIA-WebFace cat-and-dog cats_and_dogs_filtered CelebA_Spoof chest-ctscan-images
chest-xray-pneumonia_as_zipped chest_xray cifake CIFAR-10-images cifar10_fastai CINIC-10 CommonLanguage
deepfake-and-real-images deepfashion_inshop ESD fashion_mnist_png Food-101N_release food11
fruit-and-vegetable-image-recognition fruits-360_dataset gnt_exported GTSRB gtsrb-german-traffic-sign
herbarium-2022 horse-or-human ImageNet-9 imagenet-a imagenet-c imagenet-object-localization-challenge
imagenet-r imagenet100_kaggle imagenet21k_resized imagenet_torchvision ImageNetS50 imagenette2
imagenetv2-matched-frequency-format-val intel-image-classification IRMAS kather_crc kinetics400
kinetics400_videos KneeOA linnaeus5 lrw lsun_scenes MARS Million-AID MIO-TCD-Classification mnist_png
Moments_in_Time_Raw MS1M MURA-v1.1 mvtec_anomaly_detection new-plant-diseases-dataset
new-plant-diseases-dataset_inner notMNIST objectnet-1.0 oct-c8 OCT2017 office31
OfficeHomeDataset_10072016 omniglot PACS paddy-disease-classification pcam_png places365_easyformat
places365_large places365_standard plant-seedlings-classification plantnet_300K raf-db rps semi-inat
simpsons_dataset sketch stable_diffusion_v_1_4 stanford-car-dataset-by-classes-folder
state-farm-distracted-driver-detection svhn_exported terra_incognita tiny-imagenet-200 ucf_crime
VGGFace2 vggface2_train_alone visda-2017 VoxCeleb1 voxceleb1_wav voxlingua107 webvision
"""
KEPT_BACK = frozenset(_KEPT_BACK.split())

# Making tens of thousands of files takes longer than all other work here on a busy disk.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None


@cache
def classes_of(tree: Public) -> dict[str, list[list[str]]]:
    """The classes of `--classes` auto and dir, as paths below the archive."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as top, opened(tree.build(Path(top))) as fd:
        scanned = read_tree(fd, workers=1)
        return {value: paths_of(tree, build_catalog(scanned, classes=value)) for value in ("auto", "dir")}


def paths_of(tree: Public, found: Catalog) -> list[list[str]]:
    made: list[list[str]] = [[] for _ in found.class_names]
    for sample, number in enumerate(found.class_of.tolist()):
        path = found.tree.path(int(found.members[found.member_at[sample]])).decode()
        made[number].append(str(PurePosixPath(tree.source) / path))
    return made


def directories_of(tree: Public) -> list[list[str]]:
    """The classes if every directory is a label."""
    directories: dict[PurePosixPath, list[str]] = {}
    for path in map(PurePosixPath, tree.files):
        is_data = path.suffix.lower().encode() in DATA_EXTENSIONS or path.name.lower().endswith(".nii.gz")
        if path.is_relative_to(tree.source) and is_data:
            directories.setdefault(path.parent, []).append(str(path))
    return list(directories.values())


def pure_splits(tree: Public) -> tuple[set[str], set[str]]:
    """The splits in which no directory mixes, among splits with a directory of two or more samples; and all splits."""
    every, several, mixed = set(), set(), set()
    for paths in directories_of(tree):
        splits = {tree.split(path) for path in paths}
        every |= splits
        several |= splits if len(paths) > 1 else set()
        mixed |= splits if tree.mixing([paths]) else set()
    return several - mixed, every


def ideal_of(tree: Public) -> str:
    pure, every = pure_splits(tree)
    if not pure:
        return "none"
    if pure != every:
        return " ".join(sorted(pure))
    labels = {tree.label(path) for paths in directories_of(tree) for path in paths}
    return "dir" if len(labels) > 1 else "any"


def kept_back(tree: Public, made: list[list[str]]) -> set[str]:
    """The splits in which the directory is the label, but no two samples stand in for each other."""
    if tree.ideal == "any":
        return set()
    redirected = {tree.split(path) for paths in made if len(paths) > 1 for path in paths}
    return pure_splits(tree)[0] - redirected


@pytest.mark.parametrize("tree", TREES, ids=[tree.name for tree in TREES])
def test_the_ideal_answer_follows_from_the_truth_of(tree: Public) -> None:
    assert " ".join(sorted(tree.ideal.split())) == ideal_of(tree)


@pytest.mark.parametrize("tree", SEEN, ids=[tree.name for tree in SEEN])
def test_auto_mixes_neither_labels_nor_splits_of(tree: Public) -> None:
    assert tree.mixing(classes_of(tree)["auto"]) == []


@pytest.mark.parametrize("tree", BLIND, ids=[tree.name for tree in BLIND])
def test_auto_mixes_what_no_name_in_the_source_shows(tree: Public) -> None:
    assert tree.mixing(classes_of(tree)["auto"]) != []


def test_the_judge_finds_what_mixes_if_every_directory_is_a_label() -> None:
    assert sum(bool(tree.mixing(directories_of(tree))) for tree in TREES) == NAIVELY_MIXED


def test_dir_mixes_the_known_number_of_trees() -> None:
    assert sum(bool(tree.mixing(classes_of(tree)["dir"])) for tree in TREES) == MIXED_BY_DIR


def test_auto_redirects_the_known_number_of_trees() -> None:
    assert sum(any(len(paths) > 1 for paths in classes_of(tree)["auto"]) for tree in TREES) == REDIRECTED


def test_auto_refuses_the_known_trees_whose_directory_is_the_label() -> None:
    assert {tree.name for tree in TREES if kept_back(tree, classes_of(tree)["auto"])} == KEPT_BACK
