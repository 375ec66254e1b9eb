"""Programs of other projects on a real mount: each reads every sample once in an epoch, whole and with its label."""

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import wave
from collections import Counter
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machine import Machine
from packs import files_in
from patience import completed
from PIL import Image

PROGRAMS = Path(__file__).with_name("programs.py")
DEMO_IMAGES = Path(__file__).parents[1] / "scripts/demo_images.py"

IS_THOROUGH = os.environ.get("REDOXFS_TEST_PROFILE") == "thorough"

ROUNDS = 2
OF_EACH_SHAPE = 200 if IS_THOROUGH else 60
"""Images to train with; there are ten shapes, and a fifth as many images to validate with."""
HUGGING_FACE_ROUNDS = 10 if IS_THOROUGH else ROUNDS
SHARE = 1 if IS_THOROUGH else 3
"""Most programs read one image of this many. Hugging Face's tries a hundred patterns on each, with a stat each time."""

LABELS = ("bell", "drum", "flute", "gong")
COUNTS = {"train": 40, "val": 10}
"""Samples of each label. No name occurs in both splits, or under two labels."""


@dataclass(frozen=True)
class Samples:
    """A tree of SPLIT/LABEL/NAME in which no two files decode to the same."""

    root: Path
    paths: dict[str, str]
    """The path of each file, by the digest of its decoded content."""


def digest(decoded: bytes) -> str:
    return hashlib.sha256(decoded).hexdigest()


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """The demo's images, decoded by Pillow."""
    root = tmp_path_factory.mktemp("images") / "shapes"
    subprocess.run([sys.executable, DEMO_IMAGES, root, str(OF_EACH_SHAPE)], check=True)
    paths = {}
    for path in root.glob("*/*/*.png"):
        with Image.open(path) as image:
            paths[digest(image.convert("RGB").tobytes())] = path.relative_to(root).as_posix()
    assert len(paths) == 12 * OF_EACH_SHAPE
    return Samples(root, paths)


