"""The state file: it reads back as written, damage is detected, and when it is written."""

import json
import os
import resource
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import trio
import trio.testing
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE_S
from pools import policy_of

from redoxfs.linux import durable
from redoxfs.node.state import (
    MAGIC,
    State,
    StateError,
    StateFile,
    StateWriter,
    decode,
    encode,
    read_bytes,
    summary,
)
from redoxfs.protocol import PoolPolicy
from redoxfs.protocol.turns import LAST_LAP, Turns, merged

ABOUT = {"dataset": "fedcba", "--policy": "pool"}
SAMPLES = 20


def turns_of(laps: list[int], had: list[bool], given_: int = 7) -> Turns:
    return Turns(np.array(laps, np.int32), np.packbits(np.array(had, np.bool_)), given_)


TURNS = turns_of([3, 4], [True, False] * 10)


@given(
    st.dictionaries(st.text(), st.text(), max_size=5),
    st.lists(st.one_of(st.integers(1, 9), st.integers(1, 1000), st.integers(1, LAST_LAP)), max_size=20),
    st.lists(st.booleans(), max_size=40),
    st.integers(0, 1 << 60),
)
@pytest.mark.slow
def test_what_is_written_is_read(about: dict[str, str], laps: list[int], had: list[bool], given_: int) -> None:
    turns = turns_of(laps, had, given_)
    state = decode(encode(about, turns, 99))
    assert (state.about, state.turns.given, state.written_ns) == (about, given_, 99)
    assert state.turns.laps.tolist() == laps
    assert state.turns.laps.dtype == np.int32
    assert state.turns.had.tolist() == turns.had.tolist()


@pytest.mark.parametrize(("most", "width"), [(255, 1), (256, 2), (65_535, 2), (65_536, 4)])
def test_the_width_of_laps_is_that_of_their_difference(most: int, width: int) -> None:
    one = len(encode(ABOUT, turns_of([5] * 100, []), 0))
    assert len(encode(ABOUT, turns_of([5] * 99 + [5 + most], []), 0)) - one == 100 * (width - 1)


@given(st.integers(0, 1 << 20), st.integers(1, 255))
def test_a_changed_byte_is_detected(place: int, other: int) -> None:
    data = bytearray(encode(ABOUT, TURNS, 5))
    data[place % len(data)] ^= other
    with pytest.raises(StateError) as told:
        decode(bytes(data))
    assert "\n" not in str(told.value)


def test_truncated_and_longer_files_are_detected() -> None:
    data = encode(ABOUT, TURNS, 5)
    for length in range(len(data)):
        with pytest.raises(StateError):
            decode(data[:length])
    with pytest.raises(StateError, match="truncated or damaged"):
        decode(data + b"x")


@given(st.binary(max_size=200))
def test_any_other_bytes_are_no_state(data: bytes) -> None:
    for each in (data, MAGIC + data, MAGIC + b"\1\0\0\0" + data):
        with pytest.raises(StateError):
            decode(each)


def test_impossible_lengths_allocate_nothing() -> None:
    for lengths in [(0, 1 << 62, 0), (0, 0, 1 << 62), (1 << 31, 0, 0), (0, (1 << 64) - 64, 64)]:
        head = struct.pack("<8sIIQQIIQQ", MAGIC, 1, *lengths, 1, 1, 0, 0)
        data = head + xxhash.xxh3_128_digest(head)
        with pytest.raises(StateError, match="truncated or damaged"):
            decode(data)


def with_sum(told: bytes) -> bytes:
    return told + xxhash.xxh3_128_digest(told)


