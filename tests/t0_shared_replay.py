"""A node that continues from a checkpoint and a record of events equals the process that died, for its peers too.

At any moment a node is rebuilt from its last checkpoint and the events since, and compared with the living one, or
replaces it. Laps stay exact across any number of replacements.
"""

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from jobs import READS, Habits, Job, Station, Thread, assert_same_state, saved
from networks import CHUNK_SIZE, ByLaps, DrawnPool, pool_node
from watched import Watched

from redoxfs.protocol import (
    NO_SAMPLE,
    UNDECIDED,
    Answer,
    Binding,
    Given,
    Hit,
    LocalFirst,
    Message,
    RemoteAnswer,
    RemoteRead,
    ReplayError,
    SharedReplay,
    SharedState,
    SlotNode,
    Take,
    answer_of,
    homes_by_vc,
    message_of,
    numbers_of,
)

slow = pytest.mark.slow


class PoolJob(DrawnPool, Job):
    """The pool on several nodes. No sample has its next turn before all others of its class had theirs."""

    made: type[LocalFirst] = ByLaps

    def __init__(
        self,
        seed: int,
        *,
        nodes: int,
        samples: int,
        classes: int,
        retained: float = 0,
        remote_memory_bytes: int = 1 << 30,
        exchange: float = 0.0,
        reads_alone: bool = False,
        habits: Habits = READS,
    ) -> None:
        self.draw(seed, nodes=nodes, samples=samples, classes=classes, largest=3)
        self.retained = retained
        self.of_class = [np.flatnonzero(self.class_of == cls).tolist() for cls in range(classes)]
        self.remote_memory_bytes, self.exchange, self.reads_alone = remote_memory_bytes, exchange, reads_alone
        super().__init__(seed, nodes=nodes, samples=samples, habits=habits)

    def policy(self, number: int, seed: int) -> LocalFirst:
        return self.pool_of(number, self.nodes, resident=self.random.choice([1, 5]), seed=seed)

    def turn(self, path: int, sample: int) -> None:
        super().turn(path, sample)
        assert self.class_of[sample] == self.class_of[path]
        if self.is_exact:
            turns = [self.turns[each] for each in self.of_class[self.class_of[sample]]]
            assert max(turns) - min(turns) <= 1

    def began(self, number: int) -> None:
        node = self.stations[number].policy
        others = [station.policy for other, station in enumerate(self.stations) if other != number]
        assert isinstance(node, LocalFirst)
        node.rejoin(np.max([other.begun() for other in others if isinstance(other, LocalFirst)], axis=0))


class PassingJob(PoolJob):
    """The same where nodes keep passes, and are told of some of the epochs. Laps are not exact."""

    made = LocalFirst

    def __init__(self, seed: int, *, in_order: bool, told: float, **shape: Any) -> None:
        super().__init__(seed, **shape)
        self.in_order, self.told = in_order, told
        self.is_exact = False

    def order(self) -> Sequence[int]:
        return range(self.samples) if self.in_order else super().order()

    def turn(self, path: int, sample: int) -> None:
        assert self.class_of[sample] == self.class_of[path]

    def begin_epoch(self, orders: Sequence[npt.NDArray[np.int32]]) -> None:
        if self.random.random() < self.told:
            for station in self.stations:
                assert isinstance(station.policy, LocalFirst)
                station.policy.begin_pass(None)
                station.void()
                # It has no entry in the record.
                station.save()


