"""Binding and both policies against a plain model, over any order of opens, stats, closes, faults and deaths."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from redoxfs.protocol import Binding, PoolPolicy, Served, SlotPolicy

pytestmark = pytest.mark.slow

THREADS = st.sampled_from([0, 101, 102, 103])
LISTERS = range(201, 209)
PER_THREAD, HOLDS, UNSEEN = 3, 6, 3
RESERVATIONS = [5, 100]
"""Fewer than one class may have, and more than all have together."""


class Model:
    def __init__(self, columns: list[list[int]], files: dict[int, int]) -> None:
        self.column = {s: column for column in columns for s in column}
        self.files = files
        self.turns = dict.fromkeys(self.column, 0)
        self.memory: set[int] = set()
        self.answer: dict[int, int] = {}
        self.opened: dict[int, set[int]] = {s: set() for s in self.column}
        self.handles = dict.fromkeys(self.column, 0)
        self.holds: list[tuple[int, int]] = []
        self.reserved: dict[int, tuple[int, int, dict[int, int]]] = {}  # path: (sample, owner, seen by)
        self.readers: set[int] = set()
        self.asked: Counter[int] = Counter()
        self.since: Counter[int] = Counter()
        # Of callers that cannot be seen: what they hold, and in order each turn, and each look: None.
        self.unseen: dict[int, int] = {}
        self.unseen_turns: list[int | None] = []

    def looks(self, path: int, thread: int) -> bool:
        """Whether an open is a second look."""
        if (thread, path) in self.holds:
            return True
        if thread or path not in self.unseen:
            return False
        turns, looks, at, began, completed, usual = 0, 0, dict[int, int](), 0, 0, 0
        for turn in self.unseen_turns:
            looks += turn is None
            if turn is not None:
                turns += 1
                began = max(began, at.get(turn, 0))
                at[turn] = turns
                if turns - began == len(self.column):
                    completed = began = turns
                    usual, looks = 1 + round(looks / len(self.column)), 0
        return at[path] > completed or self.unseen[path] < usual

    def open_unseen(self, path: int, *, is_turn: bool) -> set[int]:
        if is_turn:
            self.unseen_turns.append(path)
            self.unseen.pop(path, None)
            self.unseen[path] = 1
        elif path in self.unseen:
            self.unseen_turns.append(None)
            self.unseen[path] = self.unseen.pop(path) + 1
        gone = list(self.unseen)[:-UNSEEN]
        for each in gone:
            del self.unseen[each]
        return {each for each in gone if not self.wanted(each)}

    def expect(self, path: int, file: int, thread: int) -> int | None:
        """The sample that an open must serve; None where the policy has the choice."""
        at_rest = path in self.answer and file not in self.opened[path]
        if self.handles[path] or self.looks(path, thread) or at_rest:
            return self.answer[path]
        return self.reserved[path][0] if path in self.reserved else None

    def is_turn(self, path: int, file: int, thread: int) -> bool:
        at_rest = path in self.answer and file not in self.opened[path]
        return not (self.handles[path] or self.looks(path, thread) or at_rest)

    def fair(self, path: int) -> set[int]:
        """The samples of the column that may have the next turn."""
        least = min(self.turns[s] for s in self.column[path])
        return {s for s in self.column[path] if self.turns[s] == least}

    def is_awaited(self, path: int) -> bool:
        """Whether a reader saw the size of what is reserved for ``path``, and has asked for no other size since."""
        _, _, seen_by = self.reserved[path]
        return any(
            t in self.readers and self.asked[t] == asked and self.since[t] <= PER_THREAD for t, asked in seen_by.items()
        )

    def reserved_like(self, path: int) -> list[int]:
        """The paths whose reservations an open of ``path`` may preempt."""
        return [p for p, (sample, _, _) in self.reserved.items() if sample in self.column[path]]

    def victim(self, path: int, sample: int) -> int:
        """The path that lost its reservation of ``sample`` to ``path``: not an awaited one while others are not
        awaited.
        """
        like = self.reserved_like(path)
        (victim,) = (p for p in like if self.reserved[p][0] == sample)
        assert not self.is_awaited(victim) or all(self.is_awaited(p) for p in like)
        return victim

    def reserved_samples(self) -> set[int]:
        return {sample for sample, _, _ in self.reserved.values()}

    def take_turn(self, path: int, turn: Served) -> None:
        sample = turn.sample
        assert turn.is_demanded == (sample not in self.memory)
        for load in turn.loads:
            assert len(set(load.samples)) == len(load.samples) > 0
            assert not set(load.samples) & (self.memory | self.reserved_samples() - {sample})
            self.memory |= set(load.samples)
        self.memory -= set(turn.gone)
        assert sample in self.memory
        assert sample in self.fair(path)
        if not turn.kept:
            self.memory.remove(sample)
        self.turns[sample] += 1
        _, _, seen_by = self.reserved.pop(path, (None, 0, {}))
        self.answer[path] = sample
        self.opened[path] = set()
        self.holds = [h for h in self.holds if h[1] != path]
        self.unseen.pop(path, None)
        for thread in seen_by:
            self.hold(thread, path)

    def hold(self, thread: int, path: int) -> None:
        if thread and (thread, path) not in self.holds:
            self.holds = [*self.holds, (thread, path)][-HOLDS:]

    def unhold(self, thread: int, but: int | None) -> set[int]:
        ended = {p for t, p in self.holds if t == thread and p != but}
        self.holds = [h for h in self.holds if h[0] != thread or h[1] == but]
        return {p for p in ended if not self.wanted(p)}

    def wanted(self, path: int) -> bool:
        waiting = path in self.answer and 0 < len(self.opened[path]) < self.files[path]
        is_held = path in self.unseen or any(p == path for _, p in self.holds)
        return bool(self.handles[path]) or is_held or waiting


class BindingMachine(RuleBasedStateMachine):
    policy: SlotPolicy | PoolPolicy

    def set_up(
        self,
        make_policy: Callable[[], SlotPolicy | PoolPolicy],
        columns: list[list[int]],
        files: dict[int, int],
        reservations: int,
    ) -> None:
        self.model = Model(columns, files)
        self.reservations = reservations
        self.make_policy = make_policy
        self.policy = make_policy()
        self.binding = self.bind(self.policy)
        self.open_handles: list[tuple[int, int]] = []

    def bind(self, policy: SlotPolicy | PoolPolicy) -> Binding:
        return Binding(
            policy,
            np.array([self.model.files[s] for s in range(len(self.model.files))]),
            reservations=self.reservations,
            reservations_per_thread=PER_THREAD,
            holds=HOLDS,
            unseen=UNSEEN,
        )

    def pick(self, data: st.DataObject) -> tuple[int, int]:
        path = data.draw(st.sampled_from(sorted(self.model.column)))
        return path, data.draw(st.integers(0, self.model.files[path] - 1))

    def streamed(self, samples: set[int]) -> set[int]:
        """Those of ``samples`` in memory that an open gets rather than one that has to be read. A retained sample is no
        likelier to come than one that does not lie in memory.
        """
        return samples

    @rule(data=st.data(), thread=THREADS, fails=st.integers(0, 9))
    def open(self, data: st.DataObject, thread: int, fails: int) -> None:
        path, file = self.pick(data)
        model = self.model
        expected, is_turn = model.expect(path, file, thread), model.is_turn(path, file, thread)
        free = model.fair(path) - model.reserved_samples()
        at_hand = self.streamed(free & model.memory)
        result = self.binding.open(path, file, thread)
        assert (result.turn is not None) == is_turn
        if is_turn:
            assert isinstance(result.turn, Served)
            assert result.turn.sample == result.sample
            if expected is None:
                assert result.turn.preempted == (not free)
                assert not at_hand or result.sample in free & model.memory
                if free:
                    assert result.sample in free
                else:
                    del model.reserved[model.victim(path, result.sample)]
            assert all(self.policy.chunk_of(s) == load.chunk for load in result.turn.loads for s in load.samples)
            model.take_turn(path, result.turn)
        if expected is not None:
            assert result.sample == expected
        assert result.sample in model.column[path], "a sample of the path's own class"
        grouped = max(model.files.values()) > 1
        assert result.fresh == (file not in model.opened[path] if grouped else not model.handles[path])
        model.opened[path].add(file)
        model.handles[path] += 1
        if thread:
            assert set(result.released) == model.unhold(thread, path)
            model.hold(thread, path)
            model.readers.add(thread)
            model.since[thread] = 0
        else:
            assert set(result.released) == model.open_unseen(path, is_turn=is_turn)
        self.open_handles.append((path, thread))
        if fails == 0:
            self.open_handles.pop()
            model.handles[path] -= 1
            model.holds = [h for h in model.holds if h[1] != path or (model.handles[path] and h[0] != thread)]
            if not (thread and model.handles[path]):
                model.unseen.pop(path, None)
            self.check_closed(path, self.binding.fail(path, thread).released)

    @rule(data=st.data(), thread=THREADS)
    def stat(self, data: st.DataObject, thread: int) -> None:
        self.ask(*self.pick(data), thread)

    @rule(data=st.data(), listers=st.permutations(LISTERS))
    def list_a_class(self, data: st.DataObject, listers: list[int]) -> None:
        """Stat every file of a class from many threads, and open none."""
        path, file = self.pick(data)
        for at, each in enumerate(sorted(self.model.column[path])):
            self.ask(each, file, listers[at % len(listers)])

    def ask(self, path: int, file: int, thread: int) -> None:
        model = self.model
        expected, is_turn = model.expect(path, file, thread), model.is_turn(path, file, thread)
        free = model.fair(path) - model.reserved_samples()
        reported = self.binding.stat(path, file, thread)
        assert reported.bound == bool(model.handles[path])
        if not is_turn:
            assert reported.sample == expected
            if reported.bound:
                model.hold(thread, path)
            return
        if expected is not None:
            assert reported.sample == expected
            if thread:
                model.reserved[path][2][thread] = model.asked[thread]
            return
        if not thread:
            assert reported.sample is None
            return
        model.asked[thread] += 1
        model.since[thread] += 1
        if model.since[thread] > PER_THREAD:
            assert reported.sample is None
        elif free:
            assert reported.sample in (free & model.memory if self.streamed(free & model.memory) else free)
            assert reported.reserved
        elif reported.sample is None:
            assert thread not in model.readers or all(model.is_awaited(p) for p in model.reserved_like(path))
        else:
            assert not reported.reserved
            victim = model.victim(path, reported.sample)
            assert not model.is_awaited(victim)
            del model.reserved[victim]
        unloaded: set[int] = set()
        if reported.sample is not None:
            model.reserved[path] = (reported.sample, thread, {thread: model.asked[thread]})
            mine = [p for p, (_, owner, _) in model.reserved.items() if owner == thread]
            unloaded = self.put_back(mine[: len(mine) > PER_THREAD])
        if len(model.reserved) > self.reservations:
            unloaded |= self.put_back([next(iter(model.reserved))])
        assert unloaded == set(reported.unloaded)

    @precondition(lambda self: self.open_handles)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        path, _ = self.open_handles.pop(data.draw(st.integers(0, len(self.open_handles) - 1)))
        self.model.handles[path] -= 1
        closed = self.binding.close(path)
        assert closed.last == (not self.model.handles[path])
        self.check_closed(path, closed.released)

    @rule(thread=st.one_of(THREADS.filter(bool), st.sampled_from(LISTERS)))
    def die(self, thread: int) -> None:
        model = self.model
        assert set(self.binding.reservers) == {owner for _, owner, _ in model.reserved.values()}
        ended = self.binding.thread(thread)
        alone = []
        for path, (sample, owner, seen_by) in model.reserved.items():
            seen_by.pop(thread, None)
            if owner == thread:
                alone += [] if seen_by else [path]
                model.reserved[path] = sample, next(iter(seen_by), 0), seen_by
        assert self.put_back(alone) == set(ended.unloaded)
        assert set(ended.released) == model.unhold(thread, None)
        model.readers.discard(thread)
        del model.asked[thread], model.since[thread]

    def put_back(self, paths: Iterable[int]) -> set[int]:
        """Those that are in no slot any more: never loaded, or others have taken the room."""
        samples = {self.model.reserved.pop(path)[0] for path in paths}
        unloaded = {s for s in samples if not self.policy.is_resident(s)}
        self.model.memory -= unloaded
        return unloaded

    def check_closed(self, path: int, released: tuple[int, ...]) -> None:
        assert released == (() if self.model.handles[path] or self.model.wanted(path) else (path,))

    @invariant()
    def no_two_samples_of_a_column_are_a_turn_apart(self) -> None:
        if hasattr(self, "model"):
            for column in self.model.column.values():
                turns = [self.model.turns[s] for s in column]
                assert max(turns) - min(turns) <= 1
                laps = self.policy.laps(np.array(column)).tolist()
                assert all(lap - 1 <= n <= lap for lap, n in zip(laps, turns, strict=True))

    @invariant()
    def memory_is_what_the_slots_and_the_reservations_hold(self) -> None:
        if hasattr(self, "model"):
            unreserved = self.model.memory - self.model.reserved_samples()
            assert self.policy.residents() == len(unreserved)
            assert all(self.policy.is_resident(s) == (s in unreserved) for s in self.model.column)
            self.check_memory(unreserved)

    @abstractmethod
    def check_memory(self, unreserved: set[int]) -> None:
        """These samples are in slots at once: they must fit."""

    @invariant()
    def tables_stay_bounded(self) -> None:
        if hasattr(self, "model"):
            counts = self.binding.counts()
            assert counts["reservations"] == len(self.model.reserved) <= self.reservations
            assert counts["holds"] == len(self.model.holds) <= HOLDS
            assert counts["bound"] == sum(n > 0 for n in self.model.handles.values())


class SlotMachine(BindingMachine):
    @initialize(
        columns=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 3)), min_size=1, max_size=5),
        vc_size=st.integers(1, 4),
        seed=st.integers(0, 3),
        reservations=st.sampled_from(RESERVATIONS),
    )
    def lay_out(self, columns: list[tuple[int, int]], vc_size: int, seed: int, reservations: int) -> None:
        rows = max(length for length, _ in columns)
        cells = np.full((rows, len(columns)), -1, np.int32)
        files: dict[int, int] = {}
        for c, (length, count) in enumerate(columns):
            numbers = np.arange(len(files), len(files) + length)
            cells[:length, c] = numbers
            files |= dict.fromkeys(numbers.tolist(), count)
        starts = np.unique([*range(0, rows, vc_size), rows]).astype(np.int32)
        groups = [cells[a:b, c] for a, b in pairwise(starts) for c in range(len(columns))]
        make_policy = partial(SlotPolicy, cells, starts, samples=len(files), seed=seed)
        self.set_up(make_policy, [[int(s) for s in g if s >= 0] for g in groups if (g >= 0).any()], files, reservations)

    def check_memory(self, unreserved: set[int]) -> None:
        for column in self.model.column.values():
            assert len(unreserved & set(column)) <= 1


class PoolMachine(BindingMachine):
    def streamed(self, samples: set[int]) -> set[int]:
        assert isinstance(self.policy, PoolPolicy)
        queues, class_of = self.policy._queues, self.policy.units.tolist()
        return {sample for sample in samples if not queues.is_retained(class_of[sample], sample)}

    @initialize(
        classes=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 3)), min_size=1, max_size=5),
        chunk_size=st.integers(1, 6),
        holes=st.integers(0, 5),
        capacity_bytes=st.integers(0, 40),
        tunables=st.tuples(st.integers(1, 3), st.integers(1, 3), st.sampled_from([0, 16])),
        reservations=st.sampled_from(RESERVATIONS),
        random=st.randoms(use_true_random=False),
    )
    def lay_out(
        self,
        classes: list[tuple[int, int]],
        chunk_size: int,
        holes: int,
        capacity_bytes: int,
        tunables: tuple[int, int, int],
        reservations: int,
        random: Random,
    ) -> None:
        class_of = np.repeat(np.arange(len(classes)), [length for length, _ in classes]).astype(np.int32)
        samples = len(class_of)
        files = {s: classes[c][1] for s, c in enumerate(class_of.tolist())}
        cells = [*range(samples), *[-1] * (holes + -(samples + holes) % chunk_size)]
        random.shuffle(cells)
        self.sizes = [random.randint(0, 4) for _ in range(samples)]
        self.capacity_bytes = capacity_bytes
        make_policy = partial(
            PoolPolicy,
            np.array(cells, np.int32).reshape(-1, chunk_size),
            class_of,
            np.array(self.sizes, np.int64),
            capacity_bytes=capacity_bytes,
            seed=random.randint(0, 3),
            chunks_drawn=tunables[0],
            loads_per_request=tunables[1],
            ample_samples=tunables[2],
        )
        columns = [np.flatnonzero(class_of == c).tolist() for c in range(len(classes))]
        self.set_up(make_policy, columns, files, reservations)

    def check_memory(self, unreserved: set[int]) -> None:
        held_bytes = sum(self.sizes[s] for s in unreserved)
        assert isinstance(self.policy, PoolPolicy)
        assert self.policy.resident_bytes == held_bytes <= self.capacity_bytes


TestSlotBinding = SlotMachine.TestCase
TestSlotBinding.settings = settings(stateful_step_count=60)
TestPoolBinding = PoolMachine.TestCase
TestPoolBinding.settings = settings(stateful_step_count=60)
