"""Trees whose file names say more than the directory, as scripts read them on a real mount.

Where the user makes redoxfs redirect, labels, pairs and clips are wrong. By default they are right.
"""

import random
import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from machine import Machine
from t4_splits import mounted, write

EPOCHS = 3
A_CLASS = 60
"""Files of a class and split."""

Read = Callable[[str], str]
"""Opens a file and returns the path of the file that has these bytes."""


@dataclass(frozen=True)
class Example:
    """A dataset, and what its script gets wrong in an epoch: how many of how many things."""

    name: str
    files: Callable[[], Iterator[str]]
    wrong: Callable[[list[str], Read], tuple[int, int]]


def labelled(name: str, classes: tuple[str, str], stem: Callable[[random.Random], str], field: str) -> Example:
    """The script reads `field` (a pattern) out of the path."""

    def files() -> Iterator[str]:
        draw = random.Random(name)
        for split in ("train", "test"):
            for each in classes:
                yield from (f"{split}/{each}/{stem(draw)}.png" for _ in range(A_CLASS))

    def wrong(paths: list[str], read: Read) -> tuple[int, int]:
        def label(path: str) -> str:
            (found,) = re.findall(field, path)
            return str(found)

        return sum(label(path) != label(read(path)) for path in paths), len(paths)

    return Example(name, files, wrong)


def paired(name: str, one: str, other: str, keys: Callable[[random.Random], str]) -> Example:
    """The script opens two files that differ in a part of their names, `one` and `other` with KEY for the rest."""

    def files() -> Iterator[str]:
        draw = random.Random(name)
        for split in ("train", "test"):
            found = [keys(draw) for _ in range(A_CLASS)]
            for side in (one, other):
                yield from (f"{split}/{side.replace('KEY', key)}" for key in found)

    def wrong(paths: list[str], read: Read) -> tuple[int, int]:
        sides = [re.compile(".*/" + side.replace("KEY", "(.+)")) for side in (one, other)]
        firsts = [(path, found[1]) for path in paths if (found := sides[0].fullmatch(path))]
        bad = 0
        for path, key in firsts:
            got = read(path), read(path.split("/")[0] + "/" + other.replace("KEY", key))
            matches = [side.fullmatch(each) for side, each in zip(sides, got, strict=True)]
            bad += not (matches[0] and matches[1] and matches[0][1] == matches[1][1])
        return bad, len(firsts)

    return Example(name, files, wrong)