class SlotJob(Job):
    """The paper's protocol on several nodes. No home gives a sample twice in a lap."""

    # A size that nobody opens keeps a sample of another home at this node.
    walks_anywhere = False

    def __init__(
        self, seed: int, *, nodes: int, chunks: int, per_vc: int, window: int, room: int, habits: Habits = READS
    ) -> None:
        self.cells = np.arange(chunks * CHUNK_SIZE, dtype=np.int32).reshape(chunks, CHUNK_SIZE)
        self.starts = np.append(np.arange(0, chunks, per_vc), chunks).astype(np.int32)
        self.window, self.room = window, room
        columns = Watched(self.cells, self.starts, samples=self.cells.size, seed=0).columns
        self.columns = columns
        self.homes = homes_by_vc(columns, CHUNK_SIZE, nodes)
        self.epochs = 0
        super().__init__(seed, nodes=nodes, samples=self.cells.size, habits=habits)

    def policy(self, number: int, seed: int) -> SlotNode:
        below = Watched(self.cells, self.starts, samples=self.samples, seed=seed)
        sizes = np.ones(self.samples, np.int32)
        return SlotNode(number, below, self.homes, sizes, remote_memory_bytes=self.room, window=self.window)

    def begin_epoch(self, orders: Sequence[npt.NDArray[np.int32]]) -> None:
        for station in self.stations:
            assert isinstance(station.policy, SlotNode)
            for node, order in enumerate(orders):
                station.policy.follow(node, self.epochs, order)
            # A new order has no entry in the record.
            station.save()
        self.epochs += 1

    def turn(self, path: int, sample: int) -> None:
        super().turn(path, sample)
        assert self.columns[sample] == self.columns[path]

    def replace(self, number: int) -> None:
        gave = self.gave(number)
        super().replace(number)
        self.gave(number).update(gave)
        assert not self.is_exact or max(self.gave(number).values(), default=1) == 1

    def gave(self, number: int) -> Counter[tuple[int, int]]:
        policy = self.stations[number].policy
        assert isinstance(policy, SlotNode)
        assert isinstance(policy._policy, Watched)
        return policy._policy.gave

    def alone(self, thread: Thread) -> bool:
        self.stations[thread.node].decide_alone(thread.path)
        self.after(thread.node)
        return True


habits = st.builds(
    Habits, stat=st.sampled_from([0.0, 0.3, 0.9]), fail=st.sampled_from([0.0, 0.1]), walkers=st.sampled_from([0, 2])
)

pools = st.builds(
    PoolJob,
    st.integers(0, 1 << 32),
    nodes=st.integers(2, 3),
    samples=st.integers(1, 24),
    classes=st.integers(1, 3),
    retained=st.sampled_from([0, 0.5, 1]),
    remote_memory_bytes=st.sampled_from([0, 5, 40, 1 << 30]),
    exchange=st.sampled_from([0.0, 0.3, 1.0]),
    reads_alone=st.booleans(),
    habits=habits,
)

passing = st.builds(
    PassingJob,
    st.integers(0, 1 << 32),
    nodes=st.integers(2, 3),
    samples=st.integers(1, 24),
    classes=st.integers(1, 3),
    remote_memory_bytes=st.sampled_from([0, 5, 1 << 30]),
    exchange=st.sampled_from([0.0, 1.0]),
    reads_alone=st.booleans(),
    habits=habits,
    in_order=st.booleans(),
    told=st.sampled_from([0, 0.5]),
)

slots = st.builds(
    SlotJob,
    st.integers(0, 1 << 32),
    nodes=st.integers(2, 3),
    chunks=st.integers(2, 8),
    per_vc=st.integers(1, 4),
    window=st.sampled_from([1, 5, 1000]),
    room=st.sampled_from([0, 8, 24, 10_000]),
    habits=habits,
)


def passing_job(seed: int, classes: int, walkers: int) -> PassingJob:
    """Two nodes with three samples, which no node sends ahead."""
    shape: dict[str, Any] = {"nodes": 2, "samples": 3, "remote_memory_bytes": 0, "exchange": 0.0}
    habits = Habits(stat=0.0, fail=0.0, walkers=walkers)
    return PassingJob(seed, classes=classes, habits=habits, in_order=False, told=0, **shape)


def test_a_peer_that_nothing_was_noted_of_is_forgotten_alike() -> None:
    """A checkpoint looks for what left for the peer, and so makes an empty log of it."""
    job = passing_job(2, classes=1, walkers=0)
    for _ in range(3):
        job.continued(0)
    for steps in (1, 18, 40, 2):
        job.go_on(steps)
        if steps in (40, 2):
            job.continued(0)
    job.lose(1, 0)
    job.continued(1)


