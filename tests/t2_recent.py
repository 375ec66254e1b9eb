"""The last turns of a node, and states without some of them."""

import base64
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redoxfs.cli.kept_arguments import MOST_LESS
from redoxfs.launch.control import ANSWER_LIMIT_BYTES
from redoxfs.node.recent import MARKED, MARKS, TURNS, Batch, ForgottenError, RecentTurns
from redoxfs.protocol.turns import Turns, taken_back


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Process 10 has the threads 10 and 11; process 20 has one."""
    for thread, process in ((10, 10), (11, 10), (20, 20)):
        (tmp_path / str(thread)).mkdir()
        (tmp_path / str(thread) / "status").write_text(f"Name:\tpython\nTgid:\t{process}\nPid:\t{thread}\n")
    return tmp_path


@pytest.fixture
def memory() -> Iterator[int]:
    fd = os.memfd_create("turns")
    yield fd
    os.close(fd)


def test_the_last_turns_are_kept_in_their_order() -> None:
    recent = RecentTurns()
    for sample in range(10):
        recent.note(sample, 1 + sample // 8, thread=0)
    assert recent.last(3).tolist() == [[7, 1], [8, 2], [9, 2]]
    assert len(recent.last(100)) == 10
    recent.forget()
    assert recent.last(5).tolist() == []


def test_a_turn_that_a_former_daemon_did_not_get_to_is_added_once(memory: int) -> None:
    former = RecentTurns(memory)
    former.forget(given=100)
    for sample in range(3):
        former.note(sample, 1, thread=0)
    recent = RecentTurns(memory)
    recent.complete(2, 1, 0, given=103)
    assert len(recent.last(9)) == 3
    for _ in range(2):
        recent.complete(7, 2, 0, given=104)
        assert recent.last(9).tolist() == [[0, 1], [1, 1], [2, 1], [7, 2]]


def test_no_more_turns_are_promised_than_are_kept() -> None:
    recent = RecentTurns()
    for sample in range(TURNS + 5):
        recent.note(sample, 1, thread=0)
    assert recent.last(TURNS)[:, 0].tolist() == list(range(5, TURNS + 5))
    with pytest.raises(ForgottenError, match="65,536 opens are kept, not 65,537"):
        recent.last(TURNS + 1)
    assert MOST_LESS == TURNS


def test_turns_belong_to_the_batch_that_their_process_began(proc: Path) -> None:
    recent = RecentTurns(proc=proc)
    recent.note(0, 1, thread=10)
    recent.mark(10, Batch(5, 1, 0))
    recent.note(1, 1, thread=10)
    recent.mark(20, Batch(5, 1, 1))
    recent.note(2, 1, thread=11)  # of the pool of process 10
    recent.note(3, 1, thread=20)
    recent.note(4, 1, thread=99)  # of no loader
    recent.mark(10, Batch(5, 1, 2))
    recent.note(5, 2, thread=10)
    assert recent.since(Batch(5, 1, 0)).tolist() == [[1, 1], [2, 1], [3, 1], [5, 2]]
    assert recent.since(Batch(5, 1, 1)).tolist() == [[3, 1], [5, 2]]
    assert recent.since(Batch(5, 1, 3)).tolist() == []
    assert recent.since(Batch(5, 2, 0)).tolist() == []
    assert recent.since(Batch(6, 1, 0)).tolist() == []


def test_a_number_of_a_thread_that_is_used_again_belongs_to_its_new_process(proc: Path) -> None:
    recent = RecentTurns(proc=proc)
    recent.mark(10, Batch(5, 1, 0))
    recent.note(0, 1, thread=11)
    for thread in (11, 30):
        (proc / str(thread)).mkdir(exist_ok=True)
        (proc / str(thread) / "status").write_text("Name:\tpython\nTgid:\t30\n")
    recent.mark(30, Batch(5, 1, 1))
    recent.note(1, 1, thread=11)
    assert recent.since(Batch(5, 1, 1)).tolist() == [[1, 1]]


def test_a_batch_that_no_worker_marked_is_an_error(proc: Path) -> None:
    recent = RecentTurns(proc=proc)
    with pytest.raises(ForgottenError, match=r"batch 3 of the loader is not known here: .* a state was loaded"):
        recent.since(Batch(5, 1, 4))


def test_a_mark_that_was_overwritten_is_an_error(proc: Path) -> None:
    recent = RecentTurns(proc=proc)
    for number in range(2):
        recent.mark(10, Batch(5, 1, number))
    for number in range(MARKS):
        recent.mark(20, Batch(6, 1, number))
    with pytest.raises(ForgottenError, match=r"batch 0 of the loader .* 16,384 batches of other loaders have begun"):
        recent.since(Batch(5, 1, 1))


def test_turns_that_were_overwritten_are_an_error(proc: Path) -> None:
    recent = RecentTurns(proc=proc)
    recent.mark(10, Batch(5, 1, 0))
    recent.mark(10, Batch(5, 1, 1))
    for sample in range(TURNS):
        recent.note(sample, 1, thread=10)
    assert len(recent.since(Batch(5, 1, 1))) == TURNS
    for sample in range(MARKED):
        recent.note(sample, 2, thread=10)
    rows = recent.since(Batch(5, 1, 1))
    assert rows.tolist() == [[n, 1] for n in range(TURNS)] + [[n, 2] for n in range(MARKED)]
    assert len(base64.b64encode(rows.tobytes())) + 100 < ANSWER_LIMIT_BYTES
    recent.note(0, 3, thread=10)
    with pytest.raises(ForgottenError, match="tracked loaders have opened 262,144 files, or"):
        recent.since(Batch(5, 1, 1))
    recent.mark(10, Batch(5, 1, 2))
    recent.note(7, 3, thread=10)
    assert recent.since(Batch(5, 1, 2)).tolist() == [[7, 3]]


def test_turns_of_no_loader_push_none_of_a_loader_out(proc: Path, memory: int) -> None:
    """As those of a validation in the middle of an epoch."""
    recent = RecentTurns(memory, proc)
    recent.mark(10, Batch(5, 1, 0))
    recent.note(1, 1, thread=10)
    recent.mark(10, Batch(5, 1, 1))
    recent.note(2, 1, thread=10)
    for sample in range(TURNS + 5):
        recent.note(sample, 9, thread=99)
    recent.note(3, 2, thread=10)
    assert recent.since(Batch(5, 1, 0)).tolist() == [[1, 1], [2, 1], [3, 2]]
    assert recent.since(Batch(5, 1, 1)).tolist() == [[2, 1], [3, 2]]
    # Another daemon has the last turns alone.
    again = RecentTurns(memory, proc)
    with pytest.raises(ForgottenError, match="or the mount has had 65,536 opens and another daemon"):
        again.since(Batch(5, 1, 1))
    again.mark(10, Batch(5, 1, 2))
    again.note(4, 2, thread=10)
    assert again.since(Batch(5, 1, 2)).tolist() == [[4, 2]]
    recent.forget()
    recent.mark(10, Batch(5, 2, 0))
    assert recent.since(Batch(5, 2, 0)).tolist() == []


def test_marks_outlast_many_processes(proc: Path) -> None:
    recent = RecentTurns(proc=proc)
    for process in range(1000, 1000 + 2 * MARKS + 5):
        recent.mark(process, Batch(5, 1, process))
    recent.mark(10, Batch(6, 1, 0))
    recent.note(1, 1, thread=11)
    assert recent.since(Batch(6, 1, 0)).tolist() == [[1, 1]]


def test_another_process_goes_on_with_the_turns(proc: Path, memory: int) -> None:
    recent = RecentTurns(memory, proc)
    recent.mark(10, Batch(5, 1, 0))
    recent.note(1, 1, thread=10)
    again = RecentTurns(memory, proc)
    again.note(2, 1, thread=11)
    assert again.since(Batch(5, 1, 0)).tolist() == [[1, 1], [2, 1]]
    assert again.last(9).tolist() == [[1, 1], [2, 1]]


UNITS = np.array([0, 0, 0, 1, 1])


def turns(laps: list[int], had: list[int]) -> Turns:
    return Turns(np.array(laps, np.int32), np.packbits(np.array(had, np.uint8)), 50)


def back(before: Turns, rows: list[tuple[int, int]]) -> tuple[list[int], list[int], int, int]:
    array = np.array(rows, np.int64).reshape(-1, 2)
    after, again = taken_back(before, UNITS, array[:, 0], array[:, 1])
    return after.laps.tolist(), after.flags(2, 5).astype(int).tolist(), after.given, again


def test_turns_of_the_present_lap_are_taken_back() -> None:
    assert back(turns([2, 1], [1, 0, 1, 1, 0]), [(2, 2), (3, 1)]) == ([2, 1], [1, 0, 0, 0, 0], 48, 0)


def test_turns_taken_after_the_save_change_nothing() -> None:
    before = turns([1, 1], [1, 0, 1, 1, 0])
    assert back(before, [(1, 1), (0, 2)]) == ([1, 1], [1, 0, 1, 1, 0], 50, 0)


def test_a_turn_of_the_lap_before_brings_the_class_back_to_it() -> None:
    # Sample 2 had its turn in lap 1, and samples 0 and 1 in lap 2.
    assert back(turns([2, 1], [1, 1, 0, 0, 0]), [(2, 1)]) == ([1, 1], [1, 1, 0, 0, 0], 47, 2)
    # Sample 1 of lap 2 is taken back as well, so only sample 0 comes again beyond that.
    assert back(turns([2, 1], [1, 1, 0, 0, 0]), [(2, 1), (1, 2)]) == ([1, 1], [1, 1, 0, 0, 0], 47, 1)
    # A class of two, whose lap 2 was whole.
    assert back(turns([1, 3], [0, 0, 0, 1, 0]), [(4, 1)]) == ([1, 1], [0, 0, 0, 1, 0], 46, 3)


def test_turns_of_other_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="not of 5 samples"):
        back(turns([1, 1], [0] * 5), [(5, 1)])


@given(st.lists(st.sampled_from([0, 1]), max_size=40), st.integers(0, 40), st.randoms(use_true_random=False))
def test_what_is_taken_back_comes_again_and_nothing_is_lost(asked: list[int], less: int, random: object) -> None:
    """Laps of two classes, served at random; then the last turns are taken back."""
    given: list[tuple[int, int]] = []
    laps, left = [1, 1], [[0, 1, 2], [3, 4]]
    members = [[0, 1, 2], [3, 4]]
    for unit in asked:
        if not left[unit]:
            laps[unit], left[unit] = laps[unit] + 1, list(members[unit])
        sample = left[unit].pop(getattr(random, "randrange")(len(left[unit])))  # noqa: B009
        given.append((sample, laps[unit]))
    had = [int(sample not in left[0] + left[1]) for sample in range(5)]
    before = Turns(np.array(laps, np.int32), np.packbits(np.array(had, np.uint8)), len(given))
    rows = given[len(given) - min(less, len(given)) :]
    array = np.array(rows, np.int64).reshape(-1, 2)
    after, again = taken_back(before, UNITS, array[:, 0], array[:, 1])
    flags = after.flags(2, 5)
    kept = given[: len(given) - len(rows)]
    # The last turns are in order, so no lap begins among those that stay.
    assert again == 0
    assert after.given == len(kept)
    for sample in range(5):
        turns_now = int(after.laps[UNITS[sample]]) - 1 + int(flags[sample])
        assert turns_now == sum(each == sample for each, _ in kept)
