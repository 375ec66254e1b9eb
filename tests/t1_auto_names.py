"""`--classes auto` with names of files and directories that are doubts: rows of the table in docs/classes.md.

Each tree lies below two splits, which would be proof enough if the names were no doubt.
"""

from __future__ import annotations

import hashlib
import random
import string
import tracemalloc
import uuid
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from t1_auto_verdicts import (
    ANY,
    DIR,
    catalog,
    cats_and_dogs,
    check_redirected,
    check_refused,
    imagenet,
    made,
    make,
    numbers,
    random_uuid,
)

from redoxfs.dataset import randomness
from redoxfs.dataset.randomness import Identities, shared

Build = Callable[[Path], None]


def below(build: Build) -> Build:
    """The tree below two splits."""

    def build_both(root: Path) -> None:
        for split in ("train", "test"):
            (root / split).mkdir()
            build(root / split)

    build_both.__name__ = build.__name__
    return build_both


def food101(root: Path) -> None:
    for name in ("apple_pie", "baby_back_ribs", "baklava"):
        make(root, *(f"{name}/{i * 31}.jpg" for i in numbers(name, 12)))


def split_and_class_named_files(root: Path) -> None:
    for split in ("train", "val"):
        for name in ("airplane", "automobile"):
            make(root, *(f"{split}/{name}/{split}-{name}-{i}.png" for i in numbers(split + name, 10)))


def eurosat(root: Path) -> None:
    for name in ("AnnualCrop", "Forest", "SeaLake"):
        make(root, *(f"{name}/{name}_{i}.jpg" for i in range(1, 12)))


def stanford_dogs(root: Path) -> None:
    for name in ("n02085620-Chihuahua", "n02085782-Japanese_spaniel"):
        make(root, *(f"{name}/{name[:9]}_{i}.jpg" for i in numbers(name, 12)))


def digits(root: Path) -> None:
    for name in range(10):
        make(root, *(f"{name}/{i * 10 + name}.png" for i in range(12)))


def numbered_classes(root: Path) -> None:
    for name in range(3):
        make(root, *(f"class_{name}/{i}.png" for i in numbers(f"class {name}", 12)))


def flowers(root: Path) -> None:
    make(root, "LICENSE.txt")
    for at, name in enumerate(("daisy", "tulips")):
        for i, size in enumerate(("", "_n", "_m", "_n", "_m", "", "_z", "_z")):
            make(root, f"{name}/{10140303 + at * 50 + i}_{0xB88D3D6CEC + i * 7919 + at:x}{size}.jpg")


def random_names(root: Path) -> None:
    for name in ("plant", "insect"):
        make(root, *(f"{name}/{random_uuid(f'{name} {i}')}.jpg" for i in range(40)))


def random_names_and_words(root: Path) -> None:
    random_names(root)
    make(root, "plant/picture of a green plant.jpg")


def speech_commands(root: Path) -> None:
    for at, name in enumerate(("yes", "no")):
        make(root, *(f"{name}/{0x0A7C2A8D + at * 977 + i * 65537:08x}_nohash_{i % 3}.wav" for i in range(20)))


def birds(root: Path) -> None:
    for at, name in enumerate(("001.Black_footed_Albatross", "002.Laysan_Albatross")):
        make(root, *(f"{name}/{name[4:]}_{i:04d}_{796111 + at * 50 + i}.jpg" for i in range(12)))


def glued_splits(root: Path) -> None:
    for split in ("trainset", "testset"):
        for name in ("cat", "dog"):
            make(root, *(f"{split}/{name}/{name}{i}.jpg" for i in numbers(split + name, 5)))


def documents_beside(root: Path) -> None:
    cats_and_dogs(root)
    make(root, "paper.pdf", "index.html", "cats_and_dogs.zip", "all.tar.gz", "download.sh", "AUTHORS")


def label_in_the_name(root: Path) -> None:
    for at, name in enumerate(("NORMAL", "PNEUMONIA")):
        make(root, *(f"{name}/IM-{i * 17 + at:04d}-0001.jpeg" for i in range(20) if not at))
        make(root, *(f"{name}/person{i * 31}_{'bacteria' if i % 2 else 'virus'}_{i * 7}.jpeg" for i in range(20) if at))


