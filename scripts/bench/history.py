"""What the history of a mount costs in processor time: each served sample, each look at them, and each point; and what
it costs to find the sets of paths that a job keeps apart.

    python scripts/bench/history.py

An open takes some 40 us, of which 1 % are 400 ns. A look comes once in 256 to 4,096 samples; a point, once a second.
"""

import time
import timeit

import numpy as np

from redoxfs.telemetry import Outcome
from redoxfs.telemetry.history import History
from redoxfs.telemetry.history_form import bounds
from redoxfs.telemetry.lap_watch import LEAST_TURNS, MOST_TURNS, LapWatch
from redoxfs.telemetry.split_watch import SplitWatch

SAMPLES, CHUNK = 1_300_000, 64
REPEATS = 5


def best_ns(statement: str, number: int, **names: object) -> float:
    return (
        1e9
        * min(timeit.repeat(statement, timer=time.thread_time, globals=names, number=number, repeat=REPEATS))
        / number
    )


def look_ns(turns: int) -> float:
    """Of each sample, with a look at ``turns`` of them at a time."""
    chunk_of = (np.random.default_rng(0).permutation(SAMPLES) // CHUNK).astype(np.int32).data
    watch = LapWatch(
        [SAMPLES],
        everything=SAMPLES,
        tree_of=lambda samples: np.zeros(len(samples), np.int32),
        chunk_of=lambda sample: chunk_of[sample],
        chunk_samples=CHUNK,
        class_of=lambda samples: samples % 1000,
        class_sizes=lambda _: np.full(1000, SAMPLES // 1000),
    )
    parts = [np.random.default_rng(seed).integers(0, SAMPLES, turns).tolist() for seed in range(100)]
    began = time.thread_time_ns()
    for part in parts:
        watch.look(part)
    return (time.thread_time_ns() - began) / (len(parts) * turns)


def split_ns(samples: int, turns: int) -> tuple[float, float]:
    """Of each ask in four epochs, with a look at ``turns`` of them at a time; and the longest look."""
    class_of = (np.arange(samples) * 1000 // samples).astype(np.int32)
    watch = SplitWatch(class_of, np.zeros(1000, np.int32), 1)
    epochs = [np.random.default_rng(seed).permutation(samples) for seed in range(4)]
    parts = [epoch[first : first + turns].tolist() for epoch in epochs for first in range(0, samples, turns)]
    took_ns = []
    for part in parts:
        began = time.thread_time_ns()
        watch.look(part)
        took_ns.append(time.thread_time_ns() - began)
    return sum(took_ns) / (len(epochs) * samples), max(took_ns)


def point_us() -> float:
    """Of adding a point, without the snapshot itself."""
    times = {outcome.label: {"count": 9, "sum": 1.0, "buckets": dict.fromkeys(bounds(), 5)} for outcome in Outcome}
    history, number = History(), 0
    began = time.thread_time_ns()
    for number in range(1000):
        history.add({"opens": number, "open_seconds": times, "load_seconds": times["demand"]}, float(number))
    return (time.thread_time_ns() - began) / 1e3 / (number + 1)


if __name__ == "__main__":
    served: list[int] = []
    append = best_ns("note(7)", 1_000_000, note=served.append)
    print(f"append: {append:.0f} ns for each open")
    for turns in (LEAST_TURNS, MOST_TURNS):
        print(f"look at {turns} samples: {look_ns(turns):.0f} ns for each open")
    for samples in (16_000, SAMPLES):
        each_ns, longest_ns = split_ns(samples, MOST_TURNS)
        at_end = f"{longest_ns / 1e6:.1f} ms at the end of an epoch"
        print(f"sets of {samples:,} paths: {each_ns:.0f} ns for each open, {at_end}")
    print(f"point: {point_us():.0f} us, at most once a second")
