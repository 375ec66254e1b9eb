"""A history is bounded, loses no count when it is thinned, and continues in the next daemon."""

import json
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import trio
from packs import catalog_of
from scrapes import told
from shuffle_quality import entropies, quality
from trio.testing import MockClock

from redoxfs.chunks import build_cells
from redoxfs.doctor.period import still_s
from redoxfs.fs.recorder import Recorder
from redoxfs.native import Histogram
from redoxfs.node import Node, plan_slot
from redoxfs.node.plan import Share
from redoxfs.protocol import SlotNode
from redoxfs.telemetry import METRICS, Kind, Outcome
from redoxfs.telemetry.expected_quality import entropy_of_permutation
from redoxfs.telemetry.history import LAPS, POINTS, History, memory_bytes
from redoxfs.telemetry.history_form import (
    LapQuality,
    Read,
    UnreadableError,
    bounds,
    columns,
    has_history,
    is_history,
    read,
    row_of,
    stats_of,
)
from redoxfs.telemetry.lap_watch import FOLLOWED, Finished, LapWatch
from redoxfs.telemetry.quality import BATCH

DAY_S = 86_400.0

QUALITY = LapQuality(0.3, 0.1, 100, 2.0, 3.0, 1.5, 10, 7.1, 7.5, 3.2, 3.3)


def stats(opens: int, *, restarts: int = 0, used: int = 7, waits: int = 0) -> dict[str, Any]:
    """A part of stats.json: each open reads a thousand bytes, and the last ``waits`` waited for a read."""
    return {
        "pid": 1,
        "opens": opens,
        "bytes_read": 1000 * opens,
        "memory_used_bytes": used,
        "turns_kept": None,
        "keeper": {"restarts": restarts},
        "open_seconds": {
            outcome.label: told(*([0.01] * waits if outcome is Outcome.DEMAND else [])) for outcome in Outcome
        },
        "load_seconds": told(),
        "peers": [{"address": "a:1", "retries": 3}],
    }


def written(history: History, now_s: float, last: dict[str, Any]) -> dict[str, Any]:
    """history.json."""
    return json.loads("".join(history.copy(now_s).pieces(last, ["train", "val"], None)))


def reread(history: History, now_s: float = 1e9) -> Read:
    return read(written(history, now_s, {"pid": 1}))


def test_points_have_each_metric_without_labels_and_each_histogram() -> None:
    places = {".".join(column.place) for column in columns()}
    expected: set[str] = set()
    for metric in METRICS:
        if metric.kind is Kind.HISTOGRAM and metric.labels == ("outcome",):
            expected |= {metric.place.replace("*", outcome.label) for outcome in Outcome}
        elif metric.kind is not Kind.FACT and not metric.labels:
            expected.add(metric.place)
    assert places == expected
    assert [metric.place for metric in METRICS if has_history(metric)]
    assert {"opens", "errors", "bytes_read", "open_seconds.demand", "load_seconds", "keeper.restarts"} <= places


def test_buckets_are_those_of_the_histogram() -> None:
    each_s = [ns / 1e9 for ns in (1, *Histogram.bounds_ns())]
    assert list(told(*each_s)["buckets"]) == list(bounds())


def test_a_snapshot_is_the_same_after_it_was_a_row() -> None:
    before = stats(12_345_678_901_234, waits=3)
    after = stats_of(row_of(before))
    assert (after["opens"], after["bytes_read"]) == (12_345_678_901_234, 12_345_678_901_234_000)
    assert after["turns_kept"] is None
    assert after["open_seconds"] == before["open_seconds"]


def test_a_job_of_ten_days_stays_within_the_bound_and_loses_no_open() -> None:
    history, draw = History(), random.Random(1)
    now_s, opens = 0.0, 0
    history.add(stats(0), now_s)
    while now_s < 10 * DAY_S:
        now_s += history.interval_s
        opens += draw.randrange(1, 1000)
        history.add(stats(opens), now_s)
    assert POINTS // 3 < len(history) <= POINTS
    points = reread(history, now_s + 1).points
    assert points[0].stats["opens"] == 0
    assert points[-1].stats["opens"] == opens
    gaps = np.diff([point.time_s for point in points[:-1]])
    assert gaps.max() <= 2 * history.interval_s
    assert [point.stats["opens"] for point in points] == sorted(point.stats["opens"] for point in points)