def rare_label_in_the_name(root: Path) -> None:
    make(root, *(f"left_lung/scan_{i:04d}.png" for i in range(150)))
    make(root, *(f"right_lung/scan_{i:04d}.png" for i in range(200, 350)))
    make(root, "right_lung/tumor_1.png", "right_lung/tumor_2.png")


def products(root: Path) -> None:
    for at, name in enumerate(("bicycle_final", "chair_final")):
        make(root, *(f"{name}/{111085122871 + at * 999 + i * 31}_{k}.JPG" for i in range(6) for k in range(3)))


def frames(root: Path) -> None:
    for at, name in enumerate(("jump", "run")):
        make(root, *(f"{name}/clip_v{at * 9 + v:02d}_f{f:03d}.jpg" for v in range(3) for f in range(5)))


def folds(root: Path) -> None:
    for fold in (1, 2):
        make(root, *(f"fold{fold}/{fold * 1000 + i * 7}.wav" for i in range(8)))


def cameras(root: Path) -> None:
    make(root, *(f"cam_a/{i * 7}.bmp" for i in range(8)), *(f"cam_b/{1000 + i * 7}.bmp" for i in range(8)))


def speakers(root: Path) -> None:
    for speaker in (225, 226, 227):
        make(root, *(f"p{speaker}/p{speaker}_{i:03d}.wav" for i in range(8)))


def padded_numbers(root: Path) -> None:
    for shard in range(3):
        make(root, *(f"{shard:04d}/{i * 100 + shard}.jpg" for i in range(1, 9)))


def hex_shards(root: Path) -> None:
    for shard in ("0a", "b3", "cd"):
        make(root, *(f"{shard}/{hashlib.md5(f'{shard}{i}'.encode()).hexdigest()}.jpg" for i in range(8)))


def ids(root: Path) -> None:
    for speaker in (19, 1034, 8975):
        make(root, *(f"{speaker}/{speaker * 100 + i}.flac" for i in range(8)))


def days(root: Path) -> None:
    for day in (1, 2, 3):
        make(root, *(f"2021-06-{day:02d}/IMG_{day * 100 + i}.JPG" for i in range(8)))


def split_directories(root: Path) -> None:
    for at, name in enumerate(("bounding_box_train", "bounding_box_test")):
        make(root, *(f"{name}/{at * 1000 + i}.jpg" for i in range(8)))


def glued_split_directories(root: Path) -> None:
    for at, name in enumerate(("mytrain", "mytest")):
        make(root, *(f"{name}/{at * 1000 + i}.jpg" for i in range(8)))


def training_set(root: Path) -> None:
    for at, name in enumerate(("TrainingSet", "TestSet")):
        make(root, *(f"{name}/{at * 1000 + i}.jpg" for i in range(8)))


def super_resolution(root: Path) -> None:
    make(root, *(f"sharp_ones/{i:04d}.png" for i in range(8)), *(f"bicubic/{i:04d}x4.png" for i in range(8)))


def own_name_inside(root: Path) -> None:
    for name in ("radar_one", "optics"):
        make(root, *(f"{name}/ROIs1158_spring_{name}_p{i}.tif" for i in range(8)))


def letter_before(root: Path) -> None:
    make(root, *(f"eyes/{i:04d}.png" for i in range(8)), *(f"iris/M{i:04d}.png" for i in range(8)))


def unknown_at_the_top(root: Path) -> None:
    imagenet(root)
    make(root, "boxes.dat")


def extensionless(root: Path) -> None:
    cats_and_dogs(root)
    make(root, "train-idx1-ubyte")


def named_like_about(root: Path) -> None:
    cats_and_dogs(root)
    make(root, "README_labels.txt")


def label_archive(root: Path) -> None:
    cats_and_dogs(root)
    make(root, "annotations.zip")


def label_page(root: Path) -> None:
    cats_and_dogs(root)
    make(root, "ground_truth.html")


def packed_unknown(root: Path) -> None:
    cats_and_dogs(root)
    make(root, "things.tab.gz")


