"""`--classes auto` on trees shaped like common datasets, among them the rows of the table in docs/classes.md."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from auto_trees import ANY, DIR, STEM, TREES, Tree, make
from packs import opened
from tree_tables import rows_of

from redoxfs.dataset import Catalog, build_catalog, look_beside, read_tree
from redoxfs.dataset.errors import ClassesError
from redoxfs.doctor.verdict import fitting


def catalog(root: Path, classes: str = "auto", groups: str | None = None) -> Catalog:
    with opened(root) as fd:
        tree = read_tree(fd, workers=2)
        return build_catalog(tree, classes=classes, groups=groups, root_fd=fd, beside=look_beside(fd))


def made(tmp_path: Path, build: Callable[[Path], None], name: str = "source") -> Path:
    root = tmp_path / name
    root.mkdir()
    build(root)
    return root


def check_redirected(root: Path, words: str, splits: dict[str, bool]) -> None:
    found = catalog(root)
    assert found.verdict.mode == "dir", found.verdict.line
    assert words in found.verdict.line
    assert "\n" not in found.verdict.line
    assert {finding.split: finding.redirected for finding in found.verdict.splits} == splits
    redirected = [finding for finding in found.verdict.splits if finding.redirected]
    assert len(found.class_of) == sum(finding.samples for finding in redirected)
    assert found.sample_files == sum(finding.samples for finding in found.verdict.splits)
    for entry in found.members.tolist():
        path = Path(found.tree.path(entry).decode())
        assert splits[str(path.parent.parent)]


def check_refused(root: Path, words: str, offered: set[str]) -> None:
    found = catalog(root)
    assert found.verdict.mode == "none", found.verdict.line
    assert words in found.verdict.line
    assert "\n" not in found.verdict.line
    assert found.verdict.line.startswith("not redirecting: ")
    assert {option for option in (DIR, ANY, STEM) if option in found.verdict.line} == offered, found.verdict.line
    for always in (
        "--classes sampler",
        "--classes FILE.csv, for one label a file (boxes, pairs and order would be wrong)",
    ):
        assert always in found.verdict.line or "no files" in found.verdict.line
    assert found.verdict.line.count("--groups") == found.verdict.line.count("the script opens them together, each time")
    assert (found.sample_of == -1).all()
    assert not any(finding.redirected for finding in found.verdict.splits)


REDIRECTED = [tree for tree in TREES.values() if tree.splits]
REFUSED = [tree for tree in TREES.values() if not tree.splits]


@pytest.mark.parametrize("tree", REDIRECTED, ids=[tree.name for tree in REDIRECTED])
def test_each_split_of(tmp_path: Path, tree: Tree) -> None:
    check_redirected(made(tmp_path, tree.build), tree.words, tree.splits)


@pytest.mark.parametrize("tree", REFUSED, ids=[tree.name for tree in REFUSED])
def test_nothing_is_redirected_of(tmp_path: Path, tree: Tree) -> None:
    check_refused(made(tmp_path, tree.build), tree.words, tree.offers)


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ("pets  words=one  two", "'two' beside its name"),
        ("pets  words=one\n    {c}.jpg  c=a b\npets  words=two", "two rows"),
        ("pets  words=one  words=two", "a field twice"),
        ("pets\n    {c}.jpg  c=a b  c=d", "a field twice"),
        ("pets\n    {c}.jpg  c=", "no file"),
        ("pets\n    a=b.jpg", "no file"),
        ("pets\n    {c}.jpg  c=a b\n    a.jpg", "a.jpg twice"),
        ("pets\n    a.jpg  c=a b", "a.jpg twice"),
    ],
)
def test_a_line_of_a_table_is_not_lost_in_silence(tmp_path: Path, lines: str, fault: str) -> None:
    (tmp_path / "trees.txt").write_text(lines)
    with pytest.raises(ValueError, match=f"pets has {fault}: "):
        rows_of(tmp_path / "trees.txt")


def test_a_word_between_blanks_is_no_constant_of_a_table(tmp_path: Path) -> None:
    (tmp_path / "trees.txt").write_text("AB = a b\npets  words=one = two\n    {c} = 1.jpg  c=AB\n# no = tree\n")
    assert rows_of(tmp_path / "trees.txt") == [("pets", {"words": "one = two"}, ["a = 1.jpg", "b = 1.jpg"])]


def test_files_of_many_samples_are_told_apart_from_samples_of_an_unknown_kind(tmp_path: Path) -> None:
    make(tmp_path, "data/a.json", "data/0.arrow", "data/1.arrow")
    (tmp_path / "data/0.arrow").write_bytes(bytes(1000))
    line = catalog(tmp_path).verdict.line
    what = "data/0.arrow holds many samples, and redoxfs helps only where each has a file of its own"
    assert line == f"not redirecting: {what}"
    assert fitting(line) == {}
    make(tmp_path, "mnist-train.tfrecord-00000-of-00001")
    (tmp_path / "mnist-train.tfrecord-00000-of-00001").write_bytes(bytes(2000))
    assert "mnist-train.tfrecord-00000-of-00001 holds many samples" in catalog(tmp_path).verdict.line
    make(tmp_path, *(f"reviews/{number}.txt" for number in range(300)))
    line = catalog(tmp_path).verdict.line
    assert "none of 304 files (reviews/0.txt, …) counts as a sample; to select the samples: --samples GLOB" in line


def test_a_source_named_like_half_of_a_pair_is_refused(tmp_path: Path) -> None:
    TREES["cityscapes"].build(tmp_path)
    check_refused(tmp_path / "leftImg8bit", "the source is called leftImg8bit", set())


def test_a_source_named_for_the_kind_of_its_files_is_told_how_to_remove_the_doubt(tmp_path: Path) -> None:
    for name in ("audio", "Images"):
        make(tmp_path / name, "train/cat/1.jpg", "train/dog/2.jpg", "val/cat/3.jpg", "val/dog/4.jpg")
        check_refused(
            tmp_path / name,
            f"the source is called {name}, which names a part of each sample, so its labels may lie beside it; "
            f"if {name} names only the kind of its files, and the directory is the label: --classes dir; ",
            {DIR, ANY},
        )


def test_odd_names_stay_on_one_line(tmp_path: Path) -> None:
    make(tmp_path, "a\nb.csv", "cat/1.jpg", "dog/2.jpg")
    line = catalog(tmp_path).verdict.line
    assert line.startswith("not redirecting: a\\nb.csv looks like a label table")
    assert line.isprintable()


def test_with_groups_auto_redirects_nothing(tmp_path: Path) -> None:
    TREES["cats_and_dogs"].build(tmp_path)
    assert catalog(tmp_path, groups="stem").verdict.mode == "none"
    assert catalog(tmp_path, classes="dir", groups="stem").verdict.mode == "dir"


def test_equal_names_in_sibling_classes_are_redirected_on_request(tmp_path: Path) -> None:
    TREES["cifar_equal_names"].build(tmp_path)
    found = catalog(tmp_path, classes="dir")
    assert found.class_names == [
        f"{split}/{name}" for split in ("test", "train") for name in ("airplane", "automobile", "bird")
    ]
    assert found.class_trees == ["test", "train"]


def test_a_few_chance_twins_are_no_doubt(tmp_path: Path) -> None:
    """Two classes of 30 of 1,000 numbers share one by chance."""
    drawn = random.Random(0).sample(range(1000), 62)
    for split in ("train", "val"):
        make(tmp_path, *(f"{split}/cat/{i:04d}.jpg" for i in drawn[:30]))
        make(tmp_path, *(f"{split}/dog/{i:04d}.jpg" for i in drawn[29:59]))
    assert catalog(tmp_path).verdict.mode == "dir"
    make(tmp_path, *(f"train/dog/{i:04d}.jpg" for i in drawn[:3]))
    assert catalog(tmp_path).verdict.mode == "none"


@pytest.mark.parametrize(
    ("one", "other"),
    [("train/cats/cat.0.jpg", "validation/cats/again.jpg"), ("train/cats/1.jpg", "train/cats/val_1.jpg")],
    ids=["two directories", "two names"],
)
def test_no_option_is_offered_that_refuses_a_file_in_two_splits(tmp_path: Path, one: str, other: str) -> None:
    TREES["cats_and_dogs"].build(tmp_path)
    make(tmp_path, one)
    os.link(tmp_path / one, tmp_path / other)
    line = catalog(tmp_path).verdict.line
    assert "--classes any" not in line
    assert "--classes sampler" not in line
    assert "--classes FILE.csv, for one label a file" in line
    assert ("else: --classes FILE.csv" in line) == (DIR in line)
    # What `doctor` and `status` make of it.
    assert fitting(line) == ({"classes": "dir"} if DIR in line else {})
    for classes in ("any", "sampler"):
        with pytest.raises(ClassesError, match="are one file"):
            catalog(tmp_path, classes)