def test_a_history_has_less_than_three_megabytes() -> None:
    assert memory_bytes() < 3_000_000
    assert len(History(bytearray(memory_bytes()))) == 0
    with pytest.raises(ValueError, match="takes"):
        History(bytearray(memory_bytes() - 1))


def test_a_mount_that_does_nothing_takes_no_room() -> None:
    history = History()
    for second in range(1000):
        history.add(stats(5), float(second))
    history.add(stats(6), 1000.0)
    times = [point.time_s for point in reread(history, 1001.0).points]
    assert times == [0, 999, 1000, 1001]


def test_the_next_daemon_continues_with_the_sums() -> None:
    memory = bytearray(memory_bytes())
    first = History(memory)
    first.add(stats(0), 0.0)
    first.add(stats(100, waits=4), 1.0)
    second = History(memory)
    assert second.continues
    second.add(stats(0, restarts=1), 2.0)
    second.add(stats(30, restarts=1, used=9, waits=1), 3.0)
    last = reread(second).points[-1].stats
    assert (last["opens"], last["bytes_read"], last["memory_used_bytes"]) == (130, 130_000, 9)
    assert last["keeper"]["restarts"] == 1
    assert last["open_seconds"]["demand"]["count"] == 5


class Clock:
    """The two clocks that a history reads."""

    CLOCK_BOOTTIME = 7

    def __init__(self) -> None:
        self.boot_s, self.ahead_s = 50.0, 1e6

    def time(self) -> float:
        return self.boot_s + self.ahead_s

    def clock_gettime(self, _clock: int) -> float:
        return self.boot_s


@pytest.mark.parametrize("step_s", [-3600.0, 86_400.0])
def test_a_clock_that_is_set_leaves_intervals_as_they_were(monkeypatch: pytest.MonkeyPatch, step_s: float) -> None:
    clock = Clock()
    monkeypatch.setattr("redoxfs.telemetry.history.time", clock)
    memory = bytearray(memory_bytes())
    history = History(memory)
    for second in range(10):
        history.add(stats(second))
        if second == 2:
            history.begin_lap(0, clock.time())
        if second in (3, 6):
            clock.ahead_s += step_s
        if second == 6:
            # Another daemon notices it too.
            history = History(memory)
            assert history.continues
        clock.boot_s += 1
    history.end_lap(0, 1, 1, QUALITY, clock.time(), whole=True)
    found = reread(history, clock.time())
    assert np.diff([point.time_s for point in found.points]).tolist() == pytest.approx([1.0] * 10)
    assert found.points[-1].time_s == pytest.approx(clock.time())
    assert found.laps[0].ended_s - found.laps[0].began_s == pytest.approx(8.0)


def test_a_daemon_killed_while_it_thinned_leaves_no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = bytearray(memory_bytes())
    history = History(memory)

    class KilledError(Exception):
        pass

    def killed(*_: object) -> int:
        raise KilledError

    with monkeypatch.context() as patched:
        for second in range(POINTS):
            history.add(stats(second), float(second))
        patched.setattr("redoxfs.telemetry.history.len", killed, raising=False)
        with pytest.raises(KilledError):
            history._thin()
    after = History(memory)
    assert not after.continues
    assert len(after) == 0


def test_a_history_of_other_columns_is_not_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = bytearray(memory_bytes())
    History(memory).add(stats(5), 0.0)
    with monkeypatch.context() as patched:
        patched.setattr("redoxfs.telemetry.history.FORMAT", 2)
        assert not History(memory).continues


def waiting(opens: int, waiting: int) -> dict[str, Any]:
    return stats(opens) | {"waiting_opens": waiting, "waiting_reads": 0}