def clips() -> Example:
    """The script opens the frames of a clip one after the other."""

    def files() -> Iterator[str]:
        for split, first in (("train", 0), ("test", 50)):
            for each in ("archery", "bowling"):
                for clip in range(first, first + A_CLASS // 10):
                    yield from (f"{split}/{each}/clip{clip}_f{frame:04d}_crop.png" for frame in range(10))

    def wrong(paths: list[str], read: Read) -> tuple[int, int]:
        of_clip = defaultdict(list)
        for path in sorted(paths):
            of_clip[path.rpartition("_f")[0]].append(path)
        intact = sum([read(path) for path in frames] in list(of_clip.values()) for frames in of_clip.values())
        return len(of_clip) - intact, len(of_clip)

    return Example("clips", files, wrong)


def number(draw: random.Random) -> int:
    return draw.randrange(100_000, 999_999)


def random_uuid(draw: random.Random) -> uuid.UUID:
    return uuid.UUID(int=draw.getrandbits(128), version=4)


EXAMPLES = (
    labelled("age", ("female", "male"), lambda draw: f"{number(draw)}_age{draw.randrange(14, 90)}", r"_age(\d+)"),
    labelled("price", ("female", "male"), lambda draw: f"{number(draw)}_{draw.randrange(5, 500) * 10}", r"_(\d+)\."),
    labelled("rating", ("film", "book"), lambda draw: f"{random_uuid(draw)}_{draw.randint(1, 5)}", r"_(\d)\."),
    labelled(
        "speaker", ("yes", "no"), lambda draw: f"{draw.randrange(20):08x}_nohash_{number(draw)}", r"/([0-9a-f]{8})_"
    ),
    paired(
        "roi",
        "sar/ROI_s1_KEY.png",
        "optical/ROI_s2_KEY.png",
        lambda draw: f"{draw.randrange(100)}_p{draw.randrange(100_000)}",
    ),
    paired("band", "second/B02_KEY.png", "eighth/B08_KEY.png", lambda draw: f"{draw.getrandbits(48):012x}"),
    paired("tail", "sar/KEYsar.png", "optical/KEYopt.png", lambda draw: f"{draw.randrange(10_000):04d}"),
    clips(),
)


def epochs(machine: Machine, example: Example, files: list[str]) -> list[tuple[int, int]]:
    """What is wrong in each epoch over train/."""

    def read(path: str) -> str:
        return (machine.mnt / path).read_bytes().decode().rstrip(".")

    found = []
    for seed in range(EPOCHS):
        paths = [path for path in files if path.startswith("train/")]
        random.Random(seed).shuffle(paths)
        found.append(example.wrong(paths, read))
    return found


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_what_names_say_is_wrong_under_dir_and_right_by_default(
    machine: Machine, tmp_path: Path, example: Example
) -> None:
    files = write(tmp_path / "source", list(dict.fromkeys(example.files())))
    mounted(machine, tmp_path / "source", "--classes", "dir")
    assert all(wrong > 0.6 * things for wrong, things in epochs(machine, example, files))
    machine.ok("umount", machine.mnt)
    said = machine.ok("mount", tmp_path / "source", machine.mnt).stderr
    assert "not redirecting: " in said
    assert [wrong for wrong, _ in epochs(machine, example, files)] == [0] * EPOCHS


YOLO, CAPTIONS = ("images/{key}.jpg", "labels/{key}.txt"), ("{key}.jpg", "{key}.txt")
GROUPED = 120


def opened(path: Path) -> int:
    return int(re.findall(r"(\d+)\.", path.read_bytes().decode())[0])


def wrong_pairs(root: Path, layout: tuple[str, str], *, once: bool) -> list[int]:
    """The images that get the label of another one, in each epoch. A loader may read the labels `once`, at first."""
    images, labels = ([root / pattern.replace("{key}", f"{key:04d}") for key in range(GROUPED)] for pattern in layout)
    kept = []
    if once and layout == YOLO:
        # As Ultralytics, which looks at each image and its label before the first epoch.
        kept = [(opened(image), opened(label))[1] for image, label in zip(images, labels, strict=True)]
    elif once:
        # As loaders for fine-tuning, which need no image at first.
        kept = [opened(label) for label in labels]
    found = []
    for seed in range(EPOCHS):
        # The mount looks at what was opened.
        (root / ".redoxfs/stats.json").read_bytes()
        order = random.Random(seed).sample(range(GROUPED), GROUPED)
        found.append(sum(opened(images[key]) != (kept[key] if once else opened(labels[key])) for key in order))
    return found


@pytest.mark.parametrize("layout", [YOLO, CAPTIONS], ids=["YOLO", "captions"])
def test_groups_are_for_scripts_that_open_a_samples_files_together(
    machine: Machine, tmp_path: Path, layout: tuple[str, str]
) -> None:
    source = tmp_path / "source"
    write(source, [pattern.replace("{key}", f"{key:04d}") for pattern in layout for key in range(GROUPED)])
    groups = ("--groups", ",".join(layout) if layout == YOLO else "stem")
    for once in (False, True):
        said = mounted(machine, source, "--classes", "any", *groups)
        assert said.count("--groups is for scripts that open the files of a sample together, each time; one that") == 1
        wrong = wrong_pairs(machine.mnt, layout, once=once)
        if once:
            # Captions that were read first still wait for the images of the first epoch.
            assert min(wrong if layout == YOLO else wrong[1:]) > GROUPED / 2
        else:
            assert wrong == [0] * EPOCHS
        machine.ok("umount", machine.mnt)
        assert machine.log().count("such as 0000.jpg again and again, and such as 0000.txt no longer") == once
    for options in ((), ("--classes", "sampler", *groups)):
        machine.ok("mount", source, machine.mnt, *options)
        assert wrong_pairs(machine.mnt, layout, once=True) == [0] * EPOCHS
        machine.ok("umount", machine.mnt)
    assert machine.log().count("again and again") == 1
