"""What a scan shows while it runs, and how long it waits for storage that answers nothing."""

import pytest

from redoxfs.launch.errors import SourceUnusableError
from redoxfs.launch.scanning import CALLED_S, EVERY_S, FIRST_S, Shown, answering, lines


class Clock:
    def __init__(self) -> None:
        self.now_s = 1e6

    def __call__(self) -> float:
        return self.now_s


def test_a_line_comes_after_ten_seconds_and_every_half_minute() -> None:
    clock, said = Clock(), list[str]()
    found = lines(said.append, clock)
    for step in range(1, 10 * int(FIRST_S + EVERY_S) + 10):
        clock.now_s += 0.1
        found(step, 1)
    assert [line.split(" entries")[1] for line in said] == [" in 1 directory, 10/s"] * 2
    assert [int(line.split()[1]) for line in said] == pytest.approx([10 * FIRST_S, 10 * (FIRST_S + EVERY_S)], abs=2)


def seconds_until_the_end(found: Shown, clock: Clock, entries: int, directories: int) -> float:
    begin_s = clock.now_s

    def wait() -> None:
        while clock.now_s < begin_s + 1000:
            clock.now_s += 0.1
            found(entries, directories)

    with pytest.raises(SourceUnusableError, match=r"^/data: the storage has not answered for 60 s during the scan \("):
        wait()
    return clock.now_s - begin_s


@pytest.mark.parametrize("first", [(0, 0), (7, 3)])
def test_storage_has_its_time_after_each_answer(first: tuple[int, int]) -> None:
    clock, shown = Clock(), list[tuple[int, int]]()
    found = answering(lambda *numbers: shown.append(numbers), "/data", 60, clock)
    for step in range(10):
        # 58 s without an answer.
        for _ in range(580):
            clock.now_s += 0.1
            found(first[0] + step, first[1])
    assert shown[-1] == (first[0] + 9, first[1])
    assert seconds_until_the_end(found, clock, *shown[-1]) == pytest.approx(60 - 58, abs=0.5)


def test_storage_is_not_blamed_for_the_time_that_redoxfs_takes() -> None:
    clock = Clock()
    found = answering(lambda *_: None, "/data", 60, clock)
    found(5, 1)
    for _ in range(50):
        # It appends entries to the tree, or it is stopped.
        clock.now_s += 600
        found(5, 1)
    assert seconds_until_the_end(found, clock, 5, 1) == pytest.approx(60 - 50 * CALLED_S, abs=0.5)
