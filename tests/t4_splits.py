"""Scripts that split a tree themselves, on a real mount: their parts mix, unless a table has the split."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from machine import Machine

FILES, EPOCHS, FOLDS = 96, 6, 5

Parts = dict[str, str]
"""The part of the data that a script has put each path into."""


def write(root: Path, paths: list[str]) -> list[str]:
    """Files with their path in them."""
    for path in paths:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(path.encode().ljust(2000 + 37 * len(path), b"."))
    return paths


def without_splits(root: Path) -> list[str]:
    """Two classes."""
    return write(root, [f"{name}/{number}.jpg" for name in ("cat", "dog") for number in range(FILES // 2)])


def train_of_two(root: Path) -> list[str]:
    """Two classes whose names are opaque, in train/ and test/. Returns the files of train/."""
    numbers = random.Random(0).sample(range(100_000), 2 * FILES)
    places = [f"{split}/{name}/{name}" for split in ("train", "test") for name in ("cat", "dog")] * (FILES // 2)
    paths = write(root, [f"{place}.{number}.jpg" for place, number in zip(places, numbers, strict=True)])
    return sorted(path for path in paths if path.startswith("train/"))


def random_split(paths: list[str]) -> Parts:
    """As torch.utils.data.random_split: a quarter of the files is for validation."""
    held_out = set(random.Random(1).sample(paths, len(paths) // 4))
    return {path: "val" if path in held_out else "train" for path in paths}


def validation_split(paths: list[str]) -> Parts:
    """As Keras' image_dataset_from_directory: a seed shuffles the files, and the last part is for validation."""
    shuffled = random.Random(123).sample(paths, len(paths))
    return {path: "train" if at < 0.8 * len(paths) else "val" for at, path in enumerate(shuffled)}


def stratified(paths: list[str]) -> Parts:
    """As sklearn's train_test_split with stratify: a quarter of each class."""
    return {path: "val" if at % 4 == 1 else "train" for at, path in enumerate(sorted(paths))}


def folds(paths: list[str]) -> Parts:
    """As sklearn's KFold. In each epoch another fold is for validation."""
    return {path: str(at * FOLDS // len(paths)) for at, path in enumerate(sorted(paths))}


def few_shot(paths: list[str]) -> Parts:
    """Eight files of each class to train on; all others are queries."""
    taken: Counter[str] = Counter()
    parts = {}
    for path in random.Random(2).sample(paths, len(paths)):
        name = path.split("/")[-2]
        parts[path] = "train" if taken[name] < 8 else "val"
        taken[name] += 1
    return parts


Script = Callable[[list[str]], Parts]

SCRIPTS: tuple[Script, ...] = (random_split, validation_split, stratified, folds, few_shot)


def epoch(mnt: Path, parts: Parts, number: int) -> dict[str, str]:
    """What an epoch of training and then one of validation get, by the path that they open."""
    held_out = str(number % FOLDS) if "0" in parts.values() else "val"
    served: dict[str, str] = {}
    for is_held_out in (False, True):
        paths = [path for path in parts if (parts[path] == held_out) is is_held_out]
        random.Random(number).shuffle(paths)
        served |= {path: (mnt / path).read_bytes().decode().rstrip(".") for path in paths}
    assert len(served) == len(parts)
    return served


def crossed(parts: Parts, served: dict[str, str]) -> int:
    return sum(parts.get(got) != parts[asked] for asked, got in served.items())


def mounted(machine: Machine, source: Path, *options: str) -> str:
    """What the mount prints, with memory for a quarter of the samples."""
    options = (*options, "--chunk-size", "4")
    memory = str(machine.inspect(source, *options)["memory_for"]["25%"])
    return machine.ok("mount", source, machine.mnt, *options, "--memory", memory).stderr


@pytest.mark.parametrize("classes", ["auto", "dir", "any", "FILE.csv"])
def test_a_split_of_the_script_mixes_and_one_line_says_so(machine: Machine, tmp_path: Path, classes: str) -> None:
    source = tmp_path / "source"
    paths = (train_of_two if classes == "auto" else without_splits)(source)
    table = tmp_path / "labels.csv"
    table.write_text("\n".join(["path,class", *(f"{path},{path.split('/')[-2]}" for path in paths)]))
    asked = ("--classes", str(table) if classes == "FILE.csv" else classes)
    line = "if the script makes a split itself (random_split, validation_split, train_test_split, k-fold, few-shot)"
    assert mounted(machine, source, *asked).count(line) == 1
    inspected = machine.ok("inspect", source, *asked).stdout
    assert " ".join(inspected.replace("│", " ").split()).count(line) == 1
    for number, script in enumerate(SCRIPTS):
        parts = script(paths)
        assert crossed(parts, epoch(machine.mnt, parts, number)) > FILES / 16, script.__name__


@pytest.mark.parametrize("policy", ["pool", "slot"])
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_no_sample_crosses_the_splits_of_a_table(machine: Machine, tmp_path: Path, policy: str, script: Script) -> None:
    source = tmp_path / "source"
    parts = script(without_splits(source))
    table = tmp_path / "labels.csv"
    rows = (f"{path},{path.partition('/')[0]},{part}" for path, part in parts.items())
    table.write_text("\n".join([f"file_name,label,{'fold' if script is folds else 'split'}", *rows]))
    assert "if the script makes a split" not in mounted(machine, source, "--classes", str(table), "--policy", policy)
    moved = 0
    for number in range(EPOCHS):
        served = epoch(machine.mnt, parts, number)
        assert crossed(parts, served) == 0
        assert {asked.partition("/")[0] == got.partition("/")[0] for asked, got in served.items()} == {True}
        assert Counter(served.values()) == dict.fromkeys(parts, 1)
        moved += sum(asked != got for asked, got in served.items())
    assert moved > EPOCHS * FILES / 2
