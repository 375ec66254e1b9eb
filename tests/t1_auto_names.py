"""`--classes auto` with names of files and directories that are doubts: rows of the table in docs/classes.md.

Each tree lies below two splits, which would be proof enough if the names were no doubt.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from t1_auto_verdicts import ANY, DIR, catalog, cats_and_dogs, check_redirected, check_refused, imagenet, made, make

Build = Callable[[Path], None]


def below(build: Build) -> Build:
    """The tree below two splits."""

    def build_both(root: Path) -> None:
        for split in ("train", "test"):
            (root / split).mkdir()
            build(root / split)

    build_both.__name__ = build.__name__
    return build_both


def food101(root: Path) -> None:
    for at, name in enumerate(("apple_pie", "baby_back_ribs", "baklava")):
        make(root, *(f"{name}/{1005649 + at * 7919 + i * 104729}.jpg" for i in range(12)))


def split_and_class_named_files(root: Path) -> None:
    for split in ("train", "val"):
        for name in ("airplane", "automobile"):
            make(root, *(f"{split}/{name}/{split}-{name}-{i}.png" for i in range(10)))


def eurosat(root: Path) -> None:
    for name in ("AnnualCrop", "Forest", "SeaLake"):
        make(root, *(f"{name}/{name}_{i}.jpg" for i in range(1, 12)))


def stanford_dogs(root: Path) -> None:
    for name in ("n02085620-Chihuahua", "n02085782-Japanese_spaniel"):
        make(root, *(f"{name}/{name[:9]}_{i * 37}.jpg" for i in range(12)))


def digits(root: Path) -> None:
    for name in range(10):
        make(root, *(f"{name}/{i * 10 + name}.png" for i in range(12)))


def numbered_classes(root: Path) -> None:
    for name in range(3):
        make(root, *(f"class_{name}/{i * 10 + name}.png" for i in range(12)))


def flowers(root: Path) -> None:
    make(root, "LICENSE.txt")
    for at, name in enumerate(("daisy", "tulips")):
        for i, size in enumerate(("", "_n", "_m", "_n", "_m", "", "_z", "_z")):
            make(root, f"{name}/{10140303 + at * 50 + i}_{0xB88D3D6CEC + i * 7919 + at:x}{size}.jpg")


def random_names(root: Path) -> None:
    for at, name in enumerate(("plant", "insect")):
        for i in range(40):
            text = hashlib.md5(f"{at} {i}".encode()).hexdigest()
            make(root, f"{name}/{uuid.UUID(text)}.jpg")
        make(root, *(f"{name}/picture of {word} {name}.jpg" for word in ("a green", "some", "my")))


def speech_commands(root: Path) -> None:
    for at, name in enumerate(("yes", "no")):
        make(root, *(f"{name}/{0x0A7C2A8D + at * 977 + i * 65537:08x}_nohash_{i % 3}.wav" for i in range(20)))


def birds(root: Path) -> None:
    for at, name in enumerate(("001.Black_footed_Albatross", "002.Laysan_Albatross")):
        make(root, *(f"{name}/{name[4:]}_{i:04d}_{796111 + at * 50 + i}.jpg" for i in range(12)))


def glued_splits(root: Path) -> None:
    for at, split in enumerate(("trainset", "testset")):
        for name in ("cat", "dog"):
            make(root, *(f"{split}/{name}/{name}{at}{i}.jpg" for i in range(5)))


def documents_beside(root: Path) -> None:
    cats_and_dogs(root)
    make(root, "paper.pdf", "index.html", "cats_and_dogs.zip", "all.tar.gz", "download.sh", "AUTHORS")


def label_in_the_name(root: Path) -> None:
    for at, name in enumerate(("NORMAL", "PNEUMONIA")):
        make(root, *(f"{name}/IM-{i * 17 + at:04d}-0001.jpeg" for i in range(20) if not at))
        make(root, *(f"{name}/person{i * 31}_{'bacteria' if i % 2 else 'virus'}_{i * 7}.jpeg" for i in range(20) if at))


def rare_label_in_the_name(root: Path) -> None:
    make(root, *(f"left_lung/scan_{i:04d}.png" for i in range(150)))
    make(root, *(f"right_lung/scan_{i:04d}.png" for i in range(200, 350)))
    make(root, "right_lung/tumor_1.png", "right_lung/tumor_2.png")


def products(root: Path) -> None:
    for at, name in enumerate(("bicycle_final", "chair_final")):
        make(root, *(f"{name}/{111085122871 + at * 999 + i * 31}_{k}.JPG" for i in range(6) for k in range(3)))


def frames(root: Path) -> None:
    for at, name in enumerate(("jump", "run")):
        make(root, *(f"{name}/clip_v{at * 9 + v:02d}_f{f:03d}.jpg" for v in range(3) for f in range(5)))


def folds(root: Path) -> None:
    for fold in (1, 2):
        make(root, *(f"fold{fold}/{fold * 1000 + i * 7}.wav" for i in range(8)))


def cameras(root: Path) -> None:
    make(root, *(f"cam_a/{i * 7}.bmp" for i in range(8)), *(f"cam_b/{1000 + i * 7}.bmp" for i in range(8)))


def speakers(root: Path) -> None:
    for speaker in (225, 226, 227):
        make(root, *(f"p{speaker}/p{speaker}_{i:03d}.wav" for i in range(8)))


def padded_numbers(root: Path) -> None:
    for shard in range(3):
        make(root, *(f"{shard:04d}/{i * 100 + shard}.jpg" for i in range(1, 9)))


def hex_shards(root: Path) -> None:
    for shard in ("0a", "b3", "cd"):
        make(root, *(f"{shard}/{hashlib.md5(f'{shard}{i}'.encode()).hexdigest()}.jpg" for i in range(8)))


def ids(root: Path) -> None:
    for speaker in (19, 1034, 8975):
        make(root, *(f"{speaker}/{speaker * 100 + i}.flac" for i in range(8)))


def days(root: Path) -> None:
    for day in (1, 2, 3):
        make(root, *(f"2021-06-{day:02d}/IMG_{day * 100 + i}.JPG" for i in range(8)))


def split_directories(root: Path) -> None:
    for at, name in enumerate(("bounding_box_train", "bounding_box_test")):
        make(root, *(f"{name}/{at * 1000 + i}.jpg" for i in range(8)))


def glued_split_directories(root: Path) -> None:
    for at, name in enumerate(("mytrain", "mytest")):
        make(root, *(f"{name}/{at * 1000 + i}.jpg" for i in range(8)))


def training_set(root: Path) -> None:
    for at, name in enumerate(("TrainingSet", "TestSet")):
        make(root, *(f"{name}/{at * 1000 + i}.jpg" for i in range(8)))


def super_resolution(root: Path) -> None:
    make(root, *(f"sharp_ones/{i:04d}.png" for i in range(8)), *(f"bicubic/{i:04d}x4.png" for i in range(8)))


def own_name_inside(root: Path) -> None:
    for name in ("radar_one", "optics"):
        make(root, *(f"{name}/ROIs1158_spring_{name}_p{i}.tif" for i in range(8)))


def letter_before(root: Path) -> None:
    make(root, *(f"eyes/{i:04d}.png" for i in range(8)), *(f"iris/M{i:04d}.png" for i in range(8)))


def unknown_at_the_top(root: Path) -> None:
    imagenet(root)
    make(root, "boxes.dat")


def extensionless(root: Path) -> None:
    cats_and_dogs(root)
    make(root, "train-idx1-ubyte")


def named_like_about(root: Path) -> None:
    cats_and_dogs(root)
    make(root, "README_labels.txt")


def label_archive(root: Path) -> None:
    cats_and_dogs(root)
    make(root, "annotations.zip")


def label_page(root: Path) -> None:
    cats_and_dogs(root)
    make(root, "ground_truth.html")


def packed_unknown(root: Path) -> None:
    cats_and_dogs(root)
    make(root, "things.tab.gz")


def goes_on(root: Path) -> None:
    for split in ("train", "test"):
        for at, name in enumerate(("VG_100K", "VG_100K_2")):
            make(root, *(f"{split}/{name}/{2316003 + at * 977 + i * 7}.jpg" for i in range(8)))


def digits_and_words(root: Path) -> None:
    """A directory's number is not part of a camera's number: 8/IMG_1280 and 7/IMG_1270 are unrelated."""
    for number in (7, 8):
        make(root, *(f"{number}/IMG_1{at}{number}0.jpg" for at in range(1, 9)))
    make(root, *(f"none/IMG_{3000 + i * 7}.jpg" for i in range(8)))


# Trees below two splits whose file names have no more information than their directories.
REDIRECTED: list[tuple[Build, int]] = [
    (food101, 6),
    (eurosat, 6),
    (stanford_dogs, 4),
    (numbered_classes, 6),
    (flowers, 4),
    (random_names, 4),
    (speech_commands, 4),
    (birds, 4),
    (digits_and_words, 6),
]

# (the tree, words that the line must have, the options that it suggests besides a table)
REFUSED: list[tuple[Build, str, set[str]]] = [
    (below(digits), "the names of all their directories are numbers", {DIR, ANY}),
    (below(label_in_the_name), "lie in one directory and are named differently", {DIR}),
    (below(rare_label_in_the_name), "right_lung/scan_0200.png and tumor_1.png lie in one directory", {DIR}),
    (below(products), "bicycle_final/111085122871_0.JPG and 111085122902_0.JPG lie in one directory", {DIR}),
    (below(frames), "jump/clip_v00_f000.jpg and clip_v01_f000.jpg lie in one directory", {DIR}),
    (below(folds), "fold1 and test/fold2 are named like numbered things", {ANY}),
    (below(cameras), "cam_a and test/cam_b are named like numbered things", {ANY}),
    (below(speakers), "p225 and test/p226 are named like numbered things", {DIR, ANY}),
    (below(padded_numbers), "0000 and test/0001 are named like numbered things", {ANY}),
    (below(hex_shards), "0a and test/b3 are named like numbered things", {DIR, ANY}),
    (below(ids), "1034 and test/19 are named like numbered things", {ANY}),
    (below(days), "2021-06-01 and test/2021-06-02 are named like numbered things", {DIR, ANY}),
    (goes_on, "VG_100K and test/VG_100K_2 are named like numbered things", {DIR, ANY}),
    (split_directories, "bounding_box_test/1000.jpg lies directly in the split bounding_box_test", {ANY}),
    (glued_split_directories, "mytest and mytrain are named like splits", {ANY}),
    (training_set, "lies directly in the split TestSet", {ANY}),
    (below(super_resolution), "bicubic/0000x4.png and test/sharp_ones/0000.png may be parts of one sample", {DIR}),
    (
        below(own_name_inside),
        "optics/ROIs1158_spring_optics_p0.tif and test/radar_one/ROIs1158_spring_radar_one",
        {DIR},
    ),
    (below(letter_before), "eyes/0000.png and test/iris/M0000.png may be parts of one sample", {DIR}),
    (unknown_at_the_top, "boxes.dat looks like a label table", {DIR}),
    (extensionless, "train-idx1-ubyte is not a sample and may hold labels", {DIR}),
    (named_like_about, "README_labels.txt looks like a label table", {DIR}),
    (label_archive, "annotations.zip looks like a label table", {DIR}),
    (label_page, "ground_truth.html looks like a label table", {DIR}),
    (packed_unknown, "things.tab.gz is not a sample and may hold labels", {DIR}),
]


@pytest.mark.parametrize(("build", "directories"), REDIRECTED, ids=[row[0].__name__ for row in REDIRECTED])
def test_these_file_names_are_no_doubt(tmp_path: Path, build: Build, directories: int) -> None:
    root = made(tmp_path, below(build))
    check_redirected(root, f"{directories} class directories", {"train": True, "test": True})


@pytest.mark.parametrize(
    ("build", "directories"),
    [(split_and_class_named_files, 4), (glued_splits, 4), (documents_beside, 4)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_these_other_files_are_no_doubt(tmp_path: Path, build: Build, directories: int) -> None:
    assert catalog(made(tmp_path, build)).verdict.line.startswith(f"redirecting within {directories} class directories")


@pytest.mark.parametrize(("build", "words", "offered"), REFUSED, ids=[row[0].__name__ for row in REFUSED])
def test_nothing_is_redirected_of(tmp_path: Path, build: Build, words: str, offered: set[str]) -> None:
    check_refused(made(tmp_path, build), words, offered)
