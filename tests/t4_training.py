"""An unmodified training script over a real mount: PyTorch's DataLoader over an ImageFolder-style dataset."""

import os
import subprocess
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path

import pytest
from images import UNEVEN, identity, make_images
from machine import Machine

pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset

# The claim is about four workers, even on two cores.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

WORKERS = 4
EPOCHS = 3


class ImageFolder(Dataset[tuple[str, str, str]]):
    """As torchvision's ImageFolder: the label is the directory, the sample is the path."""

    def __init__(self, root: Path, known: Mapping[bytes, tuple[str, str]]) -> None:
        self.known = known
        self.paths = [
            os.path.join(folder.path, name)
            for folder in sorted(os.scandir(root), key=lambda entry: entry.name)
            for name in sorted(os.listdir(folder.path))
        ]
        self.root = str(root.parent)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[str, str, str]:
        path = self.paths[index]
        with open(path, "rb") as file:
            data = file.read()
        asked = os.path.relpath(path, self.root)
        label = asked.split("/")[1]
        assert data in self.known, f"{asked}: torn or mixed bytes"
        served_label, served = self.known[data]
        assert served_label == label, f"{asked} gave {served}"
        return asked, served, label


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    make_images(root, UNEVEN)
    return root


@pytest.fixture(scope="module")
def known(source: Path) -> dict[bytes, tuple[str, str]]:
    """The label and path of each image of the source, by its bytes. No other bytes may be served."""
    images = [path.read_bytes() for path in source.glob("train/*/*.png")]
    told = {data: identity(data, "train", UNEVEN) for data in images}
    assert len(told) == sum(UNEVEN.values())
    return told


@pytest.fixture(scope="module")
def packed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    dst = tmp_path_factory.mktemp("packed") / "dst"
    command = [sys.executable, "-m", "redoxfs", "pack", str(source), str(dst), "--shard-size", "4MiB"]
    subprocess.run(command, check=True, capture_output=True)
    return dst


@pytest.mark.parametrize(
    ("policy", "store", "chunk_size", "memory", "persistent"),
    [
        ("slot", "directory", 1, "5%", False),
        ("slot", "directory", 64, "all", False),
        ("slot", "packed", 64, "25%", True),
        ("pool", "directory", 1, "5%", True),
        ("pool", "directory", 7, "all", False),
        ("pool", "packed", 8, "5%", False),
    ],
)
def test_every_label_is_right_and_every_sample_comes_once(
    machine: Machine,
    source: Path,
    known: Mapping[bytes, tuple[str, str]],
    packed: Path,
    policy: str,
    store: str,
    chunk_size: int,
    memory: str,
    persistent: bool,
) -> None:
    served_from = packed if store == "packed" else source
    options = ("--policy", policy, "--chunk-size", str(chunk_size))
    budget = machine.inspect(served_from, *options)["memory_for"][memory]
    machine.ok("mount", served_from, machine.mnt, *options, "--memory", str(budget))
    data = ImageFolder(machine.mnt / "train", known)
    assert len(data) == sum(UNEVEN.values()) > 1000
    loader = DataLoader(data, batch_size=64, shuffle=True, num_workers=WORKERS, persistent_workers=persistent)
    for epoch in range(EPOCHS):
        before = machine.stats()
        pairs = [(asked, served) for batch in loader for asked, served in zip(batch[0], batch[1], strict=True)]
        counts = Counter(served for _, served in pairs)
        assert counts == dict.fromkeys(counts, 1), f"epoch {epoch}: a sample came twice"
        assert len(counts) == len(data), f"epoch {epoch}: a sample did not come"
        after = machine.stats()
        redirected = sum(asked != served for asked, served in pairs)
        assert after["redirected"] - before["redirected"] == redirected
        if policy == "slot" and memory == "all":
            # If all samples fit, none needs a stand-in: each chunk is read once and kept until it is used up.
            assert redirected == 0
            assert after["chunk_loads"] - before["chunk_loads"] == after["chunks"]
        else:
            assert redirected > len(data) / 2
        if policy == "slot":
            assert after["samples_loaded"] - before["samples_loaded"] == len(data)
    stats = machine.stats()
    assert stats["errors"] == 0
    assert stats["lap"] == {"train": EPOCHS}
    assert stats["split_paths"] == {"train": 0}
    assert stats["memory_used_bytes"] <= budget
    # Samples that were loaded and not served are still in memory: no read was wasted.
    waiting = stats["in_slots"]
    if policy == "pool" and memory == "all":
        # If all samples stay in memory, none was read twice.
        assert stats["samples_loaded"] == waiting == len(data)
    elif policy == "pool":
        # The pool keeps some for the next lap, at most what fits in memory. `t0_pool` counts each as read or kept.
        kept = EPOCHS * len(data) + waiting - stats["samples_loaded"]
        fitting = bisect_right(list(accumulate(sorted(map(len, known)))), budget)
        assert 0 <= kept <= EPOCHS * fitting
    else:
        assert stats["samples_loaded"] == EPOCHS * len(data) + waiting
    machine.umount()
