"""The line about splits that a script makes itself: of every way to redirect, and only where a script may make one."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from auto_trees import TREES, make
from t1_auto_verdicts import catalog, made

Build = Callable[[Path], None]

LINE = (
    "nothing is named like a validation split: if the script makes a split itself (random_split, validation_split,"
    " train_test_split, k-fold, few-shot), its parts mix; a table with the column split keeps them apart"
)


def pets(*splits: str) -> Build:
    def build(root: Path) -> None:
        numbers = random.Random(0).sample(range(100_000), 200)
        for split in splits:
            for name in ("cat", "dog"):
                make(root, *(f"{split}/{name}/{name}.{numbers.pop()}.jpg" for _ in range(10)))

    return build


def flat(root: Path) -> None:
    make(root, *(f"{number}.jpg" for number in range(20)))


def named_by_file(root: Path) -> None:
    make(root, *(f"{split}_{number}.jpg" for split in ("train", "val") for number in range(10)))


def with_hidden_val(root: Path) -> None:
    flat(root)
    make(root, ".cache/val/1.bin")


def lines(root: Path, classes: str) -> list[str]:
    verdict = catalog(root, classes).verdict
    assert verdict.line.startswith("redirecting "), verdict.line
    return [line for line in verdict.saw if line == LINE]


def table(root: Path, *classes: str) -> str:
    """All files of `root`, with the class that the first part of their path has, and `classes` beside that in turn."""
    paths = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.jpg"))
    rows = [f"{path},{path.split('/')[0]}{classes[at % len(classes)]}" for at, path in enumerate(paths)]
    where = root.parent / "labels.csv"
    where.write_text("\n".join(["path,class", *rows]))
    return str(where)


@pytest.mark.parametrize("classes", ["auto", "dir", "any"])
@pytest.mark.parametrize(
    ("splits", "said"),
    [
        (("train", "test"), 1),
        (("trainval", "test"), 1),
        (("train", "val"), 0),
        (("train", "dev", "test"), 0),
        (("train_set", "validation_set"), 0),
    ],
)
def test_a_split_within_train_is_said_unless_there_is_validation_data(
    tmp_path: Path, classes: str, splits: tuple[str, ...], said: int
) -> None:
    assert len(lines(made(tmp_path, pets(*splits)), classes)) == said


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (pets("."), 1),
        (flat, 1),
        (with_hidden_val, 1),
        (pets("train"), 1),
        (named_by_file, 0),
        (pets("ValSounds"), 0),
        (pets("mytrain", "myval"), 0),
        (pets("contest", "valley"), 1),
    ],
)
def test_any_and_a_table_say_it_too(tmp_path: Path, build: Build, said: int) -> None:
    root = made(tmp_path, build)
    assert len(lines(root, "any")) == said
    assert len(lines(root, table(root, ""))) == said


def test_classes_of_a_table_may_name_the_validation_split(tmp_path: Path) -> None:
    root = made(tmp_path, pets("."))
    assert len(lines(root, table(root, "-train", "-val"))) == 0
    assert len(lines(root, table(root, "-train", "-test"))) == 1


@pytest.mark.parametrize(
    ("header", "values", "said"),
    [
        ("split", ["train", "val"], 0),
        ("split", ["train", "test"], 1),
        ("split", ["train"], 1),
        ("fold", ["0", "1", "2"], 0),
        ("fold", ["0"], 1),
        ("split", ["train", ""], 0),
        ("weather", ["train", "val"], 1),
    ],
)
def test_a_column_may_have_the_split_of_the_script(tmp_path: Path, header: str, values: list[str], said: int) -> None:
    root = made(tmp_path, flat)
    rows = [f"{number}.jpg,cat,{values[number % len(values)]}" for number in range(20)]
    where = tmp_path / "labels.csv"
    where.write_text("\n".join([f"path,class,{header}", *rows]))
    assert len(lines(root, str(where))) == said


def test_validation_data_beside_the_source_is_seen(tmp_path: Path) -> None:
    root = made(tmp_path, pets("train", "val"))
    assert lines(root / "train", "auto") == lines(root / "val", "auto") == []
    (root / "val").rename(root / "test")
    assert len(lines(root / "train", "auto")) == 1


def test_flat_validation_data_is_seen(tmp_path: Path) -> None:
    assert lines(made(tmp_path, TREES["imagenet_as_downloaded"].build), "auto") == []


def test_where_nothing_is_redirected_nothing_is_said(tmp_path: Path) -> None:
    root = made(tmp_path, flat)
    for classes in ("auto", "sampler", "none"):
        verdict = catalog(root, classes).verdict
        assert verdict.line.startswith("not redirecting")
        assert LINE not in verdict.saw