def test_progress_is_known_also_where_points_are_far_apart() -> None:
    """A hang begins between two points, and later, after hours in which nobody opened a file."""
    history = History()
    history.add(waiting(0, 0), 0.0)
    history.add(waiting(1000, 3), 1000.0)
    for second in range(1001, 1010):
        history.take_in(waiting(1000 + min(second - 1000, 3), 3), float(second))
    found = reread(history, 1010.0)
    assert (found.progress_s, still_s(found)) == (1003.0, 7.0)
    assert still_s(found._replace(progress_s=None)) == 0, "points do not show it"
    history.take_in(waiting(1003, 0), 9000.0)
    history.take_in(waiting(1003, 1), 9001.0)
    assert still_s(reread(history, 9002.0)) == 2.0


def test_a_history_of_before_progress_was_noted_is_read() -> None:
    history = History()
    history.add(stats(0), 0.0)
    value = written(history, 1.0, {"pid": 1})
    assert value.pop("progress_s") == 0
    assert read(value).progress_s is None
    others: tuple[Any, ...] = ("x", [], math.inf)
    for other in others:
        with pytest.raises(UnreadableError, match="damaged"):
            read({**value, "progress_s": other})


def test_laps_are_bounded_and_lose_no_open() -> None:
    history = History()
    history.add(stats(0), 0.0)
    ends = 3 * LAPS
    for lap in range(1, ends + 1):
        history.begin_lap(0, float(lap - 1))
        history.take_in(stats(10 * lap))
        history.end_lap(0, lap, lap, QUALITY, float(lap), whole=True)
    laps = reread(history).laps
    assert len(laps) <= LAPS
    assert [lap.first for lap in laps] == [1, *(lap.last + 1 for lap in laps[:-1])]
    assert laps[-1].last == ends
    assert sum(lap.grown["opens"] for lap in laps) == 10 * ends
    assert laps[0].quality.displacement == pytest.approx(0.3)
    assert (laps[-1].first, laps[-1].last) == (ends, ends)


def test_a_history_of_before_entropies_were_measured_is_read() -> None:
    history = History()
    history.begin_lap(0, 0.0)
    history.take_in(stats(3))
    history.end_lap(0, 1, 1, QUALITY, 1.0, whole=True)
    value = written(history, 1.0, {"pid": 1})
    assert read(value).laps[0].quality == QUALITY
    for name in ("chunk_entropy", "chunk_entropy_if_random", "class_entropy", "class_entropy_if_random"):
        del value["laps"][name]
    assert read(value).laps[0].quality == LapQuality(0.3, 0.1, 100, 2.0, 3.0, 1.5, 10)
    del value["laps"]["mate_pairs"]
    with pytest.raises(UnreadableError, match="damaged"):
        read(value)


def test_a_text_that_is_no_history_is_refused() -> None:
    history = History()
    history.add(stats(3), 0.0)
    value = written(history, 1.0, {"pid": 1})
    assert is_history(value)
    assert read(value).points[-1].stats["opens"] == 3
    assert not is_history({"opens": 3})
    with pytest.raises(UnreadableError, match="format"):
        read({**value, "format": 2})
    hostile: tuple[dict[str, Any], ...] = (
        {"time": [], "values": {}},
        {"time": [0] * 10**6, "values": {}},
        {"time": [math.nan], "values": {}},
    )
    broken_ones = ({"time": [1]}, {"time": ["x"], "values": {}}, {"time": [1, 2], "values": {"opens": [1]}})
    for broken in (*broken_ones, *hostile):
        with pytest.raises(UnreadableError, match="damaged"):
            read({**value, "points": broken})


SAMPLES, CHUNK, CLASSES = 8 * FOLLOWED, 16, 20