def goes_on(root: Path) -> None:
    for split in ("train", "test"):
        for at, name in enumerate(("VG_100K", "VG_100K_2")):
            make(root, *(f"{split}/{name}/{2316003 + at * 977 + i * 7}.jpg" for i in range(8)))


def digits_and_words(root: Path) -> None:
    """A directory's number is not part of a camera's number: 8/IMG_1280 and 7/IMG_1270 are unrelated."""
    for name in ("7", "8", "none"):
        make(root, *(f"{name}/IMG_{i}.jpg" for i in numbers(name, 8)))


# Trees below two splits whose file names have no more information than their directories.
REDIRECTED: list[tuple[Build, int]] = [
    (food101, 6),
    (stanford_dogs, 4),
    (numbered_classes, 6),
    (flowers, 4),
    (random_names, 4),
    (digits_and_words, 6),
]

# (the tree, words that the line must have, the options that it suggests besides a table)
REFUSED: list[tuple[Build, str, set[str]]] = [
    (below(digits), "the names of all their directories are numbers", {DIR, ANY}),
    (below(label_in_the_name), "person0_virus_0.jpeg has more in its name than an identity (0 and virus and 0)", {DIR}),
    (
        below(rare_label_in_the_name),
        "right_lung/tumor_1.png has more in its name than an identity (tumor and 1)",
        {DIR},
    ),
    (
        below(products),
        "bicycle_final/111085122871_0.JPG has more in its name than an identity (111085122871 and 0)",
        {DIR},
    ),
    (below(frames), "jump/clip_v00_f000.jpg has more in its name than an identity (00 and 000)", {DIR}),
    (below(folds), "fold1 and test/fold2 are named like numbered things", {ANY}),
    (below(cameras), "cam_a and test/cam_b are named like numbered things", {ANY}),
    (below(speakers), "p225 and test/p226 are named like numbered things", {DIR}),
    (below(padded_numbers), "0000 and test/0001 are named like numbered things", {ANY}),
    (below(hex_shards), "0a and test/b3 are named like numbered things", {DIR, ANY}),
    (below(ids), "1034 and test/19 are named like numbered things", {ANY}),
    (below(days), "2021-06-01 and test/2021-06-02 are named like numbered things", {DIR, ANY}),
    (goes_on, "VG_100K and test/VG_100K_2 are named like numbered things", {DIR, ANY}),
    (split_directories, "bounding_box_test/1000.jpg lies directly in the split bounding_box_test", {ANY}),
    (glued_split_directories, "nothing shows that mytest and mytrain are classes", {ANY}),
    (training_set, "lies directly in the split TestSet", {ANY}),
    (below(super_resolution), "bicubic/0000x4.png and test/sharp_ones/0000.png may be parts of one sample", {DIR}),
    (
        below(own_name_inside),
        "optics/ROIs1158_spring_optics_p0.tif and test/radar_one/ROIs1158_spring_radar_one",
        {DIR},
    ),
    (below(letter_before), "eyes/0000.png and test/iris/M0000.png may be parts of one sample", {DIR}),
    (below(eurosat), "AnnualCrop_1.jpg and test/Forest/Forest_1.jpg may be parts of one sample", {DIR}),
    (below(speech_commands), "_nohash_0.wav has more in its name than an identity", {DIR}),
    (below(birds), "Black_footed_Albatross_0000_796111.jpg has more in its name than an identity", {DIR}),
    (below(random_names_and_words), "plant/picture of a green plant.jpg has more in its name than an identity", {DIR}),
    (unknown_at_the_top, "boxes.dat looks like a label table", {DIR}),
    (extensionless, "train-idx1-ubyte is not a sample and may hold labels", {DIR}),
    (named_like_about, "README_labels.txt looks like a label table", {DIR}),
    (label_archive, "annotations.zip looks like a label table", {DIR}),
    (label_page, "ground_truth.html looks like a label table", {DIR}),
    (packed_unknown, "things.tab.gz is not a sample and may hold labels", {DIR}),
]


