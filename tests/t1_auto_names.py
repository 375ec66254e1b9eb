"""`--classes auto` with names of files that may be doubts. `t1_auto_verdicts` has the trees of docs/classes.md."""

from __future__ import annotations

import random
import string
import tracemalloc
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from auto_trees import DIR, make
from t1_auto_verdicts import catalog, check_refused

from redoxfs.dataset import randomness
from redoxfs.dataset.randomness import Identities, shared


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

# The names of docs/classes.md: a class, how a name of it is drawn, and words of the line that refuses it.
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
    ("pine", lambda c: f"{c.randrange(100, 1000)}x{c.randrange(100, 1000)}", "has letters and digits at fixed places"),
    ("rose", lambda c: f"{c.randrange(10**8, 5 * 10**10)}_{text(c, HEX, 10)}_{c.choice(['3k', '4k', '5k'])}", ""),
    ("rice", lambda c: f"1{text(c, WORD + '-_', 32)}", ""),
    # They look like names of Flickr: two numbers, a size that it has not, a date, and several files of one number.
    ("call", lambda c: f"{c.randrange(10**9, 10**10)}_{c.randrange(10**9, 10**10)}", "has more in its name than an"),
    ("men", lambda c: f"{c.randrange(10**6)}_{text(c, HEX, 10)}_{c.choice('xy')}", "has more in its name than an"),
    ("flood", lambda c: f"2021{c.randrange(1, 13):02d}{c.randrange(1, 29):02d}_{text(c, HEX, 10)}", "has more in its"),
    ("knee", lambda c: f"{c.randrange(100_000, 100_030)}_{text(c, HEX, 10)}", "has more in its name than an identity"),
    # A word says what the number is.
    ("open", lambda c: f"frame_{c.randrange(10**6)}", "has a number that may be a value or an order (frame)"),
    ("ice", lambda c: f"T{c.randrange(10**6)}mK", "has a number that may be a value or an order (mK)"),
    ("goat", lambda c: f"{c.randrange(10**5)}g", "has a number that may be a value or an order (g)"),
    ("funny", lambda c: f"score_0_{c.randrange(10**4)}", "has a number that may be a value or an order (score)"),
    ("bend", lambda c: f"camSteer{c.randrange(10**6)}", "has a number that may be a value or an order (Steer)"),
    ("ripe", lambda c: f"0,{c.randrange(10**6):06d}", "has more in its name than an identity"),
    ("sour", lambda c: f"phi0p{c.randrange(10**6):06d}", "has more in its name than an identity"),
    # Two numbers with a letter between them, which is hexadecimal.
    ("bolt", lambda c: f"{c.randrange(10**5):05d}e{c.randrange(10**5):05d}", "has letters and digits at fixed places"),
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


def make_drawn(root: Path, numbers: list[int]) -> str:
    """The verdict of two classes whose files have these numbers, in any order."""
    chance = random.Random(0)
    for number in numbers:
        make(root, f"{chance.choice(['train', 'test'])}/{chance.choice(['cat', 'dog'])}/{number}.jpg")
    return catalog(root).verdict.line


DAYS = [(datetime(2012, 1, 1) + timedelta(days=day)) for day in range(4000)]


@pytest.mark.parametrize(
    "draw",
    [
        lambda c: 637_000_000_000_000_000 + c.randrange(10**16),
        lambda c: 131_000_000_000_000_000 + c.randrange(10**16),
        lambda c: (1_500_000_000 + c.randrange(10**8)) * 10 + c.randrange(10),
        lambda c: c.randrange(2009, 2022) * 100_000 + c.randrange(100_000),
        lambda c: int(c.choice(DAYS).strftime("%y%m%d") + f"{c.randrange(10_000):04d}"),
        lambda c: int(c.choice(DAYS).strftime("%d%m%Y") + f"{c.randrange(10_000):04d}"),
        lambda c: int(c.choice(DAYS).strftime("%m%d%Y") + f"{c.randrange(10_000):04d}"),
        lambda c: int(c.choice(DAYS).strftime("%Y%m%d") + f"{c.randrange(10_000):04d}"),
        lambda c: int(c.choice(DAYS).strftime("%Y%j") + f"{c.randrange(10_000):04d}"),
    ],
    ids=["ticks", "filetime", "tenths", "year", "yymmdd", "ddmmyyyy", "mmddyyyy", "yyyymmdd", "day of year"],
)
def test_times_in_other_units_and_days_with_a_number_are_a_doubt(
    tmp_path: Path, draw: Callable[[random.Random], int]
) -> None:
    chance = random.Random(1)
    assert "have numbers that are all dates or times" in make_drawn(tmp_path, [draw(chance) for _ in range(60)])


