"""docs/loaders.md says what each loader gets: the figures of its rows hold, and no row is without a run."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts/bench"))

from loader_opens import DOCUMENTED, TORCH, figures
from loader_programs import PROGRAMS, is_installed
from loader_programs import figures as figures_of_program

PAGE = (Path(__file__).parents[1] / "docs/loaders.md").read_text()
SEEDS = (0, 1, 7)

ROWS: dict[str, tuple[str, dict[str, tuple[float, float]]]] = {
    "whole epochs": ("whole epochs (*P*)", {"twice": (0, 0), "missing": (0, 0)}),
    "drop_last": ("`drop_last`", {"twice": (0, 0), "missing": (32, 32)}),
    "distributed": ("DistributedSampler (*P*)", {"twice": (3, 3), "missing": (0, 0)}),
    "weighted": ("WeightedRandomSampler", {"share of heavy files": (0.48, 0.52), "different in an epoch": (415, 455)}),
    "random_split": ("`random_split` (*P*)", {"validation samples trained on": (80, 96)}),
    "validation_split": ("Keras, `validation_split`", {"validation samples trained on": (80, 96)}),
    "train_test_split": ("scikit-learn, `train_test_split`", {"validation samples trained on": (80, 96)}),
    "folds": ("k-fold, three epochs", {"validation samples trained on": (65, 96)}),
    "rotating folds": ("k-fold, one epoch", {"validation samples trained on": (0, 0)}),
    "few-shot": ("few-shot", {"different samples": (384, 384)}),
    "sanity check": ("Lightning's sanity check", {"twice": (0, 0), "missing": (0, 0)}),
    "verified first": ("Ultralytics, classification: ", {"twice": (0, 0), "missing": (0, 0)}),
    "curriculum": ("Curriculum", {"of 96 are easy": (15, 24)}),
    "dispatch_batches": ("accelerate, `dispatch_batches=True`", {"twice": (30, 55), "missing": (30, 55)}),
    "repeated augmentation": ("Repeated augmentation", {"triples of one sample": (0, 0), "twice": (50, 120)}),
    "cache": ("TensorFlow's `cache()`", {"missing": (0, 0), "twice": (0, 0)}),
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
    assert (told["twice"], told["missing"]) == (0, 0)
    assert "0 twice, 0 missing" in row_of("Hard mining")


def test_each_program_that_was_run_has_a_row() -> None:
    table = PAGE.partition("## Programs, as they are")[2].partition("##")[0]
    titles = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines() if line.startswith("| ")][1:]
    assert titles == [program.title for program in PROGRAMS.values()]


# They warn of each other's versions, and of the machine.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gets_what_its_row_says(name: str) -> None:
    """Of those that are installed. `scripts/bench/loader_programs.py` prints the table."""
    pytest.importorskip("torch")
    if not is_installed(PROGRAMS[name]):
        pytest.skip(f"{PROGRAMS[name].needs[0]} is not installed")
    row = row_of(PROGRAMS[name].title + " |")
    for figure, found in figures_of_program(name).items():
        said = re.search(rf"([0-9]+)(?: to ([0-9]+))? {figure}", row)
        assert said is not None, (figure, row)
        assert int(said[1]) <= found <= int(said[2] or said[1]), (figure, row)


def assert_row(loader: str) -> None:
    begins, bounds = ROWS[loader]
    row = row_of(begins)
    told = {seed: figures(loader, seed) for seed in SEEDS}
    for name, (least, most) in bounds.items():
        for seed in SEEDS:
            assert least <= told[seed][name] <= most, (name, seed)
        said = rf"\b{least}( to {most})?\b" if least == most else rf"{least:.2f} to {most:.2f}|\b{least} to {most}\b"
        assert re.search(said, row), (name, row)


def row_of(begins: str) -> str:
    (row,) = [line for line in PAGE.splitlines() if line.startswith("|") and begins in line]
    return row
