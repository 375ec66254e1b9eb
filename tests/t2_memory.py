"""The owners of bytes: each counts once, whatever leaves memory first, and all stay within the limits."""

from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redoxfs.chunks.store import FileBytes, Stamp
from redoxfs.node.memory import Content, Memory
from redoxfs.node.pending import PendingTurns
from redoxfs.protocol import Delivered, PoolPolicy, Served
from redoxfs.protocol.events import StatResult

SIZE = 100


def payload(sample: int) -> tuple[FileBytes]:
    return (FileBytes(sample.to_bytes(4, "little") * (SIZE // 4), Stamp(SIZE, sample, 1), changed=False),)


def shed(path: int) -> None:
    """The path reads from storage from now on."""
    del path


class Reader:
    """A policy and memory, as a node joins them, with reads that arrive later and files that stay open for long.

    ``own``       the share of open files, in samples
    ``lendable``  how much more they may have of what is retained
    """

    def __init__(self, *, samples: int, classes: int, capacity: int, own: int, lendable: int, seed: int) -> None:
        class_of = (np.arange(samples) % classes).astype(np.int32)
        cells = np.random.default_rng(seed).permutation(samples).astype(np.int32).reshape(-1, 4)
        sizes = np.full(samples, SIZE, np.int64)
        capacity_bytes = capacity * SIZE
        self.policy = PoolPolicy(cells, class_of, sizes, capacity_bytes=capacity_bytes, seed=seed)
        self.memory = Memory(own * SIZE, shed, retainer=self.policy, most_lent_bytes=lendable * SIZE)
        self.limit_bytes = (capacity + own) * SIZE
        self.under_way: deque[Content] = deque()
        self.open: dict[int, Content] = {}
        self.resting: list[int] = []
        self.read: list[int] = []
        self.given: list[Content] = []

    def give(self, path: int) -> int:
        """The turn of a path is another node's."""
        turn = self.policy.request(path)
        content = self.memory.give(turn.sample, kept=turn.kept)
        for load in turn.loads:
            self.under_way.extend(self.memory.expect(load.samples))
            self.read += load.samples
        content = content or self.memory.give(turn.sample, kept=turn.kept)
        if content is None:
            content = self.memory.expect_to_give(turn.sample)
            self.under_way.append(content)
        self.given.append(content)
        return turn.sample

    def send(self) -> None:
        """Send what is here of what was given."""
        for content in [content for content in self.given if content.arrived]:
            (file,) = content.payload
            assert isinstance(file, FileBytes)
            assert bytes(memoryview(file.data)[:4]) == content.sample.to_bytes(4, "little")
            self.given.remove(content)
            self.memory.sent(content)

    def open_path(self, path: int) -> int:
        turn = self.policy.request(path)
        for load in turn.loads:
            self.under_way.extend(self.memory.expect(load.samples))
            self.read += load.samples
        content = self.memory.claim(path, turn.sample, kept=turn.kept)
        if content is None:
            content = self.memory.expect_for(path, turn.sample)
            self.under_way.append(content)
        self.open[path] = content
        return turn.sample

    def arrive(self, most: int) -> None:
        for _ in range(min(most, len(self.under_way))):
            content = self.under_way.popleft()
            if content.is_wanted:
                self.memory.arrive(content, payload(content.sample))

    def close(self, path: int) -> None:
        del self.open[path]
        self.memory.rest(path)
        self.resting.append(path)

    def release(self) -> None:
        for path in self.resting:
            if path not in self.open:
                self.memory.release(path)
        self.resting.clear()

    def check(self) -> None:
        memory = self.memory
        contents: list[Content] = [*self.given]
        for owned in (memory._slots, memory._open.of, memory._dropped, memory._resting.of, memory._reserved.of):
            contents += owned.values()
        held = {
            id(file): len(file.data) for content in contents for file in content.files if isinstance(file, FileBytes)
        }
        assert sum(held.values()) == memory.used_bytes == sum(content.bytes_held for content in contents)
        for by_age in (memory._open, memory._resting, memory._reserved):
            # `of` has them in the order in which they came.
            can_go = (key for key, content in by_age.of.items() if by_age._can_go(content))
            assert by_age.oldest() == next(can_go, None)
        # A peer's bytes are kept until they are sent.
        for_peers = sum(content.bytes_held for content in self.given)
        assert memory.used_bytes <= self.limit_bytes + for_peers
        assert memory.claims_bytes <= memory._claims_limit_bytes + for_peers
        assert memory.lent_bytes == self.policy._lent_bytes
        for path, content in self.open.items():
            assert memory.look(path) is content
            # None: dropped.
            for file in filter(None, content.files):
                assert isinstance(file, FileBytes)
                assert bytes(memoryview(file.data)[:4]) == content.sample.to_bytes(4, "little")


@given(
    capacity=st.integers(4, 60),
    own=st.integers(1, 6),
    lendable=st.integers(0, 20),
    seed=st.integers(0, 1 << 16),
    stays_open=st.sampled_from([0.0, 0.5, 0.95]),
    gives=st.sampled_from([0.0, 0.3]),
    arrives=st.integers(0, 8),
)
def test_each_byte_counts_once_and_the_limit_holds(
    capacity: int, own: int, lendable: int, seed: int, stays_open: float, gives: float, arrives: int
) -> None:
    reader = Reader(samples=48, classes=3, capacity=capacity, own=own, lendable=lendable, seed=seed)
    random = np.random.default_rng(seed)
    served: list[int] = []
    for _ in range(3):
        for path in random.permutation(48).tolist():
            if path in reader.open:
                reader.close(path)
                reader.release()
            served.append(reader.give(path) if random.random() < gives else reader.open_path(path))
            reader.arrive(arrives)
            if random.random() < 0.5:
                reader.send()
            for other in [*reader.open]:
                if reader.open[other].arrived and random.random() > stays_open:
                    reader.close(other)
            if random.random() < 0.5:
                reader.release()
            reader.check()
    for lap in range(3):
        assert sorted(served[48 * lap :][:48]) == list(range(48))


def test_open_files_have_the_room_of_retained_samples_while_they_need_it() -> None:
    reader = Reader(samples=480, classes=3, capacity=360, own=8, lendable=80, seed=1)
    random = np.random.default_rng(1)

    def lap() -> None:
        for path in random.permutation(480).tolist():
            reader.open_path(path)
            reader.arrive(1_000)
            reader.close(path)
            reader.release()
        reader.check()

    lap()
    lap()
    retained = reader.policy.retained_samples
    assert retained > 250
    for path in range(200):
        reader.open_path(path)
        reader.arrive(1_000)
        reader.check()
    chunk_bytes = 4 * SIZE
    assert 80 * SIZE <= reader.memory.lent_bytes < 80 * SIZE + chunk_bytes
    assert reader.policy.given_back * SIZE == reader.memory.lent_bytes
    assert 80 * SIZE < reader.memory.claims_bytes <= 88 * SIZE + chunk_bytes
    for path in range(200):
        reader.close(path)
    reader.release()
    assert reader.memory.lent_bytes == 0
    for path in range(200, 480):
        reader.open_path(path)
        reader.arrive(1_000)
        reader.close(path)
        reader.release()
    lap()
    assert reader.policy.retained_samples == retained
    reader.read.clear()
    lap()
    assert len(reader.read) <= 480 - retained + 60


def test_a_retained_sample_that_a_peer_gets_stays_here() -> None:
    reader = Reader(samples=48, classes=1, capacity=48, own=4, lendable=40, seed=0)
    for _ in range(3):
        given = [reader.give(path) for path in range(48)]
        assert reader.memory.claims_bytes == 0, "the slots own the bytes"
        reader.arrive(1_000)
        reader.send()
        assert sorted(given) == sorted(reader.read) == list(range(48))
        assert len(reader.memory._slots) == 48
        reader.check()
    again = reader.memory.give_again(5)
    assert again is not None
    assert again.payload == reader.memory._slots[5].payload
    reader.memory.forget(5)
    assert reader.memory.claims_bytes == SIZE, "the peer's now"
    reader.memory.sent(again)
    assert reader.memory.claims_bytes == 0
    assert reader.memory.give_again(5) is None


def test_a_sample_given_back_while_a_file_shows_it_counts_for_that_file() -> None:
    reader = Reader(samples=48, classes=1, capacity=48, own=4, lendable=40, seed=0)
    for path in range(48):
        reader.open_path(path)
        reader.arrive(1_000)
        reader.close(path)
        reader.release()
    first, second = reader.open_path(0), reader.open_path(1)
    reader.check()
    assert reader.memory.claims_bytes == 0, "the slots own the bytes"
    gone, gone_bytes = reader.policy.give_back(48 * SIZE)
    reader.memory.lent_bytes += gone_bytes
    reader.memory._claims_limit_bytes += gone_bytes
    assert {first, second} <= set(gone)
    for sample in gone:
        reader.memory.forget(sample)
    reader.check()
    assert reader.memory.slots_bytes == 0
    assert reader.memory.claims_bytes == 2 * SIZE
    for path in (0, 1):
        reader.close(path)
    reader.release()
    assert reader.memory.used_bytes == 0


@pytest.mark.parametrize("arrived", [True, False])
def test_two_files_that_show_one_sample_own_it_one_after_the_other(arrived: bool) -> None:
    memory = Memory(10 * SIZE, shed)
    (content,) = memory.expect([7])
    shown = [memory.claim(path, 7, kept=True) for path in (1, 2)]
    if arrived:
        memory.arrive(content, payload(7))
        assert (memory.slots_bytes, memory.claims_bytes) == (SIZE, 0)
    memory.forget(7)
    if not arrived:
        assert content.is_wanted
        memory.arrive(content, payload(7))
    assert (memory.slots_bytes, memory.claims_bytes) == (0, SIZE)
    assert all(each is not None and each.payload == payload(7) for each in shown)
    for path in (1, 2):
        assert memory.claims_bytes == SIZE
        memory.rest(path)
        memory.release(path)
    assert memory.used_bytes == 0


@pytest.mark.parametrize("leaves_first", [True, False])
def test_an_open_that_ended_before_its_bytes_came_keeps_none_of_them(leaves_first: bool) -> None:
    """The slots keep them. Nothing would collect them, as part of a cycle, once they leave these."""
    memory = Memory(10 * SIZE, shed)
    (content,) = memory.expect([7])
    ended, other = memory.claim(1, 7, kept=True), memory.claim(2, 7, kept=True)
    assert ended is not None
    called: list[int] = []
    ended.when_here(lambda: called.append(1))
    memory.rest(1)
    memory.release(1)
    if leaves_first:
        memory.forget(7)
    memory.arrive(content, payload(7))
    assert called == [1]
    assert (ended.files, ended.alias_of) == ((None,), None)
    assert other is not None
    assert other.payload == payload(7)
    assert memory.used_bytes == SIZE
    assert content.aliases == (None if leaves_first else [other])


def test_a_sample_that_is_reserved_twice_counts_once() -> None:
    """What was left over from the first reservation leaves memory."""
    memory = Memory(10 * SIZE, shed, keeps_remote=True)
    for _ in range(3):
        for remote in (False, True):
            (content,) = memory.expect_from_peer([7]) if remote else memory.expect([7])
            memory.arrive(content, payload(7))
            memory.reserve(7, remote=remote)
            assert memory.used_bytes == memory.claims_bytes == SIZE


def test_a_reserved_sample_that_a_peer_gives_again_counts_once() -> None:
    memory = Memory(10 * SIZE, shed, keeps_remote=True)
    for _ in range(3):
        (content,) = memory.expect_from_peer([7])
        memory.arrive(content, payload(7))
        assert memory.used_bytes == memory.remote_bytes == SIZE
        memory.reserve(7, remote=True)


@pytest.mark.parametrize("is_closed", [True, False])
def test_an_open_looks_at_no_other_file_that_has_no_bytes_of_its_own(
    monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    """All files of paths at rest, or open, show what the slots retain, but for those of the last few."""
    looks = 0
    bytes_held = Content.__dict__["bytes_held"]

    def look(content: Content) -> object:
        nonlocal looks
        looks += 1
        return bytes_held.__get__(content)

    monkeypatch.setattr(Content, "bytes_held", property(look, bytes_held.__set__))
    memory = Memory(4 * SIZE, shed)

    def open_path(path: int, *, kept: bool) -> None:
        (content,) = memory.expect([path])
        memory.arrive(content, payload(path))
        memory.claim(path, path, kept=kept)
        if is_closed:
            memory.rest(path)

    for path in range(300):
        open_path(path, kept=True)
    for path in range(300, 308):
        open_path(path, kept=False)
    assert memory.claims_bytes == 4 * SIZE
    looks = 0
    open_path(308, kept=False)
    assert looks < 30
    # Once it has bytes of its own, the oldest goes first.
    memory.forget(7)
    assert memory.claims_bytes == 4 * SIZE
    assert [memory.look(path) is None for path in (6, 7, 308)] == [False, is_closed, False]
    assert memory.counts()["dropped"] == (0 if is_closed else 6)


def _opened_of_peers(memory: Memory, *paths: int) -> None:
    for path in paths:
        (content,) = memory.expect_from_peer([path])
        memory.arrive(content, payload(path))
        memory.claim(path, path, remote=True)


def test_bytes_of_peers_leave_once_they_can_be_read_here() -> None:
    memory = Memory(SIZE, shed, keeps_remote=True)
    _opened_of_peers(memory, 1, 2)
    assert memory.claims_bytes == 2 * SIZE
    memory.renew(SIZE, keeps_remote=False)
    assert memory.claims_bytes == SIZE
    first, second = memory.look(1), memory.look(2)
    assert first is not None
    assert not first.bytes_held
    assert second is not None
    assert second.bytes_held


def test_closed_files_keep_no_more_bytes_of_peers_than_there_is_room_for() -> None:
    """Where a job never opens one file of each group, every path stays at rest."""
    memory = Memory(3 * SIZE, shed, keeps_remote=True)
    for path in range(20):
        _opened_of_peers(memory, path)
        memory.rest(path)
    assert memory.claims_bytes == 3 * SIZE
    assert [path for path in range(20) if memory.look(path)] == [17, 18, 19]


@pytest.mark.parametrize("is_wanted", [True, False])
def test_a_promised_sample_takes_the_room_of_what_ends_for_it(is_wanted: bool) -> None:
    """``is_wanted``: it is reserved for its path. Else the path has another by now, and the sample goes back."""
    memory = Memory((2 if is_wanted else 3) * SIZE, shed)
    for sample in (1, 2, 3):
        (content,) = memory.expect([sample])
        memory.arrive(content, payload(sample))
    memory.claim(1, 1)
    memory.rest(1)
    memory.reserve(2)
    result = StatResult(3 if is_wanted else None, bound=False, reserved=is_wanted, unloaded=(2 if is_wanted else 3,))
    binding = SimpleNamespace(promise=lambda *_: result, revoke_preempted=lambda _: None)
    node: Any = SimpleNamespace(binding=binding, memory=memory, unload=memory.forget_reserved)
    pending = PendingTurns(node)
    pending.promise(9, 1, 7)
    pending.delivered([Delivered(7, Served(3))])
    assert memory.used_bytes == 2 * SIZE
    assert (memory.slots_bytes, memory.counts()["put_aside"]) == (0, 1)
    assert memory.look(1) is not None


@pytest.mark.parametrize("kept", [True, False])
def test_an_open_path_with_another_answer_holds_no_bytes_that_count_no_more(kept: bool) -> None:
    """A sampler draws a file again that stays open, or a file of a group is read again while another one is open."""
    sheds: list[int] = []
    memory = Memory(10 * SIZE, sheds.append)
    first = None
    for _ in range(2):
        if first is None or not kept:
            (content,) = memory.expect([7])
            memory.arrive(content, payload(7))
        first = memory.claim(7, 7, kept=kept)
    assert memory.used_bytes == SIZE
    assert sheds == ([] if kept else [7]), "what the slots keep is the same bytes"
    memory.rest(7)
    memory.expect_for(7, 7)
    assert sheds == ([] if kept else [7]), "nothing is open"