def test_an_open_that_was_overtaken_is_noted_alike() -> None:
    """The sample of the open that overtook it leaves again after the checkpoint."""
    job = passing_job(26, classes=2, walkers=2)
    job.go_on(13)
    job.continued(0)
    job.replace(1)
    job.go_on(26)
    job.continued(1)


@pytest.mark.parametrize("made", [PoolJob, PassingJob])
def test_a_node_continues_alone_where_all_of_a_class_is_at_lost_nodes(made: type[PoolJob]) -> None:
    passes: dict[str, Any] = {"in_order": True, "told": 0} if made is PassingJob else {}
    job = made(1, nodes=2, samples=24, classes=8, reads_alone=True, habits=Habits(stat=0.3), **passes)
    station = job.stations[0]
    job.epoch()
    for at in range(90):
        if at == 10:
            # Some wait for it now.
            assert station.undecided
            job.lose(0, 1)
            assert not station.undecided
        if at % 3 == 0:
            station.save()
        job.run(2)
        job.continued(0)
    assert station.policy.degraded > 4
    job.replace(0)
    job.find(0, 1)
    job.run()


class ReplacingMachine(RuleBasedStateMachine):
    """A job whose nodes are saved, compared with a copy of theirs, replaced, lost and restarted at any moment."""

    job: Job

    def node(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, self.job.nodes - 1))

    @rule(steps=st.integers(1, 40))
    def go_on(self, steps: int) -> None:
        self.job.go_on(steps)

    @rule(data=st.data())
    def save(self, data: st.DataObject) -> None:
        self.job.stations[self.node(data)].save()

    @rule(data=st.data())
    def compare(self, data: st.DataObject) -> None:
        self.job.continued(self.node(data))

    @rule(data=st.data())
    def replace(self, data: st.DataObject) -> None:
        self.job.replace(self.node(data))

    def teardown(self) -> None:
        if hasattr(self, "job") and self.job.is_exact:
            self.job.run()
            check_exact(self.job)


def check_exact(job: Job) -> None:
    """All epochs that began are over: every sample had as many turns as any other, and none was missed."""
    assert len({job.turns[sample] for sample in range(job.samples)}) == 1
    assert all(station.policy.missed == 0 for station in job.stations)
    if isinstance(job, SlotJob):
        for number in range(job.nodes):
            assert max(job.gave(number).values(), default=1) == 1


class FailingMachine(ReplacingMachine):
    """The same where nodes also are lost and restarted."""

    @precondition(lambda self: hasattr(self, "job"))
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        number = self.node(data)
        self.job.lose(number, (number + 1) % self.job.nodes)

    @precondition(lambda self: hasattr(self, "job") and self.job.lost)
    @rule()
    def find(self) -> None:
        self.job.find(*min(self.job.lost))

    @precondition(lambda self: hasattr(self, "job"))
    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        self.job.restart(self.node(data))


class PoolMachine(FailingMachine):
    @initialize(job=pools)
    def begin(self, job: PoolJob) -> None:
        self.job = job


class PassingMachine(FailingMachine):
    @initialize(job=passing)
    def begin(self, job: PassingJob) -> None:
        self.job = job


class SlotMachine(FailingMachine):
    @initialize(job=slots)
    def begin(self, job: SlotJob) -> None:
        self.job = job


class ExactPoolMachine(ReplacingMachine):
    @initialize(job=pools)
    def begin(self, job: PoolJob) -> None:
        self.job = job


class ExactSlotMachine(ReplacingMachine):
    @initialize(job=slots)
    def begin(self, job: SlotJob) -> None:
        self.job = job


