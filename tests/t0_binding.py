"""The ways in which programs open, stat and close files, each as one scenario."""

from collections import Counter

import numpy as np
import pytest

from redoxfs.protocol import Binding, Served, SlotPolicy

IMAGE, CAPTION = 0, 1


def job(columns: int = 4, length: int = 16, files: int = 1, vc_size: int | None = None) -> Binding:
    """A dataset of ``columns`` classes with ``length`` samples each; sample s is of class s % columns."""
    cells = np.arange(columns * length, dtype=np.int32).reshape(length, columns)
    starts = np.arange(0, length + 1, vc_size or length, dtype=np.int32)
    policy = SlotPolicy(cells, starts, samples=cells.size, seed=1)
    return Binding(policy, np.full(cells.size, files))


def read(binding: Binding, path: int, thread: int, file: int = IMAGE) -> int:
    sample = binding.open(path, file, thread).sample
    binding.close(path)
    return sample


def shuffled(seed: int, count: int = 64) -> list[int]:
    return [int(s) for s in np.random.default_rng(seed).permutation(count)]


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_that_die_after_each_epoch(persistent: bool) -> None:
    binding = job()
    for epoch in range(5):
        threads = [100 + w if persistent else 100 + 4 * epoch + w for w in range(4)]
        order = shuffled(epoch)
        served = [read(binding, path, threads[i % 4]) for i, path in enumerate(order)]
        assert sorted(served) == list(range(64))
        assert all(s % 4 == p % 4 for s, p in zip(served, order, strict=True))
        for thread in threads if not persistent else ():
            binding.thread(thread)


def test_a_reused_thread_number_is_a_new_thread() -> None:
    binding = job()
    first = read(binding, 0, 100)
    assert binding.thread(100).released == (0,)
    again = binding.open(0, IMAGE, 100)
    assert again.turn is not None
    assert again.sample != first


def test_holds_may_end_before_their_thread_does() -> None:
    binding = job()
    first = read(binding, 0, 100)
    assert binding.end_holds(100, lambda path: path > 0) == ()
    assert read(binding, 0, 100) == first
    held = binding.open(1, IMAGE, 100)
    assert held.turn is not None
    assert binding.end_holds(100, lambda _: True) == ()
    assert binding.answer(1) == held.sample, "it is open"
    assert list(binding.holders) == []
    assert binding.close(1).released == (1,)


def test_one_unreadable_member_over_three_laps() -> None:
    binding, unreadable = job(columns=1, length=8), 5
    for lap in range(3):
        turns: Counter[int] = Counter()
        for path in shuffled(lap, 8):
            opened = binding.open(path, IMAGE, thread := 100 * (lap + 1) + path)
            turns[opened.sample] += 1
            if opened.sample == unreadable:
                assert binding.fail(path, thread).last
            else:
                binding.close(path)
        assert turns == dict.fromkeys(range(8), 1), f"lap {lap}: one turn each, the unreadable sample's included"


def test_retrying_a_failed_open_is_a_new_turn() -> None:
    binding = job(columns=1, length=8)
    failed = binding.open(3, IMAGE, 100).sample
    binding.fail(3, 100)
    assert read(binding, 3, 100) != failed


def test_stat_of_all_then_open_of_all() -> None:
    binding = job()
    for epoch in range(3):
        order = shuffled(epoch)
        worker = 100 + epoch
        reported = {path: binding.stat(path, IMAGE, worker).sample for path in order}
        served = {path: read(binding, path, worker) for path in reversed(order)}
        assert served == reported
        assert sorted(served.values()) == list(range(64))


def test_two_files_of_a_class_stated_and_opened_crosswise() -> None:
    binding = job(columns=1, length=2)
    for _ in range(3):
        reported = {0: binding.stat(0, IMAGE, 100).sample, 1: binding.stat(1, IMAGE, 200).sample}
        assert set(reported.values()) == {0, 1}
        assert {1: read(binding, 1, 100), 0: read(binding, 0, 200)} == reported


def test_a_walker_reserves_a_bounded_number_and_loads_nothing() -> None:
    binding = job(columns=8, length=64)
    reported = [binding.stat(path, IMAGE, 100) for path in range(512)]
    assert sum(t.sample is not None for t in reported) == 64
    assert binding.counts() == {"bound": 0, "holds": 0, "reservations": 64}


def test_a_walkers_reservations_cost_nobody_a_sample() -> None:
    binding = job()
    for path in range(64):
        binding.stat(path, IMAGE, 999)
    for epoch in range(2):
        assert sorted(read(binding, path, 100 + path % 4) for path in shuffled(epoch)) == list(range(64))


def test_fairness_outranks_a_reservation() -> None:
    binding = job(columns=1, length=2)
    reserved = binding.stat(0, IMAGE, 100).sample
    first = read(binding, 1, 200)
    assert first != reserved
    taken = binding.open(1, IMAGE, 300)
    assert isinstance(taken.turn, Served)
    assert taken.sample == reserved
    assert taken.turn.preempted
    binding.close(1)
    # The path whose reservation was revoked is served in the next lap, not refused.
    assert read(binding, 0, 100) in (0, 1)


