"""ImageNet as it is downloaded, on a real mount: train/ is redirected, flat val/ and test/ are not."""

import json
import os
import random
import signal
from pathlib import Path

import pytest
from images import image, path_in
from machine import Machine

WNIDS = ("n01440764", "n01443537", "n01484850")
IN_TRAIN = dict.fromkeys(WNIDS, 40)
FLAT = ("val", "test")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "CLS-LOC"
    for label, wnid in enumerate(WNIDS):
        for number in range(IN_TRAIN[wnid]):
            write(root, f"train/{wnid}/{wnid}_{number * 7 + label}.JPEG", label, number)
    for split in FLAT:
        for number in range(1, 31):
            write(root, f"{split}/ILSVRC2012_{split}_{number:08d}.JPEG", 0, number)
    return root


def write(root: Path, path: str, label: int, number: int) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(image(path, label, number, 300 + number * 37 % 500))


def check_epochs(machine: Machine, source: Path) -> None:
    """Two epochs over train/ with right labels and each sample once. Every other file is always served as itself."""
    train = sorted(path.relative_to(source).as_posix() for path in source.glob("train/*/*"))
    others = [path.relative_to(source) for split in FLAT for path in sorted(source.glob(f"{split}/*"))]
    moved = 0
    for _ in range(2):
        served = {name: path_in((machine.mnt / name).read_bytes()) for name in reversed(train)}
        assert sorted(served.values()) == train
        assert all(name.split("/")[:2] == sample.split("/")[:2] for name, sample in served.items())
        moved += sum(name != sample for name, sample in served.items())
        for other in others:
            assert (machine.mnt / other).read_bytes() == (source / other).read_bytes()
    assert moved > len(train)
    assert machine.stats()["redirected"] == moved


def test_a_tool_cannot_leave_a_file_in_a_source_that_is_mounted_over_itself(machine: Machine, source: Path) -> None:
    """As Ultralytics tries it: it asks whether the folder may be written to, and goes on without."""
    before = sorted(source.rglob("*"))
    machine.ok("mount", source)
    assert not os.access(source, os.W_OK)
    with pytest.raises(OSError, match="Read-only file system"):
        (source / "train.cache").open("wb")
    assert not (source / "train.cache").exists()
    machine.ok("umount", source)
    assert sorted(source.rglob("*")) == before


@pytest.mark.parametrize("options", [[], ["--classes", "dir"]], ids=["auto", "dir"])
@pytest.mark.parametrize("packed", [False, True], ids=["directory", "packed"])
def test_imagenet_as_downloaded_is_redirected_only_in_train(
    machine: Machine, tmp_path: Path, source: Path, options: list[str], packed: bool
) -> None:
    served_from = source
    if packed:
        served_from = tmp_path / "packed"
        machine.ok("pack", source, served_from, *options, "--chunk-size", "4")
        options = []
    facts = machine.inspect(served_from, *options, "--chunk-size", "4")
    assert {split["split"]: split["redirected"] for split in facts["splits"]} == {
        "train": True,
        "val": False,
        "test": False,
    }
    assert facts["samples"] == sum(IN_TRAIN.values())
    assert facts["class_trees"] == ["train"]
    memory = str(facts["memory_for"]["25%"])
    machine.ok("mount", served_from, machine.mnt, *options, "--chunk-size", "4", "--memory", memory)
    check_epochs(machine, source)


def test_one_split_of_a_dataset_is_mounted_over_itself(machine: Machine, source: Path) -> None:
    """SOURCE is train/, whose name is proof, and val/, which has no directories."""
    options = ("--chunk-size", "4")
    assert machine.inspect(source / "train", *options)["splits"][0]["redirected"]
    for split, redirected in (("train", True), ("val", False)):
        assert (machine.inspect(source / split, *options)["samples"] > 0) is redirected
        machine.ok("mount", source / split, *options, "--memory", "1MiB")
    assert machine.inspect(source / "test")["samples"] == 0
    for path in sorted((source / "train").glob("*/*")):
        assert path_in(path.read_bytes()).split("/")[1] == path.parent.name
    told = json.loads((source / "train/.redoxfs/stats.json").read_text())
    assert told["verdict"].startswith("redirecting within 3 class directories; ")


def test_a_hanging_split_beside_the_source_is_no_proof(machine: Machine, tmp_path: Path) -> None:
    root = tmp_path / "pets"
    for split in ("train", "val"):
        for label, name in enumerate(("cat", "dog")):
            for number in random.Random(split + name).sample(range(1000), 8):
                write(root, f"{split}/{name}/{name}-{number}.jpg", label, number)
    inspected = ("--chunk-size", "4", "--timeout", "2")
    assert machine.inspect(root / "train", *inspected)["samples"] == 16
    machine.ok("mount", root / "val", "--classes", "none")
    assert machine.inspect(root / "train", *inspected)["samples"] == 16
    # Another mount: of this one the kernel knows all names now, and needs no daemon for them.
    machine.ok("umount", root / "val")
    machine.ok("mount", "--no-keeper", root / "val", "--classes", "none")
    daemon = machine.pid(root / "val")
    os.kill(daemon, signal.SIGSTOP)
    try:
        facts = machine.inspect(root / "train", *inspected)
    finally:
        os.kill(daemon, signal.SIGCONT)
    assert "no other split has the same directories" in facts["verdict"]
    machine.kill(signal.SIGKILL, root / "val")
    assert "no other split has the same directories" in machine.inspect(root / "train", *inspected)["verdict"]


def test_the_verdict_is_printed_for_each_split(machine: Machine, source: Path) -> None:
    said = machine.ok("mount", source, machine.mnt, "--memory", "1MiB").stderr
    lines = (
        "redirecting within 3 class directories (train 3); --classes none turns this off",
        "train: redirected (its 3 class directories are WordNet ids)",
        "test, val: not redirected (samples lie directly in the split)",
    )
    assert [line for line in said.splitlines() if line in lines] == list(lines)
    table = " ".join(machine.ok("inspect", source).stdout.replace("│", " ").split())
    for line in lines:
        assert line in table
