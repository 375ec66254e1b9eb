"""`--classes auto` on trees shaped like datasets that people have: the table in docs/classes.md, row by row."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from redoxfs.dataset import Catalog, build_catalog, read_tree


def make(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())


def catalog(root: Path, classes: str = "auto", groups: str | None = None) -> Catalog:
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return build_catalog(read_tree(fd, workers=2), classes=classes, groups=groups)
    finally:
        os.close(fd)


def imagenet(root: Path) -> None:
    for at, wnid in enumerate(("n01440764", "n01443537", "n01484850")):
        make(root, *(f"train/{wnid}/{wnid}_{at + 7 * i}.JPEG" for i in range(12)))
        make(root, *(f"val/{wnid}/ILSVRC2012_val_{at + 3 * i:08d}.JPEG" for i in range(5)))


def imagenet_flat_val(root: Path) -> None:
    for wnid in ("n01440764", "n01443537"):
        make(root, *(f"train/{wnid}/{wnid}_{i}.JPEG" for i in range(12)))
    make(root, *(f"val/ILSVRC2012_val_{i:08d}.JPEG" for i in range(10)))


def imagenet_one_a_class(root: Path) -> None:
    for at, wnid in enumerate(("n01440764", "n01443537", "n01484850")):
        make(root, f"train/{wnid}/{wnid}_{at}.JPEG", f"val/{wnid}/ILSVRC2012_val_{at:08d}.JPEG")


def cifar_equal_names(root: Path) -> None:
    for split in ("train", "test"):
        for name in ("airplane", "automobile", "bird"):
            make(root, *(f"{split}/{name}/{i:04d}.png" for i in range(10)))


def cifar_distinct_names(root: Path) -> None:
    for split in ("train", "test"):
        for at, name in enumerate(("airplane", "automobile", "bird")):
            make(root, *(f"{split}/{name}/{at * 10 + i:04d}.png" for i in range(10)))


def class_named_files(root: Path) -> None:
    for split in ("train", "val"):
        for name in ("airplane", "automobile"):
            make(root, *(f"{split}/{name}/{name}_{i:04d}.png" for i in range(10)))


def cats_and_dogs(root: Path) -> None:
    make(root, "README.md", "LICENSE.txt", "cats/Thumbs.db", ".git/index", "cats/.cache/7.jpg")
    make(root, *(f"cats/cat.{i}.jpg" for i in range(8)), *(f"dogs/dog.{i}.jpg" for i in range(8)))


def coco(root: Path) -> None:
    make(root, "annotations/instances_train2017.json", "annotations/instances_val2017.json")
    for split in ("train2017", "val2017"):
        make(root, *(f"{split}/{i:012d}.jpg" for i in range(5)))


def coco_without_annotations(root: Path) -> None:
    for split in ("train2017", "val2017"):
        make(root, *(f"{split}/{i:012d}.jpg" for i in range(5)))


def yolo(root: Path) -> None:
    make(root, "data.yaml")
    for split in ("train", "val"):
        for i in range(4):
            make(root, f"images/{split}/{split}{i}.jpg", f"labels/{split}/{split}{i}.txt")


def cityscapes(root: Path) -> None:
    for split, city in (("train", "aachen"), ("train", "bochum"), ("val", "frankfurt"), ("val", "munster")):
        for i in range(4):
            make(
                root,
                f"leftImg8bit/{split}/{city}/{city}_{i:06d}_000019_leftImg8bit.png",
                f"gtFine/{split}/{city}/{city}_{i:06d}_000019_gtFine_labelIds.png",
            )


def renamed_cityscapes(root: Path) -> None:
    for i in range(4):
        make(root, f"train/view/aachen_{i:06d}_leftImg8bit.png", f"train/answer/aachen_{i:06d}_gtFine_labelIds.png")


def voc(root: Path) -> None:
    for i in range(4):
        make(root, f"JPEGImages/2007_{i:06d}.jpg", f"Annotations/2007_{i:06d}.xml")
        make(root, f"SegmentationClass/2007_{i:06d}.png")


def librispeech(root: Path) -> None:
    for split in ("train-clean-100", "dev-other"):
        for speaker in (19, 26):
            make(root, *(f"{split}/{speaker}/198/{speaker}-198-{i:04d}.flac" for i in range(4)))
            make(root, f"{split}/{speaker}/198/{speaker}-198.trans.txt")


def flat_kaggle(root: Path) -> None:
    make(root, *(f"{name}.{i}.jpg" for name in ("cat", "dog") for i in range(5)))


def kaggle_splits(root: Path) -> None:
    make(root, *(f"train/{name}.{i}.jpg" for name in ("cat", "dog") for i in range(5)))
    make(root, *(f"test/{i}.jpg" for i in range(5)))


def utkface(root: Path) -> None:
    for part in ("part1", "part2", "part3"):
        make(root, *(f"{part}/{20 + i}_{i % 2}_0_2017010{i}{part[-1]}.jpg.chip.jpg" for i in range(6)))
    make(root, "landmark_list_part1.txt")


def symlinks_by_class(root: Path) -> None:
    make(root, *(f"all/{i:04d}.jpg" for i in range(6)))
    for i in range(6):
        link = root / "by_class" / ("cat" if i % 2 else "dog") / f"{i:04d}.jpg"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"../../all/{i:04d}.jpg")


def hub_cache(root: Path) -> None:
    make(root, "datasets--cats/refs/main", *(f"datasets--cats/blobs/{i:064x}" for i in range(4)))
    for i in range(4):
        link = root / "datasets--cats/snapshots/abc123/train" / ("cat" if i % 2 else "dog") / f"{i}.jpg"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"../../../../blobs/{i:064x}")


def rgb_and_depth(root: Path) -> None:
    for i in range(5):
        make(root, f"rgb/{i:04d}.png", f"depth/{i:04d}.png")


def unnamed_pair(root: Path) -> None:
    for i in range(5):
        make(root, f"first/{i:04d}.png", f"second/{i:04d}.png")


def pair_with_own_words(root: Path) -> None:
    for i in range(5):
        make(root, f"one/img_{i:04d}.png", f"two/seg_{i:04d}.png")


def partial_pair(root: Path) -> None:
    """Only one in five has a partner; the rest was lost."""
    make(root, *(f"first/{i:04d}.png" for i in range(20)), *(f"second/{i:04d}.png" for i in range(0, 100, 5)))


def hard_links(root: Path) -> None:
    cats_and_dogs(root)
    os.link(root / "cats/cat.0.jpg", root / "cats/again.jpg")


def pix2pix(root: Path) -> None:
    for i in range(4):
        make(root, f"A/left_{i}.jpg", f"B/right_{i}.jpg")


def cyclegan(root: Path) -> None:
    make(root, *(f"trainA/a{i}.jpg" for i in range(4)), *(f"trainB/b{i}.jpg" for i in range(4)))


def sign_language(root: Path) -> None:
    for at, letter in enumerate("ABCDE"):
        make(root, *(f"{letter}/{letter}{at * 10 + i}.jpg" for i in range(4)))


def busi(root: Path) -> None:
    for name in ("benign", "malignant"):
        for i in range(4):
            make(root, f"{name}/{name} ({i}).png", f"{name}/{name} ({i})_mask.png")


def two_formats(root: Path) -> None:
    for at, name in enumerate(("cat", "dog")):
        for i in range(4):
            make(root, f"{name}/{at}{i}.jpg", f"{name}/{at}{i}.png")


def unknown_beside(root: Path) -> None:
    for at, name in enumerate(("cat", "dog")):
        make(root, *(f"{name}/{at}{i}.jpg" for i in range(4)), *(f"{name}/{at}{i}.points" for i in range(4)))


def arrays_beside(root: Path) -> None:
    cats_and_dogs(root)
    make(root, "answers.npz")


def name_splits(root: Path) -> None:
    for at, name in enumerate(("cat", "dog")):
        make(root, *(f"{name}/{split}_{at}{i}.jpg" for split in ("train", "val") for i in range(4)))


def split_inside_class(root: Path) -> None:
    for at, name in enumerate(("cat", "dog")):
        make(root, *(f"{name}/{split}/{at}{i}{split}.jpg" for split in ("train", "val") for i in range(4)))


def domains(root: Path) -> None:
    for at, domain in enumerate(("painting", "cartoon")):
        for name in ("dog", "horse"):
            make(root, *(f"{domain}/{name}/{name}{at}{i}.jpg" for i in range(4)))


def uneven_depth(root: Path) -> None:
    cats_and_dogs(root)
    make(root, "dogs/puppies/dog.100.jpg")


def one_class(root: Path) -> None:
    make(root, *(f"cats/cat.{i}.jpg" for i in range(4)))


def empty(root: Path) -> None:
    del root


def text_only(root: Path) -> None:
    make(root, "pos/1.rtf", "neg/2.rtf")


def packed_table(root: Path) -> None:
    cats_and_dogs(root)
    make(root, "extra/answers.csv.gz")


# (the tree, the mode, words that the line must have)
VERDICTS: list[tuple[Callable[[Path], None], str, str]] = [
    (imagenet, "dir", "6 directories (train 3, val 3): the directory is the label"),
    (imagenet_one_a_class, "dir", "6 directories"),
    (cifar_distinct_names, "dir", "6 directories (test 3, train 3)"),
    (class_named_files, "dir", "4 directories"),
    (cats_and_dogs, "dir", "2 directories: the directory is the label"),
    (sign_language, "dir", "5 directories"),
    (imagenet_flat_val, "none", "val/ILSVRC2012_val_00000000.JPEG lies directly in the split val"),
    (cifar_equal_names, "none", "if the directory is the label: --classes dir"),
    (coco, "none", "annotations/instances_train2017.json looks like a label table"),
    (coco_without_annotations, "none", "train2017/000000000000.jpg lies directly in the split"),
    (yolo, "none", "data.yaml looks like a label table"),
    (cityscapes, "none", "gtFine reads like one part of each sample"),
    (renamed_cityscapes, "none", "train/answer/aachen_000000_gtFine_labelIds.png and train/view/aachen_000000_"),
    (voc, "none", "Annotations/2007_000000.xml looks like a label table"),
    (librispeech, "none", "198.trans.txt looks like a label table"),
    (flat_kaggle, "none", "cat.0.jpg lies at the top"),
    (kaggle_splits, "none", "test/0.jpg lies directly in the split test"),
    (utkface, "none", "landmark_list_part1.txt looks like a label table"),
    (symlinks_by_class, "none", "by_class/cat/0001.jpg is a symlink"),
    (hub_cache, "none", "is a symlink"),
    (rgb_and_depth, "none", "depth reads like one part of each sample"),
    (unnamed_pair, "none", "first/0000.png and second/0000.png may be parts of one sample"),
    (pair_with_own_words, "none", "one/img_0000.png and two/seg_0000.png may be parts of one sample"),
    (partial_pair, "none", "may be parts of one sample"),
    (hard_links, "none", "cats/again.jpg has another name (hard link)"),
    (pix2pix, "none", "two sides of a pair"),
    (cyclegan, "none", "trainA reads like one part"),
    (busi, "none", "benign/benign (0).png and benign (0)_mask.png may be parts of one sample"),
    (two_formats, "none", "cat/00.jpg and 00.png may be parts of one sample"),
    (unknown_beside, "none", "cat/00.points is no sample and may hold labels"),
    (arrays_beside, "none", "answers.npz may hold labels"),
    (name_splits, "none", "name different splits"),
    (split_inside_class, "none", "lies directly in the split cat/train"),
    (domains, "none", "cartoon holds directories of samples and is no split"),
    (uneven_depth, "none", "--classes dir"),
    (one_class, "none", "cats is the only directory with samples in ."),
    (empty, "none", "the source holds no files"),
    (text_only, "none", "--samples GLOB"),
    (packed_table, "none", "extra/answers.csv.gz looks like a label table"),
]


def check_verdict(tmp_path: Path, build: Callable[[Path], None], mode: str, words: str) -> None:
    root = tmp_path / "source"
    root.mkdir()
    build(root)
    found = catalog(root)
    assert found.verdict.mode == mode, found.verdict.line
    assert words in found.verdict.line
    assert "\n" not in found.verdict.line
    if mode == "none":
        assert found.verdict.line.startswith("not redirecting: ")
        assert "--" in found.verdict.line or "no files" in found.verdict.line
        assert (found.sample_of == -1).all()
    else:
        assert len(found.class_of) == found.sample_files > 0


@pytest.mark.parametrize(("build", "mode", "words"), VERDICTS, ids=[row[0].__name__ for row in VERDICTS])
def test_the_verdict_on(tmp_path: Path, build: Callable[[Path], None], mode: str, words: str) -> None:
    check_verdict(tmp_path, build, mode, words)


def test_a_source_that_is_one_half_of_a_pair_is_told_by_its_own_name(tmp_path: Path) -> None:
    cityscapes(tmp_path)
    found = catalog(tmp_path / "leftImg8bit")
    assert found.verdict.mode == "none"
    assert "the source is called leftImg8bit" in found.verdict.line


def test_odd_names_stay_on_one_line(tmp_path: Path) -> None:
    make(tmp_path, "a\nb.csv", "cat/1.jpg", "dog/2.jpg")
    line = catalog(tmp_path).verdict.line
    assert line.startswith("not redirecting: a\\nb.csv looks like a label table")
    assert line.isprintable()


def test_groups_end_the_guessing(tmp_path: Path) -> None:
    cats_and_dogs(tmp_path)
    assert catalog(tmp_path, groups="stem").verdict.mode == "none"
    assert catalog(tmp_path, classes="dir", groups="stem").verdict.mode == "dir"


def test_equal_names_in_sibling_classes_are_redirected_on_request(tmp_path: Path) -> None:
    cifar_equal_names(tmp_path)
    found = catalog(tmp_path, classes="dir")
    assert found.class_names == [
        f"{split}/{name}" for split in ("test", "train") for name in ("airplane", "automobile", "bird")
    ]
    assert found.class_trees == ["test", "train"]


def test_a_few_chance_twins_among_many_files_are_no_doubt(tmp_path: Path) -> None:
    make(tmp_path, *(f"cat/{i:04d}.jpg" for i in range(30)), *(f"dog/{i:04d}.jpg" for i in range(29, 59)))
    assert catalog(tmp_path).verdict.mode == "dir"
    make(tmp_path, "dog/0001.jpg", "dog/0002.jpg", "dog/0003.jpg")
    assert catalog(tmp_path).verdict.mode == "none"