def list_all(binding: Binding, paths: int, threads: range) -> None:
    """Stat every file and open none, as a program that lists sizes does."""
    for path in range(paths):
        binding.stat(path, IMAGE, threads[path % len(threads)])


@pytest.mark.parametrize("threads", [range(900, 901), range(900, 908)], ids=["one thread", "many threads"])
@pytest.mark.parametrize("vc_size", [16, 4])
def test_a_stat_matches_its_open_while_others_list(threads: range, vc_size: int) -> None:
    binding = job(vc_size=vc_size)
    for epoch in range(3):
        served = []
        for at, path in enumerate(shuffled(epoch)):
            if at in (8, 32, 33, 60):
                list_all(binding, 64, range(threads.start + 10 * at, threads.stop + 10 * at))
            reported = binding.stat(path, IMAGE, 100 + epoch).sample
            served.append(read(binding, path, 100 + epoch))
            assert reported == served[-1]
        assert sorted(served) == list(range(64))


def test_the_size_of_a_held_file_is_not_that_of_a_turn_after_another_file() -> None:
    """Open A, stat A, open B, open A: an exception of promise 6. The size of an open file is right."""
    binding, differ = job(), 0
    for path in range(0, 60, 2):
        first = read(binding, path, 100)
        assert binding.stat(path, IMAGE, 100).sample == first
        read(binding, path + 1, 100)
        again = binding.open(path, IMAGE, 100).sample
        assert binding.answer(path) == again
        binding.close(path)
        differ += again != first
    assert differ > 20


def test_a_lister_preempts_no_earlier_reader() -> None:
    binding = job(columns=1, length=4)
    read(binding, 0, 100)
    batch = {path: binding.stat(path, IMAGE, 100).sample for path in (1, 2, 3)}
    for path in (0, 1, 2, 3):
        binding.stat(path, IMAGE, 900)
    assert binding.stat(0, IMAGE, 900).sample is None, "all that is left is reserved for a reader"
    assert {path: read(binding, path, 100) for path in batch} == batch


def test_an_open_preempts_a_lister_before_a_reader() -> None:
    binding = job(columns=1, length=4)
    read(binding, 0, 100)
    awaited = binding.stat(1, IMAGE, 100).sample
    listed = [binding.stat(path, IMAGE, 900).sample for path in (2, 3)]
    taken = [binding.open(0, IMAGE, 200 + at) for at in range(2)]
    assert taken[0].sample in listed
    assert binding.stat(1, IMAGE, 100).sample == awaited == read(binding, 1, 100)


def test_a_lister_that_turns_reader_gets_the_sizes_it_saw() -> None:
    binding = job(columns=1, length=128)
    list_all(binding, 128, range(100, 101))
    read(binding, 127, 100)
    for path in range(126, -1, -1):
        reported = binding.stat(path, IMAGE, 100).sample
        assert reported == read(binding, path, 100)


def test_a_reader_reuses_its_own_skipped_reservation() -> None:
    binding = job(columns=1, length=5)
    read(binding, 0, 100)
    read(binding, 1, 100)
    past = [binding.stat(path, IMAGE, 100).sample for path in (2, 3, 4)]
    reported = binding.stat(0, IMAGE, 100).sample
    assert reported in past
    assert binding.open(0, IMAGE, 200).sample == reported


def test_a_shared_reservation_outlives_its_thread() -> None:
    binding = job(columns=1, length=4)
    promised = binding.stat(1, IMAGE, 900).sample
    assert binding.stat(1, IMAGE, 100).sample == promised
    binding.stat(2, IMAGE, 900)
    assert len(binding.thread(900).unloaded) == 1, "no other thread saw its size"
    assert list(binding.reservers) == [100]
    assert read(binding, 1, 100) == promised


def test_a_dead_thread_that_saw_a_reservation_gets_no_hold() -> None:
    binding = job(columns=1, length=4)
    binding.stat(1, IMAGE, 100)
    binding.stat(1, IMAGE, 900)
    binding.thread(900)
    read(binding, 1, 100)
    assert binding.open(2, IMAGE, 100).released == (1,), "no thread holds it any more, and 900 is another thread now"


def test_a_bounded_number_of_threads_is_remembered() -> None:
    cells = np.arange(8, dtype=np.int32).reshape(8, 1)
    policy = SlotPolicy(cells, np.array([0, 8], np.int32), samples=8, seed=1)
    binding = Binding(policy, np.ones(8, int), reservations_per_thread=2, callers=4)
    assert [binding.stat(path, IMAGE, 900).sample is None for path in range(3)] == [False, False, True]
    for thread in range(100, 104):
        read(binding, 0, thread)
    assert binding.stat(4, IMAGE, 900).sample is not None, "a forgotten thread counts as new"


