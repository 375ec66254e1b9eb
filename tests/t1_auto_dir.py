"""`--classes dir`: directories that it does not take for classes, and its warnings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from auto_trees import TREES, make
from t1_auto_verdicts import catalog, made

Build = Callable[[Path], None]


def redirected(root: Path, groups: str | None = None) -> dict[str, int]:
    """The samples of each class."""
    found = catalog(root, "dir", groups)
    return dict(Counter(found.class_names[number] for number in found.class_of.tolist()))


def with_a_sample_at_the_top(root: Path) -> None:
    TREES["cats_and_dogs"].build(root)
    make(root, "logo.png")


def with_a_folder_of_all(root: Path) -> None:
    TREES["cats_and_dogs"].build(root)
    make(root, *(f"all/{i}.jpg" for i in range(5)), *(f"train/cats/more/{i}.jpg" for i in range(3)))


def with_flat_splits_among_classes(root: Path) -> None:
    for at, name in enumerate(("cats", "dogs", "val", "all_test_640")):
        make(root, *(f"{name}/{at}{i}.jpg" for i in range(4)))


TABLE = "--classes FILE.csv, for one label a file (boxes, pairs and order would be wrong)"

CATS_AND_DOGS = {"train/cats": 8, "train/dogs": 8, "validation/cats": 4, "validation/dogs": 4}


@pytest.mark.parametrize(
    ("build", "classes", "said"),
    [
        (
            TREES["imagenet_as_downloaded"].build,
            {"train/n01440764": 12, "train/n01443537": 12},
            "not redirected: 20 samples directly in a split (test, val); to redirect them: " + TABLE,
        ),
        (
            with_flat_splits_among_classes,
            {"cats": 4, "dogs": 4},
            "not redirected: 8 samples directly in a split (all_test_640, val); to redirect them: " + TABLE,
        ),
        (
            with_a_sample_at_the_top,
            CATS_AND_DOGS,
            "not redirected: 1 sample in the source itself; to redirect them: " + TABLE,
        ),
        (
            with_a_folder_of_all,
            CATS_AND_DOGS,
            "not redirected: 8 samples in a directory with no other class beside it (all,"
            " train/cats/more); to redirect them: " + TABLE,
        ),
    ],
)
def test_samples_in_no_class_directory_are_not_redirected(
    tmp_path: Path, build: Build, classes: dict[str, int], said: str
) -> None:
    root = made(tmp_path, build)
    assert redirected(root) == classes
    verdict = catalog(root, "dir").verdict
    assert verdict.saw[-1] == said
    exact = sum(finding.samples for finding in verdict.splits if not finding.redirected)
    assert exact == int(said.split()[2])
    assert sum(finding.samples for finding in verdict.splits if finding.redirected) == sum(classes.values())


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (
            TREES["coco_without_annotations"].build,
            "10 samples directly in a split (train2017,",
        ),
        (
            TREES["oxford_pets"].build,
            "20 samples in a directory with no other class beside it (images,",
        ),
        (TREES["msr_vtt"].build, "16 samples directly in a split (TestVideo, TrainValVideo)"),
    ],
)
def test_no_possible_class_directory_means_no_redirection(tmp_path: Path, build: Build, words: str) -> None:
    found = catalog(made(tmp_path, build), "dir")
    assert found.verdict.line.startswith(f"not redirecting: {words}")
    assert found.verdict.line.endswith(f"; to redirect them: {TABLE}")
    assert not len(found.class_of)


def test_a_directory_in_one_of_its_own_name_counts_once(tmp_path: Path) -> None:
    assert redirected(made(tmp_path, TREES["intel"].build)) == {
        f"seg_{split}/seg_{split}/{name}": 8 for split in ("train", "test") for name in ("buildings", "sea")
    }


def with_a_table(root: Path) -> None:
    TREES["cats_and_dogs"].build(root)
    make(root, "train.csv")


PAIR = "benign/benign (0).png and benign (0)_mask.png may be parts of one sample; --classes dir may answer one"
TOGETHER = "--groups is for scripts that open the files of a sample together, each time; one that reads all labels"
SINGLE = "nothing is named like a validation split: if the script makes a split itself (random_split, validation_split,"


@pytest.mark.parametrize(
    ("build", "groups", "warnings"),
    [
        (TREES["cats_and_dogs"].build, None, []),
        (TREES["listed_classes"].build, None, []),
        (with_a_table, None, ["train.csv looks like a label table; --classes dir does not read it"]),
        (TREES["flower_photos"].build, None, [SINGLE]),
        (TREES["busi"].build, None, [PAIR, SINGLE]),
        (TREES["two_formats"].build, None, ["cat/00.jpg and 00.png may be parts of one sample", SINGLE]),
        (TREES["two_formats"].build, "stem", [SINGLE, TOGETHER]),
    ],
)
def test_doubts_about_classes_dir_are_warnings(
    tmp_path: Path, build: Build, groups: str | None, warnings: list[str]
) -> None:
    verdict = catalog(made(tmp_path, build), "dir", groups).verdict
    assert verdict.mode == "dir"
    assert verdict.line.startswith("redirecting within ")
    assert len(verdict.saw) == len(warnings), verdict.saw
    for line, words in zip(verdict.saw, warnings, strict=True):
        assert line.startswith(words)
        assert "\n" not in line


def test_captions_of_a_group_are_not_a_label_table(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        make(tmp_path, *(f"train/{name}/{name}{i}.{ending}" for i in range(4) for ending in ("jpg", "txt")))
    make(tmp_path, "val/readme.md")
    (together,) = catalog(tmp_path, "dir", "stem").verdict.saw
    assert together.startswith(TOGETHER)
    assert catalog(tmp_path, "dir").verdict.saw == (
        "train/cat/cat0.txt looks like a label table; --classes dir does not read it; for labels from a table: "
        + TABLE,
    )
