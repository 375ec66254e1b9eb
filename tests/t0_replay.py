"""A binding that continues from a checkpoint and a record of events equals the one that died.

The model of `t0_binding_model` runs on across restarts, so each of its rules holds over them: each sample once a lap,
the same sample at a second look, the size that a stat reported.
"""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from t0_binding_model import UNSEEN, BindingMachine, PoolMachine, SlotMachine

from redoxfs.protocol import (
    NO_SAMPLE,
    Binding,
    BindingTables,
    Closed,
    Opened,
    PoolPolicy,
    Replay,
    Served,
    SlotPolicy,
    StatResult,
    ThreadEnded,
)
from redoxfs.protocol.turns import Turns

slow = pytest.mark.slow

Event = Callable[[Replay], object]


class Recording(Binding):
    """A binding, and all that happened to it. ``states``: its tables and the turns before each event and after all."""

    policy: SlotPolicy | PoolPolicy

    def begin(self, policy: SlotPolicy | PoolPolicy) -> None:
        self.policy = policy
        self.events: list[Event] = []
        self.states: list[tuple[BindingTables, Turns]] = [(self.tables(), policy.turns())]

    def note(self, event: Event) -> None:
        self.events.append(event)
        self.states.append((self.tables(), self.policy.turns()))

    def open(self, path: int, file: int, thread: int) -> Opened:
        opened = super().open(path, file, thread)
        turn = opened.turn
        sample, preempted = (turn.sample, turn.preempted) if isinstance(turn, Served) else (NO_SAMPLE, False)
        self.note(lambda replay: replay.open(path, file, thread, sample, preempted=preempted))
        return opened

    def stat(self, path: int, file: int, thread: int) -> StatResult:
        result = super().stat(path, file, thread)
        sample = NO_SAMPLE if result.sample is None else result.sample
        self.note(lambda replay: replay.stat(path, file, thread, sample, is_new=result.reserved))
        return result

    def close(self, path: int) -> Closed:
        closed = super().close(path)
        if not self.is_failing:
            self.note(lambda replay: replay.close(path))
        return closed

    is_failing = False

    def fail(self, path: int, thread: int) -> Closed:
        self.is_failing = True
        closed = super().fail(path, thread)
        self.is_failing = False
        self.note(lambda replay: replay.fail(path, thread))
        return closed

    def thread(self, thread: int) -> ThreadEnded:
        ended = super().thread(thread)
        self.note(lambda replay: replay.end(thread))
        return ended


def plain(turns: Turns) -> tuple[list[int], list[int], int]:
    return turns.laps.tolist(), turns.had.tolist(), turns.given


class RestartingMachine(BindingMachine):
    def bind(self, policy: SlotPolicy | PoolPolicy) -> Recording:
        binding = Recording(
            policy,
            np.array([self.model.files[s] for s in range(len(self.model.files))]),
            reservations=self.reservations,
            reservations_per_thread=3,
            holds=6,
            unseen=UNSEEN,
        )
        binding.begin(policy)
        return binding

    def continued(self, first: int, end: int) -> tuple[Recording, SlotPolicy | PoolPolicy]:
        """A new binding and policy, from the checkpoint before event ``first`` and the events up to ``end``."""
        former = self.binding
        assert isinstance(former, Recording)
        tables, turns = former.states[first]
        policy = self.make_policy()
        binding = self.bind(policy)
        Binding.resume(binding, tables)
        replay = Replay(binding, turns, policy)
        for event in former.events[first:end]:
            event(replay)
        replay.finish()
        assert_same(binding.tables(), former.states[end][0])
        assert plain(policy.turns()) == plain(former.states[end][1])
        assert {sample for path in self.model.column for sample in policy.reserved(path)} == {
            int(sample) for sample in binding.tables().reservations[:, 1]
        }
        return binding, policy

    @precondition(lambda self: hasattr(self, "model"))
    @rule(data=st.data())
    def replay_a_part(self, data: st.DataObject) -> None:
        assert isinstance(self.binding, Recording)
        end = data.draw(st.integers(0, len(self.binding.events)))
        self.continued(data.draw(st.integers(0, end)), end)

    @precondition(lambda self: hasattr(self, "model"))
    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        assert isinstance(self.binding, Recording)
        end = len(self.binding.events)
        binding, policy = self.continued(data.draw(st.integers(0, end)), end)
        binding.begin(policy)
        self.binding, self.policy = binding, policy
        self.model.memory = set()


def assert_same(tables: BindingTables, expected: BindingTables) -> None:
    for name, table, other in zip(tables._fields, tables, expected, strict=True):
        assert np.array_equal(np.asarray(table), np.asarray(other)), name


class RestartingSlotMachine(RestartingMachine, SlotMachine):
    pass


class RestartingPoolMachine(RestartingMachine, PoolMachine):
    pass


TestSlotRestarts = slow(RestartingSlotMachine.TestCase)
TestSlotRestarts.settings = settings(stateful_step_count=60)
TestPoolRestarts = slow(RestartingPoolMachine.TestCase)
TestPoolRestarts.settings = settings(stateful_step_count=60)