def test_opens_join_while_a_handle_is_open() -> None:
    binding = job()
    first = binding.open(3, IMAGE, 100)
    others = [binding.open(3, IMAGE, thread) for thread in (100, 200, 0)]
    assert {o.sample for o in others} == {first.sample}
    assert [o.turn for o in others] == [None] * 3
    assert [o.fresh for o in [first, *others]] == [True, False, False, False]
    assert [binding.close(3).last for _ in range(4)] == [False, False, False, True]


def test_only_the_holder_has_a_second_look() -> None:
    binding = job()
    first = read(binding, 3, 100)
    assert binding.open(3, IMAGE, 100).turn is None
    binding.close(3)
    assert binding.open(3, IMAGE, 200).turn is not None
    binding.close(3)
    # The path has another answer now, and only its opener holds it.
    assert binding.open(3, IMAGE, 100).turn is not None
    assert first is not None


def test_opening_another_path_ends_a_hold() -> None:
    binding = job()
    read(binding, 3, 100)
    assert binding.open(7, IMAGE, 100).released == (3,)
    assert binding.open(3, IMAGE, 100).turn is not None


def test_an_unknown_caller_reserves_nothing_and_holds_by_path() -> None:
    binding = job()
    assert binding.stat(3, IMAGE, 0).sample is None
    sample = binding.open(3, IMAGE, 0).sample
    assert binding.close(3).released == ()
    assert binding.stat(3, IMAGE, 0).sample == sample
    again = binding.open(3, IMAGE, 0)
    assert (again.sample, again.turn) == (sample, None)
    binding.close(3)
    assert binding.open(3, IMAGE, 100).turn is not None, "a thread that is known holds nothing here"


def test_a_stat_while_bound_holds_after_the_close() -> None:
    binding = job()
    bound = binding.open(3, IMAGE, 100).sample
    reported = binding.stat(3, IMAGE, 200)
    assert (reported.sample, reported.bound) == (bound, True)
    binding.close(3)
    assert read(binding, 3, 200) == bound


# Groups: an image and its caption


@pytest.mark.parametrize(("thread", "asks"), [(100, False), (100, True), (200, True)])
def test_batched_order_images_first_then_captions(thread: int, asks: bool) -> None:
    """Whoever opens the captions may ask for the sizes of the images before."""
    binding = job(files=2)
    for epoch in range(3):
        order = shuffled(epoch)
        for start in range(0, 64, 16):
            batch = order[start : start + 16]
            images = [read(binding, path, 100, IMAGE) for path in batch]
            for path in batch if asks else ():
                binding.stat(path, IMAGE, thread)
            assert [read(binding, path, thread, CAPTION) for path in batch] == images


def test_image_and_caption_opened_by_two_threads() -> None:
    binding = job(files=2)
    for epoch in range(3):
        served = []
        for path in shuffled(epoch):
            image = binding.open(path, IMAGE, 100)
            binding.close(path)
            caption = binding.open(path, CAPTION, 200)
            binding.close(path)
            assert caption.sample == image.sample
            assert caption.fresh
            served.append(image.sample)
        assert sorted(served) == list(range(64))


def test_image_only_order_takes_one_turn_each_epoch() -> None:
    binding = job(files=2)
    answers = []
    for epoch in range(3):
        served = {path: read(binding, path, 100 + epoch, IMAGE) for path in shuffled(epoch)}
        assert sorted(served.values()) == list(range(64))
        answers.append(served)
    assert answers[0] != answers[1] != answers[2]


def test_image_only_order_with_a_stat_of_the_caption_before() -> None:
    binding = job(files=2)
    for epoch in range(3):
        turns = 0
        for path in shuffled(epoch):
            binding.stat(path, CAPTION, 100 + epoch)
            turns += binding.open(path, IMAGE, 100 + epoch).turn is not None
            binding.close(path)
        assert turns == 64


def test_stat_and_open_of_both_files_agree() -> None:
    binding = job(files=2)
    for epoch in range(3):
        for path in shuffled(epoch):
            reported = {binding.stat(path, file, 100).sample for file in (IMAGE, CAPTION)}
            assert len(reported) == 1
            assert {read(binding, path, 100, file) for file in (CAPTION, IMAGE)} == reported


def test_a_group_keeps_its_bytes_until_all_members_are_opened() -> None:
    binding = job(files=2)
    binding.open(3, IMAGE, 100)
    assert binding.close(3).released == ()
    assert binding.open(4, IMAGE, 100).released == (), "its caption was not opened"
    binding.open(3, CAPTION, 200)
    assert binding.close(3).released == ()
    assert binding.open(5, IMAGE, 200).released == (3,)


def test_groups_of_more_than_64_files_are_refused() -> None:
    with pytest.raises(ValueError, match="64 files"):
        job(files=65)