def test_a_clock_that_ticks_evenly_is_a_doubt(tmp_path: Path) -> None:
    """Of random numbers some are close. The clock is that of a camera, with some jitter."""
    chance = random.Random(0)
    times = [812_345_678 + 33_366_700 * at + chance.randrange(4_000_000) for at in range(200)]
    assert "have numbers at even distances" in make_drawn(tmp_path, times)
    for path in tmp_path.rglob("*.jpg"):
        path.rename(path.with_name(f"{812_345_678 + chance.randrange(200 * 33_366_700)}.jpg"))
    assert catalog(tmp_path).verdict.line.startswith("redirecting")


def test_every_third_frame_is_a_doubt(tmp_path: Path) -> None:
    """The classes are too many for one of them to show the step as its commonest difference."""
    chance = random.Random(0)
    places = [f"{split}/word{cls}" for split in ("train", "test") for cls in "abcdefghijklmno"]
    make(tmp_path, *(f"{chance.choice(places)}/{3 * at}.jpg" for at in range(600)))
    line = catalog(tmp_path).verdict.line
    assert line.startswith("not redirecting"), line
    assert "have numbers at even distances" in line


def offset(chance: random.Random, by: int, lost: float) -> tuple[list[int], list[int]]:
    numbers = chance.sample(range(50_000), 300)
    ones, others = ([number for number in numbers if chance.random() >= lost] for _ in range(2))
    return ones, [number + by for number in others]


@pytest.mark.parametrize("lost", [0, 0.1, 0.25])
def test_parts_whose_numbers_have_a_distance_are_a_doubt_though_some_are_lost(tmp_path: Path, lost: float) -> None:
    chance = random.Random(0)
    for split in ("train", "test"):
        one, other = offset(chance, 50_000, lost)
        make(tmp_path, *(f"{split}/photo/{number}.jpg" for number in one))
        make(tmp_path, *(f"{split}/sketch/{number}.jpg" for number in other))
    assert "may be parts of one sample" in catalog(tmp_path).verdict.line


def test_parts_in_one_class_are_a_doubt(tmp_path: Path) -> None:
    """Before and after, or left and right."""
    chance = random.Random(0)
    for split in ("train", "test"):
        for name in ("crack", "dent"):
            one, other = offset(chance, 25_000, 0.1)
            make(tmp_path, *(f"{split}/{name}/{number}.jpg" for number in {*one, *other}))
    assert "may be parts of one sample (many numbers have another one" in catalog(tmp_path).verdict.line


@pytest.mark.parametrize("draw", [str, lambda each: each.hex.upper()])
def test_a_uuid_written_in_two_ways_is_one(tmp_path: Path, draw: Callable[[uuid.UUID], str]) -> None:
    chance = random.Random(0)
    for split in ("train", "test"):
        for _ in range(40):
            each = uuid.UUID(int=chance.getrandbits(128), version=4)
            make(tmp_path, f"{split}/photo/{each.hex}.jpg", f"{split}/sketch/{draw(each)}.jpg")
    assert "may be parts of one sample (two directories share numbers" in catalog(tmp_path).verdict.line


@pytest.mark.parametrize("digits", [6, 8, 9, 12])
def test_the_time_of_a_day_is_a_doubt_also_with_parts_of_a_second(tmp_path: Path, digits: int) -> None:
    """The parts are random, and no other rule looks at the digits before them."""
    chance = random.Random(0)
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            drawn = (datetime(2020, 1, 1) + timedelta(days=chance.random()) for _ in range(60))
            make(tmp_path, *(f"{split}/{name}/{time.strftime('%H%M%S%f')[:digits]}.jpg" for time in drawn))
    assert "have numbers that are all dates or times" in catalog(tmp_path).verdict.line


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
