"""`--classes auto` beside files that a known tool left in SOURCE."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from auto_trees import TREES, make
from t1_auto_verdicts import catalog, check_redirected

HASH = "0f" * 32
OF_IMAGES = {"hash": HASH, "results": (2, 0, 2, [("/data/train/cat/1.jpg", 0)]), "msgs": [], "version": "1.0.3"}
"""As Ultralytics' ClassificationDataset.verify_images makes it."""

OF_BOXES = {"labels": [{"im_file": "/data/1.jpg", "cls": [1]}], "hash": HASH, "results": (1, 0, 0, 0, 1), "msgs": []}
"""As its YOLODataset.cache_labels makes it."""


def save(path: Path, value: Any) -> None:
    with path.open("wb") as file:
        np.save(file, value)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "pets"
    TREES["imagenet"].build(root)
    return root


def refusal(root: Path) -> str:
    verdict = catalog(root).verdict
    assert verdict.mode == "none"
    return verdict.line


def test_what_ultralytics_keeps_of_each_split_is_no_doubt(root: Path) -> None:
    for split in ("train", "val"):
        save(root / f"{split}.cache", OF_IMAGES)
    check_redirected(root, "6 class directories", {"train": True, "val": True})


def test_a_pickle_of_an_older_numpy_is_recognized(root: Path) -> None:
    save(root / "train.cache", OF_IMAGES)
    data = (root / "train.cache").read_bytes()
    older = data[:128] + pickle.dumps(np.array(OF_IMAGES, object), protocol=3).replace(b"numpy._core", b"numpy.core")
    (root / "train.cache").write_bytes(older)
    check_redirected(root, "6 class directories", {"train": True, "val": True})


def test_a_directory_with_a_dot_in_its_name_loses_what_follows(root: Path) -> None:
    (root / "v1.0").mkdir()
    save(root / "v1.cache", OF_IMAGES)
    check_redirected(root, "6 class directories", {"train": True, "val": True})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("train.cache", OF_BOXES),
        ("train.cache", np.arange(5)),
        ("train.cache", [HASH, "results"]),
        ("other.cache", OF_IMAGES),
        ("labels.cache", OF_IMAGES),
        ("train.caches", OF_IMAGES),
        ("train", OF_IMAGES),
    ],
    ids=["boxes", "numbers", "a list", "no directory of the name", "labels", "another suffix", "none"],
)
def test_any_other_file_stays_a_doubt(root: Path, name: str, value: Any) -> None:
    if name == "train":
        (root / "train").rename(root / "training")
    save(root / name, value)
    assert name in refusal(root)


def test_another_file_beside_a_cache_stays_a_doubt(root: Path) -> None:
    save(root / "train.cache", OF_IMAGES)
    (root / "val.cache").write_bytes(b"1.jpg cat\n")
    assert "val.cache" in refusal(root)


def test_a_cache_that_is_not_read_stays_a_doubt(root: Path) -> None:
    for at in range(17):
        (root / f"more{at:02}").mkdir()
        save(root / f"more{at:02}.cache", OF_IMAGES)
    assert "more16.cache" in refusal(root)


def test_the_hidden_files_of_a_download_are_no_doubt(root: Path) -> None:
    folder = root / ".cache/huggingface/download/train/n01440764"
    make(folder, "1.JPEG.metadata", "1.JPEG.lock")
    make(root, ".cache/huggingface/.gitignore", ".gitattributes")
    (root / "models").mkdir()
    check_redirected(root, "6 class directories", {"train": True, "val": True})


@pytest.mark.parametrize("name", ["export.pkl", "models/stage-1.pth", "meta.bin", "labels.cache"])
def test_what_may_be_a_table_stays_a_doubt_whoever_wrote_it(root: Path, name: str) -> None:
    make(root, name)
    assert name in refusal(root)


def test_arrays_beside_images_stay_a_doubt(root: Path) -> None:
    image = next((root / "train").rglob("*.JPEG"))
    save(image.with_suffix(".npy"), np.zeros(4, np.uint8))
    assert image.with_suffix(".npy").name in refusal(root)