@pytest.mark.parametrize("whole", [False, True])
def test_the_passes_that_are_written_are_read(whole: bool) -> None:
    policy = policy_of(np.arange(20, dtype=np.int32).reshape(-1, 4), np.arange(20, dtype=np.int32) // 10, 5)
    policy.keep_passes(np.zeros(20, np.int32), 1)
    served = [policy.request(path).sample for path in (3, 15, 7)]
    turns = policy.kept_turns(whole=whole)
    found = decode(encode(ABOUT, turns, 1)).turns
    assert found.passes is not None
    assert turns.passes is not None
    assert found.passes.whole == whole
    for one, other in zip(found.passes[:3], turns.passes[:3], strict=True):
        assert one[: len(other)].tolist() == other.tolist()
        assert not one[len(other) :].any()
    assert np.flatnonzero(found.passes.asked).tolist() == [3, 7, 15]
    assert np.flatnonzero(found.passes.served).tolist() == sorted(served)
    policy.restore(found)
    assert decode(encode(ABOUT, turns._replace(passes=None), 1)).turns.passes is None, "as older releases wrote them"


def test_content_is_checked_behind_a_valid_checksum() -> None:
    about = json.dumps(ABOUT).encode()
    for text, least, width, why in [
        (b"[]", 1, 1, "its description cannot be read"),
        (b'{"dataset": 1}', 1, 1, "its description cannot be read"),
        (b"[" * 100_000, 1, 1, "its description cannot be read"),
        (b"\xff", 1, 1, "its description cannot be read"),
        (about, LAST_LAP + 1, 1, "no mount comes"),
        (about, 1, 3, "truncated or damaged"),
    ]:
        head = struct.pack("<8sIIQQIIQQ", MAGIC, 1, len(text), 0, 1, least, width, 0, 0)
        with pytest.raises(StateError, match=why):
            decode(with_sum(head + text + bytes(width)))
    older = encode(ABOUT, TURNS, 0)[:-16]
    with pytest.raises(StateError, match="format version 7, and this redoxfs reads versions 1 to 3"):
        decode(with_sum(older[:8] + struct.pack("<I", 7) + older[12:]))


def test_the_description_is_compared_and_differences_named() -> None:
    state = State(ABOUT, TURNS, 0)
    state.check(dict(ABOUT))
    for about, why in [
        (ABOUT | {"dataset": "0", "--policy": "slot"}, "it is of another dataset"),
        (ABOUT | {"--policy": "slot"}, "--policy was pool when it was written, and is slot now"),
        (ABOUT | {"--seed": "1"}, "--seed was nothing when it was written, and is 1 now"),
        ({"dataset": "fedcba"}, "--policy was pool when it was written, and is nothing now"),
    ]:
        with pytest.raises(StateError) as told:
            state.check(about)
        assert why in str(told.value)


def test_a_summary_counts() -> None:
    told = summary(TURNS, SAMPLES)
    assert told == {"first_lap": 3, "last_lap": 4, "had": 10, "samples": 20, "given": 7}


def test_a_file_is_replaced_as_a_whole_and_private(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("precious")
    path.symlink_to(elsewhere)
    file = StateFile(path)
    former = tmp_path / f".{'n' * 200}.new"
    former.symlink_to(elsewhere)
    for number in range(3):
        file.replace(b"%d" % number * 1000)
        assert path.read_bytes() == b"%d" % number * 1000
        assert path.lstat().st_mode & 0o177777 == 0o100600
    file.close()
    assert elsewhere.read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == [former.name, "elsewhere", path.name]


def test_an_interrupted_replacement_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    file = StateFile(tmp_path / "state")
    file.replace(b"before")
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        file.replace(b"after")
    file.close()
    assert os.listdir(tmp_path) == ["state"]
    assert (tmp_path / "state").read_bytes() == b"before"


def test_a_moved_folder_is_still_written_to(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    file = StateFile(tmp_path / "a/state")
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "a").symlink_to(tmp_path)
    file.replace(b"x")
    file.close()
    assert (tmp_path / "b/state").read_bytes() == b"x"
    assert not (tmp_path / "state").exists()


def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(encode(ABOUT, TURNS, 0))
    (tmp_path / "link").symlink_to("real")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    assert decode(read_bytes(tmp_path / "real")).about == ABOUT
    for name in ("link", "fifo", "folder", "none"):
        with pytest.raises(OSError):
            read_bytes(tmp_path / name)
    with open(tmp_path / "sparse", "wb") as file:
        file.write(struct.pack("<8sIIQQIIQQ", MAGIC, 1, 0, (1 << 40) - 72, 0, 1, 1, 0, 0))
        file.truncate(1 << 40)
    with pytest.raises(StateError, match="truncated or damaged"):
        read_bytes(tmp_path / "sparse")


def pool() -> PoolPolicy:
    cells = np.arange(SAMPLES, dtype=np.int32).reshape(-1, 4)
    return PoolPolicy(cells, np.zeros(SAMPLES, np.int32), np.ones(SAMPLES, np.int64), capacity_bytes=10, seed=0)


@contextmanager
def no_file_longer_than(limit: int) -> Iterator[None]:
    """A full disk, as a process sees it, for every file that it writes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def let_pass(clock: trio.testing.MockClock, seconds: int) -> None:
    """Let seconds pass, each after the writes of the one before: threads have no part in trio's time."""
    threads = trio.to_thread.current_default_thread_limiter()
    for _ in range(seconds):
        clock.jump(1)
        await trio.testing.wait_all_tasks_blocked()
        while threads.borrowed_tokens:
            await trio.testing.wait_all_tasks_blocked(0.001)
        await trio.testing.wait_all_tasks_blocked()


async def test_a_turn_is_in_the_file_within_a_second(tmp_path: Path, clock: trio.testing.MockClock) -> None:
    path = tmp_path / "state"

    node = pool()
    writer = StateWriter(StateFile(path), lambda: ABOUT, SAMPLES, node)
    async with trio.open_nursery() as nursery:
        await nursery.start(writer.run)
        await let_pass(clock, 10)
        assert not path.exists(), "nothing has changed"
        for turn in range(1, 30, 7):
            while node.given < turn:
                node.request(0)
            await let_pass(clock, 1)
            assert writer.stats()["turns_kept"] == turn
            inode = path.stat().st_ino
            state = decode(read_bytes(path))
            assert state.turns.given == turn
            assert state.turns.had.tolist() == node.turns().had.tolist()
            await let_pass(clock, 10)
            assert path.stat().st_ino == inode, "nothing has changed"
        node.request(0)
        nursery.cancel_scope.cancel()
    writer.final()
    assert decode(read_bytes(path)).turns.given == node.given
    inode = path.stat().st_ino
    writer.final()
    assert path.stat().st_ino == inode


async def test_a_full_disk_is_one_line_and_retried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, clock: trio.testing.MockClock
) -> None:
    caplog.set_level("INFO")
    path = tmp_path / "state"

    node = pool()
    writer = StateWriter(StateFile(path), lambda: ABOUT, SAMPLES, node)
    async with trio.open_nursery() as nursery:
        await nursery.start(writer.run)
        node.request(0)
        await let_pass(clock, 1)
        assert writer.stats()["turns_kept"] == 1
        with no_file_longer_than(10):
            node.request(0)
            await let_pass(clock, 20)
            writer.final()
        assert decode(read_bytes(path)).turns.given == 1
        assert writer.stats()["turns"] == 2
        await let_pass(clock, 1)
        assert writer.stats()["turns_kept"] == 2
        nursery.cancel_scope.cancel()
    assert os.listdir(tmp_path) == ["state"]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "retrying every second: File too large" in caplog.text


async def test_a_saved_state_loads_and_nothing_else_does(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    node = pool()
    writer = StateWriter(None, lambda: ABOUT, SAMPLES, node)
    await writer.run()
    before = [node.request(0).sample for _ in range(12)]
    told = await writer.save(os.fsencode(path))
    line = "lap 1, 12 of 20 samples had their turn"
    assert told == {"first_lap": 1, "last_lap": 1, "had": 12, "samples": 20, "given": 12, "told": line}
    for _ in range(15):
        node.request(0)
    assert await writer.load(read_bytes(path)) == told
    assert sorted(before + [node.request(0).sample for _ in range(8)]) == list(range(SAMPLES))
    now = node.turns()
    for data, why in [
        (b"", "not a redoxfs state file"),
        (encode(ABOUT | {"dataset": "x"}, TURNS, 0), "another dataset"),
        (encode(ABOUT, TURNS, 0), "not those of 1 and 20"),
    ]:
        with pytest.raises(ValueError, match=why):
            await writer.load(data)
    for data, why in [
        (b"relative", "the absolute path"),
        (b"", "the absolute path"),
        (b"/a\0b", "the absolute path"),
        (os.fsencode(tmp_path / "no/file"), "No such file"),
        (os.fsencode(tmp_path), "directory"),
    ]:
        with pytest.raises(ValueError, match=why):
            await writer.save(data)
    assert encode(ABOUT, node.turns(), 0) == encode(ABOUT, now, 0)


async def test_a_save_to_a_disk_that_hangs_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs, answers = threading.Event(), threading.Event()
    replace = durable.replace

    def replace_late(folder_fd: int, name: str, data: bytes) -> None:
        if name == "hangs":
            hangs.set()
            assert answers.wait(PATIENCE_S)
        replace(folder_fd, name, data)

    def given_in(name: str) -> int:
        return decode(read_bytes(tmp_path / name)).turns.given

    monkeypatch.setattr(durable, "replace", replace_late)
    node = pool()
    writer = StateWriter(StateFile(tmp_path / "own"), lambda: ABOUT, SAMPLES, node)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.save, os.fsencode(tmp_path / "hangs"))
        assert await trio.to_thread.run_sync(hangs.wait, PATIENCE_S)
        node.request(0)
        try:
            writer.final()
            assert given_in("own") == 1
            await writer.save(os.fsencode(tmp_path / "other"))
            assert given_in("other") == 1
            nursery.start_soon(writer.save, os.fsencode(tmp_path / "hangs"))
            await trio.testing.wait_all_tasks_blocked()
            assert not (tmp_path / "hangs").exists()
        finally:
            answers.set()
    assert given_in("hangs") == 1, "the newer one comes last"


async def test_a_handed_over_file_is_written_once_more(tmp_path: Path, clock: trio.testing.MockClock) -> None:
    path = tmp_path / "state"

    def asked(path: Path, s: float = PATIENCE_S) -> bytes:
        return b"%d %s" % (time.monotonic_ns() + s * 1e9, os.fsencode(path))

    node = pool()
    writer = StateWriter(StateFile(path), lambda: ABOUT, SAMPLES, node)
    async with trio.open_nursery() as nursery:
        await nursery.start(writer.run)
        node.request(0)
        await writer.hand_over(asked(tmp_path / "another"))
        assert not path.exists(), "the path is another file's"
        await let_pass(clock, 1)
        assert writer.stats()["turns_kept"] == 1
        node.request(0)
        await writer.hand_over(asked(path))
        assert decode(read_bytes(path)).turns.given == 2
        path.write_bytes(b"another's")
        node.request(0)
        await let_pass(clock, 10)
        assert (writer.stats()["turns"], writer.stats()["turns_kept"]) == (3, 2)
        await writer.begin_anew()
        writer.final()
        assert path.read_bytes() == b"another's"
        await writer.hand_over(asked(path))
        nursery.cancel_scope.cancel()
    # After the deadline the file is left to the other mount without a write.
    late = StateWriter(StateFile(path), lambda: ABOUT, SAMPLES, node)
    node.request(0)
    await late.hand_over(asked(path, -1))
    node.request(0)
    late.final()
    assert path.read_bytes() == b"another's"


async def test_several_nodes_keep_their_own_and_save_all(tmp_path: Path) -> None:
    class All:
        """This node and another, which also had the first sample."""

        node, nodes, lap_lineage = 2, 3, "then"

        def __init__(self, policy: PoolPolicy) -> None:
            self.policy = policy
            self.loaded: list[bytes] = []
            self.missing = ""

        async def turns_of_all(self) -> Turns:
            if self.missing:
                raise ValueError(self.missing)
            own = self.policy.turns()
            other = Turns(own.laps, np.packbits(np.arange(SAMPLES) == 0), 1)
            return merged([own, other], np.zeros(SAMPLES, np.int32))

        async def go_on(self, turns: Turns, data: bytes) -> None:
            self.loaded.append(data)
            self.policy.restore(turns)

    node = pool()
    path, saved = tmp_path / "state", tmp_path / "saved"
    file = StateFile(path)
    file.number(1, 9)
    file.number(2, 3)
    writer = StateWriter(file, lambda: ABOUT, SAMPLES, node)
    everybody = All(node)
    writer.share(everybody)
    while not node.turns().had[-1]:
        node.request(0)
    had = node.given
    writer.final()
    kept = decode(read_bytes(tmp_path / "state.2"))
    assert kept.about == {**ABOUT, "number of nodes": "3", "origin": "then"}
    assert kept.turns.given == had
    of_others = writer.decoded(encode({**kept.about, "origin": "later"}, kept.turns, 0))
    assert (of_others.lap_lineage, of_others.turns.had.tolist()) == ("later", kept.turns.had.tolist())
    with pytest.raises(StateError, match="number of nodes was nothing when it was written, and is 3 now"):
        writer.decoded(encode(ABOUT, TURNS, 0))
    told = await writer.save(os.fsencode(saved))
    assert told["given"] == had + 1
    assert decode(read_bytes(saved)).about == ABOUT, "of any number of nodes"
    # The file of one node is not the state of all.
    with pytest.raises(ValueError, match="number of nodes was 3 when it was written, and is nothing now"):
        await writer.load(read_bytes(tmp_path / "state.2"))
    await writer.load(read_bytes(saved))
    assert everybody.loaded == [read_bytes(saved)]
    assert decode(read_bytes(tmp_path / "state.2")).turns.given == had + 1, "it is in the file at once"
    everybody.missing = "no answer from h:1"
    with pytest.raises(ValueError, match="no answer from h:1"):
        await writer.save(os.fsencode(saved))
    assert decode(read_bytes(saved)).turns.given == had + 1
