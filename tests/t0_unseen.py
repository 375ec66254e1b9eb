"""Callers that cannot be seen: what jobs get that open each file once, twice or three times an epoch."""

from collections.abc import Iterator
from itertools import islice
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redoxfs.protocol import Binding, PoolPolicy, Replay
from redoxfs.protocol.binding import UNKNOWN_THREAD
from redoxfs.protocol.unseen import TURNS


def pool(samples: int) -> PoolPolicy:
    cells = np.full((-(-samples // 4), 4), -1, np.int32)
    cells.reshape(-1)[:samples] = np.arange(samples)
    sizes = np.ones(samples, np.int64)
    return PoolPolicy(cells, np.zeros(samples, np.int32), sizes, capacity_bytes=samples // 2, seed=0)


def binding(samples: int, files: int = 1) -> Binding:
    return Binding(pool(samples), np.full(samples, files))


def read(bound: Binding, path: int, opens: int, file: int = 0) -> Iterator[int]:
    """The samples of the opens of one file by one worker, which others may interrupt."""
    for _ in range(opens):
        sample = bound.open(path, file, UNKNOWN_THREAD).sample
        yield sample
        bound.close(path)
        yield sample


def epoch(bound: Binding, paths: list[int], workers: int, opens: int, random: Random) -> list[list[int]]:
    """The samples that each path's opens got. Workers take steps in any order, but none falls far behind."""
    left = iter(random.sample(paths, len(paths)))
    got: list[list[int]] = []
    at_work: list[tuple[Iterator[int], list[int]]] = []
    while True:
        at_work += [(read(bound, path, opens), []) for path in islice(left, workers - len(at_work))]
        if not at_work:
            return got
        reader, samples = random.choice(at_work)
        sample = next(reader, None)
        if sample is None:
            at_work = [each for each in at_work if each[1] is not samples]
            got.append(samples)
        else:
            samples.append(sample)


JOBS = {"samples": st.integers(2, 90), "workers": st.integers(1, 6), "opens": st.integers(1, 3)}


@given(**JOBS, random=st.randoms(use_true_random=False))
def test_each_epoch_has_each_sample_once_and_all_opens_of_a_file_agree(
    samples: int, workers: int, opens: int, random: Random
) -> None:
    # How many opens a file has shows in an epoch of which few files are under way at its end.
    samples += 4 * workers
    bound = binding(samples)
    for _ in range(4):
        got = epoch(bound, list(range(samples)), workers, opens, random)
        assert all(len(set(each)) == 1 for each in got), "all opens of a file agree"
        assert sorted(each[0] for each in got) == list(range(samples))


@pytest.mark.parametrize(("samples", "opens"), [(40, 1), (500, 1), (500, 2), (500, 3)])
def test_all_opens_of_a_file_agree_where_epochs_are_broken_off(samples: int, opens: int) -> None:
    """Then it cannot be told where one begins: some of its samples have their turn later, but none is mixed."""
    bound, random = binding(samples), Random(1)
    turns: list[int] = []
    for _ in range(6):
        before = len(turns)
        got = epoch(bound, random.sample(range(samples), samples * 9 // 10), 4, opens, random)
        assert all(len(set(each)) == 1 for each in got)
        turns += [each[0] for each in got]
        late = samples * 9 // 10 - len(set(turns[before:]))
        assert late <= TURNS * TURNS // samples + samples // 5
    assert set(turns) == set(range(samples))


def test_a_path_is_held_until_others_had_so_many_turns() -> None:
    bound = binding(3 * TURNS)

    def look(path: int) -> bool:
        taken = bound.open(path, 0, UNKNOWN_THREAD).turn is not None
        bound.close(path)
        return not taken

    assert not look(0)
    for path in range(1, TURNS):
        assert not look(path)
    assert look(0)
    for path in range(TURNS, 2 * TURNS - 1):
        assert not look(path)
    assert look(0), "the look has begun the count anew"
    for path in range(2 * TURNS - 1, 3 * TURNS - 1):
        assert not look(path)
    assert not look(0)


def test_a_thread_that_is_seen_holds_by_itself() -> None:
    bound = binding(20)
    sample = bound.open(3, 0, 77).sample
    bound.close(3)
    assert bound.open(3, 0, UNKNOWN_THREAD).sample != sample, "nobody else's turn"
    bound.close(3)
    assert bound.open(3, 0, 77).turn is not None
    bound.close(3)
    assert bound.open(3, 0, UNKNOWN_THREAD).turn is not None, "a thread's turn ends the hold"


def test_a_stat_tells_what_is_held() -> None:
    bound = binding(20)
    sample = bound.open(3, 0, UNKNOWN_THREAD).sample
    bound.close(3)
    assert bound.stat(3, 0, UNKNOWN_THREAD).sample == sample
    assert bound.stat(4, 0, UNKNOWN_THREAD).sample is None


def test_an_open_that_failed_is_not_held() -> None:
    bound = binding(20)
    bound.open(3, 0, UNKNOWN_THREAD)
    bound.fail(3, UNKNOWN_THREAD)
    assert bound.open(3, 0, UNKNOWN_THREAD).turn is not None


def test_trees_have_passes_of_their_own() -> None:
    """A job reads its training files each epoch, and the others never."""
    policy = pool(60)
    bound = Binding(policy, np.ones(60, int), tree_of=lambda: np.repeat([0, 1], [40, 20]))
    for _ in range(3):
        got = epoch(bound, list(range(40)), 3, 1, Random(2))
        assert len(got) == 40
    assert sum(policy.turns().laps) >= 1
    assert policy.turns().given == 120, "each open had a turn"


def test_another_binding_continues_with_what_was_held() -> None:
    samples, random = 30, Random(3)
    policy_before = pool(samples)
    before = Binding(policy_before, np.ones(samples, int))
    for _ in range(2):
        epoch(before, list(range(samples)), 3, 2, random)
    first = [before.open(path, 0, UNKNOWN_THREAD).sample for path in (4, 9)]
    before.close(4)
    policy = pool(samples)
    after = Binding(policy, np.ones(samples, int))
    after.resume(before.tables())
    after.close(9)
    Replay(after, policy_before.turns(), policy).finish()
    opened = [after.open(path, 0, UNKNOWN_THREAD) for path in (4, 9)]
    assert [each.sample for each in opened] == first
    assert all(each.turn is None for each in opened)
    again = before.tables()
    assert np.array_equal(again.unseen_turns, after.tables().unseen_turns)
    assert np.array_equal(again.unseen_trees[:, :3], after.tables().unseen_trees[:, :3])


def test_tables_of_other_paths_are_refused() -> None:
    before = binding(30)
    before.open(3, 0, UNKNOWN_THREAD)
    before.close(3)
    with pytest.raises(ValueError, match="other paths"):
        binding(40).resume(before.tables())
