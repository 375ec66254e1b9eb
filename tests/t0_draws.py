"""Draws: a sampler takes turns, opens return what they name, and what was drawn is kept until its open."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redoxfs.protocol import (
    NO_SAMPLE,
    Binding,
    DrawnBinding,
    PoolPolicy,
    Replay,
    ReplayError,
)

SAMPLES, WIDTH = 24, 4


def pool(capacity: int = 8, classes: int = 2) -> PoolPolicy:
    cells = np.arange(SAMPLES, dtype=np.int32).reshape(-1, WIDTH)
    class_of = (np.arange(SAMPLES) * classes // SAMPLES).astype(np.int32)
    return PoolPolicy(cells, class_of, np.ones(SAMPLES, np.int64), capacity_bytes=capacity, seed=1)


def drawn(policy: PoolPolicy, files: int = 1) -> DrawnBinding:
    return DrawnBinding(policy, np.full(SAMPLES, files))


class Model:
    """What a mount for a sampler may do with each path, plainly."""

    def __init__(self, files: int) -> None:
        self.files = files
        self.turns = [0] * SAMPLES
        self.unopened: dict[int, set[int]] = {}
        self.handles: Counter[int] = Counter()
        self.held: dict[int, int] = {}

    def draw(self, sample: int, classmates: range) -> None:
        assert self.turns[sample] == min(self.turns[each] for each in classmates)
        self.turns[sample] += 1
        self.unopened[sample] = set(range(self.files))
        self.held = {thread: path for thread, path in self.held.items() if path != sample}

    def open(self, path: int, file: int, thread: int) -> None:
        self.handles[path] += 1
        self.unopened.get(path, set()).discard(file)
        self.held[thread] = path

    def is_wanted(self, path: int) -> bool:
        return bool(self.unopened.get(path) or self.handles[path] or path in self.held.values())


steps = st.lists(
    st.tuples(
        st.sampled_from(["draw", "draw", "open", "close", "stat"]), st.integers(0, SAMPLES - 1), st.integers(1, 3)
    ),
    max_size=120,
)


@given(steps, st.integers(1, 2), st.sampled_from([1, 8, 100]))
def test_each_path_answers_itself_and_keeps_what_was_drawn(
    asked: list[tuple[str, int, int]], files: int, capacity: int
) -> None:
    binding, model = drawn(pool(capacity), files), Model(files)
    for kind, path, thread in asked:
        file = thread % files
        if kind == "draw":
            first = path // 12 * 12
            sample = binding.draw(path).sample
            assert first <= sample < first + 12, "the class is that of the path"
            model.draw(sample, range(first, first + 12))
        elif kind == "open":
            before = model.held.get(thread)
            model.open(path, file, thread)
            opened = binding.open(path, file, thread)
            assert (opened.sample, opened.turn) == (path, None)
            if before is not None and before != path:
                assert (before in opened.released) == (not model.is_wanted(before))
        elif kind == "stat":
            told = binding.stat(path, file, thread + 100)
            assert (told.sample, told.reserved) == (path, False)
            if model.handles[path]:
                model.held[thread + 100] = path
        elif model.handles[path]:
            model.handles[path] -= 1
            closed = binding.close(path)
            assert closed.last == (not model.handles[path])
            assert closed.released == (() if not closed.last or model.is_wanted(path) else (path,))


@given(steps, st.data())
def test_a_record_of_draws_has_the_same_laps(asked: list[tuple[str, int, int]], data: st.DataObject) -> None:
    policy = pool()
    binding = drawn(policy)
    at = data.draw(st.integers(0, len(asked)))
    tables, turns = binding.tables(), policy.turns()
    samples: list[int] = []
    for number, (_, path, _) in enumerate(asked):
        if number == at:
            tables, turns, samples = binding.tables(), policy.turns(), []
        samples.append(binding.draw(path).sample)
    after = pool()
    again = drawn(after)
    again.resume(tables)
    replay = Replay(again, turns, after)
    for sample in samples:
        replay.draw(sample)
    replay.open(3, 0, 7, NO_SAMPLE, preempted=False)
    replay.finish()
    # A lap that is over may have begun anew or not.
    rest = Counter(again.draw(0).sample for _ in range(12 - sum(path < 12 for _, path, _ in asked) % 12))
    assert set(rest.values()) <= {1}
    had = Counter(binding.draw(0).sample for _ in range(sum(rest.values())))
    assert rest == had
    assert after.given == policy.given


def test_a_draw_belongs_to_a_mount_for_a_sampler() -> None:
    policy = pool()
    replay = Replay(Binding(policy, np.ones(SAMPLES, int)), policy.turns(), pool())
    with pytest.raises(ReplayError, match="a draw of sample 5"):
        replay.draw(5)
