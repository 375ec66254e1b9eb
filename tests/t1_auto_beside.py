"""`--classes auto` on one split of a dataset: the names beside SOURCE are the proof, or a doubt."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from auto_trees import ANY, DIR, TREES, make, numbers
from packs import opened
from t1_auto_verdicts import catalog, check_redirected, check_refused

from redoxfs.dataset import Beside, build_catalog, look_beside, read_tree
from redoxfs.dataset.beside import SPLITS_MAX

Build = Callable[[Path], None]


def pets(root: Path) -> None:
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            make(root, *(f"{split}/{name}/{name}_{i:05d}.jpg" for i in numbers(split + name, 6)))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder that is not named like a split. The name of the test's own folder may be."""
    root = tmp_path / "pets"
    root.mkdir()
    return root


def beside(root: Path) -> Beside:
    with opened(root) as fd:
        return look_beside(fd)


def test_a_split_beside_the_source_with_the_same_directories_is_proof(root: Path) -> None:
    pets(root)
    check_redirected(root / "train", "2 class directories; --classes none", {".": True})
    (finding,) = catalog(root / "train").verdict.splits
    assert finding.because == "val beside the source has the same 2 class directories"


def test_wordnet_ids_in_a_source_named_like_a_split_are_proof(root: Path) -> None:
    TREES["imagenet"].build(root)
    (root / "val").rename(root.parent / "elsewhere")
    check_redirected(root / "train", "3 class directories", {".": True})
    (root / "train").rename(root / "training2012")
    check_refused(root / "training2012", "no other split has the same directories", {DIR, ANY})
    (root / "training2012").rename(root / "images_of_dogs")
    check_refused(root / "images_of_dogs", "there is no second split", {DIR, ANY})


def test_siblings_do_not_matter_if_the_source_is_not_a_split(root: Path) -> None:
    pets(root)
    (root / "train").rename(root / "pictures_of_pets")
    check_refused(root / "pictures_of_pets", "there is no second split", {DIR, ANY})
    make(
        root / "test_of_all",
        *(
            f"{split}/{name}/{number}.jpg"
            for split in ("train", "val")
            for name in "xyz"
            for number in numbers(split + name, 3)
        ),
    )
    make(root, "test_of_none/x/1.jpg", "labels.csv")
    check_redirected(root / "test_of_all", "6 class directories", {"train": True, "val": True})


def remove_a_class(root: Path) -> None:
    for file in (root / "val/dog").iterdir():
        file.unlink()
    (root / "val/dog").rmdir()


def link_val(root: Path) -> None:
    (root / "val").rename(root / "elsewhere")
    (root / "val").symlink_to("elsewhere")


def same_part(root: Path) -> None:
    (root / "val").rename(root / "training")


def numbers_only(root: Path) -> None:
    for split in ("train", "val"):
        for number, name in enumerate(("cat", "dog")):
            for at, file in enumerate((root / split / name).iterdir()):
                file.rename(file.with_name(f"{number + 2 * at}.jpg"))
            (root / split / name).rename(root / split / str(number))


def nothing_beside(root: Path) -> None:
    (root / "val").rename(root.parent / "val")


@pytest.mark.parametrize(
    ("change", "offered"),
    [
        (remove_a_class, {DIR, ANY}),
        (link_val, {DIR, ANY}),
        (same_part, set()),
        (numbers_only, {DIR, ANY}),
        (nothing_beside, {DIR, ANY}),
    ],
)
def test_similar_directories_in_another_part_are_no_proof(root: Path, change: Build, offered: set[str]) -> None:
    pets(root)
    change(root)
    check_refused(root / "train", "", offered)


def masks(root: Path) -> None:
    make(root, *(f"train_masks/{name}/{name}_0{i}.png" for name in ("cat", "dog") for i in range(6)))


def flat_masks(root: Path) -> None:
    make(root, *(f"train_masks/{name}_0{i}.png" for name in ("cat", "dog") for i in range(6)))


def masks_by_capitals(root: Path) -> None:
    make(root, *(f"trainMasks/{name}/{name}_0{i}.png" for name in ("cat", "dog") for i in range(6)))


def glued_depth(root: Path) -> None:
    for split in ("train", "val"):
        make(root, *(f"depth{split}/{name}/{name}_0{i}.png" for name in ("cat", "dog") for i in range(6)))