@pytest.mark.parametrize(("build", "directories"), REDIRECTED, ids=[row[0].__name__ for row in REDIRECTED])
def test_these_file_names_are_no_doubt(tmp_path: Path, build: Build, directories: int) -> None:
    root = made(tmp_path, below(build))
    check_redirected(root, f"{directories} class directories", {"train": True, "test": True})


@pytest.mark.parametrize(
    ("build", "directories"),
    [(split_and_class_named_files, 4), (glued_splits, 4), (documents_beside, 4)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_these_other_files_are_no_doubt(tmp_path: Path, build: Build, directories: int) -> None:
    assert catalog(made(tmp_path, build)).verdict.line.startswith(f"redirecting within {directories} class directories")


@pytest.mark.parametrize(("build", "words", "offered"), REFUSED, ids=[row[0].__name__ for row in REFUSED])
def test_nothing_is_redirected_of(tmp_path: Path, build: Build, words: str, offered: set[str]) -> None:
    check_refused(made(tmp_path, build), words, offered)


def test_an_identity_that_many_directories_have_is_judged_by_some_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All pairs of 20,000 directories that number their files from 0 would not fit into memory."""
    pairs: list[int] = []

    def counting(*given: Any) -> Any:
        found = known(*given)
        pairs.append(int(found[2].sum()))
        return found

    known = randomness._pairs
    monkeypatch.setattr(randomness, "_pairs", counting)
    monkeypatch.setattr(randomness, "GROUPS_OF_KEY_MAX", 10, raising=False)
    words = [text(random.Random(number), string.ascii_lowercase, 9) for number in range(60)]
    for split in ("train", "test"):
        make(tmp_path, *(f"{split}/{word}/{at}.jpg" for word in words for at in range(3)))
    # Of the pairs that there are, enough say the same.
    check_refused(tmp_path, "two directories share numbers", {DIR})
    assert 0 < max(pairs) < 3 * 15**2


def test_differences_that_repeat_within_many_directories_take_little_memory() -> None:
    """As those of frames that are named by a time: of 30 a second each third has the same differences."""
    groups, files = 40, 150
    group = np.repeat(np.arange(groups), files)
    value = np.tile(np.arange(files) * 100 // 3, groups) + group * 1_000_000
    ids = Identities(np.arange(len(group)), group, value.astype(np.uint64), value)
    tracemalloc.start()
    try:
        told = shared(ids)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert told is not None
    assert "or their differences" in told.what
    assert peak_bytes < 10_000_000, "pairs of directories, and not of files"


def text(chance: random.Random, letters: str, count: int) -> str:
    return "".join(chance.choices(letters, k=count))


HEX, WORD = "0123456789abcdef", string.ascii_letters + string.digits
Chance = random.Random

# The twenty names of docs/classes.md: a class, how a name of it is drawn, and words of the line that refuses it.
PARSED: list[tuple[str, Callable[[Chance], str], str]] = [
    ("bream", lambda c: f"n01440764_{c.randrange(30_000)}", ""),
    ("cats", lambda c: f"cat.{c.randrange(10_000)}", ""),
    ("apple_pie", lambda c: f"{c.randrange(4_000_000)}", ""),
    ("melanoma", lambda c: f"ISIC_{c.randrange(40_000):07d}", ""),
    ("angry", lambda c: f"PublicTest_{c.randrange(10**8)}", ""),
    ("fake", lambda c: f"file{c.randrange(40_000)}.wav_16k", ""),
    ("ants", lambda c: f"{c.randrange(10**6, 10**10)}_{text(c, HEX, 10)}{c.choice(['', '_n'])}", ""),
    ("Acer_rubrum", lambda c: str(uuid.UUID(int=c.getrandbits(128), version=4)), ""),
    ("neutral", lambda c: text(c, HEX, 40), ""),
    ("leaf", lambda c: text(c, WORD, 12), ""),
    ("rust", lambda c: f"rust-{c.randrange(10_000)}_jpg.rf.{text(c, HEX, 32)}", ""),
    ("female", lambda c: f"{c.randrange(10**6):06d}_age{c.randrange(10, 90)}", "has more in its name than an identity"),
    ("male", lambda c: f"{c.randrange(10**6):06d}_{c.randrange(1, 3000)}", "has more in its name than an identity"),
    ("yes", lambda c: f"{text(c, HEX, 8)}_nohash_{c.randrange(5)}", "has more in its name than an identity"),
    ("archery", lambda c: f"clip{c.randrange(60)}_f{c.randrange(1000):04d}_crop", "has more in its name than an"),
    (
        "swim",
        lambda c: f"{text(c, WORD, 11)}_{c.randrange(10**6):06d}_{c.randrange(10**6):06d}",
        "has more in its name",
    ),
    (
        "PNEUMONIA",
        lambda c: f"person{c.randrange(2000)}_{c.choice(['virus', 'bacteria'])}_{c.randrange(999)}",
        "has more",
    ),
    ("warm", lambda c: f"shot_0.{c.randrange(10**6):06d}", "has more in its name than an identity"),
    ("cold", lambda c: f"shot_{c.randrange(-(10**6), 10**6)}", "has more in its name than an identity"),
    ("blue", lambda c: text(c, HEX, 6), "has more in its name than an identity"),
]


@pytest.mark.parametrize(("name", "draw", "words"), PARSED, ids=[row[0] for row in PARSED])
def test_the_grammar_of_names_parses(
    tmp_path: Path, name: str, draw: Callable[[random.Random], str], words: str
) -> None:
    root = tmp_path / "source"
    for split in ("train", "test"):
        for place in (name, "other"):
            chance = random.Random(f"{split} {place}")
            make(root, *(f"{split}/{place}/{draw(chance)}.jpg" for _ in range(40)))
    line = catalog(root).verdict.line
    assert line.startswith("not redirecting" if words else "redirecting within 4 class directories"), line
    assert words in line


def test_a_fold_in_the_first_digit_is_a_doubt(tmp_path: Path) -> None:
    """Else the numbers are random: no other rule sees it."""
    chance = random.Random(0)
    numbers = chance.sample([fold * 10_000 + at for fold in range(1, 6) for at in range(10_000)], 360)
    for split in ("train", "test"):
        for name in ("cat", "dog", "eel"):
            make(tmp_path, *(f"{split}/{name}/{numbers.pop()}.jpg" for _ in range(60)))
    line = catalog(tmp_path).verdict.line
    assert "have numbers whose first digit has few values, as a part of the data has" in line
    # Folds 1 to 9 are all first digits that there are.
    for path in tmp_path.rglob("*.jpg"):
        path.rename(path.with_name(f"{chance.randrange(10_000, 100_000)}.jpg"))
    assert catalog(tmp_path).verdict.mode == "dir"


def test_images_under_two_labels_are_a_doubt_if_any_two_classes_share_few(tmp_path: Path) -> None:
    """Each pair of classes shares less than chance might explain, and all together share much more."""
    names = string.ascii_lowercase[:20]
    chance = random.Random(0)
    for shares, mode in ((False, "dir"), (True, "none")):
        root = tmp_path / mode
        for split in ("train", "test"):
            for name in names:
                make(root, *(f"{split}/{name * 3}/{chance.randrange(10**9)}.jpg" for _ in range(60)))
            for one, other in combinations(names, 2) if shares else ():
                number = chance.randrange(10**9)
                make(root, *(f"{split}/{name * 3}/{number}.jpg" for name in (one, other)))
        assert catalog(root).verdict.mode == mode
    assert "two directories share numbers" in catalog(root).verdict.line


def test_numbers_of_18_digits_may_be_shared_by_chance(tmp_path: Path) -> None:
    """They reach so far that a share of the range rounds up to all of it; the largest is in the last class."""
    chance = random.Random(0)
    for split in ("train", "test"):
        first, last = 10**17, 10**17 + 2**59 - 1
        others = chance.sample(range(first + 1, last), 80)
        for name, more in (("cat", others[::2]), ("dog", [*others[1::2], last])):
            make(tmp_path, *(f"{split}/{name}/{number}.jpg" for number in (first, *more)))
    assert catalog(tmp_path).verdict.mode == "dir"