TestPools = slow(PoolMachine.TestCase)
TestPools.settings = settings(stateful_step_count=30, max_examples=50)
TestPassing = slow(PassingMachine.TestCase)
TestPassing.settings = settings(stateful_step_count=30, max_examples=50)
TestSlots = slow(SlotMachine.TestCase)
TestSlots.settings = settings(stateful_step_count=30, max_examples=50)
TestExactPools = slow(ExactPoolMachine.TestCase)
TestExactPools.settings = settings(stateful_step_count=30, max_examples=50)
TestExactSlots = slow(ExactSlotMachine.TestCase)
TestExactSlots.settings = settings(stateful_step_count=30, max_examples=50)


@pytest.mark.parametrize("steps", range(1, 12))
def test_a_pass_closes_on_what_was_seen_before_a_checkpoint(steps: int) -> None:
    job = PassingJob(steps, in_order=True, told=0, nodes=2, samples=60, classes=2)
    for _ in range(3):
        job.epoch()
        job.run()
    job.epoch()
    job.run(steps)
    job.stations[0].save()
    for _ in range(40):
        job.run(3)
        job.continued(0)


@pytest.mark.parametrize("per_vc", [1, 2])
def test_a_home_that_continues_is_in_the_laps_that_it_was_in(per_vc: int) -> None:
    """Also where all laps are over and the next ones have not begun, or have begun without a turn."""
    job = SlotJob(0, nodes=2, chunks=4, per_vc=per_vc, window=1, room=24)
    for lap in (1, 2):
        job.epoch()
        for _ in range(60):
            job.run(1)
            for number in range(job.nodes):
                job.continued(number)
        job.run()
        for number in range(job.nodes):
            own = job.columns[job.homes == number]
            assert set(job.continued(number).policy.laps_of_units()[own].tolist()) == {lap}


# Records


messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(Take, *[st.integers(0, 1 << 40)] * 11, st.booleans(), st.integers(0, 1 << 40)),
    st.builds(
        RemoteRead,
        *[st.integers(0, 1 << 40)] * 6,
        st.integers(-1, 1 << 40),
        st.integers(0, 1 << 40),
        st.lists(st.builds(Hit, st.integers(0, 99), st.integers(-1, 99))).map(tuple),
        st.lists(st.integers(0, 99)).map(tuple),
    ),
)

samples = st.lists(st.integers(0, 99)).map(tuple)


def remote_answer(home: int, number: int, asked: bool, given: tuple[int, ...]) -> RemoteAnswer:
    asked = asked and len(given) > 0
    first, prefetched = (given[0], given[1:]) if asked else (None, given)
    return RemoteAnswer(home, number, first, prefetched, given[::-1])


small = st.integers(0, 1 << 20)
answers: st.SearchStrategy[Answer] = st.one_of(
    st.builds(Given, small, small, small, small, samples, *[small] * 5),
    st.builds(remote_answer, small, small, st.booleans(), samples),
)


@given(messages)
def test_a_message_is_read_from_its_numbers(message: Message) -> None:
    assert message_of(numbers_of(message)) == message


@given(answers)
def test_an_answer_is_read_from_its_numbers(answer: Answer) -> None:
    assert answer_of(numbers_of(answer)) == answer


@given(st.one_of(messages.map(numbers_of), answers.map(numbers_of)), st.integers(0, 20), st.booleans())
def test_damaged_numbers_are_refused(numbers: list[int], at: int, is_cut: bool) -> None:
    damaged = numbers[:at] if is_cut else [*numbers[:at], 1 << 50, *numbers[at:]]
    for read in (message_of, answer_of):
        try:
            again = numbers_of(read(damaged))
        except ValueError:
            continue
        assert again == damaged


# Damage


