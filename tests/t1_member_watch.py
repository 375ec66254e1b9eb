"""A job with `--groups` that opens some files of its samples once: it is told of that, and no other is."""

from collections.abc import Sequence

import pytest

from redoxfs.telemetry.member_watch import MemberWatch

SAMPLES = 1000


def first_told(epochs: Sequence[tuple[int, int]], samples: int = SAMPLES) -> tuple[int, tuple[int, int]] | None:
    """In which epoch, from 1, the watch tells of files; ``epochs`` has how often each was opened in each."""
    watch, opens = MemberWatch(samples, 2), [0, 0]
    for number, epoch in enumerate(epochs, 1):
        for step in range(1, 11):
            now = [before + more * step // 10 for before, more in zip(opens, epoch, strict=True)]
            if (found := watch.look(now)) is not None:
                return number, found
        opens = now
    return None


BOTH, IMAGES, LABELS = (SAMPLES, SAMPLES), (SAMPLES, 0), (0, SAMPLES)


@pytest.mark.parametrize(
    ("epochs", "told"),
    [
        ([BOTH, IMAGES, IMAGES, IMAGES], 3),  # Ultralytics
        ([LABELS, IMAGES, IMAGES, IMAGES], 3),  # captions
        ([LABELS] + [(900, 0)] * 5, 4),  # drop_last
        ([(900, 900)] + [(900, 0)] * 5, 4),  # a split of the tree
    ],
)
def test_files_that_are_opened_once_are_told(epochs: list[tuple[int, int]], told: int) -> None:
    assert first_told(epochs) == (told, (0, 1))


@pytest.mark.parametrize(
    "epochs",
    [
        [BOTH] * 5,
        [IMAGES] * 5,
        [(1000, 200)] * 8,  # labels of validation alone
        [BOTH, BOTH, IMAGES, IMAGES, IMAGES],  # what is learned is tried without labels
        [(20, 20), *[IMAGES] * 5],  # a look at some files
        [(450, 450)] * 8,
    ],
)
def test_nothing_is_told_of_other_jobs(epochs: list[tuple[int, int]]) -> None:
    assert first_told(epochs) is None