def many_parts(root: Path) -> None:
    make(root, *(f"test_{number}/x.txt" for number in range(SPLITS_MAX)), "train_masks/cat/1.png")


def linked_depth(root: Path) -> None:
    make(root.parent, "disk/1.png")
    (root / "depth").symlink_to(root.parent / "disk")


def table(root: Path) -> None:
    make(root, "train_labels.csv")


def annotated(root: Path) -> None:
    make(root, "annotations/1.bin")


@pytest.mark.parametrize(
    ("add", "words", "offered"),
    [
        (masks, "train_masks beside the source is the same part of the data", set()),
        (flat_masks, "train_masks beside the source is the same part of the data", set()),
        (masks_by_capitals, "trainMasks beside the source is the same part of the data", set()),
        (glued_depth, "depthtrain beside the source is the same part of the data", set()),
        (many_parts, "train_masks beside the source is the same part of the data", set()),
        (linked_depth, "depth beside the source is named like a part of each sample", {ANY}),
        (table, "train_labels.csv beside the source looks like a label table", {DIR}),
        (annotated, "annotations beside the source is named like a part of each sample", {ANY}),
    ],
)
def test_possible_labels_beside_the_source_are_a_doubt(root: Path, add: Build, words: str, offered: set[str]) -> None:
    pets(root)
    add(root)
    check_refused(root / "train", words, offered)


def test_one_split_of_imagenet_s_is_refused_like_all(root: Path) -> None:
    TREES["imagenet_s"].build(root)
    for split in ("train", "train-semi", "train-semi-segmentation", "validation", "validation-segmentation"):
        check_refused(root / split, "beside the source is the same part of the data", set())


def test_a_source_in_a_folder_named_for_a_part_is_a_doubt(root: Path) -> None:
    pets(root)
    root = root.rename(root.parent / "images")
    check_refused(root / "train", "the source lies in images, and its labels may lie beside that", {ANY})


def test_what_lies_beside_a_symlink_to_the_source_counts_too(root: Path) -> None:
    pets(root)
    given = root.parent / "given"
    given.mkdir()
    for split in ("train", "val"):
        (given / split).symlink_to(root / split)
    make(root, "notes.txt")
    make(given, "labels.csv", "more/x")
    with opened(root / "train") as fd:
        found = look_beside(fd, str(given / "train"))
        assert look_beside(fd, str(root / "train")) == look_beside(fd)
        tree = read_tree(fd)
    assert (found.names.directories, found.names.files) == (["more", "val"], ["labels.csv", "notes.txt"])
    (val,) = found.splits.values()
    assert val is not None
    assert val.directories == ["cat", "dog"]
    assert "labels.csv beside the source looks like a label table" in build_catalog(tree, beside=found).verdict.line


def test_an_unreadable_sibling_is_no_proof(root: Path) -> None:
    pets(root)
    with opened(root / "train") as fd:
        tree = read_tree(fd)
        seen = look_beside(fd)
    assert build_catalog(tree, beside=seen).verdict.mode == "dir"
    assert build_catalog(tree).verdict.mode == "none"
    unread = Beside(seen.names, {"val": None})
    assert build_catalog(tree, beside=unread).verdict.mode == "none"
    also_unread = Beside(seen.names, {**seen.splits, "train_more": None})
    assert "train_more beside the source" in build_catalog(tree, beside=also_unread).verdict.line


def test_only_the_first_names_are_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pets(root)
    for number in range(100):
        os.mkdir(root / "val" / f"{number}")
    monkeypatch.setattr("redoxfs.dataset.beside.NAMES_MAX", 102)
    names = beside(root / "train").splits["val"]
    assert names is not None
    assert len(names.directories) == 102
    monkeypatch.setattr("redoxfs.dataset.beside.NAMES_MAX", 101)
    assert beside(root / "train").splits == {"val": None}


def test_names_beside_the_source_may_have_any_bytes(root: Path) -> None:
    pets(root)
    make(root, ".hidden/x", "notes.txt", "val/README", "val/.git/x")
    with open(os.fsencode(root) + b"/caf\xe9", "wb"):
        pass
    found = beside(root / "train")
    assert (found.names.directories, found.names.files) == (["val"], ["caf\udce9", "notes.txt"])
    assert [(name, inside.directories, inside.files) for name, inside in found.splits.items() if inside] == [
        ("val", ["cat", "dog"], ["README"])
    ]


def test_nothing_lies_beside_the_root() -> None:
    assert beside(Path("/")) == Beside()