def damaged(state: SharedState, draw: random.Random) -> SharedState:
    values, arrays = dict(state.values), {name: array.copy() for name, array in state.arrays.items()}
    kind = draw.choice(["value", "no value", "array", "no array", "type", "shape", "longer"])
    name = draw.choice(sorted(values if "value" in kind else arrays))
    if kind == "value":
        values[name] = draw.choice([-1, 1 << 70, "x", None, [], 10**6])
    elif kind == "no value":
        del values[name]
    elif kind == "no array":
        del arrays[name]
    elif kind == "type":
        arrays[name] = arrays[name].astype(np.int16)
    elif kind == "shape":
        arrays[name] = arrays[name].reshape(-1)[:-1]
    elif kind == "longer":
        arrays[name] = np.concatenate([arrays[name], arrays[name][-1:]])
    elif arrays[name].size:
        flat = arrays[name].reshape(-1)
        most = int(np.iinfo(flat.dtype).max)
        flat[draw.randrange(flat.size)] = draw.choice([0, 1, 7, most, -1 if flat.dtype != np.uint8 else 255])
    return SharedState(values, arrays)


@given(st.one_of(pools, slots), st.integers(0, 1 << 32))
def test_a_damaged_state_is_refused_or_usable(job: Job, seed: int) -> None:
    draw = random.Random(seed)
    job.epoch()
    job.run(draw.randint(0, 200))
    number = draw.randrange(job.nodes)
    state = job.stations[number].policy.state()
    for _ in range(20):
        _, policy = job.parts(number)
        with suppress(ValueError):
            policy.resume(damaged(saved(state), draw))
            policy.settle()


@given(pools, st.integers(0, 200))
def test_a_state_of_another_node_is_refused(job: PoolJob, steps: int) -> None:
    job.epoch()
    job.run(steps)
    _, policy = job.parts(1)
    with pytest.raises(ValueError, match="the state has node 0, not 1"):
        policy.resume(job.stations[0].policy.state())


@given(st.one_of(pools, slots), st.integers(0, 100))
def test_another_record_is_refused(job: Job, steps: int) -> None:
    job.epoch()
    job.run(steps)
    number = job.random.randrange(job.nodes)
    binding, policy = job.parts(number)
    state = job.stations[number].checkpoint
    binding.resume(state.tables)
    replay = SharedReplay(binding, policy, state.state, undecided={}, promises={})
    path = job.random.randrange(job.samples)
    with pytest.raises(ReplayError):
        replay.close(path)
    with pytest.raises(ReplayError):
        replay.cancelled(99)
    with pytest.raises(ReplayError):
        replay.alone(path)
    with pytest.raises(ReplayError):
        replay.open(path, 0, 1, UNDECIDED if binding.is_bound(path) else NO_SAMPLE, preempted=False)


def test_a_stat_and_an_open_of_one_path_share_an_answer_of_one_sample() -> None:
    """The open gets the sample: no reservation that the binding does not know of may be preempted."""
    job = PoolJob(0, nodes=2, samples=2, classes=1)
    job.part_of[:] = 1
    job.class_of[:] = 0
    job.stations = [job.new_station(0), job.new_station(1)]
    station, home = job.stations
    ticket = station.stat(0, 0, 1)
    assert ticket is not None
    assert station.open(0, 0, 2) == UNDECIDED
    (take,) = station.policy.outbox
    answer = home.handle(take)
    assert isinstance(answer, Given)
    assert len(answer.samples) == 1
    assert station.receive(answer)
    assert station.decided == [0]
    assert station.turns == list(answer.samples)


def test_a_state_does_not_depend_on_answers_that_are_forgotten() -> None:
    job = PoolJob(0, nodes=2, samples=4, classes=2)
    job.part_of[:] = 1
    job.class_of[:] = 0, 0, 1, 1
    station = job.stations[0] = job.new_station(0)

    def nothing_left(classes: Sequence[int]) -> None:
        takes = {message.cls: message for message in station.policy.outbox if isinstance(message, Take)}
        station.policy.outbox.clear()
        for cls in classes:
            assert station.receive(Given(1, takes[cls].number, cls, 1, (), left=0, done=0))

    assert station.open(0, 0, 1) == station.open(2, 0, 2) == UNDECIDED
    nothing_left([0, 1])
    station.hear(station.policy.restarted(1))
    nothing_left([1, 0])
    job.continued(0)


