"""Scripts that split a tree themselves, on a real mount: a table with the split keeps their parts apart."""

import random
from collections import Counter
from pathlib import Path

import pytest
from machine import Machine

FILES, EPOCHS = 96, 6


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    """The files of a tree of two classes, without splits, in `source`. Each has its path in it."""
    found = [f"{name}/{number}.jpg" for name in ("cat", "dog") for number in range(FILES // 2)]
    for path in found:
        file = tmp_path / "source" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(path.encode().ljust(2000 + 37 * len(path), b"."))
    return found


def random_split(paths: list[str]) -> dict[str, str]:
    """As torch.utils.data.random_split: a quarter of the files is for validation."""
    held_out = set(random.Random(1).sample(paths, len(paths) // 4))
    return {path: "val" if path in held_out else "train" for path in paths}


def epoch(mnt: Path, split_of: dict[str, str], seed: int) -> dict[str, str]:
    """What an epoch of training and then one of validation get, by the path that they open."""
    served: dict[str, str] = {}
    for split in ("train", "val"):
        paths = [path for path in split_of if split_of[path] == split]
        random.Random(seed).shuffle(paths)
        served |= {path: (mnt / path).read_bytes().decode().rstrip(".") for path in paths}
    assert Counter(served.values()) == dict.fromkeys(split_of, 1)
    return served


@pytest.mark.parametrize("policy", ["pool", "slot"])
@pytest.mark.parametrize("column", ["split", "fold"])
def test_no_sample_crosses_the_splits_of_a_table(
    machine: Machine, tmp_path: Path, paths: list[str], policy: str, column: str
) -> None:
    split_of = random_split(paths)
    table = tmp_path / "labels.csv"
    rows = (f"{path},{path.partition('/')[0]},{split}" for path, split in split_of.items())
    table.write_text("\n".join([f"file_name,label,{column}", *rows]))
    options = ("--classes", str(table), "--policy", policy, "--chunk-size", "4")
    memory = str(machine.inspect(tmp_path / "source", *options)["memory_for"]["25%"])
    machine.ok("mount", tmp_path / "source", machine.mnt, *options, "--memory", memory)
    moved = 0
    for seed in range(EPOCHS):
        served = epoch(machine.mnt, split_of, seed)
        assert {asked: got for asked, got in served.items() if split_of[asked] != split_of[got]} == {}
        assert {asked.partition("/")[0] == got.partition("/")[0] for asked, got in served.items()} == {True}
        moved += sum(asked != got for asked, got in served.items())
    assert moved > EPOCHS * FILES / 2