def watch(samples: list[int]) -> LapWatch:
    """Trees one after the other by the numbers of samples; chunks of `CHUNK` of them in order."""
    ends = np.cumsum(samples)
    return LapWatch(
        samples,
        everything=sum(samples),
        tree_of=lambda numbers: np.searchsorted(ends, numbers, side="right").astype(np.int32),
        chunk_of=lambda sample: sample // CHUNK,
        chunk_samples=CHUNK,
        class_of=lambda numbers: numbers % CLASSES,
        class_sizes=lambda tree: np.bincount(np.arange(samples[tree]) % CLASSES),
    )


def test_a_lap_ends_with_the_last_sample_of_its_tree() -> None:
    laps = watch([300, 40])
    assert laps.due == 256
    assert laps.look(range(20)) == []
    assert laps.due == 280
    assert laps.look(range(20, 299)) == []
    assert laps.progress(0) == (1, 299)
    assert laps.due == 1
    (first,) = laps.look([*range(300, 330), 299])
    assert (first.tree, first.lap, first.whole) == (0, 1, True)
    ended = [(each.tree, each.lap) for each in laps.look([*range(330, 340), *range(300), *range(300), *range(5)])]
    assert ended == [(0, 2), (0, 3), (1, 1)] or ended == [(1, 1), (0, 2), (0, 3)]
    assert laps.progress(0) == (4, 5)


def test_a_lap_that_was_resumed_is_not_whole() -> None:
    laps = watch([300])
    laps.resume(0, turns=700, nodes=1, whole=False)
    assert laps.progress(0) == (3, 100)
    (ended,) = laps.look(range(200))
    assert (ended.lap, ended.whole) == (3, False)
    laps.resume(0, turns=0, nodes=3, whole=True)
    (ended,) = laps.look(range(100))
    assert (ended.lap, ended.whole) == (1, True)


@pytest.mark.parametrize("shuffled", [True, False], ids=["random", "as stored"])
def test_the_measures_are_those_of_the_simulator(shuffled: bool) -> None:
    draw = np.random.default_rng(5)
    chunk_of = np.arange(SAMPLES, dtype=np.int32) // CHUNK
    epochs = [
        draw.permutation(SAMPLES).astype(np.int32) if shuffled else np.arange(SAMPLES, dtype=np.int32) for _ in range(2)
    ]
    exact = quality(epochs, chunk_of)
    laps = watch([SAMPLES])
    ended: list[Finished] = []
    for epoch in epochs:
        for part in np.array_split(epoch, 9):
            ended += laps.look(part.tolist())
    first, second = (each.quality for each in ended)
    assert first.displacement is None
    assert second.followed == FOLLOWED
    assert second.displacement == pytest.approx(exact.displacement, abs=0.02)
    assert second.rank_correlation == pytest.approx(exact.rank_correlation, abs=0.06)
    assert second.batches == SAMPLES // BATCH // 4
    assert second.mate_pairs == pytest.approx(exact.mate_pairs, rel=0.15)
    assert second.mate_pairs_if_random == pytest.approx(exact.mate_pairs_if_random, rel=0.01)
    assert second.mate_pairs_at_end is not None
    for label_of, found, if_random in (
        (chunk_of, second.chunk_entropy, second.chunk_entropy_if_random),
        (np.arange(SAMPLES, dtype=np.int32) % CLASSES, second.class_entropy, second.class_entropy_if_random),
    ):
        assert found == pytest.approx(entropies(label_of[epochs[1]], BATCH).mean(), abs=0.02)
        assert if_random == pytest.approx(entropy_of_permutation(np.bincount(label_of)))
    assert (second.chunk_entropy == 4) == (not shuffled), "16 chunks of 16"


def test_a_lap_of_no_whole_batch_has_no_entropies() -> None:
    laps = watch([200])
    (ended,) = laps.look(range(200))
    assert (ended.quality.batches, ended.quality.chunk_entropy, ended.quality.class_entropy_if_random) == (
        0,
        None,
        None,
    )


def test_places_take_little_memory_with_many_samples() -> None:
    laps = watch([13_000_000, 50_000])
    assert laps.memory_bytes < 200_000


class Turning(SimpleNamespace):
    turns_of_readers = Node.turns_of_readers