def node_0_of_2(
    *, class_of: list[int], part_of: list[int], reservations: int = 12, seed: int = 0
) -> tuple[LocalFirst, Station]:
    """A node with the samples of part 0 in every lap, and what asks it."""
    samples = len(class_of)
    policy = pool_node(
        0,
        2,
        cells=np.arange(samples, dtype=np.int32).reshape(samples, 1),
        class_of=np.array(class_of, np.int32),
        part_of=np.array(part_of, np.int8),
        sample_bytes=np.ones(samples, np.int64),
        resident=1,
        remote_memory_bytes=samples,
        seed=seed,
    )
    return policy, Station(Binding(policy, np.ones(samples, np.int64), reservations=reservations), policy)


def test_a_lost_peer_leaves_each_sample_to_one_open_or_stat() -> None:
    """The next lap has a sample for the open that waited, one for the oldest stat, and none for the other stats."""
    opened = set()
    for seed in range(8):
        policy, station = node_0_of_2(class_of=[0] * 4, part_of=[0, 0, 1, 1], seed=seed)
        for path in range(2):
            station.open(path, 0, path + 1)
            station.close(path)
        assert station.open(2, 0, 3) == UNDECIDED
        tickets = [station.stat(path, 0, thread) for path, thread in ((3, 4), (1, 5), (0, 6))]
        station.hear(policy.lost(1))
        assert (station.decided, station.promised) == ([2], tickets)
        (other,) = {0, 1}.difference(station.turns[2:])
        assert station.binding.tables().reservations[:, :2].tolist() == [[3, other]]
        assert tuple(policy.reserved(0)) == (other,)
        assert station.stat(1, 0, 5) is None, "a stat that is repeated does not wait again"
        opened.add(1 - other)
    assert opened == {0, 1}


def test_a_stat_that_preempted_another_is_repeated() -> None:
    job = PoolJob(0, nodes=2, samples=2, classes=1)
    job.cells, job.part_of = np.array([[0], [1]], np.int32), np.array([0, 1], np.int8)
    job.stations = [job.new_station(0), job.new_station(1)]
    station, home = job.stations
    assert station.stat(0, 0, 1) is None
    assert home.open(1, 0, 1) == 1
    ticket = station.stat(1, 0, 2)
    (take,) = station.policy.outbox
    station.policy.outbox.clear()
    answer = home.handle(take)
    assert isinstance(answer, Given)
    assert station.receive(answer)
    assert station.promised == [ticket]
    assert station.binding.tables().reservations[:, :2].tolist() == [[1, 0]]
    job.continued(0)


def test_a_promise_puts_no_sample_back_that_was_preempted_with_it() -> None:
    policy, station = node_0_of_2(class_of=[0, 0, 1, 1], part_of=[0, 1, 0, 1], reservations=1)
    assert station.stat(2, 0, 1) is None
    assert station.binding.reserved_samples() == (2,)
    assert station.open(0, 0, 2) == 0
    ticket = station.stat(1, 0, 1)
    assert station.open(3, 0, 3) == UNDECIDED
    # The stat gets a sample of the next lap, and so its path has the one reservation that there may be. The open
    # preempts the reservation that there was.
    station.hear(policy.lost(1))
    assert (station.promised, station.decided, station.turns) == ([ticket], [3], [0, 2])
    assert station.binding.reserved_samples() == (0,) == tuple(policy.reserved(0))
    assert tuple(policy.reserved(2)) == ()


def test_a_node_without_samples_continues() -> None:
    """Nodes that redirect nothing have a policy, too."""
    samples = np.empty(0, np.int32)
    node, again, resumed = (
        pool_node(
            0,
            2,
            cells=np.empty((0, CHUNK_SIZE), np.int32),
            class_of=samples,
            part_of=samples.astype(np.int8),
            sample_bytes=samples.astype(np.int64),
            resident=1,
            remote_memory_bytes=0,
        )
        for _ in range(3)
    )
    again.resume(node.state())
    again.settle()
    resumed.restore(again.turns())
    assert_same_state(resumed.state(), node.state())