@pytest.fixture(scope="module")
def some_images(images: Samples, tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """A share of each directory of the demo's images."""
    root = tmp_path_factory.mktemp("images") / "shapes"
    in_order = sorted(images.paths.items(), key=lambda item: item[1])
    paths = dict(in_order[::SHARE])
    for path in paths.values():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(images.root / path, root / path)
    return Samples(root, paths)


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """Noise of 16 bits, 0.3 to 2 kB."""

    def write(path: Path, noise: np.ndarray[Any, Any]) -> None:
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(noise.itemsize)
            file.setframerate(8000)
            file.writeframes(noise.tobytes())

    return make_samples(tmp_path_factory.mktemp("sounds"), "wav", "<i2", write)


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """Arrays of integers, 1 to 8 kB."""
    return make_samples(tmp_path_factory.mktemp("arrays"), "npy", "<i8", np.save)


def make_samples(root: Path, suffix: str, kind: str, write: Any) -> Samples:
    random = np.random.default_rng(0)
    paths = {}
    for split, count in COUNTS.items():
        # Numbers run through the labels in mixed order. In order, equal ones could be parts of one sample.
        numbers = iter(random.permutation(count * len(LABELS)).tolist())
        for label in LABELS:
            (root / split / label).mkdir(parents=True)
            for number in islice(numbers, count):
                path = f"{split}/{label}/{split}-{label}-{number}.{suffix}"
                noise = random.integers(-(2**15), 2**15, random.integers(150, 1000)).astype(kind)
                write(root / path, noise)
                paths[digest(noise.tobytes())] = path
    return Samples(root, paths)


def run(machine: Machine, program: str, folder: Path, rounds: int) -> list[list[tuple[str, str]]]:
    """For each round, the label that the program gave to each sample, and the digest of its decoded content."""
    homes = {"HF_HOME": str(machine.folder / "hugging-face"), "MPLCONFIGDIR": str(machine.folder)}
    done = completed(
        [sys.executable, PROGRAMS, program, folder, str(rounds)],
        env=machine.environment | homes | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def each_comes_once_with_its_label(told: list[tuple[str, str]], samples: Samples) -> None:
    """Check a round. The digest identifies the file that was read, whatever path the program opened."""
    wrong = [
        f"{label} for {samples.paths.get(found, 'torn or mixed bytes')}"
        for label, found in told
        if samples.paths.get(found, "").rpartition("/")[0] != label
    ]
    assert wrong == []
    assert Counter(samples.paths[found] for _, found in told) == dict.fromkeys(samples.paths.values(), 1)


def redirected_epochs(machine: Machine, samples: Samples, program: str, rounds: int, *options: str) -> None:
    """A program reads a mount with ``options``, ``rounds`` times. Most opens return another file."""
    machine.ok("mount", samples.root, machine.mnt, *options)
    told = run(machine, program, machine.mnt, rounds)
    assert len(told) == rounds
    for epoch in told:
        each_comes_once_with_its_label(epoch, samples)
    stats = machine.stats()
    assert stats["errors"] == 0
    assert stats["lap"] == dict.fromkeys(COUNTS, rounds)
    assert stats["split_paths"] == dict.fromkeys(COUNTS, 0)
    assert stats["redirected"] > rounds * len(samples.paths) / 2
    machine.umount()


def skip_without(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed; scripts/setup installs it")


@pytest.mark.parametrize(
    ("program", "library", "kind", "policy", "memory"),
    [
        ("torchvision_image_folder", "torchvision", "some_images", "pool", "least"),
        ("opencv", "cv2", "some_images", "pool", "least"),
        # As Hugging Face's images below, with memory for all.
        ("hugging_face_sounds", "datasets", "sounds", "pool", "all"),
        # It opens a file once, numpy_load too, and numpy_mmap as often as any.
        ("sound_file", "soundfile", "sounds", "slot", "least"),
        ("numpy_load", "numpy", "arrays", "pool", "least"),
        ("numpy_mmap", "numpy", "arrays", "pool", "least"),
        ("numpy_mmap", "numpy", "arrays", "slot", "least"),
    ],
)
def test_a_program_reads_every_labeled_sample_once_twice_in_a_row(
    machine: Machine, request: pytest.FixtureRequest, program: str, library: str, kind: str, policy: str, memory: str
) -> None:
    skip_without(library)
    samples: Samples = request.getfixturevalue(kind)
    budget = machine.inspect(samples.root, "--policy", policy)["memory_for"][memory]
    redirected_epochs(machine, samples, program, ROUNDS, "--policy", policy, "--memory", str(budget))


# One image of three is less than 1 MiB in all.
@pytest.mark.parametrize("memory", ["34KiB", "1MiB", "all"] if IS_THOROUGH else ["34KiB"])
def test_hugging_face_image_folder_reads_every_labeled_sample_once(
    machine: Machine, some_images: Samples, memory: str
) -> None:
    """The library stats all files from many threads before it opens any, so its stats reserve whole classes."""
    skip_without("datasets")
    budget = str(machine.inspect(some_images.root)["memory_for"]["all"]) if memory == "all" else memory
    redirected_epochs(machine, some_images, "hugging_face_images", HUGGING_FACE_ROUNDS, "--memory", budget)


def test_webdataset_reads_every_sample_of_packed_shards_once(machine: Machine, images: Samples, tmp_path: Path) -> None:
    """Each shard is a sample here, and any shard may stand in for any other."""
    skip_without("webdataset")
    machine.ok("pack", images.root, tmp_path / "packed", "--shard-size", "64KiB", "--jobs", "1")
    shards = tmp_path / "shards"
    shards.mkdir()
    for shard in (tmp_path / "packed").glob("samples-*.tar"):
        os.link(shard, shards / shard.name)
    count = len(os.listdir(shards))
    options = ("--samples", "*.tar", "--classes", "any")
    least = machine.inspect(shards, *options)["memory_for"]["least"]
    machine.ok("mount", shards, machine.mnt, *options, "--memory", str(least))
    for told in run(machine, "web_dataset", machine.mnt, ROUNDS):
        each_comes_once_with_its_label(told, images)
    stats = machine.stats()
    assert (stats["samples"], stats["errors"], stats["lap"]) == (count, 0, {".": ROUNDS})
    assert stats["redirected"] > ROUNDS * count / 2


COPIES = {
    "cp": 'cp -r "$FROM" "$TO"',
    "rsync": 'rsync -a "$FROM/" "$TO/"',
    "tar": 'mkdir "$TO"; tar -C "$FROM" -c . | tar -C "$TO" -x',
    "sha256sum": 'cd "$FROM"; sha256sum --quiet -c "$SUMS"; cp -r . "$TO"',
}


def test_copying_the_exact_files_equals_the_source_twice(
    machine: Machine, some_images: Samples, tmp_path: Path
) -> None:
    for tool in COPIES:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed; scripts/setup installs it")
    sums = tmp_path / "sums"
    lines = [f"{digest((some_images.root / path).read_bytes())}  {path}\n" for path in some_images.paths.values()]
    sums.write_text("".join(lines))
    whole = files_in(some_images.root)
    least = machine.inspect(some_images.root)["memory_for"]["least"]
    machine.ok("mount", some_images.root, machine.mnt, "--memory", str(least))
    for tool, number in product(COPIES, range(ROUNDS)):
        copy = tmp_path / f"{tool}-{number}"
        places = {"FROM": str(machine.mnt / ".redoxfs/exact"), "TO": str(copy), "SUMS": str(sums)}
        done = completed(["bash", "-ec", f"set -o pipefail; {COPIES[tool]}"], env=os.environ | places)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), tool
        assert files_in(copy) == whole, tool
    stats = machine.stats()
    assert (stats["redirected"], stats["errors"], stats["lap"]) == (0, 0, dict.fromkeys(COUNTS, 1))