def a_node() -> Any:
    policy = SimpleNamespace(chunk_of=lambda sample: sample, degraded=0)
    plan = SimpleNamespace(about={}, nodes=1, policy=policy, sharing=SimpleNamespace(policy=policy))
    return Turning(given=0, _decided_alone=0, plan=plan, opens_of_files=[])


async def test_a_recorder_looks_for_progress_each_second_also_when_points_are_rare(
    tmp_path: Path, clock: MockClock
) -> None:
    catalog = catalog_of(tmp_path)
    looks: list[float] = []

    def noted() -> dict[str, Any]:
        looks.append(trio.current_time())
        return stats(len(looks))

    recorder = Recorder(a_node(), catalog, noted)

    clock.autojump_threshold = 0
    recorder.start()
    recorder._history.interval_s = 64.0
    with trio.move_on_after(64.5):
        await recorder.run()
    assert len(recorder._history) == 2
    assert max(np.diff(looks)) == pytest.approx(1.0)


@pytest.mark.parametrize(("had", "lap", "whole"), [(0, 1, True), (20, 1, False), (50, 2, False)])
def test_a_recorder_of_one_of_two_nodes_goes_on_in_the_lap(tmp_path: Path, had: int, lap: int, whole: bool) -> None:
    """A lap of the node is its half of the samples. In the last case it is over."""
    for label in ("one", "two"):
        (tmp_path / "train" / label).mkdir(parents=True)
        for number in range(50):
            (tmp_path / "train" / label / f"{number}.png").write_bytes(b"x")
    catalog = catalog_of(tmp_path)
    cells = build_cells(catalog.class_of, catalog.sample_bytes, chunk_size=1, seed=1)
    share = Share(0, 2, 1 << 20, True, None, timeout_s=1.0, exchange=0.0, window=1)
    plan = plan_slot(catalog, cells, memory_bytes=1 << 30, seed=1, share=share)
    assert isinstance(plan.policy, SlotNode)
    own = np.flatnonzero(plan.policy.home_of == 0).tolist()
    for sample in own[:had]:
        plan.policy.request(sample)
    node = SimpleNamespace(turns_of_readers=had, plan=plan, opens_of_files=[])
    recorder = Recorder(cast(Node, node), catalog, lambda: stats(node.turns_of_readers))
    recorder.start()
    for sample in own[had % 50 :]:
        node.note_served(sample)
        node.turns_of_readers += 1
    (ended,) = read(json.loads(trio.run(recorder.text))).laps
    assert (ended.first, ended.last, ended.whole) == (lap, lap, whole)


def test_a_lap_counts_nothing_of_the_split_that_is_read_next(tmp_path: Path) -> None:
    """However soon the next laps end: a training script with a short epoch and a short validation. Some samples are
    read alone, as their nodes are lost."""
    sizes = {"train": 600, "val": 300}
    for split, samples in sizes.items():
        for label in ("one", "two"):
            (tmp_path / split / label).mkdir(parents=True)
            for number in range(samples // 2):
                (tmp_path / split / label / f"{number}.png").write_bytes(b"x")
    catalog = catalog_of(tmp_path)
    node = a_node()
    recorder = Recorder(node, catalog, lambda: stats(node.turns_of_readers))
    recorder.start()
    tree_of = catalog.tree_of_class[catalog.class_of]
    for _ in range(3):
        for tree in catalog.class_trees:
            for sample in np.flatnonzero(tree_of == catalog.class_trees.index(tree)).tolist():
                node.note_served(sample)
                node.given += sample % 8 > 1
                node.plan.policy.degraded += sample % 8 == 1
                node._decided_alone += sample % 8 == 0
                if len(recorder.served) >= recorder.due:
                    recorder.look()
    found = read(json.loads(trio.run(recorder.text)))
    assert {tree: [lap.grown["opens"] for lap in found.laps if lap.tree == tree] for tree in sizes} == {
        tree: [samples] * 3 for tree, samples in sizes.items()
    }
