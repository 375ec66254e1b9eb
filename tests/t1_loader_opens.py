"""docs/loaders.md says what each loader gets: the figures of its rows hold, and no row is without a run."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts/bench"))

from loader_opens import DOCUMENTED, TORCH, figures

PAGE = (Path(__file__).parents[1] / "docs/loaders.md").read_text()
SEEDS = (0, 1, 7)

ROWS: dict[str, tuple[str, dict[str, tuple[float, float]]]] = {
    "whole epochs": ("whole epochs (*P*)", {"twice": (0, 0), "missing": (0, 0)}),
    "drop_last": ("`drop_last`", {"twice": (65, 120), "missing": (95, 150)}),
    "distributed": ("DistributedSampler (*P*)", {"twice": (14, 20), "missing": (10, 17)}),
    "weighted": ("WeightedRandomSampler", {"share of heavy files": (0.48, 0.52), "different in an epoch": (415, 455)}),
    "random_split": ("`random_split` (*P*)", {"validation samples trained on": (80, 96)}),
    "validation_split": ("Keras, `validation_split`", {"validation samples trained on": (80, 96)}),
    "train_test_split": ("scikit-learn, `train_test_split`", {"validation samples trained on": (80, 96)}),
    "folds": ("k-fold, three epochs", {"validation samples trained on": (65, 96)}),
    "rotating folds": ("k-fold, one epoch", {"validation samples trained on": (0, 0)}),
    "few-shot": ("few-shot", {"different samples": (384, 384)}),
    "sanity check": ("Lightning's sanity check", {"twice": (6, 10), "missing": (6, 10)}),
    "first look": ("fastai", {"twice": (55, 120), "missing": (85, 150)}),
    "verified first": ("Ultralytics, classification", {"twice": (0, 0), "missing": (0, 0)}),
    "dispatch_batches": ("accelerate", {"twice": (95, 150), "missing": (95, 150)}),
    "repeated augmentation": ("Repeated augmentation", {"triples of one sample": (0, 0), "twice": (50, 120)}),
    "cache": ("TensorFlow's `cache()`", {"missing": (60, 95), "twice": (60, 95)}),
    "manifest": ("Manifests", {"of another sample": (465, 480)}),
    "map": ("Hugging Face, `map`", {"of another sample": (465, 480)}),
    "losses": ("Losses for each index", {"of another sample": (465, 480)}),
    "two views": ("Contrastive, two views", {"pairs of one sample": (480, 480)}),
    "pairs": ("Contrastive, pairs", {"different in an epoch": (480, 480)}),
}
"""By loader: how its row begins, and the bounds of its figures."""


def test_each_loader_has_a_row() -> None:
    assert set(ROWS) == {*TORCH, *DOCUMENTED}


@pytest.mark.parametrize("loader", DOCUMENTED)
def test_a_documented_loader_gets_what_its_row_says(loader: str) -> None:
    assert_row(loader)


@pytest.mark.slow
@pytest.mark.parametrize("loader", TORCH)
def test_a_loader_of_pytorch_gets_what_its_row_says(loader: str) -> None:
    pytest.importorskip("torch")
    assert_row(loader)


def test_hard_mining_gets_what_its_row_says() -> None:
    told = figures("losses")
    assert 100 <= told["twice"] <= 140
    assert 100 <= told["missing"] <= 140
    assert "100 to 140 twice, 100 to 140 missing" in row_of("Hard mining")


def assert_row(loader: str) -> None:
    begins, bounds = ROWS[loader]
    row = row_of(begins)
    for name, (least, most) in bounds.items():
        for seed in SEEDS:
            assert least <= figures(loader, seed)[name] <= most, (name, seed)
        said = rf"\b{least}( to {most})?\b" if least == most else rf"{least:.2f} to {most:.2f}|\b{least} to {most}\b"
        assert re.search(said, row), (name, row)


def row_of(begins: str) -> str:
    (row,) = [line for line in PAGE.splitlines() if line.startswith("|") and begins in line]
    return row
